"""What a series of a proxy is.   Facts, Seen ──rows──► metrics.py"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headgate.proxy.status import Facts, Seen

OTHER = "other"
COUNTER, GAUGE = "counter", "gauge"

Row = tuple[tuple[str, ...], float]
Rows = Callable[[Facts, Seen], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str
    rows: Rows
