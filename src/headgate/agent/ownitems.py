"""What is set one by one at this agent: metrics, skips, peers, handovers.

log ──items──► SetHere (values by id) ──► Shards, MetricBook
                 what is asked + Holdings ──put, taken_out──► ItemChange ──► OwnBook.make
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import structlog

from headgate.agent.fleetcommit import Draft
from headgate.agent.fleetitems import ItemMemory
from headgate.agent.ruledrafts import Asked
from headgate.core.fleet import Item, ItemChange, ItemKind
from headgate.core.fleet_change import FleetChange, Holdings
from headgate.core.reach import HERE

log = structlog.get_logger()

OURSELVES = "headgate"
"""Who ends what has come to its end."""

T = TypeVar("T")


class Make(Protocol):
    """As OwnBook.make: in the log, and in force, when it returns. A room must not hold a lock
    meanwhile that its `follow` takes."""

    def __call__(
        self, draft: Callable[[Holdings, Asked], Draft], who: str, *, dry_run: bool
    ) -> Awaitable[FleetChange]: ...


class SetHere(Generic[T]):
    """What the agent's own log has of one kind, as values."""

    def __init__(self, kind: ItemKind, parse: Callable[[Item], T]) -> None:
        """`parse` raises KeyError, TypeError or ValueError for what it cannot read; it is never
        given one that is taken out."""
        self._items = ItemMemory(kind)
        self._parse = parse
        self.values: dict[str, T] = {}
        """By id; those that stand."""

    def n_of(self, item_id: str) -> int:
        """The revision that changed it last; 0: none did."""
        item = self._items.known.get(item_id)
        return item.n if item is not None else 0

    def follow(self, items: Sequence[Item], *, whole: bool) -> list[str]:
        """The ids of those that are otherwise now."""
        news = self._items.news(items, whole=whole)
        self._items.remember(news)
        return [item_id for item_id, item in news.items() if self._take(item_id, item)]

    def _take(self, item_id: str, item: Item | None) -> bool:
        if item is None or item.value is None:
            self.values.pop(item_id, None)
            return True
        try:
            self.values[item_id] = self._parse(item)
        except (KeyError, TypeError, ValueError) as error:
            # Of a newer version, or broken: the last good one stays.
            log.error("item.refused", kind=str(item.kind), id=item_id, fault=repr(error))
            return False
        return True


def put(
    held: Holdings, kind: ItemKind, item_id: str, value: Mapping[str, Any] | None, asked: Asked
) -> ItemChange:
    """`value` None takes it out."""
    after = Item(kind, item_id, HERE, value, 0, asked.wall_s, asked.who)
    return ItemChange(held.items.get((kind, item_id)), after)


def standing(held: Holdings, kind: ItemKind, item_id: str) -> Item | None:
    item = held.items.get((kind, item_id))
    return item if item is not None and item.value is not None else None
