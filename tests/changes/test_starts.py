"""Changes that start later, of every kind: until then nothing here counts by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from headgate.base.declared import iso
from headgate.changes.api import change_doc
from headgate.changes.follower import LogFollower
from headgate.changes.inforce import LOOK_S, SharedInForce
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import EVERYWHERE, HERE, Place
from headgate.errors import HeadgateError, InvalidSettings
from tests.budgets.budget_world import ETL
from tests.builders import NOW
from tests.changes import verbs
from tests.changes.changes_world import PEER, ChangesWorld
from tests.changes.test_inforce import StubFollower
from tests.fixtures.fakes import settle
from tests.shard.shard_world import SHARD

LATER_S = 300.0
LATER = iso(NOW.wall_s + LATER_S)
MEMBER = {"shard": SHARD, "reason": "kernel"}
ENTRIES: dict[str, dict[str, Any]] = {
    "rules": {"id": "slow", "target": "etl", "ratio": 0.5},
    "budgets": {"database": "main", "name": "exports", "rate": 10},
    "metrics": {"database": "main", "metric": "lag", "threshold": "9s", "for": "3h"},
    "peers": PEER,
    "skips": {**MEMBER, "member": "db-b", "for": "1h"},
}
FILE = {section: [{**entry, "starts_at": LATER}] for section, entry in ENTRIES.items()}


@pytest.fixture
async def world() -> AsyncIterator[ChangesWorld]:
    world = await ChangesWorld().start()
    log = world.log
    running = asyncio.create_task(
        log.in_force.starts.run(lambda: log.book.renew(log.in_force.load))
    )
    yield world
    running.cancel()
    await world.close()


def in_force(world: ChangesWorld) -> set[str]:
    """Sections whose entry counts."""
    shard, wall_s = world.shards.each[SHARD], world.clock.now().wall_s
    lag = world.metric_book.database("main").entry("lag").spec.threshold
    found = {
        "rules": any(rule.in_force(wall_s) for rule in world.rules.book.rules),
        "budgets": world.budgets.of("main").edition.budget("exports") is not None,
        "metrics": lag == 9,
        "peers": "db-x" in shard.remotes,
        "skips": bool(world.shards.keeper.skips("main")),
        "handovers": shard.handover is not None,
    }
    return {section for section, is_so in found.items() if is_so}


async def test_what_starts_later_counts_from_then_on(world: ChangesWorld) -> None:
    made = await world.apply(FILE)
    assert {item.kind for item in made.items} == {"rule", "budget", "metric", "peer", "skip"}
    assert in_force(world) == set()
    await world.clock.advance(LATER_S - 10)
    assert in_force(world) == set()
    await world.clock.advance(10 + LOOK_S)
    assert in_force(world) == FILE.keys()
    await world.clock.advance(3600)
    assert in_force(world) == FILE.keys() - {"rules", "skips"}, "`for` counts from the start"


async def test_a_switchover_can_be_announced_for_later(world: ChangesWorld) -> None:
    soon = iso(NOW.wall_s + 120)
    await world.apply({"handovers": [{**MEMBER, "for": "5m", "starts_at": soon}]})
    assert in_force(world) == set()
    await world.clock.advance(120 + LOOK_S)
    assert in_force(world) == {"handovers"}


async def test_a_start_survives_a_restart_before_and_after_it(world: ChangesWorld) -> None:
    await world.apply(FILE)
    await world.log.load()
    assert in_force(world) == set()
    await world.clock.advance(LATER_S)
    await world.log.load()
    assert in_force(world) == FILE.keys()


async def test_it_is_listed_exported_and_rolled_back_as_any_other(world: ChangesWorld) -> None:
    await world.apply(FILE)
    held, wall_s = world.book.held, world.clock.now().wall_s
    docs = [change_doc(item, wall_s) for item in held.items.values()]
    assert {doc.state for doc in docs} == {"waiting"}
    assert all(doc.says.startswith(f"from {LATER}: ") for doc in docs)
    exported = await world.exported()
    assert all(entries[0]["starts_at"] == LATER for entries in exported.values() if entries)
    assert (await world.apply(exported, prune=True)).changes == ()
    await world.apply({}, prune=True)
    assert world.standing("metric") == {}
    await world.book.rollback(1, who="bob")
    await world.clock.advance(LATER_S + LOOK_S)
    assert in_force(world) == FILE.keys()


async def test_what_is_in_force_is_not_put_off(world: ChangesWorld) -> None:
    """Nor does a command at once take the place of what waits."""
    await world.apply({section: [entry] for section, entry in ENTRIES.items()})
    n = world.book.held.n
    with pytest.raises(InvalidSettings) as caught:
        await world.apply(FILE)
    assert len(caught.value.faults) == len(FILE)
    assert all("is in force now" in fault.message for fault in caught.value.faults)
    assert world.book.held.n == n and in_force(world) == FILE.keys()
    await world.apply({}, prune=True)
    await world.apply(FILE)
    for hasty in (
        world.metric_book.patch("main", "lag", {"threshold": "7s"}, who="ada"),
        world.budgets.of("main").book.patch_budget("exports", {"rate": 5}, who="ada"),
        world.shards.keeper.skip("main", "db-b", for_s=60, reason="now", who="ada"),
    ):
        with pytest.raises(HeadgateError, match=f"waits until {LATER}"):
            await hasty
    # A file says what shall be: at once, where it names no start.
    await world.apply({section: [entry] for section, entry in ENTRIES.items()})
    assert in_force(world) == FILE.keys()


async def test_faults_of_a_start_are_reported_with_all_others(world: ChangesWorld) -> None:
    file = {
        "metrics": [{**ENTRIES["metrics"], "threshold": "no", "starts_at": "tomorrow"}],
        "rules": [{**ENTRIES["rules"], "ratio": 7, "starts_at": "tomorrow"}],
    }
    with pytest.raises(InvalidSettings) as caught:
        await world.apply(file)
    assert {fault.place for fault in caught.value.faults} == {
        *("metrics[0].starts_at", "metrics[0].threshold", "rules[0].starts_at", "rules[0].ratio")
    }
    over = {**ENTRIES["skips"], "for": None, "expires_at": iso(NOW.wall_s + 60)}
    far = iso(NOW.wall_s + 31 * 86_400)
    late = {
        "skips": [{**over, "starts_at": LATER}],
        "peers": [{**PEER, "starts_at": far}],
        "policies": [{"database": "main", "mode_cap": "warn", "starts_at": LATER}],
    }
    with pytest.raises(InvalidSettings) as caught:
        await world.apply(late)
    told = {fault.place: fault.message for fault in caught.value.faults}
    assert told.keys() == {f"skip {SHARD} db-b", f"peer {SHARD} db-x", "policy main"}
    assert "before it starts" in told[f"skip {SHARD} db-b"]
    assert "more than 30 days ahead" in told[f"peer {SHARD} db-x"]


async def test_a_rule_says_itself_when_it_starts(world: ChangesWorld) -> None:
    """In its windows, so that nothing has to wake for it."""
    raw = {"id": "later", "target": "etl", "ratio": 0.5, "for": "1h", "starts_at": LATER}
    await verbs.put_rule(world.book, raw, reach=HERE, who="ada")
    (rule,) = world.rules.book.rules
    assert rule.windows == ((NOW.wall_s + LATER_S, NOW.wall_s + LATER_S + 3600),)
    # A change of something else leaves the start, and a new one moves it.
    await verbs.patch_rule(world.book, "later", {"ratio": 0.7}, who="ada")
    assert world.standing("rule")["later"]["starts_at"] == LATER
    sooner = iso(NOW.wall_s + 60)
    await verbs.patch_rule(world.book, "later", {"starts_at": sooner}, who="ada")
    await world.clock.advance(61)
    assert in_force(world) == {"rules"}
    nightly = {"from": "00:00", "to": "24:00", "zone": "UTC"}
    both = {**raw, "id": "nightly", "schedule": nightly, "for": "9d"}
    await verbs.put_rule(world.book, both, reach=HERE, who="ada")
    found = next(rule for rule in world.rules.book.rules if rule.id == "nightly")
    assert found.windows is not None and found.windows[0][0] == NOW.wall_s + LATER_S


async def test_what_a_fleet_set_for_later_starts_at_each_agent(world: ChangesWorld) -> None:
    """The switch for all budgets, too."""
    off = {"policy": {}, "order": [], "mode_cap": "off", "of_fleet": [], "starts_at": LATER}
    lag = {"settings": {"threshold": "3s"}, "starts_at": LATER}
    said = (NOW.wall_s, "ops")
    wide = {**ETL, "name": "wide", "starts_at": LATER}
    items = (
        Change(ChangeKind.POLICY, "all@fleet", EVERYWHERE, off, 3, *said),
        Change(ChangeKind.METRIC, "*/lag@fleet", EVERYWHERE, lag, 3, *said),
        Change(ChangeKind.BUDGET, "wide@fleet", EVERYWHERE, wide, 3, *said),
    )
    rooms = (world.rules, world.budgets, world.metric_book)
    places = [Place(database="main", host="db-a")]
    shared = SharedInForce(
        cast(LogFollower, StubFollower(*items)),
        world.clock,
        rooms,
        places=lambda: places,
        found=lambda members: None,
    )

    def counts() -> tuple[str, float, bool]:
        edition = world.budgets.of("main").edition
        threshold = world.metric_book.database("main").entry("lag").spec.threshold
        return edition.mode_cap.value, threshold, "wide" in edition.fleet

    running = [asyncio.create_task(shared.run())]
    running.append(asyncio.create_task(shared.starts.run(shared.renew)))
    shared.look_again()
    await settle()
    assert counts() == ("enforce", 5, False)
    await world.clock.advance(LATER_S + 2 * LOOK_S)
    assert counts() == ("off", 3, True)
    for task in running:
        task.cancel()
