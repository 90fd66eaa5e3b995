/*
 * pg_server.c: what the server says, on its way to the client.
 *
 * Rows are most of it, and of them the headers alone are looked at. All is passed on as one slice of
 * what was fed; only where something of our own comes between (a notice), or in the place of a message
 * (the error of an invalid Bind), the slice is cut. A header that is not all there waits, so whenever nothing
 * is left of a message the client is at a message's end, too.
 */
#include "pg_inside.h"

#include <string.h>

#define AUTH_OK 0u
#define AUTH_PASSWORD 3u
#define AUTH_SASL 10u
#define LOOKED_AT_BYTES                                                                            \
    8192u /* of a ParameterStatus or what signing in says; of more the rest just passes */

typedef struct answer {
    hr_session *session;
    hr_pg *pg;
    const uint8_t *bytes;
    size_t length;
    size_t at;   /* the message that is looked at */
    size_t sent; /* emitted, or dropped, up to here */
    hr_next next;
} answer;

static void pass_on(answer *a)
{
    hr_emit(a->session, HR_CLIENT, a->bytes + a->sent, a->at - a->sent);
    a->sent = a->at;
}

/* ── What a message ends ──────────────────────────────────────────────────── */

/* Whether the answer to a Query or FunctionCall is under way, and not to messages before it. */
static hr_pg_unit *simple_unit(hr_pg *pg)
{
    hr_pg_unit *first = pg->unit_count == 0 ? NULL : hr_pg_unit_at(pg, 0);

    if (first == NULL || (first->kind != HR_PG_UNIT_QUERY && first->kind != HR_PG_UNIT_CALL))
        return NULL;
    return pg->answered >= first->at ? first : NULL;
}

/* What has come to the front is sent before its answer; what has ended in the middle goes. */
static void bring_forward(answer *a)
{
    hr_pg *pg = a->pg;
    hr_pg_unit *first;

    hr_pg_tidy(a->session);
    if (pg->unit_count == 0)
        return;
    first = hr_pg_unit_at(pg, 0);
    if (first->pending == NULL || first->kind == HR_PG_UNIT_INVALID_BIND)
        return;
    pass_on(a);
    hr_pg_say_kept(a->session, &first->pending);
}

static void end_portal(answer *a, uint32_t number)
{
    hr_pg *pg = a->pg;

    for (uint32_t i = 0; i < pg->unit_count; i++) {
        hr_pg_unit *unit = hr_pg_unit_at(pg, i);

        if (unit->kind >= HR_PG_UNIT_QUERY)
            return;
        if (unit->ends_at == number) {
            hr_pg_finish(a->session, unit, false);
            return;
        }
    }
}

/* A Sync that the server read as part of COPY's data: the segment of the client's ends without a word. */
static void end_ignored(hr_session *session)
{
    hr_pg *pg = &session->pg;

    while (pg->unit_count > 0 && hr_pg_unit_at(pg, 0)->ignored) {
        hr_pg_pop(session);
        hr_pg_statements_settle(session, false);
        hr_pg_effects_drop(session, false);
        pg->server_segment++;
        pg->answered = pg->parsed = 0;
    }
}

/* CommandComplete, EmptyQueryResponse, PortalSuspended: of the latter two the tag is empty. */
static void on_complete(answer *a, const char *tag)
{
    hr_pg *pg = a->pg;
    hr_pg_unit *simple = simple_unit(pg);

    hr_pg_effect(a->session, tag, simple != NULL ? pg->stated : pg->answered);
    if (simple != NULL) {
        if (!simple->eaten)
            hr_pg_complete_statement(pg, tag);
        if (simple->ticket != 0)
            hr_step(a->session, simple->ticket, false);
        return;
    }
    pg->copying_in = false;
    end_portal(a, pg->answered++);
    bring_forward(a);
    end_ignored(a->session);
}

/* ── ReadyForQuery ────────────────────────────────────────────────────────── */

/* Everything up to what this ends. While the server skips, that is a Sync. */
static uint8_t end_segment(answer *a)
{
    hr_pg *pg = a->pg;
    uint8_t kind = HR_PG_UNIT_SYNC;

    while (pg->unit_count > 0) {
        hr_pg_unit *unit = hr_pg_unit_at(pg, 0);
        bool ignored = unit->ignored, failed = unit->failed;

        kind = unit->kind;
        hr_pg_finish(a->session, unit, pg->server_skips);
        hr_pg_pop(a->session);
        if (kind >= HR_PG_UNIT_QUERY) {
            hr_pg_statements_settle(a->session, pg->server_skips || failed);
            hr_pg_effects_drop(a->session, false);
            pg->server_segment++;
        }
        if (kind == HR_PG_UNIT_SYNC && !ignored)
            break;
        if (!pg->server_skips && (kind == HR_PG_UNIT_QUERY || kind == HR_PG_UNIT_CALL))
            break;
    }
    pg->answered = pg->parsed = 0;
    pg->server_skips = false;
    return kind;
}

static void on_ready(answer *a, uint8_t status)
{
    hr_pg *pg = a->pg;
    hr_session *session = a->session;
    uint8_t kind;

    pg->status = status;
    if (pg->phase == HR_PG_SIGNING_IN) {
        pg->phase = pg->replication ? HR_PG_RAW : HR_PG_OPEN;
        session->established = true;
        return;
    }
    pg->copying_in = false;
    kind = end_segment(a);
    hr_pg_settle_transaction(pg, kind);
    if (status == 'I' && pg->unit_count == 0 && pg->sent == 0)
        hr_pg_portals_drop(session);
    bring_forward(a);
}

/* ── ErrorResponse ────────────────────────────────────────────────────────── */

static bool is_fatal(const uint8_t *body, size_t length)
{
    /* The severity that is never translated is the second field. */
    size_t look = length < 64 ? length : 64;

    return memmem(body, look, "VFATAL", 7) != NULL || memmem(body, look, "VPANIC", 7) != NULL;
}

/* The error of our own Bind, in whose place the client gets ours. */
static bool is_invalid_bind(hr_pg *pg)
{
    hr_pg_unit *first = pg->unit_count == 0 ? NULL : hr_pg_unit_at(pg, 0);

    return first != NULL && first->kind == HR_PG_UNIT_INVALID_BIND && !pg->server_skips
           && pg->answered == first->at;
}

static void drop_message(answer *a, uint32_t total)
{
    size_t there = a->length - a->at;
    size_t here = total < there ? total : there;

    pass_on(a);
    a->at += here;
    a->sent = a->at;
    a->pg->server_drop_left = (uint32_t) (total - here);
}

static void say_block(answer *a)
{
    static const hr_pg_said plain = {
        'E', "ERROR", "53000", "headgate: this statement is blocked", NULL, "Retry later."};
    hr_pg_unit *invalid = hr_pg_unit_at(a->pg, 0);

    if (invalid->silent)
        return;
    if (invalid->pending != NULL)
        hr_pg_say_kept(a->session, &invalid->pending);
    else
        hr_pg_say(a->session, &plain);
}

/* The first has failed; the others the server will never look at, which costs it nothing. */
static void fail_segment(hr_session *session)
{
    hr_pg *pg = &session->pg;

    for (uint32_t i = 0; i < pg->unit_count; i++) {
        hr_pg_unit *unit = hr_pg_unit_at(pg, i);

        if (unit->kind == HR_PG_UNIT_SYNC && !unit->ignored)
            return;
        hr_pg_finish(session, unit, true);
    }
}

/* Returns whether the message is not to be passed on. */
static bool on_error(answer *a, const uint8_t *body, size_t there, uint32_t total)
{
    hr_pg *pg = a->pg;
    hr_pg_unit *simple = simple_unit(pg);
    bool invalid = is_invalid_bind(pg);

    pg->copying_in = false;
    if (pg->phase == HR_PG_SIGNING_IN || is_fatal(body, there)) {
        pg->told_fatal = true;
        return false;
    }
    if (simple != NULL) {
        simple->failed = true;
        hr_pg_fail_statement(pg);
        if (simple->hidden && pg->unit_count > 1)
            hr_pg_unit_at(pg, 1)->silent = true;
        return false;
    }
    if (invalid) {
        drop_message(a, total);
        say_block(a);
    }
    hr_pg_statements_settle(a->session, true);
    hr_pg_effects_drop(a->session, false);
    fail_segment(a->session);
    pg->server_skips = true;
    return invalid;
}

/* ── Other messages ───────────────────────────────────────────────────────── */

/* From here on the server reads data, and every Sync that the client has sent without knowing it (libpq
 * does, behind each Execute) is part of that, and not answered. A client that knew has perhaps ended its
 * data already. */
static void on_copy_in(hr_pg *pg)
{
    pg->copying_in = !pg->data_ended;
    for (uint32_t i = 0; i < pg->unit_count; i++) {
        hr_pg_unit *unit = hr_pg_unit_at(pg, i);

        if (i > 0 && (unit->kind == HR_PG_UNIT_QUERY || unit->kind == HR_PG_UNIT_CALL))
            return;
        if (unit->kind == HR_PG_UNIT_SYNC && unit->data_ended) {
            pg->copying_in = false;
            return;
        }
        unit->ignored = unit->kind == HR_PG_UNIT_SYNC;
    }
}

static void on_parameter(hr_session *session, const uint8_t *body, size_t length)
{
    const char *name = (const char *) body;
    const char *name_end = memchr(body, '\0', length);
    const char *value = name_end == NULL ? NULL : name_end + 1;
    size_t left = value == NULL ? 0 : length - (size_t) (value - name);

    if (left == 0 || memchr(value, '\0', left) == NULL)
        return;
    if (strcmp(name, "application_name") == 0)
        hr_session_names(session, NULL, NULL, value);
    else if (strcmp(name, "standard_conforming_strings") == 0)
        session->gate.odd_quotes = strcmp(value, "off") == 0;
    else if (strcmp(name, "session_authorization") == 0 && session->established)
        hr_session_names(session, value, NULL,
                         NULL); /* the user that a superuser took over: as in the extension */
    hr_gate_variable(session, name, (size_t) (name_end - name), value, strlen(value));
}

static void on_key(hr_session *session, const uint8_t *body, size_t length)
{
    size_t key_length = length - 4;

    if (length < 8)
        return;
    if (key_length > sizeof session->cancel_key)
        key_length = sizeof session->cancel_key;
    session->server_process = hr_pg_u32(body);
    memcpy(session->cancel_key, body + 4, key_length);
    session->cancel_key_length = (uint8_t) key_length;
}

/* AuthenticationSASL, to a client in clear whose server talks TLS. Binding a password to the channel is
 * offered for the server's side only, and libpq takes that for an attack: so it is left out, and the
 * client says that it knows of no channel, as is true. Whether the message was written again. */
static bool say_sasl(answer *a, const uint8_t *body, size_t there, uint32_t total)
{
    static const char bound[] = "SCRAM-SHA-256-PLUS"; /* with its end, as it is in the list */
    const uint8_t *found;
    uint8_t *said;

    if (a->session->side[HR_CLIENT].tls != NULL || a->session->side[HR_SERVER].tls == NULL
        || there < 4 || there + HR_PG_HEADER_BYTES != total || total > LOOKED_AT_BYTES
        || hr_pg_u32(body) != AUTH_SASL)
        return false;
    found = memmem(body + 4, there - 4, bound, sizeof bound);
    if (found == NULL || (found > body + 4 && found[-1] != '\0'))
        return false;
    drop_message(a, total);
    total -= (uint32_t) sizeof bound;
    said = hr_scratch(a->session, total);
    said[0] = 'R';
    for (int i = 0; i < 4; i++)
        said[1 + i] = (uint8_t) ((total - 1) >> (24 - 8 * i));
    memcpy(said + HR_PG_HEADER_BYTES, body, (size_t) (found - body));
    memcpy(said + HR_PG_HEADER_BYTES + (found - body), found + sizeof bound,
           there - sizeof bound - (size_t) (found - body));
    hr_emit(a->session, HR_CLIENT, said, total);
    return true;
}

/* AuthenticationOk: whose session it is, is sure now. Whether there is no room for one more, and it ends. */
static bool is_crowded(answer *a, const uint8_t *body, size_t there)
{
    if (there < 4 || hr_pg_u32(body) != AUTH_OK || hr_user_proved(a->session))
        return false;
    pass_on(a);
    a->next = HR_CROWDED;
    return true;
}

/* AuthenticationCleartextPassword, to a client that sees TLS, of a server that has none. */
static bool is_bared(answer *a, const uint8_t *body, size_t there)
{
    static const hr_pg_said said = {
        'E',
        "FATAL",
        "28000",
        "headgate: the server asks for the password in clear, and the way from the proxy "
        "to it is not encrypted",
        NULL,
        "Give the server tls in the proxy's settings, or let pg_hba.conf ask for scram-sha-256."};

    if (there < 4 || hr_pg_u32(body) != AUTH_PASSWORD || !hr_bares_passwords(a->session))
        return false;
    pass_on(a);
    hr_pg_say(a->session, &said);
    a->pg->phase = HR_PG_ENDED;
    a->next = HR_CLOSE;
    return true;
}

/* Messages of a few bytes, which are looked at once they are there whole. */
static bool is_short(uint8_t type)
{
    switch (type) {
    case '1':
    case '2':
    case '3':
    case 'C':
    case 'I':
    case 'K':
    case 'Z':
    case 'n':
    case 's':
        return true;
    default:
        return false;
    }
}

/* Of the body, how much must be there before the message is looked at. */
static size_t needed(uint8_t type, uint32_t body)
{
    if (is_short(type))
        return body;
    if (type == 'S' || type == 'R')
        return body < LOOKED_AT_BYTES ? body : LOOKED_AT_BYTES;
    return type != 'E' ? 0 : body < 64 ? body : 64;
}

static bool is_sound(uint8_t type, uint32_t size)
{
    if (size < 4 || size > HR_PG_LARGE_BYTES || (type == 'Z' && size != 5))
        return false;
    return size <= LOOKED_AT_BYTES || !is_short(type);
}

/* ── Messages ─────────────────────────────────────────────────────────────── */

/* Passes the message at a->at on, as far as it is there. */
static void pass_message(answer *a, uint32_t total)
{
    size_t there = a->length - a->at;

    if (total <= there) {
        a->at += total;
        return;
    }
    a->at = a->length;
    a->pg->server_pass_left = (uint32_t) (total - there);
}

/* Before it is passed on. Returns whether it is not to be. */
static bool look_before(answer *a, uint8_t type, const uint8_t *body, size_t there, uint32_t total)
{
    switch (type) {
    case 'E':
        return on_error(a, body, there, total);
    case 'S':
        on_parameter(a->session, body, there);
        return false;
    case 'R':
        return a->pg->phase == HR_PG_SIGNING_IN
               && (is_crowded(a, body, there) || is_bared(a, body, there)
                   || say_sasl(a, body, there, total));
    case 'K':
        if (a->pg->phase == HR_PG_SIGNING_IN)
            on_key(a->session, body, there);
        return false;
    case 'G':
    case 'W':
        on_copy_in(a->pg);
        return false;
    default:
        return false;
    }
}

/* Once it has been passed on: a notice may come behind it. */
static void look_after(answer *a, uint8_t type, const char *tag, uint8_t status)
{
    switch (type) {
    case 'Z':
        on_ready(a, status);
        return;
    case 'C':
    case 'I':
    case 's':
        on_complete(a, tag);
        return;
    case '1':
        a->pg->parsed++;
        a->pg->answered++;
        return;
    case '2':
    case '3':
    case 'n':
        a->pg->answered++;
        return;
    case 'T': /* may be long, and not all here: nothing comes behind it */
        if (simple_unit(a->pg) == NULL)
            a->pg->answered++;
        return;
    default:
        return;
    }
}

/* Whether the server is past what was bound and let go. */
static void look_at_planned(const answer *a)
{
    const hr_pg *pg = a->pg;

    if (pg->planned != 0
        && (pg->server_segment != pg->planned_segment || pg->answered > pg->planned_at
            || pg->server_skips))
        hr_pg_planned(a->session);
}

/* Of a Query that is not the client's. */
static bool is_ours(hr_pg *pg, uint8_t type)
{
    hr_pg_unit *first = pg->unit_count == 0 ? NULL : hr_pg_unit_at(pg, 0);

    return first != NULL && first->hidden && (type == 'Z' || (type == 'C' && first->eaten));
}

static bool one_message(answer *a, uint8_t type, uint32_t size)
{
    const uint8_t *body = a->bytes + a->at + HR_PG_HEADER_BYTES;
    size_t there = a->length - a->at - HR_PG_HEADER_BYTES;
    const char *tag = "";
    uint8_t status;

    if (!is_sound(type, size)) {
        pass_on(a);
        a->next = hr_pg_violation(a->session,
                                  "headgate: the server has sent a message that is none");
        return false;
    }
    if (there < needed(type, size - 4))
        return false;
    if (there > size - 4)
        there = size - 4;
    status = type == 'Z' ? body[0] : 0;
    if (type == 'C' && there > 0 && body[there - 1] == '\0')
        tag = (const char *) body;
    if (look_before(a, type, body, there, size + 1))
        return a->next == HR_MORE;
    if (is_ours(a->pg, type))
        drop_message(a, size + 1);
    else
        pass_message(a, size + 1);
    look_after(a, type, tag, status);
    look_at_planned(a);
    return a->pg->phase != HR_PG_RAW;
}

/* The rest of a message whose beginning came before. */
static void go_on(answer *a)
{
    hr_pg *pg = a->pg;
    size_t here;

    if (pg->server_pass_left > 0) {
        here = pg->server_pass_left < a->length ? pg->server_pass_left : a->length;
        pg->server_pass_left -= (uint32_t) here;
        a->at = here;
    } else if (pg->server_drop_left > 0) {
        here = pg->server_drop_left < a->length ? pg->server_drop_left : a->length;
        pg->server_drop_left -= (uint32_t) here;
        a->at = a->sent = here;
    }
}

/* Whether the server had sent all that it had when that was the last message. */
static bool is_end(uint8_t type)
{
    return type == 'C' || type == 'I' || type == 's' || type == 'Z';
}

size_t hr_pg_server(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    answer a = {.session = session, .pg = &session->pg, .bytes = bytes, .length = length};
    uint8_t type = 0;

    go_on(&a);
    while (a.length - a.at >= HR_PG_HEADER_BYTES) {
        uint32_t size = hr_pg_u32(bytes + a.at + 1);

        type = bytes[a.at];

        /* Rows and COPY data: millions a second. */
        if ((type == 'D' || type == 'd') && size >= 4 && size <= HR_PG_LARGE_BYTES) {
            pass_message(&a, size + 1);
            continue;
        }
        if (!one_message(&a, type, size))
            break;
    }
    if (session->pg.phase == HR_PG_RAW)
        a.at = length;
    pass_on(&a);
    hr_measured(session, a.at == length && is_end(type));
    *next = a.next;
    return a.at;
}
