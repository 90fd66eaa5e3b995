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
    char *spaced = malloc(length + 2);
    hr_query query;
    int kind;

    hr_query_read(&query, text, length, dialect);
    kind = hr_query_kind(&query);
    check_slices(query.slices, query.count, length);
    assert((kind == HR_KIND_EMPTY) == (query.count == 0));
    for (uint32_t i = 0; i < query.count; i++)
        if (query.slices[i].reading.may_write)
            hr_read_deep(text + query.slices[i].start, query.slices[i].length, dialect);
    assert(spaced != NULL);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, length);
    hr_query_read(&query, spaced, length + 1, dialect);
    assert(hr_query_kind(&query) == kind);
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
