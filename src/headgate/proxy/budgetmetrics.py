"""Budgets and their policy, as a proxy's relay counts them.   BudgetReadings ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from headgate.base.prometheus import COUNTER, GAUGE, OTHER, Row
from headgate.base.prometheus import Series as AnySeries
from headgate.budgets.readings import BudgetCounts, ServerHealth
from headgate.proxy.status import ProxyFacts, ProxyReadings, calibration

Series = AnySeries[[ProxyFacts, ProxyReadings]]
Rows = Callable[[ProxyFacts, ProxyReadings], Iterator[Row]]
MAX_BUDGETS = 200


def _budgets(seen: ProxyReadings) -> Iterator[tuple[str, BudgetCounts]]:
    if seen.readings is not None:
        yield from sorted(seen.readings.budgets.items())


def _labels(seen: ProxyReadings) -> dict[str, str]:
    """Budget → its label: the first by name have their own."""
    names = [name for name, _ in _budgets(seen)]
    return {name: name if at < MAX_BUDGETS else OTHER for at, name in enumerate(names)}


def _budget(value: Callable[[BudgetCounts], float]) -> Rows:
    def rows(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
        labels = _labels(seen)
        sums: dict[str, float] = {}
        for name, counts in _budgets(seen):
            sums[labels[name]] = sums.get(labels[name], 0.0) + value(counts)
        for label, total in sums.items():
            yield (label,), float(total)

    return rows


def _by_limit(of: Callable[[BudgetCounts], Mapping[str, int]]) -> Rows:
    def rows(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
        labels = _labels(seen)
        sums: Counter[tuple[str, str]] = Counter()
        for name, counts in _budgets(seen):
            for limit, count in of(counts).items():
                sums[labels[name], limit] += count
        for labelled, count in sums.items():
            yield labelled, float(count)

    return rows


def _fill(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    labels, fills = _labels(seen), dict[str, float]()
    for bucket in seen.readings.buckets if seen.readings is not None else ():
        if bucket.fill is not None:
            label = labels.get(bucket.budget, OTHER)
            fills[label] = max(bucket.fill, fills.get(label, 0.0))
    for label, fill in fills.items():
        yield (label,), fill


def _running(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    labels, running = _labels(seen), Counter[str]()
    for bucket in seen.readings.buckets if seen.readings is not None else ():
        running[labels.get(bucket.budget, OTHER)] += bucket.running
    for label, workers in running.items():
        yield (label,), float(workers)


# --- the policy --------------------------------------------------------------------------------


def _readable(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(seen.readings is not None)


def _version(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    if seen.readings is not None:
        yield (), float(seen.readings.version)


def _rejected(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(bool(seen.policy_rejection))


def _off(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    if seen.readings is not None:
        yield (), float(seen.readings.off or not seen.readings.enabled)


def _told_health(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    if (readings := seen.readings) is not None:
        is_fresh = seen.wall_ms <= readings.health_until_ms
        believed = readings.health if is_fresh else ServerHealth.UNKNOWN
        for one in ServerHealth:
            yield (one.value,), float(one is believed)


def _calibration(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    patterns = calibration(seen.readings)
    for name in ("median", "p90"):
        if patterns[f"error_{name}"] is not None:
            yield (name,), float(patterns[f"error_{name}"])


_BUDGET, _LIMIT = ("budget",), ("budget", "limit")
BUDGETS: tuple[Series, ...] = (
    Series(
        "headgate_proxy_budget_admitted_total",
        COUNTER,
        _BUDGET,
        "Statements admitted under a budget.",
        _budget(lambda one: one.admitted),
    ),
    Series(
        "headgate_proxy_budget_warned_total",
        COUNTER,
        _LIMIT,
        "Statements that ran though a limit was exceeded, or only its warning threshold crossed.",
        _by_limit(lambda one: one.warned),
    ),
    Series(
        "headgate_proxy_budget_blocked_total",
        COUNTER,
        _LIMIT,
        "Statements blocked by a budget, by which limit.",
        _by_limit(lambda one: one.blocked),
    ),
    Series(
        "headgate_proxy_budget_delayed_total",
        COUNTER,
        _BUDGET,
        "Statements that waited for a budget.",
        _budget(lambda one: one.delayed),
    ),
    Series(
        "headgate_proxy_budget_delayed_seconds_total",
        COUNTER,
        _BUDGET,
        "How long they waited, together.",
        _budget(lambda one: one.delayed_ns / 1e9),
    ),
    Series(
        "headgate_proxy_budget_waiting",
        GAUGE,
        _BUDGET,
        "Sessions delayed now, by a delay or a penalty.",
        _budget(lambda one: one.sleeping),
    ),
    Series(
        "headgate_proxy_budget_estimated_seconds_total",
        COUNTER,
        _BUDGET,
        "Estimated server time of admitted statements.",
        _budget(lambda one: one.estimated_ns / 1e9),
    ),
    Series(
        "headgate_proxy_budget_charged_seconds_total",
        COUNTER,
        _BUDGET,
        "Server time charged to a budget.",
        _budget(lambda one: one.charged_ns / 1e9),
    ),
    Series(
        "headgate_proxy_budget_forgiven_seconds_total",
        COUNTER,
        _BUDGET,
        "Debt in seconds of server time that was written off.",
        _budget(lambda one: one.forgiven_ns / 1e9),
    ),
    Series(
        "headgate_proxy_budget_fill",
        GAUGE,
        _BUDGET,
        "Debt as a share of the capacity, 0 to 1, of its fullest bucket; missing if unlimited.",
        _fill,
    ),
    Series(
        "headgate_proxy_budget_running",
        GAUGE,
        _BUDGET,
        "Statements that run under it now.",
        _running,
    ),
    Series(
        "headgate_proxy_budget_counters_readable",
        GAUGE,
        (),
        "1 while the relay's counters of budgets can be read, else 0.",
        _readable,
    ),
    Series("headgate_proxy_policy_version", GAUGE, (), "Version of the policy in force.", _version),
    Series(
        "headgate_proxy_policy_rejected",
        GAUGE,
        (),
        "1 while a newer policy is invalid, and the last good one stays in force.",
        _rejected,
    ),
    Series(
        "headgate_proxy_policy_off",
        GAUGE,
        (),
        "1 while the policy is switched off, and no budget applies to any statement.",
        _off,
    ),
    Series(
        "headgate_proxy_told_health",
        GAUGE,
        ("health",),
        "1 for the health of the database as the relay knows it, else 0.",
        _told_health,
    ),
    Series(
        "headgate_proxy_calibration_error",
        GAUGE,
        ("quantile",),
        "How far estimates of patterns are off: |estimate - actual| / actual.",
        _calibration,
    ),
)
