/* Bytes that are no sound policy are distinguished from those that are, and nothing outside is read. */
#include "policies.h"

static const char document[]
    = "{'policy':{'exempt_usernames':['root']},'budgets':["
      "{'name':'a','expires_at':5,'rules':[{'match':{'username':'etl','tag.x':'y'}},{}]},"
      "{'name':'b','when':'unhealthy','rules':[{'match':{'remote_address':'10.0.0.0/8'},"
      "'each':['tag.t','query']},{'each':['tag.x']}]}]}";

static void sign_policy(hg_policy *policy)
{
    policy->crc = 0;
    policy->crc = hg_crc32(0, policy, policy->length);
}

static void test_cut_anywhere(void)
{
    compiled one = sound(document);

    for (size_t length = 0; length < one.length; length++) {
        char *part = malloc(length + 1);

        memcpy(part, one.policy, length);
        assert(hg_policy_check(part, length) != NULL);
        free(part);
    }
    free(one.policy);
}

static void test_any_bit_flipped(void)
{
    compiled one = sound(document);
    unsigned char *bytes = (unsigned char *) one.policy;

    for (size_t bit = 0; bit < one.length * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char) (1u << bit % 8);
        assert(hg_policy_check(one.policy, one.length) != NULL);
        bytes[bit / 8] ^= (unsigned char) (1u << bit % 8);
    }
    free(one.policy);
}

/* The checksum is right, what it sums is not. */
#define WRONG(statement)                                                                           \
    do {                                                                                           \
        compiled one = sound(document);                                                            \
        hg_policy *policy = one.policy;                                                            \
        char *base = (char *) policy;                                                              \
        (void) base;                                                                               \
        statement;                                                                                 \
        sign_policy(policy);                                                                       \
        assert(hg_policy_check(policy, one.length) != NULL);                                       \
        free(policy);                                                                              \
    } while (0)

#define RECORD(type, section, index) ((type *) (base + policy->section.offset) + (index))

static void test_wrong_inside(void)
{
    WRONG(policy->rules.count = UINT32_MAX);
    WRONG(policy->rules.offset = UINT32_MAX - 7);
    WRONG(policy->strings.count += 9);
    WRONG(policy->keys.count = 5);
    WRONG(policy->slots.count -= 1);
    WRONG(policy->slots.count = 0);
    WRONG(policy->system_keys ^= 1);
    WRONG(policy->flags ^= HG_POLICY_EXPIRES);
    WRONG(policy->flags |= 64);
    WRONG(RECORD(hg_budget, budgets, 0)->key = 0);
    WRONG(RECORD(hg_budget, budgets, 0)->name.offset = UINT32_MAX);
    WRONG(RECORD(hg_budget, budgets, 0)->mode = HG_MODE_OFF);
    WRONG(RECORD(hg_budget, budgets, 0)->rate_mpct = 100001);
    WRONG(RECORD(hg_rule, rules, 0)->budget = 2);
    WRONG(RECORD(hg_rule, rules, 0)->first_condition = UINT32_MAX);
    WRONG(RECORD(hg_rule, rules, 0)->conditions = 17);
    WRONG(RECORD(hg_rule, rules, 2)->prefix = 0);
    WRONG(RECORD(hg_rule, rules, 3)->first_each = 3);
    WRONG(*RECORD(uint32_t, conditions, 0) = 3);
    WRONG(*RECORD(uint32_t, eaches, 0) = 99);
    WRONG(*RECORD(uint32_t, candidates, 0) = 99);
    WRONG(*RECORD(uint32_t, candidates, 0) = 1);
    WRONG(*RECORD(uint32_t, always, 0) = 0);
    WRONG(RECORD(hg_pair, pairs, 0)->key = 99);
    WRONG(RECORD(hg_pair, pairs, 0)->hash ^= 1);
    WRONG(RECORD(hg_pair, pairs, 0)->value.length = UINT32_MAX);
    WRONG(RECORD(hg_pair, pairs, 2)->prefix = 0);
    WRONG(RECORD(hg_pair, pairs, 0)->candidates = UINT32_MAX);
    WRONG(RECORD(hg_key, keys, 6)->first_candidate = UINT32_MAX);
    WRONG(RECORD(hg_key, keys, 6)->hash ^= 1);
    WRONG(RECORD(hg_mask, masks, 0)->bits = 33);
    WRONG(RECORD(hg_mask, masks, 0)->bits = 7);
    WRONG(RECORD(hg_string, exempt, 0)->offset = UINT32_MAX);
    WRONG(memset(base + policy->slots.offset, 0, 8 * policy->slots.count));
    for (uint32_t slot = 0; slot < 8; slot++)
        WRONG(RECORD(hg_slot, slots, slot)->pair = RECORD(hg_slot, slots, slot)->pair + 1);
}

static void test_empty_is_sound(void)
{
    compiled one = sound("{}");
    hg_client client = {.username = "u"};

    assert(match_text(one.policy, &client, "select 1 /*a='b'*/", 0, 0).count == 0);
    free(one.policy);
}

/* What is not the text of a policy is distinguished from what is; that policies come out whole, every test here shows. */
static void test_texts(void)
{
    static const char *const wrong[] = {
        "",   "SEdQ", "SEdQT0xJQ1k=", "SEd",  "SEdQT0x*",        "=",
        "==", "====", "SE=Q",         "SEd=", "{\"budgets\":[]}"};
    _Alignas(8) char out[32];
    size_t length;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert(hg_policy_decode(wrong[i], strlen(wrong[i]), out, &length) != NULL);
    assert(strstr(hg_policy_decode("{}", 2, out, &length), "JSON") != NULL);
    assert(strstr(hg_policy_decode("SEd", 3, out, &length), "base64") != NULL);
    assert(strstr(hg_policy_decode("SEd=", 4, out, &length), "base64") != NULL);
}

int main(void)
{
    test_cut_anywhere();
    test_any_bit_flipped();
    test_wrong_inside();
    test_empty_is_sound();
    test_texts();
    return 0;
}
