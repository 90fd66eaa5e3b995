"""A page that stays open: it says when the agent is gone, when it is not new, when nobody is
signed in any more."""

from __future__ import annotations

import signal

import pytest

from tests.browser.driving import Page, expect
from tests.browser.site import Site, Watch

GONE = ["htmx:sendError", "htmx:sendAbort", "htmx:afterRequest", "ERR_", "TimeoutError"]
"""What a browser says of an agent that hangs."""


@pytest.mark.parametrize("path", ["/", "/explain"])
def test_an_agent_that_hangs_is_noticed(
    site: Site, tab: Page, watches: dict[Page, Watch], path: str
) -> None:
    """Also where nothing on the page is live; and what was there stays, in grey."""
    watches[tab].tolerated += GONE
    tab.goto(path)
    tab.wait_for_load_state("load")
    site.agent.process.send_signal(signal.SIGSTOP)
    try:
        lost = tab.locator("#lost")
        expect(lost).to_contain_text("does not answer since")
        expect(tab.locator("body")).to_have_class("is-lost")
    finally:
        site.agent.process.send_signal(signal.SIGCONT)
    expect(lost).to_be_hidden()


def test_an_old_picture_is_never_dated_as_new(
    site: Site, tab: Page, watches: dict[Page, Watch]
) -> None:
    """Seen again after a while in the background, with the agent gone meanwhile."""
    watches[tab].tolerated += GONE
    tab.goto("/")
    tab.wait_for_load_state("load")
    began = tab.evaluate("times.drawn = Date.now() - 3600_000; times.heard = times.drawn")
    site.agent.process.send_signal(signal.SIGSTOP)
    try:
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(tab.locator("body")).to_have_class("is-old")
        clock = tab.evaluate(f"clock({began})")
        expect(tab.locator("#lost")).to_contain_text(f"is from {clock}")
    finally:
        site.agent.process.send_signal(signal.SIGCONT)
    expect(tab.locator("body")).not_to_have_class("is-old")


def test_a_user_who_was_signed_out_meanwhile_sees_it(site: Site, tab: Page) -> None:
    tab.goto("/rules")
    expect(tab.locator("#ended")).to_be_hidden()
    tab.context.clear_cookies()
    expect(tab.locator("#ended")).to_contain_text("not signed in any more")
    tab.locator("#ended a").click()
    expect(tab).to_have_url(f"{site.agent.url}/sign-in?to=/rules")
