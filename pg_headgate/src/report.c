/*
 * report.c: what is said of a decision, to the client and in the server's log.
 *
 * A refusal is always told to its client. Its log line, and a warning's notice, cost more than many
 * a statement, so both are rationed by budget; the counters are exact all the same.
 */
#include "pg_headgate.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"

#define NOTICE_SLOTS 64
#define PREFIX "[HEADGATE] Traffic Control: "

static emit_log_hook_type before_log = NULL;
static bool leave_out_of_log = false;

typedef struct Words
{
	char		what[160];
	char		detail[400];
	char		hint[480];
} Words;

static const char *const limit_names[HG_LIMITS] = {"none", "concurrency", "burst", "capacity"};

static double
seconds(uint64 ns)
{
	return (double) ns / 1e9;
}

static double
milliseconds(uint64 ns)
{
	return (double) ns / 1e6;
}

/* ── Words ────────────────────────────────────────────────────────────────── */

static void
say_what(const GateReport *report, char *out, size_t room)
{
	if (report->limit == HG_CONCURRENCY)
		snprintf(out, room, "concurrency limit: " UINT64_FORMAT " of " UINT64_FORMAT
				 " workers are in use", report->used, report->bound);
	else if (report->limit == HG_QUERY)
		snprintf(out, room, "per-statement limit: estimated %.3f s of CPU, %.3f s allowed",
				 seconds(report->estimate_ns), seconds(report->bound));
	else
		snprintf(out, room, "capacity limit: %.3f s of CPU owed and %.3f s asked, %.3f s allowed",
				 seconds(report->used), seconds(report->estimate_ns), seconds(report->bound));
}

static uint64
retry_ms(const GateReport *report)
{
	return report->retry_ns / 1000000 + (report->retry_ns % 1000000 != 0);
}

static int
say_measure(const GateReport *report, char *out, size_t room)
{
	if (report->limit == HG_CONCURRENCY)
		return snprintf(out, room, "used=" UINT64_FORMAT " bound=" UINT64_FORMAT, report->used,
						report->bound);
	return snprintf(out, room, "used_ms=%.3f bound_ms=%.3f", milliseconds(report->used),
					milliseconds(report->bound));
}

size_t
gate_clean(char *text, size_t length)
{
	int			encoding = GetDatabaseEncoding();
	size_t		at = 0;

	while (at < length)
	{
		int			width = pg_encoding_verifymbchar(encoding, text + at, (int) (length - at));

		if (width <= 0 && at + pg_encoding_mblen(encoding, text + at) > length)
			return at;			/* cut inside its last character */
		if (width <= 0 || text[at] == '\0')
			text[at] = '?';
		at += Max(width, 1);
	}
	return length;
}

/* Names may hold anything, and DETAIL is fields between blanks: those are written as in URLs. */
static void
say_bucket(const char *bucket, char *out)
{
	for (; *bucket != '\0'; bucket++)
	{
		if ((uint8) *bucket <= ' ' || *bucket == '%' || *bucket == 0x7f)
			out += sprintf(out, "%%%02X", (uint8) *bucket);
		else
			*out++ = *bucket;
	}
	*out = '\0';
}

static void
say_detail(const GateReport *report, char *out, size_t room)
{
	char		bucket[3 * sizeof report->bucket];
	char		measure[80];
	char		retry[32] = "never";

	say_measure(report, measure, sizeof measure);
	say_bucket(report->bucket, bucket);
	if (report->retry_ns != HG_NEVER)
		snprintf(retry, sizeof retry, UINT64_FORMAT, retry_ms(report));
	snprintf(out, room, "budget=%s limit=%s estimate_ms=%.3f %s retry_after_ms=%s%s%s "
			 "policy_version=" UINT64_FORMAT, report->budget, limit_names[report->limit],
			 milliseconds(report->estimate_ns), measure, retry,
			 bucket[0] == '\0' ? "" : " bucket=", bucket, report->policy_version);
}

static void
say_hint(const GateReport *report, char *out, size_t room)
{
	size_t		length = 0;

	if (report->retry_ns != HG_NEVER && !report->is_trial)
	{
		snprintf(out, room, "Retry in " UINT64_FORMAT " ms.", retry_ms(report));
		return;
	}
	strlcpy(out, "As it is estimated it does not fit: make it cheaper, or raise the budget's limit.",
			room);
	if (report->unanalyzed[0] != '\0')
	{
		length = strlen(out);
		snprintf(out + length, room - length, " Its estimate is a guess: ANALYZE %s.",
				 report->unanalyzed);
	}
	length = strlen(out);
	if (report->retry_ns != HG_NEVER)
		snprintf(out + length, room - length, " One execution is let through in " UINT64_FORMAT
				 " ms, to learn what it costs now.", retry_ms(report));
}

static void
put_in_words(const GateReport *report, Words *words)
{
	say_what(report, words->what, sizeof words->what);
	say_detail(report, words->detail, sizeof words->detail);
	say_hint(report, words->hint, sizeof words->hint);
}

/* ── Notices ──────────────────────────────────────────────────────────────── */

/* Whether the interval has passed since the last time, which is now if so. */
static bool
is_due(uint64 *last_ns, int interval_ms)
{
	uint64		now_ns = gate_now_ns();

	if (*last_ns != 0 && now_ns - *last_ns < (uint64) interval_ms * 1000000)
		return false;
	*last_ns = now_ns;
	return true;
}

void
gate_notice(const GateReport *report)
{
	static uint64 noticed_ns[NOTICE_SLOTS];
	Words		words;

	if (!is_due(&noticed_ns[report->budget_key % NOTICE_SLOTS], gate_notice_interval_ms))
		return;
	put_in_words(report, &words);
	ereport(NOTICE, errcode(ERRCODE_WARNING),
			errmsg(PREFIX "budget \"%s\": %s%s", report->budget,
				   report->near_limit ? "warning threshold of the " : "", words.what),
			errdetail("%s", words.detail), errhint("%s", words.hint));
}

/* ── Refusals ─────────────────────────────────────────────────────────────── */

/* Whether this one is written to the log; if so, `left_out` says how many before it were not. */
static bool
may_log(uint64 budget_key, uint64 *left_out)
{
	uint32		slot = budget_key % GATE_LOG_SLOTS;
	uint64		now_ns = gate_now_ns();
	uint64_t	last = atomic_load(&gate_shared->logged_ns[slot]);

	if ((last != 0 && now_ns - last < (uint64) gate_log_interval_ms * 1000000)
		|| !atomic_compare_exchange_strong(&gate_shared->logged_ns[slot], &last, now_ns))
	{
		atomic_fetch_add(&gate_shared->unlogged[slot], 1);
		return false;
	}
	*left_out = atomic_exchange(&gate_shared->unlogged[slot], 0);
	return true;
}

static void
on_log(ErrorData *edata)
{
	if (leave_out_of_log && edata->elevel == ERROR
		&& edata->sqlerrcode == ERRCODE_INSUFFICIENT_RESOURCES)
		edata->output_to_server = false;
	leave_out_of_log = false;
	if (before_log != NULL)
		before_log(edata);
}

void
gate_report_hooks(void)
{
	before_log = emit_log_hook;
	emit_log_hook = on_log;
}

void
gate_refuse(const GateReport *report)
{
	Words		words;
	uint64		left_out = 0;

	put_in_words(report, &words);
	leave_out_of_log = !may_log(report->budget_key, &left_out);
	ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			errmsg(PREFIX "budget \"%s\": %s", report->budget, words.what),
			errdetail("%s", words.detail), errhint("%s", words.hint),
			left_out == 0 ? 0
			: errdetail_log("%s (" UINT64_FORMAT " refusals before this one were not logged)",
							words.detail, left_out));
	pg_unreachable();
}
