/*
 * compat.h: where Postgres 14 to 19 differ in what we use. No other file asks for the version.
 */
#ifndef GATE_COMPAT_H
#define GATE_COMPAT_H

#if PG_VERSION_NUM < 140000 || PG_VERSION_NUM >= 200000
#error "pg_headgate is made for Postgres 14 to 19"
#endif
#ifdef EXEC_BACKEND
#error "pg_headgate relies on fork: what the postmaster maps, its children inherit"
#endif

#if PG_VERSION_NUM >= 160000
#include "nodes/queryjumble.h"
#define gate_guc_malloc(size) guc_malloc(LOG, size)
#define gate_jumble(query, text) JumbleQuery(query)
#else
#include "utils/queryjumble.h"
#define gate_guc_malloc(size) malloc(size)
#define gate_jumble(query, text) JumbleQuery(query, text)
#endif

/* Arguments of ExecutorRun after the direction. */
#if PG_VERSION_NUM >= 180000
#define GATE_RUN_PARAMETERS uint64 count
#define GATE_RUN_ARGUMENTS count
#else
#define GATE_RUN_PARAMETERS uint64 count, bool execute_once
#define GATE_RUN_ARGUMENTS count, execute_once
#endif

/* Arguments of the planner after the query, and what an analyzed query has been jumbled to. */
#if PG_VERSION_NUM >= 190000
#define GATE_PLAN_PARAMETERS const char *text, int options, ParamListInfo parameters, \
	ExplainState *explain
#define GATE_PLAN_ARGUMENTS text, options, parameters, explain
#define standard_conforming_strings true	/* it is never off any more */
typedef const JumbleState GateJumble;
#else
#define GATE_PLAN_PARAMETERS const char *text, int options, ParamListInfo parameters
#define GATE_PLAN_ARGUMENTS text, options, parameters
typedef JumbleState GateJumble;
#endif

#if PG_VERSION_NUM >= 170000
#define gate_lxid() (MyProc->vxid.lxid)
#define gate_wait_event(name) WaitEventExtensionNew(name)
#else
#define gate_lxid() (MyProc->lxid)
#define gate_wait_event(name) PG_WAIT_EXTENSION
#endif

/* Of statement.c's list. */
#if PG_VERSION_NUM >= 180000
#include "optimizer/planmain.h"
#define GATE_NEWER_PATH_SETTINGS &enable_presorted_aggregate, &enable_group_by_reordering, \
	&enable_distinct_reordering, &enable_self_join_elimination
#elif PG_VERSION_NUM >= 170000
#define GATE_NEWER_PATH_SETTINGS &enable_presorted_aggregate, &enable_group_by_reordering
#elif PG_VERSION_NUM >= 160000
#define GATE_NEWER_PATH_SETTINGS &enable_presorted_aggregate
#else
#define GATE_NEWER_PATH_SETTINGS
#endif

#if PG_VERSION_NUM >= 150000
#define GATE_HAS_REQUEST_HOOK	/* before, memory is asked for while the library is loaded */
#else
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

#endif
