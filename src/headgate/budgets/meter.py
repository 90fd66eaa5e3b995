"""What servers count for their budgets.   BudgetMeter ──each second──► BudgetWatch ──► Store

Two readings one after the other make what happened in between; it is kept by the minute.
A server that crashed counts from 0 again: what it counts then is new, and nothing is negative.
Labels are bounded: a budget has a place of its own here, or it is counted under `other`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

import structlog

from headgate.base.names import OTHER, parse_identity
from headgate.base.ports import BudgetMeter, Clock
from headgate.base.supervise import beside
from headgate.budgets.readings import (
    NOTHING_COUNTED,
    BudgetCounts,
    BudgetReadings,
    ClientTally,
)
from headgate.check.model import Check, Verdict
from headgate.check.snapshot import Counted
from headgate.errors import HeadgateError, InvalidName
from headgate.history.recorder import BUDGET, RULE
from headgate.history.records import BudgetMinute
from headgate.metrics.samples import Instant
from headgate.rules.matching import RuleBook, throttles

log = structlog.get_logger()

READ_TIMEOUT_S = 2.0
MAX_LABELLED = 200
"""Budgets of a database that are counted by name in metrics."""
MAX_ROWS_A_MINUTE = 1000
"""Violations of a database; further ones are counted as `other`."""
MAX_WAITING = 20_000
WARNED, BLOCKED, DELAYED = "warned", "blocked", "delayed"

Alike = tuple[str, str, str]
"""(budget, what, limit)"""
K = TypeVar("K")
MEMORY_S = 30.0
NEGLIGIBLE_CPUS = 1e-6


class BudgetWatch:
    """One database's meter: its newest readings, or why there are none."""

    def __init__(self, database: str, meter: BudgetMeter, clock: Clock) -> None:
        self.database = database
        self._meter = meter
        self._clock = clock
        self._began_ms = int(clock.now().wall_s * 1000)
        self._before: BudgetReadings | None = None
        self._labelled: dict[str, None] = {}
        self.minutes = ViolationMinutes(database)
        self._clients: dict[str, ClientTally] = {}
        """What was decided since it was last taken."""
        self.rates = Rates()
        self.readings: BudgetReadings | None = None
        """The newest; None while they cannot be read."""
        self.read_at: Instant | None = None
        self.fault = "has not been read yet"
        """Why there are none; empty: there are."""

    async def look(self) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                readings = await self._meter.read()
        except TimeoutError:
            self._failed(f"no answer in {READ_TIMEOUT_S:g} s")
        except (HeadgateError, OSError) as error:
            self._failed(str(error))
        else:
            await self._take(readings)

    async def _take(self, readings: BudgetReadings) -> None:
        now, earlier = self._clock.now(), self._earlier(readings)
        passed_s = 0.0 if self.read_at is None else now.mono_s - self.read_at.mono_s
        size = len(readings.budgets)
        violations = await beside(size, lambda: list(_violations(earlier, readings)))
        await beside(size, lambda: self.rates.note(self._before, readings, passed_s))
        if self.fault and self._before is not None:
            log.info("budgets.read_again", database=self.database)
        if self._before is not None and self._before.started_ms != readings.started_ms:
            log.warning("budgets.counted_anew", database=self.database)
        self.minutes.add(violations, now.wall_s)
        self._note_clients(readings)
        for name in readings.budgets:
            if len(self._labelled) >= MAX_LABELLED:
                break
            self._labelled.setdefault(name)
        self.readings = self._before = readings
        self.read_at, self.fault = now, ""

    def _note_clients(self, readings: BudgetReadings) -> None:
        before = self._before
        if before is None and readings.started_ms < self._began_ms:
            return  # Nobody knows when that was.
        known: Mapping[str, ClientTally] = {}
        if before is not None and before.started_ms == readings.started_ms:
            known = before.clients
        for name, tally in readings.clients.items():
            new = tally.since(known.get(name, ClientTally()))
            if any(new[:3]):
                self._clients[name] = new

    def drain_clients(self) -> Mapping[str, ClientTally]:
        drained, self._clients = self._clients, {}
        return drained

    def _earlier(self, readings: BudgetReadings) -> Mapping[str, BudgetCounts]:
        """What had been counted before. The first look does not know what came when, unless the
        server is younger than we are."""
        before = self._before
        if before is None:
            return readings.budgets if readings.started_ms < self._began_ms else NO_BUDGETS
        return before.budgets if before.started_ms == readings.started_ms else NO_BUDGETS

    def _failed(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("budgets.unreadable", database=self.database, detail=fault)
        self.fault, self.readings = fault, None

    def labelled(self) -> Iterator[tuple[str, BudgetCounts]]:
        """Counts by label, for metrics: those that have a place, and the others together."""
        readings = self.readings
        if readings is None:
            return
        rest = []
        for name, counts in readings.budgets.items():
            if name in self._labelled:
                yield name, counts
            else:
                rest.append(counts)
        if rest:
            yield OTHER, total_of(rest)

    def label(self, budget: str) -> str:
        return budget if budget in self._labelled else OTHER


def decisions_of(
    clients: Mapping[str, ClientTally], database: str, rules: RuleBook, wall_s: float
) -> Iterator[Counted]:
    """As the log of decisions has them, by client."""
    for name, tally in clients.items():
        try:
            check = Check(parse_identity(name), database)
        except InvalidName:
            continue  # Memory that a server shares may say anything.
        rule = rules.applied(check.identity, database, wall_s).reject
        held = rule is not None and rule.rejects_all
        by_rule = Verdict.ON_HOLD if held else Verdict.REJECTED_BY_RATIO
        rows = (
            (Verdict.OK, "", tally.admitted, ""),
            (Verdict.OVER_BUDGET, f"{BUDGET}{tally.last_budget}", tally.by_budget, ""),
            (
                by_rule,
                f"{RULE}{rule.id}" if rule else f"{RULE}ended",
                tally.by_rule,
                throttles(rule) if rule else "",
            ),
        )
        for verdict, by, times, reason in rows:
            if times > 0:
                yield Counted(check, verdict, by, times, reason=reason)


NO_BUDGETS: Mapping[str, BudgetCounts] = MappingProxyType({})


def total_of(counts: Iterable[BudgetCounts]) -> BudgetCounts:
    every = list(counts)
    summed = {
        name: sum(getattr(one, name) for one in every)
        for name in BudgetCounts.__slots__
        if name not in (WARNED, BLOCKED, "last_violation_ms")
    }
    return BudgetCounts(
        **summed,
        warned=_added(one.warned for one in every),
        blocked=_added(one.blocked for one in every),
        last_violation_ms=max((one.last_violation_ms for one in every), default=0),
    )


def _added(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for counts in each:
        for limit, count in counts.items():
            found[limit] = found.get(limit, 0) + count
    return found


# --- violations ------------------------------------------------------------------------------


def _violations(
    before: Mapping[str, BudgetCounts], readings: BudgetReadings
) -> Iterator[tuple[Alike, int]]:
    """What came since. A counter that fell started again, whatever else is said."""
    for name, counts in readings.budgets.items():
        was = before.get(name, NOTHING_COUNTED)
        for what, old, new in (
            (WARNED, was.warned, counts.warned),
            (BLOCKED, was.blocked, counts.blocked),
            (DELAYED, {"": was.delayed}, {"": counts.delayed}),
        ):
            for limit, count in new.items():
                known = old.get(limit, 0)
                if came := count - known if count >= known else count:
                    yield (name, what, limit), came


class ViolationMinutes:
    """Sums that wait for the store, one row for what is alike in a minute."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._waiting: dict[tuple[int, Alike], int] = {}
        self._minute = 0
        self._rows: set[Alike] = set()
        self.dropped = 0

    def add(self, violations: Iterable[tuple[Alike, int]], wall_s: float) -> None:
        minute = int(wall_s // 60)
        if minute != self._minute:
            self._minute, self._rows = minute, set()
        for alike, count in violations:
            self._add(minute, self._row(alike), count)

    def _row(self, alike: Alike) -> Alike:
        if alike in self._rows or len(self._rows) < MAX_ROWS_A_MINUTE:
            self._rows.add(alike)
            return alike
        return (OTHER, *alike[1:])

    def _add(self, minute: int, alike: Alike, count: int) -> None:
        key = (minute, alike)
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self.dropped += count
            return
        self._waiting[key] = self._waiting.get(key, 0) + count

    def drain(self) -> list[BudgetMinute]:
        """What the store has not got yet. Give it back with `restore` if it cannot be kept."""
        waiting, self._waiting = self._waiting, {}
        return [
            BudgetMinute(minute, self._database, *alike, count)
            for (minute, alike), count in waiting.items()
        ]

    def restore(self, minutes: Iterable[BudgetMinute]) -> None:
        for m in minutes:
            self._add(m.minute, (m.budget, m.what, m.limit), m.count)


class Rates:
    """How much CPU budgets and statements of one server use now; each newer second weighs more.
    Servers count since they started; what counts at 3 a.m. is the last half minute."""

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
        # One that was not there before began to be counted, or reported, just now.
        taken_ns = max(0, total_ns - before.get(key, total_ns))
        rate = rates.get(key, 0.0)
        rate += weight * (taken_ns / 1e9 / passed_s - rate)
        if rate > NEGLIGIBLE_CPUS:
            found[key] = rate
    return found
