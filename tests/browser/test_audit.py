"""The audit in a browser: a change is there within a poll, and what differs can be read."""

from __future__ import annotations

from tests.browser.driving import Page, expect
from tests.browser.site import Shot, Site


def test_a_change_appears_without_a_reload_and_is_found_by_its_target(
    site: Site, tab: Page, shot: Shot
) -> None:
    first = site.rule(target="audited", ratio=0.25, reason="INC-4")
    tab.goto("/audit")
    tab.get_by_label("Target").fill(first["id"])
    rows = tab.locator("table.audit tbody tr")
    expect(rows).to_have_count(1)
    site.api("PATCH", f"/v1/rules/{first['id']}", {"ratio": 0.75})
    expect(rows).to_have_count(2)
    expect(rows.first.locator("del").first).to_have_text("25%")
    expect(rows.first.locator("ins").first).to_have_text("75%")
    changed = next(entry for entry in site.audit(100) if entry["target"] == first["id"])
    expect(rows.first).to_contain_text(changed["who"])
    rows.first.get_by_text("as it was kept").click()
    expect(rows.first.locator("pre")).to_contain_text('"ratio": 0.75')
    shot(tab, "audit", width=360)
