"""The policy, branch by branch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import Scope
from headgate.check.decide import asks_shard, decide, findings, idles, judge, wrong_agent
from headgate.check.health import (
    FOREVER,
    Health,
    MetricStatus,
    ShardHealth,
    Window,
    health_of,
    stand,
    steady_until,
)
from headgate.check.model import PASSING, Activity, Decision, State, Verdict
from headgate.metrics.model import AbsencePolicy, MetricSpec
from headgate.metrics.samples import Absent, Cause, Reading
from headgate.rules.matching import NO_RULES, Rule, RuleBook, book_of
from tests.builders import NOW, absent, at, check, health, metric, sample, window

LAG = metric("lag")
THREADS = metric("threads_running")
POOL = metric("pool_usage")
COMMIT = metric("commit_delay")


def ask(
    known: Health | None,
    *metrics: str,
    rules: RuleBook = NO_RULES,
    after_s: float = 0.0,
    roll: float = 0.5,
    app: str = "etl:nightly",
    anonymous_may_pass: bool = True,
    **more: Any,
) -> Decision:
    return decide(
        check(app, *metrics, **more),
        known,
        rules,
        now=at(after_s),
        roll=roll,
        anonymous_may_pass=anonymous_may_pass,
    )


def test_admits_only_when_every_metric_is_healthy() -> None:
    """R2"""
    assert ask(health((LAG, 1.0), (THREADS, 3))).verdict is Verdict.OK
    assert ask(health((LAG, 1.0), (THREADS, 101))).verdict is Verdict.THRESHOLD_EXCEEDED


AWAKE, IDLE, HIBERNATING = Activity.AWAKE, Activity.IDLE, Activity.HIBERNATING
OLD = sample(1.0, age_s=LAG.max_age_s + 9)


@pytest.mark.parametrize(
    ("activity", "readings", "idle"),
    [
        (AWAKE, [(LAG, 1.0)], False),
        (AWAKE, [(LAG, OLD)], False),
        (IDLE, [(LAG, 1.0)], True),
        (IDLE, [(LAG, OLD), (THREADS, 3)], True),
        (IDLE, [(LAG, OLD), (THREADS, 101)], False),
        (IDLE, [(LAG, OLD), (THREADS, absent(Cause.FAILED))], False),
        (IDLE, [(LAG, absent(Cause.HEARTBEAT_IDLE))], True),
        (HIBERNATING, [(LAG, absent(Cause.HIBERNATING))], True),
        (HIBERNATING, [(LAG, absent(Cause.NO_PRIMARY))], False),
        (AWAKE, [(LAG, absent(Cause.HIBERNATING))], True),
        (IDLE, [], False),
    ],
)
def test_a_database_is_idle_where_nobody_checks_and_nothing_else_is_wrong(
    activity: Activity, readings: list[Any], idle: bool
) -> None:
    assert idles(health(*readings).own.standings, activity, NOW) is idle


def test_rejection_lists_every_breach_not_only_the_first() -> None:
    """R10: value, threshold, scope and age of each."""
    decision = ask(health((LAG, 7.0), (THREADS, 500), (POOL, 0.1)))
    assert [f.ref.metric for f in decision.failing] == ["lag", "threads_running"]
    lag = decision.failing[0]
    assert (lag.value, lag.threshold, lag.age_s, lag.state) == (7.0, 5.0, 0.0, State.BREACHED)


@pytest.mark.parametrize(
    ("spec", "value", "verdict"),
    [
        (LAG, 5.0, Verdict.OK),
        (LAG, 5.0001, Verdict.THRESHOLD_EXCEEDED),
        (POOL, 0.999, Verdict.OK),
        (POOL, 1.0, Verdict.THRESHOLD_EXCEEDED),
    ],
)
def test_the_boundary_is_explicit_per_metric(spec: object, value: float, verdict: Verdict) -> None:
    """R5: a full pool rejects; lag of exactly its threshold does not."""
    assert ask(health((spec, value))).verdict is verdict  # type: ignore[arg-type]


@pytest.mark.parametrize("cause", list(Cause))
def test_no_unavailable_metric_is_ever_healthy(cause: Cause) -> None:
    """R9, R151: whatever the cause, and although an earlier value was fine."""
    decision = ask(health((LAG, window(sample(0.0, age_s=1), absent(cause)))))
    assert decision.verdict in (
        Verdict.METRIC_UNAVAILABLE,
        Verdict.UNKNOWN_METRIC,
        Verdict.WRONG_AGENT,
    )
    assert (decision.verdict is Verdict.WRONG_AGENT) is (cause is Cause.ELSEWHERE)
    assert decision.failing[0].cause is cause
    assert not decision.admitted


LIMITED = metric("lag", reject_for_s=60.0)
GONE = window(sample(9.0, age_s=10), absent(Cause.FAILED))


@pytest.mark.parametrize("known", [GONE, window(sample(0.1, age_s=10), absent(Cause.TIMED_OUT))])
def test_a_frozen_metric_rejects_for_its_limit_and_then_opens_visibly(known: Window) -> None:
    """R54: whatever its last value was; by default it stays closed."""
    assert not ask(health((LAG, known)), after_s=1e6).admitted
    limited = health((LIMITED, known))
    closed = ask(limited, after_s=60.0)
    assert closed.verdict is Verdict.METRIC_UNAVAILABLE
    opened = ask(limited, after_s=60.1)
    assert opened.admitted
    [finding] = findings(opened)
    assert finding.state is State.IGNORED and finding.cause is not None
    held = metric("lag", absence="hold", hold_s=30.0, reject_for_s=60.0)
    assert ask(health((held, GONE)), after_s=10).verdict is Verdict.THRESHOLD_EXCEEDED
    assert not ask(health((held, GONE)), after_s=40).admitted
    assert ask(health((held, GONE)), after_s=61).admitted


def test_until_a_metric_turns_time_alone_decides_nothing_else() -> None:
    """What clients and the agent keep of a decision ends then."""
    held = metric("lag", absence="hold", hold_s=30.0, reject_for_s=60.0)
    known = health((held, window(sample(0.1, age_s=10), absent(Cause.FAILED))))
    after_s, verdicts = 0.0, []
    for _ in range(3):
        left_s = min(steady_until(known, NOW.mono_s + after_s) - NOW.mono_s, 1e6)
        verdicts.append(ask(known, after_s=after_s).verdict)
        assert ask(known, after_s=left_s - 0.01).verdict is verdicts[-1]
        after_s = left_s + 0.01
    assert verdicts == [Verdict.OK, Verdict.METRIC_UNAVAILABLE, Verdict.OK]


@pytest.mark.parametrize(
    "cause",
    [Cause.NEVER_READ, Cause.WARMING_UP, Cause.HIBERNATING, Cause.HEARTBEAT_IDLE, Cause.UNKNOWN],
)
def test_what_nobody_has_tried_to_measure_never_opens(cause: Cause) -> None:
    """R54: only probes that fail count."""
    assert not ask(health((LIMITED, window(absent(cause)))), after_s=1e6).admitted


def test_the_time_of_hibernation_is_no_time_of_failing() -> None:
    """R54"""
    slept = Window().push(Absent(Cause.HIBERNATING, "", 0.0), keep=5)
    assert slept.push(Absent(Cause.FAILED, "", 5000.0), keep=5).absent_since == 5000.0
    failed = Window().push(Absent(Cause.FAILED, "", 7.0), keep=5)
    assert failed.push(Absent(Cause.TIMED_OUT, "", 9.0), keep=5).absent_since == 7.0


def test_compounded_polling_staleness_a_value_past_its_age_limit_is_stale() -> None:
    """R18: a frozen value does not stay healthy, however good it was."""
    known = health((LAG, 0.2))
    assert ask(known, after_s=LAG.max_age_s).verdict is Verdict.OK
    late = ask(known, after_s=LAG.max_age_s + 0.001)
    assert late.verdict is Verdict.METRIC_UNAVAILABLE
    assert late.failing[0].cause is Cause.STALE
    assert late.failing[0].unavailable_for_s == pytest.approx(LAG.max_age_s + 0.001)


def test_age_is_counted_from_the_start_of_the_probe() -> None:
    known = health((metric("lag", max_age_s=3), sample(0.995, age_s=0.995)))
    finding = findings(ask(known))[0]
    assert finding.age_s == pytest.approx(0.995)


def test_never_collected_is_its_own_answer() -> None:
    decision = ask(health((LAG, None)))
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert decision.failing[0].cause is Cause.NEVER_READ


def test_a_breach_says_more_than_an_unavailable_metric() -> None:
    decision = ask(health((LAG, absent(Cause.TIMED_OUT)), (THREADS, 500)))
    assert decision.verdict is Verdict.THRESHOLD_EXCEEDED
    assert {f.ref.metric for f in decision.failing} == {"lag", "threads_running"}


def test_hold_replaces_a_missing_value_for_a_bounded_time() -> None:
    held = metric("lag", absence="hold", hold_s=10)
    known = health((held, window(sample(1.0, age_s=0), absent(Cause.TIMED_OUT))))
    decision = ask(known, after_s=9.9)
    assert decision.admitted
    assert findings(decision)[0].state is State.LAST_VALUE
    assert findings(decision)[0].cause is Cause.TIMED_OUT
    assert ask(known, after_s=10.1).verdict is Verdict.METRIC_UNAVAILABLE


def test_hold_keeps_a_breach_as_well() -> None:
    held = metric("lag", absence="hold", hold_s=10)
    known = health((held, window(sample(9.0), absent(Cause.TIMED_OUT))))
    assert ask(known, after_s=1).verdict is Verdict.THRESHOLD_EXCEEDED


def test_ignore_passes_an_unavailable_metric_but_not_a_breach() -> None:
    spec = metric("lag", absence="ignore")
    assert ask(health((spec, None))).admitted
    assert findings(ask(health((spec, None))))[0].state is State.IGNORED
    assert not ask(health((spec, 9.0))).admitted
    assert ask(health((spec, 9.0)), after_s=100).admitted


def test_noisy_metric_is_debounced_only_when_configured() -> None:
    """R11"""
    noisy = metric("lag", debounce="3 of 5")
    values = [sample(v) for v in (1, 9, 1, 9, 1)]
    assert ask(health((noisy, window(*values)))).admitted
    assert not ask(health((noisy, window(*values, sample(9))))).admitted
    assert not ask(health((LAG, window(sample(1), sample(9))))).admitted


def test_a_check_may_name_its_metrics() -> None:
    known = health((LAG, 9.0), (THREADS, 3))
    assert ask(known, "threads_running").admitted
    assert not ask(known, "self/lag").admitted


def test_an_unknown_metric_is_not_healthy_and_says_what_is_known() -> None:
    decision = ask(health((LAG, 1.0)), "queue_depth")
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert "configured: lag" in decision.failing[0].detail


def test_shard_scope_is_rejected_where_nothing_is_rolled_up() -> None:
    decision = ask(health((LAG, 1.0)), "shard/lag")
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert "belongs to no shard" in decision.failing[0].detail
    whole = ask(health((LAG, 1.0)), scope=Scope.SHARD)
    assert whole.verdict is Verdict.UNKNOWN_METRIC and "belongs to no shard" in whole.note


def test_an_unknown_database_is_rejected() -> None:
    decision = ask(None)
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert "'main'" in decision.note
    assert ask(None, ok_if_unknown=True).admitted


def test_a_database_without_metrics_is_not_healthy() -> None:
    assert ask(health()).verdict is Verdict.UNKNOWN_METRIC


def test_a_read_check_uses_the_callers_threshold_only() -> None:
    """R34"""
    known = health((LAG, 3.0), (THREADS, 500))
    assert ask(known, "lag", read_threshold=4.0).admitted
    assert not ask(known, "lag", read_threshold=2.5).admitted


def test_an_empty_identity_gets_a_named_answer() -> None:
    """R63"""
    known = health((LAG, 1.0))
    denied = ask(known, app="", anonymous_may_pass=False)
    assert denied.verdict is Verdict.ON_HOLD
    assert "no client name" in denied.note
    assert ask(known, app="").check.identity.text == "anonymous"


def test_a_client_cannot_name_itself_out_of_anonymity() -> None:
    assert not ask(health((LAG, 1.0)), app="anonymous", anonymous_may_pass=False).admitted


class TestBlindSpots:
    """R12: each metric alone misses what another sees."""

    def test_lag_misses_a_primary_commit_stall(self) -> None:
        known = health((LAG, 0.1), (COMMIT, 2.0))
        assert ask(known, "lag").admitted
        assert not ask(known).admitted

    def test_threads_running_misses_lag(self) -> None:
        known = health((THREADS, 2), (LAG, 60.0))
        assert ask(known, "threads_running").admitted
        assert not ask(known).admitted

    def test_pool_misses_slow_queries(self) -> None:
        known = health((POOL, 0.4), (THREADS, 300))
        assert ask(known, "pool_usage").admitted
        assert not ask(known).admitted


class TestRules:
    """The seat for rules: one roll, most specific first."""

    RULES = book_of(
        [Rule("r1", "nightly", 0.4, at(60).wall_s), Rule("r2", "all", 1.0, at(60).wall_s)]
    )

    def test_a_ratio_rejects_its_share_before_any_metric(self) -> None:
        known = health((LAG, 1.0))
        rejected = ask(known, rules=self.RULES, roll=0.39)
        assert rejected.verdict is Verdict.REJECTED_BY_RATIO
        assert rejected.rule is not None and rejected.rule.id == "r1"
        assert ask(known, rules=self.RULES, roll=0.40).admitted

    def test_a_ratio_never_admits_what_a_metric_rejects(self) -> None:
        assert not ask(health((LAG, 9.0)), rules=self.RULES, roll=0.99).admitted

    def test_everyone_else_falls_under_all(self) -> None:
        decision = ask(health((LAG, 1.0)), rules=self.RULES, app="other", roll=0.99)
        assert decision.verdict is Verdict.ON_HOLD

    def test_stale_policy_a_rule_ends_on_time(self) -> None:
        assert ask(
            health((metric("lag", max_age_s=100), 1.0)), rules=self.RULES, after_s=61
        ).admitted

    def test_of_two_tokens_the_stricter_rule_wins_in_any_order(self) -> None:
        rules = [Rule("a", "etl", 0.2, at(9).wall_s), Rule("b", "nightly", 0.8, at(9).wall_s)]
        for book in (book_of(rules), book_of(reversed(rules))):
            decision = ask(health((LAG, 1.0)), rules=book, roll=0.5)
            assert decision.rule is not None and decision.rule.id == "b"


@given(roll=st.floats(0, 1, exclude_max=True))
def test_release_thundering_herd_retry_after_is_jittered_and_bounded(roll: float) -> None:
    """R32, R143: between one and two probe intervals, by the check's own roll."""
    decision = ask(health((LAG, 9.0)), roll=roll)
    assert decision.retry_after_s == pytest.approx(LAG.interval_s * (1 + roll))


readings = st.one_of(
    st.builds(sample, st.floats(0, 20), age_s=st.floats(0, 10)),
    st.builds(absent, st.sampled_from(list(Cause))),
)
specs = st.builds(
    lambda name, absence, debounce: metric(name, absence=absence.value, debounce=debounce),
    st.sampled_from(["lag", "threads_running", "pool_usage"]),
    st.sampled_from(list(AbsencePolicy)),
    st.sampled_from(["1 of 1", "2 of 3"]),
)


@given(
    metrics=st.dictionaries(
        specs.map(lambda s: s.name), st.tuples(specs, st.lists(readings)), max_size=3
    ),
    after_s=st.floats(0, 60),
    roll=st.floats(0, 1, exclude_max=True),
    ratio=st.floats(0, 1),
    named=st.booleans(),
)
def test_decide_never_raises_and_admits_only_what_every_metric_admits(
    metrics: dict[str, tuple[object, list[Reading]]],
    after_s: float,
    roll: float,
    ratio: float,
    named: bool,
) -> None:
    """The quick way through decide and the slow way through judge agree, always (R71)."""
    pairs = [(spec, window(*rs) if rs else None) for spec, rs in metrics.values()]
    known = health(*pairs)  # type: ignore[arg-type]
    rules = book_of([Rule("r", "all", ratio, at(1e6).wall_s)])
    names = tuple(known.standings) if named else ()
    decision = ask(known, *names, rules=rules, after_s=after_s, roll=roll)
    passing = all(judge(s, at(after_s)).state in PASSING for s in known.standings.values())
    expected = bool(known.standings) and passing and not roll < ratio
    assert decision.admitted is expected
    assert decision.admitted or decision.retry_after_s is not None
    assert NOW.mono_s == 1000.0


# --- the shard's scope ------------------------------------------------------------------------

HOST, SHARD = Scope.HOST, Scope.SHARD


def standing(
    spec: MetricSpec, reading: Reading | float, *, until_s: float = FOREVER
) -> MetricStatus:
    """Of the shard, good for `until_s` from now on."""
    given_reading = sample(reading) if isinstance(reading, int | float) else reading
    return stand(spec, window(given_reading), scope=SHARD, until=NOW.mono_s + until_s)


def in_shard(
    host: Health, *standings: MetricStatus, ask_at: str = "", default: Any = None
) -> Health:
    shard = ShardHealth("s", {s.spec.name: s for s in standings}, "db-a", ask_at)
    return health_of("main", host.standings, default=default, shard=shard)


def without_speaker(host: Health, cause: Cause, *, ask_at: str = "") -> Health:
    """As shard/shard.py says it: whatever a metric's own policy on absence."""
    nobody = absent(cause, "nobody speaks")
    rejecting = [standing(metric(name, absence="reject"), nobody) for name in host.standings]
    return in_shard(host, *rejecting, ask_at=ask_at)


FOLLOWING = {"cause": Cause.ELSEWHERE, "ask_at": "https://db-a:8087"}


class TestShardScope:
    """R37, R41: whose metrics a check reads, and who may speak for them."""

    def test_each_metric_in_its_own_scope_by_default(self) -> None:
        """R41: lag of the shard, threads of the host."""
        known = in_shard(
            health((LAG, 9.0), (THREADS, 3)), standing(LAG, 1.0), standing(THREADS, 500)
        )
        assert ask(known).admitted
        assert [str(f.ref) for f in findings(ask(known))] == ["shard/lag", "host/threads_running"]

    def test_massive_primary_write_is_seen_by_the_shards_lag(self) -> None:
        """R38"""
        known = in_shard(health((LAG, 0.0)), standing(LAG, 9.0))
        for decision in (ask(known), ask(known, "lag"), ask(known, "shard/lag")):
            assert decision.verdict is Verdict.THRESHOLD_EXCEEDED
            assert decision.failing[0].ref.scope is SHARD

    @pytest.mark.parametrize("name", ["self/lag", "host/lag"])
    def test_massive_read_on_one_replica_checks_that_host_only(self, name: str) -> None:
        """R38"""
        ours_lags = in_shard(health((LAG, 9.0)), standing(LAG, 1.0))
        shard_lags = in_shard(health((LAG, 1.0)), standing(LAG, 9.0))
        assert not ask(ours_lags, name).admitted
        assert ask(shard_lags, name).admitted
        assert not asks_shard(check("a", name), shard_lags)

    def test_a_scope_for_the_whole_default_set(self) -> None:
        """R41"""
        host_lags = in_shard(
            health((LAG, 9.0), (THREADS, 3)), standing(LAG, 1.0), standing(THREADS, 3)
        )
        assert not ask(host_lags, scope=HOST).admitted
        assert ask(host_lags, scope=SHARD).admitted
        shard_busy = in_shard(
            health((LAG, 1.0), (THREADS, 3)), standing(LAG, 1.0), standing(THREADS, 500)
        )
        assert ask(shard_busy, scope=HOST).admitted and ask(shard_busy).admitted
        assert not ask(shard_busy, scope=SHARD).admitted

    def test_a_check_may_name_several_scopes(self) -> None:
        known = in_shard(health((LAG, 9.0), (THREADS, 3)), standing(LAG, 1.0))
        assert ask(known, "shard/lag", "self/threads_running").admitted
        decision = ask(known, "shard/lag", "self/lag", "threads_running")
        assert [str(f.ref) for f in decision.failing] == ["host/lag"]

    @pytest.mark.parametrize("names", [(), ("lag",), ("shard/lag",), ("self/lag", "shard/lag")])
    def test_a_check_at_a_replicas_agent_is_answered_with_the_right_agent(
        self, names: tuple[str, ...]
    ) -> None:
        """R37"""
        decision = ask(without_speaker(health((LAG, 1.0)), **FOLLOWING), *names)  # type: ignore[arg-type]
        assert decision.verdict is Verdict.WRONG_AGENT
        assert decision.check_at == "https://db-a:8087"
        assert decision.retry_after_s is not None

    def test_a_breach_here_does_not_hide_the_right_agent(self) -> None:
        known = without_speaker(health((LAG, 1.0), (THREADS, 500)), **FOLLOWING)  # type: ignore[arg-type]
        decision = ask(known)
        assert decision.verdict is Verdict.WRONG_AGENT
        assert {f.ref.metric for f in decision.failing} == {"lag", "threads_running"}

    def test_shard_primary_spof_host_scope_goes_on(self) -> None:
        """R51"""
        for cause in (Cause.NO_PRIMARY, Cause.SPLIT_BRAIN, Cause.ELSEWHERE, Cause.WARMING_UP):
            known = without_speaker(health((LAG, 1.0), (THREADS, 3)), cause)
            assert ask(known, "self/lag").admitted and ask(known, scope=HOST).admitted
            assert ask(known, "threads_running").admitted
            assert not ask(known).admitted and not ask(known, scope=SHARD).admitted

    @pytest.mark.parametrize("cause", [Cause.NO_PRIMARY, Cause.SPLIT_BRAIN, Cause.EMPTY_SHARD])
    def test_nobody_speaks_for_a_shard_without_one_primary(self, cause: Cause) -> None:
        """R43, R53"""
        decision = ask(without_speaker(health((LAG, 0.0)), cause))
        assert decision.verdict is Verdict.METRIC_UNAVAILABLE
        assert decision.failing[0].cause is cause and not decision.check_at

    def test_cold_start_on_stale_data_a_new_primary_is_warming_up(self) -> None:
        """R45"""
        decision = ask(without_speaker(health((LAG, 0.0)), Cause.WARMING_UP))
        assert decision.verdict is Verdict.UNKNOWN_METRIC
        assert decision.failing[0].cause is Cause.WARMING_UP

    @pytest.mark.parametrize("policy", ["ignore", "hold", "reject"])
    @pytest.mark.parametrize("cause", [Cause.NO_PRIMARY, Cause.ELSEWHERE, Cause.WARMING_UP])
    def test_no_policy_on_unavailable_metrics_admits_for_a_shard_without_a_speaker(
        self, policy: str, cause: Cause
    ) -> None:
        """R9: the host's own value may be ignored or held; the shard's has no speaker."""
        host = health((metric("lag", absence=policy), window(sample(0.1), absent(Cause.FAILED))))
        known = without_speaker(host, cause)
        for decision in (ask(known), ask(known, "lag"), ask(known, "shard/lag")):
            assert not decision.admitted
        assert not ask(known, scope=SHARD).admitted
        assert not ask(in_shard(host)).admitted, "not rolled up yet"

    def test_not_rolled_up_yet_is_warming_up_not_the_hosts_value(self) -> None:
        """R45"""
        known = in_shard(health((LAG, 0.0)))
        decision = ask(known)
        assert decision.verdict is Verdict.UNKNOWN_METRIC
        assert decision.failing[0].cause is Cause.WARMING_UP
        assert decision.failing[0].ref.scope is SHARD

    def test_a_metric_that_is_not_rolled_up_yet_is_not_left_out_of_the_whole(self) -> None:
        """R43: one that was added a moment ago; scope=shard asks for all of the default set."""
        known = in_shard(health((LAG, 0.0), (THREADS, 500)), standing(LAG, 0.0))
        assert not ask(known, scope=SHARD).admitted

    def test_a_metric_that_is_not_rolled_up_yet_is_not_an_unknown_one(self) -> None:
        """`ok_if_unknown` is for names that nobody configured."""
        known = in_shard(health((LAG, 0.0)))
        assert not ask(known, "lag", ok_if_unknown=True).admitted
        assert not ask(known, "shard/lag", ok_if_unknown=True).admitted
        assert asks_shard(check("a", "lag"), known)

    def test_a_role_that_is_not_confirmed_in_time_speaks_for_nobody(self) -> None:
        """R45, R53: however fresh the members' values are."""
        slow = metric("lag", max_age_s=60)
        known = in_shard(health((slow, 1.0)), standing(slow, 1.0, until_s=1.0))
        assert ask(known, after_s=1.0).admitted
        for names in ((), ("lag",), ("shard/lag",)):
            assert not ask(known, *names, after_s=1.001).admitted
        assert not ask(known, "shard/lag", after_s=1.001, read_threshold=3.0).admitted

    @pytest.mark.parametrize("policy", ["ignore", "hold"])
    def test_no_policy_on_unavailable_metrics_outlives_the_role(self, policy: str) -> None:
        """R53: a shard that was rolled up once, and whose agent has heard nothing since."""
        lenient = metric("lag", absence=policy)
        known = in_shard(health((lenient, 1.0)), standing(lenient, 1.0, until_s=1.0))
        assert not ask(known, after_s=3600).admitted
        empty = in_shard(
            health((lenient, 1.0)), standing(lenient, absent(Cause.EMPTY_SHARD), until_s=1.0)
        )
        assert not ask(empty, after_s=3600).admitted

    def test_a_read_check_of_the_shard_uses_the_shards_value(self) -> None:
        """R34"""
        known = in_shard(health((LAG, 0.0)), standing(LAG, 3.0))
        assert ask(known, "shard/lag", read_threshold=4.0).admitted
        assert not ask(known, "shard/lag", read_threshold=2.5).admitted
        assert ask(known, "self/lag", read_threshold=2.5).admitted

    def test_what_counts_as_a_check_of_the_shard(self) -> None:
        """R58, R60"""
        known = without_speaker(health((LAG, 1.0), (THREADS, 3)), **FOLLOWING)  # type: ignore[arg-type]
        asked = [(), ("lag",), ("shard/threads_running",), ("self/lag", "shard/lag")]
        assert all(asks_shard(check("a", *names), known) for names in asked)
        hosts = [("self/lag",), ("threads_running",), ("nonsense",)]
        assert not any(asks_shard(check("a", *names), known) for names in hosts)
        assert asks_shard(check("a", scope=SHARD), known)
        assert not asks_shard(check("a", scope=HOST), known)
        assert not asks_shard(check("a", "shard/lag"), health((LAG, 1.0)))

    def test_an_unknown_metric_of_the_shard_says_what_is_known(self) -> None:
        decision = ask(in_shard(health((LAG, 1.0)), standing(LAG, 1.0)), "shard/queue")
        assert decision.verdict is Verdict.UNKNOWN_METRIC
        assert "configured: lag" in decision.failing[0].detail


def test_a_standby_sends_everybody_to_the_active_agent() -> None:
    """R52"""
    known = health((LAG, 0.0))
    decision = wrong_agent(check(), known, "https://active:1", now=NOW, roll=0.5)
    assert decision.verdict is Verdict.WRONG_AGENT and not decision.admitted
    assert decision.check_at == "https://active:1" and "https://active:1" in decision.note
    assert decision.retry_after_s is not None and decision.retry_after_s > 0


CAUSES = st.sampled_from(list(Cause))
shard_readings = st.none() | st.floats(0, 20).map(sample) | st.builds(absent, CAUSES)


@given(
    lag=shard_readings,
    threads=shard_readings,
    host_lag=st.floats(0, 4),
    host_threads=st.floats(0, 90),
    names=st.sampled_from([(), ("lag",), ("shard/lag",), ("shard/threads_running", "lag")]),
    scope=st.sampled_from([None, SHARD]),
    policy=st.sampled_from(list(AbsencePolicy)),
    ok_if_unknown=st.booleans(),
)
def test_a_hosts_value_never_replaces_the_shards(
    lag: Reading | None,
    threads: Reading | None,
    host_lag: float,
    host_threads: float,
    names: tuple[str, ...],
    scope: Scope | None,
    policy: AbsencePolicy,
    ok_if_unknown: bool,
) -> None:
    """R37, R43: the host is healthy throughout; what is asked of the shard is the shard's."""
    lenient = metric("lag", absence=policy.value)
    rolled = [(lenient, lag), (THREADS, threads)]
    standings = [standing(_rejecting(spec, r), r) for spec, r in rolled if r is not None]
    known = in_shard(health((lenient, host_lag), (THREADS, host_threads)), *standings)
    decision = ask(known, *names, scope=scope, ok_if_unknown=ok_if_unknown)
    asked = {"lag": lag}
    if "shard/threads_running" in names or (scope is SHARD and not names):
        asked["threads_running"] = threads
    limits = {"lag": 5.0, "threads_running": 100.0}
    fine = all(
        isinstance(r, tuple) and not isinstance(r, Absent) and r.value <= limits[name]
        for name, r in asked.items()
    )
    assert decision.admitted is fine


def _rejecting(spec: MetricSpec, reading: Reading) -> MetricSpec:
    """As shard/shard.py: an absence that is left after the rollup rejects."""
    return metric(spec.name, absence="reject") if isinstance(reading, Absent) else spec
