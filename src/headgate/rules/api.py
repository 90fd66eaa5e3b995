"""Rules as documents: their state, and what they do to one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from headgate.base.declared import iso
from headgate.base.names import Identity
from headgate.base.units import share_of
from headgate.changes.exchange_api import CopiesDoc
from headgate.changes.reach import Reach
from headgate.check.answer_api import AnswerDoc
from headgate.check.answers import IDLE, answer_doc
from headgate.check.decide import findings
from headgate.check.model import PASSING, Decision, Finding, State, Verdict
from headgate.check.reasons import (
    WAKES,
    describe,
    duration,
    exemption_of,
    fairness_of,
    name_of,
    odds_of,
    quantity,
    says,
    shadowed_by,
)
from headgate.fleet.api import ReachedDoc
from headgate.metrics.model import Comparison
from headgate.pacing.api import PaceDoc
from headgate.rules.matching import FOREVER, Kind, Rule, RuleBook
from headgate.rules.settings import (
    RULE_FIELDS,
    KnownMetric,
    KnownMetrics,
    RuleSpec,
    partial_exemption,
)

EXEMPT, SUSPENDED = "exempt: ", "suspended: "
"""Prefix of an important line of status."""
UNREADABLE = "unreadable"
MAX_CLIENTS_NAMED = 20
MAX_EXEMPTIONS_TOLD = 20


class RuleDoc(msgspec.Struct, frozen=True):
    id: str
    target: str
    kind: str
    """As it was set; `unreadable`: a newer version set it for the fleet."""
    says: str
    """What it does, as a sentence; if it is unreadable, why."""
    ratio: float | None
    order: str | None
    metrics: Sequence[str]
    """Names of the metrics that it is about; empty: all."""
    thresholds: Mapping[str, float]
    justification: str | None
    ceiling: float | None
    reason: str
    database: str | None
    """Null: every database."""
    schedule: Mapping[str, Any] | None
    created_at: str
    created_by: str
    expires_at: str
    left_s: float
    state: str
    """`in_force`, `waiting` for its start or its next window, `suspended`, or `ended`."""
    next_at: str | None
    """With `waiting`: when that is."""
    suspended: str | None
    """Why."""
    lifted_by: str | None
    pair: str | None
    """Id of the rule that was set together with it."""
    clients: Sequence[str]
    """Some of the clients that checked recently and that it matches."""
    clients_total: int | None
    """Null: no client checks this agent, because it has no database."""
    advice: Sequence[str]
    revision: int
    """Send it with a change (If-Match); for a rule of the fleet it is `n`."""
    reach: str | None = None
    """Its reach: `fleet`, `region:eu-*`, `shard:commerce/*`; null: this agent."""
    n: int | None = None
    """The revision of the fleet or the shard that set it; null: it was set at this agent."""
    reached: ReachedDoc | None = None
    """With a change for the fleet: where it applies."""
    copies: CopiesDoc | None = None
    """With a change for a shard without a shared store: which of its agents have it."""
    ticket: str = ""
    """Link to a ticket or an incident."""
    starts_at: str = ""
    """When it starts, as it was set; empty: at once."""

    @property
    def loud(self) -> bool:
        """An exemption in force: others pay for it."""
        return self.kind == "exempt" and self.state == "in_force"


class RulesDoc(msgspec.Struct, frozen=True):
    rules: Sequence[RuleDoc]
    """One document each."""
    rejected: Sequence[str] = ()
    """Rules of the fleet that are not in force here as they were set, and why."""
    reached: ReachedDoc | None = None
    """With a change for the fleet: where it applies."""
    copies: CopiesDoc | None = None
    """With a change for a shard without a shared store: which of its agents have it."""


class MatchDoc(msgspec.Struct, frozen=True):
    """A rule that matches a client, and its effect."""

    rule: str
    target: str
    kind: str
    state: str
    """`applies`, `shadowed`, `suspended`, `waiting` or `ended`."""
    by: str | None
    """With `shadowed`: the rule that decides instead."""
    says: str
    left_s: float | None
    ended_s_ago: float | None


class ExplainDoc(AnswerDoc, frozen=True):
    matched: Sequence[MatchDoc]
    """Every rule that matches this client; those that apply come first."""
    needed: Sequence[str]
    """What must change before it is admitted; empty if it is."""
    fairness: str | None
    """How long ratio rules have rejected it, if there is a limit."""
    odds: float | None = None
    """The probability that ratio rules let such a check reach the metrics; null if no ratio
    applies."""
    pace: PaceDoc | None = None
    """Pacing for all clients of the database; null if nothing is paced."""
    idle: bool = False
    """Rejected only because nobody checks the database: a check would wake it. As in status."""


class RuleMatch(NamedTuple):
    rule: Rule
    state: str
    by: Rule | None = None
    except_for: Mapping[str, Rule] = MappingProxyType({})
    """With `applies`, for thresholds: metrics for which another rule decides."""


# --- as they stand -------------------------------------------------------------------------


def rule_doc(
    spec: RuleSpec,
    rule: Rule,
    wall_s: float,
    *,
    clients: Sequence[str] | None = (),
    advice: Sequence[str] = (),
    reach: Reach | None = None,
    reached: ReachedDoc | None = None,
    unread: str = "",
) -> RuleDoc:
    """`rule` is `spec`'s as it counts: with its windows and its effective end. `unread`: why there
    is only an outline of it."""
    is_ratio, is_exempt = rule.kind is Kind.RATIO and not unread, rule.kind is Kind.EXEMPT
    state = state_of(spec, rule, wall_s)
    said: dict[str, Any] = {name: getattr(rule, name) for name in _OF_THE_MODEL}
    said |= {
        "kind": UNREADABLE if unread else rule.kind.value,
        "says": f"cannot be read by this agent: {unread}" if unread else says(rule),
        "ratio": rule.ratio if is_ratio else None,
        "order": rule.order.value if is_ratio else None,
        "thresholds": dict(rule.thresholds),
        "justification": rule.justification.value if rule.justification else None,
        "ceiling": rule.ceiling if is_exempt else None,
        "database": rule.database or None,
        "schedule": spec.schedule.written() if spec.schedule else None,
        "starts_at": "" if spec.starts_at is None else iso(spec.starts_at),
        "created_at": iso(rule.created_at),
        "expires_at": iso(rule.expires_at),
        "left_s": 0.0 if state == "ended" else max(0.0, rule.expires_at - wall_s),
        "state": state,
        "next_at": _next_at(rule, wall_s) if state == "waiting" else None,
        "suspended": spec.suspended or None,
        "lifted_by": spec.lifted_by or None,
        "pair": spec.pair or None,
        "clients": (clients or ())[:MAX_CLIENTS_NAMED],
        "clients_total": None if clients is None else len(clients),
        "advice": advice,
        "revision": spec.rule.revision,
        "reach": None if reach is None else str(reach),
        "n": None if reach is None else spec.rule.revision,
        "reached": reached,
    }
    return RuleDoc(**said)


_OF_THE_MODEL = tuple(name for name in RuleDoc.__struct_fields__ if name in RULE_FIELDS)
"""Fields that are copied, unless rule_doc() words them differently."""


def state_of(spec: RuleSpec, rule: Rule, wall_s: float) -> str:
    if spec.lifted_by or wall_s >= rule.expires_at:
        return "ended"
    if spec.suspended:
        return "suspended"
    return "in_force" if rule.in_force(wall_s) else "waiting"


def _next_at(rule: Rule, wall_s: float) -> str | None:
    begins = [begin for begin, _ in rule.windows or () if begin > wall_s]
    return iso(min(begins)) if begins else None


def _nothing_known(_database: str) -> Mapping[str, KnownMetric]:
    return {}


def exemptions_told(
    book: RuleBook, wall_s: float, known: KnownMetrics = _nothing_known
) -> list[str]:
    """For status: which clients are exempt now, or would be, from everything or in part. Nobody
    should find out by accident."""
    exempt = [r for r in book.rules if r.kind is Kind.EXEMPT and r.in_force(wall_s)]
    told = [_exemption(rule, wall_s, resting=rule.id in book.suspended) for rule in exempt]
    partly = [r for r in book.rules if r.kind is Kind.METRICS and r.in_force(wall_s)]
    by_database = {name: known(name) for name in {rule.database for rule in partly}}
    for rule in partly:
        left_out = partial_exemption(rule, by_database[rule.database])
        told += [_partly_exempt(rule, left_out, wall_s)] if left_out else []
    more = len(told) - MAX_EXEMPTIONS_TOLD
    if more <= 0:
        return told
    return [*told[:MAX_EXEMPTIONS_TOLD], f"{EXEMPT}{more:,} more: `headgate rules` lists them"]


def _partly_exempt(rule: Rule, left_out: Sequence[str], wall_s: float) -> str:
    left = duration(max(0.0, rule.ends_at(wall_s) - wall_s))
    return (
        f"{EXEMPT}rule {rule.id} {says(rule)}: partial exemption from "
        f"{', '.join(left_out)}, for another {left}, by {rule.created_by}"
    )


def _exemption(rule: Rule, wall_s: float, *, resting: bool) -> str:
    left = duration(max(0.0, rule.ends_at(wall_s) - wall_s))
    because = f"{rule.justification.value}: " if rule.justification else ""
    told = f"rule {rule.id} {says(rule)}, for another {left}, by {rule.created_by}"
    told = f"{told} ({because}{rule.reason})"
    if not resting:
        return f"{EXEMPT}{told}"
    return f"{SUSPENDED}{told}; `headgate rule show {rule.id}` says why"


def matched_clients(
    book: RuleBook, clients: Sequence[tuple[Identity, str]]
) -> dict[str, list[str]]:
    """By rule: who of `clients` (identity, database) is meant by it. A look-up per client, and
    one list for all rules of a target: there may be thousands of either."""
    by_target: dict[str, list[tuple[str, str]]] = {}
    for identity, database in clients:
        for target in book.targets_of(identity):
            by_target.setdefault(target, []).append((identity.text, database))
    lists: dict[tuple[str, str], list[str]] = {}
    found: dict[str, list[str]] = {}
    for rule in book.rules:
        key = (rule.target, rule.database)
        if rule.target in by_target and key not in lists:
            met = (text for text, at in by_target[rule.target] if rule.database in ("", at))
            lists[key] = list(dict.fromkeys(met))
        if names := lists.get(key):
            found[rule.id] = names
    return found


# --- what they make of one client ----------------------------------------------------------


def explain_rules(
    book: RuleBook, identity: Identity, database: str, wall_s: float
) -> list[RuleMatch]:
    """Every rule that matches this client: what applies, what is shadowed by which rule, what is
    suspended or waits, and what ended recently."""
    applied = book.applied(identity, database, wall_s)
    applies = {rule.id for rule in applied.rules}
    shadows = {one.rule.id: one.by for one in applied.shadowed}
    found = []
    for specific, rule in book.matching(identity, database):
        state = _match_state(book, rule, wall_s, applies)
        match = RuleMatch(rule, state)
        if state == "shadowed":
            match = match._replace(by=shadows.get(rule.id))
        elif state == "applies" and rule.kind is Kind.THRESHOLDS:
            others = {name: applied.thresholds[name] for name in rule.thresholds}
            match = match._replace(except_for={n: r for n, r in others.items() if r != rule})
        found.append((_SHOWN_FIRST[state], -specific, rule.id, match))
    return [match for *_, match in sorted(found, key=lambda item: item[:3])]


_SHOWN_FIRST = {"applies": 0, "shadowed": 1, "suspended": 2, "waiting": 3, "ended": 4}


def _match_state(book: RuleBook, rule: Rule, wall_s: float, applies: set[str]) -> str:
    if wall_s >= rule.expires_at:
        return "ended"
    # No windows at all: it is suspended here, or was lifted, whatever its end says.
    if rule.windows == ():
        return "suspended" if rule.id in book.suspended else "ended"
    if not rule.in_force(wall_s):
        return "waiting"
    if rule.id in applies:
        return "applies"
    return "suspended" if rule.id in book.suspended else "shadowed"


def explain_doc(decision: Decision, book: RuleBook, *, idle: bool = False) -> ExplainDoc:
    """The answer, with what led to it and what would have to change. `idle`: of the database."""
    check, wall_s = decision.check, decision.at.wall_s
    matches = explain_rules(book, check.identity, check.database, wall_s)
    answer = answer_doc(decision, detail=True)
    fields = {name: getattr(answer, name) for name in AnswerDoc.__struct_fields__}
    idle = idle and decision.verdict is Verdict.METRIC_UNAVAILABLE
    if idle:
        fields["reason"] = f"{check.database}: {WAKES}"
        fields["metrics"] = [
            msgspec.structs.replace(one, state=IDLE)
            if one.state == State.UNAVAILABLE.value
            else one
            for one in answer.metrics
        ]
    if told := odds_of(decision):
        fields["reason"] = "; ".join(filter(None, [fields["reason"], told]))
    return ExplainDoc(
        **fields,
        idle=idle,
        odds=decision.odds,
        matched=[match_doc(m, wall_s) for m in matches],
        needed=() if idle else needed_of(decision),
        fairness=fairness_of(decision) or None,
    )


def match_doc(match: RuleMatch, wall_s: float) -> MatchDoc:
    rule, ended = match.rule, match.state == "ended"
    told = says(rule) if match.by is None else shadowed_by(rule, match.by)
    told += "".join(
        f"; except for {name}, where rule {other.id} on {other.target} decides"
        for name, other in match.except_for.items()
    )
    return MatchDoc(
        rule=rule.id,
        target=rule.target,
        kind=rule.kind.value,
        state=match.state,
        by=match.by.id if match.by else None,
        says=told,
        left_s=None if ended or rule.expires_at == FOREVER else rule.expires_at - wall_s,
        ended_s_ago=max(0.0, wall_s - rule.expires_at) if ended else None,
    )


def needed_of(decision: Decision) -> list[str]:
    """What prevents an OK for this client, each with the change that lifts it."""
    if decision.admitted:
        return []
    # Also for a check that a rule rejected: its metrics come next.
    told = [_must_change(f) for f in findings(decision) if f.state not in PASSING]
    if resting := exemption_of(decision):
        told.append(resting)
    if decision.rule is not None and decision.verdict in _BY_RULE:
        told.insert(0, _must_end(decision.rule, decision.at.wall_s))
        if decision.turn is not None and not decision.dice_waived:
            left = duration(decision.turn.left_s)
            told.append(f"or to check again after another {left}: ratio rules are skipped then")
    return told or ([decision.note] if decision.note else [])


_BY_RULE = (Verdict.ON_HOLD, Verdict.REJECTED_BY_RATIO)


def _must_end(rule: Rule, wall_s: float) -> str:
    left = duration(max(0.0, rule.ends_at(wall_s) - wall_s))
    lift = f"`headgate rule lift {rule.id}` ends it now"
    if rule.rejects_all:
        return f"rule {rule.id} must end, which it does in {left}; {lift}"
    return (
        f"more luck: rule {rule.id} lets {share_of(1 - rule.ratio)} of the checks of "
        f"{rule.target} reach the metrics, and ends in {left}; {lift}"
    )


def _must_change(finding: Finding) -> str:
    name = name_of(finding)
    if finding.state is not State.BREACHED:
        return f"{name} must be readable again: {describe(finding)}"
    spec, value, threshold = finding.spec, finding.value, finding.threshold
    assert spec is not None and value is not None and threshold is not None
    at_least = spec.comparison is Comparison.AT_LEAST
    limit, now = quantity(threshold, spec.unit), quantity(value, spec.unit)
    goal = f"below {limit}" if at_least else f"{limit} or below"
    if value > threshold or (at_least and value == threshold):
        return f"{name} must fall from {now} to {goal}"
    # By its last value it is fine already: debounce still counts the ones before.
    return f"{name} must stay {goal} (it is {now} now) until its debounce is over"
