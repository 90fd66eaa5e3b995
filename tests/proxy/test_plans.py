"""What a pattern costs, asked once: bounded, remembered, and never executed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headgate.budgets.cost import Pattern
from headgate.budgets.native.region import PatternView
from headgate.proxy.model import PlanTerms
from headgate.proxy.plans import (
    MAX_CONNECTIONS,
    MAX_RETRY_S,
    MAX_WAITING,
    RETRY_S,
    ExplainFailed,
    NoSession,
    Plans,
    PlanSession,
    PostgresSessions,
    cost_in,
    may_be_explained,
)
from headgate.proxy.ports import WantedPlan
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.pgkits import UNEXTENDED, kit, start_extended
from tests.proxy.fakes import FakeRelay


def wanted(pattern: int = 1, text: str = "SELECT 1", database: str = "app", **more: Any) -> Any:
    plan = WantedPlan(pattern, database, "etl", text, whole=True, parameters=False)
    return plan._replace(**more)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("select 1", True),
        ("  /* a */ -- b\n WITH x AS (SELECT 1) SELECT * FROM x", True),
        ("((SELECT 1))", True),
        ("INSERT INTO t VALUES (1)", True),
        ("EXPLAIN ANALYZE DELETE FROM t", False),
        ("DROP TABLE t", False),
        ("COPY t TO STDOUT", False),
        ("CALL p()", False),
        ("", False),
        ("/* unended", False),
        ("SELECT 'a\0b'", False),
    ],
)
def test_only_statements_that_have_a_plan_are_explained(text: str, may: bool) -> None:
    assert may_be_explained(wanted(text=text)) is may


def test_a_text_that_is_cut_is_not_explained() -> None:
    assert not may_be_explained(wanted(whole=False))


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", '[{"Plan": {}}]', '[{"Plan": {"Total Cost": -1}}]', None]
)
def test_a_plan_without_a_cost_is_no_cost_of_zero(answer: Any) -> None:
    with pytest.raises(ExplainFailed):
        cost_in(answer)


# --- the loop, without a server ---------------------------------------------------------------


class FakeSession:
    def __init__(self, answer: Callable[[str], float]) -> None:
        self._answer = answer
        self.closed = False

    async def cost(self, text: str) -> float:
        return self._answer(text)

    async def close(self) -> None:
        self.closed = True


class FakeSessions:
    def __init__(self) -> None:
        self.opened: list[tuple[str, FakeSession]] = []
        self.away = False
        self.answer: Callable[[str], float] = lambda _: 8.5
        self.asked: list[str] = []

    def _asked(self, text: str) -> float:
        self.asked.append(text)
        return self.answer(text)

    async def open(self, database: str) -> PlanSession:
        if self.away:
            raise NoSession("connection refused")
        session = FakeSession(self._asked)
        self.opened.append((database, session))
        return session


class World:
    def __init__(self, **terms: Any) -> None:
        self.relay, self.clock, self.sessions = FakeRelay(), HandClock(), FakeSessions()
        self.patterns: list[PatternView] = []
        self.plans = Plans(
            self.relay, PlanTerms("", **terms), self.sessions, self.clock, lambda: self.patterns
        )
        self._running = asyncio.ensure_future(self.plans.run())

    async def pass_s(self, seconds: float = 1.0) -> None:
        await self.clock.advance(seconds)
        await settle()

    async def close(self) -> None:
        self._running.cancel()
        await self.plans.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(per_s=10.0, max_known=100)
    yield made
    await made.close()


async def test_a_pattern_is_explained_once_and_remembered(world: World) -> None:
    world.plans.plan_wanted(wanted())
    world.plans.plan_wanted(wanted())
    await world.pass_s()
    assert world.relay.plans == {1: 8.5}
    world.relay.plans.clear()
    world.plans.plan_wanted(wanted())  # the relay's table has lost it
    assert (world.relay.plans, len(world.sessions.asked)) == ({1: 8.5}, 1)


async def test_so_many_a_second_and_no_more(world: World) -> None:
    for n in range(1, 41):
        world.plans.plan_wanted(wanted(n))
    await world.pass_s(1.95)
    assert len(world.sessions.asked) <= 21


async def test_a_failure_is_remembered_with_a_growing_pause(world: World) -> None:
    def fails(_: str) -> float:
        raise ExplainFailed("relation does not exist")

    world.sessions.answer = fails
    for _ in range(10):
        world.plans.plan_wanted(wanted())
        await world.pass_s(1.0)
    assert len(world.sessions.asked) == 1
    assert world.plans.why_not(1) == "relation does not exist"
    await world.pass_s(RETRY_S)
    world.sessions.answer = lambda _: 3.0
    world.plans.plan_wanted(wanted())
    await world.pass_s(1.0)
    assert world.relay.plans == {1: 3.0}
    assert world.plans.why_not(1) == ""
    assert MAX_RETRY_S == 3600.0


async def test_a_server_that_is_away_is_not_knocked_at_for_each_pattern(world: World) -> None:
    world.sessions.away = True
    for n in range(1, 21):
        world.plans.plan_wanted(wanted(n))
    await world.pass_s(0.9)
    assert "connection refused" in world.plans.state().summary
    world.sessions.away = False
    await world.pass_s(30.0)
    world.plans.plan_wanted(wanted(99))
    await world.pass_s(1.0)
    assert 99 in world.relay.plans
    assert world.plans.state().healthy


async def test_what_waits_is_bounded_and_what_is_left_out_counted(world: World) -> None:
    for n in range(1, MAX_WAITING + 11):
        world.plans.plan_wanted(wanted(n))
    assert world.plans.dropped_total == 10


async def test_connections_are_one_a_database_few_and_closed_when_idle(world: World) -> None:
    for n in range(1, MAX_CONNECTIONS + 3):
        world.plans.plan_wanted(wanted(n, database=f"db{n}"))
    await world.pass_s(2.0)
    still = [session for _, session in world.sessions.opened if not session.closed]
    assert len(still) == MAX_CONNECTIONS
    await world.pass_s(200.0)
    assert all(session.closed for _, session in world.sessions.opened)


async def test_the_error_of_estimates_is_reported(world: World) -> None:
    world.patterns = [
        PatternView(n, 0, 0, 1, Pattern(n, calls=5, error=0.2 * n)) for n in (1, 2, 3)
    ]
    state = world.plans.state()
    assert state.figures["calibration_error"] == pytest.approx(0.4)
    assert "off by 40%" in state.summary


# --- against a real server --------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans_dsn(servers_dir: Path) -> Iterator[str]:
    with start_extended(servers_dir, 18, settings=UNEXTENDED, using=kit(18)) as server:
        _fill(server.dsn())
        yield server.dsn()


def _fill(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE planned (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO planned SELECT n, 'x' FROM generate_series(1, 5000) n")
        connection.execute("ANALYZE planned")
        connection.execute("CREATE ROLE planner LOGIN")
        connection.execute("CREATE ROLE mightier LOGIN NOINHERIT IN ROLE pg_write_server_files")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON planned TO planner")


@pytest.fixture
async def side(plans_dsn: str) -> AsyncIterator[PlanSession]:
    terms = PlanTerms(make_conninfo(plans_dsn, user="planner"), timeout_s=60.0)
    session = await PostgresSessions(terms).open("postgres")
    yield session
    await session.close()


@pytest.mark.parametrize("user", ["", "mightier"])
async def test_a_role_that_may_do_more_than_read_is_not_used(plans_dsn: str, user: str) -> None:
    """Functions of clients run with its rights, where the planner folds constants."""
    dsn = make_conninfo(plans_dsn, user=user) if user else plans_dsn
    with pytest.raises(NoSession, match=r"may do more than read.* SELECT on the tables"):
        await PostgresSessions(PlanTerms(dsn)).open("postgres")


async def test_a_scan_costs_more_than_a_look_up_with_parameters(side: PlanSession) -> None:
    point = await side.cost("SELECT note FROM planned WHERE id = $1")
    scan = await side.cost("SELECT count(*) FROM planned WHERE note <> $1 -- all of it")
    assert 0 < point < 20 < scan


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO planned VALUES ($1, $2)",
        "UPDATE planned SET note = 'y' WHERE id = $1",
        "WITH gone AS (DELETE FROM planned RETURNING id) SELECT count(*) FROM gone",
    ],
)
async def test_writes_are_planned_and_never_run(
    side: PlanSession, plans_dsn: str, text: str
) -> None:
    assert await side.cost(text) > 0
    with psycopg.connect(plans_dsn) as connection:
        row = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE note = 'x') FROM planned"
        ).fetchone()
    assert row == (5000, 5000)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1; DROP TABLE planned",
        "SELECT 1; COMMIT; DELETE FROM planned",
        "SELECT * FROM no_such_table",
        "SELECT $1 IS NULL",
        "SELECT 1 /* unended",
        "VACUUM planned",
        "SELEC",
    ],
)
async def test_what_the_server_blocks_is_a_failure_and_the_connection_stays(
    side: PlanSession, plans_dsn: str, text: str
) -> None:
    with pytest.raises(ExplainFailed):
        await side.cost(text)
    assert await side.cost("SELECT 1") > 0
    with psycopg.connect(plans_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM planned").fetchone() == (5000,)


async def test_a_table_that_is_locked_is_not_waited_for(side: PlanSession, plans_dsn: str) -> None:
    with psycopg.connect(plans_dsn) as connection:
        connection.execute("LOCK TABLE planned IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(ExplainFailed, match="lock timeout"):
            await side.cost("SELECT * FROM planned")


async def test_a_lost_connection_is_distinguished_from_a_bad_pattern(
    side: PlanSession, plans_dsn: str
) -> None:
    with psycopg.connect(plans_dsn, autocommit=True) as connection:
        connection.execute(
            # Waits for its end: a process that does not know of it yet would go on.
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE application_name = 'headgate-proxy'"
        )
    with pytest.raises(NoSession):
        await side.cost("SELECT 1")


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    terms = PlanTerms("host=127.0.0.1 port=1 user=x", password="secret-word")
    with pytest.raises(NoSession) as failed:
        await PostgresSessions(terms).open("app")
    assert "app" in str(failed.value) and "secret-word" not in str(failed.value)
