/*
 * inside.h: what the files of the relay say to each other.
 *
 *   engine.c     threads, sessions, accepting, connecting, timers, closing, draining
 *   loop.c       one round of waiting, reading and sending, by epoll
 *   tls.c        certificates, handshakes, encrypted reads and writes
 *   pool.c       buffers, with one bound over all
 *   registry.c   which session a cancel key or a thread id belongs to; views for status
 *   events.c     the ring to Python
 *   pg*.c my*.c  the protocol machines: fed bytes, they emit bytes. They know no sockets
 *   gate.c …     which client, may it run, wait its turn, and what it cost
 *
 * A session belongs to one thread, and is touched by that one alone, unless it says otherwise.
 * Time is CLOCK_MONOTONIC in ns; thread->now_ns is read at the start of each event.
 */
#ifndef HEADGATE_RELAY_INSIDE_H
#define HEADGATE_RELAY_INSIDE_H

#include "relay.h"

#include <pthread.h>
#include <sys/uio.h>

typedef struct hr_thread hr_thread;
typedef struct hr_session hr_session;
typedef struct hr_tls hr_tls;           /* a context: certificates, or how to verify */
typedef struct hr_tls_end hr_tls_end;   /* one connection's */
typedef struct hr_prepared hr_prepared; /* what is known of a statement's text; gate's */

typedef enum hr_end { HR_CLIENT = 0, HR_SERVER = 1 } hr_end;

/* ── Buffers (pool.c) ─────────────────────────────────────────────────────── */

#define HR_BUFFER_BYTES (HR_WINDOW_BYTES + 4096u)
#define HR_TEXT_BUFFER_BYTES (HR_TEXT_BYTES + 4096u) /* for a client's long text alone */

typedef struct hr_buffer {
    struct hr_buffer *next;
    uint32_t start, end; /* what is in it */
    uint32_t size;
    uint32_t reserved;
    uint8_t bytes[];
} hr_buffer;

/* At least `least` bytes, of 2 KiB, 16 KiB, HR_BUFFER_BYTES or HR_TEXT_BUFFER_BYTES. NULL: all buffers together have
 * reached the bound; the session is closed with a clear error (HR_SQL_NO_MEMORY). */
hr_buffer *hr_buffer_get(hr_thread *thread, size_t least);
void hr_buffer_put(hr_thread *thread, hr_buffer *buffer);
/* Of a statement's text, as much as a machine may wait for: all of HR_TEXT_BYTES, or HR_WINDOW_BYTES while
 * half of the buffers are in use. */
size_t hr_text_most(const hr_thread *thread);

/* Under the same bound, for what a session keeps as long as it likes: half of it, so that buffers are left
 * for all. False: not so much; the caller does without. */
bool hr_memory_take(hr_thread *thread, size_t bytes);
void hr_memory_give(hr_thread *thread, size_t bytes);

/* ── Machines ─────────────────────────────────────────────────────────────── */

typedef enum hr_next {
    HR_MORE = 0,    /* go on: feed what was not consumed again, with more behind it */
    HR_HELD, /* the gate holds this session's next statement. The bytes not consumed begin with
                     * it; nothing is read from the client (its hang-up is noticed) until the gate
                     * calls hr_wake; then they are fed again, and the machine checks again */
    HR_LATER, /* as HR_HELD, but until something comes from the server: too much is in flight, or
                     * it is this session's own turn that it waits for */
    HR_CONNECT, /* connect to a server now; machine->connected follows. If session->target_id is not
                     * 0 (a cancel request): to that target and no other; else as the route says */
    HR_CLIENT_TLS, /* send what was emitted, then shake hands with the client; machine->secured. Bytes
                     * that were not consumed begin its handshake (MySQL's clients do not wait for an
                     * answer): hr_tls_unread. Postgres's machine takes none there: CVE-2021-23222 */
    HR_SERVER_TLS,
    HR_CLIENT_TLS_DIRECT, /* the bytes fed begin a TLS handshake themselves: none are consumed */
    HR_CROWDED, /* hr_user_proved was false: what was emitted is sent, machine->lost(HR_LOST_SESSIONS) follows */
    HR_CLOSE /* send what was emitted, as far as that is possible soon, and close both ends */
} hr_next;

typedef enum hr_lost { /* why the engine ends a session */
                       HR_LOST_CLIENT, /* it hung up */
                       HR_LOST_SERVER, /* it hung up, or was reset */
                       HR_LOST_CONNECT, /* the server cannot be reached: session->fault says why */
                       HR_LOST_STARTUP, /* took longer than startup_timeout_ms */
                       HR_LOST_TARGET, /* the server is not the one to talk to any more */
                       HR_LOST_DRAIN, /* the proxy stops */
                       HR_LOST_IDLE,
                       HR_LOST_MEMORY, /* no buffer left */
                       HR_LOST_SESSIONS, /* max_sessions, max_sessions_per_user: session->fault says which, and how much */
                       HR_LOST_TLS, /* a handshake failed: session->fault */
                       HR_LOST_NO_TARGET, /* no server is there for this route */
                       HR_LOST_KILLED /* hr_session_kill */
} hr_lost;

#define HR_CANCEL_BYTES 64u

typedef struct hr_machine {
    bool connects_first; /* MySQL: the server speaks first, so it is connected to at once */
    void (*init)(hr_session *session);
    /* Bytes that `from` has sent, first those that were not consumed before. Returns how many it has
     * consumed. What is emitted must be slices of these bytes, static, or of hr_scratch. At most
     * hr_text_most + a header of a text, and else HR_WINDOW_BYTES + a header, need ever be left unconsumed:
     * a machine streams what is longer. */
    size_t (*feed)(hr_session *session, hr_end from, const uint8_t *bytes, size_t length,
                   hr_next *next);
    hr_next (*connected)(hr_session *session);
    hr_next (*secured)(hr_session *session, hr_end end);
    /* The session is about to end: emit to the client its error, if it can be sent
     * anything in this state. Everything that runs is settled (aborted), unless session->stopping. */
    void (*lost)(hr_session *session, hr_lost why);
    /* Whether it is between statements and outside a transaction: may be closed without harm. */
    bool (*at_rest)(const hr_session *session);
    bool (*in_transaction)(const hr_session *session);
    /* What a statement of that name runs, where names are the session's own to prepare by SQL and by
     * protocol (Postgres); not counted. The hook NULL: the gate follows what SQL says of them. */
    hr_prepared *(*named)(hr_session *session, const char *name, size_t length);
    /* The session is to end while something of it runs at the server: the packet that a connection of its
     * own has to bring there so that it stops. 0: nothing runs. The hook NULL: there is no such way. */
    size_t (*cancel)(const hr_session *session, uint8_t packet[HR_CANCEL_BYTES]);
    /* What ran has ended, together with its server's connection: after `lost` with session->stopping. */
    void (*settled)(hr_session *session);
    /* For the registry, when session->established becomes true: how others name this session. */
    void (*free)(hr_session *session);
} hr_machine;

extern const hr_machine hr_pg_machine, hr_my_machine;

/* Appends to what goes to `to`. Neighboring slices are joined. Never fails. */
void hr_emit(hr_session *session, hr_end to, const void *bytes, size_t length);
/* Scratch of the thread, valid until this call into the machine has returned and what it emitted was
 * sent or copied. `length` up to 8 KiB; there is always some. */
void *hr_scratch(hr_session *session, size_t length);

/* ── Sessions ─────────────────────────────────────────────────────────────── */

/* Something to be done by another thread, in its own time: run is called there, once, between two of
 * its rounds, and may free the errand. False: that thread does not run (any more), and never will
 * call it; before it ends a thread runs all it was given. Any thread; never waits. */
typedef struct hr_errand {
    struct hr_errand *next;
    void (*run)(hr_thread *thread, struct hr_errand *errand);
} hr_errand;

#include "engine_session.h"
#include "gate.h"
#include "pg.h"
#include "my.h"

typedef struct hr_side {
    int fd; /* -1: none */
    bool reading; /* the loop is to read from it */
    bool readable; /* something may be there that no edge will tell of again */
    bool hung_up; /* an edge has reported that: behind what is there, it ends */
    bool ended; /* it has sent all it will */
    bool failed;
    bool sending; /* what is unsent waits for the socket */
    hr_tls_end *tls;
    bool shaking; /* hands */
    bool connecting;
    bool tls_wanted; /* shakes hands as soon as all that was emitted is sent */
    hr_buffer *kept; /* read, not consumed by the machine */
    hr_buffer *unsent; /* emitted to it, not sent: a list */
    hr_buffer *unsent_last;
    uint64_t unsent_bytes; /* of that list */
    uint64_t paused_since_ns; /* not read from, because the other end does not take it */
} hr_side;

struct hr_session {
    uint64_t id;
    hr_thread *thread;
    const hr_machine *machine;
    hr_side side[2];
    uint64_t since_ns;
    uint64_t statement_since_ns; /* the machine sets it, for views: what runs now; 0: nothing */
    void *registered; /* the registry's own */
    uint64_t paused_ns; /* all the time in which the server was not read from because the client
                               * did not take it: no cost of the server's */
    uint64_t timer_ns; /* 0: none; see hr_timer */
    uint32_t timer_at; /* its place in the heap */
    uint32_t target; /* index at the time */
    uint64_t target_id;
    uint16_t listener;
    uint8_t family; /* of the client: 4, 6, 0 */
    uint8_t
        client_tls_mode; /* hr_tls_settings.mode of its listener; the engine sets it at accept */
    uint8_t server_tls_mode; /* and of its target: before machine->connected */
    bool server_near; /* and whether what goes there stays on this host */
    bool established; /* the machine sets it: start-up is over, statements may come */
    _Atomic bool held; /* read by others: a cancel request for what is held is not forwarded */
    bool later, closing, draining;
    bool idle; /* when it was ended, nothing of it ran or waited */
    bool stopping; /* closing, but the server is waited for: what runs there has its places */
    uint16_t port;
    uint8_t address[16];
    uint32_t server_process; /* what the machine learnt: Postgres pid, MySQL thread id */
    uint8_t cancel_key_length;
    uint8_t cancel_key[32]; /* Postgres; up to 32 bytes of protocol 3.2's are compared */
    const char *fault; /* of the engine, for lost(): a text that lives as long as it is needed */
    hr_session *next, *previous; /* of the thread's sessions */
    hr_own own; /* the engine's own */
    hr_gate_session gate;
    union {
        hr_pg pg;
        hr_my my;
    };
};

/* TLS ends here, and what goes on to the server is plain and leaves this host: a password that a client
 * sends as it is, because it sees TLS, would be read there. */
static inline bool hr_bares_passwords(const hr_session *session)
{
    return session->side[HR_CLIENT].tls != NULL && session->side[HR_SERVER].tls == NULL
           && !session->server_near;
}

/* Learnt by the machine at start-up or later; copied. Any of them NULL: as it was. The gate resolves
 * again what depends on it. Of an established session the engine then looks whether its user has more
 * sessions than max_sessions_per_user: if so, what was emitted is dropped, and machine->lost(
 * HR_LOST_SESSIONS) follows. */
void hr_session_names(hr_session *session, const char *username, const char *database,
                      const char *application);
/* The server has let in the user of that name, and the client is about to get that answer. False: that user
 * has as many sessions as it may; HR_CROWDED is what comes next. */
bool hr_user_proved(hr_session *session);

/* One timer a session, for the earliest that is asked for; when it is due the engine looks at
 * everything that has a time: start-up, connecting, the gate's wait, draining, idling. */
void hr_timer(hr_session *session, uint64_t due_ns);

/* ── Threads (engine.c) ───────────────────────────────────────────────────── */

struct hr_thread {
    hr_relay *relay;
    uint32_t number;
    uint32_t seat; /* in the region */
    uint32_t pid;
    uint64_t now_ns;
    uint64_t woke_ns; /* the loop: when this round's wait was over */
    int64_t wall_ms; /* read with now_ns, at most a few ms old */
    hr_thread_counts *counts;
    struct hr_engine *engine; /* engine.c's own */
    struct hr_gate_thread *gate; /* gate.c's own */
    struct hr_loop *loop; /* loop.c's own */
};

struct hr_relay {
    hr_settings settings;
    hg_region *region;
    hr_state *state;
    hr_thread *threads[HR_MAX_THREADS];
    uint32_t thread_count;
    struct hr_engine_shared *engine;
    struct hr_gate_shared *gate; /* identity settings, held queues */
    struct hr_registry *registry;
    struct hr_events *events;
};

/* The session's held statement is to be looked at again: posts to its thread. Any thread. `id` guards
 * against a session that is gone. */
void hr_wake(hr_thread *owner, hr_session *session, uint64_t id);
bool hr_post(hr_thread *owner, hr_errand *errand); /* see hr_errand */
/* Ends a session, in its own thread: machine->lost(why), what was emitted is sent, both ends close. */
void hr_session_end(hr_session *session, hr_lost why);

/* In the session's own thread: something of it ended, so what was HR_LATER may go on. The engine does
 * so automatically after each feed from the server. */

/* ── The loop (loop.c) ────────────────────────────────────────────────────── */

/* The loop moves bytes; the engine (engine.h) decides. What it calls, for each event, in this order:
 *   hr_connect_done   a connection that was under way has come to an end
 *   hr_shake          a side that is `shaking` can be read or written
 *   hr_fed            bytes were read; or hr_ended: all were; or hr_side_failed
 *   hr_sent           all that was unsent is sent
 *   hr_settle         last, once per session and event: closes, pauses, resumes what has to be
 * After any of them side->fd may be -1: that end is gone, and its events with it. A session's memory is
 * not used again before the round is over. Sends only mark a side as failed; hr_settle acts on it. */
typedef struct hr_loop hr_loop;

bool hr_loop_open(hr_thread *thread);
void hr_loop_close(hr_thread *thread);
/* Waits until `until_ns` at most, then reads, feeds (hr_fed) and sends. */
void hr_loop_round(hr_thread *thread, uint64_t until_ns);
/* A descriptor that is just watched for being readable: listeners, the thread's inbox. */
bool hr_watch(hr_thread *thread, int fd, void *what);
void hr_unwatch(hr_thread *thread, int fd);
bool hr_side_add(hr_session *session, hr_end end);
void hr_side_remove(hr_session *session, hr_end end); /* and closes the descriptor */
void hr_side_reading(hr_session *session, hr_end end, bool wanted);
void hr_side_look(hr_session *session, hr_end end); /* at what an edge has reported before */
/* Sends what was emitted to `end` (thread->engine's pieces) as far as it goes at once or behind
 * what is under way, and keeps copies of the rest. */
void hr_side_send(hr_session *session, hr_end end);

/* ── TLS (tls.c) ──────────────────────────────────────────────────────────── */

/* Of one record that we write, at most: as Postgres does. libpq makes room for 8 KiB before it reads;
 * the rest of a longer record would stay inside its OpenSSL, where no poll of the socket finds it. */
#define HR_RECORD_BYTES 8192u

hr_tls *hr_tls_open(const hr_tls_settings *settings, bool for_listener, uint32_t protocol,
                    char *error, size_t error_length);
hr_tls *hr_tls_share(hr_tls *tls); /* counts its users */
void hr_tls_drop(hr_tls *tls);
hr_tls_end *hr_tls_begin(hr_tls *tls, int fd);
void hr_tls_end_free(hr_tls_end *end);
/* Bytes that were read from the socket by others: before it was known to be TLS (direct TLS), or by a
 * loop that reads ahead. They come before what is in the socket. */
bool hr_tls_unread(hr_tls_end *end, const uint8_t *bytes, size_t length);
/* A read that found less than it asked for is not tried again before this, or a handshake's next step. */
void hr_tls_readable(hr_tls_end *end);
enum {
    HR_TLS_DONE = 1,
    HR_TLS_READ = -1,
    HR_TLS_WRITE = -2,
    HR_TLS_CLOSED = 0,
    HR_TLS_FAILED = -3
};
int hr_tls_shake(hr_tls_end *end); /* DONE, READ, WRITE, FAILED */
/* Bytes, or CLOSED, READ, WRITE, FAILED. */
ssize_t hr_tls_read(hr_tls_end *end, void *bytes, size_t length);
ssize_t hr_tls_write(hr_tls_end *end, const void *bytes, size_t length);
const char *hr_tls_fault(const hr_tls_end *end); /* what failed, and what to look at */

/* ── Registry, events ─────────────────────────────────────────────────────── */

/* When it is accepted, and again when it is established, for its process and cancel key. Its own
 * thread; a session that could not be registered (no memory) is just not found. */
void hr_register(hr_session *session);
void hr_unregister(hr_session *session); /* before its memory goes; may be called twice */
/* A cancel request for (process, key): where it goes. True: this relay has that session; if it is held
 * it has been canceled (it will answer its client with 57014), and `forward` is false. */
bool hr_cancel_find(hr_relay *relay, uint32_t process, const uint8_t *key, size_t key_length,
                    uint32_t *target, uint64_t *target_id, bool *forward);
/* MySQL's KILL [QUERY] thread, as that target numbers it: whether that session was held, and has been
 * sent. */
bool hr_kill_find(hr_relay *relay, uint64_t target_id, uint32_t process);
void hr_tell(hr_thread *thread,
             const hr_event *event); /* text[] only as far as it is used; never waits */
bool hr_registry_open(hr_relay *relay);
void hr_registry_close(hr_relay *relay);
bool hr_events_open(hr_relay *relay);
void hr_events_close(hr_relay *relay);

/* ── Blocks, in words ───────────────────────────────────────────────────── */

/* Each cause with its SQLSTATE and MySQL code, in one table (codes.c). */
typedef struct hr_code {
    char sqlstate[6];
    uint16_t mysql;
    char mysql_state[6];
} hr_code;

extern const hr_code hr_code_of_cause[HR_CAUSES];
extern const hr_code hr_code_of_loss[HR_LOST_KILLED + 1];
/* "headgate: …" for a session that ends, with what to do next. */
void hr_words_of_loss(const hr_session *session, hr_lost why, char *out, size_t length);

#endif
