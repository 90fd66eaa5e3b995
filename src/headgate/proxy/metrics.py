"""Prometheus text of a proxy.   One row of SERIES a metric: name, kind, labels, meaning.

Labels are bounded; LABELS says of each by what. Those of budgets are in budgetmetrics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headgate.base.prometheus import CONTENT_TYPE, COUNTER, GAUGE, OTHER, Row
from headgate.proxy.budgetmetrics import BUDGETS, Rows, Series
from headgate.proxy.ports import ClientCounts, ClientKey
from headgate.proxy.status import CAUSES, ProxyFacts, ProxyReadings, totals

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
    yield (), float(bool(facts.settings_fault))


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
