"""A rule of the fleet that is suspended at one agent, while nobody can lift it."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.base.names import parse_identity
from headgate.errors import InvalidSettings
from headgate.rules.api import explain_rules, state_of
from tests.changes.fleet_items import HERE, OTHER, rule_item
from tests.fleet.live.agent.test_fleetrules import PLACES, FleetWorld

HOLD: dict[str, Any] = {"kind": "hold", "target": "etl", "reason": "INC-1"}


@pytest.fixture
async def world() -> FleetWorld:
    world = FleetWorld()
    await world.store.open()
    return world


async def rest(world: FleetWorld, rule_id: str = "f-1", **more: bool) -> list[str]:
    found = await world.keeper.suspensions.put(rule_id, "the store is away", who="ann", **more)
    return [entry.id for entry in found]


async def test_a_hold_that_nobody_can_lift_ends_at_this_agent(world: FleetWorld) -> None:
    await world.follow(rule_item(**HOLD))
    assert await rest(world, dry_run=True) == ["f-1"] and world.rejected_by() == "f-1"
    assert await rest(world) == ["f-1"] and world.rejected_by() is None
    (entry,) = [entry for entry, _ in world.keeper.entries()]
    wall_s = world.clock.now().wall_s
    assert state_of(entry.spec, entry.in_book(world.clock.now()), wall_s) == "suspended"
    assert entry.spec.suspended == "by ann at this agent: the store is away"
    (told,) = explain_rules(world.books[-1], parse_identity("etl"), "main", wall_s)
    assert told.state == "suspended"
    assert ("ann", "rule.suspended", "f-1") in await world.actions()
    await world.keeper.suspensions.end("f-1", who="bob")
    assert world.rejected_by() == "f-1"
    assert ("bob", "rule.resumed", "f-1") in await world.actions()


async def test_it_stays_suspended_through_news_of_it_and_a_restart(world: FleetWorld) -> None:
    await world.follow(rule_item(**HOLD))
    await rest(world)
    await world.follow(rule_item(n=2, **{**HOLD, "reason": "INC-2"}))
    assert world.rejected_by() is None, "another reason, the same rule"
    await world.clock.advance(1)
    await world.restarted()
    await world.keeper.follow([rule_item(n=2, **HOLD)], PLACES)
    assert world.rejected_by() is None


async def test_a_rule_that_is_set_again_by_the_same_name_counts(world: FleetWorld) -> None:
    await world.follow(rule_item(**HOLD))
    await rest(world)
    await world.follow(rule_item(n=3, **HOLD, created_at="2031-01-01T00:00:00Z"))
    assert world.rejected_by() == "f-1"


async def test_all_of_its_parts_are_suspended_or_one(world: FleetWorld) -> None:
    await world.follow(rule_item(**HOLD, reach="shard:*/*"), places=(HERE, OTHER, PLAIN))
    assert world.ids == ["f-1@main", "f-1@other"]
    assert await rest(world, "f-1@main") == ["f-1@main"]
    assert world.rejected_by(database="other") == "f-1@other"
    assert await rest(world) == ["f-1@main", "f-1@other"]
    assert world.rejected_by(database="other") is None


PLAIN = type(HERE)("eu-1", "commerce", "", "db-1", "third")
"""Of no shard."""


async def test_of_a_pair_both_are_suspended(world: FleetWorld) -> None:
    """R76: half of a favor rejects everybody, or nobody."""
    await world.follow(
        rule_item("f-1", kind="ratio", target="etl", ratio=0.0, pair="f-2"),
        rule_item("f-2", kind="ratio", target="all", ratio=0.9, pair="f-1"),
    )
    assert sorted(await rest(world, "f-2")) == ["f-1", "f-2"]
    assert world.rejected_by("web") is None


async def test_what_is_not_of_the_fleet_or_has_no_reason_is_not_suspended(
    world: FleetWorld,
) -> None:
    await world.put(target="etl", ratio=0.5, id="own")
    for name in ("own", "nosuch"):
        with pytest.raises(InvalidSettings, match="not a rule of the fleet or of a shard"):
            await rest(world, name)
    await world.follow(rule_item(**HOLD))
    with pytest.raises(InvalidSettings, match="is required"):
        await world.keeper.suspensions.put("f-1", "", who="ann")


async def test_one_that_cannot_be_kept_is_suspended_all_the_same_and_says_so(
    world: FleetWorld,
) -> None:
    await world.follow(rule_item(**HOLD))
    world.store.puts_left = 0
    (entry,) = await world.keeper.suspensions.put("f-1", "x", who="ann")
    assert world.rejected_by() is None
    assert "until a restart" in entry.advice[0].message
