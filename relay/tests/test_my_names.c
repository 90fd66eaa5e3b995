/*
 * test_my_names.c: what a name of PREPARE means at a MySQL server, where the proxy cannot be sure. Decided by
 * the real gate, which blocks this client's writes alone: a name that nobody knows is a write.
 */
#include "my_words.h"

static world *w;

static void block_writes(void)
{
    hr_gate gate = {.ratio = UINT32_MAX,
                    .action = HR_ACT_BLOCK,
                    .cause = HR_BY_RULE,
                    .flags = HR_GATE_WRITES_ONLY,
                    .retry_ms = 400};
    uint64_t key;
    uint32_t client = hr_client_enter(w->relay.state, w->thread[0].pid, "etl", 3,
                                      w->thread[0].now_ns, &key);

    assert(client != 0);
    hr_gate_put(w->relay.state, client, key, &gate);
}

/* Statements of which the first `done` go well, and then one fails; all: none does. */
static void runs(talk *t, const char *text, int done, bool all)
{
    passes(t, HR_CLIENT, query(text));
    for (int i = 1; i <= done; i++)
        passes(t, HR_SERVER,
               ok((uint8_t) i, all && i == done ? MY_AUTOCOMMIT : MY_AUTOCOMMIT | MY_MORE_RESULTS));
    if (!all)
        passes(t, HR_SERVER, error((uint8_t) (done + 1), 1146, "no such table"));
}

static bool is_a_read(talk *t, const char *text)
{
    words it = query(text);
    bool passed;

    say(t, HR_CLIENT, it);
    passed = t->to[HR_SERVER].length == it.length;
    if (passed) {
        forget_sent(t);
        say(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    } else {
        assert(sent_has(t, HR_CLIENT, "[HEADGATE]") || sent_has(t, HR_CLIENT, "headgate"));
    }
    forget_sent(t);
    return passed;
}

#define READ "PREPARE p FROM 'SELECT 1'"

static void what_went_well_is_known(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    runs(t, READ, 1, true);
    assert(is_a_read(t, "EXECUTE p") && is_a_read(t, "EXECUTE p"));
    runs(t, "PREPARE q FROM 'DELETE FROM t'", 1, true);
    assert(!is_a_read(t, "EXECUTE q") && is_a_read(t, "EXECUTE p"));
    runs(t, "PREPARE q FROM 'SELECT 2'; SELECT 3", 2, true);
    assert(is_a_read(t, "EXECUTE q"));
    talk_close(t);
}

/* L8: the server has come to the first, and the proxy saw the second. */
static void of_a_string_that_failed_no_name_is_known(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    runs(t, "PREPARE other FROM 'SELECT 3'", 1, true);
    runs(t, "PREPARE p FROM 'DELETE FROM t'; SELECT * FROM nowhere; PREPARE p FROM 'SELECT 1'", 1,
         false);
    assert(!is_a_read(t, "EXECUTE p"));
    assert(is_a_read(t, "EXECUTE other")); /* which is not in it */
    runs(t, READ, 1, true);
    assert(is_a_read(t, "EXECUTE p"));
    runs(t, "PREPARE `P` FROM 'nonsense'", 0, false);
    assert(!is_a_read(t, "EXECUTE p"));
    talk_close(t);
}

/* What is blocked has changed nothing at the server. */
static void of_a_string_that_was_blocked_no_name_is_known(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    runs(t, "PREPARE p FROM 'DELETE FROM t'", 1, true);
    say(t, HR_CLIENT, query("PREPARE p FROM 'SELECT 1'; DELETE FROM t"));
    assert(sent_nothing(t, HR_SERVER));
    forget_sent(t);
    assert(!is_a_read(t, "EXECUTE p"));
    talk_close(t);
}

/* A procedure's names are its session's. */
static void behind_what_is_out_of_sight_no_name_is_known(void)
{
    static const char *const texts[] = {"SELECT 1 /* CALL swap() */",
                                        "SELECT 1 /* EXECUTE IMMEDIATE 'x' */",
                                        "SELECT 1 /* BEGIN NOT ATOMIC */"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        talk *t = sign_in(w, MY_CLIENT, 0); /* only reads pass here: the words alone must do */

        runs(t, READ, 1, true);
        runs(t, texts[i], 1, true);
        assert(!is_a_read(t, "EXECUTE p"));
        talk_close(t);
    }
}

static void so_it_is_by_a_binary_execution(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, "\x16SELECT 1 /* CALL swap() */"));
    passes(t, HR_SERVER, P(1, "\0\x07\0\0\0\0\0\0\0\0\0\0"));
    runs(t, READ, 1, true);
    assert(is_a_read(t, "EXECUTE p"));
    passes(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\0\1\0\0\0"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(!is_a_read(t, "EXECUTE p"));
    talk_close(t);
}

/* L9: there was no memory for its text. */
static void a_statement_without_a_text_is_a_write(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    for (int out = 0; out < 2; out++) {
        w->out_of_memory = out;
        passes(t, HR_CLIENT, out ? P(0, "\x16SELECT 8") : P(0, "\x16SELECT 7"));
        passes(t, HR_SERVER, P(1, "\0\x07\0\0\0\0\0\0\0\0\0\0"));
        say(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\0\1\0\0\0"));
        assert((t->to[HR_SERVER].length > 0) == !out);
        forget_sent(t);
        if (!out)
            say(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
        forget_sent(t);
        passes(t, HR_CLIENT, P(0, "\x19\x07\0\0\0"));
    }
    w->out_of_memory = false;
    talk_close(t);
}

int main(void)
{
    static const size_t cuts[] = {0, 1, 5};

    w = world_open(HR_PROTOCOL_MYSQL);
    block_writes();
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        cut = cuts[i];
        what_went_well_is_known();
        of_a_string_that_failed_no_name_is_known();
        of_a_string_that_was_blocked_no_name_is_known();
        behind_what_is_out_of_sight_no_name_is_known();
        so_it_is_by_a_binary_execution();
        a_statement_without_a_text_is_a_write();
    }
    world_close(w);
    printf("test_my_names: %zu cuts\n", sizeof cuts / sizeof *cuts);
    return 0;
}
