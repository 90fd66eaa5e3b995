/*
 * layout.h: what the modules around a policy share, and nobody else includes. The arrays of a
 * policy that hg_policy_check has passed, the hash in pieces, and the one look-up of a pair.
 */
#ifndef HEADGATE_LAYOUT_H
#define HEADGATE_LAYOUT_H

#include <string.h>

#include "headgate.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a compiled policy is little-endian");

#define HG_BUDGET_SEED 2u
#define HG_SYSTEM_KEY_SEED 0u
#define HG_TAG_KEY_SEED 1u
#define HG_FINGERPRINT_SEED 3u

#define HG_SESSION_KEYS 4u     /* the first of the system keys: a session's own */
#define HG_MAX_CONDITIONS 16u  /* of a rule */
#define HG_MAX_EACHES 4u       /* of a rule */
#define HG_MAX_EXEMPT 64u
#define HG_MAX_POLICY_BYTES (1u << 30)
#define HG_LABEL_BYTES 47u

/* Inlined, not in hash.c: every byte of a tag passes here, and a call each would double its cost. */
static inline uint64_t hg_hash_begin(uint64_t seed)
{
    return seed ^ 0xcbf29ce484222325ull;
}

static inline uint64_t hg_hash_more(uint64_t hash, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    const uint8_t *end = at + length;

    while (at < end)
        hash = (hash ^ *at++) * 0x100000001b3ull;
    return hash;
}

static inline uint64_t hg_hash_end(uint64_t hash)
{
    hash ^= hash >> 32;
    hash *= 0xd6e8feb86659fd93ull;
    hash ^= hash >> 32;
    hash *= 0xd6e8feb86659fd93ull;
    return hash ^ (hash >> 32);
}

static inline uint64_t hg_hash_inline(uint64_t seed, const void *bytes, size_t length)
{
    return hg_hash_end(hg_hash_more(hg_hash_begin(seed), bytes, length));
}

/* 0 means "none" and 1 "being filled" in the tables that these become keys of. */
static inline uint64_t hg_not_reserved(uint64_t hash)
{
    return hash < 2 ? hash + 2 : hash;
}

static inline uint64_t hg_key_bit(uint64_t key_hash)
{
    return UINT64_C(1) << (key_hash & 63);
}

static inline void hg_put_u64(uint8_t *out, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t) (value >> (8 * i));
}

/* The key of the bucket for one more value of an each-rule. */
static inline uint64_t hg_bucket_of(uint64_t bucket, uint64_t each_hash)
{
    uint8_t bytes[8];

    hg_put_u64(bytes, each_hash);
    return hg_not_reserved(hg_hash_inline(bucket, bytes, sizeof bytes));
}

static inline const void *hg_section_of(const hg_policy *policy, hg_section section)
{
    return (const char *) policy + section.offset;
}

#define HG_ARRAY(name, type)                                                                       \
    static inline const type *hg_##name##_of(const hg_policy *policy)                              \
    {                                                                                              \
        return hg_section_of(policy, policy->name);                                                \
    }

HG_ARRAY(budgets, hg_budget)
HG_ARRAY(rules, hg_rule)
HG_ARRAY(conditions, uint32_t)
HG_ARRAY(eaches, uint32_t)
HG_ARRAY(pairs, hg_pair)
HG_ARRAY(slots, hg_slot)
HG_ARRAY(candidates, uint32_t)
HG_ARRAY(always, uint32_t)
HG_ARRAY(keys, hg_key)
HG_ARRAY(masks, hg_mask)
HG_ARRAY(exempt, hg_string)
HG_ARRAY(gates, hg_gate)
HG_ARRAY(strings, char)

static inline bool hg_string_is(const hg_policy *policy, hg_string string, const void *bytes,
                                size_t length)
{
    return string.length == length
           && memcmp(hg_strings_of(policy) + string.offset, bytes, length) == 0;
}

/* Bytewise, as Python sorts bytes. */
static inline int hg_compare_bytes(const void *a, size_t a_length, const void *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);

    return order != 0 ? order : (a_length > b_length) - (a_length < b_length);
}

static inline int hg_compare_strings(const hg_policy *policy, hg_string a, hg_string b)
{
    const char *strings = hg_strings_of(policy);

    return hg_compare_bytes(strings + a.offset, a.length, strings + b.offset, b.length);
}

#define HG_NO_PAIR UINT32_MAX

/* `key` is a system key's index, or HG_SYSTEM_KEYS for the tag of the given name. The name of a
 * tag is compared, too: two names may share a hash, if a client takes the trouble. */
static inline bool hg_pair_is(const hg_policy *policy, const hg_pair *pair, uint32_t key,
                              const char *name, size_t name_length, const void *value,
                              size_t length)
{
    if (!hg_string_is(policy, pair->value, value, length))
        return false;
    if (key < HG_SYSTEM_KEYS)
        return pair->key == key;
    return pair->key >= HG_SYSTEM_KEYS
           && hg_string_is(policy, hg_keys_of(policy)[pair->key].name, name, name_length);
}

/* One probe: the pair's index, or HG_NO_PAIR. Ends, because a sound policy has free slots. */
static inline uint32_t hg_find_pair(const hg_policy *policy, uint64_t hash, uint32_t key,
                                    const char *name, size_t name_length, const void *value,
                                    size_t length)
{
    const hg_slot *slots = hg_slots_of(policy);
    const hg_pair *pairs = hg_pairs_of(policy);
    uint32_t last = policy->slots.count - 1;
    uint32_t mark = (uint32_t) (hash >> 32);

    if (policy->slots.count == 0)
        return HG_NO_PAIR;
    for (uint32_t at = (uint32_t) hash & last; slots[at].pair != 0; at = (at + 1) & last) {
        uint32_t index = slots[at].pair - 1;

        if (slots[at].mark == mark && pairs[index].hash == hash
            && hg_pair_is(policy, &pairs[index], key, name, name_length, value, length))
            return index;
    }
    return HG_NO_PAIR;
}

/* Sets all bits of an address behind the first `bits` to 0. */
static inline void hg_mask_address(uint8_t *address, uint32_t bytes, uint32_t bits)
{
    for (uint32_t i = 0; i < bytes; i++) {
        uint32_t kept = bits >= 8 * (i + 1) ? 8 : bits > 8 * i ? bits - 8 * i : 0;

        address[i] = (uint8_t) (address[i] & (0xff00u >> kept));
    }
}

/* An address as text, cut; returns its length. */
size_t hg_address_text(uint8_t family, const uint8_t *address, char *out, size_t room);

#endif
