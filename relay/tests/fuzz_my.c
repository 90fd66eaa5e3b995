/*
 * fuzz_my.c: the MySQL machine, fed anything from both ends. The first byte sets the scene, the rest is a
 * script (harness.h), which is played twice: whole, and cut by dice.
 *
 *   - nothing is read out of bounds, nothing leaks, every ticket comes back (harness, sanitizers)
 *   - what goes out does not depend on the cuts
 *   - an idle session runs nothing
 *   - what was blocked does not reach the server
 */
#define HARNESS_FAKE_GATE
#include "my_words.h"

static world *w;

static bool is_forbidden(const char *text, size_t length)
{
    return length > 0 && memmem(text, length, "forbidden", 9) != NULL;
}

/* By the text alone, so that it is the same in both plays; some wait once. */
static hr_said says(talk *t, const char *text, size_t length, uint32_t flags, hr_words *out)
{
    uint64_t dice = hg_hash(1, text == NULL ? "" : text, length);

    memset(out, 0, sizeof *out);
    out->cause = (uint8_t) (1 + dice % 5);
    snprintf(out->message, sizeof out->message, "headgate: by dice");
    if (is_forbidden(text, length))
        return HR_BLOCK;
    if ((flags & HR_ASK_TRUNCATED) != 0 || dice % 8 < 4)
        return HR_GO;
    if (dice % 8 == 5)
        return t->asked.length % 2 == 0 ? HR_WAIT : HR_GO;
    return dice % 8 == 6 ? HR_GO_WARNED : dice % 64 == 7 ? HR_SHUT : HR_BLOCK;
}

static talk *open_talk(uint8_t scene)
{
    uint32_t can = MY_CLIENT;
    talk *t;

    if (scene & 1) {
        if (scene & 2)
            can |= MY_CAN_NO_EOF;
        if (scene & 4)
            can |= MY_CAN_TRACK;
        if (scene & 8)
            can |= MY_CAN_QUERY_ATTRIBUTES;
        return (scene & 16) != 0 ? sign_in(w, can & ~1u, MY_ALSO_KNOWN) : sign_in(w, can, 0);
    }
    t = talk_open(w);
    t->session.client_tls_mode = scene >> 1 & 3;
    t->session.server_tls_mode = scene >> 3 & 3;
    return t;
}

/* What yields to others comes back automatically. */
static void go_on(talk *t)
{
    while (t->session.held && t->session.my.own >= MY_MAX_OWN && !t->closed)
        feed_again(t);
}

static void check(const talk *t)
{
    assert(t->session.my.units <= MY_MAX_UNITS);
    if (!t->closed && t->session.machine->at_rest(&t->session))
        assert(t->tickets_open == 0 && t->session.my.units == 0);
}

static void same(talk *whole, talk *cut_up)
{
    for (int end = 0; end < 2; end++) {
        const some_bytes *sent = &whole->to[end];

        assert(sent_is(cut_up, (hr_end) end, sent->bytes == NULL ? (uint8_t *) "" : sent->bytes,
                       sent->length));
    }
}

static void play(talk *whole, talk *cut_up, const uint8_t *script, size_t length)
{
    bool comparable = true;

    while (length >= 3 && !whole->closed) {
        size_t said = script[1] | (size_t) script[2] << 8;
        size_t have = said < length - 3 ? said : length - 3;
        uint8_t what = script[0] & 0x0f;

        /* Hung up once is hung up; else what is fed is fed whole here and diced there. */
        if (what >> 1 <= 4)
            what &= 1;
        play_record(whole, what, script + 3, have);
        go_on(whole);
        play_record(cut_up, what <= 1 ? what | 8 : what, script + 3, have);
        go_on(cut_up);
        check(whole);
        check(cut_up);
        /* What waits for the server goes on within its answer, if that is cut: a server that answers what
         * it was never sent is then understood otherwise. */
        comparable = comparable && !whole->session.later && !cut_up->session.later;
        if (comparable)
            assert(whole->closed == cut_up->closed);
        if (comparable && !whole->closed) /* of what is closed the end is not seen */
            same(whole, cut_up);
        if (cut_up->closed)
            break;
        forget_sent(whole);
        forget_sent(cut_up);
        script += 3 + have;
        length -= 3 + have;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    talk *whole, *cut_up;

    if (size < 1)
        return 0;
    harness_says = says;
    dice_state = hg_hash(0, data, size);
    cut = 0;
    w = world_open(HR_PROTOCOL_MYSQL);
    whole = open_talk(data[0]);
    cut_up = open_talk(data[0]);
    play(whole, cut_up, data + 1, size - 1);
    talk_close(whole);
    talk_close(cut_up);
    world_close(w);
    return 0;
}
