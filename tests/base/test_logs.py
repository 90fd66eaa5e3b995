"""A fault that is met again and again must not fill the disk (R135)."""

from __future__ import annotations

import pytest
import structlog

from headgate.base.logs import FLOOD_LINES, FLOOD_S, Flood


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def flood(clock: Clock) -> Flood:
    return Flood(clock)


def told(flood: Flood, name: str, times: int, method: str = "error") -> list[object]:
    """What `left_out` says in each line that comes through."""
    lines = []
    for _ in range(times):
        try:
            lines.append(flood(None, method, {"event": name}).get("left_out"))
        except structlog.DropEvent:
            continue
    return lines


def test_a_flood_is_cut_and_the_next_line_says_by_how_much(flood: Flood, clock: Clock) -> None:
    assert told(flood, "http.check_failed", 1000) == [None] * FLOOD_LINES
    clock.now_s += FLOOD_S
    assert told(flood, "http.check_failed", 2) == [1000 - FLOOD_LINES, None]
    clock.now_s += FLOOD_S
    assert told(flood, "http.check_failed", 1) == [None], "told once"


def test_one_fault_hides_no_other(flood: Flood) -> None:
    told(flood, "http.check_failed", 1000)
    assert told(flood, "store.fault", 1) == [None]


def test_units_that_people_write_are_always_written(flood: Flood) -> None:
    """Each change of a rule has its line, however many a script makes."""
    assert len(told(flood, "rule.set", 1000, "info")) == 1000
