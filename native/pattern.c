/*
 * pattern.c: what a statement will cost: a line through the logarithms of plan cost and CPU, of its pattern
 * and plan shape (R105, R162), or one of all patterns where nothing is known of it (R107).
 *
 * A statement that ends takes a line by one compare-and-swap, tried once, and writes its other words. Of two
 * that end at the same moment one teaches nothing, or a word of one stays: harmless. So is a sample that comes
 * to a pattern just as it is evicted. Calls and CPU are counted in full.
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

#define COLD_K 5000.0 /* ns per unit of plan cost while nothing at all has been measured */
/* Within these the planner knows what it does. Beyond them lie patterns that call functions whose cost
 * it cannot know: of others they say nothing, and a guess by them would block what is cheap. */
#define LEAST_COLD_K 500.0
#define MOST_COLD_K 20000.0
#define EARLY_CALLS 3u /* from here on a pattern's line counts before there is a plan */
#define EARLY_BITS 2.0 /* an early block has to be sure */
/* A pattern that is blocked for its estimate alone never runs, so nobody learns that it has become
 * cheap. So one execution is let through now and then: a quarter of an hour after the last one, and
 * for expensive ones so rarely that they use a hundredth of one CPU at most. */
#define AGAIN_AFTER_NS UINT64_C(900000000000)
#define AGAIN_SHARE 100
#define MIN_UNITS 0.01 /* of plan cost: a plan that cannot return anything has 0 */
#define MAX_UNITS 1e15 /* keeps the averages finite */

/* Of a line: budgets/cost.py has the reasons. */
#define LINE_CALLS 64u
#define LEVEL_CALLS 16u
#define BEND_CALLS 8u
#define BEND_WEIGHT 0.125
#define BEND_UNIT 1024.0
#define MOST_BEND 8.0
#define MAX_SLOPE 2.0
#define FAR_VARIANCE 0.25
#define MAX_VARIANCE 36.0
#define PRIOR_VARIANCE 0.25
#define PRIOR_CALLS 4.0
#define MAX_MEAN_BITS 1.0
#define TYPICAL_BITS 2.0
#define Z90 1.2815515655446004
#define HALF_LN2 0.34657359027997264
#define LN2 0.6931471805599453
#define SQRT_HALF 0.7071067811865476

/* ── Numbers ──────────────────────────────────────────────────────────────── */

/* Not the library's: Python has to come to the same bits, on every machine. */
static double log2_of(double value)
{
    uint64_t bits;
    int exponent;
    double part, square, series;

    memcpy(&bits, &value, sizeof bits);
    exponent = (int) (bits >> 52 & 2047) - 1022;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1022) << 52;
    memcpy(&value, &bits, sizeof value);
    if (value < SQRT_HALF) {
        value *= 2.0;
        exponent--;
    }
    part = (value - 1.0) / (value + 1.0);
    square = part * part;
    series = square * (1.0 / 7.0 + square * (1.0 / 9.0));
    series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + series));
    return (double) exponent + part * series * (2.0 / LN2);
}

static double exp2_of(double value)
{
    uint64_t bits;
    int whole;
    double part, series, power;

    if (!(value > -64.0)) /* NaN neither */
        value = -64.0;
    if (value > 64.0)
        value = 64.0;
    whole = (int) (value + 64.5) - 64;
    part = (value - (double) whole) * LN2;
    series = 1.0 + part * (1.0 / 6.0) * (1.0 + part * (1.0 / 7.0));
    series = 1.0 + part * (1.0 / 4.0) * (1.0 + part * (1.0 / 5.0) * series);
    series = 1.0 + part * (1.0 + part * (1.0 / 2.0) * (1.0 + part * (1.0 / 3.0) * series));
    bits = (uint64_t) (whole + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return series * power;
}

/* One instruction, and exact everywhere. */
static double root_of(double value)
{
    return __builtin_sqrt(value);
}

static double lesser(double a, double b)
{
    return b < a ? b : a;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(double value)
{
    float rounded_once = (float) value;
    uint32_t bits;

    memcpy(&bits, &rounded_once, sizeof bits);
    return bits;
}

static int bent(double value)
{
    if (!(value > -MOST_BEND))
        value = -MOST_BEND;
    if (value > MOST_BEND)
        value = MOST_BEND;
    return (int) (value * BEND_UNIT + 16384.5) - 16384;
}

/* ── A line ───────────────────────────────────────────────────────────────── */

typedef struct line {
    uint32_t shape, calls;
    double variance;
    double plan_cost, cpu; /* means of log2 */
    double spread, common; /* variance of plan cost, covariance */
    int16_t bends[4];
} line;

static uint64_t state_of(const line *known)
{
    return (uint64_t) known->calls << 48 | (uint64_t) known->shape << 32 | bits_of(known->variance);
}

static uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static uint32_t calls_of(uint64_t state)
{
    return (uint32_t) (state >> 48) & 0xff;
}

static bool is_of(uint64_t state, uint32_t shape)
{
    return shape != 0 && calls_of(state) > 0 && ((uint32_t) (state >> 32) & 0xffff) == shape;
}

/* Its state, as it is at the beginning. */
static uint64_t read_line(const hg_line *from, line *known)
{
    uint64_t state = load(&from->state);
    uint64_t means = load(&from->means);
    uint64_t spreads = load(&from->spreads);
    uint64_t bends = load(&from->bends);

    known->shape = (uint32_t) (state >> 32) & 0xffff;
    known->calls = calls_of(state);
    known->variance = (double) float_of((uint32_t) state);
    known->plan_cost = (double) float_of((uint32_t) means);
    known->cpu = (double) float_of((uint32_t) (means >> 32));
    known->spread = (double) float_of((uint32_t) spreads);
    known->common = (double) float_of((uint32_t) (spreads >> 32));
    memcpy(known->bends, &bends, sizeof known->bends);
    return state;
}

/* How uncertain the slope is: 1 before anything of it is known. */
static double doubt_of(const line *known)
{
    return 1.0 / (known->spread * (double) known->calls + 1.0);
}

static double slope_of(const line *known)
{
    double found = (known->common * (double) known->calls + 1.0) * doubt_of(known);

    return found > 0.0 ? lesser(MAX_SLOPE, found) : 0.0;
}

static unsigned bend_at(const line *known, double plan_cost)
{
    double off = plan_cost - known->plan_cost;
    bool far = off * off > (known->spread > FAR_VARIANCE ? known->spread : FAR_VARIANCE);

    return off < 0.0 ? (far ? 0 : 1) : far ? 3 : 2;
}

static double middle_of(const line *known, double plan_cost)
{
    double bend = known->bends[bend_at(known, plan_cost)] / BEND_UNIT;

    return known->cpu + slope_of(known) * (plan_cost - known->plan_cost) + bend;
}

static double typical_of(const line *known)
{
    return known->cpu + (known->bends[1] + known->bends[2]) / (2.0 * BEND_UNIT);
}

static double total_variance(const line *known)
{
    double slope = slope_of(known);

    return slope * slope * known->spread + known->variance;
}

static uint64_t rounded(double cost_ns)
{
    if (!(cost_ns > 1.0)) /* so that an explicit 0 admits nothing; and NaN is no number */
        return 1;
    if (cost_ns >= (double) HG_MAX_COST_NS)
        return HG_MAX_COST_NS;
    return (uint64_t) (cost_ns + 0.5);
}

static hg_cost cost_at(const line *known, double plan_cost)
{
    double middle = middle_of(known, plan_cost);
    double calls = (double) known->calls;
    double off = plan_cost - known->plan_cost;
    double level = lesser(calls, (double) LEVEL_CALLS);
    double spread = (known->variance * calls + PRIOR_VARIANCE * PRIOR_CALLS)
                    / (calls + PRIOR_CALLS);
    hg_cost cost;

    spread = spread * (1.0 + 0.5 / level + off * off * doubt_of(known));
    cost.mean_ns = rounded(exp2_of(middle + lesser(known->variance * HALF_LN2, MAX_MEAN_BITS)));
    cost.p90_ns = rounded(exp2_of(middle + Z90 * root_of(lesser(spread, MAX_VARIANCE))));
    cost.p90_ns = hg_most(cost.p90_ns, cost.mean_ns);
    return cost;
}

/* Of a free one: the first execution. The others' state may be taken by another statement meanwhile: then
 * this one teaches nothing. */
static void begin_line(hg_line *at, uint64_t old, uint32_t shape, double plan_cost, double cpu)
{
    line fresh = {.shape = shape, .calls = 1};

    if (!atomic_compare_exchange_strong_explicit(&at->state, &old, state_of(&fresh),
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    atomic_store_explicit(&at->means, (uint64_t) bits_of(cpu) << 32 | bits_of(plan_cost),
                          memory_order_relaxed);
    atomic_store_explicit(&at->spreads, 0, memory_order_relaxed);
    atomic_store_explicit(&at->bends, 0, memory_order_relaxed);
}

/* Tried once: of two statements that end at the same moment, one teaches nothing. */
static void teach(hg_line *at, double plan_cost, double cpu)
{
    line known;
    uint64_t old = read_line(at, &known);
    uint32_t before = known.calls;
    double slope, miss, weight, level_weight, off, cpu_off, missed;
    uint64_t bends;

    if (before == 0) {
        begin_line(at, old, known.shape, plan_cost, cpu);
        return;
    }
    slope = slope_of(&known);
    miss = cpu - middle_of(&known, plan_cost);
    off = plan_cost - known.plan_cost;
    cpu_off = cpu - known.cpu;
    missed = lesser(miss * miss, MAX_VARIANCE);
    if (before >= BEND_CALLS) {
        int16_t *bend = &known.bends[bend_at(&known, plan_cost)];

        *bend = (int16_t) bent(*bend / BEND_UNIT + miss * BEND_WEIGHT);
    }
    known.calls = before < LINE_CALLS ? before + 1 : LINE_CALLS;
    weight = 1.0 / (double) known.calls;
    level_weight = 1.0 / lesser((double) known.calls, (double) LEVEL_CALLS);
    known.variance = known.variance + (missed - known.variance) / (double) before;
    known.plan_cost = known.plan_cost + level_weight * off;
    known.cpu = known.cpu + level_weight * (slope * off + miss);
    known.spread = (1.0 - weight) * (known.spread + weight * (off * off));
    known.common = (1.0 - weight) * (known.common + weight * (off * cpu_off));
    if (!atomic_compare_exchange_strong_explicit(&at->state, &old, state_of(&known),
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    memcpy(&bends, known.bends, sizeof bends);
    atomic_store_explicit(&at->means,
                          (uint64_t) bits_of(known.cpu) << 32 | bits_of(known.plan_cost),
                          memory_order_relaxed);
    atomic_store_explicit(&at->spreads,
                          (uint64_t) bits_of(known.common) << 32 | bits_of(known.spread),
                          memory_order_relaxed);
    atomic_store_explicit(&at->bends, bends, memory_order_relaxed);
}

/* By a statement that was cut short: its level alone, so that no estimate falls. */
static void raise_level(hg_line *at, double plan_cost, double cpu)
{
    line known;
    double miss;

    read_line(at, &known);
    miss = cpu - middle_of(&known, plan_cost);
    if (!(miss > 0.0))
        return;
    known.cpu += miss * (1.0 / lesser((double) (known.calls + 1), (double) LEVEL_CALLS));
    atomic_store_explicit(&at->means,
                          (uint64_t) bits_of(known.cpu) << 32 | bits_of(known.plan_cost),
                          memory_order_relaxed);
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

static double units(double plan_cost, uint32_t flags)
{
    if (flags & HG_UTILITY)
        return 1.0;
    if (!(plan_cost > MIN_UNITS)) /* NaN neither */
        return MIN_UNITS;
    return plan_cost < MAX_UNITS ? plan_cost : MAX_UNITS;
}

static hg_cost both(uint64_t cost_ns)
{
    return (hg_cost){cost_ns, cost_ns};
}

/* What nearly all executions exceed: a quarter of the typical cost, or what nine of ten exceed. */
static hg_cost early(const hg_pattern *pattern)
{
    double spread, below = EARLY_BITS;
    line known;

    if (pattern == NULL
        || atomic_load_explicit(&pattern->calls, memory_order_relaxed) < EARLY_CALLS)
        return both(1);
    read_line(&pattern->whole, &known);
    if (known.calls == 0)
        return both(1);
    spread = total_variance(&known);
    if (spread > 0.0) {
        double most = Z90 * root_of(lesser(spread, MAX_VARIANCE));

        below = most > below ? most : below;
    }
    return both(rounded(exp2_of(typical_of(&known) - below)));
}

/* Of a pattern that has never run. A guess has no p90: nothing that blocked it would ever correct it. */
static hg_cost guessed(const hg_region *region, double plan_cost)
{
    double guess;
    line known;

    read_line(&region->host, &known);
    if (known.calls == 0)
        return both(rounded(COLD_K * plan_cost));
    guess = exp2_of(middle_of(&known, log2_of(plan_cost)));
    guess = guess > LEAST_COLD_K * plan_cost ? guess : LEAST_COLD_K * plan_cost;
    return both(rounded(lesser(guess, MOST_COLD_K * plan_cost)));
}

/* The line of its shape, else that of all its plans; false: neither has been taught. */
static bool line_for(const hg_pattern *pattern, uint32_t shape, line *known)
{
    for (uint32_t i = 0; i < HG_SHAPES; i++)
        if (is_of(load(&pattern->shapes[i].state), shape)) {
            read_line(&pattern->shapes[i], known);
            return known->calls > 0;
        }
    read_line(&pattern->whole, known);
    return known->calls > 0;
}

hg_cost hg_estimate(const hg_region *region, const hg_ask *ask)
{
    const hg_pattern *pattern;
    double plan_cost;
    line known;

    if (ask->flags & HG_COST_GIVEN) {
        uint64_t given_ns = hg_least(hg_most(ask->cost_ns, 1), HG_MAX_COST_NS);

        return (hg_cost){given_ns, hg_most(given_ns, hg_least(ask->p90_ns, HG_MAX_COST_NS))};
    }
    pattern = find(region, ask->pattern);
    if (ask->flags & HG_EARLY)
        return early(pattern);
    plan_cost = units(ask->plan_cost, ask->flags);
    if (pattern != NULL && line_for(pattern, (uint16_t) ask->shape, &known))
        return cost_at(&known, log2_of(plan_cost));
    if (ask->flags & HG_UTILITY)
        return both(1);
    return guessed(region, plan_cost);
}

void hg_pattern_typical(const hg_pattern *pattern, hg_typical *typical)
{
    line known;
    double middle, spread;

    memset(typical, 0, sizeof *typical);
    read_line(&pattern->whole, &known);
    if (known.calls == 0)
        return;
    middle = typical_of(&known);
    spread = total_variance(&known);
    typical->plan_cost = exp2_of(known.plan_cost);
    typical->k = exp2_of(middle) / typical->plan_cost;
    typical->cost = both(rounded(exp2_of(middle + lesser(spread * HALF_LN2, TYPICAL_BITS))));
    if (spread > 0.0) {
        double p90 = exp2_of(middle + Z90 * root_of(lesser(spread, MAX_VARIANCE)));

        typical->cost.p90_ns = hg_most(typical->cost.mean_ns, rounded(p90));
    }
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
    atomic_store_explicit(&pattern->whole.state, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < HG_SHAPES; i++)
        atomic_store_explicit(&pattern->shapes[i].state, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->calls, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->error, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->cpu_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&pattern->wall_ns, 0, memory_order_relaxed);
    pattern->query_id = holding->query_id;
    pattern->database = holding->database;
    atomic_store_explicit(&pattern->key, holding->pattern, memory_order_release);
    return pattern;
}

/* The mean of the first four; then a quarter of each new one. */
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

/* In its own line, or a free one. Where there is none, every line forgets one of its executions: one that is
 * not used any more becomes free, and shapes that come and go take no line from those that stay. */
static void learn_shape(hg_pattern *pattern, uint32_t shape, double plan_cost, double cpu)
{
    hg_line *lines = pattern->shapes;
    hg_line *unused = NULL;
    uint64_t state;

    for (uint32_t i = 0; i < HG_SHAPES; i++) {
        state = load(&lines[i].state);
        if (is_of(state, shape)) {
            teach(&lines[i], plan_cost, cpu);
            return;
        }
        if (unused == NULL && calls_of(state) == 0)
            unused = &lines[i];
    }
    if (unused != NULL) {
        begin_line(unused, load(&unused->state), shape, plan_cost, cpu);
        return;
    }
    for (uint32_t i = 0; i < HG_SHAPES; i++) {
        state = load(&lines[i].state);
        if (calls_of(state) > 0)
            atomic_compare_exchange_strong_explicit(&lines[i].state, &state,
                                                    state - (UINT64_C(1) << 48),
                                                    memory_order_relaxed, memory_order_relaxed);
    }
}

/* It was cut short: it may raise what is known, and never lower it (R108). */
static void learn_aborted(hg_pattern *pattern, const hg_holding *holding, uint64_t actual_ns,
                          double plan_cost, double cpu)
{
    uint32_t shape = (uint16_t) holding->shape;

    if (actual_ns <= holding->estimate_ns)
        return;
    if (calls_of(load(&pattern->whole.state)) == 0) {
        one_more_call(pattern);
        teach(&pattern->whole, plan_cost, cpu);
        return;
    }
    raise_level(&pattern->whole, plan_cost, cpu);
    for (uint32_t i = 0; i < HG_SHAPES; i++)
        if (is_of(load(&pattern->shapes[i].state), shape))
            raise_level(&pattern->shapes[i], plan_cost, cpu);
}

/* Its executions by now; 0: none that teaches others. */
static uint32_t learn_pattern(hg_region *region, const hg_holding *holding, uint64_t actual_ns,
                              double plan_cost, double cpu, bool aborted, uint64_t now_ns)
{
    hg_pattern *pattern = find(region, holding->pattern);
    uint32_t calls;

    if (pattern == NULL)
        pattern = insert(region, holding);
    if (pattern == NULL)
        return 0;
    hg_add(&pattern->cpu_ns, actual_ns);
    hg_add(&pattern->wall_ns, holding->wall_ns);
    atomic_store_explicit(&pattern->last_ns, now_ns, memory_order_relaxed);
    if (aborted) {
        learn_aborted(pattern, holding, actual_ns, plan_cost, cpu);
        return 0;
    }
    calls = one_more_call(pattern);
    teach(&pattern->whole, plan_cost, cpu);
    if ((uint16_t) holding->shape != 0)
        learn_shape(pattern, (uint16_t) holding->shape, plan_cost, cpu);
    learn_error(pattern, holding->estimate_ns, actual_ns, calls);
    return calls;
}

/* A pattern teaches the line of all at its 1st, 2nd, 4th, 8th … execution, so that a frequent one does not
 * outweigh all others, nor do they all write to one place. */
void hg_learn(hg_region *region, const hg_holding *holding, uint64_t actual_ns, bool aborted,
              uint64_t now_ns)
{
    double plan_cost, cpu;
    uint32_t calls = aborted ? 0 : 1;

    if (holding->flags & HG_COST_GIVEN)
        return;
    plan_cost = log2_of(units(holding->plan_cost, holding->flags));
    cpu = log2_of((double) hg_most(actual_ns, 1));
    if (holding->pattern > HG_TAKEN_KEY)
        calls = learn_pattern(region, holding, actual_ns, plan_cost, cpu, aborted, now_ns);
    if (calls > 0 && (calls & (calls - 1)) == 0 && (holding->flags & HG_UTILITY) == 0)
        teach(&region->host, plan_cost, cpu);
}
