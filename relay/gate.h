/*
 * gate.h: may this statement run?   machine ──hr_ask──► gate ──► native/ (budgets), hr_client.gate
 *
 * A machine checks where a statement begins, with the text (or what hr_prepare kept of it). The gate
 * finds the client (declared order, trusted tags), its budgets, throws the dice, and answers. What
 * has to wait waits in a queue of the gate's, by priority and then by arrival, bounded in number and
 * time; the machine returns HR_HELD and checks again, with the same text, when it is fed again.
 *
 * Inside a transaction nothing is delayed or blocked unless the budget says so (R148). A rule, the
 * health gate and the pace never act there.
 */
#ifndef HEADGATE_RELAY_GATE_H
#define HEADGATE_RELAY_GATE_H

#include "kinds.h"

enum { /* hr_kind: what a statement's first words say */
       HR_KIND_READ = 0,
       HR_KIND_WRITE = 1,   /* and everything that is not known to read only */
       HR_KIND_BEGIN = 2, /* BEGIN, START TRANSACTION: free, the first statement behind it decides */
       HR_KIND_FREE = 3, /* COMMIT, ROLLBACK, SET, SHOW, DEALLOCATE, USE, …: never decided */
       HR_KIND_EMPTY = 4,
       HR_KIND_MANY = 5 /* several statements, of which at least one is decided */
};

enum { /* flags of hr_ask */
       HR_ASK_IN_TRANSACTION = 1u, /* something has run in a transaction that the client has begun */
       HR_ASK_TRUNCATED = 2u, /* the text goes on, out of sight: decided by all budgets that the rest may
                                 * fall under */
       HR_ASK_RUNNING = 4u, /* this session has statements under way (a pipeline) */
       HR_ASK_BINARY = 8u, /* an execution of a prepared statement */
       HR_ASK_BEGUN = 32u, /* the client has begun a transaction, in which nothing has run */
       HR_ASK_DOUBTED = 16u /* of a text that is NULL: it was free when it was prepared, and a function may have
                                 * put another under its name since. A write, but no budget's of tags or
                                 * fingerprints: drivers begin and end transactions by such names */
};

typedef enum hr_said {
    HR_GO = 0,
    HR_GO_WARNED, /* words filled */
    HR_WAIT, /* return HR_HELD */
    HR_WAIT_TURN, /* return HR_LATER: when this session's earlier statements have ended */
    HR_BLOCK, /* words filled; nothing is held */
    HR_SHUT /* words filled: block, then close the session */
} hr_said;

typedef struct hr_words {
    uint8_t cause; /* HR_BY_* */
    uint8_t
        statement; /* the first that may be the one blocked, of a string; empty ones do not count */
    uint32_t retry_ms; /* 0: not known */
    char message[400]; /* begins with "[HEADGATE] Traffic Control: ", as the extension's does */
    char detail[512];
    char hint[256];
} hr_words;

/* Handle of what runs: index into hr_state.runnings plus 1; 0: nothing to settle. */
typedef uint32_t hr_ticket;

/* What the gate keeps for a session: small, for there are thousands. */
typedef struct hr_gate_session {
    char *names; /* username NUL database NUL application NUL, one allocation */
    char *values; /* of those attributes and session variables that sources name */
    struct hr_resolution
        *resolution; /* shared by sessions that are alike; NULL until one is needed */
    struct hr_waiter *waiter; /* NULL: nothing of it waits */
    struct hr_named *prepared; /* by PREPARE in SQL */
    uint64_t client_key;
    uint64_t wait_since_ns, wait_next_ns; /* 0: does not wait */
    uint64_t ended_ns; /* when its last statement did: the next one's time begins there */
    uint64_t paused_ns; /* session->paused_ns then */
    uint64_t over_since_ns; /* since when the time of those in `over` counts */
    uint32_t over; /* those that have ended and are not settled yet: slot plus 1; 0: none */
    uint32_t tickets; /* that are not given back yet */
    uint32_t level; /* whose gate a client beyond the table has: see hr_client_level */
    uint32_t client; /* by what the session itself says; UINT32_MAX: not looked up */
    uint32_t naming; /* version of the identity settings that was found by */
    uint16_t database_at, application_at;
    uint16_t values_length;
    uint8_t rank; /* of the source that named the client: only earlier ones can overrule it */
    bool cancelled;
    bool odd_quotes; /* the machine says: a backslash hides a quote where it does not by default, or
                                * the other way round. What is a value in a text is not known then */
} hr_gate_session;

bool hr_gate_open(hr_relay *relay, const hg_identity *identity);
void hr_gate_close(hr_relay *relay);
bool hr_gate_thread_open(hr_thread *thread);
void hr_gate_thread_close(hr_thread *thread);
void hr_gate_session_init(hr_session *session);
void hr_gate_session_free(hr_session *session); /* leaves every queue */
/* Start-up parameters, connection attributes, later SETs: kept if a source names them. A NULL name:
 * all of them are forgotten (COM_CHANGE_USER, COM_RESET_CONNECTION, DISCARD ALL). */
void hr_gate_attribute(hr_session *session, const char *name, size_t name_length, const char *value,
                       size_t length);
void hr_gate_variable(hr_session *session, const char *name, size_t name_length, const char *value,
                      size_t length);

/* What is known of a text, shared by all sessions of the thread that have prepared the same one, and
 * bounded in number (then the least used go), and in bytes by max_buffer_bytes. Counted: hr_prepared_drop.
 * NULL: no memory; the statement is then one that nobody knows. */
hr_prepared *hr_prepare(hr_session *session, const char *text, size_t length, bool truncated);
hr_prepared *hr_prepared_share(hr_prepared *prepared);
/* A name that may mean something else by now was decided as a write: the SET that it last meant names the
 * client all the same, who may call itself what it likes. */
void hr_follow_doubted(hr_session *session, const hr_prepared *prepared);
void hr_prepared_drop(hr_session *session, hr_prepared *prepared);
int hr_prepared_kind(const hr_prepared *prepared);
/* As much of its text as is kept; `whole`: that is all. */
const char *hr_prepared_text(const hr_prepared *prepared, size_t *length, bool *whole);

/* May it run? `words` is filled unless it says GO, WAIT or WAIT_TURN. On GO and GO_WARNED `ticket` is
 * to be given back by hr_done, once, whatever happens. Follows BEGIN, SET of variables that sources
 * name, and SET application_name in the text (MySQL has no other way). `query` NULL: what it says is not
 * known (a function call, a statement prepared out of the machine's sight): decided as a write, under all
 * budgets that it may fall under. So is an EXECUTE of a name that is not known. */
hr_said hr_ask(hr_session *session, const hr_query *query, uint32_t flags, hr_words *words,
               hr_ticket *ticket);
hr_said hr_ask_prepared(hr_session *session, hr_prepared *prepared, uint32_t flags, hr_words *words,
                        hr_ticket *ticket);
/* MySQL, whose names of PREPARE the gate keeps: the text that was asked for goes to the server (`whole`: all
 * of it is known), and has ended there. Where it has failed, or was blocked, nobody knows how far it came,
 * and where it runs out of sight, what it has prepared: those names are forgotten, and decided as writes. */
void hr_names_sent(hr_session *session, const char *text, size_t length, bool whole);
void hr_names_ended(hr_session *session, bool failed);
/* One of several statements of a string has ended; the next one has its places from here on. */
void hr_step(hr_session *session, hr_ticket ticket, bool failed);
/* What the server sent is looked at. `apart`: with an end as its last: what has ended up to there has
 * had the time up to now, and what is still to come has not. Else both may have run in it. */
void hr_measured(hr_session *session, bool apart);
/* All of it has ended. started_ns: when the server could begin with it (it was sent, and what was
 * before it had ended); time in which the client did not take the answer is taken off. */
void hr_done(hr_session *session, hr_ticket ticket, uint64_t started_ns, bool failed);
/* A Bind that nothing executes, so far: it has no places from here on, until hr_planned tells what it took
 * to plan it. Nothing is learnt from that. Instead of hr_done. */
void hr_bound(hr_session *session, hr_ticket ticket);
void hr_planned(hr_session *session, hr_ticket ticket, uint64_t started_ns);
/* It took nothing: as if it had not been asked for. Instead of hr_done. */
void hr_unused(hr_session *session, hr_ticket ticket);
/* The client hung up, or the session ends: it waits no longer. */
void hr_gate_forget(hr_session *session);
/* A cancel request for a statement that is held: it will be blocked with HR_BY_CANCEL. Own thread. */
void hr_gate_cancel(hr_session *session);
/* When the gate wants to look at this session again; 0: never by time. For the engine's timer. */
uint64_t hr_gate_due(const hr_session *session);
/* Those of this thread that wait are looked at again (policy, gates or the release changed). */
void hr_gate_stir(hr_thread *thread);

#endif
