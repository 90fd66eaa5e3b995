/*
 * pg_server.h: as much of a Postgres server as it takes to see what a proxy in front of it does wrong:
 * transactions, skipping to Sync, COPY that eats a Sync, answers kept back until Flush or Sync. A text
 * says what it does by its first word: BEGIN, COMMIT, ROLLBACK, FAIL, COPYIN, COPYOUT, anything else.
 */
#ifndef HEADGATE_TESTS_PG_SERVER_H
#define HEADGATE_TESTS_PG_SERVER_H

#include "pg_messages.h"

#define SIM_NAMES 256

typedef struct sim {
    some_bytes in, kept, out; /* kept: answers not flushed */
    char status;
    bool skips, copies, copies_simple, dead, ended;
    char statement[SIM_NAMES][16], text[SIM_NAMES][64];
    char portal[SIM_NAMES][16], bound[SIM_NAMES][64];
    some_bytes executed; /* texts, a line each */
    uint32_t syncs, readies;
} sim;

static inline int sim_find(char names[SIM_NAMES][16], const char *name, char texts[SIM_NAMES][64],
                           bool make)
{
    for (int i = 0; i < SIM_NAMES; i++)
        if (texts[i][0] != '\0' && strcmp(names[i], name) == 0)
            return i;
    for (int i = 0; make && i < SIM_NAMES; i++)
        if (texts[i][0] == '\0') {
            snprintf(names[i], 16, "%s", name);
            return i;
        }
    assert(!make);
    return -1;
}

static inline void sim_flush(sim *s)
{
    append(&s->out, s->kept.bytes, s->kept.length);
    s->kept.length = 0;
}

static inline void sim_ready(sim *s)
{
    if (s->status == 'I')
        memset(s->bound, 0, sizeof s->bound);
    put_ready(&s->kept, s->status);
    s->readies++;
    sim_flush(s);
}

static inline bool sim_fail(sim *s, const char *code)
{
    put_error(&s->kept, "ERROR", code, "it failed");
    sim_flush(s); /* as the real one does, whatever it keeps else */
    if (s->status == 'T')
        s->status = 'E';
    return false;
}

static inline bool starts(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

/* One command. False: it failed. COPYIN: s->copies. */
static inline bool sim_run(sim *s, const char *text)
{
    if (s->status == 'E' && !starts(text, "COMMIT") && !starts(text, "ROLLBACK"))
        return sim_fail(s, "25P02");
    append_text(&s->executed, text);
    append_text(&s->executed, "\n");
    if (starts(text, "FAIL"))
        return sim_fail(s, "22012");
    if (starts(text, "COPYIN")) {
        put_message(&s->kept, 'G', "\0\0\0", 3);
        s->copies = true;
        sim_flush(s);
        return true;
    }
    if (starts(text, "BEGIN"))
        s->status = 'T';
    else if (starts(text, "COMMIT") || starts(text, "ROLLBACK"))
        s->status = 'I';
    else if (starts(text, "COPYOUT")) {
        put_message(&s->kept, 'H', "\0\0\0", 3);
        put_message(&s->kept, 'd', "x\n", 2);
        put_message(&s->kept, 'c', "", 0);
    } else {
        put_row(&s->kept, text);
    }
    put_complete(&s->kept, starts(text, "BEGIN")      ? "BEGIN"
                           : starts(text, "COMMIT")   ? "COMMIT"
                           : starts(text, "ROLLBACK") ? "ROLLBACK"
                                                      : "DONE 1");
    return true;
}

static inline void sim_bind(sim *s, const uint8_t *body, size_t length)
{
    const char *portal = (const char *) body;
    const char *statement = portal + strlen(portal) + 1;
    const uint8_t *formats = (const uint8_t *) statement + strlen(statement) + 1;
    int from = sim_find(s->statement, statement, s->text, false), to;

    (void) length;
    if (from < 0 || (formats[0] << 8 | formats[1]) > 1) {
        s->skips = true;
        sim_fail(s, from < 0 ? "26000" : "08P01");
        return;
    }
    to = sim_find(s->portal, portal, s->bound, true);
    memmove(s->bound[to], s->text[from], 64);
    put_message(&s->kept, '2', "", 0);
}

static inline void sim_parse(sim *s, const char *name)
{
    const char *text = name + strlen(name) + 1;
    int at = sim_find(s->statement, name, s->text, false);

    if (starts(text, "SYNTAX") || (at >= 0 && *name != '\0')
        || (s->status == 'E' && !starts(text, "COMMIT") && !starts(text, "ROLLBACK"))) {
        s->skips = true;
        sim_fail(s, s->status == 'E' ? "25P02" : "42601");
        return;
    }
    at = sim_find(s->statement, name, s->text, true);
    snprintf(s->text[at], 64, "%s", *text == '\0' ? " " : text);
    put_message(&s->kept, '1', "", 0);
}

static inline void sim_describe(sim *s, const char *what)
{
    int at = *what == 'S' ? sim_find(s->statement, what + 1, s->text, false)
                          : sim_find(s->portal, what + 1, s->bound, false);

    if (at < 0) {
        s->skips = true;
        sim_fail(s, *what == 'S' ? "26000" : "34000");
        return;
    }
    if (*what == 'S')
        put_message(&s->kept, 't', "\0\0", 2);
    put_columns(&s->kept);
}

static inline void sim_close(sim *s, const char *what)
{
    int at = *what == 'S' ? sim_find(s->statement, what + 1, s->text, false)
                          : sim_find(s->portal, what + 1, s->bound, false);

    if (at >= 0)
        (*what == 'S' ? s->text : s->bound)[at][0] = '\0';
    put_message(&s->kept, '3', "", 0);
}

static inline void sim_query(sim *s, const char *text)
{
    char one[64];
    const char *end;

    do {
        end = strchr(text, ';');
        snprintf(one, sizeof one, "%.*s", end == NULL ? (int) strlen(text) : (int) (end - text),
                 text);
        if (!sim_run(s, one))
            break;
        if (s->copies) {
            s->copies_simple = true;
            return; /* COPYIN is last in its string */
        }
        text = end == NULL ? NULL : end + 1;
    } while (text != NULL);
    sim_ready(s);
}

static inline void sim_copy(sim *s, uint8_t type)
{
    if (type == 'd' || type == 'H' || type == 'S')
        return;
    s->copies = false;
    if (type == 'c')
        put_complete(&s->kept, "COPY 1");
    else if (type == 'f')
        s->skips = !s->copies_simple, sim_fail(s, "57014");
    else
        s->dead = true;
    if (s->copies_simple)
        sim_ready(s);
    s->copies_simple = false;
}

static inline void sim_message(sim *s, uint8_t type, const uint8_t *body, size_t length)
{
    int at;

    if (s->copies) {
        sim_copy(s, type);
        return;
    }
    if (s->skips && type != 'S' && type != 'X')
        return;
    switch (type) {
    case 'Q':
        sim_query(s, (const char *) body);
        return;
    case 'P':
        sim_parse(s, (const char *) body);
        return;
    case 'B':
        sim_bind(s, body, length);
        return;
    case 'D':
        sim_describe(s, (const char *) body);
        return;
    case 'C':
        sim_close(s, (const char *) body);
        return;
    case 'E':
        at = sim_find(s->portal, (const char *) body, s->bound, false);
        s->skips = at < 0 ? !sim_fail(s, "34000") : !sim_run(s, s->bound[at]);
        return;
    case 'F':
        if (s->status != 'E')
            put_message(&s->kept, 'V', "\0\0\0\0", 4);
        else
            sim_fail(s, "25P02");
        sim_ready(s);
        return;
    case 'S':
        s->skips = false;
        s->syncs++;
        sim_ready(s);
        return;
    case 'H':
        sim_flush(s);
        return;
    case 'X':
        s->ended = true;
        return;
    default:
        return; /* COPY data that nobody wants */
    }
}

static inline void sim_hear(sim *s, const void *bytes, size_t length)
{
    append(&s->in, bytes, length);
    while (s->in.length >= 5 && !s->dead && !s->ended) {
        size_t size = (size_t) s->in.bytes[1] << 24 | (size_t) s->in.bytes[2] << 16
                      | (size_t) s->in.bytes[3] << 8 | s->in.bytes[4];

        assert(size >= 4);
        if (s->in.length < size + 1)
            return;
        sim_message(s, s->in.bytes[0], s->in.bytes + 5, size - 4);
        take_front(&s->in, size + 1);
    }
}

static inline void sim_free(sim *s)
{
    free(s->in.bytes);
    free(s->kept.bytes);
    free(s->out.bytes);
    free(s->executed.bytes);
}

#endif
