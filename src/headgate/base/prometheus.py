"""Prometheus text, of an agent and of a proxy.   Series ──rows──► lines ──► /metrics

Lines are written here and not by prometheus_client, which takes five times as long: thousands of
rows are made on the loop that answers checks, and in turns with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Generic, NamedTuple, ParamSpec

P = ParamSpec("P")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"


class Spread(NamedTuple):
    """A histogram's row."""

    counts: Mapping[str, int]
    """Upper bound, or `+Inf` → how many up to it, cumulative."""
    sum_s: float


Row = tuple[tuple[str, ...], float | Spread]


@dataclass(frozen=True)
class Series(Generic[P]):
    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    labels: tuple[str, ...]
    about: str
    rows: Callable[P, Iterator[Row]]

    def text(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        return head(self) + "".join(lines(self, self.rows(*args, **kwargs))).encode()


class Section(list[Series[P]], Generic[P]):
    """Series in the order in which they are declared: `NAME{LABEL,LABEL}`, meaning, rows. Those
    that end in `_total` are counters, as everywhere; the others are gauges, or what `kind` says."""

    def add(self, named: str, about: str, rows: Callable[P, Iterator[Row]], kind: str = "") -> None:
        name, _, labels = named.removesuffix("}").partition("{")
        kind = kind or ("counter" if name.endswith("_total") else "gauge")
        self.append(Series(name, kind, tuple(labels.split(",")) if labels else (), about, rows))

    def rows(
        self, named: str, about: str, kind: str = ""
    ) -> Callable[[Callable[P, Iterator[Row]]], Callable[P, Iterator[Row]]]:
        """Declares the series that the function below it makes the rows of."""

        def declare(rows: Callable[P, Iterator[Row]]) -> Callable[P, Iterator[Row]]:
            self.add(named, about, rows, kind)
            return rows

        return declare


def head(series: Series[...]) -> bytes:
    about = series.about.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {series.name} {about}\n# TYPE {series.name} {series.kind}\n".encode()


def lines(series: Series[...], rows: Iterable[Row]) -> Iterator[str]:
    name = series.name
    places = sorted(range(len(series.labels)), key=series.labels.__getitem__)
    openings = [(place, f'{series.labels[place]}="') for place in places]
    for values, value in rows:
        labels = ",".join([f'{opening}{_escaped(values[at])}"' for at, opening in openings])
        if isinstance(value, Spread):
            yield from _histogram(name, labels, value)
        else:
            yield (
                f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"
            )


def _histogram(name: str, labels: str, spread: Spread) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    for bound, count in spread.counts.items():
        yield f'{name}_bucket{{{before}le="{bound}"}} {_number(count)}\n'
    own = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{own} {_number(spread.counts['+Inf'])}\n"
    yield f"{name}_sum{own} {_number(spread.sum_s)}\n"


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if isnan(value) else repr(float(value))
