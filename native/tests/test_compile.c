/* Documents and what is wrong with them. That the bytes are Python's is tested from Python. */
#include "policies.h"

static void refused(const char *text, const char *words)
{
    compiled one = compile_text(text);

    if (one.policy != NULL || strcmp(one.error, words) != 0)
        fprintf(stderr, "%s\n  %s\n", text, one.error);
    assert(one.policy == NULL && strcmp(one.error, words) == 0);
}

static void test_faults_name_their_place(void)
{
    refused("{'budgets':[{'name':'a'},{'name':'b'},{'name':'c','rate':120}]}",
            "budgets[2].rate: 120 is more than 100");
    refused("{'budgets':[{'name':'a','rat':1}]}",
            "budgets[0].rat: unknown setting 'rat'; did you mean 'rate'?");
    refused("{'budgets':[{'name':'a','rate':1.0005}]}",
            "budgets[0].rate: 1.0005 is finer than a thousandth; round it");
    refused("{'budgets':[{'rate':1}]}",
            "budgets[0].name: is missing: a budget is known by its name");
    refused("{'budgets':[{'name':'a'},{'name':'a'}]}",
            "budgets[1].name: 'a' is the name of budgets[0] as well: a budget is known by its name");
    refused("{'budgets':[{'name':'a','rules':[{},{'match':{'user':'x'}}]}]}",
            "budgets[0].rules[1].match.user: unknown key 'user'; did you mean 'username'?");
    refused("{'budgets':[{'name':'a','rules':[{'match':{'remote_address':'10.0.0.1/8'}}]}]}",
            "budgets[0].rules[0].match.remote_address: is '10.0.0.1/8', which has bits beyond its "
            "prefix; write 10.0.0.0/8");
    refused("{'budgets':[{'name':'a','name':'b'}]}", "budgets[0].name: is given twice");
    refused("{'budgets':", "is not JSON, at byte 11: a value is missing");
}

static const hg_budget *budget_of(const compiled *one)
{
    return (const hg_budget *) ((const char *) one->policy + one->policy->budgets.offset);
}

static void test_times(void)
{
    compiled one = sound("{'budgets':[{'name':'a','expires_at':'2026-11-16T10:00:00.5+01:00'}]}");

    assert(budget_of(&one)->expires_at_ms == INT64_C(1794819600500));
    free(one.policy);
    one = sound("{'budgets':[{'name':'a','expires_at':1794819600}]}");
    assert(budget_of(&one)->expires_at_ms == INT64_C(1794819600000));
    assert(one.policy->flags == HG_POLICY_EXPIRES);
    free(one.policy);
}

static void test_limits(void)
{
    compiled one = sound("{'budgets':[{'name':'off','mode':'off','rules':[{'each':['tag.gone']}]},"
                         "{'name':'a','mode':'enforce','rate':0,'capacity':0.001,'burst':null,"
                         "'max_workers':3,'warning_threshold':80,'max_delay_s':1.5,"
                         "'in_transaction':true}]}");
    const hg_budget *budget = budget_of(&one);

    assert(one.policy->budgets.count == 1 && one.policy->keys.count == HG_SYSTEM_KEYS);
    assert(budget->set == (HG_SET_RATE | HG_SET_CAPACITY | HG_SET_MAX_WORKERS | HG_SET_WARNING));
    assert(budget->rate_mpct == 0 && budget->capacity_mpcts == 1 && budget->max_workers == 3);
    assert(budget->max_delay_ms == 1500 && budget->penalty_ms == 50 && budget->max_delayed == 100);
    assert(budget->mode == HG_MODE_ENFORCE && budget->flags == HG_BUDGET_IN_TRANSACTION);
    free(one.policy);
}

/* With any memory it does its work or says that it cannot. */
static void test_little_memory(void)
{
    const char *json = "{\"budgets\":[{\"name\":\"a\",\"rules\":[{\"match\":{\"tag.x\":\"y\"},"
                       "\"each\":[\"query\"]}]}]}";
    size_t length = strlen(json);
    size_t enough = hg_compile_work_bytes(length);
    _Alignas(8) static char out[4096];
    char error[64];

    for (size_t room = 0; room <= enough; room++) {
        char *work = malloc(room + 1);
        size_t made = hg_compile(json, length, 1, out, sizeof out, work, room, error, sizeof error);

        assert(made == 0 || hg_policy_check(out, made) == NULL);
        assert(room < enough || made > 0);
        free(work);
    }
    for (size_t room = 0; room < 800; room += 8) {
        char *work = malloc(enough);
        char *small = malloc(room + 1);
        size_t made = hg_compile(json, length, 1, small, room, work, enough, error, 0);

        assert(made <= room);
        free(small);
        free(work);
    }
}

int main(void)
{
    test_faults_name_their_place();
    test_times();
    test_limits();
    test_little_memory();
    return 0;
}
