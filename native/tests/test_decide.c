/* Buckets, limits, patterns, and what a decision leaves behind. 2 CPUs: 10 % are 200 ms a second. */
#include "support.h"

static test_policy policy;
static hg_region *region;
static hg_matches matches;
static hg_answer answer;

static void fresh(uint32_t budgets)
{
    hg_sizes sizes = small_sizes();

    free(region);
    region = make_region(&sizes);
    make_policy(&policy, budgets, 1);
    match_all(&policy, budgets, &matches);
}

static hg_verdict take(hg_ask ask, hg_holding *holding)
{
    hg_take(region, policy_in(&policy), &matches, &ask, &answer, holding);
    return answer.verdict;
}

static hg_verdict check(hg_ask ask)
{
    hg_check(region, policy_in(&policy), &matches, &ask, &answer);
    return answer.verdict;
}

static hg_count *count_of(uint32_t budget)
{
    return hg_count_of(region, budget_in(&policy, budget)->key, NULL, 0);
}

static uint64_t key_of(uint32_t budget)
{
    return budget_in(&policy, budget)->key;
}

/* ── Buckets ──────────────────────────────────────────────────────────────── */

static void a_bucket_overflows_and_drains(void)
{
    hg_holding a, b;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 100000); /* 10 %, 100 %·s: 2 s of CPU */
    assert(take(asks(2 * SECOND, SECOND), &a) == HG_RUN);
    assert(owed(region, key_of(0), SECOND) == 2 * SECOND);
    assert(take(asks(1, SECOND), &b) == HG_BLOCK);
    assert(answer.decided_by == HG_BUCKET && answer.used == 2 * SECOND);
    assert(answer.bound == 2 * SECOND && answer.retry_ns == 5); /* 1 ns at a fifth of a CPU */
    assert(check(asks(200 * MS, 2 * SECOND)) == HG_RUN); /* 200 ms have drained */
    assert(check(asks(200 * MS + 1, 2 * SECOND)) == HG_BLOCK);
    assert(check(asks(2 * SECOND + 1, 100 * SECOND)) == HG_BLOCK);
    assert(answer.retry_ns == HG_NEVER);
    hg_settle(region, &a, 2 * SECOND, false, 2 * SECOND);
    assert(owed(region, key_of(0), 11 * SECOND) == 0);
}

static void what_was_charged_too_much_is_given_back_but_not_what_has_drained(void)
{
    hg_holding a;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    assert(take(asks(SECOND, SECOND), &a) == HG_RUN);
    hg_settle(region, &a, 400 * MS, false, 2 * SECOND);
    assert(owed(region, key_of(0), 2 * SECOND) == 200 * MS); /* 1 s - 600 ms - 200 ms drained */

    assert(take(asks(SECOND, 50 * SECOND), &a) == HG_RUN);
    hg_settle(region, &a, 0, false, 54 * SECOND); /* 800 ms have drained: 200 are left */
    assert(owed(region, key_of(0), 54 * SECOND) == 0);
    assert(take(asks(SECOND, 60 * SECOND), &a) == HG_RUN);
    hg_settle(region, &a, 1500 * MS, false, 60 * SECOND);
    assert(owed(region, key_of(0), 60 * SECOND) == 1500 * MS);
    assert(atomic_load(&count_of(0)->charged_ns) == 1900 * MS);
    hg_settle(region, &a, 1500 * MS, false, 60 * SECOND); /* once is enough */
    assert(atomic_load(&count_of(0)->charged_ns) == 1900 * MS);
}

static void others_refunds_are_not_given_back_twice(void)
{
    hg_holding a, b;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    assert(take(asks(SECOND, SECOND), &a) == HG_RUN);
    assert(take(asks(SECOND, SECOND), &b) == HG_RUN);
    hg_settle(region, &a, 0, false, SECOND);
    assert(owed(region, key_of(0), SECOND) == SECOND);
    hg_settle(region, &b, 0, false, 4 * SECOND); /* of b 600 ms have drained since */
    assert(owed(region, key_of(0), 4 * SECOND) == 0);
    assert(atomic_load(&bucket_of(region, key_of(0))->empty_at_ns) == 4 * SECOND);
}

/* So many keys of the same set. */
static uint64_t nth_key(uint64_t n)
{
    return 1000 * 64 + n * 64 + 3;
}

static void the_soonest_empty_is_evicted_and_its_debt_forgiven(void)
{
    hg_holding held;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    for (uint64_t n = 0; n < HG_EACH_WAYS; n++) { /* the fifth has the least debt */
        match_each(&policy, 0, nth_key(n), &matches);
        assert(take(asks(n == 5 ? 100 * MS : SECOND + n, SECOND), &held) == HG_RUN);
        hg_settle(region, &held, n == 5 ? 100 * MS : SECOND + n, false, SECOND);
    }
    match_each(&policy, 0, nth_key(HG_EACH_WAYS), &matches);
    assert(check(asks(1, SECOND)) == HG_RUN);
    assert(bucket_of(region, nth_key(5)) != NULL); /* to look evicts nobody */
    assert(take(asks(SECOND, SECOND), &held) == HG_RUN);
    assert(bucket_of(region, nth_key(5)) == NULL);
    assert(strcmp(bucket_of(region, nth_key(HG_EACH_WAYS))->label, "t=64771") == 0);
    assert(atomic_load(&count_of(0)->evicted) == 1);
    assert(atomic_load(&count_of(0)->forgiven_ns) == 100 * MS);
    hg_settle(region, &held, SECOND, false, SECOND);
    match_each(&policy, 0, nth_key(17), &matches);
    assert(take(asks(SECOND, 100 * SECOND), &held)
           == HG_RUN); /* all are empty: nothing to forgive */
    assert(atomic_load(&count_of(0)->evicted) == 1);
    hg_settle(region, &held, SECOND, false, SECOND);
}

static void a_set_in_use_runs_uncounted(void)
{
    hg_holding held[HG_EACH_WAYS + 1];

    fresh(1);
    set_workers(budget_in(&policy, 0), 1);
    for (uint64_t n = 0; n <= HG_EACH_WAYS; n++) {
        match_each(&policy, 0, nth_key(n), &matches);
        assert(take(asks(1, SECOND), &held[n]) == HG_RUN);
    }
    assert(atomic_load(&count_of(0)->unpinned) == 1);
    assert(atomic_load(&count_of(0)->admitted) == HG_EACH_WAYS + 1);
    assert(held[HG_EACH_WAYS].at[0].index == HG_NO_BUCKET);
    assert(bucket_of(region, nth_key(HG_EACH_WAYS)) == NULL);
    for (uint64_t n = 0; n <= HG_EACH_WAYS; n++)
        hg_settle(region, &held[n], 1, false, SECOND);
    assert(all_holders(region) == 0);
}

/* A table of one set, so that all are in each other's way. */
static void fresh_set(uint32_t budgets)
{
    hg_sizes sizes = small_sizes();

    fresh(budgets);
    free(region);
    sizes.buckets = HG_WAYS;
    region = make_region(&sizes);
}

static void made_up_values_wash_no_debt_of_a_budget_away(void)
{
    hg_holding pins[HG_EACH_WAYS], held;

    fresh_set(2);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    set_bucket(budget_in(&policy, 1), 10, 100000); /* slow: its buckets are never soonest empty */
    matches.count = 1;
    assert(take(asks(SECOND, SECOND), &held) == HG_RUN);
    hg_settle(region, &held, SECOND, false, SECOND);
    for (uint64_t n = 0; n < 200; n++) {
        match_each(&policy, 1, nth_key(n), &matches);
        assert(take(asks(MS, SECOND), &held) == HG_RUN);
        hg_settle(region, &held, MS, false, SECOND);
    }
    for (uint64_t n = 0; n < HG_EACH_WAYS; n++) {
        match_each(&policy, 1, nth_key(1000 + n), &matches);
        assert(take(asks(MS, SECOND), &pins[n]) == HG_RUN);
    }
    match_each(&policy, 1, nth_key(2000), &matches);
    assert(take(asks(MS, SECOND), &held) == HG_RUN);
    hg_settle(region, &held, MS, false, SECOND);
    assert(atomic_load(&count_of(1)->unpinned) == 1);
    assert(owed(region, key_of(0), SECOND) == SECOND);
    assert(atomic_load(&count_of(0)->forgiven_ns) == 0);
    for (uint64_t n = 0; n < HG_EACH_WAYS; n++)
        hg_settle(region, &pins[n], MS, false, SECOND);
}

static void budgets_own_buckets_overflow_into_the_others_ways(void)
{
    hg_holding held;

    fresh_set(HG_WAYS + 2);
    for (uint32_t i = 0; i < HG_WAYS + 2; i++)
        set_bucket(budget_in(&policy, i), 10000, 100000);
    for (uint64_t n = 0; n < HG_EACH_WAYS; n++) {
        match_each(&policy, HG_WAYS + 1, nth_key(n), &matches);
        assert(take(asks(10 * SECOND, SECOND), &held) == HG_BLOCK);
        assert(take(asks(SECOND, SECOND), &held) == HG_RUN);
        hg_settle(region, &held, SECOND, false, SECOND);
    }
    for (uint32_t i = 0; i < HG_WAYS; i++) { /* a value's goes first, however large its debt */
        match_all(&policy, HG_WAYS, &matches);
        matches.at[0] = matches.at[i];
        matches.count = 1;
        assert(take(asks(100 * MS + i, SECOND), &held) == HG_RUN);
        hg_settle(region, &held, 100 * MS + i, false, SECOND);
    }
    assert(atomic_load(&count_of(HG_WAYS + 1)->evicted) == HG_EACH_WAYS);
    match_each(&policy, HG_WAYS + 1, nth_key(0), &matches); /* now all that is there has debt */
    assert(take(asks(MS, SECOND), &held) == HG_RUN);
    assert(atomic_load(&count_of(HG_WAYS + 1)->unpinned) == 1);
    hg_settle(region, &held, MS, false, SECOND);
    match_all(&policy, HG_WAYS + 1, &matches);
    matches.at[0] = matches.at[HG_WAYS];
    matches.count = 1;
    assert(take(asks(SECOND, SECOND), &held) == HG_RUN);
    hg_settle(region, &held, SECOND, false, SECOND);
    assert(atomic_load(&count_of(0)->forgiven_ns)
           == 100 * MS); /* of its own kind the soonest empty */
    match_each(&policy, HG_WAYS + 1, nth_key(0), &matches); /* one without debt may go */
    assert(take(asks(MS, 3 * SECOND), &held) == HG_RUN && held.at[0].counted);
    assert(atomic_load(&count_of(4)->forgiven_ns) == 0 && bucket_of(region, key_of(4)) == NULL);
    hg_settle(region, &held, MS, false, 3 * SECOND);
}

static void a_secret_spreads_the_buckets(void)
{
    hg_holding held;
    uint32_t sets = 0;

    fresh(1);
    hg_region_keyed(region, 0x1234567890abcdef);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    for (uint64_t n = 0; n < HG_EACH_WAYS; n++) {
        match_each(&policy, 0, nth_key(n), &matches);
        assert(take(asks(MS, SECOND), &held) == HG_RUN);
        sets |= 1u << held.at[0].index / HG_WAYS;
        hg_settle(region, &held, MS, false, SECOND);
    }
    assert(sets == 15);
}

static void a_cursor_at_rest_keeps_its_bucket(void)
{
    hg_holding cursor, held;

    fresh_set(2);
    set_workers(budget_in(&policy, 0), 1);
    set_bucket(budget_in(&policy, 1), 10000, 100000);
    match_each(&policy, 0, nth_key(999), &matches);
    assert(take(asks(MS, SECOND), &cursor) == HG_RUN);
    hg_pause(region, &cursor);
    for (uint64_t n = 0; n < 100; n++) {
        match_each(&policy, 1, nth_key(n), &matches);
        assert(take(asks(SECOND, SECOND), &held) == HG_RUN);
        hg_settle(region, &held, SECOND, false, SECOND);
    }
    hg_resume(region, &cursor);
    match_each(&policy, 0, nth_key(999), &matches);
    assert(take(asks(MS, SECOND), &held) == HG_BLOCK && answer.decided_by == HG_CONCURRENCY);
    hg_pause(region, &cursor);
    hg_settle(region, &cursor, MS, false, SECOND);
    assert(all_holders(region) == 0);
}

static void a_locked_set_is_waited_for_only_so_long(void)
{
    hg_holding held;

    fresh(1);
    set_workers(budget_in(&policy, 0), 1);
    match_each(&policy, 0, nth_key(0), &matches);
    for (uint32_t set = 0; set < 4; set++)
        atomic_store(&hg_bucket_locks_in(region)[set], 4711);
    assert(take(asks(1, SECOND), &held) == HG_RUN);
    assert(atomic_load(&count_of(0)->unpinned) == 1);
    hg_settle(region, &held, 1, false, SECOND);
    hg_process_gone(region, 4711);
    assert(take(asks(1, SECOND), &held) == HG_RUN);
    assert(atomic_load(&count_of(0)->unpinned) == 1 && all_holders(region) != 0);
    hg_settle(region, &held, 1, false, SECOND);
}

static void another_rate_keeps_the_debt_another_epoch_forgives_it(void)
{
    hg_holding a, b;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    assert(take(asks(SECOND, SECOND), &a) == HG_RUN);
    budget_in(&policy, 0)->rate_mpct = 20000;
    assert(check(asks(SECOND, SECOND)) == HG_RUN);
    assert(check(asks(SECOND + 1, SECOND)) == HG_BLOCK && answer.used == SECOND);
    assert(atomic_load(&bucket_of(region, key_of(0))->rate_mpct) == 20000);
    assert(take(asks(100 * MS, SECOND), &b) == HG_RUN);
    assert(owed(region, key_of(0), SECOND) == 1100 * MS);
    assert(owed(region, key_of(0), 2 * SECOND) == 700 * MS);
    hg_settle(region, &a, 0, false, SECOND); /* charged by another rate: nothing is given back */
    assert(owed(region, key_of(0), SECOND) == 1100 * MS);
    budget_in(&policy, 0)->epoch = 1;
    assert(check(asks(2 * SECOND, SECOND)) == HG_RUN);
    assert(owed(region, key_of(0), SECOND) == 0); /* forgiven by the look, once */
    assert(take(asks(SECOND, SECOND), &a) == HG_RUN);
    assert(owed(region, key_of(0), SECOND) == SECOND);
    assert(atomic_load(&count_of(0)->forgiven_ns) == 1100 * MS);
    assert(atomic_load(&count_of(0)->evicted) == 0);
    hg_settle(region, &b, 0, false, SECOND); /* it has been forgiven already */
    assert(owed(region, key_of(0), SECOND) == SECOND);
    hg_settle(region, &a, SECOND, false, SECOND);
}

static void huge_costs_and_tiny_rates_do_not_wrap(void)
{
    hg_holding held[4];

    fresh(1);
    region->cpus_milli = 1;
    set_bucket(budget_in(&policy, 0), 1, 6000000);
    for (int i = 0; i < 4; i++) {
        hg_ask ask = asks(UINT64_MAX, SECOND);

        ask.flags |= HG_IN_TRANSACTION;
        assert(take(ask, &held[i]) == HG_RUN && answer.estimate_ns == HG_MAX_COST_NS);
    }
    assert(check(asks(1, SECOND)) == HG_BLOCK);
    for (int i = 0; i < 4; i++)
        hg_settle(region, &held[i], UINT64_MAX, false, UINT64_C(1) << 61);
    assert(check(asks(1, UINT64_C(1) << 61)) == HG_BLOCK && all_holders(region) == 0);
}

/* ── Limits ───────────────────────────────────────────────────────────────── */

static void an_explicit_zero_admits_nothing(void)
{
    static const uint32_t zeros[] = {HG_SET_RATE,        HG_SET_CAPACITY,
                                     HG_SET_BURST,       HG_SET_CONCURRENCY,
                                     HG_SET_MAX_WORKERS, HG_SET_RATE | HG_SET_CAPACITY};
    static const uint8_t by[] = {HG_BUCKET,      HG_BUCKET,      HG_QUERY,
                                 HG_CONCURRENCY, HG_CONCURRENCY, HG_BUCKET};

    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) {
        fresh(1);
        budget_in(&policy, 0)->set = zeros[i];
        assert(check(asks(0, SECOND)) == HG_BLOCK && answer.decided_by == by[i]);
        assert(answer.bound == 0);
    }
    fresh(1);
    assert(check(asks(HG_MAX_COST_NS, SECOND)) == HG_RUN); /* no limit set */
    budget_in(&policy, 0)->set = HG_SET_RATE; /* a rate without a capacity never overflows */
    budget_in(&policy, 0)->rate_mpct = 1;
    assert(check(asks(HG_MAX_COST_NS, SECOND)) == HG_RUN);
}

/* A statement that is blocked under a new rate, and comes back in time, is admitted: not before. */
static void the_time_told_after_a_change_of_rate_holds(uint32_t before_mpct, uint32_t after_mpct)
{
    hg_holding held;
    uint64_t told_ns;

    fresh(1);
    set_bucket(budget_in(&policy, 0), before_mpct, 100000);
    assert(take(asks(2 * SECOND, SECOND), &held) == HG_RUN);
    hg_settle(region, &held, 2 * SECOND, false, SECOND);
    budget_in(&policy, 0)->rate_mpct = after_mpct;
    assert(take(asks(SECOND, 2 * SECOND), &held) == HG_BLOCK);
    told_ns = answer.retry_ns;
    assert(told_ns > 0 && told_ns != HG_NEVER);
    assert(take(asks(SECOND, 2 * SECOND + told_ns - 1), &held) == HG_BLOCK);
    assert(answer.retry_ns == 1);
    assert(take(asks(SECOND, 2 * SECOND + told_ns), &held) == HG_RUN);
    hg_settle(region, &held, SECOND, false, 2 * SECOND + told_ns);
}

static void concurrency_counts_workers_and_rounds_up(void)
{
    hg_holding a, b;
    hg_ask parallel = asks(1, SECOND);

    fresh(1);
    budget_in(&policy, 0)->set = HG_SET_CONCURRENCY;
    budget_in(&policy, 0)->concurrency_mpct = 11000; /* of 20 workers: 2.2, so 3 */
    parallel.workers = 3;
    assert(take(parallel, &a) == HG_RUN);
    assert(take(asks(1, SECOND), &b) == HG_BLOCK && answer.decided_by == HG_CONCURRENCY);
    assert(answer.used == 3 && answer.bound == 3 && answer.retry_ns == 100 * MS);
    hg_pause(region, &a);
    hg_pause(region, &a);
    assert(all_holders(region) == UINT64_C(1) << 32); /* it holds no worker, but its bucket */
    assert(take(asks(1, SECOND), &b) == HG_RUN);
    hg_resume(region, &a); /* without a check: 4 of 3 */
    hg_resume(region, &a);
    assert((uint32_t) all_holders(region) == 4);
    hg_settle(region, &a, 1, true, SECOND);
    hg_settle(region, &b, 1, false, SECOND);
    assert(all_holders(region) == 0);
}

static void a_block_leaves_every_budget_as_it_was(void)
{
    hg_holding held;
    static char before[1 << 20], after[1 << 20];

    fresh(3);
    assert(region->length <= sizeof before);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    set_workers(budget_in(&policy, 1), 1);
    set_bucket(budget_in(&policy, 2), 10000, 10000); /* 200 ms */
    memcpy(before, region, region->length);
    assert(take(asks(SECOND, SECOND), &held) == HG_BLOCK && answer.match == 2);
    memcpy(after, region, region->length);
    assert(memcmp(before, after, region->length) == 0);
    hg_settle(region, &held, 1, false, SECOND); /* of nothing */
    assert(memcmp(before, region, region->length) == 0);
}

/* The same bucket twice: the look finds room for each, the taking not for both. */
static void what_was_taken_is_rolled_back_exactly(void)
{
    hg_holding held;
    uint64_t empty_at;

    fresh(2);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    set_bucket(budget_in(&policy, 1), 10000, 10000);
    matches.count = 3;
    matches.at[2] = matches.at[1];
    assert(take(asks(10 * MS, SECOND), &held) == HG_RUN);
    hg_settle(region, &held, 10 * MS, false, SECOND);
    empty_at = atomic_load(&bucket_of(region, key_of(0))->empty_at_ns);
    assert(take(asks(150 * MS, SECOND), &held) == HG_BLOCK && answer.match == 2);
    assert(answer.decided_by == HG_BUCKET && answer.used == 170 * MS);
    assert(atomic_load(&bucket_of(region, key_of(0))->empty_at_ns) == empty_at);
    assert(owed(region, key_of(1), SECOND) == 20 * MS && all_holders(region) == 0);
    assert(atomic_load(&count_of(0)->admitted) == 1 && atomic_load(&count_of(1)->admitted) == 2);
    matches.at[1].budget = matches.at[2].budget = 1;
    budget_in(&policy, 1)->mode = HG_MODE_WARN; /* then it warns, and charges once */
    assert(take(asks(150 * MS, SECOND), &held) == HG_WARN && answer.match == 2);
    assert(owed(region, key_of(1), SECOND) == 170 * MS && held.count == 2);
    hg_settle(region, &held, 150 * MS, false, SECOND);
    assert(all_holders(region) == 0);
}

static void warn_predicts_what_enforce_would_do(void)
{
    hg_holding a, b;

    fresh(2);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    budget_in(&policy, 0)->mode = HG_MODE_WARN;
    assert(take(asks(1500 * MS, SECOND), &a) == HG_RUN);
    assert(take(asks(1500 * MS, SECOND), &b) == HG_WARN);
    assert(answer.match == 0 && answer.limit[0] == HG_BUCKET && answer.limit[1] == 0);
    assert(answer.retry_ns == 5 * SECOND);
    assert(owed(region, key_of(0), SECOND) == 1500 * MS); /* no debt of the one warned of */
    assert(b.count == 1);
    assert(atomic_load(&count_of(0)->warned[HG_BUCKET]) == 1);
    assert(atomic_load(&count_of(0)->admitted) == 1 && atomic_load(&count_of(1)->admitted) == 2);
    assert(atomic_load(&count_of(0)->last_violation_ms) == 5000);
    hg_settle(region, &a, 1500 * MS, false, SECOND);
    hg_settle(region, &b, 1500 * MS, false, SECOND);
    assert(owed(region, key_of(0), SECOND) == 1500 * MS && all_holders(region) == 0);
}

static void the_threshold_warns_early_but_only_where_it_is_enforced(void)
{
    hg_holding held;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    budget_in(&policy, 0)->set |= HG_SET_WARNING;
    budget_in(&policy, 0)->warning_mpct = 50000;
    assert(take(asks(SECOND, SECOND), &held) == HG_RUN); /* half is not more than half */
    hg_settle(region, &held, SECOND, false, SECOND);
    assert(take(asks(1, SECOND), &held) == HG_WARN);
    assert(answer.threshold[0] == HG_BUCKET && answer.limit[0] == 0 && answer.retry_ns == 0);
    assert(atomic_load(&count_of(0)->warned[0]) == 1 && atomic_load(&count_of(0)->admitted) == 2);
    hg_settle(region, &held, 1, false, SECOND);
    budget_in(&policy, 0)->mode = HG_MODE_WARN;
    assert(check(asks(1, SECOND)) == HG_RUN);
}

static void the_order_is_by_step_then_by_document(void)
{
    hg_holding held;

    fresh(3);
    set_workers(budget_in(&policy, 2), 1);
    assert(take(asks(1, SECOND), &held) == HG_RUN);
    set_bucket(budget_in(&policy, 0), 10000, 0);
    budget_in(&policy, 1)->set = HG_SET_BURST;
    assert(check(asks(1, SECOND)) == HG_BLOCK);
    assert(answer.match == 2 && answer.decided_by == HG_CONCURRENCY);
    assert(answer.limit[0] == HG_BUCKET && answer.limit[1] == HG_QUERY);
    budget_in(&policy, 2)->max_delay_ms = 1000; /* waiting helps with this one alone */
    assert(check(asks(1, SECOND)) == HG_BLOCK && answer.match == 1);
    hg_settle(region, &held, 1, false, SECOND);
}

static void a_delay_is_the_longest_wait_that_helps(void)
{
    hg_holding held;
    hg_ask hurried = asks(300 * MS, SECOND);

    fresh(2);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    set_bucket(budget_in(&policy, 1), 20000, 100000);
    budget_in(&policy, 0)->max_delay_ms = budget_in(&policy, 1)->max_delay_ms = 2000;
    assert(take(asks(2 * SECOND, SECOND), &held) == HG_RUN);
    assert(check(asks(300 * MS, SECOND)) == HG_DELAY);
    assert(answer.match == 0 && answer.retry_ns == 1500 * MS);
    assert(check(asks(500 * MS, SECOND)) == HG_BLOCK); /* 2.5 s are too long */
    hurried.flags |= HG_NO_DELAY;
    assert(check(hurried) == HG_BLOCK && answer.retry_ns == 1500 * MS);
    hg_settle(region, &held, 2 * SECOND, false, SECOND);
    fresh(1);
    set_workers(budget_in(&policy, 0), 1);
    budget_in(&policy, 0)->max_delay_ms = 3;
    assert(take(asks(1, SECOND), &held) == HG_RUN);
    assert(check(asks(1, SECOND)) == HG_DELAY && answer.retry_ns == 3 * MS);
    hg_count_delay(region, key_of(0), 7);
    hg_count_delay(region, key_of(0) + 1,
                   9); /* a budget that nobody has counted for: of no effect */
    hg_count_block(region, policy_in(&policy), &matches, &answer, true, 77);
    assert(atomic_load(&count_of(0)->delayed) == 1 && atomic_load(&count_of(0)->delayed_ns) == 7);
    assert(atomic_load(&count_of(0)->blocked[HG_CONCURRENCY]) == 1);
    assert(atomic_load(&count_of(0)->blocked[0]) == 1);
    assert(atomic_load(&count_of(0)->last_violation_ms) == 77);
    hg_settle(region, &held, 1, false, SECOND);
}

static void whoever_is_in_a_transaction_passes_and_is_charged(void)
{
    hg_holding a, b;
    hg_ask inside = asks(SECOND, SECOND);

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 50000);
    set_workers(budget_in(&policy, 0), 1);
    inside.flags |= HG_IN_TRANSACTION;
    assert(take(asks(SECOND, SECOND), &a) == HG_RUN && !answer.passed);
    assert(take(inside, &b) == HG_RUN && answer.passed && answer.limit[0] == HG_CONCURRENCY);
    assert(owed(region, key_of(0), SECOND) == 2 * SECOND && (uint32_t) all_holders(region) == 2);
    assert(atomic_load(&count_of(0)->passed) == 1 && atomic_load(&count_of(0)->admitted) == 2);
    budget_in(&policy, 0)->flags = HG_BUDGET_BLOCKS_INSIDE;
    assert(check(inside) == HG_BLOCK);
    hg_settle(region, &a, SECOND, false, SECOND);
    hg_settle(region, &b, SECOND, false, SECOND);
    assert(all_holders(region) == 0);
}

/* ── Patterns ─────────────────────────────────────────────────────────────── */

static hg_ask planned(double plan_cost, uint64_t pattern, uint32_t flags)
{
    return (hg_ask){.now_ns = SECOND,
                    .plan_cost = plan_cost,
                    .pattern = pattern,
                    .query_id = 77,
                    .database = 5,
                    .workers = 1,
                    .flags = flags};
}

static void run(hg_ask ask, uint64_t actual_ns, bool aborted)
{
    hg_holding held;

    assert(take(ask, &held) == HG_RUN);
    hg_settle(region, &held, actual_ns, aborted, ask.now_ns);
}

static uint64_t mean_of(const hg_ask *ask)
{
    return hg_estimate(region, ask).mean_ns;
}

/* Logarithms are kept as floats: to a millionth or so. */
static bool near(uint64_t found, uint64_t expected)
{
    return llabs((long long) (found - expected)) <= (long long) (expected / 100000 + 1);
}

static void estimates_follow_what_was_seen(void)
{
    hg_ask ask = planned(100, 42, 0);

    fresh(0);
    assert(mean_of(&ask) == 500000); /* 5000 a unit while nothing is known */
    run(ask, 1000000, false);
    assert(near(mean_of(&ask), 1000000));
    ask.plan_cost = 200;
    assert(near(mean_of(&ask), 2000000));
    ask.pattern = 43; /* unknown: as all others, 10000 a unit */
    assert(near(mean_of(&ask), 2000000) && hg_estimate(region, &ask).p90_ns == mean_of(&ask));
    run(planned(100, 44, 0), 4000000, false);
    assert(near(mean_of(&ask), 4000000)); /* between 10000 and 40000 a unit */
    ask.flags = HG_UTILITY;
    assert(mean_of(&ask) == 1);
    run(planned(1, 43, HG_UTILITY), 3000, false);
    assert(near(mean_of(&ask), 3000));
    assert((atomic_load(&region->host.state) >> 48 & 0xff) == 2);
}

static void a_pattern_teaches_the_others_ever_more_rarely(void)
{
    fresh(0);
    for (int i = 0; i < 40; i++)
        run(planned(100, 42, 0), 1000000, false);
    assert((atomic_load(&region->host.state) >> 48 & 0xff) == 6); /* 1, 2, 4, 8, 16, 32 */
}

static void a_step_is_within_a_tenth_after_sixteen_executions(void)
{
    hg_ask ask = planned(100, 42, 0);
    uint64_t p90;

    fresh(0);
    for (int i = 0; i < 40; i++)
        run(ask, 1000000, false);
    p90 = hg_estimate(region, &ask).p90_ns;
    assert(p90 > 1000000 && p90 < 1250000);
    for (int i = 0; i < 16; i++)
        run(ask, 10000000, false);
    /* The middle has arrived; the mean and p90 allow for a spread that has just been seen. */
    assert(hg_estimate(region, &ask).p90_ns > 10000000);
    assert(mean_of(&ask) > 9000000 && mean_of(&ask) < 16000000);
    for (int i = 0; i < 64; i++)
        run(ask, 10000000, false);
    assert(mean_of(&ask) > 9000000 && mean_of(&ask) < 13500000);
}

static void every_plan_shape_has_a_line_of_its_own(void)
{
    hg_ask ask = planned(100, 42, 0);

    fresh(0);
    for (uint32_t shape = 1; shape <= 3; shape++) {
        ask.shape = shape;
        run(ask, 1000000 * shape * shape * shape, false);
    }
    for (uint32_t shape = 1; shape <= 3; shape++) {
        ask.shape = shape;
        assert(near(mean_of(&ask), 1000000 * shape * shape * shape));
    }
    ask.shape = 4; /* unknown: as all of them together */
    assert(mean_of(&ask) > 1000000 && mean_of(&ask) < 27000000);
    run(ask, 64000000, false); /* no room yet: each of the three forgets its only execution */
    run(ask, 64000000, false);
    assert(near(mean_of(&ask), 64000000));
}

static void early_estimates_are_a_quarter_and_need_three_calls(void)
{
    hg_ask ask = planned(100, 42, HG_EARLY);

    fresh(0);
    for (int i = 0; i < 3; i++) {
        assert(mean_of(&ask) == 1);
        run(planned(100, 42, 0), 1000000, false);
    }
    assert(near(mean_of(&ask), 250000));
}

static void an_aborted_statement_raises_and_never_lowers(void)
{
    hg_ask ask = planned(100, 42, 0);
    uint64_t host;

    fresh(0);
    for (int i = 0; i < 4; i++)
        run(ask, 1000000, false);
    host = atomic_load(&region->host.state);
    run(ask, 10, true);
    assert(near(mean_of(&ask), 1000000));
    run(ask, 32000000, true);
    assert(near(mean_of(&ask), 2000000)); /* a fifth of five doublings */
    assert(atomic_load(&region->host.state) == host);
}

static hg_ask dear(uint64_t now_ns)
{
    return (hg_ask){.now_ns = now_ns, .plan_cost = 100, .pattern = 7, .workers = 1};
}

/* Nothing is learnt of what never runs: now and then one of it does. */
static void whoever_was_too_dear_once_is_tried_again(void)
{
    const uint64_t later_ns = 901 * SECOND;
    hg_ask early = dear(later_ns);
    hg_holding held, other;

    fresh(1);
    set_bucket(budget_in(&policy, 0), 10000, 10000); /* 200 ms */
    assert(hg_until_trial(region, &early, 800 * MS) == HG_NEVER); /* it has never run */
    assert(take(dear(SECOND), &held) == HG_RUN);
    hg_settle(region, &held, 800 * MS, false, SECOND);
    assert(hg_until_trial(region, &(hg_ask){.now_ns = 2 * SECOND, .pattern = 7}, 800 * MS)
           == 899 * SECOND);
    assert(hg_until_trial(region, &(hg_ask){.now_ns = 2 * SECOND, .pattern = 7}, 10 * SECOND)
           == 999 * SECOND);
    assert(hg_until_trial(region, &early, 800 * MS) == 1); /* it is time */
    assert(check(dear(later_ns - 1)) == HG_BLOCK && answer.retry_ns == HG_NEVER);
    early.flags = HG_EARLY;
    assert(check(early) == HG_RUN && check(dear(later_ns)) == HG_RUN); /* to look is no trial */
    assert(take(dear(later_ns), &held) == HG_RUN);
    assert(answer.estimate_ns == 200 * MS && owed(region, key_of(0), later_ns) == 200 * MS);
    assert(take(dear(later_ns + 10 * SECOND), &other) == HG_BLOCK);
    assert(near(answer.estimate_ns, 800 * MS) && answer.retry_ns == HG_NEVER);
    hg_settle(region, &held, 40 * MS, false, later_ns);
    assert(owed(region, key_of(0), later_ns) == 40 * MS);
    assert(take(dear(2 * later_ns), &held) == HG_RUN && answer.estimate_ns == 200 * MS);
    hg_settle(region, &held, 0, true, later_ns); /* cut short: that does not count */
    /* A line through 800 ms and 40 ms: what was cut short is not on it. */
    assert(near(mean_of(&(hg_ask){.plan_cost = 100, .pattern = 7}), 357770876));
    set_bucket(budget_in(&policy, 0), 10000, 0); /* what admits nothing admits no trial */
    assert(take(dear(10 * later_ns), &held) == HG_BLOCK);
}

static void the_pattern_not_seen_for_longest_makes_room(void)
{
    hg_ask ask = planned(100, 0, 0);

    fresh(0);
    for (uint64_t i = 0; i < 5; i++) { /* 16 sets: all in the same */
        ask.pattern = 100 * 16 + i * 16;
        ask.now_ns = SECOND + (i == 1 ? 0 : i + 1);
        run(ask, 1000000 * (i + 2), false);
    }
    assert(atomic_load(&region->pattern_evictions) == 1);
    ask.pattern = 101 * 16;
    assert(mean_of(&ask) != 3000000); /* the second was the oldest */
    ask.pattern = 100 * 16;
    assert(near(mean_of(&ask), 2000000));
}

static void plans_without_a_sensible_cost_do_no_harm(void)
{
    static const double costs[] = {0, -1, 1e300, 0.0 / 1e-300};
    hg_ask ask = planned(100, 42, 0);

    fresh(0);
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        run(planned(costs[i], 42, 0), 0, false);
        run(planned(costs[i], 42, 0), UINT64_MAX, false);
    }
    for (double cost = 1e-300; cost < 1e300; cost *= 1e20) {
        hg_cost found;

        ask.plan_cost = cost;
        found = hg_estimate(region, &ask);
        assert(found.mean_ns >= 1 && found.p90_ns >= found.mean_ns
               && found.p90_ns <= HG_MAX_COST_NS);
    }
    ask.plan_cost = 0.0 / 0.0;
    assert(mean_of(&ask) >= 1);
}

int main(void)
{
    a_bucket_overflows_and_drains();
    what_was_charged_too_much_is_given_back_but_not_what_has_drained();
    others_refunds_are_not_given_back_twice();
    the_soonest_empty_is_evicted_and_its_debt_forgiven();
    a_set_in_use_runs_uncounted();
    made_up_values_wash_no_debt_of_a_budget_away();
    budgets_own_buckets_overflow_into_the_others_ways();
    a_secret_spreads_the_buckets();
    a_cursor_at_rest_keeps_its_bucket();
    the_time_told_after_a_change_of_rate_holds(10000, 100000);
    the_time_told_after_a_change_of_rate_holds(10000, 1000);
    a_locked_set_is_waited_for_only_so_long();
    another_rate_keeps_the_debt_another_epoch_forgives_it();
    huge_costs_and_tiny_rates_do_not_wrap();
    an_explicit_zero_admits_nothing();
    concurrency_counts_workers_and_rounds_up();
    a_block_leaves_every_budget_as_it_was();
    what_was_taken_is_rolled_back_exactly();
    warn_predicts_what_enforce_would_do();
    the_threshold_warns_early_but_only_where_it_is_enforced();
    the_order_is_by_step_then_by_document();
    a_delay_is_the_longest_wait_that_helps();
    whoever_is_in_a_transaction_passes_and_is_charged();
    estimates_follow_what_was_seen();
    a_pattern_teaches_the_others_ever_more_rarely();
    a_step_is_within_a_tenth_after_sixteen_executions();
    every_plan_shape_has_a_line_of_its_own();
    early_estimates_are_a_quarter_and_need_three_calls();
    an_aborted_statement_raises_and_never_lowers();
    whoever_was_too_dear_once_is_tried_again();
    the_pattern_not_seen_for_longest_makes_room();
    plans_without_a_sensible_cost_do_no_harm();
    free(region);
    puts("test_decide: ok");
    return 0;
}
