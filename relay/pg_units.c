/*
 * pg_units.c: what is in flight, first in, first out.
 *
 * Units are what a ticket is to be given back for, and what a ReadyForQuery ends. A Bind that nobody
 * counts has none. Four lie in the session; a pipeline gets a ring for as long as it lasts.
 */
#include "pg_inside.h"

#include <stdlib.h>
#include <string.h>

static uint32_t room_of(const hr_pg *pg)
{
    return pg->ring == NULL ? HR_PG_UNITS_HERE : HR_PG_MAX_UNITS;
}

hr_pg_unit *hr_pg_unit_at(hr_pg *pg, uint32_t number)
{
    hr_pg_unit *units = pg->ring == NULL ? pg->here : pg->ring;

    return &units[(pg->unit_first + number) & (room_of(pg) - 1)];
}

bool hr_pg_has_room(hr_pg *pg, uint32_t more)
{
    hr_pg_unit *ring;

    if (pg->unit_count + more <= room_of(pg))
        return true;
    if (pg->ring != NULL)
        return false;
    ring = malloc(HR_PG_MAX_UNITS * sizeof *ring);
    if (ring == NULL)
        return false;
    for (uint32_t i = 0; i < pg->unit_count; i++)
        ring[i] = *hr_pg_unit_at(pg, i);
    pg->ring = ring;
    pg->unit_first = 0;
    return true;
}

hr_pg_unit *hr_pg_push(hr_session *session, uint8_t kind, hr_ticket ticket)
{
    hr_pg *pg = &session->pg;
    hr_pg_unit *unit = hr_pg_unit_at(pg, pg->unit_count);

    *unit = (hr_pg_unit){.sent_ns = session->thread->now_ns,
                         .at = pg->sent,
                         .ends_at = UINT32_MAX,
                         .ticket = ticket,
                         .kind = kind};
    if (pg->unit_count++ == 0)
        session->statement_since_ns = session->thread->now_ns;
    pg->tickets += ticket != 0;
    return unit;
}

/* The server began with it when it had it, and had done with what was before it. */
void hr_pg_finish(hr_session *session, hr_pg_unit *unit, bool failed)
{
    hr_pg *pg = &session->pg;
    uint64_t started_ns = unit->sent_ns > pg->ended_ns ? unit->sent_ns : pg->ended_ns;

    pg->ended_ns = session->thread->now_ns;
    free(unit->pending);
    unit->pending = NULL;
    if (unit->ticket == 0)
        return;
    hr_done(session, unit->ticket, started_ns, failed || unit->failed);
    unit->ticket = 0;
    pg->tickets--;
}

void hr_pg_pop(hr_session *session)
{
    hr_pg *pg = &session->pg;

    pg->unit_first = (uint16_t) ((pg->unit_first + 1u) & (room_of(pg) - 1));
    if (--pg->unit_count > 0)
        return;
    session->statement_since_ns = 0;
    pg->unit_first = 0;
    free(pg->ring);
    pg->ring = NULL;
}

void hr_pg_tidy(hr_session *session)
{
    hr_pg *pg = &session->pg;

    while (pg->unit_count > 0) {
        hr_pg_unit *first = hr_pg_unit_at(pg, 0);

        if (first->kind != HR_PG_UNIT_BIND || first->ticket != 0 || first->pending != NULL)
            return;
        hr_pg_pop(session);
    }
}

void hr_pg_planned(hr_session *session)
{
    hr_pg *pg = &session->pg;
    hr_ticket planned = pg->planned;

    pg->planned = 0;
    if (planned != 0)
        hr_planned(session, planned, pg->planned_ns > pg->ended_ns ? pg->planned_ns : pg->ended_ns);
}

/* It is bound, and nothing of it executed: it has no place, but the server plans it, as long as that may
 * take. Of several the last one, which comes first here, is charged for all. */
static void give_up(hr_session *session, hr_pg_unit *unit)
{
    hr_pg *pg = &session->pg;

    if (unit->ticket == 0)
        return;
    if (pg->planned != 0) {
        hr_unused(session, unit->ticket);
    } else {
        hr_bound(session, unit->ticket);
        pg->planned = unit->ticket;
        pg->planned_segment = pg->segment;
        pg->planned_at = unit->at;
    }
    pg->planned_ns = unit->sent_ns;
    unit->ticket = 0;
    pg->tickets--;
}

void hr_pg_let_go(hr_session *session)
{
    hr_pg *pg = &session->pg;

    hr_pg_planned(session);
    for (uint32_t i = pg->unit_count; i-- > 0;) {
        hr_pg_unit *unit = hr_pg_unit_at(pg, i);

        if (unit->kind >= HR_PG_UNIT_QUERY)
            break;
        if (unit->kind != HR_PG_UNIT_BIND || unit->ends_at != UINT32_MAX)
            continue;
        give_up(session, unit);
        pg->segment_given = true;
    }
    if (pg->segment_given && !pg->segment_executed && pg->transaction_segment != pg->segment) {
        pg->segment_ran = false; /* nothing has: its Execute will be the first */
        pg->ran = pg->ran_before;
    }
    hr_pg_tidy(session);
}

void hr_pg_finish_all(hr_session *session)
{
    hr_pg_planned(session);
    while (session->pg.unit_count > 0) {
        hr_pg_finish(session, hr_pg_unit_at(&session->pg, 0), true);
        hr_pg_pop(session);
    }
}

hr_pg_unit *hr_pg_unit_bound(hr_pg *pg, uint32_t portal)
{
    for (uint32_t i = pg->unit_count; i-- > 0;) {
        hr_pg_unit *unit = hr_pg_unit_at(pg, i);

        if (unit->kind >= HR_PG_UNIT_QUERY)
            return NULL;
        if (unit->kind == HR_PG_UNIT_BIND && unit->portal == portal && unit->ends_at == UINT32_MAX)
            return unit;
    }
    return NULL;
}

bool hr_pg_owes_ready(hr_pg *pg)
{
    for (uint32_t i = 0; i < pg->unit_count; i++)
        if (hr_pg_unit_at(pg, i)->kind >= HR_PG_UNIT_QUERY)
            return true;
    return false;
}
