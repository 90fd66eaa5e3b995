/*
 * report.c: what is said of a decision, to the client and in the server's log.
 *
 * A client always gets the error of a block. Its log line, and a warning's notice, cost more than many
 * a statement, so both are rationed by budget; the counters are exact all the same.
 */
#include "pg_headgate.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"

#define NOTICE_SLOTS 64
static emit_log_hook_type before_log = NULL;
static bool leave_out_of_log = false;

typedef struct Words
{
	char		message[240];
	char		detail[400];
	char		hint[480];
} Words;

/* ── Words ────────────────────────────────────────────────────────────────── */

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

static void
put_in_words(const GateReport *report, Words *words)
{
	size_t		length;

	if (report->by_rule)
	{
		hg_say_client(report->client, "rule", "rule", report->reason, report->ratio,
					  report->retry_ms, words->message, sizeof words->message, words->detail,
					  sizeof words->detail);
		if (report->retry_ms > 0)
			snprintf(words->hint, sizeof words->hint, "Retry in " UINT64_FORMAT " ms.",
					 report->retry_ms);
		else
			strlcpy(words->hint, "Retry later, or ask who set this rule.", sizeof words->hint);
		return;
	}
	hg_say_message(&report->said, words->message, sizeof words->message);
	hg_say_detail(&report->said, words->detail, sizeof words->detail);
	hg_say_hint(&report->said, words->hint, sizeof words->hint);
	length = strlen(words->hint);
	if (report->unanalyzed[0] != '\0')
		snprintf(words->hint + length, sizeof words->hint - length,
				 " The estimate is a guess: run ANALYZE %s.", report->unanalyzed);
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

	if (!is_due(&noticed_ns[report->said.budget_key % NOTICE_SLOTS], gate_notice_interval_ms))
		return;
	put_in_words(report, &words);
	ereport(NOTICE, errcode(ERRCODE_WARNING),
			errmsg_internal("%s", words.message),
			errdetail("%s", words.detail), errhint("%s", words.hint));
}

/* ── Blocks ─────────────────────────────────────────────────────────────── */

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
gate_block(const GateReport *report)
{
	Words		words;
	uint64		left_out = 0;

	put_in_words(report, &words);
	leave_out_of_log = !may_log(report->said.budget_key, &left_out);
	ereport(ERROR, errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			errmsg_internal("%s", words.message),
			errdetail("%s", words.detail), errhint("%s", words.hint),
			left_out == 0 ? 0
			: errdetail_log("%s (" UINT64_FORMAT " statements blocked before this one were not logged)",
							words.detail, left_out));
	pg_unreachable();
}
