/*
 * pg_headgate.h: what the files of the extension share. pg_headgate.c tells how they fit together.
 */
#ifndef PG_HEADGATE_H
#define PG_HEADGATE_H

#include "postgres.h"

#include "executor/execdesc.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "tcop/dest.h"
#include "tcop/utility.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "headgate.h"

#define GATE_VERSION "0.1.0"

/* ── guc.c ────────────────────────────────────────────────────────────────── */

extern bool gate_enabled;
extern char *gate_directory;
extern int gate_buckets, gate_patterns, gate_budgets, gate_traces, gate_policy_kb;
extern double gate_server_cpus;
extern bool gate_bypass_superuser;
extern char *gate_bypass_roles;
extern int gate_notice_interval_ms, gate_log_interval_ms;
/* Of pg_headgate.policy: this process's own, NULL without one. */
extern const hg_policy *gate_guc_policy;
extern void gate_define_settings(void);

/* ── region.c ─────────────────────────────────────────────────────────────── */

#define GATE_LOG_SLOTS 64

/* Beside the region, in the server's own shared memory: of no use to readers outside. */
typedef struct GateShared
{
	_Atomic int64_t looked_us;	/* when a process last looked at the files */
	_Atomic uint32_t taking_over;	/* a process reads a new file, one at a time, */
	_Atomic uint32_t given_up;	/* and has kept others waiting for too long */
	_Atomic uint64_t policy_mark;	/* of the files that were read last */
	_Atomic uint64_t health_mark;
	_Atomic uint64_t policy_unread; /* of those that could not be read, but may be yet */
	_Atomic uint64_t health_unread;
	_Atomic int64_t trouble_until_us;	/* something was blocked a moment ago */
	_Atomic uint32_t overhead_ns[2];	/* of short and long statements, as last measured */
	_Atomic uint64_t logged_ns[GATE_LOG_SLOTS]; /* last line about a budget */
	_Atomic uint64_t unlogged[GATE_LOG_SLOTS];	/* lines left out since */
} GateShared;

extern hg_region *gate_region;	/* NULL: not preloaded, or there was no memory */
extern GateShared *gate_shared;
extern void gate_request_memory(void);
extern void gate_make_region(void);
extern const char *gate_region_kind(void);
extern void gate_tell_enabled(bool enabled);

/* This backend's own. */
extern uint32 gate_seat;
extern void gate_sit(void);
extern void gate_stand(void);
extern hg_seat *gate_seat_of(uint32 seat);

/* ── policyfile.c ─────────────────────────────────────────────────────────── */

extern int64 gate_clock_us;		/* Unix time of the present statement */
extern void gate_set_clock(TimestampTz now);
extern void gate_load_at_start(void);
/* Once in a while, for all: has a file changed? */
extern void gate_watch(TimestampTz now);
/* The policy in force, until gate_leave; NULL: none. */
extern const hg_policy *gate_enter(void);
extern void gate_leave(void);
extern bool gate_file_in_force(void);
/* No policy, or it is switched off: known by a look at one line of memory. */
extern bool gate_nothing_in_force(void);

/* ── identity.c ───────────────────────────────────────────────────────────── */

typedef struct GateSession
{
	bool		identified;		/* role, username, bypassed */
	bool		resolved;		/* all else, under the policy of version and crc */
	bool		bypassed;
	bool		from_guc;
	bool		named;			/* some rule names an application_name */
	bool		shut;			/* some enforced budget has a limit of 0, or a rule holds some client */
	bool		gated;			/* there are rules on clients */
	bool		by_tags;		/* by which clients are named, or which are not everybody's */
	bool		by_pattern;
	Oid			role;
	uint32		crc;
	uint64		version;
	uint64		generation;		/* of all of this, for what depends on it */
	int64		sound_until_ms; /* the next end of a budget */
	char		username[NAMEDATALEN];
	char		application[NAMEDATALEN];
	hg_client	client;
	hg_session	core;
} GateSession;

/* Before gate_enter: who this is now, which may take a look at the catalogs. */
extern void gate_identify(void);
/* After it: what that means under the policy; NULL if no statement of ours can match. */
extern const GateSession *gate_session(const hg_policy *policy);
/* That no statement can match, without a look at the policy; false: not known. */
extern bool gate_surely_free(void);
/* The same, with a look at the policy and the catalogs where that is needed. */
extern bool gate_is_free(void);
/* That some budget may admit nothing at all: then nothing of a statement may run before it is decided. */
extern bool gate_may_be_shut(void);
extern bool gate_bypassed(void);
extern void gate_forget_session(void);
extern const hg_client *gate_client(void);

/* ── statement.c ──────────────────────────────────────────────────────────── */

typedef struct GateSlice
{
	const char *text;
	int			start;
	int			length;
} GateSlice;

typedef enum GateKind
{
	GATE_NEVER,					/* not gated, and what it runs is not either */
	GATE_PASSES,				/* what it runs is the statement */
	GATE_GATED
} GateKind;

typedef struct GateStatement
{
	GateSlice	slice;
	uint64		query_id;
	double		plan_cost;
	uint32		shape;			/* of its plan; 0: it has none */
	uint32		workers;
	uint32		flags;			/* of hg_ask */
	Oid			unanalyzed;		/* a table that its plan guesses at; 0: none, or it is cheap */
} GateStatement;

/* The utility statement that the present one is run by. */
typedef struct GateOuter
{
	NodeTag		tag;			/* T_Invalid: none */
	GateSlice	slice;
	uint64		query_id;
} GateOuter;

extern int	gate_level;			/* 0: a top statement may begin */
extern GateOuter gate_outer;
extern GateKind gate_kind_of(const Node *utility);
extern GateSlice gate_utility_slice(const PlannedStmt *plan, const char *text);
extern GateSlice gate_slice(const char *text, int location, int length);
extern uint32 gate_workers_of(const PlannedStmt *plan);
/* 16 bits that say which kinds of nodes it has; never 0. */
extern uint32 gate_shape_of(const PlannedStmt *plan);
/* Some part of it makes many rows of one: nothing tells how many. */
extern bool gate_returns_sets(const PlannedStmt *plan);
extern uint64 gate_pattern_of(const GateStatement *statement);

/* ── guess.c ──────────────────────────────────────────────────────────────── */

/* As planned; bounded where that depends on guesses about small tables. */
extern double gate_plan_cost(const PlannedStmt *plan);
/* A table that its plan guesses at, since nobody has analyzed it; 0: none, or it is cheap. */
extern Oid	gate_unanalyzed(const PlannedStmt *plan);
extern void gate_relation_name(Oid relation, char *out, size_t room);

/* ── match.c ──────────────────────────────────────────────────────────────── */

/* Before gate_enter. */
extern void gate_prepare_match(void);
/* Valid until the next call. */
extern const hg_matches *gate_match(const hg_policy *policy, const GateSession *session,
									const GateStatement *statement);

/* ── charge.c ─────────────────────────────────────────────────────────────── */

typedef struct GateMeter
{
	uint64		began_ns;		/* 0: stopped */
	uint64		began_cpu_ns;	/* 0: not read */
	uint64		expected_ns;
	uint64		wall_ns;
	uint64		cpu_ns;
} GateMeter;

extern uint64 gate_now_ns(void);
extern void gate_meter_planning(GateMeter *meter, uint64 wall_ns);
/* What planning for that long has used, and accounted for by that; 0: less than is worth a charge. */
extern uint64 gate_long_planning(uint64 wall_ns);
extern void gate_meter_start(GateMeter *meter, uint64 now_ns, uint64 expected_ns);
extern void gate_meter_stop(GateMeter *meter, uint64 now_ns);
extern uint64 gate_charged(const GateMeter *meter);
/* What else the process spends its time on. */
extern void gate_note_blocked(void);
extern void gate_note_unmetered(void);
extern void gate_expect_workers(void);
extern uint64 gate_take_workers(void);
extern void gate_worker_starts(void);
extern void gate_worker_ends(void);

/* ── admit.c ──────────────────────────────────────────────────────────────── */

typedef struct GateReport
{
	hg_report	said;
	bool		by_rule;		/* on its client, which is in words already: */
	char		client[HG_MAX_IDENTITY_BYTES + 1];
	char		reason[256];
	double		ratio;
	uint64		retry_ms;		/* 0: not known */
	bool		sleeps;			/* has a place among those delayed, */
	uint64		sleep_ns;		/* for that long */
	char		unanalyzed[2 * NAMEDATALEN + 8];	/* a table; empty: none */
} GateReport;

typedef enum GateVerdict
{
	GATE_FREE,					/* under no budget: nothing is held */
	GATE_ADMITTED,				/* `holding` must be settled */
	GATE_WARNED					/* likewise, and `report` is to be sent */
} GateVerdict;

/* Waits where that helps; does not return if it is blocked. `now_ns` is when it begins. */
extern GateVerdict gate_admit(const GateStatement *statement, uint64 *now_ns, hg_holding *holding,
							  GateReport *report);
/* Does not return if it would be blocked. */
extern void gate_precheck(const GateStatement *statement, bool early);
/* At COMMIT: charged where it can be, blocked never. */
extern bool gate_admit_always(const GateStatement *statement, uint64 now_ns, hg_holding *holding);
/* Work that is done, and was no statement of its own. Neither waits nor fails. */
extern void gate_charge(const GateStatement *statement, uint64 cost_ns);
extern bool gate_in_trouble(void);

/* ── running.c ────────────────────────────────────────────────────────────── */

typedef struct GateRunning GateRunning;

/* Lies in the executor's memory, and tells us when that goes away. */
typedef struct GateGrip
{
	MemoryContextCallback callback;
	GateRunning *running;		/* NULL: it has been settled */
} GateGrip;

struct GateRunning
{
	GateRunning *next;
	QueryDesc  *desc;			/* NULL: a utility statement */
	GateGrip   *grip;
	bool		taken;			/* holds a charge */
	bool		placed;			/* and places */
	GateStatement statement;
	GateMeter	meter;
	hg_holding	holding;
};

extern GateRunning *gate_running;	/* all that are not settled, the latest first */
extern GateRunning *gate_find(const QueryDesc *desc);
/* One to admit into, which is no more than that until gate_begin. */
extern GateRunning *gate_spare(void);
extern void gate_begin(GateRunning *spare, QueryDesc *desc, const GateStatement *statement);
extern void gate_begin_held(GateRunning *spare, QueryDesc *desc, const GateStatement *statement,
							MemoryContext context);
extern void gate_hold_on(GateRunning *running, MemoryContext context);
extern void gate_taken(GateRunning *running, uint64 now_ns, uint64 expected_ns);
extern void gate_pause(GateRunning *running);
extern void gate_resume(GateRunning *running);
extern void gate_settle(GateRunning *running, bool aborted);
extern void gate_abandon(GateRunning *running);
extern void gate_abandon_all(void);

/* ── sleep.c ──────────────────────────────────────────────────────────────── */

/* Delayed on behalf of a budget, whose place among the sleepers has been taken. */
extern void gate_sleep(uint64 budget_key, uint64 for_ns);
extern void gate_wake(void);

/* ── report.c ─────────────────────────────────────────────────────────────── */

extern void gate_notice(const GateReport *report);
extern void gate_block(const GateReport *report) __attribute__((noreturn));
/* Makes names that were cut, or come from a database of another encoding, ones of this one's. */
extern size_t gate_clean(char *text, size_t length);
extern void gate_report_hooks(void);

/* ── trace.c ──────────────────────────────────────────────────────────────── */

extern void gate_trace_end(const GateRunning *running, uint64 actual_ns, bool aborted);
/* Under no budget, but it would be under one that is only proposed. */
extern void gate_trace_free(const QueryDesc *desc, const GateMeter *meter);
extern void gate_trace_block(const GateStatement *statement, const GateReport *report);

/* ── decide.c ─────────────────────────────────────────────────────────────── */

extern void gate_hook_in(void);
extern GateStatement gate_planned(const QueryDesc *desc);
/* Whether this process is a client's own backend, and there is a region. */
extern bool gate_decides(void);
/* Something has run in this transaction; and whether it has. */
extern void gate_note_run(void);
extern bool gate_has_run(void);
/* After a statement that begins or ends one. */
extern void gate_note_transaction(const TransactionStmt *statement);
/* Whether something has run in a transaction that the client has begun. */
extern uint32 gate_transaction_flags(void);
/* The message's statement has ended: what follows is the doing of its COMMIT. */
extern void gate_note_end(void);
extern bool gate_free_and_counted(void);

/* ── utility.c ────────────────────────────────────────────────────────────── */

extern void gate_hook_utility(void);

/* ── arrays of the policy and the region ──────────────────────────────────── */

static inline const hg_budget *
gate_budget(const hg_policy *policy, uint32 index)
{
	return (const hg_budget *) ((const char *) policy + policy->budgets.offset) + index;
}

static inline const char *
gate_string(const hg_policy *policy, hg_string string)
{
	return (const char *) policy + policy->strings.offset + string.offset;
}

#endif
