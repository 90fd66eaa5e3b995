"""Paced admission.   Pacers ──► rows   (R99, R142)"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.agent.pacer import Pacer
from headgate.http.exposition.series import Look, Rows, Series
from headgate.wire.exposition import Row
from headgate.wire.pacing import set_point


def _each(of: Callable[[Pacer], float]) -> Rows:
    def rows(look: Look) -> Iterator[Row]:
        for database, pacer in look.parts.checker.pacers.items():
            yield (database,), float(of(pacer))

    return rows


def _pace_set_points(look: Look) -> Iterator[Row]:
    for database, pacer in look.parts.checker.pacers.items():
        for metric, standing in pacer.metrics.items():
            yield (database, metric), set_point(standing)


PACING = (
    Series(
        "headgate_pace_rate",
        "gauge",
        ("database",),
        "Cost a second that pacing releases. Missing where no metric is paced.",
        _each(lambda pacer: pacer.pace.rate),
    ),
    Series(
        "headgate_pace_bears",
        "gauge",
        ("database",),
        "Cost a second that the database is thought to bear: the controller's integral term.",
        _each(lambda pacer: pacer.pace.bears),
    ),
    Series(
        "headgate_pace_starting",
        "gauge",
        ("database",),
        "1 during slow start, while the rate is still looking for its limit, else 0.",
        _each(lambda pacer: pacer.pace.starting),
    ),
    Series(
        "headgate_pace_set_point",
        "gauge",
        ("database", "metric"),
        "Where pacing keeps the metric, in its own unit.",
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
        "Checks that were told to come back later, though every metric was healthy.",
        _each(lambda pacer: pacer.paced_total),
    ),
)
