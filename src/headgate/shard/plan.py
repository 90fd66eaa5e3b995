"""A database's place in its shard, as settings say it; and how agents that are found are reached.

settings ──► ShardPlan          a found server, `discover` ──found_peer──► PeerPlan
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headgate.base.ports import FenceProbe, RoleProbe
from headgate.shard.topology import Downstream

HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])"
NAMELESS = ("", "walreceiver")
"""What Postgres calls a replica that was given no name."""


@dataclass(frozen=True, slots=True)
class PeerPlan:
    name: str
    url: str
    database: str


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One database's place in its shard, as assemble.py hands it over."""

    database: str
    shard: str
    member: str
    labels: Mapping[str, str]
    peers: tuple[PeerPlan, ...]
    discover: str | None
    collect_interval_s: float
    open_role_probe: Callable[[], RoleProbe]
    correct_clock: Callable[[float, float], None]
    connection: object = None
    """Compared on reload: an equal plan keeps its watcher and links."""
    open_fence_probe: Callable[[], FenceProbe | None] = lambda: None
    """None if a server that steps down closes its connections."""
    patroni: str = ""
    """The scope of its Patroni cluster; empty if it has none."""

    def key(self) -> tuple[object, ...]:
        return (
            self.shard,
            self.member,
            tuple(sorted(self.labels.items())),
            self.peers,
            self.discover,
            self.collect_interval_s,
            self.connection,
            self.patroni,
        )


def fits(template: str, url: str) -> bool:
    pattern = re.escape(template).replace(r"\{host\}", HOST).replace(r"\{name\}", HOST)
    return re.fullmatch(pattern, url) is not None


def found_peer(plan: ShardPlan, template: str, found: Downstream) -> PeerPlan | None:
    """By its own name, where it has one that is not everybody's."""
    own = "" if found.name in NAMELESS else found.name
    name, host = own or found.host, found.host or own
    if not name:
        return None
    shown = f"[{host}]" if ":" in host else host
    url = template.replace("{host}", shown).replace("{name}", name)
    return PeerPlan(as_name(name), url, plan.database)


def as_name(text: str) -> str:
    """A name that operators can type: addresses have colons, and some names have spaces."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:63] or "member"
