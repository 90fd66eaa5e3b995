"""Keys and the page meet on one stage: neither spoils what the other began."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from rich.cells import cell_len

from headgate.cli.render import UNICODE
from headgate.demo import live
from headgate.demo.live import HINTS, DemoEvent, DemoView, Director, Playing, strip, views_of
from headgate.demo.scenes import SCENES
from headgate.demo.stage import BACKFILL, ETL, MIGRATION, Frame, SceneFacts
from headgate.demo.tour import Promise, ScenePlay
from headgate.tui.page import ScreenContext, compose
from headgate.tui.state import ScreenState
from tests.demo.builders import EmptyStage, desk, empty_stage, frame, heard, scene, seat
from tests.fixtures.eventually import eventually
from tests.tui import scenes

LONG_S = 600.0


@pytest.fixture
def director(monkeypatch: pytest.MonkeyPatch) -> Iterator[Director]:
    monkeypatch.setattr(live, "SCENES", (scene("one"), scene("two", waits_s=LONG_S)))
    director = Director(empty_stage())
    try:
        yield director
    finally:
        director.tour.leave()


def held_back(director: Director) -> list[str]:
    return cast(EmptyStage, director.stage).held_back


def told(director: Director) -> list[str]:
    return [event.text for event in director.shown(frame(1)).events]


def test_a_scene_that_the_page_began_outlives_the_lag_of_a_key(
    director: Director, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lag ends as the scene begins, not in its midst with the scene's own brake."""
    monkeypatch.setattr(live, "LAG_S", 0.0)
    director.press("d")
    director.tour.go(2)  # As the page does.
    eventually(lambda: held_back(director) == ["db-c", ""])
    director.tend()
    assert held_back(director) == ["db-c", ""]
    assert director.shown(frame(1)).slow_for_s is None


def test_the_lag_of_a_key_ends_automatically(
    director: Director, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LAG_S", 0.0)
    director.press("d")
    director.tend()
    assert held_back(director) == ["db-c", ""]


def test_a_scene_played_again_from_the_page_reports_its_outcome_again(director: Director) -> None:
    for times in (1, 2):
        director.tour.go(1)
        eventually(lambda: not director.tour.busy)
        director.tend()
        assert told(director).count("scene 1: 1 of 1 promises kept") == times


def test_another_leader_is_shown_with_what_becomes_of_the_page(director: Director) -> None:
    """There is none in between, as through a promotion."""
    first, nobody, second = (
        Frame(at, (seat("db-a", role_a), seat("db-b", role_b)), ())
        for at, role_a, role_b in (
            (1, "primary", "replica"),
            (2, None, "replica"),
            (3, None, "primary"),
        )
    )
    for earlier, later in ((first, first), (first, nobody), (nobody, second)):
        director.note(earlier, later)
    assert told(director) == ["db-b's agent decides for the shard; the page is its own now"]


def test_in_a_terminal_a_scene_waits_and_n_takes_it_on(director: Director) -> None:
    def play(run: ScenePlay) -> list[Promise]:
        run.pause("it comes back")
        return [Promise("it came back", kept=True)]

    director.tour.scenes = (replace(scene("one"), play=play),)
    director.press("c", "1")
    eventually(lambda: director.shown(frame(1)).playing.waits_for == "it comes back")
    director.press("n")
    eventually(lambda: 1 in director.tour.promises)


def test_a_scene_that_there_is_not_is_said(director: Director) -> None:
    director.press("c", "9")
    assert told(director) == ["there are scenes 1 to 2, and no 9"]


# --- the screen ----------------------------------------------------------------------------
# What is drawn fits the terminal, whatever its size, and the keys are always there. Pure.

SIGN_IN = "http://127.0.0.1:20000/sign-in#token"


def shown(
    *, busy: bool = False, number: int = 2, events: int = 12, waits_for: str = ""
) -> DemoView:
    desks = [
        desk(ETL, chunks=0, held_s=1.2, last=heard("THRESHOLD_EXCEEDED", admitted=False)),
        desk(BACKFILL, told_by="db-a"),
        desk(MIGRATION, last=heard(unthrottled=True)),
    ]
    return DemoView(
        frame(10.0, desks, lag_s=2.5, rogues=3),
        frame_s=0.5,
        events=tuple(DemoEvent(n, f"event {n}") for n in range(events)),
        playing=Playing(
            number,
            6,
            "ETL floods",
            "It floods. " * 20,
            "the lag",
            tuple(SCENES[1].looks(empty_stage(found=SceneFacts("2026-03-01T07:10:00Z")))),
            busy or bool(waits_for),
            waits_for,
        ),
        changing=None,
        slow="db-c",
        slow_for_s=None,
        page=SIGN_IN,
        url="http://127.0.0.1:20000",
    )


def screen(shown: DemoView, width: int = 118, height: int = 45, view: str = "demo") -> list[str]:
    around = ScreenContext(
        views_of(lambda: shown), UNICODE, lambda _, room: strip(shown, room), HINTS
    )
    frame = compose(ScreenState(view), scenes.scene(), (width, height), around, scenes.NOW)
    assert len(frame.lines) == max(4, height)
    return ["".join(part.text for part in line) for line in frame.lines]


@pytest.mark.parametrize(
    ("width", "height"), [(118, 32), (80, 24), (200, 60), (60, 15), (60, 12), (30, 6), (20, 4)]
)
@pytest.mark.parametrize("view", ["demo", "overview", "clients"])
def test_every_size_is_kept_to_and_the_keys_and_the_scene_are_there(
    width: int, height: int, view: str
) -> None:
    drawn = screen(shown(), width, height, view)
    assert all(cell_len(line) <= width for line in drawn)
    assert drawn[-2].startswith("n next") and drawn[-1].startswith("0")
    assert height < 6 or any("scene 2 of 6" in line for line in drawn)


def test_a_roomy_terminal_shows_scene_jobs_crowd_and_the_newest_events() -> None:
    drawn = "\n".join(screen(shown()))
    for words in ("scene 2 of 6", "press n for the next", "THROTTLED 1.2 s", "OK by db-a's agent"):
        assert words in drawn
    for words in ("UNTHROTTLED", "export.py", "SQLSTATE 53000", "event 11", SIGN_IN, "/clients"):
        assert words in drawn


def test_the_views_of_top_are_there_below_the_strip() -> None:
    drawn = "\n".join(screen(shown(), view="overview"))
    assert "scene 2 of 6" in drawn and "look at" in drawn and "BREACHED" in drawn


def test_a_scene_that_plays_and_the_last_one_say_so() -> None:
    assert "playing …" in "\n".join(screen(shown(busy=True)))
    assert "the last one" in "\n".join(screen(shown(number=6)))


def test_a_scene_that_waits_says_which_key_brings_what() -> None:
    drawn = "\n".join(screen(shown(waits_for="a replica is promoted")))
    assert "press n: a replica is promoted" in drawn and "playing …" not in drawn


def test_a_page_is_named_without_what_its_link_fills_in() -> None:
    drawn = "\n".join(screen(shown()))
    assert "/explain why it was rejected in that minute" in drawn and "at=" not in drawn


@pytest.mark.parametrize("width", [60, 40])
def test_in_a_narrow_terminal_the_address_is_whole(width: int) -> None:
    address = "http://127.0.0.1:26435/sign-in#Y8E6jTMERZ3darsoVMy0Qw"
    assert address in "".join(screen(replace(shown(), page=address), width, 60))
