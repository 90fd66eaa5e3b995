"""Files are UTF-8, and what a terminal cannot show ends no command: whatever the locale."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import builders
from tests.cli.scripted import ScriptedAgent
from tests.environment.starting import HEADGATE, Left, ran
from tests.environment.surroundings import ASCII, LOCALES

SOURCE = Path(__file__).parents[2] / "src"
WORDS = "Größe→✖数据"
POLICY = {"budgets": [{"name": "b1", "comment": WORDS, "rules": [{"match": {"username": "jü"}}]}]}
WORTH_A_LOOK = re.compile(r"open\(|_text\(|text=|universal_newlines=")
SETTINGS = f"""\
# {WORDS}
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 dbname=größe"
[databases.main.metrics.lag]
threshold = "2s"
"""


@pytest.fixture
def scripted() -> Iterator[ScriptedAgent]:
    status = builders.busy_status()
    status["databases"][0]["metrics"].insert(0, builders.absent(detail=WORDS))
    with ScriptedAgent().serving() as agent:
        agent.says("/v1/status", status)
        export = {"log": "agent", "n": 1, "document": POLICY, "left_out": []}
        agent.says("/v1/changes/export", export)
        yield agent


def shown(locale: str, agent: ScriptedAgent, *argv: str) -> bytes:
    left = Left(environment={**LOCALES[locale], "HEADGATE_URL": agent.url})
    done = ran(left, *HEADGATE, *argv)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.parametrize("locale", LOCALES)
def test_what_cannot_be_shown_is_replaced(scripted: ScriptedAgent, locale: str) -> None:
    page = shown(locale, scripted, "status")
    assert b"THRESHOLD_EXCEEDED" in page
    if locale in ("ascii", "strict"):
        assert page.isascii() and b"Gr??e????" in page
    if locale == "latin-1":
        assert "Größe????".encode("latin-1") in page
    if locale == "C":  # Python takes it for UTF-8, as PEP 538 says.
        assert WORDS.encode() in page


def test_documents_stay_what_they_are(scripted: ScriptedAgent) -> None:
    """With question marks in it, a document for a program would be another one."""
    status = json.loads(shown("ascii", scripted, "status", "--json"))
    assert status["databases"][0]["metrics"][0]["detail"] == WORDS
    assert json.loads(shown("latin-1", scripted, "changes", "export", "--json")) == POLICY
    assert tomllib.loads(shown("ascii", scripted, "changes", "export").decode()) == POLICY


def test_files_are_read_as_utf_8(scripted: ScriptedAgent, tmp_path: Path) -> None:
    settings = tmp_path / "headgate.toml"
    settings.write_text(SETTINGS, encoding="utf-8")
    assert b"no faults" in shown("ascii", scripted, "lint", str(settings))


def test_a_statement_from_standard_input_is_read_as_utf_8(scripted: ScriptedAgent) -> None:
    scripted.says("/v1/budgets/main/explain", {}, method="POST")
    left = Left(environment={**ASCII, "HEADGATE_URL": scripted.url})
    explain = (*HEADGATE, "budget", "explain", "main", "-", "--json")
    ran(left, *explain, stdin=None, input=f"select '{WORDS}'\xff".encode())
    assert scripted.heard[-1].body["sql"].startswith(f"select '{WORDS}'")


# --- what the sources say --------------------------------------------------------------------


def unsaid(tree: ast.AST) -> Iterator[int]:
    """Lines that open text and leave its encoding to the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        named = {word.arg: word.value for word in node.keywords}
        if "encoding" in named or _is_binary(node, named):
            continue
        if _opens_text(node, named):
            yield node.lineno


def _opens_text(node: ast.Call, named: dict[str | None, ast.expr]) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if _is_true(named.get("text")) or _is_true(named.get("universal_newlines")):
        return True
    if isinstance(node.func, ast.Name):
        return node.func.id == "open"
    if name == "read_text":
        return not node.args
    return name == "write_text" or (name in ("open", "fdopen") and _mode(node) is not None)


def _is_binary(node: ast.Call, named: dict[str | None, ast.expr]) -> bool:
    mode = _mode(node) or getattr(named.get("mode"), "value", "")
    return isinstance(mode, str) and "b" in mode


def _mode(node: ast.Call) -> str | None:
    """`"rb"` and the like, wherever it stands."""
    for word in node.args[:2]:
        value: Any = getattr(word, "value", None)
        if isinstance(value, str) and value and set(value) <= set("rwaxbt+"):
            return value
    return None


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def test_the_sources_leave_no_encoding_to_the_locale() -> None:
    read = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path, source in read.items()
        if WORTH_A_LOOK.search(source)
        for line in unsaid(ast.parse(source))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ["p.read_text()", "p.write_text(t)", "p.open('w')", "open(p)", "run(c, text=True)"],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert list(unsaid(ast.parse(source))) == [1]


@pytest.mark.parametrize("source", ["p.open('rb')", "s.open(db)", "p.read_text('utf-8')"])
def test_the_search_passes_over_the_rest(source: str) -> None:
    assert list(unsaid(ast.parse(source))) == []
