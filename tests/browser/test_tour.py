"""The tour's strip on a page: a click goes on, a link shows what it says. A real browser and a
real guide; the page around the strip is bare."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import headgate.page
from headgate.demo.agents import DemoAgent
from headgate.demo.tour import PageHint, Promise, ScenePlay, Tour, TourScene, open_server
from tests.demo.builders import empty_stage, scene
from tests.fixtures.eventually import DEADLINE_S

SCRIPT = Path(headgate.page.__file__).parent / "static" / "tour.js"
ELSEWHERE = "http://127.0.0.1:1"
HTML = """<!doctype html><aside id="tour" hidden></aside>
<form onsubmit="event.preventDefault(); this.dataset.asked = 'yes'">
<input type="hidden" name="csrf" value="kept">
<textarea name="sql"></textarea><input name="username"></form>
<script src="/tour.js" defer data-tour="{guide}"></script>"""


def pausing(run: ScenePlay) -> list[Promise]:
    run.pause("it comes back")
    return [Promise("it came back", kept=True)]


LOOKS = (
    PageHint("here", "/clients"),
    PageHint("at another", "/", ELSEWHERE),
    PageHint("a statement", "/explain#sql=select+1&username=adhoc&csrf=forged"),
)
SCENES: tuple[TourScene, ...] = (
    replace(scene("one"), looks=lambda stage: LOOKS, play=pausing),
    scene("two"),
)


class Bare(BaseHTTPRequestHandler):
    """An agent's page, as far as the strip needs one."""

    guide = ""

    def do_GET(self) -> None:
        is_script = self.path.endswith(".js")
        body = SCRIPT.read_bytes() if is_script else HTML.format(guide=self.guide).encode()
        self.send_response(200)
        self.send_header(
            "Content-Type", f"text/{'javascript' if is_script else 'html'}; charset=utf-8"
        )
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base's name
        """Tests are quiet."""


@pytest.fixture
def here() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bare) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def strip(browser: Browser, here: ThreadingHTTPServer) -> Iterator[Page]:
    agents = {"db-a": DemoAgent("db-a", here.server_port, Path("/nowhere"), "token")}
    guide, context = open_server(), browser.new_context()
    tour = Tour(empty_stage(agents=agents), SCENES, lambda text: None, pauses=True)
    try:
        Bare.guide = guide.url
        guide.begin(tour)
        tour.go(1)
        context.set_default_timeout(DEADLINE_S * 1000)
        tab = context.new_page()
        tab.goto(f"{agents['db-a'].url}/")
        yield tab
    finally:
        context.close()
        guide.end()
        tour.leave(within_s=DEADLINE_S)


def test_a_scene_that_waits_goes_on_by_a_click_and_the_next_one_follows(strip: Page) -> None:
    strip.get_by_role("button", name="Go on: it comes back").click()
    strip.get_by_role("button", name="Next").click()
    expect(strip.get_by_text("2 of 2: two")).to_be_visible()


def test_a_link_to_another_agent_says_that_one_signs_in_there(strip: Page) -> None:
    here = strip.url.rstrip("/")
    expect(strip.get_by_role("link", name="here")).to_have_attribute("href", f"{here}/clients")
    there = strip.get_by_role("link", name="at another ↗")
    expect(there).to_have_attribute("href", f"{ELSEWHERE}/")
    expect(strip.get_by_text("sign in by the address in the terminal")).to_be_visible()


def test_a_statement_is_filled_in_and_explained_and_nothing_hidden_is_touched(
    strip: Page,
) -> None:
    strip.get_by_role("link", name="a statement").click()
    expect(strip.locator("form[data-asked]")).to_be_visible()
    assert strip.locator("[name=sql]").input_value() == "select 1"
    assert strip.locator("[name=username]").input_value() == "adhoc"
    assert strip.locator("[name=csrf]").input_value() == "kept"
