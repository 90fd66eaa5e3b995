/* How a Postgres session begins: TLS, start-up, signing in, cancel requests, names. */
#define HARNESS_FAKE_GATE
#include "pg_messages.h"

#define SSL "\0\0\0\x08\x04\xd2\x16\x2f"
#define GSS "\0\0\0\x08\x04\xd2\x16\x30"

static world *w;

static void sign_in(talk *t)
{
    put_signed_in(&m);
    passes(t, HR_SERVER);
    assert(t->session.established);
}

static void start_plain(talk *t)
{
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    passes(t, HR_CLIENT);
}

static bool has_fatal(talk *t, const char *code)
{
    bool found = sent_has(t, HR_CLIENT, "SFATAL") && sent_has(t, HR_CLIENT, code);

    t->to[HR_CLIENT].length = 0;
    return found && t->closed;
}

static void plain_session_is_named_and_opened(void)
{
    talk *t = talk_open(w);

    start_plain(t);
    assert(strcmp(t->username, "ann") == 0 && strcmp(t->database, "shop") == 0);
    assert(strcmp(t->application, "web") == 0);
    assert(memmem(t->told.bytes, t->told.length, "attribute user=ann\n", 19) != NULL);
    sign_in(t);
    assert(t->session.server_process == 0x1234 && t->session.cancel_key_length == 4);
    assert(memcmp(t->session.cancel_key, "\1\2\3\4", 4) == 0);
    assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
}

static void every_cut_of_a_start_is_the_same(void)
{
    some_bytes start = {0}, signed_in = {0};

    put_startup(&start, 0x30000, plain_parameters, sizeof plain_parameters);
    put_signed_in(&signed_in);
    for (size_t cut = 1; cut < 20; cut++) {
        talk *t = talk_open(w);

        feed_cut(t, HR_CLIENT, GSS, 8, cut);
        feed_cut(t, HR_CLIENT, SSL, 8, cut);
        assert(sent_is(t, HR_CLIENT, "NN", 2));
        feed_cut(t, HR_CLIENT, start.bytes, start.length, cut);
        assert(sent_is(t, HR_SERVER, start.bytes, start.length));
        feed_cut(t, HR_SERVER, signed_in.bytes, signed_in.length, cut);
        assert(sent_is(t, HR_CLIENT, signed_in.bytes, signed_in.length));
        assert(t->session.established);
        talk_close(t);
    }
    free(start.bytes);
    free(signed_in.bytes);
}

/* M7: whose session it is, the server says; until then nobody is counted. */
static void a_crowded_user_is_told_when_it_is_let_in(void)
{
    some_bytes start = {0}, signed_in = {0};

    put_startup(&start, 0x30000, plain_parameters, sizeof plain_parameters);
    put_signed_in(&signed_in);
    for (size_t cut = 0; cut < 20; cut++) {
        talk *t = talk_open(w);

        t->crowded = true;
        feed_cut(t, HR_CLIENT, start.bytes, start.length, cut);
        assert(
            sent_is(t, HR_SERVER, start.bytes, start.length)); /* the server checks the password */
        feed_cut(t, HR_SERVER, "R\0\0\0\x08\0\0\0\3", 9, cut);
        assert(sent_is(t, HR_CLIENT, "R\0\0\0\x08\0\0\0\3", 9) && !t->closed);
        feed_cut(t, HR_SERVER, signed_in.bytes, signed_in.length, cut);
        assert(t->to[HR_CLIENT].bytes[0] == 'E' && has_fatal(t, "C53300")
               && !t->session.established);
        talk_close(t);
    }
    free(start.bytes);
    free(signed_in.bytes);
}

/* L7: a client that sees TLS may send what it would not send without. */
static void a_password_in_clear_stays_where_it_is_encrypted(void)
{
    static const char asks[] = "R\0\0\0\x08\0\0\0\3";

    for (int i = 0; i < 8; i++) {
        bool client = i & 1, server = i & 2, near = i & 4, bared = client && !server && !near;
        talk *t = talk_open(w);

        t->session.client_tls_mode = client;
        t->session.server_tls_mode = server ? 2 : 0;
        t->session.server_near = near;
        if (client)
            feed(t, HR_CLIENT, SSL, 8);
        put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
        say(t, HR_CLIENT);
        if (server)
            feed(t, HR_SERVER, "S", 1);
        forget_sent(t);
        feed(t, HR_SERVER, asks, 9);
        if (bared)
            assert(t->to[HR_CLIENT].bytes[0] == 'E' && has_fatal(t, "C28000"));
        else
            assert(sent_is(t, HR_CLIENT, asks, 9) && !t->closed);
        talk_close(t);
    }
}

static void tls_is_answered_by_the_listeners_mode(void)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = 1;
    feed(t, HR_CLIENT, GSS, 8);
    feed(t, HR_CLIENT, SSL, 8);
    assert(sent_is(t, HR_CLIENT, "NS", 2));
    assert(t->session.side[HR_CLIENT].tls != NULL);
    start_plain(t);
    sign_in(t);
    talk_close(t);
}

static void tls_twice_is_rejected(void)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = 1;
    feed(t, HR_CLIENT, SSL, 8);
    t->to[HR_CLIENT].length = 0;
    feed(t, HR_CLIENT, SSL, 8);
    assert(has_fatal(t, "C08P01"));
    talk_close(t);
}

/* CVE-2021-23222 and its like. */
static void bytes_injected_behind_a_request_for_tls_are_rejected(void)
{
    for (int tls = 0; tls < 2; tls++) {
        talk *t = talk_open(w);

        t->session.client_tls_mode = (uint8_t) tls;
        append(&m, SSL, 8);
        put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
        say(t, HR_CLIENT);
        assert(!t->connected && has_fatal(t, "C08P01"));
        talk_close(t);
    }
}

static void direct_tls_begins_by_itself(void)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = 2;
    feed(t, HR_CLIENT, "\x16\3\1", 3);
    assert(t->tls_direct && sent_nothing(t, HR_CLIENT));
    start_plain(t);
    sign_in(t);
    talk_close(t);
    t = talk_open(w);
    feed(t, HR_CLIENT, "\x16\3\1", 3); /* where there is no TLS */
    assert(t->closed && sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

static void plain_client_where_tls_is_required_is_told_so(void)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = 2;
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    say(t, HR_CLIENT);
    assert(sent_has(t, HR_CLIENT, "sslmode=require"));
    assert(has_fatal(t, "C28000") && !t->connected);
    talk_close(t);
}

static void absurd_start_packets_are_rejected(void)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *code;
    } bad[] = {
        {"\0\0\0\7xxxxxxxx", 12, "C08P01"},
        {"\0\0\x27\x11\0\3\0\0", 8, "C08P01"}, /* 10,001 bytes */
        {"\x7f\xff\xff\xff\0\3\0\0", 8, "C08P01"},
        {"GET / HTTP/1.1\r\n\r\n", 18, "C08P01"},
        {"\0\0\0\x08\0\2\0\0", 8, "C0A000"}, /* protocol 2 */
        {"\0\0\0\x09\0\3\0\0\0", 9, "C28000"}, /* no user */
        {"\0\0\0\x0d\0\3\0\0user\0", 13, "C08P01"}, /* without a value and an end */
        {"\0\0\0\x0f\0\3\0\0user\0a\0", 15, "C08P01"}, /* without an end */
        {"\0\0\0\x11\0\3\0\0user\0a\0\0x", 17, "C08P01"}, /* something behind its end */
        {"\0\0\0\x09\x04\xd2\x16\x2f\0", 9, "C08P01"}, /* SSLRequest of 9 bytes */
        {"\0\0\0\x0c\x04\xd2\x16\x2e\0\0\0\1", 12, "C08P01"}, /* cancel without a key */
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        talk *t = talk_open(w);

        feed_cut(t, HR_CLIENT, bad[i].bytes, bad[i].length, i % 3);
        if (!has_fatal(t, bad[i].code)) {
            fprintf(stderr, "packet %zu\n", i);
            abort();
        }
        assert(!t->connected);
        talk_close(t);
    }
}

static void server_tls_is_asked_for(void)
{
    talk *t = talk_open(w);

    t->session.server_tls_mode = 4;
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    say(t, HR_CLIENT);
    assert(sent_is(t, HR_SERVER, SSL, 8));
    feed(t, HR_SERVER, "S", 1);
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    assert(went(t, HR_SERVER) && t->session.side[HR_SERVER].tls != NULL);
    sign_in(t);
    talk_close(t);
}

static void server_without_tls(uint8_t mode, const char *answer, size_t length, bool goes_on)
{
    talk *t = talk_open(w);

    t->session.server_tls_mode = mode;
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    say(t, HR_CLIENT);
    assert(sent_is(t, HR_SERVER, SSL, 8));
    feed(t, HR_SERVER, answer, length);
    if (goes_on) {
        put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
        assert(went(t, HR_SERVER));
        sign_in(t);
    } else {
        assert(sent_nothing(t, HR_SERVER) && has_fatal(t, "C08"));
    }
    talk_close(t);
}

/* What is written before TLS could be anybody's: the client does not get it, nor signs in with it. */
static void nothing_is_taken_from_a_server_before_its_tls(void)
{
    server_without_tls(1, "N", 1, true);
    server_without_tls(2, "N", 1, false);
    server_without_tls(1, "E\0\0\0\5\0R\0\0\0\x8\0\0\0\3", 15, false);
    server_without_tls(2, "SR\0\0\0\x8\0\0\0\3", 10, false);
    server_without_tls(1, "NR\0\0\0\x8\0\0\0\3", 10, false);
    server_without_tls(2, "?", 1, false);
}

static void signing_in_is_opaque(void)
{
    talk *t = talk_open(w);

    start_plain(t);
    put_message(&m, 'R', "\0\0\0\x0aSCRAM-SHA-256\0", 19);
    passes(t, HR_SERVER);
    put_message(&m, 'p', "SCRAM-SHA-256\0\0\0\0\5n,,n=", 23);
    passes(t, HR_CLIENT);
    put_message(&m, 'R',
                "\0\0\0\x0b"
                "r=x",
                7);
    passes(t, HR_SERVER);
    put_message(&m, 'p', "c=biws", 6);
    put_query(&m, "SELECT 1"); /* too early: it waits until it has signed in */
    say(t, HR_CLIENT);
    put_message(&m, 'p', "c=biws", 6);
    assert(went(t, HR_SERVER) && t->next == HR_LATER);
    put_signed_in(&m);
    say(t, HR_SERVER);
    put_query(&m, "SELECT 1");
    assert(went(t, HR_SERVER));
    talk_close(t);
}

/* An application beside its proxy, and the server far away behind TLS. */
static void binding_to_a_channel_that_is_not_the_clients_is_not_offered(void)
{
    static const char both[] = "\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0";

    for (int tls = 0; tls < 2; tls++) {
        talk *t = talk_open(w);

        start_plain(t);
        t->session.side[HR_SERVER].tls = tls ? (hr_tls_end *) t : NULL;
        put_message(&m, 'R', both, sizeof both);
        say(t, HR_SERVER);
        if (tls)
            put_message(&m, 'R', "\0\0\0\x0aSCRAM-SHA-256\0", 19);
        else
            put_message(&m, 'R', both, sizeof both);
        assert(went(t, HR_CLIENT));
        put_message(&m, 'R',
                    "\0\0\0\x0b"
                    "r=x",
                    7);
        passes(t, HR_SERVER);
        t->session.side[HR_SERVER].tls = NULL;
        talk_close(t);
    }
}

static void server_that_rejects_a_sign_in_has_the_last_word(void)
{
    talk *t = talk_open(w);

    start_plain(t);
    put_error(&m, "FATAL", "28P01", "password authentication failed");
    passes(t, HR_SERVER);
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

static void newer_protocol_and_long_cancel_key_pass(void)
{
    talk *t = talk_open(w);
    uint8_t key[36] = "\0\0\0\7";

    memset(key + 4, 0xab, 32);
    put_startup(&m, 0x30002, plain_parameters, sizeof plain_parameters);
    passes(t, HR_CLIENT);
    put_message(&m, 'v', "\0\3\0\2\0\0\0\0", 8);
    put_message(&m, 'R', "\0\0\0\0", 4);
    put_message(&m, 'K', key, sizeof key);
    put_ready(&m, 'I');
    passes(t, HR_SERVER);
    assert(t->session.server_process == 7 && t->session.cancel_key_length == 32);
    assert(t->session.established);
    talk_close(t);
}

static void replication_is_not_looked_at(void)
{
    static const char parameters[] = "user\0rep\0replication\0database\0";
    talk *t = talk_open(w);

    put_startup(&m, 0x30000, parameters, sizeof parameters);
    passes(t, HR_CLIENT);
    sign_in(t);
    put_query(&m, "START_REPLICATION SLOT s LOGICAL 0/0");
    passes(t, HR_CLIENT);
    put_message(&m, 'W', "\0\0\0", 3);
    append(&m, "anything\xff\xff", 10);
    passes(t, HR_SERVER);
    assert(noted(&t->asked, "") && !t->session.machine->at_rest(&t->session));
    end_session(t, HR_LOST_DRAIN);
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

static void replication_false_is_decided(void)
{
    static const char parameters[] = "user\0rep\0replication\0false\0";
    talk *t = talk_open(w);

    put_startup(&m, 0x30000, parameters, sizeof parameters);
    passes(t, HR_CLIENT);
    sign_in(t);
    put_query(&m, "SELECT 1");
    passes(t, HR_CLIENT);
    assert(noted(&t->asked, "0 SELECT 1\n"));
    talk_close(t);
}

static void options_are_told_to_the_gate(void)
{
    static const char parameters[]
        = "user\0ann\0options\0-c headgate.client=etl\\ night -cx=1 --work-mem=4\0"
          "headgate.job\0dump\0";
    talk *t = talk_open(w);

    put_startup(&m, 0x30000, parameters, sizeof parameters);
    passes(t, HR_CLIENT);
    assert(memmem(t->told.bytes, t->told.length, "variable headgate.client=etl night\n", 35)
           != NULL);
    assert(memmem(t->told.bytes, t->told.length, "variable x=1\n", 13) != NULL);
    assert(memmem(t->told.bytes, t->told.length, "variable work_mem=4\n", 20) != NULL);
    assert(memmem(t->told.bytes, t->told.length, "variable headgate.job=dump\n", 27) != NULL);
    assert(strcmp(t->database, "ann") == 0 && strcmp(t->application, "") == 0);
    talk_close(t);
}

/* ── Cancel requests ──────────────────────────────────────────────────────── */

#define CANCEL "\0\0\0\x10\x04\xd2\x16\x2e\0\0\x12\x34\1\2\3\4"

static void cancel_of_a_stranger_is_forwarded_and_nothing_else(void)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = 2; /* libpq before 17 sends it in clear in any case */
    feed_cut(t, HR_CLIENT, CANCEL, 16, 3);
    assert(sent_is(t, HR_SERVER, CANCEL, 16) && t->session.target_id == 0);
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

static void cancel_goes_to_the_sessions_own_target(void)
{
    talk *t = open_talk(w), *cancel = talk_open(w);

    t->session.target = 3;
    t->session.target_id = 77;
    hr_register(&t->session);
    feed(cancel, HR_CLIENT, CANCEL, 16);
    assert(cancel->session.target_id == 77 && sent_is(cancel, HR_SERVER, CANCEL, 16));
    talk_close(cancel);
    talk_close(t);
}

static void cancel_of_what_is_held_is_answered_here(void)
{
    talk *t = open_talk(w), *cancel = talk_open(w);

    t->session.held = true;
    hr_register(&t->session);
    feed(cancel, HR_CLIENT, CANCEL, 16);
    assert(cancel->closed && !cancel->connected);
    run_errands(w);
    t->session.held = false;
    put_query(&m, "SELECT pg_sleep(9)");
    say(t, HR_CLIENT);
    assert(hears(t, "E57014 ZI") && sent_nothing(t, HR_SERVER));
    talk_close(cancel);
    talk_close(t);
}

static void cancel_over_tls_to_the_server(void)
{
    talk *t = talk_open(w);

    t->session.server_tls_mode = 2;
    feed(t, HR_CLIENT, CANCEL, 16);
    assert(sent_is(t, HR_SERVER, SSL, 8));
    feed(t, HR_SERVER, "S", 1);
    assert(sent_is(t, HR_SERVER, CANCEL, 16));
    talk_close(t);
}

/* ── Losses ───────────────────────────────────────────────────────────────── */

static void losses_are_told_where_they_can_be(void)
{
    talk *t = talk_open(w);

    end_session(t, HR_LOST_STARTUP); /* it has said nothing: nothing is said */
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
    t = talk_open(w);
    t->stays_unconnected = true;
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    say(t, HR_CLIENT);
    t->session.fault = "connection refused";
    end_session(t, HR_LOST_CONNECT);
    assert(sent_has(t, HR_CLIENT, "connection refused") && has_fatal(t, "C08006"));
    talk_close(t);
    t = open_talk(w);
    end_session(t, HR_LOST_DRAIN);
    assert(hears(t, "E57P01"));
    talk_close(t);
}

static void loss_in_the_middle_of_a_row_is_not_told(void)
{
    talk *t = open_talk(w);

    put_query(&m, "SELECT 1");
    passes(t, HR_CLIENT);
    put_row(&m, "0123456789");
    m.length -= 3;
    passes(t, HR_SERVER);
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT) && noted(&t->ended, "done 1 failed\n"));
    talk_close(t);
}

static void server_that_shuts_down_has_the_last_word(void)
{
    talk *t = open_talk(w);

    put_error(&m, "FATAL", "57P01", "terminating connection due to administrator command");
    passes(t, HR_SERVER);
    end_session(t, HR_LOST_SERVER);
    assert(sent_nothing(t, HR_CLIENT));
    talk_close(t);
}

int main(void)
{
    w = world_open(HR_PROTOCOL_POSTGRES);
    plain_session_is_named_and_opened();
    every_cut_of_a_start_is_the_same();
    a_crowded_user_is_told_when_it_is_let_in();
    a_password_in_clear_stays_where_it_is_encrypted();
    tls_is_answered_by_the_listeners_mode();
    tls_twice_is_rejected();
    bytes_injected_behind_a_request_for_tls_are_rejected();
    direct_tls_begins_by_itself();
    plain_client_where_tls_is_required_is_told_so();
    absurd_start_packets_are_rejected();
    server_tls_is_asked_for();
    nothing_is_taken_from_a_server_before_its_tls();
    signing_in_is_opaque();
    binding_to_a_channel_that_is_not_the_clients_is_not_offered();
    server_that_rejects_a_sign_in_has_the_last_word();
    newer_protocol_and_long_cancel_key_pass();
    replication_is_not_looked_at();
    replication_false_is_decided();
    options_are_told_to_the_gate();
    cancel_of_a_stranger_is_forwarded_and_nothing_else();
    cancel_goes_to_the_sessions_own_target();
    cancel_of_what_is_held_is_answered_here();
    cancel_over_tls_to_the_server();
    losses_are_told_where_they_can_be();
    loss_in_the_middle_of_a_row_is_not_told();
    server_that_shuts_down_has_the_last_word();
    world_close(w);
    free(m.bytes);
    return 0;
}
