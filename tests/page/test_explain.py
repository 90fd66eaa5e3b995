"""The page that explains: an identity, now and then; a statement, never in an address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote, urlencode

import msgspec
import pytest

from headgate.check.reasons import WAKES
from headgate.present.explain import StepMark, explain_view
from headgate.present.explain import explained as presented
from headgate.rules.api import ExplainDoc
from tests.http.serving import LOOPS, VIEWER, Served, serving
from tests.http.test_budgets import Traffic
from tests.page.visiting import Visitor, signed_in, text_of

ETL = {"name": "etl", "rate": 20, "capacity": 200, "rules": [{"match": {"username": "etl"}}]}


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    traffic = Traffic({**ETL, "mode": "enforce"})
    with serving(LOOPS["asyncio"], tmp_path_factory.mktemp("explain"), traffic.plan) as served:
        traffic.reads(served)
        yield served


@pytest.fixture
def served(_served: Served) -> Served:
    _served.reset()
    return _served


@pytest.fixture
def ratio(served: Served) -> Iterator[str]:
    """A rule on etl, for as long as the test."""
    raw = json.dumps({"target": "etl", "ratio": 0.5, "reason": "INC-1"}).encode()
    made = served.ask("POST", "/v1/rules", body=raw, unix=True, Content_Type="application/json")
    yield made.json["id"]
    served.ask("DELETE", f"/v1/rules/{made.json['id']}", unix=True)


def explained(served: Served, app: str) -> ExplainDoc:
    reply = served.ask("GET", f"/v1/explain?app={app}&database=main")
    return msgspec.json.decode(reply.body, type=ExplainDoc)


def marks(doc: ExplainDoc) -> dict[str, StepMark]:
    return {step.name: step.mark for step in presented(doc).steps}


# --- steps --------------------------------------------------------------------------------------


def test_an_admitted_check_passes_every_step(served: Served) -> None:
    found = explained(served, "etl:nightly")
    assert StepMark.REJECTS not in marks(found).values()
    assert marks(found)["metrics"] is StepMark.PASSES


@pytest.mark.parametrize(
    ("verdict", "rule", "step"),
    [
        ("ON_HOLD", "r7", "rules"),
        ("ON_HOLD", None, "client"),
        ("REJECTED_BY_RATIO", "r7", "ratio"),
        ("THRESHOLD_EXCEEDED", None, "metrics"),
        ("WRONG_AGENT", None, "client"),
        ("PACED", None, "pacing"),
        ("OVER_BUDGET", None, "budget"),
    ],
)
def test_the_step_that_rejects_is_marked_and_those_behind_it_are_not_reached(
    served: Served, verdict: str, rule: str | None, step: str
) -> None:
    doc = explained(served, "etl")
    doc = msgspec.structs.replace(doc, verdict=verdict, admitted=False, rule=rule)
    found = presented(doc).steps
    at = [one.name for one in found].index(step)
    assert found[at].mark is StepMark.REJECTS
    assert all(one.mark is StepMark.UNREACHED for one in found[at + 1 :])
    assert StepMark.REJECTS not in [one.mark for one in found[:at]]


def test_a_check_that_would_wake_an_idle_database_is_not_called_rejected(served: Served) -> None:
    doc = explained(served, "etl")
    doc = msgspec.structs.replace(
        doc, verdict="METRIC_UNAVAILABLE", admitted=False, idle=True, reason=f"main: {WAKES}"
    )
    found = presented(doc)
    assert (found.word, found.tone, found.why) == (
        "idle",
        "",
        "The next check wakes it (about 1 s)",
    )
    assert marks(doc)["metrics"] is StepMark.IDLE and marks(doc)["pacing"] is StepMark.UNREACHED
    assert StepMark.REJECTS not in marks(doc).values()
    first, why = (str(block) for block in explain_view(doc)[:2])
    assert "IDLE" in first and "REJECTED" not in first and "wakes it" in why


# --- an identity --------------------------------------------------------------------------------


def test_the_empty_page_wants_a_name_or_a_statement(ann: Visitor) -> None:
    shown = text_of(ann.get("/explain"))
    assert "Enter a client’s name, or a statement" in shown


def test_an_identity_is_explained_down_to_what_must_change(
    served: Served, ann: Visitor, ratio: str
) -> None:
    """R144"""
    served.measure(lag=30.0)
    reply = ann.get("/explain", app="etl:nightly", database="main")
    shown = text_of(reply)
    assert reply.status == 200 and "etl:nightly on main: rejected THRESHOLD_EXCEEDED" in shown
    assert "To be admitted:" in shown and "lag must fall from 30 s to 5 s" in shown
    assert ratio in shown and "50% of such checks reach the metrics" in shown
    assert "Metrics rejects" in shown and "Pacing not reached" in shown


def test_by_script_the_address_has_what_was_entered_and_no_more(ann: Visitor) -> None:
    reply = ann.get("/explain?app=etl&database=main&metrics=&at=&scope=", script=True)
    assert reply.headers["HX-Push-Url"] == "/explain?app=etl&database=main"
    assert "<html" not in reply.body.decode()


def test_a_minute_of_the_past_is_explained_in_the_zone_of_the_browser(
    served: Served, ann: Visitor
) -> None:
    served.ask("GET", "/v1/check?app=then:one&database=main")
    shown = text_of(ann.get("/explain", app="then:one", database="main", at="0s", cost="2"))
    assert "All 1 checks were admitted." in shown and "No rule matched it." in shown
    assert "Ignored, since history does not keep it: cost." in shown
    long_ago = ann.get("/explain", app="etl", database="main", at="2026-01-02 07:10")
    assert "2 Jan 2026 07:10 – 07:11" in text_of(long_ago)
    berlin = replace(ann, cookie=f"{ann.cookie}; headgate-zone=Europe%2FBerlin")
    there = berlin.get("/explain", app="etl", database="main", at="2026-01-02 07:10")
    assert "2 Jan 2026 07:10 – 07:11" in text_of(there)
    assert 'title="2026-01-02 06:10:00 UTC"' in there.body.decode()
    lost = replace(ann, cookie=f"{ann.cookie}; headgate-zone=No%2FSuch")
    assert "times are in UTC" in text_of(lost.get("/explain"))


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"app": "a b", "database": "main"}, "must be 1–128 letters"),
        ({"app": "etl", "database": "nowhere", "at": "1h"}, "no database 'nowhere'"),
        ({"app": "etl", "database": "main", "at": "soon"}, "must read like 2026-03-01T07:10Z"),
        ({"app": "etl", "database": "main", "budget": "x"}, "budget needs cpu_s"),
    ],
)
def test_what_cannot_be_explained_is_reported_beside_the_form(
    ann: Visitor, query: dict[str, str], told: str
) -> None:
    reply = ann.get(f"/explain?{urlencode(query)}")
    assert reply.status in (400, 404, 422) and told in text_of(reply)
    assert told in text_of(ann.get(f"/explain?{urlencode(query)}", script=True))
    assert 'id="explain-identity"' in reply.body.decode()


# --- a statement --------------------------------------------------------------------------------

SQL = "select * from t where ssn = '<b>123</b>' /* controller='export' */"


def test_a_statement_is_explained_and_stays_out_of_the_address(served: Served) -> None:
    """R144: and whoever may look may ask."""
    vic = signed_in(served, VIEWER)
    fields = {"sql": SQL, "on": "main", "username": "etl", "cost_ms": "5"}
    reply = vic.post("/explain", fields, script=True)
    shown = text_of(reply)
    assert reply.status == 200 and "On main: it would run" in shown
    assert "controller=export" in shown and "username=etl" in shown and "it matches" in shown
    assert "HX-Push-Url" not in reply.headers and "Location" not in reply.headers
    whole = vic.post("/explain", fields).body.decode()
    assert "ssn = &#39;&lt;b&gt;123" in whole and "<b>123" not in whole


def test_a_statement_that_no_budget_fits_shows_which_limit_it_fails(ann: Visitor) -> None:
    fields = {"sql": SQL, "on": "main", "username": "etl", "cost_ms": "900000"}
    shown = text_of(ann.post("/explain", fields, script=True))
    assert "it would be blocked, by budget etl" in shown and "capacity" in shown
    assert "What would have to change" in shown


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sql": " ", "on": "main"}, "there is no statement"),
        ({"sql": "select 1", "on": ""}, "choose the database"),
        ({"sql": "select 1", "on": "replica"}, "[databases.replica.traffic]"),
        ({"sql": "select 1", "on": "main", "cost_ms": "much"}, "must be a number"),
        ({"sql": "select 1", "on": "main", "workers": "inf"}, "must be a number"),
        ({"sql": "select 1", "on": "main", "remote_address": "home"}, "home"),
    ],
)
def test_a_statement_that_cannot_be_explained_says_why(
    ann: Visitor, fields: dict[str, str], told: str
) -> None:
    reply = ann.post("/explain", fields)
    assert 400 <= reply.status < 500 and told in text_of(reply)
    assert quote("select") not in str(reply.headers)


def test_a_statement_needs_the_forms_own_token(served: Served, ann: Visitor) -> None:
    stale = Visitor(served, ann.cookie, "another")
    assert stale.post("/explain", {"sql": "select 1", "on": "main"}).status == 403
