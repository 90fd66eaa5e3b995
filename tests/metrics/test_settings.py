"""Settings of metrics: what is taken, what is rejected, and what is advised against."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.advice import Severity
from headgate.base.names import Scope
from headgate.errors import InvalidSettings
from headgate.metrics.advice import lint_metric
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import (
    AbsencePolicy,
    Command,
    Comparison,
    Debounce,
    EmptyPolicy,
    Engine,
    Http,
    MissingPolicy,
    Rollup,
    RollupOf,
    Sql,
    granularity_s,
    is_looser,
)
from headgate.metrics.settings import METRIC_SETTINGS, parse_metric_settings


def parse(name: str, engine: Engine = Engine.POSTGRES, **raw: Any) -> Any:
    return parse_metric_settings(name, raw, engine)


def faults(name: str, engine: Engine = Engine.POSTGRES, **raw: Any) -> str:
    with pytest.raises(InvalidSettings) as rejected:
        parse(name, engine, **raw)
    return str(rejected.value)


@pytest.mark.parametrize(
    ("name", "threshold"),
    [
        ("lag", 5),
        ("pool_usage", 1.0),
        ("commit_delay", 0.05),
        ("loadavg", 1),
        ("threads_running", 100),
    ],
)
def test_published_defaults(name: str, threshold: float) -> None:
    """R3, R4"""
    assert parse(name).threshold == threshold


@pytest.mark.parametrize(
    ("name", "options", "beats_every_s", "age_s", "fine_to_s"),
    [
        ("lag", {}, 1.0, 0.3, 1.0),
        ("lag", {}, 0.1, 0.3, 0.3),
        ("lag", {}, 0.1, 0.01, 0.25),
        ("lag", {"method": "heartbeat"}, 2.0, 0.3, 2.0),
        ("lag", {"method": "native"}, 2.0, 0.3, 0.3),
        ("threads_running", {}, 2.0, 0.3, 1.0),
    ],
)
def test_granularity_is_the_longest_of_heartbeat_probe_and_age(
    name: str, options: dict[str, Any], beats_every_s: float, age_s: float, fine_to_s: float
) -> None:
    """R23"""
    spec = parse(name, options=options) if options else parse(name)
    assert granularity_s(spec, age_s=age_s, beats_every_s=beats_every_s) == fine_to_s


def test_zero_restores_the_default() -> None:
    """R4"""
    assert parse("lag", threshold=0).threshold == 5.0


def test_a_metric_without_a_threshold_is_rejected_with_the_reason() -> None:
    """R7"""
    told = faults("queue_depth", sql="select 1")
    assert "metrics.queue_depth.threshold" in told and "without a threshold" in told


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ({"threshold": float("nan")}, "NaN"),
        ({"threshold": -1}, "at least 0"),
        ({"threshold": "5"}, 'is 5, which has no unit: 5ms or 5s? Write "5ms" or "5s"'),
        ({"threshold": 5}, 'is 5, which has no unit: 5ms or 5s? Write "5ms" or "5s"'),
        ({"threshold": True}, "must be a number"),
        ({"interval_s": 0}, "at least 10ms"),
        ({"debounce": "5 of 3"}, "1 ≤ M ≤ N"),
        ({"debounce": 3}, "'3 of 5'"),
        ({"absence": "shrug"}, "'reject', 'hold', 'ignore'"),
        ({"comparison": "<"}, "'>', '>='"),
        ({"max_age_s": 0.2}, "stale before the next"),
        ({"treshold": 5}, "did you mean 'threshold'"),
        ({"options": {"methud": "native"}}, "did you mean 'method'"),
        ({"sql": "select 1"}, "built-in"),
    ],
)
def test_bad_settings_are_rejected_with_the_place(raw: dict[str, Any], word: str) -> None:
    told = faults("lag", **raw)
    assert word in told and "metrics.lag" in told


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(InvalidSettings) as rejected:
        parse("lag", treshold=1, absence="shrug", interval_s=-1, threshold="80%")
    assert len(rejected.value.faults) == 4


def test_an_unknown_metric_names_the_nearest() -> None:
    assert "did you mean 'lag'" in faults("lagg")
    other = faults("replication_lag")
    assert "did you mean 'lag'" in other and "threshold" not in other


def test_a_metric_of_the_other_engine_is_rejected() -> None:
    assert "cannot be measured on mysql" in faults("archive_backlog", Engine.MYSQL)
    assert "cannot be measured on postgres" in faults("history_list_length")


def test_custom_metrics() -> None:
    """R6"""
    assert parse("q", sql="select count(*) from jobs;", threshold=9).source == Sql(
        "select count(*) from jobs"
    )
    assert isinstance(parse("q", url="http://h/x", pointer="/a", threshold=9).source, Http)
    assert isinstance(parse("q", command=["true"], threshold=9).source, Command)


@pytest.mark.parametrize("query", ["delete from jobs", "", "call p()", "update x set y=1"])
def test_a_query_that_changes_something_is_rejected(query: str) -> None:
    assert "one SELECT" in faults("q", sql=query, threshold=1)


def test_hold_and_debounce_are_read() -> None:
    spec = parse("lag", absence="hold", hold_s=5, debounce="2 of 3", comparison=">=")
    assert (spec.absence, spec.hold_s) == (AbsencePolicy.HOLD, 5)
    assert (spec.debounce, spec.comparison) == (Debounce(2, 3), Comparison.AT_LEAST)


@given(
    st.dictionaries(
        st.sampled_from([*METRIC_SETTINGS, "x"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=9),
            st.lists(st.text(max_size=3), max_size=2),
            st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
        ),
    )
)
def test_any_settings_are_taken_or_rejected_with_reasons(raw: dict[str, Any]) -> None:
    try:
        spec = parse_metric_settings("queue", raw, Engine.POSTGRES)
    except InvalidSettings as error:
        assert error.faults
    else:
        assert spec.threshold > 0


class TestLint:
    def advice(self, name: str, **raw: Any) -> list[str]:
        return [a.code for a in lint_metric(parse(name, **raw), raw, Engine.POSTGRES)]

    @pytest.mark.parametrize("name", sorted(BUILTINS))
    def test_our_own_defaults_give_no_advice(self, name: str) -> None:
        """R16: and are sampled as often as their thresholds need."""
        row = BUILTINS[name]
        if row.unit == "s":
            assert row.interval_s <= row.threshold / 2.5
        engine = next(iter(BUILTINS[name].engines))
        assert lint_metric(parse_metric_settings(name, {}, engine), {}, engine) == []

    def test_fixed_rate_limits(self) -> None:
        """R8"""
        assert self.advice("max_qps", sql="select 1", threshold=1000) == ["fixed-rate"]
        raw = {"sql": "show global status like 'Questions'", "threshold": 1, "mode": "rate"}
        spec = parse_metric_settings("load", raw, Engine.MYSQL)
        assert lint_metric(spec, raw, Engine.MYSQL)[0].severity is Severity.ERROR

    def test_cpu_percent(self) -> None:
        """R8"""
        assert self.advice("cpu_percent", command=["x"], threshold=80) == ["cpu-percent"]

    @pytest.mark.parametrize(("threshold", "count"), [(0.5, 1), (1, 1), (5, 0), (30, 0), (31, 1)])
    def test_lag_thresholds(self, threshold: float, count: int) -> None:
        """R14"""
        codes = self.advice("lag", threshold=f"{threshold}s", interval_s=threshold / 5)
        assert codes.count("lag-threshold") == count

    @pytest.mark.parametrize(("interval_s", "codes"), [(1, []), (2, []), (3, ["undersampled"])])
    def test_sampling_against_the_threshold(self, interval_s: float, codes: list[str]) -> None:
        """R16: 5 s of lag want a probe every 1 to 2 s."""
        assert self.advice("lag", interval_s=interval_s) == codes

    @pytest.mark.parametrize(
        ("name", "raw", "codes"),
        [
            ("commit_delay", {"threshold": "100ms"}, []),
            ("commit_delay", {"threshold": "20ms"}, ["undersampled"]),
            # No interval would do: the threshold is what is odd.
            ("commit_delay", {"threshold": "1us"}, ["far-threshold"]),
            ("lag", {"threshold": "5s", "interval_s": 2.2}, ["undersampled"]),
            ("pool_usage", {"interval_s": 2}, []),
            ("pool_usage", {"interval_s": 3}, ["undersampled"]),
            ("threads_running", {"interval_s": 10}, []),
            ("threads_running", {"interval_s": 60}, ["undersampled"]),
            ("loadavg", {"interval_s": 60}, ["undersampled"]),
            ("mine", {"sql": "select 1", "threshold": 3, "interval_s": 30}, ["undersampled"]),
            ("mine", {"sql": "select 1", "threshold": "3s", "unit": "s"}, []),
            ("mine", {"sql": "select 1", "threshold": "2s", "unit": "s"}, ["undersampled"]),
        ],
    )
    def test_every_metric_is_validated(
        self, name: str, raw: dict[str, Any], codes: list[str]
    ) -> None:
        """R16: also one whose interval is the default."""
        assert self.advice(name, **raw) == codes

    def test_commit_delay_of_100_ms_wants_20_to_50_ms(self) -> None:
        """R16"""
        assert self.advice("commit_delay", threshold="100ms", interval_s=0.5, timeout_s=0.4) == [
            "undersampled"
        ]
        assert self.advice("commit_delay", threshold="100ms", interval_s=0.04, timeout_s=0.04) == []

    def test_an_ignored_unavailable_metric_is_warned_about(self) -> None:
        assert self.advice("lag", absence="ignore") == ["absence-ignored"]

    @pytest.mark.parametrize(
        ("raw", "codes"),
        [
            ({}, []),
            ({"rollup": "max"}, []),
            ({"rollup": "unhealthy"}, ["pace"]),
            ({"rollup": "unhealthy", "scope": "host"}, []),
        ],
    )
    def test_a_count_of_members_is_no_set_point(self, raw: Any, codes: list[str]) -> None:
        """R142"""
        assert self.advice("lag", pace=True, **raw) == codes

    def test_innodbs_cached_view_must_not_be_read_too_often(self) -> None:
        raw = {"interval_s": 0.1, "timeout_s": 0.1}
        spec = parse_metric_settings("lock_waits", raw, Engine.MYSQL)
        assert [a.code for a in lint_metric(spec, raw, Engine.MYSQL)] == ["cached-view"]
        assert lint_metric(spec, raw, Engine.POSTGRES) == []


# --- how it is rolled up -----------------------------------------------------------------------


def test_each_metric_has_a_default_scope() -> None:
    """R41: lag of the shard's replicas, everything else of the host."""
    lag = parse("lag")
    assert lag.scope is Scope.SHARD and lag.rollup.of is RollupOf.REPLICAS
    for name in ("threads_running", "loadavg", "pool_usage"):
        assert parse(name).scope is Scope.HOST and parse(name).rollup.of is RollupOf.ALL
    custom = parse("queue", sql="select 1", threshold=1)
    assert custom.scope is Scope.HOST and custom.rollup == Rollup()


def test_safe_defaults_of_a_rollup() -> None:
    """R42, R43: nothing is left out, nothing empty passes."""
    rollup = parse("lag").rollup
    assert (rollup.by, rollup.ignore_hosts, rollup.grace_s) == ("max", 0, 0)
    assert rollup.missing is MissingPolicy.REJECT and rollup.missing_for_s == 600
    assert rollup.empty is EmptyPolicy.REJECT


@pytest.mark.parametrize(
    ("word", "scope"), [("self", Scope.HOST), ("host", Scope.HOST), ("shard", Scope.SHARD)]
)
def test_a_scope_can_be_set_in_vitess_terms_as_well(word: str, scope: Scope) -> None:
    """R41"""
    assert parse("threads_running", scope=word).scope is scope
    assert parse("lag", scope=word).scope is scope


def test_a_rollup_as_it_is_written() -> None:
    rollup = parse(
        "lag",
        rollup="mean",
        rollup_of="all",
        rollup_labels={"region": "eu"},
        ignore_hosts=1,
        ignore_above="1m",
        missing="ignore",
        missing_for_s=30,
        empty="admit",
        grace_s=3600,
    ).rollup
    assert rollup == Rollup(
        "mean",
        RollupOf.ALL,
        {"region": "eu"},
        ignore_hosts=1,
        ignore_above=60.0,
        missing=MissingPolicy.IGNORE,
        missing_for_s=30.0,
        empty=EmptyPolicy.ADMIT,
        grace_s=3600.0,
    )


def test_a_quorum_as_it_is_written() -> None:
    assert parse("lag", rollup="quorum", quorum=2).rollup.quorum == 2


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ({"rollup": "quorum"}, "quorum: is missing"),
        ({"quorum": 2}, "only with rollup = 'quorum'"),
        ({"rollup_limit": 1}, "only with rollup = 'unhealthy'"),
        ({"ignore_above": 9}, "only with ignore_hosts"),
        ({"rollup": "quorum", "quorum": 2, "ignore_hosts": 1}, "which counts members"),
        ({"rollup": "quorum", "quorum": 0}, "from 1 to 256"),
        ({"rollup": "quorum", "quorum": 1.5}, "whole number"),
        ({"rollup": "No Name"}, "or the name of a plug-in"),
        ({"rollup_of": "everybody"}, "'replicas', 'all', 'primary'"),
        ({"scope": "cell"}, "use host (or self) or shard"),
        ({"missing": "hold"}, "'reject', 'ignore'"),
        ({"missing_for_s": -1}, "at least 0"),
        ({"missing_for_s": float("nan")}, "NaN"),
        ({"empty": "pass"}, "'reject', 'admit'"),
        ({"ignore_hosts": -1}, "from 0 to 256"),
        ({"grace_s": 8 * 86400}, "at most 7d"),
        ({"rollup_labels": ["eu"]}, "table of at most 16 labels"),
        ({"rollup_labels": {"region": 1}}, "must be text"),
        ({"rollup_labels": {str(n): "" for n in range(17)}}, "at most 16"),
        ({"rollup_labels": {"a": "x" * 128}}, "at most 128"),
    ],
)
def test_a_rollup_that_says_nothing_is_rejected_with_the_place(
    raw: dict[str, Any], word: str
) -> None:
    told = faults("lag", **raw)
    assert word in told and "metrics.lag." in told


def test_a_name_that_is_nearly_a_built_in_rollup_is_taken_for_a_plug_in() -> None:
    """Whether it is installed is known where the plug-ins are."""
    assert parse("lag", rollup="p99_of_replicas").rollup.by == "p99_of_replicas"


@settings(max_examples=15)
@given(st.recursive(st.none() | st.text() | st.floats() | st.booleans(), st.lists))
def test_no_rollup_setting_raises_anything_but_a_fault(value: Any) -> None:
    for name in ("scope", "rollup", "rollup_of", "rollup_labels", "quorum", "missing_for_s"):
        try:
            parse("lag", **{name: value})
        except InvalidSettings as error:
            assert error.faults


@pytest.mark.parametrize(
    ("metric", "raw", "target"),
    [
        ("lag", {"pace": True}, 0.5),
        ("threads_running", {"pace": True}, 0.8),
        ("lag", {"pace": True, "pace_target": 0.7}, 0.7),
    ],
)
def test_a_paced_metric_has_a_set_point(metric: str, raw: dict[str, Any], target: float) -> None:
    """R142: a queue is kept short, everything else near its threshold."""
    spec = parse_metric_settings(metric, raw, Engine.POSTGRES)
    assert spec.pace
    assert spec.pace_target == target


def test_nothing_is_paced_unless_said() -> None:
    assert not parse_metric_settings("lag", {}, Engine.POSTGRES).pace


@pytest.mark.parametrize("wrong", [{"pace": 1}, {"pace_target": 0}, {"pace_target": 1.0}])
def test_a_wrong_pace_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="pace"):
        parse_metric_settings("lag", wrong, Engine.POSTGRES)


# --- looser and stricter ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "than"),
    [
        ({"threshold": "6s"}, {"threshold": "5s"}),
        ({"threshold": "5s", "comparison": ">"}, {"threshold": "5s", "comparison": ">="}),
        ({"absence": "hold"}, {}),
        ({"absence": "ignore"}, {"absence": "hold"}),
        ({"absence": "hold", "hold_s": 60}, {"absence": "hold", "hold_s": 30}),
        ({"missing": "ignore"}, {}),
        ({"empty": "admit"}, {}),
        ({"threshold": "2s", "absence": "ignore"}, {"threshold": "5s"}),
    ],
)
def test_a_metric_that_may_pass_where_another_does_not_is_looser(raw: Any, than: Any) -> None:
    """R155"""
    one, other = (parse_metric_settings("lag", each, Engine.POSTGRES) for each in (raw, than))
    assert is_looser(one, other)
    assert not is_looser(one, one) and not is_looser(other, other)


@pytest.mark.parametrize(
    "raw", [{"threshold": "4s"}, {"comparison": ">="}, {"interval_s": 2}, {"debounce": "1 of 1"}]
)
def test_a_metric_that_is_stricter_or_the_same_is_not_looser(raw: Any) -> None:
    none: dict[str, Any] = {}
    one, other = (parse_metric_settings("lag", each, Engine.POSTGRES) for each in (raw, none))
    assert not is_looser(one, other)


@pytest.mark.parametrize(
    ("name", "threshold", "read"),
    [
        ("commit_delay", "50ms", 0.05),
        ("lag", "1m30s", 90.0),
        ("pool_usage", "80%", 0.8),
        ("pool_usage", 0.8, 0.8),
        ("oldest_transaction", "10 min", 600.0),
    ],
)
def test_a_threshold_may_have_its_unit(name: str, threshold: object, read: float) -> None:
    spec = parse_metric_settings(name, {"threshold": threshold}, Engine.POSTGRES)
    assert spec.threshold == read


@pytest.mark.parametrize(
    ("unit", "threshold", "read"),
    [
        ("ms", "2s", 2000.0),
        ("%", "80%", 80.0),
        ("bytes", "4 GiB", 4.0 * 2**30),
        ("MiB", "1 GiB", 1024),
    ],
)
def test_a_custom_metric_is_compared_in_its_own_unit(
    unit: str, threshold: str, read: float
) -> None:
    raw = {"sql": "select 1", "unit": unit, "threshold": threshold, "ignore_above": threshold}
    spec = parse_metric_settings("x", raw | {"ignore_hosts": 1}, Engine.POSTGRES)
    assert (spec.threshold, spec.rollup.ignore_above) == (read, read)


@pytest.mark.parametrize(
    ("name", "raw", "told"),
    [
        ("pool_usage", {"threshold": 80}, 'did you mean "80%"?'),
        ("pool_usage", {"threshold": "120%"}, "is '120%': pool_usage is a share, and 1 is all"),
        ("commit_delay", {"threshold": "80%"}, "is '80%', but the metric is measured in s"),
        ("threads_running", {"threshold": "5s"}, "is '5s', but the metric is a plain number"),
        ("commit_delay", {"threshold": "50"}, "is 50, which has no unit: 50ms or 50s?"),
        ("threads_running", {"threshold": "50"}, "is '50', a text: write 50"),
        ("pool_usage", {"threshold": "50"}, "is '50', a text: write 50 or \"50%\""),
        ("lag", {"interval_s": "30"}, "is 30, which has no unit: 30s or 30m?"),
    ],
)
def test_a_wrong_unit_is_a_fault(name: str, raw: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        parse_metric_settings(name, raw, Engine.POSTGRES)
    assert told in str(error.value)


def test_a_threshold_far_from_the_default_is_advised_against() -> None:
    """A7: 50 for `above 50 ms` is 50 s, and nobody is ever throttled."""
    raw = {"threshold": "50s"}
    spec = parse_metric_settings("commit_delay", raw, Engine.POSTGRES)
    told = [str(advice) for advice in lint_metric(spec, raw, Engine.POSTGRES)]
    assert any("is 50s, 1,000 times above the default of 50ms" in one for one in told)
