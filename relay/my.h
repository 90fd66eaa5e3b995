/* my.h: what the MySQL machine keeps for a session. Small: there are thousands. */
#ifndef HEADGATE_RELAY_MY_H
#define HEADGATE_RELAY_MY_H

/* A command at the server whose answer has not ended. */
typedef struct hr_my_unit {
    hr_ticket ticket;
    uint32_t number;       /* KILL: of the thread. Statements: their id */
    uint64_t started_ns;
    hr_prepared *prepared; /* COM_STMT_PREPARE: until the server has numbered it */
    uint8_t command;
    uint8_t flags;         /* MY_UNIT_* */
} hr_my_unit;

typedef struct hr_my {
    struct hr_my_more *more;     /* what few sessions need; NULL until then */
    hr_my_unit unit;             /* whose answer comes now; those behind it are in more->queue */
    uint32_t units;
    uint32_t client_left, server_left; /* of the packet that streams through, to come */
    uint32_t definitions, later_definitions;
    uint32_t can;                /* capabilities that are in force */
    uint16_t status;             /* as the server said last */
    uint8_t extended;            /* MariaDB's capabilities in force, the lowest bits */
    uint8_t phase, answer;
    uint8_t seq, client_seq; /* of the last packet of the answer and of the client, as it counts */
    int8_t shift; /* what the server counts more during authentication */
    uint8_t own; /* packets of our own in this call: bounded */
    bool client_more, server_more; /* the packet is 16 MB: another one continues it */
    bool client_drops; /* what streams from the client is blocked, and thrown away */
    bool ran; /* something was decided in the transaction that is open */
    bool infile; /* the client sends a file, up to an empty packet */
    bool client_turn; /* authentication: the client is to answer */
    bool by_sha2; /* authentication is by caching_sha2_password */
    bool bare; /* or by a plugin that may send a password as it is */
    uint8_t sha2; /* MY_SHA2_*: what the proxy waits for in its full exchange */
    bool out_params; /* this result set is a procedure's OUT parameters */
    bool has_rows; /* the answer under way has had one */
    bool shut; /* close, once the blocked command is discarded */
} hr_my;

#endif
