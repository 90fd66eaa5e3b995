"""A database's budgets as documents: the book, the servers, and the counters, put together."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple

from msgspec.structs import replace

from headgate.base.declared import iso
from headgate.budgets.admit import BucketState, terms_of
from headgate.budgets.api import (
    MAX_DIFFERENCES,
    BudgetDoc,
    ExplainStatementBody,
    OutletDoc,
    PolicyChangeDoc,
    PolicyDoc,
    StatementExplainDoc,
    StatementKnown,
    budget_doc,
    checksum_text,
    says,
    state_of,
    statement_doc,
    with_counts,
)
from headgate.budgets.bucket import drain_ns
from headgate.budgets.counterfactual import (
    HOUR_S,
    USERNAME,
    ReplayServer,
    ledger_at,
    newest_within,
)
from headgate.budgets.explain import Explanation, explain
from headgate.budgets.layers import Edition, EditionChange, budgets_of
from headgate.budgets.matching import Now, RuleSet
from headgate.budgets.meter import Rates
from headgate.budgets.model import (
    Dialect,
    Estimate,
    Statement,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
)
from headgate.budgets.policy import Budget, Mode, Policy
from headgate.budgets.publisher import Outlet, WantedPolicy
from headgate.budgets.readings import BucketReading, BudgetReadings, PatternReading
from headgate.budgets.service import Controlled
from headgate.budgets.sql_text import fingerprint, read_tags
from headgate.budgets.statements import key_of
from headgate.budgets.traces import NO_FINGERPRINT, Trace, thinned
from headgate.changes.exchange_api import copies_doc
from headgate.changes.reach import HERE
from headgate.errors import InvalidRequest

_AT = re.compile(r"budgets\[(\d+)\]")
NO_SERVER = (
    "no server gets the policy: give [databases.NAME.traffic] the directory of the server's "
    "extension, and SIGHUP the agent"
)
URGENT_MS = 60_000
"""Within so long of each other, violations are alike: the fuller bucket comes first."""
MAX_ADVICE = 50
MAX_SQL_BYTES = 1024 * 1024
TAKEN_WITHIN_S = 10.0
"""So long a server may go by an older policy unremarked: it takes a new one with a statement."""
PUT_BACK_TOLD_S = 3600.0
"""For so long the status shows that another program's policy was there."""


class Pick(NamedTuple):
    """Some of the budgets, for who cannot look at ten thousand."""

    most: int
    find: str = ""
    """In the name, or in what it says."""


def policy_doc(
    controlled: Controlled, healthy: bool | None, wall_s: float, pick: Pick | None = None
) -> PolicyDoc:
    """With `pick` the most urgent alone, and without the document."""
    edition, watch = controlled.edition, controlled.watch
    among, total = _picked(controlled, pick)
    readings = watch.readings if watch is not None else None
    lint = edition.advice if pick is None else edition.advice[:MAX_ADVICE]
    told = [*_not_told_yet(controlled, wall_s), *(str(advice) for advice in lint)]
    return PolicyDoc(
        database=controlled.plan.database,
        revision=edition.revision,
        mode_cap=edition.mode_cap.value,
        source=controlled.plan.source,
        changed_at_runtime=edition.changes.any,
        document=edition.document if pick is None else {},
        budgets=list(budget_docs(controlled, edition, healthy, wall_s, among=among)),
        published=published_docs(controlled, wall_s),
        in_force_version=readings.version if readings else None,
        read_fault=None if readings else watch.fault if watch else NO_SERVER,
        rejection=readings.rejection if readings and readings.rejected else None,
        ledger=controlled.ledger.describe(),
        advice=told,
        own_role=edition.own_role or None,
        has_policy=controlled.has_policy,
        is_off=controlled.is_off,
        directory=controlled.plan.directory or None,
        budgets_total=total,
    )


def _picked(controlled: Controlled, pick: Pick | None) -> tuple[frozenset[str] | None, int]:
    """Their names, None for all; and how many there are to pick from."""
    budgets = controlled.edition.policy.budgets
    if pick is None:
        return None, len(budgets)
    find = pick.find.lower()
    found = [b for b in budgets if not find or find in b.name or find in says(b).lower()]
    readings = controlled.watch.readings if controlled.watch is not None else None
    fills = _fills(readings)

    def urgency(budget: Budget) -> tuple[int, float]:
        counts = readings.budgets.get(budget.name) if readings is not None else None
        last_ms = counts.last_violation_ms if counts is not None else 0
        return last_ms // URGENT_MS, fills.get(budget.name, 0.0)

    most = heapq.nlargest(pick.most, found, key=urgency)
    return frozenset(budget.name for budget in most), len(found)


def _fills(readings: BudgetReadings | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for bucket in readings.buckets if readings is not None else ():
        if bucket.fill is not None and bucket.fill > found.get(bucket.budget, 0.0):
            found[bucket.budget] = bucket.fill
    return found


def budget_docs(
    controlled: Controlled,
    edition: Edition,
    healthy: bool | None,
    wall_s: float,
    *,
    only: str = "",
    among: frozenset[str] | None = None,
) -> Iterator[BudgetDoc]:
    """All of them, the one that is named, or those among some."""
    readings = controlled.watch.readings if controlled.watch is not None else None
    buckets, advice = _by_budget(readings), _advice_by_budget(edition)
    raws = budgets_of(edition.document)
    cap = Mode.OFF if controlled.is_off else edition.mode_cap
    for at, budget in enumerate(edition.policy.budgets):
        if only not in ("", budget.name) or (among is not None and budget.name not in among):
            continue
        shared = edition.fleet.get(budget.name)
        doc = budget_doc(
            budget,
            raws[budget.name],
            state=state_of(
                budget, cap, healthy, ended=edition.has_ended(budget, int(wall_s * 1000))
            ),
            origin=edition.origin(budget.name),
            revision=edition.built_on(budget.name),
            wall_s=wall_s,
            of_fleet=None if shared is None else (str(shared.reach), shared.n),
        )
        if readings is not None:
            doc = with_counts(doc, readings, buckets.get(budget.name, ()), wall_s)
        yield replace(
            doc,
            advice=advice.get(at, ()),
            own_role=edition.own_role or None,
            cpu_share=_cpu_share(controlled, partial(Rates.budget_cpus, name=budget.name)),
        )


def _cpu_share(controlled: Controlled, cpus_of: Callable[[Rates], float | None]) -> float | None:
    """Recently, of all CPUs; None: not known."""
    watch = controlled.watch
    readings = watch.readings if watch is not None else None
    if watch is None or readings is None or not readings.cpus_milli:
        return None
    cpus = cpus_of(watch.rates)
    return None if cpus is None else cpus * 1000 / readings.cpus_milli


def _by_budget(readings: BudgetReadings | None) -> Mapping[str, Sequence[BucketReading]]:
    found: dict[str, list[BucketReading]] = {}
    for bucket in readings.buckets if readings is not None else ():
        found.setdefault(bucket.budget, []).append(bucket)
    return found


def _advice_by_budget(edition: Edition) -> Mapping[int, Sequence[str]]:
    found: dict[int, list[str]] = {}
    for advice in edition.advice:
        if place := _AT.match(advice.place):
            found.setdefault(int(place[1]), []).append(str(advice))
    return found


def published_docs(controlled: Controlled, wall_s: float) -> list[OutletDoc]:
    wanted = controlled.publisher.wanted
    return [_outlet_doc(outlet, wanted, wall_s) for outlet in controlled.publisher.outlets]


def _outlet_doc(outlet: Outlet, wanted: WantedPolicy | None, wall_s: float) -> OutletDoc:
    published, others, fault = outlet.published, outlet.others, outlet.fault
    return OutletDoc(
        where=outlet.where,
        version=published.version if published else None,
        checksum=checksum_text(published.checksum) if published else None,
        published_at=iso(published.at_ms / 1000) if published else None,
        is_current=wanted is not None and outlet.told == wanted,
        fault=fault or None,
        fault_for_s=max(0.0, wall_s - outlet.fault_since_s) if fault else None,
        failures_total=outlet.failures_total,
        health_fault=outlet.health_fault or None,
        off=outlet.off,
        others_version=others.version if others else None,
        look_fault=outlet.look_fault or None,
        put_back=outlet.displaced.found or None,
        put_back_at=iso(outlet.displaced.wall_s) if outlet.displaced.found else None,
        put_back_total=outlet.displaced.total,
    )


def change_doc(
    change: EditionChange, controlled: Controlled, budget: BudgetDoc | None, wall_s: float
) -> PolicyChangeDoc:
    found = change.differences
    told = [*_not_told_yet(controlled, wall_s), *(str(advice) for advice in change.after.advice)]
    return PolicyChangeDoc(
        database=controlled.plan.database,
        revision=change.of.built_on(change.after) if change.n is None else change.n,
        dry_run=change.dry_run,
        changed=change.changed,
        mode_cap=change.after.mode_cap.value,
        difference=found[:MAX_DIFFERENCES],
        difference_total=len(found),
        budget=budget,
        advice=told,
        published=published_docs(controlled, wall_s),
        reach=None if change.of.reach == HERE else str(change.of.reach),
        copies=copies_doc(change.copies),
    )


def told_of(controlled: Controlled, wall_s: float) -> list[str]:
    """What is wrong with it, or not as one would think, for the status: most telling first."""
    database, told = controlled.plan.database, list[str]()
    told += [f"{database}: {one}" for one in _capped(controlled)]
    for outlet in controlled.publisher.outlets:
        if outlet.fault:
            for_s = max(0.0, wall_s - outlet.fault_since_s)
            told.append(
                f"{database}: the policy is not published for {for_s:.0f} s: {outlet.fault}"
            )
    readings = controlled.watch.readings if controlled.watch is not None else None
    if readings is not None and readings.rejected and readings.rejection:
        told.append(f"{database}: the server rejected a policy: {readings.rejection}")
    return [*told, *_not_told_yet(controlled, wall_s)]


def _capped(controlled: Controlled) -> Iterator[str]:
    edition, database = controlled.edition, controlled.plan.database
    cap = edition.changes.mode_cap
    if cap is not Mode.ENFORCE:
        lift = f"`headgate budget mode {database} --all enforce` lifts that"
        yield f"no budget goes beyond {cap.value}; {lift}"
    for one in edition.caps:
        level, _, pattern = str(one.reach).partition(":")
        lift = f"`headgate budget mode all --all enforce --{' '.join((level, pattern)).strip()}`"
        yield f"no budget goes beyond {one.mode.value} (for {one.reach}, by {one.set_by}); {lift}"


def _not_told_yet(controlled: Controlled, wall_s: float) -> Iterator[str]:
    """What else the documents' readers should know."""
    database = controlled.plan.database
    if told := _switched_off(controlled):
        yield f"{database}: {told}"
    for item_id, fault in controlled.edition.left_out.items():
        yield f"{database}: budget {item_id} is left out here: {fault}"
    for outlet in controlled.publisher.outlets:
        yield from (f"{database}: {told}" for told in _found_there(controlled, outlet, wall_s))
    if not controlled.is_loaded:
        yield (
            f"{database}: the store cannot be read, so what was changed at run time is not known; "
            "servers keep the policy that they have"
        )
    if not controlled.publisher.outlets:
        yield f"{database}: {NO_SERVER.replace('NAME', database)}"
    for outlet in controlled.publisher.outlets:
        if outlet.health_fault:
            yield f"{database}: the server gets no report of its health: {outlet.health_fault}"


def _switched_off(controlled: Controlled) -> str:
    readings = controlled.watch.readings if controlled.watch is not None else None
    if readings is not None and not readings.enabled:
        return (
            "traffic control is switched off in the server itself, no budget applies: "
            "pg_headgate.enabled is off in its settings"
        )
    if controlled.is_off:
        directory = controlled.plan.directory
        return (
            "traffic control is switched off at the server (headgate pg disable), no budget "
            f"applies: `headgate pg enable --directory {directory}` switches it on"
        )
    return ""


def _found_there(controlled: Controlled, outlet: Outlet, wall_s: float) -> Iterator[str]:
    """Of the file that servers go by: whose it is, and whether it was ours all the time."""
    if outlet.look_fault and not outlet.fault:
        yield f"what lies at {outlet.where} cannot be looked at: {outlet.look_fault}"
    if outlet.others is not None and not controlled.has_policy:
        yield (
            f"version {outlet.others.version} is in force, published by another program; it is "
            "left alone, and the first change made here replaces all of it"
        )
    if told := _not_taken(controlled, outlet, wall_s):
        yield told
    displaced = outlet.displaced
    if displaced.found and wall_s - displaced.wall_s < PUT_BACK_TOLD_S:
        yield (
            f"the policy was not as it had been published ({displaced.found}), and was put back, "
            f"{displaced.total} times in all; last at {iso(displaced.wall_s)}. Change it with "
            "`headgate budget`, not beside the agent"
        )


def _not_taken(controlled: Controlled, outlet: Outlet, wall_s: float) -> str:
    readings = controlled.watch.readings if controlled.watch is not None else None
    published = outlet.published
    if readings is None or published is None or readings.version >= published.version:
        return ""
    ago_s = wall_s - published.at_ms / 1000
    if ago_s < TAKEN_WITHIN_S:
        return ""
    goes_by = f"version {readings.version}" if readings.version else "none"
    return (
        f"version {published.version} was published {ago_s:.0f} s ago, and the server goes by "
        f"{goes_by}: no statement has run since, or it cannot read the file (headgate pg status)"
    )


# --- explaining (R144) -----------------------------------------------------------------------


class _Books:
    """What a server said last, as the explanation asks for it."""

    def __init__(self, readings: BudgetReadings, labels: Mapping[int, str], cost: Estimate) -> None:
        self._readings = readings
        self._labels = labels
        self._cost = cost
        self._buckets = {(b.budget, b.label): b for b in readings.buckets}

    def standing(self, budget: Budget, bucket_key: int, now_ns: int) -> BucketState:
        readings = self._readings
        terms = terms_of(budget, readings.cpus_milli or 1000, readings.workers or 1)
        found = self._buckets.get((budget.name, self._labels.get(bucket_key, "")))
        if found is None or not terms.keeps_anything:
            return BucketState(terms)
        debt_ns = 0
        if terms.size_ns is not None and terms.rate_mpct:
            debt_ns = drain_ns(found.debt_ns, terms.rate_mpct, terms.cpus_milli)
        return BucketState(terms, found.running, debt_ns)

    def estimate(self, ask: StatementCheck) -> Estimate:
        return self._cost


NO_TRACES = "nothing is traced: [databases.{}.traffic] has no directory of a server to read"
MAX_PLAYED = 8000
"""Traces; a fifth of a millisecond each and policy, in a thread that checks have to share with."""
MAX_LOOKS = 3_000_000
"""At rules, about a microsecond each."""
MINUTE_MS = 60_000
LOOKED_BACK_MS = HOUR_S * 1000
"""Debt that is older has drained, but for budgets that take an hour to."""
BY_REPLAY = (
    "Decided by the policy of now, with the debt that a replay of what was traced leads to; "
    "headgate changes history has what was changed since."
)
NOTHING_READ = BudgetReadings(version=0, checksum=0, started_ms=0)


def explained(
    controlled: Controlled, body: ExplainStatementBody, healthy: bool | None, wall_ms: int
) -> StatementExplainDoc:
    """By the policy in force and what the server said last; nothing is taken."""
    edition, watch = controlled.edition, controlled.watch
    readings = watch.readings if watch is not None else None
    memory = controlled.traces
    cost, notes = _cost(body, readings, () if memory is None else memory.since(0))
    if readings is None:
        cause = watch.fault if watch is not None else NO_SERVER
        notes = [f"neither its CPUs nor its debt are known, only rules can be explained: {cause}"]
    who, statement = _asker(body), _statement(body)
    if controlled.is_off:
        notes = [f"no budget is looked at: {_switched_off(controlled)}"]
    policy = Policy() if controlled.is_off else edition.in_force(wall_ms)
    rules, now = RuleSet(policy), Now(wall_ms, healthy)
    matched = rules.match(who, statement, now)
    labels = {match.bucket: match.label.decode(errors="replace") for match in matched.at}
    books = _Books(readings or NOTHING_READ, labels, cost or Estimate(1, 1))
    asked = StatementCheck(0, wall_ms, workers=body.workers, flags=StatementFlags.COST_GIVEN)
    found = explain(rules, books, who, statement, asked, now)
    return _explained(
        found, statement, notes, readable=readings is not None, estimated=cost is not None
    )


def explained_then(
    controlled: Controlled, body: ExplainStatementBody, at_ms: int
) -> StatementExplainDoc:
    """By the policy of now, against the debt and the health of then."""
    memory = controlled.traces
    if memory is None:
        raise InvalidRequest(NO_TRACES.format(controlled.plan.database), status=404)
    since_ms = memory.since_ms
    if since_ms is None or at_ms < since_ms:
        began = "not yet" if since_ms is None else f"since {iso(since_ms / 1000)}"
        message = f"traces are kept {began}: of what was before, nothing is known"
        raise InvalidRequest(message, status=422, field="at")
    before = memory.between(at_ms - LOOKED_BACK_MS, at_ms)
    policy = controlled.edition.in_force(at_ms)
    known = thinned(newest_within(before, policy, MAX_LOOKS), MAX_PLAYED)
    ledger = ledger_at(known, policy, replayed(controlled), at_ms)
    readings = controlled.watch.readings if controlled.watch is not None else None
    cost, notes = _cost_then(body, before) or _cost(body, readings, before)
    expected = cost or Estimate(1, 1)
    asked = StatementCheck(
        at_ms * 1_000_000,
        wall_ms=at_ms,
        cost_ns=expected.mean_ns,
        p90_ns=expected.p90_ns,
        workers=body.workers,
        flags=StatementFlags.COST_GIVEN,
    )
    who, statement, now = _asker(body), _statement(body), Now(at_ms, memory.health_at(at_ms))
    found = explain(RuleSet(policy), ledger, who, statement, asked, now)
    minute_ms = at_ms - at_ms % MINUTE_MS
    notes += [BY_REPLAY, _recorded(body, memory.between(minute_ms, minute_ms + MINUTE_MS - 1))]
    return _explained(found, statement, notes, readable=True, estimated=cost is not None)


def _cost_then(
    body: ExplainStatementBody, traces: Sequence[Trace]
) -> tuple[Estimate, list[str]] | None:
    """What its pattern was expected to cost, the last time."""
    if body.cost_ms is not None:
        return None
    estimates = (
        Estimate(trace.estimate_ns, max(trace.estimate_ns, trace.p90_ns))
        for trace in _alike(body, traces)
        if trace.estimate_ns
    )
    found = next(estimates, None)
    return None if found is None else (found, [])


def _alike(body: ExplainStatementBody, traces: Sequence[Trace]) -> Iterator[Trace]:
    """Newest first: of that query id; where none is given, of that fingerprint."""
    asked = _statement(body)
    own = fingerprint(asked.text, asked.dialect)
    for trace in reversed(traces):
        if asked.query_id:
            same = trace.query_id % 2**64 == asked.query_id
        else:
            same = trace.fingerprint == own != NO_FINGERPRINT
        if same:
            yield trace


def _recorded(body: ExplainStatementBody, traces: Sequence[Trace]) -> str:
    """What became of its like in that minute."""
    user, query_id = body.username, _query_id(body)
    alike = [
        trace
        for trace in traces
        if (user is None or trace.who.username == user)
        and (not query_id or trace.query_id % 2**64 == query_id % 2**64)
    ]
    blocked = sum(trace.weight for trace in alike if trace.blocked)
    ran = sum(trace.weight for trace in alike) - blocked
    whose = f"statements of {user}" if user else "statements"
    return f"In that minute {ran:,.0f} {whose} ran and {blocked:,.0f} were blocked."


def replayed(
    controlled: Controlled, by: tuple[str, ...] = USERNAME, step_s: int = HOUR_S
) -> ReplayServer:
    """The server of now, with the health of then."""
    watch, memory = controlled.watch, controlled.traces
    readings = watch.readings if watch is not None else None
    return ReplayServer(
        cpus_milli=(readings.cpus_milli if readings else 0) or controlled.plan.cpus_milli,
        workers=(readings.workers if readings else 0) or 100,
        health=tuple(memory.health) if memory is not None else (),
        by=by,
        step_s=step_s,
    )


def _explained(
    found: Explanation,
    statement: Statement,
    notes: list[str],
    *,
    readable: bool,
    estimated: bool,
) -> StatementExplainDoc:
    tags = read_tags(statement.text, statement.dialect)
    if tags.ignored:
        notes.append(f"{tags.ignored} tags are ignored: malformed, too long or too many")
    return statement_doc(
        found,
        readable=readable,
        estimated=estimated,
        tags={_text(key): _text(value) for key, value in tags.pairs.items()},
        fingerprint=f"{fingerprint(statement.text, statement.dialect):016x}",
        notes=notes,
    )


def _cost(
    body: ExplainStatementBody, readings: BudgetReadings | None, traces: Sequence[Trace]
) -> tuple[Estimate | None, list[str]]:
    if body.cost_ms is not None:
        given_ns = max(1, int(body.cost_ms * 1e6))
        return Estimate(given_ns, given_ns), []
    last = next(_alike(body, traces), None)
    query_id = last.query_id if last is not None else _query_id(body)
    for pattern in readings.patterns if readings is not None else ():
        if query_id and pattern.query_id % 2**64 == query_id % 2**64:
            cost = pattern.cpu_mean_ns, pattern.cpu_p90_ns
            return Estimate(*(max(1, int(ns)) for ns in cost)), []
    return _cost_then(body, traces) or (
        None,
        [
            "its cost is not known, so burst and capacity are decided as if it cost nothing: none "
            "like it was traced. Give its CPU time, or the query id of one that has run"
        ],
    )


def _query_id(body: ExplainStatementBody) -> int:
    if body.query_id is None:
        return 0
    if not re.fullmatch(r"-?[0-9]{1,20}", body.query_id):
        message = f"query_id is {body.query_id[:40]!r}, must be the server's number of it"
        raise InvalidRequest(message, field="query_id")
    return int(body.query_id)


def _asker(body: ExplainStatementBody) -> StatementIdentity:
    address = None
    if body.remote_address:
        try:
            address = ip_address(body.remote_address)
        except ValueError:
            message = f"remote_address is {body.remote_address[:60]!r}, must be an IP address"
            raise InvalidRequest(message, field="remote_address") from None
    return StatementIdentity(body.username, body.database, body.application_name, address)


def _statement(body: ExplainStatementBody) -> Statement:
    text = body.sql.encode(errors="replace")
    if len(text) > MAX_SQL_BYTES:
        message = f"sql has {len(text)} bytes, at most {MAX_SQL_BYTES}"
        raise InvalidRequest(message, field="sql")
    if body.workers < 1 or (body.cost_ms is not None and not 0 <= body.cost_ms < 1e10):
        message = "workers must be 1 or more, and cost_ms from 0 up to 1e10"
        raise InvalidRequest(message, field="workers")
    return Statement(text, Dialect.POSTGRES, _query_id(body) % 2**64)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


# --- statements ----------------------------------------------------------------------------------

# What else is known of the statements a server counts: texts, who ran them, whose they are.
#
# StatementTexts, Rates, TraceMemory ──► StatementKnown ──► StateDoc.patterns

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
    share = _cpu_share(controlled, lambda rates: rates.pattern_cpus(pattern.query_id))
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
        is_large = sum(len(budget.rules) for budget in policy.budgets) > MAX_RULES
        self._rules = None if is_large else RuleSet(policy)

    def of(self, trace: Trace) -> list[str] | None:
        if self._rules is None:
            return None
        found = self._rules.match(trace.who, trace.statement, self._now)
        names = (self._rules.budgets[match.budget].name for match in found.at)
        return list(dict.fromkeys(names))
