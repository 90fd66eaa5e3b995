"""Which tests hold which requirement: docs/requirements.md has the sentences, tests cite numbers.

A test cites a requirement in its docstring or in a comment inside it ("R70", "R88-R92" with either
dash). A comment between two tests belongs to the next one; a module's docstring is the whole file.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "requirements.md"
SENTENCE = re.compile(r"- \*\*R(\d+)\*\* (.*)")
HOLDS = re.compile(r"  - `([^`]+)`(?:: (.*))?")
CITED = re.compile(r"\bR(\d{1,3})\b(?:\s?[-–]\s?R(\d{1,3})\b)?")
C_FOLDERS = ("native/tests", "relay/tests")
ABOUT_NUMBERS = {"tests/scripts/test_words.py", "tests/test_docs.py"}
"""They test the numbers themselves."""
PLANNED = "Planned: "
NUMBERS = range(1, 173)
NOT_BUILT = {160, 166, *range(167, 173)}
"""All others are held by tests. To take a promise back, take its number in here, with the reason
in its sentence."""

Citations = dict[int, dict[str, list[str]]]
"""By requirement, by file: names of tests; none where the whole file is meant."""


def requirements(text: str) -> dict[int, str]:
    """The sentences of the page by their numbers."""
    found = (SENTENCE.match(line) for line in text.splitlines())
    return {int(one[1]): one[2] for one in found if one is not None}


def named(text: str) -> Citations:
    """The tests that the page names."""
    found: Citations = {}
    current = 0
    for line in text.splitlines():
        if sentence := SENTENCE.match(line):
            current = int(sentence[1])
        elif held := HOLDS.match(line):
            found.setdefault(current, {})[held[1]] = re.findall(r"`([^`]+)`", held[2] or "")
    return found


def cited() -> Citations:
    """What the tests of the tree cite."""
    found: Citations = {}
    for path, name, text in _texts():
        for number in _numbers(text):
            of_file = found.setdefault(number, {}).setdefault(path, [])
            if name and name not in of_file:
                of_file.append(name)
    return found


def faults(text: str, found: Citations) -> Iterator[str]:
    """What is wrong with the page, against what the tests cite."""
    sentences, told = requirements(text), named(text)
    if list(sentences) != list(NUMBERS):
        yield f"the page has {len(sentences)} numbers, not 1 to {NUMBERS[-1]} in their order"
    if strange := sorted(found.keys() - sentences.keys()):
        yield f"tests cite what is not on the page: {strange}"
    planned = {number for number, one in sentences.items() if one.startswith(PLANNED)}
    if planned != NOT_BUILT:
        yield f"planned on the page: {sorted(planned)}; not built: {sorted(NOT_BUILT)}"
    for number in sorted(sentences.keys() - NOT_BUILT):
        if number not in found:
            yield f"R{number}: no test cites it"
        elif number not in told:
            yield f"R{number}: the page names no test of it: run scripts/generate_docs.py"
    for number, files in told.items():
        for path, tests in files.items():
            there = found.get(number, {})
            gone = [path] if path not in there else [n for n in tests if n not in there[path]]
            yield from (f"R{number}: {one} does not cite it, or is gone" for one in gone)


def render(text: str, found: Citations) -> str:
    """The page with the tests below each sentence."""
    lines: list[str] = []
    for line in text.splitlines():
        if HOLDS.match(line):
            continue
        lines.append(line)
        if sentence := SENTENCE.match(line):
            lines += _held_by(found.get(int(sentence[1]), {}))
    return "\n".join(lines) + "\n"


def _held_by(files: Mapping[str, list[str]]) -> Iterator[str]:
    for path in sorted(files):
        tests = ", ".join(f"`{name}`" for name in files[path])
        yield f"  - `{path}`" + (f": {tests}" if tests else "")


def _numbers(text: str) -> Iterator[int]:
    for first, last in CITED.findall(text):
        yield from range(int(first), int(last or first) + 1)


def _texts() -> Iterator[tuple[str, str, str]]:
    """Every docstring and comment of a test: file, test or "" for the whole file, text."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        if name not in ABOUT_NUMBERS and CITED.search(source := path.read_text()):
            yield from ((name, *one) for one in _python(source))
    for folder in C_FOLDERS:
        for path in sorted((ROOT / folder).glob("test_*.c")):
            yield str(path.relative_to(ROOT)), "", " ".join(_c_comments(path.read_text()))


def _c_comments(source: str) -> list[str]:
    return re.findall(r"/\*.*?\*/|//[^\n]*", source, re.DOTALL)


def _python(source: str) -> Iterator[tuple[str, str]]:
    tree = ast.parse(source)
    yield "", ast.get_docstring(tree) or ""
    spans = list(_spans(tree))
    for name, node in spans:
        yield name, ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield _owner(spans, token.start[0]), token.string


Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _spans(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Named]]:
    """Tests and classes of tests, and helpers as "" (a helper's citation is its file's)."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            tests = node.name.startswith("Test")
            yield (f"{prefix}{node.name}" if tests else "", node)
            yield from _spans(node, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (f"{prefix}{node.name}" if node.name.startswith("test_") else "", node)


def _owner(spans: list[tuple[str, Named]], line: int) -> str:
    inside = [(name, node) for name, node in spans if node.lineno <= line <= (node.end_lineno or 0)]
    if inside:
        return max(inside, key=lambda one: one[1].lineno)[0]
    after = [(name, node) for name, node in spans if node.lineno > line and name]
    return min(after, key=lambda one: one[1].lineno)[0] if after else ""
