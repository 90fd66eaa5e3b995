/*
 * pg_effects.c: what SQL does to prepared statements. At the server names are one, whether PREPARE or a
 * Parse has made them: so they are here.
 *
 *   PREPARE, DEALLOCATE, DISCARD go ──► kept ──server completes them──► done to the names
 *                                        └────── it fails, or skips ──► as if they had not been
 *   DO, CALL, or such a command that nobody has seen go: its tag says so, and all names are doubtful
 *
 * While some are kept, a use of a name waits: see pg_client.c.
 */
#include "pg_inside.h"

#include <stdlib.h>
#include <string.h>

struct hr_pg_effect {
    struct hr_pg_effect *next;
    hr_prepared *prepared; /* PREPARE: what it means then */
    uint32_t segment, at;
    uint8_t verb;
    bool all;
    uint32_t length;
    char name[HR_READ_NAME_BYTES];
};

static void drop(hr_session *session, struct hr_pg_effect **link)
{
    struct hr_pg_effect *effect = *link;

    *link = effect->next;
    if (effect->prepared != NULL)
        hr_prepared_drop(session, effect->prepared);
    free(effect);
}

/* False: it is not known which name it is. */
static bool read_effect(hr_session *session, struct hr_pg_effect *effect, const char *text,
                        size_t length, bool whole, const hr_reading *reading)
{
    hg_tokens tokens;

    effect->verb = reading->verb;
    effect->all = reading->verb == HR_VERB_DISCARD;
    if (effect->all)
        return true;
    hg_tokens_begin(&tokens, text + reading->at, length - reading->at, HG_POSTGRES);
    if (!hg_tokens_next(&tokens))
        return false;
    effect->all = reading->verb == HR_VERB_DEALLOCATE && hg_token_is(&tokens, "all");
    effect->length = hr_read_name(&tokens, effect->name);
    if (reading->verb != HR_VERB_PREPARE)
        return effect->length > 0;
    if (reading->inner == 0 || effect->length == 0)
        return false;
    effect->prepared = hr_prepare(session, text + reading->inner, length - reading->inner, !whole);
    return effect->prepared != NULL;
}

void hr_pg_expect(hr_session *session, const char *text, size_t length, bool whole,
                  const hr_reading *reading, uint32_t at)
{
    struct hr_pg_effect *effect;

    if (reading->verb != HR_VERB_PREPARE && reading->verb != HR_VERB_DEALLOCATE
        && reading->verb != HR_VERB_DISCARD)
        return;
    effect = calloc(1, sizeof *effect);
    if (effect == NULL)
        return; /* its tag will be a surprise */
    effect->segment = session->pg.segment;
    effect->at = at;
    effect->next = session->pg.effects;
    session->pg.effects = effect;
    if (!read_effect(session, effect, text, length, whole, reading))
        effect->verb = HR_VERB_NONE; /* kept, so that others wait */
}

/* Else it is another statement that is there: the string was not read as the server reads it. */
static bool is_its_tag(const struct hr_pg_effect *effect, const char *tag)
{
    switch (effect->verb) {
    case HR_VERB_PREPARE:
        return strcmp(tag, "PREPARE") == 0;
    case HR_VERB_DEALLOCATE:
        return strcmp(tag, effect->all ? "DEALLOCATE ALL" : "DEALLOCATE") == 0;
    case HR_VERB_DISCARD:
        return strcmp(tag, "DISCARD ALL") == 0;
    default:
        return false;
    }
}

static void take_effect(hr_session *session, struct hr_pg_effect *effect, const char *tag)
{
    hr_pg_called called = hr_pg_call((const uint8_t *) effect->name, effect->length);

    if (!is_its_tag(effect, tag)) {
        hr_pg_statements_doubt(session);
    } else if (effect->all) {
        hr_pg_statements_deallocated(session);
    } else if (effect->verb == HR_VERB_PREPARE) {
        hr_pg_statement_prepared(session, &called, effect->prepared);
        effect->prepared = NULL;
    } else {
        hr_pg_statement_deallocated(session, &called);
    }
}

static bool concerns_names(const char *tag)
{
    static const char *const tags[] = {"PREPARE",     "DEALLOCATE", "DEALLOCATE ALL",
                                       "DISCARD ALL", "DO",         "CALL"};

    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (strcmp(tag, tags[i]) == 0)
            return true;
    return false;
}

void hr_pg_effect(hr_session *session, const char *tag, uint32_t at)
{
    hr_pg *pg = &session->pg;
    struct hr_pg_effect **link = &pg->effects;

    while (*link != NULL && ((*link)->segment != pg->server_segment || (*link)->at != at))
        link = &(*link)->next;
    if (*link != NULL) {
        take_effect(session, *link, tag);
        drop(session, link);
    } else if ((*tag == 'P' || *tag == 'D' || *tag == 'C') && concerns_names(tag)) {
        hr_pg_statements_doubt(session);
    }
}

void hr_pg_effects_drop(hr_session *session, bool all)
{
    struct hr_pg_effect **link = &session->pg.effects;

    while (*link != NULL)
        if (all || (*link)->segment == session->pg.server_segment)
            drop(session, link);
        else
            link = &(*link)->next;
}
