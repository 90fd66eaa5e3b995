"""Two that decide, behind one face: the reference in Python, and the core in C.

What both are asked, and what both answer, are the values of headgate.budgets; so vectors and
generated sequences run against either, and are compared step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headgate.budgets.bucket import Bucket
from headgate.budgets.compiled import compile_policy
from headgate.budgets.cost import CostLine, Pattern
from headgate.budgets.ledger import BudgetTotals, Holding, Ledger
from headgate.budgets.matching import Matched, Now, RuleSet
from headgate.budgets.model import (
    Estimate,
    Match,
    Statement,
    StatementAnswer,
    StatementCheck,
    StatementIdentity,
    budget_key,
)
from headgate.budgets.native.debits import CompiledRules
from headgate.budgets.native.ledger import NativeHolding, NativeLedger, region_sizes
from headgate.budgets.policy import Policy


class Sizes(NamedTuple):
    cpus_milli: int = 1000
    workers: int = 20
    buckets: int = 16
    patterns: int = 4
    secret: int = 0


class Engine(Protocol):
    def publish(self, policy: Policy) -> None: ...
    def match(self, who: StatementIdentity, statement: Statement, now: Now) -> Matched: ...
    def check(self, matches: Sequence[Match], ask: StatementCheck) -> StatementAnswer: ...
    def take(
        self, matches: Sequence[Match], ask: StatementCheck
    ) -> tuple[StatementAnswer, Any]: ...
    def pause(self, holding: Any) -> Any: ...
    def resume(self, holding: Any) -> Any: ...
    def settle(self, holding: Any, actual_ns: int, now_ns: int, aborted: bool) -> None: ...
    def charge(self, matches: Sequence[Match], cost_ns: int, now_ns: int) -> None: ...
    def estimate(self, ask: StatementCheck) -> Estimate: ...
    def buckets(self, now_ns: int) -> Mapping[int, tuple[Bucket, int]]:
        """By key, with what each owes in CPU time."""

    def counts(self, name: str) -> BudgetTotals: ...
    def pattern(self, key: int) -> Pattern | None: ...
    def host(self) -> CostLine: ...


class Reference:
    def __init__(self, sizes: Sizes) -> None:
        self._ledger = Ledger(
            cpus_milli=sizes.cpus_milli,
            workers=sizes.workers,
            buckets=sizes.buckets,
            patterns=sizes.patterns,
            secret=sizes.secret,
        )
        self._rules = RuleSet(Policy())

    def publish(self, policy: Policy) -> None:
        self._rules = RuleSet(policy)

    def match(self, who: StatementIdentity, statement: Statement, now: Now) -> Matched:
        return self._rules.match(who, statement, now)

    def check(self, matches: Sequence[Match], ask: StatementCheck) -> StatementAnswer:
        return self._ledger.check(self._rules.budgets, matches, ask)

    def take(
        self, matches: Sequence[Match], ask: StatementCheck
    ) -> tuple[StatementAnswer, Holding | None]:
        return self._ledger.take(self._rules.budgets, matches, ask)

    def pause(self, holding: Holding) -> Holding:
        return self._ledger.pause(holding)

    def resume(self, holding: Holding) -> Holding:
        return self._ledger.resume(holding)

    def settle(self, holding: Holding, actual_ns: int, now_ns: int, aborted: bool) -> None:
        self._ledger.settle(holding, actual_ns, now_ns, aborted=aborted)

    def charge(self, matches: Sequence[Match], cost_ns: int, now_ns: int) -> None:
        self._ledger.charge(self._rules.budgets, matches, cost_ns, now_ns)

    def estimate(self, ask: StatementCheck) -> Estimate:
        return self._ledger.estimate(ask)

    def buckets(self, now_ns: int) -> Mapping[int, tuple[Bucket, int]]:
        return {b.key: (b, self._ledger.debt_ns(b, now_ns)) for b in self._ledger.buckets()}

    def counts(self, name: str) -> BudgetTotals:
        return self._ledger.counts.get(budget_key(name), BudgetTotals())

    def pattern(self, key: int) -> Pattern | None:
        return self._ledger.pattern(key)

    def host(self) -> CostLine:
        return self._ledger.host


class Native:
    """Matches by the compiled policy, and decides by it in a region."""

    def __init__(self, sizes: Sizes) -> None:
        self._ledger = NativeLedger(
            cpus_milli=sizes.cpus_milli,
            workers=sizes.workers,
            sizes=region_sizes(
                budgets=64, buckets=sizes.buckets, patterns=sizes.patterns, policy_bytes=1 << 16
            ),
            secret=sizes.secret,
        )
        self._version = 0
        self.publish(Policy())

    def publish(self, policy: Policy) -> None:
        self._version += 1
        compiled = compile_policy(policy, self._version)
        self._rules = CompiledRules(compiled)
        self._ledger.publish(compiled)

    def match(self, who: StatementIdentity, statement: Statement, now: Now) -> Matched:
        return self._rules.match(who, statement, now)

    def check(self, matches: Sequence[Match], ask: StatementCheck) -> StatementAnswer:
        return self._ledger.check(matches, ask)

    def take(
        self, matches: Sequence[Match], ask: StatementCheck
    ) -> tuple[StatementAnswer, NativeHolding | None]:
        return self._ledger.take(matches, ask)

    def pause(self, holding: NativeHolding) -> NativeHolding:
        return self._ledger.pause(holding)

    def resume(self, holding: NativeHolding) -> NativeHolding:
        return self._ledger.resume(holding)

    def settle(self, holding: NativeHolding, actual_ns: int, now_ns: int, aborted: bool) -> None:
        self._ledger.settle(holding, actual_ns, now_ns, aborted=aborted)

    def charge(self, matches: Sequence[Match], cost_ns: int, now_ns: int) -> None:
        self._ledger.charge(matches, cost_ns, now_ns)

    def estimate(self, ask: StatementCheck) -> Estimate:
        return self._ledger.estimate(ask)

    def buckets(self, now_ns: int) -> Mapping[int, tuple[Bucket, int]]:
        owed = {view.key: view.debt_ns for view in self._ledger.view.buckets(now_ns)}
        return {b.key: (b, owed[b.key]) for b in self._ledger.buckets()}

    def counts(self, name: str) -> BudgetTotals:
        return self._ledger.counts.get(budget_key(name), BudgetTotals())

    def pattern(self, key: int) -> Pattern | None:
        return self._ledger.pattern(key)

    def host(self) -> CostLine:
        return self._ledger.host
