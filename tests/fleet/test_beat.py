"""When a fleet's agents turn to what they share: figures alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fleet.beat import (
    LONGEST_RETRY_S,
    Beat,
    FleetTiming,
    beat_bytes,
    beat_in_s,
    beat_spread_s,
    fallback_in_s,
    first_contact_in_s,
    read_beat,
    retry_in_s,
    spread_s,
)

ROLLS = st.floats(0, 1, exclude_max=True)
TIMING = FleetTiming()


@pytest.mark.parametrize(
    ("shards", "expected_s"), [(0, 0.5), (3, 0.5), (1000, 5.0), (10_000, 50.0), (10**7, 60.0)]
)
def test_spreading_grows_with_the_fleet_within_bounds(shards: int, expected_s: float) -> None:
    assert spread_s(shards) == expected_s


@given(attempt=st.integers(0, 10**9), roll=ROLLS, shards=st.integers(0, 10**6))
def test_a_retry_is_never_farther_than_half_again_the_spread(
    attempt: int, roll: float, shards: int
) -> None:
    spread = spread_s(shards)
    assert 0 <= retry_in_s(attempt, roll, spread) <= 1.5 * max(spread, LONGEST_RETRY_S)


def test_ten_thousand_that_retry_do_not_come_more_often_than_at_a_start() -> None:
    """The mean between two tries is one spreading: 200 of them a second."""
    rolls = [(i + 0.5) / 100 for i in range(100)]
    mean_s = sum(retry_in_s(7, roll, spread_s(10_000)) for roll in rolls) / 100
    assert mean_s == pytest.approx(50.0)


def test_a_small_fleet_tries_again_within_seconds_after_hours() -> None:
    assert retry_in_s(1000, 0.99, spread_s(3)) < 8.0


def test_without_a_copy_there_is_no_time_to_lose() -> None:
    assert first_contact_in_s(None, 0.9) < 0.5
    assert first_contact_in_s(10_000, 0.9) == pytest.approx(45.0)


def test_at_a_start_of_the_whole_fleet_primaries_go_first() -> None:
    assert fallback_in_s(0.0, 50.0, cold=True) == 50.0
    assert fallback_in_s(0.0, 50.0, cold=False) == 0.0


@given(roll=ROLLS, shards=st.integers(0, 10**6))
def test_the_last_writer_of_the_beat_comes_before_all_others(roll: float, shards: int) -> None:
    mine = beat_in_s(TIMING, roll, mine=True, ever=True, shards=shards)
    other = beat_in_s(TIMING, roll, mine=False, ever=True, shards=shards)
    assert mine < other <= 2 * TIMING.beat_interval_s + beat_spread_s(shards)


@pytest.mark.parametrize("shards", [1, 10, 100, 10_000])
def test_the_first_of_the_others_beats_before_a_watch_counts_as_silent(shards: int) -> None:
    """Of N dice the lowest is about 1/(N+1)."""
    first = beat_in_s(TIMING, 1 / (shards + 1), mine=False, ever=True, shards=shards)
    assert first < TIMING.silent_after_s - 1.0


def test_silence_follows_from_the_interval() -> None:
    assert FleetTiming.of(beat_interval_s=5.0).silent_after_s == 15.0


def test_a_source_that_flaps_is_gone_back_to_later_and_later() -> None:
    waits = [TIMING.returns_after_s(flaps) for flaps in range(8)]
    assert waits == sorted(waits)
    assert waits[0] == 10.0
    assert waits[-1] == 300.0


def test_a_beat_comes_back_as_it_was() -> None:
    beat = Beat("agent-a", 1.5, 10_000, 57)
    assert read_beat(beat_bytes(beat)) == beat


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"nope", b"[" * 10_000, b" " * 5000])
def test_what_is_no_beat_is_reported(raw: bytes) -> None:
    with pytest.raises(ValueError):
        read_beat(raw)


def test_a_beat_of_another_version_counts_for_what_can_be_read() -> None:
    """R156"""
    raw = b'{"by": 7, "at": null, "shards": -1, "n": true, "new": {}}'
    assert read_beat(raw) == Beat("", 0.0, 0, 0)
