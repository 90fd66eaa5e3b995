"""One name means one thing, and no class or function grows beyond what a reader can hold."""

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


def classes(tree: ast.AST) -> Iterator[str]:
    """Those of a module, also from under an `if` or a `try`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from classes(node)


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Each name that classes of several modules have, with these modules."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module, source in sources.items():
        for name in classes(ast.parse(source)):
            homes[name].add(module)
    return {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}


def test_no_two_classes_share_a_name() -> None:
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
        "from a import Gate",
        "def make():\n    class Gate: ...",
        "class Other:\n    class Gate: ...",
    ],
)
def test_inner_and_imported_classes_share_no_name(other: str) -> None:
    assert shared_names({"a.py": "class Gate: ...", "b.py": other}) == {}


# ── Documents ────────────────────────────────────────────────────────────────

PRESENTATION = ("cli", "tui", "page", "present")
LEAST_SHARED = 5
RESTATES = {
    "headgate.page.budgets_changes.Replay": "sums over the clients of one budget, or why not",
}
"""What has the fields of a document for another reason. Whatever has none of them is taken out."""
Fields = frozenset[tuple[str, str]]


def declared_fields(name: str, tree: ast.AST) -> Iterator[tuple[str, bool, Fields]]:
    """Of each class: its name, whether it is a struct of messages, and its fields with their
    types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            fields = frozenset(
                (child.target.id, ast.unparse(child.annotation).removesuffix(" | None"))
                for child in node.body
                if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
            )
            is_struct = any("Struct" in ast.unparse(base) for base in node.bases)
            yield f"{name}.{node.name}", is_struct, fields


def restated(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Classes of the presentation of which most fields are those of one document, and these
    documents. In place of such a class the document itself is shown."""
    documents: dict[str, Fields] = {}
    shown: dict[str, Fields] = {}
    for module, source in sources.items():
        is_shown = module.split(".")[1] in PRESENTATION
        for name, is_struct, fields in declared_fields(module, ast.parse(source)):
            if is_shown:
                shown[name] = fields
            elif is_struct:
                documents[name] = fields
    found: dict[str, list[str]] = defaultdict(list)
    for name, own in shown.items():
        for document, fields in documents.items():
            same = len(own & fields)
            if same >= LEAST_SHARED and 2 * same > len(own):
                found[name].append(document)
    return dict(found)


def test_no_document_is_restated() -> None:
    sources = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text()
        for path in sorted((SOURCE / "headgate").rglob("*.py"))
        if path.parent.name != "headgate"
    }
    found = restated(sources)
    assert {name: documents for name, documents in found.items() if name not in RESTATES} == {}
    assert [name for name in RESTATES if name not in found] == [], "restates nothing"


_FIELDS = "".join(f"    {name}: int\n" for name in "abcde")
_DOCUMENT = f"class ADoc(msgspec.Struct, frozen=True):\n{_FIELDS}    f: float\n"


@pytest.mark.parametrize(
    ("shown", "restates"),
    [
        (f"class Row(NamedTuple):\n{_FIELDS}", True),
        (f"@dataclass\nclass Row:\n{_FIELDS}    own: int\n", True),
        ("@dataclass\nclass Row:\n    doc: ADoc\n    a: int\n    b: int\n", False),
        ("@dataclass\nclass Row:\n" + _FIELDS.replace("int", "bool"), False),
    ],
)
def test_a_restated_document_is_found(shown: str, restates: bool) -> None:
    sources = {"headgate.rules.api": _DOCUMENT, "headgate.cli.rules": shown}
    expected = {"headgate.cli.rules.Row": ["headgate.rules.api.ADoc"]} if restates else {}
    assert restated(sources) == expected


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


# ── Sizes ────────────────────────────────────────────────────────────────────

MOST_FIELDS = 15
MOST_VALUES = 24
"""Fields of a class without state: a frozen value, or a document as it is sent."""
MOST_METHODS = 20
MOST_PARAMETERS = 8
MOST_LINES = 70
"""Of a function; of a file, where it has a reason to be long."""
MOST_LINES_OF_A_FILE = 900
LARGER = {
    "headgate.settings.sections.AgentSettings": "one field per setting of [agent]",
    "headgate.rules.api.RuleDoc": "one field per fact that the API promises about a rule",
    "headgate.client.gate.Gate.__init__": "the SDK's settings, all of them keywords",
    "headgate.client.answers.Answer.__init__": "the SDK's answer, which tests of users build",
    "headgate.client.sync_client.Client.chunks": "the loop's settings and the check's",
    "headgate.client.sync_client.Client.ranges": "the loop's settings and the check's",
    "headgate.client.async_client.AsyncClient.chunks": "as Client.chunks",
    "headgate.client.async_client.AsyncClient.ranges": "as Client.ranges",
    "headgate.changes.follower.LogFollower": "one state machine; its parts share every field",
    "headgate.changes.exchange.Exchange": "both ends of the exchange, one method per message",
    "headgate.changes.exchange.Partner": "what is known of one other agent",
}
"""What is larger, and why. Nothing else may be; whatever has shrunk is taken out."""


def fields_of(node: ast.ClassDef) -> tuple[set[str], bool]:
    """The attributes of a class, and whether it has state, which its methods assign."""
    declared = {
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
        if "ClassVar" not in ast.dump(child.annotation)
    }
    assigned = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if isinstance(part.value, ast.Name) and part.value.id == "self"
    }
    return declared | assigned, bool(assigned)


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    return sum(one.arg not in ("self", "cls") for one in given)


def oversized(name: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What is too large in a module or a class, by its name, with how large it is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            own = f"{name}.{node.name}"
            fields, has_state = fields_of(node)
            methods = sum(
                isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body
            )
            if len(fields) > (MOST_FIELDS if has_state else MOST_VALUES):
                yield own, f"{len(fields)} fields"
            if methods > MOST_METHODS:
                yield own, f"{methods} methods"
            yield from oversized(own, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = f"{name}.{node.name}"
            lines = (node.end_lineno or 0) - node.lineno + 1
            if (count := parameters_of(node)) > MOST_PARAMETERS:
                yield own, f"{count} parameters"
            if lines > MOST_LINES:
                yield own, f"{lines} lines"
            yield from oversized(own, node)
        elif not isinstance(node, ast.expr):
            yield from oversized(name, node)


def test_no_class_and_no_function_is_too_large() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((SOURCE / "headgate").rglob("*.py")):
        source = path.read_text()
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if (lines := source.count("\n")) > MOST_LINES_OF_A_FILE:
            found[module].append(f"{lines} lines")
        for name, size in oversized(module, ast.parse(source)):
            found[name].append(size)
    assert {name: sizes for name, sizes in found.items() if name not in LARGER} == {}
    assert [name for name in LARGER if name not in found] == [], "no longer too large"


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("class A:\n" + "".join(f"    a{n}: int\n" for n in range(25)), "25 fields"),
        (
            "class A:\n    def __init__(self):\n"
            + "".join(f"        self.a{n} = 1\n" for n in range(16)),
            "16 fields",
        ),
        ("class A:\n" + "".join(f"    def a{n}(self): ...\n" for n in range(21)), "21 methods"),
        ("if True:\n    def a(b, c, d, e, f, g, h, /, i, *, j): ...", "9 parameters"),
        ("def a():\n" + "    pass\n" * 70, "71 lines"),
    ],
)
def test_what_is_too_large_is_found(source: str, size: str) -> None:
    assert [found for _, found in oversized("module", ast.parse(source))] == [size]


def test_what_is_just_small_enough_is_not_found() -> None:
    fields = "".join(f"        self.a{n} = 1\n" for n in range(15))
    methods = "".join(f"    def a{n}(self, b, c, d, e, f, g, h, i): ...\n" for n in range(19))
    source = f"class A:\n    def __init__(self):\n{fields}{methods}"
    assert list(oversized("module", ast.parse(source))) == []
