/*
 * gate_statement.c: what a statement comes under: its client, its priority, its budgets.
 *
 *   text ──► tags ──trust──► client, priority, hg_match_tags ──► hr_statement
 *   hr_prepared ──found before for sessions like this one?──► hr_statement, else as above
 *
 * What is known of a prepared text is shared by all sessions of the thread that have prepared the
 * same one: its kind, its tags, its fingerprint, and for the last few kinds of session (resolution)
 * what it comes under. So executing it again costs a comparison.
 */
#include "gate_inside.h"

#include <stdlib.h>

#define PATTERN_SEED 7u

/* ── Interning ────────────────────────────────────────────────────────────── */

/* Behind the text, at a multiple of an hg_tag's alignment. */
static size_t tags_at(const hr_prepared *prepared)
{
    return (prepared->text_length + 7u) / 8u * 8u;
}

static size_t size_of(size_t kept, size_t tag_count, size_t tags_used)
{
    return sizeof(hr_prepared) + (kept + 7u) / 8u * 8u + tag_count * sizeof(hg_tag) + tags_used;
}

static void free_prepared(hr_prepared *prepared)
{
    for (uint32_t i = 0; i < HR_KEPT_LOOKUPS; i++)
        free(prepared->lookups[i].matches);
    free(prepared);
}

/* While its thread runs: others may have the memory. */
static void give_up(hr_prepared *prepared)
{
    hr_memory_give(prepared->owner,
                   size_of(prepared->text_length, prepared->tag_count, prepared->tags_used));
    free_prepared(prepared);
}

static hr_prepared **link_to(hr_gate_thread *gate, const hr_prepared *prepared)
{
    hr_prepared **link = &gate->prepared[prepared->hash & (HR_PREPAREDS - 1)];

    while (*link != prepared)
        link = &(*link)->next;
    return link;
}

static void forget(hr_gate_thread *gate, hr_prepared *prepared)
{
    *link_to(gate, prepared) = prepared->next;
    gate->prepareds--;
    gate->idle_prepareds--;
    give_up(prepared);
}

/* Of those that nobody has prepared now, the half that was not used for longest. */
static void sweep(hr_gate_thread *gate)
{
    uint64_t newest = gate->uses;
    uint64_t oldest = newest;
    uint64_t middle;

    for (uint32_t i = 0; i < HR_PREPAREDS; i++)
        for (hr_prepared *at = gate->prepared[i]; at != NULL; at = at->next)
            if (at->users == 0 && at->used < oldest)
                oldest = at->used;
    middle = oldest + (newest - oldest) / 2;
    for (uint32_t i = 0; i < HR_PREPAREDS; i++)
        for (hr_prepared *at = gate->prepared[i], *next; at != NULL; at = next) {
            next = at->next;
            if (at->users == 0 && at->used <= middle)
                forget(gate, at);
        }
}

static hr_prepared *find(hr_gate_thread *gate, uint64_t hash, const char *text, size_t length,
                         bool truncated)
{
    hr_prepared *at = gate->prepared[hash & (HR_PREPAREDS - 1)];

    while (at != NULL
           && !(at->hash == hash && at->full_length == length && at->truncated == truncated
                && memcmp(at->bytes, text, at->text_length) == 0))
        at = at->next;
    return at;
}

static void copy_tags(hr_prepared *prepared, const hg_tags *tags)
{
    char *at = prepared->bytes + tags_at(prepared);

    memcpy(at, tags->tags, tags->count * sizeof(hg_tag));
    memcpy(at + tags->count * sizeof(hg_tag), tags->text, tags->used);
}

void hr_load_tags(const hr_prepared *prepared, hg_tags *tags)
{
    const char *at = prepared->bytes + tags_at(prepared);

    tags->count = prepared->tag_count;
    tags->ignored = prepared->tags_ignored;
    tags->duplicates = prepared->tags_duplicates;
    tags->used = (uint16_t) prepared->tags_used;
    memcpy(tags->tags, at, tags->count * sizeof(hg_tag));
    memcpy(tags->text, at + tags->count * sizeof(hg_tag), tags->used);
}

/* What its text says, once. Several statements in one, and those that the gate itself follows, are
 * read again each time. */
static void read_text(hr_thread *thread, hr_prepared *prepared, const char *text, size_t length)
{
    int dialect = hr_dialect(thread);
    hr_query query;

    hr_query_read(&query, text, length, dialect);
    prepared->reading.kind = HR_KIND_EMPTY;
    prepared->many = query.count > 1;
    if (query.count > 0) {
        const hr_slice *first = &query.slices[0];

        prepared->reading = first->reading;
        prepared->reading.at += first->reading.verb == 0 ? 0 : first->start;
        prepared->reading.inner += first->reading.inner == 0 ? 0 : first->start;
    }
    /* What is free as far as we have seen may be anything behind that. */
    if (prepared->truncated && prepared->reading.kind > HR_KIND_WRITE)
        prepared->reading = (hr_reading){.kind = HR_KIND_WRITE};
    prepared->writes = prepared->reading.kind == HR_KIND_WRITE
                       || (prepared->reading.may_write && hr_read_deep(text, length, dialect));
    prepared->fingerprint = hg_fingerprint(text, length, dialect);
}

/* Under max_buffer_bytes. What nobody uses goes first. */
static hr_prepared *reserve(hr_thread *thread, size_t bytes)
{
    hr_prepared *prepared;

    if (!hr_memory_take(thread, bytes)) {
        if (thread->gate->idle_prepareds > 0)
            sweep(thread->gate);
        if (!hr_memory_take(thread, bytes)) {
            hg_add_own(&thread->counts->unkept_texts, 1);
            return NULL;
        }
    }
    prepared = calloc(1, bytes);
    if (prepared == NULL)
        hr_memory_give(thread, bytes);
    return prepared;
}

static hr_prepared *new_prepared(hr_thread *thread, const char *text, size_t length, bool truncated)
{
    hg_tags *tags = &thread->gate->tags;
    uint32_t kept = length < HR_KEPT_TEXT ? (uint32_t) length : HR_KEPT_TEXT;
    hr_prepared *prepared;

    hg_tags_read(text, length, hr_dialect(thread), tags);
    prepared = reserve(thread, size_of(kept, tags->count, tags->used));
    if (prepared == NULL)
        return NULL;
    prepared->owner = thread;
    prepared->users = 1;
    prepared->text_length = kept;
    prepared->full_length = (uint32_t) length;
    prepared->truncated = truncated;
    prepared->tag_count = tags->count;
    prepared->tags_ignored = tags->ignored;
    prepared->tags_duplicates = tags->duplicates;
    prepared->tags_used = tags->used;
    memcpy(prepared->bytes, text, kept);
    copy_tags(prepared, tags);
    read_text(thread, prepared, text, length);
    return prepared;
}

static void intern(hr_gate_thread *gate, hr_prepared *prepared, uint64_t hash)
{
    hr_prepared **place = &gate->prepared[hash & (HR_PREPAREDS - 1)];

    prepared->hash = hash;
    prepared->interned = true;
    prepared->next = *place;
    *place = prepared;
    gate->prepareds++;
}

/* A text that is longer than what is kept of it is not shared: there is no telling it from others. */
hr_prepared *hr_prepare(hr_session *session, const char *text, size_t length, bool truncated)
{
    hr_gate_thread *gate = session->thread->gate;
    uint64_t hash = hg_hash(4, text, length);
    hr_prepared *prepared = find(gate, hash, text, length, truncated);

    if (truncated)
        hg_add_own(&session->thread->counts->truncated_texts, 1);
    if (prepared != NULL) {
        gate->idle_prepareds -= prepared->users == 0;
        prepared->users++;
        prepared->used = ++gate->uses;
        return prepared;
    }
    prepared = new_prepared(session->thread, text, length, truncated);
    if (prepared == NULL)
        return NULL;
    prepared->used = ++gate->uses;
    if (gate->prepareds < HR_MAX_PREPAREDS && length <= HR_KEPT_TEXT)
        intern(gate, prepared, hash);
    return prepared;
}

hr_prepared *hr_prepared_share(hr_prepared *prepared)
{
    prepared->users++;
    return prepared;
}

/* One that nobody has any more is kept for a while: clients prepare the same again. */
void hr_prepared_drop(hr_session *session, hr_prepared *prepared)
{
    hr_gate_thread *gate = session->thread->gate;

    if (prepared == NULL || --prepared->users > 0)
        return;
    if (!prepared->interned) {
        give_up(prepared);
        return;
    }
    gate->idle_prepareds++;
    if (gate->idle_prepareds > HR_IDLE_PREPAREDS)
        sweep(gate);
}

void hr_follow_doubted(hr_session *session, const hr_prepared *prepared)
{
    if (prepared->reading.verb != HR_VERB_NONE && !prepared->many && !prepared->truncated)
        hr_follow(session, hr_naming_of(session->thread), prepared->bytes, prepared->text_length,
                  &prepared->reading);
}

int hr_prepared_kind(const hr_prepared *prepared)
{
    if (prepared->many)
        return HR_KIND_MANY;
    return prepared->reading.kind <= HR_KIND_WRITE
               ? (prepared->writes ? HR_KIND_WRITE : HR_KIND_READ)
               : prepared->reading.kind;
}

const char *hr_prepared_text(const hr_prepared *prepared, size_t *length, bool *whole)
{
    *length = prepared->text_length;
    *whole = !prepared->truncated && prepared->full_length == prepared->text_length;
    return prepared->bytes;
}

void hr_prepareds_free(hr_gate_thread *gate)
{
    for (uint32_t i = 0; i < HR_PREPAREDS; i++)
        for (hr_prepared *at = gate->prepared[i], *next; at != NULL; at = next) {
            next = at->next;
            free_prepared(at);
        }
}

/* ── Budgets ──────────────────────────────────────────────────────────────── */

static int health(const hr_thread *thread, const hg_policy *policy)
{
    if (policy == NULL || (policy->flags & HG_POLICY_BY_HEALTH) == 0)
        return -1;
    return hg_healthy(thread->relay->region, thread->wall_ms);
}

static void note_limits(const hg_policy *policy, const hg_matches *matches, hr_statement *one)
{
    for (uint32_t i = 0; i < matches->count; i++) {
        uint32_t set = hr_budget(policy, matches->at[i].budget)->set;

        one->limits_workers |= (set & (HG_SET_CONCURRENCY | HG_SET_MAX_WORKERS)) != 0;
        one->needs_cost |= (set & (HG_SET_RATE | HG_SET_CAPACITY | HG_SET_BURST)) != 0;
    }
}

static uint64_t fingerprint_of(hr_session *session, hr_statement *one)
{
    if (!one->fingerprinted)
        one->fingerprint = one->prepared != NULL ? one->prepared->fingerprint
                                                 : hg_fingerprint(one->text, one->length,
                                                                  hr_dialect(session->thread));
    one->fingerprinted = true;
    return one->fingerprint;
}

/* With thread->gate->tags as they are to be trusted. */
static void find_budgets(hr_session *session, const hg_policy *policy,
                         const hr_resolution *resolution, hr_statement *one, hg_matches *matches)
{
    hr_thread *thread = session->thread;
    hg_statement statement = {
        .text = one->text, .length = one->length, .dialect = hr_dialect(thread), .cut = one->cut};

    matches->count = matches->left_out = matches->ignored_tags = matches->duplicate_tags = 0;
    one->matches = matches;
    if (policy == NULL || !resolution->core.may_match)
        return;
    if (resolution->core.needs_fingerprint || one->prepared != NULL) {
        statement.fingerprint = fingerprint_of(session, one);
        statement.fingerprinted = true;
    }
    hg_match_tags(policy, &resolution->core, &statement, thread->wall_ms, health(thread, policy),
                  one->has_tags ? &thread->gate->tags : NULL, matches);
    note_limits(policy, matches, one);
}

static void find_who(hr_session *session, const hr_naming *naming, hr_statement *one, uint8_t *rank)
{
    const hg_tags *tags = one->has_tags ? &session->thread->gate->tags : NULL;
    uint64_t fingerprint = naming->by_pattern ? fingerprint_of(session, one) : 0;

    one->ref = hr_identify(session, naming, tags, fingerprint, rank);
    one->priority = hr_priority(naming, tags);
}

static void guard_tags(hr_session *session, const hr_naming *naming, hr_statement *one,
                       int64_t *until_ms)
{
    hr_thread *thread = session->thread;

    if (!one->has_tags || !naming->guarded)
        return;
    hg_add_own(&thread->counts->untrusted_tags,
               hg_trust_tags(&thread->gate->signatures, &naming->settings, naming->version,
                             hr_username(session), thread->wall_ms, &thread->gate->tags, until_ms));
}

void hr_statement_of_text(hr_session *session, const hg_policy *policy, hr_statement *one,
                          hg_matches *matches)
{
    hr_thread *thread = session->thread;
    const hr_naming *naming = hr_naming_of(thread);
    const hr_resolution *resolution = hr_resolve(session, policy);
    bool needs_tags = naming->by_tags || resolution->core.needs_tags
                      || (policy != NULL && thread->relay->region->sizes.traces > 0);
    int64_t until_ms = INT64_MAX;
    uint8_t rank;

    if (needs_tags)
        hg_tags_read(one->text, one->length, hr_dialect(thread), &thread->gate->tags);
    one->has_tags = needs_tags;
    guard_tags(session, naming, one, &until_ms);
    find_who(session, naming, one, &rank);
    find_budgets(session, policy, resolution, one, matches);
}

/* ── Prepared ─────────────────────────────────────────────────────────────── */

static bool is_kept(const hr_kept_lookup *kept, const hr_resolution *resolution,
                    const hr_naming *naming, int healthy, int64_t wall_ms)
{
    return kept->generation == resolution->generation && kept->naming == naming->version
           && kept->healthy == healthy && wall_ms < kept->sound_until_ms;
}

static bool is_there(const hr_thread *thread, const hr_kept_lookup *kept)
{
    return kept->client != HR_OTHERS
           && atomic_load_explicit(&hr_client_at(thread, kept->client)->key, memory_order_relaxed)
                  == kept->client_key;
}

/* Its client is the statement's own, or the session's; the one or the other may be overruled, where
 * this session is named by another source than that which it was kept for. */
static bool use_kept(hr_session *session, const hr_naming *naming, const hr_kept_lookup *kept,
                     hr_statement *one)
{
    hr_client_ref own = hr_identify_session(session, naming);

    if (kept->by_statement ? kept->rank >= session->gate.rank || !is_there(session->thread, kept)
                           : session->gate.rank > kept->rank)
        return false;
    one->ref = kept->by_statement ? (hr_client_ref){kept->client, kept->client_key, HR_OTHERS}
                                  : own;
    one->priority = kept->priority;
    one->limits_workers = kept->limits_workers;
    one->needs_cost = kept->needs_cost;
    one->matches = kept->matches;
    return true;
}

static void keep(hr_prepared *prepared, const hr_resolution *resolution, const hr_naming *naming,
                 int healthy, const hr_statement *one, int64_t until_ms, const hr_kept_lookup *by)
{
    hr_kept_lookup *kept = &prepared->lookups[prepared->next_lookup];
    size_t bytes = offsetof(hg_matches, at) + one->matches->count * sizeof(hg_match_one);
    hg_matches *matches = realloc(kept->matches, bytes);

    if (matches == NULL)
        return;
    memcpy(matches, one->matches, bytes);
    prepared->next_lookup = (prepared->next_lookup + 1) % HR_KEPT_LOOKUPS;
    *kept = (hr_kept_lookup){
        .generation = resolution->generation,
        .naming = naming->version,
        .healthy = healthy,
        .sound_until_ms = until_ms < resolution->sound_until_ms ? until_ms
                                                                : resolution->sound_until_ms,
        .client = one->ref.client,
        .client_key = one->ref.key,
        .by_statement = by->by_statement,
        .rank = by->rank,
        .limits_workers = one->limits_workers,
        .needs_cost = one->needs_cost,
        .priority = one->priority,
        .matches = matches,
    };
}

/* What of its tags is trusted, found again. */
static void find_anew(hr_session *session, const hg_policy *policy, const hr_resolution *resolution,
                      hr_statement *one, hg_matches *matches)
{
    hr_thread *thread = session->thread;
    const hr_naming *naming = hr_naming_of(thread);
    int64_t until_ms = INT64_MAX;
    uint8_t rank;

    hr_load_tags(one->prepared, &thread->gate->tags);
    one->has_tags = true;
    guard_tags(session, naming, one, &until_ms);
    find_who(session, naming, one, &rank);
    find_budgets(session, policy, resolution, one, matches);
    keep(one->prepared, resolution, naming, health(thread, policy), one, until_ms,
         &(hr_kept_lookup){.by_statement = rank < session->gate.rank, .rank = rank});
}

void hr_statement_of_prepared(hr_session *session, const hg_policy *policy, hr_statement *one,
                              hg_matches *matches)
{
    hr_thread *thread = session->thread;
    const hr_naming *naming = hr_naming_of(thread);
    const hr_resolution *resolution = hr_resolve(session, policy);
    int healthy = health(thread, policy);

    one->fingerprint = one->prepared->fingerprint;
    one->fingerprinted = true;
    for (uint32_t i = 0; i < HR_KEPT_LOOKUPS; i++)
        if (is_kept(&one->prepared->lookups[i], resolution, naming, healthy, thread->wall_ms)
            && use_kept(session, naming, &one->prepared->lookups[i], one))
            return;
    find_anew(session, policy, resolution, one, matches);
}

bool hr_statement_writes(hr_session *session, hr_statement *one)
{
    if (one->prepared != NULL)
        return one->prepared->writes;
    if (!one->writes_known)
        one->writes = one->reading.kind == HR_KIND_WRITE
                      || (one->reading.may_write
                          && hr_read_deep(one->text, one->length, hr_dialect(session->thread)));
    one->writes_known = true;
    return one->writes;
}

/* Of fingerprint and database, the same in every process. */
uint64_t hr_statement_pattern(hr_session *session, hr_statement *one)
{
    const char *database = hr_database(session);
    uint64_t fingerprint = fingerprint_of(session, one);
    uint64_t key = hg_hash(PATTERN_SEED ^ fingerprint, database, strlen(database));

    return key < 4 ? key + 4 : key;
}
