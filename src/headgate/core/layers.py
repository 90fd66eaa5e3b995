"""Which of several changes of one thing counts at a place. Pure.

what is said of budgets, or of metrics ──layers_at──► those that apply, in order
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from headgate.core.reach import Place, Reach


class Said(Protocol):
    """What one change says of a budget, or of a metric."""

    @property
    def name(self) -> str: ...

    @property
    def item_id(self) -> str: ...

    @property
    def n(self) -> int: ...

    @property
    def reach(self) -> Reach: ...

    def applies_to(self, place: Place) -> bool: ...


S = TypeVar("S", bound=Said)


def layers_at(place: Place, said: Iterable[S]) -> dict[str, tuple[S, ...]]:
    """What is said of each name at a place, from what counts least to what counts most:

        settings file < fleet < region < cluster < shard < host < this agent

    The file lies beneath all that is said. Within a level a pattern counts less than a name, and
    less the less it says; of two alike, the later counts.
    """
    applying = [one for one in said if one.applies_to(place)]
    applying.sort(key=lambda one: (one.reach.rank, one.n, one.item_id))
    found: dict[str, tuple[S, ...]] = {}
    for one in applying:
        found[one.name] = (*found.get(one.name, ()), one)
    return found
