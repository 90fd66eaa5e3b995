"""Recurring windows, in zones whose clocks leap and repeat."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidSettings
from headgate.rules.schedules import AHEAD_S, check_zone, windows_of
from headgate.rules.times import Schedule, parse_schedule


def wall(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def shown(schedule: str, now: str, ahead_s: float = 86_400.0) -> list[str]:
    found = windows_of(parse_schedule(schedule), wall(now), ahead_s=ahead_s)
    return [
        "-".join(datetime.fromtimestamp(at, UTC).strftime("%d %H:%M") for at in window)
        for window in found
    ]


@pytest.mark.parametrize(
    ("schedule", "now", "windows"),
    [
        ("wed 07:00-09:30 UTC", "2024-05-15T00:00", ["15 07:00-15 09:30"]),
        ("wed 07:00-09:30 Europe/Berlin", "2024-05-15T00:00", ["15 05:00-15 07:30"]),
        ("wed 07:00-09:30 Europe/Berlin", "2024-01-17T00:00", ["17 06:00-17 08:30"]),
        # Began yesterday, and is still on.
        ("tue 22:00-06:00 UTC", "2024-05-15T01:00", ["14 22:00-15 06:00"]),
        ("wed 07:00-09:30 UTC", "2024-05-15T09:30", []),
        # Days that touch are one window.
        ("wed,thu 00:00-24:00 UTC", "2024-05-15T01:00", ["15 00:00-17 00:00"]),
        # The hour that comes twice (27 Oct 2024) is in it twice.
        ("sun 02:15-02:45 Europe/Berlin", "2024-10-26T20:00", ["27 00:15-27 01:45"]),
        ("sun 01:00-04:00 Europe/Berlin", "2024-10-26T20:00", ["26 23:00-27 03:00"]),
        ("sun 01:30-02:30 Europe/Berlin", "2024-10-26T20:00", ["26 23:30-27 01:30"]),
        # The hour that does not come (31 Mar 2024): what begins in it begins with the leap.
        ("sun 02:30-03:30 Europe/Berlin", "2024-03-30T20:00", ["31 01:00-31 01:30"]),
        ("sun 02:00-03:30 Europe/Berlin", "2024-03-30T20:00", ["31 01:00-31 01:30"]),
        ("sun 01:30-02:30 Europe/Berlin", "2024-03-30T20:00", ["31 00:30-31 01:30"]),
        # And what lies in it as a whole is as long as ever, right after.
        ("sun 02:15-02:45 Europe/Berlin", "2024-03-30T20:00", ["31 01:00-31 01:30"]),
        ("sun 00:00-01:00 Atlantic/Azores", "2024-03-30T20:00", ["31 01:00-31 02:00"]),
        # At midnight (4 Nov 2018), and back (18 Feb 2018: 23:00 comes twice on the 17th).
        ("sun 00:30-01:30 America/Sao_Paulo", "2018-11-03T20:00", ["04 03:00-04 03:30"]),
        ("sat 23:30-01:00 America/Sao_Paulo", "2018-11-03T20:00", ["04 02:30-04 03:00"]),
        ("sat 23:15-23:45 America/Sao_Paulo", "2018-02-17T20:00", ["18 01:15-18 02:45"]),
        ("sun 00:00-01:00 America/Sao_Paulo", "2018-02-17T20:00", ["18 03:00-18 04:00"]),
        ("sun 01:00-04:00 Europe/Berlin", "2024-03-30T20:00", ["31 00:00-31 02:00"]),
    ],
)
def test_windows_are_those_of_the_zones_clock(schedule: str, now: str, windows: list[str]) -> None:
    assert shown(schedule, now) == windows


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "..", "a" * 64])
def test_a_zone_that_is_not_known_is_rejected(zone: str) -> None:
    with pytest.raises(
        InvalidSettings, match=r"rule\.schedule\.zone: this host does not know the time zone"
    ):
        check_zone(Schedule((0,), 0, 60, zone))


@given(
    days=st.sets(st.integers(0, 6), min_size=1),
    begin=st.integers(0, 1439),
    end=st.integers(1, 1440),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]),
    now=st.floats(1_600_000_000, 1_800_000_000),
)
def test_windows_are_in_order_apart_and_the_next_is_always_known(
    days: set[int], begin: int, end: int, zone: str, now: float
) -> None:
    if begin == end:
        return
    schedule = Schedule(tuple(sorted(days)), begin, end, zone)
    found = windows_of(schedule, now)
    assert found and all(a < b for a, b in found)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    assert found[0][1] > now and found[0][0] < now + AHEAD_S
    assert len(found) <= 11
