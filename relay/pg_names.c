/*
 * pg_names.c: prepared statements and portals by name.
 *
 * Bounded: what is beyond the bound goes to the server all the same, and is decided as a text that
 * nobody knows. What the server has not yet done may never be done (it skips to Sync behind an error),
 * so a name keeps what it meant before, and is not forgotten before it is closed there: a client must
 * not run one text under the name of another. A name too many does no harm: the server knows it not.
 * Portals end with their transaction.
 */
#include "pg_inside.h"

#include <stdlib.h>
#include <string.h>

#define MAX_OLDERS 60u

struct hr_pg_names {
    uint64_t clock;
    uint64_t doubted; /* what was put before may mean something else; 0: never */
    uint32_t statements;
    uint32_t slots; /* a power of two */
    hr_pg_name **slot;
    hr_pg_name *portals;
};

hr_pg_called hr_pg_call(const uint8_t *name, size_t length)
{
    uint32_t hash = UINT32_C(2166136261);

    if (length > HR_PG_NAME_BYTES)
        length = HR_PG_NAME_BYTES;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ name[i]) * UINT32_C(16777619);
    return (hr_pg_called){(const char *) name, length, hash ^ hash >> 15};
}

static bool is_called(const hr_pg_name *name, const hr_pg_called *called)
{
    return name->hash == called->hash && name->length == called->length
           && memcmp(name->name, called->name, called->length) == 0;
}

static hr_pg_meaning mean(hr_pg *pg, hr_prepared *prepared, uint8_t word)
{
    return (hr_pg_meaning){.prepared = prepared,
                           .segment = pg->segment,
                           .parse = pg->parses,
                           .word = word,
                           .put = ++pg->names->clock};
}

static hr_pg_name *make(hr_session *session, const hr_pg_called *called, hr_prepared *prepared,
                        uint8_t word)
{
    hr_pg_name *name = malloc(sizeof *name + called->length);

    if (name == NULL)
        return NULL;
    *name = (hr_pg_name){.now = mean(&session->pg, prepared, word),
                         .hash = called->hash,
                         .length = (uint8_t) called->length};
    memcpy(name->name, called->name, called->length);
    return name;
}

static void drop_prepared(hr_session *session, hr_prepared **prepared)
{
    if (*prepared != NULL)
        hr_prepared_drop(session, *prepared);
    *prepared = NULL;
}

static void drop_older(hr_session *session, hr_pg_name *name)
{
    while (name->older != NULL) {
        hr_pg_meaning *older = name->older;

        name->older = older->next;
        drop_prepared(session, &older->prepared);
        free(older);
    }
    name->olders = 0;
}

/* Takes it out of its list, and frees it. */
static void drop_name(hr_session *session, hr_pg_name **link)
{
    hr_pg_name *name = *link;

    *link = name->next;
    drop_prepared(session, &name->now.prepared);
    drop_prepared(session, &name->before.prepared);
    drop_older(session, name);
    free(name);
}

static struct hr_pg_names *names_of(hr_pg *pg)
{
    if (pg->names == NULL)
        pg->names = calloc(1, sizeof *pg->names);
    return pg->names;
}

/* ── Statements ───────────────────────────────────────────────────────────── */

static hr_pg_name **find_statement(hr_pg *pg, const hr_pg_called *called)
{
    hr_pg_name **link;

    if (pg->names == NULL || pg->names->slots == 0)
        return NULL;
    link = &pg->names->slot[called->hash & (pg->names->slots - 1)];
    while (*link != NULL && !is_called(*link, called))
        link = &(*link)->next;
    return *link == NULL ? NULL : link;
}

static bool grow(struct hr_pg_names *names)
{
    uint32_t slots = names->slots == 0 ? 8 : names->slots * 2;
    hr_pg_name **slot = calloc(slots, sizeof *slot);

    if (slot == NULL)
        return names->slots > 0; /* the lists get longer */
    for (uint32_t i = 0; i < names->slots; i++)
        while (names->slot[i] != NULL) {
            hr_pg_name *name = names->slot[i];

            names->slot[i] = name->next;
            name->next = slot[name->hash & (slots - 1)];
            slot[name->hash & (slots - 1)] = name;
        }
    free(names->slot);
    names->slot = slot;
    names->slots = slots;
    return true;
}

static void drop_statement(hr_session *session, hr_pg_name **link)
{
    session->pg.closings = (uint16_t) (session->pg.closings - (*link)->closing);
    session->pg.names->statements--;
    drop_name(session, link);
}

/* A text that is not known is decided; but not whether it ends a transaction. */
static bool turns(const hr_pg_name *name)
{
    return name->now.word != HR_PG_WORD_OTHER && name->now.word <= HR_PG_WORD_UNSEEN;
}

static hr_pg_name **find_oldest(struct hr_pg_names *names, bool any)
{
    uint32_t now = (uint32_t) names->clock;
    hr_pg_name **oldest = NULL;

    for (uint32_t i = 0; i < names->slots; i++)
        for (hr_pg_name **link = &names->slot[i]; *link != NULL; link = &(*link)->next)
            if ((any || !turns(*link))
                && (oldest == NULL || now - (*link)->used > now - (*oldest)->used))
                oldest = link;
    return oldest;
}

static void drop_oldest(hr_session *session)
{
    hr_pg_name **oldest = find_oldest(session->pg.names, false);

    if (oldest == NULL) {
        oldest = find_oldest(session->pg.names, true);
        session->pg.names_lost = true;
    }
    if (oldest != NULL)
        drop_statement(session, oldest);
}

static void add_statement(hr_session *session, const hr_pg_called *called, hr_prepared *prepared,
                          uint8_t word)
{
    struct hr_pg_names *names = names_of(&session->pg);
    hr_pg_name *name = NULL, **slot;

    if (names != NULL && names->statements >= HR_PG_MAX_STATEMENTS)
        drop_oldest(session);
    if (names != NULL && (names->statements < names->slots || grow(names)))
        name = make(session, called, prepared, word);
    if (name == NULL) {
        session->pg.names_lost = true;
        drop_prepared(session, &prepared);
        return;
    }
    slot = &names->slot[called->hash & (names->slots - 1)];
    name->used = (uint32_t) ++names->clock;
    name->next = *slot;
    *slot = name;
    names->statements++;
}

/* Whether the server has taken its Parse. */
static bool is_sure(const hr_pg *pg, const hr_pg_meaning *meaning)
{
    if (meaning->segment == pg->server_segment)
        return meaning->parse <= pg->parsed;
    return (int32_t) (meaning->segment - pg->server_segment) < 0;
}

/* In the segment of the Parse itself the server skips a Bind whose Parse has failed. */
bool hr_pg_statement_sure(hr_session *session, const hr_pg_called *called)
{
    hr_pg *pg = &session->pg;
    hr_pg_name **link = find_statement(pg, called);

    return link == NULL || (*link)->now.segment == pg->segment || is_sure(pg, &(*link)->now);
}

/* What is older than one that the server has taken can never come back. */
static void prune(hr_session *session, hr_pg_name *name)
{
    hr_pg_name old = {.older = NULL};

    for (hr_pg_meaning *older = name->older; older != NULL; older = older->next)
        if (is_sure(&session->pg, older)) {
            old.older = older->next;
            older->next = NULL;
        }
    drop_older(session, &old);
    name->olders = 0;
    for (hr_pg_meaning *older = name->older; older != NULL; older = older->next)
        name->olders++;
}

bool hr_pg_statement_may_change(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link = find_statement(&session->pg, called);

    if (link == NULL || (*link)->olders < MAX_OLDERS)
        return true;
    prune(session, *link);
    return (*link)->olders < MAX_OLDERS;
}

/* The second last goes to the older ones. Without memory it is forgotten, and may be decided as a text
 * that nobody knows. */
static void make_older(hr_session *session, hr_pg_name *name)
{
    hr_pg_meaning *older = name->before.prepared == NULL ? NULL : malloc(sizeof *older);

    if (older == NULL) {
        drop_prepared(session, &name->before.prepared);
        return;
    }
    *older = name->before;
    older->next = name->older;
    name->older = older;
    name->olders++;
}

static void change(hr_session *session, hr_pg_name *name, hr_prepared *prepared, uint8_t word)
{
    hr_pg *pg = &session->pg;

    if (is_sure(pg, &name->now)) {
        drop_prepared(session, &name->before.prepared);
        drop_older(session, name);
    } else {
        make_older(session, name);
    }
    name->before = name->now;
    name->now = mean(pg, prepared, word);
    pg->closings = (uint16_t) (pg->closings - name->closing);
    name->closing = false;
}

/* There was no memory for what it means from now on: what it meant before must not stand for that. */
static void forget_statement(hr_session *session, hr_pg_name **link, uint8_t word)
{
    if (word != HR_PG_WORD_OTHER)
        session->pg.names_lost = true;
    if (link == NULL)
        return;
    session->pg.names_lost = session->pg.names_lost || turns(*link);
    drop_statement(session, link);
}

void hr_pg_statement_put(hr_session *session, const hr_pg_called *called, hr_prepared *prepared,
                         uint8_t word)
{
    hr_pg *pg = &session->pg;
    hr_pg_name **link = find_statement(pg, called);

    if (pg->server_skips && pg->segment == pg->server_segment)
        drop_prepared(session, &prepared); /* the server skips it */
    else if (prepared == NULL)
        forget_statement(session, link, word);
    else if (link == NULL)
        add_statement(session, called, prepared, word);
    else
        change(session, *link, prepared, word);
}

static bool is_doubtful(const hr_pg *pg, const hr_pg_meaning *meaning)
{
    int kind = hr_prepared_kind(meaning->prepared);

    return meaning->put < pg->names->doubted && kind != HR_KIND_READ && kind != HR_KIND_WRITE
           && kind != HR_KIND_MANY;
}

hr_prepared *hr_pg_statement(hr_session *session, const hr_pg_called *called, uint8_t *word)
{
    hr_pg *pg = &session->pg;
    hr_pg_name **link = find_statement(pg, called);

    *word = link != NULL     ? (*link)->now.word
            : pg->names_lost ? HR_PG_WORD_UNSEEN
                             : HR_PG_WORD_OTHER;
    if (link == NULL)
        return NULL;
    (*link)->used = (uint32_t) ++pg->names->clock;
    return called->length > 0 && is_doubtful(pg, &(*link)->now) ? NULL : (*link)->now.prepared;
}

uint32_t hr_pg_doubt_flag(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link = called->length == 0 ? NULL : find_statement(&session->pg, called);

    return link != NULL && is_doubtful(&session->pg, &(*link)->now) ? HR_ASK_DOUBTED : 0;
}

hr_prepared *hr_pg_statement_said(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link = find_statement(&session->pg, called);

    return link == NULL ? NULL : (*link)->now.prepared;
}

hr_prepared *hr_pg_named(hr_session *session, const char *name, size_t length)
{
    hr_pg_called called = hr_pg_call((const uint8_t *) name, length);
    hr_pg_name **link = length == 0 ? NULL : find_statement(&session->pg, &called);

    return link == NULL ? NULL : (*link)->now.prepared;
}

/* ── By SQL ───────────────────────────────────────────────────────────────── */

void hr_pg_statement_deallocated(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link = find_statement(&session->pg, called);

    if (link != NULL)
        drop_statement(session, link);
}

/* The unnamed one stays, as at the server. */
void hr_pg_statements_deallocated(hr_session *session)
{
    struct hr_pg_names *names = session->pg.names;

    for (uint32_t i = 0; names != NULL && i < names->slots; i++)
        for (hr_pg_name **link = &names->slot[i]; *link != NULL;)
            if ((*link)->length > 0)
                drop_statement(session, link);
            else
                link = &(*link)->next;
}

void hr_pg_statement_prepared(hr_session *session, const hr_pg_called *called,
                              hr_prepared *prepared)
{
    hr_pg *pg = &session->pg;
    hr_pg_name **link;

    hr_pg_statement_deallocated(session, called);
    add_statement(session, called, prepared, HR_PG_WORD_OTHER);
    link = find_statement(pg, called);
    if (link != NULL)
        (*link)->now.segment = pg->server_segment - 1; /* it is there already */
}

void hr_pg_statements_doubt(hr_session *session)
{
    struct hr_pg_names *names = session->pg.names;

    if (names != NULL)
        names->doubted = ++names->clock;
}

static void close_name(hr_pg *pg, hr_pg_name *name)
{
    pg->closings = (uint16_t) (pg->closings + !name->closing);
    name->closing = true;
    name->closed_segment = pg->segment;
    name->closed_at = pg->sent;
}

void hr_pg_statement_close(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link = find_statement(&session->pg, called);

    if (link != NULL)
        close_name(&session->pg, *link);
}

static bool has_failed(const hr_pg *pg, const hr_pg_meaning *meaning)
{
    return meaning->prepared != NULL && meaning->segment == pg->server_segment
           && meaning->parse > pg->parsed;
}

static void fail_older(hr_session *session, hr_pg_name *name)
{
    for (hr_pg_meaning **link = &name->older; *link != NULL;) {
        hr_pg_meaning *older = *link;

        if (!has_failed(&session->pg, older)) {
            link = &older->next;
            continue;
        }
        *link = older->next;
        drop_prepared(session, &older->prepared);
        free(older);
        name->olders--;
    }
}

static void pull_older(hr_pg_name *name)
{
    hr_pg_meaning *older = name->older;

    name->before.prepared = NULL;
    if (older == NULL)
        return;
    name->before = *older;
    name->older = older->next;
    name->olders--;
    free(older);
}

/* Parses that have failed, or were skipped. Whether something is left that the server has. */
static bool take_back(hr_session *session, hr_pg_name *name)
{
    hr_pg *pg = &session->pg;

    fail_older(session, name);
    if (has_failed(pg, &name->before)) {
        drop_prepared(session, &name->before.prepared);
        pull_older(name);
    }
    if (has_failed(pg, &name->now)) {
        drop_prepared(session, &name->now.prepared);
        name->now = name->before;
        pull_older(name);
    }
    return name->now.prepared != NULL;
}

/* Whether the name stays. */
static bool settle_name(hr_session *session, hr_pg_name *name, bool failed)
{
    hr_pg *pg = &session->pg;

    if (name->closing && name->closed_segment == pg->server_segment) {
        if (!failed || name->closed_at < pg->answered)
            return false;
        name->closing = false;
        pg->closings--;
    }
    return !failed || take_back(session, name);
}

void hr_pg_statements_settle(hr_session *session, bool failed)
{
    struct hr_pg_names *names = session->pg.names;

    if (names == NULL || (!failed && session->pg.closings == 0))
        return;
    for (uint32_t i = 0; i < names->slots; i++)
        for (hr_pg_name **link = &names->slot[i]; *link != NULL;) {
            if (settle_name(session, *link, failed))
                link = &(*link)->next;
            else
                drop_statement(session, link);
        }
}

static void drop_statements(hr_session *session)
{
    struct hr_pg_names *names = session->pg.names;

    for (uint32_t i = 0; names != NULL && i < names->slots; i++)
        while (names->slot[i] != NULL)
            drop_statement(session, &names->slot[i]);
}

/* ── Portals ──────────────────────────────────────────────────────────────── */

static hr_pg_name **find_portal(hr_pg *pg, const hr_pg_called *called)
{
    hr_pg_name **link;

    if (pg->names == NULL)
        return NULL;
    link = &pg->names->portals;
    while (*link != NULL && !is_called(*link, called))
        link = &(*link)->next;
    return *link == NULL ? NULL : link;
}

/* `prepared` is shared. */
void hr_pg_portal_put(hr_session *session, const hr_pg_called *called, hr_prepared *prepared,
                      bool doubtful)
{
    hr_pg *pg = &session->pg;
    hr_prepared *shared;
    hr_pg_name *name;

    hr_pg_portal_drop(session, called);
    shared = prepared == NULL ? NULL : hr_prepared_share(prepared);
    if (called->length == 0) {
        pg->portal = shared;
        pg->portal_segment = pg->segment;
        pg->portal_executed = false;
        pg->portal_doubtful = doubtful;
        return;
    }
    name = pg->portals >= HR_PG_MAX_PORTALS || names_of(pg) == NULL
               ? NULL
               : make(session, called, shared, 0);
    if (name == NULL) {
        drop_prepared(session, &shared);
        return;
    }
    name->doubtful = doubtful;
    name->next = pg->names->portals;
    pg->names->portals = name;
    pg->portals++;
}

bool hr_pg_portal_execute(hr_session *session, const hr_pg_called *called, hr_prepared **prepared,
                          bool *doubtful)
{
    hr_pg *pg = &session->pg;
    hr_pg_name **link;

    if (called->length == 0) {
        *prepared = pg->portal;
        *doubtful = pg->portal_doubtful;
        return pg->portal_segment == pg->segment && !pg->portal_executed;
    }
    link = find_portal(pg, called);
    *prepared = link == NULL ? NULL : (*link)->now.prepared;
    *doubtful = link != NULL && (*link)->doubtful;
    return link != NULL && (*link)->now.segment == pg->segment && !(*link)->executed;
}

void hr_pg_portal_executed(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link;

    if (called->length == 0) {
        session->pg.portal_executed = true;
        return;
    }
    link = find_portal(&session->pg, called);
    if (link != NULL)
        (*link)->executed = true;
}

void hr_pg_portal_drop(hr_session *session, const hr_pg_called *called)
{
    hr_pg_name **link;

    if (called->length == 0) {
        drop_prepared(session, &session->pg.portal);
        return;
    }
    link = find_portal(&session->pg, called);
    if (link == NULL)
        return;
    drop_name(session, link);
    session->pg.portals--;
}

void hr_pg_portals_drop(hr_session *session)
{
    hr_pg *pg = &session->pg;

    drop_prepared(session, &pg->portal);
    while (pg->portals > 0) {
        drop_name(session, &pg->names->portals);
        pg->portals--;
    }
}

void hr_pg_names_free(hr_session *session)
{
    hr_pg *pg = &session->pg;

    hr_pg_portals_drop(session);
    drop_statements(session);
    if (pg->names != NULL)
        free(pg->names->slot);
    free(pg->names);
    pg->names = NULL;
}
