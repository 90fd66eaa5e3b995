"""What is set for the fleet is validated, kept with its author, and never half of it (R83–R87)."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.book import NoSuchItem
from headgate.changes.model import (
    HEAD,
    ITEMS,
    LOG,
    MAX_REVISIONS,
    WIDE,
    Change,
    ChangeKind,
    Edit,
    Revision,
    item_key,
    log_key,
    shard_items,
)
from headgate.changes.state import (
    Draft,
    What,
    head_bytes,
    item_bytes,
    read_item,
    read_revision,
    revision_bytes,
)
from headgate.errors import Conflict, InvalidSettings, StoreUnavailable
from headgate.rules.settings import RuleLimits, parse_kept
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
    reach,
)
from tests.fixtures.memory_log import MemoryLog


@pytest.fixture
def world() -> BookWorld:
    return BookWorld()


# --- rules -----------------------------------------------------------------------------------


async def test_a_rule_is_one_revision_with_head_log_and_item(world: BookWorld) -> None:
    change = await verbs.put_rule(world.book, HALF, reach=COMMERCE, who="ada")
    assert (change.before_n, change.after_n, change.dry_run) == (0, 1, False)
    listing = await world.store.list(("",))
    assert [entry.key for entry in listing.entries] == [HEAD, f"{WIDE}rule/half", log_key(1)]
    assert len({entry.revision for entry in listing.entries}) == 1, "one commit"
    item = read_item(listing.entries[1].value)
    assert (item.n, item.set_by, item.set_at, str(item.reach)) == (
        1,
        "ada",
        world.wall_s,
        "shard:commerce/*",
    )
    spec = parse_kept(item.id, item.value, item.n)
    assert (spec.rule.target, spec.rule.ratio, spec.ruled_at) == ("etl", 0.5, None)
    assert spec.rule.expires_at == world.wall_s + 7200
    revision = read_revision(listing.entries[2].value)
    assert (revision.who, revision.action, revision.n) == ("ada", "rule.set", 1)
    assert revision.summary == "rule half (shard:commerce/*): added"


async def test_items_of_one_shard_lie_where_only_that_shard_looks(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=ONE_SHARD, who="ada")
    await verbs.set_budget(world.book, "cap", CAP, reach=ONE_SHARD, who="ada")
    keys = [entry.key for entry in (await world.store.list((ITEMS,))).entries]
    assert all(key.startswith(shard_items("commerce/-80")) for key in keys)
    assert len(keys) == 2


async def test_a_rule_without_an_id_gets_one_that_is_free(world: BookWorld) -> None:
    await verbs.put_rule(world.book, {**HALF, "id": "f-000002"}, reach=FLEET, who="ada")
    unnamed = {key: value for key, value in HALF.items() if key != "id"}
    change = await verbs.put_rule(world.book, unnamed, reach=FLEET, who="ada")
    assert [item.id for item in change.items] == ["f-000003"]


async def test_an_id_in_use_is_not_taken_over(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=COMMERCE, who="ada")
    with pytest.raises(Conflict, match="half already exists for shard:commerce/\\*, set by ada"):
        await verbs.put_rule(world.other, HALF, reach=FLEET, who="bob")


async def test_an_id_that_has_ended_may_be_used_for_another_reach(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=COMMERCE, who="ada")
    await verbs.lift_rule(world.book, "half", who="ada")
    await verbs.put_rule(world.book, {**HALF, "ratio": 0.9}, reach=ONE_SHARD, who="bob")
    standing = await world.standing()
    assert standing["half"]["reach"] == "shard:commerce/-80"
    assert standing["half"]["ratio"] == 0.9


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"target": "etl"}, "rule.ratio"),
        ({"target": "etl", "ratio": 1}, "rule.ratio"),
        ({"target": "etl", "ratio": 0.5, "for": "90d"}, "rule.for"),
        ({"target": "all", "kind": "hold", "reason": "x"}, "rule.target"),
        ({"target": "etl", "ratio": 0.5, "colour": "red"}, "rule.colour"),
        (
            {"target": "etl", "ratio": 0.5, "schedule": "mon 07:00-09:00 Mars/Base"},
            "rule.schedule.zone",
        ),
        (
            {"target": "all", "kind": "thresholds", "thresholds": {"lag": "10ms"}},
            "rule.thresholds.lag",
        ),
    ],
)
async def test_a_rule_that_is_none_changes_nothing(
    world: BookWorld, raw: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        await verbs.put_rule(world.book, raw, reach=FLEET, who="ada")
    assert [fault.place for fault in rejected.value.faults] == [place]
    assert (await world.book.items()).n == 0


async def test_a_metric_of_other_agents_is_advice_and_no_fault(world: BookWorld) -> None:
    raw = {"target": "etl", "kind": "thresholds", "thresholds": {"gpu_heat": 0.001, "lag": "2s"}}
    change = await verbs.put_rule(world.book, raw, reach=FLEET, who="ada")
    assert [one.code for one in change.advice] == ["metric-elsewhere"]
    assert "gpu_heat is not a metric of this agent" in change.advice[0].message


async def test_what_has_no_effect_beside_another_of_the_fleet_is_reported(world: BookWorld) -> None:
    await verbs.put_rule(world.book, {**HALF, "ratio": 0.9}, reach=FLEET, who="ada")
    weaker = {"id": "weak", "target": "etl", "ratio": 0.1, "for": "1h"}
    assert "shadowed" in [
        a.code
        for a in (
            await verbs.put_rule(world.book, weaker, reach=COMMERCE, who="b", dry_run=True)
        ).advice
    ]
    elsewhere = await verbs.put_rule(
        world.book, {**weaker, "target": "web"}, reach=COMMERCE, who="b", dry_run=True
    )
    assert elsewhere.advice == ()


async def test_the_fleet_has_room_for_so_many_rules_and_ended_ones_do_not_count() -> None:
    world = BookWorld(limits=RuleLimits(max_rules=1))
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    with pytest.raises(InvalidSettings, match="would be 2 rules, at most 1"):
        await verbs.put_rule(world.book, {**HALF, "id": "two"}, reach=FLEET, who="ada")
    await verbs.lift_rule(world.book, "half", who="ada")
    await verbs.put_rule(world.book, {**HALF, "id": "two"}, reach=FLEET, who="ada")


async def test_what_has_ended_within_the_day_is_bounded_too() -> None:
    world = BookWorld(limits=RuleLimits(max_rules=2))
    for at in range(6):
        await verbs.put_rule(world.book, {**HALF, "id": f"r{at}"}, reach=FLEET, who="ada")
        await verbs.lift_rule(world.book, f"r{at}", who="ada")
    with pytest.raises(InvalidSettings, match="most of which ended within the last day"):
        await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await verbs.put_rule(world.book, {**HALF, "id": "r0"}, reach=FLEET, who="ada")
    await verbs.lift_rule(world.book, "r0", who="ada")
    world.clock.pass_s(DAY_S + 1)
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")


async def test_what_is_too_long_for_the_store_is_rejected_before_it_is_sent(
    world: BookWorld,
) -> None:
    names = [{"match": {"username": f"{'u' * 200}{at}"}} for at in range(400)]
    with pytest.raises(InvalidSettings, match="at most 65,536"):
        await verbs.set_budget(
            world.book, "wide", {"rate": 1, "rules": names}, reach=FLEET, who="ada"
        )


# --- changing and lifting --------------------------------------------------------------------


async def test_a_patch_changes_what_it_names_and_gives_no_more_time(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=COMMERCE, who="ada")
    before = (await world.standing())["half"]
    world.clock.pass_s(600)
    change = await verbs.patch_rule(world.book, "half", {"ratio": 0.9}, who="bob", expect=1)
    after = (await world.standing())["half"]
    assert after == {**before, "ratio": 0.9}
    (told,) = change.differences
    assert (told.what, told.line) == (What.CHANGED, "rule half (shard:commerce/*): ratio 0.5 → 0.9")
    assert (await world.book.revision(2)).action == "rule.changed"


async def test_a_new_end_is_counted_from_now(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    world.clock.pass_s(7000)
    await verbs.patch_rule(world.book, "half", {"for": "1h"}, who="bob")
    world.clock.pass_s(3599)
    assert "half" in await world.standing()
    world.clock.pass_s(2)
    assert await world.standing() == {}
    assert (await world.book.revision(2)).action == "rule.extended"


async def test_a_patch_of_nothing_new_makes_no_revision(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    change = await verbs.patch_rule(world.book, "half", {"ratio": 0.5}, who="bob")
    assert (change.before_n, change.after_n, change.changes) == (1, 1, ())
    assert [one.code for one in change.advice] == ["unchanged"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "nothing to change"),
        ({"target": "web"}, "that is another rule"),
        ({"reach": "fleet"}, "that is another rule"),
        ({"for": None}, "every rule ends"),
        ({"ratio": 7}, "must be"),
    ],
)
async def test_a_patch_that_is_none_is_rejected(
    world: BookWorld, raw: dict[str, Any], message: str
) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    with pytest.raises(InvalidSettings, match=message):
        await verbs.patch_rule(world.book, "half", raw, who="bob")


async def test_a_change_built_on_an_older_revision_of_the_rule_is_rejected(
    world: BookWorld,
) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await verbs.patch_rule(world.book, "half", {"ratio": 0.9}, who="bob")
    for change in (
        verbs.patch_rule(world.book, "half", {"ratio": 0.1}, who="eve", expect=1),
        verbs.lift_rule(world.book, "half", who="eve", expect=1),
    ):
        with pytest.raises(Conflict, match="rule half has revision 2, not 1"):
            await change


async def test_a_lifted_rule_is_put_as_such_and_collected_a_day_later(world: BookWorld) -> None:
    """Vanishing means nothing to a reader: the end has to be said."""
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await verbs.lift_rule(world.book, "half", who="bob")
    assert await world.standing() == {}
    (entry,) = (await world.store.list((ITEMS,))).entries
    value = read_item(entry.value).value
    assert value is not None
    assert (value["lifted_by"], read_item(entry.value).n) == ("bob", 2)
    world.clock.pass_s(DAY_S - 1)
    assert await world.store.count(ITEMS) == 1
    world.clock.pass_s(2)
    assert await world.store.count(ITEMS) == 0


async def test_what_has_ended_is_not_changed_nor_lifted_twice(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    world.clock.pass_s(7201)
    with pytest.raises(InvalidSettings, match="has ended"):
        await verbs.patch_rule(world.book, "half", {"for": "1h"}, who="bob")
    await verbs.lift_rule(world.book, "half", who="bob")
    with pytest.raises(InvalidSettings, match="was already lifted by bob"):
        await verbs.lift_rule(world.book, "half", who="bob")
    with pytest.raises(NoSuchItem, match="no rule 'nope'"):
        await verbs.lift_rule(world.book, "nope", who="bob")


async def test_a_rule_is_collected_a_day_after_its_end_also_after_it_was_extended(
    world: BookWorld,
) -> None:
    await verbs.put_rule(world.book, {**HALF, "for": "1h"}, reach=FLEET, who="ada")
    await verbs.patch_rule(world.book, "half", {"for": "3d"}, who="ada")
    world.clock.pass_s(3 * DAY_S - 1)
    assert "half" in await world.standing(), "the first lease ran out long ago"
    world.clock.pass_s(DAY_S + 2)
    assert await world.store.count(ITEMS) == 0


async def test_a_favor_is_two_rules_of_one_revision_that_end_and_go_together(
    world: BookWorld,
) -> None:
    """R76."""
    change = await verbs.favor(world.book, "etl", reach=COMMERCE, who="ada", more={"for": "1h"})
    first, second = (item.id for item in change.items)
    standing = await world.standing()
    assert (standing[first]["pair"], standing[second]["pair"]) == (second, first)
    assert (standing[first]["ratio"], standing[second]["ratio"]) == (0.0, 0.9)
    await verbs.patch_rule(world.book, first, {"for": "3h"}, who="ada")
    standing = await world.standing()
    assert standing[first]["expires_at"] == standing[second]["expires_at"]
    lifted = await verbs.lift_rule(world.book, second, who="ada")
    assert {item.id for item in lifted.items} == {first, second}
    assert await world.standing() == {}


# --- budgets ---------------------------------------------------------------------------------


async def test_a_budget_is_known_by_name_and_reach(world: BookWorld) -> None:
    await verbs.set_budget(world.book, "cap", CAP, reach=FLEET, who="ada")
    await verbs.set_budget(world.book, "cap", {**CAP, "rate": 5}, reach=COMMERCE, who="ada")
    standing = await world.standing()
    assert {name: one["rate"] for name, one in standing.items()} == {
        "cap@fleet": 20,
        "cap@shard:commerce/*": 5,
    }
    change = await verbs.patch_budget(
        world.book, "cap", {"rate": None, "capacity": 50}, reach=COMMERCE, who="b"
    )
    (told,) = change.differences
    assert told.line == "budget cap@shard:commerce/*: rate 5% → unset, capacity unset → 0.5s"


async def test_a_budgets_end_is_put_off_and_its_name_and_reach_stay(world: BookWorld) -> None:
    await verbs.set_budget(world.book, "cap", {**CAP, "for": "1h"}, reach=FLEET, who="ada")
    await verbs.patch_budget(world.book, "cap", {"for": "2h"}, reach=FLEET, who="ada")
    assert (await world.standing())["cap@fleet"]["expires_at"] == "2023-11-15T00:13:20Z"
    for raw, place in (({"name": "other"}, "name"), ({"reach": "host:x"}, "reach"), ({}, "")):
        with pytest.raises(InvalidSettings) as rejected:
            await verbs.patch_budget(world.book, "cap", raw, reach=FLEET, who="ada")
        assert [fault.place for fault in rejected.value.faults] == [place]


async def test_a_removed_budget_is_put_as_taken_out(world: BookWorld) -> None:
    await verbs.set_budget(world.book, "cap", CAP, reach=FLEET, who="ada")
    await verbs.remove_budget(world.book, "cap", reach=FLEET, who="bob", expect=1)
    key = item_key(ChangeKind.BUDGET, "cap@fleet", FLEET)
    (entry,) = (await world.store.list((key,))).entries
    item = read_item(entry.value)
    assert (item.value, item.n, item.set_by) == (None, 2, "bob")
    with pytest.raises(NoSuchItem, match="no budget 'cap' for fleet"):
        await verbs.remove_budget(world.book, "cap", reach=FLEET, who="bob")
    world.clock.pass_s(DAY_S + 1)
    assert await world.store.count(ITEMS) == 0


async def test_a_budget_without_an_end_stays_and_one_with_an_end_is_collected(
    world: BookWorld,
) -> None:
    await verbs.set_budget(world.book, "stays", CAP, reach=FLEET, who="ada")
    await verbs.set_budget(world.book, "goes", {**CAP, "for": "1h"}, reach=FLEET, who="ada")
    world.clock.pass_s(3601)
    assert list(await world.standing()) == ["stays@fleet"]
    world.clock.pass_s(40 * DAY_S)
    assert await world.store.count(ITEMS) == 1


@pytest.mark.parametrize(
    ("name", "raw", "place"),
    [
        ("cap", {"rate": 120}, "rate"),
        ("cap", {"rate": 1, "name": "other"}, "name"),
        ("violations", {"rate": 1}, "name"),
        ("cap", {"rate": 1, "for": "soon"}, "for"),
        ("cap", {"rate": 1, "for": "1h", "expires_at": "2023-11-20T00:00:00Z"}, "for"),
        ("cap", {"rate": 1, "rules": [{"match": {"user": "x"}}]}, "rules[0].match.user"),
    ],
)
async def test_a_budget_that_is_none_changes_nothing(
    world: BookWorld, name: str, raw: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        await verbs.set_budget(world.book, name, raw, reach=FLEET, who="ada")
    assert [fault.place for fault in rejected.value.faults] == [place]
    assert (await world.book.items()).n == 0


async def test_a_budget_that_would_lock_out_administrators_is_reported_since_agents_validate_it(
    world: BookWorld,
) -> None:
    stop = {"mode": "enforce", "rate": 0, "rules": [{}]}
    change = await verbs.set_budget(world.book, "stop", stop, reach=FLEET, who="ada")
    locks = [one for one in change.advice if one.code.startswith("locks-out")]
    assert locks
    assert "leave this budget out" in locks[0].message


async def test_a_budget_for_elsewhere_is_named_where_one_is_missing(world: BookWorld) -> None:
    await verbs.set_budget(world.book, "cap", CAP, reach=COMMERCE, who="ada")
    with pytest.raises(NoSuchItem, match="there is one for shard:commerce"):
        await verbs.patch_budget(world.book, "cap", {"rate": 1}, reach=FLEET, who="ada")
    with pytest.raises(Conflict, match="already exists"):
        await verbs.set_budget(world.book, "cap", CAP, reach=COMMERCE, who="ada", new=True)


async def test_a_budget_that_counts_nowhere_for_narrower_ones_is_reported(world: BookWorld) -> None:
    for text in ("shard:commerce/80-", "host:db-1", "shard:users/0"):
        await verbs.set_budget(world.book, "cap", CAP, reach=reach(text), who="ada")
    change = await verbs.set_budget(
        world.book, "cap", CAP, reach=reach("shard:commerce/*"), who="ada"
    )
    (told,) = [one.message for one in change.advice if one.code == "narrower"]
    assert "cap@host:db-1, cap@shard:commerce/80-" in told and "users" not in told
    change = await verbs.patch_budget(
        world.book, "cap", {"rate": 7}, reach=reach("host:db-1"), who="ada"
    )
    assert "narrower" not in {one.code for one in change.advice}


# --- whom it reaches -------------------------------------------------------------------------


async def test_a_dry_run_shows_where_it_would_apply_and_changes_nothing(world: BookWorld) -> None:
    await world.tell_shard("commerce/-80", "db-1", "db-2", region="eu")
    await world.tell_shard("commerce/80-", "db-3", healthy=False, region="us")
    await world.tell_shard("users/0", "db-4", region="eu")
    change = await verbs.put_rule(world.book, HALF, reach=COMMERCE, who="ada", dry_run=True)
    told = change.reached
    assert (told.shards, told.hosts, told.unhealthy) == (2, 3, 1)
    assert told.names == ("commerce/80-", "commerce/-80"), "unhealthy ones first"
    assert (change.dry_run, change.after_n, (await world.book.items()).n) == (True, 0, 0)
    assert [item.n for item in change.items] == [1]


@pytest.mark.parametrize(
    ("text", "shards", "hosts"),
    [
        ("fleet", 3, 4),
        ("region:eu", 2, 3),
        ("host:db-3*", 1, 1),
        ("shard:commerce/-80", 1, 2),
        ("shard:nowhere", 0, 0),
    ],
)
async def test_every_level_of_reach_is_looked_up(
    world: BookWorld, text: str, shards: int, hosts: int
) -> None:
    await world.tell_shard("commerce/-80", "db-1", "db-2", region="eu")
    await world.tell_shard("commerce/80-", "db-3", region="us")
    await world.tell_shard("users/0", "db-4", region="eu")
    found = await world.book.reached(reach(text))
    assert (found.shards, found.hosts, found.unknown, found.reach) == (
        shards,
        hosts,
        "",
        reach(text),
    )


async def test_nobody_registered_is_unknown_and_no_nought(world: BookWorld) -> None:
    found = await world.book.reached(ONE_SHARD)
    assert found.shards is None
    assert "no agent has registered" in found.unknown


async def test_members_that_cannot_be_read_are_reported_and_the_others_count(
    world: BookWorld,
) -> None:
    await world.tell_shard("commerce/-80", "db-1", region="eu")
    await world.store.commit([], [Put("members/x/y", b"\xff"), Put("members/x/z", b'{"host": 7}')])
    found = await world.book.reached(FLEET)
    assert (found.shards, found.hosts, found.unknown) == (2, 2, "1 entries could not be read")


async def test_a_topology_that_cannot_be_read_delays_no_change(world: BookWorld) -> None:
    class Blind(MemoryLog):
        async def list(self, prefixes: Any, *, allow_stale: bool = False) -> Any:
            if any(prefix.startswith("members/") for prefix in prefixes):
                raise StoreUnavailable("no answer in 2 s")
            return await super().list(prefixes, allow_stale=allow_stale)

    await world.tell_shard("commerce/-80", "db-1", region="eu")
    book = book_on(Blind(world.kept), world.clock)
    change = await verbs.put_rule(book, HALF, reach=COMMERCE, who="ada")
    assert (change.after_n, change.reached.shards) == (1, None)
    assert change.reached.unknown == "no answer in 2 s"
    counted = await book.reached(FLEET)
    assert (counted.shards, counted.hosts, counted.unhealthy) == (1, 1, None)
    assert counted.unknown == "only counted: no answer in 2 s"


# --- what is kept ----------------------------------------------------------------------------


async def test_history_shows_who_did_what_newest_first_and_is_bounded(world: BookWorld) -> None:
    for first_n in range(1, MAX_REVISIONS, 100):
        old = [Revision(n, 0.0, "ada", "apply", "", "") for n in range(first_n, first_n + 100)]
        logged = [Put(log_key(one.n), revision_bytes(one)) for one in old]
        await world.store.commit([], [Put(HEAD, head_bytes(old[-1].n)), *logged])
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="bob")
    for at in range(1, 8):
        await verbs.patch_rule(world.book, "half", {"ratio": at / 100}, who="bob")
    newest_n = MAX_REVISIONS + 8
    assert await world.store.count(LOG) == MAX_REVISIONS
    told = await world.book.history(5)
    assert [revision.n for revision in told] == list(range(newest_n, newest_n - 5, -1))
    assert all(revision.who == "bob" and revision.changes == () for revision in told)
    assert len(await world.book.history(10_000)) == MAX_REVISIONS
    assert (await world.book.revision(newest_n)).changes[0].before is not None
    with pytest.raises(NoSuchItem, match="no revision 3,"):
        await world.book.revision(3)


async def test_an_item_of_another_version_is_reported_and_left_alone(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    held = await world.book.items()
    item = held.rule("half")
    assert item is not None
    elsewhere = Put(f"{WIDE}rule/astray", item_bytes(item))
    await world.store.commit([], [Put(f"{WIDE}rule/odd", b'{"kind": "moon"}'), elsewhere])
    held = await world.book.items()
    assert [name for _, name in held.items] == ["half"]
    assert len(held.rejected) == 2
    change = await world.book.apply({"rules": []}, who="ada", prune=True)
    assert [item.id for item in change.items] == ["half"]
    assert await world.store.count(ITEMS) == 3


async def test_a_head_that_cannot_be_read_stops_every_change(world: BookWorld) -> None:
    await world.store.commit([], [Put(HEAD, b"{}")])
    with pytest.raises(StoreUnavailable, match="the log's head cannot be read"):
        await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")


async def test_of_an_item_that_was_moved_the_newer_counts(world: BookWorld) -> None:
    file = {"rules": [{**HALF, "reach": "shard:commerce/-80", "expires_at": world.wall_s + 60}]}
    del file["rules"][0]["for"]
    await world.book.apply(file, who="ada")
    file["rules"][0]["reach"] = "fleet"
    change = await world.book.apply(file, who="ada")
    assert [one.line for one in change.differences] == [
        "rule half (fleet): reach shard:commerce/-80 → fleet"
    ]
    (left,) = (await world.store.list((shard_items("commerce/-80"),))).entries
    assert (read_item(left.value).value, read_item(left.value).n) == (None, 2)
    assert (await world.standing())["half"]["reach"] == "fleet"


async def test_a_change_of_a_kind_that_only_a_newer_version_knows_is_kept(world: BookWorld) -> None:
    """R156: it is listed, stays where others are changed, and goes and comes back with its log."""
    value = {"of_a_newer_version": [1, 2]}
    quota = Change("quota", "q-1", FLEET, value, 0, world.wall_s, "zoe")
    draft = Draft("quota.set", [Edit(None, quota)])
    await world.book.make(lambda held, asked: draft, "zoe")
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    applied = await world.book.apply({}, prune=True, who="ada")
    assert [item.kind for item in applied.items] == ["rule"], "a file cannot name it"
    assert (await world.book.export()).left_out[0].startswith("not exported: quota q-1")
    assert (await world.standing())["q-1"] == {"reach": "fleet", **value}
    await world.book.rollback(0, who="ada")
    assert await world.standing() == {}
    await world.book.rollback(1, who="ada")
    assert (await world.standing())["q-1"] == {"reach": "fleet", **value}
