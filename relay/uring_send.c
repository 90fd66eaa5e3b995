/*
 * uring_send.c: sends, and what they did not get rid of.   launched ──► landed, or reported, and flown on
 *
 * A send is tried at once, while it is submitted, and tells of itself only if that was not all of it:
 * so after the system call what is not reported has been sent, and no completion of a send ends the
 * wait for something to do. Of what the socket does not take, the rest is sent when it does; it is
 * copied if it lay in a read's buffer, else a few clients that do not read would take all of those.
 */
#include "uring_loop.h"

#ifdef HR_HAVE_URING

#include <errno.h>
#include <string.h>

/* ── Sending, plain ───────────────────────────────────────────────────────── */

static struct io_uring_sqe *submit_flight(hr_uring *loop, hr_wire *w, int flags)
{
    struct io_uring_sqe *sqe = hr_wire_begin(loop, w, IORING_OP_SEND, OP_SEND);

    sqe->addr = (uint64_t) (uintptr_t) w->flight_at;
    sqe->len = w->flight_bytes;
    sqe->msg_flags = (uint32_t) (MSG_NOSIGNAL | flags);
    return sqe;
}

/* Tried at once. WAITALL makes a part of it a failure, which is reported. */
static void launch(hr_uring *loop, hr_wire *w)
{
    submit_flight(loop, w, MSG_DONTWAIT | MSG_WAITALL)->flags = IOSQE_CQE_SKIP_SUCCESS;
    w->launched = true;
    w->next_launched = loop->launched;
    loop->launched = w;
}

/* The first of what is unsent. */
static void start_flight(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    hr_wire *w = side->loop;
    hr_buffer *first = side->unsent;

    side->unsent = first->next;
    if (side->unsent == NULL)
        side->unsent_last = NULL;
    w->flight = first;
    w->flight_at = first->bytes + first->start;
    w->flight_bytes = first->end - first->start;
    side->flying_bytes = w->flight_bytes;
    launch(hr_uring_of(session), w);
}

/* What was emitted is one piece of the buffer that is being fed from. */
static bool is_current(const hr_uring *loop, const hr_pieces *out)
{
    const uint8_t *at = out->piece[0].iov_base;

    return out->count == 1 && loop->current != NULL && at >= loop->current
           && at < loop->current_end;
}

static void send_current(hr_session *session, hr_end end)
{
    hr_uring *loop = hr_uring_of(session);
    hr_pieces *out = &session->thread->engine->out[end];
    hr_side *side = &session->side[end];
    hr_wire *w = side->loop;

    loop->buffers[loop->current_large].users[loop->current_number]++;
    w->flight_large = loop->current_large;
    w->flight_number = loop->current_number;
    w->flight_at = out->piece[0].iov_base;
    w->flight_bytes = (uint32_t) out->bytes;
    side->flying_bytes = out->bytes;
    side->unsent_bytes += out->bytes;
    hr_forget_pieces(session, end);
    launch(loop, w);
}

/* ── Sending, TLS ─────────────────────────────────────────────────────────── */

void hr_uring_send_tls(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    side->sending = false;
    while (side->unsent_bytes > 0) {
        hr_buffer *first = side->unsent;
        size_t wanted = first->end - first->start;
        ssize_t sent = hr_record_send(side, first->bytes + first->start,
                                      wanted < HR_RECORD_BYTES ? wanted : HR_RECORD_BYTES);

        if (sent < 0) {
            hr_send_failed(session, end);
            return;
        }
        hr_unsent_sent(session, end, (size_t) sent);
        if (sent == 0) {
            side->sending = true;
            hr_wire_arm(session, end);
            return;
        }
    }
}

static void send_tls(hr_session *session, hr_end end)
{
    hr_pieces *out = &session->thread->engine->out[end];
    hr_side *side = &session->side[end];
    ssize_t sent = 0;

    if (side->unsent_bytes == 0)
        sent = hr_records_send(session, end);
    if (sent < 0) {
        hr_send_failed(session, end);
        return;
    }
    if ((size_t) sent == out->bytes)
        hr_forget_pieces(session, end);
    else if (!hr_spill(session, end, (size_t) sent))
        return;
    if (!side->sending)
        hr_uring_send_tls(session, end);
}

void hr_uring_send(hr_session *session, hr_end end)
{
    hr_pieces *out = &session->thread->engine->out[end];
    hr_side *side = &session->side[end];

    if (side->tls != NULL)
        send_tls(session, end);
    else if (side->unsent_bytes == 0 && is_current(hr_uring_of(session), out))
        send_current(session, end);
    else if ((out->count == 0 || hr_spill(session, end, 0)) && side->flying_bytes == 0
             && side->unsent != NULL)
        start_flight(session, end);
}

/* ── Sent ─────────────────────────────────────────────────────────────────── */

/* What the socket did not take of a read's buffer goes in front of what waits already. */
static bool keep_flight(hr_session *session, hr_end end, hr_wire *w)
{
    hr_side *side = &session->side[end];

    while (w->flight_bytes > 0) {
        uint32_t some = w->flight_bytes < HR_BUFFER_BYTES ? w->flight_bytes : HR_BUFFER_BYTES;
        hr_buffer *copy = hr_buffer_get(session->thread, some);

        if (copy == NULL)
            return false;
        /* From its end, so that the beginning comes first. */
        memcpy(copy->bytes, w->flight_at + w->flight_bytes - some, some);
        copy->end = some;
        copy->next = side->unsent;
        side->unsent = copy;
        if (side->unsent_last == NULL)
            side->unsent_last = copy;
        w->flight_bytes -= some;
    }
    return true;
}

/* All that is unsent is lost with it. */
static void flight_failed(hr_session *session, hr_end end, hr_wire *w)
{
    hr_side *side = &session->side[end];

    hr_wire_drop_flight(session->thread, w);
    side->unsent_bytes = 0;
    for (hr_buffer *one = side->unsent; one != NULL; one = one->next)
        side->unsent_bytes += one->end - one->start;
    side->flying_bytes = 0;
    hr_send_failed(session, end);
}

/* What is left of a flight goes on, or the next one starts. False: the end has failed. */
static bool fly_on(hr_session *session, hr_end end, hr_wire *w)
{
    hr_side *side = &session->side[end];
    const uint8_t *direct = w->flight == NULL ? w->flight_at : NULL;

    if (w->flight_bytes > 0 && direct == NULL) {
        submit_flight(hr_uring_of(session), w, 0); /* waits for the socket */
        return true;
    }
    if (w->flight_bytes > 0 && !keep_flight(session, end, w)) {
        flight_failed(session, end, w);
        return false;
    }
    hr_wire_drop_flight(session->thread, w);
    side->flying_bytes = 0;
    if (side->unsent != NULL)
        start_flight(session, end);
    return true;
}

bool hr_uring_awaits(const hr_session *session, hr_end end)
{
    const hr_side *side = &session->side[end], *other = &session->side[hr_other(end)];

    return session->closing || side->tls_wanted || side->ended || other->ended || side->failed
           || side->paused_since_ns != 0 || other->paused_since_ns != 0 || session->own.leaving;
}

void hr_uring_sent(hr_wire *w, int result)
{
    hr_session *session = w->session;
    hr_end end = (hr_end) w->end;
    hr_side *side;

    if (session == NULL)
        return;
    side = &session->side[end];
    if (result < 0 && result != -EAGAIN && result != -EINTR) {
        flight_failed(session, end, w);
        hr_wire_settle(session);
        return;
    }
    if (result > 0) {
        side->unsent_bytes -= (uint32_t) result;
        side->flying_bytes -= (uint32_t) result;
        w->flight_at += result;
        w->flight_bytes -= (uint32_t) result;
    }
    if (!fly_on(session, end, w)) {
        hr_wire_settle(session);
        return;
    }
    if (!hr_uring_awaits(session, end))
        return;
    hr_time(session->thread);
    if (side->unsent_bytes == 0)
        hr_sent(session, end);
    hr_wire_settle(session);
}

/* Of those that were tried at once: what no completion tells of has been sent. */
void hr_uring_land(hr_thread *thread)
{
    hr_uring *loop = thread->loop;
    uint32_t ready = hr_ring_ready(&loop->ring);
    hr_wire *w = loop->launched, *next;

    if (hr_ring_queued(&loop->ring) > 0)
        return;
    loop->launched = NULL;
    for (uint32_t i = 0; i < ready; i++) {
        const struct io_uring_cqe *cqe = hr_ring_cqe(&loop->ring, i);

        if ((cqe->user_data & TAGS) == OP_SEND)
            ((hr_wire *) (uintptr_t) (cqe->user_data & ~(uint64_t) TAGS))->launched = false;
    }
    for (; w != NULL; w = next) {
        next = w->next_launched;
        if (!w->launched)
            continue;
        w->launched = false;
        w->armed &= (uint8_t) ~(1u << OP_SEND);
        w->users++;
        hr_uring_sent(w, (int) w->flight_bytes);
        w->users--;
        hr_wire_release(thread, w);
    }
}

#else

typedef int hr_no_uring_send; /* a file must hold something */

#endif
