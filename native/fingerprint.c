/*
 * fingerprint.c: a statement's shape as a number, the same on every server.
 *
 *   SELECT * FROM "T" WHERE id IN (1, 2, 3); -- why   ──►   select * from "T" where id in ( ? )
 *
 * Hashed as it goes by, a space behind each token. Three filters in a row keep what may yet
 * be dropped: semicolons at the end, further values of a list, further rows of values.
 *
 * EXPLAIN ANALYZE has the shape of the statement that it runs.
 *
 * The twin of src/headgate/budgets/sql_text.py.
 */
#include "layout.h"
#include "sqltext.h"

typedef enum kind { VALUE, COMMA, OPEN, CLOSE, SEMICOLON, ANY } kind;

typedef struct token {
    kind kind;
    bool word; /* its case does not count */
    const uint8_t *at, *end; /* of ANY alone */
} token;

static const token comma = {.kind = COMMA};
static const token semicolon = {.kind = SEMICOLON};

/* What the rows' filter has passed on, or, from HELD on, keeps back behind a whole row. */
typedef enum row_state {
    ROW_NONE,
    ROW_OPEN,        /* ( */
    ROW_VALUE,       /* ( ? */
    ROW_WHOLE,       /* ( ? ) */
    HELD_COMMA,      /* ( ? ) and held: , */
    HELD_OPEN,       /* , ( */
    HELD_VALUE       /* , ( ? */
} row_state;

typedef struct shaper {
    uint64_t hash;
    row_state row;
    bool value;        /* the list's filter has last passed on a value */
    bool comma;        /* and keeps a comma behind it */
    size_t semicolons; /* kept */
} shaper;

static const char *const written[] = {"? ", ", ", "( ", ") ", "; "};

static void hash_token(shaper *shape, const token *one)
{
    uint64_t hash = shape->hash;

    if (one->kind != ANY) {
        shape->hash = hg_hash_more(hash, written[one->kind], 2);
        return;
    }
    for (const uint8_t *at = one->at; at < one->end; at++) {
        uint8_t byte = *at;

        if (one->word && byte >= 'A' && byte <= 'Z')
            byte |= 32;
        hash = hg_hash_more(hash, &byte, 1);
    }
    shape->hash = hg_hash_more(hash, " ", 1);
}

/* Another row of values was not what it seemed: out with what was kept of it. */
static void let_row_go(shaper *shape)
{
    static const row_state after[] = {
        [HELD_COMMA] = ROW_NONE, [HELD_OPEN] = ROW_OPEN, [HELD_VALUE] = ROW_VALUE};
    static const char *const held[] = {
        [HELD_COMMA] = ", ", [HELD_OPEN] = ", ( ", [HELD_VALUE] = ", ( ? "};

    if (shape->row < HELD_COMMA)
        return;
    shape->hash = hg_hash_more(shape->hash, held[shape->row], strlen(held[shape->row]));
    shape->row = after[shape->row];
}

/* true: kept, or dropped with what was. */
static bool row_takes(shaper *shape, kind given)
{
    static const struct {
        uint8_t expects, then;
    } next[] = {[ROW_WHOLE] = {COMMA, HELD_COMMA},
                [HELD_COMMA] = {OPEN, HELD_OPEN},
                [HELD_OPEN] = {VALUE, HELD_VALUE},
                [HELD_VALUE] = {CLOSE, ROW_WHOLE}};

    if (shape->row < ROW_WHOLE || given != next[shape->row].expects)
        return false;
    shape->row = (row_state) next[shape->row].then;
    return true;
}

static row_state row_after(row_state before, kind given)
{
    if (given == OPEN)
        return ROW_OPEN;
    if (given == VALUE && before == ROW_OPEN)
        return ROW_VALUE;
    return given == CLOSE && before == ROW_VALUE ? ROW_WHOLE : ROW_NONE;
}

static void to_rows(shaper *shape, const token *one)
{
    if (row_takes(shape, one->kind))
        return;
    let_row_go(shape);
    hash_token(shape, one);
    shape->row = row_after(shape->row, one->kind);
}

static void to_lists(shaper *shape, const token *one)
{
    if (one->kind == COMMA && shape->value && !shape->comma) {
        shape->comma = true;
        return;
    }
    if (shape->comma) {
        shape->comma = false;
        if (one->kind == VALUE)
            return;
        to_rows(shape, &comma);
    }
    to_rows(shape, one);
    shape->value = one->kind == VALUE;
}

static void to_end(shaper *shape, const token *one)
{
    if (one->kind == SEMICOLON) {
        shape->semicolons++;
        return;
    }
    for (; shape->semicolons > 0; shape->semicolons--)
        to_lists(shape, &semicolon);
    to_lists(shape, one);
}

static kind kind_of(hg_piece piece, const uint8_t *at, const uint8_t *end)
{
    static const char single[] = "?,();";
    const char *found;

    if (piece == HG_PIECE_LITERAL)
        return VALUE;
    if (piece != HG_PIECE_OTHER || end - at != 1 || *at == '\0')
        return ANY;
    found = strchr(single, *at);
    return found == NULL ? ANY : (kind) (found - single);
}

/* ── EXPLAIN ANALYZE ──────────────────────────────────────────────────────── */

static bool is_any(const hg_tokens *tokens, const char *const *words)
{
    while (*words != NULL && !hg_token_is(tokens, *words))
        words++;
    return *words != NULL;
}

static bool is_analyze(const hg_tokens *tokens)
{
    return hg_token_is(tokens, "analyze") || hg_token_is(tokens, "analyse");
}

/* From the opening bracket on to what is behind the closing one: whether ANALYZE is in between. */
static bool bracket_analyzes(hg_tokens *tokens)
{
    static const char *const queries[] = {"select", "with", "values", "table", NULL};
    bool analyzes = false, query;
    int depth = 1;

    hg_tokens_next(tokens);
    query = hg_token_is_mark(tokens, '(') || is_any(tokens, queries);
    for (; tokens->start < tokens->end; hg_tokens_next(tokens)) {
        analyzes |= is_analyze(tokens);
        depth += hg_token_is_mark(tokens, '(');
        depth -= hg_token_is_mark(tokens, ')');
        if (depth == 0)
            break;
    }
    return hg_tokens_next(tokens) && analyzes && !query;
}

/* On to the first token that is no option of EXPLAIN: whether ANALYZE was among them. */
static bool options_analyze(hg_tokens *tokens)
{
    static const char *const options[] = {"analyze",    "analyse", "verbose", "extended",
                                          "partitions", "format",  NULL};
    bool analyzes = false;

    while (is_any(tokens, options)) {
        bool format = hg_token_is(tokens, "format");

        analyzes |= is_analyze(tokens);
        hg_tokens_next(tokens);
        if (format && hg_token_is_mark(tokens, '=')) {
            hg_tokens_next(tokens);
            hg_tokens_next(tokens);
        }
    }
    return analyzes && tokens->start < tokens->end;
}

/* From the first token to that of the statement which an EXPLAIN ANALYZE, or MariaDB's ANALYZE, runs.
 * False: it is none of them. */
static bool skip_explain(hg_tokens *tokens)
{
    static const char *const tables[] = {"table", "local", "no_write_to_binlog", NULL};
    bool mysql = tokens->text.dialect == HG_MYSQL;

    if (mysql && hg_token_is(tokens, "analyze")) {
        hg_tokens_next(tokens);
        options_analyze(tokens);
        return tokens->start < tokens->end && !is_any(tokens, tables);
    }
    if (!hg_token_is(tokens, "explain")
        && !(mysql && (hg_token_is(tokens, "describe") || hg_token_is(tokens, "desc"))))
        return false;
    hg_tokens_next(tokens);
    return hg_token_is_mark(tokens, '(') ? bracket_analyzes(tokens) : options_analyze(tokens);
}

uint64_t hg_fingerprint(const char *text, size_t length, int dialect)
{
    shaper shape = {.hash = hg_hash_begin(HG_FINGERPRINT_SEED)};
    hg_tokens tokens, run;

    hg_tokens_begin(&tokens, text, length, dialect);
    hg_tokens_next(&tokens);
    run = tokens;
    if (skip_explain(&run))
        tokens = run;
    for (; tokens.start < tokens.end; hg_tokens_next(&tokens))
        to_end(&shape, &(token){kind_of(tokens.piece, tokens.start, tokens.end),
                                tokens.piece == HG_PIECE_WORD, tokens.start, tokens.end});
    if (shape.comma)
        to_rows(&shape, &comma);
    let_row_go(&shape);
    return hg_hash_end(shape.hash);
}
