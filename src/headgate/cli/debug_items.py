"""What is in a bundle: one row an item.   ITEMS ──► debug_pack.py gathers, scrubs, packs

An item is a file of the bundle and a way to get it: from the agent's API, from a proxy's, from the
settings file, from this machine. Each may be missing without any other being so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from headgate.cli import debug_machine
from headgate.cli.api import Api, Transport, with_query
from headgate.cli.debug_machine import NotThere
from headgate.core.redaction import shown
from headgate.errors import HeadgateError, InvalidSettings

Content = str | dict[str, Any] | list[Any]
Keeps = Literal["head", "tail"]
MAX_DATABASES = 64
SYSTEM_SETTINGS = Path("/etc/headgate/headgate.toml")


@dataclass(frozen=True, slots=True)
class Item:
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


def items(wishes: Wishes, databases: list[str]) -> Iterator[Item]:
    yield from _of_agent(wishes)
    for name in databases[:MAX_DATABASES]:
        yield from _of_database(wishes, name)
    yield from _of_proxy(wishes)
    yield from _of_here(wishes)


def _of_agent(wishes: Wishes) -> Iterator[Item]:
    debug = cache(lambda: documented(wishes.transport, "/v1/debug"))

    def get(path: str, **query: str) -> Callable[[], Content]:
        return lambda: documented(wishes.transport, with_query(path, query))

    yield Item("agent/status.json", "databases, metrics, clients, advice", get("/v1/status"))
    yield Item("agent/ready.json", "whether it can decide", get("/readyz"))
    yield Item(
        "agent/metrics.json",
        "metrics with settings and values",
        get("/v1/metrics"),
        look="queries and addresses of custom metrics",
    )
    yield Item("agent/rules.json", "rules, ended ones too", get("/v1/rules", all="true"),
               look=PEOPLE)  # fmt: skip
    yield Item("agent/budgets.json", "policies of all databases", get("/v1/budgets"))
    yield Item("agent/clients.json", "clients with recent checks", get("/v1/clients"), look=JOBS)
    yield Item("agent/starvation.json", "who is starved, and by what", get("/v1/starvation"))
    yield Item("agent/rogues.json", "rogue clients", get("/v1/rogues"),
               look="users, programs and addresses that are connected")  # fmt: skip
    yield Item("agent/refusals.json", "recent rejections in full", get("/v1/refusals", limit="500"))
    yield Item("agent/audit.json", "who changed what", get("/v1/audit", limit="500"), look=PEOPLE)
    yield Item("agent/history.json", "decisions by the minute",
               get("/v1/history", since=wishes.since))  # fmt: skip
    yield Item("agent/metric-history.json", "metrics by the minute",
               get("/v1/history/metrics", since=wishes.since))  # fmt: skip
    yield Item("agent/unthrottled.json", "periods without an agent", get("/v1/unthrottled"))
    yield Item("agent/metrics.prom", "the Prometheus page",
               lambda: texted(wishes.transport, "/metrics"))  # fmt: skip
    yield Item("agent/openapi.json", "version and sum of the API's description",
               lambda: described(wishes.transport), hashes_names=False)  # fmt: skip
    yield Item("agent/changes.json", "what operators set at this agent",
               get("/v1/changes", all="true"), look=PEOPLE)  # fmt: skip
    yield Item("agent/changes-history.json", "its last changes", get("/v1/changes/history"),
               look=PEOPLE)  # fmt: skip
    yield Item("agent/fleet.json", "the fleet, where the agent shows it", get("/v1/fleet"))
    yield Item("agent/fleet-changes.json", "what operators set for the fleet",
               get("/v1/changes", log="fleet"), look=PEOPLE)  # fmt: skip
    yield Item("agent/fleet-history.json", "its last changes",
               get("/v1/changes/history", log="fleet"))  # fmt: skip
    yield Item(
        "agent/process.json",
        "settings in force, memory, loop, servers, packages",
        lambda: _process(debug()),
    )
    yield Item("agent/stacks.txt", "where its threads and tasks stand",
               lambda: _stacks(debug()), hashes_names=False)  # fmt: skip


def _of_database(wishes: Wishes, name: str) -> Iterator[Item]:
    folder, quoted = f"agent/databases/{_file_name(name)}", quote(name, safe="")
    rows = (
        ("shard", "members, roles, rollup", f"/v1/databases/{quoted}/shard", ""),
        ("policy", "budgets and their settings", f"/v1/budgets/{quoted}", ""),
        ("state", "fill levels and statements", f"/v1/budgets/{quoted}/state", SHAPES),
        ("violations", "what budgets blocked", f"/v1/budgets/{quoted}/violations", ""),
        ("policy-history", "revisions of the policy", f"/v1/budgets/{quoted}/history", ""),
    )
    for kind, about, path, look in rows:
        fetch = partial(documented, wishes.transport, path)
        yield Item(f"{folder}/{kind}.json", about, fetch, look=look)


def _of_proxy(wishes: Wishes) -> Iterator[Item]:
    proxy = wishes.proxy
    if proxy is None:
        return
    yield Item("proxy/status.json", "targets, gates, policies",
               lambda: documented(proxy, "/v1/status"), "proxy")  # fmt: skip
    yield Item("proxy/sessions.json", "a hundred of its sessions",
               lambda: documented(proxy, "/v1/sessions?limit=100"), "proxy",
               look="users and addresses that are connected")  # fmt: skip
    yield Item("proxy/metrics.prom", "its Prometheus page",
               lambda: texted(proxy, "/metrics"), "proxy")  # fmt: skip


def _of_here(wishes: Wishes) -> Iterator[Item]:
    path = wishes.settings
    yield Item("here/settings.json", "the settings file, as it is read",
               lambda: settings_of(path), "here")  # fmt: skip
    yield Item("here/machine.json", "system, clocks, disks",
               lambda: debug_machine.machine(path), "here")  # fmt: skip
    yield Item("here/packages.json", "versions of what is installed",
               debug_machine.packages, "here", hashes_names=False)  # fmt: skip
    yield Item("here/processes.json", "agents and proxies that run here",
               debug_machine.processes, "here", hashes_names=False)  # fmt: skip
    look = "whatever your log says: read it"
    for number, log in enumerate(wishes.logs, start=1):
        yield Item(
            f"logs/{number}-{_file_name(log.name)}",
            f"the last {wishes.log_lines} lines of {log}",
            partial(debug_machine.log_tail, log, wishes.log_lines),
            "here",
            keeps="tail",
            look=look,
        )
    if not wishes.logs:
        yield Item("logs/journal.log", f"the journal of {wishes.unit}",
                   lambda: debug_machine.journal(wishes.unit, wishes.log_lines), "here",
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
        return {"source": str(path), "refused": [str(fault) for fault in error.faults]}
    except HeadgateError as error:
        raise NotThere(str(error)) from None
    document = shown(settings)
    assert isinstance(document, dict)
    return {"source": str(path), **document}


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "_"
