/*
 * report.c: what is said of a statement that a budget blocks or warns of, to its client and to logs. The
 * extension and the proxy say the same, so that one search finds both.
 *
 *   policy, matches, answer ──hg_report_fill──► hg_report ──hg_say_*──► message, detail, hint
 */
#include <inttypes.h>
#include <stdio.h>

#include "internal.h"

static const char *const limit_names[HG_LIMITS] = {"none", "concurrency", "burst", "capacity"};

static double seconds(uint64_t ns)
{
    return (double) ns / 1e9;
}

static double milliseconds(uint64_t ns)
{
    return (double) ns / 1e6;
}

uint64_t hg_jittered(uint64_t retry_ns, uint64_t dice)
{
    return retry_ns == HG_NEVER ? HG_NEVER : retry_ns + (retry_ns >> 10) * (dice >> 56);
}

static void copy_name(char *to, size_t room, const char *from, size_t length)
{
    size_t cut = length < room - 1 ? length : room - 1;

    for (size_t i = 0; i < cut; i++)
        to[i] = from[i] == '\0' ? '?' : from[i];
    to[cut] = '\0';
}

void hg_report_fill(hg_report *report, const hg_region *region, const hg_policy *policy,
                    const hg_matches *matches, const hg_ask *ask, const hg_answer *answer,
                    uint64_t dice)
{
    const hg_match_one *match = &matches->at[answer->match];
    const hg_budget *budget = &hg_budgets_of(policy)[match->budget];

    report->budget_key = budget->key;
    report->policy_version = policy->version;
    report->estimate_ns = answer->estimate_ns;
    report->p90_ns = answer->p90_ns;
    report->used = answer->used;
    report->bound = answer->bound;
    report->is_trial = hg_never_fits(answer) && answer->bound > 0
                       && !((budget->set & HG_SET_RATE) != 0 && budget->rate_mpct == 0);
    report->retry_ns = hg_jittered(
        report->is_trial ? hg_until_trial(region, ask, answer->estimate_ns) : answer->retry_ns,
        dice);
    report->limit = answer->decided_by;
    report->near_limit = answer->verdict == HG_WARN && answer->limit[answer->match] == HG_NO_LIMIT;
    report->runs = answer->verdict == HG_WARN;
    copy_name(report->budget, sizeof report->budget, hg_strings_of(policy) + budget->name.offset,
              budget->name.length);
    copy_name(report->bucket, sizeof report->bucket, match->label, match->label_length);
}

void hg_say_client(const char *name, const char *what, const char *cause, const char *reason,
                   double ratio, uint64_t retry_ms, char *message, size_t message_room,
                   char *detail, size_t detail_room)
{
    snprintf(message, message_room, HG_SAID_BY "client \"%s\": %s: %s", name, what,
             reason[0] == '\0' ? "throttled" : reason);
    snprintf(detail, detail_room, "client=%s cause=%s ratio=%.3f retry_after_ms=%" PRIu64, name,
             cause, ratio, retry_ms);
}

void hg_say_message(const hg_report *report, char *out, size_t room)
{
    int begun = snprintf(out, room, HG_SAID_BY "budget \"%s\": %s", report->budget,
                         report->near_limit ? "warning threshold of the " : "");
    size_t at = (size_t) begun < room ? (size_t) begun : room;

    if (report->limit == HG_CONCURRENCY)
        snprintf(out + at, room - at,
                 "concurrency limit: %" PRIu64 " of %" PRIu64 " workers are in use", report->used,
                 report->bound);
    else if (report->limit == HG_QUERY && report->p90_ns == report->estimate_ns) /* a guess */
        snprintf(out + at, room - at, "per-query limit: estimated %.3f s of CPU, %.3f s allowed",
                 seconds(report->p90_ns), seconds(report->bound));
    else if (report->limit == HG_QUERY)
        snprintf(out + at, room - at,
                 "per-query limit: 9 of 10 executions need at most %.3f s of CPU, %.3f s allowed",
                 seconds(report->p90_ns), seconds(report->bound));
    else
        snprintf(
            out + at, room - at,
            "capacity limit: debt is %.3f s of CPU, this statement needs %.3f s, %.3f s allowed",
            seconds(report->used), seconds(report->estimate_ns), seconds(report->bound));
}

/* Names may hold anything, and the fields lie between blanks: those are written as in URLs. */
static void escape(const char *name, char *out)
{
    static const char digits[] = "0123456789ABCDEF";

    for (; *name != '\0'; name++) {
        uint8_t byte = (uint8_t) *name;

        if (byte > ' ' && byte != '%' && byte != 0x7f) {
            *out++ = *name;
            continue;
        }
        *out++ = '%';
        *out++ = digits[byte >> 4];
        *out++ = digits[byte & 15];
    }
    *out = '\0';
}

void hg_say_detail(const hg_report *report, char *out, size_t room)
{
    char bucket[3 * sizeof report->bucket], measure[80], retry[32] = "never";

    if (report->limit == HG_CONCURRENCY)
        snprintf(measure, sizeof measure, "used=%" PRIu64 " bound=%" PRIu64, report->used,
                 report->bound);
    else
        snprintf(measure, sizeof measure, "used_ms=%.3f bound_ms=%.3f", milliseconds(report->used),
                 milliseconds(report->bound));
    escape(report->bucket, bucket);
    if (report->retry_ns != HG_NEVER)
        snprintf(retry, sizeof retry, "%" PRIu64, hg_ms(report->retry_ns));
    snprintf(
        out, room,
        "budget=%s limit=%s estimate_ms=%.3f p90_ms=%.3f %s retry_after_ms=%s%s%s policy_version=%" PRIu64,
        report->budget, limit_names[report->limit], milliseconds(report->estimate_ns),
        milliseconds(report->p90_ns), measure, retry, bucket[0] == '\0' ? "" : " bucket=", bucket,
        report->policy_version);
}

void hg_say_hint(const hg_report *report, char *out, size_t room)
{
    if (report->near_limit)
        snprintf(out, room,
                 "The statement runs. Over the limit, statements are delayed or blocked.");
    else if (report->runs)
        snprintf(out, room, HG_ONLY_WARNS);
    else if (report->is_trial && report->retry_ns != HG_NEVER)
        snprintf(
            out, room,
            "The estimate is over the limit: make the statement cheaper, or raise the budget's limit. "
            "One execution is admitted in %" PRIu64 " ms, to learn what it costs now.",
            hg_ms(report->retry_ns));
    else if (report->retry_ns != HG_NEVER)
        snprintf(out, room, "Retry in %" PRIu64 " ms.", hg_ms(report->retry_ns));
    else if (report->bound == 0)
        snprintf(
            out, room,
            "The budget's limit is 0, so it blocks every statement: ask who set it, or raise the limit.");
    else
        snprintf(
            out, room,
            "The estimate is over the limit: make the statement cheaper, or raise the budget's limit.");
}
