/* What is said of a decision: each case in its words, and cut where the room ends. */
#include "support.h"

static void says(const hg_report *report, const char *message, const char *detail, const char *hint)
{
    char out[3][400];

    hg_say_message(report, out[0], sizeof out[0]);
    hg_say_detail(report, out[1], sizeof out[1]);
    hg_say_hint(report, out[2], sizeof out[2]);
    if (strcmp(out[0], message) != 0 || strcmp(out[1], detail) != 0 || strcmp(out[2], hint) != 0)
        fprintf(stderr, "%s\n%s\n%s\n", out[0], out[1], out[2]);
    assert(strcmp(out[0], message) == 0 && strcmp(out[1], detail) == 0
           && strcmp(out[2], hint) == 0);
}

#define OF "[HEADGATE] Traffic Control: budget \"etl\": "

static void test_each_limit(void)
{
    hg_report report = {.policy_version = 12,
                        .limit = HG_CONCURRENCY,
                        .used = 2,
                        .bound = 3,
                        .retry_ns = 100 * MS + 1,
                        .budget = "etl"};

    says(
        &report, OF "concurrency limit: 2 of 3 workers are in use",
        "budget=etl limit=concurrency estimate_ms=0.000 p90_ms=0.000 used=2 bound=3 retry_after_ms=101 policy_version=12",
        "Retry in 101 ms.");
    report.limit = HG_BUCKET;
    report.used = 3900 * MS;
    report.bound = 4 * SECOND;
    report.estimate_ns = 250 * MS;
    report.p90_ns = 400 * MS;
    strcpy(report.bucket, "t=a b%\n");
    says(
        &report,
        OF "capacity limit: debt is 3.900 s of CPU, this statement needs 0.250 s, 4.000 s allowed",
        "budget=etl limit=capacity estimate_ms=250.000 p90_ms=400.000 used_ms=3900.000 bound_ms=4000.000 retry_after_ms=101 "
        "bucket=t=a%20b%25%0A policy_version=12",
        "Retry in 101 ms.");
    report.limit = HG_QUERY;
    report.bucket[0] = '\0';
    report.used = report.p90_ns = 5 * SECOND;
    report.estimate_ns = 3 * SECOND;
    report.retry_ns = HG_NEVER;
    says(
        &report,
        OF "per-query limit: 9 of 10 executions need at most 5.000 s of CPU, 4.000 s allowed",
        "budget=etl limit=burst estimate_ms=3000.000 p90_ms=5000.000 used_ms=5000.000 bound_ms=4000.000 retry_after_ms=never "
        "policy_version=12",
        "The estimate is over the limit: make the statement cheaper, or raise the budget's limit.");
}

static void hints(const hg_report *report, const char *hint)
{
    char out[400];

    hg_say_hint(report, out, sizeof out);
    assert(strcmp(out, hint) == 0);
}

static void test_each_hint(void)
{
    hg_report report = {
        .limit = HG_QUERY, .bound = 1, .retry_ns = 2 * MS, .is_trial = true, .budget = "etl"};

    hints(
        &report,
        "The estimate is over the limit: make the statement cheaper, or raise the budget's limit. "
        "One execution is admitted in 2 ms, to learn what it costs now.");
    report.runs = true;
    hints(&report, HG_ONLY_WARNS);
    report.near_limit = true;
    hints(&report, "The statement runs. Over the limit, statements are delayed or blocked.");
    report = (hg_report){.limit = HG_CONCURRENCY, .retry_ns = HG_NEVER, .budget = "etl"};
    hints(
        &report,
        "The budget's limit is 0, so it blocks every statement: ask who set it, or raise the limit.");
}

static void test_of_a_decision(void)
{
    static test_policy policy;
    hg_sizes sizes = small_sizes();
    hg_region *region = make_region(&sizes);
    hg_ask ask = asks(MS, 2 * SECOND);
    hg_matches matches = {0};
    hg_answer answer;
    hg_report report;

    make_policy(&policy, 1, 7);
    set_workers(budget_in(&policy, 0), 0);
    match_each(&policy, 0, 77, &matches);
    memcpy(matches.at[0].label, "t=\0x", matches.at[0].label_length = 4);
    hg_check(region, policy_in(&policy), &matches, &ask, &answer);
    assert(answer.verdict == HG_BLOCK);
    hg_report_fill(&report, region, policy_in(&policy), &matches, &ask, &answer, UINT64_MAX);
    says(
        &report,
        "[HEADGATE] Traffic Control: budget \"b0\": concurrency limit: 0 of 0 workers are in use",
        "budget=b0 limit=concurrency estimate_ms=1.000 p90_ms=1.000 used=0 bound=0 retry_after_ms=never bucket=t=?x "
        "policy_version=7",
        "The budget's limit is 0, so it blocks every statement: ask who set it, or raise the limit.");
    assert(!report.runs && !report.near_limit && !report.is_trial);
    free(region);
}

static void test_jitter(void)
{
    assert(hg_jittered(HG_NEVER, UINT64_MAX) == HG_NEVER && hg_jittered(SECOND, 0) == SECOND);
    assert(hg_jittered(SECOND, UINT64_MAX) > SECOND
           && hg_jittered(SECOND, UINT64_MAX) <= SECOND * 5 / 4);
}

/* Whatever is in the names, and however little room there is. */
static void test_any_room(void)
{
    hg_report report = {.limit = HG_BUCKET,
                        .retry_ns = MS,
                        .used = UINT64_MAX,
                        .bound = UINT64_MAX,
                        .estimate_ns = UINT64_MAX,
                        .policy_version = UINT64_MAX};

    memset(report.budget, 'b', sizeof report.budget - 1);
    memset(report.bucket, ' ', sizeof report.bucket - 1);
    for (size_t room = 1; room < 600; room++) {
        char *out = malloc(room);

        hg_say_message(&report, out, room);
        assert(strlen(out) < room);
        hg_say_detail(&report, out, room);
        assert(strlen(out) < room);
        hg_say_hint(&report, out, room);
        assert(strlen(out) < room);
        free(out);
    }
}

int main(void)
{
    test_each_limit();
    test_each_hint();
    test_of_a_decision();
    test_jitter();
    test_any_room();
    return 0;
}
