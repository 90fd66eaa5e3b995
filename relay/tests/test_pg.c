/* Statements of a Postgres session: what is checked, passed, answered, and settled. */
#define HARNESS_FAKE_GATE
#include "pg_messages.h"

static world *w;

/* Blocks what has "no" in it, warns of "warn", holds "wait", and "turn" while something runs. */
static hr_said by_text(talk *t, const char *text, size_t length, uint32_t flags, hr_words *words)
{
    (void) t;
    words->cause = HR_BY_BUDGET;
    words->retry_ms = 400;
    snprintf(words->message, sizeof words->message, "headgate: budget \"b\"");
    snprintf(words->detail, sizeof words->detail, "budget=b limit=capacity");
    snprintf(words->hint, sizeof words->hint, "Retry in 400 ms.");
    if (length == 0)
        return HR_GO;
    if (memmem(text, length, "'no'", 4) != NULL && (flags & HR_ASK_IN_TRANSACTION) == 0)
        return HR_BLOCK;
    if (memmem(text, length, "'never'", 7) != NULL)
        return HR_BLOCK;
    if (memmem(text, length, "'out'", 5) != NULL)
        return HR_SHUT;
    if (memmem(text, length, "'warn'", 6) != NULL)
        return HR_GO_WARNED;
    if (memmem(text, length, "'wait'", 6) != NULL)
        return HR_WAIT;
    if (memmem(text, length, "'turn'", 6) != NULL && (flags & HR_ASK_RUNNING) != 0)
        return HR_WAIT_TURN;
    return HR_GO;
}

static void served(talk *t, char status)
{
    put_extended_answer(&m);
    put_ready(&m, status);
    passes(t, HR_SERVER);
}

/* ── Passing ──────────────────────────────────────────────────────────────── */

static void simple_query_is_asked_and_settled(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 1");
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "0 SELECT 1\n") && t->session.statement_since_ns != 0);
    assert(!t->session.machine->at_rest(&t->session));
    put_columns(&m);
    put_row(&m, "1");
    put_complete(&m, "SELECT 1");
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "step 1 ok\n"));
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 ok\n") && t->session.machine->at_rest(&t->session));
    assert(t->session.statement_since_ns == 0);
    talk_close(t);
}

static void error_of_the_server_fails_the_unit(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELEKT");
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "42601", "syntax error");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 failed\n"));
    put_extended(&m, "", "SELEKT");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "42601", "syntax error");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 2 failed\n"));
    talk_close(t);
}

static void several_statements_step(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 1; SELECT 2");
    passes(t, HR_CLIENT);
    put_complete(&m, "SELECT 1");
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "step 1 ok\nstep 1 ok\ndone 1 ok\n"));
    talk_close(t);
}

static void extended_is_asked_at_its_bind(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "s", "SELECT $1");
    put_describe_statement(&m, "s");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, ""));
    put_message(&m, '1', "", 0);
    put_message(&m, 't', "\0\0", 2);
    put_columns(&m);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    put_bind(&m, "", "s");
    put_describe(&m, "");
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SELECT $1\n"));
    put_message(&m, '2', "", 0);
    put_columns(&m);
    passes(t, HR_SERVER);
    assert(noted(&t->ended, ""));
    put_row(&m, "1");
    put_complete(&m, "SELECT 1");
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 ok\n"));
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    talk_close(t);
}

/* L2: in one read, before the server has come to the query that may change what the name means. */
static void a_free_name_behind_a_query_is_asked_for_as_unknown(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "s", "SHOW a");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    put_bind(&m, "", "s");
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SHOW a\n"));
    put_message(&m, '2', "", 0);
    put_complete(&m, "SHOW");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    put_parse(&m, "", "SELECT swap()");
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_bind(&m, "", "s");
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SELECT swap()\n1c \n"));
    talk_close(t);
}

static void every_cut_passes_the_same_bytes(void)
{
    some_bytes client = {0}, server = {0};

    for (int i = 0; i < 3; i++) {
        put_extended(&client, "", "SELECT 'x'");
        put_sync(&client);
        put_extended_answer(&server);
        put_ready(&server, 'I');
        put_parse(&client, "s", "SELECT 2");
        put_flush(&client);
        put_bind(&client, "p", "s");
        put_execute(&client, "p");
        put_close(&client, 'S', "s");
        put_sync(&client);
        put_message(&server, '1', "", 0);
        put_message(&server, '2', "", 0);
        put_message(&server, 'N', "SNOTICE\0VNOTICE\0C00000\0Mhi\0", 28);
        put_complete(&server, "SELECT 1");
        put_message(&server, '3', "", 0);
        put_ready(&server, 'I');
    }
    for (size_t cut = 0; cut < 60; cut++) {
        talk *t = open_talk(w);

        feed_cut(t, HR_CLIENT, client.bytes, client.length, cut);
        assert(sent_is(t, HR_SERVER, client.bytes, client.length));
        feed_cut(t, HR_SERVER, server.bytes, server.length, cut);
        assert(sent_is(t, HR_CLIENT, server.bytes, server.length));
        assert(t->tickets_open == 0 && t->tickets == 6);
        assert(t->session.machine->at_rest(&t->session));
        talk_close(t);
    }
    free(client.bytes);
    free(server.bytes);
}

static void large_messages_stream_through(void)
{
    talk *t = open_talk(w);
    size_t length = 3u << 20;
    char *text = malloc(length + 1);

    memset(text, 'x', length);
    memcpy(text, "SELECT '", 8);
    text[length - 1] = '\'';
    text[length] = '\0';
    put_query(&m, text);
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    assert(went(t, HR_SERVER));
    assert(t->asked.length == HR_TEXT_BYTES + 3); /* of the text, its beginning */
    put_row(&m, text);
    feed_cut(t, HR_SERVER, m.bytes, m.length, 65536);
    assert(went(t, HR_CLIENT));
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    put_parse(&m, "", text);
    put_texts(&m, 'B', "", "", text, length); /* a parameter of that size */
    put_execute(&m, "");
    put_sync(&m);
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 50000);
    assert(went(t, HR_SERVER));
    free(text);
    talk_close(t);
}

/* As long as buffers are scarce, less of a text is waited for. */
static void less_is_looked_at_while_buffers_are_scarce(void)
{
    talk *t = open_talk(w);
    size_t length = 200000;
    char *text = malloc(length + 1);

    memset(text, ' ', length);
    memcpy(text, "SELECT 1", 8);
    text[length] = '\0';
    put_query(&m, text);
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    assert(went(t, HR_SERVER) && t->asked.length == length + 3); /* all of it */
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    text_most = HR_WINDOW_BYTES;
    t->asked.length = 0;
    put_query(&m, text);
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    assert(went(t, HR_SERVER) && t->asked.length == HR_WINDOW_BYTES + 3);
    text_most = HR_TEXT_BYTES;
    free(text);
    talk_close(t);
}

/* A name may be longer than all that is looked at: what is parsed under it is not known then, and the
 * server goes by its first bytes. */
static void a_name_cannot_hide_a_text(void)
{
    talk *t = open_talk(w);
    size_t length = HR_TEXT_BYTES + 100;
    char *name = malloc(length + 1);

    memset(name, 'n', length);
    name[length] = '\0';
    put_parse(&m, name, "SELECT 'no'");
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    assert(went(t, HR_SERVER));
    name[63] = '\0';
    t->asked.length = 0;
    put_bind(&m, "", name);
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(t->asked.length > 0); /* decided */
    free(name);
    talk_close(t);
}

/* A blocked text of any length goes nowhere, and is not kept. */
static void large_blocked_query_is_dropped(void)
{
    talk *t = open_talk(w);
    size_t length = 1u << 20;
    char *text = malloc(length + 1);

    memset(text, 'x', length);
    memcpy(text, "SELECT 'no'", 11);
    text[length] = '\0';
    put_query(&m, text);
    put_query(&m, "SELECT 1");
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    m.length = 0;
    assert(hears(t, "E53000 ZI"));
    put_query(&m, "SELECT 1");
    assert(went(t, HR_SERVER));
    free(text);
    talk_close(t);
}

static void asynchronous_messages_pass_at_any_time(void)
{
    talk *t = open_talk(w);

    put_message(&m, 'A', "\0\0\0\1chan\0hello\0", 15);
    put_parameter(&m, "application_name", "batch");
    put_parameter(&m, "headgate.client", "etl");
    passes(t, HR_SERVER);
    assert(strcmp(t->application, "batch") == 0);
    assert(memmem(t->told.bytes, t->told.length, "variable headgate.client=etl\n", 29) != NULL);
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void function_call_is_decided(void)
{
    talk *t = open_talk(w);

    put_message(&m, 'F', "\0\0\0\1\0\0\0\0\0\0", 10);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "0 \n"));
    put_message(&m, 'V', "\0\0\0\0", 4);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 ok\n"));
    talk_close(t);
}

static void terminate_ends_both(void)
{
    talk *t = open_talk(w);

    put_message(&m, 'X', "", 0);
    say(t, HR_CLIENT);
    put_message(&m, 'X', "", 0);
    assert(went(t, HR_SERVER) && t->closed);
    talk_close(t);
}

/* As `echo … | nc` would: it has said all, and reads on. */
static void terminate_behind_a_query_leaves_time_for_its_answer(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 1");
    put_message(&m, 'X', "", 0);
    passes(t, HR_CLIENT);
    assert(!t->closed);
    put_row(&m, "1");
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT) && noted(&t->ended, "step 1 ok\ndone 1 ok\n"));
    talk_close(t);
}

/* ── Transactions ─────────────────────────────────────────────────────────── */

static void first_statement_of_a_transaction_decides(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    run(t, "SET TRANSACTION READ ONLY", 'T');
    run(t, "SELECT 1", 'T');
    run(t, "SELECT 2", 'T');
    assert(t->session.machine->in_transaction(&t->session));
    run(t, "COMMIT AND CHAIN", 'T');
    run(t, "SELECT 3", 'T');
    run(t, "COMMIT", 'I');
    run(t, "SELECT 4", 'I');
    assert(noted(&t->asked, "0 BEGIN\n0 SET TRANSACTION READ ONLY\n0 SELECT 1\n1 SELECT 2\n"
                            "1 COMMIT AND CHAIN\n0 SELECT 3\n1 COMMIT\n0 SELECT 4\n"));
    talk_close(t);
}

/* What a client could write to be inside a transaction that nothing has been decided in. */
static void free_statements_before_a_begin_do_not_hide_what_follows(void)
{
    talk *t = open_talk(w);

    run(t, "SET a = 1; BEGIN", 'T');
    run(t, "SELECT 1", 'T');
    assert(noted(&t->asked, "0 SET a = 1; BEGIN\n0 SELECT 1\n"));
    run(t, "ROLLBACK", 'I');
    t->asked.length = 0;
    run(t, "BEGIN; SELECT 1", 'T');
    run(t, "SELECT 2", 'T');
    assert(noted(&t->asked, "0 BEGIN; SELECT 1\n1 SELECT 2\n"));
    talk_close(t);
}

static void nothing_is_decided_in_a_failed_transaction(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'E');
    t->asked.length = 0;
    put_query(&m, "SELECT 'never'");
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "25P02", "current transaction is aborted");
    put_ready(&m, 'E');
    passes(t, HR_SERVER);
    put_extended(&m, "", "SELECT 'never'");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, ""));
    talk_close(t);
}

/* JDBC sends BEGIN and the first statement in one segment. */
static void begin_and_statement_in_one_segment(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "BEGIN");
    put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SELECT 1\n8 P BEGIN\n"));
    put_extended_answer(&m);
    served(t, 'T');
    put_extended(&m, "", "SELECT 2");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "9 P SELECT 2\n"));
    talk_close(t);
}

/* Pipelines: where the transaction will be is foreseen. */
static void pipelined_transaction_is_foreseen(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "BEGIN");
    put_sync(&m);
    put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    put_extended(&m, "", "SELECT 2");
    put_sync(&m);
    put_extended(&m, "", "COMMIT");
    put_sync(&m);
    put_extended(&m, "", "SELECT 3");
    put_sync(&m);
    say(t, HR_CLIENT);
    /* A statement inside waits until the BEGIN is known to be one. */
    assert(t->session.later && server_hears(t, "PBDESPBDESPH"));
    assert(noted(&t->asked, "8 P BEGIN\nc P SELECT 1\n"));
    served(t, 'T');
    assert(!t->session.later && server_hears(t, "BDESPBDESPBDES"));
    assert(noted(&t->asked, "d P SELECT 2\nd P COMMIT\nc P SELECT 3\n"));
    served(t, 'T');
    served(t, 'T');
    served(t, 'I');
    served(t, 'I');
    assert(noted(&t->ended, "done 1 ok\ndone 2 ok\ndone 3 ok\ndone 4 ok\ndone 5 ok\n"));
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void query_behind_a_query_waits_for_what_it_led_to(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 1");
    put_query(&m, "SELECT 2");
    say(t, HR_CLIENT);
    put_query(&m, "SELECT 1");
    assert(went(t, HR_SERVER) && t->next == HR_LATER);
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    put_query(&m, "SELECT 2");
    assert(went(t, HR_SERVER));
    talk_close(t);
}

/* ── Portals, names ───────────────────────────────────────────────────────── */

static void fetching_more_of_a_portal_is_inside_a_transaction(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    t->asked.length = t->ended.length = 0;
    put_parse(&m, "", "SELECT 1");
    put_bind(&m, "C_1", "");
    put_execute(&m, "C_1");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_row(&m, "1");
    put_message(&m, 's', "", 0);
    put_ready(&m, 'T');
    passes(t, HR_SERVER);
    assert(noted(&t->asked, "8 P SELECT 1\n") && noted(&t->ended, "done 2 ok\n"));
    put_execute(&m, "C_1");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "9 P SELECT 1\n"));
    put_row(&m, "1");
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'T');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 3 ok\n"));
    talk_close(t);
}

static void portals_may_be_executed_in_any_order(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "s", "SELECT 1");
    put_bind(&m, "a", "s");
    put_bind(&m, "b", "s");
    put_execute(&m, "b");
    put_execute(&m, "a");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_message(&m, '2', "", 0);
    put_complete(&m, "SELECT 1");
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 2 ok\n"));
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 ok\n"));
    talk_close(t);
}

static void asks_for(talk *t, const char *name, const char *expected)
{
    put_bind(&m, "", name);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '2', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->asked, expected));
}

static void prepare(talk *t, const char *name, const char *text)
{
    put_parse(&m, name, text);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
}

static void closed_and_deallocated_names_are_forgotten(void)
{
    talk *t = open_talk(w);

    prepare(t, "a", "SELECT 1");
    prepare(t, "b", "SELECT 2");
    prepare(t, "c", "SELECT 3");
    asks_for(t, "a", "8 P SELECT 1\n");
    put_close(&m, 'S', "a");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '3', "", 0);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    asks_for(t, "a", "8 \n"); /* nobody knows it: decided as such */
    run(t, "DEALLOCATE /* x */ PREPARE \"b\"", 'I');
    t->asked.length = 0;
    asks_for(t, "b", "8 \n");
    asks_for(t, "c", "8 P SELECT 3\n");
    run(t, "DISCARD ALL", 'I');
    t->asked.length = 0;
    asks_for(t, "c", "8 \n");
    talk_close(t);
}

static void name_whose_parse_failed_is_not_kept(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "good", "SELECT 1");
    put_parse(&m, "bad", "SELEKT");
    put_parse(&m, "skipped", "SELECT 2");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_error(&m, "ERROR", "42601", "syntax error");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    asks_for(t, "good", "8 P SELECT 1\n");
    asks_for(t, "bad", "8 \n");
    asks_for(t, "skipped", "8 \n");
    talk_close(t);
}

static void names_are_bounded_and_those_beyond_still_work(void)
{
    talk *t = open_talk(w);
    char name[32];

    for (int i = 0; i < 1100; i++) {
        snprintf(name, sizeof name, "s%d", i);
        prepare(t, name, "SELECT 1");
    }
    assert(t->prepared_open <= 1024);
    asks_for(t, "s1023", "8 P SELECT 1\n");
    asks_for(t, "s1099", "8 P SELECT 1\n");
    asks_for(t, "s3", "8 \n"); /* not used for longest */
    talk_close(t);
}

/* A client that runs one text under the name of another: each Parse below fails or is skipped. */
static void name_keeps_its_text_when_a_later_parse_fails(void)
{
    talk *t = open_talk(w);

    prepare(t, "s", "SELECT 'never'");
    put_parse(&m, "s", "SELECT 1"); /* there is one already */
    put_sync(&m);
    put_bind(&m, "", "s");
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "PS") && t->next == HR_LATER); /* what it is must be known first */
    put_error(&m, "ERROR", "42P05", "already exists");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(noted(&t->asked, "8 P SELECT 'never'\n") && hears(t, "E42P05 ZI E53000 ZI"));
    put_parse(&m, "", "SELEKT");
    put_close(&m, 'S', "s"); /* skipped */
    put_parse(&m, "s", "SELECT 1");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "42601", "syntax error");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    put_bind(&m, "", "s");
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SELECT 'never'\n") && hears(t, "E53000 ZI"));
    talk_close(t);
}

/* ── COPY ─────────────────────────────────────────────────────────────────── */

static void copy_in_by_simple_query(void)
{
    talk *t = open_talk(w);

    put_query(&m, "COPY t FROM STDIN");
    passes(t, HR_CLIENT);
    put_message(&m, 'G', "\0\0\0", 3);
    passes(t, HR_SERVER);
    put_message(&m, 'd', "1\n", 2);
    put_message(&m, 'd', "2\n", 2);
    put_message(&m, 'c', "", 0);
    passes(t, HR_CLIENT);
    put_complete(&m, "COPY 2");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "step 1 ok\ndone 1 ok\n"));
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

/* The trap that PgBouncer and PgDog fell into: libpq sends a Sync behind Execute; the server reads it
 * as part of COPY's data, and answers only the next one. */
static void early_sync_of_a_copy_is_not_answered(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "COPY t FROM STDIN");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_message(&m, 'n', "", 0);
    put_message(&m, 'G', "\0\0\0", 3);
    passes(t, HR_SERVER);
    put_message(&m, 'd', "1\n", 2);
    put_message(&m, 'c', "", 0);
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->ended, ""));
    put_complete(&m, "COPY 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 ok\n") && t->session.machine->at_rest(&t->session));
    t->asked.length = 0;
    put_query(&m, "SELECT 'no'"); /* so this can be answered alone */
    say(t, HR_CLIENT);
    assert(hears(t, "E53000 ZI") && sent_nothing(t, HR_SERVER));
    talk_close(t);
}

/* A Sync that was on its way when the server began to read. */
static void sync_sent_while_the_server_reads_is_not_counted(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "", "COPY t FROM STDIN");
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_flush(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_message(&m, 'G', "\0\0\0", 3);
    passes(t, HR_SERVER);
    put_sync(&m);
    put_message(&m, 'd', "1\n", 2);
    put_message(&m, 'f', "why\0", 4);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "57014", "COPY from stdin failed: why");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 failed\n") && t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void copy_that_fails_before_it_reads(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "COPY t FROM STDIN");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_message(&m, 'n', "", 0);
    put_message(&m, 'G', "\0\0\0", 3);
    put_error(&m, "ERROR", "P0001", "a trigger said no");
    put_ready(&m, 'I'); /* here the early Sync was answered */
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 failed\n") && t->session.machine->at_rest(&t->session));
    put_message(&m, 'f', "gone\0", 5);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void copy_out_passes(void)
{
    talk *t = open_talk(w);

    put_query(&m, "COPY t TO STDOUT");
    passes(t, HR_CLIENT);
    put_message(&m, 'H', "\0\0\0", 3);
    for (int i = 0; i < 1000; i++)
        put_message(&m, 'd', "some row\n", 9);
    put_message(&m, 'c', "", 0);
    put_complete(&m, "COPY 1000");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "step 1 ok\ndone 1 ok\n"));
    talk_close(t);
}

static void statement_in_the_middle_of_copy_data_is_no_way_in(void)
{
    talk *t = open_talk(w);

    put_query(&m, "COPY t FROM STDIN");
    passes(t, HR_CLIENT);
    put_message(&m, 'G', "\0\0\0", 3);
    passes(t, HR_SERVER);
    put_message(&m, 'd', "bad\n", 4);
    put_query(&m, "SELECT 'never'");
    say(t, HR_CLIENT);
    assert(server_hears(t, "d") && hears(t, "E08P01") && t->closed);
    talk_close(t);
}

/* ── Blocks ─────────────────────────────────────────────────────────────── */

static void blocked_query_never_reaches_the_server(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 'no'");
    put_query(&m, "SELECT 1");
    say(t, HR_CLIENT);
    assert(sent_has(t, HR_CLIENT, "SERROR") && sent_has(t, HR_CLIENT, "Mheadgate: budget \"b\""));
    assert(sent_has(t, HR_CLIENT, "Dbudget=b limit=capacity"));
    assert(sent_has(t, HR_CLIENT, "HRetry in 400 ms."));
    assert(hears(t, "E53000 ZI"));
    put_query(&m, "SELECT 1");
    assert(went(t, HR_SERVER));
    talk_close(t);
}

static void blocked_segment_never_reaches_the_server(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "s", "SELECT 'no'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(sent_nothing(t, HR_SERVER) && hears(t, "E53000 ZI"));
    asks_for(t, "s", "8 P SELECT 'no'\n8 \n"); /* its Parse was never done */
    talk_close(t);
}

static void blocked_behind_a_begin_in_the_same_segment(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "BEGIN");
    put_extended(&m, "", "SELECT 'no'");
    put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    put_extended(&m, "", "SELECT 2");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "PBDEP!SPBDES")); /* where the next is run, it fails */
    assert(noted(&t->asked, "8 P SELECT 'no'\n8 P BEGIN\nc P SELECT 2\n"));
    talk_close(t);
}

/* A blocked first statement must not let the rest of its transaction commit. */
static void blocked_inside_begin_aborts_the_transaction(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    t->ended.length = 0;
    put_query(&m, "INSERT INTO t VALUES ('no')");
    say(t, HR_CLIENT);
    assert(server_hears(t, "!S") && sent_nothing(t, HR_CLIENT));
    put_error(&m, "ERROR", "26000", "prepared statement does not exist");
    put_ready(&m, 'E');
    say(t, HR_SERVER);
    assert(hears(t, "E53000 ZE"));
    put_query(&m, "INSERT INTO t VALUES (2)");
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "25P02", "current transaction is aborted");
    put_ready(&m, 'E');
    passes(t, HR_SERVER);
    run(t, "COMMIT", 'I');
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void blocked_bind_inside_begin(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    put_extended(&m, "", "INSERT INTO t VALUES ('no')");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "P!S"));
    put_message(&m, '1', "", 0);
    put_error(&m, "ERROR", "26000", "prepared statement does not exist");
    put_ready(&m, 'E');
    say(t, HR_SERVER);
    assert(hears(t, "1 E53000 ZE"));
    talk_close(t);
}

/* Parse + Flush first, Bind later: the Parse is at the server, and was answered. */
static void blocked_bind_after_parse_and_flush(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "", "SELECT 'no'");
    put_describe_statement(&m, "");
    put_flush(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, 't', "\0\0", 2);
    put_columns(&m);
    passes(t, HR_SERVER);
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "!S"));
    put_error(&m, "ERROR", "26000", "prepared statement does not exist");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "E53000 ZI") && t->session.machine->at_rest(&t->session));
    talk_close(t);
}

/* The error of a block never comes before the answers before it. */
static void block_in_a_pipeline_comes_in_its_turn(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    put_extended(&m, "", "SELECT 'no'");
    put_sync(&m);
    put_extended(&m, "", "SELECT 2");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "PBDESP!SPBDES") && sent_nothing(t, HR_CLIENT));
    served(t, 'I');
    put_message(&m, '1', "", 0);
    put_error(&m, "ERROR", "26000", "prepared statement does not exist");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "1 E53000 ZI"));
    served(t, 'I');
    assert(noted(&t->ended, "done 1 ok\ndone 2 ok\n"));
    talk_close(t);
}

/* A segment is no transaction that the client has begun: each of its Binds is decided. */
static void block_behind_an_admitted_statement_of_its_segment(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1");
    put_extended(&m, "", "SELECT 'no'");
    put_extended(&m, "", "SELECT 2");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SELECT 1\nc P SELECT 'no'\n"));
    assert(server_hears(t, "PBDEP!S"));
    put_extended_answer(&m);
    put_message(&m, '1', "", 0);
    put_error(&m, "ERROR", "26000", "prepared statement does not exist");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "1 2 T D C 1 E53000 ZI"));
    talk_close(t);
}

/* If something before it fails, the server never comes to our Bind: its own error stays. */
static void error_before_a_block_is_the_servers_own(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1/0");
    put_extended(&m, "", "SELECT 'never'");
    put_sync(&m);
    say(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_columns(&m);
    put_error(&m, "ERROR", "22012", "division by zero");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "1 2 T E22012 ZI") && noted(&t->ended, "done 1 failed\n"));
    talk_close(t);
}

static void servers_fatal_error_is_not_replaced(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    put_query(&m, "SELECT 'no'");
    say(t, HR_CLIENT);
    put_error(&m, "FATAL", "57P01", "terminating connection");
    say(t, HR_SERVER);
    assert(hears(t, "E57P01"));
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

static void shut_out_session_is_told_and_closed(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 'out'");
    say(t, HR_CLIENT);
    assert(sent_has(t, HR_CLIENT, "SFATAL"));
    assert(hears(t, "E53000") && t->closed && sent_nothing(t, HR_SERVER));
    talk_close(t);
    t = open_talk(w); /* in a pipeline: once the answers before it have come */
    put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    put_extended(&m, "", "SELECT 'out'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(!t->closed && sent_nothing(t, HR_CLIENT));
    put_extended_answer(&m);
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "1 2 T D C ZI E53000") && t->closed);
    talk_close(t);
}

static void many_blocks_in_one_read_take_turns(void)
{
    talk *t = open_talk(w);

    for (int i = 0; i < 100; i++)
        put_query(&m, "SELECT 'no'");
    say(t, HR_CLIENT);
    assert(t->next == HR_HELD && t->woken > 0);
    for (int i = 0; i < 10 && t->kept[HR_CLIENT].length > 0; i++)
        feed_again(t);
    assert(t->kept[HR_CLIENT].length == 0 && t->next == HR_MORE);
    assert(strlen(heard(t)) == 100 * 10 - 1);
    talk_close(t);
}

/* ── Warnings ─────────────────────────────────────────────────────────────── */

static void notice_comes_before_its_answer(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 'warn'");
    say(t, HR_CLIENT);
    assert(sent_has(t, HR_CLIENT, "SNOTICE") && hears(t, "N01000") && server_hears(t, "Q"));
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    talk_close(t);
}

static void notice_in_a_pipeline_comes_in_its_turn(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    put_extended(&m, "", "SELECT 'warn'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(sent_nothing(t, HR_CLIENT));
    put_extended_answer(&m);
    put_ready(&m, 'I');
    put_extended_answer(&m);
    put_ready(&m, 'I');
    feed_cut(t, HR_SERVER, m.bytes, m.length, 4);
    m.length = 0;
    assert(hears(t, "1 2 T D C ZI N01000 1 2 T D C ZI"));
    assert(noted(&t->ended, "done 1 ok\ndone 2 ok\n"));
    talk_close(t);
}

/* ── Waiting ──────────────────────────────────────────────────────────────── */

static void held_statement_is_asked_for_again(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 'wait'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(t->next == HR_HELD && sent_nothing(t, HR_SERVER) && sent_nothing(t, HR_CLIENT));
    feed_again(t);
    assert(t->next == HR_HELD);
    harness_says = NULL;
    feed_again(t);
    harness_says = by_text;
    assert(server_hears(t, "PBDES") && t->next == HR_MORE);
    assert(t->tickets_open == 1);
    talk_close(t);
}

static void client_that_hangs_up_while_held_never_reaches_the_server(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 'wait'");
    say(t, HR_CLIENT);
    end_session(t, HR_LOST_CLIENT);
    assert(sent_nothing(t, HR_SERVER));
    talk_close(t);
}

/* Its own earlier statements are made to be answered, though no Sync has come. */
static void turn_in_a_segment_is_waited_for_with_a_flush(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1");
    put_extended(&m, "", "SELECT 'turn'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "PBDEPH") && t->next == HR_LATER);
    put_extended_answer(&m);
    say(t, HR_SERVER);
    assert(server_hears(t, "BDES") && t->next == HR_MORE);
    talk_close(t);
}

static void pipeline_is_bounded_and_goes_on(void)
{
    talk *t = open_talk(w);

    for (int i = 0; i < 500; i++)
        put_extended(&m, "", "SELECT 1");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(t->next == HR_LATER && t->tickets_open <= 64);
    for (int i = 0; i < 500; i++) {
        put_extended_answer(&m);
        say(t, HR_SERVER);
        assert(t->tickets_open <= 64);
    }
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(t->tickets == 500 && t->tickets_open == 0 && t->session.machine->at_rest(&t->session));
    talk_close(t);
}

/* Binds without end, whose Executes come behind them all: they must not wait for each other. */
static void binds_without_executes_do_not_block(void)
{
    talk *t = open_talk(w);
    char name[16];

    put_parse(&m, "s", "SELECT 1");
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "p%d", i);
        put_bind(&m, name, "s");
    }
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "p%d", i);
        put_execute(&m, name);
    }
    put_sync(&m);
    say(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    for (int i = 0; i < 200; i++)
        put_message(&m, '2', "", 0);
    say(t, HR_SERVER);
    for (int i = 0; i < 200; i++) {
        put_complete(&m, "SELECT 1");
        say(t, HR_SERVER);
    }
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(t->kept[HR_CLIENT].length == 0 && t->tickets_open == 0);
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void query_behind_a_bind_without_execute_does_not_block(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "", "SELECT 1");
    put_bind(&m, "", "");
    put_query(&m, "SELECT 2");
    say(t, HR_CLIENT);
    assert(server_hears(t, "PBQ"));
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

/* ── Time ─────────────────────────────────────────────────────────────────── */

static void what_the_server_skips_costs_nothing(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1/0");
    put_extended(&m, "", "SELECT 2");
    put_flush(&m);
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "22012", "division by zero");
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 failed\ndone 2 failed\n"));
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

/* ── Bad input ────────────────────────────────────────────────────────────── */

static void malformed_messages_end_the_session(void)
{
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {
        {"Q\0\0\0\3", 5}, {"Q\xff\xff\xff\xff", 5}, {"S\0\1\0\0", 5},  {"E\0\0\x4e\x20", 5},
        {"z\0\0\0\4", 5}, {"\0\0\0\0\4", 5},        {"p\0\0\0\5x", 6}, {"P\x40\0\0\0", 5},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        talk *t = open_talk(w);

        feed(t, HR_CLIENT, bad[i].bytes, bad[i].length);
        assert(sent_has(t, HR_CLIENT, "SFATAL") && hears(t, "E08P01") && t->closed);
        assert(sent_nothing(t, HR_SERVER));
        talk_close(t);
    }
}

static void malformed_messages_of_the_server_end_the_session(void)
{
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {{"Z\0\0\0\6II", 7}, {"D\0\0\0\3", 5}, {"C\x10\0\0\0", 5}, {"D\xff\xff\xff\xff", 5}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        talk *t = open_talk(w);

        put_row(&m, "1");
        append(&m, bad[i].bytes, bad[i].length);
        say(t, HR_SERVER);
        assert(hears(t, "D E08P01") && t->closed);
        talk_close(t);
    }
}

static void names_without_end_are_the_servers_to_reject(void)
{
    talk *t = open_talk(w);
    char body[5000];

    memset(body, 'x', sizeof body);
    put_message(&m, 'B', body, sizeof body);
    put_message(&m, 'P', body, sizeof body);
    put_message(&m, 'E', body, sizeof body);
    put_message(&m, 'C', body, sizeof body);
    put_message(&m, 'C', "", 0);
    put_message(&m, 'E', "", 0);
    put_message(&m, 'P', "", 0);
    put_message(&m, 'Q', "", 0);
    say(t, HR_CLIENT);
    assert(t->to[HR_SERVER].length > 4 * sizeof body);
    talk_close(t);
}

int main(void)
{
    w = world_open(HR_PROTOCOL_POSTGRES);
    harness_says = by_text;
    simple_query_is_asked_and_settled();
    error_of_the_server_fails_the_unit();
    several_statements_step();
    extended_is_asked_at_its_bind();
    a_free_name_behind_a_query_is_asked_for_as_unknown();
    every_cut_passes_the_same_bytes();
    large_messages_stream_through();
    less_is_looked_at_while_buffers_are_scarce();
    a_name_cannot_hide_a_text();
    large_blocked_query_is_dropped();
    asynchronous_messages_pass_at_any_time();
    function_call_is_decided();
    terminate_ends_both();
    terminate_behind_a_query_leaves_time_for_its_answer();
    first_statement_of_a_transaction_decides();
    free_statements_before_a_begin_do_not_hide_what_follows();
    nothing_is_decided_in_a_failed_transaction();
    begin_and_statement_in_one_segment();
    pipelined_transaction_is_foreseen();
    query_behind_a_query_waits_for_what_it_led_to();
    fetching_more_of_a_portal_is_inside_a_transaction();
    portals_may_be_executed_in_any_order();
    closed_and_deallocated_names_are_forgotten();
    name_whose_parse_failed_is_not_kept();
    names_are_bounded_and_those_beyond_still_work();
    name_keeps_its_text_when_a_later_parse_fails();
    copy_in_by_simple_query();
    early_sync_of_a_copy_is_not_answered();
    sync_sent_while_the_server_reads_is_not_counted();
    copy_that_fails_before_it_reads();
    copy_out_passes();
    statement_in_the_middle_of_copy_data_is_no_way_in();
    blocked_query_never_reaches_the_server();
    blocked_segment_never_reaches_the_server();
    blocked_behind_a_begin_in_the_same_segment();
    blocked_inside_begin_aborts_the_transaction();
    blocked_bind_inside_begin();
    blocked_bind_after_parse_and_flush();
    block_in_a_pipeline_comes_in_its_turn();
    block_behind_an_admitted_statement_of_its_segment();
    error_before_a_block_is_the_servers_own();
    servers_fatal_error_is_not_replaced();
    shut_out_session_is_told_and_closed();
    many_blocks_in_one_read_take_turns();
    notice_comes_before_its_answer();
    notice_in_a_pipeline_comes_in_its_turn();
    held_statement_is_asked_for_again();
    client_that_hangs_up_while_held_never_reaches_the_server();
    turn_in_a_segment_is_waited_for_with_a_flush();
    pipeline_is_bounded_and_goes_on();
    binds_without_executes_do_not_block();
    query_behind_a_bind_without_execute_does_not_block();
    what_the_server_skips_costs_nothing();
    malformed_messages_end_the_session();
    malformed_messages_of_the_server_end_the_session();
    names_without_end_are_the_servers_to_reject();
    world_close(w);
    free(m.bytes);
    return 0;
}
