"""Budgets of one agent in a file of changes.   FileEntry + LogState ──BudgetRoom──► Item

[[budgets]]
database = "main"
name = "etl"
rate = 30                   what differs from the settings file and the fleet,
unset = ["burst"]           also what is taken out of it; or removed = true

[[budgets]]
database = "main"
name = "exports"
whole = true                neither has it: this is all of it
rate = 20
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.agent.budgetdrafts import check_budget_room, judged, with_end
from headgate.agent.budgetitems import KINDS, changes_here, database_of, edits
from headgate.agent.budgetlayers import budgets_of, differences, merged
from headgate.agent.budgets import Controlled
from headgate.agent.changefiles import UNSET
from headgate.agent.policykeeper import ANOTHER, RESERVED_NAMES, PolicyKeeper
from headgate.agent.ruledrafts import Asked
from headgate.core.change import ChangeKind, Edit, Item
from headgate.core.change_files import FileEntry
from headgate.core.change_log import LogState, name_of
from headgate.core.lint import Advice
from headgate.core.reach import HERE
from headgate.errors import Fault, InvalidSettings
from headgate.traffic.parse import parse_budget, written_budget

_BESIDES = ("database", "name", "removed", "whole", "at", UNSET)
"""What an entry has besides the budget's settings."""
_INDEX = re.compile(r"budgets\[(\d+)\]")


class BudgetRoom:
    """Implements changefiles.Room. One with a reach beyond this agent is a whole budget, as in a
    fleet."""

    def __init__(self, by_database: Mapping[str, Controlled]) -> None:
        self._by_database = by_database

    def drafted(
        self, held: LogState, entry: FileEntry, asked: Asked
    ) -> tuple[Item, Sequence[Advice]]:
        if entry.reach != HERE:
            return judged(entry.raw, entry.reach, asked, place=entry.place)
        base = budgets_of(self._book(entry).edition.layers.base).get(entry.raw["name"])
        removal = _removal(entry, base) if "removed" in entry.raw else None
        value = removal or _change(held, entry, base, asked)
        return Item(ChangeKind.BUDGET, entry.id, HERE, value, 0, asked.wall_s, asked.who), ()

    def _book(self, entry: FileEntry) -> PolicyKeeper:
        controlled = self._by_database.get(entry.raw["database"])
        if controlled is None:
            known = ", ".join(sorted(self._by_database)) or "none"
            message = f"has no traffic control; databases that have it: {known}"
            raise InvalidSettings([Fault(f"{entry.place}.database", message)])
        return controlled.book

    def check(self, held: LogState, changes: Sequence[Edit], asked: Asked) -> Sequence[Edit]:
        """Every policy as a whole; and each says which of its budgets lie on one of the fleet's."""
        check_budget_room(held, changes, asked.wall_s)
        touched = [item for one in changes for item in (one.before, one.after) if item is not None]
        items = dict(held.items)
        items |= {name_of(one.after): one.after for one in changes if one.after is not None}
        found: list[Edit] = []
        for database in sorted({database_of(item) for item in touched if item.kind in KINDS}):
            if database in self._by_database:
                book = self._by_database[database].book
                found += _checked(book, items, asked)
        return found


def _removal(entry: FileEntry, base: Mapping[str, Any] | None) -> dict[str, Any]:
    fault = ""
    if entry.raw["removed"] is not True:
        fault = "must be true; leave it out to keep the budget"
    elif entry.raw.keys() - {"database", "name", "removed"}:
        fault = "removes the budget, so settings have no effect: give those, or removed = true"
    elif base is None:
        fault = "neither the settings file nor the fleet has such a budget: leave the entry out"
    if fault:
        raise InvalidSettings([Fault(f"{entry.place}.removed", fault)])
    return {"removed": True}


def _change(
    held: LogState, entry: FileEntry, base: Mapping[str, Any] | None, asked: Asked
) -> dict[str, Any] | None:
    """None: it changes nothing of what is beneath."""
    name, place = entry.raw["name"], entry.place
    whole, at, unset = _besides(entry, base)
    given = {key: one for key, one in entry.raw.items() if key not in _BESIDES}
    settings = with_end(given, asked.wall_s, place=place)
    if name in RESERVED_NAMES and base is None:
        message = f"{name} is a reserved word of the API: {ANOTHER}"
        raise InvalidSettings([Fault(f"{place}.name", message)])
    if whole or base is None:
        budget = written_budget(parse_budget({"name": name, **settings}, place=place))
        return {"settings": budget, "whole": True, "at": at or _next_at(held, entry)}
    wanted = merged(base, {**settings, **dict.fromkeys(unset)})
    differing = differences(base, written_budget(parse_budget(wanted, place=place)))
    return {"settings": differing, "whole": False} if differing else None


def _besides(
    entry: FileEntry, base: Mapping[str, Any] | None
) -> tuple[bool, int | None, list[str]]:
    """`whole`, `at` and `unset` of an entry."""
    whole, at, unset = (entry.raw.get(key) for key in ("whole", "at", UNSET))
    faults = []
    if whole is not None and not isinstance(whole, bool):
        faults.append(Fault(f"{entry.place}.whole", "must be true or false"))
    if whole is False and base is None:
        message = "neither the settings file nor the fleet has such a budget: it must be whole"
        faults.append(Fault(f"{entry.place}.whole", message))
    if at is not None and (isinstance(at, bool) or not isinstance(at, int) or at < 1):
        faults.append(Fault(f"{entry.place}.at", "must be a whole number from 1"))
    if unset is not None and not (
        isinstance(unset, list | tuple) and all(isinstance(one, str) for one in unset)
    ):
        faults.append(Fault(f"{entry.place}.{UNSET}", "must be a list of settings"))
    if faults:
        raise InvalidSettings(faults)
    return bool(whole), at, list(unset or ())


def _next_at(held: LogState, entry: FileEntry) -> int:
    """Behind those that are there, and before what comes later in the file."""
    now = held.items.get((ChangeKind.BUDGET, entry.id))
    if now is not None and now.value is not None and isinstance(now.value.get("at"), int):
        return int(now.value["at"])
    there = (
        (item.value or {}).get("at", 0)
        for item in held.items.values()
        if item.kind == ChangeKind.BUDGET and database_of(item) == entry.raw["database"]
    )
    return 1 + max((at for at in there if isinstance(at, int)), default=0)


def _checked(book: PolicyKeeper, items: Mapping[tuple[str, str], Item], asked: Asked) -> list[Edit]:
    changes = changes_here(items.values(), book.database).changes
    fleet = book.edition.fleet.keys() | changes.of_fleet
    wanted = replace(changes, of_fleet=frozenset(changes.budgets.keys() & fleet))
    try:
        book.validate(wanted)
    except InvalidSettings as error:
        names = list(budgets_of(replace(book.edition.layers, changes=wanted).document))
        faults = [_named(fault, book.database, names) for fault in error.faults]
        raise InvalidSettings(faults) from None
    return [
        change
        for change in edits(items.values(), book.database, wanted, asked)
        if change.after is not None and change.after.kind == ChangeKind.POLICY
    ]


def _named(fault: Fault, database: str, names: Sequence[str]) -> Fault:
    """By its name: where it is in the whole policy says nothing of the file."""
    match = _INDEX.match(fault.place)
    if match is None or int(match[1]) >= len(names):
        return fault._replace(place=f"policy {database}" if not fault.place else fault.place)
    rest = fault.place[match.end() :]
    return fault._replace(place=f"budget {database}/{names[int(match[1])]}{rest}")
