/*
 * guess.c: plans that rest on tables which nobody has analyzed.
 *
 * The planner takes such a table for ten pages full of rows, however small it is. A few of them joined,
 * and a statement on a handful of rows is thought to take minutes. So the cost of a plan is bounded where
 * all that it reads is that small: its first execution is decided by that, the next ones by what it took.
 */
#include "pg_headgate.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "nodes/parsenodes.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define GUESS_COST 5000.0		/* 25 ms by a k of 5 us, 100 ms by the highest one */
#define WORTH_A_HINT 1000.0		/* below, it is too cheap to explain */
#define SMALL_PAGES 10			/* what the planner takes a smaller one for (plancat.c) */

static bool
never_analyzed(Oid relation)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	bool		never;

	if (!HeapTupleIsValid(tuple))
		return false;
	never = ((Form_pg_class) GETSTRUCT(tuple))->reltuples < 0;
	ReleaseSysCache(tuple);
	return never;
}

/* Never waits: a partition that the plan will not read may not be locked yet. */
static bool
is_small(Oid relation)
{
	Relation	opened;
	bool		small;

	if (!ConditionalLockRelationOid(relation, AccessShareLock))
		return false;
	opened = try_relation_open(relation, NoLock);
	if (opened == NULL)
	{
		UnlockRelationOid(relation, AccessShareLock);
		return false;
	}
	small = RELKIND_HAS_STORAGE(opened->rd_rel->relkind)
		&& RelationGetNumberOfBlocks(opened) < SMALL_PAGES;
	relation_close(opened, AccessShareLock);
	return small;
}

/* What views and partitioned tables stand for is in the plan as well. */
static bool
stands_for_others(const RangeTblEntry *entry)
{
	return entry->relkind == RELKIND_VIEW || entry->relkind == RELKIND_PARTITIONED_TABLE;
}

/* Nothing tells how many rows a function returns, or how often a recursion goes round. */
static bool
may_be_endless(const RangeTblEntry *entry)
{
	switch (entry->rtekind)
	{
		case RTE_FUNCTION:
		case RTE_TABLEFUNC:
		case RTE_NAMEDTUPLESTORE:
			return true;
		case RTE_CTE:
			return entry->self_reference;
		default:
			return false;
	}
}

static bool
is_guess(const PlannedStmt *plan)
{
	bool		guessed = false;
	ListCell   *cell;

	foreach(cell, plan->rtable)
	{
		const RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

		if (may_be_endless(entry))
			return false;
		if (entry->rtekind != RTE_RELATION || stands_for_others(entry))
			continue;
		if (!is_small(entry->relid))
			return false;
		guessed = guessed || never_analyzed(entry->relid);
	}
	return guessed && !gate_returns_sets(plan);
}

double
gate_plan_cost(const PlannedStmt *plan)
{
	double		cost = plan->planTree->total_cost;

	if (likely(cost <= GUESS_COST))
		return cost;
	return is_guess(plan) ? GUESS_COST : cost;
}

Oid
gate_unanalyzed(const PlannedStmt *plan)
{
	ListCell   *cell;

	if (likely(plan->planTree->total_cost <= WORTH_A_HINT))
		return InvalidOid;
	foreach(cell, plan->rtable)
	{
		const RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

		if (entry->rtekind == RTE_RELATION && !stands_for_others(entry)
			&& never_analyzed(entry->relid))
			return entry->relid;
	}
	return InvalidOid;
}

void
gate_relation_name(Oid relation, char *out, size_t room)
{
	char	   *name = get_rel_name(relation);
	char	   *schema = name == NULL ? NULL : get_namespace_name(get_rel_namespace(relation));

	out[0] = '\0';
	if (schema != NULL)
		strlcpy(out, quote_qualified_identifier(schema, name), room);
	out[gate_clean(out, strlen(out))] = '\0';
}
