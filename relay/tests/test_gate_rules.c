/* What Python says of a client: rules, health, pace, and what applies when it says nothing more. */
#include "gate_world.h"

static hr_gate always(uint8_t action)
{
    return (hr_gate){.ratio = UINT32_MAX,
                     .action = action,
                     .cause = HR_BY_HEALTH,
                     .retry_ms = 400,
                     .max_delay_ms = 1000,
                     .max_delayed = 1,
                     .reason = "lag 12.3 s > 5 s on primary-a"};
}

static void a_new_client_is_told_of_and_passes_until_something_is_said(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_event event;

    w->relay.state->lost = HR_ACT_BLOCK;
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    assert(next_event(w, HR_EVENT_CLIENT, &event) && event.number >= 2);
    assert(event.text_length == 3 && memcmp(event.text, "etl", 3) == 0);
    assert(event.pattern == clients_of(w)[event.number].key);
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    assert(!next_event(w, HR_EVENT_CLIENT, &event));
    talk_close(t);
    world_close(w);
}

static void made_up_names_meet_the_gate_of_the_many_others(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *known = asker(w, 0, "etl"), *made_up = asker(w, 0, "etl-4711");

    assert(ask(known, "select 1") == HR_GO);
    done(known, ticket);
    say(w, "etl", (hr_gate){.ratio = 0});
    say(w, "others", always(HR_ACT_BLOCK));
    assert(ask(known, "select 1") == HR_GO);
    done(known, ticket);
    assert(ask(made_up, "select 1") == HR_BLOCK);
    say(w, "etl-4711", (hr_gate){.ratio = 0});
    assert(ask(made_up, "select 1") == HR_GO);
    done(made_up, ticket);
    talk_close(known);
    talk_close(made_up);
    world_close(w);
}

static void enter(world *w, const char *level, hr_gate gate)
{
    uint64_t key;
    uint32_t index = hr_client_enter(w->relay.state, 1, level, strlen(level), w->thread[0].now_ns,
                                     &key);

    assert(index > HR_OTHERS);
    hr_gate_put(w->relay.state, index, key, &gate);
}

/* A hold on `etl` is for jobs that call themselves etl:<run>, each once: at their first statement, also
 * where there is no place for them; and it gets the errors with the rule's own words. */
static void a_rule_on_a_level_bites_a_new_name_at_once(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "run-1:etl"), *web = asker(w, 0, "web:1");
    hr_gate gate = always(HR_ACT_BLOCK);

    gate.cause = HR_BY_RULE;
    strcpy(gate.reason, "rule 7 throttles every statement of etl");
    enter(w, "etl", gate);
    say(w, "others", (hr_gate){.ratio = 0});
    assert(ask(t, "select 1") == HR_BLOCK && words.cause == HR_BY_RULE);
    assert(strcmp(words.message,
                  "[HEADGATE] Traffic Control: client \"run-1:etl\": rule: rule 7 throttles "
                  "every statement of etl")
           == 0);
    assert(client_named(w, "run-1:etl")->blocked[HR_BY_RULE] == 1
           && client_named(w, "etl")->statements == 0);
    assert(ask(web, "select 1") == HR_GO);
    done(web, ticket);
    say(w, "run-1:etl", (hr_gate){.ratio = 0}); /* its own word comes first */
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    for (uint32_t i = 0; i < 20000; i++) {
        char name[32];

        snprintf(name, sizeof name, "made-up-%u", i);
        hr_session_names(&web->session, name, NULL, NULL);
        assert(ask(web, "select 1") == HR_GO);
        done(web, ticket);
    }
    assert(w->relay.state->clients_full > 0);
    for (uint32_t i = 0; i < 100; i++) {
        char name[32];

        snprintf(name, sizeof name, "etl:late-%u", i);
        hr_session_names(&web->session, name, NULL, NULL);
        assert(ask(web, "select 1") == HR_BLOCK && ask(web, "select 1") == HR_BLOCK);
    }
    assert(clients_of(w)[HR_OTHERS].blocked[HR_BY_RULE] > 0);
    talk_close(t);
    talk_close(web);
    world_close(w);
}

/* Held by its level, and let go when Python has said otherwise of the client itself. */
static void what_waits_for_its_level_hears_its_own_word(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl:1");

    enter(w, "etl", always(HR_ACT_DELAY));
    assert(ask(t, "select 1") == HR_WAIT);
    pass_ms(w, 250);
    assert(ask(t, "select 1") == HR_WAIT);
    say(w, "etl:1", (hr_gate){.ratio = 0});
    pass_ms(w, 250);
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    talk_close(t);
    world_close(w);
}

static void each_action_does_what_it_says(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_event event;

    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", always(HR_ACT_WARN));
    assert(ask(t, "select 1") == HR_GO_WARNED && words.cause == HR_BY_HEALTH);
    assert(words.retry_ms == 0
           && strstr(words.hint, "Warn mode: the statement runs") == words.hint);
    done(t, ticket);
    say(w, "etl", always(HR_ACT_BLOCK));
    assert(ask(t, "select 1") == HR_BLOCK && words.retry_ms >= 400 && words.retry_ms <= 500);
    assert(strcmp(words.message,
                  "[HEADGATE] Traffic Control: client \"etl\": health: lag 12.3 s > 5 s on "
                  "primary-a")
           == 0);
    assert(strstr(words.detail, "client=etl cause=health ratio=1.000 retry_after_ms=400") != NULL);
    assert(next_event(w, HR_EVENT_WARNED, &event) && next_event(w, HR_EVENT_BLOCKED, &event));
    say(w, "etl", always(HR_ACT_CLOSE));
    assert(ask(t, "select 1") == HR_SHUT);
    assert(ask(t, "commit") == HR_GO); /* what is free is free */
    assert(ask_with(t, "select 1", HR_ASK_IN_TRANSACTION) == HR_GO); /* R148 */
    done(t, ticket);
    assert(client_named(w, "etl")->passed == 1
           && client_named(w, "etl")->blocked[HR_BY_HEALTH] == 2);
    say(w, "etl", (hr_gate){.ratio = UINT32_MAX, .action = HR_ACT_CLOSE, .flags = HR_GATE_EXEMPT});
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    talk_close(t);
    world_close(w);
}

static void only_writes_where_it_says_so(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_gate gate = always(HR_ACT_BLOCK);

    gate.flags = HR_GATE_WRITES_ONLY;
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", gate);
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    assert(ask(t, "select * from t for update") == HR_BLOCK);
    assert(ask(t, "delete from t") == HR_BLOCK);
    assert(ask(t, "select 1; delete from t") == HR_BLOCK);
    talk_close(t);
    world_close(w);
}

/* R95, R100: a share of them, by dice, and of that the share of the priority. */
static void dice_pick_the_share(void)
{
    hg_identity identity = default_identity();
    world *w;
    talk *t;
    int blocked[3] = {0, 0, 0};
    static const char *const texts[] = {"select 1", "select 1 /*priority='50'*/",
                                        "select 1 /*priority='0'*/"};

    strcpy(identity.priority_tag, "priority");
    w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    t = asker(w, 0, "etl");
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl",
        (hr_gate){.ratio = UINT32_MAX / 10 * 4, .action = HR_ACT_BLOCK, .cause = HR_BY_RULE});
    for (int i = 0; i < 30000; i++) {
        if (ask(t, texts[i % 3]) == HR_GO)
            done(t, ticket);
        else
            blocked[i % 3]++;
    }
    assert(blocked[0] > 3700 && blocked[0] < 4300); /* of 10,000: 6 standard deviations */
    assert(blocked[1] > 1750 && blocked[1] < 2250);
    assert(blocked[2] == 0);
    say(w, "etl",
        (hr_gate){.ratio = UINT32_MAX,
                  .action = HR_ACT_BLOCK,
                  .cause = HR_BY_RULE,
                  .ignores_priority = 1});
    assert(ask(t, texts[2]) == HR_BLOCK);
    talk_close(t);
    world_close(w);
}

static void a_delay_passes_after_its_time(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    talk *other = asker(w, 1, "etl");
    hr_gate gate = always(HR_ACT_DELAY);
    hr_event event;

    gate.delay_ms = 300;
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", gate);
    assert(ask(t, "select 1") == HR_WAIT && client_named(w, "etl")->waiting == 1);
    assert(ask(other, "select 1") == HR_BLOCK); /* max_delayed */
    pass_ms(w, 299);
    assert(ask(t, "select 1") == HR_WAIT);
    pass_ms(w, 1);
    assert(ask(t, "select 1") == HR_GO && client_named(w, "etl")->waiting == 0);
    done(t, ticket);
    assert(client_named(w, "etl")->delayed == 1 && client_named(w, "etl")->delayed_ns == 300 * MS);
    assert(next_event(w, HR_EVENT_DELAYED, &event) && event.took_ns == 300 * MS
           && event.by == HR_BY_HEALTH);
    talk_close(t);
    talk_close(other);
    world_close(w);
}

static void a_shut_gate_holds_until_it_opens_or_patience_ends(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", always(HR_ACT_DELAY));
    assert(ask(t, "select 1") == HR_WAIT);
    say(w, "etl", (hr_gate){.action = HR_ACT_PASS});
    assert(ask(t, "select 1") == HR_WAIT);
    hr_gate_stir(&w->thread[0]);
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", always(HR_ACT_DELAY));
    assert(ask(t, "select 1") == HR_WAIT);
    pass_ms(w, 1000);
    assert(ask(t, "select 1") == HR_BLOCK && strstr(words.detail, "waited_ms=1000.000") != NULL);
    talk_close(t);
    world_close(w);
}

/* The agent is gone: what is known ages out, and the stated fail policy applies. */
static void what_is_known_ages_out(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_gate gate = always(HR_ACT_BLOCK);

    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    gate.until_ms = w->thread[0].wall_ms + 10;
    say(w, "etl", gate);
    assert(ask(t, "select 1") == HR_BLOCK && words.cause == HR_BY_HEALTH);
    pass_ms(w, 11);
    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    w->relay.state->lost = HR_ACT_BLOCK;
    assert(ask(t, "select 1") == HR_BLOCK && words.cause == HR_BY_LOSS);
    assert(strstr(words.message, "the database's health is not known") != NULL);
    talk_close(t);
    world_close(w);
}

static void pace(world *w, uint64_t each_ms, uint64_t burst_ms, uint32_t action)
{
    w->relay.state->release.ns_per_unit = each_ms * MS;
    w->relay.state->release.burst_ns = burst_ms * MS;
    w->relay.state->release.action = action;
    w->relay.state->release.max_delay_ms = 100;
}

/* R142: so many a second, and in order. */
static void the_release_paces(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 1, "etl");

    assert(ask(a, "select 1") == HR_GO);
    done(a, ticket);
    say(w, "etl", (hr_gate){.flags = HR_GATE_PACED});
    pace(w, 10, 20, HR_ACT_DELAY);
    assert(ask(a, "select 1") == HR_GO);
    done(a, ticket);
    assert(ask(a, "select 1") == HR_GO); /* two at once */
    done(a, ticket);
    assert(ask(a, "select 1") == HR_WAIT
           && hr_gate_due(&a->session) == w->thread[0].now_ns + 10 * MS);
    assert(ask(b, "select 1") == HR_WAIT);
    pass_ms(w, 10);
    assert(ask(a, "select 1") == HR_GO && b->woken == 1);
    done(a, ticket);
    assert(ask(b, "select 1") == HR_WAIT
           && hr_gate_due(&b->session) == w->thread[1].now_ns + 10 * MS);
    pass_ms(w, 10);
    assert(ask(b, "select 1") == HR_GO);
    done(b, ticket);
    assert(w->relay.state->release.taken == 4 && w->relay.state->release.limited == 2);
    pace(w, 10, 20, HR_ACT_BLOCK);
    assert(ask(b, "select 1") == HR_BLOCK && words.cause == HR_BY_PACE && words.retry_ms >= 10);
    assert(ask_with(b, "select 1", HR_ASK_IN_TRANSACTION) == HR_GO);
    done(b, ticket);
    pace(w, 1000, 1000, HR_ACT_DELAY);
    pass_ms(w, 1000);
    assert(ask(b, "select 1") == HR_GO);
    done(b, ticket);
    assert(ask(b, "select 1") == HR_BLOCK); /* longer than its patience */
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* A unit of the pace that a budget's block made no use of is there for the next. */
static void a_unit_that_was_not_used_is_given_back(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");

    assert(ask(t, "select 1") == HR_GO);
    done(t, ticket);
    say(w, "etl", (hr_gate){.flags = HR_GATE_PACED});
    pace(w, 10, 10, HR_ACT_BLOCK);
    policy(w, "{'budgets':[{'name':'no','mode':'enforce','burst':0,'penalty_s':0,'rules':[{}]}]}",
           1);
    assert(ask(t, "select 1") == HR_BLOCK && words.cause == HR_BY_BUDGET);
    assert(ask(t, "select 1") == HR_BLOCK && words.cause == HR_BY_BUDGET);
    assert(w->relay.state->release.taken == 0);
    talk_close(t);
    world_close(w);
}

/* M3: a string's statements may be of several clients. Each has its own gate, and takes its own unit. */
static void a_rule_bites_wherever_in_a_mysql_string(void)
{
    hg_identity identity = {.sources = 2, .default_priority = 100};
    const char *both = "select 1; select 2 /*job='etl'*/";
    world *w;
    talk *t;

    identity.source[0] = (hg_source){HG_FROM_TAG, 3, "job"};
    identity.source[1].kind = HG_FROM_USER;
    w = world_with(HR_PROTOCOL_MYSQL, &identity);
    t = asker(w, 0, "app");
    assert(ask(t, both) == HR_GO);
    done(t, ticket);
    say(w, "etl", always(HR_ACT_BLOCK));
    assert(ask(t, both) == HR_BLOCK && strstr(words.message, "client \"etl\"") != NULL);
    assert(client_named(w, "etl")->blocked[HR_BY_HEALTH] == 1);
    assert(ask(t, "begin; select 1; select 2 /*job='etl'*/") == HR_GO); /* R148 */
    done(t, ticket);
    assert(ask(t, "begin; select 1; commit; select 2 /*job='etl'*/") == HR_BLOCK);
    assert(ask_with(t, "commit; select 2 /*job='etl'*/", HR_ASK_IN_TRANSACTION) == HR_BLOCK);
    say(w, "etl", always(HR_ACT_DELAY));
    assert(ask(t, both) == HR_WAIT && client_named(w, "etl")->waiting == 1);
    pass_ms(w, 250);
    assert(ask(t, both) == HR_WAIT && client_named(w, "app")->waiting == 0);
    say(w, "etl", (hr_gate){.ratio = 0});
    pass_ms(w, 250);
    assert(ask(t, both) == HR_GO);
    done(t, ticket);
    say(w, "app", (hr_gate){.flags = HR_GATE_PACED});
    pace(w, 10, 20, HR_ACT_BLOCK);
    assert(ask(t, "select 1; select 2") == HR_GO && w->relay.state->release.taken == 2);
    done(t, ticket);
    assert(ask(t, "select 1") == HR_BLOCK && words.cause == HR_BY_PACE);
    talk_close(t);
    world_close(w);
}

int main(void)
{
    a_new_client_is_told_of_and_passes_until_something_is_said();
    made_up_names_meet_the_gate_of_the_many_others();
    a_rule_on_a_level_bites_a_new_name_at_once();
    what_waits_for_its_level_hears_its_own_word();
    each_action_does_what_it_says();
    only_writes_where_it_says_so();
    dice_pick_the_share();
    a_delay_passes_after_its_time();
    a_shut_gate_holds_until_it_opens_or_patience_ends();
    what_is_known_ages_out();
    the_release_paces();
    a_unit_that_was_not_used_is_given_back();
    a_rule_bites_wherever_in_a_mysql_string();
    puts("test_gate_rules: ok");
    return 0;
}
