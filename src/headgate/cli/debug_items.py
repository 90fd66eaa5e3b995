"""What is in a bundle: one row an item.   ITEMS ──► debug.py gathers, scrubs, packs

An item is a file of the bundle and a way to get it: from the agent's API, from a proxy's, from the
settings file, from this machine. Each may be missing without any other being so.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from headgate.base.paths import distribution, packages
from headgate.base.redaction import shown
from headgate.cli.api import Api, Transport
from headgate.errors import HeadgateError, InvalidSettings
from headgate.version import VERSION

JOURNAL_TIMEOUT_S = 5.0
TAIL_BLOCK_BYTES = 256 * 1024
Content = str | dict[str, Any] | list[Any]
Keeps = Literal["head", "tail"]
MAX_DATABASES = 64
SYSTEM_SETTINGS = Path("/etc/headgate/headgate.toml")


class NotThere(Exception):
    """An item that cannot be had, and why."""


@dataclass(frozen=True, slots=True)
class BundleItem:
    path: str
    about: str
    fetch: Callable[[], Content]
    source: Literal["agent", "proxy", "here"] = "agent"
    keeps: Keeps = "head"
    """Which end of it, where it is too large."""
    look: str = ""
    """What to look at before it is sent."""
    hashes_names: bool = True


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command was called with."""

    api: Api
    transport: Transport
    proxy: Transport | None = None
    settings: Path | None = None
    logs: tuple[Path, ...] = ()
    unit: str = ""
    log_lines: int = 2000
    since: str = "6h"


PEOPLE = "reasons and names, as people wrote them"
SHAPES = "shapes of your statements, without literals"
JOBS = "names of your jobs, databases and hosts"


def items(wishes: Wishes, databases: list[str]) -> Iterator[BundleItem]:
    yield from _of_agent(wishes)
    for name in databases[:MAX_DATABASES]:
        yield from _of_database(wishes, name)
    yield from _of_proxy(wishes)
    yield from _of_here(wishes)


ROUTES = (
    ("status", "databases, metrics, clients, advice", "/v1/status", ""),
    ("ready", "whether it can decide", "/readyz", ""),
    ("metrics", "metrics with settings and values", "/v1/metrics",
     "queries and addresses of custom metrics"),
    ("rules", "rules, ended ones too", "/v1/rules?all=true", PEOPLE),
    ("budgets", "policies of all databases", "/v1/budgets", ""),
    ("clients", "clients with recent checks", "/v1/clients", JOBS),
    ("starvation", "who is starved, and by what", "/v1/starvation", ""),
    ("rogues", "rogue clients", "/v1/rogues", "users, programs and addresses that are connected"),
    ("rejections", "recent rejections in full", "/v1/rejections?limit=500", ""),
    ("audit", "who changed what", "/v1/audit?limit=500", PEOPLE),
    ("history", "decisions by the minute", "/v1/history?since={since}", ""),
    ("metric-history", "metrics by the minute", "/v1/history/metrics?since={since}", ""),
    ("unthrottled", "periods without an agent", "/v1/unthrottled", ""),
    ("changes", "what operators set at this agent", "/v1/changes?all=true", PEOPLE),
    ("changes-history", "its last changes", "/v1/changes/history", PEOPLE),
    ("fleet", "the fleet, where the agent shows it", "/v1/fleet", ""),
    ("fleet-changes", "what operators set for the fleet", "/v1/changes?log=fleet", PEOPLE),
    ("fleet-history", "its last changes", "/v1/changes/history?log=fleet", ""),
)  # fmt: skip
"""Of the agent: file, what it has, route, what to look at before it is sent."""
DATABASE_ROUTES = (
    ("shard", "members, roles, rollup", "/v1/databases/{database}/shard", ""),
    ("policy", "budgets and their settings", "/v1/budgets/{database}", ""),
    ("state", "fill levels and statements", "/v1/budgets/{database}/state", SHAPES),
    ("violations", "what budgets blocked", "/v1/budgets/{database}/violations", ""),
)
PROXY_ROUTES = (
    ("status", "targets, gates, policies", "/v1/proxy/status", ""),
    ("sessions", "a hundred of its sessions", "/v1/proxy/sessions?limit=100",
     "users and addresses that are connected"),
)  # fmt: skip


def _of_agent(wishes: Wishes) -> Iterator[BundleItem]:
    agent, debug = wishes.transport, cache(lambda: documented(wishes.transport, "/v1/debug"))
    for name, about, path, look in ROUTES:
        fetch = partial(documented, agent, path.format(since=wishes.since))
        yield BundleItem(f"agent/{name}.json", about, fetch, look=look)
    yield BundleItem(
        "agent/metrics.prom", "the Prometheus page", partial(texted, agent, "/metrics")
    )
    yield BundleItem("agent/openapi.json", "version and sum of the API's description",
               lambda: described(agent), hashes_names=False)  # fmt: skip
    yield BundleItem("agent/process.json", "settings in force, memory, loop, servers, packages",
               lambda: _process(debug()))  # fmt: skip
    yield BundleItem("agent/stacks.txt", "where its threads and tasks stand",
               lambda: _stacks(debug()), hashes_names=False)  # fmt: skip


def _of_database(wishes: Wishes, name: str) -> Iterator[BundleItem]:
    folder, quoted = f"agent/databases/{_file_name(name)}", quote(name, safe="")
    for kind, about, path, look in DATABASE_ROUTES:
        fetch = partial(documented, wishes.transport, path.format(database=quoted))
        yield BundleItem(f"{folder}/{kind}.json", about, fetch, look=look)


def _of_proxy(wishes: Wishes) -> Iterator[BundleItem]:
    if (proxy := wishes.proxy) is not None:
        for name, about, path, look in PROXY_ROUTES:
            fetch = partial(documented, proxy, path)
            yield BundleItem(f"proxy/{name}.json", about, fetch, "proxy", look=look)
        page = partial(texted, proxy, "/metrics")
        yield BundleItem("proxy/metrics.prom", "its Prometheus page", page, "proxy")


def _of_here(wishes: Wishes) -> Iterator[BundleItem]:
    path = wishes.settings
    yield BundleItem("here/settings.json", "the settings file, as it is read",
               lambda: settings_of(path), "here")  # fmt: skip
    yield BundleItem("here/machine.json", "system, clocks, disks",
               lambda: machine(path), "here")  # fmt: skip
    yield BundleItem("here/packages.json", "versions of what is installed",
               packages, "here", hashes_names=False)  # fmt: skip
    yield BundleItem("here/processes.json", "agents and proxies that run here",
               processes, "here", hashes_names=False)  # fmt: skip
    look = "whatever your log says: read it"
    for number, log in enumerate(wishes.logs, start=1):
        yield BundleItem(
            f"logs/{number}-{_file_name(log.name)}",
            f"the last {wishes.log_lines} lines of {log}",
            partial(log_tail, log, wishes.log_lines),
            "here",
            keeps="tail",
            look=look,
        )
    if not wishes.logs:
        yield BundleItem("logs/journal.log", f"the journal of {wishes.unit}",
                   lambda: journal(wishes.unit, wishes.log_lines), "here",
                   keeps="tail", look=look)  # fmt: skip


# --- ways to get them --------------------------------------------------------------------------


def documented(transport: Transport, path: str) -> Content:
    """JSON, whatever its status says, as long as it is no error."""
    response = transport.request("GET", path)
    try:
        document = json.loads(response.body)
    except (ValueError, RecursionError):
        raise NotThere(f"answered {response.status}, and no JSON") from None
    if response.status >= 400 and "detail" in document:
        raise NotThere(f"answered {response.status}: {document['detail']}")
    if not isinstance(document, dict | list):
        raise NotThere(f"answered {response.status}, and no document")
    return document


def texted(transport: Transport, path: str) -> str:
    response = transport.request("GET", path)
    if response.status != 200:
        raise NotThere(f"answered {response.status}")
    return response.body.decode(errors="replace")


def described(transport: Transport) -> Content:
    response = transport.request("GET", "/openapi.json")
    document = json.loads(response.body)
    return {
        "openapi": document.get("openapi"),
        "info": document.get("info"),
        "paths": sorted(document.get("paths", {})),
        "sha256_of_document": hashlib.sha256(response.body).hexdigest(),
    }


def _process(document: Content) -> Content:
    assert isinstance(document, dict)
    return {name: told for name, told in document.items() if name not in ("threads", "tasks")}


def _stacks(document: Content) -> str:
    assert isinstance(document, dict)
    lines = []
    for kind in ("threads", "tasks"):
        for one in document.get(kind, ()):
            lines += [f"{kind[:-1]} {one['name']}", *(f"    {place}" for place in one["frames"])]
    return "\n".join(lines) + "\n"


def settings_of(path: Path | None) -> Content:
    """As they are read; where they have faults, the faults."""
    from headgate.settings.agent import load_settings

    if path is None:
        raise NotThere("no settings file was named or found: give --config FILE")
    try:
        settings = load_settings(path)
    except InvalidSettings as error:
        return {"source": str(path), "rejected": [str(fault) for fault in error.faults]}
    except HeadgateError as error:
        raise NotThere(str(error)) from None
    document = shown(settings)
    assert isinstance(document, dict)
    return {"source": str(path), **document}


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "_"


# --- of this machine, also while the agent is down ---------------------------------------------


def machine(settings: Path | None) -> dict[str, Any]:
    return {
        "headgate": VERSION,
        "python": sys.version,
        "executable": sys.executable,
        "system": platform.platform(),
        "kernel": platform.release(),
        "distribution": distribution(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
        "memory": _memory(),
        "clocks": _clocks(),
        "disks": _disks(settings),
        "environment": _environment(),
    }


def processes() -> dict[str, Any]:
    """Agents and proxies that run here, by what the kernel tells of them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().split(b"\0")
            if any(b"headgate" in part for part in line[:4]):
                found.append(_process_of(folder))
        except OSError:
            continue  # It ended meanwhile, or is another's.
    return {"processes": found[:32]}


def _process_of(folder: Path) -> dict[str, Any]:
    status = dict(
        line.split(":\t", 1)
        for line in (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        if ":\t" in line
    )
    names = ("Name", "State", "VmRSS", "VmHWM", "Threads", "Uid", "voluntary_ctxt_switches")
    facts: dict[str, Any] = {name: status.get(name, "").strip() for name in names}
    facts["pid"] = int(folder.name)
    try:
        facts["files"] = len(list((folder / "fd").iterdir()))
    except OSError:
        facts["files"] = None
    return facts


def log_tail(path: Path, lines: int) -> str:
    """The last so many lines, read from its end."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            kept = b""
            while size > 0 and kept.count(b"\n") <= lines and len(kept) < lines * 4096:
                start = max(0, size - TAIL_BLOCK_BYTES)
                log.seek(start)
                kept = log.read(size - start) + kept
                size = start
    except OSError as error:
        raise NotThere(f"{path} cannot be read: {error.strerror}") from None
    return "\n".join(kept.decode(errors="replace").splitlines()[-lines:]) + "\n"


def journal(unit: str, lines: int) -> str:
    program = shutil.which("journalctl")
    if program is None:
        raise NotThere("there is no journalctl here: name the log with --log FILE")
    command = [program, "--unit", unit, "--lines", str(lines), "--no-pager", "--output", "cat"]
    try:
        ran = subprocess.run(  # noqa: S603 -- a program of the system's, by its full path
            command, capture_output=True, timeout=JOURNAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotThere(f"journalctl did not answer: {type(error).__name__}") from None
    said = ran.stdout.decode(errors="replace")
    if ran.returncode or not said.strip() or said.startswith("-- No entries"):
        raise NotThere(f"the journal has nothing of {unit}: name the log with --log or --unit")
    return said


def _memory() -> dict[str, str]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    return {name: told[name].strip() for name in names if name in told}


def _clocks() -> dict[str, Any]:
    return {
        "utc": datetime.now(UTC).isoformat(),
        "mono_s": time.monotonic(),
        "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "zone": "/".join(time.tzname),
    }


def _disks(settings: Path | None) -> dict[str, Any]:
    places = {"/", "/tmp", "/var/lib"} | ({str(settings.parent)} if settings else set())  # noqa: S108
    found: dict[str, Any] = {}
    for place in sorted(places):
        try:
            usage = shutil.disk_usage(place)
        except OSError as error:
            found[place] = error.strerror
        else:
            found[place] = {"free_bytes": usage.free, "total_bytes": usage.total}
    return found


def _environment() -> Mapping[str, str]:
    """Which of ours are set: never to what."""
    ours = (name for name in os.environ if name.startswith(("HEADGATE_", "OTEL_", "PG")))  # noqa: TID251
    return dict.fromkeys(sorted(ours), "(set)")
