"""How much an agent works for a database that no client checks.

AWAKE ──idle_after_s──► IDLE ──hibernate_after_s──► HIBERNATING ──a check──► AWAKE
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Activity(Enum):
    AWAKE = "awake"
    IDLE = "idle"
    HIBERNATING = "hibernating"


@dataclass(frozen=True, slots=True)
class Idleness:
    """When to do less. 0 for `never`."""

    idle_after_s: float = 60.0
    hibernate_after_s: float = 600.0
    idle_factor: float = 10.0
    """In IDLE, intervals are this many times longer."""


def activity_after(idle_s: float, idleness: Idleness) -> Activity:
    if idleness.hibernate_after_s and idle_s >= idleness.hibernate_after_s:
        return Activity.HIBERNATING
    if idleness.idle_after_s and idle_s >= idleness.idle_after_s:
        return Activity.IDLE
    return Activity.AWAKE


_ORDER = (Activity.AWAKE, Activity.IDLE, Activity.HIBERNATING)


def most_awake(*states: Activity) -> Activity:
    return min(states, key=_ORDER.index)
