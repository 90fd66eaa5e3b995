/*
 * compile.c: a policy's document as one flat piece of bytes, byte for byte what Python's
 * compile_policy makes of it (src/headgate/traffic/compiled.py).
 *
 *   JSON ──document.c──► hg_document ──► keys, pairs, candidates ──► bytes
 *
 * Sections lie in the order of the header, each padded to 8; strings are not shared; an empty run
 * of conditions, each-keys or candidates begins where the next one does.
 */
#include "document.h"

#define MIN_SLOTS 8u

/* What leads to a rule, before it is laid out. */
typedef struct draft {
    hg_document document;
    hg_slice *tags; /* sorted, each once */
    uint32_t tag_count;
    uint32_t *pairs; /* the first condition of each */
    uint64_t *hashes;
    uint32_t *named;  /* how many rules name each pair */
    uint32_t *under;  /* of each rule: the pair or key it is found by; NOWHERE: always applies */
    uint32_t *counts; /* of candidates: of each pair, then of each key */
    uint32_t *seen;   /* pairs plus 1 by their hash, to find them again */
    uint32_t pair_count;
    uint32_t seen_mask;
} draft;

#define NOWHERE UINT32_MAX

static const char *const system_names[HG_SYSTEM_KEYS] = {
    "username", "database", "application_name", "remote_address", "query", "fingerprint"};

static uint32_t key_count(const draft *draft)
{
    return HG_SYSTEM_KEYS + draft->tag_count;
}

static hg_slice key_name(const draft *draft, uint32_t key)
{
    if (key >= HG_SYSTEM_KEYS)
        return draft->tags[key - HG_SYSTEM_KEYS];
    return (hg_slice){system_names[key], (uint32_t) strlen(system_names[key])};
}

static uint64_t key_hash(const draft *draft, uint32_t key)
{
    hg_slice name = key_name(draft, key);

    return hg_hash(key < HG_SYSTEM_KEYS ? HG_SYSTEM_KEY_SEED : HG_TAG_KEY_SEED, name.at,
                   name.length);
}

/* ── Keys ─────────────────────────────────────────────────────────────────── */

/* Moves one name down a heap to where no name below it is greater. */
static void sift(hg_slice *names, uint32_t at, uint32_t count)
{
    for (uint32_t below = 2 * at + 1; below < count; below = 2 * at + 1) {
        hg_slice moved = names[at];

        if (below + 1 < count && hg_compare_slices(names[below], names[below + 1]) < 0)
            below++;
        if (hg_compare_slices(moved, names[below]) >= 0)
            return;
        names[at] = names[below];
        names[below] = moved;
        at = below;
    }
}

/* A heap sort, because libc's may allocate. */
static void sort_names(hg_slice *names, uint32_t count)
{
    for (uint32_t i = count / 2; i > 0; i--)
        sift(names, i - 1, count);
    for (uint32_t left = count; left > 1; left--) {
        hg_slice greatest = names[0];

        names[0] = names[left - 1];
        names[left - 1] = greatest;
        sift(names, 0, left - 1);
    }
}

static void note_tag(draft *draft, const hg_named *named)
{
    if (named->system == HG_SYSTEM_KEYS)
        draft->tags[draft->tag_count++] = named->name;
}

static uint32_t key_of(const draft *draft, const hg_named *named)
{
    uint32_t low = 0;
    uint32_t high = draft->tag_count;

    if (named->system < HG_SYSTEM_KEYS)
        return named->system;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (hg_compare_slices(draft->tags[middle], named->name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return HG_SYSTEM_KEYS + low;
}

static void find_keys(draft *draft)
{
    hg_document *document = &draft->document;
    uint32_t distinct = 0;

    for (uint32_t i = 0; i < document->condition_count; i++)
        note_tag(draft, &document->conditions[i].key);
    for (uint32_t i = 0; i < document->each_count; i++)
        note_tag(draft, &document->eaches[i]);
    sort_names(draft->tags, draft->tag_count);
    for (uint32_t i = 0; i < draft->tag_count; i++)
        if (i == 0 || hg_compare_slices(draft->tags[distinct - 1], draft->tags[i]) != 0)
            draft->tags[distinct++] = draft->tags[i];
    draft->tag_count = distinct;
    for (uint32_t i = 0; i < document->condition_count; i++)
        document->conditions[i].key.key = key_of(draft, &document->conditions[i].key);
    for (uint32_t i = 0; i < document->each_count; i++)
        document->eaches[i].key = key_of(draft, &document->eaches[i]);
}

/* ── Pairs and candidates ─────────────────────────────────────────────────── */

static bool same_pair(const hg_condition *a, const hg_condition *b)
{
    return a->key.key == b->key.key && hg_compare_slices(hg_value_of(a), hg_value_of(b)) == 0;
}

static uint32_t pair_of(draft *draft, uint32_t index)
{
    const hg_condition *conditions = draft->document.conditions;
    hg_slice value = hg_value_of(&conditions[index]);
    uint64_t hash = hg_hash(key_hash(draft, conditions[index].key.key), value.at, value.length);
    uint32_t at = (uint32_t) hash & draft->seen_mask;

    for (; draft->seen[at] != 0; at = (at + 1) & draft->seen_mask) {
        uint32_t pair = draft->seen[at] - 1;

        if (draft->hashes[pair] == hash && same_pair(&conditions[draft->pairs[pair]],
                                                     &conditions[index]))
            return pair;
    }
    draft->seen[at] = draft->pair_count + 1;
    draft->pairs[draft->pair_count] = index;
    draft->hashes[draft->pair_count] = hash;
    return draft->pair_count++;
}

/* A conjunction is found under its rarest pair alone, the first of several. */
static uint32_t found_under(const draft *draft, const hg_rule *rule)
{
    const hg_condition *conditions = draft->document.conditions + rule->first_condition;
    uint32_t rarest;

    if (rule->conditions == 0)
        return rule->eaches == 0
                   ? NOWHERE
                   : draft->pair_count + draft->document.eaches[rule->first_each].key;
    rarest = conditions[0].pair;
    for (uint32_t i = 1; i < rule->conditions; i++)
        if (draft->named[conditions[i].pair] < draft->named[rarest])
            rarest = conditions[i].pair;
    return rarest;
}

static void find_pairs(draft *draft)
{
    hg_document *document = &draft->document;

    for (uint32_t i = 0; i < document->condition_count; i++) {
        document->conditions[i].pair = pair_of(draft, i);
        draft->named[document->conditions[i].pair]++;
    }
    for (uint32_t i = 0; i < document->rule_count; i++) {
        draft->under[i] = found_under(draft, &document->rules[i]);
        if (draft->under[i] != NOWHERE)
            draft->counts[draft->under[i]]++;
    }
}

/* ── Layout ───────────────────────────────────────────────────────────────── */

static hg_section place(size_t *offset, uint32_t count, size_t size)
{
    hg_section section = {(uint32_t) *offset, count};

    *offset += (count * size + 7) / 8 * 8;
    return section;
}

static uint32_t strings_length(const draft *draft)
{
    const hg_document *document = &draft->document;
    uint32_t length = 0;

    for (uint32_t i = 0; i < document->budget_count; i++)
        length += document->names[i].length;
    for (uint32_t i = 0; i < key_count(draft); i++)
        length += key_name(draft, i).length;
    for (uint32_t i = 0; i < draft->pair_count; i++)
        length += hg_value_of(&document->conditions[draft->pairs[i]]).length;
    for (uint32_t i = 0; i < document->exempt_count; i++)
        length += document->exempt[i].length;
    return length;
}

static uint32_t slots_for(uint32_t pairs)
{
    uint32_t count = MIN_SLOTS;

    while (count < 2 * pairs)
        count *= 2;
    return pairs == 0 ? 0 : count;
}

/* Each length of prefix once: IPv4 first, the longest first. */
static uint32_t list_masks(const draft *draft, hg_mask masks[33 + 129])
{
    bool used[2][129] = {{false}};
    uint32_t count = 0;

    for (uint32_t i = 0; i < draft->pair_count; i++) {
        const hg_condition *condition = &draft->document.conditions[draft->pairs[i]];

        if (condition->key.key == HG_KEY_REMOTE_ADDRESS)
            used[condition->packed_length == 17][condition->packed[condition->packed_length - 1]] =
                true;
    }
    for (uint32_t six = 0; six < 2; six++)
        for (uint32_t bits = 129; bits > 0; bits--)
            if (used[six][bits - 1])
                masks[count++] = (hg_mask){six ? 6 : 4, bits - 1};
    return count;
}

/* The head: how long each section is, and so where it lies. */
static void lay_out(const draft *draft, hg_policy *head)
{
    const hg_document *document = &draft->document;
    hg_mask masks[33 + 129];
    size_t offset = sizeof *head;
    uint32_t always = 0;

    for (uint32_t i = 0; i < document->rule_count; i++)
        always += draft->under[i] == NOWHERE;
    memset(head, 0, sizeof *head);
    memcpy(head->magic, HG_POLICY_MAGIC, sizeof head->magic);
    head->format = HG_POLICY_FORMAT;
    head->flags = document->flags;
    head->budgets = place(&offset, document->budget_count, sizeof(hg_budget));
    head->rules = place(&offset, document->rule_count, sizeof(hg_rule));
    head->conditions = place(&offset, document->condition_count, 4);
    head->eaches = place(&offset, document->each_count, 4);
    head->pairs = place(&offset, draft->pair_count, sizeof(hg_pair));
    head->slots = place(&offset, slots_for(draft->pair_count), sizeof(hg_slot));
    head->candidates = place(&offset, document->rule_count - always, 4);
    head->always = place(&offset, always, 4);
    head->keys = place(&offset, key_count(draft), sizeof(hg_key));
    head->masks = place(&offset, list_masks(draft, masks), sizeof(hg_mask));
    head->exempt = place(&offset, document->exempt_count, sizeof(hg_string));
    head->strings = place(&offset, strings_length(draft), 1);
    head->length = offset;
}

/* ── Records ──────────────────────────────────────────────────────────────── */

/* The policy being written; `strings` is what of its strings is. */
typedef struct output {
    hg_policy *policy;
    uint32_t strings;
} output;

static void *section(const output *out, hg_section which)
{
    return (char *) out->policy + which.offset;
}

static hg_string add_string(output *out, hg_slice text)
{
    hg_string string = {out->strings, text.length};

    memcpy((char *) section(out, out->policy->strings) + out->strings, text.at, text.length);
    out->strings += text.length;
    return string;
}

static void write_budgets(const draft *draft, output *out)
{
    hg_budget *budgets = section(out, out->policy->budgets);

    for (uint32_t i = 0; i < draft->document.budget_count; i++) {
        hg_slice name = draft->document.names[i];

        budgets[i] = draft->document.budgets[i];
        budgets[i].key = hg_not_reserved(hg_hash(HG_BUDGET_SEED, name.at, name.length));
        budgets[i].name = add_string(out, name);
    }
}

static void write_rules(const draft *draft, output *out)
{
    const hg_document *document = &draft->document;
    uint32_t *conditions = section(out, out->policy->conditions);
    uint32_t *eaches = section(out, out->policy->eaches);

    memcpy(section(out, out->policy->rules), document->rules,
           document->rule_count * sizeof(hg_rule));
    for (uint32_t i = 0; i < document->condition_count; i++) {
        uint32_t key = document->conditions[i].key.system;

        conditions[i] = document->conditions[i].pair;
        if (key < HG_SYSTEM_KEYS)
            out->policy->system_keys |= 1u << key;
    }
    for (uint32_t i = 0; i < document->each_count; i++) {
        eaches[i] = document->eaches[i].key;
        if (eaches[i] < HG_SYSTEM_KEYS)
            out->policy->system_keys |= 1u << eaches[i];
    }
}

static void write_keys(const draft *draft, output *out)
{
    hg_key *keys = section(out, out->policy->keys);

    for (uint32_t i = 0; i < key_count(draft); i++) {
        keys[i].hash = key_hash(draft, i);
        keys[i].name = add_string(out, key_name(draft, i));
        keys[i].candidates = draft->counts[draft->pair_count + i];
    }
}

static void write_slot(output *out, uint64_t hash, uint32_t pair)
{
    hg_slot *slots = section(out, out->policy->slots);
    uint32_t last = out->policy->slots.count - 1;
    uint32_t at = (uint32_t) hash & last;

    while (slots[at].pair != 0)
        at = (at + 1) & last;
    slots[at] = (hg_slot){(uint32_t) (hash >> 32), pair + 1};
}

static void write_pairs(const draft *draft, output *out)
{
    hg_pair *pairs = section(out, out->policy->pairs);

    for (uint32_t i = 0; i < draft->pair_count; i++) {
        const hg_condition *condition = &draft->document.conditions[draft->pairs[i]];
        hg_slice value = hg_value_of(condition);

        pairs[i].hash = draft->hashes[i];
        pairs[i].key = condition->key.key;
        if (pairs[i].key == HG_KEY_REMOTE_ADDRESS)
            pairs[i].prefix = (value.length == 5 ? 4u : 6u) * 256 + condition->packed[value.length - 1];
        pairs[i].value = add_string(out, value);
        pairs[i].candidates = draft->counts[i];
        write_slot(out, draft->hashes[i], i);
    }
}

/* Rules go where they are found, in order; `counts` becomes the next place of each. */
static void write_candidates(draft *draft, output *out)
{
    hg_pair *pairs = section(out, out->policy->pairs);
    hg_key *keys = section(out, out->policy->keys);
    uint32_t *candidates = section(out, out->policy->candidates);
    uint32_t *always = section(out, out->policy->always);
    uint32_t first = 0;

    for (uint32_t i = 0; i < draft->pair_count + key_count(draft); i++) {
        uint32_t count = draft->counts[i];

        *(i < draft->pair_count ? &pairs[i].first_candidate
                                : &keys[i - draft->pair_count].first_candidate) = first;
        draft->counts[i] = first;
        first += count;
    }
    for (uint32_t i = 0; i < draft->document.rule_count; i++)
        if (draft->under[i] == NOWHERE)
            *always++ = i;
        else
            candidates[draft->counts[draft->under[i]]++] = i;
}

static void write_exempt(const draft *draft, output *out)
{
    hg_string *exempt = section(out, out->policy->exempt);

    for (uint32_t i = 0; i < draft->document.exempt_count; i++)
        exempt[i] = add_string(out, draft->document.exempt[i]);
}

/* In the order in which strings lie: names of budgets, of keys, values, usernames. */
static void write_policy(draft *draft, const hg_policy *head, uint64_t version, void *bytes)
{
    output out = {bytes, 0};
    hg_mask masks[33 + 129];

    memset(bytes, 0, head->length);
    memcpy(bytes, head, sizeof *head);
    out.policy->version = version;
    write_budgets(draft, &out);
    write_rules(draft, &out);
    write_keys(draft, &out);
    write_pairs(draft, &out);
    write_candidates(draft, &out);
    write_exempt(draft, &out);
    list_masks(draft, masks);
    memcpy(section(&out, head->masks), masks, head->masks.count * sizeof(hg_mask));
    out.policy->crc = hg_crc32(0, bytes, head->length);
}

/* ── From the start ───────────────────────────────────────────────────────── */

static uint32_t seen_for(uint32_t conditions)
{
    uint32_t count = MIN_SLOTS;

    while (count < 2 * conditions)
        count *= 2;
    return count;
}

static void *take_zeroed(hg_work *work, size_t count, size_t size)
{
    void *taken = hg_work_take(work, count, size);

    if (taken != NULL)
        memset(taken, 0, count * size);
    return taken;
}

static bool take_draft(draft *draft, hg_work *work)
{
    const hg_document *document = &draft->document;
    uint32_t conditions = document->condition_count;
    uint32_t names = conditions + document->each_count;
    uint32_t seen = seen_for(conditions);

    draft->seen_mask = seen - 1;
    return (draft->tags = hg_work_take(work, names, sizeof(hg_slice))) != NULL
           && (draft->pairs = hg_work_take(work, conditions, 4)) != NULL
           && (draft->hashes = hg_work_take(work, conditions, 8)) != NULL
           && (draft->named = take_zeroed(work, conditions, 4)) != NULL
           && (draft->under = hg_work_take(work, document->rule_count, 4)) != NULL
           && (draft->counts = take_zeroed(work, conditions + HG_SYSTEM_KEYS + names, 4)) != NULL
           && (draft->seen = take_zeroed(work, seen, 4)) != NULL;
}

/* What a document can come to at most: a condition has 9 bytes, an each-key 7, a rule 3. */
size_t hg_compile_work_bytes(size_t json_length)
{
    size_t conditions = json_length / 9 + 1;
    size_t names = conditions + json_length / 7 + 1;

    return sizeof(draft) + hg_document_work_bytes(json_length) + names * sizeof(hg_slice)
           + conditions * (4 + 8 + 4) + (json_length / 3 + 1) * 4
           + (conditions + HG_SYSTEM_KEYS + names) * 4 + 4 * (4 * conditions + MIN_SLOTS) + 8 * 16;
}

size_t hg_compile(const char *json, size_t json_length, uint64_t version, void *out,
                  size_t out_length, void *work, size_t work_length, char *error,
                  size_t error_length)
{
    hg_work memory = {work, work_length};
    draft *draft;
    hg_policy head;

    memory.at += (8 - (uintptr_t) work % 8) % 8;
    memory.left -= memory.left < 8 ? memory.left : (8 - (uintptr_t) work % 8) % 8;
    draft = take_zeroed(&memory, 1, sizeof *draft);
    if (draft == NULL) {
        hg_document none = {.error = error, .error_length = error_length};

        hg_fault(&none, "there is too little memory to read it");
        return 0;
    }
    draft->document.error = error;
    draft->document.error_length = error_length;
    if (!hg_document_read(&draft->document, json, json_length, &memory))
        return 0;
    if (!take_draft(draft, &memory)) {
        hg_fault(&draft->document, "there is too little memory to compile it");
        return 0;
    }
    find_keys(draft);
    find_pairs(draft);
    lay_out(draft, &head);
    if ((uintptr_t) out % 8 != 0 || head.length > out_length) {
        hg_fault(&draft->document, "comes to %llu bytes, and there is room for %zu",
                 (unsigned long long) head.length, out_length);
        return 0;
    }
    write_policy(draft, &head, version, out);
    return head.length;
}
