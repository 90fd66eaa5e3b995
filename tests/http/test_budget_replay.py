"""What another policy would have changed, over HTTP and on the command line (R145)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.base.clock import SystemClock
from headgate.budgets.model import StatementIdentity
from headgate.budgets.replay_api import BudgetReplayDoc
from headgate.budgets.service import Gear, TrafficPlan
from headgate.budgets.traces import Trace, TraceBatch
from headgate.cli.api import Answered
from headgate.cli.budget import last_hour
from headgate.cli.documents import read
from headgate.cli.render import Canvas, drawn
from headgate.present.budget_replay import replay_view
from tests.budgets.budget_world import FakeServer, document
from tests.cli.test_looking_back import CANVAS, shown
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import Reply
from tests.http.test_budgets import READINGS
from tests.http.test_checks import is_problem
from tests.http.test_ruling import change

PATH = "/v1/budgets/main/replay"
MS = 1_000_000
WATCHED: dict[str, Any] = {"name": "all", "rules": [{}]}
"""For everything, and without a limit: so that everything is traced."""
TIGHT: dict[str, Any] = {
    "name": "etl",
    "mode": "enforce",
    "rate": 50,
    "capacity": 25,
    "rules": [{"match": {"username": "etl"}}],
}
"""Of four CPUs: holds one second of CPU."""


class FakeTraces:
    def __init__(self, traces: Sequence[Trace], fault: str = "") -> None:
        self.traces = traces

    async def traces_since(self, sequence: int, started_ms: int) -> TraceBatch:
        return TraceBatch(tuple(self.traces[sequence:]), len(self.traces), 0, 1)


Made = Callable[..., Served]


@pytest.fixture
def served(serve: Serve) -> Made:
    def start(*traces: tuple[int, str, int], budgets: Sequence[Any] = (WATCHED,)) -> Served:
        """(seconds ago, who, CPU in ms)"""
        server = FakeServer(reads=READINGS)
        held: list[Trace] = []
        now_ms = int(SystemClock().now().wall_s * 1000)
        for number, (ago_s, user, cost_ms) in enumerate(traces):
            cost: Any = {"estimate_ns": cost_ms * MS, "actual_ns": cost_ms * MS, "wall_ns": MS}
            at_ms = now_ms - ago_s * 1000
            held.append(
                Trace(number, at_ms, StatementIdentity(username=user), plan_cost=9.0, **cost)
            )
        gear = Gear((server,), server, FakeTraces(held))
        plan = TrafficPlan("main", document(*budgets), "policy.toml", "dir", lambda: gear)
        made = serve(Plan(traffic=plan))
        made.run_there(made.budgets.tick)
        return made

    return start


def replay(served: Served, **body: Any) -> Reply:
    raw = json.dumps(body).encode()
    return served.ask("POST", PATH, body=raw, content_type="application/json")


BUSY = [(30, "etl", 600), (30, "etl", 600), (30, "web", 600), (20, "etl", 600)]


def test_a_proposed_policy_is_played_against_what_ran(served: Made) -> None:
    made = served(*BUSY)
    found = replay(made, policy={"budgets": [WATCHED, TIGHT]}).json
    assert (found["traces"], found["total"]["statements"]) == (4, 4)
    assert (found["total"]["newly_blocked"], found["total"]["error"]) == (1, 0)
    assert (found["total"]["cpu_before_s"], found["total"]["cpu_s"]) == pytest.approx((2.4, 1.8))
    assert found["in_force"]["blocked"] == 0
    etl, beside, *_ = found["clients"]
    assert (beside["budget"], beside["client"], beside["sums"]["elsewhere"]) == ("all", "etl", 1)
    assert (etl["client"], etl["sums"]["blocked"], etl["sums"]["ran"]) == ("etl", 1, 2)
    assert {row["budget"] for row in found["steps"]} == {"all", "etl"}
    assert [one["line"] for one in found["difference"]]
    assert "Traces are kept since" in " ".join(found["notes"])


def test_one_budget_is_played_besides_those_in_force(served: Made) -> None:
    made = served(*BUSY)
    found = replay(made, budget=TIGHT, by=["username", "tag.tenant"]).json
    assert found["total"]["newly_blocked"] == 1
    assert {row["client"] for row in found["clients"]} == {
        "etl tenant=(none)",
        "web tenant=(none)",
    }


def explain(served: Served, at_ms: int, **body: Any) -> Reply:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
    raw = json.dumps({"sql": "select 1", "at": at, **body}).encode()
    path = "/v1/budgets/main/explain"
    return served.ask("POST", path, body=raw, content_type="application/json")


def test_a_statement_is_explained_at_a_past_instant(served: Made) -> None:
    """R144: by the debt of then. Of one second 0.9 were used up, which drain in 22.5 s."""
    made = served((200, "etl", 1), (40, "etl", 900), budgets=(WATCHED, TIGHT | {"rate": 1}))
    memory = made.budgets.of("main").traces
    assert memory is not None
    began_ms, at_ms = (trace.wall_ms for trace in memory.since(0))
    asked = {"username": "etl", "cost_ms": 300}
    then = explain(made, at_ms, **asked)
    assert then.status == 200, then.body
    found = then.json
    assert (found["verdict"], found["decided_by"], found["limit"]) == ("block", "etl", "capacity")
    (etl,) = [one for one in found["budgets"] if one["budget"] == "etl"]
    assert etl["bucket"]["fill"] == pytest.approx(0.9) and found["needed"]
    assert "1 statements of etl ran and 0 were blocked" in " ".join(found["notes"])
    for other_ms in (at_ms - 1, at_ms + 30_000):
        assert explain(made, other_ms, **asked).json["verdict"] == "run"
    before = explain(made, began_ms - 1, **asked)
    assert is_problem(before, 422, field="at") and "traces are kept since" in before.json["detail"]


def test_only_the_chosen_scenes_are_played(served: Made) -> None:
    made = served((4000, "etl", 600), (1000, "etl", 600), (10, "etl", 600))
    assert [replay(made, since_s=s).json["traces"] for s in (100, 2000, 86400)] == [1, 2, 3]
    assert [replay(made, since_s=s).json["step_s"] for s in (3600, 7200)] == [60, 3600]


def test_nothing_is_changed_by_it(served: Made) -> None:
    made = served(*BUSY)
    replay(made, policy={"budgets": []})
    kept = made.ask("GET", "/v1/budgets/main").json
    assert [one["name"] for one in kept["document"]["budgets"]] == ["all"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"policy": {"budgets": [{"name": "x", "rate": 120}]}}, 422, None),
        ({"policy": {}, "budget": {}}, 422, "budget"),
        ({"budget": {"rate": 1}}, 422, "budget.name"),
        ({"by": ["user"]}, 400, "by"),
        ({"since_s": 0}, 400, "since_s"),
        ({"since_s": 86401}, 400, "since_s"),
        ({"step_s": 7}, 400, "step_s"),
        ({"polcy": {}}, 400, None),
    ],
)
def test_a_wish_that_cannot_be_is_rejected(
    served: Made, body: dict[str, Any], status: int, field: str | None
) -> None:
    assert is_problem(replay(served(), **body), status, field=field)


def test_without_a_server_there_is_nothing_to_play(serve: Serve) -> None:
    made = serve(Plan(traffic=TrafficPlan("main", document(WATCHED))))
    assert is_problem(replay(made), 404)


# --- the page ------------------------------------------------------------------------------------


def test_the_page_says_who_would_have_been_blocked(served: Made) -> None:
    made = served(*BUSY)
    found = read(BudgetReplayDoc, replay(made, policy={"budgets": [WATCHED, TIGHT]}).json)
    page = shown(drawn(replay_view(found), CANVAS))
    assert "4 statements, 4 traces" in page
    assert "1 that ran would have been blocked" in page
    assert "etl     etl" in page and "+1 blocked" in page
    assert "+1 blocked by other budgets" in page
    assert "of the policy in force, a replay tells 0 blocks; 0 were" in page


def test_at_eighty_columns_nothing_is_cut_within_a_word(served: Made) -> None:
    made = served(*BUSY)
    found = read(BudgetReplayDoc, replay(made, policy={"budgets": [WATCHED, TIGHT]}).json)
    page = shown(drawn(replay_view(found), Canvas(80)), Canvas(80))
    for word in ("budget", "username", "statements", "blocked", "what changes"):
        assert word in page


def test_a_page_of_nothing_says_so(served: Made) -> None:
    found = read(BudgetReplayDoc, replay(served()).json)
    assert "no statement was traced" in shown(drawn(replay_view(found), CANVAS))


class FakeApi:
    """Asks the served agent."""

    def __init__(self, made: Served) -> None:
        self.made = made

    def get(self, path: str, **query: str) -> Answered:
        return Answered(200, self.made.ask("GET", path).json, b"", None)

    def change(self, method: str, path: str, body: Any) -> Answered:
        reply = change(self.made, method, path, body)
        assert reply.status == 200, reply.body
        return Answered(200, reply.json, b"", None)


def test_a_file_of_changes_is_replayed_where_it_changes_budgets(served: Made) -> None:
    api: Any = FakeApi(served(*BUSY))
    entries = [{"database": "main", **one} for one in (WATCHED, TIGHT)]
    (told,) = last_hour(api, {"budgets": entries}, None)
    assert told.startswith(
        "main: within the last hour, of 4 statements 1 that ran would have been blocked"
    )
    assert last_hour(api, {"rules": []}, None) == []
    assert api.made.ask("GET", "/v1/changes").json["n"] == 0, "only tried"
