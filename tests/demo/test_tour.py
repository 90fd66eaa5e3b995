"""Stepping through scenes: which one is on, which was wanted, what was promised."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from email.message import Message
from typing import Any, NamedTuple

import pytest

from headgate.demo.servers import ServerFailed
from headgate.demo.tour import (
    MAX_BODY_BYTES,
    Promise,
    ScenePlay,
    Tour,
    TourScene,
    TourServer,
    Whither,
    number_of,
    open_server,
    score,
    whither_in,
)
from tests.demo.builders import empty_stage, frame, scene
from tests.fixtures.eventually import eventually

LONG_S = 600.0


@contextmanager
def tour_of(*scenes: TourScene, pauses: bool = False) -> Iterator[tuple[Tour, list[str]]]:
    told: list[str] = []
    tour = Tour(empty_stage(), scenes, told.append, pauses=pauses)
    try:
        yield tour, told
    finally:
        tour.leave()


@pytest.mark.parametrize(
    ("whither", "now", "number"),
    [
        *[("next", 0, 1), ("next", 2, 3), ("next", 6, 6), ("back", 3, 2), ("back", 1, 1)],
        *[("again", 4, 4), ("again", 0, 1), (5, 1, 5), (99, 1, 6), (-3, 1, 1)],
    ],
)
def test_a_step_never_leaves_the_scenes_there_are(whither: Whither, now: int, number: int) -> None:
    assert number_of(whither, now, 6) == number


def test_a_scene_plays_to_its_end_and_keeps_what_it_promised() -> None:
    with tour_of(scene("one"), scene("two", kept=False)) as (tour, _):
        assert tour.number == 0 and not tour.done
        assert tour.go("next") == 1
        eventually(lambda: not tour.busy)
        tour.go("next")
        eventually(lambda: tour.done)
        assert [promise.kept for n in (1, 2) for promise in tour.promises[n]] == [True, False]


def test_a_step_cuts_the_scene_short_and_the_last_wish_counts() -> None:
    with tour_of(scene("one", waits_s=LONG_S), scene("two"), scene("three")) as (tour, _):
        tour.go(1)
        eventually(lambda: tour.number == 1 and tour.busy)
        tour.go(2)
        tour.go(3)
        eventually(lambda: tour.done)
        assert 1 not in tour.promises and 3 in tour.promises


def test_leaving_ends_a_scene_that_waits() -> None:
    with tour_of(scene("one", waits_s=LONG_S)) as (tour, _):
        tour.go(1)
        tour.leave()
        assert tour.stage.leaving.is_set() and not tour.promises
        assert not any(thread.name == "tour" for thread in threading.enumerate())


def test_a_scene_that_could_not_be_played_says_why_and_the_tour_goes_on() -> None:
    def fails(run: ScenePlay) -> list[Promise]:
        raise ServerFailed("db-a did not start")

    broken = replace(scene("one"), play=fails)
    with tour_of(broken, scene("two")) as (tour, told):
        tour.go(1)
        eventually(lambda: not tour.busy)
        assert "scene 1 could not be played: db-a did not start" in told
        tour.go(2)
        eventually(lambda: tour.done)
        assert not tour.failure


def test_a_scene_sees_the_frames_of_its_own_time_only() -> None:
    def play(run: ScenePlay) -> list[Promise]:
        first = run.watch(0.0)
        later = run.watch(0.0)
        seen = [one.at for one in first], [one.at for one in later]
        return [Promise(str(seen), not set(seen[0]) & set(seen[1]) and bool(seen[1]))]

    with tour_of(replace(scene("one"), play=play)) as (tour, _):
        tour.go(1)
        ticks = itertools.count()

        def is_over() -> bool:
            tour.hear(frame(next(ticks)))
            return not tour.busy

        eventually(is_over)
        assert tour.promises[1][0].kept, tour.promises[1][0].text


def test_the_page_gets_every_scene_and_where_to_look() -> None:
    with tour_of(scene("one"), scene("two")) as (tour, _):
        tour.go(2)
        eventually(lambda: tour.done)
        told = tour.document()
        assert (told["scene"], told["busy"], told["done"]) == (2, False, True)
        assert told["scenes"][1] == {
            "n": 2,
            "title": "two",
            "says": "two.",
            "look": [{"text": "it", "path": "/clients", "agent": "http://127.0.0.1:20000"}],
        }


def pausing(title: str) -> TourScene:
    def play(run: ScenePlay) -> list[Promise]:
        run.tell("dead")
        run.pause("it comes back")
        run.tell("back")
        return [Promise(title, kept=True)]

    return replace(scene(title), play=play)


def test_what_would_be_over_too_soon_lasts_until_the_viewer_goes_on() -> None:
    with tour_of(pausing("one"), scene("two"), pauses=True) as (tour, told):
        tour.go(1)
        eventually(lambda: tour.waits_for == "it comes back")
        assert tour.document()["waits_for"] == "it comes back" and tour.busy and told == ["dead"]
        assert tour.go("next") == 1
        eventually(lambda: not tour.busy)
        assert told == ["dead", "back"] and 1 in tour.promises and not tour.waits_for
        assert tour.go("next") == 2


def test_another_scene_cuts_a_pause_short() -> None:
    with tour_of(pausing("one"), scene("two"), pauses=True) as (tour, told):
        tour.go(1)
        eventually(lambda: bool(tour.waits_for))
        tour.go(2)
        eventually(lambda: tour.done)
        assert told == ["dead"] and 1 not in tour.promises


def test_without_a_person_nothing_pauses() -> None:
    with tour_of(pausing("one")) as (tour, told):
        tour.go(1)
        eventually(lambda: tour.done)
        assert told == ["dead", "back"]


def test_what_could_not_be_tried_is_neither_kept_nor_broken() -> None:
    made = [Promise("a", kept=True), Promise("b", kept=False, tried=False)]
    assert score(made) == "1 of 1 promises kept, 1 not tried"
    assert score(made[:1]) == "1 of 1 promises kept"


# --- the tour on the page ------------------------------------------------------------------
# The tour's endpoint serves the demo's own pages, and nobody else's.

PAGE = "http://127.0.0.1:20001"


class Answer(NamedTuple):
    status: int
    headers: Message
    document: Any


@pytest.fixture
def guide() -> Iterator[TourServer]:
    server = open_server()
    tour = Tour(empty_stage(), [scene("one"), scene("two"), scene("three")], lambda text: None)
    server.begin(tour)
    try:
        yield server
    finally:
        server.end()
        tour.leave()


def ask(guide: TourServer, method: str, body: str | None = None, **headers: str) -> Answer:
    path = headers.pop("path", "/tour")
    with closing(http.client.HTTPConnection("127.0.0.1", guide.server_port, timeout=60)) as line:
        line.request(method, path, body, headers)
        answer = line.getresponse()
        said = answer.read()
    return Answer(answer.status, answer.headers, json.loads(said) if said else None)


def test_a_page_of_an_agent_reads_and_steps(guide: TourServer) -> None:
    read = ask(guide, "GET", Origin=PAGE)
    assert read.status == 200 and read.headers["Access-Control-Allow-Origin"] == PAGE
    assert "Origin" in read.headers["Vary"] and len(read.document["scenes"]) == 3
    assert ask(guide, "POST", '{"to": 3}', Origin=PAGE).status == 202
    eventually(lambda: ask(guide, "GET").document["done"])
    assert ask(guide, "POST", '{"to": "back"}', Origin=PAGE).document == {"scene": 2}


def test_a_browser_may_send_a_preflight_before_it_posts(guide: TourServer) -> None:
    allowed = ask(guide, "OPTIONS", Origin=PAGE)
    assert allowed.status == 204 and "POST" in allowed.headers["Access-Control-Allow-Methods"]
    assert allowed.headers["Access-Control-Allow-Headers"] == "Content-Type"


FOREIGN = (
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
    {"Host": "evil.example"},
    {"Host": "evil.example:20001", "Origin": PAGE},
)


def test_any_other_page_and_any_other_name_are_rejected(guide: TourServer) -> None:
    for method, headers in itertools.product(("GET", "POST", "OPTIONS"), FOREIGN):
        rejected = ask(guide, method, '{"to": 2}', **headers)
        assert rejected.status == 403, (method, headers)
        assert rejected.headers["Access-Control-Allow-Origin"] in (None, PAGE)
    assert guide.tour is not None and guide.tour.number == 0


def test_what_is_not_there_and_what_is_too_large_changes_nothing(guide: TourServer) -> None:
    assert ask(guide, "GET", path="/").status == 404
    assert ask(guide, "POST", "x" * (MAX_BODY_BYTES + 1)).status == 422
    assert ask(guide, "POST", '{"to": true}').status == 422
    assert guide.tour is not None and guide.tour.number == 0


@pytest.mark.parametrize("body", [b"", b"[]", b'{"to": null}', b'{"to": 1.5}', b'{"to": "end"}'])
def test_a_body_without_a_place_to_go_says_what_is_wanted(body: bytes) -> None:
    with pytest.raises(ValueError, match="wanted"):
        whither_in(body)
