"""Where a change of the fleet applies: everywhere, a region, a cluster, a shard, a host.

    `shard:commerce/*` ──parse_reach──► Reach ──`meets`──► Place (one database of one agent)

Patterns have one wildcard, `*`: any characters, also none, also `/`. `layers_at`
says which of several changes of one thing counts at a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol, TypeVar

MAX_PATTERN_CHARS = 127
NAME = "[A-Za-z0-9_*][A-Za-z0-9_.:/*-]{0,126}"
"""A pattern of a level, as a regular expression has it."""
_PATTERN = re.compile(NAME)


class Level(Enum):
    """From the widest to the narrowest; where two speak of the same, the narrower counts."""

    FLEET = "fleet"
    REGION = "region"
    CLUSTER = "cluster"
    SHARD = "shard"
    HOST = "host"


LEVELS = tuple(Level)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database of an agent is. Empty: not configured, and no pattern matches it."""

    region: str = ""
    cluster: str = ""
    shard: str = ""
    host: str = ""
    """The agent's name."""
    database: str = ""
    """The agent's name for the database."""


@dataclass(frozen=True)
class Reach:
    level: Level = Level.FLEET
    pattern: str = ""
    """Empty for the fleet, and for HERE."""

    def __str__(self) -> str:
        return f"{self.level.value}:{self.pattern}" if self.pattern else self.level.value

    @property
    def is_exact(self) -> bool:
        """Names one region, cluster, shard or host."""
        return self.level is not Level.FLEET and "*" not in self.pattern

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Narrower ones are higher; among patterns of a level, those that say more. A change that
        was set at the agent itself is the narrowest."""
        said = len(self.pattern.replace("*", "")) if self != HERE else MAX_PATTERN_CHARS + 1
        return LEVELS.index(self.level), self.is_exact, said

    def meets(self, place: Place) -> bool:
        if self.level is Level.FLEET or self == HERE:
            return True
        name: str = getattr(place, self.level.value)
        return bool(name) and _fits(self._pieces, name)

    def databases(self, places: Iterable[Place]) -> tuple[str, ...]:
        """The databases of an agent that it matches."""
        return tuple(place.database for place in places if self.meets(place))

    @cached_property
    def _pieces(self) -> tuple[str, ...]:
        return tuple(self.pattern.split("*"))


def _fits(pieces: Sequence[str], name: str) -> bool:
    """Each piece where it first fits after the one before. No regular expression: with many `*`
    it would try all ways to part the name, for minutes, while checks wait."""
    first, *others = pieces
    if not others:
        return name == first
    *between, last = others
    if not name.startswith(first):
        return False
    at = len(first)
    for piece in between:
        at = name.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return len(name) - at >= len(last) and name.endswith(last)


EVERYWHERE = Reach()
HERE = Reach(Level.HOST, "")
"""This agent, whatever its name. Only in its own log: no other agent ever sees it."""


def parse_reach(value: object) -> Reach:
    """`fleet`, `host` (this agent), or a level and a pattern; ValueError says what it should have
    been."""
    if not isinstance(value, str):
        raise ValueError("must be a string, such as fleet or shard:commerce/*")
    level_name, colon, pattern = value.partition(":")
    try:
        level = Level(level_name)
    except ValueError:
        known = ", ".join(level.value for level in LEVELS)
        raise ValueError(f"is {value!r}, must begin with one of {known}") from None
    if level is Level.FLEET:
        if colon:
            raise ValueError(f"is {value!r}: fleet means all of it and takes no pattern")
        return EVERYWHERE
    if value == HERE.level.value:
        return HERE
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(
            f"is {value!r}, must read like {level.value}:NAME, with 1–{MAX_PATTERN_CHARS} of "
            "A–Z, a–z, 0–9, _ . : / - and * for any"
        )
    return Reach(level, pattern)


def of_shard(shard: str) -> Reach | None:
    """None: its name cannot be said as a reach."""
    try:
        reach = parse_reach(f"{Level.SHARD.value}:{shard}")
    except ValueError:
        return None
    return reach if reach.is_exact else None


# --- which of several counts ----------------------------------------------------------------


class LayerChange(Protocol):
    """What one change says of a budget, or of a metric."""

    @property
    def name(self) -> str: ...

    @property
    def item_id(self) -> str: ...

    @property
    def n(self) -> int: ...

    @property
    def reach(self) -> Reach: ...

    def applies_to(self, place: Place) -> bool: ...


S = TypeVar("S", bound=LayerChange)


def layers_at(place: Place, said: Iterable[S]) -> dict[str, tuple[S, ...]]:
    """What is said of each name at a place, from what counts least to what counts most:

        settings file < fleet < region < cluster < shard < host < this agent

    The file lies beneath all that is said. Within a level a pattern counts less than a name, and
    less the less it says; of two alike, the later counts.
    """
    applying = [one for one in said if one.applies_to(place)]
    applying.sort(key=lambda one: (one.reach.rank, one.n, one.item_id))
    found: dict[str, tuple[S, ...]] = {}
    for one in applying:
        found[one.name] = (*found.get(one.name, ()), one)
    return found
