/* drain.c: sessions that are to go, each when it does no harm: a drain, a target that has moved. */
#include "engine.h"

#include <string.h>

/* One that goes for a reason already keeps that one, with the earlier of both times. */
void hr_leave(hr_session *session, hr_lost why, uint64_t by_ns, bool patient)
{
    if (session->closing)
        return;
    if (!session->own.leaving || session->own.patient) {
        session->own.leave_why = (uint8_t) why;
        session->own.patient = patient;
    }
    session->own.leaving = true;
    session->draining |= why == HR_LOST_DRAIN;
    if (by_ns != 0 && (session->own.leave_by_ns == 0 || by_ns < session->own.leave_by_ns)) {
        session->own.leave_by_ns = by_ns;
        hr_timer(session, by_ns);
    }
    hr_settle(session);
}

void hr_drain_one(hr_session *session)
{
    hr_engine_shared *shared = hr_shared(session->thread);

    hr_leave(session, HR_LOST_DRAIN, shared->drain_by_ns, shared->drain_patient);
}

void hr_drain_begin(hr_thread *thread)
{
    hr_session *session, *next;

    hr_listeners_unwatch(thread);
    for (session = thread->engine->sessions; session != NULL; session = next) {
        next = session->next;
        hr_drain_one(session);
    }
    hr_drain_over(thread);
}

/* Then a thread may have accepted a session that is not counted yet. */
static bool anybody_watches(hr_engine_shared *shared)
{
    uint32_t count = atomic_load(&shared->listeners), i;

    for (i = 0; i < count; i++)
        if (atomic_load(&shared->listener[i].watchers) != 0)
            return true;
    return false;
}

void hr_drain_over(hr_thread *thread)
{
    static const hr_event drained = {.kind = HR_EVENT_DRAINED};
    hr_engine_shared *shared = hr_shared(thread);

    if (!atomic_load_explicit(&shared->draining, memory_order_relaxed) || anybody_watches(shared)
        || atomic_load(&shared->sessions) != 0 || atomic_exchange(&shared->drain_told, true))
        return;
    hr_tell(thread, &drained);
}

void hr_drain(hr_relay *relay, bool keep, bool patient, uint32_t deadline_ms)
{
    hr_engine_shared *shared = relay->engine;
    uint32_t i;

    shared->drain_keeps = keep;
    shared->drain_patient = patient;
    shared->drain_by_ns = hr_monotonic_ns() + deadline_ms * HR_MS;
    atomic_store(&shared->draining, true);
    for (i = 0; shared->started && i < relay->thread_count; i++)
        hr_order(relay->threads[i], HR_ORDER_DRAIN);
}
