"""How large the next chunk is: a table, and what holds for any numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.runs import Sizes, room, sizes_of, smoothed
from headgate.errors import InvalidSettings

ADAPTIVE = sizes_of(None, None, None, None)
used = st.none() | st.floats(0, 100, allow_nan=False)
took = st.floats(0, 1e6, allow_nan=False)


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    low = draw(st.integers(1, 1000))
    begin = low + draw(st.integers(0, 1000))
    high = begin + draw(st.integers(0, 10_000))
    return sizes_of(begin, low, high, draw(st.floats(0.001, 100)))


def test_nothing_said_adapts_and_a_size_alone_is_kept() -> None:
    assert Sizes(100, 10, 1000, 0.5, adapts=True) == ADAPTIVE
    fixed = sizes_of(500, None, None, None)
    assert not fixed.adapts
    assert fixed.next(500, took_s=60.0, utilization=0.99) == 500
    assert fixed.pause_s(took_s=0.001, utilization=0.99) == 0.0


@pytest.mark.parametrize(
    ("size", "took_s", "utilization", "next_size"),
    [
        (100, 0.1, 0.2, 150),  # at ease and quick: up by half
        (100, 0.5, 0.2, 100),  # takes as long as it may
        (100, 0.625, 0.2, 80),  # takes too long: what fits into target_s
        (100, 60.0, 0.2, 50),  # far too long: by half, and again
        (600, 0.1, 0.75, 505),  # half-way to the threshold: half-way between the bounds
        (400, 0.1, 1.0, 200),
        (15, 0.1, 1.0, 10),  # at the threshold: as small as may be
        (15, 0.1, 7.0, 10),
        (100, 0.1, None, 100),  # nobody knows: no larger
        (1000, 0.0, 0.0, 1000),
        (10, 60.0, 0.0, 10),
    ],
)
def test_the_next_size(size: int, took_s: float, utilization: float | None, next_size: int) -> None:
    assert ADAPTIVE.next(size, took_s, utilization) == next_size


def test_one_item_grows_to_two() -> None:
    assert sizes_of(1, 1, 10, 1.0).next(1, took_s=0.01, utilization=0.0) == 2


@pytest.mark.parametrize(
    ("took_s", "utilization", "pause_s"),
    [(0.1, 0.5, 0.0), (0.1, 0.75, 0.2), (0.1, 1.0, 0.4), (0.1, 3.0, 0.4), (0.6, 1.0, 0.0)],
)
def test_chunks_are_spaced_out_towards_the_threshold(
    took_s: float, utilization: float, pause_s: float
) -> None:
    assert ADAPTIVE.pause_s(took_s, utilization) == pytest.approx(pause_s)


@given(sizes(), st.integers(1, 20_000), took, used)
def test_the_size_stays_within_its_bounds(
    plan: Sizes, size: int, took_s: float, utilization: float | None
) -> None:
    assert plan.min_size <= plan.next(size, took_s, utilization) <= plan.max_size
    assert 0 <= plan.pause_s(took_s, utilization) <= plan.target_s


@given(sizes(), st.integers(1, 20_000), took, st.floats(0, 100), st.floats(0, 100))
def test_more_utilization_never_gives_a_larger_chunk_nor_a_shorter_pause(
    plan: Sizes, size: int, took_s: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    assert plan.next(size, took_s, more) <= plan.next(size, took_s, less)
    assert plan.pause_s(took_s, more) >= plan.pause_s(took_s, less)


@given(sizes(), st.integers(1, 20_000), took, took, st.floats(0, 100))
def test_a_slower_chunk_is_never_followed_by_a_larger_one(
    plan: Sizes, size: int, one: float, other: float, utilization: float
) -> None:
    quick, slow = sorted((one, other))
    assert plan.next(size, slow, utilization) <= plan.next(size, quick, utilization)


@given(st.floats(0, 100))
def test_room_is_a_share(utilization: float) -> None:
    assert 0 <= room(utilization) <= 1


# --- against databases of three kinds -------------------------------------------------------
# 2,000 items/s are to be had; 1,000 are as many as the database bears.


def instant() -> Callable[[float, float], float]:
    return lambda rate, dt_s: rate / 1000


def averaged() -> Callable[[float, float], float]:
    """As CPU and running statements: a mean of about a second."""
    mean = 0.0

    def utilization(rate: float, dt_s: float) -> float:
        nonlocal mean
        mean += (1 - math.exp(-dt_s)) * (rate / 1000 - mean)
        return mean

    return utilization


def backlog() -> Callable[[float, float], float]:
    """As replication lag: what is not replayed piles up."""
    waiting = 0.0

    def utilization(rate: float, dt_s: float) -> float:
        nonlocal waiting
        waiting = max(0.0, waiting + (rate - 800) * dt_s)
        return waiting / 2000

    return utilization


@pytest.mark.parametrize("database", [instant, averaged, backlog])
def test_work_settles_below_the_threshold_instead_of_stopping_and_going(
    database: Callable[[], Callable[[float, float], float]],
) -> None:
    utilization, rates, refused = database(), [], 0
    size, pause_s, pressure = ADAPTIVE.size, 0.0, None
    for _ in range(300):
        took_s = size / 2000
        rates.append(size / (took_s + pause_s))
        used = utilization(rates[-1], took_s + pause_s)
        while used >= 1 and rates[-1] < 2000:
            refused, used = refused + 1, utilization(0.0, 0.3)
        pressure = smoothed(pressure, used)
        size = ADAPTIVE.next(size, took_s, pressure)
        pause_s = ADAPTIVE.pause_s(took_s, pressure)
    settled = rates[-100:]
    assert min(settled) > 750 and max(settled) < 900, settled
    assert refused <= 5


def test_what_is_not_known_is_not_made_up() -> None:
    assert smoothed(0.9, None) is None
    assert smoothed(None, 0.9) == 0.9
    assert smoothed(0.5, 1.0) == 0.75


@pytest.mark.parametrize(
    ("given_sizes", "place"),
    [
        ((0, None, None, None), "size"),
        ((-1, None, None, None), "size"),
        ((100, 200, None, None), "size"),
        ((100, None, 50, None), "size"),
        ((None, 0, None, None), "size"),
        ((None, None, None, 0.0), "target_s"),
        ((None, None, None, math.inf), "target_s"),
    ],
)
def test_impossible_sizes_are_refused_when_asked_for(
    given_sizes: tuple[int | None, int | None, int | None, float | None], place: str
) -> None:
    with pytest.raises(InvalidSettings, match=place):
        sizes_of(*given_sizes)
