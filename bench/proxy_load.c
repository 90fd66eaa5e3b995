/*
 * proxy_load: one load on several targets, side by side.
 *
 *   proxy_load MODE CLIENTS ROUNDS SLICE_MS ROWS USER DATABASE NAME=HOST:PORT[:PID] …
 *
 * Keeps CLIENTS warm connections to every target, and in each round gives every target one slice of
 * time, in random order: what the machine does otherwise hits all alike. Sends what `pgbench -S` would,
 * in MODE simple, extended or prepared. A line of JSON for each slice: statements, latency, CPU time of
 * the process PID meanwhile, with all of its threads. Servers must trust USER.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TARGETS = 12, MAX_CLIENTS = 256, MAX_SAMPLES = 400000, BUFFER = 8192 };
enum { SIMPLE, EXTENDED, PREPARED };

typedef struct connection {
    int fd;
    uint64_t sent_ns;
    uint32_t have; /* bytes of an unfinished message's head */
    uint8_t head[5];
    uint32_t skip; /* bytes of the message that are still to come */
} connection;

typedef struct target {
    const char *name;
    struct sockaddr_in address;
    int pid;
    int epoll;
    connection at[MAX_CLIENTS];
} target;

static target targets[MAX_TARGETS];
static int target_count, mode, clients, rows;
static uint32_t samples[MAX_SAMPLES];
static size_t sample_count;
static uint64_t dice = 88172645463325252ull;

static _Noreturn void fail(const char *what, const char *who)
{
    fprintf(stderr, "proxy_load: %s: %s: %s\n", who, what, errno ? strerror(errno) : "no");
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t) at.tv_sec * 1000000000u + (uint64_t) at.tv_nsec;
}

static uint64_t roll(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice;
}

static size_t put32(uint8_t *at, uint32_t value)
{
    value = htonl(value);
    memcpy(at, &value, 4);
    return 4;
}

/* A message of a type, its body given; its length in all. */
static size_t message(uint8_t *at, char type, const void *body, size_t length)
{
    at[0] = (uint8_t) type;
    put32(at + 1, (uint32_t) length + 4);
    memcpy(at + 5, body, length);
    return length + 5;
}

static const char QUERY[] = "SELECT abalance FROM pgbench_accounts WHERE aid = $1";

static size_t parse(uint8_t *at, const char *name)
{
    uint8_t body[256];
    size_t n = 0;

    memcpy(body, name, strlen(name) + 1);
    n += strlen(name) + 1;
    memcpy(body + n, QUERY, sizeof QUERY);
    n += sizeof QUERY;
    body[n++] = 0;
    body[n++] = 0;
    return message(at, 'P', body, n);
}

static size_t bound(uint8_t *at, const char *name, const char *value)
{
    uint8_t body[256];
    size_t n = 0, length = strlen(value);

    body[n++] = 0;
    memcpy(body + n, name, strlen(name) + 1);
    n += strlen(name) + 1;
    memset(body + n, 0, 2); /* formats: text */
    n += 2;
    body[n++] = 0;
    body[n++] = 1;
    n += put32(body + n, (uint32_t) length);
    memcpy(body + n, value, length);
    n += length;
    memset(body + n, 0, 2);
    n += 2;
    return message(at, 'B', body, n);
}

static size_t question(uint8_t *at)
{
    char text[128], value[16];
    size_t n = 0;
    unsigned aid = (unsigned) (roll() % (uint64_t) rows) + 1;

    if (mode == SIMPLE) {
        int length = snprintf(text, sizeof text, "SELECT abalance FROM pgbench_accounts WHERE aid = %u;", aid);

        return message(at, 'Q', text, (size_t) length + 1);
    }
    snprintf(value, sizeof value, "%u", aid);
    if (mode == EXTENDED)
        n += parse(at, "");
    n += bound(at + n, mode == EXTENDED ? "" : "P0_1", value);
    n += message(at + n, 'D', "P", 2);
    n += message(at + n, 'E', "\0\0\0\0", 5);
    n += message(at + n, 'S', "", 0);
    return n;
}

/* Whether the answer is whole: ReadyForQuery has come. An error ends the run. */
static bool take(connection *c, const uint8_t *bytes, size_t length, const char *who)
{
    bool ready = false;

    while (length > 0) {
        if (c->skip > 0) {
            size_t n = length < c->skip ? length : c->skip;

            c->skip -= (uint32_t) n;
            bytes += n;
            length -= n;
            if (c->skip == 0 && c->head[0] == 'Z')
                ready = true;
            continue;
        }
        c->head[c->have++] = *bytes++;
        length--;
        if (c->have == 5) {
            uint32_t size;

            memcpy(&size, c->head + 1, 4);
            c->skip = ntohl(size) - 4;
            c->have = 0;
            if (c->head[0] == 'E') {
                fprintf(stderr, "proxy_load: %s: error: ", who);
                for (size_t i = 0; i < length; i++) /* fields end with a NUL */
                    fputc(bytes[i] == 0 ? ' ' : bytes[i], stderr);
                fputc('\n', stderr);
                exit(1);
            }
        }
    }
    return ready;
}

static void ask(connection *c, const char *who)
{
    uint8_t bytes[512];
    size_t length = question(bytes);

    c->sent_ns = now_ns();
    if (send(c->fd, bytes, length, MSG_NOSIGNAL) != (ssize_t) length)
        fail("send", who);
}

static bool answered(connection *c, const char *who)
{
    uint8_t bytes[BUFFER];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);

    if (n <= 0)
        fail("receive", who);
    return take(c, bytes, (size_t) n, who);
}

static void wait_answer(connection *c, const char *who)
{
    while (!answered(c, who))
        ;
}

static void open_connection(target *t, connection *c, const char *user, const char *database)
{
    uint8_t bytes[512];
    int one = 1;
    size_t n = 4;

    memset(c, 0, sizeof *c);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(c->fd, (struct sockaddr *) &t->address, sizeof t->address) != 0)
        fail("connect", t->name);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    n += put32(bytes + n, 196608);
    n += (size_t) sprintf((char *) bytes + n, "user%c%s%cdatabase%c%s%capplication_name%cpgbench%c", 0, user, 0, 0,
                          database, 0, 0, 0);
    bytes[n++] = 0;
    put32(bytes, (uint32_t) n);
    if (send(c->fd, bytes, n, MSG_NOSIGNAL) != (ssize_t) n)
        fail("start", t->name);
    wait_answer(c, t->name);
    if (mode == PREPARED) {
        n = parse(bytes, "P0_1");
        n += message(bytes + n, 'S', "", 0);
        if (send(c->fd, bytes, n, MSG_NOSIGNAL) != (ssize_t) n)
            fail("prepare", t->name);
        wait_answer(c, t->name);
    }
}

static void open_target(target *t, const char *user, const char *database)
{
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < clients; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t) i};

        open_connection(t, &t->at[i], user, database);
        epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->at[i].fd, &event);
    }
}

/* CPU time of all threads, in ns. */
static uint64_t cpu_of(int pid)
{
    char path[320];
    uint64_t sum = 0;
    DIR *folder;
    struct dirent *entry;

    if (pid <= 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    folder = opendir(path);
    if (folder == NULL)
        return 0;
    while ((entry = readdir(folder)) != NULL) {
        uint64_t ran = 0;
        FILE *file;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, entry->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fscanf(file, "%" SCNu64, &ran) == 1)
            sum += ran;
        fclose(file);
    }
    closedir(folder);
    return sum;
}

static void note(uint64_t took_ns)
{
    if (sample_count < MAX_SAMPLES)
        samples[sample_count++] = took_ns > UINT32_MAX ? UINT32_MAX : (uint32_t) took_ns;
}

static uint64_t run_one(target *t, uint64_t until_ns)
{
    uint64_t done = 0;
    connection *c = &t->at[0];

    while (now_ns() < until_ns) {
        ask(c, t->name);
        wait_answer(c, t->name);
        note(now_ns() - c->sent_ns);
        done++;
    }
    return done;
}

static uint64_t run_many(target *t, uint64_t until_ns)
{
    struct epoll_event events[MAX_CLIENTS];
    uint64_t done = 0;
    int running = clients;

    for (int i = 0; i < clients; i++)
        ask(&t->at[i], t->name);
    while (running > 0) {
        int n = epoll_wait(t->epoll, events, MAX_CLIENTS, 10000);
        uint64_t now = now_ns();

        if (n <= 0)
            fail("no answer in 10 s", t->name);
        for (int i = 0; i < n; i++) {
            connection *c = &t->at[events[i].data.u32];

            if (!answered(c, t->name))
                continue;
            note(now - c->sent_ns);
            done++;
            if (now < until_ns)
                ask(c, t->name);
            else
                running--;
        }
    }
    return done;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

    return (x > y) - (x < y);
}

static void slice(target *t, int round, int slice_ms)
{
    uint64_t cpu, began, took, done;

    sample_count = 0;
    cpu = cpu_of(t->pid);
    began = now_ns();
    done = (clients == 1 ? run_one : run_many)(t, began + (uint64_t) slice_ms * 1000000u);
    took = now_ns() - began;
    cpu = cpu_of(t->pid) - cpu;
    qsort(samples, sample_count, sizeof *samples, by_value);
    printf("{\"round\":%d,\"target\":\"%s\",\"statements\":%" PRIu64 ",\"ns\":%" PRIu64 ",\"cpu_ns\":%" PRIu64
           ",\"p50_ns\":%u,\"p99_ns\":%u}\n",
           round, t->name, done, took, cpu, samples[sample_count / 2], samples[sample_count * 99 / 100]);
}

static void read_target(target *t, char *argument)
{
    char *host = strchr(argument, '='), *port, *pid;

    if (host == NULL || (port = strchr(host, ':')) == NULL)
        fail("not NAME=HOST:PORT[:PID]", argument);
    *host++ = *port++ = 0;
    pid = strchr(port, ':');
    if (pid != NULL)
        *pid++ = 0;
    t->name = argument;
    t->pid = pid != NULL ? atoi(pid) : 0;
    t->address.sin_family = AF_INET;
    t->address.sin_port = htons((uint16_t) atoi(port));
    if (inet_pton(AF_INET, host, &t->address.sin_addr) != 1)
        fail("not an IPv4 address", host);
}

int main(int argc, char **argv)
{
    int order[MAX_TARGETS], rounds, slice_ms;

    if (argc < 9) {
        fprintf(stderr, "proxy_load MODE CLIENTS ROUNDS SLICE_MS ROWS USER DATABASE NAME=HOST:PORT[:PID] …\n");
        return 2;
    }
    mode = argv[1][0] == 's' ? SIMPLE : argv[1][0] == 'e' ? EXTENDED : PREPARED;
    clients = atoi(argv[2]);
    rounds = atoi(argv[3]);
    slice_ms = atoi(argv[4]);
    rows = atoi(argv[5]);
    if (clients < 1 || clients > MAX_CLIENTS || rows < 1 || argc - 8 > MAX_TARGETS)
        return 2;
    for (int i = 8; i < argc; i++) {
        read_target(&targets[target_count], argv[i]);
        open_target(&targets[target_count++], argv[6], argv[7]);
    }
    for (int round = -1; round < rounds; round++) { /* the first one warms up */
        for (int i = 0; i < target_count; i++)
            order[i] = i;
        for (int i = target_count - 1; i > 0; i--) {
            int j = (int) (roll() % (uint64_t) (i + 1)), kept = order[i];

            order[i] = order[j];
            order[j] = kept;
        }
        for (int i = 0; i < target_count; i++)
            slice(&targets[order[i]], round, slice_ms);
        fflush(stdout);
    }
    return 0;
}
