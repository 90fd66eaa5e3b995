"""What an agent knows of its fleet, and which agents a reach matches, as documents."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.changes.state import Reached


class FleetFollowingDoc(msgspec.Struct, frozen=True):
    """How far this agent knows what the fleet has set."""

    says: str
    """As one line."""
    source: str | None
    """Source that it follows; null: none now."""
    direct: bool
    """The source is the store itself, not another agent."""
    n: int
    """The fleet's revision that this agent has applied, at least."""
    revision: int
    """Revision of the store."""
    last_seen_s_ago: float | None
    """Null: never since it started."""
    stale_for_s: float | None
    """Age of what it knows; null: it is current."""
    from_cache_of: str | None
    """Time of the copy on disk that is in force; null: it is not from disk."""
    fault: str | None
    """Why it follows no source, or not the best one."""
    kept: int
    """Items that stay in force although the store has lost them."""


# --- reach ---------------------------------------------------------------------------------------

# Which agents a reach matches, as a document and as one line: the preview of a fleet's change.

MAX_NAMED = 5


class ReachedDoc(msgspec.Struct, frozen=True):
    """Which agents a reach matches, from what agents report to the fleet."""

    reach: str
    shards: int | None
    """Null: unknown; `unknown` says why."""
    hosts: int | None
    unhealthy: int | None
    """Unhealthy ones among the shards; null if no agent has reported their state."""
    sample: Sequence[str]
    """Names of some of the shards, the unhealthy ones first."""
    unknown: str | None
    """Why it is not known, or not all of it."""
    says: str
    """As one line: `reaches 37 shards, 111 hosts; commerce/-80, …`."""


def reached_doc(reached: Reached) -> ReachedDoc:
    return ReachedDoc(
        reach=str(reached.reach),
        shards=reached.shards,
        hosts=reached.hosts,
        unhealthy=reached.unhealthy,
        sample=reached.names,
        unknown=reached.unknown or None,
        says=reached_says(reached),
    )


def reached_says(reached: Reached) -> str:
    if reached.shards is None or reached.hosts is None:
        return f"which agents it reaches is unknown: {reached.unknown or 'no agent has reported'}"
    but = f"; {reached.unknown}" if reached.unknown else ""
    if not reached.shards and not reached.hosts:
        return f"matches no registered agent now; it applies to agents that register later{but}"
    sick = f" ({reached.unhealthy:,} unhealthy)" if reached.unhealthy else ""
    shards, hosts = _count(reached.shards, "shard"), _count(reached.hosts, "host")
    return f"reaches {shards}{sick}, {hosts}{_named(reached.names, reached.shards)}{but}"


def _named(names: Sequence[str], shards: int) -> str:
    if not names:
        return ""
    more = ", …" if shards > len(names[:MAX_NAMED]) else ""
    return f"; {', '.join(names[:MAX_NAMED])}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
