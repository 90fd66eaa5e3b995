/*
 * pg_inside.h: what the files of the Postgres machine say to each other.
 *
 *   pg.c         the machine's table: phases, losses
 *   pg_start.c   start-up of both ends, TLS, cancel requests, names
 *   pg_client.c  messages of the client: what is checked, blocked, sent
 *   pg_head.c    the first messages of a segment, none of which has been sent
 *   pg_server.c  messages of the server: what ends, what is put between
 *   pg_units.c   what is in flight
 *   pg_transaction.c   the state of the transaction, and whether something has run in it
 *   pg_names.c   prepared statements and portals
 *   pg_effects.c what SQL does to prepared statements
 *   pg_words.c   what a text's first words say
 *   pg_say.c     messages of the proxy's own
 *
 * A segment is what a ReadyForQuery ends: messages of the extended protocol up to Sync, one Query, one
 * FunctionCall. Its messages are numbered from 0 where they are sent, and counted where they are
 * answered: each Parse, Bind, Describe, Close and Execute gets one answer, in order, until one fails.
 */
#ifndef HEADGATE_RELAY_PG_INSIDE_H
#define HEADGATE_RELAY_PG_INSIDE_H

#include "inside.h"
#include "kinds.h"

#define HR_PG_SMALL_BYTES                                                                          \
    10000u      /* of messages that have no text or data in them, as the server's */
#define HR_PG_LARGE_BYTES 0x3fffffffu /* of all others */
#define HR_PG_MAX_STATEMENTS                                                                       \
    1024u    /* known by name, of a session; others are decided as unknown texts */
#define HR_PG_MAX_PORTALS 64u
#define HR_PG_NAME_BYTES 63u          /* as far as the server tells names apart */
#define HR_PG_HEADER_BYTES 5u
#define HR_PG_CANCEL_CODE 80877102u

enum { /* hr_pg.phase */
       HR_PG_GREETED = 0, /* waits for the client's first packet, or the next after TLS */
       HR_PG_SHAKING,     /* TLS with the client */
       HR_PG_CONNECTING,
       HR_PG_ASKING_TLS,  /* the server, whether it has it */
       HR_PG_SHAKING_SERVER,
       HR_PG_SIGNING_IN,  /* until the first ReadyForQuery */
       HR_PG_OPEN,
       HR_PG_LEAVING,     /* the client has said good-bye behind statements that are under way */
       HR_PG_RAW,         /* replication: not looked at */
       HR_PG_CANCEL_SENT, /* this connection was a cancel request; the server will close it */
       HR_PG_ENDED
};

enum { HR_PG_TRANSACTION_NONE = 0, HR_PG_TRANSACTION_OPEN, HR_PG_TRANSACTION_FAILED };
enum { HR_PG_SKIP_NOTHING = 0, HR_PG_SKIP_ALONE /* and answer Sync */, HR_PG_SKIP_FAILED };
enum {
    HR_PG_UNIT_BIND = 0,
    HR_PG_UNIT_INVALID_BIND,
    HR_PG_UNIT_QUERY,
    HR_PG_UNIT_CALL,
    HR_PG_UNIT_SYNC
};

static inline uint32_t hr_pg_u32(const uint8_t *bytes)
{
    return (uint32_t) bytes[0] << 24 | (uint32_t) bytes[1] << 16 | (uint32_t) bytes[2] << 8
           | bytes[3];
}

/* A name in a message: as far as the server tells it apart, and its hash. */
typedef struct hr_pg_called {
    const char *name;
    size_t length;
    uint32_t hash;
} hr_pg_called;

hr_pg_called hr_pg_call(const uint8_t *name, size_t length);

/* ── pg_start.c ───────────────────────────────────────────────────────────── */

size_t hr_pg_greet(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
size_t hr_pg_server_tls(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
hr_next hr_pg_connected(hr_session *session);
hr_next hr_pg_secured(hr_session *session, hr_end end);
void hr_pg_start_free(hr_session *session);

/* ── pg_client.c, pg_head.c ───────────────────────────────────────────────── */

/* What one call was fed, and how far it is. */
typedef struct hr_pg_feed {
    hr_session *session;
    hr_pg *pg;
    const uint8_t *bytes;
    size_t length;
    size_t at;         /* the message that is looked at */
    size_t sent;       /* emitted, or dropped, up to here */
    hr_next next;
    uint32_t answers;  /* of our own in this call */
    size_t decided_at; /* the Bind that pg_head.c has asked for; SIZE_MAX: none */
    hr_ticket decided;
    hr_pg_pending *decided_notice;
    bool decided_blocked; /* it may not go, and what is kept is the error */
    bool begins;       /* pg_head.c has seen a BEGIN before it */
    size_t parsed_at;  /* the Parse whose text it has prepared; SIZE_MAX: none */
    hr_prepared *parsed;
    hr_said said;
    hr_ticket ticket;
    hr_words words;
} hr_pg_feed;

/* The two names at a Bind's beginning. */
typedef struct hr_pg_bind {
    hr_pg_called portal, statement;
} hr_pg_bind;

/* A Parse, as far as its text is looked at. */
typedef struct hr_pg_parse {
    hr_pg_called name;
    const char *text;
    size_t length;
    bool truncated;
} hr_pg_parse;

size_t hr_pg_client(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
/* `there` bytes of the message are there. False: not enough of it. Names that have no end are taken
 * for one that nobody knows: the server will say what is wrong. */
bool hr_pg_read_bind(const uint8_t *message, size_t there, hr_pg_bind *bind);
bool hr_pg_read_parse(const hr_pg_feed *feed, size_t at, size_t there, hr_pg_parse *parse);

/* Looks ahead, at the start of a segment of which nothing was sent. Whether the message at feed->at is
 * to be gone on with. Else: more bytes are to come first; or the client waits, is blocked, or is shut
 * out: feed->next, pg->skip_until_sync. */
bool hr_pg_head(hr_pg_feed *feed);
/* Nothing of a transaction is at the server, and the client waits for no answer: a block is ours. */
bool hr_pg_answers_alone(const hr_pg *pg);
/* Emits what is before feed->at. */
void hr_pg_flush(hr_pg_feed *feed);
/* The client waits until something comes from the server, which is made to say what it has. */
bool hr_pg_wait_turn(hr_pg_feed *feed);
/* All these return what a step returns: whether to go on. */
bool hr_pg_transaction_alone(hr_pg_feed *feed);
bool hr_pg_shut(hr_pg_feed *feed);
hr_next hr_pg_violation(hr_session *session, const char *what);

/* ── pg_server.c ──────────────────────────────────────────────────────────── */

size_t hr_pg_server(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);

/* ── pg_units.c ───────────────────────────────────────────────────────────── */

/* Whether so many more may be in flight; makes the room. */
bool hr_pg_has_room(hr_pg *pg, uint32_t more);
hr_pg_unit *hr_pg_unit_at(hr_pg *pg, uint32_t number); /* 0: the first in flight */
/* The caller has seen that there is room. */
hr_pg_unit *hr_pg_push(hr_session *session, uint8_t kind, hr_ticket ticket);
void hr_pg_pop(hr_session *session);
/* Gives its ticket back. */
void hr_pg_finish(hr_session *session, hr_pg_unit *unit, bool failed);
void hr_pg_finish_all(hr_session *session);
/* Those at the front that have ended, go. */
void hr_pg_tidy(hr_session *session);
/* Portals of the client's segment whose Execute has not come count as ended: others wait for them. */
void hr_pg_let_go(hr_session *session);
/* The server has planned what was let go, or will not any more: it is charged. */
void hr_pg_planned(hr_session *session);
/* The unit in this segment whose portal waits for an Execute. */
hr_pg_unit *hr_pg_unit_bound(hr_pg *pg, uint32_t portal);
bool hr_pg_owes_ready(hr_pg *pg); /* a ReadyForQuery is to come */

/* ── pg_transaction.c ───────────────────────────────────────────────────────────── */

/* Where a text of this word leads, once the server has come so far. `kind`: of what is decided. */
void hr_pg_follow_transaction(hr_pg *pg, int kind, uint8_t word);
/* Whether it is known that the next message would be inside a transaction, if it seems so. What has begun
 * that may have failed: other segments wait until the server has answered. */
bool hr_pg_transaction_sure(const hr_pg *pg);
/* A ReadyForQuery has ended something of that kind. */
void hr_pg_settle_transaction(hr_pg *pg, uint8_t kind);
/* A Query's statements, as they go; and as the server completes or fails them. */
void hr_pg_begin_string(hr_pg *pg, const hr_slice *slices, uint32_t count);
void hr_pg_complete_statement(hr_pg *pg, const char *tag);
void hr_pg_fail_statement(hr_pg *pg);
/* How a string that is blocked at that statement ends. */
typedef struct hr_pg_ending {
    bool open;    /* a transaction is */
    bool turns;   /* something before it has begun or ended one */
    bool is_free; /* nothing before it is decided */
} hr_pg_ending;
hr_pg_ending hr_pg_end_string(const hr_pg *pg, const hr_slice *slices, uint32_t blocked);

/* ── pg_effects.c ─────────────────────────────────────────────────────────── */

/* The statement is under way as that one of the Query (or as that Execute) of the client's segment. */
void hr_pg_expect(hr_session *session, const char *text, size_t length, bool whole,
                  const hr_reading *reading, uint32_t at);
/* The server has completed that one. What nobody expected makes names doubtful. */
void hr_pg_effect(hr_session *session, const char *tag, uint32_t at);
/* The server's segment has ended, or failed: what it has not come to did not happen. */
void hr_pg_effects_drop(hr_session *session, bool all);

/* ── pg_names.c ───────────────────────────────────────────────────────────── */

/* What a name means from its Parse on, if that succeeds. */
typedef struct hr_pg_meaning {
    struct hr_pg_meaning *next; /* the one before it, and so on */
    hr_prepared *prepared;
    uint32_t segment;           /* in which it was parsed or bound */
    uint32_t parse;             /* the how-manieth Parse of it */
    uint64_t put;               /* when, by the count of names */
    uint8_t word;               /* HR_PG_WORD_* of its text */
} hr_pg_meaning;

typedef struct hr_pg_name {
    struct hr_pg_name *next;
    hr_pg_meaning now;
    hr_pg_meaning before;       /* prepared NULL: there is none */
    hr_pg_meaning *older;       /* in a pipeline, whose Parses the server has not come to */
    uint32_t hash;
    uint32_t closed_segment, closed_at; /* where it is closed, if `closing` */
    uint32_t used;              /* when it was last bound */
    bool closing, executed, doubtful; /* the last two of a portal */
    uint8_t length;
    uint8_t olders;
    char name[];
} hr_pg_name;

/* What it says is sure only once the server has taken its Parse: until then a Bind in another segment
 * could be decided by a text and run another, which has stayed. */
bool hr_pg_statement_sure(hr_session *session, const hr_pg_called *called);
/* False: too many of its Parses are under way. */
bool hr_pg_statement_may_change(hr_session *session, const hr_pg_called *called);
/* Takes `prepared` over. Where there are too many, the one that was not used for longest goes. */
void hr_pg_statement_put(hr_session *session, const hr_pg_called *called, hr_prepared *prepared,
                         uint8_t word);
/* By which it is decided. NULL: not known, or so doubtful that it cannot be taken for free. */
hr_prepared *hr_pg_statement(hr_session *session, const hr_pg_called *called, uint8_t *word);
/* HR_ASK_DOUBTED where hr_pg_statement says NULL of a name that was free; else 0. */
uint32_t hr_pg_doubt_flag(hr_session *session, const hr_pg_called *called);
/* What it said last, doubtful or not. */
hr_prepared *hr_pg_statement_said(hr_session *session, const hr_pg_called *called);
/* By SQL, and done: takes `prepared` over. */
void hr_pg_statement_prepared(hr_session *session, const hr_pg_called *called,
                              hr_prepared *prepared);
void hr_pg_statement_deallocated(hr_session *session, const hr_pg_called *called);
void hr_pg_statements_deallocated(hr_session *session);
/* What runs, or what it calls, may have given any name another meaning: until its next Parse or PREPARE
 * a named statement that would be free is decided as one that nobody knows. */
void hr_pg_statements_doubt(hr_session *session);
hr_prepared *hr_pg_named(hr_session *session, const char *name, size_t length);
/* Once the server has closed it, which it may skip. */
void hr_pg_statement_close(hr_session *session, const hr_pg_called *called);
/* The server's segment has ended, or failed: then what it has not come to did not happen. */
void hr_pg_statements_settle(hr_session *session, bool failed);
void hr_pg_portal_put(hr_session *session, const hr_pg_called *called, hr_prepared *prepared,
                      bool doubtful);
/* Whether it was bound in this segment, and is executed for the first time. Its statement may be NULL:
 * not known. */
bool hr_pg_portal_execute(hr_session *session, const hr_pg_called *called, hr_prepared **prepared,
                          bool *doubtful);
void hr_pg_portal_executed(hr_session *session, const hr_pg_called *called);
void hr_pg_portal_drop(hr_session *session, const hr_pg_called *called);
void hr_pg_portals_drop(hr_session *session); /* the transaction has ended */
void hr_pg_names_free(hr_session *session);

/* ── pg_words.c ───────────────────────────────────────────────────────────── */

enum {
    HR_PG_WORD_OTHER = 0,
    HR_PG_WORD_BEGINS,   /* BEGIN, START */
    HR_PG_WORD_ENDS,     /* COMMIT, ROLLBACK, … : the transaction's end */
    HR_PG_WORD_CHAINS,   /* … and the next one's beginning */
    HR_PG_WORD_BACK,     /* ROLLBACK TO */
    HR_PG_WORD_UNSEEN,   /* its first word comes behind what was looked at */
    HR_PG_WORD_NAMES,    /* PREPARE, DEALLOCATE, DISCARD: changes what names mean */
    HR_PG_WORD_EXECUTES, /* runs what a name means */
    HR_PG_WORD_DOES      /* DO, CALL: out of sight */
};

uint8_t hr_pg_word_of(const char *text, size_t length, bool truncated);
/* "-c name=value --other=value" of the start-up parameter options: for the gate. */
void hr_pg_tell_options(hr_session *session, const char *options);

/* ── pg_say.c ─────────────────────────────────────────────────────────────── */

typedef struct hr_pg_said {
    char type;            /* 'E' or 'N' */
    const char *severity; /* ERROR, FATAL, NOTICE */
    const char *sqlstate;
    const char *message, *detail, *hint; /* the last two may be NULL or empty */
} hr_pg_said;

void hr_pg_say(hr_session *session, const hr_pg_said *said);
void hr_pg_say_ready(hr_session *session, uint8_t status);
/* The same for later. NULL: no memory. */
hr_pg_pending *hr_pg_keep(const hr_pg_said *said);
/* Says what was kept, and frees it. */
void hr_pg_say_kept(hr_session *session, hr_pg_pending **pending);
hr_pg_said hr_pg_transactioned(const hr_words *words, bool fatal);
hr_pg_said hr_pg_warning(const hr_words *words);
/* Bind of what cannot be bound; with a Sync behind it: in the place of a Query. */
void hr_pg_say_invalid_bind(hr_session *session, bool with_sync);
void hr_pg_say_flush(hr_session *session); /* to the server */
void hr_pg_say_query(hr_session *session, const char *text, size_t length); /* and this */

#endif
