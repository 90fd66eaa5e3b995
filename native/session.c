/*
 * session.c: what a session brings to every statement, found once. Which of its own pairs some
 * rule names, and which rules that leaves: of ten thousand, mostly none, and then hg_match has
 * nothing to do.
 */
#include "layout.h"

typedef struct value {
    const void *bytes; /* NULL: there is none */
    size_t length;
} value;

static value text_value(const char *text)
{
    return (value){text, text == NULL ? 0 : strlen(text)};
}

static value value_of(const hg_client *client, uint32_t key)
{
    switch (key) {
    case HG_KEY_USERNAME:
        return text_value(client->username);
    case HG_KEY_DATABASE:
        return text_value(client->database);
    case HG_KEY_APPLICATION_NAME:
        return text_value(client->application_name);
    default:
        if (client->family != 4 && client->family != 6)
            return (value){NULL, 0};
        return (value){client->address, client->family == 4 ? 4 : 16};
    }
}

static size_t put(char *out, size_t at, size_t room, const char *bytes, size_t length)
{
    size_t fits = length < room - at ? length : room - at;

    memcpy(out + at, bytes, fits);
    return at + fits;
}

static size_t put_number(char *out, size_t at, size_t room, uint32_t number, uint32_t base)
{
    char digits[8];
    size_t first = sizeof digits;

    do {
        digits[--first] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number > 0);
    return put(out, at, room, digits + first, sizeof digits - first);
}

/* The longest run of at least two zero groups, the first of several, is written "::". */
static int longest_zeroes(const uint8_t *address, int *length)
{
    int best = -1;

    *length = 1;
    for (int first = 0; first < 8; first++) {
        int last = first;

        while (last < 8 && address[2 * last] == 0 && address[2 * last + 1] == 0)
            last++;
        if (last - first > *length) {
            *length = last - first;
            best = first;
        }
    }
    return best;
}

static size_t address6_text(const uint8_t *address, char *out, size_t room)
{
    int zeroes;
    int first = longest_zeroes(address, &zeroes);
    size_t at = 0;

    for (int i = 0; i < 8; i++) {
        if (i == first) {
            at = put(out, at, room, "::", 2);
            i += zeroes - 1;
            continue;
        }
        if (i > 0 && i != first + zeroes)
            at = put(out, at, room, ":", 1);
        at = put_number(out, at, room, (uint32_t) (address[2 * i] << 8 | address[2 * i + 1]), 16);
    }
    return at;
}

size_t hg_address_text(uint8_t family, const uint8_t *address, char *out, size_t room)
{
    size_t at = 0;

    if (family != 4)
        return address6_text(address, out, room);
    for (int i = 0; i < 4; i++) {
        if (i > 0)
            at = put(out, at, room, ".", 1);
        at = put_number(out, at, room, address[i], 10);
    }
    return at;
}

static void note_each(const hg_policy *policy, const hg_client *client, uint32_t key, value given,
                      hg_session *session)
{
    const hg_key *record = &hg_keys_of(policy)[key];
    char *label = session->each_label[key];
    size_t length;

    session->each_hash[key] = hg_not_reserved(hg_hash(record->hash, given.bytes, given.length));
    length = put(label, 0, HG_LABEL_BYTES, hg_strings_of(policy) + record->name.offset,
                 record->name.length);
    length = put(label, length, HG_LABEL_BYTES, "=", 1);
    if (key == HG_KEY_REMOTE_ADDRESS)
        length += hg_address_text(client->family, given.bytes, label + length,
                                  HG_LABEL_BYTES - length);
    else
        length = put(label, length, HG_LABEL_BYTES, given.bytes, given.length);
    session->each_label_length[key] = (uint8_t) length;
}

static void look_up(const hg_policy *policy, uint32_t key, const void *bytes, size_t length,
                    hg_session *session)
{
    uint64_t hash = hg_hash(hg_keys_of(policy)[key].hash, bytes, length);
    uint32_t pair = hg_find_pair(policy, hash, key, NULL, 0, bytes, length);

    session->probes++;
    if (pair == HG_NO_PAIR)
        return;
    session->present[session->presents++] = pair;
    session->addresses += key == HG_KEY_REMOTE_ADDRESS;
}

/* Once for each length of mask in use (R117). */
static void look_up_address(const hg_policy *policy, const hg_client *client, hg_session *session)
{
    const hg_mask *masks = hg_masks_of(policy);
    size_t bytes = client->family == 4 ? 4 : 16;
    uint8_t prefix[17];

    for (uint32_t i = 0; i < policy->masks.count; i++) {
        if (masks[i].family != client->family)
            continue;
        memcpy(prefix, client->address, bytes);
        hg_mask_address(prefix, (uint32_t) bytes, masks[i].bits);
        prefix[bytes] = (uint8_t) masks[i].bits;
        look_up(policy, HG_KEY_REMOTE_ADDRESS, prefix, bytes + 1, session);
    }
}

static bool is_exempt(const hg_policy *policy, const char *username)
{
    if (username == NULL)
        return false;
    for (uint32_t i = 0; i < policy->exempt.count; i++)
        if (hg_string_is(policy, hg_exempt_of(policy)[i], username, strlen(username)))
            return true;
    return false;
}

static bool has(const hg_session *session, uint32_t pair)
{
    for (uint32_t i = 0; i < session->presents; i++)
        if (session->present[i] == pair)
            return true;
    return false;
}

enum { KEY_QUERY = 1, KEY_FINGERPRINT = 2, KEY_TAG = 4 };

static uint32_t asked_of_statement(uint32_t key)
{
    return key == HG_KEY_QUERY ? KEY_QUERY : key == HG_KEY_FINGERPRINT ? KEY_FINGERPRINT : KEY_TAG;
}

/* Whether some statement of this session could match the rule, and what it has to be asked for. */
static bool may_match(const hg_policy *policy, const hg_rule *rule, const hg_session *session,
                      uint32_t *asked)
{
    const uint32_t *conditions = hg_conditions_of(policy) + rule->first_condition;
    const uint32_t *eaches = hg_eaches_of(policy) + rule->first_each;
    uint32_t needs = 0;

    for (uint32_t i = 0; i < rule->conditions; i++) {
        uint32_t key = hg_pairs_of(policy)[conditions[i]].key;

        if (key >= HG_SESSION_KEYS)
            needs |= asked_of_statement(key);
        else if (!has(session, conditions[i]))
            return false;
    }
    for (uint32_t i = 0; i < rule->eaches; i++) {
        if (eaches[i] >= HG_SESSION_KEYS)
            needs |= asked_of_statement(eaches[i]);
        else if (session->each_hash[eaches[i]] == 0)
            return false;
    }
    *asked |= needs;
    return true;
}

/* Looks at the rules until all that could be asked for is. */
static void note_needs(const hg_policy *policy, hg_session *session)
{
    const hg_rule *rules = hg_rules_of(policy);
    uint32_t asked = 0;
    uint32_t most = policy->keys.count > HG_SYSTEM_KEYS ? KEY_TAG : 0;

    if (policy->system_keys & 1u << HG_KEY_QUERY)
        most |= KEY_QUERY;
    if (policy->system_keys & 1u << HG_KEY_FINGERPRINT)
        most |= KEY_FINGERPRINT;
    for (uint32_t i = 0; i < policy->rules.count && !(session->may_match && asked == most); i++)
        if (may_match(policy, &rules[i], session, &asked))
            session->may_match = true;
    session->needs_query = (asked & KEY_QUERY) != 0;
    session->needs_fingerprint = (asked & KEY_FINGERPRINT) != 0;
    session->needs_tags = (asked & KEY_TAG) != 0;
    for (uint32_t i = HG_SYSTEM_KEYS; session->needs_tags && i < policy->keys.count; i++) {
        session->tag_keys |= hg_key_bit(hg_keys_of(policy)[i].hash);
        session->each_tags |= hg_keys_of(policy)[i].candidates > 0;
    }
}

void hg_session_resolve(const hg_policy *policy, const hg_client *client, hg_session *session)
{
    memset(session, 0, sizeof *session);
    session->exempt = is_exempt(policy, client->username);
    if (session->exempt || (policy->flags & HG_POLICY_OFF))
        return;
    for (uint32_t key = 0; key < HG_SESSION_KEYS; key++) {
        value given = value_of(client, key);

        if (given.bytes == NULL || !(policy->system_keys & 1u << key))
            continue;
        note_each(policy, client, key, given, session);
        if (key == HG_KEY_REMOTE_ADDRESS)
            look_up_address(policy, client, session);
        else
            look_up(policy, key, given.bytes, given.length, session);
    }
    note_needs(policy, session);
}
