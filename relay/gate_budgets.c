/*
 * gate_budgets.c: the policy's budgets, by the core. A statement that may wait for one waits behind those who do
 * already; all statements of a string are taken for, or none.
 */
#include "gate_asking.h"

#define PLAN_EACH_NS (20 * HR_NS_PER_MS) /* 50 questions for plans a second of a thread */
#define PLAN_BURST_NS (1000 * HR_NS_PER_MS)
#define FULL_RETRY_NS (100 * HR_NS_PER_MS) /* as the core says of places */

/* What its plan is known to cost; 0: not known. Asked for once. */
static double plan_cost(hr_asking *a, hr_statement *one, uint64_t pattern)
{
    bool is_new;
    double cost;

    if (a->thread->relay->settings.protocol != HR_PROTOCOL_POSTGRES || one->length == 0)
        return 0;
    cost = hr_plan_cost(a->state, pattern, false, &is_new);
    if (cost >= 0 || !hr_rationed(&a->gate->patterns_ns, hr_now(a), PLAN_EACH_NS, PLAN_BURST_NS))
        return cost > 0 ? cost : 0;
    cost = hr_plan_cost(a->state, pattern, true, &is_new);
    if (is_new)
        hr_tell_pattern(a->session, one, pattern);
    return cost;
}

/* A plan's cost is known from some execution on. Before that the pattern is learnt as a statement
 * without a plan, under a key of its own: averages over two units would be of none. */
static hg_ask ask_for(hr_asking *a, hr_statement *one)
{
    const char *database = hr_database(a->session);
    hg_ask ask = {.now_ns = hr_now(a),
                  .wall_ms = a->thread->wall_ms,
                  .plan_cost = 1,
                  .workers = 1,
                  .flags = HG_UTILITY | (one->inside ? HG_IN_TRANSACTION : 0u)};
    double cost;

    if (!one->needs_cost)
        return ask;
    if (one->pattern == 0)
        one->pattern = hr_statement_pattern(a->session, one);
    ask.pattern = one->pattern;
    ask.query_id = one->fingerprint;
    ask.database = hg_hash(0, database, strlen(database));
    cost = plan_cost(a, one, one->pattern);
    if (cost > 0) {
        ask.plan_cost = cost;
        ask.pattern ^= 1;
        ask.flags &= ~(uint32_t) HG_UTILITY;
    }
    return ask;
}

static void report(hr_asking *a, hr_statement *one, const hg_answer *answer)
{
    hg_ask ask = ask_for(a, one);

    hg_report_fill(&a->report, a->region, a->policy, one->matches, &ask, answer, hr_dice(a->gate));
}

/* The first of its budgets that others wait for, who come first; HG_MAX_MATCHES: none. */
static uint32_t ahead_of(hr_asking *a, const hr_statement *one)
{
    for (uint32_t i = 0; i < one->matches->count; i++) {
        const hg_match_one *match = &one->matches->at[i];
        const hg_budget *budget = hr_budget(a->policy, match->budget);

        if (budget->mode == HG_MODE_ENFORCE && budget->max_delay_ms > 0
            && (!one->inside || (budget->flags & HG_BUDGET_BLOCKS_INSIDE))
            && hr_now(a) < hr_since(a) + budget->max_delay_ms * HR_NS_PER_MS
            && hr_queue_ahead(hr_queues_of(a), match->bucket, hr_waiter_of(a), one->priority))
            return i;
    }
    return HG_MAX_MATCHES;
}

/* Takes for all statements of the string, the first one last: the others hold their charge alone
 * until it is their turn. The one that cannot, or a->count. */
static uint32_t take_all(hr_asking *a, const uint32_t *slots, uint32_t flags, hg_answer *answer)
{
    bool near = false;
    hg_answer warns;

    for (uint32_t i = a->count; i-- > 0;) {
        hr_statement *one = &a->statements[i];
        hg_ask ask;

        if (one->matches->count == 0)
            continue;
        ask = ask_for(a, one);
        ask.flags |= flags;
        if (slots[i] == UINT32_MAX) { /* nowhere to note what it would hold: a look is all */
            ask.flags |= HG_NO_DELAY;
            hg_check(a->region, a->policy, one->matches, &ask, answer);
        } else {
            hg_take(a->region, a->policy, one->matches, &ask, answer,
                    &hr_slot_of(a, slots[i])->holding);
        }
        if (answer->verdict >= HG_DELAY) {
            for (uint32_t j = i + 1; j < a->count; j++)
                if (slots[j] != UINT32_MAX)
                    hg_settle(a->region, &hr_slot_of(a, slots[j])->holding, 0, true, hr_now(a));
            return i;
        }
        a->passed |= answer->passed;
        if (i > 0 && slots[i] != UINT32_MAX)
            hg_pause(a->region, &hr_slot_of(a, slots[i])->holding);
        if (answer->verdict == HG_WARN && !a->warned) {
            report(a, one, answer);
            warns = *answer;
            near = true;
        }
    }
    if (near) {
        hr_say_budget(&a->report, a->words);
        a->warned = true;
        *answer = warns;
    }
    return a->count;
}

/* It would have been blocked: counted as a warning, and nothing is held. */
static hr_verdict pass_dry(hr_asking *a, hr_statement *one, const hg_answer *answer)
{
    const hg_budget *budget = hr_budget(a->policy, one->matches->at[answer->match].budget);
    hg_count *count = hg_count_of(a->region, budget->key, hr_string(a->policy, budget->name),
                                  budget->name.length);

    if (count != NULL) {
        hg_add(&count->warned[answer->decided_by], 1);
        atomic_store_explicit(&count->last_violation_ms, a->thread->wall_ms, memory_order_relaxed);
    }
    if (!a->warned) {
        report(a, one, answer);
        a->report.runs = true;
        hr_say_budget(&a->report, a->words);
    }
    a->warned = true;
    return STEP_PASS;
}

static hr_verdict block_by_budget(hr_asking *a, hr_statement *one, const hg_answer *answer)
{
    a->blocked = (uint32_t) (one - a->statements);
    hg_count_block(a->region, a->policy, one->matches, answer, false, a->thread->wall_ms);
    report(a, one, answer);
    hr_say_budget(&a->report, a->words);
    if (one->cut)
        hr_say_cut(a->words, one->lost);
    hr_trace_block(a->session, one, &a->report);
    return STEP_BLOCK;
}

/* Nothing is used up just now, but the first of those who wait is about to have it. */
static void take_for_full(const hg_budget *budget, uint32_t match, hg_answer *answer)
{
    bool by_places = (budget->set & (HG_SET_CONCURRENCY | HG_SET_MAX_WORKERS)) != 0;

    answer->verdict = HG_BLOCK;
    answer->match = match;
    answer->decided_by = by_places ? HG_CONCURRENCY : HG_BUCKET;
    answer->used = answer->bound = by_places ? budget->max_workers : 0;
    answer->retry_ns = FULL_RETRY_NS;
}

/* No more may wait for it. As in the extension, it is the limit for which they wait that blocks: counted
 * and reported in its words, and how many wait besides. */
static hr_verdict block_by_queue(hr_asking *a, hr_statement *one, uint32_t match)
{
    const hg_budget *budget = hr_budget(a->policy, one->matches->at[match].budget);
    hg_ask ask = ask_for(a, one);
    hg_answer answer;

    ask.flags |= HG_NO_DELAY;
    hg_check(a->region, a->policy, one->matches, &ask, &answer);
    if (answer.verdict != HG_BLOCK)
        take_for_full(budget, match, &answer);
    block_by_budget(a, one, &answer);
    if (a->report.budget_key == budget->key)
        hr_say_full(&a->report, budget->max_delayed, a->words);
    return STEP_BLOCK;
}

/* Behind those who wait for the budget already. */
static hr_verdict queue_up(hr_asking *a, hr_statement *one, uint32_t match)
{
    const hg_match_one *at = &one->matches->at[match];
    const hg_budget *budget = hr_budget(a->policy, at->budget);
    uint64_t end_ns = hr_since(a) + budget->max_delay_ms * HR_NS_PER_MS;

    if (hr_may_sleep(a, at->budget)) {
        if (hr_hold(a, HR_WAITS_BUDGET, HR_BY_BUDGET, at->bucket, end_ns)) {
            hr_note_sleep(a, budget);
            return STEP_WAIT;
        }
        if (hr_waiter_of(a) == NULL || hr_waiter_of(a)->sleeps_for != budget->key)
            hg_sleep_end(a->region, budget->key);
    }
    return block_by_queue(a, one, match);
}

/* Waits for room, if it may (any more). `tried`: this is the second look, from inside the queue. */
static hr_verdict wait_for_room(hr_asking *a, const hr_statement *one, const hg_answer *answer,
                                bool *again)
{
    const hg_match_one *at = &one->matches->at[answer->match];
    const hg_budget *budget = hr_budget(a->policy, at->budget);
    uint64_t end_ns = hr_since(a) + budget->max_delay_ms * HR_NS_PER_MS;
    bool joined;

    *again = true;
    if (hr_now(a) >= end_ns || !hr_may_sleep(a, at->budget))
        return STEP_BLOCK; /* asks for a plain yes or no */
    joined = hr_waiter_of(a) != NULL && hr_waiter_of(a)->why == HR_WAITS_BUDGET;
    if (!hr_hold(a, HR_WAITS_BUDGET, HR_BY_BUDGET, at->bucket,
                 hr_least(end_ns, hr_now(a) + answer->retry_ns))) {
        if (hr_waiter_of(a) == NULL || hr_waiter_of(a)->sleeps_for != budget->key)
            hg_sleep_end(a->region, budget->key);
        return STEP_BLOCK;
    }
    hr_note_sleep(a, budget);
    *again = !joined && answer->decided_by == HG_CONCURRENCY;
    return STEP_WAIT;
}

/* Once it is in the queue it looks again, since room may have come before that; where it may not wait
 * (any more) it asks for a yes or no. */
static hr_verdict take_or_wait(hr_asking *a, const uint32_t *slots)
{
    uint32_t flags = 0;
    hg_answer answer;

    for (int look = 0; look < 4; look++) {
        uint32_t which;
        bool again;
        hr_verdict said;

        which = take_all(a, slots, flags, &answer);
        if (which == a->count)
            return STEP_PASS;
        if (hr_dry(a))
            return pass_dry(a, &a->statements[which], &answer);
        if (answer.verdict == HG_BLOCK)
            return block_by_budget(a, &a->statements[which], &answer);
        said = wait_for_room(a, &a->statements[which], &answer, &again);
        if (said == STEP_WAIT && !again)
            return STEP_WAIT;
        if (said == STEP_BLOCK)
            flags |= HG_NO_DELAY;
    }
    return STEP_WAIT;
}

hr_verdict hr_at_budgets(hr_asking *a, const uint32_t *slots)
{
    for (uint32_t i = 0; i < a->count && !hr_dry(a); i++) {
        uint32_t match = ahead_of(a, &a->statements[i]);

        if (match < HG_MAX_MATCHES)
            return queue_up(a, &a->statements[i], match);
    }
    return take_or_wait(a, slots);
}
