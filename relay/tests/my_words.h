/* my_words.h: packets of the MySQL protocol, for the machine's tests. */
#ifndef HEADGATE_TESTS_MY_WORDS_H
#define HEADGATE_TESTS_MY_WORDS_H

#include "harness.h"
#include "my_inside.h"

#define MY_GREETED                                                                                 \
    0x81bff7deu /* what MariaDB offers and compression, without TLS; MY_CAN_MYSQL makes it MySQL */

typedef struct words {
    uint8_t bytes[2048];
    size_t length;
} words;

static inline void add(words *to, const void *bytes, size_t length)
{
    assert(to->length + length <= sizeof to->bytes);
    memcpy(to->bytes + to->length, bytes, length);
    to->length += length;
}

static inline void add_number(words *to, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        add(to, &(uint8_t) {(uint8_t) (value >> 8 * i)}, 1);
}

static inline words packet_of(uint8_t seq, const void *payload, size_t length)
{
    words it = {.length = 0};

    add_number(&it, length, 3);
    add_number(&it, seq, 1);
    add(&it, payload, length);
    return it;
}

/* A packet of a literal, which may have zeros in it. */
#define P(seq, literal) packet_of(seq, literal, sizeof(literal) - 1)

HARNESS_UNUSED static inline words both(words first, words second)
{
    add(&first, second.bytes, second.length);
    return first;
}

HARNESS_UNUSED static inline words query(const char *text)
{
    words payload = {.length = 0};

    add(&payload, "\x03", 1);
    add(&payload, text, strlen(text));
    return packet_of(0, payload.bytes, payload.length);
}

HARNESS_UNUSED static inline words ok(uint8_t seq, uint16_t status)
{
    uint8_t payload[] = {0, 0, 0, (uint8_t) status, (uint8_t) (status >> 8), 0, 0};

    return packet_of(seq, payload, sizeof payload);
}

HARNESS_UNUSED static inline words eof(uint8_t seq, uint16_t status)
{
    uint8_t payload[] = {0xfe, 0, 0, (uint8_t) status, (uint8_t) (status >> 8)};

    return packet_of(seq, payload, sizeof payload);
}

/* Rows' end for clients that know no EOF. */
HARNESS_UNUSED static inline words end_ok(uint8_t seq, uint16_t status)
{
    uint8_t payload[] = {0xfe, 0, 0, (uint8_t) status, (uint8_t) (status >> 8), 0, 0};

    return packet_of(seq, payload, sizeof payload);
}

HARNESS_UNUSED static inline words error(uint8_t seq, uint16_t code, const char *text)
{
    words it = {.length = MY_ERROR_BYTES + 16};

    it.length = my_error(it.bytes, seq, code, "HY000", text);
    return it;
}

/* MariaDB where `can` lacks MY_CAN_MYSQL: then with extended capabilities. */
HARNESS_UNUSED static inline words greeting(uint32_t can, uint32_t extended)
{
    words payload = {.length = 0};

    add(&payload,
        "\x0a"
        "8.0.36\0",
        8);
    add_number(&payload, 77, 4);
    add(&payload, "abcdefgh\0", 9);
    add_number(&payload, can & 0xffff, 2);
    add_number(&payload, 45, 1);
    add_number(&payload, MY_AUTOCOMMIT, 2);
    add_number(&payload, can >> 16, 2);
    add_number(&payload, 21, 1);
    add(&payload, "\0\0\0\0\0\0", 6);
    add_number(&payload, extended, 4);
    add(&payload, "ijklmnopqrst\0", 13);
    add(&payload, "caching_sha2_password", 22);
    return packet_of(0, payload.bytes, payload.length);
}

HARNESS_UNUSED static inline words ssl_request(uint8_t seq, uint32_t can, uint32_t extended)
{
    words payload = {.length = 0};

    add_number(&payload, can | MY_CAN_SSL, 4);
    add_number(&payload, 1 << 24, 4);
    add_number(&payload, 45, 1);
    payload.length += 19;
    add_number(&payload, extended, 4);
    return packet_of(seq, payload.bytes, payload.length);
}

HARNESS_UNUSED static inline words response(uint8_t seq, uint32_t can, uint32_t extended)
{
    words payload = {.length = 0};

    add_number(&payload, can, 4);
    add_number(&payload, 1 << 24, 4);
    add_number(&payload, 45, 1);
    payload.length += 19;
    add_number(&payload, extended, 4);
    add(&payload, "alice\0", 6);
    add(&payload,
        "\x14"
        "01234567890123456789",
        21);
    if (can & MY_CAN_DATABASE)
        add(&payload, "shop\0", 5);
    if (can & MY_CAN_PLUGINS)
        add(&payload, "caching_sha2_password", 22);
    if (can & MY_CAN_ATTRIBUTES)
        add(&payload,
            "\x1f"
            "\x0c"
            "program_name"
            "\x03"
            "etl"
            "\x04"
            "team"
            "\x08"
            "payments",
            32);
    return packet_of(seq, payload.bytes, payload.length);
}

static size_t cut; /* everything is fed in pieces of so many bytes; 0: whole */

HARNESS_UNUSED static inline void say(talk *t, hr_end from, words it)
{
    feed_cut(t, from, it.bytes, it.length, cut);
}

HARNESS_UNUSED static inline bool heard(talk *t, hr_end to, words it)
{
    return sent_is(t, to, it.bytes, it.length);
}

/* Says it, and the other end gets just that. */
#define passes(t, from, it)                                                                        \
    do {                                                                                           \
        words passed_ = (it);                                                                      \
        say(t, from, passed_);                                                                     \
        assert(heard(t, from == HR_CLIENT ? HR_SERVER : HR_CLIENT, passed_));                      \
    } while (0)

#define MY_CLIENT                                                                                  \
    (MY_CAN_MYSQL | MY_CAN_DATABASE | MY_CAN_PROTOCOL_41 | MY_CAN_SECURE | MY_CAN_PLUGINS          \
     | MY_CAN_ATTRIBUTES | 0x70000u)

/* A session that is established, with the capabilities that the client chose. */
HARNESS_UNUSED static inline talk *sign_in(world *w, uint32_t can, uint32_t extended)
{
    talk *t = talk_open(w);

    say(t, HR_SERVER, greeting(MY_GREETED | (can & MY_CAN_MYSQL) | 0xff000000u, 0xff));
    say(t, HR_CLIENT, response(1, can, extended));
    forget_sent(t);
    say(t, HR_SERVER, ok(2, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, ok(2, MY_AUTOCOMMIT)) && t->session.established);
    return t;
}

#endif
