"""A browser, a real agent to look at, and tabs; for all tests of this folder.

`site`         a real agent over real Postgres (tests/browser/site.py), reset before each test
`tab`          a fresh tab, signed in as the operator ann: by the sign-in page, once for all tests,
               so that one that signs out takes `new_tab()` and `sign_in` instead
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
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from tests.browser.site import OPERATOR, VIEWER, Shot, Site, Watch, sign_in
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.servers import Pair

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, StorageState

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
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
TIMEOUT_MS = 15_000
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
def _cookies() -> dict[str, StorageState]:
    """By token: of whom has signed in."""
    return {}


@pytest.fixture
def site(_site: Site) -> Site:
    _site.reset()
    eventually(_site.is_healthy, within_s=20)  # A test may have stopped it for a moment.
    return _site


@pytest.fixture
def watches() -> dict[Page, Watch]:
    return {}


@pytest.fixture
def new_tab(
    browser: Browser,
    site: Site,
    watches: dict[Page, Watch],
    _cookies: dict[str, StorageState],
) -> Iterator[NewTab]:
    """One more tab, with cookies of its own; of whom, its token says."""
    contexts = []

    def opened(token: str = "", *, script: bool = True) -> Page:
        context = browser.new_context(
            base_url=site.url,
            viewport={"width": 1280, "height": 900},
            java_script_enabled=script,
            storage_state=_cookies.get(token),
            reduced_motion="reduce",
        )
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        tab = context.new_page()
        watches[tab] = Watch(site.url)
        watches[tab].follow(tab)
        if token and token not in _cookies:
            sign_in(tab, token)
            _cookies[token] = context.storage_state()
        return tab

    yield opened
    for context in contexts:
        context.close()
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
