"""Paced admission over HTTP: what is asked, what is answered, what operators see (R142, R143)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.pacing.pacer import Pacer
from tests.http.conftest import Serve
from tests.http.serving import OPERATOR, Plan, Served
from tests.http.talk import Reply
from tests.http.test_checks import is_problem
from tests.http.test_exposition import ONLY_PACED, scraped, value

CHECK = "/v1/check?app=etl:nightly&database=main"
FRENO = "/check/gh-ost/mysql/main"
LAG = "/v1/databases/main/metrics/lag"


@pytest.fixture
def paced(serve: Serve) -> Served:
    """Lag of main is paced, and so much was let go that others have to wait."""
    served = serve(Plan())
    assert set_pace(served, True).status == 200
    served.call(served.pacers.look, "main")
    served.call(pacer(served).charge, 1000.0, served.clock.now().mono_s)
    return served


def pacer(served: Served) -> Pacer:
    return served.pacers.by_database["main"]


def set_pace(served: Served, on: bool) -> Reply:
    return served.ask(
        "PATCH",
        LAG,
        body=json.dumps({"pace": on}).encode(),
        Content_Type="application/json",
        Authorization=f"Bearer {OPERATOR}",
    )


def post(served: Served, document: Any) -> Reply:
    body = json.dumps(document).encode()
    return served.ask("POST", "/v1/check", body=body, Content_Type="application/json")


def test_paced_says_when_to_come_back(paced: Served) -> None:
    reply = paced.ask("GET", CHECK)
    assert (reply.status, reply.json["verdict"], reply.json["admitted"]) == (429, "PACED", False)
    assert reply.json["retry_after_ms"] > 0
    assert int(reply.headers["Retry-After"]) >= reply.json["retry_after_ms"] / 1000
    assert "lag" in reply.json["reason"] or "allowance" in reply.json["reason"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_freno_s_clients_are_paced_without_a_change(paced: Served, method: str) -> None:
    reply = paced.ask(method, FRENO)
    assert reply.status == 429
    assert int(reply.headers["Retry-After"]) >= 1
    if method == "GET":
        assert reply.json["StatusCode"] == 429
        assert "allowance" in reply.json["Message"]


def test_a_herd_is_rejected_with_different_times(
    paced: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at one moment: later checks would be told to wait less."""
    moment = paced.clock.now()
    monkeypatch.setattr(paced.clock, "now", lambda: moment)
    waits = []
    with paced.talk() as talk:
        for number in range(20):
            paced.dice.lands = number / 20
            waits.append(talk.ask("GET", CHECK).json["retry_after_ms"])
    assert len(set(waits)) == 20


def test_a_read_check_or_one_with_other_metrics_is_admitted(paced: Served) -> None:
    assert paced.ask("GET", f"{CHECK}&metrics=threads_running").status == 200
    assert paced.ask("GET", "/v1/check-read?app=a&database=main&threshold=2").status == 200
    assert paced.ask("GET", "/v1/check?app=a&database=replica").status == 200


def test_switched_off_while_running_all_go_at_once(paced: Served) -> None:
    assert paced.ask("GET", CHECK).status == 429
    assert set_pace(paced, False).status == 200
    assert paced.ask("GET", CHECK).status == 200


@pytest.mark.parametrize(
    ("query", "cost"), [("", 1.0), ("&cost=250", 250.0)], ids=["no cost", "declared"]
)
def test_what_a_check_declares_is_charged(serve: Serve, query: str, cost: float) -> None:
    served = serve(Plan())
    set_pace(served, True)
    served.call(served.pacers.look, "main")
    assert served.ask("GET", CHECK + query).status == 200
    assert pacer(served).cost_total == cost


def test_freno_s_route_takes_a_cost(serve: Serve) -> None:
    served = serve(Plan())
    set_pace(served, True)
    served.call(served.pacers.look, "main")
    assert served.ask("GET", f"{FRENO}?p=low&cost=40").status == 200
    assert pacer(served).cost_total == 40


@pytest.mark.parametrize("cost", ["0", "-5", "nan", "1e400", "2e9", "lots", ""])
def test_a_bad_cost_is_a_bad_request_that_names_it(served: Served, cost: str) -> None:
    assert is_problem(served.ask("GET", f"{CHECK}&cost={cost}"), 400, field="cost")
    assert is_problem(served.ask("GET", f"{FRENO}?cost={cost}"), 400, field="cost")


def test_a_bad_cost_in_a_batch_is_found_by_its_place(served: Served) -> None:
    checks = [{"database": "main"}, {"database": "replica", "cost": -1}]
    assert is_problem(post(served, {"app": "a", "checks": checks}), 400, field="checks[1].cost")


def test_work_on_two_databases_is_not_charged_to_one_alone(serve: Serve) -> None:
    """The other one rejects it: what was let go here is not going anywhere."""
    served = serve(Plan())
    set_pace(served, True)
    served.call(served.pacers.look, "main")
    served.rule()
    checks = [{"database": "main", "cost": 500}, {"database": "nope"}]
    assert post(served, {"app": "a", "checks": checks}).status == 404
    assert served.ask("GET", CHECK).status == 200


# --- what operators see ------------------------------------------------------------------------


def test_status_shows_the_rate_the_set_point_and_who_waits(paced: Served) -> None:
    paced.ask("GET", CHECK)
    database = next(
        d for d in paced.ask("GET", "/v1/status").json["databases"] if d["database"] == "main"
    )
    pace = database["pace"]
    assert database["verdict"] == "OK"  # The gate is open; that pace comes and goes.
    assert pace["rate"] > 0
    assert pace["starting"] is True
    assert [(p["metric"], p["set_point"]) for p in pace["set_points"]] == [("lag", 2.5)]
    assert (pace["clients"], pace["paced_total"]) == (["etl:nightly"], 1)


def test_a_database_without_a_paced_metric_has_no_pace(served: Served) -> None:
    assert all(d["pace"] is None for d in served.ask("GET", "/v1/status").json["databases"])


def test_explain_says_paced_and_what_would_have_to_change(paced: Served) -> None:
    doc = paced.ask("GET", CHECK.replace("check", "explain")).json
    assert doc["verdict"] == "PACED"
    assert doc["needed"]
    assert doc["pace"]["rate"] > 0
    assert paced.counted("etl:nightly") == 0


def test_the_series_of_a_paced_metric_are_there(paced: Served) -> None:
    paced.ask("GET", CHECK)
    samples = scraped(paced)
    assert {name for name, _ in samples} >= ONLY_PACED
    assert value(samples, "headgate_pace_set_point", database="main", metric="lag") == 2.5
    labels = {"database": "main", "client": "etl:nightly", "verdict": "PACED"}
    assert value(samples, "headgate_checks_total", **labels, scope="", metric="") == 1
