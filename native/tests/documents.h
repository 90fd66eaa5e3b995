/*
 * documents.h: policies for tests, from JSON documents. Python compiles them, as it does for a server
 * (HEADGATE_PYTHON, which has headgate installed; python3 by default), and hg_policy_decode reads them.
 */
#ifndef HEADGATE_TESTS_DOCUMENTS_H
#define HEADGATE_TESTS_DOCUMENTS_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "headgate.h"

#define MOST_DOCUMENTS 64u /* of one program */
#define COMPILER                                                                                   \
    "\"${HEADGATE_PYTHON:-python3}\" -c '"                                                         \
    "import json, sys\n"                                                                           \
    "from headgate.budgets.compiled import compile_policy, encoded\n"                              \
    "from headgate.budgets.parse import parse_policy\n"                                            \
    "print(encoded(compile_policy(parse_policy(json.load(sys.stdin)), 0)))' < "

typedef struct compiled {
    hg_policy *policy;
    size_t length;
} compiled;

/* `text` is the document with ' or " for quotes. What Python says of a wrong one is on stderr. */
static inline compiled compiled_by_python(const char *text)
{
    char path[] = "/tmp/headgate-document-XXXXXX", command[sizeof COMPILER + sizeof path];
    FILE *document = fdopen(mkstemp(path), "w"), *answer;
    char *encoded = NULL;
    size_t room = 0;
    ssize_t length;
    compiled one;
    const char *fault;

    assert(document != NULL);
    for (; *text != '\0'; text++)
        fputc(*text == '\'' ? '"' : *text, document);
    assert(fclose(document) == 0);
    snprintf(command, sizeof command, "%s%s", COMPILER, path);
    answer = popen(command, "r");
    assert(answer != NULL);
    length = getline(&encoded, &room, answer);
    assert(pclose(answer) == 0 && length > 1);
    unlink(path);
    one.policy = malloc((size_t) length / 4 * 3);
    assert(one.policy != NULL);
    fault = hg_policy_decode(encoded, (size_t) length - 1, one.policy, &one.length);
    if (fault != NULL)
        fprintf(stderr, "policy: %s\n", fault);
    assert(fault == NULL);
    free(encoded);
    return one;
}

/* In memory of its very length, so that a step beyond it is seen. */
static inline compiled compile_document(const char *text, uint64_t version)
{
    static struct {
        char *text;
        compiled by_python;
    } known[MOST_DOCUMENTS];
    static uint32_t count;
    uint32_t at = 0;
    compiled one;

    while (at < count && strcmp(known[at].text, text) != 0)
        at++;
    if (at == count) {
        assert(count < MOST_DOCUMENTS);
        known[count].text = strdup(text);
        known[count++].by_python = compiled_by_python(text);
    }
    one.length = known[at].by_python.length;
    one.policy = malloc(one.length);
    assert(one.policy != NULL);
    memcpy(one.policy, known[at].by_python.policy, one.length);
    one.policy->version = version;
    one.policy->crc = 0;
    one.policy->crc = hg_crc32(0, one.policy, one.length);
    return one;
}

#endif
