/*
 * Scripts of what both ends send (harness.h says how they are written), to the Postgres machine. The
 * first byte of an input is not part of the script: it says which modes of TLS the ends have. What
 * must hold whatever comes: nothing is consumed that was not fed, what waits is bounded, every ticket
 * is given back (all these the harness asserts), and the server gets nothing but what the client sent,
 * in its order, and the few messages that are the proxy's own.
 */
#define HARNESS_FAKE_GATE
#include "pg_messages.h"

static world *w;

static hr_said by_dice(talk *t, const char *text, size_t length, uint32_t flags, hr_words *words)
{
    static const hr_said said[] = {HR_GO,        HR_GO,    HR_GO,   HR_GO,
                                   HR_GO_WARNED, HR_BLOCK, HR_WAIT, HR_SHUT};
    size_t which = below(64);

    (void) t, (void) text, (void) length;
    memset(words, 0, sizeof *words);
    words->cause = HR_BY_BUDGET;
    snprintf(words->message, sizeof words->message, "headgate: no");
    if (which < 4 && (flags & HR_ASK_RUNNING) != 0)
        return HR_WAIT_TURN;
    return which == 63 ? HR_SHUT : said[which % 7];
}

/* Takes own messages out, and returns how many bytes are left. */
static size_t without_own(uint8_t *bytes, size_t length)
{
    static const struct {
        const char *bytes;
        size_t length;
    } own[] = {{"B\0\0\0\x2f\0headgate blocked this statement\0\0\2\0\0\0\0\0\0\0\0", 48},
               {"S\0\0\0\4", 5},
               {"H\0\0\0\4", 5},
               {"\0\0\0\x08\x04\xd2\x16\x2f", 8}};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        uint8_t *found;

        while (length >= own[i].length
               && (found = memmem(bytes, length, own[i].bytes, own[i].length)) != NULL) {
            memmove(found, found + own[i].length,
                    length - own[i].length - (size_t) (found - bytes));
            length -= own[i].length;
        }
    }
    return length;
}

static void check_server(some_bytes *to, const some_bytes *from)
{
    size_t length = without_own(to->bytes, to->length), at = 0;

    for (size_t i = 0; i < length; i++, at++) {
        while (at < from->length && from->bytes[at] != to->bytes[i])
            at++;
        assert(at < from->length);
    }
}

static void play(talk *t, const uint8_t *script, size_t length, some_bytes *said, some_bytes *got)
{
    dice_state = hg_hash(0, script, length);
    while (length >= 3 && !t->closed) {
        size_t told = script[1] | (size_t) script[2] << 8;
        size_t have = told < length - 3 ? told : length - 3;

        append(said, script + 3, have);
        play_record(t, script[0], script + 3, have);
        append(got, t->to[HR_SERVER].bytes, t->to[HR_SERVER].length);
        forget_sent(t);
        assert(t->session.pg.unit_count <= HR_PG_MAX_UNITS);
        script += 3 + have;
        length -= 3 + have;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    some_bytes said = {0}, got = {0};
    talk *t;

    if (size == 0)
        return 0;
    if (w == NULL)
        w = world_open(HR_PROTOCOL_POSTGRES);
    harness_says = by_dice;
    t = talk_open(w);
    t->session.client_tls_mode = data[0] % 3;
    t->session.server_tls_mode = data[0] / 3 % 5;
    play(t, data + 1, size - 1, &said, &got);
    talk_close(t);
    run_errands(w);
    check_server(&got, &said);
    free(said.bytes);
    free(got.bytes);
    return 0;
}
