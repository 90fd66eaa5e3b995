/*
 * pattern.c: what a statement will cost. k × plan cost, with k = EMA(CPU) / EMA(plan cost) of its
 * pattern (R105), or the host's median where nothing is known of it (R107).
 *
 * Updates are single compare-and-swaps on two packed floats; where two statements of a pattern end
 * at the same moment the averages take both, the number of calls takes both, and their weights may
 * be off by one: harmless. So is a sample that comes to a pattern just as it is evicted.
 *
 * Reckoned in doubles and kept in floats, step by step as budgets/cost.py does: the same bits.
 */
#include <string.h>

#include "internal.h"

/* A fused multiply-add rounds once where Python rounds twice. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#define COLD_K 5000.0     /* ns per unit of plan cost while nothing at all has been measured */
/* Within these the planner knows what it does. Beyond them lie patterns that call functions whose cost
 * it cannot know: of others they tell nothing, and a guess by them would block what is cheap. */
#define LEAST_COLD_K 500.0
#define MOST_COLD_K 20000.0
#define EARLY_CALLS 3u /* from here on a pattern's average counts before there is a plan */
#define EARLY_SHARE 4 /* an early block has to be sure */
/* A pattern that is blocked for its estimate alone never runs, so nobody learns that it has become
 * cheap. So one execution is let through now and then: a quarter of an hour after the last one, and
 * for expensive ones so rarely that they use a hundredth of one CPU at most. */
#define AGAIN_AFTER_NS UINT64_C(900000000000)
#define AGAIN_SHARE 100
#define MIN_UNITS 0.01 /* of plan cost: a plan that cannot return anything has 0 */
#define MAX_UNITS 1e15 /* keeps the averages finite */

typedef struct averages {
    float cpu_ns;
    float plan_cost;
} averages;

_Static_assert(sizeof(averages) == sizeof(uint64_t), "averages");

static averages unpack(uint64_t word)
{
    uint32_t low = (uint32_t) word;
    uint32_t high = (uint32_t) (word >> 32);
    averages both;

    memcpy(&both.cpu_ns, &low, sizeof low);
    memcpy(&both.plan_cost, &high, sizeof high);
    return both;
}

static uint64_t pack(averages both)
{
    uint32_t low, high;

    memcpy(&low, &both.cpu_ns, sizeof low);
    memcpy(&high, &both.plan_cost, sizeof high);
    return (uint64_t) high << 32 | low;
}

static hg_pattern *set_of(const hg_region *region, uint64_t key)
{
    uint64_t sets = hg_plan(region)->sizes.patterns / HG_PATTERN_WAYS;

    return hg_patterns_in(region) + (key & (sets - 1)) * HG_PATTERN_WAYS;
}

static hg_pattern *find(const hg_region *region, uint64_t key)
{
    hg_pattern *ways = set_of(region, key);

    if (key <= HG_TAKEN_KEY)
        return NULL;
    for (uint32_t way = 0; way < HG_PATTERN_WAYS; way++)
        if (atomic_load_explicit(&ways[way].key, memory_order_acquire) == key)
            return &ways[way];
    return NULL;
}

/* ── Estimates ────────────────────────────────────────────────────────────── */

static uint64_t rounded(double cost_ns)
{
    if (!(cost_ns > 1.0)) /* so that an explicit 0 admits nothing; and NaN is no number */
        return 1;
    if (cost_ns >= (double) HG_MAX_COST_NS)
        return HG_MAX_COST_NS;
    return (uint64_t) (cost_ns + 0.5);
}

static double units(double plan_cost, uint32_t flags)
{
    if (flags & HG_UTILITY)
        return 1.0;
    if (!(plan_cost > MIN_UNITS)) /* NaN neither */
        return MIN_UNITS;
    return plan_cost < MAX_UNITS ? plan_cost : MAX_UNITS;
}

static uint64_t early(const hg_pattern *pattern)
{
    averages known;

    if (pattern == NULL
        || atomic_load_explicit(&pattern->calls, memory_order_relaxed) < EARLY_CALLS)
        return 1;
    known = unpack(atomic_load_explicit(&pattern->averages, memory_order_relaxed));
    return rounded((double) known.cpu_ns / EARLY_SHARE);
}

static double median_k(const hg_region *region)
{
    uint64_t bits = atomic_load_explicit(&region->median_k, memory_order_relaxed);
    double k;

    if (atomic_load_explicit(&region->median_calls, memory_order_relaxed) == 0)
        return COLD_K;
    memcpy(&k, &bits, sizeof k);
    return k < LEAST_COLD_K ? LEAST_COLD_K : k < MOST_COLD_K ? k : MOST_COLD_K;
}

static uint64_t planned(const hg_region *region, const hg_ask *ask, const hg_pattern *pattern)
{
    double plan_cost = units(ask->plan_cost, ask->flags);

    if (pattern != NULL && atomic_load_explicit(&pattern->calls, memory_order_relaxed) > 0) {
        averages known = unpack(atomic_load_explicit(&pattern->averages, memory_order_relaxed));

        if (known.plan_cost > 0) /* else another is just being put in its place */
            return rounded((double) known.cpu_ns / (double) known.plan_cost * plan_cost);
    }
    if (ask->flags & HG_UTILITY)
        return 1;
    return rounded(median_k(region) * plan_cost);
}

uint64_t hg_estimate(const hg_region *region, const hg_ask *ask)
{
    const hg_pattern *pattern;

    if (ask->flags & HG_COST_GIVEN)
        return hg_least(hg_most(ask->cost_ns, 1), HG_MAX_COST_NS);
    pattern = find(region, ask->pattern);
    if (ask->flags & HG_EARLY)
        return early(pattern);
    return planned(region, ask, pattern);
}

static bool is_old(const hg_ask *ask, uint64_t last_ns, uint64_t estimate_ns)
{
    return hg_less(ask->now_ns, last_ns) >= hg_most(AGAIN_AFTER_NS, estimate_ns * AGAIN_SHARE);
}

static hg_pattern *known(const hg_region *region, const hg_ask *ask)
{
    hg_pattern *pattern = ask->flags & HG_COST_GIVEN ? NULL : find(region, ask->pattern);

    return pattern != NULL && atomic_load_explicit(&pattern->calls, memory_order_relaxed) > 0
               ? pattern
               : NULL;
}

bool hg_may_try_again(const hg_region *region, const hg_ask *ask, uint64_t estimate_ns)
{
    const hg_pattern *pattern = known(region, ask);

    return pattern != NULL
           && is_old(ask, atomic_load_explicit(&pattern->last_ns, memory_order_relaxed),
                     estimate_ns);
}

uint64_t hg_until_trial(const hg_region *region, const hg_ask *ask, uint64_t estimate_ns)
{
    const hg_pattern *pattern = known(region, ask);
    uint64_t due_ns = hg_most(AGAIN_AFTER_NS, estimate_ns * AGAIN_SHARE);

    if (pattern == NULL)
        return HG_NEVER;
    due_ns = hg_less(due_ns, hg_less(ask->now_ns, atomic_load_explicit(&pattern->last_ns,
                                                                       memory_order_relaxed)));
    return hg_most(due_ns, 1);
}

bool hg_try_again(hg_region *region, const hg_ask *ask, uint64_t estimate_ns)
{
    hg_pattern *pattern = known(region, ask);
    uint64_t last_ns;

    if (pattern == NULL)
        return false;
    last_ns = atomic_load_explicit(&pattern->last_ns, memory_order_relaxed);
    return is_old(ask, last_ns, estimate_ns)
           && atomic_compare_exchange_strong_explicit(&pattern->last_ns, &last_ns, ask->now_ns,
                                                      memory_order_relaxed, memory_order_relaxed);
}

/* ── Learning ─────────────────────────────────────────────────────────────── */

static hg_pattern *oldest(hg_pattern *ways)
{
    hg_pattern *chosen = ways;

    for (uint32_t way = 0; way < HG_PATTERN_WAYS; way++) {
        if (atomic_load_explicit(&ways[way].key, memory_order_relaxed) == HG_FREE_KEY)
            return &ways[way];
        if (atomic_load_explicit(&ways[way].last_ns, memory_order_relaxed)
            < atomic_load_explicit(&chosen->last_ns, memory_order_relaxed))
            chosen = &ways[way];
    }
    return chosen;
}

/* A free way, else that of the one not seen for longest; NULL: another process just took it. */
static hg_pattern *insert(hg_region *region, const hg_holding *holding)
{
    hg_pattern *pattern = oldest(set_of(region, holding->pattern));
    uint64_t old = atomic_load_explicit(&pattern->key, memory_order_relaxed);

    /* Acquire: what the last one wrote here comes before what is written now. */
    if (old == HG_TAKEN_KEY
        || !atomic_compare_exchange_strong_explicit(&pattern->key, &old, HG_TAKEN_KEY,
                                                    memory_order_acquire, memory_order_relaxed))
        return NULL;
    hg_add(&region->pattern_evictions, old != HG_FREE_KEY);
    atomic_store_explicit(&pattern->averages, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->calls, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->error, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->cpu_ns, 0, memory_order_relaxed);
    pattern->query_id = holding->query_id;
    pattern->database = holding->database;
    atomic_store_explicit(&pattern->key, holding->pattern, memory_order_release);
    return pattern;
}

/* The mean of the first four; then a quarter of each new one (0.75^8 of a step is left after eight
 * executions, R106). */
static float averaged(float average, double value, uint32_t calls)
{
    double before = (double) average;
    double weight = calls < 4 ? 1.0 / (double) calls : 0.25;

    return (float) (before + (value - before) * weight);
}

static uint32_t one_more_call(hg_pattern *pattern)
{
    uint32_t calls = atomic_load_explicit(&pattern->calls, memory_order_relaxed);

    do {
        if (calls == UINT32_MAX)
            return calls;
    } while (!atomic_compare_exchange_weak_explicit(&pattern->calls, &calls, calls + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    return calls + 1;
}

static void learn_averages(hg_pattern *pattern, double actual_ns, double plan_cost, uint32_t calls)
{
    uint64_t old = atomic_load_explicit(&pattern->averages, memory_order_relaxed);
    averages both;

    do {
        both = unpack(old);
        both.cpu_ns = averaged(both.cpu_ns, actual_ns, calls);
        both.plan_cost = averaged(both.plan_cost, plan_cost, calls);
    } while (!atomic_compare_exchange_weak_explicit(&pattern->averages, &old, pack(both),
                                                    memory_order_relaxed, memory_order_relaxed));
}

static void learn_error(hg_pattern *pattern, uint64_t estimate_ns, uint64_t actual_ns,
                        uint32_t calls)
{
    uint64_t off = estimate_ns > actual_ns ? estimate_ns - actual_ns : actual_ns - estimate_ns;
    uint32_t bits = atomic_load_explicit(&pattern->error, memory_order_relaxed);
    float error;

    memcpy(&error, &bits, sizeof error);
    error = averaged(error, (double) off / (double) hg_most(actual_ns, 1), calls);
    memcpy(&bits, &error, sizeof bits);
    atomic_store_explicit(&pattern->error, bits, memory_order_relaxed);
}

/* It was cut short: it may raise what is known, the average as well as k, and never lower it
 * (R108). */
static bool raises(const hg_pattern *pattern, const hg_holding *holding, uint64_t actual_ns)
{
    averages both = unpack(atomic_load_explicit(&pattern->averages, memory_order_relaxed));
    double actual = (double) actual_ns;
    double cpu_ns = (double) both.cpu_ns;
    double asked = units(holding->plan_cost, holding->flags);

    if (actual_ns <= holding->estimate_ns)
        return false;
    return atomic_load_explicit(&pattern->calls, memory_order_relaxed) == 0
           || (actual > cpu_ns && actual * (double) both.plan_cost > cpu_ns * asked);
}

static void learn_pattern(hg_region *region, const hg_holding *holding, uint64_t actual_ns,
                          bool aborted, uint64_t now_ns)
{
    hg_pattern *pattern = find(region, holding->pattern);
    uint32_t calls;

    if (pattern == NULL)
        pattern = insert(region, holding);
    if (pattern == NULL)
        return;
    hg_add(&pattern->cpu_ns, actual_ns);
    atomic_store_explicit(&pattern->last_ns, now_ns, memory_order_relaxed);
    if (aborted && !raises(pattern, holding, actual_ns))
        return;
    calls = one_more_call(pattern);
    learn_averages(pattern, (double) actual_ns, units(holding->plan_cost, holding->flags), calls);
    if (!aborted)
        learn_error(pattern, holding->estimate_ns, actual_ns, calls);
}

static double towards(double median, double k)
{
    if (k > median)
        return median * 17 / 16;
    if (k < median)
        return median * 16 / 17;
    return median;
}

/* The median by small steps. At least 1 ns, since no step leads away from 0. */
static void learn_median(hg_region *region, double plan_cost, uint64_t actual_ns)
{
    double k = (double) hg_most(actual_ns, 1) / plan_cost;
    uint64_t old = atomic_load_explicit(&region->median_k, memory_order_relaxed);
    uint64_t bits;
    double median;

    do {
        memcpy(&median, &old, sizeof median);
        median = median > 0 ? towards(median, k) : k;
        memcpy(&bits, &median, sizeof bits);
    } while (!atomic_compare_exchange_weak_explicit(&region->median_k, &old, bits,
                                                    memory_order_relaxed, memory_order_relaxed));
    hg_add(&region->median_calls, 1);
}

void hg_learn(hg_region *region, const hg_holding *holding, uint64_t actual_ns, bool aborted,
              uint64_t now_ns)
{
    if (holding->flags & HG_COST_GIVEN)
        return;
    if (holding->pattern > HG_TAKEN_KEY)
        learn_pattern(region, holding, actual_ns, aborted, now_ns);
    if (!aborted && (holding->flags & HG_UTILITY) == 0)
        learn_median(region, units(holding->plan_cost, 0), actual_ns);
}
