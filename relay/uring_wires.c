/* uring_wires.c: what the kernel may still touch of a session's descriptors, and what it waits for. */
#include "uring_loop.h"

#ifdef HR_HAVE_URING

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define WIRES_A_SLAB 64u

/* ── Wires ────────────────────────────────────────────────────────────────── */

static bool more_wires(hr_uring *loop)
{
    void **slabs = realloc(loop->slabs, (loop->slab_count + 1) * sizeof *slabs);
    hr_wire *slab;

    if (slabs == NULL)
        return false;
    loop->slabs = slabs;
    slab = calloc(WIRES_A_SLAB, sizeof *slab);
    if (slab == NULL)
        return false;
    slabs[loop->slab_count++] = slab;
    for (uint32_t i = 0; i < WIRES_A_SLAB; i++) {
        slab[i].next = loop->spare;
        loop->spare = &slab[i];
    }
    return true;
}

static hr_wire *new_wire(hr_uring *loop, hr_session *session, hr_end end)
{
    hr_wire *w;

    if (loop->spare == NULL && !more_wires(loop))
        return NULL;
    w = loop->spare;
    loop->spare = w->next;
    *w = (hr_wire){.session = session,
                   .fd = session->side[end].fd,
                   .end = (uint8_t) end,
                   .next_open = loop->open};
    if (loop->open != NULL)
        loop->open->previous_open = w;
    loop->open = w;
    return w;
}

void hr_wire_drop_flight(hr_thread *thread, hr_wire *w)
{
    hr_uring *loop = thread->loop;

    if (w->flight != NULL)
        hr_buffer_put(thread, w->flight);
    else if (w->flight_at != NULL)
        hr_ring_buffer_drop(&loop->buffers[w->flight_large], w->flight_number);
    w->flight = NULL;
    w->flight_at = NULL;
    w->flight_bytes = 0;
}

void hr_wire_release(hr_thread *thread, hr_wire *w)
{
    hr_uring *loop = thread->loop;

    if (w->session != NULL || w->armed != 0 || w->users != 0 || w->starved)
        return;
    hr_wire_drop_flight(thread, w);
    close(w->fd);
    if (w->previous_open != NULL)
        w->previous_open->next_open = w->next_open;
    else
        loop->open = w->next_open;
    if (w->next_open != NULL)
        w->next_open->previous_open = w->previous_open;
    w->next = loop->spare;
    loop->spare = w;
}

struct io_uring_sqe *hr_wire_begin(hr_uring *loop, hr_wire *w, uint8_t opcode, int op)
{
    struct io_uring_sqe *sqe = hr_ring_sqe(&loop->ring);

    sqe->opcode = opcode;
    sqe->fd = w->fd;
    sqe->user_data = (uint64_t) (uintptr_t) w | (unsigned) op;
    w->armed |= (uint8_t) (1u << op);
    return sqe;
}

static void arm_poll(hr_uring *loop, hr_wire *w, int op, uint32_t events)
{
    if (!hr_wire_armed(w, op))
        hr_wire_begin(loop, w, IORING_OP_POLL_ADD, op)->poll32_events = events;
}

/* No more than the engine can keep. */
static void arm_recv(hr_session *session, hr_end end, hr_wire *w)
{
    hr_uring *loop = session->thread->loop;
    hr_side *side = &session->side[end];
    size_t most = hr_read_most(session, end);
    struct io_uring_sqe *sqe;

    if (side->tls != NULL)
        hr_tls_fed(side->tls,
                   false); /* a read that was armed before TLS began brings its bytes too */
    if (hr_wire_armed(w, OP_RECV) || w->starved || most == 0)
        return;
    sqe = hr_wire_begin(loop, w, IORING_OP_RECV, OP_RECV);
    sqe->flags = IOSQE_BUFFER_SELECT;
    sqe->buf_group = w->large ? 1 : 0;
    sqe->len = (uint32_t) most; /* and no more than the buffer's */
    sqe->ioprio = w->more ? 0 : (uint16_t) IORING_RECVSEND_POLL_FIRST;
}

/* ── Interest ─────────────────────────────────────────────────────────────── */

/* What is armed beyond the interest stays until it fires; then it is looked at. Of a client that is
 * not read from, its hang-up is still to be seen: by the read that is still armed, or else alone. */
void hr_wire_arm(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    hr_wire *w = side->loop;

    if (side->fd < 0 || side->connecting)
        return;
    if (side->reading || side->shaking)
        arm_recv(session, end, w);
    else if (end == HR_CLIENT && !side->ended && !hr_wire_armed(w, OP_RECV))
        arm_poll(session->thread->loop, w, OP_HANGUP, POLLRDHUP);
    if (side->sending)
        arm_poll(session->thread->loop, w, OP_WRITABLE, POLLOUT);
}

/* After an event, and all that followed from it: also the other end may have begun to shake hands. */
void hr_wire_settle(hr_session *session)
{
    hr_settle(session);
    for (int end = HR_CLIENT; end <= HR_SERVER; end++)
        if (session->side[end].fd >= 0
            && (session->side[end].reading || session->side[end].shaking))
            hr_wire_arm(session, (hr_end) end);
}

void hr_uring_reading(hr_session *session, hr_end end, bool wanted)
{
    (void) wanted;
    hr_wire_arm(session, end);
}

bool hr_uring_add(hr_session *session, hr_end end, bool connecting)
{
    hr_side *side = &session->side[end];
    hr_wire *w = new_wire(hr_uring_of(session), session, end);

    if (w == NULL)
        return false;
    side->loop = w;
    side->flying_bytes = 0;
    if (connecting)
        arm_poll(hr_uring_of(session), w, OP_CONNECT, POLLOUT);
    else
        hr_wire_arm(session, end);
    return true;
}

/* Each by its own name: to cancel by descriptor the kernel would walk through all that the ring has under
 * way, and when thousands of sessions end at once, those that stay would wait for that. */
static void cancel_all(hr_uring *loop, const hr_wire *w)
{
    for (unsigned op = 0; op < OPS; op++)
        if (hr_wire_armed(w, (int) op)) {
            struct io_uring_sqe *sqe = hr_ring_sqe(&loop->ring);

            sqe->opcode = IORING_OP_ASYNC_CANCEL;
            sqe->addr = (uint64_t) (uintptr_t) w | op;
            sqe->user_data = OP_CANCEL; /* of nobody */
            sqe->flags = IOSQE_CQE_SKIP_SUCCESS;
        }
}

void hr_uring_remove(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    hr_uring *loop = hr_uring_of(session);
    hr_wire *w = side->loop;

    /* What was said last goes out, as far as the socket takes it: it does so while it is submitted. */
    if (hr_wire_armed(w, OP_SEND))
        hr_ring_submit(&loop->ring);
    if (side->tls != NULL)
        hr_tls_end_free(side->tls);
    cancel_all(loop, w);
    side->unsent_bytes -= side->flying_bytes;
    side->flying_bytes = 0;
    side->fd = -1;
    side->tls = NULL;
    side->loop = NULL;
    side->reading = side->sending = side->shaking = side->tls_wanted = false;
    w->session = NULL;
    hr_wire_release(session->thread, w);
}

#else

typedef int hr_no_uring_wires; /* a file must hold something */

#endif
