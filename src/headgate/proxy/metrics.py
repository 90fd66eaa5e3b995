"""Prometheus text of a proxy.   One row of SERIES a metric: name, kind, labels, meaning.

Labels are bounded: of clients the 200 with the most statements, of budgets the first 200; the rest
of each is `other`. Causes, directions and parts are closed lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from headgate.proxy.ports import ClientCounts, ClientKey
from headgate.proxy.status import CAUSES, Facts, Seen, calibration, totals
from headgate.traffic.readings import BudgetCounts

MAX_CLIENTS = 200
MAX_BUDGETS = 200
OTHER = "other"

Row = tuple[tuple[str, ...], float]
Rows = Callable[[Facts, Seen], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str
    rows: Rows


def _build(facts: Facts, seen: Seen) -> Iterator[Row]:
    yield (facts.version, facts.name, facts.protocol, facts.loop), 1.0


def _state(facts: Facts, seen: Seen) -> Iterator[Row]:
    yield (), float(facts.state == "serving")


def _total(name: str) -> Rows:
    def rows(facts: Facts, seen: Seen) -> Iterator[Row]:
        yield (), float(totals(seen.threads).get(name, 0))

    return rows


def _bytes(facts: Facts, seen: Seen) -> Iterator[Row]:
    counts = totals(seen.threads)
    yield ("client",), float(counts.get("client_bytes", 0))
    yield ("server",), float(counts.get("server_bytes", 0))


def _longest_round(facts: Facts, seen: Seen) -> Iterator[Row]:
    for number, counts in enumerate(seen.threads):
        yield (str(number),), counts["longest_round_ns"] / 1e9


def _failed_sessions(facts: Facts, seen: Seen) -> Iterator[Row]:
    counts = totals(seen.threads)
    for why in ("refused_sessions", "failed_startups", "failed_connects", "out_of_buffers"):
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
            if name == "refused":
                summed[name] = tuple(a + b for a, b in zip(summed[name], value, strict=True))
            elif isinstance(value, int):
                summed[name] += value
    return ClientCounts(**{**summed, "client": ClientKey(-1, 0, OTHER)})


def _client(value: Callable[[ClientCounts], float]) -> Rows:
    def rows(facts: Facts, seen: Seen) -> Iterator[Row]:
        for counts in top_clients(seen.clients):
            yield (counts.client.identity,), float(value(counts))

    return rows


def _refused(facts: Facts, seen: Seen) -> Iterator[Row]:
    for counts in top_clients(seen.clients):
        for cause in CAUSES:
            if counts.refused[cause]:
                yield (counts.client.identity, cause.name.lower()), float(counts.refused[cause])


def _unidentified(facts: Facts, seen: Seen) -> Iterator[Row]:
    judged = sum(one.statements for one in seen.clients)
    if judged:
        yield (), seen.clients[0].statements / judged


def _budget(value: Callable[[BudgetCounts], float]) -> Rows:
    def rows(facts: Facts, seen: Seen) -> Iterator[Row]:
        rest, has_rest = 0.0, False
        for index, (name, counts) in enumerate(_budgets(seen)):
            if index < MAX_BUDGETS:
                yield (name,), float(value(counts))
            else:
                rest, has_rest = rest + value(counts), True
        if has_rest:
            yield (OTHER,), rest

    return rows


def _budgets(seen: Seen) -> Iterator[tuple[str, BudgetCounts]]:
    if seen.readings is not None:
        yield from sorted(seen.readings.budgets.items())


def _budget_refused(facts: Facts, seen: Seen) -> Iterator[Row]:
    for name, counts in list(_budgets(seen))[:MAX_BUDGETS]:
        for limit, count in counts.blocked.items():
            yield (name, limit), float(count)


def _version(facts: Facts, seen: Seen) -> Iterator[Row]:
    if seen.readings is not None:
        yield (), float(seen.readings.version)


def _calibration(facts: Facts, seen: Seen) -> Iterator[Row]:
    patterns = calibration(seen.readings)
    for name in ("median", "p90"):
        if patterns[f"error_{name}"] is not None:
            yield (name,), float(patterns[f"error_{name}"])


def _parts(facts: Facts, seen: Seen) -> Iterator[Row]:
    for part in seen.parts:
        yield (part.name,), float(part.healthy)


def _targets(facts: Facts, seen: Seen) -> Iterator[Row]:
    yield ("primary",), float(sum(target.primary for target in seen.targets))
    yield ("replica",), float(sum(target.replica for target in seen.targets))


def _released(facts: Facts, seen: Seen) -> Iterator[Row]:
    yield ("taken",), float(seen.released[0])
    yield ("limited",), float(seen.released[1])


def _slowlog(facts: Facts, seen: Seen) -> Iterator[Row]:
    for outcome, count in seen.slowlog.items():
        yield (outcome,), float(count)


_C, _G = "counter", "gauge"
_CLIENT, _BUDGET = ("client",), ("budget",)
SERIES: tuple[Series, ...] = (
    Series(
        "headgate_proxy_build_info",
        _G,
        ("version", "name", "protocol", "loop"),
        "1; says which proxy this is.",
        _build,
    ),
    Series("headgate_proxy_serving", _G, (), "1 while it takes new sessions.", _state),
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
        "Sessions that were refused, or ended by a fault.",
        _failed_sessions,
    ),
    Series("headgate_proxy_bytes_total", _C, ("sent_by",), "Bytes relayed.", _bytes),
    Series(
        "headgate_proxy_statements_total",
        _C,
        (),
        "Statements that this process has taken in.",
        _total("statements"),
    ),
    Series("headgate_proxy_cancels_total", _C, (), "Cancel requests.", _total("cancels")),
    Series(
        "headgate_proxy_truncated_texts_total",
        _C,
        (),
        "Statements longer than 64 KiB, judged by their beginning.",
        _total("truncated_texts"),
    ),
    Series(
        "headgate_proxy_untrusted_tags_total",
        _C,
        (),
        "Tags that were not believed.",
        _total("untrusted_tags"),
    ),
    Series(
        "headgate_proxy_buffer_bytes", _G, (), "Memory in buffers.", _total("buffers_used_bytes")
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
        "Events that Python did not take in time; no statement is harmed by it.",
        _total("lost_events"),
    ),
    Series(
        "headgate_proxy_client_statements_total",
        _C,
        _CLIENT,
        "Statements judged.",
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
        "headgate_proxy_client_refused_total",
        _C,
        ("client", "by"),
        "Statements refused, by what.",
        _refused,
    ),
    Series(
        "headgate_proxy_client_passed_in_transaction_total",
        _C,
        _CLIENT,
        "Statements let go on inside a transaction that would have been acted upon.",
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
        "Share of judged statements whose client has no name.",
        _unidentified,
    ),
    Series(
        "headgate_proxy_budget_admitted_total",
        _C,
        _BUDGET,
        "Statements admitted under a budget.",
        _budget(lambda one: one.admitted),
    ),
    Series(
        "headgate_proxy_budget_refused_total",
        _C,
        ("budget", "limit"),
        "Statements refused by a budget, by which limit.",
        _budget_refused,
    ),
    Series(
        "headgate_proxy_budget_delayed_total",
        _C,
        _BUDGET,
        "Statements that waited for a budget.",
        _budget(lambda one: one.delayed),
    ),
    Series(
        "headgate_proxy_budget_charged_seconds_total",
        _C,
        _BUDGET,
        "Server time charged to a budget.",
        _budget(lambda one: one.charged_ns / 1e9),
    ),
    Series("headgate_proxy_policy_version", _G, (), "Version of the policy in force.", _version),
    Series(
        "headgate_proxy_calibration_error",
        _G,
        ("quantile",),
        "How far estimates of patterns are off: |estimate - actual| / actual.",
        _calibration,
    ),
    Series("headgate_proxy_part_healthy", _G, ("part",), "1: that part does its work.", _parts),
    Series("headgate_proxy_targets", _G, ("role",), "Servers that take new sessions.", _targets),
    Series(
        "headgate_proxy_release_total",
        _C,
        ("outcome",),
        "Statements that the control loop let go, and times that it made somebody wait.",
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


class _ProxyCollector(Collector):
    def __init__(self, facts: Facts, seen: Seen) -> None:
        self._facts = facts
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        for series in SERIES:
            family: Metric
            if series.kind == _C:
                name = series.name.removesuffix("_total")
                family = CounterMetricFamily(name, series.about, labels=series.labels)
            else:
                family = GaugeMetricFamily(series.name, series.about, labels=series.labels)
            for labels, value in series.rows(self._facts, self._seen):
                family.add_metric(labels, value)
            yield family


def render_metrics(facts: Facts, seen: Seen) -> tuple[bytes, str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ProxyCollector(facts, seen))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
