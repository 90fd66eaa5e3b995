/* engine_session.h: what the engine keeps for a session. Small: there are thousands. */
#ifndef HEADGATE_RELAY_ENGINE_SESSION_H
#define HEADGATE_RELAY_ENGINE_SESSION_H

enum { HR_EXCESS_NOT = 0, HR_EXCESS_SESSIONS, HR_EXCESS_LOGINS }; /* beyond which bound */

typedef struct hr_own {
    /* These two outlive the session: a late hr_wake may find the memory in use by another one. */
    hr_errand wake;
    _Atomic bool waking;     /* the errand is in the inbox */

    bool in_use;
    bool counted;            /* as established */
    bool resting;            /* as counted in idle_sessions */
    bool leaving;            /* goes as soon as it is idle … */
    bool patient; /* … but is left in peace until leave_by_ns, or a drain without patience */
    uint8_t excess; /* HR_EXCESS_*: may send a cancel, is rejected otherwise */
    bool wished; /* target_id was the machine's wish, not the route's */
    bool server_shut; /* the server knows that no more comes */
    bool told; /* the client was sent something together with the end */
    uint8_t leave_why; /* hr_lost */
    int cancel_end; /* of the request that is to stop what it runs: a descriptor plus 1; 0: none */
    uint64_t last_ns; /* when the client last said something */
    uint64_t connect_by_ns; /* 0: is not connecting */
    uint64_t
        orphan_by_ns; /* its client has ended, and what waits for its turn is dropped by then; 0: not */
    uint64_t
        scarce_by_ns; /* its server is not read for want of buffers: looked at again then; 0: is */
    uint64_t leave_by_ns; /* goes by then even out of a transaction; 0: may stay */
    uint64_t close_by_ns; /* if nothing more is sent by then, the rest is dropped */
    uint64_t tried; /* targets that could not be reached, a bit each */
    uint64_t close_limit_ns; /* and by then even if it goes on to be sent */
    uint64_t close_unsent; /* bytes, when that was last looked at */
    uint64_t user_key; /* under which it is counted; 0: not */
    uint64_t login_key; /* likewise its address, while it logs in */
    const char *names_seen; /* session->gate.names, when its user was last looked at */
    struct hr_place *place; /* its target, while it is counted there */
} hr_own;

#endif
