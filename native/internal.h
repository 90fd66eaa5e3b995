/*
 * internal.h: what the modules around a region share, and nobody else includes.
 *
 *   decide.c ──► bucket.c (debts), pattern.c (what it will cost), counts.c (what happened)
 *
 * Locking: the hot path takes none. A bucket is found by its key in the set's line of keys, and
 * pinned by adding to its holders; an evictor first takes the key away, then looks for holders.
 * Both sides do so in sequentially consistent order, so at least one of them sees the other.
 * The lock of a set guards insertion, eviction and change of rate alone.
 */
#ifndef HEADGATE_INTERNAL_H
#define HEADGATE_INTERNAL_H

#include "headgate.h"
#include "layout.h"

#define HG_FREE_KEY 0u   /* of a bucket, a pattern or a count */
#define HG_TAKEN_KEY 1u  /* it is being filled or emptied */
#define HG_NO_BUCKET UINT32_MAX
#define HG_WHOLE_MPCT 100000u
#define HG_MAX_WORKERS 65535u
#define HG_FAR (UINT64_C(1) << 62) /* no time in a bucket lies beyond: sums of two stay in range */

static inline void *hg_at(const hg_region *region, uint64_t offset)
{
    return (char *) (uintptr_t) region + offset;
}

/* ── region.c ─────────────────────────────────────────────────────────────── */

#define HG_MAX_PINS 64u
extern _Atomic uint32_t hg_pins; /* how many regions are pinned in this process */
const hg_region *hg_pinned(const hg_region *region);

/* Sizes and places, by which alone memory is found: those of a region that another user may write
 * to are a copy, made when it was pinned. A server's own processes pin none, and read the head. */
static inline const hg_region *hg_plan(const hg_region *region)
{
#ifdef HG_PINS_NOTHING
    return region;
#else
    return atomic_load_explicit(&hg_pins, memory_order_relaxed) == 0 ? region : hg_pinned(region);
#endif
}

static inline hg_seat *hg_seats_in(const hg_region *region)
{
    return hg_at(region, hg_plan(region)->seats_at);
}

static inline hg_count *hg_counts_in(const hg_region *region)
{
    return hg_at(region, hg_plan(region)->counts_at);
}

static inline _Atomic uint64_t *hg_bucket_keys_in(const hg_region *region)
{
    return hg_at(region, hg_plan(region)->bucket_keys_at);
}

static inline _Atomic uint32_t *hg_bucket_locks_in(const hg_region *region)
{
    return hg_at(region, hg_plan(region)->bucket_locks_at);
}

static inline hg_bucket *hg_bucket_in(const hg_region *region, uint32_t index)
{
    return (hg_bucket *) hg_at(region, hg_plan(region)->buckets_at) + index;
}

static inline hg_pattern *hg_patterns_in(const hg_region *region)
{
    return hg_at(region, hg_plan(region)->patterns_at);
}

static inline uint64_t hg_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t hg_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t hg_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* ── bucket.c ─────────────────────────────────────────────────────────────── */

/* What a bucket is to be like under the policy in force. */
typedef struct hg_terms {
    uint64_t key;
    const hg_budget *budget;
    const hg_match_one *match;
    uint64_t now_ns;
    uint32_t workers;
} hg_terms;

/* What is to be seen of one without holding it. */
typedef struct hg_lookup {
    uint32_t index; /* HG_NO_BUCKET: not there, so it has no debt */
    uint32_t running;
    uint64_t debt_ns; /* in its own time, by the rate and the epoch of the policy in force */
} hg_lookup;

/* Has debt and is reckoned by time: both a rate and a capacity. */
static inline bool hg_is_timed(const hg_budget *budget)
{
    const uint32_t both = HG_SET_RATE | HG_SET_CAPACITY;

    return (budget->set & both) == both && budget->rate_mpct > 0;
}

/* 0: nothing is reckoned by it. */
static inline uint32_t hg_rate_of(const hg_budget *budget)
{
    return hg_is_timed(budget) ? budget->rate_mpct : 0;
}

static inline bool hg_counts_workers(const hg_budget *budget)
{
    return (budget->set & (HG_SET_CONCURRENCY | HG_SET_MAX_WORKERS)) != 0;
}

uint64_t hg_drain_ns(uint64_t cost_ns, uint32_t rate_mpct, uint32_t cpus_milli);
uint64_t hg_cpu_ns(uint64_t drains_in_ns, uint32_t rate_mpct, uint32_t cpus_milli);

/* What is there; brought in line with the policy, if that has changed. */
void hg_bucket_look_up(hg_region *region, const hg_terms *terms, hg_lookup *lookup);
/* Holds the bucket, which is brought in line with the policy, and is put there if it was not:
 * its index, or HG_NO_BUCKET. `running`: workers there were before. */
uint32_t hg_bucket_hold(hg_region *region, const hg_terms *terms, uint32_t hint, uint32_t *running);
/* The workers of a statement that goes on holding it. */
void hg_bucket_enter(hg_region *region, uint32_t index, uint32_t workers);
void hg_bucket_leave(hg_region *region, uint32_t index, uint32_t workers);
void hg_bucket_release(hg_region *region, uint32_t index, uint32_t workers);
/* False, and nothing done, if more than `size_ns` would be the debt. `debt_ns`: the debt before. */
bool hg_bucket_charge(hg_bucket *bucket, uint64_t now_ns, uint64_t drains_in_ns, uint64_t size_ns,
                      hg_holding_one *one, uint64_t *debt_ns);
void hg_bucket_charge_more(hg_bucket *bucket, uint64_t now_ns, uint64_t drains_in_ns);
void hg_bucket_refund(hg_bucket *bucket, const hg_holding_one *one, uint64_t cheaper_ns,
                      uint64_t now_ns);
/* As if the charge had never been made. */
void hg_bucket_undo(hg_bucket *bucket, const hg_holding_one *one);

/* It is blocked for its estimate alone, whatever else there is. */
static inline bool hg_never_fits(const hg_answer *answer)
{
    return answer->verdict == HG_BLOCK && answer->retry_ns == HG_NEVER
           && (answer->decided_by == HG_QUERY || answer->decided_by == HG_BUCKET);
}

/* ── pattern.c ────────────────────────────────────────────────────────────── */

/* Whether what is known of the pattern has become old; and to be the one that runs to find out:
 * false if another just was. */
bool hg_may_try_again(const hg_region *region, const hg_ask *ask, uint64_t estimate_ns);
bool hg_try_again(hg_region *region, const hg_ask *ask, uint64_t estimate_ns);
void hg_learn(hg_region *region, const hg_holding *holding, uint64_t actual_ns, bool aborted,
              uint64_t now_ns);

/* ── counts.c ─────────────────────────────────────────────────────────────── */

/* NULL: there is none yet, or no place for it (counted). */
hg_count *hg_count_find(hg_region *region, uint64_t budget_key);
hg_count *hg_count_for(hg_region *region, const hg_policy *policy, const hg_budget *budget);
void hg_count_violation(hg_count *count, int64_t wall_ms);

#endif
