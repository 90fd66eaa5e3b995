"""The SDK against a real agent and a real database: held, let go, and left alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import headgate
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.servers import Pair

PATIENT = "interval_s=0.1, timeout_s=20"
METRICS = f"lag: threshold='0.5s', {PATIENT}; threads_running: {PATIENT}"
ASKING: dict[str, Any] = {"timeout_s": 60.0, "unavailable_after_s": 60.0}
"""A slow agent is not a dead one."""


@pytest.fixture
def serving(agent: AgentProcess, lent_postgres: Pair[PostgresServer]) -> AgentProcess:
    agent.write_settings(postgres_database(lent_postgres.primary.dsn(), METRICS))
    agent.start()
    eventually(agent.admitted)
    return agent


@pytest.fixture(params=["tcp", "unix"])
def url(request: pytest.FixtureRequest, serving: AgentProcess) -> str:
    return serving.url if request.param == "tcp" else f"unix://{serving.socket}"


@pytest.fixture
def replay(lent_postgres: Pair[PostgresServer]) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(lent_postgres.replica.dsn(), autocommit=True) as connection:
        yield connection


def test_a_job_is_throttled_by_lag_and_goes_on_automatically(
    url: str,
    serving: AgentProcess,
    replay: psycopg.Connection[object],
    lent_postgres: Pair[PostgresServer],
) -> None:
    done: list[int] = []

    def job() -> None:
        with (
            headgate.Client("backfill:orders", database="main", url=url, **ASKING) as gate,
            psycopg.connect(lent_postgres.primary.dsn(), autocommit=True) as primary,
        ):
            primary.execute("create table if not exists orders (id int)")
            for chunk in gate.chunks(range(10**9), size=10):
                primary.execute("insert into orders select generate_series(1, %s)", (len(chunk),))
                done.append(len(chunk))
                if stop.wait(0.01):
                    return

    stop = threading.Event()
    worker = threading.Thread(target=job)
    worker.start()
    try:
        eventually(lambda: len(done) > 5)
        replay.execute("select pg_wal_replay_pause()")
        eventually(lambda: _is_paused(replay))
        eventually(lambda: not serving.admitted())  # From now on: lag can only grow.
        await_rejections(serving, 1)
        held_at = len(done)
        await_rejections(serving, 2)
        assert len(done) == held_at
        replay.execute("select pg_wal_replay_resume()")
        eventually(lambda: len(done) > held_at)
    finally:
        stop.set()
        worker.join()


def _is_paused(replay: psycopg.Connection[object]) -> bool:
    row = replay.execute("select pg_get_wal_replay_pause_state()").fetchone()
    return row == ("paused",)


def await_rejections(agent: AgentProcess, more: int) -> None:
    before = _rejected(agent)
    eventually(lambda: _rejected(agent) >= before + more)


def _rejected(agent: AgentProcess) -> int:
    """How often the job was."""
    clients = {c["client"]: c for c in agent.get("/v1/clients").json["clients"]}
    return int(clients["backfill:orders"]["rejected"])


def test_both_clients_get_the_same_answer(url: str) -> None:
    with headgate.Client("a:b", database="main", url=url, **ASKING) as gate:
        answer = gate.check()

    async def ask() -> headgate.Answer:
        async with headgate.AsyncClient("a:b", database="main", url=url, **ASKING) as client:
            return await client.check()

    other = asyncio.run(ask())
    assert answer.admitted and other.admitted
    assert answer.verdict == other.verdict == "OK"


def test_an_unknown_database_is_a_rejection_with_the_reason(url: str) -> None:
    with headgate.Client("a", database="nope", url=url, **ASKING) as gate:
        answer = gate.check()
    assert not answer.admitted and "nope" in answer.reason


def test_a_dead_agent_is_unavailable_and_its_return_is_noticed(serving: AgentProcess) -> None:
    """R47, R48: closed raises, open goes on and says so."""
    closed = headgate.Client("a", database="main", url=serving.url, unavailable_after_s=0.3)
    opened = headgate.Client(
        "a", database="main", url=serving.url, unavailable_after_s=0.3, on_unavailable="open"
    )
    with closed, opened:
        eventually(lambda: _throttled(closed))
        serving.kill()
        with pytest.raises(headgate.ThrottlerUnavailable):
            closed.wait(deadline_s=60)
        answer = opened.wait(deadline_s=60)
        assert answer.admitted and answer.unthrottled
        serving.start()
        eventually(lambda: _throttled(closed))


def _throttled(gate: headgate.Client) -> bool:
    try:
        return gate.check().admitted
    except headgate.ThrottlerUnavailable:
        return False
