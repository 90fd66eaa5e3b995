"""The metrics in force: the settings file, and what was changed while running, on top.

API ──put, patch, …──► draft ──► log ──follow──► MetricKeeper ──► Sampler and Board
other agents, the fleet ──reaching.py──► log ──follow──────►│

A change is validated first; an invalid one changes nothing. Runtime changes survive restarts and
reloads of the file until they are reverted or end.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, TypeVar, Unpack

import structlog

from headgate.base.advice import Advice
from headgate.base.names import Scope, parse_metric
from headgate.base.ports import Clock, Probe, ProbeSource
from headgate.changes.items import Expecting, Make, SetItems, put
from headgate.changes.model import OURSELVES, Change
from headgate.changes.reach import HERE, Place, Reach, layers_at
from headgate.changes.state import ChangeMade, Draft, LogState, ends_at
from headgate.changes.time import ChangeTime
from headgate.check.board import Board
from headgate.check.sampler import CLOSE_TIMEOUT_S, Sampler, take
from headgate.errors import Conflict, InvalidSettings, ProbeFailed, StoreUnavailable
from headgate.metrics.drafts import (
    ANY,
    METRIC,
    DatabasePlan,
    Ground,
    MetricBefore,
    MetricDatabase,
    MetricDrafts,
    MetricEntry,
    NoSuchMetric,
    Override,
    Settings,
    Wish,
    change_of,
    is_named_by_its_reach,
    laid_over,
    parted_id,
    patched,
    settings_in,
    there,
    wish_of,
)
from headgate.metrics.model import Comparison, MetricSpec
from headgate.metrics.samples import Cause, Instant, Reading
from headgate.rules.drafts import ChangeAuthor
from headgate.rules.settings import KnownMetric, KnownMetrics
from headgate.shard.rollup import AGGREGATES

__all__ = ["DatabasePlan", "MetricEntry", "MetricKeeper", "NoSuchMetric", "Proposal"]

log = structlog.get_logger()

R = TypeVar("R")
NOTHING: Settings = MappingProxyType({})

TICK_S = 1.0
RETRY_S = 30.0
"""Pause between two tries to remove ended changes from the log."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that is valid: what it would put in place, and what a first probe said."""

    entry: MetricEntry | None
    """None: the metric is removed."""
    reading: Reading | None
    expires_at: float | None = None
    """Also for a removal."""
    advice: tuple[Advice, ...] = ()
    """Advice on the change; advice on the settings is in the entry."""
    dry_run: bool = False


class Verb(Enum):
    PUT = "put"
    PATCH = "patch"
    REMOVE = "remove"
    REVERT = "revert"


Drafted = Callable[[LogState, ChangeAuthor], Draft]


class MetricVerbs(ABC, Generic[R]):
    """What operators may do to a metric, at this agent or as far as the reach says."""

    def __init__(self, make: Make, reach: Reach = HERE) -> None:
        self._make = make
        self._reach = reach

    async def put(self, database: str, metric: str, raw: Settings, **by: Unpack[Expecting]) -> R:
        """Add or replace a metric. Beside its settings, `raw` may say when that ends: `for` or
        `expires_at`; `never`, or None, for not at all."""
        return await self._change(Verb.PUT, database, metric, raw, by)

    async def patch(self, database: str, metric: str, raw: Settings, **by: Unpack[Expecting]) -> R:
        """Change some settings of a metric, and some of its options; one given as None goes
        back to its default. Its end stays, unless `raw` says another one (see put)."""
        return await self._change(Verb.PATCH, database, metric, raw, by)

    async def remove(
        self, database: str, metric: str, *, end: Settings = NOTHING, **by: Unpack[Expecting]
    ) -> R:
        """`end`: as put has it."""
        return await self._change(Verb.REMOVE, database, metric, end, by)

    async def revert(self, database: str, metric: str, **by: Unpack[Expecting]) -> R:
        """Take out what was set with this reach: what lies beneath is in force again."""
        return await self._change(Verb.REVERT, database, metric, NOTHING, by)

    async def _change(
        self, verb: Verb, database: str, metric: str, raw: Settings, by: Expecting
    ) -> R:
        patches = verb is Verb.PATCH
        wish = Wish(
            database, parse_metric(metric), by.get("expect"), keeps_end=patches, reach=self._reach
        )
        wish, settings = wish_of(wish, raw, self.wall_s)
        draft = self._draft(verb, wish, settings)
        made = await self._make(draft, by["who"], dry_run=by.get("dry_run", False))
        return await self._made(verb, wish, made)

    @property
    @abstractmethod
    def wall_s(self) -> float: ...

    @abstractmethod
    def _draft(self, verb: Verb, wish: Wish, settings: dict[str, Any]) -> Drafted: ...

    @abstractmethod
    async def _made(self, verb: Verb, wish: Wish, made: ChangeMade) -> R: ...


class Measuring:
    """What is measured just now: metrics on the board, and their probes with the sampler."""

    def __init__(self, board: Board, sampler: Sampler, clock: Clock) -> None:
        self.board = board
        self.sampler = sampler
        self._clock = clock

    async def install(self, database: MetricDatabase, entry: MetricEntry) -> None:
        plan, spec = database.plan, entry.spec
        before = database.entries.get(spec.name)
        if not entry.enabled or (before is not None and not before.enabled):
            await self.withdraw(database, spec.name)
            before = None
        database.entries[spec.name] = entry
        if not entry.enabled:
            return
        at = self._clock.now().mono_s
        same_meaning = before is not None and _meaning(before.spec) == _meaning(spec)
        if before is not None and same_meaning and _pace(before.spec) == _pace(spec):
            self.board.place(plan.name, spec, at=at)
            return
        await self.sampler.stop(plan.name, spec.name)
        probe = _probe_for(database.probes, spec)
        put_up = self.board.place if same_meaning else self.board.restart
        put_up(plan.name, spec, at=at)
        self.sampler.start(plan.name, spec, probe)

    async def withdraw(self, database: MetricDatabase, metric: str) -> None:
        await self.sampler.stop(database.plan.name, metric)
        self.board.drop(database.plan.name, metric)
        database.entries.pop(metric, None)

    async def swap_probes(self, database: MetricDatabase, probes: ProbeSource) -> ProbeSource:
        """Read from another server from now on. Old values mean nothing there: each metric stays,
        without a value, until it is installed again, which follows at once."""
        name = database.plan.name
        await asyncio.gather(*(self.sampler.stop(name, metric) for metric in database.entries))
        old, database.probes, database.entries = database.probes, probes, {}
        return old

    async def shut(self, database: MetricDatabase) -> ProbeSource:
        for metric in database.entries:
            await self.sampler.stop(database.plan.name, metric)
        self.board.shut(database.plan.name)
        return database.probes

    async def read_once(self, database: MetricDatabase, spec: MetricSpec) -> Reading:
        probe = database.probes.probe_for(spec)
        try:
            return await take(probe, spec, self._clock)
        finally:
            await probe.close()


class MetricLayers:
    """What each metric is to be: the file's settings, then changes from the widest reach to this
    agent's own."""

    def __init__(self, kept: SetItems[Override], drafts: MetricDrafts, clock: Clock) -> None:
        self._kept = kept
        self._drafts = drafts
        self._clock = clock
        self._good: dict[str, dict[str, Mapping[str, Any]]] = {}
        """By database and change: the last settings that were valid here."""

    def entries(self, known: MetricDatabase) -> dict[str, MetricEntry]:
        """All of a database's, as they are to be in force."""
        plan, wide = known.plan, self.wide(known)
        here = (parted_id(name) for name, one in self._kept.values.items() if one.reach == HERE)
        changed = [metric for database, metric in here if database == plan.name]
        known.grounds = {m: self.ground(known, m, some) for m, some in wide.items()}
        names = dict.fromkeys([*plan.raw_metrics, *wide, *changed])
        found = (self.entry(known, metric) for metric in names)
        return {entry.spec.name: entry for entry in found if entry is not None}

    def entry(self, known: MetricDatabase, metric: str) -> MetricEntry | None:
        """As it is to be in force; None: not at all."""
        name = f"{known.plan.name}/{metric}"
        change, now = self._kept.values.get(name), self._clock.now()
        in_force = None if change is None or change.has_ended(now) else change
        return laid_over(known, metric, in_force, self._kept.n_of(name))

    def wide(self, known: MetricDatabase) -> dict[str, tuple[Override, ...]]:
        """What is said of its metrics that reaches beyond this agent, by metric."""
        now = self._clock.now()
        wide = (one for one in self._kept.values.values() if one.reach != HERE)
        return layers_at(known.plan.place, (one for one in wide if not one.has_ended(now)))

    def ground(
        self,
        known: MetricDatabase,
        metric: str,
        layers: Sequence[Override],
        *,
        without: str = "",
    ) -> Ground:
        good = self._good.setdefault(known.plan.name, {})
        ground = self._drafts.ground(
            known, metric, [one for one in layers if one.item_id != without], good
        )
        for one in layers:
            if one.item_id in ground.faults:
                log.error("metric.rejected", id=one.item_id, fault=ground.faults[one.item_id])
            elif one.settings is not None and not without:
                good[one.item_id] = one.settings
        return ground


class MetricKeeper(MetricVerbs[Proposal]):
    def __init__(
        self,
        board: Board,
        sampler: Sampler,
        clock: Clock,
        *,
        make: Make,
        runtime_sources: Collection[str] = (),
        rollups: Collection[str] = frozenset(AGGREGATES),
        time: ChangeTime | None = None,
    ) -> None:
        """`runtime_sources`: of `sql`, `url` and `command`, those that operators may set while
        the agent runs; others come from the file alone."""
        super().__init__(make)
        self._measuring = Measuring(board, sampler, clock)
        self._clock = clock
        self.drafts = MetricDrafts(frozenset(runtime_sources), rollups)
        self._databases: dict[str, MetricDatabase] = {}
        self.kept = SetItems(
            METRIC, change_of, time or ChangeTime(clock), concerns=is_named_by_its_reach
        )
        """Changes in the logs on top of the file: `database/metric` for this agent alone, with the
        reach appended for a wider one."""
        self._layers = MetricLayers(self.kept, self.drafts, clock)
        self._ended: set[str] = set()
        """Changes that have ended here but are still in the log."""
        self._retry_mono_s = 0.0
        self._lock = asyncio.Lock()

    # --- reading ---------------------------------------------------------------------------

    def databases(self) -> list[DatabasePlan]:
        return [database.plan for database in self._databases.values()]

    def database(self, name: str) -> MetricDatabase:
        try:
            return self._databases[name]
        except KeyError:
            known = ", ".join(sorted(self._databases)) or "none"
            raise NoSuchMetric(f"no database {name!r}; configured: {known}") from None

    def expires_at(self, database: str, metric: str) -> float | None:
        """When what was changed while running ends, a removal too; None: never."""
        change = self.kept.values.get(f"{database}/{metric}")
        ground = self.database(database).ground(metric)
        return ground.expires_at if change is None else change.expires_at

    @property
    def faults(self) -> dict[str, str]:
        """Why a change that reaches this agent is not in force here as it was set."""
        left_out = {
            f"{item_id} on {name}": fault
            for name, database in self._databases.items()
            for ground in database.grounds.values()
            for item_id, fault in ground.faults.items()
        }
        return {**self.kept.faults, **left_out}

    def grounds(
        self, database: str, metric: str, *, without: str
    ) -> list[tuple[MetricDatabase, Ground]]:
        """The settings under a change of these databases here, without that change itself."""
        named = [one for name, one in self._databases.items() if database in (ANY, name)]
        wide = [self._layers.wide(one).get(metric, ()) for one in named]
        return [
            (one, self._layers.ground(one, metric, layers, without=without))
            for one, layers in zip(named, wide, strict=True)
        ]

    @property
    def wall_s(self) -> float:
        return self._clock.now().wall_s

    # --- from the file and the log ---------------------------------------------------------

    async def adopt(self, plans: Iterable[DatabasePlan]) -> None:
        """Follow the settings file, with what the log is known to have on top."""
        wanted = {plan.name: plan for plan in plans}
        retired: list[ProbeSource] = []
        try:
            async with self._lock:
                for name in [name for name in self._databases if name not in wanted]:
                    retired.append(await self._measuring.shut(self._databases.pop(name)))
                for plan in wanted.values():
                    await self._follow_plan(plan, retired)
        finally:
            for probes in retired:
                await _close_source(probes)

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What operators set, at this agent or further."""
        async with self._lock:
            changed = self.kept.follow(items, whole=whole, own=own)
            self._ended -= set(changed)
            await self._settle(changed)

    async def close(self) -> None:
        await self._measuring.sampler.close()
        for database in self._databases.values():
            await database.probes.close()

    async def _follow_plan(self, plan: DatabasePlan, retired: list[ProbeSource]) -> None:
        """A metric that is still wanted never leaves the board: checks would ignore it."""
        board = self._measuring.board
        known = self._databases.get(plan.name)
        if known is None:
            known = self._databases[plan.name] = MetricDatabase(plan, plan.open_probes())
            board.open(plan.name, plan.default_metrics)
        connection, known.plan = known.plan.connection, plan
        wanted = self._layers.entries(known)
        gone = [metric for metric in known.entries if metric not in wanted]
        if connection != plan.connection:
            retired.append(await self._measuring.swap_probes(known, plan.open_probes()))
        for entry in wanted.values():
            await self._measuring.install(known, entry)
        # Only now: default metrics that are not placed yet would let every check pass.
        board.open(plan.name, plan.default_metrics)
        for metric in gone:
            await self._measuring.withdraw(known, metric)

    async def _settle(self, names: Collection[str]) -> None:
        """Put in force what is otherwise by these changes."""
        changed = [parted_id(name) for name in names]
        for database, known in self._databases.items():
            metrics = dict.fromkeys(m for of, m in changed if of in (ANY, database))
            wide = self._layers.wide(known) if metrics else {}
            for metric in metrics:
                known.grounds.pop(metric, None)
                if metric in wide:
                    known.grounds[metric] = self._layers.ground(known, metric, wide[metric])
                entry = self._layers.entry(known, metric)
                if entry is not None:
                    await self._measuring.install(known, entry)
                elif metric in known.entries:
                    await self._measuring.withdraw(known, metric)

    # --- what ends -------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """What has come to its end is as it was beneath again, whatever becomes of the log. What
        reaches further is taken out by its log's own keeping."""
        now, changes = self._clock.now(), self.kept.values
        if not any(change.has_ended(now) for change in changes.values()):
            return
        async with self._lock:
            over = {name: one for name, one in changes.items() if one.has_ended(now)}
            if new := over.keys() - self._ended:
                await self._settle(new)
                self._ended |= new
                self._retry_mono_s = now.mono_s
                log.info("metric.ended", metrics=sorted(new))
        here = {name: one.n for name, one in over.items() if one.reach == HERE}
        if here and now.mono_s >= self._retry_mono_s:
            await self._take_out(here, now)

    async def _take_out(self, over: Mapping[str, int], now: Instant) -> None:
        """Out of the log, without our lock. Set again meanwhile, it is another change."""

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            found = ((name, held.items.get((METRIC, name))) for name in over)
            ended = [item for name, item in found if item is not None and item.n == over[name]]
            shown: dict[tuple[str, str], tuple[Any, Any]] = {}
            for item in ended:
                database, metric = parted_id(item.id)
                known = self._databases.get(database)
                raw = known.ground(metric).raw if known is not None else None
                beneath = None if raw is None else dict(raw)
                shown[METRIC, item.id] = (settings_in(item), beneath)
            changes = [put(held, METRIC, item.id, None, asked) for item in ended]
            return Draft("metric.expired", changes, shown=shown)

        try:
            await self._make(draft, OURSELVES, dry_run=False)
        except (Conflict, StoreUnavailable) as error:
            self._retry_mono_s = now.mono_s + RETRY_S
            log.warning("metrics.ended_kept", metrics=sorted(over), detail=str(error))

    # --- at run time -----------------------------------------------------------------------

    def _draft(self, verb: Verb, wish: Wish, settings: dict[str, Any]) -> Drafted:
        measured, drafts = self.database(wish.database), self.drafts
        if verb is Verb.REMOVE:
            return lambda held, asked: drafts.remove(held, asked, wish, measured)
        if verb is Verb.REVERT:
            return lambda held, asked: drafts.revert(held, asked, wish, measured)

        def wanted(known: MetricBefore) -> Settings:
            if verb is Verb.PATCH:
                return patched(there(wish, measured, known).raw, settings)
            return {key: value for key, value in settings.items() if value is not None}

        return lambda held, asked: drafts.set(held, asked, wish, measured, wanted)

    async def _made(self, verb: Verb, wish: Wish, made: ChangeMade) -> Proposal:
        """Outside any lock: a probe that hangs until its timeout holds up no other change."""
        database, item = self.database(wish.database), next(iter(made.items), None)
        if verb is Verb.REMOVE:
            end = None if item is None else ends_at(item)
            return Proposal(None, None, end, made.advice, made.dry_run)
        change = None if item is None or item.value is None else change_of(item)
        # A dry run leaves it at the revision that it is of.
        n = self.kept.n_of(wish.id) if item is None or made.dry_run else item.n
        entry, reading = laid_over(database, wish.metric, change, n), None
        if made.dry_run and entry is not None and entry.enabled:
            reading = await self._measuring.read_once(database, entry.spec)
        end = None if entry is None else entry.expires_at
        return Proposal(entry, reading, end, made.advice, made.dry_run)


async def _close_source(probes: ProbeSource) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await probes.close()
    except (TimeoutError, ProbeFailed, OSError) as error:
        log.warning("probes.close_failed", error=str(error))


class _Unprobeable:
    """Replaces a probe that cannot be built: its metric is unavailable, with the reason."""

    def __init__(self, detail: str) -> None:
        self._detail = detail

    async def read(self) -> float:
        raise ProbeFailed(Cause.FAILED, self._detail)

    async def close(self) -> None:
        pass


def _probe_for(probes: ProbeSource, spec: MetricSpec) -> Probe:
    """An earlier change may name something that is gone now (a plug-in). The metric stays without a
    value, because a check must not silently ignore it."""
    try:
        return probes.probe_for(spec)
    except InvalidSettings as error:
        log.error("metric.cannot_be_probed", metric=spec.name, fault=str(error))
        return _Unprobeable(f"it cannot be probed: {error}")


def _meaning(spec: MetricSpec) -> object:
    """Values of one metric are values of another where this is equal."""
    return (spec.source, spec.mode, dict(spec.options))


def _pace(spec: MetricSpec) -> object:
    return (spec.interval_s, spec.timeout_s)


# --- for rules ------------------------------------------------------------------------------


def metrics_known_to(book: MetricKeeper, board: Board | None = None) -> KnownMetrics:
    """What rules are held against: the metrics as they are configured now, and with `board` as
    they stand."""

    def known(database: str) -> Mapping[str, KnownMetric]:
        plans = [plan for plan in book.databases() if database in ("", plan.name)]
        entries = {plan.name: book.database(plan.name).entries for plan in plans}
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
