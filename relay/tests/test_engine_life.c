/* test_engine_life.c: limits, deadlines, targets that move, drains: how sessions are made to go. */
#include "engine_world.h"

#include <sys/resource.h>
#include <sys/wait.h>

/* ── Connecting ───────────────────────────────────────────────────────────── */

static void test_a_server_that_rejects_is_named_with_the_reason(void)
{
    world *w = world_open(usual_settings());
    int client;

    close(w->listener[0]);
    w->listener[0] = -1;
    client = dial(w->port);
    say(client, "hello\n");
    expect(client, "lost 2 db-1: Connection refused\n");
    expect_end(client);
    close(client);
    assert(COUNT(w, failed_connects) == 1 && COUNT(w, failed_startups) == 1);
    world_close(w);
}

/* A listener whose backlog is full leaves new clients without an answer. */
static void test_a_server_that_does_not_answer_is_given_up_in_time(void)
{
    hr_settings settings = usual_settings();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint16_t port;
    int deaf = listen_on(&port, 0), filler[8], client, i;
    uint64_t began_ms = now_ms();
    world *w;

    address.sin_port = htons(port);
    for (i = 0; i < 8; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void) !connect(filler[i], (struct sockaddr *) &address, sizeof address);
    }
    settings.connect_timeout_ms = 200;
    w = world_begin(settings);
    w->targets.count = 0;
    add_target(w, 7, HR_TARGET_PRIMARY, port);
    put_targets(w, 0);
    start(w);
    client = dial(w->port);
    say(client, "hello\n");
    expect(client, "lost 2 db-7: no answer in 0.2 s\n");
    assert(now_ms() - began_ms >= 190);
    close(client);
    for (i = 0; i < 8; i++)
        close(filler[i]);
    close(deaf);
    world_close(w);
}

static void test_a_route_without_a_server_says_so(void)
{
    world *w = world_open(usual_settings());
    int client = dial(w->replica_port);

    say(client, "hello\n");
    expect_begin(client, "lost 10");
    close(client);
    world_close(w);
}

static void replica_hello(world *w, int *client, int *server)
{
    struct pollfd ready[2] = {{.fd = w->listener[1], .events = POLLIN},
                              {.fd = w->listener[2], .events = POLLIN}};

    *client = dial(w->replica_port);
    say(*client, "hello\n");
    assert(poll(ready, 2, (int) PATIENCE_MS) == 1);
    *server = server_of(w, ready[0].revents ? 1 : 2);
    expect(*server, "hello\n");
    say(*server, ready[0].revents ? "one\n" : "two\n");
}

static void test_replicas_share_sessions_by_weight_and_one_that_is_down_is_passed_over(void)
{
    world *w = world_begin(usual_settings());
    int client[9], server[9], ones = 0, i;

    add_target(w, 2, HR_TARGET_REPLICA, w->server_port[1]);
    add_target(w, 3, HR_TARGET_REPLICA, w->server_port[2]);
    add_target(w, 4, HR_TARGET_REPLICA, w->server_port[3]);
    w->targets.target[1].weight = 2;
    close(w->listener[3]);
    w->listener[3] = -1;
    put_targets(w, 0);
    start(w);
    for (i = 0; i < 9; i++) {
        replica_hello(w, &client[i], &server[i]);
        ones += strcmp(hear(client[i]), "one\n") == 0;
    }
    assert(ones == 6);
    for (i = 0; i < 9; i++) {
        close(client[i]);
        close(server[i]);
    }
    world_close(w);
}

/* ── Limits and deadlines ─────────────────────────────────────────────────── */

static void test_sessions_beyond_the_limit_are_told_so_and_others_unharmed(void)
{
    hr_settings settings = usual_settings();
    int client[3], server[2];
    world *w;

    settings.max_sessions = 2;
    w = world_open(settings);
    couple(w, &client[0], &server[0]);
    couple(w, &client[1], &server[1]);
    client[2] = dial(w->port);
    say(client[2], "hello\n");
    expect(client[2], "lost 8 there are 2, as many as max_sessions allows\n");
    close(client[2]);
    say(client[0], "still here\n");
    expect(server[0], "still here\n");
    close(client[0]);
    close(server[0]);
    EVENTUALLY(COUNT(w, sessions) == 1);
    couple(w, &client[0], &server[0]);
    assert(COUNT(w, rejected_sessions) == 1);
    close(client[0]);
    close(client[1]);
    close(server[0]);
    close(server[1]);
    world_close(w);
}

static void test_a_user_beyond_its_limit_is_told_so_once_it_is_let_in(void)
{
    hr_settings settings = usual_settings();
    int client[2], server;
    world *w;

    settings.max_sessions_per_user = 1;
    w = world_open(settings);
    client[0] = dial(w->port);
    say(client[0], "user etl\nlet in\nhello\n");
    server = server_of(w, 0);
    expect(server, "hello\n");
    client[1] = dial(w->port);
    say(client[1], "user etl\nlet in\nhello\n");
    expect(client[1], "lost 8 user etl has 1, as many as max_sessions_per_user allows\n");
    close(client[1]);
    client[1] = dial(w->port);
    say(client[1], "user web\nlet in\ntell ok\n");
    expect(client[1], "ok\n");
    say(client[1], "user etl\ntell changed\n"); /* as which it counts from now on */
    expect(client[1], "lost 8 user etl has 1, as many as max_sessions_per_user allows\n");
    close(client[1]);
    client[1] = dial(w->port);
    say(client[1], "user web\nlet in\ntell ok\n");
    expect(client[1], "ok\n");
    close(client[0]);
    close(server);
    EVENTUALLY(COUNT(w, sessions) == 1);
    say(client[1], "user etl\ntell changed\n");
    expect(client[1], "changed\n");
    close(client[1]);
    world_close(w);
}

/* M7: anybody may say a name. */
static void test_who_only_says_a_name_takes_none_of_its_sessions(void)
{
    hr_settings settings = usual_settings();
    int client[4];
    world *w;

    settings.max_sessions_per_user = 1;
    w = world_open(settings);
    for (int i = 0; i < 3; i++) {
        client[i] = dial(w->port);
        say(client[i], "user etl\ntell ok\n");
        expect(client[i], "ok\n");
    }
    client[3] = dial(w->port);
    say(client[3], "user etl\nlet in\ntell ok\n");
    expect(client[3], "ok\n");
    say(client[0], "let in\n"); /* now it is one too many */
    expect(client[0], "lost 8 user etl has 1, as many as max_sessions_per_user allows\n");
    for (int i = 0; i < 4; i++)
        close(client[i]);
    world_close(w);
}

/* M7: they have a bound of their own, which those that were let in are not under. */
static void test_logins_from_one_address_are_bounded(void)
{
    hr_settings settings = usual_settings();
    int client[4], server;
    world *w;

    settings.max_logins_per_address = 2;
    w = world_open(settings);
    for (int i = 0; i < 2; i++) {
        client[i] = dial(w->port);
        say(client[i], "tell ok\n");
        expect(client[i], "ok\n");
    }
    client[2] = dial(w->port);
    say(client[2], "hello\n");
    expect(client[2],
           "lost 8 2 are logging in from this address, as many as max_logins_per_address allows\n");
    close(client[2]);
    say(client[0], "user etl\nlet in\ntell let in\n");
    expect(client[0], "let in\n");
    client[2] = dial(w->port);
    say(client[2], "hello\n");
    server = server_of(w, 0);
    expect(server, "hello\n");
    close(client[1]); /* one that gives up makes room as well */
    EVENTUALLY(COUNT(w, sessions) == 2);
    for (int i = 1; i < 4; i += 2) {
        client[i] = dial(w->port);
        say(client[i], "tell ok\n");
        expect(client[i], "ok\n");
    }
    for (int i = 0; i < 4; i++)
        close(client[i]);
    close(server);
    world_close(w);
}

/* By default one address leaves a 64th to others. */
static void test_one_address_never_takes_all_places_by_logging_in(void)
{
    hr_settings settings = usual_settings();
    int client[64];
    world *w;

    settings.max_sessions = 64;
    w = world_open(settings);
    for (int i = 0; i < 63; i++) {
        client[i] = dial(w->port);
        say(client[i], "tell ok\n");
        expect(client[i], "ok\n");
    }
    client[63] = dial(w->port);
    say(client[63], "hello\n");
    expect(
        client[63],
        "lost 8 63 are logging in from this address, as many as max_logins_per_address allows\n");
    for (int i = 0; i < 64; i++)
        close(client[i]);
    world_close(w);
}

static void test_an_endless_start_up_ends(void)
{
    hr_settings settings = usual_settings();
    int client;
    world *w;

    settings.startup_timeout_ms = 100;
    w = world_open(settings);
    client = dial(w->port);
    say(client, "hel");
    expect_begin(client, "lost 3");
    close(client);
    assert(COUNT(w, failed_startups) == 1);
    world_close(w);
}

static void test_an_idle_session_ends_but_not_one_in_a_transaction(void)
{
    hr_settings settings = usual_settings();
    int client[2], server[2];
    world *w;

    settings.idle_timeout_ms = 150;
    w = world_open(settings);
    couple(w, &client[0], &server[0]);
    client[1] = dial(w->port);
    say(client[1], "hello\nbegin\n"); /* at once: it is at no time idle without a transaction */
    server[1] = server_of(w, 0);
    expect(server[1], "hello\n");
    expect(server[1], "begin\n");
    say(server[1], "welcome\nbegun\n");
    expect_begin(client[0], "lost 6");
    expect_end(server[0]);
    expect(client[1], "welcome\n");
    expect(client[1], "begun\n");
    assert(is_silent(client[1], 250));
    close(client[0]);
    close(client[1]);
    close(server[0]);
    close(server[1]);
    world_close(w);
}

static void test_sessions_that_need_more_than_all_buffers_end_and_others_go_on(void)
{
    hr_settings settings = usual_settings();
    static char half[60000];
    struct pollfd answers[8];
    int victim = -1, i, good, server;
    world *w;

    settings.max_buffer_bytes = 4u * HR_BUFFER_BYTES;
    w = world_open(settings);
    couple(w, &good, &server);
    memset(half, 'x', sizeof half - 1);
    for (i = 0; i < 8; i++) {
        answers[i] = (struct pollfd){.fd = dial(w->port), .events = POLLIN | POLLRDHUP};
        say(answers[i].fd, half);
        EVENTUALLY(COUNT(w, client_bytes) >= 6u + (uint64_t) (i + 1) * (sizeof half - 1));
    }
    EVENTUALLY(poll(answers, 8, 0) >= 3 && COUNT(w, out_of_buffers) >= 3);
    for (i = 0; i < 8; i++)
        if (answers[i].revents != 0)
            victim = answers[i].fd;
    expect_begin(victim, "lost 7");
    say(good, "x\n");
    expect(server, "x\n");
    for (i = 0; i < 8; i++)
        close(answers[i].fd);
    EVENTUALLY(COUNT(w, buffers_used_bytes) == 0);
    close(good);
    close(server);
    world_close(w);
}

#define STUCK 16
#define READERS 4

static size_t push(int fd, size_t most)
{
    static char bytes[65536]; /* no line ends in them */
    ssize_t sent = send(fd, bytes, most < sizeof bytes ? most : sizeof bytes,
                        MSG_NOSIGNAL | MSG_DONTWAIT);

    assert(sent >= 0 || errno == EAGAIN);
    return sent < 0 ? 0 : (size_t) sent;
}

/* Servers that send to clients that do not read, until nothing is taken any more and the relay keeps
 * more than `bytes` of it. */
static void fill(const world *w, const int *server, int count, uint64_t bytes)
{
    uint64_t until_ms = now_ms() + PATIENCE_MS;
    int quiet = 0, i;

    while (quiet < 10 || COUNT(w, buffers_used_bytes) <= bytes) {
        bool some = false;

        assert(now_ms() < until_ms);

        for (i = 0; i < count; i++)
            some |= push(server[i], 65536) > 0;
        quiet = some ? 0 : quiet + 1;
        if (!some)
            poll(NULL, 0, 20);
    }
}

/* So many bytes from each to each, all at a time. */
static void carry(const int *from, const int *to, int count, size_t bytes)
{
    static char room[65536];
    size_t sent[READERS] = {0}, came[READERS] = {0}, all = 0;
    uint64_t until_ms = now_ms() + PATIENCE_MS;
    int i;

    while (all < bytes * (size_t) count) {
        size_t before = all;

        assert(now_ms() < until_ms);
        for (i = 0; i < count; i++) {
            ssize_t got;

            sent[i] += push(from[i], bytes - sent[i]);
            got = recv(to[i], room, sizeof room, MSG_DONTWAIT);
            assert(got != 0 && (got > 0 || errno == EAGAIN));
            came[i] += got > 0 ? (size_t) got : 0;
            all += got > 0 ? (size_t) got : 0;
        }
        if (all == before)
            poll(NULL, 0, 1);
    }
    for (i = 0; i < count; i++)
        assert(came[i] == bytes);
}

static void test_clients_that_do_not_read_leave_buffers_for_those_that_do(void)
{
    hr_settings settings = usual_settings();
    int stuck[STUCK], stuck_server[STUCK], client[READERS], server[READERS], i, small = 4096;
    world *w;

    settings.max_buffer_bytes = 2u << 20;
    w = world_open(settings);
    for (i = 0; i < STUCK; i++) {
        couple(w, &stuck[i], &stuck_server[i]);
        setsockopt(stuck[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    for (i = 0; i < READERS; i++)
        couple(w, &client[i], &server[i]);
    fill(w, stuck_server, STUCK, settings.max_buffer_bytes / 2);
    carry(server, client, READERS, 4u << 20);
    carry(client, server, READERS, 3u << 20);
    assert(losses[HR_LOST_MEMORY] == 0 && COUNT(w, out_of_buffers) == 0);
    for (i = 0; i < STUCK; i++) {
        close(stuck[i]);
        close(stuck_server[i]);
    }
    for (i = 0; i < READERS; i++) {
        close(client[i]);
        close(server[i]);
    }
    EVENTUALLY(COUNT(w, buffers_used_bytes) == 0);
    world_close(w);
}

/* ── Targets that move ────────────────────────────────────────────────────── */

static void test_sessions_of_a_target_that_went_end_at_rest_or_after_the_grace(void)
{
    world *w = world_open(usual_settings());
    int resting, busy, stuck, server[3];

    couple(w, &resting, &server[0]);
    couple(w, &busy, &server[1]);
    couple(w, &stuck, &server[2]);
    say(busy, "begin\n");
    expect(server[1], "begin\n");
    say(stuck, "begin\n");
    expect(server[2], "begin\n");
    w->targets.count = 0;
    add_target(w, 9, HR_TARGET_PRIMARY, w->server_port[1]);
    put_targets(w, PATIENCE_MS);
    expect_begin(resting, "lost 4");
    say(server[1], "begun\n");
    expect(busy, "begun\n");
    say(busy, "end\n");
    expect(server[1], "end\n");
    say(server[1], "ended\n");
    expect(busy, "ended\n");
    expect_begin(busy, "lost 4");
    assert(is_silent(stuck, 20));
    put_targets(w, 50); /* the earlier of both holds */
    expect_begin(stuck, "lost 4"); /* by the grace */
    close(resting);
    close(busy);
    close(stuck);
    resting = dial(w->port);
    say(resting, "hello\n");
    close(server[0]);
    server[0] = server_of(w, 1);
    expect(server[0], "hello\n");
    close(resting);
    close(server[0]);
    close(server[1]);
    close(server[2]);
    world_close(w);
}

static void test_a_primary_that_became_a_replica_is_left(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    put_targets(w, 0); /* nothing has changed for it */
    assert(is_silent(client, 30));
    w->targets.target[0].roles = HR_TARGET_REPLICA;
    put_targets(w, 1000);
    expect_begin(client, "lost 4");
    close(client);
    close(server);
    world_close(w);
}

static void test_targets_that_are_not_sound_change_nothing(void)
{
    world *w = world_open(usual_settings());
    hr_targets wrong = w->targets;
    char error[256] = "";
    int client, server;

    wrong.count = 2;
    wrong.target[1] = wrong.target[0];
    assert(hr_targets_put(w->relay, &wrong, 0, error, sizeof error) != NULL);
    assert(strstr(error, "same id") != NULL);
    couple(w, &client, &server);
    close(client);
    close(server);
    world_close(w);
}

/* ── Draining ─────────────────────────────────────────────────────────────── */

static bool is_drained(world *w)
{
    hr_event event;

    while (hr_event_take(w->relay, &event))
        if (event.kind == HR_EVENT_DRAINED)
            return true;
    return false;
}

static bool is_rejected(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool rejected = connect(fd, (struct sockaddr *) &address, sizeof address) != 0;

    close(fd);
    return rejected;
}

static void test_a_drain_ends_sessions_at_rest_lets_others_finish_and_says_when_all_are_gone(void)
{
    world *w = world_open(usual_settings());
    int resting, busy, server[2];

    couple(w, &resting, &server[0]);
    couple(w, &busy, &server[1]);
    say(busy, "begin\n");
    expect(server[1], "begin\n");
    hr_drain(w->relay, false, false, PATIENCE_MS);
    expect_begin(resting, "lost 5");
    EVENTUALLY(is_rejected(w->port));
    assert(!is_drained(w));
    say(server[1], "begun\n");
    expect(busy, "begun\n");
    say(busy, "end\n");
    expect(server[1], "end\n");
    say(server[1], "ended\n");
    expect(busy, "ended\n");
    expect_begin(busy, "lost 5");
    close(resting);
    close(busy);
    EVENTUALLY(is_drained(w));
    close(server[0]);
    close(server[1]);
    world_close(w);
}

static void test_a_patient_drain_leaves_sessions_in_peace_until_a_second_one_or_its_deadline(void)
{
    world *w = world_open(usual_settings());
    int talker, silent, server[2];

    couple(w, &talker, &server[0]);
    couple(w, &silent, &server[1]);
    hr_drain(w->relay, true, true, PATIENCE_MS);
    assert(is_silent(talker, 100));
    say(talker, "next\n");
    expect(server[0], "next\n");
    say(server[0], "done\n");
    expect(talker, "done\n");
    assert(is_silent(silent, 10));
    hr_drain(w->relay, true, true, 400);
    expect_begin(talker, "lost 5");
    expect_begin(silent, "lost 5");
    assert(!is_rejected(w->port)); /* another process has the socket too */
    close(talker);
    close(silent);
    EVENTUALLY(is_drained(w));
    close(server[0]);
    close(server[1]);
    world_close(w);
}

/* Also who came in at that moment, and was on the way to its thread. Who came later finds the socket
 * open, which another process has too. */
static void test_a_patient_drain_turns_away_nobody_who_has_just_come(void)
{
    hr_settings settings = usual_settings();
    int client[8], round, i;

    settings.threads = 3;
    for (round = 0; round < 20; round++) {
        world *w = world_open(settings);

        for (i = 0; i < 8; i++) {
            client[i] = dial(w->port);
            say(client[i], "tell served\n");
        }
        if (round % 2 == 0)
            EVENTUALLY(COUNT(w, accepted) > (uint64_t) round % 5);
        hr_drain(w->relay, true, true, PATIENCE_MS);
        EVENTUALLY(COUNT(w, accepted) == atomic_load(&w->relay->engine->listener[0].sessions));
        for (i = 0; i < 8; i++)
            if (!is_silent(client[i], 0))
                expect(client[i], "served\n");
        assert(losses[HR_LOST_DRAIN] == 0);
        for (i = 0; i < 8; i++)
            close(client[i]);
        world_close(w);
    }
}

static void test_a_listener_that_is_given_up_closes_its_socket_and_keeps_its_sessions(void)
{
    hr_settings settings = usual_settings();
    char error[256] = "";
    int client, server;
    uint16_t port;
    world *w;

    settings.threads = 2;
    w = world_open(settings);
    couple(w, &client, &server);
    assert(!hr_unlisten(w->relay, -1) && !hr_unlisten(w->relay, 2));
    assert(hr_unlisten(w->relay, 0) && !hr_unlisten(w->relay, 0));
    EVENTUALLY(is_rejected(w->port));
    assert(!is_rejected(w->replica_port));
    assert(hr_listener_tls(w->relay, 0, NULL, error, sizeof error) != NULL);
    say(client, "still here\n");
    expect(server, "still here\n");
    /* Its place is kept for that session, and then another's. */
    assert(hr_listen(w->relay, listen_on(&port, 8), HR_ROUTE_PRIMARY, NULL, error, sizeof error)
           == 2);
    close(client);
    expect_end(server);
    close(server);
    EVENTUALLY(w->relay->engine->listener[0].sessions
               == 0); /* also who was on the way to a thread */
    assert(hr_listen(w->relay, listen_on(&w->port, 8), HR_ROUTE_PRIMARY, NULL, error, sizeof error)
           == 0);
    couple(w, &client, &server);
    close(client);
    close(server);
    world_close(w);
}

static void test_a_listener_given_up_before_the_start_is_never_served(void)
{
    world *w = world_begin(usual_settings());

    assert(hr_unlisten(w->relay, 0) && is_rejected(w->port));
    put_targets(w, 0);
    start(w);
    assert(!is_rejected(w->replica_port));
    world_close(w);
}

static void test_a_session_is_killed_by_its_number(void)
{
    world *w = world_open(usual_settings());
    hr_session_view view;
    int client, server;

    couple(w, &client, &server);
    assert(hr_sessions(w->relay, 0, &view, 1) == 1);
    assert(!hr_session_kill(w->relay, view.id + 1));
    assert(hr_session_kill(w->relay, view.id));
    expect_begin(client, "lost 11");
    expect_end(server);
    close(client);
    close(server);
    world_close(w);
}

static void test_a_stop_with_sessions_in_every_state(void)
{
    hr_settings settings = usual_settings();
    int client[4], server[2];
    world *w;

    settings.threads = 2;
    w = world_open(settings);
    couple(w, &client[0], &server[0]);
    couple(w, &client[1], &server[1]);
    say(client[1], "hold\n");
    EVENTUALLY(held_session != NULL);
    client[2] = dial(w->port);
    client[3] = dial(w->port);
    say(client[3], "part of a line");
    EVENTUALLY(COUNT(w, buffers_used_bytes) >= 2 * 2016);
    hr_stop(w->relay);
    world_close(w);
    expect_begin(client[0], "lost 5");
    close(client[0]);
    close(client[1]);
    close(client[2]);
    close(client[3]);
    close(server[0]);
    close(server[1]);
}

static void test_a_region_without_a_seat_for_each_thread_is_rejected_whole(void)
{
    hr_settings settings = usual_settings();
    world *w;

    settings.threads = 9; /* it has 8 */
    w = world_begin(settings);
    assert(strstr(hr_start(w->relay), "seat") != NULL);
    world_close(w);
}

static void test_all(void)
{
    test_a_server_that_rejects_is_named_with_the_reason();
    test_a_server_that_does_not_answer_is_given_up_in_time();
    test_a_route_without_a_server_says_so();
    test_replicas_share_sessions_by_weight_and_one_that_is_down_is_passed_over();
    test_sessions_beyond_the_limit_are_told_so_and_others_unharmed();
    test_a_user_beyond_its_limit_is_told_so_once_it_is_let_in();
    test_who_only_says_a_name_takes_none_of_its_sessions();
    test_logins_from_one_address_are_bounded();
    test_one_address_never_takes_all_places_by_logging_in();
    test_an_endless_start_up_ends();
    test_an_idle_session_ends_but_not_one_in_a_transaction();
    test_sessions_that_need_more_than_all_buffers_end_and_others_go_on();
    test_clients_that_do_not_read_leave_buffers_for_those_that_do();
    test_sessions_of_a_target_that_went_end_at_rest_or_after_the_grace();
    test_a_primary_that_became_a_replica_is_left();
    test_targets_that_are_not_sound_change_nothing();
    test_a_drain_ends_sessions_at_rest_lets_others_finish_and_says_when_all_are_gone();
    test_a_patient_drain_leaves_sessions_in_peace_until_a_second_one_or_its_deadline();
    test_a_patient_drain_turns_away_nobody_who_has_just_come();
    test_a_listener_that_is_given_up_closes_its_socket_and_keeps_its_sessions();
    test_a_listener_given_up_before_the_start_is_never_served();
    test_a_session_is_killed_by_its_number();
    test_a_stop_with_sessions_in_every_state();
    test_a_region_without_a_seat_for_each_thread_is_rejected_whole();
}

int main(void)
{
    test_all();
    return 0;
}
