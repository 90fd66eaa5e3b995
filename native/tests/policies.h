/* policies.h: policies from documents, and statements under them, for the tests of matching. */
#ifndef HEADGATE_TESTS_POLICIES_H
#define HEADGATE_TESTS_POLICIES_H

#include "documents.h"

static inline compiled sound(const char *text)
{
    return compile_document(text, 7);
}

static inline hg_matches match_text(const hg_policy *policy, const hg_client *client,
                                    const char *text, int64_t wall_ms, int healthy)
{
    static hg_tags tags;
    hg_statement statement = {.text = text, .length = strlen(text), .dialect = HG_POSTGRES};
    hg_session session;
    hg_matches matches;

    hg_session_resolve(policy, client, &session);
    hg_match(policy, &session, &statement, wall_ms, healthy, &tags, &matches);
    return matches;
}

static inline hg_client from4(const char *username, uint8_t a, uint8_t b, uint8_t c, uint8_t d)
{
    return (hg_client) {.username = username, .family = 4, .address = {a, b, c, d}};
}

#endif
