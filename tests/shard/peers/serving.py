"""Agents at the other end of a link: the real door over a scripted shard, and impostors.

They live in a thread with a loop of their own, as in tests/http; links run in the test's.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headgate.base.clock import SystemClock
from headgate.changes.state import ChangeMade, Copies
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.model import Activity, Idleness
from headgate.check.reporting import Intake
from headgate.check.routes import CheckRoutes
from headgate.check.sampler import Sampler
from headgate.check.streaming import Broadcasts, Snapshots
from headgate.check.views import AgentFacts, LocalClients, Parts, Views
from headgate.errors import InvalidRequest, WrongShard
from headgate.history.keeper import Keeper
from headgate.history.recorder import Recorder
from headgate.http.asgi import AsgiBridge
from headgate.http.auth import Credential, Gatekeeper
from headgate.http.control import Control, ControlParts
from headgate.http.listener import Handlers, Limits, Listener
from headgate.metrics.model import Engine
from headgate.metrics.samples import Absent, Cause, Instant, Sample
from headgate.metrics.service import DatabasePlan, MetricKeeper
from headgate.shard.keeper import NoSuchMember
from headgate.shard.model import Handover, Pull, ShardView, Skip
from headgate.shard.peers_api import MAX_WAIT_S
from headgate.shard.topology import Leading, MemberReport, Role, RoleSeen
from tests.changes.own_world import OwnLog
from tests.fixtures.eventually import eventually
from tests.fixtures.memory_store import MemoryStore
from tests.http.serving import LoopFactory, Script
from tests.http.talk import Reply, Talk

T = TypeVar("T")
SHARD = "commerce/-80"
MADE = ChangeMade(1, 2, copies=Copies(1, 2, ("db-c does not answer",), None))
LONG_S = MAX_WAIT_S
"""Who asks to be held for so long is held until something changes."""
PEER, OPERATOR, VIEWER = "peer-token", "operator-token", "viewer-token"
CALL_TIMEOUT_S = 60.0
LIMITS = Limits(
    max_connections=32, max_body_bytes=65536, request_timeout_s=60.0, idle_timeout_s=75.0
)


@dataclass(frozen=True)
class ShiftedClock:
    """Real time, on clocks that were set otherwise."""

    mono_ahead_s: float = 0.0
    wall_ahead_s: float = 0.0

    def now(self) -> Instant:
        now = SystemClock().now()
        return Instant(now.mono_s + self.mono_ahead_s, now.wall_s + self.wall_ahead_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class ScriptedShards:
    """One database of one shard. What the agent's own Shards does, as far as HTTP can tell."""

    clock: ShiftedClock
    value: float = 0.25
    asked: list[Pull] = field(default_factory=list)
    woken_by: list[tuple[str, str, str]] = field(default_factory=list)
    holding: int = 0
    released: asyncio.Event | None = None
    """Set by a change: what is held goes."""
    skipped: dict[str, Skip] = field(default_factory=dict)
    handovers: list[Handover] = field(default_factory=list)
    peers: dict[str, tuple[str, str]] = field(default_factory=dict)
    who: list[str] = field(default_factory=list)

    @property
    def keeper(self) -> ScriptedShards:
        return self

    async def answer(self, pull: Pull) -> MemberReport:
        self._expect(pull.shard, pull.database)
        self.asked.append(pull)
        if pull.wait_s:
            await self._hold(pull.wait_s)
        return self.report()

    async def _hold(self, wait_s: float) -> None:
        self.released = self.released or asyncio.Event()
        self.holding += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s if wait_s < LONG_S else None):
                    await self.released.wait()
        finally:
            self.holding -= 1

    def report(self) -> MemberReport:
        now = self.clock.now().mono_s
        return MemberReport(
            "db-b",
            now,
            RoleSeen(Role.REPLICA, now - 0.1, term=3),
            readings={
                "lag": Sample(self.value, now - 0.2),
                "disk_used": Absent(Cause.TIMED_OUT, "no answer in 0.5 s", now - 3),
            },
            labels={"region": "eu"},
            activity=Activity.AWAKE,
            url="https://db-b:8087",
        )

    def woken(self, shard: str, database: str, by: str) -> None:
        self._expect(shard, database)
        self.woken_by.append((shard, database, by))

    def _expect(self, shard: str, database: str) -> None:
        if database != "main":
            raise InvalidRequest(
                f"no database {database!r} in a shard of this agent: main", status=404
            )
        if shard != SHARD:
            raise WrongShard(f"main belongs to shard {SHARD!r} at this agent, not to {shard!r}")

    def view(self, database: str) -> ShardView | None:
        if database != "main":
            return None
        point = Leading("db-b", 3, self.clock.now().mono_s + 1)
        return ShardView(SHARD, "main", "db-b", point, None, (), (), 0.25, 0)

    async def skip(
        self, database: str, member: str, *, for_s: float, reason: str, who: str, **more: Any
    ) -> ChangeMade:
        self._with_member(member)
        if more["dry_run"]:
            return MADE
        now = self.clock.now().wall_s
        self.skipped[member] = Skip(SHARD, member, now + for_s, who, reason, now)
        self.who.append(who)
        return MADE

    async def unskip(self, database: str, member: str, *, who: str, **more: Any) -> ChangeMade:
        if self.skipped.pop(member, None) is None:
            raise NoSuchMember(f"{member} is not skipped in {SHARD}")
        self.who.append(who)
        return MADE

    async def hand_over(self, database: str, *, for_s: float, reason: str, who: str) -> Handover:
        self._expect(SHARD, database)
        now = self.clock.now()
        until = now.mono_s + for_s, now.wall_s + for_s
        self.handovers.append(Handover(SHARD, "db-b", 3, *until, now.mono_s, who, reason))
        return self.handovers[-1]

    async def take_back(self, database: str, *, who: str) -> None:
        if not self.handovers:
            raise NoSuchMember(f"no handover of {SHARD} is announced here")
        self.handovers.clear()
        self.who.append(who)

    async def add_peer(
        self, database: str, member: str, *, url: str, peer_database: str, who: str
    ) -> ChangeMade:
        if member in self.peers:
            raise InvalidRequest(f"{SHARD} has a member {member!r} already", status=409)
        self.peers[member] = (url, peer_database)
        self.who.append(who)
        return MADE

    async def remove_peer(self, database: str, member: str, *, who: str) -> ChangeMade:
        self._with_member(member)
        del self.peers[member]
        self.who.append(who)
        return MADE

    def _with_member(self, member: str) -> None:
        if member not in self.peers:
            raise NoSuchMember(f"{SHARD} has no member {member!r}")


@dataclass(frozen=True)
class Plan:
    tls: ssl.SSLContext | None = None
    clock: ShiftedClock = ShiftedClock()
    tokens: bool = True
    in_shard: bool = True
    limits: Limits = LIMITS
    port: int = 0


class Agent:
    """The parts of an agent that a peer meets, behind its real listener."""

    def __init__(self, plan: Plan, socket_path: Path) -> None:
        self.plan = plan
        self.socket_path = socket_path
        self.shards = ScriptedShards(plan.clock, peers={"db-c": ("http://db-c:8087", "main")})
        self.demands = Demands(plan.clock)
        self.demands.open("main", Idleness())
        self.recorder = Recorder(max_clients=100)
        self.accidents: list[dict[str, Any]] = []
        board, store = Board(), MemoryStore()
        sampler = Sampler(board, plan.clock, self.demands)
        self._book = MetricKeeper(board, sampler, plan.clock, make=OwnLog(store, plan.clock).make)
        checker = Checker(
            board, self.recorder, self.demands, plan.clock, lambda: 0.5, anonymous_may_pass=True
        )
        keeper = Keeper(self.recorder, store, plan.clock, history_days=1)
        shards = self.shards if plan.in_shard else None
        local = LocalClients(
            Broadcasts(Snapshots(board, checker, self.demands), plan.clock),
            Intake(self.recorder, board, plan.clock, self.demands),
        )
        parts = Parts(
            board, self._book, checker, self.recorder, keeper, sampler, store, plan.clock, local,
            shards, self.demands,
        )  # fmt: skip
        views = Views(parts, AgentFacts("agent-b", "0.0", plan.clock.now()))
        control = Control(
            ControlParts(views, gatekeeper(plan), shards=shards, demands=self.demands)
        )
        handlers = Handlers(CheckRoutes(checker).prepare, AsgiBridge(control.app()).serve)
        self.listener = Listener(handlers, plan.limits)
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.accidents.append(context))
        await self._book.adopt([DatabasePlan("main", Engine.MYSQL, {"lag": {}}, Script)])
        self.listener.add(
            await loop.create_server(self.listener, "127.0.0.1", self.plan.port, ssl=self.plan.tls)
        )
        self.listener.add(await loop.create_unix_server(self.listener, self.socket_path))

    async def run(self) -> None:
        await self._stop.wait()
        await self.listener.stop(0.1)
        await self._book.close()

    # --- from the test's thread ------------------------------------------------------------

    @property
    def port(self) -> int:
        return self.listener.ports[0]

    @property
    def url(self) -> str:
        return f"{'https' if self.plan.tls else 'http'}://localhost:{self.port}"

    def call(self, function: Callable[..., T], *args: Any) -> T:
        async def there() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(CALL_TIMEOUT_S)

    def change(self, value: float) -> None:
        """Something that held answers wait for."""

        def there() -> None:
            self.shards.value = value
            assert self.shards.released is not None
            self.shards.released.set()

        self.call(there)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def drop_connections(self) -> None:
        def there() -> None:
            for connection in list(self.listener.connections):
                connection.abort()

        self.call(there)

    def settled(self) -> bool:
        """Nothing is held, and no request is being served."""
        tasks = self.call(lambda: [repr(task.get_coro()) for task in asyncio.all_tasks()])
        return not self.shards.holding and not any("Connection._serve" in t for t in tasks)

    def ask(
        self, method: str, target: str, *, body: bytes | None = None, unix: bool = False, **h: str
    ) -> Reply:
        address = str(self.socket_path) if unix else ("127.0.0.1", self.port)
        with Talk(address) as talk:
            return talk.ask(method, target, body=body, **h)


def gatekeeper(plan: Plan) -> Gatekeeper:
    if not plan.tokens:
        return Gatekeeper([])
    return Gatekeeper(
        [
            Credential("ops", "operator", _digest(OPERATOR)),
            Credential("eve", "viewer", _digest(VIEWER)),
            Credential("shard", "peer", _digest(PEER)),
        ]
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@contextmanager
def agent(loop: LoopFactory, folder: Path, plan: Plan | None = None) -> Iterator[Agent]:
    """Serve in a thread until the block ends; nothing may have gone wrong there."""
    started: list[Agent] = []
    ready = threading.Event()

    async def main() -> None:
        served = Agent(plan or Plan(), folder / "s")
        await served.start()
        started.append(served)
        ready.set()
        await served.run()

    def work() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(CALL_TIMEOUT_S)
    try:
        yield started[0]
        if thread.is_alive():
            eventually(started[0].settled)
    finally:
        with suppress(RuntimeError):  # Stopped already, by the test.
            started[0].stop()
        thread.join(CALL_TIMEOUT_S)
    assert not thread.is_alive(), "the agent did not stop"
    assert not started[0].accidents, started[0].accidents
