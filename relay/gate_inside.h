/*
 * gate_inside.h: what the files of the gate share, and nobody else includes.
 *
 *   gate.c            the question, and what comes of it
 *   gate_rules.c      rules, health, pace
 *   gate_budgets.c    budgets
 *   gate_wait.c       what is delayed
 *   gate_statement.c  what a statement comes under: client, priority, budgets; remembered if prepared
 *   gate_named.c      PREPARE and EXECUTE in SQL
 *   gate_end.c        what ran has ended: what it cost, who may go on
 *   gate_words.c      what is said of a decision; events
 *   gate_trace.c      statements kept for replay
 *   gate_open.c       opening, closing, dice
 *   gate_resolve.c    a session under a policy
 *   identity.c        who the client is
 *   trust.c           whose tags count
 *   queue.c           those who wait
 *   kinds.c, state.c  what a text is; what is shared with other processes
 *
 * Locking: a thread's own things are touched by it alone. What waits lies in queues of all threads,
 * under one lock, which is taken only if a statement waits.
 */
#ifndef HEADGATE_RELAY_GATE_INSIDE_H
#define HEADGATE_RELAY_GATE_INSIDE_H

#include "inside.h"
#include "kinds.h"
#include "state.h"

#define HR_NS_PER_MS UINT64_C(1000000)
#define HR_NAME_BYTES 63u
#define HR_MAX_NAME 255u /* of what a session says of itself; cut */
#define HR_SHARES UINT64_C(4294967295) /* hr_gate.ratio: all */

/* ── Identity (identity.c) ────────────────────────────────────────────────── */

/* Identity settings; replaced whole, counted. */
typedef struct hr_naming {
    _Atomic uint32_t users;
    uint32_t version;
    bool by_tags;      /* some source, or the priority, is a tag */
    bool by_pattern;
    bool by_variables;
    bool guarded;      /* some tag counts from some only */
    uint32_t priority_length;
    hg_identity settings;
} hr_naming;

/* What sessions of one thread that are alike resolve to under one policy. */
typedef struct hr_resolution {
    struct hr_resolution *next;
    uint64_t hash;
    uint64_t generation;    /* of this one, in this thread: what depends on it says so */
    uint64_t version;       /* of the policy; 0: there is none */
    uint32_t crc;
    uint32_t users;
    int64_t sound_until_ms; /* the next end of a budget */
    uint32_t key_length;
    hg_session core;
    char key[];             /* what they are alike in */
} hr_resolution;

hr_naming *hr_naming_of(hr_thread *thread);
void hr_naming_drop(hr_naming *naming);
/* The session's own resolution under this policy (NULL: none is in force). Never NULL: without memory
 * it is found again for each statement, and good until the next. */
hr_resolution *hr_resolve(hr_session *session, const hg_policy *policy);
void hr_unresolve(hr_session *session);
const char *hr_username(const hr_session *session);
const char *hr_database(const hr_session *session);
const char *hr_application(const hr_session *session);

typedef struct hr_client_ref {
    uint32_t client;
    uint64_t key;
    uint32_t level; /* of HR_OTHERS: whose gate applies, by its name */
} hr_client_ref;
/* By what the session itself says; its rank is session->gate.rank then. */
hr_client_ref hr_identify_session(hr_session *session, const hr_naming *naming);
/* By these tags (trusted ones only) and this fingerprint as well. `rank`: of the source that named it;
 * lower than the session's own if the statement did. */
hr_client_ref hr_identify(hr_session *session, const hr_naming *naming, const hg_tags *tags,
                          uint64_t fingerprint, uint8_t *rank);
uint8_t hr_priority(const hr_naming *naming, const hg_tags *tags);
/* SET, RESET, DISCARD in a text. */
void hr_follow(hr_session *session, const hr_naming *naming, const char *text, size_t length,
               const hr_reading *reading);

/* ── What it comes under (gate_statement.c) ───────────────────────────────── */

typedef struct hr_statement {
    hr_client_ref ref;
    uint8_t priority;
    bool limits_workers; /* some budget of it does */
    bool needs_cost;     /* some budget of it goes by cost */
    bool writes, writes_known;
    bool fingerprinted;
    bool has_tags;       /* thread->gate->tags are its */
    uint64_t fingerprint;
    uint64_t pattern;    /* 0: none is needed, or not worked out yet */
    const hg_matches *matches; /* never NULL */
    hr_prepared *prepared;     /* NULL: a simple text */
    const char *text;
    uint32_t length;
    hr_reading reading;
    bool inside;         /* a transaction, in which something has run */
    bool cut;            /* its text goes on, out of sight */
    bool lost;           /* … all of it: what runs is not known. Then it is cut, too */
    uint8_t statement;   /* which of its string's it is */
} hr_statement;

#define HR_KEPT_TEXT 7000u /* of a prepared text, for events */
#define HR_KEPT_LOOKUPS 4u

/* What was found for a prepared text, and for which client. */
typedef struct hr_kept_lookup {
    uint64_t generation; /* 0: none */
    uint32_t naming;
    int healthy;
    int64_t sound_until_ms;
    uint64_t client_key;
    uint32_t client;
    bool by_statement;   /* the client is the statement's own */
    uint8_t rank;        /* of the source that named it */
    bool limits_workers, needs_cost;
    uint8_t priority;
    hg_matches *matches; /* cut behind the last */
} hr_kept_lookup;

struct hr_prepared {
    hr_prepared *next;      /* of the same place in the thread's table */
    hr_thread *owner;
    uint64_t hash;
    uint64_t used;          /* when, by the thread's count of such uses */
    uint32_t users;
    uint32_t text_length;   /* kept */
    uint32_t full_length;
    uint32_t tag_count, tags_ignored, tags_duplicates, tags_used;
    bool truncated, interned, many, writes;
    hr_reading reading;
    uint64_t fingerprint;
    uint32_t next_lookup;
    hr_kept_lookup lookups[HR_KEPT_LOOKUPS];
    char bytes[];           /* the text, then hg_tag[tag_count], then their text */
};

void hr_statement_of_text(hr_session *session, const hg_policy *policy, hr_statement *one,
                          hg_matches *matches);
void hr_statement_of_prepared(hr_session *session, const hg_policy *policy, hr_statement *one,
                              hg_matches *matches);
bool hr_statement_writes(hr_session *session, hr_statement *one);
/* Its pattern's key. */
uint64_t hr_statement_pattern(hr_session *session, hr_statement *one);
void hr_load_tags(const hr_prepared *prepared, hg_tags *tags);
void hr_prepareds_free(struct hr_gate_thread *gate);

/* PREPARE, EXECUTE, DEALLOCATE as the string's slice of that number (gate_named.c): what an EXECUTE
 * runs, counted; or NULL. */
hr_prepared *hr_follow_prepared(hr_session *session, const char *text, const hr_slice *slices,
                                uint32_t number);
void hr_forget_prepared(hr_session *session);

/* ── Those who wait (queue.c) ─────────────────────────────────────────────── */

enum { HR_WAITS_GATE = 1, HR_WAITS_PACE, HR_WAITS_BUDGET, HR_WAITS_PENALTY };

/* One statement that is held. Its queue's things are under the lock, all else its thread's own. */
typedef struct hr_waiter {
    struct hr_waiter *next, *previous;         /* in its queue */
    struct hr_waiter *next_own, *previous_own; /* of the thread */
    struct hr_queue *queue;                    /* NULL: in none */
    hr_session *session;
    hr_thread *thread;
    uint64_t id;
    uint64_t sequence;  /* of arrival */
    _Atomic bool woken;
    uint8_t priority;
    uint8_t why;        /* HR_WAITS_* */
    bool gate_passed;   /* has waited as long as its gate said */
    bool noted;         /* counted as delayed */
    uint8_t said;       /* PENALTY: what is said at its end */
    uint8_t cause;      /* HR_BY_* */
    uint32_t slot;      /* in hr_state.runnings */
    uint32_t client;
    uint32_t roll;
    uint64_t client_key;
    uint64_t since_ns, next_ns;
    uint64_t sleeps_for; /* key of the budget in which it counts as delayed; 0: none */
    uint64_t counted_to; /* and of the first one */
    char budget[64];     /* name of the last that it waited for */
    hr_words words;      /* PENALTY */
} hr_waiter;

typedef struct hr_queues hr_queues;
hr_queues *hr_queues_open(void);
void hr_queues_close(hr_queues *queues);
/* Whether another waits there that comes before `self` (NULL: a new one of that priority). */
bool hr_queue_ahead(hr_queues *queues, uint64_t key, const hr_waiter *self, uint8_t priority);
/* False: no memory. Keeps its arrival. */
bool hr_queue_join(hr_queues *queues, uint64_t key, hr_waiter *waiter);
/* The first one then is woken. */
void hr_queue_leave(hr_queues *queues, hr_waiter *waiter);
/* There may be room now: the best that was not woken is. */
void hr_queue_wake(hr_queues *queues, uint64_t key);
void hr_queue_own(hr_queues *queues, hr_waiter *waiter);
void hr_queue_disown(hr_queues *queues, hr_waiter *waiter);
void hr_queue_stir(hr_queues *queues, const hr_thread *thread);
uint64_t hr_queue_number(hr_queues *queues); /* of the next arrival */

/* ── Of the relay, of a thread ────────────────────────────────────────────── */

/* What a trace needs of a statement at its end, by its slot; this process's own. */
typedef struct hr_note {
    hr_prepared *prepared;
    uint32_t over_next; /* of those that its session is to settle together: slot plus 1 */
    uint16_t tags_length, tags_left_out;
    char tags[316]; /* key NUL value NUL … */
} hr_note;

struct hr_gate_shared {
    hr_naming *_Atomic naming;
    _Atomic uint32_t naming_version;
    pthread_mutex_t naming_lock;
    hr_queues *queues;
    hr_note *notes;
    uint32_t notes_count;
};

#define HR_RESOLUTIONS 256u  /* places in a thread's table of them; a power of two */
#define HR_PREPAREDS 4096u   /* likewise */
#define HR_MAX_PREPAREDS 65536u
#define HR_IDLE_PREPAREDS 2048u
#define HR_SPARE_SLOTS 64u

typedef struct hr_gate_thread {
    hr_naming *naming;
    uint64_t dice[4];
    uint64_t generations;
    uint64_t uses;
    uint32_t resolutions, prepareds, idle_prepareds;
    uint32_t cursor;                      /* into hr_state.runnings */
    uint32_t spares;
    uint32_t spare[HR_SPARE_SLOTS];       /* slots that were free a moment ago */
    int64_t until_trace_ns;
    uint64_t block_traced_ns;
    uint32_t blocks_untraced;
    uint64_t events_ns;                   /* a bucket in time, so that events are rationed, */
    uint64_t patterns_ns;                 /* and questions for plans */
    uint64_t clients_ns;
    hr_resolution *resolution[HR_RESOLUTIONS];
    hr_resolution *unkept; /* for one statement, where there is no memory for another */
    hr_prepared *prepared[HR_PREPAREDS];
    hg_signature_cache signatures;
    hg_cached_signature signature[64];
    hg_tags tags;
    hg_matches matches[HR_MAX_SLICES];
    hr_statement statements[HR_MAX_SLICES];
    hr_words words;
    hr_event event;
} hr_gate_thread;

uint64_t hr_dice(hr_gate_thread *gate);

/* ── What is said (gate_words.c) ──────────────────────────────────────────── */

void hr_say_budget(const hg_report *report, hr_words *words);
/* Behind any of them: it was not acted upon. */
void hr_say_runs(hr_words *words);
/* Behind hr_say_budget: as many as may wait for it do. */
void hr_say_full(const hg_report *report, uint32_t waiting, hr_words *words);
/* Behind hr_say_budget: it may not be under that budget at all. */
void hr_say_cut(hr_words *words, bool lost);
/* `decider`: whose gate it is. */
void hr_say_gate(hr_session *session, uint32_t client, uint32_t decider, uint8_t cause,
                 const hr_gate *gate, uint64_t waited_ns, hr_words *words);
void hr_say_pace(hr_session *session, uint32_t client, uint64_t retry_ns, uint64_t waited_ns,
                 hr_words *words);
void hr_say_cancelled(uint64_t waited_ns, hr_words *words);
void hr_tell_client(hr_thread *thread, const hr_client_ref *ref, const char *identity,
                    size_t length);
void hr_tell_pattern(hr_session *session, const hr_statement *one, uint64_t pattern);
void hr_tell_action(hr_session *session, uint32_t kind, const hr_statement *one, uint8_t cause,
                    const char *reason, const char *budget, uint64_t took_ns);
/* Whether one more of what comes at most so often may be reported. */
bool hr_rationed(uint64_t *empty_at_ns, uint64_t now_ns, uint64_t each_ns, uint64_t burst_ns);

/* ── For replay (gate_trace.c) ────────────────────────────────────────────── */

/* `fresh`: thread->gate->tags are not this one's (any more). */
void hr_note_tags(hr_session *session, uint32_t slot, const hr_statement *one, bool fresh);
void hr_note_drop(hr_session *session, uint32_t slot);
void hr_trace_end(hr_session *session, const hr_running *running, const hr_note *note,
                  uint64_t actual_ns, bool aborted);
void hr_trace_block(hr_session *session, const hr_statement *one, const hg_report *report);

/* ── Slots (gate_end.c) ───────────────────────────────────────────────────── */

uint32_t hr_slot_take(hr_thread *thread); /* UINT32_MAX: none is free */
void hr_slot_free(hr_session *session, uint32_t slot);

/* ── Arrays of a policy; one's own counters ───────────────────────────────── */

static inline const hg_budget *hr_budget(const hg_policy *policy, uint32_t index)
{
    return (const hg_budget *) ((const char *) policy + policy->budgets.offset) + index;
}

static inline const char *hr_string(const hg_policy *policy, hg_string string)
{
    return (const char *) policy + policy->strings.offset + string.offset;
}

static inline hg_seat *hr_seat(const hr_thread *thread)
{
    const hg_region *region = thread->relay->region;

    return (hg_seat *) ((char *) (uintptr_t) region + region->seats_at) + thread->seat;
}

static inline hr_client *hr_client_at(const hr_thread *thread, uint32_t client)
{
    return &hr_clients_in(thread->relay->state)[client];
}

static inline int hr_dialect(const hr_thread *thread)
{
    return thread->relay->settings.protocol == HR_PROTOCOL_MYSQL ? HG_MYSQL : HG_POSTGRES;
}

static inline uint64_t hr_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif
