"""The policy, top to bottom.   Checker.check → decide → the edge's own dialect

Pure and total: it never raises, and the same arguments give the same Decision. `roll` is
the check's only dice throw, uniform in [0, 1), however many metrics and rules there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headgate.base.names import ANONYMOUS, MetricRef, Scope
from headgate.check.health import Health, MetricStatus, Selection, not_rolled_up
from headgate.check.model import PASSING, Activity, Check, Decision, Finding, State, Verdict
from headgate.metrics.model import AbsencePolicy, Comparison
from headgate.metrics.samples import Cause, Instant
from headgate.rules.matching import NO_LIMITS, UNRULED, Applied, DiceOrder, Rule, RuleBook

MIN_RETRY_S = 0.05
DENIED_RETRY_S = 1.0
MAX_RETRY_S = 60.0

# Not configured, or without a first value: the caller (or the clock) has to change something first.
_UNKNOWN = (Cause.NEVER_READ, Cause.WARMING_UP, Cause.UNKNOWN)
NOT_COLLECTED = (*_UNKNOWN, Cause.HIBERNATING)
"""Nothing is known of the metric, neither good nor bad."""


# Bound once: looking up a member of an enum is a call, and a check would make a dozen of them.
_OK, _WRONG_AGENT = Verdict.OK, Verdict.WRONG_AGENT
_BREACHED, _HEALTHY, _UNAVAILABLE = State.BREACHED, State.HEALTHY, State.UNAVAILABLE
_BEFORE, _AFTER = DiceOrder.BEFORE, DiceOrder.AFTER
_ELSEWHERE = Cause.ELSEWHERE


def decide(
    check: Check,
    health: Health | None,
    rules: RuleBook,
    *,
    now: Instant,
    roll: float,
    anonymous_may_pass: bool = True,
    dice_waived: bool = False,
) -> Decision:
    """`dice_waived`: skip ratio rules, because this client has waited long enough."""
    if check.identity is ANONYMOUS and not anonymous_may_pass:
        return _reject(Verdict.ON_HOLD, check, now, health, roll, note=_ANONYMOUS_NOTE)
    if health is None:
        return _no_database(check, now, roll)
    applied = rules.applied(check.identity, check.database, now.wall_s)
    reject = applied.reject
    if reject is not None and (
        reject.rejects_all or (not dice_waived and _diced(reject, _BEFORE, roll))
    ):
        return _rejected_by(reject, applied, check, now, health, roll)
    gate = _gate if applied is UNRULED or applied.is_plain else _ruled_gate
    decision = gate(check, health, applied, now, roll)
    if reject is None or dice_waived or decision.verdict is not _OK:
        return decision
    if _diced(reject, _AFTER, roll):
        return _rejected_by(reject, applied, check, now, health, roll)
    return decision


def _diced(rule: Rule, order: DiceOrder, roll: float) -> bool:
    return rule.order is order and roll < rule.ratio


def _gate(check: Check, health: Health, applied: Applied, now: Instant, roll: float) -> Decision:
    """Decide by the metrics alone: all selected ones must be healthy."""
    if check.metrics:
        return _judged(check, health, applied, now, roll, _failing(check, health, now))
    chosen = health.default if check.scope is None else _chosen(check.scope, health)
    if chosen.all_pass and now.mono_s <= chosen.all_pass_until:
        return Decision(_OK, check, now, health, (), applied.reject, applied)
    if not chosen.standings:
        return _reject_unjudged(check, health, applied, now, roll)
    some = now.mono_s <= chosen.others_pass_until
    failing = _unfit(chosen.rejecting if some else chosen.standings, now)
    return _judged(check, health, applied, now, roll, failing)


def _judged(
    check: Check,
    health: Health,
    applied: Applied,
    now: Instant,
    roll: float,
    failing: tuple[Finding, ...],
    exempted: tuple[Finding, ...] = (),
) -> Decision:
    reject = applied.reject
    if not failing:
        return Decision(_OK, check, now, health, (), reject, applied, exempted)
    verdict, wait_s = _verdict_of(failing), _retry_after(failing, roll)
    decision = Decision(verdict, check, now, health, failing, reject, applied, exempted, wait_s)
    if verdict is not _WRONG_AGENT or health.shard is None:
        return decision
    return decision._replace(
        check_at=health.shard.check_at, check_at_database=health.shard.check_at_database
    )


def _ruled_gate(
    check: Check, health: Health, applied: Applied, now: Instant, roll: float
) -> Decision:
    """The same gate for a client that has metrics, thresholds or an exemption of its own."""
    check = _by_own_metrics(check, applied)
    if not check.metrics and not _chosen_or_default(check, health).standings:
        return _reject_unjudged(check, health, applied, now, roll)
    failing = _failing(check, health, now, applied.limits)
    exempted: tuple[Finding, ...] = ()
    if applied.exempt is not None and failing:
        failing, exempted = _exempted(applied.exempt, failing)
    return _judged(check, health, applied, now, roll, failing, exempted)


def _by_own_metrics(check: Check, applied: Applied) -> Check:
    """Select the metrics that a rule sets, for a check that names none."""
    if check.metrics or not applied.metrics:
        return check
    refs = tuple(MetricRef(name, check.scope) for name in applied.judged_by)
    # A metric that is gone from the settings must not turn a rule into a free pass.
    return check._replace(metrics=refs, ok_if_unknown=False)


def _exempted(
    rule: Rule, failing: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What still rejects the check, and what the exemption waives. Nothing is exempted above the
    ceiling or where the value is unknown; a check at the wrong agent is never exempted."""
    if any(_above_ceiling(f, rule) or ceiling_unknown(f, rule) for f in failing):
        return failing, ()
    exempted = tuple(f for f in failing if _waives(rule, f))
    left = tuple(f for f in failing if not _waives(rule, f))
    return left, tuple(f._replace(state=State.EXEMPTED) for f in exempted)


def _waives(rule: Rule, finding: Finding) -> bool:
    if finding.cause is Cause.ELSEWHERE:
        return False
    return not rule.metrics or finding.ref.metric in rule.metrics


def _above_ceiling(finding: Finding, rule: Rule) -> bool:
    value, threshold = finding.value, finding.threshold
    if finding.state is not State.BREACHED or value is None or threshold is None:
        return False
    return value > rule.ceiling * threshold


def ceiling_unknown(finding: Finding, rule: Rule) -> bool:
    """Whether the exemption would waive it, and its newest reading does not tell how high it is:
    the probe that fails may well fail because of what is let through."""
    if not _waives(rule, finding):
        return False
    return finding.state is not State.BREACHED or finding.unavailable_for_s is not None


# --- the same for other clients -------------------------------------------------------------------


class Steady(NamedTuple):
    """What `decide` makes of every check that differs from one in its client alone, for as long as
    the readings are these and the same rules apply. Only the wait is drawn for each."""

    health: Health
    applied: Applied
    verdict: Verdict
    until_s: float
    """Monotonic."""
    wait_s: float
    """The least one; 0 for an admission."""


def steady_of(decision: Decision, until_s: float) -> Steady | None:
    """None where the client, its dice, its budget or a reading without a value has a say in it."""
    check, health, applied = decision.check, decision.health, decision.applied
    if health is None or health.lacks_any or check.identity is ANONYMOUS or check.budget:
        return None
    if applied.reject is not None or applied.exempt is not None or applied.metrics:
        return None
    wait_s = 0.0
    if decision.verdict is not _OK:
        if not decision.failing or decision.verdict is _WRONG_AGENT:
            return None
        wait_s = _retry_after(decision.failing, 0.0)
    return Steady(health, applied, decision.verdict, until_s, wait_s)


def wrong_agent(
    check: Check, health: Health | None, check_at: str, *, now: Instant, roll: float
) -> Decision:
    """The answer of a passive standby: another agent answers for this host."""
    note = f"this agent is a standby; the active agent is at {check_at}. Send the check there"
    wait_s = _jittered(MIN_RETRY_S, roll)
    return Decision(
        Verdict.WRONG_AGENT, check, now, health,
        retry_after_s=wait_s, note=note, check_at=check_at, check_at_database=check.database,
    )  # fmt: skip


def closed(check: Check, health: Health | None, why: str, *, now: Instant, roll: float) -> Decision:
    """The answer of an agent that does not know what operators have set."""
    wait_s = _jittered(DENIED_RETRY_S / 2, roll)
    return Decision(Verdict.ON_HOLD, check, now, health, retry_after_s=wait_s, note=why)


_ANONYMOUS_NOTE = "the check has no client name; send one, such as app=etl:nightly"
_NO_METRICS_NOTE = "no metric is configured for this database, so its health is unknown"
_NO_SHARD = "this agent's database belongs to no shard; check with scope=host"


def _chosen(scope: Scope, health: Health) -> Selection:
    return health.host if scope is Scope.HOST else health.whole


def _chosen_or_default(check: Check, health: Health) -> Selection:
    return health.default if check.scope is None else _chosen(check.scope, health)


def _reject_unjudged(
    check: Check, health: Health, applied: Applied, now: Instant, roll: float
) -> Decision:
    no_shard = check.scope is Scope.SHARD and health.shard is None
    note = _NO_SHARD if no_shard else _NO_METRICS_NOTE
    rejected = _reject(Verdict.UNKNOWN_METRIC, check, now, health, roll, note=note)
    return rejected._replace(rule=applied.reject, applied=applied)


def asks_shard(check: Check, health: Health) -> bool:
    """Whether the answer depends on the shard, or would if this agent could answer for it."""
    if health.shard is None:
        return False
    return any(
        (target.ref if isinstance(target, MetricStatus) else target).scope is Scope.SHARD
        for target in _selected(check, health)
    )


def findings(decision: Decision) -> tuple[Finding, ...]:
    """Every metric that this check looked at, healthy ones included, with its result."""
    health, applied = decision.health, decision.applied
    if health is None:
        return ()
    check = _by_own_metrics(decision.check, applied)
    limits, exempted = applied.limits, {finding.ref: finding for finding in decision.exempted}
    found = (
        judge(
            target,
            decision.at,
            threshold=check.read_threshold,
            limit=limits.get(target.spec.name),
        )
        if isinstance(target, MetricStatus)
        else _not_here(target, health)
        for target in _selected(check, health)
    )
    return tuple(exempted.get(finding.ref, finding) for finding in found)


def finding_of(decision: Decision, metric: str) -> Finding | None:
    """One metric as this check looked at it; else as the database has it, in its own scope."""
    health = decision.health
    if health is None:
        return None
    check = _by_own_metrics(decision.check, decision.applied)
    anyhow = check._replace(metrics=(MetricRef(metric),))
    for target in (*_selected(check, health), *_selected(anyhow, health)):
        if isinstance(target, MetricStatus) and target.spec.name == metric:
            limit = decision.applied.limits.get(metric)
            return judge(target, decision.at, threshold=check.read_threshold, limit=limit)
    return None


def judge(
    standing: MetricStatus,
    now: Instant,
    *,
    threshold: float | None = None,
    limit: float | None = None,
) -> Finding:
    """One metric, now. `threshold` is the caller's own, instead of the configured one; `limit`
    is a rule's, beside the configured one: whichever is the stricter counts."""
    spec, sample = standing.spec, standing.sample
    allowed, breached = spec.threshold, standing.breached
    if threshold is not None:
        if _counts_members(standing):
            # Seconds against a count of members: no number could be right.
            unsupported = (Cause.UNSUPPORTED, _COUNTED)
            return Finding(standing.ref, _UNAVAILABLE, spec, None, None, None, *unsupported)
        allowed, breached = threshold, sample is not None and sample.value > threshold
    elif limit is not None and limit < allowed and not _counts_members(standing):
        allowed, breached = limit, breached or _over(standing, limit)
    mono_s = now.mono_s
    if sample is None or mono_s > standing.fresh_until:
        return _judge_unfresh(standing, now, allowed, breached)
    age_s = mono_s - sample.taken_at
    return Finding(
        standing.ref, _BREACHED if breached else _HEALTHY, spec, sample.value,
        age_s if age_s > 0.0 else 0.0, allowed, sample.cause, sample.detail,
    )  # fmt: skip


def _judge_unfresh(standing: MetricStatus, now: Instant, allowed: float, breached: bool) -> Finding:
    """A metric whose newest reading has no value, or whose sample is too old."""
    spec, sample, absent = standing.spec, standing.sample, standing.absent
    value = sample.value if sample else None
    age_s = max(0.0, now.mono_s - sample.taken_at) if sample else None
    if now.mono_s > standing.valid_until:
        return Finding(
            standing.ref, _UNAVAILABLE, spec, value, age_s, allowed,
            Cause.STALE, _UNCONFIRMED, max(0.0, now.mono_s - standing.valid_until),
        )  # fmt: skip
    since = standing.absent_since
    if since is None and sample is not None:
        since = sample.taken_at
    return Finding(
        ref=standing.ref,
        state=_absent_state(standing, now, breached),
        spec=spec,
        value=value,
        age_s=age_s,
        threshold=allowed,
        cause=absent.cause if absent else Cause.STALE,
        detail=absent.detail
        if absent
        else f"no probe has finished within the age limit of {spec.max_age_s:g} s",
        unavailable_for_s=None if since is None else max(0.0, now.mono_s - since),
    )


IDLE_CAUSES = (Cause.HIBERNATING, Cause.HEARTBEAT_IDLE)
"""The agent does not measure or write it, because nobody checks."""


def is_idle(finding: Finding, activity: Activity) -> bool:
    """Without a value, and only because nobody checks: no fault, the next check wakes it."""
    if finding.state is not _UNAVAILABLE:
        return False
    aged = finding.cause is Cause.STALE and activity is not Activity.AWAKE
    return aged or finding.cause in IDLE_CAUSES


def idles(standings: Sequence[MetricStatus], activity: Activity, now: Instant) -> bool:
    """Nobody checks the database, and nothing else is wrong with its metrics."""
    failing = _unfit(standings, now)
    if not failing:
        return bool(standings) and activity is not Activity.AWAKE
    return all(is_idle(finding, activity) for finding in failing)


def _counts_members(standing: MetricStatus) -> bool:
    return standing.ref.scope is Scope.SHARD and standing.spec.rollup.by not in PLAIN


def _over(standing: MetricStatus, limit: float) -> bool:
    """As the metric itself compares, so that a rule's limit means what a threshold means."""
    if standing.sample is None:
        return False
    value = standing.sample.value
    return value > limit or (value == limit and standing.spec.comparison is Comparison.AT_LEAST)


PLAIN = ("max", "min", "sum", "mean")
"""Rollups whose value can be compared with a caller's threshold."""
_COUNTED = "its rollup counts members, so a threshold in the check does not apply to it"
_UNCONFIRMED = "the server has not confirmed in time that it is the primary"


def _absent_state(standing: MetricStatus, now: Instant, breached: bool) -> State:
    policy = standing.spec.absence
    if policy is AbsencePolicy.IGNORE:
        return State.IGNORED
    if policy is AbsencePolicy.HOLD and now.mono_s <= standing.passes_until:
        return State.BREACHED if breached else State.LAST_VALUE
    if standing.spec.reject_for_s and _rejected_for_long(standing, now):
        return State.IGNORED
    return State.UNAVAILABLE


def _rejected_for_long(standing: MetricStatus, now: Instant) -> bool:
    """Only probes that fail count: nothing is known of what nobody has tried to measure."""
    absent, since = standing.absent, standing.absent_since
    if absent is None or since is None or absent.cause in (*NOT_COLLECTED, *IDLE_CAUSES):
        return False
    return now.mono_s - since > standing.spec.reject_for_s


def unmeasured(check: Check, health: Health, now: Instant) -> Iterator[MetricStatus]:
    """The metrics without a value that did not keep this check from being admitted."""
    for standing in _selected(check, health):
        if isinstance(standing, MetricRef) or standing.absent is None:
            continue
        if judge(standing, now).state is State.IGNORED:
            yield standing


def _unfit(standings: Iterable[MetricStatus], now: Instant) -> tuple[Finding, ...]:
    """The metrics that reject the check. Most pass by `passes_until` alone, without `judge`."""
    mono_s, failing = now.mono_s, []
    for standing in standings:
        if standing.passes and mono_s <= standing.passes_until:
            continue
        finding = judge(standing, now)
        if finding.state is _BREACHED or finding.state not in PASSING:
            failing.append(finding)
    return tuple(failing)


def _failing(
    check: Check, health: Health, now: Instant, limits: Mapping[str, float] = NO_LIMITS
) -> tuple[Finding, ...]:
    """The same where a check, or a rule, says by which metrics and thresholds."""
    threshold, mono_s, failing = check.read_threshold, now.mono_s, []
    for target in _selected(check, health):
        if isinstance(target, MetricRef):
            if not check.ok_if_unknown:
                failing.append(_not_here(target, health))
            continue
        limit = limits.get(target.spec.name) if limits else None
        own = threshold is not None or limit is not None
        if not own and target.passes and mono_s <= target.passes_until:
            continue
        finding = judge(target, now, threshold=threshold, limit=limit)
        if finding.state not in PASSING:
            failing.append(finding)
    return tuple(failing)


def _selected(check: Check, health: Health) -> Sequence[MetricStatus | MetricRef]:
    """The standings a check asks for; what is not here stays a name."""
    if not check.metrics:
        return _chosen_or_default(check, health).standings
    shard = health.shard
    if shard is None:
        standings = health.standings
        return [
            standings.get(ref.metric, ref) if ref.scope is not Scope.SHARD else ref
            for ref in check.metrics
        ]
    return [_named(ref, health.standings, shard.standings) for ref in check.metrics]


def _named(
    ref: MetricRef, host: Mapping[str, MetricStatus], shard: Mapping[str, MetricStatus]
) -> MetricStatus | MetricRef:
    here = host.get(ref.metric)
    scope = ref.scope or (here.spec.scope if here else Scope.HOST)
    if scope is Scope.HOST or here is None:
        return here or ref
    return shard.get(ref.metric) or not_rolled_up(here.spec)


def _not_here(ref: MetricRef, health: Health) -> Finding:
    if ref.scope is Scope.SHARD and health.shard is None:
        detail = _NO_SHARD
    else:
        known = ", ".join(sorted(health.standings)) or "none"
        detail = f"no such metric on {health.database}; configured: {known}"
    return Finding(ref, State.UNAVAILABLE, cause=Cause.UNKNOWN, detail=detail)


def _verdict_of(failing: tuple[Finding, ...]) -> Verdict:
    """The most useful cause first: the wrong agent, then a breach, then a metric without a value,
    then an unknown metric."""
    breached = broken = False
    for finding in failing:
        cause = finding.cause
        if cause is _ELSEWHERE:
            return _WRONG_AGENT
        if finding.state is _BREACHED:
            breached = True
        elif cause not in _UNKNOWN:
            broken = True
    if breached:
        return Verdict.THRESHOLD_EXCEEDED
    return Verdict.METRIC_UNAVAILABLE if broken else Verdict.UNKNOWN_METRIC


def _no_database(check: Check, now: Instant, roll: float) -> Decision:
    if check.ok_if_unknown:
        return Decision(Verdict.OK, check, now, None)
    note = f"no database {check.database!r} is configured on this agent"
    return _reject(Verdict.UNKNOWN_METRIC, check, now, None, roll, note=note)


def _rejected_by(
    rule: Rule, applied: Applied, check: Check, now: Instant, health: Health, roll: float
) -> Decision:
    held = rule.rejects_all
    verdict = Verdict.ON_HOLD if held else Verdict.REJECTED_BY_RATIO
    # Given that roll < ratio, roll / ratio is again uniform: one throw serves both.
    jitter = roll if held else roll / rule.ratio
    wait_s = min(applied.until - now.wall_s, MAX_RETRY_S) if held else DENIED_RETRY_S / 2
    wait_s = _jittered(wait_s, jitter)
    return Decision(verdict, check, now, health, (), rule, applied, (), wait_s)


def _reject(
    verdict: Verdict, check: Check, now: Instant, health: Health | None, roll: float, *, note: str
) -> Decision:
    wait_s = _jittered(DENIED_RETRY_S, roll)
    return Decision(verdict, check, now, health, retry_after_s=wait_s, note=note)


def _retry_after(failing: tuple[Finding, ...], roll: float) -> float:
    """When the slowest of the failing metrics will have been read again."""
    longest_s = 0.0
    for finding in failing:
        spec = finding.spec
        if spec is not None and spec.interval_s > longest_s:
            longest_s = spec.interval_s
    return _jittered(longest_s or DENIED_RETRY_S, roll)


def _jittered(base_s: float, roll: float) -> float:
    """One to two times the base, so that rejected clients do not all retry at the same moment.
    A long base is cut first, so that they do not all retry after exactly the maximum."""
    wait_s = base_s if base_s < MAX_RETRY_S / 2 else MAX_RETRY_S / 2
    return (wait_s if wait_s > MIN_RETRY_S else MIN_RETRY_S) * (1 + roll)


# --- utilization ---------------------------------------------------------------------------------

# How near to its threshold what a check looks at is: 1 is at it. The same for all who tell it.

MAX_UTILIZATION = 1e9
"""JSON knows no infinity."""


def utilization(decision: Decision) -> float:
    check, health = decision.check, decision.health
    if health is None:
        return 0.0
    if not check.metrics:
        worst = _chosen_or_default(check, health).worst
        return _share(worst.utilization) if worst else 0.0
    shares = [
        f.value / f.threshold for f in findings(decision) if f.value is not None and f.threshold
    ]
    return _share(max(shares, default=0.0))


def _share(share: float) -> float:
    return round(min(share, MAX_UTILIZATION), 4)
