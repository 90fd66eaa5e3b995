/*
 * gate_wait.c: statements that are delayed. Each has an hr_waiter, and a slot among those that run,
 * so that a process that outlives this one knows of it; it ends by time, by being woken, by a cancel, or
 * because its client hung up.
 */
#include "gate_asking.h"

#include <stdio.h>
#include <stdlib.h>

void hr_count_waited(hr_thread *thread, hr_waiter *waiter)
{
    uint64_t waited = thread->now_ns - waiter->since_ns;
    hr_client *client = hr_client_at(thread, waiter->client);

    if (!waiter->noted || waited == 0)
        return;
    waiter->noted = false;
    hg_add(&client->delayed, 1);
    hg_add(&client->delayed_ns, waited);
    if (waiter->counted_to != 0)
        hg_count_delay(thread->relay->region, waiter->counted_to, waited);
}

/* Returns its slot, which is the caller's then. */
uint32_t hr_drop_waiter(hr_session *session)
{
    hr_thread *thread = session->thread;
    hr_waiter *waiter = session->gate.waiter;
    uint32_t slot = waiter->slot;
    hr_running *running = &hr_runnings_in(thread->relay->state)[slot];

    hr_queue_disown(thread->relay->gate->queues, waiter);
    if (waiter->sleeps_for != 0)
        hg_sleep_end(thread->relay->region, waiter->sleeps_for);
    hr_count_down(&hr_client_at(thread, waiter->client)->waiting);
    running->flags = 0;
    running->holding.query_id = 0;
    free(waiter);
    session->gate.waiter = NULL;
    session->gate.wait_since_ns = session->gate.wait_next_ns = 0;
    session->gate.cancelled = false;
    return slot;
}

static hr_waiter *new_waiter(hr_asking *a)
{
    hr_waiter *waiter = calloc(1, sizeof *waiter);
    uint32_t slot = waiter == NULL ? UINT32_MAX : hr_slot_take(a->thread);
    hr_running *running;

    if (slot == UINT32_MAX) {
        free(waiter);
        return NULL;
    }
    waiter->session = a->session;
    waiter->thread = a->thread;
    waiter->id = a->session->id;
    waiter->sequence = hr_queue_number(hr_queues_of(a));
    waiter->priority = hr_lead(a)->priority;
    waiter->slot = slot;
    waiter->client = hr_lead(a)->ref.client;
    waiter->client_key = hr_lead(a)->ref.key;
    waiter->roll = a->roll;
    waiter->since_ns = hr_now(a);
    running = &hr_runnings_in(a->state)[slot];
    running->client = waiter->client;
    running->started_ns = hr_now(a);
    running->holding.query_id = 0;
    running->flags = HR_RUNNING_WAITS;
    atomic_fetch_add_explicit(&a->client->waiting, 1, memory_order_relaxed);
    hr_queue_own(hr_queues_of(a), waiter);
    a->session->gate.waiter = waiter;
    a->session->gate.wait_since_ns = hr_now(a);
    return waiter;
}

static void look_again_at(hr_session *session, uint64_t next_ns)
{
    session->gate.waiter->next_ns = next_ns;
    session->gate.wait_next_ns = next_ns;
    hr_timer(session, next_ns);
}

/* In that queue (0: in none) until next_ns, or until it is woken. False: it cannot be held. */
bool hr_hold(hr_asking *a, uint8_t why, uint8_t cause, uint64_t key, uint64_t next_ns)
{
    hr_waiter *waiter = hr_waiter_of(a) != NULL ? hr_waiter_of(a) : new_waiter(a);

    if (waiter == NULL)
        return false;
    waiter->why = why;
    waiter->cause = cause;
    waiter->noted |= why != HR_WAITS_PENALTY;
    if (key == 0)
        hr_queue_leave(hr_queues_of(a), waiter);
    else if (!hr_queue_join(hr_queues_of(a), key, waiter))
        return false;
    look_again_at(a->session, next_ns);
    return true;
}

/* A place among those that the budget may delay, for this statement; it has one at a time. */
bool hr_may_sleep(hr_asking *a, uint32_t budget)
{
    hr_waiter *waiter = hr_waiter_of(a);
    uint64_t key = hr_budget(a->policy, budget)->key;

    if (waiter != NULL && waiter->sleeps_for == key)
        return true;
    return hg_sleep_begin(a->region, a->policy, budget);
}

void hr_note_sleep(hr_asking *a, const hg_budget *budget)
{
    hr_waiter *waiter = hr_waiter_of(a);
    uint64_t key = budget->key;

    snprintf(waiter->budget, sizeof waiter->budget, "%.*s", (int) budget->name.length,
             hr_string(a->policy, budget->name));
    if (waiter->sleeps_for != 0 && waiter->sleeps_for != key)
        hg_sleep_end(a->region, waiter->sleeps_for);
    waiter->sleeps_for = key;
    if (waiter->counted_to == 0)
        waiter->counted_to = key;
    hr_runnings_in(a->state)[waiter->slot].holding.query_id = key;
}

void hr_end_waiting(hr_session *session)
{
    if (session->gate.waiter != NULL)
        hr_slot_free(session, hr_drop_waiter(session));
}

/* What is held and has no reason to be looked at is held on: true, and `said` is the answer. */
bool hr_is_answered(hr_session *session, hr_words *words, hr_said *said)
{
    hr_waiter *waiter = session->gate.waiter;
    uint64_t now_ns = session->thread->now_ns;
    hr_client *client;

    if (waiter == NULL)
        return false;
    client = hr_client_at(session->thread, waiter->client);
    if (session->gate.cancelled) {
        hg_add(&client->blocked[HR_BY_CANCEL], 1);
        hr_count_waited(session->thread, waiter);
        hr_say_cancelled(now_ns - waiter->since_ns, words);
        hr_end_waiting(session);
        *said = HR_BLOCK;
        return true;
    }
    if (waiter->why == HR_WAITS_PENALTY && now_ns >= waiter->next_ns) {
        *words = waiter->words;
        *said = (hr_said) waiter->said;
        hr_end_waiting(session);
        return true;
    }
    if (waiter->why != HR_WAITS_PENALTY
        && (atomic_exchange(&waiter->woken, false) || now_ns >= waiter->next_ns))
        return false;
    atomic_store(&waiter->woken, false);
    hr_timer(session, waiter->next_ns);
    *said = HR_WAIT;
    return true;
}

/* ── What else ends a wait ────────────────────────────────────────────────── */

void hr_gate_forget(hr_session *session)
{
    hr_end_waiting(session);
}

void hr_gate_cancel(hr_session *session)
{
    if (session->gate.waiter == NULL)
        return;
    session->gate.cancelled = true;
    hr_wake(session->thread, session, session->id);
}

uint64_t hr_gate_due(const hr_session *session)
{
    return session->gate.wait_next_ns;
}

void hr_gate_stir(hr_thread *thread)
{
    hr_queue_stir(thread->relay->gate->queues, thread);
}
