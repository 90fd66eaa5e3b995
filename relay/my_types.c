/*
 * my_types.c: the types of a prepared statement's parameters, over a block.
 *
 *   EXECUTE with types ──blocked──► kept here ──► into the next EXECUTE that has none
 *
 * A client sends the types once, and takes them for known even if it got an error: a server has read
 * them by then. Ours is blocked before the server sees it; so without this its next execution would be
 * read by the types of the one before it: an error at best, garbage in the table at worst.
 */
#include "my_inside.h"

#include <stdlib.h>

#define FLAGS_AT 5u
#define BULK_TYPES 128u      /* flags of BULK_EXECUTE, which are two bytes */
#define COUNT_AVAILABLE 8u /* flags of EXECUTE, with query attributes: it says how many there are */
#define MAX_BYTES 8000u /* of one statement's types: 4,000 parameters. More are not kept */
#define MAX_ALL_BYTES 65536u /* of one session's */

struct my_types {
    struct my_types *next;
    uint32_t id, count, length;
    uint8_t bytes[];
};

typedef struct binding {
    size_t flag_at, at, length; /* in the payload: whether there are types, and where */
    uint32_t count;
    bool bound, cut; /* has types; and not all of what is looked at is here */
} binding;

static bool named(const hr_session *session)
{
    return (session->my.can & MY_CAN_QUERY_ATTRIBUTES) != 0;
}

size_t my_types_reach(hr_session *session, const my_command *it)
{
    const my_statement *statement = my_find(session, my_id_of(it));
    size_t reach = 16;

    if (statement != NULL && named(session) && it->code == MY_STMT_EXECUTE)
        reach = HR_WINDOW_BYTES;
    else if (statement != NULL)
        reach += statement->parameters / 8u + 2u * statement->parameters;
    reach = reach < HR_WINDOW_BYTES ? reach : HR_WINDOW_BYTES;
    return it->length < reach ? it->length : reach;
}

/* ── Finding them ─────────────────────────────────────────────────────────── */

static binding find_in_bulk(const my_statement *statement, const my_command *it)
{
    my_reader reader = my_read(it->payload, it->seen);
    binding found = {.flag_at = FLAGS_AT,
                     .at = FLAGS_AT + 2u,
                     .count = statement->parameters,
                     .length = 2u * statement->parameters};

    my_take(&reader, FLAGS_AT);
    found.bound = (my_fixed(&reader, 2) & BULK_TYPES) != 0;
    if (found.bound)
        my_take(&reader, found.length);
    found.cut = reader.bad;
    return found;
}

static binding find_in_execute(const hr_session *session, const my_statement *statement,
                               const my_command *it)
{
    my_reader reader = my_read(it->payload, it->seen);
    binding found = {.count = statement->parameters};
    uint64_t flags;
    size_t ignored;

    my_take(&reader, FLAGS_AT);
    flags = my_fixed(&reader, 1);
    my_take(&reader, 4);
    if (named(session) && (flags & COUNT_AVAILABLE) != 0)
        found.count = (uint32_t) my_number(&reader);
    found.cut = reader.bad;
    if (found.count == 0 || found.cut)
        return found;
    my_take(&reader, (found.count + (size_t) 7) / 8);
    found.flag_at = (size_t) (reader.at - it->payload);
    found.bound = my_fixed(&reader, 1) != 0;
    found.at = (size_t) (reader.at - it->payload);
    for (uint32_t i = 0; found.bound && i < found.count && !reader.bad; i++) {
        my_take(&reader, 2);
        if (named(session))
            my_string(&reader, &ignored);
    }
    found.length = (size_t) (reader.at - it->payload) - found.at;
    found.cut = reader.bad;
    return found;
}

static binding find(const hr_session *session, const my_statement *statement, const my_command *it)
{
    if (it->code == MY_BULK_EXECUTE)
        return find_in_bulk(statement, it);
    if (it->code == MY_STMT_EXECUTE)
        return find_in_execute(session, statement, it);
    return (binding){.count = 0};
}

/* ── Keeping them ─────────────────────────────────────────────────────────── */

static struct my_types **kept_of(hr_my_more *more, uint32_t id)
{
    struct my_types **at = &more->types;

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

void my_types_drop(hr_my_more *more, uint32_t id)
{
    struct my_types **at = kept_of(more, id), *kept = *at;

    if (kept == NULL)
        return;
    *at = kept->next;
    more->types_bytes -= kept->length;
    free(kept);
}

void my_types_drop_all(hr_my_more *more)
{
    while (more->types != NULL)
        my_types_drop(more, more->types->id);
}

static bool keep(hr_my_more *more, uint32_t id, const my_command *it, const binding *found)
{
    struct my_types *kept;

    if (found->cut || found->length > MAX_BYTES || more->types_bytes + found->length > MAX_ALL_BYTES
        || (kept = malloc(sizeof *kept + found->length)) == NULL)
        return false;
    *kept = (struct my_types){
        .next = more->types, .id = id, .count = found->count, .length = (uint32_t) found->length};
    memcpy(kept->bytes, it->payload + found->at, found->length);
    more->types = kept;
    more->types_bytes += kept->length;
    return true;
}

void my_types_blocked(hr_session *session, my_statement *statement, const my_command *it)
{
    binding found;

    if (it->code == MY_STMT_FETCH)
        return;
    if (statement == NULL) { /* nobody knows what it has: with no parameters it ends here */
        session->my.shut = session->my.shut || it->length > 11;
        return;
    }
    found = find(session, statement, it);
    if (!found.bound && !found.cut)
        return;
    my_types_drop(session->my.more, statement->id);
    statement->flags &= (uint8_t) ~MY_STATEMENT_UNTYPED;
    if (!keep(session->my.more, statement->id, it, &found))
        statement->flags |= MY_STATEMENT_UNTYPED;
}

/* ── And giving them ──────────────────────────────────────────────────────── */

bool my_types_known(hr_session *session, const my_statement *statement, const my_command *it)
{
    const struct my_types *kept;
    binding found;

    if (statement == NULL)
        return true;
    kept = *kept_of(session->my.more, statement->id);
    if (kept == NULL && (statement->flags & MY_STATEMENT_UNTYPED) == 0)
        return true;
    found = find(session, statement, it);
    if (found.bound || found.count == 0)
        return true;
    return kept != NULL && !found.cut && kept->count == found.count
           && it->length + kept->length < MY_FULL;
}

/* The packet's beginning with the types in it, and what says that they are there. They are bytes of the
 * client's that no server has looked at: what is in front of them, the command first, must be here. */
static void emit_with(hr_session *session, my_command *it, const struct my_types *kept,
                      const binding *found)
{
    size_t flag_bytes = found->at - found->flag_at;
    uint8_t *head = hr_scratch(session, MY_HEADER), *types = hr_scratch(session, kept->length + 2u);

    my_put_header(head, it->length + kept->length, it->bytes[3]);
    hr_emit(session, HR_SERVER, head, MY_HEADER);
    hr_emit(session, HR_SERVER, it->payload, found->flag_at);
    memcpy(types, it->payload + found->flag_at, flag_bytes);
    types[0] |= it->code == MY_BULK_EXECUTE ? BULK_TYPES : 1u;
    memcpy(types + flag_bytes, kept->bytes, kept->length);
    hr_emit(session, HR_SERVER, types, flag_bytes + kept->length);
    it->emitted = MY_HEADER + found->at;
}

void my_types_pass(hr_session *session, my_statement *statement, my_command *it)
{
    const struct my_types *kept;
    binding found;

    if (statement == NULL || it->code == MY_STMT_FETCH)
        return;
    kept = *kept_of(session->my.more, statement->id);
    if (kept == NULL && (statement->flags & MY_STATEMENT_UNTYPED) == 0)
        return;
    found = find(session, statement, it);
    if (kept != NULL && !found.bound && !found.cut && found.count > 0)
        emit_with(session, it, kept, &found);
    my_types_drop(session->my.more, statement->id);
    statement->flags &= (uint8_t) ~MY_STATEMENT_UNTYPED;
}
