"""Following Patroni's keys, and a server's role by Patroni's word where the server tells none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from headgate.base.keyvalue import Changes, KeyEvent, Listing, Put
from headgate.errors import ProbeFailed, StoreUnavailable
from headgate.metrics.samples import Cause
from headgate.shard.patroni import (
    LIST_EVERY_S,
    LOCK_TRUSTED_S,
    UNLISTED_TIMES,
    ConfirmPace,
    PatroniFollower,
    PatroniRoleProbe,
)
from headgate.shard.topology import Role
from tests.fixtures.fakes import FakeRole, HandClock, primary, replica
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.shard.test_patroni_keys import member

SLOW = ProbeFailed(Cause.TIMED_OUT, "db: did not tell its role in 0.5 s")
DOWN = ProbeFailed(Cause.FAILED, "db: connection refused")


class CutStore(MemoryLog):
    def __init__(self, kept: KeptInMemory) -> None:
        super().__init__(kept)
        self.away = ""
        self.is_silent = False
        self.rejects_watches = False
        self.lists = self.watches = 0

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        self.lists += 1
        if self.away:
            raise StoreUnavailable(self.away)
        return await super().list(prefixes)

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        self.watches += 1
        if self.rejects_watches:
            raise StoreUnavailable("etcd: permission denied")
        changes = super().watch(prefixes, after_revision=after_revision)
        try:
            async for change in changes:
                if not self.is_silent:
                    yield change
        finally:
            await changes.aclose()

    def cut(self, why: str) -> None:
        self.away = why
        for watch in list(self._open):
            watch.end(StoreUnavailable(why))


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.store = CutStore(KeptInMemory(mono_s=lambda: self.clock.now().mono_s))
        self.follower = PatroniFollower(self.store, "batman", self.clock, lambda: 0.5)
        self.told: list[str] = []
        self.follower.watch(lambda: self.told.append(self.leader()))
        self.server = FakeRole(self.clock)
        self.probe = PatroniRoleProbe(self.server, self.follower, "db-a", self.clock)
        self.task = asyncio.create_task(self.follower.run())

    def put(self, **values: str) -> None:
        puts = [
            Put(f"batman/{key.replace('members_', 'members/').replace('_', '-')}", value.encode())
            for key, value in values.items()
        ]
        self.store.kept.commit([], puts)

    def leader(self) -> str:
        assert self.follower.cluster is not None
        return self.follower.cluster.leader

    def age_s(self, at: float) -> float:
        return self.clock.now().mono_s - at

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.put(
        leader="db-a", members_db_a=member(role="primary"), members_db_b=member(role="replica")
    )
    await world.clock.advance(0.1)
    yield world
    await world.close()


async def test_a_switchover_is_seen_at_once(world: World) -> None:
    assert world.leader() == "db-a"
    world.put(leader="db-b", members_db_b=member(role="primary"))
    await world.clock.advance(0.01)
    assert world.leader() == "db-b"
    assert world.told == ["db-a", "db-b"]


async def test_what_patroni_writes_every_few_seconds_is_no_news(world: World) -> None:
    for at in range(5):
        world.put(
            members_db_a=member(role="primary", xlog_location=at), status=f'{{"optime":{at}}}'
        )
        await world.clock.advance(1)
    assert world.told == ["db-a"]


async def test_a_store_that_is_away_leaves_the_last_report_and_says_how_old_it_is(
    world: World,
) -> None:
    world.store.cut("etcd: no quorum")
    await world.clock.advance(60)
    assert world.leader() == "db-a"
    assert world.follower.words().endswith("s ago; etcd: no quorum)")
    assert world.store.lists < 15, "and is not asked all the time"
    world.store.away = ""
    world.put(leader="db-b", members_db_b=member(role="primary"))
    await world.clock.advance(20)
    assert world.leader() == "db-b" and world.follower.fault == ""


async def test_a_watch_that_went_silent_is_found_out_by_the_next_list(world: World) -> None:
    world.store.is_silent = True
    world.put(leader="db-b", members_db_b=member(role="primary"))
    await world.clock.advance(1)
    assert world.leader() == "db-a"
    await world.clock.advance(LIST_EVERY_S * 1.2)
    assert world.leader() == "db-b"


async def test_a_compacted_watch_lists_again(world: World) -> None:
    world.store.cut("")
    world.put(leader="db-b", members_db_b=member(role="primary"))
    world.store.kept.compact(world.store.kept.revision)
    await world.clock.advance(3)
    assert world.leader() == "db-b"


# --- a role where the server tells none --------------------------------------------------------


async def test_a_server_that_reports_its_role_is_believed(world: World) -> None:
    """Patroni's lock may be older, or younger, than what the server is."""
    world.server.says = replica(term=9)
    seen = await world.probe.read()
    assert (seen.role, seen.term) == (Role.REPLICA, 9)


async def test_a_primary_that_is_too_busy_to_answer_is_known_by_its_lock(world: World) -> None:
    world.server.says = SLOW
    await _fails_or_reads(world)
    await world.clock.advance(1)
    seen = await world.probe.read()
    assert (seen.role, seen.term) == (Role.PRIMARY, 3)
    assert world.clock.now().mono_s - seen.taken_at <= 0.5, "confirmed within the age limit"


async def test_a_server_that_hangs_is_known_by_its_lock(world: World) -> None:
    world.server.says = None
    seen = await world.probe.read()
    assert seen.role is Role.PRIMARY


async def test_a_primary_that_is_gone_is_none_although_it_holds_the_lock(world: World) -> None:
    world.server.says = DOWN
    with pytest.raises(
        ProbeFailed, match=r"connection refused; Patroni \(batman\).*does not count"
    ):
        await world.probe.read()


async def test_a_replica_whose_server_does_not_answer_is_one_by_patronis_report(
    world: World,
) -> None:
    world.put(leader="db-b", members_db_b=member(role="primary"))
    world.server.says = DOWN
    await world.clock.advance(0.1)
    assert (await world.probe.read()).role is Role.REPLICA


async def test_a_report_that_was_not_confirmed_is_dated_so(world: World) -> None:
    """Anyone who uses it judges its age: a follower that is cut off confirms nothing."""
    world.server.says = SLOW
    world.store.cut("etcd: no quorum")
    await world.clock.advance(30)
    seen = await world.probe.read()
    assert world.clock.now().mono_s - seen.taken_at >= 30


async def test_a_lock_is_confirmed_every_few_seconds_and_known_all_the_while(
    world: World,
) -> None:
    """A region whose servers are slow together must not bring down the etcd that Patroni needs."""
    world.server.says = SLOW
    await _fails_or_reads(world)
    await world.clock.advance(2)
    before = world.store.lists
    for _ in range(240):
        seen = await world.probe.read()
        assert (seen.role, world.age_s(seen.taken_at)) == (Role.PRIMARY, 0.0)
        await world.clock.advance(0.25)
    assert 6 <= world.store.lists - before <= 11, "in a minute"
    world.server.says = primary()
    await world.clock.advance(10)
    before = world.store.lists
    await world.clock.advance(20)
    assert world.store.lists - before <= 1


@pytest.mark.parametrize("says", [DOWN, SLOW])
async def test_a_replica_is_one_by_the_watch_alone(world: World, says: ProbeFailed) -> None:
    """It may be dead for days."""
    world.put(leader="db-b", members_db_b=member(role="primary"))
    world.server.says = says
    await world.clock.advance(1)
    before = world.store.lists
    for _ in range(600):
        seen = await world.probe.read()
        assert (seen.role, world.age_s(seen.taken_at)) == (Role.REPLICA, 0.0)
        await world.clock.advance(1)
    assert world.store.lists - before <= 600 / LIST_EVERY_S / 0.8


async def test_a_primary_that_is_down_is_not_looked_up(world: World) -> None:
    world.server.says = DOWN
    before = world.store.lists
    for _ in range(100):
        await _fails_or_reads(world)
        await world.clock.advance(1)
    assert world.store.lists - before <= 100 / LIST_EVERY_S / 0.8


async def test_a_lock_is_not_believed_for_long_by_a_watch_that_went_silent(world: World) -> None:
    world.server.says = SLOW
    await _fails_or_reads(world)
    await world.clock.advance(2)
    world.store.is_silent = True
    world.put(leader="db-b", members_db_b=member(role="primary"))
    await world.clock.advance(LOCK_TRUSTED_S)
    await _fails_or_reads(world)
    await world.clock.advance(LOCK_TRUSTED_S)
    assert world.leader() == "db-b"


async def test_a_lock_that_cannot_be_confirmed_is_dated_by_when_it_last_was(world: World) -> None:
    """Its watch still stands, and nobody answers."""
    world.server.says = SLOW
    world.store.away = "etcd: no quorum"
    await world.clock.advance(LOCK_TRUSTED_S + 1)
    assert world.age_s((await world.probe.read()).taken_at) > LOCK_TRUSTED_S
    before = world.store.lists
    for _ in range(120):
        await _fails_or_reads(world)
        await world.clock.advance(1)
    seen = await world.probe.read()
    assert world.age_s(seen.taken_at) >= 120
    assert world.store.lists - before <= 40, "less and less often"


async def test_slow_primaries_of_one_agent_wait_for_each_other() -> None:
    pace = ConfirmPace(per_s=2.0)
    assert [pace.wait_s(10.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert pace.wait_s(20.0) == 0.0


async def test_a_list_beside_the_watch_takes_nothing_back(world: World) -> None:
    """It was answered before a change that the watch has told already."""
    old = await world.store.list(["batman/"])
    world.put(leader="db-b", members_db_b=member(role="primary"))
    await world.clock.advance(0.1)
    assert not world.follower.keys.adopt(old)
    assert world.follower.keys.cluster().leader == "db-b"


async def test_what_the_watch_reports_late_takes_nothing_back(world: World) -> None:
    world.put(leader="db-b", members_db_b=member(role="primary"))
    await world.clock.advance(0.1)
    await world.follower.look_once()
    late = KeyEvent("batman/leader", b"db-a", world.store.kept.revision - 1)
    world.follower.keys.apply(Changes((late,), late.revision))
    assert world.follower.keys.cluster().leader == "db-b"


async def test_a_watch_that_left_something_out_is_opened_again(world: World) -> None:
    world.store.is_silent = True
    world.put(leader="db-b", members_db_b=member(role="primary"))
    before = world.store.watches
    await world.clock.advance(LIST_EVERY_S * 1.2)
    assert world.store.watches == before + 1
    await world.clock.advance(10 * LIST_EVERY_S)
    assert world.store.watches == before + 1, "and not where the list told nothing new"


async def test_where_watches_are_rejected_lists_become_rare_and_it_is_said_once(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.store.rejects_watches = True
    world.store.cut("")
    world.store.away = ""
    await world.clock.advance(30)
    capsys.readouterr()
    before = world.store.lists
    await world.clock.advance(300)
    assert 20 <= world.store.lists - before <= 45
    assert "patroni.away" not in capsys.readouterr().out


async def test_what_reports_all_the_time_is_seldom_listed(world: World) -> None:
    before = world.store.lists
    for at in range(60):
        world.put(members_db_a=member(role="primary", xlog_location=at))
        await world.clock.advance(10)
    assert 600 / LIST_EVERY_S / UNLISTED_TIMES - 1 <= world.store.lists - before <= 6


async def test_a_member_that_patroni_does_not_know_is_reported(world: World) -> None:
    probe = PatroniRoleProbe(world.server, world.follower, "db-z", world.clock)
    world.server.says = SLOW
    with pytest.raises(ProbeFailed, match="has no member db-z"):
        await probe.read()


async def _fails_or_reads(world: World) -> None:
    try:
        await world.probe.read()
    except ProbeFailed:
        return
