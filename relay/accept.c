/*
 * accept.c: listeners, and which thread gets a new session.
 *
 * All threads watch all listeners, and the kernel wakes one (EPOLLEXCLUSIVE); that one accepts, and
 * hands the descriptor to the thread that has the fewest sessions. So hand-over to another process
 * needs one socket per listener, and a burst of connections does not end up with one thread.
 */
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ACCEPTS_A_ROUND 16

typedef struct hr_newcomer {
    hr_errand errand;
    int fd;
    uint8_t excess; /* HR_EXCESS_* */
    bool own; /* not a client's: hr_take_in */
    hr_listener *listener;
    struct sockaddr_storage address;
} hr_newcomer;

/* ── Settling in ──────────────────────────────────────────────────────────── */

static void gave_up(hr_thread *thread, const hr_newcomer *newcomer)
{
    close(newcomer->fd);
    hg_add_own(&thread->counts->rejected_sessions, 1);
    atomic_fetch_sub(&newcomer->listener->sessions, 1);
    atomic_fetch_sub_explicit(&thread->engine->load, 1, memory_order_relaxed);
    atomic_fetch_sub(&hr_shared(thread)->sessions, 1);
    hr_drain_over(thread);
}

static void begin(hr_thread *thread, const hr_newcomer *newcomer)
{
    hr_session *session = hr_session_make(thread, newcomer->fd, newcomer->listener,
                                          &newcomer->address);

    if (session == NULL) {
        gave_up(thread, newcomer);
        return;
    }
    hg_add_own(&thread->counts->accepted, 1);
    session->own.excess = newcomer->excess;
    if (!newcomer->own && !hr_count_login(session) && newcomer->excess == HR_EXCESS_NOT)
        session->own.excess = HR_EXCESS_LOGINS;
    if (hr_shared(thread)->draining && !newcomer->own)
        hr_drain_one(session); /* accepted before, and on the way to this thread meanwhile */
    if (session->machine->connects_first && session->own.in_use && !session->closing)
        hr_connect(session);
    hr_settle(session);
}

static void settle_in(hr_thread *thread, hr_errand *errand)
{
    hr_newcomer *newcomer = (hr_newcomer *) errand;

    hr_time(thread);
    if (thread->engine->stopped)
        gave_up(thread, newcomer);
    else
        begin(thread, newcomer);
    free(newcomer);
}

static hr_thread *least_busy(hr_thread *thread)
{
    hr_relay *relay = thread->relay;
    hr_thread *least = thread;
    uint32_t i;

    for (i = 0; i < relay->thread_count; i++)
        if (atomic_load_explicit(&relay->threads[i]->engine->load, memory_order_relaxed)
            < atomic_load_explicit(&least->engine->load, memory_order_relaxed))
            least = relay->threads[i];
    return least;
}

static void place(hr_thread *thread, const hr_newcomer *newcomer)
{
    hr_thread *owner = least_busy(thread);
    hr_newcomer *sent;

    atomic_fetch_add(&newcomer->listener->sessions, 1);
    atomic_fetch_add_explicit(&owner->engine->load, 1, memory_order_relaxed);
    if (owner == thread) {
        begin(thread, newcomer);
        return;
    }
    sent = malloc(sizeof *sent);
    if (sent != NULL) {
        *sent = *newcomer;
        sent->errand.run = settle_in;
        if (hr_post(owner, &sent->errand))
            return;
        free(sent);
    }
    gave_up(owner, newcomer);
}

void hr_take_in(hr_thread *thread, int fd, hr_listener *listener)
{
    hr_newcomer newcomer = {
        .fd = fd, .excess = HR_EXCESS_SESSIONS, .own = true, .listener = listener};

    atomic_fetch_add(&hr_shared(thread)->sessions, 1);
    atomic_fetch_add(&listener->sessions, 1);
    atomic_fetch_add_explicit(&thread->engine->load, 1, memory_order_relaxed);
    begin(thread, &newcomer);
}

/* ── Accepting ────────────────────────────────────────────────────────────── */

/* Some more than the settings allow come in, so that each gets an error that says why it has to go; and a cancel
 * request is served even then. Beyond that the door stays shut. */
static bool admit(hr_thread *thread, hr_newcomer *newcomer)
{
    uint32_t most = thread->relay->settings.max_sessions;
    uint32_t sessions = atomic_fetch_add(&hr_shared(thread)->sessions, 1) + 1;

    newcomer->excess = sessions > most ? HR_EXCESS_SESSIONS : HR_EXCESS_NOT;
    if (sessions <= most + most / 8 + 16)
        return true;
    atomic_fetch_sub(&hr_shared(thread)->sessions, 1);
    return false;
}

/* No descriptor is left: the spare one is given up, to be able to turn the newcomer away instead of
 * being woken for it forever. */
static void turn_away(hr_thread *thread, hr_listener *listener)
{
    hr_engine *engine = thread->engine;
    int fd;

    if (engine->spare_fd >= 0)
        close(engine->spare_fd);
    fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        hg_add_own(&thread->counts->rejected_sessions, 1);
    }
    engine->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void hr_accept(hr_thread *thread, hr_listener *listener)
{
    int i;

    if ((thread->engine->watching >> listener->number & 1u) == 0)
        return; /* an event from before it looked away */
    for (i = 0; i < ACCEPTS_A_ROUND && !hr_shared(thread)->draining; i++) {
        hr_newcomer newcomer = {.listener = listener};
        socklen_t length = sizeof newcomer.address;

        newcomer.fd = accept4(listener->fd, (struct sockaddr *) &newcomer.address, &length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (newcomer.fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                turn_away(thread, listener);
            if (errno == ECONNABORTED || errno == EINTR)
                continue;
            return;
        }
        if (!admit(thread, &newcomer)) {
            close(newcomer.fd);
            hg_add_own(&thread->counts->rejected_sessions, 1);
            continue;
        }
        hr_tune_socket(thread->relay, newcomer.fd, newcomer.address.ss_family);
        place(thread, &newcomer);
    }
}

/* ── Listeners ────────────────────────────────────────────────────────────── */

static void look_at(hr_thread *thread, hr_listener *listener)
{
    thread->engine->watching |= 1u << listener->number;
    atomic_fetch_add(&listener->watchers, 1);
    hr_watch(thread, listener->fd, listener);
}

/* The last to look away closes the socket, unless it is kept for another process. */
static void look_away(hr_thread *thread, hr_listener *listener)
{
    hr_engine_shared *shared = hr_shared(thread);

    thread->engine->watching &= ~(1u << listener->number);
    hr_unwatch(thread, listener->fd);
    if (atomic_load(&listener->watchers) == 1 && (listener->gone || !shared->drain_keeps)) {
        close(listener->fd);
        listener->fd = -1;
    }
    atomic_fetch_sub(&listener->watchers, 1);
}

void hr_listeners_watch(hr_thread *thread)
{
    hr_engine_shared *shared = hr_shared(thread);
    uint32_t count = atomic_load(&shared->listeners), i;

    for (i = 0; i < count; i++) {
        hr_listener *listener = &shared->listener[i];
        bool watched = thread->engine->watching >> i & 1u, wanted;

        pthread_mutex_lock(&shared->lock);
        wanted = !listener->gone && !shared->draining;
        if (wanted && !watched)
            look_at(thread, listener);
        else if (watched && listener->gone)
            look_away(thread, listener);
        pthread_mutex_unlock(&shared->lock);
    }
}

void hr_listeners_unwatch(hr_thread *thread)
{
    hr_engine_shared *shared = hr_shared(thread);
    uint32_t i;

    pthread_mutex_lock(&shared->lock);
    for (i = 0; i < HR_MAX_LISTENERS; i++)
        if (thread->engine->watching >> i & 1u)
            look_away(thread, &shared->listener[i]);
    pthread_mutex_unlock(&shared->lock);
}

void hr_listeners_free(hr_relay *relay)
{
    uint32_t i;

    for (i = 0; i < relay->engine->listeners; i++) {
        hr_listener *listener = &relay->engine->listener[i];

        if (listener->fd >= 0)
            close(listener->fd);
        if (listener->tls != NULL)
            hr_tls_drop(listener->tls);
    }
}

static bool open_tls(hr_relay *relay, const hr_tls_settings *settings, hr_tls **tls, char *error,
                     size_t error_length)
{
    *tls = NULL;
    if (settings == NULL || settings->mode == 0)
        return true;
    *tls = hr_tls_open(settings, true, relay->settings.protocol, error, error_length);
    return *tls != NULL;
}

static bool is_listening(int fd, char *error, size_t error_length)
{
    int listening = 0, flags = fcntl(fd, F_GETFL);
    socklen_t length = sizeof listening;

    if (flags >= 0 && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0
        && listening && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0)
        return true;
    snprintf(error, error_length, "descriptor %d is not a listening socket", fd);
    return false;
}

/* A place that nobody looks at any more, or a new one; NULL: there is none. */
static hr_listener *free_place(hr_engine_shared *shared)
{
    uint32_t count = atomic_load(&shared->listeners), i;

    for (i = 0; i < count; i++) {
        hr_listener *listener = &shared->listener[i];

        if (listener->gone && atomic_load(&listener->watchers) == 0
            && atomic_load(&listener->sessions) == 0)
            return listener;
    }
    return count == HR_MAX_LISTENERS ? NULL : &shared->listener[count];
}

static void tell_threads(hr_relay *relay)
{
    uint32_t i;

    for (i = 0; relay->engine->started && i < relay->thread_count; i++)
        hr_order(relay->threads[i], HR_ORDER_LISTEN);
}

int hr_listen(hr_relay *relay, int fd, uint32_t route, const hr_tls_settings *tls, char *error,
              size_t error_length)
{
    hr_engine_shared *shared = relay->engine;
    hr_listener *listener = free_place(shared);
    hr_tls *made, *old;

    if (listener == NULL) {
        snprintf(error, error_length,
                 "there are %u listeners already, with those that are gone and "
                 "have sessions yet",
                 HR_MAX_LISTENERS);
        return -1;
    }
    if (!is_listening(fd, error, error_length) || !open_tls(relay, tls, &made, error, error_length))
        return -1;
    pthread_mutex_lock(&shared->lock);
    listener->fd = fd;
    listener->number = (uint16_t) (listener - shared->listener);
    listener->route = route;
    old = listener->tls; /* of the one that had this place before */
    listener->tls = made;
    listener->tls_mode = tls == NULL ? 0 : (uint8_t) tls->mode;
    listener->gone = false;
    if (listener->number == shared->listeners)
        atomic_store(&shared->listeners, listener->number + 1u);
    pthread_mutex_unlock(&shared->lock);
    if (old != NULL)
        hr_tls_drop(old);
    tell_threads(relay);
    return listener->number;
}

static hr_listener *listener_of(hr_engine_shared *shared, int number)
{
    bool known = number >= 0 && (uint32_t) number < atomic_load(&shared->listeners);

    return known && !shared->listener[number].gone ? &shared->listener[number] : NULL;
}

bool hr_unlisten(hr_relay *relay, int number)
{
    hr_engine_shared *shared = relay->engine;
    hr_listener *listener = listener_of(shared, number);

    if (listener == NULL)
        return false;
    pthread_mutex_lock(&shared->lock);
    listener->gone = true;
    if (atomic_load(&listener->watchers) == 0 && listener->fd >= 0) {
        close(listener->fd);
        listener->fd = -1;
    }
    pthread_mutex_unlock(&shared->lock);
    tell_threads(relay);
    return true;
}

const char *hr_listener_tls(hr_relay *relay, int listener, const hr_tls_settings *tls, char *error,
                            size_t error_length)
{
    hr_engine_shared *shared = relay->engine;
    hr_tls *made, *old;

    if (listener_of(shared, listener) == NULL)
        return "there is no such listener";
    if (!open_tls(relay, tls, &made, error, error_length))
        return error;
    pthread_mutex_lock(&shared->lock);
    old = shared->listener[listener].tls;
    shared->listener[listener].tls = made;
    shared->listener[listener].tls_mode = tls == NULL ? 0 : (uint8_t) tls->mode;
    pthread_mutex_unlock(&shared->lock);
    if (old != NULL)
        hr_tls_drop(old);
    return NULL;
}
