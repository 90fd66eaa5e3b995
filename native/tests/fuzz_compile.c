/* Mutated documents: a fault in words, or a policy that is sound. */
#include "fuzz.h"
#include "policies.h"

#ifndef HG_LIBFUZZER
static const char document[] =
    "{\"policy\":{\"health_unknown\":\"unhealthy\",\"exempt_usernames\":[\"root\"]},\"budgets\":["
    "{\"name\":\"etl\",\"mode\":\"enforce\",\"rate\":20.5,\"capacity\":200,\"burst\":1e2,"
    "\"concurrency\":10,\"warning_threshold\":80,\"when\":\"unhealthy\",\"in_transaction\":true,"
    "\"max_delay_s\":0.25,\"penalty_s\":0.02,\"max_delayed\":8,\"epoch\":1,"
    "\"expires_at\":\"2026-11-16T09:00:00.5+01:00\",\"comment\":\"INC-7 \\u00e9\\ud83d\\ude00\","
    "\"rules\":[{\"match\":{\"username\":\"etl\",\"tag.controller\":\"export\","
    "\"remote_address\":\"10.0.0.0/8\",\"query\":\"-12\",\"fingerprint\":\"0123456789abcdef\"},"
    "\"each\":[\"tag.tenant\",\"database\"]},{\"match\":{\"remote_address\":\"2001:db8::/32\"}},{}]},"
    "{\"name\":\"b\",\"mode\":\"off\",\"max_workers\":null,\"expires_at\":1794819600}]}";

static const char *const tokens[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u12", "\\ud800", "null", "true", "1", "-", "1e999",
    "0.0001", "\"tag.x\"", "\"query\":1,", "{},", "\"\"", "99999999999999999999", "\"rules\":[",
    "\xff", "\xe2\x82", "\"::1/64\"", "{\"name\":\"n\"},", "\"name\":", "\"9999-12-31T23:59:59Z\""};

static size_t mutate(char *json, size_t length, size_t room)
{
    for (size_t i = below(4) == 0 ? 4 : 1; i > 0; i--) {
        const char *token = tokens[below(sizeof tokens / sizeof *tokens)];
        size_t at = below(length + 1);
        size_t most = length - at < 12 ? length - at : 12;
        size_t gone = below(2) == 0 ? 0 : below(most + 1);
        size_t put = below(3) == 0 ? 0 : strlen(token);

        if (length - gone + put > room)
            continue;
        memmove(json + at + put, json + at + gone, length - at - gone);
        memcpy(json + at, token, put);
        length = length - gone + put;
        if (below(8) == 0 && length > 0)
            json[below(length)] = (char) dice();
    }
    return length;
}
#endif

static unsigned long made;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + 1); /* off its alignment, and with nothing behind it */
    compiled one;

    memcpy(copy + 1, data, size);
    one = compile_bytes(copy + 1, size);
    if (one.policy != NULL) {
        hg_who who = from4("etl", 10, 1, 1, 1);

        made++;
        assert(hg_policy_check(one.policy, one.length) == NULL);
        match_text(one.policy, &who, "select 1 /*controller='export',tenant='a'*/", 0, 0);
        free(one.policy);
    } else {
        assert(one.error[0] != '\0');
    }
    free(copy);
    return 0;
}

#ifndef HG_LIBFUZZER
int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    size_t whole = sizeof document - 1;
    char json[sizeof document + 256];

    while (left-- > 0) {
        memcpy(json, document, whole);
        LLVMFuzzerTestOneInput((const uint8_t *) json,
                               mutate(json, below(20) == 0 ? below(whole) : whole, sizeof json));
    }
    printf("fuzz_compile: %lu documents are policies\n", made);
    return 0;
}
#endif
