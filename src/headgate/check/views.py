"""The agent's state as documents. Reads frozen values; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headgate.base.declared import iso
from headgate.base.names import Identity, Scope
from headgate.base.ports import Clock, SpansOut, Store
from headgate.base.redaction import redacted
from headgate.budgets.service import Budgets
from headgate.budgets.views import told_of
from headgate.changes.state import CopyState
from headgate.check.answer_api import MetricDoc
from headgate.check.answers import metric_doc
from headgate.check.api import (
    ClientDoc,
    ClientsDoc,
    DatabaseDoc,
    ReadyDoc,
    StatusDoc,
    StoreDoc,
)
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.decide import findings, idles, judge
from headgate.check.demand import Demands, Work
from headgate.check.health import Window, stand
from headgate.check.model import Activity, Check, Verdict
from headgate.check.reasons import WAKES, duration, reason_of
from headgate.check.reporting import Intake
from headgate.check.sampler import Sampler
from headgate.check.streaming import Broadcasts
from headgate.fleet.status import FleetLook
from headgate.history.api import rogue_advice, starvation_advice
from headgate.history.keeper import Keeper
from headgate.history.recorder import Recorder
from headgate.history.rogues import Rogues
from headgate.history.unthrottled import UnthrottledBook
from headgate.history.unthrottled_api import UnthrottledDoc, unthrottled_advice
from headgate.history.watch import Watch
from headgate.metrics.samples import Cause, Instant
from headgate.metrics.service import (
    DatabasePlan,
    MetricEntry,
    MetricKeeper,
    NoSuchMetric,
    metrics_known_to,
)
from headgate.pacing.api import PaceDoc, pace_doc
from headgate.pacing.pacer import paced
from headgate.rules.api import exemptions_told
from headgate.shard.api import CostDoc, ShardDoc, shard_advice, shard_doc
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.model import ShardView
from headgate.shard.standby import ElectedStandby, Standby

# The agent checks under this name, for status only; it is counted nowhere.
SELF = Identity("headgate", ("headgate",))
MAX_CLIENTS_SHOWN = 1000
MAX_TALLIES_SHOWN = 10_000
UNTHROTTLED_S = 3600.0
"""How long the status shows that a client worked without a throttler."""


@dataclass(slots=True)
class AgentFacts:
    """What app.py knows of the process and its settings file."""

    name: str
    version: str
    started_at: Instant
    settings: str = ""
    settings_fault: str | None = None
    unapplied: Callable[[], Sequence[str]] = tuple
    """Parts that failed to apply changes."""
    state_lost: str | None = None
    """The operators' changes are lost: why, and what is done about it."""
    files_fault: str | None = None
    """The process can open no more files."""
    advice: tuple[str, ...] = ()
    heartbeats: list[Heartbeat] = field(default_factory=list)
    standby: Standby | ElectedStandby | None = None
    spans: SpansOut | None = None
    """None: nothing is traced."""


class ShardSource(Protocol):
    """As much of shard/service.Shards as is looked at."""

    def view(self, database: str) -> ShardView | None: ...


class CopySource(Protocol):
    """As much of changes/exchange.Exchange as is looked at."""

    def copies(self, shard: str) -> Mapping[str, CopyState]: ...


@dataclass(frozen=True, slots=True)
class LocalClients:
    """The agent's side of clients that decide locally."""

    broadcasts: Broadcasts
    intake: Intake


@dataclass(frozen=True, slots=True)
class ClientWatchers:
    """What watches over clients."""

    watch: Watch | None = None
    rogues: Rogues | None = None
    unthrottled: UnthrottledBook | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The running agent, as far as it is looked at."""

    board: Board
    book: MetricKeeper
    checker: Checker
    recorder: Recorder
    keeper: Keeper
    sampler: Sampler
    store: Store
    clock: Clock
    local: LocalClients
    shards: ShardSource | None = None
    demands: Demands | None = None
    watchers: ClientWatchers = ClientWatchers()
    budgets: Budgets | None = None
    fleet: FleetLook | None = None
    exchange: CopySource | None = None


class Views:
    def __init__(self, parts: Parts, facts: AgentFacts) -> None:
        self.parts = parts
        self.facts = facts
        self.last_healthy: dict[str, float] = {}
        """Database → when a check would last have been admitted."""
        self._shards_at: tuple[Instant, list[ShardDoc]] | None = None

    # --- the host --------------------------------------------------------------------------

    def note_health(self) -> None:
        """Called about once a second: remembers when each database last let work through."""
        now = self.parts.clock.now()
        for name, health in self.parts.board.healths.items():
            if health.own.all_pass and now.mono_s <= health.own.all_pass_until:
                self.last_healthy[name] = now.mono_s

    def status(self) -> StatusDoc:
        facts, parts, now = self.facts, self.parts, self.parts.clock.now()
        uptime_s = now.mono_s - facts.started_at.mono_s
        databases = [self._database(plan) for plan in parts.book.databases()]
        shards = [shown.shard for shown in databases if shown.shard is not None]
        fault = parts.keeper.fault
        return StatusDoc(
            agent=facts.name,
            version=facts.version,
            uptime_s=uptime_s,
            settings=facts.settings,
            settings_fault=facts.settings_fault,
            databases=databases,
            clients=self.clients().clients,
            store=StoreDoc(
                name=parts.store.name,
                writable=fault is None,
                fault=fault.detail if fault else None,
                fault_for_s=now.wall_s - fault.since_wall_s if fault else None,
                tallies_waiting=parts.recorder.waiting,
            ),
            fleet=None if parts.fleet is None else parts.fleet.doc(now),
            state_lost=facts.state_lost,
            advice=[
                *self._advice(now),
                *(told for doc in shards for told in shard_advice(doc, uptime_s=uptime_s)),
                *self._own_advice(now),
            ],
        )

    def _advice(self, now: Instant) -> Iterator[str]:
        """What needs a person first comes first."""
        parts, facts = self.parts, self.facts
        yield from filter(None, [facts.files_fault])
        yield from self._watched_advice()
        yield from self._fleet_advice()
        if (book := parts.watchers.unthrottled) is not None:
            yield from unthrottled_advice(self.unthrottled(book, UNTHROTTLED_S))
        known = metrics_known_to(parts.book)
        yield from exemptions_told(parts.checker.rules, now.wall_s, known)
        for controlled in parts.budgets.by_database.values() if parts.budgets is not None else ():
            yield from told_of(controlled, now.wall_s)
        yield from parts.store.notes
        yield from facts.unapplied()
        yield from facts.advice

    def _watched_advice(self) -> list[str]:
        """Who is starved comes first of all."""
        watch, rogues = self.parts.watchers.watch, self.parts.watchers.rogues
        starved = starvation_advice(watch.findings) if watch is not None else []
        for database in rogues.databases if rogues is not None else ():
            health = self.parts.board.healths.get(database)
            rejecting = health is not None and not health.own.all_pass
            found = rogues.suspects(database) if rogues is not None and rejecting else ()
            starved += rogue_advice(database, found, rejecting=rejecting)
        return starved

    def _fleet_advice(self) -> list[str]:
        return [] if self.parts.fleet is None else self.parts.fleet.advice()

    def _own_advice(self, now: Instant) -> Iterator[str]:
        """Of this process, and of what the file says and runtime changes hide."""
        if (standby := self.facts.standby) is not None:
            yield standby.words(duration(max(0.0, now.mono_s - standby.stands_since.mono_s)))
        for beat in self.facts.heartbeats:
            if beat.fault:
                yield f"{beat.database}: heartbeat cannot be written: {beat.fault}"
        book = self.parts.book
        for plan in book.databases():
            for entry in book.database(plan.name).entries.values():
                yield from hides_file(plan, entry)
            for metric in book.database(plan.name).removed():
                yield (
                    f"{plan.name}/{metric}: removed at run time"
                    f"{_until(book.expires_at(plan.name, metric))}, although the file sets "
                    f"it; `headgate metrics revert {plan.name} {metric}` restores it"
                )

    def unthrottled(
        self, book: UnthrottledBook, since_s: float, app: str | None = None
    ) -> list[UnthrottledDoc]:
        now_s = self.parts.clock.now().wall_s
        return [
            UnthrottledDoc(
                client=client,
                databases=period.databases,
                started_at=iso(period.started_at),
                duration_s=period.duration_s,
                ended_s_ago=max(0.0, now_s - period.ended_at),
                pieces=period.pieces,
            )
            for client, period in book.since(now_s - since_s)
            if is_of(client, app)
        ]

    def _database(self, plan: DatabasePlan) -> DatabaseDoc:
        name = plan.name
        health = self.parts.board.healths.get(name)
        host_only = health is not None and health.own is health.host
        scope = Scope.HOST if host_only else None
        decision = self.parts.checker.gate(Check(SELF, name, scope=scope))
        now, activity = decision.at.mono_s, self.activity(name)
        by_metrics = decision.verdict in (Verdict.OK, Verdict.METRIC_UNAVAILABLE)
        idle = by_metrics and self.idles(name, decision.at)
        healthy_at = now if decision.admitted else self.last_healthy.get(name)
        shard = self._shard(name, decision.at)
        own = [one.role for one in shard.members if one.member == shard.member] if shard else []
        return DatabaseDoc(
            database=name,
            engine=plan.engine.value,
            verdict=decision.verdict.value,
            reason=f"{name}: {WAKES}" if idle else reason_of(decision),
            healthy_s_ago=None if healthy_at is None else now - healthy_at,
            metrics=[metric_doc(finding, activity) for finding in findings(decision)],
            other_metrics=[
                self.metric_now(name, entry)
                for metric, entry in self.parts.book.database(name).entries.items()
                if not (entry.enabled and plan.in_default(metric))
            ],
            role=next(iter(own), None),
            activity=activity.value,
            idle=idle,
            shard=shard,
            pace=self.pace(name),
        )

    def pace(self, database: str) -> PaceDoc | None:
        pacer = self.parts.checker.pacers.get(database)
        health = self.parts.board.healths.get(database)
        # Switched off, it is let go of at the next reading; it holds nobody any more.
        if pacer is None or health is None or not paced(health):
            return None
        waiting = [
            client
            for name, client, record in self.parts.recorder.clients()
            if name == database and record.last_verdict is Verdict.PACED
        ]
        return pace_doc(
            pacer.pace,
            list(pacer.metrics.values()),
            worst=pacer.worst,
            cost_total=pacer.cost_total,
            paced_total=pacer.paced_total,
            clients=waiting,
        )

    def ready(self) -> ReadyDoc:
        waiting = []
        for name, health in self.parts.board.healths.items():
            for standing in health.own.standings:
                if standing.absent and standing.absent.cause is Cause.NEVER_READ:
                    waiting.append(f"{name}/{standing.spec.name}: no probe has finished yet")
        if self.facts.state_lost is not None:
            waiting.append(f"state: {self.facts.state_lost}")
        if self.facts.files_fault is not None:
            waiting.append(self.facts.files_fault)
        fault = self.parts.keeper.fault
        if fault is not None:
            waiting.append(f"store {self.parts.store.name}: {fault.detail}")
        # Checks never wait for the fleet: that it is away is shown, and no client is redirected.
        return ReadyDoc(ready=not waiting, waiting_for=waiting, notes=self._fleet_advice())

    # --- the shard -------------------------------------------------------------------------

    def shard(self, database: str) -> ShardDoc:
        names = [plan.name for plan in self.parts.book.databases()]
        if database not in names:
            raise NoSuchMetric(f"no database {database!r}; configured: {', '.join(names)}")
        doc = self._shard(database, self.parts.clock.now())
        if doc is None:
            raise NoSuchMetric(
                f"{database} belongs to no shard: give [databases.{database}] a shard and a "
                "member in the settings file, and SIGHUP the agent"
            )
        return doc

    def _shard(self, database: str, now: Instant) -> ShardDoc | None:
        shards, health = self.parts.shards, self.parts.board.healths.get(database)
        view = shards.view(database) if shards is not None else None
        if view is None:
            return None
        specs = {name: s.spec for name, s in health.standings.items()} if health else {}
        exchange = self.parts.exchange
        copies = {} if exchange is None else exchange.copies(view.shard)
        return shard_doc(view, specs, now, self.costs(database), copies)

    def shards(self, now: Instant) -> list[ShardDoc]:
        """Made once for all who look at one instant, as the series of a scrape do."""
        if self._shards_at is None or self._shards_at[0] != now:
            found = (self._shard(plan.name, now) for plan in self.parts.book.databases())
            self._shards_at = (now, [doc for doc in found if doc is not None])
        return self._shards_at[1]

    def activity(self, database: str) -> Activity:
        demands = self.parts.demands
        demand = demands.by_database.get(database) if demands is not None else None
        return demand.state if demand is not None else Activity.AWAKE

    def idles(self, database: str, now: Instant) -> bool:
        """Nobody checks it, and nothing else is wrong with its metrics."""
        health = self.parts.board.healths.get(database)
        return health is not None and idles(health.own.standings, self.activity(database), now)

    def costs(self, database: str) -> list[CostDoc]:
        """What watching it has cost, by state."""
        demands = self.parts.demands
        demand = demands.by_database.get(database) if demands is not None else None
        if demand is None:
            return []
        cost = demand.costs
        return [
            CostDoc(
                state=state.value,
                probes=cost[(state, Work.PROBES)],
                messages=cost[(state, Work.MESSAGES)],
                beats=cost[(state, Work.BEATS)],
            )
            for state in Activity
        ]

    def metric_now(
        self, database: str, entry: MetricEntry, window: Window | None = None
    ) -> MetricDoc:
        """The value of `window`, or the last one."""
        spec = entry.spec
        if window is None:
            window = self.parts.board.window(database, spec.name) or Window()
        finding = judge(stand(spec, window), self.parts.clock.now())
        doc = metric_doc(finding, self.activity(database))
        if entry.enabled:
            return doc
        return msgspec.structs.replace(doc, state="disabled", cause=None, detail="enabled = false")

    def clients(self) -> ClientsDoc:
        """The newest first."""
        now_s, records = self.parts.clock.now().wall_s, list(self.parts.recorder.clients())
        records.sort(key=lambda item: item[2].last_at, reverse=True)
        return ClientsDoc(
            [
                ClientDoc(
                    client=client,
                    database=database,
                    admitted=record.admitted,
                    rejected=record.rejected,
                    last_verdict=record.last_verdict.value,
                    last_seen_s_ago=max(0.0, now_s - record.last_at),
                    rejected_for_s=None
                    if record.rejected_since is None
                    else max(0.0, now_s - record.rejected_since),
                    rejected_by=record.rejected_by,
                )
                for database, client, record in records[:MAX_CLIENTS_SHOWN]
            ]
        )


def hides_file(plan: DatabasePlan, entry: MetricEntry) -> list[str]:
    file, name = plan.raw_metrics.get(entry.spec.name), f"{plan.name}/{entry.spec.name}"
    if file is None or entry.origin != "runtime":
        return []
    # Switched off and on again is as it was.
    ours, theirs = {"enabled": True, **entry.raw}, {"enabled": True, **file}
    hidden = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if not hidden:
        return []
    shown = redacted(theirs)
    told = ", ".join(
        f"{key} = {msgspec.json.encode(shown[key]).decode() if key in shown else 'default'}"
        for key in hidden
    )
    again = f"`headgate metrics revert {plan.name} {entry.spec.name}` restores them"
    until = _until(entry.expires_at)
    return [f"{name}: runtime settings hide the file's{until}: {told}; {again}"]


def is_of(client: str, app: str | None) -> bool:
    """Whether `app` is this client, or one of its levels."""
    return app is None or client == app or app in client.split(":")


def _until(wall_s: float | None) -> str:
    return "" if wall_s is None else f" until {iso(wall_s)}"
