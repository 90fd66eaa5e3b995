/*
 * Mutated policies with a right checksum: the check rejects them, or whatever it lets through is
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

static void sign_policy(hg_policy *policy, size_t length)
{
    memcpy(policy->magic, HG_POLICY_MAGIC, 8);
    policy->format = HG_POLICY_FORMAT;
    policy->length = length;
    policy->crc = 0;
    policy->crc = hg_crc32(0, policy, length);
}

static unsigned long match_all(const hg_policy *policy)
{
    static const char *const texts[] = {"select 1", "select 1 /*x='y',t='z',a=1,b=2,c=3*/"};
    hg_client client = {
        .username = below(2) ? "etl" : "root", .database = "d", .application_name = ""};
    unsigned long count = 0;

    for (uint8_t family = 0; family <= 6; family = (uint8_t) (family == 0 ? 4 : family + 2)) {
        client.family = family;
        memcpy(client.address, below(2) ? "\x0a\x01\x01\x01" : "\0\0\0\0", 4);
        for (int health = -1; health < 2; health++)
            count
                += match_text(policy, &client, texts[below(2)], (int64_t) below(10), health).count;
    }
    return count;
}

static compiled all[3];
static unsigned long passed, matched;

static void compile_all(void)
{
    for (size_t i = 0; i < 3; i++)
        all[i] = sound(documents[i]);
}

/* Which of the policies, then what is changed in it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const compiled *from;
    hg_policy *policy;

    if (all[0].policy == NULL)
        compile_all();
    if (size == 0)
        return 0;
    from = &all[data[0] % 3];
    policy = malloc(from->length);
    memcpy(policy, from->policy, from->length);
    apply_edits(policy, from->length, data + 1, size - 1);
    sign_policy(policy, from->length);
    dice_state = size;
    if (hg_policy_check(policy, from->length) == NULL) {
        passed++;
        matched += match_all(policy);
    }
    free(policy);
    return 0;
}

#ifndef HG_LIBFUZZER
static uint32_t value_of(const uint32_t *words, uint32_t at, size_t count)
{
    switch (below(5)) {
    case 0:
        return words[at] ^ 1u << below(32);
    case 1:
        return edge();
    case 2:
        return words[at] + (uint32_t) below(9) - 4;
    case 3:
        return words[below(count)];
    default:
        return (uint32_t) below(count * 4);
    }
}

int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    uint64_t seed = dice_state;

    compile_all();
    while (left-- > 0) {
        uint8_t input[1 + 4 * EDIT_BYTES] = {0};
        size_t edits = 1 + below(4);
        const compiled *from;

        dice_state = seed++ * UINT64_C(1000003);
        input[0] = (uint8_t) below(3);
        from = &all[input[0]];
        for (size_t i = 0; i < edits; i++) {
            size_t count = from->length / 4;
            uint32_t at = (uint32_t) (below(2) ? below(34)
                                               : below(count)); /* the head has 34 words */

            put_edit(input + 1 + i * EDIT_BYTES, at,
                     value_of((const uint32_t *) from->policy, at, count));
        }
        LLVMFuzzerTestOneInput(input, 1 + edits * EDIT_BYTES);
    }
    printf("fuzz_policy: %lu passed the check, %lu matches\n", passed, matched);
    for (size_t i = 0; i < 3; i++)
        free(all[i].policy);
    return 0;
}
#endif
