/* Which budgets a statement falls under (R116–R121). */
#include "policies.h"

static void test_one_probe_per_pair(void)
{
    compiled one = sound("{'budgets':[{'name':'a','rules':[{'match':{'username':'etl'}}]},"
                         "{'name':'b','rules':[{'match':{'tag.job':'x','username':'etl'}}]},"
                         "{'name':'c','rules':[{'match':{'application_name':'web'}}]}]}");
    hg_client client = {.username = "etl", .application_name = "web"};
    hg_matches found = match_text(one.policy, &client, "select 1 /*job='x'*/", 0, -1);

    assert(found.count == 3 && found.probes == 3);
    assert(found.at[0].budget == 0 && found.at[1].budget == 1 && found.at[2].budget == 2);
    assert(found.at[0].label_length == 0);
    found = match_text(one.policy, &client, "select 1 /*job='y'*/", 0, -1);
    assert(found.count == 2 && found.at[1].budget == 2);
    client.username = "ETL";
    found = match_text(one.policy, &client, "select 1 /*job='x'*/", 0, -1);
    assert(found.count == 1 && found.at[0].budget == 2);
    free(one.policy);
}

/* R149: what the caller has left out of the tags is not there, whatever the text says. */
static void test_tags_that_are_given_are_the_only_ones(void)
{
    compiled one = sound("{'budgets':[{'name':'a','rules':[{'match':{'tag.job':'x'}}]},"
                         "{'name':'b','rules':[{'each':['tag.tenant']}]}]}");
    const char *text = "select 1 /*job='x',tenant='acme'*/";
    hg_statement statement = {.text = text, .length = strlen(text)};
    hg_client client = {.username = "etl"};
    hg_session session;
    hg_matches read, given;
    static hg_tags tags;

    hg_session_resolve(one.policy, &client, &session);
    hg_match(one.policy, &session, &statement, 0, -1, &tags, &read);
    hg_match_tags(one.policy, &session, &statement, 0, -1, &tags, &given);
    assert(read.count == 2 && given.count == 2 && read.at[1].bucket == given.at[1].bucket);
    tags.count = 1; /* job alone */
    hg_match_tags(one.policy, &session, &statement, 0, -1, &tags, &given);
    assert(given.count == 1 && given.at[0].budget == 0);
    hg_match_tags(one.policy, &session, &statement, 0, -1, NULL, &given);
    assert(given.count == 0);
    free(one.policy);
}

static void test_longest_prefix_wins(void)
{
    compiled one = sound(
        "{'budgets':[{'name':'wide','rules':[{'match':{'remote_address':'10.0.0.0/8'}}]},"
        "{'name':'near','rules':[{'match':{'remote_address':'10.1.0.0/16','username':'etl'}}]},"
        "{'name':'gone','expires_at':1,'rules':[{'match':{'remote_address':'10.1.1.0/24'}}]},"
        "{'name':'any','rules':[{}]},"
        "{'name':'six','rules':[{'match':{'remote_address':'::/0'}}]}]}");
    hg_client client = from4("etl", 10, 1, 1, 1);
    hg_matches found = match_text(one.policy, &client, "select 1", 500, -1);

    assert(found.count == 2 && found.at[0].budget == 2 && found.at[1].budget == 3);
    found = match_text(one.policy, &client, "select 1", 1000, -1); /* expired: hides nobody */
    assert(found.count == 2 && found.at[0].budget == 1 && found.at[1].budget == 3);
    client = from4("other", 10, 1, 1, 1);
    found = match_text(one.policy, &client, "select 1", 1000, -1);
    assert(found.count == 2 && found.at[0].budget == 0);
    client.family = 0;
    found = match_text(one.policy, &client, "select 1", 1000, -1);
    assert(found.count == 1 && found.at[0].budget == 3);
    client.family = 6;
    found = match_text(one.policy, &client, "select 1", 1000, -1);
    assert(found.count == 2 && found.at[1].budget == 4);
    free(one.policy);
}

static void test_every_length_of_mask_at_once(void)
{
    static char text[65536];
    size_t at = (size_t) sprintf(text, "{'budgets':[");
    hg_client client = {.username = "u", .family = 6};
    compiled one;
    hg_matches found;

    for (int bits = 0; bits <= 128; bits++)
        at += (size_t) sprintf(text + at,
                               "%s{'name':'b%d','rules':[{'match':{'remote_address':'::/%d'}}]}",
                               bits == 0 ? "" : ",", bits, bits);
    strcpy(text + at, "]}");
    one = sound(text);
    found = match_text(one.policy, &client, "select 1", 0, -1);
    assert(found.count == 1 && found.at[0].budget == 128 && found.probes == 129);
    client.address[15] = 1;
    found = match_text(one.policy, &client, "select 1", 0, -1);
    assert(found.count == 1 && found.at[0].budget == 127);
    free(one.policy);
}

static void test_each_value_its_bucket(void)
{
    compiled one = sound("{'budgets':[{'name':'a','rules':[{'each':['tag.tenant','username']},"
                         "{'each':['username','tag.tenant']},{'match':{'username':'etl'}}]},"
                         "{'name':'b','rules':[{'each':['remote_address']},{'each':['query']}]}]}");
    hg_client client = from4("etl", 10, 1, 1, 1);
    hg_matches found = match_text(one.policy, &client, "select 1 /*tenant='acme'*/", 0, -1);
    uint64_t acme = found.at[0].bucket;

    assert(found.count == 3); /* the two orders are one bucket */
    assert(found.at[0].label_length == 24
           && memcmp(found.at[0].label, "username=etl,tenant=acme", 24) == 0);
    assert(found.at[1].label_length == 0 && found.at[1].rule == 2);
    assert(found.at[1].bucket == hg_hash(2, "a", 1));
    assert(memcmp(found.at[2].label, "remote_address=10.1.1.1", 23) == 0);
    found = match_text(one.policy, &client, "select 1 /*tenant='other'*/", 0, -1);
    assert(found.count == 3 && found.at[0].bucket != acme);
    found = match_text(one.policy, &client, "select 1", 0, -1);
    assert(found.count == 2);
    free(one.policy);
}

static void test_rest_and_exemption(void)
{
    const char *text = "{'policy':{'health_unknown':'%s','exempt_usernames':['root']},'budgets':"
                       "[{'name':'a','when':'unhealthy','rules':[{}]}]}";
    hg_client root = {.username = "root"};
    hg_client user = {.username = "user"};
    char document[512];

    for (int bites = 0; bites < 2; bites++) {
        compiled one;
        hg_session session;

        snprintf(document, sizeof document, text, bites ? "unhealthy" : "healthy");
        one = sound(document);
        assert(match_text(one.policy, &user, "select 1", 0, 0).count == 1);
        assert(match_text(one.policy, &user, "select 1", 0, 1).count == 0);
        assert(match_text(one.policy, &user, "select 1", 0, -1).count == (uint32_t) bites);
        assert(match_text(one.policy, &root, "select 1", 0, 0).count == 0);
        hg_session_resolve(one.policy, &root, &session);
        assert(session.exempt && !session.may_match);
        free(one.policy);
    }
}

/* No statement of this session can match: nothing is read, nothing is looked up. */
static void test_session_without_rules(void)
{
    compiled one = sound("{'budgets':[{'name':'a','rules':[{'match':{'username':'etl',"
                         "'tag.x':'y','query':1,'fingerprint':'0123456789abcdef'}}]}]}");
    hg_client client = {.username = "web"};
    hg_session session;

    hg_session_resolve(one.policy, &client, &session);
    assert(!session.may_match && !session.needs_tags && !session.needs_query);
    client.username = "etl";
    hg_session_resolve(one.policy, &client, &session);
    assert(session.may_match && session.needs_tags && session.needs_query
           && session.needs_fingerprint);
    one.policy->flags |= HG_POLICY_OFF;
    hg_session_resolve(one.policy, &client, &session);
    assert(!session.may_match);
    free(one.policy);
}

/* The first 32 in the order of the document; the others are counted. */
static void test_more_than_fit(void)
{
    static char text[65536];
    size_t at = (size_t) sprintf(text, "{'budgets':[");
    hg_client client = {.username = "u", .database = "d"};
    compiled one;
    hg_matches found;

    for (int i = 0; i < 40; i++)
        at += (size_t) sprintf(text + at, "%s{'name':'b%d','rules':[{'match':{'%s'}},{},{}]}",
                               i == 0 ? "" : ",", i, i % 2 ? "username':'u" : "database':'d");
    strcpy(text + at, "]}");
    one = sound(text);
    found = match_text(one.policy, &client, "select 1", 0, -1);
    assert(found.count == 32 && found.left_out == 8);
    for (uint32_t i = 0; i < 32; i++)
        assert(found.at[i].budget == i && found.at[i].rule == 3 * i);
    free(one.policy);
}

static void test_query_and_fingerprint(void)
{
    compiled one = sound("{'budgets':[{'name':'q','rules':[{'match':{'query':'-2'}}]},"
                         "{'name':'e','rules':[{'each':['fingerprint']}]}]}");
    hg_client client = {.username = "u"};
    hg_session session;
    hg_matches found;
    hg_statement statement = {.text = "select 1", .length = 8, .query_id = UINT64_MAX - 1};

    hg_session_resolve(one.policy, &client, &session);
    hg_match(one.policy, &session, &statement, 0, -1, NULL, &found);
    assert(found.count == 2 && found.at[0].budget == 0 && found.at[1].label_length == 28);
    statement.query_id = 0;
    hg_match(one.policy, &session, &statement, 0, -1, NULL, &found);
    assert(found.count == 1 && found.at[0].budget == 1);
    free(one.policy);
}

int main(void)
{
    test_one_probe_per_pair();
    test_tags_that_are_given_are_the_only_ones();
    test_longest_prefix_wins();
    test_every_length_of_mask_at_once();
    test_each_value_its_bucket();
    test_rest_and_exemption();
    test_session_without_rules();
    test_more_than_fit();
    test_query_and_fingerprint();
    return 0;
}
