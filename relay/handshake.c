/* handshake.c: an end becomes TLS, at its machine's wish.   hr_secure ──► hr_shake … ──► secured */
#include "engine.h"

#include <stdio.h>

static hr_tls *context_of(hr_session *session, hr_end end)
{
    hr_engine_shared *shared = hr_shared(session->thread);
    hr_tls *tls = NULL;

    if (end == HR_SERVER)
        return session->own.place != NULL && session->own.place->tls != NULL
                   ? hr_tls_share(session->own.place->tls)
                   : NULL;
    pthread_mutex_lock(&shared->lock);
    if (shared->listener[session->listener].tls != NULL)
        tls = hr_tls_share(shared->listener[session->listener].tls);
    pthread_mutex_unlock(&shared->lock);
    return tls;
}

/* What came behind the wish for TLS is the handshake's: were it plain text that an attacker slipped
 * in, the handshake fails by it. */
static bool hand_over_kept(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    bool taken = true;

    if (side->kept != NULL)
        taken = hr_tls_unread(side->tls, side->kept->bytes + side->kept->start,
                              side->kept->end - side->kept->start);
    hr_drop_kept(session, end);
    return taken;
}

static void tls_failed(hr_session *session, hr_end end, const char *fault)
{
    char *text = session->thread->engine->fault;

    snprintf(text, sizeof session->thread->engine->fault, "TLS with the %s: %s",
             end == HR_CLIENT ? "client" : "server", fault);
    session->side[end].shaking = false;
    if (end == HR_CLIENT)
        session->side[end].failed = true; /* it cannot read what it would be sent */
    hr_lose(session, HR_LOST_TLS, text);
}

void hr_secure(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    hr_tls *tls;

    side->tls_wanted = side->unsent_bytes > 0;
    if (side->tls_wanted)
        return;
    tls = context_of(session, end);
    side->tls = tls == NULL ? NULL : hr_tls_begin(tls, side->fd);
    if (tls != NULL)
        hr_tls_drop(tls);
    if (side->tls == NULL || !hand_over_kept(session, end)) {
        tls_failed(session, end, "it could not be begun: no certificate is set, or no memory");
        return;
    }
    side->shaking = true;
    hr_shake(session, end);
}

/* What came behind the handshake may have been read with it: no edge tells of that. */
static void shaken(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    hr_next next;

    side->shaking = side->sending = false;
    side->readable = true;
    if (end == HR_CLIENT)
        hg_add_own(&session->thread->counts->tls_sessions, 1);
    next = session->machine->secured(session, end);
    if (!hr_after_machine(session))
        return;
    hr_act(session, end, next);
    hr_feed_kept(session, HR_SERVER);
    hr_feed_kept(session, HR_CLIENT);
    if (side->reading)
        hr_wake(session->thread, session, session->id);
}

void hr_shake(hr_session *session, hr_end end)
{
    hr_side *side = &session->side[end];
    int said = hr_tls_shake(side->tls);

    switch (said) {
    case HR_TLS_DONE:
        shaken(session, end);
        break;
    case HR_TLS_READ:
    case HR_TLS_WRITE:
        side->sending = said == HR_TLS_WRITE;
        break;
    default:
        tls_failed(session, end, hr_tls_fault(side->tls));
        break;
    }
}
