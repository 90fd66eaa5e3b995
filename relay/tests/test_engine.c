/* test_engine.c: sessions through the real engine: bytes, waits, hang-ups, threads. */
#include "engine_world.h"

#include <pthread.h>

static void test_lines_pass_both_ways_however_they_are_cut(void)
{
    world *w = world_open(usual_settings());
    const char *line = "a line that comes in single bytes\n", *at;
    int client, server;

    couple(w, &client, &server);
    for (at = line; *at != '\0'; at++) {
        assert(send(client, at, 1, 0) == 1);
        usleep(500);
    }
    expect(server, line);
    say(server, "one\ntwo\n");
    expect(client, "one\n");
    expect(client, "two\n");
    assert(COUNT(w, established) == 1 && COUNT(w, sessions) == 1);
    EVENTUALLY(COUNT(w, idle_sessions) == 1 && COUNT(w, buffers_used_bytes) == 0);
    close(client);
    expect_end(server);
    EVENTUALLY(COUNT(w, closed) == 1);
    close(server);
    world_close(w);
}

/* ── Bulk ─────────────────────────────────────────────────────────────────── */

#define BULK_BYTES (24u << 20)

static uint8_t pattern_at(size_t at)
{
    return (uint8_t) (at * 2654435761u >> 13 | 128u);
}

static void *send_bulk(void *argument)
{
    int fd = *(int *) argument;
    static uint8_t bytes[65536];
    size_t at = 0, i;

    while (at < BULK_BYTES) {
        size_t sent = 0;

        for (i = 0; i < sizeof bytes; i++)
            bytes[i] = pattern_at(at + i);
        while (sent < sizeof bytes) {
            ssize_t some = send(fd, bytes + sent, sizeof bytes - sent, MSG_NOSIGNAL);

            assert(some > 0);
            sent += (size_t) some;
        }
        at += sizeof bytes;
    }
    return NULL;
}

static void receive_bulk(int fd)
{
    static uint8_t bytes[100000];
    size_t at = 0;

    while (at < BULK_BYTES) {
        ssize_t came = recv(fd, bytes, sizeof bytes, 0);
        ssize_t i;

        assert(came > 0);
        for (i = 0; i < came; i++)
            assert(bytes[i] == pattern_at(at + (size_t) i));
        at += (size_t) came;
    }
    assert(at == BULK_BYTES);
}

static void test_a_client_that_does_not_read_stops_its_server_and_bounds_its_memory(void)
{
    world *w = world_open(usual_settings());
    pthread_t sender;
    int client, server;

    couple(w, &client, &server);
    say(client, "all of it\n");
    expect(server, "all of it\n");
    pthread_create(&sender, NULL, send_bulk, &server);
    EVENTUALLY(COUNT(w, buffers_used_bytes) >= HR_MAX_UNSENT); /* and with that it reads no more */
    usleep(60000);
    assert(COUNT(w, server_bytes) < BULK_BYTES);
    assert(COUNT(w, buffers_used_bytes) <= HR_MAX_UNSENT + HR_ROOM_BYTES + 2u * HR_BUFFER_BYTES);
    receive_bulk(client);
    pthread_join(sender, NULL);
    EVENTUALLY(COUNT(w, buffers_used_bytes) == 0);
    assert(paused_ns > 50 * HR_MS);
    close(client);
    close(server);
    world_close(w);
}

static void test_a_server_that_does_not_read_stops_its_client(void)
{
    world *w = world_open(usual_settings());
    pthread_t sender;
    int client, server;

    couple(w, &client, &server);
    pthread_create(&sender, NULL, send_bulk, &client);
    EVENTUALLY(COUNT(w, buffers_used_bytes) >= HR_MAX_UNSENT);
    usleep(20000);
    assert(COUNT(w, client_bytes) < BULK_BYTES);
    assert(COUNT(w, buffers_used_bytes) <= HR_MAX_UNSENT + 3u * HR_BUFFER_BYTES);
    receive_bulk(server);
    pthread_join(sender, NULL);
    close(client);
    close(server);
    world_close(w);
}

/* ── Held ─────────────────────────────────────────────────────────────────── */

static void test_a_held_line_reaches_the_server_once_it_is_let_go(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    say(client, "hold this\nand this\n");
    EVENTUALLY(held_session != NULL);
    say(client, "and that\n");
    assert(is_silent(server, 50));
    assert(COUNT(w, held) == 1);
    hr_stir(w->relay);
    assert(is_silent(server, 50));
    gate_open = true;
    wake_held();
    expect(server, "hold this\n");
    expect(server, "and this\n");
    expect(server, "and that\n");
    close(client);
    close(server);
    world_close(w);
}

static void test_a_held_line_is_looked_at_when_it_is_due(void)
{
    world *w = world_open(usual_settings());
    uint64_t began_ms;
    int client, server;

    gate_due_ms = 30;
    couple(w, &client, &server);
    began_ms = now_ms();
    say(client, "hold this\n");
    expect(server, "hold this\n");
    assert(held_session != NULL && now_ms() - began_ms >= 29);
    close(client);
    close(server);
    world_close(w);
}

static void test_a_client_that_hangs_up_while_held_never_reaches_the_server(void)
{
    world *w = world_open(usual_settings());
    uint32_t before = forgotten;
    int client, server;

    couple(w, &client, &server);
    say(client, "hold this\n");
    EVENTUALLY(held_session != NULL);
    close(client);
    expect_end(server);
    assert(losses[HR_LOST_CLIENT] == 1 && forgotten == before + 1);
    close(server);
    world_close(w);
}

/* The relay sees both in one event, since it has not begun: no other will tell of the hang-up. */
static void test_a_hang_up_that_comes_with_the_line_that_is_held_is_noticed(void)
{
    world *w = world_begin(usual_settings());
    int client;

    put_targets(w, 0);
    client = dial(w->port);
    say(client, "hold this\n");
    close(client);
    start(w);
    EVENTUALLY(COUNT(w, closed) == 1);
    assert(losses[HR_LOST_CLIENT] == 1);
    world_close(w);
}

static void test_what_waits_for_its_own_turn_goes_on_with_the_servers_answer(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    say(client, "first\nlater\n");
    expect(server, "first\n");
    assert(is_silent(server, 30));
    say(server, "done\n");
    expect(server, "later\n");
    expect(client, "done\n");
    close(client);
    close(server);
    world_close(w);
}

/* ── Ends ─────────────────────────────────────────────────────────────────── */

static void test_a_client_that_shuts_its_writing_still_gets_the_answer(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    say(client, "question\n");
    shutdown(client, SHUT_WR);
    expect(server, "question\n");
    expect(server, ""); /* the server sees it */
    say(server, "answer\n");
    expect(client, "answer\n");
    expect_begin(client, "lost 0");
    expect_end(client);
    close(client);
    close(server);
    world_close(w);
}

static void test_a_client_that_is_gone_keeps_its_statement_counted_until_the_server_speaks(void)
{
    world *w = world_open(usual_settings());
    struct linger at_once = {.l_onoff = 1};
    int client, server;

    couple(w, &client, &server);
    say(client, "question\n");
    expect(server, "question\n");
    setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(client); /* a reset */
    expect(server, "");
    assert(COUNT(w, closed) == 0 && losses[HR_LOST_CLIENT] == 0);
    say(server, "some of the answer");
    EVENTUALLY(COUNT(w, closed) == 1);
    assert(losses[HR_LOST_CLIENT] == 1);
    close(server);
    world_close(w);
}

static void test_what_waits_for_its_turn_goes_with_a_client_that_is_gone(void)
{
    world *w = world_open(usual_settings());
    struct linger at_once = {.l_onoff = 1};
    int client, server;

    couple(w, &client, &server);
    say(client, "first\nlater\n");
    expect(server, "first\n");
    setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(client);
    expect(server, ""); /* and not "later" */
    say(server, "done\n");
    EVENTUALLY(COUNT(w, closed) == 1);
    assert(COUNT(w, buffers_used_bytes) == 0);
    close(server);
    world_close(w);
}

static void test_what_waits_for_its_turn_gets_it_though_the_client_says_no_more(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    say(client, "first\nlater\n");
    shutdown(client, SHUT_WR);
    expect(server, "first\n");
    assert(is_silent(server, 30));
    say(server, "done\n");
    expect(server, "later\n");
    expect(server, "");
    say(server, "all\n");
    expect(client, "done\n");
    expect(client, "all\n");
    expect_begin(client, "lost 0");
    close(client);
    close(server);
    world_close(w);
}

static void test_a_server_that_dies_is_told_to_the_client_behind_what_it_said(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    say(client, "question\n");
    expect(server, "question\n");
    say(server, "half\n");
    close(server);
    expect(client, "half\n");
    expect_begin(client, "lost 1");
    expect_end(client);
    close(client);
    world_close(w);
}

/* What it was sent must not be lost by a reset, though it said more than was read. */
static void test_a_client_reads_its_last_words_though_it_has_said_more(void)
{
    world *w = world_open(usual_settings());
    int client, server;

    couple(w, &client, &server);
    say(client, "quit\n");
    say(client, "and yet another thing\n");
    usleep(20000);
    say(client, "and more\n");
    expect(client, "bye\n");
    expect_end(client);
    close(client);
    close(server);
    world_close(w);
}

static void test_a_client_that_never_reads_its_last_words_goes_after_a_while(void)
{
    world *w = world_open(usual_settings());
    int client, server;
    uint64_t began_ms;

    couple(w, &client, &server);
    began_ms = now_ms();
    say(client, "quit\n");
    expect_end(server);
    EVENTUALLY(COUNT(w, closed) == 1);
    assert(now_ms() - began_ms >= HR_LINGER_NS / HR_MS - 1);
    close(client);
    close(server);
    world_close(w);
}

static void test_many_short_answers_go_out_in_order(void)
{
    world *w = world_open(usual_settings());
    static char lines[32768];
    char expected[16];
    size_t length = 0;
    int client, server, i;

    couple(w, &client, &server);
    for (i = 0; i < 2000; i++)
        length += (size_t) sprintf(lines + length, "tell %d\n", i);
    say(client, lines);
    for (i = 0; i < 2000; i++) {
        sprintf(expected, "%d\n", i);
        expect(client, expected);
    }
    close(client);
    close(server);
    world_close(w);
}

/* ── Threads ──────────────────────────────────────────────────────────────── */

static void test_sessions_spread_over_threads(void)
{
    hr_settings settings = usual_settings();
    world *w;
    int client[12], server[12], i;

    settings.threads = 3;
    w = world_open(settings);
    for (i = 0; i < 12; i++)
        couple(w, &client[i], &server[i]);
    for (i = 0; i < 3; i++)
        assert(hr_counts_of(w->relay, (uint32_t) i)->sessions == 4);
    for (i = 0; i < 12; i++) {
        say(client[i], "x\n");
        expect(server[i], "x\n");
        say(server[i], "y\n");
        expect(client[i], "y\n");
    }
    for (i = 0; i < 12; i += 2)
        close(client[i]);
    EVENTUALLY(COUNT(w, sessions) == 6);
    for (i = 0; i < 12; i++) {
        if (i % 2 == 1)
            close(client[i]);
        close(server[i]);
    }
    world_close(w);
}

static void *come_and_go(void *argument)
{
    world *w = argument;
    int i;

    for (i = 0; i < 60; i++) {
        int client = dial(w->port);

        say(client, i % 3 == 0 ? "hold\n" : "x\n");
        if (i % 3 == 2)
            usleep(300);
        close(client);
    }
    return NULL;
}

static void *stir(void *argument)
{
    world *w = argument;
    int i;

    for (i = 0; i < 300; i++) {
        wake_held(); /* it may be long gone */
        hr_stir(w->relay);
        if (i % 20 == 0)
            put_targets(w, 0);
        usleep(200);
    }
    return NULL;
}

static void test_sessions_that_come_and_go_while_others_wake_them(void)
{
    hr_settings settings = usual_settings();
    world *w;
    pthread_t thread[4];
    int i;

    settings.threads = 2;
    w = world_open(settings);
    for (i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, come_and_go, w);
    pthread_create(&thread[3], NULL, stir, w);
    for (i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    close(w->listener[0]); /* the servers, none of which has answered, are gone */
    w->listener[0] = -1;
    EVENTUALLY(COUNT(w, sessions) == 0);
    world_close(w);
}

static void test_all(void)
{
    test_lines_pass_both_ways_however_they_are_cut();
    test_a_client_that_does_not_read_stops_its_server_and_bounds_its_memory();
    test_a_server_that_does_not_read_stops_its_client();
    test_a_held_line_reaches_the_server_once_it_is_let_go();
    test_a_held_line_is_looked_at_when_it_is_due();
    test_a_client_that_hangs_up_while_held_never_reaches_the_server();
    test_a_hang_up_that_comes_with_the_line_that_is_held_is_noticed();
    test_what_waits_for_its_own_turn_goes_on_with_the_servers_answer();
    test_a_client_that_shuts_its_writing_still_gets_the_answer();
    test_a_client_that_is_gone_keeps_its_statement_counted_until_the_server_speaks();
    test_what_waits_for_its_turn_goes_with_a_client_that_is_gone();
    test_what_waits_for_its_turn_gets_it_though_the_client_says_no_more();
    test_a_server_that_dies_is_told_to_the_client_behind_what_it_said();
    test_a_client_reads_its_last_words_though_it_has_said_more();
    test_a_client_that_never_reads_its_last_words_goes_after_a_while();
    test_many_short_answers_go_out_in_order();
    test_sessions_spread_over_threads();
    test_sessions_that_come_and_go_while_others_wake_them();
}

int main(void)
{
    test_all();
    return 0;
}
