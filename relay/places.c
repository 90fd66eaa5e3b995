/*
 * places.c: the table of targets, and which of them a new session goes to.
 *
 * A table is never edited: a new one takes its place, and each thread takes that up in its own time.
 * The tally of a target's sessions goes over from table to table, by its id.
 */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hr_place_drop(hr_place *place)
{
    if (place == NULL || atomic_fetch_sub(&place->users, 1) != 1)
        return;
    if (place->tls != NULL)
        hr_tls_drop(place->tls);
    if (place->tally != NULL && atomic_fetch_sub(&place->tally->users, 1) == 1)
        free(place->tally);
    free(place);
}

hr_places *hr_places_share(hr_engine_shared *shared)
{
    hr_places *places;

    pthread_mutex_lock(&shared->lock);
    places = shared->places;
    if (places != NULL)
        atomic_fetch_add(&places->users, 1);
    pthread_mutex_unlock(&shared->lock);
    return places;
}

void hr_places_drop(hr_places *places)
{
    uint32_t i;

    if (places == NULL || atomic_fetch_sub(&places->users, 1) != 1)
        return;
    for (i = 0; i < places->count; i++)
        hr_place_drop(places->place[i]);
    free(places);
}

/* ── A new table ──────────────────────────────────────────────────────────── */

static bool sound(const hr_targets *targets, char *error, size_t error_length)
{
    uint32_t i, j;

    if (targets->count > HR_MAX_TARGETS || targets->tls_count > HR_MAX_TARGET_TLS) {
        snprintf(error, error_length, "there are %u targets; %u are the most", targets->count,
                 HR_MAX_TARGETS);
        return false;
    }
    for (i = 0; i < targets->count; i++) {
        const hr_target *target = &targets->target[i];

        if (target->id == 0 || target->weight == 0 || target->tls > targets->tls_count
            || target->address_length == 0 || target->address_length > sizeof target->address) {
            snprintf(error, error_length,
                     "target %u (%.63s): its id, weight, address or tls is not sound", i,
                     target->name);
            return false;
        }
        for (j = 0; j < i; j++)
            if (targets->target[j].id == target->id) {
                snprintf(error, error_length, "targets %u and %u have the same id", j, i);
                return false;
            }
    }
    return true;
}

static hr_place *make_place(const hr_target *target, hr_tls *const *tls, const hr_targets *targets)
{
    hr_place *place = calloc(1, sizeof *place);

    if (place == NULL)
        return NULL;
    place->users = 1;
    place->target = *target;
    place->tally = calloc(1, sizeof *place->tally);
    if (place->tally == NULL) {
        free(place);
        return NULL;
    }
    place->tally->users = 1;
    if (target->tls > 0) {
        place->tls_mode = (uint8_t) targets->tls[target->tls - 1].mode;
        if (tls[target->tls - 1] != NULL)
            place->tls = hr_tls_share(tls[target->tls - 1]);
    }
    return place;
}

static hr_places *make_places(const hr_targets *targets, hr_tls *const *tls, uint32_t grace_ms)
{
    hr_places *places = calloc(1, sizeof *places);

    if (places == NULL)
        return NULL;
    places->users = 1;
    places->grace_ms = grace_ms;
    places->replicas_or_primary = targets->replicas_or_primary != 0;
    for (; places->count < targets->count; places->count++) {
        hr_place *place = make_place(&targets->target[places->count], tls, targets);

        if (place == NULL) {
            hr_places_drop(places);
            return NULL;
        }
        places->place[places->count] = place;
    }
    return places;
}

static void carry_tally(hr_place *place, const hr_places *old)
{
    uint32_t i;

    for (i = 0; old != NULL && i < old->count; i++) {
        if (old->place[i]->target.id != place->target.id)
            continue;
        free(place->tally);
        place->tally = old->place[i]->tally;
        atomic_fetch_add(&place->tally->users, 1);
    }
}

static void put_in_force(hr_engine_shared *shared, hr_places *places)
{
    hr_places *old;
    uint32_t i;

    pthread_mutex_lock(&shared->lock);
    old = shared->places;
    for (i = 0; i < places->count; i++)
        carry_tally(places->place[i], old);
    shared->places = places;
    pthread_mutex_unlock(&shared->lock);
    hr_places_drop(old);
}

static bool open_contexts(const hr_relay *relay, const hr_targets *targets, hr_tls **tls,
                          char *error, size_t error_length)
{
    uint32_t i;

    for (i = 0; i < targets->tls_count; i++) {
        if (targets->tls[i].mode == 0)
            continue;
        tls[i] = hr_tls_open(&targets->tls[i], false, relay->settings.protocol, error,
                             error_length);
        if (tls[i] == NULL)
            return false;
    }
    return true;
}

const char *hr_targets_put(hr_relay *relay, const hr_targets *targets, uint32_t grace_ms,
                           char *error, size_t error_length)
{
    hr_tls *tls[HR_MAX_TARGET_TLS] = {NULL};
    hr_places *places = NULL;
    uint32_t i;
    bool opened;

    if (!sound(targets, error, error_length))
        return error;
    opened = open_contexts(relay, targets, tls, error, error_length);
    if (opened && (places = make_places(targets, tls, grace_ms)) == NULL)
        snprintf(error, error_length, "no memory for %u targets", targets->count);
    for (i = 0; i < HR_MAX_TARGET_TLS; i++)
        if (tls[i] != NULL)
            hr_tls_drop(tls[i]);
    if (places == NULL)
        return error;
    put_in_force(relay->engine, places);
    for (i = 0; relay->engine->started && i < relay->thread_count; i++)
        hr_order(relay->threads[i], HR_ORDER_PLACES);
    return NULL;
}

/* ── Choosing ─────────────────────────────────────────────────────────────── */

static bool less_busy(const hr_place *a, const hr_place *b)
{
    return (uint64_t) atomic_load_explicit(&a->tally->sessions, memory_order_relaxed)
               * b->target.weight
           < (uint64_t) atomic_load_explicit(&b->tally->sessions, memory_order_relaxed)
                 * a->target.weight;
}

/* The one with the fewest sessions for its weight; of equals each in turn. */
static hr_place *choose(hr_session *session, uint32_t role, uint32_t *index)
{
    hr_engine *engine = session->thread->engine;
    const hr_places *places = engine->places;
    hr_place *best = NULL;
    uint32_t i, at;

    for (i = 0; places != NULL && i < places->count; i++) {
        at = (engine->turn + i) % places->count;
        if (!(places->place[at]->target.roles & role) || (session->own.tried >> at & 1u))
            continue;
        if (best == NULL || less_busy(places->place[at], best)) {
            best = places->place[at];
            *index = at;
        }
    }
    if (best != NULL)
        engine->turn = *index + 1;
    return best;
}

static hr_place *find(const hr_places *places, uint64_t id, uint32_t *index)
{
    uint32_t i;

    for (i = 0; places != NULL && i < places->count; i++)
        if (places->place[i]->target.id == id) {
            *index = i;
            return places->place[i];
        }
    return NULL;
}

hr_place *hr_place_choose(hr_session *session, uint32_t *index)
{
    const hr_engine *engine = session->thread->engine;
    const hr_listener *listener = &hr_shared(session->thread)->listener[session->listener];
    hr_place *place;

    if (session->own.wished)
        return session->own.tried != 0 ? NULL : find(engine->places, session->target_id, index);
    if (listener->route == HR_ROUTE_PRIMARY)
        return choose(session, HR_TARGET_PRIMARY, index);
    place = choose(session, HR_TARGET_REPLICA, index);
    if (place == NULL && engine->places != NULL && engine->places->replicas_or_primary)
        place = choose(session, HR_TARGET_PRIMARY, index);
    return place;
}

/* ── Sessions whose target is not the one any more ────────────────────────── */

static bool may_stay(const hr_session *session, const hr_places *places)
{
    const hr_listener *listener = &hr_shared(session->thread)->listener[session->listener];
    uint32_t index;
    const hr_place *place = find(places, session->target_id, &index);

    if (place == NULL)
        return false;
    return listener->route != HR_ROUTE_PRIMARY || (place->target.roles & HR_TARGET_PRIMARY)
           || session->own.wished;
}

void hr_places_changed(hr_thread *thread)
{
    hr_engine *engine = thread->engine;
    hr_places *places = hr_places_share(hr_shared(thread));
    uint64_t by_ns;
    hr_session *session, *next;

    hr_places_drop(engine->places);
    engine->places = places;
    by_ns = thread->now_ns + (places == NULL ? 0 : places->grace_ms) * HR_MS;
    for (session = engine->sessions; session != NULL; session = next) {
        next = session->next;
        session->own.tried = 0; /* its bits were the old table's */
        if (session->target_id != 0 && session->own.place != NULL && !may_stay(session, places))
            hr_leave(session, HR_LOST_TARGET, by_ns, false);
    }
}
