/*
 * document.h: a policy as its JSON document says it, checked, before it is laid out.
 *
 *   JSON ──hg_document_read──► hg_document ──compile.c──► compiled policy
 *
 * The twin of src/headgate/traffic/parse.py and limits.py: what is wrong is said in the same words.
 */
#ifndef HEADGATE_DOCUMENT_H
#define HEADGATE_DOCUMENT_H

#include "json.h"
#include "layout.h"

#ifndef HG_MAX_DOCUMENT_BYTES /* a bench has more */
#define HG_MAX_DOCUMENT_BYTES 65536u
#endif

typedef struct hg_slice {
    const char *at;
    uint32_t length;
} hg_slice;

/* A key of rules. They sort by `system`, then by name. */
typedef struct hg_named {
    uint32_t system; /* index of a system key; HG_SYSTEM_KEYS: a tag */
    uint32_t key;    /* index in the compiled policy, once that is known */
    hg_slice name;   /* a tag's */
} hg_named;

typedef struct hg_condition {
    hg_named key;
    hg_slice text;      /* its value, unless that is packed */
    uint8_t packed[17]; /* an address and its bits, or 8 bytes of a number */
    uint8_t packed_length;
    uint32_t pair; /* index in the compiled policy, once that is known */
} hg_condition;

/* Memory that the caller gave, handed out from its start on. */
typedef struct hg_work {
    char *at;
    size_t left;
} hg_work;

typedef struct hg_document {
    hg_json json;
    hg_budget *budgets; /* all but key and name */
    hg_slice *names;    /* of the same budgets */
    hg_rule *rules;
    hg_condition *conditions;
    hg_named *eaches;
    uint32_t budget_count, rule_count, condition_count, each_count;
    hg_slice exempt[HG_MAX_EXEMPT];
    uint32_t exempt_count;
    uint32_t flags; /* HG_POLICY_* */
    hg_slice *given_names; /* of all budgets, those that are off, too */
    char *error;
    size_t error_length;
    char place[512]; /* where in the document, so far */
    size_t place_length;
    char shown[256]; /* what stands there, quoted for a message */
} hg_document;

size_t hg_document_work_bytes(size_t json_length);
/* False with the first fault in `error`. Values and names point into `work`. */
bool hg_document_read(hg_document *document, const char *json, size_t json_length, hg_work *work);

void *hg_work_take(hg_work *work, size_t count, size_t size);
bool hg_fault(hg_document *document, const char *words, ...) __attribute__((format(printf, 2, 3)));

static inline hg_slice hg_value_of(const hg_condition *condition)
{
    if (condition->packed_length > 0)
        return (hg_slice){(const char *) condition->packed, condition->packed_length};
    return condition->text;
}

static inline int hg_compare_slices(hg_slice a, hg_slice b)
{
    return hg_compare_bytes(a.at, a.length, b.at, b.length);
}

static inline int hg_compare_named(const hg_named *a, const hg_named *b)
{
    if (a->system != b->system)
        return a->system < b->system ? -1 : 1;
    return hg_compare_slices(a->name, b->name);
}

/* ── values.c: one value of the document ──────────────────────────────────── */

const char *hg_kind_words(const hg_json_value *value); /* "a string" */
/* Quoted as Python would, cut; in document->shown. */
const char *hg_shown(hg_document *document, const hg_json_value *value);
const char *hg_shown_text(hg_document *document, hg_slice text, uint32_t most);
hg_slice hg_text_of_value(const hg_document *document, const hg_json_value *value);
/* "unknown setting 'rat'; did you mean 'rate'?" */
bool hg_unknown(hg_document *document, const char *what, hg_slice given, const char *const *known,
                size_t count);

bool hg_read_thousandths(hg_document *document, const hg_json_value *value, uint32_t most,
                         uint32_t *out);
bool hg_read_whole(hg_document *document, const hg_json_value *value, uint32_t most, uint32_t *out);
bool hg_read_instant(hg_document *document, const hg_json_value *value, int64_t *out_ms);
bool hg_read_query(hg_document *document, const hg_json_value *value, hg_condition *out);
bool hg_read_fingerprint(hg_document *document, const hg_json_value *value, hg_condition *out);
bool hg_read_address(hg_document *document, const hg_json_value *value, hg_condition *out);

#endif
