"""What rules are held against: metrics as they are configured, and as they stand."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.base.names import Scope
from headgate.check.board import Board
from headgate.metrics.model import Comparison
from headgate.metrics.service import MetricKeeper
from headgate.rules.settings import KnownMetric, KnownMetrics


def metrics_known_to(book: MetricKeeper, board: Board | None = None) -> KnownMetrics:
    """What rules are held against: the metrics as they are configured now, and with `board` as
    they stand."""

    def known(database: str) -> Mapping[str, KnownMetric]:
        plans = [plan for plan in book.databases() if database in ("", plan.name)]
        entries = {plan.name: book.entries(plan.name) for plan in plans}
        measured = {at: {n for n, e in of.items() if e.enabled} for at, of in entries.items()}
        found: dict[str, KnownMetric] = {}
        for plan in plans:
            for name, entry in entries[plan.name].items():
                in_default = entry.enabled and plan.in_default(name)
                seen = found.get(name, KnownMetric(0.0, False))
                # Of several databases: what is laxer than the laxest says nothing anywhere.
                limit = max(seen.threshold, entry.spec.threshold)
                missing_on = next((at for at, of in measured.items() if name not in of), "")
                value = _value_now(board, plan.name, name) if board and entry.enabled else None
                highest = max(
                    [(seen.value, seen.value_on), (value, plan.name)],
                    key=lambda at: float("-inf") if at[0] is None else at[0],
                )
                at_least = seen.at_least or entry.spec.comparison is Comparison.AT_LEAST
                found[name] = KnownMetric(
                    limit, seen.in_default or in_default, missing_on, *highest, at_least
                )
        return found

    return known


def _value_now(board: Board, database: str, metric: str) -> float | None:
    """The shard's value if checks use it, else the host's; None while it cannot be read."""
    health = board.healths.get(database)
    standing = health.standings.get(metric) if health is not None else None
    if health is None or standing is None:
        return None
    if standing.spec.scope is Scope.SHARD and health.shard is not None:
        standing = health.shard.standings.get(metric, standing)
    known = standing.sample is not None and standing.absent is None
    return standing.sample.value if known and standing.sample is not None else None
