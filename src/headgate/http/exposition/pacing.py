"""Paced admission.   Pacers ──► rows"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.base.prometheus import Row
from headgate.http.exposition.series import Rows, Scrape, Series
from headgate.pacing.api import set_point
from headgate.pacing.pacer import Pacer


def _each(of: Callable[[Pacer], float]) -> Rows:
    def rows(look: Scrape) -> Iterator[Row]:
        for database, pacer in look.parts.checker.pacers.items():
            yield (database,), float(of(pacer))

    return rows


def _pace_set_points(look: Scrape) -> Iterator[Row]:
    for database, pacer in look.parts.checker.pacers.items():
        for metric, standing in pacer.metrics.items():
            yield (database, metric), set_point(standing)


PACING = (
    Series(
        "headgate_pace_rate",
        "gauge",
        ("database",),
        "Cost a second that pacing admits. Missing if no metric is paced.",
        _each(lambda pacer: pacer.pace.rate),
    ),
    Series(
        "headgate_pace_bears",
        "gauge",
        ("database",),
        "Estimate of the cost a second that the database sustains: the controller's integral term.",
        _each(lambda pacer: pacer.pace.bears),
    ),
    Series(
        "headgate_pace_starting",
        "gauge",
        ("database",),
        "1 during slow start, while the rate still grows to its limit, else 0.",
        _each(lambda pacer: pacer.pace.starting),
    ),
    Series(
        "headgate_pace_set_point",
        "gauge",
        ("database", "metric"),
        "Value that pacing aims at, in the metric's unit.",
        _pace_set_points,
    ),
    Series(
        "headgate_pace_cost_total",
        "counter",
        ("database",),
        "Cost charged to admitted checks since the metric is paced.",
        _each(lambda pacer: pacer.cost_total),
    ),
    Series(
        "headgate_pace_sent_away_total",
        "counter",
        ("database",),
        "Checks that pacing rejected although every metric was healthy.",
        _each(lambda pacer: pacer.paced_total),
    ),
)
