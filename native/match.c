/*
 * match.c: which budgets a statement falls under (R116–R121). One look-up per pair that the
 * statement brings, however many rules there are; then, in the order of the document, the rules
 * that those pairs lead to, each decided as a whole.
 *
 * The hot path: nothing here allocates, and nothing grows with the number of rules that do not
 * concern the statement.
 */
#include "layout.h"

/* Rules that something leads to, ascending. */
typedef struct list {
    const uint32_t *at, *end;
} list;

/* Lists: pairs, system keys and tags for each, and the rules that always apply. */
#define MAX_LISTS (HG_MAX_PRESENT + HG_SYSTEM_KEYS + HG_MAX_TAGS + 1)

#define MAX_LEFT 16u

typedef struct finding {
    const hg_policy *policy;
    const hg_session *session;
    const hg_statement *statement;
    const hg_tags *tags; /* NULL: none were read */
    uint64_t fingerprint; /* if the session needs it */
    int64_t wall_ms;
    int healthy;
    uint32_t presents;
    uint32_t lists;
    /* Prefixes: rules with a shorter one do not apply. Only an enforced budget hides an enforced
     * one: to watch must not be to let through. */
    uint32_t longest, longest_enforced;
    uint32_t left_budget, lefts; /* whose buckets were last left out, and how many are remembered */
    uint64_t left[MAX_LEFT];
    uint64_t presence; /* a bit for each pair, by its lowest six: most that are missing show here */
    uint32_t present[HG_MAX_PRESENT];
    list list[MAX_LISTS];
} finding;

static inline void add_list(finding *found, uint32_t first, uint32_t count)
{
    const uint32_t *at = hg_candidates_of(found->policy) + first;

    if (count > 0)
        found->list[found->lists++] = (list){at, at + count};
}

static inline void add_pair(finding *found, uint32_t pair)
{
    const hg_pair *record;

    if (pair == HG_NO_PAIR)
        return;
    record = &hg_pairs_of(found->policy)[pair];
    found->present[found->presents++] = pair;
    found->presence |= UINT64_C(1) << (pair & 63);
    add_list(found, record->first_candidate, record->candidates);
}

static void add_number(finding *found, uint32_t key, uint64_t number, hg_matches *matches)
{
    uint8_t bytes[8];
    uint64_t hash;

    hg_put_u64(bytes, number);
    hash = hg_hash_inline(hg_keys_of(found->policy)[key].hash, bytes, sizeof bytes);
    add_pair(found, hg_find_pair(found->policy, hash, key, NULL, 0, bytes, sizeof bytes));
    matches->probes++;
}

/* The tag's key, or NULL: among sorted names, and only where a rule is for each value of a tag. */
static const hg_key *key_of_tag(const hg_policy *policy, const char *name, size_t length)
{
    const hg_key *keys = hg_keys_of(policy);
    const char *strings = hg_strings_of(policy);
    uint32_t low = HG_SYSTEM_KEYS;
    uint32_t high = policy->keys.count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        hg_string other = keys[middle].name;
        int order = hg_compare_bytes(name, length, strings + other.offset, other.length);

        if (order == 0)
            return &keys[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static void add_tags(finding *found, const hg_tags *tags, hg_matches *matches)
{
    const hg_policy *policy = found->policy;

    for (uint32_t i = 0; i < tags->count; i++) {
        const hg_tag *tag = &tags->tags[i];
        const char *name = tags->text + tag->key_offset;
        const char *value = tags->text + tag->value_offset;
        uint64_t hash = hg_hash_inline(HG_TAG_KEY_SEED, name, tag->key_length);

        matches->probes++;
        if ((found->session->tag_keys & hg_key_bit(hash)) == 0)
            continue;
        hash = hg_hash_inline(hash, value, tag->value_length);
        add_pair(found, hg_find_pair(policy, hash, HG_SYSTEM_KEYS, name, tag->key_length, value,
                                     tag->value_length));
        if (found->session->each_tags) {
            const hg_key *key = key_of_tag(policy, name, tag->key_length);

            if (key != NULL)
                add_list(found, key->first_candidate, key->candidates);
        }
    }
    found->tags = tags;
    matches->ignored_tags = tags->ignored;
    matches->duplicate_tags = tags->duplicates;
}

static bool has_value(const finding *found, uint32_t key)
{
    if (key < HG_SESSION_KEYS)
        return found->session->each_hash[key] != 0;
    if (key == HG_KEY_QUERY)
        return found->statement->query_id != 0;
    return found->session->needs_fingerprint;
}

/* All pairs of the statement that some rule names, and the rules that they lead to. */
static void gather(finding *found, const hg_tags *tags, hg_matches *matches)
{
    const hg_policy *policy = found->policy;
    const hg_session *session = found->session;
    const hg_statement *statement = found->statement;
    const hg_key *keys = hg_keys_of(policy);

    for (uint32_t i = 0; i < session->presents; i++)
        add_pair(found, session->present[i]);
    if (session->needs_tags && tags != NULL)
        add_tags(found, tags, matches);
    if (session->needs_query && statement->query_id != 0)
        add_number(found, HG_KEY_QUERY, statement->query_id, matches);
    if (session->needs_fingerprint) {
        found->fingerprint = statement->fingerprinted
                                 ? statement->fingerprint
                                 : hg_fingerprint(statement->text, statement->length,
                                                  statement->dialect);
        add_number(found, HG_KEY_FINGERPRINT, found->fingerprint, matches);
    }
    for (uint32_t key = 0; key < HG_SYSTEM_KEYS; key++)
        if (keys[key].candidates > 0 && has_value(found, key))
            add_list(found, keys[key].first_candidate, keys[key].candidates);
    if (policy->always.count > 0)
        found->list[found->lists++] = (list){hg_always_of(policy),
                                             hg_always_of(policy) + policy->always.count};
}

static inline bool is_present(const finding *found, uint32_t pair)
{
    if ((found->presence >> (pair & 63) & 1) == 0)
        return false;
    for (uint32_t i = 0; i < found->presents; i++)
        if (found->present[i] == pair)
            return true;
    return false;
}

static const hg_tag *tag_named(const finding *found, hg_string name)
{
    const hg_tags *tags = found->tags;

    for (uint32_t i = 0; tags != NULL && i < tags->count; i++)
        if (hg_string_is(found->policy, name, tags->text + tags->tags[i].key_offset,
                         tags->tags[i].key_length))
            return &tags->tags[i];
    return NULL;
}

/* Whether its budget takes part at all: it has not expired, and does not rest (R147). */
static bool in_force(const finding *found, const hg_rule *rule)
{
    const hg_budget *budget = &hg_budgets_of(found->policy)[rule->budget];
    uint32_t flags = found->policy->flags;

    if (budget->expires_at_ms != 0 && found->wall_ms >= budget->expires_at_ms)
        return false;
    if (!(budget->flags & HG_BUDGET_WHEN_UNHEALTHY) || found->healthy == 0)
        return true;
    return found->healthy < 0 && (flags & HG_POLICY_UNKNOWN_BITES);
}

static inline bool fits(const finding *found, const hg_rule *rule)
{
    const hg_policy *policy = found->policy;
    const uint32_t *conditions = hg_conditions_of(policy) + rule->first_condition;
    const uint32_t *eaches = hg_eaches_of(policy) + rule->first_each;

    for (uint32_t i = 0; i < rule->conditions; i++)
        if (!is_present(found, conditions[i]))
            return false;
    for (uint32_t i = 0; i < rule->eaches; i++)
        if (eaches[i] < HG_SYSTEM_KEYS ? !has_value(found, eaches[i])
                                       : !tag_named(found, hg_keys_of(policy)[eaches[i]].name))
            return false;
    return !(policy->flags & (HG_POLICY_EXPIRES | HG_POLICY_BY_HEALTH)) || in_force(found, rule);
}

/* Whether it could match what a text that is cut goes on to say. */
static bool may_fit(const finding *found, const hg_rule *rule)
{
    const hg_policy *policy = found->policy;
    const uint32_t *conditions = hg_conditions_of(policy) + rule->first_condition;
    const uint32_t *eaches = hg_eaches_of(policy) + rule->first_each;

    for (uint32_t i = 0; i < rule->conditions; i++)
        if (hg_pairs_of(policy)[conditions[i]].key < HG_KEY_FINGERPRINT
            && !is_present(found, conditions[i]))
            return false;
    for (uint32_t i = 0; i < rule->eaches; i++)
        if (eaches[i] < HG_SYSTEM_KEYS && !has_value(found, eaches[i]))
            return false;
    return in_force(found, rule);
}

static bool enforces(const finding *found, const hg_rule *rule)
{
    return hg_budgets_of(found->policy)[rule->budget].mode == HG_MODE_ENFORCE;
}

static void note_prefix(finding *found, const hg_rule *rule)
{
    if (rule->prefix > found->longest)
        found->longest = rule->prefix;
    if (enforces(found, rule))
        found->longest_enforced = rule->prefix;
}

/* The longest prefix among the rules that match as a whole; with at most one prefix that the
 * session's address lies in, there is nothing to choose from. */
static void find_longest(finding *found)
{
    const hg_rule *rules = hg_rules_of(found->policy);

    if (found->session->addresses < 2)
        return;
    for (uint32_t i = 0; i < found->lists; i++)
        for (const uint32_t *at = found->list[i].at; at < found->list[i].end; at++)
            if (rules[*at].prefix > found->longest_enforced && fits(found, &rules[*at]))
                note_prefix(found, &rules[*at]);
}

static bool hidden(const finding *found, const hg_rule *rule)
{
    return rule->prefix != 0
           && rule->prefix < (enforces(found, rule) ? found->longest_enforced : found->longest);
}

typedef struct label {
    char *bytes;
    uint32_t length;
} label;

static void put(label *out, const char *bytes, size_t length)
{
    size_t room = HG_LABEL_BYTES - out->length;
    size_t count = length < room ? length : room;

    memcpy(out->bytes + out->length, bytes, count);
    out->length += (uint32_t) count;
}

static void put_hex(label *out, uint64_t number)
{
    char digits[16];

    for (int i = 0; i < 16; i++)
        digits[i] = "0123456789abcdef"[number >> (60 - 4 * i) & 15];
    put(out, digits, sizeof digits);
}

/* One each-key's part of the bucket's key and label. There is a value, but for a tag of a text that is
 * cut: that is empty. */
static uint64_t add_each(const finding *found, uint32_t key, label *out)
{
    const hg_session *session = found->session;
    const hg_key *record = &hg_keys_of(found->policy)[key];
    const char *name = hg_strings_of(found->policy) + record->name.offset;
    uint64_t number;
    uint8_t bytes[8];

    if (key < HG_SESSION_KEYS) {
        put(out, session->each_label[key], session->each_label_length[key]);
        return session->each_hash[key];
    }
    put(out, name, record->name.length);
    put(out, "=", 1);
    if (key >= HG_SYSTEM_KEYS) {
        const hg_tag *tag = tag_named(found, record->name);
        const char *value = tag == NULL ? "" : found->tags->text + tag->value_offset;
        size_t length = tag == NULL ? 0 : tag->value_length;

        put(out, value, length);
        return hg_not_reserved(hg_hash_inline(record->hash, value, length));
    }
    number = key == HG_KEY_QUERY ? found->statement->query_id : found->fingerprint;
    put_hex(out, number);
    hg_put_u64(bytes, number);
    return hg_not_reserved(hg_hash_inline(record->hash, bytes, sizeof bytes));
}

/* The next place among the matches is the label's until it is known that the bucket is a new one. */
static uint64_t bucket_of(const finding *found, const hg_rule *rule, label *out)
{
    const uint32_t *eaches = hg_eaches_of(found->policy) + rule->first_each;
    uint64_t bucket = hg_budgets_of(found->policy)[rule->budget].key;

    for (uint32_t i = 0; i < rule->eaches; i++) {
        if (i > 0)
            put(out, ",", 1);
        bucket = hg_bucket_of(bucket, add_each(found, eaches[i], out));
    }
    return bucket;
}

/* Rules come in order, so those of one budget come together, and its buckets need not be remembered
 * beyond it. With more than MAX_LEFT of them, some may count twice. */
static bool is_left(finding *found, uint32_t budget, uint64_t bucket)
{
    if (found->left_budget != budget)
        found->lefts = 0;
    found->left_budget = budget;
    for (uint32_t i = 0; i < found->lefts; i++)
        if (found->left[i] == bucket)
            return true;
    if (found->lefts < MAX_LEFT)
        found->left[found->lefts++] = bucket;
    return false;
}

/* Rules come in order, but for those of a text that is cut. */
static bool has_bucket(const finding *found, const hg_matches *matches, uint32_t budget,
                       uint64_t bucket)
{
    for (uint32_t i = matches->count;
         i > 0 && (found->statement->cut || matches->at[i - 1].budget == budget); i--)
        if (matches->at[i - 1].bucket == bucket)
            return true;
    return false;
}

static void apply(finding *found, uint32_t index, hg_matches *matches)
{
    const hg_rule *rule = &hg_rules_of(found->policy)[index];
    char spare[HG_LABEL_BYTES];
    bool full = matches->count == HG_MAX_MATCHES;
    hg_match_one *one = &matches->at[full ? 0 : matches->count];
    label out = {full ? spare : one->label, 0};
    uint64_t bucket = bucket_of(found, rule, &out);

    if (has_bucket(found, matches, rule->budget, bucket))
        return;
    if (full) {
        matches->left_out += !is_left(found, rule->budget, bucket);
        return;
    }
    one->budget = rule->budget;
    one->rule = index;
    one->bucket = bucket;
    one->label_length = (uint8_t) out.length;
    matches->count++;
}

/* Takes the lowest rule off the lists; they are few, so looking at each is quicker than a heap. */
static inline uint32_t next_rule(finding *found)
{
    uint32_t lowest = UINT32_MAX;
    uint32_t from = 0;

    for (uint32_t i = 0; i < found->lists; i++)
        if (*found->list[i].at < lowest) {
            lowest = *found->list[i].at;
            from = i;
        }
    if (++found->list[from].at == found->list[from].end)
        found->list[from] = found->list[--found->lists];
    return lowest;
}

/* All that the rest of the text could lead to: none of it may go unmatched because it is out of sight.
 * None hides another, and those that match by what is known have come first. */
static void apply_unseen(finding *found, hg_matches *matches)
{
    const hg_rule *rules = hg_rules_of(found->policy);

    found->left_budget = found->lefts = 0;
    for (uint32_t i = 0; i < found->policy->rules.count; i++)
        if (may_fit(found, &rules[i]) && (hidden(found, &rules[i]) || !fits(found, &rules[i])))
            apply(found, i, matches);
}

void hg_match_tags(const hg_policy *policy, const hg_session *session,
                   const hg_statement *statement, int64_t wall_ms, int healthy, const hg_tags *tags,
                   hg_matches *matches)
{
    finding found;

    matches->count = matches->left_out = 0;
    matches->ignored_tags = matches->duplicate_tags = 0;
    matches->probes = session->probes;
    matches->client = UINT32_MAX;
    matches->gate = HG_NO_GATE;
    if (!session->may_match)
        return;
    found.policy = policy;
    found.session = session;
    found.statement = statement;
    found.tags = NULL;
    found.wall_ms = wall_ms;
    found.healthy = healthy;
    found.presents = found.lists = found.longest = found.longest_enforced = 0;
    found.left_budget = found.lefts = 0;
    found.presence = 0;
    gather(&found, tags, matches);
    find_longest(&found);
    while (found.lists > 0) {
        uint32_t index = next_rule(&found);
        const hg_rule *rule = &hg_rules_of(policy)[index];

        if (!hidden(&found, rule) && fits(&found, rule))
            apply(&found, index, matches);
    }
    if (statement->cut)
        apply_unseen(&found, matches);
}

void hg_match(const hg_policy *policy, const hg_session *session, const hg_statement *statement,
              int64_t wall_ms, int healthy, hg_tags *scratch, hg_matches *matches)
{
    if (session->may_match && session->needs_tags && scratch != NULL)
        hg_tags_read(statement->text, statement->length, statement->dialect, scratch);
    hg_match_tags(policy, session, statement, wall_ms, healthy, scratch, matches);
}
