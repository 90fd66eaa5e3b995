"""What would have to change, in words (R144); and words that cannot steer a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.cli.documents import read
from headgate.cli.words import absence_text, age_text, ago, nearest, plain, remedies
from headgate.wire.answers import AnswerDoc, MetricDoc
from tests.cli import builders


def remedy(metric: dict[str, Any]) -> str:
    return remedies(read(AnswerDoc, builders.refusal(metrics=[metric])))[0]


def test_a_breach_says_from_where_to_where() -> None:
    assert remedy(builders.breached()) == "lag must fall from 7.2 s to 5 s or below"


def test_at_least_must_fall_below() -> None:
    """R5: 100 % of a pool refuses, so 100 % is not enough."""
    full = builders.breached(
        "pool_usage", 1.0, unit="ratio", threshold=1.0, comparison=">=", age_ms=3
    )
    assert remedy(full) == "pool_usage must fall from 100% to below 100%"


def test_an_absence_says_since_when_and_why() -> None:
    told = "threads_running must be readable again: timed out for 2.2 s: no answer in 0.5 s"
    assert remedy(builders.absent()) == told


def test_a_debounced_metric_must_stay_low() -> None:
    """R11: its last value is fine, the ones before still count."""
    told = remedy(builders.breached(value=4.0))
    assert told == "lag must stay 5 s or below (it is 4 s now) until debounce lets it go"


def test_an_unknown_metric_is_named_with_those_that_exist() -> None:
    missing = builders.absent("lagg", cause="unknown", detail="no such metric; configured: lag")
    assert remedy(missing) == "lagg must exist here: no such metric; configured: lag"


def test_a_rule_must_end() -> None:
    reason = "rule r1 refuses every check of etl for another 12 min"
    answer = builders.refusal("APP_DENIED", rule="r1", reason=reason, metrics=[builders.metric()])
    assert remedies(read(AnswerDoc, answer)) == [f"rule r1 must end: {reason}"]


def test_a_rule_that_leaves_a_client_to_the_metrics_need_not_end() -> None:
    """It is named in the answer, for other dice would have refused by it."""
    answer = builders.refusal("THRESHOLD_EXCEEDED", rule="favored")
    assert all("favored" not in told for told in remedies(read(AnswerDoc, answer)))


def test_a_refusal_without_metrics_gives_its_reason() -> None:
    answer = builders.refusal("APP_DENIED", reason="the check carries no client name", metrics=[])
    assert remedies(read(AnswerDoc, answer)) == ["the check carries no client name"]


def test_nothing_has_to_change_for_who_is_admitted() -> None:
    assert remedies(read(AnswerDoc, builders.answer(metrics=[builders.metric()]))) == []


def test_the_nearest_metric_has_used_most_of_its_threshold() -> None:
    metrics = [builders.metric("a", value=1), builders.metric("b", value=4), builders.absent("c")]
    found = nearest(read(AnswerDoc, builders.answer(metrics=metrics)))
    assert found is not None and found.metric == "b"
    assert nearest(read(AnswerDoc, builders.answer())) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lag – 5 s", "lag – 5 s"),
        ("\x1b[2Jgone", "�[2Jgone"),
        ("one\ntwo\r", "one two"),
        ("\x00\x9b", "��"),
    ],
)
def test_a_servers_message_does_not_steer_the_terminal(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_an_absence_without_detail_still_has_its_cause() -> None:
    metric = read(MetricDoc, builders.absent(detail="", absent_for_ms=None, cause="never_read"))
    assert absence_text(metric) == "never read"


def test_ages_are_short() -> None:
    shown = [age_text(s) for s in (0.412, 3.4, 600, 9000, 400_000)]
    assert shown == ["412ms", "3.4s", "10min", "2.5h", "5d"]
    assert ago(0.2) == "just now"
    assert ago(12.4) == "12.4 s ago"
