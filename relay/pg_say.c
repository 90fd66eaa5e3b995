/*
 * pg_say.c: messages of the proxy's own.
 *
 * To the client: errors, notices, ReadyForQuery. To the server, and these are all there are: a Bind
 * that fails in the place of a statement that is blocked, Sync behind it, the part of a Query before one
 * that is blocked (or a BEGIN in its place), Flush, SSLRequest.
 */
#include "pg_inside.h"

#include <stdlib.h>
#include <string.h>

#define SAYING_BYTES 2048u

typedef struct writer {
    uint8_t *bytes;
    size_t at, room;
} writer;

static void put(writer *w, const void *bytes, size_t length)
{
    size_t fits = length < w->room - w->at ? length : w->room - w->at;

    memcpy(w->bytes + w->at, bytes, fits);
    w->at += fits;
}

static void put_field(writer *w, char field, const char *value)
{
    if (value == NULL || *value == '\0')
        return;
    put(w, &field, 1);
    put(w, value, strlen(value));
    put(w, "", 1);
}

static void put_length(uint8_t *message, size_t length)
{
    message[1] = (uint8_t) (length >> 24);
    message[2] = (uint8_t) (length >> 16);
    message[3] = (uint8_t) (length >> 8);
    message[4] = (uint8_t) length;
}

/* Severity and code are short; of the rest, what does not fit is cut, and it ends as it must. */
static size_t build(const hr_pg_said *said, uint8_t *out)
{
    writer w = {out, HR_PG_HEADER_BYTES, SAYING_BYTES - 2};

    out[0] = (uint8_t) said->type;
    put_field(&w, 'S', said->severity);
    put_field(&w, 'V', said->severity);
    put_field(&w, 'C', said->sqlstate);
    put_field(&w, 'M', said->message);
    put_field(&w, 'D', said->detail);
    put_field(&w, 'H', said->hint);
    if (w.bytes[w.at - 1] != '\0')
        w.bytes[w.at++] = '\0';
    w.bytes[w.at++] = '\0';
    put_length(out, w.at - 1);
    return w.at;
}

void hr_pg_say(hr_session *session, const hr_pg_said *said)
{
    uint8_t built[SAYING_BYTES];
    size_t length = build(said, built);
    void *scratch = hr_scratch(session, length);

    memcpy(scratch, built, length);
    hr_emit(session, HR_CLIENT, scratch, length);
}

void hr_pg_say_ready(hr_session *session, uint8_t status)
{
    static const char ready[] = "Z\0\0\0\5I"
                                "Z\0\0\0\5T"
                                "Z\0\0\0\5E";

    hr_emit(session, HR_CLIENT, ready + (status == 'I' ? 0 : status == 'T' ? 6 : 12), 6);
}

hr_pg_pending *hr_pg_keep(const hr_pg_said *said)
{
    uint8_t built[SAYING_BYTES];
    size_t length = build(said, built);
    hr_pg_pending *pending = malloc(sizeof *pending + length);

    if (pending == NULL)
        return NULL;
    pending->length = (uint32_t) length;
    memcpy(pending->bytes, built, length);
    return pending;
}

void hr_pg_say_kept(hr_session *session, hr_pg_pending **pending)
{
    void *scratch;

    if (*pending == NULL)
        return;
    scratch = hr_scratch(session, (*pending)->length);
    memcpy(scratch, (*pending)->bytes, (*pending)->length);
    hr_emit(session, HR_CLIENT, scratch, (*pending)->length);
    free(*pending);
    *pending = NULL;
}

hr_pg_said hr_pg_transactioned(const hr_words *words, bool fatal)
{
    return (hr_pg_said){'E',
                        fatal ? "FATAL" : "ERROR",
                        hr_code_of_cause[words->cause].sqlstate,
                        words->message,
                        words->detail,
                        words->hint};
}

hr_pg_said hr_pg_warning(const hr_words *words)
{
    return (hr_pg_said){'N', "NOTICE", "01000", words->message, words->detail, words->hint};
}

/* Twice impossible: there is no statement of that name, and if a client had made one, two formats for
 * no parameter would still be an error. It fails before anything is planned, and what the server's log
 * says of it explains itself. */
void hr_pg_say_invalid_bind(hr_session *session, bool with_sync)
{
    static const char invalid[] = "B\0\0\0\x2f"
                                  "\0"
                                  "headgate blocked this statement\0"
                                  "\0\2"
                                  "\0\0"
                                  "\0\0"
                                  "\0\0"
                                  "\0\0"
                                  "S\0\0\0\4";
    size_t bind = sizeof invalid - 1 - 5;

    _Static_assert(sizeof invalid - 1 - 5 == 1 + 0x2f, "the length in the Bind's header");
    hr_emit(session, HR_SERVER, invalid, with_sync ? bind + 5 : bind);
}

void hr_pg_say_flush(hr_session *session)
{
    static const char flush[] = "H\0\0\0\4";

    hr_emit(session, HR_SERVER, flush, 5);
}

void hr_pg_say_query(hr_session *session, const char *text, size_t length)
{
    uint8_t *header = hr_scratch(session, HR_PG_HEADER_BYTES);

    header[0] = 'Q';
    put_length(header, length + HR_PG_HEADER_BYTES);
    hr_emit(session, HR_SERVER, header, HR_PG_HEADER_BYTES);
    hr_emit(session, HR_SERVER, text, length);
    hr_emit(session, HR_SERVER, "", 1);
}
