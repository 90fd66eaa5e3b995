"""The policy's two layers: the file's, and what was changed on top of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.agent.budgetlayers import (
    NO_CHANGES,
    BudgetChange,
    Changes,
    changes_on,
    laid_over,
    read_changes,
    written_changes,
)
from headgate.traffic.policy import Mode

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
    changes = changes_on(base, wanted)
    assert laid_over(base, changes) == wanted
    assert read_changes(written_changes(changes)) == changes


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
    changes = Changes(budgets={"etl": BudgetChange({"mode": "warn"}), "web": None})
    assert laid_over({"budgets": []}, changes) == {"budgets": []}


def test_a_removal_outlives_the_file() -> None:
    changes = changes_on(FILE, {"budgets": [FILE["budgets"][1]]})
    assert changes.budgets["etl"] is None
    assert changes.policy == {"exempt_usernames": None}
    assert laid_over(FILE, changes) == {"budgets": [FILE["budgets"][1]]}


def test_the_cap_is_kept_with_the_changes() -> None:
    changes = changes_on(FILE, FILE, Mode.OFF)
    assert changes.any and read_changes(written_changes(changes)).mode_cap is Mode.OFF
