"""Decisions as JSON, in both dialects: total, valid, and telling."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.check.answers import (
    FRENO_MESSAGES,
    FRENO_STATUS,
    MAX_MS,
    STATUS,
    answer_doc,
    batch_doc,
    encode,
    freno_doc,
)
from headgate.check.decide import MAX_UTILIZATION, decide
from headgate.check.health import Health
from headgate.check.model import VERDICT_MEANINGS, Decision, State, Verdict
from headgate.check.reasons import duration, quantity, reason_of
from headgate.http.documents import whole_seconds
from headgate.metrics.model import Comparison
from headgate.metrics.samples import Cause
from headgate.rules.matching import Rule, book_of
from tests.builders import NOW, absent, at, check, health, metric, sample, shard_health, window

LAG = metric("lag")
THREADS = metric("threads_running")
POOL = metric("pool_usage")


def decided(
    known: Health | None, *metrics: str, ratio: float = 0.0, after_s: float = 0.0, **more: Any
) -> Decision:
    rules = book_of([Rule("r1", "etl", ratio, NOW.wall_s + 600)])
    return decide(check("etl:nightly", *metrics, **more), known, rules, now=at(after_s), roll=0.5)


def rendered(decision: Decision) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode(answer_doc(decision)), parse_constant=no_number)
    return document


def no_number(text: str) -> float:
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("table", [STATUS, FRENO_STATUS, FRENO_MESSAGES, VERDICT_MEANINGS])
def test_every_verdict_has_its_row(table: dict[Verdict, object]) -> None:
    assert set(table) == set(Verdict)


def test_the_statuses_of_the_reference() -> None:
    """R29"""
    assert [STATUS[verdict] for verdict in Verdict] == [
        200,
        429,
        429,
        417,
        429,
        429,
        424,
        404,
        421,
        500,
    ]
    assert [FRENO_STATUS[verdict] for verdict in Verdict] == [
        200,
        429,
        417,
        417,
        429,
        429,
        500,
        404,
        404,
        500,
    ]
    assert [v for v, status in STATUS.items() if status == 200] == [Verdict.OK]
    assert [v for v, status in FRENO_STATUS.items() if status == 200] == [Verdict.OK]


@pytest.mark.parametrize(
    ("decision", "verdict", "reason"),
    [
        (decided(health((LAG, 1.0))), "OK", ""),
        (
            decided(health((LAG, sample(7.2, age_s=0.4)))),
            "THRESHOLD_EXCEEDED",
            "main: lag is 7.2 s, above its threshold of 5 s (measured 400 ms ago)",
        ),
        (
            decided(health((POOL, 1.0))),
            "THRESHOLD_EXCEEDED",
            "main: pool_usage is 100%, at or above its threshold of 100% (measured 0 ms ago)",
        ),
        (
            decided(health((LAG, absent(Cause.TIMED_OUT, "no answer in 0.5 s", age_s=2)))),
            "METRIC_UNAVAILABLE",
            "main: lag has no value for 2.0 s (timed out: no answer in 0.5 s)",
        ),
        (
            decided(health((LAG, None))),
            "UNKNOWN_METRIC",
            "main: lag has no value for 0 ms (never read: no probe has finished yet)",
        ),
        (
            decided(health((LAG, 1.0)), after_s=3),
            "METRIC_UNAVAILABLE",
            "main: lag has no value for 3.0 s (stale: no probe has finished within the age limit "
            "of 1 s)",
        ),
        (
            decided(health((LAG, 1.0)), "nothing"),
            "UNKNOWN_METRIC",
            "main: nothing: no such metric on main; configured: lag",
        ),
        (
            decided(health((LAG, 1.0)), "shard/lag"),
            "UNKNOWN_METRIC",
            "main: shard/lag: this agent's database belongs to no shard; check with scope=host",
        ),
        (decided(None), "UNKNOWN_METRIC", "no database 'main' is configured on this agent"),
        (
            decided(health()),
            "UNKNOWN_METRIC",
            "main: no metric is configured for this database, so its health is unknown",
        ),
        (
            decided(health((LAG, 1.0)), ratio=1.0),
            "ON_HOLD",
            "rule r1 rejects every check of etl for another 10 min",
        ),
        (
            decided(health((LAG, 1.0)), ratio=0.75),
            "REJECTED_BY_RATIO",
            "rule r1 rejects 75% of the checks of etl for another 10 min",
        ),
    ],
)
def test_the_reason_reads_as_a_sentence(decision: Decision, verdict: str, reason: str) -> None:
    document = rendered(decision)
    assert (document["verdict"], document["reason"]) == (verdict, reason)


def in_shard(lag: Any, **more: Any) -> Decision:
    """Asked about lag and threads_running, with lag in the shard's scope."""
    known = health((LAG, 0.1), (THREADS, 3), shard=shard_health((LAG, lag), (THREADS, 3), **more))
    return decided(known)


ELSEWHERE = absent(Cause.ELSEWHERE, "rolled up by db-a")
SPLIT = absent(Cause.SPLIT_BRAIN, "db-a and db-b both say that they are the primary")


@pytest.mark.parametrize(
    ("decision", "verdict", "reason"),
    [
        (
            in_shard(sample(7.2, age_s=0.4, detail="db-b, worst of 2")),
            "THRESHOLD_EXCEEDED",
            "main: shard/lag is 7.2 s, above its threshold of 5 s (db-b, worst of 2, measured "
            "400 ms ago)",
        ),
        (
            in_shard(sample(7.2, cause=Cause.REPLICATION_STOPPED, detail="db-b, worst of 2")),
            "THRESHOLD_EXCEEDED",
            "main: shard/lag is 7.2 s, above its threshold of 5 s (replication stopped: db-b, "
            "worst of 2, measured 0 ms ago)",
        ),
        (
            in_shard(sample(7.2, detail="db-b, worst of 1; skipped: db-c (skipped by ops)")),
            "THRESHOLD_EXCEEDED",
            "main: shard/lag is 7.2 s, above its threshold of 5 s (db-b, worst of 1; skipped: "
            "db-c (skipped by ops); measured 0 ms ago)",
        ),
        (
            in_shard(absent(Cause.UNREACHABLE, "db-b: no answer in 0.5 s", age_s=2)),
            "METRIC_UNAVAILABLE",
            "main: shard/lag has no value for 2.0 s (unreachable: db-b: no answer in 0.5 s)",
        ),
        (
            in_shard(ELSEWHERE, primary="db-a", check_at="https://db-a:8087"),
            "WRONG_AGENT",
            "main: db-a's agent answers for commerce/-80: check with https://db-a:8087",
        ),
        (
            in_shard(ELSEWHERE, primary="db-a"),
            "WRONG_AGENT",
            "main: db-a's agent answers for commerce/-80: its address is unknown, "
            "set its `advertise`",
        ),
        (
            in_shard(SPLIT),
            "METRIC_UNAVAILABLE",
            "main: no agent can answer for commerce/-80 (split brain: db-a and db-b both say that "
            "they are the primary)",
        ),
        (
            decided(
                health(
                    (metric("lag", absence="hold", hold_s=60), window(sample(7.0), absent())),
                )
            ),
            "THRESHOLD_EXCEEDED",
            "main: lag is 7 s, above its threshold of 5 s (measured 0 ms ago; since then failed: "
            "rejected)",
        ),
    ],
)
def test_the_reason_names_the_shard_and_who_in_it(
    decision: Decision, verdict: str, reason: str
) -> None:
    document = rendered(decision)
    assert (document["verdict"], document["reason"]) == (verdict, reason)


def test_what_is_wrong_with_the_shard_is_said_once_and_first() -> None:
    known = health((LAG, 0.1), (THREADS, 500), shard=shard_health((LAG, SPLIT), (THREADS, SPLIT)))
    told = reason_of(decided(known, "shard/lag", "shard/threads_running", "host/threads_running"))
    assert told.count("split brain") == 1
    assert told.index("split brain") < told.index("threads_running is 500")


def test_a_misdirected_client_gets_the_right_agent() -> None:
    """R37, R38"""
    document = rendered(in_shard(ELSEWHERE, primary="db-a", check_at="https://db-a:8087"))
    assert document["check_at"] == "https://db-a:8087"
    assert rendered(in_shard(ELSEWHERE))["check_at"] is None
    assert rendered(in_shard(7.0, check_at="https://db-a:8087"))["check_at"] is None


def test_breaches_come_before_unavailable_metrics() -> None:
    told = reason_of(decided(health((LAG, absent()), (THREADS, 500), (POOL, 2.0))))
    assert told.index("threads_running is") < told.index("pool_usage is") < told.index("lag has")


def test_a_rejection_lists_every_metric_an_admission_none() -> None:
    """R10"""
    known = health((LAG, 7.0), (THREADS, 3))
    assert [m["state"] for m in rendered(decided(known))["metrics"]] == ["breached", "healthy"]
    assert rendered(decided(health((LAG, 1.0))))["metrics"] == []
    document = json.loads(encode(answer_doc(decided(health((LAG, 1.0))), detail=True)))
    assert document["metrics"] == [
        {
            "metric": "lag",
            "scope": "host",
            "state": "healthy",
            "value": 1.0,
            "unit": "s",
            "threshold": 5.0,
            "comparison": ">",
            "age_ms": 0,
            "cause": None,
            "detail": "",
            "unavailable_for_ms": None,
        }
    ]


def test_utilization_is_of_the_selected_metrics() -> None:
    known = health((LAG, 1.0), (THREADS, 50))
    assert rendered(decided(known))["utilization"] == 0.5
    assert rendered(decided(known, "lag"))["utilization"] == 0.2
    assert rendered(decided(known, "lag", read_threshold=2.0))["utilization"] == 0.5
    assert rendered(decided(None))["utilization"] == 0


def test_a_batch_speaks_with_its_first_rejection() -> None:
    good, bad = decided(health((LAG, 1.0))), decided(health((LAG, 7.0)))
    worse = decided(health((LAG, absent())))
    document = json.loads(encode(batch_doc([good, bad, worse])))
    assert (document["verdict"], document["admitted"]) == ("THRESHOLD_EXCEEDED", False)
    assert document["reason"] == reason_of(bad)
    assert [c["verdict"] for c in document["checks"]] == [
        "OK",
        "THRESHOLD_EXCEEDED",
        "METRIC_UNAVAILABLE",
    ]
    fine = json.loads(encode(batch_doc([good, good])))
    assert (fine["verdict"], fine["reason"], fine["retry_after_ms"]) == ("OK", "", None)


def test_freno_shows_one_number() -> None:
    lag = freno_doc(decided(health((LAG, 1.0), (THREADS, 90))))
    assert (lag.StatusCode, lag.Value, lag.Threshold, lag.Message) == (200, 1, 5, "")
    of_shard = shard_health((LAG, 2.0), (THREADS, 1))
    shard = freno_doc(decided(health((LAG, 1.0), (THREADS, 90), shard=of_shard)))
    assert (shard.Value, shard.Threshold) == (2, 5), "in its own scope"
    near = freno_doc(decided(health((POOL, 0.1), (THREADS, 90))))
    assert (near.Value, near.Threshold) == (90, 100), "without a lag: the nearest to rejecting"
    rejecting = freno_doc(decided(health((LAG, 6.0), (THREADS, 99))))
    assert (rejecting.StatusCode, rejecting.Value, rejecting.Threshold) == (429, 6.0, 5.0)
    read = freno_doc(decided(health((LAG, 3.0)), "lag", read_threshold=2.5))
    assert (read.StatusCode, read.Value, read.Threshold) == (429, 3.0, 2.5)
    unknown = freno_doc(decided(None))
    assert (unknown.StatusCode, unknown.Value, unknown.Threshold) == (404, None, None)
    lost = freno_doc(decided(health((LAG, window(sample(0.1), absent(Cause.FAILED))))))
    assert (lost.Value, lost.Threshold) == (None, 5.0), "R151: a missing value is no lag of 0"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7.2, "s", "7.2 s"),
        (0.05, "s", "50 ms"),
        (0.0, "s", "0 s"),
        (0.5, "ratio", "50%"),
        (0.055, "ratio", "5.5%"),
        (0.0, "ratio", "0%"),
        (12345678.0, "", "12,345,678"),
        (64.0, "files", "64 files"),
        (1e308, "", "1e+308"),
        (1e308, "ratio", "1e+308 ratio"),
        (1e300, "s", "1e+300 s"),
    ],
)
def test_quantities(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.4123, "412 ms"), (1.0, "1.0 s"), (119.9, "119.9 s"), (600, "10 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("retry_after_s", "whole"),
    [(None, None), (0.0, 1), (0.05, 1), (1.0, 1), (1.01, 2), (59.5, 60)],
)
def test_retry_after_is_rounded_up(retry_after_s: float | None, whole: int | None) -> None:
    assert whole_seconds(retry_after_s) == whole


# --- whatever is decided -------------------------------------------------------------------

HUGE = [0.0, 5e-324, 1e-9, 0.05, 1.0, 4.999, 5.0, 1e6, 1e15, 1e18, 1e308, 1.7976931348623157e308]
VALUES = st.sampled_from(HUGE) | st.floats(0, allow_nan=False, allow_infinity=False)
READINGS = st.one_of(
    st.none(),
    VALUES,
    st.builds(sample, VALUES, age_s=st.sampled_from([0.0, 1.0, 2.5, 3.0, 1e6, 1e18, 1e300])),
    st.builds(
        absent,
        st.sampled_from(Cause),
        st.text(max_size=20),
        age_s=st.sampled_from([0.0, 5.0, 1e9, 1e20, 1e300]),
    ),
    st.builds(lambda value: window(sample(value, age_s=1), absent()), VALUES),
)
SPECS = st.sampled_from(
    [
        LAG,
        THREADS,
        POOL,
        metric("lag", threshold=1e-9),
        metric("lag", absence="hold", hold_s=3600),
        metric("lag", absence="ignore"),
        metric("threads_running", threshold=1e18, comparison=">="),
        metric("commit_delay", debounce="2 of 3"),
    ]
)
HEALTHS = st.none() | st.lists(st.tuples(SPECS, READINGS), max_size=4).map(
    lambda pairs: health(*pairs)
)
ASKED = st.lists(st.sampled_from(["lag", "threads_running", "shard/lag", "nothing"]), unique=True)


@settings(deadline=None)
@given(
    known=HEALTHS,
    asked=ASKED,
    ratio=st.sampled_from([0.0, 0.4, 0.75, 1.0]),
    after_s=st.sampled_from([0.0, 1.0, 30.0, 1e9]),
    read_threshold=st.sampled_from([None, 1e-9, 2.5, 9e11]),
    ok_if_unknown=st.booleans(),
)
def test_every_decision_renders_in_both_dialects(
    known: Health | None,
    asked: list[str],
    ratio: float,
    after_s: float,
    read_threshold: float | None,
    ok_if_unknown: bool,
) -> None:
    decision = decided(
        known,
        *asked,
        ratio=ratio,
        after_s=after_s,
        read_threshold=read_threshold,
        ok_if_unknown=ok_if_unknown,
    )
    native, freno = rendered(decision), freno_doc(decision)
    assert native["admitted"] == (STATUS[decision.verdict] == 200) == decision.admitted
    assert 0 <= native["utilization"] <= MAX_UTILIZATION
    assert bool(native["reason"]) != native["admitted"], "a rejection always says why"
    assert (native["retry_after_ms"] is None) == native["admitted"]
    for finding in decision.failing:
        assert finding.ref.metric in native["reason"]
        assert finding.ref.metric in freno.Message
    for told in native["metrics"]:
        assert told["state"] in {state.value for state in State}
        assert told["comparison"] in {"", *(c.value for c in Comparison)}
        for ms in (told["age_ms"], told["unavailable_for_ms"]):
            assert ms is None or 0 <= ms <= MAX_MS
    assert len(native["reason"]) < 2000
    parse: Callable[[bytes], Any] = json.loads
    assert parse(encode(freno))["StatusCode"] == FRENO_STATUS[decision.verdict]
    json.loads(encode(answer_doc(decision, detail=True)), parse_constant=no_number)
    json.loads(encode(batch_doc([decision, decision])), parse_constant=no_number)
