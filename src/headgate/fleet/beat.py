"""The beat of a fleet, one entry that an agent writes every few seconds; and when agents write.

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


# --- timing --------------------------------------------------------------------------------------

# When agents of a fleet contact their store. Pure: random numbers are arguments.
#
# What all agents would do at once is spread over a time that grows with the fleet. So the store
# gets the same number of requests per second from ten shards as from ten thousand.

CONTACTS_PER_S = 200
"""Contacts per second that a whole fleet may make with its store, for each kind of contact."""
LEAST_SPREAD_S, MOST_SPREAD_S = 0.5, 60.0
LONGEST_RETRY_S = 5.0
"""Seconds between two tries, in a fleet that is small enough for it."""
AGENTS_PER_SHARD = 3
"""Spreads are counted in shards; this factor is for what every agent does, not every shard."""
BEATERS_PER_S = 50
LEAST_BEAT_SPREAD_S, MOST_BEAT_SPREAD_S = 1.0, 240.0
OTHERS_BEAT_AFTER = 2
"""Missed intervals after which an agent other than the last writer writes the beat."""
SILENT_AFTER = 3
"""Missed intervals after which an agent assumes that its watch is broken."""
MOST_FLAPS = 5


@dataclass(frozen=True, slots=True)
class FleetTiming:
    beat_interval_s: float = 2.0
    silent_after_s: float = 6.0
    """Without a message for this long, the watch counts as dead and its data as stale."""
    timeout_s: float = 2.0
    """Timeout of one request."""
    return_after_s: float = 10.0
    """A better source must answer for this long before the agent switches back to it."""
    longest_return_s: float = 300.0
    """The same, for a source that soon failed again several times."""

    @classmethod
    def of(cls, *, beat_interval_s: float = 2.0, timeout_s: float = 2.0) -> FleetTiming:
        """From what is set: the rest follows."""
        return cls(
            beat_interval_s=beat_interval_s,
            silent_after_s=SILENT_AFTER * beat_interval_s,
            timeout_s=timeout_s,
        )

    @property
    def probe_every_s(self) -> float:
        """How often to test whether a better source answers again."""
        return self.return_after_s / 2

    def returns_after_s(self, flaps: int) -> float:
        """Doubled for each time that it was lost again soon."""
        return min(self.longest_return_s, self.return_after_s * 2.0 ** min(flaps, MOST_FLAPS))


def spread_s(shards: int) -> float:
    """Over how long a fleet of so many shards spreads what each of them does once."""
    return min(MOST_SPREAD_S, max(LEAST_SPREAD_S, shards / CONTACTS_PER_S))


def first_contact_in_s(shards: int | None, roll: float) -> float:
    """After a start. None: nothing is known, not even rules, and there is no time to lose."""
    return roll * (LEAST_SPREAD_S if shards is None else spread_s(shards))


def retry_in_s(attempt: int, roll: float, spread: float) -> float:
    """Seconds until the next try, after `attempt` failed ones (0: it failed just now). A fleet of
    ten thousand spreads each try, so the store gets no more requests than at a start."""
    if attempt <= 0:
        return roll * spread
    longest = max(spread, LONGEST_RETRY_S)
    # The exponent is bounded: an outage of weeks must not end in an overflow.
    return (0.5 + roll) * min(longest, spread * 2.0 ** min(attempt - 1, 16))


def fallback_in_s(roll: float, spread: float, *, cold: bool) -> float:
    """Until a replica's agent turns to the store, because its primary's agent is away. `cold`: it
    has never answered since the start, as when a whole fleet starts: primaries go first."""
    return spread * (roll + cold)


def beat_spread_s(shards: int) -> float:
    return min(MOST_BEAT_SPREAD_S, max(LEAST_BEAT_SPREAD_S, shards / BEATERS_PER_S))


def beat_in_s(timing: FleetTiming, roll: float, *, mine: bool, ever: bool, shards: int) -> float:
    """Seconds from the last beat (or the start of the watch) until this agent writes one.

    `mine`: this agent wrote the last one; `ever`: there is a last one. The first of N other agents
    writes about 1/N of the spread after two intervals; the rest see that beat and do not write.
    """
    if mine:
        return timing.beat_interval_s
    waited_s = OTHERS_BEAT_AFTER * timing.beat_interval_s if ever else 0.0
    return waited_s + roll * beat_spread_s(shards)
