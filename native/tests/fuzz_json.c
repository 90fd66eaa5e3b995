/* Any bytes for a document: what is read of it lies in the memory that was given, and is a tree. */
#include <assert.h>

#include "fuzz.h"
#include "json.h"

static unsigned long sound;

static void check(const hg_json *json)
{
    assert(json->count >= 1 && json->count <= json->room && json->used <= json->texts_room);
    for (uint32_t i = 0; i < json->count; i++) {
        const hg_json_value *value = &json->values[i];
        uint32_t inside = 0;

        assert(value->kind <= HG_JSON_TABLE);
        assert(value->next == 0 || (value->next > i && value->next < json->count));
        if (value->kind == HG_JSON_STRING || value->kind == HG_JSON_NUMBER)
            assert(json->texts[value->text + value->text_length] == '\0'
                   && value->text + value->text_length < json->used);
        if (value->kind < HG_JSON_LIST)
            continue;
        for (uint32_t at = value->first; at != 0; at = json->values[at].next) {
            assert(at > i && at < json->count);
            inside++;
        }
        assert(inside == value->count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hg_json json = {.room = hg_json_values_for(size), .texts_room = hg_json_texts_for(size)};
    char *copy = malloc(size + 1); /* off its alignment, and with nothing behind it */

    json.values = malloc(json.room * sizeof *json.values);
    json.texts = malloc(json.texts_room);
    assert(copy != NULL && json.values != NULL && json.texts != NULL);
    memcpy(copy + 1, data, size);
    if (hg_json_read(&json, copy + 1, size)) {
        sound++;
        check(&json);
    } else {
        assert(json.fault != NULL && json.fault_at <= size);
    }
    free(json.texts);
    free(json.values);
    free(copy);
    return 0;
}

#ifndef HG_LIBFUZZER
static const char *const pieces[] = {
    "{", "}", "[", "]", ",", ":", "\"a\"", "\"\"", "1", "-0", "1.5e-3", "01", "1.", "true", "false", "null",
    "nul", " ", "\n", "\"\\u00e9\"", "\"\\ud83d\\ude00\"", "\"\\ud800\"", "\"\\", "\"\xc3\xa9\"", "\xff", "\"a\":1",
    "[1,2]", "{\"a\":{}}", "\0"};

int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    char text[4096];

    while (left-- > 0) {
        size_t length = 0;

        for (size_t i = 1 + below(20); i > 0; i--) {
            const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
            size_t times = below(30) == 0 ? below(60) : 1;

            for (; times > 0 && length + 12 < sizeof text; times--) {
                size_t bytes = *piece == '\0' ? 1 : strlen(piece);

                memcpy(text + length, piece, bytes);
                length += bytes;
            }
        }
        LLVMFuzzerTestOneInput((const uint8_t *) text, length);
    }
    printf("fuzz_json: %lu documents\n", sound);
    return 0;
}
#endif
