/*
 * gate_rules.c: what Python says of a client: rules and health (R95, R98, R100), and the pace of the
 * control loop (R99, R142). Neither acts inside a transaction (R148).
 */
#include "gate_asking.h"

#define GATE_POLL_NS (250 * HR_NS_PER_MS) /* how often a held statement looks at its gate */
#define MOST_PACED 4096u /* that wait for the pace, where the gate names no bound */
#define PACE_KEY UINT64_C(0x7061636570616365)

/* ── Rules and health ─────────────────────────────────────────────────────── */

static bool writes(hr_asking *a)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (hr_statement_writes(a->session, &a->statements[i]))
            return true;
    return false;
}

/* R95, R100: this share of all, and of that the share that the priority leaves. */
static bool is_picked(const hr_asking *a, uint32_t ratio, bool whatever_priority)
{
    uint64_t share = ratio;

    if (!whatever_priority)
        share = share * hr_lead(a)->priority / 100;
    return share == HR_SHARES || a->roll < share;
}

static hr_verdict warn_gate(hr_asking *a, uint8_t cause)
{
    if (!a->warned) {
        hr_say_gate(a->session, hr_lead(a)->ref.client, a->decider, cause, &a->terms, 0, a->words);
        hr_say_runs(a->words);
    }
    a->warned = true;
    return STEP_PASS;
}

static hr_verdict block_gate(hr_asking *a, uint8_t cause, hr_verdict how)
{
    hr_say_gate(a->session, hr_lead(a)->ref.client, a->decider, cause, &a->terms, hr_waited(a),
                a->words);
    return how;
}

static bool has_room(const hr_asking *a, uint32_t most)
{
    return hr_waiter_of(a) != NULL
           || atomic_load_explicit(&a->client->waiting, memory_order_relaxed) < most;
}

static hr_verdict delay_by_gate(hr_asking *a, uint8_t cause)
{
    const hr_gate *terms = &a->terms;
    uint64_t delay_ns = terms->delay_ms * HR_NS_PER_MS;
    uint64_t end_ns = hr_since(a) + (delay_ns > 0 ? delay_ns : terms->max_delay_ms * HR_NS_PER_MS);

    if (delay_ns > 0 && hr_waiter_of(a) != NULL && hr_now(a) >= end_ns) {
        hr_waiter_of(a)->gate_passed = true;
        return STEP_PASS;
    }
    if (hr_now(a) >= end_ns || !has_room(a, terms->max_delayed)
        || !hr_hold(a, HR_WAITS_GATE, cause, 0,
                    delay_ns > 0 ? end_ns : hr_least(end_ns, hr_now(a) + GATE_POLL_NS)))
        return block_gate(a, cause, STEP_BLOCK);
    return STEP_WAIT;
}

static hr_verdict act(hr_asking *a, uint8_t action, uint8_t cause)
{
    if (hr_is_inside(a)) {
        a->passed = true;
        return STEP_PASS;
    }
    if (action == HR_ACT_WARN || hr_dry(a))
        return warn_gate(a, cause);
    if (action == HR_ACT_DELAY)
        return delay_by_gate(a, cause);
    return block_gate(a, cause, action == HR_ACT_CLOSE ? STEP_SHUT : STEP_BLOCK);
}

static bool is_told(const hr_client *client)
{
    return atomic_load_explicit(&client->state, memory_order_acquire) != 0;
}

/* A client that Python has not spoken of yet, because its event is new, has the gate of the
 * levels in its name, and if no rule knows any of them that of the many others: else a client that makes up
 * a name for each statement would have none. */
static uint32_t decider_of(const hr_asking *a, uint32_t own, uint64_t key)
{
    const hr_client_ref *ref = &hr_lead(a)->ref;
    char identity[HG_MAX_IDENTITY_BYTES + 1];

    if (own == HR_OTHERS)
        return ref->client == HR_OTHERS ? ref->level : HR_OTHERS;
    if (is_told(a->client))
        return own;
    return !hr_client_name(a->client, key, identity)
               ? HR_OTHERS
               : hr_client_level(a->state, identity, strlen(identity), a->thread->wall_ms);
}

/* Of the client that it is counted to: what began to wait stays its client's, even if it is another by now. */
static uint64_t key_of(const hr_asking *a)
{
    const hr_waiter *waiter = hr_waiter_of(a);

    return waiter != NULL && hr_client_at(a->thread, waiter->client) == a->client
               ? waiter->client_key
               : hr_lead(a)->ref.key;
}

/* What Python says of it. */
static bool read_terms(hr_asking *a)
{
    const hr_client *clients = hr_clients_in(a->state);
    uint32_t own = (uint32_t) (a->client - clients);
    uint64_t key = key_of(a);

    a->decider = decider_of(a, own, key);
    if (!is_told(&clients[a->decider]) || !hr_gate_look(&clients[a->decider], &a->terms))
        return false;
    if (a->decider != own || atomic_load_explicit(&a->client->key, memory_order_relaxed) == key)
        return true;
    /* Its place was given to another between the two. */
    a->decider = HR_OTHERS;
    return is_told(&clients[HR_OTHERS]) && hr_gate_look(&clients[HR_OTHERS], &a->terms);
}

hr_verdict hr_at_gate(hr_asking *a)
{
    hr_gate *terms = &a->terms;
    uint8_t action, cause;
    bool lost;

    a->known = read_terms(a);
    if (!a->known)
        return STEP_PASS;
    a->exempt = (terms->flags & HR_GATE_EXEMPT) != 0;
    if (a->exempt || (hr_waiter_of(a) != NULL && hr_waiter_of(a)->gate_passed))
        return STEP_PASS;
    lost = terms->until_ms != 0 && a->thread->wall_ms > terms->until_ms;
    action = lost ? (uint8_t) atomic_load_explicit(&a->state->lost, memory_order_relaxed)
                  : terms->action;
    cause = lost ? HR_BY_LOSS : terms->cause;
    if (lost) {
        terms->ratio = (uint32_t) HR_SHARES;
        terms->delay_ms = 0;
    }
    if (action == HR_ACT_PASS || terms->ratio == 0
        || !is_picked(a, terms->ratio, terms->ignores_priority != 0)
        || ((terms->flags & HR_GATE_WRITES_ONLY) && !writes(a)))
        return STEP_PASS;
    return act(a, action, cause == HR_BY_NOTHING || cause >= HR_CAUSES ? HR_BY_RULE : cause);
}

/* ── Pace ─────────────────────────────────────────────────────────────────── */

/* So many units of the release; else how long until they are there. */
static bool take_units(hr_release *release, uint32_t units, uint64_t now_ns, uint64_t each_ns,
                       uint64_t *wait_ns)
{
    uint64_t all_ns = each_ns * units;
    uint64_t burst_ns = atomic_load_explicit(&release->burst_ns, memory_order_relaxed);
    uint64_t empty_at = atomic_load_explicit(&release->empty_at_ns, memory_order_relaxed);
    uint64_t from;

    if (burst_ns < all_ns)
        burst_ns = all_ns;
    do {
        from = empty_at > now_ns ? empty_at : now_ns;
        if (from - now_ns + all_ns > burst_ns) {
            *wait_ns = from - now_ns + all_ns - burst_ns;
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&release->empty_at_ns, &empty_at, from + all_ns,
                                                    memory_order_relaxed, memory_order_relaxed));
    hg_add(&release->taken, units);
    return true;
}

/* It did not run after all. */
void hr_return_units(hr_asking *a)
{
    hr_release *release = &a->state->release;

    if (a->units == 0)
        return;
    atomic_fetch_sub_explicit(
        &release->empty_at_ns,
        a->units * atomic_load_explicit(&release->ns_per_unit, memory_order_relaxed),
        memory_order_relaxed);
    atomic_fetch_sub_explicit(&release->taken, a->units, memory_order_relaxed);
    a->units = 0;
}

/* One for each statement of the string that is outside a transaction: in MySQL a string is none. */
static uint32_t units_for(const hr_asking *a)
{
    uint32_t units = 0;

    for (uint32_t i = 0; i < a->count; i++)
        units += !a->statements[i].inside;
    return units;
}

/* R100: of those with a priority of 30 the pace is for 30 in a hundred. */
static bool is_paced(hr_asking *a)
{
    uint32_t other = (uint32_t) (a->roll * UINT64_C(0x9e3779b97f4a7c15) >> 32);

    return a->known && !a->exempt && (a->terms.flags & HR_GATE_PACED) != 0 && !hr_is_inside(a)
           && other % 100 < hr_lead(a)->priority
           && ((a->terms.flags & HR_GATE_WRITES_ONLY) == 0 || writes(a));
}

static hr_verdict delay_by_pace(hr_asking *a, uint64_t wait_ns)
{
    hr_release *release = &a->state->release;
    uint32_t most = a->terms.max_delayed > 0 ? a->terms.max_delayed : MOST_PACED;
    uint64_t end_ns = hr_since(a)
                      + atomic_load_explicit(&release->max_delay_ms, memory_order_relaxed)
                            * HR_NS_PER_MS;

    if (hr_now(a) + wait_ns <= end_ns && hr_now(a) < end_ns && has_room(a, most)
        && hr_hold(a, HR_WAITS_PACE, HR_BY_PACE, PACE_KEY,
                   wait_ns > 0 ? hr_now(a) + wait_ns : end_ns))
        return STEP_WAIT;
    hr_say_pace(a->session, hr_lead(a)->ref.client, wait_ns, hr_waited(a), a->words);
    return STEP_BLOCK;
}

hr_verdict hr_at_pace(hr_asking *a)
{
    hr_release *release = &a->state->release;
    uint64_t each_ns = atomic_load_explicit(&release->ns_per_unit, memory_order_relaxed);
    uint32_t action = atomic_load_explicit(&release->action, memory_order_relaxed);
    hr_waiter *waiter = hr_waiter_of(a);
    uint64_t wait_ns = 0;

    if (each_ns == 0 || !is_paced(a))
        return STEP_PASS;
    if (!hr_queue_ahead(hr_queues_of(a), PACE_KEY, waiter, hr_lead(a)->priority)
        && take_units(release, units_for(a), hr_now(a), each_ns, &wait_ns)) {
        a->units = units_for(a);
        return STEP_PASS;
    }
    if (waiter == NULL || waiter->why != HR_WAITS_PACE)
        hg_add(&release->limited, 1);
    if (action == HR_ACT_DELAY && !hr_dry(a))
        return delay_by_pace(a, wait_ns);
    if (action == HR_ACT_PASS)
        return STEP_PASS;
    if (!a->warned || action != HR_ACT_WARN)
        hr_say_pace(a->session, hr_lead(a)->ref.client, wait_ns, 0, a->words);
    if (action != HR_ACT_WARN && !hr_dry(a))
        return action == HR_ACT_CLOSE ? STEP_SHUT : STEP_BLOCK;
    hr_say_runs(a->words);
    a->warned = true;
    return STEP_PASS;
}
