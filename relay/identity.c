/*
 * identity.c: who the client is (R96). Sources in the order that was declared, the first that has a value.
 *
 *   the session: user, database, application_name, attributes, variables it has SET   kept, found once
 *   the statement: its tags, its pattern                                              only if declared earlier
 *
 * A name is made one of core.names' grammar: what may not stand in it becomes _. Who has none is
 * "unidentified", the same one for all, and counted (R97).
 */
#include "gate_inside.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_VALUES 4096u /* of all attributes and variables of a session */

/* ── Settings ─────────────────────────────────────────────────────────────── */

static hr_naming *new_naming(const hg_identity *given, uint32_t version)
{
    hr_naming *naming = calloc(1, sizeof *naming);

    if (naming == NULL)
        return NULL;
    naming->settings = *given;
    naming->users = 1;
    naming->version = version;
    naming->guarded = given->trusts > 0;
    naming->priority_length = (uint32_t) strnlen(given->priority_tag, sizeof given->priority_tag);
    naming->by_tags = naming->priority_length > 0;
    for (uint32_t i = 0; i < given->sources; i++) {
        naming->by_tags |= given->source[i].kind == HG_FROM_TAG;
        naming->by_pattern |= given->source[i].kind == HG_FROM_PATTERN;
        naming->by_variables |= given->source[i].kind == HG_FROM_VARIABLE;
    }
    return naming;
}

void hr_naming_drop(hr_naming *naming)
{
    if (naming == NULL || atomic_fetch_sub(&naming->users, 1) > 1)
        return;
    explicit_bzero(&naming->settings, sizeof naming->settings); /* the secret */
    free(naming);
}

const char *hr_identity_put(hr_relay *relay, const hg_identity *identity)
{
    struct hr_gate_shared *shared = relay->gate;
    const char *fault = hg_identity_fault(identity);
    hr_naming *naming, *before;

    if (fault != NULL)
        return fault;
    pthread_mutex_lock(&shared->naming_lock);
    naming = new_naming(identity, atomic_load(&shared->naming_version) + 1);
    if (naming != NULL) {
        before = atomic_exchange(&shared->naming, naming);
        atomic_store(&shared->naming_version, naming->version);
        hr_naming_drop(before);
    }
    pthread_mutex_unlock(&shared->naming_lock);
    return naming == NULL ? "there is no memory for a new identity table" : NULL;
}

/* Kept by the thread until there are newer ones. */
hr_naming *hr_naming_of(hr_thread *thread)
{
    struct hr_gate_shared *shared = thread->relay->gate;
    hr_gate_thread *gate = thread->gate;

    if (gate->naming != NULL
        && gate->naming->version
               == atomic_load_explicit(&shared->naming_version, memory_order_relaxed))
        return gate->naming;
    pthread_mutex_lock(&shared->naming_lock);
    hr_naming_drop(gate->naming);
    gate->naming = atomic_load(&shared->naming);
    atomic_fetch_add(&gate->naming->users, 1);
    pthread_mutex_unlock(&shared->naming_lock);
    return gate->naming;
}

/* ── What a session says of itself ────────────────────────────────────────── */

static const char *name_at(const hr_session *session, uint32_t at)
{
    return session->gate.names == NULL ? "" : session->gate.names + at;
}

const char *hr_username(const hr_session *session)
{
    return name_at(session, 0);
}

const char *hr_database(const hr_session *session)
{
    return name_at(session, session->gate.database_at);
}

const char *hr_application(const hr_session *session)
{
    return name_at(session, session->gate.application_at);
}

static void forget_who(hr_session *session)
{
    session->gate.client = UINT32_MAX;
    hr_unresolve(session);
}

void hr_session_names(hr_session *session, const char *username, const char *database,
                      const char *application)
{
    const char *given[3] = {username != NULL ? username : hr_username(session),
                            database != NULL ? database : hr_database(session),
                            application != NULL ? application : hr_application(session)};
    size_t length[3];
    char *names;

    for (int i = 0; i < 3; i++)
        length[i] = strnlen(given[i], HR_MAX_NAME);
    names = calloc(1, length[0] + length[1] + length[2] + 3);
    if (names == NULL)
        return; /* as it was: of the two the lesser evil */
    memcpy(names, given[0], length[0]);
    memcpy(names + length[0] + 1, given[1], length[1]);
    memcpy(names + length[0] + length[1] + 2, given[2], length[2]);
    free(session->gate.names);
    session->gate.names = names;
    session->own.names_seen = NULL; /* these may lie where the ones before the last did */
    session->gate.database_at = (uint16_t) (length[0] + 1);
    session->gate.application_at = (uint16_t) (length[0] + length[1] + 2);
    forget_who(session);
}

/* Values are kept as: kind, length of the name, name, length, value. */
static char *find_value(const hr_session *session, uint32_t kind, const char *name, size_t length)
{
    char *at = session->gate.values;
    char *end = at == NULL ? NULL : at + session->gate.values_length;

    while (at < end) {
        size_t name_length = (uint8_t) at[1];
        size_t size = 3 + name_length + (uint8_t) at[2 + name_length];

        if ((uint8_t) at[0] == kind && name_length == length
            && strncasecmp(at + 2, name, length) == 0)
            return at;
        at += size;
    }
    return NULL;
}

static size_t value_size(const char *at)
{
    size_t name_length = (uint8_t) at[1];

    return 3 + name_length + (uint8_t) at[2 + name_length];
}

static void remove_value(hr_session *session, char *at)
{
    size_t size = value_size(at);
    char *end = session->gate.values + session->gate.values_length;

    memmove(at, at + size, (size_t) (end - at) - size);
    session->gate.values_length = (uint16_t) (session->gate.values_length - size);
}

static void add_value(hr_session *session, uint32_t kind, const char *name, size_t name_length,
                      const char *value, size_t length)
{
    size_t cut = length < HG_MAX_IDENTITY_BYTES ? length : HG_MAX_IDENTITY_BYTES;
    size_t size = 3 + name_length + cut;
    char *values;
    char *at;

    if (session->gate.values_length + size > MAX_VALUES)
        return;
    values = realloc(session->gate.values, session->gate.values_length + size);
    if (values == NULL)
        return;
    at = values + session->gate.values_length;
    at[0] = (char) kind;
    at[1] = (char) name_length;
    memcpy(at + 2, name, name_length);
    at[2 + name_length] = (char) cut;
    memcpy(at + 3 + name_length, value, cut);
    session->gate.values = values;
    session->gate.values_length = (uint16_t) (session->gate.values_length + size);
}

/* MySQL's user variables are written with an @, and may be declared with or without. */
static void without_at(const char **name, size_t *length)
{
    if (*length > 1 && **name == '@') {
        ++*name;
        --*length;
    }
}

static bool is_source(const hr_naming *naming, uint32_t kind, const char *name, size_t length)
{
    for (uint32_t i = 0; i < naming->settings.sources; i++) {
        const hg_source *source = &naming->settings.source[i];
        const char *other = source->name;
        size_t other_length = source->name_length;

        if (source->kind != kind)
            continue;
        without_at(&other, &other_length);
        if (other_length == length && strncasecmp(other, name, length) == 0)
            return true;
    }
    return false;
}

static void forget_kind(hr_session *session, uint32_t kind)
{
    char *at = session->gate.values;

    while (at != NULL && at < session->gate.values + session->gate.values_length) {
        if ((uint8_t) *at == kind)
            remove_value(session, at);
        else
            at += value_size(at);
    }
    forget_who(session);
}

/* A NULL value, or none at all, is the end of it. */
static void keep_value(hr_session *session, uint32_t kind, const char *name, size_t name_length,
                       const char *value, size_t length)
{
    char *old;

    if (name == NULL) {
        forget_kind(session, kind);
        return;
    }
    without_at(&name, &name_length);
    if (name_length > 64 || !is_source(hr_naming_of(session->thread), kind, name, name_length))
        return;
    old = find_value(session, kind, name, name_length);
    if (old != NULL)
        remove_value(session, old);
    if (value != NULL && length > 0)
        add_value(session, kind, name, name_length, value, length);
    forget_who(session);
}

void hr_gate_attribute(hr_session *session, const char *name, size_t name_length, const char *value,
                       size_t length)
{
    char application[HR_MAX_NAME + 1];
    size_t cut = length < HR_MAX_NAME ? length : HR_MAX_NAME;
    bool mysql = hr_dialect(session->thread) == HG_MYSQL;
    const char *named = mysql ? "program_name" : "application_name";

    if (name != NULL && value != NULL && name_length == strlen(named)
        && memcmp(name, named, name_length) == 0) {
        memcpy(application, value, cut);
        application[cut] = '\0';
        hr_session_names(session, NULL, NULL, application);
    }
    keep_value(session, HG_FROM_ATTRIBUTE, name, name_length, value, length);
}

void hr_gate_variable(hr_session *session, const char *name, size_t name_length, const char *value,
                      size_t length)
{
    keep_value(session, HG_FROM_VARIABLE, name, name_length, value, length);
}

/* ── SET in a text ────────────────────────────────────────────────────────── */

typedef struct assignment {
    char name[80];
    size_t name_length;
    char value[160];
    size_t length;
    bool is_default;
} assignment;

static void append_token(const hg_tokens *tokens, assignment *to)
{
    size_t length = (size_t) (tokens->end - tokens->start);

    if (to->name_length + length > sizeof to->name) {
        to->name_length = 0; /* no name of ours */
        return;
    }
    memcpy(to->name + to->name_length, tokens->start, length);
    to->name_length += length;
}

/* Its value without quotes; doubled ones and backslashes are taken as they stand. */
static void take_literal(const hg_tokens *tokens, assignment *to)
{
    const uint8_t *at = tokens->start;
    const uint8_t *end = tokens->end;

    if (end - at >= 2 && (*at == '\'' || *at == '"') && end[-1] == *at) {
        at++;
        end--;
    }
    to->length = (size_t) (end - at) < sizeof to->value ? (size_t) (end - at) : sizeof to->value;
    memcpy(to->value, at, to->length);
}

static bool is_assign(const hg_tokens *tokens)
{
    return hg_token_is_mark(tokens, '=') || hg_token_is(tokens, "to");
}

static bool is_scope(const hg_tokens *tokens)
{
    return hg_token_is(tokens, "session") || hg_token_is(tokens, "local")
           || hg_token_is(tokens, "global");
}

/* name = value, up to a comma or the end; false: there is none. MySQL's := is two marks. */
static bool next_assignment(hg_tokens *tokens, assignment *to)
{
    to->name_length = to->length = 0;
    to->is_default = false;
    if (!hg_tokens_next(tokens))
        return false;
    if (is_scope(tokens))
        hg_tokens_next(tokens);
    while (tokens->start < tokens->end && !is_assign(tokens) && !hg_token_is_mark(tokens, ',')) {
        if (!hg_token_is_mark(tokens, ':'))
            append_token(tokens, to);
        if (!hg_tokens_next(tokens))
            return to->name_length > 0;
    }
    if (hg_token_is_mark(tokens, ','))
        return true;
    hg_tokens_next(tokens);
    to->is_default = hg_token_is(tokens, "default") || hg_token_is(tokens, "null");
    if (!to->is_default)
        take_literal(tokens, to);
    while (hg_tokens_next(tokens) && !hg_token_is_mark(tokens, ','))
        ;
    return true;
}

static void follow_set(hr_session *session, const char *text, size_t length)
{
    assignment one;
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text, length, hr_dialect(session->thread));
    while (next_assignment(&tokens, &one))
        if (one.name_length > 0)
            hr_gate_variable(session, one.name, one.name_length, one.is_default ? NULL : one.value,
                             one.length);
}

static void follow_reset(hr_session *session, const char *text, size_t length)
{
    assignment one = {.name_length = 0};
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text, length, hr_dialect(session->thread));
    while (hg_tokens_next(&tokens))
        append_token(&tokens, &one);
    if (one.name_length == 3 && strncasecmp(one.name, "all", 3) == 0)
        hr_gate_variable(session, NULL, 0, NULL, 0);
    else if (one.name_length > 0)
        hr_gate_variable(session, one.name, one.name_length, NULL, 0);
}

/* application_name is not followed here: Postgres reports its new value automatically, and also where the
 * SET fails or is rolled back. */
void hr_follow(hr_session *session, const hr_naming *naming, const char *text, size_t length,
               const hr_reading *reading)
{
    if (!naming->by_variables)
        return;
    if (reading->verb == HR_VERB_SET)
        follow_set(session, text + reading->at, length - reading->at);
    else if (reading->verb == HR_VERB_RESET)
        follow_reset(session, text + reading->at, length - reading->at);
    else if (reading->verb == HR_VERB_DISCARD)
        hr_gate_variable(session, NULL, 0, NULL, 0);
}

/* ── The name ─────────────────────────────────────────────────────────────── */

static hr_client_ref who_is(hr_session *session, const char *value, size_t length)
{
    hr_thread *thread = session->thread;
    char identity[HG_MAX_IDENTITY_BYTES + 1];
    bool is_new;
    hr_client_ref ref;

    length = hg_name(value, length, identity);
    ref.level = HR_OTHERS;
    if (length == 0) {
        ref.client = HR_UNIDENTIFIED;
        ref.key = atomic_load_explicit(&hr_client_at(thread, HR_UNIDENTIFIED)->key,
                                       memory_order_relaxed);
        return ref;
    }
    ref.client = hr_client_find(thread->relay->state, thread->pid, identity, length, thread->now_ns,
                                &is_new);
    ref.key = hr_client_key(ref.client == HR_OTHERS ? "others" : identity,
                            ref.client == HR_OTHERS ? 6 : length);
    if (ref.client == HR_OTHERS)
        ref.level = hr_client_level(thread->relay->state, identity, length, thread->wall_ms);
    if (is_new)
        hr_tell_client(thread, &ref, identity, length);
    return ref;
}

/* What the session itself says by this source; 0: nothing. */
static size_t own_value(const hr_session *session, const hg_source *source, const char **value)
{
    const char *name = source->name;
    size_t name_length = source->name_length;
    char *kept;

    *value = "";
    switch (source->kind) {
    case HG_FROM_APPLICATION:
        *value = hr_application(session);
        break;
    case HG_FROM_USER:
        *value = hr_username(session);
        break;
    case HG_FROM_DATABASE:
        *value = hr_database(session);
        break;
    case HG_FROM_ATTRIBUTE:
    case HG_FROM_VARIABLE:
        without_at(&name, &name_length);
        kept = find_value(session, source->kind, name, name_length);
        if (kept == NULL)
            return 0;
        *value = kept + 3 + name_length;
        return (uint8_t) kept[2 + name_length];
    default:
        break;
    }
    return strlen(*value);
}

static void identify_session(hr_session *session, const hr_naming *naming)
{
    char identity[HG_MAX_IDENTITY_BYTES + 1];
    const char *value = "";
    size_t length = 0;
    uint32_t rank = 0;
    hr_client_ref ref;

    for (; rank < naming->settings.sources; rank++) {
        length = own_value(session, &naming->settings.source[rank], &value);
        if (length > 0 && hg_name(value, length, identity) > 0)
            break;
        length = 0;
    }
    ref = who_is(session, value, length);
    session->gate.client = ref.client;
    session->gate.client_key = ref.key;
    session->gate.level = ref.level;
    session->gate.naming = naming->version;
    session->gate.rank = (uint8_t) rank;
}

static bool is_identified(const hr_session *session, const hr_naming *naming)
{
    const hr_gate_session *gate = &session->gate;

    return gate->client != UINT32_MAX && gate->naming == naming->version
           && gate->client != HR_OTHERS
           && atomic_load_explicit(&hr_client_at(session->thread, gate->client)->key,
                                   memory_order_relaxed)
                  == gate->client_key;
}

static bool by_source(hr_session *session, const hg_source *source, const hg_tags *tags,
                      uint64_t fingerprint, hr_client_ref *ref)
{
    char pattern[32];
    const hg_tag *tag;

    if (source->kind == HG_FROM_PATTERN) {
        int length = snprintf(pattern, sizeof pattern, "pattern:%016llx",
                              (unsigned long long) fingerprint);

        *ref = who_is(session, pattern, (size_t) length);
        return true;
    }
    tag = source->kind == HG_FROM_TAG ? hg_tag_named(tags, source->name, source->name_length)
                                      : NULL;
    if (tag == NULL)
        return false;
    *ref = who_is(session, tags->text + tag->value_offset, tag->value_length);
    return ref->client != HR_UNIDENTIFIED;
}

hr_client_ref hr_identify_session(hr_session *session, const hr_naming *naming)
{
    if (!is_identified(session, naming))
        identify_session(session, naming);
    return (hr_client_ref){session->gate.client, session->gate.client_key, session->gate.level};
}

hr_client_ref hr_identify(hr_session *session, const hr_naming *naming, const hg_tags *tags,
                          uint64_t fingerprint, uint8_t *rank)
{
    hr_client_ref own = hr_identify_session(session, naming);
    hr_client_ref ref;

    *rank = session->gate.rank;
    if (naming->by_tags || naming->by_pattern)
        for (uint8_t i = 0; i < session->gate.rank; i++)
            if (by_source(session, &naming->settings.source[i], tags, fingerprint, &ref)) {
                *rank = i;
                return ref;
            }
    return own;
}

uint8_t hr_priority(const hr_naming *naming, const hg_tags *tags)
{
    const hg_tag *tag;
    uint32_t number = 0;

    if (naming->priority_length == 0)
        return naming->settings.default_priority;
    tag = hg_tag_named(tags, naming->settings.priority_tag, naming->priority_length);
    if (tag == NULL || tag->value_length > 3)
        return naming->settings.default_priority;
    for (uint32_t i = 0; i < tag->value_length; i++) {
        char digit = tags->text[tag->value_offset + i];

        if (digit < '0' || digit > '9')
            return naming->settings.default_priority;
        number = number * 10 + (uint32_t) (digit - '0');
    }
    return number <= 100 ? (uint8_t) number : naming->settings.default_priority;
}
