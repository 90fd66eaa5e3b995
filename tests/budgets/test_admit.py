"""May it run? Each branch of the policy, one row (R102–R104, R109, R115, R122–R126, R148)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.budgets.admit import PLACE_RETRY_NS, BucketState, decide, terms_of
from headgate.budgets.bucket import drain_ns
from headgate.budgets.model import (
    NEVER,
    Estimate,
    Limit,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    StatementVerdict,
)
from headgate.budgets.parse import parse_budget
from tests.budgets.worlds import MS, S, budget

RUN, WARN, DELAY, BLOCK = StatementVerdict
NONE, CONCURRENCY, QUERY, BUCKET = Limit
IN_TXN = StatementFlags.IN_TRANSACTION
CPUS_MILLI, WORKERS = 2000, 20


def standing(running: int = 0, debt_cpu_ns: int = 0, **settings: Any) -> BucketState:
    """Of two CPUs and twenty workers."""
    terms = terms_of(parse_budget(budget(**settings)), CPUS_MILLI, WORKERS)
    owed = drain_ns(debt_cpu_ns, terms.rate_mpct, CPUS_MILLI) if terms.rate_mpct else 0
    return BucketState(terms, running, owed)


def asked(*standings: BucketState, estimate: int = 1, p90: int = 0, **ask: Any) -> StatementAnswer:
    estimated = Estimate(estimate, max(estimate, p90))
    return decide(standings, StatementCheck(0, **ask), estimated)


def test_the_per_query_limit_is_compared_with_p90_and_debt_with_the_mean() -> None:
    """R162: a statement that may take too long is not charged as if it did."""
    alone, together = standing(burst=10), standing(rate=50, capacity=10)
    answer = asked(alone, estimate=150 * MS, p90=250 * MS)
    assert told(answer) == (BLOCK, 0, QUERY)
    assert (answer.used, answer.bound, answer.estimate_ns) == (250 * MS, 200 * MS, 150 * MS)
    assert told(asked(together, estimate=150 * MS, p90=250 * MS)) == (RUN, 0, NONE)
    assert told(asked(together, estimate=250 * MS, p90=250 * MS)) == (BLOCK, 0, BUCKET)


def told(answer: StatementAnswer) -> tuple[StatementVerdict, int, Limit]:
    return answer.verdict, answer.match, answer.decided_by


@pytest.mark.parametrize(
    ("settings", "running", "owed", "estimate", "limit"),
    [
        ({}, 99, 0, 10**12, NONE),
        ({"max_workers": 2}, 1, 0, 1, NONE),
        ({"max_workers": 2}, 2, 0, 1, CONCURRENCY),
        ({"max_workers": 0}, 0, 0, 1, CONCURRENCY),
        ({"concurrency": 1}, 0, 0, 1, NONE),  # 1 % of 20, rounded up
        ({"concurrency": 1}, 1, 0, 1, CONCURRENCY),
        ({"concurrency": 11}, 2, 0, 1, NONE),
        ({"concurrency": 11}, 3, 0, 1, CONCURRENCY),
        ({"concurrency": 0}, 0, 0, 1, CONCURRENCY),
        ({"burst": 50}, 0, 0, S, NONE),
        ({"burst": 50}, 0, 0, S + 1, QUERY),
        ({"burst": 0}, 0, 0, 1, QUERY),
        ({"rate": 50, "capacity": 100}, 0, S, S, NONE),
        ({"rate": 50, "capacity": 100}, 0, S, S + 1, BUCKET),
        ({"rate": 50, "capacity": 0}, 0, 0, 1, BUCKET),
        ({"rate": 0}, 0, 0, 1, BUCKET),
        ({"rate": 0, "capacity": 100}, 0, 0, 1, BUCKET),
        ({"rate": 1}, 0, 0, 10**13, NONE),
        ({"capacity": 100}, 0, 0, 2 * S, NONE),
        ({"capacity": 100}, 0, 0, 2 * S + 1, BUCKET),
    ],
)
def test_each_limit_alone(
    settings: dict[str, Any], running: int, owed: int, estimate: int, limit: Limit
) -> None:
    """R124: unset is no limit, 0 admits nothing; equal is still allowed."""
    answer = asked(standing(running, owed, **settings), estimate=estimate)
    assert answer.limits == (limit,)
    assert answer.verdict is (BLOCK if limit else RUN)
    warned = asked(standing(running, owed, mode="warn", **settings), estimate=estimate)
    assert (warned.limits, warned.verdict) == ((limit,), WARN if limit else RUN)


def test_a_block_says_how_much_and_when() -> None:
    full = asked(standing(2, max_workers=2))
    assert (full.used, full.bound, full.retry_ns) == (2, 2, 100 * MS)
    dear = asked(standing(burst=50), estimate=3 * S)
    assert (dear.used, dear.bound, dear.retry_ns) == (3 * S, S, NEVER)
    owing = asked(standing(0, S, rate=50, capacity=100), estimate=3 * S // 2)
    assert (owing.used, owing.bound, owing.retry_ns) == (S, 2 * S, S // 2)
    larger = asked(standing(0, S, rate=50, capacity=100), estimate=3 * S)
    assert (larger.bound, larger.retry_ns) == (2 * S, NEVER)
    zero = asked(standing(rate=0, capacity=100))
    assert (zero.used, zero.bound, zero.retry_ns) == (0, 2 * S, NEVER)


def test_the_steps_come_before_the_order_of_the_document() -> None:
    """R102: concurrency over all, then each statement's own limit over all, then buckets."""
    owing = standing(rate=50, capacity=0)
    dear, busy = standing(burst=0), standing(1, max_workers=1)
    assert told(asked(owing, dear, busy)) == (BLOCK, 2, CONCURRENCY)
    assert told(asked(owing, dear, dear)) == (BLOCK, 1, QUERY)
    assert asked(owing, dear, busy).limits == (BUCKET, QUERY, CONCURRENCY)
    both = standing(1, max_workers=1, burst=0)
    assert asked(both).limits == (CONCURRENCY,)


def test_any_budget_that_fails_is_enough() -> None:
    """R103."""
    fine, warns = standing(max_workers=9), standing(burst=0, mode="warn")
    assert told(asked(fine, standing(burst=0), fine)) == (BLOCK, 1, QUERY)
    assert told(asked(fine, warns, fine)) == (WARN, 1, QUERY)
    assert told(asked(warns, standing(rate=0))) == (BLOCK, 1, BUCKET)


def test_a_parallel_statement_takes_a_place_for_each_worker() -> None:
    """R126."""
    assert asked(standing(1, max_workers=4), workers=3).verdict is RUN
    assert asked(standing(2, max_workers=4), workers=3).verdict is BLOCK


def test_inside_a_transaction_nobody_is_blocked_or_delayed() -> None:
    """R148."""
    broken = standing(burst=0.001, max_delay_s=5)
    answer = asked(broken, estimate=S, flags=IN_TXN)
    assert (answer.verdict, answer.passed, answer.limits) == (RUN, True, (QUERY,))
    strict = standing(burst=0.001, in_transaction="block")
    assert told(asked(broken, strict, estimate=S, flags=IN_TXN)) == (BLOCK, 1, QUERY)
    warned = asked(standing(burst=0.001, mode="warn"), estimate=S, flags=IN_TXN)
    assert (warned.verdict, warned.passed) == (RUN, False)


@pytest.mark.parametrize(
    "switched_off",
    [{"rate": 0}, {"capacity": 0}, {"burst": 0}, {"concurrency": 0}, {"max_workers": 0}],
)
def test_what_is_switched_off_is_so_inside_a_transaction_too(switched_off: dict[str, Any]) -> None:
    """R124: an explicit 0 blocks all; `BEGIN; SELECT 1;` before it must be no way around."""
    assert asked(standing(**switched_off), flags=IN_TXN).verdict is BLOCK


def test_more_workers_than_there_are_places_run_alone() -> None:
    """R126: never to run would help nobody; beside others it waits as any."""
    alone, beside = standing(0, max_workers=2), standing(1, max_workers=2)
    assert asked(alone, workers=3).verdict is RUN
    blocked = asked(beside, workers=3)
    assert (blocked.verdict, blocked.retry_ns) == (BLOCK, PLACE_RETRY_NS)
    assert asked(standing(0, max_workers=0), workers=1).retry_ns == NEVER


DELAYING: dict[str, Any] = {"rate": 50, "capacity": 100, "max_delay_s": 1}


def test_what_would_soon_fit_is_delayed_instead() -> None:
    soon, later = standing(0, 2 * S, **DELAYING), standing(0, 2 * S, **DELAYING)
    answer = asked(soon, estimate=S // 2)
    assert (told(answer), answer.retry_ns) == ((DELAY, 0, BUCKET), S // 2)
    assert told(asked(soon, estimate=S + 1)) == (BLOCK, 0, BUCKET)
    assert asked(soon, estimate=S + 1).retry_ns == S + 1
    assert told(asked(later, estimate=S // 2, flags=StatementFlags.NO_DELAY)) == (BLOCK, 0, BUCKET)
    assert asked(soon, estimate=S // 2, flags=IN_TXN).verdict is RUN
    strict = standing(0, 2 * S, in_transaction="block", **DELAYING)
    assert asked(strict, estimate=S // 2, flags=IN_TXN).verdict is DELAY


def test_for_a_place_one_waits_in_short_looks() -> None:
    assert asked(standing(1, max_workers=1, max_delay_s=1)).retry_ns == 5 * MS
    assert asked(standing(1, max_workers=1, max_delay_s=0.002)).retry_ns == 2 * MS


def test_of_several_one_that_cannot_be_waited_for_blocks() -> None:
    """Else the longest wait decides."""
    short = standing(0, 3 * S // 2, **DELAYING)
    long = standing(0, 2 * S, **DELAYING)
    busy = standing(1, max_workers=1, max_delay_s=1)
    assert told(asked(short, busy, long, estimate=S)) == (DELAY, 2, BUCKET)
    assert told(asked(long, standing(burst=0), estimate=S)) == (BLOCK, 1, QUERY)
    assert told(asked(busy, standing(0, 2 * S, rate=50, capacity=100), estimate=1)) == (
        BLOCK,
        1,
        BUCKET,
    )


@pytest.mark.parametrize(
    ("settings", "running", "owed", "estimate", "crossed"),
    [
        ({"max_workers": 10}, 7, 0, 1, NONE),
        ({"max_workers": 10}, 8, 0, 1, CONCURRENCY),
        ({"burst": 100}, 0, 0, 1_600 * MS, NONE),
        ({"burst": 100}, 0, 0, 1_600 * MS + 1, QUERY),
        ({"rate": 50, "capacity": 100}, 0, S, 600 * MS, NONE),
        ({"rate": 50, "capacity": 100}, 0, S, 600 * MS + 1, BUCKET),
        ({"capacity": 100}, 0, 0, 1_600 * MS + 1, BUCKET),
        ({"rate": 50}, 0, 0, 10**13, NONE),
        ({"burst": 100, "max_workers": 10}, 9, 0, 2 * S, CONCURRENCY),
    ],
)
def test_an_enforced_budget_may_warn_early(
    settings: dict[str, Any], running: int, owed: int, estimate: int, crossed: Limit
) -> None:
    """R123."""
    near = standing(running, owed, warning_threshold=80, **settings)
    answer = asked(near, estimate=estimate)
    assert (answer.thresholds, answer.limits) == ((crossed,), (NONE,))
    assert told(answer) == ((WARN, 0, crossed) if crossed else (RUN, 0, NONE))
    warns = BucketState(replace(near.terms, enforced=False), near.running, near.debt_ns)
    assert asked(warns, estimate=estimate).thresholds == (NONE,)


def test_a_warning_that_is_no_threshold_is_reported_first() -> None:
    near = standing(8, max_workers=10, warning_threshold=80)
    assert told(asked(near, standing(burst=0, mode="warn"))) == (WARN, 1, QUERY)
    assert asked(near, standing(burst=0)).thresholds == (CONCURRENCY, NONE)
