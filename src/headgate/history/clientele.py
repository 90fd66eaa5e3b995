"""Which clients have a record of their own, in bounded memory.   Recorder ──a new name──► Clientele

A client may make up a name for each of its jobs. While there is room, every name has a record.
After that, a name that checks again replaces one that has not checked for a while; the rest are
counted in groups (base/crowds.py). So names that are used once replace nobody, and a client that
keeps checking is shown by name.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import Any

from headgate.base.crowds import OTHER, crowds_of
from headgate.check.model import Check, Verdict

IDLE_S = 60.0
"""A client that has not checked for this long gives its place to another one."""
CROWDS_PER_CLIENT, MIN_CROWDS = 0.25, 8
"""Room for groups, besides the room for clients: groups share few levels."""
MAX_IDLE = 256
"""How many idle clients to look for at a time."""
MAX_MET = 4096
"""Names without a record that may check again."""
MAX_TOKENS = 4096
"""Levels of recent new names. Levels of clients with a record are known anyway."""

Place = tuple[str, str]
"""(database, client)"""


class ClientRecord:
    """One client on one database, as it was last seen."""

    __slots__ = (
        "admitted",
        "admitted_told",
        "check",
        "detailed_at",
        "exempted",
        "last_at",
        "last_verdict",
        "rejected",
        "rejected_by",
        "rejected_since",
    )

    def __init__(self, check: Check) -> None:
        self.check = check
        """Its last health: which metrics apply to the client."""
        self.admitted = 0
        self.admitted_told = 0
        """How many of them were already added to minutes and totals."""
        self.exempted = 0
        """Those that a metric would have rejected; counted by rule."""
        self.rejected = 0
        self.detailed_at = 0.0
        """When one of its rejections was last stored in full."""
        self.last_at = 0.0
        self.last_verdict = Verdict.OK
        self.rejected_since: float | None = None
        self.rejected_by = ""

    @property
    def asked(self) -> int:
        return self.admitted + self.rejected

    def take_over(self, gone: ClientRecord) -> None:
        """Add what another record counted; all of that was reported already."""
        self.admitted += gone.admitted
        self.admitted_told += gone.admitted_told
        self.exempted += gone.exempted
        self.rejected += gone.rejected
        self.last_at = max(self.last_at, gone.last_at)


Leaves = Callable[[Place, ClientRecord], None]
"""Called with the client that has lost its place."""


class Clientele:
    def __init__(self, max_clients: int, leaves: Leaves) -> None:
        self.records: dict[Place, ClientRecord] = {}
        """Read directly on the hot path."""
        self._max_clients = max_clients
        self._max_crowds = max(MIN_CROWDS, int(CROWDS_PER_CLIENT * max_clients))
        self._leaves = leaves
        self._crowds: set[Place] = set()
        """Keys that are groups, not clients; without `other`, which always has a place."""
        self._others = 0
        self._idle: dict[bool, deque[tuple[Place, int]]] = {True: deque(), False: deque()}
        """Groups and clients that may have to go, longest idle first, with their number of checks
        at that time."""
        self._lacking: set[bool] = set()
        self._met: OrderedDict[Place, None] = OrderedDict()
        self._tokens: OrderedDict[Place, tuple[str, bool]] = OrderedDict()
        """(database, level) → the last name that had it, and whether other names had it."""
        self._joined: dict[Place, tuple[str, ClientRecord]] = {}
        """(database, all levels but the first) → their group, while there is no room."""

    def meet(self, database: str, check: Check) -> tuple[str, ClientRecord]:
        """What a client without a record is counted under from now on, or this time."""
        client = check.identity.text
        first, _, rest = client.partition(":")
        joined = self._joined.get((database, rest))
        if joined is not None and self._is_news(database, client, first):
            return joined
        for token in check.identity.tokens:
            self._note(database, token, client)
        record = self._place((database, client), check, is_crowd=False)
        if record is not None:
            return client, record
        joined = self._join(database, client, check)
        if joined[0] == f"{OTHER}:{rest}":
            self._joined[database, rest] = joined
        return joined

    def _is_news(self, database: str, client: str, first: str) -> bool:
        """A name that is used for the first time, as are its most specific level and, in a
        flood of such names, nearly all: noted, and no more."""
        place, token = (database, client), (database, first)
        if place in self._met or token in self._tokens:
            return False
        self._met[place] = None
        self._tokens[token] = (client, False)
        _bound(self._met, MAX_MET)
        _bound(self._tokens, MAX_TOKENS)
        return True

    def crowds(self, database: str, client: str) -> Iterator[str]:
        return crowds_of(client, lambda token: self._is_shared(database, token))

    def tokens(self, database: str) -> set[str]:
        """Every level of every client that checked recently, with a record or without."""
        found = {token for place, token in self._tokens if place == database}
        for place, client in self.records:
            if place == database:
                found.update(client.split(":"))
        return found - {OTHER}

    def look_for_idle(self, wall_s: float) -> None:
        """About once a second, after all counts were reported; only if a client needs a place and
        found none."""
        self._joined.clear()
        for is_crowd in self._lacking:
            silent = (
                (record.last_at, place, record.asked)
                for place, record in self.records.items()
                if record.last_at <= wall_s - IDLE_S
                and (place in self._crowds) is is_crowd
                and place[1] != OTHER
            )
            oldest = nsmallest(MAX_IDLE, silent)
            self._idle[is_crowd] = deque((place, asked) for _, place, asked in oldest)
        self._lacking.clear()

    def forget_before(self, wall_s: float) -> None:
        for place in [p for p, record in self.records.items() if record.last_at < wall_s]:
            self._leaves(place, self._remove(place))

    # --- room ------------------------------------------------------------------------------

    def _join(self, database: str, client: str, check: Check) -> tuple[str, ClientRecord]:
        for crowd in self.crowds(database, client):
            place = (database, crowd)
            record = self.records.get(place) or self._place(place, check, is_crowd=True)
            if record is not None:
                return crowd, record
        raise AssertionError("the last group always has a place")

    def _place(self, place: Place, check: Check, *, is_crowd: bool) -> ClientRecord | None:
        if place[1] == OTHER:
            self._others += 1
        elif self._is_full(is_crowd=is_crowd) and not self._makes_room(place, is_crowd=is_crowd):
            return None
        elif is_crowd:
            self._crowds.add(place)
        record = self.records[place] = ClientRecord(check)
        return record

    def _is_full(self, *, is_crowd: bool) -> bool:
        if is_crowd:
            return len(self._crowds) >= self._max_crowds
        return len(self.records) - len(self._crowds) - self._others >= self._max_clients

    def _makes_room(self, place: Place, *, is_crowd: bool) -> bool:
        """Only for a name that checked before: single-use names must not replace others."""
        if place not in self._met:
            self._met[place] = None
            _bound(self._met, MAX_MET)
            return False
        self._met.move_to_end(place)
        idle = self._idle[is_crowd]
        while idle:
            old, asked = idle.popleft()
            record = self.records.get(old)
            if record is None or record.asked != asked:
                continue
            self._gives_way(old)
            if not self._is_full(is_crowd=is_crowd):  # A wider crowd may have had the place.
                self._met.pop(place, None)
                return True
        self._lacking.add(is_crowd)
        return False

    def _gives_way(self, place: Place) -> None:
        """Its counts go to its like, so that what is shown of a level stays whole."""
        gone = self._remove(place)
        _, crowd = self._join(*place, gone.check)
        crowd.take_over(gone)
        self._leaves(place, gone)

    def _remove(self, place: Place) -> ClientRecord:
        self._joined.clear()
        self._crowds.discard(place)
        self._others -= place[1] == OTHER
        return self.records.pop(place)

    # --- levels ----------------------------------------------------------------------------

    def _note(self, database: str, token: str, client: str) -> None:
        known = self._tokens.get((database, token))
        shared = known is not None and (known[1] or known[0] != client)
        self._tokens[database, token] = (client, shared)
        self._tokens.move_to_end((database, token))
        _bound(self._tokens, MAX_TOKENS)

    def _is_shared(self, database: str, token: str) -> bool:
        known = self._tokens.get((database, token))
        return known is not None and known[1]


def _bound(noted: OrderedDict[Place, Any], most: int) -> None:
    if len(noted) > most:
        noted.popitem(last=False)
