"""Prometheus text: parses, and stays bounded whatever clients call themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headgate
from headgate.base.names import Scope
from headgate.changes.state import CopyState
from headgate.check.demand import Work
from headgate.check.health import ShardHealth, stand
from headgate.check.model import Activity
from headgate.errors import PeerFailed
from headgate.http.exposition import SERIES
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.metrics.service import NoSuchMetric
from headgate.shard.model import MemberView, ShardView
from headgate.shard.standby import Standby
from headgate.shard.topology import Following
from tests.builders import PRIMARY, member, metric, shard_view, window
from tests.fixtures.eventually import eventually
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import get
from tests.http.test_checks import CHECK

# And heartbeats, which nobody writes here.
ONLY_BEATING = {"headgate_heartbeats_total", "headgate_heartbeat_failing"}
ONLY_WITH_SHARDS = {
    *ONLY_BEATING,
    "headgate_member_state",
    "headgate_member_hopeless",
    "headgate_member_skipped",
    "headgate_shard_metric_healthy",
    "headgate_role",
    "headgate_shard_leading",
    "headgate_shard_members",
    "headgate_shard_metric_value",
    "headgate_member_reading",
    "headgate_member_clock_ahead_seconds",
    "headgate_member_has_copy",
    "headgate_probes_total",
    "headgate_peer_messages_total",
    "headgate_heartbeat_writes_total",
}
# When someone has given its place up; tests/history/test_clientele.py counts them.
ONLY_FORGETFUL = "headgate_checks_forgotten_total"
# With a paced metric; tests/http/test_pacing.py has them.
ONLY_FAIR = "headgate_dice_waived_total"
ONLY_PACED = {series.name for series in SERIES if series.name.startswith("headgate_pace_")}
# Of the process, which is none of its own here, and of those who stand by for another; all of
# them, and what only is there while something is amiss: tests/http/test_exposition_whole.py.
ELSEWHERE = {
    "headgate_loop_lag_seconds",
    "headgate_connections",
    "headgate_connections_max",
    "headgate_connections_rejected_total",
    "headgate_connections_shed_total",
    "headgate_standby",
    "headgate_takeovers_total",
    "headgate_client_held_seconds",
    "headgate_metric_unavailable",
    "headgate_unthrottled_seconds",
    "headgate_unthrottled_pieces",
    "headgate_rule_seconds_left",
    "headgate_rule_in_force_seconds",
    "headgate_trace_spans_total",
    "headgate_trace_spans_waiting",
}
# With the loops that watch; tests/http/test_watching.py has them.
ONLY_WATCHED = {
    "headgate_starved_seconds",
    "headgate_starvation_share",
    "headgate_starved_clients",
    "headgate_rogue_sessions_active",
    "headgate_rogue_suspects",
    "headgate_rogue_user_sessions_active",
    "headgate_sessions_listed",
    "headgate_alerts_total",
}

# With traffic control; tests/http/test_budgets.py has them.
ONLY_BUDGETS = {series.name for series in SERIES if series.name.startswith("headgate_budget")}
# In a fleet; tests/http/test_fleet_status.py has them.
ONLY_FLEET = {series.name for series in SERIES if series.name.startswith("headgate_fleet_")}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(served: Served) -> Samples:
    reply = served.ask("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted(labels.items()))))


def test_it_parses_and_every_series_is_there(serve: Serve) -> None:
    served = serve(Plan())
    served.ask("GET", CHECK)
    samples = scraped(served)
    names = {name for name, _ in samples}
    elsewhere = ONLY_WITH_SHARDS | ONLY_WATCHED | ONLY_PACED | {ONLY_FAIR, ONLY_FORGETFUL}
    elsewhere |= ONLY_BUDGETS | ONLY_FLEET | ELSEWHERE
    assert {series.name for series in SERIES} - elsewhere <= names
    assert value(samples, "headgate_metric_value", database="main", metric="lag") == 0.25
    assert value(samples, "headgate_metric_threshold", database="main", metric="lag") == 5
    assert value(samples, "headgate_database_admitting", database="main") == 1
    assert value(samples, "headgate_store_writable") == 1


def test_counts_are_exact_by_verdict_and_metric(serve: Serve) -> None:
    served = serve(Plan())
    with served.talk() as talk:
        for _ in range(7):
            talk.ask("GET", CHECK)
        served.measure(lag=7.0)
        for _ in range(5):
            talk.ask("GET", CHECK)
    samples = scraped(served)
    labels = {"database": "main", "client": "etl:nightly"}
    checks = "headgate_checks_total"
    assert value(samples, checks, verdict="OK", scope="", metric="", **labels) == 7
    lag = {"verdict": "THRESHOLD_EXCEEDED", "scope": "host", "metric": "lag"}
    assert value(samples, checks, **lag, **labels) == 5


def test_who_decides_locally_is_seen(serve: Serve) -> None:
    served = serve(Plan())
    with headgate.Client("local", database="main", url=served.base_url, local=True) as gate:
        eventually(lambda: gate.check().decided == "local")
        samples = scraped(served)
        assert value(samples, "headgate_snapshot_listeners") == 1
        assert value(samples, "headgate_snapshot_listeners_dropped_total") == 0
    eventually(lambda: value(scraped(served), "headgate_snapshot_listeners") == 0)
    samples = scraped(served)
    counted = served.intake.decisions_total
    assert value(samples, "headgate_local_decisions_total") == counted >= 1
    served.call(setattr, served.intake, "repeated_total", 3)
    assert value(scraped(served), "headgate_local_reports_repeated_total") == 3


def test_an_unavailable_metric_has_no_value(served: Served) -> None:
    """Misleading zero, and its twin, the frozen value."""
    served.lose("lag")
    samples = scraped(served)
    place = {"database": "main", "metric": "lag"}
    assert value(samples, "headgate_metric_value", **place) is None
    assert value(samples, "headgate_metric_healthy", **place) == 0
    assert value(samples, "headgate_database_admitting", database="main") == 0


def fall_idle(served: Served, activity: Activity) -> None:
    def fall() -> None:
        served.demands.by_database["main"].state = activity
        served.views.parts = replace(served.views.parts, demands=served.demands)

    served.call(fall)


@pytest.mark.parametrize(
    ("activity", "cause"),
    [(Activity.IDLE, Cause.STALE), (Activity.HIBERNATING, Cause.HIBERNATING)],
)
def test_an_idle_database_is_neither_healthy_nor_at_fault(
    serve: Serve, activity: Activity, cause: Cause
) -> None:
    """B12: anyone who alerts on 0 is not called because a job has ended."""
    served = serve(Plan())
    main = {"database": "main"}
    assert value(scraped(served), "headgate_database_idle", **main) == 0
    served.lose("lag", cause)
    fall_idle(served, activity)
    samples = scraped(served)
    assert value(samples, "headgate_database_idle", **main) == 1
    assert value(samples, "headgate_database_admitting", **main) is None
    assert value(samples, "headgate_database_seconds_since_healthy", **main) is None
    assert value(samples, "headgate_metric_healthy", **main, metric="lag") is None
    status = served.ask("GET", "/v1/status").json["databases"][0]
    assert (status["idle"], status["activity"]) == (True, activity.value)
    assert status["reason"] == "main: the next check wakes it (about 1 s)"
    [lag] = [m for m in status["metrics"] if m["metric"] == "lag"]
    assert (lag["state"], lag["cause"]) == ("idle", cause.value)
    explained = served.ask("GET", "/v1/explain?app=etl&database=main").json
    assert (explained["idle"], explained["needed"]) == (True, [])
    assert explained["reason"] == status["reason"]
    assert [m["state"] for m in explained["metrics"] if m["metric"] == "lag"] == ["idle"]


def test_a_fault_of_an_idle_database_stays_one(serve: Serve) -> None:
    served = serve(Plan())
    served.lose("lag", Cause.FAILED, "password authentication failed")
    fall_idle(served, Activity.IDLE)
    samples = scraped(served)
    assert value(samples, "headgate_database_idle", database="main") == 0
    assert value(samples, "headgate_database_admitting", database="main") == 0
    status = served.ask("GET", "/v1/status").json["databases"][0]
    assert (status["idle"], status["verdict"]) == (False, "METRIC_UNAVAILABLE")
    assert served.ask("GET", "/v1/explain?app=etl&database=main").json["idle"] is False


@pytest.mark.parametrize(
    ("target", "count"),
    [("/v1/check?app=c{}:x&database=main", 10_000), ("/check/c{}/mysql/d{}", 1000)],
    ids=["client", "database"],
)
def test_made_up_names_do_not_fill_the_memory(serve: Serve, target: str, count: int) -> None:
    """R135: bounded series, exact sums."""
    served = serve(Plan(max_clients=100))
    asked = [get(target.format(number, number)) for number in range(count - 1)]
    with served.talk() as talk:
        last = get(target.format("z", "z"), Connection="close")
        answers = talk.all_at_once(b"".join([*asked, last]))
    assert answers.count(b"HTTP/1.1 ") == count
    checks = {
        labels: total
        for (name, labels), total in scraped(served).items()
        if name == "headgate_checks_total"
    }
    assert sum(checks.values()) == count
    assert len(checks) <= 100 + 5
    assert len({dict(labels)["database"] for labels in checks}) <= 2
    assert len(served.ask("GET", "/v1/clients").json["clients"]) <= 100 + 5


@pytest.mark.parametrize("app", ["%C3%BC", "a%25b", "a=b"])
def test_labels_are_escaped(served: Served, app: str) -> None:
    name = served.ask("GET", f"/v1/check?app={app}&database=main").json["app"]
    clients = {
        dict(labels)["client"]
        for (series, labels) in scraped(served)
        if series == "headgate_checks_total"
    }
    assert name in clients


# --- shards ------------------------------------------------------------------------------------


@dataclass
class Watched:
    """Knows one shard, of the database main."""

    shard: ShardView

    def view(self, database: str) -> ShardView | None:
        return self.shard if database == "main" else None


class Copied:
    """One member's agent has all changes of the shard, another does not answer."""

    def copies(self, shard: str) -> Mapping[str, CopyState]:
        return {
            "db-b": CopyState(True, 1.0, ""),
            "db-d": CopyState(False, None, "connection refused"),
        }


def watching(served: Served, *members: MemberView, **more: Any) -> None:
    """From now on main belongs to this shard, in the server's own time."""
    readings = {"lag": Sample(0.02, served.clock.now().mono_s)}
    leader = member("db-a", PRIMARY, local=True, readings=readings)
    shard = Watched(shard_view(leader, *members, **more))
    served.call(
        setattr,
        served.views,
        "parts",
        replace(served.views.parts, shards=shard, demands=served.demands, exchange=Copied()),
    )


def test_a_leading_agent_shows_its_members(serve: Serve) -> None:
    served = serve(Plan())
    now = served.clock.now().mono_s
    gone = Absent(Cause.UNREACHABLE, "connection refused", now)
    watching(
        served,
        member("db-b", readings={"lag": Sample(0.3, now)}, clock_ahead_s=-0.25),
        member(
            "db-c",
            readings={"lag": Sample(9.0, now)},
            skipped_metrics={"lag": "skipped by ops"},
            skip_kinds={"lag": "skipped"},
        ),
        member("db-d", lost=gone, problem="connection refused", readings={"lag": gone}),
        member(
            "db-e",
            skipped_metrics={"lag": "hopeless"},
            skip_kinds={"lag": "hopeless"},
            hopeless=("lag",),
        ),
    )
    standing = stand(metric("lag"), window(Sample(0.3, now)), scope=Scope.SHARD)
    served.call(served.board.set_shard, "main", ShardHealth("commerce/-80", {"lag": standing}))
    served.ask("GET", CHECK)
    samples = scraped(served)
    absent = {*ONLY_BEATING, *ONLY_WATCHED, *ONLY_PACED, ONLY_FAIR, ONLY_FORGETFUL}
    absent |= ONLY_BUDGETS | ONLY_FLEET | ELSEWHERE
    assert {series.name for series in SERIES} - absent <= {name for name, _ in samples}
    main = {"database": "main"}
    assert value(samples, "headgate_role", **main, role="primary") == 1
    assert value(samples, "headgate_shard_leading", **main) == 1
    members = {
        state: value(samples, "headgate_shard_members", **main, state=state)
        for state in ("counted", "skipped", "missing")
    }
    assert members == {"counted": 2, "skipped": 2, "missing": 1}
    assert value(samples, "headgate_shard_metric_value", **main, metric="lag") == 0.3
    hopeless = [labels for name, labels in samples if name == "headgate_member_hopeless"]
    assert [dict(labels)["member"] for labels in hopeless] == ["db-e"]
    skipped_metrics = {
        m: value(samples, "headgate_member_skipped", **main, member=m, why=why)
        for m, why in (("db-b", "skipped"), ("db-c", "skipped"), ("db-e", "hopeless"))
    }
    assert skipped_metrics == {"db-b": None, "db-c": 1, "db-e": 1}
    read = {"metric": "lag", **main}
    assert value(samples, "headgate_member_reading", member="db-b", **read) == 0.3
    assert value(samples, "headgate_member_reading", member="db-d", **read) is None, "no frozen 0"
    skew = "headgate_member_clock_ahead_seconds"
    assert value(samples, skew, **main, member="db-b") == -0.25
    assert value(samples, "headgate_member_has_copy", **main, member="db-b") == 1
    assert value(samples, "headgate_member_has_copy", **main, member="db-c") is None
    assert value(samples, "headgate_member_has_copy", **main, member="db-d") == 0


def test_a_following_agent_counts_nobody(serve: Serve) -> None:
    """A 0 would say that everybody is gone."""
    served = serve(Plan())
    watching(served, standpoint=Following("db-b", "https://db-b:8087"))
    samples = scraped(served)
    assert value(samples, "headgate_shard_leading", database="main") == 0
    assert not any(name == "headgate_shard_members" for name, _ in samples)
    assert not any(name == "headgate_shard_metric_value" for name, _ in samples)


def test_the_cost_of_watching_is_shown_by_state(serve: Serve) -> None:
    """R62"""
    served = serve(Plan())
    watching(served)
    demand = served.demands.by_database["main"]
    served.call(demand.costs.clear)
    for work, times in ((Work.PROBES, 5), (Work.MESSAGES, 3), (Work.BEATS, 2)):
        served.call(demand.count, work, times)
    samples = scraped(served)
    for name, asleep in (("awake", False), ("hibernating", True)):
        where = {"database": "main", "state": name}
        assert value(samples, "headgate_activity", **where) == (not asleep)
        assert (value(samples, "headgate_probes_total", **where) == 0) is asleep
        assert value(samples, "headgate_peer_messages_total", **where) == (0 if asleep else 3)
        assert value(samples, "headgate_heartbeat_writes_total", **where) == (0 if asleep else 2)


def test_status_shows_the_shard_and_advises(serve: Serve) -> None:
    served = serve(Plan())
    watching(served, member("db-b", clock_ahead_s=0.4))
    status = served.ask("GET", "/v1/status").json
    main, replica = status["databases"]
    assert (main["role"], main["activity"]) == ("primary", "awake")
    assert [member["member"] for member in main["shard"]["members"]] == ["db-a", "db-b"]
    assert (replica["role"], replica["shard"]) == (None, None)
    assert any("the clock of db-b is 400 ms ahead" in told for told in status["advice"])


def test_a_standby_says_which_of_the_two_it_is(serve: Serve) -> None:
    """R52, R53: never silently active."""
    served = serve(Plan())
    answers = [None, PeerFailed(Cause.UNREACHABLE, "connection refused")]

    async def look() -> None:
        if (fault := answers.pop(0)) is not None:
            raise fault

    standby = Standby(
        "https://db-a:8087",
        look,
        served.checker,
        served.demands,
        served.clock,
        takeover_after_s=0.0,
        warm=False,
    )
    served.call(setattr, served.views.facts, "standby", standby)
    for told in ("standby of https://db-a:8087", "replaces https://db-a:8087, which"):
        served.run_there(standby.look_once)
        [line] = served.ask("GET", "/v1/status").json["advice"]
        assert told in line
    assert line.endswith("connection refused")


def test_a_database_without_a_shard_says_how_to_get_one(serve: Serve) -> None:
    served = serve(Plan())
    watching(served)
    assert served.call(served.views.shard, "main").shard == "commerce/-80"
    with pytest.raises(NoSuchMetric, match="replica belongs to no shard: give"):
        served.call(served.views.shard, "replica")
    with pytest.raises(NoSuchMetric, match="no database 'nope'; configured: main, replica"):
        served.call(served.views.shard, "nope")
