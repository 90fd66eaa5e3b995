"""Metrics, as drafts of changes.   a request + LogState ──MetricDrafts──► Draft

The file says what there is; changes of the logs are on top of it, until they are reverted or end. A
change that is looser than what is beneath ends after an hour unless it has another end. A change
that reaches beyond this agent is a patch; one at this agent is complete, and on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from headgate.base.advice import Advice, Severity
from headgate.base.declared import iso, parse_date_time, parse_for
from headgate.base.ports import ProbeSource
from headgate.base.redaction import hidden_faults, revealed
from headgate.changes.items import put
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import HERE, Place, Reach
from headgate.changes.state import Draft, LogState, ends_at
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings
from headgate.metrics.advice import lint_metric
from headgate.metrics.model import Engine, MetricSpec, is_looser
from headgate.metrics.samples import Instant
from headgate.metrics.settings import parse_metric_settings, with_units
from headgate.rules.drafts import ChangeAuthor
from headgate.shard.settings import plugin_faults

log = structlog.get_logger()

Settings = Mapping[str, Any]
MAX_METRICS_PER_DATABASE = 64
_PLACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sql": ("sql",), "url": ("url", "pointer", "series"), "command": ("command",)}
)
"""Settings for the source of a number, by the source that they belong to."""
_FILE_ONLY = MappingProxyType(
    {
        "sql": "a query reads whatever the agent's database user may read "
        "(allow_runtime_sql = true lifts this)",
        "url": "the agent reaches addresses that its callers do not "
        "(allow_runtime_urls = true lifts this)",
        "command": "a command runs as the agent's user (allow_runtime_commands = true lifts this)",
    }
)
METRIC = ChangeKind.METRIC
ENDS = ("for", "expires_at")
"""What a change may have besides the settings."""
NEVER = "never"
ANY = "*"
"""In place of a database: each one of an agent. With a reach beyond this agent alone."""
LOOSER_FOR_S = 3600.0
"""A change that is looser than the file ends after this, unless it gives an end."""
MAX_FOR_S = 3650 * 86_400.0


class NoSuchMetric(HeadgateError, LookupError):
    """A database or metric that is not configured here."""


@dataclass(frozen=True, slots=True)
class DatabasePlan:
    """One database as assemble.py hands it over."""

    name: str
    engine: Engine
    raw_metrics: Mapping[str, Mapping[str, Any]]
    open_probes: Callable[[], ProbeSource]
    default_metrics: tuple[str, ...] | None = None
    connection: object = None
    """Compared on reload: an equal one keeps its probes and connections."""
    place: Place = Place()  # noqa: RUF009 -- frozen
    """Where it is: decides which changes apply to it."""
    beats_every_s: float = 0.0
    """How often its heartbeat is written; 0 for never."""

    def in_default(self, metric: str) -> bool:
        """Whether this metric applies to a check that names none."""
        return not self.default_metrics or metric in self.default_metrics


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """One metric as it is set; a disabled one is neither probed nor used."""

    spec: MetricSpec
    raw: Mapping[str, Any]
    origin: str
    revision: int
    """Of the log: that of its last change, 0 for none."""
    advice: tuple[Advice, ...]
    expires_at: float | None = None
    """Wall-clock seconds: then the file's settings count again. None: it stays."""

    @property
    def enabled(self) -> bool:
        return bool(self.raw.get("enabled", True))


@dataclass(frozen=True, slots=True)
class Ground:
    """What a change at this agent lies on: the file's settings, and what reaches further."""

    raw: Mapping[str, Any] | None
    """None: there is no such metric."""
    origin: str = "file"
    """Else the reach of the last that changed it."""
    expires_at: float | None = None
    """When some of it ends."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """By the id of a change: why it is not in force here."""


@dataclass(slots=True)
class MetricDatabase:
    """A database, and what of it is in force."""

    plan: DatabasePlan
    probes: ProbeSource
    entries: dict[str, MetricEntry] = field(default_factory=dict)
    grounds: dict[str, Ground] = field(default_factory=dict)
    """Metrics that have a change that reaches beyond this agent."""

    def ground(self, metric: str) -> Ground:
        return self.grounds.get(metric) or Ground(self.plan.raw_metrics.get(metric))

    def entry(self, metric: str) -> MetricEntry:
        if metric not in self.entries:
            raise self.lacks(metric)
        return self.entries[metric]

    def lacks(self, metric: str) -> NoSuchMetric:
        names = ", ".join(sorted(self.entries)) or "none"
        return NoSuchMetric(f"no metric {metric!r} on {self.plan.name}; configured: {names}")

    def removed(self) -> list[str]:
        """Metrics that the file sets, and that were removed while running."""
        return [metric for metric in self.plan.raw_metrics if metric not in self.entries]


@dataclass(frozen=True, slots=True)
class Override:
    """What a log says of a metric."""

    settings: Mapping[str, Any] | None
    """None: it is removed."""
    n: int
    expires_at: float | None
    ends_mono_s: float
    """It has also ended by this: setting the wall clock back does not lengthen it."""
    item_id: str
    reach: Reach
    adds: bool = False
    """For one that reaches further: also if there is no such metric."""

    @property
    def name(self) -> str:
        return parted_id(self.item_id)[1]

    def applies_to(self, place: Place) -> bool:
        return self.reach.meets(place) and parted_id(self.item_id)[0] in (ANY, place.database)

    def has_ended(self, now: Instant) -> bool:
        if self.expires_at is None:
            return False
        return now.wall_s >= self.expires_at or now.mono_s >= self.ends_mono_s


class MetricBefore(NamedTuple):
    """A metric as a log has it, for a draft."""

    item: Change | None
    """Set, and not ended."""
    entry: MetricEntry | None
    """What that puts in force; None: nothing."""
    n: int

    @property
    def shown(self) -> dict[str, Any] | None:
        return None if self.entry is None else dict(self.entry.raw)


class Wish(NamedTuple):
    """What an operator wants of a metric."""

    database: str
    metric: str
    expect: int | None
    """Only if it has that revision."""
    expires_at: float | None = None
    """None: no end is given. math.inf: it has none."""
    keeps_end: bool = False
    """Without a new end, that of the change before stays."""
    reach: Reach = HERE
    faults: tuple[Fault, ...] = ()
    """Faults of the end: shown with those of the settings."""

    @property
    def id(self) -> str:
        return override_id(self.database, self.metric, self.reach)

    @contextmanager
    def checked(self) -> Iterator[None]:
        try:
            yield
        except InvalidSettings as error:
            raise InvalidSettings([*self.faults, *error.faults]) from None
        if self.faults:
            raise InvalidSettings(list(self.faults))


WantedSettings = Callable[[MetricBefore], Mapping[str, Any]]
"""Computed from what is known when the change is drafted."""


@dataclass(frozen=True, slots=True)
class MetricDrafts:
    runtime_sources: Collection[str]
    """Of `sql`, `url` and `command`, those that operators may set while the agent runs."""
    rollups: Collection[str]

    def set(
        self,
        held: LogState,
        asked: ChangeAuthor,
        wish: Wish,
        database: MetricDatabase,
        settings: WantedSettings,
    ) -> Draft:
        known = known_of(held, database, wish, asked)
        raw = settings(known)
        with wish.checked():
            entry = self.validated(database, wish.metric, raw, known.shown or {})
        check_revision(wish, known)
        beneath = laid_over(database, wish.metric, None, 0)
        end_s, told = end_of(wish, known.item, _loosens(entry, beneath, known), asked)
        change = put(held, METRIC, wish.id, with_end({"settings": dict(raw)}, end_s), asked)
        return Draft("metric.set", [change], told, shown=_audit(wish, known, raw))

    def remove(
        self, held: LogState, asked: ChangeAuthor, wish: Wish, database: MetricDatabase
    ) -> Draft:
        known = known_of(held, database, wish, asked)
        with wish.checked():
            there(wish, database, known)
        check_revision(wish, known)
        beneath = laid_over(database, wish.metric, None, 0)
        told, value = tuple[Advice, ...](), None
        if beneath is not None:  # Else there is nothing left to remove.
            end_s, told = end_of(wish, known.item, _loosens(None, beneath, known), asked)
            value = with_end({"removed": True}, end_s)
        change = put(held, METRIC, wish.id, value, asked)
        return Draft("metric.remove", [change], told, shown=_audit(wish, known, None))

    def revert(
        self, held: LogState, asked: ChangeAuthor, wish: Wish, database: MetricDatabase
    ) -> Draft:
        known = known_of(held, database, wish, asked)
        if known.item is None:
            there(wish, database, known)
            return Draft("metric.revert")  # Nothing lies on it.
        check_revision(wish, known)
        change = put(held, METRIC, wish.id, None, asked)
        shown = _audit(wish, known, database.ground(wish.metric).raw)
        return Draft("metric.revert", [change], shown=shown)

    def of_file(
        self,
        held: LogState,
        asked: ChangeAuthor,
        wish: Wish,
        database: MetricDatabase,
        settings: Mapping[str, Any],
    ) -> tuple[Change, Sequence[Advice]]:
        """What a file of changes says of a metric: settings, with what is shown in the place of
        secrets, or `removed`."""
        if "removed" not in settings:

            def whole(known: MetricBefore) -> Mapping[str, Any]:
                before = None if known.item is None else settings_in(known.item)
                return revealed(settings, before or {})

            draft = self.set(held, asked, wish, database, whole)
            (change,) = draft.changes
            told: Sequence[Advice] = draft.advice
        else:
            beneath = laid_over(database, wish.metric, None, 0)
            if faults := [*wish.faults, *_removal_faults(settings, beneath)]:
                raise InvalidSettings(faults)
            known = known_of(held, database, wish, asked)
            end_s, told = end_of(wish, known.item, _loosens(None, beneath, known), asked)
            change = put(held, METRIC, wish.id, with_end({"removed": True}, end_s), asked)
        assert change.after is not None
        return change.after, told

    def validated(
        self,
        database: MetricDatabase,
        metric: str,
        raw: Mapping[str, Any],
        before: Mapping[str, Any],
    ) -> MetricEntry:
        """`before`: what it was, or lies on."""
        file = database.plan.raw_metrics.get(metric, {})
        faults = [*hidden_faults(raw), *self.source_faults(raw, before, file)]
        try:
            entry = _entry(database.plan, metric, raw, "runtime", 0)
        except InvalidSettings as error:
            told = {f"{metric}.{fault.place}" for fault in faults}
            faults += [fault for fault in error.faults if fault.place not in told]
            raise InvalidSettings(faults) from None
        if faults:
            raise InvalidSettings(faults)
        if metric not in database.entries and len(database.entries) >= MAX_METRICS_PER_DATABASE:
            message = f"{database.plan.name} has {MAX_METRICS_PER_DATABASE} metrics, the maximum"
            raise InvalidSettings([Fault(metric, message)])
        errors = [a for a in entry.advice if a.severity is Severity.ERROR]
        if errors:
            raise InvalidSettings([Fault(a.place, a.message) for a in errors])
        if missing := plugin_faults(entry.spec.rollup, self.rollups, metric):
            raise InvalidSettings(missing)
        database.probes.probe_for(entry.spec)
        return entry

    def source_faults(self, raw: Mapping[str, Any], *before: Mapping[str, Any]) -> list[Fault]:
        """What reaches beyond the agent comes from the file. What is there already may stay
        while the rest changes."""
        return [
            Fault(source, f"may only be set in the settings file: {_FILE_ONLY[source]}")
            for source, keys in _PLACES.items()
            if raw.get(source) is not None
            and source not in self.runtime_sources
            and not any(all(raw.get(key) == was.get(key) for key in keys) for was in before)
        ]

    # --- what reaches beyond this agent ------------------------------------------------------

    def ground(
        self,
        database: MetricDatabase,
        metric: str,
        layers: Iterable[Override],
        last_good: Mapping[str, Mapping[str, Any]],
    ) -> Ground:
        """What the file and these say, each a patch of what lies beneath. Of one that is not valid
        here, what was in force of it stays: `last_good`, by the id of the change."""
        ground = Ground(database.plan.raw_metrics.get(metric))
        for one in layers:
            if one.settings is None:
                ground = replace(ground, raw=None, origin=str(one.reach))
            elif ground.raw is not None or one.adds:
                ground = self._patched(database, ground, one, last_good)
            else:
                continue
            ends = [end for end in (ground.expires_at, one.expires_at) if end is not None]
            ground = replace(ground, expires_at=min(ends, default=None))
        return ground

    def _patched(
        self,
        database: MetricDatabase,
        ground: Ground,
        one: Override,
        last_good: Mapping[str, Mapping[str, Any]],
    ) -> Ground:
        beneath, faults = ground.raw or {}, dict(ground.faults)
        for settings in (one.settings, last_good.get(one.item_id)):
            if settings is None:
                continue
            raw = with_units(one.name, patched(beneath, settings))
            try:
                self.validated(database, one.name, raw, beneath)
            except InvalidSettings as error:
                faults.setdefault(one.item_id, str(error))
            else:
                return replace(ground, raw=raw, origin=str(one.reach), faults=faults)
        return replace(ground, faults=faults)


def _removal_faults(settings: Mapping[str, Any], beneath: MetricEntry | None) -> list[Fault]:
    if settings["removed"] is not True:
        return [Fault("removed", "must be true; leave it out to keep the metric")]
    if len(settings) > 1:
        return [Fault("removed", "allows no settings: give those, or removed = true")]
    if beneath is None:
        return [Fault("removed", "the settings file has no such metric: leave the entry out")]
    return []


def override_id(database: str, metric: str, reach: Reach) -> str:
    name = f"{database}/{metric}"
    return name if reach == HERE else f"{name}@{reach}"


def parted_id(item_id: str) -> tuple[str, str]:
    """Its database and its metric, whose names have no `@`."""
    database, _, metric = item_id.partition("@")[0].rpartition("/")
    return database, metric


def is_named_by_its_reach(item: Change) -> bool:
    return item.id == override_id(*parted_id(item.id), item.reach)


def n_of(item: Change | None) -> int:
    return 0 if item is None else item.n


def known_of(
    held: LogState, database: MetricDatabase, wish: Wish, asked: ChangeAuthor
) -> MetricBefore:
    """Of the log, and not of what is in force: another change may be on its way there."""
    item = held.items.get((METRIC, wish.id))
    n = n_of(item)
    if item is None or not held.stands(item, asked.wall_s):
        return MetricBefore(None, laid_over(database, wish.metric, None, n), n)
    change: Override | None = None
    try:
        change = change_of(item)
    except (KeyError, TypeError, ValueError) as error:
        log.error("metric.kept_change_rejected", metric=item.id, fault=repr(error))
    return MetricBefore(item, laid_over(database, wish.metric, change, n), n)


def there(wish: Wish, database: MetricDatabase, known: MetricBefore) -> MetricEntry:
    if known.entry is not None:
        return known.entry
    raise database.lacks(wish.metric)


def laid_over(
    database: MetricDatabase, metric: str, change: Override | None, revision: int
) -> MetricEntry | None:
    """The change of this agent over what lies beneath; None: there is no such metric."""
    if change is not None and change.settings is None:
        return None
    if change is not None and change.settings is not None:
        try:
            entry = _entry(database.plan, metric, change.settings, "runtime", revision)
        except InvalidSettings as error:
            # Kept by an older version, or for another engine: say so and go on with the file.
            log.error("metric.kept_change_rejected", database=database.plan.name, fault=str(error))
        else:
            return replace(entry, expires_at=change.expires_at)
    return on_ground(database.plan, metric, database.ground(metric), revision)


def on_ground(plan: DatabasePlan, metric: str, ground: Ground, revision: int) -> MetricEntry | None:
    if ground.raw is None:
        return None
    entry = _entry(plan, metric, ground.raw, ground.origin, revision)
    return replace(entry, expires_at=ground.expires_at)


def change_of(item: Change, ends_mono_s: float = math.inf) -> Override:
    kept = item.value or {}
    if kept.get("removed") is True:
        settings = None
    else:
        settings = with_units(parted_id(item.id)[1], kept["settings"])
    adds = item.reach != HERE and kept.get("adds") is True
    return Override(settings, item.n, ends_at(item), ends_mono_s, item.id, item.reach, adds)


def settings_in(item: Change) -> dict[str, Any] | None:
    settings = (item.value or {}).get("settings")
    if not isinstance(settings, Mapping):
        return None
    return with_units(parted_id(item.id)[1], settings)


def _audit(
    wish: Wish, known: MetricBefore, after: Mapping[str, Any] | None
) -> dict[tuple[str, str], tuple[Any, Any]]:
    """What the audit shows: the settings."""
    return {(METRIC, wish.id): (known.shown, None if after is None else dict(after))}


def check_revision(wish: Wish, known: MetricBefore) -> None:
    if wish.expect is not None and wish.expect != known.n:
        message = (
            f"{wish.id} is at revision {known.n}, not {wish.expect}: "
            "it was changed meanwhile; look again and repeat"
        )
        raise Conflict(message)


def patched(raw: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """As RFC 7396 has it: tables are merged, None takes out."""
    merged = dict(raw)
    for key, value in patch.items():
        if isinstance(value, Mapping):
            known = raw.get(key)
            merged[key] = patched(known if isinstance(known, Mapping) else {}, value)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


def _entry(
    plan: DatabasePlan, metric: str, raw: Mapping[str, Any], origin: str, revision: int
) -> MetricEntry:
    spec = parse_metric_settings(metric, raw, plan.engine, place=metric)
    advice = lint_metric(spec, raw, plan.engine, place=metric)
    return MetricEntry(spec, raw, origin, revision, tuple(advice))


# --- when a change ends --------------------------------------------------------------------


def wish_of(wish: Wish, raw: Mapping[str, Any], wall_s: float) -> tuple[Wish, dict[str, Any]]:
    """With when the change ends, and the settings."""
    settings = {key: value for key, value in raw.items() if key not in ENDS}
    given = [key for key in ENDS if key in raw]
    if len(given) > 1:
        return wish._replace(faults=(Fault("for", "give for or expires_at, not both"),)), settings
    try:
        ends = [_end(key, raw[key], wall_s) for key in given]
    except ValueError as error:
        return wish._replace(faults=(Fault(given[0], str(error)),)), settings
    return wish._replace(expires_at=ends[0] if ends else None), settings


def _end(key: str, given: object, wall_s: float) -> float:
    """Wall-clock seconds, math.inf for never; ValueError says what it should have been."""
    if given is None or given == NEVER:
        return math.inf
    at = wall_s + parse_for(given) if key == "for" else parse_date_time(given)
    if at <= wall_s:
        raise ValueError(f"is {given!r}, which is in the past")
    if at > wall_s + MAX_FOR_S:
        raise ValueError(f"is {given!r}, at most {MAX_FOR_S / 86_400:g}d; {NEVER} for no end")
    return at


def end_of(
    wish: Wish,
    before: Change | None,
    looser: bool,
    asked: ChangeAuthor,
    why: str = "is looser than the settings file",
) -> tuple[float | None, tuple[Advice, ...]]:
    """When a change ends that lies over another of the log (`before`), and advice on that. One that
    is looser than what it goes back to ends after an hour; `why`: than what, or perhaps."""
    if wish.expires_at is not None:
        return (None if wish.expires_at == math.inf else wish.expires_at), ()
    was = None if before is None else ends_at(before)
    if wish.keeps_end and was is not None:
        return was, (
            _ends(wish, was, "as before. Give another end (for: 2h), or none (for: never)"),
        )
    if not looser:
        return None, ()
    end_s = asked.wall_s + LOOSER_FOR_S
    message = (
        f"after {LOOSER_FOR_S / 3600:g} h: it {why}, and no end was given. "
        "Give one (for: 2h), or keep it (for: never)"
    )
    return end_s, (_ends(wish, end_s, message),)


def _ends(wish: Wish, end_s: float, message: str) -> Advice:
    told = f"ends at {iso(math.ceil(end_s))}, {message}"
    return Advice(Severity.WARNING, "ends", wish.metric, told)


def _loosens(entry: MetricEntry | None, beneath: MetricEntry | None, known: MetricBefore) -> bool:
    """To end a change that is stricter than an endless one would be a loosening: that one stays."""
    endless = known.item is not None and ends_at(known.item) is None
    return may_admit_more(entry, beneath) and (not endless or may_admit_more(entry, known.entry))


def may_admit_more(entry: MetricEntry | None, than: MetricEntry | None) -> bool:
    """Whether it may admit what the other one rejects."""
    if than is None or not than.enabled:
        return False
    return entry is None or not entry.enabled or is_looser(entry.spec, than.spec)


def with_end(value: dict[str, Any], end_s: float | None) -> dict[str, Any]:
    return value if end_s is None else {**value, "expires_at": iso(math.ceil(end_s))}
