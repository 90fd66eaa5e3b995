/*
 * gate_trace.c: statements kept for replay (R145), as the extension keeps them
 * (pg_headgate/src/trace.c): drawn in proportion to their cost, by walking along the time that this
 * thread's statements have taken and stopping every so often.
 *
 * A statement's text is gone when it ends, so its tags are noted when it begins.
 */
#include "gate_inside.h"

#define STRIDE_NS 10000000
#define ABORTED 128

/* Whole pairs only: half a value would be another one. */
static uint16_t put_tags(const hg_tags *tags, char *out, size_t room, uint16_t *left_out)
{
    size_t used = 0;

    for (uint32_t i = 0; i < tags->count; i++) {
        const hg_tag *tag = &tags->tags[i];

        if (used + tag->key_length + tag->value_length + 2 > room) {
            ++*left_out;
            continue;
        }
        memcpy(out + used, tags->text + tag->key_offset, tag->key_length);
        used += tag->key_length;
        out[used++] = '\0';
        memcpy(out + used, tags->text + tag->value_offset, tag->value_length);
        used += tag->value_length;
        out[used++] = '\0';
    }
    return (uint16_t) used;
}

/* As they are to be trusted, into the thread's scratch. */
static void read_again(hr_session *session, const hr_statement *one)
{
    hr_thread *thread = session->thread;
    hr_gate_thread *gate = thread->gate;
    const hr_naming *naming = hr_naming_of(thread);
    int64_t until_ms = INT64_MAX;

    if (one->prepared != NULL)
        hr_load_tags(one->prepared, &gate->tags);
    else
        hg_tags_read(one->text, one->length, hr_dialect(thread), &gate->tags);
    if (naming->guarded)
        hg_trust_tags(&gate->signatures, &naming->settings, naming->version, hr_username(session),
                      thread->wall_ms, &gate->tags, &until_ms);
}

void hr_note_tags(hr_session *session, uint32_t slot, const hr_statement *one, bool fresh)
{
    hr_thread *thread = session->thread;
    hr_note *note = &thread->relay->gate->notes[slot];

    note->tags_length = note->tags_left_out = 0;
    note->prepared = NULL;
    if (thread->relay->region->sizes.traces == 0)
        return;
    if (one->prepared != NULL) {
        note->prepared = hr_prepared_share(one->prepared);
        return;
    }
    if (fresh)
        read_again(session, one);
    if (one->has_tags)
        note->tags_length = put_tags(&thread->gate->tags, note->tags, sizeof note->tags,
                                     &note->tags_left_out);
}

void hr_note_drop(hr_session *session, uint32_t slot)
{
    hr_note *note = &session->thread->relay->gate->notes[slot];

    if (note->prepared != NULL)
        hr_prepared_drop(session, note->prepared);
    note->prepared = NULL;
}

static uint8_t append(hg_trace *trace, size_t *used, const char *name)
{
    size_t length = strnlen(name, HR_NAME_BYTES);

    memcpy(trace->text + *used, name, length);
    *used += length;
    return (uint8_t) length;
}

static size_t fill(hr_session *session, hg_trace *trace, uint32_t flags)
{
    size_t used = 0;

    memset(trace, 0, sizeof *trace);
    trace->plan_cost = 1;
    trace->workers = 1;
    trace->flags = (uint8_t) (flags & (HG_IN_TRANSACTION | HG_UTILITY));
    trace->family = session->family;
    memcpy(trace->address, session->address, sizeof trace->address);
    trace->username_length = append(trace, &used, hr_username(session));
    trace->database_length = append(trace, &used, hr_database(session));
    trace->application_length = append(trace, &used, hr_application(session));
    return used;
}

/* Walks past a statement of that cost; 0: it is not drawn, else how many it represents. */
static float drawn(hr_thread *thread, uint64_t cost_ns)
{
    hr_gate_thread *gate = thread->gate;
    uint64_t cost = cost_ns > 0 ? cost_ns : 1;

    gate->until_trace_ns -= cost < INT64_MAX / 2 ? (int64_t) cost : INT64_MAX / 2;
    if (gate->until_trace_ns > 0)
        return 0;
    gate->until_trace_ns %= STRIDE_NS;
    gate->until_trace_ns += STRIDE_NS;
    return cost >= STRIDE_NS ? 1 : (float) STRIDE_NS / (float) cost;
}

void hr_trace_end(hr_session *session, const hr_running *running, const hr_note *note,
                  uint64_t actual_ns, bool aborted)
{
    hr_thread *thread = session->thread;
    float weight;
    hg_trace trace;
    size_t used;

    if (thread->relay->region->sizes.traces == 0 || (running->flags & HR_RUNNING_UNTRACED)
        || (weight = drawn(thread, actual_ns)) == 0)
        return;
    used = fill(session, &trace, running->holding.flags);
    trace.wall_ms = (int64_t) running->wall_ms;
    trace.weight = weight;
    trace.fingerprint = running->fingerprint;
    trace.plan_cost = running->holding.plan_cost > 0 ? running->holding.plan_cost : 1;
    trace.estimate_ns = running->holding.estimate_ns;
    trace.p90_ns = running->holding.p90_ns;
    trace.actual_ns = trace.wall_ns = actual_ns > 0 ? actual_ns : 1;
    trace.flags |= aborted ? ABORTED : 0;
    if (note->prepared != NULL) {
        read_again(session, &(hr_statement){.prepared = note->prepared});
        trace.fingerprint = note->prepared->fingerprint;
        trace.tags_length = put_tags(&thread->gate->tags, trace.text + used,
                                     sizeof trace.text - used, &trace.tags_left_out);
    } else if (note->tags_length <= sizeof trace.text - used) {
        trace.tags_length = note->tags_length;
        trace.tags_left_out = note->tags_left_out;
        memcpy(trace.text + used, note->tags, note->tags_length);
    }
    hg_trace_write(thread->relay->region, &trace);
}

/* One in a while for all blocks since: they cost too little to be drawn by that. */
static float drawn_block(hr_thread *thread)
{
    hr_gate_thread *gate = thread->gate;
    float weight;

    gate->blocks_untraced++;
    if (thread->relay->region->sizes.traces == 0
        || thread->now_ns - gate->block_traced_ns < STRIDE_NS)
        return 0;
    weight = (float) gate->blocks_untraced;
    gate->block_traced_ns = thread->now_ns;
    gate->blocks_untraced = 0;
    return weight;
}

void hr_trace_block(hr_session *session, const hr_statement *one, const hg_report *report)
{
    hr_thread *thread = session->thread;
    float weight = drawn_block(thread);
    hg_trace trace;
    size_t used;

    if (weight == 0)
        return;
    used = fill(session, &trace, (one->inside ? HG_IN_TRANSACTION : 0u) | HG_UTILITY);
    trace.wall_ms = thread->wall_ms;
    trace.weight = weight;
    trace.fingerprint = one->fingerprinted ? one->fingerprint : 0;
    trace.estimate_ns = report->estimate_ns;
    trace.p90_ns = report->p90_ns;
    trace.budget = (uint32_t) report->budget_key;
    trace.verdict = HG_BLOCK;
    trace.limit = report->limit;
    read_again(session, one);
    trace.tags_length = put_tags(&thread->gate->tags, trace.text + used, sizeof trace.text - used,
                                 &trace.tags_left_out);
    hg_trace_write(thread->relay->region, &trace);
}
