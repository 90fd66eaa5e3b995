"""Keys and the page meet on one stage: neither spoils what the other began."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from headgate.demo import live
from headgate.demo.live import Director
from headgate.demo.stage import Frame
from headgate.demo.tour import Promise, ScenePlay
from tests.demo.builders import EmptyStage, empty_stage, frame, scene, seat
from tests.fixtures.eventually import eventually

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
