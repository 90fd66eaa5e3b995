"""The budgets pages without a browser: states, roles, faults at their fields, hostile names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headgate.base.clock import SystemClock
from headgate.budgets.api import PatternDoc, ViolationDoc, ViolationsDoc
from headgate.budgets.limits import BUDGET_SETTINGS
from headgate.budgets.model import StatementIdentity
from headgate.budgets.readings import BudgetReadings
from headgate.budgets.service import Gear, TrafficPlan
from headgate.budgets.traces import Trace
from headgate.page.budgets import BudgetsPage, chart_of
from headgate.page.budgets_form import (
    FIRST,
    MORE,
    BudgetForm,
    BudgetRuleForm,
    Used,
    changes_of,
    draft_from,
    draft_of,
    faults_of,
    free_name,
    name_for,
    proposed,
    settings_of,
    stepped,
)
from headgate.present.budgets import prediction
from tests.budgets.budget_world import ETL, FakeServer, document
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, serving
from tests.http.talk import Reply
from tests.http.test_budget_replay import FakeTraces
from tests.http.test_budgets import READINGS
from tests.page.visiting import Visitor, field_of, signed_in, text_of

MAIN = "/budgets/main"
HOSTILE = "<img src=x onerror=alert(1)>"
MS = 1_000_000


class World:
    """A served agent with a server that tests steer."""

    def __init__(self, served: Served, server: FakeServer) -> None:
        self.served, self.server = served, server

    def reads(self, readings: BudgetReadings | str = READINGS) -> None:
        self.server.reads = readings
        self.served.run_there(self.served.budgets.tick)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        raw = None if body is None else json.dumps(body).encode()
        reply = self.served.ask(method, path, body=raw, unix=True, Content_Type="application/json")
        assert reply.status < 400, reply.body
        return reply.json

    @property
    def settings(self) -> dict[str, Any]:
        found = self.api("GET", "/v1/budgets/main")["document"]["budgets"]
        return {one["name"]: one for one in found}


@pytest.fixture(scope="module")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    now_ms = int(SystemClock().now().wall_s * 1000)
    cost: Any = {"estimate_ns": 600 * MS, "actual_ns": 600 * MS, "wall_ns": 600 * MS}
    who = StatementIdentity(username="etl", application_name="nightly")
    held = [
        Trace(n, now_ms - 300_000 + n * 100_000, who, query_id=2**64 - 42, plan_cost=9.0, **cost)
        for n in range(4)
    ]
    server = FakeServer(reads=READINGS)
    gear = Gear((server,), server, FakeTraces(held))
    base = document({**ETL, "mode": "enforce"})
    plan = Plan(traffic=TrafficPlan("main", base, "policy.toml", "/srv/pg_headgate", lambda: gear))
    with serving(LOOPS["asyncio"], tmp_path_factory.mktemp("budgets"), plan) as served:
        yield World(served, server)


@pytest.fixture
def world(_world: World) -> World:
    """As it began, under a newer revision."""
    for name in _world.settings.keys() - {"etl"}:
        _world.api("DELETE", f"/v1/budgets/main/{name}")
    _world.api("PUT", "/v1/budgets/main/etl", {**ETL, "mode": "enforce"})
    _world.api("PATCH", "/v1/budgets/main", {"mode_cap": "enforce"})
    _world.reads()
    return _world


@pytest.fixture
def ann(world: World) -> Visitor:
    return signed_in(world.served, OPERATOR)


def fields(reply: Reply) -> dict[str, str]:
    """Of a confirmation, as its button sends them."""
    built_on = ("revision",) if 'name="revision"' in reply.body.decode() else ()
    return {name: field_of(reply, name) for name in ("document", *built_on, "step")}


# --- looking ------------------------------------------------------------------------------------


def test_the_list_shows_the_state_of_each_database(world: World, ann: Visitor) -> None:
    told = text_of(ann.get("/budgets"))
    assert (
        "main rejected by the server" in told and "did not take the last policy: not sound" in told
    )
    assert "replica not in this server" in told and "headgate proxy status" not in told


def test_a_database_without_traffic_control_shows_the_way(ann: Visitor) -> None:
    reply = ann.get("/budgets/replica")
    assert reply.status == 200 and "headgate proxy status" in text_of(reply)
    assert ann.get("/budgets/nowhere").status == 404


def test_a_budget_shows_fill_share_workers_counts_and_buckets(world: World, ann: Visitor) -> None:
    world.reads(replace(READINGS, rejected=0))
    told = text_of(ann.get(MAIN))
    for piece in ("version 7 in force", "50%", "debt 4.00 s of 8.00 s", "3 of 10", "capacity 4"):
        assert piece in told, piece
    one = text_of(ann.get(f"{MAIN}/etl"))
    assert "tenant=acme" in one and "delayed, 2.00 s in all, 2 now" in one


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            "there is no /srv/pg_headgate/server.json: install it",
            'sudo "$(command -v headgate)" pg install --data-directory /srv',
        ),
        ("/proc/7/fd cannot be read", "headgate pg status --directory /srv/pg_headgate"),
    ],
)
def test_unreadable_counters_are_reported_with_the_command_and_are_never_0(
    world: World, ann: Visitor, fault: str, told: str
) -> None:
    world.reads(fault)
    page = text_of(ann.get(MAIN))
    assert told in page and "not known" in page and "Nothing was seen" in _violations(ann)
    assert "0.0%" not in page


def _violations(visitor: Visitor) -> str:
    return text_of(visitor.get(f"{MAIN}/violations", script=True))


def test_a_server_that_is_switched_off_says_how_to_switch_it_on(world: World, ann: Visitor) -> None:
    world.reads(replace(READINGS, enabled=False))
    assert "ALTER SYSTEM SET pg_headgate.enabled = on" in text_of(ann.get(MAIN))
    world.reads(replace(READINGS, off=True))
    assert "headgate pg enable --directory /srv/pg_headgate" in text_of(ann.get(MAIN))


def test_statements_are_shown_with_texts_budgets_and_how_well_they_are_foreseen(
    world: World, ann: Visitor
) -> None:
    texts = world.served.budgets.by_database["main"].texts
    texts.learn([(-42, "select * from t where secret = 'hunter2'")])
    told = text_of(ann.get(f"{MAIN}/state", script=True))
    assert "select * from t where secret = ?" in told and "hunter2" not in told
    assert "by etl · nightly" in told and "close, off by 10%" in told and "25 s" in told
    (pattern,) = world.api("GET", "/v1/budgets/main/state")["patterns"]
    assert pattern["budgets"] == ["etl"] and pattern["text_cause"] is None
    assert world.api("GET", "/v1/budgets/main/state?statements=false")["patterns"] == []


def test_a_statement_without_a_text_says_why(world: World, ann: Visitor) -> None:
    world.served.budgets.by_database["main"].texts.__init__()  # type: ignore[misc]
    assert "texts have not been read yet" in text_of(ann.get(f"{MAIN}/state", script=True))


def test_a_poll_gets_the_part_and_no_page(ann: Visitor) -> None:
    for path in (MAIN, f"{MAIN}/etl", f"{MAIN}/state", f"{MAIN}/violations", "/budgets"):
        part = ann.get(path, script=True).body.decode()
        assert part.lstrip().startswith(("<section id", "<div id")) and "<html" not in part, path


def test_hostile_names_are_shown_as_they_are(world: World, ann: Visitor) -> None:
    body = {"rate": 1, "comment": HOSTILE, "rules": [{"match": {"username": HOSTILE}}]}
    world.api("PUT", "/v1/budgets/main/odd", body)
    for path in (MAIN, f"{MAIN}/odd", f"{MAIN}/odd/edit", f"{MAIN}/history"):
        assert HOSTILE.encode() not in ann.get(path).body, path
    asked = ann.get(f"{MAIN}/new", username=HOSTILE, application_name='"><script>')
    assert b"<script>" not in asked.body and HOSTILE.encode() not in asked.body
    assert HOSTILE.encode() not in ann.get(MAIN, find=HOSTILE).body


def test_of_many_budgets_the_most_urgent_are_requested(world: World, ann: Visitor) -> None:
    for n in range(3):
        world.api("PUT", f"/v1/budgets/main/idle-{n}", {"rate": 1, "rules": []})
    some = world.api("GET", "/v1/budgets/main?most=1")
    assert [one["name"] for one in some["budgets"]] == ["etl"] and some["document"] == {}
    assert some["budgets_total"] == 4
    found = world.api("GET", "/v1/budgets/main?most=9&find=idle-2")["budgets"]
    assert [one["name"] for one in found] == ["idle-2"]
    assert world.api("GET", "/v1/budgets/main?find=idle-2")["budgets"] == found
    for wrong in ("most=1001", "most=x", "fnd=x"):
        assert world.served.ask("GET", f"/v1/budgets/main?{wrong}").status == 400, wrong
    told = text_of(ann.get(MAIN, find="idle-1"))
    assert "idle-1" in told and "idle-2" not in told


def test_a_budget_called_new_can_be_looked_at(world: World, ann: Visitor) -> None:
    world.api("PUT", "/v1/budgets/main/new", {"rate": 1, "rules": []})
    assert f'href="{MAIN}/new/now"' in ann.get(MAIN).body.decode()
    assert "1% of the server" in text_of(ann.get(f"{MAIN}/new/now"))


# --- who may ------------------------------------------------------------------------------------


def test_a_viewer_sees_why_every_control_is_off(world: World) -> None:
    vic = signed_in(world.served, VIEWER)
    for path in (MAIN, f"{MAIN}/etl", f"{MAIN}/new", f"{MAIN}/new?query=-42"):
        reply = vic.get(path)
        assert reply.status == 200 and "may look, not change" in text_of(reply), path
        assert '<button class="danger">' not in reply.body.decode(), path
    for path, sent in (("/cap", {"mode_cap": "off"}), ("/etl/mode", {"mode": "off"})):
        assert vic.post(f"{MAIN}{path}", sent).status == 403
        assert vic.post(f"{MAIN}{path}", {**sent, "step": "make"}).status == 403
    assert world.settings["etl"]["mode"] == "enforce"


def test_a_form_of_another_site_changes_nothing(world: World, ann: Visitor) -> None:
    ann.csrf = "forged"
    assert ann.post(f"{MAIN}/cap", {"mode_cap": "off", "step": "make"}).status == 403
    assert world.api("GET", "/v1/budgets/main")["mode_cap"] == "enforce"


# --- changing -----------------------------------------------------------------------------------


def test_a_form_is_tried_shown_and_only_then_made(world: World, ann: Visitor) -> None:
    sent = {
        "name": "exports",
        "s.rate": "20",
        "s.capacity": "200",
        "rules": "1",
        "rule.0.key.0": "username",
        "rule.0.value.0": "etl",
        "lasts": "2h",
    }
    shown = ann.post(f"{MAIN}/new", sent)
    told = text_of(shown)
    assert "exports: new, warn, rate 20%, capacity 2s" in told and "4 statements" in told
    assert "exports" not in world.settings, "nothing was changed yet"
    made = ann.post(f"{MAIN}/new", fields(shown))
    assert made.status == 303 and made.headers["location"].startswith(f"{MAIN}/exports?done=")
    budget = world.settings["exports"]
    assert budget.get("mode", "warn") == "warn" and budget["rules"] == ETL["rules"]
    flash = text_of(ann.get(made.headers["location"]))
    assert "exports: new" in flash and "To undo it: roll back to revision" in flash


def test_what_changed_meanwhile_is_not_overwritten(world: World, ann: Visitor) -> None:
    shown = ann.post(f"{MAIN}/etl/edit", {"s.rate": "30", "s.capacity": "200", "keeps": "rules"})
    assert "rate 20% → 30%" in text_of(shown)
    world.api("PATCH", "/v1/budgets/main/etl", {"rate": 25})
    rejected = ann.post(f"{MAIN}/etl/edit", fields(shown))
    assert rejected.status == 412 and world.settings["etl"]["rate"] == 25


def test_faults_stand_at_their_fields(world: World, ann: Visitor) -> None:
    sent = {
        "name": "etl",
        "s.rate": "120",
        "rules": "2",
        "rule.1.key.0": "user",
        "rule.1.value.0": "x",
    }
    assert "etl is there already" in text_of(ann.post(f"{MAIN}/new", sent, script=True))
    shown = ann.post(f"{MAIN}/new", {**sent, "name": "x"}, script=True)
    body = shown.body.decode()
    assert shown.status == 200 and '<span class="fault" id="s-rate-fault">120 is more' in body
    assert 'id="rule-1-fault">match.user: unknown key' in body
    assert 'name="step" value="make"' not in body, "there is nothing to confirm"


def test_a_preview_cannot_be_turned_into_an_enforced_budget(world: World, ann: Visitor) -> None:
    sent = {"step": "make", "document": '{"name":"x","mode":"enforce","rate":0,"rules":[{}]}'}
    assert ann.post(f"{MAIN}/new", sent).status == 400 and "x" not in world.settings


def test_a_budget_of_a_statement_takes_two_clicks(world: World, ann: Visitor) -> None:
    world.reads(replace(READINGS, started_ms=1))
    shown = ann.get(f"{MAIN}/new", query="-42")
    told = text_of(shown)
    assert "Create query-42" in told and "max_workers 2" in told and "Create it, in warn" in told
    assert ann.post(f"{MAIN}/new", fields(shown)).status == 303
    assert world.settings["query-42"]["rules"] == [{"match": {"query": "-42"}}]


def test_a_budget_is_proposed_for_rogue_clients_by_what_they_used(
    world: World, ann: Visitor
) -> None:
    shown = ann.get(f"{MAIN}/new", username="etl", application_name="nightly")
    body, told = shown.body.decode(), text_of(shown)
    assert 'value="username"' in body and 'value="nightly"' in body
    assert "Create etl-2" in told and "rate 1" in told


def test_to_enforce_is_a_step_of_its_own_with_figures(world: World, ann: Visitor) -> None:
    tight = {**ETL, "name": "tight", "rate": 1, "capacity": 10}
    world.api("PUT", "/v1/budgets/main/tight", tight)
    asked = ann.post(f"{MAIN}/tight/mode", {"mode": "enforce"}, script=True)
    told = text_of(asked)
    assert "mode warn → enforce" in told and "4 blocked" in told
    sent = {"mode": "enforce", "step": "make", "revision": field_of(asked, "revision")}
    done = ann.post(f"{MAIN}/tight/mode", sent, script=True)
    assert done.status == 204 and "/budgets/main/tight?done=" in done.headers["hx-redirect"]
    assert world.settings["tight"]["mode"] == "enforce"


def test_the_switch_for_all_is_confirmed_loud_and_shown_in_the_status(
    world: World, ann: Visitor
) -> None:
    """R131"""
    asked = ann.post(f"{MAIN}/cap", {"mode_cap": "off"})
    assert asked.status == 200 and "Stop every budget of main?" in text_of(asked)
    assert world.api("GET", "/v1/budgets/main")["mode_cap"] == "enforce"
    assert ann.post(f"{MAIN}/cap", {"mode_cap": "off", "step": "make"}).status == 303
    for path in (MAIN, f"{MAIN}/etl"):
        assert "switch for all of main is thrown" in text_of(ann.get(path)), path
    assert "no budget goes beyond off" in " ".join(world.api("GET", "/v1/status")["advice"])
    ann.post(f"{MAIN}/cap", {"mode_cap": "enforce", "step": "make"})
    assert "is thrown" not in text_of(ann.get(MAIN))


def test_one_can_go_back_forgive_and_remove(world: World, ann: Visitor) -> None:
    before = world.api("GET", "/v1/budgets/main")["revision"]
    gone = ann.post(f"{MAIN}/etl/remove", {"step": "make"})
    assert gone.headers["location"].startswith(f"{MAIN}?done=") and "etl" not in world.settings
    assert "To undo it: roll back to revision" in text_of(ann.get(gone.headers["location"]))
    back = f"/changes/{before}?only=budgets"
    assert (
        back.replace(str(before), str(before + 1)) in ann.get("/changes?only=budgets").body.decode()
    )
    shown = ann.get(back)
    assert "budget main/etl" in text_of(shown) and f"Roll back to {before}" in text_of(shown)
    sent = {name: field_of(shown, name) for name in ("n", "only", "revision")}
    world.api("PATCH", "/v1/budgets/main", {"mode_cap": "warn"})
    assert ann.post("/changes/rollback", sent).status == 412, "it was changed meanwhile"
    sent["revision"] = field_of(ann.get(back), "revision")
    made = ann.post("/changes/rollback", sent)
    assert made.headers["location"].startswith("/changes?done=")
    assert "budget main/etl" in text_of(ann.get(made.headers["location"]))
    assert "Nothing would change" in text_of(ann.get(back))
    epoch = world.settings["etl"].get("epoch", 0)
    assert "their debt is 4.00 s of CPU" in text_of(ann.post(f"{MAIN}/etl/forgive"))
    ann.post(f"{MAIN}/etl/forgive", {"step": "make"})
    assert world.settings["etl"]["epoch"] == epoch + 1
    assert ann.post("/changes/rollback", {"n": "x"}).status == 400
    assert ann.get("/changes/x").status == 400
    told = text_of(ann.get("/changes/0"))
    assert "Before the first change at this agent" in told and "Roll back to 0" in told


# --- the form, pure -------------------------------------------------------------------------------


def test_every_setting_of_a_budget_has_a_field() -> None:
    grouped = {name for group in (FIRST, *MORE) for name in group.names}
    assert grouped | {"name", "mode"} == set(BUDGET_SETTINGS)


def test_a_form_that_was_not_touched_changes_nothing() -> None:
    settings = document(
        {
            **ETL,
            "mode": "enforce",
            "in_transaction": "block",
            "max_delay_s": 0.5,
            "expires_at": "2030-01-01T00:00:00Z",
            "rules": [{"match": {"username": "a", "tag.x": "y"}, "each": ["tag.t"]}, {}],
        }
    )["budgets"][0]
    draft = draft_of(settings)
    sent = {f"s.{name}": value for name, value in draft.values.items() if name != "mode"}
    sent |= {"rules": "2", "rule.0.each": "tag.t", "rule.1.all": "on"}
    for row, (key, value) in enumerate(draft.rules[0].conditions):
        sent |= {f"rule.0.key.{row}": key, f"rule.0.value.{row}": value}
    assert changes_of(draft_from(sent), settings) == {}
    assert changes_of(draft_from({**sent, "s.rate": "", "lasts": "1h"}), settings) == {
        "rate": None,
        "for": "1h",
    }


def test_rules_that_do_not_fit_into_a_form_stay_as_they_are() -> None:
    many = {**ETL, "rules": [{"match": {"username": f"u{n}"}} for n in range(50)]}
    draft = draft_of(many)
    assert draft.keeps_rules and "rules" not in settings_of(draft)
    assert changes_of(draft, {**many, "mode": "warn"}) == {}


def test_rules_come_and_go_one_by_one() -> None:
    draft = BudgetForm(rules=(BudgetRuleForm((("username", "a"),)),))
    assert len(stepped(draft, "add").rules) == 2 and not stepped(draft, "drop.0").rules
    assert stepped(draft, "nonsense") == draft
    faults = faults_of(["budgets[3].rules[0].each: has 9 keys", "elsewhere"], draft)
    assert faults.by_rule == {0: "each: has 9 keys"} and faults.others == ["elsewhere"]


def test_a_proposal_leaves_room_and_has_a_free_name() -> None:
    found = proposed("x", {"username": "a"}, Used(0.2, 1.4, dearest=3.0))
    assert found.values == {"rate": "30%", "capacity": "12s", "max_workers": "3"}
    assert proposed("x", {}, Used(None)).values == {}
    assert name_for({"username": "Ann B"}) == "ann-b" and name_for({"username": "…"}) == "budget"
    assert free_name("a", ["a", "a-2", "b"]) == "a-3" and free_name("a", []) == "a"


# --- bars, pure -----------------------------------------------------------------------------------


def test_bars_stack_to_what_was_counted() -> None:
    minutes = [
        ViolationDoc("2026-01-01T10:05:00Z", "a", "blocked", "capacity", 3),
        ViolationDoc("2026-01-01T10:05:00Z", "b", "warned", "burst", 1),
        *(ViolationDoc("2026-01-01T10:07:00Z", f"c{n}", "delayed", "", 1) for n in range(8)),
    ]
    span = ("2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z")
    chart = chart_of(ViolationsDoc("main", *span, (), minutes, whole=True))
    assert chart.top == 8 and [bar.x for bar in chart.bars] == [50, 70] and chart.width == 600
    assert sum(piece.height for piece in chart.bars[0].pieces) == pytest.approx(50)
    assert sum(one.total for one in chart.series) == 12
    assert chart.series[0].label == "a: blocked by capacity"
    assert len({one.css for one in chart.series}) == len(chart.series)


@pytest.mark.parametrize(
    ("calls", "error", "word"),
    [(2, 9, "too few"), (9, 0.1, "close"), (9, 1, "rough"), (9, 3, "3 t")],
)
def test_the_accuracy_of_estimated_costs_is_said_in_words(
    calls: int, error: float, word: str
) -> None:
    assert word in prediction(PatternDoc("1", 1, calls, None, 1.0, 1.0, error, 1.0))


def test_no_page_of_a_database_takes_a_budgets_name() -> None:
    """But `new`, which has a second address."""
    from headgate.budgets.layers import RESERVED_NAMES

    words = {path.split("/")[3] for _, path, _ in BudgetsPage.routes if path.count("/") == 3}
    gets = {
        path.split("/")[3]
        for m, path, _ in BudgetsPage.routes
        if m == "GET" and path.count("/") == 3
    }
    assert gets - {"new", "{name}"} <= RESERVED_NAMES and words


def test_a_thrown_switch_is_shown_on_every_page(world: World, ann: Visitor) -> None:
    """Nobody is to find out by accident; where a page says it itself, it is not said twice."""
    assert 'class="note' not in ann.get("/banner", script=True).body.decode()
    for cap, words in (("warn", "budgets only warn"), ("off", "no budget is looked at")):
        world.api("PATCH", "/v1/budgets/main", {"mode_cap": cap})
        assert words in text_of(ann.get("/banner", script=True))
    for path, polls in (("/rules", 1), ("/clients", 1), ("/audit", 1), ("/", 0), (MAIN, 0)):
        assert ann.get(path).body.decode().count('id="banner"') == polls
