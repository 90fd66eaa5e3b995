/*
 * my_inside.h: what the files of the MySQL machine say to each other.
 *
 *   my.c          the machine: feeding, ending, what it frees
 *   my_connect.c  greeting, TLS, the client's response, authentication (also COM_CHANGE_USER's)
 *   my_sha2.c     caching_sha2_password between a side with TLS and one without
 *   my_command.c  what the client sends: commands, which are decided, passed or blocked
 *   my_decide.c    which of them may run: checks at the gate, and blocks
 *   my_answer.c   what the server sends: where each answer ends, and what it says of the session
 *   my_types.c    types of parameters that a block must not lose
 *   my_text.c     the few statements that the machine itself must know: USE, KILL, COMMIT …
 *   my_more.c     the queue of units, prepared statements by id, texts that are kept for a while
 *   my_packet.c   numbers, strings and errors as the protocol writes them
 */
#ifndef HEADGATE_RELAY_MY_INSIDE_H
#define HEADGATE_RELAY_MY_INSIDE_H

#include "inside.h"

#include <string.h>

#define MY_HEADER 4u
#define MY_FULL 0xffffffu         /* length of a packet that another one continues */
#define MY_MAX_UNITS 64u          /* in flight; then HR_LATER */
#define MY_MAX_STATEMENTS 4096u /* prepared, of one session; more are decided as unknown writes */
#define MY_MAX_OWN 32u /* packets of our own in one call */
#define MY_SCRAMBLE 20u /* bytes of it */
#define MY_ERROR_BYTES 512u /* of an error's text: as long as a server's own may be */

enum { /* commands */
       MY_QUIT = 1,
       MY_INIT_DB = 2,
       MY_QUERY = 3,
       MY_FIELD_LIST = 4,
       MY_SHUTDOWN = 8,
       MY_STATISTICS = 9,
       MY_PROCESS_INFO = 10,
       MY_PROCESS_KILL = 12,
       MY_DEBUG = 13,
       MY_PING = 14,
       MY_CHANGE_USER = 17,
       MY_BINLOG_DUMP = 18,
       MY_TABLE_DUMP = 19,
       MY_REGISTER_REPLICA = 21,
       MY_STMT_PREPARE = 22,
       MY_STMT_EXECUTE = 23,
       MY_STMT_LONG_DATA = 24,
       MY_STMT_CLOSE = 25,
       MY_STMT_RESET = 26,
       MY_SET_OPTION = 27,
       MY_STMT_FETCH = 28,
       MY_BINLOG_DUMP_GTID = 30,
       MY_RESET_CONNECTION = 31,
       MY_CLONE = 32,
       MY_GROUP_REPLICATION = 33,
       MY_BULK_EXECUTE = 250, /* MariaDB */
       MY_MULTI = 254
};

enum { /* capabilities */
       MY_CAN_MYSQL = 1u, /* MariaDB's servers and clients leave it out, and then have extended ones */
       MY_CAN_DATABASE = 8u,
       MY_CAN_COMPRESS = 1u << 5,
       MY_CAN_PROTOCOL_41 = 1u << 9,
       MY_CAN_SSL = 1u << 11,
       MY_CAN_SECURE = 1u << 15,
       MY_CAN_PLUGINS = 1u << 19,
       MY_CAN_ATTRIBUTES = 1u << 20,
       MY_CAN_LONG_AUTH = 1u << 21,
       MY_CAN_TRACK = 1u << 23,
       MY_CAN_NO_EOF = 1u << 24,
       MY_CAN_QUERY_ATTRIBUTES = 1u << 27,
       MY_CAN_ZSTD = 1u << 26,
       /* Compression would hide what there is to check; optional metadata (1 << 25) and the extension
     * (1 << 29) change framing in ways that no driver of note asks for. */
       MY_CAN_NOT = MY_CAN_COMPRESS | 1u << 25 | MY_CAN_ZSTD | 1u << 29
};

enum { /* MariaDB's extended capabilities */
       MY_ALSO_PROGRESS = 1u,
       MY_ALSO_CACHE_METADATA = 16u,
       /* Progress, bulk, extended metadata, cached metadata, results of each unit of a bulk. COM_MULTI (2)
     * and what is not known yet are masked. */
       MY_ALSO_KNOWN = 1u | 4u | 8u | 16u | 32u
};

enum { /* server status */
       MY_IN_TRANSACTION = 1u,
       MY_AUTOCOMMIT = 2u,
       MY_MORE_RESULTS = 8u,
       MY_CURSOR_EXISTS = 0x40u,
       MY_OUT_PARAMS = 0x1000u,
       MY_STATE_CHANGED = 0x4000u
};

enum my_phase { MY_GREETING = 0, MY_RESPONSE, MY_SERVER_TLS, MY_READY };

enum my_answer { /* what the server's next packet is, for the first unit */
                 MY_FIRST = 0,
                 MY_DEFINITIONS,
                 MY_DEFINITIONS_END,
                 MY_ROWS,
                 MY_INFILE,
                 MY_AUTHENTICATES
};

enum { /* hr_my_unit.flags */
       MY_UNIT_SIMPLE = 1u, /* its answer cannot request anything from the client: others may follow at once */
       MY_UNIT_OWN = 2u, /* ours: the client does not see it. Of authentication: the first, at login */
       MY_UNIT_RUNS = 4u, /* decided: the transaction has begun with it */
       MY_UNIT_ENDS = 8u, /* COMMIT, ROLLBACK, BEGIN: whatever is open after it is new */
       MY_UNIT_MANY = 16u,
       MY_UNIT_WARNED = 32u,
       MY_UNIT_LISTS = 64u, /* SHOW WARNINGS after a statement that we warned of */
       MY_UNIT_OPEN = 128u /* with a cursor; KILL: number is a thread */
};

/* ── my_packet.c ──────────────────────────────────────────────────────────── */

typedef struct my_reader {
    const uint8_t *at, *end;
    bool bad; /* something was longer than what is there */
} my_reader;

static inline uint32_t my_length(const uint8_t *header)
{
    return (uint32_t) header[0] | (uint32_t) header[1] << 8 | (uint32_t) header[2] << 16;
}

my_reader my_read(const uint8_t *bytes, size_t length);
uint64_t my_fixed(my_reader *reader, size_t width); /* least significant byte first */
uint64_t my_number(my_reader *reader); /* length-encoded; NULL (0xfb) is bad */
const char *my_take(my_reader *reader, size_t length); /* NULL, and bad, if it is not there */
const char *my_string(my_reader *reader, size_t *length); /* length-encoded */
const char *my_text(my_reader *reader, size_t *length); /* to a NUL, which must be there */
void my_put_header(uint8_t *to, size_t length, uint8_t seq);
void my_put(uint8_t *to, uint32_t value, size_t width);
/* `state` NULL: before the client's capabilities are known. `to` has room for MY_ERROR_BYTES + 16. */
size_t my_error(uint8_t *to, uint8_t seq, uint16_t code, const char *state, const char *text);

typedef struct my_ok {
    uint16_t status, warnings;
    size_t warnings_at; /* in the payload */
    const uint8_t *info, *end; /* what follows */
} my_ok;

/* An OK or EOF packet's payload. False: it is neither. */
bool my_read_ok(const uint8_t *payload, size_t length, my_ok *ok);

/* ── my.c ─────────────────────────────────────────────────────────────────── */

void my_tell(hr_session *session, uint8_t seq, uint16_t code, const char *state, const char *text);
/* Tells the client, if it can read anything now, and counts it. */
hr_next my_fail(hr_session *session, uint8_t seq, uint16_t code, const char *state,
                const char *text);
/* A packet of our own is about to be written: false if there were too many in this call. */
bool my_may_write(hr_session *session);

/* ── my_more.c ────────────────────────────────────────────────────────────── */

typedef struct my_statement {
    uint32_t id; /* 0: free */
    uint8_t flags;
    uint16_t parameters;
    hr_prepared *prepared;
} my_statement;

enum {
    MY_STATEMENT_ENDS = 1u,
    MY_STATEMENT_LONG_DATA = 2u,
    MY_STATEMENT_UNTYPED = 4u /* blocked with its parameters' types, which could not be kept */
};

typedef struct hr_my_more {
    hr_my_unit *queue; /* MY_MAX_UNITS; behind hr_my.unit */
    uint32_t queue_first;
    uint32_t last_id; /* what MariaDB's -1 means; 0: nothing */
    my_statement *statements; /* open addressing */
    uint32_t statement_room, statement_count;
    char *warning; /* of the last statement, for SHOW WARNINGS */
    uint16_t warning_code;
    uint16_t error_length;
    uint32_t kept_length;
    uint8_t *error; /* for when the blocked command has been discarded */
    uint16_t secret_length;
    uint8_t scramble[MY_SCRAMBLE]; /* the server's last, where sides may differ in TLS */
    struct my_types *types; /* of blocked executions' parameters */
    uint32_t types_bytes;
    uint8_t *secret; /* a password, until the server's key has come */
    uint8_t *kept; /* USE, COM_INIT_DB: the name; COM_CHANGE_USER: the command; until its answer */
} hr_my_more;

hr_my_more *my_more(hr_session *session); /* NULL: no memory */
bool my_push(hr_session *session, const hr_my_unit *unit);
void my_pop(hr_session *session);
my_statement *my_find(hr_session *session,
                      uint32_t id); /* id as the client says it; NULL: unknown */
/* Takes over `prepared`. Beyond the bound it is dropped: the statement is then unknown. */
void my_learn(hr_session *session, const my_statement *statement);
void my_unlearn(hr_session *session, uint32_t id);
void my_unlearn_all(hr_session *session);
bool my_keep(hr_session *session, const void *bytes, size_t length);
void my_more_free(hr_session *session);

/* ── The streams ──────────────────────────────────────────────────────────── */

size_t my_greeting(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
hr_next my_server_secured(hr_session *session);
size_t my_response(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
size_t my_commands(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
size_t my_answers(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
/* One packet of an authentication, whole. `next` is set if the session ends with it. */
void my_authenticates(hr_session *session, const uint8_t *payload, size_t length, hr_next *next);
/* The client's plugin may send the password as it is, and it would leave this host unencrypted. */
bool my_bares_password(const hr_session *session);
hr_next my_reject_bare(hr_session *session, uint8_t seq);
/* COM_CHANGE_USER's names and attributes; false: it is malformed. */
bool my_read_change(hr_session *session, const uint8_t *payload, size_t length, bool apply);
void my_follow_ok(hr_session *session,
                  const my_ok *ok); /* status, and what the session tracker says */
/* The first unit's answer has ended. */
void my_finish(hr_session *session, bool failed);

/* ── my_decide.c ───────────────────────────────────────────────────────────── */

typedef struct my_command {
    const uint8_t *bytes; /* the header first */
    const uint8_t *payload;
    uint32_t length; /* of the payload, as far as the first packet has it */
    size_t seen; /* of it, here */
    uint8_t code;
    bool whole; /* all of it is here */
    size_t emitted; /* of `bytes`: has gone to the server already, in another form */
} my_command;

enum my_verdict { MY_PASSES, MY_BLOCKED, MY_WAITS /* `next` says for what */ };

enum my_verdict my_decide_query(hr_session *session, const my_command *it, hr_next *next);
/* EXECUTE, BULK_EXECUTE; and FETCH, which goes on with what was admitted, as inside a transaction. */
enum my_verdict my_decide_execute(hr_session *session, my_command *it, hr_next *next);
/* A command that nobody knows: as a write that nobody knows. */
enum my_verdict my_decide_unknown(hr_session *session, const my_command *it, hr_next *next);
/* With the sequence number of the command's last packet plus one: at once if that one is here. */
enum my_verdict my_block(hr_session *session, const my_command *it, uint16_t code,
                         const char *state, const char *text, hr_next *next);
enum my_verdict my_enter(hr_session *session, const hr_my_unit *unit,
                         hr_next *next); /* its answer will come */
enum my_verdict my_later(hr_next *next);
uint32_t my_id_of(const my_command *it); /* of the statement, or the thread */

/* ── my_types.c ───────────────────────────────────────────────────────────── */

size_t my_types_reach(hr_session *session,
                      const my_command *it); /* as much of it as must be here */
/* False: it has no types, and those of the one that was blocked before it are lost: must not run. */
bool my_types_known(hr_session *session, const my_statement *statement, const my_command *it);
void my_types_blocked(hr_session *session, my_statement *statement, const my_command *it);
void my_types_pass(hr_session *session, my_statement *statement, my_command *it);
void my_types_drop(hr_my_more *more, uint32_t id);
void my_types_drop_all(hr_my_more *more);

/* ── my_sha2.c ────────────────────────────────────────────────────────────── */

enum { MY_SHA2_NONE = 0, MY_SHA2_PASSWORD, MY_SHA2_KEY, MY_SHA2_REQUEST, MY_SHA2_SECRET };

void my_sha2_expect(const hr_session *session); /* our key may be needed soon */
void my_sha2_begin(hr_session *session);
hr_next my_sha2_key(hr_session *session, const uint8_t *packet, size_t length);
size_t my_sha2_answer(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next);
void my_sha2_forget(hr_my_more *more);

/* ── my_text.c ────────────────────────────────────────────────────────────── */

typedef struct my_meaning {
    uint8_t flags; /* of MY_UNIT_*: ENDS, LISTS, OPEN (it is a KILL) */
    uint32_t thread; /* KILL */
    const char *use; /* USE: the last one's name; NULL: none */
    size_t use_length;
} my_meaning;

void my_read_meaning(const char *text, size_t length, bool many, my_meaning *meaning);
/* The text of a COM_QUERY behind its attributes. NULL: they are malformed, or go `beyond` what is here. */
const char *my_query_text(const uint8_t *payload, size_t length, bool attributes,
                          size_t *text_length, bool *beyond);

#endif
