"""The SDK against a real agent and a real database: held, let go, and left alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

import headgate
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.servers import Pair

METRICS = "lag: threshold=1.5, interval_s=0.1, timeout_s=0.5; threads_running: interval_s=0.1"


@pytest.fixture
def serving(agent: AgentProcess, fresh_postgres: Pair[PostgresServer]) -> AgentProcess:
    agent.write_settings(postgres_database(fresh_postgres.primary.dsn(), METRICS))
    agent.start()
    eventually(agent.admitted, within_s=10)
    return agent


@pytest.fixture(params=["tcp", "unix"])
def url(request: pytest.FixtureRequest, serving: AgentProcess) -> str:
    return serving.url if request.param == "tcp" else f"unix://{serving.socket}"


@pytest.fixture
def replay(fresh_postgres: Pair[PostgresServer]) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(fresh_postgres.replica.dsn(), autocommit=True) as connection:
        yield connection


def test_a_job_is_held_by_lag_and_goes_on_by_itself(
    url: str,
    serving: AgentProcess,
    replay: psycopg.Connection[object],
    fresh_postgres: Pair[PostgresServer],
) -> None:
    done: list[int] = []

    def job() -> None:
        with (
            headgate.Client("backfill:orders", database="main", url=url) as gate,
            psycopg.connect(fresh_postgres.primary.dsn(), autocommit=True) as primary,
        ):
            primary.execute("create table orders (id int)")
            for chunk in gate.chunks(range(4000), size=10):
                primary.execute("insert into orders select generate_series(1, %s)", (len(chunk),))
                done.append(len(chunk))
                if stop.wait(0.01):
                    return

    stop = threading.Event()
    worker = threading.Thread(target=job)
    worker.start()
    try:
        eventually(lambda: len(done) > 5, within_s=5)
        replay.execute("select pg_wal_replay_pause()")
        eventually(lambda: not serving.admitted(), within_s=8)
        held_at = eventually(lambda: _stands_still(done), within_s=5)
        replay.execute("select pg_wal_replay_resume()")
        eventually(lambda: len(done) > held_at, within_s=10)
    finally:
        stop.set()
        worker.join()
    clients = {c["client"]: c for c in serving.get("/v1/clients").json["clients"]}
    assert clients["backfill:orders"]["refused"] > 0


def _stands_still(done: list[int]) -> int:
    before = len(done)
    threading.Event().wait(0.5)
    return before if len(done) == before else 0


def test_both_clients_get_the_same_answer(url: str) -> None:
    with headgate.Client("a:b", database="main", url=url) as gate:
        answer = gate.check()

    async def ask() -> headgate.Answer:
        async with headgate.AsyncClient("a:b", database="main", url=url) as client:
            return await client.check()

    other = asyncio.run(ask())
    assert answer.admitted and other.admitted
    assert answer.verdict == other.verdict == "OK"


def test_an_unknown_database_is_a_refusal_with_the_reason(url: str) -> None:
    with headgate.Client("a", database="nope", url=url) as gate:
        answer = gate.check()
    assert not answer.admitted and "nope" in answer.reason


def test_a_dead_agent_is_unavailable_and_its_return_is_noticed(serving: AgentProcess) -> None:
    """R47, R48: closed raises, open goes on and says so."""
    closed = headgate.Client("a", database="main", url=serving.url, unavailable_after_s=0.3)
    opened = headgate.Client(
        "a", database="main", url=serving.url, unavailable_after_s=0.3, on_unavailable="open"
    )
    with closed, opened:
        assert closed.wait(deadline_s=5).admitted
        serving.kill()
        with pytest.raises(headgate.ThrottlerUnavailable):
            closed.wait(deadline_s=5)
        answer = opened.wait(deadline_s=5)
        assert answer.admitted and answer.unthrottled
        serving.start()
        eventually(lambda: _throttled_again(closed), within_s=10)


def _throttled_again(gate: headgate.Client) -> bool:
    try:
        return gate.check().admitted
    except headgate.ThrottlerUnavailable:
        return False
