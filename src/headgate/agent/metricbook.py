"""The metrics in force: the settings file, and what was changed while running, on top.

API ──put, patch, …──► MetricBook ──► Store (change and audit, one transaction)
                              └────────► Sampler and Board, only after the store has it

A change is validated first; a refused one leaves everything as it was. Runtime changes
survive restarts and reloads of the file until they are reverted to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog

from headgate.agent.board import Board
from headgate.agent.ports import Clock, Probe, ProbeSource, Store
from headgate.agent.redact import hidden_faults
from headgate.agent.sampler import CLOSE_TIMEOUT_S, Sampler, take
from headgate.core.lint import Advice, Severity, lint_metric
from headgate.core.metric_settings import parse_metric_settings
from headgate.core.metrics import Engine, MetricSpec
from headgate.core.names import parse_metric
from headgate.core.records import AuditEntry, MetricChange
from headgate.core.rollup import AGGREGATES
from headgate.core.rollup_settings import plugin_faults
from headgate.core.samples import Cause, Reading
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, ProbeFailed

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
AS_IN_FILE: Mapping[str, Any] = MappingProxyType({"revert": True})
"""Kept in the place of settings: the file's hold again. No setting has this name."""


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
    advice: tuple[Advice, ...]

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
    reading: Reading | None


class MetricBook:
    def __init__(
        self,
        board: Board,
        sampler: Sampler,
        store: Store,
        clock: Clock,
        *,
        runtime_sources: Collection[str] = (),
        rollups: Collection[str] = frozenset(AGGREGATES),
    ) -> None:
        """`runtime_sources`: of `sql`, `url` and `command`, those that operators may set while
        the agent runs; others come from the file alone."""
        self._board = board
        self._sampler = sampler
        self._store = store
        self._clock = clock
        self._runtime_sources = frozenset(runtime_sources)
        self._rollups = rollups
        self._databases: dict[str, _Database] = {}
        self._changes: dict[str, dict[str, MetricChange]] = {}
        """What the store holds on top of the file, by database and metric."""
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

    # --- from the file ---------------------------------------------------------------------

    async def adopt(
        self, plans: Iterable[DatabasePlan], changes: Iterable[MetricChange] | None = None
    ) -> None:
        """Follow the settings file, with the store's changes (None: those known) on top."""
        retired: list[ProbeSource] = []
        try:
            async with self._lock:
                if changes is not None:
                    self._changes = _by_database(changes)
                await self._follow({plan.name: plan for plan in plans}, retired)
        finally:
            for probes in retired:
                await _close_source(probes)

    async def close(self) -> None:
        await self._sampler.close()
        for database in self._databases.values():
            await database.probes.close()

    async def _follow(self, wanted: Mapping[str, DatabasePlan], retired: list[ProbeSource]) -> None:
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
        wanted = _effective(plan, self._changes.get(plan.name, {}))
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
        """Add or replace a metric."""
        async with self._lock:
            metric = parse_metric(metric)
            entry = await self._change(database, metric, raw, who, expect, dry_run)
        return await self._proposal(database, entry, dry_run)

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
        back to its default."""
        async with self._lock:
            metric = parse_metric(metric)
            merged = _merged(self.entry(database, metric).raw, raw)
            entry = await self._change(database, metric, merged, who, expect, dry_run)
        return await self._proposal(database, entry, dry_run)

    async def remove(
        self,
        database: str,
        metric: str,
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> Proposal:
        async with self._lock:
            metric = parse_metric(metric)
            self.entry(database, metric)
            self._check_revision(database, metric, expect)
            if not dry_run:
                await self._keep(database, metric, None, who, "metric.remove")
                await self._withdraw(self._database(database), metric)
            return Proposal(None, None)

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
        async with self._lock:
            metric = parse_metric(metric)
            entry = await self._revert(database, metric, who, expect, dry_run)
        return await self._proposal(database, entry, dry_run)

    async def _revert(
        self, database: str, metric: str, who: str, expect: int | None, dry_run: bool
    ) -> Entry | None:
        held = self._database(database)
        change = self._changes.get(database, {}).get(metric)
        if change is None or change.raw == AS_IN_FILE:
            return self.entry(database, metric)  # As in the file already, or not there at all.
        self._check_revision(database, metric, expect)
        raw = held.plan.raw_metrics.get(metric)
        entry = None if raw is None else _entry(held.plan, metric, raw, "file", change.revision)
        if dry_run:
            return entry
        change = await self._keep(database, metric, AS_IN_FILE, who, "metric.revert")
        if entry is None:
            await self._withdraw(held, metric)
            return None
        entry = replace(entry, revision=change.revision)
        await self._install(held, entry)
        return entry

    async def _change(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        who: str,
        expect: int | None,
        dry_run: bool,
    ) -> Entry:
        held = self._database(database)
        entry = self._validated(held, metric, raw)
        self._check_revision(database, metric, expect)
        if dry_run:
            return entry
        change = await self._keep(database, metric, raw, who, "metric.set")
        entry = replace(entry, revision=change.revision)
        await self._install(held, entry)
        return entry

    async def _proposal(self, database: str, entry: Entry | None, dry_run: bool) -> Proposal:
        """Outside the lock: a probe that hangs until its timeout holds up no other change."""
        if not dry_run or entry is None or not entry.enabled:
            return Proposal(entry, None)
        return Proposal(entry, await self._try(self._database(database).probes, entry.spec))

    def _validated(self, database: _Database, metric: str, raw: Mapping[str, Any]) -> Entry:
        faults = [*hidden_faults(raw), *self._source_faults(database, metric, raw)]
        if faults:
            raise InvalidSettings(faults)
        if metric not in database.entries and len(database.entries) >= MAX_METRICS_PER_DATABASE:
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
        self, database: _Database, metric: str, raw: Mapping[str, Any]
    ) -> list[Fault]:
        """What reaches beyond the agent comes from the file. What is there already may stay
        while the rest changes."""
        in_force = database.entries.get(metric)
        known = (in_force.raw if in_force else {}, database.plan.raw_metrics.get(metric, {}))
        return [
            Fault(source, f"may only be set in the settings file: {_FILE_ONLY[source]}")
            for source in _PLACES
            if source in raw
            and source not in self._runtime_sources
            and not any(_same_place(source, raw, settings) for settings in known)
        ]

    async def _try(self, probes: ProbeSource, spec: MetricSpec) -> Reading:
        probe = probes.probe_for(spec)
        try:
            return await take(probe, spec, self._clock)
        finally:
            await probe.close()

    def _check_revision(self, database: str, metric: str, expect: int | None) -> None:
        revision = self._revision(database, metric)
        if expect is not None and expect != revision:
            message = (
                f"{database}/{metric} is at revision {revision}, not {expect}: "
                "somebody changed it in between; look again and repeat"
            )
            raise Conflict(message)

    async def _keep(
        self, database: str, metric: str, raw: Mapping[str, Any] | None, who: str, action: str
    ) -> MetricChange:
        held = self._database(database)
        after = held.plan.raw_metrics.get(metric) if raw == AS_IN_FILE else raw
        before = held.entries.get(metric)
        change = MetricChange(database, metric, raw, self._revision(database, metric))
        audit = AuditEntry(
            wall_s=self._clock.now().wall_s,
            who=who,
            action=action,
            target=f"{database}/{metric}",
            before=dict(before.raw) if before else None,
            after=dict(after) if after is not None else None,
        )
        kept = await self._store.put_metric(change, audit)
        self._changes.setdefault(database, {})[metric] = kept
        log.info("metric.changed", target=audit.target, who=who, action=audit.action)
        return kept

    def _revision(self, database: str, metric: str) -> int:
        change = self._changes.get(database, {}).get(metric)
        return change.revision if change else 0

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


def _by_database(changes: Iterable[MetricChange]) -> dict[str, dict[str, MetricChange]]:
    ordered: dict[str, dict[str, MetricChange]] = {}
    for change in changes:
        ordered.setdefault(change.database, {})[change.metric] = change
    return ordered


def _effective(plan: DatabasePlan, changes: Mapping[str, MetricChange]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for metric, raw in plan.raw_metrics.items():
        change = changes.get(metric)
        if change is None or change.raw == AS_IN_FILE:
            revision = change.revision if change else 0
            entries[metric] = _entry(plan, metric, raw, "file", revision)
    for metric, change in changes.items():
        if change.raw is None or change.raw == AS_IN_FILE:
            continue
        try:
            entries[metric] = _entry(plan, metric, change.raw, "runtime", change.revision)
        except InvalidSettings as error:
            # Kept by an older version, or for another engine: say so and go on without it.
            log.error("metric.kept_change_refused", database=plan.name, fault=str(error))
    return entries


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
