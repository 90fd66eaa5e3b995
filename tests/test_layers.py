"""Imports run one way. The table below is the law; ARCHITECTURE.md draws it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "headgate"
PURE = frozenset({"core", "traffic", "wire"})
EDGES = frozenset(
    {"http", "proxy", "pgext", "native", "probes", "stores", "client", "peers", "tracing"}
)

# module → what it may import of ours (errors and version are free to all)
LAW: Mapping[str, frozenset[str]] = {
    "core": frozenset(),
    "traffic": frozenset({"core"}),
    "wire": frozenset({"core", "traffic"}),
    "present": PURE,
    "paths": frozenset(),
    "settings": frozenset({"core", "traffic", "paths"}),
    "logs": frozenset(),
    "notify": frozenset(),
    "agent": frozenset({"core", "traffic"}),
    "probes": frozenset({"core", "paths"}),
    "stores": frozenset({"core", "traffic", "wire"}),
    "client": frozenset({"core", "traffic", "wire"}),
    "integrations": frozenset({"client", "core", "traffic", "wire"}),
    "peers": frozenset({"core", "traffic", "wire"}),
    # Sends by the client's own HTTP, which bounds every size and every wait.
    "tracing": frozenset({"core", "agent", "client"}),
    "http": frozenset({"core", "traffic", "wire", "agent", "present"}),
    "native": frozenset({"core", "traffic", "paths"}),
    "proxy": frozenset({"core", "traffic", "wire", "agent", "native"}),
    "pgext": frozenset({"core", "traffic", "wire", "agent", "native"}),
    "cli": frozenset({"client", "settings", "paths", "present", *PURE}),
    # The live screen; the command line reaches it through __main__, as it does the agent.
    "tui": frozenset({"cli", "client", "paths", "present", *PURE}),
    "wiring": frozenset({*PURE, *EDGES, "agent", "settings"}),
    "fleetparts": frozenset({*PURE, *EDGES, "agent", "settings", "wiring"}),
    "tracingparts": frozenset({*PURE, *EDGES, "agent", "settings"}),
    "main": frozenset(
        {*PURE, *EDGES, "agent", "fleetparts", "logs", "notify", "settings", "tracingparts"}
        | {"wiring"}
    ),
    "demo": frozenset(
        {*PURE, *EDGES, "agent", "cli", "settings", "logs", "main", "paths", "tui", "wiring"}
    ),
    # The proxy: its parts from settings, its composition root.
    "proxywiring": frozenset({*PURE, *EDGES, "agent"}),
    "proxyparts": frozenset({*PURE, *EDGES, "agent", "settings", "proxywiring"}),
    "proxymain": frozenset(
        {*PURE, *EDGES, "agent", "settings", "logs", "notify", "proxyparts", "proxywiring"}
    ),
    # pgext by itself: a database's host needs neither an agent nor its packages for it.
    "__main__": frozenset({"cli", "tui", "main", "proxymain", "demo", "pgext", "settings", *PURE}),
    "__init__": frozenset({"client", "version"}),
}
FREE = frozenset({"errors", "version"})

# core decides with values: nothing that waits, dates, throws dice, talks or logs.
CORE_BANS = frozenset(
    {
        "asyncio",
        "time",
        "random",
        "secrets",
        "socket",
        "logging",
        "structlog",
        "os",
        "io",
        "threading",
        "subprocess",
        "datetime",
        "pathlib",
    }
)
# present makes view models of documents, with times as they are written there: it may read a
# date, and never a clock.
BANS: Mapping[str, frozenset[str]] = {"core": CORE_BANS, "present": CORE_BANS - {"datetime"}}
# What the SDK may load: the standard library, and nothing of the agent's.
SDK_RINGS = ("client", "__init__", "errors", "version")


def ring_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them, at any depth: no statement lies within an expression."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements_of(node)


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in statements_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where things come from"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(ring: str, source: str) -> list[str]:
    found = []
    for name in imports_of(ast.parse(source)):
        parts = name.split(".")
        if parts[0] == "headgate" and len(parts) > 1:
            other = parts[1]
            if other != ring and other not in FREE | LAW[ring] and _is_module(other):
                found.append(f"{ring} imports {name}")
        elif parts[0] in BANS.get(ring, frozenset()):
            found.append(f"{ring} imports {parts[0]}: time, dice and I/O are arguments")
        elif ring in SDK_RINGS and parts[0] not in sys.stdlib_module_names | {"headgate"}:
            found.append(f"{ring} imports {parts[0]}: the SDK needs the standard library only")
    return found


def _is_module(name: str) -> bool:
    return name in LAW or (SOURCE / name).exists() or (SOURCE / f"{name}.py").exists()


@pytest.mark.parametrize("ring", sorted({ring_of(path) for path in SOURCE.rglob("*.py")} - FREE))
def test_imports_run_one_way(ring: str) -> None:
    assert ring in LAW, f"{ring} has no row in the table: give it one"
    paths = [SOURCE / f"{ring}.py", *(SOURCE / ring).rglob("*.py")]
    found = {path: offences(ring, path.read_text()) for path in paths if path.exists()}
    assert found
    assert {str(path): told for path, told in found.items() if told} == {}


@pytest.mark.parametrize(
    ("ring", "source"),
    [
        ("core", "import time"),
        ("core", "from headgate.agent.board import Board"),
        ("core", "import asyncio.queues"),
        ("present", "import time"),
        ("present", "from headgate.cli import words"),
        ("agent", "from headgate.http import listener"),
        ("agent", "from headgate import settings"),
        ("probes", "import headgate.stores.sqlite"),
        ("cli", "def f():\n    from headgate.agent import board"),
        ("client", "import msgspec"),
        ("client", "from headgate.integrations import sqlcommenter"),
        ("integrations", "from headgate.agent import board"),
        ("stores", "from headgate.agent.ports import Store"),
        ("peers", "from headgate.agent.ports import PeerLink"),
        ("http", "from headgate.peers import open_link"),
        ("proxy", "from headgate.pgext.meter import RegionMeter"),
        ("settings", "from headgate.proxy.relay import NativeRelay"),
    ],
)
def test_the_law_bites(ring: str, source: str) -> None:
    assert offences(ring, source)


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError):
        offences("core", "from . import names")
