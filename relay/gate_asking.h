/*
 * gate_asking.h: one question on its way through gate.c, gate_rules.c, gate_budgets.c, gate_wait.c.
 */
#ifndef HEADGATE_RELAY_GATE_ASKING_H
#define HEADGATE_RELAY_GATE_ASKING_H

#include "gate_inside.h"

/* What one of the steps says. */
typedef enum hr_verdict { STEP_PASS, STEP_WAIT, STEP_BLOCK, STEP_SHUT } hr_verdict;

typedef struct hr_asking {
    hr_session *session;
    hr_thread *thread;
    hr_gate_thread *gate;
    hr_state *state;
    hg_region *region;
    const hg_policy *policy; /* NULL: none is in force */
    hr_statement *statements;          /* those of a string that are decided */
    uint32_t count;
    uint32_t lead; /* which of them is asked for now; waits and blocks are its client's */
    uint32_t blocked; /* which of them, if so */
    uint8_t skipped[HR_MAX_SLICES]; /* statements before each that are not */
    uint32_t flags;
    uint32_t roll;
    hr_client *client;
    uint32_t decider; /* the client whose gate applies: itself, once Python has spoken of it */
    hr_gate terms; /* what Python says of the client */
    hr_words *words;
    bool known; /* terms are there */
    bool again; /* it has been decided before, and was held */
    bool warned, passed;
    uint32_t units; /* of the pace, that it has */
    bool exempt;
    hg_report report; /* of the budget that decided; budget_key 0: none did */
} hr_asking;

static inline uint64_t hr_now(const hr_asking *a)
{
    return a->thread->now_ns;
}

static inline hr_waiter *hr_waiter_of(const hr_asking *a)
{
    return a->session->gate.waiter;
}

static inline uint64_t hr_since(const hr_asking *a)
{
    return hr_waiter_of(a) == NULL ? hr_now(a) : hr_waiter_of(a)->since_ns;
}

static inline uint64_t hr_waited(const hr_asking *a)
{
    return hr_now(a) - hr_since(a);
}

static inline bool hr_dry(const hr_asking *a)
{
    return a->thread->relay->settings.dry_run != 0;
}

static inline hr_queues *hr_queues_of(const hr_asking *a)
{
    return a->thread->relay->gate->queues;
}

static inline const hr_statement *hr_lead(const hr_asking *a)
{
    return &a->statements[a->lead];
}

static inline bool hr_is_inside(const hr_asking *a)
{
    return hr_lead(a)->inside;
}

static inline hr_running *hr_slot_of(const hr_asking *a, uint32_t slot)
{
    return &hr_runnings_in(a->state)[slot];
}

/* ── gate_rules.c ─────────────────────────────────────────────────────────── */

hr_verdict hr_at_gate(hr_asking *a);
hr_verdict hr_at_pace(hr_asking *a);
/* Units of the pace that were not used after all. */
void hr_return_units(hr_asking *a);

/* ── gate_budgets.c ───────────────────────────────────────────────────────── */

hr_verdict hr_at_budgets(hr_asking *a, const uint32_t *slots);

/* ── gate_wait.c ──────────────────────────────────────────────────────────── */

/* In that queue (0: in none) until next_ns, or until it is woken. False: it cannot be held. */
bool hr_hold(hr_asking *a, uint8_t why, uint8_t cause, uint64_t key, uint64_t next_ns);
/* A place among those that the budget may delay, for this statement; it has one at a time. */
bool hr_may_sleep(hr_asking *a, uint32_t budget);
void hr_note_sleep(hr_asking *a, const hg_budget *budget);
void hr_count_waited(hr_thread *thread, hr_waiter *waiter);
/* Returns its slot, which is the caller's then. */
uint32_t hr_drop_waiter(hr_session *session);
void hr_end_waiting(hr_session *session);
/* What is held and has no reason to be looked at is held on: true, and `said` is the answer. */
bool hr_is_answered(hr_session *session, hr_words *words, hr_said *said);

#endif
