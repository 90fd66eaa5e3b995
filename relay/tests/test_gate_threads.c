/*
 * Many threads at one gate: a budget of three places, a pace, gates and policies that change all the
 * time, sessions that give up. However they compete: never more than three run, what waits is woken
 * or has a time, and in the end nothing is held.
 */
#include "documents.h"
#include "gate_inside.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 4u
#define SESSIONS 12u
#define PLACES 3
#define POLICY_BYTES 65536u
#define ENOUGH 100u

typedef struct client {
    hr_session session; /* first */
    _Atomic bool woken;
    hr_ticket ticket;
    uint32_t left;      /* looks until it ends */
    uint64_t admitted, blocked, waited;
} client;

typedef struct one_thread {
    hr_thread thread;
    hr_thread_counts counts;
    pthread_t id;
    client clients[SESSIONS];
} one_thread;

static hr_relay relay;
static one_thread threads[THREADS];
static _Atomic int running;
static _Atomic uint32_t admissions, waits;
static _Atomic bool stop;

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

void hr_wake(hr_thread *owner, hr_session *session, uint64_t id)
{
    assert(owner == session->thread && id == session->id);
    atomic_store(&((client *) session)->woken, true);
}

void hr_timer(hr_session *session, uint64_t due_ns)
{
    (void) session;
    (void) due_ns; /* they ask for hr_gate_due */
}

static void publish(uint64_t version, const char *extra)
{
    char document[1024];
    compiled one;

    snprintf(document, sizeof document,
             "{'budgets':[{'name':'etl','mode':'enforce','max_workers':%d,'max_delay_s':0.5,"
             "'max_delayed':30,'penalty_s':0,'rules':[{'match':{'username':'etl'}}]}%s]}",
             PLACES, extra);
    one = compile_document(document, version);
    while (hg_publish(relay.region, one.policy, one.length, true, 1) != NULL)
        sched_yield();
    free(one.policy);
}

static void begin(client *one)
{
    assert(atomic_fetch_add(&running, 1) < PLACES);
    one->left = 1 + (uint32_t) (hr_dice(one->session.thread->gate) % 4);
    one->admitted++;
    atomic_fetch_add(&admissions, 1);
}

static void ask(client *one)
{
    hr_thread *thread = one->session.thread;
    static const char *const texts[] = {"select 1", "select 1 /*priority='10'*/", "delete from t"};
    const char *text = texts[one->session.id % 3];
    hr_query query;
    hr_words words;

    thread->now_ns = clock_ns();
    hr_query_read(&query, text, strlen(text), HG_POSTGRES);
    switch (hr_ask(&one->session, &query, 0, &words, &one->ticket)) {
    case HR_GO:
    case HR_GO_WARNED:
        begin(one);
        break;
    case HR_WAIT:
        one->waited++;
        atomic_fetch_add(&waits, 1);
        break;
    default:
        one->blocked++;
        break;
    }
}

static void turn(client *one)
{
    hr_thread *thread = one->session.thread;

    if (one->ticket != 0) {
        if (--one->left > 0)
            return;
        /* Before its place is free: another may have it at once. */
        atomic_fetch_sub(&running, 1);
        thread->now_ns = clock_ns();
        hr_done(&one->session, one->ticket, thread->now_ns, false);
        one->ticket = 0;
    } else if (one->session.gate.waiter == NULL) {
        ask(one);
    } else if (hr_dice(thread->gate) % 512 == 0) {
        if (hr_dice(thread->gate) % 2 == 0)
            hr_gate_forget(&one->session);
        else
            hr_gate_cancel(&one->session);
    } else if (atomic_exchange(&one->woken, false) || clock_ns() >= hr_gate_due(&one->session)) {
        ask(one);
    }
}

static void *work(void *given)
{
    one_thread *self = given;

    while (!atomic_load(&stop)) {
        for (uint32_t i = 0; i < SESSIONS; i++)
            turn(&self->clients[i]);
        if (hr_dice(self->thread.gate) % 64 == 0)
            hr_gate_stir(&self->thread);
        sched_yield();
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        client *one = &self->clients[i];

        if (one->ticket != 0) {
            atomic_fetch_sub(&running, 1);
            hr_done(&one->session, one->ticket, self->thread.now_ns, true);
        }
        hr_gate_session_free(&one->session);
    }
    return NULL;
}

static void *memory_of(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert(bytes > 0 && memory != NULL);
    return memory;
}

static void open_all(void)
{
    hg_sizes sizes = {.seats = THREADS,
                      .budgets = 64,
                      .buckets = 256,
                      .patterns = 256,
                      .policy_bytes = POLICY_BYTES,
                      .traces = 64};
    hr_sizes state_sizes = {.clients = 64, .runnings = 64, .plans = 64};
    hg_identity identity = {.sources = 1, .default_priority = 100};

    identity.source[0].kind = HG_FROM_USER;
    strcpy(identity.priority_tag, "priority");
    relay.region = memory_of(hg_region_bytes(&sizes));
    relay.state = memory_of(hr_state_bytes(&state_sizes));
    assert(hg_region_init(relay.region, hg_region_bytes(&sizes), &sizes, 2000, 20, 1, 1) == NULL);
    assert(hr_state_init(relay.state, hr_state_bytes(&state_sizes), &state_sizes) == NULL);
    relay.state->enabled = 1;
    relay.thread_count = THREADS;
    assert(hr_events_open(&relay) && hr_gate_open(&relay, &identity));
    publish(1, "");
    for (uint32_t i = 0; i < THREADS; i++) {
        one_thread *self = &threads[i];

        self->thread = (hr_thread){.relay = &relay,
                                   .number = i,
                                   .seat = i,
                                   .pid = 7,
                                   .wall_ms = 1000,
                                   .now_ns = clock_ns(),
                                   .counts = &self->counts};
        relay.threads[i] = &self->thread;
        assert(hr_gate_thread_open(&self->thread));
        for (uint32_t j = 0; j < SESSIONS; j++) {
            self->clients[j].session.thread = &self->thread;
            self->clients[j].session.id = i * SESSIONS + j;
            hr_gate_session_init(&self->clients[j].session);
            hr_session_names(&self->clients[j].session, "etl", "shop", "");
        }
    }
}

/* What Python does meanwhile: for so long, and until enough has happened. */
static void disturb(uint64_t until_ns)
{
    uint64_t version = 2;

    while (clock_ns() < until_ns || admissions <= ENOUGH || waits <= ENOUGH) {
        hr_client *clients = hr_clients_in(relay.state);
        hr_gate gate = {.ratio = version % 3 == 0 ? UINT32_MAX / 4 : 0,
                        .action = (uint8_t) (version % 4),
                        .cause = HR_BY_RULE,
                        .flags = version % 2 ? HR_GATE_PACED : 0,
                        .max_delay_ms = 20,
                        .max_delayed = 10,
                        .delay_ms = (uint32_t) (version % 2)};
        hr_event event;

        for (uint32_t i = 2; i < relay.state->sizes.clients; i++)
            if (clients[i].key != 0)
                hr_gate_put(relay.state, i, clients[i].key, &gate);
        atomic_store(&relay.state->release.ns_per_unit, version % 5 * 20000);
        atomic_store(&relay.state->release.burst_ns, 100000);
        atomic_store(&relay.state->release.action, HR_ACT_DELAY);
        atomic_store(&relay.state->release.max_delay_ms, 50);
        version++;
        publish(version, version % 2 ? ",{'name':'other','max_workers':5,'rules':[{}]}" : "");
        while (hr_event_take(&relay, &event))
            ;
        sched_yield();
    }
}

static void nothing_is_held(void)
{
    hg_count *count = hg_count_of(relay.region, hg_hash(2, "etl", 3), NULL, 0);
    uint64_t admitted = 0, blocked = 0, waited = 0;

    assert(count != NULL && count->sleeping == 0 && running == 0);
    for (uint32_t i = 0; i < relay.state->sizes.runnings; i++)
        assert(hr_runnings_in(relay.state)[i].pid == 0);
    for (uint32_t i = 0; i < relay.state->sizes.clients; i++)
        assert(hr_clients_in(relay.state)[i].waiting == 0
               && hr_clients_in(relay.state)[i].running == 0);
    for (uint32_t i = 0; i < THREADS * SESSIONS; i++) {
        const client *one = &threads[i / SESSIONS].clients[i % SESSIONS];

        admitted += one->admitted;
        blocked += one->blocked;
        waited += one->waited;
    }
    printf("test_gate_threads: ok, %llu admitted, %llu blocked, %llu waits\n",
           (unsigned long long) admitted, (unsigned long long) blocked,
           (unsigned long long) waited);
    assert(admitted > ENOUGH && waited > ENOUGH);
}

int main(int count, char **given)
{
    uint64_t for_ns = (count > 1 ? (uint64_t) atoi(given[1]) : 1) * 700000000u;

    open_all();
    for (uint32_t i = 0; i < THREADS; i++)
        assert(pthread_create(&threads[i].id, NULL, work, &threads[i]) == 0);
    disturb(clock_ns() + for_ns);
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    nothing_is_held();
    for (uint32_t i = 0; i < THREADS; i++)
        hr_gate_thread_close(&threads[i].thread);
    hr_gate_close(&relay);
    hr_events_close(&relay);
    free(relay.region);
    free(relay.state);
    return 0;
}
