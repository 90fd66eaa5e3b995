"""freno's tree: gh-ost, freno-client and pt-archiver's plugin work against it unchanged."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime

import pytest

from headgate.metrics.samples import Cause
from headgate.rules.matching import Kind, Rule
from headgate.shard.model import ShardView, Skip
from headgate.shard.topology import Following
from tests.builders import member, shard_view
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.test_checks import FAR, is_problem
from tests.http.test_exposition import watching

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


def test_the_one_number_is_the_replication_lag_unless_another_metric_rejects(
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
    rejected = served.ask("GET", path).json
    assert (rejected["Value"], rejected["Threshold"]) == (6, 5), "of a rejection: lag first"
    served.measure(lag=0.75, threads_running=101.0)
    rejected = served.ask("GET", path).json
    assert (rejected["Value"], rejected["Threshold"]) == (101, 100), "else the one that rejects"


def test_a_read_check_shows_the_lag_and_the_threshold_it_came_with(served: Served) -> None:
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
def test_app_denied_is_417_whether_on_hold_or_by_ratio(served: Served, ratio: float) -> None:
    served.rule(Rule("r", "gh-ost", ratio, FAR))
    reply = served.ask("GET", "/check/gh-ost/mysql/main")
    assert (reply.status, reply.json["StatusCode"]) == (417, 417)
    assert reply.json["Message"].startswith("App denied: rule r rejects")


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
    rejected = served.ask("GET", "/check-read/web/mysql/main/2.5")
    assert (rejected.status, rejected.json["Threshold"]) == (429, 2.5)


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
def test_load_balancers_get_200(served: Served, path: str) -> None:
    reply = served.ask("GET", path)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    whole = {"StatusCode": 200, "Message": "OK"}
    assert reply.json == ("HTTP 200" if path == "/leader-check" else whole)
    head = served.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")


def test_what_freno_shows(served: Served) -> None:
    served.ask("GET", "/check/gh-ost/mysql/main")
    assert served.ask("GET", "/hostname").json == "test-agent"
    assert served.ask("GET", "/aggregated-metrics").json["mysql/main"] == "0.250000"
    assert served.ask("GET", "/metrics-health").json["mysql/main"]["SecondsSinceLastHealthy"] <= 5
    assert served.ask("GET", "/recent-apps").json["gh-ost"]["MinutesSinceChecked"] == 0
    listed = served.ask("GET", "/help").json
    assert {"GET /v1/status", "GET /check/{app}/{type}/{database}"} <= set(listed)


def test_what_freno_shows_of_a_lost_metric_is_an_error(served: Served) -> None:
    for metric in ("lag", "threads_running", "pool_usage"):
        served.lose(metric)
    shown = served.ask("GET", "/aggregated-metrics").json["mysql/main"]
    assert shown.startswith("error")


# --- B4: what else freno's scripts ask for, in freno's shapes -----------------------------------


def test_brief_metrics_have_three_digits(served: Served) -> None:
    served.measure(lag=0.75)
    assert served.ask("GET", "/aggregated-metrics?brief=true").json["mysql/main"] == "0.750"
    assert served.ask("GET", "/aggregated-metrics?brief=no").json["mysql/main"] == "0.750000"


def test_recent_apps_of_the_last_minutes(served: Served) -> None:
    served.ask("GET", "/check/gh-ost/mysql/main")
    assert served.ask("GET", "/recent-apps/5").json["gh-ost"]["MinutesSinceChecked"] == 0
    for _, _, record in served.recorder.clients():
        served.call(setattr, record, "last_at", record.last_at - 601)
    assert "gh-ost" not in served.ask("GET", "/recent-apps/5").json
    assert served.ask("GET", "/recent-apps/0").json["gh-ost"]["MinutesSinceChecked"] == 10
    wrong = served.ask("GET", "/recent-apps/x")
    assert (wrong.status, wrong.json["StatusCode"]) == (500, 500)


def test_throttled_apps_are_those_that_rules_reject(served: Served) -> None:
    assert served.ask("GET", "/throttled-apps").json == {}
    now_s = served.clock.now().wall_s
    held = Rule("h", "etl", kind=Kind.HOLD, expires_at=now_s + 60, database="main")
    half = Rule("r", "gh-ost", 0.5)
    more = Rule("s", "gh-ost", 0.9, now_s + 60)
    over = Rule("o", "web", 1.0, now_s - 60)
    spared = Rule("e", "dba", kind=Kind.EXEMPT, expires_at=now_s + 60)
    served.rule(held, half, more, over, spared)
    shown = served.ask("GET", "/throttled-apps").json
    assert {app: one["Ratio"] for app, one in shown.items()} == {"etl/main": 1, "gh-ost": 0.9}
    assert list(shown["gh-ost"]) == ["ExpireAt", "Ratio"]
    ends = datetime.fromisoformat(shown["etl/main"]["ExpireAt"])
    assert ends.timestamp() == pytest.approx(now_s + 60, abs=1)
    served.rule(half)
    forever = served.ask("GET", "/throttled-apps").json["gh-ost"]["ExpireAt"]
    assert forever == "0001-01-01T00:00:00Z", "as freno tells of one that does not end"


def test_skipped_hosts_have_their_end(serve: Serve) -> None:
    served = serve(Plan())
    assert served.ask("GET", "/skipped-hosts").json == {}
    now_s = served.clock.now().wall_s
    skip = Skip("commerce/-80", "db-c", now_s + 600, "ops", "rebuild", now_s)
    watching(served, member("db-b"), member("db-c", skip=skip))
    [(host, until)] = served.ask("GET", "/skipped-hosts").json.items()
    assert host == "db-c"
    assert datetime.fromisoformat(until).timestamp() == pytest.approx(now_s + 600, abs=1)


def test_there_is_no_memcache_to_read_from(served: Served) -> None:
    assert served.ask("GET", "/config/memcache").json == {
        "MemcacheServers": [],
        "MemcachePath": "",
    }


def test_an_agent_that_answers_is_its_own_leader(served: Served) -> None:
    for path in ("/raft/leader", "/consensus/leader"):
        assert served.ask("GET", path).json == "test-agent"
    for path in ("/raft/state", "/consensus/state"):
        assert served.ask("GET", path).json == "Leader"
    status = served.ask("GET", "/consensus/status").json
    assert status["IsLeader"] and status["Leader"] == status["ServiceID"] == "test-agent"
    assert set(status) == {
        "ServiceID", "Healthy", "IsLeader", "Leader", "State", "Domain", "ShareDomain",
        "ShareDomainServices", "ShareDomainServicesList", "HealthyDomainServicesList",
    }  # fmt: skip


@dataclass(frozen=True)
class EveryShard:
    """All databases belong to it."""

    shard: ShardView

    def view(self, database: str) -> ShardView:
        return self.shard


def test_a_replicas_agent_names_the_primarys_as_leader(serve: Serve) -> None:
    """A balancer that goes by /leader-check sends checks where they are answered."""
    served = serve(Plan())
    watching(served, standpoint=Following("db-b", "https://db-b:8087"))
    assert served.ask("GET", "/leader-check").status == 200, "it speaks for its other database"
    every = shard_view(standpoint=Following("db-b", "https://db-b:8087"))
    parts = replace(served.views.parts, shards=EveryShard(every))
    served.call(setattr, served.views, "parts", parts)
    reply = served.ask("GET", "/leader-check")
    assert (reply.status, reply.json) == (404, "HTTP 404")
    assert served.ask("HEAD", "/leader-check").status == 404
    assert served.ask("GET", "/consensus/leader").json == "https://db-b:8087"
    assert served.ask("GET", "/consensus/state").json == "Follower"
    assert served.ask("GET", "/lb-check").status == 200


def test_a_passive_agent_is_no_leader(served: Served) -> None:
    served.call(setattr, served.checker, "active_agent", "https://first:8087")
    try:
        assert served.ask("GET", "/leader-check").status == 404
        assert served.ask("GET", "/raft/leader").json == "https://first:8087"
    finally:
        served.call(setattr, served.checker, "active_agent", "")


@pytest.mark.parametrize("path", ["/throttle-app/x", "/unthrottle-app/x", "/skip-host/x"])
def test_state_is_not_changed_by_looking(served: Served, path: str) -> None:
    assert is_problem(served.ask("GET", path), 404)
