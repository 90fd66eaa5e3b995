/*
 * codes.c: every block's code, and the words for a session that ends.
 *
 *   gate ──hr_words, cause──► machine ──hr_code_of_cause──► ErrorResponse / ERR packet
 *   engine ──machine->lost(why)──► hr_words_of_loss, hr_code_of_loss
 *
 * Postgres: 53000 (insufficient resources) is what drivers and the extension know as "try again
 * later". MySQL has no such class: 1205 (lock wait timeout) is the code that drivers retry, and it
 * leaves the transaction open, as an ERR of the proxy's does.
 */
#include "inside.h"

#include <stdio.h>
#include <string.h>

const hr_code hr_code_of_cause[HR_CAUSES] = {
    [HR_BY_NOTHING] = {"01000", 0, "01000"}, /* a warning: nothing was blocked */
    [HR_BY_BUDGET] = {"53000", 1205, "HY000"}, [HR_BY_RULE] = {"53000", 1205, "HY000"},
    [HR_BY_HEALTH] = {"53000", 1205, "HY000"}, [HR_BY_PACE] = {"53000", 1205, "HY000"},
    [HR_BY_LOSS] = {"53000", 1205, "HY000"},   [HR_BY_CANCEL] = {"57014", 1317, "70100"},
    [HR_BY_LIMIT] = {"53300", 1040, "08004"},
};

const hr_code hr_code_of_loss[HR_LOST_KILLED + 1] = {
    [HR_LOST_CLIENT] = {"08006", 1053, "08S01"},    [HR_LOST_SERVER] = {"08006", 1053, "08S01"},
    [HR_LOST_CONNECT] = {"08006", 1053, "08S01"},   [HR_LOST_STARTUP] = {"57014", 1159, "08S01"},
    [HR_LOST_TARGET] = {"57P01", 1053, "08S01"},    [HR_LOST_DRAIN] = {"57P01", 1053, "08S01"},
    [HR_LOST_IDLE] = {"57P05", 1159, "08S01"},      [HR_LOST_MEMORY] = {"53200", 1041, "HY000"},
    [HR_LOST_SESSIONS] = {"53300", 1040, "08004"},  [HR_LOST_TLS] = {"08006", 1053, "08S01"},
    [HR_LOST_NO_TARGET] = {"08006", 1053, "08S01"}, [HR_LOST_KILLED] = {"57P01", 1317, "70100"},
};

/* What is said, and what to do next. %s: what the engine knows of it. */
static const struct {
    const char *what;
    const char *unknown; /* in the place of a fault that nobody gave */
    const char *next;
} words_of[HR_LOST_KILLED + 1] = {
    [HR_LOST_CLIENT] = {"the client has disconnected", "", ""},
    [HR_LOST_SERVER]
    = {"the server has closed the connection", "",
       "the running statement may or may not have taken effect: reconnect, and check "
       "before you repeat it"},
    [HR_LOST_CONNECT] = {"the server cannot be reached", "unknown reason", "reconnect later"},
    [HR_LOST_STARTUP] = {"sign-in timed out", "",
                         "check that the server answers; startup_timeout_s is the limit"},
    [HR_LOST_TARGET] = {"this server is no longer the target (it was moved, or its role changed)",
                        "", "reconnect"},
    [HR_LOST_DRAIN] = {"the proxy is stopping or restarting", "", "reconnect"},
    [HR_LOST_IDLE] = {"the session was idle for too long", "",
                      "reconnect; idle_timeout_s is the limit"},
    [HR_LOST_MEMORY] = {"no buffer memory is left for this session", "",
                        "reconnect later; max_buffer_mb is the limit for all sessions together"},
    [HR_LOST_SESSIONS] = {"too many sessions", "max_sessions is reached", "reconnect later"},
    [HR_LOST_TLS] = {"the TLS handshake failed", "unknown reason", ""},
    [HR_LOST_NO_TARGET] = {"no server is available for this route", "", "reconnect later"},
    [HR_LOST_KILLED] = {"an operator ended this session", "", "reconnect"},
};

/* What to do next, where the case says more than the cause. */
static const char *advice_of(const hr_session *session, hr_lost why)
{
    if (why == HR_LOST_SERVER && session->held)
        return "the delayed statement did not reach the server: reconnect and repeat it";
    if (why == HR_LOST_SERVER && !session->established)
        return "it did so during sign-in, so no statement has run: check the server's log, and reconnect";
    if (why == HR_LOST_SERVER && session->idle)
        return "no statement was running: reconnect";
    if (why == HR_LOST_MEMORY && session->fault != NULL)
        return "max_buffer_mb does not affect this";
    return words_of[why].next;
}

void hr_words_of_loss(const hr_session *session, hr_lost why, char *out, size_t length)
{
    const char *fault = session != NULL ? session->fault : NULL, *next;

    if (length == 0)
        return;
    next = session != NULL ? advice_of(session, why) : words_of[why].next;
    if (fault == NULL || *fault == '\0')
        fault = words_of[why].unknown;
    snprintf(out, length, "headgate: %s%s%s%s%s", words_of[why].what, *fault == '\0' ? "" : ": ",
             fault, *next == '\0' ? "" : "; ", next);
}
