"""The budgets of both logs as this agent has them.   items, places ──► FollowedBudgets ──► Budgets

Each database has its layers of both: the fleet's budgets that apply to it, and on top the changes
of this agent (core/layers.py says what counts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from headgate.agent.budgetitems import (
    KINDS,
    UNREADABLE,
    ChangesHere,
    changes_of,
    database_of,
    read_budget,
    read_policy,
)
from headgate.agent.budgetlayers import NO_CHANGES, BudgetHere, Changes, FleetBudget
from headgate.agent.changeshelf import ChangeMemory
from headgate.agent.changetime import ChangeTime
from headgate.core.change import FORGET_AFTER_S, ChangeKind, Item
from headgate.core.change_log import ends_at
from headgate.core.layers import layers_at
from headgate.core.reach import HERE, Place
from headgate.core.rule_times import parse_date_time
from headgate.errors import Fault, InvalidSettings
from headgate.traffic.parse import parse_budget, written
from headgate.traffic.policy import Policy

log = structlog.get_logger()

ONE_AGENT = "is for one agent alone, which belongs in its own log, not in a fleet's"


class LayersHere(NamedTuple):
    """What lies on the settings file of one database."""

    fleet: tuple[FleetBudget, ...] = ()
    """By name."""
    here: ChangesHere = ChangesHere()
    over: frozenset[str] = frozenset()
    """Budgets changed here, by name, whose time is used up, whatever the clock says."""


class FollowedBudgets:
    def __init__(self, time: ChangeTime) -> None:
        self._own = _Followed(time, own=True)
        self._fleet = _Followed(time, own=False)
        self._used_up: frozenset[str] = frozenset()
        self._places: dict[str, Place] = {}
        self._by_database: dict[str, LayersHere] = {}
        """Recomputed since the last change."""
        self.is_own_known = False
        """The agent's own log was read completely once."""

    @property
    def size(self) -> int:
        return len(self._own.budgets) + len(self._fleet.budgets)

    @property
    def faults(self) -> dict[str, str]:
        """By the id of the item: why it cannot be read as it is now."""
        return {**self._own.faults, **self._fleet.faults}

    def follow(
        self,
        items: Sequence[Item],
        places: Sequence[Place],
        wall_s: float,
        *,
        whole: bool,
        own: bool,
    ) -> None:
        """As RuleKeeper.follow. Some of the own log mean nothing before all of it is known."""
        if own and not whole and not self.is_own_known:
            return
        followed = self._own if own else self._fleet
        by_database = {place.database: place for place in places}
        if followed.take(items, wall_s, whole=whole) or by_database != self._places:
            self._by_database = {}
        self._places = by_database
        self.is_own_known = self.is_own_known or own

    def look(self) -> bool:
        """Whether the time of others is used up than when it was last looked at."""
        used_up = frozenset([*self._own.used_up(), *self._fleet.used_up()])
        if used_up == self._used_up:
            return False
        self._used_up, self._by_database = used_up, {}
        return True

    def of(self, database: str) -> LayersHere:
        if database not in self._by_database:
            self._by_database[database] = self._worked_out(database)
        return self._by_database[database]

    def _worked_out(self, database: str) -> LayersHere:
        place = self._places.get(database, Place(database=database))
        both = [*self._fleet.budgets.values(), *self._own.budgets.values()]
        said = [b for b in both if isinstance(b, BudgetHere) or b.item_id not in self._used_up]
        layers = layers_at(place, said).values()
        # Those that reach beyond this agent are whole: of each name the last one counts.
        fleet = {one.name: one for some in layers for one in some if isinstance(one, FleetBudget)}
        here = [some[-1] for some in layers if isinstance(some[-1], BudgetHere)]
        changes = changes_of(here, self._own.policies.get(database, NO_CHANGES))
        n = self._own.newest_n.get(database, 0)
        over = frozenset(one.name for one in here if one.item_id in self._used_up)
        wide = tuple(fleet[name] for name in sorted(fleet))
        return LayersHere(wide, ChangesHere(changes, n), over)


class _Followed:
    """The items of one log, each read once."""

    def __init__(self, time: ChangeTime, *, own: bool) -> None:
        self._time = time
        self._notes = f"{ChangeKind.BUDGET}/{'own' if own else 'fleet'}/"
        self._ending: dict[str, tuple[float, float]] = {}
        """By the id of the item: when it was set, and its end."""
        self._is_whole = self._is_news = False
        """Everything was read once; there was news since the last look."""
        self._is_own = own
        self._items = [ChangeMemory(kind) for kind in KINDS]
        self.budgets: dict[str, FleetBudget | BudgetHere] = {}
        """By the id of the item: its last readable version."""
        self.policies: dict[str, Changes] = {}
        """By database: what was changed here besides budgets."""
        self.newest_n: dict[str, int] = {}
        """By database."""
        self.faults: dict[str, str] = {}

    def take(self, items: Sequence[Item], wall_s: float, *, whole: bool) -> bool:
        """Whether it is news."""
        self._is_whole = self._is_whole or whole
        news = [(memory, memory.news(items, whole=whole)) for memory in self._items]
        for memory, found in news:
            for item_id, item in found.items():
                self.faults.pop(item_id, None)
                self._read(item_id, item, wall_s)
            memory.remember(found)
        if not any(found for _, found in news):
            return False
        self.newest_n, self._is_news = {}, True
        for item in self._known():
            database = database_of(item)
            self.newest_n[database] = max(item.n, self.newest_n.get(database, 0))
        return True

    def _known(self) -> Iterator[Item]:
        return (item for memory in self._items for item in memory.known.values())

    def _read(self, item_id: str, item: Item | None, wall_s: float) -> None:
        if item is None or item.value is None or _is_over(item, wall_s):
            self.budgets.pop(item_id, None)
            self.policies.pop(item_id, None)
            self._ending.pop(item_id, None)
            return
        try:
            if item.kind == ChangeKind.POLICY:
                self.policies[item_id] = self._policy(item)
            elif (budget := self._budget(item)) is not None:
                self.budgets[item_id] = budget
                self._ending.pop(item_id, None)
                if (end_s := _end_of(budget)) is not None:
                    self._ending[item_id] = item.set_at, end_s
        except UNREADABLE as error:
            # Of a newer version, or broken: the last good one stays.
            fault = str(error) if isinstance(error, ValueError) else repr(error)
            self.faults[item_id] = fault
            log.error("policy.item_refused", kind=str(item.kind), id=item_id, fault=fault)

    def used_up(self) -> list[str]:
        """Those whose time is over though the wall clock does not say so. Not for a thread: others
        count their time, too."""
        is_used_up, notes = self._time.is_used_up, self._notes
        if self._is_whole and self._is_news:
            self._time.keep_only(notes, self._ending)
            self._is_news = False
        return [one for one, ends in self._ending.items() if is_used_up(f"{notes}{one}", *ends)]

    def _policy(self, item: Item) -> Changes:
        if not self._is_own or item.reach != HERE:
            raise ValueError(ONE_AGENT)
        return read_policy(item)

    def _budget(self, item: Item) -> FleetBudget | BudgetHere | None:
        if item.reach != HERE:
            return _fleet_budget(item)
        if not self._is_own:
            raise ValueError(ONE_AGENT)
        return read_budget(item)


def _fleet_budget(item: Item) -> FleetBudget:
    budget = parse_budget(item.value, place=f"budget {item.id}")
    name = item.id.removesuffix(f"@{item.reach}")
    if budget.name != name:
        raise InvalidSettings([Fault(f"budget {item.id}", f"is named {budget.name!r} inside")])
    (raw,) = written(Policy((budget,)))["budgets"]
    return FleetBudget(name, raw, item.id, item.reach, item.n, item.set_by)


def _end_of(budget: FleetBudget | BudgetHere) -> float | None:
    raw: Mapping[str, Any] = {}
    if isinstance(budget, FleetBudget):
        raw = budget.raw
    elif budget.change is not None:
        raw = budget.change.settings
    given = raw.get("expires_at")
    return None if given is None else parse_date_time(given)


def _is_over(item: Item, wall_s: float) -> bool:
    """One that has just ended is still shown, as others are."""
    try:
        end_s = ends_at(item)
    except ValueError:
        return False  # Reading it says what is wrong with it.
    return end_s is not None and end_s < wall_s - FORGET_AFTER_S
