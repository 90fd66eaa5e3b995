/*
 * client.c: the client of a statement, and which of the operator's rules decides about it.
 *
 *   username, application_name, tags ──hg_identify──► "nightly:etl" ──hg_gate_of──► hold, ratio, exempt
 *
 * The readable twins: base/names.py and rules/matching.py. A proxy finds the name here, and has the rule from
 * its mind; the extension has both from the policy.
 */
#include <stdio.h>

#include "internal.h"

#define TOKEN_SEED 5u
#define WHOLE 255 /* how specific a rule on the whole name is */

const char *hg_identity_fault(const hg_identity *given)
{
    if (given->sources > HG_MAX_SOURCES)
        return "more sources of identity than there is room for";
    if (given->trusts > HG_MAX_TRUSTS)
        return "more trusted tags than there is room for";
    if (given->secret_length > sizeof given->secret)
        return "the secret is too long";
    if (given->default_priority > 100)
        return "a priority is 0 to 100";
    for (uint32_t i = 0; i < given->sources; i++)
        if (given->source[i].kind < HG_FROM_TAG || given->source[i].kind > HG_FROM_PATTERN
            || given->source[i].name_length > sizeof given->source[i].name)
            return "a source of identity is not sound";
    for (uint32_t i = 0; i < given->trusts; i++)
        if (given->trust[i].users > 8
            || memchr(given->trust[i].key, '\0', sizeof given->trust[i].key) == NULL)
            return "a trusted tag is not sound";
    return NULL;
}

const hg_identity *hg_identity_of(const hg_policy *policy)
{
    return policy->identity.count == 0 ? NULL : hg_section_of(policy, policy->identity);
}

/* ── The name ─────────────────────────────────────────────────────────────── */

static bool may_stand(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z')
           || (byte >= 'A' && byte <= 'Z') || (byte != '\0' && strchr("_.@+=/~%-", byte) != NULL);
}

/* No empty levels, and not too many. */
size_t hg_name(const char *value, size_t length, char out[HG_MAX_IDENTITY_BYTES])
{
    uint32_t levels = 1;
    size_t used = 0;

    while (length > 0 && (*value == ' ' || *value == ':')) {
        value++;
        length--;
    }
    while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == ':'))
        length--;
    for (size_t i = 0; i < length && used < HG_MAX_IDENTITY_BYTES; i++) {
        if (value[i] == ':' && used > 0 && out[used - 1] == ':')
            continue;
        if (value[i] == ':' && levels < HG_MAX_LEVELS) {
            levels++;
            out[used++] = ':';
        } else {
            out[used++] = may_stand((uint8_t) value[i]) ? value[i] : '_';
        }
    }
    while (used > 0 && out[used - 1] == ':')
        used--;
    return used;
}

const hg_tag *hg_tag_named(const hg_tags *tags, const char *name, size_t length)
{
    for (uint32_t i = 0; tags != NULL && i < tags->count; i++)
        if (tags->tags[i].key_length == length
            && memcmp(tags->text + tags->tags[i].key_offset, name, length) == 0)
            return &tags->tags[i];
    return NULL;
}

static size_t by_text(const char *value, char *out)
{
    return value == NULL ? 0 : hg_name(value, strlen(value), out);
}

static size_t by_source(const hg_source *source, const hg_client *client, const hg_tags *tags,
                        uint64_t fingerprint, char *out)
{
    const hg_tag *tag;

    switch (source->kind) {
    case HG_FROM_TAG:
        tag = hg_tag_named(tags, source->name, source->name_length);
        return tag == NULL ? 0 : hg_name(tags->text + tag->value_offset, tag->value_length, out);
    case HG_FROM_APPLICATION:
        return by_text(client->application_name, out);
    case HG_FROM_USER:
        return by_text(client->username, out);
    case HG_FROM_DATABASE:
        return by_text(client->database, out);
    case HG_FROM_PATTERN:
        return (size_t) snprintf(out, HG_MAX_IDENTITY_BYTES + 1, "pattern:%016llx",
                                 (unsigned long long) fingerprint);
    default:
        return 0;
    }
}

size_t hg_identify(const hg_identity *identity, const hg_client *client, const hg_tags *tags,
                   uint64_t fingerprint, char out[HG_MAX_IDENTITY_BYTES + 1], bool *by_tag)
{
    size_t length = 0;

    *by_tag = false;
    for (uint32_t i = 0; length == 0 && i < identity->sources; i++) {
        length = by_source(&identity->source[i], client, tags, fingerprint, out);
        *by_tag = length > 0 && identity->source[i].kind == HG_FROM_TAG;
    }
    if (length == 0)
        length = (size_t) snprintf(out, HG_MAX_IDENTITY_BYTES + 1, "unidentified");
    out[length] = '\0';
    return length;
}

/* ── The rule ─────────────────────────────────────────────────────────────── */

/* The level that begins at `at`: its length. */
static size_t level_at(const char *name, size_t length, size_t at)
{
    const char *end = memchr(name + at, ':', length - at);

    return end == NULL ? length - at : (size_t) (end - name) - at;
}

static bool has_level(const char *name, size_t length, const char *level, size_t level_length)
{
    for (size_t at = 0; at <= length;) {
        size_t size = level_at(name, length, at);

        if (size == level_length && memcmp(name + at, level, size) == 0)
            return true;
        at += size + 1;
    }
    return false;
}

/* How specific it is for that client; -1: it does not apply. */
static int specific(const hg_policy *policy, const hg_gate *gate, const char *name, size_t length)
{
    const char *target = hg_strings_of(policy) + gate->target.offset;
    size_t size = gate->target.length;

    if (gate->levels == 0)
        return 0;
    for (size_t at = 0; at < size;) {
        size_t level = level_at(target, size, at);

        if (!has_level(name, length, target + at, level))
            return -1;
        at += level + 1;
    }
    return size == length && memcmp(target, name, length) == 0 ? WHOLE : gate->levels;
}

static uint32_t first_of(const hg_policy *policy, uint64_t token)
{
    const hg_gate *gates = hg_gates_of(policy);
    uint32_t low = 0, high = policy->gates.count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (gates[middle].token < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct best {
    uint32_t gate;
    int specific;
} best;

static bool is_before(const hg_gate *gates, best one, best other)
{
    return one.specific > other.specific
           || (one.specific >= 0 && one.specific == other.specific
               && gates[one.gate].rank < gates[other.gate].rank);
}

static void look(const hg_policy *policy, const char *token, size_t token_length, const char *name,
                 size_t length, int64_t wall_ms, best *rejects, best *exempts)
{
    const hg_gate *gates = hg_gates_of(policy);
    uint64_t hash = hg_hash_inline(TOKEN_SEED, token, token_length);

    for (uint32_t i = first_of(policy, hash); i < policy->gates.count && gates[i].token == hash;
         i++) {
        best *found = gates[i].kind == HG_GATE_REJECTS ? rejects : exempts;
        best one;

        if (wall_ms < gates[i].from_ms || wall_ms >= gates[i].until_ms)
            continue;
        one = (best){i, specific(policy, &gates[i], name, length)};
        if (is_before(gates, one, *found))
            *found = one;
    }
}

uint32_t hg_gate_of(const hg_policy *policy, const char *name, size_t length, bool by_tag,
                    int64_t wall_ms)
{
    const hg_gate *gates = hg_gates_of(policy);
    best rejects = {HG_NO_GATE, -1}, exempts = {HG_NO_GATE, -1};

    if (policy->gates.count == 0)
        return HG_NO_GATE;
    for (size_t at = 0; at < length;) {
        size_t size = level_at(name, length, at);

        look(policy, name + at, size, name, length, wall_ms, &rejects, &exempts);
        at += size + 1;
    }
    if (by_tag)
        look(policy, "all", 3, name, length, wall_ms, &rejects, &exempts);
    if (exempts.gate == HG_NO_GATE || gates[exempts.gate].kind != HG_GATE_EXEMPTS)
        return rejects.gate;
    return is_before(gates, rejects, exempts) ? rejects.gate : exempts.gate;
}

int64_t hg_gates_until(const hg_policy *policy, int64_t wall_ms)
{
    const hg_gate *gates = hg_gates_of(policy);
    int64_t next = INT64_MAX;

    for (uint32_t i = 0; i < policy->gates.count; i++) {
        int64_t edge = gates[i].from_ms > wall_ms ? gates[i].from_ms : gates[i].until_ms;

        if (edge > wall_ms && edge < next)
            next = edge;
    }
    return next;
}

const hg_gate *hg_gate_at(const hg_policy *policy, uint32_t gate)
{
    return &hg_gates_of(policy)[gate];
}
