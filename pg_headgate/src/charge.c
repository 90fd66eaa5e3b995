/*
 * charge.c: what a statement has used: CPU time of its process and of its parallel workers.
 *
 * On a virtual machine reading a thread's CPU clock is a system call of 0.7 µs, as much as
 * everything else we do. So short statements are charged their wall time by the share of it that
 * recent ones spent on a CPU, which is measured on one statement in 10 ms; those that are expected
 * to be long are measured at both ends.
 *
 * What lies between two statements (parsing, binding, COMMIT, the network) is the greater part of a
 * cheap one, and only the clock of the whole process sees it. So now and then an account is closed:
 * what the process has used since the last one, less what its statements were metered at, is spread
 * over them, and from then on every statement is charged that on top of its own. What the guesses
 * were off by is carried over and charged to the next ones, a little to each; so in the long run
 * all that was used is charged (R110). Statements under no budget, and those blocked,
 * take their part of it away unpaid (R104).
 */
#include "pg_headgate.h"

#include <time.h>

#include "storage/ipc.h"
#include "storage/proc.h"

#define SHORT_NS 200000
#define CLOSE_EVERY_NS 10000000
#define WEIGHT 0.125
#define MOST_CARRIED_NS 100000000.0 /* more is not a guess that was off */

/* Statements expected to be short, and others: what these leave behind takes longer, too. */
typedef struct Kind
{
	double		overhead_ns;	/* of one statement, besides what is metered: */
	double		outside_ns;		/* recent sums of it, */
	double		recent;			/* and of statements */
	double		carried_ns;		/* used, but not charged yet; below 0: charged beforehand */
} Kind;

static Kind kinds[2];			/* short, long */
static double cpu_share = 1.0;	/* of short statements' wall time */

/* Since the last closing. */
static struct
{
	uint64		at_ns;
	uint64		cpu_ns;			/* the clock then; 0: never */
	double		metered_ns;		/* run by statements, as far as that is known */
	double		added_ns;		/* accounted for on top of it */
	uint32		statements;
	bool		is_long;		/* there is a long one: it has an account of its own */
	bool		blind;			/* something ran that nobody has metered */
} account;

static uint64
read_clock(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return (uint64) at.tv_sec * 1000000000 + (uint64) at.tv_nsec;
}

uint64
gate_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

/* ── The account ──────────────────────────────────────────────────────────── */

static void
learn(Kind *kind, double used_ns)
{
	double		unmetered_ns = used_ns - account.metered_ns;
	double		carried_ns = kind->carried_ns + unmetered_ns - account.added_ns;

	/* By the statement, not by the account: one expensive COMMIT among many. */
	kind->outside_ns += Max(unmetered_ns, 0) - kind->outside_ns * WEIGHT;
	kind->recent += account.statements - kind->recent * WEIGHT;
	kind->overhead_ns = Min(kind->outside_ns / kind->recent, CLOSE_EVERY_NS);
	kind->carried_ns = Max(Min(carried_ns, MOST_CARRIED_NS), -MOST_CARRIED_NS);
	atomic_store_explicit(&gate_shared->overhead_ns[account.is_long],
						  (uint32_t) kind->overhead_ns, memory_order_relaxed);
}

/* What others have learned is a better guess than none. */
static void
begin_as_others(void)
{
	for (int i = 0; i < 2; i++)
	{
		kinds[i].overhead_ns = atomic_load_explicit(&gate_shared->overhead_ns[i],
													memory_order_relaxed);
		kinds[i].outside_ns = kinds[i].overhead_ns;
		kinds[i].recent = 1;
	}
}

/* Between two statements: all that the clock says is theirs. */
static void
close_account(uint64 now_ns, uint64 cpu_ns)
{
	if (account.cpu_ns == 0)
		begin_as_others();
	else if (!account.blind && account.statements == 0)
		return;
	else if (!account.blind)
		learn(&kinds[account.is_long], (double) (cpu_ns - account.cpu_ns));
	memset(&account, 0, sizeof account);
	account.at_ns = now_ns;
	account.cpu_ns = cpu_ns;
}

/* What one more statement accounts for on top of its own time: never more than there was time for
 * since the last closing, however expensive recent ones were. */
static double
add_overhead(uint64 now_ns)
{
	double		room_ns = (double) (now_ns - account.at_ns) - account.metered_ns
		- account.added_ns;
	double		own_ns = Max(Min(kinds[account.is_long].overhead_ns, room_ns), 0);

	account.statements++;
	account.added_ns += own_ns;
	return own_ns;
}

void
gate_note_unmetered(void)
{
	account.blind = true;
}

void
gate_note_blocked(void)
{
	add_overhead(gate_now_ns());
}

/* ── The meter ────────────────────────────────────────────────────────────── */

void
gate_meter_planning(GateMeter *meter, uint64 wall_ns)
{
	double		cpu_ns = (double) wall_ns * cpu_share;

	/* A long one may have waited: for locks, for the catalogs, for its client. */
	if (wall_ns >= SHORT_NS)
		return;
	meter->cpu_ns += (uint64) cpu_ns;
	account.metered_ns += cpu_ns;
}

/* All that the process has used and nobody has accounted for, up to that time: nothing but the planner
 * has run, unless something was not metered. */
uint64
gate_long_planning(uint64 wall_ns)
{
	double		own_ns;

	if (likely(wall_ns < SHORT_NS))
		return 0;
	own_ns = (double) (read_clock(CLOCK_THREAD_CPUTIME_ID) - account.cpu_ns);
	if (!account.blind && account.cpu_ns != 0)
		own_ns -= account.metered_ns + account.added_ns;
	own_ns = Min(own_ns, (double) wall_ns);
	if (own_ns < SHORT_NS)
		return 0;
	account.metered_ns += own_ns;
	return (uint64) own_ns;
}

void
gate_meter_start(GateMeter *meter, uint64 now_ns, uint64 expected_ns)
{
	bool		is_long = expected_ns >= SHORT_NS;

	meter->began_ns = now_ns;
	meter->began_cpu_ns = 0;
	meter->expected_ns = expected_ns;
	if (likely(!is_long && !account.is_long && now_ns - account.at_ns < CLOSE_EVERY_NS))
		return;
	meter->began_cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
	close_account(now_ns, meter->began_cpu_ns);
	account.is_long |= is_long;
}

static double
measured(const GateMeter *meter, uint64 wall_ns)
{
	uint64		cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - meter->began_cpu_ns;

	if (wall_ns > 0 && wall_ns < SHORT_NS)
		cpu_share += (Min((double) cpu_ns / (double) wall_ns, 1.0) - cpu_share) * WEIGHT;
	return (double) cpu_ns;
}

/* It turned out long against expectation: it was expensive, or waited. What the process has used that is
 * not accounted for tells which, unless that is no more than guesses may be off by. */
static double
found_out(const GateMeter *meter, uint64 wall_ns)
{
	double		known_ns = account.metered_ns + account.added_ns;
	double		used_ns = (double) (read_clock(CLOCK_THREAD_CPUTIME_ID) - account.cpu_ns);
	double		usual_ns = Max((double) meter->expected_ns - kinds[0].overhead_ns, 0);

	if (account.blind || used_ns - known_ns <= usual_ns + known_ns / 2)
		return usual_ns;
	return Min(used_ns - known_ns, (double) wall_ns);
}

void
gate_meter_stop(GateMeter *meter, uint64 now_ns)
{
	uint64		wall_ns = now_ns - meter->began_ns;
	double		own_ns;

	if (meter->began_ns == 0)
		return;
	if (unlikely(meter->began_cpu_ns != 0))
		own_ns = measured(meter, wall_ns);
	else if (likely(wall_ns < SHORT_NS))
		own_ns = (double) wall_ns * cpu_share;
	else
		own_ns = found_out(meter, wall_ns);
	account.metered_ns += own_ns;
	meter->cpu_ns += (uint64) (own_ns + add_overhead(now_ns));
	meter->wall_ns += wall_ns;
	meter->began_ns = 0;
}

/* With a little of what earlier guesses were off by. */
uint64
gate_charged(const GateMeter *meter)
{
	Kind	   *kind = &kinds[meter->expected_ns >= SHORT_NS];
	double		own_ns = (double) meter->cpu_ns;
	double		most_ns = own_ns * WEIGHT;
	double		part_ns = Max(Min(kind->carried_ns, most_ns), -most_ns);

	kind->carried_ns -= part_ns;
	return (uint64) (own_ns + part_ns);
}

/* ── Parallel workers ─────────────────────────────────────────────────────── */

static uint64 told_ns = 0;		/* in a worker: what its leader knows of */

/* Also of a statement whose own plan has none: those it calls may. Mostly there is nothing. */
uint64
gate_take_workers(void)
{
	_Atomic uint64_t *worker_ns = &gate_seat_of(gate_seat)->worker_ns;

	if (likely(atomic_load_explicit(worker_ns, memory_order_relaxed) == 0))
		return 0;
	return atomic_exchange(worker_ns, 0);
}

/* What workers of an earlier statement left behind after it was settled is nobody's. */
void
gate_expect_workers(void)
{
	(void) gate_take_workers();
}

void
gate_worker_ends(void)
{
	uint64		cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
	PGPROC	   *leader = MyProc == NULL ? NULL : MyProc->lockGroupLeader;

	if (leader == NULL || leader == MyProc)
		return;
	atomic_fetch_add(&gate_seat_of(leader - ProcGlobal->allProcs)->worker_ns, cpu_ns - told_ns);
	told_ns = cpu_ns;
}

static void
worker_exits(int code, Datum arg)
{
	gate_worker_ends();
}

/* One that is cancelled never reaches its end, but its leader waits for its exit. */
void
gate_worker_starts(void)
{
	static bool expected = false;

	if (!expected)
		before_shmem_exit(worker_exits, 0);
	expected = true;
}
