"""Items and revisions as bytes: read as written, rejected where they are none, cut to size."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.changes.model import Change, ChangeKind, Edit, Revision
from headgate.changes.reach import EVERYWHERE, parse_reach
from headgate.changes.state import (
    KEEP_S,
    MAX_ITEM_BYTES,
    MAX_N,
    MAX_PART_BYTES,
    MAX_PART_KEYS,
    What,
    difference,
    head_bytes,
    is_taken_out,
    item_bytes,
    item_document,
    lease_s,
    newest,
    oversized,
    parts_of,
    put_by,
    read_head,
    read_item,
    read_item_at,
    read_revision,
    revision_bytes,
    same_setting,
    stands,
    summary_of,
)

SHARD = parse_reach("shard:x")
RULE = Change(
    ChangeKind.RULE,
    "a",
    SHARD,
    {"target": "etl", "ratio": 0.5, "expires_at": "2023-11-14T23:13:20Z"},
    3,
    1_700_000_000.0,
    "ada",
)
NOW_S = 1_700_000_000.0
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["n", "kind", "value", "changes", "before"]), inner)
    ),
)


def added(item: Change) -> Edit:
    return Edit(None, item)


# --- bytes -------------------------------------------------------------------------------------


def test_items_and_revisions_read_as_they_were_written() -> None:
    assert read_item(item_bytes(RULE)) == RULE
    gone = replace(RULE, value=None, reach=EVERYWHERE)
    change = Edit(RULE, gone)
    revision = Revision(7, 1.5, "ada", "apply", "ä", "op", (change, added(RULE)))
    assert read_revision(revision_bytes(revision)) == revision
    assert read_head(head_bytes(7)) == 7


def test_a_field_of_a_newer_version_is_ignored() -> None:
    raw = json.dumps({**item_document(RULE), "colour": "red"}).encode()
    assert read_item(raw) == RULE


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b"{", b'{"n": -1}', b'{"n": true}', b"7"])
def test_what_is_none_is_rejected(raw: bytes) -> None:
    for read in (read_item, read_revision, read_head):
        with pytest.raises(ValueError, match=r".+"):
            read(raw)


def test_an_item_counts_only_under_its_own_key() -> None:
    """A copied key would be in force everywhere, and found by nobody who wants to lift it."""
    assert read_item_at(RULE.key, item_bytes(RULE)) == RULE
    with pytest.raises(ValueError, match="belongs to items/shard/x/rule/a"):
        read_item_at("items/wide/rule/stray", item_bytes(RULE))
    with pytest.raises(ValueError, match="bytes"):
        read_item_at(RULE.key, item_bytes(replace(RULE, set_by="x" * MAX_ITEM_BYTES)))


@pytest.mark.parametrize("n", [MAX_N + 1, 10**25, -1])
def test_a_revision_that_no_fleet_comes_to_is_not_believed(n: int) -> None:
    """Anyone who took it over would take nothing that comes after."""
    for read, raw in ((read_item, item_bytes(replace(RULE, n=n))), (read_head, head_bytes(n))):
        with pytest.raises(ValueError, match="n is"):
            read(raw)
    assert read_head(head_bytes(MAX_N)) == MAX_N


@given(JSON, st.sampled_from(sorted(item_document(RULE))))
def test_no_value_of_another_version_breaks_a_reader(value: Any, field: str) -> None:
    broken = json.dumps({**item_document(RULE), field: value}).encode()
    change = {"changes": [{"before": None, "after": {**item_document(RULE), field: value}}]}
    revision = {"n": 1, "wall_s": 1, "who": "a", "action": "b", "summary": "", "op": "", **change}
    for read, raw in (
        (read_item, broken),
        (read_revision, json.dumps(revision).encode()),
        (read_revision, json.dumps({**revision, "changes": value}).encode()),
        (read_head, json.dumps({"n": value}).encode()),
    ):
        with suppress(ValueError):
            read(raw)


# --- which counts ------------------------------------------------------------------------------


def test_of_several_with_one_name_the_newest_counts_and_of_one_revision_the_one_in_force() -> None:
    moved = replace(RULE, reach=EVERYWHERE, n=4)
    left = replace(RULE, value=None, n=4)
    for items in ([RULE, moved, left], [left, moved, RULE], [moved, left]):
        assert list(newest(items).values()) == [moved]
    assert newest([replace(left, n=9), moved]) == {(ChangeKind.RULE, "a"): replace(left, n=9)}


@pytest.mark.parametrize(
    ("value", "is_so"),
    [
        (None, False),
        ({"expires_at": "2023-11-14T22:13:20Z"}, False),
        ({"expires_at": "2023-11-14T22:13:21Z"}, True),
        ({"expires_at": "2023-11-14T22:13:21Z", "lifted_by": "bob"}, False),
        ({"expires_at": "soon"}, False),
        ({"rate": 1}, True),
    ],
)
def test_what_is_in_force_is_sent_with_its_own_end(value: Any, is_so: bool) -> None:
    assert stands(replace(RULE, value=value), NOW_S) is is_so


def test_differences_show_what_was_set_and_not_who_set_it() -> None:
    value = dict(RULE.value or {})
    after = replace(RULE, reach=EVERYWHERE, value={**value, "ratio": 0.9, "set_at": "later"})
    told = difference(Edit(RULE, after))
    assert told.line == "rule a (fleet): reach shard:x → fleet, ratio 0.5 → 0.9"
    assert told.what is What.CHANGED
    assert difference(added(RULE)).what is What.ADDED
    lifted = replace(RULE, value={**value, "lifted_by": "bob"})
    assert is_taken_out(lifted)
    assert difference(Edit(RULE, lifted)).what is What.TAKEN_OUT
    assert same_setting(RULE, replace(RULE, value={**value, "created_by": "eve"}, n=9))
    assert not same_setting(RULE, lifted)
    long = replace(RULE, value={**value, "reason": "x" * 500})
    assert len(difference(Edit(RULE, long)).line) < 150
    assert summary_of([added(RULE)] * 7).endswith("; and 2 more")


# --- parts -------------------------------------------------------------------------------------


def test_a_move_puts_at_both_keys_and_counts_twice() -> None:
    moved = replace(RULE, reach=EVERYWHERE, n=4)
    here, there = put_by(Edit(RULE, moved))
    assert (here, there.key, there.value, there.n) == (moved, RULE.key, None, 4)
    moves = [
        Edit(replace(RULE, id=f"r{at}"), replace(moved, id=f"r{at}")) for at in range(MAX_PART_KEYS)
    ]
    assert [len(part) for part in parts_of(moves)] == [50, 50]


@given(st.lists(st.tuples(st.integers(1, 30_000), st.integers(0, 400)), max_size=300))
def test_parts_are_whole_in_order_and_within_bounds(sizes: list[tuple[int, int]]) -> None:
    changes = [
        added(replace(RULE, id=f"r{at}", value={"reason": "x" * size, "pair": f"r{pair}"}))
        for at, (size, pair) in enumerate(sizes)
    ]
    parts = parts_of(changes)
    told = [change.after.id for part in parts for change in part if change.after]
    assert sorted(told) == sorted(f"r{at}" for at in range(len(sizes)))
    for part in parts:
        assert len(part) <= MAX_PART_KEYS
        assert sum(2 * len(item_bytes(one.after)) for one in part if one.after) <= MAX_PART_BYTES


def test_rules_of_a_pair_are_in_one_part() -> None:
    rules = [replace(RULE, id=f"r{at}") for at in range(MAX_PART_KEYS - 1)]
    pair = [
        replace(RULE, id="p", value={"pair": "q"}),
        replace(RULE, id="q", value={"pair": "p"}),
    ]
    parts = parts_of([added(pair[0]), *map(added, rules), added(pair[1])])
    assert [len(part) for part in parts] == [100, 1]
    assert {change.after.id for change in parts[0] if change.after} >= {"p", "q"}


def test_leases_outlive_what_is_of_use_by_a_day() -> None:
    assert lease_s(RULE, NOW_S) == 3600 + KEEP_S
    assert lease_s(RULE, NOW_S + 9999) == KEEP_S
    assert lease_s(replace(RULE, value=None), NOW_S) == KEEP_S
    assert lease_s(replace(RULE, value={"rate": 1}), NOW_S) == 0


def test_what_is_too_long_is_reported_with_its_name() -> None:
    (fault,) = oversized([added(RULE), added(replace(RULE, id="b", value={"x": "y" * 70_000}))])
    assert fault.place == "rule b"
    assert "at most 65,536" in fault.message


@pytest.mark.parametrize(
    "wrong",
    [{"set_at": float("inf")}, {"set_at": float("nan")}, {"set_by": "\ud800"}, {"id": "\udfff"}],
)
def test_an_item_that_no_answer_could_show_is_rejected(wrong: dict[str, Any]) -> None:
    """One of them would make every list of the fleet's rules fail, at every agent."""
    with pytest.raises(ValueError, match="is no"):
        read_item(json.dumps({**item_document(RULE), **wrong}).encode())
