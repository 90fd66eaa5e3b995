"""Where sessions go: names that move, servers that fail over, agents that fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.metrics.samples import Cause
from headgate.proxy.agents import Agents, Reply
from headgate.proxy.model import FollowTerms, ServerTerms, TlsTerms
from headgate.proxy.ports import ServerTarget
from headgate.proxy.targets import (
    RESOLVE_S,
    RESOLVE_TIMEOUT_S,
    FixedTargets,
    FollowedTargets,
    target_id,
)
from headgate.shard.api import shard_doc
from headgate.shard.model import Skip
from headgate.shard.topology import Leading, Unled
from tests.builders import NOW, PRIMARY, absent, at, member, metric, role, sample, shard_view
from tests.fixtures.fakes import HandClock
from tests.proxy.fakes import FakeDialling, FakeRelay

LAG = metric("lag", threshold=5)
A_URL, B_URL = "http://10.0.0.1:8087", "http://10.0.0.2:8087"


class Names:
    """A resolver."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = hosts
        self.hangs = False
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if host not in self.hosts:
            raise OSError(-2, "Name or service not known")
        return [self.hosts[host]]


# --- fixed ------------------------------------------------------------------------------------


def fixed(names: Names, *servers: ServerTerms) -> tuple[FixedTargets, FakeRelay, HandClock]:
    relay, clock = FakeRelay(), HandClock()
    return FixedTargets(relay, servers, clock, lookup=names), relay, clock


DB = ServerTerms("db", "db", 5432)


async def test_a_name_is_looked_up_and_put_once() -> None:
    targets, relay, _ = fixed(Names(db="10.0.0.1"), DB)
    await targets.look()
    await targets.look()
    [put] = relay.targets
    [target] = put.targets
    assert (target.address, target.port, target.primary) == ("10.0.0.1", 5432, True)
    assert targets.state().healthy


async def test_a_name_that_moved_is_another_target() -> None:
    names = Names(db="10.0.0.1")
    targets, relay, clock = fixed(names, DB)
    await targets.look()
    names.hosts["db"] = "10.0.0.9"
    await clock.advance(RESOLVE_S + 1)
    await targets.look()
    await asyncio.sleep(0)
    await targets.look()
    first, second = (put.targets[0] for put in relay.targets)
    assert (second.address, second.id == first.id) == ("10.0.0.9", False)


async def test_a_resolver_that_hangs_leaves_the_last_good_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.proxy.targets.RESOLVE_TIMEOUT_S", 0.02)
    names = Names(db="10.0.0.1")
    targets, relay, clock = fixed(names, DB)
    await targets.look()
    names.hangs = True
    await clock.advance(RESOLVE_S + 1)
    await targets.look()  # does not wait for it
    assert relay.targets[-1].targets[0].address == "10.0.0.1"
    await targets.close()
    assert RESOLVE_TIMEOUT_S == 2.0


async def test_a_name_that_nobody_knows_is_said_and_the_others_go() -> None:
    targets, relay, _ = fixed(Names(db="10.0.0.1"), DB, ServerTerms("r", "nowhere", 5432, True))
    await targets.look()
    assert [target.name for target in relay.targets[-1].targets] == ["db"]
    state = targets.state()
    assert not state.healthy and "nowhere: Name or service not known" in state.summary


async def test_a_socket_and_an_address_need_no_resolver() -> None:
    names = Names()
    socket = ServerTerms("s", "/run/postgresql/.s.PGSQL.5432", 5432)
    targets, relay, _ = fixed(names, socket, ServerTerms("six", "::1", 5432, replica=True))
    await targets.look()
    assert [t.address for t in relay.targets[-1].targets] == [socket.host, "::1"]
    assert names.asked == 0


async def test_the_certificate_is_that_of_the_name_not_of_the_address() -> None:
    tls = TlsTerms("verify-full", ca="/ca.pem")
    targets, relay, _ = fixed(Names(db="10.0.0.1"), ServerTerms("db", "db", 5432, tls=tls))
    await targets.look()
    assert relay.targets[-1].targets[0].tls.name == "db"


async def test_what_the_relay_blocks_is_tried_again_and_said() -> None:
    targets, relay, _ = fixed(Names(db="10.0.0.1"), DB)
    relay.blocks = "its certificate cannot be read"
    await targets.look()
    assert "cannot be read" in targets.state().summary
    relay.blocks = ""
    await targets.look()
    assert len(relay.targets) == 1


def test_a_target_is_the_same_in_every_process() -> None:
    assert target_id("db", "10.0.0.1", 5432) == target_id("db", "10.0.0.1", 5432) != 0


# --- followed ---------------------------------------------------------------------------------

TERMS = FollowTerms("main", port=5432, servers=(
    ServerTerms("db-a", "10.0.0.1", 5432), ServerTerms("db-b", "10.0.0.2", 5432),
    ServerTerms("db-c", "10.0.0.3", 5432),
))  # fmt: skip


def doc(*members: Any, primary: str = "db-a", term: int | None = 3, **more: Any) -> Reply:
    """As an agent answers, by its own code."""
    seen = shard_view(*members, standpoint=Leading(primary, term, NOW.mono_s + 1), **more)
    return Reply(200, {}, msgspec.json.encode(shard_doc(seen, {"lag": LAG}, at(0))))


def lag(value: float) -> dict[str, Any]:
    return {"readings": {"lag": sample(value)}}


A = member("db-a", PRIMARY, local=True)
B = member("db-b", **lag(0.1))
C = member("db-c", **lag(0.1))


class World:
    def __init__(self, *urls: str, folder: Path | None = None, terms: FollowTerms = TERMS) -> None:
        self.clock, self.relay = HandClock(), FakeRelay()
        self.dialling = FakeDialling(self.clock)
        agents = Agents(self.dialling, urls or (A_URL,), "main")
        self.targets = FollowedTargets(
            self.relay, agents, terms, self.clock, folder, lookup=Names()
        )

    def say(self, reply: Reply, url: str = A_URL) -> None:
        self.dialling.lines[url].away = False
        self.dialling.lines[url].answer = lambda *_: reply

    async def look(self) -> dict[str, ServerTarget]:
        await self.targets.look()
        return {target.name: target for target in self.relay.targets[-1].targets}


async def test_the_primary_and_healthy_replicas_are_put() -> None:
    world = World()
    world.say(doc(A, B, C))
    found = await world.look()
    assert [(n, t.primary, t.replica) for n, t in found.items()] == [
        ("db-a", True, False), ("db-b", False, True), ("db-c", False, True),
    ]  # fmt: skip
    assert world.targets.state().healthy


async def test_a_lagging_replica_takes_no_new_sessions_and_a_skipped_one_none_at_all() -> None:
    world = World()
    skip = Skip("commerce/-80", "db-c", NOW.wall_s + 60, "ann", "maintenance", NOW.wall_s)
    late = member("db-b", **lag(9.0))
    world.say(doc(A, late, member("db-c", skip=skip, **lag(0.1))))
    found = await world.look()
    assert set(found) == {"db-a", "db-b"}
    assert not found["db-b"].replica
    assert "lag is above its threshold" in world.targets.state().summary


async def test_an_agent_that_is_unreachable_does_not_end_sessions_to_its_database() -> None:
    world = World()
    world.say(doc(A, B))
    before = await world.look()
    gone = member(
        "db-b", lost=absent(Cause.UNREACHABLE, "no answer"), problem="no answer", **lag(0.1)
    )
    world.say(doc(A, gone))
    after = await world.look()
    assert (after["db-b"].id, after["db-b"].replica) == (before["db-b"].id, False)


async def test_a_failover_is_followed_without_a_restart() -> None:
    world = World()
    world.say(doc(A, B))
    before = await world.look()
    world.say(doc(member("db-b", role(PRIMARY.role, term=4)), primary="db-b", term=4))
    after = await world.look()
    assert (after["db-b"].primary, after["db-b"].id) == (True, before["db-b"].id)
    assert world.targets.primary == "db-b"


async def test_an_old_primarys_agent_does_not_pull_traffic_back_even_after_a_restart(
    tmp_path: Path,
) -> None:
    new = doc(member("db-b", role(PRIMARY.role, term=4)), primary="db-b", term=4)
    first = World(folder=tmp_path)
    first.say(new)
    await first.look()
    again = World(folder=tmp_path)
    again.say(doc(A, B))
    await again.targets.recall()
    await again.targets.look()
    assert again.relay.targets == []
    assert "this report is outdated" in again.targets.state().summary


async def test_both_sides_of_a_split_are_contacted_and_the_newer_term_wins() -> None:
    world = World(A_URL, B_URL)
    world.say(doc(A))
    world.say(doc(member("db-b", role(PRIMARY.role, term=4)), primary="db-b", term=4), B_URL)
    found = await world.look()
    assert found["db-b"].primary


async def test_no_report_and_no_leader_leave_everything_as_it_was() -> None:
    world = World()
    world.say(doc(A, B))
    await world.look()
    nobody = shard_view(A, B, standpoint=Unled(absent(Cause.NO_PRIMARY, "none")))
    world.say(Reply(200, {}, msgspec.json.encode(shard_doc(nobody, {"lag": LAG}, at(0)))))
    await world.look()
    world.dialling.lines[A_URL].away = True
    await world.targets.look()
    assert len(world.relay.targets) == 1
    state = world.targets.state()
    assert not state.healthy and "no agent answers" in state.summary


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"members": 3}', b"\xff"])
async def test_what_is_no_shard_is_not_followed(body: bytes) -> None:
    world = World()
    world.say(Reply(200, {}, body))
    await world.targets.look()
    assert world.relay.targets == []


async def test_another_shard_of_the_same_name_is_not_ours() -> None:
    world = World(terms=FollowTerms("main", shard="orders/80-", port=5432))
    world.say(doc(A, B))
    await world.targets.look()
    assert world.relay.targets == []


async def test_addresses_come_from_the_agents_hosts_where_settings_say_none() -> None:
    world = World(terms=FollowTerms("main", port=6432))
    near = member("db-a", PRIMARY, local=True)
    world.say(doc(near))
    unplaced = world.targets
    await unplaced.look()
    # db-a's agent advertises https://db-a:8087, which Names does not know.
    assert world.relay.targets == []
    assert "db-a: Name or service not known" in unplaced.state().summary
