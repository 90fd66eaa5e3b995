/*
 * counts.c: what happened, by budget, and the traces of statements. Relaxed atomics throughout:
 * exact in sum, ordered by nothing, read for views.
 */
#include <string.h>

#include "internal.h"

#define MAX_PROBES 64u /* places looked at for a budget's counts */

static uint32_t probes(const hg_region *region)
{
    return (uint32_t) hg_least(hg_plan(region)->sizes.budgets, MAX_PROBES);
}

hg_count *hg_count_find(hg_region *region, uint64_t budget_key)
{
    hg_count *counts = hg_counts_in(region);
    uint64_t last = hg_plan(region)->sizes.budgets - 1;

    for (uint32_t probe = 0; probe < probes(region); probe++) {
        hg_count *count = &counts[(budget_key + probe) & last];
        uint64_t key = atomic_load_explicit(&count->key, memory_order_relaxed);

        if (key == budget_key)
            return count;
        if (key == HG_FREE_KEY)
            return NULL;
    }
    return NULL;
}

/* Never given back: as many budgets have counts as had statements since the start. */
static hg_count *claim(hg_region *region, uint64_t budget_key, const char *name, size_t length)
{
    hg_count *counts = hg_counts_in(region);
    uint64_t last = hg_plan(region)->sizes.budgets - 1;

    for (uint32_t probe = 0; probe < probes(region); probe++) {
        hg_count *count = &counts[(budget_key + probe) & last];
        uint64_t key = HG_FREE_KEY;

        if (atomic_compare_exchange_strong_explicit(&count->key, &key, budget_key,
                                                    memory_order_relaxed, memory_order_relaxed)) {
            if (name != NULL)
                memcpy(count->name, name, hg_least(length, sizeof count->name - 1));
            return count;
        }
        if (key == budget_key)
            return count;
    }
    hg_add(&region->counts_full, 1);
    return NULL;
}

hg_count *hg_count_of(hg_region *region, uint64_t budget_key, const char *name, size_t length)
{
    hg_count *count = hg_count_find(region, budget_key);

    return count != NULL ? count : claim(region, budget_key, name, length);
}

hg_count *hg_count_for(hg_region *region, const hg_policy *policy, const hg_budget *budget)
{
    hg_count *count = hg_count_find(region, budget->key);

    if (count != NULL)
        return count;
    return claim(region, budget->key, hg_strings_of(policy) + budget->name.offset,
                 budget->name.length);
}

void hg_count_violation(hg_count *count, int64_t wall_ms)
{
    atomic_store_explicit(&count->last_violation_ms, wall_ms, memory_order_relaxed);
}

static hg_count *deciding(hg_region *region, const hg_policy *policy, const hg_matches *matches,
                          const hg_answer *answer)
{
    if (answer->match >= matches->count)
        return NULL;
    return hg_count_for(region, policy, &hg_budgets_of(policy)[matches->at[answer->match].budget]);
}

void hg_count_block(hg_region *region, const hg_policy *policy, const hg_matches *matches,
                    const hg_answer *answer, bool early, int64_t wall_ms)
{
    hg_count *count = deciding(region, policy, matches, answer);

    if (count == NULL || answer->decided_by == HG_NO_LIMIT || answer->decided_by >= HG_LIMITS)
        return;
    hg_add(&count->blocked[answer->decided_by], 1);
    if (early)
        hg_add(&count->blocked[HG_NO_LIMIT], 1);
    hg_count_violation(count, wall_ms);
}

void hg_count_delay(hg_region *region, uint64_t budget_key, uint64_t waited_ns)
{
    hg_count *count = hg_count_find(region, budget_key);

    if (count == NULL)
        return;
    hg_add(&count->delayed, 1);
    hg_add(&count->delayed_ns, waited_ns);
}

/* ── Sleepers ─────────────────────────────────────────────────────────────── */

bool hg_sleep_begin(hg_region *region, const hg_policy *policy, uint32_t budget_index)
{
    const hg_budget *budget = &hg_budgets_of(policy)[budget_index];
    hg_count *count = hg_count_for(region, policy, budget);
    uint64_t sleeping;

    if (count == NULL)
        return false; /* without a count there is no bound: rather an error at once */
    sleeping = atomic_load_explicit(&count->sleeping, memory_order_relaxed);
    do {
        if (sleeping >= budget->max_delayed)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&count->sleeping, &sleeping, sleeping + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void hg_sleep_end(hg_region *region, uint64_t budget_key)
{
    hg_count *count = hg_count_find(region, budget_key);
    uint64_t sleeping;

    if (count == NULL)
        return;
    sleeping = atomic_load_explicit(&count->sleeping, memory_order_relaxed);
    while (sleeping > 0
           && !atomic_compare_exchange_weak_explicit(&count->sleeping, &sleeping, sleeping - 1,
                                                     memory_order_relaxed, memory_order_relaxed))
        ;
}

/* ── Traces ───────────────────────────────────────────────────────────────── */

void hg_trace_write(hg_region *region, const hg_trace *trace)
{
    const size_t body = sizeof trace->stamp;
    uint64_t number;
    uint64_t before;
    hg_trace *place;

    if (hg_plan(region)->sizes.traces == 0)
        return;
    number = atomic_fetch_add_explicit(&region->traced, 1, memory_order_relaxed);
    place = (hg_trace *) hg_at(region, hg_plan(region)->traces_at)
            + (number & (hg_plan(region)->sizes.traces - 1));
    before = atomic_load_explicit(&place->stamp, memory_order_relaxed);
    /* Odd: the one a whole round before is still at it, or died. Then this one is lost. */
    if ((before & 1) != 0
        || !atomic_compare_exchange_strong_explicit(&place->stamp, &before, 2 * number + 1,
                                                    memory_order_acquire, memory_order_relaxed))
        return;
    memcpy((char *) place + body, (const char *) trace + body, sizeof *trace - body);
    atomic_store_explicit(&place->stamp, 2 * number + 2, memory_order_release);
}

/* ── Clients ──────────────────────────────────────────────────────────────── */

#define CLIENT_SEED 4u
#define CLIENT_PROBES 16u

hg_tally *hg_tally_at(hg_region *region, uint32_t client)
{
    const hg_region *plan = hg_plan(region);

    return client < plan->sizes.clients ? (hg_tally *) hg_at(region, plan->clients_at) + client
                                        : NULL;
}

/* Whether the place is, or is now, that client's. A place that another is just filling is left alone: so
 * much is counted for the others. */
static bool claims(hg_tally *tally, uint64_t key, const char *name, size_t length)
{
    uint64_t there = atomic_load_explicit(&tally->key, memory_order_acquire);

    if (there == HG_FREE_KEY && atomic_compare_exchange_strong(&tally->key, &there, HG_TAKEN_KEY)) {
        memcpy(tally->name, name, length);
        tally->name[length] = '\0';
        atomic_store_explicit(&tally->key, key, memory_order_release);
        return true;
    }
    return there == key && memcmp(tally->name, name, length) == 0 && tally->name[length] == '\0';
}

uint32_t hg_tally_of(hg_region *region, const char *name, size_t length)
{
    uint32_t last = hg_plan(region)->sizes.clients - 1;
    uint64_t key = hg_not_reserved(hg_hash_inline(CLIENT_SEED, name, length));

    if (hg_plan(region)->sizes.clients == 0 || length > HG_MAX_IDENTITY_BYTES)
        return 0;
    for (uint32_t probe = 0; probe < CLIENT_PROBES; probe++) {
        uint32_t at = (uint32_t) (key + probe) & last;

        if (at != 0 && claims(hg_tally_at(region, at), key, name, length))
            return at;
    }
    return 0;
}
