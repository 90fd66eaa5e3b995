"""The policy, top to bottom.   Checker.check → decide → the edge's own dialect

Pure and total: it never raises, and the same arguments give the same Decision. `roll` is
the check's only dice throw, uniform in [0, 1), however many metrics and rules there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.decision import PASSING, Check, Decision, Finding, State, Verdict
from headgate.core.health import Health, Selection, Standing, not_rolled_up
from headgate.core.metrics import AbsencePolicy, MetricSpec
from headgate.core.names import ANONYMOUS, MetricRef, Scope
from headgate.core.rules import NO_LIMITS, Applied, Order, Rule, RuleBook
from headgate.core.samples import Cause, Instant

MIN_RETRY_S = 0.05
DENIED_RETRY_S = 1.0
MAX_RETRY_S = 60.0

# Collected never, or not at all: the caller (or the clock) has to change something first.
_UNKNOWN = (Cause.NEVER_READ, Cause.WARMING_UP, Cause.UNKNOWN, Cause.HIBERNATING)


def decide(
    check: Check,
    health: Health | None,
    rules: RuleBook,
    *,
    now: Instant,
    roll: float,
    anonymous_may_pass: bool = True,
) -> Decision:
    if check.identity is ANONYMOUS and not anonymous_may_pass:
        return _refuse(Verdict.APP_DENIED, check, now, health, roll, note=_ANONYMOUS_NOTE)
    if health is None:
        return _no_database(check, now, roll)
    applied = rules.applied(check.identity, check.database, now.wall_s)
    refuse = applied.refuse
    if refuse is None and applied.is_plain:
        return _gate(check, health, now, roll)
    if refuse is not None and (refuse.refuses_all or _diced(refuse, Order.BEFORE, roll)):
        return _refused_by(refuse, applied, check, now, health, roll)
    if applied.is_plain:
        decision = _gate(check, health, now, roll)
    else:
        decision = _ruled_gate(check, health, applied, now, roll)
    decision = decision._replace(rule=refuse, applied=applied)
    if refuse is not None and decision.admitted and _diced(refuse, Order.AFTER, roll):
        return _refused_by(refuse, applied, check, now, health, roll)
    return decision


def _diced(rule: Rule, order: Order, roll: float) -> bool:
    return rule.order is order and roll < rule.ratio


def _gate(check: Check, health: Health, now: Instant, roll: float) -> Decision:
    """By the metrics alone: all that are selected must be healthy (R2)."""
    if not check.metrics:
        chosen = health.default if check.scope is None else _chosen(check.scope, health)
        if chosen.all_pass and now.mono_s <= chosen.all_pass_until:
            return Decision(Verdict.OK, check, now, health)
        if not chosen.standings:
            note = _nothing_to_judge_by(check, health)
            return _refuse(Verdict.UNKNOWN_METRIC, check, now, health, roll, note=note)
    return _judged(check, health, now, roll, _failing(check, health, now))


def _judged(
    check: Check,
    health: Health,
    now: Instant,
    roll: float,
    failing: tuple[Finding, ...],
    waived: tuple[Finding, ...] = (),
) -> Decision:
    if not failing:
        return Decision(Verdict.OK, check, now, health, waived=waived)
    verdict, wait_s = _verdict_of(failing), _retry_after(failing, roll)
    decision = Decision(verdict, check, now, health, failing, retry_after_s=wait_s, waived=waived)
    if verdict is not Verdict.MISDIRECTED or health.shard is None:
        return decision
    return decision._replace(ask=health.shard.ask, ask_database=health.shard.ask_database)


def _ruled_gate(
    check: Check, health: Health, applied: Applied, now: Instant, roll: float
) -> Decision:
    """The same gate for a client that has metrics, thresholds or an exemption of its own."""
    if applied.metrics is not None and not check.metrics:
        refs = tuple(MetricRef(name, check.scope) for name in applied.metrics.metrics)
        # A metric that is gone from the settings must not turn a rule into a free pass.
        check = check._replace(metrics=refs, ok_if_unknown=False)
    if not check.metrics and not _chosen_or_default(check, health).standings:
        note = _nothing_to_judge_by(check, health)
        return _refuse(Verdict.UNKNOWN_METRIC, check, now, health, roll, note=note)
    limits = applied.thresholds.thresholds if applied.thresholds else {}
    failing = _failing(check, health, now, limits)
    waived: tuple[Finding, ...] = ()
    if applied.exempt is not None and failing:
        failing, waived = _exempted(applied.exempt, failing)
    return _judged(check, health, now, roll, failing, waived)


def _exempted(
    rule: Rule, failing: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What still stands in the way, and what is waived. Above the ceiling nothing is (R79);
    being asked in the wrong place cannot be waived."""
    if any(_above_ceiling(finding, rule) for finding in failing):
        return failing, ()
    waived = tuple(f for f in failing if _waives(rule, f))
    left = tuple(f for f in failing if not _waives(rule, f))
    return left, tuple(f._replace(state=State.WAIVED) for f in waived)


def _waives(rule: Rule, finding: Finding) -> bool:
    if finding.cause is Cause.ELSEWHERE:
        return False
    return not rule.metrics or finding.ref.metric in rule.metrics


def _above_ceiling(finding: Finding, rule: Rule) -> bool:
    value, threshold = finding.value, finding.threshold
    if finding.state is not State.BREACHED or value is None or threshold is None:
        return False
    return value > rule.ceiling * threshold


def misdirected(
    check: Check, health: Health | None, ask: str, *, now: Instant, roll: float
) -> Decision:
    """The answer of an agent that stands by: another one answers for this host."""
    note = f"this agent stands by for the one at {ask}, which answers; ask there"
    wait_s = _jittered(MIN_RETRY_S, roll)
    return Decision(
        Verdict.MISDIRECTED, check, now, health,
        retry_after_s=wait_s, note=note, ask=ask, ask_database=check.database,
    )  # fmt: skip


_ANONYMOUS_NOTE = "the check carries no client name; send one, such as app=etl:nightly"
_NO_METRICS_NOTE = "no metric is configured on this database, so nothing shows that it is healthy"
_NO_SHARD = "this database belongs to no shard here; ask for host scope"


def _chosen(scope: Scope, health: Health) -> Selection:
    return health.host if scope is Scope.HOST else health.whole


def _chosen_or_default(check: Check, health: Health) -> Selection:
    return health.default if check.scope is None else _chosen(check.scope, health)


def _nothing_to_judge_by(check: Check, health: Health) -> str:
    if check.scope is Scope.SHARD and health.shard is None:
        return _NO_SHARD
    return _NO_METRICS_NOTE


def asks_shard(check: Check, health: Health) -> bool:
    """Whether the answer rests on the shard, or would if this agent could speak for it."""
    if health.shard is None:
        return False
    return any(
        (target.ref if isinstance(target, Standing) else target).scope is Scope.SHARD
        for target in _selected(check, health)
    )


def findings(decision: Decision) -> tuple[Finding, ...]:
    """Every metric this check looked at, healthy ones included."""
    check, health = decision.check, decision.health
    if health is None:
        return ()
    return tuple(
        judge(target, decision.at, threshold=check.read_threshold)
        if isinstance(target, Standing)
        else _not_here(target, health)
        for target in _selected(check, health)
    )


def judge(standing: Standing, now: Instant, *, threshold: float | None = None) -> Finding:
    """One metric, now. With `threshold`, the caller's own instead of the configured one."""
    spec, sample, absent = standing.spec, standing.sample, standing.absent
    if threshold is not None and standing.ref.scope is Scope.SHARD and spec.rollup.by not in PLAIN:
        # Seconds against a count of members: no number could be right.
        return Finding(standing.ref, State.ABSENT, spec, cause=Cause.UNSUPPORTED, detail=_COUNTED)
    limit = spec.threshold if threshold is None else threshold
    breached = standing.breached if threshold is None else _breaches(standing, threshold)
    age_s = max(0.0, now.mono_s - sample.taken_at) if sample is not None else None
    if now.mono_s > standing.valid_until:
        return Finding(
            standing.ref, State.ABSENT, spec, sample.value if sample else None, age_s, limit,
            Cause.STALE, _UNCONFIRMED, max(0.0, now.mono_s - standing.valid_until),
        )  # fmt: skip
    if sample is not None and absent is None and now.mono_s <= sample.taken_at + spec.max_age_s:
        state = State.BREACHED if breached else State.HEALTHY
        return Finding(
            standing.ref, state, spec, sample.value, age_s, limit, sample.cause, sample.detail
        )
    return Finding(
        ref=standing.ref,
        state=_absent_state(standing, now, breached),
        spec=spec,
        value=sample.value if sample else None,
        age_s=age_s,
        threshold=limit,
        cause=absent.cause if absent else Cause.STALE,
        detail=absent.detail if absent else _stale_detail(spec),
        absent_for_s=_absent_for(standing, now),
    )


PLAIN = ("max", "min", "sum", "mean")
"""Roll-ups whose value can be compared with a caller's threshold."""
_COUNTED = "its roll-up judges members, so a threshold of the caller's own says nothing of it"
_UNCONFIRMED = "that this agent's server is the primary has not been confirmed in time"


def _absent_state(standing: Standing, now: Instant, breached: bool) -> State:
    policy = standing.spec.absence
    if policy is AbsencePolicy.IGNORE:
        return State.IGNORED
    if policy is AbsencePolicy.HOLD and now.mono_s <= standing.passes_until:
        return State.BREACHED if breached else State.HELD
    return State.ABSENT


def _stale_detail(spec: MetricSpec) -> str:
    return f"no probe has finished within the age limit of {spec.max_age_s:g} s"


def _breaches(standing: Standing, threshold: float) -> bool:
    return standing.sample is not None and standing.sample.value > threshold


def _absent_for(standing: Standing, now: Instant) -> float | None:
    since = standing.absent_since
    if since is None and standing.sample is not None:
        since = standing.sample.taken_at
    return max(0.0, now.mono_s - since) if since is not None else None


def _failing(
    check: Check, health: Health, now: Instant, limits: Mapping[str, float] = NO_LIMITS
) -> tuple[Finding, ...]:
    """What stands in the way. Most metrics pass by their standing alone, unjudged."""
    read_threshold, failing = check.read_threshold, []
    for target in _selected(check, health):
        if isinstance(target, MetricRef):
            if not check.ok_if_unknown:
                failing.append(_not_here(target, health))
            continue
        limit = read_threshold
        if limits:
            limit = _stricter(limit, limits.get(target.spec.name), target.spec.threshold)
        if limit is None and target.passes and now.mono_s <= target.passes_until:
            continue
        finding = judge(target, now, threshold=limit)
        if finding.state not in PASSING:
            failing.append(finding)
    return tuple(failing)


def _stricter(read_threshold: float | None, limit: float | None, threshold: float) -> float | None:
    """The caller's own threshold, or a rule's; a rule can only make it stricter (R71)."""
    if read_threshold is not None or limit is None or limit >= threshold:
        return read_threshold
    return limit


def _selected(check: Check, health: Health) -> Sequence[Standing | MetricRef]:
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
    ref: MetricRef, host: Mapping[str, Standing], shard: Mapping[str, Standing]
) -> Standing | MetricRef:
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
    return Finding(ref, State.ABSENT, cause=Cause.UNKNOWN, detail=detail)


def _verdict_of(failing: tuple[Finding, ...]) -> Verdict:
    """Asked in the wrong place is said first; then a known breach says most; then a metric
    that is broken; then one that is not there."""
    breached = broken = False
    for finding in failing:
        if finding.cause is Cause.ELSEWHERE:
            return Verdict.MISDIRECTED
        if finding.state is State.BREACHED:
            breached = True
        elif finding.cause not in _UNKNOWN:
            broken = True
    if breached:
        return Verdict.THRESHOLD_EXCEEDED
    return Verdict.INTERNAL_ERROR if broken else Verdict.UNKNOWN_METRIC


def _no_database(check: Check, now: Instant, roll: float) -> Decision:
    if check.ok_if_unknown:
        return Decision(Verdict.OK, check, now, None)
    note = f"no database {check.database!r} is configured on this agent"
    return _refuse(Verdict.UNKNOWN_METRIC, check, now, None, roll, note=note)


def _refused_by(
    rule: Rule, applied: Applied, check: Check, now: Instant, health: Health, roll: float
) -> Decision:
    held = rule.refuses_all
    verdict = Verdict.APP_DENIED if held else Verdict.REJECT_BY_RATIO
    # Given that roll < ratio, roll / ratio is again uniform: one throw serves both.
    jitter = roll if held else roll / rule.ratio
    wait_s = min(applied.until - now.wall_s, MAX_RETRY_S) if held else DENIED_RETRY_S / 2
    wait_s = _jittered(wait_s, jitter)
    return Decision(verdict, check, now, health, (), rule, applied, retry_after_s=wait_s)


def _refuse(
    verdict: Verdict, check: Check, now: Instant, health: Health | None, roll: float, *, note: str
) -> Decision:
    wait_s = _jittered(DENIED_RETRY_S, roll)
    return Decision(verdict, check, now, health, retry_after_s=wait_s, note=note)


def _retry_after(failing: tuple[Finding, ...], roll: float) -> float:
    """When the slowest of the failing metrics will have been read again."""
    longest_s = max([f.spec.interval_s for f in failing if f.spec], default=DENIED_RETRY_S)
    return _jittered(longest_s, roll)


def _jittered(base_s: float, roll: float) -> float:
    """Between one and two times the base, so that a refused herd does not come back as one."""
    return min(MAX_RETRY_S, max(MIN_RETRY_S, base_s) * (1 + roll))
