"""Files of the fleet's rules and budgets: applied, exported, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.book import NoSuchItem
from headgate.changes.file_format import SECTIONS, read_document, to_json, to_toml
from headgate.changes.model import HEAD, ITEMS, Change
from headgate.changes.state import What, head_bytes
from headgate.errors import InvalidSettings
from tests.changes import verbs
from tests.changes.changebook_world import (
    CAP,
    COMMERCE,
    DAY_S,
    FLEET,
    HALF,
    ONE_SHARD,
    BookWorld,
    book_on,
    file_of,
)
from tests.fixtures.memory_log import KeptInMemory, MemoryLog

FILE = """
[[rules]]
id = "etl-slow"
reach = "shard:commerce/*"
target = "etl"
ratio = 0.9
for = "2h"

[[rules]]
id = "rush-hour"
reach = "region:eu-*"
target = "batch"
kind = "hold"
reason = "checkout first"
schedule = "mon-fri 07:00-09:30 Europe/Berlin"
expires_at = 2023-11-20T00:00:00Z

[[budgets]]
name = "etl-cap"
reach = "fleet"
rate = 20

[[budgets.rules]]
match = { username = "etl" }
"""


@pytest.fixture
def world() -> BookWorld:
    return BookWorld()


async def stocked() -> BookWorld:
    """With some of everything, ended and taken out ones too."""
    world = BookWorld()
    await world.book.apply(read_document(FILE), who="ada")
    await verbs.favor(world.book, "web", reach=ONE_SHARD, who="ada", more={"for": "3h"})
    await verbs.put_rule(world.book, {**HALF, "id": "short", "for": "1m"}, reach=FLEET, who="ada")
    await verbs.put_rule(world.book, {**HALF, "id": "gone"}, reach=FLEET, who="ada")
    await verbs.lift_rule(world.book, "gone", who="bob")
    await verbs.set_budget(world.book, "off", CAP, reach=ONE_SHARD, who="ada")
    await verbs.remove_budget(world.book, "off", reach=ONE_SHARD, who="bob")
    world.clock.pass_s(61)
    return world


# --- apply and export ------------------------------------------------------------------------


async def test_a_file_is_one_revision(world: BookWorld) -> None:
    change = await world.book.apply(read_document(FILE), who="ada")
    assert (change.before_n, change.after_n, change.revisions) == (0, 1, 1)
    assert [(one.id, one.what) for one in change.differences] == [
        ("etl-slow", What.ADDED),
        ("rush-hour", What.ADDED),
        ("etl-cap@fleet", What.ADDED),
    ]
    assert (await world.book.revision(1)).action == "apply"


@pytest.mark.parametrize("as_json", [False, True])
async def test_an_export_that_is_applied_changes_nothing(as_json: bool) -> None:
    world = await stocked()
    exported = await world.book.export()
    assert exported.n == (await world.book.items()).n
    text = to_json(exported.document) if as_json else to_toml(exported.document, ["n 7"])
    read = read_document(text, is_json=as_json)
    assert {**{key: [] for key in SECTIONS}, **read} == exported.document
    change = await world.other.apply(read, who="eve", prune=True)
    assert (change.changes, change.after_n) == ((), exported.n)
    assert [one.code for one in change.advice] == ["unchanged"]


async def test_an_export_gives_another_fleet_what_was_in_force_here() -> None:
    world, other = await stocked(), BookWorld()
    other.clock.pass_s(61)
    document = (await world.book.export()).document
    await other.book.apply(document, who="eve")
    assert (await other.book.export()).document == document


async def test_a_dry_run_shows_the_difference_and_changes_nothing(world: BookWorld) -> None:
    await world.book.apply(read_document(FILE), who="ada")
    changed = FILE.replace("ratio = 0.9", "ratio = 0.5").replace("rate = 20", "rate = 30")
    document = read_document(changed.replace('for = "2h"\n', ""))
    change = await world.book.apply(document, who="ada", dry_run=True)
    assert [one.line for one in change.differences] == [
        "rule etl-slow (shard:commerce/*): ratio 0.9 → 0.5",
        "budget etl-cap@fleet: rate 20% → 30%",
    ]
    assert (change.dry_run, change.after_n, (await world.book.items()).n) == (True, 1, 1)


async def test_a_rule_whose_file_says_no_end_keeps_its_own_and_one_that_says_for_is_renewed(
    world: BookWorld,
) -> None:
    await world.book.apply(read_document(FILE), who="ada")
    world.clock.pass_s(600)
    silent = await world.book.apply(read_document(FILE.replace('for = "2h"\n', "")), who="ada")
    assert silent.changes == ()
    renewed = await world.book.apply(read_document(FILE), who="ada")
    assert [one.id for one in renewed.differences] == ["etl-slow"]
    (setting,) = renewed.differences[0].settings
    assert setting.name == "expires_at"


async def test_what_the_file_does_not_name_stays_and_is_reported_or_is_pruned(
    world: BookWorld,
) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="bob")
    await verbs.set_budget(world.book, "cap", CAP, reach=FLEET, who="bob")
    kept = await world.book.apply(read_document(FILE), who="ada")
    assert "not-in-file" in [one.code for one in kept.advice]
    pruned = await world.book.apply(read_document(FILE), who="ada", prune=True)
    gone = {one.id for one in pruned.differences if one.what is What.TAKEN_OUT}
    assert gone == {"half", "cap@fleet"}
    assert set(await world.standing()) == {"etl-slow", "rush-hour", "etl-cap@fleet"}


async def test_a_file_with_one_fault_changes_nothing_and_every_fault_is_reported(
    world: BookWorld,
) -> None:
    faulty = FILE.replace("ratio = 0.9", "ratio = 9").replace("rate = 20", "rate = 200")
    with pytest.raises(InvalidSettings) as rejected:
        await world.book.apply(read_document(faulty), who="ada")
    assert [fault.place for fault in rejected.value.faults] == ["rules[0].ratio", "budgets[0].rate"]
    assert (await world.book.items()).n == 0


async def test_what_is_over_is_left_out_and_reported(world: BookWorld) -> None:
    await world.book.apply(read_document(FILE), who="ada")
    document: Any = read_document(FILE)
    document["rules"][1]["expires_at"] = "2023-11-01T00:00:00Z"
    document["rules"][0].pop("for")
    change = await world.book.apply(document, who="ada")
    assert [(one.id, one.what) for one in change.differences] == [("rush-hour", What.TAKEN_OUT)]
    assert [(one.code, one.place) for one in change.advice] == [("over", "rules[1].expires_at")]


async def test_a_rule_of_a_file_that_is_changed_keeps_who_made_it(world: BookWorld) -> None:
    await world.book.apply(read_document(FILE), who="ada")
    world.clock.pass_s(60)
    await world.book.apply(read_document(FILE.replace("ratio = 0.9", "ratio = 0.5")), who="bob")
    rule = (await world.standing())["etl-slow"]
    assert (rule["created_by"], rule["ratio"]) == ("ada", 0.5)


async def test_half_of_a_pair_is_neither_pruned_nor_left_behind(world: BookWorld) -> None:
    """R76."""
    await verbs.favor(world.book, "web", reach=FLEET, who="ada", more={"for": "3h"})
    document: Any = (await world.book.export()).document
    first, second = document["rules"]
    unsaid = [{key: value for key, value in first.items() if key != "pair"}]
    change = await world.book.apply({"rules": unsaid}, who="ada")
    assert change.changes == (), "who does not say leaves it as it is"
    with pytest.raises(InvalidSettings, match=f"was set together with {second['id']}: keep both"):
        await world.book.apply({"rules": unsaid}, who="ada", prune=True)
    assert len(await world.standing()) == 2
    await world.book.apply({"rules": []}, who="ada", prune=True)
    assert await world.standing() == {}


# --- rollback --------------------------------------------------------------------------------


async def test_a_rollback_is_a_new_revision_with_what_was_in_force_then(world: BookWorld) -> None:
    await world.book.apply(read_document(FILE), who="ada")
    before = (await world.book.export()).document
    await verbs.patch_rule(world.book, "etl-slow", {"ratio": 0.1, "for": "5h"}, who="bob")
    await verbs.lift_rule(world.book, "rush-hour", who="bob")
    await verbs.remove_budget(world.book, "etl-cap", reach=FLEET, who="bob")
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="bob")
    change = await world.book.rollback(1, who="ada")
    assert (change.before_n, change.after_n) == (5, 6)
    assert (await world.book.export()).document == before
    assert (await world.book.revision(6)).action == "rollback"
    again = await world.book.rollback(5, who="ada")
    assert again.after_n == 7
    assert set(await world.standing()) == {"etl-slow", "half"}, "back from going back"


async def test_everything_can_be_rolled_back(world: BookWorld) -> None:
    await world.book.apply(file_of(150), who="ada")
    await verbs.set_budget(world.book, "cap", CAP, reach=COMMERCE, who="ada")
    tried = await world.book.rollback(0, who="ada", dry_run=True)
    assert (len(tried.changes), tried.revisions, tried.after_n) == (151, 2, 3)
    assert len(await world.standing()) == 151
    change = await world.book.rollback(0, who="ada")
    assert (len(change.changes), change.after_n) == (151, 5)
    assert await world.standing() == {}
    assert [one.summary[:4] for one in await world.book.history(2)] == ["2/2:", "1/2:"]


async def test_a_rollback_brings_back_nothing_that_has_ended_and_prolongs_nothing(
    world: BookWorld,
) -> None:
    """R87."""
    await verbs.put_rule(world.book, {**HALF, "for": "1h"}, reach=FLEET, who="ada")
    await verbs.put_rule(world.book, {**HALF, "id": "long", "for": "5h"}, reach=FLEET, who="ada")
    end = (await world.standing())["long"]["expires_at"]
    await verbs.patch_rule(world.book, "half", {"for": "9h"}, who="bob")
    await verbs.lift_rule(world.book, "long", who="bob")
    world.clock.pass_s(3601)
    change = await world.book.rollback(2, who="ada")
    standing = await world.standing()
    assert list(standing) == ["long"]
    assert standing["long"]["expires_at"] == end
    assert [one.code for one in change.advice] == ["over"]


async def test_a_rollback_that_changes_nothing_says_so(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    change = await world.book.rollback(1, who="ada")
    assert (change.after_n, [one.code for one in change.advice]) == (1, ["unchanged"])


async def test_nobody_goes_back_further_than_what_is_kept(world: BookWorld) -> None:
    await world.store.commit([], [Put(HEAD, head_bytes(600))])
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await verbs.lift_rule(world.book, "half", who="ada")
    with pytest.raises(NoSuchItem, match="oldest revision to go back to is 600"):
        await world.book.rollback(1, who="ada")
    with pytest.raises(NoSuchItem, match="no revision 603: it is at 602"):
        await world.book.rollback(603, who="ada")
    assert (await world.book.rollback(601, who="ada")).after_n == 603


# --- what a store has lost -------------------------------------------------------------------


async def held_items(world: BookWorld) -> tuple[list[Change], int]:
    held = await world.book.items()
    return list(held.items.values()), held.n


async def test_what_an_empty_store_has_lost_is_put_back_above_the_old_number() -> None:
    world = await stocked()
    items, n = await held_items(world)
    document = (await world.book.export()).document
    empty = MemoryLog(KeptInMemory(mono_s=lambda: world.clock.now().mono_s))
    book = book_on(empty, world.clock)
    change = await book.restore(items, who="ada", known_n=n)
    assert (change.before_n, change.after_n) == (0, n + 1)
    assert (await book.export()).document == document
    held = await book.items()
    assert {item.n for item in held.items.values()} == {n + 1}
    kept = held.rule("etl-slow")
    assert kept is not None
    assert kept.set_by == "ada"
    assert (await book.revision(n + 1)).action == "restore"
    again = await book.restore(items, who="ada", known_n=n)
    assert (again.after_n, again.changes) == (n + 1, ())


async def test_what_was_lifted_stays_lifted_in_a_store_from_a_backup(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    backup = await world.store.list(("",))
    world.clock.pass_s(10)
    await verbs.lift_rule(world.book, "half", who="bob")
    items, n = await held_items(world)
    older = MemoryLog(KeptInMemory(mono_s=lambda: world.clock.now().mono_s))
    await older.commit([], [Put(entry.key, entry.value) for entry in backup.entries])
    book = book_on(older, world.clock)
    assert (await book.items()).standing(world.wall_s)
    await book.restore(items, who="ada", known_n=n)
    assert not (await book.items()).standing(world.wall_s)
    assert (await book.items()).n == n + 1


async def test_what_was_set_since_counts_and_gets_a_number_that_is_new(world: BookWorld) -> None:
    for at in range(5):
        await verbs.put_rule(world.book, {**HALF, "id": f"r{at}"}, reach=FLEET, who="ada")
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    items, n = await held_items(world)
    empty = MemoryLog(KeptInMemory(mono_s=lambda: world.clock.now().mono_s))
    book = book_on(empty, world.clock)
    world.clock.pass_s(5)
    await verbs.put_rule(book, {**HALF, "ratio": 0.9}, reach=FLEET, who="eve")
    change = await book.restore(items, who="ada", known_n=n)
    assert [one.code for one in change.advice] == ["set-since"]
    held = await book.items()
    half = held.rule("half")
    assert half is not None
    assert half.value is not None
    assert (half.value["ratio"], half.n) == (0.9, n + 1)
    assert len(held.standing(world.wall_s)) == 6


async def test_a_store_that_has_lost_nothing_in_force_gets_the_number(
    world: BookWorld,
) -> None:
    """Else agents take it for an old one forever."""
    change = await world.book.restore([], who="ada", known_n=40)
    assert (change.after_n, change.changes) == (41, ())
    assert (await world.book.revision(41)).summary == "nothing but the number"
    assert await world.store.count(ITEMS) == 0
    world.clock.pass_s(DAY_S)
    assert (await world.book.items()).n == 41
