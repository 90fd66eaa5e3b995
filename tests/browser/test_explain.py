"""Explaining in a browser: an address to share, and a statement that is in none."""

from __future__ import annotations

import re

from tests.browser.driving import Page, expect
from tests.browser.site import Shot, Site


def test_an_identity_is_explained_and_the_address_can_be_shared(
    site: Site, tab: Page, shot: Shot
) -> None:
    """R144"""
    rule = site.rule(target="shared", kind="hold", reason="INC-3")
    tab.goto("/explain")
    form = tab.locator("#explain-identity")
    form.get_by_label("Client").fill("shared:job")
    form.get_by_role("button", name="Explain").click()
    told = tab.locator("#explained")
    expect(told).to_contain_text("shared:job on main: rejected ON_HOLD")
    expect(told.locator(".step.bad").first).to_contain_text("Rules rejects")
    expect(told).to_contain_text(f"rule {rule['id']} must end")
    expect(tab).to_have_url(re.compile(r"/explain\?app=shared%3Ajob&database=main$"))
    shot(tab, "explain", width=360)
    tab.reload()
    expect(told).to_contain_text("shared:job on main: rejected")
    assert not [one for one in site.get("/v1/clients")["clients"] if one["client"] == "shared:job"]


def test_an_impossible_name_is_reported_beside_the_form(tab: Page) -> None:
    tab.goto("/explain")
    form = tab.locator("#explain-identity")
    form.get_by_label("Client").fill("<img src=x>")
    form.get_by_role("button", name="Explain").click()
    expect(tab.locator("#explained [role=alert]")).to_contain_text("must be 1–128 letters")
    form.get_by_label("Client").fill("fine")
    form.get_by_role("button", name="Explain").click()
    expect(tab.locator("#explained")).to_contain_text("fine on main: admitted OK")
    expect(form).to_be_hidden()


def test_where_no_database_has_budgets_there_is_no_form_for_statements(tab: Page) -> None:
    tab.goto("/explain")
    tab.get_by_text("A statement, under the budgets").click()
    form = tab.locator("#explain-statement")
    expect(form).to_contain_text("No database of this agent has budgets")
    expect(form.get_by_role("button", name="Explain")).to_be_disabled()
