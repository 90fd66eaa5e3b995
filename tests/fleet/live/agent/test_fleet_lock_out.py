"""Nobody locks out everybody, all over a fleet, by a word that was mistyped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headgate.changes.book import SharedBook
from headgate.errors import InvalidSettings
from headgate.rules.drafts import RuleDrafts
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetric
from tests.changes import verbs
from tests.changes.changebook_world import COMMERCE, FLEET, BookWorld
from tests.changes.fleet_items import HERE, OTHER, rule_item
from tests.fleet.live.agent.test_fleetrules import FleetWorld

LAG = {"lag": KnownMetric(5.0, True, value=1.0, value_on="main")}


def metrics(*names: str, target: str = "all", **more: Any) -> dict[str, Any]:
    return {"kind": "metrics", "target": target, "metrics": list(names), **more}


def limits(target: str = "all", **thresholds: float | str) -> dict[str, Any]:
    return {"kind": "thresholds", "target": target, "thresholds": thresholds}


def world_knowing(known: Mapping[str, KnownMetric]) -> BookWorld:
    world = BookWorld()
    world.book = SharedBook(world.store, world.clock, lambda: 0.5, RuleDrafts(lambda _: known))
    return world


# --- the agent that sets it ------------------------------------------------------------------


@pytest.mark.parametrize("known", [LAG, {}], ids=["a database", "no database"])
@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (metrics("nosuch"), "rule.metrics"),
        (metrics("lag", "nosuch"), "rule.metrics"),
        (limits(nosuch=1.0), "rule.thresholds"),
    ],
)
async def test_what_this_agent_cannot_validate_is_not_set_for_everybody(
    known: Mapping[str, KnownMetric], raw: dict[str, Any], place: str
) -> None:
    """Also where the agent that is asked has no database at all, as one that shows the fleet."""
    world = world_knowing(known)
    for reach in (FLEET, COMMERCE):
        with pytest.raises(InvalidSettings, match="this agent does not measure nosuch") as told:
            await verbs.put_rule(world.book, raw, reach=reach, who="ada")
        assert place in {fault.place for fault in told.value.faults}
    file = {"rules": [{**raw, "id": "x", "reach": "fleet", "for": "1h"}]}
    with pytest.raises(InvalidSettings, match="does not measure nosuch"):
        await world.book.apply(file, who="ada")
    assert (await world.book.items()).n == 0


async def test_of_some_clients_it_is_advice_that_says_what_becomes_of_it() -> None:
    change = await verbs.put_rule(
        world_knowing(LAG).book, metrics("nosuch", target="etl"), reach=FLEET, who="ada"
    )
    told = {one.code: one.message for one in change.advice}
    assert "that part of the rule has no effect" in told["metric-elsewhere"]
    change = await verbs.put_rule(
        world_knowing({}).book, limits("etl", lag="1ms"), reach=FLEET, who="a"
    )
    [only] = change.advice
    assert only.code == "unchecked" and "use an agent that has it" in only.message


async def test_a_limit_for_everybody_that_is_exceeded_just_now_is_not_set() -> None:
    """R83: as an agent's own is not."""
    world = world_knowing(LAG)
    with pytest.raises(InvalidSettings, match="lag is 1s on main now"):
        await verbs.put_rule(world.book, limits(lag="0.5s"), reach=FLEET, who="ada")
    change = await verbs.put_rule(world.book, limits(lag="0.5s"), reach=COMMERCE, who="ada")
    assert [one.code for one in change.advice] == ["exceeded"], "it may not reach this agent"
    assert (await verbs.put_rule(world.book, limits(lag="2s"), reach=FLEET, who="ada")).advice == ()
    night = {"days": ["mon"], "from": "01:00", "to": "02:00", "zone": "UTC"}
    recurring = {**limits(lag="0.5s"), "schedule": night}
    assert (await verbs.put_rule(world.book, recurring, reach=FLEET, who="ada")).after_n == 3


async def test_what_was_set_can_be_extended_by_an_agent_that_cannot_validate_it() -> None:
    """At night, at the agent that shows the fleet: it is no more of a lock-out than it was."""
    world = world_knowing(LAG)
    await verbs.put_rule(world.book, {**limits(lag="2.0s"), "id": "tight"}, reach=FLEET, who="ada")
    blind = SharedBook(world.store, world.clock, lambda: 0.5, RuleDrafts(lambda _: {}))
    assert (await verbs.patch_rule(blind, "tight", {"for": "3h"}, who="bob")).after_n == 2
    with pytest.raises(InvalidSettings, match="this agent does not measure lag"):
        await verbs.patch_rule(blind, "tight", {"thresholds": {"lag": "0.1s"}}, who="bob")
    exported = (await blind.export()).document
    later = {"rules": [{**exported["rules"][0], "expires_at": world.wall_s + 5 * 3600}]}
    assert (await blind.apply(later, who="bob")).after_n == 3
    wider = {"rules": [{**exported["rules"][0], "reach": "shard:commerce/*"}]}
    with pytest.raises(InvalidSettings, match="this agent does not measure lag"):
        await blind.apply(wider, who="bob")


# --- the agents that get it ------------------------------------------------------------------


@pytest.fixture
async def world() -> FleetWorld:
    world = FleetWorld()
    await world.store.open()
    return world


def named(world: FleetWorld) -> tuple[str, ...]:
    """By which metrics a client is decided; none: by the agent's own."""
    applied = world._applied("etl:nightly", "main")
    return tuple(name for rule in applied.metrics for name in rule.metrics)


async def test_a_metric_that_is_not_measured_here_locks_out_nobody_here(world: FleetWorld) -> None:
    await world.follow(rule_item(**metrics("nosuch")))
    assert named(world) == ()
    assert "nosuch: not measured" in world.keeper.faults["f-1"]
    await world.follow(rule_item(n=2, **metrics("nosuch", "lag")))
    assert named(world) == ("lag",)
    assert "here it names lag alone" in world.keeper.faults["f-1"]
    await world.follow(rule_item(n=3, **metrics("lag")))
    assert named(world) == ("lag",) and not world.keeper.faults


async def test_one_that_is_gone_is_no_longer_reported(world: FleetWorld) -> None:
    await world.follow(rule_item(**metrics("nosuch")), whole=True)
    await world.follow(whole=True)
    assert not world.keeper.faults


async def test_one_database_without_it_is_enough(world: FleetWorld) -> None:
    """`other` has no metric: where the rule is for both, it says nothing."""
    await world.follow(rule_item(**metrics("lag"), reach="shard:search/*"), places=(HERE, OTHER))
    assert "f-1@other" in world.keeper.faults


async def test_a_metric_that_is_measured_later_counts_from_then_on(world: FleetWorld) -> None:
    known = dict(LAG)
    world.keeper = RuleKeeper(world.store, world.clock, world.books.append, lambda _: known)
    async with world.running():
        await world.follow(rule_item(**metrics("gpu")))
        assert named(world) == ()
        known["gpu"] = KnownMetric(80.0, False)
        await world.clock.advance(2)
        assert named(world) == ("gpu",) and not world.keeper.faults
        del known["gpu"]
        await world.clock.advance(2)
        assert named(world) == (), "it was taken out of the settings"
