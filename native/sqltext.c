/* sqltext.c: where a literal, a comment or a name ends. See sqltext.h. */
#include "sqltext.h"

#define S HG_IS_SPACE
#define D (HG_IS_DIGIT | HG_IN_WORD | HG_IN_NUMBER)
#define A (HG_STARTS_WORD | HG_IN_WORD) /* letters and bytes of other alphabets */
#define U (A | HG_IN_NUMBER)            /* _ */
#define W HG_IN_WORD
#define H16 A, A, A, A, A, A, A, A, A, A, A, A, A, A, A, A

const uint8_t hg_byte_class[256] = {
    0,   0,   0,   0,   0,   0,   0,   0,  0, S, S, S, S, S, 0, 0, /* \t \n \v \f \r */
    0,   0,   0,   0,   0,   0,   0,   0,  0, 0, 0, 0, 0, 0, 0, 0, /**/
    S,   0,   0,   0,   W,   0,   0,   0,  0, 0, 0, 0, 0, 0, 0, 0, /* space $ */
    D,   D,   D,   D,   D,   D,   D,   D,  D, D, 0, 0, 0, 0, 0, 0, /**/
    0,   A,   A,   A,   A,   A,   A,   A,  A, A, A, A, A, A, A, A, /**/
    A,   A,   A,   A,   A,   A,   A,   A,  A, A, A, 0, 0, 0, 0, U, /* _ */
    0,   A,   A,   A,   A,   A,   A,   A,  A, A, A, A, A, A, A, A, /**/
    A,   A,   A,   A,   A,   A,   A,   A,  A, A, A, 0, 0, 0, 0, 0, /**/
    H16, H16, H16, H16, H16, H16, H16, H16};

static inline bool is(uint8_t byte, uint8_t of)
{
    return (hg_byte_class[byte] & of) != 0;
}

static const uint8_t *skip(const uint8_t *at, const uint8_t *end, uint8_t of)
{
    while (at < end && is(*at, of))
        at++;
    return at;
}

/* Behind the quote that closes what was opened before `at`; a doubled one is itself. */
static const uint8_t *quoted_end(const uint8_t *at, const uint8_t *end, uint8_t quote,
                                 bool backslashes)
{
    while (at < end) {
        if (*at == quote) {
            if (at + 1 == end || at[1] != quote)
                return at + 1;
            at += 2;
        } else if (backslashes && *at == '\\') {
            at += end - at > 1 ? 2 : 1;
        } else {
            at++;
        }
    }
    return end;
}

/* In MySQL a line ends at a line feed alone, in Postgres at a carriage return as well. */
static const uint8_t *line_end(const uint8_t *at, const uint8_t *end, int dialect)
{
    while (at < end && *at != '\n' && (*at != '\r' || dialect == HG_MYSQL))
        at++;
    return at;
}

/* Postgres' comments nest, and a star belongs to one bracket alone; MySQL's end at the first bracket that
 * closes, so that one that opens has no star in them. */
static const uint8_t *block_end(const uint8_t *at, const uint8_t *end, int dialect)
{
    unsigned long depth = 1;

    while (at < end) {
        const uint8_t *slash = memchr(at, '/', (size_t) (end - at));

        if (slash == NULL)
            return end;
        if (slash > at && slash[-1] == '*') {
            at = slash + 1;
            if (--depth == 0)
                return at;
        } else if (dialect == HG_POSTGRES && end - slash > 1 && slash[1] == '*') {
            at = slash + 2;
            depth++;
        } else {
            at = slash + 1;
        }
    }
    return end;
}

/* The sign, the digits and all, or `at`: 1e5, but not 1e and 1e+. */
static const uint8_t *exponent_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *digits = at + 1;

    if (end - at < 2 || (*at | 32) != 'e')
        return at;
    digits += *digits == '+' || *digits == '-';
    return digits < end && is(*digits, HG_IS_DIGIT) ? skip(digits, end, HG_IS_DIGIT) : at;
}

/* From its point, or its first digit. Letters right behind a number are none of it: servers take
 * 1.INTO and 1e5INTO (MySQL), 1INTO (Postgres before 15) for a number and a word. */
static const uint8_t *decimal_end(const uint8_t *at, const uint8_t *end)
{
    at = skip(at, end, HG_IN_NUMBER);
    if (at < end && *at == '.')
        at = skip(at + 1, end, HG_IN_NUMBER);
    return exponent_end(at, end);
}

static bool is_digit_of(uint8_t byte, uint8_t base)
{
    if (base == 'x')
        return is(byte, HG_IN_NUMBER) || ((byte | 32) >= 'a' && (byte | 32) <= 'f');
    return byte == '_' || (byte >= '0' && byte <= (base == 'b' ? '1' : '7'));
}

static const uint8_t *number_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *digits = at + 2;

    if (end - at > 2 && *at == '0'
        && ((at[1] | 32) == 'x' || (at[1] | 32) == 'b' || (at[1] | 32) == 'o')) {
        while (digits < end && is_digit_of(*digits, at[1] | 32))
            digits++;
        if (digits > at + 2)
            return digits;
    }
    return decimal_end(at, end);
}

/* $1, $$…$$ and $tag$…$tag$; NULL if it is none of them. */
static const uint8_t *dollar_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *tag = at + 1;
    size_t length;

    if (tag < end && is(*tag, HG_IS_DIGIT))
        return skip(tag, end, HG_IS_DIGIT);
    if (tag < end && is(*tag, HG_STARTS_WORD))
        while (tag < end && *tag != '$' && is(*tag, HG_IN_WORD))
            tag++;
    if (tag == end || *tag != '$')
        return NULL;
    length = (size_t) (tag + 1 - at);
    for (const uint8_t *from = tag + 1; (size_t) (end - from) >= length; from++) {
        from = memchr(from, '$', (size_t) (end - from));
        if (from == NULL || (size_t) (end - from) < length)
            break;
        if (memcmp(from, at, length) == 0)
            return from + length;
    }
    return end;
}

static hg_piece piece(hg_text *text, const uint8_t *end, hg_piece kind)
{
    text->at = end;
    return kind;
}

/* A letter in front of a quote or `&`: of the literal that follows, or a word. */
static hg_piece letter_piece(hg_text *text)
{
    const uint8_t *at = text->at;
    const uint8_t *end = text->end;
    bool mysql = text->dialect == HG_MYSQL;
    uint8_t letter = at[0] | 32;

    if (end - at > 1 && at[1] == '\'') {
        if (letter == 'b' || letter == 'x' || letter == 'n')
            return piece(text, quoted_end(at + 2, end, '\'', mysql), HG_PIECE_LITERAL);
        if (letter == 'e' && !mysql)
            return piece(text, quoted_end(at + 2, end, '\'', true), HG_PIECE_LITERAL);
    }
    if (letter == 'u' && !mysql && end - at > 2 && at[1] == '&') {
        if (at[2] == '\'')
            return piece(text, quoted_end(at + 3, end, '\'', false), HG_PIECE_LITERAL);
        if (at[2] == '"')
            return piece(text, quoted_end(at + 3, end, '"', false), HG_PIECE_QUOTED);
    }
    return piece(text, at + 1, HG_PIECE_WORD);
}

static hg_piece word_piece(hg_text *text)
{
    const uint8_t *stop = skip(text->at + 1, text->end, HG_IN_WORD);

    if (stop - text->at == 1 && stop < text->end && (*stop == '\'' || *stop == '&'))
        return letter_piece(text);
    return piece(text, stop, HG_PIECE_WORD);
}

static const uint8_t *operator_end(const uint8_t *at, const uint8_t *end)
{
    static const char pairs[] = "::<=>=<>!=||->";

    if (end - at > 1)
        for (const char *two = pairs; *two != '\0'; two += 2)
            if (at[0] == (uint8_t) two[0] && at[1] == (uint8_t) two[1])
                return at + (two[0] == '-' && end - at > 2 && at[2] == '>' ? 3 : 2);
    return at + 1;
}

static bool opens_line(const hg_text *text)
{
    const uint8_t *at = text->at;

    if (text->dialect == HG_MYSQL && *at == '#')
        return true;
    if (*at != '-' || text->end - at < 2 || at[1] != '-')
        return false;
    return text->dialect == HG_POSTGRES || text->end - at == 2 || at[2] <= ' ' || at[2] == 127;
}

/* :name, but not the second half of a cast. */
static bool opens_name(const hg_text *text)
{
    const uint8_t *at = text->at;

    return text->dialect == HG_POSTGRES && text->end - at > 1 && is(at[1], HG_STARTS_WORD)
           && (at == text->start || at[-1] != ':');
}

static hg_piece marked_piece(hg_text *text)
{
    const uint8_t *at = text->at;
    const uint8_t *end = text->end;
    const uint8_t *stop;
    bool mysql = text->dialect == HG_MYSQL;

    switch (*at) {
    case '\'':
        return piece(text, quoted_end(at + 1, end, '\'', mysql), HG_PIECE_LITERAL);
    case '"':
        return piece(text, quoted_end(at + 1, end, '"', mysql),
                     mysql ? HG_PIECE_LITERAL : HG_PIECE_QUOTED);
    case '`':
        if (mysql)
            return piece(text, quoted_end(at + 1, end, '`', false), HG_PIECE_QUOTED);
        break;
    case '?':
        return piece(text, at + 1, HG_PIECE_LITERAL);
    case '$':
        if (!mysql && (stop = dollar_end(at, end)) != NULL)
            return piece(text, stop, HG_PIECE_LITERAL);
        break;
    case ':':
        if (opens_name(text))
            return piece(text, skip(at + 2, end, HG_IN_WORD), HG_PIECE_LITERAL);
        break;
    case '.':
        if (end - at > 1 && is(at[1], HG_IS_DIGIT))
            return piece(text, decimal_end(at, end), HG_PIECE_LITERAL);
        break;
    case '/':
        if (end - at > 1 && at[1] == '*')
            return piece(text, block_end(at + 2, end, text->dialect), HG_PIECE_BLOCK);
        break;
    case '-':
    case '#':
        if (opens_line(text))
            return piece(text, line_end(at, end, text->dialect), HG_PIECE_LINE);
        break;
    default:
        break;
    }
    return piece(text, operator_end(at, end), HG_PIECE_OTHER);
}

hg_piece hg_next_piece(hg_text *text)
{
    const uint8_t *at = text->at;

    if (is(*at, HG_STARTS_WORD))
        return word_piece(text);
    if (is(*at, HG_IS_SPACE))
        return piece(text, skip(at + 1, text->end, HG_IS_SPACE), HG_PIECE_SPACE);
    if (is(*at, HG_IS_DIGIT))
        return piece(text, number_end(at, text->end), HG_PIECE_LITERAL);
    return marked_piece(text);
}

/* ── Tokens ───────────────────────────────────────────────────────────────── */

void hg_tokens_begin(hg_tokens *tokens, const char *text, size_t length, int dialect)
{
    tokens->text = hg_text_of(text, length, dialect);
    tokens->start = tokens->end = tokens->text.start;
    tokens->piece = HG_PIECE_SPACE;
    tokens->in_hint = tokens->skips_hints = false;
}

const uint8_t *hg_hint_start(const uint8_t *at, const uint8_t *end, int dialect)
{
    if (dialect != HG_MYSQL || end - at < 3 || at[0] != '/' || at[1] != '*')
        return NULL;
    at += 2 + (at[2] == 'M' && end - at > 3);
    return *at == '!' ? skip(at + 1, end, HG_IS_DIGIT) : NULL;
}

/* Of one that the server skips: it may hold another comment, which may hold none. */
static const uint8_t *skipped_hint_end(const uint8_t *at, const uint8_t *end)
{
    while (end - at > 1) {
        if (at[0] == '*' && at[1] == '/')
            return at + 2;
        at = at[0] == '/' && at[1] == '*' ? block_end(at + 2, end, HG_MYSQL) : at + 1;
    }
    return end;
}

/* Steps over what opens or closes a versioned comment, or over all of one that is skipped. */
static bool step_over_hint(hg_tokens *tokens)
{
    hg_text *text = &tokens->text;
    const uint8_t *inside;

    if (tokens->in_hint && text->end - text->at > 1 && text->at[0] == '*' && text->at[1] == '/') {
        text->at += 2;
        tokens->in_hint = false;
        return true;
    }
    inside = hg_hint_start(text->at, text->end, text->dialect);
    if (inside == NULL)
        return false;
    tokens->in_hint = !tokens->skips_hints;
    text->at = tokens->skips_hints ? skipped_hint_end(inside, text->end) : inside;
    return true;
}

bool hg_tokens_next(hg_tokens *tokens)
{
    hg_text *text = &tokens->text;

    while ((text->at = skip(text->at, text->end, HG_IS_SPACE)) < text->end) {
        if ((*text->at == '/' || *text->at == '*') && step_over_hint(tokens))
            continue;
        tokens->start = text->at;
        tokens->piece = hg_next_piece(text);
        tokens->end = text->at;
        if (tokens->piece > HG_PIECE_BLOCK)
            return true;
    }
    tokens->start = tokens->end = text->end;
    tokens->piece = HG_PIECE_SPACE;
    return false;
}

bool hg_token_is(const hg_tokens *tokens, const char *word)
{
    const uint8_t *at = tokens->start;

    if (tokens->piece != HG_PIECE_WORD)
        return false;
    for (; at < tokens->end && *word != '\0'; at++, word++)
        if ((*at | 32) != *word && *at != (uint8_t) *word)
            return false;
    return at == tokens->end && *word == '\0';
}

bool hg_token_is_mark(const hg_tokens *tokens, char mark)
{
    return tokens->piece == HG_PIECE_OTHER && tokens->end - tokens->start == 1
           && *tokens->start == (uint8_t) mark;
}
