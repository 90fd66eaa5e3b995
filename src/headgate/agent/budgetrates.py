"""How much CPU budgets and statements take of late.   two readings ──► Rates ──► documents

Servers count since they started; what counts at 3 a.m. is the last half minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from headgate.traffic.readings import BudgetReadings

K = TypeVar("K")
MEMORY_S = 30.0
NEGLIGIBLE_CPUS = 1e-6


class Rates:
    """One server's; each newer second weighs more."""

    def __init__(self) -> None:
        self._budgets: dict[str, float] = {}
        self._patterns: dict[int, float] = {}
        self._seen_s = 0.0

    def note(self, before: BudgetReadings | None, now: BudgetReadings, passed_s: float) -> None:
        """`passed_s`: between the two."""
        if before is None or before.started_ms != now.started_ms:
            self._budgets, self._patterns, self._seen_s = {}, {}, 0.0
            return
        if passed_s <= 0:
            return
        self._budgets = _after(self._budgets, _budget_ns(before), _budget_ns(now), passed_s)
        self._patterns = _after(self._patterns, _pattern_ns(before), _pattern_ns(now), passed_s)
        self._seen_s += passed_s

    def budget_cpus(self, name: str) -> float | None:
        """CPUs that it took; None before two readings were compared."""
        return self._told(self._budgets.get(name, 0.0))

    def pattern_cpus(self, query_id: int) -> float | None:
        return self._told(self._patterns.get(query_id, 0.0))

    def _told(self, smoothed: float) -> float | None:
        if not self._seen_s:
            return None
        # At first the smoothing begins at 0, which nobody has measured.
        return smoothed / -math.expm1(-self._seen_s / MEMORY_S)


def _budget_ns(readings: BudgetReadings) -> Mapping[str, int]:
    return {name: counts.charged_ns for name, counts in readings.budgets.items()}


def _pattern_ns(readings: BudgetReadings) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for one in readings.patterns:
        found[one.query_id] = found.get(one.query_id, 0) + one.cpu_total_ns
    return found


def _after(
    rates: Mapping[K, float], before: Mapping[K, int], now: Mapping[K, int], passed_s: float
) -> dict[K, float]:
    weight = -math.expm1(-passed_s / MEMORY_S)
    found = {}
    for key, total_ns in now.items():
        # One that was not there before began to be counted, or to be told, just now.
        taken_ns = max(0, total_ns - before.get(key, total_ns))
        rate = rates.get(key, 0.0)
        rate += weight * (taken_ns / 1e9 / passed_s - rate)
        if rate > NEGLIGIBLE_CPUS:
            found[key] = rate
    return found
