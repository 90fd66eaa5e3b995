"""What is one statement: decided once, and charged with all that it causes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import fingerprint
from tests.pg.conftest import where_versions_differ
from tests.pg.gate import Gate, Session, block, budget, cpu_s, detail, tagged

pytestmark = where_versions_differ

COUNTED = budget(max_workers=100)
CLOSED = budget(max_workers=0)
# Nobody is blocked, so no look before the run itself can stand in for it.
WOULD_BLOCK = budget(mode="warn", burst=0.001)
BURN = "SELECT burn(40)"


@pytest.fixture
def counted(gate: Gate) -> Gate:
    gate.publish(COUNTED)
    return gate


def test_statements_inside_a_function_are_charged_to_the_top(counted: Gate) -> None:
    with counted.app() as session, counted.counting() as risen:
        session.execute(BURN)
    assert risen["admitted"] == 1
    assert risen["charged_s"] > 0.002


def test_triggers_are_charged_to_the_top(counted: Gate) -> None:
    with counted.app() as session:
        session.execute("CREATE TABLE heard (n int)")
        session.execute(
            "CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM burn(4); UPDATE numbers SET digit = digit"
            " WHERE id = NEW.n; RETURN NEW; END'"
        )
        session.execute(
            "CREATE TRIGGER t AFTER INSERT ON heard FOR EACH ROW EXECUTE FUNCTION hear()"
        )
        with counted.counting() as risen:
            session.execute("INSERT INTO heard SELECT generate_series(1, 10)")
        session.execute("DROP TABLE heard; DROP FUNCTION hear")
    assert risen["admitted"] == 1
    assert risen["charged_s"] > 0.002


def test_functions_that_the_planner_runs_are_no_statements(counted: Gate) -> None:
    with counted.app() as session:
        session.execute(
            "CREATE FUNCTION folded() RETURNS bigint IMMUTABLE LANGUAGE plpgsql"
            " AS 'BEGIN RETURN (SELECT count(*) FROM generate_series(1, 10)); END'"
        )
        with counted.counting() as risen:
            session.execute("SELECT folded()")
        session.execute("DROP FUNCTION folded")
    assert risen["admitted"] == 1


def test_a_prepared_statement_is_decided_at_each_execution(counted: Gate) -> None:
    """Custom plans first, and a generic one, which is not planned again, after."""
    query = "SELECT digit FROM numbers WHERE id = %s"
    with counted.app() as session, counted.counting() as risen:
        for n in range(1, 13):
            assert session.execute(query, [n], prepare=True).fetchone() == (n % 10,)
    assert risen["admitted"] == 12


def test_a_generic_plan_is_blocked_like_any_other(gate: Gate) -> None:
    query = "SELECT digit FROM numbers WHERE id = %s"
    with gate.app() as session:
        for n in range(1, 10):
            session.execute(query, [n], prepare=True)
        gate.publish(CLOSED)
        for n in range(3):
            block(lambda n=n: session.execute(query, [n], prepare=True))  # type: ignore[misc]
        gate.clear()
        assert session.execute(query, [3], prepare=True).fetchone() == (3,)


def test_sql_execute_is_the_statement_that_it_runs(gate: Gate) -> None:
    with gate.app() as session:
        session.execute("PREPARE p(int) AS SELECT digit FROM numbers WHERE id = $1 /*job='p'*/")
        gate.publish(tagged("p", job="p"))
        with gate.counting("p") as risen:
            for n in range(1, 9):
                session.execute(f"EXECUTE p({n})")
    assert risen["admitted"] == 8


def test_sql_execute_is_judged_on_a_quiet_server(gate: Gate) -> None:
    """Its rows go into a store, as those of a holdable cursor at COMMIT do."""
    with gate.app() as session:
        session.execute("PREPARE quiet AS SELECT count(*) FROM numbers")
        gate.publish(WOULD_BLOCK)
        with gate.counting() as risen:
            for _ in range(3):
                session.execute("EXECUTE quiet")
    assert (risen["warned_burst"], risen["passed"]) == (3, 0)


@pytest.fixture
def with_functions(gate: Gate) -> Iterator[Session]:
    """A partitioned table, and SQL functions that are run while a statement is prepared to run."""
    with gate.app() as session:
        session.execute("CREATE TABLE parts (id int) PARTITION BY RANGE (id)")
        for n in (0, 100):
            values = f"FOR VALUES FROM ({n}) TO ({n + 100})"
            session.execute(f"CREATE TABLE parts{n} PARTITION OF parts {values}".encode())
        session.execute("INSERT INTO parts VALUES (5), (105)")
        session.execute(
            "CREATE FUNCTION mine() RETURNS int LANGUAGE sql STABLE SECURITY DEFINER"
            " AS 'SELECT count(*)::int + 4 FROM (VALUES (1)) v'"
        )
        session.execute(
            "CREATE FUNCTION fold() RETURNS int LANGUAGE sql IMMUTABLE SET work_mem = '4MB'"
            " AS 'SELECT count(*)::int FROM (VALUES (1)) v'"
        )
        yield session
        gate.clear()
        session.execute("DROP TABLE IF EXISTS parts, made_of; DROP FUNCTION mine, fold")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM numbers, parts WHERE parts.id >= mine()",
        "EXPLAIN ANALYZE SELECT count(*) FROM numbers, parts WHERE parts.id >= mine()",
        "EXPLAIN ANALYZE SELECT count(*) FROM numbers WHERE id > fold()",
        "CREATE TABLE made_of AS SELECT count(*) FROM numbers WHERE id > fold()",
    ],
)
def test_a_function_that_prunes_or_folds_is_not_judged_in_the_statements_place(
    gate: Gate, with_functions: Session, text: str
) -> None:
    gate.publish(WOULD_BLOCK)
    with gate.counting() as risen:
        with_functions.execute(text.encode())
    assert (risen["warned_burst"], risen["passed"]) == (1, 0)


def test_a_string_of_many_statements_is_read_once(gate: Gate) -> None:
    """Not once for each of them, which would take seconds here, and hours for a dump. By the CPU
    time of its own process: what others do does not count."""
    text = ";".join(f"SELECT {n}" for n in range(5000)).encode()

    def took_s() -> float:
        with gate.app() as session:
            began_s = cpu_s(session.info.backend_pid)
            assert session.pgconn.exec_(text).status == psycopg.pq.ExecStatus.TUPLES_OK
            return cpu_s(session.info.backend_pid) - began_s

    ungoverned = took_s()
    for rule in ({"match": {"username": "app"}}, {"match": {"tag.job": "a"}}):
        gate.publish(budget(rules=[rule], max_workers=9))
        assert took_s() < 5 * ungoverned + 0.5


def test_a_cursor_is_admitted_once_and_rests_between_fetches(counted: Gate) -> None:
    with counted.app() as session, counted.counting() as risen, session.transaction():
        session.execute("DECLARE c SCROLL CURSOR FOR SELECT *, burn(1) FROM numbers")
        for _ in range(3):
            assert len(session.execute("FETCH 10 FROM c").fetchall()) == 10
            assert counted.running() == 0
        before_close = counted.budget()["charged_s"]
        session.execute("FETCH BACKWARD 5 FROM c")
        session.execute("CLOSE c")
        assert counted.budget()["charged_s"] > before_close
    assert risen["admitted"] == 1


def test_a_cursor_whose_transaction_ends_is_settled(counted: Gate) -> None:
    with counted.app() as session, counted.counting() as risen:
        for end in ("COMMIT", "ROLLBACK"):
            session.execute("BEGIN")
            session.execute("DECLARE c CURSOR FOR SELECT * FROM numbers")
            session.execute("FETCH 10 FROM c")
            session.execute("SAVEPOINT s")
            session.execute("DECLARE d CURSOR FOR SELECT * FROM numbers")
            session.execute("FETCH 10 FROM d")
            session.execute("ROLLBACK TO s")
            session.execute(end)
    assert risen["admitted"] == 4
    assert risen["charged_s"] > 0


def test_each_cursor_of_one_string_has_its_own_tags(gate: Gate) -> None:
    gate.publish(tagged("a", job="a"), tagged("b", job="b"))
    with gate.app() as session, session.transaction():
        session.execute(
            "DECLARE a CURSOR FOR SELECT 1 /*job='a'*/; DECLARE b CURSOR FOR SELECT 2 /*job='b'*/"
        )
        with gate.counting("a") as of_a, gate.counting("b") as of_b:
            session.execute("FETCH ALL FROM b")
        assert (of_a["admitted"], of_b["admitted"]) == (0, 1)
        with gate.counting("a") as of_a:
            session.execute("FETCH ALL FROM a")
        assert of_a["admitted"] == 1


@pytest.mark.parametrize(
    "statement",
    [
        "COPY numbers TO STDOUT",
        "COPY (SELECT * FROM numbers) TO STDOUT",
        "COPY numbers (id, digit) FROM STDIN",
    ],
)
def test_copy_is_decided_and_charged(counted: Gate, statement: str) -> None:
    with counted.app() as session, counted.counting() as risen, session.transaction():
        with session.cursor().copy(statement) as copy:
            if "FROM STDIN" in statement:
                copy.write("".join(f"{n}\t1\n" for n in range(50_000, 52_000)))
            else:
                assert sum(1 for _ in copy) >= 20_000
        session.execute("DELETE FROM numbers WHERE id >= 50000")
    assert risen["admitted"] == 2
    assert risen["charged_s"] > 0.0005


@pytest.mark.parametrize("statement", ["COPY numbers TO STDOUT", "COPY (SELECT 1) TO STDOUT"])
def test_copy_is_blocked(gate: Gate, statement: str) -> None:
    gate.publish(CLOSED)
    with gate.app() as session:

        def run() -> None:
            with session.cursor().copy(statement) as copy:
                list(copy)

        block(run)


UTILITIES = (
    "CREATE TABLE made (n int)",
    "CREATE INDEX ON made (n)",
    "ANALYZE made",
    "VACUUM made",
    "CREATE MATERIALIZED VIEW seen AS SELECT count(*) FROM numbers",
    "REFRESH MATERIALIZED VIEW seen",
    "CREATE TABLE copied AS SELECT * FROM numbers",
    "DO 'BEGIN PERFORM burn(2); PERFORM burn(2); END'",
    "CREATE TABLE hollow AS SELECT * FROM numbers WITH NO DATA",
    "EXPLAIN SELECT count(*) FROM numbers",
    "NOTIFY x",
    "DROP MATERIALIZED VIEW seen",
    "DROP TABLE made, copied, hollow",
)
NEVER_GATED = (
    "BEGIN",
    "SAVEPOINT a",
    "SET LOCAL work_mem = '8MB'",
    "SHOW work_mem",
    "SET CONSTRAINTS ALL IMMEDIATE",
    "PREPARE q AS SELECT 1",
    "DEALLOCATE q",
    "LISTEN x",
    "UNLISTEN x",
    "COMMIT",
    "RESET work_mem",
    "DISCARD ALL",
)


def test_utility_statements_are_decided_once_each(counted: Gate) -> None:
    with counted.app() as session:
        for statement in UTILITIES:
            with counted.counting() as risen:
                session.execute(statement.encode())
            assert risen["admitted"] == 1, statement


def test_utility_statements_are_blocked(gate: Gate) -> None:
    gate.publish(CLOSED)
    with gate.app() as session:
        for statement in UTILITIES:
            block(lambda statement=statement: session.execute(statement.encode()))  # type: ignore[misc]


def test_what_ends_or_leads_a_transaction_is_never_blocked(gate: Gate) -> None:
    gate.publish(CLOSED)
    with gate.app() as session, gate.counting() as risen:
        for statement in NEVER_GATED:
            session.execute(statement.encode())
    assert risen["admitted"] == risen["blocked_concurrency"] == 0


def test_a_utility_statement_is_estimated_by_its_last_runs(gate: Gate) -> None:
    gate.publish(COUNTED)
    statement = "DO 'BEGIN PERFORM burn(60); END'"
    with gate.app() as session:
        session.execute(statement)
        gate.publish(budget(burst=0.01))
        assert detail(block(lambda: session.execute(statement)))["limit"] == "burst"


def test_explain_is_judged_whether_it_analyzes_or_not(gate: Gate) -> None:
    gate.publish(CLOSED)
    with gate.app() as session:
        block(lambda: session.execute("EXPLAIN (ANALYZE off) SELECT count(*) FROM numbers"))
        block(lambda: session.execute("EXPLAIN ANALYZE SELECT count(*) FROM numbers"))
        block(lambda: session.execute("EXPLAIN (ANALYZE) CREATE TABLE never AS SELECT 1"))


def test_call_with_commits_holds_its_place_to_the_end(counted: Gate) -> None:
    with counted.app() as session:
        session.execute(
            "CREATE PROCEDURE walk() LANGUAGE plpgsql AS $$ BEGIN"
            " FOR i IN 1..5 LOOP PERFORM burn(1); COMMIT; END LOOP;"
            " ROLLBACK; PERFORM burn(1); END $$"
        )
        with counted.counting() as risen:
            session.execute("CALL walk()")
        session.execute("DROP PROCEDURE walk")
    assert risen["admitted"] == 1
    assert counted.running() == 0


def test_statements_of_one_string_are_decided_each_by_its_own_tags(gate: Gate) -> None:
    gate.publish(tagged("a", job="a"), tagged("b", job="b"), tagged("c", job="c"))
    text = (
        "/*job='a'*/ SELECT 'x;y' ; -- ; /*job='c'*/\n"
        "SELECT $$;$$ /*job='b'*/; /*job='c'*/ SELECT E'\\';' ; ; SELECT 4"
    )
    before = [gate.budget(name)["admitted"] for name in "abc"]
    with gate.app() as session:
        session.execute(text.encode())
    assert [gate.budget(name)["admitted"] for name in "abc"] == [n + 1 for n in before]


@pytest.mark.parametrize(
    "text",
    [
        "/*job='a'*/ SELECT 1",
        "SELECT 1 /*job='a'*/",
        "SELECT 1; /*job='a'*/",
        "  -- first\n/*job='a'*/ SELECT ';' /* last */ ;",
    ],
)
@pytest.mark.parametrize("prepare", [False, True])
def test_tags_are_found_wherever_a_tool_puts_them(gate: Gate, text: str, prepare: bool) -> None:
    gate.publish(tagged("a", job="a"))
    with gate.app() as session, gate.counting("a") as risen:
        session.execute(text.encode(), prepare=prepare)
    assert risen["admitted"] == 1


def test_plans_inside_others_are_known_by_the_statement_around_them(gate: Gate) -> None:
    """Until 17 they have no query id of their own."""
    gate.publish(COUNTED)
    before = len(gate.rows("SELECT FROM headgate.patterns WHERE query_id = 0"))
    with gate.app() as session, session.transaction():
        session.execute("CREATE TEMP TABLE inner_plan AS SELECT * FROM numbers")
        session.execute("DECLARE c CURSOR FOR SELECT id, digit, 1 FROM numbers")
        session.execute("FETCH ALL FROM c")
    assert len(gate.rows("SELECT FROM headgate.patterns WHERE query_id = 0")) == before


def test_a_rule_may_name_the_query_id(gate: Gate) -> None:
    gate.publish(COUNTED)
    named, known = "SELECT 'by its id', 1, 2, 3, 4", "SELECT query_id FROM headgate.patterns"
    before = {row["query_id"] for row in gate.rows(known)}
    with gate.app() as session:
        session.execute(named)
        (found,) = {row["query_id"] for row in gate.rows(known)} - before
        rule = {"match": {"query": str(found)}}
        gate.publish(budget(rules=[rule], max_workers=1000))
        with gate.counting() as risen:
            session.execute(named)
            session.execute("SELECT 'by another'")
    assert risen["admitted"] == 1


def test_a_rule_may_name_the_fingerprint(gate: Gate) -> None:
    text = b"SELECT digit FROM numbers WHERE id = 7"
    rule = {"match": {"fingerprint": f"{fingerprint(text, Dialect.POSTGRES):016x}"}}
    gate.publish(budget(rules=[rule], max_workers=1000))
    with gate.app() as session, gate.counting() as risen:
        session.execute("select digit from numbers where id = 8 -- another")
        session.execute("SELECT id FROM numbers WHERE id = 7")
    assert risen["admitted"] == 1


def test_without_a_policy_nothing_is_kept(gate: Gate) -> None:
    """R101."""
    before = gate.rows("SELECT count(*) AS n FROM headgate.patterns")
    with gate.app() as session:
        session.execute("SELECT 1 AS never_seen_before")
    assert gate.rows("SELECT count(*) AS n FROM headgate.patterns") == before


@pytest.mark.parametrize("text", ["SELECT 1", "INSERT INTO numbers VALUES (-1, 1)", BURN])
def test_what_is_blocked_has_not_run(gate: Gate, text: str) -> None:
    gate.publish(CLOSED)
    with gate.app() as session:
        block(lambda: session.execute(text.encode()))
        assert session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert gate.rows("SELECT FROM numbers WHERE id = -1") == []
