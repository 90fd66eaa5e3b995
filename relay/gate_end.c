/*
 * gate_end.c: what ran has ended. What it cost is the time it took at the server, less the time in
 * which its client did not take the answer; who waits for what it held is woken.
 *
 *   one alone ──► its time
 *   string, pipeline ──► over, over, over ──► measured together ──► a share each, and nothing learnt
 *
 * The statements of a string lie one behind the other (hr_running.next). They run one after the
 * other, so of them one has its places at a time: hr_step hands on.
 *
 * But when each of them ended is not to be seen. Postgres sends what it has to say when its buffer is
 * full, or at the end of all: the end of a short statement arrives along with the rows of the long one
 * behind it. To take the time between two ends for that of the second would let `SELECT 1` pay for
 * everything that is behind it. So what has ended waits, without its places, until it is known that
 * the time up to now is its own: the server's answer stops right behind its end (hr_measured), it has
 * been idle in between, or nothing of the session runs any more. Those that come to it together share
 * the time by their estimates; what has none counts as an equal part. A share teaches the model nothing:
 * it would poison one pattern with another's cost. What is free (BEGIN, SET, COMMIT) never takes time:
 * it is that of the next one behind it.
 *
 * MySQL and MariaDB send each end at once, so there a later one has had the time since.
 */
#include "gate_inside.h"

#define SKIP_ONE (1u << 16)

static hr_running *running_at(const hr_session *session, uint32_t slot)
{
    return &hr_runnings_in(session->thread->relay->state)[slot];
}

uint32_t hr_slot_take(hr_thread *thread)
{
    hr_gate_thread *gate = thread->gate;
    hr_state *state = thread->relay->state;

    while (gate->spares > 0)
        if (hr_running_take_at(state, thread->pid, gate->spare[--gate->spares]))
            return gate->spare[gate->spares];
    return hr_running_take(state, thread->pid, &gate->cursor);
}

void hr_slot_free(hr_session *session, uint32_t slot)
{
    hr_gate_thread *gate = session->thread->gate;

    hr_note_drop(session, slot);
    hr_running_free(session->thread->relay->state, slot);
    if (gate->spares < HR_SPARE_SLOTS)
        gate->spare[gate->spares++] = slot;
}

/* ── One that has ended ───────────────────────────────────────────────────── */

/* The time at the server up to `ended_ns`, of which none may be counted twice. */
static uint64_t took_ns(hr_session *session, uint64_t started_ns, uint64_t ended_ns)
{
    uint64_t took = ended_ns > started_ns ? ended_ns - started_ns : 0;
    uint64_t paused = session->paused_ns > session->gate.paused_ns
                          ? session->paused_ns - session->gate.paused_ns
                          : 0;

    session->gate.paused_ns = session->paused_ns;
    session->gate.ended_ns = ended_ns;
    return took > paused ? took - paused : 0;
}

static void wake_for(hr_session *session, const hr_running *running, uint32_t held)
{
    for (uint32_t i = 0; i < held; i++)
        hr_queue_wake(session->thread->relay->gate->queues, running->holding.at[i].bucket);
}

static void settle(hr_session *session, uint32_t slot, uint64_t took, bool aborted)
{
    hr_thread *thread = session->thread;
    hr_running *running = running_at(session, slot);
    hr_client *client = hr_client_at(thread, running->client);
    uint32_t held = running->holding.count;

    hr_trace_end(session, running, &thread->relay->gate->notes[slot], took, aborted);
    running->holding.wall_ns = took;
    hg_settle(thread->relay->region, &running->holding, took, aborted, thread->now_ns);
    running->flags |= HR_RUNNING_ENDED;
    hg_add(&client->wall_ns, took);
    if (aborted)
        hg_add(&client->errors, 1);
    wake_for(session, running, held);
}

/* Never ran: as if it had not been asked for. */
static void give_back(hr_session *session, uint32_t slot)
{
    hr_running *running = running_at(session, slot);
    uint32_t held = running->holding.count;

    hg_settle(session->thread->relay->region, &running->holding, 0, true, session->thread->now_ns);
    running->flags |= HR_RUNNING_ENDED;
    wake_for(session, running, held);
}

/* ── Those that have ended, together ──────────────────────────────────────── */

static hr_note *note_of(const hr_session *session, uint32_t slot)
{
    return &session->thread->relay->gate->notes[slot];
}

static uint32_t count_over(const hr_session *session)
{
    uint32_t count = 0;

    for (uint32_t at = session->gate.over; at != 0; at = note_of(session, at - 1)->over_next)
        count++;
    return count;
}

/* What it would have taken, as far as anybody knows: an equal part where nobody does. */
static double weight_of(const hr_running *running, double equal_ns)
{
    const hg_holding *holding = &running->holding;
    /* 1: what the core says of a pattern that it has not seen. */
    bool known = holding->workers > 0 && holding->pattern != 0 && holding->estimate_ns > 1;

    return known ? (double) holding->estimate_ns : equal_ns + 1;
}

static double weigh_all(const hr_session *session, double equal_ns)
{
    double all = 0;

    for (uint32_t at = session->gate.over; at != 0; at = note_of(session, at - 1)->over_next)
        all += weight_of(running_at(session, at - 1), equal_ns);
    return all;
}

static void settle_share(hr_session *session, uint32_t slot, uint64_t took, bool shared)
{
    hr_running *running = running_at(session, slot);

    if (shared)
        running->holding.flags |= HG_COST_GIVEN; /* nothing is learnt from it */
    settle(session, slot, took, (running->flags & HR_RUNNING_FAILED) != 0);
    if (running->flags & HR_RUNNING_LOOSE)
        hr_slot_free(session, slot);
}

static void measure(hr_session *session)
{
    hr_gate_session *gate = &session->gate;
    uint32_t count = count_over(session);
    uint64_t left = took_ns(session, gate->over_since_ns, gate->ended_ns);
    double equal_ns = (double) left / (count > 0 ? count : 1);
    double weights = weigh_all(session, equal_ns);
    bool shared = count > 1;

    while (gate->over != 0) {
        uint32_t slot = gate->over - 1;
        double weight = weight_of(running_at(session, slot), equal_ns);
        uint64_t share;

        gate->over = note_of(session, slot)->over_next;
        share = gate->over == 0 ? left
                                : hr_least(left, (uint64_t) ((double) left * weight / weights));
        left -= share;
        weights -= weight;
        settle_share(session, slot, share, shared);
    }
}

/* Whether what has ended before cannot have run in the time of this one. */
static bool is_apart(const hr_session *session, uint64_t started_ns)
{
    return started_ns > session->gate.ended_ns
           || (hr_dialect(session->thread) == HG_MYSQL
               && session->thread->now_ns > session->gate.ended_ns);
}

/* Its places are free from here on; its time is reported later. */
static void end_one(hr_session *session, uint32_t slot, uint64_t started_ns, bool failed)
{
    hr_gate_session *gate = &session->gate;
    hr_running *running = running_at(session, slot);

    if (gate->over != 0 && is_apart(session, started_ns))
        measure(session);
    if (gate->over == 0)
        gate->over_since_ns = started_ns;
    note_of(session, slot)->over_next = gate->over;
    gate->over = slot + 1;
    gate->ended_ns = session->thread->now_ns;
    running->flags |= HR_RUNNING_OVER | (failed ? HR_RUNNING_FAILED : 0u);
    if (running->holding.workers > 0) {
        hg_pause(session->thread->relay->region, &running->holding);
        wake_for(session, running, running->holding.count);
    }
}

void hr_measured(hr_session *session, bool apart)
{
    if (apart && session->gate.over != 0)
        measure(session);
}

/* ── Strings, and tickets ─────────────────────────────────────────────────── */

static uint32_t first_left(const hr_session *session, hr_ticket ticket)
{
    while (ticket != 0
           && (running_at(session, ticket - 1)->flags & (HR_RUNNING_ENDED | HR_RUNNING_OVER)))
        ticket = running_at(session, ticket - 1)->next;
    return ticket;
}

void hr_step(hr_session *session, hr_ticket ticket, bool failed)
{
    hr_ticket left = first_left(session, ticket);
    hr_running *running;
    uint64_t started_ns;

    if (left == 0)
        return;
    running = running_at(session, left - 1);
    if (running->flags >= SKIP_ONE) {
        running->flags -= SKIP_ONE;
        return;
    }
    if (running->next == 0 && !failed)
        return; /* ends with all of it: behind what was looked at, more may run */
    started_ns = running->started_ns > session->gate.ended_ns ? running->started_ns
                                                              : session->gate.ended_ns;
    end_one(session, left - 1, started_ns, failed);
    if (running->next != 0 && !failed)
        hg_resume(session->thread->relay->region, &running_at(session, running->next - 1)->holding);
}

/* All of the ticket's but those whose time is not known yet. */
static void free_all(hr_session *session, hr_ticket ticket)
{
    while (ticket != 0) {
        uint32_t slot = ticket - 1;
        hr_running *running = running_at(session, slot);

        ticket = running->next;
        if (running->flags & HR_RUNNING_STARTED)
            hr_count_down(&hr_client_at(session->thread, running->client)->running);
        running->flags &= ~(uint32_t) HR_RUNNING_STARTED;
        if ((running->flags & (HR_RUNNING_OVER | HR_RUNNING_ENDED)) == HR_RUNNING_OVER) {
            running->flags |= HR_RUNNING_LOOSE;
            continue;
        }
        if ((running->flags & HR_RUNNING_ENDED) == 0)
            give_back(session, slot);
        hr_slot_free(session, slot);
    }
    session->gate.tickets -= session->gate.tickets > 0;
    if (session->gate.tickets == 0 && session->gate.over != 0)
        measure(session);
}

void hr_done(hr_session *session, hr_ticket ticket, uint64_t started_ns, bool failed)
{
    hr_gate_session *gate = &session->gate;
    uint64_t now_ns = session->thread->now_ns;
    hr_ticket left = first_left(session, ticket);

    /* Behind those that hr_step has reported, the time begins where the last of them ended. */
    if (left != ticket && gate->ended_ns > started_ns)
        started_ns = gate->ended_ns;
    if (left != 0 && gate->over == 0 && gate->tickets <= 1)
        settle(session, left - 1, took_ns(session, started_ns, now_ns), failed);
    else if (left != 0)
        end_one(session, left - 1, started_ns, failed);
    free_all(session, ticket);
}

void hr_bound(hr_session *session, hr_ticket ticket)
{
    for (; ticket != 0; ticket = running_at(session, ticket - 1)->next) {
        hr_running *running = running_at(session, ticket - 1);

        if (running->holding.workers == 0)
            continue;
        running->holding.flags |= HG_COST_GIVEN;
        hg_pause(session->thread->relay->region, &running->holding);
        wake_for(session, running, running->holding.count);
    }
}

void hr_planned(hr_session *session, hr_ticket ticket, uint64_t started_ns)
{
    hr_done(session, ticket, started_ns, false);
}

void hr_unused(hr_session *session, hr_ticket ticket)
{
    free_all(session, ticket);
}
