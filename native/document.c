/* document.c: budgets and rules of a JSON document, in order, until the first fault. */
#include <stdarg.h>
#include <stdio.h>

#include "document.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define MAX_COMMENT_CHARACTERS 200u
#define MAX_TEXT_CHARACTERS 1024u

/* ── Memory ───────────────────────────────────────────────────────────────── */

void *hg_work_take(hg_work *work, size_t count, size_t size)
{
    size_t bytes = (count * size + 7) / 8 * 8;
    void *taken = work->at;

    if (bytes > work->left)
        return NULL;
    work->at += bytes;
    work->left -= bytes;
    return taken;
}

/* No document is larger, so no product of these overflows. The shortest that can be right:
 * {"name":"a"}, as a budget, {}, as a rule, "query":1, as a condition, "tag.a", as an each-key. */
static size_t budgets_for(size_t length)
{
    return length / 12 + 1;
}

static size_t rules_for(size_t length)
{
    return length / 3 + 1;
}

static size_t conditions_for(size_t length)
{
    return length / 9 + 1;
}

static size_t eaches_for(size_t length)
{
    return length / 7 + 1;
}

static bool take_room(hg_document *document, size_t length, hg_work *work)
{
    hg_json *json = &document->json;

    json->room = hg_json_values_for(length);
    json->texts_room = hg_json_texts_for(length);
    return (json->values = hg_work_take(work, json->room, sizeof *json->values)) != NULL
           && (json->texts = hg_work_take(work, json->texts_room, 1)) != NULL
           && (document->budgets = hg_work_take(work, budgets_for(length), sizeof(hg_budget)))
           && (document->names = hg_work_take(work, budgets_for(length), sizeof(hg_slice)))
           && (document->given_names = hg_work_take(work, budgets_for(length), sizeof(hg_slice)))
           && (document->rules = hg_work_take(work, rules_for(length), sizeof(hg_rule)))
           && (document->conditions = hg_work_take(work, conditions_for(length),
                                                   sizeof(hg_condition)))
           && (document->eaches = hg_work_take(work, eaches_for(length), sizeof(hg_named)));
}

size_t hg_document_work_bytes(size_t length)
{
    return hg_json_values_for(length) * sizeof(hg_json_value) + hg_json_texts_for(length)
           + budgets_for(length) * (sizeof(hg_budget) + 2 * sizeof(hg_slice))
           + rules_for(length) * sizeof(hg_rule) + conditions_for(length) * sizeof(hg_condition)
           + eaches_for(length) * sizeof(hg_named) + 8 * 8;
}

/* ── Places and faults ────────────────────────────────────────────────────── */

/* One step further into the document; give what it returns to leave(). */
static size_t enter(hg_document *document, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static size_t enter(hg_document *document, const char *format, ...)
{
    size_t before = document->place_length;
    size_t room = sizeof document->place - before;
    va_list given;
    int length;

    va_start(given, format);
    length = vsnprintf(document->place + before, room, format, given);
    va_end(given);
    if (length > 0)
        document->place_length += (size_t) length < room ? (size_t) length : room - 1;
    return before;
}

static void leave(hg_document *document, size_t before)
{
    document->place_length = before;
    document->place[before] = '\0';
}

bool hg_fault(hg_document *document, const char *words, ...)
{
    size_t room = document->error_length;
    int length;
    va_list given;

    if (room == 0)
        return false;
    length = snprintf(document->error, room, "%s%s", document->place,
                      document->place_length > 0 ? ": " : "");
    if (length < 0 || (size_t) length >= room)
        return false;
    va_start(given, words);
    vsnprintf(document->error + length, room - (size_t) length, words, given);
    va_end(given);
    return false;
}

static hg_slice key_of(const hg_document *document, const hg_json_value *value)
{
    return (hg_slice){document->json.texts + value->key, value->key_length};
}

static bool slice_is(hg_slice slice, const char *text)
{
    return slice.length == strlen(text) && memcmp(slice.at, text, slice.length) == 0;
}

static const hg_json_value *first_of(const hg_document *document, const hg_json_value *owner)
{
    return owner->first == 0 ? NULL : &document->json.values[owner->first];
}

static const hg_json_value *next_of(const hg_document *document, const hg_json_value *value)
{
    return value->next == 0 ? NULL : &document->json.values[value->next];
}

static const hg_json_value *member(const hg_document *document, const hg_json_value *table,
                                   const char *key)
{
    const hg_json_value *one = first_of(document, table);

    while (one != NULL && !slice_is(key_of(document, one), key))
        one = next_of(document, one);
    return one;
}

/* Steps in front of a key's value. */
static size_t enter_key(hg_document *document, const hg_json_value *value)
{
    hg_slice key = key_of(document, value);

    return enter(document, "%s%.*s", document->place_length > 0 ? "." : "", (int) key.length,
                 key.at);
}

/* A key that stands there twice is an error, not a riddle which of both counts. */
static bool keys_differ(hg_document *document, const hg_json_value *table)
{
    for (const hg_json_value *a = first_of(document, table); a; a = next_of(document, a))
        for (const hg_json_value *b = next_of(document, a); b; b = next_of(document, b))
            if (hg_compare_slices(key_of(document, a), key_of(document, b)) == 0) {
                enter_key(document, b);
                return hg_fault(document, "is given twice");
            }
    return true;
}

static bool is_settings(hg_document *document, const hg_json_value *value)
{
    if (value->kind != HG_JSON_TABLE)
        return hg_fault(document, "must be a table of settings, not %s", hg_kind_words(value));
    return keys_differ(document, value);
}

/* ── Texts ────────────────────────────────────────────────────────────────── */

static uint32_t characters_of(hg_slice text)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < text.length; i++)
        count += ((uint8_t) text.at[i] & 0xc0) != 0x80;
    return count;
}

static bool read_text(hg_document *document, const hg_json_value *value, uint32_t most,
                      hg_slice *out)
{
    if (value->kind != HG_JSON_STRING)
        return hg_fault(document, "must be a string, not %s", hg_kind_words(value));
    *out = hg_text_of_value(document, value);
    if (characters_of(*out) > most)
        return hg_fault(document, "has %u characters, at most %u", characters_of(*out), most);
    return true;
}

/* With commas, as Python groups thousands. */
static const char *grouped(uint32_t number, char out[16])
{
    if (number >= 1000)
        snprintf(out, 16, "%u,%03u", number / 1000, number % 1000);
    else
        snprintf(out, 16, "%u", number);
    return out;
}

static bool is_value_text(hg_document *document, hg_slice text)
{
    char bytes[16];

    if (text.length > HG_MAX_VALUE_BYTES)
        return hg_fault(document, "has %s bytes, at most 1,024", grouped(text.length, bytes));
    if (memchr(text.at, '\0', text.length) != NULL)
        return hg_fault(document, "holds a NUL byte, which no server's text has");
    return true;
}

static bool read_choice(hg_document *document, const hg_json_value *value,
                        const char *const *choices, uint8_t count, uint8_t *out)
{
    char list[64] = "";
    size_t length = 0;

    for (uint8_t i = 0; i < count; i++) {
        if (value->kind == HG_JSON_STRING && slice_is(hg_text_of_value(document, value), choices[i])) {
            *out = i;
            return true;
        }
        length += (size_t) snprintf(list + length, sizeof list - length, "%s'%s'",
                                    i == 0 ? "" : ", ", choices[i]);
    }
    return hg_fault(document, "is %s, must be one of %s", hg_shown(document, value), list);
}

/* ── Rules ────────────────────────────────────────────────────────────────── */

static const char *const system_keys[] = {
    "username", "database", "application_name", "remote_address", "query", "fingerprint"};

static bool unknown_key(hg_document *document, hg_slice key)
{
    const char *known[HG_SYSTEM_KEYS + 1];
    char tag[80];

    memcpy(known, system_keys, sizeof system_keys);
    snprintf(tag, sizeof tag, "tag.%.*s", (int) key.length, key.at);
    known[HG_SYSTEM_KEYS] = tag;
    return hg_unknown(document, "key", key, known, COUNT(known));
}

static bool read_key(hg_document *document, hg_slice key, hg_named *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < HG_SYSTEM_KEYS; i++)
        if (slice_is(key, system_keys[i])) {
            out->system = i;
            out->name = (hg_slice){"", 0};
            return true;
        }
    if (key.length < 4 || memcmp(key.at, "tag.", 4) != 0)
        return unknown_key(document, key);
    out->system = HG_SYSTEM_KEYS;
    out->name = (hg_slice){key.at + 4, key.length - 4};
    if (out->name.length < 1 || out->name.length > HG_MAX_KEY_BYTES)
        return hg_fault(document, "has a tag's name of %u bytes, must be 1 to %u",
                        out->name.length, HG_MAX_KEY_BYTES);
    return true;
}

static bool read_value(hg_document *document, const hg_json_value *value, hg_condition *out)
{
    hg_slice key = key_of(document, value);

    if (out->key.system == HG_KEY_QUERY)
        return hg_read_query(document, value, out);
    if (value->kind == HG_JSON_NUMBER)
        return hg_fault(document, "must be a string: write \"%s\" in quotes",
                        hg_shown(document, value));
    if (value->kind != HG_JSON_STRING)
        return hg_fault(document,
                        "must be a string, one value; for several values of %.*s give several rules",
                        (int) key.length, key.at);
    if (out->key.system == HG_KEY_REMOTE_ADDRESS)
        return hg_read_address(document, value, out);
    if (out->key.system == HG_KEY_FINGERPRINT)
        return hg_read_fingerprint(document, value, out);
    out->text = hg_text_of_value(document, value);
    return is_value_text(document, out->text);
}

/* What becomes of tag.controller = "export" in TOML without quotes. */
static bool is_no_dotted_tag(hg_document *document, const hg_json_value *value)
{
    hg_slice name;

    if (!slice_is(key_of(document, value), "tag") || value->kind != HG_JSON_TABLE
        || value->count == 0)
        return true;
    name = key_of(document, first_of(document, value));
    return hg_fault(document, "is a table: quote the whole key, \"tag.%.*s\" = …",
                    (int) name.length, name.at);
}

static bool read_condition(hg_document *document, const hg_json_value *value)
{
    hg_condition *out = &document->conditions[document->condition_count];
    size_t place = enter_key(document, value);

    memset(out, 0, sizeof *out);
    if (!is_no_dotted_tag(document, value)
        || !read_key(document, key_of(document, value), &out->key)
        || !read_value(document, value, out))
        return false;
    document->condition_count++;
    leave(document, place);
    return true;
}

static bool read_match(hg_document *document, const hg_json_value *match, hg_rule *rule)
{
    hg_condition *first = &document->conditions[rule->first_condition];

    if (match->kind != HG_JSON_TABLE)
        return hg_fault(document, "must be a table of keys and values: { username = \"etl\" }");
    if (match->count > HG_MAX_CONDITIONS)
        return hg_fault(document, "has %u keys, at most %u", match->count, HG_MAX_CONDITIONS);
    if (!keys_differ(document, match))
        return false;
    for (const hg_json_value *one = first_of(document, match); one; one = next_of(document, one))
        if (!read_condition(document, one))
            return false;
    rule->conditions = (uint16_t) match->count;
    for (uint32_t i = 1; i < match->count; i++)
        for (uint32_t j = i; j > 0 && hg_compare_named(&first[j - 1].key, &first[j].key) > 0; j--) {
            hg_condition other = first[j];

            first[j] = first[j - 1];
            first[j - 1] = other;
        }
    for (uint32_t i = 0; i < match->count; i++)
        if (first[i].key.system == HG_KEY_REMOTE_ADDRESS)
            rule->prefix = (uint16_t) (first[i].packed[first[i].packed_length - 1] + 1);
    return true;
}

static bool read_each_key(hg_document *document, const hg_json_value *value, hg_rule *rule,
                          uint32_t index)
{
    hg_named *first = &document->eaches[rule->first_each];
    size_t place = enter(document, "[%u]", index);
    hg_named *out = &document->eaches[document->each_count];

    if (value->kind != HG_JSON_STRING)
        return hg_fault(document,
                        "must be the name of a key, such as username or tag.controller");
    if (!read_key(document, hg_text_of_value(document, value), out))
        return false;
    for (hg_named *other = first; other < out; other++)
        if (hg_compare_named(other, out) == 0)
            return hg_fault(document, "%s is named twice", hg_shown(document, value));
    document->each_count++;
    rule->eaches++;
    leave(document, place);
    return true;
}

static bool read_each(hg_document *document, const hg_json_value *each, hg_rule *rule)
{
    hg_named *first = &document->eaches[rule->first_each];
    uint32_t index = 0;

    if (each->kind != HG_JSON_LIST)
        return hg_fault(document, "must be a list of keys: [\"tag.tenant\"]");
    if (each->count > HG_MAX_EACHES)
        return hg_fault(document, "has %u keys, at most %u", each->count, HG_MAX_EACHES);
    for (const hg_json_value *one = first_of(document, each); one; one = next_of(document, one))
        if (!read_each_key(document, one, rule, index++))
            return false;
    for (uint32_t i = 1; i < index; i++)
        for (uint32_t j = i; j > 0 && hg_compare_named(&first[j - 1], &first[j]) > 0; j--) {
            hg_named other = first[j];

            first[j] = first[j - 1];
            first[j - 1] = other;
        }
    return true;
}

/* All settings of a rule are known, before any is read: as Python tells them. */
static bool rule_keys_known(hg_document *document, const hg_json_value *value)
{
    static const char *const known[] = {"match", "each"};

    for (const hg_json_value *one = first_of(document, value); one; one = next_of(document, one)) {
        hg_slice key = key_of(document, one);

        if (!slice_is(key, "match") && !slice_is(key, "each")) {
            enter_key(document, one);
            return hg_unknown(document, "setting", key, known, COUNT(known));
        }
    }
    return true;
}

static bool read_rule(hg_document *document, const hg_json_value *value, uint32_t budget)
{
    hg_rule *rule = &document->rules[document->rule_count];
    const hg_json_value *match;
    const hg_json_value *each;
    size_t place;

    if (!is_settings(document, value) || !rule_keys_known(document, value))
        return false;
    memset(rule, 0, sizeof *rule);
    rule->budget = budget;
    rule->first_condition = document->condition_count;
    rule->first_each = document->each_count;
    match = member(document, value, "match");
    each = member(document, value, "each");
    if (match != NULL) {
        place = enter(document, ".match");
        if (!read_match(document, match, rule))
            return false;
        leave(document, place);
    }
    if (each != NULL) {
        place = enter(document, ".each");
        if (!read_each(document, each, rule))
            return false;
        leave(document, place);
    }
    document->rule_count++;
    return true;
}

static bool read_rules(hg_document *document, const hg_json_value *rules, uint32_t budget)
{
    size_t place = enter(document, ".rules");
    uint32_t index = 0;

    if (rules->kind != HG_JSON_LIST)
        return hg_fault(document, "must be a list of tables: [[budgets.rules]]");
    for (const hg_json_value *one = first_of(document, rules); one; one = next_of(document, one)) {
        size_t before = enter(document, "[%u]", index++);

        if (!read_rule(document, one, budget))
            return false;
        leave(document, before);
    }
    leave(document, place);
    return true;
}

/* ── Budgets ──────────────────────────────────────────────────────────────── */

typedef enum how { NAME, MODE, WHEN, FLAG, PARTS, WHOLE, INSTANT, COMMENT, RULES } how;

typedef struct setting {
    const char *name;
    how how;
    uint32_t most;
    uint32_t bit;   /* HG_SET_*: null stands for "no limit" */
    size_t at;      /* of its field in hg_budget */
} setting;

#define AT(field) offsetof(hg_budget, field)

static const setting settings[] = {
    {"name", NAME, 0, 0, 0},
    {"mode", MODE, 0, 0, 0},
    {"rate", PARTS, 100, HG_SET_RATE, AT(rate_mpct)},
    {"capacity", PARTS, 6000, HG_SET_CAPACITY, AT(capacity_mpcts)},
    {"burst", PARTS, 6000, HG_SET_BURST, AT(burst_mpcts)},
    {"concurrency", PARTS, 100, HG_SET_CONCURRENCY, AT(concurrency_mpct)},
    {"max_workers", WHOLE, 65535, HG_SET_MAX_WORKERS, AT(max_workers)},
    {"warning_threshold", PARTS, 100, HG_SET_WARNING, AT(warning_mpct)},
    {"when", WHEN, 0, 0, 0},
    {"in_transaction", FLAG, 0, 0, 0},
    {"max_delay_s", PARTS, 10, 0, AT(max_delay_ms)},
    {"penalty_s", PARTS, 1, 0, AT(penalty_ms)},
    {"max_delayed", WHOLE, 1000, 0, AT(max_delayed)},
    {"epoch", WHOLE, UINT32_MAX, 0, AT(epoch)},
    {"expires_at", INSTANT, 0, 0, 0},
    {"comment", COMMENT, 0, 0, 0},
    {"rules", RULES, 0, 0, 0},
};

static bool is_name(hg_slice name)
{
    for (uint32_t i = 0; i < name.length; i++) {
        char c = name.at[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');

        if (!plain && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return name.length >= 1 && name.length <= HG_MAX_NAME_BYTES;
}

static bool read_name(hg_document *document, const hg_json_value *value)
{
    hg_slice *name = &document->names[document->budget_count];

    if (!read_text(document, value, MAX_TEXT_CHARACTERS, name))
        return false;
    if (!is_name(*name))
        return hg_fault(document, "is %s, must be 1–63 of a–z, 0–9, ., _ and -, and begin with "
                                  "a–z, 0–9", hg_shown(document, value));
    return true;
}

static bool read_comment(hg_document *document, const hg_json_value *value)
{
    hg_slice text;

    if (!read_text(document, value, MAX_COMMENT_CHARACTERS, &text))
        return false;
    for (uint32_t i = 0; i < text.length; i++)
        if ((uint8_t) text.at[i] < ' ' || text.at[i] == 0x7f)
            return hg_fault(document,
                            "holds a line break or another control character; write one line");
    return true;
}

static bool read_flag(hg_document *document, const hg_json_value *value, uint8_t flag,
                      hg_budget *budget)
{
    if (value->kind != HG_JSON_TRUE && value->kind != HG_JSON_FALSE)
        return hg_fault(document, "must be true or false, not %s", hg_kind_words(value));
    if (value->kind == HG_JSON_TRUE)
        budget->flags |= flag;
    return true;
}

static bool read_when(hg_document *document, const hg_json_value *value, hg_budget *budget)
{
    static const char *const choices[] = {"always", "unhealthy"};
    uint8_t when = 0;

    if (!read_choice(document, value, choices, COUNT(choices), &when))
        return false;
    if (when == 1)
        budget->flags |= HG_BUDGET_WHEN_UNHEALTHY;
    return true;
}

static bool read_amount(hg_document *document, const hg_json_value *value, const setting *row,
                        hg_budget *budget)
{
    uint32_t amount = 0;

    if (row->bit != 0 && value->kind == HG_JSON_NULL)
        return true;
    if (row->how == PARTS ? !hg_read_thousandths(document, value, row->most, &amount)
                          : !hg_read_whole(document, value, row->most, &amount))
        return false;
    memcpy((char *) budget + row->at, &amount, sizeof amount);
    budget->set |= row->bit;
    return true;
}

static bool read_setting(hg_document *document, const hg_json_value *value, const setting *row,
                         hg_budget *budget)
{
    static const char *const modes[] = {"off", "warn", "enforce"};

    switch (row->how) {
    case NAME:
        return read_name(document, value);
    case MODE:
        return read_choice(document, value, modes, COUNT(modes), &budget->mode);
    case WHEN:
        return read_when(document, value, budget);
    case FLAG:
        return read_flag(document, value, HG_BUDGET_IN_TRANSACTION, budget);
    case INSTANT:
        return value->kind == HG_JSON_NULL
               || hg_read_instant(document, value, &budget->expires_at_ms);
    case COMMENT:
        return read_comment(document, value);
    case RULES:
        return true;
    default:
        return read_amount(document, value, row, budget);
    }
}

static const setting *setting_named(hg_slice name)
{
    for (size_t i = 0; i < COUNT(settings); i++)
        if (slice_is(name, settings[i].name))
            return &settings[i];
    return NULL;
}

static bool unknown_setting(hg_document *document, hg_slice name)
{
    const char *known[COUNT(settings)];

    for (size_t i = 0; i < COUNT(settings); i++)
        known[i] = settings[i].name;
    return hg_unknown(document, "setting", name, known, COUNT(settings));
}

static bool read_settings(hg_document *document, const hg_json_value *value, hg_budget *budget)
{
    for (const hg_json_value *one = first_of(document, value); one; one = next_of(document, one)) {
        const setting *row = setting_named(key_of(document, one));
        size_t place = enter_key(document, one);

        if (row == NULL)
            return unknown_setting(document, key_of(document, one));
        if (!read_setting(document, one, row, budget))
            return false;
        leave(document, place);
    }
    return true;
}

static bool is_whole_budget(hg_document *document, const hg_json_value *value,
                            const hg_budget *budget)
{
    const uint32_t both = HG_SET_CONCURRENCY | HG_SET_MAX_WORKERS;

    if (member(document, value, "name") == NULL) {
        enter(document, ".name");
        return hg_fault(document, "is missing: a budget is known by its name");
    }
    if ((budget->set & both) == both) {
        enter(document, ".max_workers");
        return hg_fault(document,
                        "is the same limit as concurrency in another unit: give one of the two");
    }
    return true;
}

static bool name_is_new(hg_document *document, hg_slice name, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++)
        if (hg_compare_slices(document->given_names[i], name) == 0) {
            enter(document, ".name");
            return hg_fault(document,
                            "%s is the name of budgets[%u] as well: a budget is known by its name",
                            hg_shown_text(document, name, UINT32_MAX), i);
        }
    document->given_names[index] = name;
    return true;
}

/* A budget that is off is read like the others, and forgotten with its rules. */
static bool read_budget(hg_document *document, const hg_json_value *value, uint32_t index)
{
    hg_budget *budget = &document->budgets[document->budget_count];
    uint32_t before[] = {document->rule_count, document->condition_count, document->each_count};
    const hg_json_value *rules;

    if (!is_settings(document, value))
        return false;
    memset(budget, 0, sizeof *budget);
    budget->mode = HG_MODE_WARN;
    budget->penalty_ms = 50;
    budget->max_delayed = 100;
    rules = member(document, value, "rules");
    if (!read_settings(document, value, budget) || !is_whole_budget(document, value, budget)
        || (rules != NULL && !read_rules(document, rules, document->budget_count))
        || !name_is_new(document, document->names[document->budget_count], index))
        return false;
    if (budget->mode == HG_MODE_OFF) {
        document->rule_count = before[0];
        document->condition_count = before[1];
        document->each_count = before[2];
        return true;
    }
    if (budget->flags & HG_BUDGET_WHEN_UNHEALTHY)
        document->flags |= HG_POLICY_BY_HEALTH;
    if (budget->expires_at_ms != 0)
        document->flags |= HG_POLICY_EXPIRES;
    document->budget_count++;
    return true;
}

static bool read_budgets(hg_document *document, const hg_json_value *budgets)
{
    uint32_t index = 0;

    if (budgets->kind != HG_JSON_LIST) {
        enter(document, "budgets");
        return hg_fault(document, "must be a list of tables: [[budgets]]");
    }
    for (const hg_json_value *one = first_of(document, budgets); one; one = next_of(document, one)) {
        size_t place = enter(document, "budgets[%u]", index);

        if (!read_budget(document, one, index++))
            return false;
        leave(document, place);
    }
    return true;
}

/* ── The whole ────────────────────────────────────────────────────────────── */

static bool read_exempt_name(hg_document *document, const hg_json_value *value, uint32_t index)
{
    size_t place = enter(document, "[%u]", index);
    hg_slice name = hg_text_of_value(document, value);

    if (value->kind != HG_JSON_STRING || name.length == 0)
        return hg_fault(document, "must be a username");
    if (!is_value_text(document, name))
        return false;
    for (uint32_t i = 0; i < index; i++)
        if (hg_compare_slices(document->exempt[i], name) == 0)
            return hg_fault(document, "%s is named twice", hg_shown(document, value));
    document->exempt[document->exempt_count++] = name;
    leave(document, place);
    return true;
}

static bool read_exempt(hg_document *document, const hg_json_value *value)
{
    size_t place = enter(document, ".exempt_usernames");
    uint32_t index = 0;

    if (value->kind != HG_JSON_LIST)
        return hg_fault(document, "must be a list of usernames");
    if (value->count > HG_MAX_EXEMPT)
        return hg_fault(document, "has %u usernames, at most %u", value->count, HG_MAX_EXEMPT);
    for (const hg_json_value *one = first_of(document, value); one; one = next_of(document, one))
        if (!read_exempt_name(document, one, index++))
            return false;
    leave(document, place);
    return true;
}

static bool read_general(hg_document *document, const hg_json_value *policy)
{
    static const char *const known[] = {"health_unknown", "exempt_usernames"};
    static const char *const choices[] = {"healthy", "unhealthy"};
    const hg_json_value *exempt;
    size_t place = enter(document, "policy");
    uint8_t unknown = 0;

    if (!is_settings(document, policy))
        return false;
    for (const hg_json_value *one = first_of(document, policy); one; one = next_of(document, one)) {
        hg_slice key = key_of(document, one);
        size_t before = enter_key(document, one);

        if (!slice_is(key, known[0]) && !slice_is(key, known[1]))
            return hg_unknown(document, "setting", key, known, COUNT(known));
        if (slice_is(key, known[0])
            && !read_choice(document, one, choices, COUNT(choices), &unknown))
            return false;
        leave(document, before);
    }
    if (unknown == 1)
        document->flags |= HG_POLICY_UNKNOWN_BITES;
    exempt = member(document, policy, known[1]);
    if (exempt != NULL && !read_exempt(document, exempt))
        return false;
    leave(document, place);
    return true;
}

static bool read_sections(hg_document *document)
{
    static const char *const known[] = {"policy", "budgets"};
    const hg_json_value *whole = document->json.values;
    const hg_json_value *policy;
    const hg_json_value *budgets;

    if (whole->kind != HG_JSON_TABLE)
        return hg_fault(document, "must be a table with `policy` and `budgets`");
    if (!keys_differ(document, whole))
        return false;
    for (const hg_json_value *one = first_of(document, whole); one; one = next_of(document, one)) {
        hg_slice key = key_of(document, one);

        if (!slice_is(key, known[0]) && !slice_is(key, known[1])) {
            enter_key(document, one);
            return hg_unknown(document, "setting", key, known, COUNT(known));
        }
    }
    policy = member(document, whole, known[0]);
    budgets = member(document, whole, known[1]);
    return (policy == NULL || read_general(document, policy))
           && (budgets == NULL || read_budgets(document, budgets));
}

bool hg_document_read(hg_document *document, const char *json, size_t json_length, hg_work *work)
{
    if (json_length > HG_MAX_DOCUMENT_BYTES)
        return hg_fault(document,
                        "has %zu bytes, at most %u: compile larger policies with headgate, and "
                        "publish the file",
                        json_length, HG_MAX_DOCUMENT_BYTES);
    if (!take_room(document, json_length, work))
        return hg_fault(document, "there is too little memory to read it");
    if (!hg_json_read(&document->json, json, json_length))
        return hg_fault(document, "is not JSON, at byte %zu: %s", document->json.fault_at,
                        document->json.fault);
    return read_sections(document);
}
