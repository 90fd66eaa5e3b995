/*
 * sqltext.h: a statement's text in pieces. No grammar: just enough of both dialects to know what
 * is a literal, what a comment, and where each ends. What is never closed goes on to the end of
 * the text. The twin of src/headgate/budgets/sql_text.py; shared by tags.c, fingerprint.c and the
 * proxy's relay/kinds.c.
 */
#ifndef HEADGATE_SQLTEXT_H
#define HEADGATE_SQLTEXT_H

#include <string.h>

#include "headgate.h"

typedef enum hg_piece {
    HG_PIECE_SPACE,
    HG_PIECE_LINE,  /* a comment to the end of the line */
    HG_PIECE_BLOCK, /* one between brackets */
    HG_PIECE_LITERAL,
    HG_PIECE_QUOTED, /* a name in quotes */
    HG_PIECE_WORD,
    HG_PIECE_OTHER
} hg_piece;

enum { HG_IS_SPACE = 1, HG_IS_DIGIT = 2, HG_STARTS_WORD = 4, HG_IN_WORD = 8, HG_IN_NUMBER = 16 };

extern const uint8_t hg_byte_class[256];

typedef struct hg_text {
    const uint8_t *at, *end;
    const uint8_t *start;
    int dialect;
} hg_text;

static inline hg_text hg_text_of(const char *text, size_t length, int dialect)
{
    const uint8_t *start = (const uint8_t *) text;

    return (hg_text) {start, start + length, start, dialect};
}

/* Steps over the piece at text->at, of which there is at least a byte. */
hg_piece hg_next_piece(hg_text *text);

/* ── Tokens ───────────────────────────────────────────────────────────────── */

/* Pieces that are neither space nor comment. A MySQL server runs what is in a versioned comment
 * (!50000, MariaDB's M!100100) unless its own version is below that number: which one it is, a text
 * does not say. Tokens are read as if it did; with `skips_hints`, as if it did not. */
typedef struct hg_tokens {
    hg_text text;
    const uint8_t *start, *end; /* of the present one */
    hg_piece piece;
    bool in_hint;
    bool skips_hints;
} hg_tokens;

void hg_tokens_begin(hg_tokens *tokens, const char *text, size_t length, int dialect);
bool hg_tokens_next(hg_tokens *tokens);
/* The present token is this word, in whatever case; `word` is lower case. */
bool hg_token_is(const hg_tokens *tokens, const char *word);
bool hg_token_is_mark(const hg_tokens *tokens, char mark);
/* Behind the head of the versioned comment that begins at `at`, its number included; NULL: none does. */
const uint8_t *hg_hint_start(const uint8_t *at, const uint8_t *end, int dialect);

#endif
