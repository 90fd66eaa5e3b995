"""Budgets as documents: the policy, one budget, what servers count, violations, explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headgate.base.declared import iso
from headgate.budgets.difference import PolicyDifference
from headgate.budgets.explain import BudgetState, Explanation
from headgate.budgets.policy import Budget, Mode, When
from headgate.budgets.readings import (
    NOTHING_COUNTED,
    BucketReading,
    BudgetCounts,
    BudgetReadings,
    PatternReading,
)
from headgate.changes.exchange_api import CopiesDoc
from headgate.fleet.api import ReachedDoc
from headgate.history.records import BudgetMinute

"""Wall-clock seconds as ISO 8601."""
MAX_BUCKETS = 50
"""Of one budget."""
MAX_ALL_BUCKETS = 500
MAX_PATTERNS = 100
MAX_SEATS = 200
MAX_MINUTES = 10_000
MAX_DIFFERENCES = 1000
NS_PER_MS = 1_000_000


class BucketDoc(msgspec.Struct, frozen=True):
    budget: str
    label: str
    """Of a bucket per distinct value, `tenant=acme`; empty for the budget's own."""
    debt_ms: float
    """Of CPU."""
    capacity_ms: float | None
    fill: float | None
    """debt / capacity; null without a capacity."""
    running: int
    """Workers that run statements under it now."""
    max_workers: int | None


class CountsDoc(msgspec.Struct, frozen=True):
    """Since the server started."""

    admitted: int
    """Statements that were admitted."""
    estimated_ms: float
    charged_ms: float
    warned: Mapping[str, int]
    """By limit; `threshold`: only its warning threshold was crossed."""
    blocked: Mapping[str, int]
    """By limit."""
    blocked_early: int
    """Of them, before planning."""
    delayed: int
    delayed_ms: float
    passed: int
    """Over a limit, but inside a transaction."""
    sleeping: int
    """Waiting now, by a delay or a penalty."""
    forgiven_ms: float
    evicted: int
    unpinned: int
    last_violation_at: str | None
    wall_ms: float = 0.0
    """How long admitted statements ran by the clock, beside the CPU time that they are charged."""

    @property
    def blocked_total(self) -> int:
        return sum(self.blocked.values())

    @property
    def warned_total(self) -> int:
        return sum(self.warned.values())


class BudgetDoc(msgspec.Struct, frozen=True):
    name: str
    mode: str
    """Its own."""
    state: str
    """`enforcing`, `warning`, `off`, `inactive` (applies only when unhealthy) or `expired`."""
    says: str
    """In a line: the limits, and what the budget matches."""
    origin: str
    """`file`, `fleet`, `shard`, `changed` (at this agent, on top of one of them) or `runtime`."""
    settings: Mapping[str, Any]
    """As the policy's document has it."""
    expires_at: str | None
    left_s: float | None
    counts: CountsDoc | None
    """Null while the server's counters cannot be read."""
    buckets: Sequence[BucketDoc]
    """The fullest first, at most 50."""
    buckets_total: int
    fill: float | None
    """Of the fullest."""
    running: int | None
    """Workers; null while that cannot be read."""
    advice: Sequence[str]
    revision: int
    """What a change is built on: of the policy; of a budget of a shard its own."""
    own_role: str | None = None
    """Database user of the agent: exempt from every budget."""
    reach: str | None = None
    """Its reach, if it reaches beyond this agent, also under a change made here."""
    n: int | None = None
    """The revision of the log that set it."""
    cpu_share: float | None = None
    """CPU charged in the last half minute, as a share of the server's; null: not known."""
    last_violation_s_ago: float | None = None
    """Null: none since the server started, or not known."""


class OutletDoc(msgspec.Struct, frozen=True):
    """A server that gets the policy."""

    where: str
    version: int | None
    """Of what it took last; null: nothing yet."""
    checksum: str | None
    published_at: str | None
    is_current: bool
    """Whether it has the newest policy."""
    fault: str | None
    """Why it has not accepted the newest."""
    fault_for_s: float | None
    failures_total: int
    health_fault: str | None
    off: bool = False
    """Switched off at the server (`headgate pg disable`): no budget applies."""
    others_version: int | None = None
    """Version of a policy that is there, and is not ours."""
    look_fault: str | None = None
    """Why the policy there cannot be read."""
    put_back: str | None = None
    """What was last found in place of ours, which was restored."""
    put_back_at: str | None = None
    put_back_total: int = 0


class PublishedPolicyDoc(msgspec.Struct, frozen=True):
    """A policy as servers get it: no budget beyond the cap, none that has expired, and the
    agent's own role exempt."""

    database: str
    revision: int
    mode_cap: str
    document: Mapping[str, Any]


class PolicyDoc(msgspec.Struct, frozen=True):
    database: str
    revision: int
    """Of runtime changes and of the file as they were read; 0: nothing kept yet."""
    mode_cap: str
    """No budget goes beyond it: `enforce` for each by its own mode."""
    source: str
    """The policy file; empty: none."""
    changed_at_runtime: bool
    document: Mapping[str, Any]
    """Complete, as `[policy]` and `[[budgets]]` of a policy file."""
    budgets: Sequence[BudgetDoc]
    published: Sequence[OutletDoc]
    in_force_version: int | None
    """As the server itself says; null while it cannot be read."""
    read_fault: str | None
    """Why the server's counters cannot be read."""
    rejection: str | None
    """Why the server did not accept the last policy, if so."""
    ledger: str
    """What checks that name a budget debit: the server's own ledger, with its statements; or the
    agent's own, and why."""
    advice: Sequence[str]
    own_role: str | None = None
    """Database user of the agent: exempt from every budget, besides `exempt_usernames`."""
    has_policy: bool = True
    """False: there is neither a file nor a change, so the server's policy is left alone."""
    is_off: bool = False
    """Switched off at the server itself."""
    directory: str | None = None
    """Of the server's extension, as the settings have it; null: none."""
    budgets_total: int = 0
    """Of which `budgets` may be the most urgent alone."""


class PoliciesDoc(msgspec.Struct, frozen=True):
    databases: Sequence[PolicyDoc]
    """Databases with budgets, and the policy of each."""


class PolicyChangeDoc(msgspec.Struct, frozen=True):
    database: str
    revision: int
    dry_run: bool
    changed: bool
    mode_cap: str
    difference: Sequence[PolicyDifference]
    """At most 1,000."""
    difference_total: int
    budget: BudgetDoc | None
    """The budget of the request; null for the whole policy, or if it is gone."""
    advice: Sequence[str]
    published: Sequence[OutletDoc]
    reach: str | None = None
    """Of a change that reaches beyond this agent. For a fleet, `revision` is the fleet's, and
    nothing is published here until the agent has followed it."""
    reached: ReachedDoc | None = None
    """With a change for the fleet: what it reaches."""
    copies: CopiesDoc | None = None
    """With a change for a shard without etcd: which of its agents have it."""


class LintDoc(msgspec.Struct, frozen=True):
    """Of a document that could be taken; one that could not is a problem with its faults."""

    budgets: int
    """How many budgets it has."""
    rules: int
    """How many rules its budgets have."""
    advice: Sequence[str]
    difference: Sequence[PolicyDifference]
    """From what is in force, at most 1,000."""
    difference_total: int


class PatternDoc(msgspec.Struct, frozen=True):
    query_id: str
    """Text, because JSON's numbers are not as long."""
    database: int
    """The database, as its server numbers it."""
    calls: int
    k: float | None
    """CPU ns per unit of plan cost."""
    cpu_mean_ms: float
    """CPU of a typical call."""
    cpu_p90_ms: float
    """Nine of ten calls stay below it."""
    error: float
    """Mean relative error of its estimates."""
    cpu_total_ms: float
    wall_total_ms: float = 0.0
    """By the clock: with waits for locks and disks."""
    text: str | None = None
    """Without its literals and comments, at most 2,000 characters."""
    text_cause: str | None = None
    """Why there is none."""
    cpu_share: float | None = None
    """Share of the server's CPU in the last half minute; null: not known."""
    running: float | None = None
    """Workers that ran it at once, on average while it was traced, an hour at most; null: not
    traced."""
    fingerprint: str | None = None
    """Of its text, the same on every server; null: no rule uses it yet."""
    username: str | None = None
    """Client that last ran it, as traced."""
    application_name: str | None = None
    budgets: Sequence[str] | None = None
    """Whose rules apply to it as it was run last; null: not known."""


class StatementKnown(NamedTuple):
    """What else is known of a statement, besides what the server counts."""

    text: str | None = None
    text_cause: str | None = None
    cpu_share: float | None = None
    running: float | None = None
    fingerprint: str | None = None
    username: str | None = None
    application_name: str | None = None
    budgets: Sequence[str] | None = None


Known = Callable[[Sequence[PatternReading]], Sequence[StatementKnown]]


class SeatDoc(msgspec.Struct, frozen=True):
    pid: int
    version: int
    """Of the policy that it last used."""


class BudgetCountsDoc(msgspec.Struct, frozen=True):
    budget: str
    counts: CountsDoc


class StateDoc(msgspec.Struct, frozen=True):
    """What the server says, as read out of its memory."""

    database: str
    read_s_ago: float | None
    fault: str | None
    """Why it cannot be read; everything else is then empty."""
    version: int | None
    """Of the policy in force; null: there is none."""
    checksum: str | None
    enabled: bool | None
    wanted_version: int | None
    """What it was given last."""
    rejected: int
    """How many policies the server has rejected."""
    rejection: str | None
    health: str | None
    cpus: float | None
    workers: int | None
    seats_total: int
    seats_behind: int
    """Of them, those that last used an older policy: idle, or in one statement since."""
    seats: Sequence[SeatDoc]
    budgets: Sequence[BudgetCountsDoc]
    """The counters of each budget."""
    buckets: Sequence[BucketDoc]
    """The fullest first, at most 500."""
    buckets_total: int
    patterns: Sequence[PatternDoc]
    """Those that cost most, at most 100."""
    patterns_total: int


class ViolationDoc(msgspec.Struct, frozen=True):
    at: str
    budget: str
    what: str
    limit: str
    count: int


class ViolationSumDoc(msgspec.Struct, frozen=True):
    budget: str
    warned: Mapping[str, int]
    """Statements that were warned about, by limit."""
    blocked: Mapping[str, int]
    """Statements that were blocked, by limit."""
    delayed: int
    last_at: str


class ViolationsDoc(msgspec.Struct, frozen=True):
    database: str
    since: str
    until: str
    budgets: Sequence[ViolationSumDoc]
    """Most violated first."""
    minutes: Sequence[ViolationDoc]
    """Oldest first, at most 10,000."""
    whole: bool
    """False: the oldest minutes are left out, of the sums as well."""


class CapBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode_cap: Mode
    """`off`, `warn`, or `enforce` to lift it."""


class ExplainStatementBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: str
    username: str | None = None
    database: str | None = None
    """Database of the server that the statement runs in."""
    application_name: str | None = None
    remote_address: str | None = None
    query_id: str | None = None
    """As the server numbers it: the estimate is what its pattern has cost."""
    cost_ms: float | None = None
    """Of CPU, instead of an estimate."""
    workers: int = 1
    """Places that it takes: one for each worker of a parallel plan."""
    at: str | None = None
    """Then instead of now: an instant with its zone, or `90m` ago. By the policy of now, with the
    debt that a replay of the traced statements leads to."""


class AppliesDoc(msgspec.Struct, frozen=True):
    budget: str
    label: str
    mode: str
    fails: str
    """The limit that the statement fails; empty: none, or not known."""
    bucket: BucketDoc | None
    """Null: not known."""


class RuleFindingDoc(msgspec.Struct, frozen=True):
    budget: str
    place: str
    """In the document: budgets[2].rules[0]."""
    rule: str
    outcome: str
    why: str


class StatementExplainDoc(msgspec.Struct, frozen=True):
    verdict: str
    """`run`, `warn`, `delay` or `block`; `depends` where what it costs decides, and is not known.
    `unknown` where budgets apply and the server cannot be read: CPUs and debt are not known."""
    decided_by: str | None
    """The budget."""
    limit: str | None
    retry_after_ms: float | None
    """Null: it need not wait, or it can never fit."""
    estimate_ms: float | None
    """CPU that is expected and charged. Null: not known."""
    estimate_p90_ms: float | None
    """CPU that nine of ten executions stay below: what the per-query limit is compared with.
    Null: not known."""
    tags: Mapping[str, str]
    fingerprint: str
    budgets: Sequence[AppliesDoc]
    rules: Sequence[RuleFindingDoc]
    """Those that match first; at most 200."""
    rules_total: int
    needed: Sequence[str]
    """What would have to change."""
    notes: Sequence[str]


# --- making them -----------------------------------------------------------------------------


def state_of(budget: Budget, cap: Mode, healthy: bool | None, *, ended: bool) -> str:
    if ended:
        return "expired"
    if Mode.OFF in (budget.mode, cap):
        return "off"
    if budget.when is When.UNHEALTHY and healthy is True:
        return "inactive"
    return "enforcing" if budget.mode is cap is Mode.ENFORCE else "warning"


def says(budget: Budget) -> str:
    """`20% of the server, up to 200%·s (2 s of the server) of debt; for username=etl`."""
    parts = [*_limits_told(budget)] or ["no limit"]
    rules = [str(rule) for rule in budget.rules[:2]]
    if len(budget.rules) > len(rules):
        rules.append(f"{len(budget.rules) - len(rules)} more rules")
    for_whom = " or ".join(rules) if rules else "no statement (checks that name it)"
    under = ", while the database is unhealthy" if budget.when is When.UNHEALTHY else ""
    return f"{', '.join(parts)}{under}; for {for_whom}"


def _limits_told(budget: Budget) -> Iterable[str]:
    if budget.rate_mpct is not None:
        yield f"{budget.rate_mpct / 1000:g}% of the server"
    if budget.capacity_mpcts is not None:
        yield f"up to {_server_time(budget.capacity_mpcts)} of debt"
    if budget.burst_mpcts is not None:
        yield f"{_server_time(budget.burst_mpcts)} a statement"
    if budget.concurrency_mpct is not None:
        yield f"{budget.concurrency_mpct / 1000:g}% of the workers"
    if budget.max_workers is not None:
        yield f"{budget.max_workers} worker{'s' * (budget.max_workers != 1)}"


def _server_time(mpcts: int) -> str:
    """Both readings: 100 %·s are one second of the whole server."""
    return f"{mpcts / 1000:g}%·s ({mpcts / 100_000:g} s of the server)"


def counts_doc(counts: BudgetCounts) -> CountsDoc:
    last_ms = counts.last_violation_ms
    return CountsDoc(
        admitted=counts.admitted,
        estimated_ms=counts.estimated_ns / NS_PER_MS,
        charged_ms=counts.charged_ns / NS_PER_MS,
        wall_ms=counts.wall_ns / NS_PER_MS,
        warned=dict(counts.warned),
        blocked=dict(counts.blocked),
        blocked_early=counts.early,
        delayed=counts.delayed,
        delayed_ms=counts.delayed_ns / NS_PER_MS,
        passed=counts.passed,
        sleeping=counts.sleeping,
        forgiven_ms=counts.forgiven_ns / NS_PER_MS,
        evicted=counts.evicted,
        unpinned=counts.unpinned,
        last_violation_at=iso(last_ms / 1000) if last_ms else None,
    )


def bucket_doc(bucket: BucketReading) -> BucketDoc:
    capacity_ns = bucket.capacity_ns
    return BucketDoc(
        budget=bucket.budget,
        label=bucket.label,
        debt_ms=bucket.debt_ns / NS_PER_MS,
        capacity_ms=None if capacity_ns is None else capacity_ns / NS_PER_MS,
        fill=bucket.fill,
        running=bucket.running,
        max_workers=bucket.max_workers,
    )


def fullest_first(buckets: Iterable[BucketReading]) -> list[BucketReading]:
    return sorted(buckets, key=lambda b: (-(b.fill or 0.0), -b.running, b.budget, b.label))


def budget_doc(
    budget: Budget,
    settings: Mapping[str, Any],
    *,
    state: str,
    origin: str,
    revision: int,
    wall_s: float,
    of_fleet: tuple[str, int] | None = None,
) -> BudgetDoc:
    """Without what servers count. `of_fleet`: its reach, and the revision of it."""
    ends_ms = budget.expires_at_ms
    return BudgetDoc(
        name=budget.name,
        mode=budget.mode.value,
        state=state,
        says=says(budget),
        origin=origin,
        settings=settings,
        expires_at=None if ends_ms is None else iso(ends_ms / 1000),
        left_s=None if ends_ms is None else max(0.0, ends_ms / 1000 - wall_s),
        counts=None,
        buckets=(),
        buckets_total=0,
        fill=None,
        running=None,
        advice=(),
        revision=revision,
        reach=None if of_fleet is None else of_fleet[0],
        n=None if of_fleet is None else of_fleet[1],
    )


def with_counts(
    doc: BudgetDoc, readings: BudgetReadings, buckets: Iterable[BucketReading], wall_s: float
) -> BudgetDoc:
    """`buckets`: its own."""
    counts, shown = readings.budgets.get(doc.name, NOTHING_COUNTED), fullest_first(buckets)
    last_ms = counts.last_violation_ms
    return msgspec.structs.replace(
        doc,
        counts=counts_doc(counts),
        buckets=[bucket_doc(bucket) for bucket in shown[:MAX_BUCKETS]],
        buckets_total=len(shown),
        fill=max((bucket.fill for bucket in shown if bucket.fill is not None), default=None),
        running=sum(bucket.running for bucket in shown),
        last_violation_s_ago=max(0.0, wall_s - last_ms / 1000) if last_ms else None,
    )


def checksum_text(checksum: int) -> str:
    return f"{checksum:08x}"


def state_doc(
    database: str,
    readings: BudgetReadings | None,
    *,
    read_s_ago: float | None,
    fault: str,
    wanted_version: int | None,
    known: Known | None = None,
) -> StateDoc:
    """`known`: what else is known of each of those statements; None leaves them all out."""
    if readings is None:
        return _unread(database, read_s_ago, fault, wanted_version)
    buckets = fullest_first(readings.buckets)
    patterns = sorted(readings.patterns, key=lambda p: -p.cpu_total_ns)
    behind = [seat for seat in readings.seats if seat.version < readings.version]
    return StateDoc(
        database=database,
        read_s_ago=read_s_ago,
        fault=None,
        version=readings.version,
        checksum=checksum_text(readings.checksum),
        enabled=readings.enabled,
        wanted_version=wanted_version,
        rejected=readings.rejected,
        rejection=readings.rejection or None,
        health=readings.health.value,
        cpus=readings.cpus_milli / 1000,
        workers=readings.workers,
        seats_total=len(readings.seats),
        seats_behind=len(behind),
        seats=[SeatDoc(seat.pid, seat.version) for seat in readings.seats[:MAX_SEATS]],
        budgets=[
            BudgetCountsDoc(name, counts_doc(counts)) for name, counts in readings.budgets.items()
        ],
        buckets=[bucket_doc(bucket) for bucket in buckets[:MAX_ALL_BUCKETS]],
        buckets_total=len(buckets),
        patterns=[] if known is None else _pattern_docs(patterns[:MAX_PATTERNS], known),
        patterns_total=len(patterns),
    )


def _pattern_docs(shown: Sequence[PatternReading], known: Known) -> list[PatternDoc]:
    return [
        PatternDoc(
            query_id=str(p.query_id),
            database=p.database,
            calls=p.calls,
            k=p.k,
            cpu_mean_ms=p.cpu_mean_ns / NS_PER_MS,
            cpu_p90_ms=p.cpu_p90_ns / NS_PER_MS,
            error=p.error,
            cpu_total_ms=p.cpu_total_ns / NS_PER_MS,
            wall_total_ms=p.wall_total_ns / NS_PER_MS,
            **also._asdict(),
        )
        for p, also in zip(shown, known(shown), strict=True)
    ]


def _unread(
    database: str, read_s_ago: float | None, fault: str, wanted_version: int | None
) -> StateDoc:
    return StateDoc(
        database=database,
        read_s_ago=read_s_ago,
        fault=fault,
        version=None,
        checksum=None,
        enabled=None,
        wanted_version=wanted_version,
        rejected=0,
        rejection=None,
        health=None,
        cpus=None,
        workers=None,
        seats_total=0,
        seats_behind=0,
        seats=(),
        budgets=(),
        buckets=(),
        buckets_total=0,
        patterns=(),
        patterns_total=0,
    )


def violations_doc(
    database: str,
    minutes: Sequence[BudgetMinute],
    span: tuple[str, str],
    *,
    whole: bool,
) -> ViolationsDoc:
    return ViolationsDoc(
        database=database,
        since=span[0],
        until=span[1],
        budgets=_sums(minutes),
        minutes=[
            ViolationDoc(iso(m.minute * 60), m.budget, m.what, m.limit, m.count)
            for m in minutes[-MAX_MINUTES:]
        ],
        whole=whole,
    )


def _sums(minutes: Iterable[BudgetMinute]) -> list[ViolationSumDoc]:
    by_budget: dict[str, dict[str, dict[str, int]]] = {}
    last: dict[str, int] = {}
    for m in minutes:
        of = by_budget.setdefault(m.budget, {"warned": {}, "blocked": {}, "delayed": {}})
        counts = of.setdefault(m.what, {})
        counts[m.limit] = counts.get(m.limit, 0) + m.count
        last[m.budget] = max(m.minute, last.get(m.budget, 0))
    docs = [
        ViolationSumDoc(
            name, of["warned"], of["blocked"], sum(of["delayed"].values()), iso(last[name] * 60)
        )
        for name, of in by_budget.items()
    ]
    return sorted(docs, key=lambda d: (-sum(d.blocked.values()), -d.delayed, d.budget))


# --- explaining ------------------------------------------------------------------------------

MAX_RULES_TOLD = 200
LIMIT_NAMES = {0: "", 1: "concurrency", 2: "burst", 3: "capacity"}
"""By number, as servers count them; `decided_by` of an answer."""
_FIRST = ("applies", "repeats", "hidden", "left out")


def statement_doc(
    found: Explanation,
    *,
    readable: bool,
    estimated: bool,
    tags: Mapping[str, str],
    fingerprint: str,
    notes: Sequence[str],
) -> StatementExplainDoc:
    """`readable`: the server's counters are known; else only rules can be explained."""
    answer, known = found.answer, readable or not found.budgets
    decided = found.budgets[answer.match] if answer.decided_by and known else None
    retry_ms = answer.retry_ns / NS_PER_MS if 0 < answer.retry_ns < 2**63 else None
    rules = sorted(found.rules, key=lambda one: one.outcome.value not in _FIRST)
    verdict = answer.verdict.name.lower() if known else "unknown"
    if verdict in ("run", "warn") and not estimated and any(map(_by_cost, found.budgets)):
        verdict = "depends"
    return StatementExplainDoc(
        verdict=verdict,
        decided_by=decided.name if decided else None,
        limit=LIMIT_NAMES[answer.decided_by] if decided else None,
        retry_after_ms=retry_ms if decided else None,
        estimate_ms=answer.estimate_ns / NS_PER_MS if estimated else None,
        estimate_p90_ms=answer.p90_ns / NS_PER_MS if estimated else None,
        tags=tags,
        fingerprint=fingerprint,
        budgets=[_applies_doc(state, known=known) for state in found.budgets],
        rules=[
            RuleFindingDoc(one.budget.name, one.place, str(one.rule), one.outcome.value, one.why)
            for one in rules[:MAX_RULES_TOLD]
        ],
        rules_total=len(rules),
        needed=list(found.changes) if known else [],
        notes=notes,
    )


def _by_cost(state: BudgetState) -> bool:
    """Whether what it costs decides."""
    limits = (state.budget.burst_mpcts, state.budget.capacity_mpcts)
    return state.budget.mode is not Mode.OFF and any(limit is not None for limit in limits)


def _applies_doc(state: BudgetState, *, known: bool) -> AppliesDoc:
    budget, label = state.budget, state.label
    bucket = BucketReading(
        budget.name,
        label,
        state.debt_ns,
        state.capacity_ns,
        state.fill,
        state.running,
        state.max_workers,
    )
    return AppliesDoc(
        budget=budget.name,
        label=label,
        mode=budget.mode.value,
        fails=LIMIT_NAMES[state.limit] if known else "",
        bucket=bucket_doc(bucket) if known else None,
    )
