"""A job runs while its agent, its database and its network die in turn.

What docs/explanation/without-a-throttler.md says of each, with real processes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import headgate
from headgate.client.events import Event, WentUnthrottled
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database, reserve_port
from tests.fixtures.eventually import eventually
from tests.fixtures.network import Network
from tests.fixtures.servers import Pair

METRICS = "threads_running: interval_s=0.1, timeout_s=0.8"
BOUNDED_S = 2.0
"""Longer than a busy machine keeps an agent from answering."""


@pytest.fixture
def serving(agent: AgentProcess, lent_postgres: Pair[PostgresServer]) -> AgentProcess:
    agent.write_settings(postgres_database(lent_postgres.primary.dsn(), METRICS))
    agent.start()
    eventually(agent.admitted)
    return agent


class Job:
    """Asks before each piece of its work, all the time, and keeps what it was answered."""

    def __init__(self, url: str | list[str], **settings: Any) -> None:
        self.events: list[Event] = []
        self.answers: list[headgate.Answer] = []
        self.error: Exception | None = None
        self._settings = {"timeout_s": 1.0, "unavailable_after_s": BOUNDED_S, **settings}
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        gate = headgate.Client(
            "etl:nightly",
            database="main",
            url=self._url,
            on_event=self.events.append,
            **self._settings,
        )
        try:
            with gate:
                while not self._stop.wait(0.01):
                    self.answers.append(gate.wait(deadline_s=120))
        except headgate.HeadgateError as error:
            self.error = error

    @contextmanager
    def running(self) -> Iterator[Job]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def throttled(self) -> bool:
        """Goes on, and an agent was asked for the last pieces of work."""
        before = len(self.answers)
        eventually(lambda: self.error or len(self.answers) > before + 3)
        assert self.error is None
        return not any(answer.unthrottled for answer in self.answers[-3:])

    def unthrottled(self) -> bool:
        return bool(self.answers) and self.answers[-1].unthrottled

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def test_agent_database_and_network_die_in_turn(
    serving: AgentProcess, lent_postgres: Pair[PostgresServer]
) -> None:
    """R47, R50, R55: only silence of the agent lets an open client go on, and that is on record."""
    with Network(serving.port) as network, Job(network.url, on_unavailable="open").running() as job:
        eventually(job.throttled)

        lent_postgres.primary.pause()  # the database hangs: a rejection, however long it lasts
        eventually(lambda: serving.metric("threads_running")["cause"] == "timed_out")
        held_at = len(job.answers)
        eventually(lambda: _absent_for_s(serving) > 1.5 * BOUNDED_S)
        assert len(job.answers) <= held_at + 1 and not job.unthrottled()
        lent_postgres.primary.resume()
        eventually(job.throttled)

        serving.process.send_signal(signal.SIGSTOP)  # the agent hangs
        eventually(job.unthrottled)
        serving.process.send_signal(signal.SIGCONT)
        eventually(job.throttled)

        network.swallow()
        eventually(job.unthrottled)
        network.heal()
        eventually(job.throttled)

        serving.kill()  # it comes back cold, and rejects before it admits
        eventually(job.unthrottled)
        serving.start()
        eventually(job.throttled)
    assert job.error is None
    opened, closed = (job.names().count(f"Circuit{what}") for what in ("Opened", "Closed"))
    assert opened == closed == job.names().count("WentUnthrottled") >= 3
    told = sum(event.pieces for event in job.events if isinstance(event, WentUnthrottled))
    assert told == sum(answer.unthrottled for answer in job.answers)
    serving.stop()
    serving.start()  # the record outlives the agent
    periods = _periods(serving)
    assert {period["client"] for period in periods} == {"etl:nightly"}
    assert sum(period["pieces"] for period in periods) == told
    advice = serving.get("/v1/status").json["advice"]
    assert any("etl:nightly worked without a throttler" in line for line in advice)


def _absent_for_s(agent: AgentProcess) -> float:
    return float(agent.metric("threads_running")["unavailable_for_ms"] or 0) / 1000


def _periods(serving: AgentProcess) -> list[Any]:
    found: list[Any] = serving.get("/v1/unthrottled?since=1h").json["unthrottled"]
    return found


def test_a_closed_client_stops_after_the_bounded_wait(serving: AgentProcess) -> None:
    """R48"""
    with Job(serving.url).running() as job:
        eventually(job.throttled)
        serving.kill()
        eventually(lambda: job.error is not None)
    assert isinstance(job.error, headgate.ThrottlerUnavailable)
    assert not any(answer.unthrottled for answer in job.answers)
    assert "FailedClosed" in job.names()


def test_a_restart_within_the_bounded_wait_goes_unnoticed(serving: AgentProcess) -> None:
    """R49, R50: neither the restart nor the cold agent's first rejections are an outage."""
    with Job(serving.url, unavailable_after_s=60.0).running() as job:
        eventually(job.throttled)
        serving.stop()
        serving.start()
        eventually(job.throttled)
    assert job.error is None
    assert "CircuitOpened" not in job.names()


def test_the_second_agent_is_used_when_the_first_is_killed(
    serving: AgentProcess,
    lent_postgres: Pair[PostgresServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """R52"""
    other = AgentProcess(tmp_path_factory.mktemp("other"), reserve_port())
    other.write_settings(postgres_database(lent_postgres.primary.dsn(), METRICS))
    asked = [serving.url, other.url]
    try:
        other.start()
        eventually(other.admitted)
        with Job(asked, on_unavailable="open", unavailable_after_s=60.0).running() as job:
            eventually(job.throttled)
            serving.kill()
            eventually(job.throttled)
    finally:
        other.end()
    assert not any(answer.unthrottled for answer in job.answers)
    assert "Rerouted" in job.names()
