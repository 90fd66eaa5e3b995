/* Prepared statements: shared, bounded, and decided as their text would be. */
#include "gate_world.h"

static hr_prepared *prepare(talk *t, const char *text)
{
    hr_prepared *prepared = hr_prepare(&t->session, text, strlen(text), false);

    assert(prepared != NULL);
    return prepared;
}

static hr_said run(talk *t, hr_prepared *prepared)
{
    words = (hr_words){0};
    return hr_ask_prepared(&t->session, prepared, HR_ASK_BINARY, &words, &ticket);
}

static const char one_budget[]
    = "{'budgets':[{'name':'x','mode':'enforce','max_workers':%d,'penalty_s':0,"
      "'rules':[{'match':{'tag.job':'x'}}]},"
      "{'name':'app','mode':'enforce','max_workers':0,'penalty_s':0,"
      "'rules':[{'match':{'application_name':'bad'}}]}]}";

static void budgets_of_tags(world *w, int workers, uint64_t version)
{
    char text[512];

    snprintf(text, sizeof text, one_budget, workers);
    policy(w, text, version);
}

static void the_same_text_is_kept_once(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "web");
    hr_prepared *one = prepare(a, "select $1");
    hr_prepared *two = prepare(b, "select $1");
    hr_prepared *other = prepare(b, "select $2");

    assert(one == two && one != other && one->users == 2);
    assert(hr_prepared_kind(one) == HR_KIND_READ);
    hr_prepared_drop(&a->session, one);
    hr_prepared_drop(&b->session, two);
    assert(prepare(a, "select $1") == one); /* kept for a while */
    hr_prepared_drop(&a->session, one);
    hr_prepared_drop(&b->session, other);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

static void those_nobody_has_are_bounded(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_prepared *used = prepare(t, "select used");
    char text[64];

    for (int i = 0; i < 10000; i++) {
        snprintf(text, sizeof text, "select %d", i);
        hr_prepared_drop(&t->session, prepare(t, text));
    }
    assert(w->thread[0].gate->prepareds <= HR_IDLE_PREPAREDS + 1);
    assert(w->thread[0].gate->prepareds == w->thread[0].gate->idle_prepareds + 1);
    assert(prepare(t, "select used") == used);
    hr_prepared_drop(&t->session, used);
    hr_prepared_drop(&t->session, used);
    talk_close(t);
    world_close(w);
}

static void a_long_text_is_not_taken_for_another(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    size_t length = HR_WINDOW_BYTES;
    char *text = malloc(length);
    hr_prepared *one, *two;

    memset(text, ' ', length);
    memcpy(text, "select 1", 8);
    memcpy(text + length - 12, "/*job='x'*/ ", 12);
    one = hr_prepare(&t->session, text, length, true);
    two = hr_prepare(&t->session, text, length, true);
    assert(one != two && one->tag_count == 1 && one->text_length == HR_KEPT_TEXT);
    assert(w->counts[0].truncated_texts == 2);
    hr_prepared_drop(&t->session, one);
    hr_prepared_drop(&t->session, two);
    free(text);
    talk_close(t);
    world_close(w);
}

/* What was found is used again, and not when policy, session or health are others. */
static void what_is_remembered_follows_what_it_was_found_by(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_prepared *prepared = prepare(t, "select $1 /*job='x'*/");

    budgets_of_tags(w, 1, 1);
    for (int i = 0; i < 3; i++) {
        assert(run(t, prepared) == HR_GO);
        done(t, ticket);
    }
    assert(count_of(w, "x")->admitted == 3);
    assert(prepared->next_lookup == 1); /* found once */
    hr_session_names(&t->session, NULL, NULL, "bad");
    assert(run(t, prepared) == HR_BLOCK && strstr(words.message, "\"app\"") != NULL);
    hr_session_names(&t->session, NULL, NULL, "good");
    budgets_of_tags(w, 0, 2);
    assert(run(t, prepared) == HR_BLOCK && strstr(words.message, "\"x\"") != NULL);
    hr_prepared_drop(&t->session, prepared);
    talk_close(t);
    world_close(w);
}

static void health_and_expiry_change_what_matches(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_prepared *prepared = prepare(t, "select $1");
    char text[512];

    snprintf(
        text, sizeof text,
        "{'budgets':[{'name':'h','mode':'enforce','burst':0,'penalty_s':0,'when':'unhealthy','rules':[{}]},"
        "{'name':'e','mode':'enforce','burst':0,'penalty_s':0,'expires_at':%lld,'rules':[{}]}]}",
        (long long) (w->thread[0].wall_ms / 1000 + 10));
    policy(w, text, 1);
    assert(run(t, prepared) == HR_BLOCK && strstr(words.message, "\"e\"") != NULL);
    pass_ms(w, 11000);
    assert(run(t, prepared) == HR_GO);
    done(t, ticket);
    hg_tell_health(w->relay.region, false, w->thread[0].wall_ms + 1000);
    assert(run(t, prepared) == HR_BLOCK && strstr(words.message, "\"h\"") != NULL);
    hg_tell_health(w->relay.region, true, w->thread[0].wall_ms + 1000);
    assert(run(t, prepared) == HR_GO);
    done(t, ticket);
    hr_prepared_drop(&t->session, prepared);
    talk_close(t);
    world_close(w);
}

static void a_free_text_stays_free_and_is_followed(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_prepared *begin = prepare(t, "begin");
    hr_prepared *many = prepare(t, "select 1; select 2");

    policy(w, "{'budgets':[{'name':'no','mode':'enforce','burst':0,'penalty_s':0,'rules':[{}]}]}",
           1);
    assert(run(t, begin) == HR_GO && ticket == 0 && hr_prepared_kind(begin) == HR_KIND_BEGIN);
    assert(run(t, many) == HR_BLOCK && hr_prepared_kind(many) == HR_KIND_MANY);
    hr_prepared_drop(&t->session, begin);
    hr_prepared_drop(&t->session, many);
    talk_close(t);
    world_close(w);
}

/* L9: texts count under max_buffer_bytes, one that is shared once. */
static void texts_are_under_the_bound_of_buffers(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl"), *u = asker(w, 0, "web");
    char *text = calloc(1, 8001);
    hr_prepared *one = prepare(t, "select 1 /*job='x'*/"), *two, *others[3];
    uint64_t bytes = w->memory_bytes;

    assert(bytes > 20);
    two = prepare(u, "select 1 /*job='x'*/");
    assert(two == one && w->memory_bytes == bytes);
    memset(text, ' ', 8000);
    memcpy(text, "select 2", 8);
    for (int i = 0; i < 3; i++) { /* longer than is kept: each its own, of what is kept */
        others[i] = prepare(t, text);
        assert(w->memory_bytes > bytes + (uint64_t) (i + 1) * 7000u);
    }
    for (int i = 0; i < 3; i++)
        hr_prepared_drop(&t->session, others[i]);
    assert(w->memory_bytes == bytes);
    w->out_of_memory = true;
    assert(hr_prepare(&t->session, "select 3", 8, false) == NULL && w->counts[0].unkept_texts == 1);
    assert(prepare(t, "select 1 /*job='x'*/") == one); /* it is there */
    for (int i = 0; i < 3; i++)
        hr_prepared_drop(&t->session, one);
    assert(w->memory_bytes == bytes); /* kept, for who prepares it again; */
    assert(hr_prepare(&t->session, "select 3", 8, false) == NULL);
    assert(w->memory_bytes == 0); /* but not when it is needed */
    free(text);
    talk_close(t);
    talk_close(u);
    world_close(w);
}

/* EXECUTE is what was prepared; without a PREPARE that we have seen, whatever it could be. Here the gate itself
 * keeps the names; see test_pg_names.c for those that the machine keeps. */
static void what_execute_runs_decides(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *t = asker(w, 0, "etl");
    hr_machine nameless = *t->session.machine;
    hr_prepared *execute = prepare(t, "execute A (1)");

    nameless.named = NULL;
    t->session.machine = &nameless;
    budgets_of_tags(w, 0, 1);
    assert(ask(t, "prepare a (int) as select $1 /*job='x'*/") == HR_GO && ticket == 0);
    assert(ask(t, "execute a(1)") == HR_BLOCK);
    assert(ask(t, "explain analyze execute a(1)") == HR_BLOCK);
    assert(run(t, execute) == HR_BLOCK);
    assert(ask(t, "execute b(1)") == HR_BLOCK);
    assert(ask(t, "execute b(1) /*job='x'*/") == HR_BLOCK);
    assert(ask(t, "deallocate a") == HR_GO);
    assert(ask(t, "execute a(1)") == HR_BLOCK);
    assert(ask(t, "prepare a as select 1; execute a; deallocate all") == HR_GO);
    done(t, ticket);
    for (int i = 0; i < 200; i++) {
        char text[64];

        snprintf(text, sizeof text, "prepare p%d as select %d", i, i);
        assert(ask(t, text) == HR_GO);
    }
    hr_prepared_drop(&t->session, execute);
    talk_close(t);
    world_close(w);
}

static void prepare_from_a_literal_in_mysql(void)
{
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *t = asker(w, 0, "etl");

    budgets_of_tags(w, 0, 1);
    assert(ask(t, "prepare a from 'select ? /*job=x*/'") == HR_GO);
    assert(ask(t, "execute a using @b") == HR_BLOCK);
    assert(ask(t, "prepare a from 'select ?'") == HR_GO);
    assert(ask(t, "execute a using @b") == HR_GO);
    done(t, ticket);
    assert(ask(t, "prepare a from @text") == HR_GO);
    assert(ask(t, "execute a using @b") == HR_BLOCK);
    assert(ask(t, "drop prepare a") == HR_GO);
    talk_close(t);
    world_close(w);
}

/* Costs are learnt by database, though sessions of two of them may share all else. */
static void the_same_text_costs_otherwise_in_another_database(void)
{
    world *w = world_open(HR_PROTOCOL_MYSQL);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");
    hr_prepared *prepared = prepare(a, "select $1");

    hr_session_names(&b->session, NULL, "small", NULL);
    policy(w, "{'budgets':[{'name':'u','mode':'enforce','burst':10,'penalty_s':0,'rules':[{}]}]}",
           1);
    assert(run(a, prepared) == HR_GO);
    pass_ms(w, 900);
    hr_done(&a->session, ticket, w->thread[0].now_ns - 900 * MS, false);
    assert(run(a, prepared) == HR_BLOCK);
    assert(run(b, prepared) == HR_GO);
    assert(a->session.gate.resolution == b->session.gate.resolution);
    done(b, ticket);
    hr_prepared_drop(&a->session, prepared);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

/* Thousands of sessions: those that are alike share what they resolve to. */
static void sessions_that_are_alike_share(void)
{
    world *w = world_open(HR_PROTOCOL_POSTGRES);
    talk *a = asker(w, 0, "etl");
    talk *b = asker(w, 0, "etl");

    policy(
        w,
        "{'budgets':[{'name':'u','mode':'enforce','max_workers':9,'rules':[{'match':{'username':'etl'}}]}]}",
        1);
    hr_session_names(&b->session, NULL, "other", "another"); /* nobody asks for these */
    assert(ask(a, "select 1") == HR_GO);
    done(a, ticket);
    assert(ask(b, "select 1") == HR_GO);
    done(b, ticket);
    assert(a->session.gate.resolution == b->session.gate.resolution);
    assert(w->thread[0].gate->resolutions == 1 && a->session.gate.resolution->users == 2);
    talk_close(a);
    talk_close(b);
    world_close(w);
}

int main(void)
{
    the_same_text_is_kept_once();
    those_nobody_has_are_bounded();
    a_long_text_is_not_taken_for_another();
    what_is_remembered_follows_what_it_was_found_by();
    health_and_expiry_change_what_matches();
    a_free_text_stays_free_and_is_followed();
    texts_are_under_the_bound_of_buffers();
    what_execute_runs_decides();
    prepare_from_a_literal_in_mysql();
    the_same_text_costs_otherwise_in_another_database();
    sessions_that_are_alike_share();
    puts("test_gate_prepared: ok");
    return 0;
}
