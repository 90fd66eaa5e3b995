"""Whom a proxy listens to, and what it makes of silence; and the policy that it polls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.check.snapshot_api import Snapshot
from headgate.metrics.samples import Cause
from headgate.proxy.agents import (
    FRESH_S,
    KEEP_LEARNT_S,
    MAX_LEARNT,
    AgentLink,
    Agents,
    Reply,
    healthy_of,
)
from headgate.proxy.policylink import KEPT_FILE, PolicyLink
from tests.builders import NOW, absent, health, metric, shard_health
from tests.fixtures.fakes import HandClock
from tests.proxy.fakes import FakeDialling, FakeRelay, FakeTaker, snapshot, told, view

A, B, C = "http://a:1", "http://b:1", "https://c:1"
LAG = metric("lag", threshold=5)
OK, SICK = health((LAG, 1.0)), health((LAG, 9.0))
SHARD_LAG = metric("lag", threshold=5, scope="shard")
ELSEWHERE = health(
    (SHARD_LAG, 0.1),
    shard=shard_health(
        (SHARD_LAG, absent(Cause.ELSEWHERE)), check_at=C, check_at_database="orders"
    ),
)


class Ears:
    def __init__(self) -> None:
        self.heard: list[Snapshot] = []

    def hear(self, snapshot: Snapshot) -> None:
        self.heard.append(snapshot)


class World:
    def __init__(self, *urls: str) -> None:
        self.clock, self.relay, self.ears = HandClock(), FakeRelay(), Ears()
        self.dialling = FakeDialling(self.clock)
        self.agents = Agents(self.dialling, urls or (A, B), "main")
        self.link = AgentLink(self.agents, self.relay, self.clock, [self.ears])
        self.agents.start()

    def say(self, url: str, seen: Any = OK, database: str = "main", **more: Any) -> None:
        now_s = self.clock.now().mono_s
        feed = self.dialling.feeds[(url, database)]
        feed.snapshot = snapshot(view(seen, **more), sent_s=now_s)

    def speaker(self) -> str | None:
        heard = self.agents.best()
        return heard.voice.url if heard else None


async def test_each_snapshot_is_handed_on_once() -> None:
    world = World()
    world.say(A)
    for _ in range(3):
        world.link.look()
    world.say(A)
    world.link.look()
    assert len(world.ears.heard) == 2


async def test_the_next_agent_is_believed_while_the_first_is_silent() -> None:
    world = World()
    world.say(A)
    world.say(B)
    assert world.speaker() == A
    await world.clock.advance(FRESH_S + 0.1)
    world.say(B)
    assert world.speaker() == B
    world.say(A)
    assert world.speaker() == A


async def test_an_agent_gone_is_said_and_nothing_is_handed_on() -> None:
    world = World(A)
    world.say(A)
    world.link.look()
    await world.clock.advance(FRESH_S + 1)
    world.link.look()
    assert len(world.ears.heard) == 1
    state = world.link.state()
    assert not state.healthy and A in state.summary
    world.say(A)
    world.link.look()
    assert world.link.state().healthy


async def test_a_replicas_agent_is_followed_to_where_the_shard_is_spoken_for() -> None:
    world = World(A)
    world.say(A, ELSEWHERE)
    assert world.speaker() == A  # its rules hold until the other is heard
    world.say(C, SICK, "orders")
    assert world.speaker() == C
    assert world.dialling.feeds[(C, "orders")].running


async def test_the_agent_that_the_home_agent_pointed_to_is_believed_when_that_falls_silent() -> (
    None
):
    world = World(A)
    world.say(A, ELSEWHERE)
    world.speaker()
    await world.clock.advance(FRESH_S + 1)
    world.say(C, OK, "orders")
    assert world.speaker() == C


async def test_a_stream_to_which_nobody_points_any_more_ends() -> None:
    world = World(A)
    world.say(A, ELSEWHERE)
    world.speaker()
    world.say(A, OK)
    await world.clock.advance(KEEP_LEARNT_S + 1)
    world.link.look()
    assert not world.dialling.feeds[(C, "orders")].running


async def test_a_standby_points_to_the_active_one() -> None:
    world = World(A, B)
    world.say(A, active_agent=B)
    world.speaker()
    world.dialling.feeds[(B, "main")].snapshot = snapshot(view(SICK))
    assert world.speaker() == B


async def test_agents_that_point_everywhere_open_a_bounded_number_of_streams() -> None:
    world = World(A)
    for n in range(3 * MAX_LEARNT):
        world.say(A, active_agent=f"http://x{n}:1")
        world.speaker()
    assert len(world.dialling.feeds) <= MAX_LEARNT + 1


async def test_a_place_that_is_not_to_be_gone_to_is_not_gone_to() -> None:
    world = World(A)
    world.dialling.unreachable.add(C)
    world.say(A, ELSEWHERE)
    assert world.speaker() == A


# --- health for budgets that bite under pressure (R147) -------------------------------------------


async def test_budgets_that_act_under_pressure_get_it_at_once_and_then_each_second() -> None:
    world = World(A)
    world.say(A, OK)
    world.link.look()
    world.say(A, SICK)
    world.link.look()
    world.link.look()
    until_ms = int((NOW.wall_s + 10) * 1000)
    assert world.relay.healths == [(True, until_ms), (False, until_ms)]
    await world.clock.advance(1.1)
    world.say(A, SICK)
    world.link.look()
    assert len(world.relay.healths) == 3


async def test_what_was_never_measured_is_not_reported_as_either() -> None:
    world = World(A)
    world.say(A, health((LAG, absent(Cause.HIBERNATING))))
    world.link.look()
    assert world.relay.healths == []


async def test_a_copy_that_grows_old_does_not_make_a_healthy_database_sick() -> None:
    """R147: an agent killed in good times; what it said last ages out, and is not turned round."""
    world = World(A)
    world.say(A, OK)
    world.link.look()
    for _ in range(40):
        await world.clock.advance(0.5)
        world.link.look()
    assert {healthy for healthy, _ in world.relay.healths} == {True}
    assert healthy_of(OK, OK.own.all_pass_until + 0.1) is None
    assert healthy_of(SICK, SICK.own.all_pass_until + 0.1) is False


# --- policy --------------------------------------------------------------------------------------

ETL = {
    "name": "etl",
    "mode": "enforce",
    "rate": 10,
    "capacity": 20,
    "rules": [{"match": {"username": "etl"}}],
}


def policy(revision: int = 3, *budgets: Any) -> dict[str, Any]:
    return {
        "database": "main", "revision": revision, "mode_cap": "enforce",
        "document": {"budgets": list(budgets or (ETL,))},
    }  # fmt: skip


class PolicyWorld:
    def __init__(self, folder: Path) -> None:
        self.clock, self.taker = HandClock(), FakeTaker()
        self.dialling = FakeDialling(self.clock)
        self.agents = Agents(self.dialling, (A, B), "main")
        self.link = PolicyLink(self.agents, self.taker, self.clock, folder)
        self.line = self.dialling.lines[A]
        self.line.answer = told(policy(), etag='"3-aa"')

    @property
    def names(self) -> list[str]:
        return [budget.name for budget in self.taker.taken[-1][0].budgets]


async def test_a_policy_is_taken_once_and_then_only_requested_by_its_tag(tmp_path: Path) -> None:
    world = PolicyWorld(tmp_path)
    await world.link.poll()
    world.line.answer = lambda *_: Reply(304, {}, b"")
    await world.link.poll()
    assert world.line.asked[1][2] == {"If-None-Match": '"3-aa"'}
    assert (world.names, len(world.taker.taken)) == (["etl"], 1)
    assert world.link.state().healthy


async def test_a_restart_without_an_agent_has_the_last_good_policy(tmp_path: Path) -> None:
    await PolicyWorld(tmp_path).link.poll()
    again = PolicyWorld(tmp_path)
    for line in again.dialling.lines.values():
        line.away = True
    await again.link.recall()
    await again.link.poll()
    assert (again.names, again.link.revision) == (["etl"], 3)
    assert not again.link.state().healthy
    assert (tmp_path / KEPT_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"format": 9}', '{"format": 1, "revision": 1}'])
async def test_a_kept_policy_that_is_broken_is_left_alone(tmp_path: Path, kept: str) -> None:
    (tmp_path / KEPT_FILE).write_text(kept)
    world = PolicyWorld(tmp_path)
    await world.link.recall()
    assert world.taker.taken == []
    await world.link.poll()
    assert world.names == ["etl"]


@pytest.mark.parametrize(
    "answer",
    [
        told({"detail": "traffic control is not set up"}, 404),
        told({}, 503),
        told(policy(4, {"name": "etl", "rate": "lots"}), etag='"4"'),
        told([1], etag='"4"'),
        lambda *_: Reply(200, {}, b"{"),
    ],
    ids=["none", "away", "of another version", "no object", "cut short"],
)
async def test_whatever_an_agent_says_the_last_good_policy_stays(
    tmp_path: Path, answer: Any
) -> None:
    world = PolicyWorld(tmp_path)
    await world.link.poll()
    world.line.answer = answer
    await world.link.poll()
    assert (world.link.revision, len(world.taker.taken)) == (3, 1)
    assert not world.link.state().healthy
    assert json.loads((tmp_path / KEPT_FILE).read_text())["revision"] == 3


async def test_one_that_the_region_blocks_is_requested_again(tmp_path: Path) -> None:
    world = PolicyWorld(tmp_path)
    world.taker.blocks = "it has 9 MB, at most 4 fit"
    await world.link.poll()
    assert "at most 4 fit" in world.link.state().summary
    world.taker.blocks = ""
    await world.link.poll()
    assert world.names == ["etl"]


async def test_the_next_agent_is_used_where_the_first_is_away(tmp_path: Path) -> None:
    world = PolicyWorld(tmp_path)
    world.line.away = True
    world.dialling.lines[B].answer = told(policy(7), etag='"7"')
    await world.link.poll()
    assert world.link.revision == 7
