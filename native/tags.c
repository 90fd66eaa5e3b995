/*
 * tags.c: the tags in a statement's comments (R120), as SQLCommenter writes them and as older
 * libraries did: key='value', key=value, key:value, joined by commas. A comment that is anything
 * else is prose, and counts for nothing; a pair that cannot be a tag is ignored and counted.
 *
 * The twin of src/headgate/budgets/sql_text.py.
 */
#include "layout.h"
#include "sqltext.h"

enum { IN_KEY = 1, IN_BARE = 2, ACCEPTED = 4, PLAIN_KEY = 8 };

#define K (IN_KEY | IN_BARE | ACCEPTED | PLAIN_KEY) /* letters, digits, _ - . / */

static const uint8_t tag_class[256] = {['%'] = IN_KEY | IN_BARE,
                                       [':'] = IN_BARE | ACCEPTED,
                                       [','] = ACCEPTED,
                                       ['-'] = K,
                                       ['.'] = K,
                                       ['/'] = K,
                                       ['_'] = K,
                                       ['0'] = K,
                                       ['1'] = K,
                                       ['2'] = K,
                                       ['3'] = K,
                                       ['4'] = K,
                                       ['5'] = K,
                                       ['6'] = K,
                                       ['7'] = K,
                                       ['8'] = K,
                                       ['9'] = K,
                                       ['A'] = K,
                                       ['B'] = K,
                                       ['C'] = K,
                                       ['D'] = K,
                                       ['E'] = K,
                                       ['F'] = K,
                                       ['G'] = K,
                                       ['H'] = K,
                                       ['I'] = K,
                                       ['J'] = K,
                                       ['K'] = K,
                                       ['L'] = K,
                                       ['M'] = K,
                                       ['N'] = K,
                                       ['O'] = K,
                                       ['P'] = K,
                                       ['Q'] = K,
                                       ['R'] = K,
                                       ['S'] = K,
                                       ['T'] = K,
                                       ['U'] = K,
                                       ['V'] = K,
                                       ['W'] = K,
                                       ['X'] = K,
                                       ['Y'] = K,
                                       ['Z'] = K,
                                       ['a'] = K,
                                       ['b'] = K,
                                       ['c'] = K,
                                       ['d'] = K,
                                       ['e'] = K,
                                       ['f'] = K,
                                       ['g'] = K,
                                       ['h'] = K,
                                       ['i'] = K,
                                       ['j'] = K,
                                       ['k'] = K,
                                       ['l'] = K,
                                       ['m'] = K,
                                       ['n'] = K,
                                       ['o'] = K,
                                       ['p'] = K,
                                       ['q'] = K,
                                       ['r'] = K,
                                       ['s'] = K,
                                       ['t'] = K,
                                       ['u'] = K,
                                       ['v'] = K,
                                       ['w'] = K,
                                       ['x'] = K,
                                       ['y'] = K,
                                       ['z'] = K};

typedef struct span {
    const uint8_t *at, *end;
} span;

/* Plain: nothing to decode, and nothing that may not stand in a tag. */
typedef struct raw_pair {
    span key, value;
    bool plain_key, plain_value;
} raw_pair;

static const uint8_t *skip_class(const uint8_t *at, const uint8_t *end, uint8_t of)
{
    while (at < end && (tag_class[*at] & of) != 0)
        at++;
    return at;
}

static const uint8_t *skip_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (hg_byte_class[*at] & HG_IS_SPACE) != 0)
        at++;
    return at;
}

/* The value from behind its opening quote; NULL if it is never closed. */
static const uint8_t *closing_quote(const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        if (*at == '\'')
            return at;
        if (*at == '\\' && end - at < 2)
            return NULL;
        at += *at == '\\' ? 2 : 1;
    }
    return NULL;
}

/* Steps over one pair and the space around it; false if there is none. */
static bool next_pair(span *text, raw_pair *pair)
{
    const uint8_t *end = text->end;
    const uint8_t *at = skip_space(text->at, end);

    pair->key.at = at;
    at = skip_class(at, end, PLAIN_KEY);
    pair->plain_key = at == end || *at != '%';
    if (!pair->plain_key)
        at = skip_class(at, end, IN_KEY);
    pair->key.end = at;
    if (at == pair->key.at || end - at < 2 || (*at != '=' && *at != ':'))
        return false;
    if (at[0] == '=' && at[1] == '\'') {
        pair->value.at = at + 2;
        at = skip_class(at + 2, end, ACCEPTED);
        pair->plain_value = at < end && *at == '\'';
        pair->value.end = pair->plain_value ? at : closing_quote(at, end);
        if (pair->value.end == NULL)
            return false;
        at = pair->value.end + 1;
    } else {
        pair->plain_value = false;
        pair->value.at = at + 1;
        pair->value.end = at = skip_class(at + 1, end, IN_BARE);
        if (at == pair->value.at)
            return false;
    }
    text->at = skip_space(at, end);
    return true;
}

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 32;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The decoded bytes' number, 0 if they are none, too many for `room`, or some may not stand in a
 * tag. A quote may not: so what is left of an escaped one need not be distinguished from it. */
static size_t decode(span raw, char *out, size_t room)
{
    size_t length = 0;

    while (raw.at < raw.end) {
        uint8_t byte = *raw.at++;

        if (byte == '%' && raw.end - raw.at >= 2) {
            int high = hex_digit(raw.at[0]);
            int low = hex_digit(raw.at[1]);

            if (high < 0 || low < 0)
                return 0;
            byte = (uint8_t) (high * 16 + low);
            raw.at += 2;
        }
        if ((tag_class[byte] & ACCEPTED) == 0 || length == room)
            return 0;
        out[length++] = (char) byte;
    }
    return length;
}

static size_t copy(span raw, bool plain, char *out, size_t room)
{
    size_t length = (size_t) (raw.end - raw.at);

    if (!plain)
        return decode(raw, out, room);
    if (length > room)
        return 0;
    memcpy(out, raw.at, length);
    return length;
}

static hg_tag *tag_of(hg_tags *tags, const char *key, size_t length)
{
    for (uint32_t i = 0; i < tags->count; i++) {
        hg_tag *tag = &tags->tags[i];

        if (tag->key_length == length && memcmp(tags->text + tag->key_offset, key, length) == 0)
            return tag;
    }
    return NULL;
}

/* Closes the gap that an older value leaves, so that a key repeated endlessly takes no more room
 * than its last value. The new pair lies at tags->used, and moves along. */
static void replace_value(hg_tags *tags, hg_tag *tag, size_t key_length, size_t length)
{
    uint16_t gap = tag->value_length;
    uint16_t gap_at = tag->value_offset;
    char *text = tags->text;

    memmove(text + tags->used, text + tags->used + key_length, length);
    memmove(text + gap_at, text + gap_at + gap, tags->used + length - gap_at - gap);
    for (uint32_t i = 0; i < tags->count; i++) {
        if (tags->tags[i].key_offset > gap_at)
            tags->tags[i].key_offset = (uint16_t) (tags->tags[i].key_offset - gap);
        if (tags->tags[i].value_offset > gap_at)
            tags->tags[i].value_offset = (uint16_t) (tags->tags[i].value_offset - gap);
    }
    tags->used = (uint16_t) (tags->used - gap);
    tag->value_offset = tags->used;
    tag->value_length = (uint16_t) length;
    tags->used = (uint16_t) (tags->used + length);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void keep(hg_tags *tags, const raw_pair *pair)
{
    char *key = tags->text + tags->used;
    size_t room = sizeof tags->text - tags->used;
    size_t key_length = copy(pair->key, pair->plain_key, key, least(HG_MAX_KEY_BYTES, room));
    size_t length = copy(pair->value, pair->plain_value, key + key_length,
                         least(HG_MAX_VALUE_BYTES, room - key_length));
    hg_tag *tag;

    if (key_length == 0 || length == 0) {
        tags->ignored++;
        return;
    }
    tag = tag_of(tags, key, key_length);
    if (tag != NULL) {
        tags->duplicates++;
        replace_value(tags, tag, key_length, length);
        return;
    }
    if (tags->count == HG_MAX_TAGS) {
        tags->ignored++;
        return;
    }
    tag = &tags->tags[tags->count++];
    tag->key_offset = tags->used;
    tag->key_length = (uint16_t) key_length;
    tag->value_offset = (uint16_t) (tags->used + key_length);
    tag->value_length = (uint16_t) length;
    tags->used = (uint16_t) (tag->value_offset + length);
}

/* All pairs of a comment count, or, if any part of it is not a pair, none. So they are remembered
 * until its end is seen; those that do not fit there are read again. */
static void read_comment(span comment, hg_tags *tags)
{
    raw_pair pairs[HG_MAX_TAGS];
    raw_pair beyond;
    span rest = {NULL, NULL};
    uint32_t count = 0;

    do {
        if (comment.at == comment.end)
            return;
        if (count > 0 && *comment.at++ != ',')
            return;
        if (count == HG_MAX_TAGS && rest.at == NULL)
            rest = comment;
        if (!next_pair(&comment, count < HG_MAX_TAGS ? &pairs[count] : &beyond))
            return;
        count += count < HG_MAX_TAGS;
    } while (comment.at < comment.end);
    for (uint32_t i = 0; i < count; i++)
        keep(tags, &pairs[i]);
    while (rest.at != NULL && rest.at < rest.end) {
        next_pair(&rest, &beyond);
        keep(tags, &beyond);
        rest.at += rest.at < rest.end;
    }
}

/* Where the next bracket opens, in a literal or not; NULL: nowhere. Most texts have none, and
 * memchr sees that at many bytes a cycle. */
static const uint8_t *next_bracket(const uint8_t *at, const uint8_t *end)
{
    while (end - at > 1) {
        at = memchr(at, '/', (size_t) (end - at - 1));
        if (at == NULL || at[1] == '*')
            return at;
        at++;
    }
    return NULL;
}

typedef uint8_t sixteen __attribute__((vector_size(16)));

/* Sixteen bytes at a time, as long as none of them opens anything. */
static const uint8_t *skip_closed(const uint8_t *at, const uint8_t *end)
{
    for (; end - at >= 16; at += 16) {
        sixteen bytes;
        uint64_t any[2];

        memcpy(&bytes, at, sizeof bytes);
        bytes = (sixteen) ((bytes == '\'') | (bytes == '"') | (bytes == '`') | (bytes == '$')
                           | (bytes == '#') | (bytes == '-'));
        memcpy(any, &bytes, sizeof any);
        if ((any[0] | any[1]) != 0)
            return at;
    }
    return at;
}

static bool may_open(const uint8_t *at, int dialect)
{
    switch (*at) {
    case '\'':
    case '"':
        return true;
    case '-':
        return at[1] == '-';
    case '#':
    case '`':
        return dialect == HG_MYSQL;
    case '$': /* a parameter opens nothing */
        return dialect == HG_POSTGRES && (hg_byte_class[at[1]] & HG_IS_DIGIT) == 0;
    default:
        return false;
    }
}

/* The next byte before `bracket` that may open what hides one; else `bracket`. */
static const uint8_t *next_opening(const uint8_t *at, const uint8_t *bracket, int dialect)
{
    while (at < bracket) {
        const uint8_t *stop;

        at = skip_closed(at, bracket);
        stop = bracket - at > 16 ? at + 16 : bracket;
        for (; at < stop; at++)
            if (may_open(at, dialect))
                return at;
    }
    return bracket;
}

/* Whether a piece begins at `at`, as far as that can be seen from the byte before it: E may be
 * the letter of a literal or the last of a word, and words may hold a dollar. */
static bool begins_piece(const hg_text *text, const uint8_t *at)
{
    if (at == text->start || text->dialect == HG_MYSQL)
        return true;
    if (*at == '\'')
        return (at[-1] | 32) != 'e';
    return *at != '$' || (hg_byte_class[at[-1]] & HG_IN_WORD) == 0;
}

/* On to the bracket, or to the end of what hides it. Most of a text is skipped; where that would
 * be a guess, it is read piece by piece. */
static void approach(hg_text *text, const uint8_t *bracket)
{
    while (text->at < bracket) {
        const uint8_t *opening = next_opening(text->at, bracket, text->dialect);

        if (opening == bracket || begins_piece(text, opening))
            text->at = opening;
        if (opening == bracket)
            return;
        while (text->at <= opening)
            hg_next_piece(text);
    }
}

static void read_block(const uint8_t *start, const uint8_t *end, hg_tags *tags)
{
    span inside = {start + 2, end};

    if (inside.at < end && (*inside.at == '+' || *inside.at == '!'))
        return;
    if (end - inside.at >= 2 && end[-2] == '*' && end[-1] == '/')
        inside.end = end - 2;
    read_comment(inside, tags);
}

void hg_tags_read(const char *text, size_t length, int dialect, hg_tags *tags)
{
    hg_text at = hg_text_of(text, length, dialect);
    const uint8_t *bracket = next_bracket(at.at, at.end);

    tags->count = tags->ignored = tags->duplicates = 0;
    tags->used = 0;
    while (bracket != NULL) {
        approach(&at, bracket);
        if (at.at == bracket) {
            hg_next_piece(&at);
            read_block(bracket, at.at, tags);
        }
        bracket = next_bracket(at.at, at.end);
    }
}
