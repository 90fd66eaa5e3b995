"""What a proxy tells of itself, as documents.   relay, parts, readings ──► status, sessions

Counters are since the shared memory was made, so they outlive a restart by hand-over; those of
threads are of this process.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.budgets.readings import BudgetReadings, PatternReading, ServerHealth
from headgate.proxy.model import ListenTerms
from headgate.proxy.ports import ActCause, ClientCounts, PartState, ServerTarget
from headgate.proxy.relay import NativeRelay, SessionView

TOP_CLIENTS = 100
TOP_PATTERNS = 10
MIN_CALLS = 5
"""Of a pattern, before its error says anything."""
CAUSES = tuple(cause for cause in ActCause if cause is not ActCause.NOTHING)


@dataclass(frozen=True, slots=True)
class SettingsFacts:
    source: str = ""
    fault: str = ""
    """Why the file is invalid now; the last good settings stay."""
    advice: tuple[str, ...] = ()
    waits_for_restart: tuple[str, ...] = ()


@dataclass(slots=True)
class ProxyFacts:
    """What is known besides counters; changed by the process itself alone."""

    name: str
    version: str
    protocol: str
    pid: int
    started_s: float
    """Monotonic."""
    threads: int = 0
    dry_run: bool = False
    max_sessions: int = 0
    listen: list[dict[str, str]] = field(default_factory=list)
    control: list[str] = field(default_factory=list)
    state: str = "starting"
    settings: SettingsFacts = SettingsFacts()
    memory: str = "new"
    """`new`, or `taken over`."""
    predecessor: int | None = None
    """The process that drains, if there is one."""


@dataclass(frozen=True, slots=True)
class ProxyReadings:
    """All that a status is made of, read at one moment."""

    now_s: float
    clients: Sequence[ClientCounts]
    threads: Sequence[Mapping[str, int]]
    parts: Sequence[PartState]
    targets: Sequence[ServerTarget]
    readings: BudgetReadings | None
    readings_fault: str
    clients_full: int
    statements_full: int
    released: tuple[int, int]
    slowlog: Mapping[str, int]
    policy_rejection: str = ""
    wall_ms: int = 0
    """The same moment by the time of day."""
    slowlog_fault: str = ""


def totals(threads: Iterable[Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for counts in threads:
        for name, count in counts.items():
            longest = name == "longest_round_ns"
            before = summed.get(name, 0)
            summed[name] = max(before, count) if longest else before + count
    return summed


def status_document(facts: ProxyFacts, seen: ProxyReadings) -> dict[str, Any]:
    counts = totals(seen.threads)
    return {
        "proxy": _about(facts, seen),
        "sessions": {
            "now": counts.get("sessions", 0),
            "idle": counts.get("idle_sessions", 0),
            "max": facts.max_sessions,
            **{name: counts.get(name, 0) for name in _SESSION_COUNTS},
        },
        "statements": _statements(seen.clients, counts),
        "clients": _clients(seen.clients),
        "clients_beyond_table": seen.clients_full,
        "uncounted_statements": seen.statements_full,
        "budgets": _budgets(seen.readings),
        "policy": _policy(seen),
        "patterns": calibration(seen.readings),
        "targets": [_target(target) for target in seen.targets],
        "release": {"taken": seen.released[0], "limited": seen.released[1]},
        "parts": [asdict(part) for part in seen.parts],
        "threads": list(seen.threads),
        "slowlog": dict(seen.slowlog),
        "advice": list(facts.settings.advice),
        "problems": problems(facts, seen),
    }


_SESSION_COUNTS = (
    *("accepted", "established", "closed", "rejected_sessions", "failed_startups"),
    *("failed_connects", "tls_sessions", "cancels", "protocol_errors", "out_of_buffers"),
    *("client_bytes", "server_bytes", "buffers_used_bytes"),
)


def _about(facts: ProxyFacts, seen: ProxyReadings) -> dict[str, Any]:
    return {
        "name": facts.name,
        "version": facts.version,
        "protocol": facts.protocol,
        "pid": facts.pid,
        "state": facts.state,
        "uptime_s": round(seen.now_s - facts.started_s, 1),
        "threads": facts.threads,
        "dry_run": facts.dry_run,
        "listen": facts.listen,
        "control": facts.control,
        "memory": facts.memory,
        "predecessor": facts.predecessor,
        "settings": facts.settings.source,
        "settings_fault": facts.settings.fault,
        "waits_for_restart": list(facts.settings.waits_for_restart),
    }


def _statements(clients: Sequence[ClientCounts], counts: Mapping[str, int]) -> dict[str, Any]:
    compared = sum(client.statements for client in clients)
    unidentified = clients[0].statements if clients else 0
    return {
        "total": counts.get("statements", 0),
        "compared": compared,
        "unidentified": unidentified,
        "unidentified_share": unidentified / compared if compared else None,
        "truncated_texts": counts.get("truncated_texts", 0),
        "unkept_texts": counts.get("unkept_texts", 0),
        "untrusted_tags": counts.get("untrusted_tags", 0),
        "held_now": sum(client.waiting for client in clients),
        "running_now": sum(client.running for client in clients),
    }


def _clients(clients: Sequence[ClientCounts]) -> list[dict[str, Any]]:
    """Those with the most statements."""
    top = heapq.nlargest(TOP_CLIENTS, clients, key=lambda client: client.statements)
    return [_client(client) for client in top if client.statements]


def _client(counts: ClientCounts) -> dict[str, Any]:
    blocked = {
        cause.name.lower(): counts.blocked[cause] for cause in CAUSES if counts.blocked[cause]
    }
    return {
        "client": counts.client.identity,
        "statements": counts.statements,
        "admitted": counts.admitted,
        "warned": counts.warned,
        "delayed": counts.delayed,
        "delayed_s": counts.delayed_ns / 1e9,
        "blocked": blocked,
        "blocked_total": sum(blocked.values()),
        "passed_in_transaction": counts.passed,
        "wall_s": counts.wall_ns / 1e9,
        "errors": counts.errors,
        "waiting": counts.waiting,
        "running": counts.running,
    }


def _budgets(readings: BudgetReadings | None) -> list[dict[str, Any]]:
    if readings is None:
        return []
    fills: dict[str, float] = {}
    for bucket in readings.buckets:
        if bucket.fill is not None:
            fills[bucket.budget] = max(bucket.fill, fills.get(bucket.budget, 0.0))
    return [
        {
            "budget": name,
            "admitted": counts.admitted,
            "warned": sum(counts.warned.values()),
            "blocked": sum(counts.blocked.values()),
            "blocked_by": {limit: n for limit, n in counts.blocked.items() if n},
            "delayed": counts.delayed,
            "delayed_s": counts.delayed_ns / 1e9,
            "waiting": counts.sleeping,
            "charged_s": counts.charged_ns / 1e9,
            "estimated_s": counts.estimated_ns / 1e9,
            "passed_in_transaction": counts.passed,
            "fill": fills.get(name),
        }
        for name, counts in sorted(readings.budgets.items())
    ]


def _policy(seen: ProxyReadings) -> dict[str, Any]:
    readings = seen.readings
    if readings is None:
        return {"version": None, "fault": seen.readings_fault}
    return {
        "version": readings.version,
        "checksum": f"{readings.checksum:08x}",
        "off": readings.off,
        "enabled": readings.enabled,
        "published_ms": readings.published_ms,
        "rejection": seen.policy_rejection,
        "health": _health(readings, seen.wall_ms),
    }


def _health(readings: BudgetReadings, wall_ms: int) -> str:
    """As the relay takes it: a report is valid so long and no longer."""
    if wall_ms > readings.health_until_ms:
        return ServerHealth.UNKNOWN.value
    return readings.health.value


def calibration(readings: BudgetReadings | None) -> dict[str, Any]:
    """How far estimates are off, of patterns that ran often enough."""
    known = () if readings is None else readings.patterns
    sure = sorted(
        (one for one in known if one.calls >= MIN_CALLS and math.isfinite(one.error)),
        key=lambda one: one.error,
    )
    errors = [one.error for one in sure]
    return {
        "known": len(known),
        "measured": len(errors),
        "error_median": statistics.median(errors) if errors else None,
        "error_p90": errors[int(len(errors) * 0.9)] if errors else None,
        "worst": [_pattern(one) for one in reversed(sure[-TOP_PATTERNS:])],
    }


def _pattern(pattern: PatternReading) -> dict[str, Any]:
    return {
        "pattern": f"{pattern.query_id & (2**64 - 1):016x}",
        "calls": pattern.calls,
        "mean_s": pattern.cpu_mean_ns / 1e9,
        "p90_s": pattern.cpu_p90_ns / 1e9,
        "error": pattern.error,
    }


def _target(target: ServerTarget) -> dict[str, Any]:
    unix = target.address.startswith("/")
    host = f"[{target.address}]" if ":" in target.address else target.address
    return {
        "name": target.name,
        "address": target.address if unix else f"{host}:{target.port}",
        "primary": target.primary,
        "replica": target.replica,
        "weight": target.weight,
        "tls": target.tls.mode,
        "id": f"{target.id:016x}",
    }


def problems(facts: ProxyFacts, seen: ProxyReadings) -> list[str]:
    """What an on-call engineer should know, worst first."""
    counts = totals(seen.threads)
    found = [f"{part.name}: {part.summary}" for part in seen.parts if not part.healthy]
    if not any(target.primary or target.replica for target in seen.targets):
        found.insert(0, "no server takes sessions")
    if fault := facts.settings.fault:
        found.append(f"the settings file is invalid, the last good one stays: {fault}")
    if seen.policy_rejection and not any(seen.policy_rejection in one for one in found):
        found.append(seen.policy_rejection)
    if seen.readings_fault:
        found.append(f"budgets cannot be read: {seen.readings_fault}")
    if counts.get("sessions", 0) >= facts.max_sessions:
        found.append(f"all {facts.max_sessions} sessions are taken (max_sessions)")
    if counts.get("out_of_buffers"):
        found.append(
            f"{counts['out_of_buffers']} sessions ended because no buffer was free (max_buffer_mb)"
        )
    if seen.clients_full:
        found.append("more clients than [memory] clients: further ones count as `others`")
    if seen.statements_full:
        found.append("more statements at once than [memory] statements: some ran uncounted")
    if seen.slowlog_fault:
        found.append(f"slow-log: {seen.slowlog_fault}")
    return found


def sessions_document(
    relay: NativeRelay, targets: Sequence[ServerTarget], *, after: int, limit: int
) -> dict[str, Any]:
    names = {target.id: target.name for target in targets}
    found = relay.sessions(after, limit + 1)
    more = len(found) > limit
    return {
        "sessions": [_session(session, names) for session in found[:limit]],
        "next": found[limit - 1].id if more else None,
    }


def _session(session: SessionView, names: Mapping[int, str]) -> dict[str, Any]:
    document = session._asdict()
    document["server"] = names.get(session.target, "")
    del document["target"]
    return document


def listen_document(terms: ListenTerms, address: str) -> dict[str, str]:
    return {"address": address, "route": terms.route.value, "tls": terms.tls.value}
