/*
 * statement.c: what is one statement. Its own slice of the text, which utility statement is what,
 * and how many processes a plan asks for.
 */
#include "pg_headgate.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "commands/defrem.h"
#include "commands/prepare.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "parser/parser.h"
#include "tcop/tcopprot.h"

int			gate_level = 0;
GateOuter	gate_outer = {.tag = T_Invalid};

/* ── Slices ───────────────────────────────────────────────────────────────── */

static bool
is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'
		|| c == '$' || IS_HIGHBIT_SET(c);
}

static const char *
after_block_comment(const char *at)
{
	int			depth = 0;

	do
	{
		if (at[0] == '/' && at[1] == '*')
			depth++, at += 2;
		else if (at[0] == '*' && at[1] == '/')
			depth--, at += 2;
		else
			at++;
	} while (depth > 0 && *at != '\0');
	return at;
}

static const char *
after_quoted(const char *at, bool escapes)
{
	char		quote = *at++;

	for (; *at != '\0'; at++)
	{
		if (escapes && at[0] == '\\' && at[1] != '\0')
			at++;
		else if (at[0] == quote && at[1] == quote)
			at++;
		else if (at[0] == quote)
			return at + 1;
	}
	return at;
}

/* Of $tag$ … $tag$; where `at` begins no such thing, one character on. */
static const char *
after_dollar_quoted(const char *at)
{
	const char *tag_end = at + 1;
	const char *close;
	char		tag[NAMEDATALEN + 2];
	size_t		length;

	while (is_name_char(*tag_end) && *tag_end != '$')
		tag_end++;
	length = tag_end - at + 1;
	if (*tag_end != '$' || (at[1] >= '0' && at[1] <= '9') || length >= sizeof tag)
		return at + 1;
	memcpy(tag, at, length);
	tag[length] = '\0';
	close = strstr(at + length, tag);
	return close == NULL ? at + strlen(at) : close + length;
}

static const char *
after_line(const char *at)
{
	return at + strcspn(at, "\r\n");
}

static bool
has_escapes(const char *text, const char *at)
{
	bool		e_string = at > text && (at[-1] == 'e' || at[-1] == 'E')
		&& (at - 1 == text || !is_name_char(at[-2]));

	return e_string || !standard_conforming_strings;
}

/* Behind the token, comment or character at `at`. */
static const char *
after_token(const char *text, const char *at)
{
	if (at[0] == '-' && at[1] == '-')
		return after_line(at);
	if (at[0] == '/' && at[1] == '*')
		return after_block_comment(at);
	if (at[0] == '\'')
		return after_quoted(at, has_escapes(text, at));
	if (at[0] == '"')
		return after_quoted(at, false);
	if (at[0] == '$' && (at == text || !is_name_char(at[-1])))
		return after_dollar_quoted(at);
	return at + 1;
}

/* How far a text has been read, and the last semicolon there. */
typedef struct Place
{
	const char *text;
	TimestampTz message;
	int			at;
	int			start;
} Place;

static void
read_on(Place *place, int location)
{
	const char *text = place->text;
	const char *at = text + place->at;

	while (at < text + location && *at != '\0')
	{
		if (*at == ';')
			place->start = at + 1 - text;
		at = after_token(text, at);
	}
	place->at = at - text;
}

/* Behind the last semicolon before `location`. From 18 on a statement's location is behind the
 * comments that precede it, and those may hold its tags. The statements of a client's string come
 * one after the other: each goes on where the one before it was. */
static int
slice_start(const char *text, int location)
{
	static Place last = {0};
	Place		other = {.text = text};
	TimestampTz message = GetCurrentStatementStartTimestamp();

	if (text != debug_query_string)
	{
		read_on(&other, location);
		return other.start;
	}
	if (last.text != text || last.message != message || last.start > location)
		last = (Place) {.text = text, .message = message};
	read_on(&last, location);
	return last.start;
}

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v' || c == ';';
}

/* The end of the text, if only comments follow: some tools put theirs behind the semicolon. */
static int
slice_end(const char *text, int end)
{
	const char *at = text + end;

	for (;;)
	{
		while (is_blank(*at))
			at++;
		if (*at == '\0')
			return at - text;
		if (at[0] == '-' && at[1] == '-')
			at = after_line(at);
		else if (at[0] == '/' && at[1] == '*')
			at = after_block_comment(at);
		else
			return end;
	}
}

GateSlice
gate_slice(const char *text, int location, int length)
{
	int			start = location <= 0 ? 0 : slice_start(text, location);
	int			end = length <= 0 ? (int) strlen(text)
		: slice_end(text, Max(location, 0) + length);

	return (GateSlice) {.text = text, .start = start, .length = end - start};
}

/* ── Utility statements ───────────────────────────────────────────────────── */

/* Free: none of them calls a function of the client's choice, reads a table of its, or writes one. They
 * end things, or concern nothing but the session. Triggers that a transaction's end fires, or SET
 * CONSTRAINTS, are the doing of what was admitted before. The proxy's table (relay/kinds_free.c) says the
 * same in words. */
static const NodeTag free_statements[] = {
	T_TransactionStmt, T_ConstraintsSetStmt, T_VariableSetStmt, T_VariableShowStmt, T_DiscardStmt,
	T_ListenStmt, T_UnlistenStmt, T_PrepareStmt, T_DeallocateStmt, T_ClosePortalStmt,
};

static bool
is_free(NodeTag tag)
{
	for (int i = 0; i < (int) lengthof(free_statements); i++)
		if (free_statements[i] == tag)
			return true;
	return false;
}

/* Whether a parameter of EXECUTE has to be worked out: that runs before the statement which it is for. */
static bool
has_calls(const Node *node)
{
	ListCell   *cell;

	if (node == NULL || !IsA(node, ExecuteStmt))
		return false;
	foreach(cell, ((const ExecuteStmt *) node)->params)
	{
		const Node *given = lfirst(cell);

		if (IsA(given, TypeCast))
			given = ((const TypeCast *) given)->arg;
		if (!IsA(given, A_Const) && !IsA(given, ParamRef))
			return true;
	}
	return false;
}

static bool
runs_calls(const Node *query)
{
	return query != NULL && IsA(query, Query) && has_calls(((const Query *) query)->utilityStmt);
}

static bool
only_explains(const ExplainStmt *explain)
{
	bool		analyzes = false;
	ListCell   *cell;

	foreach(cell, explain->options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, "analyze") == 0)
			analyzes = defGetBoolean(option);
	}
	return !analyzes;
}

/* What passes is decided where its plan runs. EXPLAIN runs none, but its planner may run functions. */
static bool
passes(const Node *utility)
{
	switch (nodeTag(utility))
	{
		case T_DeclareCursorStmt:
		case T_FetchStmt:
			return true;
		case T_ExecuteStmt:
			return !has_calls(utility);
		case T_ExplainStmt:
			return !only_explains((const ExplainStmt *) utility)
				&& !runs_calls(((const ExplainStmt *) utility)->query);
		case T_CreateTableAsStmt:
			return !((const CreateTableAsStmt *) utility)->into->skipData
				&& !runs_calls(((const CreateTableAsStmt *) utility)->query);
		case T_CopyStmt:
			return ((const CopyStmt *) utility)->query != NULL;
		default:
			return false;
	}
}

GateKind
gate_kind_of(const Node *utility)
{
	if (is_free(nodeTag(utility)))
		return GATE_NEVER;
	return passes(utility) ? GATE_PASSES : GATE_GATED;
}

/* EXECUTE is the statement that it runs, also where it is decided before that. */
GateSlice
gate_utility_slice(const PlannedStmt *plan, const char *text)
{
	const Node *utility = plan->utilityStmt;
	PreparedStatement *prepared = IsA(utility, ExecuteStmt)
		? FetchPreparedStatement(((const ExecuteStmt *) utility)->name, false) : NULL;

	if (prepared == NULL || prepared->plansource->raw_parse_tree == NULL)
		return gate_slice(text, plan->stmt_location, plan->stmt_len);
	return gate_slice(prepared->plansource->query_string,
					  prepared->plansource->raw_parse_tree->stmt_location,
					  prepared->plansource->raw_parse_tree->stmt_len);
}

/* ── Plans ────────────────────────────────────────────────────────────────── */

static uint32 gathered(const Plan *plan);

static uint32
gathered_in(const List *plans)
{
	uint32		workers = 0;
	ListCell   *cell;

	foreach(cell, plans)
		workers += gathered(lfirst(cell));
	return workers;
}

static uint32
gathered(const Plan *plan)
{
	uint32		workers;

	if (plan == NULL)
		return 0;
	workers = gathered(plan->lefttree) + gathered(plan->righttree);
	switch (nodeTag(plan))
	{
		case T_Gather:
			return workers + ((const Gather *) plan)->num_workers;
		case T_GatherMerge:
			return workers + ((const GatherMerge *) plan)->num_workers;
		case T_Append:
			return workers + gathered_in(((const Append *) plan)->appendplans);
		case T_MergeAppend:
			return workers + gathered_in(((const MergeAppend *) plan)->mergeplans);
		case T_SubqueryScan:
			return workers + gathered(((const SubqueryScan *) plan)->subplan);
		default:
			return workers;
	}
}

/* Which kinds of nodes a plan has, and how they lie: so many are looked at. */
#define SHAPE_NODES 64

typedef struct Shape
{
	uint64		hash;
	int			nodes;
} Shape;

static void
note(Shape *shape, uint64 what)
{
	shape->hash = (shape->hash ^ what) * UINT64CONST(0x100000001b3);
}

/* What tells two plans of one node apart: one index finds a row by all its columns, another filters. */
static uint64
kind_of_node(const Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			return list_length(((const IndexScan *) plan)->indexqual);
		case T_IndexOnlyScan:
			return list_length(((const IndexOnlyScan *) plan)->indexqual);
		case T_BitmapIndexScan:
			return list_length(((const BitmapIndexScan *) plan)->indexqual);
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			return ((const Join *) plan)->jointype;
		case T_Agg:
			return ((const Agg *) plan)->aggstrategy;
		default:
			return 0;
	}
}

/* How many partitions are read is no shape: the first one speaks for all. */
static const Plan *
further_plan(const Plan *plan)
{
	const List *plans = NIL;

	switch (nodeTag(plan))
	{
		case T_SubqueryScan:
			return ((const SubqueryScan *) plan)->subplan;
		case T_Append:
			plans = ((const Append *) plan)->appendplans;
			break;
		case T_MergeAppend:
			plans = ((const MergeAppend *) plan)->mergeplans;
			break;
		case T_BitmapAnd:
			plans = ((const BitmapAnd *) plan)->bitmapplans;
			break;
		case T_BitmapOr:
			plans = ((const BitmapOr *) plan)->bitmapplans;
			break;
		default:
			break;
	}
	return plans == NIL ? NULL : linitial(plans);
}

static void
note_plan(Shape *shape, const Plan *plan)
{
	note(shape, plan == NULL);
	if (plan == NULL || shape->nodes++ >= SHAPE_NODES)
		return;
	note(shape, (uint64) nodeTag(plan) << 16 | kind_of_node(plan) << 2 | (plan->qual != NIL) << 1
		 | plan->parallel_aware);
	if (plan->lefttree != NULL || plan->righttree != NULL)
	{
		note_plan(shape, plan->lefttree);
		note_plan(shape, plan->righttree);
	}
	else
		note_plan(shape, further_plan(plan));
}

uint32
gate_shape_of(const PlannedStmt *plan)
{
	Shape		shape = {UINT64CONST(0xcbf29ce484222325), 0};
	ListCell   *cell;

	note_plan(&shape, plan->planTree);
	foreach(cell, plan->subplans)
		note_plan(&shape, lfirst(cell));
	shape.hash ^= shape.hash >> 32;
	shape.hash ^= shape.hash >> 16;
	return Max((uint32) (shape.hash & 0xffff), 1);
}

static bool makes_sets(const Plan *plan);

static bool
make_sets(const List *plans)
{
	ListCell   *cell;

	foreach(cell, plans)
		if (makes_sets(lfirst(cell)))
			return true;
	return false;
}

static bool
makes_sets(const Plan *plan)
{
	if (plan == NULL)
		return false;
	if (makes_sets(plan->lefttree) || makes_sets(plan->righttree))
		return true;
	switch (nodeTag(plan))
	{
		case T_ProjectSet:
		case T_RecursiveUnion:
		case T_CustomScan:
		case T_ForeignScan:
			return true;
		case T_Append:
			return make_sets(((const Append *) plan)->appendplans);
		case T_MergeAppend:
			return make_sets(((const MergeAppend *) plan)->mergeplans);
		case T_SubqueryScan:
			return makes_sets(((const SubqueryScan *) plan)->subplan);
		default:
			return false;
	}
}

bool
gate_returns_sets(const PlannedStmt *plan)
{
	return makes_sets(plan->planTree) || make_sets(plan->subplans);
}

/* Processes that it will use if the server has them to spare. */
uint32
gate_workers_of(const PlannedStmt *plan)
{
	uint32		workers;

	if (likely(!plan->parallelModeNeeded))
		return 1;
	workers = gathered(plan->planTree) + gathered_in(plan->subplans);
	return 1 + Min(workers, (uint32) max_parallel_workers);
}

static const double *const cost_settings[] = {
	&seq_page_cost, &random_page_cost, &cpu_tuple_cost, &cpu_index_tuple_cost,
	&cpu_operator_cost, &parallel_tuple_cost, &parallel_setup_cost,
};
static const bool *const path_settings[] = {
	&enable_async_append, &enable_bitmapscan, &enable_gathermerge, &enable_geqo, &enable_hashagg,
	&enable_hashjoin, &enable_incremental_sort, &enable_indexonlyscan, &enable_indexscan,
	&enable_material, &enable_memoize, &enable_mergejoin, &enable_nestloop,
	&enable_parallel_append, &enable_parallel_hash, &enable_partition_pruning,
	&enable_partitionwise_aggregate, &enable_partitionwise_join, &enable_seqscan, &enable_sort,
	&enable_tidscan, GATE_NEWER_PATH_SETTINGS
};

/* Of what a session may set that plans and their costs follow from: costs by other settings are
 * no measure for this pattern, so they are learned apart. */
static uint64
planner_settings(void)
{
	uint64		sum = 0;
	uint64		paths = 0;
	uint64		bits;

	/* Unrolled, both take a third of the time. */
#pragma GCC unroll 8
	for (int i = 0; i < (int) lengthof(cost_settings); i++)
	{
		memcpy(&bits, cost_settings[i], sizeof bits);
		/* A double's low bits are mostly zero: they must reach the high ones, and back. */
		sum += (bits ^ bits >> 32) * (UINT64CONST(0x9e3779b97f4a7c15) * (2 * i + 1));
	}
#pragma GCC unroll 32
	for (int i = 0; i < (int) lengthof(path_settings); i++)
		paths |= (uint64) *path_settings[i] << i;
	return sum ^ sum >> 32 ^ paths * UINT64CONST(0xc2b2ae3d27d4eb4f);
}

/* Without a query id (compute_query_id = off) the text's fingerprint tells patterns apart. */
uint64
gate_pattern_of(const GateStatement *statement)
{
	const GateSlice *slice = &statement->slice;
	uint64		id = statement->query_id;

	if (id == 0)
		id = hg_fingerprint(slice->text + slice->start, slice->length, HG_POSTGRES);
	id ^= planner_settings();
	id = (id ^ ((uint64) MyDatabaseId << 32 | MyDatabaseId)) * UINT64CONST(0x9e3779b97f4a7c15);
	id ^= id >> 32;
	return id < 2 ? id + 2 : id;
}
