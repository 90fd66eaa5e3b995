/*
 * trace.c: statements kept for replay (R145), read out of band.
 *
 * Drawn in proportion to their cost, by walking along the CPU time that this backend has seen and
 * stopping every so often: expensive statements are all kept, cheap ones now and then, each with how
 * many it represents.
 */
#include "pg_headgate.h"

#include "miscadmin.h"
#include "utils/guc.h"

#define STRIDE_NS 10000000
#define ABORTED 128

static int64 until_next_ns = 0;

/* Walks past a statement of that cost; 0: it is not drawn, else how many it represents. */
static float
drawn(uint64 cost_ns)
{
	if (gate_region->sizes.traces == 0)
		return 0;
	until_next_ns -= (int64) Max(cost_ns, 1);
	if (likely(until_next_ns > 0))
		return 0;
	until_next_ns %= STRIDE_NS;
	until_next_ns += STRIDE_NS;
	return cost_ns >= STRIDE_NS ? 1 : (float) STRIDE_NS / (float) Max(cost_ns, 1);
}

static uint8
append(hg_trace *trace, size_t *used, const char *name)
{
	size_t		length = name == NULL ? 0 : Min(strlen(name), NAMEDATALEN - 1);

	memcpy(trace->text + *used, name, length);
	*used += length;
	return (uint8) length;
}

/* Whole pairs only: half a value would be another one. */
static void
append_tags(hg_trace *trace, size_t used, const GateSlice *slice)
{
	static hg_tags tags;
	size_t		start = used;

	hg_tags_read(slice->text + slice->start, slice->length, HG_POSTGRES, &tags);
	for (uint32 i = 0; i < tags.count; i++)
	{
		const hg_tag *tag = &tags.tags[i];

		if (used + tag->key_length + tag->value_length + 2 > sizeof trace->text)
		{
			trace->tags_left_out++;
			continue;
		}
		memcpy(trace->text + used, tags.text + tag->key_offset, tag->key_length);
		used += tag->key_length;
		trace->text[used++] = '\0';
		memcpy(trace->text + used, tags.text + tag->value_offset, tag->value_length);
		used += tag->value_length;
		trace->text[used++] = '\0';
	}
	trace->tags_length = (uint16) (used - start);
}

static void
fill(hg_trace *trace, const GateStatement *statement, bool text_is_there)
{
	const hg_client *client = gate_client();
	size_t		used = 0;

	memset(trace, 0, sizeof *trace);
	trace->wall_ms = gate_clock_us / 1000;
	trace->query_id = statement->query_id;
	trace->plan_cost = statement->plan_cost;
	trace->workers = (uint16) Min(statement->workers, 65535);
	trace->flags = (uint8) (statement->flags & (HG_IN_TRANSACTION | HG_UTILITY));
	trace->family = client->family;
	memcpy(trace->address, client->address, sizeof trace->address);
	trace->username_length = append(trace, &used, client->username);
	trace->database_length = append(trace, &used, client->database);
	trace->application_length = append(trace, &used, application_name);
	if (!text_is_there)
		return;
	append_tags(trace, used, &statement->slice);
	trace->fingerprint = hg_fingerprint(statement->slice.text + statement->slice.start,
										statement->slice.length, HG_POSTGRES);
}

void
gate_trace_end(const GateRunning *running, uint64 actual_ns, bool aborted)
{
	float		weight = drawn(actual_ns);
	hg_trace	trace;

	if (likely(weight == 0))
		return;
	/* After an error the text may be gone with the rest of the statement's memory. */
	fill(&trace, &running->statement, !aborted);
	trace.weight = weight;
	trace.estimate_ns = running->holding.estimate_ns;
	trace.p90_ns = running->holding.p90_ns;
	trace.actual_ns = Max(actual_ns, 1);
	trace.wall_ns = running->meter.wall_ns;
	trace.flags |= aborted ? ABORTED : 0;
	hg_trace_write(gate_region, &trace);
}

void
gate_trace_free(const QueryDesc *desc, const GateMeter *meter)
{
	float		weight = drawn(meter->cpu_ns);
	GateStatement statement;
	hg_trace	trace;

	if (likely(weight == 0))
		return;
	gate_identify();
	if (gate_bypassed())
		return;
	statement = gate_planned(desc);
	fill(&trace, &statement, true);
	trace.weight = weight;
	trace.actual_ns = Max(meter->cpu_ns, 1);
	trace.wall_ns = meter->wall_ns;
	hg_trace_write(gate_region, &trace);
}

/* One in a while for all blocks since: they cost too little to be drawn by that. */
static float
drawn_block(void)
{
	static uint64 last_ns = 0;
	static uint32 blocked = 0;
	uint64		now_ns = gate_now_ns();
	float		weight;

	blocked++;
	if (gate_region->sizes.traces == 0 || now_ns - last_ns < STRIDE_NS)
		return 0;
	weight = (float) blocked;
	last_ns = now_ns;
	blocked = 0;
	return weight;
}

void
gate_trace_block(const GateStatement *statement, const GateReport *report)
{
	float		weight = drawn_block();
	hg_trace	trace;

	if (weight == 0)
		return;
	fill(&trace, statement, true);
	trace.weight = weight;
	trace.estimate_ns = report->said.estimate_ns;
	trace.p90_ns = report->said.p90_ns;
	trace.budget = (uint32) report->said.budget_key;
	trace.verdict = HG_BLOCK;
	trace.limit = report->said.limit;
	hg_trace_write(gate_region, &trace);
}
