/*
 * Any text, in both dialects: its statements lie in it, one behind the other, and each is of a kind. The
 * text lies in a block of just its size. What begins with a space, or ends with one, says the same.
 */
#include <assert.h>

#include "fuzz.h"
#include "inside.h"
#include "kinds.h"

static void check_slices(const hr_slice *slices, uint32_t count, size_t length)
{
    uint32_t behind = 0;

    assert(count <= HR_MAX_SLICES);
    for (uint32_t i = 0; i < count; i++) {
        const hr_reading *reading = &slices[i].reading;

        assert(slices[i].start >= behind && slices[i].length <= length - slices[i].start);
        assert(reading->kind < HR_KIND_EMPTY && reading->verb <= HR_VERB_DEALLOCATE);
        assert(reading->at <= slices[i].length && reading->inner <= slices[i].length);
        behind = slices[i].start + slices[i].length;
    }
}

static void read_one(const char *text, size_t length, int dialect)
{
    uint32_t protocol = dialect == HG_MYSQL ? HR_PROTOCOL_MYSQL : HR_PROTOCOL_POSTGRES;
    hr_slice slices[HR_MAX_SLICES];
    uint32_t count = hr_split(text, length, dialect, slices);
    char *spaced = malloc(length + 2);
    int kind = hr_kind_of(text, length, protocol);

    check_slices(slices, count, length);
    assert((kind == HR_KIND_EMPTY) == (count == 0));
    for (uint32_t i = 0; i < count; i++)
        if (slices[i].reading.may_write)
            hr_read_deep(text + slices[i].start, slices[i].length, dialect);
    assert(spaced != NULL);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, length);
    assert(hr_kind_of(spaced, length + 1, protocol) == kind);
    free(spaced);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size == 0 ? 1 : size);

    assert(text != NULL);
    memcpy(text, data, size);
    read_one(text, size, HG_POSTGRES);
    read_one(text, size, HG_MYSQL);
    free(text);
    return 0;
}
