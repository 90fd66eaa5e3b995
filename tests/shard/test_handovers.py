"""A planned switchover that is announced: from then on nobody answers by the old primary's view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from headgate.changes.model import ChangeKind
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.metrics.samples import Cause
from headgate.shard.keeper import NoSuchMember
from headgate.shard.model import MAX_HANDOVER_S
from tests.changes.own_world import Slow, Unwritable
from tests.fixtures.eventually import aeventually
from tests.fixtures.fakes import HandClock, primary, replica, settle
from tests.fixtures.memory_store import MemoryStore
from tests.shard.shard_world import SHARD, ShardWorld

OpenWorld = Callable[..., Coroutine[Any, Any, ShardWorld]]


@pytest.fixture
async def open_world() -> AsyncIterator[OpenWorld]:
    opened: list[ShardWorld] = []

    async def open_(*args: Any, **kwargs: Any) -> ShardWorld:
        opened.append(await ShardWorld(*args, **kwargs).start())
        await opened[-1].pass_s(1, "shard/lag")
        return opened[-1]

    yield open_
    for world in opened:
        await world.close()


async def announced(world: ShardWorld, for_s: float = 60.0) -> None:
    await world.shards.keeper.hand_over("main", for_s=for_s, reason="upgrade", who="orchestrator")


async def test_from_the_announcement_on_shard_scope_is_rejected_and_host_scope_is_not(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    assert world.ask().admitted
    await announced(world)
    decision = world.ask()
    assert not decision.admitted and decision.failing[0].cause is Cause.HANDING_OVER
    for word in ("db-a", "upgrade", "orchestrator", "60 s", "take-back"):
        assert word in decision.failing[0].detail
    assert world.ask("self/lag").admitted
    answers = await world.pass_s(30, "shard/lag")
    assert not any(answer.admitted for answer in answers)


@pytest.mark.parametrize("term", [1, None])
async def test_it_ends_with_the_role(open_world: OpenWorld, term: int | None) -> None:
    world = await open_world("db-b", role=primary(term=term))
    await announced(world)
    world.role.says = replica(term=term)
    await world.pass_s(1, "shard/lag")
    assert world.unled() is Cause.NO_PRIMARY
    await aeventually(lambda: _kept(world) == [])
    world.role.says = primary(term=term)
    await world.pass_s(1, "shard/lag")
    assert world.ask().admitted, "the switchover was undone"


async def test_it_ends_with_another_promotion_of_the_same_server(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=primary(term=1))
    await announced(world)
    world.role.says = primary(term=2)
    await world.pass_s(1, "shard/lag")
    assert world.ask().admitted


async def test_a_role_that_was_read_before_ends_nothing(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    world.role.says = None
    await world.pass_s(0.25)
    await announced(world)
    assert world.unled() in (Cause.HANDING_OVER, Cause.NO_PRIMARY)
    world.role.says = primary()

    async def is_primary_again() -> bool:
        answers = await world.pass_s(1, "shard/lag")
        assert not any(answer.admitted for answer in answers)
        return world.cause() is Cause.HANDING_OVER

    while not await is_primary_again():
        pass  # A read that a busy machine held up counts as timed out.


async def test_a_forgotten_handover_is_over_when_its_time_is(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    await announced(world, for_s=10)
    assert not any(answer.admitted for answer in await world.pass_s(9, "shard/lag"))
    await world.pass_s(2, "shard/lag")
    assert world.ask().admitted
    await aeventually(lambda: _kept(world) == [])
    for for_s in (0.0, -1.0, MAX_HANDOVER_S + 1):
        with pytest.raises(InvalidRequest, match="60 minutes"):
            await announced(world, for_s=for_s)


async def test_announced_again_it_gets_another_end(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    await announced(world, for_s=5)
    await announced(world, for_s=30)
    assert not any(answer.admitted for answer in await world.pass_s(20, "shard/lag"))


async def test_it_can_be_taken_back_and_both_are_audited(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    with pytest.raises(NoSuchMember, match="no handover"):
        await world.shards.keeper.take_back("main", who="ops")
    await announced(world)
    await world.shards.keeper.take_back("main", who="ops")
    await world.pass_s(1, "shard/lag")
    assert world.ask().admitted
    told = [(entry.who, entry.action, entry.target) for entry in await world.store.audit()]
    assert told == [
        ("ops", "handover.removed", SHARD),
        ("orchestrator", "handover.set", SHARD),
    ]


async def test_what_is_no_primary_has_nothing_to_hand_over(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=replica())
    with pytest.raises(InvalidRequest, match="db-a is a replica") as rejected:
        await announced(world)
    assert rejected.value.status == 409
    world.agents["db-b"].says = primary()
    await world.answer("db-b", primary())
    await settle()
    with pytest.raises(InvalidRequest, match="at the agent of db-b, https://db-b:8087"):
        await announced(world)


async def test_it_outlives_a_restart_and_a_clock_that_is_set_back(open_world: OpenWorld) -> None:
    store = MemoryStore()
    await announced(await open_world("db-b", store=store), for_s=10)
    clock = HandClock()
    clock.set_wall(-3600)
    again = await open_world("db-b", store=store, clock=clock)
    assert again.cause() is Cause.HANDING_OVER
    assert not any(answer.admitted for answer in await again.pass_s(8, "shard/lag"))
    await again.pass_s(2, "shard/lag")
    assert again.ask().admitted
    await aeventually(lambda: _kept(again) == [])


async def test_one_that_cannot_be_kept_is_not_in_force(open_world: OpenWorld) -> None:
    """As every change: to the store first."""
    world = await open_world("db-b")
    await world.store.close()
    with pytest.raises(StoreUnavailable):
        await announced(world)
    await world.pass_s(1, "shard/lag")
    assert world.ask().admitted


async def test_one_that_cannot_be_taken_out_is_over_all_the_same(open_world: OpenWorld) -> None:
    store = Unwritable()
    store.is_full = False
    world = await open_world("db-b", store=store)
    await announced(world, for_s=10)
    store.is_full = True
    await world.pass_s(12, "shard/lag")
    assert world.ask().admitted and _kept(world) == [SHARD]
    store.is_full = False
    clock = HandClock()
    await clock.advance(20)
    again = await open_world("db-b", store=store, clock=clock)
    assert again.ask().admitted
    await aeventually(lambda: _kept(again) == [])


async def test_one_that_is_announced_again_is_not_ended_with_the_last(
    open_world: OpenWorld,
) -> None:
    store = Slow()
    world = await open_world("db-b", store=store)
    await announced(world, for_s=5)
    store.may_go_on.clear()
    again = asyncio.create_task(announced(world, for_s=30))
    await world.pass_s(6, "shard/lag")  # The first one's end waits behind it.
    store.may_go_on.set()
    await again
    assert not any(answer.admitted for answer in await world.pass_s(20, "shard/lag"))
    assert _kept(world) == [SHARD]


def _kept(world: ShardWorld) -> list[str]:
    return list(world.log.standing(ChangeKind.HANDOVER))
