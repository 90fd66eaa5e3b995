"""The policy, branch by branch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decide import decide, findings, judge
from headgate.core.decision import PASSING, Decision, State, Verdict
from headgate.core.health import Health
from headgate.core.metrics import AbsencePolicy
from headgate.core.rules import NO_RULES, Rule, RuleBook, book_of
from headgate.core.samples import Cause, Reading
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
def test_no_absence_is_ever_healthy(cause: Cause) -> None:
    """R9, R151: whatever the cause, and although an earlier value was fine."""
    decision = ask(health((LAG, window(sample(0.0, age_s=1), absent(cause)))))
    assert decision.verdict in (Verdict.INTERNAL_ERROR, Verdict.UNKNOWN_METRIC)
    assert decision.failing[0].cause is cause
    assert not decision.admitted


def test_compounded_polling_staleness_a_value_past_its_age_limit_is_stale() -> None:
    """R18: a frozen value does not stay healthy, however good it was."""
    known = health((LAG, 0.2))
    assert ask(known, after_s=LAG.max_age_s).verdict is Verdict.OK
    late = ask(known, after_s=LAG.max_age_s + 0.001)
    assert late.verdict is Verdict.INTERNAL_ERROR
    assert late.failing[0].cause is Cause.STALE
    assert late.failing[0].absent_for_s == pytest.approx(LAG.max_age_s + 0.001)


def test_age_is_counted_from_the_start_of_the_probe() -> None:
    """R19: heartbeat at .000, sample at .995, check at 1.990: the answer is about 2 s old."""
    known = health((metric("lag", max_age_s=3), sample(0.995, age_s=0.995)))
    finding = findings(ask(known))[0]
    assert finding.value is not None and finding.age_s is not None
    assert finding.value + finding.age_s == pytest.approx(1.99)


def test_never_collected_is_its_own_answer() -> None:
    decision = ask(health((LAG, None)))
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert decision.failing[0].cause is Cause.NEVER_READ


def test_a_breach_says_more_than_an_absence() -> None:
    decision = ask(health((LAG, absent(Cause.TIMED_OUT)), (THREADS, 500)))
    assert decision.verdict is Verdict.THRESHOLD_EXCEEDED
    assert {f.ref.metric for f in decision.failing} == {"lag", "threads_running"}


def test_hold_stands_in_for_a_bounded_time() -> None:
    held = metric("lag", absence="hold", hold_s=10)
    known = health((held, window(sample(1.0, age_s=0), absent(Cause.TIMED_OUT))))
    decision = ask(known, after_s=9.9)
    assert decision.admitted
    assert findings(decision)[0].state is State.HELD
    assert findings(decision)[0].cause is Cause.TIMED_OUT
    assert ask(known, after_s=10.1).verdict is Verdict.INTERNAL_ERROR


def test_hold_keeps_a_breach_as_well() -> None:
    held = metric("lag", absence="hold", hold_s=10)
    known = health((held, window(sample(9.0), absent(Cause.TIMED_OUT))))
    assert ask(known, after_s=1).verdict is Verdict.THRESHOLD_EXCEEDED


def test_ignore_passes_an_absence_but_not_a_breach() -> None:
    spec = metric("lag", absence="ignore")
    assert ask(health((spec, None))).admitted
    assert findings(ask(health((spec, None))))[0].state is State.IGNORED
    assert not ask(health((spec, 9.0))).admitted
    assert ask(health((spec, 9.0)), after_s=100).admitted


def test_noisy_metric_is_debounced_only_when_asked() -> None:
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


def test_shard_scope_is_refused_where_nothing_is_rolled_up() -> None:
    decision = ask(health((LAG, 1.0)), "shard/lag")
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert "rolls up no shard" in decision.failing[0].detail


def test_an_unknown_database_is_refused() -> None:
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
    assert denied.verdict is Verdict.APP_DENIED
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

    def test_a_ratio_refuses_its_share_before_any_metric(self) -> None:
        known = health((LAG, 1.0))
        refused = ask(known, rules=self.RULES, roll=0.39)
        assert refused.verdict is Verdict.REJECT_BY_RATIO
        assert refused.rule is not None and refused.rule.id == "r1"
        assert ask(known, rules=self.RULES, roll=0.40).admitted

    def test_a_ratio_never_admits_what_a_metric_refuses(self) -> None:
        assert not ask(health((LAG, 9.0)), rules=self.RULES, roll=0.99).admitted

    def test_everyone_else_falls_under_all(self) -> None:
        decision = ask(health((LAG, 1.0)), rules=self.RULES, app="other", roll=0.99)
        assert decision.verdict is Verdict.APP_DENIED

    def test_stale_policy_a_rule_ends_by_itself(self) -> None:
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
def test_decide_never_raises_and_admits_only_what_every_judgement_passes(
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
