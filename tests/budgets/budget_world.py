"""Servers that take policies and count, as a test tells them; and the agent's side of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.base.ports import Store
from headgate.budgets.keeper import BudgetRoom
from headgate.budgets.layers import Document
from headgate.budgets.parse import parse_policy, written
from headgate.budgets.policy import Policy
from headgate.budgets.readings import BudgetCounts, BudgetReadings, Lying, Published
from headgate.budgets.service import Budgets, Controlled, Gear, TrafficPlan
from headgate.changes.model import ChangeKind
from headgate.changes.reach import Place
from headgate.changes.state import ChangeMade
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Idleness
from headgate.errors import MeterFailed, PolicyRejected
from headgate.metrics.samples import Sample
from tests.builders import metric
from tests.changes.own_world import OwnLog
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_store import MemoryStore

PLACE = Place("eu-1", "commerce", "commerce/-80", "db-1", "main")
ETL: dict[str, Any] = {
    "name": "etl",
    "rate": 20,
    "capacity": 200,
    "rules": [{"match": {"username": "etl"}}],
}
WEB: dict[str, Any] = {"name": "web", "burst": 50, "rules": [{"match": {"username": "web"}}]}


def document(*budgets: dict[str, Any], **policy: Any) -> dict[str, Any]:
    """As `written` has it."""
    head = {"policy": policy} if policy else {}
    return written(parse_policy({**head, "budgets": list(budgets)}))


@dataclass
class FakeServer:
    """Takes policies, or says why not; tells what it counted."""

    fault: str = ""
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared, it hangs."""
    policies: list[tuple[Policy, int]] = field(default_factory=list)
    health: list[tuple[bool, int]] = field(default_factory=list)
    reads: BudgetReadings | str = "not running"
    tries: int = 0
    lies: Lying | None = None
    """What a look at its folder finds."""

    def __post_init__(self) -> None:
        self.goes_on.set()

    def describe(self) -> str:
        return "server a"

    async def publish(self, policy: Policy, revision: int) -> Published:
        self.tries += 1
        await self.goes_on.wait()
        if self.fault:
            raise PolicyRejected(self.fault)
        self.policies.append((policy, revision))
        version = (self.lies.version if self.lies else len(self.policies) - 1) + 1
        off = self.lies is not None and self.lies.off
        self.lies = Lying(version, 0xABCD, len(self.policies), off)
        return Published(*self.lies[:2], 1000, off, self.lies.content)

    async def look(self) -> Lying | None:
        await self.goes_on.wait()
        return self.lies

    async def tell_health(self, healthy: bool, until_ms: int) -> None:
        if self.fault:
            raise PolicyRejected(self.fault)
        self.health.append((healthy, until_ms))

    async def read(self) -> BudgetReadings:
        if isinstance(self.reads, str):
            raise MeterFailed(self.reads)
        return self.reads

    def counts(self, *, started_ms: int = 1, **budgets: BudgetCounts) -> None:
        self.reads = BudgetReadings(
            version=1, checksum=0xABCD, started_ms=started_ms, budgets=budgets
        )

    @property
    def modes(self) -> dict[str, str]:
        """Of the policy it has now."""
        policy, _ = self.policies[-1]
        return {budget.name: budget.mode.value for budget in policy.budgets}


@dataclass
class BudgetWorld:
    base: Document = field(default_factory=document)
    store: Store = field(default_factory=MemoryStore)
    clock: HandClock = field(default_factory=HandClock)
    server: FakeServer = field(default_factory=FakeServer)
    passive: bool = False
    source: str = "policy.toml"
    own_role: str = ""

    def __post_init__(self) -> None:
        self.board = Board()
        self.demands = Demands(self.clock)
        self.demands.open("main", Idleness())
        self.log = OwnLog(self.store, self.clock, places=(PLACE,))
        self.budgets = Budgets(
            self.store,
            self.board,
            self.demands,
            self.clock,
            stands_aside=lambda: self.passive,
            time=self.log.time,
        )
        self.log.attach(self.budgets)
        self.own = self.budgets.own = self.log.book
        room = BudgetRoom(self.budgets.by_database)
        self.own.rooms |= {ChangeKind.BUDGET: room, ChangeKind.POLICY: room}

    def plan(self, base: Document | None = None) -> TrafficPlan:
        gear = Gear((self.server,), self.server)
        base = self.base if base is None else base
        return TrafficPlan("main", base, self.source, "dir", lambda: gear, own_role=self.own_role)

    async def start(self) -> BudgetWorld:
        """As app.py does: the log first, then the settings; then the loop."""
        await self.store.open()
        await self.log.load()
        await self.budgets.adopt([self.plan()])
        await self.budgets.tick()
        return self

    async def actions(self) -> list[tuple[str, str]]:
        """Of the audit, newest first."""
        return [(entry.who, entry.action) for entry in await self.store.audit()]

    async def restart(self, **other: Any) -> BudgetWorld:
        """Another process, with the same store, clock and server."""
        world = replace(self, **other)
        return await world.start()

    async def apply(self, *budgets: dict[str, Any], **policy: Any) -> ChangeMade:
        """As a file of changes: these, whole; and the policy of main, if anything is said of it."""
        document: dict[str, Any] = {
            "budgets": [{"database": "main", "whole": True, **budget} for budget in budgets]
        }
        if policy:
            document["policies"] = [{"database": "main", **policy}]
        return await self.own.apply(document, who="ann")

    async def history(self) -> list[str]:
        """Actions of the agent's own log, newest first."""
        return [one.action for one in await self.own.history()]

    @property
    def main(self) -> Controlled:
        return self.budgets.of("main")

    def measure(self, lag: float) -> None:
        self.board.push("main", "lag", Sample(lag, self.clock.now().mono_s))

    def watch_lag(self) -> None:
        self.board.open("main", None)
        self.board.place("main", metric("lag", threshold=5.0), at=self.clock.now().mono_s)
