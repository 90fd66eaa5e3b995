"""A body is an answer, or an error that says what is wrong with it. Never a guess."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.answers import Answer, MetricAnswer
from headgate.client.parsing import BadAnswer, parse_answer
from tests.client import bodies
from tests.client.bodies import encoded


def parse(document: Any, *databases: str) -> Answer:
    return parse_answer(encoded(document), databases or ("main",))


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def test_a_rejection_keeps_all_that_was_said() -> None:
    answer = parse(bodies.rejection())
    assert not answer
    assert answer.verdict == "THRESHOLD_EXCEEDED"
    assert answer.reason == bodies.REASON
    assert answer.retry_after_s == 1.43
    assert answer.utilization == 1.44
    lag, threads = answer.metrics
    assert lag == MetricAnswer("lag", "host", "breached", 7.2, "s", 5.0, ">", 0.412, None, "", None)
    assert (threads.value, threads.cause, threads.unavailable_for_s) == (None, "timed_out", 2.21)
    assert answer.raw["app"] == "etl:nightly"


def test_only_an_admission_is_true() -> None:
    assert parse(bodies.ok())
    assert not parse(bodies.rejection())


@pytest.mark.parametrize("name", ["admitted", "raw", "colour"])
def test_a_no_cannot_be_made_a_yes(name: str) -> None:
    answer = parse(bodies.rejection())
    with pytest.raises(AttributeError):
        setattr(answer, name, True)
    with pytest.raises(AttributeError):
        delattr(answer, name)
    with pytest.raises(AttributeError):
        setattr(answer.metrics[0], "state", "healthy")  # noqa: B010 -- mypy would reject it first
    assert answer == parse(bodies.rejection())


def test_an_answer_is_no_sequence() -> None:
    """`for row in gate.check()` and `ok, why = gate.check()` are mistakes, and say so."""
    answer: Any = parse(bodies.ok())
    with pytest.raises(TypeError):
        iter(answer)
    with pytest.raises(TypeError):
        len(answer)
    assert answer != tuple(getattr(answer, name) for name in Answer.__match_args__)


def test_the_text_of_an_answer_leaves_out_the_raw_document() -> None:
    answer = Answer("OK", admitted=True, reason="fine", raw={"token": "hunter2"})
    assert repr(answer) == (
        "Answer(verdict='OK', admitted=True, reason='fine', retry_after_s=None, utilization=None, "
        "metrics=(), database='', checks=(), read_only=False, unthrottled=False, check_at=None, "
        "check_at_database=None, decided='agent')"
    )


def test_answers_are_equal_by_what_was_said() -> None:
    said, again = parse(bodies.rejection()), parse(bodies.rejection(colour="red"))
    assert said == again
    assert hash(said) == hash(again)
    assert said != parse(bodies.rejection(reason="another"))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_an_answer_can_be_handed_to_another_process(copied: Callable[[Answer], Answer]) -> None:
    answer = parse(bodies.batch(bodies.ok("a"), bodies.rejection("b")), "a", "b")
    assert copied(answer) == answer
    assert copied(answer).raw == answer.raw


def test_the_fields_of_an_answer_are_its_arguments_in_order() -> None:
    values: list[Any] = [object() for _ in Answer.__match_args__]
    answer = Answer(*values)
    assert [getattr(answer, name) for name in Answer.__match_args__] == values


def test_fields_of_a_newer_agent_are_ignored() -> None:
    newer = bodies.rejection(colour="red", metrics=[bodies.LAG | {"trend": "up"}])
    assert parse(newer) == parse(bodies.rejection(metrics=[bodies.LAG]))


@pytest.mark.parametrize(
    "name",
    ["verdict", "admitted", "database", "reason", "retry_after_ms", "utilization", "metrics"],
)
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BadAnswer, match=f"'{name}' is missing"):
        parse(without(bodies.ok(), name))


@pytest.mark.parametrize("name", list(bodies.LAG))
def test_a_missing_field_of_a_metric_is_named(name: str) -> None:
    with pytest.raises(BadAnswer, match=f"'{name}' is missing"):
        parse(bodies.rejection(metrics=[without(bodies.LAG, name)]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"admitted": 1}, "neither true nor false"),
        ({"admitted": "true"}, "neither true nor false"),
        ({"admitted": False}, "contradicts itself"),
        ({"verdict": "THRESHOLD_EXCEEDED"}, "contradicts itself"),
        ({"verdict": None}, "'verdict' is not text"),
        ({"database": "other"}, "it is about 'other'"),
        ({"utilization": "high"}, "'utilization' is not a number"),
        ({"utilization": True}, "'utilization' is not a number"),
        ({"utilization": float("nan")}, "not a finite number"),
        ({"utilization": float("inf")}, "not a finite number"),
        ({"utilization": 10**400}, "not a finite number"),
        ({"retry_after_ms": "soon"}, "'retry_after_ms' is not a number"),
        ({"metrics": None}, "not a list of objects"),
        ({"metrics": ["lag"]}, "not a list of objects"),
    ],
)
def test_a_field_that_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        parse(bodies.ok(**change))


@pytest.mark.parametrize("body", [b"", b"OK", b"{", b"[" * 100_000, b"\xff\xfe{}", b"1" * 5000])
def test_what_is_not_json_is_rejected(body: bytes) -> None:
    with pytest.raises(BadAnswer, match="not JSON"):
        parse_answer(body, ("main",))


@pytest.mark.parametrize("body", [b"[]", b"true", b"null", b'"OK"', b"200"])
def test_json_that_is_no_object_is_rejected(body: bytes) -> None:
    with pytest.raises(BadAnswer, match="not an object"):
        parse_answer(body, ("main",))


def test_no_rejection_parks_a_client_forever() -> None:
    assert parse(bodies.rejection(retry_after_ms=1e15)).retry_after_s == 3600
    assert parse(bodies.rejection(retry_after_ms=-5)).retry_after_s == 0


def test_several_databases_admit_together() -> None:
    answer = parse(bodies.batch(bodies.ok("a"), bodies.ok("b", utilization=0.7)), "a", "b")
    assert answer
    assert answer.utilization == 0.7
    assert [check.database for check in answer.checks] == ["a", "b"]


def test_several_databases_are_rejected_together() -> None:
    answer = parse(bodies.batch(bodies.ok("a"), bodies.rejection("b")), "a", "b")
    assert not answer
    assert answer.reason == bodies.REASON
    assert [metric.metric for metric in answer.metrics] == ["lag", "threads_running"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (bodies.batch(bodies.ok("a")), "holds 1 answers, and 2"),
        (bodies.batch(bodies.ok("b"), bodies.ok("a")), "it is about 'b'"),
        (
            bodies.batch(bodies.ok("a"), bodies.rejection("b"), verdict="OK", admitted=True),
            "its parts: OK, THRESHOLD_EXCEEDED",
        ),
        (bodies.ok("a"), "'checks' is missing"),
    ],
)
def test_a_batch_that_is_not_whole_is_rejected(document: Any, message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        parse(document, "a", "b")


# Listed, not generated: a test of fields needs few kinds of value, and needs them fast.
json_values: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 10**400, 0.5, float("nan"), "", "OK", "main", [], [{}], {}, ["OK"]]
)


@given(st.dictionaries(st.sampled_from(sorted(bodies.ok())), json_values))
def test_no_changed_body_raises_anything_else(changes: dict[str, Any]) -> None:
    try:
        answer = parse(bodies.ok() | changes)
    except BadAnswer:
        return
    assert answer.admitted == (answer.verdict == "OK")
