/*
 * pg_head.c: the first messages of a segment, before any of them is sent.
 *
 *   Parse Bind Describe Execute Sync          the Bind is asked for before the Parse is sent
 *   Parse(BEGIN) Bind Execute Parse Bind …    BEGIN is free: the Bind behind it decides
 *
 * If it is blocked, the server never sees the segment: that is the relief; but of a BEGIN it does. Only what came in one
 * read is looked at, for a client may wait for the answer to what it has sent. But a message that is
 * there in part is waited for: its client is about to send the rest.
 */
#include "pg_inside.h"

#include <string.h>

#define LOOK_AHEAD 32u /* messages */

typedef enum look { LOOK_ON, LOOK_ENOUGH, LOOK_STOP } look;

static look wait_for_rest(const hr_pg_feed *feed, size_t at)
{
    if (at == feed->length || feed->length - feed->at >= HR_WINDOW_BYTES)
        return LOOK_ENOUGH;
    return LOOK_STOP;
}

/* The last Parse of that name among the messages ahead; SIZE_MAX: none. */
static size_t find_parse(const hr_pg_feed *feed, size_t end, const hr_pg_called *called,
                         hr_pg_parse *found)
{
    size_t found_at = SIZE_MAX;

    for (size_t at = feed->at; at < end; at += hr_pg_u32(feed->bytes + at + 1) + 1) {
        hr_pg_parse parse;

        if (feed->bytes[at] != 'P' || !hr_pg_read_parse(feed, at, end - at, &parse)
            || parse.name.length != called->length
            || memcmp(parse.name.name, called->name, called->length) != 0)
            continue;
        found_at = at;
        *found = parse;
    }
    return found_at;
}

static hr_prepared *find_statement(hr_pg_feed *feed, size_t bind_at, const hr_pg_called *called,
                                   uint8_t *word)
{
    hr_pg_parse parse;
    size_t parsed_at = find_parse(feed, bind_at, called, &parse);

    if (parsed_at == SIZE_MAX)
        return hr_pg_statement(feed->session, called, word);
    *word = hr_pg_word_of(parse.text, parse.length, parse.truncated);
    if (parsed_at == feed->parsed_at)
        return feed->parsed;
    if (feed->parsed != NULL)
        hr_prepared_drop(feed->session, feed->parsed);
    feed->parsed_at = parsed_at;
    feed->parsed = hr_prepare(feed->session, parse.text, parse.length, parse.truncated);
    return feed->parsed;
}

/* What begins a transaction goes, and then fails it: else what the client has sent behind this segment
 * would run outside of the transaction that it belongs to. */
static look block_behind(hr_pg_feed *feed, size_t at)
{
    hr_pg_said block = hr_pg_transactioned(&feed->words, false);

    feed->decided_at = at;
    feed->decided = 0;
    feed->decided_blocked = true;
    feed->decided_notice = hr_pg_keep(&block);
    return LOOK_ENOUGH;
}

static look decide(hr_pg_feed *feed, size_t at)
{
    hr_pg_said warning;

    switch (feed->said) {
    case HR_GO_WARNED:
        warning = hr_pg_warning(&feed->words);
        feed->decided_notice = hr_pg_keep(&warning);
        __attribute__((fallthrough));
    case HR_GO:
        feed->decided_at = at;
        feed->decided = feed->ticket;
        return LOOK_ENOUGH;
    case HR_BLOCK:
        if (feed->begins)
            return block_behind(feed, at);
        hr_pg_transaction_alone(feed);
        return LOOK_STOP;
    case HR_SHUT:
        hr_pg_shut(feed);
        return LOOK_STOP;
    case HR_WAIT_TURN:
    case HR_WAIT:
        feed->next = HR_HELD;
        return LOOK_STOP;
    }
    return LOOK_STOP;
}

static look look_at_bind(hr_pg_feed *feed, size_t at)
{
    hr_pg_bind bind;
    hr_prepared *prepared;
    uint8_t word;
    int kind;

    if (!hr_pg_read_bind(feed->bytes + at, feed->length - at, &bind))
        return wait_for_rest(feed, at);
    prepared = find_statement(feed, at, &bind.statement, &word);
    kind = prepared == NULL ? HR_KIND_WRITE : hr_prepared_kind(prepared);
    if (kind == HR_KIND_BEGIN || kind == HR_KIND_FREE || kind == HR_KIND_EMPTY) {
        feed->begins |= word == HR_PG_WORD_BEGINS;
        /* Behind it a name may mean something else. */
        return word == HR_PG_WORD_NAMES ? LOOK_ENOUGH : LOOK_ON;
    }
    if (prepared == NULL)
        feed->said = hr_ask(feed->session, NULL,
                            HR_ASK_BINARY | hr_pg_doubt_flag(feed->session, &bind.statement),
                            &feed->words, &feed->ticket);
    else
        feed->said = hr_ask_prepared(feed->session, prepared, HR_ASK_BINARY, &feed->words,
                                     &feed->ticket);
    return decide(feed, at);
}

static look look_at(hr_pg_feed *feed, size_t at)
{
    size_t there = feed->length - at;
    hr_pg_parse parse;

    if (there < HR_PG_HEADER_BYTES)
        return wait_for_rest(feed, at);
    switch (feed->bytes[at]) {
    case 'B':
        return look_at_bind(feed, at);
    case 'P':
        return hr_pg_read_parse(feed, at, there, &parse) ? LOOK_ON : wait_for_rest(feed, at);
    case 'C':
    case 'D':
    case 'E':
        return LOOK_ON;
    default:
        return LOOK_ENOUGH;
    }
}

bool hr_pg_head(hr_pg_feed *feed)
{
    size_t at = feed->at;

    feed->begins = feed->decided_blocked = false;
    for (uint32_t looked = 0; looked < LOOK_AHEAD; looked++) {
        look found = look_at(feed, at);
        uint32_t size;

        if (found != LOOK_ON)
            return found == LOOK_ENOUGH;
        size = hr_pg_u32(feed->bytes + at + 1);
        if (size < 4 || size >= feed->length - at)
            return size < 4 || wait_for_rest(feed, at) == LOOK_ENOUGH;
        at += size + 1;
    }
    return true;
}
