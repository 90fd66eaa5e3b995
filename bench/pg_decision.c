/* The decision alone, without a server: what the core takes for one statement.
 *
 *   pg_decision ROUNDS CALLS POLICY...      prints a line of JSON for each compiled policy
 *
 * For each policy a region of its own. Rounds are interleaved, and the medians are of rounds:
 *   resolve  a session's own pairs, once per session and policy
 *   match    which budgets a statement falls under, its tags read from its comment
 *   decide   enter, match, take, settle, leave: all that an admitted statement needs
 * Each with one and the same statement (hot), and with statements whose tags differ (varied).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "headgate.h"

enum { MAX_POLICIES = 32, MAX_ROUNDS = 10001, VARIED = 4096, TEXT = 256 };
enum { RESOLVE, MATCH, MATCH_VARIED, DECIDE, DECIDE_VARIED, KINDS };
static const char *const NAMES[KINDS] = {"resolve", "match", "match_varied", "decide", "decide_varied"};
static const uint32_t PLACES = 64;

typedef struct {
    hg_region *region;
    hg_session session;
    uint32_t budgets, probes;
    double ns[KINDS][MAX_ROUNDS];
} policy_case;

static char texts[VARIED][TEXT];
static hg_client client = {.username = "web", .database = "shop", .application_name = "checkout",
                           .family = 4, .address = {10, 1, 2, 3}};
static hg_tags tags;
static hg_matches matches;
static uint64_t clock_ns = 1000000000;

static void fail(const char *what, const char *words) {
    fprintf(stderr, "pg_decision: %s: %s\n", what, words);
    exit(1);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void write_texts(void) {
    for (int i = 0; i < VARIED; i++)
        snprintf(texts[i], TEXT,
                 "SELECT abalance FROM pgbench_accounts WHERE aid = $1 "
                 "/*action='show%d',controller='%s',tenant='t%d'*/",
                 i * 7919 % 10007, "orders", i * 104729 % 10007);
}

static void *read_whole(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) fail(path, "cannot be read");
    *length = (size_t)ftell(file);
    rewind(file);
    void *bytes = aligned_alloc(64, (*length + 63) / 64 * 64);
    if (!bytes || fread(bytes, 1, *length, file) != *length) fail(path, "cannot be read");
    fclose(file);
    return bytes;
}

static void open_case(policy_case *c, const char *path) {
    size_t length;
    void *bytes = read_whole(path, &length);
    hg_sizes sizes = {.seats = PLACES, .budgets = 16384, .buckets = 16384, .patterns = 1024,
                      .policy_bytes = (uint32_t)((length + 4095) / 4096 * 4096)};
    size_t room = hg_region_bytes(&sizes);
    if (room == 0) fail(path, "the sizes are not sound");
    c->region = aligned_alloc(64, (room + 63) / 64 * 64);
    if (!c->region) fail(path, "no memory");
    memset(c->region, 0, room);
    const char *fault = hg_region_init(c->region, room, &sizes, 2000, 100, clock_ns, 1);
    if (!fault) fault = hg_publish(c->region, bytes, length, true, 1);
    if (fault) fail(path, fault);
    free(bytes);
}

static hg_statement statement_of(const char *text) {
    return (hg_statement){.text = text, .length = strlen(text), .dialect = HG_POSTGRES, .query_id = 42};
}

static void match(const policy_case *c, const hg_policy *policy, const hg_statement *statement) {
    hg_match(policy, &c->session, statement, 1, -1, &tags, &matches);
}

static void decide(policy_case *c, const hg_statement *statement) {
    static hg_answer answer;
    static hg_holding holding;
    hg_ask ask = {.now_ns = clock_ns, .wall_ms = 1, .plan_cost = 8.31, .pattern = 4711,
                  .query_id = 42, .database = 5, .workers = 1};
    const hg_policy *policy = hg_enter(c->region, 3);
    if (!policy) fail("enter", "there is no policy");
    match(c, policy, statement);
    hg_take(c->region, policy, &matches, &ask, &answer, &holding);
    if (answer.verdict != HG_RUN) fail("take", "a statement was blocked");
    hg_settle(c->region, &holding, 30000, false, clock_ns);
    hg_leave(c->region, 3);
    clock_ns += 100000;
}

static double time_of(policy_case *c, int kind, int calls) {
    static hg_statement statements[VARIED];
    if (!statements[0].text)
        for (int i = 0; i < VARIED; i++) statements[i] = statement_of(texts[i]);
    const hg_policy *policy = hg_enter(c->region, 3);
    bool varied = kind == MATCH_VARIED || kind == DECIDE_VARIED;
    double began = now_ns();
    for (int i = 0; i < calls; i++) {
        const hg_statement *statement = &statements[varied ? i % VARIED : 0];
        if (kind == RESOLVE) hg_session_resolve(policy, &client, &c->session);
        else if (kind == MATCH || kind == MATCH_VARIED) match(c, policy, statement);
        else decide(c, statement);
    }
    double took = (now_ns() - began) / calls;
    hg_leave(c->region, 3);
    return took;
}

static void look(policy_case *c) {
    hg_statement statement = statement_of(texts[0]);
    const hg_policy *policy = hg_enter(c->region, 3);
    hg_session_resolve(policy, &client, &c->session);
    match(c, policy, &statement);
    c->budgets = matches.count;
    c->probes = matches.probes;
    hg_leave(c->region, 3);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(policy_case *c, const char *path, int rounds) {
    printf("{\"policy\": \"%s\", \"budgets\": %u, \"probes\": %u", path, c->budgets, c->probes);
    for (int kind = 0; kind < KINDS; kind++) {
        qsort(c->ns[kind], (size_t)rounds, sizeof(double), by_size);
        printf(", \"%s\": %.2f", NAMES[kind], c->ns[kind][rounds / 2]);
    }
    printf("}\n");
}

int main(int argc, char **argv) {
    static policy_case cases[MAX_POLICIES];
    int count = argc - 3;
    if (count < 1 || count > MAX_POLICIES) fail("usage", "pg_decision ROUNDS CALLS POLICY...");
    int rounds = atoi(argv[1]), calls = atoi(argv[2]);
    if (rounds < 1 || rounds > MAX_ROUNDS || calls < 1) fail("usage", "ROUNDS or CALLS");
    write_texts();
    for (int i = 0; i < count; i++) {
        open_case(&cases[i], argv[3 + i]);
        look(&cases[i]);
    }
    for (int round = 0; round < rounds; round++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int i = 0; i < count; i++) cases[i].ns[kind][round] = time_of(&cases[i], kind, calls);
    for (int i = 0; i < count; i++) print(&cases[i], argv[3 + i], rounds);
    return 0;
}
