"""The API against its own description: schemathesis makes up requests, the agent answers.

Crashes, statuses and bodies that are not described, headers that are missing, and requests that
fit the description and are rejected: none may show, whatever is asked. What no schema can say is
answered with 422, where the route's own row says which it is. Bounded, and the same requests
every time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth

from headgate.http.control import ROUTES, description
from headgate.http.routes import Caller
from tests.http.serving import OPERATOR, Plan, Served, bearer, serving

BOUNDED = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
STATES = ["2xx", "401", "403", "404", "409", "412", "413", "421", "429", "5xx"]
"""What depends on state and settings alone: who asks, what there is, what a metric says, how busy
the agent is, how long a body may be. A check is rejected with 417, 424 and 429 as well."""


SHAPE = re.compile(
    r"not (a string|a boolean|a number|a list|a table|null)\b|unknown setting|must be one of"
    r"|must be a list|(characters|entries), at most|is NaN"
    # A text with a unit is in quotes, and no schema has its range.
    r"|is [-0-9.e+]+( s)?, must be (at least|more than|from) [0-9]"
)
"""How settings say that a value has the wrong shape, which a schema can say: no 422 is for that."""


def described(*, rejecting: bool) -> BaseSchema:
    """The routes whose rows say what no schema can, or those that reject nothing that fits."""
    schema: BaseSchema = schemathesis.openapi.from_dict(description())
    for route in ROUTES:
        if (bool(route.rejects) is not rejecting) and route.answer is not None:
            schema = schema.exclude(method=route.method, path=route.path)
    statuses = [*STATES, "417", "424", *(["422"] if rejecting else [])]
    schema.config.checks.positive_data_acceptance.expected_statuses = statuses
    schema.config.checks.negative_data_rejection.expected_statuses = ["4xx", "5xx"]
    return schema


plain, rejecting = described(rejecting=False), described(rejecting=True)
CHANGES = ["PUT", "PATCH", "DELETE", "POST"]
BETWEEN_AGENTS = [route.path for route in ROUTES if route.role is Caller.PEER]
"""Read by decoders that take what a newer version adds: tests/shard/peers has those."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    with serving(asyncio.SelectorEventLoop, directory, Plan(anonymous_may_pass=True)) as served:
        yield served
        assert served.ask("GET", "/healthz").status == 200


@plain.parametrize()
@BOUNDED
def test_what_fits_the_description_is_answered(case: Any, served: Served) -> None:
    case.call_and_validate(base_url=served.base_url)


@rejecting.parametrize()
@BOUNDED
def test_what_is_rejected_all_the_same_is_said_in_its_row(case: Any, served: Served) -> None:
    case.call_and_validate(base_url=served.base_url)


@plain.include(method=CHANGES).exclude(path=BETWEEN_AGENTS).parametrize()
@BOUNDED
def test_a_change_that_fits_is_made(case: Any, served: Served) -> None:
    change(case, served)


@rejecting.include(method=CHANGES).parametrize()
@BOUNDED
def test_a_change_that_is_rejected_all_the_same_is_said_in_its_row(
    case: Any, served: Served
) -> None:
    change(case, served)


def change(case: Any, served: Served) -> None:
    """With an operator's token, so that what is made up reaches what it is to change."""
    if case.path_parameters and "database" in case.path_parameters:
        case.path_parameters["database"] = "main"
    headers = {"Authorization": bearer(OPERATOR)}
    response = case.call_and_validate(
        base_url=served.base_url, headers=headers, excluded_checks=[ignored_auth]
    )
    if response.status_code == 422 and case.meta.generation.mode.is_positive:
        faults = response.json().get("faults", [])
        if case.path == "/v1/rules/favor":  # A rule's target is made of both names together.
            faults = [fault for fault in faults if not fault.startswith("rule.target:")]
        assert [fault for fault in faults if SHAPE.search(fault)] == []
