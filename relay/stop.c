/*
 * stop.c: a session that we end while its statement runs at the server: an operator's kill, the end of a
 * drain, a target that has moved.
 *
 *   hr_lose ──► cancel request, by a session of its own ──► server stops, closes ──► places given back
 *
 * A server does not notice that its client has gone before it writes to it: the statement would run on,
 * and another one in its place. So it gets a request to stop, the session stays until the server's connection
 * ends, and no longer than HR_STOP_NS. The request is repeated meanwhile: a request that comes before the
 * statement has begun is lost, and it may go on with the next one of a pipeline. The request is a session as any client's would be, with a pair of
 * sockets for its client: it connects, does TLS and times out as they do.
 */
#include "engine.h"

#include <sys/socket.h>
#include <unistd.h>

static bool is_our_doing(hr_lost why)
{
    return why == HR_LOST_KILLED || why == HR_LOST_DRAIN || why == HR_LOST_TARGET
           || why == HR_LOST_MEMORY;
}

/* Without it the session just waits for its time. */
static void request(hr_session *session)
{
    hr_listener *listener = &hr_shared(session->thread)->listener[session->listener];
    uint8_t packet[HR_CANCEL_BYTES];
    size_t length = session->machine->cancel(session, packet);
    int pair[2];

    hr_stop_over(session);
    if (length == 0
        || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
        return;
    if (send(pair[1], packet, length, MSG_NOSIGNAL) != (ssize_t) length) {
        close(pair[0]);
        close(pair[1]);
        return;
    }
    session->own.cancel_end = pair[1] + 1;
    hr_take_in(session->thread, pair[0], listener);
}

void hr_stop_server(hr_session *session, hr_lost why)
{
    const hr_side *server = &session->side[HR_SERVER];
    uint8_t packet[HR_CANCEL_BYTES];

    if (!is_our_doing(why) || session->machine->cancel == NULL || server->fd < 0 || server->ended
        || server->failed || server->connecting || server->shaking
        || session->thread->engine->stopped || session->machine->cancel(session, packet) == 0)
        return;
    session->stopping = true;
    request(session);
}

bool hr_stop_again(hr_session *session)
{
    uint64_t now_ns = session->thread->now_ns;

    if (!session->stopping || now_ns >= session->own.close_limit_ns)
        return false;
    request(session);
    session->own.close_by_ns = now_ns + HR_STOP_AGAIN_NS;
    return true;
}

bool hr_stop_waits(hr_session *session)
{
    hr_side *server = &session->side[HR_SERVER];

    if (!session->stopping)
        return false;
    if (server->fd >= 0 && !server->ended && !server->failed) {
        if (!session->own.server_shut && server->unsent_bytes == 0) {
            session->own.server_shut = true;
            shutdown(server->fd, SHUT_WR);
        }
        return true;
    }
    session->stopping = false;
    session->machine->settled(session);
    return false;
}

void hr_stop_over(hr_session *session)
{
    if (session->own.cancel_end > 0)
        close(session->own.cancel_end - 1);
    session->own.cancel_end = 0;
}
