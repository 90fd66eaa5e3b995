"""The composition root: reads the settings, puts the parts together, runs them.

Settings ──build──► Store, Board, Sampler, MetricKeeper, Checker, Recorder, Keeper
                    Listener ──► CheckRoutes (hot) and Control (Starlette)
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from headgate.base.clock import Dice, SystemClock, boot_now
from headgate.base.filelimit import FileRoom, most_connections
from headgate.base.logs import configure_logs
from headgate.base.notify import Notifier
from headgate.base.ports import Clock, PeerLink, Store
from headgate.base.pulse import Pulse
from headgate.base.redaction import shown
from headgate.base.reloading import NOTHING, Confirmed, reload_faults
from headgate.base.supervise import run_loop, supervised
from headgate.budgets.keeper import BudgetRoom
from headgate.budgets.service import Budgets
from headgate.budgets.statements import Statements, StatementsProbe
from headgate.changes.book import OwnBook
from headgate.changes.exchange import Exchange, OwnFacts, Pair
from headgate.changes.files import Room
from headgate.changes.inforce import OwnInForce
from headgate.changes.items import Forgetter
from headgate.changes.model import ChangeKind
from headgate.changes.reach import Place, Reach
from headgate.changes.state import ChangeMade, LogState
from headgate.changes.time import ChangeTime
from headgate.changes.writer import Draft
from headgate.check.board import Board
from headgate.check.checker import Checker, Fairness
from headgate.check.demand import Demands
from headgate.check.reporting import Intake
from headgate.check.routes import CheckRoutes
from headgate.check.sampler import Sampler
from headgate.check.streaming import MAX_SUBSCRIBERS, Broadcasts, Snapshots
from headgate.check.views import AgentFacts, Parts, Views
from headgate.errors import Fault, InvalidSettings, ProbeFailed, StoreUnavailable
from headgate.fleet.assemble import AgentParts, PatroniParts, Roll, access_faults, fleet_parts
from headgate.history.alerts import Alerts
from headgate.history.keeper import Keeper
from headgate.history.minutes import MetricMinutes
from headgate.history.recorder import Recorder
from headgate.history.records import AuditEntry
from headgate.history.rogues import Rogues, SessionsProbe
from headgate.history.unthrottled import UnthrottledBook
from headgate.history.watch import Watch
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Gatekeeper
from headgate.http.control import ROUTES, Control, PageGiven
from headgate.http.debugging import Inside
from headgate.http.exposition import Works
from headgate.http.hosts import KnownHosts
from headgate.http.listener import MAX_TURNED_AWAY, Handlers, Limits, Listener
from headgate.metrics.files import MetricRoom
from headgate.metrics.known import metrics_known_to
from headgate.metrics.lint import MetricLook
from headgate.metrics.model import MetricSpec
from headgate.metrics.probes.calibrate import commit_baseline
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.samples import Cause, Measured
from headgate.metrics.service import MetricKeeper
from headgate.metrics.settings import parse_metric_settings
from headgate.pacing.pacer import Pacers
from headgate.page.sessions import PageSessions
from headgate.rules.drafts import ChangeAuthor, Here
from headgate.rules.matching import RuleBook
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import RuleLimits
from headgate.settings.agent import Settings, examine_settings, load_settings, read_settings
from headgate.settings.document import placed, settings_text
from headgate.settings.sections import (
    AgentSettings,
    Anonymous,
    DatabaseSettings,
    StateLoss,
)
from headgate.shard.files import MEMBERS, MemberRoom
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.peers import open_link
from headgate.shard.peers_api import parse_peer_url
from headgate.shard.routes import Forwarder
from headgate.shard.service import Shards
from headgate.shard.standby import LOOKS_PER_TAKEOVER, ElectedStandby, Standby
from headgate.tracing.assemble import check_tracing, tracer_of
from headgate.tracing.requests import TracedDoor
from headgate.tracing.traced import TracedSampler, traced_link, traced_store
from headgate.version import VERSION
from headgate.wiring import (
    advertised,
    credentials_of,
    faults_of,
    idleness_of,
    own_names,
    part_faults,
    peer_access,
    places_of,
    plan_of,
    policy_of,
    probes_of,
    rollup_plugins,
    shard_plans,
    start_faults,
    store_of,
    tls_of,
    traffic_plans,
    webhook_of,
)

log = structlog.get_logger()

STOP_GRACE_S = 5.0
STORE_RETRY_S = 5.0
TEND_INTERVAL_S = 1.0
BACKLOG = 1024
CALIBRATION_TIMEOUT_S = 60.0
CONNECT_S = 5.0
SHED_AT_ONCE = 16
"""Connections without any request yet, closed when no file can be opened any more."""
SETTLE_S, SETTLE_LOOKS = 0.1, 50
WAIT_FOR_RESTART = ("agent", "peers", "fleet", "patroni", "tracing")
"""Sections whose changes a reload leaves alone."""


def run_agent(settings_path: Path) -> int:
    """Run until SIGTERM or SIGINT. 0: normal stop; 2: invalid settings; 1: fault."""
    try:
        settings = validated(settings_path)
    except InvalidSettings as error:
        print(error, file=sys.stderr)  # noqa: T201 -- before there is a log
        return 2
    configure_logs(settings.agent.log.value)
    # What a service manager says is in the environment.
    agent = Agent(settings, settings_path, notifier=Notifier(os.environ))  # noqa: TID251
    try:
        run_loop(agent.run())
    except OSError as error:
        log.error("agent.cannot_serve", detail=str(error))
        return 1
    return 0


def validated(settings_path: Path) -> Settings:
    """As an agent starts by them; InvalidSettings with every fault. Connects to nothing."""
    content = settings_text(settings_path)
    settings, faults = examine_settings(content, source=str(settings_path))
    _refuse_faults(settings, content, [*faults, *start_faults(settings.agent)])
    return settings


def _refuse_faults(settings: Settings, content: str, more: Iterable[Fault] = ()) -> None:
    """What only building the parts can tell, with the lines of the file."""
    tracing = faults_of(lambda: check_tracing(settings))
    faults = [*more, *part_faults(settings), *tracing, *access_faults(settings)]
    if faults:
        raise placed(InvalidSettings(list(dict.fromkeys(faults))), content, settings.source)


def read_metrics(settings_path: Path) -> list[MetricLook]:
    """Each metric once, from the databases themselves."""
    settings = validated(settings_path)
    return asyncio.run(_read_metrics(settings))


async def _read_metrics(settings: Settings) -> list[MetricLook]:
    looks = [_read_database(database) for database in settings.databases.values()]
    return [reading for found in await asyncio.gather(*looks) for reading in found]


async def _read_database(database: DatabaseSettings) -> list[MetricLook]:
    probes = probes_of(database)
    try:
        specs = database.metrics.values()
        return [await _read_metric(database.name, probes, spec) for spec in specs]
    finally:
        await probes.close()


async def _read_metric(database: str, probes: DatabaseProbes, spec: MetricSpec) -> MetricLook:
    probe = probes.probe_for(spec)
    threshold = f"{spec.comparison.value} {spec.threshold:g}"
    value, detail = None, ""
    try:
        # The first look connects, which a metric's own timeout does not allow for.
        async with asyncio.timeout(spec.timeout_s + CONNECT_S):
            number = await probe.read()
        value, detail = (
            (number.value, number.detail) if isinstance(number, Measured) else (number, "")
        )
    except ProbeFailed as failure:
        detail = f"{failure.cause.value}: {failure.detail}"
    except TimeoutError:
        detail = f"no answer in {spec.timeout_s + CONNECT_S:g} s"
    finally:
        await probe.close()
    return MetricLook(database, spec.name, value, spec.unit, threshold, detail)


def calibrate(settings_path: Path, database: str) -> dict[str, float | str]:
    """Measure commits of an idle database, and propose a threshold for commit_delay."""
    settings = load_settings(settings_path)
    if database not in settings.databases:
        known = ", ".join(sorted(settings.databases)) or "none"
        message = f"no such database; configured: {known}"
        raise InvalidSettings([Fault(f"databases.{database}", message)], str(settings_path))
    return asyncio.run(_calibrate(settings.databases[database]))


async def _calibrate(database: DatabaseSettings) -> dict[str, float | str]:
    probes = probes_of(database)
    spec = parse_metric_settings("commit_delay", {"timeout_s": 5.0}, database.engine)
    probe = probes.probe_for(spec)
    try:
        async with asyncio.timeout(CALIBRATION_TIMEOUT_S):
            found = await commit_baseline(probe)
    finally:
        await probe.close()
        await probes.close()
    return {
        "database": database.name,
        "commits": found.count,
        "p50_s": found.p50_s,
        "p99_s": found.p99_s,
        "suggested_threshold_s": found.suggested_s,
    }


class Agent:
    """One agent, built from settings; `run` serves until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        settings_path: Path | None = None,
        *,
        clock: Clock | None = None,
        dice: Dice | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        agent, aggregates = settings.agent, rollup_plugins()
        self._settings = settings
        self._settings_path = settings_path
        self._settings_text = _text_of(settings_path)
        """Of the file as it was last followed; None where it could not be read again."""
        self._reloading = asyncio.Lock()
        self._clock = clock or SystemClock()
        self._notifier = notifier or Notifier({})
        self._access = peer_access(settings)
        self._page_sessions: PageSessions | None = None
        self.tracer = tracer_of(settings, self._clock)
        self.store = self._traced_store(store_of(agent))
        self.board = Board()
        self.demands = Demands(self._clock)
        self.sampler = self._sampler()
        self.recorder = Recorder(max_clients=agent.max_clients)
        self.minutes = MetricMinutes()
        self.keeper = Keeper(
            self.recorder,
            self.store,
            self._clock,
            history_days=agent.history_days,
            metrics=self.minutes,
        )
        time = ChangeTime(self._clock, boot_now)
        self.book = MetricKeeper(
            self.board,
            self.sampler,
            self._clock,
            make=self._make,
            runtime_sources=agent.runtime_sources,
            rollups=aggregates,
            time=time,
        )
        self.checker = Checker(
            self.board,
            self.recorder,
            self.demands,
            self._clock,
            (dice or Dice()).roll,
            anonymous_may_pass=agent.anonymous is Anonymous.ALLOW,
        )
        snapshots = Snapshots(self.board, self.checker, self.demands)
        most = min(MAX_SUBSCRIBERS, agent.max_connections // 2)
        self.broadcasts = Broadcasts(snapshots, self._clock, most)
        self.intake = Intake(self.recorder, self.board, self._clock, self.demands)
        if agent.fairness_max_wait_s:
            self.checker.fairness = Fairness(agent.fairness_max_wait_s)
        self.shards = Shards(
            self.board,
            self.demands,
            self._clock,
            url=advertised(agent),
            open_link=self._open_link,
            make=self._make,
            reach_of=self._reach_of,
            aggregates=aggregates,
            time=time,
        )
        self.sampler.watch(self.shards.note_reading)
        self.pacers = Pacers(self.board, self._clock)
        self.sampler.watch(self.pacers.note_reading)
        self.board.watch_shards(self.pacers.look)
        self.checker.pacers = self.pacers.by_database
        known_metrics = metrics_known_to(self.book, self.board)
        limits = RuleLimits(agent.rule_default_s, agent.rule_max_s, max_ratio=agent.rule_max_ratio)
        self.rules = RuleKeeper(
            self.store,
            self._clock,
            self._apply_rules,
            known_metrics,
            limits=limits,
            time=time,
            forget=lambda rule_ids: self.own.forget(ChangeKind.RULE, rule_ids),
        )
        self.budgets = Budgets(
            self.store,
            self.board,
            self.demands,
            self._clock,
            stands_aside=self._is_passive,
            time=time,
        )
        self.checker.debits = self.budgets.debits
        roll = (dice or Dice()).roll
        rooms = (self.rules, self.budgets, self.book, self.shards)
        self.own_in_force = OwnInForce(rooms, self._places)
        self.own = OwnBook(
            self.store,
            self._clock,
            known_metrics,
            roll,
            Here(self.rules.advice, self.rules.time.now_s),
            self.own_in_force.changed,
            name=agent.name,
            limits=limits,
        )
        facts = OwnFacts(agent.name, settings.fleet is not None, self._places)
        self.exchange = Exchange(
            self.shards, self.own, self.demands, self._clock, self._open_link, facts
        )
        self.forgetter = Forgetter(
            self.own.forget, self._clock, (*self.shards.kept, self.book.kept)
        )
        self.budgets.own = self.own
        host = AgentParts(
            self.shards,
            self.board,
            self.recorder,
            self.rules,
            self.budgets,
            self.book,
            known_metrics,
            limits,
            self._open_link,
            self.tracer,
        )
        self.fleet = fleet_parts(settings, host, self._clock, roll)
        self.own.has_ended = partial(self.rules.has_ended, own=True)
        self._validate_files()
        self.patroni = PatroniParts(settings, self.shards, self._clock, roll)
        self.standby = standby = self._standby(agent, roll)
        if standby is not None:
            self.exchange.pair = Pair(lambda: standby.url, self._is_passive)
        self.unthrottled = UnthrottledBook(self.store, self._clock)
        self.alerts = Alerts(self._clock, agent=agent.name, send=webhook_of(settings))
        self.watch = self._watch(settings)
        self.rogues = Rogues(self.recorder, self.demands, self._clock, self._sessions)
        self.statements = Statements(
            self.budgets.watched, self.demands, self._clock, self._statements
        )
        self.facts = AgentFacts(agent.name, VERSION, self._clock.now(), standby=self.standby)
        self.facts.unapplied = self._unapplied
        self.facts.spans = None if self.tracer is None else self.tracer.outbox
        parts = Parts(
            self.board,
            self.book,
            self.checker,
            self.recorder,
            self.keeper,
            self.sampler,
            self.store,
            self._clock,
            self.shards,
            self.demands,
            unthrottled=self.unthrottled,
            watch=self.watch,
            rogues=self.rogues,
            broadcasts=self.broadcasts,
            intake=self.intake,
            budgets=self.budgets,
            fleet=self.fleet.look() if self.fleet else None,
            exchange=self.exchange,
        )
        self.views = Views(parts, self.facts)
        self._pulse = Pulse(self._clock)
        self._files = FileRoom()
        self._file_advice = ""
        self.listener = self._listener(settings)
        self._describe(settings)
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._socket_inode: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heartbeat_tasks: list[asyncio.Task[None]] = []

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        self._catch_signals()
        try:
            await self.start()
            await self._stop.wait()
        finally:
            await self.stop()

    async def start(self) -> None:
        await self._bind()
        await self._load(self._settings)
        if self.fleet is not None:
            await self.fleet.recall()
        if self.standby is not None:
            await self.standby.look_once()
            self._background("standby", self.standby.run)
        await self.listener.start()  # Last: no check gets "unknown database" while one is loading.
        self._background("keeper", self.keeper.run)
        self._background("watch", self.watch.run)
        self._background("alerts", self.alerts.run)
        self._background("rogues", self.rogues.run)
        self._background("statements", self.statements.run)
        self._background("rules", self.rules.run)
        self._background("budgets", self.budgets.run)
        self._background("exchange", self.exchange.run)
        self._background("forgetter", self.forgetter.run)
        self._background("metrics", self.book.run)
        for name, run in self.fleet.loops() if self.fleet else ():
            self._background(name, run)
        self._background("tend", self._tend)
        self._background("pulse", self._pulse.run)
        self._background("reload", self._reload_on_hangup)
        # What was built at start-up lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        log.info(
            "agent.serving",
            listen=self.listener.ports,
            socket=str(self._settings.agent.socket or ""),
            databases=sorted(self._settings.databases),
        )
        if self._notifier.is_heard:
            self._notifier.ready(self._status())
            self._background("service", self._tell_manager)

    async def stop(self) -> None:
        log.info("agent.stopping")
        self._notifier.stopping("finishing what is under way")
        self.shards.let_go()
        self.exchange.let_go()
        self.broadcasts.close()
        await self.listener.stop(STOP_GRACE_S)
        for task in [*self._tasks, *self._heartbeat_tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._heartbeat_tasks, return_exceptions=True)
        async with AsyncExitStack() as ends:
            # From the last to the first; one that fails keeps none of the others from its end.
            ends.callback(self._unlink_socket)
            ends.push_async_callback(self._close_store)
            ends.callback(self.own.close)
            ends.push_async_callback(self.budgets.flush)
            ends.push_async_callback(self.keeper.flush)
            ends.push_async_callback(self.book.close)
            ends.push_async_callback(self.shards.close)
            ends.push_async_callback(self.exchange.close)
            ends.push_async_callback(self.patroni.close)
            if self.fleet is not None:
                ends.push_async_callback(self.fleet.close)
            if self.standby is not None:
                ends.push_async_callback(self.standby.leave)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)
        self._files.close()
        log.info("agent.stopped")

    async def _close_store(self) -> None:
        with suppress(StoreUnavailable):
            await self.store.close()

    def _unlink_socket(self) -> None:
        """Only the one that was bound here, if nobody has put another in its place."""
        path = self._settings.agent.socket
        if path is None or self._socket_inode is None:
            return
        with suppress(FileNotFoundError):
            if path.stat().st_ino == self._socket_inode:
                path.unlink()

    async def reload(self, confirmed: Confirmed = NOTHING) -> Sequence[str]:
        """Apply the settings file; returns the sections that wait for a restart. An invalid file
        changes nothing, raises InvalidSettings, and is shown in status."""
        async with self._reloading:
            try:
                return await self._reload(confirmed)
            except InvalidSettings as error:
                self.facts.settings_fault = str(error)
                log.error("settings.refused", detail=str(error))
                raise

    async def _reload(self, confirmed: Confirmed) -> Sequence[str]:
        path = self._settings_path
        if path is None:
            raise InvalidSettings([Fault("", "this agent was started without a settings file")])
        content = await self._settled_text(path)
        settings = read_settings(content, source=str(path))
        _refuse_faults(settings, content)
        before, faults = self._settings, []
        if self._settings_text is not None:
            faults = reload_faults(
                _judged(before), self._settings_text, _judged(settings), content, confirmed
            )
        if faults:
            raise InvalidSettings(faults, str(path))
        waiting = [s for s in WAIT_FOR_RESTART if getattr(settings, s) != getattr(before, s)]
        for section in waiting:
            detail = f"changes in [{section}] wait for one"
            log.warning(f"settings.{section}_needs_restart", detail=detail)
        kept = {section: getattr(before, section) for section in WAIT_FOR_RESTART}
        self._settings = settings = replace(settings, **kept)
        self._settings_text = content
        self._describe(settings)
        self.watch.policy = policy_of(settings)
        self.alerts.send_by(webhook_of(settings))
        await self._adopt(settings)
        self.listener.handlers = self._handlers(settings)
        self.listener.hosts = self._hosts(settings)
        self.listener.forget()
        log.info("settings.reloaded", databases=sorted(settings.databases))
        return waiting

    async def _settled_text(self, path: Path) -> str:
        """What the file says once it stays the same for a moment: it may be half-written."""
        content = settings_text(path)
        for _ in range(SETTLE_LOOKS):
            await self._clock.sleep(SETTLE_S)
            before, content = content, settings_text(path)
            if content == before:
                return content
        fault = Fault("", f"is still being written after {SETTLE_LOOKS * SETTLE_S:g} s")
        raise InvalidSettings([fault], str(path))

    # --- parts -----------------------------------------------------------------------------

    def _listener(self, settings: Settings) -> Listener:
        agent = settings.agent
        probes = sum(database.connections + 2 for database in settings.databases.values())
        most = most_connections(agent.max_connections, MAX_TURNED_AWAY, probes)
        if most < agent.max_connections:
            self._file_advice = (
                f"max_connections is {agent.max_connections}, and this process may open too few "
                f"files for that: {most} connections are served. Raise LimitNOFILE of its unit"
            )
            log.warning("agent.few_files", detail=self._file_advice)
        limits = Limits(
            most,
            agent.max_body_bytes,
            agent.request_timeout_s,
            agent.idle_timeout_s,
        )
        return Listener(self._handlers(settings), limits, self._hosts(settings))

    def _hosts(self, settings: Settings) -> KnownHosts:
        gatekeeper = Gatekeeper(credentials_of(settings, self._access))
        return KnownHosts(own_names(settings.agent), has_token=gatekeeper.has_token)

    def _handlers(self, settings: Settings) -> Handlers:
        gatekeeper = Gatekeeper(credentials_of(settings, self._access))
        works = Works(self._pulse, lambda: self.listener)
        control = Control(
            self.views,
            self.book,
            gatekeeper,
            shards=self.shards,
            demands=self.demands,
            rules=self.rules,
            own=self.own,
            exchange=self.exchange,
            broadcasts=self.broadcasts,
            intake=self.intake,
            unthrottled=self.unthrottled,
            budgets=self.budgets,
            fleet=self.fleet.routed() if self.fleet else None,
            page=self._page(settings),
            works=works,
            reload=self.reload,
            acknowledge=self.acknowledge_loss,
            inside=Inside(
                lambda: shown(self._settings), self._disks, self._ask_server, works=works
            ),
        )
        routes, bridge = CheckRoutes(self.checker), AsgiBridge(control.app())
        if self._settings.agent.forward:
            forwarder = Forwarder(routes, bridge, self.board, self.shards)
            handlers = Handlers(forwarder.prepare, forwarder.serve)
        else:
            handlers = Handlers(routes.prepare, bridge.serve)
        if self.tracer is None:
            return handlers
        paths = (route.path for route in ROUTES if route.handler)
        return TracedDoor(handlers, self.tracer, routes.check_in, paths).handlers()

    def _page(self, settings: Settings) -> PageGiven | None:
        page = settings.page
        if not page.enabled:
            return None
        # Kept through a reload: nobody is signed out by it.
        if self._page_sessions is None:
            self._page_sessions = PageSessions(self._clock, page.session_s)
        self._page_sessions.lasts_s = page.session_s
        return PageGiven(
            self._page_sessions,
            secure=settings.agent.tls_cert is not None,
            tour=page.tour,
            listens=advertised(settings.agent) or None,
            names=own_names(settings.agent),
        )

    def _traced_store(self, store: Store) -> Store:
        return store if self.tracer is None else traced_store(store, self.tracer)

    def _sampler(self) -> Sampler:
        if self.tracer is None:
            return Sampler(self.board, self._clock, self.demands)
        return TracedSampler(self.board, self._clock, self.demands, self.tracer)

    def _watch(self, settings: Settings) -> Watch:
        return Watch(
            self.recorder,
            self.board,
            self._clock,
            self.alerts,
            rules=lambda: self.checker.rules,
            minutes=self.minutes,
            policy=policy_of(settings),
            suspend=self.rules.suspend,
            accounts=self.rules,
        )

    def _sessions(self, database: str) -> SessionsProbe | None:
        source = self.book.source(database)
        return source.sessions() if isinstance(source, DatabaseProbes) else None

    def _statements(self, database: str) -> StatementsProbe | None:
        source = self.book.source(database)
        return source.statements() if isinstance(source, DatabaseProbes) else None

    async def _ask_server(self, database: str) -> Mapping[str, str]:
        source = self.book.source(database)
        if not isinstance(source, DatabaseProbes):
            raise ProbeFailed(Cause.FAILED, "it has no server to connect to")
        return await source.server_facts().read()

    def _disks(self) -> Mapping[str, str]:
        """Where the agent writes."""
        state = self._settings.agent.state
        found = {} if state is None else {"state": str(state.parent)}
        for database in self._settings.databases.values():
            if database.traffic is not None and database.traffic.directory is not None:
                found[f"traffic {database.name}"] = str(database.traffic.directory)
        return found

    def _open_link(self, url: str) -> PeerLink:
        tracer, sender = self.tracer, self._settings.agent.name
        if tracer is None:
            return open_link(url, self._access, sender=sender, now=self._clock.now)
        link = open_link(
            url,
            self._access,
            sender=sender,
            now=self._clock.now,
            traceparent=tracer.traceparent,
        )
        return traced_link(link, tracer)

    def _standby(self, agent: AgentSettings, roll: Roll) -> Standby | ElectedStandby | None:
        standby: Standby | ElectedStandby
        if agent.elect is not None and self.fleet is not None:
            elector = self.fleet.elector(agent)
            standby = ElectedStandby(
                elector,
                self.checker,
                self.demands,
                self._clock,
                warm=agent.warm_standby,
                look=self._look_at(agent),
                takeover_after_s=agent.takeover_after_s,
            )
        elif agent.standby_for is not None:
            standby = self._standby_for(agent.standby_for, agent)
        else:
            return None
        # While passive, clients of this host are sent to the agent that answers for it.
        standby.on_change = lambda: self.shards.speak_at(
            self.checker.active_agent or advertised(agent)
        )
        return standby

    def _look_at(self, agent: AgentSettings) -> Callable[[str], Awaitable[None]]:
        """Whether the agent that leads a pair by the store answers there at all."""
        look_s = max(0.25, agent.takeover_after_s / LOOKS_PER_TAKEOVER)

        async def look(url: str) -> None:
            link = self._open_link(url)
            try:
                await link.ask("GET", "/healthz", timeout_s=look_s)
            finally:
                await link.close()

        return look

    def _standby_for(self, url: str, agent: AgentSettings) -> Standby:
        link = open_link(url, self._access, sender=agent.name, now=self._clock.now)
        look_s = agent.takeover_after_s / LOOKS_PER_TAKEOVER

        async def look() -> None:
            await link.ask("GET", "/healthz", timeout_s=max(0.25, look_s))

        return Standby(
            url,
            look,
            self.checker,
            self.demands,
            self._clock,
            takeover_after_s=agent.takeover_after_s,
            warm=agent.warm_standby,
        )

    def _describe(self, settings: Settings) -> None:
        self.facts.settings = settings.source
        self.facts.settings_fault = None
        told = [str(advice) for advice in settings.advice]
        self.facts.advice = (*told, *filter(None, [self._file_advice]))

    async def _load(self, settings: Settings) -> None:
        try:
            await self.store.open()
            await self._load_state()
        except StoreUnavailable as error:
            log.error("store.unavailable", store=self.store.name, detail=str(error))
            self.keeper.mark_fault(str(error))
            await self._salvage()
            self._background("store", self._load_changes)
        await self._adopt(settings)

    async def _salvage(self) -> None:
        """What can be read of it, or of its copy. Checks do not wait for the rest; the fault stays
        visible. Where nothing can be read, the gate stays shut unless the settings say otherwise:
        a `hold` may have been in force."""
        try:
            await self.own.load(self.own_in_force.load, salvaged=True)
        except StoreUnavailable as error:
            self._lose_state(str(error))

    async def _load_state(self) -> int:
        """All of it is read before any of it counts. How many changes there are."""
        reports = await self.store.reports()
        own = await self.own.load(self.own_in_force.load)
        self.unthrottled.load(reports)
        return len(own.items)

    async def _make(
        self, draft: Callable[[LogState, ChangeAuthor], Draft], who: str, *, dry_run: bool
    ) -> ChangeMade:
        """For the rooms that the agent's own log is built from."""
        return await self.own.make(draft, who, dry_run=dry_run)

    async def _reach_of(self, given: Reach | None, databases: Sequence[str]) -> Reach:
        return await self.exchange.reach(given, databases)

    def _validate_files(self) -> None:
        """What a file of changes says of a kind, the room of that kind validates."""
        members = MemberRoom(self.shards.each, lambda url: parse_peer_url(url).text)
        rooms: dict[str, Room] = {ChangeKind.METRIC: MetricRoom(self.book)}
        rooms |= dict.fromkeys(MEMBERS, members)
        budgets = BudgetRoom(self.budgets.by_database)
        self.own.rooms |= {**rooms, ChangeKind.BUDGET: budgets, ChangeKind.POLICY: budgets}
        if self.fleet is not None:
            self.fleet.book.rooms |= rooms

    def _lose_state(self, why: str) -> None:
        rejects = self._settings.agent.state_lost is StateLoss.REJECT
        does = "every check is rejected" if rejects else "the settings file alone is in force"
        self.facts.state_lost = f"{does}, until an operator acknowledges it. {why}"
        if rejects:
            self.checker.closed = f"the agent has lost its state: {self.facts.state_lost}"
        policy = self._settings.agent.state_lost.value
        log.error("state.lost", store=self.store.name, policy=policy, detail=why)

    def _have_state(self) -> None:
        if self.facts.state_lost is not None:
            log.warning("state.known", store=self.store.name)
        self.facts.state_lost, self.checker.closed = None, ""

    async def acknowledge_loss(self, who: str) -> Sequence[str]:
        """Go on without what is lost: rename the old file and start a new one. Returns the names
        of the renamed files. Conflict where nothing is lost."""
        now_s, target = self._clock.now().wall_s, str(self._settings.agent.state or "")
        entry = AuditEntry(now_s, who, "state.acknowledged", target, self.facts.state_lost, None)
        moved = await self.store.begin_anew(entry)
        log.warning("state.acknowledged", who=who, moved=moved)
        await self._take_up()
        await self.keeper.flush()
        return moved

    async def _take_up(self) -> None:
        """What the store has, now that it can be read."""
        count = await self._load_state()
        self._have_state()
        await self._adopt(self._settings)
        log.info("store.changes_loaded", count=count)

    def _unapplied(self) -> list[str]:
        fleet = [] if self.fleet is None else self.fleet.in_force.failures
        return [*self.own_in_force.faults, *fleet]

    def _places(self) -> list[Place]:
        return places_of(self._settings)

    def _apply_rules(self, book: RuleBook) -> None:
        self.checker.rules = book

    async def _load_changes(self) -> None:
        while True:
            await self._clock.sleep(STORE_RETRY_S)
            with suppress(StoreUnavailable):
                await self.store.open()
                await self._take_up()
                return

    async def _adopt(self, settings: Settings) -> None:
        places = {place.database: place for place in places_of(settings)}
        plans = [plan_of(one, places[name]) for name, one in settings.databases.items()]
        for database in settings.databases.values():
            self.demands.open(database.name, idleness_of(database))
        await self.book.adopt(plans)
        if not self.checker.closed:  # Servers keep the policies that they have.
            await self._adopt_traffic(settings)
        self.patroni.adopt(settings)
        await self.shards.adopt(self.patroni.joined(shard_plans(settings, self.book)))
        if self.fleet is not None:
            self.fleet.adopt(settings)
        self.pacers.look_at_all()
        for name in self.demands.by_database.keys() - settings.databases.keys():
            self.demands.shut(name)
        await self._restart_heartbeats(settings)

    async def _adopt_traffic(self, settings: Settings) -> None:
        try:
            plans = traffic_plans(settings, self._clock, self.tracer)
        except InvalidSettings as error:
            # A policy file that was sound a moment ago: the last good one stays.
            self.facts.settings_fault = str(error)
            log.error("settings.refused", detail=str(error))
            return
        await self.budgets.adopt(plans)

    async def _restart_heartbeats(self, settings: Settings) -> None:
        for task in self._heartbeat_tasks:
            task.cancel()
        await asyncio.gather(*self._heartbeat_tasks, return_exceptions=True)
        beats = [self._heartbeat(d) for d in settings.databases.values() if d.heartbeat_interval_s]
        self.facts.heartbeats = beats
        self.shards.attach_heartbeats(beats)
        self._heartbeat_tasks = [
            asyncio.create_task(supervised(f"heartbeat {beat.database}", beat.run))
            for beat in beats
        ]

    def _heartbeat(self, database: DatabaseSettings) -> Heartbeat:
        interval_s = database.heartbeat_interval_s
        writer = probes_of(database).heartbeat_writer(
            database.heartbeat_table, interval_s=interval_s
        )
        return Heartbeat(
            database.name,
            writer,
            self._clock,
            self.demands.by_database[database.name],
            interval_s=interval_s,
            lease_s=database.heartbeat_lease_s,
            stands_aside=lambda: self._beats_elsewhere(database.name),
        )

    def _beats_elsewhere(self, database: str) -> bool:
        """On a replica, and on a standby whose active agent beats already."""
        return self._is_passive() or self.shards.is_replica(database)

    def _is_passive(self) -> bool:
        return self.standby is not None and self.standby.passive

    # --- loops and signals -----------------------------------------------------------------

    def _background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(supervised(name, run), name=name))

    async def _tend(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.listener.tend(loop.time())
            if not self._files.look():
                self.listener.shed(SHED_AT_ONCE)
            self.facts.files_fault = self._files.fault
            self.views.note_health()
            self.demands.tick(self._clock.now().mono_s)
            await self._clock.sleep(TEND_INTERVAL_S)

    async def _tell_manager(self) -> None:
        """That this loop runs (a stuck one is restarted), and, when it changes, how it is."""
        told = ""
        while True:
            self._notifier.alive()
            if (status := self._status()) != told:
                self._notifier.status(status)
                told = status
            await self._clock.sleep(self._notifier.sign_interval_s)

    def _status(self) -> str:
        doc, count = self.views.ready(), len(self._settings.databases)
        does = "standby for" if self._is_passive() else "serving"
        said = [f"{does} {count} database{'s' if count != 1 else ''}"]
        if self.facts.settings_fault is not None:
            said.append("the settings file is invalid; the earlier settings stay in force")
        return "; ".join([*said, *doc.waiting_for, *doc.notes])

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)

    async def _reload_on_hangup(self) -> None:
        """One reload at a time; hang-ups that come meanwhile make one more."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            self._notifier.reloading(self._clock.now().mono_s)
            try:
                with suppress(InvalidSettings):
                    await self.reload()
            finally:
                self._notifier.ready(self._status())

    async def _bind(self) -> None:
        loop, agent = asyncio.get_running_loop(), self._settings.agent
        if agent.listen is not None:
            host, port = agent.listen
            server = await loop.create_server(
                self.listener,
                host,
                port,
                ssl=(tls := tls_of(agent)),
                ssl_handshake_timeout=agent.request_timeout_s if tls else None,
                backlog=BACKLOG,
                start_serving=False,
            )
            self.listener.add(server)
        if agent.socket is not None:
            sock = _unix_socket(agent.socket, int(agent.socket_mode, 8))
            self._socket_inode = agent.socket.stat().st_ino
            unix = await loop.create_unix_server(
                self.listener, sock=sock, backlog=BACKLOG, start_serving=False
            )
            self.listener.add(unix)


def _judged(settings: Settings) -> Mapping[str, object]:
    """A threshold, a shard, or what is done about a member that is missing: all of it counts."""
    return {name: (database, settings.peers) for name, database in settings.databases.items()}


def _text_of(path: Path | None) -> str | None:
    with suppress(InvalidSettings):
        return None if path is None else settings_text(path)
    return None


def _unix_socket(path: Path, mode: int) -> socket.socket:
    """Bound with its permissions in place before anybody can connect."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        remedy = f": mkdir -p {path.parent}" if not path.parent.exists() else ""
        raise OSError(f"socket {path} cannot be made: {error.strerror or error}{remedy}") from None
    finally:
        os.umask(umask)
    path.chmod(mode)
    return sock


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        else:
            raise OSError(f"{path} is served by another process")
