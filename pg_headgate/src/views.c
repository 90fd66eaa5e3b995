/*
 * views.c: what is in force and what has happened, as rows. The same can be read without a
 * connection from the region itself; nothing here is needed for decisions.
 */
#include "pg_headgate.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(headgate_status);
PG_FUNCTION_INFO_V1(headgate_backends);
PG_FUNCTION_INFO_V1(headgate_budgets);
PG_FUNCTION_INFO_V1(headgate_buckets);
PG_FUNCTION_INFO_V1(headgate_patterns);

#define MAX_COLUMNS 32
#define FREE_KEY 0
#define TAKEN_KEY 1

/* The rows of a function, in the making. */
typedef struct Rows
{
	Tuplestorestate *store;
	TupleDesc	shape;
	int			column;
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS];
} Rows;

static void
begin_rows(FunctionCallInfo fcinfo, Rows *rows)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext before;

	if (!IsPostmasterEnvironment)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("pg_headgate does not run in single-user mode"));
	if (gate_region == NULL || gate_shared == NULL)
		ereport(ERROR, errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("pg_headgate is not loaded"),
				errhint("Set shared_preload_libraries = 'pg_headgate' in postgresql.conf, and "
						"restart the server."));
	if (result == NULL || !IsA(result, ReturnSetInfo)
		|| (result->allowedModes & SFRM_Materialize) == 0)
		ereport(ERROR, errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("this function returns a set of rows: use it in FROM"));
	before = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	if (get_call_result_type(fcinfo, NULL, &rows->shape) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rows->store = tuplestore_begin_heap(true, false, work_mem);
	result->returnMode = SFRM_Materialize;
	result->setResult = rows->store;
	result->setDesc = rows->shape;
	MemoryContextSwitchTo(before);
	rows->column = 0;
	gate_sit();
}

/* Walsenders and background workers read as well, but decide nothing: who decides by an old policy
 * is looked for among those who keep their seats. */
static Datum
end_rows(void)
{
	if (!gate_decides())
		gate_stand();
	return (Datum) 0;
}

static void
put(Rows *rows, Datum value)
{
	Assert(rows->column < rows->shape->natts);
	rows->values[rows->column] = value;
	rows->nulls[rows->column++] = false;
}

static void
put_null(Rows *rows)
{
	rows->nulls[rows->column++] = true;
}

static void
put_count(Rows *rows, uint64 count)
{
	put(rows, Int64GetDatum((int64) count));
}

static void
put_number(Rows *rows, double number)
{
	put(rows, Float8GetDatum(number));
}

static void
put_seconds(Rows *rows, uint64 ns)
{
	put_number(rows, (double) ns / 1e9);
}

static void
put_text(Rows *rows, const char *text, size_t length)
{
	struct varlena *copy = cstring_to_text_with_len(text, length);

	SET_VARSIZE(copy, VARHDRSZ + gate_clean(VARDATA(copy), length));
	put(rows, PointerGetDatum(copy));
}

static void
put_string(Rows *rows, const char *text)
{
	put_text(rows, text, strlen(text));
}

static void
put_time(Rows *rows, int64 unix_ms)
{
	if (unix_ms == 0)
		put_null(rows);
	else
		put(rows, TimestampTzGetDatum(time_t_to_timestamptz((pg_time_t) (unix_ms / 1000))
									  + unix_ms % 1000 * 1000));
}

static void
put_hex(Rows *rows, uint32 number)
{
	char		text[16];

	snprintf(text, sizeof text, "%08x", number);
	put_string(rows, text);
}

static void
end_row(Rows *rows)
{
	Assert(rows->column == rows->shape->natts);
	tuplestore_putvalues(rows->store, rows->shape, rows->values, rows->nulls);
	rows->column = 0;
}

/* A copy of the policy in force, so that it can be read at leisure; NULL: none. */
static const hg_policy *
copied_policy(void)
{
	Size		room = Max((Size) gate_region->sizes.policy_bytes,
						   gate_guc_policy == NULL ? 0 : gate_guc_policy->length);
	hg_policy  *copy = MemoryContextAllocHuge(CurrentMemoryContext, room);
	const hg_policy *policy = gate_enter();

	if (policy != NULL)
	{
		memcpy(copy, policy, policy->length);
		gate_leave();
	}
	return policy == NULL ? NULL : copy;
}

/* ── status ───────────────────────────────────────────────────────────────── */

static void
put_policy(Rows *rows)
{
	bool		file = gate_file_in_force();

	if (!file && gate_guc_policy == NULL)
	{
		put_null(rows);
		put_null(rows);
		put_null(rows);
		put_string(rows, "none");
		return;
	}
	put_count(rows, file ? atomic_load(&gate_region->version) : gate_guc_policy->version);
	put_hex(rows, file ? atomic_load(&gate_region->crc) : gate_guc_policy->crc);
	put_time(rows, file ? atomic_load(&gate_region->published_ms) : 0);
	put_string(rows, file ? "file" : "guc");
}

static void
put_health(Rows *rows)
{
	static const char *const names[] = {"unknown", "unhealthy", "healthy"};
	TimestampTz now = GetCurrentTimestamp();

	gate_watch(now);
	put_string(rows, names[hg_healthy(gate_region, gate_clock_us / 1000) + 1]);
	put_time(rows, atomic_load(&gate_region->health_until_ms));
}

Datum
headgate_status(PG_FUNCTION_ARGS)
{
	Rows		rows;
	char		rejection[sizeof gate_region->rejection + 1] = "";

	begin_rows(fcinfo, &rows);
	memcpy(rejection, gate_region->rejection, sizeof gate_region->rejection);
	put(&rows, BoolGetDatum(atomic_load(&gate_region->enabled) != 0));
	put_policy(&rows);
	put_count(&rows, atomic_load(&gate_region->rejected_policies));
	if (rejection[0] == '\0')
		put_null(&rows);
	else
		put_string(&rows, rejection);
	put_health(&rows);
	put_string(&rows, gate_region_kind());
	put_count(&rows, gate_region->length);
	put_number(&rows, gate_region->cpus_milli / 1000.0);
	put(&rows, Int32GetDatum(gate_region->workers));
	put_count(&rows, atomic_load(&gate_region->pattern_evictions));
	put_count(&rows, atomic_load(&gate_region->counts_full));
	put_string(&rows, GATE_VERSION);
	end_row(&rows);
	return end_rows();
}

/* ── backends ─────────────────────────────────────────────────────────────── */

Datum
headgate_backends(PG_FUNCTION_ARGS)
{
	Rows		rows;

	begin_rows(fcinfo, &rows);
	for (uint32 i = 0; i < gate_region->sizes.seats; i++)
	{
		hg_seat    *seat = gate_seat_of(i);
		uint32		pid = atomic_load(&seat->pid);

		if (pid == 0)
			continue;
		put(&rows, Int32GetDatum((int32) pid));
		put_count(&rows, atomic_load(&seat->version));
		put_hex(&rows, atomic_load(&seat->crc));
		put_count(&rows, atomic_load(&seat->statements));
		put_count(&rows, atomic_load(&seat->matched));
		put_count(&rows, atomic_load(&seat->bypassed));
		put_count(&rows, atomic_load(&seat->ignored_tags));
		put_count(&rows, atomic_load(&seat->duplicate_tags));
		put_count(&rows, atomic_load(&seat->left_out));
		end_row(&rows);
	}
	return end_rows();
}

/* ── buckets ──────────────────────────────────────────────────────────────── */

static uint64
bucket_key(uint32 index)
{
	return atomic_load((_Atomic uint64_t *) ((char *) gate_region + gate_region->bucket_keys_at)
					   + index);
}

static hg_bucket *
bucket_at(uint32 index)
{
	return (hg_bucket *) ((char *) gate_region + gate_region->buckets_at) + index;
}

static const hg_budget *
budget_of(const hg_policy *policy, uint64 key)
{
	for (uint32 i = 0; policy != NULL && i < policy->budgets.count; i++)
		if (gate_budget(policy, i)->key == key)
			return gate_budget(policy, i);
	return NULL;
}

static double
capacity_s(const hg_budget *budget)
{
	return budget->capacity_mpcts / 100000.0 * gate_region->cpus_milli / 1000.0;
}

static void
put_fill(Rows *rows, const hg_budget *budget, uint64 debt_ns)
{
	if (budget == NULL || (budget->set & HG_SET_CAPACITY) == 0 || budget->capacity_mpcts == 0)
		put_null(rows);
	else
		put_number(rows, debt_ns / 1e7 / capacity_s(budget));
}

static void
put_bucket(Rows *rows, const hg_policy *policy, uint32 index)
{
	hg_bucket  *bucket = bucket_at(index);
	const hg_budget *budget = budget_of(policy, bucket->budget_key);
	uint64		debt_ns = hg_debt_ns(gate_region, index, gate_now_ns());

	if (budget == NULL)
		put_null(rows);
	else
		put_text(rows, gate_string(policy, budget->name), budget->name.length);
	put_text(rows, bucket->label, Min(bucket->label_length, sizeof bucket->label));
	put_seconds(rows, debt_ns);
	put_fill(rows, budget, debt_ns);
	put_count(rows, atomic_load(&bucket->holders) & 0xffffffff);
	put_count(rows, atomic_load(&bucket->holders) >> 32);
	put_count(rows, atomic_load(&bucket->admitted));
	end_row(rows);
}

Datum
headgate_buckets(PG_FUNCTION_ARGS)
{
	Rows		rows;
	const hg_policy *policy;

	begin_rows(fcinfo, &rows);
	policy = copied_policy();
	for (uint32 i = 0; i < gate_region->sizes.buckets; i++)
		if (bucket_key(i) != FREE_KEY && bucket_key(i) != TAKEN_KEY)
			put_bucket(&rows, policy, i);
	return end_rows();
}

/* ── budgets ──────────────────────────────────────────────────────────────── */

typedef struct Held
{
	uint64		debt_ns;
	uint64		most_ns;		/* of one bucket */
	uint64		running;
	uint64		buckets;
} Held;

static Held
held_by(uint64 budget_key, uint64 now_ns)
{
	Held		held = {0};

	for (uint32 i = 0; i < gate_region->sizes.buckets; i++)
	{
		hg_bucket  *bucket = bucket_at(i);
		uint64		debt_ns;

		if (bucket_key(i) == FREE_KEY || bucket_key(i) == TAKEN_KEY
			|| bucket->budget_key != budget_key)
			continue;
		debt_ns = hg_debt_ns(gate_region, i, now_ns);
		held.debt_ns += debt_ns;
		held.most_ns = Max(held.most_ns, debt_ns);
		held.running += atomic_load(&bucket->holders) & 0xffffffff;
		held.buckets++;
	}
	return held;
}

static void
put_limit(Rows *rows, const hg_budget *budget, uint32 set, uint32 thousandths)
{
	if ((budget->set & set) == 0)
		put_null(rows);
	else
		put_number(rows, thousandths / 1000.0);
}

static void
put_limits(Rows *rows, const hg_budget *budget)
{
	put_string(rows, budget->mode == HG_MODE_ENFORCE ? "enforce" : "warn");
	put_limit(rows, budget, HG_SET_RATE, budget->rate_mpct);
	put_limit(rows, budget, HG_SET_CAPACITY, budget->capacity_mpcts);
	put_limit(rows, budget, HG_SET_BURST, budget->burst_mpcts);
	put_limit(rows, budget, HG_SET_CONCURRENCY, budget->concurrency_mpct);
	if ((budget->set & HG_SET_MAX_WORKERS) == 0)
		put_null(rows);
	else
		put(rows, Int32GetDatum((int32) budget->max_workers));
	put_time(rows, budget->expires_at_ms);
}

static void
put_held(Rows *rows, const hg_budget *budget)
{
	Held		held = held_by(budget->key, gate_now_ns());

	put_count(rows, held.buckets);
	put_count(rows, held.running);
	put_seconds(rows, held.debt_ns);
	put_fill(rows, budget, held.most_ns);
}

static void
put_counts(Rows *rows, const hg_count *count)
{
	put_count(rows, atomic_load(&count->admitted));
	put_seconds(rows, atomic_load(&count->estimated_ns));
	put_seconds(rows, atomic_load(&count->charged_ns));
	put_seconds(rows, atomic_load(&count->wall_ns));
	for (int limit = HG_NO_LIMIT; limit < HG_LIMITS; limit++)
		put_count(rows, atomic_load(&count->warned[limit]));
	for (int limit = HG_NO_LIMIT; limit < HG_LIMITS; limit++)
		put_count(rows, atomic_load(&count->blocked[limit]));
	put_count(rows, atomic_load(&count->delayed));
	put_seconds(rows, atomic_load(&count->delayed_ns));
	put_count(rows, atomic_load(&count->passed));
	put_seconds(rows, atomic_load(&count->forgiven_ns));
	put_count(rows, atomic_load(&count->unpinned));
	put_count(rows, atomic_load(&count->sleeping));
	put_time(rows, atomic_load(&count->last_violation_ms));
}

Datum
headgate_budgets(PG_FUNCTION_ARGS)
{
	static const hg_count none;
	Rows		rows;
	const hg_policy *policy;

	begin_rows(fcinfo, &rows);
	policy = copied_policy();
	for (uint32 i = 0; policy != NULL && i < policy->budgets.count; i++)
	{
		const hg_budget *budget = gate_budget(policy, i);
		const char *name = gate_string(policy, budget->name);
		const hg_count *count = hg_count_of(gate_region, budget->key, name, budget->name.length);

		CHECK_FOR_INTERRUPTS();
		put_text(&rows, name, budget->name.length);
		put_limits(&rows, budget);
		put_held(&rows, budget);
		put_counts(&rows, count == NULL ? &none : count);
		end_row(&rows);
	}
	return end_rows();
}

/* ── patterns ─────────────────────────────────────────────────────────────── */

static float
float_of(uint32 bits)
{
	float		value;

	memcpy(&value, &bits, sizeof value);
	return value;
}

Datum
headgate_patterns(PG_FUNCTION_ARGS)
{
	hg_pattern *patterns;
	Rows		rows;

	begin_rows(fcinfo, &rows);
	patterns = (hg_pattern *) ((char *) gate_region + gate_region->patterns_at);
	for (uint32 i = 0; i < gate_region->sizes.patterns; i++)
	{
		hg_pattern *pattern = &patterns[i];
		hg_typical	typical;
		uint64		key = atomic_load(&pattern->key);

		if (key == FREE_KEY || key == TAKEN_KEY)
			continue;
		put_count(&rows, pattern->query_id);
		put(&rows, ObjectIdGetDatum((Oid) pattern->database));
		put_count(&rows, atomic_load(&pattern->calls));
		hg_pattern_typical(pattern, &typical);
		put_number(&rows, typical.k);
		put_number(&rows, typical.cost.mean_ns / 1e6);
		put_number(&rows, typical.cost.p90_ns / 1e6);
		put_number(&rows, typical.plan_cost);
		put_number(&rows, float_of(atomic_load(&pattern->error)));
		put_seconds(&rows, atomic_load(&pattern->cpu_ns));
		put_seconds(&rows, atomic_load(&pattern->wall_ns));
		end_row(&rows);
	}
	return end_rows();
}
