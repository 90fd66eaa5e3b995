/*
 * gate_named.c: PREPARE and EXECUTE in SQL. An execution is decided by the text that was prepared, as
 * the extension does; one whose PREPARE we have not seen by its own.
 *
 * In Postgres names are one with those of the protocol, and the machine knows them (hr_machine.named),
 * once the server has said yes; but what a string prepares is executed further on in it. Elsewhere SQL
 * has names of its own: what a session prepares so is bounded; beyond that, the oldest is forgotten. Where
 * it is not sure what a text prepares, all of them are.
 */
#include "gate_inside.h"

#include <stdlib.h>

#define MAX_NAMED 64u

typedef struct hr_named {
    struct hr_named *next;
    hr_prepared *prepared;
    uint32_t length;
    bool doubtful; /* if what is under way fails */
    bool drops_anyway;   /* whatever comes of it */
    char name[HR_READ_NAME_BYTES];
} hr_named;

static void drop(hr_session *session, hr_named **link)
{
    hr_named *one = *link;

    *link = one->next;
    hr_prepared_drop(session, one->prepared);
    free(one);
}

void hr_forget_prepared(hr_session *session)
{
    while (session->gate.prepared != NULL)
        drop(session, &session->gate.prepared);
}

static hr_named **find(hr_session *session, const char *name, uint32_t length)
{
    hr_named **link = &session->gate.prepared;

    while (*link != NULL
           && !((*link)->length == length && memcmp((*link)->name, name, length) == 0))
        link = &(*link)->next;
    return link;
}

static void drop_oldest(hr_session *session)
{
    hr_named **link = &session->gate.prepared;
    uint32_t count = 0;

    for (; *link != NULL; link = &(*link)->next)
        if (++count == MAX_NAMED) {
            while (*link != NULL)
                drop(session, link);
            return;
        }
}

/* MySQL's is a literal: without its quotes, escapes as they stand. A variable's text is not known. */
static bool inner_text(const hr_session *session, const char **text, size_t *length)
{
    hg_tokens tokens;

    if (hr_dialect(session->thread) == HG_POSTGRES)
        return true;
    hg_tokens_begin(&tokens, *text, *length, HG_MYSQL);
    if (!hg_tokens_next(&tokens) || tokens.piece != HG_PIECE_LITERAL
        || tokens.end - tokens.start < 2)
        return false;
    *text = (const char *) tokens.start + 1;
    *length = (size_t) (tokens.end - tokens.start) - 2;
    return true;
}

static void keep(hr_session *session, const char *text, size_t length, const char *name,
                 uint32_t name_length)
{
    hr_named *one = calloc(1, sizeof *one);

    if (one == NULL)
        return;
    one->prepared = hr_prepare(session, text, length, false);
    if (one->prepared == NULL) {
        free(one);
        return;
    }
    memcpy(one->name, name, name_length);
    one->length = name_length;
    one->next = session->gate.prepared;
    session->gate.prepared = one;
}

static void follow_prepare(hr_session *session, const char *text, size_t length,
                           const hr_reading *reading, const char *name, uint32_t name_length)
{
    const char *inner = text + reading->inner;
    size_t inner_length = length - reading->inner;
    hr_named **old = find(session, name, name_length);

    if (*old != NULL)
        drop(session, old);
    if (reading->inner == 0 || !inner_text(session, &inner, &inner_length))
        return;
    drop_oldest(session);
    keep(session, inner, inner_length, name, name_length);
}

/* What EXECUTE runs, as far as it is known and decided as it is; counted. */
static hr_prepared *decided_by(hr_prepared *prepared)
{
    if (prepared == NULL || prepared->many || prepared->reading.verb != HR_VERB_NONE
        || prepared->reading.kind > HR_KIND_WRITE)
        return NULL;
    return hr_prepared_share(prepared);
}

static uint32_t name_of(const hr_session *session, const char *text, const hr_slice *slice,
                        char *name)
{
    const char *at = text + slice->start + slice->reading.at;
    hg_tokens tokens;

    hg_tokens_begin(&tokens, at, slice->length - slice->reading.at, hr_dialect(session->thread));
    return hg_tokens_next(&tokens) ? hr_read_name(&tokens, name) : 0;
}

static bool is_all(const hr_session *session, const char *text, const hr_slice *slice)
{
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text + slice->start + slice->reading.at,
                    slice->length - slice->reading.at, hr_dialect(session->thread));
    return hg_tokens_next(&tokens) && hg_token_is(&tokens, "all");
}

/* Postgres: by the string itself, else as the machine knows it. */
static hr_prepared *executed(hr_session *session, const char *text, const hr_slice *slices,
                             uint32_t number, const char *name, uint32_t length)
{
    while (number-- > 0) {
        const hr_slice *slice = &slices[number];
        char other[HR_READ_NAME_BYTES];
        hr_prepared *prepared, *counted;

        if (slice->reading.verb != HR_VERB_PREPARE || slice->reading.inner == 0
            || name_of(session, text, slice, other) != length || memcmp(other, name, length) != 0)
            continue;
        prepared = hr_prepare(session, text + slice->start + slice->reading.inner,
                              slice->length - slice->reading.inner, false);
        counted = decided_by(prepared);
        hr_prepared_drop(session, prepared);
        return counted;
    }
    return decided_by(session->machine->named(session, name, length));
}

static void follow(hr_session *session, const char *text, const hr_slice *slice, const char *name,
                   uint32_t length)
{
    const char *at = text + slice->start;

    if (slice->reading.verb == HR_VERB_PREPARE)
        follow_prepare(session, at, slice->length, &slice->reading, name, length);
    else if (is_all(session, text, slice))
        hr_forget_prepared(session);
    else if (*find(session, name, length) != NULL)
        drop(session, find(session, name, length));
}

hr_prepared *hr_follow_prepared(hr_session *session, const char *text, const hr_slice *slices,
                                uint32_t number)
{
    const hr_slice *slice = &slices[number];
    bool knows = session->machine != NULL && session->machine->named != NULL;
    char name[HR_READ_NAME_BYTES];
    uint32_t length;
    hr_named *one;

    if (slice->reading.verb == HR_VERB_DISCARD || (slice->reading.unsure && !knows))
        hr_forget_prepared(session);
    if (slice->reading.verb < HR_VERB_PREPARE || (slice->reading.unsure && !knows))
        return NULL;
    length = name_of(session, text, slice, name);
    if (length == 0)
        return NULL;
    if (slice->reading.verb == HR_VERB_EXECUTE && knows)
        return executed(session, text, slices, number, name, length);
    if (slice->reading.verb == HR_VERB_EXECUTE) {
        one = *find(session, name, length);
        return decided_by(one == NULL ? NULL : one->prepared);
    }
    if (!knows)
        follow(session, text, slice, name, length);
    return NULL;
}

/* ── What the server makes of it ──────────────────────────────────────────── */

static uint8_t lower(char letter)
{
    return letter >= 'A' && letter <= 'Z' ? (uint8_t) (letter | 32) : (uint8_t) letter;
}

/* Anywhere in it, and in whatever case. */
static bool says(const char *text, size_t length, const char *word, size_t word_length)
{
    for (size_t at = 0; at + word_length <= length; at++) {
        size_t same = 0;

        while (same < word_length && lower(text[at + same]) == lower(word[same]))
            same++;
        if (same == word_length)
            return true;
    }
    return false;
}

/* Procedures and blocks may prepare, under names that they share with their session. */
static bool is_out_of_sight(const char *text, size_t length, bool whole)
{
    return !whole || says(text, length, "call", 4) || says(text, length, "immediate", 9)
           || says(text, length, "atomic", 6);
}

/* Or it executes one that is. */
static bool leads_out_of_sight(const hr_session *session, const char *text, size_t length,
                               bool whole)
{
    if (is_out_of_sight(text, length, whole))
        return true;
    if (!says(text, length, "execute", 7))
        return false;
    for (const hr_named *one = session->gate.prepared; one != NULL; one = one->next) {
        size_t inner_length;
        bool inner_whole;
        const char *inner = hr_prepared_text(one->prepared, &inner_length, &inner_whole);

        if (is_out_of_sight(inner, inner_length, inner_whole)
            && says(text, length, one->name, one->length))
            return true;
    }
    return false;
}

void hr_names_sent(hr_session *session, const char *text, size_t length, bool whole)
{
    bool drops_anyway, prepares, escaped;

    if (session->gate.prepared == NULL)
        return;
    drops_anyway = leads_out_of_sight(session, text, length, whole);
    prepares = drops_anyway || says(text, length, "prepare", 7);
    escaped = prepares && !drops_anyway
              && says(text, length, "``", 2); /* names may stand there otherwise */
    for (hr_named *one = session->gate.prepared; prepares && one != NULL; one = one->next) {
        one->drops_anyway = drops_anyway;
        one->doubtful = escaped || drops_anyway || says(text, length, one->name, one->length);
    }
}

void hr_names_ended(hr_session *session, bool failed)
{
    hr_named **link = &session->gate.prepared;

    while (*link != NULL)
        if ((*link)->drops_anyway || ((*link)->doubtful && failed)) {
            drop(session, link);
        } else {
            (*link)->doubtful = false;
            link = &(*link)->next;
        }
}
