"""RFC 9457."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from headgate.base.problems import problem


@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 405, 408, 412, 413, 414, 415, 431, 503, 505]
)
def test_a_problem_names_its_status(status: int) -> None:
    assert json.loads(problem(status, "why")) == {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": "why",
    }


def test_a_problem_names_the_field_and_every_fault() -> None:
    document = json.loads(problem(422, "rejected", field="threshold", faults=["a", "b"]))
    assert (document["field"], document["faults"]) == ("threshold", ["a", "b"])
