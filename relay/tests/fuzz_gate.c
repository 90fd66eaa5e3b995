/*
 * Texts of any kind at a real gate: kinds, tags, trust, identity, SET and PREPARE, waits. The first
 * byte chooses dialect and flags, a NUL ends a statement.
 */
#include "gate_world.h"

static world *worlds[2];

static world *opened(uint32_t protocol)
{
    hg_identity identity = {.sources = 4, .trusts = 1, .default_priority = 100};
    world *w;

    identity.source[0] = (hg_source){HG_FROM_TAG, 3, "job"};
    identity.source[1] = (hg_source){HG_FROM_VARIABLE, 15, "headgate.client"};
    identity.source[2].kind = HG_FROM_USER;
    identity.source[3].kind = HG_FROM_PATTERN;
    strcpy(identity.trust[0].key, "team");
    identity.trust[0].by_signature = 1;
    strcpy(identity.priority_tag, "priority");
    identity.secret_length = 4;
    w = world_with(protocol, &identity);
    policy(
        w,
        "{'budgets':[{'name':'a','mode':'enforce','max_workers':1,'max_delay_s':1,'rules':[{'match':"
        "{'tag.job':'x'}},{'each':['tag.team']}]},{'name':'b','mode':'enforce','rate':1,'capacity':1,"
        "'rules':[{'match':{'username':'etl'}}]}]}",
        1);
    return w;
}

static void one_statement(talk *t, const char *text, size_t length, uint32_t flags)
{
    hr_ticket held = 0;
    hr_prepared *prepared;
    hr_query query;
    hr_said said;

    hr_query_read(&query, text, length, hr_dialect(t->session.thread));
    said = hr_ask(&t->session, &query, flags, &words, &held);
    assert((said == HR_GO || said == HR_GO_WARNED) || held == 0);
    if (said == HR_WAIT) {
        hr_gate_cancel(&t->session);
        assert(hr_ask(&t->session, &query, flags, &words, &held) == HR_BLOCK);
    }
    pass_ms(t->world, 3);
    hr_step(&t->session, held, false);
    hr_done(&t->session, held, t->session.thread->now_ns - 2 * MS, (flags & 1) != 0);
    prepared = hr_prepare(&t->session, text, length, false);
    if (hr_ask_prepared(&t->session, prepared, flags, &words, &held) == HR_WAIT)
        hr_gate_forget(&t->session);
    hr_done(&t->session, held, t->session.thread->now_ns, false);
    hr_prepared_drop(&t->session, prepared);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t protocol = size > 0 ? data[0] & 1 : 0;
    const uint8_t *at = data + (size > 0);
    const uint8_t *end = data + size;
    hr_event event;
    talk *t;

    if (worlds[protocol] == NULL)
        worlds[protocol] = opened(protocol);
    t = asker(worlds[protocol], 0, size % 2 ? "etl" : "web");
    while (at < end) {
        const uint8_t *stop = memchr(at, '\0', (size_t) (end - at));
        size_t length = (size_t) ((stop == NULL ? end : stop) - at);
        char *exact = malloc(length == 0 ? 1 : length);

        assert(exact != NULL);
        memcpy(exact, at, length);
        one_statement(t, exact, length, data[0] >> 1 & 11u);
        free(exact);
        at += length + 1;
    }
    while (hr_event_take(&worlds[protocol]->relay, &event))
        ;
    talk_close(t);
    return 0;
}
