/*
 * Eight threads take, settle, pause, check and publish over the same region, for two seconds or as
 * many as the first argument says: few buckets that all want, then more than the table can hold.
 *
 *   b0  one bucket: what it admits is at most rate × time + capacity, whatever is refunded (R110)
 *   b1  three workers: never more inside
 *   b2  a bucket for each of some values, whose rate and epoch change with the policy
 *   b3  warns, and is always full
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "support.h"

#define THREADS 8u
#define RATE_MPCT 50000u    /* of 2 CPUs: one */
#define CAPACITY_MPCTS 1000u /* 20 ms of CPU */
#define PLACES 3u

typedef struct tally {
    uint64_t settled[4];
    uint64_t blocked;
    uint64_t actual_ns; /* settled under b0, in its bucket */
    uint64_t unpinned;  /* under b0: its set was locked for too long */
} tally;

typedef struct worker {
    pthread_t thread;
    uint32_t seat;
    tally tally;
} worker;

static hg_region *region;
static uint64_t values; /* of b2 */
static uint64_t ends_ns;
static _Atomic uint32_t inside; /* under b1 */
static _Atomic uint64_t next_version = 1;

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * SECOND + (uint64_t) now.tv_nsec;
}

static uint32_t dice(uint64_t *state, uint32_t sides)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t) (*state >> 32) % sides;
}

/* Everything in a policy tells its version: one that is half another's is found out. */
static void publish(test_policy *policy)
{
    uint64_t version = atomic_fetch_add(&next_version, 1);
    const char *why;

    make_policy(policy, 4, version);
    set_bucket(budget_in(policy, 0), RATE_MPCT, CAPACITY_MPCTS);
    set_workers(budget_in(policy, 1), PLACES);
    set_bucket(budget_in(policy, 2), 1000 * (1 + (uint32_t) version % 50), 100000);
    set_bucket(budget_in(policy, 3), 10, 0);
    budget_in(policy, 2)->epoch = (uint32_t) version / 16;
    budget_in(policy, 3)->mode = HG_MODE_WARN;
    for (uint32_t i = 0; i < 4; i++)
        budget_in(policy, i)->penalty_ms = (uint32_t) version % 1000;
    sign_policy(policy);
    why = hg_publish(region, policy, policy_in(policy)->length, false, 0);
    assert(why == NULL || hg_publish_again(why) || strstr(why, "not newer") != NULL);
}

static void is_whole(const hg_policy *policy)
{
    for (uint32_t i = 0; i < policy->budgets.count; i++)
        assert(hg_budgets_of(policy)[i].penalty_ms == policy->version % 1000);
}

static void choose_matches(const hg_policy *policy, uint64_t *state, hg_matches *matches)
{
    uint32_t which = 1 + dice(state, 15);

    matches->count = 0;
    for (uint32_t i = 0; i < 4; i++) {
        hg_match_one *one = &matches->at[matches->count];

        if ((which >> i & 1) == 0)
            continue;
        memset(one, 0, sizeof *one);
        one->budget = i;
        one->bucket = hg_budgets_of(policy)[i].key;
        if (i == 2)
            one->bucket = hg_not_reserved(
                hg_hash(9, &(uint64_t){dice(state, (uint32_t) values)}, 8));
        matches->count++;
    }
}

static hg_ask choose_ask(uint64_t *state)
{
    return (hg_ask){.now_ns = clock_ns(),
                    .plan_cost = 1 + dice(state, 100),
                    .cost_ns = 1 + dice(state, 2000000),
                    .pattern = 2 + dice(state, 200),
                    .workers = 1 + dice(state, 2),
                    .flags = HG_COST_GIVEN | (dice(state, 4) ? 0 : HG_NO_DELAY)};
}

static bool is_of(const hg_holding_one *one, const hg_policy *policy, uint32_t budget)
{
    return one->count != 0
           && hg_counts_in(region)[one->count - 1].key == hg_budgets_of(policy)[budget].key;
}

static bool holds(const hg_holding *holding, const hg_policy *policy, uint32_t budget)
{
    for (uint32_t i = 0; i < holding->count; i++)
        if (is_of(&holding->at[i], policy, budget))
            return true;
    return false;
}

static bool is_counted(const hg_holding *holding, const hg_policy *policy, uint32_t budget)
{
    for (uint32_t i = 0; i < holding->count; i++)
        if (is_of(&holding->at[i], policy, budget))
            return holding->at[i].counted;
    return false;
}

static void run(worker *self, const hg_policy *policy, const hg_ask *ask, hg_holding *holding,
                uint64_t *state)
{
    uint64_t actual_ns = dice(state, 2) ? ask->cost_ns : dice(state, (uint32_t) ask->cost_ns + 1);
    uint64_t in_b1 = is_counted(holding, policy, 1) ? holding->workers : 0;

    if (in_b1)
        assert(atomic_fetch_add(&inside, (uint32_t) in_b1) + in_b1 <= PLACES);
    for (uint32_t i = 0; i < 4; i++)
        self->tally.settled[i] += holds(holding, policy, i);
    if (is_counted(holding, policy, 0))
        self->tally.actual_ns += actual_ns;
    else
        self->tally.unpinned += holds(holding, policy, 0);
    if (dice(state, 8) == 0)
        sched_yield();
    if (in_b1)
        atomic_fetch_sub(&inside, (uint32_t) in_b1);
    if (dice(state, 8) == 0) {
        hg_pause(region, holding);
        sched_yield();
        if (!in_b1 && dice(state, 2)) /* b1 would not be checked, and be more than its places */
            hg_resume(region, holding);
    }
    holding->flags &= ~(uint32_t) HG_COST_GIVEN; /* so that it learns */
    hg_settle(region, holding, actual_ns, dice(state, 10) == 0, clock_ns());
}

static void one_statement(worker *self, uint64_t *state)
{
    const hg_policy *policy = hg_enter(region, self->seat);
    hg_matches matches;
    hg_answer answer;
    hg_holding holding;
    hg_ask ask;

    assert(policy != NULL);
    is_whole(policy);
    choose_matches(policy, state, &matches);
    ask = choose_ask(state);
    if (dice(state, 8) == 0)
        hg_check(region, policy, &matches, &ask, &answer);
    hg_take(region, policy, &matches, &ask, &answer, &holding);
    if (answer.verdict <= HG_WARN) {
        run(self, policy, &ask, &holding, state);
    } else {
        self->tally.blocked++;
        hg_count_block(region, policy, &matches, &answer, false, 0);
    }
    is_whole(policy);
    hg_leave(region, self->seat);
}

static void *work(void *argument)
{
    worker *self = argument;
    uint64_t state = 88172645463325252ull + self->seat;
    test_policy *policy = aligned_alloc(64, sizeof *policy);

    for (uint64_t round = 1; clock_ns() < ends_ns; round++) {
        one_statement(self, &state);
        if (dice(&state, 2000) == 0)
            publish(policy);
        if (dice(&state, 16) == 0) {
            hg_trace trace = {.query_id = round};

            hg_trace_write(region, &trace);
        }
    }
    free(policy);
    return NULL;
}

static tally run_all(void)
{
    static worker workers[THREADS];
    tally sum = {0};

    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.seat = i};
        assert(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert(pthread_join(workers[i].thread, NULL) == 0);
        for (uint32_t b = 0; b < 4; b++)
            sum.settled[b] += workers[i].tally.settled[b];
        sum.blocked += workers[i].tally.blocked;
        sum.actual_ns += workers[i].tally.actual_ns;
        sum.unpinned += workers[i].tally.unpinned;
    }
    return sum;
}

static void nothing_is_left(void)
{
    assert(all_holders(region) == 0 && atomic_load(&inside) == 0);
    for (uint32_t i = 0; i < region->sizes.buckets; i++)
        assert(atomic_load(&hg_bucket_in(region, i)->refunding_ns)
               == atomic_load(&hg_bucket_in(region, i)->refunded_ns));
    for (uint32_t i = 0; i < region->sizes.buckets / HG_WAYS; i++)
        assert(atomic_load(&hg_bucket_locks_in(region)[i]) == 0);
    for (uint32_t i = 0; i < region->sizes.seats; i++)
        assert(atomic_load(&hg_seats_in(region)[i].using_area) == 0);
    assert(atomic_load(&region->publishing) == 0);
}

static void nothing_was_lost(test_policy *policy, const tally *sum)
{
    uint64_t blocked = 0;

    for (uint32_t i = 0; i < 4; i++) {
        hg_count *count = hg_count_of(region, budget_in(policy, i)->key, NULL, 0);

        assert(atomic_load(&count->admitted) == sum->settled[i]);
        for (uint32_t limit = 1; limit < HG_LIMITS; limit++)
            blocked += atomic_load(&count->blocked[limit]);
        printf("  b%u: %llu admitted, %llu unpinned, %llu evicted in debt\n", i,
               (unsigned long long) atomic_load(&count->admitted),
               (unsigned long long) atomic_load(&count->unpinned),
               (unsigned long long) atomic_load(&count->evicted));
    }
    assert(blocked == sum->blocked);
}

static void stress(const char *name, uint32_t buckets, uint64_t of_values, double seconds)
{
    static test_policy policy;
    hg_sizes sizes = small_sizes();
    uint64_t began_ns = clock_ns();
    uint64_t bound_ns;
    hg_count *plain;
    tally sum;

    sizes.buckets = buckets;
    values = of_values;
    region = make_region(&sizes);
    hg_region_keyed(region, began_ns);
    publish(&policy);
    ends_ns = began_ns + (uint64_t) (seconds * 1e9);
    sum = run_all();
    bound_ns = clock_ns() - began_ns + 20 * MS; /* one CPU's time, and the capacity */
    printf("%s: %llu blocked, %llu policies, b0 %.3f s of at most %.3f s\n", name,
           (unsigned long long) sum.blocked,
           (unsigned long long) atomic_load(&hg_seats_in(region)[0].version),
           (double) sum.actual_ns / 1e9, (double) bound_ns / 1e9);
    nothing_is_left();
    nothing_was_lost(&policy, &sum);
    /* Whatever values b2 is asked for, b0's own bucket forgets nothing. */
    assert(sum.actual_ns <= bound_ns);
    plain = hg_count_of(region, budget_in(&policy, 0)->key, NULL, 0);
    assert(atomic_load(&plain->forgiven_ns) == 0 && atomic_load(&plain->evicted) == 0);
    assert(atomic_load(&plain->unpinned) == sum.unpinned);
    free(region);
}

int main(int count, char **arguments)
{
    double seconds = count > 1 ? atof(arguments[1]) : 2;

    stress("few buckets", 64, 4, seconds / 2);
    stress("many buckets", HG_WAYS, 200, seconds / 2);
    puts("stress_threads: ok");
    return 0;
}
