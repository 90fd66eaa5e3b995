/* my_packet.c: numbers, strings and errors as the protocol writes them. Nothing is read beyond an end. */
#include "my_inside.h"

my_reader my_read(const uint8_t *bytes, size_t length)
{
    return (my_reader){bytes, bytes + length, false};
}

const char *my_take(my_reader *reader, size_t length)
{
    const uint8_t *at = reader->at;

    if (reader->bad || length > (size_t) (reader->end - at)) {
        reader->bad = true;
        return NULL;
    }
    reader->at += length;
    return (const char *) at;
}

uint64_t my_fixed(my_reader *reader, size_t width)
{
    const uint8_t *at = (const uint8_t *) my_take(reader, width);
    uint64_t value = 0;

    for (size_t i = 0; at != NULL && i < width; i++)
        value |= (uint64_t) at[i] << 8 * i;
    return value;
}

uint64_t my_number(my_reader *reader)
{
    uint64_t first = my_fixed(reader, 1);

    switch (first) {
    case 0xfc:
        return my_fixed(reader, 2);
    case 0xfd:
        return my_fixed(reader, 3);
    case 0xfe:
        return my_fixed(reader, 8);
    case 0xfb:
    case 0xff:
        reader->bad = true;
        return 0;
    default:
        return first;
    }
}

const char *my_string(my_reader *reader, size_t *length)
{
    uint64_t said = my_number(reader);

    *length = 0;
    if (reader->bad || said > (uint64_t) (reader->end - reader->at)) {
        reader->bad = true;
        return NULL;
    }
    *length = (size_t) said;
    return my_take(reader, *length);
}

const char *my_text(my_reader *reader, size_t *length)
{
    const uint8_t *end = NULL;

    *length = 0;
    if (!reader->bad && reader->at < reader->end)
        end = memchr(reader->at, 0, (size_t) (reader->end - reader->at));
    if (end == NULL) {
        reader->bad = true;
        return NULL;
    }
    *length = (size_t) (end - reader->at);
    reader->at = end + 1;
    return (const char *) end - *length;
}

void my_put(uint8_t *to, uint32_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        to[i] = (uint8_t) (value >> 8 * i);
}

void my_put_header(uint8_t *to, size_t length, uint8_t seq)
{
    my_put(to, (uint32_t) length, 3);
    to[3] = seq;
}

size_t my_error(uint8_t *to, uint8_t seq, uint16_t code, const char *state, const char *text)
{
    uint8_t *at = to + MY_HEADER;
    size_t length = strnlen(text, MY_ERROR_BYTES);

    *at++ = 0xff;
    my_put(at, code, 2);
    at += 2;
    if (state != NULL) {
        *at++ = '#';
        memcpy(at, state, 5);
        at += 5;
    }
    /* Not in the middle of a character. */
    while (length == MY_ERROR_BYTES && length > 0 && ((uint8_t) text[length] & 0xc0) == 0x80)
        length--;
    memcpy(at, text, length);
    at += length;
    my_put_header(to, (size_t) (at - to) - MY_HEADER, seq);
    return (size_t) (at - to);
}

bool my_read_ok(const uint8_t *payload, size_t length, my_ok *ok)
{
    my_reader reader = my_read(payload, length);
    uint64_t first = my_fixed(&reader, 1);

    if (first == 0xfe && length == 5) { /* EOF: the other way round, and nothing behind */
        ok->warnings_at = 1;
        ok->warnings = (uint16_t) my_fixed(&reader, 2);
        ok->status = (uint16_t) my_fixed(&reader, 2);
    } else {
        my_number(&reader); /* rows */
        my_number(&reader); /* last inserted id */
        ok->status = (uint16_t) my_fixed(&reader, 2);
        ok->warnings_at = (size_t) (reader.at - payload);
        ok->warnings = (uint16_t) my_fixed(&reader, 2);
    }
    ok->info = reader.at;
    ok->end = reader.end;
    return !reader.bad && (first == 0 || first == 0xfe);
}
