"""Budgets by clicking: each change is checked in a real Postgres with the extension, and kept.

A server and an agent of their own: the others of this folder have no extension.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.demo import servers
from tests.browser.driving import Browser, Page, expect
from tests.browser.site import OPERATOR, VIEWER, Shot, Site, Watch
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer, start_extended

MAJOR = 17
PRELOAD = "pg_headgate,pg_stat_statements"
WORK = "SELECT sum(length(note)) FROM billing.invoices WHERE note <> 'hunter2' AND id > {}"
SHAPE = "select sum (length (note)) from billing.invoices where note <> ? and id > ?"
MEASURE: dict[str, Any] = {"rules": [{}]}
NOTHING: dict[str, Any] = {"rate": 0, "penalty_s": 0, "rules": [{"match": {"username": "etl"}}]}
"""For etl, and lets nothing run once it is enforced."""


class Traffic(Site):
    """A site of one database, `main`, whose budgets bite."""

    def __init__(self, agent: AgentProcess, server: ExtendedServer) -> None:
        self.agent = agent
        self.server = server

    def start(self) -> None:
        with self.server.connect() as session:
            session.execute("CREATE ROLE etl LOGIN; CREATE SCHEMA billing")
            session.execute("CREATE EXTENSION pg_stat_statements")
            session.execute(
                "CREATE TABLE billing.invoices AS SELECT n AS id, md5(n::text) AS note "
                "FROM generate_series(1, 2000) n"
            )
            session.execute("GRANT USAGE ON SCHEMA billing TO etl")
            session.execute("GRANT SELECT ON billing.invoices TO etl")
        self.write_traffic_settings()
        self.agent.start()

    def write_traffic_settings(self) -> None:
        self.agent.write_settings(
            '[databases.main]\nengine = "postgres"\n'
            f'dsn = "{self.server.dsn()}"\n[databases.main.metrics.pool_usage]\n'
            f'[databases.main.traffic]\ndirectory = "{self.server.traffic_dir}"\n'
            '[databases.other]\nengine = "postgres"\n'
            f'dsn = "{self.server.dsn()}"\n[databases.other.metrics.pool_usage]\n'
            + _token("ann", "operator", OPERATOR)
            + _token("vic", "viewer", VIEWER),
            'name = "db-1"\n',
        )

    def reset(self) -> None:
        self.api("PATCH", "/v1/budgets/main", {"mode_cap": "enforce"})
        for name in self.budgets:
            self.api("DELETE", f"/v1/budgets/main/{name}")

    @property
    def budgets(self) -> dict[str, Any]:
        found = self.get("/v1/budgets/main")["document"].get("budgets", [])
        return {one["name"]: one for one in found}

    @property
    def revision(self) -> int:
        return int(self.get("/v1/budgets/main")["revision"])

    # --- in the database --------------------------------------------------------------------

    def works(self, user: str = "etl") -> str:
        """What the statement of a user comes to: empty, or its SQLSTATE."""
        try:
            with self.server.connect(user=user, application_name="nightly") as session:
                session.execute(WORK.format(7))
        except psycopg.Error as error:
            return error.sqlstate or "no answer"
        return ""

    def is_rejected(self) -> bool:
        return self.works() == "53000"


def _token(name: str, role: str, token: str) -> str:
    sha256 = hashlib.sha256(token.encode()).hexdigest()
    return f'[[tokens]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{sha256}"\n'


@pytest.fixture(scope="module")
def _traffic(browser: Browser, servers_dir: Path) -> Iterator[Traffic]:
    folder = servers.make_folder(Path("/tmp"), "hg-budgets-")
    agent = AgentProcess(folder, next(servers.free_ports()))
    settings = {"shared_preload_libraries": PRELOAD}
    with start_extended(servers_dir, MAJOR, settings=settings) as server:
        found = Traffic(agent, server)
        try:
            found.start()
            yield found
        finally:
            if hasattr(agent, "process") and agent.process.poll() is None:
                agent.stop()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def _cookies() -> dict[str, Any]:
    """Of this agent, not of the others' one."""
    return {}


@pytest.fixture
def site(_traffic: Traffic) -> Traffic:
    _traffic.reset()
    return _traffic


def confirm(site: Traffic, tab: Page, button: str) -> None:
    """Until the page says so: not of an earlier one, which it may still show."""
    before = site.revision
    tab.locator("#confirm").get_by_role("button", name=button, exact=True).click()
    eventually(lambda: site.revision != before)
    expect(tab.locator("#flash")).to_contain_text(f"Revision {site.revision}")


# --- from a statement to a limit ------------------------------------------------------------------


def test_a_costly_statement_is_limited_in_two_clicks_and_only_warned_of(
    site: Traffic, tab: Page, shot: Shot
) -> None:
    tab.goto("/budgets/main")
    shot(tab, "empty")
    tab.get_by_role("link", name="Measure every statement").first.click()
    tab.get_by_role("button", name="Create it, in warn").click()
    expect(tab.locator("#flash")).to_contain_text("all-statements: new, warn")
    assert site.budgets["all-statements"]["rules"] == [{}]

    def has_text() -> bool:
        site.works()
        patterns = site.get("/v1/budgets/main/state")["patterns"]
        return any(one["text"] == SHAPE for one in patterns)

    eventually(has_text)
    tab.goto("/budgets/main")
    row = tab.locator("table.statements tr", has_text="billing.invoices")
    expect(row).to_contain_text("by etl · nightly")
    expect(row).not_to_contain_text("hunter2")
    shot(tab, "statements")
    row.get_by_role("link", name="Limit it").click()
    expect(tab.locator("#preview")).to_contain_text("Create query-")
    expect(tab.locator("#preview")).to_contain_text(f"comment '{SHAPE}'")
    shot(tab, "limit")
    tab.get_by_role("button", name="Create it, in warn").click()
    expect(tab.locator("#flash")).to_contain_text("To undo it")
    (made,) = (one for name, one in site.budgets.items() if name.startswith("query-"))
    assert made.get("mode", "warn") == "warn" and list(made["rules"][0]["match"]) == ["fingerprint"]
    assert site.works() == "", "it only warns"


# --- switches -------------------------------------------------------------------------------------


def test_enforcing_rejects_and_the_switch_for_all_lets_go(
    site: Traffic, tab: Page, shot: Shot
) -> None:
    """R121, R131: SQLSTATE 53000 after a click, and none after another."""
    site.api("PUT", "/v1/budgets/main/exports", NOTHING)
    assert site.works() == ""
    tab.goto("/budgets/main/exports")
    tab.get_by_role("button", name="Enforce …").click()
    expect(tab.locator("#confirm")).to_contain_text("mode warn → enforce")
    shot(tab, "enforce")
    assert site.works() == "", "nothing was confirmed yet"
    confirm(site, tab, "Enforce")
    eventually(site.is_rejected)
    assert site.works(user="postgres") == "", "nobody else is"
    tab.goto("/budgets/main")
    expect(tab.locator("#budget-exports")).to_contain_text("blocks now")
    shot(tab, "rejecting")
    shot(tab, "rejecting-dark", dark=True)
    shot(tab, "rejecting-phone", width=360)

    tab.get_by_role("button", name="Stop everything").click()
    confirm(site, tab, "Stop everything")
    expect(tab.get_by_role("alert")).to_contain_text("The switch for all of main is thrown")
    eventually(lambda: site.works() == "")
    assert site.get("/v1/budgets/main")["mode_cap"] == "off"
    assert "no budget goes beyond off" in " ".join(site.get("/v1/status")["advice"])
    kept = site.kept("SELECT who, action FROM audit WHERE target = 'main' ORDER BY id DESC LIMIT 1")
    assert kept == [("ann", "policy.capped")]
    shot(tab, "stopped")
    tab.get_by_role("button", name="Lift it", exact=True).click()
    confirm(site, tab, "Lift it")
    expect(tab.locator("#switch-thrown")).to_have_count(0)
    eventually(site.is_rejected)


def test_what_was_rejected_is_drawn_by_budget_and_limit(
    site: Traffic, tab: Page, shot: Shot
) -> None:
    site.api("PUT", "/v1/budgets/main/drawn", {**NOTHING, "mode": "enforce"})
    eventually(site.is_rejected)
    path = "/v1/budgets/main/violations"
    eventually(lambda: any(one["budget"] == "drawn" for one in site.get(path)["budgets"]))
    tab.goto("/budgets/main")
    expect(tab.locator(".legend")).to_contain_text("drawn: blocked by")
    assert tab.locator(".bars rect").count() >= 1
    expect(tab.get_by_role("img", name="drawn:")).to_have_count(1)
    tab.get_by_role("link", name="last 24 h").click()
    expect(tab.locator(".bars figcaption")).to_contain_text("in 15 min")
    shot(tab, "violations")


def test_forgiving_removing_and_going_back_are_each_confirmed(site: Traffic, tab: Page) -> None:
    site.api("PUT", "/v1/budgets/main/exports", NOTHING)
    before = site.revision
    tab.goto("/budgets/main/exports")
    tab.get_by_role("button", name="Forgive its debt …").click()
    tab.get_by_role("button", name="Leave it as it is").click()
    expect(tab.locator("#confirm")).to_be_hidden()
    assert site.revision == before
    tab.get_by_role("button", name="Forgive its debt …").click()
    confirm(site, tab, "Forgive")
    assert site.budgets["exports"]["epoch"] == 1
    tab.get_by_role("button", name="Remove …").click()
    confirm(site, tab, "Remove")
    assert site.budgets == {}
    tab.get_by_role("link", name="history").click()
    tab.locator("tr", has_text="exports: new").first.get_by_role("link").click()
    expect(tab.locator(".difference")).to_contain_text("exports")
    tab.get_by_role("button", name=f"Roll back to {before}").click()
    expect(tab).to_have_url(re.compile("/changes"))
    assert site.budgets["exports"]["rate"] == 0


def test_a_budget_that_another_user_removes_says_so(site: Traffic, tab: Page) -> None:
    site.api("PUT", "/v1/budgets/main/exports", NOTHING)
    tab.goto("/budgets/main/exports")
    site.api("DELETE", "/v1/budgets/main/exports")
    expect(tab.locator("#budget")).to_contain_text("exports has been removed")
    tab.get_by_role("link", name="The budgets of main").click()
    expect(tab).to_have_url(re.compile("/budgets/main$"))


# --- the form -------------------------------------------------------------------------------------


def test_a_form_reports_faults_at_their_fields_and_makes_what_it_showed(
    site: Traffic, tab: Page, shot: Shot
) -> None:
    tab.goto("/budgets/main")
    tab.get_by_role("link", name="New budget").click()
    tab.get_by_label("name", exact=True).fill("Exports!")
    tab.locator("#s-rate").fill("120")
    tab.locator("#rule-0-key-0").fill("user")
    tab.locator("#rule-0-value-0").fill("etl")
    tab.get_by_role("button", name="Preview").last.click()
    expect(tab.locator("#s-rate-fault")).to_have_text("120 is more than 100")
    expect(tab.locator("#rule-0-fault")).to_contain_text("did you mean 'username'?")
    expect(tab.locator("#name")).to_be_focused()
    shot(tab, "faults")
    tab.get_by_label("name", exact=True).fill("exports")
    tab.locator("#s-rate").fill("30")
    tab.locator("#rule-0-key-0").fill("username")
    tab.get_by_role("button", name="Or: another rule").click()
    tab.locator("#rule-1-key-0").fill("tag.controller")
    tab.locator("#rule-1-value-0").fill("export")
    tab.locator("#rule-1-each").fill("tag.tenant")
    tab.get_by_text("More: delays").click()
    tab.locator("#lasts").fill("2h")
    tab.locator("#lasts").press("Enter")
    make = tab.get_by_role("button", name="Create it, in warn")
    expect(make).to_be_visible()
    shot(tab, "preview")
    tab.locator("#s-rate").fill("40")
    expect(make).to_be_disabled()
    expect(tab.get_by_text("The form was changed since")).to_be_visible()
    tab.get_by_role("button", name="Preview").last.click()
    expect(tab.locator("#preview")).to_contain_text("rate 40%")
    make.click()
    expect(tab.locator("#flash")).to_contain_text("exports: new, warn")
    made = site.budgets["exports"]
    assert (
        made["rate"] == 40
        and made["expires_at"]
        and made["rules"]
        == [
            {"match": {"username": "etl"}},
            {"match": {"tag.controller": "export"}, "each": ["tag.tenant"]},
        ]
    )
    assert "done=" not in tab.url, "a reload does not tell it again"


def test_a_change_that_another_user_made_meanwhile_is_not_lost(site: Traffic, tab: Page) -> None:
    site.api("PUT", "/v1/budgets/main/exports", NOTHING)
    tab.goto("/budgets/main/exports")
    tab.get_by_role("link", name="Change …").click()
    tab.locator("#s-rate").fill("10")
    tab.get_by_role("button", name="Preview").last.click()
    expect(tab.locator("#preview")).to_contain_text("rate 0% → 10%")
    site.api("PATCH", "/v1/budgets/main/exports", {"rate": 5})
    tab.get_by_role("button", name="Change it").click()
    expect(tab.locator("#rejection")).to_be_visible()
    expect(tab.locator("#rejection")).to_contain_text("revision")
    assert site.budgets["exports"]["rate"] == 5
    tab.get_by_role("button", name="Preview").last.click()
    expect(tab.locator("#preview")).to_contain_text("rate 5% → 10%")
    tab.get_by_role("button", name="Change it").click()
    expect(tab.locator("#flash")).to_contain_text("rate 5% → 10%")
    assert site.budgets["exports"]["rate"] == 10


def test_nothing_is_wider_than_a_phone(site: Traffic, tab: Page, shot: Shot) -> None:
    site.api("PUT", "/v1/budgets/main/all", MEASURE)
    site.works()
    tab.set_viewport_size({"width": 360, "height": 800})
    for path in ("", "/main", "/main/all", "/main/all/edit", "/main/new?username=etl", "/other"):
        tab.goto(f"/budgets{path}")
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"/budgets{path} is {width} wide"
        shot(tab, f"phone{path.replace('/', '-').partition('?')[0]}")


# --- who may, and how -----------------------------------------------------------------------------


def test_a_viewer_looks_and_sees_why_changes_are_not_allowed(
    site: Traffic, viewer_tab: Page, shot: Shot
) -> None:
    site.api("PUT", "/v1/budgets/main/exports", NOTHING)
    viewer_tab.goto("/budgets/main/exports")
    expect(viewer_tab.locator("#why-not")).to_contain_text("vic may look, not change")
    for button in viewer_tab.locator(".actions button").all():
        expect(button).to_be_disabled()
    viewer_tab.goto("/budgets/main")
    expect(viewer_tab.get_by_role("button", name="Stop everything")).to_be_disabled()
    shot(viewer_tab, "viewer")


def test_without_script_the_switch_for_all_works_too(site: Traffic, new_tab: Any) -> None:
    site.api("PUT", "/v1/budgets/main/exports", {**NOTHING, "mode": "enforce"})
    eventually(site.is_rejected)
    tab: Page = new_tab(OPERATOR, script=False)
    tab.goto("/budgets/main")
    tab.get_by_role("button", name="Only warn").click()
    tab.get_by_role("button", name="Only warn").click()
    expect(tab.get_by_role("alert")).to_contain_text("budgets only warn, and nothing is blocked")
    eventually(lambda: site.works() == "")


def test_a_database_without_the_extension_shows_how_to_begin(
    site: Traffic, tab: Page, watches: dict[Page, Watch], shot: Shot
) -> None:
    tab.goto("/budgets")
    shot(tab, "databases")
    tab.locator("#traffic-other").get_by_role("link", name="What to do").click()
    expect(tab.get_by_text('sudo "$(command -v headgate)" pg install')).to_be_visible()
    expect(tab.get_by_text("[databases.other.traffic]")).to_be_visible()
    shot(tab, "not-configured")
    assert not watches[tab].faults
