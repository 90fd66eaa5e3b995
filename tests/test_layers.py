"""Imports run one way. The two tables below are the law; ARCHITECTURE.md has the first as a map.

A room is a package for one thing that people do. Its files are of four rings:

  pure        values and decisions: no I/O, async, clock, dice or logs
  documents   what goes over the wire, without sockets
  service     loops and state; a service of another room only where the table says so
  doors       the room's routes over HTTP

and `assemble.py`, which puts it together from settings.

Print the map:  python -m tests.test_layers
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headgate"


class Room(NamedTuple):
    what: str
    pure: str = ""
    documents: str = ""
    doors: str = ""
    uses: str = ""
    """Rooms whose services this room's services import."""


ROOMS: Mapping[str, Room] = {
    "base": Room(
        what="what every room uses: names, units, declared settings, strict JSON, clock, the ports",
        pure="advice declared keyvalue names overlay places redaction traceparent units",
        documents="problems prometheus strict",
    ),
    "metrics": Room(
        what="what is measured, by which settings; `probes/` reads one number at a time",
        pure="advice builtins model samples settings",
        doors="routes",
        uses="changes check rules",
    ),
    "check": Room(
        what="the hot path: from readings to an answer. Read `decide` first",
        pure="decide health model snapshot",
        documents="answer_api answers api questions reasons snapshot_api",
        doors="client_routes freno metric_routes reporting routes streaming views",
        uses="budgets history pacing",
    ),
    "pacing": Room(
        what="how much work is admitted while metrics are healthy",
        pure="model released",
        documents="api",
        uses="check",
    ),
    "shard": Room(
        what="one primary and its replicas: roles, rollups, switchovers; `peers` is the way "
        "to other agents",
        pure="model patroni_keys rollup settings topology",
        documents="api peers_api",
        doors="routes",
        uses="changes check history rules",
    ),
    "changes": Room(
        what="one log for everything an operator changes; `etcd/` is the log that a fleet shares",
        pure="exchanged file_format log_copy model reach state",
        documents="api exchange_api",
        doors="routes",
        uses="budgets check rules shard",
    ),
    "fleet": Room(
        what="many shards: who is there, how they are, who has what",
        pure="beat members view",
        documents="api feed_api view_api",
        doors="routes status",
        uses="check history shard",
    ),
    "rules": Room(
        what="who goes first",
        pure="matching settings times",
        documents="api",
        doors="routes",
        uses="changes",
    ),
    "history": Room(
        what="who was throttled, when and why; starvation, rogue clients, replay",
        pure="effects records replay replay_outcomes sessions starvation starvation_courses "
        "timeline",
        documents="api unthrottled_api",
        doors="looking routes",
        uses="check rules",
    ),
    "budgets": Room(
        what="statements that never check; `native/` is the C core, `pgext/` the way to the "
        "Postgres extension",
        pure="admit advice bucket compiled consequences cost counterfactual difference explain "
        "identity ledger limits matching model parse policy readings sql_text traces",
        documents="api replay_api",
        doors="replay_routes routes views",
        uses="changes check history rules",
    ),
    "proxy": Room(
        what="the mind of `relay/`: which server, which budgets, what is released",
        pure="following model",
        documents="api",
    ),
}
# Folders and files within a room that reach outside: rings of their own.
EDGES = frozenset(
    {
        "budgets.native",
        "budgets.pgext",
        "changes.etcd",
        "client",
        "fleet.cache",
        "fleet.feed_reader",
        "http",
        "metrics.probes",
        "page",
        "proxy",
        "shard.peers",
        "store",
        "tracing",
    }
)
VALUES = frozenset({"pure", "documents"})
INSIDE = VALUES | {"service"}
MACHINE = frozenset({"base.logs", "base.notify", "base.paths"})

# ring → what it may import of ours (errors and version are free to all)
LAW: Mapping[str, frozenset[str]] = {
    "pure": frozenset(),
    "documents": frozenset({"pure"}),
    "present": VALUES,
    "service": frozenset({"pure"}),
    "doors": INSIDE | {"http", "present"},
    "base.paths": frozenset(),
    "base.logs": frozenset(),
    "base.notify": frozenset(),
    "settings": frozenset({"pure", "base.paths"}),
    "metrics.probes": frozenset({"pure", "base.paths"}),
    "store": VALUES,
    "changes.etcd": VALUES,
    "fleet.cache": VALUES | {"store"},
    "shard.peers": VALUES,
    "fleet.feed_reader": VALUES | {"shard.peers"},
    "client": VALUES,
    "integrations": VALUES | {"client"},
    # Sends by the client's own HTTP, which bounds every size and every wait.
    "tracing": INSIDE | {"client", "http"},
    "http": INSIDE | {"base.paths", "doors", "page", "present"},
    "page": INSIDE | {"doors", "http", "present"},
    "budgets.native": frozenset({"pure", "base.paths"}),
    "budgets.pgext": INSIDE | {"budgets.native"},
    "proxy": INSIDE | {"budgets.native"},
    "cli": VALUES | {"client", "settings", "base.paths", "present"},
    # The live screen; the command line reaches it through __main__, as it does the agent.
    "tui": VALUES | {"cli", "client", "base.paths", "present"},
    # A room's assemble.py puts it together from settings; the one above them, all rooms.
    "assemble": INSIDE | EDGES | {"doors", "proxy.dialling", "settings"},
    "commands": INSIDE | EDGES | {"assemble", "settings"},
    "doctor": INSIDE | EDGES | {"assemble", "commands", "settings"},
    "app": INSIDE | EDGES | MACHINE | {"assemble", "commands", "settings"},
    "demo": INSIDE | EDGES | MACHINE | {"app", "cli", "settings", "tui"},
    "proxy.dialling": INSIDE | {"client", "proxy"},
    "proxy.app": INSIDE | EDGES | MACHINE | {"assemble", "settings"},
    # pgext by itself: a database's host needs neither an agent nor its packages for it.
    "__main__": VALUES
    | {"app", "budgets.pgext", "cli", "commands", "demo", "doctor", "proxy.app", "settings", "tui"},
    "__init__": frozenset({"client", "version"}),
}
FREE = frozenset({"errors", "version"})

# Pure files decide with values: nothing that waits, dates, throws dice, talks or logs.
PURE_BANS = frozenset(
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
# present makes view models of documents, with times as they are written there, and base.declared
# reads and writes these: they may handle a date, and never a clock.
BANS: Mapping[str, frozenset[str]] = {
    "pure": PURE_BANS,
    "base.declared": PURE_BANS - {"datetime"},
    "present": PURE_BANS - {"datetime"},
}
# What the SDK may load: the standard library, and nothing of the agent's.
SDK_RINGS = ("client", "__init__", "errors", "version")


def ring_of(module: str) -> str:
    """`check.decide` is pure; a module of no room belongs to its package."""
    room, _, name = module.partition(".")
    if module.rpartition(".")[2] == "assemble":
        return "assemble"
    for ring in ("pure", "documents", "doors"):
        if room in ROOMS and name in getattr(ROOMS[room], ring).split():
            return ring
    for end in range(module.count(".") + 1, 0, -1):
        if (known := ".".join(module.split(".")[:end])) in LAW:
            return known
    return "service" if room in ROOMS else room


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES: Mapping[str, Path] = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = sorted({module.partition(".")[0] for module in MODULES})


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


@cache
def imported_by(module: str) -> tuple[str, ...]:
    return tuple(imports_of(ast.parse(MODULES[module].read_text())))


def offences(module: str, imported: Iterable[str]) -> list[str]:
    ring = ring_of(module)
    found = []
    for name in imported:
        first, _, rest = name.partition(".")
        if first == "headgate" and rest in MODULES:
            other = ring_of(rest)
            if rest in ROOMS or other in FREE:
                continue  # A room's own __init__ has nothing.
            if other != ring and other not in LAW[ring]:
                found.append(f"{module} ({ring}) imports {name} ({other})")
            elif ring == other == "service" and not _may_use(module, rest):
                found.append(f"{module} uses a service of another room: {name}")
        elif first in BANS.get(module, BANS.get(ring, frozenset())):
            found.append(f"{module} imports {first}: time, dice and I/O are arguments")
        elif ring in SDK_RINGS and first not in sys.stdlib_module_names | {"headgate"}:
            found.append(f"{module} imports {first}: the SDK needs the standard library only")
    return found


def _may_use(module: str, other: str) -> bool:
    room, another = module.partition(".")[0], other.partition(".")[0]
    return another in {room, "base", *ROOMS[room].uses.split()}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package: str) -> None:
    modules = [one for one in MODULES if one.partition(".")[0] == package]
    bound = [one for one in modules if one not in FREE and one not in ROOMS]
    lawless = [one for one in bound if ring_of(one) not in LAW]
    assert lawless == [], "each needs a row in the law: give it one"
    assert [said for one in bound for said in offences(one, imported_by(one))] == []


def test_every_file_that_the_map_names_is_there() -> None:
    named = {
        f"{room}.{name}"
        for room, row in ROOMS.items()
        for name in f"{row.pure} {row.documents} {row.doors}".split()
    }
    assert named - set(MODULES) == set()


def test_no_room_is_allowed_more_than_it_uses() -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module in MODULES:
        if module in ROOMS or module in FREE or ring_of(module) != "service":
            continue
        for name in imported_by(module):
            other = name.removeprefix("headgate.")
            if other in MODULES and other not in ROOMS and ring_of(other) == "service":
                used[module.partition(".")[0]].add(other.partition(".")[0])
    assert {room: sorted(rooms - {room, "base"}) for room, rooms in used.items()} == {
        room: sorted(row.uses.split()) for room, row in ROOMS.items()
    }


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("check.decide", "import time"),
        ("check.decide", "from headgate.check.board import Board"),
        ("base.names", "import asyncio.queues"),
        ("base.names", "import datetime"),
        ("base.declared", "import time"),
        ("check.answers", "from headgate.check.board import Board"),
        ("present.rules", "import time"),
        ("present.rules", "from headgate.cli import words"),
        ("check.board", "from headgate.http import listener"),
        ("check.board", "from headgate import settings"),
        ("check.board", "from headgate.shard import service"),
        ("check.board", "from headgate.check.assemble import CheckParts"),
        ("check.routes", "from headgate.http.assemble import Door"),
        ("shard.assemble", "from headgate.app import Agent"),
        ("shard.assemble", "from headgate.cli import words"),
        ("metrics.probes.host", "import headgate.store.sqlite"),
        ("cli.look", "def f():\n    from headgate.check import board"),
        ("client.gate", "import msgspec"),
        ("client.gate", "from headgate.integrations import sqlcommenter"),
        ("integrations.celery", "from headgate.check import board"),
        ("store.sqlite", "from headgate.base.ports import Store"),
        ("shard.peers", "from headgate.base.ports import PeerLink"),
        ("rules.routes", "from headgate.shard.peers import open_link"),
        ("proxy.gates", "from headgate.budgets.pgext.meter import RegionMeter"),
        ("settings.agent", "from headgate.proxy.relay import NativeRelay"),
    ],
)
def test_the_law_bites(module: str, source: str) -> None:
    assert offences(module, imports_of(ast.parse(source)))


def test_relative_imports_are_rejected() -> None:
    with pytest.raises(AssertionError):
        list(imports_of(ast.parse("from . import names")))


def room_map() -> str:
    """The rooms as ARCHITECTURE.md shows them."""
    rows = [
        "| room | what it is | pure | documents | service | doors |",
        "|---|---|---|---|---|---|",
    ]
    for room, row in ROOMS.items():
        services = [
            module.partition(".")[2]
            for module in MODULES
            if module.startswith(f"{room}.") and ring_of(module) in ("service", room)
        ]
        rings = (row.pure, row.documents, " ".join(services), row.doors)
        cells = (f"`{names}`" if names else "" for names in rings)
        rows.append(f"| `{room}/` | {row.what} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def test_the_architecture_shows_this_map() -> None:
    shown = (ROOT / "ARCHITECTURE.md").read_text()
    assert room_map() in shown, "print it with: python -m tests.test_layers"


def drawn_path() -> set[str]:
    """The files of a fleet rule's path, as ARCHITECTURE.md names them."""
    shown = (ROOT / "ARCHITECTURE.md").read_text()
    found = re.search(r"A fleet's rule, (\d+) files \([^)]*\):(.*?)```", shown, re.DOTALL)
    assert found is not None
    source, last = ROOT / "src" / "headgate", ROOT
    path = set[str]()
    for name in re.findall(r"[a-z][a-z0-9_/]*", found[2]):
        last = next(
            (one for base in (source, last.parent) if (one := base / f"{name}.py").is_file()), ROOT
        )
        assert last != ROOT, f"{name} is no file"
        path.add(str(last.relative_to(source).with_suffix("")))
    assert len(path) == int(found[1])
    return path


def test_the_path_of_a_fleets_rule_names_files_that_are_there_and_is_short() -> None:
    """tests/fleet/live/test_path.py has the trace."""
    assert len(drawn_path()) <= 20


if __name__ == "__main__":
    print(room_map())
