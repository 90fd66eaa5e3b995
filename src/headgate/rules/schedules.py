"""Recurring windows as instants.   Schedule ──windows_of──► Rule.windows, for the days ahead

A wall clock in a zone is no number: it leaps and repeats hours. So the windows are worked
out here, with the zone's own table, and a check compares instants only.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headgate.errors import Fault, InvalidSettings
from headgate.rules.matching import Window
from headgate.rules.times import MINUTES_A_DAY, Schedule

AHEAD_S = 8 * 86_400.0
"""So that a rule for `mon` knows its next window, whatever the day."""
RENEW_S = 3600.0


def check_zone(schedule: Schedule, *, place: str = "rule.schedule.zone") -> None:
    """Raise InvalidSettings where the zone is not known on this host."""
    try:
        ZoneInfo(schedule.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = (
            f"this host does not know the time zone {schedule.zone!r}; write it like "
            "Europe/Berlin, or install tzdata"
        )
        raise InvalidSettings([Fault(place, message)]) from None


def windows_ahead(schedule: Schedule, wall_s: float) -> tuple[Window, ...]:
    """windows_of the current hour: worked out once, however many rules share the schedule."""
    return _windows_from(schedule, wall_s // RENEW_S * RENEW_S)


@lru_cache(maxsize=1024)
def _windows_from(schedule: Schedule, wall_s: float) -> tuple[Window, ...]:
    return windows_of(schedule, wall_s)


def windows_of(
    schedule: Schedule, wall_s: float, *, ahead_s: float = AHEAD_S
) -> tuple[Window, ...]:
    """Those that end after `wall_s` and begin within `ahead_s`, in order, none touching."""
    zone = ZoneInfo(schedule.zone)
    found = [
        window
        for day in _days(zone, wall_s, ahead_s)
        if day.weekday() in schedule.days
        for window in [_window(schedule, day, zone)]
        if window[0] < window[1] and window[1] > wall_s and window[0] < wall_s + ahead_s
    ]
    return tuple(_joined(sorted(found)))


def _days(zone: ZoneInfo, wall_s: float, ahead_s: float) -> Iterator[date]:
    """From two days ago: what began yesterday may still be on, in any zone."""
    today = datetime.fromtimestamp(wall_s, UTC).astimezone(zone).date()
    for offset in range(-2, int(ahead_s // 86_400) + 3):
        yield today + timedelta(days=offset)


def _window(schedule: Schedule, day: date, zone: ZoneInfo) -> Window:
    begin, end = schedule.from_minute, schedule.to_minute
    if end <= begin:
        end += MINUTES_A_DAY
    first, second = _instants(day, begin, zone)
    ends = _instants(day, end, zone)
    if first <= second:
        return first, max(ends)
    leapt_at = _leap(second, first, zone)
    if min(ends) > leapt_at:
        return leapt_at, max(ends)
    # The clock leaps over all of it: as long as ever, right after the leap.
    return leapt_at, leapt_at + 60.0 * (end - begin)


def _leap(before: float, after: float, zone: ZoneInfo) -> float:
    """The instant between both at which the clock leaps ahead."""
    was = _offset(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset(middle, zone) == was else (before, middle)
    return after


def _offset(wall_s: float, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(wall_s, UTC).astimezone(zone).utcoffset()


def _instants(day: date, minute: int, zone: ZoneInfo) -> tuple[float, float]:
    """Both readings of a wall-clock time: they differ in the hour that comes twice, and in the
    one that does not come at all."""
    days, minutes = divmod(minute, MINUTES_A_DAY)
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(days=days)
    local = midnight.replace(hour=minutes // 60, minute=minutes % 60)
    return local.replace(fold=0).timestamp(), local.replace(fold=1).timestamp()


def _joined(windows: list[Window]) -> list[Window]:
    joined: list[Window] = []
    for begin, end in windows:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
