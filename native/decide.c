/*
 * decide.c: may it run? The four steps of R102, top to bottom, and what comes of the answer.
 *
 *   look at every match ──► block: nothing has been touched (R104)
 *                       └─► take all: hold, charge ──► another was faster: give all back, look again
 *
 * The readable twin: budgets/admit.py and budgets/ledger.py.
 */
#include "internal.h"

#define NS_PER_MS UINT64_C(1000000)
#define PLACE_RETRY_NS (100 * NS_PER_MS) /* advice: nobody knows when a running statement ends */
#define PLACE_POLL_NS (5 * NS_PER_MS)    /* how long one waits for a place before looking again */
#define NO_BOUND UINT64_MAX
#define ROUNDS 8 /* another was faster every time: then it is full */

/* The state of one match. */
typedef struct look {
    const hg_budget *budget;
    hg_lookup lookup;
    uint64_t drains_in_ns; /* the estimate, if the budget is timed */
    uint64_t size_ns;      /* of the bucket, likewise */
    uint32_t places;       /* workers allowed; UINT32_MAX: no limit */
    bool timed;
    bool kept;    /* something is stored for it */
    bool passes;  /* inside a transaction: it may fail, and goes on all the same */
    uint8_t limit; /* what it fails */
} look;

/* A whole question, on its way through this file. */
typedef struct question {
    hg_region *region;
    const hg_policy *policy;
    const hg_matches *matches;
    const hg_ask *ask;
    hg_answer *answer;
    hg_cost estimate; /* that it is decided by */
    hg_cost known;    /* the model's */
    uint32_t workers;
    bool trial;  /* decided by less than the model's: it has to be the only one */
    bool outrun; /* a budget that warns was used up by others since the look */
    look looks[HG_MAX_MATCHES]; /* the first matches->count are defined */
} question;

/* ── The limits ───────────────────────────────────────────────────────────── */

static uint64_t server_ns(const question *q, uint32_t amount_mpcts)
{
    /* 10^9 ns / 100000 / 1000 */
    return (uint64_t) amount_mpcts * hg_plan(q->region)->cpus_milli * 10;
}

static uint32_t places(const question *q, const hg_budget *budget)
{
    uint64_t share;

    if (budget->set & HG_SET_MAX_WORKERS)
        return budget->max_workers;
    if ((budget->set & HG_SET_CONCURRENCY) == 0)
        return UINT32_MAX;
    share = (uint64_t) budget->concurrency_mpct * hg_plan(q->region)->workers;
    return (uint32_t) ((share + HG_WHOLE_MPCT - 1) / HG_WHOLE_MPCT);
}

static uint64_t size_ns(const hg_budget *budget)
{
    return (uint64_t) budget->capacity_mpcts * 1000 * NS_PER_MS / budget->rate_mpct;
}

static bool fails_bucket(const question *q, const look *at)
{
    const hg_budget *budget = at->budget;

    if (at->timed)
        return at->lookup.debt_ns + at->drains_in_ns > at->size_ns;
    if ((budget->set & HG_SET_RATE) && budget->rate_mpct == 0)
        return true;
    /* Without a rate all drains at once, and what is left is a limit for one statement. */
    return (budget->set & (HG_SET_RATE | HG_SET_CAPACITY)) == HG_SET_CAPACITY
           && q->estimate.mean_ns > server_ns(q, budget->capacity_mpcts);
}

/* A statement that needs more workers than there are places runs alone: never to run would help nobody. */
static bool too_many(const question *q, const look *at, uint64_t running)
{
    if (at->places == UINT32_MAX || (running == 0 && at->places > 0))
        return false;
    return running + q->workers > at->places;
}

static uint8_t failed_limit(const question *q, const look *at)
{
    const hg_budget *budget = at->budget;

    if (too_many(q, at, at->lookup.running))
        return HG_CONCURRENCY;
    if ((budget->set & HG_SET_BURST) && q->estimate.p90_ns > server_ns(q, budget->burst_mpcts))
        return HG_QUERY;
    return fails_bucket(q, at) ? HG_BUCKET : HG_NO_LIMIT;
}

static bool beyond(uint64_t used, uint64_t bound, uint32_t share_mpct)
{
    return (unsigned __int128) used * HG_WHOLE_MPCT > (unsigned __int128) bound * share_mpct;
}

/* The first limit that it comes near to, if it breaks none: an enforced budget's alone (R123). */
static uint8_t crossed(const question *q, const look *at)
{
    const hg_budget *budget = at->budget;
    uint32_t share = budget->warning_mpct;

    if ((budget->set & HG_SET_WARNING) == 0 || budget->mode != HG_MODE_ENFORCE
        || at->limit != HG_NO_LIMIT)
        return HG_NO_LIMIT;
    if (at->places != UINT32_MAX
        && beyond((uint64_t) at->lookup.running + q->workers, at->places, share))
        return HG_CONCURRENCY;
    if ((budget->set & HG_SET_BURST)
        && beyond(q->estimate.p90_ns, server_ns(q, budget->burst_mpcts), share))
        return HG_QUERY;
    if (at->timed)
        return beyond(at->lookup.debt_ns + at->drains_in_ns, at->size_ns, share) ? HG_BUCKET : 0;
    if ((budget->set & (HG_SET_RATE | HG_SET_CAPACITY)) != HG_SET_CAPACITY)
        return HG_NO_LIMIT;
    return beyond(q->estimate.mean_ns, server_ns(q, budget->capacity_mpcts), share) ? HG_BUCKET : 0;
}

/* ── Looking ──────────────────────────────────────────────────────────────── */

static hg_terms terms_of(const question *q, uint32_t match)
{
    const hg_match_one *one = &q->matches->at[match];

    return (hg_terms){one->bucket, q->looks[match].budget, one, q->ask->now_ns, q->workers};
}

bool hg_is_shut(const hg_budget *budget)
{
    return ((budget->set & HG_SET_MAX_WORKERS) && budget->max_workers == 0)
           || ((budget->set & HG_SET_CONCURRENCY) && budget->concurrency_mpct == 0)
           || ((budget->set & HG_SET_RATE) && budget->rate_mpct == 0)
           || ((budget->set & HG_SET_CAPACITY) && budget->capacity_mpcts == 0)
           || ((budget->set & HG_SET_BURST) && budget->burst_mpcts == 0);
}

static void look_at(question *q, uint32_t match)
{
    look *at = &q->looks[match];
    const hg_budget *budget = &hg_budgets_of(q->policy)[q->matches->at[match].budget];
    hg_terms terms;

    at->budget = budget;
    at->timed = hg_is_timed(budget);
    at->kept = at->timed || hg_counts_workers(budget);
    at->places = places(q, budget);
    at->drains_in_ns = 0;
    at->size_ns = 0;
    at->lookup = (hg_lookup){HG_NO_BUCKET, 0, 0};
    if (at->timed) {
        at->drains_in_ns = hg_drain_ns(q->estimate.mean_ns, budget->rate_mpct,
                                       hg_plan(q->region)->cpus_milli);
        at->size_ns = size_ns(budget);
    }
    if (at->kept) {
        terms = terms_of(q, match);
        hg_bucket_look_up(q->region, &terms, &at->lookup);
    }
    at->passes = (q->ask->flags & HG_MUST_RUN) != 0
                 || ((q->ask->flags & HG_IN_TRANSACTION) != 0
                     && (budget->flags & HG_BUDGET_BLOCKS_INSIDE) == 0 && at->places != 0
                     && !hg_is_shut(budget));
    at->limit = failed_limit(q, at);
}

/* ── The answer ───────────────────────────────────────────────────────────── */

static void tell(question *q, hg_verdict verdict, uint32_t match, uint8_t limit)
{
    const look *at = &q->looks[match];
    hg_answer *answer = q->answer;

    answer->verdict = verdict;
    answer->match = match;
    answer->decided_by = limit;
    if (limit == HG_CONCURRENCY) {
        answer->used = at->lookup.running;
        answer->bound = at->places;
    } else if (limit == HG_QUERY) {
        answer->used = q->estimate.p90_ns;
        answer->bound = server_ns(q, at->budget->burst_mpcts);
    } else {
        answer->used = at->timed ? hg_cpu_ns(at->lookup.debt_ns, at->budget->rate_mpct,
                                             hg_plan(q->region)->cpus_milli)
                                 : 0;
        answer->bound = (at->budget->set & HG_SET_CAPACITY)
                            ? server_ns(q, at->budget->capacity_mpcts)
                            : 0;
    }
}

static uint64_t retry_ns(const look *at)
{
    if (at->limit == HG_CONCURRENCY)
        return at->places == 0 ? HG_NEVER : PLACE_RETRY_NS;
    if (at->limit == HG_QUERY || !at->timed || at->drains_in_ns > at->size_ns)
        return HG_NEVER;
    return at->lookup.debt_ns + at->drains_in_ns - at->size_ns;
}

/* How long it is delayed; HG_NEVER: waiting does not help, or not soon enough. */
static uint64_t patience_ns(const question *q, const look *at)
{
    uint64_t most_ns = at->budget->max_delay_ms * NS_PER_MS;
    uint64_t wait_ns;

    if ((q->ask->flags & HG_NO_DELAY) || most_ns == 0)
        return HG_NEVER;
    wait_ns = retry_ns(at);
    if (at->limit == HG_CONCURRENCY && wait_ns != HG_NEVER)
        return hg_least(PLACE_POLL_NS, most_ns);
    return wait_ns <= most_ns ? wait_ns : HG_NEVER;
}

/* Fails: by mode it blocks or warns. */
static bool objects(const look *at, uint8_t mode)
{
    return at->limit != HG_NO_LIMIT && !at->passes && at->budget->mode == mode;
}

/* By the first that waiting does not help with, else by the one with the longest wait; first by
 * step, then by the order of the document. False: nobody blocks. */
static bool block(question *q)
{
    uint32_t longest = HG_MAX_MATCHES;
    uint64_t longest_ns = 0;

    for (uint8_t limit = HG_CONCURRENCY; limit < HG_LIMITS; limit++)
        for (uint32_t match = 0; match < q->matches->count; match++) {
            const look *at = &q->looks[match];
            uint64_t wait_ns;

            if (at->limit != limit || !objects(at, HG_MODE_ENFORCE))
                continue;
            wait_ns = patience_ns(q, at);
            if (wait_ns == HG_NEVER) {
                tell(q, HG_BLOCK, match, limit);
                q->answer->retry_ns = retry_ns(at);
                return true;
            }
            if (longest == HG_MAX_MATCHES || wait_ns > longest_ns) {
                longest = match;
                longest_ns = wait_ns;
            }
        }
    if (longest == HG_MAX_MATCHES)
        return false;
    tell(q, HG_DELAY, longest, q->looks[longest].limit);
    q->answer->retry_ns = longest_ns;
    return true;
}

/* It runs; whether that is reported. */
static void warn(question *q)
{
    for (uint8_t limit = HG_CONCURRENCY; limit < HG_LIMITS; limit++)
        for (uint32_t match = 0; match < q->matches->count; match++)
            if (q->looks[match].limit == limit && objects(&q->looks[match], HG_MODE_WARN)) {
                tell(q, HG_WARN, match, limit);
                q->answer->retry_ns = retry_ns(&q->looks[match]);
                return;
            }
    for (uint8_t limit = HG_CONCURRENCY; limit < HG_LIMITS; limit++)
        for (uint32_t match = 0; match < q->matches->count; match++)
            if (q->answer->threshold[match] == limit) {
                tell(q, HG_WARN, match, limit);
                return;
            }
}

static void answer(question *q)
{
    hg_answer *out = q->answer;
    bool failed = false;
    bool near = false;

    out->verdict = HG_RUN;
    out->match = 0;
    out->decided_by = HG_NO_LIMIT;
    out->passed = false;
    out->estimate_ns = q->estimate.mean_ns;
    out->p90_ns = q->estimate.p90_ns;
    out->used = out->bound = out->retry_ns = 0;
    for (uint32_t match = 0; match < q->matches->count; match++) {
        const look *at = &q->looks[match];

        out->limit[match] = at->limit;
        out->threshold[match] = crossed(q, at);
        failed |= at->limit != HG_NO_LIMIT;
        near |= out->threshold[match] != HG_NO_LIMIT;
        out->passed |= at->limit != HG_NO_LIMIT && at->passes
                       && at->budget->mode == HG_MODE_ENFORCE;
    }
    if ((failed || near) && !block(q))
        warn(q);
}

static void look_at_all(question *q)
{
    for (uint32_t match = 0; match < q->matches->count; match++)
        look_at(q, match);
    answer(q);
}

/* The most expensive statement that could ever fit; 0: none can, or any. */
static uint64_t most_ns(const question *q, const look *at)
{
    const hg_budget *budget = at->budget;
    uint64_t most = 0;
    uint64_t burst = budget->set & HG_SET_BURST ? server_ns(q, budget->burst_mpcts) : 0;

    if (at->timed)
        most = hg_cpu_ns(at->size_ns, budget->rate_mpct, hg_plan(q->region)->cpus_milli);
    else if ((budget->set & (HG_SET_RATE | HG_SET_CAPACITY)) == HG_SET_CAPACITY)
        most = server_ns(q, budget->capacity_mpcts);
    return most == 0 ? burst : burst == 0 ? most : hg_least(most, burst);
}

static hg_cost fitting(const question *q)
{
    uint64_t least = HG_NEVER;

    for (uint32_t match = 0; match < q->matches->count; match++) {
        const look *at = &q->looks[match];
        uint64_t most = at->budget->mode == HG_MODE_ENFORCE ? most_ns(q, at) : 0;

        if (most != 0)
            least = hg_least(least, most);
    }
    return (hg_cost){hg_least(q->known.mean_ns, least), hg_least(q->known.p90_ns, least)};
}

/* By the model's estimate; where that always blocks, and is old, by what just fits. */
static void decide(question *q)
{
    look_at_all(q);
    if (q->trial || !hg_never_fits(q->answer)
        || !hg_may_try_again(q->region, q->ask, q->known.mean_ns))
        return;
    q->estimate = fitting(q);
    q->trial = q->estimate.p90_ns < q->known.p90_ns;
    look_at_all(q);
}

/* One at a time tries again; the second one is decided by what is known. */
static bool may_run(question *q)
{
    if (q->answer->verdict >= HG_DELAY)
        return false;
    if (!q->trial)
        return true;
    q->trial = false; /* in either case it is settled by what it is decided from here on */
    if (hg_try_again(q->region, q->ask, q->known.mean_ns))
        return true;
    q->estimate = q->known;
    look_at_all(q);
    return q->answer->verdict < HG_DELAY;
}

static void ask(question *q, hg_region *region, const hg_policy *policy, const hg_matches *matches,
                const hg_ask *asked, hg_answer *out)
{
    q->region = region;
    q->policy = policy;
    q->matches = matches;
    q->ask = asked;
    q->answer = out;
    q->estimate = q->known = hg_estimate(region, asked);
    q->trial = q->outrun = false;
    q->workers = (uint32_t) hg_least(hg_most(asked->workers, 1), HG_MAX_WORKERS);
}

void hg_check(hg_region *region, const hg_policy *policy, const hg_matches *matches,
              const hg_ask *asked, hg_answer *out)
{
    question q;

    ask(&q, region, policy, matches, asked, out);
    decide(&q);
}

/* ── Taking ───────────────────────────────────────────────────────────────── */

static void give_back(hg_region *region, const hg_holding *holding)
{
    for (uint32_t i = 0; i < holding->count; i++) {
        const hg_holding_one *one = &holding->at[i];

        if (one->charged)
            hg_bucket_undo(hg_bucket_in(region, one->index), one);
        if (one->counted)
            hg_bucket_release(region, one->index, holding->workers);
    }
}

/* What a bucket held by now says to the limits that others may have used up since the look. */
static uint8_t take_held(question *q, look *at, uint32_t running, hg_holding_one *one)
{
    bool may_fail = at->passes;
    uint64_t debt_ns;

    if (!may_fail && too_many(q, at, running)) {
        at->lookup.running = running;
        return HG_CONCURRENCY;
    }
    if (at->timed
        && !hg_bucket_charge(hg_bucket_in(q->region, one->index), q->ask->now_ns, at->drains_in_ns,
                             may_fail ? NO_BOUND : at->size_ns, one, &debt_ns)) {
        at->lookup.debt_ns = debt_ns; /* what it failed by, whatever has been given back since */
        return HG_BUCKET;
    }
    return HG_NO_LIMIT;
}

/* Holds and charges one match; what it fails after all, with nothing held then. */
static uint8_t take_one(question *q, uint32_t match, hg_holding_one *one)
{
    look *at = &q->looks[match];
    hg_terms terms = terms_of(q, match);
    uint32_t running;
    uint8_t limit;

    one->bucket = terms.key;
    one->count = 0;
    one->rate_mpct = at->timed ? at->budget->rate_mpct : 0;
    one->index = HG_NO_BUCKET;
    one->counted = one->charged = false;
    if (!at->kept)
        return HG_NO_LIMIT;
    one->index = hg_bucket_hold(q->region, &terms, at->lookup.index, &running);
    if (one->index == HG_NO_BUCKET)
        return HG_NO_LIMIT; /* no room to count it in: it runs uncounted */
    one->counted = true;
    limit = take_held(q, at, running, one);
    if (limit != HG_NO_LIMIT)
        hg_bucket_release(q->region, one->index, q->workers);
    return limit;
}

/* False: an enforced budget was used up by others since the look; all has been given back. */
static bool take_all(question *q, hg_holding *holding)
{
    holding->count = 0;
    for (uint32_t match = 0; match < q->matches->count; match++) {
        look *at = &q->looks[match];

        if (objects(at, HG_MODE_WARN))
            continue; /* a block that did not happen: no place, no debt, as if it had */
        if (at->limit == HG_NO_LIMIT || at->passes) {
            uint8_t limit = take_one(q, match, &holding->at[holding->count]);

            if (limit == HG_NO_LIMIT) {
                holding->count++;
                continue;
            }
            at->limit = limit;
        }
        if (at->budget->mode == HG_MODE_ENFORCE) {
            give_back(q->region, holding);
            holding->count = 0;
            return false;
        }
        q->outrun = true;
    }
    return true;
}

static void count_warned(const question *q, uint32_t match, hg_count *count)
{
    hg_add(&count->warned[q->looks[match].limit], 1);
    hg_count_violation(count, q->ask->wall_ms);
}

static void count_admitted(const question *q, uint32_t match, hg_holding_one *one, hg_count *count)
{
    const look *at = &q->looks[match];

    one->count = (uint64_t) (count - hg_counts_in(q->region)) + 1;
    if (at->kept && one->index == HG_NO_BUCKET)
        hg_add(&count->unpinned, 1);
    if (q->answer->threshold[match] != HG_NO_LIMIT)
        count_warned(q, match, count); /* under no limit: its limit is none */
    if (at->limit != HG_NO_LIMIT)
        hg_add(&count->passed, 1);
    hg_add(&count->admitted, 1);
    hg_add(&count->estimated_ns, q->estimate.mean_ns);
}

static void count_all(const question *q, hg_holding *holding)
{
    hg_holding_one *one = holding->at;

    for (uint32_t match = 0; match < q->matches->count; match++) {
        const look *at = &q->looks[match];
        hg_count *count = hg_count_for(q->region, q->policy, at->budget);

        if (objects(at, HG_MODE_WARN)) {
            if (count != NULL)
                count_warned(q, match, count);
            continue;
        }
        if (one->index != HG_NO_BUCKET)
            hg_add(&hg_bucket_in(q->region, one->index)->admitted, 1);
        if (count != NULL)
            count_admitted(q, match, one, count);
        one++;
    }
}

static void remember(const question *q, hg_holding *holding)
{
    holding->count = 0;
    holding->workers = q->workers;
    holding->flags = q->ask->flags;
    holding->shape = q->ask->shape;
    holding->plan_cost = q->ask->plan_cost;
    holding->pattern = q->ask->pattern;
    holding->query_id = q->ask->query_id;
    holding->database = q->ask->database;
}

void hg_take(hg_region *region, const hg_policy *policy, const hg_matches *matches,
             const hg_ask *asked, hg_answer *out, hg_holding *holding)
{
    question q;

    ask(&q, region, policy, matches, asked, out);
    remember(&q, holding);
    for (int round = 0; round < ROUNDS; round++) {
        decide(&q);
        if (!may_run(&q))
            break;
        holding->estimate_ns = q.estimate.mean_ns;
        holding->p90_ns = q.estimate.p90_ns;
        if (take_all(&q, holding)) {
            if (q.outrun)
                answer(&q);
            count_all(&q, holding);
            return;
        }
        answer(&q); /* by what was found used up, if this was the last round */
    }
    holding->workers = 0; /* nothing to settle */
}

/* ── While it runs, and at its end ────────────────────────────────────────── */

void hg_pause(hg_region *region, hg_holding *holding)
{
    for (uint32_t i = 0; i < holding->count; i++) {
        hg_holding_one *one = &holding->at[i];

        if (one->counted)
            hg_bucket_leave(region, one->index, holding->workers);
        one->counted = false;
    }
}

void hg_resume(hg_region *region, hg_holding *holding)
{
    for (uint32_t i = 0; i < holding->count; i++) {
        hg_holding_one *one = &holding->at[i];

        if (one->counted || one->index == HG_NO_BUCKET)
            continue;
        hg_bucket_enter(region, one->index, holding->workers);
        one->counted = true;
    }
}

static void settle_charge(hg_region *region, const hg_holding *holding, const hg_holding_one *one,
                          uint64_t actual_ns, uint64_t now_ns)
{
    hg_bucket *bucket = hg_bucket_in(region, one->index);
    uint32_t rate_mpct = atomic_load_explicit(&bucket->rate_mpct, memory_order_relaxed);
    uint32_t cpus_milli = hg_plan(region)->cpus_milli;

    if (rate_mpct == 0 || actual_ns == holding->estimate_ns)
        return;
    if (actual_ns > holding->estimate_ns)
        hg_bucket_charge_more(bucket, now_ns,
                              hg_drain_ns(actual_ns - holding->estimate_ns, rate_mpct, cpus_milli));
    else if (rate_mpct == one->rate_mpct) /* else its time is reckoned again, and nobody knows what
                                           * of it is left: nothing is given back */
        hg_bucket_refund(bucket, one,
                         one->charged_ns - hg_drain_ns(actual_ns, rate_mpct, cpus_milli), now_ns);
}

static void settle_one(hg_region *region, const hg_holding *holding, hg_holding_one *one,
                       uint64_t actual_ns, uint64_t now_ns)
{
    if (one->index == HG_NO_BUCKET)
        return;
    if (one->charged)
        settle_charge(region, holding, one, actual_ns, now_ns);
    hg_bucket_release(region, one->index, one->counted ? holding->workers : 0);
    one->counted = one->charged = false;
    one->index = HG_NO_BUCKET;
}

static void charge_one(hg_region *region, const hg_policy *policy, const hg_match_one *match,
                       uint64_t cost_ns, uint64_t now_ns)
{
    const hg_budget *budget = &hg_budgets_of(policy)[match->budget];
    hg_count *count = hg_count_for(region, policy, budget);
    hg_terms terms = {match->bucket, budget, match, now_ns, 0};
    hg_holding_one one;
    hg_lookup lookup;
    uint64_t debt_ns;
    uint32_t index, running;

    if (count != NULL)
        hg_add(&count->charged_ns, cost_ns);
    if (!hg_is_timed(budget))
        return;
    hg_bucket_look_up(region, &terms, &lookup);
    index = hg_bucket_hold(region, &terms, lookup.index, &running);
    if (index == HG_NO_BUCKET) {
        if (count != NULL)
            hg_add(&count->unpinned, 1);
        return;
    }
    hg_bucket_charge(hg_bucket_in(region, index), now_ns,
                     hg_drain_ns(cost_ns, budget->rate_mpct, hg_plan(region)->cpus_milli), NO_BOUND,
                     &one, &debt_ns);
    hg_bucket_release(region, index, 0);
}

void hg_charge(hg_region *region, const hg_policy *policy, const hg_matches *matches,
               uint64_t cost_ns, uint64_t now_ns)
{
    cost_ns = hg_least(cost_ns, HG_MAX_COST_NS);
    for (uint32_t i = 0; i < matches->count; i++)
        charge_one(region, policy, &matches->at[i], cost_ns, now_ns);
}

void hg_settle(hg_region *region, hg_holding *holding, uint64_t actual_ns, bool aborted,
               uint64_t now_ns)
{
    if (holding->workers == 0)
        return; /* it was blocked, or has been settled */
    actual_ns = hg_least(actual_ns, HG_MAX_COST_NS);
    for (uint32_t i = 0; i < holding->count; i++) {
        hg_holding_one *one = &holding->at[i];

        settle_one(region, holding, one, actual_ns, now_ns);
        if (one->count != 0) {
            hg_count *count = &hg_counts_in(region)[one->count - 1];

            hg_add(&count->charged_ns, actual_ns);
            hg_add(&count->wall_ns, holding->wall_ns);
        }
    }
    hg_learn(region, holding, actual_ns, aborted, now_ns);
    holding->count = holding->workers = 0;
}
