/* uring_read.c: bytes that came, from the kernel's choice of buffer to the machine; through TLS, if there is. */
#include "uring_loop.h"

#ifdef HR_HAVE_URING

#include <errno.h>

/* ── Reading ──────────────────────────────────────────────────────────────── */

static void read_tls(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    uint8_t *room = session->thread->engine->room + HR_HEADROOM;
    ssize_t came = 1;

    while (came > 0 && side->fd >= 0 && side->tls != NULL && side->reading && !side->shaking) {
        size_t most = hr_read_most(session, end);

        if (most == 0)
            return;
        came = hr_records_read(side, room, most);
        if (came > 0)
            hr_fed(session, end, room, (size_t) came, HR_HEADROOM);
        else if (came == HR_TLS_CLOSED)
            hr_ended(session, end);
        else if (came == HR_TLS_FAILED)
            hr_side_failed(session, end);
        if (came > 0)
            hr_settle(session); /* may stop the reading */
    }
}

void hr_uring_pull(hr_session *session, hr_end end)
{
    read_tls(session, end);
}

static void fed_tls(hr_session *session, hr_end end, const uint8_t *bytes, size_t length)
{
    hr_side *side = &session->side[end];

    hr_tls_fed(side->tls, length == 0);
    if (length > 0 && !hr_tls_unread(side->tls, bytes, length))
        hr_side_failed(session, end);
    else if (side->shaking)
        hr_shake(session, end);
    else
        read_tls(session, end);
}

static void feed_plain(hr_session *session, hr_end end, uint8_t *bytes, size_t length,
                       size_t headroom)
{
    if (session->side[end].tls != NULL)
        fed_tls(session, end, bytes, length);
    else if (length > 0)
        hr_fed(session, end, bytes, length, headroom);
    else
        hr_ended(session, end);
}

static void on_bytes(hr_thread *thread, hr_wire *w, const struct io_uring_cqe *cqe, uint8_t large)
{
    hr_uring *loop = thread->loop;
    hr_ring_buffers *buffers = &loop->buffers[large];
    uint16_t number = (uint16_t) (cqe->flags >> IORING_CQE_BUFFER_SHIFT);
    uint8_t *bytes = hr_ring_buffer(buffers, number);

    buffers->users[number] = 1;
    if (w->session != NULL && cqe->res > 0) {
        loop->current = bytes - buffers->headroom;
        loop->current_end = bytes + cqe->res;
        loop->current_number = number;
        loop->current_large = large;
        w->more = (cqe->flags & IORING_CQE_F_SOCK_NONEMPTY) != 0;
        w->large = (uint32_t) cqe->res >= (large ? SMALL_BYTES / 2 : SMALL_BYTES);
        feed_plain(w->session, (hr_end) w->end, bytes, (size_t) cqe->res, buffers->headroom);
        loop->current = NULL;
    }
    hr_ring_buffer_drop(buffers, number);
}

static void starve(hr_uring *loop, hr_wire *w)
{
    w->starved = true;
    w->next = loop->starved;
    loop->starved = w;
}

/* In a handshake it is the handshake that has failed, and says so. */
static void read_failed(hr_session *session, hr_end end)
{
    if (session->side[end].shaking)
        fed_tls(session, end, NULL, 0);
    else
        hr_side_failed(session, end);
}

void hr_uring_received(hr_thread *thread, hr_wire *w, const struct io_uring_cqe *cqe)
{
    uint8_t large = w->large;

    if ((cqe->flags & IORING_CQE_F_BUFFER) != 0)
        on_bytes(thread, w, cqe, large);
    if (w->session == NULL)
        return;
    if (cqe->res == 0)
        feed_plain(w->session, (hr_end) w->end, NULL, 0, 0);
    else if (cqe->res == -ENOBUFS)
        starve(thread->loop, w);
    else if (cqe->res < 0 && cqe->res != -EAGAIN && cqe->res != -EINTR && cqe->res != -ECANCELED)
        read_failed(w->session, (hr_end) w->end);
}

#else

typedef int hr_no_uring_read; /* a file must hold something */

#endif
