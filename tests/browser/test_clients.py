"""The pages of clients in a browser: fold, filter, begin a rule, follow a bar to its minute."""

from __future__ import annotations

import re

from tests.browser.conftest import NewTab
from tests.browser.driving import Page, expect
from tests.browser.site import Shot, Site


def test_a_throttled_client_is_seen_and_leads_to_its_rule(
    site: Site, tab: Page, shot: Shot
) -> None:
    rule = site.rule(target="hf", kind="hold", reason="INC-1")
    site.check("hf:job", times=3)
    tab.goto("/clients?q=hf:job")
    first = tab.locator("#clients-table tbody tr").first
    expect(first).to_contain_text(re.compile(rf"(throttled|rejected).* by rule {rule['id']}"))
    shot(tab, "clients-held", width=360)
    first.get_by_role("link", name="hf:job").click()
    expect(tab.get_by_role("heading", name="hf:job")).to_be_visible()
    expect(tab.locator(".rejection")).to_have_count(1)
    expect(tab.locator(".rejection")).to_contain_text(re.compile(rf"\d × rule {rule['id']}"))
    now = tab.locator("#client-now")
    expect(now.get_by_role("link", name=rule["id"], exact=True)).to_have_attribute(
        "href", f"/rules#rule-{rule['id']}"
    )
    now.get_by_role("link", name=f"Lift rule {rule['id']}").click()
    tab.get_by_role("button", name="Lift").click()
    expect(tab.locator("main")).not_to_contain_text("INC-1")
    assert not site.rules()


def test_the_list_can_show_throttled_clients_only(site: Site, tab: Page) -> None:
    site.check("free:job")
    tab.goto("/clients?q=free:job")
    expect(tab.locator("#clients-table tbody tr")).to_have_count(1)
    tab.get_by_label("only throttled clients").check()
    expect(tab.locator("#clients-live")).to_contain_text("throttled clients matches")
    expect(tab).to_have_url(re.compile("throttled=1"))


def test_levels_fold_by_mouse_and_key_and_stay_so_while_live(site: Site, tab: Page) -> None:
    site.traffic([f"fold{n:02}:batch" for n in range(12)])
    tab.goto("/clients?q=:batch&shut=batch")
    rows = tab.locator("#clients-table tbody tr")
    expect(rows).to_have_count(1)
    fold = tab.get_by_role("button", name=re.compile("fold batch"))
    fold.click()
    expect(rows).to_have_count(13)
    expect(tab).to_have_url(re.compile("open=batch"))
    with tab.expect_response(lambda reply: "/clients?" in reply.url):
        pass  # A poll, after which it is as it was.
    expect(rows).to_have_count(13)
    fold.focus()
    tab.keyboard.press("Space")
    expect(rows).to_have_count(1)
    expect(fold).to_be_focused()


def test_the_filter_is_reached_by_slash_and_kept_in_the_address(site: Site, tab: Page) -> None:
    site.traffic(("slash:one", "other-name:two"))
    tab.goto("/clients")
    tab.keyboard.press("/")
    tab.keyboard.type("slash")
    rows = tab.locator("#clients-table tbody tr")
    expect(rows).to_have_count(1)
    expect(tab).to_have_url(re.compile(r"q=slash"))
    tab.reload()
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("slash:one")


def test_holding_a_client_begins_on_its_page(site: Site, tab: Page) -> None:
    site.check("tohold:job")
    tab.goto("/clients/tohold:job")
    tab.locator("#client-now").get_by_role("link", name="Hold").click()
    expect(tab).to_have_url(re.compile(r"/rules/new\?kind=hold&target=tohold%3Ajob"))
    expect(tab.locator("input[name=target]")).to_have_value("tohold:job")


def test_a_viewer_sees_what_could_be_done_and_why_not(site: Site, viewer_tab: Page) -> None:
    site.check("viewed:job")
    viewer_tab.goto("/clients/viewed:job")
    hold = viewer_tab.get_by_role("button", name="Hold")
    expect(hold).to_be_disabled()
    expect(hold).to_have_attribute("title", re.compile("may look, not change"))


def test_a_bar_leads_to_its_minute_explained_by_keys_too(site: Site, tab: Page, shot: Shot) -> None:
    site.rule(target="bar", kind="hold", reason="INC-2")
    site.check("bar:job", times=20)
    tab.goto("/clients/bar:job")
    shot(tab, "client", dark=True)
    bars = tab.locator(".strip a")
    expect(bars.last).to_have_attribute(
        "aria-label", re.compile("checks throttled, mostly by rule r-")
    )
    bars.last.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    expect(tab).to_have_url(re.compile(r"/explain\?app=bar%3Ajob&database=main&at="))
    expect(tab.locator("#explained")).to_contain_text(
        re.compile(r"\d+ of \d+ checks were rejected")
    )


def test_nothing_shifts_while_numbers_change(site: Site, tab: Page) -> None:
    site.traffic(("still:one", "still:two"))
    tab.goto("/clients?q=still")
    tab.evaluate(
        """() => { window.shifted = 0; new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.shifted += entry.value;
        }).observe({type: 'layout-shift', buffered: true}); }"""
    )
    site.traffic(("still:one", "still:two"), times=30)
    with tab.expect_response(lambda reply: "/clients?" in reply.url):
        pass
    expect(tab.locator("#clients-table")).to_contain_text("still")
    assert tab.evaluate("window.shifted") < 0.02


def test_without_script_all_of_it_can_be_read(site: Site, new_tab: NewTab) -> None:
    site.traffic([f"plain{n:02}:quiet" for n in range(3)])
    plain = new_tab(script=False)
    plain.goto("/clients?q=quiet")
    plain.get_by_role("button", name="fold quiet").click()
    expect(plain.locator("#clients-table tbody tr")).to_have_count(1)
    plain.goto("/clients/quiet?since=24h")
    expect(plain.get_by_role("heading", name="When it was throttled")).to_be_visible()
