/*
 * gate.c: may this statement run? Top to bottom, in this order:
 *
 *   enabled? ─► what does it come under ─► rules and health (hr_client.gate) ─► pace (hr_release)
 *                                       ─► budgets (hg_take) ─► it runs, with a ticket
 *
 * Each of the three admits, warns, delays or blocks. What is delayed has an hr_waiter, and
 * all is decided again when it is looked at again; the dice are thrown once. Between hg_enter and
 * hg_leave nothing waits. Where everything passes because it is only tried out (dry_run), nothing is
 * held and nothing charged of what would not have run.
 */
#include "gate_asking.h"

#define SECOND_NS UINT64_C(1000000000)

/* ── The answer ───────────────────────────────────────────────────────────── */

static void count_seat(hr_asking *a)
{
    hg_seat *seat = hr_seat(a->thread);

    hg_add_own(&seat->statements, a->count);
    for (uint32_t i = 0; i < a->count; i++) {
        const hg_matches *matches = a->statements[i].matches;

        hg_add_own(&seat->matched, matches->count > 0);
        if (matches->ignored_tags | matches->duplicate_tags | matches->left_out) {
            hg_add_own(&seat->ignored_tags, matches->ignored_tags);
            hg_add_own(&seat->duplicate_tags, matches->duplicate_tags);
            hg_add_own(&seat->left_out, matches->left_out);
        }
    }
    if (a->session->gate.resolution != NULL && a->session->gate.resolution->core.exempt)
        hg_add_own(&seat->bypassed, a->count);
}

/* Once for each, however often it is looked at. */
static void count_asked(hr_asking *a)
{
    if (a->again)
        return;
    hg_add_own(&a->thread->counts->decided, a->count);
    hg_add(&a->client->statements, a->count);
    if (hr_lead(a)->ref.client == HR_UNIDENTIFIED)
        hg_add_own(&a->thread->counts->unidentified, a->count);
    if (hr_now(a) - atomic_load_explicit(&a->client->last_ns, memory_order_relaxed) > SECOND_NS)
        atomic_store_explicit(&a->client->last_ns, hr_now(a), memory_order_relaxed);
    if (a->policy != NULL)
        count_seat(a);
}

/* Slots for all; those that find none run uncounted, and that is counted. */
static void take_slots(hr_asking *a, uint32_t *slots)
{
    for (uint32_t i = 0; i < a->count; i++)
        slots[i] = i == 0 && hr_waiter_of(a) != NULL ? hr_waiter_of(a)->slot
                                                     : hr_slot_take(a->thread);
}

static void drop_slots(hr_asking *a, const uint32_t *slots)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (slots[i] != UINT32_MAX
            && !(hr_waiter_of(a) != NULL && hr_waiter_of(a)->slot == slots[i]))
            hr_slot_free(a->session, slots[i]);
}

/* A string's slots, one behind the other; the ticket is the first one's. */
static hr_ticket start(hr_asking *a, const uint32_t *slots)
{
    bool traced = a->policy != NULL && a->session->gate.resolution != NULL
                  && !a->session->gate.resolution->core.exempt;
    hr_ticket first = 0;
    uint32_t *link = &first;

    for (uint32_t i = 0; i < a->count; i++) {
        hr_running *running;

        if (slots[i] == UINT32_MAX)
            continue;
        running = hr_slot_of(a, slots[i]);
        running->client = a->statements[i].ref.client;
        running->flags = (traced ? 0 : HR_RUNNING_UNTRACED) | (uint32_t) a->skipped[i] << 16;
        running->started_ns = hr_now(a);
        running->wall_ms = (uint64_t) a->thread->wall_ms;
        running->fingerprint = a->statements[i].fingerprinted ? a->statements[i].fingerprint : 0;
        running->next = 0;
        if (traced)
            hr_note_tags(a->session, slots[i], &a->statements[i], a->count > 1);
        *link = slots[i] + 1;
        link = &running->next;
    }
    if (first != 0) {
        a->session->gate.tickets++;
        hr_slot_of(a, first - 1)->flags |= HR_RUNNING_STARTED;
        atomic_fetch_add_explicit(
            &hr_client_at(a->thread, hr_slot_of(a, first - 1)->client)->running, 1,
            memory_order_relaxed);
    }
    return first;
}

static hr_said go(hr_asking *a, const uint32_t *slots, hr_ticket *ticket)
{
    uint64_t waited = hr_waited(a);
    bool delayed = hr_waiter_of(a) != NULL && hr_waiter_of(a)->noted && waited > 0;
    uint8_t cause = delayed ? hr_waiter_of(a)->cause : 0;
    char budget[64] = "";

    if (hr_waiter_of(a) != NULL) {
        hr_running *running = hr_slot_of(a, hr_waiter_of(a)->slot);
        uint64_t query_id = running->holding.query_id;
        uint32_t slot;

        memcpy(budget, hr_waiter_of(a)->budget, sizeof budget);
        hr_count_waited(a->thread, hr_waiter_of(a));
        slot = hr_drop_waiter(a->session);
        if (running->holding.workers > 0)
            running->holding.query_id = query_id; /* the model's, by now */
        if (slot != slots[0]) /* it began to wait just now, and found room at its second look */
            hr_slot_free(a->session, slot);
    }
    *ticket = start(a, slots);
    hg_add(&a->client->admitted, a->count);
    if (a->passed)
        hg_add(&a->client->passed, 1);
    if (delayed)
        hr_tell_action(a->session, HR_EVENT_DELAYED, hr_lead(a), cause, "", budget, waited);
    if (!a->warned)
        return HR_GO;
    hg_add(&a->client->warned, 1);
    hr_tell_action(a->session, HR_EVENT_WARNED, hr_lead(a), a->words->cause, a->words->message,
                   a->report.budget, 0);
    return HR_GO_WARNED;
}

/* As in the extension: who is blocked is held for a moment before it gets the error, so that clients that
 * try again at once do not keep the gate as busy as the server was. */
static bool punished(hr_asking *a, hr_verdict how)
{
    const hg_budget *budget = NULL;
    uint32_t index = 0;

    if (a->words->cause != HR_BY_BUDGET || hr_is_inside(a) || a->policy == NULL)
        return false;
    for (; index < a->policy->budgets.count; index++)
        if (hr_budget(a->policy, index)->key == a->report.budget_key) {
            budget = hr_budget(a->policy, index);
            break;
        }
    if (budget == NULL || budget->penalty_ms == 0 || !hr_may_sleep(a, index))
        return false;
    if (!hr_hold(a, HR_WAITS_PENALTY, a->words->cause, 0,
                 hr_now(a) + budget->penalty_ms * HR_NS_PER_MS)) {
        if (hr_waiter_of(a) == NULL || hr_waiter_of(a)->sleeps_for != budget->key)
            hg_sleep_end(a->region, budget->key);
        return false;
    }
    hr_note_sleep(a, budget);
    hr_waiter_of(a)->words = *a->words;
    hr_waiter_of(a)->said = how == STEP_SHUT ? HR_SHUT : HR_BLOCK;
    return true;
}

static hr_said block(hr_asking *a, hr_verdict how)
{
    uint64_t waited = hr_waited(a);

    hg_add(&a->client->blocked[a->words->cause], 1);
    a->words->statement = a->statements[a->blocked].statement;
    hr_return_units(a);
    if (hr_waiter_of(a) != NULL)
        hr_count_waited(a->thread, hr_waiter_of(a));
    hr_tell_action(a->session, HR_EVENT_BLOCKED, hr_lead(a), a->words->cause, a->words->message,
                   a->report.budget, waited);
    if (punished(a, how))
        return HR_WAIT;
    hr_end_waiting(a->session);
    return how == STEP_SHUT ? HR_SHUT : HR_BLOCK;
}

/* Whether it is the first of its client's outside a transaction. */
static bool leads(const hr_asking *a, uint32_t which)
{
    if (a->statements[which].inside)
        return false;
    for (uint32_t i = 0; i < which; i++)
        if (!a->statements[i].inside && a->statements[i].ref.key == a->statements[which].ref.key)
            return false;
    return true;
}

/* A string's statements may be of several clients, as their tags say: each has its own gate, the one
 * that speaks for the string last. */
static hr_verdict at_gates(hr_asking *a)
{
    hr_client *client = a->client;
    uint32_t lead = a->lead;
    hr_verdict said = STEP_PASS;

    for (uint32_t i = a->count; i-- > 0 && said == STEP_PASS;) {
        if (i == lead || !leads(a, i) || a->statements[i].ref.key == a->statements[lead].ref.key)
            continue;
        a->lead = i;
        a->client = hr_client_at(a->thread, a->statements[i].ref.client);
        said = hr_at_gate(a);
    }
    if (said != STEP_PASS)
        return said;
    a->lead = lead;
    a->client = client;
    return hr_at_gate(a);
}

static hr_said decide(hr_asking *a, hr_ticket *ticket)
{
    uint32_t slots[HR_MAX_SLICES];
    hr_verdict said;

    count_asked(a);
    take_slots(a, slots);
    said = at_gates(a);
    if (said == STEP_PASS)
        said = hr_at_pace(a);
    if (said == STEP_PASS && a->policy != NULL)
        said = hr_at_budgets(a, slots);
    if (said == STEP_PASS)
        return go(a, slots, ticket);
    if (hr_waiter_of(a) != NULL && slots[0] != UINT32_MAX && hr_waiter_of(a)->slot == slots[0]) {
        /* What hg_take has written over. */
        hr_slot_of(a, slots[0])->holding.query_id = hr_waiter_of(a)->sleeps_for;
    }
    drop_slots(a, slots);
    if (said == STEP_WAIT) {
        hr_return_units(a);
        return HR_WAIT;
    }
    return block(a, said);
}

/* ── Checks ───────────────────────────────────────────────────────────────── */

static void begin_asking(hr_asking *a, hr_session *session, uint32_t flags, hr_words *words)
{
    hr_thread *thread = session->thread;

    a->session = session;
    a->thread = thread;
    a->gate = thread->gate;
    a->state = thread->relay->state;
    a->region = thread->relay->region;
    a->statements = thread->gate->statements;
    a->count = 0;
    a->flags = flags;
    a->words = words;
    a->known = a->warned = a->passed = a->exempt = false;
    a->units = a->lead = 0;
    a->again = session->gate.waiter != NULL;
    a->roll = a->again ? session->gate.waiter->roll : (uint32_t) hr_dice(thread->gate);
    a->report.budget_key = 0;
    a->report.budget[0] = '\0';
    a->blocked = 0;
    if ((flags & HR_ASK_RUNNING) == 0)
        session->gate.paused_ns = session->paused_ns;
}

static hr_statement *add_case(hr_asking *a, const char *text, uint32_t length,
                              const hr_reading *reading, hr_prepared *prepared)
{
    hr_statement *one = &a->statements[a->count++];

    one->limits_workers = one->needs_cost = one->writes = one->writes_known = false;
    one->fingerprinted = one->has_tags = one->inside = one->lost = false;
    one->cut = prepared != NULL && prepared->truncated;
    one->statement = 0;
    one->fingerprint = one->pattern = 0;
    one->prepared = prepared == NULL ? NULL : hr_prepared_share(prepared);
    one->text = prepared != NULL ? prepared->bytes : text;
    one->length = prepared != NULL ? prepared->text_length : length;
    one->reading = *reading;
    return one;
}

/* All that there are, under the policy in force. */
static void find_cases(hr_asking *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->statements[i].prepared != NULL)
            hr_statement_of_prepared(a->session, a->policy, &a->statements[i],
                                     &a->gate->matches[i]);
        else
            hr_statement_of_text(a->session, a->policy, &a->statements[i], &a->gate->matches[i]);
    }
}

/* Who speaks for the string: the first statement outside a transaction. */
static void find_lead(hr_asking *a)
{
    while (a->lead + 1 < a->count && a->statements[a->lead].inside)
        a->lead++;
    if (a->statements[a->lead].inside)
        a->lead = 0;
    a->client = hr_client_at(a->thread, hr_lead(a)->ref.client);
    if (!a->again)
        return;
    /* Its client may be another by now: it is counted where it began to wait. */
    for (uint32_t i = 0; i < a->count; i++)
        if (leads(a, i) && a->statements[i].ref.key == hr_waiter_of(a)->client_key)
            a->lead = i;
    a->client = hr_client_at(a->thread, hr_waiter_of(a)->client);
}

/* A session runs one statement at a time: where places are counted, the next one of its pipeline waits
 * for those before it, and is not blocked on their account. */
static bool waits_its_turn(const hr_asking *a)
{
    if ((a->flags & HR_ASK_RUNNING) == 0 || a->again || hr_dry(a))
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->statements[i].limits_workers)
            return true;
    return false;
}

static hr_said ask_all(hr_asking *a, hr_ticket *ticket)
{
    hr_said said;

    a->policy = hg_enter(a->region, a->thread->seat);
    find_cases(a);
    find_lead(a);
    said = waits_its_turn(a) ? HR_WAIT_TURN : decide(a, ticket);
    if (a->policy != NULL)
        hg_leave(a->region, a->thread->seat);
    for (uint32_t i = 0; i < a->count; i++)
        hr_prepared_drop(a->session, a->statements[i].prepared);
    return said;
}

static bool is_decided(const hr_reading *reading)
{
    return reading->kind <= HR_KIND_WRITE;
}

/* A PREPARE whose name cannot be read: nobody could tell what runs under it, so it is decided here, as
 * what it prepares. */
static bool hides_its_name(const hr_asking *a, const char *text, const hr_slice *slice)
{
    char name[HR_READ_NAME_BYTES];
    hg_tokens tokens;

    if (slice->reading.verb != HR_VERB_PREPARE || slice->reading.inner == 0
        || hr_dialect(a->thread) != HG_POSTGRES)
        return false;
    hg_tokens_begin(&tokens, text + slice->reading.at, slice->length - slice->reading.at,
                    HG_POSTGRES);
    return !hg_tokens_next(&tokens) || hr_read_name(&tokens, name) == 0;
}

/* Nobody here knows what runs: it falls under all budgets that anything could. */
static void lose(hr_statement *one)
{
    one->cut = one->lost = true;
}

static void add_slice(hr_asking *a, const hr_query *query, uint32_t number, bool inside, bool cut)
{
    static const hr_reading unknown = {.kind = HR_KIND_WRITE};
    const hr_slice *slice = &query->slices[number];
    const char *at = query->text + slice->start;
    hr_prepared *named = NULL;
    hr_statement *one;

    if (slice->reading.verb != HR_VERB_NONE)
        named = hr_follow_prepared(a->session, query->text, query->slices, number);
    if (slice->reading.verb == HR_VERB_PREPARE && slice->reading.inner > 0)
        one = add_case(a, at + slice->reading.inner, slice->length - slice->reading.inner, &unknown,
                       NULL);
    else
        one = add_case(a, at, slice->length,
                       is_decided(&slice->reading) ? &slice->reading : &unknown, named);
    one->inside = inside;
    one->cut |= cut;
    if (slice->reading.verb == HR_VERB_EXECUTE && named == NULL)
        lose(one);
    one->statement = (uint8_t) number;
    hr_prepared_drop(a->session, named);
}

/* Where a string's next statement runs. */
typedef struct place {
    bool postgres;
    bool began; /* a transaction, by the client */
    bool ran;   /* something, since the last one ended */
} place;

static bool is_inside(const place *at)
{
    return at->began && at->ran;
}

/* A string of several statements is no transaction that the client has begun: blocking one of them loses no
 * more than the string. In Postgres its BEGIN takes in what has run before it; in MySQL many a statement
 * ends a transaction on its way. */
static void go_behind(place *at, const hr_reading *reading, bool ran)
{
    if (reading->ends || reading->commits)
        at->began = at->ran = false;
    if ((reading->kind == HR_KIND_BEGIN || reading->chains) && !reading->unsure)
        at->began = true;
    at->ran = (at->ran || ran) && (at->postgres || at->began);
}

/* The string's statements: those that are free are followed, the others decided. Behind a text that is
 * cut there may be anything: then what comes last is decided, whatever it seems to be. */
static void add_cases(hr_asking *a, const hr_query *query)
{
    const hr_naming *naming = hr_naming_of(a->thread);
    uint32_t count = query->count;
    bool truncated = (a->flags & HR_ASK_TRUNCATED) != 0;
    place here = {.postgres = hr_dialect(a->thread) == HG_POSTGRES,
                  .began = (a->flags & (HR_ASK_BEGUN | HR_ASK_IN_TRANSACTION)) != 0,
                  .ran = (a->flags & HR_ASK_IN_TRANSACTION) != 0};
    uint8_t skipped = 0;

    for (uint32_t i = 0; i < count; i++) {
        const hr_slice *slice = &query->slices[i];
        const char *at = query->text + slice->start;
        bool cut = truncated && i + 1 == count;
        bool decided = is_decided(&slice->reading) || cut || hides_its_name(a, at, slice);

        if (decided) {
            a->skipped[a->count] = skipped;
            add_slice(a, query, i, is_inside(&here), cut);
            skipped = 0;
        } else {
            if (slice->reading.verb != HR_VERB_NONE)
                hr_prepared_drop(a->session,
                                 hr_follow_prepared(a->session, query->text, query->slices, i));
            hr_follow(a->session, naming, at, slice->length, &slice->reading);
            skipped++;
        }
        go_behind(&here, &slice->reading, decided);
    }
    if (count == 0 && truncated) {
        static const hr_reading unknown = {.kind = HR_KIND_WRITE};
        hr_statement *one = add_case(a, query->text, (uint32_t) query->length, &unknown, NULL);

        a->skipped[0] = 0;
        one->inside = is_inside(&here);
        one->cut = true;
    }
}

static bool is_enabled(const hr_session *session)
{
    return atomic_load_explicit(&session->thread->relay->state->enabled, memory_order_relaxed) != 0;
}

/* Something waits that is not held any more: the gate has been switched off meanwhile. */
static hr_said pass(hr_session *session)
{
    hr_end_waiting(session);
    return HR_GO;
}

hr_said hr_ask(hr_session *session, const hr_query *query, uint32_t flags, hr_words *words,
               hr_ticket *ticket)
{
    static const hr_reading unknown = {.kind = HR_KIND_WRITE};
    hr_asking a;
    hr_said said;

    *ticket = 0;
    if (!is_enabled(session))
        return pass(session);
    if (hr_is_answered(session, words, &said))
        return said;
    begin_asking(&a, session, flags, words);
    if ((flags & HR_ASK_TRUNCATED) && !a.again)
        hg_add_own(&a.thread->counts->truncated_texts, 1);
    if (query != NULL) {
        add_cases(&a, query);
    } else {
        hr_statement *one = add_case(&a, "", 0, &unknown, NULL);

        a.skipped[0] = 0;
        one->inside = (flags & HR_ASK_IN_TRANSACTION) != 0;
        if ((flags & HR_ASK_DOUBTED) == 0)
            lose(one);
    }
    return a.count == 0 ? pass(session) : ask_all(&a, ticket);
}

hr_said hr_ask_prepared(hr_session *session, hr_prepared *prepared, uint32_t flags, hr_words *words,
                        hr_ticket *ticket)
{
    hr_asking a;
    hr_said said;

    if (prepared->many || prepared->reading.verb != HR_VERB_NONE) {
        hr_query query;

        hr_query_read(&query, prepared->bytes, prepared->text_length, hr_dialect(session->thread));
        if (prepared->full_length > prepared->text_length)
            flags |= HR_ASK_TRUNCATED;
        return hr_ask(session, &query, flags, words, ticket);
    }
    *ticket = 0;
    if (!is_decided(&prepared->reading) || !is_enabled(session))
        return pass(session);
    if (hr_is_answered(session, words, &said))
        return said;
    begin_asking(&a, session, flags, words);
    a.skipped[0] = 0;
    add_case(&a, NULL, 0, &prepared->reading, prepared)->inside = (flags & HR_ASK_IN_TRANSACTION)
                                                                  != 0;
    return ask_all(&a, ticket);
}
