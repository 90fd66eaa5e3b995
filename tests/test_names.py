"""One name means one thing: no two public classes share a name, and a file that is named exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.reporting import LONGEST

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"


def public_classes(tree: ast.AST) -> Iterator[str]:
    """Those that another module can import, also from under an `if` or a `try`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield node.name
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from public_classes(node)


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Each name that classes of several modules have, with these modules."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module, source in sources.items():
        for name in public_classes(ast.parse(source)):
            homes[name].add(module)
    return {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}


def test_no_two_public_classes_share_a_name() -> None:
    paths = sorted((SOURCE / "headgate").rglob("*.py"))
    assert paths
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in paths}
    assert shared_names(sources) == {}


@pytest.mark.parametrize(
    "other",
    [
        "class Gate: ...",
        "@final\nclass Gate(Base): ...",
        "if fast:\n    class Gate: ...\nelse:\n    class Slow: ...",
        "try:\n    import x\nexcept ImportError:\n    class Gate: ...",
    ],
)
def test_a_shared_name_is_found(other: str) -> None:
    sources = {"a.py": "class Gate:\n    pass\n", "b.py": other, "c.py": "class Other: ..."}
    assert shared_names(sources) == {"Gate": ["a.py", "b.py"]}


@pytest.mark.parametrize(
    "other",
    [
        "class _Gate: ...",
        "from a import Gate",
        "def make():\n    class Gate: ...",
        "class Other:\n    class Gate: ...",
    ],
)
def test_private_inner_and_imported_classes_share_no_name(other: str) -> None:
    assert shared_names({"a.py": "class Gate: ...", "b.py": other}) == {}


# ── Files that comments, docstrings and pages name ───────────────────────────

# Paths from here are as a reader writes them: `check/decide.py`, `docs/testing.md`.
BASES = ("", "src/headgate/", "tests/", "docs/", "deploy/")
ENDINGS = (".py", ".c", ".h", ".sql", ".md")
# Of other projects, made at run time, or no file although there is a room of that name.
FOREIGN = frozenset(
    {
        "deploy/fleet-headgate-view",
        "env.py",
        "manage.py",
        "my_probes.py",
        "my_rollups.py",
        "pg_headgate/health",
        "pg_headgate/policy",
        "plancat.c",
        "queue_depth.py",
        "shard/lag",
        "shard/loadavg",
        "shard/member",
    }
)
NAMED = re.compile(
    r"(?<![\w/.@:~$*<>{}=-])"
    r"((?:[a-z_]\w*/)*[a-z_][\w-]*(?:\.(?:py|c|h|sql|md)\b)?)(?:\.[a-z_]\w*)?(?![\w/<{*-])"
)


def remarks(path: str, source: str) -> Iterator[str]:
    """What a file says besides its code."""
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield str(node.value.value)
    elif path.endswith((".c", ".h")):
        yield from re.findall(r"/\*.*?\*/|//[^\n]*", source, re.DOTALL)
    else:
        yield source


@cache
def files() -> frozenset[str]:
    tops = [top for top in ROOT.iterdir() if top.name[0] != "." or top.name == ".github"]
    every = (path for top in tops for path in (top.rglob("*") if top.is_dir() else [top]))
    return frozenset(str(path.relative_to(ROOT)) for path in every if path.is_file())


@cache
def known_names() -> frozenset[str]:
    """Files by path and by name alone, paths without their endings, and folders."""
    names = set(files())
    for path in map(Path, files()):
        names |= {path.name, str(path.with_suffix("")), *map(str, path.parents)}
    return frozenset(names)


@cache
def folders() -> frozenset[str]:
    """What a path begins with: rooms, packages and the folders at the top."""
    return frozenset(
        path.removeprefix("src/headgate/").partition("/")[0] for path in files() if "/" in path
    )


def missing_files(path: str, source: str) -> set[str]:
    """What is named as a file, or as something in a known folder, and does not exist."""
    bases = (*BASES, f"{Path(path).parent}/")

    def missing(text: str) -> set[str]:
        return {
            name
            for name in set(NAMED.findall(text)) - FOREIGN
            if name.endswith(ENDINGS) or ("/" in name and name.partition("/")[0] in folders())
            if not any(f"{base}{name}" in known_names() for base in bases)
        }

    # To parse is slow: only where the code or a remark has such a name.
    return missing(source) and {name for said in remarks(path, source) for name in missing(said)}


def test_every_file_that_a_remark_or_a_page_names_is_there() -> None:
    read = [path for path in files() if path.endswith(ENDINGS) and "/data/" not in path]
    assert {
        path: missing
        for path in sorted(read)
        if (missing := missing_files(path, (ROOT / path).read_text()))
    } == {}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("src/headgate/check/board.py", '"""As rules/gone.py does it."""'),
        ("src/headgate/check/board.py", "# Validated first (gone.py)."),
        ("src/headgate/check/board.py", 'class A:\n    b = 1\n    """Of check/gone."""'),
        ("src/headgate/check/board.py", "# check/gone.decide has the reason."),
        ("tests/check/test_board.py", "# tests/gone has the others."),
        ("native/bucket.c", "/* As in native/gone.h. */\nint a;"),
        ("docs/testing.md", "See [the rest](gone.md) and `scripts/gone`."),
    ],
)
def test_a_file_that_is_gone_is_found(path: str, source: str) -> None:
    assert missing_files(path, source)


@pytest.mark.parametrize(
    "source",
    [
        "# check/decide.py, decide.py, check/decide, check/ and check/decide.decide are there.",
        "# So is metrics/probes; /check/gone is an address, rules/*.py many files.",
        'path = "rules/gone.py"',
    ],
)
def test_what_is_there_and_what_is_no_file_is_not_found(source: str) -> None:
    assert missing_files("src/headgate/check/board.py", source) == set()


def test_the_tests_that_take_longest_are_where_their_list_says() -> None:
    """They start first; a name that moved would start them last."""
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    gone = [name for name in LONGEST if not any(file.startswith(name) for file in files)]
    assert gone == []
