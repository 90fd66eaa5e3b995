/*
 * sessions.c: a session's birth and end, and how many a user has.
 *
 * Memory of sessions comes in slabs and is used again, never given back while the thread runs: so a
 * late hr_wake touches nothing that is not a session. The dead of a round are free after it: events
 * that were taken from the kernel together with their end may still name them.
 */
#include "engine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SESSIONS_A_SLAB 32u

_Static_assert(_Alignof(hr_session) <= 64, "sessions are aligned to 64 bytes");

static size_t session_stride(void)
{
    return (sizeof(hr_session) + 63u) & ~(size_t) 63u;
}

/* Room in the heap and among the slabs for as many sessions as there can be: a timer never fails. */
static bool more_room(hr_engine *engine)
{
    uint32_t sessions = (engine->slab_count + 1) * SESSIONS_A_SLAB;
    void *grown;

    if (engine->slab_count == engine->slab_room) {
        uint32_t room = engine->slab_room == 0 ? 16 : engine->slab_room * 2;

        grown = realloc(engine->slabs, room * sizeof *engine->slabs);
        if (grown == NULL)
            return false;
        engine->slabs = grown;
        engine->slab_room = room;
    }
    if (sessions > engine->heap_room) {
        grown = realloc(engine->heap, sessions * 2 * sizeof *engine->heap);
        if (grown == NULL)
            return false;
        engine->heap = grown;
        engine->heap_room = sessions * 2;
    }
    return true;
}

static bool more_sessions(hr_engine *engine)
{
    char *slab;
    uint32_t i;

    if (!more_room(engine))
        return false;
    slab = aligned_alloc(64, SESSIONS_A_SLAB * session_stride());
    if (slab == NULL)
        return false;
    memset(slab, 0, SESSIONS_A_SLAB * session_stride());
    engine->slabs[engine->slab_count++] = slab;
    for (i = 0; i < SESSIONS_A_SLAB; i++) {
        hr_session *session = (hr_session *) (void *) (slab + i * session_stride());

        session->next = engine->spare;
        engine->spare = session;
    }
    return true;
}

/* All but what a late hr_wake of the one before may be writing to. */
static void clear(hr_session *session)
{
    size_t from = offsetof(hr_session, own) + offsetof(hr_own, in_use);

    memset(session, 0, offsetof(hr_session, own));
    memset((char *) session + from, 0, sizeof *session - from);
}

static hr_session *take_spare(hr_engine *engine)
{
    hr_session *session;

    if (engine->spare == NULL && !more_sessions(engine))
        return NULL;
    session = engine->spare;
    engine->spare = session->next;
    clear(session);
    return session;
}

static void note_address(hr_session *session, const struct sockaddr_storage *address)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *) address;

        session->family = 4;
        session->port = ntohs(in->sin_port);
        memcpy(session->address, &in->sin_addr, 4);
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *) address;
        const uint8_t *bytes = in->sin6_addr.s6_addr;
        bool is_mapped = memcmp(bytes, mapped, sizeof mapped) == 0;

        session->family = is_mapped ? 4 : 6;
        session->port = ntohs(in->sin6_port);
        memcpy(session->address, is_mapped ? bytes + 12 : bytes, is_mapped ? 4 : 16);
    }
}

static void link_in(hr_thread *thread, hr_session *session)
{
    hr_engine *engine = thread->engine;

    session->next = engine->sessions;
    if (engine->sessions != NULL)
        engine->sessions->previous = session;
    engine->sessions = session;
    hr_count(&thread->counts->sessions, 1);
}

static void fill_in(hr_session *session, hr_thread *thread, int fd, const hr_listener *listener)
{
    hr_relay *relay = thread->relay;

    session->id = atomic_fetch_add(&relay->engine->next_id, 1) + 1;
    session->thread = thread;
    session->machine =
        relay->settings.protocol == HR_PROTOCOL_MYSQL ? &hr_my_machine : &hr_pg_machine;
    session->side[HR_CLIENT].fd = fd;
    session->side[HR_SERVER].fd = -1;
    session->since_ns = session->own.last_ns = thread->now_ns;
    session->listener = listener->number;
    session->client_tls_mode = listener->tls_mode;
    session->own.in_use = true;
}

hr_session *hr_session_make(hr_thread *thread, int fd, const hr_listener *listener,
                            const struct sockaddr_storage *address)
{
    hr_session *session = take_spare(thread->engine);

    if (session == NULL)
        return NULL;
    fill_in(session, thread, fd, listener);
    note_address(session, address);
    session->side[HR_CLIENT].reading = !session->machine->connects_first;
    if (!hr_loop_of(session)->add(session, HR_CLIENT, false)) {
        session->own.in_use = false;
        session->next = thread->engine->spare;
        thread->engine->spare = session;
        return NULL;
    }
    link_in(thread, session);
    hr_gate_session_init(session);
    session->machine->init(session);
    hr_register(session);
    hr_timer(session, session->since_ns + thread->relay->settings.startup_timeout_ms * HR_MS);
    return session;
}

/* ── Users ────────────────────────────────────────────────────────────────── */

static hr_user **user_row(hr_engine_shared *shared, uint64_t key)
{
    hr_user **at = &shared->users[key % HR_USER_ROWS];

    while (*at != NULL && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

static void leave_user(hr_session *session)
{
    hr_engine_shared *shared = hr_shared(session->thread);
    hr_user **at, *user;

    if (session->own.user_key == 0)
        return;
    pthread_mutex_lock(&shared->lock);
    at = user_row(shared, session->own.user_key);
    user = *at;
    if (--user->sessions == 0) {
        *at = user->next;
        free(user);
    }
    pthread_mutex_unlock(&shared->lock);
    session->own.user_key = 0;
}

/* How many sessions it would have with this one; this one is counted unless that is too many. */
static uint32_t join_user(hr_session *session, uint64_t key, uint32_t most)
{
    hr_engine_shared *shared = hr_shared(session->thread);
    hr_user **at;
    uint32_t sessions = 1;

    pthread_mutex_lock(&shared->lock);
    at = user_row(shared, key);
    if (*at == NULL && (*at = calloc(1, sizeof **at)) != NULL)
        (*at)->key = key;
    if (*at != NULL) {
        sessions = (*at)->sessions + 1;
        if (sessions <= most) {
            (*at)->sessions = sessions;
            session->own.user_key = key;
        }
    }
    pthread_mutex_unlock(&shared->lock);
    return sessions;
}

bool hr_count_user(hr_session *session)
{
    uint32_t most = session->thread->relay->settings.max_sessions_per_user;
    const char *username = session->gate.names;
    char *fault = session->thread->engine->fault;
    uint64_t key;

    if (most == 0 || username == NULL || *username == '\0')
        return true;
    key = hg_hash(7, username, strlen(username)) | 1u;
    if (key == session->own.user_key)
        return true;
    leave_user(session);
    if (join_user(session, key, most) <= most)
        return true;
    snprintf(fault, sizeof session->thread->engine->fault,
             "user %.64s has %u, as many as max_sessions_per_user allows", username, most);
    session->fault = fault;
    return false;
}

/* ── End ──────────────────────────────────────────────────────────────────── */

static void link_out(hr_thread *thread, hr_session *session)
{
    if (session->previous != NULL)
        session->previous->next = session->next;
    else
        thread->engine->sessions = session->next;
    if (session->next != NULL)
        session->next->previous = session->previous;
    hr_count(&thread->counts->sessions, UINT64_MAX);
}

void hr_session_finish(hr_session *session)
{
    hr_thread *thread = session->thread;

    hr_timer_drop(session);
    hr_unregister(session);
    hr_stop_over(session);
    session->machine->free(session);
    hr_gate_session_free(session);
    hr_leave_place(session);
    leave_user(session);
    atomic_fetch_sub(&hr_shared(thread)->listener[session->listener].sessions, 1);
    link_out(thread, session);
    if (session->own.resting)
        hr_count(&thread->counts->idle_sessions, UINT64_MAX);
    hr_count(&thread->counts->closed, 1);
    session->own.in_use = false;
    session->next = thread->engine->dead;
    thread->engine->dead = session;
    atomic_fetch_sub_explicit(&thread->engine->load, 1, memory_order_relaxed);
    atomic_fetch_sub(&hr_shared(thread)->sessions, 1);
    hr_drain_over(thread);
}

void hr_bury(hr_thread *thread)
{
    hr_session *session;

    while ((session = thread->engine->dead) != NULL) {
        thread->engine->dead = session->next;
        session->next = thread->engine->spare;
        thread->engine->spare = session;
    }
}

void hr_sessions_free(hr_thread *thread)
{
    hr_engine *engine = thread->engine;

    while (engine->slab_count > 0)
        free(engine->slabs[--engine->slab_count]);
    free(engine->slabs);
    free(engine->heap);
    engine->slabs = NULL;
    engine->heap = NULL;
    engine->spare = engine->dead = NULL;
}
