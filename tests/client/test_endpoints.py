"""Several agents of a client's own: active–passive (R52)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headgate import Client, InvalidSettings, ThrottlerUnavailable
from headgate.client.circuit import LOOK_BACK_AFTER_S, Endpoints
from headgate.client.events import Event, Rerouted
from headgate.client.target import Target, urls_of
from tests.client import bodies
from tests.client.conftest import MakeCaller
from tests.client.scripted import OK, Play, ScriptedAgent, answer

WRONG_AGENT = {"verdict": "WRONG_AGENT", "admitted": False}


@pytest.fixture
def pair() -> Iterator[list[ScriptedAgent]]:
    with ExitStack() as agents:
        yield [agents.enter_context(ScriptedAgent()) for _ in range(2)]


def asked(pair: list[ScriptedAgent]) -> list[int]:
    return [len(agent.heard) for agent in pair]


async def test_the_next_is_used_when_the_first_is_gone_and_is_kept(
    pair: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    told: list[Event] = []
    first, second = pair
    caller = make_caller([first.url, second.url], on_event=told.append, unavailable_after_s=0)
    assert (await caller.wait()).verdict == "OK"
    first.stop()
    for _ in range(3):
        assert (await caller.wait()).verdict == "OK"
    assert asked(pair) == [1, 3]
    (moved,) = (event for event in told if isinstance(event, Rerouted))
    assert (moved.before, moved.now) == (first.url, second.url)
    assert "connection refused" in moved.why
    assert second.heard[0].headers["Host"] == second.url.removeprefix("http://")


async def test_after_a_while_the_first_is_preferred_again(
    pair: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    first, second = pair
    caller = make_caller([first.url, second.url])
    first.stop()
    await caller.wait()
    first.start()
    await caller.wait()
    assert asked(pair) == [0, 2]
    caller.time.now_s += LOOK_BACK_AFTER_S
    await caller.wait()
    await caller.wait()
    assert asked(pair) == [2, 2]


async def test_a_first_that_is_still_gone_is_looked_for_seldom(
    pair: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    first, second = pair
    first.script.default = Play(b"", close=True)
    caller = make_caller([first.url, second.url])
    for _ in range(5):
        assert await caller.wait()
    caller.time.now_s += LOOK_BACK_AFTER_S
    for _ in range(5):
        assert await caller.wait()
    assert asked(pair) == [2, 10]


async def test_a_rejection_is_an_answer_and_the_other_is_not_tried_for_a_better_one(
    pair: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R50"""
    pair[0].script.default = answer(429, bodies.rejection())
    caller = make_caller([agent.url for agent in pair])
    assert not await caller.check()
    assert asked(pair) == [1, 0]


async def test_all_are_named_when_none_answers(
    pair: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    urls = [agent.url for agent in pair]
    for agent in pair:
        agent.stop()
    caller = make_caller(urls)
    with pytest.raises(ThrottlerUnavailable) as raised:
        await caller.wait()
    assert f"no agent answered at {urls[0]} or {urls[1]}" in str(raised.value)
    assert f"{urls[0]}: connection refused; {urls[1]}: connection refused" in str(raised.value)


async def test_a_standby_that_takes_over_goes_unnoticed(
    pair: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R52: while passive it sends to the active one; for two seconds nobody speaks."""
    active, standby = pair
    sent_on = bodies.ok() | WRONG_AGENT | {"check_at": active.url, "reason": "stands by"}
    caller = make_caller([active.url, standby.url])
    assert await caller.wait()
    active.stop()
    standby.script.plays.extend([answer(421, sent_on)] * 3)
    answered = await caller.wait()
    assert (answered.verdict, answered.unthrottled) == ("OK", False)
    assert sum(caller.time.slept) < 10


def test_only_one_thread_looks_back() -> None:
    targets = [Target("http://a"), Target("http://b")]
    endpoints = Endpoints(targets)
    endpoints.answered(targets[1], 100.0)
    orders = [endpoints.order(100.0 + LOOK_BACK_AFTER_S)[0].url for _ in range(3)]
    assert orders == ["http://a", "http://b", "http://b"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ([], "names 0 agents"),
        (",", "names 0 agents"),
        (["http://a"] * 2, "twice"),
        ([f"http://a{n}" for n in range(9)], "may name 1 to 8"),
        (["http://a", "ftp://b"], "scheme 'ftp'"),
    ],
)
def test_impossible_agents_are_rejected(url: list[str] | str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        Client("etl", database="main", url=url)


def test_the_environment_may_name_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", "http://a:1, unix:///b")
    assert urls_of(None) == ("http://a:1", "unix:///b")


def test_one_authority_for_the_https_of_several() -> None:
    with pytest.raises(InvalidSettings, match="needs an https:// url"):
        Client("etl", database="main", url=["http://a", "http://b"], tls_ca=__file__)


def test_a_lone_agent_is_used_as_ever(pair: list[ScriptedAgent]) -> None:
    pair[0].script.plays.append(OK)
    with Client("etl", database="main", url=[pair[0].url]) as gate:
        assert gate.check()
    assert repr(gate) == f"<Client etl on main at {pair[0].url}>"
