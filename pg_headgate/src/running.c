/*
 * running.c: the statements of this backend that hold something, until they are settled.
 *
 * Usually one, for the time of one ExecutorRun. Cursors are more: between two fetches they hold
 * their charge, but no places. Whatever may outlive ExecutorRun has a grip in the executor's
 * memory, whose end is the end of the statement even where ExecutorEnd is never called.
 */
#include "pg_headgate.h"

#include "utils/memutils.h"

GateRunning *gate_running = NULL;
static GateRunning *spares = NULL;

GateRunning *
gate_find(const QueryDesc *desc)
{
	GateRunning *running = gate_running;

	while (running != NULL && running->desc != desc)
		running = running->next;
	return running;
}

GateRunning *
gate_spare(void)
{
	if (unlikely(spares == NULL))
		spares = MemoryContextAllocZero(TopMemoryContext, sizeof(GateRunning));
	return spares;
}

void
gate_begin(GateRunning *spare, QueryDesc *desc, const GateStatement *statement)
{
	Assert(spare == spares);
	spares = spare->next;
	spare->desc = desc;
	spare->grip = NULL;
	spare->taken = spare->placed = false;
	spare->statement = *statement;
	memset(&spare->meter, 0, sizeof spare->meter);
	spare->next = gate_running;
	gate_running = spare;
}

static void
forget(GateRunning *running)
{
	GateRunning **link = &gate_running;

	while (*link != running)
		link = &(*link)->next;
	*link = running->next;
	if (running->grip != NULL)
		running->grip->running = NULL;
	running->desc = NULL;
	running->next = spares;
	spares = running;
}

static void
memory_gone(void *grip)
{
	GateRunning *running = ((GateGrip *) grip)->running;

	if (running != NULL)
		gate_settle(running, true);
}

static void
take_hold(GateRunning *running, GateGrip *grip, MemoryContext context)
{
	grip->running = running;
	grip->callback.func = memory_gone;
	grip->callback.arg = grip;
	running->grip = grip;
	MemoryContextRegisterResetCallback(context, &grip->callback);
}

void
gate_hold_on(GateRunning *running, MemoryContext context)
{
	if (running->grip == NULL)
		take_hold(running, MemoryContextAllocZero(context, sizeof(GateGrip)), context);
}

/* What may fail comes first: an entry without a grip would outlive its desc. */
void
gate_begin_held(GateRunning *spare, QueryDesc *desc, const GateStatement *statement, MemoryContext context)
{
	GateGrip   *grip = MemoryContextAllocZero(context, sizeof(GateGrip));

	gate_begin(spare, desc, statement);
	take_hold(spare, grip, context);
}

void
gate_taken(GateRunning *running, uint64 now_ns, uint64 expected_ns)
{
	running->taken = running->placed = true;
	gate_expect_workers();
	gate_meter_start(&running->meter, now_ns, expected_ns);
}

void
gate_pause(GateRunning *running)
{
	gate_meter_stop(&running->meter, gate_now_ns());
	if (running->placed)
		hg_pause(gate_region, &running->holding);
	running->placed = false;
}

void
gate_resume(GateRunning *running)
{
	if (!running->placed)
		hg_resume(gate_region, &running->holding);
	running->placed = true;
	gate_meter_start(&running->meter, gate_now_ns(), running->meter.wall_ns);
}

void
gate_settle(GateRunning *running, bool aborted)
{
	uint64		now_ns = gate_now_ns();
	uint64		actual_ns;

	if (running->taken)
	{
		gate_meter_stop(&running->meter, now_ns);
		actual_ns = gate_charged(&running->meter) + gate_take_workers();
		running->holding.wall_ns = running->meter.wall_ns;
		hg_settle(gate_region, &running->holding, actual_ns, aborted, now_ns);
		gate_trace_end(running, actual_ns, aborted);
	}
	forget(running);
}

/* After an error. Its places are free at once; its workers' time is known when they have gone,
 * which they have before its memory goes. */
void
gate_abandon(GateRunning *running)
{
	if (running->grip == NULL)
		gate_settle(running, true);
	else if (running->taken)
		gate_pause(running);
}

void
gate_abandon_all(void)
{
	while (gate_running != NULL)
		gate_settle(gate_running, true);
}
