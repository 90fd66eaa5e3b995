/* The state of a transaction, and what of it has run: by every way of writing it. */
#define HARNESS_FAKE_GATE
#include "pg_inside.h"
#include "pg_messages.h"

static world *w;

/* Blocks 'no' outside of a transaction or as its first, and 'never' anywhere. */
static hr_said by_text(talk *t, const char *text, size_t length, uint32_t flags, hr_words *words)
{
    (void) t;
    memset(words, 0, sizeof *words);
    words->cause = HR_BY_BUDGET;
    snprintf(words->message, sizeof words->message, "headgate: no");
    if (memmem(text, length, "'no'", 4) != NULL && (flags & HR_ASK_IN_TRANSACTION) == 0)
        return HR_BLOCK;
    return memmem(text, length, "'never'", 7) != NULL ? HR_BLOCK : HR_GO;
}

/* Whether the next statement of the session is decided as a first one. */
static bool is_first(talk *t)
{
    t->asked.length = 0;
    run(t, "SELECT now", (char) t->session.pg.status);
    return noted(&t->asked, "0 SELECT now\n");
}

static bool is_inside(talk *t)
{
    t->asked.length = 0;
    run(t, "SELECT now", (char) t->session.pg.status);
    return noted(&t->asked, "1 SELECT now\n");
}

/* In a string that ends a transaction and begins one, in whatever way. */
static void what_has_ended_does_not_count_for_the_next(void)
{
    static const char *const strings[] = {"COMMIT; BEGIN",
                                          "ROLLBACK; BEGIN",
                                          "COMMIT; BEGIN; SHOW a",
                                          "COMMIT AND CHAIN",
                                          "SHOW a; COMMIT AND CHAIN",
                                          "ROLLBACK AND CHAIN",
                                          "SELECT 1; ROLLBACK AND CHAIN",
                                          "COMMIT /*\\*/ AND CHAIN",
                                          ";; COMMIT; BEGIN; SAVEPOINT a"};

    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        talk *t = open_talk(w);

        run(t, "BEGIN", 'T');
        run(t, "SELECT 1", 'T');
        run(t, strings[i], 'T');
        assert(is_first(t) && t->begun && is_inside(t));
        talk_close(t);
    }
}

static void what_has_run_before_a_begin_counts(void)
{
    talk *t = open_talk(w);

    run(t, "SELECT 1; BEGIN", 'T'); /* the string's own transaction goes on */
    assert(is_inside(t));
    run(t, "COMMIT", 'I');
    run(t, "BEGIN; SELECT 1; COMMIT; BEGIN", 'T');
    assert(is_first(t));
    run(t, "COMMIT; BEGIN; SELECT 1", 'T');
    assert(is_inside(t));
    talk_close(t);
}

/* However a statement is hidden, the server tells what it was. */
static void command_tags_are_believed(void)
{
    talk *t = open_talk(w);
    char *text = calloc(1, 80000);

    run(t, "BEGIN", 'T');
    run(t, "SELECT 1", 'T');
    memset(text, ' ', 79000);
    strcpy(text + 79000, "COMMIT AND CHAIN");
    put_query(&m, text);
    feed_cut(t, HR_CLIENT, m.bytes, m.length, 60000);
    m.length = 0;
    forget_sent(t);
    put_complete(&m, "COMMIT");
    put_ready(&m, 'T');
    passes(t, HR_SERVER);
    assert(is_first(t));
    free(text);
    talk_close(t);
}

/* Its locks are held all the same (R148). */
static void a_savepoint_does_not_forget_what_has_run(void)
{
    static const char *const strings[] = {"ROLLBACK TO a", "ROLLBACK TO a; SAVEPOINT b",
                                          "ROLLBACK TO a;RELEASE a",
                                          "ROLLBACK WORK TO SAVEPOINT a"};

    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        talk *t = open_talk(w);

        run(t, "BEGIN", 'T');
        run(t, "INSERT 1", 'T');
        run(t, "SAVEPOINT a", 'T');
        fails(t, "SHOW nosuch", 'E');
        run(t, strings[i], 'T');
        assert(is_inside(t));
        talk_close(t);
    }
}

static void extended(talk *t, const char *text, const char *tag, char status)
{
    put_extended(&m, "", text);
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_message(&m, 'n', "", 0);
    put_complete(&m, tag);
    put_ready(&m, status);
    passes(t, HR_SERVER);
}

static void the_same_by_the_extended_protocol(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    run(t, "INSERT 1", 'T');
    run(t, "SAVEPOINT a", 'T');
    fails(t, "SHOW nosuch", 'E');
    extended(t, "ROLLBACK TO a", "ROLLBACK", 'T');
    assert(is_inside(t));
    extended(t, "COMMIT AND CHAIN", "COMMIT", 'T');
    assert(is_first(t));
    talk_close(t);
}

/* The block of a statement, and going back behind it, let nothing by. */
static void who_is_blocked_is_blocked_again_behind_a_savepoint(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    run(t, "SAVEPOINT a", 'T');
    for (int i = 0; i < 3; i++) {
        put_query(&m, "SELECT 'no'");
        say(t, HR_CLIENT);
        assert(server_hears(t, "!S"));
        put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
        put_ready(&m, 'E');
        say(t, HR_SERVER);
        assert(hears(t, "E53000 ZE"));
        run(t, "ROLLBACK TO a", 'T');
    }
    assert(is_first(t));
    talk_close(t);
}

/* Nothing in a failed transaction is decided, but what is behind its end. */
static void behind_the_end_of_a_failed_transaction_all_is_decided(void)
{
    static const char *const strings[] = {"ROLLBACK; SELECT 'never'", "COMMIT; SELECT 'never'",
                                          "ROLLBACK TO a; SELECT 'never'", "; END; SELECT 'never'"};

    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        talk *t = open_talk(w);
        some_bytes prefix = {0};
        char text[64];

        run(t, "BEGIN", 'T');
        fails(t, "SHOW nosuch", 'E');
        put_query(&m, strings[i]);
        say(t, HR_CLIENT);
        /* What ends it goes, and what is blocked does not. */
        snprintf(text, sizeof text, "%.*s", (int) (strstr(strings[i], "SELECT") - strings[i]) - 1,
                 strings[i]);
        put_query(&prefix, text);
        assert(t->to[HR_SERVER].length > prefix.length
               && memcmp(t->to[HR_SERVER].bytes, prefix.bytes, prefix.length) == 0);
        assert(memmem(t->to[HR_SERVER].bytes, t->to[HR_SERVER].length, "never", 5) == NULL);
        assert(server_hears(t, "Q!S"));
        put_complete(&m, "ROLLBACK");
        put_ready(&m, i == 2 ? 'T' : 'I');
        put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
        put_ready(&m, i == 2 ? 'E' : 'I');
        say(t, HR_SERVER);
        assert(hears(t, i == 2 ? "C E53000 ZE" : "C E53000 ZI"));
        free(prefix.bytes);
        talk_close(t);
    }
}

/* ── A block behind a BEGIN ─────────────────────────────────────────────── */

/* Else INSERT b, which its client has sent behind it, would be committed alone. */
static void a_begin_before_the_blocked_goes_and_its_transaction_fails(void)
{
    talk *t = open_talk(w);

    put_query(&m, "BEGIN; INSERT 'no'");
    put_query(&m, "INSERT b");
    say(t, HR_CLIENT);
    assert(server_hears(t, "Q!S"));
    put_complete(&m, "BEGIN");
    put_ready(&m, 'T');
    say(t, HR_SERVER);
    assert(hears(t, "C"));
    put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
    put_ready(&m, 'E');
    say(t, HR_SERVER);
    assert(hears(t, "E53000 ZE"));
    put_query(&m, "INSERT b");
    assert(went(t, HR_SERVER) && t->session.pg.transaction == HR_PG_TRANSACTION_FAILED);
    talk_close(t);
}

static void the_same_in_one_segment(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "", "BEGIN");
    put_bind(&m, "", "");
    put_execute(&m, "");
    put_extended(&m, "", "INSERT 'no'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(server_hears(t, "PBEP!S"));
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_complete(&m, "BEGIN");
    put_message(&m, '1', "", 0);
    put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
    put_ready(&m, 'E');
    say(t, HR_SERVER);
    assert(hears(t, "1 2 C 1 E53000 ZE"));
    assert(noted(&t->asked, "8 P INSERT 'no'\n8 P BEGIN\n")); /* once each */
    talk_close(t);
}

/* What has been decided before it in the string is not sent, but the transaction is to fail. */
static void a_begin_of_our_own_where_a_decided_one_stands_between(void)
{
    talk *t = open_talk(w);

    put_query(&m, "BEGIN; SELECT 1; SELECT 'never'");
    harness_says = by_text;
    say(t, HR_CLIENT);
    assert(server_hears(t, "Q!S"));
    put_complete(&m, "BEGIN");
    put_ready(&m, 'T');
    put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
    put_ready(&m, 'E');
    say(t, HR_SERVER);
    assert(heard(t) != NULL && t->session.pg.status == 'E');
    talk_close(t);
}

/* The end of the transaction before is no less done. */
static void a_commit_before_the_blocked_goes(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    run(t, "INSERT 1", 'T');
    put_query(&m, "COMMIT; SELECT 'never'");
    say(t, HR_CLIENT);
    assert(server_hears(t, "Q!S"));
    put_complete(&m, "COMMIT");
    put_ready(&m, 'I');
    put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "C E53000 ZI") && is_first(t));
    talk_close(t);
}

/* One error for a string, as the server would say. */
static void a_commit_that_fails_is_all_that_is_told(void)
{
    talk *t = open_talk(w);

    run(t, "BEGIN", 'T');
    run(t, "INSERT 1", 'T');
    put_query(&m, "COMMIT; SELECT 'never'");
    say(t, HR_CLIENT);
    assert(server_hears(t, "Q!S"));
    put_error(&m, "ERROR", "23503", "deferred");
    put_ready(&m, 'I');
    put_error(&m, "ERROR", "08P01", "bind message has 2 parameter formats");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "E23503 ZI"));
    talk_close(t);
}

static void without_a_transaction_the_server_hears_nothing(void)
{
    static const char *const strings[] = {"SELECT 'no'", "SET a = 1; SELECT 'no'",
                                          "BEGIN; COMMIT; SELECT 'no'"};

    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        talk *t = open_talk(w);

        put_query(&m, strings[i]);
        say(t, HR_CLIENT);
        assert(sent_nothing(t, HR_SERVER) && hears(t, "E53000 ZI"));
        talk_close(t);
    }
}

/* ── Pipelines ────────────────────────────────────────────────────────────── */

/* What has begun in a segment that fails has not begun: the next is not inside of it. */
static void another_segment_waits_for_a_begin_to_be_told(void)
{
    talk *t = open_talk(w);

    put_extended(&m, "", "SELECT 1/0");
    put_extended(&m, "", "BEGIN");
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_extended(&m, "", "SELECT 'no'");
    put_sync(&m);
    say(t, HR_CLIENT);
    assert(t->session.later && server_hears(t, "PH"));
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    put_columns(&m);
    put_error(&m, "ERROR", "22012", "division by zero");
    put_ready(&m, 'I');
    say(t, HR_SERVER);
    assert(hears(t, "1 2 T E22012 ZI") && server_hears(t, "!S"));
    talk_close(t);
}

/* A portal that nobody executes holds no place, and is asked for again when it is. What it took to plan it
 * is charged once the server is through with that (P3). */
static void a_bound_portal_has_no_place_behind_a_flush(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "", "SELECT 1");
    put_bind(&m, "", "");
    put_flush(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->ended, "bound 1 ok\n"));
    t->asked.length = 0;
    put_execute(&m, "");
    put_sync(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "8 P SELECT 1\n") && t->tickets_open == 2);
    put_message(&m, '1', "", 0);
    passes(t, HR_SERVER);
    assert(noted(&t->ended, ""));
    put_message(&m, '2', "", 0);
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 1 ok\n"));
    put_complete(&m, "SELECT 1");
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(t->tickets_open == 0);
    talk_close(t);
}

/* Of several the last is charged for all; and whatever ends them ends it. */
static void what_is_bound_for_nothing_is_charged(void)
{
    talk *t = open_talk(w);

    put_parse(&m, "", "SELECT 1");
    put_bind(&m, "a", "");
    put_bind(&m, "b", "");
    put_flush(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->ended, "bound 2 ok\nunused 1 ok\n"));
    put_message(&m, '1', "", 0);
    put_message(&m, '2', "", 0);
    passes(t, HR_SERVER);
    assert(noted(&t->ended, ""));
    put_error(&m, "ERROR", "22012", "division by zero");
    passes(t, HR_SERVER);
    assert(noted(&t->ended, "done 2 ok\n"));
    put_sync(&m);
    passes(t, HR_CLIENT);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    put_parse(&m, "", "SELECT 1");
    put_bind(&m, "", "");
    put_flush(&m);
    passes(t, HR_CLIENT);
    assert(noted(&t->ended, "bound 3 ok\n") && t->tickets_open == 1);
    talk_close(t);
}

int main(void)
{
    w = world_open(HR_PROTOCOL_POSTGRES);
    harness_says = by_text;
    what_has_ended_does_not_count_for_the_next();
    what_has_run_before_a_begin_counts();
    command_tags_are_believed();
    a_savepoint_does_not_forget_what_has_run();
    the_same_by_the_extended_protocol();
    who_is_blocked_is_blocked_again_behind_a_savepoint();
    behind_the_end_of_a_failed_transaction_all_is_decided();
    a_begin_before_the_blocked_goes_and_its_transaction_fails();
    the_same_in_one_segment();
    a_begin_of_our_own_where_a_decided_one_stands_between();
    a_commit_before_the_blocked_goes();
    a_commit_that_fails_is_all_that_is_told();
    without_a_transaction_the_server_hears_nothing();
    another_segment_waits_for_a_begin_to_be_told();
    a_bound_portal_has_no_place_behind_a_flush();
    what_is_bound_for_nothing_is_charged();
    world_close(w);
    free(m.bytes);
    return 0;
}
