/* gate_world.h: sessions that check at the gate directly, for its tests. */
#ifndef HEADGATE_TESTS_GATE_WORLD_H
#define HEADGATE_TESTS_GATE_WORLD_H

#include "gate_inside.h"
#include "harness.h"

#define MS HARNESS_MS
#define SECOND HARNESS_SECOND

static hr_words words;
static hr_ticket ticket;

HARNESS_UNUSED static talk *asker(world *w, uint32_t thread, const char *user)
{
    talk *t = talk_in(w, thread);

    hr_session_names(&t->session, user, "shop", "");
    return t;
}

HARNESS_UNUSED static hr_said ask_with(talk *t, const char *text, uint32_t flags)
{
    hr_query query;

    words = (hr_words) {0};
    hr_query_read(&query, text, strlen(text), hr_dialect(t->session.thread));
    return hr_ask(&t->session, &query, flags, &words, &ticket);
}

HARNESS_UNUSED static hr_said ask(talk *t, const char *text)
{
    return ask_with(t, text, 0);
}

HARNESS_UNUSED static void done(talk *t, hr_ticket held)
{
    hr_done(&t->session, held, t->session.thread->now_ns, false);
}

HARNESS_UNUSED static hr_client *client_named(world *w, const char *identity)
{
    for (uint32_t i = 0; i < w->relay.state->sizes.clients; i++)
        if (strcmp(clients_of(w)[i].identity, identity) == 0)
            return &clients_of(w)[i];
    return NULL;
}

/* What Python says of a client. */
HARNESS_UNUSED static void say(world *w, const char *identity, hr_gate gate)
{
    hr_client *client = client_named(w, identity);

    assert(client != NULL);
    hr_gate_put(w->relay.state, (uint32_t) (client - clients_of(w)), client->key, &gate);
}

/* The next event of that kind, or false. */
HARNESS_UNUSED static bool next_event(world *w, uint32_t kind, hr_event *event)
{
    while (hr_event_take(&w->relay, event))
        if (event->kind == kind)
            return true;
    return false;
}

HARNESS_UNUSED static hg_count *count_of(world *w, const char *budget)
{
    hg_count *count = hg_count_of(w->relay.region, hg_hash(2, budget, strlen(budget)), NULL, 0);

    assert(count != NULL);
    return count;
}

#endif
