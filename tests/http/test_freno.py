"""freno's tree: gh-ost, freno-client and pt-archiver's plugin work against it unchanged."""

from __future__ import annotations

import json

import pytest

from headgate.core.rules import Rule
from headgate.core.samples import Cause
from tests.http.serving import Served
from tests.http.test_checks import FAR, is_problem

KEYS = ["StatusCode", "Value", "Threshold", "Message"]


@pytest.mark.parametrize("prefix", ["", "/freno"])
@pytest.mark.parametrize(
    "path",
    [
        "/check/gh-ost/mysql/main",
        "/check-if-exists/gh-ost/mysql/main",
        "/check-read/gh-ost/mysql/main/1.5",
        "/check-read-if-exists/gh-ost/mysql/main/1.5",
    ],
)
def test_go(served: Served, prefix: str, path: str) -> None:
    served.measure(lag=0.75)
    reply = served.ask("GET", prefix + path)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert list(json.loads(reply.body)) == KEYS, "freno's members, in freno's order"
    assert reply.json["Message"] == "" and reply.json["StatusCode"] == 200
    head = served.ask("HEAD", prefix + path)
    assert (head.status, head.body) == (200, b"")


def test_the_one_number_is_the_replication_lag_unless_another_metric_refuses(
    served: Served,
) -> None:
    """B3: freno-client takes `Value` for the delay in seconds, and lets readers go by it."""
    path = "/check/gh-ost/mysql/main"
    served.measure(lag=0.75)
    assert served.ask("GET", path).json == {
        "StatusCode": 200,
        "Value": 0.75,
        "Threshold": 5,
        "Message": "",
    }
    served.measure(threads_running=99.0)
    shown = served.ask("GET", path).json
    assert (shown["Value"], shown["Threshold"]) == (0.75, 5)
    assert served.ask("GET", "/aggregated-metrics").json["mysql/main"] == "0.750000"
    served.measure(lag=6.0, threads_running=101.0)
    refused = served.ask("GET", path).json
    assert (refused["Value"], refused["Threshold"]) == (6, 5), "of a refusal: lag first"
    served.measure(lag=0.75, threads_running=101.0)
    refused = served.ask("GET", path).json
    assert (refused["Value"], refused["Threshold"]) == (101, 100), "else the one that refuses"


def test_a_read_check_shows_the_lag_and_the_threshold_it_was_asked_with(served: Served) -> None:
    """B2"""
    served.measure(lag=0.75, threads_running=99.0)
    for threshold in (1.5, 0.5):
        shown = served.ask("GET", f"/check-read/gh-ost/mysql/main/{threshold}").json
        assert (shown["Value"], shown["Threshold"]) == (0.75, threshold)


def test_a_client_that_a_rule_denies_sees_the_lag(served: Served) -> None:
    served.measure(lag=0.75, threads_running=99.0)
    served.rule(Rule("r", "gh-ost", 1.0, FAR))
    shown = served.ask("GET", "/check/gh-ost/mysql/main").json
    assert (shown["StatusCode"], shown["Value"]) == (417, 0.75)


def test_threshold_exceeded_is_429(served: Served) -> None:
    served.measure(lag=7.0)
    for method in ("GET", "HEAD"):
        reply = served.ask(method, "/check/gh-ost/mysql/main")
        assert reply.status == 429
        assert int(reply.headers["Retry-After"]) >= 1
    document = served.ask("GET", "/check/gh-ost/mysql/main").json
    assert document["StatusCode"] == 429
    assert document["Message"].startswith("Threshold exceeded: main: lag is 7 s")


@pytest.mark.parametrize("ratio", [1.0, 0.6])
def test_app_denied_is_417_whether_held_or_diced(served: Served, ratio: float) -> None:
    served.rule(Rule("r", "gh-ost", ratio, FAR))
    reply = served.ask("GET", "/check/gh-ost/mysql/main")
    assert (reply.status, reply.json["StatusCode"]) == (417, 417)
    assert reply.json["Message"].startswith("App denied: rule r refuses")


def test_unknown_store_is_404_and_200_if_exists(served: Served) -> None:
    reply = served.ask("GET", "/check/gh-ost/mysql/nowhere")
    assert (reply.status, reply.json["StatusCode"]) == (404, 404)
    assert reply.json["Message"].startswith("No such metric: ")
    assert served.ask("GET", "/check-if-exists/gh-ost/mysql/nowhere").status == 200
    assert served.ask("HEAD", "/check-read-if-exists/gh-ost/mysql/nowhere/1").status == 200
    served.measure(lag=7.0)
    assert served.ask("GET", "/check-if-exists/gh-ost/mysql/main").status == 429


def test_a_hung_server_is_500_where_freno_stays_200(served: Served) -> None:
    """freno went on answering 200 for as long as one cared to wait."""
    served.lose("lag", Cause.TIMED_OUT, "no answer in 0.5 s")
    reply = served.ask("GET", "/check/gh-ost/mysql/main")
    assert (reply.status, reply.json["StatusCode"]) == (500, 500)
    assert "no answer in 0.5 s" in reply.json["Message"]


def test_read_check_ignores_the_configured_threshold(served: Served) -> None:
    served.measure(lag=9.0)
    assert served.ask("GET", "/check-read/web/mysql/main/10").status == 200
    refused = served.ask("GET", "/check-read/web/mysql/main/2.5")
    assert (refused.status, refused.json["Threshold"]) == (429, 2.5)


@pytest.mark.parametrize("app", ["etl%3Anightly", "etl:nightly"])
def test_names_in_the_path_are_unescaped(served: Served, app: str) -> None:
    before = served.counted("etl:nightly")
    assert served.ask("GET", f"/check/{app}/mysql/main").status == 200
    assert served.counted("etl:nightly") == before + 1


@pytest.mark.parametrize(
    "path",
    [
        "/check",
        "/check/a/mysql",
        "/check/a/mysql/main/",
        "/check-read/a/mysql/main",
        "/freno/check/a",
    ],
)
def test_a_path_of_another_shape_is_404_with_the_right_one(served: Served, path: str) -> None:
    reply = served.ask("GET", path)
    assert is_problem(reply, 404)
    assert "/<app>/<type>/<database>" in reply.json["detail"]


@pytest.mark.parametrize("path", ["/frenocheck/a/mysql/main", "/freno/freno/check/a/mysql/main"])
def test_only_the_tree_itself_is_under_freno(served: Served, path: str) -> None:
    assert is_problem(served.ask("GET", path), 404)


@pytest.mark.parametrize("app", ["%ff", "a%20b", "%00"])
def test_a_name_that_is_none_is_400(served: Served, app: str) -> None:
    assert is_problem(served.ask("GET", f"/check/{app}/mysql/main"), 400)


@pytest.mark.parametrize("path", ["/lb-check", "/_ping", "/status", "/leader-check"])
def test_load_balancers_hear_200(served: Served, path: str) -> None:
    assert served.ask("GET", path).status == 200
    head = served.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")


def test_what_freno_shows(served: Served) -> None:
    served.ask("GET", "/check/gh-ost/mysql/main")
    assert served.ask("GET", "/hostname").body == b"test-agent"
    assert served.ask("GET", "/aggregated-metrics").json["mysql/main"] == "0.250000"
    assert served.ask("GET", "/metrics-health").json["mysql/main"]["SecondsSinceLastHealthy"] <= 5
    assert served.ask("GET", "/recent-apps").json["gh-ost"]["MinutesSinceChecked"] == 0
    assert b"GET /v1/status" in served.ask("GET", "/help").body


def test_what_freno_shows_of_a_lost_metric_is_an_error(served: Served) -> None:
    for metric in ("lag", "threads_running", "pool_usage"):
        served.lose(metric)
    shown = served.ask("GET", "/aggregated-metrics").json["mysql/main"]
    assert shown.startswith("error")
