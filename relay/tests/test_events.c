/* Events arrive whole and in order; what does not fit is counted; one client cannot drown others. */
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

#define THREADS 3u
#define SECOND UINT64_C(1000000000)

typedef struct world {
    hr_relay relay;
    hr_thread thread[THREADS];
    hr_thread_counts counts[THREADS];
    hr_state state;
} world;

static world *open_world(void)
{
    world *w = calloc(1, sizeof *w);

    w->relay.settings.threads = THREADS;
    w->relay.state = &w->state;
    w->state.sizes.clients = 64;
    assert(hr_events_open(&w->relay));
    for (uint32_t i = 0; i < THREADS; i++)
        w->thread[i] = (hr_thread){
            .relay = &w->relay, .number = i, .now_ns = SECOND, .counts = &w->counts[i]};
    return w;
}

static void close_world(world *w)
{
    hr_events_close(&w->relay);
    free(w);
}

static bool readable(const world *w)
{
    struct pollfd one = {.fd = hr_event_fd(&w->relay), .events = POLLIN};

    return poll(&one, 1, 0) == 1;
}

static hr_event event_of(uint32_t kind, uint32_t number, const char *text)
{
    hr_event event = {.kind = kind, .number = number, .text_length = (uint16_t) strlen(text)};

    memcpy(event.text, text, strlen(text));
    return event;
}

static void an_event_arrives_whole(void)
{
    world *w = open_world();
    hr_event sent = {.kind = HR_EVENT_BLOCKED,
                     .number = 7,
                     .pattern = 11,
                     .took_ns = 13,
                     .wall_ms = 17,
                     .by = HR_BY_BUDGET,
                     .user_length = 3,
                     .database_length = 2,
                     .budget_length = 4,
                     .reason_length = 1,
                     .text_length = 8,
                     .text_whole = 1,
                     .parameters = 1};
    hr_event got;

    memcpy(sent.text, "etldbslowrselect 1", 18);
    assert(!readable(w) && !hr_event_take(&w->relay, &got));
    hr_tell(&w->thread[1], &sent);
    assert(readable(w));
    memset(&got, 0xff, sizeof got);
    assert(hr_event_take(&w->relay, &got));
    assert(memcmp(&got, &sent, offsetof(hr_event, text) + 18) == 0);
    assert(!hr_event_take(&w->relay, &got) && !readable(w));
    close_world(w);
}

/* Lengths that add up to more than there is are cut, not believed. */
static void lengths_that_lie_are_bounded(void)
{
    world *w = open_world();
    static hr_event sent, got;

    sent = (hr_event){.kind = HR_EVENT_PATTERN, .user_length = 60000, .text_length = 60000};
    hr_tell(&w->thread[0], &sent);
    assert(hr_event_take(&w->relay, &got) && !hr_event_take(&w->relay, &got));
    close_world(w);
}

/* Around the ring's end many times over, in every alignment, and in each thread's own order. */
static void order_is_kept_around_the_end(void)
{
    world *w = open_world();
    static hr_event sent, got;
    uint64_t next[THREADS] = {0};

    for (uint64_t i = 0; i < 3000; i++)
        for (uint32_t t = 0; t < THREADS; t++) {
            sent.kind = HR_EVENT_PATTERN;
            sent.number = t;
            sent.pattern = i;
            sent.text_length = (uint16_t) (i * 7 % 8192);
            memset(sent.text, (int) (i & 0xff), sent.text_length);
            hr_tell(&w->thread[t], &sent);
            if (i % 5 != 4)
                continue;
            while (hr_event_take(&w->relay, &got)) {
                assert(got.pattern == next[got.number]++);
                for (uint32_t at = 0; at < got.text_length; at++)
                    assert((uint8_t) got.text[at] == (uint8_t) got.pattern);
            }
        }
    assert(next[0] == 3000 && next[1] == 3000 && next[2] == 3000);
    assert(w->counts[0].lost_events == 0);
    close_world(w);
}

static void a_full_ring_loses_and_counts(void)
{
    world *w = open_world();
    static hr_event sent, got;
    uint64_t arrived = 0;

    sent.kind = HR_EVENT_CLIENT;
    sent.text_length = 4000;
    for (int i = 0; i < 1000; i++)
        hr_tell(&w->thread[0], &sent);
    while (hr_event_take(&w->relay, &got))
        arrived++;
    assert(arrived > 10 && arrived + w->counts[0].lost_events == 1000);
    hr_tell(&w->thread[0], &sent);
    assert(readable(w) && hr_event_take(&w->relay, &got));
    close_world(w);
}

static uint64_t drain(world *w, uint32_t number, uint64_t *left_out)
{
    hr_event got;
    uint64_t count = 0;

    while (hr_event_take(&w->relay, &got))
        if (got.number == number) {
            count++;
            *left_out += got.left_out;
        }
    return count;
}

static void a_client_is_rationed_and_others_are_not(void)
{
    world *w = open_world();
    hr_event loud = event_of(HR_EVENT_BLOCKED, 5, "x"), quiet = event_of(HR_EVENT_BLOCKED, 6, "y");
    uint64_t left_out = 0, none = 0;

    for (int i = 0; i < 10000; i++)
        hr_tell(&w->thread[i % THREADS], &loud);
    hr_tell(&w->thread[0], &quiet);
    loud.kind = HR_EVENT_DELAYED; /* another kind has a ration of its own */
    hr_tell(&w->thread[0], &loud);
    assert(drain(w, 5, &left_out) == 21 && left_out == 0);
    hr_tell(&w->thread[0], &quiet);
    assert(drain(w, 6, &none) == 1 && none == 0);
    w->thread[0].now_ns += SECOND;
    loud.kind = HR_EVENT_BLOCKED;
    hr_tell(&w->thread[0], &loud);
    assert(drain(w, 5, &left_out) == 1 && left_out == 10000 - 20);
    assert(w->counts[0].lost_events == 0);
    close_world(w);
}

typedef struct teller {
    hr_thread *thread;
    uint32_t count;
} teller;

static _Atomic uint32_t finished;

static void *tell_many(void *given)
{
    teller *t = given;
    hr_event sent = event_of(HR_EVENT_PATTERN, t->thread->number, "select some text of a length");

    for (uint32_t i = 0; i < t->count; i++) {
        sent.pattern = i;
        hr_tell(t->thread, &sent);
    }
    atomic_fetch_add(&finished, 1);
    return NULL;
}

/* The reader sleeps on the descriptor alone, and must never sleep on while something is there. */
static void no_event_is_slept_over(void)
{
    world *w = open_world();
    pthread_t handles[THREADS];
    teller tellers[THREADS];
    static hr_event got;
    uint64_t arrived = 0, lost = 0;

    for (uint32_t i = 0; i < THREADS; i++) {
        tellers[i] = (teller){&w->thread[i], 20000};
        pthread_create(&handles[i], NULL, tell_many, &tellers[i]);
    }
    for (;;) {
        struct pollfd one = {.fd = hr_event_fd(&w->relay), .events = POLLIN};
        bool all_said = finished == THREADS;

        lost = 0;
        for (uint32_t i = 0; i < THREADS; i++)
            lost += w->counts[i].lost_events;
        if (arrived + lost == THREADS * 20000u)
            break;
        if (poll(&one, 1, 100) == 0) {
            assert(!all_said || !hr_event_take(&w->relay, &got));
            continue;
        }
        while (hr_event_take(&w->relay, &got))
            arrived++;
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(handles[i], NULL);
    close_world(w);
}

int main(void)
{
    an_event_arrives_whole();
    lengths_that_lie_are_bounded();
    order_is_kept_around_the_end();
    a_full_ring_loses_and_counts();
    a_client_is_rationed_and_others_are_not();
    no_event_is_slept_over();
    printf("test_events: ok\n");
    return 0;
}
