"""Budgets over HTTP: set, looked at, changed; who may, and who is rejected."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.budgets.layers import RESERVED_NAMES
from headgate.budgets.policy import Mode
from headgate.budgets.readings import (
    BucketReading,
    BudgetCounts,
    BudgetReadings,
    PatternReading,
    Seat,
    ServerHealth,
)
from headgate.budgets.service import Gear, TrafficPlan
from headgate.cli.budget import TAKEN_NAMES
from headgate.http.exposition import SERIES
from tests.budgets.budget_world import ETL, WEB, FakeServer, document
from tests.http.conftest import Serve
from tests.http.serving import VIEWER, Plan, Served
from tests.http.talk import Reply
from tests.http.test_checks import is_problem
from tests.http.test_exposition import scraped, value
from tests.http.test_ruling import change, described

BUDGETS = "/v1/budgets"
MAIN = f"{BUDGETS}/main"
PATH = f"{BUDGETS}/{{database}}"
ONE = f"{PATH}/{{name}}"
SECOND_NS = 1_000_000_000
READINGS = BudgetReadings(
    version=7,
    checksum=0xABCD,
    started_ms=1,
    rejected=1,
    rejection="not sound",
    health=ServerHealth.HEALTHY,
    cpus_milli=4000,
    workers=100,
    seats=(Seat(11, 7), Seat(12, 6)),
    budgets={
        "etl": BudgetCounts(
            admitted=5,
            estimated_ns=SECOND_NS,
            charged_ns=3 * SECOND_NS,
            passed=1,
            sleeping=2,
            forgiven_ns=SECOND_NS // 2,
            warned={"burst": 3, "threshold": 1},
            blocked={"capacity": 4},
            early=2,
            delayed=6,
            delayed_ns=2 * SECOND_NS,
            last_violation_ms=1_700_000_000_000,
        )
    },
    buckets=(
        BucketReading("etl", "", 4 * SECOND_NS, 8 * SECOND_NS, 0.5, 3, 10),
        BucketReading("etl", "tenant=acme", 0, 8 * SECOND_NS, 0.0, 0),
    ),
    patterns=(PatternReading(-42, 5, 100, 12.5, 250e6, 400e6, 0.1, 25 * SECOND_NS),),
)


class Traffic:
    """A server that a test can steer, and the plan to reach it."""

    def __init__(self, *budgets: dict[str, Any]) -> None:
        self.server = FakeServer()
        gear = Gear((self.server,), self.server)
        self.plan = Plan(
            traffic=TrafficPlan("main", document(*budgets), "policy.toml", "dir", lambda: gear)
        )

    def reads(self, served: Served, readings: BudgetReadings | str = READINGS) -> None:
        self.server.reads = readings
        served.run_there(served.budgets.tick)


@pytest.fixture
def traffic() -> Traffic:
    return Traffic({**ETL, "mode": "enforce"})


@pytest.fixture
def served(serve: Serve, traffic: Traffic) -> Served:
    return serve(traffic.plan)


def put(served: Served, name: str = "web", body: Any = None, **more: str) -> Reply:
    return change(served, "PUT", f"{MAIN}/{name}", WEB if body is None else body, **more)


# --- looking ---------------------------------------------------------------------------------


def test_the_policy_is_shown_with_what_became_of_it(served: Served, traffic: Traffic) -> None:
    traffic.reads(served)
    reply = served.ask("GET", MAIN)
    assert reply.status == 200 and described(reply, PATH, "get")
    doc = reply.json
    assert doc["document"] == document({**ETL, "mode": "enforce"})
    assert (doc["source"], doc["mode_cap"], doc["changed_at_runtime"]) == (
        "policy.toml",
        "enforce",
        False,
    )
    assert reply.headers["ETag"] == f'"{doc["revision"]}"'
    (outlet,) = doc["published"]
    assert (outlet["where"], outlet["version"], outlet["is_current"]) == ("server a", 1, True)
    assert doc["in_force_version"] == 7 and doc["rejection"] == "not sound"
    (budget,) = doc["budgets"]
    assert (budget["state"], budget["fill"], budget["running"]) == ("enforcing", 0.5, 3)
    assert budget["counts"]["blocked"] == {"capacity": 4}
    assert (
        budget["says"]
        == "20% of the server, up to 200%·s (2 s of the server) of debt; for username=etl"
    )
    every = served.ask("GET", BUDGETS)
    assert described(every, BUDGETS, "get") and len(every.json["databases"]) == 1


def test_what_cannot_be_read_is_no_zero(served: Served) -> None:
    (budget,) = served.ask("GET", MAIN).json["budgets"]
    assert [budget[key] for key in ("counts", "fill", "running")] == [None, None, None]
    state = served.ask("GET", f"{MAIN}/state")
    assert described(state, f"{PATH}/state", "get")
    assert (state.json["fault"], state.json["version"]) == ("not running", None)


def test_the_servers_own_counters_are_shown(served: Served, traffic: Traffic) -> None:
    """R132, R137: version per backend, fill, k and error per pattern."""
    traffic.reads(served)
    reply = served.ask("GET", f"{MAIN}/state")
    assert described(reply, f"{PATH}/state", "get")
    state = reply.json
    assert (state["version"], state["checksum"], state["health"]) == (7, "0000abcd", "healthy")
    assert (state["seats_total"], state["seats_behind"]) == (2, 1)
    assert [bucket["fill"] for bucket in state["buckets"]] == [0.5, 0.0]
    (pattern,) = state["patterns"]
    assert (pattern["query_id"], pattern["k"], pattern["error"]) == ("-42", 12.5, 0.1)


def test_a_database_without_traffic_control_is_distinguished(served: Served) -> None:
    for path in (f"{BUDGETS}/replica", f"{BUDGETS}/nowhere/state", f"{MAIN}/nothing"):
        assert is_problem(served.ask("GET", path), 404)
    detail = served.ask("GET", f"{BUDGETS}/replica").json["detail"]
    assert "[databases.replica.traffic]" in detail and "main" in detail


# --- changing --------------------------------------------------------------------------------


def test_a_budget_is_made_seen_and_published_at_once(served: Served, traffic: Traffic) -> None:
    """R122, R139"""
    reply = put(served)
    assert reply.status == 201 and described(reply, ONE, "put")
    assert reply.headers["Location"] == f"{MAIN}/web"
    assert (reply.json["budget"]["mode"], reply.json["budget"]["origin"]) == ("warn", "runtime")
    assert [told["line"] for told in reply.json["difference"]] == [
        "web: new, warn, burst 0.5s, 1 rule"
    ]
    assert traffic.server.modes == {"etl": "enforce", "web": "warn"}
    seen = served.ask("GET", f"{MAIN}/web")
    assert described(seen, ONE, "get") and seen.headers["ETag"] == reply.headers["ETag"]
    assert put(served).status == 200, "again, it is a change of what is there"
    assert is_problem(put(served, If_None_Match="*"), 412)
    audited = served.ask("GET", "/v1/audit").json["audit"][0]
    assert (audited["who"], audited["action"], audited["target"]) == (
        "ops",
        "budget.set",
        "main/web",
    )


def test_one_setting_is_changed_alone_and_null_takes_one_out(
    served: Served, traffic: Traffic
) -> None:
    reply = change(served, "PATCH", f"{MAIN}/etl", {"mode": "warn", "capacity": None})
    assert reply.status == 200 and described(reply, ONE, "patch")
    assert "capacity" not in reply.json["budget"]["settings"]
    assert reply.json["budget"]["origin"] == "changed"
    assert traffic.server.modes == {"etl": "warn"}


def test_a_dry_run_shows_the_difference_and_changes_nothing(
    served: Served, traffic: Traffic
) -> None:
    """R140"""
    for method, path, body, route in [
        ("PUT", f"{MAIN}/web", WEB, ONE),
        ("PATCH", f"{MAIN}/etl", {"rate": 1}, ONE),
        ("DELETE", f"{MAIN}/etl", None, ONE),
        ("POST", f"{MAIN}/etl/forgive", None, f"{ONE}/forgive"),
        ("PATCH", MAIN, {"mode_cap": "off"}, PATH),
    ]:
        reply = change(served, method, f"{path}?dry_run=true", body)
        assert reply.status == 200 and described(reply, route, method.lower())
        assert reply.json["dry_run"] and reply.json["changed"]
    assert len(traffic.server.policies) == 1
    assert [b["name"] for b in served.ask("GET", MAIN).json["budgets"]] == ["etl"]
    assert is_problem(change(served, "DELETE", f"{MAIN}/etl?dryrun=true"), 400, field="dryrun")


def test_faults_are_reported_by_their_places_and_the_last_good_stays(
    served: Served, traffic: Traffic
) -> None:
    """R132"""
    wrong = change(served, "POST", f"{MAIN}/lint", {"budgets": [{**WEB, "burst": -1, "rat": 5}]})
    assert is_problem(wrong, 422)
    assert any("budgets[0].burst" in fault for fault in wrong.json["faults"])
    assert any("did you mean 'rate'" in fault for fault in wrong.json["faults"])
    one = put(served, body={**WEB, "rate": 120})
    assert one.json["faults"] == ["rate: 120 is more than 100"]
    assert is_problem(put(served, body={**WEB, "name": "other"}), 422)
    assert len(traffic.server.policies) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"[]", 400), (b"{", 400), (b"\xff", 400), (b'{"rate": 1, "rate": 2}', 400)],
)
def test_a_body_that_is_none_is_rejected(served: Served, body: bytes, status: int) -> None:
    reply = served.ask(
        "PATCH", f"{MAIN}/etl", body=body, unix=True, Content_Type="application/json"
    )
    assert is_problem(reply, status, field=reply.json.get("field"))


def test_only_operators_change_and_everybody_looks(served: Served) -> None:
    for method, path, body in [
        ("PATCH", MAIN, {"mode_cap": "off"}),
        ("PUT", f"{MAIN}/web", WEB),
        ("PATCH", f"{MAIN}/etl", {}),
        ("DELETE", f"{MAIN}/etl", None),
        ("POST", f"{MAIN}/etl/forgive", None),
    ]:
        assert is_problem(change(served, method, path, body, token=VIEWER), 403)
        assert is_problem(change(served, method, path, body, token="unknown"), 401)
    assert change(served, "POST", f"{MAIN}/lint", {"budgets": []}, token=VIEWER).status == 200


def test_one_request_stops_everything_and_is_shown_in_the_status(
    served: Served, traffic: Traffic
) -> None:
    reply = change(served, "PATCH", MAIN, {"mode_cap": "off"})
    assert (reply.status, traffic.server.modes) == (200, {"etl": "off"})
    doc = served.ask("GET", MAIN).json
    assert (doc["mode_cap"], doc["budgets"][0]["state"], doc["budgets"][0]["mode"]) == (
        "off",
        "off",
        "enforce",
    )
    advice = served.ask("GET", "/v1/status").json["advice"]
    assert any("--all enforce" in told for told in advice)
    assert is_problem(change(served, "PATCH", MAIN, {"mode_cap": "on"}), 400, field="mode_cap")
    change(served, "PATCH", MAIN, {"mode_cap": "enforce"})
    assert traffic.server.modes == {"etl": "enforce"}


def test_debt_is_forgiven(served: Served, traffic: Traffic) -> None:
    reply = change(served, "POST", f"{MAIN}/etl/forgive")
    assert reply.status == 200 and described(reply, f"{ONE}/forgive", "post")
    assert reply.json["budget"]["settings"]["epoch"] == 1


def test_this_agent_alone_is_meant_where_nothing_else_is_said(served: Served) -> None:
    """By no reach, or by its own; the others are for a fleet, and there is none."""
    for more, reach in ((WEB, ""), ({**WEB, "reach": "host"}, ""), (WEB, "?reach=host")):
        reply = change(served, "PUT", f"{MAIN}/web{reach}", more)
        assert reply.status in (200, 201) and reply.json["budget"]["origin"] == "runtime"
    assert change(served, "PATCH", f"{MAIN}/web", {"reach": "host", "burst": 40}).status == 200
    assert served.ask("GET", f"{MAIN}/web?reach=host").json["settings"]["burst"] == 40
    assert change(served, "DELETE", f"{MAIN}/web?reach=host").status == 200
    wider = change(served, "PUT", f"{MAIN}/web", {**WEB, "reach": "shard:commerce/*"})
    assert is_problem(wider, 409, field="reach")


def test_a_server_that_cannot_get_its_policy_is_seen_in_every_place(
    served: Served, traffic: Traffic
) -> None:
    traffic.server.fault = "disk full"
    reply = put(served)
    assert reply.status == 201, "the change is made, and tried again"
    (outlet,) = reply.json["published"]
    assert (outlet["is_current"], outlet["fault"], outlet["failures_total"]) == (
        False,
        "disk full",
        1,
    )
    advice = served.ask("GET", "/v1/status").json["advice"]
    assert any("not published" in told and "disk full" in told for told in advice)
    samples = scraped(served)
    assert value(samples, "headgate_budget_policy_current", database="main") == 0
    assert value(samples, "headgate_budget_publish_failures_total", database="main") == 1


# --- linting, violations ---------------------------------------------------------------------


def test_a_document_is_validated_without_being_taken(served: Served) -> None:
    reply = change(served, "POST", f"{MAIN}/lint", {"budgets": [WEB, {"name": "x", "rate": 5}]})
    assert reply.status == 200 and described(reply, f"{PATH}/lint", "post")
    assert (reply.json["budgets"], reply.json["rules"]) == (2, 1)
    assert reply.json["difference_total"] == 3 and reply.json["advice"]
    assert is_problem(change(served, "POST", f"{MAIN}/lint", {"budget": []}), 422)


def test_violations_are_reported_by_budget_and_minute(served: Served, traffic: Traffic) -> None:
    """R137"""
    traffic.reads(served)
    counts = BudgetCounts(blocked={"capacity": 9, "burst": 1}, warned={"burst": 4}, delayed=7)
    later = BudgetReadings(version=7, checksum=1, started_ms=1, budgets={"etl": counts})
    traffic.reads(served, later)
    reply = served.ask("GET", f"{MAIN}/violations?since=30m")
    assert described(reply, f"{PATH}/violations", "get")
    (told,) = reply.json["budgets"]
    assert (told["blocked"], told["warned"], told["delayed"]) == (
        {"capacity": 5, "burst": 1},
        {"burst": 1},
        1,
    )
    assert sum(m["count"] for m in reply.json["minutes"]) == 8
    assert served.ask("GET", f"{MAIN}/violations?budget=web").json["budgets"] == []
    assert is_problem(served.ask("GET", f"{MAIN}/violations?since=ever"), 400, field="since")


# --- explaining ------------------------------------------------------------------------------


def explain(served: Served, **body: Any) -> Reply:
    return change(served, "POST", f"{MAIN}/explain", body, token=VIEWER)


def test_a_statement_is_explained_by_what_the_server_counts(
    served: Served, traffic: Traffic
) -> None:
    """R144"""
    traffic.reads(served)
    sql = "select 1 /*controller='export'*/"
    reply = explain(served, sql=sql, username="etl", cost_ms=5000)
    assert reply.status == 200 and described(reply, f"{PATH}/explain", "post")
    told = reply.json
    assert (told["verdict"], told["decided_by"], told["limit"]) == ("block", "etl", "capacity")
    assert told["retry_after_ms"] and told["estimate_ms"] == 5000 and told["needed"]
    assert told["tags"] == {"controller": "export"}
    (budget,) = told["budgets"]
    assert (budget["bucket"]["fill"], budget["fails"]) == (0.5, "capacity")
    told = explain(served, sql="select 1", username="etl", query_id="-42").json
    assert (told["estimate_ms"], told["estimate_p90_ms"]) == (250, 400)


def test_a_statement_that_no_rule_matches_runs_and_says_why(served: Served) -> None:
    told = explain(served, sql="select 1", username="web", remote_address="10.0.0.1").json
    assert (told["verdict"], told["budgets"], told["estimate_ms"]) == ("run", [], None)
    (rule,) = told["rules"]
    assert rule["outcome"] == "differs" and "username is web, not etl" in rule["why"]
    (note,) = told["notes"]
    assert "only rules can be explained: not running" in note


def test_without_the_server_nobody_knows(served: Served, traffic: Traffic) -> None:
    told = explain(served, sql="select 1", username="etl", cost_ms=5000)
    assert described(told, f"{PATH}/explain", "post")
    assert (told.json["verdict"], told.json["decided_by"]) == ("unknown", None)
    (budget,) = told.json["budgets"]
    assert (budget["fails"], budget["bucket"]) == ("", None)
    traffic.reads(served)
    told = explain(served, sql="select 1", username="etl").json
    assert told["verdict"] == "depends" and "cost is not known" in told["notes"][0]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sql": "x", "remote_address": "nowhere"},
        {"sql": "x", "query_id": "x"},
        {"sql": "x", "workers": 0},
        {"sql": "x", "cost_ms": -1},
        {"sql": "x", "user": "etl"},
    ],
)
def test_a_query_that_cannot_be_understood_is_rejected(
    served: Served, body: dict[str, Any]
) -> None:
    reply = explain(served, **body)
    assert is_problem(reply, 400, field=reply.json.get("field"))


# --- metrics ---------------------------------------------------------------------------------


def test_every_series_of_budgets_is_there(served: Served, traffic: Traffic) -> None:
    traffic.reads(served)
    samples = scraped(served)
    wanted = {series.name for series in SERIES if series.name.startswith("headgate_budget_")}
    assert wanted <= {name for name, _ in samples}
    etl = {"database": "main", "budget": "etl"}
    assert value(samples, "headgate_budget_blocked_total", **etl, limit="capacity") == 4
    assert value(samples, "headgate_budget_warned_total", **etl, limit="threshold") == 1
    assert value(samples, "headgate_budget_charged_cpu_seconds_total", **etl) == 3
    assert value(samples, "headgate_budget_fill", **etl) == 0.5
    assert value(samples, "headgate_budget_running", **etl) == 3
    main = {"database": "main"}
    assert value(samples, "headgate_budget_policy_published_version", **main) == 1
    assert value(samples, "headgate_budget_policy_in_force_version", **main) == 7
    assert value(samples, "headgate_budget_policy_current", **main) == 1
    traffic.reads(served, "gone")
    samples = scraped(served)
    assert value(samples, "headgate_budget_counters_readable", **main) == 0
    assert value(samples, "headgate_budget_blocked_total", **etl, limit="capacity") is None


# --- bodies that nobody means well -----------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"budgets":[{"name":"a","rate":' + b"9" * 5000 + b"}]}",
        rb'{"\ud800":1}',
        rb'{"budgets":[{"name":"a","\uDFFF":1}]}',
        rb'{"budgets":[{"name":"a","rules":[{"match":{"tag.\ud800":"b"}}]}]}',
        rb'{"budgets":[{"name":"a","rules":[{"each":["tag.\ud800"]}]}]}',
        rb'{"\ud800":1,"\ud800":2}',
    ],
)
def test_what_is_no_text_or_no_number_is_the_askers_fault(served: Served, body: bytes) -> None:
    with served.talk(unix=True) as talk:
        reply = talk.ask("POST", f"{MAIN}/lint", body=body, content_type="application/json")
    assert reply.status == 400, reply.body


def test_a_budget_cannot_have_a_name_of_the_apis_own(served: Served) -> None:
    """It could not be looked at."""
    assert {"replay", "state"} <= RESERVED_NAMES == TAKEN_NAMES
    reply = change(served, "PUT", f"{MAIN}/state", {"rate": 5, "capacity": 50})
    assert reply.status == 405 or "word of the API" in str(reply.body)
    entry = {"database": "main", "name": "state", "rate": 5, "capacity": 50}
    reply = change(served, "POST", "/v1/changes/apply", {"budgets": [entry]})
    assert "word of the API" in str(reply.body)


def test_the_switch_for_all_validates_nothing_again(served: Served, traffic: Traffic) -> None:
    """It has no time to lose: of ten thousand budgets, too."""
    before = served.budgets.of("main").edition
    assert change(served, "PATCH", MAIN, {"mode_cap": "off"}).json["mode_cap"] == "off"
    after = served.budgets.of("main").edition
    assert after.policy is before.policy and after.document is before.document
    assert after.changes.mode_cap is Mode.OFF
