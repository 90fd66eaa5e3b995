/*
 * kinds_split.c: a string's statements, and what is made of a text that can be read in several ways.
 *
 *   text ──read──► slices ──read as if versioned comments were skipped──► the stricter of both
 *                         ──where a literal ends is in doubt──► no reads, nothing free, from there on
 *
 * A text does not say all that it means. Whether a versioned comment of MySQL runs depends on the
 * server's version. Whether a backslash hides a quote depends on the session (NO_BACKSLASH_ESCAPES,
 * ANSI_QUOTES, standard_conforming_strings), and so does which bytes are one character: in Shift-JIS, GBK
 * and others a backslash or a back-tick may be the second half of one. None of that is known here, so
 * what is not the same in every reading is decided as a write.
 */
#include "kinds.h"

#include "inside.h"

typedef struct splitter {
    const char *text;
    int dialect;
    bool skips_hints;
    hr_slice *slices;
    uint32_t count;
} splitter;

/* ── One reading ──────────────────────────────────────────────────────────── */

static void begin(const splitter *split, uint32_t start, uint32_t end, hg_tokens *tokens)
{
    hg_tokens_begin(tokens, split->text + start, end - start, split->dialect);
    tokens->skips_hints = split->skips_hints;
}

static void add_slice(splitter *split, uint32_t start, uint32_t end)
{
    hr_slice *slice = &split->slices[split->count];
    hg_tokens tokens;

    slice->start = start;
    slice->length = end - start;
    begin(split, start, end, &tokens);
    hr_read_tokens(&tokens, &slice->reading);
    split->count += slice->reading.kind != HR_KIND_EMPTY;
}

static uint32_t offset(const splitter *split, const uint8_t *at)
{
    return (uint32_t) (at - (const uint8_t *) split->text);
}

/* Postgres: where it ends depends on whether a backslash hides a quote, and what follows is left unread:
 * the machine must not follow statements that may be none. */
static bool is_unsure(const splitter *split, uint32_t start, const hg_tokens *tokens)
{
    hg_tokens behind = *tokens;

    return split->dialect == HG_POSTGRES
           && memchr(split->text + start, '\\', offset(split, tokens->start) - start) != NULL
           && hg_tokens_next(&behind);
}

static void add_rest(splitter *split, uint32_t start, uint32_t length, bool unread)
{
    uint32_t before = split->count;

    add_slice(split, start, length);
    /* Only comments behind the last: they may hold its tags, as some tools write them. */
    if (split->count == before && before > 0)
        split->slices[before - 1].length = length - split->slices[before - 1].start;
    else if (split->count > before && (unread || split->count == HR_MAX_SLICES)) {
        split->slices[before].reading.kind = HR_KIND_WRITE; /* several */
        split->slices[before].reading.verb = HR_VERB_NONE;
        split->slices[before].reading.commits = true;
    }
}

static void split_text(splitter *split, uint32_t length)
{
    uint32_t start = 0;
    int depth = 0;
    bool unread = false;
    hg_tokens tokens;

    if (memchr(split->text, ';', length) == NULL) {
        add_slice(split, 0, length);
        return;
    }
    begin(split, 0, length, &tokens);
    while (split->count < HR_MAX_SLICES - 1 && !unread && hg_tokens_next(&tokens)) {
        depth += hg_token_is_mark(&tokens, '(');
        depth -= depth > 0 && hg_token_is_mark(&tokens, ')');
        if (depth > 0 || !hg_token_is_mark(&tokens, ';'))
            continue;
        unread = is_unsure(split, start, &tokens);
        if (unread)
            break;
        add_slice(split, start, offset(split, tokens.start));
        start = offset(split, tokens.end);
    }
    if (start < length)
        add_rest(split, start, length, unread);
}

/* ── Versioned comments ───────────────────────────────────────────────────── */

/* Of the first that begins at or behind `at`, wherever it is; NULL: none. */
static const uint8_t *find_hint(const uint8_t *at, const uint8_t *end)
{
    while ((at = memchr(at, '/', (size_t) (end - at))) != NULL) {
        if (hg_hint_start(at, end, HG_MYSQL) != NULL)
            return at;
        at++;
    }
    return NULL;
}

/* Whether all have one version: then a server runs all of them, or none. */
static bool is_one_version(const uint8_t *hint, const uint8_t *end)
{
    const uint8_t *first = hint;
    size_t length = (size_t) (hg_hint_start(hint, end, HG_MYSQL) - hint);

    while ((hint = find_hint(hint + 1, end)) != NULL)
        if ((size_t) (hg_hint_start(hint, end, HG_MYSQL) - hint) != length
            || memcmp(hint, first, length) != 0)
            return false;
    return true;
}

static int strictness(const hr_reading *reading)
{
    static const int of_kind[] = {[HR_KIND_READ] = 3,
                                  [HR_KIND_WRITE] = 4,
                                  [HR_KIND_BEGIN] = 2,
                                  [HR_KIND_FREE] = 1,
                                  [HR_KIND_EMPTY] = 0};

    return of_kind[reading->kind];
}

static bool is_same(const hr_reading *a, const hr_reading *b)
{
    return a->kind == b->kind && a->verb == b->verb && a->at == b->at && a->inner == b->inner
           && a->ends == b->ends && a->back == b->back && a->commits == b->commits;
}

static void take_stricter(hr_reading *reading, const hr_reading *other)
{
    if (is_same(reading, other)) {
        reading->may_write |= other->may_write;
        return;
    }
    if (strictness(other) > strictness(reading))
        *reading = *other;
    reading->unsure = true;
    reading->ends |= other->ends;
    reading->commits |= other->commits;
    reading->may_write |= other->may_write;
}

static bool are_alike(const splitter *a, const splitter *b)
{
    if (a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->slices[i].start != b->slices[i].start || a->slices[i].length != b->slices[i].length)
            return false;
    return true;
}

/* Whether names of prepared statements may mean something else behind it. */
static bool names_change(const splitter *split)
{
    for (uint32_t i = 0; i < split->count; i++)
        if (split->slices[i].reading.verb >= HR_VERB_DISCARD)
            return true;
    return false;
}

static void take_for_write(hr_reading *reading)
{
    reading->kind = HR_KIND_WRITE;
    reading->commits = reading->unsure = true;
}

/* From the statement on that has the first of them: those before it are the same for every server. */
static void read_both_ways(splitter *split, uint32_t length, const uint8_t *hint)
{
    hr_slice others[HR_MAX_SLICES];
    splitter skipping = {split->text, split->dialect, true, others, 0};
    bool sure = is_one_version(hint, (const uint8_t *) split->text + length);
    bool names;

    split_text(&skipping, length);
    names = names_change(split) || names_change(&skipping);
    if (are_alike(split, &skipping)) {
        for (uint32_t i = 0; i < split->count; i++)
            take_stricter(&split->slices[i].reading, &others[i].reading);
    } else if (skipping.count > split->count) {
        memcpy(split->slices, others, skipping.count * sizeof *others);
        split->count = skipping.count;
        sure = false;
    } else {
        sure &= skipping.count == 0; /* what is in the comments is all there is */
    }
    for (uint32_t i = 0; i < split->count; i++) {
        hr_reading *reading = &split->slices[i].reading;

        if (split->slices[i].start + split->slices[i].length <= offset(split, hint))
            continue;
        reading->unsure |= skipping.count == 0;
        if (!sure)
            take_for_write(reading);
        if (reading->unsure && names && reading->verb < HR_VERB_DISCARD)
            reading->verb = HR_VERB_DISCARD;
    }
}

/* ── Where a literal ends ─────────────────────────────────────────────────── */

static bool has_quote(const char *at, const char *end)
{
    size_t length = (size_t) (end - at);

    return memchr(at, '\'', length) != NULL || memchr(at, '"', length) != NULL
           || memchr(at, '`', length) != NULL;
}

/* A hint to the optimizer that has a quote in it may end behind that. */
static const char *quoted_hint(const char *text, size_t length)
{
    const char *end = text + length;
    const char *at = text;

    while ((at = memmem(at, (size_t) (end - at), "/*+", 3)) != NULL) {
        const char *close = memmem(at, (size_t) (end - at), "*/", 2);

        if (has_quote(at, close == NULL ? end : close))
            return at;
        if (close == NULL)
            return NULL;
        at = close;
    }
    return NULL;
}

/* A back-tick that may be half of a character; `--` and what may be a space or not. */
static const char *odd_byte(const char *text, size_t length)
{
    for (size_t i = 1; i < length; i++)
        if ((text[i] == '`' && (uint8_t) text[i - 1] >= 0x80)
            || ((uint8_t) text[i] >= 0x80 && i > 1 && text[i - 1] == '-' && text[i - 2] == '-'))
            return text + i;
    return NULL;
}

static const char *earlier(const char *a, const char *b)
{
    return a == NULL || (b != NULL && b < a) ? b : a;
}

/* From where on servers and sessions may read it otherwise; NULL: they cannot. */
static const char *doubt_in(const char *text, size_t length, int dialect)
{
    const char *doubt = memchr(text, '\\', length);

    if (dialect != HG_MYSQL)
        return doubt;
    return earlier(earlier(doubt, odd_byte(text, length)), quoted_hint(text, length));
}

static bool in_word(uint8_t byte)
{
    return (hg_byte_class[byte] & HG_IN_WORD) != 0 && byte < 0x80;
}

/* Whether the bytes there are such a word, whatever they are part of. */
static bool stands_there(const char *word, const char *at, const char *end)
{
    for (; *word != '\0'; word++, at++)
        if (at == end || (*at | 32) != *word)
            return false;
    return at == end || !in_word((uint8_t) *at);
}

static bool is_write_word(const char *at, const char *end)
{
    static const char *const words[] = {"into",   "update", "share", "lock",
                                        "insert", "delete", "merge", "replace"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (stands_there(words[i], at, end))
            return true;
    return false;
}

/* Whether anything in it could be a further statement, or make a write of a query. */
static bool may_hold_write(const char *text, size_t length)
{
    const char *end = text + length;

    for (const char *at = text; at < end; at++) {
        bool inside = at > text && in_word((uint8_t) at[-1]) && (at[-1] < '0' || at[-1] > '9');

        if (*at == ';') {
            while (at < end && (*at == ';' || (hg_byte_class[(uint8_t) *at] & HG_IS_SPACE) != 0))
                at++;
            if (at < end)
                return true;
            break;
        }
        if (!inside && is_write_word(at, end))
            return true;
    }
    return false;
}

static void doubt(splitter *split, uint32_t length, const char *from)
{
    uint32_t at = (uint32_t) (from - split->text);

    for (uint32_t i = 0; i < split->count; i++) {
        hr_slice *slice = &split->slices[i];

        if (slice->start + slice->length <= at)
            continue;
        if (slice->reading.kind != HR_KIND_READ
            || may_hold_write(split->text + slice->start, length - slice->start))
            take_for_write(&slice->reading);
    }
}

/* ── All of it ────────────────────────────────────────────────────────────── */

void hr_query_read(hr_query *query, const char *text, size_t length, int dialect)
{
    splitter split = {text, dialect, false, query->slices, 0};
    const uint8_t *hint = NULL;
    const char *from;

    query->text = text;
    query->length = length;
    query->count = 0;
    if (length == 0)
        return;
    split_text(&split, (uint32_t) length);
    if (dialect == HG_MYSQL)
        hint = find_hint((const uint8_t *) text, (const uint8_t *) text + length);
    if (hint != NULL)
        read_both_ways(&split, (uint32_t) length, hint);
    from = split.count == 0 ? NULL : doubt_in(text, length, dialect);
    if (from != NULL)
        doubt(&split, (uint32_t) length, from);
    query->count = split.count;
}

int hr_query_kind(const hr_query *query)
{
    int kind = HR_KIND_FREE;

    if (query->count == 0)
        return HR_KIND_EMPTY;
    if (query->count == 1)
        return query->slices[0].reading.kind;
    for (uint32_t i = 0; i < query->count; i++) {
        if (query->slices[i].reading.kind <= HR_KIND_WRITE)
            return HR_KIND_MANY;
        if (query->slices[i].reading.kind == HR_KIND_BEGIN)
            kind = HR_KIND_BEGIN;
    }
    return kind;
}
