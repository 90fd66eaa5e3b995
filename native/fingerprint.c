/*
 * fingerprint.c: a statement's shape as a number, the same on every server.
 *
 *   SELECT * FROM "T" WHERE id IN (1, 2, 3); -- why   ──►   select * from "T" where id in ( ? )
 *
 * Hashed as it goes by, a space behind each token. Three filters in a row hold back what may yet
 * be dropped: semicolons at the end, further values of a list, further rows of values.
 *
 * The twin of src/headgate/traffic/fingerprint.py.
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
    bool comma;        /* and holds back a comma behind it */
    size_t semicolons; /* held back */
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

/* Another row of values was not what it seemed: out with what was held back of it. */
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

/* true: held back, or dropped with what was. */
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

uint64_t hg_fingerprint(const char *text, size_t length, int dialect)
{
    hg_text at = hg_text_of(text, length, dialect);
    shaper shape = {.hash = hg_hash_begin(HG_FINGERPRINT_SEED)};

    while (at.at < at.end) {
        const uint8_t *start = at.at;
        hg_piece piece = hg_next_piece(&at);

        if (piece == HG_PIECE_SPACE || piece == HG_PIECE_LINE || piece == HG_PIECE_BLOCK)
            continue;
        to_end(&shape, &(token){kind_of(piece, start, at.at), piece == HG_PIECE_WORD, start, at.at});
    }
    if (shape.comma)
        to_rows(&shape, &comma);
    let_row_go(&shape);
    return hg_hash_end(shape.hash);
}
