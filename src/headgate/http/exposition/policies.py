"""Whether servers use the policy that was set.   Publisher, BudgetWatch ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headgate.base.prometheus import Row
from headgate.budgets.policy import Mode
from headgate.budgets.readings import ServerHealth
from headgate.budgets.service import Controlled
from headgate.http.exposition.budgets import watches
from headgate.http.exposition.series import Scrape, Series


def _controlled(look: Scrape) -> Iterator[tuple[str, Controlled]]:
    budgets = look.parts.budgets
    yield from budgets.by_database.items() if budgets is not None else ()


def _budgets(look: Scrape) -> Iterator[Row]:
    wall_ms = int(look.now.wall_s * 1000)
    for database, controlled in _controlled(look):
        modes = Counter(budget.mode for budget in controlled.edition.in_force(wall_ms).budgets)
        for mode in Mode:
            yield (database, mode.value), float(modes[mode])


def _meter_readable(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        yield (database,), float(watch.readings is not None)


def _version_in_force(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if watch.readings is not None:
            yield (database,), float(watch.readings.version)


def _policies_refused(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if watch.readings is not None:
            yield (database,), float(watch.readings.refused)


def _behind(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if (readings := watch.readings) is not None:
            behind = sum(seat.version < readings.version for seat in readings.seats)
            yield (database,), float(behind)


def _told_health(look: Scrape) -> Iterator[Row]:
    for database, watch in watches(look):
        if (readings := watch.readings) is not None:
            is_fresh = look.now.wall_s * 1000 <= readings.health_until_ms
            believed = readings.health if is_fresh else ServerHealth.UNKNOWN
            for one in ServerHealth:
                yield (database, one.value), float(one is believed)


def _version_published(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        told = [outlet.published for outlet in controlled.publisher.outlets if outlet.published]
        if told:
            yield (database,), float(min(one.version for one in told))


def _policy_current(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        publisher = controlled.publisher
        if publisher.outlets:
            took = (outlet.told == publisher.wanted for outlet in publisher.outlets)
            yield (database,), float(publisher.wanted is not None and all(took))


def _publish_failures(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        if outlets := controlled.publisher.outlets:
            yield (database,), float(sum(outlet.failures_total for outlet in outlets))


def _policy_put_back(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        if outlets := controlled.publisher.outlets:
            yield (database,), float(sum(outlet.put_back_total for outlet in outlets))


def _switched_off(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        if controlled.publisher.outlets:
            yield (database,), float(controlled.is_off)


def _capped(look: Scrape) -> Iterator[Row]:
    for database, controlled in _controlled(look):
        yield (database,), float(controlled.book.edition.mode_cap is not Mode.ENFORCE)


POLICIES = (
    Series(
        "headgate_budgets",
        "gauge",
        ("database", "mode"),
        "Budgets in force, by mode, as published to servers: without expired ones, and not beyond "
        "the cap.",
        _budgets,
    ),
    Series(
        "headgate_budget_counters_readable",
        "gauge",
        ("database",),
        "1 while the server's counters can be read, else 0.",
        _meter_readable,
    ),
    Series(
        "headgate_budget_policy_published_version",
        "gauge",
        ("database",),
        "Revision of the policy that was last published to the server.",
        _version_published,
    ),
    Series(
        "headgate_budget_policy_in_force_version",
        "gauge",
        ("database",),
        "Revision of the policy that the server uses; alert if it stays below the published one.",
        _version_in_force,
    ),
    Series(
        "headgate_budget_policy_current",
        "gauge",
        ("database",),
        "1 while the server has the newest policy, 0 while publishing fails.",
        _policy_current,
    ),
    Series(
        "headgate_budget_publish_failures_total",
        "counter",
        ("database",),
        "Failed tries to publish a policy to the server.",
        _publish_failures,
    ),
    Series(
        "headgate_budget_policy_put_back_total",
        "counter",
        ("database",),
        "Times that a server's policy was missing, older or from another source, and was restored.",
        _policy_put_back,
    ),
    Series(
        "headgate_budget_switched_off",
        "gauge",
        ("database",),
        "1 while traffic control is switched off at the server itself (`headgate pg disable`, or "
        "its setting): no budget applies to any statement, whatever is published. Else 0.",
        _switched_off,
    ),
    Series(
        "headgate_budget_policies_refused_total",
        "counter",
        ("database",),
        "Policies that the server itself has rejected since its start.",
        _policies_refused,
    ),
    Series(
        "headgate_budget_capped",
        "gauge",
        ("database",),
        "1 while no budget may go beyond `warn` or `off` (`headgate budget mode --all`), else 0.",
        _capped,
    ),
    Series(
        "headgate_budget_backends_behind",
        "gauge",
        ("database",),
        "The server's processes that last used an older policy than the one in force: idle "
        "ones, until their next statement.",
        _behind,
    ),
    Series(
        "headgate_budget_told_health",
        "gauge",
        ("database", "health"),
        "1 for the server's own view of its health, which decides whether budgets with "
        '`when = "unhealthy"` apply.',
        _told_health,
    ),
)
