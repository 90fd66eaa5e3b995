/* gate_open.c: opening and closing the gate, its threads and sessions; their dice. */
#include "gate_inside.h"

#include <stdlib.h>
#include <sys/random.h>

/* ── Dice ─────────────────────────────────────────────────────────────────── */

static uint64_t turned(uint64_t word, int by)
{
    return word << by | word >> (64 - by);
}

/* xoshiro256**: nobody gains by foretelling it, and a system call each would cost more than all. */
uint64_t hr_dice(hr_gate_thread *gate)
{
    uint64_t *s = gate->dice;
    uint64_t result = turned(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = turned(s[3], 45);
    return result;
}

static void shake(hr_thread *thread)
{
    uint64_t *seed = thread->gate->dice;

    if (getrandom(seed, sizeof thread->gate->dice, 0) != (ssize_t) sizeof thread->gate->dice)
        for (uint32_t i = 0; i < 4; i++)
            seed[i] = hg_hash(thread->pid + i, &thread->number, sizeof thread->number)
                      ^ thread->now_ns;
    seed[0] |= 1; /* not all zero */
}

/* ── Opening and closing ──────────────────────────────────────────────────── */

static void close_shared(struct hr_gate_shared *shared)
{
    hr_naming_drop(atomic_load(&shared->naming));
    hr_queues_close(shared->queues);
    pthread_mutex_destroy(&shared->naming_lock);
    free(shared->notes);
    free(shared);
}

bool hr_gate_open(hr_relay *relay, const hg_identity *identity)
{
    struct hr_gate_shared *shared = calloc(1, sizeof *shared);

    if (shared == NULL)
        return false;
    pthread_mutex_init(&shared->naming_lock, NULL);
    shared->queues = hr_queues_open();
    shared->notes_count = relay->state->sizes.runnings;
    shared->notes = calloc(shared->notes_count, sizeof *shared->notes);
    relay->gate = shared;
    if (shared->queues != NULL && shared->notes != NULL && hr_identity_put(relay, identity) == NULL)
        return true;
    close_shared(shared);
    relay->gate = NULL;
    return false;
}

void hr_gate_close(hr_relay *relay)
{
    if (relay->gate != NULL)
        close_shared(relay->gate);
    relay->gate = NULL;
}

bool hr_gate_thread_open(hr_thread *thread)
{
    uint32_t runnings = thread->relay->state->sizes.runnings;
    uint32_t threads = thread->relay->thread_count > 0 ? thread->relay->thread_count : 1;

    thread->gate = calloc(1, sizeof *thread->gate);
    if (thread->gate == NULL)
        return false;
    thread->gate->signatures = (hg_signature_cache){64, thread->gate->signature};
    thread->gate->unkept = calloc(1, sizeof *thread->gate->unkept);
    if (thread->gate->unkept == NULL) {
        free(thread->gate);
        thread->gate = NULL;
        return false;
    }
    shake(thread);
    /* Apart from each other, so that they do not compete for the same slots. */
    thread->gate->cursor = (uint32_t) ((uint64_t) runnings * (thread->number % threads) / threads)
                           % runnings;
    return true;
}

void hr_gate_thread_close(hr_thread *thread)
{
    hr_gate_thread *gate = thread->gate;

    if (gate == NULL)
        return;
    hr_prepareds_free(gate);
    for (uint32_t i = 0; i < HR_RESOLUTIONS; i++)
        for (hr_resolution *at = gate->resolution[i], *next; at != NULL; at = next) {
            next = at->next;
            free(at);
        }
    hr_naming_drop(gate->naming);
    free(gate->unkept);
    free(gate);
    thread->gate = NULL;
}

void hr_gate_session_init(hr_session *session)
{
    memset(&session->gate, 0, sizeof session->gate);
    session->gate.client = UINT32_MAX;
}

void hr_gate_session_free(hr_session *session)
{
    hr_gate_forget(session);
    hr_measured(session, true);
    hr_forget_prepared(session);
    hr_unresolve(session);
    free(session->gate.names);
    free(session->gate.values);
    hr_gate_session_init(session);
}
