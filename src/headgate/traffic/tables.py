"""The bounded tables of a ledger: buckets in sets of 16 ways, patterns in sets of 4.

Nothing sweeps them: a place is looked for when one is needed. In shared memory the
same tables lie flat (native/headgate.h), and what is evicted here is evicted there.

    ways of a set    0 ………………… 11 │ 12 … 15
                     each, own         own alone

Values that rules are for each of come from clients, who can make up as many as they like. So their
buckets have three quarters of a set at most, and never make a budget's own bucket forget its debt;
and a secret says which set a key belongs to, so that nobody can aim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from headgate.traffic.ask import NEVER
from headgate.traffic.bucket import Bucket
from headgate.traffic.cost import Pattern
from headgate.traffic.hashes import mixed

WAYS = 16
EACH_WAYS = 12
"""Of them, for buckets per distinct value; the rest are for budgets' own."""
PATTERN_WAYS = 4


class Place(NamedTuple):
    row: int
    way: int


class Placed(NamedTuple):
    place: Place | None
    """None: every bucket of the set is in use."""
    evicted: Bucket | None = None


class BucketTable:
    def __init__(self, buckets: int, secret: int = 0) -> None:
        """Without a secret (0) the set is the key's low bits."""
        self._secret = secret
        self._rows: list[list[Bucket | None]] = [[None] * WAYS for _ in range(buckets // WAYS)]

    def __iter__(self) -> Iterator[Bucket]:
        return (bucket for ways in self._rows for bucket in ways if bucket is not None)

    def find(self, key: int) -> Bucket | None:
        ways = self._rows[self._row_of(key)]
        return next((b for b in ways if b is not None and b.key == key), None)

    def at(self, place: Place) -> Bucket:
        bucket = self._rows[place.row][place.way]
        assert bucket is not None, "a way that was filled is never emptied"
        return bucket

    def put(self, place: Place, bucket: Bucket) -> None:
        self._rows[place.row][place.way] = bucket

    def replace(self, bucket: Bucket) -> None:
        """One that is there, by its key."""
        ways = self._rows[self._row_of(bucket.key)]
        known = [way is not None and way.key == bucket.key for way in ways]
        ways[known.index(True)] = bucket

    def placed(self, fresh: Bucket, now_ns: int) -> Placed:
        """Where the bucket is, or, with `fresh`, is from now on."""
        row = self._row_of(fresh.key)
        ways = self._rows[row]
        for way, bucket in enumerate(ways):
            if bucket is not None and bucket.key == fresh.key:
                return Placed(Place(row, way))
        chosen = _way_to_fill(ways, fresh.is_own, now_ns)
        if chosen is None:
            return Placed(None)
        evicted, ways[chosen] = ways[chosen], fresh
        return Placed(Place(row, chosen), evicted)

    def _row_of(self, key: int) -> int:
        place = mixed(key ^ self._secret) if self._secret else key
        return place & (len(self._rows) - 1)


class Room(IntEnum):
    """What has to give way, the cheapest first."""

    RESERVED = 0
    """Nothing: a free way that only a budget's own bucket may have."""
    FREE = 1
    EMPTY = 2
    EMPTY_OWN = 3
    OWING = 4
    """Forgiven."""
    OWING_OWN = 5
    """Forgiven, but never for the sake of a value that a client may have made up."""
    NONE = 6


def _way_to_fill(ways: Sequence[Bucket | None], own: bool, now_ns: int) -> int | None:
    """Of the cheapest kind the one that has been empty for longest, or will be soonest."""
    rooms = ((_room(bucket, way, own, now_ns), way) for way, bucket in enumerate(ways))
    kind, _, way = min((kind, _time_of(ways[way]), way) for kind, way in rooms)
    return None if kind is Room.NONE else way


def _room(bucket: Bucket | None, way: int, own: bool, now_ns: int) -> Room:
    if way >= EACH_WAYS and not own:
        return Room.NONE
    if bucket is None:
        return Room.RESERVED if way >= EACH_WAYS else Room.FREE
    if bucket.statements:
        return Room.NONE
    if bucket.empty_at_ns <= now_ns:
        return Room.EMPTY_OWN if bucket.is_own else Room.EMPTY
    if not bucket.is_own:
        return Room.OWING
    return Room.OWING_OWN if own else Room.NONE


def _time_of(bucket: Bucket | None) -> int:
    return 0 if bucket is None else bucket.empty_at_ns


class PatternTable:
    def __init__(self, patterns: int) -> None:
        rows = range(patterns // PATTERN_WAYS)
        self._rows: list[list[Pattern | None]] = [[None] * PATTERN_WAYS for _ in rows]
        self.evictions = 0

    def find(self, key: int) -> Pattern | None:
        return next((p for p in self._ways_of(key) if p is not None and p.key == key), None)

    def put(self, pattern: Pattern) -> None:
        """In its own way, a free one, or that of the one not seen for longest."""
        ways = self._ways_of(pattern.key)
        oldest, oldest_ns = 0, NEVER
        for way, known in enumerate(ways):
            if known is None or known.key == pattern.key:
                ways[way] = pattern
                return
            if known.last_ns < oldest_ns:
                oldest, oldest_ns = way, known.last_ns
        ways[oldest] = pattern
        self.evictions += 1

    def _ways_of(self, key: int) -> list[Pattern | None]:
        return self._rows[key & (len(self._rows) - 1)]
