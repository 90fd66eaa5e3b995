/* timers.c: one heap of sessions per thread, by when each is to be looked at next. */
#include "engine.h"

#include <stdlib.h>

static void place(hr_engine *engine, uint32_t at, hr_session *session)
{
    engine->heap[at] = session;
    session->timer_at = at;
}

static void rise(hr_engine *engine, uint32_t at, hr_session *session)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;

        if (engine->heap[parent]->timer_ns <= session->timer_ns)
            break;
        place(engine, at, engine->heap[parent]);
        at = parent;
    }
    place(engine, at, session);
}

static void sink(hr_engine *engine, uint32_t at, hr_session *session)
{
    for (;;) {
        uint32_t child = at * 2 + 1;

        if (child >= engine->heaped)
            break;
        if (child + 1 < engine->heaped
            && engine->heap[child + 1]->timer_ns < engine->heap[child]->timer_ns)
            child++;
        if (session->timer_ns <= engine->heap[child]->timer_ns)
            break;
        place(engine, at, engine->heap[child]);
        at = child;
    }
    place(engine, at, session);
}

void hr_timer(hr_session *session, uint64_t due_ns)
{
    hr_engine *engine = session->thread->engine;

    if (due_ns == 0 || due_ns == UINT64_MAX || !session->own.in_use)
        return;
    if (session->timer_ns != 0) {
        if (session->timer_ns <= due_ns)
            return;
        session->timer_ns = due_ns;
        rise(engine, session->timer_at, session);
        return;
    }
    /* hr_session_make has seen to it that there is room for every session. */
    session->timer_ns = due_ns;
    rise(engine, engine->heaped++, session);
}

void hr_timer_drop(hr_session *session)
{
    hr_engine *engine = session->thread->engine;
    uint32_t at = session->timer_at;
    hr_session *last;

    if (session->timer_ns == 0)
        return;
    session->timer_ns = 0;
    last = engine->heap[--engine->heaped];
    if (last == session)
        return;
    rise(engine, at, last);
    sink(engine, last->timer_at, last);
}

uint64_t hr_timer_next(const hr_thread *thread)
{
    const hr_engine *engine = thread->engine;

    return engine->heaped == 0 ? UINT64_MAX : engine->heap[0]->timer_ns;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return b != 0 && b < a ? b : a;
}

/* The next time at which one of all that it waits for is due. */
static uint64_t next_due(const hr_session *session)
{
    const hr_settings *settings = &session->thread->relay->settings;
    uint64_t due = UINT64_MAX;

    if (session->closing)
        return session->own.close_by_ns;
    due = sooner(due, session->own.connect_by_ns);
    due = sooner(due, session->own.leave_by_ns);
    due = sooner(due, session->own.orphan_by_ns);
    due = sooner(due, session->own.scarce_by_ns);
    if (!session->established)
        due = sooner(due, session->since_ns + settings->startup_timeout_ms * HR_MS);
    else if (settings->idle_timeout_ms > 0)
        due = sooner(due, session->own.last_ns + settings->idle_timeout_ms * HR_MS);
    if (session->held)
        due = sooner(due, hr_gate_due(session));
    return due;
}

/* Without those that are past: a wait that need not end is the cheapest. */
void hr_timer_anew(hr_session *session)
{
    hr_timer_drop(session);
    hr_timer(session, next_due(session));
}

/* A session in the midst of something is not idle, however long it takes: it is looked at again. */
static void idle_due(hr_session *session)
{
    if (session->machine->at_rest(session) && !session->held)
        hr_lose(session, HR_LOST_IDLE, NULL);
    else
        session->own.last_ns = session->thread->now_ns;
}

static void run_one(hr_session *session)
{
    const hr_settings *settings = &session->thread->relay->settings;
    uint64_t now_ns = session->thread->now_ns;

    if (session->closing)
        hr_close_due(session);
    else if (session->own.leave_by_ns != 0 && session->own.leave_by_ns <= now_ns)
        hr_lose(session, session->own.leave_why, NULL);
    else if (!session->established
             && session->since_ns + settings->startup_timeout_ms * HR_MS <= now_ns)
        hr_lose(session, HR_LOST_STARTUP, NULL);
    else if (session->own.connect_by_ns != 0 && session->own.connect_by_ns <= now_ns)
        hr_connect_due(session);
    else if (session->own.orphan_by_ns != 0 && session->own.orphan_by_ns <= now_ns)
        hr_orphan_due(session);
    else if (session->held && hr_gate_due(session) != 0 && hr_gate_due(session) <= now_ns)
        hr_look_again(session);
    else if (session->established && settings->idle_timeout_ms > 0
             && session->own.last_ns + settings->idle_timeout_ms * HR_MS <= now_ns)
        idle_due(session);
}

void hr_timers_run(hr_thread *thread)
{
    hr_engine *engine = thread->engine;

    while (engine->heaped > 0 && engine->heap[0]->timer_ns <= thread->now_ns) {
        hr_session *session = engine->heap[0];
        uint64_t due_ns;

        hr_timer_drop(session);
        run_one(session);
        if (!session->own.in_use)
            continue;
        hr_settle(session);
        if (!session->own.in_use)
            continue;
        due_ns = next_due(session);
        /* One that is due still (the gate's clock is its own) must not turn this into a spin. */
        if (due_ns <= thread->now_ns)
            due_ns = thread->now_ns + HR_MS;
        hr_timer(session, due_ns);
    }
}
