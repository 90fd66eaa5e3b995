/*
 * sleep.c: hold a session back, for a delay or a penalty.
 *
 * Cancel, terminate, timeouts and the postmaster's death end it at once. What the session holds
 * meanwhile are the locks of its own statement's tables; never anything of a transaction that has
 * run something, unless the budget asks for it (admit.c).
 */
#include "pg_headgate.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

static uint64 sleeping_for = 0; /* key of the budget whose place among the sleepers is taken */

void
gate_wake(void)
{
	if (sleeping_for != 0)
		hg_sleep_end(gate_region, sleeping_for);
	sleeping_for = 0;
}

static void
sleep_until(uint64 end_ns)
{
	static uint32 wait_event = 0;
	uint64		now_ns;

	if (wait_event == 0)
		wait_event = gate_wait_event("HeadgateDelay");
	while ((now_ns = gate_now_ns()) < end_ns)
	{
		long		left_ms = (long) ((end_ns - now_ns + 999999) / 1000000);

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left_ms,
						 wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
gate_sleep(uint64 budget_key, uint64 for_ns)
{
	sleeping_for = budget_key;
	PG_TRY();
	{
		sleep_until(gate_now_ns() + for_ns);
	}
	PG_FINALLY();
	{
		gate_wake();
	}
	PG_END_TRY();
}
