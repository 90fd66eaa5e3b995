"""What is drawn fits the terminal, whatever its size, and the keys are always there. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.text import Text

from headgate.demo.scenes import SCENES
from headgate.demo.screen import Event, Playing, View, draw
from headgate.demo.stage import BACKFILL, ETL, MIGRATION
from tests.demo.builders import desk, empty_stage, frame, heard

SIGN_IN = "http://127.0.0.1:20000/sign-in#token"


def view(*, busy: bool = False, number: int = 2, events: int = 12, waits_for: str = "") -> View:
    desks = [
        desk(ETL, chunks=0, held_s=1.2, last=heard("THRESHOLD_EXCEEDED", admitted=False)),
        desk(BACKFILL, told_by="db-a"),
        desk(MIGRATION, last=heard(unthrottled=True)),
    ]
    return View(
        frame(10.0, desks, lag_s=2.5, rogues=3),
        frame_s=0.5,
        since_s=75.0,
        events=tuple(Event(n, f"event {n}") for n in range(events)),
        playing=Playing(
            number,
            6,
            "ETL floods",
            "It floods. " * 20,
            "the lag",
            tuple(SCENES[1].looks(empty_stage(refused_at="2026-03-01T07:10:00Z"))),
            busy or bool(waits_for),
            waits_for,
        ),
        changing=None,
        slow="db-c",
        slow_for_s=None,
        page=SIGN_IN,
        url="http://127.0.0.1:20000",
    )


def lines(shown: View, width: int, height: int) -> list[Text]:
    return [line for line in draw(shown, width, height).renderables if isinstance(line, Text)]


@pytest.mark.parametrize(
    ("width", "height"), [(118, 32), (80, 24), (200, 60), (60, 12), (30, 6), (20, 3)]
)
def test_every_size_is_kept_to_and_the_keys_are_there(width: int, height: int) -> None:
    drawn = lines(view(), width, height)
    assert len(drawn) <= height
    assert all(line.cell_len <= width for line in drawn)
    assert any(line.plain.startswith(" n ") for line in drawn)


def test_a_roomy_terminal_shows_scene_jobs_crowd_and_the_newest_events() -> None:
    drawn = "\n".join(line.plain for line in lines(view(), 118, 40))
    for words in ("scene 2 of 6", "press n for the next", "HELD 1.2 s", "OK by db-a's agent"):
        assert words in drawn
    for words in ("UNTHROTTLED", "export.py", "SQLSTATE 53000", "event 11", SIGN_IN, "/clients"):
        assert words in drawn


def test_a_scene_that_plays_and_the_last_one_say_so() -> None:
    assert "playing …" in "\n".join(line.plain for line in lines(view(busy=True), 118, 40))
    assert "the last one" in "\n".join(line.plain for line in lines(view(number=6), 118, 40))


def test_a_scene_that_waits_says_which_key_brings_what() -> None:
    shown = view(waits_for="a replica is promoted")
    drawn = "\n".join(line.plain for line in lines(shown, 118, 40))
    assert "press n: a replica is promoted" in drawn and "playing …" not in drawn


def test_a_page_is_named_without_what_its_link_fills_in() -> None:
    drawn = "\n".join(line.plain for line in lines(view(), 118, 40))
    assert "/explain why it was refused in that minute" in drawn and "at=" not in drawn


@pytest.mark.parametrize(("width", "height"), [(60, 16), (40, 10)])
def test_in_a_small_terminal_the_address_is_whole_and_the_scene_is_named(
    width: int, height: int
) -> None:
    address = "http://127.0.0.1:26435/sign-in#Y8E6jTMERZ3darsoVMy0Qw"
    drawn = [line.plain for line in lines(replace(view(), page=address), width, height)]
    assert address in "".join(drawn)
    assert any("scene 2 of 6" in line for line in drawn)
    assert any(line.rstrip().endswith("ask or not") for line in drawn), "keys are not cut"
