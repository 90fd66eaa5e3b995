"""What servers count for their budgets.   BudgetWatch ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from statistics import quantiles

from headgate.base.prometheus import Row
from headgate.budgets.meter import BudgetWatch
from headgate.budgets.policy import Mode
from headgate.budgets.readings import BudgetCounts, PatternReading, ServerHealth
from headgate.budgets.service import Controlled
from headgate.http.exposition.series import Rows, Scrape, Section

NS_PER_S = 1e9
MS_PER_S = 1e3
MIN_CALLS = 5
"""Runs of a pattern before its error counts."""
QUANTILES = {"0.1": 0, "0.5": 4, "0.9": 8}
"""By their place among the nine cuts into ten."""


def watches(look: Scrape) -> Iterator[tuple[str, BudgetWatch]]:
    budgets = look.parts.budgets
    for database, controlled in budgets.by_database.items() if budgets is not None else ():
        if controlled.watch is not None:
            yield database, controlled.watch


def _counted(of: Callable[[BudgetCounts], float]) -> Rows:
    def rows(look: Scrape) -> Iterator[Row]:
        for database, watch in watches(look):
            for budget, counts in watch.labelled():
                yield (database, budget), float(of(counts))

    return rows


def _counted_by_limit(of: Callable[[BudgetCounts], Mapping[str, int]]) -> Rows:
    def rows(look: Scrape) -> Iterator[Row]:
        for database, watch in watches(look):
            for budget, counts in watch.labelled():
                for limit, count in of(counts).items():
                    yield (database, budget, limit), float(count)

    return rows


# --- how well costs are foreseen -----------------------------------------------------------------


def _spread(of: Callable[[PatternReading], float | None]) -> Rows:
    """Over the patterns of a database: a series each would have no bound."""

    def rows(look: Scrape) -> Iterator[Row]:
        for database, watch in watches(look):
            patterns = watch.readings.patterns if watch.readings is not None else ()
            sure = (of(one) for one in patterns if one.calls >= MIN_CALLS)
            values = [value for value in sure if value is not None and isfinite(value)]
            for quantile, value in _cuts(values).items():
                yield (database, quantile), value

    return rows


def _cuts(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    if len(values) == 1:
        return dict.fromkeys(QUANTILES, values[0])
    cuts = quantiles(values, n=10, method="inclusive")
    return {quantile: cuts[place] for quantile, place in QUANTILES.items()}


BUDGETS = Section()
BUDGETS.add(
    "headgate_budget_admitted_total{database,budget}",
    "Statements that a budget admitted, as the server counts them: from 0 after its start. "
    "Missing, as all that follow, while the server's counters cannot be read.",
    _counted(lambda counts: counts.admitted),
)
BUDGETS.add(
    "headgate_budget_warned_total{database,budget,limit}",
    "Statements that ran although a limit was exceeded (`concurrency`, `burst`, `capacity`), "
    "or that only crossed its warning threshold (`threshold`).",
    _counted_by_limit(lambda counts: counts.warned),
)
BUDGETS.add(
    "headgate_budget_blocked_total{database,budget,limit}",
    "Statements blocked, by the limit that blocked them.",
    _counted_by_limit(lambda counts: counts.blocked),
)
BUDGETS.add(
    "headgate_budget_blocked_early_total{database,budget}",
    "Blocked statements that were blocked before they were planned.",
    _counted(lambda counts: counts.early),
)
BUDGETS.add(
    "headgate_budget_delayed_total{database,budget}",
    "Statements that were delayed.",
    _counted(lambda counts: counts.delayed),
)
BUDGETS.add(
    "headgate_budget_delayed_seconds_total{database,budget}",
    "Total time of these delays.",
    _counted(lambda counts: counts.delayed_ns / NS_PER_S),
)
BUDGETS.add(
    "headgate_budget_passed_total{database,budget}",
    "Statements over a limit that ran because they were inside a transaction.",
    _counted(lambda counts: counts.passed),
)
BUDGETS.add(
    "headgate_budget_sleeping{database,budget}",
    "Sessions that a delay or a penalty makes wait now.",
    _counted(lambda counts: counts.sleeping),
)
BUDGETS.add(
    "headgate_budget_estimated_cpu_seconds_total{database,budget}",
    "Estimated CPU time of the admitted statements.",
    _counted(lambda counts: counts.estimated_ns / NS_PER_S),
)
BUDGETS.add(
    "headgate_budget_charged_cpu_seconds_total{database,budget}",
    "CPU time that they really used.",
    _counted(lambda counts: counts.charged_ns / NS_PER_S),
)
BUDGETS.add(
    "headgate_budget_forgiven_cpu_seconds_total{database,budget}",
    "CPU debt that was forgiven, by an operator or because the table of buckets was full.",
    _counted(lambda counts: counts.forgiven_ns / NS_PER_S),
)
BUDGETS.add(
    "headgate_budget_evicted_total{database,budget}",
    "Buckets of single values (`each`) that were dropped because the table is full.",
    _counted(lambda counts: counts.evicted),
)
BUDGETS.add(
    "headgate_budget_uncounted_total{database,budget}",
    "Statements that ran uncounted because every bucket of their set was in use.",
    _counted(lambda counts: counts.unpinned),
)


@BUDGETS.rows(
    "headgate_budget_last_violation_timestamp_seconds{database,budget}",
    "When it last warned, delayed or blocked a statement, as Unix time; missing if it never did.",
)
def _last_violations(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        for budget, counts in watch.labelled():
            if counts.last_violation_ms:
                yield (database, budget), counts.last_violation_ms / MS_PER_S


@BUDGETS.rows(
    "headgate_budget_fill{database,budget}",
    "Debt of its fullest bucket as a share of the capacity, 0 to 1; missing without one.",
)
def _budget_fill(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        fills: dict[str, float] = {}
        for bucket in watch.readings.buckets if watch.readings is not None else ():
            if bucket.fill is not None:
                label = watch.label(bucket.budget)
                fills[label] = max(bucket.fill, fills.get(label, 0.0))
        for budget, fill in fills.items():
            yield (database, budget), fill


@BUDGETS.rows(
    "headgate_budget_running{database,budget}", "Workers that run statements under it now."
)
def _budget_running(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        running: Counter[str] = Counter()
        for bucket in watch.readings.buckets if watch.readings is not None else ():
            running[watch.label(bucket.budget)] += bucket.running
        for budget, workers in running.items():
            yield (database, budget), float(workers)


@BUDGETS.rows("headgate_budget_patterns{database}", "Patterns whose cost the server has learned.")
def _patterns(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if watch.readings is not None:
            yield (database,), float(len(watch.readings.patterns))


BUDGETS.add(
    "headgate_budget_estimate_error{database,quantile}",
    "Error of the estimates, as |estimate - actual| / actual, over the patterns that ran at "
    "least five times; by pattern in `headgate budget top`.",
    _spread(lambda pattern: pattern.error),
)
BUDGETS.add(
    "headgate_budget_cost_factor{database,quantile}",
    "CPU seconds per unit of the planner's cost, for a typical execution, over the same patterns.",
    _spread(lambda pattern: None if pattern.k is None else pattern.k / NS_PER_S),
)


@BUDGETS.rows(
    "headgate_budget_history_dropped_total{database}",
    "Violations missing from history (never from the counters) because the store was "
    "unavailable too long.",
)
def _dropped(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        yield (database,), float(watch.minutes.dropped)


# --- whether servers use the policy that was set.   Publisher, BudgetWatch ──► rows --------


def _controlled(look: Scrape) -> Iterator[tuple[str, Controlled]]:
    budgets = look.parts.budgets
    yield from budgets.by_database.items() if budgets is not None else ()


POLICIES = Section()


@POLICIES.rows(
    "headgate_budgets{database,mode}",
    "Budgets in force, by mode, as published to servers: without expired ones, and not beyond "
    "the cap.",
)
def _budgets(look: Scrape) -> Iterator[Row]:
    wall_ms = int(look.now.wall_s * 1000)
    for database, controlled in _controlled(look):
        modes = Counter(budget.mode for budget in controlled.edition.in_force(wall_ms).budgets)
        for mode in Mode:
            yield (database, mode.value), float(modes[mode])


@POLICIES.rows(
    "headgate_budget_counters_readable{database}",
    "1 while the server's counters can be read, else 0.",
)
def _meter_readable(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        yield (database,), float(watch.readings is not None)


@POLICIES.rows(
    "headgate_budget_policy_published_version{database}",
    "Revision of the policy that was last published to the server.",
)
def _version_published(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        told = [outlet.published for outlet in controlled.publisher.outlets if outlet.published]
        if told:
            yield (database,), float(min(one.version for one in told))


@POLICIES.rows(
    "headgate_budget_policy_in_force_version{database}",
    "Revision of the policy that the server uses; alert if it stays below the published one.",
)
def _version_in_force(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if watch.readings is not None:
            yield (database,), float(watch.readings.version)


@POLICIES.rows(
    "headgate_budget_policy_current{database}",
    "1 while the server has the newest policy, 0 while publishing fails.",
)
def _policy_current(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        publisher = controlled.publisher
        if publisher.outlets:
            took = (outlet.told == publisher.wanted for outlet in publisher.outlets)
            yield (database,), float(publisher.wanted is not None and all(took))


@POLICIES.rows(
    "headgate_budget_publish_failures_total{database}",
    "Failed tries to publish a policy to the server.",
)
def _publish_failures(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        if outlets := controlled.publisher.outlets:
            yield (database,), float(sum(outlet.failures_total for outlet in outlets))


@POLICIES.rows(
    "headgate_budget_policy_put_back_total{database}",
    "Times that a server's policy was missing, older or from another source, and was restored.",
)
def _policy_put_back(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        if outlets := controlled.publisher.outlets:
            yield (database,), float(sum(outlet.displaced.total for outlet in outlets))


@POLICIES.rows(
    "headgate_budget_switched_off{database}",
    "1 while traffic control is switched off at the server itself (`headgate pg disable`, or "
    "its setting): no budget applies to any statement, whatever is published. Else 0.",
)
def _switched_off(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        if controlled.publisher.outlets:
            yield (database,), float(controlled.is_off)


@POLICIES.rows(
    "headgate_budget_policies_rejected_total{database}",
    "Policies that the server itself has rejected since its start.",
)
def _policies_rejected(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if watch.readings is not None:
            yield (database,), float(watch.readings.rejected)


@POLICIES.rows(
    "headgate_budget_capped{database}",
    "1 while no budget may go beyond `warn` or `off` (`headgate budget mode --all`), else 0.",
)
def _capped(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        yield (database,), float(controlled.edition.mode_cap is not Mode.ENFORCE)


@POLICIES.rows(
    "headgate_budget_backends_behind{database}",
    "The server's processes that last used an older policy than the one in force: idle "
    "ones, until their next statement.",
)
def _behind(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if (readings := watch.readings) is not None:
            behind = sum(seat.version < readings.version for seat in readings.seats)
            yield (database,), float(behind)


@POLICIES.rows(
    "headgate_budget_health{database,health}",
    "1 for the server's own view of its health, which decides whether budgets with "
    '`when = "unhealthy"` apply.',
)
def _told_health(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if (readings := watch.readings) is not None:
            is_fresh = look.now.wall_s * 1000 <= readings.health_until_ms
            believed = readings.health if is_fresh else ServerHealth.UNKNOWN
            for one in ServerHealth:
                yield (database, one.value), float(one is believed)
