/* Statements made of the pieces that matter: tags and fingerprints of any of them, cut anywhere. */
#include <assert.h>

#include "fuzz.h"
#include "headgate.h"

static void check_tags(const hg_tags *tags)
{
    assert(tags->count <= HG_MAX_TAGS && tags->used <= sizeof tags->text);
    for (uint32_t i = 0; i < tags->count; i++) {
        const hg_tag *tag = &tags->tags[i];

        assert(tag->key_length >= 1 && tag->key_length <= HG_MAX_KEY_BYTES);
        assert(tag->value_length >= 1 && tag->value_length <= HG_MAX_VALUE_BYTES);
        assert(tag->key_offset + tag->key_length <= tags->used);
        assert(tag->value_offset + tag->value_length <= tags->used);
    }
}

static unsigned long found;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static hg_tags tags;
    char *copy = malloc(size + 1); /* off its alignment, and with nothing behind it */

    memcpy(copy + 1, data, size);
    for (int dialect = HG_POSTGRES; dialect <= HG_MYSQL; dialect++) {
        hg_tags_read(copy + 1, size, dialect, &tags);
        check_tags(&tags);
        found += tags.count;
        assert(hg_fingerprint(copy + 1, size, dialect) == hg_fingerprint(copy + 1, size, dialect));
    }
    free(copy);
    return 0;
}

#ifndef HG_LIBFUZZER
static const char *const pieces[] = {"select ",
                                     "'",
                                     "\"",
                                     "`",
                                     "$$",
                                     "$a$",
                                     "$1",
                                     "/*",
                                     "*/",
                                     "/*+",
                                     "--",
                                     "-- ",
                                     "#",
                                     "\n",
                                     ",",
                                     "(",
                                     ")",
                                     "?",
                                     "1.5e-3",
                                     "0x1f",
                                     ".5",
                                     ":n",
                                     "::",
                                     "->>",
                                     "<=",
                                     "e'",
                                     "U&'",
                                     "u&\"",
                                     "\\",
                                     "\\'",
                                     ";",
                                     "k='v'",
                                     "a=b",
                                     "c:d",
                                     "%41",
                                     "%4",
                                     "='",
                                     "=",
                                     ":",
                                     "\xc3\xa9",
                                     "\xff",
                                     "NULL",
                                     "/*a='b',c='d'*/",
                                     "(1,2),(3,4)",
                                     "/*!",
                                     "/*!50000 ",
                                     "/*M!100100",
                                     "explain ",
                                     "analyze ",
                                     "format=",
                                     "1.e5into",
                                     "0b1",
                                     "\r",
                                     "\x7f"};

static size_t compose(char *text, size_t room)
{
    size_t length = 0;

    for (size_t i = below(40); i > 0; i--) {
        const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
        size_t times = below(50) == 0 ? below(600) : 1;

        for (; times > 0 && length + strlen(piece) <= room; times--) {
            memcpy(text + length, piece, strlen(piece));
            length += strlen(piece);
        }
    }
    for (size_t i = below(3); i > 0 && length > 0; i--)
        text[below(length)] = (char) dice();
    return length;
}

int main(int argc, char **argv)
{
    unsigned long left = begin(argc, argv);
    static char text[16384];

    while (left-- > 0)
        LLVMFuzzerTestOneInput((const uint8_t *) text, compose(text, sizeof text));
    printf("fuzz_text: %lu tags\n", found);
    return 0;
}
#endif
