/* policies.h: policies from documents, and statements under them, for the tests of matching. */
#ifndef HEADGATE_TESTS_POLICIES_H
#define HEADGATE_TESTS_POLICIES_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headgate.h"

typedef struct compiled {
    hg_policy *policy; /* NULL: see error */
    size_t length;
    char error[512];
} compiled;

static inline compiled compile_bytes(const char *json, size_t length)
{
    size_t work_length = hg_compile_work_bytes(length);
    void *work = malloc(work_length);
    static _Alignas(8) char out[4u << 20];
    compiled one = {.policy = NULL};

    assert(work != NULL);
    one.length = hg_compile(json, length, 7, out, sizeof out, work, work_length, one.error,
                            sizeof one.error);
    free(work);
    if (one.length == 0)
        return one;
    /* In memory of its very length, so that a step beyond it is seen. */
    one.policy = malloc(one.length);
    assert(one.policy != NULL);
    memcpy(one.policy, out, one.length);
    return one;
}

/* With ' for ". */
static inline compiled compile_text(const char *text)
{
    size_t length = strlen(text);
    char *json = malloc(length + 1);
    compiled one;

    assert(json != NULL);
    for (size_t i = 0; i <= length; i++)
        json[i] = (char) (text[i] == '\'' ? '"' : text[i]);
    one = compile_bytes(json, length);
    free(json);
    return one;
}

static inline compiled sound(const char *text)
{
    compiled one = compile_text(text);

    if (one.policy == NULL)
        fprintf(stderr, "%s\n", one.error);
    assert(one.policy != NULL);
    assert(hg_policy_check(one.policy, one.length) == NULL);
    return one;
}

static inline hg_matches match_text(const hg_policy *policy, const hg_who *who, const char *text,
                                    int64_t wall_ms, int healthy)
{
    static hg_tags tags;
    hg_statement statement = {.text = text, .length = strlen(text), .dialect = HG_POSTGRES};
    hg_session session;
    hg_matches matches;

    hg_session_resolve(policy, who, &session);
    hg_match(policy, &session, &statement, wall_ms, healthy, &tags, &matches);
    return matches;
}

static inline hg_who from4(const char *username, uint8_t a, uint8_t b, uint8_t c, uint8_t d)
{
    return (hg_who){.username = username, .family = 4, .address = {a, b, c, d}};
}

#endif
