/* What processes share: clients, gates, statements that run, plans; and who settles for the dead. */
#include "gate_world.h"

#include <pthread.h>
#include <sched.h>

static void a_state_that_is_not_sound_is_rejected(void)
{
    hr_sizes sizes = {.clients = 16, .runnings = 4, .plans = 16};
    size_t length = hr_state_bytes(&sizes);
    hr_state *state = aligned_alloc(64, length);

    assert(length > 0 && state != NULL && hr_state_init(state, length, &sizes) == NULL);
    assert(hr_state_check(state, length) == NULL);
    assert(hr_state_check(state, length - 1) != NULL && hr_state_check(state, 8) != NULL);
    assert(hr_state_init(state, length - 1, &sizes) != NULL);
    state->format++;
    assert(strstr(hr_state_check(state, length), "another format") != NULL);
    state->format--;
    state->runnings_at += 64;
    assert(hr_state_check(state, length) != NULL);
    sizes.clients = 17;
    assert(hr_state_bytes(&sizes) == 0 && hr_state_init(state, length, &sizes) != NULL);
    free(state);
}

static void a_gate_is_not_put_to_whom_it_is_not_for(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_gate gate = {.action = HR_ACT_BLOCK, .ratio = UINT32_MAX, .reason = "why"};
    hr_gate back;
    uint32_t index;

    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    index = (uint32_t) (client_named(w, "etl") - clients_of(w));
    hr_gate_put(w->relay.state, index, 12345, &gate);
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    hr_gate_put(w->relay.state, 1u << 30, 1, &gate);
    hr_gate_put(w->relay.state, index, clients_of(w)[index].key, &gate);
    hr_gate_get(w->relay.state, index, &back);
    assert(back.action == HR_ACT_BLOCK && strcmp(back.reason, "why") == 0);
    talk_close(t);
    world_close(w);
}

/* kill -9 in the middle: what it ran, and what it held, is as if it had ended. */
static void what_a_dead_process_ran_is_settled(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");
    talk *c = asker(w, 1, "etl");

    policy(
        w,
        "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'max_delay_s':5,'max_delayed':1,"
        "'rate':10,'capacity':100,'rules':[{'match':{'username':'etl'}}]}]}",
        1);
    w->thread[0].pid = 111;
    assert(ask(a, "select 1; select 2") == HR_GO && ask(b, "select 1") == HR_WAIT);
    assert(count_of(w, "etl")->sleeping == 1 && client_named(w, "etl")->running == 1);
    assert(hr_settle_dead(w->relay.region, w->relay.state, 999, w->thread[0].now_ns) == 0);
    assert(hr_settle_dead(w->relay.region, w->relay.state, 111, w->thread[0].now_ns + 7 * MS) == 3);
    assert(count_of(w, "etl")->sleeping == 0 && client_named(w, "etl")->running == 0);
    assert(client_named(w, "etl")->waiting == 0);
    hr_queue_leave(w->relay.gate->queues, b->session.gate.waiter); /* died with the process */
    assert(ask(c, "select 1") == HR_GO);
    done(c, ticket);
    hr_gate_forget(&b->session);
    talk_close(a);
    talk_close(b);
    talk_close(c);
    world_close(w);
}

static void a_killed_writer_is_outlived(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", (hr_gate){.action = HR_ACT_BLOCK, .ratio = UINT32_MAX});
    client_named(w, "etl")->gate.sequence++; /* died between the two */
    assert(ask(t, "select 1") == HR_GO); /* nothing is known just now */
    done(t, ticket);
    say(w, "etl", (hr_gate){.action = HR_ACT_BLOCK, .ratio = UINT32_MAX});
    assert((client_named(w, "etl")->gate.sequence & 1) == 0 && ask(t, "select 1") == HR_BLOCK);
    talk_close(t);
    world_close(w);
}

typedef struct race {
    hr_state *state;
    uint32_t index;
    uint64_t key;
    _Atomic bool stop;
} race;

static void *write_gates(void *given)
{
    race *self = given;

    for (uint32_t i = 0; !atomic_load(&self->stop); i++) {
        hr_gate gate = {.ratio = i, .max_delay_ms = i, .retry_ms = i, .until_ms = i};

        memset(gate.reason, 'a' + (int) (i % 26), sizeof gate.reason);
        hr_gate_put(self->state, self->index, self->key, &gate);
        sched_yield(); /* so that a busy machine halts it here, and not in the midst of writing */
    }
    return NULL;
}

static void a_gate_is_read_whole(void)
{
    hr_sizes sizes = {.clients = 16, .runnings = 4, .plans = 16};
    hr_state *state = aligned_alloc(64, (hr_state_bytes(&sizes) + 63) / 64 * 64);
    race self = {.state = state};
    pthread_t writer;
    bool is_new;

    assert(hr_state_init(state, hr_state_bytes(&sizes), &sizes) == NULL);
    self.index = hr_client_find(state, 1, "etl", 3, 1, &is_new);
    self.key = hr_client_key("etl", 3);
    assert(is_new && pthread_create(&writer, NULL, write_gates, &self) == 0);
    for (int i = 0; i < 20000; i++) {
        hr_gate gate;

        hr_gate_get(state, self.index, &gate);
        assert(gate.ratio == gate.max_delay_ms && gate.ratio == gate.retry_ms
               && gate.ratio == (uint32_t) gate.until_ms);
        assert(gate.reason[0] == gate.reason[199]);
    }
    atomic_store(&self.stop, true);
    pthread_join(writer, NULL);
    free(state);
}

static void *find_clients(void *given)
{
    race *self = given;

    for (int i = 0; i < 2000; i++) {
        char name[16];
        bool is_new;
        int length = snprintf(name, sizeof name, "c%d", i % 20);
        uint32_t index = hr_client_find(self->state, 1, name, (size_t) length, 1, &is_new);

        assert(index == HR_OTHERS || strcmp(hr_clients_in(self->state)[index].identity, name) == 0);
    }
    return NULL;
}

static void a_client_has_one_place(void)
{
    hr_sizes sizes = {.clients = 64, .runnings = 4, .plans = 16};
    hr_state *state = aligned_alloc(64, (hr_state_bytes(&sizes) + 63) / 64 * 64);
    race self = {.state = state};
    pthread_t threads[4];
    uint32_t places = 0;

    assert(hr_state_init(state, hr_state_bytes(&sizes), &sizes) == NULL);
    for (int i = 0; i < 4; i++)
        assert(pthread_create(&threads[i], NULL, find_clients, &self) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 2; i < sizes.clients; i++)
        places += hr_clients_in(state)[i].key != 0;
    assert(places == 20);
    free(state);
}

static hr_state *state_of(uint32_t clients)
{
    hr_sizes sizes = {.clients = clients, .runnings = 4, .plans = 16};
    hr_state *state = aligned_alloc(64, (hr_state_bytes(&sizes) + 63) / 64 * 64);

    assert(hr_state_init(state, hr_state_bytes(&sizes), &sizes) == NULL);
    return state;
}

static uint32_t find(hr_state *state, const char *name, uint64_t now_ns)
{
    bool is_new;

    return hr_client_find(state, 1, name, strlen(name), now_ns, &is_new);
}

static void make_up(hr_state *state, const char *prefix, int count, uint64_t now_ns)
{
    for (int i = 0; i < count; i++) {
        char name[32];

        snprintf(name, sizeof name, "%s%d", prefix, i);
        find(state, name, now_ns);
    }
}

/* A client that makes up names fills the table; it is given up to others a few seconds later, real clients
 * stay for a minute, and what a rule speaks of has its place whenever it comes, and keeps it. */
static void made_up_names_leave_room(void)
{
    hr_state *state = state_of(64);
    uint64_t full, late_key, web_key = hr_client_key("web", 3);
    uint32_t web = find(state, "web", SECOND), late, index;
    char name[HG_MAX_IDENTITY_BYTES + 1];

    hr_clients_in(state)[web].statements = 1000;
    make_up(state, "m", 1000, 2 * SECOND);
    full = state->clients_full;
    assert(full > 0 && find(state, "n0", 4 * SECOND) == HR_OTHERS);
    late = hr_client_enter(state, 1, "late", 4, 4 * SECOND, &late_key);
    assert(late > HR_OTHERS && late_key == hr_client_key("late", 4)
           && find(state, "late", 4 * SECOND) == late);
    make_up(state, "n", 1000, 6 * SECOND);
    assert(state->clients_full > full);
    index = find(state, "n0", 6 * SECOND);
    assert(index > HR_OTHERS
           && hr_client_name(&hr_clients_in(state)[index], hr_client_key("n0", 2), name)
           && strcmp(name, "n0") == 0);
    assert(hr_clients_in(state)[web].key == web_key);
    make_up(state, "o", 1000, 90 * SECOND);
    assert(hr_clients_in(state)[web].key != web_key && hr_clients_in(state)[late].key == late_key);
    assert(!hr_client_name(&hr_clients_in(state)[web], web_key, name));
    hr_client_leave(state, late, late_key);
    make_up(state, "p", 1000, 200 * SECOND);
    assert(hr_clients_in(state)[late].key != late_key);
    assert(hr_client_enter(state, 1, "others", 6, SECOND, &late_key) == 0);
    free(state);
}

static void one_that_runs_or_waits_stays(void)
{
    hr_state *state = state_of(16);
    uint32_t runs = find(state, "runs", SECOND), waits = find(state, "waits", SECOND);
    uint64_t key;

    hr_clients_in(state)[runs].running = 1;
    hr_clients_in(state)[waits].waiting = 1;
    for (int i = 0; i < 100; i++) {
        char name[16];

        snprintf(name, sizeof name, "e%d", i);
        hr_client_enter(state, 1, name, strlen(name), 2 * SECOND, &key);
        make_up(state, name, 20, (uint64_t) (100 + 10 * i) * SECOND);
    }
    assert(hr_clients_in(state)[runs].key == hr_client_key("runs", 4));
    assert(hr_clients_in(state)[waits].key == hr_client_key("waits", 5));
    free(state);
}

static void enter(hr_state *state, const char *name, hr_gate gate)
{
    uint64_t key;
    uint32_t index = hr_client_enter(state, 1, name, strlen(name), 1, &key);

    assert(index > HR_OTHERS);
    hr_gate_put(state, index, key, &gate);
}

static void level_is(const hr_state *state, const char *name, const char *expected)
{
    uint32_t index = hr_client_level(state, name, strlen(name), 1000);

    if (strcmp(hr_clients_in(state)[index].identity, expected) != 0) {
        fprintf(stderr, "%s: %s, not %s\n", name, hr_clients_in(state)[index].identity, expected);
        abort();
    }
}

/* R64 to R67: rules match levels, wherever they stand in a name; what is said of several of them at once
 * comes before what is said of one. */
static void levels_that_rules_know_decide_on_a_new_name(void)
{
    hr_state *state = state_of(256);
    hr_gate hold = {.ratio = UINT32_MAX, .action = HR_ACT_BLOCK}, nothing = {.ratio = 0};
    hr_gate some = {.ratio = UINT32_MAX / 2, .action = HR_ACT_BLOCK};
    hr_gate exempt = {.flags = HR_GATE_EXEMPT}, warn = {.ratio = UINT32_MAX, .action = HR_ACT_WARN};
    uint64_t key;

    find(state, "seen", 1);
    enter(state, "etl", hold);
    enter(state, "some", some);
    enter(state, "warn", warn);
    enter(state, "nightly", nothing);
    enter(state, "etl:nightly", exempt);
    enter(state, "a", nothing);
    enter(state, "b", nothing);
    enter(state, "a:b", hold);
    level_is(state, "web", "others");
    level_is(state, "seen:x", "others");
    level_is(state, "etl", "etl");
    level_is(state, "etl:4711", "etl");
    level_is(state, "x:y:etl", "etl");
    level_is(state, "etlx", "others");
    level_is(state, "nightly:7", "nightly");
    level_is(state, "nightly:7:etl", "etl:nightly"); /* one rule on both: it has been weighed */
    level_is(state, "a:x", "a");
    level_is(state, "b:x:a", "a:b");
    level_is(state, "a:a:b:b", "a:b");
    level_is(state, "some:etl", "etl"); /* apart: the stricter */
    level_is(state, "some:warn", "some");
    level_is(state, "a:warn", "warn");
    level_is(state, "1:2:3:4:5:6:7:etl", "etl");
    assert(hr_client_enter(state, 1, "new", 3, 1, &key) > HR_OTHERS);
    level_is(state, "new:1", "others"); /* nothing has been said of it yet */
    level_is(state, "", "others");
    level_is(state, ":::", "others");
    free(state);
}

/* What was known of it is not any more: the loss decides, which may be the stricter. */
static void a_level_whose_gate_has_aged_counts_by_the_loss(void)
{
    hr_state *state = state_of(64);

    enter(state, "aged", (hr_gate){.until_ms = 10});
    enter(state, "some", (hr_gate){.ratio = 1000, .action = HR_ACT_BLOCK});
    level_is(state, "aged:some", "some");
    state->lost = HR_ACT_BLOCK;
    level_is(state, "aged:some", "aged");
    free(state);
}

static void *turn_over(void *given)
{
    race *self = given;
    char name[HG_MAX_IDENTITY_BYTES + 1];

    for (uint64_t i = 0; i < 3000; i++) {
        uint32_t index;
        uint64_t key;

        snprintf(name, sizeof name, "level:%llu", (unsigned long long) i % 7);
        index = hr_client_enter(self->state, 1, name + 6, 1, i, &key);
        if (index > 0) {
            hr_gate_put(self->state, index, key, &(hr_gate){.ratio = 1, .action = HR_ACT_BLOCK});
            hr_client_leave(self->state, index, key);
        }
        snprintf(name, sizeof name, "%llu:%llu", (unsigned long long) i,
                 (unsigned long long) i % 7);
        find(self->state, name, i * SECOND * 10);
        hr_client_level(self->state, name, strlen(name), 0);
        index = 2 + (uint32_t) (i % 14);
        key = hr_clients_in(self->state)[index].key;
        /* A name that is reported is that of its key, even if another moves in meanwhile. */
        if (hr_client_name(&hr_clients_in(self->state)[index], key, name) && key != 0
            && key != UINT64_MAX)
            assert(hr_client_key(name, strlen(name)) == key);
    }
    return NULL;
}

static void places_change_hands_under_everybodys_eyes(void)
{
    race self = {.state = state_of(16)};
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        assert(pthread_create(&threads[i], NULL, turn_over, &self) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert(self.state->adding == 0);
    free(self.state);
}

static void plans_are_bounded(void)
{
    hr_sizes sizes = {.clients = 16, .runnings = 4, .plans = 16};
    hr_state *state = aligned_alloc(64, (hr_state_bytes(&sizes) + 63) / 64 * 64);
    bool is_new;

    assert(hr_state_init(state, hr_state_bytes(&sizes), &sizes) == NULL);
    assert(hr_plan_cost(state, 4096, false, &is_new) == -1 && !is_new);
    assert(hr_plan_cost(state, 4096, true, &is_new) == 0 && is_new);
    assert(hr_plan_cost(state, 4096, true, &is_new) == 0 && !is_new);
    hr_plan_put(state, 4096, 12.5);
    assert(hr_plan_cost(state, 4096, true, &is_new) == 12.5);
    hr_plan_put(state, 4096, -1); /* could not be planned: as it was */
    assert(hr_plan_cost(state, 4096, true, &is_new) == 12.5);
    for (uint64_t pattern = 1; pattern < 1000; pattern++)
        hr_plan_cost(state, pattern << 8, true, &is_new);
    free(state);
}

int main(void)
{
    a_state_that_is_not_sound_is_rejected();
    a_gate_is_not_put_to_whom_it_is_not_for();
    what_a_dead_process_ran_is_settled();
    a_killed_writer_is_outlived();
    a_gate_is_read_whole();
    a_client_has_one_place();
    made_up_names_leave_room();
    one_that_runs_or_waits_stays();
    levels_that_rules_know_decide_on_a_new_name();
    a_level_whose_gate_has_aged_counts_by_the_loss();
    places_change_hands_under_everybodys_eyes();
    plans_are_bounded();
    puts("test_gate_state: ok");
    return 0;
}
