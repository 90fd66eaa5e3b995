"""Rules over HTTP: set, looked at, changed and lifted; who may, and who is told no."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from headgate.check.decide import decide
from headgate.http.control import description
from headgate.rules.api import explain_doc
from tests.builders import NOW, check, health, metric
from tests.http.conftest import Serve
from tests.http.serving import OPERATOR, VIEWER, Plan, Served, bearer
from tests.http.talk import Reply
from tests.http.test_checks import is_problem

RULES = "/v1/rules"
HALF = {"target": "etl", "ratio": 0.5, "id": "half", "for": "2h"}
HOLD = {"target": "etl", "kind": "hold", "reason": "incident 42", "id": "stop"}
CHECK = "/v1/check?app=etl:nightly&database=main"


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve(Plan())


def change(
    served: Served, method: str, path: str, body: Any = None, token: str = OPERATOR, **more: str
) -> Reply:
    headers: dict[str, Any] = {"Authorization": bearer(token), **more}
    if body is None:
        return served.ask(method, path, **headers)
    raw = json.dumps(body).encode()
    return served.ask(method, path, body=raw, Content_Type="application/json", **headers)


def listed(served: Served, query: str = "") -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = served.ask("GET", f"{RULES}{query}").json["rules"]
    return rules


def described(reply: Reply, path: str, method: str) -> bool:
    """Whether it is as the description says."""
    responses = description()["paths"][path][method]["responses"]
    content = responses[str(reply.status)]["content"]
    schema = content[reply.headers["Content-Type"].split(";")[0]]["schema"]
    whole = {**schema, "components": description()["components"]}
    jsonschema_rs.Draft202012Validator(whole).validate(reply.json)
    return True


def test_a_rule_is_set_seen_and_counts_at_once(served: Served) -> None:
    """R70, R85, R139"""
    reply = change(served, "POST", RULES, HOLD)
    assert reply.status == 201 and described(reply, RULES, "post")
    assert (reply.headers["Location"], reply.headers["ETag"]) == ("/v1/rules/stop", '"1"')
    rejected = served.ask("GET", CHECK)
    assert (rejected.status, rejected.json["rule"]) == (417, "stop")
    assert rejected.json["reason"].endswith("set by ops: incident 42")
    (rule,) = listed(served)
    assert (rule["created_by"], rule["state"], rule["clients"]) == (
        "ops",
        "in_force",
        ["etl:nightly"],
    )
    assert 3540 < rule["left_s"] <= 3600
    one = served.ask("GET", "/v1/rules/stop")
    assert described(one, "/v1/rules/{rule}", "get") and one.headers["ETag"] == '"1"'


def test_a_dry_run_shows_which_clients_match_and_changes_nothing(served: Served) -> None:
    """R140"""
    served.ask("GET", CHECK)
    for method, path, body in [
        ("POST", RULES, HOLD),
        ("POST", f"{RULES}/favor", {"target": "web"}),
    ]:
        reply = change(served, method, f"{path}?dry_run=true", body)
        assert reply.status == 200 and described(reply, path, "post")
    would = change(served, "POST", f"{RULES}?dry_run=true", HOLD).json
    assert (would["clients"], would["clients_total"]) == (["etl:nightly"], 1)
    assert listed(served, "?all=true") == []
    change(served, "POST", RULES, HALF)
    change(served, "PATCH", f"{RULES}/half?dry_run=true", {"ratio": 0.9})
    change(served, "DELETE", f"{RULES}/half?dry_run=true")
    assert [rule["ratio"] for rule in listed(served)] == [0.5]
    assert is_problem(change(served, "DELETE", f"{RULES}/half?dryrun=true"), 400, field="dryrun")


def test_a_ratio_or_an_end_is_changed_alone(served: Served) -> None:
    """R86"""
    before = change(served, "POST", RULES, HALF).json
    after = change(served, "PATCH", f"{RULES}/half", {"ratio": 0.9})
    assert described(after, "/v1/rules/{rule}", "patch")
    assert (after.json["ratio"], after.json["expires_at"]) == (0.9, before["expires_at"])
    extended = change(served, "PATCH", f"{RULES}/half", {"for": "1d"}).json
    assert extended["ratio"] == 0.9 and extended["left_s"] > 86_000


def test_the_loser_of_two_changes_gets_a_conflict(served: Served) -> None:
    change(served, "POST", RULES, HALF)
    assert change(served, "PATCH", f"{RULES}/half", {"ratio": 0.6}, If_Match='"1"').status == 200
    late = change(served, "PATCH", f"{RULES}/half", {"ratio": 0.7}, If_Match='"1"')
    assert is_problem(late, 412)
    assert "revision 2, not 1" in late.json["detail"]
    assert is_problem(change(served, "DELETE", f"{RULES}/half", If_Match='"1"'), 412)
    assert is_problem(change(served, "POST", RULES, HALF), 412)


def test_a_rule_is_lifted_and_listed_as_ended(served: Served) -> None:
    change(served, "POST", RULES, HOLD)
    reply = change(served, "DELETE", f"{RULES}/stop")
    assert reply.status == 200 and described(reply, "/v1/rules/{rule}", "delete")
    assert served.ask("GET", CHECK).status == 200
    assert listed(served) == []
    (ended,) = listed(served, "?all=true")
    assert (ended["state"], ended["lifted_by"]) == ("ended", "ops")
    again = change(served, "DELETE", f"{RULES}/stop")
    assert is_problem(again, 422) and "was already lifted by" in again.json["faults"][0]


def test_favor_is_one_request_and_one_lift(served: Served) -> None:
    """R76"""
    reply = change(served, "POST", f"{RULES}/favor", {"target": "etl", "ratio": 0.8, "for": "2h"})
    assert reply.status == 201 and described(reply, f"{RULES}/favor", "post")
    favored, reduced = reply.json["rules"]
    assert (favored["target"], favored["ratio"]) == ("etl", 0.0)
    assert (reduced["target"], reduced["ratio"]) == ("all", 0.8)
    assert (favored["pair"], reduced["pair"]) == (reduced["id"], favored["id"])
    assert served.ask("GET", CHECK).status == 200
    assert served.ask("GET", "/v1/check?app=web&database=main").status == 429
    lifted = change(served, "DELETE", f"{RULES}/{reduced['id']}").json["rules"]
    assert {rule["id"] for rule in lifted} == {favored["id"], reduced["id"]}
    assert served.ask("GET", "/v1/check?app=web&database=main").status == 200


@pytest.mark.parametrize(
    ("path", "body", "fault"),
    [
        (RULES, {"target": "etl", "ratio": 1.5}, "rule.ratio: is 1.5"),
        (RULES, {"target": "e l", "ratio": 0.5}, "rule.target: is 'e l'"),
        (RULES, {"target": "all", "kind": "hold", "reason": "x"}, "locks out every client"),
        (RULES, {**HALF, "expires_at": "2001-01-01T00:00:00Z", "for": None}, "rule.expires_at"),
        (RULES, {**HALF, "for": "365d"}, "rule.for"),
        (RULES, {"target": "etl", "kind": "metrics", "metrics": ["nope"]}, "unknown metric 'nope'"),
        (RULES, {**HALF, "schedule": "mon 7:00-8:00 Mars/Olympus"}, "does not know the time zone"),
        (RULES, {}, "rule.target: is missing"),
        (f"{RULES}/favor", {"target": "all"}, "favor.target"),
        (f"{RULES}/favor", {}, "favor.target"),
        (f"{RULES}/favor", {"target": "etl", "ratio": 1}, "rule.ratio: is 1"),
        (f"{RULES}/favor", {"target": "etl", "kind": "hold"}, "favor.kind: unknown setting"),
    ],
)
def test_bad_rules_are_rejected_with_the_reason(
    served: Served, path: str, body: dict[str, Any], fault: str
) -> None:
    reply = change(served, "POST", path, body)
    assert is_problem(reply, 422)
    assert fault in "\n".join(reply.json["faults"])
    assert listed(served, "?all=true") == []


def test_a_setting_said_twice_is_rejected(served: Served) -> None:
    raw = b'{"target": "etl", "ratio": 0.1, "ratio": 0.9}'
    reply = served.ask(
        "POST", RULES, body=raw, Content_Type="application/json", Authorization=bearer(OPERATOR)
    )
    assert is_problem(reply, 400, field="ratio") and listed(served) == []


def test_status_and_explain_say_the_same_every_time(served: Served) -> None:
    """R144: an answer that hangs on dice is shown as odds."""
    change(served, "POST", RULES, {"target": "all", "ratio": 0.5})
    for _ in range(12):
        assert served.ask("GET", "/v1/status").json["databases"][0]["verdict"] == "OK"
        seen = served.ask("GET", "/v1/explain?app=etl&database=main").json
        assert (seen["verdict"], seen["odds"]) == ("OK", 0.5)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", RULES, HALF),
        ("POST", f"{RULES}/favor", {"target": "etl"}),
        ("PATCH", f"{RULES}/half", {"ratio": 0.1}),
        ("DELETE", f"{RULES}/half", None),
    ],
)
def test_only_operators_change_rules(served: Served, method: str, path: str, body: Any) -> None:
    assert is_problem(change(served, method, path, body, token=VIEWER), 403)
    assert is_problem(change(served, method, path, body, token="made-up"), 401)
    assert listed(served) == []


def test_what_is_not_there_is_said_so(served: Served) -> None:
    assert is_problem(served.ask("GET", f"{RULES}/nobody"), 404)
    assert is_problem(change(served, "DELETE", f"{RULES}/nobody"), 404)
    assert is_problem(change(served, "PATCH", f"{RULES}/nobody", {"ratio": 0.1}), 404)
    assert is_problem(served.ask("GET", f"{RULES}?all=maybe"), 400, field="all")


def test_a_rule_is_audited_in_readable_words(served: Served) -> None:
    change(served, "POST", RULES, HALF)
    change(served, "PATCH", f"{RULES}/half", {"ratio": 0.9})
    newest, first = served.ask("GET", "/v1/audit").json["audit"]
    assert (first["action"], first["target"], first["who"]) == ("rule.set", "half", "ops")
    assert (newest["before"]["ratio"], newest["after"]["ratio"]) == (0.5, 0.9)
    assert newest["after"]["expires_at"].endswith("Z")


def test_an_explanation_is_as_described(served: Served) -> None:
    """R144"""
    known = health((metric("lag"), 7.0))
    change(served, "POST", RULES, HALF)
    book = served.rules.book
    decision = decide(check("etl:nightly"), known, book, now=NOW, roll=0.1)
    doc = msgspec.to_builtins(explain_doc(decision, book))
    schema = {"$ref": "#/components/schemas/ExplainDoc", "components": description()["components"]}
    jsonschema_rs.Draft202012Validator(schema).validate(doc)
    assert doc["matched"][0]["rule"] == "half"


def test_advice_comes_with_the_rule(served: Served) -> None:
    """R80"""
    body = {"target": "etl", "kind": "metrics", "metrics": ["lag"]}
    told = change(served, "POST", RULES, body).json["advice"]
    assert any("partial exemption from pool_usage, threads_running" in line for line in told)
    assert listed(served)[0]["advice"] == told


def test_partial_exemptions_are_loud_in_status(served: Served) -> None:
    """R80"""
    change(served, "POST", RULES, {"target": "etl", "kind": "metrics", "metrics": ["lag"]})
    told = served.ask("GET", "/v1/status").json["advice"]
    assert any("partial exemption from pool_usage, threads_running" in line for line in told)


def test_many_rules_are_listed_quickly(served: Served) -> None:
    """Who is meant is looked up by client, not by rule."""
    for number in range(50):
        served.ask("GET", f"/v1/check?app=u{number}:etl&database=main")
    change(served, "POST", RULES, HALF)
    (rule,) = listed(served)
    assert rule["clients_total"] == 50 and len(rule["clients"]) == 20
