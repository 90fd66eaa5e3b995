/*
 * What hg_match costs, hot: best of several rounds, in ns per statement. Ten to ten thousand rules
 * must not differ (R118), and ten lengths of mask may cost twice what one does (R117).
 */
#include <time.h>

#include "policies.h"

#define ROUNDS 300
#define CALLS 1000

static double now_ns(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double) at.tv_sec * 1e9 + (double) at.tv_nsec;
}

/* `rules` that name other tags, users and applications, and a few for the statement below. */
static compiled policy_of(int rules, const char *more)
{
    char *text = malloc((size_t) rules * 96 + 4096);
    size_t at = (size_t) sprintf(text, "{'budgets':[{'name':'first','rules':[%s]}", more);
    compiled one;

    for (int i = 0; i < rules; i++) {
        static const char *const keys[] = {"tag.tenant", "username", "application_name",
                                           "tag.controller"};

        at += (size_t) sprintf(text + at, ",{'name':'b%d','rules':[{'match':{'%s':'v%d'}}]}", i,
                               keys[i % 4], i);
    }
    strcpy(text + at, "]}");
    one = sound(text);
    free(text);
    return one;
}

static void measure(const char *what, const compiled *one, const hg_client *client,
                    const char *text)
{
    static hg_tags tags;
    hg_statement statement = {.text = text, .length = strlen(text)};
    hg_session session;
    hg_matches matches;
    double best = 1e18;
    double resolved;

    resolved = now_ns();
    for (int i = 0; i < 20; i++)
        hg_session_resolve(one->policy, client, &session);
    resolved = (now_ns() - resolved) / 20;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();

        for (int i = 0; i < CALLS; i++) {
            hg_match(one->policy, &session, &statement, 1, 1, &tags, &matches);
            __asm__ volatile("" : : "r"(&matches) : "memory");
        }
        start = (now_ns() - start) / CALLS;
        best = start < best ? start : best;
    }
    printf("%-44s %8.1f ns  %u matches, %u probes; session %.0f ns\n", what, best, matches.count,
           matches.probes, resolved);
}

static const char plain[]
    = "SELECT o.id, o.total, c.name FROM orders o JOIN customers c ON c.id = o.customer_id "
      "WHERE o.state = $1 AND o.created_at > $2 ORDER BY o.created_at DESC LIMIT 50";
static const char tagged[]
    = "SELECT o.id, o.total, c.name FROM orders o JOIN customers c ON c.id = o.customer_id "
      "WHERE o.state = $1 AND o.created_at > $2 ORDER BY o.created_at DESC LIMIT 50 "
      "/*controller='orders',tenant='acme',action='index'*/";
static const char quoted[]
    = "SELECT \"o\".\"id\", \"o\".\"total\" FROM \"orders\" \"o\" WHERE \"o\".\"state\" = 'open' "
      "AND \"o\".\"created_at\" > '2026-01-01' ORDER BY \"o\".\"created_at\" DESC LIMIT 50 "
      "/*controller='orders',tenant='acme',action='index'*/";

static void by_rules(int rules)
{
    hg_client client = from4("web", 10, 1, 2, 3);
    compiled none = policy_of(rules, "{'match':{'username':'nobody'}}");
    compiled three = policy_of(rules, "{'match':{'tag.controller':'orders'},'each':['tag.tenant']},"
                                      "{'match':{'tag.action':'index','username':'web'},"
                                      "'each':['username']},{'match':{'tag.tenant':'acme'}}");
    char what[64];

    snprintf(what, sizeof what, "%d rules, none matches, no comment", rules);
    measure(what, &none, &client, plain);
    snprintf(what, sizeof what, "%d rules, none matches, 3 tags", rules);
    measure(what, &none, &client, tagged);
    snprintf(what, sizeof what, "%d rules, 3 match, 3 tags", rules);
    measure(what, &three, &client, tagged);
    snprintf(what, sizeof what, "%d rules, 3 match, 3 tags, quoted names", rules);
    measure(what, &three, &client, quoted);
    free(none.policy);
    free(three.policy);
}

/* Users alone: nothing is left for a session that none of them is. */
static void by_users(int rules)
{
    hg_client client = {.username = "web"};
    char *text = malloc((size_t) rules * 80 + 64);
    size_t at = (size_t) sprintf(text, "{'budgets':[");
    char what[64];
    compiled one;

    for (int i = 0; i < rules; i++)
        at += (size_t) sprintf(text + at, "%s{'name':'b%d','rules':[{'match':{'username':'v%d'}}]}",
                               i == 0 ? "" : ",", i, i);
    strcpy(text + at, "]}");
    one = sound(text);
    snprintf(what, sizeof what, "%d rules, none applies to the session", rules);
    measure(what, &one, &client, tagged);
    free(one.policy);
    free(text);
}

/* Each request from another address, as behind a balancer: resolving is part of it. */
static void by_masks(int masks)
{
    hg_client client = from4("web", 10, 1, 2, 3);
    char text[4096];
    size_t at = (size_t) sprintf(text, "{'budgets':[{'name':'a','rules':[");
    hg_session session;
    hg_matches matches;
    hg_statement statement = {.text = plain, .length = sizeof plain - 1};
    double best = 1e18;
    compiled one;

    for (int i = 0; i < masks; i++)
        at += (size_t) sprintf(text + at, "%s{'match':{'remote_address':'%s/%d'}}",
                               i == 0 ? "" : ",", i == 0 ? "10.0.0.0" : "192.168.0.0",
                               i == 0 ? 8 : 16 + i);
    strcpy(text + at, "]}]}");
    one = sound(text);
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();

        for (int i = 0; i < CALLS; i++) {
            hg_session_resolve(one.policy, &client, &session);
            hg_match(one.policy, &session, &statement, 1, 1, NULL, &matches);
            __asm__ volatile("" : : "r"(&matches) : "memory");
        }
        start = (now_ns() - start) / CALLS;
        best = start < best ? start : best;
    }
    printf("%2d lengths of mask, resolve and match %17.1f ns  %u matches, %u probes\n", masks, best,
           matches.count, matches.probes);
    free(one.policy);
}

int main(void)
{
    by_rules(0);
    by_rules(10);
    by_rules(100);
    by_rules(10000);
    by_users(10000);
    by_masks(1);
    by_masks(10);
    return 0;
}
