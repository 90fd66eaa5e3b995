/*
 * loop_epoll.c: waiting, reading and sending by epoll.
 *
 * Level-triggered, and armed once: a statement costs one recv and one send an end, and its share of
 * an epoll_wait. To stop reading costs nothing alone: the interest is taken back only if bytes
 * do come meanwhile (a held statement's client mostly just waits). What was unsent arms EPOLLOUT.
 */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS 256
#define NEAR_NS (50u * HR_MS) /* waits so short are given in ns, where the kernel takes that */
#define MAX_WAIT_MS 60000u

enum { TAG_SERVER = 1u, TAG_WATCH = 2u, TAGS = 3u };

typedef struct hr_epoll {
    int fd;
    bool coarse; /* no epoll_pwait2 here */
    struct epoll_event events[EVENTS];
} hr_epoll;

static int epoll_of(const hr_thread *thread)
{
    return ((const hr_epoll *) thread->loop)->fd;
}

static bool loop_works(void)
{
    return true;
}

static bool loop_open(hr_thread *thread)
{
    hr_epoll *loop = calloc(1, sizeof *loop);

    if (loop == NULL)
        return false;
    loop->fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->fd < 0) {
        free(loop);
        return false;
    }
    thread->loop = loop;
    return true;
}

static void loop_close(hr_thread *thread)
{
    close(epoll_of(thread));
    free(thread->loop);
    thread->loop = NULL;
}

static bool loop_watch(hr_thread *thread, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN | (what != NULL ? (uint32_t) EPOLLEXCLUSIVE : 0)};

    event.data.u64 = (uint64_t) (uintptr_t) what | TAG_WATCH;
    return epoll_ctl(epoll_of(thread), EPOLL_CTL_ADD, fd, &event) == 0;
}

static void loop_unwatch(hr_thread *thread, int fd, void *what)
{
    (void) what;
    epoll_ctl(epoll_of(thread), EPOLL_CTL_DEL, fd, NULL);
}

/* ── Interest ─────────────────────────────────────────────────────────────── */

/* Of a client that is not read from, its hang-up is still to be seen, once. A server's is not: what
 * it said before must be passed on first. */
static uint32_t interest(const hr_side *side, hr_end end)
{
    uint32_t events = side->sending ? EPOLLOUT : 0;

    if (side->connecting)
        return EPOLLOUT;
    if (side->reading || side->shaking)
        return events | EPOLLIN;
    return end == HR_CLIENT && !side->ended ? events | EPOLLRDHUP : events;
}

static bool control(hr_session *session, hr_end end, int what, uint32_t events)
{
    struct epoll_event event = {.events = events};

    event.data.u64 = (uint64_t) (uintptr_t) session | (end == HR_SERVER ? TAG_SERVER : 0);
    session->side[end].loop_word = events;
    return epoll_ctl(epoll_of(session->thread), what, session->side[end].fd, &event) == 0;
}

static void arm_exactly(hr_session *session, hr_end end)
{
    uint32_t events = interest(&session->side[end], end);

    if (events != session->side[end].loop_word)
        control(session, end, EPOLL_CTL_MOD, events);
}

/* What is armed beyond the interest may stay until it fires; a hang-up is seen by EPOLLIN too. */
static void arm(hr_session *session, hr_end end)
{
    uint32_t armed = (uint32_t) session->side[end].loop_word;
    uint32_t events = interest(&session->side[end], end);

    if (armed & EPOLLIN)
        events &= ~(uint32_t) EPOLLRDHUP;
    if (events & ~armed)
        arm_exactly(session, end);
}

static bool loop_add(hr_session *session, hr_end end, bool connecting)
{
    (void) connecting;
    return control(session, end, EPOLL_CTL_ADD, interest(&session->side[end], end));
}

static void loop_remove(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    if (side->tls != NULL)
        hr_tls_end_free(side->tls);
    epoll_ctl(epoll_of(session->thread), EPOLL_CTL_DEL, side->fd, NULL);
    close(side->fd);
    side->fd = -1;
    side->tls = NULL;
    side->reading = side->sending = side->shaking = side->tls_wanted = false;
    side->loop_word = 0;
}

static void loop_reading(hr_session *session, hr_end end, bool wanted)
{
    (void) wanted;
    arm(session, end);
}

/* ── Sending ──────────────────────────────────────────────────────────────── */

/* Bytes that were taken, 0: none now, -1: none ever again. */
static ssize_t send_pieces(int fd, struct iovec *pieces, uint32_t count)
{
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    ssize_t sent;

    if (count == 1)
        sent = send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    else
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS))
        return 0;
    return sent;
}

static ssize_t send_unsent_once(hr_side *side, size_t *wanted)
{
    struct iovec pieces[64];
    uint32_t count;

    if (side->tls != NULL) {
        hr_buffer *first = side->unsent;

        *wanted = first->end - first->start;
        *wanted = *wanted < HR_RECORD_BYTES ? *wanted : HR_RECORD_BYTES;
        return hr_record_send(side, first->bytes + first->start, *wanted);
    }
    count = hr_unsent_pieces(side, pieces, 64, wanted);
    return send_pieces(side->fd, pieces, count);
}

static void send_unsent(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    while (side->unsent_bytes > 0) {
        size_t wanted;
        ssize_t sent = send_unsent_once(side, &wanted);

        if (sent < 0) {
            hr_send_failed(session, end);
            break;
        }
        hr_unsent_sent(session, end, (size_t) sent);
        if ((size_t) sent < wanted) {
            side->sending = true;
            arm(session, end);
            return;
        }
    }
    side->sending = false;
}

static void loop_send(hr_session *session, hr_end end)
{
    hr_pieces *out = &session->thread->engine->out[end];
    hr_side *side = &session->side[end];
    ssize_t sent;

    if (side->unsent_bytes > 0) {
        hr_spill(session, end, 0);
        if (!side->sending)
            send_unsent(session, end);
        return;
    }
    if (side->tls != NULL)
        sent = hr_records_send(session, end);
    else
        sent = send_pieces(side->fd, out->piece, out->count);
    if ((size_t) sent == out->bytes) {
        hr_forget_pieces(session, end);
        return;
    }
    if (sent < 0) {
        hr_send_failed(session, end);
        return;
    }
    hr_spill(session, end, (size_t) sent);
    side->sending = true;
    arm(session, end);
}

/* ── Reading ──────────────────────────────────────────────────────────────── */

static ssize_t read_plain(hr_side *side, uint8_t *room, size_t most)
{
    ssize_t came = recv(side->fd, room, most, MSG_DONTWAIT);

    if (came < 0 && (errno == EAGAIN || errno == EINTR))
        return HR_TLS_READ;
    return came < 0 ? HR_TLS_FAILED : came;
}

static void read_some(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    uint8_t *room = session->thread->engine->room + HR_HEADROOM;
    size_t most = hr_read_most(session, end);
    ssize_t came = side->tls != NULL ? hr_records_read(side, room, most)
                                     : read_plain(side, room, most);

    if (came > 0)
        hr_fed(session, end, room, (size_t) came, HR_HEADROOM);
    else if (came == HR_TLS_CLOSED)
        hr_ended(session, end);
    else if (came == HR_TLS_FAILED)
        hr_side_failed(session, end);
    if (came > 0 && side->tls != NULL && side->reading && hr_tls_has_more(side->tls))
        hr_wake(session->thread, session, session->id);
}

static void loop_pull(hr_session *session, hr_end end)
{
    read_some(session, end);
}

/* ── Events ───────────────────────────────────────────────────────────────── */

static void on_connecting(hr_session *session)
{
    int error = 0;
    socklen_t length = sizeof error;

    if (getsockopt(session->side[HR_SERVER].fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    hr_connect_done(session, error);
}

static void on_writable(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    send_unsent(session, end);
    if (side->fd < 0 || side->sending)
        return;
    arm_exactly(session, end);
    hr_sent(session, end);
}

/* Not read from, but something is there: bytes that have to wait, or a hang-up. */
static void on_unread(hr_session *session, hr_end end, uint32_t events)
{
    if (events & (EPOLLHUP | EPOLLERR))
        hr_side_failed(session, end);
    else if (events & EPOLLRDHUP)
        hr_ended(session, end);
    arm_exactly(session, end);
}

static void on_event(hr_session *session, hr_end end, uint32_t events)
{
    hr_side *side = &session->side[end];

    if (side->fd < 0)
        return;
    if (side->connecting) {
        on_connecting(session);
        hr_settle(session);
        return;
    }
    if (side->shaking) {
        hr_shake(session, end);
        hr_settle(session);
        return;
    }
    if (events & EPOLLOUT)
        on_writable(session, end);
    if ((events & ~(uint32_t) EPOLLOUT) && side->fd >= 0 && !side->shaking) {
        if (side->reading)
            read_some(session, end);
        else
            on_unread(session, end, events);
    }
    hr_settle(session);
}

static int wait_for(hr_thread *thread, uint64_t until_ns)
{
    hr_epoll *loop = thread->loop;
    uint64_t left_ns = until_ns > thread->now_ns ? until_ns - thread->now_ns : 0;
    uint64_t left_ms = left_ns / HR_MS + (left_ns % HR_MS != 0);
    int count;

    if (until_ns == UINT64_MAX)
        return epoll_wait(loop->fd, loop->events, EVENTS, -1);
    if (left_ns != 0 && left_ns < NEAR_NS && !loop->coarse) {
        struct timespec left = {.tv_nsec = (long) left_ns};

        count = epoll_pwait2(loop->fd, loop->events, EVENTS, &left, NULL);
        if (count >= 0 || errno == EINTR)
            return count;
        loop->coarse = true;
    }
    return epoll_wait(loop->fd, loop->events, EVENTS,
                      (int) (left_ms < MAX_WAIT_MS ? left_ms : MAX_WAIT_MS));
}

static void loop_round(hr_thread *thread, uint64_t until_ns)
{
    hr_epoll *loop = thread->loop;
    int count = wait_for(thread, until_ns), i;

    hr_time(thread);
    hr_wall(thread);
    thread->woke_ns = thread->now_ns;
    for (i = 0; i < count; i++) {
        uint64_t tagged = loop->events[i].data.u64;
        void *what = (void *) (uintptr_t) (tagged & ~(uint64_t) TAGS);

        if (i > 0)
            hr_time(thread);
        if (tagged & TAG_WATCH)
            hr_watched(thread, what);
        else
            on_event(what, tagged & TAG_SERVER ? HR_SERVER : HR_CLIENT, loop->events[i].events);
    }
}

const hr_loop hr_epoll_loop = {
    .name = "epoll",
    .works = loop_works,
    .open = loop_open,
    .close = loop_close,
    .round = loop_round,
    .watch = loop_watch,
    .unwatch = loop_unwatch,
    .add = loop_add,
    .remove = loop_remove,
    .reading = loop_reading,
    .pull = loop_pull,
    .send = loop_send,
};
