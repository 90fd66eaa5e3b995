"""What else is known of the statements a server counts: texts, who ran them, whose they are.

StatementTexts, Rates, TraceMemory ──► StatementKnown ──► StateDoc.patterns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.budgets.api import StatementKnown
from headgate.budgets.matching import Now, RuleSet
from headgate.budgets.policy import Policy
from headgate.budgets.readings import PatternReading
from headgate.budgets.service import Controlled
from headgate.budgets.statements import key_of
from headgate.budgets.traces import NO_FINGERPRINT, Trace

SINCE_S = 3600.0
MAX_RULES = 2000
"""With more of them it is not worked out which of them apply to each statement: that takes long."""


@dataclass(frozen=True, slots=True)
class TracedPattern:
    last: Trace
    running: float


def statements_known(
    controlled: Controlled, shown: Sequence[PatternReading], wall_s: float
) -> list[StatementKnown]:
    """In their order. For a thread: it goes through the traces of an hour."""
    traced, budgets = _traced(controlled, shown, wall_s), _Budgets(controlled, wall_s)
    return [_known(controlled, p, traced.get(key_of(p.query_id)), budgets) for p in shown]


def _known(
    controlled: Controlled, pattern: PatternReading, traced: TracedPattern | None, budgets: _Budgets
) -> StatementKnown:
    texts = controlled.texts
    text = texts.text(pattern.query_id)
    cause = None if text else texts.cause(controlled.plan.own_role)
    share = _share(controlled, pattern.query_id)
    if traced is None:
        return StatementKnown(text, cause, share)
    who, fingerprint = traced.last.who, traced.last.fingerprint
    return StatementKnown(
        text,
        cause,
        share,
        traced.running,
        None if fingerprint == NO_FINGERPRINT else f"{fingerprint:016x}",
        who.username,
        who.application_name,
        budgets.of(traced.last),
    )


def _share(controlled: Controlled, query_id: int) -> float | None:
    watch = controlled.watch
    readings = watch.readings if watch is not None else None
    if watch is None or readings is None or not readings.cpus_milli:
        return None
    cpus = watch.rates.pattern_cpus(query_id)
    return None if cpus is None else cpus * 1000 / readings.cpus_milli


def _traced(
    controlled: Controlled, shown: Sequence[PatternReading], wall_s: float
) -> Mapping[int, TracedPattern]:
    memory = controlled.traces
    if memory is None or memory.since_ms is None:
        return {}
    since_ms = max(memory.since_ms, int((wall_s - SINCE_S) * 1000))
    span_ns = max(1.0, wall_s * 1000 - since_ms) * 1e6
    wanted = {key_of(pattern.query_id) for pattern in shown}
    last: dict[int, Trace] = {}
    busy_ns: dict[int, float] = {}
    for trace in memory.since(since_ms):
        if (key := key_of(trace.query_id)) in wanted:
            last[key] = trace
            busy_ns[key] = busy_ns.get(key, 0.0) + trace.weight * trace.wall_ns * trace.workers
    return {key: TracedPattern(trace, busy_ns[key] / span_ns) for key, trace in last.items()}


class _Budgets:
    """Whose rules apply to a statement, also while the switch for all is thrown."""

    def __init__(self, controlled: Controlled, wall_s: float) -> None:
        wall_ms = int(wall_s * 1000)
        policy = controlled.edition.policy
        self._now = Now(wall_ms, None)
        self._rules = None if _is_large(policy) else RuleSet(policy)

    def of(self, trace: Trace) -> list[str] | None:
        if self._rules is None:
            return None
        found = self._rules.match(trace.who, trace.statement, self._now)
        names = (self._rules.budgets[match.budget].name for match in found.at)
        return list(dict.fromkeys(names))


def _is_large(policy: Policy) -> bool:
    return sum(len(budget.rules) for budget in policy.budgets) > MAX_RULES
