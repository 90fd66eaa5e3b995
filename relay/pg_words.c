/* pg_words.c: what a text's first words say of transactions and of prepared statements. */
#include "pg_inside.h"

#include <ctype.h>
#include <string.h>

uint8_t hr_pg_word_of(const char *text, size_t length, bool truncated)
{
    hr_reading reading;

    hr_read(text, length, HG_POSTGRES, &reading);
    if (reading.chains)
        return HR_PG_WORD_CHAINS;
    if (reading.ends)
        return HR_PG_WORD_ENDS;
    if (reading.back)
        return HR_PG_WORD_BACK;
    if (reading.kind == HR_KIND_BEGIN)
        return HR_PG_WORD_BEGINS;
    if (reading.does)
        return HR_PG_WORD_DOES;
    if (reading.verb == HR_VERB_EXECUTE)
        return HR_PG_WORD_EXECUTES;
    if (reading.verb == HR_VERB_PREPARE || reading.verb == HR_VERB_DEALLOCATE
        || reading.verb == HR_VERB_DISCARD)
        return HR_PG_WORD_NAMES;
    return reading.kind == HR_KIND_EMPTY && truncated ? HR_PG_WORD_UNSEEN : HR_PG_WORD_OTHER;
}

/* ── -c name=value ────────────────────────────────────────────────────────── */

/* One argument of options, without its backslashes; 0 at the end. As the server splits them. */
static size_t next_argument(const char **options, char *out, size_t room)
{
    const char *at = *options;
    size_t length = 0;

    while (isspace((unsigned char) *at))
        at++;
    for (; *at != '\0' && !isspace((unsigned char) *at); at++) {
        if (*at == '\\' && at[1] != '\0')
            at++;
        if (length < room - 1)
            out[length++] = *at;
    }
    out[length] = '\0';
    *options = at;
    return length;
}

static void tell_option(hr_session *session, char *option, bool dashed)
{
    char *equals = strchr(option, '=');

    if (equals == NULL)
        return;
    for (char *at = option; dashed && at < equals; at++)
        if (*at == '-')
            *at = '_';
    hr_gate_variable(session, option, (size_t) (equals - option), equals + 1, strlen(equals + 1));
}

void hr_pg_tell_options(hr_session *session, const char *options)
{
    char argument[1024];

    while (next_argument(&options, argument, sizeof argument) > 0) {
        if (strcmp(argument, "-c") == 0) {
            if (next_argument(&options, argument, sizeof argument) > 0)
                tell_option(session, argument, false);
        } else if (strncmp(argument, "-c", 2) == 0) {
            tell_option(session, argument + 2, false);
        } else if (strncmp(argument, "--", 2) == 0) {
            tell_option(session, argument + 2, true);
        }
    }
}
