/* A closed-loop load on a Postgres server, which costs the machine less than the server does.
 *
 *   pg_load [options] STATEMENT...
 *     -h PATH   the server's socket, the file itself     -U NAME  user          -d NAME  database
 *     -a NAME   application_name                         -c N     connections   -s S     seconds
 *     -e        prepared, by the extended protocol       -r N     $1 is a random number of 1..N
 *     -p US     pause after each statement               -k       come back when a connection is lost
 *     -w US     pause after a block                    -g       begin when there is a line to read
 *     -t PATH   write every statement's times there
 *
 * Prints "ready" once all are connected, and at the end, or on SIGTERM, its counts as JSON. A
 * thread per connection. An error that is neither a block (53000) nor a cancel (57014) nor, with
 * -k, a lost connection ends it. A trace line: connection, statement, sent and answered (Unix time,
 * µs), outcome, the first two columns of the last row where they are whole numbers.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 512, MAX_STATEMENTS = 64, ROOM = 65536, ANSWER_S = 120, BACK_S = 30 };
enum { MAX_TRACED = 1 << 21 };

typedef enum { OK, BLOCKED, CANCELLED, LOST, OTHER, OUTCOMES } outcome;
static const char *const NAMES[OUTCOMES] = {"ok", "blocked", "cancelled", "lost", "other"};

typedef struct {
    int32_t statement, outcome;
    int64_t sent_us, done_us, values[2];
} seen;

typedef struct {
    int fd;
    uint32_t dice;
    uint64_t counts[OUTCOMES];
    char state[6], words[300], transaction; /* 'I': none is open */
    int64_t values[2];
    size_t begin, end; /* of what is held in bytes */
    unsigned char bytes[ROOM];
    seen *trace;
    size_t traced, trace_room;
} client;

static struct {
    const char *path, *user, *database, *application, *trace;
    const char *statements[MAX_STATEMENTS];
    int statement_count, connections, rows, pause_us, blocked_us;
    double seconds;
    bool extended, keep, told_to_begin;
} asked = {.user = "postgres", .database = "postgres", .application = "pg_load",
           .connections = 1, .rows = 100000, .seconds = 1};
static volatile sig_atomic_t told_to_end;
static int64_t ends_us;
static pthread_barrier_t all_connected;

static void fail(const char *what, const char *words) {
    fprintf(stderr, "pg_load: %s: %s\n", what, words);
    exit(1);
}

static int64_t unix_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static bool over(void) { return told_to_end || unix_us() >= ends_us; }

static uint32_t roll(client *c) {
    c->dice ^= c->dice << 13;
    c->dice ^= c->dice >> 17;
    return c->dice ^= c->dice << 5;
}

/* ── Messages ─────────────────────────────────────────────────────────────── */

typedef struct {
    size_t length, opened;
    unsigned char bytes[ROOM];
} message;

static void put(message *m, const void *bytes, size_t length) {
    if (m->length + length > ROOM) fail("statement", "too long");
    memcpy(m->bytes + m->length, bytes, length);
    m->length += length;
}

static void put_number(message *m, uint32_t number, int bytes) {
    while (bytes-- > 0) put(m, &(unsigned char){(unsigned char)(number >> (8 * bytes))}, 1);
}

static void put_text(message *m, const char *text) { put(m, text, strlen(text) + 1); }

static void begin(message *m, char kind) {
    if (kind) put(m, &kind, 1);
    m->opened = m->length;
    put_number(m, 0, 4);
}

static void finish(message *m) {
    uint32_t length = (uint32_t)(m->length - m->opened);
    for (int i = 0; i < 4; i++) m->bytes[m->opened + (size_t)i] = (unsigned char)(length >> (24 - 8 * i));
}

static bool send_all(client *c, const message *m) {
    for (size_t sent = 0; sent < m->length;) {
        ssize_t now = send(c->fd, m->bytes + sent, m->length - sent, MSG_NOSIGNAL);
        if (now <= 0) return false;
        sent += (size_t)now;
    }
    return true;
}

/* At least `length` bytes from c->begin on. */
static bool hold(client *c, size_t length) {
    if (length > ROOM) fail("answer", "a message is too long");
    if (c->begin + length > ROOM) {
        memmove(c->bytes, c->bytes + c->begin, c->end - c->begin);
        c->end -= c->begin;
        c->begin = 0;
    }
    while (c->end - c->begin < length) {
        ssize_t got = recv(c->fd, c->bytes + c->end, ROOM - c->end, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) fail("answer", "none within two minutes");
        if (got <= 0) return false;
        c->end += (size_t)got;
    }
    return true;
}

static uint32_t number_at(const unsigned char *at, int bytes) {
    uint32_t number = 0;
    while (bytes-- > 0) number = number << 8 | *at++;
    return number;
}

static void read_error(client *c, const unsigned char *at, size_t length) {
    const unsigned char *end = at + length;
    while (at < end && *at) {
        const char *value = (const char *)at + 1;
        if (*at == 'C') snprintf(c->state, sizeof c->state, "%s", value);
        if (*at == 'M') snprintf(c->words, sizeof c->words, "%s", value);
        at += strlen(value) + 2;
    }
}

static void read_row(client *c, const unsigned char *at) {
    uint32_t columns = number_at(at, 2);
    at += 2;
    for (uint32_t i = 0; i < columns && i < 2; i++) {
        char text[32] = "";
        uint32_t length = number_at(at, 4);
        if (length >= sizeof text) return; /* a long text, or NULL */
        memcpy(text, at + 4, length);
        c->values[i] = strtoll(text, NULL, 10);
        at += 4 + length;
    }
}

/* Until the server is ready for the next statement; false: the connection is lost. */
static bool await_ready(client *c) {
    c->state[0] = c->words[0] = 0;
    c->values[0] = c->values[1] = 0;
    for (;;) {
        if (!hold(c, 5)) return false;
        unsigned char kind = c->bytes[c->begin];
        size_t length = number_at(c->bytes + c->begin + 1, 4);
        if (!hold(c, length + 1)) return false;
        const unsigned char *body = c->bytes + c->begin + 5;
        c->begin += length + 1;
        if (kind == 'E') read_error(c, body, length - 4);
        if (kind == 'D') read_row(c, body);
        if (kind == 'R' && number_at(body, 4) != 0) fail("connecting", "trust is needed in pg_hba.conf");
        c->transaction = (char)*body;
        if (kind == 'Z') break;
    }
    if (c->begin == c->end) c->begin = c->end = 0;
    return true;
}

/* ── Connections ──────────────────────────────────────────────────────────── */

static bool prepare_all(client *c) {
    static _Thread_local message m;
    m.length = 0;
    for (int i = 0; i < asked.statement_count; i++) {
        char name[12];
        snprintf(name, sizeof name, "s%d", i);
        begin(&m, 'P');
        put_text(&m, name);
        put_text(&m, asked.statements[i]);
        put_number(&m, 0, 2);
        finish(&m);
    }
    begin(&m, 'S');
    finish(&m);
    return send_all(c, &m) && await_ready(c);
}

static bool try_connect(client *c) {
    static _Thread_local message m;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = ANSWER_S};
    snprintf(un.sun_path, sizeof un.sun_path, "%s", asked.path);
    c->begin = c->end = m.length = 0;
    if ((c->fd = socket(AF_UNIX, SOCK_STREAM, 0)) < 0) fail("socket", strerror(errno));
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    begin(&m, 0);
    put_number(&m, 196608, 4);
    const char *const pairs[] = {"user", asked.user, "database", asked.database,
                                 "application_name", asked.application, ""};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) put_text(&m, pairs[i]);
    finish(&m);
    snprintf(c->words, sizeof c->words, "the server does not answer");
    bool done = connect(c->fd, (struct sockaddr *)&un, sizeof un) == 0 && send_all(c, &m) &&
                await_ready(c) && (!asked.extended || prepare_all(c)) && c->state[0] == 0;
    if (!done) close(c->fd);
    return done;
}

static void open_line(client *c) {
    int64_t until_us = unix_us() + BACK_S * 1000000ll;
    while (!try_connect(c)) {
        if (!asked.keep || unix_us() > until_us) fail("connecting", c->words);
        if (over()) {
            c->fd = -1;
            return;
        }
        usleep(20000);
    }
}

/* ── Statements ───────────────────────────────────────────────────────────── */

static void put_simple(message *m, const char *statement, const char *number) {
    const char *gap = strstr(statement, "$1");
    begin(m, 'Q');
    if (gap) {
        put(m, statement, (size_t)(gap - statement));
        put(m, number, strlen(number));
        statement = gap + 2;
    }
    put_text(m, statement);
    finish(m);
}

static void put_extended(message *m, int statement, const char *number) {
    char name[12];
    bool takes_one = strstr(asked.statements[statement], "$1") != NULL;
    snprintf(name, sizeof name, "s%d", statement);
    begin(m, 'B');
    put_text(m, "");
    put_text(m, name);
    put_number(m, 0, 2);
    put_number(m, takes_one, 2);
    if (takes_one) {
        put_number(m, (uint32_t)strlen(number), 4);
        put(m, number, strlen(number));
    }
    put_number(m, 0, 2);
    finish(m);
    begin(m, 'E');
    put_text(m, "");
    put_number(m, 0, 4);
    finish(m);
    begin(m, 'S');
    finish(m);
}

static outcome judge(const client *c) {
    if (c->state[0] == 0) return OK;
    if (strcmp(c->state, "53000") == 0) return BLOCKED;
    if (strcmp(c->state, "57014") == 0) return CANCELLED;
    return OTHER;
}

/* What an error left open, as any pool does. */
static bool roll_back(client *c) {
    static _Thread_local message m;
    m.length = 0;
    put_simple(&m, "ROLLBACK", "");
    return send_all(c, &m) && await_ready(c);
}

static outcome run(client *c, int statement) {
    static _Thread_local message m;
    char number[12];
    snprintf(number, sizeof number, "%u", roll(c) % (uint32_t)asked.rows + 1);
    m.length = 0;
    if (asked.extended) put_extended(&m, statement, number);
    else put_simple(&m, asked.statements[statement], number);
    if (!send_all(c, &m) || !await_ready(c)) return LOST;
    outcome how = judge(c);
    return c->transaction == 'I' || roll_back(c) ? how : LOST;
}

static void note(client *c, seen what) {
    if (!asked.trace || c->traced == MAX_TRACED) return;
    if (c->traced == c->trace_room) {
        c->trace_room = c->trace_room ? 2 * c->trace_room : 1024;
        c->trace = realloc(c->trace, c->trace_room * sizeof *c->trace);
        if (!c->trace) fail("trace", "no memory");
    }
    c->trace[c->traced++] = what;
}

static void *work(void *given) {
    client *c = given;
    open_line(c);
    pthread_barrier_wait(&all_connected); /* main says "ready" and sets the end */
    pthread_barrier_wait(&all_connected);
    while (c->fd >= 0 && !over()) {
        int statement = (int)(roll(c) % (uint32_t)asked.statement_count);
        int64_t sent_us = unix_us();
        outcome how = run(c, statement);
        note(c, (seen){statement, (int32_t)how, sent_us, unix_us(), {c->values[0], c->values[1]}});
        c->counts[how]++;
        if ((how == OTHER && !asked.keep) || (how == LOST && !asked.keep)) fail(NAMES[how], c->words);
        if (how == LOST) {
            close(c->fd);
            open_line(c);
        }
        int pause_us = how == BLOCKED ? asked.blocked_us : 0;
        if (pause_us + asked.pause_us) usleep((useconds_t)(pause_us + asked.pause_us));
    }
    if (c->fd >= 0) close(c->fd);
    return NULL;
}

/* ── From start to end ────────────────────────────────────────────────────── */

static void write_trace(client *const *all) {
    FILE *file = fopen(asked.trace, "w");
    if (!file) fail(asked.trace, strerror(errno));
    for (int i = 0; i < asked.connections; i++)
        for (size_t n = 0; n < all[i]->traced; n++) {
            const seen *s = &all[i]->trace[n];
            fprintf(file, "%d %d %lld %lld %s %lld %lld\n", i, s->statement, (long long)s->sent_us,
                    (long long)s->done_us, NAMES[s->outcome], (long long)s->values[0],
                    (long long)s->values[1]);
        }
    if (fclose(file) != 0) fail(asked.trace, strerror(errno));
}

static void end(int number) {
    (void)number;
    told_to_end = 1;
}

static void read_options(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "h:U:d:a:c:s:er:p:w:kgt:")) != -1;) switch (option) {
        case 'h': asked.path = optarg; break;
        case 'U': asked.user = optarg; break;
        case 'd': asked.database = optarg; break;
        case 'a': asked.application = optarg; break;
        case 'c': asked.connections = atoi(optarg); break;
        case 's': asked.seconds = atof(optarg); break;
        case 'e': asked.extended = true; break;
        case 'r': asked.rows = atoi(optarg); break;
        case 'p': asked.pause_us = atoi(optarg); break;
        case 'w': asked.blocked_us = atoi(optarg); break;
        case 'k': asked.keep = true; break;
        case 'g': asked.told_to_begin = true; break;
        case 't': asked.trace = optarg; break;
        default: fail("usage", "see the head of pg_load.c");
    }
    for (; optind < argc && asked.statement_count < MAX_STATEMENTS; optind++)
        asked.statements[asked.statement_count++] = argv[optind];
    if (!asked.path || asked.statement_count == 0) fail("usage", "-h PATH and a statement are needed");
    if (asked.connections < 1 || asked.connections > MAX_CONNECTIONS) fail("-c", "1 to 512");
    if (asked.rows < 1) fail("-r", "at least 1");
}

int main(int argc, char **argv) {
    static client *all[MAX_CONNECTIONS];
    static pthread_t threads[MAX_CONNECTIONS];
    uint64_t counts[OUTCOMES] = {0};
    read_options(argc, argv);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = end, .sa_flags = SA_RESTART}, NULL);
    ends_us = INT64_MAX;
    pthread_barrier_init(&all_connected, NULL, (unsigned)asked.connections + 1);
    for (int i = 0; i < asked.connections; i++) {
        if (!(all[i] = calloc(1, sizeof(client)))) fail("client", "no memory");
        all[i]->dice = 2654435769u * (uint32_t)(i + 1);
        if (pthread_create(&threads[i], NULL, work, all[i])) fail("thread", "cannot be started");
    }
    pthread_barrier_wait(&all_connected);
    printf("ready\n");
    fflush(stdout);
    if (asked.told_to_begin && getchar() == EOF) return 0;
    int64_t began_us = unix_us();
    ends_us = began_us + (int64_t)(asked.seconds * 1e6);
    pthread_barrier_wait(&all_connected);
    for (int i = 0; i < asked.connections; i++) {
        pthread_join(threads[i], NULL);
        for (int n = 0; n < OUTCOMES; n++) counts[n] += all[i]->counts[n];
    }
    double took_s = (double)(unix_us() - began_us) / 1e6;
    if (asked.trace) write_trace(all);
    printf("{\"seconds\": %.6f", took_s);
    for (int n = 0; n < OUTCOMES; n++) printf(", \"%s\": %llu", NAMES[n], (unsigned long long)counts[n]);
    printf("}\n");
    return 0;
}
