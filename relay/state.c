/*
 * state.c: what all processes and threads of a proxy share besides the traffic region: clients with
 * what Python says of them, statements that run, plans.
 *
 *   relay threads ──hr_client_find──► hr_client ◄──hr_gate_put── Python
 *
 * A client stays at its index as long as it is there; a holder of an index keeps the key as well,
 * and looks whether it is the same still. Where the neighbourhood is full a place is taken over, of one
 * that is silent: for seconds if it has hardly said anything, since names can be made up by the thousand,
 * for a minute if it is a real client. The key changes first, so a late look sees another's.
 *
 * Names that rules speak of are entered by Python and kept in any case: else made-up names would
 * leave no place for those that a rule is about.
 */
#include "state.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define LINE 64u
#define FREE_KEY 0u
#define MOVING_KEY UINT64_MAX   /* the place is being given away */
#define PROBES 16u              /* places that a client or a plan may lie in */
#define WRITER_TRIES 100000u
#define WRITER_NS UINT64_C(1000000000)
#define READER_TRIES 256u
#define ENTER_TRIES 1000u
/* Longer than reports to the agent take, so that what it did has been reported. */
#define SILENT_NS UINT64_C(3000000000)
#define KNOWN_SILENT_NS UINT64_C(60000000000)
#define KNOWN_STATEMENTS 16u    /* a client with so many is no made-up name */
#define MAX_LEVELS 8u
#define MAX_CLIENTS 65536u
#define MAX_RUNNINGS (1u << 20)
#define MAX_PLANS (1u << 20)

static const char unidentified[] = "unidentified";
static const char others[] = "others";

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static bool sound(const hr_sizes *sizes)
{
    return is_power_of_two(sizes->clients) && sizes->clients >= 16 && sizes->clients <= MAX_CLIENTS
           && sizes->runnings >= 1 && sizes->runnings <= MAX_RUNNINGS
           && is_power_of_two(sizes->plans) && sizes->plans <= MAX_PLANS;
}

static uint64_t part(uint64_t *end, uint64_t count, size_t size)
{
    uint64_t at = *end;

    *end = (at + count * size + LINE - 1) / LINE * LINE;
    return at;
}

static void lay_out(hr_state *state, const hr_sizes *sizes)
{
    uint64_t end = (sizeof *state + LINE - 1) / LINE * LINE;

    state->sizes = *sizes;
    state->clients_at = part(&end, sizes->clients, sizeof(hr_client));
    state->runnings_at = part(&end, sizes->runnings, sizeof(hr_running));
    state->plans_at = part(&end, sizes->plans, sizeof(hr_plan));
    state->length = end;
}

size_t hr_state_bytes(const hr_sizes *sizes)
{
    hr_state state;

    if (!sound(sizes))
        return 0;
    lay_out(&state, sizes);
    return state.length;
}

/* In words, each whole, as gates are: a reader may look at the same time. */
static void name_client(hr_client *client, const char *identity, size_t length)
{
    uint64_t words[sizeof client->identity / 8] = {0};
    uint64_t *out = (uint64_t *) (void *) client->identity;

    memcpy(words, identity, length < sizeof words ? length : sizeof words - 1);
    for (size_t i = 0; i < sizeof words / 8; i++)
        __atomic_store_n(&out[i], words[i], __ATOMIC_RELAXED);
    __atomic_store_n(&client->length, (uint32_t) length, __ATOMIC_RELAXED);
}

bool hr_client_name(const hr_client *client, uint64_t key, char *out)
{
    const uint64_t *from = (const uint64_t *) (const void *) client->identity;
    uint64_t words[sizeof client->identity / 8];
    bool same = atomic_load_explicit(&client->key, memory_order_acquire) == key;

    for (size_t i = 0; i < sizeof words / 8; i++)
        words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    memcpy(out, words, sizeof words);
    out[sizeof words - 1] = '\0';
    atomic_thread_fence(memory_order_acquire);
    return same && atomic_load_explicit(&client->key, memory_order_relaxed) == key;
}

uint64_t hr_client_key(const char *identity, size_t length)
{
    uint64_t key = hg_hash(3, identity, length);

    return key == FREE_KEY || key == MOVING_KEY ? 1 : key;
}

const char *hr_state_init(void *memory, size_t length, const hr_sizes *sizes)
{
    hr_state *state = memory;
    hr_client *clients;

    if (!sound(sizes))
        return "the sizes of the state are not sound";
    if (length < hr_state_bytes(sizes))
        return "the memory is too small for the state";
    memset(memory, 0, hr_state_bytes(sizes));
    lay_out(state, sizes);
    clients = hr_clients_in(state);
    name_client(&clients[HR_UNIDENTIFIED], unidentified, sizeof unidentified - 1);
    name_client(&clients[HR_OTHERS], others, sizeof others - 1);
    atomic_store(&clients[HR_UNIDENTIFIED].key,
                 hr_client_key(unidentified, sizeof unidentified - 1));
    atomic_store(&clients[HR_OTHERS].key, hr_client_key(others, sizeof others - 1));
    atomic_store(&state->enabled, 1);
    state->format = HR_STATE_FORMAT;
    memcpy(state->magic, HR_STATE_MAGIC, sizeof state->magic);
    return NULL;
}

const char *hr_state_check(const void *memory, size_t length)
{
    const hr_state *state = memory;
    hr_state same;

    if (length < sizeof *state || memcmp(state->magic, HR_STATE_MAGIC, sizeof state->magic) != 0)
        return "this is no state of a proxy";
    if (state->format != HR_STATE_FORMAT)
        return "the state is of another format: restart without taking over";
    if (!sound(&state->sizes))
        return "the sizes of the state are not sound";
    lay_out(&same, &state->sizes);
    if (state->length != same.length || state->clients_at != same.clients_at
        || state->runnings_at != same.runnings_at || state->plans_at != same.plans_at)
        return "the state is laid out otherwise: restart without taking over";
    return length < state->length ? "the state is cut short" : NULL;
}

/* ── Clients ──────────────────────────────────────────────────────────────── */

static uint32_t home(const hr_state *state, uint64_t key, uint32_t probe)
{
    uint32_t places = state->sizes.clients - 2;

    return 2 + (uint32_t) (((key >> 16) + probe) % places);
}

static uint32_t look_up(const hr_state *state, uint64_t key)
{
    hr_client *clients = hr_clients_in(state);

    for (uint32_t probe = 0; probe < PROBES; probe++) {
        uint32_t index = home(state, key, probe);
        uint64_t there = atomic_load_explicit(&clients[index].key, memory_order_acquire);

        if (there == key)
            return index;
        if (there == FREE_KEY)
            break;
    }
    return UINT32_MAX;
}

/* How long it must have said nothing before another is given its place. */
static uint64_t spared_ns(const hr_client *client)
{
    return atomic_load_explicit(&client->statements, memory_order_relaxed) < KNOWN_STATEMENTS
               ? SILENT_NS
               : KNOWN_SILENT_NS;
}

/* `wanted`: for a name that is to be kept, any other idle one will do. */
static bool may_go(const hr_client *client, uint64_t now_ns, bool wanted)
{
    uint64_t last_ns = atomic_load_explicit(&client->last_ns, memory_order_relaxed);

    return atomic_load(&client->running) == 0 && atomic_load(&client->waiting) == 0
           && atomic_load_explicit(&client->kept, memory_order_relaxed) == 0
           && (wanted || (now_ns > last_ns && now_ns - last_ns > spared_ns(client)));
}

/* Free, or of the one that has been silent for longest; UINT32_MAX: neither. */
static uint32_t room_for(const hr_state *state, uint64_t key, uint64_t now_ns, bool wanted)
{
    hr_client *clients = hr_clients_in(state);
    uint32_t found = UINT32_MAX;
    uint64_t oldest_ns = UINT64_MAX;

    for (uint32_t probe = 0; probe < PROBES; probe++) {
        uint32_t index = home(state, key, probe);
        uint64_t last_ns = atomic_load_explicit(&clients[index].last_ns, memory_order_relaxed);

        if (atomic_load_explicit(&clients[index].key, memory_order_relaxed) == FREE_KEY)
            return index;
        if (may_go(&clients[index], now_ns, wanted) && last_ns < oldest_ns) {
            found = index;
            oldest_ns = last_ns;
        }
    }
    return found;
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * UINT64_C(1000000000) + (uint64_t) now.tv_nsec;
}

/* A process that has been writing for so long is dead: it was killed at it, and its place is ours. By the
 * clock as well: on a busy machine a turn of others may take milliseconds. */
static void begin_writing(hr_gate *gate)
{
    uint32_t sequence = atomic_load_explicit(&gate->sequence, memory_order_relaxed);
    uint64_t until_ns = 0;

    for (uint32_t tries = 0; tries < WRITER_TRIES;) {
        if (sequence & 1) {
            if (tries % 64 == 0) {
                uint64_t now_ns = monotonic_ns();

                until_ns = until_ns == 0 ? now_ns + WRITER_NS : until_ns;
                if (now_ns >= until_ns)
                    break;
            }
            sched_yield();
            tries++;
            sequence = atomic_load_explicit(&gate->sequence, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak(&gate->sequence, &sequence, sequence + 1)) {
            break;
        }
    }
    atomic_thread_fence(memory_order_seq_cst);
}

static void end_writing(hr_gate *gate)
{
    atomic_fetch_add_explicit(&gate->sequence, 1, memory_order_release);
}

/* In words, each whole: a reader may look at the same time, and then looks again. */
static void write_gate(hr_gate *to, const hr_gate *from)
{
    const uint32_t *words = (const uint32_t *) from;
    uint32_t *out = (uint32_t *) to;

    for (size_t i = 1; i < sizeof *to / 4; i++)
        __atomic_store_n(&out[i], words[i], __ATOMIC_RELAXED);
}

/* False: it is being written all the time; what was read may be of two. */
static bool read_words(const hr_gate *from, hr_gate *to, size_t bytes)
{
    const uint32_t *words = (const uint32_t *) from;
    uint32_t *out = (uint32_t *) to;

    for (uint32_t tries = 0; tries < READER_TRIES; tries++) {
        uint32_t before = atomic_load_explicit(&from->sequence, memory_order_acquire);

        for (size_t i = 1; i < bytes / 4; i++)
            out[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
        atomic_thread_fence(memory_order_acquire);
        if ((before & 1) == 0
            && atomic_load_explicit(&from->sequence, memory_order_relaxed) == before)
            return true;
        sched_yield();
    }
    return false;
}

static void clear_counts(hr_client *client)
{
    hr_gate none = {.sequence = 0};

    for (_Atomic uint64_t *at = &client->statements; at < &client->reported_blocked[HR_CAUSES];
         at++)
        atomic_store_explicit(at, 0, memory_order_relaxed);
    begin_writing(&client->gate);
    write_gate(&client->gate, &none);
    atomic_store(&client->state, 0); /* behind a gate that was just put to the one before it */
    end_writing(&client->gate);
}

static uint32_t add(hr_state *state, uint64_t key, const char *identity, size_t length,
                    uint64_t now_ns, bool wanted)
{
    hr_client *clients = hr_clients_in(state);
    uint32_t index = room_for(state, key, now_ns, wanted);

    if (index == UINT32_MAX) {
        hg_add(&state->clients_full, 1);
        return HR_OTHERS;
    }
    /* A place that was free stays so for those who look, until it is whole. */
    if (atomic_load_explicit(&clients[index].key, memory_order_relaxed) != FREE_KEY)
        atomic_store(&clients[index].key, MOVING_KEY);
    atomic_thread_fence(memory_order_seq_cst);
    clear_counts(&clients[index]);
    name_client(&clients[index], identity, length);
    atomic_store_explicit(&clients[index].last_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&clients[index].kept, wanted, memory_order_relaxed);
    atomic_store_explicit(&clients[index].key, key, memory_order_release);
    return index;
}

uint32_t hr_client_find(hr_state *state, uint32_t pid, const char *identity, size_t length,
                        uint64_t now_ns, bool *is_new)
{
    uint64_t key = hr_client_key(identity, length);
    hr_client *clients = hr_clients_in(state);
    uint32_t nobody = 0;
    uint32_t index = look_up(state, key);

    *is_new = false;
    if (index != UINT32_MAX)
        return index;
    for (index = 0; index < 2; index++)
        if (atomic_load_explicit(&clients[index].key, memory_order_relaxed) == key)
            return index;
    /* Another process is at it, or died at it: for this once it is one of the others. */
    if (!atomic_compare_exchange_strong(&state->adding, &nobody, pid))
        return HR_OTHERS;
    index = look_up(state, key);
    if (index == UINT32_MAX) {
        index = add(state, key, identity, length, now_ns, false);
        *is_new = index != HR_OTHERS;
    }
    atomic_store(&state->adding, 0);
    return index;
}

static bool lock(hr_state *state, uint32_t pid)
{
    for (uint32_t tries = 0; tries < ENTER_TRIES; tries++) {
        uint32_t nobody = 0;

        if (atomic_compare_exchange_strong(&state->adding, &nobody, pid))
            return true;
        sched_yield();
    }
    return false;
}

uint32_t hr_client_enter(hr_state *state, uint32_t pid, const char *identity, size_t length,
                         uint64_t now_ns, uint64_t *key)
{
    uint32_t index;

    *key = hr_client_key(identity, length);
    if (length == 0 || length > HG_MAX_IDENTITY_BYTES
        || *key == atomic_load(&hr_clients_in(state)[HR_UNIDENTIFIED].key)
        || *key == atomic_load(&hr_clients_in(state)[HR_OTHERS].key) || !lock(state, pid))
        return 0;
    index = look_up(state, *key);
    if (index == UINT32_MAX)
        index = add(state, *key, identity, length, now_ns, true);
    if (index != HR_OTHERS)
        atomic_store(&hr_clients_in(state)[index].kept, 1);
    atomic_store(&state->adding, 0);
    return index == HR_OTHERS ? 0 : index;
}

void hr_client_leave(hr_state *state, uint32_t client, uint64_t key)
{
    hr_client *one = &hr_clients_in(state)[client < state->sizes.clients ? client : 0];

    if (client < state->sizes.clients && atomic_load(&one->key) == key)
        atomic_store(&one->kept, 0);
}

/* ── Gates ────────────────────────────────────────────────────────────────── */

void hr_gate_put(hr_state *state, uint32_t client, uint64_t key, const hr_gate *gate)
{
    hr_client *one = &hr_clients_in(state)[client < state->sizes.clients ? client : 0];

    if (client >= state->sizes.clients)
        return;
    begin_writing(&one->gate);
    /* The place may be another's by now. */
    if (atomic_load(&one->key) == key) {
        write_gate(&one->gate, gate);
        atomic_store(&one->state, 1);
    }
    end_writing(&one->gate);
}

void hr_gate_get(const hr_state *state, uint32_t client, hr_gate *gate)
{
    memset(gate, 0, sizeof *gate);
    if (client < state->sizes.clients
        && !read_words(&hr_clients_in(state)[client].gate, gate, sizeof *gate))
        memset(gate, 0, sizeof *gate); /* rather nothing than half of two */
}

bool hr_gate_look(const hr_client *client, hr_gate *gate)
{
    return read_words(&client->gate, gate, offsetof(hr_gate, reason));
}

/* ── Levels ───────────────────────────────────────────────────────────────── */

typedef struct level {
    const char *start;
    size_t length;
    uint32_t client;
} level;

typedef struct levels {
    uint32_t count;
    level at[MAX_LEVELS]; /* in the order of their bytes, each once */
} levels;

/* UINT32_MAX: it is not kept, or Python has not said anything of it. */
static uint32_t kept_client(const hr_state *state, const char *identity, size_t length)
{
    uint32_t index = look_up(state, hr_client_key(identity, length));
    const hr_client *client = index == UINT32_MAX ? NULL : &hr_clients_in(state)[index];

    if (client == NULL || atomic_load_explicit(&client->kept, memory_order_relaxed) == 0
        || atomic_load_explicit(&client->state, memory_order_acquire) == 0)
        return UINT32_MAX;
    return index;
}

static int compared(const level *one, const char *start, size_t length)
{
    int order = memcmp(one->start, start, one->length < length ? one->length : length);

    return order != 0 ? order : one->length < length ? -1 : one->length > length;
}

static void put_level(levels *all, const char *start, size_t length, uint32_t client)
{
    uint32_t at = 0;

    while (at < all->count && compared(&all->at[at], start, length) < 0)
        at++;
    if (all->count == MAX_LEVELS || (at < all->count && compared(&all->at[at], start, length) == 0))
        return;
    memmove(&all->at[at + 1], &all->at[at], (all->count - at) * sizeof(level));
    all->at[at] = (level){start, length, client};
    all->count++;
}

/* Those that rules know at all: Python enters each level that is part of a target. */
static void known_levels(const hr_state *state, const char *identity, size_t length, levels *all)
{
    size_t start = 0;

    all->count = 0;
    for (size_t i = 0; i <= length; i++) {
        uint32_t client;

        if (i < length && identity[i] != ':')
            continue;
        client = kept_client(state, identity + start, i - start);
        if (client != UINT32_MAX)
            put_level(all, identity + start, i - start, client);
        start = i + 1;
    }
}

static uint32_t client_of(const hr_state *state, const levels *all, uint32_t mask)
{
    char identity[HG_MAX_IDENTITY_BYTES + 1];
    size_t used = 0;

    if ((mask & (mask - 1)) == 0)
        return all->at[__builtin_ctz(mask)].client;
    for (uint32_t i = 0; i < all->count; i++) {
        if ((mask & 1u << i) == 0)
            continue;
        if (used > 0)
            identity[used++] = ':';
        memcpy(identity + used, all->at[i].start, all->at[i].length);
        used += all->at[i].length;
    }
    return kept_client(state, identity, used);
}

/* What is done to more statements is stricter; what warns does little, and an exemption nothing. */
static uint64_t strictness(const hr_state *state, uint32_t client, int64_t wall_ms)
{
    uint64_t paced;
    uint32_t action;
    hr_gate gate;

    if (!hr_gate_look(&hr_clients_in(state)[client], &gate) || (gate.flags & HR_GATE_EXEMPT))
        return 0;
    action = gate.action;
    if (gate.until_ms != 0 && wall_ms > gate.until_ms) {
        action = atomic_load_explicit(&state->lost, memory_order_relaxed);
        gate.ratio = UINT32_MAX;
    }
    paced = (gate.flags & HR_GATE_PACED) != 0;
    if (action == HR_ACT_PASS || gate.ratio == 0)
        return 1 + paced;
    return (uint64_t) (action == HR_ACT_WARN ? 1 : 2) << 34 | (uint64_t) gate.ratio << 1 | paced;
}

/* Whether all of these levels are in one that was found: it has heeded what rules say of them. */
static bool is_heeded(const uint32_t *found, uint32_t count, uint32_t mask)
{
    for (uint32_t i = 0; i < count; i++)
        if ((mask & ~found[i]) == 0)
            return true;
    return false;
}

uint32_t hr_client_level(const hr_state *state, const char *identity, size_t length,
                         int64_t wall_ms)
{
    uint32_t found[1u << MAX_LEVELS];
    uint32_t count = 0, best = HR_OTHERS;
    uint64_t strictest = 0;
    levels all;

    known_levels(state, identity, length, &all);
    for (uint32_t size = all.count; size > 0; size--)
        for (uint32_t mask = 1; mask < 1u << all.count; mask++) {
            uint32_t client;
            uint64_t strict;

            if ((uint32_t) __builtin_popcount(mask) != size || is_heeded(found, count, mask)
                || (client = client_of(state, &all, mask)) == UINT32_MAX)
                continue;
            found[count++] = mask;
            strict = strictness(state, client, wall_ms);
            if (best == HR_OTHERS || strict > strictest) {
                best = client;
                strictest = strict;
            }
        }
    return best;
}

/* ── Statements that run ──────────────────────────────────────────────────── */

static bool claim(hr_running *running, uint32_t pid)
{
    uint32_t nobody = 0;

    return atomic_load_explicit(&running->pid, memory_order_relaxed) == 0
           && atomic_compare_exchange_strong_explicit(&running->pid, &nobody, pid,
                                                      memory_order_acquire, memory_order_relaxed);
}

uint32_t hr_running_take(hr_state *state, uint32_t pid, uint32_t *cursor)
{
    hr_running *runnings = hr_runnings_in(state);
    uint32_t total = state->sizes.runnings;

    for (uint32_t probe = 0; probe < total; probe++) {
        uint32_t index = *cursor;

        *cursor = index + 1 < total ? index + 1 : 0;
        if (claim(&runnings[index], pid)) {
            runnings[index].next = runnings[index].flags = 0;
            runnings[index].holding.count = runnings[index].holding.workers = 0;
            return index;
        }
    }
    hg_add(&state->runnings_full, 1);
    return UINT32_MAX;
}

bool hr_running_take_at(hr_state *state, uint32_t pid, uint32_t index)
{
    hr_running *running = &hr_runnings_in(state)[index];

    if (!claim(running, pid))
        return false;
    running->next = running->flags = 0;
    running->holding.count = running->holding.workers = 0;
    return true;
}

void hr_running_free(hr_state *state, uint32_t index)
{
    atomic_store_explicit(&hr_runnings_in(state)[index].pid, 0, memory_order_release);
}

static void settle_dead(hg_region *region, hr_state *state, hr_running *running, uint64_t now_ns)
{
    hr_client *client = &hr_clients_in(
        state)[running->client < state->sizes.clients ? running->client : HR_UNIDENTIFIED];
    uint64_t took_ns = now_ns > running->started_ns ? now_ns - running->started_ns : 0;

    if (running->flags & HR_RUNNING_WAITS) {
        if (running->holding.query_id != 0)
            hg_sleep_end(region, running->holding.query_id);
        hr_count_down(&client->waiting);
    } else if ((running->flags & HR_RUNNING_ENDED) == 0) {
        hg_settle(region, &running->holding, took_ns, true, now_ns);
    }
    if (running->flags & HR_RUNNING_STARTED)
        hr_count_down(&client->running);
}

uint32_t hr_settle_dead(hg_region *region, hr_state *state, uint32_t pid, uint64_t now_ns)
{
    hr_running *runnings = hr_runnings_in(state);
    uint32_t adding = pid;
    uint32_t count = 0;

    if (pid == 0)
        return 0;
    for (uint32_t i = 0; i < state->sizes.runnings; i++) {
        if (atomic_load(&runnings[i].pid) != pid)
            continue;
        settle_dead(region, state, &runnings[i], now_ns);
        hr_running_free(state, i);
        count++;
    }
    atomic_compare_exchange_strong(&state->adding, &adding, 0);
    hg_process_gone(region, pid);
    return count;
}

/* ── Plans ────────────────────────────────────────────────────────────────── */

/* NULL: not there, and no room for it. */
static hr_plan *plan_of(hr_state *state, uint64_t pattern, bool may_add, bool *is_new)
{
    hr_plan *plans = hr_plans_in(state);
    uint64_t last = state->sizes.plans - 1;

    *is_new = false;
    for (uint32_t probe = 0; probe < PROBES && probe <= last; probe++) {
        hr_plan *plan = &plans[((pattern >> 8) + probe) & last];
        uint64_t there = atomic_load_explicit(&plan->pattern, memory_order_acquire);

        if (there == 0 && !may_add)
            return NULL;
        if (there == 0 && atomic_compare_exchange_strong(&plan->pattern, &there, pattern)) {
            *is_new = true;
            return plan;
        }
        if (there == pattern)
            return plan;
    }
    return NULL;
}

/* Where all its places are taken, that of some other: it will be asked for again. */
static hr_plan *displaced(hr_state *state, uint64_t pattern)
{
    hr_plan *plan = &hr_plans_in(state)[(pattern >> 8) & (state->sizes.plans - 1)];

    atomic_store(&plan->cost, 0);
    atomic_store(&plan->pattern, pattern);
    return plan;
}

void hr_plan_put(hr_state *state, uint64_t pattern, double cost)
{
    bool is_new;
    hr_plan *plan = pattern == 0 ? NULL : plan_of(state, pattern, true, &is_new);
    uint64_t bits;

    if (plan == NULL || !(cost > 0))
        return; /* what could not be planned stays asked for, and is not asked for again */
    memcpy(&bits, &cost, sizeof bits);
    atomic_store_explicit(&plan->cost, bits, memory_order_release);
}

double hr_plan_cost(hr_state *state, uint64_t pattern, bool may_add, bool *is_new)
{
    hr_plan *plan = plan_of(state, pattern, may_add, is_new);
    uint64_t bits;
    double cost;

    if (plan == NULL && !may_add)
        return -1;
    if (plan == NULL) {
        plan = displaced(state, pattern);
        *is_new = true;
    }
    bits = atomic_load_explicit(&plan->cost, memory_order_acquire);
    memcpy(&cost, &bits, sizeof cost);
    return cost;
}
