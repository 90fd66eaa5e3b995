"""How far an agent knows what its fleet has set, as a document; and times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from headgate.rules.api import FAR_WALL_S


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
    heard_s_ago: float | None
    """Null: never since it started."""
    stale_for_s: float | None
    """Age of what it knows; null: it is current."""
    from_cache_of: str | None
    """Time of the copy on disk that is in force; null: it is not from disk."""
    fault: str | None
    """Why it follows no source, or not the best one."""
    kept: int
    """Items that stay in force although the store has lost them."""


def iso(wall_s: float) -> str:
    at = datetime.fromtimestamp(max(0.0, min(wall_s, FAR_WALL_S)), tz=UTC)
    return at.isoformat().replace("+00:00", "Z")
