/*
 * json.h: a JSON document as a flat array of values, in memory that the caller gives. Strict
 * (RFC 8259), UTF-8, at most HG_JSON_DEPTH deep. Used by compile.c alone.
 */
#ifndef HEADGATE_JSON_H
#define HEADGATE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HG_JSON_DEPTH 32u

typedef enum hg_json_kind {
    HG_JSON_NULL,
    HG_JSON_FALSE,
    HG_JSON_TRUE,
    HG_JSON_NUMBER,
    HG_JSON_STRING,
    HG_JSON_LIST,
    HG_JSON_TABLE
} hg_json_kind;

typedef struct hg_json_value {
    uint32_t kind;
    uint32_t count; /* of a list or a table */
    uint32_t first; /* its first value's index; 0: it is empty */
    uint32_t next;  /* in the same list or table; 0: the last */
    uint32_t key, key_length;   /* in a table; into texts */
    uint32_t text, text_length; /* a string's, decoded, or a number's, as it is written */
} hg_json_value;

typedef struct hg_json {
    hg_json_value *values; /* the first is the whole document */
    uint32_t count, room;
    char *texts; /* each followed by a NUL, which texts themselves may hold, too */
    uint32_t used, texts_room;
    const char *fault; /* a constant; NULL: there is none */
    size_t fault_at;   /* bytes into the document */
    const uint8_t *start, *at, *end;
    uint32_t depth;
} hg_json;

/* How much of both suffices for a document of that length. */
static inline uint32_t hg_json_values_for(size_t length)
{
    return (uint32_t) (length / 2 + 2);
}

static inline uint32_t hg_json_texts_for(size_t length)
{
    return (uint32_t) (length + length / 2 + 2);
}

/* `values` and `texts` are the caller's, with their room. False: see fault. */
bool hg_json_read(hg_json *json, const char *text, size_t length);

#endif
