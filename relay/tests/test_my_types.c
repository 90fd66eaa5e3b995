/*
 * test_my_types.c: the types of parameters, which a client sends once. A blocked execution must not
 * lose them: the server would read the next one's values by the types of the one before.
 */
#define HARNESS_FAKE_GATE
#include "my_words.h"

static world *w;
static hr_said verdict;

static hr_said says(talk *t, const char *text, size_t length, uint32_t flags, hr_words *out)
{
    (void) t, (void) text, (void) length, (void) flags;
    memset(out, 0, sizeof *out);
    out->cause = HR_BY_BUDGET;
    snprintf(out->message, sizeof out->message, "headgate: no");
    return verdict;
}

#define HEAD "\x17\x07\0\0\0\0\1\0\0\0" /* EXECUTE of statement 7 */
#define BULK "\xfa\x07\0\0\0"

/* Statement 7, with this many parameters. */
static talk *prepared(uint32_t can, uint8_t parameters)
{
    talk *t = sign_in(w, can, MY_ALSO_KNOWN);
    words answer = P(1, "\0\x07\0\0\0\0\0\0\0\0\0\0");

    passes(t, HR_CLIENT, P(0, "\x16INSERT INTO t VALUES (?)"));
    answer.bytes[MY_HEADER + 7] = parameters;
    passes(t, HR_SERVER, answer);
    for (uint8_t i = 0; i < parameters; i++)
        passes(t, HR_SERVER,
               P((uint8_t) (i + 2), "\x03"
                                    "def?"));
    passes(t, HR_SERVER, eof((uint8_t) (parameters + 2), MY_AUTOCOMMIT));
    return t;
}

static void blocks(talk *t, words it)
{
    verdict = HR_BLOCK;
    say(t, HR_CLIENT, it);
    assert(heard(t, HR_CLIENT, error(1, 1205, "headgate: no")) && sent_nothing(t, HR_SERVER));
    verdict = HR_GO;
}

static void becomes(talk *t, words said, words got)
{
    say(t, HR_CLIENT, said);
    assert(heard(t, HR_SERVER, got));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
}

static void types_of_a_blocked_execution_go_with_the_next(void)
{
    talk *t = prepared(MY_CLIENT, 2);

    blocks(t, P(0, HEAD "\0\1\3\0\xfd\0\5\0\0\0\2ab"));
    blocks(t,
           P(0, HEAD "\0\0\5\0\0\0\2ab")); /* blocked again, without: they are still to be sent */
    becomes(t, P(0, HEAD "\0\0\6\0\0\0\2cd"), P(0, HEAD "\0\1\3\0\xfd\0\6\0\0\0\2cd"));
    passes(t, HR_CLIENT, P(0, HEAD "\0\0\7\0\0\0\2ef")); /* from then on the server knows them */
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    talk_close(t);
}

static void newer_types_take_the_place_of_those_owed(void)
{
    talk *t = prepared(MY_CLIENT, 1);

    blocks(t, P(0, HEAD "\0\1\3\0\5\0\0\0"));
    blocks(t, P(0, HEAD "\0\1\xfd\0\2ab"));
    becomes(t, P(0, HEAD "\0\0\2ab"), P(0, HEAD "\0\1\xfd\0\2ab"));
    blocks(t, P(0, HEAD "\0\1\3\0\5\0\0\0"));
    passes(t, HR_CLIENT, P(0, HEAD "\0\1\xfd\0\2ab")); /* it brings its own */
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    passes(t, HR_CLIENT, P(0, HEAD "\0\0\2ab"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    talk_close(t);
}

static void a_closed_statement_owes_nothing_to_the_next_of_its_number(void)
{
    talk *t = prepared(MY_CLIENT, 1);

    blocks(t, P(0, HEAD "\0\1\3\0\5\0\0\0"));
    passes(t, HR_CLIENT, P(0, "\x19\x07\0\0\0"));
    passes(t, HR_CLIENT, P(0, "\x16INSERT INTO t VALUES (?)"));
    passes(t, HR_SERVER, P(1, "\0\x07\0\0\0\0\0\1\0\0\0\0"));
    passes(t, HR_SERVER,
           both(P(2, "\x03"
                     "def?"),
                eof(3, MY_AUTOCOMMIT)));
    passes(t, HR_CLIENT, P(0, HEAD "\0\0\5\0\0\0")); /* the server says that it has no types */
    passes(t, HR_SERVER, error(1, 1210, "Incorrect arguments"));
    blocks(t, P(0, HEAD "\0\1\3\0\5\0\0\0"));
    passes(t, HR_CLIENT, P(0, "\x1f")); /* the same by COM_RESET_CONNECTION */
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(t->session.my.more->types == NULL);
    talk_close(t);
}

/* MySQL's query attributes: a count, and a name behind each type. */
static void named_parameters_are_found(void)
{
    talk *t = prepared(MY_CLIENT | MY_CAN_QUERY_ATTRIBUTES, 1);

    blocks(t, P(0, "\x17\x07\0\0\0\x08\1\0\0\0\2\0\1\3\0\0\xfd\0\4team\5\0\0\0\2ab"));
    becomes(t, P(0, "\x17\x07\0\0\0\x08\1\0\0\0\2\0\0\6\0\0\0\2cd"),
            P(0, "\x17\x07\0\0\0\x08\1\0\0\0\2\0\1\3\0\0\xfd\0\4team\6\0\0\0\2cd"));
    talk_close(t);
}

/* MariaDB's bulk says it by a flag; both kinds of execution share what the server knows. */
static void bulk_shares_its_types(void)
{
    talk *t = prepared(MY_CLIENT & ~1u, 1);

    blocks(t, P(0, BULK "\x80\0\3\0\0\5\0\0\0"));
    becomes(t, P(0, BULK "\x40\0\0\6\0\0\0"), P(0, BULK "\xc0\0\3\0\0\6\0\0\0"));
    blocks(t, P(0, BULK "\x80\0\xfd\0\0\2ab"));
    becomes(t, P(0, HEAD "\0\0\2cd"), P(0, HEAD "\0\1\xfd\0\2cd"));
    talk_close(t);
}

/* What cannot be kept is an error, and never guessed. */
static void lost_types_are_blocked(void)
{
    talk *t = prepared(MY_CLIENT, 200);
    words head = {.length = 0}, it = {.length = 0};

    add(&head, HEAD, 10);
    head.length += 25;
    add(&head, "\1", 1); /* and nothing behind it: cut, and so nothing that could be kept */
    it = packet_of(0, head.bytes, head.length);
    blocks(t, it);
    head.bytes[head.length - 1] = 0;
    say(t, HR_CLIENT, packet_of(0, head.bytes, head.length));
    assert(sent_nothing(t, HR_SERVER));
    assert(heard(t, HR_CLIENT,
                 error(1, 1210,
                       "headgate: the last execution of this statement was blocked, "
                       "and its parameters' types are lost with it; bind them again, or "
                       "prepare it again")));
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0); /* a statement that nobody knows: its session ends */
    verdict = HR_BLOCK;
    say(t, HR_CLIENT, P(0, HEAD "\0\1\3\0\5\0\0\0"));
    assert(heard(t, HR_CLIENT, error(1, 1205, "headgate: no")) && t->closed);
    verdict = HR_GO;
    talk_close(t);
}

static void is_malformed(talk *t, uint8_t seq)
{
    words told = {.length = 0};

    told.length = my_error(
        told.bytes, seq, 1835, "HY000",
        "headgate: the command is malformed: shorter than any of its kind; the session "
        "is closed");
    assert(heard(t, HR_CLIENT, told) && sent_nothing(t, HR_SERVER) && t->closed);
}

/* Kept types are bytes of the client's that no server has looked at. Were they put in front of a command
 * that ends before its parameters, they would be the command: H4. */
static void a_short_execution_is_no_way_around(void)
{
    static const char short_ones[] = "\x17\x07\0\0\0\0\1\0\0", short_bulk[] = BULK "\0";

    for (size_t length = 1; length < 10; length++) {
        talk *t = prepared(MY_CLIENT, 13);

        blocks(t, P(0, HEAD "\0\0\1\x03"
                            "DELETE FROM t WHERE v <>'\0rest"));
        assert(t->session.my.more->types != NULL);
        say(t, HR_CLIENT, packet_of(0, short_ones, length));
        is_malformed(t, 1);
        talk_close(t);
    }
    for (size_t length = 1; length < 7; length++) {
        talk *t = prepared(MY_CLIENT & ~1u, 13);

        blocks(t, P(0, HEAD "\0\0\1\x03"
                            "DELETE FROM t WHERE v <>'\0rest"));
        say(t, HR_CLIENT, packet_of(0, short_bulk, length));
        is_malformed(t, 1);
        talk_close(t);
    }
}

/* Long enough to be an execution, but ended before what its statement's parameters need. */
static void an_execution_without_its_parameters_gets_no_types(void)
{
    for (size_t length = 10; length < 13;
         length++) { /* two bytes of nulls, one that says: no types */
        talk *t = prepared(MY_CLIENT, 13);

        blocks(t, P(0, HEAD "\0\0\1\x03"
                            "DELETE FROM t WHERE v <>'\0rest"));
        say(t, HR_CLIENT, packet_of(0, HEAD "\0\0\0", length));
        assert(sent_nothing(t, HR_SERVER) && sent_has(t, HR_CLIENT, "types are lost"));
        talk_close(t);
    }
}

int main(void)
{
    static const size_t cuts[] = {0, 1, 2, 3, 5, 7, 11};
    static void (*const tests[])(void) = {
        types_of_a_blocked_execution_go_with_the_next,
        newer_types_take_the_place_of_those_owed,
        a_closed_statement_owes_nothing_to_the_next_of_its_number,
        named_parameters_are_found,
        bulk_shares_its_types,
        lost_types_are_blocked,
        a_short_execution_is_no_way_around,
        an_execution_without_its_parameters_gets_no_types,
    };

    harness_says = says;
    w = world_open(HR_PROTOCOL_MYSQL);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        cut = cuts[i];
        for (size_t j = 0; j < sizeof tests / sizeof *tests; j++)
            tests[j]();
    }
    world_close(w);
    printf("test_my_types: %zu conversations, %zu cuts\n", sizeof tests / sizeof *tests,
           sizeof cuts / sizeof *cuts);
    return 0;
}
