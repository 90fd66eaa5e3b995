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
from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.network import Network
from tests.fixtures.servers import Pair

METRICS = "threads_running: interval_s=0.1, timeout_s=0.3"
BOUNDED_S = 0.6


@pytest.fixture
def serving(agent: AgentProcess, fresh_postgres: Pair[PostgresServer]) -> AgentProcess:
    agent.write_settings(postgres_database(fresh_postgres.primary.dsn(), METRICS))
    agent.start()
    eventually(agent.admitted, within_s=10)
    return agent


class Job:
    """Asks before each piece of its work, all the time, and keeps what it was answered."""

    def __init__(self, url: str | list[str], **settings: Any) -> None:
        self.events: list[Event] = []
        self.answers: list[headgate.Answer] = []
        self.error: Exception | None = None
        self._settings = {"timeout_s": 0.2, "unavailable_after_s": BOUNDED_S, **settings}
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
                    self.answers.append(gate.wait(deadline_s=30))
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
        eventually(lambda: len(self.answers) > before + 3, within_s=15)
        return not any(answer.unthrottled for answer in self.answers[-3:])

    def unthrottled(self) -> bool:
        return bool(self.answers) and self.answers[-1].unthrottled

    def held(self) -> bool:
        before = len(self.answers)
        threading.Event().wait(0.3)
        return len(self.answers) == before

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def test_agent_database_and_network_die_in_turn(
    serving: AgentProcess, fresh_postgres: Pair[PostgresServer]
) -> None:
    """R47, R50, R55: only silence of the agent lets an open client go on, and that is on record."""
    with Network(serving.port) as network, Job(network.url, on_unavailable="open").running() as job:
        assert job.throttled()

        fresh_postgres.primary.pause()  # the database hangs: a refusal, however long it lasts
        try:
            eventually(job.held, within_s=8)
            threading.Event().wait(2 * BOUNDED_S)
            assert job.held() and not job.unthrottled()
        finally:
            fresh_postgres.primary.resume()
        assert job.throttled()

        serving.process.send_signal(signal.SIGSTOP)  # the agent hangs
        eventually(job.unthrottled)
        serving.process.send_signal(signal.SIGCONT)
        eventually(job.throttled, within_s=15)

        network.swallow()
        eventually(job.unthrottled)
        network.heal()
        eventually(job.throttled, within_s=15)

        serving.kill()  # it comes back cold, and refuses before it admits
        eventually(job.unthrottled)
        serving.start()
        eventually(job.throttled, within_s=15)
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
    assert any("etl:nightly went without a throttler" in line for line in advice)


def _periods(serving: AgentProcess) -> list[Any]:
    found: list[Any] = serving.get("/v1/unthrottled?since=1h").json["unthrottled"]
    return found


def test_a_closed_client_stops_after_the_bounded_wait(serving: AgentProcess) -> None:
    """R48"""
    with Job(serving.url).running() as job:
        assert job.throttled()
        serving.kill()
        eventually(lambda: job.error is not None)
    assert isinstance(job.error, headgate.ThrottlerUnavailable)
    assert not any(answer.unthrottled for answer in job.answers)
    assert "FailedClosed" in job.names()


def test_a_restart_within_the_bounded_wait_goes_unnoticed(serving: AgentProcess) -> None:
    """R49, R50: neither the restart nor the cold agent's first refusals are an outage."""
    with Job(serving.url, unavailable_after_s=20.0).running() as job:
        assert job.throttled()
        serving.stop()
        serving.start()
        assert job.throttled()
    assert job.error is None
    assert "CircuitOpened" not in job.names()


def test_the_second_agent_is_asked_when_the_first_is_killed(
    serving: AgentProcess,
    fresh_postgres: Pair[PostgresServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """R52"""
    other = AgentProcess(tmp_path_factory.mktemp("other"), next(servers.free_ports()))
    other.write_settings(postgres_database(fresh_postgres.primary.dsn(), METRICS))
    other.start()
    try:
        eventually(other.admitted, within_s=10)
        with Job([serving.url, other.url], on_unavailable="open").running() as job:
            assert job.throttled()
            serving.kill()
            assert job.throttled()
    finally:
        other.kill()
    assert not any(answer.unthrottled for answer in job.answers)
    assert "Rerouted" in job.names()
