/*
 * my.c: the MySQL and MariaDB protocol machine. Fed bytes, it emits bytes; see my_inside.h for its parts.
 *
 *   greeting ─► response ─► [TLS to the server] ─► authentication ─► commands ⇄ answers
 *
 * Not handled, and so not offered in the greeting: compression (both kinds), optional metadata of MySQL,
 * MariaDB's COM_MULTI. Query attributes are: they are stepped over to find the text.
 */
#include "my_inside.h"

static void init(hr_session *session)
{
    memset(&session->my, 0, sizeof session->my);
}

bool my_may_write(hr_session *session)
{
    if (session->my.own >= MY_MAX_OWN)
        return false;
    session->my.own++;
    return true;
}

void my_tell(hr_session *session, uint8_t seq, uint16_t code, const char *state, const char *text)
{
    uint8_t *packet = hr_scratch(session, MY_ERROR_BYTES + 16);

    hr_emit(session, HR_CLIENT, packet, my_error(packet, seq, code, state, text));
}

/* In the middle of a packet there is no place for another one. */
static bool can_be_told(const hr_session *session)
{
    return session->my.server_left == 0 && !session->my.server_more;
}

hr_next my_fail(hr_session *session, uint8_t seq, uint16_t code, const char *state,
                const char *text)
{
    hg_add_own(&session->thread->counts->protocol_errors, 1);
    if (can_be_told(session))
        my_tell(session, seq, code, state, text);
    return HR_CLOSE;
}

static size_t feed_client(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    switch (session->my.phase) {
    case MY_RESPONSE:
        return my_response(session, bytes, length, next);
    case MY_READY:
        return my_commands(session, bytes, length, next);
    default: /* it is not the client's turn to speak */
        *next = HR_LATER;
        return 0;
    }
}

/* Until the client has answered the greeting a server says nothing but that it goes. */
static size_t feed_early(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;

    if (length <= MY_HEADER || length < MY_HEADER + (size_t) my_length(bytes))
        return 0;
    *next = HR_CLOSE;
    if (my_length(bytes) > 2 && bytes[MY_HEADER] == 0xff) {
        uint8_t *header = hr_scratch(session, MY_HEADER);

        my_put_header(header, my_length(bytes), (uint8_t) (my->client_seq + 1));
        hr_emit(session, HR_CLIENT, header, MY_HEADER);
        hr_emit(session, HR_CLIENT, bytes + MY_HEADER, my_length(bytes));
    } else {
        my_fail(session, (uint8_t) (my->client_seq + 1), 1835, "HY000",
                "headgate: the server spoke out of turn while signing in");
    }
    return MY_HEADER + (size_t) my_length(bytes);
}

static size_t feed_server(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    switch (session->my.phase) {
    case MY_GREETING:
        return my_greeting(session, bytes, length, next);
    case MY_READY:
        return my_answers(session, bytes, length, next);
    default:
        if (length > HR_WINDOW_BYTES) {
            *next = HR_CLOSE;
            return length;
        }
        return feed_early(session, bytes, length, next);
    }
}

static size_t feed(hr_session *session, hr_end from, const uint8_t *bytes, size_t length,
                   hr_next *next)
{
    size_t at = 0, took;

    *next = HR_MORE;
    session->my.own = 0;
    do { /* again where a phase has ended within these bytes */
        took = from == HR_CLIENT ? feed_client(session, bytes + at, length - at, next)
                                 : feed_server(session, bytes + at, length - at, next);
        at += took;
    } while (took > 0 && at < length && *next == HR_MORE);
    return at;
}

static hr_next connected(hr_session *session)
{
    my_sha2_expect(session);
    return HR_MORE; /* the server speaks first */
}

static hr_next secured(hr_session *session, hr_end end)
{
    return end == HR_SERVER ? my_server_secured(session) : HR_MORE;
}

static void settle_all(hr_session *session)
{
    hr_my *my = &session->my;

    while (my->units > 0) {
        if (my->unit.ticket != 0)
            hr_done(session, my->unit.ticket, my->unit.started_ns, true);
        my->unit.ticket = 0;
        my_pop(session);
    }
    session->statement_since_ns = 0;
}

/* The number that the client expects next: of the answer under way, or to its next command. */
static uint8_t next_seq(const hr_my *my)
{
    if (my->phase == MY_GREETING)
        return 0;
    if (my->phase != MY_READY || (my->units > 0 && my->answer == MY_AUTHENTICATES)
        || my->client_left > 0 || my->client_more || my->infile)
        return (uint8_t) (my->client_seq + 1);
    return my->units > 0 ? (uint8_t) (my->seq + 1) : 1;
}

/* A server that ends a session says nothing: clients know a connection that is closed (2006, 2013), and a
 * pool replaces it. An error of ours would be the answer to what they send next, and pools would take the
 * connection for a sound one. What waits here for its turn is ours to answer, and has not run. */
static bool goes_unsaid(const hr_session *session, hr_lost why)
{
    const hr_my *my = &session->my;

    if (!session->established || session->held)
        return false;
    return why == HR_LOST_SERVER
           || (my->units == 0 && my->client_left == 0 && !my->client_more && !session->later);
}

static void lost(hr_session *session, hr_lost why)
{
    const hr_code *code = &hr_code_of_loss[why];
    const char *state = session->my.phase == MY_GREETING ? NULL : code->mysql_state;
    bool unsaid = why == HR_LOST_CLIENT || !can_be_told(session) || goes_unsaid(session, why);
    uint8_t seq = next_seq(&session->my);
    char text[MY_ERROR_BYTES];

    settle_all(session);
    if (unsaid)
        return;
    hr_words_of_loss(session, why, text, sizeof text);
    my_tell(session, seq, code->mysql, state, text);
}

static bool in_transaction(const hr_session *session)
{
    return session->established && (session->my.status & MY_IN_TRANSACTION) != 0;
}

static bool at_rest(const hr_session *session)
{
    const hr_my *my = &session->my;

    return session->established && my->units == 0 && my->client_left == 0 && !my->client_more
           && my->server_left == 0 && !my->server_more && !in_transaction(session);
}

static void free_machine(hr_session *session)
{
    settle_all(session);
    my_more_free(session);
}

const hr_machine hr_my_machine = {
    .connects_first = true,
    .init = init,
    .feed = feed,
    .connected = connected,
    .secured = secured,
    .lost = lost,
    .at_rest = at_rest,
    .in_transaction = in_transaction,
    .free = free_machine,
};
