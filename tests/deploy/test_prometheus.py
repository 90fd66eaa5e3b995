"""The dashboard and the alert rules of deploy/, against Prometheus itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.http.exposition import SERIES
from headgate.proxy.metrics import SERIES as PROXY_SERIES
from tests.deploy import prometheus
from tests.deploy.prometheus import (
    DASHBOARD,
    EXAMPLE,
    ROOT,
    RULES,
    Asked,
    Prometheus,
    alerts,
    answers,
    asked_by_panels,
    asked_by_rules,
    asked_by_variables,
    dashboard,
    program,
)
from tests.deploy.troubles import Scraped, scraped
from tests.fixtures.eventually import eventually

CASES = Path(__file__).parent / "alerts.test.yml"
TOOL_S = 60.0
RUNBOOK = ROOT / "docs" / "reference" / "runbook.md"
CANNOT_BE = {
    "HeadgateNobodyScraped": "there are agents to scrape here; in alerts.test.yml there are none"
}
"""Alerts that nothing here can provoke, and why."""
ROWS = (
    "Health now",
    "Throttled clients",
    "Rules",
    "Pacing",
    "Budgets",
    "Proxy",
    "fleet",
    "The agent",
)
"""What issue and on-call want to find, in this order."""


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=TOOL_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class World:
    url: str
    scraped: Scraped


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One Prometheus for all, when everything has been scraped and evaluated twice."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("p")
    with scraped(folder) as targets, Prometheus.scraping(targets.jobs, folder) as running:
        rates = [one for one in asked_by_rules() if one.where.startswith("headgate:")]
        eventually(lambda: not prometheus.unanswered(running.url, rates))
        yield World(running.url, targets)


# --- without a server ------------------------------------------------------------------------


def test_promtool_takes_the_rules_and_the_example() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", EXAMPLE)


def test_alerts_fire_when_they_should_and_not_before() -> None:
    """Times and labels, by Prometheus' own unit tests."""
    promtool("test", "rules", CASES)


def test_every_alert_says_what_to_do() -> None:
    told = RUNBOOK.read_text()
    for rule in alerts():
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert notes["runbook"] == f"docs/reference/runbook.md#{name.lower()}"
        assert "`" in notes["description"], f"{name}: no command"
        assert f"\n## {name}\n" in told, f"{name} has no section in the runbook"


def test_the_runbook_has_no_section_without_an_alert() -> None:
    names = {rule["alert"] for rule in alerts()}
    assert set(re.findall(r"^## (Headgate\w+)$", RUNBOOK.read_text(), re.MULTILINE)) == names


def test_every_command_of_an_alert_exists() -> None:
    reference = (ROOT / "docs" / "reference" / "cli.md").read_text()
    known = set(re.findall(r"^## (headgate [a-z -]+)$", reference, re.MULTILINE))
    for rule in alerts():
        for command in re.findall(r"`(headgate [a-z -]+)", rule["annotations"]["description"]):
            words = command.split()
            assert any(" ".join(words[:n]) in known for n in (2, 3)), f"{rule['alert']}: {command}"


def test_every_series_that_is_queried_exists() -> None:
    """A typing error in a selector is no fault to Prometheus: it has no data, forever."""
    kinds = {s.name: s.kind for s in SERIES} | {s.name: s.kind for s in PROXY_SERIES}
    known = {*kinds, *(rule["record"] for rule in prometheus.rules() if "record" in rule)}
    known |= {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    for one in [*asked_by_rules(), *asked_by_panels(), *asked_by_variables()]:
        named = set(re.findall(r"\bheadgate[_:][a-z0-9_:]+", one.expr))
        assert named <= known, f"{one}: {named - known}"


def test_counters_are_read_as_rates_and_gauges_are_not() -> None:
    for one in [*asked_by_rules(), *asked_by_panels()]:
        rated = set(re.findall(r"(?:rate|increase)\((headgate_\w+)", one.expr))
        assert all(name.endswith(("_total", "_bucket")) for name in rated), one
        counters = set(re.findall(r"headgate_\w+_total", one.expr))
        assert counters <= rated, f"{one}: a counter as it stands says nothing"


def test_lines_of_two_agents_can_be_distinguished() -> None:
    """Every agent beside a server may call its database `main`."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()) if panel["type"] == "timeseries" else ():
            expr, legend = target["expr"], target["legendFormat"]
            groups = re.findall(r"\bby \(([^)]*)\)", expr)
            merged = re.search(r"\b(?:sum|max|min|avg|count|histogram_quantile)\b", expr)
            alone = "headgate" not in expr or (merged and not any("instance" in g for g in groups))
            assert alone or "{{instance}}" in legend, f"{panel['title']}: {legend}"


def test_settings_that_alerts_name_exist() -> None:
    known = (ROOT / "docs" / "reference" / "settings.md").read_text()
    known += (ROOT / "docs" / "reference" / "proxy.md").read_text()
    for rule in alerts():
        for name in re.findall(r"`(\w+)` of \[", rule["annotations"]["description"]):
            assert f"| `{name}` |" in known, f"{rule['alert']}: {name}"


def test_the_dashboard_is_what_grafana_imports() -> None:
    board = dashboard()
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "database", "metric", "client", "proxy"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert len(rows) == len(ROWS)
    assert all(part in title for part, title in zip(ROWS, rows, strict=True))
    for panel in panels:
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
        assert panel["type"] == "row" or panel["description"], f"{panel['title']} says nothing"
    assert not any(_overlap(a, b) for a in panels for b in panels if a["id"] < b["id"])
    assert DASHBOARD.read_text() == json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _overlap(a: dict[str, Any], b: dict[str, Any]) -> bool:
    one, other = a["gridPos"], b["gridPos"]
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


# --- against a running one -------------------------------------------------------------------


def eventually_answered(world: World, asked: list[Asked]) -> list[Asked]:
    """Those without data, given a few more scrapes."""
    left = asked

    def all_there() -> bool:
        nonlocal left
        left = prometheus.unanswered(world.url, left)
        return not left

    try:
        eventually(all_there)
    except AssertionError:
        return left
    return []


def test_every_panel_and_menu_has_data(world: World) -> None:
    """Issue 9: every expression parses and returns data."""
    assert eventually_answered(world, [*asked_by_panels(), *asked_by_variables()]) == []


def test_every_alert_finds_its_trouble(world: World) -> None:
    wanted = [one for one in asked_by_rules() if one.where not in CANNOT_BE]
    assert eventually_answered(world, wanted) == []


def test_no_alert_finds_fault_with_what_is_well(world: World) -> None:
    """R92: an alarm that cries wolf is switched off. (A scrape that a busy machine was too slow
    for is made again a second later.)"""

    def blamed() -> list[str]:
        return [
            rule["alert"]
            for rule in alerts()
            if any(labels.get("instance") in well for labels in answers(world.url, rule["expr"]))
        ]

    well = world.scraped.well
    eventually(lambda: blamed() == [])


def test_the_rules_are_evaluated_without_a_fault(world: World) -> None:
    """Two series alike, one on each side of a comparison, are only found at work."""
    groups = prometheus.ask(world.url, "rules")["groups"]
    faults = {rule["name"]: rule.get("lastError") for g in groups for rule in g["rules"]}
    assert {name: fault for name, fault in faults.items() if fault} == {}
    assert len(faults) == len(prometheus.rules())


def test_all_but_the_dead_are_scraped(world: World) -> None:
    def is_up() -> list[bool]:
        targets = prometheus.ask(world.url, "targets", state="active")["activeTargets"]
        return sorted(one["health"] == "up" for one in targets)

    eventually(lambda: is_up() == [False] * 2 + [True] * 4)
