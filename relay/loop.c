/*
 * loop.c: waiting, reading and sending, by epoll.
 *
 * Every descriptor is registered once, edge-triggered, for all that can happen to it: a statement costs
 * one recv and one send an end, and its share of an epoll_wait. An edge is reported once, so a side remembers
 * it (`readable`) until a read has found the socket empty. A read that did not fill its room has.
 */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EVENTS 256
#define NEAR_NS (50u * HR_MS) /* waits so short are given in ns, where the kernel takes that */
#define MAX_WAIT_MS 60000u

enum { TAG_SERVER = 1u, TAG_WATCH = 2u, TAGS = 3u };

struct hr_loop {
    int fd;
    bool coarse; /* no epoll_pwait2 here */
    struct epoll_event events[EVENTS];
};

bool hr_loop_open(hr_thread *thread)
{
    hr_loop *loop = calloc(1, sizeof *loop);

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

void hr_loop_close(hr_thread *thread)
{
    if (thread->loop == NULL)
        return;
    close(thread->loop->fd);
    free(thread->loop);
    thread->loop = NULL;
}

bool hr_watch(hr_thread *thread, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN | (what != NULL ? (uint32_t) EPOLLEXCLUSIVE : 0)};

    event.data.u64 = (uint64_t) (uintptr_t) what | TAG_WATCH;
    return epoll_ctl(thread->loop->fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void hr_unwatch(hr_thread *thread, int fd)
{
    epoll_ctl(thread->loop->fd, EPOLL_CTL_DEL, fd, NULL);
}

bool hr_side_add(hr_session *session, hr_end end)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};

    event.data.u64 = (uint64_t) (uintptr_t) session | (end == HR_SERVER ? TAG_SERVER : 0);
    return epoll_ctl(session->thread->loop->fd, EPOLL_CTL_ADD, session->side[end].fd, &event) == 0;
}

void hr_side_remove(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    if (side->tls != NULL)
        hr_tls_end_free(side->tls);
    epoll_ctl(session->thread->loop->fd, EPOLL_CTL_DEL, side->fd, NULL);
    close(side->fd);
    side->fd = -1;
    side->tls = NULL;
    side->reading = side->sending = side->shaking = side->tls_wanted = false;
    side->readable = side->hung_up = false;
}

/* What an edge has reported before is looked at again: bytes, if it is read from, else a hang-up. */
void hr_side_reading(hr_session *session, hr_end end, bool wanted)
{
    hr_side *side = &session->side[end];

    side->reading = wanted;
    if (wanted ? side->readable : side->hung_up && !side->ended)
        hr_wake(session->thread, session, session->id);
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
    return sent < 0 && errno == EAGAIN ? 0 : sent;
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

/* What the socket does not take waits for the edge at which it has room again. */
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
        side->sending = (size_t) sent < wanted;
        if (side->sending)
            return;
    }
    side->sending = false;
}

void hr_side_send(hr_session *session, hr_end end)
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
    if (sent < 0) {
        hr_send_failed(session, end);
    } else if ((size_t) sent == out->bytes) {
        hr_forget_pieces(session, end);
    } else {
        hr_spill(session, end, (size_t) sent);
        side->sending = true;
    }
}

/* ── Reading ──────────────────────────────────────────────────────────────── */

static ssize_t read_plain(hr_side *side, uint8_t *room, size_t most)
{
    ssize_t came = recv(side->fd, room, most, MSG_DONTWAIT);

    /* Behind the last bytes of a side that has hung up is the end, and no edge comes for it. */
    side->readable = came == (ssize_t) most || (came > 0 && side->hung_up);
    if (came < 0)
        return errno == EAGAIN ? HR_TLS_READ : HR_TLS_FAILED;
    return came;
}

/* Whatever was not read is read in the next round: others come first. */
static void read_side(hr_session *session, hr_end end)
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
    if (came > 0 && side->readable && side->reading)
        hr_wake(session->thread, session, session->id);
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
    if (side->fd >= 0 && !side->sending)
        hr_sent(session, end);
}

/* Not read from, but something is there: bytes that have to wait, or a hang-up. A client's counts at
 * once. A server's does when what it said before has been passed on. */
static void on_unread(hr_session *session, hr_end end, uint32_t events)
{
    if ((events & EPOLLERR) || ((events & EPOLLHUP) && (end == HR_CLIENT || session->closing)))
        hr_side_failed(session, end);
    else if (session->side[end].hung_up && end == HR_CLIENT)
        hr_ended(session, end);
}

static void look_at(hr_session *session, hr_end end, uint32_t events)
{
    hr_side *side = &session->side[end];

    if (!side->readable || side->fd < 0 || side->connecting || side->shaking)
        return;
    if (side->reading)
        read_side(session, end);
    else
        on_unread(session, end, events);
}

void hr_side_look(hr_session *session, hr_end end)
{
    look_at(session, end, 0);
}

/* An edge also tells that a socket can be written to, whether anybody waits for that or not. */
static void on_event(hr_session *session, hr_end end, uint32_t events)
{
    hr_side *side = &session->side[end];
    bool writable = events & (EPOLLOUT | EPOLLHUP | EPOLLERR);

    if (side->fd < 0)
        return;
    side->hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    side->readable |= side->hung_up || (events & EPOLLIN);
    if (side->connecting ? !writable : !side->readable && !(side->sending && writable))
        return;
    if (side->connecting)
        on_connecting(session);
    else if (side->shaking)
        hr_shake(session, end);
    else if (side->sending && writable)
        on_writable(session, end);
    look_at(session, end, events);
    hr_settle(session);
}

static int wait_for(hr_thread *thread, uint64_t until_ns)
{
    hr_loop *loop = thread->loop;
    uint64_t left_ns = until_ns > thread->now_ns ? until_ns - thread->now_ns : 0;
    uint64_t left_ms = left_ns / HR_MS + (left_ns % HR_MS != 0);
    int count;

    if (until_ns == UINT64_MAX)
        return epoll_wait(loop->fd, loop->events, EVENTS, -1);
    if (left_ns != 0 && left_ns < NEAR_NS && !loop->coarse) {
        struct timespec left = {.tv_nsec = (long) left_ns};

        /* Not by name: glibc has that since 2.35, and wheels are for 2.34. */
        count = (int) syscall(SYS_epoll_pwait2, loop->fd, loop->events, EVENTS, &left, NULL, 0);
        if (count >= 0 || errno == EINTR)
            return count;
        loop->coarse = true;
    }
    return epoll_wait(loop->fd, loop->events, EVENTS,
                      (int) (left_ms < MAX_WAIT_MS ? left_ms : MAX_WAIT_MS));
}

void hr_loop_round(hr_thread *thread, uint64_t until_ns)
{
    hr_loop *loop = thread->loop;
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
