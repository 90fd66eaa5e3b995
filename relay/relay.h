/*
 * relay.h: the proxy's data path, as its mind in Python sees it.
 *
 *   client ⇄ relay thread ⇄ server         one thread: many sessions, one loop (epoll)
 *               │  hg_match, hg_check, hg_take, hg_settle       the traffic core (native/)
 *               │  hr_client.gate                               what Python says of each client
 *               ▼
 *             hr_event ring ──► Python: new clients, new patterns, blocks and delays, failures
 *
 * Loaded by ctypes (src/headgate/proxy/): no CPython API, no GIL, no allocation per statement in
 * steady state. Python is never in a statement's way: it writes parameters and reads counters.
 *
 * One shared mapping (a sealed memfd) holds, in this order: the traffic region of headgate.h, then
 * an hr_state. A new process that takes over gets the mapping and the listening sockets, so debts,
 * places and counters live on; what a process that died was running is settled by who is left.
 *
 * Functions return NULL or 0 for success; else a constant text that says what is wrong, or fill
 * `error`. They are called by one Python thread at a time, unless they say otherwise.
 */
#ifndef HEADGATE_RELAY_H
#define HEADGATE_RELAY_H

#include "../native/headgate.h"

#include <sys/socket.h>

#define HR_STATE_FORMAT 2u
#define HR_STATE_MAGIC "HGRELAYS"
#define HR_TEXT_BYTES 1048576u /* of a statement's text that is looked at; more streams through */
#define HR_WINDOW_BYTES 65536u /* of anything else; and of texts, while buffers are scarce */
#define HR_MAX_THREADS 64u
#define HR_MAX_TARGETS 64u
#define HR_MAX_TARGET_TLS 16u /* different settings of TLS, of all targets */
#define HR_MAX_LISTENERS 16u
#define HR_UNIDENTIFIED 0u /* index of the client that is nobody (R97) */
#define HR_OTHERS 1u /* and of those beyond the table's size */

typedef struct hr_relay hr_relay;

enum { HR_PROTOCOL_POSTGRES = 0, HR_PROTOCOL_MYSQL = 1 };

/* ── Settings, fixed while it runs ────────────────────────────────────────── */

typedef struct hr_settings {
    uint32_t protocol;
    uint32_t threads; /* 1 to HR_MAX_THREADS */
    uint32_t max_sessions;
    uint32_t max_sessions_per_user; /* that were let in by the server; 0: no bound of its own */
    uint32_t startup_timeout_ms; /* from accept until the session is established */
    uint32_t connect_timeout_ms; /* to the server */
    uint32_t dry_run; /* decide and count, warn, but let everything pass */
    uint32_t idle_timeout_ms; /* 0: none. A session outside a transaction that says nothing */
    uint64_t
        max_buffer_bytes; /* of all sessions' buffers together, and their prepared statements' texts */
    uint32_t tcp_keepalive_s; /* 0: the system's */
    uint32_t
        max_logins_per_address; /* sessions that are not established yet. 0: all but a 64th of max_sessions */
} hr_settings;

typedef struct hr_tls_settings {
    uint32_t
        mode; /* listener: 0 off, 1 allow, 2 require. Target: 0 off, 1 prefer, 2 require, 3 verify-ca, 4 verify-full */
    char cert[1024], key[1024], ca[1024]; /* files; empty: none */
    char name[256]; /* target: the name that its certificate must have */
} hr_tls_settings;

/* ── Where connections go ─────────────────────────────────────────────────── */

enum { HR_ROUTE_PRIMARY = 0, HR_ROUTE_REPLICAS = 1 };
enum {
    HR_TARGET_PRIMARY = 1u,
    HR_TARGET_REPLICA = 2u
}; /* hr_target.roles; 0: takes no new sessions */

typedef struct hr_target {
    uint64_t id; /* Python's own, never 0: says whether a session's target is still there */
    uint32_t roles;
    uint32_t weight; /* among replicas; at least 1 */
    uint32_t address_length;
    uint32_t tls; /* index in hr_targets.tls plus 1; 0: plain */
    struct sockaddr_storage address;
    char name[64]; /* for people */
} hr_target;

typedef struct hr_targets {
    uint32_t count;
    uint32_t tls_count;
    uint32_t replicas_or_primary; /* the read-only route falls back to the primary */
    uint32_t reserved;
    hr_target target[HR_MAX_TARGETS];
    hr_tls_settings tls[HR_MAX_TARGET_TLS];
} hr_targets;

/* ── Shared state, behind the traffic region ──────────────────────────────── */

/* What Python says of a client, from health, rules and the control loop. Replaced whole under a
 * sequence (odd while it is written). */
enum { HR_ACT_PASS = 0, HR_ACT_WARN = 1, HR_ACT_DELAY = 2, HR_ACT_BLOCK = 3, HR_ACT_CLOSE = 4 };
enum { /* hr_gate.flags */
       HR_GATE_WRITES_ONLY = 1u,
       HR_GATE_PACED = 2u, /* goes through hr_state.release as well */
       HR_GATE_EXEMPT = 4u /* an exemption rule: neither gate nor pace */
};

typedef struct hr_gate {
    _Atomic uint32_t sequence;
    uint32_t ratio; /* of 2^32 - 1: this share of statements is acted upon: dice, once each (R95) */
    uint8_t action; /* HR_ACT_*, on what the dice pick */
    uint8_t ignores_priority; /* a hard limit: whatever its priority (R100) */
    uint8_t cause; /* HR_BY_RULE, HR_BY_HEALTH */
    uint8_t flags;
    uint32_t max_delay_ms; /* DELAY: after that it is blocked */
    uint32_t max_delayed; /* at once, of this client; more are blocked */
    uint32_t
        delay_ms; /* DELAY: waits so long and then passes; 0: until the gate opens, or max_delay_ms */
    uint32_t retry_ms; /* sent with a block */
    int64_t until_ms; /* Unix time after which this is not known any more: hr_state.lost applies.
                            * 0: always known */
    char reason[200]; /* for the error's text: "lag 12.3 s > 5 s on primary-a" */
} hr_gate;

enum { /* why a statement was acted upon; index of hr_client.blocked */
       HR_BY_NOTHING = 0,
       HR_BY_BUDGET = 1,
       HR_BY_RULE = 2,
       HR_BY_HEALTH = 3,
       HR_BY_PACE = 4,
       HR_BY_LOSS = 5 /* nobody knows the health */,
       HR_BY_CANCEL = 6,
       HR_BY_LIMIT = 7,
       HR_CAUSES = 8
};

typedef struct hr_client {
    _Atomic uint64_t key; /* hg_hash(3, identity); 0: free */
    _Atomic uint32_t state; /* 0 new: Python has not said anything; 1 said */
    uint32_t length;
    char identity[128];
    _Atomic uint64_t last_ns;
    _Atomic uint64_t statements; /* that were decided */
    _Atomic uint64_t admitted;
    _Atomic uint64_t warned;
    _Atomic uint64_t delayed;
    _Atomic uint64_t delayed_ns;
    _Atomic uint64_t blocked[HR_CAUSES];
    _Atomic uint64_t passed; /* would have been acted upon, but inside a transaction (R148) */
    _Atomic uint64_t wall_ns; /* of its statements at the server */
    _Atomic uint64_t errors; /* of them, ended with an error */
    _Atomic uint64_t reported_admitted,
        reported_blocked[HR_CAUSES]; /* Python's: of those above, what
                                  * some process has taken upon itself to tell an agent */
    _Atomic uint32_t waiting; /* held now */
    _Atomic uint32_t running;
    _Atomic uint32_t kept; /* a level that some rule names: its place is never another's */
    uint32_t reserved;
    _Atomic uint64_t spare[4];
    hr_gate gate;
} hr_client;

/* The release of the control loop (R99, R142): a bucket in time, as in headgate.h. */
typedef struct hr_release {
    _Atomic uint64_t empty_at_ns;
    _Atomic uint64_t ns_per_unit; /* 0: not paced */
    _Atomic uint64_t burst_ns;
    _Atomic uint64_t taken; /* units released ever */
    _Atomic uint64_t limited; /* times that a statement had to wait or go for the pace alone */
    _Atomic uint32_t action; /* HR_ACT_* */
    _Atomic uint32_t max_delay_ms;
} hr_release;

enum { /* hr_running.flags */
       HR_RUNNING_WAITS = 1u, /* is held yet: holding.query_id is the budget that counts it as sleeping */
       HR_RUNNING_STARTED = 2u, /* counted as running by its client */
       HR_RUNNING_ENDED = 4u, /* settled: kept until the whole string has ended */
       HR_RUNNING_UNTRACED = 8u, /* there was no policy, or it does not concern its user */
       HR_RUNNING_OVER = 16u, /* has ended, and waits for its share of the time to be known */
       HR_RUNNING_FAILED = 32u, /* and ended with an error */
       HR_RUNNING_LOOSE = 64u /* and its string as well: free once it is settled */
       /* From bit 16 on: statements of the string before it that are not decided, and have not ended. */
};

/* A statement that runs, where another process can settle it. */
typedef struct hr_running {
    _Atomic uint32_t pid; /* who runs it; 0: free */
    uint32_t next; /* of the same string of statements, plus 1 */
    uint32_t client;
    uint32_t flags;
    uint64_t started_ns;
    uint64_t wall_ms;
    uint64_t fingerprint;
    hg_holding holding;
} hr_running;

typedef struct hr_sizes {
    uint32_t clients; /* a power of two, 16 to 65536 */
    uint32_t runnings; /* statements at once */
    uint32_t plans; /* patterns whose plan cost is known; a power of two */
    uint32_t reserved;
} hr_sizes;

typedef struct hr_plan {
    _Atomic uint64_t pattern; /* hg pattern key; 0: free */
    _Atomic uint64_t cost; /* a double; 0 bits: asked for, and not known yet */
} hr_plan;

typedef struct hr_state {
    char magic[8];
    uint32_t format;
    _Atomic uint32_t adding; /* a lock: the pid of who puts a client into the table */
    uint64_t length;
    hr_sizes sizes;
    uint64_t clients_at, runnings_at, plans_at; /* in bytes from the state's start */
    _Atomic uint32_t lost; /* HR_ACT_* when what is known of health is too old (fail policy) */
    _Atomic uint32_t enabled; /* 0: pass everything, decide nothing */
    _Atomic uint64_t clients_full;
    _Atomic uint64_t runnings_full; /* ran uncounted */
    _Atomic uint64_t reported_ns; /* Python's: when hr_client.reported_* were last kept; 0: never */
    hr_release release;
} hr_state;

size_t hr_state_bytes(const hr_sizes *sizes); /* 0: not sound */
const char *hr_state_init(void *memory, size_t length, const hr_sizes *sizes);
const char *hr_state_check(const void *memory, size_t length);
/* Settles what a dead process was running, and frees its seats. How many there were. */
uint32_t hr_settle_dead(hg_region *region, hr_state *state, uint32_t pid, uint64_t now_ns);
/* A name, or a level of names, that a rule or a setting has a word on: it gets a place before anybody
 * of that name comes, which no other name is given; and until Python has spoken of a new client, or
 * where there is no place for one, it has the gate of the levels in its name that were entered. Of
 * several levels (a:b) in the order of their bytes, each once. Its index and key; 0: there is no place
 * for it just now. Any thread. */
uint32_t hr_client_enter(hr_state *state, uint32_t pid, const char *identity, size_t length,
                         uint64_t now_ns, uint64_t *key);
/* Nobody has a word on it any more: from now on as all others. */
void hr_client_leave(hr_state *state, uint32_t client, uint64_t key);
/* Any thread may call it. `gate` as it is to be; its sequence is ours. */
void hr_gate_put(hr_state *state, uint32_t client, uint64_t key, const hr_gate *gate);
void hr_gate_get(const hr_state *state, uint32_t client, hr_gate *gate);
void hr_plan_put(hr_state *state, uint64_t pattern, double cost);

/* ── Counters of a relay thread ───────────────────────────────────────────── */

typedef struct hr_thread_counts {
    _Atomic uint64_t accepted, established, closed, rejected_sessions, failed_startups,
        failed_connects;
    _Atomic uint64_t client_bytes, server_bytes; /* that they sent */
    _Atomic uint64_t statements, prepared, decided, truncated_texts, unidentified;
    _Atomic uint64_t cancels, held, protocol_errors, tls_sessions, out_of_buffers;
    _Atomic uint64_t sessions, idle_sessions, buffers_used_bytes; /* now */
    _Atomic uint64_t rounds, longest_round_ns; /* of the loop */
    _Atomic uint64_t lost_events;
    _Atomic uint64_t untrusted_tags;
    _Atomic uint64_t
        unkept_texts; /* prepared, and decided as unknown: no memory was left for them */
    _Atomic uint64_t spare[7];
} hr_thread_counts;

/* ── Events, from the threads to Python ───────────────────────────────────── */

enum {
    HR_EVENT_CLIENT = 1, /* a new client: number = its index, pattern = its key, text = its identity */
    HR_EVENT_PATTERN = 2, /* a new pattern under a budget that needs its cost: pattern, text whole */
    HR_EVENT_BLOCKED = 3, /* number = client, by = HR_BY_*, text */
    HR_EVENT_DELAYED = 4, /* after it: took_ns */
    HR_EVENT_WARNED = 5,
    HR_EVENT_SESSION = 6, /* a session that failed: reason */
    HR_EVENT_DRAINED = 7 /* no session is left */
};

typedef struct hr_event {
    uint32_t kind;
    uint32_t number;
    uint64_t pattern;
    uint64_t took_ns;
    int64_t wall_ms;
    uint8_t by;
    uint8_t in_transaction;
    uint16_t user_length, database_length, budget_length; /* parts of text, in this order … */
    uint16_t reason_length;
    uint16_t text_length; /* … the statement's last */
    uint8_t text_whole;
    uint8_t parameters; /* it has $n or ? in it */
    uint8_t reserved[2];
    uint32_t left_out; /* BLOCKED, DELAYED, WARNED: of this client, unreported since the last */
    char text[8192];
} hr_event;

/* ── Life ─────────────────────────────────────────────────────────────────── */

/* `region` and `state` are mapped already, and outlive the relay. */
hr_relay *hr_open(const hr_settings *settings, const hg_identity *identity, hg_region *region,
                  hr_state *state, char *error, size_t error_length);
/* A listening socket, non-blocking; the relay takes it over. `tls` may be NULL. Before or after
 * hr_start. Returns its number, or -1 with the fault in `error`. */
int hr_listen(hr_relay *relay, int fd, uint32_t route, const hr_tls_settings *tls, char *error,
              size_t error_length);
/* Its socket is closed; sessions that came by it stay. False: there is no such listener. Its number may
 * be another's later. */
bool hr_unlisten(hr_relay *relay, int listener);
/* New certificates for later sessions; all or nothing. */
const char *hr_listener_tls(hr_relay *relay, int listener, const hr_tls_settings *tls, char *error,
                            size_t error_length);
/* All or nothing. Sessions to a target whose id is not in it any more, or that was primary and is
 * not, are closed once they are outside a transaction, and after `grace_ms` in any case. */
const char *hr_targets_put(hr_relay *relay, const hr_targets *targets, uint32_t grace_ms,
                           char *error, size_t error_length);
const char *hr_start(hr_relay *relay);
/* A new identity table for statements from now on; all or nothing. */
const char *hr_identity_put(hr_relay *relay, const hg_identity *identity);
/* Gates, releases or the policy have changed: those that wait are looked at again. Any thread. */
void hr_stir(hr_relay *relay);
/* No more sessions; sockets of listeners stay open if `keep` (another process has them too). Idle
 * sessions outside a transaction are closed at once or, where `patient`, are left in peace to go
 * on their own, those that are still logging in included; after deadline_ms all are closed. May be
 * called again, to be patient no longer. */
void hr_drain(hr_relay *relay, bool keep, bool patient, uint32_t deadline_ms);
/* Ends all threads; sessions are closed. Then hr_close frees. */
void hr_stop(hr_relay *relay);
void hr_close(hr_relay *relay);

uint32_t hr_thread_total(const hr_relay *relay);
const hr_thread_counts *hr_counts_of(const hr_relay *relay, uint32_t thread);
/* Readable when there are events. */
int hr_event_fd(const hr_relay *relay);
/* The next one, or false. */
bool hr_event_take(hr_relay *relay, hr_event *event);

typedef struct hr_session_view {
    uint64_t id;
    uint64_t target;
    uint64_t since_ns, statement_since_ns; /* 0: none runs or waits */
    uint32_t server_process; /* as the server numbers it */
    uint8_t phase; /* 0 start-up, 1 idle, 2 running, 3 held, 4 closing, 5 not known: its
                              * thread did not answer in time, and only what never changes is filled */
    uint8_t in_transaction, tls_client, tls_server;
    uint8_t family, reserved[7];
    uint8_t address[16];
    uint32_t port;
    char username[64], database[64], application[64], client[64];
} hr_session_view;

/* As many as fit into `views`; those after `after_id`, by id. Any thread; takes a lock for a moment
 * that no statement needs. */
uint32_t hr_sessions(hr_relay *relay, uint64_t after_id, hr_session_view *views, uint32_t most);
/* Ends one. False: no such session. */
bool hr_session_kill(hr_relay *relay, uint64_t id);

/* Sizes and offsets by number, for ctypes to compare with its own; 0 beyond the last. */
size_t hr_layout(uint32_t which);

#endif
