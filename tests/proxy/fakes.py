"""A relay that remembers what it was told, and agents that say what the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.budgets.policy import Policy
from headgate.budgets.readings import Published
from headgate.check.health import Health
from headgate.check.snapshot import DatabaseSnapshot, current_until
from headgate.check.snapshot_api import Snapshot
from headgate.errors import PeerFailed, PolicyRejected, RelayFault
from headgate.metrics.samples import Cause
from headgate.proxy.agents import NO_HEADERS, Reply
from headgate.proxy.layout import EVENT_BLOCKED
from headgate.proxy.model import Act
from headgate.proxy.ports import (
    ActCause,
    ClientCounts,
    ClientGate,
    ClientKey,
    Release,
    Released,
    Reported,
    Targets,
)
from headgate.proxy.relay import RelayEvent
from headgate.rules.matching import Rule, RuleBook
from tests.builders import NOW
from tests.fixtures.fakes import HandClock

CAUSES = 8


def client(index: int, identity: str = "", key: int | None = None) -> ClientKey:
    return ClientKey(index, key if key is not None else 1000 + index, identity or f"c{index}")


def counts(who: ClientKey, **changes: Any) -> ClientCounts:
    zero = ClientCounts(who, True, 0, 0, 0, 0, 0, (0,) * CAUSES, 0, 0, 0, 0, 0)
    return zero._replace(**changes)


@dataclass
class FakeRelay:
    gates: dict[int, ClientGate] = field(default_factory=dict)
    levels: dict[str, ClientKey] = field(default_factory=dict)
    entered: int = 0
    places: int = 512
    puts: int = 0
    stirs: int = 0
    lost: Act | None = None
    release: Release = field(default_factory=Release)
    now_released: Released = field(default_factory=lambda: Released(0, 0))
    plans: dict[int, float] = field(default_factory=dict)
    targets: list[Targets] = field(default_factory=list)
    blocks: str = ""
    healths: list[tuple[bool, int]] = field(default_factory=list)
    table: list[ClientCounts] = field(default_factory=list)
    reported: dict[ClientKey, Reported] = field(default_factory=dict)
    reported_s: float | None = None

    @property
    def clients(self) -> FakeRelay:
        return self

    def all(self) -> Sequence[ClientCounts]:
        return [
            one._replace(reported=self.reported.get(one.client, one.reported)) for one in self.table
        ]

    def put_reported(self, counts: Sequence[ClientCounts], at_s: float) -> None:
        self.reported |= {one.client: Reported(one.admitted, one.blocked) for one in counts}
        self.reported_s = at_s

    def reported_at_s(self) -> float | None:
        return self.reported_s

    def enter(self, identity: str) -> ClientKey | None:
        if identity not in self.levels:
            if len(self.levels) >= self.places:
                return None
            self.levels[identity] = client(5000 + self.entered, identity)
            self.entered += 1
        return self.levels[identity]

    def leave(self, client: ClientKey) -> None:
        self.levels = {name: one for name, one in self.levels.items() if one != client}

    def put_gate(self, client: ClientKey, gate: ClientGate) -> None:
        self.gates[client.index] = gate
        self.puts += 1

    def put_lost(self, act: Act) -> None:
        self.lost = act

    def put_release(self, release: Release) -> None:
        self.release = release

    def released(self) -> Released:
        return self.now_released

    def put_plan(self, pattern: int, cost: float) -> None:
        self.plans[pattern] = cost

    def put_targets(self, targets: Targets) -> None:
        if self.blocks:
            raise RelayFault(self.blocks)
        self.targets.append(targets)

    def tell_health(self, healthy: bool, until_ms: int) -> None:
        self.healths.append((healthy, until_ms))

    def stir(self) -> None:
        self.stirs += 1


def event(kind: int = EVENT_BLOCKED, **changes: Any) -> RelayEvent:
    plain = RelayEvent(
        kind=kind,
        number=7,
        pattern=0xABC,
        took_ns=0,
        wall_ms=0,
        by=ActCause.BUDGET,
        in_transaction=False,
        username="app",
        database="shop",
        budget="exports",
        reason="5 of 5 workers",
        text=b"SELECT * FROM t WHERE card = '4111 1111'",
        text_whole=True,
        parameters=False,
        left_out=0,
    )
    return plain._replace(**changes)


# --- agents --------------------------------------------------------------------------------------


def view(health: Health, *rules: Rule, **more: Any) -> DatabaseSnapshot:
    return DatabaseSnapshot(health, more.pop("book", None) or RuleBook(rules), **more)


def snapshot(seen: DatabaseSnapshot, *, sent_s: float = NOW.mono_s, serial: int = 1) -> Snapshot:
    ahead_s = NOW.wall_s - NOW.mono_s
    return Snapshot(serial, seen, sent_s, ahead_s, current_until(seen.health))


class FakeFeed:
    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


Answer = Callable[[str, str, Mapping[str, str], bytes], Reply]


class FakeLine:
    def __init__(self, url: str) -> None:
        self.url = url
        self.answer: Answer = lambda method, path, headers, body: Reply(404, {}, b"{}")
        self.away = False
        self.asked: list[tuple[str, str, Mapping[str, str], bytes]] = []

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        body: bytes = b"",
        timeout_s: float = 2.0,
        max_bytes: int = 1024 * 1024,
    ) -> Reply:
        self.asked.append((method, path, headers, body))
        if self.away:
            raise PeerFailed(Cause.UNREACHABLE, f"{self.url}: connection refused")
        return self.answer(method, path, headers, body)

    async def close(self) -> None:
        return None


class FakeDialling:
    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self.feeds: dict[tuple[str, str], FakeFeed] = {}
        self.lines: dict[str, FakeLine] = {}
        self.unreachable: set[str] = set()

    def now_s(self) -> float:
        return self._clock.now().mono_s

    def feed(self, url: str, database: str) -> FakeFeed | None:
        if url in self.unreachable:
            return None
        return self.feeds.setdefault((url, database), FakeFeed())

    def line(self, url: str) -> FakeLine:
        return self.lines.setdefault(url, FakeLine(url))


def told(document: Any, status: int = 200, **headers: str) -> Answer:
    body = json.dumps(document).encode()
    return lambda *_: Reply(status, headers, body)


@dataclass
class FakeTaker:
    taken: list[tuple[Policy, int, str]] = field(default_factory=list)
    blocks: str = ""

    async def take(self, policy: Policy, revision: int, source: str) -> Published:
        if self.blocks:
            raise PolicyRejected(self.blocks)
        self.taken.append((policy, revision, source))
        return Published(revision, 0, 0)
