/* connect.c: to the server, without waiting.   HR_CONNECT ──► … ──► machine->connected, or the next target */
#include "engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void hr_tune_socket(const hr_relay *relay, int fd, int family)
{
    int on = 1, seconds = (int) relay->settings.tcp_keepalive_s;

    if (family != AF_INET && family != AF_INET6)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (seconds == 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    seconds = seconds / 3 > 0 ? seconds / 3 : 1;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
}

void hr_leave_place(hr_session *session)
{
    hr_place *place = session->own.place;

    if (place == NULL)
        return;
    session->own.place = NULL;
    atomic_fetch_sub_explicit(&place->tally->sessions, 1, memory_order_relaxed);
    hr_place_drop(place);
}

static bool is_near(const struct sockaddr_storage *address)
{
    static const uint8_t mapped[13] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127};
    const struct in6_addr *six = &((const struct sockaddr_in6 *) address)->sin6_addr;

    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *) address)->sin_addr.s_addr) >> 24 == 127;
    if (address->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(six) || memcmp(six, mapped, sizeof mapped) == 0;
    return address->ss_family == AF_UNIX;
}

static void take_place(hr_session *session, hr_place *place, uint32_t index)
{
    atomic_fetch_add(&place->users, 1);
    atomic_fetch_add_explicit(&place->tally->sessions, 1, memory_order_relaxed);
    session->own.place = place;
    session->target = index;
    session->target_id = place->target.id;
    session->server_tls_mode = place->tls_mode;
    session->server_near = is_near(&place->target.address);
}

static void connected(hr_session *session)
{
    hr_next next;

    session->side[HR_SERVER].connecting = false;
    session->own.connect_by_ns = 0;
    hr_side_reading(session, HR_SERVER, true);
    if (session->side[HR_SERVER].unsent_bytes > 0)
        hr_side_send(session, HR_SERVER);
    next = session->machine->connected(session);
    if (!hr_after_machine(session))
        return;
    hr_act(session, HR_SERVER, next);
    if (!session->closing)
        hr_feed_kept(session, HR_CLIENT);
}

/* Begins, and says 0; or why not. */
static int begin(hr_session *session, const hr_place *place)
{
    hr_side *server = &session->side[HR_SERVER];
    const struct sockaddr *address = (const struct sockaddr *) &place->target.address;
    int error;

    server->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server->fd < 0)
        return errno;
    hr_tune_socket(session->thread->relay, server->fd, address->sa_family);
    if (connect(server->fd, address, place->target.address_length) != 0 && errno != EINPROGRESS) {
        error = errno;
        close(server->fd);
        server->fd = -1;
        return error;
    }
    server->connecting = true;
    server->ended = server->failed = false;
    if (!hr_side_add(session, HR_SERVER)) {
        close(server->fd);
        server->fd = -1;
        server->connecting = false;
        return ENOMEM;
    }
    session->own.connect_by_ns = session->thread->now_ns
                                 + session->thread->relay->settings.connect_timeout_ms * HR_MS;
    hr_timer(session, session->own.connect_by_ns);
    return 0;
}

static void note_fault(hr_session *session, const hr_place *place, int error)
{
    char *fault = session->thread->engine->fault;
    size_t room = sizeof session->thread->engine->fault;
    uint32_t timeout_ms = session->thread->relay->settings.connect_timeout_ms;

    hg_add_own(&session->thread->counts->failed_connects, 1);
    if (error == ETIMEDOUT)
        snprintf(fault, room, "%.63s: no answer in %u.%u s", place->target.name, timeout_ms / 1000,
                 timeout_ms % 1000 / 100);
    else
        snprintf(fault, room, "%.63s: %s", place->target.name, strerror(error));
}

/* To the next target that was not tried yet, until one is under way or none is left. */
static void try_next(hr_session *session, const char *fault)
{
    for (;;) {
        uint32_t index = 0;
        hr_place *place = hr_place_choose(session, &index);
        int error;

        if (place == NULL) {
            hr_lose(session, fault == NULL ? HR_LOST_NO_TARGET : HR_LOST_CONNECT, fault);
            return;
        }
        take_place(session, place, index);
        error = begin(session, place);
        if (error == 0)
            return;
        note_fault(session, place, error);
        fault = session->thread->engine->fault;
        session->own.tried |= (uint64_t) 1 << index;
        hr_leave_place(session);
    }
}

void hr_connect(hr_session *session)
{
    const hr_settings *settings = &session->thread->relay->settings;
    char *fault = session->thread->engine->fault;

    session->own.wished = session->target_id != 0;
    if (session->own.excess && !session->own.wished) {
        if (session->own.excess == HR_EXCESS_LOGINS)
            snprintf(
                fault, sizeof session->thread->engine->fault,
                "%u are logging in from this address, as many as max_logins_per_address allows",
                hr_logins_most(session->thread->relay));
        else
            snprintf(fault, sizeof session->thread->engine->fault,
                     "there are %u, as many as max_sessions allows", settings->max_sessions);
        hr_lose(session, HR_LOST_SESSIONS, fault);
        return;
    }
    session->own.tried = 0;
    try_next(session, NULL);
}

static void failed(hr_session *session, int error)
{
    hr_side *server = &session->side[HR_SERVER];

    hr_side_remove(session, HR_SERVER);
    server->connecting = server->ended = server->failed = false;
    session->own.connect_by_ns = 0;
    note_fault(session, session->own.place, error);
    session->own.tried |= (uint64_t) 1 << session->target;
    hr_leave_place(session);
    try_next(session, session->thread->engine->fault);
}

void hr_connect_done(hr_session *session, int error)
{
    if (session->closing || !session->side[HR_SERVER].connecting)
        return;
    if (error == 0)
        connected(session);
    else
        failed(session, error);
}

void hr_connect_due(hr_session *session)
{
    if (session->side[HR_SERVER].connecting)
        failed(session, ETIMEDOUT);
    else
        session->own.connect_by_ns = 0;
}
