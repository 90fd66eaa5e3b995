"""Metrics that reach beyond this agent: patches of each agent's own settings.

operators ──WideMetrics──► draft ──► the fleet's log, or that of a shard ──follow──► MetricKeeper

Each agent validates what it receives. If the patched settings are not valid, or if a query, an
address or a command may not come from outside, it keeps what it had and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.base.advice import Advice, Severity
from headgate.base.declared import read_table
from headgate.base.names import parse_database, parse_metric
from headgate.base.overlay import Overlay
from headgate.base.redaction import hidden_faults, revealed
from headgate.changes.file_format import FileEntry
from headgate.changes.files import UNSET, with_unset
from headgate.changes.items import Make, put
from headgate.changes.items import known as known_item
from headgate.changes.model import Change, Edit
from headgate.changes.reach import HERE, Reach
from headgate.changes.state import ChangeMade, Draft, LogState, ends_at
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.drafts import (
    ANY,
    MAX_METRICS_PER_DATABASE,
    METRIC,
    Ground,
    MetricBefore,
    MetricDatabase,
    MetricDrafts,
    NoSuchMetric,
    Wish,
    check_revision,
    end_of,
    may_admit_more,
    n_of,
    on_ground,
    parted_id,
    patched,
    settings_in,
    wish_of,
    with_end,
)
from headgate.metrics.service import Drafted, MetricKeeper, MetricVerbs, Verb
from headgate.metrics.settings import METRIC_SETTINGS, unit_faults, with_units
from headgate.rules.drafts import ChangeAuthor

MAY_BE = "may be looser than the current settings"
"""A threshold that cannot be compared with those."""


class WideMetrics(MetricVerbs[ChangeMade]):
    """For one change: to a log, with a reach. What is put adds the metric where there is none, and
    patches it where there is; a patch is for wherever there is such a metric."""

    def __init__(self, book: MetricKeeper, make: Make, reach: Reach) -> None:
        super().__init__(make, reach)
        self._book = book
        self._drafts = WideDrafts(book.drafts)

    @property
    def wall_s(self) -> float:
        return self._book.wall_s

    def _draft(self, verb: Verb, wish: Wish, settings: dict[str, Any]) -> Drafted:
        if wish.database != ANY:
            parse_database(wish.database)
        if verb is Verb.REMOVE:
            return lambda held, asked: self._drafts.remove(held, asked, wish)
        if verb is Verb.REVERT:
            return lambda held, asked: self._drafts.revert(held, asked, wish)
        grounds = self._book.grounds(wish.database, wish.metric, without=wish.id)
        return lambda held, asked: self._drafts.set(
            held, asked, wish, settings, grounds, whole=verb is Verb.PUT
        )

    async def _made(self, verb: Verb, wish: Wish, made: ChangeMade) -> ChangeMade:
        return made


@dataclass(frozen=True, slots=True)
class WideDrafts:
    drafts: MetricDrafts

    def set(
        self,
        held: LogState,
        asked: ChangeAuthor,
        wish: Wish,
        given: Mapping[str, Any],
        grounds: Sequence[tuple[MetricDatabase, Ground]],
        *,
        whole: bool,
    ) -> Draft:
        """`grounds`: what it would lie on at this agent. `whole`: in place of what it said before,
        and a metric where there is none; else that is patched."""
        before = known_item(held, METRIC, wish.id, wish.reach)
        known = MetricBefore(
            before if before is not None and held.stands(before, asked.wall_s) else None,
            None,
            n_of(before),
        )
        was = (known.item.value or {}) if known.item is not None else {}
        beneath = next((ground.raw for _, ground in grounds if ground.raw), {})
        said = {} if whole else with_units(wish.metric, was.get("settings") or {}, beneath)
        settings = _merged(said, given, keep_none=not whole)
        adds = whole or bool(was.get("adds"))
        if not settings:
            raise InvalidSettings([Fault(wish.metric, "nothing to set: give a setting")])
        with wish.checked():
            looser, told = self._checked(wish, settings, grounds, adds=adds)
        check_revision(wish, known)
        end_s, ends = end_of(wish, known.item, looser, asked, MAY_BE)
        value = {"settings": settings, **({"adds": True} if adds else {})}
        change = put(held, METRIC, wish.id, with_end(value, end_s), asked, wish.reach)
        return Draft("metric.set", [change], (*told, *ends))

    def remove(self, held: LogState, asked: ChangeAuthor, wish: Wish) -> Draft:
        before = known_item(held, METRIC, wish.id, wish.reach)
        with wish.checked():
            check_revision(wish, MetricBefore(before, None, n_of(before)))
        end_s, ends = end_of(wish, None, True, asked, MAY_BE)
        value = with_end({"removed": True}, end_s)
        return Draft("metric.remove", [put(held, METRIC, wish.id, value, asked, wish.reach)], ends)

    def revert(self, held: LogState, asked: ChangeAuthor, wish: Wish) -> Draft:
        before = known_item(held, METRIC, wish.id, wish.reach)
        if before is None or not held.stands(before, asked.wall_s):
            raise NoSuchMetric(f"{wish.id} is not set")
        check_revision(wish, MetricBefore(before, None, before.n))
        return Draft("metric.revert", [put(held, METRIC, wish.id, None, asked, wish.reach)])

    def _checked(
        self,
        wish: Wish,
        settings: Mapping[str, Any],
        grounds: Sequence[tuple[MetricDatabase, Ground]],
        *,
        adds: bool,
    ) -> tuple[bool, list[Advice]]:
        """Whether it is looser than what lies beneath, as far as that is known; and with what it
        was validated. Other agents may have other settings, and validate it themselves."""
        valid, invalid, looser = list[str](), dict[str, InvalidSettings](), False
        for database, ground in grounds:
            if ground.raw is None and not adds:
                continue
            name = f"{database.plan.name}/{wish.metric}"
            try:
                raw = patched(ground.raw or {}, settings)
                entry = self.drafts.validated(database, wish.metric, raw, ground.raw or {})
            except InvalidSettings as error:
                invalid[name] = error
                continue
            valid.append(name)
            looser = looser or may_admit_more(
                entry, on_ground(database.plan, wish.metric, ground, 0)
            )
        if invalid and not valid:
            raise next(iter(invalid.values()))
        if not valid:
            given = {key: value for key, value in settings.items() if value is not None}
            values, faults = read_table(given, METRIC_SETTINGS, place=wish.metric)
            if not faults:
                faults = unit_faults(values, BUILTINS.get(wish.metric), wish.metric)
            faults = [*faults, *hidden_faults(given), *self.drafts.source_faults(given)]
            if faults:
                raise InvalidSettings(faults)
            return True, [_told(wish, "validated", _ALONE.format(wish.metric))]
        told = [_told(wish, "validated", f"validated with {', '.join(valid)} of this agent")]
        told += [_told(wish, "invalid", f"not valid for {n}: {why}") for n, why in invalid.items()]
        return looser, told


_ALONE = (
    "this agent has no {} that it would change, so only the settings themselves were validated. "
    "An agent for which they are not valid keeps its own, and reports it in `headgate fleet status`"
)


def _merged(
    before: Mapping[str, Any], given: Mapping[str, Any], *, keep_none: bool
) -> dict[str, Any]:
    """A patch on a patch: what is given as None still takes out what lies beneath."""
    merged = dict(before)
    for key, value in given.items():
        known = merged.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            merged[key] = _merged(known, value, keep_none=keep_none)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if keep_none or value is not None}


def _told(wish: Wish, code: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, wish.id, message)


# --- in a file of changes ------------------------------------------------------------------
# Metrics in a file of changes.   FileEntry + LogState ──MetricRoom──► Change
#
# [[metrics]]                      at this agent: all settings of the metric
# database = "main"
# metric = "lag"
# threshold = "10s"                or removed = true
# expires_at = "never"             or for = "2h"; an end that is not said stays as it is
#
# [[metrics]]                      with a reach: a patch of what each agent has
# database = "*"                   each of an agent's
# metric = "lag"
# reach = "shard:commerce/*"
# threshold = "10s"
# unset = ["hold_s"]               as by default again
# adds = true                      a metric where there is none, too


_NAMES = ("database", "metric")


class MetricRoom:
    """Implements changes/files.Room, for both logs."""

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
        before = known_item(held, METRIC, wish.id, wish.reach)
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
            said = settings_in(before) if before is not None else None
            given = with_unset(revealed(given, said or {}), unset)
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
            if not added:
                continue
            count = len((self._book.database(database).entries.keys() - metrics) | added)
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


def _placed(fault: Fault, place: str, metric: str) -> Fault:
    """Where it is in the file."""
    if fault.place == metric or fault.place.startswith((f"{metric}.", f"{metric}[")):
        return fault._replace(place=f"{place}{fault.place.removeprefix(metric)}")
    return fault._replace(place=f"{place}.{fault.place}")
