/* kinds.h: what a statement's words say, for the gate. See kinds.c, kinds_free.c, kinds_split.c. */
#ifndef HEADGATE_RELAY_KINDS_H
#define HEADGATE_RELAY_KINDS_H

#include "../native/sqltext.h"

#define HR_MAX_SLICES 32u

/* Statements that the gate itself has to follow. */
enum {
    HR_VERB_NONE = 0,
    HR_VERB_SET, /* at: behind the word */
    HR_VERB_RESET,
    HR_VERB_DISCARD, /* everything that the session has set and prepared */
    HR_VERB_PREPARE, /* at: its name; inner: what it prepares */
    HR_VERB_EXECUTE, /* at: its name */
    HR_VERB_DEALLOCATE /* at: its name, or ALL */
};

typedef struct hr_reading {
    uint8_t kind; /* HR_KIND_*, but for HR_KIND_MANY */
    uint8_t verb; /* HR_VERB_* */
    bool may_write; /* a READ that only a look at all of it tells from a WRITE: hr_read_deep */
    bool ends; /* the transaction */
    bool chains; /* … and begins the next one */
    bool back; /* ROLLBACK TO: repairs a failed transaction, and ends none */
    bool does; /* DO, CALL: what they run is out of sight */
    bool commits; /* MySQL: may end the transaction on its way, as DDL does */
    bool unsure; /* read otherwise, which nobody here can rule out, it says something else */
    uint32_t at, inner; /* in bytes from the text's start; 0: none */
} hr_reading;

typedef struct hr_slice {
    uint32_t start, length;
    hr_reading reading;
} hr_slice;

/* One statement. */
void hr_read(const char *text, size_t length, int dialect, hr_reading *reading);
/* From where the tokens stand, at its beginning. */
void hr_read_tokens(hg_tokens *tokens, hr_reading *reading);
/* Whether a READ writes after all: SELECT … INTO, FOR UPDATE, WITH … AS (INSERT …). */
bool hr_read_deep(const char *text, size_t length, int dialect);
/* The name at the present token, as the server compares it: folded, without its quotes, cut; `out` has
 * HR_READ_NAME_BYTES. 0: it cannot be read. */
#define HR_READ_NAME_BYTES 64u
uint32_t hr_read_name(const hg_tokens *tokens, char *out);

/* A text that a client sends as one. */
typedef struct hr_query {
    const char *text;
    size_t length;
    uint32_t count;
    hr_slice slices[HR_MAX_SLICES];
} hr_query;

/* Its statements, empty ones left out; the last one of HR_MAX_SLICES is all the rest. Of a text that can
 * be read in several ways, the strictest (kinds_split.c). */
void hr_query_read(hr_query *query, const char *text, size_t length, int dialect);
/* What its first words say, without a check: whether it begins a transaction or is free, and not whether
 * it writes. */
int hr_query_kind(const hr_query *query);

/* ── Free statements (kinds_free.c) ───────────────────────────────────────── */

/* On its first word: whether all of the statement is as the table says. */
bool hr_is_free(const hg_tokens *tokens);
/* The table, for tests at a server: its rows, and what a name in them means (NULL: a kind
 * of token). */
uint32_t hr_free_forms(int dialect, const char *const **forms);
const char *hr_free_part(const char *name, size_t length);

#endif
