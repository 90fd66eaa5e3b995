"""Clients tell over HTTP how long they worked without a throttler, and operators see it (R55)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.history.unthrottled import EACH
from headgate.history.unthrottled_api import MAX_PERIODS
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import Reply
from tests.http.test_checks import is_problem

PATH = "/v1/unthrottled"


def period(number: int, **changes: Any) -> dict[str, Any]:
    told = {"id": f"{number:032x}", "ended_ago_ms": 1500, "duration_ms": 53_000, "pieces": 421}
    return told | changes


def tell(served: Served, body: Any, kind: str = "application/json") -> Reply:
    sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with served.talk() as talk:
        return talk.ask("POST", PATH, body=sent, **{"Content-Type": kind})


def report(app: str, *periods: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"app": app, "databases": ["main"], "periods": list(periods)} | changes


def test_a_period_is_reported_and_seen(served: Served) -> None:
    app = "etl:told"
    assert tell(served, report(app, period(1), period(2, pieces=1, ended_ago_ms=2500))).json == {
        "taken": 2
    }
    assert tell(served, report(app, period(1))).json == {"taken": 0}
    seen = served.ask("GET", f"{PATH}?since=1h&app={app}").json["unthrottled"]
    assert [(one["client"], one["duration_s"], one["pieces"]) for one in seen] == [
        (app, 53.0, 421),
        (app, 53.0, 1),
    ]
    assert seen[0]["databases"] == ["main"]
    assert 1.5 <= seen[0]["ended_s_ago"] < 60
    assert served.ask("GET", f"{PATH}?since=1s&app={app}").json["unthrottled"] == []
    of_level = served.ask("GET", f"{PATH}?app=told").json["unthrottled"]
    assert len(of_level) == 2


def test_it_is_in_history_and_status_and_not_in_the_audit(served: Served) -> None:
    """H5: of the audit, nobody without a token can push an operator's change out of sight."""
    tell(served, report("etl:shown", period(11)))
    history = served.ask("GET", "/v1/history?app=etl:shown").json
    assert [one["pieces"] for one in history["unthrottled"]] == [421]
    advice = served.ask("GET", "/v1/status").json["advice"]
    assert any("etl:shown worked without a throttler for 53.0 s" in told for told in advice)
    entries = served.ask("GET", "/v1/audit?limit=1000").json["audit"]
    assert not [e for e in entries if "unthrottled" in e["action"] or "client:" in e["who"]]


def test_a_flood_of_reports_is_rejected(serve: Serve) -> None:
    """H5."""
    served = serve(Plan())
    sent = msgspec.json.encode(report("etl:flood", period(21)))
    with served.talk() as talk:
        for _ in range(EACH.burst * 2):
            kind = {"Content-Type": "application/json"}
            if (reply := talk.ask("POST", PATH, body=sent, **kind)).status != 200:
                break
    assert is_problem(reply, 429)
    assert int(reply.headers["retry-after"]) >= 1
    assert served.ask("GET", "/v1/status").status == 200, "only reports wait"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        report("etl"),
        report("", period(1)),
        report("a b", period(1)),
        report("x" * 300, period(1)),
        report("etl", period(1), databases=[]),
        report("etl", period(1), databases=["x y"]),
        report("etl", period(1), databases=["d"] * 65),
        report("etl", period(1), more=1),
        report("etl", period(1, more=1)),
        report("etl", period(1, id="short")),
        report("etl", period(1, id="G" * 32)),
        report("etl", period(1, pieces=0)),
        report("etl", period(1, pieces=2**60)),
        report("etl", period(1, pieces=1.5)),
        report("etl", period(1, duration_ms=-1)),
        report("etl", period(1, ended_ago_ms=8 * 86_400_000)),
        report("etl", *(period(n) for n in range(MAX_PERIODS + 1))),
    ],
)
def test_what_is_no_report_is_rejected(served: Served, body: Any) -> None:
    reply = tell(served, body)
    assert reply.status == 400
    field = reply.json.get("field")
    assert is_problem(reply, 400, field=field)


def test_another_kind_of_body_is_rejected(served: Served) -> None:
    assert is_problem(tell(served, report("etl", period(1)), kind="text/plain"), 415)


def test_a_body_beyond_the_limit_is_rejected(served: Served) -> None:
    with served.talk() as talk:
        reply = talk.ask("POST", PATH, body=b" " * 70_000, **{"Content-Type": "application/json"})
    assert reply.status == 413


@pytest.mark.parametrize("since", ["1y", "", "-1h"])
def test_a_since_that_is_none_is_rejected(served: Served, since: str) -> None:
    assert is_problem(served.ask("GET", f"{PATH}?since={since}"), 400, field="since")
