"""One agent with all rooms that its own log puts in force: rules, budgets, metrics, members."""

from __future__ import annotations

from typing import Any

from headgate.budgets.keeper import BudgetRoom
from headgate.budgets.service import Budgets, Gear, TrafficPlan
from headgate.changes.model import ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.state import ChangeMade
from headgate.check.board import Board
from headgate.check.sampler import Sampler
from headgate.metrics.model import Engine
from headgate.metrics.reaching import MetricRoom
from headgate.metrics.service import DatabasePlan, MetricKeeper
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetric
from headgate.shard.keeper import MemberRoom
from headgate.shard.peers_api import parse_peer_url
from tests.budgets.budget_world import ETL, WEB, FakeServer, document
from tests.fixtures.fakes import FakeProbes, settle
from tests.shard.shard_world import SHARD, ShardWorld, url

METRICS: dict[str, Any] = {"lag": {"threshold": "5s"}, "threads_running": {}}
"""What the settings file has."""
PEER = {"shard": SHARD, "member": "db-x", "url": url("db-x"), "database": "main"}


class ChangesWorld(ShardWorld):
    """With one replica, db-b, in the settings."""

    def __init__(self, **given: Any) -> None:
        super().__init__("db-b", **given)
        board = Board()
        sampler = Sampler(board, self.clock, self.demands)
        self.probes = FakeProbes({"lag": 1.0})
        self.metric_book = MetricKeeper(
            board, sampler, self.clock, make=self.log.make, runtime_sources=("sql", "url")
        )
        self.rules = RuleKeeper(self.store, self.clock, lambda book: None, known)
        self.budgets = Budgets(self.store, board, self.demands, self.clock)
        self.budgets.own = self.book
        self.server = FakeServer()
        self.log.attach(self.rules, self.budgets, self.metric_book)
        members = MemberRoom(self.shards.each, lambda text: parse_peer_url(text).text)
        budgets = BudgetRoom(self.budgets.by_database)
        self.book.rooms |= {
            ChangeKind.BUDGET: budgets,
            ChangeKind.POLICY: budgets,
            ChangeKind.METRIC: MetricRoom(self.metric_book),
            ChangeKind.PEER: members,
            ChangeKind.SKIP: members,
            ChangeKind.HANDOVER: members,
        }

    @property
    def book(self) -> OwnBook:
        return self.log.book

    async def start(self) -> ChangesWorld:
        await super().start()
        probes = lambda: self.probes  # noqa: E731
        await self.metric_book.adopt([DatabasePlan("main", Engine.POSTGRES, METRICS, probes)])
        gear = Gear((self.server,), self.server)
        base = document(ETL, WEB)
        await self.budgets.adopt([TrafficPlan("main", base, "policy.toml", "dir", lambda: gear)])
        await settle()
        return self

    async def close(self) -> None:
        await self.metric_book.close()
        await super().close()

    async def apply(self, document: Any, **more: Any) -> ChangeMade:
        return await self.book.apply(document, who="ada", **more)

    async def exported(self) -> Any:
        return (await self.book.export()).document

    def standing(self, kind: str) -> dict[str, Any]:
        """By id: what each says."""
        items = self.book.held.standing(self.clock.now().wall_s).items()
        return {name[1]: item.value for name, item in items if name[0] == kind}


def known(database: str) -> dict[str, KnownMetric]:
    return {"lag": KnownMetric(5.0, True)} if database in ("", "main") else {}
