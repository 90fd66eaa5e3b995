/* Policies as text, changed: a fault in words, or a policy that is sound. */
#include "fuzz.h"
#include "policies.h"

static unsigned long made;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* off its alignment, and with nothing behind it */
    void *out = malloc(size / 4 * 3);
    size_t length;

    memcpy(text + 1, data, size);
    if (hg_policy_decode(text + 1, size, out, &length) == NULL) {
        assert(length <= size / 4 * 3 && hg_policy_check(out, length) == NULL);
        made++;
    }
    free(out);
    free(text);
    return 0;
}

#ifndef HG_LIBFUZZER
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static size_t encode(const uint8_t *bytes, size_t length, char *out)
{
    char *at = out;

    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        uint32_t bits = (uint32_t) bytes[i] << 16 | (left > 1 ? (uint32_t) bytes[i + 1] << 8 : 0)
                        | (left > 2 ? bytes[i + 2] : 0);

        *at++ = digits[bits >> 18];
        *at++ = digits[bits >> 12 & 63];
        *at++ = left > 1 ? digits[bits >> 6 & 63] : '=';
        *at++ = left > 2 ? digits[bits & 63] : '=';
    }
    return (size_t) (at - out);
}

/* Whatever the bytes are, their text says them again. */
static void test_any_bytes(void)
{
    uint8_t bytes[64], out[64];
    char text[88];
    size_t length = below(sizeof bytes), decoded = 0;

    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t) dice();
    hg_policy_decode(text, encode(bytes, length, text), out, &decoded);
    assert(decoded == length && memcmp(bytes, out, length) == 0);
}

static size_t mutate(char *text, size_t length)
{
    size_t at = below(length);

    if (below(4) == 0)
        return below(length + 1);
    if (below(4) == 0) {
        memmove(text + at, text + at + 1, length - at - 1);
        return length - 1;
    }
    text[at] = below(2) ? digits[below(64)] : (char) (below(2) ? '=' : dice());
    return length;
}

int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    compiled one = sound("{'budgets':[{'name':'etl','rate':20,'capacity':200,'rules':"
                         "[{'match':{'username':'etl','tag.x':'y'},'each':['database']}]}]}");
    char *text = malloc(one.length * 2), *changed = malloc(one.length * 2);
    size_t length = encode((const uint8_t *) one.policy, one.length, text);

    while (left-- > 0) {
        size_t now = length;

        memcpy(changed, text, length);
        for (size_t edits = below(4); edits > 0 && now > 0; edits--)
            now = mutate(changed, now);
        LLVMFuzzerTestOneInput((const uint8_t *) changed, now);
        test_any_bytes();
    }
    printf("fuzz_encoded: %lu were policies\n", made);
    free(text);
    free(changed);
    free(one.policy);
    return 0;
}
#endif
