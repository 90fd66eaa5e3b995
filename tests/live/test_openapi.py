"""The API against its own description: schemathesis makes up requests, the agent answers.

Crashes, statuses and bodies that are not described, headers that are missing, and requests that
fit the description and are rejected: none may show, whatever is asked. What no schema can say is
answered with 422, where the route's own row says which it is. Bounded, and the same requests
every time. They are made up when a test runs: collecting the tests makes none.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, create_test
from schemathesis.generation.hypothesis.builder import HypothesisTestMode as Mode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth

from headgate.http.control import ROUTES, description
from headgate.http.routes import Caller, Route
from tests.http.serving import OPERATOR, Plan, Served, bearer, serving

EXAMPLES = [20, pytest.param(200, marks=pytest.mark.extended)]
"""Besides the route's own example and the bounds of each value."""
BOUNDED = settings(
    deadline=None,
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


@cache
def described(*, rejecting: bool) -> BaseSchema:
    """For the routes whose rows say what no schema can, or those that reject nothing that fits."""
    schema: BaseSchema = schemathesis.openapi.from_dict(description())
    statuses = [*STATES, "417", "424", *(["422"] if rejecting else [])]
    schema.config.checks.positive_data_acceptance.expected_statuses = statuses
    schema.config.checks.negative_data_rejection.expected_statuses = ["4xx", "5xx"]
    return schema


@pytest.fixture(autouse=True)
def constants_of_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis mixes in constants of the modules that are loaded: in another process, or after
    other tests, it would make up other requests."""
    monkeypatch.setattr(providers, "_get_local_constants", Constants)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", LRUCache(1024))


def make_up(route: Route, examples: int, ask: Callable[[Any], None], *modes: Mode) -> None:
    """Requests for a route, the same ones in each run."""
    operation = described(rejecting=bool(route.rejects))[route.path][route.method]
    config = HypothesisTestConfig(
        project=operation.schema.config,
        modes=list(modes or Mode),
        explicit_settings=settings(BOUNDED, max_examples=examples),
        seed=zlib.crc32(f"{examples} {operation.label}".encode()),
    )
    create_test(operation=operation, test_func=ask, config=config)()


def routes_for(*roles: Caller) -> pytest.MarkDecorator:
    found = [route for route in ROUTES if route.answer is not None and route.role in roles]
    return pytest.mark.parametrize("route", found, ids=lambda one: f"{one.method} {one.path}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    with serving(asyncio.SelectorEventLoop, directory, Plan(anonymous_may_pass=True)) as served:
        yield served
        assert served.ask("GET", "/healthz").status == 200


@routes_for(Caller.ANYONE, Caller.OPERATOR)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_what_fits_is_answered_or_its_row_says_why_not(
    route: Route, examples: int, served: Served
) -> None:
    make_up(route, examples, lambda case: ask(case, route, served))


@routes_for(Caller.OPERATOR, Caller.PEER)
def test_nobody_without_a_token_gets_in(route: Route, served: Served) -> None:
    """What agents send each other is read by decoders that take what a newer version adds:
    tests/shard/peers has those."""

    def ask(case: Any) -> None:
        assert case.call_and_validate(base_url=served.base_url).status_code in (401, 403)

    make_up(route, 3, ask, Mode.FUZZING)


def ask(case: Any, route: Route, served: Served) -> None:
    """With an operator's token where one is needed, so that what is made up gets as far as what it
    is to change."""
    if route.method != "GET" and "database" in (case.path_parameters or {}):
        case.path_parameters["database"] = "main"
    is_open = route.role is Caller.ANYONE
    response = case.call_and_validate(
        base_url=served.base_url,
        headers={} if is_open else {"Authorization": bearer(OPERATOR)},
        excluded_checks=[] if is_open else [ignored_auth],
    )
    if response.status_code == 422 and case.meta.generation.mode.is_positive:
        faults = response.json().get("faults", [])
        if case.path == "/v1/rules/favor":  # A rule's target is made of both names together.
            faults = [fault for fault in faults if not fault.startswith("rule.target:")]
        assert [fault for fault in faults if SHAPE.search(fault)] == []
