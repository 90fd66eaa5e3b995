"""One ledger for checks and statements.   Checker ──OK──► Debits ──► BudgetLedger

A check may name a budget of its database and declare how much CPU its work will take. After the
metrics admit it, that cost is charged to the same bucket that statements in the query path debit:
the server's own bucket if this process can reach it, else one in the agent, and the answer says so.

The declared cost is final: nothing is settled later. The check also needs a free worker slot, and
frees it at once, because nothing reports when such work ends.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from headgate.budgets.bucket import cpu_ns, server_ns
from headgate.budgets.layers import Edition, capped
from headgate.budgets.ledger import Ledger
from headgate.budgets.matching import rests
from headgate.budgets.model import (
    NEVER,
    DebitResult,
    DebitState,
    Limit,
    Match,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    StatementVerdict,
    budget_key,
)
from headgate.budgets.policy import Budget, Mode
from headgate.check.model import Decision, Verdict
from headgate.metrics.samples import Instant

log = structlog.get_logger()

NS = 1_000_000_000
WORKERS = 100
"""100 % of concurrency in the agent's own ledger: it does not know the server's number."""
TEND_TIMEOUT_S = 0.5
MIN_RETRY_S, MAX_RETRY_S = 0.02, 40.0
NEVER_FITS_RETRY_S = 30.0
_NOT_WAITING = StatementFlags.COST_GIVEN | StatementFlags.NO_DELAY
_STATES = {
    StatementVerdict.RUN: DebitState.CHARGED,
    StatementVerdict.WARN: DebitState.WARNED,
    StatementVerdict.DELAY: DebitState.OVER,
    StatementVerdict.BLOCK: DebitState.OVER,
}


class BudgetLedger(Protocol):
    def debit(
        self, budget: Budget, cost_ns: int, now: Instant, *, only_look: bool = False
    ) -> DebitResult:
        """Charged, or over and nothing is; never waits."""
        ...

    def describe(self) -> str:
        """Where it is, in a few words."""
        ...


class SharedLedger(BudgetLedger, Protocol):
    """A server's own."""

    @property
    def fault(self) -> str:
        """Why it cannot be used; empty: it can."""
        ...

    async def tend(self) -> None:
        """Reach it again: the server may have been restarted, or not have been there."""
        ...


def asked(cost_ns: int, now: Instant) -> StatementCheck:
    return StatementCheck(
        int(now.mono_s * NS), int(now.wall_s * 1000), cost_ns=cost_ns, flags=_NOT_WAITING
    )


def own_bucket(budget: Budget, index: int = 0) -> Match:
    """A check has no values to take one of several buckets by: it is the budget's own."""
    return Match(index, 0, budget_key(budget.name))


class OwnLedger:
    """The reference, in this process: forgotten with it, and no statement debits it."""

    def __init__(self, cpus_milli: int, workers: int = WORKERS) -> None:
        self._ledger = Ledger(cpus_milli=cpus_milli, workers=workers)

    def debit(
        self, budget: Budget, cost_ns: int, now: Instant, *, only_look: bool = False
    ) -> DebitResult:
        ask, match, ledger = asked(cost_ns, now), own_bucket(budget), self._ledger
        standing = ledger.standing(budget, match.bucket, ask.now_ns)
        terms, debt_ns = standing.terms, None
        if terms.size_ns is not None:
            debt_ns = cpu_ns(standing.debt_ns, terms.rate_mpct or 0, terms.cpus_milli)
        if only_look:
            answer = ledger.check((budget,), (match,), ask)
        else:
            answer, holding = ledger.take((budget,), (match,), ask)
            if holding is not None:
                ledger.settle(holding, answer.estimate_ns, ask.now_ns)
        return debit_of(budget, answer, debt_ns, ledger.cpus_milli, self.describe())

    def describe(self) -> str:
        return "the agent's own"


class LedgerOf:
    """One database's: the server's where it can be reached, else the agent's own."""

    def __init__(self, database: str, shared: SharedLedger | None, cpus_milli: int) -> None:
        self._database = database
        self._shared = shared
        self._own = OwnLedger(cpus_milli)
        self._tending: asyncio.Future[None] | None = None
        self._told = ""

    async def tend(self) -> None:
        """What takes longer (the core may have to be built first) goes on beside us."""
        if self._shared is None:
            return
        tending = self._tending or asyncio.ensure_future(self._shared.tend())
        done, _ = await asyncio.wait({tending}, timeout=TEND_TIMEOUT_S)
        self._tending = None if done else tending
        if self._shared.fault != self._told:
            self._told = self._shared.fault
            log.info("budgets.ledger", database=self._database, which=self.describe())

    @property
    def current(self) -> BudgetLedger:
        return self._shared if self._shared is not None and not self._shared.fault else self._own

    def describe(self) -> str:
        """And why it is no better one."""
        if self._shared is None:
            return f"{self._own.describe()}: no server has its budgets"
        if self._shared.fault:
            return f"{self._own.describe()}, the server's is unavailable: {self._shared.fault}"
        return self._shared.describe()


# --- what is answered ---------------------------------------------------------------------------


def debit_of(
    budget: Budget, answer: StatementAnswer, debt_ns: int | None, cpus_milli: int, ledger: str
) -> DebitResult:
    capacity = budget.capacity_mpcts
    retries = answer.verdict is StatementVerdict.BLOCK and answer.retry_ns != NEVER
    return DebitResult(
        budget=budget.name,
        state=_STATES[answer.verdict],
        cost_s=answer.estimate_ns / NS,
        debt_s=None if debt_ns is None else debt_ns / NS,
        capacity_s=None if capacity is None else server_ns(capacity, cpus_milli) / NS,
        retry_after_s=answer.retry_ns / NS if retries else None,
        note=_told(budget, answer),
        ledger=ledger,
    )


def _told(budget: Budget, answer: StatementAnswer) -> str:
    if answer.verdict is StatementVerdict.RUN:
        return ""
    cost = _seconds(answer.estimate_ns)
    if answer.decided_by is Limit.CONCURRENCY:
        what = f"{answer.used} of {answer.bound} workers are in use"
    elif answer.decided_by is Limit.QUERY:
        what = f"the check declares {cost} of CPU, the per-query limit is {_seconds(answer.bound)}"
    else:
        what = (
            f"the debt is {_seconds(answer.used)} of CPU, the check declares {cost}, "
            f"the limit is {_seconds(answer.bound)}"
        )
    if answer.verdict is StatementVerdict.WARN:
        return f"budget {budget.name} warns: {what}"
    if answer.retry_ns == NEVER:
        what += "; it can never fit: declare less per check, or raise the budget's limit"
    elif answer.decided_by is Limit.BUCKET:
        what += f"; it fits in {_seconds(answer.retry_ns)}"
    return f"budget {budget.name}: {what}"


def _seconds(ns: int) -> str:
    return f"{ns / NS:.3f} s"


# --- checks -----------------------------------------------------------------------------------


class ChargedDatabase(Protocol):
    """As much of budgets/service.Controlled as is needed here."""

    @property
    def edition(self) -> Edition: ...

    @property
    def ledger(self) -> LedgerOf: ...


class Debits:
    def __init__(
        self,
        by_database: Mapping[str, ChargedDatabase],
        health_of: Callable[[str], bool | None],
    ) -> None:
        self._by_database = by_database
        self._health_of = health_of

    def meter(self, decision: Decision, roll: float, *, only_look: bool = False) -> Decision:
        """Charge an OK that names a budget: it stays OK, or becomes OVER_BUDGET. An unknown budget
        is an error. With `only_look`, nothing is charged."""
        debit = self._debit(decision, only_look=only_look)
        if debit.admitted:
            return decision._replace(debit=debit)
        unknown = debit.state is DebitState.UNKNOWN
        return decision._replace(
            verdict=Verdict.UNKNOWN_METRIC if unknown else Verdict.OVER_BUDGET,
            rule=None,
            retry_after_s=_come_back_s(debit, roll),
            note=debit.note,
            debit=debit,
        )

    def _debit(self, decision: Decision, *, only_look: bool) -> DebitResult:
        check, now = decision.check, decision.at
        charged = self._by_database.get(check.database)
        if charged is None:
            known = ", ".join(sorted(self._by_database)) or "none"
            return _unknown(decision, f"it has no traffic control (databases that have: {known})")
        edition = charged.edition
        budget = edition.budget(check.budget)
        if budget is None:
            names = [known.name for known in edition.policy.budgets]
            return _unknown(
                decision, f"it has no budget {check.budget!r}{_nearest(check.budget, names)}"
            )
        budget = replace(budget, mode=capped(budget.mode, edition.mode_cap))
        if why := self._rests(budget, edition, check.database, now):
            note = f"budget {budget.name} is not charged: {why}"
            return DebitResult(budget.name, DebitState.INACTIVE, check.cpu_s, note=note)
        cost_ns = max(1, round(check.cpu_s * NS))
        return charged.ledger.current.debit(budget, cost_ns, now, only_look=only_look)

    def _rests(self, budget: Budget, edition: Edition, database: str, now: Instant) -> str:
        if budget.mode is Mode.OFF:
            return "it is off"
        if edition.has_ended(budget, int(now.wall_s * 1000)):
            return "it has ended"
        if rests(budget, edition.policy, self._health_of(database)):
            return "it applies only when the database is unhealthy, and it is not known to be"
        return ""


def _come_back_s(debit: DebitResult, roll: float) -> float:
    """Not before it fits, and not all clients at once. What can never fit now may fit after a
    change of the policy."""
    fits_s = NEVER_FITS_RETRY_S if debit.retry_after_s is None else debit.retry_after_s
    return min(max(fits_s, MIN_RETRY_S), MAX_RETRY_S) * (1 + roll / 2)


def _unknown(decision: Decision, note: str) -> DebitResult:
    check = decision.check
    return DebitResult(check.budget, DebitState.UNKNOWN, check.cpu_s, note=note)


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; budgets: {', '.join(names[:10]) or 'none'}"
