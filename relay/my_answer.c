/*
 * my_answer.c: what the server sends. Rows go by in a tight loop over their headers; only the packets
 * that begin or end something are looked at.
 *
 *   first ─► OK | ERR | file wanted | columns ─► definitions ─► [EOF] ─► rows ─► EOF | OK | ERR
 *     ▲                                                                          │
 *     └──────────────────────── more results ────────────────────────────────────┘
 */
#include "my_inside.h"

#include <stdio.h>
#include <stdlib.h>

/* ── What an OK says of the session ───────────────────────────────────────── */

static void follow_variables(hr_session *session, my_reader *data)
{
    size_t name_length, length;

    while (data->at < data->end && !data->bad) {
        const char *name = my_string(data, &name_length);
        const char *value = my_string(data, &length);

        if (!data->bad && name_length > 0)
            hr_gate_variable(session, name, name_length, value, length);
    }
}

static void follow_schema(hr_session *session, my_reader *data)
{
    char database[257];
    size_t length;
    const char *name = my_string(data, &length);

    if (data->bad || length >= sizeof database)
        return;
    memcpy(database, name, length);
    database[length] = '\0';
    hr_session_names(session, NULL, database, NULL);
}

/* Changes that the server tells to clients that track their session. */
static void follow_changes(hr_session *session, my_reader changes)
{
    size_t length;

    while (changes.at < changes.end && !changes.bad) {
        uint64_t type = my_fixed(&changes, 1);
        const char *bytes = my_string(&changes, &length);
        my_reader data;

        if (changes.bad)
            return;
        data = my_read((const uint8_t *) bytes, length);
        if (type == 0)
            follow_variables(session, &data);
        else if (type == 1)
            follow_schema(session, &data);
    }
}

void my_follow_ok(hr_session *session, const my_ok *ok)
{
    my_reader reader = {ok->info, ok->end, false};
    const char *changes;
    size_t length;

    session->my.status = ok->status;
    if ((session->my.can & MY_CAN_TRACK) == 0 || (ok->status & MY_STATE_CHANGED) == 0)
        return;
    my_string(&reader, &length); /* words for people */
    changes = my_string(&reader, &length);
    if (!reader.bad)
        follow_changes(session, my_read((const uint8_t *) changes, length));
}

/* ── Ends ─────────────────────────────────────────────────────────────────── */

static void forget_kept(hr_session *session)
{
    hr_my_more *more = session->my.more;

    if (more == NULL || more->kept == NULL)
        return;
    free(more->kept);
    more->kept = NULL;
}

/* What a command that went well has changed. */
static void take_effect(hr_session *session)
{
    hr_my *my = &session->my;
    hr_my_more *more = my->more;

    switch (my->unit.command) {
    case MY_CHANGE_USER:
        my_unlearn_all(session);
        return;
    case MY_RESET_CONNECTION:
        my_unlearn_all(session);
        hr_gate_variable(session, NULL, 0, NULL, 0);
        return;
    case MY_INIT_DB:
    case MY_QUERY:
        if (more != NULL && more->kept != NULL)
            hr_session_names(session, NULL, (const char *) more->kept, NULL);
        break;
    default:
        break;
    }
    /* Only now: which user may kill which, the server has said. */
    if ((my->unit.flags & MY_UNIT_OPEN) != 0
        && (my->unit.command == MY_QUERY || my->unit.command == MY_PROCESS_KILL))
        hr_kill_find(session->thread->relay, session->target_id, my->unit.number);
}

static void follow_transaction(hr_my *my, bool failed)
{
    bool ended = (my->unit.flags & MY_UNIT_ENDS) != 0 && !failed;

    if ((my->status & MY_IN_TRANSACTION) == 0 || ended)
        my->ran = false;
    else if (my->unit.flags & MY_UNIT_RUNS)
        my->ran = true;
}

void my_finish(hr_session *session, bool failed)
{
    hr_my *my = &session->my;

    if (my->unit.ticket != 0)
        hr_done(session, my->unit.ticket, my->unit.started_ns, failed);
    my->unit.ticket = 0;
    if (my->unit.command == MY_QUERY || my->unit.command == MY_STMT_EXECUTE
        || my->unit.command == MY_STMT_FETCH || my->unit.command == MY_BULK_EXECUTE)
        hr_names_ended(session, failed);
    if (!failed)
        take_effect(session);
    follow_transaction(my, failed);
    if ((my->unit.flags & MY_UNIT_SIMPLE) == 0)
        forget_kept(session);
    my_pop(session);
    my->seq = 0;
    if (my->units == 0)
        session->statement_since_ns = 0;
}

/* ── Packets that begin or end something ──────────────────────────────────── */

typedef struct packet {
    const uint8_t *bytes; /* the header first */
    uint32_t length;      /* of the payload */
    size_t seen;          /* of it, here */
    uint8_t seq;
} packet;

static void pass(hr_session *session, const packet *it)
{
    session->my.seq = it->seq;
    if ((session->my.unit.flags & MY_UNIT_OWN) == 0)
        hr_emit(session, HR_CLIENT, it->bytes, MY_HEADER + it->seen);
}

/* With one more warning, and numbered `seq`. */
static void pass_warned(hr_session *session, const packet *it, const my_ok *ok, uint8_t seq,
                        bool warn)
{
    size_t length = MY_HEADER + ok->warnings_at + 2;
    uint8_t *copy = hr_scratch(session, length);

    memcpy(copy, it->bytes, length);
    copy[3] = seq;
    if (warn && ok->warnings < UINT16_MAX)
        my_put(copy + MY_HEADER + ok->warnings_at, ok->warnings + 1u, 2);
    hr_emit(session, HR_CLIENT, copy, length);
    hr_emit(session, HR_CLIENT, it->bytes + length, MY_HEADER + it->seen - length);
    session->my.seq = seq;
}

static uint8_t *put_string(uint8_t *to, const char *text)
{
    size_t length = strlen(text);

    if (length > 250) {
        *to++ = 0xfc;
        my_put(to, (uint32_t) length, 2);
        to += 2;
    } else {
        *to++ = (uint8_t) length;
    }
    memcpy(to, text, length);
    return to + length;
}

/* Our row of SHOW WARNINGS, before the end of the server's own. */
static void list_warning(hr_session *session, uint8_t seq)
{
    hr_my_more *more = session->my.more;
    uint8_t *row = hr_scratch(session, 2048), *at;
    char code[8];

    snprintf(code, sizeof code, "%u", (unsigned) more->warning_code);
    at = put_string(row + MY_HEADER, "Warning");
    at = put_string(at, code);
    at = put_string(at, more->warning);
    my_put_header(row, (size_t) (at - row) - MY_HEADER, seq);
    hr_emit(session, HR_CLIENT, row, (size_t) (at - row));
}

static hr_next malformed(hr_session *session, const packet *it)
{
    return my_fail(session, it->seq, 1835, "HY000",
                   "headgate: the server sent a packet that is malformed; the session is closed");
}

/* OK, or the end of rows: the last of its results, or one of several. */
static void end_result(hr_session *session, const packet *it, hr_next *next)
{
    hr_my *my = &session->my;
    const uint8_t *payload = it->bytes + MY_HEADER;
    bool ends_rows = my->answer == MY_ROWS, more;
    my_ok ok;

    if (!my_read_ok(payload, it->seen, &ok)) {
        *next = malformed(session, it);
        return;
    }
    /* Servers forget to say that OUT parameters are never the last result. */
    more = (ok.status & MY_MORE_RESULTS) != 0 || my->out_params || (ok.status & MY_OUT_PARAMS) != 0;
    my->out_params = false;
    if (ends_rows && (my->unit.flags & MY_UNIT_LISTS) != 0 && my->more != NULL
        && my->more->warning != NULL) {
        list_warning(session, it->seq);
        pass_warned(session, it, &ok, (uint8_t) (it->seq + 1), false);
    } else if (!more && (my->unit.flags & MY_UNIT_WARNED) != 0) {
        pass_warned(session, it, &ok, it->seq, true);
    } else {
        pass(session, it);
    }
    my_follow_ok(session, &ok);
    if (!more) {
        my_finish(session, false);
        return;
    }
    if ((my->unit.flags & MY_UNIT_MANY) != 0 && my->unit.ticket != 0)
        hr_step(session, my->unit.ticket, false);
    my->answer = MY_FIRST;
}

static void end_failed(hr_session *session, const packet *it, hr_next *next)
{
    hr_my *my = &session->my;
    const uint8_t *payload = it->bytes + MY_HEADER;
    uint32_t code;

    if (it->seen < 3) {
        *next = malformed(session, it);
        return;
    }
    code = payload[1] | (uint32_t) payload[2] << 8;
    pass(session, it);
    if (code == 0xffff && (my->extended & MY_ALSO_PROGRESS) != 0)
        return; /* MariaDB's report of progress: no error, and the answer goes on */
    if (code == 1213)
        my->status &= (uint16_t) ~MY_IN_TRANSACTION; /* a deadlock's victim has been rolled back */
    if (my->unit.command == MY_STMT_PREPARE && my->more != NULL)
        my->more->last_id = 0;
    my_finish(session, true);
}

/* ── Answers in their course ──────────────────────────────────────────────── */

static void after_definitions(hr_session *session)
{
    hr_my *my = &session->my;

    if (my->unit.command == MY_STMT_PREPARE) {
        my->definitions = my->later_definitions;
        my->later_definitions = 0;
        my->answer = MY_DEFINITIONS;
        if (my->definitions == 0)
            my_finish(session, false);
    } else {
        my->answer = MY_ROWS;
    }
}

/* The last definition has gone by, or there is none. */
static void end_definitions(hr_session *session)
{
    if (session->my.can & MY_CAN_NO_EOF)
        after_definitions(session);
    else
        session->my.answer = MY_DEFINITIONS_END;
}

static void begin_prepared(hr_session *session, const packet *it, hr_next *next)
{
    hr_my *my = &session->my;
    my_reader reader = my_read(it->bytes + MY_HEADER, it->seen);
    uint32_t id, columns, parameters;
    uint8_t flags = (my->unit.flags & MY_UNIT_ENDS) != 0 ? MY_STATEMENT_ENDS : 0;

    my_fixed(&reader, 1);
    id = (uint32_t) my_fixed(&reader, 4);
    columns = (uint32_t) my_fixed(&reader, 2);
    parameters = (uint32_t) my_fixed(&reader, 2);
    if (reader.bad) {
        *next = malformed(session, it);
        return;
    }
    pass(session, it);
    my_learn(session, &(my_statement){id, flags, (uint16_t) parameters, my->unit.prepared});
    my->unit.prepared = NULL;
    my->definitions = parameters != 0 ? parameters : columns;
    my->later_definitions = parameters != 0 ? columns : 0;
    my->answer = MY_DEFINITIONS;
    if (my->definitions == 0)
        my_finish(session, false);
}

static void begin_columns(hr_session *session, const packet *it, hr_next *next)
{
    hr_my *my = &session->my;
    my_reader reader = my_read(it->bytes + MY_HEADER, it->seen);
    uint64_t columns = my_number(&reader);
    bool follow = true;

    /* MariaDB leaves out definitions that the client has from the last time. */
    if ((my->extended & MY_ALSO_CACHE_METADATA) != 0 && reader.at < reader.end)
        follow = my_fixed(&reader, 1) != 0;
    if (reader.bad || columns == 0 || columns > 0xffff) {
        *next = malformed(session, it);
        return;
    }
    pass(session, it);
    if (columns != 3)
        my->unit.flags &= (uint8_t) ~MY_UNIT_LISTS;
    my->definitions = follow ? (uint32_t) columns : 0;
    my->answer = MY_DEFINITIONS;
    if (my->definitions == 0)
        end_definitions(session);
}

static void begin_file(hr_session *session, const packet *it)
{
    hr_my *my = &session->my;

    pass(session, it);
    my->answer = MY_INFILE;
    my->infile = true;
    my->client_seq = it->seq;
}

static void begin_answer(hr_session *session, const packet *it, hr_next *next)
{
    const uint8_t *payload = it->bytes + MY_HEADER;
    uint8_t command = session->my.unit.command;

    if (command == MY_STATISTICS && (it->seen == 0 || payload[0] != 0xff)) {
        pass(session, it); /* words, just so */
        my_finish(session, false);
    } else if (it->seen == 0) {
        *next = malformed(session, it);
    } else if (payload[0] == 0xff) {
        end_failed(session, it, next);
    } else if (payload[0] == 0 && command == MY_STMT_PREPARE) {
        begin_prepared(session, it, next);
    } else if (payload[0] == 0 || payload[0] == 0xfe) {
        end_result(session, it, next);
    } else if (payload[0] == 0xfb) {
        begin_file(session, it);
    } else {
        begin_columns(session, it, next);
    }
}

/* EOF after definitions. With a cursor it is the end: rows are fetched later. */
static void pass_definitions_end(hr_session *session, const packet *it, hr_next *next)
{
    hr_my *my = &session->my;
    my_ok ok;

    if (it->seen > 0 && it->bytes[MY_HEADER] == 0xff) {
        end_failed(session, it, next);
        return;
    }
    if (!my_read_ok(it->bytes + MY_HEADER, it->seen, &ok)) {
        *next = malformed(session, it);
        return;
    }
    if (my->unit.command == MY_STMT_EXECUTE && (my->unit.flags & MY_UNIT_OPEN) != 0
        && (ok.status & MY_CURSOR_EXISTS) != 0) {
        my->answer = MY_ROWS;
        end_result(session, it, next);
        return;
    }
    pass(session, it);
    my->out_params = (ok.status & MY_OUT_PARAMS) != 0;
    after_definitions(session);
}

/* A server ends the session together with a dump that had begun: it would take what its replica reports
 * by then for commands, and answer them. */
static bool ends_dump(const hr_my *my)
{
    return my->has_rows
           && (my->unit.command == MY_BINLOG_DUMP || my->unit.command == MY_BINLOG_DUMP_GTID);
}

static void end_rows(hr_session *session, const packet *it, hr_next *next)
{
    bool last = ends_dump(&session->my);

    if (it->bytes[MY_HEADER] == 0xff)
        end_failed(session, it, next);
    else
        end_result(session, it, next);
    if (last && *next == HR_MORE)
        *next = HR_CLOSE;
}

static void look_at(hr_session *session, const packet *it, hr_next *next)
{
    switch (session->my.answer) {
    case MY_AUTHENTICATES:
        if (it->length > it->seen)
            *next = malformed(session, it);
        else
            my_authenticates(session, it->bytes, it->seen, next);
        return;
    case MY_INFILE: /* it does not want the rest, which is no command either */
        pass(session, it);
        *next = HR_CLOSE;
        return;
    case MY_DEFINITIONS_END:
        pass_definitions_end(session, it, next);
        return;
    case MY_ROWS:
        end_rows(session, it, next);
        return;
    default:
        begin_answer(session, it, next);
        return;
    }
}

/* ── The stream ───────────────────────────────────────────────────────────── */

/* A packet that is passed without a look: what is here of it. */
static size_t stream(hr_session *session, const uint8_t *bytes, size_t length)
{
    hr_my *my = &session->my;
    uint32_t size = my_length(bytes);
    size_t here = length - MY_HEADER < size ? length - MY_HEADER : size;

    my->seq = bytes[3];
    my->server_left = size - (uint32_t) here;
    my->server_more = size == MY_FULL;
    my->has_rows = my->has_rows || my->answer == MY_ROWS;
    hr_emit(session, HR_CLIENT, bytes, MY_HEADER + here);
    return MY_HEADER + here;
}

/* Of a server that was sent nothing: an error is its farewell (killed, idle for too long, shutting down),
 * which the client is to read. Anything else would be taken for the answer to the next command, and so on
 * for all that follow. Either way the session ends. */
static size_t unasked(hr_session *session, const packet *it, size_t length, hr_next *next)
{
    bool whole = it->seen == it->length && it->length < MY_FULL;

    if (length - MY_HEADER < it->seen)
        return 0;
    if (whole && it->seen >= 3 && it->bytes[MY_HEADER] == 0xff) {
        hr_emit(session, HR_CLIENT, it->bytes, MY_HEADER + it->seen);
        *next = HR_CLOSE;
    } else {
        *next = my_fail(session, 1, 1835, "HY000",
                        "headgate: the server sent an answer without a request; the "
                        "session is closed");
    }
    return MY_HEADER + it->seen;
}

static bool is_row(const hr_my *my, uint32_t size, uint8_t first)
{
    return first < 0xfe
           || (first == 0xfe && size >= ((my->can & MY_CAN_NO_EOF) != 0 ? MY_FULL : 9u));
}

/* Rows that are here whole, as many as there are. How long they are. */
static size_t whole_rows(hr_my *my, const uint8_t *bytes, size_t length)
{
    size_t at = 0;

    while (length - at > MY_HEADER) {
        uint32_t size = my_length(bytes + at);

        if (size - 1 >= MY_FULL - 1 || !is_row(my, size, bytes[at + MY_HEADER])
            || size > length - at - MY_HEADER)
            break;
        my->seq = bytes[at + 3];
        at += MY_HEADER + size;
    }
    return at;
}

/* One packet's beginning. 0: more of it must be here. */
static size_t next_packet(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    uint32_t size = my_length(bytes);
    size_t looks = size < HR_WINDOW_BYTES ? size : HR_WINDOW_BYTES;
    packet it = {bytes, size, looks, bytes[3]};

    if (my->server_more)
        return stream(session, bytes, length);
    if (my->units == 0)
        return unasked(session, &it, length, next);
    if (my->answer == MY_DEFINITIONS) {
        size_t took = stream(session, bytes, length);

        if (--my->definitions == 0)
            end_definitions(session);
        return took;
    }
    if (my->answer == MY_ROWS && size > 0 && length == MY_HEADER)
        return 0;
    if (my->answer == MY_ROWS && (size == 0 || is_row(my, size, bytes[MY_HEADER])))
        return stream(session, bytes, length);
    if (length - MY_HEADER < looks)
        return 0;
    my->server_left = size - (uint32_t) looks;
    my->server_more = size == MY_FULL;
    look_at(session, &it, next);
    return MY_HEADER + looks;
}

size_t my_answers(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    size_t at = 0;

    while (at < length && *next == HR_MORE) {
        size_t took;

        if (my->server_left > 0) {
            took = length - at < my->server_left ? length - at : my->server_left;
            hr_emit(session, HR_CLIENT, bytes + at, took);
            my->server_left -= (uint32_t) took;
        } else if (length - at < MY_HEADER) {
            break;
        } else {
            took = my->answer == MY_ROWS && my->units > 0 && !my->server_more
                       ? whole_rows(my, bytes + at, length - at)
                       : 0;
            if (took > 0) {
                my->has_rows = true;
                hr_emit(session, HR_CLIENT, bytes + at, took);
            } else {
                took = next_packet(session, bytes + at, length - at, next);
            }
        }
        if (took == 0)
            break;
        at += took;
    }
    return at;
}
