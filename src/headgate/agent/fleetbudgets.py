"""The fleet's budgets as this agent has them.   items, places ──► FleetBudgets ──► BudgetBook

Of several with one name that meet a database, the one that reaches less far counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from headgate.agent.budgetlayers import FleetBudget
from headgate.agent.fleetitems import ItemMemory
from headgate.core.fleet import Item, ItemKind
from headgate.core.fleet_change import ends_at
from headgate.core.reach import Place
from headgate.errors import Fault, InvalidSettings
from headgate.traffic.parse import parse_budget, written
from headgate.traffic.policy import Policy

log = structlog.get_logger()

FORGET_AFTER_S = 86_400.0


class FleetBudgets:
    def __init__(self) -> None:
        self._items = ItemMemory(ItemKind.BUDGET)
        self._places: tuple[Place, ...] = ()
        self._good: dict[str, FleetBudget] = {}
        """By the id of the item: as it last could be read."""
        self._by_database: dict[str, tuple[FleetBudget, ...]] = {}
        self.faults: dict[str, str] = {}
        """By the id of the item: why it cannot be read as it is now."""

    def of(self, database: str) -> tuple[FleetBudget, ...]:
        """Those that meet it, by name."""
        return self._by_database.get(database, ())

    def follow(
        self, items: Sequence[Item], places: Sequence[Place], wall_s: float, *, whole: bool
    ) -> None:
        news = self._items.news(items, whole=whole)
        moved = tuple(places) != self._places
        if not news and not moved:
            return
        for item_id, item in news.items():
            self.faults.pop(item_id, None)
            self._read(item_id, item, wall_s)
        self._items.remember(news)
        self._places = tuple(places)
        self._by_database = {place.database: self._at(place) for place in places}

    def _read(self, item_id: str, item: Item | None, wall_s: float) -> None:
        if item is None or item.value is None or _is_over(item, wall_s):
            self._good.pop(item_id, None)
            return
        try:
            self._good[item_id] = _budget(item)
        except InvalidSettings as error:
            # Of a newer version, or broken: the last good one stays.
            self.faults[item_id] = str(error)
            log.error("policy.fleet_budget_refused", budget=item_id, fault=str(error))

    def _at(self, place: Place) -> tuple[FleetBudget, ...]:
        met = [one for one in self._good.values() if one.reach.meets(place)]
        met.sort(key=lambda one: (one.reach.rank, one.n, one.item_id))
        narrowest: Mapping[str, FleetBudget] = {one.name: one for one in met}
        return tuple(narrowest[name] for name in sorted(narrowest))


def _budget(item: Item) -> FleetBudget:
    budget = parse_budget(item.value, place=f"budget {item.id}")
    name = item.id.removesuffix(f"@{item.reach}")
    if budget.name != name:
        raise InvalidSettings([Fault(f"budget {item.id}", f"is named {budget.name!r} inside")])
    (raw,) = written(Policy((budget,)))["budgets"]
    return FleetBudget(name, raw, item.id, item.reach, item.n, item.set_by)


def _is_over(item: Item, wall_s: float) -> bool:
    """One that has just ended is still told of, as others are."""
    try:
        end_s = ends_at(item)
    except ValueError:
        return False  # Reading it says what is wrong with it.
    return end_s is not None and end_s < wall_s - FORGET_AFTER_S
