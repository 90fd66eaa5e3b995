"""Violations as bars. Pure.   ViolationsDoc ──► Chart ──► templates/budgets_violations.html"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.budgets.api import ViolationsDoc
from headgate.present.budgets import LIMITS_TOLD, summary

MAX_SERIES = 6
MINUTE_S, QUARTER_S = 60, 900
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class BarPiece:
    y: float
    height: float
    css: str


@dataclass(frozen=True, slots=True)
class ChartBar:
    x: int
    pieces: Sequence[BarPiece]
    title: str


@dataclass(frozen=True, slots=True)
class ChartSeries:
    css: str
    label: str
    total: int


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in a box of `width` × 100."""

    bars: Sequence[ChartBar]
    series: Sequence[ChartSeries]
    width: int
    top: int
    """What the full height represents."""
    summary: str
    since: str
    until: str


Key = tuple[str, str, str]
_KINDS = ("blocked", "delayed", "warned")
COLOURS = ("b1", "b2", "b3", "w1", "w2", "d1")
"""By the first letter of what they are for, as long as there are enough."""
OTHERS: Key = ("", "", "")
BAR = 10


def chart_of(doc: ViolationsDoc) -> Chart:
    begins, ends = _stamp(doc.since), _stamp(doc.until)
    step_s = MINUTE_S if ends - begins <= 2 * HOUR_S else QUARTER_S
    shown = _series_keys(doc)
    steps: dict[int, dict[Key, int]] = {}
    for one in doc.minutes:
        at = (_stamp(one.at) - begins) // step_s
        key = (one.budget, one.what, one.limit)
        of = steps.setdefault(at, {})
        key = key if key in shown else OTHERS
        of[key] = of.get(key, 0) + one.count
    top = max((sum(of.values()) for of in steps.values()), default=0)
    bars = [_bar(at, of, shown, top, begins + at * step_s) for at, of in sorted(steps.items())]
    width = BAR * -(-(ends - begins) // step_s)
    return Chart(bars, _series(doc, shown), width, top, summary(doc), doc.since, doc.until)


def _series_keys(doc: ViolationsDoc) -> dict[Key, str]:
    totals = _totals(doc)
    most = sorted(totals, key=lambda key: (-totals[key], key))[:MAX_SERIES]
    free = list(COLOURS)
    found = {}
    for key in sorted(most, key=lambda key: (_KINDS.index(key[1]), -totals[key], key)):
        css = next((c for c in free if c[0] == key[1][0]), free[0])
        free.remove(css)
        found[key] = css
    return found


def _totals(doc: ViolationsDoc) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for one in doc.minutes:
        key = (one.budget, one.what, one.limit)
        found[key] = found.get(key, 0) + one.count
    return found


def _series(doc: ViolationsDoc, shown: Mapping[Key, str]) -> list[ChartSeries]:
    totals = _totals(doc)
    told = [ChartSeries(css, label_of(key), totals[key]) for key, css in shown.items()]
    rest = sum(count for key, count in totals.items() if key not in shown)
    return [*told, ChartSeries("rest", "all others", rest)] if rest else told


def _bar(
    at: int, of: Mapping[Key, int], shown: Mapping[Key, str], top: int, stamp: int
) -> ChartBar:
    pieces, y = [], 100.0
    for key in [*shown, OTHERS]:
        if count := of.get(key, 0):
            height = count * 100 / top
            y -= height
            pieces.append(BarPiece(round(y, 2), round(height, 2), shown.get(key, "rest")))
    told = ", ".join(f"{label_of(key)} {count:,}" for key, count in of.items())
    clock = f"{stamp // 3600 % 24:02d}:{stamp // 60 % 60:02d}"
    return ChartBar(at * BAR, pieces, f"{clock} {told}")


def label_of(key: Key) -> str:
    if key == OTHERS:
        return "all others"
    budget, what, limit = key
    by = LIMITS_TOLD.get(limit, limit)
    return f"{budget}: {what}{by and f' by {by}'}"


def _stamp(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp())
