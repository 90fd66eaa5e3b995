/* state.h: hr_state from inside the relay. See state.c. */
#ifndef HEADGATE_RELAY_STATE_H
#define HEADGATE_RELAY_STATE_H

#include "relay.h"

static inline hr_client *hr_clients_in(const hr_state *state)
{
    return (hr_client *) ((char *) (uintptr_t) state + state->clients_at);
}

static inline hr_running *hr_runnings_in(const hr_state *state)
{
    return (hr_running *) ((char *) (uintptr_t) state + state->runnings_at);
}

static inline hr_plan *hr_plans_in(const hr_state *state)
{
    return (hr_plan *) ((char *) (uintptr_t) state + state->plans_at);
}

/* Never below 0: a client's place may have been taken over since. */
static inline void hr_count_down(_Atomic uint32_t *counter)
{
    uint32_t now = atomic_load_explicit(counter, memory_order_relaxed);

    while (now > 0
           && !atomic_compare_exchange_weak_explicit(counter, &now, now - 1, memory_order_relaxed,
                                                     memory_order_relaxed))
        ;
}

uint64_t hr_client_key(const char *identity, size_t length);
/* The index of a client, which gets a place if it has none; HR_OTHERS if there is none for it. When
 * the table is full, names that have fallen silent go, those first that have hardly said anything. */
uint32_t hr_client_find(hr_state *state, uint32_t pid, const char *identity, size_t length,
                        uint64_t now_ns, bool *is_new);
/* Its name, of HG_MAX_IDENTITY_BYTES at most, and a NUL. False: the place is another's by now. */
bool hr_client_name(const hr_client *client, uint64_t key, char *out);
/* The gate of a name of which Python has said nothing yet: of the levels in it that are kept the
 * nearest, of several that are equally near the strictest; HR_OTHERS: none is. */
uint32_t hr_client_level(const hr_state *state, const char *identity, size_t length,
                         int64_t wall_ms);
/* All but its reason. False: it cannot be read just now. */
bool hr_gate_look(const hr_client *client, hr_gate *gate);
/* A place for a statement that runs, from *cursor on, or UINT32_MAX; this one or false. */
uint32_t hr_running_take(hr_state *state, uint32_t pid, uint32_t *cursor);
bool hr_running_take_at(hr_state *state, uint32_t pid, uint32_t index);
void hr_running_free(hr_state *state, uint32_t index);
/* The plan's cost; 0: not known, and if is_new it is to be asked for; -1: not there, nor may it be put
 * there. */
double hr_plan_cost(hr_state *state, uint64_t pattern, bool may_add, bool *is_new);

#endif
