"""The fleet's rules are in force where they reach, end by every clock, and need no store."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.keyvalue import Entry
from headgate.base.names import parse_identity
from headgate.changes.inforce import ChangeShelf
from headgate.changes.model import Change
from headgate.changes.reach import Level
from headgate.changes.state import MAX_ITEM_BYTES, item_bytes
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.streaming import differs
from headgate.history.past_rules import rules_at, rules_between
from headgate.rules.notes import RULES
from headgate.rules.service import SLICE
from headgate.rules.settings import RuleLimits
from headgate.store.sqlite import SqliteStore
from tests.builders import NOW
from tests.changes.fleet_items import HERE, OTHER, rule_item, taken_out
from tests.rules.test_service import DAY_S, World

PLACES = (HERE,)
EXEMPT: dict[str, Any] = {
    "kind": "exempt",
    "target": "etl",
    "justification": "incident",
    "reason": "the fix",
}


@dataclass
class FleetWorld(World):
    async def follow(self, *items: Change, places: Any = PLACES, **more: Any) -> None:
        await self.keeper.follow(items, places, **more)

    @property
    def ids(self) -> list[str]:
        return sorted(entry.id for entry, _ in self.keeper.entries())

    async def noted(self) -> dict[str, Any]:
        """What the agent has noted of its rules."""
        entries = (await self.store.list((RULES,))).entries
        return {entry.key.removeprefix(RULES): json.loads(entry.value) for entry in entries}


@pytest.fixture
async def world() -> FleetWorld:
    world = FleetWorld()
    await world.store.open()
    return world


# --- where it is in force ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "ids"),
    [
        ("fleet", ["f-1"]),
        ("region:eu-*", ["f-1"]),
        ("host:db-1", ["f-1"]),
        ("shard:commerce/-80", ["f-1@main"]),
        ("shard:search/*", ["f-1@other"]),
        ("region:us-*", []),
        ("shard:billing/0", []),
    ],
)
async def test_a_rule_is_in_force_on_those_databases_that_it_reaches(
    world: FleetWorld, reach: str, ids: list[str]
) -> None:
    await world.follow(rule_item(reach=reach), places=(HERE, OTHER))
    assert world.ids == ids
    met = {name: world.rejected_by(database=name) for name in ("main", "other")}
    assert [name for name in met.values() if name] == (ids * 2 if ids == ["f-1"] else ids)


async def test_a_rule_on_one_database_keeps_its_id_and_reaches_no_other(world: FleetWorld) -> None:
    await world.follow(rule_item(database="main"), places=(HERE, OTHER))
    assert world.ids == ["f-1"]
    assert world.rejected_by(database="other") is None
    await world.follow(rule_item("f-2", 2, "shard:search/0", database="main"), places=(HERE, OTHER))
    assert world.ids == ["f-1"]


async def test_another_place_is_another_reach(world: FleetWorld) -> None:
    """The settings file was changed: what is known already is validated again."""
    item = rule_item(reach="shard:commerce/-80")
    await world.follow(item)
    assert world.ids == ["f-1"]
    await world.follow(item, places=(HERE, OTHER))
    assert world.ids == ["f-1@main"] and world.rejected_by(database="other") is None
    await world.follow(places=(OTHER,))
    assert world.ids == [] and world.rejected_by() is None


async def test_both_layers_count_and_are_listed(world: FleetWorld) -> None:
    await world.put(target="etl", ratio=0.9, id="own")
    await world.follow(rule_item())
    assert world.ids == ["f-1", "own"] and world.rejected_by() == "own"
    await world.lift("own", who="ops")
    assert world.rejected_by() == "f-1"
    entry = world.keeper.entry("f-1")
    assert entry.origin is not None and (entry.origin.n, entry.origin.set_by) == (1, "ann")
    assert world.keeper.is_own("own") and not world.keeper.is_own("f-1")


async def test_a_name_that_both_have_is_the_agents_own(world: FleetWorld) -> None:
    """Neither takes the place of the other, whichever comes first."""
    await world.put(target="etl", ratio=0.4, id="nightly")
    await world.follow(rule_item("nightly", ratio=0.5))
    assert world.ids == ["nightly", "nightly@fleet"] and world.rejected_by() == "nightly@fleet"
    world.begin()
    await world.follow(rule_item("nightly"))
    assert world.ids == ["nightly"]
    await world.load()
    assert world.ids == ["nightly", "nightly@fleet"]


# --- what changes it -----------------------------------------------------------------------------


async def test_a_repeated_or_late_list_changes_nothing(world: FleetWorld) -> None:
    first, second = rule_item(), rule_item(n=2, ratio=0.9)
    await world.follow(first)
    await world.follow(second)
    books = len(world.books)
    for late in ((second,), (first,), (rule_item(n=2, ratio=0.9),), ()):
        await world.follow(*late)
    assert len(world.books) == books
    assert world.keeper.entry("f-1").spec.rule.ratio == 0.9


async def test_that_an_item_is_missing_says_nothing(world: FleetWorld) -> None:
    """A store that lost its data must not lift what operators have set."""
    await world.follow(rule_item())
    await world.follow()
    assert world.rejected_by() == "f-1"
    await world.follow(whole=True)
    assert world.rejected_by() is None and world.ids == []


async def test_who_knows_the_order_is_believed_also_where_revisions_start_again(
    world: FleetWorld,
) -> None:
    """A store that was recreated counts from 1; what is set in it since counts."""
    old = rule_item(n=57, reach="shard:commerce/-80")
    await world.follow(old, whole=True)
    books = len(world.books)
    await world.follow(replace(old), whole=True)
    assert len(world.books) == books
    await world.follow(rule_item(n=2, ratio=0.8), taken_out(old, 2), whole=True)
    assert [e.spec.rule.ratio for e, _ in world.keeper.entries()] == [0.8]


async def test_what_is_taken_out_is_out_and_no_late_list_brings_it_back(world: FleetWorld) -> None:
    item = rule_item()
    await world.follow(item)
    await world.follow(taken_out(item, 2))
    assert world.rejected_by() is None and world.ids == []
    await world.follow(item)
    assert world.rejected_by() is None


async def test_one_that_moved_to_another_reach_stays_whatever_the_order(world: FleetWorld) -> None:
    """It leaves an item behind, under its old key, that says it is taken out."""
    old, new = rule_item(reach="shard:commerce/-80"), rule_item(n=2, ratio=0.7)
    for items in ((taken_out(old, 2), new), (new, taken_out(old, 2))):
        world.begin()
        await world.follow(old)
        await world.follow(*items)
        assert [entry.spec.rule.ratio for entry, _ in world.keeper.entries()] == [0.7]


async def test_a_lifted_rule_is_still_shown(world: FleetWorld) -> None:
    await world.follow(rule_item())
    await world.clock.advance(60)
    await world.follow(rule_item(n=2, for_s=60, lifted_by="bob"))
    assert world.rejected_by() is None and world.ids == ["f-1"]
    assert world.keeper.entry("f-1").spec.lifted_by == "bob"


async def test_one_that_cannot_be_read_is_reported_and_the_others_stay_in_force(
    world: FleetWorld,
) -> None:
    bad = rule_item("f-9", kind="of tomorrow", target="etl")
    await world.follow(bad, rule_item(), rule_item("no id/"))
    assert world.ids == ["f-1"] and set(world.keeper.faults) == {"f-9", "no id/"}
    assert "of tomorrow" in world.keeper.faults["f-9"]
    await world.follow(rule_item("f-1", 2, kind="of tomorrow", target="etl"))
    assert world.rejected_by() == "f-1", "the last good one stays"
    await world.follow(rule_item("f-9", 3, ratio=0.9), taken_out(rule_item("f-1"), 4))
    assert world.rejected_by() == "f-9" and set(world.keeper.faults) == {"no id/"}


async def test_half_of_a_pair_counts_for_nothing_until_the_other_comes(world: FleetWorld) -> None:
    """R76: everybody rejected, and nobody favored, is what nobody has set."""
    favored = rule_item("f-1", 5, target="fix", kind="ratio", ratio=0.0, pair="f-2")
    reduced = rule_item("f-2", 5, target="all", kind="ratio", ratio=0.9, pair="f-1")
    await world.follow(reduced)
    assert world.rejected_by("web") is None and "f-1" in world.keeper.faults["f-2"]
    await world.follow(favored)
    assert (world.rejected_by("web"), world.rejected_by("fix")) == ("f-2", "f-1")
    assert not world.keeper.faults
    await world.follow(replace(favored, n=6, value={**(favored.value or {}), "odd": 1}))
    assert world.rejected_by("web") is None


async def test_a_pair_that_matches_some_databases_is_shown_as_one(world: FleetWorld) -> None:
    more: dict[str, Any] = {"reach": "shard:commerce/*", "kind": "ratio"}
    await world.follow(
        rule_item("f-1", target="fix", ratio=0.0, pair="f-2", **more),
        rule_item("f-2", target="all", ratio=0.9, pair="f-1", **more),
        places=(HERE, OTHER),
    )
    assert world.keeper.entry("f-1@main").spec.pair == "f-2@main"
    assert world.rejected_by("web", "other") is None and world.rejected_by("web") == "f-2@main"


# --- noticed -------------------------------------------------------------------------------------


async def test_clients_that_decide_locally_get_it(world: FleetWorld) -> None:
    """The book is another, and its revision higher, after each change of either layer."""
    seen = []
    await world.put(target="web", ratio=0.1, id="own")
    seen.append(world.keeper.book)
    await world.follow(rule_item())
    seen.append(world.keeper.book)
    await world.patch("own", {"ratio": 0.2}, who="ops")
    seen.append(world.keeper.book)
    await world.follow(taken_out(rule_item(), 2))
    seen.append(world.keeper.book)
    revisions = [book.revision for book in seen]
    assert revisions == sorted(set(revisions))
    rest: Any = (True, "", True, frozenset(), False)
    assert differs(DatabaseSnapshot(None, seen[0], *rest), DatabaseSnapshot(None, seen[1], *rest))  # type: ignore[arg-type]


# --- clocks (R84, R87) ---------------------------------------------------------------------------


async def test_a_rule_ends_on_time(world: FleetWorld) -> None:
    """R84: nothing runs here that would end it, and nobody is asked."""
    await world.follow(rule_item())
    await world.clock.leap(3599)
    assert world.rejected_by() == "f-1"
    await world.clock.leap(1)
    assert world.rejected_by() is None


async def test_a_clock_that_is_set_back_does_not_prolong_it(world: FleetWorld) -> None:
    """R87"""
    await world.follow(rule_item())
    async with world.running():
        await world.clock.leap(1800)
        world.clock.set_wall(-DAY_S)
        await world.clock.leap(1700)
        assert world.rejected_by() == "f-1"
        await world.clock.leap(101)
        assert world.rejected_by() is None


async def test_nor_does_a_restart_with_the_clock_set_back(world: FleetWorld) -> None:
    """R87: from the cache, with the store away; what it had used up is not given back."""
    item = rule_item()
    await world.follow(item)
    in_force = []
    for _ in range(4):
        async with world.running():
            await world.clock.leap(1500)
            in_force.append(world.rejected_by() is not None)
        world.clock.set_wall(-1500 - DAY_S)
        await world.restarted()
        await world.follow(item)
    assert in_force == [True, True, False, False]


async def test_an_agent_whose_clock_is_behind_gives_it_its_term_and_no_more(
    world: FleetWorld,
) -> None:
    """Set by someone whose clock is ahead of ours: counted from when it arrived."""
    await world.follow(rule_item(set_at=NOW.wall_s + 600))
    async with world.running():
        await world.clock.leap(3500)
        assert world.rejected_by() == "f-1"
        await world.clock.leap(102)
        assert world.rejected_by() is None


async def test_a_ratio_changed_alone_does_not_prolong_it_and_another_end_does(
    world: FleetWorld,
) -> None:
    await world.follow(rule_item())
    async with world.running():
        await world.clock.leap(1800)
        world.clock.set_wall(-DAY_S)
        await world.clock.advance(2)
        await world.follow(rule_item(n=2, ratio=0.6))
        await world.clock.leap(1801)
        assert world.rejected_by() is None
        await world.follow(rule_item(n=3, set_at=world.clock.now().wall_s))
        assert world.rejected_by() == "f-1"


async def test_a_clock_that_was_ahead_at_start_takes_no_rule_away_for_good(
    world: FleetWorld,
) -> None:
    item = rule_item()
    world.clock.set_wall(365 * DAY_S)
    async with world.running():
        await world.follow(item)
        await world.clock.advance(2)
    world.clock.set_wall(-365 * DAY_S)
    await world.restarted()
    await world.follow(item)
    assert world.rejected_by() == "f-1"


# --- kept ----------------------------------------------------------------------------------------


async def test_it_is_in_force_before_it_is_kept_and_kept_once(world: FleetWorld) -> None:
    item = rule_item(reach="region:eu-*")
    await world.follow(item)
    assert world.rejected_by() == "f-1" and await world.noted() == {}
    async with world.running():
        await world.clock.advance(3)
    kept = (await world.noted())["f-1"]
    assert (kept["n"], kept["reach"]) == (1, "region:eu-*")
    await world.restarted()
    await world.follow(item)
    async with world.running():
        await world.clock.advance(3)
    told = [one for one in await world.actions() if one[2] == "f-1"]
    assert told == [("ann", "rule.followed", "f-1")]


async def test_a_store_that_is_away_takes_nothing_away(world: FleetWorld) -> None:
    await world.store.close()
    await world.follow(rule_item())
    assert world.rejected_by() == "f-1"
    async with world.running():
        await world.clock.advance(3)
        assert world.rejected_by() == "f-1"
        await world.store.open()
        await world.clock.advance(3)
    assert list(await world.noted()) == ["f-1"]


async def test_what_was_known_counts_also_when_the_store_comes_later(world: FleetWorld) -> None:
    """R79: an exemption that rested does not go on because a disk was slow."""
    await world.follow(rule_item(**EXEMPT))
    async with world.running():
        await world.clock.advance(2)
        assert await world.keeper.suspend("f-1", "it starves web")
    await world.store.close()
    world.begin()
    await world.follow(rule_item(**EXEMPT))
    assert world.exempt_by() == "f-1"
    await world.store.open()
    async with world.running():
        await world.clock.advance(2)
    assert world.exempt_by() is None


async def test_an_exemption_is_suspended_here_alone_and_over_restarts_and_changes(
    world: FleetWorld,
) -> None:
    """R79"""
    await world.follow(rule_item(**EXEMPT))
    assert await world.keeper.suspend("f-1", "it starves web") and world.exempt_by() is None
    await world.keeper.charge("f-1", {"main web": 61.5})
    async with world.running():
        await world.clock.advance(2)
    await world.keeper.charge("f-1", {"main web": 70.0})
    await world.restarted()
    await world.follow(rule_item(n=2, **{**EXEMPT, "reason": "still"}))
    assert world.exempt_by() is None and world.keeper.charged("f-1") == {"main web": 70.0}
    assert await world.keeper.resume("f-1") and world.exempt_by() == "f-1"
    actions = [action for _, action, name in await world.actions() if name == "f-1"]
    assert actions[-1] == "rule.resumed"


async def test_what_others_noted_of_it_is_none_of_ours(world: FleetWorld) -> None:
    noted: dict[str, Any] = {
        "suspended": "elsewhere",
        "charged": {"main web": 9.0},
        "ruled_at": -5.0,
    }
    await world.follow(rule_item(**EXEMPT, **noted))
    assert world.exempt_by() == "f-1" and world.keeper.charged("f-1") == {}


async def test_its_past_is_reported_like_that_of_others(world: FleetWorld) -> None:
    """R144, R145: explained and replayed by the audit."""
    async with world.running():
        await world.clock.advance(60)
        await world.follow(rule_item())
        await world.clock.advance(600)
        await world.follow(rule_item(n=2, ratio=0.9))
        await world.clock.advance(600)
        await world.follow(taken_out(rule_item(), 3))
        await world.clock.advance(60)
    audit = await world.store.audit()
    who = parse_identity("etl")
    ratios = []
    for after_s in (30, 120, 900, 1290):
        wall_s = NOW.wall_s + after_s
        reject = rules_at(audit, [], wall_s).book.applied(who, "main", wall_s).reject
        ratios.append(reject.ratio if reject else None)
    assert ratios == [None, 0.5, 0.9, None]
    whole = rules_between(audit, [], NOW.wall_s, NOW.wall_s + 1300).book
    assert whole.applied(who, "main", NOW.wall_s + 900).reject is not None
    assert await world.noted() == {}


async def test_another_agent_on_the_same_store_is_no_reason_to_give_up(world: FleetWorld) -> None:
    await world.follow(rule_item())
    first = world.keeper
    world.begin()
    await world.follow(rule_item())
    async with world.running():
        await world.clock.advance(2)
    world.keeper = first
    async with world.running():
        await world.clock.advance(3)
    assert list(await world.noted()) == ["f-1"]
    await first.charge("f-1", {"main web": 1.0})


async def test_a_day_after_its_end_nothing_is_left_of_it(world: FleetWorld) -> None:
    item = rule_item()
    await world.follow(item, rule_item("f-2", reach="region:us-*"))
    async with world.running():
        await world.clock.advance(2)
        await world.clock.leap(DAY_S + 2 * 3600)
        await world.clock.advance(3)
        assert world.ids == [] and await world.noted() == {}
        books = len(world.books)
        await world.follow(item)
        assert len(world.books) == books
    await world.restarted()
    await world.follow(item)
    assert world.ids == []


def _many(count: int) -> list[Change]:
    said: dict[str, Any] = {"kind": "ratio", "ratio": 0.5}
    return [rule_item(f"f-{n}", n + 1, target=f"j{n}", **said) for n in range(count)]


# --- many ----------------------------------------------------------------------------------------


async def test_many_come_into_force_together_and_one_change_costs_one(world: FleetWorld) -> None:
    items = [
        rule_item(f"f-{n}", n + 1, target=f"j{n}", kind="ratio", ratio=0.5) for n in range(600)
    ]
    assert len(items) > 2 * SLICE
    await world.follow(*items)
    assert len(world.books) == 1 and len(world.keeper.entries()) == 600
    before = {rule.id: rule for rule in world.keeper.book.rules}
    items[7] = rule_item("f-7", 700, target="j7", kind="ratio", ratio=0.9)
    await world.follow(*items)
    changed = [rule.id for rule in world.keeper.book.rules if before[rule.id] is not rule]
    assert changed == ["f-7"]
    async with world.running():
        await world.clock.advance(2)
    assert len(await world.noted()) == 600


@pytest.mark.parametrize("ended", ["lifted", "over"])
async def test_rules_that_have_ended_take_no_room(ended: str) -> None:
    """They are kept for a day, to tell of them: automation sets thousands of short ones."""
    world = FleetWorld(limits=RuleLimits(max_rules=3))
    await world.store.open()
    items = _many(3)
    await world.follow(*items, whole=True)
    if ended == "lifted":
        lifted = {"lifted_by": "ana"}
        items = [replace(one, n=9, value={**(one.value or {}), **lifted}) for one in items]
        await world.follow(*items, whole=True)
    else:
        await world.clock.advance(3601.0)
    new = rule_item("f-new", 20, set_at=world.clock.now().wall_s)
    await world.follow(*items, new, whole=True)
    assert "f-new" in world.ids and len(world.ids) == 3
    assert not world.keeper.faults
    await world.follow(*items, new, rule_item("f-newer", 21), whole=True)
    assert len(world.ids) == 3


async def test_there_is_a_most_and_what_goes_makes_room() -> None:
    world = FleetWorld(limits=RuleLimits(max_rules=2))
    await world.store.open()
    items = _many(3)
    await world.follow(*items)
    assert world.ids == ["f-0", "f-1"] and "the maximum" in world.keeper.faults["f-2"]
    await world.put(target="etl", ratio=0.1, id="own")
    await world.follow(taken_out(items[0], 4))
    await world.follow(*items)
    assert world.ids == ["f-1", "f-2", "own"] and not world.keeper.faults


async def test_one_that_gives_up_in_between_has_done_nothing(world: FleetWorld) -> None:
    items = _many(600)
    following = asyncio.create_task(world.keeper.follow(items, PLACES))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert world.ids == []
    await world.follow(*items)
    assert len(world.ids) == 600


# --- in any order ------------------------------------------------------------------------------

_IDS = st.sampled_from(["f-1", "f-2", "f-3"])
_REACHES = st.sampled_from(["fleet", "shard:commerce/-80", "shard:search/0", "region:us-1"])
_HISTORY = st.lists(st.tuples(_IDS, _REACHES, st.booleans()), max_size=12)


@given(_HISTORY, st.data())
@settings(max_examples=60, deadline=None)
def test_in_any_order_of_arrival_the_newest_of_each_is_in_force(
    history: list[tuple[str, str, bool]], data: st.DataObject
) -> None:
    """As a store that was listed, watched, and listed late; and as the Mirror tells it."""
    items = [
        taken_out(rule_item(name, n, reach), n) if out else rule_item(name, n, reach)
        for n, (name, reach, out) in enumerate(history, start=1)
    ]
    heard = data.draw(st.permutations(items))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=3)))
    newest = {item.id: item for item in items}

    async def followed() -> tuple[list[str], list[str]]:
        one, other = FleetWorld(), FleetWorld()
        for begin, end in zip([0, *cuts], [*cuts, len(items)], strict=True):
            await one.follow(*heard[begin:end], places=(HERE, OTHER))
        for end in range(len(items) + 1):
            known = list({item.id: item for item in items[:end]}.values())
            await other.follow(*known, places=(HERE, OTHER), whole=True)
        return one.ids, other.ids

    standing = [item for item in newest.values() if item.value is not None]
    everywhere = {item.id for item in standing if item.reach.level is Level.FLEET}
    parts = {f"{i.id}@{name}" for i in standing for name in i.reach.databases((HERE, OTHER))}
    some = {part for part in parts if part.partition("@")[0] not in everywhere}
    expected = sorted(everywhere | some)
    assert asyncio.run(followed()) == (expected, expected)


async def test_it_is_kept_in_a_file(tmp_path: Path) -> None:
    """R79, R87: with the store that agents have, over a restart with the clock set back."""
    world = FleetWorld()
    item = rule_item(**EXEMPT)
    for restart in (False, True):
        world.store = SqliteStore(tmp_path / "state.db", deadline_s=60.0)  # type: ignore[assignment]
        await world.store.open()
        await world.restarted()
        await world.follow(item)
        if not restart:
            await world.clock.leap(1800)
            await world.keeper.keep_notes()
            assert await world.keeper.suspend("f-1", "it starves web")
            await world.keeper.charge("f-1", {"main web": 61.5})
            world.clock.set_wall(-DAY_S)
        await world.store.close()
    spec = world.keeper.entry("f-1").spec
    assert (spec.suspended, spec.charged) == ("it starves web", {"main web": 61.5})
    left_s = world.keeper.entry("f-1").ends_mono_s - world.clock.now().mono_s
    assert left_s == pytest.approx(1800, abs=15)


# --- from bytes ----------------------------------------------------------------------------------


def test_an_entry_is_read_once_and_one_that_cannot_be_is_reported() -> None:
    shelf, item = ChangeShelf(), rule_item()
    good = Entry(item.key, item_bytes(item), 5)
    bad, beat = Entry("items/wide/rule/x", b"{", 6), Entry("beat", b"{}", 7)
    (first,) = shelf.read([good, bad, beat])
    assert first == item and list(shelf.faults) == ["items/wide/rule/x"]
    assert shelf.read([replace(good), bad, beat])[0] is first
    huge = Entry(item.key, b" " * (MAX_ITEM_BYTES + 1), 8)
    assert shelf.read([huge]) == [item] and "at most" in shelf.faults[item.key]
    newer = replace(item, n=9)
    assert shelf.read([Entry(item.key, item_bytes(newer), 9)]) == [newer] and not shelf.faults
    assert shelf.read([]) == []


def test_an_item_under_the_key_of_another_is_not_put_in_force() -> None:
    """Copied by hand: nobody would see it among the fleet's rules, nor could lift it."""
    shelf, item = ChangeShelf(), rule_item("hidden")
    assert shelf.read([Entry("items/wide/rule/stray", item_bytes(item), 5)]) == []
    assert "belongs to items/wide/rule/hidden" in shelf.faults["items/wide/rule/stray"]
