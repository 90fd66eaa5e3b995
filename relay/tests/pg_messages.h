/* pg_messages.h: messages of both ends, put together for tests. After harness.h. */
#ifndef HEADGATE_TESTS_PG_MESSAGES_H
#define HEADGATE_TESTS_PG_MESSAGES_H

#include "harness.h"

static some_bytes m; /* what the next feed is to be */

HARNESS_UNUSED static inline void put_u32(some_bytes *to, uint32_t number)
{
    uint8_t bytes[4] = {(uint8_t) (number >> 24), (uint8_t) (number >> 16), (uint8_t) (number >> 8),
                        (uint8_t) number};

    append(to, bytes, 4);
}

HARNESS_UNUSED static inline void put_message(some_bytes *to, char type, const void *body,
                                              size_t length)
{
    append(to, &type, 1);
    put_u32(to, (uint32_t) length + 4);
    append(to, body, length);
}

/* Texts one after the other, each with its NUL. */
HARNESS_UNUSED static inline void put_texts(some_bytes *to, char type, const char *first,
                                            const char *second, const char *tail,
                                            size_t tail_length)
{
    some_bytes body = {0};

    append(&body, first, strlen(first) + 1);
    if (second != NULL)
        append(&body, second, strlen(second) + 1);
    append(&body, tail, tail_length);
    put_message(to, type, body.bytes, body.length);
    free(body.bytes);
}

/* ── Of the client ────────────────────────────────────────────────────────── */

HARNESS_UNUSED static inline void put_query(some_bytes *to, const char *text)
{
    put_texts(to, 'Q', text, NULL, "", 0);
}

HARNESS_UNUSED static inline void put_parse(some_bytes *to, const char *name, const char *text)
{
    put_texts(to, 'P', name, text, "\0\0", 2);
}

HARNESS_UNUSED static inline void put_bind(some_bytes *to, const char *portal,
                                           const char *statement)
{
    put_texts(to, 'B', portal, statement, "\0\0\0\0\0\0", 6);
}

HARNESS_UNUSED static inline void put_describe(some_bytes *to, const char *portal)
{
    char body[80];

    snprintf(body, sizeof body, "P%s", portal);
    put_message(to, 'D', body, strlen(body) + 1);
}

HARNESS_UNUSED static inline void put_describe_statement(some_bytes *to, const char *name)
{
    char body[80];

    snprintf(body, sizeof body, "S%s", name);
    put_message(to, 'D', body, strlen(body) + 1);
}

HARNESS_UNUSED static inline void put_close(some_bytes *to, char what, const char *name)
{
    char body[80];

    snprintf(body, sizeof body, "%c%s", what, name);
    put_message(to, 'C', body, strlen(body) + 1);
}

HARNESS_UNUSED static inline void put_execute(some_bytes *to, const char *portal)
{
    put_texts(to, 'E', portal, NULL, "\0\0\0\0", 4);
}

HARNESS_UNUSED static inline void put_sync(some_bytes *to)
{
    put_message(to, 'S', "", 0);
}
HARNESS_UNUSED static inline void put_flush(some_bytes *to)
{
    put_message(to, 'H', "", 0);
}

/* Parse, Bind, Describe, Execute, as libpq's PQsendQueryParams sends them. */
HARNESS_UNUSED static inline void put_extended(some_bytes *to, const char *name, const char *text)
{
    put_parse(to, name, text);
    put_bind(to, "", name);
    put_describe(to, "");
    put_execute(to, "");
}

HARNESS_UNUSED static inline void put_startup(some_bytes *to, uint32_t version,
                                              const char *parameters, size_t length)
{
    put_u32(to, (uint32_t) length + 8);
    put_u32(to, version);
    append(to, parameters, length);
}

/* ── Of the server ────────────────────────────────────────────────────────── */

HARNESS_UNUSED static inline void put_ready(some_bytes *to, char status)
{
    put_message(to, 'Z', &status, 1);
}
HARNESS_UNUSED static inline void put_complete(some_bytes *to, const char *tag)
{
    put_texts(to, 'C', tag, NULL, "", 0);
}

HARNESS_UNUSED static inline void put_row(some_bytes *to, const char *value)
{
    some_bytes body = {0};

    append(&body, "\0\1", 2);
    put_u32(&body, (uint32_t) strlen(value));
    append(&body, value, strlen(value));
    put_message(to, 'D', body.bytes, body.length);
    free(body.bytes);
}

HARNESS_UNUSED static inline void put_columns(some_bytes *to)
{
    put_message(to, 'T', "\0\1c\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0", 22);
}

HARNESS_UNUSED static inline void put_error(some_bytes *to, const char *severity, const char *code,
                                            const char *message)
{
    char body[512];
    int length = snprintf(body, sizeof body, "S%s%cV%s%cC%s%cM%s%c", severity, 0, severity, 0, code,
                          0, message, 0);

    put_message(to, 'E', body, (size_t) length + 1);
}

HARNESS_UNUSED static inline void put_parameter(some_bytes *to, const char *name, const char *value)
{
    put_texts(to, 'S', name, value, "", 0);
}

/* ParseComplete, BindComplete, RowDescription, a row, CommandComplete. */
HARNESS_UNUSED static inline void put_extended_answer(some_bytes *to)
{
    put_message(to, '1', "", 0);
    put_message(to, '2', "", 0);
    put_columns(to);
    put_row(to, "1");
    put_complete(to, "SELECT 1");
}

/* ── Talking ──────────────────────────────────────────────────────────────── */

HARNESS_UNUSED static inline void say(talk *t, hr_end from)
{
    some_bytes now = m;

    m = (some_bytes) {0};
    feed(t, from, now.bytes, now.length);
    free(now.bytes);
}

/* What is in m has gone to that end, and nothing else. */
HARNESS_UNUSED static inline bool went(talk *t, hr_end to)
{
    bool same = sent_is(t, to, m.bytes, m.length);

    m.length = 0;
    return same;
}

/* Passes what is in m from one end to the other, and sees that it does, as it is. */
HARNESS_UNUSED static inline void passes(talk *t, hr_end from)
{
    some_bytes copy = {0};

    append(&copy, m.bytes, m.length);
    say(t, from);
    assert(sent_is(t, from == HR_CLIENT ? HR_SERVER : HR_CLIENT, copy.bytes, copy.length));
    free(copy.bytes);
}

static const char plain_parameters[] = "user\0ann\0database\0shop\0application_name\0web\0";

HARNESS_UNUSED static inline void put_signed_in(some_bytes *to)
{
    put_message(to, 'R', "\0\0\0\0", 4);
    put_parameter(to, "server_version", "15.4");
    put_message(to, 'K', "\0\0\x12\x34\1\2\3\4", 8);
    put_ready(to, 'I');
}

/* A session that is open, with all that was said so far forgotten. */
HARNESS_UNUSED static inline talk *open_talk(world *w)
{
    talk *t = talk_open(w);

    m.length = 0;
    put_startup(&m, 0x30000, plain_parameters, sizeof plain_parameters);
    say(t, HR_CLIENT);
    put_signed_in(&m);
    say(t, HR_SERVER);
    assert(t->session.established);
    forget_sent(t);
    t->told.length = 0;
    return t;
}

/* The type, and for an error its code, of each message that went to the client: "1 E53000 ZI". */
HARNESS_UNUSED static inline const char *heard(talk *t)
{
    static char out[65536];
    size_t at = 0, used = 0;
    some_bytes *sent = &t->to[HR_CLIENT];

    out[0] = '\0';
    while (at + 5 <= sent->length && used + 64 < sizeof out) {
        const uint8_t *message = sent->bytes + at;
        size_t size = (size_t) message[1] << 24 | (size_t) message[2] << 16
                      | (size_t) message[3] << 8 | message[4];
        const char *code;

        assert(size >= 4 && at + 1 + size <= sent->length);
        used += (size_t) snprintf(out + used, sizeof out - used, "%s%c", used > 0 ? " " : "",
                                  message[0]);
        code = message[0] == 'E' || message[0] == 'N' ? memmem(message + 5, size - 4, "\0C", 2)
                                                      : NULL;
        if (code != NULL)
            used += (size_t) snprintf(out + used, sizeof out - used, "%s", code + 2);
        if (message[0] == 'Z')
            used += (size_t) snprintf(out + used, sizeof out - used, "%c", message[5]);
        at += 1 + size;
    }
    assert(at == sent->length); /* nothing but whole messages */
    sent->length = 0;
    return out;
}

HARNESS_UNUSED static inline bool hears(talk *t, const char *expected)
{
    const char *said = heard(t);
    bool same = strcmp(said, expected) == 0;

    if (!same)
        fprintf(stderr, "got:   %s\nnot:   %s\n", said, expected);
    return same;
}

/* The same of what went to the server: types alone, with a Bind of our own as "!". */
HARNESS_UNUSED static inline bool server_hears(talk *t, const char *expected)
{
    char out[4096];
    size_t at = 0, used = 0;
    some_bytes *sent = &t->to[HR_SERVER];
    bool same;

    while (at + 5 <= sent->length && used + 2 < sizeof out) {
        const uint8_t *message = sent->bytes + at;
        size_t size = (size_t) message[1] << 24 | (size_t) message[2] << 16
                      | (size_t) message[3] << 8 | message[4];

        assert(at + 1 + size <= sent->length);
        out[used++] = memmem(message, size, "headgate blocked", 16) != NULL ? '!'
                                                                            : (char) message[0];
        at += 1 + size;
    }
    assert(at == sent->length);
    out[used] = '\0';
    sent->length = 0;
    same = strcmp(out, expected) == 0;
    if (!same)
        fprintf(stderr, "server got:   %s\nnot:          %s\n", out, expected);
    return same;
}

/* A command's tag is its first word, or its first two; each of a string has its own. */
HARNESS_UNUSED static inline void put_completed(const char *text)
{
    char tag[32];
    int length;

    for (; text != NULL; text = strchr(text, ';')) {
        text += strspn(text, "; ");
        length = (int) strcspn(text, " ;");
        if (length == 0)
            break;
        if (strncmp(text, "PREPARE TRANSACTION", 19) == 0 || strncmp(text, "DISCARD ALL", 11) == 0)
            length += 1 + (int) strcspn(text + length + 1, " ;");
        snprintf(tag, sizeof tag, "%.*s", length, text);
        put_complete(&m, strcmp(tag, "END") == 0 ? "COMMIT" : tag);
    }
}

HARNESS_UNUSED static inline void run(talk *t, const char *text, char status)
{
    put_query(&m, text);
    passes(t, HR_CLIENT);
    put_completed(text);
    put_ready(&m, status);
    passes(t, HR_SERVER);
}

/* The server fails it, at its first statement. */
HARNESS_UNUSED static inline void fails(talk *t, const char *text, char status)
{
    put_query(&m, text);
    passes(t, HR_CLIENT);
    put_error(&m, "ERROR", "22012", "it failed");
    put_ready(&m, status);
    passes(t, HR_SERVER);
}

#endif
