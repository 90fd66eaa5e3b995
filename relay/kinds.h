/* kinds.h: what a statement's first words say, for the gate. See kinds.c. */
#ifndef HEADGATE_RELAY_KINDS_H
#define HEADGATE_RELAY_KINDS_H

#include "../native/sqltext.h"

#define HR_MAX_SLICES 32u

/* Statements that the gate itself has to follow. */
enum {
    HR_VERB_NONE = 0,
    HR_VERB_SET,        /* at: behind the word */
    HR_VERB_RESET,
    HR_VERB_DISCARD,    /* everything that the session has set and prepared */
    HR_VERB_PREPARE,    /* at: its name; inner: what it prepares */
    HR_VERB_EXECUTE,    /* at: its name */
    HR_VERB_DEALLOCATE  /* at: its name, or ALL */
};

typedef struct hr_reading {
    uint8_t kind;      /* HR_KIND_*, but for HR_KIND_MANY */
    uint8_t verb;      /* HR_VERB_* */
    bool may_write;    /* a READ that only a look at all of it tells from a WRITE: hr_read_deep */
    bool ends;         /* the transaction */
    bool chains;       /* … and begins the next one */
    bool back;         /* ROLLBACK TO: mends a failed transaction, and ends none */
    bool does;         /* DO, CALL: what they run is out of sight */
    uint32_t at, inner; /* in bytes from the text's start; 0: none */
} hr_reading;

typedef struct hr_slice {
    uint32_t start, length;
    hr_reading reading;
} hr_slice;

/* Tokens: pieces that are neither space nor comment. */
typedef struct hr_tokens {
    hg_text text;
    const uint8_t *start, *end; /* of the present one */
    hg_piece piece;
    bool in_hint; /* MySQL runs what is between the brackets of such a comment */
} hr_tokens;

void hr_tokens_begin(hr_tokens *tokens, const char *text, size_t length, int dialect);
bool hr_tokens_next(hr_tokens *tokens);
/* The present token is this word, in whatever case; `word` is lower case. */
bool hr_token_is(const hr_tokens *tokens, const char *word);
bool hr_token_is_mark(const hr_tokens *tokens, char mark);

/* One statement. */
void hr_read(const char *text, size_t length, int dialect, hr_reading *reading);
/* Whether a READ writes after all: SELECT … INTO, FOR UPDATE, WITH … AS (INSERT …). */
bool hr_read_deep(const char *text, size_t length, int dialect);
/* The name at the present token, as the server compares it: folded, without its quotes, cut; `out` has
 * HR_READ_NAME_BYTES. 0: it cannot be read. */
#define HR_READ_NAME_BYTES 64u
uint32_t hr_read_name(const hr_tokens *tokens, char *out);
/* A string's statements, empty ones left out; the last one of HR_MAX_SLICES is all the rest. */
uint32_t hr_split(const char *text, size_t length, int dialect, hr_slice *slices);

#endif
