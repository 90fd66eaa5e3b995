/* pg.h: what the Postgres machine keeps for a session. Small: there are thousands. */
#ifndef HEADGATE_RELAY_PG_H
#define HEADGATE_RELAY_PG_H

#define HR_PG_UNITS_HERE 4u   /* in flight without an allocation: a Bind and its Sync are two */
#define HR_PG_MAX_UNITS 64u   /* then the client waits */

/* A message of the proxy's own that waits for its turn. */
typedef struct hr_pg_pending {
    uint32_t length;
    uint8_t bytes[];
} hr_pg_pending;

/* Something that was sent to the server, and that its answer will end. */
typedef struct hr_pg_unit {
    uint64_t sent_ns;
    hr_pg_pending
        *pending; /* a notice to be sent before its answer; of an invalid Bind: the error */
    uint32_t at;          /* which of its segment's messages it is */
    uint32_t ends_at;     /* which of them ends it: its Execute; UINT32_MAX: not sent yet */
    uint32_t portal;      /* hash of its name */
    hr_ticket ticket;
    uint8_t kind;         /* HR_PG_UNIT_* */
    bool failed;
    bool ignored;         /* a Sync that the server does not read: it reads COPY data */
    bool data_ended; /* a Sync behind a CopyDone or CopyFail for its segment's last Execute */
    bool hidden; /* a Query of our own making: its ReadyForQuery is not the client's */
    bool eaten; /* nor is what it completes */
    bool silent; /* an invalid Bind behind an error that the client has been sent */
} hr_pg_unit;

typedef struct hr_pg {
    uint8_t phase; /* HR_PG_* */
    uint8_t status; /* of the last ReadyForQuery: 'I', 'T', 'E' */
    uint8_t transaction; /* where the client's stream is: HR_PG_TRANSACTION_* */
    uint8_t skip_until_sync; /* what the client sends up to its Sync: HR_PG_SKIP_* */
    bool ran; /* something that is decided has run in this transaction; see pg_transaction.c */
    bool segment_ran; /* and in this segment, which is a transaction of its own */
    bool segment_bound; /* something may have changed in it where the transaction is */
    bool segment_executed; /* and of what was bound something was executed */
    bool segment_given; /* places of what was bound have been given back */
    bool ran_before; /* `ran`, at its first Bind */
    bool names_lost; /* a statement that begins or ends transactions is not known by its name */
    bool copying_in; /* the server reads COPY data; the client has not ended it */
    bool data_ended; /* the client has, since its last Execute or Query */
    bool server_skips; /* the server has sent an error, and skips to the next Sync */
    bool unflushed; /* since the last Flush or Sync something was sent that is answered */
    bool told_fatal; /* the server itself: no second word of ours behind it */
    bool asked_tls, asked_gss, replication, cancels;
    bool portal_executed, portal_doubtful;
    uint16_t unit_first, unit_count;
    uint16_t portals; /* named ones */
    uint16_t closings; /* statements that are closed by what is under way */
    uint16_t startup_length;
    uint16_t stated; /* statements of the Query under way that the server has completed */
    uint32_t pass_left, drop_left; /* of the client's message under way */
    uint32_t server_pass_left, server_drop_left; /* of the server's */
    uint32_t segment, sent, parses; /* number of the client's, and messages sent in it */
    uint32_t server_segment, answered, parsed; /* of the server's */
    uint32_t portal_segment, tickets;
    uint32_t transaction_segment; /* of the client's, in which `transaction` was last changed */
    uint32_t free_statements; /* of the Query under way: those that are not decided, a bit each, */
    uint32_t back_statements; /* those that are ROLLBACK TO, */
    uint32_t end_statements; /* and those that end a transaction */
    uint64_t ended_ns; /* when the server last ended a unit */
    uint64_t planned_ns; /* when what is bound and not executed was sent, */
    hr_ticket planned; /* what it is charged to once the server has planned it, 0: nothing, */
    uint32_t planned_segment, planned_at; /* and which message it was */
    hr_pg_unit here[HR_PG_UNITS_HERE];
    hr_pg_unit *ring; /* HR_PG_MAX_UNITS of them, while more are in flight; else NULL */
    uint8_t *startup; /* the packet that is to be sent once there is a server */
    hr_pg_pending
        *pending_error; /* what the client is sent before it is closed, once it may be sent */
    hr_prepared *portal; /* statement of the unnamed one */
    struct hr_pg_names *names; /* prepared statements and portals by name; NULL: none */
    struct hr_pg_effect *effects; /* what SQL under way will do to names */
} hr_pg;

#endif
