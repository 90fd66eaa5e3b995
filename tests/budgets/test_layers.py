"""The policy's layers: the file's, the fleet's, and what was changed on top of both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.layers import (
    NO_CHANGES,
    BudgetChange,
    BudgetHere,
    FleetBudget,
    Layers,
    PolicyChanges,
    changes_here,
    changes_of,
    changes_on,
    database_of,
    edits,
    laid_over,
)
from headgate.budgets.policy import Mode
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import HERE, Place, layers_at, parse_reach
from headgate.changes.state import item_bytes, name_of, numbered, read_item
from headgate.rules.drafts import ChangeAuthor

ASKED = ChangeAuthor("ann", 1000.0)

FILE: dict[str, Any] = {
    "policy": {"exempt_usernames": ["monitor"]},
    "budgets": [
        {"name": "etl", "mode": "enforce", "rate": 20, "capacity": 200},
        {"name": "web", "mode": "warn", "burst": 50},
    ],
}

values = st.integers(0, 3) | st.sampled_from(["a", "b"])
settings = st.dictionaries(st.sampled_from(["rate", "burst", "comment"]), values, max_size=3)
budgets = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d"]), settings), unique_by=lambda b: b[0], max_size=4
).map(lambda pairs: [{"name": name, **rest} for name, rest in pairs])
documents = st.builds(
    lambda policy, found: {**({"policy": policy} if policy else {}), "budgets": found},
    settings,
    budgets,
)


@given(documents, documents)
def test_what_lies_on_the_file_makes_the_document_that_was_wanted(
    base: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert laid_over(base, changes_on(base, wanted)) == wanted


@given(documents)
def test_a_document_that_is_the_files_needs_no_change(base: dict[str, Any]) -> None:
    assert changes_on(base, base) == NO_CHANGES and not changes_on(base, base).any


def test_of_a_budget_that_the_file_has_only_what_differs_is_kept() -> None:
    """What the file says of the rest goes on counting after the file has changed."""
    wanted = {**FILE, "budgets": [{**FILE["budgets"][0], "mode": "warn"}, FILE["budgets"][1]]}
    changes = changes_on(FILE, wanted)
    assert changes.budgets == {"etl": BudgetChange({"mode": "warn"})}
    newer = {**FILE, "budgets": [{**FILE["budgets"][0], "rate": 30}]}
    assert laid_over(newer, changes)["budgets"] == [
        {"name": "etl", "mode": "warn", "rate": 30, "capacity": 200}
    ]


def test_a_change_of_what_the_file_no_longer_has_is_no_budget() -> None:
    changes = PolicyChanges(budgets={"etl": BudgetChange({"mode": "warn"}), "web": None})
    assert laid_over({"budgets": []}, changes) == {"budgets": []}


def test_a_removal_outlives_the_file() -> None:
    changes = changes_on(FILE, {"budgets": [FILE["budgets"][1]]})
    assert changes.budgets["etl"] is None
    assert changes.policy == {"exempt_usernames": None}
    assert laid_over(FILE, changes) == {"budgets": [FILE["budgets"][1]]}


def test_the_cap_is_kept_with_the_changes() -> None:
    changes = changes_on(FILE, FILE, Mode.OFF)
    assert changes.any and as_kept({}, changes)["policy", "main"].value == {
        "policy": {},
        "order": [],
        "mode_cap": "off",
        "of_fleet": [],
    }


# --- what counts ---------------------------------------------------------------------------------

SAID = (
    "fleet",
    "region:eu-*",
    "region:eu-1",
    "cluster:commerce",
    "shard:commerce/*",
    "shard:commerce/-*",
    "shard:commerce/-80",
    "host:db-*",
    "host:db-1",
    "host",
)
"""From what counts least to what counts most. `host`: this agent, in its own log."""
OURS = Place("eu-1", "commerce", "commerce/-80", "db-1", "main")


def said(reach: str, n: int = 1, database: str = "main") -> FleetBudget | BudgetHere:
    raw = {"name": "etl", "comment": reach}
    if reach == str(HERE):
        change = BudgetChange({"comment": reach})
        return BudgetHere("etl", f"{database}/etl", n, database, change)
    return FleetBudget("etl", raw, f"etl@{reach}", parse_reach(reach), n, "ann")


@pytest.mark.parametrize(
    ("place", "applying"),
    [
        (OURS, SAID),
        (Place(database="main"), ("fleet", "host")),
        (Place(region="eu-1", database="main"), ("fleet", "region:eu-*", "region:eu-1", "host")),
        (Place(region="eu-2", database="main"), ("fleet", "region:eu-*", "host")),
        (Place(region="us-1", database="main"), ("fleet", "host")),
        (Place(cluster="commerce", database="main"), ("fleet", "cluster:commerce", "host")),
        (Place(cluster="search", database="main"), ("fleet", "host")),
        (
            Place(shard="commerce/-80", database="main"),
            ("fleet", "shard:commerce/*", "shard:commerce/-*", "shard:commerce/-80", "host"),
        ),
        (Place(shard="commerce/80-", database="main"), ("fleet", "shard:commerce/*", "host")),
        (Place(shard="search/0", database="main"), ("fleet", "host")),
        (Place(host="db-1", database="main"), ("fleet", "host:db-*", "host:db-1", "host")),
        (Place(host="db-2", database="main"), ("fleet", "host:db-*", "host")),
        (Place(host="db-1", database="other"), ("fleet", "host:db-*", "host:db-1")),
        (Place(), ("fleet",)),
    ],
)
def test_what_counts_at_a_place(place: Place, applying: tuple[str, ...]) -> None:
    """file < fleet < region < cluster < shard < host < this agent, whatever came first."""
    for order in (SAID, SAID[::-1]):
        every = [said(reach, n) for n, reach in enumerate(order, start=1)]
        found = layers_at(place, every)
        assert [str(one.reach) for one in found["etl"]] == list(applying)
    for most in range(len(applying) + 1):
        assert in_force(place, applying[:most]) == (["file", *applying][most])


def in_force(place: Place, reaches: tuple[str, ...]) -> str:
    """Which of them the document has it from."""
    found = layers_at(place, map(said, reaches)).get("etl", ())
    fleet = tuple(one for one in found if isinstance(one, FleetBudget))[-1:]
    here = [one for one in found if isinstance(one, BudgetHere)]
    file = {"budgets": [{"name": "etl", "comment": "file"}]}
    (raw,) = Layers(file, fleet, changes_of(here)).document["budgets"]
    return str(raw["comment"])


def test_of_two_alike_the_later_one_counts() -> None:
    found = layers_at(OURS, [said("shard:commerce/*", 2), said("shard:*merce/*", 1)])
    assert [one.n for one in found["etl"]] == [1, 2]


# --- as items of the log -------------------------------------------------------------------------

Kept = dict[tuple[str, str], Change]
changed = st.none() | st.builds(BudgetChange, settings, st.booleans())
some_changes = st.builds(
    PolicyChanges,
    settings,
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c/d", "e"]), changed),
        unique_by=lambda pair: pair[0],
        max_size=4,
    ).map(dict),
    st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3).map(tuple),
    st.sampled_from(Mode),
    st.frozensets(st.sampled_from(["a", "b"]), max_size=2),
)


def as_kept(before: Kept, changes: PolicyChanges, n: int = 1, database: str = "main") -> Kept:
    """The log after one more revision."""
    kept = dict(before)
    for change in edits(before.values(), database, changes, ASKED):
        after = numbered(change, n).after
        assert after is not None and database_of(after) == database
        assert change.before == before.get(name_of(after))
        kept[name_of(after)] = read_item(item_bytes(after))
    return kept


@given(st.lists(some_changes, min_size=1, max_size=4))
def test_what_was_changed_is_in_the_log_and_read_from_it(every: list[PolicyChanges]) -> None:
    kept: Kept = as_kept({}, PolicyChanges(budgets={"x": None}), database="other")
    for n, changes in enumerate(every, start=2):
        before, kept = kept, as_kept(kept, changes, n)
        here = changes_here(kept.values(), "main")
        assert here.changes == changes
        assert whole_ones(here.changes) == whole_ones(changes), "in their order"
        assert here.revision == (n if kept != before else changes_here(before.values(), "main")[1])
        assert as_kept(kept, changes, n + 1) == kept, "what is so already is not touched"
    assert changes_here(kept.values(), "other").changes.budgets == {"x": None}


def whole_ones(changes: PolicyChanges) -> list[str]:
    return [name for name, one in changes.budgets.items() if one is not None and one.whole]


def test_one_that_is_changed_keeps_its_place_and_touches_no_other() -> None:
    names = ["c", "a", "b"]
    budgets = {name: BudgetChange({"rate": 1}, whole=True) for name in names}
    kept = as_kept({}, PolicyChanges(budgets=budgets))
    again = budgets | {"c": BudgetChange({"rate": 2}, whole=True)}
    (only,) = edits(kept.values(), "main", PolicyChanges(budgets=again), ASKED)
    assert only.after is not None and only.after.id == "main/c"
    kept = as_kept(kept, PolicyChanges(budgets=again), 2)
    assert list(changes_here(kept.values(), "main").changes.budgets) == names


def test_what_an_older_version_left_is_in_the_order_of_its_revisions() -> None:
    """It has no place of its own in there (store/statecopy.py)."""
    value = {"settings": {"rate": 1}, "whole": True}
    kept: Kept = {
        (ChangeKind.BUDGET, f"main/{name}"): Change(
            ChangeKind.BUDGET, f"main/{name}", HERE, value, n, 0.0, "ann"
        )
        for n, name in enumerate(["web", "etl"], start=1)
    }
    here = changes_here(kept.values(), "main")
    assert list(here.changes.budgets) == ["web", "etl"]
    changed = {**here.changes.budgets, "web": BudgetChange({"rate": 2}, whole=True)}
    kept = as_kept(kept, PolicyChanges(budgets=changed), 3)
    assert list(changes_here(kept.values(), "main").changes.budgets) == ["web", "etl"]


def test_when_all_is_as_by_default_again_nothing_is_left_but_the_number() -> None:
    kept = as_kept({}, changes_on(FILE, {"budgets": []}, Mode.OFF))
    kept = as_kept(kept, NO_CHANGES, 7)
    assert changes_here(kept.values(), "main") == (NO_CHANGES, 7)
    assert {item.value for item in kept.values()} == {None}
