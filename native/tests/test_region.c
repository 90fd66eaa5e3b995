/* The region, the policy in force in it, seats, health, counts and traces. */
#include "support.h"

static hg_sizes sizes;

static void sizes_that_are_not_sound_make_no_region(void)
{
    hg_sizes bad[] = {sizes, sizes, sizes, sizes, sizes, sizes};
    char memory[64];

    bad[0].seats = 0;
    bad[1].budgets = 3;
    bad[2].buckets = 8;
    bad[3].patterns = 0;
    bad[4].policy_bytes = 4097;
    bad[5].traces = 5;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert(hg_region_bytes(&bad[i]) == 0);
        assert(hg_region_init(memory, sizeof memory, &bad[i], 1000, 10, 0, 0) != NULL);
    }
}

static void a_region_that_was_tampered_with_is_not_read(void)
{
    hg_region *region = make_region(&sizes);
    size_t length = region->length;

    assert(hg_region_check(region, length) == NULL);
    assert(hg_region_check(region, length - 1) != NULL);
    assert(hg_region_check(region, 10) != NULL);
    region->buckets_at += 64;
    assert(hg_region_check(region, length) != NULL);
    region->buckets_at -= 64;
    region->sizes.seats = UINT32_MAX;
    assert(hg_region_check(region, length) != NULL);
    region->sizes.seats = sizes.seats;
    region->format++;
    assert(hg_region_check(region, length) != NULL);
    region->format--;
    region->magic[0] = 'X';
    assert(hg_region_check(region, length) != NULL);
    free(region);
}

static uint64_t debt_by_now(hg_region *region, const hg_matches *matches, uint64_t now_ns)
{
    for (uint32_t i = 0; i < sizes.buckets; i++)
        if (atomic_load(&hg_bucket_keys_in(region)[i]) == matches->at[0].bucket)
            return hg_debt_ns(region, i, now_ns);
    return 0;
}

/* M5: the server's user rewrites the head after it was checked. */
static void a_pinned_region_is_found_by_a_copy_of_its_places(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);
    hg_region *other = make_region(&sizes);
    size_t length = region->length;
    hg_seat *seats = hg_seats_in(region);
    hg_ask ask = asks(MS, 2 * SECOND);
    hg_matches matches;
    hg_answer answer;
    hg_holding holding;

    assert(hg_region_pin(region, 10) != NULL);
    region->buckets_at += 64;
    assert(hg_region_pin(region, length) != NULL);
    region->buckets_at -= 64;
    assert(hg_region_pin(region, length) == NULL);
    memset(&region->sizes, 0xff, sizeof region->sizes);
    region->seats_at = region->counts_at = region->bucket_keys_at = region->bucket_locks_at
        = region->buckets_at = region->patterns_at = region->traces_at = UINT64_C(0x4141414141);
    region->areas_at[0] = region->areas_at[1] = UINT64_C(0x4141414141);
    region->cpus_milli = region->workers = 0;
    assert(hg_seats_in(region) == seats);
    hg_seat_take(region, 0, 7);
    hg_process_gone(region, 7);
    make_policy(&policy, 1, 7);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    sign_policy(&policy);
    match_all(&policy, 1, &matches);
    hg_take(region, policy_in(&policy), &matches, &ask, &answer, &holding);
    assert(answer.verdict == HG_RUN && holding.count == 1);
    hg_settle(region, &holding, 2 * MS, false, ask.now_ns);
    hg_count_block(region, policy_in(&policy), &matches, &answer, false, 1);
    assert(debt_by_now(region, &matches, ask.now_ns) >= MS);
    hg_charge(region, policy_in(&policy), &matches, MS, ask.now_ns);
    assert(debt_by_now(region, &matches, ask.now_ns) >= 2 * MS);
    assert(hg_debt_ns(region, UINT32_MAX, 1) == 0);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 1) == NULL);
    assert(hg_enter(region, 0) != NULL);
    hg_leave(region, 0);
    assert(hg_seats_in(other) == hg_at(other, other->seats_at)); /* not pinned */
    hg_region_unpin(region);
    hg_region_unpin(region);
    assert(hg_plan(region) == region);
    free(other);
    free(region);
}

static void as_many_regions_are_pinned_as_there_are_places(void)
{
    hg_region *region[HG_MAX_PINS + 1];

    for (uint32_t i = 0; i <= HG_MAX_PINS; i++) {
        region[i] = make_region(&sizes);
        assert((hg_region_pin(region[i], region[i]->length) == NULL) == (i < HG_MAX_PINS));
    }
    assert(hg_region_pin(region[0], region[0]->length) == NULL); /* again: once */
    hg_region_unpin(region[1]);
    assert(hg_region_pin(region[HG_MAX_PINS], region[HG_MAX_PINS]->length) == NULL);
    for (uint32_t i = 0; i <= HG_MAX_PINS; i++) {
        hg_region_unpin(region[i]);
        free(region[i]);
    }
}

static void memory_that_does_not_fit_is_rejected(void)
{
    size_t length = hg_region_bytes(&sizes);
    char *memory = aligned_alloc(64, length + 64);

    assert(hg_region_init(memory, length - 1, &sizes, 1000, 10, 0, 0) != NULL);
    assert(hg_region_init(memory + 8, length, &sizes, 1000, 10, 0, 0) != NULL);
    assert(hg_region_init(memory, length, &sizes, 0, 10, 0, 0) != NULL);
    assert(hg_region_init(memory, length, &sizes, 1000, 0, 0, 0) != NULL);
    free(memory);
}

static void a_policy_is_taken_over_whole_or_not_at_all(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);
    hg_policy *head = policy_in(&policy);

    assert(hg_enter(region, 0) == NULL);
    make_policy(&policy, 2, 7);
    assert(hg_publish(region, &policy, head->length, false, 42) == NULL);
    assert(hg_enter(region, 0)->version == 7);
    assert(atomic_load(&hg_seats_in(region)[0].version) == 7);
    assert(atomic_load(&hg_seats_in(region)[0].crc) == head->crc);
    hg_leave(region, 0);
    assert(atomic_load(&region->published_ms) == 42);

    make_policy(&policy, 2, 8);
    policy.bytes[200] ^= 1; /* the checksum finds it */
    assert(hg_publish(region, &policy, head->length, false, 43) != NULL);
    assert(atomic_load(&region->version) == 7 && atomic_load(&region->rejected_policies) == 1);
    assert(strstr(region->rejection, "checksum") != NULL);
    assert(hg_enter(region, 0)->version == 7);
    hg_leave(region, 0);

    assert(hg_publish(region, &policy, 10, false, 43) != NULL);
    assert(hg_publish(region, &policy, POLICY_BYTES + 8, false, 43) != NULL);
    assert(strstr(region->rejection, "larger than") != NULL);
    free(region);
}

static void an_older_policy_is_rejected_unless_forced(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);
    hg_policy *head = policy_in(&policy);
    const char *why;

    make_policy(&policy, 1, 9);
    assert(hg_publish(region, &policy, head->length, false, 1) == NULL);
    assert(hg_publish(region, &policy, head->length, false, 2) == NULL); /* the very same */
    assert(atomic_load(&region->published_ms) == 1);
    make_policy(&policy, 2, 9); /* the same version of another one */
    why = hg_publish(region, &policy, head->length, false, 3);
    assert(why != NULL && !hg_publish_again(why));
    make_policy(&policy, 1, 3);
    assert(hg_publish(region, &policy, head->length, false, 3) != NULL);
    assert(hg_publish(region, &policy, head->length, true, 4) == NULL);
    assert(atomic_load(&region->version) == 3);
    free(region);
}

static void a_policy_that_is_being_read_is_not_written_over(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);
    const hg_policy *read;
    const char *why;

    make_policy(&policy, 1, 1);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
    read = hg_enter(region, 3);
    make_policy(&policy, 2, 2);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
    assert(read->version == 1 && read->budgets.count == 1);
    assert(hg_enter(region, 4)->version == 2);
    make_policy(&policy, 3, 3);
    why = hg_publish(region, &policy, policy_in(&policy)->length, false, 0);
    assert(hg_publish_again(why) && read->version == 1);
    assert(atomic_load(&region->rejected_policies) == 0);
    hg_leave(region, 3);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
    hg_leave(region, 4);
    free(region);
}

static void the_seat_of_a_dead_process_blocks_nobody_for_ever(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);

    hg_seat_take(region, 5, 4711);
    for (uint64_t version = 1; version <= 2; version++) {
        make_policy(&policy, 1, version);
        assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
        if (version == 1)
            assert(hg_enter(region, 5) != NULL);
    }
    make_policy(&policy, 1, 3);
    assert(hg_publish_again(hg_publish(region, &policy, policy_in(&policy)->length, false, 0)));
    atomic_store(&region->publishing, 4711);
    atomic_store(&hg_bucket_locks_in(region)[2], 4711);
    atomic_store(&hg_bucket_locks_in(region)[3], 4712);
    hg_process_gone(region, 4711);
    assert(atomic_load(&hg_seats_in(region)[5].pid) == 0);
    assert(atomic_load(&hg_bucket_locks_in(region)[2]) == 0);
    assert(atomic_load(&hg_bucket_locks_in(region)[3]) == 4712);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
    free(region);
}

static void off_and_disabled_decide_nothing(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);

    make_policy(&policy, 1, 1);
    policy_in(&policy)->flags = HG_POLICY_OFF;
    sign_policy(&policy);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
    assert(hg_enter(region, 0) == NULL);
    assert(atomic_load(&hg_seats_in(region)[0].using_area) == 0);
    assert(atomic_load(&hg_seats_in(region)[0].version) == 1); /* it has seen it */
    make_policy(&policy, 1, 2);
    assert(hg_publish(region, &policy, policy_in(&policy)->length, false, 0) == NULL);
    atomic_store(&region->enabled, 0);
    assert(hg_enter(region, 0) == NULL);
    atomic_store(&region->enabled, 1);
    assert(hg_enter(region, 0) != NULL);
    free(region);
}

static void health_is_believed_until_its_end(void)
{
    hg_region *region = make_region(&sizes);

    assert(hg_healthy(region, 0) == -1);
    hg_tell_health(region, false, 2000);
    assert(hg_healthy(region, 1999) == 0 && hg_healthy(region, 2000) == -1);
    hg_tell_health(region, true, 3000);
    assert(hg_healthy(region, 2500) == 1);
    free(region);
}

static void counts_have_a_place_each_and_say_when_there_is_none(void)
{
    hg_sizes few = sizes;
    hg_region *region;
    hg_count *count;

    few.budgets = 4;
    region = make_region(&few);
    count = hg_count_of(region, 100, "etl", 3);
    assert(count != NULL && hg_count_of(region, 100, NULL, 0) == count);
    assert(strcmp(count->name, "etl") == 0);
    assert(hg_count_of(region, 104, "b", 1) != count);
    assert(hg_count_of(region, 108, "c", 1) != NULL && hg_count_of(region, 3, "d", 1) != NULL);
    assert(hg_count_of(region, 5, "e", 1) == NULL && atomic_load(&region->counts_full) == 1);
    free(region);
}

static void no_more_sleep_at_once_than_the_budget_says(void)
{
    static test_policy policy;
    hg_region *region = make_region(&sizes);

    make_policy(&policy, 1, 1);
    budget_in(&policy, 0)->max_delayed = 2;
    assert(hg_sleep_begin(region, policy_in(&policy), 0));
    assert(hg_sleep_begin(region, policy_in(&policy), 0));
    assert(!hg_sleep_begin(region, policy_in(&policy), 0));
    for (int i = 0; i < 5; i++) /* more often than begun */
        hg_sleep_end(region, budget_in(&policy, 0)->key);
    assert(hg_sleep_begin(region, policy_in(&policy), 0));
    hg_sleep_end(region, 12345);
    free(region);
}

static void the_last_traces_are_kept(void)
{
    hg_region *region = make_region(&sizes);
    hg_trace *places = hg_at(region, region->traces_at);
    hg_trace trace;

    memset(&trace, 0, sizeof trace);
    for (uint64_t i = 0; i < 11; i++) {
        trace.query_id = i;
        hg_trace_write(region, &trace);
    }
    assert(atomic_load(&region->traced) == 11);
    for (uint64_t i = 3; i < 11; i++) {
        assert(atomic_load(&places[i % 8].stamp) == 2 * i + 2);
        assert(places[i % 8].query_id == i);
    }
    free(region);
}

int main(void)
{
    sizes = small_sizes();
    sizes_that_are_not_sound_make_no_region();
    a_region_that_was_tampered_with_is_not_read();
    a_pinned_region_is_found_by_a_copy_of_its_places();
    as_many_regions_are_pinned_as_there_are_places();
    memory_that_does_not_fit_is_rejected();
    a_policy_is_taken_over_whole_or_not_at_all();
    an_older_policy_is_rejected_unless_forced();
    a_policy_that_is_being_read_is_not_written_over();
    the_seat_of_a_dead_process_blocks_nobody_for_ever();
    off_and_disabled_decide_nothing();
    health_is_believed_until_its_end();
    counts_have_a_place_each_and_say_when_there_is_none();
    no_more_sleep_at_once_than_the_budget_says();
    the_last_traces_are_kept();
    puts("test_region: ok");
    return 0;
}
