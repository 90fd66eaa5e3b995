"""How much an agent works for a database that no client checks.

NORMAL ──slow_after_s idle──► SLOW ──hibernate_after_s idle──► HIBERNATING ──a check──► NORMAL
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Activity(Enum):
    NORMAL = "normal"
    SLOW = "slow"
    HIBERNATING = "hibernating"


@dataclass(frozen=True, slots=True)
class Idleness:
    """When to do less. 0 for `never`."""

    slow_after_s: float = 60.0
    hibernate_after_s: float = 600.0
    slow_factor: float = 10.0
    """In SLOW, intervals are this many times longer."""


def activity_after(idle_s: float, idleness: Idleness) -> Activity:
    if idleness.hibernate_after_s and idle_s >= idleness.hibernate_after_s:
        return Activity.HIBERNATING
    if idleness.slow_after_s and idle_s >= idleness.slow_after_s:
        return Activity.SLOW
    return Activity.NORMAL


_ORDER = (Activity.NORMAL, Activity.SLOW, Activity.HIBERNATING)


def most_awake(*states: Activity) -> Activity:
    return min(states, key=_ORDER.index)
