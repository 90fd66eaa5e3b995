"""The metrics in force: the settings file, and what was changed while running, on top.

API ──put/patch/remove──► MetricBook ──► Store (change and audit, one transaction)
                              └────────► Sampler and Board, only after the store has it

A change is validated first; a refused one leaves everything as it was. Runtime changes
survive restarts and reloads of the file until they are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog

from headgate.agent.board import Board
from headgate.agent.ports import Clock, Probe, ProbeSource, Store
from headgate.agent.sampler import Sampler, take
from headgate.core.lint import Advice, Severity, lint_metric
from headgate.core.metric_settings import parse_metric_settings
from headgate.core.metrics import Engine, MetricSpec
from headgate.core.names import parse_metric
from headgate.core.records import AuditEntry, MetricChange
from headgate.core.samples import Cause, Reading
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, ProbeFailed

log = structlog.get_logger()

MAX_METRICS_PER_DATABASE = 64


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric in force."""

    spec: MetricSpec
    raw: Mapping[str, Any]
    origin: str
    revision: int
    advice: tuple[Advice, ...]


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
        allow_commands: bool = False,
    ) -> None:
        self._board = board
        self._sampler = sampler
        self._store = store
        self._clock = clock
        self._allow_commands = allow_commands
        self._databases: dict[str, _Database] = {}
        self._changes: dict[str, dict[str, MetricChange]] = {}
        """What the store holds on top of the file, by database and metric."""
        self._lock = asyncio.Lock()

    # --- reading ---------------------------------------------------------------------------

    def databases(self) -> list[DatabasePlan]:
        return [database.plan for database in self._databases.values()]

    def entries(self, database: str) -> Mapping[str, Entry]:
        return MappingProxyType(self._database(database).entries)

    def entry(self, database: str, metric: str) -> Entry:
        try:
            return self._database(database).entries[metric]
        except KeyError:
            known = ", ".join(sorted(self._database(database).entries)) or "none"
            message = f"no metric {metric!r} on {database}; configured: {known}"
            raise NoSuchMetric(message) from None

    # --- from the file ---------------------------------------------------------------------

    async def adopt(
        self, plans: Iterable[DatabasePlan], changes: Iterable[MetricChange] | None = None
    ) -> None:
        """Follow the settings file, with the store's changes (None: those known) on top."""
        async with self._lock:
            wanted = {plan.name: plan for plan in plans}
            if changes is not None:
                self._changes = _by_database(changes)
            for name in [name for name in self._databases if name not in wanted]:
                await self._close_database(name)
            for plan in wanted.values():
                await self._open_database(plan)

    async def close(self) -> None:
        await self._sampler.close()
        for database in self._databases.values():
            await database.probes.close()

    async def _open_database(self, plan: DatabasePlan) -> None:
        known = self._databases.get(plan.name)
        if known is not None and known.plan.connection != plan.connection:
            await self._close_database(plan.name)
            known = None
        if known is None:
            known = self._databases[plan.name] = _Database(plan, plan.open_probes())
        known.plan = plan
        self._board.open(plan.name, plan.default_metrics)
        wanted = _effective(plan, self._changes.get(plan.name, {}))
        for metric in [metric for metric in known.entries if metric not in wanted]:
            await self._withdraw(known, metric)
        for entry in wanted.values():
            await self._install(known, entry)

    async def _close_database(self, name: str) -> None:
        database = self._databases.pop(name)
        for metric in database.entries:
            await self._sampler.stop(name, metric)
        self._board.shut(name)
        await database.probes.close()

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
            return await self._change(database, metric, raw, who, expect, dry_run)

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
        """Change some settings of a metric; a setting given as None goes back to its default."""
        async with self._lock:
            metric = parse_metric(metric)
            merged = {**self.entry(database, metric).raw, **raw}
            kept = {key: value for key, value in merged.items() if value is not None}
            return await self._change(database, metric, kept, who, expect, dry_run)

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
                await self._keep(database, metric, None, who)
                await self._withdraw(self._database(database), metric)
            return Proposal(None, None)

    async def _change(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        who: str,
        expect: int | None,
        dry_run: bool,
    ) -> Proposal:
        held = self._database(database)
        entry = self._validated(held, metric, raw)
        self._check_revision(database, metric, expect)
        if dry_run:
            return Proposal(entry, await self._try(held.probes, entry.spec))
        change = await self._keep(database, metric, raw, who)
        if not raw.get("enabled", True):
            await self._withdraw(held, metric)
            return Proposal(None, None)
        entry = replace(entry, revision=change.revision)
        await self._install(held, entry)
        return Proposal(entry, None)

    def _validated(self, database: _Database, metric: str, raw: Mapping[str, Any]) -> Entry:
        if "command" in raw and not self._allow_commands:
            message = (
                "commands may only be set in the settings file: they run as the agent's user "
                "(allow_runtime_commands = true lifts this)"
            )
            raise InvalidSettings([Fault("command", message)])
        if metric not in database.entries and len(database.entries) >= MAX_METRICS_PER_DATABASE:
            message = f"{database.plan.name} has {MAX_METRICS_PER_DATABASE} metrics, the most"
            raise InvalidSettings([Fault(metric, message)])
        entry = _entry(database.plan, metric, raw, "runtime", 0)
        errors = [a for a in entry.advice if a.severity is Severity.ERROR]
        if errors:
            raise InvalidSettings([Fault(a.place, a.message) for a in errors])
        database.probes.probe_for(entry.spec)
        return entry

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
        self, database: str, metric: str, raw: Mapping[str, Any] | None, who: str
    ) -> MetricChange:
        held = self._database(database)
        before = held.entries.get(metric)
        change = MetricChange(database, metric, raw, self._revision(database, metric))
        audit = AuditEntry(
            wall_s=self._clock.now().wall_s,
            who=who,
            action="metric.set" if raw is not None else "metric.remove",
            target=f"{database}/{metric}",
            before=dict(before.raw) if before else None,
            after=dict(raw) if raw is not None else None,
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
        database.entries[spec.name] = entry
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
        if metric not in changes and raw.get("enabled", True):
            entries[metric] = _entry(plan, metric, raw, "file", 0)
    for metric, change in changes.items():
        if change.raw is None or not change.raw.get("enabled", True):
            continue
        try:
            entries[metric] = _entry(plan, metric, change.raw, "runtime", change.revision)
        except InvalidSettings as error:
            # Kept by an older version, or for another engine: say so and go on without it.
            log.error("metric.kept_change_refused", database=plan.name, fault=str(error))
    return entries


def _entry(
    plan: DatabasePlan, metric: str, raw: Mapping[str, Any], origin: str, revision: int
) -> Entry:
    spec = parse_metric_settings(metric, raw, plan.engine, place=metric)
    advice = lint_metric(spec, raw, plan.engine, place=metric)
    return Entry(spec, raw, origin, revision, tuple(advice))


def _same_probe(a: MetricSpec, b: MetricSpec) -> bool:
    return _same_meaning(a, b) and (a.interval_s, a.timeout_s) == (b.interval_s, b.timeout_s)


def _same_meaning(a: MetricSpec, b: MetricSpec) -> bool:
    """Whether values of the one are values of the other."""
    return (a.source, a.mode, dict(a.options)) == (b.source, b.mode, dict(b.options))
