/*
 * test_my.c: the MySQL machine. Every conversation is held whole and cut at every byte; what comes out
 * must be the same.
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
    out->retry_ms = 400;
    snprintf(out->message, sizeof out->message, "headgate: budget \"etl\" is full");
    snprintf(out->detail, sizeof out->detail, "limit 1, used 1");
    return verdict;
}

#define BLOCKED "headgate: budget \"etl\" is full; retry after 400 ms (limit 1, used 1)"

/* ── Signing in ───────────────────────────────────────────────────────────── */

static void greeting_is_masked(void)
{
    talk *t = talk_open(w);
    uint32_t all = 0xffffffffu;

    say(t, HR_SERVER, greeting(all, 0xffffffff));
    assert(heard(t, HR_CLIENT, greeting(all & ~(uint32_t) (MY_CAN_NOT | MY_CAN_SSL), 0xffffffff)));
    assert(t->session.server_process == 77);
    talk_close(t);

    t = talk_open(w);
    t->session.client_tls_mode = 1;
    say(t, HR_SERVER, greeting(MY_GREETED, 0xffffffff)); /* MariaDB: extended ones, too */
    assert(heard(t, HR_CLIENT,
                 greeting((MY_GREETED & ~(uint32_t) MY_CAN_NOT) | MY_CAN_SSL, MY_ALSO_KNOWN)));
    talk_close(t);
}

static void plain_sign_in_learns_who(void)
{
    talk *t = talk_open(w);

    say(t, HR_SERVER, greeting(0xffffffff, 0));
    forget_sent(t);
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    assert(heard(t, HR_SERVER, response(1, MY_CLIENT, 0)));
    assert(strcmp(t->username, "alice") == 0 && strcmp(t->database, "shop") == 0);
    assert(strcmp(t->application, "etl") == 0);
    assert(noted(&t->told, "attribute program_name=etl\nattribute team=payments\n"));
    assert(!t->session.established);
    passes(t, HR_SERVER, ok(2, MY_AUTOCOMMIT));
    assert(t->session.established && t->session.machine->at_rest(&t->session));
    talk_close(t);
}

/* Drivers that do not look at what was offered: their compressed packets would be read as plain ones. */
static void a_client_that_would_compress_is_told(void)
{
    static const uint32_t kinds[] = {MY_CAN_COMPRESS, MY_CAN_ZSTD};
    words told = {.length = 0};

    for (int i = 0; i < 4; i++) {
        talk *t = talk_open(w);
        bool tls = i > 1;

        t->session.client_tls_mode = tls;
        say(t, HR_SERVER, greeting(0xffffffff, 0));
        forget_sent(t);
        if (tls) /* not before it could read that */
            say(t, HR_CLIENT, ssl_request(1, MY_CLIENT | kinds[i & 1], 0));
        assert(sent_nothing(t, HR_CLIENT) && !t->closed);
        say(t, HR_CLIENT,
            response((uint8_t) (1 + tls), MY_CLIENT | kinds[i & 1] | (tls ? MY_CAN_SSL : 0), 0));
        told.length = my_error(
            told.bytes, (uint8_t) (2 + tls), 1043, "08S01",
            "headgate: the client would compress, which is not offered here; connect "
            "without compression");
        assert(heard(t, HR_CLIENT, told) && sent_nothing(t, HR_SERVER) && t->closed);
        talk_close(t);
    }
}

static void tls_on_one_side_shifts_the_numbers(void)
{
    for (int sides = 0; sides < 4; sides++) {
        talk *t = talk_open(w);
        uint8_t client = sides & 1, server = (uint8_t) (sides >> 1);

        t->session.client_tls_mode = client;
        t->session.server_tls_mode = (uint8_t) (server * 2);
        say(t, HR_SERVER, greeting(0xffffffff, 0));
        forget_sent(t);
        if (client)
            say(t, HR_CLIENT, ssl_request(1, MY_CLIENT, 0));
        assert(sent_nothing(t, HR_SERVER));
        say(t, HR_CLIENT,
            response((uint8_t) (1 + client), MY_CLIENT | (client ? MY_CAN_SSL : 0), 0));
        assert(t->session.side[HR_CLIENT].tls != NULL || !client);
        if (server)
            assert(
                heard(t, HR_SERVER,
                      both(ssl_request(1, MY_CLIENT, 0), response(2, MY_CLIENT | MY_CAN_SSL, 0))));
        else
            assert(heard(t, HR_SERVER, response(1, MY_CLIENT, 0)));
        /* AuthSwitch, an answer, more data, an answer, OK: each numbered as its reader counts. */
        say(t, HR_SERVER,
            P((uint8_t) (2 + server), "\xfe"
                                      "mysql_native_password\0abcdefgh\0"));
        assert(heard(t, HR_CLIENT,
                     P((uint8_t) (2 + client), "\xfe"
                                               "mysql_native_password\0abcdefgh\0")));
        say(t, HR_CLIENT, P((uint8_t) (3 + client), "01234567890123456789"));
        assert(heard(t, HR_SERVER, P((uint8_t) (3 + server), "01234567890123456789")));
        say(t, HR_SERVER, ok((uint8_t) (4 + server), MY_AUTOCOMMIT));
        assert(heard(t, HR_CLIENT, ok((uint8_t) (4 + client), MY_AUTOCOMMIT)));
        assert(t->session.established);
        passes(t, HR_CLIENT, query("SELECT 1"));
        passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
        talk_close(t);
    }
}

static void caching_sha2_fast_and_full(void)
{
    talk *t = talk_open(w);

    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    forget_sent(t);
    say(t, HR_SERVER, both(P(2, "\x01\x03"), ok(3, MY_AUTOCOMMIT)));
    assert(heard(t, HR_CLIENT, both(P(2, "\x01\x03"), ok(3, MY_AUTOCOMMIT)))
           && t->session.established);
    talk_close(t);

    t = talk_open(w); /* not in the server's cache: by its public key */
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    forget_sent(t);
    passes(t, HR_SERVER, P(2, "\x01\x04"));
    passes(t, HR_CLIENT, P(3, "\x02"));
    passes(t, HR_SERVER, P(4, "\x01-----BEGIN PUBLIC KEY-----"));
    passes(t, HR_CLIENT, P(5, "encrypted"));
    passes(t, HR_SERVER, ok(6, MY_AUTOCOMMIT));
    assert(t->session.established);
    talk_close(t);
}

static bool is_told_of_the_crowd(talk *t, uint8_t seq)
{
    words told = {.length = 0};

    told.length = my_error(told.bytes, seq, 1040, "08004",
                           "headgate: too many sessions: max_sessions is reached; reconnect later");
    return heard(t, HR_CLIENT, told) && t->closed;
}

/* M7: in the place of the server's OK, numbered as that would be. */
static void a_crowded_user_is_told_when_it_is_let_in(void)
{
    talk *t = talk_open(w);

    t->crowded = true;
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    forget_sent(t);
    passes(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    say(t, HR_SERVER, ok(2, MY_AUTOCOMMIT));
    assert(is_told_of_the_crowd(t, 2) && !t->session.established);
    talk_close(t);

    t = talk_open(w);
    t->crowded = true;
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    forget_sent(t);
    passes(t, HR_SERVER,
           P(2, "\xfe"
                "mysql_native_password\0abcdefgh\0"));
    passes(t, HR_CLIENT, P(3, "01234567890123456789"));
    say(t, HR_SERVER, ok(4, MY_AUTOCOMMIT));
    assert(is_told_of_the_crowd(t, 4));
    talk_close(t);

    t = talk_open(w); /* what came before it goes first */
    t->crowded = true;
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    forget_sent(t);
    say(t, HR_SERVER, both(P(2, "\x01\x03"), ok(3, MY_AUTOCOMMIT)));
    assert(t->to[HR_CLIENT].bytes[3] == 2);
    take_front(&t->to[HR_CLIENT], 6);
    assert(is_told_of_the_crowd(t, 3));
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0); /* who becomes another counts as that one */
    t->crowded = true;
    passes(t, HR_CLIENT,
           P(0, "\x11"
                "bob\0\0shop\0"));
    say(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(strcmp(t->username, "bob") == 0 && is_told_of_the_crowd(t, 1));
    talk_close(t);
}

/* A response that names its plugin. */
static words response_by(uint8_t seq, uint32_t can, const char *plugin)
{
    words payload = {.length = 0};

    add_number(&payload, can, 4);
    add_number(&payload, 1 << 24, 4);
    add_number(&payload, 45, 1);
    payload.length += 23;
    add(&payload, "alice\0", 6);
    add(&payload,
        "\x07"
        "secret\0",
        8);
    add(&payload, "shop\0", 5);
    add(&payload, plugin, strlen(plugin) + 1);
    return packet_of(seq, payload.bytes, payload.length);
}

/* L7: a client that sees TLS sends by these what it would not send without. */
static void a_password_in_clear_stays_where_it_is_encrypted(void)
{
    static const struct {
        const char *plugin;
        bool bare;
    } plugins[] = {
        {"mysql_clear_password", true},
        {"sha256_password", true},
        {"dialog", true},
        {"never_heard_of", true},
        {"mysql_native_password", false},
        {"client_ed25519", false},
        {"caching_sha2_password", false},
    };
    uint32_t can = MY_CLIENT & ~(uint32_t) MY_CAN_ATTRIBUTES;

    for (size_t i = 0; i < sizeof plugins / sizeof *plugins; i++)
        for (int sides = 0; sides < 8; sides++)
            for (int by = 0; by < 3;
                 by++) { /* by its response, by AuthSwitch, by COM_CHANGE_USER */
                uint8_t client = sides & 1, server = sides >> 1 & 1;
                bool near = sides & 4, rejected = plugins[i].bare && client && !server && !near;
                talk *t = talk_open(w);
                words asked = {.length = 0}, change = {.length = 0};

                t->session.client_tls_mode = client;
                t->session.server_tls_mode = (uint8_t) (server * 2);
                t->session.server_near = near;
                say(t, HR_SERVER, greeting(0xffffffff, 0));
                if (client)
                    say(t, HR_CLIENT, ssl_request(1, can, 0));
                forget_sent(t);
                say(t, HR_CLIENT,
                    response_by((uint8_t) (1 + client), can | (client ? MY_CAN_SSL : 0),
                                by == 0 ? plugins[i].plugin : "mysql_native_password"));
                if (by == 1) {
                    assert(!t->closed);
                    forget_sent(t);
                    add(&asked, "\xfe", 1);
                    add(&asked, plugins[i].plugin, strlen(plugins[i].plugin) + 1);
                    add(&asked, "abcdefghijklmnopqrst\0", 21);
                    say(t, HR_SERVER, packet_of((uint8_t) (2 + server), asked.bytes, asked.length));
                } else if (by == 2) {
                    say(t, HR_SERVER, ok((uint8_t) (2 + server), MY_AUTOCOMMIT));
                    forget_sent(t);
                    add(&change,
                        "\x11"
                        "bob\0\7secret\0shop\0\x2d\0",
                        20);
                    add(&change, plugins[i].plugin, strlen(plugins[i].plugin) + 1);
                    say(t, HR_CLIENT, packet_of(0, change.bytes, change.length));
                }
                assert(sent_has(t, HR_SERVER, "secret") == (by != 1 && !rejected));
                assert(sent_has(t, HR_CLIENT, "may send the password as it is") == rejected);
                assert(t->closed == rejected
                       && (!rejected || !sent_has(t, HR_CLIENT, plugins[i].plugin)));
                talk_close(t);
            }
}

static void rejected_sign_in_ends(void)
{
    talk *t = talk_open(w);

    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    forget_sent(t);
    passes(t, HR_SERVER, error(2, 1045, "Access denied"));
    assert(t->closed && !t->session.established);
    talk_close(t);

    t = talk_open(w); /* an error in the greeting's place */
    passes(t, HR_SERVER, P(0, "\xff\x10\x04Too many connections"));
    assert(t->closed);
    talk_close(t);

    t = talk_open(w); /* a statement cannot be slipped in before the server has answered */
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    forget_sent(t);
    say(t, HR_CLIENT, query("DROP TABLE t"));
    assert(sent_nothing(t, HR_SERVER) && t->session.later);
    say(t, HR_SERVER, ok(2, MY_AUTOCOMMIT));
    assert(heard(t, HR_SERVER, query("DROP TABLE t")) && noted(&t->asked, "0 DROP TABLE t\n"));
    talk_close(t);
}

static void tls_that_is_missing_is_said(void)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = 2;
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    assert(sent_has(t, HR_CLIENT, "without TLS are not taken") && sent_nothing(t, HR_SERVER)
           && t->closed);
    talk_close(t);

    t = talk_open(w);
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    say(t, HR_CLIENT, ssl_request(1, MY_CLIENT, 0));
    assert(sent_has(t, HR_CLIENT, "TLS is not offered here") && t->closed);
    talk_close(t);

    t = talk_open(w);
    t->session.server_tls_mode = 2;
    say(t, HR_SERVER, greeting(0xffffffff & ~(uint32_t) MY_CAN_SSL, 0));
    say(t, HR_CLIENT, response(1, MY_CLIENT, 0));
    assert(sent_has(t, HR_CLIENT, "the server offers no TLS") && sent_nothing(t, HR_SERVER)
           && t->closed);
    talk_close(t);
}

/* The client has sent its response, in clear or behind its own TLS: the error answers that one. */
static void tls_that_fails_with_the_server_is_said_in_sequence(void)
{
    for (uint8_t client = 0; client < 2; client++) {
        talk *t = talk_open(w);

        t->session.client_tls_mode = client;
        t->session.server_tls_mode = 2;
        say(t, HR_SERVER, greeting(0xffffffff, 0));
        if (client)
            say(t, HR_CLIENT, ssl_request(1, MY_CLIENT, 0));
        t->stays_insecure = true;
        say(t, HR_CLIENT,
            response((uint8_t) (1 + client), MY_CLIENT | (client ? MY_CAN_SSL : 0), 0));
        forget_sent(t);
        end_session(t, HR_LOST_TLS);
        assert(t->to[HR_CLIENT].length > 5 && t->to[HR_CLIENT].bytes[4] == 0xff);
        assert(t->to[HR_CLIENT].bytes[3] == 2 + client);
        talk_close(t);
    }
}

static void malformed_sign_in_is_said(void)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *said;
    } bad[] = {
        {"\x01\0\0\x01x", 5, "bad handshake"},
        {"\x01\0\0\x05x", 5, "out of order"},
        {"\xff\xff\xff\x01x", 5, "larger than 64 KiB"},
        /* A name that never ends, and attributes longer than the packet. */
        {"\x24\0\0\x01\x09\x82\x08\0\0\0\0\1\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0root",
         40, "longer than"},
        {"\x28\0\0\x01\x09\x82\x10\0\0\0\0\1\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0u\0\0\x09\x01"
         "a\x7f"
         "b",
         44, "longer than"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        talk *t = talk_open(w);

        say(t, HR_SERVER, greeting(0xffffffff, 0));
        forget_sent(t);
        feed_cut(t, HR_CLIENT, bad[i].bytes, bad[i].length, cut);
        if (!sent_has(t, HR_CLIENT, bad[i].said))
            show(bad[i].said, t->to[HR_CLIENT].bytes, t->to[HR_CLIENT].length);
        assert(sent_has(t, HR_CLIENT, bad[i].said) && t->closed && sent_nothing(t, HR_SERVER));
        talk_close(t);
    }
}

/* ── Answers ──────────────────────────────────────────────────────────────── */

static words columns(uint8_t seq, uint8_t count)
{
    words it = packet_of(seq, &count, 1);

    for (uint8_t i = 0; i < count; i++)
        it = both(it, P((uint8_t) (seq + 1 + i), "\x03"
                                                 "def\xfe\xff\0"));
    return it;
}

static void result_sets_end_where_they_end(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, query("SELECT a, b FROM t"));
    passes(t, HR_SERVER, columns(1, 2));
    passes(t, HR_SERVER, eof(4, MY_AUTOCOMMIT));
    passes(t, HR_SERVER, both(P(5, "\x01x\xfb"), P(6, "\xfe\x05\0\0\0\0\0\0\0abcde\x01y")));
    passes(t, HR_SERVER, P(7, "\xfb\xfb"));
    assert(noted(&t->ended, "") && !t->session.machine->at_rest(&t->session));
    passes(t, HR_SERVER, eof(8, MY_AUTOCOMMIT));
    assert(noted(&t->ended, "done 1 ok\n") && t->session.machine->at_rest(&t->session));
    talk_close(t);

    t = sign_in(w, MY_CLIENT | MY_CAN_NO_EOF, 0);
    passes(t, HR_CLIENT, query("SELECT a FROM t"));
    passes(t, HR_SERVER, both(columns(1, 1), P(3, "\x01x")));
    assert(noted(&t->ended, ""));
    passes(t, HR_SERVER, end_ok(4, MY_AUTOCOMMIT | MY_IN_TRANSACTION));
    assert(noted(&t->ended, "done 1 ok\n") && t->session.machine->in_transaction(&t->session));
    passes(t, HR_CLIENT, query("SELECT 2"));
    passes(t, HR_SERVER, both(columns(1, 1), error(3, 1105, "in the middle")));
    assert(noted(&t->ended, "done 2 failed\n"));
    talk_close(t);
}

static void several_results_are_one_command(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, query("SELECT 1; UPDATE t SET a = 1; SELECT 2"));
    passes(t, HR_SERVER, both(columns(1, 1), eof(3, MY_AUTOCOMMIT)));
    passes(t, HR_SERVER, both(P(4, "\x01x"), eof(5, MY_AUTOCOMMIT | MY_MORE_RESULTS)));
    passes(t, HR_SERVER, ok(6, MY_AUTOCOMMIT | MY_MORE_RESULTS));
    assert(noted(&t->ended, "step 1 ok\nstep 1 ok\n"));
    passes(t, HR_SERVER, error(7, 1064, "syntax"));
    assert(noted(&t->ended, "done 1 failed\n"));
    talk_close(t);
}

static void packets_of_16_mb_are_continued(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);
    size_t size = 4 + (size_t) MY_FULL;
    uint8_t *large = calloc(1, size);

    memset(large, 0xff, 3);
    large[4] = 3;
    memset(large + 5, ' ', MY_FULL - 1);
    feed_cut(t, HR_CLIENT, large, size, 100000);
    assert(sent_is(t, HR_SERVER, large, size));
    assert(t->asked.length == 2 + HR_TEXT_BYTES && memcmp(t->asked.bytes, "2 ", 2) == 0);
    passes(t, HR_CLIENT, P(1, "FROM t"));
    large[3] = 3;
    large[4] = 'x';
    large[5] = 0xfc;
    passes(t, HR_SERVER, both(columns(1, 1), eof(3, MY_AUTOCOMMIT)));
    feed_cut(t, HR_SERVER, large, size, 100000);
    assert(sent_is(t, HR_CLIENT, large, size));
    passes(t, HR_SERVER, P(4, "\xfe\0\0\2\0")); /* looks like an end, and continues the row */
    assert(noted(&t->ended, ""));
    passes(t, HR_SERVER, eof(5, MY_AUTOCOMMIT));
    assert(noted(&t->ended, "done 1 ok\n"));

    t->asked.length = 0; /* blocked: discarded up to its last packet, whose number counts */
    verdict = HR_BLOCK;
    large[3] = 0;
    large[4] = 3;
    memset(large + 5, ' ', MY_FULL - 1);
    feed_cut(t, HR_CLIENT, large, size, 100000);
    assert(sent_nothing(t, HR_CLIENT));
    say(t, HR_CLIENT, P(1, "FROM t"));
    assert(sent_nothing(t, HR_SERVER) && heard(t, HR_CLIENT, error(2, 1205, BLOCKED)));
    verdict = HR_GO;
    passes(t, HR_CLIENT, query("SELECT 1"));
    free(large);
    talk_close(t);
}

static void a_file_goes_up_to_an_empty_packet(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, query("LOAD DATA LOCAL INFILE 'f' INTO TABLE t"));
    passes(t, HR_SERVER, P(1, "\xfb/tmp/f"));
    passes(t, HR_CLIENT,
           P(2, "\x03"
                "DROP TABLE t"));
    passes(t, HR_CLIENT, P(3, "\x01"));
    passes(t, HR_CLIENT, P(4, ""));
    say(t, HR_CLIENT, query("SELECT 1"));
    assert(sent_nothing(t, HR_SERVER));
    say(t, HR_SERVER, ok(5, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, ok(5, MY_AUTOCOMMIT)) && heard(t, HR_SERVER, query("SELECT 1")));
    assert(noted(&t->ended, "done 1 ok\n"));
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0); /* a server that breaks off: what follows is no command */
    passes(t, HR_CLIENT, query("LOAD DATA LOCAL INFILE 'f' INTO TABLE t"));
    passes(t, HR_SERVER, P(1, "\xfb/tmp/f"));
    passes(t, HR_SERVER, error(2, 1053, "shutdown"));
    assert(t->closed);
    talk_close(t);
}

static void mariadb_leaves_definitions_out_and_reports_progress(void)
{
    talk *t = sign_in(w, MY_CLIENT & ~1u, MY_ALSO_KNOWN);

    passes(t, HR_CLIENT, query("SELECT a, b FROM t"));
    passes(t, HR_SERVER, P(1, "\x02\x00"));
    passes(t, HR_SERVER, eof(2, MY_AUTOCOMMIT));
    passes(t, HR_SERVER, P(3, "\x01x\x01y"));
    passes(t, HR_SERVER, eof(4, MY_AUTOCOMMIT));
    assert(noted(&t->ended, "done 1 ok\n"));
    passes(t, HR_CLIENT, query("ALTER TABLE t ADD c int"));
    passes(t, HR_SERVER,
           P(1, "\xff\xff\xff\x01\x01\x02\0\0\0\x04"
                "copy"));
    assert(noted(&t->ended, ""));
    passes(t, HR_SERVER, ok(2, MY_AUTOCOMMIT));
    assert(noted(&t->ended, "done 2 ok\n"));
    talk_close(t);
}

static void other_commands_have_answers_of_their_own(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, "\x0e"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    passes(t, HR_CLIENT, P(0, "\x09"));
    passes(t, HR_SERVER, P(1, "Uptime: 1"));
    passes(t, HR_CLIENT, P(0, "\x04t\0%"));
    passes(t, HR_SERVER,
           P(1, "\x03"
                "def\x00"));
    passes(t, HR_SERVER, eof(2, MY_AUTOCOMMIT));
    passes(t, HR_CLIENT, P(0, "\x1b\0\0"));
    passes(t, HR_SERVER, eof(1, MY_AUTOCOMMIT));
    assert(noted(&t->asked, ""));
    say(t, HR_CLIENT, P(0, "\x20"));
    assert(sent_has(t, HR_CLIENT, "does not go through the proxy") && sent_nothing(t, HR_SERVER));
    forget_sent(t);
    assert(noted(&t->asked, ""));
    passes(t, HR_CLIENT, P(0, "\x01"));
    assert(t->closed);
    talk_close(t);
}

/* COM_REFRESH flushes tables; what a server knows beyond our list may do anything. */
static void commands_that_nobody_knows_are_decided(void)
{
    static const char *const codes[] = {"\x07\x04", "\x06t", "\x70", "\xef", "\xfb"};

    for (size_t i = 0; i <= sizeof codes / sizeof *codes; i++) {
        bool empty = i == sizeof codes / sizeof *codes;
        words it = empty ? P(0, "") : packet_of(0, codes[i], strlen(codes[i]));
        talk *t = sign_in(w, MY_CLIENT, 0);

        passes(t, HR_CLIENT, it);
        assert(noted(&t->asked, "0 \n"));
        passes(t, HR_SERVER, error(1, 1047, "Unknown command"));
        assert(noted(&t->ended, "done 1 failed\n"));
        verdict = HR_BLOCK;
        say(t, HR_CLIENT, it);
        assert(heard(t, HR_CLIENT, error(1, 1205, BLOCKED)) && sent_nothing(t, HR_SERVER));
        verdict = HR_GO;
        talk_close(t);
    }
}

#define DUMP "\x12\x04\0\0\0\0\0\1\0\0\0binlog.1"
#define REPORT                                                                                     \
    "\xef"                                                                                         \
    "12345678binlog.1"

static void a_dump_is_no_way_around(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, DUMP));
    passes(t, HR_SERVER, P(1, "\0event"));
    passes(t, HR_CLIENT, P(0, REPORT));
    say(t, HR_CLIENT, query("DROP TABLE t"));
    assert(sent_nothing(t, HR_SERVER) && noted(&t->asked, ""));
    passes(t, HR_SERVER, error(2, 1236, "could not find")); /* the server goes with it */
    assert(t->closed && sent_nothing(t, HR_SERVER) && noted(&t->asked, ""));
    talk_close(t);
}

/* M2: a server that denies the log takes the report for a command, and answers it. Were that answer taken
 * for the next one's, that would run on without its place. */
static void a_report_waits_until_the_log_has_come(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, DUMP));
    say(t, HR_CLIENT, both(P(0, REPORT), query("SELECT heavy")));
    assert(sent_nothing(t, HR_SERVER) && noted(&t->asked, ""));
    passes(t, HR_SERVER, error(1, 1227, "Access denied"));
    assert(heard(t, HR_SERVER, P(0, REPORT)) && noted(&t->asked, "0 \n"));
    passes(t, HR_SERVER, error(1, 1047, "Unknown command"));
    assert(heard(t, HR_SERVER, query("SELECT heavy")) && noted(&t->asked, "0 SELECT heavy\n"));
    assert(noted(&t->ended, "done 1 failed\n"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(noted(&t->ended, "done 2 ok\n") && !t->closed);
    talk_close(t);
}

/* M2: MySQL answers them, and says nothing to those that are whole; MariaDB says nothing to either. */
static void malformed_commands_end_it(void)
{
    static const struct {
        const char *bytes;
        size_t least;
    } kinds[] = {
        {"\x19\1\0\0\0", 5},     {"\x18\1\0\0\0\0\0", 7},     {"\x1a\1\0\0\0", 5},
        {"\x0c\1\0\0\0", 5},     {"\x1c\1\0\0\0\1\0\0\0", 9}, {"\x17\1\0\0\0\0\1\0\0\0", 10},
        {"\xfa\1\0\0\0\0\0", 7},
    };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t length = 1; length <= kinds[i].least; length++) {
            talk *t = sign_in(w, MY_CLIENT, 0);
            words it = packet_of(0, kinds[i].bytes, length);

            if (length == kinds[i].least) {
                passes(t, HR_CLIENT, it);
                assert(!t->closed);
            } else {
                say(t, HR_CLIENT, both(it, query("SELECT heavy")));
                assert(heard(t, HR_CLIENT,
                             error(1, 1835,
                                   "headgate: the command is malformed: shorter than "
                                   "any of its kind; the session is closed")));
                assert(t->closed && sent_nothing(t, HR_SERVER) && noted(&t->asked, ""));
            }
            talk_close(t);
        }
}

/* ── Prepared statements ──────────────────────────────────────────────────── */

static void prepared_statements_are_decided_when_executed(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, "\x16SELECT a FROM t WHERE b = ?"));
    passes(t, HR_SERVER, P(1, "\0\x07\0\0\0\1\0\1\0\0\0\0"));
    passes(t, HR_SERVER,
           both(P(2, "\x03"
                     "def?"),
                eof(3, MY_AUTOCOMMIT)));
    assert(!t->session.machine->at_rest(&t->session));
    passes(t, HR_SERVER,
           both(P(4, "\x03"
                     "defa"),
                eof(5, MY_AUTOCOMMIT)));
    assert(t->session.machine->at_rest(&t->session) && noted(&t->asked, ""));
    passes(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\0\1\0\0\0\0\1\3\0\5\0\0\0"));
    assert(noted(&t->asked, "8 P SELECT a FROM t WHERE b = ?\n"));
    passes(t, HR_SERVER, both(columns(1, 1), eof(3, MY_AUTOCOMMIT)));
    passes(t, HR_SERVER, both(P(4, "\0\0\x01x"), eof(5, MY_AUTOCOMMIT)));
    assert(noted(&t->ended, "done 1 ok\n"));

    /* With a cursor the definitions' end is the answer's, and rows are fetched. */
    passes(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\1\1\0\0\0\0\1\3\0\5\0\0\0"));
    passes(t, HR_SERVER, both(columns(1, 1), eof(3, MY_AUTOCOMMIT | MY_CURSOR_EXISTS)));
    assert(noted(&t->ended, "done 2 ok\n"));
    t->asked.length = 0;
    passes(t, HR_CLIENT, P(0, "\x1c\x07\0\0\0\1\0\0\0"));
    assert(noted(&t->asked, "9 P SELECT a FROM t WHERE b = ?\n")); /* as inside a transaction */
    passes(t, HR_SERVER, both(P(1, "\0\0\x01x"), eof(2, MY_AUTOCOMMIT | 0x80)));
    assert(noted(&t->ended, "done 3 ok\n"));

    verdict = HR_BLOCK;
    say(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\0\1\0\0\0\0\1\3\0\5\0\0\0"));
    assert(heard(t, HR_CLIENT, error(1, 1205, BLOCKED)) && sent_nothing(t, HR_SERVER));
    verdict = HR_GO;
    passes(t, HR_CLIENT, P(0, "\x19\x07\0\0\0"));
    assert(t->prepared_open == 0);
    t->asked.length = 0;
    passes(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\0\1\0\0\0")); /* nobody knows it: a write */
    assert(noted(&t->asked, "8 \n"));
    talk_close(t);
}

static void blocked_execution_takes_its_long_data_back(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, "\x16INSERT INTO t VALUES (?)"));
    passes(t, HR_SERVER, P(1, "\0\x07\0\0\0\0\0\0\0\0\0\0"));
    passes(t, HR_CLIENT, P(0, "\x18\x07\0\0\0\0\0chunk"));
    verdict = HR_BLOCK;
    say(t, HR_CLIENT, both(P(0, "\x17\x07\0\0\0\0\1\0\0\0"), P(0, "\x0e")));
    assert(heard(t, HR_CLIENT, error(1, 1205, BLOCKED)));
    assert(heard(t, HR_SERVER, both(P(0, "\x1a\x07\0\0\0"), P(0, "\x0e"))));
    say(t, HR_SERVER, ok(1, MY_AUTOCOMMIT)); /* of ours: the client does not see it */
    assert(sent_nothing(t, HR_CLIENT));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    verdict = HR_GO;
    passes(t, HR_CLIENT, P(0, "\x17\x07\0\0\0\0\1\0\0\0"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    talk_close(t);
}

static void pipelined_prepare_and_execute(void)
{
    talk *t = sign_in(w, MY_CLIENT & ~1u, MY_ALSO_KNOWN);
    words prepare = P(0, "\x16"
                         "DELETE FROM t"),
          execute = P(0, "\x17\xff\xff\xff\xff\0\1\0\0\0");

    say(t, HR_CLIENT, both(prepare, execute));
    assert(heard(t, HR_SERVER, prepare) && noted(&t->asked, ""));
    say(t, HR_SERVER, P(1, "\0\x09\0\0\0\0\0\0\0\0\0\0"));
    assert(heard(t, HR_SERVER, execute) && noted(&t->asked, "8 P DELETE FROM t\n"));
    forget_sent(t);
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    /* Behind what could not be prepared, the server may run the one before: it is decided as unknown. */
    say(t, HR_CLIENT,
        both(P(0, "\x16"
                  "DELET"),
             execute));
    assert(heard(t, HR_SERVER,
                 P(0, "\x16"
                      "DELET")));
    say(t, HR_SERVER, error(1, 1064, "syntax"));
    assert(heard(t, HR_SERVER, execute) && noted(&t->asked, "8 \n"));
    forget_sent(t);
    passes(t, HR_SERVER, error(1, 1243, "unknown statement"));
    /* Bulk, and a block between what was sent ahead. */
    passes(t, HR_CLIENT, P(0, "\xfa\x09\0\0\0\x80\0"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(noted(&t->asked, "8 P DELETE FROM t\n"));
    verdict = HR_BLOCK;
    say(t, HR_CLIENT, both(both(P(0, "\x0e"), query("DELETE FROM t")), P(0, "\x0e")));
    assert(heard(t, HR_SERVER, P(0, "\x0e")) && sent_nothing(t, HR_CLIENT));
    say(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, both(ok(1, MY_AUTOCOMMIT), error(1, 1205, BLOCKED))));
    assert(heard(t, HR_SERVER, P(0, "\x0e")));
    verdict = HR_GO;
    talk_close(t);
}

static void many_statements_are_found_again(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    for (uint32_t id = 1; id <= 5000; id++) {
        words answer = P(1, "\0\0\0\0\0\0\0\0\0\0\0\0");

        my_put(answer.bytes + 5, id, 4);
        feed(t, HR_CLIENT, "\x09\0\0\0\x16SELECT 1", 13);
        feed(t, HR_SERVER, answer.bytes, answer.length);
    }
    assert(t->prepared_open == MY_MAX_STATEMENTS); /* bounded */
    for (uint32_t id = 1; id <= 5000; id += 2) {
        uint8_t close[] = {5, 0, 0, 0, MY_STMT_CLOSE, (uint8_t) id, (uint8_t) (id >> 8), 0, 0};

        feed(t, HR_CLIENT, close, sizeof close);
    }
    assert(t->prepared_open == MY_MAX_STATEMENTS / 2);
    for (uint32_t id = 2; id <= MY_MAX_STATEMENTS; id += 2)
        assert(my_find(&t->session, id) != NULL && my_find(&t->session, id - 1) == NULL);
    talk_close(t);
}

/* ── What is decided, and how ──────────────────────────────────────────────── */

static void blocks_leave_the_session_as_it_was(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    verdict = HR_BLOCK;
    say(t, HR_CLIENT, query("SELECT sleep(9)"));
    assert(heard(t, HR_CLIENT, error(1, 1205, BLOCKED)) && sent_nothing(t, HR_SERVER));
    verdict = HR_GO;
    passes(t, HR_CLIENT, query("SELECT 1"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    verdict = HR_SHUT;
    say(t, HR_CLIENT, query("SELECT 2"));
    assert(heard(t, HR_CLIENT, error(1, 1205, BLOCKED)) && t->closed);
    verdict = HR_GO;
    talk_close(t);
}

static void a_hundred_blocks_in_one_read(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);
    uint8_t many[100 * 6];
    size_t told = 0;

    verdict = HR_BLOCK;
    for (size_t i = 0; i < 100; i++)
        memcpy(many + 6 * i, "\x02\0\0\0\x03x", 6);
    feed(t, HR_CLIENT, many, sizeof many);
    for (int rounds = 0; rounds < 10 && t->session.held; rounds++) {
        assert(t->woken == (uint64_t) rounds + 1); /* automatically */
        feed_again(t);
    }
    for (size_t at = 0; at < t->to[HR_CLIENT].length; told++)
        at += 4 + my_length(t->to[HR_CLIENT].bytes + at);
    assert(told == 100 && !t->session.held);
    verdict = HR_GO;
    talk_close(t);
}

static void held_statements_go_or_are_cancelled(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);
    words expected = {.length = 0};

    verdict = HR_WAIT;
    say(t, HR_CLIENT, query("SELECT 1"));
    assert(t->session.held && sent_nothing(t, HR_SERVER) && sent_nothing(t, HR_CLIENT));
    verdict = HR_GO;
    feed_again(t);
    assert(heard(t, HR_SERVER, query("SELECT 1")));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    verdict = HR_WAIT;
    say(t, HR_CLIENT, query("SELECT 2"));
    hr_gate_cancel(&t->session);
    feed_again(t);
    expected.length = my_error(expected.bytes, 1, 1317, "70100", "headgate: cancelled");
    assert(heard(t, HR_CLIENT, expected) && sent_nothing(t, HR_SERVER));
    verdict = HR_GO;
    passes(t, HR_CLIENT, query("SELECT 3"));
    talk_close(t);
}

static void warnings_are_counted_and_shown(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);
    words show = query("show warnings;"), row;

    verdict = HR_GO_WARNED;
    passes(t, HR_CLIENT, query("UPDATE t SET a = 1"));
    say(t, HR_SERVER, P(1, "\0\0\0\x02\0\x01\0info"));
    assert(heard(t, HR_CLIENT, P(1, "\0\0\0\x02\0\x02\0info")));
    verdict = HR_GO;
    passes(t, HR_CLIENT, show);
    passes(t, HR_SERVER, both(columns(1, 3), eof(5, MY_AUTOCOMMIT)));
    passes(t, HR_SERVER,
           P(6, "\x04Note\x04"
                "1051\x01x"));
    say(t, HR_SERVER, eof(7, MY_AUTOCOMMIT));
    row = P(7, "\x07Warning\x04"
               "1205"
               "\x43" BLOCKED);
    row.bytes[4 + 8 + 5] = (uint8_t) strlen(BLOCKED);
    assert(heard(t, HR_CLIENT, both(row, eof(8, MY_AUTOCOMMIT))));

    verdict = HR_GO_WARNED; /* rows: in the last packet */
    passes(t, HR_CLIENT, query("SELECT a FROM t"));
    passes(t, HR_SERVER, both(columns(1, 1), eof(3, MY_AUTOCOMMIT)));
    say(t, HR_SERVER, eof(4, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, P(4, "\xfe\x01\0\x02\0")));
    verdict = HR_GO; /* another statement, and it is forgotten */
    passes(t, HR_CLIENT, query("SELECT 2"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    passes(t, HR_CLIENT, show);
    passes(t, HR_SERVER, both(columns(1, 3), eof(5, MY_AUTOCOMMIT)));
    passes(t, HR_SERVER, eof(6, MY_AUTOCOMMIT));
    talk_close(t);
}

static void the_first_statement_of_a_transaction_decides(void)
{
    static const struct {
        const char *text, *asked;
        uint16_t status;
    } steps[] = {
        {"BEGIN", "0 BEGIN\n", 3},
        {"SET @a = 1", "0 SET @a = 1\n", 3},      /* has run nothing yet */
        {"INSERT INTO t VALUES (1)", "0 INSERT INTO t VALUES (1)\n", 3},
        {"UPDATE t SET a = 1", "1 UPDATE t SET a = 1\n", 3},
        {"COMMIT AND CHAIN", "1 COMMIT AND CHAIN\n", 3},
        {"UPDATE t SET a = 2", "0 UPDATE t SET a = 2\n", 3},
        {"ROLLBACK TO SAVEPOINT s", "1 ROLLBACK TO SAVEPOINT s\n", 3},
        {"UPDATE t SET a = 3", "1 UPDATE t SET a = 3\n", 3},
        {"ROLLBACK", "1 ROLLBACK\n", 2},
        {"SET autocommit = 0", "0 SET autocommit = 0\n", 0},
        {"SELECT a FROM t", "0 SELECT a FROM t\n", 1}, /* begins one automatically */
        {"SELECT b FROM t", "1 SELECT b FROM t\n", 1},
        {"COMMIT", "1 COMMIT\n", 0},
        {"SELECT b FROM t", "0 SELECT b FROM t\n", 1},
    };
    talk *t = sign_in(w, MY_CLIENT, 0);

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        passes(t, HR_CLIENT, query(steps[i].text));
        passes(t, HR_SERVER, ok(1, steps[i].status));
        assert(noted(&t->asked, steps[i].asked));
    }
    /* A deadlock's victim has no transaction any more. */
    assert(t->session.machine->in_transaction(&t->session));
    passes(t, HR_CLIENT, query("SELECT c FROM t"));
    passes(t, HR_SERVER, error(1, 1213, "deadlock"));
    assert(!t->session.machine->in_transaction(&t->session));
    talk_close(t);
}

static void attributes_of_a_query_are_stepped_over(void)
{
    talk *t = sign_in(w, MY_CLIENT | MY_CAN_QUERY_ATTRIBUTES, 0);

    passes(t, HR_CLIENT, P(0, "\x03\0\1SELECT 1"));
    assert(noted(&t->asked, "0 SELECT 1\n"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    /* A string, NULL, a number, a time. */
    passes(t, HR_CLIENT,
           P(0, "\x03\4\1\x02\1\xfe\0\1a\xfe\0\1b\x08\0\1c\x0c\0\1d"
                "\x02hi"
                "\1\2\3\4\5\6\7\x08"
                "\x04\xe8\7\1\1"
                "SELECT 2"));
    assert(noted(&t->asked, "0 SELECT 2\n"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    say(t, HR_CLIENT, P(0, "\x03\4\1\x02\1\xfe\0"));
    assert(sent_has(t, HR_CLIENT, "attributes are malformed") && t->closed);
    talk_close(t);
}

/* One attribute of that type, without a name, and what follows. */
static words with_attribute(uint16_t type, const void *rest, size_t length)
{
    words payload = {.length = 0};

    add(&payload, "\x03\1\1\0\1", 5);
    add_number(&payload, type, 2);
    add(&payload, "\0", 1);
    add(&payload, rest, length);
    return packet_of(0, payload.bytes, payload.length);
}

#define ATTRIBUTE(type, literal) with_attribute(type, literal, sizeof(literal) - 1)

static void is_asked(words it, const char *text)
{
    talk *t = sign_in(w, MY_CLIENT | MY_CAN_QUERY_ATTRIBUTES, 0);
    char expected[64];

    snprintf(expected, sizeof expected, "0 %s\n", text);
    passes(t, HR_CLIENT, it);
    assert(noted(&t->asked, expected));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    talk_close(t);
}

static void is_rejected_unread(words it)
{
    talk *t = sign_in(w, MY_CLIENT | MY_CAN_QUERY_ATTRIBUTES, 0);

    say(t, HR_CLIENT, it);
    assert(heard(t, HR_CLIENT, error(1, 1835, "headgate: the query's attributes are malformed")));
    assert(sent_nothing(t, HR_SERVER) && t->closed && noted(&t->asked, ""));
    talk_close(t);
}

/* M1: what the gate is asked for must begin where the server begins to read. */
static void attributes_have_the_servers_own_lengths(void)
{
    static const uint16_t strings[] = {0,   7,   10,  11,  12,  15,  16,  245, 246,
                                       247, 248, 249, 250, 251, 252, 253, 254, 255};
    static const struct {
        uint16_t type;
        size_t width;
    } numbers[] = {{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {8, 8}};
    static const uint16_t unknown[] = {6, 9, 13, 14, 17, 18, 200, 243, 256, 0x0103, 0x01fd, 0x7fff};

    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        for (uint16_t no_sign = 0; no_sign < 2; no_sign++) {
            uint16_t type = (uint16_t) (strings[i] | no_sign << 15);

            is_asked(ATTRIBUTE(type, "\x0f"
                                     "aaa SELECT 1 --DELETE FROM t"),
                     "DELETE FROM t");
            is_asked(ATTRIBUTE(type, "\xfc\3\0abcSELECT 1"), "SELECT 1");
            is_asked(ATTRIBUTE(type, "\xfd\3\0\0abcSELECT 1"), "SELECT 1");
            is_asked(ATTRIBUTE(type, "\xfe\3\0\0\0\0\0\0\0abcSELECT 1"), "SELECT 1");
        }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (uint16_t no_sign = 0; no_sign < 2; no_sign++) {
            words value = {.length = 0};

            value.length += numbers[i].width;
            add(&value, "SELECT 1", 8);
            is_asked(with_attribute((uint16_t) (numbers[i].type | no_sign << 15), value.bytes,
                                    value.length),
                     "SELECT 1");
        }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        is_rejected_unread(ATTRIBUTE(unknown[i], "\x0f"
                                                 "aaa SELECT 1 --DELETE FROM t"));
    is_asked(P(0, "\x03\1\1\1\1\6\0\0SELECT 1"), "SELECT 1"); /* NULL, and said to be */
    is_rejected_unread(P(0, "\x03\0\2SELECT 1"));              /* more sets than one */
    is_rejected_unread(P(0, "\x03\1\1\0\0\xfd\0\0\1aSELECT 1")); /* without types */
    is_rejected_unread(ATTRIBUTE(253, "\x7f"
                                      "SELECT 1"));      /* longer than the command */
    is_rejected_unread(ATTRIBUTE(253, "\xfb"
                                      "SELECT 1"));
}

/* ── What is learnt on the way ────────────────────────────────────────────── */

static void databases_are_followed(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, P(0, "\x02other"));
    assert(strcmp(t->database, "shop") == 0);
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(strcmp(t->database, "other") == 0);
    passes(t, HR_CLIENT, query("use `third one`;"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(strcmp(t->database, "third one") == 0);
    passes(t, HR_CLIENT, query("USE nowhere"));
    passes(t, HR_SERVER, error(1, 1049, "Unknown database"));
    assert(strcmp(t->database, "third one") == 0);
    passes(t, HR_CLIENT, query("SELECT 1; USE a; SELECT ';USE z'; USE b"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(strcmp(t->database, "b") == 0);
    talk_close(t);

    t = sign_in(w, MY_CLIENT | MY_CAN_TRACK, 0);
    t->told.length = 0;
    passes(t, HR_CLIENT, query("CALL p()"));
    passes(t, HR_SERVER,
           P(1, "\0\0\0\x02\x40\0\0\0\x14\x01\x06\x05third\x00\x0a\x04name\x04"
                "abcd"));
    assert(strcmp(t->database, "third") == 0);
    assert(noted(&t->told, "variable name=abcd\n"));
    talk_close(t);
}

static void changed_users_are_learnt_when_they_are_let_in(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);
    words change = P(0, "\x11"
                        "bob\0\0"
                        "crm\0\x2d\0"
                        "caching_sha2_password\0\x10\x0cprogram_name\2ui");

    passes(t, HR_CLIENT, P(0, "\x16SELECT 1"));
    passes(t, HR_SERVER, P(1, "\0\x07\0\0\0\0\0\0\0\0\0\0"));
    t->told.length = 0;
    passes(t, HR_CLIENT, change);
    passes(t, HR_SERVER, error(1, 1045, "Access denied"));
    assert(strcmp(t->username, "alice") == 0 && noted(&t->told, "") && !t->closed
           && t->prepared_open == 1);
    passes(t, HR_CLIENT, change);
    passes(t, HR_SERVER,
           P(1, "\xfe"
                "caching_sha2_password\0abcdefgh\0"));
    say(t, HR_CLIENT, P(2, "secret"));
    assert(heard(t, HR_SERVER, P(2, "secret")));
    passes(t, HR_SERVER, both(P(3, "\x01\x03"), ok(4, MY_AUTOCOMMIT)));
    assert(strcmp(t->username, "bob") == 0 && strcmp(t->database, "crm") == 0);
    assert(strcmp(t->application, "ui") == 0 && t->prepared_open == 0);
    assert(noted(&t->told, "attribute =\nvariable =\nattribute program_name=ui\n"));
    passes(t, HR_CLIENT, P(0, "\x1f"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    assert(noted(&t->told, "variable =\n"));
    /* A statement behind it is not taken for a password. */
    say(t, HR_CLIENT, both(change, query("DROP TABLE t")));
    assert(heard(t, HR_SERVER, change) && noted(&t->asked, ""));
    talk_close(t);
}

static void kills_reach_those_who_wait(void)
{
    talk *victim = sign_in(w, MY_CLIENT, 0), *t = sign_in(w, MY_CLIENT, 0);

    hr_register(&victim->session);
    verdict = HR_WAIT;
    say(victim, HR_CLIENT, query("SELECT 1"));
    verdict = HR_GO;
    passes(t, HR_CLIENT, query("KILL QUERY 77"));
    passes(t, HR_SERVER, error(1, 1095, "You are not owner"));
    run_errands(w);
    assert(!victim->session.gate.cancelled);
    passes(t, HR_CLIENT, query("KILL /* now */ QUERY 77 ;"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    run_errands(w);
    assert(victim->session.gate.cancelled);
    talk_close(t);
    talk_close(victim);
}

/* ── Faults ───────────────────────────────────────────────────────────────── */

static void numbers_out_of_order_end_it(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    say(t, HR_CLIENT, P(1, "\x03SELECT 1"));
    assert(sent_has(t, HR_CLIENT, "out of order") && sent_nothing(t, HR_SERVER) && t->closed);
    talk_close(t);
    t = sign_in(w, MY_CLIENT, 0);
    passes(t, HR_CLIENT, query("LOAD DATA LOCAL INFILE 'f' INTO TABLE t"));
    passes(t, HR_SERVER, P(1, "\xfb/tmp/f"));
    say(t, HR_CLIENT,
        P(0, "\x03"
             "DROP TABLE t"));
    assert(sent_has(t, HR_CLIENT, "out of order") && sent_nothing(t, HR_SERVER) && t->closed);
    talk_close(t);
}

static void malformed_answers_end_it(void)
{
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {{"\0\0\0\1", 4},
               {"\2\0\0\1\0\0", 6},
               {"\2\0\0\1\xff\1", 6},
               {"\1\0\0\1\xfc", 5},
               {"\x0b\0\0\1\0\xfe\1\1\1\1\1\1\1\1\1", 15}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        talk *t = sign_in(w, MY_CLIENT, 0);

        passes(t, HR_CLIENT, query("SELECT 1"));
        feed_cut(t, HR_SERVER, bad[i].bytes, bad[i].length, cut);
        assert(sent_has(t, HR_CLIENT, "malformed") && t->closed);
        talk_close(t);
    }
}

static void the_client_is_told_why_it_ends(void)
{
    talk *t = talk_open(w);

    end_session(t, HR_LOST_CONNECT); /* before the greeting: numbered 0, and no SQLSTATE yet */
    assert(t->to[HR_CLIENT].bytes[3] == 0 && t->to[HR_CLIENT].bytes[7] == 'h');
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0);
    passes(t, HR_CLIENT, query("SELECT 1"));
    passes(t, HR_SERVER, columns(1, 1));
    end_session(t, HR_LOST_KILLED);
    assert(t->to[HR_CLIENT].bytes[3] == 3 && sent_has(t, HR_CLIENT, "headgate: "));
    assert(noted(&t->ended, "done 1 failed\n"));
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0); /* what waits here is ours to answer */
    verdict = HR_WAIT;
    say(t, HR_CLIENT, query("SELECT 1"));
    end_session(t, HR_LOST_SERVER);
    assert(t->to[HR_CLIENT].bytes[3] == 1 && sent_has(t, HR_CLIENT, "#08S01headgate: "));
    verdict = HR_GO;
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0); /* in the middle of a row there is no place for it */
    passes(t, HR_CLIENT, query("SELECT 1"));
    passes(t, HR_SERVER, both(columns(1, 1), eof(3, MY_AUTOCOMMIT)));
    feed_cut(t, HR_SERVER,
             "\x09\0\0\4\x08"
             "abc",
             8, cut);
    t->to[HR_CLIENT].length = 0;
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

/* P2: pools know a connection that is closed, and not an error in the place of an answer. */
static void an_idle_session_ends_without_a_word(void)
{
    for (int why = 0; why <= HR_LOST_KILLED; why++)
        for (int inside = 0; inside < 2; inside++) {
            talk *t = sign_in(w, MY_CLIENT, 0);

            if (inside) {
                passes(t, HR_CLIENT, query("BEGIN"));
                passes(t, HR_SERVER, ok(1, MY_IN_TRANSACTION));
            }
            end_session(t, (hr_lost) why);
            assert(sent_nothing(t, HR_CLIENT));
            talk_close(t);
        }
}

/* P2: whether it has taken effect nobody knows, and that is what a lost connection says. */
static void a_server_that_dies_is_a_lost_connection(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_CLIENT, query("SELECT 1"));
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT) && noted(&t->ended, "done 1 failed\n"));
    talk_close(t);
}

static void servers_may_speak_unasked(void)
{
    talk *t = sign_in(w, MY_CLIENT, 0);

    passes(t, HR_SERVER, error(0, 1927, "Connection was killed")); /* and goes */
    assert(t->closed);
    talk_close(t);

    t = sign_in(w, MY_CLIENT, 0); /* between the commands of a transaction, too */
    passes(t, HR_CLIENT, query("BEGIN"));
    passes(t, HR_SERVER, ok(1, MY_IN_TRANSACTION));
    passes(t, HR_SERVER, error(0, 4031, "The client was disconnected because of inactivity"));
    assert(t->closed);
    talk_close(t);
}

/* M2: were an answer that nobody asked for passed on, each that follows would be taken for another's. */
static void answers_that_nobody_asked_for_end_it(void)
{
    static const words nothing;
    words kinds[] = {ok(1, MY_AUTOCOMMIT), eof(1, MY_AUTOCOMMIT),
                     columns(1, 1),        P(1, ""),
                     P(1, "\xff\1"),       nothing};

    for (size_t i = 0; kinds[i].length > 0; i++) {
        talk *t = sign_in(w, MY_CLIENT, 0);

        passes(t, HR_CLIENT, query("SELECT 1"));
        say(t, HR_SERVER, both(ok(1, MY_AUTOCOMMIT), kinds[i]));
        assert(heard(t, HR_CLIENT,
                     both(ok(1, MY_AUTOCOMMIT),
                          error(1, 1835,
                                "headgate: the server sent an answer without a request; the "
                                "session is closed"))));
        assert(t->closed);
        talk_close(t);
    }
}

int main(void)
{
    static const size_t cuts[] = {0, 1, 2, 3, 5, 7, 11};
    static void (*const tests[])(void) = {
        greeting_is_masked,
        plain_sign_in_learns_who,
        a_client_that_would_compress_is_told,
        tls_on_one_side_shifts_the_numbers,
        caching_sha2_fast_and_full,
        a_password_in_clear_stays_where_it_is_encrypted,
        a_crowded_user_is_told_when_it_is_let_in,
        rejected_sign_in_ends,
        tls_that_is_missing_is_said,
        tls_that_fails_with_the_server_is_said_in_sequence,
        malformed_sign_in_is_said,
        result_sets_end_where_they_end,
        several_results_are_one_command,
        a_file_goes_up_to_an_empty_packet,
        mariadb_leaves_definitions_out_and_reports_progress,
        other_commands_have_answers_of_their_own,
        a_dump_is_no_way_around,
        prepared_statements_are_decided_when_executed,
        blocked_execution_takes_its_long_data_back,
        pipelined_prepare_and_execute,
        blocks_leave_the_session_as_it_was,
        held_statements_go_or_are_cancelled,
        warnings_are_counted_and_shown,
        the_first_statement_of_a_transaction_decides,
        attributes_of_a_query_are_stepped_over,
        attributes_have_the_servers_own_lengths,
        databases_are_followed,
        changed_users_are_learnt_when_they_are_let_in,
        kills_reach_those_who_wait,
        numbers_out_of_order_end_it,
        malformed_answers_end_it,
        the_client_is_told_why_it_ends,
        an_idle_session_ends_without_a_word,
        a_server_that_dies_is_a_lost_connection,
        servers_may_speak_unasked,
        answers_that_nobody_asked_for_end_it,
        malformed_commands_end_it,
        a_report_waits_until_the_log_has_come,
        commands_that_nobody_knows_are_decided,
    };

    harness_says = says;
    w = world_open(HR_PROTOCOL_MYSQL);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        cut = cuts[i];
        for (size_t j = 0; j < sizeof tests / sizeof *tests; j++)
            tests[j]();
    }
    cut = 0;
    packets_of_16_mb_are_continued();
    many_statements_are_found_again();
    a_hundred_blocks_in_one_read();
    world_close(w);
    printf("test_my: %zu conversations, %zu cuts\n", sizeof tests / sizeof *tests,
           sizeof cuts / sizeof *cuts);
    return 0;
}
