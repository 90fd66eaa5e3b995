/*
 * my_decide.c: may it run?   COM_QUERY, COM_STMT_EXECUTE, COM_STMT_FETCH ──► gate ──► goes, waits, or is
 * blocked in words of one ERR packet.
 */
#include "my_inside.h"

#include <stdio.h>
#include <stdlib.h>

/* What nobody knows is a write. */
/* ── Blocks ─────────────────────────────────────────────────────────────── */

enum my_verdict my_block(hr_session *session, const my_command *it, uint16_t code,
                         const char *state, const char *text, hr_next *next)
{
    hr_my_more *more;
    uint8_t *packet;

    my_may_write(session);
    session->my.client_drops = true;
    if (it->whole) {
        my_tell(session, (uint8_t) (it->bytes[3] + 1), code, state, text);
        return MY_BLOCKED;
    }
    more = my_more(session);
    packet = more == NULL ? NULL : malloc(MY_ERROR_BYTES + 16);
    if (packet == NULL) {
        *next = HR_CLOSE;
        return MY_WAITS;
    }
    more->error = packet;
    more->error_length = (uint16_t) my_error(packet, 0, code, state, text);
    return MY_BLOCKED;
}

/* What is appended as far as there is room. */
static void append(char *out, size_t room, const char *before, const char *text, const char *after)
{
    const char *parts[] = {before, text, after};
    size_t used = strlen(out);

    for (size_t i = 0; i < 3; i++) {
        size_t length = strnlen(parts[i], room - used - 1);

        memcpy(out + used, parts[i], length);
        used += length;
    }
    out[used] = '\0';
}

/* The message, when to come again, what there is to know: MySQL has one text for all. */
static void join_words(const hr_words *words, char *out, size_t room)
{
    char when[32];

    out[0] = '\0';
    append(out, room, "", words->message, "");
    if (words->retry_ms > 0) {
        snprintf(when, sizeof when, "%u ms", (unsigned) words->retry_ms);
        append(out, room, "; retry after ", when, "");
    } else if (words->hint[0] != '\0') {
        append(out, room, "; ", words->hint, "");
    }
    if (words->detail[0] != '\0')
        append(out, room, " (", words->detail, ")");
}

static enum my_verdict block_words(hr_session *session, const my_command *it, const hr_words *words,
                                   hr_next *next)
{
    const hr_code *code
        = &hr_code_of_cause[words->cause < HR_CAUSES ? words->cause : HR_BY_NOTHING];
    char text[MY_ERROR_BYTES];

    join_words(words, text, sizeof text);
    return my_block(session, it, code->mysql, code->mysql_state, text, next);
}

/* Kept for the SHOW WARNINGS that may follow. */
static void keep_warning(hr_session *session, const hr_words *words)
{
    hr_my_more *more = my_more(session);
    char text[MY_ERROR_BYTES];

    if (more == NULL)
        return;
    join_words(words, text, sizeof text);
    free(more->warning);
    more->warning = strdup(text);
    more->warning_code
        = hr_code_of_cause[words->cause < HR_CAUSES ? words->cause : HR_BY_BUDGET].mysql;
}

static void forget_warning(hr_session *session)
{
    hr_my_more *more = session->my.more;

    if (more == NULL || more->warning == NULL)
        return;
    free(more->warning);
    more->warning = NULL;
}

/* ── Deciding ──────────────────────────────────────────────────────────────── */

enum my_verdict my_later(hr_next *next)
{
    *next = HR_LATER;
    return MY_WAITS;
}

enum my_verdict my_enter(hr_session *session, const hr_my_unit *unit, hr_next *next)
{
    if (!my_push(session, unit)) {
        if (unit->prepared != NULL)
            hr_prepared_drop(session, unit->prepared);
        if (unit->ticket != 0)
            hr_done(session, unit->ticket, unit->started_ns, true);
        *next = my_fail(session, 1, 1041, "HY000", "headgate: out of memory for one more command");
        return MY_WAITS;
    }
    if ((unit->flags & MY_UNIT_SIMPLE) == 0)
        session->statement_since_ns = session->thread->now_ns;
    return MY_PASSES;
}

/* Only this thread writes it. */
/* Something that has been said of a statement: `unit` goes, is blocked, or waits. */
static enum my_verdict obey(hr_session *session, const my_command *it, hr_said said,
                            const hr_words *words, hr_my_unit *unit, hr_next *next)
{
    if (said == HR_WAIT_TURN)
        return my_later(next);
    if (said == HR_WAIT) {
        *next = HR_HELD;
        return MY_WAITS;
    }
    hg_add_own(&session->thread->counts->statements, 1);
    switch (said) {
    case HR_SHUT:
        session->my.shut = true;
        return block_words(session, it, words, next);
    case HR_BLOCK:
        return block_words(session, it, words, next);
    case HR_GO_WARNED:
        keep_warning(session, words);
        unit->flags |= MY_UNIT_WARNED;
        break;
    default:
        break;
    }
    unit->started_ns = session->thread->now_ns;
    return my_enter(session, unit, next);
}

static uint32_t ask_flags(const hr_my *my)
{
    if ((my->status & MY_IN_TRANSACTION) == 0)
        return 0;
    return my->ran ? HR_ASK_IN_TRANSACTION : HR_ASK_BEGUN;
}

static uint8_t flags_of_kind(int kind)
{
    uint8_t flags = kind == HR_KIND_MANY ? MY_UNIT_MANY : 0;

    return kind == HR_KIND_READ || kind == HR_KIND_WRITE || kind == HR_KIND_MANY
               ? flags | MY_UNIT_RUNS
               : flags;
}

/* The statement of a COM_QUERY; NULL: its attributes are malformed. Where they fill all that is looked at,
 * nothing is known of it, as of any text that is cut. */
static const char *text_of(const hr_session *session, const my_command *it, bool cut,
                           size_t *length)
{
    bool attributes = (session->my.can & MY_CAN_QUERY_ATTRIBUTES) != 0, beyond;
    const char *text = my_query_text(it->payload, it->seen, attributes, length, &beyond);

    if (text != NULL || !cut || !beyond)
        return text;
    *length = 0;
    return "";
}

enum my_verdict my_decide_query(hr_session *session, const my_command *it, hr_next *next)
{
    hr_my_unit unit = {.command = MY_QUERY};
    bool cut = it->seen < it->length || it->length == MY_FULL;
    size_t length = 0;
    const char *text = text_of(session, it, cut, &length);
    my_meaning meaning;
    hr_query query;
    hr_words words;
    hr_said said;
    int kind;

    if (text == NULL) {
        *next = my_fail(session, (uint8_t) (it->bytes[3] + 1), 1835, "HY000",
                        "headgate: the query's attributes are malformed");
        return MY_WAITS;
    }
    hr_query_read(&query, text, length, HG_MYSQL);
    kind = hr_query_kind(&query);
    my_read_meaning(text, length, kind == HR_KIND_MANY, &meaning);
    said = hr_ask(session, &query, ask_flags(&session->my) | (cut ? HR_ASK_TRUNCATED : 0), &words,
                  &unit.ticket);
    unit.flags = (uint8_t) (flags_of_kind(kind) | meaning.flags);
    unit.number = meaning.thread;
    if (said != HR_WAIT && said != HR_WAIT_TURN && (meaning.flags & MY_UNIT_LISTS) == 0)
        forget_warning(session);
    if (said != HR_WAIT && said != HR_WAIT_TURN) {
        hr_names_sent(session, text, length, !cut);
        if (said > HR_GO_WARNED)
            hr_names_ended(session, true);
    }
    if (meaning.use != NULL && said <= HR_GO_WARNED)
        my_keep(session, meaning.use, meaning.use_length);
    return obey(session, it, said, &words, &unit, next);
}

enum my_verdict my_decide_unknown(hr_session *session, const my_command *it, hr_next *next)
{
    hr_my_unit unit = {.command = it->code, .flags = MY_UNIT_RUNS};
    hr_words words;
    hr_said said = hr_ask(session, NULL, ask_flags(&session->my), &words, &unit.ticket);

    if (said != HR_WAIT && said != HR_WAIT_TURN)
        forget_warning(session);
    return obey(session, it, said, &words, &unit, next);
}

/* A blocked execution must not leave its long data at the server: the client sends them again with the
 * next one, and they would be appended. A server's own error resets them, too. */
static void reset_long_data(hr_session *session, my_statement *statement)
{
    hr_my_unit unit = {.command = MY_STMT_RESET, .flags = MY_UNIT_SIMPLE | MY_UNIT_OWN};
    uint8_t *packet;

    if (statement == NULL || (statement->flags & MY_STATEMENT_LONG_DATA) == 0
        || !my_push(session, &unit))
        return;
    statement->flags &= (uint8_t) ~MY_STATEMENT_LONG_DATA;
    packet = hr_scratch(session, MY_HEADER + 5);
    my_put_header(packet, 5, 0);
    packet[4] = MY_STMT_RESET;
    my_put(packet + 5, statement->id, 4);
    hr_emit(session, HR_SERVER, packet, MY_HEADER + 5);
}

static hr_said ask_statement(hr_session *session, const my_statement *statement, uint32_t flags,
                             hr_words *words, hr_my_unit *unit)
{
    /* More than are kept, or -1 behind a PREPARE that failed, where MariaDB may run the one before it: a write
     * that nobody knows. */
    if (statement == NULL) {
        unit->flags |= MY_UNIT_RUNS;
        return hr_ask(session, NULL, flags, words, &unit->ticket);
    }
    unit->flags |= flags_of_kind(hr_prepared_kind(statement->prepared));
    if (statement->flags & MY_STATEMENT_ENDS)
        unit->flags |= MY_UNIT_ENDS;
    return hr_ask_prepared(session, statement->prepared, flags, words, &unit->ticket);
}

/* What it runs may prepare by SQL, out of sight. */
static void names_sent(hr_session *session, const my_statement *statement)
{
    size_t length = 0;
    bool whole = false;
    const char *text = statement == NULL ? ""
                                         : hr_prepared_text(statement->prepared, &length, &whole);

    hr_names_sent(session, text, length, whole);
}

uint32_t my_id_of(const my_command *it)
{
    my_reader reader = my_read(it->payload, it->seen);

    my_fixed(&reader, 1);
    return (uint32_t) my_fixed(&reader, 4);
}

/* What goes with a verdict on an execution. */
static void follow_execution(hr_session *session, my_statement *statement, my_command *it,
                             enum my_verdict verdict)
{
    if (verdict == MY_BLOCKED) {
        reset_long_data(session, statement);
        my_types_blocked(session, statement, it);
    } else if (verdict == MY_PASSES && statement != NULL) {
        statement->flags &= (uint8_t) ~MY_STATEMENT_LONG_DATA;
        my_types_pass(session, statement, it);
    }
}

static enum my_verdict block_untyped(hr_session *session, const my_command *it,
                                     my_statement *statement, hr_next *next)
{
    reset_long_data(session, statement);
    return my_block(
        session, it, 1210, "HY000",
        "headgate: the last execution of this statement was blocked, "
        "and its parameters' types are lost with it; bind them again, or prepare it again",
        next);
}

enum my_verdict my_decide_execute(hr_session *session, my_command *it, hr_next *next)
{
    hr_my *my = &session->my;
    hr_my_unit unit = {.command = it->code, .number = my_id_of(it)};
    my_statement *statement = my_find(session, unit.number);
    uint32_t flags = HR_ASK_BINARY
                     | (it->code == MY_STMT_FETCH ? HR_ASK_IN_TRANSACTION : ask_flags(my));
    enum my_verdict verdict;
    hr_words words;
    hr_said said;

    if (it->code != MY_STMT_FETCH && !my_types_known(session, statement, it))
        return block_untyped(session, it, statement, next);
    if (it->code == MY_STMT_EXECUTE && it->seen > 5 && it->payload[5] != 0)
        unit.flags |= MY_UNIT_OPEN;
    said = ask_statement(session, statement, flags, &words, &unit);
    if (said != HR_WAIT && said != HR_WAIT_TURN)
        forget_warning(session);
    if (said <= HR_GO_WARNED)
        names_sent(session, statement);
    verdict = obey(session, it, said, &words, &unit, next);
    follow_execution(session, statement, it, verdict);
    return verdict;
}
