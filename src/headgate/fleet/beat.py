"""The beat of a fleet: one entry that one of the agents writes every few seconds.

An agent that sees it knows that its watch works, which revision the fleet has, and its size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

MAX_BEAT_BYTES = 4096
_MOST = 2**53
MAX_BEHIND_S = 60.0
MAX_AHEAD_S = 300.0
"""Longest time without a beat: another agent writes one long before that."""


@dataclass(frozen=True, slots=True)
class Beat:
    by: str
    """Name of the agent that wrote it."""
    at: float
    """Wall-clock seconds by the writer's clock, for display."""
    shards: int = 0
    """Number of shards; 0: not known."""
    n: int = 0
    """The fleet's revision when it was written, or an older one."""


def clock_told(beat: Beat | None, wall_s: float) -> str:
    """What a beat, as the store has it now, says of the reader's own clock; empty: nothing. One
    of the future tells for certain; an old one may only be the last."""
    if beat is None or not beat.at:
        return ""
    ahead_s = wall_s - beat.at
    if ahead_s < -MAX_BEHIND_S:
        return (
            f"this agent's clock is {_spoken(-ahead_s)} behind the clock of {beat.by}, which wrote "
            "the fleet's last beat. Fix this clock: rules and budgets end by it"
        )
    if ahead_s > MAX_AHEAD_S:
        return (
            f"the fleet's last beat, by {beat.by}, is {_spoken(ahead_s)} old by this agent's "
            "clock. Either this clock is ahead, or no agent reaches the fleet's store any more"
        )
    return ""


def _spoken(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"


def beat_bytes(beat: Beat) -> bytes:
    document = {"by": beat.by, "at": beat.at, "shards": beat.shards, "n": beat.n}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_beat(raw: bytes) -> Beat:
    """ValueError where it is none; what is missing, or of another kind, is not known."""
    if len(raw) > MAX_BEAT_BYTES:
        raise ValueError(f"is not a beat: it has {len(raw)} bytes")
    try:
        document = json.loads(raw)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise ValueError("is not a JSON object")
    by, at = document.get("by"), document.get("at")
    return Beat(
        by if isinstance(by, str) else "",
        float(at) if isinstance(at, int | float) and abs(at) < _MOST else 0.0,
        _count(document.get("shards")),
        _count(document.get("n")),
    )


def _count(value: object) -> int:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
    return int(value) if usable else 0  # type: ignore[call-overload]
