/*
 * kinds.c: what a statement's first words say. The same kinds are free as in the extension
 * (pg_headgate/src/statement.c): one policy, one meaning (R152). No grammar: whatever is not known to
 * be free is judged, and whatever is not known to read only is a write.
 *
 * A client must not get past the gate by the way it writes: what MySQL runs inside a comment, what
 * SET … FOR and EXPLAIN ANALYZE run, blocks that look like BEGIN, and queries in a SET are all seen.
 */
#include "kinds.h"

#include "inside.h"

#define MAX_NESTING 4 /* EXPLAIN ANALYZE SET STATEMENT … */

/* ── Tokens ───────────────────────────────────────────────────────────────── */

void hr_tokens_begin(hr_tokens *tokens, const char *text, size_t length, int dialect)
{
    tokens->text = hg_text_of(text, length, dialect);
    tokens->start = tokens->end = tokens->text.start;
    tokens->piece = HG_PIECE_SPACE;
    tokens->in_hint = false;
}

/* Behind the head of a comment that MySQL runs, which is !50000 or MariaDB's M!100100; NULL: none
 * begins. */
static const uint8_t *hint_start(const hg_text *text)
{
    const uint8_t *at = text->at + 2;

    if (text->dialect != HG_MYSQL || text->end - text->at < 3)
        return NULL;
    if ((*at | 32) == 'm' && text->end - at > 1)
        at++;
    if (*at != '!')
        return NULL;
    for (at++; at < text->end && *at >= '0' && *at <= '9';)
        at++;
    return at;
}

static bool closes_hint(const hr_tokens *tokens)
{
    const hg_text *text = &tokens->text;

    return tokens->in_hint && text->end - text->at > 1 && text->at[0] == '*' && text->at[1] == '/';
}

static bool opens_hint(hr_tokens *tokens)
{
    hg_text *text = &tokens->text;
    const uint8_t *start;

    if (*text->at != '/' || text->end - text->at < 3 || text->at[1] != '*')
        return false;
    start = hint_start(text);
    if (start == NULL)
        return false;
    text->at = start;
    tokens->in_hint = true;
    return true;
}

bool hr_tokens_next(hr_tokens *tokens)
{
    hg_text *text = &tokens->text;

    while (text->at < text->end) {
        if (closes_hint(tokens)) {
            text->at += 2;
            tokens->in_hint = false;
            continue;
        }
        if (opens_hint(tokens))
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

bool hr_token_is(const hr_tokens *tokens, const char *word)
{
    const uint8_t *at = tokens->start;

    if (tokens->piece != HG_PIECE_WORD)
        return false;
    for (; at < tokens->end && *word != '\0'; at++, word++)
        if ((*at | 32) != *word && *at != (uint8_t) *word)
            return false;
    return at == tokens->end && *word == '\0';
}

bool hr_token_is_mark(const hr_tokens *tokens, char mark)
{
    return tokens->piece == HG_PIECE_OTHER && tokens->end - tokens->start == 1
           && *tokens->start == (uint8_t) mark;
}

static bool next_is(hr_tokens *tokens, const char *word)
{
    return hr_tokens_next(tokens) && hr_token_is(tokens, word);
}

static uint32_t offset(const hr_tokens *tokens, const uint8_t *at)
{
    return (uint32_t) (at - tokens->text.start);
}

/* ── Names ────────────────────────────────────────────────────────────────── */

typedef struct name_writer {
    char *out;
    uint32_t length;
    bool sound;
} name_writer;

/* What is longer than a name can be is cut by the server; some more is kept to see where. */
static void put_byte(name_writer *name, uint32_t byte)
{
    if (name->length < HR_READ_NAME_BYTES)
        name->out[name->length++] = (char) byte;
}

static void put_code(name_writer *name, uint32_t code)
{
    if (code < 0x80) {
        put_byte(name, code);
    } else if (code < 0x800) {
        put_byte(name, 0xc0 | code >> 6);
        put_byte(name, 0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        put_byte(name, 0xe0 | code >> 12);
        put_byte(name, 0x80 | (code >> 6 & 0x3f));
        put_byte(name, 0x80 | (code & 0x3f));
    } else {
        put_byte(name, 0xf0 | code >> 18);
        put_byte(name, 0x80 | (code >> 12 & 0x3f));
        put_byte(name, 0x80 | (code >> 6 & 0x3f));
        put_byte(name, 0x80 | (code & 0x3f));
    }
}

static int hex_of(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    return (byte | 32) >= 'a' && (byte | 32) <= 'f' ? (byte | 32) - 'a' + 10 : -1;
}

/* Behind an escape: XXXX, +XXXXXX, or the escape itself. Halves of pairs are left unread. */
static const uint8_t *put_escaped(name_writer *name, const uint8_t *at, const uint8_t *end, uint8_t escape)
{
    uint32_t code = 0;
    int digits = at < end && *at == '+' ? 6 : 4;

    if (at < end && *at == escape) {
        put_byte(name, escape);
        return at + 1;
    }
    at += digits == 6;
    name->sound &= end - at >= digits;
    for (int i = 0; i < digits && name->sound; i++) {
        name->sound = hex_of(at[i]) >= 0;
        code = code << 4 | ((uint32_t) hex_of(at[i]) & 15);
    }
    name->sound &= code != 0 && code < 0x110000 && (code < 0xd800 || code > 0xdfff);
    if (!name->sound)
        return end;
    put_code(name, code);
    return at + digits;
}

/* U&"…" UESCAPE '!' */
static uint8_t escape_of(const hr_tokens *tokens, bool *sound)
{
    hr_tokens behind = *tokens;

    if (!hr_tokens_next(&behind) || !hr_token_is(&behind, "uescape"))
        return '\\';
    *sound = hr_tokens_next(&behind) && behind.piece == HG_PIECE_LITERAL
             && behind.end - behind.start == 3 && *behind.start == '\'';
    return *sound ? behind.start[1] : 0;
}

static void read_quoted(const hr_tokens *tokens, name_writer *name)
{
    bool escaped = (*tokens->start | 32) == 'u';
    const uint8_t *at = tokens->start + (escaped ? 3 : 1);
    const uint8_t *end = tokens->end - 1;
    uint8_t quote = *end;
    uint8_t escape = escaped ? escape_of(tokens, &name->sound) : 0;

    while (at < end && name->sound) {
        uint8_t byte = *at++;

        if (escaped && byte == escape)
            at = put_escaped(name, at, end, escape);
        else
            put_byte(name, byte);
        at += byte == quote && !(escaped && byte == escape);
    }
}

/* Where the server cuts it: at a character's start. */
static uint32_t cut_name(const name_writer *name)
{
    uint32_t length = name->length;

    if (length < HR_READ_NAME_BYTES)
        return length;
    for (length--; length > 0 && ((uint8_t) name->out[length] & 0xc0) == 0x80;)
        length--;
    return length;
}

uint32_t hr_read_name(const hr_tokens *tokens, char *out)
{
    name_writer name = {out, 0, true};

    if (tokens->piece == HG_PIECE_QUOTED && tokens->end - tokens->start >= 2)
        read_quoted(tokens, &name);
    else
        for (const uint8_t *at = tokens->start; at < tokens->end; at++)
            put_byte(&name, *at >= 'A' && *at <= 'Z' ? *at | 32u : *at);
    return name.sound ? cut_name(&name) : 0;
}

/* ── First words ──────────────────────────────────────────────────────────── */

typedef enum word {
    UNKNOWN, WRITES, READS, FREE, ENDS, ROLLBACK, BEGIN, START, QUERY, EXPLAIN, ANALYZE, COPY, SET, RESET,
    DISCARD, PREPARE, EXECUTE, DEALLOCATE, DROP, ALTER, XA, DOES
} word;

typedef struct first {
    char text[12];
    uint8_t word[2]; /* by dialect */
} first;

/* By text. A word that is not here writes. */
static const first firsts[] = {
    {"abort", {ENDS, WRITES}},       {"alter", {ALTER, WRITES}},
    {"analyze", {WRITES, ANALYZE}},  {"begin", {BEGIN, BEGIN}},
    {"call", {DOES, WRITES}},        {"checkpoint", {FREE, WRITES}},
    {"checksum", {WRITES, READS}},
    {"close", {FREE, WRITES}},       {"commit", {ENDS, ENDS}},
    {"copy", {COPY, WRITES}},        {"deallocate", {DEALLOCATE, DEALLOCATE}},
    {"declare", {QUERY, WRITES}},    {"desc", {WRITES, EXPLAIN}},
    {"describe", {WRITES, EXPLAIN}}, {"discard", {DISCARD, WRITES}},
    {"do", {DOES, WRITES}},
    {"drop", {WRITES, DROP}},        {"end", {ENDS, WRITES}},
    {"execute", {EXECUTE, EXECUTE}}, {"explain", {EXPLAIN, EXPLAIN}},
    {"fetch", {READS, WRITES}},      {"get", {WRITES, FREE}},
    {"handler", {WRITES, READS}},    {"help", {WRITES, FREE}},
    {"kill", {WRITES, FREE}},        {"listen", {FREE, WRITES}},
    {"load", {FREE, WRITES}},        {"move", {READS, WRITES}},
    {"notify", {FREE, WRITES}},      {"prepare", {PREPARE, PREPARE}},
    {"release", {FREE, FREE}},       {"reset", {RESET, WRITES}},
    {"rollback", {ROLLBACK, ROLLBACK}}, {"savepoint", {FREE, FREE}},
    {"select", {QUERY, QUERY}},      {"set", {SET, SET}},
    {"show", {FREE, FREE}},          {"start", {START, START}},
    {"table", {QUERY, QUERY}},       {"unlisten", {FREE, WRITES}},
    {"unlock", {WRITES, FREE}},      {"use", {WRITES, FREE}},
    {"values", {QUERY, QUERY}},      {"with", {QUERY, QUERY}},
    {"xa", {WRITES, XA}},
};

static int compare(const hr_tokens *tokens, const char *text)
{
    const uint8_t *at = tokens->start;

    for (; at < tokens->end && *text != '\0'; at++, text++) {
        int byte = *at >= 'A' && *at <= 'Z' ? *at | 32 : *at;

        if (byte != *text)
            return byte - *text;
    }
    return at < tokens->end ? 1 : *text != '\0' ? -1 : 0;
}

static word first_word(const hr_tokens *tokens)
{
    size_t low = 0;
    size_t high = sizeof firsts / sizeof *firsts;

    if (tokens->piece != HG_PIECE_WORD)
        return UNKNOWN;
    if (hr_token_is(tokens, "select")) /* most are */
        return QUERY;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = compare(tokens, firsts[middle].text);

        if (order == 0)
            return (word) firsts[middle].word[tokens->text.dialect == HG_MYSQL];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return UNKNOWN;
}

/* ── Queries ──────────────────────────────────────────────────────────────── */

static bool is_query_word(const hr_tokens *tokens)
{
    return hr_token_is(tokens, "select") || hr_token_is(tokens, "with")
           || hr_token_is(tokens, "values") || hr_token_is(tokens, "table");
}

static bool is_changing_word(const hr_tokens *tokens)
{
    return hr_token_is(tokens, "insert") || hr_token_is(tokens, "update")
           || hr_token_is(tokens, "delete") || hr_token_is(tokens, "merge")
           || hr_token_is(tokens, "replace");
}

/* FOR UPDATE, FOR NO KEY UPDATE, FOR SHARE, FOR KEY SHARE; not substring(a FOR 3). */
static bool is_lock(hr_tokens *tokens)
{
    hr_tokens behind = *tokens;

    if (!hr_token_is(tokens, "for") || !hr_tokens_next(&behind))
        return false;
    return hr_token_is(&behind, "update") || hr_token_is(&behind, "share")
           || hr_token_is(&behind, "no") || hr_token_is(&behind, "key");
}

bool hr_read_deep(const char *text, size_t length, int dialect)
{
    hr_tokens tokens;
    bool behind_bracket = false;

    hr_tokens_begin(&tokens, text, length, dialect);
    while (hr_tokens_next(&tokens)) {
        /* Behind a closing bracket the main part of a WITH begins, behind an opening one a part. */
        if (tokens.piece == HG_PIECE_WORD
            && (hr_token_is(&tokens, "into") || is_lock(&tokens)
                || (behind_bracket && is_changing_word(&tokens))
                || (dialect == HG_MYSQL && hr_token_is(&tokens, "lock"))))
            return true;
        behind_bracket = hr_token_is_mark(&tokens, '(') || hr_token_is_mark(&tokens, ')');
    }
    return false;
}

/* ── One statement ────────────────────────────────────────────────────────── */

static void read_from(hr_tokens *tokens, hr_reading *reading, int nesting);

static void say(hr_reading *reading, int kind)
{
    reading->kind = (uint8_t) kind;
}

static void say_query(hr_reading *reading)
{
    say(reading, HR_KIND_READ);
    reading->may_write = true;
}

/* (((SELECT … */
static void read_bracketed(hr_tokens *tokens, hr_reading *reading)
{
    while (hr_token_is_mark(tokens, '('))
        if (!hr_tokens_next(tokens))
            break;
    if (is_query_word(tokens))
        say_query(reading);
    else
        say(reading, HR_KIND_WRITE);
}

static bool is_off(const hr_tokens *tokens)
{
    return hr_token_is(tokens, "off") || hr_token_is(tokens, "false")
           || (tokens->piece == HG_PIECE_LITERAL && tokens->end - tokens->start == 1
               && *tokens->start == '0');
}

/* Postgres' EXPLAIN (ANALYZE, BUFFERS off) …, from its bracket to behind it: whether it runs. Rather
 * judged than missed: a name in quotes may be ANALYZE however it is written, so may 'off' be on, and of
 * two the last one counts. */
static bool explain_options(hr_tokens *tokens)
{
    bool analyzes = false;
    int depth = 1;

    while (depth > 0 && hr_tokens_next(tokens)) {
        if (hr_token_is(tokens, "analyze") || hr_token_is(tokens, "analyse")) {
            analyzes |= hr_tokens_next(tokens) && !is_off(tokens);
            analyzes |= tokens->piece == HG_PIECE_LITERAL && tokens->end - tokens->start > 2;
        }
        analyzes |= tokens->piece == HG_PIECE_QUOTED;
        depth += hr_token_is_mark(tokens, '(');
        depth -= hr_token_is_mark(tokens, ')');
    }
    hr_tokens_next(tokens);
    return analyzes;
}

static bool is_explain_word(const hr_tokens *tokens)
{
    return hr_token_is(tokens, "analyze") || hr_token_is(tokens, "analyse")
           || hr_token_is(tokens, "verbose") || hr_token_is(tokens, "extended")
           || hr_token_is(tokens, "partitions") || hr_token_is(tokens, "format");
}

/* From its first word on to the statement: whether that is run. */
static bool explain_words(hr_tokens *tokens)
{
    bool analyzes = false;

    while (is_explain_word(tokens)) {
        bool format = hr_token_is(tokens, "format");

        analyzes |= hr_token_is(tokens, "analyze") || hr_token_is(tokens, "analyse");
        hr_tokens_next(tokens);
        if (format && hr_token_is_mark(tokens, '=')) {
            hr_tokens_next(tokens);
            hr_tokens_next(tokens);
        }
    }
    return analyzes;
}

static void read_explain(hr_tokens *tokens, hr_reading *reading, int nesting)
{
    bool analyzes;

    hr_tokens_next(tokens);
    analyzes = hr_token_is_mark(tokens, '(') ? explain_options(tokens) : explain_words(tokens);
    if (analyzes)
        read_from(tokens, reading, nesting + 1);
    else
        say(reading, HR_KIND_FREE);
}

/* MariaDB's ANALYZE [FORMAT=JSON] SELECT …; or ANALYZE TABLE. */
static void read_analyze(hr_tokens *tokens, hr_reading *reading, int nesting)
{
    hr_tokens_next(tokens);
    explain_words(tokens);
    if (hr_token_is(tokens, "table") || hr_token_is(tokens, "local")
        || hr_token_is(tokens, "no_write_to_binlog"))
        say(reading, HR_KIND_WRITE);
    else
        read_from(tokens, reading, nesting + 1);
}

/* COPY t TO reads, COPY t FROM writes; COPY (query) TO is its query. */
static void read_copy(hr_tokens *tokens, hr_reading *reading)
{
    int depth = 0;

    hr_tokens_next(tokens);
    if (hr_token_is_mark(tokens, '(')) {
        read_bracketed(tokens, reading);
        return;
    }
    say(reading, HR_KIND_WRITE);
    do {
        depth += hr_token_is_mark(tokens, '(');
        depth -= hr_token_is_mark(tokens, ')');
        if (depth == 0 && hr_token_is(tokens, "from"))
            return;
        if (depth == 0 && hr_token_is(tokens, "to")) {
            say(reading, HR_KIND_READ);
            return;
        }
    } while (hr_tokens_next(tokens));
}

/* Functions that drivers call when they set a session up; others might be somebody's own. */
static bool is_harmless(const hr_tokens *tokens)
{
    static const char *const names[] = {"concat", "replace", "if",    "ifnull", "coalesce", "cast",
                                        "convert", "lower",  "upper", "now"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (hr_token_is(tokens, names[i]))
            return true;
    return false;
}

/* In MySQL SET may run a query or a function, and MariaDB's SET STATEMENT … FOR any statement. */
static void read_mysql_set(hr_tokens *tokens, hr_reading *reading, int nesting)
{
    bool runs = false;
    bool harmless = false;
    bool statement;

    hr_tokens_next(tokens);
    statement = hr_token_is(tokens, "statement");
    do {
        if (statement && hr_token_is(tokens, "for")) {
            hr_tokens_next(tokens);
            reading->verb = HR_VERB_NONE;
            read_from(tokens, reading, nesting + 1);
            return;
        }
        runs |= hr_token_is(tokens, "select") || (hr_token_is_mark(tokens, '(') && !harmless);
        harmless = is_harmless(tokens);
    } while (hr_tokens_next(tokens));
    if (runs)
        say(reading, HR_KIND_WRITE);
}

static void read_set(hr_tokens *tokens, hr_reading *reading, int nesting)
{
    say(reading, HR_KIND_FREE);
    reading->verb = HR_VERB_SET;
    reading->at = offset(tokens, tokens->end);
    if (tokens->text.dialect == HG_MYSQL)
        read_mysql_set(tokens, reading, nesting);
}

static void read_prepare(hr_tokens *tokens, hr_reading *reading)
{
    bool mysql = tokens->text.dialect == HG_MYSQL;
    int depth = 0;

    say(reading, HR_KIND_FREE);
    if (!hr_tokens_next(tokens))
        return;
    if (!mysql && hr_token_is(tokens, "transaction")) {
        reading->ends = true;
        return;
    }
    reading->verb = HR_VERB_PREPARE;
    reading->at = offset(tokens, tokens->start);
    while (hr_tokens_next(tokens)) {
        depth += hr_token_is_mark(tokens, '(');
        depth -= hr_token_is_mark(tokens, ')');
        if (depth == 0 && hr_token_is(tokens, mysql ? "from" : "as")) {
            reading->inner = offset(tokens, tokens->end);
            return;
        }
    }
}

static void read_execute(hr_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_WRITE);
    if (!hr_tokens_next(tokens) || hr_token_is(tokens, "immediate"))
        return;
    reading->verb = HR_VERB_EXECUTE;
    reading->at = offset(tokens, tokens->start);
}

static void read_deallocate(hr_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_FREE);
    hr_tokens_next(tokens);
    if (hr_token_is(tokens, "prepare"))
        hr_tokens_next(tokens);
    reading->verb = HR_VERB_DEALLOCATE;
    reading->at = offset(tokens, tokens->start);
}

/* MySQL: BEGIN [WORK]. What goes on otherwise is a block, and runs. */
static void read_begin(hr_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_BEGIN);
    if (tokens->text.dialect == HG_POSTGRES || !hr_tokens_next(tokens))
        return;
    if (hr_token_is(tokens, "work") && !hr_tokens_next(tokens))
        return;
    if (!hr_token_is_mark(tokens, ';'))
        say(reading, HR_KIND_WRITE);
}

/* COMMIT [WORK | TRANSACTION] [AND [NO] CHAIN]; ROLLBACK … TO a savepoint ends nothing. */
static void read_ending(hr_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_FREE);
    while (!reading->back && hr_tokens_next(tokens) && tokens->piece == HG_PIECE_WORD) {
        reading->back = hr_token_is(tokens, "to");
        if (hr_token_is(tokens, "and"))
            reading->chains = next_is(tokens, "chain");
    }
    reading->ends = !reading->back;
}

static void read_xa(hr_tokens *tokens, hr_reading *reading)
{
    hr_tokens_next(tokens);
    say(reading, hr_token_is(tokens, "start") || hr_token_is(tokens, "begin") ? HR_KIND_BEGIN
                                                                             : HR_KIND_FREE);
    reading->ends = hr_token_is(tokens, "commit") || hr_token_is(tokens, "rollback");
}

static void read_discard(hr_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_FREE);
    if (next_is(tokens, "all"))
        reading->verb = HR_VERB_DISCARD;
}

static void read_from(hr_tokens *tokens, hr_reading *reading, int nesting)
{
    say(reading, HR_KIND_WRITE);
    if (nesting > MAX_NESTING)
        return;
    if (hr_token_is_mark(tokens, '(')) {
        read_bracketed(tokens, reading);
        return;
    }
    switch (first_word(tokens)) {
    case UNKNOWN:
    case WRITES:
        return;
    case READS:
        say(reading, HR_KIND_READ);
        return;
    case FREE:
        say(reading, HR_KIND_FREE);
        return;
    case ENDS:
    case ROLLBACK:
        read_ending(tokens, reading);
        return;
    case DOES:
        reading->does = true;
        return;
    case BEGIN:
        read_begin(tokens, reading);
        return;
    case START:
        say(reading, next_is(tokens, "transaction") ? HR_KIND_BEGIN : HR_KIND_WRITE);
        return;
    case QUERY:
        say_query(reading);
        return;
    case EXPLAIN:
        read_explain(tokens, reading, nesting);
        return;
    case ANALYZE:
        read_analyze(tokens, reading, nesting);
        return;
    case COPY:
        read_copy(tokens, reading);
        return;
    case SET:
        read_set(tokens, reading, nesting);
        return;
    case RESET:
        say(reading, HR_KIND_FREE);
        reading->verb = HR_VERB_RESET;
        reading->at = offset(tokens, tokens->end);
        return;
    case DISCARD:
        read_discard(tokens, reading);
        return;
    case PREPARE:
        read_prepare(tokens, reading);
        return;
    case EXECUTE:
        read_execute(tokens, reading);
        return;
    case DEALLOCATE:
        read_deallocate(tokens, reading);
        return;
    case DROP:
        if (next_is(tokens, "prepare"))
            read_deallocate(tokens, reading);
        return;
    case ALTER:
        say(reading, next_is(tokens, "system") ? HR_KIND_FREE : HR_KIND_WRITE);
        return;
    case XA:
        read_xa(tokens, reading);
        return;
    }
}

void hr_read(const char *text, size_t length, int dialect, hr_reading *reading)
{
    hr_tokens tokens;

    memset(reading, 0, sizeof *reading);
    hr_tokens_begin(&tokens, text, length, dialect);
    do {
        if (!hr_tokens_next(&tokens)) {
            say(reading, HR_KIND_EMPTY);
            return;
        }
    } while (hr_token_is_mark(&tokens, ';'));
    read_from(&tokens, reading, 0);
}

/* ── Several ──────────────────────────────────────────────────────────────── */

typedef struct splitter {
    const char *text;
    int dialect;
    hr_slice *slices;
    uint32_t count;
} splitter;

static void add_slice(splitter *split, uint32_t start, uint32_t end)
{
    hr_slice *slice = &split->slices[split->count];

    slice->start = start;
    slice->length = end - start;
    hr_read(split->text + start, end - start, split->dialect, &slice->reading);
    /* Whether a backslash hides a quote is the session's setting, which we do not know: what seems to
     * be a value may be another statement. What is free has no need of any. Its first words are what
     * they are all the same. */
    if (slice->reading.kind >= HR_KIND_BEGIN && slice->reading.kind != HR_KIND_EMPTY
        && memchr(split->text + start, '\\', end - start) != NULL)
        slice->reading.kind = HR_KIND_WRITE;
    split->count += slice->reading.kind != HR_KIND_EMPTY;
}

/* Where it ends depends on whether a backslash hides a quote. MySQL's clients write so all the time, and
 * its default is known; in Postgres it is a session's own choice against the default. */
static bool is_unsure(const splitter *split, uint32_t start, const hr_tokens *tokens)
{
    hr_tokens behind = *tokens;

    return split->dialect == HG_POSTGRES
           && memchr(split->text + start, '\\', offset(tokens, tokens->start) - start) != NULL
           && hr_tokens_next(&behind);
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
    }
}

uint32_t hr_split(const char *text, size_t length, int dialect, hr_slice *slices)
{
    splitter split = {text, dialect, slices, 0};
    uint32_t start = 0;
    int depth = 0;
    bool unread = false;
    hr_tokens tokens;

    if (length == 0)
        return 0;
    if (memchr(text, ';', length) == NULL) {
        add_slice(&split, 0, (uint32_t) length);
        return split.count;
    }
    hr_tokens_begin(&tokens, text, length, dialect);
    while (split.count < HR_MAX_SLICES - 1 && !unread && hr_tokens_next(&tokens)) {
        depth += hr_token_is_mark(&tokens, '(');
        depth -= depth > 0 && hr_token_is_mark(&tokens, ')');
        if (depth > 0 || !hr_token_is_mark(&tokens, ';'))
            continue;
        unread = is_unsure(&split, start, &tokens);
        if (unread)
            break;
        add_slice(&split, start, offset(&tokens, tokens.start));
        start = offset(&tokens, tokens.end);
    }
    if (start < length)
        add_rest(&split, start, (uint32_t) length, unread);
    return split.count;
}

/* By the first words alone: machines ask for every statement whether it begins a transaction or is
 * free, and not whether it writes. */
int hr_kind_of(const char *text, size_t length, uint32_t protocol)
{
    int dialect = protocol == HR_PROTOCOL_MYSQL ? HG_MYSQL : HG_POSTGRES;
    hr_slice slices[HR_MAX_SLICES];
    uint32_t count = hr_split(text, length, dialect, slices);
    int kind = HR_KIND_FREE;

    if (count == 0)
        return HR_KIND_EMPTY;
    if (count == 1)
        return slices[0].reading.kind;
    for (uint32_t i = 0; i < count; i++) {
        if (slices[i].reading.kind <= HR_KIND_WRITE)
            return HR_KIND_MANY;
        if (slices[i].reading.kind == HR_KIND_BEGIN)
            kind = HR_KIND_BEGIN;
    }
    return kind;
}
