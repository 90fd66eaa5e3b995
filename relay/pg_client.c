/*
 * pg_client.c: what the client says, on its way to the server.
 *
 * A statement is asked for where it begins: at its Query, or at its Bind, which names it and starts
 * planning. What may go goes as slices of what was fed. A block is answered here if the server need
 * not know; else a message that fails goes in its place, so that the transaction is lost as it would be
 * by an error of the server's own, and the client gets its errors in order.
 */
#include "pg_inside.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NAMES_BYTES 4096u /* of a Bind; the server tells names apart by 63 bytes each */
#define MAX_ANSWERS 32u       /* of our own in one call: then others have their turn */

/* ── Passing, dropping ────────────────────────────────────────────────────── */

void hr_pg_flush(hr_pg_feed *feed)
{
    hr_emit(feed->session, HR_SERVER, feed->bytes + feed->sent, feed->at - feed->sent);
    feed->sent = feed->at;
}

static bool pass(hr_pg_feed *feed, uint32_t total)
{
    size_t there = feed->length - feed->at;
    size_t here = total < there ? total : there;

    feed->at += here;
    feed->pg->pass_left = (uint32_t) (total - here);
    return true;
}

static bool drop(hr_pg_feed *feed, uint32_t total)
{
    size_t there = feed->length - feed->at;
    size_t here = total < there ? total : there;

    hr_pg_flush(feed);
    feed->at += here;
    feed->sent = feed->at;
    feed->pg->drop_left = (uint32_t) (total - here);
    return true;
}

/* One that the server answers, of the extended protocol. */
static bool pass_counted(hr_pg_feed *feed, uint32_t total)
{
    feed->pg->sent++;
    feed->pg->unflushed = true;
    return pass(feed, total);
}

static void begin_segment(hr_pg *pg)
{
    pg->segment++;
    pg->sent = pg->parses = 0;
    pg->segment_ran = pg->segment_bound = pg->segment_executed = pg->segment_given = false;
    pg->unflushed = pg->data_ended = false;
    pg->skip_until_sync = HR_PG_SKIP_NOTHING;
}

/* Answers that the server keeps until a Sync may be what this waits for: it is made to send them. */
bool hr_pg_wait_turn(hr_pg_feed *feed)
{
    hr_pg *pg = feed->pg;

    hr_pg_flush(feed);
    if (pg->unflushed && !pg->copying_in)
        hr_pg_say_flush(feed->session);
    pg->unflushed = false;
    feed->next = HR_LATER;
    return false;
}

/* ── Checks ───────────────────────────────────────────────────────────────── */

bool hr_pg_answers_alone(const hr_pg *pg)
{
    return pg->unit_count == 0 && pg->sent == 0 && pg->status == 'I'
           && pg->transaction == HR_PG_TRANSACTION_NONE && !pg->copying_in
           && pg->server_pass_left == 0 && pg->server_drop_left == 0;
}

static uint32_t ask_flags(const hr_pg *pg)
{
    uint32_t begun = pg->transaction == HR_PG_TRANSACTION_NONE ? 0
                     : pg->ran                                 ? HR_ASK_IN_TRANSACTION
                                                               : HR_ASK_BEGUN;

    return begun | (pg->tickets > 0 ? HR_ASK_RUNNING : 0);
}

/* In a failed transaction the server does nothing, unless something under way repairs it (ROLLBACK TO);
 * and behind an error nothing up to Sync. */
static bool is_lost(const hr_pg *pg)
{
    return (pg->transaction == HR_PG_TRANSACTION_FAILED && pg->unit_count == 0
            && !pg->segment_bound)
           || (pg->server_skips && pg->segment == pg->server_segment);
}

/* Whether there is room for it, and whether it is known where it would run. A Query may hold a BEGIN, a
 * COMMIT or both: what comes behind one waits until the server says what it has led to. */
static bool may_ask(hr_session *session)
{
    hr_pg *pg = &session->pg;

    if (!hr_pg_has_room(pg, 2))
        hr_pg_let_go(session); /* else Binds could wait for Executes that come behind them */
    if (!hr_pg_has_room(pg, 2) || !hr_pg_transaction_sure(pg))
        return false; /* it would be let by as one that is inside a transaction, which may not be */
    if (pg->unit_count == 0)
        return pg->server_pass_left == 0 && pg->server_drop_left == 0;
    return hr_pg_unit_at(pg, 0)->kind != HR_PG_UNIT_QUERY
           && hr_pg_unit_at(pg, 0)->kind != HR_PG_UNIT_CALL;
}

/* A Query or FunctionCall waits for all that is before it. */
static bool may_ask_alone(hr_session *session)
{
    if (session->pg.unit_count > 0 && !hr_pg_owes_ready(&session->pg))
        hr_pg_let_go(session);
    return session->pg.unit_count == 0 && session->pg.effects == NULL && may_ask(session);
}

/* What a name means is known: no SQL under way changes it, and its Parse has been taken. */
static bool is_known(hr_session *session, const hr_pg_called *called)
{
    hr_pg *pg = &session->pg;
    uint8_t word;

    hr_pg_statement(session, called, &word);
    if (pg->effects != NULL && (called->length > 0 || word == HR_PG_WORD_EXECUTES))
        return false;
    if (word == HR_PG_WORD_EXECUTES && hr_pg_owes_ready(pg))
        return false; /* of which the names in it are not known here */
    return hr_pg_statement_sure(session, called);
}

/* ── Blocking ─────────────────────────────────────────────────────────────── */

bool hr_pg_transaction_alone(hr_pg_feed *feed)
{
    hr_pg_said said = hr_pg_transactioned(&feed->words, false);

    hg_add_own(&feed->session->thread->counts->statements, 1);
    hr_pg_flush(feed);
    hr_pg_say(feed->session, &said);
    feed->pg->skip_until_sync = HR_PG_SKIP_ALONE;
    feed->answers++;
    return true;
}

static hr_pg_pending *block_of(const hr_pg_feed *feed)
{
    hr_pg_said said = hr_pg_transactioned(&feed->words, false);

    return hr_pg_keep(&said);
}

/* Takes `pending` over. */
static void send_invalid_bind(hr_pg_feed *feed, bool with_sync, hr_pg_pending *pending)
{
    hg_add_own(&feed->session->thread->counts->statements, 1);
    hr_pg_flush(feed);
    hr_pg_say_invalid_bind(feed->session, with_sync);
    hr_pg_push(feed->session, HR_PG_UNIT_INVALID_BIND, 0)->pending = pending;
}

static bool fail_message(hr_pg_feed *feed, hr_pg_pending *pending)
{
    send_invalid_bind(feed, false, pending);
    feed->pg->sent++;
    feed->pg->unflushed = true;
    feed->pg->skip_until_sync
        = HR_PG_SKIP_FAILED; /* the server would skip it all: it need not even come */
    return true;
}

static bool block_message(hr_pg_feed *feed)
{
    if (hr_pg_answers_alone(feed->pg))
        return hr_pg_transaction_alone(feed);
    return fail_message(feed, block_of(feed));
}

static bool fail_query(hr_pg_feed *feed, uint32_t total)
{
    send_invalid_bind(feed, true, block_of(feed));
    hr_pg_push(feed->session, HR_PG_UNIT_SYNC, 0);
    begin_segment(feed->pg);
    return drop(feed, total);
}

static bool block_query_alone(hr_pg_feed *feed, uint32_t total)
{
    hr_pg_transaction_alone(feed);
    hr_pg_say_ready(feed->session, 'I');
    feed->pg->skip_until_sync = HR_PG_SKIP_NOTHING;
    return drop(feed, total);
}

static bool block_call(hr_pg_feed *feed, uint32_t total)
{
    return hr_pg_answers_alone(feed->pg) ? block_query_alone(feed, total) : fail_query(feed, total);
}

/* A Query of our own, of this text, whose ReadyForQuery the client does not see. */
static void send_hidden(hr_pg_feed *feed, const char *text, size_t length, bool eaten)
{
    hr_pg_unit *unit;

    hr_pg_flush(feed);
    hr_pg_say_query(feed->session, text, length);
    unit = hr_pg_push(feed->session, HR_PG_UNIT_QUERY, 0);
    unit->hidden = true;
    unit->eaten = eaten;
    begin_segment(feed->pg);
}

/* Which of the string's statements was blocked: one that is decided. */
static uint32_t blocked_of(const hr_pg_feed *feed, const hr_slice *slices, uint32_t count)
{
    uint32_t at = feed->words.statement;

    while (at + 1 < count && slices[at].reading.kind > HR_KIND_WRITE)
        at++;
    return at < count ? at : 0;
}

/* Sent where the client is at a message's end, and has got all answers before it. */
static bool try_to_shut(hr_pg_feed *feed)
{
    hr_pg *pg = feed->pg;

    if (pg->server_pass_left > 0 || pg->server_drop_left > 0 || hr_pg_owes_ready(pg))
        return hr_pg_wait_turn(feed);
    hr_pg_flush(feed);
    hr_pg_say_kept(feed->session, &pg->pending_error);
    pg->phase = HR_PG_ENDED;
    feed->next = HR_CLOSE;
    return false;
}

bool hr_pg_shut(hr_pg_feed *feed)
{
    hr_pg_said said = hr_pg_transactioned(&feed->words, true);

    feed->pg->pending_error = hr_pg_keep(&said);
    if (feed->pg->pending_error == NULL) {
        feed->next = HR_CLOSE;
        return false;
    }
    return try_to_shut(feed);
}

/* It waits for this session's own earlier statements; but not for what is executed behind it. */
static bool wait_for_own(hr_pg_feed *feed)
{
    hr_pg_let_go(feed->session);
    return feed->pg->tickets == 0 || hr_pg_wait_turn(feed);
}

/* What was said, for what cannot go (now). Whether to go on: then the same message is looked at again. */
static bool not_now(hr_pg_feed *feed)
{
    if (feed->said == HR_SHUT)
        return hr_pg_shut(feed);
    if (feed->said == HR_WAIT_TURN && feed->pg->tickets > 0)
        return wait_for_own(feed);
    feed->next = HR_HELD;
    return false;
}

static bool goes(const hr_pg_feed *feed)
{
    return feed->said == HR_GO || feed->said == HR_GO_WARNED;
}

/* Before its answer, and behind the answers before it. Takes the notice over. */
static void notify(hr_pg_feed *feed, hr_pg_unit *unit, hr_pg_pending *notice)
{
    unit->pending = notice;
    if (notice == NULL || feed->pg->unit_count > 1)
        return;
    hr_pg_say_kept(feed->session, &unit->pending);
    feed->answers++;
}

static hr_pg_pending *notice_of(const hr_pg_feed *feed)
{
    hr_pg_said said;

    if (feed->said != HR_GO_WARNED)
        return NULL;
    said = hr_pg_warning(&feed->words);
    return hr_pg_keep(&said);
}

/* ── Query, FunctionCall ──────────────────────────────────────────────────── */

/* It runs nothing of anybody's: no query, and so no function, no trigger, no rule. */
static bool is_plain(int kind)
{
    return kind != HR_KIND_READ && kind != HR_KIND_WRITE && kind != HR_KIND_MANY;
}

/* What it will have led to is said by the server's command tags, and its ReadyForQuery. */
static void note_string(hr_session *session, const hr_query *query, uint32_t count, bool whole)
{
    bool plain = whole;

    hr_pg_begin_string(&session->pg, query->slices, count);
    for (uint32_t i = 0; i < count; i++) {
        const hr_slice *slice = &query->slices[i];

        plain = plain && is_plain(slice->reading.kind) && !slice->reading.ends;
        hr_pg_expect(session, query->text + slice->start, slice->length, whole || i + 1 < count,
                     &slice->reading, i);
    }
    if (!plain)
        hr_pg_statements_doubt(session);
}

/* As if the server itself had failed it there. If a transaction is open then, it must be a failed one:
 * else what the client sends behind it, thinking of none, would be half of what is committed. So what
 * begins it, or ends the one before, goes; a decided statement does not. */
static bool block_query(hr_pg_feed *feed, const hr_query *query, uint32_t total)
{
    const hr_slice *slices = query->slices;
    uint32_t blocked = blocked_of(feed, slices, query->count);
    hr_pg_ending ending = hr_pg_end_string(feed->pg, slices, blocked);

    if (hr_pg_answers_alone(feed->pg) && !ending.open)
        return block_query_alone(feed, total);
    if (ending.turns && ending.is_free) {
        note_string(feed->session, query, blocked, true);
        send_hidden(feed, query->text, slices[blocked].start, false);
    } else if (ending.open && feed->pg->transaction == HR_PG_TRANSACTION_NONE) {
        hr_pg_begin_string(feed->pg, slices, 0);
        send_hidden(feed, "BEGIN", 5, true);
    }
    return fail_query(feed, total);
}

static bool pass_query(hr_pg_feed *feed, uint8_t kind, uint32_t total)
{
    hg_add_own(&feed->session->thread->counts->statements, 1);
    notify(feed, hr_pg_push(feed->session, kind, feed->ticket), notice_of(feed));
    begin_segment(feed->pg);
    return pass(feed, total);
}

/* In a failed transaction the server does nothing but what ends or repairs it, and then what follows that
 * in the string. */
static bool may_mend(const char *text, size_t length, bool whole)
{
    switch (hr_pg_word_of(text, length, !whole)) {
    case HR_PG_WORD_ENDS:
    case HR_PG_WORD_CHAINS:
    case HR_PG_WORD_BACK:
    case HR_PG_WORD_UNSEEN:
        return true;
    default:
        return false;
    }
}

static bool on_query(hr_pg_feed *feed, uint32_t total)
{
    const char *text = (const char *) feed->bytes + feed->at + HR_PG_HEADER_BYTES;
    size_t there = feed->length - feed->at - HR_PG_HEADER_BYTES;
    size_t body = total - HR_PG_HEADER_BYTES;
    size_t most = hr_text_most(feed->session->thread);
    size_t look = body < most ? body : most;
    hr_query query;
    size_t length;
    bool whole;

    if (there < look)
        return false;
    if (!may_ask_alone(feed->session))
        return hr_pg_wait_turn(feed);
    length = strnlen(text, look);
    whole = length < look || body == look;
    hr_query_read(&query, text, length, HG_POSTGRES);
    feed->words.statement = 0;
    feed->said = HR_GO;
    feed->ticket = 0;
    if (!is_lost(feed->pg) || may_mend(text, length, whole))
        feed->said = hr_ask(feed->session, &query,
                            ask_flags(feed->pg) | (whole ? 0 : HR_ASK_TRUNCATED), &feed->words,
                            &feed->ticket);
    if (feed->said == HR_BLOCK)
        return block_query(feed, &query, total);
    if (!goes(feed))
        return not_now(feed);
    note_string(feed->session, &query, query.count, whole);
    return pass_query(feed, HR_PG_UNIT_QUERY, total);
}

/* It names a function by number: nobody knows what that does. */
static bool on_call(hr_pg_feed *feed, uint32_t total)
{
    if (!may_ask_alone(feed->session))
        return hr_pg_wait_turn(feed);
    feed->said = HR_GO;
    feed->ticket = 0;
    if (!is_lost(feed->pg))
        feed->said = hr_ask(feed->session, NULL, ask_flags(feed->pg), &feed->words, &feed->ticket);
    if (feed->said == HR_BLOCK)
        return block_call(feed, total);
    if (!goes(feed))
        return not_now(feed);
    hr_pg_statements_doubt(feed->session);
    return pass_query(feed, HR_PG_UNIT_CALL, total);
}

/* ── Parse ────────────────────────────────────────────────────────────────── */

bool hr_pg_read_parse(const hr_pg_feed *feed, size_t at, size_t there, hr_pg_parse *parse)
{
    const uint8_t *message = feed->bytes + at;
    size_t body = hr_pg_u32(message + 1) - 4u;
    size_t most = hr_text_most(feed->session->thread);
    size_t look = body < most ? body : most;
    const uint8_t *name = message + HR_PG_HEADER_BYTES;
    const uint8_t *name_end;
    size_t left;

    if (there < HR_PG_HEADER_BYTES + look)
        return false;
    name_end = memchr(name, '\0', look);
    if (name_end == NULL)
        name_end = name + look;
    left = (size_t) (name + look - name_end);
    parse->name = hr_pg_call(name, (size_t) (name_end - name));
    parse->text = left == 0 ? "" : (const char *) name_end + 1;
    parse->length = left == 0 ? 0 : strnlen(parse->text, left - 1);
    parse->truncated = body > look && (left == 0 || parse->length == left - 1);
    return true;
}

static bool on_parse(hr_pg_feed *feed, uint32_t total)
{
    hr_session *session = feed->session;
    hr_prepared *prepared;
    hr_pg_parse parse;
    uint8_t word;

    if (!hr_pg_read_parse(feed, feed->at, feed->length - feed->at, &parse))
        return false;
    if (!hr_pg_statement_may_change(session, &parse.name)
        || (feed->pg->effects != NULL && parse.name.length > 0))
        return hr_pg_wait_turn(feed);
    if (feed->parsed_at == feed->at) {
        prepared = feed->parsed;
        feed->parsed = NULL;
        feed->parsed_at = SIZE_MAX;
    } else {
        prepared = hr_prepare(session, parse.text, parse.length, parse.truncated);
    }
    word = hr_pg_word_of(parse.text, parse.length, parse.truncated);
    feed->pg->parses++;
    hr_pg_statement_put(session, &parse.name, prepared, word);
    hg_add_own(&session->thread->counts->prepared, 1);
    return pass_counted(feed, total);
}

/* ── Bind, Execute ────────────────────────────────────────────────────────── */

bool hr_pg_read_bind(const uint8_t *message, size_t there, hr_pg_bind *bind)
{
    size_t body = hr_pg_u32(message + 1) - 4u;
    size_t look = body < MAX_NAMES_BYTES ? body : MAX_NAMES_BYTES;
    const uint8_t *portal = message + HR_PG_HEADER_BYTES, *statement;
    const uint8_t *portal_end, *statement_end;
    bool all;

    there -= HR_PG_HEADER_BYTES;
    all = there >= look;
    if (there < look)
        look = there;
    portal_end = memchr(portal, '\0', look);
    statement = portal_end == NULL ? portal + look : portal_end + 1;
    statement_end = memchr(statement, '\0', look - (size_t) (statement - portal));
    if (statement_end == NULL) {
        bind->portal = bind->statement = hr_pg_call((const uint8_t *) "\n", 1);
        return all;
    }
    bind->portal = hr_pg_call(portal, (size_t) (portal_end - portal));
    bind->statement = hr_pg_call(statement, (size_t) (statement_end - statement));
    return true;
}

static void ask_prepared(hr_pg_feed *feed, hr_prepared *prepared, uint32_t flags)
{
    flags |= HR_ASK_BINARY;
    feed->said = HR_GO;
    feed->ticket = 0;
    if (is_lost(feed->pg))
        return;
    if (prepared == NULL)
        feed->said = hr_ask(feed->session, NULL, flags, &feed->words, &feed->ticket);
    else
        feed->said = hr_ask_prepared(feed->session, prepared, flags, &feed->words, &feed->ticket);
}

static void count_portal(hr_pg_feed *feed, hr_ticket ticket, hr_pg_pending *notice, uint32_t portal,
                         uint32_t ends_at)
{
    hr_pg_unit *unit;

    if (ticket == 0 && notice == NULL)
        return;
    unit = hr_pg_push(feed->session, HR_PG_UNIT_BIND, ticket);
    unit->portal = portal;
    unit->ends_at = ends_at;
    notify(feed, unit, notice);
}

static bool pass_bind(hr_pg_feed *feed, const hr_pg_bind *bind, uint32_t total)
{
    uint8_t word;
    hr_prepared *decided = hr_pg_statement(feed->session, &bind->statement, &word);
    hr_prepared *said = hr_pg_statement_said(feed->session, &bind->statement);
    int kind = said == NULL ? HR_KIND_WRITE : hr_prepared_kind(said);

    hr_pg_portal_put(feed->session, &bind->portal, said, decided != said);
    if (!feed->pg->segment_bound)
        feed->pg->ran_before = feed->pg->ran;
    feed->pg->segment_bound = true;
    /* By what it said last: a doubtful one that is free after all must not count as a transaction's first. */
    hr_pg_follow_transaction(feed->pg, kind, word);
    if (decided == NULL || !is_plain(kind))
        hr_pg_statements_doubt(feed->session);
    return pass_counted(feed, total);
}

/* pg_head.c has asked for it already. */
static bool pass_decided(hr_pg_feed *feed, const hr_pg_bind *bind, uint32_t total)
{
    hr_pg_pending *notice = feed->decided_notice;

    feed->decided_at = SIZE_MAX;
    feed->decided_notice = NULL;
    if (feed->decided_blocked)
        return fail_message(feed, notice);
    count_portal(feed, feed->decided, notice, bind->portal.hash, UINT32_MAX);
    return pass_bind(feed, bind, total);
}

static bool on_bind(hr_pg_feed *feed, uint32_t total)
{
    hr_pg_bind bind;
    uint8_t word;

    if (!hr_pg_read_bind(feed->bytes + feed->at, feed->length - feed->at, &bind))
        return false;
    if (!may_ask(feed->session) || !is_known(feed->session, &bind.statement))
        return hr_pg_wait_turn(feed);
    if (feed->decided_at == feed->at)
        return pass_decided(feed, &bind, total);
    ask_prepared(feed, hr_pg_statement(feed->session, &bind.statement, &word),
                 ask_flags(feed->pg) | hr_pg_doubt_flag(feed->session, &bind.statement));
    if (feed->said == HR_BLOCK)
        return block_message(feed);
    if (!goes(feed))
        return not_now(feed);
    count_portal(feed, feed->ticket, notice_of(feed), bind.portal.hash, UINT32_MAX);
    return pass_bind(feed, &bind, total);
}

/* What runs may change what names mean: kept until the server has done it. */
static void expect(hr_pg_feed *feed, const hr_prepared *prepared)
{
    hr_reading reading;
    const char *text;
    size_t length;
    bool whole;

    if (prepared == NULL || hr_prepared_kind(prepared) == HR_KIND_READ)
        return;
    text = hr_prepared_text(prepared, &length, &whole);
    hr_read(text, length, HG_POSTGRES, &reading);
    if (reading.ends || !whole)
        hr_pg_statements_doubt(feed->session); /* triggers may have waited for a COMMIT */
    hr_pg_expect(feed->session, text, length, whole, &reading, feed->pg->sent);
}

static bool pass_execute(hr_pg_feed *feed, const hr_pg_called *portal, const hr_prepared *prepared,
                         bool doubtful, uint32_t total)
{
    hr_pg_portal_executed(feed->session, portal);
    expect(feed, prepared);
    if (doubtful && prepared != NULL)
        hr_follow_doubted(feed->session, prepared);
    if (doubtful || prepared == NULL || !is_plain(hr_prepared_kind(prepared)))
        hr_pg_statements_doubt(feed->session);
    hg_add_own(&feed->session->thread->counts->statements, 1);
    feed->pg->data_ended = false;
    feed->pg->segment_bound = feed->pg->segment_executed = true;
    return pass_counted(feed, total);
}

/* Of a portal that was bound in an earlier segment, or again: more of it, inside a transaction. Or of
 * one that has lost its place while it waited for this. */
static bool execute_more(hr_pg_feed *feed, const hr_pg_called *portal, hr_prepared *prepared,
                         bool doubtful, bool again, uint32_t total)
{
    if (!may_ask(feed->session))
        return hr_pg_wait_turn(feed);
    ask_prepared(feed, doubtful ? NULL : prepared,
                 ask_flags(feed->pg) | (again ? HR_ASK_IN_TRANSACTION : 0)
                     | (doubtful && prepared != NULL ? HR_ASK_DOUBTED : 0));
    if (feed->said == HR_BLOCK)
        return block_message(feed);
    if (!goes(feed))
        return not_now(feed);
    count_portal(feed, feed->ticket, notice_of(feed), portal->hash, feed->pg->sent);
    if (!again)
        hr_pg_follow_transaction(feed->pg,
                                 prepared == NULL ? HR_KIND_WRITE : hr_prepared_kind(prepared),
                                 HR_PG_WORD_OTHER);
    return pass_execute(feed, portal, prepared, doubtful, total);
}

static bool on_execute(hr_pg_feed *feed, uint32_t total)
{
    const uint8_t *name = feed->bytes + feed->at + HR_PG_HEADER_BYTES;
    hr_pg_called portal;
    hr_prepared *prepared;
    hr_pg_unit *unit;
    bool first, doubtful, decided;

    if (feed->length - feed->at < total)
        return false;
    portal = hr_pg_call(name, strnlen((const char *) name, total - HR_PG_HEADER_BYTES));
    first = hr_pg_portal_execute(feed->session, &portal, &prepared, &doubtful);
    decided = doubtful || prepared == NULL || !is_plain(hr_prepared_kind(prepared));
    unit = hr_pg_unit_bound(feed->pg, portal.hash);
    if (!first || (unit == NULL && feed->pg->segment_given && decided))
        return execute_more(feed, &portal, prepared, doubtful, !first, total);
    if (unit != NULL) {
        unit->ends_at = feed->pg->sent;
        unit->sent_ns = feed->session->thread->now_ns;
    }
    return pass_execute(feed, &portal, prepared, doubtful, total);
}

/* ── Close, Sync, and the rest ────────────────────────────────────────────── */

static bool on_close(hr_pg_feed *feed, uint32_t total)
{
    const uint8_t *body = feed->bytes + feed->at + HR_PG_HEADER_BYTES;
    hr_pg_called called;

    if (feed->length - feed->at < total)
        return false;
    if (total > HR_PG_HEADER_BYTES + 1) {
        called = hr_pg_call(body + 1,
                            strnlen((const char *) body + 1, total - HR_PG_HEADER_BYTES - 1));
        if (body[0] == 'S' && called.length > 0 && feed->pg->effects != NULL)
            return hr_pg_wait_turn(feed);
        if (body[0] == 'S')
            hr_pg_statement_close(feed->session, &called);
        else
            hr_pg_portal_drop(feed->session, &called);
    }
    return pass_counted(feed, total);
}

static bool on_sync(hr_pg_feed *feed, uint32_t total)
{
    hr_pg *pg = feed->pg;

    if (pg->skip_until_sync == HR_PG_SKIP_ALONE) {
        hr_pg_say_ready(feed->session, 'I');
        pg->skip_until_sync = HR_PG_SKIP_NOTHING;
        return drop(feed, total);
    }
    if (pg->copying_in) /* the server reads data, and does not read it */
        return pass(feed, total);
    if (!hr_pg_has_room(pg, 1))
        hr_pg_let_go(feed->session);
    if (!hr_pg_has_room(pg, 1))
        return hr_pg_wait_turn(feed);
    if (pg->segment_ran)
        hr_pg_statements_doubt(feed->session); /* it may commit, for which triggers have waited */
    hr_pg_push(feed->session, HR_PG_UNIT_SYNC, 0)->data_ended = pg->data_ended;
    begin_segment(pg);
    return pass(feed, total);
}

/* Behind statements that are under way, whose answers the client may still read: then the server will
 * close the session once it comes to it. */
static bool on_end(hr_pg_feed *feed, uint32_t total)
{
    hr_pg *pg = feed->pg;

    pass(feed, total);
    if (pg->unit_count == 0 && pg->sent == 0)
        feed->next = HR_CLOSE;
    else
        pg->phase = HR_PG_LEAVING;
    return false;
}

/* ── Messages ─────────────────────────────────────────────────────────────── */

static bool violate(hr_pg_feed *feed, const char *what)
{
    hr_pg_flush(feed);
    feed->next = hr_pg_violation(feed->session, what);
    return false;
}

/* What may be as long as the server takes; 0: no such message. */
static uint32_t longest(uint8_t type)
{
    switch (type) {
    case 'Q':
    case 'P':
    case 'B':
    case 'F':
    case 'd':
        return HR_PG_LARGE_BYTES;
    case 'E':
    case 'D':
    case 'C':
    case 'H':
    case 'S':
    case 'X':
    case 'c':
    case 'f':
        return HR_PG_SMALL_BYTES;
    default:
        return 0;
    }
}

/* While the server reads COPY data nothing else is sound; it would end the session, too. */
static bool is_data(uint8_t type)
{
    return type == 'd' || type == 'c' || type == 'f' || type == 'H' || type == 'S' || type == 'X';
}

static bool on_message(hr_pg_feed *feed, uint8_t type, uint32_t total)
{
    switch (type) {
    case 'Q':
        return on_query(feed, total);
    case 'P':
        return on_parse(feed, total);
    case 'B':
        return on_bind(feed, total);
    case 'E':
        return on_execute(feed, total);
    case 'D':
        return pass_counted(feed, total);
    case 'C':
        return on_close(feed, total);
    case 'S':
        return on_sync(feed, total);
    case 'F':
        return on_call(feed, total);
    case 'X':
        return on_end(feed, total);
    case 'c':
    case 'f':
        feed->pg->copying_in = false;
        feed->pg->data_ended = true;
        return pass(feed, total);
    case 'H': /* a portal that waits for its Execute has no place while it does */
        hr_pg_let_go(feed->session);
        feed->pg->unflushed = false;
        return pass(feed, total);
    default:
        return pass(feed, total);
    }
}

/* The rest of a message whose beginning came before. */
static void go_on(hr_pg_feed *feed)
{
    hr_pg *pg = feed->pg;

    if (pg->pass_left > 0)
        pass(feed, pg->pass_left);
    else if (pg->drop_left > 0)
        drop(feed, pg->drop_left);
}

static bool starts_segment(uint8_t type)
{
    return type == 'P' || type == 'B' || type == 'D' || type == 'C' || type == 'E';
}

/* Whether to go on with the next message. */
static bool step(hr_pg_feed *feed)
{
    hr_pg *pg = feed->pg;
    uint8_t type;
    uint32_t size;

    if (feed->length - feed->at < HR_PG_HEADER_BYTES)
        return false;
    if (feed->answers >= MAX_ANSWERS) {
        hr_wake(feed->session->thread, feed->session, feed->session->id);
        feed->next = HR_HELD;
        return false;
    }
    type = feed->bytes[feed->at];
    size = hr_pg_u32(feed->bytes + feed->at + 1);
    if (size < 4 || size > longest(type))
        return violate(feed, longest(type) == 0 ? "headgate: no such message from a client"
                                                : "headgate: invalid length of a message");
    if (pg->copying_in && !is_data(type))
        return violate(feed, "headgate: only data is taken while COPY reads from the client");
    if (pg->skip_until_sync != HR_PG_SKIP_NOTHING && type != 'S' && type != 'X')
        return drop(feed, size + 1);
    if (starts_segment(type) && hr_pg_answers_alone(pg) && !hr_pg_head(feed))
        return pg->skip_until_sync != HR_PG_SKIP_NOTHING;
    return on_message(feed, type, size + 1);
}

/* What was found out ahead, and not come to: it will be found out again. */
static void forget_head(hr_pg_feed *feed)
{
    if (feed->parsed != NULL)
        hr_prepared_drop(feed->session, feed->parsed);
    if (feed->decided_at != SIZE_MAX && feed->decided != 0)
        hr_done(feed->session, feed->decided, feed->session->thread->now_ns, true);
    free(feed->decided_notice);
}

size_t hr_pg_client(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_pg_feed feed;

    /* Field by field: the words, which are long, are filled where they are needed. */
    feed.session = session;
    feed.pg = &session->pg;
    feed.bytes = bytes;
    feed.length = length;
    feed.at = feed.sent = 0;
    feed.next = HR_MORE;
    feed.answers = 0;
    feed.decided_at = feed.parsed_at = SIZE_MAX;
    feed.parsed = NULL;
    feed.decided_notice = NULL;
    feed.decided_blocked = feed.begins = false;
    feed.ticket = 0;
    go_on(&feed);
    if (session->pg.pending_error != NULL)
        try_to_shut(&feed);
    while (feed.next == HR_MORE && step(&feed))
        ;
    forget_head(&feed);
    if (session->pg.phase != HR_PG_ENDED)
        hr_pg_flush(&feed);
    *next = feed.next;
    return feed.next == HR_CLOSE || session->pg.phase == HR_PG_LEAVING ? length : feed.at;
}
