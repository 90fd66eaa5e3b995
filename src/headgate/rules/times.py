"""Recurring windows in which a rule holds. Read as written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headgate.base.declared import (
    Setting,
    names,
    read_table,
    reads,
    table,
    text,
)
from headgate.errors import Fault, InvalidSettings

DAY_S = 86_400.0
MINUTES_A_DAY = 24 * 60
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A window that recurs: on these days, from and up to these minutes of the zone's day."""

    days: tuple[int, ...]
    """0 is Monday; the day on which the window begins."""
    from_minute: int
    to_minute: int
    """Not above from_minute: on the day after."""
    zone: str = "UTC"

    def written(self) -> dict[str, Any]:
        return {
            "days": [DAYS[day] for day in self.days],
            "from": _clock_text(self.from_minute),
            "to": _clock_text(self.to_minute),
            "zone": self.zone,
        }

    def __str__(self) -> str:
        span = f"{_clock_text(self.from_minute)}-{_clock_text(self.to_minute)}"
        return f"{_days_text(self.days)} {span} {self.zone}"


@reads(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 7}]}
)
def _days(value: object) -> tuple[int, ...]:
    """`["mon", "tue"]`, `["mon-fri"]`, or `mon-fri,sun`."""
    given = value.split(",") if isinstance(value, str) else list(names(7)(value))
    days: set[int] = set()
    for item in given:
        begin, dash, end = item.strip().lower().partition("-")
        first, last = _day(begin), _day(end if dash else begin)
        days |= {(first + step) % 7 for step in range((last - first) % 7 + 1)}
    if not days:
        raise ValueError("has no day; leave it out for every day")
    return tuple(sorted(days))


def _day(name: str) -> int:
    if name not in DAYS:
        raise ValueError(f"{name!r} is not a day; days are {', '.join(DAYS)}")
    return DAYS.index(name)


@reads({"type": "string", "pattern": "^(([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)$"})
def _minute(value: object) -> int:
    match = _TIME_OF_DAY.fullmatch(value) if isinstance(value, str) else None
    minute = int(match[1]) * 60 + int(match[2]) if match and int(match[2]) < 60 else None
    if minute is None or minute > MINUTES_A_DAY:
        raise ValueError(f"is {value!r}, must be a time of day such as 07:00 or 24:00")
    return minute


@reads({"type": "string", "pattern": f"^{_ZONE.pattern}$", "maxLength": 64})
def _zone(value: object) -> str:
    given = text(64)(value)
    if not _ZONE.fullmatch(given):
        raise ValueError(f"is {given!r}, must be a time zone such as Europe/Berlin or UTC")
    return given


SCHEDULE_SETTINGS = table(
    (
        Setting(
            "days",
            "Days on which the window begins, such as `mon-fri` or `sat,sun`.",
            _days,
            default=tuple(range(7)),
            shown_default="every day",
        ),
        Setting("from", "Time of day at which it begins, such as `07:00`.", _minute),
        Setting("to", "Time of day at which it ends; before `from`: on the day after.", _minute),
        Setting("zone", "Time zone of both, such as `Europe/Berlin`.", _zone, default="UTC"),
    )
)


def parse_schedule(raw: object, *, place: str = "schedule") -> Schedule:
    """A table, or `mon-fri 07:00-09:30 Europe/Berlin`."""
    values, faults = read_table(_schedule_table(raw), SCHEDULE_SETTINGS, place=place)
    if faults:
        raise InvalidSettings(faults)
    begin, end = values["from"], values["to"]
    missing = [name for name, value in (("from", begin), ("to", end)) if value is None]
    if missing:
        message = "is missing: a window has a beginning and an end"
        raise InvalidSettings([Fault(f"{place}.{name}", message) for name in missing])
    if begin in (end, MINUTES_A_DAY):
        message = (
            f"{_clock_text(begin)} to {_clock_text(end)} is empty; 00:00 to 24:00 is a whole day"
        )
        raise InvalidSettings([Fault(place, message)])
    return Schedule(values["days"], begin, end, values["zone"])


def _schedule_table(raw: object) -> object:
    """A text that is not `DAYS FROM-TO ZONE` is passed on, so that the table rejects it."""
    if not isinstance(raw, str):
        return raw
    given: dict[str, Any] = {}
    rest = []
    for word in raw.split():
        begin, dash, end = word.partition("-")
        if dash and ":" in begin:
            given |= {"from": begin, "to": end}
        elif begin.lower()[:3] in DAYS and "/" not in word:
            given["days"] = word
        else:
            rest.append(word)
    return given | ({"zone": " ".join(rest)} if rest else {})


def _clock_text(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _days_text(days: tuple[int, ...]) -> str:
    if len(days) > 2 and days == tuple(range(days[0], days[-1] + 1)):
        return f"{DAYS[days[0]]}-{DAYS[days[-1]]}"
    return ",".join(DAYS[day] for day in days)
