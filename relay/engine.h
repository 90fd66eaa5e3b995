/*
 * engine.h: what the engine's files and the loop say to each other.
 *
 *   accept.c ──► sessions.c ──► feed.c ⇄ machine ──hr_emit──► emit.c ──► loop ──► socket
 *                    │             │ hr_next
 *                    │             ├── connect.c    HR_CONNECT, by the table of places.c
 *                    │             ├── handshake.c  HR_*_TLS (then records.c)
 *                    │             └── closing.c    HR_CLOSE, lost
 *                 timers.c      inbox.c (other threads' errands)      drain.c (all of them go)
 *
 * A session's bytes lie in the thread's own room while they are fed and sent; only what is not
 * consumed, or not taken by the socket, is copied into buffers. So an idle session has none.
 */
#ifndef HEADGATE_RELAY_ENGINE_H
#define HEADGATE_RELAY_ENGINE_H

#include "inside.h"

#include <time.h>

#define HR_PIECES 256u
#define HR_HEADROOM 4096u /* in front of what is read: for what was kept of the last read */
#define HR_ROOM_BYTES (256u * 1024u) /* read at once from a server */
#define HR_MAX_UNSENT (256u * 1024u) /* an end that has not taken so much stops the other one */
#define HR_SCRATCH_BYTES 32768u
#define HR_LINGER_NS 2000000000ull
#define HR_LONGEST_LINGER_NS 30000000000ull
#define HR_STOP_NS 5000000000ull /* for a server to stop what a session of ours has left there */
#define HR_STOP_AGAIN_NS 500000000ull
#define HR_SCARCE_NS 10000000ull /* then it is looked again whether there are buffers */
#define HR_ORPHAN_NS 60000000000ull
#define HR_MS 1000000ull

typedef struct hr_pieces {
    uint32_t count;
    size_t bytes;
    struct iovec piece[HR_PIECES];
} hr_pieces;

/* How many sessions a target has: the same one in every table that names the target. */
typedef struct hr_tally {
    _Atomic uint32_t users;
    _Atomic uint32_t sessions;
} hr_tally;

/* A target, shared by a table and the sessions that went there by it. */
typedef struct hr_place {
    _Atomic uint32_t users;
    hr_tally *tally;
    hr_target target;
    uint8_t tls_mode;
    hr_tls *tls;
} hr_place;

typedef struct hr_places {
    _Atomic uint32_t users;
    uint32_t count;
    bool replicas_or_primary;
    uint32_t grace_ms; /* for those whose target is not in it any more */
    hr_place *place[HR_MAX_TARGETS];
} hr_places;

typedef struct hr_listener {
    int fd; /* -1: closed */
    uint16_t number;
    uint32_t route;
    _Atomic uint8_t tls_mode;
    hr_tls *tls; /* under hr_engine_shared.lock */
    _Atomic uint32_t watchers; /* threads */
    _Atomic uint32_t sessions; /* that came by it: they look here for their route and context */
    _Atomic bool gone; /* hr_unlisten: free for another, once nobody looks here any more */
} hr_listener;

/* How many sessions a user has, or are logging in from an address: by the hash of either. */
typedef struct hr_head {
    struct hr_head *next;
    uint64_t key;
    uint32_t sessions;
} hr_head;

#define HR_HEAD_ROWS 1024u

typedef struct hr_engine_shared {
    pthread_mutex_t lock; /* listeners' contexts, the table of places, heads: moments only */
    hr_listener listener[HR_MAX_LISTENERS];
    _Atomic uint32_t listeners;
    hr_places *places;
    hr_head *heads[HR_HEAD_ROWS];
    _Atomic uint64_t next_id;
    _Atomic uint32_t sessions; /* of all threads */
    _Atomic bool draining, drain_told;
    _Atomic bool drain_keeps, drain_patient;
    _Atomic uint64_t drain_by_ns;
    _Atomic uint64_t buffer_bytes; /* of all threads */
    bool started;
} hr_engine_shared;

typedef struct hr_engine hr_engine;

enum {
    HR_ORDER_STIR = 1u,
    HR_ORDER_PLACES = 2u,
    HR_ORDER_DRAIN = 4u,
    HR_ORDER_STOP = 8u,
    HR_ORDER_LISTEN = 16u
};
enum { HR_POOLS = 4 };

struct hr_engine {
    hr_pieces out[2]; /* emitted by the session that is being looked at */
    uint8_t *room; /* HR_HEADROOM, then HR_ROOM_BYTES */
    uint8_t *scratch;
    uint8_t *record; /* HR_RECORD_BYTES */
    size_t scratch_used;
    hr_buffer *scratch_more;
    bool out_of_buffers; /* since the last call into a machine */
    hr_session **heap;
    uint32_t heaped, heap_room;
    hr_session *sessions, *dead, *spare;
    void **slabs;
    uint32_t slab_count, slab_room;
    hr_buffer *pool[HR_POOLS];
    uint32_t pooled[HR_POOLS];
    hr_places *places;
    uint32_t turn; /* among replicas that are equally busy */
    uint32_t watching; /* listeners, a bit each */
    int bell; /* eventfd */
    int spare_fd; /* given up to be able to reject when there are no more */
    pthread_t handle;
    bool seated, gated, running, stopped;
    char fault[320];
    _Alignas(64) _Atomic(hr_errand *) inbox; /* written by other threads */
    _Atomic uint32_t orders;
    _Atomic uint32_t load; /* sessions that it has or was given */
};

static inline hr_engine_shared *hr_shared(const hr_thread *thread)
{
    return thread->relay->engine;
}

static inline hr_end hr_other(hr_end end)
{
    return end == HR_CLIENT ? HR_SERVER : HR_CLIENT;
}

static inline void hr_time(hr_thread *thread)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    thread->now_ns = (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

uint64_t hr_monotonic_ns(void);
void hr_wall(hr_thread *thread);

/* ── emit.c ───────────────────────────────────────────────────────────────── */

/* Copies of what was emitted go behind what is unsent. False: no buffer, the side has failed. */
bool hr_spill(hr_session *session, hr_end end, size_t sent);
void hr_forget_pieces(hr_session *session, hr_end end);
void hr_unsent_sent(hr_session *session, hr_end end, size_t bytes);
void hr_drop_unsent(hr_session *session, hr_end end);
/* Sends what was emitted to either end, then the machine's scratch is free again. */
void hr_flush(hr_session *session);
/* Of what is unsent; how many pieces. */
uint32_t hr_unsent_pieces(const hr_side *side, struct iovec *pieces, uint32_t most, size_t *bytes);

/* ── pool.c ───────────────────────────────────────────────────────────────── */

/* What may wait for an end before the other one is stopped: less, as buffers get fewer. */
size_t hr_unsent_most(const hr_thread *thread);
size_t hr_room_most(const hr_thread *thread); /* what is read from a server at once */
bool hr_buffers_scarce(const hr_thread *thread); /* the rest is for those who cannot wait */

/* ── feed.c ───────────────────────────────────────────────────────────────── */

/* Bytes that came from `from`. They may be written over, and `headroom` bytes in front of them. */
void hr_fed(hr_session *session, hr_end from, uint8_t *bytes, size_t length, size_t headroom);
/* How much may be read from `from` at once, so that what is not consumed can be kept. */
size_t hr_read_most(const hr_session *session, hr_end from);
void hr_feed_kept(hr_session *session, hr_end from);
/* After every call into the machine: sends what it emitted. False: the session could not go on. */
bool hr_after_machine(hr_session *session);
void hr_ended(hr_session *session, hr_end end);
void hr_side_failed(hr_session *session, hr_end end);
/* Nothing more can be sent to it; what it has sent may still be read, if it is the server. */
void hr_send_failed(hr_session *session, hr_end end);
void hr_sent(hr_session *session, hr_end end);
void hr_settle(hr_session *session);
void hr_act(hr_session *session, hr_end from, hr_next next);
void hr_orphan_due(
    hr_session *session); /* its client has ended, and what waits has waited long enough */
void hr_look_again(hr_session *session); /* it was held, and has been woken or is due */
void hr_drop_kept(hr_session *session, hr_end end);

/* ── sessions.c ───────────────────────────────────────────────────────────── */

hr_session *hr_session_make(hr_thread *thread, int fd, const hr_listener *listener,
                            const struct sockaddr_storage *address);
void hr_session_finish(hr_session *session); /* both ends are closed */
void hr_bury(hr_thread *thread); /* the round's dead are free for others */
void hr_sessions_free(hr_thread *thread);
/* Counts where it comes from, until it has logged in; false: as many do so as may. */
bool hr_count_login(hr_session *session);
void hr_login_over(hr_session *session);
uint32_t hr_logins_most(const hr_relay *relay);

/* ── connect.c, places.c ──────────────────────────────────────────────────── */

void hr_connect(hr_session *session);
void hr_connect_done(hr_session *session, int error);
void hr_connect_due(hr_session *session);
void hr_leave_place(hr_session *session);
void hr_tune_socket(const hr_relay *relay, int fd, int family);
hr_places *hr_places_share(hr_engine_shared *shared);
void hr_places_drop(hr_places *places);
void hr_place_drop(hr_place *place);
/* The one to connect to, not among those tried; NULL: none. `index` is its number. */
hr_place *hr_place_choose(hr_session *session, uint32_t *index);
void hr_places_changed(hr_thread *thread);

/* ── handshake.c ──────────────────────────────────────────────────────────── */

void hr_secure(hr_session *session, hr_end end);
void hr_shake(hr_session *session, hr_end end);

/* ── records.c ────────────────────────────────────────────────────────────── */

/* Bytes that were taken, 0: none now, -1: none ever again. */
ssize_t hr_record_send(hr_side *side, const void *bytes, size_t length);
ssize_t hr_records_send(hr_session *session, hr_end end); /* of what was emitted */
/* As hr_tls_read, but of several records. */
ssize_t hr_records_read(hr_side *side, uint8_t *room, size_t most);

/* ── closing.c ────────────────────────────────────────────────────────────── */

void hr_lose(hr_session *session, hr_lost why, const char *fault);
void hr_begin_close(hr_session *session);
void hr_close_further(hr_session *session); /* of one that is closing: what can go now */
void hr_close_due(hr_session *session);
void hr_close_now(hr_session *session);

/* ── timers.c ─────────────────────────────────────────────────────────────── */

void hr_timer_drop(hr_session *session);
void hr_timer_anew(hr_session *session); /* start-up is over */
uint64_t hr_timer_next(const hr_thread *thread); /* UINT64_MAX: none */
void hr_timers_run(hr_thread *thread);

/* ── thread.c ─────────────────────────────────────────────────────────────── */

hr_thread *hr_thread_make(hr_relay *relay, uint32_t number);
void hr_thread_free(hr_thread *thread);
void *hr_thread_run(void *thread); /* until it is ordered to stop */
void *hr_aligned(size_t bytes); /* to a line, and zero */

/* ── inbox.c, accept.c, drain.c ───────────────────────────────────────────── */

bool hr_inbox_open(hr_thread *thread);
void hr_inbox_close(hr_thread *thread);
void hr_inbox_enter(hr_thread *thread); /* this thread is that one */
void hr_inbox_run(hr_thread *thread);
bool hr_inbox_waits(const hr_thread *thread);
void hr_inbox_shut(hr_thread *thread); /* runs the last ones; hr_post fails from then on */
void hr_order(hr_thread *thread, uint32_t order);
uint32_t hr_orders_take(hr_thread *thread);
void hr_watched(hr_thread *thread, void *what); /* the loop: a watched descriptor is readable */
void hr_accept(hr_thread *thread, hr_listener *listener);
void hr_listeners_watch(hr_thread *thread);
void hr_listeners_unwatch(hr_thread *thread);
void hr_listeners_free(hr_relay *relay);
void hr_leave(hr_session *session, hr_lost why, uint64_t by_ns, bool patient);
void hr_drain_one(hr_session *session);
void hr_drain_begin(hr_thread *thread);
void hr_drain_over(hr_thread *thread); /* tells it once, if no session is left */

/* ── stop.c ───────────────────────────────────────────────────────────────── */

/* Before machine->lost: session->stopping says whether the server gets a request to stop, and waited for. */
void hr_stop_server(hr_session *session, hr_lost why);
/* When its time to close is due: whether it has been put off, and the request repeated. */
bool hr_stop_again(hr_session *session);
/* While it closes: whether its server's end stays open still. */
bool hr_stop_waits(hr_session *session);
void hr_stop_over(hr_session *session);
/* accept.c: a session of our own making, whose client is that descriptor. */
void hr_take_in(hr_thread *thread, int fd, hr_listener *listener);

#endif
