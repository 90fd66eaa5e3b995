"""What the docs do not show does not exist: every setting, route, verdict, metric, command."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from headgate.base.advice import Severity
from headgate.base.declared import table_of
from headgate.budgets.advice import advise
from headgate.budgets.limits import (
    BUDGET_RULE_SETTINGS,
    BUDGET_SETTINGS,
    KEY_MEANINGS,
    POLICY_SETTINGS,
)
from headgate.budgets.parse import parse_budget, parse_policy
from headgate.budgets.policy import SYSTEM_KEYS
from headgate.changes.file_format import parse_file, read_document
from headgate.changes.model import ChangeKind
from headgate.changes.reach import HERE
from headgate.check.answers import FRENO_MESSAGES, FRENO_STATUS, STATUS
from headgate.check.model import VERDICT_MEANINGS, Verdict
from headgate.http.control import ROUTES, description
from headgate.http.exposition import SERIES
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Engine
from headgate.metrics.samples import Cause
from headgate.metrics.settings import METRIC_SETTINGS, parse_metric_settings
from headgate.proxy.control import ROUTES as PROXY_ROUTES
from headgate.proxy.metrics import SERIES as PROXY_SERIES
from headgate.rules.matching import JUSTIFICATION_MEANINGS, KIND_MEANINGS, Justification, Kind
from headgate.rules.settings import FAVOR_SETTINGS, RULE_SETTINGS, RuleLimits, parse_rule
from headgate.rules.times import SCHEDULE_SETTINGS
from headgate.settings import agent as agent_file
from headgate.settings import proxy as proxy_file
from headgate.shard.rollup import AGGREGATES, COUNTING, ROLLUP_MEANINGS
from headgate.shard.settings import ROLLUP_SETTINGS
from headgate.version import VERSION

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_docs", ROOT / "scripts" / "generate_docs.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_docs"] = module
    spec.loader.exec_module(module)
    return module


generator = _generator()


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text()


@pytest.mark.parametrize("name", sorted(generator.PAGES))
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    assert page(name) == generator.render(name), "run scripts/generate_docs.py"


requirements = generator.requirements_page
cited = cache(requirements.cited)
HELD = "  - `tests/check/test_decide.py`: `test_admits_only_when_every_metric_is_healthy`\n"
"""A line below R2."""


def test_every_requirement_has_a_test_and_every_test_it_names_exists() -> None:
    assert list(requirements.faults(requirements.PAGE.read_text(), cited())) == []


@pytest.mark.parametrize(
    ("line", "instead", "fault"),
    [
        (HELD, HELD.replace("test_admits", "test_takes"), "R2: test_takes_only"),
        (HELD, HELD.replace("test_decide", "test_guess"), "R2: tests/check/test_guess.py"),
        ("- **R2** A check", "- **R2** Planned: a check", "planned on the page: [2, 160"),
        ("- **R172** ", "- R172 ", "171 numbers"),
    ],
)
def test_a_page_that_promises_more_than_tests_hold_is_noticed(
    line: str, instead: str, fault: str
) -> None:
    text = requirements.PAGE.read_text()
    assert line in text
    found = list(requirements.faults(text.replace(line, instead), cited()))
    assert any(one.startswith(fault) or fault in one for one in found), found


def test_a_requirement_that_no_test_cites_is_noticed() -> None:
    text = requirements.PAGE.read_text()
    less = {number: files for number, files in cited().items() if number != 2}
    assert "R2: no test cites it" in requirements.faults(text, less)
    assert "tests cite what is not on the page: [999]" in requirements.faults(
        text, {**cited(), 999: {}}
    )


def section(text: str, heading: str) -> str:
    """From a heading to the next of its level."""
    level = heading.split(" ")[0]
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"no {heading!r}"
    return rest.split(f"\n{level} ")[0]


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        *((name, table_of(struct)) for name, struct in agent_file.STRUCTS.items()),
        ("[databases.NAME.metrics.METRIC]", METRIC_SETTINGS),
    ],
)
def test_every_setting_is_in_its_own_table(heading: str, table: Mapping[str, object]) -> None:
    """`url` and `database` are names elsewhere, too: the right section has to have them."""
    heading = "Tokens" if heading == "[[tokens]]" else heading
    told = section(page("settings.md"), f"## {heading}")
    shown = re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)
    assert [name for name in table if name not in shown] == []


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("# Rules", RULE_SETTINGS),
        ("## schedule", SCHEDULE_SETTINGS),
        ("## Favor", FAVOR_SETTINGS),
    ],
)
def test_every_setting_of_a_rule_is_in_its_own_table(
    heading: str, table: Mapping[str, object]
) -> None:
    told = section(f"\n{page('rules.md')}", heading).split("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)
    assert shown == list(table)


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("## [[budgets]]", BUDGET_SETTINGS),
        ("## [[budgets.rules]]", {**BUDGET_RULE_SETTINGS, **dict.fromkeys(SYSTEM_KEYS)}),
        ("## [policy]", POLICY_SETTINGS),
    ],
)
def test_every_setting_of_a_budget_is_in_its_own_table(
    heading: str, table: Mapping[str, object]
) -> None:
    shown = re.findall(r"^\| `(\w+)` \|", section(page("budgets.md"), heading), re.MULTILINE)
    assert shown == list(table)
    assert set(KEY_MEANINGS) == {*SYSTEM_KEYS, "tag.NAME"}


@pytest.mark.parametrize("heading", sorted(proxy_file.STRUCTS))
def test_every_setting_of_a_proxy_is_in_its_own_table(heading: str) -> None:
    told = section(page("proxy.md"), f"### {heading}").split("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)
    assert shown == list(table_of(proxy_file.STRUCTS[heading]))


def test_every_route_and_metric_of_a_proxy_is_documented() -> None:
    told = page("proxy.md")
    assert [p for m, p, *_ in PROXY_ROUTES if f"`{m} {p}`" not in told] == []
    assert [s.name for s in PROXY_SERIES if f"`{s.name}`" not in told] == []


def test_every_kind_and_justification_of_a_rule_is_documented() -> None:
    assert set(KIND_MEANINGS) == set(Kind)
    assert set(JUSTIFICATION_MEANINGS) == set(Justification)
    rules = page("rules.md")
    named = [one.value for one in (*Kind, *Justification)]
    assert [name for name in named if f"| `{name}` |" not in rules] == []
    howto = (DOCS / "howto" / "rules.md").read_text()
    assert [kind.value for kind in Kind if f"**{kind.value}**" not in howto] == []


@pytest.mark.parametrize("name", sorted(agent_file.SECTIONS - {"agent", "tokens"}))
def test_every_section_of_the_file_is_documented(name: str) -> None:
    assert f"[{name}" in page("settings.md")


def test_every_rollup_and_policy_is_documented() -> None:
    assert set(ROLLUP_MEANINGS) == {*AGGREGATES, *COUNTING}
    rollups = section(page("settings.md"), "### Rollups")
    assert [name for name in (*AGGREGATES, *COUNTING) if f"| `{name}` |" not in rollups] == []
    shard = page("shard.md")
    policies = [setting.name for setting in ROLLUP_SETTINGS]
    assert [name for name in policies if not re.search(f"`{name}[` ]", shard)] == []


def test_every_route_is_documented_with_an_example() -> None:
    """routes.md follows from the table; freno's own routes are listed on the page above it."""
    for route in ROUTES:
        if route.answer is None:
            assert f"`{route.path}`" in page("http.md"), route.path
        else:
            assert f"### `{route.method} {route.path}`" in page("routes.md"), route.path
            assert f"```http\n{route.method} {route.target}\n" in page("routes.md"), route.path


def test_the_security_page_says_which_routes_are_open_and_which_looks_are_not() -> None:
    """The description of the API is held against the agent by tests/live/test_openapi.py."""
    told = (DOCS / "security.md").read_text()
    operations = [
        (method, path, "security" in operation)
        for path, operations in description()["paths"].items()
        for method, operation in operations.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]
    open_ones = [
        f"`{method.upper()} {path}`"
        for method, path, kept in operations
        if method != "get" and not kept
    ]
    assert [route for route in open_ones if route not in told] == []
    assert set(re.findall(r"`POST [^`]*`", told)) == set(open_ones)
    kept_looks = {path for method, path, kept in operations if method == "get" and kept}
    assert kept_looks == {"/v1/debug", "/v1/fleet/feed", "/v1/fleet/feed/changes"}
    assert "`GET /v1/debug`" in told and "`/v1/fleet/feed*`" in told


def test_every_setting_on_the_security_page_is_one() -> None:
    told = (DOCS / "security.md").read_text()
    known = "".join(page(name) for name in ("settings.md", "proxy.md", "budgets.md", "cli.md"))
    named = re.findall(r"`([a-z]+_[a-z_]+)`", told)
    elsewhere = {"on_unavailable", "read_only", "pg_headgate", "in_transaction"}
    assert [name for name in named if f"`{name}`" not in known and name not in elsewhere] == []


def test_every_verdict_is_documented_and_translated() -> None:
    for table in (VERDICT_MEANINGS, STATUS, FRENO_STATUS, FRENO_MESSAGES):
        assert set(table) == set(Verdict)
    for verdict in Verdict:
        assert f"`{verdict.value}`" in page("verdicts.md")
        assert f"`{verdict.value}`" in page("http.md")


def test_every_metric_and_cause_is_documented() -> None:
    assert [m for m in BUILTINS if f"`{m}`" not in page("metrics.md")] == []
    assert [c for c in Cause if f"`{c.value}`" not in page("metrics.md")] == []
    assert [s.name for s in SERIES if f"`{s.name}`" not in page("prometheus.md")] == []


LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")]),
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_lead_somewhere(path: Path) -> None:
    links = [m[1] for m in LINK.finditer(path.read_text()) if "://" not in m[1]]
    assert [link for link in links if not (path.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = (re.sub(r"[`*]", "", head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(ROOT)))
def test_anchors_lead_somewhere(path: Path) -> None:
    links = [(m[1], m[2]) for m in LINK.finditer(path.read_text()) if m[2] and "://" not in m[1]]
    pages = [(path.parent / page, anchor[1:]) for page, anchor in links if page.endswith(".md")]
    assert [anchor for page, anchor in pages if anchor not in anchors(page)] == []


def test_the_index_links_every_page_and_the_readme_links_the_index() -> None:
    linked = {m[1] for m in LINK.finditer((DOCS / "index.md").read_text())}
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    records = {path for path in pages if path.startswith("decisions/0")}
    assert pages - records <= linked
    decided = {m[1] for m in LINK.finditer((DOCS / "decisions" / "README.md").read_text())}
    assert records == {f"decisions/{name}" for name in decided}
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()


def test_the_readme_is_one_short_read() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def toml_blocks() -> list[tuple[str, str]]:
    """Every piece of a settings file in the docs; other TOML (pyproject) is passed over."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    found = [(p.name, m[1]) for p in pages for m in INDENTED_TOML.finditer(p.read_text())]
    blocks = [(name, textwrap.dedent(block)) for name, block in found]
    return [(n, b) for n, b in blocks if tomllib.loads(b).keys() <= agent_file.SECTIONS]


INDENTED_TOML = re.compile(r"^ *```toml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
NEEDED = {"engine": "postgres", "dsn": "host=db"}


def completed(block: str) -> str:
    """With what a snippet leaves out, and every file has."""
    document = tomllib.loads(block)
    databases = document.get("databases", {})
    for name, database in databases.items():
        lines = [f'{key} = "{value}"' for key, value in NEEDED.items() if key not in database]
        head = f"[databases.{name}]\n"
        block = block if head in block else f"{block}\n{head}"
        block = block.replace(head, head + "\n".join([*lines, ""]))
    if any("peers" in d or "discover" in d for d in databases.values()) and "peers" not in document:
        block += '\n[peers]\ntoken_file = "peers.token"\n'
    return block


@pytest.mark.parametrize(("name", "block"), toml_blocks(), ids=lambda part: part[:24])
def test_every_settings_snippet_is_taken(name: str, block: str) -> None:
    """A key that was renamed, or never was, must not stand in the docs."""
    agent_file.parse_settings(completed(block))


def proxy_blocks() -> list[tuple[str, str]]:
    """Every piece of a proxy's settings file in the docs."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    found = [(p.name, m[1]) for p in pages for m in INDENTED_TOML.finditer(p.read_text())]
    blocks = [(name, textwrap.dedent(block)) for name, block in found]
    own = proxy_file.SECTIONS - agent_file.SECTIONS
    of_files = [(n, b) for n, b in blocks if "budgets" not in tomllib.loads(b)]
    return [(n, b) for n, b in of_files if tomllib.loads(b).keys() & own]


OF_A_PROXY = {
    "proxy": '[proxy]\nprotocol = "postgres"\ndirectory = "/d"\n',
    "listen": '[[listen]]\naddress = "127.0.0.1:6432"\n',
    "server": '[[server]]\naddress = "127.0.0.1:5432"\n',
    "agent": '[agent]\nurl = "http://127.0.0.1:8087"\ndatabase = "main"\n',
}


@pytest.mark.parametrize(("name", "block"), proxy_blocks(), ids=lambda part: part[:24])
def test_every_piece_of_a_proxys_settings_is_taken(name: str, block: str, tmp_path: Path) -> None:
    document = tomllib.loads(block)
    missing = [text for key, text in OF_A_PROXY.items() if key not in document]
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    whole = block.replace("/etc/headgate/tags.key", str(secret))
    proxy_file.parse_proxy_settings("\n".join([whole, *missing]))


def policy_blocks() -> list[tuple[str, str]]:
    """Every piece of a policy in the docs."""
    changes = change_blocks()
    return [one for one in all_toml() if "budgets" in tomllib.loads(one[1]) and one not in changes]


def change_blocks() -> list[tuple[str, str]]:
    """Every file of changes in the docs: of a fleet, with a reach, or of one agent."""
    found = [one for one in all_toml() if tomllib.loads(one[1]).keys() & {"rules", "budgets"}]
    return [(n, b) for n, b in found if "reach" in b or n == "changes.md"]


def all_toml() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    found = [(p.name, m[1]) for p in pages for m in INDENTED_TOML.finditer(p.read_text())]
    return [(name, textwrap.dedent(block)) for name, block in found]


@pytest.mark.parametrize(("name", "block"), change_blocks(), ids=lambda part: part[:24])
def test_every_file_of_changes_in_the_docs_is_taken(name: str, block: str) -> None:
    file = parse_file(read_document(block), default_reach=None if "reach" in block else HERE)
    assert not file.faults
    unlimited = RuleLimits(max_for_s=1e9)
    for rule in file.of(ChangeKind.RULE):
        parse_rule(
            rule.raw,
            rule_id="r",
            author="docs",
            wall_s=1.7e9,
            known_metrics=lambda _: {},
            limits=unlimited,
        )
    for budget in file.of(ChangeKind.BUDGET):
        beside = {"database", "whole", "unset"}
        parse_budget({key: one for key, one in budget.raw.items() if key not in beside})
    for metric in file.of(ChangeKind.METRIC):
        beside = {"database", "metric", "removed", "for", "expires_at", "unset", "adds"}
        settings = {key: one for key, one in metric.raw.items() if key not in beside}
        parse_metric_settings(metric.raw["metric"], settings, Engine.POSTGRES)
    assert file.entries


@pytest.mark.parametrize(("name", "block"), policy_blocks(), ids=lambda part: part[:24])
def test_every_policy_in_the_docs_is_taken_and_locks_out_nobody(name: str, block: str) -> None:
    advice = advise(parse_policy(tomllib.loads(block)))
    assert [str(one) for one in advice if one.severity is Severity.ERROR] == []


def test_one_version() -> None:
    assert f'version = "{VERSION}"' in (ROOT / "pyproject.toml").read_text()
