"""The metrics in force: the settings file, and what was changed while running, on top.

API ──put, patch, …──► draft ──► log ──follow──► MetricBook ──► Sampler and Board

A change is validated first; a refused one leaves everything as it was. Runtime changes
survive restarts and reloads of the file until they are reverted to it, or end (R155).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from headgate.agent.board import Board
from headgate.agent.fleetcommit import Draft
from headgate.agent.ownitems import OURSELVES, Make, SetHere, put
from headgate.agent.ports import Clock, Probe, ProbeSource
from headgate.agent.ruledrafts import Asked
from headgate.agent.sampler import CLOSE_TIMEOUT_S, Sampler, take
from headgate.core.change_files import FileEntry
from headgate.core.fleet import Item, ItemChange, ItemKind
from headgate.core.fleet_change import FleetChange, Holdings, ItemName, ends_at, name_of, stands
from headgate.core.lint import Advice, Severity, lint_metric
from headgate.core.metric_redaction import hidden_faults, revealed
from headgate.core.metric_settings import parse_metric_settings
from headgate.core.metrics import Engine, MetricSpec, is_looser
from headgate.core.names import parse_metric
from headgate.core.reach import Place
from headgate.core.rollup import AGGREGATES
from headgate.core.rollup_settings import plugin_faults
from headgate.core.rule_times import parse_date_time, parse_for
from headgate.core.samples import Cause, Instant, Reading
from headgate.errors import (
    Conflict,
    Fault,
    HeadgateError,
    InvalidName,
    InvalidSettings,
    ProbeFailed,
    StoreUnavailable,
)

log = structlog.get_logger()

MAX_METRICS_PER_DATABASE = 64
_PLACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sql": ("sql",), "url": ("url", "pointer", "series"), "command": ("command",)}
)
"""Settings that say where a number comes from, by the source that they belong to."""
_FILE_ONLY = MappingProxyType(
    {
        "sql": "a query reads whatever the agent's database user may read "
        "(allow_runtime_sql = true lifts this)",
        "url": "the agent reaches addresses that its callers do not "
        "(allow_runtime_urls = true lifts this)",
        "command": "a command runs as the agent's user (allow_runtime_commands = true lifts this)",
    }
)
METRIC = ItemKind.METRIC
ENDS = ("for", "expires_at")
"""What a change may say beside the settings."""
NEVER = "never"
LOOSER_FOR_S = 3600.0
"""A change that is looser than the file ends after this, unless it says when."""
MAX_FOR_S = 3650 * 86_400.0
TICK_S = 1.0
RETRY_S = 30.0
"""Between two tries to take out of the log what has ended."""


class NoSuchMetric(HeadgateError, LookupError):
    """A database or metric that is not configured here."""


@dataclass(frozen=True, slots=True)
class DatabasePlan:
    """One database as main.py hands it over."""

    name: str
    engine: Engine
    raw_metrics: Mapping[str, Mapping[str, Any]]
    open_probes: Callable[[], ProbeSource]
    default_metrics: tuple[str, ...] | None = None
    connection: object = None
    """Compared on reload: an equal one keeps its probes and connections."""

    def in_default(self, metric: str) -> bool:
        """Whether a check that names no metric is judged by this one."""
        return not self.default_metrics or metric in self.default_metrics


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric as it is set; one that is disabled is neither probed nor judged."""

    spec: MetricSpec
    raw: Mapping[str, Any]
    origin: str
    revision: int
    """Of the log: that of its last change, 0 for none."""
    advice: tuple[Advice, ...]
    expires_at: float | None = None
    """Wall-clock seconds: then it is as in the file again. None: it stays."""

    @property
    def enabled(self) -> bool:
        return bool(self.raw.get("enabled", True))


@dataclass(slots=True)
class _Database:
    plan: DatabasePlan
    probes: ProbeSource
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that is valid: what it would put in place, and what a first probe said."""

    entry: Entry | None
    """None: the metric is removed."""
    reading: Reading | None
    expires_at: float | None = None
    """Of a removal, too."""
    advice: tuple[Advice, ...] = ()
    """On the change; on the settings, their entry has it."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """What the log says of a metric."""

    settings: Mapping[str, Any] | None
    """None: it is removed."""
    n: int
    expires_at: float | None
    ends_mono_s: float
    """By this it has ended, too: a wall clock that is set back does not lengthen it."""

    def has_ended(self, now: Instant) -> bool:
        if self.expires_at is None:
            return False
        return now.wall_s >= self.expires_at or now.mono_s >= self.ends_mono_s


class _Known(NamedTuple):
    """A metric as a log has it, for a draft."""

    item: Item | None
    """Set, and not ended."""
    entry: Entry | None
    """What that puts in force; None: nothing."""
    n: int

    @property
    def shown(self) -> dict[str, Any] | None:
        return None if self.entry is None else dict(self.entry.raw)


class _Asked(NamedTuple):
    """What somebody wants of a metric."""

    database: str
    metric: str
    expect: int | None
    """Only if it is of that revision."""
    expires_at: float | None = None
    """None: nothing is said of its end. math.inf: it has none."""

    @property
    def id(self) -> str:
        return f"{self.database}/{self.metric}"


class MetricBook:
    def __init__(
        self,
        board: Board,
        sampler: Sampler,
        clock: Clock,
        *,
        make: Make,
        runtime_sources: Collection[str] = (),
        rollups: Collection[str] = frozenset(AGGREGATES),
    ) -> None:
        """`runtime_sources`: of `sql`, `url` and `command`, those that operators may set while
        the agent runs; others come from the file alone."""
        self._board = board
        self._sampler = sampler
        self._clock = clock
        self._make = make
        self._runtime_sources = frozenset(runtime_sources)
        self._rollups = rollups
        self._databases: dict[str, _Database] = {}
        self._changes = SetHere(METRIC, lambda item: _change_of(item, clock.now()))
        """What the log holds on top of the file, by `database/metric`."""
        self._ended: dict[str, int] = {}
        """Changes (n) that have ended here, and that the log still has."""
        self._retry_mono_s = 0.0
        self._lock = asyncio.Lock()

    # --- reading ---------------------------------------------------------------------------

    def databases(self) -> list[DatabasePlan]:
        return [database.plan for database in self._databases.values()]

    def plan(self, database: str) -> DatabasePlan:
        return self._database(database).plan

    def source(self, database: str) -> ProbeSource:
        """Where its readings come from, just now."""
        return self._database(database).probes

    def entries(self, database: str) -> Mapping[str, Entry]:
        return MappingProxyType(self._database(database).entries)

    def entry(self, database: str, metric: str) -> Entry:
        try:
            return self._database(database).entries[metric]
        except KeyError:
            known = ", ".join(sorted(self._database(database).entries)) or "none"
            message = f"no metric {metric!r} on {database}; configured: {known}"
            raise NoSuchMetric(message) from None

    def removed(self, database: str) -> list[str]:
        """Metrics that the file sets, and that were removed while running."""
        held = self._database(database)
        return [metric for metric in held.plan.raw_metrics if metric not in held.entries]

    def expires_at(self, database: str, metric: str) -> float | None:
        """When what was changed while running ends, a removal too; None: never."""
        change = self._changes.values.get(f"{database}/{metric}")
        return None if change is None else change.expires_at

    # --- from the file and the log ---------------------------------------------------------

    async def adopt(self, plans: Iterable[DatabasePlan]) -> None:
        """Follow the settings file, with what the log is known to have on top."""
        retired: list[ProbeSource] = []
        try:
            async with self._lock:
                await self._follow_file({plan.name: plan for plan in plans}, retired)
        finally:
            for probes in retired:
                await _close_source(probes)

    async def follow(
        self,
        items: Sequence[Item],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What operators set, of the agent's own log alone."""
        if not own:
            return
        async with self._lock:
            for name in self._changes.follow(items, whole=whole):
                self._ended.pop(name, None)
                await self._settle(name)

    async def close(self) -> None:
        await self._sampler.close()
        for database in self._databases.values():
            await database.probes.close()

    async def _follow_file(
        self, wanted: Mapping[str, DatabasePlan], retired: list[ProbeSource]
    ) -> None:
        for name in [name for name in self._databases if name not in wanted]:
            retired.append(await self._shut_database(name))
        for plan in wanted.values():
            known = self._databases.get(plan.name)
            if known is None:
                known = self._databases[plan.name] = _Database(plan, plan.open_probes())
                self._board.open(plan.name, plan.default_metrics)
            await self._follow_plan(known, plan, retired)

    async def _follow_plan(
        self, known: _Database, plan: DatabasePlan, retired: list[ProbeSource]
    ) -> None:
        """What is still wanted never leaves the board: a check would be judged without it."""
        wanted = self._effective(plan)
        gone = [metric for metric in known.entries if metric not in wanted]
        if known.plan.connection != plan.connection:
            retired.append(await self._swap_probes(known, plan.open_probes()))
        known.plan = plan
        for entry in wanted.values():
            await self._install(known, entry)
        # Only now: a default set of metrics that are not placed yet would judge by none.
        self._board.open(plan.name, plan.default_metrics)
        for metric in gone:
            await self._withdraw(known, metric)

    async def _swap_probes(self, known: _Database, probes: ProbeSource) -> ProbeSource:
        """Read from elsewhere from now on. Old values mean nothing there: each metric stays,
        unread, once it is installed anew, which follows without a pause."""
        name = known.plan.name
        await asyncio.gather(*(self._sampler.stop(name, metric) for metric in known.entries))
        old, known.probes, known.entries = known.probes, probes, {}
        return old

    async def _shut_database(self, name: str) -> ProbeSource:
        database = self._databases.pop(name)
        for metric in database.entries:
            await self._sampler.stop(name, metric)
        self._board.shut(name)
        return database.probes

    def _effective(self, plan: DatabasePlan) -> dict[str, Entry]:
        names = (name.rpartition("/") for name in self._changes.values)
        changed = [metric for database, _, metric in names if database == plan.name]
        found = (self._entry_now(plan, m) for m in dict.fromkeys([*plan.raw_metrics, *changed]))
        return {entry.spec.name: entry for entry in found if entry is not None}

    def _entry_now(self, plan: DatabasePlan, metric: str) -> Entry | None:
        """As it is to be in force; None: not at all."""
        name = f"{plan.name}/{metric}"
        change, now = self._changes.values.get(name), self._clock.now()
        in_force = None if change is None or change.has_ended(now) else change
        return _laid_over(plan, metric, in_force, self._changes.n_of(name))

    async def _settle(self, name: str) -> None:
        database, _, metric = name.rpartition("/")
        held = self._databases.get(database)
        if held is None:
            return
        entry = self._entry_now(held.plan, metric)
        if entry is not None:
            await self._install(held, entry)
        elif metric in held.entries:
            await self._withdraw(held, metric)

    # --- what ends -------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """What has come to its end is as in the file again, whatever becomes of the log."""
        now, changes = self._clock.now(), self._changes.values
        if not any(change.has_ended(now) for change in changes.values()):
            return
        async with self._lock:
            over = {name: one.n for name, one in changes.items() if one.has_ended(now)}
            for name in over.keys() - self._ended.keys():
                await self._settle(name)
                self._ended[name] = over[name]
                self._retry_mono_s = now.mono_s
                log.info("metric.ended", metric=name)
        if now.mono_s >= self._retry_mono_s:
            await self._take_out(over, now)

    async def _take_out(self, over: Mapping[str, int], now: Instant) -> None:
        """Out of the log, without our lock. Set again meanwhile, it is another change."""

        def draft(held: Holdings, asked: Asked) -> Draft:
            found = ((name, held.items.get((METRIC, name))) for name in over)
            ended = [item for name, item in found if item is not None and item.n == over[name]]
            files = {item.id: self._beneath(item.id) for item in ended}
            return Draft(
                "metric.expired",
                [put(held, METRIC, item.id, None, asked) for item in ended],
                shown={(METRIC, item.id): (_settings_in(item), files[item.id]) for item in ended},
            )

        try:
            await self._make(draft, OURSELVES, dry_run=False)
        except (Conflict, StoreUnavailable) as error:
            self._retry_mono_s = now.mono_s + RETRY_S
            log.warning("metrics.ended_kept", metrics=sorted(over), detail=str(error))

    def _beneath(self, name: str) -> dict[str, Any] | None:
        """What the file says."""
        database, _, metric = name.rpartition("/")
        held = self._databases.get(database)
        raw = held.plan.raw_metrics.get(metric) if held is not None else None
        return None if raw is None else dict(raw)

    # --- at run time -----------------------------------------------------------------------

    async def put(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> Proposal:
        """Add or replace a metric. Beside its settings, `raw` may say when that ends: `for` or
        `expires_at`; `never`, or None, for not at all."""
        settings, end = self._parted(raw)
        wish = _Asked(database, parse_metric(metric), expect, end)
        settings = {key: value for key, value in settings.items() if value is not None}
        return await self._set(wish, lambda known: settings, who, dry_run)

    async def patch(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> Proposal:
        """Change some settings of a metric, and some of its options; one given as None goes
        back to its default. Its end stays, unless `raw` says another one (see put)."""
        settings, end = self._parted(raw)
        wish = _Asked(database, parse_metric(metric), expect, end)

        def merged(known: _Known) -> Mapping[str, Any]:
            return _merged(self._there(wish, known).raw, settings)

        return await self._set(wish, merged, who, dry_run, keeps_end=True)

    async def remove(
        self,
        database: str,
        metric: str,
        *,
        end: Mapping[str, Any] = MappingProxyType({}),
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> Proposal:
        """`end`: as put has it."""
        wish = _Asked(database, parse_metric(metric), expect, self._parted(end)[1])
        plan = self._database(database).plan

        def draft(held: Holdings, asked: Asked) -> Draft:
            known = self._known(held, plan, wish.metric, asked)
            self._there(wish, known)
            _check_revision(wish, known)
            beneath = _laid_over(plan, wish.metric, None, 0)
            told, value = tuple[Advice, ...](), None
            if beneath is not None:  # Else there is nothing left to remove.
                end_s, told = _end_of(wish, beneath, None, known, asked, keeps=False)
                value = _with_end({"removed": True}, end_s)
            change = put(held, METRIC, wish.id, value, asked)
            return Draft("metric.remove", [change], told, shown=_audit(wish, known, None))

        made = await self._make(draft, who, dry_run=dry_run)
        return Proposal(None, None, ends_at(made.items[0]), made.advice, dry_run)

    async def revert(
        self,
        database: str,
        metric: str,
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> Proposal:
        """Drop what was changed at run time: the file's settings, or none, hold again."""
        wish = _Asked(database, parse_metric(metric), expect)
        plan = self._database(database).plan

        def draft(held: Holdings, asked: Asked) -> Draft:
            known = self._known(held, plan, wish.metric, asked)
            if known.item is None:
                self._there(wish, known)
                return Draft("metric.revert")  # As in the file already.
            _check_revision(wish, known)
            change = put(held, METRIC, wish.id, None, asked)
            shown = _audit(wish, known, plan.raw_metrics.get(wish.metric))
            return Draft("metric.revert", [change], shown=shown)

        made = await self._make(draft, who, dry_run=dry_run)
        entry = _laid_over(plan, wish.metric, None, self._n_after(wish, made))
        return await self._proposal(database, entry, made)

    async def _set(
        self,
        wish: _Asked,
        settings: Callable[[_Known], Mapping[str, Any]],
        who: str,
        dry_run: bool,
        *,
        keeps_end: bool = False,
    ) -> Proposal:
        database = self._database(wish.database)
        plan = database.plan

        def draft(held: Holdings, asked: Asked) -> Draft:
            known = self._known(held, plan, wish.metric, asked)
            raw = settings(known)
            entry = self._validated(database, wish.metric, raw, known)
            _check_revision(wish, known)
            beneath = _laid_over(plan, wish.metric, None, 0)
            end_s, told = _end_of(wish, beneath, entry, known, asked, keeps=keeps_end)
            change = put(held, METRIC, wish.id, _with_end({"settings": dict(raw)}, end_s), asked)
            return Draft("metric.set", [change], told, shown=_audit(wish, known, raw))

        made = await self._make(draft, who, dry_run=dry_run)
        change = _change_of(made.items[0], self._clock.now())
        entry = _laid_over(plan, wish.metric, change, self._n_after(wish, made))
        return await self._proposal(wish.database, entry, made)

    # --- from a file of changes ------------------------------------------------------------

    def drafted(
        self, held: Holdings, entry: FileEntry, asked: Asked
    ) -> tuple[Item, Sequence[Advice]]:
        """As put and remove do it (changefiles.Room). An end that is not said stays as it is."""
        named, metric = entry.raw["database"], entry.raw["metric"]
        raw = {key: one for key, one in entry.raw.items() if key not in ("database", "metric")}
        try:
            database, metric = self._database(named), parse_metric(metric)
            return self._drafted(held, database, metric, raw, asked)
        except NoSuchMetric as error:
            raise InvalidSettings([Fault(f"{entry.place}.database", str(error))]) from None
        except InvalidName as error:
            raise InvalidSettings([Fault(f"{entry.place}.metric", str(error))]) from None
        except InvalidSettings as error:
            faults = [_placed(fault, entry.place, metric) for fault in error.faults]
            raise InvalidSettings(faults) from None

    def _drafted(
        self,
        held: Holdings,
        database: _Database,
        metric: str,
        raw: Mapping[str, Any],
        asked: Asked,
    ) -> tuple[Item, Sequence[Advice]]:
        plan = database.plan
        settings, end = self._parted(raw)
        wish = _Asked(plan.name, metric, None, end)
        known, beneath = self._known(held, plan, metric, asked), _laid_over(plan, metric, None, 0)
        entry: Entry | None = None
        value: dict[str, Any] = {"removed": True}
        if "removed" not in settings:
            there = _settings_in(known.item) if known.item is not None else None
            settings = revealed(settings, there or {})
            entry = self._validated(database, metric, settings, known)
            value = {"settings": settings}
        elif faults := _removal_faults(settings, beneath):
            raise InvalidSettings(faults)
        end_s, told = _end_of(wish, beneath, entry, known, asked, keeps=True)
        change = put(held, METRIC, wish.id, _with_end(value, end_s), asked)
        assert change.after is not None
        return change.after, told

    def check(self, held: Holdings, changes: Sequence[ItemChange], asked: Asked) -> None:
        """No database has too many metrics by it."""
        after = [one.after for one in changes if one.after is not None and one.after.kind == METRIC]
        items = dict(held.items)
        items |= {name_of(item): item for item in after}
        for name in sorted({item.id.rpartition("/")[0] for item in after}):
            count = len(self._metrics_by(items, name, asked.wall_s))
            if count > MAX_METRICS_PER_DATABASE:
                message = f"{name} would have {count} metrics, at most {MAX_METRICS_PER_DATABASE}"
                raise InvalidSettings([Fault("metrics", message)])

    def _metrics_by(self, items: Mapping[ItemName, Item], database: str, wall_s: float) -> set[str]:
        held = self._databases.get(database)
        found = set(held.plan.raw_metrics) if held is not None else set[str]()
        for item in items.values():
            of, _, metric = item.id.rpartition("/")
            if item.kind == METRIC and of == database and stands(item, wall_s):
                (found.discard if (item.value or {}).get("removed") else found.add)(metric)
        return found

    async def _proposal(self, database: str, entry: Entry | None, made: FleetChange) -> Proposal:
        """Outside any lock: a probe that hangs until its timeout holds up no other change."""
        end = None if entry is None else entry.expires_at
        reading = None
        if made.dry_run and entry is not None and entry.enabled:
            reading = await self._try(self._database(database).probes, entry.spec)
        return Proposal(entry, reading, end, made.advice, made.dry_run)

    def _n_after(self, wish: _Asked, made: FleetChange) -> int:
        """A dry run leaves it at the revision that it is of."""
        changed = made.items and not made.dry_run
        return made.items[0].n if changed else self._changes.n_of(wish.id)

    def _known(self, held: Holdings, plan: DatabasePlan, metric: str, asked: Asked) -> _Known:
        """Of the log, and not of what is in force: another change may be on its way there."""
        item = held.items.get((METRIC, f"{plan.name}/{metric}"))
        n = 0 if item is None else item.n
        if item is None or not stands(item, asked.wall_s):
            return _Known(None, _laid_over(plan, metric, None, n), n)
        change: _Change | None = None
        try:
            change = _change_of(item, self._clock.now())
        except (KeyError, TypeError, ValueError) as error:
            log.error("metric.kept_change_refused", metric=item.id, fault=repr(error))
        return _Known(item, _laid_over(plan, metric, change, n), n)

    def _there(self, wish: _Asked, known: _Known) -> Entry:
        if known.entry is not None:
            return known.entry
        names = ", ".join(sorted(self._database(wish.database).entries)) or "none"
        message = f"no metric {wish.metric!r} on {wish.database}; configured: {names}"
        raise NoSuchMetric(message)

    def _parted(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """The settings, and when the change ends (see _Asked)."""
        settings = {key: value for key, value in raw.items() if key not in ENDS}
        given = [key for key in ENDS if key in raw]
        if len(given) > 1:
            raise InvalidSettings([Fault("for", "give for or expires_at, not both")])
        if not given:
            return settings, None
        (key,) = given
        try:
            return settings, _end(key, raw[key], self._clock.now().wall_s)
        except ValueError as error:
            raise InvalidSettings([Fault(key, str(error))]) from None

    def _validated(
        self, database: _Database, metric: str, raw: Mapping[str, Any], known: _Known
    ) -> Entry:
        faults = [*hidden_faults(raw), *self._source_faults(database, metric, raw, known)]
        if faults:
            raise InvalidSettings(faults)
        if known.entry is None and len(database.entries) >= MAX_METRICS_PER_DATABASE:
            message = f"{database.plan.name} has {MAX_METRICS_PER_DATABASE} metrics, the most"
            raise InvalidSettings([Fault(metric, message)])
        entry = _entry(database.plan, metric, raw, "runtime", 0)
        errors = [a for a in entry.advice if a.severity is Severity.ERROR]
        if errors:
            raise InvalidSettings([Fault(a.place, a.message) for a in errors])
        if missing := plugin_faults(entry.spec.rollup, self._rollups, metric):
            raise InvalidSettings(missing)
        database.probes.probe_for(entry.spec)
        return entry

    def _source_faults(
        self, database: _Database, metric: str, raw: Mapping[str, Any], known: _Known
    ) -> list[Fault]:
        """What reaches beyond the agent comes from the file. What is there already may stay
        while the rest changes."""
        there = (known.shown or {}, database.plan.raw_metrics.get(metric, {}))
        return [
            Fault(source, f"may only be set in the settings file: {_FILE_ONLY[source]}")
            for source in _PLACES
            if source in raw
            and source not in self._runtime_sources
            and not any(_same_place(source, raw, settings) for settings in there)
        ]

    async def _try(self, probes: ProbeSource, spec: MetricSpec) -> Reading:
        probe = probes.probe_for(spec)
        try:
            return await take(probe, spec, self._clock)
        finally:
            await probe.close()

    # --- in force --------------------------------------------------------------------------

    async def _install(self, database: _Database, entry: Entry) -> None:
        plan, spec = database.plan, entry.spec
        before = database.entries.get(spec.name)
        if not entry.enabled or (before is not None and not before.enabled):
            await self._withdraw(database, spec.name)
            before = None
        database.entries[spec.name] = entry
        if not entry.enabled:
            return
        at = self._clock.now().mono_s
        if before is not None and _same_probe(before.spec, spec):
            self._board.place(plan.name, spec, at=at)
            return
        await self._sampler.stop(plan.name, spec.name)
        probe = _probe_for(database.probes, spec)
        if before is not None and _same_meaning(before.spec, spec):
            self._board.place(plan.name, spec, at=at)
        else:
            self._board.restart(plan.name, spec, at=at)
        self._sampler.start(plan.name, spec, probe)

    async def _withdraw(self, database: _Database, metric: str) -> None:
        await self._sampler.stop(database.plan.name, metric)
        self._board.drop(database.plan.name, metric)
        database.entries.pop(metric, None)

    def _database(self, name: str) -> _Database:
        try:
            return self._databases[name]
        except KeyError:
            known = ", ".join(sorted(self._databases)) or "none"
            raise NoSuchMetric(f"no database {name!r}; configured: {known}") from None


async def _close_source(probes: ProbeSource) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await probes.close()
    except (TimeoutError, ProbeFailed, OSError) as error:
        log.warning("probes.close_failed", error=str(error))


class _Unprobeable:
    """Stands in for a probe that cannot be built: its metric is absent, and says why."""

    def __init__(self, detail: str) -> None:
        self._detail = detail

    async def read(self) -> float:
        raise ProbeFailed(Cause.FAILED, self._detail)

    async def close(self) -> None:
        pass


def _probe_for(probes: ProbeSource, spec: MetricSpec) -> Probe:
    """A change kept earlier may name what is gone by now (a plug-in): the metric stays, unread,
    for a check must not be judged without it in silence."""
    try:
        return probes.probe_for(spec)
    except InvalidSettings as error:
        log.error("metric.cannot_be_probed", metric=spec.name, fault=str(error))
        return _Unprobeable(f"it cannot be probed: {error}")


def _laid_over(
    plan: DatabasePlan, metric: str, change: _Change | None, revision: int
) -> Entry | None:
    """The change over what the file says; None: there is no such metric."""
    if change is not None and change.settings is None:
        return None
    if change is not None and change.settings is not None:
        try:
            entry = _entry(plan, metric, change.settings, "runtime", revision)
        except InvalidSettings as error:
            # Kept by an older version, or for another engine: say so and go on with the file.
            log.error("metric.kept_change_refused", database=plan.name, fault=str(error))
        else:
            return replace(entry, expires_at=change.expires_at)
    raw = plan.raw_metrics.get(metric)
    return None if raw is None else _entry(plan, metric, raw, "file", revision)


def _change_of(item: Item, now: Instant) -> _Change:
    kept = item.value or {}
    settings = None if kept.get("removed") is True else dict(kept["settings"])
    end = ends_at(item)
    if end is None:
        return _Change(settings, item.n, None, math.inf)
    left_s = min(end - now.wall_s, end - item.set_at)
    return _Change(settings, item.n, end, now.mono_s + left_s)


def _settings_in(item: Item) -> dict[str, Any] | None:
    settings = (item.value or {}).get("settings")
    return dict(settings) if isinstance(settings, Mapping) else None


def _removal_faults(settings: Mapping[str, Any], beneath: Entry | None) -> list[Fault]:
    """Of an entry of a file that says `removed`."""
    if settings["removed"] is not True:
        return [Fault("removed", "must be true; to have the metric, leave this out")]
    if len(settings) > 1:
        return [Fault("removed", "leaves no settings: give those, or removed = true")]
    if beneath is None:
        return [Fault("removed", "the settings file has no such metric: leave the entry out")]
    return []


def _placed(fault: Fault, place: str, metric: str) -> Fault:
    """Where it is in a file of changes."""
    if fault.place == metric or fault.place.startswith((f"{metric}.", f"{metric}[")):
        return fault._replace(place=f"{place}{fault.place.removeprefix(metric)}")
    return fault._replace(place=f"{place}.{fault.place}")


def _audit(
    wish: _Asked, known: _Known, after: Mapping[str, Any] | None
) -> dict[tuple[str, str], tuple[Any, Any]]:
    """What the audit shows: the settings."""
    return {(METRIC, wish.id): (known.shown, None if after is None else dict(after))}


def _check_revision(wish: _Asked, known: _Known) -> None:
    if wish.expect is not None and wish.expect != known.n:
        message = (
            f"{wish.id} is at revision {known.n}, not {wish.expect}: "
            "somebody changed it in between; look again and repeat"
        )
        raise Conflict(message)


# --- when a change ends --------------------------------------------------------------------


def _end(key: str, given: object, wall_s: float) -> float:
    """Wall-clock seconds, math.inf for never; ValueError says what it should have been."""
    if given is None or given == NEVER:
        return math.inf
    at = wall_s + parse_for(given) if key == "for" else parse_date_time(given)
    if at <= wall_s:
        raise ValueError(f"is {given!r}, which is over")
    if at > wall_s + MAX_FOR_S:
        raise ValueError(f"is {given!r}, at most {MAX_FOR_S / 86_400:g}d; {NEVER} for no end")
    return at


def _end_of(
    wish: _Asked,
    beneath: Entry | None,
    entry: Entry | None,
    known: _Known,
    asked: Asked,
    *,
    keeps: bool,
) -> tuple[float | None, tuple[Advice, ...]]:
    """When a change ends that puts `entry` (None: nothing) over `beneath`, and advice on that.

    Looser than what it goes back to, it ends after an hour. That of a change which is stricter
    would be a loosening, so that one stays."""
    if wish.expires_at is not None:
        return (None if wish.expires_at == math.inf else wish.expires_at), ()
    was = None if known.item is None else ends_at(known.item)
    if keeps and was is not None:
        return was, (_kept_end(wish, was),)
    endless = known.item is not None and was is None
    if not _is_looser(entry, beneath) or (endless and not _is_looser(entry, known.entry)):
        return None, ()
    end_s = asked.wall_s + LOOSER_FOR_S
    return end_s, (_default_end(wish, end_s),)


def _is_looser(entry: Entry | None, than: Entry | None) -> bool:
    """Whether it may admit what the other one rejects."""
    if than is None or not than.enabled:
        return False
    return entry is None or not entry.enabled or is_looser(entry.spec, than.spec)


def _default_end(wish: _Asked, end_s: float) -> Advice:
    message = (
        f"ends at {_iso(end_s)}, after {LOOSER_FOR_S / 3600:g} h: it is looser than the settings "
        "file, and no end was given. Give one (for: 2h), or keep it (for: never)"
    )
    return Advice(Severity.WARNING, "ends", wish.metric, message)


def _kept_end(wish: _Asked, end_s: float) -> Advice:
    message = f"ends at {_iso(end_s)}, as before. Give another end (for: 2h), or none (for: never)"
    return Advice(Severity.WARNING, "ends", wish.metric, message)


def _with_end(value: dict[str, Any], end_s: float | None) -> dict[str, Any]:
    return value if end_s is None else {**value, "expires_at": _iso(end_s)}


def _iso(wall_s: float) -> str:
    at = datetime.fromtimestamp(math.ceil(wall_s), tz=UTC)
    return at.isoformat().replace("+00:00", "Z")


def _merged(raw: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """As RFC 7396 has it: tables are merged, None takes out."""
    merged = dict(raw)
    for key, value in patch.items():
        if isinstance(value, Mapping):
            known = raw.get(key)
            merged[key] = _merged(known if isinstance(known, Mapping) else {}, value)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


def _entry(
    plan: DatabasePlan, metric: str, raw: Mapping[str, Any], origin: str, revision: int
) -> Entry:
    spec = parse_metric_settings(metric, raw, plan.engine, place=metric)
    advice = lint_metric(spec, raw, plan.engine, place=metric)
    return Entry(spec, raw, origin, revision, tuple(advice))


def _same_place(source: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in _PLACES[source])


def _same_probe(a: MetricSpec, b: MetricSpec) -> bool:
    return _same_meaning(a, b) and (a.interval_s, a.timeout_s) == (b.interval_s, b.timeout_s)


def _same_meaning(a: MetricSpec, b: MetricSpec) -> bool:
    """Whether values of the one are values of the other."""
    return (a.source, a.mode, dict(a.options)) == (b.source, b.mode, dict(b.options))
