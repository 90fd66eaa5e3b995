/*
 * pg.c: the Postgres machine: fed bytes, it emits bytes, and knows no sockets. See pg_inside.h.
 */
#include "pg_inside.h"

#include <stdlib.h>
#include <string.h>

static void init(hr_session *session)
{
    memset(&session->pg, 0, sizeof session->pg);
    session->pg.status = 'I';
    session->pg.transaction_segment = UINT32_MAX;
}

static size_t pass_all(hr_session *session, hr_end to, const uint8_t *bytes, size_t length)
{
    hr_emit(session, to, bytes, length);
    return length;
}

hr_next hr_pg_violation(hr_session *session, const char *what)
{
    hr_pg_said said = {'E', "FATAL", "08P01", what, NULL, NULL};

    hg_add_own(&session->thread->counts->protocol_errors, 1);
    if (session->pg.server_pass_left == 0)
        hr_pg_say(session, &said);
    session->pg.phase = HR_PG_ENDED;
    return HR_CLOSE;
}

/* Passwords and what SASL and GSSAPI say: as they are. */
static size_t sign_in(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_pg *pg = &session->pg;
    size_t at = 0;

    for (;;) {
        size_t here = length - at < pg->pass_left ? length - at : pg->pass_left;
        uint32_t size;

        at += here;
        pg->pass_left -= (uint32_t) here;
        if (length - at < HR_PG_HEADER_BYTES)
            break;
        size = hr_pg_u32(bytes + at + 1);
        if (bytes[at] != 'p' && bytes[at] != 'X') {
            *next = HR_LATER; /* what comes too early waits until it has signed in */
            break;
        }
        if (size < 4 || size > HR_WINDOW_BYTES) {
            *next = hr_pg_violation(session,
                                    "headgate: invalid length of a message while signing in");
            return length;
        }
        pg->pass_left = size + 1;
        if (bytes[at] == 'X') {
            at += length - at < pg->pass_left ? length - at : pg->pass_left;
            *next = HR_CLOSE;
            break;
        }
    }
    hr_emit(session, HR_SERVER, bytes, at);
    return at;
}

static size_t feed_client(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    switch (session->pg.phase) {
    case HR_PG_GREETED:
        return hr_pg_greet(session, bytes, length, next);
    case HR_PG_OPEN:
        return hr_pg_client(session, bytes, length, next);
    case HR_PG_SIGNING_IN:
        return sign_in(session, bytes, length, next);
    case HR_PG_RAW:
        return pass_all(session, HR_SERVER, bytes, length);
    case HR_PG_CANCEL_SENT:
    case HR_PG_LEAVING:
        return length;
    case HR_PG_ENDED:
        *next = HR_CLOSE;
        return length;
    default: /* before there is a server that could read it */
        *next = HR_LATER;
        return 0;
    }
}

static size_t feed_server(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    switch (session->pg.phase) {
    case HR_PG_SIGNING_IN:
    case HR_PG_OPEN:
    case HR_PG_LEAVING:
        return hr_pg_server(session, bytes, length, next);
    case HR_PG_RAW:
        return pass_all(session, HR_CLIENT, bytes, length);
    case HR_PG_ASKING_TLS:
        return hr_pg_server_tls(session, bytes, length, next);
    default:
        return length; /* it has nothing to say here */
    }
}

static size_t feed(hr_session *session, hr_end from, const uint8_t *bytes, size_t length,
                   hr_next *next)
{
    *next = HR_MORE;
    if (from == HR_CLIENT)
        return feed_client(session, bytes, length, next);
    return feed_server(session, bytes, length, next);
}

/* Whether the client can be sent an error now: it expects messages, and is at the end of one. */
static bool may_tell(const hr_session *session, hr_lost why)
{
    const hr_pg *pg = &session->pg;

    if (why == HR_LOST_CLIENT || pg->cancels || pg->server_pass_left > 0)
        return false;
    if (why == HR_LOST_SERVER && pg->told_fatal)
        return false;
    if (pg->phase == HR_PG_GREETED)
        return why != HR_LOST_STARTUP; /* as the server, which says nothing to who says nothing */
    return pg->phase != HR_PG_SHAKING && pg->phase != HR_PG_LEAVING && pg->phase != HR_PG_RAW
           && pg->phase != HR_PG_ENDED;
}

static void lost(hr_session *session, hr_lost why)
{
    char message[512];
    hr_pg_said said = {'E', "FATAL", hr_code_of_loss[why].sqlstate, message, NULL, NULL};

    if (may_tell(session, why)) {
        hr_words_of_loss(session, why, message, sizeof message);
        hr_pg_say(session, &said);
    }
    if (!session->stopping)
        hr_pg_finish_all(session);
    session->pg.phase = HR_PG_ENDED;
}

/* As a client would write it, whose the key is. */
static size_t cancel(const hr_session *session, uint8_t packet[HR_CANCEL_BYTES])
{
    const hr_pg *pg = &session->pg;
    uint32_t head[4] = {(uint32_t) (12 + session->cancel_key_length), HR_PG_CANCEL_CODE,
                        session->server_process, 0};

    if ((pg->phase != HR_PG_OPEN && pg->phase != HR_PG_LEAVING && !session->stopping)
        || pg->unit_count == 0 || session->cancel_key_length == 0)
        return 0;
    for (size_t i = 0; i < 12; i++)
        packet[i] = (uint8_t) (head[i / 4] >> (24 - 8 * (i % 4)));
    memcpy(packet + 12, session->cancel_key, session->cancel_key_length);
    return 12u + session->cancel_key_length;
}

static bool at_rest(const hr_session *session)
{
    const hr_pg *pg = &session->pg;

    return pg->phase == HR_PG_OPEN && pg->status == 'I' && pg->unit_count == 0 && pg->sent == 0
           && pg->skip_until_sync == HR_PG_SKIP_NOTHING && !pg->copying_in
           && pg->pending_error == NULL && pg->pass_left == 0 && pg->drop_left == 0
           && pg->server_pass_left == 0 && pg->server_drop_left == 0;
}

static bool in_transaction(const hr_session *session)
{
    const hr_pg *pg = &session->pg;

    if (pg->phase != HR_PG_OPEN)
        return pg->phase == HR_PG_RAW || pg->phase == HR_PG_LEAVING;
    return pg->status != 'I' || pg->unit_count > 0 || pg->sent > 0;
}

static void free_machine(hr_session *session)
{
    hr_pg_finish_all(session);
    hr_pg_effects_drop(session, true);
    hr_pg_names_free(session);
    hr_pg_start_free(session);
    free(session->pg.pending_error);
    session->pg.pending_error = NULL;
}

const hr_machine hr_pg_machine = {
    .init = init,
    .feed = feed,
    .connected = hr_pg_connected,
    .secured = hr_pg_secured,
    .lost = lost,
    .at_rest = at_rest,
    .in_transaction = in_transaction,
    .named = hr_pg_named,
    .cancel = cancel,
    .settled = hr_pg_finish_all,
    .free = free_machine,
};
