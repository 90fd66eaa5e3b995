"""Documents are read whole or rejected with the place; nothing missing becomes 0."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.check.answer_api import AnswerDoc, MetricDoc
from headgate.check.api import AuditDoc, ClientDoc, MetricView, RejectionDoc, StatusDoc
from headgate.cli.documents import read, read_list
from headgate.errors import BadDocument
from tests.cli import builders


def test_the_documents_of_the_contract_are_read() -> None:
    status = read(StatusDoc, builders.busy_status())
    assert status.databases[0].metrics[0].value == 7.2
    assert status.clients[0].rejected_for_s == 754.0
    assert status.store.writable
    assert read(AnswerDoc, builders.rejection()).metrics[1].cause == "timed_out"
    assert read(MetricView, builders.metric_view()).now.threshold == 5.0


def test_fields_of_a_newer_agent_are_ignored() -> None:
    assert read(AnswerDoc, {**builders.answer(), "later": {"share": 1}}).admitted


def test_whole_numbers_are_numbers() -> None:
    assert read(MetricDoc, builders.metric(value=7)).value == 7


def test_a_missing_value_stays_missing() -> None:
    """Misleading zero: no absence becomes 0 (R151)."""
    metric = read(MetricDoc, builders.absent())
    assert metric.value is None
    assert metric.share is None
    assert not metric.over


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"databases": None}, "databases is not as expected: expected `array`, got `null`"),
        ({"store": []}, "store is not as expected: expected `object`, got `array`"),
        ({"uptime_s": "long"}, "uptime_s is not as expected: expected `float`, got `str`"),
        ({"uptime_s": True}, "uptime_s is not as expected: expected `float`, got `bool`"),
        ({"databases": [{"database": "main"}]}, "databases.0.engine is missing"),
    ],
)
def test_a_document_that_cannot_be_shown_says_where(change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadDocument, match=told):
        read(StatusDoc, {**builders.status(), **change})


def test_lists_are_read_under_their_name() -> None:
    rejection = {"at": "2026-03-01T07:00:00Z", "answer": builders.rejection(app="etl")}
    assert read_list(RejectionDoc, {"rejections": [rejection]}, "rejections")[0].answer.app == "etl"
    with pytest.raises(BadDocument, match=r"rejections\.1\.at is missing"):
        read_list(RejectionDoc, {"rejections": [rejection, {}]}, "rejections")
    with pytest.raises(BadDocument, match="clients is missing"):
        read_list(ClientDoc, {}, "clients")


def test_what_was_changed_may_be_anything() -> None:
    entry = {"at": "t", "who": "w", "action": "a", "target": "t", "before": None, "after": [1]}
    assert read(AuditDoc, entry).after == [1]


@pytest.mark.parametrize(
    ("value", "comparison", "over"),
    [(4.9, ">", False), (5.0, ">", False), (5.1, ">", True), (5.0, ">=", True)],
)
def test_the_comparison_decides_at_the_threshold(value: float, comparison: str, over: bool) -> None:
    """R5."""
    assert read(MetricDoc, builders.metric(value=value, comparison=comparison)).over is over
