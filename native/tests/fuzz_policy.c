/*
 * Mutated policies with a right checksum: the check refuses them, or whatever it lets through is
 * matched without a step outside of its bytes.
 */
#include "fuzz.h"
#include "policies.h"

static const char *const documents[] = {
    "{}",
    "{'policy':{'exempt_usernames':['root','r2']},'budgets':["
    "{'name':'a','expires_at':5,'rules':[{'match':{'username':'etl','tag.x':'y'}},{}]},"
    "{'name':'b','when':'unhealthy','rules':[{'match':{'remote_address':'10.0.0.0/8'},"
    "'each':['tag.t','query']},{'each':['tag.x']}]}]}",
    "{'budgets':[{'name':'c','rules':[{'match':{'remote_address':'10.1.1.1'}},"
    "{'match':{'remote_address':'::/0','database':'d'}},{'match':{'query':5}},"
    "{'match':{'fingerprint':'0123456789abcdef'}},{'each':['username']},{'each':['fingerprint']},"
    "{'match':{'application_name':'','tag.a':'1','tag.b':'2','tag.c':'3'}},"
    "{'each':['username','database','application_name','remote_address']}]}]}"};

static void mutate(hg_policy *policy, size_t length)
{
    uint32_t *words = (uint32_t *) policy;
    size_t count = length / 4;

    for (size_t i = 1 + below(4); i > 0; i--) {
        size_t at = below(2) ? below(34) : below(count); /* the head has 34 words */

        switch (below(5)) {
        case 0:
            words[at] ^= 1u << below(32);
            break;
        case 1:
            words[at] = edge();
            break;
        case 2:
            words[at] += (uint32_t) below(9) - 4;
            break;
        case 3:
            words[at] = words[below(count)];
            break;
        default:
            words[at] = (uint32_t) below(length);
        }
    }
    memcpy(policy->magic, HG_POLICY_MAGIC, 8);
    policy->format = HG_POLICY_FORMAT;
    policy->length = length;
    policy->crc = 0;
    policy->crc = hg_crc32(0, policy, length);
}

static unsigned long match_all(const hg_policy *policy)
{
    static const char *const texts[] = {"select 1", "select 1 /*x='y',t='z',a=1,b=2,c=3*/"};
    hg_who who = {.username = below(2) ? "etl" : "root", .database = "d", .application_name = ""};
    unsigned long count = 0;

    for (uint8_t family = 0; family <= 6; family = (uint8_t) (family == 0 ? 4 : family + 2)) {
        who.family = family;
        memcpy(who.address, below(2) ? "\x0a\x01\x01\x01" : "\0\0\0\0", 4);
        for (int health = -1; health < 2; health++)
            count += match_text(policy, &who, texts[below(2)], (int64_t) below(10), health).count;
    }
    return count;
}

int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    unsigned long passed = 0;
    unsigned long matched = 0;
    compiled all[3];

    for (size_t i = 0; i < 3; i++)
        all[i] = sound(documents[i]);
    while (left-- > 0) {
        compiled *from = &all[below(3)];
        hg_policy *policy = malloc(from->length);

        memcpy(policy, from->policy, from->length);
        mutate(policy, from->length);
        if (hg_policy_check(policy, from->length) == NULL) {
            passed++;
            matched += match_all(policy);
        }
        free(policy);
    }
    printf("fuzz_policy: %lu passed the check, %lu matches\n", passed, matched);
    for (size_t i = 0; i < 3; i++)
        free(all[i].policy);
    return 0;
}
