/* What a statement's first words say, in both dialects, and that nothing gets past by the way it is
 * written. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "inside.h"
#include "kinds.h"

typedef struct row {
    const char *text;
    int postgres, mysql; /* HR_KIND_*; -1: not checked */
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
    {"show all", F, R},
    {"discard all", F, W},
    {"listen a", F, W},
    {"notify a, 'b'", W, W},
    {"unlisten *", F, W},
    {"deallocate a", F, W},
    {"deallocate prepare a", F, F},
    {"drop prepare a", -1, F},
    {"drop table a", W, W},
    {"close c", F, W},
    {"checkpoint", W, W},
    {"load 'lib'", W, W},
    {"alter system set a = 1", W, W},
    {"alter table t add b int", W, W},
    {"prepare a as select 1", F, -1},
    {"prepare a from 'select 1'", -1, F},
    {"execute a", W, W},
    {"execute immediate 'select 1'", -1, W},
    {"declare c cursor for select 1", R, W},
    {"declare c cursor for select 1 for update", W, W},
    {"fetch 10 from c", R, W},
    {"explain select 1", R, R},
    {"explain delete from t", R, R},
    {"explain analyze select 1", R, R},
    {"EXPLAIN (ANALYZE, BUFFERS) DELETE FROM t", W, -1},
    {"explain (analyze off, costs) delete from t", R, -1},
    {"explain (analyze false) delete from t", R, -1},
    {"explain (analyze 'off') delete from t", W, -1},
    {"explain (costs off, analyze) select 1", R, -1},
    {"explain (\"analyze\") delete from t", W, -1},
    {"explain (analyze off, \"analyze\" on) delete from t", W, -1},
    {"explain (analyze 1, analyze 0) delete from t", W, -1},
    {"explain (U&\"analyz!0065\" UESCAPE '!') delete from t", W, -1},
    {"explain (costs, \"Format\" json) delete from t", W, -1},
    {"select '\\d+';", R, -1},
    {"select '\\'; set a = '; select heavy(); --'", W, -1}, /* one, unread */
    {"explain (select 1)", R, R},
    {"explain verbose select 1", R, -1},
    /* A schema for temporary tables is made, although nothing runs. */
    {"explain select 1 into temp t", W, -1},
    {"explain (analyze off) select a into temporary t from s", W, -1},
    {"explain create temp table t as select 1", W, -1},
    {"explain (select 1 from t) union select 2", R, R},
    {"explain analyze verbose insert into t values (1)", W, -1},
    {"explain format=json select 1", -1, R},
    {"explain analyze format=tree select 1", -1, R},
    {"analyze select 1", W, R},
    {"analyze format=json delete from t", -1, W},
    {"analyze table t", -1, W},
    {"describe t", W, R},
    {"copy t to stdout", R, W},
    {"copy t (a, b) from stdin", W, W},
    {"copy (select 1) to stdout", R, W},
    {"copy (delete from t returning *) to stdout", W, W},
    {"copy (select a, (b) from t) to stdout with (format csv)", R, W},
    {"copy t (a) to stdout", R, W},
    {"copy t to '/tmp/a'", W, W},
    {"copy t to program 'sh'", W, W},
    {"copy (select 1) to program 'sh'", W, W},
    {"copy (select 1 from \"to\") from stdin", W, W},
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
    {"/*!40001 select */ 1", -1, W},
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
    /* H1: whether a versioned comment runs is the server's to say. */
    {"/*!99999 SHOW */ DELETE FROM t", -1, W},
    {"/*!999999 SHOW */ DELETE FROM t", -1, W},
    {"/*M!999999 SET */ DELETE FROM t", -1, W},
    {"/*m! SHOW */ DELETE FROM t", -1, W},
    {"/*!99999 COMMIT */ DELETE FROM t", -1, W},
    {"SHOW TABLES /*!99999 ( */; DELETE FROM t", -1, M},
    {"SHOW TABLES /*!99999 ' */; DELETE FROM t -- '", -1, M},
    {"/*!99999 /* */ SHOW TABLES */ DELETE FROM t", -1, W},
    {"/*!99999 /*! */ SHOW TABLES */ DELETE FROM t", -1, W},
    {"SELECT 1 /*!99999 ' */ INTO OUTFILE 'x' -- '", -1, W},
    {"SELECT /*!99999 1 */ /*!50000 sleep(1) */", -1, W}, /* who knows which of them */
    {"/*!99999 SHOW */ /*!50000 TABLES */", -1, W},
    {"/*!40101 SET NAMES utf8 */; /*!40101 SET NAMES utf8 */;", -1, F},
    {"START TRANSACTION /*!40100 WITH CONSISTENT SNAPSHOT */", -1, B},
    {"SELECT /*!40001 SQL_NO_CACHE */ * FROM t", -1, R},
    {"SHOW /*!50002 FULL */ TABLES", -1, F},
    {"/*!99999 begin */", -1, B},
    {"/*!40000 ALTER TABLE t DISABLE KEYS */", -1, W},
    /* A comment of MySQL's ends at the first star and slash, also where these open one in Postgres. */
    {"/*/*/DELETE FROM t", E, W},
    {"/*/ SHOW /*/ DELETE FROM t", E, W},
    {"/*x/*/ SELECT 1; DELETE FROM t /* */ */", E, M},
    {"/*!99999 /*/*/ SHOW TABLES */ DELETE FROM t", -1, W},
    /* H2: a line ends where the server says. */
    {"#\rSHOW TABLES\nDELETE FROM t", -1, W},
    {"-- x\rSHOW TABLES\nDELETE FROM t", F, W},
    {"--\x7fx\rSHOW TABLES\nDELETE FROM t", -1, W},
    /* H3, P3: what can run work is not free. */
    {"SHOW DATABASES WHERE (SELECT COUNT(*) FROM t)=3", -1, R},
    {"SHOW DATABASES WHERE f()", -1, R},
    {"SHOW VARIABLES WHERE Variable_name = 'a' OR variable_name LIKE 'b' OR Variable_name IN ('c', 'd')",
     -1, F},
    {"SHOW VARIABLES WHERE variable_name = f()", -1, R},
    {"SHOW VARIABLES WHERE variable_name = 'a' OR sleep(1)", -1, R},
    {"SHOW GLOBAL STATUS LIKE 'Threads%'", -1, F},
    {"SHOW VARIABLES LIKE '%_%_%_%_%_%_zz'", -1, R}, /* a minute of one CPU */
    {"SHOW VARIABLES WHERE variable_name like '%%%%%%%%zz'", -1, R},
    {"DESC t '%_%_%_%_%_%_zz'", -1, R},
    {"SHOW FULL COLUMNS FROM `t` FROM `d` LIKE 'a%'", -1, R},
    {"SHOW COUNT(*) WARNINGS", -1, F},
    {"SHOW BINLOG EVENTS", -1, R},
    {"SHOW TABLE STATUS", -1, R},
    {"KILL 7", -1, F},
    {"KILL HARD CONNECTION 7", -1, F},
    {"KILL QUERY ID 7", -1, F},
    {"KILL USER 'a'@'b'", -1, F},
    {"KILL SLEEP(1)", -1, W},
    {"KILL 1 + BENCHMARK(1000000, 1)", -1, W},
    {"KILL QUERY (SELECT 1)", -1, W},
    {"desc db.t a", -1, R},
    {"explain t", -1, R},
    {"explain table t", -1, R},
    {"desc select f()", -1, R},
    {"EXPLAIN SELECT 1 WHERE id = (SELECT BENCHMARK(1, 1))", -1, R},
    {"help 'contents'", -1, R},
    {"get diagnostics condition 1 @a = message_text", -1, W},
    {"prepare a from concat('select ', sleep(1))", -1, W},
    {"prepare a from @b", -1, F},
    {"set @a = d.concat('x')", -1, W},
    {"set @a = concat ('x')", -1, W},
    {"set @a = now()", -1, W},
    {"set @a = replace(@b, 'a', 'aa')", -1, W},
    {"set @a = next value for s", -1, W},
    {"set @a = s.nextval", -1, W},
    {"set @a = 'a' regexp 'b'", -1, W},
    {"set @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='x', time_zone = @tz, session a := -1, @@local.b = NULL",
     -1, F},
    {"set sql_mode = replace(concat(@@session.sql_mode, ',A'), 'B', '')", -1, F},
    {"set sql_mode = concat(replace(replace(@@sql_mode, 'A', ''), 'B', \"\"), ',C')", -1, F},
    {"set @a = replace(replace('aaaa', 'a', 'aaaa'), 'a', 'aaaa')", -1,
     W}, /* grows with every call */
    {"set global a = 1", -1, W},
    {"set @@global.a = 1", -1, W},
    {"set @@persist.a = 1", -1, W},
    {"set password = 'x'", -1, W},
    {"set names utf8mb4 collate utf8mb4_bin", -1, F},
    {"set session transaction isolation level read committed, read only", F, F},
    {"set default role a", -1, W},
    {"set statement max_statement_time = (select 1) for show tables", -1, W},
    {"refresh materialized view v", W, -1},
    {"set time zone interval '1' hour to minute", F, -1},
    {"set local a.b to 'x', \"y\"", F, -1},
    {"set session characteristics as transaction read only", F, -1},
    {"xa end 'a', 'b', 1", -1, F},
    /* M4: what is a literal is the session's to say. */
    {"SELECT '\\'; DELETE FROM t; -- '", W, W},
    {"SELECT 1 AS \"\\\"; DELETE FROM t; -- \"", -1, W},
    {"SELECT '\x83\\'; DELETE FROM t; -- '", -1, W},
    {"SELECT E'\x83\\'; DELETE FROM t; --'", W, -1},
    {"SELECT E'a'\n'\\''; DELETE FROM t; --'", W, -1},
    {"SELECT 1 --\x7f' \n; DELETE FROM t -- '", -1, M},
    {"SELECT 1 AS `\x81`; DELETE FROM t; -- `", -1, M},
    {"SELECT 'it\\'s' FROM t", -1, R},
    {"SELECT 'it\\'s' FROM t FOR UPDATE", -1, W},
    {"SELECT 'it\\'s', updated_at, relocked FROM t;", -1, R},
    {"SELECT id FROM t WHERE id=1.FOR UPDATE", -1, W},
    {"SELECT 1e5INTO @a", -1, W},
    {"SELECT 1INTO t2", W, W},
    {"SELECT 1\xa0INTO @a", -1, W},
    {"SET \xa0STATEMENT\xa0sql_mode=ansi\xa0"
     "FOR\xa0"
     "DELETE\xa0"
     "FROM\xa0t",
     -1, W},
    {"SET \xa0GLOBAL\xa0wait_timeout = 1", -1, W},
    {"EXPLAIN \xa0SELECT\xa0"
     "a\xa0"
     "FROM\xa0v",
     -1, R},
    {"SHOW COLUMNS FROM t\xa0WHERE\xa0"
     "field",
     -1, R},
    {"USE `\xc3\xbc"
     "ber`",
     -1, F},
    {"SELECT 1 FROM t FOR\xa0UPDATE", -1, W},
    {"SELECT /*+ QB_NAME(`a*/`) */ 1 INTO OUTFILE 'x' -- `", -1, W},
    {"SELECT /*+ MAX_EXECUTION_TIME(1000) */ 1", -1, R},
    {"with a as (select 1) search depth first by b set c delete from t", W, -1},
    {"with a as (select replace('a', 'b', 'c')) select 1 from a", R, R},
};

static int kind_of(const char *text, size_t length, int dialect)
{
    hr_query query;

    hr_query_read(&query, text, length, dialect);
    return hr_query_kind(&query);
}

static int deep_kind(const char *text, uint32_t protocol)
{
    int dialect = protocol == HR_PROTOCOL_MYSQL ? HG_MYSQL : HG_POSTGRES;
    int kind = kind_of(text, strlen(text), dialect);

    return kind == HR_KIND_READ && hr_read_deep(text, strlen(text), dialect) ? HR_KIND_WRITE : kind;
}

static void every_kind_is_what_it_is(void)
{
    bool wrong = false;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int postgres = deep_kind(rows[i].text, HR_PROTOCOL_POSTGRES);
        int mysql = deep_kind(rows[i].text, HR_PROTOCOL_MYSQL);

        if ((rows[i].postgres >= 0 && rows[i].postgres != postgres)
            || (rows[i].mysql >= 0 && rows[i].mysql != mysql)) {
            fprintf(stderr, "%s: %d %d\n", rows[i].text, postgres, mysql);
            wrong = true;
        }
    }
    assert(!wrong);
}

static void slices_keep_their_own_comments(void)
{
    const char *text = "select 1 /*job='a'*/; /*job='b'*/ select 2; -- end\n/*job='c'*/";
    hr_query query;
    const hr_slice *slices = query.slices;

    hr_query_read(&query, text, strlen(text), HG_POSTGRES);
    assert(query.count == 2);
    assert(strncmp(text + slices[0].start, "select 1 /*job='a'*/", slices[0].length) == 0);
    assert(strcmp(text + slices[1].start, " /*job='b'*/ select 2; -- end\n/*job='c'*/") == 0);
    assert(slices[1].start + slices[1].length == strlen(text));
}

static void more_than_enough_statements_are_one(void)
{
    char text[1024] = "";
    hr_query query;
    const hr_slice *slices = query.slices;

    for (int i = 0; i < 100; i++)
        strcat(text, "set a=1;");
    hr_query_read(&query, text, strlen(text), HG_POSTGRES);
    assert(query.count == HR_MAX_SLICES);
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

/* What comes before the first place where a text may be read otherwise is what it is. */
static void doubts_begin_where_they_stand(void)
{
    const char *text = "set a = 1; commit; select 'a\\\\'; set b = 2";
    hr_query query;
    const hr_slice *slices = query.slices;

    hr_query_read(&query, text, strlen(text), HG_MYSQL);
    assert(query.count == 4);
    assert(slices[0].reading.kind == HR_KIND_FREE && slices[1].reading.kind == HR_KIND_FREE);
    assert(!slices[1].reading.unsure && slices[1].reading.ends);
    assert(slices[2].reading.kind == HR_KIND_WRITE && slices[2].reading.unsure);
    assert(slices[3].reading.kind == HR_KIND_WRITE && slices[3].reading.verb == HR_VERB_SET);
    text = "commit; /*!99999 begin */; select 1";
    hr_query_read(&query, text, strlen(text), HG_MYSQL);
    assert(query.count == 3 && slices[0].reading.kind == HR_KIND_FREE && !slices[0].reading.unsure);
    assert(slices[1].reading.unsure && slices[2].reading.kind == HR_KIND_WRITE);
}

/* M3: which statements leave a transaction of MySQL open. */
static void commits_are_seen(void)
{
    static const char *const keep[] = {"select 1",           "insert into t values (1)",
                                       "update t set a = 1", "do 1",
                                       "delete from t",      "replace into t values (1)",
                                       "show tables",        "with a as (select 1) select 1",
                                       "set a = 1"};
    static const char *const end[] = {"create table t (a int)",
                                      "call p()",
                                      "execute p",
                                      "lock tables t read",
                                      "begin",
                                      "start transaction",
                                      "truncate t",
                                      "alter table t add b int",
                                      "drop table t",
                                      "analyze table t",
                                      "set password = 'x'"};
    hr_reading reading;

    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        hr_read(keep[i], strlen(keep[i]), HG_MYSQL, &reading);
        assert(!reading.commits && !reading.ends);
    }
    for (size_t i = 0; i < sizeof end / sizeof *end; i++) {
        hr_read(end[i], strlen(end[i]), HG_MYSQL, &reading);
        assert(reading.commits);
    }
    hr_read("set @a = 1, autocommit = 1", 26, HG_MYSQL, &reading);
    assert(reading.ends && reading.kind == HR_KIND_FREE);
}

/* A statement of any length is read in bounded depth. */
static void a_long_list_is_not_free(void)
{
    static char text[65536];
    size_t length = 3;

    memcpy(text, "set", 3);
    for (; length < sizeof text - 5; length += 5)
        memcpy(text + length, length == 3 ? " a=1 " : ", a=1", 5);
    assert(kind_of(text, length, HG_MYSQL) == HR_KIND_WRITE);
    assert(kind_of(text, 5 * 20 + 3, HG_MYSQL) == HR_KIND_FREE);
}

static const char *name_in(const char *text)
{
    static char name[HR_READ_NAME_BYTES + 1];
    hg_tokens tokens;

    hg_tokens_begin(&tokens, text, strlen(text), HG_POSTGRES);
    assert(hg_tokens_next(&tokens));
    name[hr_read_name(&tokens, name)] = '\0';
    return name;
}

static void names_are_read_as_the_server_does(void)
{
    static const char long_name[]
        = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa9";

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
            kind_of(exact, length, HG_POSTGRES);
            kind_of(exact, length, HG_MYSQL);
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
    doubts_begin_where_they_stand();
    commits_are_seen();
    a_long_list_is_not_free();
    puts("test_kinds: ok");
    return 0;
}
