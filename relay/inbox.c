/*
 * inbox.c: what other threads want of this one.
 *
 * A stack that anybody pushes to without a lock, and that its thread takes whole; the bell (an
 * eventfd) is rung only by who finds it empty. Orders are bits, for what is the same for all.
 */
#include "engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

static _Thread_local hr_thread *this_thread;
static hr_errand shut; /* at the top of a stack that is taken no more */

bool hr_inbox_open(hr_thread *thread)
{
    thread->engine->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return thread->engine->bell >= 0 && hr_watch(thread, thread->engine->bell, NULL);
}

void hr_inbox_close(hr_thread *thread)
{
    if (thread->engine->bell >= 0)
        close(thread->engine->bell);
    thread->engine->bell = -1;
}

void hr_inbox_enter(hr_thread *thread)
{
    this_thread = thread;
}

static void ring(hr_thread *thread)
{
    uint64_t one = 1;

    if (this_thread != thread)
        (void) !write(thread->engine->bell, &one, sizeof one);
}

bool hr_post(hr_thread *owner, hr_errand *errand)
{
    _Atomic(hr_errand *) *inbox = &owner->engine->inbox;
    hr_errand *first = atomic_load_explicit(inbox, memory_order_relaxed);

    do {
        if (first == &shut)
            return false;
        errand->next = first;
    } while (!atomic_compare_exchange_weak_explicit(inbox, &first, errand, memory_order_release,
                                                    memory_order_relaxed));
    if (first == NULL)
        ring(owner);
    return true;
}

static void run_all(hr_thread *thread, hr_errand *newest)
{
    hr_errand *oldest = NULL;

    while (newest != NULL) {
        hr_errand *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        hr_errand *next = oldest->next; /* read first: run may free it, or post it again */

        oldest->run(thread, oldest);
        oldest = next;
    }
}

bool hr_inbox_waits(const hr_thread *thread)
{
    return atomic_load_explicit(&thread->engine->inbox, memory_order_relaxed) != NULL
           || atomic_load_explicit(&thread->engine->orders, memory_order_relaxed) != 0;
}

void hr_inbox_run(hr_thread *thread)
{
    run_all(thread, atomic_exchange_explicit(&thread->engine->inbox, NULL, memory_order_acquire));
}

void hr_inbox_shut(hr_thread *thread)
{
    run_all(thread, atomic_exchange_explicit(&thread->engine->inbox, &shut, memory_order_acquire));
}

void hr_order(hr_thread *thread, uint32_t order)
{
    if (atomic_fetch_or(&thread->engine->orders, order) == 0)
        ring(thread);
}

uint32_t hr_orders_take(hr_thread *thread)
{
    if (atomic_load_explicit(&thread->engine->orders, memory_order_relaxed) == 0)
        return 0;
    return atomic_exchange(&thread->engine->orders, 0);
}

void hr_watched(hr_thread *thread, void *what)
{
    uint64_t rings;

    if (what == NULL)
        (void) !read(thread->engine->bell, &rings, sizeof rings);
    else
        hr_accept(thread, what);
}

/* ── Waking a session ─────────────────────────────────────────────────────── */

static void run_wake(hr_thread *thread, hr_errand *errand)
{
    hr_session *session = (hr_session *) (void *) ((char *) errand
                                                   - offsetof(hr_session, own.wake));
    int end;

    atomic_store(&session->own.waking, false);
    hr_time(thread);
    if (!session->own.in_use)
        return;
    hr_look_again(session);
    for (end = HR_CLIENT; end <= HR_SERVER; end++)
        hr_side_look(session, (hr_end) end);
    hr_settle(session);
}

/* The memory of a session is never given back while its thread runs, so a late wake finds at worst
 * another session there, which is then looked at for nothing: `id` need not be compared. */
void hr_wake(hr_thread *owner, hr_session *session, uint64_t id)
{
    (void) id;
    if (atomic_exchange(&session->own.waking, true))
        return;
    session->own.wake.run = run_wake;
    if (!hr_post(owner, &session->own.wake))
        atomic_store(&session->own.waking, false);
}
