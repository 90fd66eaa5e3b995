/* What a statement's first words say, in both dialects, and that nothing gets past by the way it is
 * written. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "inside.h"
#include "kinds.h"

typedef struct row {
    const char *text;
    int postgres, mysql; /* HR_KIND_*; -1: not asked */
} row;

#define R HR_KIND_READ
#define W HR_KIND_WRITE
#define B HR_KIND_BEGIN
#define F HR_KIND_FREE
#define E HR_KIND_EMPTY
#define M HR_KIND_MANY

static const row rows[] = {
    {"", E, E},
    {"  ;; ", E, E},
    {"/* only a comment */ -- and another", E, E},
    {"select 1", R, R},
    {"  /* job='x' */ SELECT 1", R, R},
    {"/*+ SeqScan(t) */ select 1", R, R},
    {"((select 1) union (select 2))", R, R},
    {"(insert into t values (1))", W, W},
    {"SELECT * INTO t2 FROM t", W, W},
    {"select 'into', substring(a for 3) from t", R, R},
    {"select * from t for update", W, W},
    {"select * from t FOR NO KEY UPDATE", W, -1},
    {"select * from t lock in share mode", -1, W},
    {"select \"into\" from t", R, -1},
    {"values (1)", R, R},
    {"table t", R, R},
    {"with a as (select 1) select * from a", R, R},
    {"with a as (insert into t values (1) returning *) select * from a", W, -1},
    {"with a as (select 1) delete from t using a", W, W},
    {"insert into t values (1)", W, W},
    {"replace into t values (1)", W, W},
    {"update t set a = 1", W, W},
    {"merge into t using s on true when matched then do nothing", W, W},
    {"call p()", W, W},
    {"do $$ begin end $$", W, W},
    {"create table t (a int)", W, W},
    {"lock table t", W, W},
    {"begin", B, B},
    {"BEGIN;", B, B},
    {"begin work", B, B},
    {"BEGIN ISOLATION LEVEL SERIALIZABLE", B, W},
    {"begin not atomic select 1; end", -1, M},
    {"start transaction read only", B, B},
    {"start replica", -1, W},
    {"commit", F, F},
    {"end", F, W},
    {"abort", F, W},
    {"rollback to savepoint a", F, F},
    {"savepoint a", F, F},
    {"release savepoint a", F, F},
    {"prepare transaction 'x'", F, -1},
    {"set work_mem = '1GB'", F, F},
    {"set constraints all deferred", F, -1},
    {"reset all", F, W},
    {"show all", F, F},
    {"discard all", F, W},
    {"listen a", F, W},
    {"notify a, 'b'", F, W},
    {"unlisten *", F, W},
    {"deallocate a", F, F},
    {"drop prepare a", -1, F},
    {"drop table a", W, W},
    {"close c", F, W},
    {"checkpoint", F, W},
    {"load 'lib'", F, W},
    {"alter system set a = 1", F, W},
    {"alter table t add b int", W, W},
    {"prepare a as select 1", F, -1},
    {"prepare a from 'select 1'", -1, F},
    {"execute a", W, W},
    {"execute immediate 'select 1'", -1, W},
    {"declare c cursor for select 1", R, W},
    {"declare c cursor for select 1 for update", W, W},
    {"fetch 10 from c", R, W},
    {"explain select 1", F, F},
    {"explain delete from t", F, F},
    {"explain analyze select 1", R, R},
    {"EXPLAIN (ANALYZE, BUFFERS) DELETE FROM t", W, -1},
    {"explain (analyze off, costs) delete from t", F, -1},
    {"explain (analyze false) delete from t", F, -1},
    {"explain (analyze 'off') delete from t", W, -1},
    {"explain (costs off, analyze) select 1", R, -1},
    {"explain (\"analyze\") delete from t", W, -1},
    {"explain (analyze off, \"analyze\" on) delete from t", W, -1},
    {"explain (analyze 1, analyze 0) delete from t", W, -1},
    {"explain (U&\"analyz!0065\" UESCAPE '!') delete from t", W, -1},
    {"explain (costs, \"Format\" json) delete from t", W, -1},
    {"select '\\d+';", R, -1},
    {"select '\\'; set a = '; select heavy(); --'", W, -1}, /* one, unread */
    {"explain (select 1)", F, F},
    {"explain verbose select 1", F, -1},
    {"explain analyze verbose insert into t values (1)", W, -1},
    {"explain format=json select 1", -1, F},
    {"explain analyze format=tree select 1", -1, R},
    {"analyze select 1", W, R},
    {"analyze format=json delete from t", -1, W},
    {"analyze table t", -1, W},
    {"describe t", W, F},
    {"copy t to stdout", R, W},
    {"copy t (a, b) from stdin", W, W},
    {"copy (select 1) to stdout", R, W},
    {"copy (delete from t returning *) to stdout", W, W},
    {"use db", W, F},
    {"kill query 3", W, F},
    {"unlock tables", W, F},
    {"xa start 'a'", W, B},
    {"xa commit 'a'", W, F},
    {"load data infile 'x' into table t", -1, W},
    {"set @a = (select sleep(10))", -1, W},
    {"set @a = heavy()", -1, W},
    {"set sql_mode = concat(@@sql_mode, ',STRICT_TRANS_TABLES')", -1, F},
    {"set statement max_statement_time=1 for delete from t", -1, W},
    {"set statement max_statement_time=1 for select 1", -1, R},
    {"/*!40101 SET NAMES utf8 */", -1, F},
    {"/*!50000 DELETE FROM t */", E, W},
    {"/*M!100100 DELETE */ from t", -1, W},
    {"/*!40001 select */ 1", -1, R},
    {"set a = '\\''; select heavy(); --'", W, -1},
    {"set @a = '\\'; select heavy(); -- '", -1, W},
    {"select 1; select 2", M, M},
    {"begin; set a = 1", B, -1},
    {"set a = 1; commit;", F, F},
    {"set a = 1; /* and */ select 2", M, M},
    {"select ';'; ", R, R},
    {"select 1; -- job", R, R},
    {"select $$;$$", R, -1},
    {"create rule r as on insert to t do (select 1; select 2)", W, -1},
    {"\"quoted\"", W, W},
    {"#c\nselect 1", W, R},
};

static int deep_kind(const char *text, uint32_t protocol)
{
    int dialect = protocol == HR_PROTOCOL_MYSQL ? HG_MYSQL : HG_POSTGRES;
    int kind = hr_kind_of(text, strlen(text), protocol);

    return kind == HR_KIND_READ && hr_read_deep(text, strlen(text), dialect) ? HR_KIND_WRITE : kind;
}

static void every_kind_is_what_it_is(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int postgres = deep_kind(rows[i].text, HR_PROTOCOL_POSTGRES);
        int mysql = deep_kind(rows[i].text, HR_PROTOCOL_MYSQL);

        if ((rows[i].postgres >= 0 && rows[i].postgres != postgres)
            || (rows[i].mysql >= 0 && rows[i].mysql != mysql))
            fprintf(stderr, "%s: %d %d\n", rows[i].text, postgres, mysql);
        assert(rows[i].postgres < 0 || rows[i].postgres == postgres);
        assert(rows[i].mysql < 0 || rows[i].mysql == mysql);
    }
}

static void slices_keep_their_own_comments(void)
{
    const char *text = "select 1 /*job='a'*/; /*job='b'*/ select 2; -- end\n/*job='c'*/";
    hr_slice slices[HR_MAX_SLICES];
    uint32_t count = hr_split(text, strlen(text), HG_POSTGRES, slices);

    assert(count == 2);
    assert(strncmp(text + slices[0].start, "select 1 /*job='a'*/", slices[0].length) == 0);
    assert(strcmp(text + slices[1].start, " /*job='b'*/ select 2; -- end\n/*job='c'*/") == 0);
    assert(slices[1].start + slices[1].length == strlen(text));
}

static void more_than_enough_statements_are_one(void)
{
    char text[1024] = "";
    hr_slice slices[HR_MAX_SLICES];

    for (int i = 0; i < 100; i++)
        strcat(text, "set a=1;");
    assert(hr_split(text, strlen(text), HG_POSTGRES, slices) == HR_MAX_SLICES);
    assert(slices[HR_MAX_SLICES - 1].reading.kind == HR_KIND_WRITE);
    assert(slices[HR_MAX_SLICES - 1].start + slices[HR_MAX_SLICES - 1].length == strlen(text));
}

static void what_the_gate_follows_is_found(void)
{
    hr_reading reading;
    const char *text = "/* a */ prepare \"My Plan\" (int, numeric(3,1)) as select $1";

    hr_read(text, strlen(text), HG_POSTGRES, &reading);
    assert(reading.verb == HR_VERB_PREPARE && strncmp(text + reading.at, "\"My Plan\"", 9) == 0);
    assert(strcmp(text + reading.inner, " select $1") == 0);
    text = "explain analyze execute a(1)";
    hr_read(text, strlen(text), HG_POSTGRES, &reading);
    assert(reading.kind == HR_KIND_WRITE && reading.verb == HR_VERB_EXECUTE);
    assert(strcmp(text + reading.at, "a(1)") == 0);
    hr_read("rollback", 8, HG_POSTGRES, &reading);
    assert(reading.ends);
    hr_read("rollback work to a", 18, HG_POSTGRES, &reading);
    assert(!reading.ends && reading.back);
    hr_read("commit and no chain", 19, HG_POSTGRES, &reading);
    assert(reading.ends && !reading.chains);
    hr_read("abort work /* and no */ and chain", 33, HG_POSTGRES, &reading);
    assert(reading.ends && reading.chains);
    hr_read("do $$x$$", 8, HG_POSTGRES, &reading);
    assert(reading.does && reading.kind == HR_KIND_WRITE);
}

static const char *name_in(const char *text)
{
    static char name[HR_READ_NAME_BYTES + 1];
    hr_tokens tokens;

    hr_tokens_begin(&tokens, text, strlen(text), HG_POSTGRES);
    assert(hr_tokens_next(&tokens));
    name[hr_read_name(&tokens, name)] = '\0';
    return name;
}

static void names_are_read_as_the_server_does(void)
{
    static const char long_name[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa9";

    assert(strcmp(name_in("MyPlan (1)"), "myplan") == 0);
    assert(strcmp(name_in("\"My \"\"Plan\"\"\""), "My \"Plan\"") == 0);
    assert(strcmp(name_in("U&\"\\0070\\+000041\\\\\""), "pA\\") == 0);
    assert(strcmp(name_in("u&\"!00e9\" UESCAPE '!'"), "\xc3\xa9") == 0);
    assert(strcmp(name_in("U&\"!zz\" UESCAPE '!'"), "") == 0);
    assert(strcmp(name_in("U&\"!0000\" UESCAPE '!'"), "") == 0);
    assert(strlen(long_name) == 64 && strlen(name_in(long_name)) == 62); /* at a character */
}

/* Every cut of every text: no step beyond its end. */
static void a_text_may_end_anywhere(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t length = 0; length <= strlen(rows[i].text); length++) {
            char *exact = malloc(length == 0 ? 1 : length);

            assert(exact != NULL);
            memcpy(exact, rows[i].text, length);
            hr_kind_of(exact, length, HR_PROTOCOL_POSTGRES);
            hr_kind_of(exact, length, HR_PROTOCOL_MYSQL);
            hr_read_deep(exact, length, HG_POSTGRES);
            hr_read_deep(exact, length, HG_MYSQL);
            free(exact);
        }
}

int main(void)
{
    every_kind_is_what_it_is();
    slices_keep_their_own_comments();
    more_than_enough_statements_are_one();
    what_the_gate_follows_is_found();
    names_are_read_as_the_server_does();
    a_text_may_end_anywhere();
    puts("test_kinds: ok");
    return 0;
}
