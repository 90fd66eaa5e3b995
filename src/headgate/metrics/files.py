"""Metrics in a file of changes.   FileEntry + LogState ──MetricRoom──► Change

[[metrics]]                      at this agent: all settings of the metric
database = "main"
metric = "lag"
threshold = "10s"                or removed = true
expires_at = "never"             or for = "2h"; an end that is not said stays as it is

[[metrics]]                      with a reach: a patch of what each agent has
database = "*"                   each of an agent's
metric = "lag"
reach = "shard:commerce/*"
threshold = "10s"
unset = ["hold_s"]               as by default again
adds = true                      a metric where there is none, too
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.base.names import parse_database, parse_metric
from headgate.base.overlay import Overlay
from headgate.base.redaction import revealed
from headgate.changes.file_format import FileEntry
from headgate.changes.files import UNSET, with_unset
from headgate.changes.items import known
from headgate.changes.model import Change, Edit
from headgate.changes.reach import HERE
from headgate.changes.state import LogState, ends_at
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.metrics.drafts import (
    ANY,
    MAX_METRICS_PER_DATABASE,
    METRIC,
    MetricDatabase,
    Wish,
    parted_id,
    settings_in,
    wish_of,
)
from headgate.metrics.lint import Advice
from headgate.metrics.reaching import WideDrafts
from headgate.metrics.service import MetricKeeper
from headgate.rules.drafts import ChangeAuthor

_NAMES = ("database", "metric")


class MetricRoom:
    """Implements changefiles.Room, for both logs."""

    def __init__(self, book: MetricKeeper) -> None:
        self._book = book
        self._wide = WideDrafts(book.drafts)

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        database, metric = _named(entry)
        raw = {key: one for key, one in entry.raw.items() if key not in _NAMES}
        try:
            wish = Wish(database, metric, None, keeps_end=True, reach=entry.reach)
            wish, settings = wish_of(wish, raw, asked.wall_s)
            if entry.reach != HERE:
                return self._drafted_wide(held, asked, wish, settings)
            measured = self._measured(entry, metric)
            return self._book.drafts.of_file(held, asked, wish, measured, settings)
        except InvalidSettings as error:
            faults = [_placed(fault, entry.place, metric) for fault in error.faults]
            raise InvalidSettings(faults) from None

    def _measured(self, entry: FileEntry, metric: str) -> MetricDatabase:
        named = entry.raw["database"]
        for database, _ in self._book.grounds(named, metric, without="") if named != ANY else ():
            return database
        configured = ", ".join(sorted(plan.name for plan in self._book.databases())) or "none"
        message = f"no database {named!r}; configured: {configured}"
        raise InvalidSettings([Fault("database", message)])

    def _drafted_wide(
        self, held: LogState, asked: ChangeAuthor, wish: Wish, settings: Mapping[str, Any]
    ) -> tuple[Change, Sequence[Advice]]:
        before = known(held, METRIC, wish.id, wish.reach)
        if before is None or not held.stands(before, asked.wall_s):
            before = None
        elif wish.expires_at is None:
            end = ends_at(before)
            wish = wish._replace(expires_at=math.inf if end is None else end)
        if "removed" in settings:
            if settings != {"removed": True}:
                message = "must be true, and allows no settings: give those, or removed = true"
                raise InvalidSettings([Fault("removed", message)])
            draft = self._wide.remove(held, asked, wish)
        else:
            adds, unset, given = _besides(settings)
            given = with_unset(revealed(given, _settings_of(before)), unset)
            # It is all that is said of it: nothing of the change before is patched.
            alone = replace(held, items=Overlay())
            grounds = self._book.grounds(wish.database, wish.metric, without=wish.id)
            draft = self._wide.set(alone, asked, wish, given, grounds, whole=adds)
        (change,) = draft.changes
        assert change.after is not None
        return change.after, draft.advice

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        """No database of this agent has too many metrics by it. What reaches further, each agent
        validates itself."""
        databases: dict[str, dict[str, bool]] = {}
        for item in (one.after for one in changes):
            if item is not None and item.kind == METRIC and item.reach == HERE:
                database, metric = parted_id(item.id)
                databases.setdefault(database, {})[metric] = settings_in(item) is not None
        for database, metrics in databases.items():
            added = {metric for metric, is_set in metrics.items() if is_set}
            count = len((self._book.entries(database).keys() - metrics) | added) if added else 0
            if count > MAX_METRICS_PER_DATABASE:
                message = f"{database} would have {count}, at most {MAX_METRICS_PER_DATABASE}"
                raise InvalidSettings([Fault("metrics", message)])
        return ()


def _named(entry: FileEntry) -> tuple[str, str]:
    faults, names = [], list[str]()
    for key, parse in (("database", parse_database), ("metric", parse_metric)):
        given = entry.raw[key]
        try:
            names.append(given if key == "database" and given == ANY else parse(given))
        except InvalidName as error:
            faults.append(Fault(f"{entry.place}.{key}", str(error)))
    if faults:
        raise InvalidSettings(faults)
    return names[0], names[1]


def _besides(settings: Mapping[str, Any]) -> tuple[bool, list[str], dict[str, Any]]:
    """`adds`, `unset`, and the settings."""
    adds, unset, faults = settings.get("adds", False), settings.get(UNSET, []), list[Fault]()
    if not isinstance(adds, bool):
        faults.append(Fault("adds", "must be true or false"))
    if not isinstance(unset, list | tuple) or not all(isinstance(one, str) for one in unset):
        faults.append(Fault(UNSET, "must be a list of settings"))
    if faults:
        raise InvalidSettings(faults)
    return adds, list(unset), {k: v for k, v in settings.items() if k not in ("adds", UNSET)}


def _settings_of(item: Change | None) -> Mapping[str, Any]:
    return (settings_in(item) or {}) if item is not None else {}


def _placed(fault: Fault, place: str, metric: str) -> Fault:
    """Where it is in the file."""
    if fault.place == metric or fault.place.startswith((f"{metric}.", f"{metric}[")):
        return fault._replace(place=f"{place}{fault.place.removeprefix(metric)}")
    return fault._replace(place=f"{place}.{fault.place}")
