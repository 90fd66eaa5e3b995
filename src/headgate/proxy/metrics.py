"""Prometheus text of a proxy: each series with its labels, its meaning and its rows.

Labels are bounded; LABELS says of each by what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from headgate.base.prometheus import CONTENT_TYPE, OTHER, Row
from headgate.base.prometheus import Section as AnySection
from headgate.base.prometheus import Series as AnySeries
from headgate.budgets.readings import BudgetCounts, ServerHealth
from headgate.proxy.ports import ClientCounts, ClientKey
from headgate.proxy.status import CAUSES, ProxyFacts, ProxyReadings, calibration, totals

# --- budgets -------------------------------------------------------------------------------------

# Budgets and their policy, as a proxy's relay counts them.   BudgetReadings ──► rows

Series = AnySeries[[ProxyFacts, ProxyReadings]]
Section = AnySection[[ProxyFacts, ProxyReadings]]
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


# --- the policy --------------------------------------------------------------------------------


BUDGETS = Section()
BUDGETS.add(
    "headgate_proxy_budget_admitted_total{budget}",
    "Statements admitted under a budget.",
    _budget(lambda one: one.admitted),
)
BUDGETS.add(
    "headgate_proxy_budget_warned_total{budget,limit}",
    "Statements that ran though a limit was exceeded, or only its warning threshold crossed.",
    _by_limit(lambda one: one.warned),
)
BUDGETS.add(
    "headgate_proxy_budget_blocked_total{budget,limit}",
    "Statements blocked by a budget, by which limit.",
    _by_limit(lambda one: one.blocked),
)
BUDGETS.add(
    "headgate_proxy_budget_delayed_total{budget}",
    "Statements that waited for a budget.",
    _budget(lambda one: one.delayed),
)
BUDGETS.add(
    "headgate_proxy_budget_delayed_seconds_total{budget}",
    "How long they waited, together.",
    _budget(lambda one: one.delayed_ns / 1e9),
)
BUDGETS.add(
    "headgate_proxy_budget_waiting{budget}",
    "Sessions delayed now, by a delay or a penalty.",
    _budget(lambda one: one.sleeping),
)
BUDGETS.add(
    "headgate_proxy_budget_estimated_seconds_total{budget}",
    "Estimated server time of admitted statements.",
    _budget(lambda one: one.estimated_ns / 1e9),
)
BUDGETS.add(
    "headgate_proxy_budget_charged_seconds_total{budget}",
    "Server time charged to a budget.",
    _budget(lambda one: one.charged_ns / 1e9),
)
BUDGETS.add(
    "headgate_proxy_budget_forgiven_seconds_total{budget}",
    "Debt in seconds of server time that was written off.",
    _budget(lambda one: one.forgiven_ns / 1e9),
)


@BUDGETS.rows(
    "headgate_proxy_budget_fill{budget}",
    "Debt as a share of the capacity, 0 to 1, of its fullest bucket; missing if unlimited.",
)
def _fill(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    labels, fills = _labels(seen), dict[str, float]()
    for bucket in seen.readings.buckets if seen.readings is not None else ():
        if bucket.fill is not None:
            label = labels.get(bucket.budget, OTHER)
            fills[label] = max(bucket.fill, fills.get(label, 0.0))
    for label, fill in fills.items():
        yield (label,), fill


@BUDGETS.rows("headgate_proxy_budget_running{budget}", "Statements that run under it now.")
def _running(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    labels, running = _labels(seen), Counter[str]()
    for bucket in seen.readings.buckets if seen.readings is not None else ():
        running[labels.get(bucket.budget, OTHER)] += bucket.running
    for label, workers in running.items():
        yield (label,), float(workers)


@BUDGETS.rows(
    "headgate_proxy_budget_counters_readable",
    "1 while the relay's counters of budgets can be read, else 0.",
)
def _readable(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(seen.readings is not None)


@BUDGETS.rows("headgate_proxy_policy_version", "Version of the policy in force.")
def _version(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    if seen.readings is not None:
        yield (), float(seen.readings.version)


@BUDGETS.rows(
    "headgate_proxy_policy_rejected",
    "1 while a newer policy is invalid, and the last good one stays in force.",
)
def _policy_rejected(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(bool(seen.policy_rejection))


@BUDGETS.rows(
    "headgate_proxy_policy_off",
    "1 while the policy is switched off, and no budget applies to any statement.",
)
def _off(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    if seen.readings is not None:
        yield (), float(seen.readings.off or not seen.readings.enabled)


@BUDGETS.rows(
    "headgate_proxy_health{health}",
    "1 for the health of the database as the relay knows it, else 0.",
)
def _told_health(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    if (readings := seen.readings) is not None:
        is_fresh = seen.wall_ms <= readings.health_until_ms
        believed = readings.health if is_fresh else ServerHealth.UNKNOWN
        for one in ServerHealth:
            yield (one.value,), float(one is believed)


@BUDGETS.rows(
    "headgate_proxy_calibration_error{quantile}",
    "How far estimates of patterns are off: |estimate - actual| / actual.",
)
def _calibration(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    patterns = calibration(seen.readings)
    for name in ("median", "p90"):
        if patterns[f"error_{name}"] is not None:
            yield (name,), float(patterns[f"error_{name}"])


__all__ = ["LABELS", "MAX_CLIENTS", "OTHER", "SERIES", "Series", "render_metrics", "top_clients"]

MAX_CLIENTS = 200
LABELS: dict[str, str] = {
    "budget": "the first 200 by name; the rest together is `other`",
    "by": "what blocked it: `budget`, `rule`, `health`, `pace`, `loss`, `cancel`, `limit`",
    "client": "the 200 with the most statements; the rest together is `other`. A client "
    "that overtakes another leaves `other`, which falls then: leave it out of rates",
    "health": "`healthy`, `unhealthy`, `unknown`",
    "limit": "`concurrency`, `burst`, `capacity`; of warnings also `threshold`",
    "name": "this proxy's `name`",
    "outcome": "a closed list, given with the series",
    "part": "its parts, a closed list, and one for each agent of the settings",
    "protocol": "`postgres`, `mysql`",
    "quantile": "`median`, `p90`",
    "role": "`primary`, `replica`",
    "sent_by": "`client`, `server`",
    "thread": "its relay threads (`threads`)",
    "version": "of this proxy",
    "why": "a closed list",
}


def _total(name: str) -> Rows:
    def rows(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
        yield (), float(totals(seen.threads).get(name, 0))

    return rows


def top_clients(clients: Sequence[ClientCounts]) -> list[ClientCounts]:
    """The largest, and all others as one."""
    by_size = sorted(clients, key=lambda one: one.statements, reverse=True)
    shown, rest = by_size[:MAX_CLIENTS], by_size[MAX_CLIENTS:]
    return [*shown, _summed(rest)] if rest else shown


def _summed(clients: Sequence[ClientCounts]) -> ClientCounts:
    first, *rest = clients
    summed = first._asdict()
    for one in rest:
        for name, value in one._asdict().items():
            if name == "blocked":
                summed[name] = tuple(a + b for a, b in zip(summed[name], value, strict=True))
            elif isinstance(value, int):
                summed[name] += value
    return ClientCounts(**{**summed, "client": ClientKey(-1, 0, OTHER)})


def _client(value: Callable[[ClientCounts], float]) -> Rows:
    def rows(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
        for counts in top_clients(seen.clients):
            yield (counts.client.identity,), float(value(counts))

    return rows


PROXY = Section()


@PROXY.rows("headgate_proxy_build_info{version,name,protocol}", "1; says which proxy this is.")
def _build(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (facts.version, facts.name, facts.protocol), 1.0


@PROXY.rows("headgate_proxy_serving", "1 while it takes new sessions.")
def _state(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(facts.state == "serving")


@PROXY.rows("headgate_proxy_uptime_seconds", "Since this process's start.")
def _uptime(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), max(0.0, seen.now_s - facts.started_s)


@PROXY.rows("headgate_proxy_dry_run", "1 while it only reports what it would block or delay.")
def _dry_run(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(facts.dry_run)


@PROXY.rows(
    "headgate_proxy_settings_rejected",
    "1 while the settings file on disk is invalid and the last good one stays in force.",
)
def _settings_rejected(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(bool(facts.settings.fault))


@PROXY.rows("headgate_proxy_max_sessions", "How many sessions there may be.")
def _max_sessions(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(facts.max_sessions)


PROXY.add("headgate_proxy_sessions", "Sessions now.", _total("sessions"))
PROXY.add("headgate_proxy_idle_sessions", "Of them, with no statement.", _total("idle_sessions"))
PROXY.add("headgate_proxy_accepted_total", "Connections taken.", _total("accepted"))
PROXY.add("headgate_proxy_established_total", "Of them, logged in.", _total("established"))


@PROXY.rows(
    "headgate_proxy_failed_sessions_total{why}", "Sessions that were rejected, or ended by a fault."
)
def _failed_sessions(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    counts = totals(seen.threads)
    for why in ("rejected_sessions", "failed_startups", "failed_connects", "out_of_buffers"):
        yield (why,), float(counts.get(why, 0))
    yield ("protocol_errors",), float(counts.get("protocol_errors", 0))


@PROXY.rows("headgate_proxy_bytes_total{sent_by}", "Bytes relayed.")
def _bytes(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    counts = totals(seen.threads)
    yield ("client",), float(counts.get("client_bytes", 0))
    yield ("server",), float(counts.get("server_bytes", 0))


PROXY.add(
    "headgate_proxy_statements_total",
    "Statements that this process has received.",
    _total("statements"),
)
PROXY.add("headgate_proxy_cancels_total", "Cancel requests.", _total("cancels"))
PROXY.add(
    "headgate_proxy_truncated_texts_total",
    "Statements longer than 1 MiB, matched with every budget that their rest may fall under.",
    _total("truncated_texts"),
)
PROXY.add(
    "headgate_proxy_untrusted_tags_total", "Tags that were not trusted.", _total("untrusted_tags")
)
PROXY.add(
    "headgate_proxy_unkept_texts_total",
    "Prepared statements treated as unknown: max_buffer_mb left no room for their text.",
    _total("unkept_texts"),
)
PROXY.add(
    "headgate_proxy_buffer_bytes",
    "Memory in buffers and in texts of prepared statements.",
    _total("buffers_used_bytes"),
)


@PROXY.rows(
    "headgate_proxy_longest_round_seconds{thread}", "Longest turn of a relay thread's loop."
)
def _longest_round(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for number, counts in enumerate(seen.threads):
        yield (str(number),), counts["longest_round_ns"] / 1e9


PROXY.add(
    "headgate_proxy_lost_events_total",
    "Events lost because Python was too slow; no statement is affected.",
    _total("lost_events"),
)
PROXY.add(
    "headgate_proxy_client_statements_total{client}",
    "Statements that rules, health and budgets were applied to.",
    _client(lambda one: one.statements),
)
PROXY.add(
    "headgate_proxy_client_admitted_total{client}",
    "Statements that ran.",
    _client(lambda one: one.admitted),
)
PROXY.add(
    "headgate_proxy_client_warned_total{client}",
    "Statements that ran with a warning.",
    _client(lambda one: one.warned),
)
PROXY.add(
    "headgate_proxy_client_delayed_total{client}",
    "Statements that waited.",
    _client(lambda one: one.delayed),
)
PROXY.add(
    "headgate_proxy_client_delayed_seconds_total{client}",
    "How long they waited.",
    _client(lambda one: one.delayed_ns / 1e9),
)


@PROXY.rows("headgate_proxy_client_blocked_total{client,by}", "Statements blocked, by what.")
def _blocked(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for counts in top_clients(seen.clients):
        for cause in CAUSES:
            if counts.blocked[cause]:
                yield (counts.client.identity, cause.name.lower()), float(counts.blocked[cause])


PROXY.add(
    "headgate_proxy_client_passed_in_transaction_total{client}",
    "Statements inside a transaction that ran, but would have been blocked or delayed outside.",
    _client(lambda one: one.passed),
)
PROXY.add(
    "headgate_proxy_client_wall_seconds_total{client}",
    "Time of its statements at the server.",
    _client(lambda one: one.wall_ns / 1e9),
)
PROXY.add(
    "headgate_proxy_client_errors_total{client}",
    "Statements that the server ended with an error.",
    _client(lambda one: one.errors),
)
PROXY.add(
    "headgate_proxy_client_waiting{client}",
    "Statements held now.",
    _client(lambda one: one.waiting),
)


@PROXY.rows("headgate_proxy_unidentified_share", "Share of statements whose client has no name.")
def _unidentified(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    compared = sum(one.statements for one in seen.clients)
    if compared:
        yield (), seen.clients[0].statements / compared


@PROXY.rows(
    "headgate_proxy_clients_beyond_table_total",
    "Times that a client found no place in the table ([memory] clients), and counts as others.",
)
def _beyond_table(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(seen.clients_full)


@PROXY.rows(
    "headgate_proxy_uncounted_statements_total",
    "Statements that ran uncounted, for there were more at once than [memory] statements.",
)
def _uncounted(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(seen.statements_full)


@PROXY.rows("headgate_proxy_part_healthy{part}", "1 while that part works.")
def _parts(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for part in seen.parts:
        yield (part.name,), float(part.healthy)


@PROXY.rows("headgate_proxy_targets{role}", "Servers that take new sessions.")
def _targets(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield ("primary",), float(sum(target.primary for target in seen.targets))
    yield ("replica",), float(sum(target.replica for target in seen.targets))


@PROXY.rows(
    "headgate_proxy_release_total{outcome}",
    "Statements that the control loop released, and times that it made a statement wait.",
)
def _released(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield ("taken",), float(seen.released[0])
    yield ("limited",), float(seen.released[1])


@PROXY.rows(
    "headgate_proxy_slowlog_lines_total{outcome}", "Lines written to the slow-log, and left out."
)
def _slowlog(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for outcome, count in seen.slowlog.items():
        yield (outcome,), float(count)


SERIES: Sequence[Series] = (*PROXY, *BUDGETS)


def render_metrics(facts: ProxyFacts, seen: ProxyReadings) -> tuple[bytes, str]:
    return b"".join(series.text(facts, seen) for series in SERIES), CONTENT_TYPE
