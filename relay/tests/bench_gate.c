/* What the gate costs a statement: hr_ask and hr_done, hot, in one thread, with 1,000 rules in force.
 * The quickest of many batches, by the thread's own CPU time: others have the machine, too. */
#include <time.h>

#include "documents.h"
#include "gate_inside.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCHES 30
#define TIMES 20000u
#define RULES 1000
#define POLICY_BYTES (1u << 20)

typedef struct bench {
    hr_relay relay;
    hr_thread thread;
    hr_thread_counts counts;
    hr_session session;
    hr_prepared *prepared;
    const char *text;
} bench;

/* In the engine's place: nobody waits here, and memory is not rationed. */
void hr_wake(hr_thread *owner, hr_session *session, uint64_t id)
{
    (void) owner;
    (void) session;
    (void) id;
}

void hr_timer(hr_session *session, uint64_t due_ns)
{
    (void) session;
    (void) due_ns;
}

bool hr_memory_take(hr_thread *thread, size_t bytes)
{
    (void) thread;
    (void) bytes;
    return true;
}

void hr_memory_give(hr_thread *thread, size_t bytes)
{
    (void) thread;
    (void) bytes;
}

static double clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

static void *memory_of(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert(bytes > 0 && memory != NULL);
    return memory;
}

/* Ten budgets of a hundred rules each, over tags and users; the statement is under one of them. */
static size_t write_document(char *out)
{
    size_t at = (size_t) sprintf(out, "{\"budgets\":[");

    for (int budget = 0; budget < 10; budget++) {
        at += (size_t) sprintf(out + at,
                               "%s{\"name\":\"b%d\",\"mode\":\"enforce\",\"rate\":90,"
                               "\"capacity\":6000,\"max_workers\":50,\"rules\":[",
                               budget == 0 ? "" : ",", budget);
        for (int rule = 0; rule < RULES / 10; rule++)
            at += (size_t) sprintf(out + at, "%s{\"match\":{\"%s\":\"x%d\"}}", rule == 0 ? "" : ",",
                                   rule % 2 == 0 ? "tag.job" : "username", budget * 100 + rule);
        at += (size_t) sprintf(out + at, "]}");
    }
    return at + (size_t) sprintf(out + at, "]}");
}

static void publish(bench *self)
{
    char *document = memory_of(POLICY_BYTES);
    compiled one;

    document[write_document(document)] = '\0';
    one = compile_document(document, 1);
    assert(hg_publish(self->relay.region, one.policy, one.length, true, 0) == NULL);
    free(one.policy);
    free(document);
}

static void open_bench(bench *self)
{
    hg_sizes sizes = {.seats = 4,
                      .budgets = 64,
                      .buckets = 1024,
                      .patterns = 1024,
                      .policy_bytes = POLICY_BYTES,
                      .traces = 1024};
    hr_sizes state_sizes = {.clients = 1024, .runnings = 1024, .plans = 1024};
    hg_identity identity = {.sources = 2, .default_priority = 100};

    identity.source[0] = (hg_source){HG_FROM_TAG, 3, "job"};
    identity.source[1].kind = HG_FROM_USER;
    self->relay.region = memory_of(hg_region_bytes(&sizes));
    self->relay.state = memory_of(hr_state_bytes(&state_sizes));
    assert(hg_region_init(self->relay.region, hg_region_bytes(&sizes), &sizes, 2000, 200, 1, 1)
           == NULL);
    assert(hr_state_init(self->relay.state, hr_state_bytes(&state_sizes), &state_sizes) == NULL);
    self->relay.state->enabled = 1;
    self->relay.thread_count = 1;
    self->relay.settings.protocol = HR_PROTOCOL_POSTGRES;
    assert(hr_events_open(&self->relay) && hr_gate_open(&self->relay, &identity));
    self->thread = (hr_thread){.relay = &self->relay,
                               .pid = 7,
                               .now_ns = 1000000000,
                               .wall_ms = 1000,
                               .counts = &self->counts};
    assert(hr_gate_thread_open(&self->thread));
    self->session.thread = &self->thread;
    hr_gate_session_init(&self->session);
    hr_session_names(&self->session, "app", "shop", "bench");
    publish(self);
}

static void end(bench *self, hr_said said, hr_ticket ticket)
{
    assert(said == HR_GO && ticket != 0);
    self->thread.now_ns += 50000;
    hr_done(&self->session, ticket, self->thread.now_ns - 40000, false);
}

static void ask_simple(bench *self)
{
    hr_words words;
    hr_ticket ticket;
    hr_query query;
    hr_said said;

    hr_query_read(&query, self->text, strlen(self->text), HG_POSTGRES);
    said = hr_ask(&self->session, &query, 0, &words, &ticket);

    end(self, said, ticket);
}

static void ask_prepared(bench *self)
{
    hr_words words;
    hr_ticket ticket;

    hr_said said = hr_ask_prepared(&self->session, self->prepared, 0, &words, &ticket);

    end(self, said, ticket);
}

static double quickest_ns(bench *self, void (*step)(bench *))
{
    double least = 1e18;

    for (int batch = 0; batch < BATCHES; batch++) {
        double began = clock_ns();
        double each;

        for (uint32_t i = 0; i < TIMES; i++)
            step(self);
        each = (clock_ns() - began) / TIMES;
        least = each < least ? each : least;
    }
    return least;
}

static void measure(bench *self, const char *what, const char *text)
{
    self->text = text;
    self->prepared = hr_prepare(&self->session, text, strlen(text), false);
    printf("%-34s %3zu bytes   simple %6.0f ns   prepared %6.0f ns\n", what, strlen(text),
           quickest_ns(self, ask_simple), quickest_ns(self, ask_prepared));
    hr_prepared_drop(&self->session, self->prepared);
}

int main(void)
{
    static bench self;

    open_bench(&self);
    printf("hr_ask and hr_done, %d rules\n", RULES);
    measure(&self, "no tag, no budget", "select a from t where id = 1");
    measure(&self, "tags, no budget", "select abalance from t where aid = 12345 /*job='nobody'*/");
    measure(&self, "tags, one budget, with cost",
            "select abalance from t where aid = 12345 /*job='x400'*/");
    return 0;
}
