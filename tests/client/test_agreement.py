"""SDK and agent mean the same: what one encodes, the other reads. No socket between them."""

from __future__ import annotations

import json

import pytest

from headgate.base import problems
from headgate.base.names import parse_identity
from headgate.check import answers, questions
from headgate.check.decide import decide
from headgate.check.model import Check, Decision, Verdict
from headgate.client.http1 import Response
from headgate.client.parsing import parse_answer
from headgate.client.question import Question, make_asker
from headgate.client.replies import read_reply
from headgate.client.target import parse_target
from headgate.errors import InvalidRequest
from headgate.metrics.samples import Instant
from headgate.rules.matching import RuleBook

ASKER = make_asker("job7:etl", "main", parse_target("http://h:1"), None)
BOTH = make_asker("job7:etl", ("main", "replica"), parse_target("http://h:1"), None)
METRICS = ("lag", "shard/loadavg")


def query_of(question: Question) -> str:
    return question.request.split(b" ")[1].decode().partition("?")[2]


def decision(database: str, *, admitted: bool) -> Decision:
    check = Check(parse_identity("job7:etl"), database, ok_if_unknown=admitted)
    return decide(check, None, RuleBook(), now=Instant(10.0, 1e9), roll=0.5)


def test_the_agent_reads_a_check() -> None:
    check, _ = questions.parse_check_query(query_of(ASKER.may_write(METRICS)))
    assert (check.identity.text, check.database) == ("job7:etl", "main")
    assert tuple(str(ref) for ref in check.metrics) == METRICS


def test_the_agent_reads_several_checks() -> None:
    body = BOTH.may_write(METRICS).request.partition(b"\r\n\r\n")[2]
    checks, as_batch, _ = questions.parse_check_body(body)
    assert as_batch
    assert [check.database for check in checks] == ["main", "replica"]
    assert all(tuple(map(str, check.metrics)) == METRICS for check in checks)


def test_the_agent_reads_a_read_check() -> None:
    check, _ = questions.parse_read_query(query_of(ASKER.may_read(2.5, "lag", None)))
    assert check.read_threshold == 2.5


@pytest.mark.parametrize("admitted", [True, False])
def test_the_sdk_reads_an_answer(admitted: bool) -> None:
    made = decision("main", admitted=admitted)
    answer = parse_answer(answers.encode(answers.answer_doc(made)), ("main",))
    assert answer.admitted is admitted
    assert answer.verdict == made.verdict.value
    if not admitted:
        assert answer.retry_after_s == made.retry_after_s == 1.5


def test_the_sdk_reads_several_answers() -> None:
    made = [decision("main", admitted=True), decision("replica", admitted=False)]
    answer = parse_answer(answers.encode(answers.batch_doc(made)), ("main", "replica"))
    assert answer.verdict == Verdict.UNKNOWN_METRIC.value
    assert [check.admitted for check in answer.checks] == [True, False]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_sdk_knows_the_status_of_every_verdict(verdict: Verdict) -> None:
    """R28, R50: no verdict is taken for unavailability, and only OK admits."""
    document = json.loads(answers.encode(answers.answer_doc(decision("main", admitted=True))))
    document |= {"verdict": verdict.value, "admitted": verdict is Verdict.OK}
    reply = Response(answers.STATUS[verdict], {}, json.dumps(document).encode(), keep_alive=True)
    answer = read_reply(reply, ASKER.may_write(()))
    assert getattr(answer, "admitted", None) is (verdict is Verdict.OK)


def test_the_sdk_reads_a_problem() -> None:
    body = problems.problem(400, "give the database to check", field="database")
    with pytest.raises(InvalidRequest, match="give the database") as caught:
        read_reply(Response(400, {}, body, keep_alive=True), ASKER.may_write(()))
    assert caught.value.field == "database"
