/*
 * gate_words.c: what is said of a decision, to the client and to Python. Of a budget in the very
 * words of the extension (pg_headgate/src/report.c), so that one look-out serves for both; of all
 * else in the same manner: who, what, how much, and when to come back (R143).
 */
#include "gate_inside.h"

#include <stdio.h>

#define PREFIX "[HEADGATE] Traffic Control: "
#define EVENT_EACH_NS (5 * HR_NS_PER_MS) /* 200 a second of a thread, and as many at once */
#define EVENT_BURST_NS (1000 * HR_NS_PER_MS)
#define MOST_JITTER_MS 10000u /* of a hold that ends in an hour a quarter would be too much */

typedef unsigned long long number;

static const char *const limit_names[HG_LIMITS] = {"none", "concurrency", "burst", "capacity"};

static double seconds(uint64_t ns)
{
    return (double) ns / 1e9;
}

static double milliseconds(uint64_t ns)
{
    return (double) ns / 1e6;
}

static uint64_t in_ms(uint64_t ns)
{
    return ns / HR_NS_PER_MS + (ns % HR_NS_PER_MS != 0);
}

/* ── Of a budget ──────────────────────────────────────────────────────────── */

/* Up to a quarter more, so that those who were refused together do not come back together. */
static uint64_t jittered(hr_gate_thread *gate, uint64_t retry_ns)
{
    if (retry_ns == HG_NEVER)
        return HG_NEVER;
    return retry_ns + (retry_ns >> 10) * (hr_dice(gate) >> 56);
}

/* A client's encoding is its own: what is not ASCII is told as it is, control bytes are not. */
static void copy_name(char *to, size_t room, const char *from, size_t length)
{
    size_t cut = length < room - 1 ? length : room - 1;

    while (cut > 0 && cut < length && ((uint8_t) from[cut] & 0xc0) == 0x80)
        cut--; /* not inside a character of UTF-8 */
    for (size_t i = 0; i < cut; i++)
        to[i] = (uint8_t) from[i] < ' ' || from[i] == 0x7f ? '?' : from[i];
    to[cut] = '\0';
}

void hr_report_fill(hr_thread *thread, hr_report *report, const hg_policy *policy,
                    const hg_matches *matches, const hg_answer *answer)
{
    const hg_match_one *match = &matches->at[answer->match];
    const hg_budget *budget = hr_budget(policy, match->budget);

    report->near_limit = answer->verdict == HG_WARN && answer->limit[answer->match] == HG_NO_LIMIT;
    report->runs = false;
    report->limit = answer->decided_by;
    report->budget_key = budget->key;
    report->policy_version = policy->version;
    report->estimate_ns = answer->estimate_ns;
    report->used = answer->used;
    report->bound = answer->bound;
    report->retry_ns = jittered(thread->gate, answer->retry_ns);
    copy_name(report->budget, sizeof report->budget, hr_string(policy, budget->name),
              budget->name.length);
    copy_name(report->bucket, sizeof report->bucket, match->label, match->label_length);
}

static void say_what(const hr_report *report, hr_words *words)
{
    const char *near = report->near_limit ? "warning threshold of the " : "";
    size_t room = sizeof words->message;

    if (report->limit == HG_CONCURRENCY)
        snprintf(words->message, room,
                 PREFIX "budget \"%s\": %sconcurrency limit: %llu of %llu workers are in use",
                 report->budget, near, (number) report->used, (number) report->bound);
    else if (report->limit == HG_QUERY)
        snprintf(words->message, room,
                 PREFIX
                 "budget \"%s\": %sper-statement limit: estimated %.3f s of CPU, %.3f s allowed",
                 report->budget, near, seconds(report->estimate_ns), seconds(report->bound));
    else
        snprintf(words->message, room,
                 PREFIX "budget \"%s\": %scapacity limit: %.3f s of CPU owed and %.3f s asked, "
                        "%.3f s allowed",
                 report->budget, near, seconds(report->used), seconds(report->estimate_ns),
                 seconds(report->bound));
}

/* Names may hold anything, and DETAIL is fields between blanks: those are written as in URLs. */
static void say_bucket(const char *bucket, char *out)
{
    for (; *bucket != '\0'; bucket++) {
        if ((uint8_t) *bucket <= ' ' || *bucket == '%' || *bucket == 0x7f)
            out += sprintf(out, "%%%02X", (uint8_t) *bucket);
        else
            *out++ = *bucket;
    }
    *out = '\0';
}

static void say_detail(const hr_report *report, hr_words *words)
{
    char bucket[3 * sizeof report->bucket];
    char measure[80];
    char retry[32] = "never";

    if (report->limit == HG_CONCURRENCY)
        snprintf(measure, sizeof measure, "used=%llu bound=%llu", (number) report->used,
                 (number) report->bound);
    else
        snprintf(measure, sizeof measure, "used_ms=%.3f bound_ms=%.3f", milliseconds(report->used),
                 milliseconds(report->bound));
    say_bucket(report->bucket, bucket);
    if (report->retry_ns != HG_NEVER)
        snprintf(retry, sizeof retry, "%llu", (number) in_ms(report->retry_ns));
    snprintf(words->detail, sizeof words->detail,
             "budget=%s limit=%s estimate_ms=%.3f %s retry_after_ms=%s%s%s policy_version=%llu",
             report->budget, limit_names[report->limit], milliseconds(report->estimate_ns), measure,
             retry, bucket[0] == '\0' ? "" : " bucket=", bucket, (number) report->policy_version);
}

static void say_retry(hr_words *words, uint64_t retry_ms)
{
    words->retry_ms = retry_ms > UINT32_MAX ? UINT32_MAX : (uint32_t) retry_ms;
    snprintf(words->hint, sizeof words->hint, "Retry in %llu ms.", (number) retry_ms);
}

static const char only_warns[]
    = "It runs, for this only warns. Enforced, it would have to wait or be refused.";

void hr_say_runs(hr_words *words)
{
    words->retry_ms = 0;
    snprintf(words->hint, sizeof words->hint, "%s", only_warns);
}

/* What to do next. Of a statement that runs there is nothing to try again, nor to make cheaper yet. */
static const char *advice(const hr_report *report)
{
    if (report->near_limit)
        return "It runs. Beyond the limit, statements have to wait or are refused.";
    if (report->runs)
        return only_warns;
    if (report->bound == 0)
        return "The budget lets nothing through: ask who has set it, or raise its limit.";
    return "As it is estimated it does not fit: make it cheaper, or raise the budget's limit.";
}

void hr_say_budget(const hr_report *report, hr_words *words)
{
    words->cause = HR_BY_BUDGET;
    say_what(report, words);
    say_detail(report, words);
    if (report->retry_ns != HG_NEVER && !report->runs && !report->near_limit) {
        say_retry(words, in_ms(report->retry_ns));
        return;
    }
    words->retry_ms = 0;
    snprintf(words->hint, sizeof words->hint, "%s", advice(report));
}

void hr_say_full(const hr_report *report, uint32_t waiting, hr_words *words)
{
    size_t at = strlen(words->detail);

    snprintf(words->message, sizeof words->message,
             PREFIX "budget \"%s\": queue limit: %u statements wait for it already", report->budget,
             waiting);
    snprintf(words->detail + at, sizeof words->detail - at, " waiting=%u", waiting);
}

void hr_say_cut(hr_words *words, bool lost)
{
    size_t at = strlen(words->detail);

    snprintf(words->detail + at, sizeof words->detail - at, lost ? " text=unknown" : " text=cut");
    snprintf(
        words->hint, sizeof words->hint, "%s",
        lost
            ? "The proxy does not know what it runs, so every budget that it may fall under applies: "
              "prepare it again, or send it as a text."
            : "Its text is longer than what the proxy reads (1 MiB), so every budget that the rest may "
              "fall under applies: send less at a time.");
}

/* ── Of all else ──────────────────────────────────────────────────────────── */

static const char *const cause_names[HR_CAUSES] = {"nothing", "budget", "rule",   "health",
                                                   "pace",    "loss",   "cancel", "limit"};

static void identity_of(const hr_session *session, uint32_t client, char *out, size_t room)
{
    const hr_client *one = hr_client_at(session->thread, client);
    char identity[HR_MAX_IDENTITY_BYTES + 1];

    if (!hr_client_name(one, atomic_load_explicit(&one->key, memory_order_relaxed), identity))
        identity[0] = '\0'; /* just being given to another */
    copy_name(out, room, identity, strlen(identity));
}

static void say_waited(hr_words *words, uint64_t waited_ns)
{
    size_t at = strlen(words->detail);

    if (waited_ns > 0)
        snprintf(words->detail + at, sizeof words->detail - at, " waited_ms=%.3f",
                 milliseconds(waited_ns));
}

void hr_say_gate(hr_session *session, uint32_t client, uint32_t judge, uint8_t cause,
                 const hr_gate *gate, uint64_t waited_ns, hr_words *words)
{
    char identity[128];
    hr_gate whole;

    identity_of(session, client, identity, sizeof identity);
    hr_gate_get(session->thread->relay->state, judge, &whole);
    whole.reason[sizeof whole.reason - 1] = '\0';
    words->cause = cause;
    if (cause == HR_BY_LOSS)
        snprintf(whole.reason, sizeof whole.reason,
                 "nothing is known of the database's health any more");
    snprintf(words->message, sizeof words->message, PREFIX "client \"%s\": %s: %s", identity,
             cause == HR_BY_RULE ? "rule" : "health",
             whole.reason[0] == '\0' ? "it is being throttled" : whole.reason);
    snprintf(words->detail, sizeof words->detail, "client=%s cause=%s ratio=%.3f retry_after_ms=%u",
             identity, cause_names[cause], (double) gate->ratio / (double) HR_SHARES,
             gate->retry_ms);
    say_waited(words, waited_ns);
    words->retry_ms = gate->retry_ms;
    if (gate->retry_ms > 0)
        say_retry(words, gate->retry_ms
                             + (hr_dice(session->thread->gate) >> 40)
                                   * hr_least(gate->retry_ms / 4, MOST_JITTER_MS)
                                   / (UINT64_C(1) << 24));
    else
        snprintf(words->hint, sizeof words->hint,
                 "Back off and try again later, or ask who has set this rule.");
}

void hr_say_pace(hr_session *session, uint32_t client, uint64_t retry_ns, uint64_t waited_ns,
                 hr_words *words)
{
    char identity[128];

    identity_of(session, client, identity, sizeof identity);
    words->cause = HR_BY_PACE;
    snprintf(words->message, sizeof words->message,
             PREFIX "client \"%s\": pace: more statements come than the database is let have now",
             identity);
    retry_ns = jittered(session->thread->gate, retry_ns);
    snprintf(words->detail, sizeof words->detail, "client=%s cause=pace retry_after_ms=%llu",
             identity, (number) in_ms(retry_ns));
    say_waited(words, waited_ns);
    say_retry(words, in_ms(retry_ns));
}

void hr_say_cancelled(uint64_t waited_ns, hr_words *words)
{
    words->cause = HR_BY_CANCEL;
    words->retry_ms = 0;
    snprintf(words->message, sizeof words->message,
             PREFIX "canceled due to user request while it was held back");
    snprintf(words->detail, sizeof words->detail, "cause=cancel");
    say_waited(words, waited_ns);
    words->hint[0] = '\0';
}

/* ── Events ───────────────────────────────────────────────────────────────── */

bool hr_rationed(uint64_t *empty_at_ns, uint64_t now_ns, uint64_t each_ns, uint64_t burst_ns)
{
    uint64_t empty_at = *empty_at_ns > now_ns ? *empty_at_ns : now_ns;

    if (empty_at - now_ns + each_ns > burst_ns)
        return false;
    *empty_at_ns = empty_at + each_ns;
    return true;
}

static uint16_t put(hr_event *event, size_t *used, const char *bytes, size_t length)
{
    size_t room = sizeof event->text - *used;
    size_t cut = length < room ? length : room;

    memcpy(event->text + *used, bytes, cut);
    *used += cut;
    return (uint16_t) cut;
}

static hr_event *begin(hr_thread *thread, uint32_t kind, uint32_t number_of)
{
    hr_event *event = &thread->gate->event;

    memset(event, 0, offsetof(hr_event, text));
    event->kind = kind;
    event->number = number_of;
    event->wall_ms = thread->wall_ms;
    return event;
}

void hr_tell_client(hr_thread *thread, const hr_who *who, const char *identity, size_t length)
{
    hr_event *event = begin(thread, HR_EVENT_CLIENT, who->client);
    size_t used = 0;

    event->pattern = who->key;
    event->text_length = put(event, &used, identity, length);
    event->text_whole = 1;
    hr_tell(thread, event);
}

static bool has_parameters(const char *text, size_t length, int dialect)
{
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text, length, dialect);
    while (hg_tokens_next(&tokens))
        if (tokens.piece == HG_PIECE_LITERAL
            && (*tokens.start == '?'
                || (*tokens.start == '$' && tokens.end - tokens.start > 1 && tokens.start[1] >= '0'
                    && tokens.start[1] <= '9')))
            return true;
    return false;
}

/* What is known of its text: of a prepared one perhaps not all. */
static void put_text(hr_session *session, hr_event *event, size_t *used, const hr_case *one)
{
    bool whole = one->prepared == NULL
                     ? true
                     : !one->prepared->truncated
                           && one->prepared->full_length == one->prepared->text_length;

    /* What cannot be told from a value is not told at all: its pattern has to do. */
    if (session->gate.odd_quotes && one->length > 0 && memchr(one->text, '\\', one->length) != NULL)
        return;
    event->text_length = put(event, used, one->text, one->length);
    event->text_whole = whole && event->text_length == one->length;
    event->parameters = has_parameters(event->text + *used - event->text_length, event->text_length,
                                       hr_dialect(session->thread));
}

static size_t put_names(hr_session *session, hr_event *event)
{
    size_t used = 0;

    event->user_length = put(event, &used, hr_username(session), strlen(hr_username(session)));
    event->database_length = put(event, &used, hr_database(session), strlen(hr_database(session)));
    return used;
}

void hr_tell_pattern(hr_session *session, const hr_case *one, uint64_t pattern)
{
    hr_event *event = begin(session->thread, HR_EVENT_PATTERN, one->who.client);
    size_t used = put_names(session, event);

    event->pattern = pattern;
    put_text(session, event, &used, one);
    hr_tell(session->thread, event);
}

void hr_tell_action(hr_session *session, uint32_t kind, const hr_case *one, uint8_t cause,
                    const char *reason, const char *budget, uint64_t took_ns)
{
    hr_thread *thread = session->thread;
    hr_event *event;
    size_t used;

    if (!hr_rationed(&thread->gate->events_ns, thread->now_ns, EVENT_EACH_NS, EVENT_BURST_NS)) {
        hr_bump(&thread->counts->lost_events, 1);
        return;
    }
    event = begin(thread, kind, one->who.client);
    used = put_names(session, event);
    event->pattern = one->pattern;
    event->took_ns = took_ns;
    event->by = cause;
    event->in_transaction = one->inside;
    event->budget_length = put(event, &used, budget, strlen(budget));
    event->reason_length = put(event, &used, reason, strlen(reason));
    put_text(session, event, &used, one);
    hr_tell(thread, event);
}
