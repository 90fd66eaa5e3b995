"""The tour's endpoint serves the demo's own pages, and nobody else's."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from email.message import Message
from typing import Any, NamedTuple

import pytest

from headgate.demo.tour import Tour
from headgate.demo.tourserver import MAX_BODY_BYTES, TourServer, open_server, whither_in
from tests.demo.builders import empty_stage, scene
from tests.fixtures.eventually import eventually

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
