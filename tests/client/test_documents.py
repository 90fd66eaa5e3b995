"""The SDK is on the standard library alone and has types of its own: they are the API's."""

from __future__ import annotations

import json
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, urlsplit

import pytest

from headgate.base.names import MetricRef, Scope, parse_identity
from headgate.check.answer_api import AnswerDoc, BatchDoc, MetricDoc
from headgate.check.model import Check, Verdict
from headgate.check.snapshot import Counted
from headgate.check.snapshot_api import encode_report
from headgate.client.answers import Answer, MetricAnswer
from headgate.client.question import Debit, Question, RequestBuilder, make_asker
from headgate.client.target import parse_target
from headgate.client.unthrottled import PATH, Period, report_body
from tests.fixtures.api import misfits

OWN = {"unthrottled", "decided", "raw"}
"""What the SDK adds to an answer; no agent says it."""


def in_seconds(document: type) -> dict[str, Any]:
    """The SDK has seconds where JSON has whole milliseconds."""
    hints = get_type_hints(document)
    return {
        name.replace("_ms", "_s"): kind if name == name.replace("_ms", "_s") else float | None
        for name, kind in hints.items()
    }


def test_a_metric_is_the_agents_document() -> None:
    assert get_type_hints(MetricAnswer) == in_seconds(MetricDoc)


def test_an_answer_has_what_the_agents_document_says() -> None:
    said = {**in_seconds(AnswerDoc), **in_seconds(BatchDoc)}
    assert set(Answer.__match_args__) - OWN <= set(said)
    hints = get_type_hints(Answer.__init__)
    plain = {"verdict", "admitted", "reason", "retry_after_s", "database", "read_only", "check_at"}
    assert {name: hints[name] for name in plain} == {name: said[name] for name in plain}


def asker(databases: list[str], scope: str | None = None) -> RequestBuilder:
    return make_asker("etl:nightly", databases, parse_target("http://127.0.0.1:1"), None, scope)


@pytest.mark.parametrize(
    "question",
    [
        asker(["main"]).may_write(()),
        asker(["main"], "shard").may_write(("lag", "host/load"), 2.5),
        asker(["main", "other"], "shard").may_write(("lag",), 3.0),
        asker(["main"]).may_debit((), None, Debit("exports", 0.5)),
        asker(["main"]).may_read(2.5, "lag", None),
    ],
    ids=lambda question: question.request.split(b" HTTP")[0].decode(),
)
def test_a_check_fits_its_route(question: Question) -> None:
    head, _, body = question.request.partition(b"\r\n\r\n")
    method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
    url = urlsplit(target)
    asked = json.loads(body) if body else None
    assert misfits(method, url.path, dict(parse_qsl(url.query)), asked) == []


def test_what_is_reported_fits_its_route() -> None:
    check = Check(parse_identity("etl"), "main", (MetricRef("lag"),), Scope.SHARD)
    rows = [
        Counted(check, Verdict.OK, "", 3, 1.0, 0.5, ""),
        Counted(check._replace(read_threshold=2.0), Verdict.PACED, "lag", 1, 1.0, 0.5, "later"),
    ]
    assert misfits("POST", "/v1/reports", {}, json.loads(encode_report("9f" * 8, 7, rows))) == []
    periods = (Period("0" * 32, 1.0, 53.0, 421),)
    told = json.loads(report_body("etl:nightly", ("main",), periods, 60.0))
    assert misfits("POST", PATH, {}, told) == []
