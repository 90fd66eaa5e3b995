/*
 * thread.c: one relay thread.
 *
 *   errands and orders ─► hr_loop_round (wait, read, feed, send) ─► timers ─► the dead ─► …
 *
 * It never waits but in its loop.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t hr_monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

/* The coarse clock is at most a tick old, and costs a few ns. */
void hr_wall(hr_thread *thread)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    thread->wall_ms = (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ── The thread ───────────────────────────────────────────────────────────── */

/* What could not be sent at once is not sent: there is no time left. */
static void close_all(hr_thread *thread)
{
    hr_session *session, *next;

    hr_listeners_unwatch(thread);
    for (session = thread->engine->sessions; session != NULL; session = next) {
        next = session->next;
        hr_lose(session, HR_LOST_DRAIN, NULL);
        if (session->own.in_use)
            hr_close_now(session);
    }
}

static void obey(hr_thread *thread, uint32_t orders)
{
    if (orders & HR_ORDER_PLACES)
        hr_places_changed(thread);
    if (orders & HR_ORDER_LISTEN)
        hr_listeners_watch(thread);
    if (orders & HR_ORDER_STIR)
        hr_gate_stir(thread);
    if (orders & HR_ORDER_DRAIN)
        hr_drain_begin(thread);
    if (orders & HR_ORDER_STOP)
        thread->engine->stopped = true;
}

static void note_round(hr_thread *thread, uint64_t began_ns)
{
    uint64_t took_ns;

    hr_time(thread); /* the next wait is reckoned from here */
    took_ns = thread->now_ns - began_ns;
    hg_add_own(&thread->counts->rounds, 1);
    if (took_ns > atomic_load_explicit(&thread->counts->longest_round_ns, memory_order_relaxed))
        atomic_store_explicit(&thread->counts->longest_round_ns, took_ns, memory_order_relaxed);
}

static void one_round(hr_thread *thread)
{
    uint64_t woke_ns;

    hr_loop_round(thread, hr_inbox_waits(thread) ? 0 : hr_timer_next(thread));
    woke_ns = thread->woke_ns;
    if (hr_inbox_waits(thread)) {
        hr_time(thread);
        obey(thread, hr_orders_take(thread));
        hr_inbox_run(thread);
    }
    if (thread->now_ns >= hr_timer_next(thread))
        hr_timers_run(thread);
    if (thread->engine->dead != NULL)
        hr_bury(thread);
    note_round(thread, woke_ns);
}

void *hr_thread_run(void *argument)
{
    hr_thread *thread = argument;

    hr_inbox_enter(thread);
    hr_time(thread);
    hr_wall(thread);
    thread->engine->places = hr_places_share(hr_shared(thread));
    hr_listeners_watch(thread);
    while (!thread->engine->stopped)
        one_round(thread);
    hr_time(thread);
    close_all(thread);
    hr_inbox_shut(thread);
    close_all(thread);
    hr_bury(thread);
    return NULL;
}

/* ── Making and freeing a thread ──────────────────────────────────────────── */

static void free_pool(hr_engine *engine)
{
    int pool;

    for (pool = 0; pool < HR_POOLS; pool++)
        while (engine->pool[pool] != NULL) {
            hr_buffer *buffer = engine->pool[pool];

            engine->pool[pool] = buffer->next;
            free(buffer);
        }
}

void hr_thread_free(hr_thread *thread)
{
    hr_engine *engine;

    if (thread == NULL)
        return;
    engine = thread->engine;
    if (engine != NULL) {
        hr_places_drop(engine->places);
        hr_sessions_free(thread);
        free_pool(engine);
        if (engine->spare_fd >= 0)
            close(engine->spare_fd);
        free(engine->room);
        free(engine->scratch);
        free(engine->record);
        free(engine);
    }
    free(thread->counts);
    free(thread);
}

void *hr_aligned(size_t bytes)
{
    size_t whole = (bytes + 63u) & ~(size_t) 63u;
    void *memory = aligned_alloc(64, whole);

    if (memory != NULL)
        memset(memory, 0, whole);
    return memory;
}

hr_thread *hr_thread_make(hr_relay *relay, uint32_t number)
{
    hr_thread *thread = hr_aligned(sizeof *thread);

    if (thread == NULL)
        return NULL;
    thread->relay = relay;
    thread->number = number;
    thread->pid = (uint32_t) getpid();
    thread->counts = hr_aligned(sizeof *thread->counts);
    thread->engine = hr_aligned(sizeof *thread->engine);
    if (thread->engine != NULL) {
        thread->engine->bell = thread->engine->spare_fd = -1;
        thread->engine->room = hr_aligned(HR_HEADROOM + HR_ROOM_BYTES);
        thread->engine->scratch = hr_aligned(HR_SCRATCH_BYTES);
        thread->engine->record = hr_aligned(HR_RECORD_BYTES);
    }
    if (thread->counts == NULL || thread->engine == NULL || thread->engine->room == NULL
        || thread->engine->scratch == NULL || thread->engine->record == NULL) {
        hr_thread_free(thread);
        return NULL;
    }
    return thread;
}
