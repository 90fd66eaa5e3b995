/*
 * engine_world.h: the real engine over loopback sockets, with a machine that speaks in lines.
 *
 *   test's client socket ⇄ relay thread ⇄ test's server socket
 *
 * From a client: "user NAME"; "let in" (that user; else it is crowded); "hold" (until gate_open); "later" (until the server says something);
 * "tell TEXT" (to the client); "begin", "end" (a transaction's; passed on); "secure", "secure
 * server" (TLS with that end); "quit" (closes). Any other line is passed on, and runs until the server has answered
 * with a line. A client whose session is lost gets "lost WHY FAULT".
 */
#ifndef HEADGATE_TESTS_ENGINE_WORLD_H
#define HEADGATE_TESTS_ENGINE_WORLD_H

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine.h"

#define MAYBE __attribute__((unused))

static _Atomic bool gate_open;
static _Atomic(hr_session *) held_session;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER; /* these three are of one session */
static hr_thread *held_thread;
static uint64_t held_id;
static _Atomic uint64_t paused_ns;
static _Atomic uint32_t forgotten, losses[HR_LOST_KILLED + 1];
static _Atomic uint32_t gate_due_ms;

/* ── The machine ──────────────────────────────────────────────────────────── */

typedef struct lines {
    uint32_t running;
    bool in_transaction, streams;
    uint64_t due_ns;
} lines;

_Static_assert(sizeof(lines) <= sizeof(hr_pg), "it takes the place of a real machine's");

static lines *lines_of(const hr_session *session)
{
    return (lines *) (uintptr_t) &session->pg;
}

static void line_init(hr_session *session)
{
    memset(lines_of(session), 0, sizeof(lines));
}

static bool says(const uint8_t *line, size_t length, const char *word)
{
    return length >= strlen(word) && memcmp(line, word, strlen(word)) == 0;
}

static void name_user(hr_session *session, const uint8_t *name, size_t length)
{
    char *names = calloc(1, length + 3);

    memcpy(names, name, length);
    free(session->gate.names);
    session->gate.names = names;
    session->gate.database_at = session->gate.application_at = (uint16_t) (length + 1);
}

static bool holds(hr_session *session)
{
    if (gate_open)
        return false;
    if (gate_due_ms > 0 && lines_of(session)->due_ns == 0)
        lines_of(session)->due_ns = session->thread->now_ns + gate_due_ms * HR_MS;
    if (gate_due_ms > 0 && session->thread->now_ns >= lines_of(session)->due_ns)
        return false;
    pthread_mutex_lock(&held_lock);
    held_id = session->id;
    held_thread = session->thread;
    held_session = session;
    pthread_mutex_unlock(&held_lock);
    return true;
}

/* As the gate does it: what it knows of who waits is its own, for the session is another thread's. */
MAYBE static void wake_held(void)
{
    hr_thread *thread;
    hr_session *session;
    uint64_t id;

    pthread_mutex_lock(&held_lock);
    thread = held_thread;
    session = held_session;
    id = held_id;
    pthread_mutex_unlock(&held_lock);
    if (session != NULL)
        hr_wake(thread, session, id);
}

/* Whether the line is consumed. */
static bool line_from_client(hr_session *session, const uint8_t *line, size_t length, hr_next *next)
{
    lines *mine = lines_of(session);

    if (says(line, length, "user ")) {
        name_user(session, line + 5, length - 6);
    } else if (says(line, length, "let in")) {
        if (!hr_user_proved(session)) {
            *next = HR_CROWDED;
            return true;
        }
        session->established = true;
    } else if (says(line, length, "tell ")) {
        char *text = hr_scratch(session, length - 5);

        memcpy(text, line + 5, length - 5);
        hr_emit(session, HR_CLIENT, text, length - 5);
    } else if (says(line, length, "quit")) {
        hr_emit(session, HR_CLIENT, "bye\n", 4);
        *next = HR_CLOSE;
    } else if (says(line, length, "secure server")) {
        *next = HR_SERVER_TLS;
    } else if (says(line, length, "secure")) {
        hr_emit(session, HR_CLIENT, "S", 1);
        *next = HR_CLIENT_TLS;
    } else if (says(line, length, "hold") && holds(session)) {
        *next = HR_HELD;
        return false;
    } else if (session->side[HR_SERVER].fd < 0) {
        *next = HR_CONNECT;
        return false;
    } else if (says(line, length, "later") && mine->running > 0) {
        *next = HR_LATER;
        return false;
    } else {
        if (says(line, length, "begin"))
            mine->in_transaction = true;
        if (says(line, length, "end"))
            mine->in_transaction = false;
        mine->running++;
        session->established = true;
        hr_emit(session, HR_SERVER, line, length);
    }
    return true;
}

static size_t line_feed(hr_session *session, hr_end from, const uint8_t *bytes, size_t length,
                        hr_next *next)
{
    size_t used = 0;
    lines *mine = lines_of(session);

    if (from == HR_SERVER) {
        size_t i;

        for (i = 0; i < length; i++)
            if (bytes[i] == '\n' && mine->running > 0)
                mine->running--;
        hr_emit(session, HR_CLIENT, bytes, length);
        paused_ns = session->paused_ns;
        return length;
    }
    while (used < length && *next == HR_MORE) {
        const uint8_t *end = memchr(bytes + used, '\n', length - used);
        size_t line;

        mine->streams = end == NULL && (mine->streams || length - used > HR_WINDOW_BYTES);
        if (mine->streams) {
            hr_emit(session, HR_SERVER, bytes + used, length - used);
            return length;
        }
        if (end == NULL)
            break;
        line = (size_t) (end - bytes) + 1 - used;
        if (!line_from_client(session, bytes + used, line, next))
            break;
        used += line;
    }
    return used;
}

static hr_next line_connected(hr_session *session)
{
    (void) session;
    return HR_MORE;
}

static hr_next line_secured(hr_session *session, hr_end end)
{
    hr_emit(session, HR_CLIENT, end == HR_CLIENT ? "client secured\n" : "server secured\n", 15);
    return HR_MORE;
}

static void line_lost(hr_session *session, hr_lost why)
{
    char *text = hr_scratch(session, 400);

    losses[why]++;
    snprintf(text, 400, "lost %d %s\n", (int) why, session->fault == NULL ? "" : session->fault);
    hr_emit(session, HR_CLIENT, text, strlen(text));
}

static bool line_at_rest(const hr_session *session)
{
    return lines_of(session)->running == 0 && !lines_of(session)->in_transaction;
}

static bool line_in_transaction(const hr_session *session)
{
    return lines_of(session)->in_transaction;
}

static void line_free(hr_session *session)
{
    (void) session;
}

#define LINE_MACHINE                                                                               \
    {.init = line_init,                                                                            \
     .feed = line_feed,                                                                            \
     .connected = line_connected,                                                                  \
     .secured = line_secured,                                                                      \
     .lost = line_lost,                                                                            \
     .at_rest = line_at_rest,                                                                      \
     .in_transaction = line_in_transaction,                                                        \
     .free = line_free}
const hr_machine hr_pg_machine = LINE_MACHINE, hr_my_machine = LINE_MACHINE;

/* ── A gate that only holds ───────────────────────────────────────────────── */

bool hr_gate_open(hr_relay *relay, const hg_identity *identity)
{
    return relay != NULL && identity != NULL;
}

void hr_gate_close(hr_relay *relay)
{
    (void) relay;
}

bool hr_gate_thread_open(hr_thread *thread)
{
    return thread != NULL;
}

void hr_gate_thread_close(hr_thread *thread)
{
    (void) thread;
}

void hr_gate_session_init(hr_session *session)
{
    (void) session;
}

void hr_gate_session_free(hr_session *session)
{
    free(session->gate.names);
}

void hr_gate_forget(hr_session *session)
{
    (void) session;
    forgotten++;
}

void hr_gate_cancel(hr_session *session)
{
    (void) session;
}

uint64_t hr_gate_due(const hr_session *session)
{
    return lines_of(session)->due_ns;
}

void hr_gate_stir(hr_thread *thread)
{
    hr_session *session;

    for (session = thread->engine->sessions; session != NULL; session = session->next)
        if (session->held)
            hr_wake(thread, session, session->id);
}

/* ── The world ────────────────────────────────────────────────────────────── */

#define PATIENCE_MS                                                                                \
    60000u /* for what must happen in the end: a busy machine is slow, and that is no failure */

typedef struct world {
    hr_relay *relay;
    void *region;
    int listener[4]; /* the servers' */
    uint16_t port, server_port[4], replica_port;
    hr_targets targets;
} world;

static uint64_t now_ms(void)
{
    return hr_monotonic_ns() / HR_MS;
}

static int listen_on(uint16_t *port, int backlog)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert(fd >= 0 && bind(fd, (struct sockaddr *) &address, sizeof address) == 0);
    assert(listen(fd, backlog) == 0);
    assert(getsockname(fd, (struct sockaddr *) &address, &length) == 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void patience(int fd)
{
    struct timeval limit = {.tv_sec = PATIENCE_MS / 1000};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int dial(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert(fd >= 0 && connect(fd, (struct sockaddr *) &address, sizeof address) == 0);
    patience(fd);
    return fd;
}

static void add_target(world *w, uint64_t id, uint32_t roles, uint16_t port)
{
    hr_target *target = &w->targets.target[w->targets.count++];
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};

    target->id = id;
    target->roles = roles;
    target->weight = 1;
    target->address_length = sizeof address;
    memcpy(&target->address, &address, sizeof address);
    snprintf(target->name, sizeof target->name, "db-%u", (unsigned) id);
}

static void put_targets(world *w, uint32_t grace_ms)
{
    char error[256] = "";
    const char *fault = hr_targets_put(w->relay, &w->targets, grace_ms, error, sizeof error);

    if (fault != NULL)
        fprintf(stderr, "%s\n", fault);
    assert(fault == NULL);
}

static hr_settings usual_settings(void)
{
    return (hr_settings) {.threads = 1,
                          .max_sessions = 100,
                          .startup_timeout_ms = PATIENCE_MS,
                          .connect_timeout_ms = PATIENCE_MS,
                          .max_buffer_bytes = 64u << 20};
}

static world *world_begin(hr_settings settings)
{
    static const hg_sizes sizes = {
        .seats = 8, .budgets = 16, .buckets = 64, .patterns = 64, .policy_bytes = 4096};
    static const hg_identity identity;
    world *w = calloc(1, sizeof *w);
    char error[256] = "";
    int i, listener;

    w->region = aligned_alloc(4096, hg_region_bytes(&sizes));
    assert(hg_region_init(w->region, hg_region_bytes(&sizes), &sizes, 2000, 10, 1, 1) == NULL);
    w->relay = hr_open(&settings, &identity, w->region, NULL, error, sizeof error);
    assert(w->relay != NULL);
    listener = listen_on(&w->port, 256);
    assert(hr_listen(w->relay, listener, HR_ROUTE_PRIMARY, NULL, error, sizeof error) == 0);
    listener = listen_on(&w->replica_port, 256);
    assert(hr_listen(w->relay, listener, HR_ROUTE_REPLICAS, NULL, error, sizeof error) == 1);
    for (i = 0; i < 4; i++) {
        w->listener[i] = listen_on(&w->server_port[i], 256);
        patience(w->listener[i]);
    }
    add_target(w, 1, HR_TARGET_PRIMARY, w->server_port[0]);
    return w;
}

MAYBE static void start(world *w)
{
    assert(hr_start(w->relay) == NULL);
}

MAYBE static world *world_open(hr_settings settings)
{
    world *w = world_begin(settings);

    put_targets(w, 0);
    start(w);
    return w;
}

static void world_close(world *w)
{
    uint32_t thread;
    int i;

    hr_stop(w->relay);
    for (thread = 0; thread < hr_thread_total(w->relay); thread++) {
        const hr_thread_counts *counts = hr_counts_of(w->relay, thread);

        assert(counts->sessions == 0 && counts->idle_sessions == 0);
        assert(counts->buffers_used_bytes == 0);
    }
    hr_close(w->relay);
    for (i = 0; i < 4; i++)
        close(w->listener[i]);
    free(w->region);
    free(w);
    gate_open = false;
    gate_due_ms = 0;
    held_session = NULL;
    memset((void *) losses, 0, sizeof losses);
}

/* ── Talking ──────────────────────────────────────────────────────────────── */

static void say(int fd, const char *text)
{
    assert(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t) strlen(text));
}

/* Up to the end of a line, or of all. */
static const char *hear(int fd)
{
    static char line[1024];
    size_t length = 0;

    while (length < sizeof line - 1) {
        ssize_t came = recv(fd, line + length, 1, 0);

        if (came < 0 && errno == EINTR)
            continue;
        if (came != 1 || line[length++] == '\n')
            break;
    }
    line[length] = '\0';
    return line;
}

static void expect(int fd, const char *text)
{
    const char *heard = hear(fd);

    if (strcmp(heard, text) != 0)
        fprintf(stderr, "got \"%s\" instead of \"%s\"\n", heard, text);
    assert(strcmp(heard, text) == 0);
}

MAYBE static void expect_begin(int fd, const char *text)
{
    const char *heard = hear(fd);

    if (strncmp(heard, text, strlen(text)) != 0)
        fprintf(stderr, "got \"%s\" instead of \"%s…\"\n", heard, text);
    assert(strncmp(heard, text, strlen(text)) == 0);
}

MAYBE static void expect_end(int fd)
{
    char byte;
    ssize_t came = recv(fd, &byte, 1, 0);

    assert(came == 0 || (came < 0 && errno == ECONNRESET));
}

MAYBE static bool is_silent(int fd, int ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLRDHUP};

    return poll(&one, 1, ms) == 0;
}

static int server_of(world *w, int which)
{
    int fd = accept(w->listener[which], NULL, NULL);

    assert(fd >= 0);
    patience(fd);
    return fd;
}

/* A client and its server that have said hello. */
static void couple(world *w, int *client, int *server)
{
    *client = dial(w->port);
    say(*client, "hello\n");
    *server = server_of(w, 0);
    expect(*server, "hello\n");
    say(*server, "welcome\n");
    expect(*client, "welcome\n");
}

#define EVENTUALLY(condition)                                                                      \
    do {                                                                                           \
        uint64_t until = now_ms() + PATIENCE_MS;                                                   \
        while (!(condition)) {                                                                     \
            assert(now_ms() < until);                                                              \
            usleep(1000);                                                                          \
        }                                                                                          \
    } while (0)

MAYBE static uint64_t count_all(const world *w, size_t offset)
{
    uint64_t sum = 0;
    uint32_t thread;

    for (thread = 0; thread < hr_thread_total(w->relay); thread++)
        sum += *(
            const _Atomic uint64_t *) (const void *) ((const char *) hr_counts_of(w->relay, thread)
                                                      + offset);
    return sum;
}

#define COUNT(w, field) count_all(w, offsetof(hr_thread_counts, field))

#endif
