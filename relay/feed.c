/*
 * feed.c: bytes into a session's machine, and what the machine wants next.
 *
 *   loop ──hr_fed──► machine->feed ──► hr_flush (emit.c) ──► hr_act ──► … ──► hr_settle
 *
 * hr_settle is the one place that, after each event, compares what is with what should be: which
 * ends are read from, whether a session that is to go can go now, what its end's hang-up means.
 */
#include "engine.h"

#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

/* ── What a machine has not consumed ──────────────────────────────────────── */

void hr_drop_kept(hr_session *session, hr_end end)
{
    hr_buffer_put(session->thread, session->side[end].kept);
    session->side[end].kept = NULL;
}

static uint32_t kept_bytes(const hr_side *side)
{
    return side->kept == NULL ? 0 : side->kept->end - side->kept->start;
}

/* A client's text may be waited for as a whole. */
static uint32_t most_kept(hr_end from)
{
    return from == HR_CLIENT ? HR_TEXT_BUFFER_BYTES : HR_BUFFER_BYTES;
}

/* The large buffer is for what the machine waits for, not for what comes behind it. */
size_t hr_read_most(const hr_session *session, hr_end from)
{
    uint32_t kept = kept_bytes(&session->side[from]);

    if (from == HR_SERVER)
        return hr_room_most(session->thread);
    if (kept < HR_BUFFER_BYTES)
        return HR_BUFFER_BYTES - kept;
    if (kept + HR_BUFFER_BYTES <= HR_TEXT_BUFFER_BYTES)
        return HR_BUFFER_BYTES;
    /* With a full buffer that the machine cannot consume, the next byte ends the session. */
    return kept < HR_TEXT_BUFFER_BYTES ? HR_TEXT_BUFFER_BYTES - kept : 1;
}

/* Behind what is kept already, in a larger buffer if need be. */
static bool keep(hr_session *session, hr_end from, const uint8_t *bytes, size_t length)
{
    hr_side *side = &session->side[from];
    hr_buffer *old = side->kept, *buffer = old;
    uint32_t kept = kept_bytes(side);

    if (length == 0)
        return true;
    if (kept + length > most_kept(from))
        return false;
    if (old == NULL || old->size - old->end < length) {
        if (old != NULL && old->size - kept >= length) {
            memmove(old->bytes, old->bytes + old->start, kept);
        } else {
            buffer = hr_buffer_get(session->thread, kept + length);
            if (buffer == NULL)
                return false;
            if (old != NULL)
                memcpy(buffer->bytes, old->bytes + old->start, kept);
            hr_buffer_put(session->thread, old);
            side->kept = buffer;
        }
        buffer->start = 0;
        buffer->end = kept;
    }
    memcpy(buffer->bytes + buffer->end, bytes, length);
    buffer->end += (uint32_t) length;
    return true;
}

/* ── Feeding ──────────────────────────────────────────────────────────────── */

/* Whether what comes from `from` has to lie until something else has happened. While an end shakes
 * hands nothing can be sent to it, so nothing is read from the other one. */
static bool waits(const hr_session *session, hr_end from)
{
    const hr_side *client = &session->side[HR_CLIENT], *server = &session->side[HR_SERVER];

    if (client->shaking || client->tls_wanted || server->shaking || server->tls_wanted)
        return true;
    return from == HR_CLIENT && (session->held || session->later || server->connecting);
}

static void lose_memory(hr_session *session)
{
    session->thread->engine->out_of_buffers = false;
    hr_lose(session, HR_LOST_MEMORY, NULL);
}

/* Not `length` more of it: no buffer is left, or none is that large. */
static void cannot_keep(hr_session *session, hr_end from, size_t length)
{
    char *fault = session->thread->engine->fault;

    if (kept_bytes(&session->side[from]) + length <= most_kept(from)) {
        lose_memory(session);
        return;
    }
    snprintf(
        fault, sizeof session->thread->engine->fault,
        "the %s has sent more than %u bytes that had to wait, which is the most there is for one session",
        from == HR_CLIENT ? "client" : "server", most_kept(from));
    hr_lose(session, HR_LOST_MEMORY, fault);
}

/* True: the session goes on. Who has become another user counts as that one. */
bool hr_after_machine(hr_session *session)
{
    session->own.told = session->thread->engine->out[HR_CLIENT].bytes > 0;
    if (session->established && session->own.names_seen != session->gate.names
        && !hr_user_proved(session)) {
        hr_lose(session, HR_LOST_SESSIONS, session->fault);
        return false;
    }
    hr_flush(session);
    if (session->thread->engine->out_of_buffers) {
        lose_memory(session);
        return false;
    }
    return true;
}

static void feed(hr_session *session, hr_end from, const uint8_t *bytes, size_t length)
{
    hr_next next = HR_MORE;
    size_t used = session->machine->feed(session, from, bytes, length, &next);

    if (!hr_after_machine(session))
        return;
    if (used < length && !keep(session, from, bytes + used, length - used)) {
        cannot_keep(session, from, length - used);
        return;
    }
    if (next != HR_MORE)
        hr_act(session, from, next);
}

void hr_feed_kept(hr_session *session, hr_end from)
{
    hr_buffer *kept = session->side[from].kept;
    hr_next next = HR_MORE;

    if (kept == NULL || session->closing || waits(session, from))
        return;
    kept->start += (uint32_t) session->machine->feed(session, from, kept->bytes + kept->start,
                                                     kept->end - kept->start, &next);
    if (!hr_after_machine(session))
        return;
    if (kept->start == kept->end)
        hr_drop_kept(session, from);
    if (next != HR_MORE)
        hr_act(session, from, next);
}

/* A little that was kept goes in front of what has come, where there is room for it: then a large
 * read stays one. More than a little is appended to, so that no byte is moved again and again. */
static bool feed_behind_kept(hr_session *session, hr_end from, uint8_t *bytes, size_t length,
                             size_t headroom)
{
    uint32_t kept = kept_bytes(&session->side[from]);

    if (kept <= headroom) {
        bytes -= kept;
        memcpy(bytes, session->side[from].kept->bytes + session->side[from].kept->start, kept);
        hr_drop_kept(session, from);
        feed(session, from, bytes, length + kept);
        return true;
    }
    if (!keep(session, from, bytes, length))
        return false;
    hr_feed_kept(session, from);
    return true;
}

static void feed_came(hr_session *session, hr_end from, uint8_t *bytes, size_t length,
                      size_t headroom)
{
    bool kept = true;

    if (waits(session, from))
        kept = keep(session, from, bytes, length);
    else if (session->side[from].kept != NULL)
        kept = feed_behind_kept(session, from, bytes, length, headroom);
    else
        feed(session, from, bytes, length);
    if (!kept)
        cannot_keep(session, from, length);
}

void hr_fed(hr_session *session, hr_end from, uint8_t *bytes, size_t length, size_t headroom)
{
    hr_thread_counts *counts = session->thread->counts;

    hg_add_own(from == HR_CLIENT ? &counts->client_bytes : &counts->server_bytes, length);
    if (session->closing)
        return;
    if (from == HR_CLIENT) {
        session->own.last_ns = session->thread->now_ns;
        if (session->own.leaving && !session->own.patient && session->machine->at_rest(session)) {
            hr_lose(session, session->own.leave_why, NULL);
            return;
        }
    }
    feed_came(session, from, bytes, length, headroom);
    if (from == HR_SERVER && session->later && !session->closing) {
        session->later = false;
        session->own.orphan_by_ns = 0;
        hr_feed_kept(session, HR_CLIENT);
    }
}

void hr_look_again(hr_session *session)
{
    if (!session->held || session->closing)
        return;
    session->held = false;
    hr_feed_kept(session, HR_CLIENT);
}

/* ── What the machine wants next ──────────────────────────────────────────── */

void hr_act(hr_session *session, hr_end from, hr_next next)
{
    switch (next) {
    case HR_MORE:
        break;
    case HR_HELD:
        hg_add_own(&session->thread->counts->held, 1);
        session->held = true;
        hr_timer(session, hr_gate_due(session));
        break;
    case HR_LATER:
        session->later = true;
        break;
    case HR_CONNECT:
        hr_connect(session);
        break;
    case HR_CLIENT_TLS:
    case HR_CLIENT_TLS_DIRECT:
        hr_secure(session, HR_CLIENT);
        break;
    case HR_SERVER_TLS:
        hr_secure(session, HR_SERVER);
        break;
    case HR_CROWDED:
        hr_lose(session, HR_LOST_SESSIONS, session->fault);
        break;
    case HR_CLOSE:
        hr_begin_close(session);
        break;
    }
    (void) from;
}

/* ── Hang-ups ─────────────────────────────────────────────────────────────── */

void hr_ended(hr_session *session, hr_end end)
{
    session->side[end].ended = true;
}

void hr_side_failed(hr_session *session, hr_end end)
{
    session->side[end].failed = session->side[end].ended = true;
}

/* A server that takes no more may have said why: that is read first. */
void hr_send_failed(hr_session *session, hr_end end)
{
    hr_forget_pieces(session, end);
    hr_drop_unsent(session, end);
    session->side[end].failed = true;
    if (end == HR_CLIENT)
        session->side[end].ended = true;
}

/* The client sends no more. What it has sent still counts, as it would at the server: an answer under
 * way may still be read by one that has shut down its writing only. So the server gets the same,
 * and the session ends with what the server still has to say. But a statement that is held never
 * gets there: its client may well be gone, and nothing of it has begun. What waits for its own turn
 * gets there as long as the server goes on answering. */
static void client_ended(hr_session *session)
{
    hr_side *server = &session->side[HR_SERVER];

    if (session->held || server->fd < 0 || server->connecting) {
        hr_lose(session, HR_LOST_CLIENT, NULL);
        return;
    }
    if (session->later && session->own.orphan_by_ns == 0) {
        session->own.orphan_by_ns = session->thread->now_ns + HR_ORPHAN_NS;
        hr_timer(session, session->own.orphan_by_ns);
    }
    if (session->later || server->unsent_bytes > 0)
        return;
    if (session->machine->at_rest(session) || !session->established) {
        hr_lose(session, HR_LOST_CLIENT, NULL);
        return;
    }
    if (!session->own.server_shut) {
        session->own.server_shut = true;
        shutdown(server->fd, SHUT_WR);
    }
}

/* What waits for its turn will not get one: the server is silent, or the client will not read it. */
static void drop_later(hr_session *session)
{
    session->later = false;
    session->own.orphan_by_ns = 0;
    hr_drop_kept(session, HR_CLIENT);
}

void hr_orphan_due(hr_session *session)
{
    drop_later(session);
    client_ended(session);
}

/* It is gone for good. The server may be computing still, and sees it only by a write that fails: so
 * the session stays (and is counted as running) until the server says something. */
static void client_failed(hr_session *session)
{
    hr_side *client = &session->side[HR_CLIENT];

    if (client->fd >= 0) {
        hr_drop_unsent(session, HR_CLIENT);
        hr_side_remove(session, HR_CLIENT);
        drop_later(session);
        client_ended(session);
    } else if (session->own.server_shut) {
        hr_lose(session, HR_LOST_CLIENT, NULL);
    } else {
        client_ended(session);
    }
}

static bool look_at_ends(hr_session *session)
{
    hr_side *client = &session->side[HR_CLIENT], *server = &session->side[HR_SERVER];

    if (server->ended && server->shaking)
        hr_lose(session, HR_LOST_TLS,
                "TLS with the server: it has closed the connection meanwhile");
    else if (server->ended && server->fd >= 0)
        hr_lose(session, client->ended ? HR_LOST_CLIENT : HR_LOST_SERVER, NULL);
    else if (client->failed)
        client_failed(session);
    else if (client->ended)
        client_ended(session);
    return !session->closing;
}

/* ── After each event ─────────────────────────────────────────────────────── */

static void now_established(hr_session *session)
{
    session->own.counted = true;
    hr_login_over(session);
    hg_add_own(&session->thread->counts->established, 1);
    hr_register(session);
    hr_timer_anew(session);
}

static void set_reading(hr_session *session, hr_end end, bool wanted, bool blocked)
{
    hr_side *side = &session->side[end];

    if (blocked != (side->paused_since_ns != 0)) {
        if (!blocked && end == HR_SERVER)
            session->paused_ns += session->thread->now_ns - side->paused_since_ns;
        side->paused_since_ns = blocked ? session->thread->now_ns : 0;
    }
    if (wanted != side->reading)
        hr_side_reading(session, end, wanted);
}

static bool is_full(const hr_session *session, hr_end end)
{
    uint64_t unsent = session->side[end].unsent_bytes;

    return unsent > 0 && unsent > hr_unsent_most(session->thread);
}

/* It has not taken yet what its socket has: the next it might not take either. */
static bool client_lags(const hr_session *session)
{
    int waiting = 0, fd = session->side[HR_CLIENT].fd;

    return fd >= 0 && ioctl(fd, SIOCOUTQ, &waiting) == 0 && waiting > 0;
}

/* What the server says could not be kept if the client did not take it: until it is sure to, the server
 * is not read. To sign in takes little, and has its deadline. */
static bool is_scarce(hr_session *session)
{
    bool scarce = session->established && hr_buffers_scarce(session->thread)
                  && client_lags(session);

    session->own.scarce_by_ns = scarce ? session->thread->now_ns + HR_SCARCE_NS : 0;
    if (scarce)
        hr_timer(session, session->own.scarce_by_ns);
    return scarce;
}

/* A client that takes nothing is not read either: else its blocks would pile up. A server is
 * always read, unless its answer cannot be passed on: it may not be able to take more before. */
static void regulate(hr_session *session)
{
    hr_side *client = &session->side[HR_CLIENT], *server = &session->side[HR_SERVER];
    bool client_full = client->unsent_bytes > HR_MAX_UNSENT;
    bool server_full = is_full(session, HR_SERVER);
    bool unheard = is_full(session, HR_CLIENT) || is_scarce(session);

    if (client->fd >= 0)
        set_reading(session, HR_CLIENT,
                    !client->ended && !client_full && !server_full && !waits(session, HR_CLIENT),
                    client_full || server_full);
    if (server->fd >= 0 && !server->connecting)
        set_reading(session, HR_SERVER, !server->ended && !unheard && !waits(session, HR_SERVER),
                    unheard);
}

static void count_rest(hr_session *session, bool resting)
{
    if (resting == session->own.resting)
        return;
    session->own.resting = resting;
    hg_add_own(&session->thread->counts->idle_sessions, resting ? 1 : UINT64_MAX);
}

void hr_settle(hr_session *session)
{
    bool resting;

    if (!session->own.in_use)
        return;
    if (session->closing) {
        hr_close_further(session);
        return;
    }
    if ((session->side[HR_CLIENT].ended || session->side[HR_SERVER].ended)
        && !look_at_ends(session))
        return;
    if (session->established && !session->own.counted)
        now_established(session);
    resting = session->own.counted && session->machine->at_rest(session);
    count_rest(session, resting);
    if (session->own.leaving && !session->own.patient && (resting || !session->established)) {
        hr_lose(session, session->own.leave_why, NULL);
        return;
    }
    regulate(session);
}

/* All that was unsent to `end` is sent. */
void hr_sent(hr_session *session, hr_end end)
{
    if (session->side[end].tls_wanted && !session->closing)
        hr_secure(session, end);
}
