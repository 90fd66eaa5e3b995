"""One name means one thing: no two public classes share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"


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
