"""Periods without a throttler: counted, and told to the agent that ends them (R55)."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any

import msgspec
import pytest

from headgate import AsyncClient, Client
from headgate.client.events import Event, WentUnthrottled
from headgate.client.replies import NoAnswer
from headgate.client.unthrottled import MAX_PENDING, PATH, RETRY_AFTER_S, Periods, report_body
from headgate.history.unthrottled_api import MAX_PERIODS, UnthrottledBody
from tests.client.conftest import MakeCaller
from tests.client.scripted import OK, Heard, Play, ScriptedAgent, answer
from tests.client.test_retrying import response
from tests.fixtures.eventually import DEADLINE_S, aeventually, eventually

TAKEN = response(200, b'{"taken": 1}')
SETTINGS: dict[str, Any] = {"on_unavailable": "open", "unavailable_after_s": 5.0}


def reports(agent: ScriptedAgent) -> list[Heard]:
    return [heard for heard in agent.heard if heard.line == f"POST {PATH} HTTP/1.1"]


# --- what is counted ------------------------------------------------------------------------


def test_a_period_begins_with_the_first_piece_and_ends_with_an_answer() -> None:
    periods = Periods()
    assert periods.ended(5.0) is None
    assert [periods.piece(10.0), periods.piece(11.0), periods.piece(12.0)] == [True, False, False]
    period = periods.ended(20.0)
    assert period is not None
    assert (period.started_s, period.duration_s, period.pieces) == (10.0, 10.0, 3)
    assert periods.ended(21.0) is None
    assert periods.piece(30.0), "another one"


def test_no_piece_is_lost_among_threads() -> None:
    periods = Periods()

    def work() -> None:
        for _ in range(5000):
            periods.piece(1.0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    period = periods.ended(2.0)
    assert period is not None and period.pieces == 40_000


def test_too_many_are_not_kept() -> None:
    periods = Periods()
    for number in range(MAX_PENDING + 5):
        periods.piece(number)
        periods.ended(number)
    assert len(periods.pending) == MAX_PENDING
    assert periods.pending[0].started_s == 5


def test_one_at_a_time_reports_and_failed_reports_follow_later() -> None:
    periods = Periods()
    periods.piece(1.0)
    periods.ended(2.0)
    due = periods.due(3.0)
    assert len(due) == 1
    assert periods.due(3.0) == (), "it is under way"
    periods.told(due, NoAnswer("silent"), 4.0)
    assert periods.due(4.0) == (), "not at once"
    assert periods.due(4.0 + RETRY_AFTER_S) == due
    periods.told(due, TAKEN, 40.0)
    assert not periods.pending


@pytest.mark.parametrize("status", [401, 404, 405, 413])
def test_an_agent_that_wants_no_report_is_not_pestered(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    periods = Periods()
    periods.piece(1.0)
    periods.ended(2.0)
    periods.told(periods.due(3.0), response(status, b""), 3.0)
    assert not periods.pending
    assert f"status {status}" in caplog.text


def test_what_was_before_a_fork_is_left_to_the_parent() -> None:
    periods = Periods()
    periods.piece(1.0)
    periods.ended(2.0)
    periods.piece(3.0)
    child = os.fork()
    if not child:
        left = periods.due(9.0) == () and periods.piece(10.0)
        period = periods.ended(11.0)
        os._exit(0 if left and period is not None and period.pieces == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(periods.due(9.0)) == 1


def test_the_agent_reads_the_reports() -> None:
    periods = Periods()
    for number in range(MAX_PENDING):
        periods.piece(number)
        periods.ended(number + 0.5)
    body = report_body("etl:nightly", ("main", "users"), periods.due(200.0), 200.0)
    read = msgspec.json.decode(body, type=UnthrottledBody)
    assert (read.app, read.databases, len(read.periods)) == (
        "etl:nightly", ["main", "users"], MAX_PERIODS,
    )  # fmt: skip
    first = read.periods[0]
    assert (first.ended_ago_ms, first.duration_ms, first.pieces) == (199_500, 500, 1)


# --- and told -------------------------------------------------------------------------------


async def test_an_agent_that_is_back_gets_the_report(
    agent: ScriptedAgent, make_caller: MakeCaller
) -> None:
    told: list[Event] = []
    caller = make_caller(agent.url, token="hunter2hunter2", on_event=told.append, **SETTINGS)
    assert await caller.wait()
    agent.stop()
    for _ in range(4):
        assert (await caller.wait()).unthrottled
        caller.time.now_s += 1
    agent.start()
    caller.time.now_s += 10
    assert not (await caller.wait()).unthrottled
    await aeventually(lambda: reports(agent))
    (heard,) = reports(agent)
    body = json.loads(heard.body)
    assert heard.headers["Authorization"] == "Bearer hunter2hunter2"
    assert (body["app"], body["databases"]) == ("etl:nightly", ["main"])
    (period,) = body["periods"]
    assert (period["pieces"], period["duration_ms"], period["ended_ago_ms"]) == (4, 14_000, 0)
    (ended,) = (event for event in told if isinstance(event, WentUnthrottled))
    assert (ended.pieces, ended.duration_s) == (4, 14.0)
    await caller.wait()
    assert len(reports(agent)) == 1


async def test_work_does_not_wait_for_a_report_that_hangs(
    agent: ScriptedAgent, make_caller: MakeCaller
) -> None:
    caller = make_caller(agent.url, timeout_s=600, **SETTINGS)
    agent.stop()
    await caller.wait()
    agent.start()
    caller.time.now_s += 10
    agent.script.plays.extend([OK, Play(b"", hold=True)])
    async with asyncio.timeout(DEADLINE_S):
        assert not (await caller.wait()).unthrottled
        await aeventually(lambda: reports(agent))
        for _ in range(5):
            assert await caller.wait()
    agent.stop()


async def test_a_report_that_fails_is_sent_again_with_the_next_answers(
    agent: ScriptedAgent, make_caller: MakeCaller
) -> None:
    caller = make_caller(agent.url, **SETTINGS)
    agent.stop()
    await caller.wait()
    agent.start()
    caller.time.now_s += 10
    agent.script.plays.extend([OK, answer(503, {})])
    await caller.wait()
    await aeventually(lambda: len(reports(agent)) == 1)

    async with asyncio.timeout(DEADLINE_S):
        while len(reports(agent)) < 2:
            caller.time.now_s += RETRY_AFTER_S
            await caller.wait()
    first, second = (json.loads(heard.body)["periods"] for heard in reports(agent))
    assert first[0]["id"] == second[0]["id"], "so that the agent counts it once"


def test_closing_gives_a_report_its_time(agent: ScriptedAgent) -> None:
    """A short job ends right after its agent is back."""
    with Client("etl", database="main", url=agent.url, on_unavailable="open") as gate:
        gate._conversation.periods.piece(1.0)
        gate._conversation.periods.ended(2.0)
    assert len(reports(agent)) == 1


async def test_closing_gives_a_report_its_time_on_the_loop(agent: ScriptedAgent) -> None:
    async with AsyncClient("etl", database="main", url=agent.url, on_unavailable="open") as gate:
        gate._conversation.periods.piece(1.0)
        gate._conversation.periods.ended(2.0)
    assert len(reports(agent)) == 1


def test_a_report_leaves_no_thread_behind(agent: ScriptedAgent) -> None:
    with Client("etl", database="main", url=agent.url) as gate:
        gate._conversation.periods.piece(1.0)
        gate._conversation.periods.ended(2.0)
        assert gate.check()
        eventually(lambda: reports(agent))
        eventually(lambda: not any(t.name == "headgate-report" for t in threading.enumerate()))
