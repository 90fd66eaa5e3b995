"""The last hour of a metric as a small drawing: its course, its threshold, what was above. Pure.

minutes of history, the value now ──► Spark ──► the page draws it as it is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from headgate.check.reasons import quantity
from headgate.history.api import MetricMinuteDoc
from headgate.present.words import age

WIDTH, HEIGHT = 120.0, 28.0
MINUTES = 60
CAP = 3.0
"""A drawing ends at so many thresholds: what is above is marked, and the rest stays readable."""
ROOM = 1.4
"""So many thresholds are in sight even if nothing came near it."""
_STEP = WIDTH / MINUTES


class Spark(NamedTuple):
    line: str
    """A path within WIDTH and HEIGHT; a gap where there was no value."""
    area: str
    limit_y: float
    breaches: tuple[tuple[float, float], ...]
    """From where, how wide: times with values above the threshold."""
    beyond: tuple[float, ...]
    """Where the value was higher than the drawing is."""
    now: tuple[float, float] | None
    says: str
    """The same in words."""


Minutes = Mapping[tuple[str, str], Sequence[MetricMinuteDoc]]
"""By database and name in history; in order."""


def by_metric(minutes: Sequence[MetricMinuteDoc]) -> dict[tuple[str, str], list[MetricMinuteDoc]]:
    found: dict[tuple[str, str], list[MetricMinuteDoc]] = {}
    for one in minutes:
        found.setdefault((one.database, one.metric), []).append(one)
    return found


def spark_of(
    minutes: Sequence[MetricMinuteDoc],
    value: float | None,
    threshold: float | None,
    unit: str,
    now_s: float,
) -> Spark | None:
    """`value`: as it is now, if that is known. None where there is nothing to draw."""
    if threshold is None:
        return None
    present = int(now_s // 60)
    points: list[float | None] = [None] * MINUTES
    shares = [0.0] * MINUTES
    for one in minutes:
        at = MINUTES - (present - int(datetime.fromisoformat(one.at).timestamp() // 60))
        if 0 <= at < MINUTES:
            points[at], shares[at] = one.high, one.breached_share or 0.0
    known = [point for point in (*points, value) if point is not None]
    if not known:
        return None
    top = _top(max(known), threshold)
    places = [((at + 0.5) * _STEP, point) for at, point in enumerate(points)]
    runs = _runs([*places, (WIDTH, value)])
    return Spark(
        line=" ".join(_path(run, top) for run in runs),
        area=" ".join(_closed(run, top) for run in runs if len(run) > 1),
        limit_y=round(_y(threshold, top), 1),
        breaches=tuple(_breaches(shares)),
        beyond=tuple(round(x, 1) for x, point in places if point is not None and point > top),
        now=None if value is None else (WIDTH, round(_y(value, top), 1)),
        says=_says(max(known), sum(shares), unit),
    )


def _top(peak: float, threshold: float) -> float:
    if threshold <= 0:
        return peak or 1.0
    return max(threshold * ROOM, min(peak * 1.05, threshold * CAP))


def _y(value: float, top: float) -> float:
    return HEIGHT - 1 - (HEIGHT - 2) * min(1.0, max(0.0, value / top))


_Run = list[tuple[float, float]]


def _runs(places: Sequence[tuple[float, float | None]]) -> list[_Run]:
    """Those that follow each other without a gap."""
    found: list[_Run] = [[]]
    for x, point in places:
        if point is not None:
            found[-1].append((x, point))
        elif x < WIDTH - _STEP and found[-1]:  # The minute that is not over yet is no gap.
            found.append([])
    return [run for run in found if run]


def _path(run: _Run, top: float) -> str:
    told = [f"{x:.4g} {_y(point, top):.3g}" for x, point in run]
    # A single value is a dash, so that it is seen.
    return f"M{'L'.join(told)}" if len(told) > 1 else f"M{told[0]}h1"


def _closed(run: _Run, top: float) -> str:
    return f"{_path(run, top)}V{HEIGHT:g}H{run[0][0]:.4g}Z"


def _breaches(shares: Sequence[float]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at, share in enumerate(shares):
        if not share:
            continue
        x = at * _STEP
        if found and abs(sum(found[-1]) - x) < 0.01:
            found[-1] = (found[-1][0], found[-1][1] + _STEP)
        else:
            found.append((x, _STEP))
    return found


def _says(peak: float, minutes: float, unit: str) -> str:
    above = "not above its threshold"
    if minutes:
        above = f"above its threshold for {'less than 1 min' if minutes < 1 else age(minutes * 60)}"
    return f"last hour: highest {quantity(peak, unit)}, {above}"
