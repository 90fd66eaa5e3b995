/*
 * policy.c: whether bytes are a compiled policy. Whatever passes here is read without a look by
 * session.c, match.c and decide.c in processes that must not crash, so nothing is taken on trust,
 * the checksum least of all: it finds accidents, not malice.
 */
#include "layout.h"

/* What rules and budgets say about the whole, to be compared with what the head says. */
typedef struct checked {
    const hg_policy *policy;
    uint32_t named_keys;  /* bits of the system keys that rules name */
    uint32_t found_rules; /* that are candidates somewhere */
    uint8_t masks4[33];
    uint8_t masks6[129];
} checked;

static const char *const system_names[HG_SYSTEM_KEYS] = {
    "username", "database", "application_name", "remote_address", "query", "fingerprint"};

static bool section_fits(const hg_policy *policy, hg_section section, size_t size)
{
    return section.offset % 8 == 0 && section.offset >= sizeof(hg_policy)
           && section.offset <= policy->length
           && section.count <= (policy->length - section.offset) / size;
}

static const char *check_head(const hg_policy *policy, size_t length)
{
    static const uint8_t zero[4];
    const size_t crc_at = offsetof(hg_policy, crc);
    const char *bytes = (const char *) policy;
    uint32_t crc;

    if (length < sizeof(hg_policy))
        return "shorter than the head of a policy";
    if (memcmp(policy->magic, HG_POLICY_MAGIC, sizeof policy->magic) != 0)
        return "not a compiled policy";
    if (policy->format != HG_POLICY_FORMAT)
        return "it was compiled for another version: compile it again with this one";
    if (policy->length != length)
        return "not as long as it says: cut off, or with something appended";
    if (length % 8 != 0 || length > HG_MAX_POLICY_BYTES)
        return "a length that no policy has";
    crc = hg_crc32(0, bytes, crc_at);
    crc = hg_crc32(crc, zero, sizeof zero);
    crc = hg_crc32(crc, bytes + crc_at + 4, length - crc_at - 4);
    return crc == policy->crc ? NULL : "the checksum is wrong";
}

static const char *check_sections(const hg_policy *policy)
{
    const struct {
        hg_section section;
        size_t size;
        uint32_t most;
    } all[] = {
        {policy->budgets, sizeof(hg_budget), HG_MAX_BUDGETS},
        {policy->rules, sizeof(hg_rule), HG_MAX_RULES},
        {policy->conditions, 4, HG_MAX_RULES * HG_MAX_CONDITIONS},
        {policy->eaches, 4, HG_MAX_RULES * HG_MAX_EACHES},
        {policy->pairs, sizeof(hg_pair), HG_MAX_RULES * HG_MAX_CONDITIONS},
        {policy->slots, sizeof(hg_slot), HG_MAX_RULES * HG_MAX_CONDITIONS * 2},
        {policy->candidates, 4, HG_MAX_RULES},
        {policy->always, 4, HG_MAX_RULES},
        {policy->keys, sizeof(hg_key), HG_MAX_RULES * (HG_MAX_CONDITIONS + HG_MAX_EACHES)},
        {policy->masks, sizeof(hg_mask), 33 + 129},
        {policy->exempt, sizeof(hg_string), HG_MAX_EXEMPT},
        {policy->identity, sizeof(hg_identity), 1},
        {policy->gates, sizeof(hg_gate), HG_MAX_GATES},
        {policy->strings, 1, HG_MAX_POLICY_BYTES},
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!section_fits(policy, all[i].section, all[i].size))
            return "a section lies outside of the policy";
        if (all[i].section.count > all[i].most)
            return "a section has more elements than there may be";
    }
    return NULL;
}

static bool string_fits(const hg_policy *policy, hg_string string, uint32_t least, uint32_t most)
{
    return string.length >= least && string.length <= most && string.offset <= policy->strings.count
           && string.length <= policy->strings.count - string.offset;
}

/* first … first + count lies within a list of `all` elements. */
static bool range_fits(uint32_t first, uint32_t count, uint32_t all)
{
    return first <= all && count <= all - first;
}

static bool budget_name_fits(const char *name, uint32_t length)
{
    for (uint32_t i = 0; i < length; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');

        if (!plain && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return true;
}

static bool budget_limits_fit(const hg_budget *budget)
{
    const uint32_t both = HG_SET_CONCURRENCY | HG_SET_MAX_WORKERS;

    return budget->set < HG_SET_WARNING * 2 && (budget->set & both) != both
           && budget->rate_mpct <= 100000 && budget->capacity_mpcts <= 6000000
           && budget->burst_mpcts <= 6000000 && budget->concurrency_mpct <= 100000
           && budget->max_workers <= 65535 && budget->warning_mpct <= 100000
           && budget->max_delay_ms <= 10000 && budget->penalty_ms <= 1000
           && budget->max_delayed <= 1000 && budget->expires_at_ms >= 0;
}

static const char *check_budgets(const hg_policy *policy)
{
    const uint32_t known = HG_BUDGET_WHEN_UNHEALTHY | HG_BUDGET_BLOCKS_INSIDE;
    uint32_t flags = 0;

    for (uint32_t i = 0; i < policy->budgets.count; i++) {
        const hg_budget *budget = &hg_budgets_of(policy)[i];
        const char *name = hg_strings_of(policy) + budget->name.offset;

        if (!string_fits(policy, budget->name, 1, HG_MAX_NAME_BYTES)
            || !budget_name_fits(name, budget->name.length))
            return "a budget has no proper name";
        if (budget->key != hg_not_reserved(hg_hash(HG_BUDGET_SEED, name, budget->name.length)))
            return "a budget's key is not that of its name";
        if (budget->mode != HG_MODE_WARN && budget->mode != HG_MODE_ENFORCE)
            return "a budget has no such mode";
        if (!budget_limits_fit(budget) || (budget->flags & ~known) != 0)
            return "a budget has a limit out of range";
        if (budget->flags & HG_BUDGET_WHEN_UNHEALTHY)
            flags |= HG_POLICY_BY_HEALTH;
        if (budget->expires_at_ms != 0)
            flags |= HG_POLICY_EXPIRES;
    }
    if ((policy->flags & (HG_POLICY_BY_HEALTH | HG_POLICY_EXPIRES)) != flags)
        return "the flags are not those of the budgets";
    return policy->flags < HG_POLICY_UNKNOWN_BITES * 2 ? NULL : "a flag that is not known";
}

static const char *check_keys(const hg_policy *policy)
{
    const hg_key *keys = hg_keys_of(policy);
    const char *strings = hg_strings_of(policy);

    if (policy->keys.count < HG_SYSTEM_KEYS)
        return "the keys of the server are missing";
    for (uint32_t i = 0; i < policy->keys.count; i++) {
        const hg_key *key = &keys[i];
        bool system = i < HG_SYSTEM_KEYS;
        uint64_t seed = system ? HG_SYSTEM_KEY_SEED : HG_TAG_KEY_SEED;

        if (!string_fits(policy, key->name, 1, HG_MAX_KEY_BYTES))
            return "a key has no proper name";
        if (system && !hg_string_is(policy, key->name, system_names[i], strlen(system_names[i])))
            return "the keys of the server are not in order";
        if (key->hash != hg_hash(seed, strings + key->name.offset, key->name.length))
            return "a key's hash is not that of its name";
        if (i > HG_SYSTEM_KEYS && hg_compare_strings(policy, keys[i - 1].name, key->name) >= 0)
            return "the tags are not sorted";
        if (!range_fits(key->first_candidate, key->candidates, policy->candidates.count))
            return "a key has candidates outside of the list";
    }
    return NULL;
}

static const char *check_masks(checked *seen)
{
    const hg_policy *policy = seen->policy;
    const hg_mask *masks = hg_masks_of(policy);

    for (uint32_t i = 0; i < policy->masks.count; i++) {
        uint32_t most = masks[i].family == 4 ? 32 : 128;

        if ((masks[i].family != 4 && masks[i].family != 6) || masks[i].bits > most)
            return "a mask that no address has";
        if (i > 0
            && (masks[i - 1].family > masks[i].family
                || (masks[i - 1].family == masks[i].family && masks[i - 1].bits <= masks[i].bits)))
            return "the masks are not sorted";
        (masks[i].family == 4 ? seen->masks4 : seen->masks6)[masks[i].bits] = 1;
    }
    return NULL;
}

/* The value of an address: masked, then its bits, under a mask that is looked for. */
static bool address_fits(const checked *seen, const hg_pair *pair, const uint8_t *value)
{
    uint32_t family = pair->prefix / 256;
    uint32_t bits = pair->prefix % 256;
    uint32_t bytes = family == 4 ? 4 : 16;
    uint8_t masked[16];

    if ((family != 4 && family != 6) || bits > bytes * 8 || pair->value.length != bytes + 1)
        return false;
    if (value[bytes] != bits || !(family == 4 ? seen->masks4 : seen->masks6)[bits])
        return false;
    memcpy(masked, value, bytes);
    hg_mask_address(masked, bytes, bits);
    return memcmp(masked, value, bytes) == 0;
}

static const char *check_pairs(const checked *seen)
{
    const hg_policy *policy = seen->policy;

    for (uint32_t i = 0; i < policy->pairs.count; i++) {
        const hg_pair *pair = &hg_pairs_of(policy)[i];
        const char *value = hg_strings_of(policy) + pair->value.offset;

        if (pair->key >= policy->keys.count)
            return "a pair of a key that there is not";
        if (!string_fits(policy, pair->value, 0, HG_MAX_VALUE_BYTES))
            return "a pair's value lies outside of the strings";
        if (pair->hash != hg_hash(hg_keys_of(policy)[pair->key].hash, value, pair->value.length))
            return "a pair's hash is not that of its value";
        if (pair->key == HG_KEY_REMOTE_ADDRESS ? !address_fits(seen, pair, (const uint8_t *) value)
                                               : pair->prefix != 0)
            return "a pair's address is not one";
        if ((pair->key == HG_KEY_QUERY || pair->key == HG_KEY_FINGERPRINT)
            && pair->value.length != 8)
            return "a query id or fingerprint that is not 8 bytes";
        if (!range_fits(pair->first_candidate, pair->candidates, policy->candidates.count))
            return "a pair has candidates outside of the list";
    }
    return NULL;
}

/* A rule's conditions are of ascending keys, so there is at most one for a key. */
static const char *check_rule(checked *seen, const hg_rule *rule)
{
    const hg_policy *policy = seen->policy;
    const uint32_t *conditions = hg_conditions_of(policy) + rule->first_condition;
    const uint32_t *eaches = hg_eaches_of(policy) + rule->first_each;
    uint32_t prefix = 0;

    if (rule->conditions > HG_MAX_CONDITIONS || rule->eaches > HG_MAX_EACHES
        || !range_fits(rule->first_condition, rule->conditions, policy->conditions.count)
        || !range_fits(rule->first_each, rule->eaches, policy->eaches.count))
        return "a rule's conditions lie outside of their list";
    for (uint32_t i = 0; i < rule->conditions; i++) {
        const hg_pair *pair = hg_pairs_of(policy);

        if (conditions[i] >= policy->pairs.count)
            return "a condition that there is not";
        pair += conditions[i];
        if (i > 0 && hg_pairs_of(policy)[conditions[i - 1]].key >= pair->key)
            return "a rule's conditions are not sorted";
        if (pair->key == HG_KEY_REMOTE_ADDRESS)
            prefix = pair->prefix % 256 + 1;
        if (pair->key < HG_SYSTEM_KEYS)
            seen->named_keys |= 1u << pair->key;
    }
    for (uint32_t i = 0; i < rule->eaches; i++) {
        if (eaches[i] >= policy->keys.count || (i > 0 && eaches[i - 1] >= eaches[i]))
            return "a rule's each-keys are not sorted";
        if (eaches[i] < HG_SYSTEM_KEYS)
            seen->named_keys |= 1u << eaches[i];
    }
    return rule->prefix == prefix ? NULL : "a rule's prefix is not that of its address";
}

static const char *check_rules(checked *seen)
{
    const hg_policy *policy = seen->policy;
    const hg_rule *rules = hg_rules_of(policy);

    for (uint32_t i = 0; i < policy->rules.count; i++) {
        const char *fault = check_rule(seen, &rules[i]);

        if (fault != NULL)
            return fault;
        if (rules[i].budget >= policy->budgets.count)
            return "a rule of a budget that there is not";
        if (i > 0 && rules[i - 1].budget > rules[i].budget)
            return "the rules are not grouped by budget";
    }
    if (seen->named_keys != policy->system_keys)
        return "the keys that rules name are not those it says";
    return NULL;
}

typedef enum place { UNDER_PAIR, UNDER_KEY, ALWAYS } place;

static bool belongs(const hg_policy *policy, const hg_rule *rule, place where, uint32_t index)
{
    const uint32_t *conditions = hg_conditions_of(policy) + rule->first_condition;

    if (where == ALWAYS)
        return rule->conditions == 0 && rule->eaches == 0;
    if (where == UNDER_KEY)
        return rule->conditions == 0 && rule->eaches > 0
               && hg_eaches_of(policy)[rule->first_each] == index;
    for (uint32_t i = 0; i < rule->conditions; i++)
        if (conditions[i] == index)
            return true;
    return false;
}

static bool list_fits(checked *seen, const uint32_t *list, uint32_t count, place where,
                      uint32_t index)
{
    const hg_policy *policy = seen->policy;

    for (uint32_t i = 0; i < count; i++) {
        if (list[i] >= policy->rules.count || (i > 0 && list[i - 1] >= list[i]))
            return false;
        if (!belongs(policy, &hg_rules_of(policy)[list[i]], where, index))
            return false;
    }
    seen->found_rules += count;
    return true;
}

/* Each rule lies in one list, under something that it asks for. */
static const char *check_candidates(checked *seen)
{
    static const char fault[] = "a list of candidates names a rule that does not belong there";
    const hg_policy *policy = seen->policy;
    const hg_pair *pairs = hg_pairs_of(policy);
    const hg_key *keys = hg_keys_of(policy);
    const uint32_t *all = hg_candidates_of(policy);

    for (uint32_t i = 0; i < policy->pairs.count; i++)
        if (!list_fits(seen, all + pairs[i].first_candidate, pairs[i].candidates, UNDER_PAIR, i))
            return fault;
    for (uint32_t i = 0; i < policy->keys.count; i++)
        if (!list_fits(seen, all + keys[i].first_candidate, keys[i].candidates, UNDER_KEY, i))
            return fault;
    if (!list_fits(seen, hg_always_of(policy), policy->always.count, ALWAYS, 0))
        return fault;
    return seen->found_rules == policy->rules.count ? NULL : "a rule that nothing leads to";
}

/* Every pair is found by a probe, which finds itself and not another: so no two are the same. */
static const char *check_slots(const hg_policy *policy)
{
    const hg_slot *slots = hg_slots_of(policy);
    const hg_pair *pairs = hg_pairs_of(policy);
    uint32_t count = policy->slots.count;
    uint32_t used = 0;

    if ((count & (count - 1)) != 0 || count / 2 < policy->pairs.count)
        return "the slots are not a power of two, or too few";
    for (uint32_t i = 0; i < count; i++) {
        if (slots[i].pair > policy->pairs.count)
            return "a slot of a pair that there is not";
        if (slots[i].pair != 0)
            used++;
    }
    if (used != policy->pairs.count)
        return "not as many slots are in use as there are pairs";
    for (uint32_t i = 0; i < policy->pairs.count; i++) {
        const hg_pair *pair = &pairs[i];
        hg_string name = hg_keys_of(policy)[pair->key].name;
        const char *strings = hg_strings_of(policy);

        if (hg_find_pair(policy, pair->hash, pair->key, strings + name.offset, name.length,
                         strings + pair->value.offset, pair->value.length)
            != i)
            return "a pair that no probe finds";
    }
    return NULL;
}

static const char *check_exempt(const hg_policy *policy)
{
    for (uint32_t i = 0; i < policy->exempt.count; i++)
        if (!string_fits(policy, hg_exempt_of(policy)[i], 0, HG_MAX_VALUE_BYTES))
            return "an exempt username lies outside of the strings";
    return NULL;
}

static const char *check_gates(const hg_policy *policy)
{
    const hg_gate *gates = hg_gates_of(policy);

    for (uint32_t i = 0; i < policy->gates.count; i++) {
        if (!string_fits(policy, gates[i].target, 1, HG_MAX_IDENTITY_BYTES)
            || !string_fits(policy, gates[i].rule, 0, HG_MAX_VALUE_BYTES)
            || !string_fits(policy, gates[i].reason, 0, HG_MAX_VALUE_BYTES))
            return "a rule on clients lies outside of the strings";
        if (gates[i].kind < HG_GATE_REJECTS || gates[i].kind > HG_GATE_EXEMPTS_PARTLY)
            return "a rule on clients is of no kind";
        if (i > 0 && gates[i - 1].token > gates[i].token)
            return "rules on clients are not in order";
    }
    return policy->identity.count == 0 ? NULL : hg_identity_fault(hg_identity_of(policy));
}

/* The order matters: each step reads only what the ones before it have found to be in bounds. */
const char *hg_policy_check(const void *bytes, size_t length)
{
    checked seen = {.policy = bytes};
    const char *fault;

    if ((uintptr_t) bytes % 8 != 0)
        return "the policy is not aligned";
    if ((fault = check_head(seen.policy, length)) || (fault = check_sections(seen.policy))
        || (fault = check_budgets(seen.policy)) || (fault = check_keys(seen.policy))
        || (fault = check_masks(&seen)) || (fault = check_pairs(&seen))
        || (fault = check_rules(&seen)) || (fault = check_candidates(&seen))
        || (fault = check_slots(seen.policy)) || (fault = check_gates(seen.policy)))
        return fault;
    return check_exempt(seen.policy);
}

/* ── As text ──────────────────────────────────────────────────────────────── */

/* Of six bits; 64 and more: it is none of base64's. */
static uint32_t digit_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (uint32_t) (c - 'A');
    if (c >= 'a' && c <= 'z')
        return (uint32_t) (c - 'a') + 26;
    if (c >= '0' && c <= '9')
        return (uint32_t) (c - '0') + 52;
    return c == '+' ? 62 : c == '/' ? 63 : 64;
}

const char *hg_policy_decode(const char *text, size_t length, void *out, size_t *out_length)
{
    static const char fault[] = "it is not base64, or not all of it is there";
    uint32_t bits = 0, held = 0;
    uint8_t *to = out;

    if (length > 0 && text[0] == '{')
        return "it is a JSON document that has not been compiled";
    if (length % 4 != 0)
        return fault;
    for (int padding = 0; padding < 2 && length > 0 && text[length - 1] == '='; padding++)
        length--;
    for (size_t i = 0; i < length; i++) {
        uint32_t digit = digit_of(text[i]);

        if (digit > 63)
            return fault;
        bits = (bits << 6 | digit) & 0x3fff;
        held += 6;
        if (held >= 8) {
            held -= 8;
            *to++ = (uint8_t) (bits >> held);
        }
    }
    if ((bits & ((1u << held) - 1)) != 0)
        return fault; /* the last digit says more than there is room for */
    *out_length = (size_t) (to - (uint8_t *) out);
    return hg_policy_check(out, *out_length);
}
