/*
 * admit.c: check with the core, and do as it says.
 *
 *   gate_precheck   looks alone: before planning, and before the executor starts
 *   gate_admit      takes a place, waits for one within the budget's patience, or blocks
 *   gate_charge     charges what has been done already
 *
 * Every look at the policy is one gate_enter … gate_leave, in which nothing waits or fails. After
 * a wait all is decided again: the policy may be another one by then.
 */
#include "pg_headgate.h"

#include "miscadmin.h"

#define TROUBLE_US 1000000

typedef enum Step
{
	STEP_FREE,
	STEP_ADMITTED,
	STEP_WARNED,
	STEP_WAIT,
	STEP_AGAIN,					/* it cannot wait (any more): ask for a plain yes or no */
	STEP_BLOCKED
} Step;

/* The time that one statement has been delayed, and to which budget that is counted. */
typedef struct Wait
{
	uint64		budget_key;		/* 0: nobody */
	uint64		waited_ns;
	uint32		dice;			/* for rules by ratio: below HG_ALL */
} Wait;

bool
gate_in_trouble(void)
{
	int64		until = atomic_load_explicit(&gate_shared->trouble_until_us, memory_order_relaxed);

	return gate_clock_us < until;
}

/* Written by a block now and then, read by all. */
static void
note_trouble(void)
{
	int64		until = gate_clock_us + TROUBLE_US;

	if (until - atomic_load_explicit(&gate_shared->trouble_until_us, memory_order_relaxed)
		> TROUBLE_US / 10)
		atomic_store_explicit(&gate_shared->trouble_until_us, until, memory_order_relaxed);
}

static hg_ask
ask_for(const GateStatement *statement, uint32 flags, uint64 now_ns)
{
	return (hg_ask) {
		.now_ns = now_ns,
		.wall_ms = gate_clock_us / 1000,
		.plan_cost = statement->plan_cost,
		.pattern = gate_pattern_of(statement),
		.query_id = statement->query_id,
		.database = MyDatabaseId,
		.workers = statement->workers,
		.flags = flags,
		.shape = statement->shape,
	};
}

static void
fill_report(GateReport *report, const hg_policy *policy, const hg_matches *matches,
			const hg_ask *ask, const hg_answer *answer)
{
	uint64		dice = (gate_now_ns() ^ ((uint64) MyProcPid << 40)) * UINT64CONST(0x9e3779b97f4a7c15);
	char	   *bucket = report->said.bucket;

	memset(report, 0, sizeof *report);
	hg_report_fill(&report->said, gate_region, policy, matches, ask, answer, dice);
	bucket[gate_clean(bucket, strlen(bucket))] = '\0';
}

/* ── Rules on clients ─────────────────────────────────────────────────────── */

static void
count_client(const hg_matches *matches, Step step, uint64 budget_key)
{
	hg_tally   *tally = hg_tally_at(gate_region, matches->client);

	if (tally == NULL)
		return;
	if (step != STEP_BLOCKED)
		hg_add(&tally->admitted, 1);
	else if (budget_key == 0)
		hg_add(&tally->by_rule, 1);
	else
	{
		hg_add(&tally->by_budget, 1);
		atomic_store_explicit(&tally->last_budget, budget_key, memory_order_relaxed);
	}
}

static void
copy_string(const hg_policy *policy, hg_string from, char *to, size_t room)
{
	size_t		length = Min(from.length, room - 1);

	memcpy(to, gate_string(policy, from), length);
	to[gate_clean(to, length)] = '\0';
}

static void
fill_rule_report(GateReport *report, const hg_policy *policy, const hg_gate *gate, uint32 client)
{
	const hg_tally *tally = hg_tally_at(gate_region, client);
	bool		ends = gate->ratio == HG_ALL && gate->until_ms != PG_INT64_MAX;

	memset(report, 0, sizeof *report);
	report->by_rule = true;
	report->said.budget_key = gate->token;	/* lines in the log are counted by it */
	strlcpy(report->client, client == 0 || tally == NULL ? "others" : tally->name,
			sizeof report->client);
	copy_string(policy, gate->reason, report->reason, sizeof report->reason);
	report->ratio = (double) gate->ratio / HG_ALL;
	report->retry_ms = gate->ratio != HG_ALL ? 1000
		: ends ? Max(gate->until_ms - gate_clock_us / 1000, 50) : 0;
}

/* Whether a rule blocks it. `dice`: thrown once for a statement; HG_ALL: not at all, so that a hold alone
 * does. A client that holds locks may go on. */
static bool
is_held(const hg_policy *policy, const hg_matches *matches, uint32 flags, uint32 dice,
		GateReport *report)
{
	const hg_gate *gate;
	hg_tally   *tally;

	if (likely(matches->gate == HG_NO_GATE))
		return false;
	gate = hg_gate_at(policy, matches->gate);
	if (gate->kind != HG_GATE_REJECTS || (gate->ratio != HG_ALL && dice >= gate->ratio))
		return false;
	if ((flags & (HG_IN_TRANSACTION | HG_MUST_RUN)) != 0)
	{
		tally = hg_tally_at(gate_region, matches->client);
		if (tally != NULL && dice != HG_ALL)
			hg_add(&tally->passed, 1);
		return false;
	}
	fill_rule_report(report, policy, gate, matches->client);
	return true;
}

/* ── Block ──────────────────────────────────────────────────────────────── */

/* Still inside the policy: counts, and finds a place to be held in for a moment. */
static void
prepare_block(GateReport *report, const hg_policy *policy, const hg_matches *matches,
				const hg_ask *ask, const hg_answer *answer)
{
	const hg_match_one *match = &matches->at[answer->match];
	uint32		penalty_ms = gate_budget(policy, match->budget)->penalty_ms;

	hg_count_block(gate_region, policy, matches, answer, (ask->flags & HG_EARLY) != 0,
					 gate_clock_us / 1000);
	fill_report(report, policy, matches, ask, answer);
	if (penalty_ms == 0 || gate_has_run())
		return;
	report->sleeps = hg_sleep_begin(gate_region, policy, match->budget);
	report->sleep_ns = (uint64) penalty_ms * 1000000;
}

static void
block(const GateStatement *statement, GateReport *report)
{
	if (!report->by_rule && report->said.is_trial && OidIsValid(statement->unanalyzed))
		gate_relation_name(statement->unanalyzed, report->unanalyzed,
						   sizeof report->unanalyzed);
	note_trouble();
	gate_note_blocked();
	gate_trace_block(statement, report);
	if (report->sleeps)
		gate_sleep(report->said.budget_key, report->sleep_ns);
	gate_block(report);
}

/* Also where nothing matches: a broken tag is one reason why. */
static void
count_seat(const hg_matches *matches)
{
	hg_seat    *seat = gate_seat_of(gate_seat);

	if (matches->count > 0)
		hg_add_own(&seat->matched, 1);
	if (unlikely(matches->ignored_tags | matches->duplicate_tags | matches->left_out))
	{
		hg_add_own(&seat->ignored_tags, matches->ignored_tags);
		hg_add_own(&seat->duplicate_tags, matches->duplicate_tags);
		hg_add_own(&seat->left_out, matches->left_out);
	}
}

/* ── Looking ──────────────────────────────────────────────────────────────── */

static Step
look(const GateStatement *statement, uint32 flags, GateReport *report)
{
	const hg_policy *policy = gate_enter();
	const GateSession *session;
	const hg_matches *matches;
	hg_answer	answer;
	hg_ask		ask;
	Step		step = STEP_FREE;

	if (policy == NULL)
		return STEP_FREE;
	session = gate_session(policy);
	matches = session == NULL ? NULL : gate_match(policy, session, statement);
	if (matches != NULL && is_held(policy, matches, flags, HG_ALL, report))
	{
		hg_add_own(&gate_seat_of(gate_seat)->statements, 1);
		count_seat(matches);
		count_client(matches, STEP_BLOCKED, 0);
		step = STEP_BLOCKED;
	}
	else if (matches != NULL && matches->count > 0)
	{
		ask = ask_for(statement, flags, gate_now_ns());
		hg_check(gate_region, policy, matches, &ask, &answer);
		step = answer.verdict == HG_BLOCK ? STEP_BLOCKED : STEP_ADMITTED;
		if (step == STEP_BLOCKED)
		{
			/* It ends here, so it is counted here. */
			hg_add_own(&gate_seat_of(gate_seat)->statements, 1);
			count_seat(matches);
			prepare_block(report, policy, matches, &ask, &answer);
			count_client(matches, STEP_BLOCKED, report->said.budget_key);
		}
	}
	gate_leave();
	return step;
}

void
gate_precheck(const GateStatement *statement, bool early)
{
	GateReport	report;

	gate_identify();
	gate_prepare_match();
	if (look(statement, statement->flags | (early ? HG_EARLY : 0), &report) == STEP_BLOCKED)
		block(statement, &report);
}

/* ── Taking ───────────────────────────────────────────────────────────────── */

/* Whether, and how long, the statement may be delayed now. */
static Step
prepare_wait(GateReport *report, const hg_policy *policy, const hg_matches *matches,
			 const hg_ask *ask, const hg_answer *answer, Wait *wait)
{
	uint32		index = matches->at[answer->match].budget;
	const hg_budget *budget = gate_budget(policy, index);
	uint64		most_ns = (uint64) budget->max_delay_ms * 1000000;

	if (wait->waited_ns >= most_ns || !hg_sleep_begin(gate_region, policy, index))
		return STEP_AGAIN;
	fill_report(report, policy, matches, ask, answer);
	report->sleep_ns = Min(answer->retry_ns, most_ns - wait->waited_ns);
	if (wait->budget_key == 0)
		wait->budget_key = budget->key;
	return STEP_WAIT;
}

static Step
decide(const GateStatement *statement, const hg_policy *policy, const hg_matches *matches,
	   const hg_ask *ask, Wait *wait, hg_holding *holding, GateReport *report)
{
	hg_answer	answer;

	hg_take(gate_region, policy, matches, ask, &answer, holding);
	switch (answer.verdict)
	{
		case HG_RUN:
			return STEP_ADMITTED;
		case HG_WARN:
			fill_report(report, policy, matches, ask, &answer);
			return STEP_WARNED;
		case HG_DELAY:
			return prepare_wait(report, policy, matches, ask, &answer, wait);
		case HG_BLOCK:
			prepare_block(report, policy, matches, ask, &answer);
			return STEP_BLOCKED;
	}
	return STEP_FREE;
}

static Step
take(const GateStatement *statement, uint32 flags, uint64 now_ns, Wait *wait, hg_holding *holding,
	 GateReport *report)
{
	const hg_policy *policy = gate_enter();
	const GateSession *session;
	const hg_matches *matches;
	hg_ask		ask;
	Step		step = STEP_FREE;

	if (policy == NULL)
		return STEP_FREE;
	session = gate_session(policy);
	if (session == NULL && gate_bypassed())
		hg_add_own(&gate_seat_of(gate_seat)->bypassed, 1);
	matches = session == NULL ? NULL : gate_match(policy, session, statement);
	if (matches != NULL && is_held(policy, matches, flags, wait->dice, report))
		step = STEP_BLOCKED;
	else if (matches != NULL && matches->count > 0)
	{
		ask = ask_for(statement, flags, now_ns);
		step = decide(statement, policy, matches, &ask, wait, holding, report);
	}
	if (matches != NULL && wait->waited_ns == 0 && step != STEP_AGAIN)
		count_seat(matches);
	if (matches != NULL && step != STEP_AGAIN && step != STEP_WAIT)
		count_client(matches, step, step == STEP_BLOCKED && !report->by_rule
					 ? report->said.budget_key : 0);
	gate_leave();
	return step;
}

static void
wait_for_room(Wait *wait, const GateReport *report, uint64 *now_ns)
{
	uint64		before = *now_ns;

	gate_sleep(report->said.budget_key, report->sleep_ns);
	*now_ns = gate_now_ns();
	wait->waited_ns += *now_ns - before;
	gate_watch(GetCurrentTimestamp());
	gate_identify();
}

/* Not for secrets. */
static uint32
throw_dice(uint64 now_ns)
{
	static uint64 state = 0;

	state = (state ^ now_ns ^ ((uint64) MyProcPid << 40)) * UINT64CONST(0x9e3779b97f4a7c15);
	return Min((uint32) (state >> 32), HG_ALL - 1);
}

GateVerdict
gate_admit(const GateStatement *statement, uint64 *now_ns, hg_holding *holding,
		   GateReport *report)
{
	Wait		wait = {.dice = throw_dice(*now_ns)};
	uint32		flags = statement->flags;
	Step		step;

	gate_identify();
	gate_prepare_match();
	for (;;)
	{
		step = take(statement, flags, *now_ns, &wait, holding, report);
		if (step == STEP_WAIT)
			wait_for_room(&wait, report, now_ns);
		else if (step == STEP_AGAIN)
			flags |= HG_NO_DELAY;
		else
			break;
	}
	if (wait.budget_key != 0 && wait.waited_ns > 0)
		hg_count_delay(gate_region, wait.budget_key, wait.waited_ns);
	if (step == STEP_BLOCKED)
		block(statement, report);
	return step == STEP_FREE ? GATE_FREE : step == STEP_WARNED ? GATE_WARNED : GATE_ADMITTED;
}

void
gate_charge(const GateStatement *statement, uint64 cost_ns)
{
	const hg_policy *policy = gate_enter();
	const GateSession *session;
	const hg_matches *matches;

	if (policy == NULL)
		return;
	session = gate_session(policy);
	matches = session == NULL ? NULL : gate_match(policy, session, statement);
	if (matches != NULL)
		hg_charge(gate_region, policy, matches, cost_ns, gate_now_ns());
	gate_leave();
}

/* What runs because of a COMMIT cannot be stopped without losing the transaction. */
bool
gate_admit_always(const GateStatement *statement, uint64 now_ns, hg_holding *holding)
{
	uint32		flags = statement->flags | HG_MUST_RUN;
	const hg_policy *policy;
	const GateSession *session;
	const hg_matches *matches;
	hg_answer	answer = {.verdict = HG_BLOCK};
	hg_ask		ask;

	gate_identify();
	gate_prepare_match();
	policy = gate_enter();
	if (policy == NULL)
		return false;
	session = gate_session(policy);
	matches = session == NULL ? NULL : gate_match(policy, session, statement);
	if (matches != NULL && matches->count > 0)
	{
		ask = ask_for(statement, flags, now_ns);
		hg_take(gate_region, policy, matches, &ask, &answer, holding);
	}
	gate_leave();
	return answer.verdict == HG_RUN || answer.verdict == HG_WARN;
}
