/* A closed-loop load of HEAD requests: wrk and h2load wait for a body that never comes.
 *
 *   heads CONNECTIONS SECONDS PATH PORT|/unix/socket     prints answers per second
 *
 * One thread, one epoll. Every answer must be a 200 and end with its head.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, ROOM = 4096 };

struct connection {
    int fd;
    size_t held;
    char bytes[ROOM];
};

static void fail(const char *what) {
    fprintf(stderr, "heads: %s: %s\n", what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int open_to(const char *target) {
    if (target[0] == '/') {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        strncpy(un.sun_path, target, sizeof un.sun_path - 1);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&un, sizeof un) < 0) fail(target);
        return fd;
    }
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(target))};
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&in, sizeof in) < 0) fail(target);
    return fd;
}

/* Whether a whole answer is held; it is checked and dropped. */
static int answered(struct connection *c) {
    ssize_t got = read(c->fd, c->bytes + c->held, ROOM - 1 - c->held);
    if (got <= 0) fail("connection closed");
    c->held += (size_t)got;
    c->bytes[c->held] = 0;
    if (c->held < 4 || memcmp(c->bytes + c->held - 4, "\r\n\r\n", 4) != 0) return 0;
    if (strncmp(c->bytes, "HTTP/1.1 200", 12) != 0) fail(c->bytes);
    c->held = 0;
    return 1;
}

int main(int argc, char **argv) {
    static struct connection all[MAX_CONNECTIONS];
    if (argc != 5) fail("usage: heads CONNECTIONS SECONDS PATH PORT|/unix/socket");
    int count = atoi(argv[1]);
    if (count < 1 || count > MAX_CONNECTIONS) fail("connections");
    char request[ROOM];
    int length = snprintf(request, sizeof request, "HEAD %s HTTP/1.1\r\nHost: localhost\r\n\r\n", argv[3]);
    int poll = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        all[i].fd = open_to(argv[4]);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event);
        if (write(all[i].fd, request, (size_t)length) != length) fail("write");
    }
    double began = now(), ends = began + atof(argv[2]);
    unsigned long answers = 0;
    while (now() < ends) {
        struct epoll_event ready[MAX_CONNECTIONS];
        int n = epoll_wait(poll, ready, MAX_CONNECTIONS, 1000);
        if (n == 0) fail("no answer within a second");
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (!answered(c)) continue;
            answers++;
            if (write(c->fd, request, (size_t)length) != length) fail("write");
        }
    }
    printf("%.1f\n", (double)answers / (now() - began));
    return 0;
}
