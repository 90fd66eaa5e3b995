"""How far an agent knows what its fleet has set, as a document; and times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from headgate.wire.rules import FAR_WALL_S


class FleetFollowingDoc(msgspec.Struct, frozen=True):
    """How far this agent knows what the fleet has set."""

    says: str
    """In a line."""
    source: str | None
    """Whom it hears it from; null: from nobody just now."""
    direct: bool
    """That is the store itself, not another agent."""
    n: int
    """The fleet's revision that this agent has come to at least."""
    revision: int
    """Of the store."""
    heard_s_ago: float | None
    """Null: never since it started."""
    stale_for_s: float | None
    """How old what it knows may be; null: it is current."""
    from_cache_of: str | None
    """What is in force is from its disk, and of that time; null: it is not."""
    fault: str | None
    """Why nobody is followed, or not who should be."""
    kept: int
    """Items that stay in force although the store has lost them."""


def iso(wall_s: float) -> str:
    at = datetime.fromtimestamp(max(0.0, min(wall_s, FAR_WALL_S)), tz=UTC)
    return at.isoformat().replace("+00:00", "Z")
