"""The policy for proxies that have no folder here: whole, by its tag, and cheap when unchanged."""

from __future__ import annotations

import pytest

from headgate.budgets.parse import parse_policy
from headgate.budgets.service import TrafficPlan
from tests.budgets.budget_world import ETL, WEB
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.test_budgets import Traffic, put
from tests.http.test_checks import is_problem
from tests.http.test_ruling import change, described

PATH = "/v1/policies/{database}"
MAIN = "/v1/policies/main"


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve(Traffic({**ETL, "mode": "enforce"}).plan)


def test_the_policy_is_served_as_servers_get_it(served: Served) -> None:
    reply = served.ask("GET", MAIN)
    assert reply.status == 200 and described(reply, PATH, "get")
    [budget] = parse_policy(reply.json["document"]).budgets
    assert (budget.name, budget.mode.value) == ("etl", "enforce")


def test_an_unchanged_policy_is_answered_without_its_body(served: Served) -> None:
    tag = served.ask("GET", MAIN).headers["ETag"]
    again = served.ask("GET", MAIN, If_None_Match=tag)
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    other = served.ask("GET", MAIN, If_None_Match='"0-00000000"')
    assert other.status == 200


def test_a_change_and_the_switch_for_all_show_at_once(served: Served) -> None:
    tag = served.ask("GET", MAIN).headers["ETag"]
    assert put(served, body=WEB).status == 201
    changed = served.ask("GET", MAIN, If_None_Match=tag)
    assert changed.status == 200
    assert len(changed.json["document"]["budgets"]) == 2
    assert change(served, "PATCH", "/v1/budgets/main", {"mode_cap": "off"}).status == 200
    capped = served.ask("GET", MAIN, If_None_Match=changed.headers["ETag"])
    assert {b["mode"] for b in capped.json["document"]["budgets"]} == {"off"}


def test_a_budget_that_has_ended_is_no_longer_served(serve: Serve) -> None:
    ended = {**ETL, "expires_at": "2023-11-14T22:13:30Z"}
    served = serve(Traffic(ended, {**WEB, "name": "web"}).plan)
    told = served.ask("GET", MAIN).json["document"]["budgets"]
    assert [budget["name"] for budget in told] == ["web"]


def test_no_policy_is_not_an_empty_one(serve: Serve) -> None:
    """A proxy that asks a new agent keeps what it has."""
    served = serve(Plan(traffic=TrafficPlan("main")))
    assert is_problem(served.ask("GET", MAIN), 404)
    assert is_problem(served.ask("GET", "/v1/policies/nowhere"), 404)
