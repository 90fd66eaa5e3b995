/*
 * sessions.c: a session's birth and end, and how many a user or an address has.
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
    hg_add_own(&thread->counts->sessions, 1);
}

static void fill_in(hr_session *session, hr_thread *thread, int fd, const hr_listener *listener)
{
    hr_relay *relay = thread->relay;

    session->id = atomic_fetch_add(&relay->engine->next_id, 1) + 1;
    session->thread = thread;
    session->machine = relay->settings.protocol == HR_PROTOCOL_MYSQL ? &hr_my_machine
                                                                     : &hr_pg_machine;
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
    if (!hr_side_add(session, HR_CLIENT)) {
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

/* ── How many ─────────────────────────────────────────────────────────────── */

static hr_head **head_of(hr_engine_shared *shared, uint64_t key)
{
    hr_head **at = &shared->heads[key % HR_HEAD_ROWS];

    while (*at != NULL && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

/* `key` is where the session keeps under which it is counted: 0 afterwards. */
static void uncount(hr_session *session, uint64_t *key)
{
    hr_engine_shared *shared = hr_shared(session->thread);
    hr_head **at, *head;

    if (*key == 0)
        return;
    pthread_mutex_lock(&shared->lock);
    at = head_of(shared, *key);
    head = *at;
    if (--head->sessions == 0) {
        *at = head->next;
        free(head);
    }
    pthread_mutex_unlock(&shared->lock);
    *key = 0;
}

/* False: there are as many already. */
static bool count(hr_session *session, uint64_t key, uint32_t most, uint64_t *kept)
{
    hr_engine_shared *shared = hr_shared(session->thread);
    hr_head **at;
    bool fits = true;

    pthread_mutex_lock(&shared->lock);
    at = head_of(shared, key);
    if (*at == NULL && (*at = calloc(1, sizeof **at)) != NULL)
        (*at)->key = key;
    if (*at != NULL) {
        fits = (*at)->sessions < most;
        if (fits) {
            (*at)->sessions++;
            *kept = key;
        }
    }
    pthread_mutex_unlock(&shared->lock);
    return fits;
}

/* By the name that the server has let in: before that it is just what a client says, and a client that says it
 * could lock its owner out. */
bool hr_user_proved(hr_session *session)
{
    uint32_t most = session->thread->relay->settings.max_sessions_per_user;
    const char *username = session->gate.names;
    char *fault = session->thread->engine->fault;
    uint64_t key;

    session->own.names_seen = username;
    if (most == 0 || username == NULL || *username == '\0')
        return true;
    key = hg_hash(7, username, strlen(username)) | 1u;
    if (key == session->own.user_key)
        return true;
    uncount(session, &session->own.user_key);
    if (count(session, key, most, &session->own.user_key))
        return true;
    snprintf(fault, sizeof session->thread->engine->fault,
             "user %.64s has %u, as many as max_sessions_per_user allows", username, most);
    session->fault = fault;
    return false;
}

uint32_t hr_logins_most(const hr_relay *relay)
{
    const hr_settings *settings = &relay->settings;

    return settings->max_logins_per_address > 0
               ? settings->max_logins_per_address
               : settings->max_sessions - settings->max_sessions / 64;
}

bool hr_count_login(hr_session *session)
{
    size_t length = session->family == 4 ? 4 : 8; /* of IPv6: what one network has */

    if (session->family == 0)
        return true;
    return count(session, hg_hash(8, session->address, length) | 1u,
                 hr_logins_most(session->thread->relay), &session->own.login_key);
}

void hr_login_over(hr_session *session)
{
    uncount(session, &session->own.login_key);
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
    hg_add_own(&thread->counts->sessions, UINT64_MAX);
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
    uncount(session, &session->own.user_key);
    hr_login_over(session);
    atomic_fetch_sub(&hr_shared(thread)->listener[session->listener].sessions, 1);
    link_out(thread, session);
    if (session->own.resting)
        hg_add_own(&thread->counts->idle_sessions, UINT64_MAX);
    hg_add_own(&thread->counts->closed, 1);
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
