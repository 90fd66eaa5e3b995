"""A browser, a real agent to look at, and tabs; for all tests of this folder.

`site`         a real agent over real Postgres (tests/browser/site.py), reset before each test
`tab`          a fresh tab, signed in as the operator ann: by the sign-in page, once for all tests,
               so that one that signs out takes `new_tab()` and `sign_in` instead. Profiles are
               used in turn, by one tab at a time; their cookies are put back
`viewer_tab`   the same, as the viewer vic
`visitor_tab`  not signed in
`watches`      what each tab did wrong; a test that brings about an error itself says so there
`shot`         `shot(tab, "name", width=360, dark=True)`: pictures, into $HEADGATE_SHOTS

A tab fails its test when it ends with an error on the console, a violation of the CSP, or a request
to another origin.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from tests.browser.site import OPERATOR, VIEWER, Shot, Site, Watch, sign_in
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.servers import Pair

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
# It talks to nobody but the agent, and root has no sandbox.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
)
TIMEOUT_MS = DEADLINE_S * 1000
NewTab = Callable[..., "Page"]


# Of the package, not of the session: while Playwright runs, its loop is this thread's, and no
# test of another folder could run a loop of its own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright", reason="playwright is missing: pip install playwright")
    from playwright.sync_api import expect, sync_playwright

    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield chromium
        chromium.close()


class Profiles:
    """A new one takes Chromium half a second of a core, so they are kept. Each has a tab of its
    own, which asks nothing any more: while it is there, the next one starts sooner."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[tuple[str, bool], list[BrowserContext]] = {}

    def take(self, url: str, *, script: bool) -> BrowserContext:
        free = self._free.setdefault((url, script), [])
        return free.pop() if free else self._made(url, script=script)

    def give_back(self, url: str, profile: BrowserContext, *, script: bool) -> None:
        for tab in profile.pages[1:]:
            tab.close()
        profile.clear_cookies()
        self._free[url, script].append(profile)

    def _made(self, url: str, *, script: bool) -> BrowserContext:
        made = self._browser.new_context(
            base_url=url,
            viewport={"width": 1280, "height": 900},
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        made.set_default_timeout(TIMEOUT_MS)
        made.new_page().goto("/healthz")
        return made


@pytest.fixture(scope="package")
def _profiles(browser: Browser) -> Profiles:
    return Profiles(browser)


@pytest.fixture(scope="package")
def _site(browser: Browser, postgres_pair: Pair[PostgresServer]) -> Iterator[Site]:
    folder = servers.make_folder(Path("/tmp"), "hg-page-")
    agent = AgentProcess(folder, next(servers.free_ports()))
    site = Site(agent, postgres_pair)
    try:
        site.start()
        yield site
    finally:
        if hasattr(agent, "process") and agent.process.poll() is None:
            agent.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="package")
def _cookies() -> dict[str, list[Any]]:
    """By token: of who has signed in."""
    return {}


@pytest.fixture
def site(_site: Site) -> Site:
    _site.reset()
    eventually(_site.is_healthy)  # A test may have stopped it for a moment.
    return _site


@pytest.fixture
def watches() -> dict[Page, Watch]:
    return {}


@pytest.fixture
def new_tab(
    _profiles: Profiles,
    site: Site,
    watches: dict[Page, Watch],
    _cookies: dict[str, list[Any]],
) -> Iterator[NewTab]:
    """One more tab, with cookies of its own; its token says whose they are."""
    with ExitStack() as ends:

        def opened(token: str = "", *, script: bool = True) -> Page:
            profile = _profiles.take(site.url, script=script)
            ends.callback(_profiles.give_back, site.url, profile, script=script)
            profile.add_cookies(_cookies.get(token, []))
            tab = profile.new_page()
            watches[tab] = Watch(site.url)
            watches[tab].follow(tab)
            if token and token not in _cookies:
                sign_in(tab, token)
                _cookies[token] = list(profile.cookies())
            return tab

        yield opened
    for watch in watches.values():
        watch.verify()


@pytest.fixture
def tab(new_tab: NewTab) -> Page:
    return new_tab(OPERATOR)


@pytest.fixture
def viewer_tab(new_tab: NewTab) -> Page:
    return new_tab(VIEWER)


@pytest.fixture
def visitor_tab(new_tab: NewTab) -> Page:
    return new_tab()


@pytest.fixture
def shot() -> Shot:
    folder = os.environ.get("HEADGATE_SHOTS")
    return Shot(Path(folder) if folder else None)
