/*
 * gate_resolve.c: what a session's own names and address mean under a policy (hg_session_resolve), found
 * once for all sessions of a thread that are alike in what some rule asks for.
 */
#include "gate_inside.h"

#include <stdlib.h>

#define MAX_RESOLUTIONS 1024u /* beyond, those that no session has are given up */
#define NEVER INT64_MAX

/* When the next of the policy's budgets ends: until then, what matches goes on to match. */
static int64_t next_end_ms(const hg_policy *policy, int64_t wall_ms)
{
    int64_t next = NEVER;

    if ((policy->flags & HG_POLICY_EXPIRES) == 0)
        return next;
    for (uint32_t i = 0; i < policy->budgets.count; i++) {
        int64_t end = hr_budget(policy, i)->expires_at_ms;

        if (end > wall_ms && end < next)
            next = end;
    }
    return next;
}

/* As the extension gives it: a name that was not set is empty in Postgres; MySQL has none then. */
static hg_client client_of(const hr_session *session)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    bool mysql = hr_dialect(session->thread) == HG_MYSQL;
    hg_client client = {.username = hr_username(session),
                        .database = hr_database(session),
                        .application_name = hr_application(session),
                        .family = session->family};

    if (mysql && *client.database == '\0')
        client.database = NULL;
    if (mysql && *client.application_name == '\0')
        client.application_name = NULL;
    if (client.family == 6 && memcmp(session->address, mapped, sizeof mapped) == 0) {
        client.family = 4;
        memcpy(client.address, session->address + 12, 4);
    } else if (client.family != 0) {
        memcpy(client.address, session->address, client.family == 4 ? 4 : 16);
    }
    return client;
}

/* Only what some rule asks for, and the user, whose tags may be trusted: sessions that are alike in
 * these share what they resolve to. */
static size_t alike(const hg_client *client, uint32_t keys, char *out)
{
    size_t length = strlen(client->username) + 1;

    memcpy(out, client->username, length);
    if ((keys & 1u << HG_KEY_DATABASE) && client->database != NULL) {
        memcpy(out + length, client->database, strlen(client->database) + 1);
        length += strlen(client->database) + 1;
    }
    out[length++] = 'd';
    if ((keys & 1u << HG_KEY_APPLICATION_NAME) && client->application_name != NULL) {
        memcpy(out + length, client->application_name, strlen(client->application_name) + 1);
        length += strlen(client->application_name) + 1;
    }
    out[length++] = 'a';
    if (keys & 1u << HG_KEY_REMOTE_ADDRESS) {
        out[length++] = (char) client->family;
        memcpy(out + length, client->address, sizeof client->address);
        length += sizeof client->address;
    }
    return length;
}

static bool is_current(const hr_resolution *one, const hg_policy *policy, int64_t wall_ms)
{
    return one->version == (policy == NULL ? 0 : policy->version)
           && one->crc == (policy == NULL ? 0 : policy->crc) && wall_ms < one->sound_until_ms;
}

static void sweep_resolutions(hr_gate_thread *gate)
{
    for (uint32_t i = 0; i < HR_RESOLUTIONS; i++) {
        hr_resolution **link = &gate->resolution[i];

        while (*link != NULL) {
            hr_resolution *one = *link;

            if (one->users > 0) {
                link = &one->next;
                continue;
            }
            *link = one->next;
            free(one);
            gate->resolutions--;
        }
    }
}

static void resolve_as(hr_thread *thread, const hg_policy *policy, const hg_client *client,
                       hr_resolution *one)
{
    one->generation = ++thread->gate->generations;
    one->sound_until_ms = NEVER;
    if (policy != NULL) {
        one->version = policy->version;
        one->crc = policy->crc;
        one->sound_until_ms = next_end_ms(policy, thread->wall_ms);
        hg_session_resolve(policy, client, &one->core);
    }
}

/* NULL: there is no memory for one more. */
static hr_resolution *find_resolution(hr_session *session, const hg_policy *policy,
                                      const hg_client *client)
{
    hr_thread *thread = session->thread;
    hr_gate_thread *gate = thread->gate;
    char key[3 * (HR_MAX_NAME + 1) + 32];
    size_t length = alike(client, policy == NULL ? 0 : policy->system_keys, key);
    uint64_t hash = hg_hash(5, key, length);
    hr_resolution **place = &gate->resolution[hash & (HR_RESOLUTIONS - 1)];
    hr_resolution *one = *place;

    while (one != NULL
           && !(one->hash == hash && one->key_length == length && memcmp(one->key, key, length) == 0
                && is_current(one, policy, thread->wall_ms)))
        one = one->next;
    if (one != NULL)
        return one;
    if (gate->resolutions >= MAX_RESOLUTIONS)
        sweep_resolutions(gate);
    one = calloc(1, sizeof *one + length);
    if (one == NULL)
        return NULL;
    resolve_as(thread, policy, client, one);
    one->key_length = (uint32_t) length;
    memcpy(one->key, key, length);
    one->hash = hash;
    one->next = *place;
    *place = one;
    gate->resolutions++;
    return one;
}

hr_resolution *hr_resolve(hr_session *session, const hg_policy *policy)
{
    hr_resolution *one = session->gate.resolution;
    hg_client client;

    if (one != NULL && is_current(one, policy, session->thread->wall_ms))
        return one;
    hr_unresolve(session);
    client = client_of(session);
    one = find_resolution(session, policy, &client);
    if (one == NULL) { /* Nobody goes unmatched for want of memory. */
        one = session->thread->gate->unkept;
        memset(one, 0, sizeof *one);
        resolve_as(session->thread, policy, &client, one);
        return one;
    }
    one->users++;
    session->gate.resolution = one;
    return one;
}

void hr_unresolve(hr_session *session)
{
    if (session->gate.resolution != NULL)
        session->gate.resolution->users--;
    session->gate.resolution = NULL;
}
