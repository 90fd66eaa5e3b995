"""Metrics in a file of changes.   FileEntry + Holdings ──MetricRoom──► Item

[[metrics]]
database = "main"
metric = "lag"
threshold = 10              or removed = true
expires_at = "never"        or for = "2h"; an end that is not said stays as it is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.agent.metricdrafts import (
    MAX_METRICS_PER_DATABASE,
    METRIC,
    MetricDatabase,
    MetricDrafts,
    Wish,
    parted,
)
from headgate.agent.ruledrafts import Asked
from headgate.core.change_files import FileEntry
from headgate.core.fleet import Item, ItemChange
from headgate.core.fleet_change import Holdings, name_of, stands
from headgate.core.lint import Advice
from headgate.core.names import parse_metric
from headgate.errors import Fault, InvalidName, InvalidSettings

_NAMES = ("database", "metric")


class MetricRoom:
    """Implements changefiles.Room."""

    def __init__(self, drafts: MetricDrafts, databases: Mapping[str, MetricDatabase]) -> None:
        self._drafts = drafts
        self._databases = databases

    def drafted(
        self, held: Holdings, entry: FileEntry, asked: Asked
    ) -> tuple[Item, Sequence[Advice]]:
        database, metric = self._named(entry)
        raw = {key: one for key, one in entry.raw.items() if key not in _NAMES}
        try:
            settings, end = parted(raw, asked.wall_s)
            wish = Wish(database.plan.name, metric, None, end, keeps_end=True)
            return self._drafts.of_file(held, asked, wish, database, settings)
        except InvalidSettings as error:
            faults = [_placed(fault, entry.place, metric) for fault in error.faults]
            raise InvalidSettings(faults) from None

    def _named(self, entry: FileEntry) -> tuple[MetricDatabase, str]:
        named, faults = entry.raw["database"], list[Fault]()
        if named not in self._databases:
            known = ", ".join(sorted(self._databases)) or "none"
            message = f"no database {named!r}; configured: {known}"
            faults.append(Fault(f"{entry.place}.database", message))
        try:
            metric = parse_metric(entry.raw["metric"])
        except InvalidName as error:
            faults.append(Fault(f"{entry.place}.metric", str(error)))
        if faults:
            raise InvalidSettings(faults)
        return self._databases[named], metric

    def check(
        self, held: Holdings, changes: Sequence[ItemChange], asked: Asked
    ) -> Sequence[ItemChange]:
        """No database has too many metrics by it."""
        after = [one.after for one in changes if one.after is not None and one.after.kind == METRIC]
        items = dict(held.items)
        items |= {name_of(item): item for item in after}
        standing = [item for item in items.values() if stands(item, asked.wall_s)]
        for name in sorted({item.id.rpartition("/")[0] for item in after}):
            count = len(self._metrics(name, standing))
            if count > MAX_METRICS_PER_DATABASE:
                message = f"{name} would have {count} metrics, at most {MAX_METRICS_PER_DATABASE}"
                raise InvalidSettings([Fault("metrics", message)])
        return ()

    def _metrics(self, database: str, items: Sequence[Item]) -> set[str]:
        measured = self._databases.get(database)
        found = set(measured.plan.raw_metrics) if measured is not None else set[str]()
        for item in items:
            of, _, metric = item.id.rpartition("/")
            if item.kind == METRIC and of == database:
                said: Mapping[str, Any] = item.value or {}
                (found.discard if said.get("removed") else found.add)(metric)
        return found


def _placed(fault: Fault, place: str, metric: str) -> Fault:
    """Where it is in the file."""
    if fault.place == metric or fault.place.startswith((f"{metric}.", f"{metric}[")):
        return fault._replace(place=f"{place}{fault.place.removeprefix(metric)}")
    return fault._replace(place=f"{place}.{fault.place}")
