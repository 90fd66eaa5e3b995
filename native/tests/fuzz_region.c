/*
 * A region that another process may write to: what its head says is rejected, or everything that this
 * process does with it stays inside of it, whatever is written there meanwhile.
 *
 * The first byte says when the changes are made: before the region is pinned, or behind that.
 */
#include "support.h"

#include "fuzz.h"

static const hg_sizes sizes = {
    .seats = 2, .budgets = 4, .buckets = 16, .patterns = 16, .policy_bytes = 8192, .traces = 2};
static test_policy policy;
static unsigned long pinned;

static void use(hg_region *region)
{
    hg_ask ask = asks(MS, 2 * SECOND);
    hg_matches matches;
    hg_answer answer;
    hg_holding holding;

    match_all(&policy, 2, &matches);
    hg_seat_take(region, 0, 7);
    hg_check(region, policy_in(&policy), &matches, &ask, &answer);
    hg_take(region, policy_in(&policy), &matches, &ask, &answer, &holding);
    if (answer.verdict <= HG_WARN) {
        hg_pause(region, &holding);
        hg_resume(region, &holding);
        hg_settle(region, &holding, 2 * MS, false, ask.now_ns);
    } else {
        hg_count_block(region, policy_in(&policy), &matches, &answer, false, 1);
    }
    hg_charge(region, policy_in(&policy), &matches, MS, ask.now_ns);
    hg_publish(region, &policy, policy_in(&policy)->length, true, 1);
    hg_healthy(region, 1);
    for (uint32_t i = 0; i < sizes.buckets; i++)
        hg_debt_ns(region, i, ask.now_ns);
    hg_sleep_end(region, budget_in(&policy, 0)->key);
    hg_process_gone(region, 7);
    hg_seat_free(region, 0);
}

static void begin_policy(void)
{
    make_policy(&policy, 2, 7);
    set_bucket(budget_in(&policy, 0), 10000, 100000);
    budget_in(&policy, 1)->set |= HG_SET_MAX_WORKERS;
    budget_in(&policy, 1)->max_workers = 1;
    sign_policy(&policy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t length = hg_region_bytes(&sizes);
    hg_region *region = make_region(&sizes);

    if (policy_in(&policy)->length == 0)
        begin_policy();
    if (size > 0 && data[0] % 2 == 0)
        apply_edits(region, length, data + 1, size - 1);
    if (hg_region_pin(region, length) == NULL) {
        pinned++;
        if (size > 0 && data[0] % 2 == 1)
            apply_edits(region, length, data + 1, size - 1);
        use(region);
        hg_region_unpin(region);
    }
    free(region);
    return 0;
}

#ifndef HG_LIBFUZZER
int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    uint32_t words = (uint32_t) (hg_region_bytes(&sizes) / 4);

    while (left-- > 0) {
        uint8_t input[1 + 8 * EDIT_BYTES] = {(uint8_t) below(2)};
        size_t edits = below(9);

        for (size_t i = 0; i < edits; i++)
            put_edit(input + 1 + i * EDIT_BYTES, (uint32_t) below(below(2) ? 64 : words),
                     below(2) ? edge() : (uint32_t) dice());
        LLVMFuzzerTestOneInput(input, 1 + edits * EDIT_BYTES);
    }
    printf("fuzz_region: %lu were pinned\n", pinned);
    return 0;
}
#endif
