"""What a fleet's store speaks in: keys with values, revisions, changes. Pure values.

A revision counts every commit of the store; an entry has that of the commit which last put it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries under some prefixes, as they stood at one revision, by key."""

    entries: tuple[Entry, ...]
    revision: int
    store_id: str
    """Of the data, not of the server: another one means that it was made anew, and that
    revisions of before say nothing."""

    @property
    def newest(self) -> int:
        """The last revision that it knows of. Of another agent it may be beyond `revision`: of
        that commit there may be more."""
        return max([self.revision, *(entry.revision for entry in self.entries)])


@dataclass(frozen=True, slots=True)
class Event:
    key: str
    value: bytes | None
    """None: it is gone."""
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What commits did, in order and each whole: nothing up to `revision` comes after. An event
    beyond it is of the newest commit, of which more may come: who goes on from `revision` is told
    of that one again."""

    events: tuple[Event, ...]
    revision: int

    @property
    def newest(self) -> int:
        """The last revision that it knows of."""
        return max([self.revision, *(event.revision for event in self.events)])


@dataclass(frozen=True, slots=True)
class Compare:
    """A commit goes through only if this entry still is of that revision; 0: there is none."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes | None
    """None takes it out."""
    lease: int = 0
    """It is collected some time after that lease ran out; 0: it stays."""


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    ttl_s: float
    """As granted: a store may give more than was asked for. It collects garbage, sooner or
    later; nothing is ever decided by its end."""
