/*
 * What a name means: prepared by SQL or by protocol, closed by either, confirmed by the server, and decided
 * by the real gate. Nobody runs one text under the name of another.
 */
#include "pg_inside.h"
#include "pg_messages.h"

#define HEAVY "SELECT heavy /* job='x' */"
#define BLOCKED "E53000 ZI"

static world *w;

/* Nothing of ann's runs in the one, nothing of job x in the other. */
static const char all_blocked[]
    = "{\"budgets\":[{\"name\":\"zero\",\"mode\":\"enforce\",\"max_workers\":0,"
      "\"penalty_s\":0,\"rules\":[{\"match\":{\"username\":\"ann\"}}]}]}";
static const char job_blocked[]
    = "{\"budgets\":[{\"name\":\"x\",\"mode\":\"enforce\",\"max_workers\":0,"
      "\"penalty_s\":0,\"rules\":[{\"match\":{\"tag.job\":\"x\"}}]}]}";

static void under(const char *document)
{
    static uint64_t version;

    policy(w, document, ++version);
}

static void parse(talk *t, const char *name, const char *text)
{
    put_parse(&m, name, text);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
}

/* By the extended protocol, as the client's own Parse of no name. */
static void extended(talk *t, const char *text, const char *tag)
{
    put_parse(&m, "", text);
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_complete(&m, tag);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
}

static bool bind_is_blocked(talk *t, const char *name)
{
    put_bind(&m, "", name);
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    return sent_nothing(t, HR_SERVER) && hears(t, BLOCKED);
}

static bool query_is_blocked(talk *t, const char *text)
{
    put_query(&m, text);
    say(t, HR_CLIENT);
    return sent_nothing(t, HR_SERVER) && hears(t, BLOCKED);
}

/* ── A name that was free ─────────────────────────────────────────────────── */

static void sql_gives_a_free_name_another_meaning(void)
{
    static const char *const strings[] = {"; DEALLOCATE s; PREPARE s AS " HEAVY,
                                          "SET a = 1; DEALLOCATE s; PREPARE s AS " HEAVY,
                                          "DEALLOCATE \"s\"; PREPARE s AS " HEAVY,
                                          "DEALLOCATE U&\"!0073\" UESCAPE '!'; PREPARE S AS " HEAVY,
                                          ";DISCARD ALL;PREPARE s AS " HEAVY};

    under(all_blocked);
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        talk *t = open_talk(w);

        parse(t, "s", "SHOW a");
        run(t, strings[i], 'I');
        assert(bind_is_blocked(t, "s"));
        talk_close(t);
    }
}

static void the_same_by_the_extended_protocol(void)
{
    static const char *const forgets[][2] = {{"DEALLOCATE s", "DEALLOCATE"},
                                             {"DISCARD ALL", "DISCARD ALL"},
                                             {"DEALLOCATE ALL", "DEALLOCATE ALL"},
                                             {"DEALLOCATE U&\"!0073\" UESCAPE '!'", "DEALLOCATE"}};

    under(all_blocked);
    for (size_t i = 0; i < sizeof forgets / sizeof *forgets; i++) {
        talk *t = open_talk(w);

        parse(t, "s", "SHOW a");
        extended(t, forgets[i][0], forgets[i][1]);
        extended(t, "PREPARE s AS " HEAVY, "PREPARE");
        assert(bind_is_blocked(t, "s"));
        talk_close(t);
    }
}

/* What a block does is out of sight: its tag tells that it was one. */
static void a_free_name_is_not_trusted_behind_a_block(void)
{
    talk *t;

    under(job_blocked);
    t = open_talk(w);
    parse(t, "s", "SHOW a");
    run(t, "DO $$begin execute 'x'; end$$", 'I');
    under(all_blocked);
    assert(bind_is_blocked(t, "s"));
    under(job_blocked);
    put_close(&m, 'S', "s");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '3', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    parse(t, "s", "SHOW a"); /* of its own again */
    under(all_blocked);
    put_bind(&m, "", "s");
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '2', "", 0);
    put_complete(&m, "SHOW");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    talk_close(t);
}

static void bind_is_free(talk *t, const char *name, const char *tag, uint8_t status)
{
    put_bind(&m, "", name);
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '2', "", 0);
    put_complete(&m, tag);
    put_ready(&m, status);
    passes(t, HR_SERVER);
}

/* L2: a function that a query calls may DEALLOCATE and PREPARE, and its tag does not tell. */
static void a_free_name_is_not_trusted_behind_a_query(void)
{
    static const char *const queries[] = {
        "SELECT swap()", "INSERT INTO t VALUES (1)",      "BEGIN; SELECT swap(); COMMIT", "FETCH c",
        "EXECUTE other", "COPY (SELECT swap()) TO STDOUT"};

    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
        for (int by = 0; by < 2; by++) {
            talk *t;

            under(job_blocked);
            t = open_talk(w);
            parse(t, "other", "SELECT swap()");
            parse(t, "s", "SHOW a");
            if (by == 0)
                run(t, queries[i], 'I');
            else
                extended(t, queries[i], "SELECT 1");
            under(all_blocked);
            assert(bind_is_blocked(t, "s"));
            under(job_blocked);
            parse(t, "s", "SHOW a"); /* prepared again: the server would say if it were another's */
            under(all_blocked);
            bind_is_free(t, "s", "SHOW", 'I');
            talk_close(t);
        }
}

static void a_free_name_stays_free_behind_what_is_free(void)
{
    talk *t;

    under(all_blocked);
    t = open_talk(w);
    parse(t, "s", "SHOW a");
    run(t, "SET a = 1", 'I');
    run(t, "SET a = 1; SHOW b", 'I');
    extended(t, "SET a = 2", "SET");
    bind_is_free(t, "s", "SHOW", 'I');
    bind_is_free(t, "s", "SHOW", 'I');
    talk_close(t);
}

/* Constraint triggers wait for the COMMIT, or for the Sync that is one. */
static void a_free_name_is_not_trusted_behind_a_commit(void)
{
    for (int by = 0; by < 3; by++) {
        talk *t;

        under(job_blocked);
        t = open_talk(w);
        if (by < 2) {
            run(t, "BEGIN; INSERT INTO deferred VALUES (1)", 'T');
            put_parse(&m, "s", "SHOW a");
            put_sync(&m);
            passes(t, HR_CLIENT);
            put_message(&m, '1', "", 0);
            put_ready(&m, 'T');
            passes(t, HR_SERVER);
            if (by == 0)
                run(t, "COMMIT", 'I');
            else
                extended(t, "COMMIT", "COMMIT");
        } else {
            put_parse(&m, "", "INSERT INTO deferred VALUES (1)");
            put_bind(&m, "", "");
            put_execute(&m, "");
            put_parse(&m, "s", "SHOW a");
            put_sync(&m);
            passes(t, HR_CLIENT);
            put_message(&m, '1', "", 0);
            put_message(&m, '2', "", 0);
            put_complete(&m, "INSERT 0 1");
            put_message(&m, '1', "", 0);
            put_ready(&m, 'I');
            passes(t, HR_SERVER);
        }
        under(all_blocked);
        assert(bind_is_blocked(t, "s"));
        talk_close(t);
    }
}

/* A driver that prepares BEGIN by name: the statement behind it is still the transaction's first. */
static void a_doubtful_begin_is_not_the_first_statement(void)
{
    talk *t;

    under(job_blocked);
    t = open_talk(w);
    parse(t, "b", "BEGIN");
    parse(t, "h", HEAVY);
    run(t, "SELECT 1", 'I');
    bind_is_free(t, "b", "BEGIN", 'T');
    put_bind(&m, "", "h");
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    forget_sent(t);
    put_error(&m, "ERROR", "26000", "no such statement");
    put_ready(&m, 'E');
    say(t, HR_SERVER);
    assert(hears(t, "E53000 ZE"));
    talk_close(t);
}

/* L9: without memory for its text a name means nothing, and not what it meant before. */
static void a_name_without_memory_is_not_what_it_was(void)
{
    static const char *const names[] = {"", "s"};

    for (int i = 0; i < 2; i++)
        for (int at_once = 0; at_once < 2; at_once++) {
            talk *t;

            under(all_blocked);
            t = open_talk(w);
            parse(t, names[i], "SHOW a");
            w->out_of_memory = true;
            if (at_once)
                put_parse(&m, names[i], HEAVY);
            else
                parse(t, names[i], HEAVY);
            assert(bind_is_blocked(t, names[i]));
            w->out_of_memory = false;
            talk_close(t);
        }
}

static void a_command_that_nobody_has_seen_makes_names_doubtful(void)
{
    talk *t = open_talk(w);
    char *text = calloc(1, 80000);

    under(job_blocked);
    parse(t, "s", "SHOW a");
    memset(text, ' ', 79000);
    strcpy(text + 79000, "DEALLOCATE s; PREPARE s AS SELECT 1");
    put_query(&m, text);
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    m.length = 0;
    forget_sent(t);
    put_complete(&m, "DEALLOCATE");
    put_complete(&m, "PREPARE");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    under(all_blocked);
    assert(bind_is_blocked(t, "s"));
    free(text);
    talk_close(t);
}

/* ── By the text that was prepared ────────────────────────────────────────── */

static void names_are_one_for_sql_and_protocol(void)
{
    talk *t;

    under(job_blocked);
    t = open_talk(w);
    run(t, "PREPARE p AS " HEAVY, 'I');
    assert(query_is_blocked(t, "EXECUTE p") && bind_is_blocked(t, "p"));
    assert(query_is_blocked(t, "EXPLAIN ANALYZE EXECUTE P"));
    assert(query_is_blocked(t, "EXECUTE U&\"!0070\" UESCAPE '!'"));
    assert(query_is_blocked(t, "EXECUTE U&\"\\0070\""));
    assert(query_is_blocked(t, "PREPARE q AS " HEAVY "; EXECUTE q"));
    talk_close(t);
    t = open_talk(w);
    parse(t, "p", HEAVY);
    assert(query_is_blocked(t, "EXECUTE p"));
    talk_close(t);
    t = open_talk(w);
    run(t, "PREPARE p AS SELECT 1", 'I');
    run(t, "EXECUTE p", 'I');
    put_close(&m, 'S', "p");
    put_parse(&m, "p", HEAVY);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '3', "", 0);
    put_message(&m, '1', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(query_is_blocked(t, "EXECUTE p"));
    talk_close(t);
}

static void a_prepare_that_fails_changes_nothing(void)
{
    talk *t;

    under(job_blocked);
    t = open_talk(w);
    run(t, "PREPARE p AS " HEAVY, 'I');
    fails(t, "PREPARE p AS SELECT 1", 'I');
    assert(query_is_blocked(t, "EXECUTE p"));
    put_parse(&m, "", "PREPARE p AS SELECT 1");
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_error(&m, "ERROR", "42P05", "it exists");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(bind_is_blocked(t, "p"));
    run(t, "DEALLOCATE p", 'I');
    run(t, "PREPARE p AS SELECT 1", 'I');
    run(t, "EXECUTE p", 'I');
    talk_close(t);
}

/* In a pipeline a use of it waits until the server has done it. */
static void a_bind_waits_for_sql_that_changes_names(void)
{
    talk *t;

    under(job_blocked);
    t = open_talk(w);
    run(t, "PREPARE p AS SELECT 1", 'I');
    put_parse(&m, "", "DEALLOCATE p");
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_parse(&m, "", "PREPARE p AS " HEAVY);
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_bind(&m, "", "p");
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(t->session.later && server_hears(t, "PBEPBEH"));
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_complete(&m, "DEALLOCATE");
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_complete(&m, "PREPARE");
    say(t, HR_SERVER);
    assert(server_hears(t, "!S"));
    talk_close(t);
}

static void an_odd_name_is_decided_where_it_is_prepared(void)
{
    talk *t;

    under(job_blocked);
    t = open_talk(w);
    assert(query_is_blocked(t, "PREPARE U&\"!d83d!de00\" UESCAPE '!' AS " HEAVY));
    talk_close(t);
}

/* SQL cuts its names; a Parse's are compared as far. */
static void long_names_are_cut_as_the_server_does(void)
{
    char name[80], text[256];
    talk *t;

    under(all_blocked);
    t = open_talk(w);
    memset(name, 'n', sizeof name);
    name[63] = '\0';
    parse(t, name, "SHOW a");
    name[63] = 'n';
    name[70] = '\0';
    snprintf(text, sizeof text, "DEALLOCATE %s; PREPARE %s AS " HEAVY, name, name);
    run(t, text, 'I');
    name[63] = '\0';
    assert(bind_is_blocked(t, name));
    talk_close(t);
}

int main(void)
{
    w = world_open(HR_PROTOCOL_POSTGRES);
    sql_gives_a_free_name_another_meaning();
    the_same_by_the_extended_protocol();
    a_free_name_is_not_trusted_behind_a_block();
    a_free_name_is_not_trusted_behind_a_query();
    a_free_name_stays_free_behind_what_is_free();
    a_free_name_is_not_trusted_behind_a_commit();
    a_doubtful_begin_is_not_the_first_statement();
    a_name_without_memory_is_not_what_it_was();
    a_command_that_nobody_has_seen_makes_names_doubtful();
    names_are_one_for_sql_and_protocol();
    a_prepare_that_fails_changes_nothing();
    a_bind_waits_for_sql_that_changes_names();
    an_odd_name_is_decided_where_it_is_prepared();
    long_names_are_cut_as_the_server_does();
    world_close(w);
    free(m.bytes);
    return 0;
}
