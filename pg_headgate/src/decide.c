/*
 * decide.c: where statements are stopped on their way.
 *
 *   planner        early, by what is known without a plan: nothing is spent on one that is blocked
 *   ExecutorStart  with the plan's cost: cheaper to block here than in ExecutorRun
 *                  (both only if something was blocked a moment ago, or some limit is 0: else it is one
 *                  look more for everybody, and nobody's gain)
 *   ExecutorRun    the first run of a plan takes its places; further ones take them again, without a check
 *   ExecutorEnd    settles what ExecutorRun has not: all but plain SELECTs run to their end
 *
 * A statement is a top one if the client asked for it: level 0, with a portal, and run neither by
 * SPI nor by an SQL function. Triggers that a COMMIT fires have no portal, or run by SPI: they are
 * nobody's to block. Holdable cursors that a COMMIT runs are charged, never blocked.
 *
 * Planning may run functions, and for as long as they like: to fold constants, and to guess. What it has
 * used is charged where it ends, whatever becomes of the statement.
 */
#include "pg_headgate.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "replication/walsender.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/plancache.h"
#include "utils/portal.h"

static post_parse_analyze_hook_type next_analyze = NULL;
static planner_hook_type next_planner = NULL;
static ExecutorStart_hook_type next_start = NULL;
static ExecutorRun_hook_type next_run = NULL;
static ExecutorFinish_hook_type next_finish = NULL;
static ExecutorEnd_hook_type next_end = NULL;

static TimestampTz planned_at = 0;	/* the message whose statement was last planned, */
static TimestampTz ended_at = 0;	/* and the one whose statement last ended */

/* When planning began of the statement that comes next, if it is that one; 0: of none. */
static uint64 planned_id = 0;
static uint64 planned_since_ns = 0;

static LocalTransactionId has_run_in = InvalidLocalTransactionId;
static LocalTransactionId begun_as = InvalidLocalTransactionId;
static bool chained = false;

bool
gate_decides(void)
{
	return MyBackendType == B_BACKEND && gate_region != NULL && !am_walsender;
}

/* A transaction that the client has begun. Strings of several statements and pipelines are none: to
 * block one of their statements loses no more than the string. AND CHAIN begins the one after this. */
void
gate_note_transaction(const TransactionStmt *statement)
{
	if (statement->kind == TRANS_STMT_BEGIN || statement->kind == TRANS_STMT_START)
		begun_as = gate_lxid();
	else if (statement->kind == TRANS_STMT_COMMIT || statement->kind == TRANS_STMT_ROLLBACK)
		chained = statement->chain;
}

void
gate_note_run(void)
{
	has_run_in = gate_lxid();
	if (unlikely(chained))
		begun_as = has_run_in;
	chained = false;
}

bool
gate_has_run(void)
{
	return has_run_in != InvalidLocalTransactionId && has_run_in == gate_lxid();
}

void
gate_note_end(void)
{
	ended_at = GetCurrentStatementStartTimestamp();
}

uint32
gate_transaction_flags(void)
{
	return gate_has_run() && begun_as == has_run_in ? HG_IN_TRANSACTION : 0;
}

/* ── Query ids ────────────────────────────────────────────────────────────── */

static bool asked_for_ids = false;

/* They cost more than all else we do, so they are asked for when there is a rule to need them.
 * What was prepared before that has none: it is analyzed again at its next use. */
static void
ask_for_query_ids(void)
{
	bool		had_them = IsQueryIdEnabled();

	EnableQueryId();
	asked_for_ids = true;
	if (!had_them && IsQueryIdEnabled())
		ResetPlanCache();
}

/* The first statement that there may be a rule for. */
static void
identify(Query *query, const char *text)
{
	gate_sit();
	gate_watch(GetCurrentStatementStartTimestamp());
	/* After an error nothing but the transaction's end is analyzed, and the catalogs are out of reach. */
	if (gate_nothing_in_force() || !IsTransactionState() || gate_is_free())
		return;
	ask_for_query_ids();
	if (IsQueryIdEnabled())
		(void) gate_jumble(query, text);
}

static void
on_analyze(ParseState *state, Query *query, GateJumble *jumble)
{
	if (unlikely(!asked_for_ids) && query->queryId == 0 && gate_level == 0 && gate_decides())
		identify(query, state->p_sourcetext);
	if (next_analyze != NULL)
		next_analyze(state, query, jumble);
}

/* ── Who is free ──────────────────────────────────────────────────────────── */

/* Whether there is nothing to ask for this session. */
static bool
is_free(void)
{
	return gate_nothing_in_force() || gate_surely_free();
}

/* The same where a statement begins to run, which it does once. */
bool
gate_free_and_counted(void)
{
	hg_seat    *seat = gate_seat_of(gate_seat);

	if (gate_nothing_in_force())
		return true;
	hg_add_own(&seat->statements, 1);
	if (!gate_is_free())
	{
		if (unlikely(!asked_for_ids))
			ask_for_query_ids();
		return false;
	}
	if (gate_bypassed())
		hg_add_own(&seat->bypassed, 1);
	return true;
}

/* ── The planner ──────────────────────────────────────────────────────────── */

static bool
plans_top_statement(const char *text)
{
	return gate_outer.tag != T_Invalid || text == debug_query_string;
}

/* A string of several statements has one time for all of them. */
static void
watch_at_planning(void)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();

	gate_watch(now == planned_at ? GetCurrentTimestamp() : now);
	planned_at = now;
	ended_at = 0;
}

static GateStatement
unplanned(const Query *query, const char *text)
{
	bool		outer = gate_outer.tag != T_Invalid && gate_outer.tag != T_ExecuteStmt;

	return (GateStatement) {
		.slice = outer ? gate_outer.slice
			: gate_slice(text, query->stmt_location, query->stmt_len),
		.query_id = query->queryId != 0 ? (uint64) query->queryId : gate_outer.query_id,
		.plan_cost = 1,
		.workers = 1,
		.flags = gate_transaction_flags(),
	};
}

/* When planning began, if the statement may fall under some budget; else 0. In quiet times it is
 * only that: who is blocked now and then may be planned first, who is blocked all the time not. Who it is
 * is known from here on: if planning fails, nobody can look at the catalogs any more. */
static uint64
decide_early(const Query *query, const char *text)
{
	GateStatement statement;

	gate_sit();
	watch_at_planning();
	if (is_free())
		return 0;
	gate_identify();
	gate_prepare_match();
	if (gate_in_trouble() || gate_may_be_shut())
	{
		statement = unplanned(query, text);
		gate_precheck(&statement, true);
	}
	return gate_now_ns();
}

/* Whether it was worth a charge of its own. */
static bool
charge_planning(const Query *query, const char *text, uint64 began_ns)
{
	uint64		cost_ns = gate_long_planning(gate_now_ns() - began_ns);
	GateStatement statement;

	if (likely(cost_ns == 0))
		return false;
	statement = unplanned(query, text);
	gate_charge(&statement, cost_ns);
	return true;
}

static PlannedStmt *
plan_charged(planner_hook_type plan, uint64 began_ns, Query *query, GATE_PLAN_PARAMETERS)
{
	PlannedStmt *planned;

	PG_TRY();
	{
		planned = plan(query, GATE_PLAN_ARGUMENTS);
	}
	PG_CATCH();
	{
		charge_planning(query, text, began_ns);
		PG_RE_THROW();
	}
	PG_END_TRY();
	planned_id = (uint64) planned->queryId;
	planned_since_ns = charge_planning(query, text, began_ns) ? 0 : began_ns;
	return planned;
}

/* The level is not raised here: what functions run while a statement is planned, they run by SPI or as
 * SQL functions, and so are no top statements. */
static PlannedStmt *
on_plan(Query *query, GATE_PLAN_PARAMETERS)
{
	planner_hook_type plan = next_planner != NULL ? next_planner : standard_planner;
	PlannedStmt *planned;
	uint64		began_ns = 0;

	if (gate_level == 0 && gate_decides() && plans_top_statement(text))
		began_ns = decide_early(query, text);
	if (began_ns != 0)
		return plan_charged(plan, began_ns, query, GATE_PLAN_ARGUMENTS);
	planned = plan(query, GATE_PLAN_ARGUMENTS);
	planned_since_ns = 0;
	return planned;
}

/* ── The executor ─────────────────────────────────────────────────────────── */

/* Run by a function at level 0: a trigger that a COMMIT fires, or one that a parameter, a constant
 * or the partitions to read are found by. */
static bool
is_inner(const QueryDesc *desc)
{
	CommandDest dest = desc->dest->mydest;

	if (ActivePortal == NULL || dest == DestSPI || dest == DestSQLFunction)
		return true;
	return dest == DestNone && ActivePortal->strategy == PORTAL_ONE_SELECT
		&& gate_outer.tag == T_Invalid;
}

/* A holdable cursor that a COMMIT reads to its end: no other plain SELECT goes into a store, but
 * for those that EXECUTE and FETCH run. */
static bool
is_persisted(const QueryDesc *desc)
{
	return desc->dest->mydest == DestTuplestore && ActivePortal->strategy == PORTAL_ONE_SELECT
		&& gate_outer.tag == T_Invalid;
}

static GateSlice
slice_of(const QueryDesc *desc)
{
	const PlannedStmt *plan = desc->plannedstmt;

	switch (gate_outer.tag)
	{
		case T_Invalid:
		case T_ExecuteStmt:
		case T_FetchStmt:
			return gate_slice(desc->sourceText, plan->stmt_location, plan->stmt_len);
		case T_DeclareCursorStmt:
			/* The cursor has a copy of the text, and outlives the original. */
			return (GateSlice) {desc->sourceText, gate_outer.slice.start, gate_outer.slice.length};
		default:
			return gate_outer.slice;
	}
}

GateStatement
gate_planned(const QueryDesc *desc)
{
	const PlannedStmt *plan = desc->plannedstmt;

	return (GateStatement) {
		.slice = slice_of(desc),
		/* Until 17, plans inside CREATE TABLE AS and DECLARE have no id of their own. */
		.query_id = plan->queryId != 0 ? (uint64) plan->queryId : gate_outer.query_id,
		.plan_cost = gate_plan_cost(plan),
		.shape = gate_shape_of(plan),
		.unanalyzed = gate_unanalyzed(plan),
		.workers = gate_workers_of(plan),
		.flags = gate_transaction_flags(),
	};
}

static void
check_before_start(const QueryDesc *desc, bool declares)
{
	GateStatement statement;

	gate_sit();
	gate_watch(GetCurrentStatementStartTimestamp());
	if (is_free() || !(declares || gate_in_trouble() || gate_may_be_shut()))
		return;
	statement = gate_planned(desc);
	gate_precheck(&statement, false);
}

/* Here alone a cursor's own slice of the text is known. */
static void
remember_cursor(QueryDesc *desc)
{
	GateRunning *running = gate_spare();
	GateStatement statement = gate_planned(desc);

	gate_begin_held(running, desc, &statement, desc->estate->es_query_cxt);
}

/* Nothing to do here for most: by the clock of the last statement, for later there is no more trouble
 * than then. */
static bool
starts_quietly(void)
{
	return gate_outer.tag != T_DeclareCursorStmt && !gate_in_trouble()
		&& (gate_nothing_in_force() || !gate_may_be_shut());
}

/* Neither is it here: to prune partitions, only such functions are run. After the end of a message's
 * statement, what starts is the doing of a COMMIT. */
static void
start_decided(QueryDesc *desc, int flags, ExecutorStart_hook_type start)
{
	bool		top = ActivePortal != NULL && desc->dest->mydest != DestSPI
		&& desc->dest->mydest != DestSQLFunction && (flags & EXEC_FLAG_EXPLAIN_ONLY) == 0;
	bool		declares = top && gate_outer.tag == T_DeclareCursorStmt;

	if (top && GetCurrentStatementStartTimestamp() != ended_at)
		check_before_start(desc, declares);
	start(desc, flags);
	if (declares)
		remember_cursor(desc);
}

static void
on_start(QueryDesc *desc, int flags)
{
	ExecutorStart_hook_type start = next_start != NULL ? next_start : standard_ExecutorStart;

	if (gate_level == 0 && gate_decides() && !starts_quietly())
	{
		start_decided(desc, flags, start);
		return;
	}
	if (unlikely(IsParallelWorker()) && gate_region != NULL)
		gate_worker_starts();
	start(desc, flags);
}

static bool
outlives_run(const QueryDesc *desc, uint64 count)
{
	return ActivePortal->strategy != PORTAL_ONE_SELECT || count != 0
		|| (ActivePortal->cursorOptions & CURSOR_OPT_SCROLL) != 0
		|| desc->plannedstmt->parallelModeNeeded;
}

/* And its start: all that lies between. */
static void
add_planning(GateRunning *running, const QueryDesc *desc, uint64 now_ns)
{
	if (planned_since_ns != 0 && planned_id == (uint64) desc->plannedstmt->queryId)
		gate_meter_planning(&running->meter, now_ns - planned_since_ns);
	planned_since_ns = 0;
}

/* The first run of a plan: NULL if it holds nothing. */
static GateRunning *
take(QueryDesc *desc, GateRunning *cursor, GateReport *report, GateVerdict *verdict)
{
	GateRunning *running = cursor != NULL ? cursor : gate_spare();
	GateStatement statement = cursor != NULL ? cursor->statement : gate_planned(desc);
	uint64		now_ns = gate_now_ns();

	statement.flags = gate_transaction_flags();
	if (!is_persisted(desc))
		*verdict = gate_admit(&statement, &now_ns, &running->holding, report);
	else if (gate_admit_always(&statement, now_ns, &running->holding))
		*verdict = GATE_ADMITTED;
	if (*verdict == GATE_FREE)
		return NULL;
	if (cursor == NULL)
		gate_begin(running, desc, &statement);
	gate_taken(running, now_ns, running->holding.estimate_ns);
	add_planning(running, desc, now_ns);
	return running;
}

/* `free`: no statement of the session can match. */
static GateRunning *
take_or_resume(QueryDesc *desc, GateReport *report, GateVerdict *verdict, bool *free)
{
	GateRunning *running = likely(gate_running == NULL) ? NULL : gate_find(desc);
	TimestampTz now = GetCurrentStatementStartTimestamp();

	if (running != NULL && running->taken)
	{
		gate_resume(running);
		return running;
	}
	if (desc->already_executed)
		return NULL;
	gate_sit();
	if (now != planned_at)
		gate_watch(now);
	*free = gate_free_and_counted();
	return *free ? NULL : take(desc, running, report, verdict);
}

static void
after_run(GateRunning *running)
{
	if (running->grip == NULL)
		gate_settle(running, false);
	else if (ActivePortal->strategy == PORTAL_ONE_SELECT)
		gate_pause(running);
}

static void
call_run(QueryDesc *desc, ScanDirection direction, GATE_RUN_PARAMETERS)
{
	if (next_run != NULL)
		next_run(desc, direction, GATE_RUN_ARGUMENTS);
	else
		standard_ExecutorRun(desc, direction, GATE_RUN_ARGUMENTS);
}

/* With what it calls, which is no statement of its own. */
static void
run_decided(QueryDesc *desc, ScanDirection direction, GateRunning *running,
			const GateReport *warning, GATE_RUN_PARAMETERS)
{
	gate_level++;
	PG_TRY();
	{
		if (running != NULL && outlives_run(desc, count))
			gate_hold_on(running, desc->estate->es_query_cxt);
		if (warning != NULL)
			gate_notice(warning);
		call_run(desc, direction, GATE_RUN_ARGUMENTS);
	}
	PG_CATCH();
	{
		gate_level--;
		if (running != NULL)
			gate_abandon(running);
		PG_RE_THROW();
	}
	PG_END_TRY();
	gate_level--;
}

/* Under no budget: metered for replay alone. What a session that is free calls is as free, so the
 * level is left alone, and nothing has to be caught. */
static void
run_free(QueryDesc *desc, ScanDirection direction, bool free, GATE_RUN_PARAMETERS)
{
	static bool fails = false;
	bool		traced = !desc->already_executed && !gate_nothing_in_force();
	GateMeter	meter = {0};

	if (fails || !traced)
		gate_note_unmetered();
	if (traced)
		gate_meter_start(&meter, gate_now_ns(), 0);
	fails = true;
	if (free)
		call_run(desc, direction, GATE_RUN_ARGUMENTS);
	else
		run_decided(desc, direction, NULL, NULL, GATE_RUN_ARGUMENTS);
	fails = false;
	if (!traced)
		return;
	gate_meter_stop(&meter, gate_now_ns());
	gate_trace_free(desc, &meter);
}

static void
on_run(QueryDesc *desc, ScanDirection direction, GATE_RUN_PARAMETERS)
{
	GateVerdict verdict = GATE_FREE;
	GateReport	report;
	GateRunning *running;
	bool		free = false;

	if (gate_level > 0 || !gate_decides() || is_inner(desc))
	{
		call_run(desc, direction, GATE_RUN_ARGUMENTS);
		return;
	}
	running = take_or_resume(desc, &report, &verdict, &free);
	gate_note_run();
	if (running == NULL)
		run_free(desc, direction, free, GATE_RUN_ARGUMENTS);
	else
	{
		run_decided(desc, direction, running, verdict == GATE_WARNED ? &report : NULL,
					GATE_RUN_ARGUMENTS);
		after_run(running);
	}
	gate_note_end();
}

/* Triggers run here: of the statement, so they are charged to it. */
static void
on_finish(QueryDesc *desc)
{
	ExecutorFinish_hook_type finish = next_finish != NULL ? next_finish : standard_ExecutorFinish;
	GateRunning *running;

	/* Most have none. */
	if (gate_level > 0 || (desc->operation == CMD_SELECT && !desc->plannedstmt->hasModifyingCTE))
	{
		finish(desc);
		return;
	}
	running = gate_running == NULL ? NULL : gate_find(desc);
	gate_level++;
	PG_TRY();
	{
		finish(desc);
	}
	PG_CATCH();
	{
		gate_level--;
		if (running != NULL)
			gate_abandon(running);
		PG_RE_THROW();
	}
	PG_END_TRY();
	gate_level--;
}

static void
on_end(QueryDesc *desc)
{
	GateRunning *running = likely(gate_running == NULL) ? NULL : gate_find(desc);

	if (running != NULL)
		gate_settle(running, false);
	if (unlikely(IsParallelWorker()) && gate_region != NULL)
		gate_worker_ends();
	if (next_end != NULL)
		next_end(desc);
	else
		standard_ExecutorEnd(desc);
}

void
gate_hook_in(void)
{
	next_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = on_analyze;
	next_planner = planner_hook;
	planner_hook = on_plan;
	next_start = ExecutorStart_hook;
	ExecutorStart_hook = on_start;
	next_run = ExecutorRun_hook;
	ExecutorRun_hook = on_run;
	next_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = on_finish;
	next_end = ExecutorEnd_hook;
	ExecutorEnd_hook = on_end;
}
