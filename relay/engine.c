/* engine.c: the relay's life, from hr_open over hr_start and hr_stop to hr_close. */
#include "engine.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STACK_BYTES (512u * 1024u)

/* ── Opening ──────────────────────────────────────────────────────────────── */

static const char *fault_of(const hr_settings *settings)
{
    if (settings->protocol > HR_PROTOCOL_MYSQL)
        return "no such protocol";
    if (settings->threads < 1 || settings->threads > HR_MAX_THREADS)
        return "threads must be 1 to 64";
    if (settings->max_sessions < 1)
        return "max_sessions must be at least 1";
    if (settings->startup_timeout_ms < 1 || settings->connect_timeout_ms < 1)
        return "startup_timeout_ms and connect_timeout_ms must be at least 1";
    if (settings->max_buffer_bytes < 4u * HR_BUFFER_BYTES)
        return "max_buffer_bytes must be at least 278528";
    return NULL;
}

static bool open_parts(hr_relay *relay, const hg_identity *identity)
{
    relay->engine = hr_aligned(sizeof *relay->engine);
    if (relay->engine == NULL)
        return false;
    pthread_mutex_init(&relay->engine->lock, NULL);
    if (!hr_events_open(relay) || !hr_registry_open(relay))
        return false;
    for (; relay->thread_count < relay->settings.threads; relay->thread_count++) {
        hr_thread *thread = hr_thread_make(relay, relay->thread_count);

        if (thread == NULL)
            return false;
        relay->threads[relay->thread_count] = thread;
    }
    return hr_gate_open(relay, identity);
}

hr_relay *hr_open(const hr_settings *settings, const hg_identity *identity, hg_region *region,
                  hr_state *state, char *error, size_t error_length)
{
    const char *fault = fault_of(settings);
    hr_relay *relay;

    if (fault != NULL) {
        snprintf(error, error_length, "%s", fault);
        return NULL;
    }
    relay = hr_aligned(sizeof *relay);
    if (relay != NULL) {
        relay->settings = *settings;
        relay->region = region;
        relay->state = state;
        if (open_parts(relay, identity))
            return relay;
        hr_close(relay);
    }
    snprintf(error, error_length, "no memory, or the identity settings are not sound");
    return NULL;
}

/* ── Starting ─────────────────────────────────────────────────────────────── */

/* A seat of the region that nobody has; two processes share it during a hand-over. */
static bool take_seat(hr_thread *thread)
{
    hg_region *region = thread->relay->region;
    hg_seat *seats = (hg_seat *) (void *) ((char *) region + region->seats_at);
    uint32_t seat;

    for (seat = 0; seat < region->sizes.seats; seat++) {
        uint32_t nobody = 0;

        if (!atomic_compare_exchange_strong(&seats[seat].pid, &nobody, thread->pid))
            continue;
        hg_seat_take(region, seat, thread->pid);
        thread->seat = seat;
        thread->engine->seated = true;
        return true;
    }
    return false;
}

static void leave_thread(hr_thread *thread)
{
    if (thread->engine->gated)
        hr_gate_thread_close(thread);
    if (thread->engine->seated)
        hg_seat_free(thread->relay->region, thread->seat);
    hr_inbox_close(thread);
    hr_loop_close(thread);
    thread->engine->gated = thread->engine->seated = false;
}

static const char *open_thread(hr_thread *thread)
{
    hr_engine *engine = thread->engine;

    if (engine->spare_fd < 0)
        engine->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!hr_loop_open(thread) || !hr_inbox_open(thread))
        return "a thread's loop cannot be opened: are descriptors or memory used up?";
    if (!take_seat(thread))
        return "the region has no free seat: it needs one for every thread of both processes";
    engine->gated = hr_gate_thread_open(thread);
    return engine->gated ? NULL : "no memory for a thread's gate";
}

static bool launch(hr_thread *thread)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    char name[16];
    bool launched;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's thread */
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    launched = pthread_create(&thread->engine->handle, &attributes, hr_thread_run, thread) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (launched) {
        snprintf(name, sizeof name, "hg-relay-%u", thread->number);
        pthread_setname_np(thread->engine->handle, name);
    }
    thread->engine->running = launched;
    return launched;
}

static const char *open_threads(hr_relay *relay)
{
    const char *fault = NULL;
    uint32_t i;

    for (i = 0; i < relay->thread_count && fault == NULL; i++)
        fault = open_thread(relay->threads[i]);
    for (i = 0; i < relay->thread_count && fault != NULL; i++)
        leave_thread(relay->threads[i]);
    return fault;
}

const char *hr_start(hr_relay *relay)
{
    hr_engine_shared *shared = relay->engine;
    const char *fault = NULL;
    uint32_t i;

    if (shared->started)
        return "it is started already";
    fault = open_threads(relay);
    shared->started = fault == NULL;
    for (i = 0; i < relay->thread_count && fault == NULL; i++)
        if (!launch(relay->threads[i]))
            fault = "a thread cannot be started";
    if (fault != NULL)
        hr_stop(relay);
    return fault;
}

/* ── Stopping ─────────────────────────────────────────────────────────────── */

void hr_stir(hr_relay *relay)
{
    uint32_t i;

    for (i = 0; relay->engine->started && i < relay->thread_count; i++)
        hr_order(relay->threads[i], HR_ORDER_STIR);
}

void hr_stop(hr_relay *relay)
{
    uint32_t i;

    for (i = 0; i < relay->thread_count; i++)
        if (relay->threads[i]->engine->running)
            hr_order(relay->threads[i], HR_ORDER_STOP);
    for (i = 0; i < relay->thread_count; i++)
        if (relay->threads[i]->engine->running) {
            pthread_join(relay->threads[i]->engine->handle, NULL);
            relay->threads[i]->engine->running = false;
        }
    for (i = 0; i < relay->thread_count; i++)
        leave_thread(relay->threads[i]);
    relay->engine->started = false;
}

void hr_close(hr_relay *relay)
{
    uint32_t i;

    if (relay == NULL)
        return;
    hr_stop(relay);
    hr_gate_close(relay);
    for (i = 0; i < relay->thread_count; i++)
        hr_thread_free(relay->threads[i]);
    hr_registry_close(relay);
    hr_events_close(relay);
    if (relay->engine != NULL) {
        hr_listeners_free(relay);
        hr_places_drop(relay->engine->places);
        pthread_mutex_destroy(&relay->engine->lock);
    }
    free(relay->engine);
    free(relay);
}

uint32_t hr_thread_total(const hr_relay *relay)
{
    return relay->thread_count;
}

const hr_thread_counts *hr_counts_of(const hr_relay *relay, uint32_t thread)
{
    return thread < relay->thread_count ? relay->threads[thread]->counts : NULL;
}
