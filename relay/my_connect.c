/*
 * my_connect.c: how a session begins.
 *
 *   server ── greeting ──► what we do not handle is masked; TLS as the listener says ──► client
 *   client ── [SSLRequest, TLS] response ──► [our SSLRequest, TLS] ──► server
 *   server ⇄ client: the plugins' exchange, opaque, until OK or ERR
 *
 * TLS costs one packet: where one side alone has it, packets are numbered again until the end of the
 * authentication. COM_CHANGE_USER has the same exchange without that.
 */
#include "my_inside.h"

#include <stdio.h>

static const char sha2_plugin[] = "caching_sha2_password";

/* Those whose clients never send a password as it is, with TLS or without; or it is my_sha2.c's. */
static const char *const hiding_plugins[] = {
    "",
    "mysql_native_password",
    "mysql_old_password",
    sha2_plugin,
    "client_ed25519",
    "parsec",
    "auth_gssapi_client",
    "authentication_kerberos_client",
    "authentication_ldap_sasl_client",
    "authentication_windows_client",
    "authentication_fido_client",
    "authentication_webauthn_client",
};

static void note_plugin(hr_session *session, const char *plugin)
{
    session->my.by_sha2 = strcmp(plugin, sha2_plugin) == 0;
    session->my.bare = true;
    for (size_t i = 0; i < sizeof hiding_plugins / sizeof *hiding_plugins; i++)
        if (strcmp(plugin, hiding_plugins[i]) == 0)
            session->my.bare = false;
}

bool my_bares_password(const hr_session *session)
{
    return session->my.bare && hr_bares_passwords(session);
}

hr_next my_reject_bare(hr_session *session, uint8_t seq)
{
    return my_fail(
        session, seq, 1045, "28000",
        "headgate: this user's plugin may send the password as it is, "
        "and the way from the proxy to the server is not encrypted; give the server tls in the "
        "proxy's settings");
}

static uint32_t capabilities_of(const uint8_t *response)
{
    return (uint32_t) response[0] | (uint32_t) response[1] << 8 | (uint32_t) response[2] << 16
           | (uint32_t) response[3] << 24;
}

static bool has_tls(const hr_session *session, hr_end end)
{
    return session->side[end].tls != NULL;
}

/* ── The greeting ─────────────────────────────────────────────────────────── */

/* Where in a greeting the lower half of the capabilities is; 0: it is malformed. */
static size_t capabilities_at(const uint8_t *payload, size_t length, uint32_t *thread)
{
    my_reader reader = my_read(payload, length);
    size_t ignored, at;

    my_fixed(&reader, 1);
    my_text(&reader, &ignored); /* version */
    *thread = (uint32_t) my_fixed(&reader, 4);
    my_take(&reader, 9);        /* scramble, and a zero */
    at = (size_t) (reader.at - payload);
    my_take(&reader, 2 + 1 + 2 + 2 + 1 + 10);
    return reader.bad ? 0 : at;
}

/* What the proxy cannot follow is not offered. Whether there is TLS is the listener's to say. */
static void mask_greeting(hr_session *session, uint8_t *payload, size_t at)
{
    hr_my *my = &session->my;
    uint8_t *also = payload + at + 14;
    uint32_t can, extended;

    can = payload[at] | (uint32_t) payload[at + 1] << 8 | (uint32_t) payload[at + 5] << 16
          | (uint32_t) payload[at + 6] << 24;
    my->can = can; /* the server's, until the client has chosen */
    my->status = (uint16_t) (payload[at + 3] | payload[at + 4] << 8);
    extended = (can & MY_CAN_MYSQL) != 0 ? 0 : (also[0] & MY_ALSO_KNOWN);
    my->extended = (uint8_t) extended;
    can &= ~(uint32_t) (MY_CAN_NOT | MY_CAN_SSL);
    if (session->client_tls_mode != 0)
        can |= MY_CAN_SSL;
    my_put(payload + at, can, 2);
    my_put(payload + at + 5, can >> 16, 2);
    if ((can & MY_CAN_MYSQL) == 0)
        my_put(also, extended, 4);
}

/* Only where it may be needed: sides that may differ in TLS. */
static void keep_scramble(hr_session *session, const uint8_t *first, const uint8_t *rest,
                          size_t rest_length)
{
    hr_my_more *more;

    if (session->client_tls_mode == 0 && session->server_tls_mode == 0)
        return;
    more = rest_length < MY_SCRAMBLE - 8 ? NULL : my_more(session);
    if (more == NULL)
        return;
    memcpy(more->scramble, first, 8);
    memcpy(more->scramble + 8, rest, MY_SCRAMBLE - 8);
}

static void pass_greeting(hr_session *session, const uint8_t *packet, size_t length, hr_next *next)
{
    const uint8_t *payload = packet + MY_HEADER;
    uint32_t thread = 0;
    size_t at = capabilities_at(payload, length, &thread);
    uint8_t *copy;

    if (payload[0] == 0xff) { /* too many connections, host blocked … : the server's own words */
        hr_emit(session, HR_CLIENT, packet, MY_HEADER + length);
        *next = HR_CLOSE;
        return;
    }
    if (payload[0] != 10 || at == 0 || (payload[at + 1] & MY_CAN_PROTOCOL_41 >> 8) == 0) {
        *next = my_fail(session, 0, 1043, NULL,
                        "headgate: the server's greeting is not that of a MySQL or MariaDB server "
                        "(protocol 10); look at the target's address");
        return;
    }
    copy = hr_scratch(session, MY_HEADER + length);
    memcpy(copy, packet, MY_HEADER + length);
    mask_greeting(session, copy + MY_HEADER, at);
    hr_emit(session, HR_CLIENT, copy, MY_HEADER + length);
    keep_scramble(session, payload + at - 9, payload + at + 18, length - at - 18);
    session->server_process = thread;
    session->my.phase = MY_RESPONSE;
    session->my.client_seq = packet[3];
}

size_t my_greeting(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    uint32_t size;

    if (length < MY_HEADER)
        return 0;
    size = my_length(bytes);
    if (size == 0 || size > 4096) {
        *next = my_fail(
            session, 0, 1043, NULL,
            "headgate: what the server sent is no greeting; look at the target's address");
        return length;
    }
    if (length < MY_HEADER + size)
        return 0;
    pass_greeting(session, bytes, size, next);
    return MY_HEADER + size;
}

/* ── The client's response ────────────────────────────────────────────────── */

static void copy_text(char *to, size_t room, const char *from, size_t length)
{
    if (length >= room)
        length = room - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

/* Connection attributes; program_name is the application. */
static bool read_attributes(hr_session *session, my_reader *reader, char *application, size_t room,
                            bool apply)
{
    size_t length = 0, name_length, value_length;
    const char *all = my_string(reader, &length);
    my_reader pairs = my_read((const uint8_t *) (all == NULL ? "" : all), length);

    while (pairs.at < pairs.end && !pairs.bad) {
        const char *name = my_string(&pairs, &name_length);
        const char *value = my_string(&pairs, &value_length);

        if (pairs.bad)
            break;
        if (name_length == 12 && memcmp(name, "program_name", 12) == 0)
            copy_text(application, room, value, value_length);
        if (apply && name_length > 0)
            hr_gate_attribute(session, name, name_length, value, value_length);
    }
    return !reader->bad && !pairs.bad;
}

typedef struct names {
    const char *user, *database, *plugin;
} names;

/* A plugin's name that no NUL ends, as some clients have it, counts as none. */
static const char *read_plugin(my_reader *reader)
{
    my_reader tried = *reader;
    size_t length;
    const char *plugin = my_text(&tried, &length);

    if (tried.bad) {
        reader->at = reader->end;
        return "";
    }
    *reader = tried;
    return plugin;
}

static void skip_auth(my_reader *reader, uint32_t can)
{
    size_t length;

    if (can & MY_CAN_LONG_AUTH)
        my_string(reader, &length);
    else if (can & MY_CAN_SECURE)
        my_take(reader, (size_t) my_fixed(reader, 1));
    else
        my_text(reader, &length);
}

static bool learn(hr_session *session, my_reader *reader, uint32_t can, const names *client,
                  bool apply)
{
    char application[256] = "";

    if ((can & MY_CAN_ATTRIBUTES) != 0 && reader->at < reader->end
        && !read_attributes(session, reader, application, sizeof application, apply))
        return false;
    if (reader->bad)
        return false;
    if (apply)
        hr_session_names(session, client->user, client->database, application);
    note_plugin(session, client->plugin);
    return true;
}

static bool read_response(hr_session *session, const uint8_t *payload, size_t length, uint32_t can)
{
    my_reader reader = my_read(payload, length);
    names client = {"", "", ""};
    size_t ignored;

    my_take(&reader, 32);
    client.user = my_text(&reader, &ignored);
    skip_auth(&reader, can);
    if (can & MY_CAN_DATABASE)
        client.database = my_text(&reader, &ignored);
    if (reader.bad)
        return false;
    if (can & MY_CAN_PLUGINS)
        client.plugin = read_plugin(&reader);
    return learn(session, &reader, can, &client, true);
}

bool my_read_change(hr_session *session, const uint8_t *payload, size_t length, bool apply)
{
    my_reader reader = my_read(payload, length);
    uint32_t can = session->my.can;
    names client = {"", "", ""};
    size_t ignored;

    my_take(&reader, 1);
    client.user = my_text(&reader, &ignored);
    skip_auth(&reader, can & ~(uint32_t) MY_CAN_LONG_AUTH);
    client.database = my_text(&reader, &ignored);
    if (reader.bad)
        return false;
    if (reader.at < reader.end)
        my_take(&reader, 2); /* character set */
    if ((can & MY_CAN_PLUGINS) != 0 && reader.at < reader.end)
        client.plugin = read_plugin(&reader);
    if (apply) {
        hr_gate_attribute(session, NULL, 0, NULL, 0);
        hr_gate_variable(session, NULL, 0, NULL, 0);
    }
    return learn(session, &reader, can, &client, apply);
}

/* The fixed part of a response as the server is to have it: it is also its SSLRequest, and MySQL takes
 * the capabilities from that one alone. */
static void mask_response(const hr_session *session, const uint8_t *payload, bool tls, uint8_t *out)
{
    uint32_t can = capabilities_of(payload);

    memcpy(out, payload, 32);
    can &= ~(uint32_t) (MY_CAN_NOT | MY_CAN_SSL);
    if (tls)
        can |= MY_CAN_SSL;
    my_put(out, can, 4);
    if ((can & MY_CAN_MYSQL) == 0) /* MariaDB's stand at the end of what else is zero */
        my_put(out + 28, out[28] & session->my.extended, 4);
}

/* NULL: go on. Else what is wrong between what the client wants and what is set. */
static const char *tls_fault(const hr_session *session, bool asks, uint16_t *code)
{
    *code = 3159;
    if (asks && session->client_tls_mode == 0)
        return "headgate: TLS is not offered here; connect without it (--skip-ssl, ssl-mode=DISABLED)";
    if (!asks && session->client_tls_mode == 2 && !has_tls(session, HR_CLIENT))
        return "headgate: connections without TLS are not taken here; connect with TLS";
    *code = 1053;
    if (!asks && session->server_tls_mode >= 2 && (session->my.can & MY_CAN_SSL) == 0)
        return "headgate: the server offers no TLS, which the target's settings require";
    return NULL;
}

static void request_server_tls(hr_session *session, const uint8_t *payload)
{
    uint8_t *request = hr_scratch(session, MY_HEADER + 32);

    mask_response(session, payload, true, request + MY_HEADER);
    my_put_header(request, 32, 1);
    hr_emit(session, HR_SERVER, request, MY_HEADER + 32);
    session->my.phase = MY_SERVER_TLS;
}

static void pass_response(hr_session *session, const uint8_t *packet, size_t length)
{
    hr_my *my = &session->my;
    const uint8_t *payload = packet + MY_HEADER;
    uint8_t *start = hr_scratch(session, MY_HEADER + 32);
    hr_my_unit unit = {.command = MY_CHANGE_USER, .flags = MY_UNIT_OWN};

    my->shift = (int8_t) (has_tls(session, HR_SERVER) - has_tls(session, HR_CLIENT));
    mask_response(session, payload, has_tls(session, HR_SERVER), start + MY_HEADER);
    my_put_header(start, length, (uint8_t) (packet[3] + my->shift));
    hr_emit(session, HR_SERVER, start, MY_HEADER + 32);
    hr_emit(session, HR_SERVER, payload + 32, length - 32);
    my->can &= capabilities_of(payload) & ~(uint32_t) MY_CAN_NOT;
    my->extended &= (my->can & MY_CAN_MYSQL) == 0 ? payload[28] : 0;
    my->client_seq = my->seq = packet[3];
    my->phase = MY_READY;
    my_push(session, &unit); /* the first one always finds room */
}

/* The response itself, once both sides are as they are to be. */
static hr_next finish_response(hr_session *session, const uint8_t *packet, size_t length)
{
    const uint8_t *payload = packet + MY_HEADER;

    if (!read_response(session, payload, length, capabilities_of(payload)))
        return my_fail(session, (uint8_t) (packet[3] + 1), 1043, "08S01",
                       "headgate: bad handshake: a name or attribute is longer than its packet");
    if (my_bares_password(session))
        return my_reject_bare(session, (uint8_t) (packet[3] + 1));
    pass_response(session, packet, length);
    return HR_MORE;
}

/* The server is to have TLS first; the response is kept for when it has. */
static hr_next begin_server_tls(hr_session *session, const uint8_t *packet, size_t length)
{
    if (!my_keep(session, packet, MY_HEADER + length))
        return my_fail(session, (uint8_t) (packet[3] + 1), 1041, "HY000",
                       "headgate: out of memory");
    session->my.client_seq = packet[3]; /* what goes wrong meanwhile is the answer to this one */
    request_server_tls(session, packet + MY_HEADER);
    return HR_SERVER_TLS;
}

hr_next my_server_secured(hr_session *session)
{
    hr_my_more *more = session->my.more;

    if (session->my.phase != MY_SERVER_TLS || more == NULL || more->kept == NULL)
        return HR_MORE;
    return finish_response(session, more->kept, more->kept_length - MY_HEADER);
}

/* Some drivers compress without looking whether that was offered: to go on would be to wait for each
 * other forever. With TLS they are sent the error once they can read it. */
static bool would_compress(uint32_t can, bool asks)
{
    return !asks && (can & (MY_CAN_COMPRESS | MY_CAN_ZSTD)) != 0;
}

/* A whole packet: SSLRequest, or the response. */
static hr_next answer_response(hr_session *session, const uint8_t *packet, size_t length)
{
    const uint8_t *payload = packet + MY_HEADER;
    uint32_t can = length < 32 ? 0 : capabilities_of(payload);
    bool asks = (can & MY_CAN_SSL) != 0 && !has_tls(session, HR_CLIENT);
    uint8_t seq = (uint8_t) (packet[3] + 1);
    uint16_t code;
    const char *fault = tls_fault(session, asks, &code);

    if ((can & MY_CAN_PROTOCOL_41) == 0 || (asks && length != 32))
        return my_fail(session, seq, 1043, "08S01",
                       "headgate: bad handshake: the client's answer to the "
                       "greeting is malformed, or older than MySQL 4.1");
    if (fault != NULL)
        return my_fail(session, seq, code, code == 1053 ? "08S01" : "HY000", fault);
    if (would_compress(can, asks))
        return my_fail(session, seq, 1043, "08S01",
                       "headgate: the client would compress, which is not "
                       "offered here; connect without compression");
    if (asks) {
        session->my.client_seq = packet[3];
        return HR_CLIENT_TLS;
    }
    if (session->server_tls_mode != 0 && (session->my.can & MY_CAN_SSL) != 0)
        return begin_server_tls(session, packet, length);
    return finish_response(session, packet, length);
}

size_t my_response(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    uint32_t size;

    if (length < MY_HEADER)
        return 0;
    size = my_length(bytes);
    if (bytes[3] != (uint8_t) (session->my.client_seq + 1)) {
        *next = my_fail(session, (uint8_t) (session->my.client_seq + 2), 1156, "08S01",
                        "headgate: got packets out of order while signing in");
        return length;
    }
    if (size > HR_WINDOW_BYTES - MY_HEADER) {
        *next = my_fail(
            session, (uint8_t) (bytes[3] + 1), 1153, "08S01",
            "headgate: a packet for signing in is larger than 64 KiB; send fewer connection "
            "attributes");
        return length;
    }
    if (length < MY_HEADER + size)
        return 0;
    *next = answer_response(session, bytes, size);
    return MY_HEADER + size;
}

/* ── Authentication ───────────────────────────────────────────────────────── */

/* The server wants the whole password, and the two sides would not agree on how it is sent. */
static bool must_stand_between(const hr_session *session, const uint8_t *payload, size_t length)
{
    return session->my.by_sha2 && length == 2 && payload[0] == 1 && payload[1] == 4
           && has_tls(session, HR_CLIENT) != has_tls(session, HR_SERVER);
}

static void follow_switch(hr_session *session, const uint8_t *payload, size_t length)
{
    my_reader reader = my_read(payload + 1, length - 1);
    size_t name_length;
    const char *name = my_text(&reader, &name_length);

    note_plugin(session, name != NULL ? name : length == 1 ? "mysql_old_password" : "?");
    if (session->my.by_sha2 && reader.end - reader.at >= (ptrdiff_t) MY_SCRAMBLE)
        keep_scramble(session, reader.at, reader.at + 8, (size_t) (reader.end - reader.at) - 8);
}

static void pass_auth(hr_session *session, const uint8_t *packet, size_t length)
{
    hr_my *my = &session->my;
    uint8_t seq = (uint8_t) (packet[3] - my->shift);

    if (my->shift == 0) {
        hr_emit(session, HR_CLIENT, packet, MY_HEADER + length);
    } else {
        uint8_t *header = hr_scratch(session, MY_HEADER);

        my_put_header(header, length, seq);
        hr_emit(session, HR_CLIENT, header, MY_HEADER);
        hr_emit(session, HR_CLIENT, packet + MY_HEADER, length);
    }
    my->seq = my->client_seq = seq;
}

/* COM_CHANGE_USER has gone well: from now on it is that user's session. */
static void become(hr_session *session)
{
    const hr_my_more *more = session->my.more;

    if ((session->my.unit.flags & MY_UNIT_OWN) == 0 && more != NULL && more->kept != NULL)
        my_read_change(session, more->kept, more->kept_length, true);
}

static void let_in(hr_session *session, const my_ok *ok)
{
    bool login = (session->my.unit.flags & MY_UNIT_OWN) != 0;

    session->my.shift = 0;
    session->my.sha2 = MY_SHA2_NONE;
    session->my.status = ok->status;
    my_finish(session, false);
    if (login)
        session->established = true;
    my_follow_ok(session, ok); /* behind the names that the client gave: it may say another one */
}

static hr_next turn_away(hr_session *session)
{
    bool login = (session->my.unit.flags & MY_UNIT_OWN) != 0;

    session->my.sha2 = MY_SHA2_NONE;
    session->my.shift = 0;
    my_finish(session, true);
    return login ? HR_CLOSE : HR_MORE;
}

void my_authenticates(hr_session *session, const uint8_t *packet, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    const uint8_t *payload = packet + MY_HEADER;
    uint8_t first = length == 0 ? 1 : payload[0];
    bool lets_in;
    my_ok ok;

    if (!my_may_write(session)) {
        *next = my_fail(session, (uint8_t) (my->seq + 1), 1835, "HY000",
                        "headgate: the server floods the authentication with packets");
        return;
    }
    if (my->sha2 == MY_SHA2_KEY && first != 0xff) {
        *next = my_sha2_key(session, packet, length);
        return;
    }
    if (first == 0xfe) {
        follow_switch(session, payload, length);
        if (my_bares_password(session)) {
            *next = my_reject_bare(session, (uint8_t) (packet[3] - my->shift));
            return;
        }
    }
    lets_in = first == 0 && length >= 7 && payload[1] == 0 && payload[2] == 0
              && my_read_ok(payload, length, &ok);
    if (lets_in) {
        become(session);
        if (!hr_user_proved(session)) {
            *next = HR_CROWDED;
            return;
        }
    }
    pass_auth(session, packet, length);
    if (first == 0xff) {
        *next = turn_away(session);
    } else if (lets_in) {
        let_in(session, &ok);
    } else {
        if (must_stand_between(session, payload, length))
            my_sha2_begin(session);
        my->client_turn = true;
    }
}
