"""Of two versions one counts, at every agent and in any order; and two agents find what differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.changes.exchanged import (
    KEEP_S,
    MAX_OVER,
    MAX_SHARED_N,
    Inventory,
    ShardItems,
    Version,
    check_room_above,
    collectable,
    compared,
    counts_over,
    fitting,
    is_of,
    own_names,
    rename,
    shard_of,
    succeeding,
    version_of,
)
from headgate.changes.model import Change, ChangeKind, item_key, shard_items
from headgate.changes.reach import HERE, parse_reach
from headgate.changes.state import Copies, both, counted_from, ends_at, is_taken_out, item_bytes

SHARD = "commerce/-80"
REACH = parse_reach(f"shard:{SHARD}")
NOW_S = 1_700_000_000.0
UNDER = shard_items(SHARD)

versions = st.builds(
    Version,
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([1.0, 2.0]),
    st.integers(0, 4),
    st.sampled_from(["ada", "bob"]),
    st.integers(0, 3),
)
keys = st.integers(0, 30).map(lambda n: f"{UNDER}rule/r{n:02d}")
states = st.dictionaries(keys, versions, max_size=30)


def inventory_of(state: Mapping[str, Version]) -> Inventory:
    found = Inventory()
    for key, version in state.items():
        found.put(key, version)
    return found


def merged(one: Mapping[str, Version], other: Mapping[str, Version]) -> dict[str, Version]:
    """As OwnWriter.merge decides."""
    found = inventory_of(one)
    result = dict(one)
    for key, version in other.items():
        if found.lacks(key, version):
            found.put(key, version)
            result[key] = version
    return result


# --- merging -------------------------------------------------------------------------------


@given(states, states, states)
def test_merging_depends_on_no_order_and_on_no_repetition(
    one: dict[str, Version], other: dict[str, Version], third: dict[str, Version]
) -> None:
    assert merged(one, one) == one
    assert merged(one, other) == merged(other, one)
    assert merged(merged(one, other), third) == merged(one, merged(other, third))
    ways = [merged(merged(a, b), c) for a, b, c in permutations((one, other, third))]
    assert all(way == ways[0] for way in ways)


@given(versions, versions)
def test_what_is_taken_out_counts_and_else_what_is_later(one: Version, other: Version) -> None:
    newest = max(one, other)
    if one.again == other.again:
        assert newest.taken_out is (one.taken_out or other.taken_out)
        if one.taken_out is other.taken_out:
            assert newest.set_at == max(one.set_at, other.set_at)


changes = st.tuples(st.booleans(), st.floats(0, 100))
"""Whether it stands, and by what clock it was set."""


@given(st.lists(changes, min_size=2, max_size=10))
def test_who_builds_on_a_version_comes_after_it_whatever_its_clock_says(
    changed: list[tuple[bool, float]],
) -> None:
    before: Change | None = None
    for n, (stands, set_at) in enumerate(changed):
        value = {"target": "etl"} if stands else None
        after = succeeding(item(value=value, n=n, set_at=round(set_at, 3)), before)
        if before is not None:
            assert version_of(item_bytes(after)) > version_of(item_bytes(before))
            assert counts_over(after, before) and not counts_over(before, after)
        before = after


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ChangeKind.METRIC, {"settings": {"threshold": 5.0}, "expires_at": NOW_S + 60}),
        (ChangeKind.SKIP, {"until_wall_s": NOW_S + 60, "set_wall_s": NOW_S}),
    ],
)
def test_what_takes_the_place_of_one_from_a_fast_clock_has_its_own_time(
    kind: ChangeKind, value: dict[str, Any]
) -> None:
    """Its place among the versions is behind the other's; its 60 s begin where it was set."""
    before = item(value=value, n=1, set_at=NOW_S + 3600, kind=kind)
    after = succeeding(item(value=value, n=2, set_at=NOW_S, kind=kind), before)
    assert after.set_at > before.set_at
    assert counted_from(after) == NOW_S
    assert ends_at(after) == NOW_S + 60


def test_a_change_without_a_lift_does_not_undo_one() -> None:
    """One leader has changed a rule many times, and told nobody; the next one lifts it."""
    first = succeeding(item(value={"target": "etl"}, n=1), None)
    changed = first
    for n in range(2, 20):
        changed = succeeding(item(value={"target": "etl", "ratio": n}, n=n), changed)
    lifted = succeeding(item(value={"lifted_by": "ops"}, n=2, set_at=NOW_S - 60), first)
    assert version_of(item_bytes(lifted)) > version_of(item_bytes(changed))
    again = succeeding(item(value={"target": "etl"}, n=3, set_at=NOW_S - 120), lifted)
    assert version_of(item_bytes(again)) > version_of(item_bytes(lifted))


@given(states, states)
def test_digests_are_the_same_where_the_versions_are(
    one: dict[str, Version], other: dict[str, Version]
) -> None:
    assert (inventory_of(one).digest == inventory_of(other).digest) is (one == other)


@given(states, st.lists(st.tuples(keys, st.none() | versions), max_size=40))
def test_a_digest_is_of_what_is_there_and_not_of_how_it_came_there(
    state: dict[str, Version], changes: list[tuple[str, Version | None]]
) -> None:
    found = inventory_of(state)
    for key, version in changes:
        found.put(key, version)
        if version is None:
            state.pop(key, None)
        else:
            state[key] = version
    assert found.digest == inventory_of(state).digest
    assert len(found) == len(state)
    assert found.between("", "") == sorted(state)
    assert (found.digest == "0" * 64) is (not state)


# --- finding what differs ------------------------------------------------------------------


@given(states, states, st.integers(1, 600), st.integers(1, 4))
def test_page_by_page_both_find_all_that_the_other_lacks(
    mine: dict[str, Version], theirs: dict[str, Version], page_bytes: int, most_sent: int
) -> None:
    """One asks, the other answers; what is merged meanwhile changes the pages that follow."""
    here, there = inventory_of(mine), inventory_of(theirs)
    after, wanted, pages = "", set[str](), 0
    while True:
        page = here.page(after, page_bytes)
        newer, want = compared(there, page, after)
        sent = newer[:most_sent]
        for key in sent:
            version = there.version(key)
            assert version is not None and here.lacks(key, version)
            here.put(key, version)
        wanted |= set(want)
        pages += 1
        assert pages <= len(mine) + len(theirs) + 1
        reached = sent[-1] if len(sent) < len(newer) else page.upto
        if not reached:
            break
        assert reached > after
        after = reached
    for key in wanted:
        version = here.version(key)
        assert version is not None
        if there.lacks(key, version):
            there.put(key, version)
    assert here.digest == there.digest == inventory_of(merged(mine, theirs)).digest


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 200))
def test_a_message_has_what_fits_and_at_least_one(sizes: list[int], most: int) -> None:
    entries = [("k", b"x" * size) for size in sizes]
    count = fitting(entries, most)
    assert min(1, len(entries)) <= count <= len(entries)
    if count > 1:
        assert sum(len(raw) + 9 for _, raw in entries[:count]) <= most


# --- bytes ---------------------------------------------------------------------------------


def item(
    name: str = "x",
    value: Mapping[str, Any] | None = None,
    *,
    reach: Any = REACH,
    n: int = 1,
    set_at: float = NOW_S,
    kind: str = "rule",
) -> Change:
    return Change(kind, name, reach, value, n, set_at, "ops")


def test_a_version_of_an_item() -> None:
    one = version_of(item_bytes(item(value={"target": "etl"}, n=7)))
    assert one[:5] == (0, False, NOW_S, 7, "ops")
    assert version_of(item_bytes(item(value=None))).taken_out
    assert version_of(item_bytes(item(value={"lifted_by": "ops"}))).taken_out
    other = version_of(item_bytes(item(value={"target": "other"}, n=7)))
    assert one[:5] == other[:5] and one != other


@given(st.binary(max_size=60))
def test_what_is_no_item_is_rejected(raw: bytes) -> None:
    with pytest.raises(ValueError):
        version_of(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"n": True},
        {"n": 1.5},
        {"n": -1},
        {"n": MAX_SHARED_N + 1},
        {"value": []},
        {"again": -1},
        {"again": "often"},
        {"again": True},
        {"set_by": 7},
        {"set_by": "x" * 2000},
        {"set_at": "now"},
        {"set_at": True},
        {"set_at": float("nan")},
        {"set_at": 1e300},
    ],
    ids=str,
)
def test_each_part_of_it_has_bounds(change: dict[str, Any]) -> None:
    document = {"n": 1, "value": {}, "set_at": 1.0, "set_by": "ops"}
    version_of(json.dumps(document).encode())
    with pytest.raises(ValueError, match="is no"):
        version_of(json.dumps(document | change).encode())


def test_whose_shard_a_key_is_of() -> None:
    assert shard_of(item_key("rule", "a/b", REACH)) == SHARD
    assert shard_of(item_key("rule", "a", HERE)) == ""
    assert shard_of("head") == shard_of("items/shard/x") == shard_of("notes/shard/x/y") == ""
    assert is_of(SHARD, item_key("rule", "a", REACH))
    assert not is_of("commerce", item_key("rule", "a", REACH))
    assert not is_of(SHARD, item_key("rule", "a" * 2000, REACH))


# --- names ---------------------------------------------------------------------------------

REACHES = [HERE, REACH, parse_reach("shard:commerce/80-")]
named = st.builds(
    item,
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, {"target": "etl"}, {"lifted_by": "ops"}]),
    reach=st.sampled_from(REACHES),
    n=st.integers(1, 3),
)


@given(st.lists(named, max_size=12))
def test_names_are_the_same_one_by_one_or_all_at_once(items: list[Change]) -> None:
    by_key = {one.key: one for one in items}
    gradually: dict[tuple[str, str], Change] = {}
    for one in items:
        rename(gradually, [one], [reach.pattern for reach in REACHES[1:]])
    assert gradually == own_names(by_key.values())
    assert {one.key for one in gradually.values()} == set(by_key)


@given(st.lists(named, min_size=1, max_size=12))
def test_what_was_set_at_the_agent_keeps_its_name(items: list[Change]) -> None:
    by_key = {one.key: one for one in items}
    names = own_names(by_key.values())
    for one in by_key.values():
        if one.reach == HERE and not is_taken_out(one):
            assert names["rule", one.id] is one
    for (_, name), one in names.items():
        assert name.partition("\0")[0] == one.id


# --- what may be dropped -------------------------------------------------------------------


def over(name: str, ago_s: float) -> tuple[str, Change]:
    one = item(name, {"lifted_by": "ops"}, set_at=NOW_S - ago_s)
    return one.key, one


def test_what_is_in_force_is_never_dropped_and_the_rest_after_a_month() -> None:
    stands = item("s", {"target": "etl"}, set_at=0.0)
    ended = item("e", {"expires_at": "2023-01-01T00:00:00Z"}, set_at=0.0)
    items = dict([over("new", KEEP_S - 1), over("old", KEEP_S + 1)])
    items |= {stands.key: stands, ended.key: ended}
    assert set(collectable(items, NOW_S)) == {over("old", 0)[0], ended.key}


def test_of_too_many_the_oldest_go_at_every_agent_alike() -> None:
    items = dict(over(f"r{n}", n) for n in range(MAX_OVER + 3))
    gone = collectable(items, NOW_S)
    assert sorted(gone) == sorted(over(f"r{MAX_OVER + n}", 0)[0] for n in range(3))
    assert gone == collectable(dict(reversed(items.items())), NOW_S)


def test_bytes_that_say_more_than_this_version_knows_are_known_to_differ() -> None:
    found, one = ShardItems(), item(value={"target": "etl"})
    raw = item_bytes(one).replace(b'"kind"', b'"more":1,"kind"')
    found.put(one.key, raw, one)
    assert found.is_as(one.key, raw) and not found.is_as(one.key, item_bytes(one))
    found.drop(one.key)
    assert found.items == {} and found.of(SHARD).digest == "0" * 64


# --- who has it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        (Copies(2, 2), "in force here; 2 of 2 replicas have a copy"),
        (
            Copies(0, 1, ("db-b does not answer",)),
            "in force here; 0 of 1 replicas have a copy: db-b does not answer",
        ),
        (Copies(0, 0), "in force here; no other agent of the shard is known"),
        (Copies(0, 0, standby=True), "in force here; the standby has a copy"),
        (
            Copies(1, 1, standby=False),
            "in force here; 1 of 1 replicas have a copy; the standby has no copy yet",
        ),
    ],
)
def test_an_acknowledgment_says_who_has_it(copies: Copies, words: str) -> None:
    assert copies.words == words
    assert both(None, copies) == both(copies, None) == copies


def test_a_change_of_two_shards_counts_both() -> None:
    found = both(Copies(1, 2, ("x",), standby=True), Copies(2, 2, standby=False))
    assert found == Copies(3, 4, ("x",), standby=False)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (Version(0, False, 0.0, 10**11, "eve"), "that is too high"),
        (Version(10**11, False, 0.0, 1, "eve"), "that is too high"),
        (Version(0, True, 2e11 - 1, 1, "eve"), "check the clocks"),
    ],
)
def test_what_nobody_could_lift_is_not_taken(version: Version, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_room_above(version, 1.7e9)
    check_room_above(Version(1, False, 1.7e9 + 60, 10**9, "ann"), 1.7e9)
