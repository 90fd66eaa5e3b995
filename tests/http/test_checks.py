"""The native check routes, over sockets."""

from __future__ import annotations

import json

import pytest

from headgate.base.problems import CONTENT_TYPE
from headgate.metrics.samples import Cause
from headgate.rules.matching import Rule
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import Reply

CHECK = "/v1/check?app=etl:nightly&database=main"
FAR = 9e12


def post(served: Served, document: object, content_type: str = "application/json") -> Reply:
    body = json.dumps(document).encode()
    return served.ask("POST", "/v1/check", body=body, Content_Type=content_type)


def is_problem(reply: Reply, status: int, *, field: str | None = None) -> bool:
    """RFC 9457, with the members the reference promises."""
    assert reply.status == status, reply.body
    assert reply.headers["Content-Type"] == CONTENT_TYPE
    document = reply.json
    assert document["status"] == status and document["title"] and document["detail"]
    assert document["type"] == "about:blank"
    assert document.get("field") == field, document
    return True


@pytest.mark.parametrize("unix", [False, True])
def test_a_healthy_database_admits(served: Served, unix: bool) -> None:
    """R28: 200 and OK, over TCP and the Unix socket alike."""
    reply = served.ask("GET", CHECK, unix=unix)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Retry-After"] is None
    assert reply.json == {
        "verdict": "OK",
        "admitted": True,
        "app": "etl:nightly",
        "database": "main",
        "reason": "",
        "retry_after_ms": None,
        "utilization": 0.1,
        "rule": None,
        "rules": [],
        "exempted": [],
        "dice_waived": False,
        "read_only": False,
        "check_at": None,
        "check_at_database": None,
        "budget": None,
        "metrics": [],
    }


def test_a_breach_rejects_with_value_threshold_and_age(served: Served) -> None:
    """R2, R10, R29, R143"""
    served.measure(lag=7.25, threads_running=500.0)
    reply = served.ask("GET", CHECK)
    answer = reply.json
    assert (reply.status, answer["verdict"], answer["admitted"]) == (
        429,
        "THRESHOLD_EXCEEDED",
        False,
    )
    assert "lag is 7.25 s, above its threshold of 5 s" in answer["reason"]
    assert "threads_running is 500" in answer["reason"]
    metrics = {metric["metric"]: metric for metric in answer["metrics"]}
    assert metrics["lag"]["state"] == metrics["threads_running"]["state"] == "breached"
    assert metrics["pool_usage"]["state"] == "healthy"
    assert metrics["lag"]["value"] == 7.25 and metrics["lag"]["threshold"] == 5.0
    assert 0 <= metrics["lag"]["age_ms"] < 60_000
    assert answer["utilization"] == 5.0


def test_only_the_named_metrics_count(served: Served) -> None:
    served.measure(lag=7.0)
    assert served.ask("GET", f"{CHECK}&metrics=threads_running,pool_usage").status == 200
    assert served.ask("GET", f"{CHECK}&metrics=threads_running,lag").status == 429
    assert served.ask("GET", f"{CHECK}&metrics=self/lag").status == 429
    assert served.ask("GET", f"{CHECK}&metrics=shard/pool_usage").status == 404
    assert served.ask("GET", f"{CHECK}&metrics=pool_usage&scope=shard").status == 404


def test_a_lost_metric_is_never_healthy(served: Served) -> None:
    """R9, misleading zero: the answer says which metric, why, and for how long."""
    served.lose("lag", Cause.TIMED_OUT, "no answer in 0.5 s")
    answer = served.ask("GET", CHECK)
    assert (answer.status, answer.json["verdict"]) == (424, "METRIC_UNAVAILABLE")
    (lag,) = [m for m in answer.json["metrics"] if m["metric"] == "lag"]
    assert (lag["state"], lag["cause"], lag["detail"]) == (
        "unavailable",
        "timed_out",
        "no answer in 0.5 s",
    )
    assert lag["unavailable_for_ms"] >= 0


@pytest.mark.parametrize(
    "target",
    ["/v1/check?app=a&database=nowhere", f"{CHECK}&metrics=nothing"],
    ids=["database", "metric"],
)
def test_unknown_is_a_verdict_not_a_problem(served: Served, target: str) -> None:
    reply = served.ask("GET", target)
    assert (reply.status, reply.json["verdict"]) == (404, "UNKNOWN_METRIC")
    assert reply.headers["Content-Type"] == "application/json"
    assert int(reply.headers["Retry-After"]) >= 1


def test_rules_reject_before_metrics(served: Served) -> None:
    """A hold is 417, a ratio 429; both name their rule."""
    served.rule(Rule("hold-1", "etl", 1.0, FAR), Rule("half-1", "web", 0.6, FAR))
    held = served.ask("GET", CHECK)
    assert (held.status, held.json["verdict"], held.json["rule"]) == (417, "ON_HOLD", "hold-1")
    diced = served.ask("GET", "/v1/check?app=web:a&database=main")
    assert (diced.status, diced.json["verdict"]) == (429, "REJECTED_BY_RATIO")
    served.dice.lands = 0.7
    assert served.ask("GET", "/v1/check?app=web:a&database=main").status == 200


@pytest.mark.parametrize("app", ["", "anonymous"])
def test_a_check_without_a_name_is_denied(served: Served, app: str) -> None:
    reply = served.ask("GET", f"/v1/check?app={app}&database=main")
    assert (reply.status, reply.json["verdict"]) == (417, "ON_HOLD")
    assert "app=etl:nightly" in reply.json["reason"]


def test_a_check_without_a_name_passes_where_allowed(serve: Serve) -> None:
    served = serve(Plan(anonymous_may_pass=True))
    assert served.ask("GET", "/v1/check?database=main").json["app"] == "anonymous"


def test_head_answers_with_the_status_alone(served: Served) -> None:
    with served.talk() as talk:
        assert (talk.ask("HEAD", CHECK).status, talk.ask("HEAD", CHECK).body) == (200, b"")
        served.measure(lag=7.0)
        rejected = talk.ask("HEAD", CHECK)
        assert (rejected.status, rejected.body) == (429, b"")
        assert int(rejected.headers["Retry-After"]) >= 1
        assert talk.ask("HEAD", "/v1/check?database=%ff").status == 400
        assert talk.ask("HEAD", "/check/a").status == 404
        assert talk.ask("GET", CHECK).status == 429, "the connection is still in step"


def test_release_thundering_herd_is_spread_by_jitter(served: Served) -> None:
    """R143: when to come back lies between one and two probe intervals, by the dice."""
    served.measure(threads_running=500.0)
    told = []
    for lands in (0.0, 0.25, 0.999):
        served.dice.lands = lands
        reply = served.ask("GET", CHECK)
        told.append(reply.json["retry_after_ms"])
        whole = int(reply.headers["Retry-After"])
        assert whole * 1000 >= told[-1] > (whole - 1) * 1000, "rounded up, never down"
    assert told == [1000, 1250, 1999]


def test_detail_lists_metrics_of_an_admission(served: Served) -> None:
    answer = served.ask("GET", f"{CHECK}&detail=true").json
    assert [m["metric"] for m in answer["metrics"]] == ["lag", "threads_running", "pool_usage"]
    assert {m["state"] for m in answer["metrics"]} == {"healthy"}


# --- POST ----------------------------------------------------------------------------------


def test_post_checks_once(served: Served) -> None:
    question = {"app": "etl", "database": "main", "metrics": ["lag", "threads_running"]}
    reply = post(served, question)
    assert (reply.status, reply.json["verdict"], reply.json["database"]) == (200, "OK", "main")
    assert post(served, question, "Application/JSON; charset=utf-8").status == 200
    served.measure(lag=7.0)
    assert post(served, question).status == 429


def test_a_batch_is_admitted_only_whole(served: Served) -> None:
    """All must be admitted; each is counted, and the first rejected one speaks."""
    checks = [{"database": "main", "metrics": ["lag"]}, {"database": "replica"}]
    before = served.counted("batch:1")
    good = post(served, {"app": "batch:1", "checks": checks})
    assert (good.status, good.json["verdict"], good.json["admitted"]) == (200, "OK", True)
    assert [answer["database"] for answer in good.json["checks"]] == ["main", "replica"]
    served.measure(threads_running=500.0)
    bad = post(served, {"app": "batch:1", "checks": checks, "detail": True})
    assert (bad.status, bad.json["verdict"]) == (429, "THRESHOLD_EXCEEDED")
    assert bad.json["reason"].startswith("replica: threads_running")
    assert [answer["admitted"] for answer in bad.json["checks"]] == [True, False]
    assert bad.json["retry_after_ms"] == bad.json["checks"][1]["retry_after_ms"]
    assert int(bad.headers["Retry-After"]) * 1000 >= bad.json["retry_after_ms"]
    assert served.counted("batch:1") - before == 4


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"app": "a"}, "database"),
        ({"app": "a", "checks": []}, "checks"),
        ({"app": "a", "database": "main", "checks": [{"database": "main"}]}, "checks"),
        ({"app": "a", "database": "main", "metric": "lag"}, None),
        ({"app": "a", "database": 5}, "database"),
        ({"app": "a", "database": "main", "metrics": ["lag"] * 33}, "metrics"),
        ({"app": "a", "checks": [{"database": "main"}] * 65}, "checks"),
        ({"app": "a", "database": "main", "cost": 0}, "cost"),
        ({"app": "a b", "database": "main"}, None),
        ({"app": "a", "database": "../x"}, None),
        ({"app": "a", "database": "main", "metrics": ["LAG"]}, None),
        ({"app": "a", "database": "main", "metrics": ["lag"], "scope": "world"}, None),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_a_body_that_is_no_check_is_rejected_with_its_place(
    served: Served, document: object, field: str | None
) -> None:
    assert is_problem(post(served, document), 400, field=field)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 60000, b'{"app":"\\ud800"}'])
def test_a_body_that_is_no_json_is_rejected(served: Served, body: bytes) -> None:
    reply = served.ask("POST", "/v1/check", body=body, Content_Type="application/json")
    assert is_problem(reply, 400)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_rejected(served: Served, content_type: str) -> None:
    assert is_problem(post(served, {"app": "a", "database": "main"}, content_type), 415)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/check", "GET, HEAD, POST"),
        ("DELETE", "/v1/check", "GET, HEAD, POST"),
        ("POST", "/v1/check-read", "GET, HEAD"),
        ("POST", "/check/a/mysql/main", "GET, HEAD"),
        ("POST", "/v1/status", "GET, HEAD"),
        ("POST", "/v1/databases/main/metrics/lag", "DELETE, GET, HEAD, PATCH, PUT"),
        ("TRACE", "/healthz", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_answered_with_the_right_ones(
    served: Served, method: str, path: str, allow: str
) -> None:
    reply = served.ask(method, path)
    assert is_problem(reply, 405)
    assert ", ".join(sorted(reply.headers["Allow"].split(", "))) == allow


# --- queries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("app=a", "database"),
        ("app=a&app=b&database=main", "app"),
        ("app=a&database=main&metric=lag", "metric"),
        ("app=a&database=", None),
        ("app=a&database=%00", None),
        ("app=a&database=%ff%fe", None),
        ("app=%C3%28&database=main", None),
        ("app=a%20b&database=main", None),
        ("app=a::b&database=main", None),
        ("app=" + "a" * 257 + "&database=main", None),
        ("app=" + ":".join("abcdefghi") + "&database=main", None),
        ("app=a&database=main&metrics=" + ",".join(["lag"] * 33), "metrics"),
        ("&".join(f"a{i}=1" for i in range(40)), None),
        ("app=a&database=main&scope=world&metrics=lag", None),
    ],
)
def test_a_query_that_cannot_be_understood_is_rejected(
    served: Served, query: str, field: str | None
) -> None:
    assert is_problem(served.ask("GET", f"/v1/check?{query}"), 400, field=field)


@pytest.mark.parametrize(
    ("escaped", "app"),
    [("etl%3Anightly", "etl:nightly"), ("%C3%BCber", "über"), ("a+b", None), ("a%2Bb", "a+b")],
)
def test_percent_encoding_is_undone_once(served: Served, escaped: str, app: str | None) -> None:
    reply = served.ask("GET", f"/v1/check?app={escaped}&database=main")
    assert reply.status == (200 if app else 400)
    assert app is None or reply.json["app"] == app


# --- read checks ---------------------------------------------------------------------------


def test_a_read_check_uses_the_callers_threshold(served: Served) -> None:
    """R34: and says of itself that it is no permission to write."""
    served.measure(lag=3.0)
    ask = "/v1/check-read?app=web&database=main&threshold="
    assert served.ask("GET", f"{ask}2.5").status == 429
    loose = served.ask("GET", f"{ask}3.5")
    assert (loose.status, loose.json["read_only"]) == (200, True)
    assert served.ask("HEAD", f"{ask}2.5").status == 429
    served.measure(lag=9.0)
    assert served.ask("GET", f"{ask}10").status == 200, "its own threshold is not looked at"
    assert served.ask("GET", f"{ask}10&metric=threads_running").status == 200
    assert served.ask("GET", f"{ask}1&metric=threads_running").status == 429


@pytest.mark.parametrize("threshold", ["", "abc", "0", "-1", "nan", "inf", "1e400", "1e12"])
def test_a_read_threshold_must_be_a_positive_number(served: Served, threshold: str) -> None:
    target = f"/v1/check-read?app=web&database=main&threshold={threshold}"
    assert is_problem(served.ask("GET", target), 400, field="threshold")
    freno = served.ask("GET", f"/check-read/web/mysql/main/{threshold}")
    assert is_problem(freno, 400, field="threshold")


def test_a_read_check_needs_its_threshold(served: Served) -> None:
    reply = served.ask("GET", "/v1/check-read?app=web&database=main")
    assert is_problem(reply, 400, field="threshold")
