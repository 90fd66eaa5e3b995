"""A policy, a ledger and a clock that a test winds by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.budgets.ledger import BudgetTotals, Holding, Ledger
from headgate.budgets.matching import Matched, Now, RuleSet
from headgate.budgets.model import (
    Statement,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
    budget_key,
)
from headgate.budgets.parse import parse_policy

MS = 1_000_000
S = 1_000_000_000
EVERYTHING: list[dict[str, Any]] = [{}]


def budget(name: str = "b", **settings: Any) -> dict[str, Any]:
    """Enforced, and for every statement, unless the test says otherwise."""
    return {"name": name, "mode": "enforce", "rules": EVERYTHING, **settings}


def rule_set(*budgets: Mapping[str, Any], **policy: Any) -> RuleSet:
    return RuleSet(parse_policy({"policy": policy, "budgets": list(budgets)}))


@dataclass
class World:
    rules: RuleSet
    ledger: Ledger = field(default_factory=lambda: Ledger(cpus_milli=1000, workers=20))
    now_ns: int = S
    who: StatementIdentity = field(default_factory=lambda: StatementIdentity(username="app"))

    def matched(self, text: bytes = b"SELECT 1") -> Matched:
        return self.rules.match(self.who, Statement(text), Now())

    def take(
        self,
        cost_ns: int = 0,
        text: bytes = b"SELECT 1",
        *,
        flags: StatementFlags = StatementFlags.PLANNED,
        **ask: Any,
    ) -> tuple[StatementAnswer, Holding | None]:
        if cost_ns:
            flags |= StatementFlags.COST_GIVEN
        asked = StatementCheck(self.now_ns, cost_ns=cost_ns, flags=flags, **ask)
        return self.ledger.take(self.rules.budgets, self.matched(text).at, asked)

    def check(self, cost_ns: int = 0, text: bytes = b"SELECT 1", **ask: Any) -> StatementAnswer:
        flags = StatementFlags.COST_GIVEN if cost_ns else StatementFlags.PLANNED
        asked = StatementCheck(
            self.now_ns,
            cost_ns=cost_ns,
            flags=ask.pop("flags", StatementFlags.PLANNED) | flags,
            **ask,
        )
        return self.ledger.check(self.rules.budgets, self.matched(text).at, asked)

    def run(self, cost_ns: int, actual_ns: int, **ask: Any) -> StatementAnswer:
        answer, holding = self.take(cost_ns, **ask)
        if holding is not None:
            self.ledger.settle(holding, actual_ns, self.now_ns)
        return answer

    def counts(self, name: str = "b") -> BudgetTotals:
        return self.ledger.counts[budget_key(name)]

    def debt_ns(self) -> int:
        return sum(self.ledger.debt_ns(bucket, self.now_ns) for bucket in self.ledger.buckets())


def world(*budgets: Mapping[str, Any], **ledger: Any) -> World:
    made = Ledger(**{"cpus_milli": 1000, "workers": 20, **ledger})
    return World(rule_set(*budgets), made)


def learn(ledger: Ledger, pattern: int, plan_cost: float, actual_ns: int, **settle: Any) -> None:
    """A statement of the pattern that no budget matches."""
    _, holding = ledger.take((), (), StatementCheck(0, plan_cost=plan_cost, pattern=pattern))
    assert holding is not None
    ledger.settle(holding, actual_ns, settle.pop("now_ns", 0), **settle)
