/*
 * pg_start.c: how a session begins.
 *
 *   client ──[GSSENCRequest ► N] [SSLRequest ► S, TLS | N] StartupMessage──► (kept)
 *   connect ──[SSLRequest ► S, TLS | N]──► server, then what was kept; both ends sign in directly
 *
 * What a client sent in clear behind its request for TLS is never taken for TLS's, nor is what a server
 * sent behind its S (CVE-2021-23222): such a session ends.
 */
#include "pg_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TLS_CODE 80877103u
#define GSS_CODE 80877104u
#define TLS_HANDSHAKE 0x16 /* the first byte of a client that begins with TLS */
#define MAX_CANCEL_KEY_BYTES 256u

static hr_next fail(hr_session *session, const char *sqlstate, const char *message,
                    const char *hint)
{
    hr_pg_said said = {'E', "FATAL", sqlstate, message, NULL, hint};

    hr_pg_say(session, &said);
    session->pg.phase = HR_PG_ENDED;
    return HR_CLOSE;
}

static hr_next violate(hr_session *session, const char *message)
{
    hg_add_own(&session->thread->counts->protocol_errors, 1);
    return fail(session, "08P01", message,
                "The client does not speak the Postgres protocol as it should.");
}

/* ── What is kept until there is a server ─────────────────────────────────── */

static hr_next keep(hr_session *session, const uint8_t *packet, size_t length)
{
    hr_pg *pg = &session->pg;

    pg->startup = malloc(length);
    if (pg->startup == NULL)
        return fail(session, "53200", "headgate: no memory for this session",
                    "Connect again later.");
    memcpy(pg->startup, packet, length);
    pg->startup_length = (uint16_t) length;
    pg->phase = HR_PG_CONNECTING;
    return HR_CONNECT;
}

static hr_next send_kept(hr_session *session)
{
    hr_pg *pg = &session->pg;

    for (size_t at = 0; at < pg->startup_length;) {
        size_t piece = pg->startup_length - at < 8192u ? pg->startup_length - at : 8192u;
        void *scratch = hr_scratch(session, piece);

        memcpy(scratch, pg->startup + at, piece);
        hr_emit(session, HR_SERVER, scratch, piece);
        at += piece;
    }
    hr_pg_start_free(session);
    pg->phase = pg->cancels ? HR_PG_CANCEL_SENT : HR_PG_SIGNING_IN;
    return HR_MORE;
}

void hr_pg_start_free(hr_session *session)
{
    free(session->pg.startup);
    session->pg.startup = NULL;
}

/* ── The client's packets ─────────────────────────────────────────────────── */

static hr_next want_tls(hr_session *session)
{
    hr_pg *pg = &session->pg;
    bool offered = session->client_tls_mode != 0;

    if (pg->asked_tls || session->side[HR_CLIENT].tls != NULL)
        return violate(session, "headgate: TLS was requested a second time");
    pg->asked_tls = true;
    hr_emit(session, HR_CLIENT, offered ? "S" : "N", 1);
    if (!offered)
        return HR_MORE;
    pg->phase = HR_PG_SHAKING;
    return HR_CLIENT_TLS;
}

/* The server's own would say yes or no in the client's stead, and there is but one answer here: the
 * client goes on with TLS or without anything. */
static hr_next want_gss(hr_session *session)
{
    if (session->pg.asked_gss)
        return violate(session, "headgate: GSSAPI encryption was requested a second time");
    session->pg.asked_gss = true;
    hr_emit(session, HR_CLIENT, "N", 1);
    return HR_MORE;
}

/* Its own connection, which says nothing else. Sent in clear even where TLS is required, as libpq
 * before 17 does, and the server itself takes it. */
static hr_next want_cancel(hr_session *session, const uint8_t *packet, size_t length)
{
    uint32_t process = hr_pg_u32(packet + 8);
    size_t key_length = length - 12;
    bool forward = true;

    hg_add_own(&session->thread->counts->cancels, 1);
    session->pg.cancels = true;
    if (key_length > sizeof session->cancel_key)
        key_length = sizeof session->cancel_key;
    if (!hr_cancel_find(session->thread->relay, process, packet + 12, key_length, &session->target,
                        &session->target_id, &forward))
        session->target_id
            = 0; /* not ours: where new sessions go, for a session from before a restart */
    else if (!forward) {
        session->pg.phase = HR_PG_ENDED;
        return HR_CLOSE;
    }
    return keep(session, packet, length);
}

/* ── StartupMessage ───────────────────────────────────────────────────────── */

typedef struct parameters {
    const char *user, *database, *application;
} parameters;

/* As the server reads a boolean, or the word database. */
static bool is_replication(const char *value)
{
    static const char *const no[] = {"false", "off", "no", "0",   "f",
                                     "n",     "of",  "fa", "fal", "fals"};

    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (strcasecmp(value, no[i]) == 0)
            return false;
    return true;
}

static void take_parameter(hr_session *session, parameters *taken, const char *name,
                           const char *value)
{
    hr_gate_attribute(session, name, strlen(name), value, strlen(value));
    if (strcmp(name, "user") == 0)
        taken->user = value;
    else if (strcmp(name, "database") == 0)
        taken->database = value;
    else if (strcmp(name, "options") == 0)
        hr_pg_tell_options(session, value);
    else if (strcmp(name, "replication") == 0)
        session->pg.replication = is_replication(value);
    else {
        if (strcmp(name, "application_name") == 0)
            taken->application = value;
        hr_gate_variable(session, name, strlen(name), value, strlen(value));
    }
}

/* name NUL value NUL … NUL. False: it is not so. */
static bool take_parameters(hr_session *session, parameters *taken, const char *at, const char *end)
{
    while (at < end && *at != '\0') {
        const char *name_end = memchr(at, '\0', (size_t) (end - at));
        const char *value = name_end == NULL ? end : name_end + 1;
        const char *value_end = value >= end ? NULL : memchr(value, '\0', (size_t) (end - value));

        if (value_end == NULL)
            return false;
        take_parameter(session, taken, at, value);
        at = value_end + 1;
    }
    return at + 1 == end;
}

static hr_next want_session(hr_session *session, const uint8_t *packet, size_t length)
{
    uint32_t version = hr_pg_u32(packet + 4);
    parameters taken = {NULL, NULL, NULL};
    char message[128];

    if (version >> 16 != 3) {
        snprintf(message, sizeof message,
                 "headgate: unsupported frontend protocol %u.%u: only 3 is spoken", version >> 16,
                 version & 0xffff);
        hg_add_own(&session->thread->counts->protocol_errors, 1);
        return fail(session, "0A000", message, NULL);
    }
    if (session->client_tls_mode == 2 && session->side[HR_CLIENT].tls == NULL)
        return fail(session, "28000", "headgate: this port takes connections with TLS only",
                    "Connect with sslmode=require or stricter.");
    if (!take_parameters(session, &taken, (const char *) packet + 8,
                         (const char *) packet + length))
        return violate(session, "headgate: the start-up packet is not laid out as it should be");
    if (taken.user == NULL || *taken.user == '\0')
        return fail(session, "28000", "headgate: no user name is given in the start-up packet",
                    NULL);
    if (taken.database == NULL || *taken.database == '\0')
        taken.database = taken.user;
    hr_session_names(session, taken.user, taken.database,
                     taken.application == NULL ? "" : taken.application);
    return keep(session, packet, length);
}

/* ── The first bytes ──────────────────────────────────────────────────────── */

static hr_next obey(hr_session *session, const uint8_t *packet, size_t length, bool more_behind)
{
    uint32_t code = hr_pg_u32(packet + 4);

    if (code == HR_PG_CANCEL_CODE) {
        if (length < 16 || length > 12 + MAX_CANCEL_KEY_BYTES)
            return violate(session, "headgate: a cancel request of the wrong length");
        return want_cancel(session, packet, length);
    }
    if (code != TLS_CODE && code != GSS_CODE)
        return want_session(session, packet, length);
    if (length != 8)
        return violate(session, "headgate: a request for encryption of the wrong length");
    if (more_behind)
        return violate(session,
                       "headgate: received unencrypted data after a request for encryption");
    return code == TLS_CODE ? want_tls(session) : want_gss(session);
}

static hr_next direct_tls(hr_session *session)
{
    if (session->client_tls_mode == 0) {
        session->pg.phase = HR_PG_ENDED; /* nothing that we could say would be understood */
        return HR_CLOSE;
    }
    session->pg.phase = HR_PG_SHAKING;
    return HR_CLIENT_TLS_DIRECT;
}

size_t hr_pg_greet(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_pg *pg = &session->pg;
    uint32_t said;

    if (length > 0 && bytes[0] == TLS_HANDSHAKE && !pg->asked_tls && !pg->asked_gss
        && session->side[HR_CLIENT].tls == NULL) {
        *next = direct_tls(session);
        return 0;
    }
    if (length < 8) {
        if (length >= 4 && (hr_pg_u32(bytes) < 8 || hr_pg_u32(bytes) > HR_PG_SMALL_BYTES))
            *next = violate(session, "headgate: invalid length of the start-up packet");
        return *next == HR_CLOSE ? length : 0;
    }
    said = hr_pg_u32(bytes);
    if (said < 8 || said > HR_PG_SMALL_BYTES) {
        *next = violate(session, "headgate: invalid length of the start-up packet");
        return length;
    }
    if (length < said)
        return 0;
    *next = obey(session, bytes, said, length > said);
    return *next == HR_CLOSE ? length : said;
}

/* ── The server's side ────────────────────────────────────────────────────── */

hr_next hr_pg_connected(hr_session *session)
{
    static const char request[] = "\0\0\0\10\4\xd2\x16\x2f";

    if (session->server_tls_mode == 0)
        return send_kept(session);
    hr_emit(session, HR_SERVER, request, 8);
    session->pg.phase = HR_PG_ASKING_TLS;
    return HR_MORE;
}

/* One byte. An error in its place is not relayed: nobody vouches for who wrote it, and what follows it
 * would be talked to in clear. */
size_t hr_pg_server_tls(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    if (length == 0)
        return 0;
    if (bytes[0] == 'S' && length == 1) {
        session->pg.phase = HR_PG_SHAKING_SERVER;
        *next = HR_SERVER_TLS;
    } else if (bytes[0] == 'N' && length == 1 && session->server_tls_mode == 1) {
        *next = send_kept(session);
    } else if (bytes[0] == 'N') {
        *next = fail(session, "08006",
                     "headgate: the server does not offer TLS, which its target requires",
                     "Switch ssl on in the server, or set the target's TLS mode to prefer or off.");
    } else if (bytes[0] == 'E') {
        *next = fail(session, "08006",
                     "headgate: the server answered the request for TLS with an error",
                     "Connect again later; the server's log says why.");
    } else {
        *next = fail(session, "08P01",
                     "headgate: the server has answered the request for TLS wrongly", NULL);
    }
    return length;
}

hr_next hr_pg_secured(hr_session *session, hr_end end)
{
    if (end == HR_SERVER)
        return send_kept(session);
    session->pg.phase = HR_PG_GREETED;
    return HR_MORE;
}
