"""Checks that name a budget debit it, once the gate has let them (R146)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.budgets.charging import LedgerOf, OwnLedger, asked, debit_of, own_bucket
from headgate.budgets.model import (
    NEVER,
    DebitResult,
    DebitState,
    Limit,
    StatementAnswer,
    StatementVerdict,
)
from headgate.budgets.parse import parse_budget
from headgate.budgets.policy import Budget
from headgate.check.checker import Checker
from headgate.check.model import Decision, Verdict
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Instant
from tests.budgets.budget_world import BudgetWorld, document
from tests.builders import check

NOW = Instant(100.0, 1_700_000_000.0)
HALF: dict[str, Any] = {"name": "etl", "mode": "enforce", "rate": 50, "capacity": 100}
"""Of one CPU: drains half a second of CPU in a second, holds one."""
S = 1_000_000_000


def made(**settings: Any) -> Budget:
    return parse_budget({**HALF, **settings})


# --- a ledger ------------------------------------------------------------------------------------


def test_a_declared_cost_is_debt_until_it_has_drained() -> None:
    own, budget = OwnLedger(cpus_milli=1000), made()
    debits = [own.debit(budget, 600_000_000, NOW) for _ in range(2)]
    assert [one.state for one in debits] == [DebitState.CHARGED, DebitState.OVER]
    assert [one.debt_s for one in debits] == [0.0, 0.6]
    assert debits[1].capacity_s == 1.0
    assert debits[1].retry_after_s == pytest.approx(0.4)
    assert debits[1].note == (
        "budget etl: the debt is 0.600 s of CPU, the check declares 0.600 s, the limit is "
        "1.000 s; it fits in 0.400 s"
    )
    later = Instant(NOW.mono_s + 0.4, NOW.wall_s)
    assert own.debit(budget, 600_000_000, later).state is DebitState.CHARGED


def test_looking_charges_nothing() -> None:
    own, budget = OwnLedger(cpus_milli=1000), made()
    for _ in range(3):
        assert own.debit(budget, S, NOW, only_look=True).state is DebitState.CHARGED


def test_a_budget_that_warns_lets_it_go_and_says_so() -> None:
    own, budget = OwnLedger(cpus_milli=1000), made(mode="warn")
    states = [own.debit(budget, 600_000_000, NOW) for _ in range(2)]
    assert [one.state for one in states] == [DebitState.CHARGED, DebitState.WARNED]
    assert states[1].admitted and states[1].note.startswith(
        "budget etl warns: the debt is 0.600 s of CPU"
    )


def test_a_place_is_given_back_at_once() -> None:
    """Nobody tells when such work ends. A budget without places rejects it all the same."""
    own = OwnLedger(cpus_milli=1000)
    assert all(own.debit(made(max_workers=1), 1, NOW).admitted for _ in range(3))
    rejected = own.debit(made(name="closed", max_workers=0), 1, NOW)
    assert rejected.state is DebitState.OVER
    assert rejected.note.startswith("budget closed: 0 of 0 workers are in use")


def test_a_budget_that_could_delay_never_delays_a_check() -> None:
    own, budget = OwnLedger(cpus_milli=1000), made(max_delay_s=5)
    own.debit(budget, S, NOW)
    assert own.debit(budget, S, NOW).state is DebitState.OVER


def test_what_never_fits_says_so() -> None:
    rejected = OwnLedger(cpus_milli=1000).debit(made(burst=10), S, NOW)
    assert rejected.retry_after_s is None
    assert rejected.note == (
        "budget etl: the check declares 1.000 s of CPU, the per-query limit is 0.100 s; it can "
        "never fit: declare less per check, or raise the budget's limit"
    )


def test_a_threshold_that_is_crossed_is_a_warning() -> None:
    own, budget = OwnLedger(cpus_milli=1000), made(warning_threshold=50)
    assert own.debit(budget, 600_000_000, NOW).state is DebitState.WARNED


class FakeShared:
    """A server's ledger, there or not."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    async def tend(self) -> None:
        pass

    def debit(
        self, budget: Budget, cost_ns: int, now: Instant, *, only_look: bool = False
    ) -> DebitResult:
        answer = StatementAnswer(
            StatementVerdict.BLOCK, (Limit.BUCKET,), (Limit.NONE,), cost_ns, retry_ns=NEVER
        )
        return debit_of(budget, answer, None, 1000, self.describe())

    def describe(self) -> str:
        return "the server's own"


async def test_the_servers_ledger_is_used_where_it_can_be_had() -> None:
    shared = FakeShared()
    ledger = LedgerOf("main", shared, 1000)
    await ledger.tend()
    assert ledger.current is shared
    assert ledger.describe() == "the server's own"
    shared.fault = "not running"
    assert isinstance(ledger.current, OwnLedger)
    assert "is unavailable: not running" in ledger.describe()
    assert "no server has" in LedgerOf("main", None, 1000).describe()


def test_a_check_uses_the_budgets_own_bucket() -> None:
    budget = made(rules=[{"each": ["tag.tenant"]}])
    assert own_bucket(budget).label == b""
    assert asked(5, NOW).now_ns == 100 * S


# --- the checker ----------------------------------------------------------------------------------


class Gate:
    """A healthy database with budgets, and a checker that knows of them."""

    def __init__(self, world: BudgetWorld) -> None:
        self.world = world
        world.watch_lag()
        world.measure(0.1)
        self.recorder = Recorder(max_clients=10)
        self.checker = Checker(
            world.board,
            self.recorder,
            world.demands,
            world.clock,
            lambda: 0.5,
            anonymous_may_pass=False,
        )
        self.checker.debits = world.budgets.debits

    def ask(self, budget: str = "etl", cpu_s: float = 0.6, **more: Any) -> Decision:
        return self.checker.check(check(budget=budget, cpu_s=cpu_s, **more))


@pytest.fixture
def gate_of() -> Callable[..., Any]:
    async def build(*budgets: dict[str, Any], **policy: Any) -> Gate:
        return Gate(await BudgetWorld(document(*budgets, **policy)).start())

    return build


async def test_an_ok_is_charged_and_rejected_when_the_budget_is_full(gate_of: Any) -> None:
    gate = await gate_of(HALF)
    first, second = gate.ask(), gate.ask()
    assert (first.verdict, first.debit.state) == (Verdict.OK, DebitState.CHARGED)
    # 0.4 s until it fits, and up to half of it more, so that not all come back at once.
    assert (second.verdict, second.retry_after_s) == (Verdict.OVER_BUDGET, pytest.approx(0.5))
    assert second.note == second.debit.note
    assert gate.recorder.totals()["main", "etl:nightly", Verdict.OVER_BUDGET, "budget:etl"] == 1


async def test_who_names_no_budget_is_charged_none(gate_of: Any) -> None:
    gate = await gate_of({**HALF, "capacity": 0})
    assert gate.checker.check(check()).debit is None


async def test_what_the_gate_rejects_is_charged_to_no_budget(gate_of: Any) -> None:
    gate = await gate_of(HALF)
    gate.world.measure(99.0)
    rejected = gate.ask()
    assert (rejected.verdict, rejected.debit) == (Verdict.THRESHOLD_EXCEEDED, None)
    gate.world.measure(0.1)
    assert gate.ask().debit.debt_s == 0


async def test_to_explain_charges_nothing(gate_of: Any) -> None:
    gate = await gate_of(HALF)
    asked_for = check(budget="etl", cpu_s=0.6)
    assert [gate.checker.explain(asked_for).verdict for _ in range(3)] == [Verdict.OK] * 3
    gate.ask()
    assert gate.checker.explain(asked_for).verdict is Verdict.OVER_BUDGET


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("elt", "main: it has no budget 'elt'; did you mean 'etl'?"),
        ("payments", "main: it has no budget 'payments'; budgets: etl"),
    ],
)
async def test_an_unknown_budget_is_rejected_with_the_nearest_name(
    gate_of: Any, name: str, told: str
) -> None:
    from headgate.check.reasons import reason_of

    rejected = (await gate_of(HALF)).ask(name)
    assert rejected.verdict is Verdict.UNKNOWN_METRIC
    assert reason_of(rejected) == told


async def test_a_database_without_traffic_control_has_no_budgets(gate_of: Any) -> None:
    gate = await gate_of(HALF)
    gate.checker.debits = None
    assert "no traffic control" in gate.ask().note


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mode": "off"}, "it is off"),
        ({"expires_at": 1}, "it has ended"),
        ({"when": "unhealthy"}, "it applies only when the database is unhealthy"),
    ],
)
async def test_a_budget_that_is_off_is_not_charged(
    gate_of: Any, settings: dict[str, Any], why: str
) -> None:
    gate = await gate_of({**HALF, "capacity": 0, **settings})
    admitted = gate.ask()
    assert (admitted.verdict, admitted.debit.state) == (Verdict.OK, DebitState.INACTIVE)
    assert why in admitted.debit.note


async def test_the_switch_for_all_stops_debits_too(gate_of: Any) -> None:
    from headgate.budgets.policy import Mode

    gate = await gate_of({**HALF, "capacity": 0})
    assert gate.ask().verdict is Verdict.OVER_BUDGET
    await gate.world.main.book.cap(Mode.WARN, who="op")
    assert gate.ask().debit.state is DebitState.WARNED
    await gate.world.main.book.cap(Mode.OFF, who="op")
    assert gate.ask().debit.state is DebitState.INACTIVE
