"""The description for programs: valid, complete, and true of what is answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import jsonschema_rs
import pytest

from headgate.base.declared import Table
from headgate.budgets.limits import BUDGET_SETTINGS
from headgate.check.questions import FRENO_ROUTES
from headgate.http.control import ROUTES, description
from headgate.http.openapi import FIELDS
from headgate.http.routes import Caller, NoQuery, Route, SettingsBody, Unread
from headgate.metrics.settings import METRIC_SETTINGS
from headgate.rules.api import RuleDoc
from headgate.rules.matching import Kind
from headgate.rules.settings import RULE_SETTINGS
from tests.fixtures.api import validator
from tests.http.serving import OPERATOR, Served, bearer
from tests.http.test_checks import CHECK, post
from tests.http.test_control import LAG

METHODS = {"get", "put", "post", "patch", "delete"}
DESCRIBED = [route for route in ROUTES if route.answer is not None]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in description()["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_it_is_served_as_it_is(served: Served) -> None:
    reply = served.ask("GET", "/openapi.json")
    assert reply.json == json.loads(json.dumps(description()))
    assert reply.json["openapi"].startswith("3.1.")
    assert reply.json["info"]["title"] and reply.json["info"]["version"]


def test_every_schema_is_a_schema() -> None:
    for name, schema in description()["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        assert jsonschema_rs.meta.is_valid(schema), name


def test_every_field_is_described() -> None:
    """By the string below it, or by what its name means everywhere."""
    for name, schema in description()["components"]["schemas"].items():
        for field, one in schema.get("properties", {}).items():
            assert one["description"], f"{name}.{field}: describe it there, or in http/openapi.py"
    shard = description()["components"]["schemas"]["MemberDoc"]["properties"]
    assert (
        shard["upstream"]["description"] == "host:port that it replicates from; empty on a primary."
    )


def test_no_meaning_is_kept_of_a_field_that_no_document_has() -> None:
    known = description()["components"]["schemas"].values()
    assert {name for schema in known for name in schema.get("properties", {})} >= set(FIELDS)


def test_every_reference_leads_somewhere() -> None:
    known = description()["components"]["schemas"]
    for target in re.findall(r'"\$ref": "([^"]+)"', json.dumps(description())):
        assert target.removeprefix("#/components/schemas/") in known


def test_every_operation_is_well_formed() -> None:
    for path, method, operation in operations():
        assert method in METHODS
        assert operation["summary"] and operation["responses"]
        names = [(p["in"], p["name"]) for p in operation["parameters"]]
        assert len(names) == len(set(names))
        in_path = {name for place, name in names if place == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
        assert all(p["required"] for p in operation["parameters"] if p["in"] == "path")
        for status, response in operation["responses"].items():
            assert 200 <= int(status) < 600 and response["description"]
            for content in response.get("content", {}).values():
                assert "schema" not in content or validator(content["schema"])


def test_every_route_is_described() -> None:
    described = {(method.upper(), path) for path, method, _ in operations()}
    assert described == {(route.method, route.path) for route in DESCRIBED}
    for name in FRENO_ROUTES:
        assert any(path.startswith(f"/{name}/") for path in description()["paths"])
    assert {("GET", "/v1/check"), ("POST", "/v1/check"), ("GET", "/v1/check-read")} <= described


@pytest.mark.parametrize("rows", [METRIC_SETTINGS, RULE_SETTINGS, BUDGET_SETTINGS])
def test_every_setting_of_a_body_says_what_it_takes(rows: Table) -> None:
    assert [name for name, row in rows.items() if row.schema.keys() == {"description"}] == []


def test_a_handler_takes_what_its_row_reads(served: Served) -> None:
    """The table says what a handler is given; mypy, that it uses it so."""
    for route in ROUTES:
        if not route.handler:
            continue
        hints = get_type_hints(served.control.handler(route))
        query, body = get_args(hints["call"])
        given = dict[str, Any] if isinstance(route.body, SettingsBody) else route.body
        is_read = route.body is not None and not isinstance(route.body, Unread)
        assert body == (given if is_read else type(None)), route.handler
        takes = route.query is not None and route.query is not NoQuery
        assert query is route.query or (query is type(None) and not takes), route.handler


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (CHECK, "/v1/check"),
        (f"{CHECK}&detail=true", "/v1/check"),
        ("/v1/check?app=a&database=nowhere", "/v1/check"),
        ("/v1/check?app=a", "/v1/check"),
        ("/v1/check-read?app=a&database=main&threshold=1", "/v1/check-read"),
        ("/check/a/mysql/main", "/check/{app}/{type}/{database}"),
        ("/v1/status", "/v1/status"),
        ("/v1/metrics", "/v1/metrics"),
        ("/v1/metrics?database=nowhere", "/v1/metrics"),
        (LAG, "/v1/databases/{database}/metrics/{metric}"),
        ("/v1/explain?app=a&database=main", "/v1/explain"),
        ("/v1/clients", "/v1/clients"),
        ("/v1/history", "/v1/history"),
        ("/v1/audit", "/v1/audit"),
        ("/v1/audit?limit=0", "/v1/audit"),
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
    ],
)
@pytest.mark.parametrize("lag", [0.25, 7.0])
def test_answers_are_as_described(served: Served, target: str, path: str, lag: float) -> None:
    served.measure(lag=lag)
    reply = served.ask("GET", target)
    content = description()["paths"][path]["get"]["responses"][str(reply.status)]["content"]
    schema = content[reply.headers["Content-Type"].split(";")[0]]["schema"]
    validator(schema).validate(reply.json)


def test_batches_and_changes_are_as_described(served: Served) -> None:
    batch = post(served, {"app": "a", "checks": [{"database": "main"}]})
    described = description()["paths"]["/v1/check"]["post"]["responses"]["200"]["content"]
    validator(described["application/json"]["schema"]).validate(batch.json)
    tried = served.ask(
        "PATCH",
        f"{LAG}?dry_run=true",
        body=b'{"threshold": "6s"}',
        Content_Type="application/json",
        Authorization=bearer(OPERATOR),
    )
    place = description()["paths"]["/v1/databases/{database}/metrics/{metric}"]
    content = place["patch"]["responses"]["200"]["content"]["application/json"]
    validator(content["schema"]).validate(tried.json)


EXAMPLES = [one for one in DESCRIBED if one.role is not Caller.PEER and one.path != "/v1/snapshot"]


@pytest.mark.parametrize("route", EXAMPLES, ids=lambda one: f"{one.method} {one.path}")
def test_every_example_fits_what_it_is_an_example_of(served: Served, route: Route) -> None:
    """What there is not is a 404 or a 409; 400 and 422 would be the example's own fault."""
    sent: dict[str, Any] = {"Authorization": bearer(OPERATOR)}
    if route.body is not None:
        sent |= {"body": json.dumps(route.sends).encode(), "Content_Type": "application/json"}
    reply = served.ask(route.method, route.target, **sent)
    # Only a rule of a fleet can be suspended, and this agent is part of none.
    nowhere = (404, 409, 422) if route.path.endswith("/suspension") else (404, 409)
    assert reply.status in (200, 201, *nowhere), reply.body


def test_a_rules_settings_are_in_its_document_and_in_the_bodies_that_set_it() -> None:
    """A field of the model needs a setting and a place in the document, and no more."""
    ways = {"for", "lock_out"}
    """What is said when a rule is set, and nothing that it has."""
    assert set(RULE_SETTINGS) - ways <= set(RuleDoc.__struct_fields__)
    body = description()["paths"]["/v1/rules"]["post"]["requestBody"]
    variants = body["content"]["application/json"]["schema"]["oneOf"]
    described = {name for variant in variants for name in variant["properties"]}
    assert described == {*RULE_SETTINGS, "reach"} and len(variants) == len(Kind)
