"""History by level, replay, starvation and rogues, as documents over the real routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.history.alerts import OUTCOMES, Alerts
from headgate.history.keeper import MetricMinutes
from headgate.history.records import MetricMinute, Tally
from headgate.history.rogues import Rogues
from headgate.history.sessions import SessionGroup
from headgate.history.starvation import Culprit, StarvationFinding, Starved
from headgate.history.watch import KINDS, Watch
from tests.http.serving import LOOPS, Served, serving
from tests.http.talk import Reply

STARVED = Starved(
    database="main",
    client="etl",
    is_level=True,
    members=("a:etl", "b:etl"),
    metric="lag",
    cause=Culprit.EXEMPT_CLIENT,
    why="an exempt client goes on while this metric rejects the others",
    starved_s=900.0,
    runtime_s=3600.0,
    share=0.25,
    alarming=True,
    rejections=900,
    breached_share=1.0,
    mean_utilization=3.0,
    dice_s=0.0,
    blamed=("fix:x",),
    rule="r7",
    proposal="headgate rule lift r7",
)
ROGUE = SessionGroup("alice", "psql", "10.0.0.9", 2, 2)


class Listed:
    async def read(self) -> list[SessionGroup]:
        return [ROGUE]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("w")
    with serving(LOOPS["asyncio"], folder) as served:
        yield served


def minute_now(served: Served) -> int:
    return int(served.call(served.clock.now).wall_s // 60)


def keep(served: Served, *tallies: tuple[int, str, str, str, int]) -> None:
    """(minutes ago, client, verdict, by, count)"""
    now = minute_now(served)
    rows = [Tally(now - ago, "main", who, what, by, n) for ago, who, what, by, n in tallies]
    served.run_there(lambda: served.store.history.add_tallies(rows))


def ok(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return reply.json


def post(served: Served, body: object) -> Reply:
    raw = json.dumps(body).encode()
    return served.ask("POST", "/v1/replay", body=raw, Content_Type="application/json")


def test_the_timeline_of_a_level(watched: Served) -> None:
    """R68"""
    day = [(ago, "u1:tl", "THRESHOLD_EXCEEDED", "shard/lag", 92) for ago in range(60, 85)]
    day += [(ago, "u2:tl", "OK", "", 8) for ago in range(30, 100)]
    keep(watched, *day)
    found = ok(watched.ask("GET", "/v1/history/timeline?app=tl&since=3h&step=15m"))
    [span] = found["spans"]
    assert (span["mostly_by"], span["share"]) == ("shard/lag", 0.92)
    assert span["sums"]["checks"] == 2500
    assert found["total"]["by_reason"] == {"metric": 2300}
    assert [c["client"] for c in found["children"]] == ["u1:tl", "u2:tl"]
    assert sum(b["sums"]["checks"] for b in found["bins"]) == found["total"]["checks"] == 2860
    by_level = ok(watched.ask("GET", "/v1/history/timeline?app=tl&since=3h&level=2"))
    assert [c["client"] for c in by_level["children"]] == ["tl"]
    elsewhere = ok(watched.ask("GET", "/v1/history/timeline?app=tl&since=3h&database=replica"))
    assert elsewhere["total"]["checks"] == 0


def test_a_list_that_is_cut_leaves_every_sum_exact(
    watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R68, R135: once, totals were of as many rows as fitted, and nobody was told."""
    many = [(ago, f"u{n}:cut", "OK", "", n + 1) for ago in (5, 6, 7) for n in range(9)]
    many += [(ago, "u1:cut", "PACED", "", 100) for ago in (5, 7)]
    keep(watched, *many)
    whole = ok(watched.ask("GET", "/v1/history/timeline?app=cut&since=1h"))
    assert whole["whole"] and whole["total"]["checks"] == 335
    monkeypatch.setattr("headgate.history.routes.MAX_CLIENT_ROWS", 4)
    found = ok(watched.ask("GET", "/v1/history/timeline?app=cut&since=1h"))
    assert not found["whole"]
    assert found["total"] == whole["total"] and found["bins"] == whole["bins"]
    assert found["spans"] == whole["spans"] and len(found["spans"]) == 2
    assert [c["client"] for c in found["children"]] == [
        *("u1:cut", "u8:cut", "u7:cut", "u6:cut"),
        "other",
    ]
    assert sum(c["sums"]["checks"] for c in found["children"]) == 335


def test_what_became_of_every_clients_checks(
    watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R68, R136: what lists and rates are made of, by client and database."""
    keep(watched, (1, "u1:all", "OK", "", 9), (2, "u1:all", "PACED", "", 3))
    keep(watched, (9, "u2:all", "OK", "", 5), (70, "u3:all", "OK", "", 5))
    found = ok(watched.ask("GET", "/v1/history/clients?app=all2&since=1h"))
    assert found["clients"] == [] and 3600 <= found["seconds"] <= 3660 and found["whole"]
    found = ok(watched.ask("GET", "/v1/history/clients?since=1h&database=main"))
    mine = {c["client"]: c for c in found["clients"] if c["client"].endswith(":all")}
    assert set(mine) == {"u1:all", "u2:all"} and mine["u1:all"]["database"] == "main"
    assert mine["u1:all"]["sums"]["by_reason"] == {"paced": 3}
    until = ok(watched.ask("GET", "/v1/history/clients?since=1h&until=8m"))
    assert "u1:all" not in {c["client"] for c in until["clients"]} and until["seconds"] == 53 * 60
    monkeypatch.setattr("headgate.history.routes.MAX_CLIENT_ROWS", 1)
    assert not ok(watched.ask("GET", "/v1/history/clients?since=1h"))["whole"]
    assert watched.ask("GET", "/v1/history/clients?step=1m").status == 400


def test_metrics_that_are_cut_say_so(watched: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    now = minute_now(watched)
    minutes = [MetricMinute(now - n, "main", "cut", 1, 0, 0, 1.0, 1.0, 1.0, 5.0) for n in range(9)]
    watched.run_there(lambda: watched.store.history.add_metric_minutes(minutes))
    assert ok(watched.ask("GET", "/v1/history/metrics?metric=cut&since=1h"))["whole"]
    monkeypatch.setattr("headgate.history.routes.MAX_METRIC_ROWS", 4)
    found = ok(watched.ask("GET", "/v1/history/metrics?metric=cut&since=1h"))
    assert not found["whole"] and len(found["minutes"]) == 4


def test_a_replay_that_is_cut_begins_later_and_says_so(
    watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(watched, *[(ago, "u1:rc", "OK", "", 10) for ago in range(100, 200)])
    body = {"rule": {"target": "rc", "kind": "hold", "reason": "x"}, "since": "1d"}
    found = ok(post(watched, body))
    assert found["whole"] and found["total"]["admitted_before"] == 1000
    monkeypatch.setattr("headgate.history.routes.MAX_TALLIES", 41)
    found = ok(post(watched, body))
    assert not found["whole"] and found["total"]["admitted_before"] == 400
    monkeypatch.setattr("headgate.history.api.MAX_REPLAY_ROWS", 1)
    monkeypatch.setattr("headgate.history.routes.MAX_TALLIES", 1000)
    found = ok(post(watched, body))
    assert len(found["rows"]) == 1 and found["more_rows"] in (1, 2)
    assert found["total"]["admitted_before"] == 1000


def test_a_look_back_that_takes_too_long_is_ended_with_advice(
    watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.history.looking.MAX_S", 0.0)
    reply = watched.ask("GET", "/v1/history/timeline?since=1h")
    assert reply.status == 503 and "--since 1d" in reply.json["detail"]


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("since=0s", 422, "since"),
        ("since=999999d", 422, "since"),
        ("since=1h&until=2h", 422, "later than since"),
        ("since=1h&step=0m", 422, "step"),
        ("since=366d&step=1m", 422, "step"),
        ("since=30", 400, "since is 30, which has no unit: 30s or 30m?"),
        ("step=5", 400, "step is 5, which has no unit: 5s or 5m?"),
        ("level=9", 400, "level"),
        ("app=a:%20", 400, "level"),
        ("ap=x", 400, "unknown parameter"),
    ],
)
def test_a_query_that_cannot_be_answered_is_rejected_with_the_reason(
    watched: Served, query: str, status: int, told: str
) -> None:
    reply = watched.ask("GET", f"/v1/history/timeline?{query}")
    assert reply.status == status and told in reply.json["detail"]


def test_metrics_by_the_minute(watched: Served) -> None:
    now = minute_now(watched)
    lag = MetricMinute(now - 5, "main", "lag", 60, 10, 5, 75.0, 0.5, 7.0, 5.0)
    watched.run_there(lambda: watched.store.history.add_metric_minutes([lag]))
    found = ok(watched.ask("GET", "/v1/history/metrics?database=main&metric=lag&since=1h"))
    [minute] = found["minutes"]
    assert (minute["low"], minute["mean"], minute["high"]) == (0.5, 1.5, 7.0)
    assert minute["breached_share"] == 0.1


def test_metrics_of_a_day_come_in_steps_with_no_peak_lost(watched: Served) -> None:
    """R145: a chart of 24 h is drawn of 288 rows."""
    first = (minute_now(watched) - 30) // 5 * 5
    looks = [(0, 1.0, 60), (1, 9.0, 60), (4, 2.0, 0), (5, 3.0, 60)]
    minutes = [
        MetricMinute(first + n, "replica", "steps", 60, 60 - valued, int(value > 5) * 60,
                     value * valued, value if valued else None, value if valued else None, 5.0)
        for n, value, valued in looks
    ]  # fmt: skip
    watched.run_there(lambda: watched.store.history.add_metric_minutes(minutes))
    found = ok(watched.ask("GET", "/v1/history/metrics?metric=steps&since=1h&step=5m"))
    assert found["step_minutes"] == 5
    one, other = found["minutes"]
    assert (one["low"], one["mean"], one["high"]) == (1.0, 5.0, 9.0)
    assert (one["looks"], one["unavailable"], one["breached_share"]) == (180, 60, 0.5)
    assert (other["mean"], other["high"]) == (3.0, 3.0)
    assert watched.ask("GET", "/v1/history/metrics?step=1s").status == 422


def test_a_proposed_rule_is_replayed_and_nothing_changes(watched: Served) -> None:
    """R145, R140"""
    keep(watched, (3, "u1:rp", "OK", "", 100), (3, "u1:rp", "THRESHOLD_EXCEEDED", "lag", 50))
    before = watched.call(lambda: watched.checker.rules)
    found = ok(post(watched, {"rule": {"target": "rp", "ratio": 0.9}, "since": "1h"}))
    [row] = found["rows"]
    assert (row["admitted_before"], row["rejected_before"], row["how"]) == (100, 50, "expected")
    assert row["admitted_after"] == pytest.approx(10)
    assert found["whole"] and "not replayed" in found["notes"][0]
    assert watched.call(lambda: watched.checker.rules) is before


def test_a_rule_that_would_be_rejected_is_not_replayed(watched: Served) -> None:
    reply = post(watched, {"rule": {"target": "rp", "ratio": 7}})
    assert reply.status == 422 and "ratio" in reply.json["faults"][0]
    assert post(watched, {"rules": {}}).status == 400
    assert post(watched, {"rule": {"target": "rp", "ratio": 0.5}, "since": "x"}).status == 400


@pytest.mark.parametrize("path", ["/v1/starvation", "/v1/rogues"])
def test_an_agent_that_does_not_watch_says_so(watched: Served, path: str) -> None:
    assert watched.ask("GET", path).status == 404


@pytest.fixture
def watching(watched: Served) -> Iterator[Served]:
    """With the loops' parts, and what they would have found."""
    before = watched.views.parts

    async def attach() -> None:
        alerts = Alerts(watched.clock)
        watch = Watch(
            watched.recorder,
            watched.board,
            watched.clock,
            alerts,
            rules=lambda: watched.checker.rules,
            minutes=MetricMinutes(),
        )
        watch._findings["main"] = (StarvationFinding(STARVED, 10.0),)
        alerts.put("starvation.begins", {"client": "etl"})
        rogues = Rogues(
            watched.recorder,
            watched.demands,
            watched.clock,
            lambda database: Listed() if database == "main" else None,
        )
        await rogues.look()
        watched.views.parts = replace(
            before, watchers=replace(before.watchers, watch=watch, rogues=rogues)
        )

    watched.run_there(attach)
    yield watched
    watched.call(setattr, watched.views, "parts", before)


def test_who_is_starved_and_why(watching: Served) -> None:
    found = ok(watching.ask("GET", "/v1/starvation"))
    assert (found["window_s"], found["waterline"]) == (600.0, 0.05)
    [starved] = found["starved"]
    assert (starved["client"], starved["cause"]) == ("etl", "exempt_client")
    assert starved["proposal"] == "headgate rule lift r7"


def test_status_says_it_first(watching: Served) -> None:
    advice = ok(watching.ask("GET", "/v1/status"))["advice"]
    assert advice[0].startswith(
        "starved: etl (2 clients) on main is rejected by lag for 15 min, 25% of its runtime"
    )
    watching.measure(lag=9.0)
    advice = ok(watching.ask("GET", "/v1/status"))["advice"]
    assert "rogue client psql (user alice, from 10.0.0.9) never checks" in advice[1]
    watching.reset()


def test_who_never_checks_is_listed(watching: Served) -> None:
    """R138"""
    found = ok(watching.ask("GET", "/v1/rogues"))
    [suspect] = found["suspects"]
    assert (suspect["user"], suspect["application"], suspect["share"]) == ("alice", "psql", 1.0)
    assert found["faults"] == []


def test_prometheus_shows_it(watching: Served) -> None:
    text = watching.ask("GET", "/metrics").body.decode()
    found = {
        sample.name: sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["headgate_starved_seconds"].value == 900
    assert found["headgate_starved_seconds"].labels["cause"] == "exempt_client"
    assert found["headgate_starvation_share"].value == 0.25
    assert found["headgate_rogue_sessions_active"].value == 2


def test_alerts_are_counted_from_0_on(watching: Served) -> None:
    """Else Prometheus would see no increase when the first one is lost."""
    text = watching.ask("GET", "/metrics").body.decode()
    found = {
        (sample.labels["kind"], sample.labels["outcome"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "headgate_alerts_total"
    }
    assert found.keys() == set(product(KINDS, OUTCOMES))
    assert found["starvation.begins", "raised"] == 1 and found["starvation.begins", "dropped"] == 0


# --- a minute of the past ------------------------------------------------------------------


def past(served: Served, query: str) -> Reply:
    return served.ask("GET", f"/v1/explain?{query}")


def test_explain_at_a_past_instant(watched: Served) -> None:
    """R144: what was decided then, by what, and what is not known."""
    load = MetricMinute(minute_now(watched) - 30, "main", "load", 60, 0, 45, 480.0, 2.0, 9.0, 5.0)
    watched.run_there(lambda: watched.store.history.add_metric_minutes([load]))
    keep(
        watched,
        (30, "u1:pt", "THRESHOLD_EXCEEDED", "load", 90),
        (30, "u2:pt", "REJECTED_BY_RATIO", "rule:r1", 8),
        (30, "u2:pt", "OK", "", 2),
        (25, "u2:pt", "OK", "", 1),
    )
    found = ok(past(watched, "app=pt&database=main&at=30m"))
    assert found["sums"]["by_reason"] == {"metric": 90, "dice": 8}
    assert found["known"] == [
        "98 of 100 checks were rejected: 90 by load, 8 by rule:r1",
        "load was above its threshold of 5 for 75% of the minute: 2 to 9",
    ]
    assert [child["client"] for child in found["clients"]] == ["u1:pt", "u2:pt"]
    assert [metric["high"] for metric in found["metrics"]] == [9.0]
    assert any("stored by the minute" in told for told in found["unknown"])
    quiet = ok(past(watched, "app=pt&database=main&at=28m"))
    assert quiet["known"] == ["pt did not check main in that minute"]
    assert quiet["checked_before"] < quiet["at"] < quiet["checked_after"]
    assert any("no metric of that minute" in told for told in quiet["unknown"])


def test_explain_at_reports_forgotten_times(watched: Served) -> None:
    found = ok(past(watched, "app=pt&database=main&at=20d"))
    assert any("have expired" in told for told in found["unknown"])
    named = ok(past(watched, "app=pt&database=main&at=2026-01-01T07:10:00Z"))
    assert named["at"] == "2026-01-01T07:10:00Z" and named["until"] == "2026-01-01T07:11:00Z"


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("app=x&database=main&at=noon", 422, "with its zone"),
        ("app=x&database=main&at=2026-01-01T07:10", 422, "with its zone"),
        ("app=x&database=main&at=2999-01-01T07:10Z", 422, "not in the past"),
        ("app=x&database=none&at=1h", 404, "main, replica"),
        ("app=&database=main&at=1h", 422, "client"),
        ("app=x&database=main&metrics=lag&at=1h", 422, "only app and database"),
    ],
)
def test_a_past_that_cannot_be_explained_is_rejected(
    watched: Served, query: str, status: int, told: str
) -> None:
    reply = past(watched, query)
    assert reply.status == status and told in reply.json["detail"], reply.json


def test_a_run_far_longer_than_its_own_past_is_reported(watched: Served) -> None:
    """R91"""
    runs = [
        (ago, "u1:rn", "OK", "", 1)
        for start, length in ((8000, 40), (6600, 50), (5200, 45), (170, 170))
        for ago in range(start - length + 1, start + 1)
    ]
    keep(watched, *runs)
    found = ok(watched.ask("GET", "/v1/history/timeline?app=rn&since=1h"))["runs"]
    assert (found["usual_minutes"], found["longest_minutes"]) == (45, 50)
    assert found["unusual"] and found["ongoing"] and found["earlier"] == 3
    assert ok(watched.ask("GET", "/v1/history/timeline?since=1h"))["runs"] is None
