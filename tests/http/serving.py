"""The real listener over real parts, in a thread with a loop of its own.

Only the probes are scripted: a test says what the database measures, and asks over a socket.
Tests stay synchronous, so that blocking sockets and hypothesis work as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from headgate.base.clock import SystemClock
from headgate.base.ports import PeerLink, SharedLog, Store
from headgate.budgets.keeper import BudgetRoom
from headgate.budgets.service import Budgets, TrafficPlan
from headgate.changes.book import SharedBook
from headgate.changes.exchange import Exchange, OwnFacts
from headgate.changes.inforce import OwnInForce
from headgate.changes.mirror import Mirror
from headgate.changes.model import ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.reach import Place
from headgate.changes.state import ChangeMade, Draft, LogState
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.model import Idleness
from headgate.check.reporting import Intake
from headgate.check.routes import NAMED, CheckRoutes
from headgate.check.sampler import Sampler
from headgate.check.streaming import Broadcasts, Snapshots
from headgate.check.views import AgentFacts, ClientWatchers, LocalClients, Parts, Views
from headgate.errors import ProbeFailed
from headgate.fleet.routes import Fleet
from headgate.history.keeper import Keeper
from headgate.history.recorder import Recorder
from headgate.history.unthrottled import UnthrottledBook
from headgate.http.asgi import AsgiApp, AsgiBridge
from headgate.http.auth import Credential, Gatekeeper, KnownHosts
from headgate.http.control import Control, ControlParts, PageGiven
from headgate.http.listener import Connection, Handlers, Limits, Listener
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.reaching import MetricRoom
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.metrics.service import DatabasePlan, MetricKeeper, metrics_known_to
from headgate.pacing.pacer import Pacers
from headgate.page.sessions import PageSessions
from headgate.rules.drafts import ChangeAuthor, Here, RuleDrafts
from headgate.rules.matching import NO_RULES, Rule, RuleBook, book_of
from headgate.rules.service import RuleKeeper
from headgate.shard.peers import PeerAccess, open_link
from headgate.shard.routes import ShardsPort
from headgate.shard.service import Shards
from tests.changes.exchange_world import StubShards, stub_shard
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.memory_store import MemoryStore
from tests.http.talk import Address, Reply, Talk

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

LOOPS: dict[str, LoopFactory] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}
LIMITS = Limits(
    max_connections=64, max_body_bytes=65536, request_timeout_s=DEADLINE_S, idle_timeout_s=75.0
)
HEALTHY = {"lag": 0.25, "threads_running": 3.0, "pool_usage": 0.1}
# No value goes stale while the machine pauses: what is lost, a test loses itself.
METRICS: Mapping[str, Mapping[str, Any]] = {name: {"max_age_s": 600} for name in HEALTHY}
OPERATOR, VIEWER, PEER = "operator-token", "viewer-token", "peer-token"
TEND_EVERY_S = 0.02


@dataclass(frozen=True)
class ScriptedProbe:
    """Reads what the script says now."""

    script: Script
    metric: str

    async def read(self) -> float:
        value = self.script.values.get(self.metric, 0.0)
        if isinstance(value, ProbeFailed):
            raise value
        return value

    async def close(self) -> None:
        pass


@dataclass
class Script:
    """What each metric measures; a ProbeFailed is an absence. Also the source of its probes."""

    values: dict[str, float | ProbeFailed] = field(default_factory=dict)

    def probe_for(self, spec: MetricSpec) -> ScriptedProbe:
        return ScriptedProbe(self, spec.name)

    async def close(self) -> None:
        pass


@dataclass
class Dice:
    """Lands as given."""

    lands: float = 0.5

    def roll(self) -> float:
        return self.lands


@dataclass(frozen=True)
class Plan:
    """What to serve; the defaults suit most tests."""

    limits: Limits = LIMITS
    databases: tuple[str, ...] = ("main", "replica")
    max_clients: int = 1000
    anonymous_may_pass: bool = False
    tokens: bool = True
    store: Store | None = None
    app: AsgiApp | None = None
    """Instead of the control plane."""
    tls: ssl.SSLContext | None = None
    """For the TCP listener."""
    traffic: TrafficPlan | None = None
    """Traffic control, of one of the databases."""
    fleet: SharedLog | None = None
    """The store of the fleet that it belongs to."""
    shards: ShardsPort | None = None
    """What operators set of the shards."""
    shard: str = ""
    """To which all of its databases belong, as far as its changes go; it leads nothing at first."""
    tended: bool = True
    """Else connections are late only where a test says so: `Served.later`."""


class Served:
    """A running listener and its parts. Methods may be called from the test's thread."""

    def __init__(self, plan: Plan, socket_path: Path) -> None:
        self.clock = SystemClock()
        self.store = plan.store or MemoryStore()
        self.board = Board()
        self.demands = Demands(self.clock)
        for database in plan.databases:
            self.demands.open(database, Idleness())
        self.sampler = Sampler(self.board, self.clock, self.demands)
        self.recorder = Recorder(max_clients=plan.max_clients)
        self.keeper = Keeper(self.recorder, self.store, self.clock, history_days=14)
        self.book = MetricKeeper(
            self.board,
            self.sampler,
            self.clock,
            make=self._make,
            runtime_sources=("sql", "url"),
        )
        self.dice = Dice()
        self.checker = Checker(
            self.board,
            self.recorder,
            self.demands,
            self.clock,
            self.dice.roll,
            anonymous_may_pass=plan.anonymous_may_pass,
        )
        self.pacers = Pacers(self.board, self.clock)
        self.sampler.watch(self.pacers.note_reading)
        self.checker.pacers = self.pacers.by_database
        known_metrics = metrics_known_to(self.book)
        self.rules = RuleKeeper(self.store, self.clock, self._apply, known_metrics)
        self.budgets = Budgets(self.store, self.board, self.demands, self.clock)
        rooms = (self.rules, self.budgets, self.book)
        self.own_in_force = OwnInForce(rooms, self._places, self.clock)
        here = Here(self.rules.advice, self.rules.time.now_s)
        self.own = OwnBook(
            self.store,
            self.clock,
            lambda: 0.5,
            RuleDrafts(known_metrics, here=here),
            self.own_in_force.changed,
        )
        self.budgets.own = self.own
        budgets = BudgetRoom(self.budgets.by_database)
        self.own.rooms |= {
            ChangeKind.BUDGET: budgets,
            ChangeKind.POLICY: budgets,
            ChangeKind.METRIC: MetricRoom(self.book),
        }
        self.shard = stub_shard(plan.shard, "agent", self.demands)
        self.exchange = None if not plan.shard else self._exchange(plan)
        self.checker.debits = self.budgets.debits
        self.unthrottled = UnthrottledBook(self.store, self.clock)
        snapshots = Snapshots(self.board, self.checker, self.demands)
        self.broadcasts = Broadcasts(snapshots, self.clock)
        self.intake = Intake(self.recorder, self.board, self.clock, self.demands)
        self.views = Views(
            Parts(
                self.board,
                self.book,
                self.checker,
                self.recorder,
                self.keeper,
                self.sampler,
                self.store,
                self.clock,
                LocalClients(self.broadcasts, self.intake),
                watchers=ClientWatchers(unthrottled=self.unthrottled),
                budgets=self.budgets,
            ),
            AgentFacts("test-agent", "0.0", self.clock.now()),
        )
        self.fleet = None if plan.fleet is None else self._fleet_of(plan.fleet)
        self.script = Script(dict(HEALTHY))
        self.socket_path = socket_path
        self.accidents: list[dict[str, Any]] = []
        """What reached the loop's exception handler: there is never a reason for one."""
        self.control = Control(
            ControlParts(
                self.views,
                gatekeeper(plan),
                rules=self.rules,
                own=self.own,
                exchange=self.exchange,
                fleet=self.fleet,
                shards=plan.shards,
                demands=self.demands,
                page=PageGiven(PageSessions(SystemClock(), 3600.0), names=frozenset({"agent"})),
            )
        )
        app = plan.app or self.control.app()
        self.listener = Listener(
            Handlers(CheckRoutes(self.checker).prepare, AsgiBridge(app).serve, NAMED),
            plan.limits,
            KnownHosts({"agent"}, has_token=gatekeeper(plan).has_token),
        )
        self._plan = plan
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    def _fleet_of(self, store: SharedLog) -> Fleet:
        known = metrics_known_to(self.book)
        book = SharedBook(store, self.clock, self.dice.roll, RuleDrafts(known))
        book.rooms |= {ChangeKind.METRIC: MetricRoom(self.book)}
        return Fleet(book, Mirror(self.clock))

    # --- on the server's loop --------------------------------------------------------------

    async def start(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.accidents.append(context))
        await self.store.open()
        await self.book.adopt(
            [
                DatabasePlan(
                    name, Engine.MYSQL, METRICS, lambda: self.script, place=Place(database=name)
                )
                for name in self._plan.databases
            ]
        )
        held = await self.own.load()
        await self.own_in_force.load(list(held.items.values()))
        if self._plan.traffic is not None:
            await self.budgets.adopt([self._plan.traffic])
            await self.budgets.tick()
        tcp = await loop.create_server(
            self.listener, "127.0.0.1", 0, backlog=256, ssl=self._plan.tls
        )
        self.listener.add(tcp)
        self.listener.add(await loop.create_unix_server(self.listener, self.socket_path))
        for database in self._plan.databases:
            for metric in METRICS:
                self._push(database, metric)

    async def _make(
        self, draft: Callable[[LogState, ChangeAuthor], Draft], who: str, *, dry_run: bool
    ) -> ChangeMade:
        return await self.own.make(draft, who, dry_run=dry_run)

    def _places(self) -> list[Place]:
        shard = self._plan.shard
        return [Place(shard=shard, host="agent", database=name) for name in self._plan.databases]

    def _exchange(self, plan: Plan) -> Exchange:
        """With nobody, unless a test says with whom."""
        shards = cast(Shards, StubShards({plan.shard: self.shard}))
        has_fleet, left_out = plan.fleet is not None, lambda: self.budgets.left_out
        own = OwnFacts("agent", has_fleet, self._places, left_out)
        return Exchange(shards, self.own, self.demands, self.clock, self._open_link, own)

    def _open_link(self, url: str) -> PeerLink:
        return open_link(url, PeerAccess(token=PEER), sender="agent", now=self.clock.now)

    def _apply(self, book: RuleBook) -> None:
        self.checker.rules = book

    async def run(self) -> None:
        """Tend, as app.py does, until stopped."""
        while not self._stop.is_set():
            if self._plan.tended:
                self.listener.tend(self._loop.time())
            self.views.note_health()
            with suppress(TimeoutError):
                async with asyncio.timeout(TEND_EVERY_S):
                    await self._stop.wait()

    async def end(self) -> None:
        self.broadcasts.close()
        if self.exchange is not None:
            await self.exchange.close()
        await self.listener.stop(0.5)
        await self.book.close()
        await self.store.close()

    def _push(self, database: str, metric: str) -> None:
        value, now = self.script.values[metric], self.clock.now().mono_s
        if isinstance(value, ProbeFailed):
            self.board.push(database, metric, Absent(value.cause, value.detail, now))
        else:
            self.board.push(database, metric, Sample(value, now))

    # --- from the test's thread ------------------------------------------------------------

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.listener.ports[0])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.listener.ports[0]}"

    def run_there(self, work: Callable[[], Awaitable[T]]) -> T:
        async def there() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(DEADLINE_S)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        async def there() -> T:
            return function(*args)

        return self.run_there(there)

    def later(self, seconds: float) -> None:
        """Tend as if so much time had passed."""
        self.tend(seconds)
        self.tend(seconds)  # At the first one, it may seem that the loop stood still.

    def tend(self, later_s: float = 0.0) -> None:
        self.call(lambda: self.listener.tend(self._loop.time() + later_s))

    def measure(self, **values: float | ProbeFailed) -> None:
        """From now on the probes answer this, and it has just been read."""
        self.call(self._measure, values)

    def _measure(self, values: Mapping[str, float | ProbeFailed]) -> None:
        self.script.values.update(values)
        for database in self._plan.databases:
            for metric in values:
                if metric in self.script.values:
                    self._push(database, metric)

    def lose(self, metric: str, cause: Cause = Cause.FAILED, detail: str = "rejected") -> None:
        self.measure(**{metric: ProbeFailed(cause, detail)})

    def rule(self, *rules: Rule) -> None:
        self.call(setattr, self.checker, "rules", book_of(rules) if rules else NO_RULES)

    def counted(self, client: str, verdict: str | None = None) -> int:
        totals = self.call(self.recorder.totals)
        return sum(
            count
            for (_, name, told, _), count in totals.items()
            if name == client and verdict in (None, told.value)
        )

    def tasks(self) -> int:
        """Requests being served, changes being made: all but the probes and this call."""
        under_way = self.call(lambda: [repr(task.get_coro()) for task in asyncio.all_tasks()])
        return sum("Connection._serve" in coro or "MetricKeeper" in coro for coro in under_way)

    def talk(self, *, timeout_s: float = DEADLINE_S, unix: bool = False) -> Talk:
        return Talk(str(self.socket_path) if unix else self.address, timeout_s)

    def ask(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        unix: bool = False,
        **headers: str,
    ) -> Reply:
        with self.talk(unix=unix) as talk:
            return talk.ask(method, target, body=body, **headers)

    def connection(self, talk: Talk) -> Connection:
        """The server's end of a TCP connection, to hand it bytes cut as a test wants them."""
        name = talk.sock.getsockname()

        def found() -> Connection | None:
            open_ones = self.listener.connections
            mine = (c for c in open_ones if c._transport.get_extra_info("peername") == name)
            return next(mine, None)

        connection = self.call(found) or eventually(lambda: self.call(found))
        assert connection is not None
        return connection

    def feed(self, connection: Connection, *pieces: bytes, turns: int = 0) -> None:
        """As the loop does: one read each, none once it is closing; `turns` in between."""

        async def one_by_one() -> None:
            for piece in pieces:
                if connection._transport.is_closing():
                    return
                connection.data_received(piece)
                for _ in range(turns):
                    await asyncio.sleep(0)

        self.run_there(one_by_one)

    def settled(self) -> bool:
        """No connection and no request is left."""
        listener = self.listener
        return not listener.connections and not listener.turned_away and not self.tasks()

    def reset(self) -> None:
        """Back to how it began, for the next test."""
        self.dice.lands = 0.5
        self.rule()
        self.call(setattr, self.checker, "fairness", None)
        self.measure(**HEALTHY)
        self.call(self.listener.repeats.forget)


def gatekeeper(plan: Plan) -> Gatekeeper:
    if not plan.tokens:
        return Gatekeeper([])
    return Gatekeeper(
        [
            Credential("ops", "operator", hashlib.sha256(OPERATOR.encode()).hexdigest()),
            Credential("eve", "viewer", hashlib.sha256(VIEWER.encode()).hexdigest()),
            Credential("db-b", "peer", hashlib.sha256(PEER.encode()).hexdigest()),
        ]
    )


def bearer(token: str) -> str:
    return f"Bearer {token}"


@contextmanager
def serving(loop: LoopFactory, directory: Path, plan: Plan | None = None) -> Iterator[Served]:
    """Serve on loopback TCP and on a Unix socket, in a thread, until the block ends."""
    started: list[Served | BaseException] = []
    ready = threading.Event()
    thread = threading.Thread(
        target=_serve, args=(loop, plan or Plan(), directory / "s", started, ready), daemon=True
    )
    thread.start()
    assert ready.wait(DEADLINE_S)
    served = started[0]
    if isinstance(served, BaseException):
        raise served
    try:
        yield served
    finally:
        served.call(served._stop.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the server did not stop"
    assert not served.accidents, served.accidents


def _serve(
    loop: LoopFactory,
    plan: Plan,
    socket_path: Path,
    started: list[Served | BaseException],
    ready: threading.Event,
) -> None:
    async def main() -> None:
        try:
            served = Served(plan, socket_path)
            await served.start()
            started.append(served)
        except BaseException as error:
            started.append(error)
            raise
        finally:
            ready.set()
        await served.run()
        await served.end()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def statuses(replies: Iterable[Reply]) -> list[int]:
    return [reply.status for reply in replies]
