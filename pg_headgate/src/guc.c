/*
 * guc.c: the settings. The small policy in one of them comes compiled, as text; every process decodes
 * and checks it, so that none takes over what another would have rejected.
 */
#include "pg_headgate.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#define MAX_POLICY_TEXT (128 * 1024)	/* the server reads longer values in quadratic time */

bool		gate_enabled = true;
char	   *gate_directory = NULL;
int			gate_buckets = 8192;
int			gate_patterns = 16384;
int			gate_budgets = 16384;
int			gate_traces = 4096;
int			gate_policy_kb = 4096;
double		gate_server_cpus = 0;
bool		gate_bypass_superuser = true;
char	   *gate_bypass_roles = NULL;
int			gate_notice_interval_ms = 1000;
int			gate_log_interval_ms = 1000;
const hg_policy *gate_guc_policy = NULL;

static char *policy_text = NULL;

/* As strict as with a policy file, and in every process. May not raise an error. */
static bool
check_policy(char **value, void **extra, GucSource source)
{
	size_t		length = *value == NULL ? 0 : strlen(*value);
	const char *why = "it is too long";
	size_t		decoded = 0;
	void	   *policy;

	*extra = NULL;
	if (length == 0)
		return true;
	if (length <= MAX_POLICY_TEXT)
	{
		policy = malloc(length);
		why = policy == NULL ? "out of memory"
			: hg_policy_decode(*value, length, policy, &decoded);
		if (why == NULL && (*extra = gate_guc_malloc(decoded)) == NULL)
			why = "out of memory";
		if (why == NULL)
			memcpy(*extra, policy, decoded);
		free(policy);
	}
	if (why == NULL)
		return true;
	/* Without the value: nobody can read it. */
	GUC_check_errmsg("invalid value for parameter \"pg_headgate.policy\": it must be the output of"
					 " \"headgate budget compile FILE\"");
	GUC_check_errdetail("The value of %zu bytes cannot be used: %s.", length, why);
	if (length > MAX_POLICY_TEXT)
		GUC_check_errhint("At most %d bytes fit here. Publish a larger policy as a file:"
						  " headgate pg publish FILE.", MAX_POLICY_TEXT);
	return false;
}

static void
assign_policy(const char *value, void *extra)
{
	gate_guc_policy = extra;
	gate_forget_session();
}

static void
assign_enabled(bool value, void *extra)
{
	gate_tell_enabled(value);
}

static bool
check_roles(char **value, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*value);
	List	   *names;
	bool		sound = SplitIdentifierString(copy, ',', &names);

	if (!sound)
		GUC_check_errdetail("Expected a comma-separated list of role names.");
	list_free(names);
	pfree(copy);
	return sound;
}

static void
assign_bypass(const char *value, void *extra)
{
	gate_forget_session();
}

static void
assign_bypass_superuser(bool value, void *extra)
{
	gate_forget_session();
}

static void
define_size(const char *name, const char *what, int *value, int least, int most, int flags)
{
	DefineCustomIntVariable(name, what, NULL, value, *value, least, most, PGC_POSTMASTER, flags,
							NULL, NULL, NULL);
}

static void
define_sizes(void)
{
	define_size("pg_headgate.buckets", "Number of buckets that can be in debt or in use at once.", &gate_buckets,
				16, 1 << 24, 0);
	define_size("pg_headgate.patterns", "Number of statement patterns whose cost is remembered.",
				&gate_patterns, 16, 1 << 22, 0);
	define_size("pg_headgate.budgets", "Number of budgets whose counters are kept.", &gate_budgets, 16, 65536,
				0);
	define_size("pg_headgate.traces", "Number of statements kept for replay; 0 keeps none.", &gate_traces, 0,
				1 << 20, 0);
	define_size("pg_headgate.policy_memory", "Memory for one compiled policy; twice as much is reserved.",
				&gate_policy_kb, 64, 1 << 20, GUC_UNIT_KB);
	DefineCustomRealVariable("pg_headgate.server_cpus",
							 "Number of CPUs that count as 100 %; 0 detects it.", NULL,
							 &gate_server_cpus, 0, 0, 4096, PGC_POSTMASTER, 0, NULL, NULL, NULL);
}

static void
define_intervals(void)
{
	DefineCustomIntVariable("pg_headgate.notice_interval_ms",
							"Minimum time between two notices of one budget to one session.", NULL,
							&gate_notice_interval_ms, 1000, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("pg_headgate.log_interval_ms",
							"Minimum time between two log lines about statements that one budget blocks.", NULL,
							&gate_log_interval_ms, 1000, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
}

void
gate_define_settings(void)
{
	DefineCustomBoolVariable("pg_headgate.enabled", "Enables traffic control.", NULL,
							 &gate_enabled, true, PGC_SIGHUP, 0, NULL, assign_enabled, NULL);
	DefineCustomStringVariable("pg_headgate.directory",
							   "Directory for policy files, relative to the data directory.", NULL,
							   &gate_directory, "pg_headgate", PGC_POSTMASTER,
							   GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomStringVariable("pg_headgate.policy",
							   "Compiled policy, used while no policy file is published.", NULL,
							   &policy_text, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, check_policy,
							   assign_policy, NULL);
	DefineCustomBoolVariable("pg_headgate.bypass_superuser",
							 "Exempts superusers from all budgets.", NULL, &gate_bypass_superuser,
							 true, PGC_SIGHUP, 0, NULL, assign_bypass_superuser, NULL);
	DefineCustomStringVariable("pg_headgate.bypass_roles",
							   "Roles whose members are exempt from all budgets.", NULL, &gate_bypass_roles,
							   "", PGC_SIGHUP, GUC_LIST_INPUT, check_roles, assign_bypass, NULL);
	define_sizes();
	define_intervals();
	MarkGUCPrefixReserved("pg_headgate");
}
