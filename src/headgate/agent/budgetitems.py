"""What was changed of a database's policy at this agent, as items of its own log. Pure.

items ──read_budget, read_policy──► BudgetHere, Changes ──changes_of──► Changes (budgetlayers.py)
items of now, Changes as wanted ──edits──► ItemChanges ──► OwnBook

budget  <database>/<name>  {"settings": {…}, "whole": true, "at": 3}, or {"removed": true}
policy  <database>         {"policy": {…}, "order": […], "mode_cap": "warn", "of_fleet": […]}

`at` orders the budgets that neither the settings file nor the fleet has; where it is missing, the
item's n does. An item that cannot be read, for a newer version set it, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.agent.budgetlayers import NO_CHANGES, BudgetChange, BudgetHere, Changes
from headgate.agent.ruledrafts import Asked, taken_out
from headgate.core.change import ChangeKind, Edit, Item
from headgate.core.reach import HERE
from headgate.traffic.policy import Mode

KINDS = (ChangeKind.BUDGET, ChangeKind.POLICY)
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


class ChangesHere(NamedTuple):
    """All that was changed of one database at this agent."""

    changes: Changes = NO_CHANGES
    revision: int = 0
    """Revision of the own log that last changed it; 0: nothing was ever changed."""


def database_of(item: Item) -> str:
    """Whose policy it changes at this agent; empty: none's."""
    if item.reach != HERE or item.kind not in KINDS:
        return ""
    return item.id if item.kind == ChangeKind.POLICY else item.id.partition("/")[0]


# --- from items ----------------------------------------------------------------------------


def read_budget(item: Item) -> BudgetHere | None:
    """None: taken out. Raises one of UNREADABLE for what is none."""
    if item.value is None:
        return None
    database, _, name = item.id.partition("/")
    if not name:
        raise ValueError("its id names no budget of a database")
    about = (name, item.id, item.n, database)
    if item.value.get("removed") is True:
        return BudgetHere(*about, None)
    settings = {**item.value["settings"]}
    return BudgetHere(
        *about,
        BudgetChange(settings, bool(item.value["whole"])),
        int(item.value.get("at", item.n)),
    )


def read_policy(item: Item) -> Changes:
    """Without its budgets. Raises one of UNREADABLE for what is none."""
    if item.value is None:
        return NO_CHANGES
    return Changes(
        policy={**item.value["policy"]},
        order=tuple(item.value["order"]),
        mode_cap=Mode(item.value["mode_cap"]),
        of_fleet=frozenset(item.value.get("of_fleet", ())),
    )


def changes_of(budgets: Iterable[BudgetHere], policy: Changes = NO_CHANGES) -> Changes:
    ordered = sorted(budgets, key=lambda one: (one.at, one.name))
    return replace(policy, budgets={one.name: one.change for one in ordered})


def changes_here(items: Iterable[Item], database: str) -> ChangesHere:
    """As items of a log say; what cannot be read of them is left out."""
    found = list(_of(items, database))
    policy, budgets = NO_CHANGES, list[BudgetHere]()
    for item in found:
        try:
            if item.kind == ChangeKind.POLICY:
                policy = read_policy(item)
            elif (budget := read_budget(item)) is not None:
                budgets.append(budget)
        except UNREADABLE:
            continue
    return ChangesHere(changes_of(budgets, policy), max((item.n for item in found), default=0))


def _of(items: Iterable[Item], database: str) -> Iterator[Item]:
    return (item for item in items if database_of(item) == database)


# --- into items ----------------------------------------------------------------------------


def edits(items: Iterable[Item], database: str, wanted: Changes, asked: Asked) -> list[Edit]:
    """What makes `wanted` of them; those that say it already are not touched."""
    known = {(item.kind, item.id): item for item in _of(items, database)}
    found = list[Edit]()
    last = 0
    for name, change in wanted.budgets.items():
        item = known.pop((ChangeKind.BUDGET, f"{database}/{name}"), None)
        was = _readable(item)
        at = 0
        if change is not None and change.whole:
            at = was.at if was is not None and was.at > last else last + 1
            last = at
        if was is None or was.change != change or (at and was.at != at):
            value = _budget_value(change, at)
            found.append(_put(item, ChangeKind.BUDGET, f"{database}/{name}", value, asked))
    policy = known.pop((ChangeKind.POLICY, database), None)
    for item in known.values():
        if _readable(item) is not None:
            found.append(Edit(item, taken_out(item, asked)))
    if not _says(policy, rest := replace(wanted, budgets={})):
        found.append(_put(policy, ChangeKind.POLICY, database, _policy_value(rest), asked))
    return found


def _says(policy: Item | None, wanted: Changes) -> bool:
    try:
        return (NO_CHANGES if policy is None else read_policy(policy)) == wanted
    except UNREADABLE:
        return wanted == NO_CHANGES


def _readable(item: Item | None) -> BudgetHere | None:
    """None, too, where there is none, or it is taken out."""
    try:
        return None if item is None else read_budget(item)
    except UNREADABLE:
        return None


def _put(
    before: Item | None,
    kind: ChangeKind,
    item_id: str,
    value: Mapping[str, Any] | None,
    asked: Asked,
) -> Edit:
    return Edit(before, Item(kind, item_id, HERE, value, 0, asked.wall_s, asked.who))


def _budget_value(change: BudgetChange | None, at: int) -> dict[str, Any]:
    if change is None:
        return {"removed": True}
    value = {"settings": dict(change.settings), "whole": change.whole}
    return {**value, "at": at} if at else value


def _policy_value(changes: Changes) -> dict[str, Any] | None:
    """None: all of it is as by default."""
    if changes == NO_CHANGES:
        return None
    return {
        "policy": dict(changes.policy),
        "order": list(changes.order),
        "mode_cap": changes.mode_cap.value,
        "of_fleet": sorted(changes.of_fleet),
    }
