/* Cancel keys and ids find their session, in its own thread, or nothing when it is gone. */
#include <time.h>
#include <unistd.h>

#define HARNESS_FAKE_GATE
#define HARNESS_OWN_INBOX
#include "harness.h"

/* ── An engine's inbox, in real threads ───────────────────────────────────── */

typedef struct runner {
    hr_thread *thread;
    pthread_t handle;
    pthread_mutex_t lock;
    pthread_cond_t rung;
    hr_errand *first;
    bool stopped, deaf; /* deaf: takes errands, and does not run them until it stops */
} runner;

static runner runners[HARNESS_THREADS];

bool hr_post(hr_thread *owner, hr_errand *errand)
{
    runner *to = &runners[owner->number];
    bool takes;

    pthread_mutex_lock(&to->lock);
    takes = !to->stopped;
    if (takes) {
        errand->next = to->first;
        to->first = errand;
        pthread_cond_signal(&to->rung);
    }
    pthread_mutex_unlock(&to->lock);
    return takes;
}

static void run_all_of(runner *self)
{
    while (self->first != NULL) {
        hr_errand *errand = self->first;

        self->first = errand->next;
        pthread_mutex_unlock(&self->lock);
        errand->run(self->thread, errand);
        pthread_mutex_lock(&self->lock);
    }
}

static void *run(void *given)
{
    runner *self = given;

    pthread_mutex_lock(&self->lock);
    while (!self->stopped) {
        if (self->first == NULL || self->deaf)
            pthread_cond_wait(&self->rung, &self->lock);
        else
            run_all_of(self);
    }
    run_all_of(self);
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static void start(world *w)
{
    for (uint32_t i = 0; i < HARNESS_THREADS; i++) {
        runners[i] = (runner){.thread = &w->thread[i]};
        pthread_mutex_init(&runners[i].lock, NULL);
        pthread_cond_init(&runners[i].rung, NULL);
        pthread_create(&runners[i].handle, NULL, run, &runners[i]);
    }
}

static void stop(void)
{
    for (uint32_t i = 0; i < HARNESS_THREADS; i++) {
        pthread_mutex_lock(&runners[i].lock);
        runners[i].stopped = true;
        pthread_cond_signal(&runners[i].rung);
        pthread_mutex_unlock(&runners[i].lock);
        pthread_join(runners[i].handle, NULL);
    }
}

/* ── Sessions ─────────────────────────────────────────────────────────────── */

static talk *session_in(world *w, uint32_t thread, uint32_t process, const char *key)
{
    talk *t = talk_in(w, thread);

    t->connected = true;
    t->session.side[HR_SERVER].fd = 1001;
    t->session.server_process = process;
    t->session.cancel_key_length = (uint8_t) strlen(key);
    memcpy(t->session.cancel_key, key, strlen(key));
    t->session.target = thread;
    t->session.target_id = 100 + thread;
    hr_register(&t->session); /* at its accept … */
    t->session.established = true;
    hr_register(&t->session); /* … and when it is established */
    return t;
}

static bool cancels(world *w, uint32_t process, const char *key, bool *forward)
{
    uint32_t target = 99;
    uint64_t target_id = 99;

    return hr_cancel_find(&w->relay, process, (const uint8_t *) key, strlen(key), &target,
                          &target_id, forward);
}

static void a_key_finds_its_session_alone(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = session_in(w, 0, 77, "aaaa"), *b = session_in(w, 1, 77, "bbbb");
    uint32_t target = 99;
    uint64_t target_id = 99;
    bool forward = false;

    assert(
        hr_cancel_find(&w->relay, 77, (const uint8_t *) "bbbb", 4, &target, &target_id, &forward));
    assert(target == 1 && target_id == 101 && forward);
    assert(!cancels(w, 77, "aaab", &forward) && !cancels(w, 78, "aaaa", &forward));
    assert(!cancels(w, 77, "aaa", &forward) && !cancels(w, 77, "aaaaa", &forward));
    assert(!cancels(w, 77, "", &forward));
    hr_unregister(&a->session);
    hr_unregister(&a->session);
    assert(!cancels(w, 77, "aaaa", &forward) && cancels(w, 77, "bbbb", &forward));
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* Protocol 3.2 allows for 256 bytes; the first 32 are compared. */
static void long_keys_are_told_apart(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = session_in(w, 0, 1, "0123456789abcdef0123456789abcdef");
    bool forward;

    assert(cancels(w, 1, "0123456789abcdef0123456789abcdef", &forward));
    assert(cancels(w, 1, "0123456789abcdef0123456789abcdefXYZ", &forward));
    assert(!cancels(w, 1, "0123456789abcdef0123456789abcdeX", &forward));
    talk_close(a);
    world_close(w);
}

/* What starts up is nobody's to cancel: its number is not known yet, or belongs to another one. */
static void a_session_that_starts_is_not_found_by_key(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = talk_in(w, 0);
    hr_session_view view;
    bool forward;

    t->session.server_process = 5;
    hr_register(&t->session);
    assert(!cancels(w, 5, "", &forward));
    start(w);
    assert(hr_sessions(&w->relay, 0, &view, 1) == 1 && view.phase == 0 && view.id == t->session.id);
    stop();
    talk_close(t);
    world_close(w);
}

static void a_held_statement_is_cancelled_by_its_own_thread(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = session_in(w, 2, 9, "kkkk");
    bool forward = true;

    t->session.held = true;
    start(w);
    assert(cancels(w, 9, "kkkk", &forward) && !forward);
    stop();
    assert(t->session.gate.cancelled && t->woken == 1);
    forward = false;
    assert(cancels(w, 9, "kkkk", &forward) && forward); /* nobody is left to do it: to the server */
    talk_close(t);
    world_close(w);
}

static void kill_reaches_what_is_held_only(void)
{
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *free_one = session_in(w, 0, 31, ""), *held = session_in(w, 1, 31, "");

    start(w);
    assert(!hr_kill_find(&w->relay, 101, 31) && !hr_kill_find(&w->relay, 101, 32));
    held->session.held = true;
    assert(!hr_kill_find(&w->relay, 100, 31)); /* of the same number, but at another server */
    assert(hr_kill_find(&w->relay, 101, 31));
    stop();
    assert(held->session.gate.cancelled && !free_one->session.gate.cancelled);
    talk_close(free_one);
    talk_close(held);
    world_close(w);
}

static void an_operator_ends_a_session(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = session_in(w, 3, 1, "");

    start(w);
    assert(!hr_session_kill(&w->relay, 12345));
    assert(hr_session_kill(&w->relay, t->session.id));
    stop();
    assert(t->lost && t->closed);
    assert(!hr_session_kill(&w->relay, t->session.id));
    talk_close(t);
    world_close(w);
}

static void an_errand_for_a_session_that_is_gone_does_nothing(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = session_in(w, 1, 4, "k");

    start(w);
    pthread_mutex_lock(&runners[1].lock);
    runners[1].deaf = true;
    pthread_mutex_unlock(&runners[1].lock);
    assert(hr_session_kill(&w->relay, t->session.id));
    hr_unregister(&t->session);
    stop();
    assert(!t->lost);
    talk_close(t);
    world_close(w);
}

/* ── Views ────────────────────────────────────────────────────────────────── */

static void views_come_by_id_and_in_pages(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *talks[200];
    hr_session_view views[64];
    uint64_t after = 0;
    uint32_t seen = 0, got;

    for (uint32_t i = 0; i < 200; i++)
        talks[i] = session_in(w, i % HARNESS_THREADS, i + 1, "");
    start(w);
    while ((got = hr_sessions(&w->relay, after, views, 64)) > 0)
        for (uint32_t i = 0; i < got; i++, seen++) {
            assert(views[i].id > after && views[i].phase != 5);
            after = views[i].id;
            assert(views[i].server_process == seen + 1);
            assert(views[i].target == 100 + seen % HARNESS_THREADS);
        }
    assert(seen == 200);
    stop();
    for (uint32_t i = 0; i < 200; i++)
        talk_close(talks[i]);
    world_close(w);
}

static void a_view_says_who_and_what(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = session_in(w, 0, 1, "");
    char names[] = "etl\0shop\0nightly";
    hr_session_view view;

    t->session.gate.names = names;
    t->session.gate.database_at = 4;
    t->session.gate.application_at = 9;
    t->session.gate.client = UINT32_MAX;
    t->session.gate.wait_since_ns = 42;
    t->session.held = true;
    t->session.port = 4321;
    start(w);
    assert(hr_sessions(&w->relay, 0, &view, 1) == 1);
    stop();
    assert(strcmp(view.username, "etl") == 0 && strcmp(view.database, "shop") == 0);
    assert(strcmp(view.application, "nightly") == 0 && view.client[0] == '\0');
    assert(view.phase == 3 && view.statement_since_ns == 42 && view.port == 4321
           && view.family == 4);
    t->session.gate.names = NULL;
    talk_close(t);
    world_close(w);
}

/* Status must not hang on a thread that does, and must not call its sessions something they are not. */
static void a_thread_that_does_not_answer_is_not_waited_for(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = session_in(w, 0, 1, ""), *b = session_in(w, 1, 2, "");
    hr_session_view views[4];

    start(w);
    pthread_mutex_lock(&runners[1].lock);
    runners[1].deaf = true;
    pthread_mutex_unlock(&runners[1].lock);
    assert(hr_sessions(&w->relay, 0, views, 4) == 2);
    assert(views[0].phase != 5 && views[1].phase == 5 && views[1].server_process == 2);
    stop(); /* it answers now, to nobody */
    assert(hr_sessions(&w->relay, 0, views, 4) == 2 && views[0].phase == 5);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* ── All at once ──────────────────────────────────────────────────────────── */

typedef struct churn {
    hr_errand errand;
    world *world;
    hr_thread *thread;
    pthread_mutex_t *lock;
    uint32_t left;
} churn;

/* In its own thread, a session comes, is registered, and goes. */
static void come_and_go(hr_thread *thread, hr_errand *errand)
{
    churn *c = (churn *) errand;
    talk *t;

    pthread_mutex_lock(c->lock);
    t = session_in(c->world, thread->number, 1000 + thread->number, "kk");
    pthread_mutex_unlock(c->lock);
    t->session.held = c->left % 2 == 0;
    pthread_mutex_lock(c->lock);
    talk_close(t);
    pthread_mutex_unlock(c->lock);
    if (--c->left > 0)
        hr_post(thread, errand);
}

static void sessions_come_and_go_under_cancels_and_views(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    static churn churns[HARNESS_THREADS];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    hr_session_view views[16];
    bool forward, busy = true;

    start(w);
    for (uint32_t i = 0; i < HARNESS_THREADS; i++) {
        churns[i] = (churn){{.run = come_and_go}, w, &w->thread[i], &lock, 200};
        hr_post(&w->thread[i], &churns[i].errand);
    }
    while (busy) {
        for (uint32_t i = 0; i < HARNESS_THREADS; i++)
            cancels(w, 1000 + i, "kk", &forward);
        hr_sessions(&w->relay, 0, views, 16);
        hr_session_kill(&w->relay, views[0].id);
        pthread_mutex_lock(&runners[0].lock);
        busy = runners[0].first != NULL;
        pthread_mutex_unlock(&runners[0].lock);
    }
    stop();
    world_close(w);
}

int main(void)
{
    a_key_finds_its_session_alone();
    long_keys_are_told_apart();
    a_session_that_starts_is_not_found_by_key();
    a_held_statement_is_cancelled_by_its_own_thread();
    kill_reaches_what_is_held_only();
    an_operator_ends_a_session();
    an_errand_for_a_session_that_is_gone_does_nothing();
    views_come_by_id_and_in_pages();
    a_view_says_who_and_what();
    a_thread_that_does_not_answer_is_not_waited_for();
    sessions_come_and_go_under_cancels_and_views();
    printf("test_registry: ok\n");
    return 0;
}
