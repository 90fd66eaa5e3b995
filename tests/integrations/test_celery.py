"""Celery, with a real worker and broker in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("celery", reason="Celery is not installed")

from celery.contrib.testing.worker import start_worker

from headgate.integrations import celery as integration
from tests.client import bodies
from tests.client.scripted import OK, ScriptedAgent, answer
from tests.integrations.celery_project import app, flaky, purge

REJECTED = answer(429, bodies.rejection(retry_after_ms=50), Retry_After="1")
SILENT = answer(503, body=b"")


@pytest.fixture(autouse=True)
def fresh_gates(agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(integration, "DEFAULT_COUNTDOWN_S", 0.05)
    yield
    integration._gates.forget()


@pytest.fixture(scope="module")
def worker() -> Iterator[None]:
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=60):
        yield


def test_a_rejected_task_comes_again(agent: ScriptedAgent, worker: None) -> None:
    """Three rejections and a silent agent, of a task that may fail once: none is a failure."""
    agent.script.plays.extend([REJECTED, REJECTED, SILENT, REJECTED, OK])
    assert purge.delay(7).get(timeout=60, interval=0.02) == "7 after 0 retries"
    assert len(agent.heard) == 5
    assert "app=shop.purge%3Anightly&database=main" in agent.heard[0].line


def test_real_failures_are_counted_as_ever(agent: ScriptedAgent, worker: None) -> None:
    agent.script.plays.extend([REJECTED, OK, REJECTED, REJECTED, OK])
    assert flaky.delay().get(timeout=60, interval=0.02) == "done after 1 retries"
    assert len(agent.heard) == 5


def test_a_task_that_is_called_directly_waits(agent: ScriptedAgent) -> None:
    agent.script.plays.append(REJECTED)
    assert purge(3) == "3 after 0 retries"
    assert len(agent.heard) == 2
