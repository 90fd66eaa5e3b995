/*
 * my_command.c: what the client sends. A command is decided before its first byte goes to the server.
 *
 * What is decided, or may request from the client something (a file, a password), waits until everything
 * before it has been answered: so a block always comes in its order, and the transaction's state is
 * the server's own, not a guess. Others (PREPARE, PING, CLOSE …) follow one another at once, and a
 * client's pipeline still saves it the way to the proxy and back.
 *
 * COM_STMT_PREPARE passes, EXECUTE is decided: clients keep what is prepared over a block. MariaDB may
 * work out constants when it prepares; docs/security.md says so.
 */
#include "my_inside.h"

#include <stdlib.h>

/* ── Packets, passed or thrown away ───────────────────────────────────────── */

static void tell_error(hr_session *session)
{
    hr_my_more *more = session->my.more;
    uint8_t *packet;

    if (more == NULL || more->error == NULL)
        return;
    packet = hr_scratch(session, more->error_length);
    memcpy(packet, more->error, more->error_length);
    packet[3] = (uint8_t) (session->my.client_seq + 1);
    hr_emit(session, HR_CLIENT, packet, more->error_length);
    free(more->error);
    more->error = NULL;
}

/* The last packet of a command, or of a file's piece, has gone by. */
static void end_command(hr_session *session, hr_next *next)
{
    hr_my *my = &session->my;

    if (my->units == 1 && my->answer == MY_FIRST)
        my->seq = my->client_seq;
    if (!my->client_drops)
        return;
    my->client_drops = false;
    tell_error(session);
    if (my->shut)
        *next = HR_CLOSE;
}

/* `emitted` of its bytes have gone to the server already. */
static size_t go_on(hr_session *session, const uint8_t *bytes, size_t length, size_t emitted,
                    hr_next *next)
{
    hr_my *my = &session->my;
    uint32_t size = my_length(bytes);
    size_t here = length - MY_HEADER < size ? length - MY_HEADER : size;

    my->client_seq = bytes[3];
    my->client_left = size - (uint32_t) here;
    my->client_more = size == MY_FULL;
    if (!my->client_drops)
        hr_emit(session, HR_SERVER, bytes + emitted, MY_HEADER + here - emitted);
    if (my->client_left == 0 && !my->client_more)
        end_command(session, next);
    return MY_HEADER + here;
}

static size_t begin_packet(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    return go_on(session, bytes, length, 0, next);
}

static size_t stream(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    size_t here = length < my->client_left ? length : my->client_left;

    if (!my->client_drops)
        hr_emit(session, HR_SERVER, bytes, here);
    my->client_left -= (uint32_t) here;
    if (my->client_left == 0 && !my->client_more)
        end_command(session, next);
    return here;
}

/* ── Commands that are not decided ─────────────────────────────────────────── */

static enum my_verdict pass_prepare(hr_session *session, const my_command *it, hr_next *next)
{
    hr_my_unit unit = {.command = MY_STMT_PREPARE, .flags = MY_UNIT_SIMPLE};
    const char *text = (const char *) it->payload + 1;
    bool cut = it->seen < it->length || it->length == MY_FULL;
    my_meaning meaning;

    my_read_meaning(text, it->seen - 1, false, &meaning);
    unit.flags |= meaning.flags & MY_UNIT_ENDS;
    unit.prepared = hr_prepare(session, text, it->seen - 1, cut);
    hg_add_own(&session->thread->counts->prepared, 1);
    return my_enter(session, &unit, next);
}

static enum my_verdict pass_change_user(hr_session *session, const my_command *it, hr_next *next)
{
    hr_my_unit unit = {.command = MY_CHANGE_USER};

    if (it->length > it->seen || !my_read_change(session, it->payload, it->seen, false)) {
        *next = my_fail(session, (uint8_t) (it->bytes[3] + 1), 1835, "HY000",
                        "headgate: COM_CHANGE_USER is malformed, or larger than 64 KiB");
        return MY_WAITS;
    }
    if (my_bares_password(session)) {
        *next = my_reject_bare(session, (uint8_t) (it->bytes[3] + 1));
        return MY_WAITS;
    }
    if (!my_keep(session, it->payload, it->seen)) {
        *next = HR_CLOSE;
        return MY_WAITS;
    }
    session->my.client_turn = false;
    return my_enter(session, &unit, next);
}

static enum my_verdict pass_other(hr_session *session, const my_command *it, hr_next *next)
{
    hr_my_unit unit = {.command = it->code};

    switch (it->code) {
    case MY_INIT_DB:
        if (it->seen <= 257)
            my_keep(session, it->payload + 1, it->seen - 1);
        break;
    case MY_PROCESS_KILL:
        unit.flags |= MY_UNIT_OPEN;
        unit.number = my_id_of(it);
        break;
    case MY_PING:
    case MY_STMT_RESET:
        unit.flags |= MY_UNIT_SIMPLE;
        break;
    case MY_FIELD_LIST:
    case MY_SHUTDOWN:
    case MY_STATISTICS:
    case MY_PROCESS_INFO:
    case MY_DEBUG:
    case MY_BINLOG_DUMP:
    case MY_REGISTER_REPLICA:
    case MY_SET_OPTION:
    case MY_BINLOG_DUMP_GTID:
    case MY_RESET_CONNECTION:
        break;
    case MY_CLONE:
    case MY_GROUP_REPLICATION:
    case MY_TABLE_DUMP:
    case MY_MULTI: /* answers that have a framing of their own, which nobody would follow */
        return my_block(session, it, 1235, "42000",
                        "headgate: this command does not go through the proxy; "
                        "connect to the server itself",
                        next);
    default: /* COM_REFRESH, COM_DROP_DB of old, what a server has that we do not know */
        return my_decide_unknown(session, it, next);
    }
    if (it->code == MY_STMT_RESET) {
        my_statement *statement = my_find(session, my_id_of(it));

        if (statement != NULL)
            statement->flags &= (uint8_t) ~MY_STATEMENT_LONG_DATA;
    }
    return my_enter(session, &unit, next);
}

/* Those without an answer. */
static enum my_verdict pass_silent(hr_session *session, const my_command *it)
{
    my_statement *statement = my_find(session, my_id_of(it));

    if (it->code == MY_STMT_CLOSE)
        my_unlearn(session, my_id_of(it));
    else if (statement != NULL)
        statement->flags |= MY_STATEMENT_LONG_DATA;
    return MY_PASSES;
}

/* ── One command ──────────────────────────────────────────────────────────── */

/* What is shorter than the fixed part of its command is malformed. Servers differ in what they do with it:
 * some answer where others say nothing, so from then on nobody would know which answer is whose. */
static uint32_t least_of(uint8_t code)
{
    switch (code) {
    case MY_STMT_EXECUTE:
        return 10;
    case MY_STMT_FETCH:
        return 9;
    case MY_BULK_EXECUTE:
    case MY_STMT_LONG_DATA:
        return 7;
    case MY_STMT_CLOSE:
    case MY_STMT_RESET:
    case MY_PROCESS_KILL:
        return 5;
    default:
        return 0;
    }
}

static bool is_simple(uint8_t code)
{
    return code == MY_STMT_PREPARE || code == MY_PING || code == MY_STMT_RESET
           || code == MY_STMT_CLOSE || code == MY_STMT_LONG_DATA;
}

static bool is_idle(const hr_my *my)
{
    return my->units == 0 && my->server_left == 0 && !my->server_more;
}

/* Whether it must wait for what was sent before. -1 may also name a PREPARE that is under way. */
static bool must_wait(const hr_my *my, const my_command *it)
{
    if (is_idle(my))
        return false;
    if (my->units == 0 || (my->unit.flags & MY_UNIT_SIMPLE) == 0 || my->units >= MY_MAX_UNITS)
        return true;
    if (it->code == MY_STMT_PREPARE || it->code == MY_PING)
        return false;
    return !is_simple(it->code) || my_id_of(it) == UINT32_MAX;
}

static enum my_verdict decide(hr_session *session, my_command *it, hr_next *next)
{
    if (must_wait(&session->my, it))
        return my_later(next);
    if (it->length < least_of(it->code)) {
        *next = my_fail(session, (uint8_t) (it->bytes[3] + 1), 1835, "HY000",
                        "headgate: the command is "
                        "malformed: shorter than any of its kind; the session is closed");
        return MY_WAITS;
    }
    /* A pipeline of blocked commands: a moment later, when what we wrote has gone out. */
    if (session->my.own >= MY_MAX_OWN) {
        hr_wake(session->thread, session, session->id);
        *next = HR_HELD;
        return MY_WAITS;
    }
    switch (it->code) {
    case MY_QUERY:
        return my_decide_query(session, it, next);
    case MY_STMT_EXECUTE:
    case MY_BULK_EXECUTE:
    case MY_STMT_FETCH:
        return my_decide_execute(session, it, next);
    case MY_STMT_PREPARE:
        return pass_prepare(session, it, next);
    case MY_STMT_CLOSE:
    case MY_STMT_LONG_DATA:
        return pass_silent(session, it);
    case MY_CHANGE_USER:
        return pass_change_user(session, it, next);
    case MY_QUIT:
        *next = HR_CLOSE;
        return MY_PASSES;
    default:
        return pass_other(session, it, next);
    }
}

/* As much of a command as has to be here before it is decided. */
static size_t looks_at(const hr_session *session, uint8_t code, uint32_t length)
{
    size_t most = code == MY_QUERY || code == MY_STMT_PREPARE    ? hr_text_most(session->thread)
                  : code == MY_INIT_DB || code == MY_CHANGE_USER ? HR_WINDOW_BYTES
                                                                 : 16;

    return length < most ? length : most;
}

static hr_next out_of_order(hr_session *session, uint8_t seq)
{
    return my_fail(session, (uint8_t) (seq + 1), 1156, "08S01",
                   "headgate: got packets out of order; the session is closed");
}

static size_t next_command(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    my_command it = {.bytes = bytes, .payload = bytes + MY_HEADER, .length = my_length(bytes)};

    if (bytes[3] != 0) {
        *next = out_of_order(session, bytes[3]);
        return 0;
    }
    if (it.length > 0 && length == MY_HEADER)
        return 0;
    it.code = it.length == 0 ? 0 : it.payload[0];
    it.seen = looks_at(session, it.code, it.length);
    if (length - MY_HEADER < it.seen)
        return 0;
    if (it.code == MY_STMT_EXECUTE || it.code == MY_BULK_EXECUTE) {
        it.seen = my_types_reach(session, &it);
        if (length - MY_HEADER < it.seen)
            return 0;
    }
    it.whole = length - MY_HEADER >= it.length && it.length < MY_FULL;
    if (decide(session, &it, next) == MY_WAITS)
        return 0;
    return go_on(session, bytes, length, it.emitted, next);
}

/* ── Packets that are no commands ─────────────────────────────────────────── */

static bool is_dumping(const hr_my *my)
{
    return my->units > 0
           && (my->unit.command == MY_BINLOG_DUMP || my->unit.command == MY_BINLOG_DUMP_GTID);
}

/* A replica that gets the log says nothing but how far it is (semi-synchronous replication): anything
 * else waits until the log has ended, or it would be a way around the gate. So does that report before
 * anything has come: a server that denies the log takes it for a command, and answers. */
static size_t next_report(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    if (my_length(bytes) > 0 && length == MY_HEADER)
        return 0;
    if (my_length(bytes) > 0 && bytes[MY_HEADER] == 0xef && session->my.has_rows)
        return begin_packet(session, bytes, length, next);
    if (my_length(bytes) == 1 && bytes[MY_HEADER] == MY_QUIT) {
        *next = HR_CLOSE;
        return begin_packet(session, bytes, length, next);
    }
    *next = HR_LATER;
    return 0;
}

/* Up to an empty packet. Only then does the server answer. */
static size_t next_piece(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;

    if (my_length(bytes) == 0) {
        my->infile = false;
        my->answer = MY_FIRST;
    }
    return begin_packet(session, bytes, length, next);
}

/* An answer to the plugin at the server: opaque, in turn, and renumbered. */
static size_t next_secret(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    size_t size = my_length(bytes), here = length - MY_HEADER < size ? length - MY_HEADER : size;
    uint8_t *header;

    if (my->sha2 != MY_SHA2_NONE)
        return my_sha2_answer(session, bytes, length, next);
    if (size == MY_FULL) {
        *next = my_fail(session, (uint8_t) (bytes[3] + 1), 1153, "08S01",
                        "headgate: a packet for signing in is larger than 16 MB");
        return 0;
    }
    if (my->shift == 0) {
        my->client_turn = false;
        return begin_packet(session, bytes, length, next);
    }
    header = hr_scratch(session, MY_HEADER);
    my_put_header(header, size, (uint8_t) (bytes[3] + my->shift));
    hr_emit(session, HR_SERVER, header, MY_HEADER);
    hr_emit(session, HR_SERVER, bytes + MY_HEADER, here);
    my->client_seq = bytes[3];
    my->client_left = (uint32_t) (size - here);
    my->client_turn = false;
    return MY_HEADER + here;
}

static size_t next_packet(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    bool authenticates = my->units > 0 && my->answer == MY_AUTHENTICATES;

    if (authenticates && !my->client_turn) {
        *next = HR_LATER;
        return 0;
    }
    if ((authenticates || my->client_more || my->infile)
        && bytes[3] != (uint8_t) (my->client_seq + 1)) {
        *next = out_of_order(session, bytes[3]);
        return 0;
    }
    if (my->client_more)
        return begin_packet(session, bytes, length, next);
    if (authenticates)
        return next_secret(session, bytes, length, next);
    if (my->infile)
        return next_piece(session, bytes, length, next);
    if (is_dumping(my))
        return next_report(session, bytes, length, next);
    return next_command(session, bytes, length, next);
}

size_t my_commands(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    size_t at = 0;

    while (at < length && *next == HR_MORE) {
        size_t took;

        if (session->my.client_left > 0)
            took = stream(session, bytes + at, length - at, next);
        else if (length - at < MY_HEADER)
            break;
        else
            took = next_packet(session, bytes + at, length - at, next);
        if (took == 0)
            break;
        at += took;
    }
    return at;
}
