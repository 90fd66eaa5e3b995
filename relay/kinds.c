/*
 * kinds.c: what one statement's words say. The same kinds are free as in the extension
 * (pg_headgate/src/statement.c): one policy, one meaning (R152). No grammar: whatever is not known to
 * be free (kinds_free.c) is decided, and whatever is not known to read only is a write.
 *
 * A client must not get past the gate by the way it writes: what SET … FOR and EXPLAIN ANALYZE run,
 * blocks that look like BEGIN, and calls in a SET are all seen. EXPLAIN without ANALYZE reads: planners
 * run functions and look at tables.
 */
#include "kinds.h"

#include "inside.h"

#define MAX_NESTING 4 /* EXPLAIN ANALYZE SET STATEMENT … */

static bool next_is(hg_tokens *tokens, const char *word)
{
    return hg_tokens_next(tokens) && hg_token_is(tokens, word);
}

static uint32_t offset(const hg_tokens *tokens, const uint8_t *at)
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
static const uint8_t *put_escaped(name_writer *name, const uint8_t *at, const uint8_t *end,
                                  uint8_t escape)
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
static uint8_t escape_of(const hg_tokens *tokens, bool *sound)
{
    hg_tokens behind = *tokens;

    if (!hg_tokens_next(&behind) || !hg_token_is(&behind, "uescape"))
        return '\\';
    *sound = hg_tokens_next(&behind) && behind.piece == HG_PIECE_LITERAL
             && behind.end - behind.start == 3 && *behind.start == '\'';
    return *sound ? behind.start[1] : 0;
}

static void read_quoted(const hg_tokens *tokens, name_writer *name)
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

uint32_t hr_read_name(const hg_tokens *tokens, char *out)
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

/* clang-format off: tables, read in columns */
typedef enum word {
    UNKNOWN,
    WRITES,
    CHANGES,
    READS,
    FREE,
    SHOW,
    ENDS,
    BEGIN,
    QUERY,
    EXPLAIN,
    ANALYZE,
    COPY,
    SET,
    RESET,
    DISCARD,
    PREPARE,
    EXECUTE,
    DEALLOCATE,
    DROP,
    XA,
    DOES
} word;

typedef struct first {
    char text[12];
    uint8_t word[2]; /* by dialect */
} first;

/* By text. A word that is not here writes. */
static const first firsts[] = {
    {"abort", {ENDS, WRITES}},
    {"analyze", {WRITES, ANALYZE}},
    {"begin", {BEGIN, BEGIN}},
    {"call", {DOES, WRITES}},
    {"checksum", {WRITES, READS}},
    {"close", {FREE, WRITES}},
    {"commit", {ENDS, ENDS}},
    {"copy", {COPY, WRITES}},
    {"deallocate", {DEALLOCATE, DEALLOCATE}},
    {"declare", {QUERY, WRITES}},
    {"delete", {WRITES, CHANGES}},
    {"desc", {WRITES, EXPLAIN}},
    {"describe", {WRITES, EXPLAIN}},
    {"discard", {DISCARD, WRITES}},
    {"do", {DOES, CHANGES}},
    {"drop", {WRITES, DROP}},
    {"end", {ENDS, WRITES}},
    {"execute", {EXECUTE, EXECUTE}},
    {"explain", {EXPLAIN, EXPLAIN}},
    {"fetch", {READS, WRITES}},
    {"handler", {WRITES, READS}},
    {"help", {WRITES, READS}},
    {"insert", {WRITES, CHANGES}},
    {"kill", {WRITES, FREE}},
    {"listen", {FREE, WRITES}},
    {"move", {READS, WRITES}},
    {"prepare", {PREPARE, PREPARE}},
    {"release", {FREE, FREE}},
    {"replace", {WRITES, CHANGES}},
    {"reset", {RESET, WRITES}},
    {"rollback", {ENDS, ENDS}},
    {"savepoint", {FREE, FREE}},
    {"select", {QUERY, QUERY}},
    {"set", {SET, SET}},
    {"show", {SHOW, SHOW}},
    {"start", {BEGIN, BEGIN}},
    {"table", {QUERY, QUERY}},
    {"unlisten", {FREE, WRITES}},
    {"unlock", {WRITES, FREE}},
    {"update", {WRITES, CHANGES}},
    {"use", {WRITES, FREE}},
    {"values", {QUERY, QUERY}},
    {"with", {QUERY, QUERY}},
    {"xa", {WRITES, XA}},
};
/* clang-format on */

static int compare(const hg_tokens *tokens, const char *text)
{
    const uint8_t *at = tokens->start;

    for (; at < tokens->end && *text != '\0'; at++, text++) {
        int byte = *at >= 'A' && *at <= 'Z' ? *at | 32 : *at;

        if (byte != *text)
            return byte - *text;
    }
    return at < tokens->end ? 1 : *text != '\0' ? -1 : 0;
}

static word first_word(const hg_tokens *tokens)
{
    size_t low = 0;
    size_t high = sizeof firsts / sizeof *firsts;

    if (tokens->piece != HG_PIECE_WORD)
        return UNKNOWN;
    if (hg_token_is(tokens, "select")) /* most are */
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

static bool is_query_word(const hg_tokens *tokens)
{
    return hg_token_is(tokens, "select") || hg_token_is(tokens, "with")
           || hg_token_is(tokens, "values") || hg_token_is(tokens, "table");
}

static bool is_changing_word(const hg_tokens *tokens)
{
    return hg_token_is(tokens, "insert") || hg_token_is(tokens, "update")
           || hg_token_is(tokens, "delete") || hg_token_is(tokens, "merge")
           || hg_token_is(tokens, "replace");
}

/* FOR UPDATE, FOR NO KEY UPDATE, FOR SHARE, FOR KEY SHARE; not substring(a FOR 3). */
static bool is_lock(const hg_tokens *tokens)
{
    hg_tokens behind = *tokens;

    if (!hg_token_is(tokens, "for") || !hg_tokens_next(&behind))
        return false;
    return hg_token_is(&behind, "update") || hg_token_is(&behind, "share")
           || hg_token_is(&behind, "no") || hg_token_is(&behind, "key");
}

/* REPLACE and INSERT are functions as well. */
static bool is_called(const hg_tokens *tokens)
{
    hg_tokens behind = *tokens;

    return hg_tokens_next(&behind) && hg_token_is_mark(&behind, '(');
}

/* The next run of ASCII in a word: to some of MySQL's character sets other bytes are spaces. */
static bool next_run(const hg_tokens *tokens, hg_tokens *run)
{
    const uint8_t *at = run->end;

    while (at < tokens->end && *at >= 0x80)
        at++;
    run->start = at;
    while (at < tokens->end && *at < 0x80)
        at++;
    run->end = at;
    return run->start < run->end;
}

/* What a query's words say so far. */
typedef struct depth {
    bool with;   /* there is a WITH: it may hold a write, or lead to one */
    bool writes;
} depth;

static void look_deep(const hg_tokens *tokens, depth *found)
{
    bool mysql = tokens->text.dialect == HG_MYSQL;

    found->with |= hg_token_is(tokens, "with");
    found->writes |= hg_token_is(tokens, "into") || is_lock(tokens)
                     || (mysql && hg_token_is(tokens, "lock"))
                     || (found->with && is_changing_word(tokens) && !is_called(tokens));
}

/* A word that is several to some character set. */
static void look_at_runs(const hg_tokens *tokens, depth *found)
{
    hg_tokens run = *tokens;

    run.end = run.start;
    while (next_run(tokens, &run) && run.end - run.start < tokens->end - tokens->start) {
        found->with |= hg_token_is(&run, "with");
        found->writes |= hg_token_is(&run, "into") || hg_token_is(&run, "lock")
                         || hg_token_is(&run, "share") || is_changing_word(&run);
    }
}

static bool read_deep(hg_tokens *tokens)
{
    depth found = {false, false};

    while (!found.writes && hg_tokens_next(tokens))
        if (tokens->piece == HG_PIECE_WORD) {
            look_deep(tokens, &found);
            if (tokens->text.dialect == HG_MYSQL)
                look_at_runs(tokens, &found);
        }
    return found.writes;
}

bool hr_read_deep(const char *text, size_t length, int dialect)
{
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text, length, dialect);
    if (read_deep(&tokens))
        return true;
    hg_tokens_begin(&tokens, text, length, dialect);
    tokens.skips_hints = true;
    return dialect == HG_MYSQL && read_deep(&tokens);
}

/* ── One statement ────────────────────────────────────────────────────────── */

static void read_from(hg_tokens *tokens, hr_reading *reading, int nesting);

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
static void read_bracketed(hg_tokens *tokens, hr_reading *reading)
{
    while (hg_token_is_mark(tokens, '('))
        if (!hg_tokens_next(tokens))
            break;
    if (is_query_word(tokens))
        say_query(reading);
    else
        say(reading, HR_KIND_WRITE);
}

static bool is_off(const hg_tokens *tokens)
{
    return hg_token_is(tokens, "off") || hg_token_is(tokens, "false")
           || (tokens->piece == HG_PIECE_LITERAL && tokens->end - tokens->start == 1
               && *tokens->start == '0');
}

/* Postgres' EXPLAIN (ANALYZE, BUFFERS off) …, from its bracket to behind it: whether it runs. Rather
 * decided than missed: a name in quotes may be ANALYZE however it is written, so may 'off' be on, and of
 * two the last one counts. */
static bool explain_options(hg_tokens *tokens)
{
    bool analyzes = false;
    int depth = 1;

    while (depth > 0 && hg_tokens_next(tokens)) {
        if (hg_token_is(tokens, "analyze") || hg_token_is(tokens, "analyse")) {
            analyzes |= hg_tokens_next(tokens) && !is_off(tokens);
            analyzes |= tokens->piece == HG_PIECE_LITERAL && tokens->end - tokens->start > 2;
        }
        analyzes |= tokens->piece == HG_PIECE_QUOTED;
        depth += hg_token_is_mark(tokens, '(');
        depth -= hg_token_is_mark(tokens, ')');
    }
    hg_tokens_next(tokens);
    return analyzes;
}

static bool is_explain_word(const hg_tokens *tokens)
{
    return hg_token_is(tokens, "analyze") || hg_token_is(tokens, "analyse")
           || hg_token_is(tokens, "verbose") || hg_token_is(tokens, "extended")
           || hg_token_is(tokens, "partitions") || hg_token_is(tokens, "format");
}

/* From its first word on to the statement: whether that is run. */
static bool explain_words(hg_tokens *tokens)
{
    bool analyzes = false;

    while (is_explain_word(tokens)) {
        bool format = hg_token_is(tokens, "format");

        analyzes |= hg_token_is(tokens, "analyze") || hg_token_is(tokens, "analyse");
        hg_tokens_next(tokens);
        if (format && hg_token_is_mark(tokens, '=')) {
            hg_tokens_next(tokens);
            hg_tokens_next(tokens);
        }
    }
    return analyzes;
}

/* What is planned only reads; but Postgres makes a schema for a temporary table that it would make. */
static void read_planned(const hg_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_READ);
    if (tokens->text.dialect != HG_POSTGRES)
        return;
    if (hg_token_is(tokens, "create"))
        say(reading, HR_KIND_WRITE);
    else
        reading->may_write = hg_token_is_mark(tokens, '(') || is_query_word(tokens);
}

/* MySQL's EXPLAIN t shows columns. */
static void read_explain(hg_tokens *tokens, hr_reading *reading, int nesting)
{
    bool analyzes;

    if (hr_is_free(tokens)) {
        say(reading, HR_KIND_FREE);
        return;
    }
    hg_tokens_next(tokens);
    analyzes = hg_token_is_mark(tokens, '(') ? explain_options(tokens) : explain_words(tokens);
    if (analyzes)
        read_from(tokens, reading, nesting + 1);
    else
        read_planned(tokens, reading);
}

/* MariaDB's ANALYZE [FORMAT=JSON] SELECT …; or ANALYZE TABLE. */
static void read_analyze(hg_tokens *tokens, hr_reading *reading, int nesting)
{
    hg_tokens_next(tokens);
    explain_words(tokens);
    if (hg_token_is(tokens, "table") || hg_token_is(tokens, "local")
        || hg_token_is(tokens, "no_write_to_binlog"))
        reading->commits = true;
    else
        read_from(tokens, reading, nesting + 1);
}

/* From what it copies on: TO STDOUT, and neither FROM, nor to a file or a program of the server's. */
static bool copies_out(hg_tokens tokens)
{
    int depth = 0;

    do {
        depth += hg_token_is_mark(&tokens, '(');
        depth -= hg_token_is_mark(&tokens, ')');
        if (depth == 0 && hg_token_is(&tokens, "from"))
            return false;
        if (depth == 0 && hg_token_is(&tokens, "to"))
            return next_is(&tokens, "stdout");
    } while (hg_tokens_next(&tokens));
    return false;
}

/* COPY t TO STDOUT reads; COPY (query) TO STDOUT is its query. */
static void read_copy(hg_tokens *tokens, hr_reading *reading)
{
    hg_tokens_next(tokens);
    if (!copies_out(*tokens))
        say(reading, HR_KIND_WRITE);
    else if (hg_token_is_mark(tokens, '('))
        read_bracketed(tokens, reading);
    else
        say(reading, HR_KIND_READ);
}

/* MariaDB's SET STATEMENT … FOR a statement, from STATEMENT on to it. The values are what SET may set. */
static bool skip_set_statement(hg_tokens *tokens)
{
    while (hg_tokens_next(tokens) && !hg_token_is(tokens, "for"))
        if (hg_token_is_mark(tokens, '(') || hg_token_is(tokens, "select"))
            return false;
    return hg_tokens_next(tokens);
}

/* MySQL: SET autocommit commits. */
static bool names_autocommit(hg_tokens tokens)
{
    while (hg_tokens_next(&tokens))
        if (hg_token_is(&tokens, "autocommit") || tokens.piece == HG_PIECE_QUOTED)
            return true;
    return false;
}

static void read_set(hg_tokens *tokens, hr_reading *reading, int nesting)
{
    bool mysql = tokens->text.dialect == HG_MYSQL;

    if (hr_is_free(tokens)) {
        say(reading, HR_KIND_FREE);
        reading->verb = HR_VERB_SET;
        reading->at = offset(tokens, tokens->end);
        reading->ends = mysql && names_autocommit(*tokens);
        return;
    }
    reading->commits = mysql;
    if (mysql && next_is(tokens, "statement") && skip_set_statement(tokens))
        read_from(tokens, reading, nesting + 1);
}

static void read_prepare(hg_tokens *tokens, hr_reading *reading)
{
    bool mysql = tokens->text.dialect == HG_MYSQL;
    bool is_free = hr_is_free(tokens);
    int depth = 0;

    if (is_free)
        say(reading, HR_KIND_FREE);
    if (!hg_tokens_next(tokens))
        return;
    if (!mysql && hg_token_is(tokens, "transaction")) {
        reading->ends = true;
        return;
    }
    reading->verb = HR_VERB_PREPARE;
    reading->at = offset(tokens, tokens->start);
    while (is_free && hg_tokens_next(tokens)) {
        depth += hg_token_is_mark(tokens, '(');
        depth -= hg_token_is_mark(tokens, ')');
        if (depth == 0 && hg_token_is(tokens, mysql ? "from" : "as")) {
            reading->inner = offset(tokens, tokens->end);
            return;
        }
    }
}

static void read_execute(hg_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_WRITE);
    if (!hg_tokens_next(tokens) || hg_token_is(tokens, "immediate"))
        return;
    reading->verb = HR_VERB_EXECUTE;
    reading->at = offset(tokens, tokens->start);
}

static void read_deallocate(hg_tokens *tokens, hr_reading *reading)
{
    if (hr_is_free(tokens))
        say(reading, HR_KIND_FREE);
    if (hg_tokens_next(tokens) && hg_token_is(tokens, "prepare"))
        hg_tokens_next(tokens);
    reading->verb = HR_VERB_DEALLOCATE;
    reading->at = offset(tokens, tokens->start);
}

/* MySQL's DROP PREPARE; else it drops something, and is a write. */
static void read_drop(hg_tokens *tokens, hr_reading *reading)
{
    hg_tokens behind = *tokens;

    reading->commits = true;
    if (!hg_tokens_next(&behind) || !hg_token_is(&behind, "prepare"))
        return;
    reading->commits = false;
    read_deallocate(tokens, reading);
}

/* COMMIT [WORK | TRANSACTION] [AND [NO] CHAIN]; ROLLBACK … TO a savepoint ends nothing. */
static void read_ending(hg_tokens *tokens, hr_reading *reading)
{
    say(reading, HR_KIND_FREE);
    while (!reading->back && hg_tokens_next(tokens) && tokens->piece == HG_PIECE_WORD) {
        reading->back = hg_token_is(tokens, "to");
        if (hg_token_is(tokens, "and"))
            reading->chains = next_is(tokens, "chain");
    }
    reading->ends = !reading->back;
}

static void read_xa(hg_tokens *tokens, hr_reading *reading)
{
    bool is_free = hr_is_free(tokens);

    hg_tokens_next(tokens);
    if (is_free)
        say(reading, hg_token_is(tokens, "start") || hg_token_is(tokens, "begin") ? HR_KIND_BEGIN
                                                                                  : HR_KIND_FREE);
    reading->ends = hg_token_is(tokens, "commit") || hg_token_is(tokens, "rollback")
                    || hg_token_is(tokens, "prepare");
}

static void read_discard(hg_tokens *tokens, hr_reading *reading)
{
    if (hr_is_free(tokens))
        say(reading, HR_KIND_FREE);
    if (next_is(tokens, "all"))
        reading->verb = HR_VERB_DISCARD;
}

/* FREE if it is as the table says, else what it is instead. */
static void say_free(const hg_tokens *tokens, hr_reading *reading, int kind, int instead)
{
    say(reading, hr_is_free(tokens) ? kind : instead);
}

static void read_from(hg_tokens *tokens, hr_reading *reading, int nesting)
{
    bool mysql = tokens->text.dialect == HG_MYSQL;

    say(reading, HR_KIND_WRITE);
    reading->commits = false;
    if (nesting > MAX_NESTING)
        return;
    if (hg_token_is_mark(tokens, '(')) {
        read_bracketed(tokens, reading);
        return;
    }
    switch (first_word(tokens)) {
    case UNKNOWN:
    case WRITES:
        reading->commits = mysql;
        return;
    case CHANGES:
        return;
    case READS:
        say(reading, HR_KIND_READ);
        return;
    case FREE:
        say_free(tokens, reading, HR_KIND_FREE, HR_KIND_WRITE);
        return;
    case SHOW:
        say_free(tokens, reading, HR_KIND_FREE, HR_KIND_READ);
        return;
    case ENDS:
        read_ending(tokens, reading);
        return;
    case DOES:
        reading->does = true;
        return;
    case BEGIN:
        reading->commits = mysql;
        say_free(tokens, reading, HR_KIND_BEGIN, HR_KIND_WRITE);
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
        say_free(tokens, reading, HR_KIND_FREE, HR_KIND_WRITE);
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
        reading->commits = mysql;
        read_execute(tokens, reading);
        return;
    case DEALLOCATE:
        read_deallocate(tokens, reading);
        return;
    case DROP:
        read_drop(tokens, reading);
        return;
    case XA:
        read_xa(tokens, reading);
        return;
    }
}

void hr_read_tokens(hg_tokens *tokens, hr_reading *reading)
{
    memset(reading, 0, sizeof *reading);
    do {
        if (!hg_tokens_next(tokens)) {
            say(reading, HR_KIND_EMPTY);
            return;
        }
    } while (hg_token_is_mark(tokens, ';'));
    read_from(tokens, reading, 0);
}

void hr_read(const char *text, size_t length, int dialect, hr_reading *reading)
{
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text, length, dialect);
    hr_read_tokens(&tokens, reading);
}
