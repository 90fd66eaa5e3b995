/*
 * utility.c: statements without a plan, by kind (statement.c).
 *
 *   never gated      run apart: whatever they fire is no statement of its own
 *   passed through   what they run is the statement; decide.c sees it there
 *   gated            one statement, decided by what it has cost before
 */
#include "pg_headgate.h"

#include "tcop/pquery.h"
#include "utils/portal.h"

static ProcessUtility_hook_type next_utility = NULL;

/* All that ProcessUtility is given, to hand it on. */
typedef struct Call
{
	PlannedStmt *plan;
	const char *text;
	bool		read_only;
	ProcessUtilityContext context;
	ParamListInfo parameters;
	QueryEnvironment *environment;
	DestReceiver *dest;
	QueryCompletion *completion;
} Call;

static void
hand_on(const Call *call)
{
	ProcessUtility_hook_type utility = next_utility != NULL ? next_utility
		: standard_ProcessUtility;

	utility(call->plan, call->text, call->read_only, call->context, call->parameters,
			call->environment, call->dest, call->completion);
}

/* What it runs is no statement of its own. */
static void
run_apart(const Call *call)
{
	gate_level++;
	PG_TRY();
	{
		hand_on(call);
	}
	PG_FINALLY();
	{
		gate_level--;
	}
	PG_END_TRY();
	gate_note_end();
}

/* What it runs is the statement, with its text. */
static void
pass_through(const Call *call)
{
	GateOuter	before = gate_outer;

	gate_outer = (GateOuter) {
		.tag = nodeTag(call->plan->utilityStmt),
		.slice = gate_slice(call->text, call->plan->stmt_location, call->plan->stmt_len),
		.query_id = (uint64) call->plan->queryId,
	};
	PG_TRY();
	{
		hand_on(call);
	}
	PG_FINALLY();
	{
		gate_outer = before;
	}
	PG_END_TRY();
}

/* NULL if it holds nothing. */
static GateRunning *
take_utility(const Call *call, GateReport *report, GateVerdict *verdict)
{
	GateRunning *running;
	GateStatement statement;
	uint64		now_ns = gate_now_ns();

	gate_sit();
	gate_watch(GetCurrentTimestamp());
	if (gate_free_and_counted())
		return NULL;
	statement = (GateStatement) {
		.slice = gate_utility_slice(call->plan, call->text),
		.query_id = (uint64) call->plan->queryId,
		.plan_cost = 1,
		.workers = 1,
		.flags = HG_UTILITY | gate_transaction_flags(),
	};
	running = gate_spare();
	*verdict = gate_admit(&statement, &now_ns, &running->holding, report);
	if (*verdict == GATE_FREE)
	{
		gate_note_unmetered();
		return NULL;
	}
	gate_begin(running, NULL, &statement);
	gate_taken(running, now_ns, PG_UINT64_MAX);
	return running;
}

static void
run_gated(const Call *call)
{
	GateVerdict verdict = GATE_FREE;
	GateReport	report;
	GateRunning *running = take_utility(call, &report, &verdict);

	gate_note_run();
	gate_level++;
	PG_TRY();
	{
		if (verdict == GATE_WARNED)
			gate_notice(&report);
		hand_on(call);
	}
	PG_CATCH();
	{
		gate_level--;
		if (running != NULL)
			gate_settle(running, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	gate_level--;
	gate_note_end();
	if (running != NULL)
		gate_settle(running, false);
}

static void
on_utility(PlannedStmt *plan, const char *text, bool read_only, ProcessUtilityContext context,
		   ParamListInfo parameters, QueryEnvironment *environment, DestReceiver *dest,
		   QueryCompletion *completion)
{
	Call		call = {plan, text, read_only, context, parameters, environment, dest, completion};
	GateKind	kind;

	if (gate_level > 0 || !gate_decides() || ActivePortal == NULL || dest->mydest == DestSPI
		|| dest->mydest == DestSQLFunction)
	{
		hand_on(&call);
		return;
	}
	kind = gate_kind_of(plan->utilityStmt);
	if (kind == GATE_PASSES)
		pass_through(&call);
	else if (kind == GATE_GATED)
		run_gated(&call);
	else
		run_apart(&call);
	if (IsA(plan->utilityStmt, TransactionStmt))
		gate_note_transaction((const TransactionStmt *) plan->utilityStmt);
}

void
gate_hook_utility(void)
{
	next_utility = ProcessUtility_hook;
	ProcessUtility_hook = on_utility;
}
