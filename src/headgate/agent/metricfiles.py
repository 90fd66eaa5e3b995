"""Metrics in a file of changes.   FileEntry + Holdings ──MetricRoom──► Item

[[metrics]]
database = "main"
metric = "lag"
threshold = 10              or removed = true
expires_at = "never"        or for = "2h"; an end that is not said stays as it is

With a reach beyond the agent the settings are a patch of what each agent has (widedrafts.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headgate.agent.metricdrafts import (
    ANY,
    MAX_METRICS_PER_DATABASE,
    METRIC,
    Ground,
    MetricDatabase,
    MetricDrafts,
    Wish,
    parted,
    parted_id,
)
from headgate.agent.ruledrafts import Asked
from headgate.agent.widedrafts import WideDrafts
from headgate.core.change_files import FileEntry
from headgate.core.fleet import Item, ItemChange
from headgate.core.fleet_change import Holdings, name_of, stands
from headgate.core.lint import Advice
from headgate.core.names import parse_database, parse_metric
from headgate.core.reach import HERE
from headgate.errors import Fault, InvalidName, InvalidSettings

_NAMES = ("database", "metric")


class Grounds(Protocol):
    """As MetricBook.grounds."""

    def __call__(
        self, database: str, metric: str, *, without: str
    ) -> Sequence[tuple[MetricDatabase, Ground]]: ...


class MetricRoom:
    """Implements changefiles.Room."""

    def __init__(
        self, drafts: MetricDrafts, databases: Mapping[str, MetricDatabase], grounds: Grounds
    ) -> None:
        self._drafts = drafts
        self._databases = databases
        self._grounds = grounds

    def drafted(
        self, held: Holdings, entry: FileEntry, asked: Asked
    ) -> tuple[Item, Sequence[Advice]]:
        metric = self._metric(entry)
        raw = {key: one for key, one in entry.raw.items() if key not in _NAMES}
        try:
            settings, end = parted(raw, asked.wall_s)
            named = entry.raw["database"]
            wish = Wish(named, metric, None, end, keeps_end=True, reach=entry.reach)
            if entry.reach == HERE:
                return self._drafts.of_file(held, asked, wish, self._databases[named], settings)
            grounds = self._grounds(named, metric, without=wish.id)
            return WideDrafts(self._drafts).of_file(held, asked, wish, settings, grounds)
        except InvalidSettings as error:
            faults = [_placed(fault, entry.place, metric) for fault in error.faults]
            raise InvalidSettings(faults) from None

    def _metric(self, entry: FileEntry) -> str:
        """Its name, where both names are right."""
        faults = list(self._database_faults(entry))
        try:
            metric = parse_metric(entry.raw["metric"])
        except InvalidName as error:
            faults.append(Fault(f"{entry.place}.metric", str(error)))
        if faults:
            raise InvalidSettings(faults)
        return metric

    def _database_faults(self, entry: FileEntry) -> Iterator[Fault]:
        named, place = entry.raw["database"], f"{entry.place}.database"
        if entry.reach == HERE and named not in self._databases:
            known = ", ".join(sorted(self._databases)) or "none"
            yield Fault(place, f"no database {named!r}; configured: {known}")
        elif entry.reach != HERE and named != ANY:
            try:
                parse_database(named)
            except InvalidName as error:
                yield Fault(place, str(error))

    def check(
        self, held: Holdings, changes: Sequence[ItemChange], asked: Asked
    ) -> Sequence[ItemChange]:
        """No database has too many metrics by it."""
        after = [one.after for one in changes if one.after is not None and one.after.kind == METRIC]
        items = dict(held.items)
        items |= {name_of(item): item for item in after}
        standing = [item for item in items.values() if stands(item, asked.wall_s)]
        for name in sorted({parted_id(item.id)[0] for item in after if item.reach == HERE}):
            count = len(self._metrics(name, standing))
            if count > MAX_METRICS_PER_DATABASE:
                message = f"{name} would have {count} metrics, at most {MAX_METRICS_PER_DATABASE}"
                raise InvalidSettings([Fault("metrics", message)])
        return ()

    def _metrics(self, database: str, items: Sequence[Item]) -> set[str]:
        measured = self._databases.get(database)
        found = set(measured.plan.raw_metrics) if measured is not None else set[str]()
        for item in items:
            if item.kind != METRIC or item.reach != HERE:
                continue
            of, metric = parted_id(item.id)
            if of == database:
                said: Mapping[str, Any] = item.value or {}
                (found.discard if said.get("removed") else found.add)(metric)
        return found


def _placed(fault: Fault, place: str, metric: str) -> Fault:
    """Where it is in the file."""
    if fault.place == metric or fault.place.startswith((f"{metric}.", f"{metric}[")):
        return fault._replace(place=f"{place}{fault.place.removeprefix(metric)}")
    return fault._replace(place=f"{place}.{fault.place}")
