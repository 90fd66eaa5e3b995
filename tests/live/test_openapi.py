"""The API against its own description: schemathesis makes up requests, the agent answers.

Crashes, statuses and bodies that are not described, and headers that are missing: none may
show, whatever is asked. Bounded, and the same requests every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from headgate.http.openapi import document
from tests.http.serving import OPERATOR, Plan, Served, bearer, serving

BOUNDED = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    with serving(asyncio.SelectorEventLoop, directory, Plan(anonymous_may_pass=True)) as served:
        yield served
        assert served.ask("GET", "/healthz").status == 200


@schema.parametrize()
@BOUNDED
def test_the_agent_answers_as_described(case: Any, served: Served) -> None:
    beyond = [positive_data_acceptance] if is_beyond_schemas(case) else []
    case.call_and_validate(base_url=served.base_url, excluded_checks=beyond)


def is_beyond_schemas(case: Any) -> bool:
    """Where parameters must go together, which no schema of one can say: shard scope and its
    metrics, a span's beginning and end and step, a past instant and what it excludes, a budget
    and what it is charged; and a rule is judged beyond its shape."""
    spans = (
        "/v1/history/timeline",
        "/v1/history/metrics",
        "/v1/history/clients",
        "/v1/replay",
    )
    return (
        "shard" in repr((case.query, case.body))
        or case.path in spans
        or "at" in (case.query or {})
        or _names_half_a_debit(case.query)
        or _names_half_a_debit(case.body)
    )


def _names_half_a_debit(asked: Any) -> bool:
    if not isinstance(asked, dict):
        return False
    return (asked.get("budget") is None) is not (asked.get("cpu_s") is None)


@schema.include(method=["PUT", "PATCH", "DELETE"]).parametrize()
@BOUNDED
def test_changes_are_answered_as_described(case: Any, served: Served) -> None:
    """With an operator's token, so that what is made up reaches the metrics."""
    if case.path_parameters:
        case.path_parameters["database"] = "main"
    case.call_and_validate(
        base_url=served.base_url,
        headers={"Authorization": bearer(OPERATOR)},
        # Settings are judged beyond their shape: a valid object may still be refused.
        excluded_checks=[ignored_auth, positive_data_acceptance],
    )
