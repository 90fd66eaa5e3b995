"""Changes of a log, differences and reaches as documents and sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.changes.api import MAX_CHANGES_TOLD, Log, change_doc, change_made_doc
from headgate.changes.model import Change, ChangeKind, Edit
from headgate.changes.reach import EVERYWHERE, HERE, Level, Reach
from headgate.changes.state import ChangeMade, Reached
from headgate.fleet.api import reached_says

NOW_S = 1_700_000_000.0
RULE = {
    "target": "etl",
    "kind": "ratio",
    "ratio": 0.5,
    "order": "before",
    "expires_at": "2023-11-14T23:13:20Z",
    "created_at": "2023-11-14T22:00:00Z",
    "created_by": "ops",
}
BUDGET = {"name": "cap", "mode": "warn", "rate": 20, "capacity": 200}


def item(value: Any, kind: ChangeKind = ChangeKind.RULE, item_id: str = "half") -> Change:
    return Change(kind, item_id, EVERYWHERE, value, 12, NOW_S - 60, "ops")


def test_a_rule_is_reported_with_what_is_left_of_it() -> None:
    doc = change_doc(item(RULE), NOW_S)
    assert (doc.state, doc.left_s, doc.says) == (
        "in_force",
        3600.0,
        "rejects 50% of the checks of etl",
    )
    assert (doc.n, doc.set_by, doc.set_at) == (12, "ops", "2023-11-14T22:12:20Z")
    over = change_doc(item(RULE), NOW_S + 7200)
    assert (over.state, over.left_s) == ("ended", None)
    lifted = change_doc(item({**RULE, "lifted_by": "ann"}), NOW_S)
    assert lifted.state == "ended" and lifted.says.endswith("lifted by ann")


def test_a_budget_may_have_no_end() -> None:
    doc = change_doc(item(BUDGET, ChangeKind.BUDGET, "cap@fleet"), NOW_S)
    assert (doc.state, doc.expires_at, doc.left_s) == ("in_force", None, None)
    ended = {**BUDGET, "expires_at": "2023-11-14T20:00:00Z"}
    assert change_doc(item(ended, ChangeKind.BUDGET), NOW_S).state == "ended"


@pytest.mark.parametrize("kind", list(ChangeKind))
def test_what_cannot_be_read_is_reported_as_such(kind: ChangeKind) -> None:
    """One of a newer version is in the list, and says that it is not understood."""
    doc = change_doc(item({"magic": True}, kind), NOW_S)
    assert doc.state == "unreadable" and "cannot be read by this agent" in doc.says
    assert change_doc(item(None, kind), NOW_S).state == "removed"


SKIP = {"until_wall_s": NOW_S + 60, "who": "ops", "reason": "rebuilt", "set_wall_s": NOW_S}
POLICY = {"policy": {}, "order": [], "mode_cap": "off", "of_fleet": []}


@pytest.mark.parametrize(
    ("kind", "item_id", "value", "says"),
    [
        ("metric", "main/lag", {"settings": {"threshold": 9}}, "threshold = 9"),
        ("metric", "main/lag", {"removed": True}, "removed"),
        ("budget", "main/cap", {"settings": {"rate": 9, "burst": None}, "whole": False},
         "rate = 9, burst = unset"),
        ("budget", "main/cap", {"settings": {"rate": 20}, "whole": True}, "warn: 20% of the"),
        ("budget", "main/cap", {"removed": True}, "removed"),
        ("policy", "main", POLICY, "mode_cap = off"),
        ("skip", "s db-b", SKIP, "rebuilt"),
        ("peer", "s db-b", {"url": "https://b:1", "database": "main"}, "https://b:1, database"),
        ("handover", "s", {**SKIP, "member": "db-a"}, "db-a is about to step down: rebuilt"),
    ],
)  # fmt: skip
def test_what_was_set_at_one_agent_is_reported_in_a_line(
    kind: str, item_id: str, value: Any, says: str
) -> None:
    change = Change(ChangeKind(kind), item_id, HERE, value, 12, NOW_S - 60, "ops")
    doc = change_doc(change, NOW_S)
    assert (doc.state, doc.reach, doc.says[: len(says)]) == ("in_force", "host", says)
    left = 60.0 if "until_wall_s" in value else None
    assert doc.left_s == left
    gone = replace(change, value=None)
    assert change_doc(gone, NOW_S).state == "removed"
    made = change_made_doc(ChangeMade(3, 4, (Edit(change, gone),)), Log.AGENT)
    assert made.reached is None and made.difference[0].kind == f"{kind} taken out"


def test_what_a_newer_version_set_says_so_and_shows_no_secret() -> None:
    change = Change("quota", "a", HERE, {"api_token": "s3cret"}, 12, NOW_S, "ops")
    doc = change_doc(change, NOW_S)
    assert doc.state == "unreadable" and "newer version" in doc.says
    assert doc.value == {"api_token": "…"}


def test_a_change_shows_what_comes_and_goes_and_its_effect() -> None:
    taken = item({**RULE, "lifted_by": "ann"})
    changes = (
        Edit(None, item(RULE)),
        Edit(item(RULE), item({**RULE, "ratio": 0.9})),
        Edit(item(RULE), taken),
        Edit(None, item({"magic": True}, item_id="odd")),
    )
    doc = change_made_doc(ChangeMade(3, 4, changes, Reached(0, 0, 0)), Log.FLEET)
    lines = [one.line for one in doc.difference]
    assert lines[0].startswith("rule half (fleet): added, rejects 50% of the checks of etl, until")
    assert lines[1] == "rule half (fleet): ratio 0.5 → 0.9"
    assert lines[2].startswith("rule half (fleet): taken out, rejects 50%")
    assert lines[3] == "rule odd (fleet): added"
    assert [one.kind for one in doc.difference][:3] == [
        "rule added",
        "rule changed",
        "rule taken out",
    ]


def test_a_large_change_is_shown_in_part_and_counted_whole() -> None:
    changes = tuple(Edit(None, item(RULE, item_id=f"r-{n}")) for n in range(1200))
    doc = change_made_doc(ChangeMade(3, 4, changes), Log.FLEET)
    assert (len(doc.difference), doc.difference_total) == (MAX_CHANGES_TOLD, 1200)


@pytest.mark.parametrize(
    ("reached", "told"),
    [
        (Reached(37, 111, 2, ("a", "b")), "reaches 37 shards (2 unhealthy), 111 hosts; a, b, …"),
        (Reached(1, 3, 0, ("a",)), "reaches 1 shard, 3 hosts; a"),
        (Reached(9, 27, None, tuple("abcdefghi")), "reaches 9 shards, 27 hosts; a, b, c, d, e, …"),
        (Reached(0, 2, 0), "reaches 0 shards, 2 hosts"),
        (
            Reached(0, 0, 0),
            "matches no registered agent now; it applies to agents that register later",
        ),
        (Reached(unknown="etcd is away"), "which agents it reaches is unknown: etcd is away"),
        (
            Reached(10_000, 30_000, None, (), "only counted"),
            "reaches 10,000 shards, 30,000 hosts; only counted",
        ),
    ],
)
def test_the_reach_of_a_change_is_one_line(reached: Reached, told: str) -> None:
    assert reached_says(reached) == told


def test_the_reach_is_shown_as_it_is_written() -> None:
    reached = Reached(1, 1, 0, ("x",), "", Reach(Level.SHARD, "commerce/*"))
    doc = change_made_doc(ChangeMade(0, 0, (), reached, dry_run=True), Log.FLEET)
    assert doc.reached is not None
    assert doc.reached.reach == "shard:commerce/*" and not doc.changed
