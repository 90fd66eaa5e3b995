"""The views of `top`, from values: what each says, at any size, in any state of the agent."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.color import ColorSystem

from headgate.cli.documents import read
from headgate.cli.render import ASCII, UNICODE, Marks
from headgate.history.api import TimelineDoc
from headgate.rules.api import RulesDoc
from headgate.tui.clients import listed, resampled
from headgate.tui.layout import RowCursor, ScreenColumn, fit, place, window
from headgate.tui.page import ScreenContext, compose
from headgate.tui.paint import Paint, difference
from headgate.tui.sources import LastAnswer, Scene, ThrottledStrip, strip
from headgate.tui.state import Flash, Panel, Prompt, ScreenState
from headgate.tui.views import VIEWS
from tests.cli import builders
from tests.cli.documents import TIMELINE
from tests.tui import scenes
from tests.tui.glass import Glass

SIZES = [(40, 12), (57, 17), (80, 24), (133, 43), (300, 100), (12, 3), (1, 1)]
PAINT = {
    marks.dot: Paint(ColorSystem.EIGHT_BIT, colourless=False, ascii_only=marks is ASCII)
    for marks in (UNICODE, ASCII)
}


def shown(
    state: ScreenState, scene: Scene, size: tuple[int, int] = (110, 36), marks: Marks = UNICODE
) -> str:
    frame = compose(state, scene, size, ScreenContext(VIEWS, marks), scenes.NOW)
    glass = Glass(max(20, size[0]), max(4, size[1]))
    glass.write(difference((), frame.lines, (glass.columns, glass.lines), PAINT[marks.dot]))
    assert not glass.overflowed
    assert len(frame.lines) == glass.lines
    return glass.text


BUSY = scenes.scene()
CROWDED = scenes.scene(scenes.crowded())
LOST = replace(
    BUSY, picture=replace(BUSY.picture, lost="connection refused\n[red]x", lost_at_s=97.0)
)
EMPTY = Scene(replace(BUSY.picture, status=None, recent={}, rates={}))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_every_size(view: str, size: tuple[int, int]) -> None:
    shown(ScreenState(view), BUSY, size)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_there_with_many_with_none_and_without_an_agent(view: str) -> None:
    shown(ScreenState(view), CROWDED, (57, 17))
    shown(ScreenState(view), CROWDED, (150, 40))
    shown(ScreenState(view), LOST, (57, 17))
    shown(ScreenState(view), EMPTY, (57, 17))


@pytest.mark.parametrize("size", SIZES)
def test_panels_prompts_and_messages_fit_every_size(size: tuple[int, int]) -> None:
    panel = Panel("etl", lambda canvas: "shard" * 40)
    for state in (
        ScreenState(panel=panel),
        ScreenState(prompt=Prompt("filter", "/", "x" * 400)),
        ScreenState(flash=Flash("y" * 500), busy="asking"),
    ):
        shown(state, BUSY, size)


def test_ascii_terminals_get_ascii_alone() -> None:
    for view in VIEWS:
        assert shown(ScreenState(view), BUSY, marks=ASCII).isascii(), view


def test_a_small_screen_keeps_what_matters() -> None:
    text = shown(ScreenState(), BUSY, (40, 12))
    assert "REJECTS" in text and "BREACHED" in text and "q quit" in text
    text = shown(ScreenState("clients"), BUSY, (40, 12))
    assert "etl:nightly" in text and "THROTTLED 13 min" in text and "admitted/s" not in text


def test_advice_comes_first() -> None:
    """3 a.m.: what to do, what is unhealthy, who is throttled, by what and for how long."""
    text = shown(ScreenState(), BUSY)
    places = [text.index(told) for told in ("advice", "REJECTS", "etl:nightly")]
    assert places == sorted(places)
    assert "2 in force: etl (rejects every check of etl)" in text
    assert "THROTTLED 13 min by lag" in text


def test_an_idle_database_is_said_and_how_to_wake_it() -> None:
    """R56: looking wakes nobody."""
    main = builders.database(activity="hibernating", idle=True)
    text = shown(ScreenState(), scenes.scene(builders.status(databases=[main])))
    assert "idle  main: the next check wakes it (about 1 s); w wakes it now" in text
    assert "REJECTS" not in text


def test_an_agent_that_does_not_answer_is_said_and_the_last_picture_stays_dimmed() -> None:
    frame = compose(ScreenState("clients"), LOST, (110, 36), scenes.AROUND, scenes.NOW)
    text = shown(ScreenState("clients"), LOST)
    assert "AGENT UNREACHABLE for 3.0 s: connection refused [red]x" in text
    assert "etl:nightly" in text
    body = [segment for line in frame.lines[4:-1] for segment in line if segment.text.strip()]
    assert body and all(segment.style is not None and segment.style.dim for segment in body)


def test_an_agent_that_restarted_is_shown() -> None:
    anew = replace(BUSY, picture=replace(BUSY.picture, restarted_at_s=95.0))
    assert "the agent restarted 5.0 s ago" in shown(ScreenState(), anew)


def test_the_shard_is_a_tree_with_curves() -> None:
    document = builders.status(databases=[builders.database(shard=builders.troubled_shard())])
    text = shown(ScreenState("shard"), scenes.scene(document), (120, 50))
    assert "├─ db-b" in text and "▁  lag 20 ms ●" in text
    for told in ("UNREACHABLE for 42", "hibernating: no checks", "its clock is 310 ms ahead"):
        assert told in text


def test_clients_say_how_long_by_what_their_hour_and_the_remedy() -> None:
    text = shown(ScreenState("clients"), BUSY, (170, 36))
    line = next(line for line in text.splitlines() if line.startswith("> etl:nightly"))
    assert "THROTTLED 13 min by lag" in line
    assert "··········▃▇▃▇▃▇▃▇▃▇" in line
    assert "headgate rule lift r7" in text
    assert "mostly throttled for at most 10 min; 90% of its checks at worst" in text


def test_a_client_on_several_databases_has_a_row_for_each() -> None:
    clients = [builders.client(name) for name in ("a:x", "a:y:1", "a:y:2", "b")]
    clients.append(builders.client("b", database="orders"))
    picture = scenes.scene(builders.status(clients=clients)).picture
    rows = listed(picture, "", "name", as_tree=True).rows
    assert [(row.depth, row.label) for row in rows] == [
        (0, "a"), (1, "x"), (1, "y"), (2, "1"), (2, "2"),
        (0, "b"), (1, "on main"), (1, "on orders"),
    ]  # fmt: skip
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys)), "each can be chosen by its own key"


def test_a_filter_finds_names_databases_and_what_throttles() -> None:
    def found(text: str) -> list[str]:
        return [row.app for row in listed(BUSY.picture, text, "throttled", as_tree=False).rows]

    assert found("throttled LAG") == ["etl:nightly"]
    assert found("orders") == ["backfill:users"]
    assert len(found("")) == 3
    assert "no client matches 'zzz'" in shown(ScreenState("clients", filter="zzz"), BUSY)


def test_rules_show_who_why_how_long_and_which_clients_match() -> None:
    text = shown(ScreenState("rules"), BUSY, (140, 30))
    assert "> r7" in text and "48 min" in text
    assert "ops" in text and "it floods the replica" in text
    assert "applies to: etl:nightly" in text


def test_rejections_and_changes_share_a_view() -> None:
    text = shown(ScreenState("past"), BUSY)
    assert "rejected lately: 50" in text and "changed lately: 50" in text
    assert "THRESHOLD_EXCEEDED" in text and "ratio: 50%" in text
    swapped = shown(ScreenState("past", tab=1), BUSY)
    assert swapped.index("changed lately") < swapped.index("rejected lately")


def test_what_an_agent_cannot_report_is_said_in_its_place() -> None:
    none = LastAnswer(fault="the agent answers 404: this agent has no rules")
    assert "rules cannot be shown: the agent answers 404" in shown(
        ScreenState("rules"), scenes.scene(rules=none)
    )
    old = LastAnswer(BUSY.of("rules").value, 10.0, "no answer in 10 s", 99.0)
    text = shown(ScreenState("rules"), scenes.scene(rules=old))
    assert "below is what was said 90.0 s ago: no answer in 10 s" in text and "> r7" in text


def test_a_strip_is_an_hour_in_steps_with_gaps_where_nobody_checked() -> None:
    found = strip(read(TimelineDoc, TIMELINE))
    assert found == ThrottledStrip([0.0, None, 0.92, None], "shard/lag")
    assert resampled([0.1, None, 0.9, 0.2, None, None], 3) == [0.1, 0.9, None]


def test_columns_go_by_their_rank() -> None:
    columns = (ScreenColumn("a", 5, 9, 2), ScreenColumn("b", 5, 200, 1), ScreenColumn("c", 5, 5, 3))
    assert [(one.column.name, one.width) for one in fit(columns, 12)] == [("a", 5), ("b", 5)]
    assert [one.width for one in fit(columns, 40)] == [9, 22, 5]
    assert [one.column.name for one in fit(columns, 3)] == ["b"]


def test_the_chosen_row_stays_chosen_in_whatever_order_it_comes() -> None:
    """A rule is lifted by what was chosen, not by where it stood."""
    assert place(["x", "r7", "y"], RowCursor("r7", 0)) == 1
    assert place(["x", "y"], RowCursor("r7", 5)) == 1
    assert place([], RowCursor("r7", 5)) == 0
    assert [window(at, 100, 10, 20) for at in (5, 25, 45, 99)] == [5, 20, 36, 90]


@pytest.mark.parametrize("view", ["overview", "rules"])
def test_a_rule_that_is_not_in_force_here_is_said(view: str) -> None:
    rules = scenes.told(read(RulesDoc, {"rules": [scenes.rule()], "rejected": ["f-1: no such"]}))
    assert "NOT IN FORCE HERE  rule f-1: no such" in shown(
        ScreenState(view), scenes.scene(rules=rules)
    )
