"""Which users and programs work in the database, and which of them never check.

sessions the server lists ──► Presence, added up over looks ──suspects──► those without a client
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

OURS = "headgate"
MAX_GROUPS = 256
FAINT = 0.01
"""Less activity than this is dropped."""
GONE_LOOKS = 6
"""After so many looks without a session its owner is gone, however active it was before."""
_WORDS = re.compile(r"[\s:/,;|()\[\]]+")


class SessionGroup(NamedTuple):
    """Sessions of one user, program and host, at one look."""

    user: str
    application: str
    """Empty if the server does not know it."""
    host: str
    sessions: int
    active: int
    """Sessions that were active."""

    @property
    def who(self) -> SessionOwner:
        return SessionOwner(self.user, self.application, self.host)


class SessionOwner(NamedTuple):
    user: str
    application: str
    host: str

    def words(self) -> frozenset[str]:
        """What could be a level of a client's name."""
        parts = (self.user, self.application, *_WORDS.split(self.application))
        return frozenset(part.lower() for part in parts if part)


@dataclass(frozen=True, slots=True)
class Presence:
    """The sessions of the last while: older looks count less and less."""

    looks: float = 0.0
    active: Mapping[SessionOwner, float] = field(default_factory=dict)
    sessions: Mapping[SessionOwner, int] = field(default_factory=dict)
    """At the last look."""
    unseen: Mapping[SessionOwner, int] = field(default_factory=dict)
    """Looks since the last session of those who have none now."""

    def after(self, groups: Iterable[SessionGroup], *, keep: float) -> Presence:
        """`keep`: how much the looks so far still count."""
        sessions: dict[SessionOwner, int] = {}
        active = {who: kept * keep for who, kept in self.active.items() if kept * keep > FAINT}
        for group in list(groups)[:MAX_GROUPS]:
            active[group.who] = active.get(group.who, 0.0) + group.active
            sessions[group.who] = sessions.get(group.who, 0) + group.sessions
        unseen = {who: self.unseen.get(who, 0) + 1 for who in active if who not in sessions}
        here = [who for who in active if unseen.get(who, 0) < GONE_LOOKS]
        most = sorted(here, key=lambda who: -active[who])[:MAX_GROUPS]
        return Presence(
            self.looks * keep + 1,
            {who: active[who] for who in most},
            sessions,
            {who: unseen[who] for who in most if who in unseen},
        )


@dataclass(frozen=True, slots=True)
class Suspect:
    """Works in the database, and never checked with a name that could be its own."""

    who: SessionOwner
    sessions: int
    active_mean: float
    """Active sessions, on average."""
    share: float
    """Share of all activity."""


def suspects(presence: Presence, tokens: Collection[str]) -> tuple[Suspect, ...]:
    """Most active first. `tokens`: every level of every client that checked recently."""
    known = frozenset(token.lower() for token in tokens) | {OURS}
    total = sum(presence.active.values())
    found = [
        Suspect(who, presence.sessions.get(who, 0), active / presence.looks, active / total)
        for who, active in presence.active.items()
        if active > FAINT and not who.words() & known
    ]
    return tuple(sorted(found, key=lambda s: (-s.share, s.who)))
