"""Checks that name a budget, over HTTP (R146)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.budgets.service import Gear, TrafficPlan
from tests.budgets.budget_world import document
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import Reply
from tests.http.test_checks import is_problem

FULL: dict[str, Any] = {"name": "etl", "mode": "enforce", "rate": 1, "capacity": 100}
"""Of one CPU: holds one second of CPU, and takes 100 s to drain it."""


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve(Plan(traffic=TrafficPlan("main", document(FULL), open_gear=Gear)))


def ask(served: Served, query: str = "budget=etl&cpu_s=0.6", path: str = "/v1/check") -> Reply:
    return served.ask("GET", f"{path}?app=etl:nightly&database=main&{query}")


def test_the_first_goes_and_the_second_comes_back_later(served: Served) -> None:
    first, second = ask(served), ask(served)
    assert (first.status, first.json["verdict"]) == (200, "OK")
    assert first.json["budget"] == {
        "budget": "etl",
        "state": "charged",
        "cost_s": 0.6,
        "debt_s": 0.0,
        "capacity_s": 1.0,
        "note": "",
        "ledger": "the agent's own",
    }
    assert (second.status, second.json["verdict"]) == (429, "OVER_BUDGET")
    assert "the check declares 0.600 s, the limit is 1.000 s" in second.json["reason"]
    assert 19_000 < second.json["retry_after_ms"] <= 30_000
    assert int(second.headers["retry-after"]) >= 19
    assert second.json["budget"]["state"] == "over"


def test_the_same_request_is_decided_again_each_time(served: Served) -> None:
    """The bytes of an admission are kept for questions that are alike: never these."""
    owed = [ask(served, "budget=etl&cpu_s=0.1").json["budget"]["debt_s"] for _ in range(3)]
    assert owed == pytest.approx([0.0, 0.1, 0.2], abs=0.01)


def test_a_check_without_a_budget_is_charged_none(served: Served) -> None:
    assert ask(served, "detail=false").json["budget"] is None


def test_to_explain_charges_nothing(served: Served) -> None:
    for _ in range(3):
        explained = ask(served, path="/v1/explain")
        assert (explained.json["verdict"], explained.json["budget"]["debt_s"]) == ("OK", 0.0)


def test_an_unknown_budget_is_a_404_with_the_nearest_name(served: Served) -> None:
    rejected = ask(served, "budget=elt&cpu_s=1")
    assert (rejected.status, rejected.json["verdict"]) == (404, "UNKNOWN_METRIC")
    assert "did you mean 'etl'?" in rejected.json["reason"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("budget=etl", "cpu_s"),
        ("cpu_s=1", "budget"),
        ("budget=&cpu_s=1", "budget"),
        ("budget=etl&cpu_s=0", "cpu_s"),
        ("budget=etl&cpu_s=nan", "cpu_s"),
        ("budget=etl&cpu_s=10001", "cpu_s"),
        (f"budget={'x' * 64}&cpu_s=1", "budget"),
    ],
)
def test_half_a_wish_is_rejected_with_its_place(served: Served, query: str, field: str) -> None:
    halves = ("budget=etl", "cpu_s=1")
    assert is_problem(ask(served, query), 422 if query in halves else 400, field=field)


def post(served: Served, body: dict[str, Any]) -> Reply:
    raw = json.dumps({"app": "etl", **body}).encode()
    return served.ask("POST", "/v1/check", body=raw, content_type="application/json")


def test_a_posted_check_debits_alike(served: Served) -> None:
    body = {"database": "main", "budget": "etl", "cpu_s": 0.6}
    assert [post(served, body).status for _ in range(2)] == [200, 429]


def test_a_check_of_several_databases_names_no_budget(served: Served) -> None:
    body = {"checks": [{"database": "main"}], "budget": "etl", "cpu_s": 1}
    reply = post(served, body)
    assert is_problem(reply, 400, field="budget")
    assert "check it alone" in reply.json["detail"]
