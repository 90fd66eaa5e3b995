"""The reverse leaky bucket as one number (R109–R114)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.bucket import (
    FAR_NS,
    Bucket,
    Charge,
    charged,
    cpu_ns,
    debt_ns,
    drain_ns,
    forgiven,
    refunded,
    rescaled,
    server_ns,
    size_ns,
    wait_ns,
)
from headgate.budgets.model import NEVER

S = 1_000_000_000
RATES = st.integers(1, 100_000)
CPUS = st.integers(100, 128_000)
COSTS = st.integers(0, 1_000 * S)


def test_units() -> None:
    """100 %·s of eight CPUs are 8 s of CPU; half the server drains them in 2 s."""
    assert server_ns(100_000, 8000) == 8 * S
    assert drain_ns(8 * S, 50_000, 8000) == 2 * S
    assert size_ns(200_000, 50_000) == 4 * S
    assert cpu_ns(2 * S, 50_000, 8000) == 8 * S


@given(COSTS, RATES, CPUS)
def test_a_cost_is_rounded_in_the_buckets_favor(cost: int, rate: int, cpus: int) -> None:
    there = drain_ns(cost, rate, cpus)
    assert cost <= cpu_ns(there, rate, cpus)
    assert cost == 0 or cpu_ns(there - 1, rate, cpus) <= cost


def test_no_cost_is_too_large_to_reckon_with() -> None:
    assert drain_ns(10_000 * S, 1, 1) == FAR_NS
    assert charged(Bucket(2, 2, 1, empty_at_ns=2 * FAR_NS), FAR_NS, 0).empty_at_ns == 2 * FAR_NS


def test_it_drains_by_being_read_later() -> None:
    """R111."""
    bucket = charged(Bucket(2, 2, 100_000), 10 * S, now_ns=S)
    assert [debt_ns(bucket.empty_at_ns, at * S) for at in (1, 5, 11, 99)] == [10 * S, 6 * S, 0, 0]


def test_when_it_will_fit() -> None:
    assert wait_ns(0, 4, 4) == 0
    assert wait_ns(3, 4, 4) == 3
    assert wait_ns(0, 5, 4) == NEVER


def test_a_refund_never_gives_back_what_has_drained() -> None:
    bucket = charged(Bucket(2, 2, 100_000), 10, now_ns=0)
    charge = Charge(10, bucket.empty_at_ns, 0)
    assert refunded(bucket, charge, 8, now_ns=0).empty_at_ns == 2
    assert refunded(bucket, charge, 8, now_ns=7).empty_at_ns == 7
    assert refunded(bucket, charge, 8, now_ns=50).empty_at_ns == 10


def test_refunds_of_others_move_a_charge_forward() -> None:
    """Two charges of 10; the first is given back whole: the second drains from there."""
    one = charged(Bucket(2, 2, 100_000), 10, now_ns=0)
    two = charged(one, 10, now_ns=0)
    first, second = Charge(10, 10, 0), Charge(10, 20, 0)
    after = refunded(two, first, 10, now_ns=0)
    assert (after.empty_at_ns, after.refunded_ns) == (10, 10)
    assert refunded(after, second, 10, now_ns=4).empty_at_ns == 4


def test_what_was_forgiven_is_not_given_back_again() -> None:
    """A charge, an amnesty, another's charge: the first one's refund must not touch that."""
    bucket = charged(Bucket(2, 2, 100_000), 10, now_ns=0)
    charge = Charge(10, bucket.empty_at_ns, 0)
    bucket = charged(forgiven(bucket, 1, now_ns=2), 10, now_ns=2)
    assert bucket.empty_at_ns == 12
    assert refunded(bucket, charge, 10, now_ns=3).empty_at_ns == 12


def test_rates_back_and_forth_give_nothing_of_others_back() -> None:
    """A charge of 10; twice the rate for a while, then the old one, and another's charge."""
    bucket = charged(Bucket(2, 2, 50_000), 10, now_ns=0)
    charge = Charge(10, bucket.empty_at_ns, 0)
    bucket = rescaled(rescaled(bucket, 100_000, now_ns=0), 50_000, now_ns=2)
    assert bucket.empty_at_ns == 2 + 6
    bucket = charged(bucket, 10, now_ns=2)
    assert refunded(bucket, charge, 10, now_ns=2).empty_at_ns >= 2 + 10


def test_another_rate_drains_the_same_debt() -> None:
    bucket = charged(Bucket(2, 2, 50_000), 10 * S, now_ns=0)
    slower = rescaled(bucket, 25_000, now_ns=4 * S)
    assert slower.empty_at_ns == 4 * S + 12 * S
    assert cpu_ns(12 * S, 25_000, 1000) == cpu_ns(6 * S, 50_000, 1000)


STEPS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 30), st.integers(0, 30), st.integers(0, 40)),
    max_size=12,
)


@given(STEPS)
def test_a_bucket_never_has_less_debt_than_the_truth(
    steps: list[tuple[int, int, int, int]],
) -> None:
    """Of statements charged by estimate and settled by actual, in any overlap: a second bucket
    that got the actual at once, at the start, never has more debt."""
    events = []
    at = 0
    for number, (gap, estimate, at_most, length) in enumerate(steps):
        at += gap
        actual = min(at_most, estimate)
        events += [(at, 0, number, estimate, actual), (at + length, 1, number, estimate, actual)]
    told, true = Bucket(2, 2, 100_000), Bucket(2, 2, 100_000)
    charges: dict[int, Charge] = {}
    for now, end, number, estimate, actual in sorted(events):
        if end:
            told = refunded(told, charges[number], estimate - actual, now)
        else:
            before = told.refunded_ns
            told, true = charged(told, estimate, now), charged(true, actual, now)
            charges[number] = Charge(estimate, told.empty_at_ns, before)
        assert debt_ns(told.empty_at_ns, now) >= debt_ns(true.empty_at_ns, now)
