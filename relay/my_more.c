/*
 * my_more.c: what few sessions need, so that idle ones stay small: a queue of units, prepared
 * statements by the server's id, texts that are kept until an answer has come.
 */
#include "my_inside.h"

#include <stdlib.h>

hr_my_more *my_more(hr_session *session)
{
    if (session->my.more == NULL)
        session->my.more = calloc(1, sizeof *session->my.more);
    return session->my.more;
}

/* ── Units in flight ──────────────────────────────────────────────────────── */

/* What the first packet of a command's answer is. */
static uint8_t first_of(uint8_t command)
{
    switch (command) {
    case MY_CHANGE_USER:
        return MY_AUTHENTICATES;
    case MY_STMT_FETCH:
    case MY_FIELD_LIST:
    case MY_BINLOG_DUMP:
    case MY_BINLOG_DUMP_GTID:
        return MY_ROWS;
    default:
        return MY_FIRST;
    }
}

bool my_push(hr_session *session, const hr_my_unit *unit)
{
    hr_my *my = &session->my;
    hr_my_more *more;

    if (my->units == 0) {
        my->has_rows = false;
        my->unit = *unit;
        my->answer = first_of(unit->command);
        my->units = 1;
        return true;
    }
    more = my_more(session);
    if (more == NULL)
        return false;
    if (more->queue == NULL)
        more->queue = calloc(MY_MAX_UNITS, sizeof *more->queue);
    if (more->queue == NULL)
        return false;
    more->queue[(more->queue_first + my->units - 1) % MY_MAX_UNITS] = *unit;
    my->units++;
    return true;
}

void my_pop(hr_session *session)
{
    hr_my *my = &session->my;

    if (my->unit.prepared != NULL)
        hr_prepared_drop(session, my->unit.prepared);
    my->unit = (hr_my_unit){0};
    my->has_rows = false;
    my->answer = MY_FIRST;
    if (--my->units == 0)
        return;
    my->unit = my->more->queue[my->more->queue_first];
    my->answer = first_of(my->unit.command);
    my->more->queue_first = (my->more->queue_first + 1) % MY_MAX_UNITS;
}

/* ── Prepared statements ──────────────────────────────────────────────────── */

static uint32_t place_of(const hr_my_more *more, uint32_t id)
{
    return (id * 2654435761u) >> 7 & (more->statement_room - 1);
}

static my_statement *probe(const hr_my_more *more, uint32_t id)
{
    uint32_t at = place_of(more, id);

    while (more->statements[at].id != 0 && more->statements[at].id != id)
        at = (at + 1) & (more->statement_room - 1);
    return &more->statements[at];
}

my_statement *my_find(hr_session *session, uint32_t id)
{
    hr_my_more *more = session->my.more;
    my_statement *found;

    if (more == NULL || more->statements == NULL)
        return NULL;
    if (id == UINT32_MAX) /* MariaDB: the one prepared last */
        id = more->last_id;
    if (id == 0)
        return NULL;
    found = probe(more, id);
    return found->id == 0 ? NULL : found;
}

/* Room for one more at three quarters' load; false: bound, or no memory. */
static bool make_room(hr_my_more *more)
{
    uint32_t room = more->statement_room == 0 ? 8 : more->statement_room * 2;
    my_statement *old = more->statements;
    uint32_t old_room = more->statement_room;

    if (more->statement_count >= MY_MAX_STATEMENTS)
        return false;
    if (old != NULL && (more->statement_count + 1) * 4 <= old_room * 3)
        return true;
    more->statements = calloc(room, sizeof *more->statements);
    if (more->statements == NULL) {
        more->statements = old;
        return false;
    }
    more->statement_room = room;
    for (uint32_t i = 0; i < old_room; i++)
        if (old[i].id != 0)
            *probe(more, old[i].id) = old[i];
    free(old);
    return true;
}

void my_learn(hr_session *session, const my_statement *statement)
{
    hr_my_more *more = my_more(session);
    hr_prepared *prepared = statement->prepared;
    uint32_t id = statement->id;

    my_unlearn(session, id);
    if (more != NULL)
        more->last_id = id;
    if (more == NULL || prepared == NULL || id == 0 || id == UINT32_MAX || !make_room(more)) {
        if (prepared != NULL)
            hr_prepared_drop(session, prepared);
        return;
    }
    *probe(more, id) = *statement;
    more->statement_count++;
}

/* Those behind a gap that would not be found any more move up into it. */
static void close_gap(hr_my_more *more, uint32_t gap)
{
    uint32_t mask = more->statement_room - 1;

    for (uint32_t at = (gap + 1) & mask; more->statements[at].id != 0; at = (at + 1) & mask) {
        uint32_t home = place_of(more, more->statements[at].id);

        if (((at - home) & mask) < ((at - gap) & mask))
            continue;
        more->statements[gap] = more->statements[at];
        more->statements[at] = (my_statement){0};
        gap = at;
    }
}

void my_unlearn(hr_session *session, uint32_t id)
{
    my_statement *found = my_find(session, id);
    hr_my_more *more = session->my.more;

    if (found == NULL)
        return;
    my_types_drop(more, found->id);
    hr_prepared_drop(session, found->prepared);
    *found = (my_statement){0};
    more->statement_count--;
    close_gap(more, (uint32_t) (found - more->statements));
}

void my_unlearn_all(hr_session *session)
{
    hr_my_more *more = session->my.more;

    if (more == NULL)
        return;
    for (uint32_t i = 0; i < more->statement_room; i++)
        if (more->statements[i].id != 0)
            hr_prepared_drop(session, more->statements[i].prepared);
    my_types_drop_all(more);
    free(more->statements);
    more->statements = NULL;
    more->statement_room = more->statement_count = more->last_id = 0;
}

/* ── Texts ────────────────────────────────────────────────────────────────── */

bool my_keep(hr_session *session, const void *bytes, size_t length)
{
    hr_my_more *more = my_more(session);

    if (more == NULL)
        return false;
    free(more->kept);
    more->kept = malloc(length + 1);
    if (more->kept == NULL)
        return false;
    memcpy(more->kept, bytes, length);
    more->kept[length] = 0;
    more->kept_length = (uint32_t) length;
    return true;
}

void my_more_free(hr_session *session)
{
    hr_my_more *more = session->my.more;

    if (more == NULL)
        return;
    my_unlearn_all(session);
    my_sha2_forget(more);
    free(more->queue);
    free(more->warning);
    free(more->error);
    free(more->kept);
    free(more);
    session->my.more = NULL;
}
