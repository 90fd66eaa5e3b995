/*
 * gate_words.c: what is said of a decision, to the client and to Python. Of a budget in the words of
 * native/report.c; of rules, health and pacing in the same manner: who, what, how much, and when to
 * come back (R143).
 */
#include "gate_inside.h"

#include <stdio.h>

#define EVENT_EACH_NS (5 * HR_NS_PER_MS) /* 200 a second of a thread, and as many at once */
#define EVENT_BURST_NS (1000 * HR_NS_PER_MS)
#define MOST_JITTER_MS 10000u /* of a hold that ends in an hour a quarter would be too much */

typedef unsigned long long number;

/* ── Of a budget ──────────────────────────────────────────────────────────── */

static void say_retry(hr_words *words, uint64_t retry_ms)
{
    words->retry_ms = retry_ms > UINT32_MAX ? UINT32_MAX : (uint32_t) retry_ms;
    snprintf(words->hint, sizeof words->hint, "Retry in %llu ms.", (number) retry_ms);
}

void hr_say_runs(hr_words *words)
{
    words->retry_ms = 0;
    snprintf(words->hint, sizeof words->hint, HG_ONLY_WARNS);
}

void hr_say_budget(const hg_report *report, hr_words *words)
{
    words->cause = HR_BY_BUDGET;
    hg_say_message(report, words->message, sizeof words->message);
    hg_say_detail(report, words->detail, sizeof words->detail);
    hg_say_hint(report, words->hint, sizeof words->hint);
    words->retry_ms = 0;
    if (report->retry_ns != HG_NEVER && !report->runs)
        words->retry_ms = (uint32_t) hr_least(hg_ms(report->retry_ns), UINT32_MAX);
}

void hr_say_full(const hg_report *report, uint32_t waiting, hr_words *words)
{
    size_t at = strlen(words->detail);

    snprintf(words->message, sizeof words->message,
             HG_SAID_BY "budget \"%s\": queue limit: %u statements are waiting already",
             report->budget, waiting);
    snprintf(words->detail + at, sizeof words->detail - at, " waiting=%u", waiting);
}

void hr_say_cut(hr_words *words, bool lost)
{
    size_t at = strlen(words->detail);

    snprintf(words->detail + at, sizeof words->detail - at, lost ? " text=unknown" : " text=cut");
    snprintf(
        words->hint, sizeof words->hint, "%s",
        lost
            ? "The proxy does not know this statement's text, so every budget that may match applies: "
              "prepare it again, or send its text."
            : "The proxy reads 1 MiB of a text, and this one is longer, so every budget that the rest may "
              "match applies: send less at a time.");
}

/* ── Of all else ──────────────────────────────────────────────────────────── */

static const char *const cause_names[HR_CAUSES] = {"nothing", "budget", "rule",   "health",
                                                   "pace",    "loss",   "cancel", "limit"};

/* A client's encoding is its own: what is not ASCII is sent as it is, control bytes are not. */
static void identity_of(const hr_session *session, uint32_t client, char *out, size_t room)
{
    const hr_client *one = hr_client_at(session->thread, client);
    char identity[HG_MAX_IDENTITY_BYTES + 1];
    size_t length, cut;

    if (!hr_client_name(one, atomic_load_explicit(&one->key, memory_order_relaxed), identity))
        identity[0] = '\0'; /* just being given to another */
    length = strlen(identity);
    cut = hr_least(length, room - 1);
    while (cut > 0 && cut < length && ((uint8_t) identity[cut] & 0xc0) == 0x80)
        cut--; /* not inside a character of UTF-8 */
    for (size_t i = 0; i < cut; i++)
        out[i] = (uint8_t) identity[i] < ' ' || identity[i] == 0x7f ? '?' : identity[i];
    out[cut] = '\0';
}

static void say_waited(hr_words *words, uint64_t waited_ns)
{
    size_t at = strlen(words->detail);

    if (waited_ns > 0)
        snprintf(words->detail + at, sizeof words->detail - at, " waited_ms=%.3f",
                 (double) waited_ns / 1e6);
}

void hr_say_gate(hr_session *session, uint32_t client, uint32_t decider, uint8_t cause,
                 const hr_gate *gate, uint64_t waited_ns, hr_words *words)
{
    char identity[128];
    hr_gate whole;

    identity_of(session, client, identity, sizeof identity);
    hr_gate_get(session->thread->relay->state, decider, &whole);
    whole.reason[sizeof whole.reason - 1] = '\0';
    words->cause = cause;
    if (cause == HR_BY_LOSS)
        snprintf(whole.reason, sizeof whole.reason, "the database's health is not known");
    hg_say_client(identity, cause == HR_BY_RULE ? "rule" : "health", cause_names[cause],
                  whole.reason, (double) gate->ratio / (double) HR_SHARES, gate->retry_ms,
                  words->message, sizeof words->message, words->detail, sizeof words->detail);
    say_waited(words, waited_ns);
    words->retry_ms = gate->retry_ms;
    if (gate->retry_ms > 0)
        say_retry(words, gate->retry_ms
                             + (hr_dice(session->thread->gate) >> 40)
                                   * hr_least(gate->retry_ms / 4, MOST_JITTER_MS)
                                   / (UINT64_C(1) << 24));
    else
        snprintf(words->hint, sizeof words->hint, "Retry later, or ask who set this rule.");
}

void hr_say_pace(hr_session *session, uint32_t client, uint64_t retry_ns, uint64_t waited_ns,
                 hr_words *words)
{
    char identity[128];

    identity_of(session, client, identity, sizeof identity);
    words->cause = HR_BY_PACE;
    snprintf(words->message, sizeof words->message,
             HG_SAID_BY "client \"%s\": pacing: the current allowance is used up", identity);
    retry_ns = hg_jittered(retry_ns, hr_dice(session->thread->gate));
    snprintf(words->detail, sizeof words->detail, "client=%s cause=pace retry_after_ms=%llu",
             identity, (number) hg_ms(retry_ns));
    say_waited(words, waited_ns);
    say_retry(words, hg_ms(retry_ns));
}

void hr_say_cancelled(uint64_t waited_ns, hr_words *words)
{
    words->cause = HR_BY_CANCEL;
    words->retry_ms = 0;
    snprintf(words->message, sizeof words->message,
             HG_SAID_BY "canceled due to user request while it was delayed");
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

void hr_tell_client(hr_thread *thread, const hr_client_ref *ref, const char *identity,
                    size_t length)
{
    hr_event *event = begin(thread, HR_EVENT_CLIENT, ref->client);
    size_t used = 0;

    event->pattern = ref->key;
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
static void put_text(hr_session *session, hr_event *event, size_t *used, const hr_statement *one)
{
    bool whole = one->prepared == NULL
                     ? true
                     : !one->prepared->truncated
                           && one->prepared->full_length == one->prepared->text_length;

    /* What may be a value is not reported at all: its pattern has to do. */
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

void hr_tell_pattern(hr_session *session, const hr_statement *one, uint64_t pattern)
{
    hr_event *event = begin(session->thread, HR_EVENT_PATTERN, one->ref.client);
    size_t used = put_names(session, event);

    event->pattern = pattern;
    put_text(session, event, &used, one);
    hr_tell(session->thread, event);
}

void hr_tell_action(hr_session *session, uint32_t kind, const hr_statement *one, uint8_t cause,
                    const char *reason, const char *budget, uint64_t took_ns)
{
    hr_thread *thread = session->thread;
    hr_event *event;
    size_t used;

    if (!hr_rationed(&thread->gate->events_ns, thread->now_ns, EVENT_EACH_NS, EVENT_BURST_NS)) {
        hg_add_own(&thread->counts->lost_events, 1);
        return;
    }
    event = begin(thread, kind, one->ref.client);
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
