/* Tags in comments (R120): what is read, what is ignored and counted, and what is prose. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headgate.h"

static hg_tags tags;

/* In memory of its very length, so that a step beyond its end is seen. */
static void read_tags(const char *text, int dialect)
{
    size_t length = strlen(text);
    char *copy = malloc(length + 1);

    assert(copy != NULL);
    memcpy(copy, text, length);
    hg_tags_read(copy, length, dialect, &tags);
    free(copy);
}

static bool has(const char *key, const char *value)
{
    for (uint32_t i = 0; i < tags.count; i++) {
        const hg_tag *tag = &tags.tags[i];

        if (tag->key_length == strlen(key) && tag->value_length == strlen(value)
            && memcmp(tags.text + tag->key_offset, key, tag->key_length) == 0
            && memcmp(tags.text + tag->value_offset, value, tag->value_length) == 0)
            return true;
    }
    return false;
}

static void expect(const char *text, int dialect, uint32_t count, uint32_t ignored,
                   uint32_t duplicates)
{
    read_tags(text, dialect);
    if (tags.count != count || tags.ignored != ignored || tags.duplicates != duplicates)
        fprintf(stderr, "%s: %u tags, %u ignored, %u duplicates\n", text, tags.count, tags.ignored,
                tags.duplicates);
    assert(tags.count == count && tags.ignored == ignored && tags.duplicates == duplicates);
}

static void test_what_is_read(void)
{
    expect("select 1 /*controller='export',tenant='acme'*/", HG_POSTGRES, 2, 0, 0);
    assert(has("controller", "export") && has("tenant", "acme"));
    expect("/*a='1'*/ select /* b = '2' */ 1 /*c:3*/ /*d=4*/", HG_POSTGRES, 3, 0, 0);
    assert(has("a", "1") && has("c", "3") && has("d", "4"));
    expect("select 1 /* a='1' , b='2' */", HG_POSTGRES, 2, 0, 0);
    expect("select 1 /*route='%2Fapi%2Cv1',k%2Dy='x'*/", HG_POSTGRES, 2, 0, 0);
    assert(has("route", "/api,v1") && has("k-y", "x"));
    expect("select 1 /*a='1'*/ /*a='2'*/", HG_POSTGRES, 1, 0, 1);
    assert(has("a", "2"));
    expect("select 1 /*a='1'", HG_POSTGRES, 1, 0, 0);
}

static void test_what_is_not(void)
{
    expect("", HG_POSTGRES, 0, 0, 0);
    expect("select 4 / 2 * 3", HG_POSTGRES, 0, 0, 0);
    expect("select 1 /* all that is prose, see the notes */", HG_POSTGRES, 0, 0, 0);
    expect("select 1 /*a='1', and more*/", HG_POSTGRES, 0, 0, 0);
    expect("select 1 /*+ a='1' */ /*! b='2' */", HG_POSTGRES, 0, 0, 0);
    expect("select '/*a=''1''*/'", HG_POSTGRES, 0, 0, 0);
    expect("select $$/*a='1'*/$$, $x$/*a='1'*/$x$", HG_POSTGRES, 0, 0, 0);
    expect("select \"/*a='1'*/\" -- /*a='1'*/", HG_POSTGRES, 0, 0, 0);
    expect("select E'\\'/*a=1*/'", HG_POSTGRES, 0, 0, 0);
    expect("select '\\' /*a=1*/ --'", HG_POSTGRES, 1, 0, 0);
    expect("select '\\' /*a=1*/ --'", HG_MYSQL, 0, 0, 0);
    expect("select 1 /* /*a=1*/ */", HG_POSTGRES, 0, 0, 0);
    expect("select 1 # /*a=1*/\n/*b=2*/", HG_MYSQL, 1, 0, 0);
    expect("select 1 --1 /*a=1*/", HG_MYSQL, 1, 0, 0);
    expect("select 1 # x\r/*a=1*/", HG_MYSQL, 0, 0, 0);
    expect("select 1 -- x\r/*a=1*/", HG_POSTGRES, 1, 0, 0);
    expect("select 1 --\x7f/*a=1*/", HG_MYSQL, 0, 0, 0);
    expect("select 1 /*a='\\", HG_POSTGRES, 0, 0, 0);
}

static void test_what_is_ignored(void)
{
    char text[4096];

    expect("select 1 /*a='',b='x y',c='it\\'s',d='%zz',e='ok'*/", HG_POSTGRES, 1, 4, 0);
    snprintf(text, sizeof text, "/*%066d=1,%065d=2*/", 0, 0);
    expect(text, HG_POSTGRES, 1, 1, 0);
    snprintf(text, sizeof text, "/*a=%01025d,b=%01024d*/", 0, 0);
    expect(text, HG_POSTGRES, 1, 1, 0);
}

/* 40 in one comment, and more bytes than there is room for. */
static void test_too_many(void)
{
    static char text[65536];
    size_t at = 0;

    text[at++] = '/';
    text[at++] = '*';
    for (int i = 0; i < 40; i++)
        at += (size_t) sprintf(text + at, "%sk%d='%d'", i == 0 ? "" : ",", i, i);
    strcpy(text + at, "*/");
    expect(text, HG_POSTGRES, 32, 8, 0);
    assert(has("k31", "31"));
    at = 0;
    for (int i = 0; i < 9; i++)
        at += (size_t) sprintf(text + at, "/*k%d='%01000d'*/", i, i);
    expect(text, HG_POSTGRES, 8, 1, 0);
    at = 0;
    for (int i = 0; i < 40; i++)
        at += (size_t) sprintf(text + at, "/*k='%0*d'*/", 1 + i * 20, i);
    expect(text, HG_POSTGRES, 1, 0, 39);
    assert(tags.used == 1 + 781);
}

int main(void)
{
    test_what_is_read();
    test_what_is_not();
    test_what_is_ignored();
    test_too_many();
    return 0;
}
