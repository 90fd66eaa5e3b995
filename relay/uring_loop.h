/*
 * uring_loop.h: what the files of the io_uring loop say to each other.
 *
 *   loop_uring.c   rounds, completions, watching, life
 *   uring_wires.c  one wire per descriptor: what is under way on it
 *   uring_send.c   uring_read.c   what goes over it
 *   uring_probe.c  whether it works here
 *   uring.c        the ring itself (uring.h)
 */
#ifndef HEADGATE_RELAY_URING_LOOP_H
#define HEADGATE_RELAY_URING_LOOP_H

#include "engine.h"
#include "uring.h"

#ifdef HR_HAVE_URING

#define SMALL_BYTES 8192u

/* What a completion is of: the low bits of its user_data; the rest is the wire or the watch. */
enum { OP_RECV, OP_SEND, OP_HANGUP, OP_WRITABLE, OP_CONNECT, OP_CANCEL, OP_WATCH, OPS };
enum { TAGS = 7u };

typedef struct hr_wire {
    hr_session *session;     /* NULL: the descriptor is to be closed when nothing is under way */
    struct hr_wire *next;       /* among the free, or those that found no buffer */
    struct hr_wire *previous_open, *next_open;
    hr_buffer *flight;       /* what is being sent: a copy … */
    const uint8_t *flight_at; /* … or in a buffer of the ring */
    uint32_t flight_bytes;
    uint16_t flight_number;
    uint8_t flight_large;
    uint8_t armed;           /* a bit for each OP_* under way: one of each at most */
    int fd;
    uint8_t end;             /* hr_end */
    uint8_t users;           /* calls of ours that still look at it */
    bool large;              /* its reads fill buffers: take large ones */
    bool more;               /* the last read left something: try at once, do not wait first */
    bool starved;
    bool launched; /* its send has been, or is about to be, submitted, to be tried at once */
    struct hr_wire *next_launched;
} hr_wire;

typedef struct hr_watch {
    struct hr_watch *next;
    int fd;
    bool live;
    void *what;
} hr_watch;

typedef struct hr_uring {
    hr_ring ring;
    hr_ring_buffers buffers[2]; /* small, large */
    uint8_t *current, *current_end; /* the buffer that is being fed from; NULL: none */
    uint16_t current_number;
    uint8_t current_large;
    hr_wire *spare, *starved, *open, *launched;
    void **slabs;
    uint32_t slab_count;
    hr_watch *watches;
} hr_uring;

static inline hr_uring *hr_uring_of(const hr_session *session)
{
    return session->thread->loop;
}

/* ── uring_wires.c ────────────────────────────────────────────────────────── */

static inline bool hr_wire_armed(const hr_wire *w, int op)
{
    return (w->armed >> op & 1u) != 0;
}

/* Closes and frees it, if it is nobody's any more and nothing is under way. */
void hr_wire_release(hr_thread *thread, hr_wire *w);
void hr_wire_drop_flight(hr_thread *thread, hr_wire *w);
struct io_uring_sqe *hr_wire_begin(hr_uring *loop, hr_wire *w, uint8_t opcode, int op);
void hr_wire_arm(hr_session *session, hr_end end); /* for all that the engine is interested in */
void hr_wire_settle(hr_session *session); /* hr_settle, and what both ends wait for since */
bool hr_uring_add(hr_session *session, hr_end end, bool connecting);
void hr_uring_remove(hr_session *session, hr_end end);
void hr_uring_reading(hr_session *session, hr_end end, bool wanted);

/* ── uring_send.c ─────────────────────────────────────────────────────────── */

void hr_uring_send(hr_session *session, hr_end end);
void hr_uring_send_tls(hr_session *session, hr_end end); /* what is unsent */
void hr_uring_sent(hr_wire *w, int result);
void hr_uring_land(hr_thread *thread); /* what was launched, and is not reported */
/* Whether something waits for this end to have taken what it was sent. */
bool hr_uring_awaits(const hr_session *session, hr_end end);

/* ── uring_read.c ─────────────────────────────────────────────────────────── */

void hr_uring_received(hr_thread *thread, hr_wire *w, const struct io_uring_cqe *cqe);
void hr_uring_pull(hr_session *session, hr_end end);

/* ── uring_probe.c ────────────────────────────────────────────────────────── */

/* In a thread of its own, that has ended when this returns. */
bool hr_uring_apart(void *(*what)(void *), void *argument);

#endif
#endif
