/*
 * pg_transaction.c: the state of the transaction, and whether something that is decided has run in it.
 *
 *   BEGIN                        opens a transaction; what has run before it in its string or segment counts
 *   COMMIT, ROLLBACK, PREPARE TRANSACTION   end it: the next statement is a first one again, AND CHAIN or not
 *   SAVEPOINT, RELEASE, ROLLBACK TO, SET, … neither run nor end anything; so does nothing that is blocked
 *
 * A session that holds locks must not be hurt (R148), and one that begins must not get by: so this is
 * followed statement by statement, through failed transactions too. Where a Query runs nothing else does: there
 * the server's own words are followed, its command tags, which no way of writing can deceive. They leave
 * but ROLLBACK TO open, which the text says.
 */
#include "pg_inside.h"

#include <string.h>

static void turn(hr_pg *pg, uint8_t transaction)
{
    pg->transaction = transaction;
    pg->transaction_segment = pg->segment;
}

void hr_pg_follow_transaction(hr_pg *pg, int kind, uint8_t word)
{
    switch (word) {
    case HR_PG_WORD_ENDS:
    case HR_PG_WORD_CHAINS:
        turn(pg, word == HR_PG_WORD_ENDS ? HR_PG_TRANSACTION_NONE : HR_PG_TRANSACTION_OPEN);
        pg->ran = pg->segment_ran = false;
        return;
    case HR_PG_WORD_BEGINS:
        if (pg->transaction != HR_PG_TRANSACTION_NONE)
            return;
        turn(pg, HR_PG_TRANSACTION_OPEN);
        pg->ran = pg->segment_ran;
        return;
    case HR_PG_WORD_BACK:
        if (pg->transaction == HR_PG_TRANSACTION_FAILED)
            turn(pg, HR_PG_TRANSACTION_OPEN);
        return;
    case HR_PG_WORD_UNSEEN: /* may be all of these: what follows it is decided as a first one */
        turn(pg, pg->transaction);
        pg->ran = pg->segment_ran = false;
        return;
    default:
        if (kind > HR_KIND_WRITE && kind != HR_KIND_MANY)
            return;
        pg->segment_ran = true;
        pg->ran = pg->ran || pg->transaction == HR_PG_TRANSACTION_OPEN;
    }
}

bool hr_pg_transaction_sure(const hr_pg *pg)
{
    return pg->transaction == HR_PG_TRANSACTION_NONE || !pg->ran
           || pg->transaction_segment == pg->segment
           || (int32_t) (pg->transaction_segment - pg->server_segment) < 0;
}

void hr_pg_settle_transaction(hr_pg *pg, uint8_t kind)
{
    if (pg->unit_count > 0 || pg->segment_bound)
        return; /* the client's stream is further on than this */
    pg->transaction_segment = pg->server_segment - 1;
    if (pg->status == 'I') {
        pg->transaction = HR_PG_TRANSACTION_NONE;
        pg->ran = false;
    } else if (pg->status == 'E') {
        pg->transaction = HR_PG_TRANSACTION_FAILED;
    } else {
        /* Begun by what nobody could foresee: never hurt a lock holder. */
        pg->ran |= kind == HR_PG_UNIT_CALL
                   || (kind == HR_PG_UNIT_SYNC && pg->transaction == HR_PG_TRANSACTION_NONE);
        pg->transaction = HR_PG_TRANSACTION_OPEN;
    }
}

/* ── Queries ──────────────────────────────────────────────────────────────── */

static bool is_free(const hr_reading *reading)
{
    return reading->kind > HR_KIND_WRITE;
}

void hr_pg_begin_string(hr_pg *pg, const hr_slice *slices, uint32_t count)
{
    pg->free_statements = pg->back_statements = pg->end_statements = 0;
    pg->stated = 0;
    for (uint32_t i = 0; i < count; i++) {
        pg->free_statements |= (uint32_t) (is_free(&slices[i].reading) || slices[i].reading.back
                                           || slices[i].reading.ends)
                               << i;
        pg->back_statements |= (uint32_t) slices[i].reading.back << i;
        pg->end_statements |= (uint32_t) slices[i].reading.ends << i;
    }
}

static bool is_in(uint32_t statements, uint32_t number)
{
    return number < HR_MAX_SLICES && (statements >> number & 1u) != 0;
}

void hr_pg_complete_statement(hr_pg *pg, const char *tag)
{
    uint32_t number = pg->stated;

    if (pg->stated < UINT16_MAX)
        pg->stated++;
    if (is_in(pg->end_statements, number) || strcmp(tag, "COMMIT") == 0
        || strcmp(tag, "PREPARE TRANSACTION") == 0
        || (strcmp(tag, "ROLLBACK") == 0 && !is_in(pg->back_statements, number)))
        pg->ran = false;
    else if (!is_in(pg->free_statements, number) && *tag != '\0')
        pg->ran = true;
}

/* It did run, and was decided; unless the transaction had failed before. */
void hr_pg_fail_statement(hr_pg *pg)
{
    if (!is_in(pg->free_statements, pg->stated)
        && !(pg->transaction == HR_PG_TRANSACTION_FAILED && pg->stated == 0))
        pg->ran = true;
}

hr_pg_ending hr_pg_end_string(const hr_pg *pg, const hr_slice *slices, uint32_t blocked)
{
    hr_pg_ending ending = {.open = pg->transaction != HR_PG_TRANSACTION_NONE, .is_free = true};

    for (uint32_t i = 0; i < blocked; i++) {
        const hr_reading *reading = &slices[i].reading;

        if (reading->ends || reading->kind == HR_KIND_BEGIN)
            ending.open = !reading->ends || reading->chains;
        ending.turns |= reading->ends || reading->back || reading->kind == HR_KIND_BEGIN;
        ending.is_free &= is_free(reading);
    }
    return ending;
}
