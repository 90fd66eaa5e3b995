/* Statements of one shape have one fingerprint, and no others. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headgate.h"

static uint64_t of(const char *text, int dialect)
{
    size_t length = strlen(text);
    char *copy = malloc(length + 1);
    uint64_t fingerprint;

    assert(copy != NULL);
    memcpy(copy, text, length);
    fingerprint = hg_fingerprint(copy, length, dialect);
    free(copy);
    return fingerprint;
}

static void same(const char *a, const char *b)
{
    if (of(a, HG_POSTGRES) != of(b, HG_POSTGRES))
        fprintf(stderr, "%s | %s\n", a, b);
    assert(of(a, HG_POSTGRES) == of(b, HG_POSTGRES));
}

static void differ(const char *a, const char *b)
{
    if (of(a, HG_POSTGRES) == of(b, HG_POSTGRES))
        fprintf(stderr, "%s | %s\n", a, b);
    assert(of(a, HG_POSTGRES) != of(b, HG_POSTGRES));
}

/* The tokens, each with a space behind it. */
static void comes_to(const char *text, const char *shape)
{
    assert(of(text, HG_POSTGRES) == hg_hash(3, shape, strlen(shape)));
}

int main(void)
{
    comes_to("", "");
    comes_to(";;", "");
    comes_to("SELECT * FROM \"T\" WHERE id IN (1, 2, 3); -- why",
             "select * from \"T\" where id in ( ? ) ");
    comes_to("insert into t values (1,'a',NULL),(2,'b',null)",
             "insert into t values ( ? , null ) , ( ? , null ) ");
    comes_to("insert into t values (1,'a'), (2, 'b') , ($1, $2)", "insert into t values ( ? ) ");
    comes_to("select 1, f(2), (3), (x)", "select ? , f ( ? ) , ( x ) ");
    comes_to("select a::int, b->>'k', -1.5e-3", "select a :: int , b ->> ? , - ? ");
    comes_to("select 1,", "select ? , ");
    comes_to("select (1),", "select ( ? ) , ");
    comes_to("select (1),(", "select ( ? ) , ( ");
    comes_to("select (1),(2", "select ( ? ) , ( ? ");
    comes_to("select 1;;select 2;", "select ? ; ; select ? ");
    same("select 1", "SELECT  $1 /* x */ ;");
    same("select E'a\\'b', B'1', x'ff', N'n', U&'u', $$d$$, :name", "select 1");
    differ("select \"a\"", "select \"A\"");
    differ("select a", "select b");
    differ("select true", "select 1");
    assert(of("select \"x\", `n`", HG_MYSQL) == of("select 'y', `n`", HG_MYSQL));
    assert(of("select `n`", HG_MYSQL) != of("select `N`", HG_MYSQL));
    same("explain analyze verbose select 1", "select 2");
    same("explain (costs off, analyze) select 1", "select 2");
    differ("explain select 1", "select 2");
    differ("explain (select analyze) select 1", "select 1");
    assert(of("analyze format=json select 1", HG_MYSQL) == of("select 1", HG_MYSQL));
    /* A server runs what is in a versioned comment. */
    assert(of("select 1 /*!union select * from big*/", HG_MYSQL)
           == of("select 1 union select * from big", HG_MYSQL));
    assert(of("select 1 /*!union select * from big*/", HG_POSTGRES) == of("select 1", HG_POSTGRES));
    return 0;
}
