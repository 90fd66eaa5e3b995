"""What keys do: views, moving, typing, and changes that are only made by a yes to what was seen."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from headgate.cli.api import connect
from headgate.cli.render import Canvas
from headgate.tui.export import save_lines
from headgate.tui.page import compose
from headgate.tui.poller import ViewFeed
from headgate.tui.session import MAX_ERRANDS, Errands
from headgate.tui.sources import BudgetedDatabase, Chosen, Scene
from headgate.tui.state import (
    Action,
    CarryOut,
    Errand,
    Explain,
    ExplainInput,
    Hour,
    KeyContext,
    Prepare,
    Quit,
    Save,
    ScreenState,
    heard,
    parse_question,
    press,
)
from headgate.tui.views import VIEWS
from tests.cli import builders, documents
from tests.cli.scripted import Heard, Reply, ScriptedAgent, problem
from tests.cli.test_budgets import COUNTS, budget, policy
from tests.fixtures.eventually import eventually
from tests.tui import scenes

BUSY = scenes.scene()


def pressed(
    state: ScreenState, *keys: str, scene: Scene = BUSY
) -> tuple[ScreenState, Errand | None]:
    """Each at what the one before made of the screen."""
    errand: Errand | None = None
    for key in keys:
        frame = compose(state, scene, (80, 24), scenes.AROUND, scenes.NOW)
        state, errand = press(
            state, key, KeyContext(scene, frame.extent, VIEWS, "a.svg", "03:12:07")
        )
    return state, errand


def after(*keys: str, state: ScreenState | None = None) -> ScreenState:
    return pressed(state or ScreenState(), *keys)[0]


def errand_of(*keys: str, state: ScreenState | None = None) -> Errand | None:
    return pressed(state or ScreenState(), *keys)[1]


# --- looking -----------------------------------------------------------------------------------


def test_numbers_arrows_and_tab_switch_views() -> None:
    assert [after(str(at)).view for at in range(1, 9)] == list(VIEWS)
    assert after("right", "right").view == "clients"
    assert after("left").view == "fleet" and after("tab", "backtab").view == "overview"
    assert after("6", "tab").tab == 1, "there it changes lists"


def test_moving_stays_within_and_follows_what_was_chosen() -> None:
    state = after("4", "j")
    assert state.cursor.key == "r8"
    assert after("down", "j", "pagedown", "G", state=state).cursor.key == "r8"
    assert after("k", "up", "home", state=state).cursor.key == "r7"


def test_a_click_chooses_and_a_second_one_opens() -> None:
    state = after("3")
    frame = compose(state, BUSY, (80, 24), scenes.AROUND, scenes.NOW)
    second = f"click 5 {frame.extent.top + 1}"
    chosen, errand = pressed(state, second)
    assert chosen.cursor.key == frame.extent.keys[1] and errand is None
    assert isinstance(pressed(chosen, second)[1], Hour)
    assert after(f"click 5 {frame.extent.top + 20}", state=state) == state
    assert after("3", "wheeldown").cursor.at == 2
    names = {button.key: button for button in frame.extent.buttons}
    rules = names["4"]
    assert after(f"click {rules.begins} {rules.line}", state=state).view == "rules"


def test_a_click_confirms_nothing(agent: ScriptedAgent) -> None:
    state = ask_to(agent, "4", "l")
    assert state.panel is not None
    for line in range(24):
        after_click, errand = pressed(state, f"click 3 {line}")
        assert errand is None and after_click.panel == state.panel


def test_a_key_of_another_view_says_where_it_works() -> None:
    flash = after("l").flash
    assert flash is not None and flash.text == "l is a key of 4 rules"


def test_typing_a_filter_filters_and_escape_forgets_it() -> None:
    state = after("3", "/", "o", "r", "d", "q")
    assert state.filter == "ordq" and state.prompt is not None, "q is a letter here"
    assert after("backspace", "enter", state=state).filter == "ord"
    assert after("esc", state=state).filter == ""
    assert after("enter", "esc", state=state).filter == ""


def test_a_pause_freezes_the_picture() -> None:
    state = after(" ")
    assert state.paused is BUSY and state.paused_at == "03:12:07"
    assert after(" ", state=state).paused is None and after("esc", state=state).paused is None


def test_enter_opens_the_chosen_clients_hour() -> None:
    assert errand_of("3", "enter") == Hour("etl:nightly")
    assert errand_of("3", "x") == Explain(ExplainInput("etl:nightly", "main"))


def test_help_and_panels_close_and_leaving_is_always_possible() -> None:
    state = after("?")
    assert state.panel is not None
    assert after("q", state=state).panel is None
    for keys in (("q",), ("quit",), ("3", "/", "quit"), ("?", "quit")):
        assert isinstance(errand_of(*keys), Quit), keys


@pytest.mark.parametrize("key", ["l", "e", "h", "w", "enter", "x", "~"])
@pytest.mark.parametrize("view", ["1", "2", "4", "5", "6", "7"])
def test_every_key_is_harmless_where_nothing_is_chosen(view: str, key: str) -> None:
    empty = scenes.scene(builders.status(clients=[]), rules=scenes.told(None))
    _, errand = pressed(ScreenState(), view, key, scene=empty)
    assert not isinstance(errand, CarryOut | Prepare)


@pytest.mark.parametrize(
    ("typed", "question"),
    [
        ("etl:nightly", ExplainInput("etl:nightly", "main")),
        ("  etl:nightly   orders ", ExplainInput("etl:nightly", "orders")),
        ("a@b:c @orders", ExplainInput("a@b:c", "orders")),
        ("select 1 from t", ExplainInput("select 1 from t", "main")),
        ("select 1 @orders", ExplainInput("select 1", "orders")),
    ],
)
def test_what_is_typed_to_be_explained(typed: str, question: ExplainInput) -> None:
    assert parse_question(typed, ["main", "orders"]) == question
    assert question.is_statement == typed.startswith("select")


# --- changing ----------------------------------------------------------------------------------

RULE = scenes.rule()


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    agent = ScriptedAgent()
    agent.says("/v1/rules/r7", RULE, headers={"ETag": '"3"'})
    agent.says("/v1/rules/r7", {"rules": [RULE], "reached": None}, method="DELETE")
    agent.says("/v1/rules/r7", {**RULE, "left_s": 7200.0}, method="PATCH")
    agent.says("/v1/rules", RULE, method="POST")
    agent.says("/v1/replay", {}, method="POST")
    agent.says("/v1/databases/main/wake", {"database": "main"}, method="POST")
    with agent.serving():
        yield agent


def run(agent: ScriptedAgent, state: ScreenState, errand: Errand | None) -> ScreenState:
    assert errand is not None
    errands = Errands(connect(agent.url, None))
    assert errands.start(errand)
    (brought,) = eventually(errands.done)
    return heard(state, brought)


def changes(agent: ScriptedAgent) -> list[tuple[str, str, bool, Any]]:
    return [
        (one.method, one.path, one.query.get("dry_run") == "true", one.body)
        for one in agent.heard
        if one.method != "GET" and one.path != "/v1/replay"
    ]


def ask_to(agent: ScriptedAgent, *keys: str) -> ScreenState:
    state, errand = pressed(ScreenState(), *keys)
    return run(agent, state, errand)


HOLD = {
    "kind": "hold",
    "target": "etl:nightly",
    "for": "1h",
    "reason": "it floods",
    "database": "main",
}


@pytest.mark.parametrize(
    ("keys", "method", "path", "body", "told"),
    [
        (("4", "l"), "DELETE", "/v1/rules/r7", None, "LIFTED r7; undo: headgate rule hold etl"),
        (("4", "e", "enter"), "PATCH", "/v1/rules/r7", {"for": "1h"}, "EXTENDED r7: 2.0 h left"),
        (("3", "h", "enter", *"it floods", "enter"), "POST", "/v1/rules", HOLD, "SET r7: etl is"),
    ],
)
def test_a_change_is_tried_shown_confirmed_and_then_made(
    agent: ScriptedAgent, keys: tuple[str, ...], method: str, path: str, body: Any, told: str
) -> None:
    """R74, R76: a rule in a hurry, with a preview."""
    state = ask_to(agent, *keys)
    assert state.panel is not None and state.panel.prepared is not None
    assert changes(agent) == [(method, path, True, body)]
    frame = compose(state, BUSY, (110, 36), scenes.AROUND, scenes.NOW)
    shown = "\n".join("".join(part.text for part in line) for line in frame.lines)
    assert "y/N" in shown and "dry run: nothing was changed" in shown
    done = run(agent, *pressed(state, "y"))
    assert changes(agent)[1:] == [(method, path, False, body)]
    assert done.flash is not None and done.flash.text.startswith(told)
    matched = [one.headers.get("if-match") for one in agent.heard if one.method == method]
    assert set(matched) == ({None} if method == "POST" else {'"3"'}), "built on what was seen"


@pytest.mark.parametrize("key", ["n", "enter", "esc", "q"])
def test_whatever_is_not_a_yes_changes_nothing(agent: ScriptedAgent, key: str) -> None:
    state, errand = pressed(ask_to(agent, "4", "l"), key)
    assert errand is None and state.panel is None
    assert state.flash is not None and state.flash.text == "nothing was changed"
    assert [dry for _, _, dry, _ in changes(agent)] == [True]


def test_a_preview_that_comes_late_is_not_confirmed_by_a_key_meant_for_something_else(
    agent: ScriptedAgent,
) -> None:
    state, errand = pressed(ScreenState(), "4", "l")
    moved_on = replace(after("/", "y", state=state), busy=state.busy)
    late = run(agent, moved_on, errand)
    assert late.panel is None and late.prompt is not None
    assert after("esc", state=state).busy == "", "Esc forgets the question"
    assert run(agent, after("esc", state=state), errand).panel is None


def test_a_viewer_sees_that_it_cannot(agent: ScriptedAgent) -> None:
    detail = "dash is a viewer; changing needs a token with the role operator"
    agent.replies["DELETE", "/v1/rules/r7"] = problem(403, detail)
    state = ask_to(agent, "4", "l")
    assert state.panel is None and state.flash is not None and state.flash.is_bad
    assert f"you may look, not change: the agent answers 403: {detail}" in state.flash.text


def test_only_a_key_wakes_and_only_what_is_idle(agent: ScriptedAgent) -> None:
    """R58: an open screen must not keep databases from hibernating."""
    assert after("w").flash is not None and not isinstance(errand_of("w"), Prepare)
    resting = scenes.scene(builders.status(databases=[builders.database(activity="hibernating")]))
    state, errand = pressed(ScreenState(), "w", scene=resting)
    assert errand == Prepare(Action("wake", "main"))
    state = run(agent, state, errand)
    assert changes(agent) == []
    done = run(agent, *pressed(state, "y"))
    assert changes(agent) == [("POST", "/v1/databases/main/wake", False, {})]
    assert done.flash is not None and "WOKEN main" in done.flash.text


def test_an_agent_that_is_away_is_reported_where_the_key_was_pressed() -> None:
    errands = Errands(connect("http://127.0.0.1:1", None))
    assert errands.start(Hour("etl"))
    (brought,) = eventually(errands.done)
    assert brought.is_bad and "no agent answers" in brought.text
    assert heard(ScreenState(busy="asking"), brought).flash is not None


def test_an_agent_that_hangs_is_not_polled_without_end(agent: ScriptedAgent) -> None:
    release = threading.Event()

    def hang(_: Heard) -> Reply:
        release.wait()
        return Reply(documents.TIMELINE)

    agent.replies["GET", "/v1/history/timeline"] = hang
    errands = Errands(connect(agent.url, None))
    try:
        assert [errands.start(Hour("etl")) for _ in range(MAX_ERRANDS + 1)] == [
            *([True] * MAX_ERRANDS),
            False,
        ]
    finally:
        release.set()
    eventually(errands.done)
    eventually(lambda: not errands.are_full)
    assert errands.start(Hour("etl")), "there is room again"


def test_a_clients_hour_and_an_explanation_are_shown(agent: ScriptedAgent) -> None:
    agent.says("/v1/history/timeline", documents.TIMELINE)
    state = ask_to(agent, "3", "enter")
    assert state.panel is not None and state.panel.title == "etl:nightly, its last hour"
    page = Console(width=100, record=True, file=io.StringIO())
    page.print(state.panel.page(Canvas(100)))
    assert "mostly throttled between" in page.export_text()
    agent.says("/v1/explain", builders.explained(builders.rejection()))
    state = ask_to(agent, "7", "enter", *"etl main", "enter")
    assert state.explained is not None and state.asked == ExplainInput("etl", "main")


# --- files and budgets -------------------------------------------------------------------------


def test_a_snapshot_wants_a_name_and_overwrites_nothing(tmp_path: Path) -> None:
    assert errand_of("s", "enter") == Save("a.svg")
    assert errand_of("s", "clear", "enter") is None
    frame = compose(ScreenState(), BUSY, (90, 30), scenes.AROUND, scenes.NOW)
    for name, begins in (("a.svg", "<svg"), ("a.html", "<!DOCTYPE"), ("a.txt", "agent db1")):
        save_lines(tmp_path / name, frame.lines, (90, 30))
        assert (tmp_path / name).read_text().startswith(begins)
    with pytest.raises(FileExistsError):
        save_lines(tmp_path / "a.svg", frame.lines, (90, 30))


NOT_READ = ("read_s_ago", "version", "checksum", "enabled", "wanted_version", "rejection")
STATE: dict[str, Any] = {
    "database": "main",
    **dict.fromkeys((*NOT_READ, "health", "cpus", "workers")),
    **dict.fromkeys(("rejected", "seats_total", "seats_behind", "buckets_total"), 0),
    **dict.fromkeys(("seats", "budgets", "buckets"), ()),
    "fault": None,
    "patterns_total": 30,
    "patterns": [
        {
            "query_id": "77",
            "database": 5,
            "calls": 4200,
            "k": 3.5,
            "cpu_mean_ms": 12.0,
            "cpu_p90_ms": 20.0,
            "error": 1.25,
            "cpu_total_ms": 50_400.0,
            "text": "select * from orders where customer = $1",
            "cpu_share": 0.31,
            "budgets": ["etl"],
        }
    ],
}


def asked_budgets(agent: ScriptedAgent, database: str | None = None) -> list[BudgetedDatabase]:
    feed = ViewFeed(connect(agent.url, None), Chosen(database), lambda: None)
    feed.ask_all(["budgets"])
    told = feed.told["budgets"]
    assert not told.fault, told.fault
    found: list[BudgetedDatabase] = told.value
    return found


def budgets_page(found: list[BudgetedDatabase], size: tuple[int, int] = (130, 40)) -> str:
    scene = scenes.scene(budgets=scenes.told(found))
    frame = compose(ScreenState("budgets"), scene, size, scenes.AROUND, scenes.NOW)
    return "\n".join("".join(part.text for part in line) for line in frame.lines)


def test_budgets_show_fill_share_and_what_statements_cost(agent: ScriptedAgent) -> None:
    agent.says("/v1/budgets", {"databases": [policy(budgets=[{**budget(), "cpu_share": 0.18}])]})
    agent.says("/v1/budgets/main/state", STATE)
    text = budgets_page(asked_budgets(agent))
    for told in ("enforcing", "97%", "select * from orders", "125%", "50.4 s", "31%", "etl 18%"):
        assert told in text, told
    assert "violations: the agent answers 404" in text, "what is missing is said"
    narrow = budgets_page(asked_budgets(agent), (40, 12)).splitlines()
    assert any(line.startswith("etl") and "97%" in line and "42" in line for line in narrow)


def test_a_narrow_screen_still_says_what_is_wrong_with_a_policy(agent: ScriptedAgent) -> None:
    wrong = policy(is_off=True, rejection="line 3", read_fault="no such file", mode_cap="warn")
    agent.says("/v1/budgets", {"databases": [wrong]})
    text = budgets_page(asked_budgets(agent), (60, 30))
    for told in (
        "SWITCHED OFF",
        "REJECTED BY THE SERVER",
        "no such file",
        "CAPPED TO WARN",
    ):
        assert told in text, told


def test_an_older_agent_reports_less_of_statements(agent: ScriptedAgent) -> None:
    old = {key: value for key, value in STATE["patterns"][0].items() if key not in NEWER}
    agent.says("/v1/budgets", {"databases": [policy()]})
    agent.says("/v1/budgets/main/state", {**STATE, "patterns": [old]})
    assert "query 77" in budgets_page(asked_budgets(agent))


NEWER = ("text", "cpu_share", "budgets")


def test_budgets_show_what_is_blocked_a_second_and_keep_the_last_policy() -> None:
    """`headgate budget top main` asks for one database."""
    agent, blocked = ScriptedAgent(), iter((10, 16, 1))
    with agent.serving():
        agent.replies["GET", "/v1/budgets/main"] = lambda _: Reply(policy(budgets=[
            budget(counts={**COUNTS, "blocked": {"capacity": next(blocked)}})
        ]))  # fmt: skip
        feed = ViewFeed(connect(agent.url, None), Chosen("main"), lambda: None)
        rates = []
        for _ in range(3):
            feed.ask_all(["budgets"])
            rates.append(feed.told["budgets"].value[0].rates)
    assert rates[0] is None, "a rate needs a second look"
    assert rates[1]["etl"] > 0 and rates[2] == {"etl": 0.0}, "a server that crashed counts anew"
    feed.ask_all(["budgets"])
    assert feed.told["budgets"].value and "no agent answers" in feed.told["budgets"].fault
