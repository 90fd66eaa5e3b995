/*
 * loop_uring.c: waiting, reading and sending by io_uring.
 *
 * One system call a round: it submits every send and read of the last round and waits for what comes.
 * A read takes a buffer only when bytes are there (the kernel chooses one), so who waits has none;
 * what a machine emits straight out of it is sent from where it lies. Anything else is copied.
 *
 *   wire   one per descriptor. Whatever the kernel may still touch belongs to it, so that a session's
 *          memory need not outlive its end: the wire does, until its last completion is in.
 *          (uring_wires.c; uring_send.c, uring_read.c: what goes over it)
 *
 * TLS: reads as ever, and what came is given to TLS (hr_tls_unread); its writes are system calls.
 */
#include "uring_loop.h"

#ifndef HR_HAVE_URING

static bool loop_open(hr_thread *thread)
{
    (void) thread;
    return false;
}

const hr_loop hr_uring_loop = {.name = "io_uring", .works = hr_uring_works, .open = loop_open};

#else

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define ENTRIES 1024u
#define SMALL_BUFFERS 256u
#define SMALL_HEADROOM 512u
#define LARGE_BUFFERS 32u
#define LARGE_BYTES (128u * 1024u)
#define LAND_NS (5u * HR_MS)

/* ── Other completions ────────────────────────────────────────────────────── */

static void on_connect(hr_session *session)
{
    int error = 0;
    socklen_t length = sizeof error;

    if (getsockopt(session->side[HR_SERVER].fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    hr_connect_done(session, error);
}

/* While it is read from, the read will tell. */
static void on_hangup(hr_session *session, hr_end end, int events)
{
    const hr_wire *w = session->side[end].loop;

    if (events < 0 || session->side[end].reading || session->side[end].shaking
        || hr_wire_armed(w, OP_RECV))
        return;
    if (events & (POLLHUP | POLLERR))
        hr_side_failed(session, end);
    else if (events & POLLRDHUP)
        hr_ended(session, end);
}

static void on_writable(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    if (side->shaking)
        hr_shake(session, end);
    else if (side->tls != NULL) {
        hr_uring_send_tls(session, end);
        if (side->fd >= 0 && !side->sending)
            hr_sent(session, end);
    }
}

/* Once each time: so what was not taken is reported again. */
static void arm_watch(hr_uring *loop, hr_watch *watched)
{
    struct io_uring_sqe *sqe = hr_ring_sqe(&loop->ring);

    sqe->opcode = IORING_OP_POLL_ADD;
    sqe->fd = watched->fd;
    sqe->poll32_events = POLLIN | (watched->what != NULL ? (uint32_t) EPOLLEXCLUSIVE : 0);
    sqe->user_data = (uint64_t) (uintptr_t) watched | OP_WATCH;
}

static void on_watch(hr_thread *thread, hr_watch *watched)
{
    if (watched->live)
        hr_watched(thread, watched->what);
    if (watched->live)
        arm_watch(thread->loop, watched);
}

static void on_session(hr_thread *thread, hr_wire *w, int op, const struct io_uring_cqe *cqe)
{
    hr_session *session = w->session;
    hr_end end = (hr_end) w->end;

    hr_time(thread);
    if (op == OP_RECV)
        hr_uring_received(thread, w, cqe);
    else if (session != NULL && op == OP_CONNECT)
        on_connect(session);
    else if (session != NULL && op == OP_HANGUP)
        on_hangup(session, end, cqe->res);
    else if (session != NULL && op == OP_WRITABLE)
        on_writable(session, end);
    if (session == NULL)
        return;
    hr_wire_settle(session);
    if (w->session != NULL)
        hr_wire_arm(session, end);
}

static void on_completion(hr_thread *thread, const struct io_uring_cqe *cqe)
{
    int op = (int) (cqe->user_data & TAGS);
    void *what = (void *) (uintptr_t) (cqe->user_data & ~(uint64_t) TAGS);
    hr_wire *w = what;

    if (op == OP_WATCH) {
        hr_time(thread);
        on_watch(thread, what);
        return;
    }
    if (w == NULL)
        return;
    w->armed &= (uint8_t) ~(1u << op);
    w->users++;
    if (op == OP_SEND)
        hr_uring_sent(w, cqe->res);
    else
        on_session(thread, w, op, cqe);
    w->users--;
    hr_wire_release(thread, w);
}

/* ── A round ──────────────────────────────────────────────────────────────── */

/* Sessions for which there was no buffer: by now all are back but those of sends under way. */
static void feed_starved(hr_thread *thread)
{
    hr_uring *loop = thread->loop;
    hr_wire *w = loop->starved;

    loop->starved = NULL;
    while (w != NULL) {
        hr_wire *next = w->next;

        w->starved = false;
        if (w->session != NULL)
            hr_wire_arm(w->session, (hr_end) w->end);
        hr_wire_release(thread, w);
        w = next;
    }
}

/* Whether what was launched has something behind it: no completion will tell that it may go on. */
static bool is_pressing(const hr_uring *loop)
{
    for (const hr_wire *w = loop->launched; w != NULL; w = w->next_launched)
        if (w->session == NULL || w->session->side[w->end].unsent != NULL
            || hr_uring_awaits(w->session, (hr_end) w->end))
            return true;
    return false;
}

static void loop_round(hr_thread *thread, uint64_t until_ns)
{
    hr_uring *loop = thread->loop;
    uint64_t left_ns = until_ns > thread->now_ns ? until_ns - thread->now_ns : 0;
    bool waits = left_ns > 0 && hr_ring_ready(&loop->ring) == 0 && !is_pressing(loop);
    uint32_t count;

    /* What was launched has been sent, and is given back after the wait: soon, if nothing comes. */
    if (loop->launched != NULL && left_ns > LAND_NS)
        left_ns = LAND_NS;
    else if (until_ns == UINT64_MAX)
        left_ns = UINT64_MAX;
    hr_ring_enable(&loop->ring);
    hr_ring_wait(&loop->ring, waits ? 1 : 0, left_ns);
    hr_time(thread);
    hr_wall(thread);
    thread->woke_ns = thread->now_ns;
    hr_uring_land(thread);
    count = hr_ring_ready(&loop->ring);
    for (uint32_t i = 0; i < count; i++) {
        struct io_uring_cqe cqe = *hr_ring_cqe(&loop->ring, 0);

        hr_ring_seen(&loop->ring, 1);
        on_completion(thread, &cqe);
    }
    if (loop->starved != NULL)
        feed_starved(thread);
}

/* ── Watching ─────────────────────────────────────────────────────────────── */

static bool loop_watch(hr_thread *thread, int fd, void *what)
{
    hr_uring *loop = thread->loop;
    hr_watch *watched = calloc(1, sizeof *watched);

    if (watched == NULL)
        return false;
    watched->fd = fd;
    watched->what = what;
    watched->live = true;
    watched->next = loop->watches;
    loop->watches = watched;
    arm_watch(loop, watched);
    return true;
}

static void loop_unwatch(hr_thread *thread, int fd, void *what)
{
    hr_uring *loop = thread->loop;

    for (hr_watch *watched = loop->watches; watched != NULL; watched = watched->next)
        if (watched->live && watched->fd == fd && watched->what == what) {
            struct io_uring_sqe *sqe = hr_ring_sqe(&loop->ring);

            watched->live = false;
            sqe->opcode = IORING_OP_ASYNC_CANCEL;
            sqe->addr = (uint64_t) (uintptr_t) watched | OP_WATCH;
            sqe->user_data = OP_CANCEL;
            hr_ring_submit(&loop->ring); /* so that the socket closes when its descriptor does */
        }
}

/* ── Life ─────────────────────────────────────────────────────────────────── */

static void loop_close(hr_thread *thread)
{
    hr_uring *loop = thread->loop;

    if (loop == NULL)
        return;
    /* Its thread has ended, and with it all that was under way: nothing is touched any more. */
    hr_ring_close(&loop->ring);
    while (loop->open != NULL) {
        hr_wire *w = loop->open;

        w->session = NULL;
        w->armed = w->users = 0;
        w->starved = false;
        hr_wire_release(thread, w);
    }
    while (loop->watches != NULL) {
        hr_watch *next = loop->watches->next;

        free(loop->watches);
        loop->watches = next;
    }
    for (uint32_t i = 0; i < loop->slab_count; i++)
        free(loop->slabs[i]);
    free(loop->slabs);
    hr_ring_buffers_close(&loop->buffers[0]);
    hr_ring_buffers_close(&loop->buffers[1]);
    free(loop);
    thread->loop = NULL;
}

static void *open_ring(void *argument)
{
    hr_uring *loop = argument;

    if (hr_ring_open(&loop->ring, ENTRIES) && hr_ring_buffers_open(&loop->ring, &loop->buffers[0])
        && hr_ring_buffers_open(&loop->ring, &loop->buffers[1]))
        return loop;
    return NULL;
}

static bool loop_open(hr_thread *thread)
{
    hr_uring *loop = calloc(1, sizeof *loop);

    if (loop == NULL)
        return false;
    loop->ring = hr_no_ring;
    loop->buffers[0] = (hr_ring_buffers){
        .group = 0, .count = SMALL_BUFFERS, .bytes = SMALL_BYTES, .headroom = SMALL_HEADROOM};
    loop->buffers[1] = (hr_ring_buffers){
        .group = 1, .count = LARGE_BUFFERS, .bytes = LARGE_BYTES, .headroom = HR_HEADROOM};
    thread->loop = loop;
    if (hr_uring_apart(open_ring, loop))
        return true;
    loop_close(thread);
    return false;
}

const hr_loop hr_uring_loop = {
    .name = "io_uring",
    .works = hr_uring_works,
    .open = loop_open,
    .close = loop_close,
    .round = loop_round,
    .watch = loop_watch,
    .unwatch = loop_unwatch,
    .add = hr_uring_add,
    .remove = hr_uring_remove,
    .reading = hr_uring_reading,
    .pull = hr_uring_pull,
    .send = hr_uring_send,
};

#endif
