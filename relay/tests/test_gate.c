/* May this statement run? Budgets, in the words of the extension, and which statement waits for which. */
#include "gate_world.h"

#define ONE_AT_A_TIME                                                                              \
    "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'max_delay_s':%s,'max_delayed':2," \
    "'penalty_s':0,'rules':[{'match':{'username':'etl'}}]}]}"

static void one_at_a_time(world *w, const char *max_delay_s)
{
    char text[512];

    snprintf(text, sizeof text, ONE_AT_A_TIME, max_delay_s);
    policy(w, text, 1);
}

static void without_a_policy_everything_runs(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    assert(ask(t, "select 1") == HR_GO && ticket != 0);
    assert(client_named(w, "etl")->running == 1);
    pass_ms(w, 5);
    hr_done(&t->session, ticket, w->thread[0].now_ns - 5 * MS, false);
    assert(client_named(w, "etl")->running == 0 && client_named(w, "etl")->wall_ns == 5 * MS);
    assert(client_named(w, "etl")->statements == 1 && client_named(w, "etl")->admitted == 1);
    assert(ask(t, "begin") == HR_GO && ticket == 0);
    w->relay.state->enabled = 0;
    assert(ask(t, "select 1") == HR_GO && ticket == 0);
    talk_close(t);
    world_close(w);
}

/* R102, R143: who, what, how much, and when to come back; as the extension says it. */
static void a_full_budget_blocks_in_the_extensions_words(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 1, "etl");
    hr_ticket held;
    hr_event event;

    one_at_a_time(w, "0");
    assert(ask(a, "select 1") == HR_GO);
    held = ticket;
    assert(ask(b, "select pg_sleep(3) /*job='x'*/") == HR_BLOCK && ticket == 0);
    assert(words.cause == HR_BY_BUDGET && words.retry_ms >= 100 && words.retry_ms <= 126);
    assert(strcmp(words.message,
                  "[HEADGATE] Traffic Control: budget \"etl\": concurrency limit: 1 of 1 "
                  "workers are in use")
           == 0);
    assert(strstr(words.detail,
                  "budget=etl limit=concurrency estimate_ms=0.000 p90_ms=0.000 used=1 bound=1 "
                  "retry_after_ms=1")
           == words.detail);
    assert(strstr(words.detail, " policy_version=1") != NULL);
    assert(strncmp(words.hint, "Retry in 1", 10) == 0);
    assert(count_of(w, "etl")->blocked[HG_CONCURRENCY] == 1
           && client_named(w, "etl")->blocked[HR_BY_BUDGET] == 1);
    assert(next_event(w, HR_EVENT_BLOCKED, &event) && event.by == HR_BY_BUDGET);
    assert(event.user_length == 3 && event.database_length == 4 && event.budget_length == 3);
    assert(memcmp(event.text, "etlshopetl", 10) == 0 && event.text_whole);
    done(a, held);
    assert(ask(b, "select 1") == HR_GO);
    done(b, ticket);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* R148, and: what is switched off must not be had by a transaction before it. */
static void inside_a_transaction_it_passes_unless_the_limit_is_0(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");
    hr_ticket held;

    one_at_a_time(w, "5");
    assert(ask(a, "select 1") == HR_GO);
    held = ticket;
    assert(ask_with(b, "select 2", HR_ASK_IN_TRANSACTION) == HR_GO);
    assert(client_named(w, "etl")->passed == 1 && count_of(w, "etl")->passed == 1);
    done(b, ticket);
    done(a, held);
    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','max_workers':0,'penalty_s':0,"
           "'rules':[{'match':{'username':'etl'}}]}]}",
           2);
    assert(ask_with(b, "select 2", HR_ASK_IN_TRANSACTION) == HR_BLOCK && words.retry_ms == 0);
    assert(
        strcmp(
            words.hint,
            "The budget's limit is 0, so it blocks every statement: ask who set it, or raise the limit.")
        == 0);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* Priority, then arrival; a new one does not overtake; each end lets the best go on. */
static void who_waits_goes_by_priority_and_arrival(void)
{
    hg_identity identity = default_identity();
    talk *t[5];
    hr_ticket held;
    world *w;

    strcpy(identity.priority_tag, "priority");
    w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'max_delay_s':5,"
           "'max_delayed':3,'penalty_s':0,'rules':[{'match':{'username':'etl'}}]}]}",
           1);
    for (uint32_t i = 0; i < 5; i++)
        t[i] = asker(w, i % HARNESS_THREADS, "etl");
    assert(ask(t[0], "select 0") == HR_GO);
    held = ticket;
    assert(ask(t[1], "select 1") == HR_WAIT && ask(t[2], "select 2") == HR_WAIT);
    assert(hr_gate_due(&t[1]->session)
           == w->thread[1].now_ns + 5 * MS); /* the first looks without a wake */
    assert(hr_gate_due(&t[2]->session) == w->thread[2].now_ns + 5000 * MS);
    assert(ask(t[3], "select 3 /*priority='10'*/") == HR_WAIT);
    assert(count_of(w, "etl")->sleeping == 3 && client_named(w, "etl")->waiting == 3);
    assert(ask(t[4], "select 4") == HR_BLOCK); /* max_delayed */
    assert(strstr(words.message, "queue limit: 3 statements are waiting already") != NULL);
    assert(
        strstr(
            words.detail,
            "budget=etl limit=concurrency estimate_ms=0.000 p90_ms=0.000 used=1 bound=1 retry_after_ms=")
        == words.detail);
    assert(strstr(words.detail, " policy_version=1 waiting=3") != NULL);
    assert(count_of(w, "etl")->blocked[HG_CONCURRENCY] == 1);
    pass_ms(w, 2);
    done(t[0], held);
    assert(t[3]->woken == 1 && t[1]->woken == 0);
    /* There is room, but not for one who comes now. */
    assert(ask(t[0], "select 5") == HR_WAIT || words.cause == HR_BY_BUDGET);
    hr_gate_forget(&t[0]->session);
    assert(ask(t[1], "select 1") == HR_WAIT); /* not its turn */
    assert(ask(t[3], "select 3 /*priority='10'*/") == HR_GO);
    held = ticket;
    assert(client_named(w, "etl")->delayed == 1 && client_named(w, "etl")->delayed_ns == 2 * MS);
    assert(count_of(w, "etl")->delayed == 1 && count_of(w, "etl")->delayed_ns == 2 * MS);
    assert(t[1]->woken == 1); /* is the first now */
    assert(ask(t[1], "select 1") == HR_WAIT);
    done(t[3], held);
    assert(ask(t[1], "select 1") == HR_GO);
    done(t[1], ticket);
    assert(t[2]->woken >= 1 && ask(t[2], "select 2") == HR_GO);
    done(t[2], ticket);
    assert(count_of(w, "etl")->sleeping == 0 && client_named(w, "etl")->waiting == 0);
    for (int i = 0; i < 5; i++)
        talk_close(t[i]);
    world_close(w);
}

static void a_wait_ends_at_its_deadline_with_the_reason(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");
    talk *c = asker(w, 0, "etl");
    hr_ticket held;
    hr_event event;

    one_at_a_time(w, "0.5");
    assert(ask(a, "select 1") == HR_GO);
    held = ticket;
    assert(ask(b, "select 2") == HR_WAIT && ask(c, "select 3") == HR_WAIT);
    pass_ms(w, 499);
    assert(ask(b, "select 2") == HR_WAIT && ask(c, "select 3") == HR_WAIT);
    pass_ms(w, 1);
    assert(ask(b, "select 2") == HR_BLOCK && words.cause == HR_BY_BUDGET);
    assert(ask(c, "select 3") == HR_BLOCK);
    assert(next_event(w, HR_EVENT_BLOCKED, &event) && event.took_ns == 500 * MS);
    assert(count_of(w, "etl")->sleeping == 0 && count_of(w, "etl")->blocked[HG_CONCURRENCY] == 2);
    done(a, held);
    talk_close(a);
    talk_close(b);
    talk_close(c);
    world_close(w);
}

static void a_cancel_and_a_hang_up_leave_the_queue(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");
    talk *c = asker(w, 1, "etl");
    hr_ticket held;

    one_at_a_time(w, "5");
    assert(ask(a, "select 1") == HR_GO);
    held = ticket;
    assert(ask(b, "select 2") == HR_WAIT && ask(c, "select 3") == HR_WAIT);
    hr_gate_cancel(&b->session);
    assert(b->woken == 1 && ask(b, "select 2") == HR_BLOCK && words.cause == HR_BY_CANCEL);
    assert(c->woken == 1); /* first now */
    assert(ask(b, "set a = 1") == HR_GO); /* the cancel was for that one alone */
    talk_close(c);
    assert(count_of(w, "etl")->sleeping == 0 && client_named(w, "etl")->waiting == 0);
    done(a, held);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* R104: who is blocked is held for a moment; only so many, and never inside a transaction. */
static void a_blocked_client_waits_for_its_penalty(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    talk *other = asker(w, 0, "etl");

    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','burst':0,'penalty_s':0.2,'max_delayed':1,"
           "'rules':[{'match':{'username':'etl'}}]}]}",
           1);
    assert(ask(t, "select 1") == HR_WAIT
           && hr_gate_due(&t->session) == t->session.thread->now_ns + 200 * MS);
    assert(ask(other, "select 1") == HR_BLOCK); /* no place to be held in */
    pass_ms(w, 100);
    hr_gate_stir(&w->thread[0]);
    assert(ask(t, "select 1") == HR_WAIT);
    pass_ms(w, 100);
    assert(ask(t, "select 1") == HR_BLOCK && strstr(words.message, "per-query limit") != NULL);
    assert(count_of(w, "etl")->blocked[HG_QUERY] == 2 && count_of(w, "etl")->delayed == 0);
    assert(count_of(w, "etl")->sleeping == 0);
    assert(ask_with(t, "select 1", HR_ASK_IN_TRANSACTION) == HR_BLOCK);
    talk_close(t);
    talk_close(other);
    world_close(w);
}

static void a_pipeline_waits_its_turn_where_places_are_counted(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    talk *other = asker(w, 0, "web");
    hr_ticket held;

    one_at_a_time(w, "0");
    assert(ask(t, "select 1") == HR_GO);
    held = ticket;
    assert(ask_with(t, "select 2", HR_ASK_RUNNING) == HR_WAIT_TURN);
    assert(ask_with(other, "select 2", HR_ASK_RUNNING) == HR_GO);
    done(other, ticket);
    done(t, held);
    assert(ask(t, "select 2") == HR_GO);
    done(t, ticket);
    talk_close(t);
    talk_close(other);
    world_close(w);
}

/* The first in the queue is about to take what has come free: that is no room for a new one. */
static void a_full_queue_is_counted_where_it_is(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t[4];
    hr_ticket held;

    policy(
        w,
        "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'max_delay_s':5,'max_delayed':1,"
        "'penalty_s':0,'rules':[{'match':{'username':'etl'}}]}]}",
        1);
    for (int i = 0; i < 4; i++)
        t[i] = asker(w, 0, "etl");
    assert(ask(t[0], "select 1") == HR_GO);
    held = ticket;
    assert(ask(t[1], "select 1") == HR_WAIT && ask(t[2], "select 1") == HR_BLOCK);
    done(t[0], held);
    assert(ask(t[3], "select 1") == HR_BLOCK && words.retry_ms >= 100);
    assert(strstr(words.detail, "limit=concurrency") != NULL
           && strstr(words.detail, "used=1 bound=1") != NULL);
    assert(strstr(words.message, "queue limit: 1 statements are waiting") != NULL);
    assert(count_of(w, "etl")->blocked[HG_CONCURRENCY] == 2);
    assert(client_named(w, "etl")->blocked[HR_BY_BUDGET] == 2);
    assert(ask(t[1], "select 1") == HR_GO);
    done(t[1], ticket);
    for (int i = 0; i < 4; i++)
        talk_close(t[i]);
    world_close(w);
}

#define BY_JOB                                                                                        \
    "{'budgets':[{'name':'r','mode':'enforce','rate':100,'capacity':6000,'rules':[{'match':"          \
    "{'tag.job':'r'}}]},{'name':'all','mode':'enforce','rate':100,'capacity':6000,'rules':[{'match':" \
    "{'username':'etl'}}]}]}"

static uint64_t charged_ms(world *w, const char *budget)
{
    return count_of(w, budget)->charged_ns / MS;
}

/* What a client gets of the answer: each of the string's ends in one read, after so long. */
static void run_string(world *w, talk *t, const char *text, uint64_t ms, int steps)
{
    uint64_t began_ns = w->thread[0].now_ns;
    hr_ticket held;

    assert(ask(t, text) == HR_GO);
    held = ticket;
    pass_ms(w, ms);
    for (int i = 0; i < steps; i++)
        hr_step(&t->session, held, false);
    hr_done(&t->session, held, began_ns, false);
    assert(client_named(w, "etl")->running == 0 && t->session.gate.tickets == 0
           && t->session.gate.over == 0);
    for (uint32_t i = 0; i < w->relay.state->sizes.runnings; i++)
        assert(runnings_of(w)[i].pid == 0);
}

static double estimate_s(talk *t, const char *text)
{
    hr_running *running;
    double estimate;

    assert(ask(t, text) == HR_GO);
    running = &hr_runnings_in(t->session.thread->relay->state)[ticket - 1];
    estimate = (double) running->holding.estimate_ns / 1e9;
    hr_unused(&t->session, ticket);
    return estimate;
}

/* A SET in front, or a SELECT 1, is no way round a budget. */
static void free_statements_take_no_time(void)
{
    static const char *const texts[] = {"select f()", "begin; select f(); commit",
                                        "set a = 1; select f()",
                                        "show a; set b = 2; select f(); show c"};
    static const int steps[] = {1, 3, 2, 4};
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    policy(w, BY_JOB, 1);
    for (uint32_t i = 0; i < 4; i++) {
        run_string(w, t, texts[i], 300, steps[i]);
        assert(charged_ms(w, "all") == 300 * (i + 1));
    }
    assert(estimate_s(t, "select f()") > 0.2); /* it is the only one: its time is known */
    talk_close(t);
    world_close(w);
}

/* All ends come in one read: a share each, all of it together, and nothing is learnt from that. */
static void what_ends_together_shares_the_time(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    policy(w, BY_JOB, 1);
    run_string(w, t, "select 1; select f() /*job='r'*/", 500, 2);
    assert(charged_ms(w, "all") == 500 && charged_ms(w, "r") >= 249 && charged_ms(w, "r") <= 251);
    for (int i = 0; i < 6; i++)
        run_string(w, t, "select 1; select f()", 500, 2);
    assert(charged_ms(w, "all") == 3500);
    assert(estimate_s(t, "select 1") < 0.001);
    /* One is known to be small: the rest is the other's. */
    for (int i = 0; i < 4; i++)
        run_string(w, t, "select 1", 1, 1);
    run_string(w, t, "select 1; select g() /*job='r'*/", 500, 2);
    assert(charged_ms(w, "r") >= 740);
    talk_close(t);
    world_close(w);
}

/* The end of the first came alone: then its time is its own, in a string as in a pipeline. */
static void what_is_seen_to_end_apart_is_charged_apart(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    uint64_t began_ns = w->thread[0].now_ns;
    hr_ticket first, second;

    policy(w, BY_JOB, 1);
    assert(ask(t, "select 1; select f() /*job='r'*/") == HR_GO);
    first = ticket;
    pass_ms(w, 100);
    hr_step(&t->session, first, false);
    hr_measured(&t->session, false); /* rows of the second are in the same read: nobody knows */
    assert(charged_ms(w, "all") == 0);
    hr_measured(&t->session, true);
    assert(charged_ms(w, "all") == 100);
    pass_ms(w, 300);
    hr_done(&t->session, first, began_ns, false);
    assert(charged_ms(w, "r") == 300 && charged_ms(w, "all") == 400);

    began_ns = w->thread[0].now_ns;
    assert(ask(t, "select 2") == HR_GO);
    first = ticket;
    assert(ask_with(t, "select 3 /*job='r'*/", HR_ASK_RUNNING) == HR_GO);
    second = ticket;
    pass_ms(w, 200);
    hr_done(&t->session, first, began_ns, false);
    assert(charged_ms(w, "all") == 400 && client_named(w, "etl")->running == 1);
    hr_done(&t->session, second, w->thread[0].now_ns, false);
    assert(charged_ms(w, "all") == 600 && charged_ms(w, "r") >= 399 && charged_ms(w, "r") <= 401);
    assert(t->session.gate.over == 0 && client_named(w, "etl")->running == 0);

    began_ns = w->thread[0].now_ns;
    assert(ask(t, "select 2") == HR_GO);
    first = ticket;
    assert(ask_with(t, "select 3 /*job='r'*/", HR_ASK_RUNNING) == HR_GO);
    second = ticket;
    pass_ms(w, 200);
    hr_done(&t->session, first, began_ns, false);
    hr_measured(&t->session, true);
    pass_ms(w, 50);
    hr_done(&t->session, second, w->thread[0].now_ns - 50 * MS, false);
    assert(charged_ms(w, "all") == 850 && charged_ms(w, "r") >= 449 && charged_ms(w, "r") <= 451);
    talk_close(t);
    world_close(w);
}

/* MySQL sends each end as it comes. */
static void ends_of_mysql_are_apart(void)
{
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *t = asker(w, 0, "etl");
    uint64_t began_ns = w->thread[0].now_ns;
    hr_ticket held;

    policy(w, BY_JOB, 1);
    assert(ask(t, "select 1; select f() /*job='r'*/; select 3") == HR_GO);
    held = ticket;
    pass_ms(w, 100);
    hr_step(&t->session, held, false);
    pass_ms(w, 300);
    hr_step(&t->session, held, false);
    assert(charged_ms(w, "all") == 100);
    pass_ms(w, 50);
    hr_done(&t->session, held, began_ns, false);
    assert(charged_ms(w, "r") == 300 && charged_ms(w, "all") == 450);
    talk_close(t);
    world_close(w);
}

/* A Bind whose Execute did not come: neither its place nor its charge, and nothing is learnt. */
static void what_was_never_begun_gives_all_back(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl"), *b = asker(w, 0, "etl");
    hr_ticket held;

    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'rate':10,'capacity':100,"
           "'max_delay_s':5,'penalty_s':0,'rules':[{'match':{'username':'etl'}}]}]}",
           1);
    assert(ask(a, "select f()") == HR_GO);
    held = ticket;
    assert(ask(b, "select f()") == HR_WAIT);
    pass_ms(w, 400);
    hr_unused(&a->session, held);
    assert(b->woken == 1 && ask(b, "select f()") == HR_GO);
    assert(count_of(w, "etl")->charged_ns == 0 && client_named(w, "etl")->wall_ns == 0);
    assert(client_named(w, "etl")->running == 1 && a->session.gate.tickets == 0);
    done(b, ticket);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* P3: what is bound and not executed was planned, however long that took. */
static void what_was_only_planned_is_charged_and_teaches_nothing(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl"), *b = asker(w, 0, "etl");
    hr_ticket held;

    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'rate':10,'capacity':100,"
           "'max_delay_s':5,'penalty_s':0,'rules':[{'match':{'username':'etl'}}]}]}",
           1);
    assert(ask(a, "select f()") == HR_GO);
    held = ticket;
    assert(ask(b, "select f()") == HR_WAIT);
    hr_bound(&a->session, held);
    assert(b->woken == 1 && ask(b, "select f()") == HR_GO);
    done(b, ticket);
    pass_ms(w, 400);
    hr_planned(&a->session, held, a->session.thread->now_ns - 400 * MS);
    assert(count_of(w, "etl")->charged_ns == 400 * MS && a->session.gate.tickets == 0);
    assert(client_named(w, "etl")->running == 0);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* Of a statement that runs there is nothing to try again, nor to make cheaper. */
static void hints_of_warnings_fit_what_has_run(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl"), *web = asker(w, 0, "web");

    policy(
        w,
        "{'budgets':[{'name':'off','mode':'warn','max_workers':0,'rules':[{'match':{'username':'etl'}}]},"
        "{'name':'near','mode':'enforce','max_workers':1,'warning_threshold':50,"
        "'rules':[{'match':{'username':'web'}}]}]}",
        1);
    assert(ask(t, "select 1") == HR_GO_WARNED && words.retry_ms == 0);
    assert(strstr(words.hint, "Warn mode: the statement runs.") == words.hint);
    done(t, ticket);
    assert(ask(web, "select 1") == HR_GO_WARNED && words.retry_ms == 0);
    assert(strstr(words.hint, "The statement runs. Over the limit") == words.hint);
    done(web, ticket);
    talk_close(t);
    talk_close(web);
    world_close(w);
}

/* Each of several is decided, holds its place while it runs, and is charged its own time. */
static void a_string_of_statements_is_decided_and_settled_one_by_one(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    talk *other = asker(w, 1, "etl");
    hr_ticket held;

    one_at_a_time(w, "0");
    assert(ask(t, "begin; select 1; set a = 1; select 2; commit") == HR_GO);
    held = ticket;
    assert(count_of(w, "etl")->admitted == 2 && count_of(w, "etl")->passed == 0);
    assert(ask(other, "select 1") == HR_BLOCK);
    hr_step(&t->session, held, false); /* begin */
    pass_ms(w, 3);
    hr_step(&t->session, held, false); /* select 1 */
    hr_measured(&t->session, true);
    assert(client_named(w, "etl")->wall_ns == 3 * MS);
    assert(ask(other, "select 1") == HR_BLOCK); /* handed on */
    hr_step(&t->session, held, false); /* set */
    pass_ms(w, 4);
    hr_step(&t->session, held, false); /* select 2 */
    hr_step(&t->session, held, false); /* commit: nothing is left */
    hr_done(&t->session, held, w->thread[0].now_ns - 7 * MS, false);
    assert(count_of(w, "etl")->charged_ns == 7 * MS);
    assert(client_named(w, "etl")->wall_ns == 7 * MS && client_named(w, "etl")->running == 0);
    assert(ask(other, "select 1") == HR_GO);
    done(other, ticket);
    talk_close(t);
    talk_close(other);
    world_close(w);
}

/* M3: in MySQL a string is no transaction. What its tags say of a statement counts wherever it is. */
static void every_statement_of_a_mysql_string_is_decided(void)
{
    static const char *const blocked[] = {
        "select 1; select 2 /*job='etl'*/",
        "insert into t values (1); select 2 /*job='etl'*/; commit",
        "begin; select 1; commit; select 2 /*job='etl'*/",
        "begin; select 1; create table t (a int); select 2 /*job='etl'*/",
        "begin; call p(); select 2 /*job='etl'*/",
        "begin; select 1; begin; select 2 /*job='etl'*/",
        "begin; select 1; set autocommit = 1; select 2 /*job='etl'*/",
        "/*!99999 begin */; select 1; select 2 /*job='etl'*/",
        "begin; select 2 /*job='etl'*/",
    };
    static const char *const inside[] = {
        "begin; select 1; select 2 /*job='etl'*/",
        "start transaction; insert into t values (1); set @a = 1; select 2 /*job='etl'*/; commit",
        "begin; select 1; commit and chain; select 1; select 2 /*job='etl'*/",
    };
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *a = asker(w, 0, "app");
    talk *b = asker(w, 0, "app");
    hr_ticket held;

    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','max_workers':1,'penalty_s':0,"
           "'rules':[{'match':{'tag.job':'etl'}}]}]}",
           1);
    assert(ask(a, "select 1 /*job='etl'*/") == HR_GO);
    held = ticket;
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++)
        assert(ask(b, blocked[i]) == HR_BLOCK);
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        assert(ask(b, inside[i]) == HR_GO);
        done(b, ticket);
    }
    assert(ask_with(b, "select 1; select 2 /*job='etl'*/", HR_ASK_BEGUN) == HR_GO);
    done(b, ticket);
    assert(ask_with(b, "select 2 /*job='etl'*/; select 1", HR_ASK_BEGUN) == HR_BLOCK);
    assert(ask_with(b, "select 1; select 2 /*job='etl'*/", HR_ASK_IN_TRANSACTION) == HR_GO);
    done(b, ticket);
    assert(ask_with(b, "select 1; drop table t; select 2 /*job='etl'*/", HR_ASK_IN_TRANSACTION)
           == HR_BLOCK);
    assert(ask_with(b, "select 1; commit; select 2 /*job='etl'*/", HR_ASK_IN_TRANSACTION)
           == HR_BLOCK);
    done(a, held);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

static void a_string_that_fails_gives_the_rest_back(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','rate':10,'capacity':100,'penalty_s':0,"
           "'rules':[{'match':{'username':'etl'}}]}]}",
           1);
    assert(ask(t, "select 1; select 2; select 3") == HR_GO);
    pass_ms(w, 10);
    hr_done(&t->session, ticket, w->thread[0].now_ns - 10 * MS, true);
    assert(count_of(w, "etl")->charged_ns == 10 * MS && client_named(w, "etl")->errors == 1);
    talk_close(t);
    world_close(w);
}

/* Time in which the client did not take the answer is no cost of the server's. */
static void what_the_client_did_not_take_is_not_charged(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    t->session.paused_ns = 77 * MS;
    assert(ask(t, "select 1") == HR_GO);
    pass_ms(w, 30);
    t->session.paused_ns += 20 * MS;
    hr_done(&t->session, ticket, w->thread[0].now_ns - 30 * MS, false);
    assert(client_named(w, "etl")->wall_ns == 10 * MS);
    talk_close(t);
    world_close(w);
}

/* R105: what a pattern took is what the next one is estimated at. */
static void cost_is_learnt_by_pattern(void)
{
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *t = asker(w, 0, "etl");

    policy(w,
           "{'budgets':[{'name':'etl','mode':'enforce','burst':10,'penalty_s':0,"
           "'rules':[{'match':{'username':'etl'}}]}]}",
           1);
    assert(ask(t, "select a from t where b = 1") == HR_GO);
    pass_ms(w, 900);
    hr_done(&t->session, ticket, w->thread[0].now_ns - 900 * MS, false);
    assert(ask(t, "select a from t where b = 2") == HR_BLOCK); /* 10 % of a second of 2 CPUs */
    assert(strstr(words.message, "9 of 10 executions need at most 1.464 s of CPU, 0.200 s allowed")
           != NULL);
    assert(strstr(words.detail, "estimate_ms=900.0") != NULL);
    assert(ask(t, "select a from t where c = 2") == HR_GO); /* another shape */
    done(t, ticket);
    talk_close(t);
    world_close(w);
}

/* A plan is asked for once, and from then on its cost counts, under a key of its own. */
static void a_plan_is_asked_for_once(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_event event;
    uint64_t pattern;

    policy(
        w,
        "{'budgets':[{'name':'etl','mode':'enforce','burst':10,'penalty_s':0,"
        "'rules':[{'match':{'username':'etl'}}]},"
        "{'name':'web','mode':'enforce','max_workers':3,'rules':[{'match':{'username':'web'}}]}]}",
        1);
    assert(ask(t, "select a from t where b = $1") == HR_GO);
    done(t, ticket);
    assert(next_event(w, HR_EVENT_PATTERN, &event) && event.text_whole && event.parameters);
    assert(memcmp(event.text, "etlshopselect a", 15) == 0);
    pattern = event.pattern;
    assert(ask(t, "select a from t where b = $1") == HR_GO);
    done(t, ticket);
    assert(!next_event(w, HR_EVENT_PATTERN, &event));
    hr_plan_put(w->relay.state, pattern, 1e6); /* by 5 µs a unit: 5 s */
    assert(ask(t, "select a from t where b = $1") == HR_BLOCK);
    hr_plan_put(w->relay.state, pattern, 10);
    assert(ask(t, "select a from t where b = $1") == HR_GO);
    done(t, ticket);
    hr_session_names(&t->session, "web", NULL, NULL); /* places need no cost */
    assert(ask(t, "select z from t") == HR_GO);
    done(t, ticket);
    assert(!next_event(w, HR_EVENT_PATTERN, &event));
    talk_close(t);
    world_close(w);
}

static void a_dry_run_lets_everything_pass_and_holds_nothing(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");
    hr_ticket held;

    w->relay.settings.dry_run = 1;
    one_at_a_time(w, "5");
    assert(ask(a, "select 1") == HR_GO);
    held = ticket;
    assert(ask(b, "select 1") == HR_GO_WARNED && words.cause == HR_BY_BUDGET && ticket != 0);
    assert(count_of(w, "etl")->warned[HG_CONCURRENCY] == 1
           && count_of(w, "etl")->blocked[HG_CONCURRENCY] == 0);
    assert(client_named(w, "etl")->warned == 1);
    done(b, ticket);
    done(a, held);
    say(w, "etl", (hr_gate){.ratio = UINT32_MAX, .action = HR_ACT_CLOSE, .cause = HR_BY_RULE});
    assert(ask(a, "select 1") == HR_GO_WARNED && words.cause == HR_BY_RULE);
    done(a, ticket);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* R123: a budget that warns, and one that is nearly used up. */
static void a_warning_says_what_would_be(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    policy(
        w,
        "{'budgets':[{'name':'soft','mode':'warn','max_workers':0,'rules':[{'match':{'username':'etl'}}]},"
        "{'name':'near','mode':'enforce','max_workers':2,'warning_threshold':50,"
        "'rules':[{'match':{'username':'web'}}]}]}",
        1);
    assert(ask(t, "select 1") == HR_GO_WARNED
           && strstr(words.message, "budget \"soft\": concurrency") != NULL);
    done(t, ticket);
    hr_session_names(&t->session, "web", NULL, NULL);
    assert(ask(t, "select 1") == HR_GO);
    {
        hr_ticket held = ticket;
        talk *other = asker(w, 0, "web");

        assert(ask(other, "select 1") == HR_GO_WARNED);
        assert(strstr(words.message, "budget \"near\": warning threshold of the concurrency limit")
               != NULL);
        done(other, ticket);
        done(t, held);
        talk_close(other);
    }
    talk_close(t);
    world_close(w);
}

/* The policy changes under those who wait: all is decided again. */
static void a_new_policy_frees_those_who_wait(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 2, "etl");
    hr_ticket held;

    one_at_a_time(w, "5");
    assert(ask(a, "select 1") == HR_GO);
    held = ticket;
    assert(ask(b, "select 1") == HR_WAIT);
    policy(w, "{'budgets':[]}", 2);
    assert(ask(b, "select 1") == HR_WAIT); /* it has not been woken */
    hr_gate_stir(&w->thread[2]);
    assert(b->woken == 1 && ask(b, "select 1") == HR_GO);
    assert(count_of(w, "etl")->sleeping == 0);
    done(b, ticket);
    done(a, held);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* More run at once than there are places to note them: they are decided all the same. */
static void without_a_slot_a_look_decides(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    talk *web = asker(w, 0, "web");
    hr_ticket held[128];
    uint32_t taken = 0;

    one_at_a_time(w, "5");
    assert(ask(t, "select 1") == HR_GO);
    held[taken++] = ticket;
    while (taken < 128) {
        assert(ask(web, "select 1") == HR_GO && ticket != 0);
        held[taken++] = ticket;
    }
    assert(ask(web, "select 1") == HR_GO && ticket == 0);
    assert(ask(t, "select 1") == HR_BLOCK); /* nor can it be held */
    assert(atomic_load(&w->relay.state->runnings_full) > 0);
    while (taken > 0)
        done(t, held[--taken]);
    talk_close(t);
    talk_close(web);
    world_close(w);
}

/* R145: statements can be replayed, with their tags; what is blocked as well. */
static void traces_are_kept(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    const hg_trace *traces = (const hg_trace *) ((char *) w->relay.region
                                                 + w->relay.region->traces_at);

    one_at_a_time(w, "0");
    assert(ask(t, "select 1 /*job='nightly'*/") == HR_GO);
    pass_ms(w, 40);
    hr_done(&t->session, ticket, w->thread[0].now_ns - 40 * MS, false);
    assert(w->relay.region->traced == 1 && traces[0].actual_ns == 40 * MS && traces[0].weight == 1);
    assert(memcmp(traces[0].text, "etlshopjob\0nightly\0", 19) == 0 && traces[0].tags_length == 12);
    policy(w, "{'budgets':[{'name':'no','mode':'enforce','burst':0,'penalty_s':0,'rules':[{}]}]}",
           2);
    assert(ask(t, "select 1 /*job='nightly'*/") == HR_BLOCK);
    assert(w->relay.region->traced == 2 && traces[1].verdict == HG_BLOCK
           && traces[1].tags_length == 12);
    talk_close(t);
    world_close(w);
}

/* A long text with something free in front must not be a way past the gate. */
static void what_is_cut_is_never_free(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    static const char *const texts[] = {"set a = 1; /* and so on", "/* nothing yet", "begin; "};
    hr_prepared *prepared;

    policy(w, "{'budgets':[{'name':'no','mode':'enforce','burst':0,'penalty_s':0,'rules':[{}]}]}",
           1);
    for (int i = 0; i < 3; i++) {
        assert(ask(t, texts[i]) == HR_GO);
        assert(ask_with(t, texts[i], HR_ASK_TRUNCATED) == HR_BLOCK);
        prepared = hr_prepare(&t->session, texts[i], strlen(texts[i]), true);
        assert(hr_prepared_kind(prepared) == HR_KIND_WRITE);
        assert(hr_ask_prepared(&t->session, prepared, 0, &words, &ticket) == HR_BLOCK);
        hr_prepared_drop(&t->session, prepared);
    }
    talk_close(t);
    world_close(w);
}

/* P4: whatever the rest of a text may say, its budgets are checked; but none of another user's. */
static void what_is_cut_is_never_unmatched(void)
{
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *t = asker(w, 0, "app");
    static const char *const budgets[] = {
        "{'match':{'tag.job':'etl'}}",
        "{'match':{'fingerprint':'00000000000000aa'}}",
        "{'match':{'tag.job':'etl','username':'app'}}",
        "{'each':['tag.tenant']}",
    };
    hr_prepared *prepared;
    char text[512];

    for (uint64_t i = 0; i < 4; i++) {
        snprintf(
            text, sizeof text,
            "{'budgets':[{'name':'no','mode':'enforce','burst':0,'penalty_s':0,'rules':[%s]}]}",
            budgets[i]);
        policy(w, text, i + 1);
        assert(ask(t, "select 1") == HR_GO);
        done(t, ticket);
        assert(ask_with(t, "select 1", HR_ASK_TRUNCATED) == HR_BLOCK);
        assert(ask_with(t, "select 1 /*job='other'*/", HR_ASK_TRUNCATED) == HR_BLOCK);
        assert(strstr(words.detail, " text=cut") != NULL && strstr(words.hint, "1 MiB") != NULL);
        assert(ask_with(t, "select 1; /* and so on", HR_ASK_TRUNCATED) == HR_BLOCK);
        /* Nor is what is not known at all. */
        assert(hr_ask(&t->session, NULL, 0, &words, &ticket) == HR_BLOCK);
        assert(strstr(words.detail, " text=unknown") != NULL
               && strstr(words.hint, "prepare it again") != NULL);
        assert(ask(t, "execute nobody_knows") == HR_BLOCK);
        prepared = hr_prepare(&t->session, "select 1", 8, true);
        assert(hr_ask_prepared(&t->session, prepared, 0, &words, &ticket) == HR_BLOCK);
        hr_prepared_drop(&t->session, prepared);
    }
    policy(w,
           "{'budgets':[{'name':'no','mode':'enforce','burst':0,'penalty_s':0,"
           "'rules':[{'match':{'tag.job':'etl','username':'etl'}}]}]}",
           5);
    assert(ask_with(t, "select 1", HR_ASK_TRUNCATED) == HR_GO);
    done(t, ticket);
    assert(hr_ask(&t->session, NULL, 0, &words, &ticket) == HR_GO);
    done(t, ticket);
    talk_close(t);
    world_close(w);
}

int main(void)
{
    what_is_cut_is_never_free();
    what_is_cut_is_never_unmatched();
    without_a_policy_everything_runs();
    a_full_budget_blocks_in_the_extensions_words();
    inside_a_transaction_it_passes_unless_the_limit_is_0();
    who_waits_goes_by_priority_and_arrival();
    a_wait_ends_at_its_deadline_with_the_reason();
    a_cancel_and_a_hang_up_leave_the_queue();
    a_blocked_client_waits_for_its_penalty();
    a_pipeline_waits_its_turn_where_places_are_counted();
    a_full_queue_is_counted_where_it_is();
    free_statements_take_no_time();
    what_ends_together_shares_the_time();
    what_is_seen_to_end_apart_is_charged_apart();
    ends_of_mysql_are_apart();
    what_was_never_begun_gives_all_back();
    what_was_only_planned_is_charged_and_teaches_nothing();
    hints_of_warnings_fit_what_has_run();
    a_string_of_statements_is_decided_and_settled_one_by_one();
    every_statement_of_a_mysql_string_is_decided();
    a_string_that_fails_gives_the_rest_back();
    what_the_client_did_not_take_is_not_charged();
    cost_is_learnt_by_pattern();
    a_plan_is_asked_for_once();
    a_dry_run_lets_everything_pass_and_holds_nothing();
    a_warning_says_what_would_be();
    a_new_policy_frees_those_who_wait();
    without_a_slot_a_look_decides();
    traces_are_kept();
    puts("test_gate: ok");
    return 0;
}
