"""The rules page in a browser: every action by clicking, its result read from the agent."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from tests.browser.conftest import NewTab
from tests.browser.driving import Page, expect
from tests.browser.site import OPERATOR, Shot, Site
from tests.fixtures.eventually import eventually

HOSTILE = "<img src=x onerror=alert(1)>"


def preview(tab: Page) -> None:
    tab.locator("#show-preview").click()
    expect(tab.locator("#confirm")).to_be_visible()


def confirm(tab: Page) -> None:
    tab.locator("#confirm").click()


def flash(tab: Page, words: str) -> None:
    expect(tab.locator("#flash .note").last).to_contain_text(words)


def open_dialog(tab: Page, act: str, rule: str) -> None:
    tab.get_by_role("link", name=f"{act} {rule}").click()
    expect(tab.locator("#rule-dialog[open] h2")).to_contain_text(rule)


def wall_s(rule: dict[str, Any]) -> float:
    return datetime.fromisoformat(rule["expires_at"]).timestamp()


# --- setting ------------------------------------------------------------------------------------


def test_a_hold_is_previewed_set_and_lifted(site: Site, tab: Page, shot: Shot) -> None:
    """R65, R145: from the empty page to a client that is held, and back."""
    site.traffic(["held:nightly", "held:hourly"], times=5)
    tab.goto("/rules")
    shot(tab, "rules-empty")
    tab.get_by_role("link", name="Hold a client").click()
    tab.get_by_label("Target client").fill("held")
    tab.get_by_label("Why").fill("INC-1 disk is full")
    tab.locator("#f-for").fill("30m")
    preview(tab)
    expect(tab.locator("#preview")).to_contain_text("rejects every check of held")
    expect(tab.locator("#preview")).to_contain_text("10 checks since")
    expect(tab.locator("#preview table")).to_contain_text("held:nightly")
    assert site.rules() == []
    shot(tab, "rules-preview")
    shot(tab, "rules-preview-phone", width=360, dark=True)
    confirm(tab)
    flash(tab, "is set: it rejects every check of held")
    (rule,) = site.rules()
    assert (rule["kind"], rule["created_by"], rule["reason"]) == (
        "hold",
        "ann",
        "INC-1 disk is full",
    )
    assert {answer["verdict"] for answer in site.check("held:nightly", times=3)} == {"ON_HOLD"}
    tab.locator("#flash").get_by_role("link", name="Lift it").click()
    tab.get_by_role("button", name="Lift it").click()
    flash(tab, "is lifted")
    assert site.rules() == []
    eventually(lambda: site.check("held:nightly")[0]["verdict"] == "OK")
    kept = [entry["action"] for entry in site.audit(100) if entry["target"] == rule["id"]]
    assert kept == ["rule.lifted", "rule.set"]


def test_one_is_favored_over_all_others(site: Site, tab: Page) -> None:
    """R76"""
    tab.goto("/rules/new?kind=favor&target=migration")
    tab.get_by_label("Share to reject").fill("95%")
    preview(tab)
    tab.get_by_role("button", name="Set both rules").click()
    flash(tab, "is set")
    spared, turned_down = sorted(site.rules(), key=lambda rule: float(rule["ratio"]))
    assert (spared["target"], spared["ratio"]) == ("migration", 0.0)
    assert (turned_down["target"], turned_down["ratio"]) == ("all", 0.95)
    assert spared["pair"] == turned_down["id"]


def test_an_exemption_needs_its_reasons_and_is_loud(site: Site, tab: Page, shot: Shot) -> None:
    """R78, R79"""
    tab.goto("/rules/new?kind=exempt&target=repair")
    tab.locator("#show-preview").click()
    expect(tab.locator("#fault-justification")).to_contain_text("is missing")
    expect(tab.locator("#fault-reason")).to_contain_text("say why the exemption")
    shot(tab, "rules-faults")
    tab.get_by_label("fixes an incident").check()
    tab.get_by_label("lag").check()
    tab.get_by_label("Ceiling").fill("2")
    tab.get_by_label("Why").fill("INC-2")
    preview(tab)
    confirm(tab)
    expect(tab.locator(".note.loud")).to_contain_text(
        "EXEMPT: repair from lag, up to 2 times a threshold"
    )
    (rule,) = site.rules()
    said = (rule["justification"], rule["ceiling"], rule["metrics"], rule["reason"])
    assert said == ("incident", 2.0, ["lag"], "INC-2")


def test_stricter_limits_and_own_metrics(site: Site, tab: Page) -> None:
    tab.goto("/rules/new?kind=thresholds&target=etl&database=main")
    tab.locator("[id='f-thresholds.threads_running']").fill("20")
    preview(tab)
    confirm(tab)
    flash(tab, "sets stricter thresholds for etl: threads_running 20")
    tab.get_by_role("link", name="Choose metrics").click()
    tab.get_by_label("Target client").fill("etl")
    tab.get_by_label("pool_usage").check()
    preview(tab)
    expect(tab.locator("#preview")).to_contain_text("partial exemption")
    confirm(tab)
    flash(tab, "decides checks of etl by pool_usage")
    by_kind = {rule["kind"]: rule for rule in site.rules()}
    assert by_kind["thresholds"]["thresholds"] == {"threads_running": 20.0}
    assert by_kind["thresholds"]["database"] == "main"
    assert by_kind["metrics"]["metrics"] == ["pool_usage"]


def test_what_was_typed_survives_another_kind_and_a_window_is_kept(site: Site, tab: Page) -> None:
    tab.goto("/rules/new?kind=hold")
    tab.get_by_label("Target client").fill("etl")
    tab.get_by_label("Why").fill("every morning")
    tab.get_by_role("link", name="Throttle by ratio").click()
    expect(tab.get_by_label("Share to reject")).to_be_visible()
    expect(tab.get_by_label("Target client")).to_have_value("etl")
    tab.get_by_label("Share to reject").fill("0.5")
    tab.locator("#more-fields summary").click()
    tab.get_by_label("mon", exact=True).check()
    tab.locator("[id='f-schedule.from']").fill("07:00")
    tab.locator("[id='f-schedule.to']").fill("09:30")
    tab.locator("[id='f-schedule.zone']").fill("Europe/Berlin")
    tab.locator("#f-expires_at").fill("2026-01-01T00:00:00")
    tab.locator("#show-preview").click()
    expect(tab.locator("#fault-expires_at")).to_contain_text("in the past")
    tab.locator("#f-for").fill("20d")
    preview(tab)
    confirm(tab)
    flash(tab, "is set")
    (rule,) = site.rules()
    assert rule["schedule"] == {
        "days": ["mon"],
        "from": "07:00",
        "to": "09:30",
        "zone": "Europe/Berlin",
    }
    assert rule["reason"] == "every morning" and rule["left_s"] > 19 * 86400


def test_a_hold_on_all_must_be_said_twice(site: Site, tab: Page) -> None:
    """R77"""
    tab.goto("/rules/new?kind=hold&target=all&reason=drill&for=5m")
    tab.locator("#show-preview").click()
    expect(tab.locator("#fault-target")).to_contain_text("locks out every client")
    tab.locator("#f-lock_out").check()
    preview(tab)
    assert site.rules() == []


def test_a_form_that_changes_after_its_preview_needs_another(site: Site, tab: Page) -> None:
    tab.goto("/rules/new?kind=hold&target=etl&reason=x")
    preview(tab)
    tab.get_by_label("Target client").fill("al")
    expect(tab.locator("#confirm")).to_be_disabled()
    expect(tab.locator(".stale")).to_be_visible()
    preview(tab)
    expect(tab.locator("#confirm")).to_be_enabled()
    expect(tab.locator("#preview")).to_contain_text("rejects every check of al")
    assert site.rules() == []


def test_names_are_suggested_and_hostile_ones_are_text(site: Site, tab: Page) -> None:
    site.check("suggested:nightly")
    site.rule(target="etl", kind="hold", reason=HOSTILE)
    tab.goto("/rules")
    expect(tab.locator("#rules")).to_contain_text(HOSTILE)
    assert tab.locator("#rules img").count() == 0
    tab.goto("/rules/new")
    assert tab.locator("#known-clients option[value='suggested:nightly']").count() == 1


# --- changing -----------------------------------------------------------------------------------


def test_a_rule_is_extended_and_the_undo_takes_it_back(site: Site, tab: Page, shot: Shot) -> None:
    made = site.rule(target="etl", kind="hold", reason="x", **{"for": "30m"})
    tab.goto("/rules")
    open_dialog(tab, "Extend", made["id"])
    tab.get_by_role("button", name="+15 min").click()
    expect(tab.locator("#rule-dialog .preview")).to_contain_text("instead of")
    shot(tab, "rules-extend")
    shot(tab, "rules-extend-phone", width=360, dark=True)
    tab.get_by_role("button", name="Extend it").click()
    flash(tab, "now ends at")
    expect(tab.locator("#rule-dialog")).to_be_hidden()
    assert wall_s(site.rules()[0]) - wall_s(made) == pytest.approx(900, abs=1)
    tab.locator("#flash").get_by_role("link", name="Undo").click()
    tab.get_by_role("button", name="Preview").click()
    tab.get_by_role("button", name="Extend it").click()
    eventually(lambda: wall_s(site.rules()[0]) == pytest.approx(wall_s(made), abs=1))


def test_its_ratio_is_changed_and_the_list_follows(site: Site, tab: Page) -> None:
    """R86"""
    made = site.rule(target="etl", ratio=0.9, reason="reports", **{"for": "1h"})
    tab.goto("/rules")
    open_dialog(tab, "Change", made["id"])
    tab.get_by_label("Share to reject").fill("0.5")
    tab.get_by_role("button", name="Preview").click()
    expect(tab.locator("#rule-dialog .preview")).to_contain_text("rejects 50% of the checks of etl")
    tab.get_by_role("button", name="Change it").click()
    flash(tab, "is changed: rejects 50% of the checks of etl")
    expect(tab.locator(f"#rule-{made['id']}")).to_contain_text("rejects 50%")
    (rule,) = site.rules()
    assert (rule["ratio"], rule["reason"], rule["expires_at"]) == (
        0.5,
        "reports",
        made["expires_at"],
    )


def test_a_pair_is_lifted_as_one_and_set_again(site: Site, tab: Page) -> None:
    both = site.api("POST", "/v1/rules/favor", {"target": "migration", "over": "etl"})["rules"]
    tab.goto("/rules")
    open_dialog(tab, "Lift", both[1]["id"])
    for rule in both:
        expect(tab.locator("#rule-dialog .preview")).to_contain_text(rule["id"])
    tab.get_by_role("button", name="Lift it").click()
    flash(tab, "is lifted")
    assert site.rules() == []
    tab.locator("#flash").get_by_role("link", name="Set it again").click()
    preview(tab)
    confirm(tab)
    flash(tab, "is set")
    assert sorted(rule["target"] for rule in site.rules()) == ["etl", "migration:etl"]


def test_the_loser_of_a_race_sees_the_state_now(site: Site, tab: Page, shot: Shot) -> None:
    made = site.rule(target="etl", ratio=0.9, **{"for": "1h"})
    tab.goto("/rules")
    open_dialog(tab, "Lift", made["id"])
    site.api("PATCH", f"/v1/rules/{made['id']}", {"ratio": 0.2})
    tab.get_by_role("button", name="Lift it").click()
    expect(tab.locator("#rule-dialog .note.bad")).to_contain_text("Changed meanwhile by uid:")
    expect(tab.locator("#rule-dialog")).to_contain_text("rejects 20% of the checks of etl")
    shot(tab, "rules-changed-meanwhile")
    assert site.rules()[0]["state"] == "in_force"
    tab.get_by_role("button", name="Lift it").click()
    flash(tab, "is lifted")
    assert site.rules() == []


def test_a_rule_that_another_user_has_lifted_says_so(site: Site, tab: Page) -> None:
    made = site.rule(target="etl", kind="hold", reason="x")
    tab.goto("/rules")
    open_dialog(tab, "Extend", made["id"])
    site.api("DELETE", f"/v1/rules/{made['id']}")
    tab.get_by_role("button", name="+1 h").click()
    expect(tab.locator("#rule-dialog .note.bad")).to_be_visible()
    expect(tab.locator("#rule-dialog")).to_contain_text("It has ended.")


# --- looking ------------------------------------------------------------------------------------


def test_the_list_is_live_and_disturbs_nobody(site: Site, tab: Page) -> None:
    """Time runs between two polls; what is typed, focused and unfolded stays so."""
    made = site.rule(target="etl", kind="hold", reason="x", **{"for": "30m"})
    tab.goto("/rules")
    left = tab.locator(f"#rule-{made['id']} .left .figure")
    before = left.inner_text()
    tab.get_by_text("Ended within the last day").click()
    expect(tab.locator("#rules-ended-list")).not_to_be_empty()
    tab.get_by_label("Filter").fill("et")
    expect(left).not_to_have_text(before)
    site.rule(target="etl:late", kind="hold", reason="y")
    expect(tab.locator("#rules")).to_contain_text("etl:late")
    expect(tab.get_by_label("Filter")).to_have_value("et")
    expect(tab.get_by_label("Filter")).to_be_focused()
    expect(tab.locator("#rules-ended")).to_have_attribute("open", "")


def test_the_keyboard_suffices(site: Site, tab: Page) -> None:
    made = site.rule(target="etl", kind="hold", reason="x")
    tab.goto("/rules")
    tab.keyboard.press("/")
    expect(tab.get_by_label("Filter")).to_be_focused()
    tab.get_by_role("link", name=f"Lift {made['id']}").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#rule-dialog[open] h2")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.locator("#rule-dialog")).to_be_hidden()
    assert site.rules()[0]["state"] == "in_force"


def test_who_may_not_change_sees_it_all(
    site: Site, viewer_tab: Page, visitor_tab: Page, shot: Shot
) -> None:
    made = site.rule(target="etl", kind="hold", reason="INC-5")
    for tab in (viewer_tab, visitor_tab):
        tab.goto("/rules")
        expect(tab.locator(f"#rule-{made['id']}")).to_contain_text("INC-5")
        for button in tab.locator("main button").all():
            expect(button).to_be_disabled()
        expect(tab.locator(".why-not")).to_contain_text("cannot change it")
        tab.goto("/rules/new?kind=hold")
        expect(tab.get_by_label("Target client")).to_be_disabled()
    shot(visitor_tab, "rules-visitor")


def test_without_script_it_works_by_plain_forms(site: Site, new_tab: NewTab) -> None:
    signed = new_tab(OPERATOR)  # For the cookie.
    signed.close()
    tab = new_tab(OPERATOR, script=False)
    tab.goto("/rules/new?kind=hold&target=etl&reason=plain")
    preview(tab)
    confirm(tab)
    expect(tab.locator("#rules")).to_contain_text("rejects every check of etl")
    (rule,) = site.rules()
    tab.get_by_role("link", name=f"Extend {rule['id']}").click()
    tab.get_by_role("button", name="+15 min").click()
    tab.get_by_role("button", name="Extend it").click()
    eventually(lambda: wall_s(site.rules()[0]) - wall_s(rule) == pytest.approx(900, abs=1))
    tab.get_by_role("link", name=f"Lift {rule['id']}").click()
    tab.get_by_role("button", name="Lift it").click()
    expect(tab.locator(".note.good")).to_contain_text("is lifted")
    assert site.rules() == []


def test_on_a_phone_nothing_is_cut_off(site: Site, tab: Page, shot: Shot) -> None:
    site.rule(target="etl:with-a-long-name:of-several-levels", kind="hold", reason="x" * 200)
    site.api("POST", "/v1/rules/favor", {"target": "migration", "over": "all"})
    tab.set_viewport_size({"width": 360, "height": 800})
    for path in ("/rules", "/rules/new?kind=exempt", "/rules/new?kind=thresholds"):
        tab.goto(path)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, path
        shot(tab, re.sub(r"\W", "-", f"phone{path}"), width=360, dark=True)


CUT = """() => [...document.querySelectorAll('table th, table td')]
  .filter((cell) => cell.innerText.trim() && cell.clientWidth > 1)
  .filter((cell) => cell.scrollWidth > cell.clientWidth + 1
    || (cell.innerText.trim().length > 8 && cell.clientWidth < 48))
  .map((cell) => `${cell.innerText.trim().slice(0, 40)}: ${cell.clientWidth} px`)"""


def test_between_a_phone_and_a_desktop_no_column_is_cut_off(site: Site, tab: Page) -> None:
    site.rule(target="etl:nightly", kind="hold", reason="INC-7: the disk is full")
    site.traffic(["etl:nightly", "migration:customers"])
    for width in (768, 1040, 1280):
        tab.set_viewport_size({"width": width, "height": 800})
        for path in ("/", "/clients", "/rules"):
            tab.goto(path)
            expect(tab.locator("main table").first).to_be_visible()
            assert tab.evaluate(CUT) == [], (width, path)
