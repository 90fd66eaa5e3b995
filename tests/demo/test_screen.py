"""What is drawn fits the terminal, whatever its size, and the keys are always there. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from headgate.cli.render import UNICODE
from headgate.demo.live import views_of
from headgate.demo.scenes import SCENES
from headgate.demo.screen import HINTS, DemoEvent, DemoView, Playing, strip
from headgate.demo.stage import BACKFILL, ETL, MIGRATION
from headgate.tui.page import ScreenContext, compose
from headgate.tui.state import ScreenState
from tests.demo.builders import desk, empty_stage, frame, heard
from tests.tui import scenes

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
            tuple(SCENES[1].looks(empty_stage(rejected_at="2026-03-01T07:10:00Z"))),
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
