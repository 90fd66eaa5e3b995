/*
 * support.h: a policy by hand, a region, and asks, for the tests of the ledger. Rules are left out
 * where matches are given; what rules match is tested by others.
 */
#ifndef HEADGATE_TESTS_SUPPORT_H
#define HEADGATE_TESTS_SUPPORT_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define SECOND UINT64_C(1000000000)
#define MS UINT64_C(1000000)
#define POLICY_BYTES 65536u

typedef struct test_policy {
    _Alignas(64) char bytes[POLICY_BYTES];
} test_policy;

static inline hg_policy *policy_in(test_policy *policy)
{
    return (hg_policy *) policy->bytes;
}

static inline hg_budget *budget_in(test_policy *policy, uint32_t index)
{
    return (hg_budget *) (policy->bytes + policy_in(policy)->budgets.offset) + index;
}

static inline void sign_policy(test_policy *policy)
{
    hg_policy *head = policy_in(policy);

    head->crc = 0;
    head->crc = hg_crc32(0, head, head->length);
}

static inline uint32_t put_string(test_policy *policy, const char *text)
{
    hg_policy *head = policy_in(policy);
    uint32_t at = head->strings.count;

    memcpy(policy->bytes + head->strings.offset + at, text, strlen(text));
    head->strings.count += (uint32_t) strlen(text);
    return at;
}

static inline void put_keys(test_policy *policy)
{
    static const char *const names[HG_SYSTEM_KEYS] = {
        "username", "database", "application_name", "remote_address", "query", "fingerprint"};
    hg_key *keys = (hg_key *) (policy->bytes + policy_in(policy)->keys.offset);

    for (uint32_t i = 0; i < HG_SYSTEM_KEYS; i++) {
        uint32_t length = (uint32_t) strlen(names[i]);

        keys[i].hash = hg_hash(0, names[i], length);
        keys[i].name = (hg_string) {put_string(policy, names[i]), length};
    }
}

/* Budgets "b0", "b1", … that enforce and limit nothing yet, and no rules. */
static inline void make_policy(test_policy *policy, uint32_t budgets, uint64_t version)
{
    hg_policy *head = policy_in(policy);
    uint32_t keys_at = (uint32_t) (sizeof *head + budgets * sizeof(hg_budget));
    uint32_t strings_at = (uint32_t) (keys_at + HG_SYSTEM_KEYS * sizeof(hg_key));
    hg_section none = {strings_at, 0};

    memset(policy->bytes, 0, sizeof policy->bytes);
    memcpy(head->magic, HG_POLICY_MAGIC, sizeof head->magic);
    head->format = HG_POLICY_FORMAT;
    head->version = version;
    head->budgets = (hg_section) {sizeof *head, budgets};
    head->keys = (hg_section) {keys_at, HG_SYSTEM_KEYS};
    head->rules = head->conditions = head->eaches = head->pairs = head->slots = none;
    head->candidates = head->always = head->masks = head->exempt = head->strings = none;
    head->identity = head->gates = none;
    put_keys(policy);
    for (uint32_t i = 0; i < budgets; i++) {
        hg_budget *budget = budget_in(policy, i);
        char name[16];
        int length = snprintf(name, sizeof name, "b%u", i);

        budget->name = (hg_string) {put_string(policy, name), (uint32_t) length};
        budget->key = hg_hash(2, name, (size_t) length);
        budget->mode = HG_MODE_ENFORCE;
        budget->max_delayed = 8;
    }
    head->length = (strings_at + head->strings.count + 7) / 8 * 8;
    sign_policy(policy);
}

static inline void set_bucket(hg_budget *budget, uint32_t rate_mpct, uint32_t capacity_mpcts)
{
    budget->set |= HG_SET_RATE | HG_SET_CAPACITY;
    budget->rate_mpct = rate_mpct;
    budget->capacity_mpcts = capacity_mpcts;
}

static inline void set_workers(hg_budget *budget, uint32_t workers)
{
    budget->set |= HG_SET_MAX_WORKERS;
    budget->max_workers = workers;
}

static inline hg_sizes small_sizes(void)
{
    return (hg_sizes) {.seats = 16,
                       .budgets = 64,
                       .buckets = 64,
                       .patterns = 64,
                       .policy_bytes = POLICY_BYTES,
                       .traces = 8};
}

/* 2 CPUs, 20 workers. */
static inline hg_region *make_region(const hg_sizes *sizes)
{
    size_t length = hg_region_bytes(sizes);
    void *memory = aligned_alloc(64, length);

    assert(length > 0 && memory != NULL);
    assert(hg_region_init(memory, length, sizes, 2000, 20, SECOND, 1000) == NULL);
    return memory;
}

/* Each of the first `count` budgets by its own bucket. */
static inline void match_all(test_policy *policy, uint32_t count, hg_matches *matches)
{
    matches->count = count;
    for (uint32_t i = 0; i < count; i++) {
        hg_match_one *one = &matches->at[i];

        memset(one, 0, sizeof *one);
        one->budget = i;
        one->bucket = budget_in(policy, i)->key;
    }
}

/* One budget's bucket for some value. */
static inline void match_each(test_policy *policy, uint32_t budget, uint64_t bucket,
                              hg_matches *matches)
{
    hg_match_one *one = &matches->at[0];

    (void) policy;
    matches->count = 1;
    memset(one, 0, sizeof *one);
    one->budget = budget;
    one->bucket = bucket;
    one->label_length = (uint8_t) snprintf(one->label, sizeof one->label, "t=%llu",
                                           (unsigned long long) bucket);
}

/* A statement whose cost is known. */
static inline hg_ask asks(uint64_t cost_ns, uint64_t now_ns)
{
    return (hg_ask) {.now_ns = now_ns,
                     .wall_ms = 5000,
                     .plan_cost = 1,
                     .cost_ns = cost_ns,
                     .workers = 1,
                     .flags = HG_COST_GIVEN};
}

static inline uint64_t all_holders(hg_region *region)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < region->sizes.buckets; i++)
        sum += atomic_load(&hg_bucket_in(region, i)->holders);
    return sum;
}

static inline hg_bucket *bucket_of(hg_region *region, uint64_t key)
{
    for (uint32_t i = 0; i < region->sizes.buckets; i++)
        if (atomic_load(&hg_bucket_keys_in(region)[i]) == key)
            return hg_bucket_in(region, i);
    return NULL;
}

static inline uint64_t owed(hg_region *region, uint64_t key, uint64_t now_ns)
{
    hg_bucket *bucket = bucket_of(region, key);

    return bucket == NULL
               ? 0
               : hg_debt_ns(region, (uint32_t) (bucket - hg_bucket_in(region, 0)), now_ns);
}

#endif
