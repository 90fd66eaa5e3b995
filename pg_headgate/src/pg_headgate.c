/*
 * pg_headgate.c: traffic control inside Postgres. Which budgets a statement falls under, whether
 * it may run, and what it is charged; the core (../native) decides, this makes it happen.
 *
 *   policyfile.c, guc.c ──policy──► identity.c, match.c ──matches──► admit.c ──► sleep.c, report.c
 *                                                                      ▲
 *   decide.c: planner ─(early)─► ExecutorStart ─(if there was trouble)─► ExecutorRun ─(take)
 *   utility.c: ProcessUtility ─(take)                                  │
 *                                                                      ▼
 *             running.c, charge.c ◄─(settle)─ ExecutorRun, ExecutorEnd, the end of its memory
 *
 * Hooks: post_parse_analyze (query ids), planner, ExecutorStart, Run, Finish, End, ProcessUtility;
 * emit_log (rate of log lines); shmem_request, shmem_startup. Only a client's own backend decides
 * anything. Parallel workers report their CPU time to their leader; nobody else does anything at
 * all.
 *
 * Locking: none of Postgres' locks. The region (region.c) is written by atomics, as native/ says;
 * a changed file is read by the process that has set `taking_over`. Between gate_enter and gate_leave, and
 * while `taking_over` is set, nothing is called that could raise an error or wait: an area that is
 * entered cannot be published to, and a longjmp would leave it entered. What is said of a decision
 * is therefore copied (GateReport) and said after gate_leave.
 *
 * Nothing leaks: a statement that holds places is in the list of running.c, and leaves it by
 * exactly one of: the end of ExecutorRun, ExecutorEnd, an error caught in a hook, the reset of the
 * executor's memory (portals that die without ExecutorEnd), or the exit of the backend. A backend
 * that dies without exit makes the postmaster restart all, and the region is made again.
 */
#include "pg_headgate.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

#ifdef GATE_HAS_REQUEST_HOOK
static shmem_request_hook_type before_request = NULL;
#endif
static shmem_startup_hook_type before_startup = NULL;

#ifdef GATE_HAS_REQUEST_HOOK
static void
request_memory(void)
{
	if (before_request != NULL)
		before_request();
	gate_request_memory();
}
#endif

static void
start_up(void)
{
	if (before_startup != NULL)
		before_startup();
	gate_make_region();
	if (gate_region != NULL)
		gate_load_at_start();
}

void
_PG_init(void)
{
	/* CREATE EXTENSION without preload: the functions say what is missing. */
	if (!process_shared_preload_libraries_in_progress)
		return;
	gate_define_settings();
#ifdef GATE_HAS_REQUEST_HOOK
	before_request = shmem_request_hook;
	shmem_request_hook = request_memory;
#else
	gate_request_memory();
#endif
	before_startup = shmem_startup_hook;
	shmem_startup_hook = start_up;
	gate_hook_in();
	gate_hook_utility();
	gate_report_hooks();
}
