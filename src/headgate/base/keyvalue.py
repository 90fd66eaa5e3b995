"""What a fleet's store speaks in: keys with values, revisions, changes. Pure values.

A revision counts every commit of the store; an entry has that of the commit which last put it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries under some prefixes, at one revision, by key."""

    entries: tuple[Entry, ...]
    revision: int
    store_id: str
    """Identifies the data, not the server. A different one means that the store was created
    again, and older revisions have no meaning."""

    @property
    def newest(self) -> int:
        """The last revision that it knows of. Of another agent it may be beyond `revision`: of
        that commit there may be more."""
        return max([self.revision, *(entry.revision for entry in self.entries)])


@dataclass(frozen=True, slots=True)
class KeyEvent:
    key: str
    value: bytes | None
    """None: it was deleted."""
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Commits in order, each complete: nothing up to `revision` comes later. An event after
    `revision` belongs to the newest commit, which may have more; a reader that continues from
    `revision` gets that event again."""

    events: tuple[KeyEvent, ...]
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
    """None deletes it."""
    lease: int = 0
    """The store deletes it some time after that lease ends; 0: never."""


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    ttl_s: float
    """As granted: a store may grant more than requested. A lease only removes old entries, sooner
    or later; no decision depends on its end."""


# --- values as they are stored -------------------------------------------------------------
# JSON that other programs have put into a store.   bytes ──► Mapping, or ValueError with a reason
#
# One value that cannot be encoded again would break the whole page, or the whole answer. It is
# rejected where it is read, and the rest is used.


def read_object(raw: bytes) -> Mapping[str, Any]:
    """An object, each of whose texts can be encoded again."""
    try:
        # Decoded here: json.loads takes bytes that are no UTF-8, such as halves of a character.
        document = json.loads(raw.decode())
        if b"\\ud" in raw.lower():
            # The same, escaped: JSON allows characters that no answer and no file can hold.
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise ValueError("is not a JSON object")
    return document
