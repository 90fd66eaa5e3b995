/*
 * closing.c: how a session ends.   hr_lose, HR_CLOSE ──► closing ──► both ends closed ──► finished
 *
 * What was emitted is sent as long as the ends go on taking it: with no progress in HR_LINGER_NS, or
 * after HR_LONGEST_LINGER_NS, the rest is dropped. A client that was sent an error
 * something is then read from, and what it says thrown away, until it closes: were its last words
 * unread when we close, the kernel would reset the connection, and with it what it was sent.
 */
#include "engine.h"

#include <string.h>
#include <time.h>

/* What an operator wants to know; the rest is as it should be. */
static bool is_failure(const hr_session *session, hr_lost why)
{
    switch (why) {
    case HR_LOST_CONNECT:
    case HR_LOST_STARTUP:
    case HR_LOST_MEMORY:
    case HR_LOST_SESSIONS:
    case HR_LOST_TLS:
    case HR_LOST_NO_TARGET:
        return true;
    case HR_LOST_SERVER:
        return session->established;
    default:
        return false;
    }
}

static uint16_t add_text(hr_event *event, size_t *used, const char *text)
{
    size_t length = text == NULL ? 0 : strnlen(text, 512);

    memcpy(event->text + *used, text == NULL ? "" : text, length);
    *used += length;
    return (uint16_t) length;
}

static void tell(hr_session *session, hr_lost why)
{
    static const hr_event nothing;
    static _Thread_local hr_event event; /* 8 KiB: too much for a stack that may be deep */
    const char *names = session->gate.names;
    char words[512];
    size_t used = 0;

    memcpy(&event, &nothing, offsetof(hr_event, text));
    event.kind = HR_EVENT_SESSION;
    event.number = (uint32_t) why;
    event.took_ns = session->thread->now_ns - session->since_ns;
    event.wall_ms = session->thread->wall_ms;
    event.user_length = add_text(&event, &used, names);
    event.database_length = add_text(&event, &used,
                                     names == NULL ? NULL : names + session->gate.database_at);
    hr_words_of_loss(session, why, words, sizeof words);
    event.reason_length = add_text(&event, &used, words);
    hr_tell(session->thread, &event);
}

static void count_loss(hr_session *session, hr_lost why)
{
    hr_thread_counts *counts = session->thread->counts;

    if (why == HR_LOST_SESSIONS)
        hg_add_own(&counts->rejected_sessions, 1);
    else if (!session->established && why != HR_LOST_DRAIN && !session->own.wished)
        hg_add_own(&counts->failed_startups, 1);
}

void hr_lose(hr_session *session, hr_lost why, const char *fault)
{
    if (session->closing)
        return;
    session->fault = fault;
    session->idle = session->established && session->statement_since_ns == 0 && !session->held;
    hr_forget_pieces(session, HR_CLIENT);
    hr_forget_pieces(session, HR_SERVER);
    hr_stop_server(session, why);
    session->machine->lost(session, why);
    if (is_failure(session, why))
        tell(session, why);
    count_loss(session, why);
    session->own.told = session->thread->engine->out[HR_CLIENT].bytes > 0;
    hr_flush(session);
    hr_begin_close(session);
}

void hr_session_end(hr_session *session, hr_lost why)
{
    if (!session->own.in_use)
        return;
    hr_lose(session, why, NULL);
    hr_settle(session);
}

/* ── Closing ──────────────────────────────────────────────────────────────── */

static void drop_end(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    hr_drop_unsent(session, end);
    hr_drop_kept(session, end);
    if (side->fd >= 0)
        hr_side_remove(session, end);
}

static void close_server(hr_session *session)
{
    hr_side *server = &session->side[HR_SERVER];

    if (hr_stop_waits(session))
        return;
    if (server->fd < 0 || server->unsent_bytes == 0 || server->failed || server->connecting
        || server->shaking)
        drop_end(session, HR_SERVER);
}

static void close_client(hr_session *session)
{
    hr_side *client = &session->side[HR_CLIENT];

    if (client->fd >= 0 && !client->failed && !client->shaking) {
        if (client->unsent_bytes > 0)
            return;
        if (session->own.told && !client->ended) {
            if (client->tls != NULL) {
                hr_tls_end_free(client->tls);
                client->tls = NULL;
            }
            session->own.told = false;
            shutdown(client->fd, SHUT_WR);
            hr_side_reading(session, HR_CLIENT, true);
            return;
        }
        if (client->reading && !client->ended)
            return;
    }
    drop_end(session, HR_CLIENT);
}

void hr_close_further(hr_session *session)
{
    if (!session->own.in_use)
        return;
    close_server(session);
    close_client(session);
    if (session->side[HR_CLIENT].fd < 0 && session->side[HR_SERVER].fd < 0)
        hr_session_finish(session);
}

static uint64_t unsent_of(const hr_session *session)
{
    return session->side[HR_CLIENT].unsent_bytes + session->side[HR_SERVER].unsent_bytes;
}

static void stop_reading(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];

    if (side->fd >= 0)
        hr_side_reading(session, end, false);
}

/* What the server says is thrown away; that it has ended is what we wait for. */
static void read_on(hr_session *session)
{
    hr_side *server = &session->side[HR_SERVER];

    if (!server->reading)
        hr_side_reading(session, HR_SERVER, true);
}

void hr_begin_close(hr_session *session)
{
    if (session->closing)
        return;
    session->closing = true;
    session->later = false;
    if (session->held) {
        session->held = false;
        hr_gate_forget(session);
    }
    session->own.told |= session->side[HR_CLIENT].unsent_bytes > 0;
    session->thread->engine->out_of_buffers = false;
    stop_reading(session, HR_CLIENT);
    if (session->stopping)
        read_on(session);
    else
        stop_reading(session, HR_SERVER);
    hr_drop_kept(session, HR_CLIENT);
    hr_drop_kept(session, HR_SERVER);
    session->own.close_by_ns = session->thread->now_ns
                               + (session->stopping ? HR_STOP_AGAIN_NS / 2 : HR_LINGER_NS);
    session->own.close_limit_ns = session->thread->now_ns
                                  + (session->stopping ? HR_STOP_NS : HR_LONGEST_LINGER_NS);
    session->own.close_unsent = unsent_of(session);
    hr_timer(session, session->own.close_by_ns);
    hr_close_further(session);
}

void hr_close_due(hr_session *session)
{
    uint64_t now_ns = session->thread->now_ns, unsent = unsent_of(session);

    if (hr_stop_again(session))
        return;
    if (unsent < session->own.close_unsent && now_ns < session->own.close_limit_ns) {
        session->own.close_unsent = unsent;
        session->own.close_by_ns = now_ns + HR_LINGER_NS;
    } else {
        hr_close_now(session);
    }
}

void hr_close_now(hr_session *session)
{
    session->side[HR_CLIENT].failed = session->side[HR_SERVER].failed = true;
    hr_close_further(session);
}
