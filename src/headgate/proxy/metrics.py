"""Prometheus text of a proxy.   One row of SERIES a metric: name, kind, labels, meaning.

Labels are bounded; LABELS says of each by what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from headgate.base.prometheus import CONTENT_TYPE, COUNTER, GAUGE, OTHER, Row
from headgate.base.prometheus import Series as AnySeries
from headgate.budgets.readings import BudgetCounts, ServerHealth
from headgate.proxy.ports import ClientCounts, ClientKey
from headgate.proxy.status import CAUSES, ProxyFacts, ProxyReadings, calibration, totals

# --- budgets -------------------------------------------------------------------------------------

# Budgets and their policy, as a proxy's relay counts them.   BudgetReadings ──► rows

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


def _policy_rejected(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
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
        _policy_rejected,
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


__all__ = ["LABELS", "MAX_CLIENTS", "OTHER", "SERIES", "Series", "render_metrics", "top_clients"]

MAX_CLIENTS = 200
LABELS: dict[str, str] = {
    "budget": "the first 200 by name; the rest together is `other`",
    "by": "what blocked it: `budget`, `rule`, `health`, `pace`, `loss`, `cancel`, `limit`",
    "client": "the 200 with the most statements; the rest together is `other`. A client "
    "that overtakes another leaves `other`, which falls then: leave it out of rates",
    "health": "`healthy`, `unhealthy`, `unknown`",
    "limit": "`concurrency`, `burst`, `capacity`; of warnings also `threshold`",
    "loop": "`epoll`, `io_uring`",
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


def _build(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (facts.version, facts.name, facts.protocol, facts.loop), 1.0


def _state(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(facts.state == "serving")


def _total(name: str) -> Rows:
    def rows(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
        yield (), float(totals(seen.threads).get(name, 0))

    return rows


def _bytes(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    counts = totals(seen.threads)
    yield ("client",), float(counts.get("client_bytes", 0))
    yield ("server",), float(counts.get("server_bytes", 0))


def _longest_round(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for number, counts in enumerate(seen.threads):
        yield (str(number),), counts["longest_round_ns"] / 1e9


def _failed_sessions(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    counts = totals(seen.threads)
    for why in ("rejected_sessions", "failed_startups", "failed_connects", "out_of_buffers"):
        yield (why,), float(counts.get(why, 0))
    yield ("protocol_errors",), float(counts.get("protocol_errors", 0))


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


def _blocked(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for counts in top_clients(seen.clients):
        for cause in CAUSES:
            if counts.blocked[cause]:
                yield (counts.client.identity, cause.name.lower()), float(counts.blocked[cause])


def _unidentified(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    judged = sum(one.statements for one in seen.clients)
    if judged:
        yield (), seen.clients[0].statements / judged


def _uptime(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), max(0.0, seen.now_s - facts.started_s)


def _max_sessions(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(facts.max_sessions)


def _dry_run(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(facts.dry_run)


def _settings_rejected(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(bool(facts.settings.fault))


def _beyond_table(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(seen.clients_full)


def _uncounted(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield (), float(seen.statements_full)


def _parts(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for part in seen.parts:
        yield (part.name,), float(part.healthy)


def _targets(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield ("primary",), float(sum(target.primary for target in seen.targets))
    yield ("replica",), float(sum(target.replica for target in seen.targets))


def _released(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    yield ("taken",), float(seen.released[0])
    yield ("limited",), float(seen.released[1])


def _slowlog(facts: ProxyFacts, seen: ProxyReadings) -> Iterator[Row]:
    for outcome, count in seen.slowlog.items():
        yield (outcome,), float(count)


_C, _G = COUNTER, GAUGE
_CLIENT = ("client",)
SERIES: tuple[Series, ...] = (
    Series(
        "headgate_proxy_build_info",
        _G,
        ("version", "name", "protocol", "loop"),
        "1; says which proxy this is.",
        _build,
    ),
    Series("headgate_proxy_serving", _G, (), "1 while it takes new sessions.", _state),
    Series("headgate_proxy_uptime_seconds", _G, (), "Since this process's start.", _uptime),
    Series(
        "headgate_proxy_dry_run",
        _G,
        (),
        "1 while it only reports what it would block or delay.",
        _dry_run,
    ),
    Series(
        "headgate_proxy_settings_rejected",
        _G,
        (),
        "1 while the settings file on disk is invalid and the last good one stays in force.",
        _settings_rejected,
    ),
    Series("headgate_proxy_max_sessions", _G, (), "How many sessions there may be.", _max_sessions),
    Series("headgate_proxy_sessions", _G, (), "Sessions now.", _total("sessions")),
    Series(
        "headgate_proxy_idle_sessions",
        _G,
        (),
        "Of them, with no statement.",
        _total("idle_sessions"),
    ),
    Series("headgate_proxy_accepted_total", _C, (), "Connections taken.", _total("accepted")),
    Series(
        "headgate_proxy_established_total", _C, (), "Of them, logged in.", _total("established")
    ),
    Series(
        "headgate_proxy_failed_sessions_total",
        _C,
        ("why",),
        "Sessions that were rejected, or ended by a fault.",
        _failed_sessions,
    ),
    Series("headgate_proxy_bytes_total", _C, ("sent_by",), "Bytes relayed.", _bytes),
    Series(
        "headgate_proxy_statements_total",
        _C,
        (),
        "Statements that this process has received.",
        _total("statements"),
    ),
    Series("headgate_proxy_cancels_total", _C, (), "Cancel requests.", _total("cancels")),
    Series(
        "headgate_proxy_truncated_texts_total",
        _C,
        (),
        "Statements longer than 1 MiB, matched with every budget that their rest may fall under.",
        _total("truncated_texts"),
    ),
    Series(
        "headgate_proxy_untrusted_tags_total",
        _C,
        (),
        "Tags that were not trusted.",
        _total("untrusted_tags"),
    ),
    Series(
        "headgate_proxy_unkept_texts_total",
        _C,
        (),
        "Prepared statements treated as unknown: max_buffer_mb left no room for their text.",
        _total("unkept_texts"),
    ),
    Series(
        "headgate_proxy_buffer_bytes",
        _G,
        (),
        "Memory in buffers and in texts of prepared statements.",
        _total("buffers_used_bytes"),
    ),
    Series(
        "headgate_proxy_longest_round_seconds",
        _G,
        ("thread",),
        "Longest turn of a relay thread's loop.",
        _longest_round,
    ),
    Series(
        "headgate_proxy_lost_events_total",
        _C,
        (),
        "Events lost because Python was too slow; no statement is affected.",
        _total("lost_events"),
    ),
    Series(
        "headgate_proxy_client_statements_total",
        _C,
        _CLIENT,
        "Statements that rules, health and budgets were applied to.",
        _client(lambda one: one.statements),
    ),
    Series(
        "headgate_proxy_client_admitted_total",
        _C,
        _CLIENT,
        "Statements that ran.",
        _client(lambda one: one.admitted),
    ),
    Series(
        "headgate_proxy_client_warned_total",
        _C,
        _CLIENT,
        "Statements that ran with a warning.",
        _client(lambda one: one.warned),
    ),
    Series(
        "headgate_proxy_client_delayed_total",
        _C,
        _CLIENT,
        "Statements that waited.",
        _client(lambda one: one.delayed),
    ),
    Series(
        "headgate_proxy_client_delayed_seconds_total",
        _C,
        _CLIENT,
        "How long they waited.",
        _client(lambda one: one.delayed_ns / 1e9),
    ),
    Series(
        "headgate_proxy_client_blocked_total",
        _C,
        ("client", "by"),
        "Statements blocked, by what.",
        _blocked,
    ),
    Series(
        "headgate_proxy_client_passed_in_transaction_total",
        _C,
        _CLIENT,
        "Statements inside a transaction that ran, but would have been blocked or delayed outside.",
        _client(lambda one: one.passed),
    ),
    Series(
        "headgate_proxy_client_wall_seconds_total",
        _C,
        _CLIENT,
        "Time of its statements at the server.",
        _client(lambda one: one.wall_ns / 1e9),
    ),
    Series(
        "headgate_proxy_client_errors_total",
        _C,
        _CLIENT,
        "Statements that the server ended with an error.",
        _client(lambda one: one.errors),
    ),
    Series(
        "headgate_proxy_client_waiting",
        _G,
        _CLIENT,
        "Statements held now.",
        _client(lambda one: one.waiting),
    ),
    Series(
        "headgate_proxy_unidentified_share",
        _G,
        (),
        "Share of statements whose client has no name.",
        _unidentified,
    ),
    Series(
        "headgate_proxy_clients_beyond_table_total",
        _C,
        (),
        "Times that a client found no place in the table ([memory] clients), and counts as others.",
        _beyond_table,
    ),
    Series(
        "headgate_proxy_uncounted_statements_total",
        _C,
        (),
        "Statements that ran uncounted, for there were more at once than [memory] statements.",
        _uncounted,
    ),
    *BUDGETS,
    Series("headgate_proxy_part_healthy", _G, ("part",), "1 while that part works.", _parts),
    Series("headgate_proxy_targets", _G, ("role",), "Servers that take new sessions.", _targets),
    Series(
        "headgate_proxy_release_total",
        _C,
        ("outcome",),
        "Statements that the control loop released, and times that it made a statement wait.",
        _released,
    ),
    Series(
        "headgate_proxy_slowlog_lines_total",
        _C,
        ("outcome",),
        "Lines written to the slow-log, and left out.",
        _slowlog,
    ),
)


def render_metrics(facts: ProxyFacts, seen: ProxyReadings) -> tuple[bytes, str]:
    return b"".join(series.text(facts, seen) for series in SERIES), CONTENT_TYPE
