"""Signing in with a browser: by a token, by a link, and what a session may not do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from urllib.parse import urlencode

from tests.browser.conftest import NewTab
from tests.browser.driving import Page, expect
from tests.browser.site import OPERATOR, VIEWER, Site, sign_in
from tests.fixtures.eventually import DEADLINE_S, eventually

EVA = "eva-operator-token"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HOLD = {"kind": "hold", "target": "etl", "reason": "forged", "for": "1h", "end": "for"}


def post(tab: Page, path: str, fields: dict[str, str], **headers: str) -> int:
    """With the cookies of the tab, as a script on a page of ours would send it."""
    sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    return tab.request.post(path, data=urlencode(fields), headers=sent, max_redirects=0).status


def csrf_of(tab: Page) -> str:
    given = tab.locator("body").get_attribute("hx-headers")
    assert given is not None
    return str(json.loads(given)["X-Headgate-CSRF"])


def printed_link(site: Site) -> str:
    """By the command, on the agent's host."""
    command = [sys.executable, "-m", "headgate", "page", "--url", f"unix://{site.agent.socket}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return ran.stdout.splitlines()[0]


def test_a_token_signs_in_and_the_cookie_is_kept_from_scripts(
    site: Site, visitor_tab: Page
) -> None:
    visitor_tab.goto("/rules")
    visitor_tab.get_by_role("link", name="Sign in").click()
    visitor_tab.get_by_label("Token").fill(OPERATOR)
    visitor_tab.get_by_role("button", name="Sign in").click()
    visitor_tab.wait_for_url("**/rules")
    expect(visitor_tab.locator(".who")).to_contain_text("ann operator")
    (cookie,) = visitor_tab.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and not cookie["secure"]
    assert visitor_tab.evaluate("document.cookie") == ""


def test_a_wrong_token_is_reported_and_nothing_is_kept(visitor_tab: Page) -> None:
    visitor_tab.goto("/sign-in")
    visitor_tab.get_by_label("Token").fill("wrong")
    visitor_tab.get_by_role("button", name="Sign in").click()
    expect(visitor_tab.get_by_role("alert").filter(visible=True)).to_have_text(
        "this agent does not know the token"
    )
    assert visitor_tab.context.cookies() == []


def test_a_link_signs_in_once_and_leaves_no_trace_in_the_address(
    site: Site, new_tab: NewTab
) -> None:
    """The code stands behind the #, which no server gets to see."""
    address = printed_link(site)
    path = address.removeprefix(site.url)
    assert path.startswith("/sign-in#")
    tab = new_tab()
    seen: list[str] = []
    tab.on("request", lambda request: seen.append(request.url))
    tab.goto(address)
    who = re.compile(rf"uid:{os.getuid()}( \(.+\))? operator")
    expect(tab.locator(".who")).to_contain_text(who)
    code = path.partition("#")[2]
    assert code not in tab.url and not any(code in url for url in seen[1:])
    assert code not in site.agent.log()
    again = new_tab()
    again.goto(path)
    expect(again.get_by_role("alert").filter(visible=True)).to_contain_text(
        "does not know the token"
    )


def test_signing_out_ends_the_session(site: Site, new_tab: NewTab) -> None:
    tab = new_tab()
    sign_in(tab, OPERATOR)
    kept = tab.context.cookies()
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.get_by_role("link", name="Sign in")).to_be_visible()
    tab.context.add_cookies(
        [{"name": c["name"], "value": c["value"], "url": site.url} for c in kept]
    )
    tab.goto("/rules")
    expect(tab.get_by_role("link", name="Sign in")).to_be_visible()


def test_a_viewer_sees_and_cannot_change_even_by_a_forged_form(
    site: Site, viewer_tab: Page
) -> None:
    site.rule(target="etl", kind="hold", reason="INC-1")
    viewer_tab.goto("/rules")
    expect(viewer_tab.locator(".who")).to_contain_text("vic viewer")
    expect(viewer_tab.get_by_role("button", name="Lift").first).to_be_disabled()
    expect(viewer_tab.get_by_text("vic may look, not change")).to_be_visible()
    rule, fields = site.rules()[0], {**HOLD, "csrf": csrf_of(viewer_tab)}
    assert post(viewer_tab, "/rules/preview", fields) == 403
    assert post(viewer_tab, f"/rules/{rule['id']}/lift", fields) == 403
    assert [r["reason"] for r in site.rules()] == ["INC-1"]


def test_a_form_of_another_site_or_another_session_changes_nothing(
    site: Site, tab: Page, new_tab: NewTab
) -> None:
    tab.goto("/rules")
    other = new_tab()
    sign_in(other, OPERATOR)
    own, foreign = csrf_of(tab), csrf_of(other)
    assert post(tab, "/rules/preview", {**HOLD, "csrf": own}) == 200
    assert post(tab, "/rules/preview", HOLD) == 403
    assert post(tab, "/rules/preview", {**HOLD, "csrf": foreign}) == 403
    evil = {"Origin": "https://evil.example"}
    assert post(tab, "/rules/preview", {**HOLD, "csrf": own}, **evil) == 403
    assert site.rules() == []


def test_a_session_ends_when_its_token_leaves_the_settings(site: Site, new_tab: NewTab) -> None:
    site.write_settings({"ann": OPERATOR, "vic": VIEWER, "eva": EVA})
    site.reload()
    tab = new_tab()
    sign_in(tab, EVA, "/rules")
    expect(tab.locator(".who")).to_contain_text("eva operator")
    site.write_settings()
    site.reload()
    eventually(site.is_healthy)
    tab.goto("/rules")
    expect(tab.get_by_role("link", name="Sign in")).to_be_visible()


def test_signing_in_leads_to_no_other_site(site: Site, new_tab: NewTab) -> None:
    """All that was thought of is in tests/page/test_signing.py; this one fools browsers."""
    tab = new_tab()
    sign_in(tab, VIEWER, "/\\evil.example")
    assert tab.url == f"{site.url}/"


def test_every_page_is_served_with_its_policy(site: Site, visitor_tab: Page) -> None:
    """And what it loads comes from the agent alone: the fixture watches."""
    for path in ("/sign-in", "/rules", "/rules/new"):
        answer = visitor_tab.goto(path)
        assert answer is not None and answer.headers["content-security-policy"] == CSP


def test_a_script_that_got_into_the_page_is_not_run(
    site: Site, new_tab: NewTab, watches: dict[Page, object]
) -> None:
    tab = new_tab()
    tab.goto("/rules")
    watches[tab].tolerated += ["CSP", "Content Security Policy"]  # type: ignore[attr-defined]
    tab.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        " document.body.append(s); document.body.insertAdjacentHTML('beforeend',"
        ' \'<img src="data:," onerror="window.pwned = 2">\'); }'
    )
    assert tab.evaluate("window.pwned") is None
