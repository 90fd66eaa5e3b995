"""The changes of a shard, which its agents keep equal without a shared store. Pure.

an item's bytes ──version_of──► Version   of two the higher counts, at every agent, in any order
all of a shard ──► Inventory ──► digest   two agents of one digest have the same changes
versions of both ──compared──► what to send, and what to ask for

A removed change stays as removed: otherwise an agent that was away would bring it back.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headgate.base.keyvalue import read_object
from headgate.changes.model import ITEMS, Change, shard_items, unquoted
from headgate.changes.reach import HERE
from headgate.changes.state import (
    MAX_ITEM_BYTES,
    MAX_WALL_S,
    ChangeName,
    ends_at,
    is_taken_out,
    name_of,
    redated,
    stands,
)

MAX_SHARED_BYTES = 60_000
"""Of one change: with what is said around it, it fits into a request by default."""
MAX_SHARED_N = 10**11
"""An agent that has a change of this number must use higher ones for its own."""
MAX_TOLD_N = MAX_SHARED_N // 10
MAX_AHEAD_S = 366 * 86_400.0
"""For changes of another agent: those that leave no room above them are rejected."""
MAX_BY_CHARS = 1000
TICK_S = 0.001
OFFER_BYTES = 48 * 1024
"""Of changes in one request."""
ANSWER_BYTES = 128 * 1024
"""Of changes in one answer: a peer's line takes 256 KiB."""
PAGE_BYTES = 32 * 1024
"""Of versions in one request."""
KEEP_S = 30 * 86_400.0
"""How long a change that is over is kept, for agents that were away."""
MAX_OVER = 10_000
"""Of one shard; beyond, those that have been over for longest are dropped."""

APART = "\0"
"""No id has it: between the id of a change and its shard, where another has its name."""
MAX_KEY_CHARS = 1000

Entry = tuple[str, bytes]
"""A key, and the bytes of its item."""


class Version(NamedTuple):
    """Compared as it is written. What is taken out counts against all that was there before: nobody
    who changed it without a word of that brings it back, whatever number that change got. Only who
    sets it again, and knows, comes after it. Else the later one counts; who builds on a version
    never dates the next one before it (`succeeding`)."""

    again: int
    taken_out: bool
    set_at: float
    n: int
    set_by: str
    mark: int = 0
    """Of its bytes: of two that differ in nothing else, one counts everywhere."""


def check_room_above(version: Version, wall_s: float) -> None:
    """ValueError for one that no later change could come after: nobody could lift it."""
    if max(version.n, version.again) > MAX_TOLD_N:
        raise ValueError(f"has a number that is too high: n {version.n}, again {version.again}")
    if version.set_at > wall_s + MAX_AHEAD_S:
        raise ValueError(f"was set {version.set_at - wall_s:,.0f} s from now: check the clocks")


def version_of(raw: bytes) -> Version:
    """Of any kind, also one that this version does not know; ValueError where it is no item."""
    if len(raw) > MAX_ITEM_BYTES:
        raise ValueError(f"has {len(raw):,} bytes, at most {MAX_ITEM_BYTES:,} are allowed")
    document = read_object(raw)
    n, value, by = document.get("n"), document.get("value"), document.get("set_by")
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MAX_SHARED_N:
        raise ValueError(f"is not an item: n is {str(n)[:40]}, must be 0 to {MAX_SHARED_N:,}")
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("is not an item: its value is not an object")
    if not isinstance(by, str) or len(by) > MAX_BY_CHARS:
        raise ValueError("is not an item: its author is not text")
    set_at = document.get("set_at")
    if isinstance(set_at, bool) or not isinstance(set_at, int | float):
        raise ValueError("is not an item: its time is not a number")
    if not abs(set_at) < MAX_WALL_S or math.isnan(set_at):
        raise ValueError(f"is not an item: {str(set_at)[:40]} is not a time")
    again = document.get("again") or 0
    if isinstance(again, bool) or not isinstance(again, int) or not 0 <= again <= MAX_SHARED_N:
        raise ValueError(f"is not an item: it was set again {str(again)[:40]} times")
    taken_out = value is None or bool(value.get("lifted_by"))
    return Version(again, taken_out, float(set_at), n, by, _mark(raw))


def succeeding(item: Change, before: Change | None) -> Change:
    """A change of a shard as it is put in the place of one that is known."""
    if before is None:
        return replace(item, again=0)
    is_anew = is_taken_out(before) and not is_taken_out(item)
    set_at = max(item.set_at, round(before.set_at + TICK_S, 3))
    return replace(redated(item, set_at), again=(before.again or 0) + is_anew)


def counts_over(item: Change, other: Change) -> bool:
    """For one place of a shard. If both are equal in this, a merge compares their bytes."""
    return item != other and _order(item) >= _order(other)


def _order(item: Change) -> Version:
    return Version(item.again or 0, is_taken_out(item), item.set_at, item.n, item.set_by)


def _mark(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


def shard_of(key: str) -> str:
    """Whose shard's item lies under a key; empty: it is of none."""
    top, _, rest = key.removeprefix(ITEMS).partition("/")
    shard, _, name = rest.partition("/")
    return unquoted(shard) if key.startswith(ITEMS) and top == "shard" and name else ""


# --- what one agent has --------------------------------------------------------------------


class VersionPage(NamedTuple):
    """All that an agent has between two keys, as versions."""

    have: tuple[tuple[str, Version], ...]
    upto: str
    """The last key of it; empty: nothing comes after it."""


class Inventory:
    """Which version of each change of one shard an agent has."""

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}
        self._sum = 0
        self._sorted: list[str] | None = []

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def digest(self) -> str:
        """A sum, so that it costs what a change changes, in whatever order they came."""
        return f"{self._sum:064x}"

    def has(self, key: str) -> bool:
        return key in self._versions

    def version(self, key: str) -> Version | None:
        return self._versions.get(key)

    def put(self, key: str, version: Version | None) -> None:
        before = self._versions.get(key)
        if (before is None) is not (version is None):
            self._sorted = None
        if before is not None:
            self._sum = (self._sum - _element(key, before)) % _MODULUS
        if version is None:
            self._versions.pop(key, None)
        else:
            self._versions[key] = version
            self._sum = (self._sum + _element(key, version)) % _MODULUS

    def lacks(self, key: str, version: Version) -> bool:
        known = self._versions.get(key)
        return known is None or known < version

    def page(self, after: str, max_bytes: int = PAGE_BYTES) -> VersionPage:
        """What comes behind a key, as much as goes into one request."""
        keys, size_bytes, have = self._keys(), 0, list[tuple[str, Version]]()
        start = bisect_right(keys, after) if after else 0
        for key in keys[start:]:
            size_bytes += len(key) + len(self._versions[key].set_by.encode()) + 80
            if have and size_bytes > max_bytes:
                return VersionPage(tuple(have), have[-1][0])
            have.append((key, self._versions[key]))
        return VersionPage(tuple(have), "")

    def between(self, after: str, upto: str) -> list[str]:
        """Keys behind the one and up to the other; empty: without a bound."""
        keys = self._keys()
        start = bisect_right(keys, after) if after else 0
        return keys[start : bisect_right(keys, upto) if upto else len(keys)]

    def _keys(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self._versions)
        return self._sorted


_MODULUS = 2**256


def _element(key: str, version: Version) -> int:
    told = "\0".join([key, *map(str, version)])
    return int.from_bytes(hashlib.sha256(told.encode()).digest(), "big")


class Compared(NamedTuple):
    newer: list[str]
    """Keys of which this agent has a version that the other lacks."""
    want: list[str]
    """Keys of which the other has a version that this agent lacks."""


def compared(mine: Inventory, theirs: VersionPage, after: str) -> Compared:
    """`theirs`: all that the other has behind `after`, up to the end of the page."""
    known = dict(theirs.have)
    newer = []
    for key in mine.between(after, theirs.upto):
        version = mine.version(key)
        if version is not None and (key not in known or known[key] < version):
            newer.append(key)
    return Compared(newer, [key for key, version in known.items() if mine.lacks(key, version)])


def fitting(entries: Sequence[Entry], max_bytes: int) -> int:
    """How many of them go into one message: at least one."""
    size_bytes = 0
    for count, (key, raw) in enumerate(entries):
        size_bytes += len(key) + len(raw) + 8
        if count and size_bytes > max_bytes:
            return count
    return len(entries)


class ShardItems:
    """Of all shards of an agent: its changes by key, and an inventory of each shard."""

    def __init__(self) -> None:
        self.items: dict[str, Change | None] = {}
        """None: only a newer version can read it. It is passed on as it is."""
        self.inventories: dict[str, Inventory] = {}

    def of(self, shard: str) -> Inventory:
        return self.inventories.setdefault(shard, Inventory())

    def put(self, key: str, raw: bytes, item: Change | None) -> None:
        """ValueError where its version cannot be read."""
        self.of(shard_of(key)).put(key, version_of(raw))
        self.items[key] = item

    def drop(self, key: str) -> None:
        self.of(shard_of(key)).put(key, None)
        self.items.pop(key, None)

    def is_as(self, key: str, raw: bytes) -> bool:
        """Whether these are its very bytes."""
        version = self.of(shard_of(key)).version(key)
        return version is not None and version.mark == _mark(raw)


def is_of(shard: str, key: str) -> bool:
    return len(key) <= MAX_KEY_CHARS and key.startswith(shard_items(shard)) and bool(shard_of(key))


# --- names -----------------------------------------------------------------------------------


def own_names(items: Iterable[Change]) -> dict[ChangeName, Change]:
    """Of an agent's own log, by name. A shard's change, which another agent has made, may have the
    name of one that was set here: that one keeps it, and the other has its shard behind its own."""
    by_name: dict[ChangeName, list[Change]] = {}
    for item in items:
        by_name.setdefault(name_of(item), []).append(item)
    found: dict[ChangeName, Change] = {}
    for alike in by_name.values():
        found.update(_named_apart(alike))
    return found


def rename(
    items: MutableMapping[ChangeName, Change], new: Iterable[Change], shards: Iterable[str]
) -> None:
    """The same, of what has changed; in place."""
    suffixes = ["", *(f"{APART}{place}" for place in (HERE.level.value, *shards))]
    for item in new:
        names = [(item.kind, f"{item.id}{suffix}") for suffix in suffixes]
        alike = {known.key: known for name in names if (known := items.pop(name, None))}
        items.update(_named_apart([*(alike | {item.key: item}).values()]))


def _named_apart(alike: Sequence[Change]) -> Iterator[tuple[ChangeName, Change]]:
    first, *others = sorted(alike, key=lambda one: (is_taken_out(one), shard_of(one.key), one.key))
    yield name_of(first), first
    for other in others:
        yield apart(other), other


def apart(item: Change) -> ChangeName:
    """What it is called where its name is another's."""
    return item.kind, f"{item.id}{APART}{shard_of(item.key) or item.reach.level.value}"


# --- what may be dropped -------------------------------------------------------------------


def collectable(items: Mapping[str, Change | None], wall_s: float) -> list[str]:
    """Keys of what has been over for long; `items`: of one shard. Who is offered one of these
    again does not take it."""
    over = sorted(
        (_over_since(item), key)
        for key, item in items.items()
        if item is not None and not stands(item, wall_s)
    )
    most = max(0, len(over) - MAX_OVER)
    old = (key for since_s, key in over[most:] if since_s < wall_s - KEEP_S)
    return [*(key for _, key in over[:most]), *old]


def is_long_over(item: Change, wall_s: float) -> bool:
    return not stands(item, wall_s) and _over_since(item) < wall_s - KEEP_S


def _over_since(item: Change) -> float:
    if is_taken_out(item):
        return item.set_at
    try:
        return ends_at(item) or item.set_at
    except ValueError:
        return item.set_at


# --- what is said --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """What one agent of a shard tells another of its changes."""

    shard: str
    database: str
    """The other agent's name for the database."""
    sender: str
    """The member that sends it."""
    digest: str
    """Of everything that it has."""
    entries: tuple[Entry, ...] = ()
    """What the other may lack."""
    page: VersionPage | None = None
    """Some of what it has, where the digests differ."""
    after: str = ""
    """The key behind which the page begins."""
    wait_s: float = 0.0
    """How long the answer may be delayed while nothing changes."""
    is_standby: bool = False
    """The sender is the standby of the other."""
    cluster: str = ""
    """The identifier of its server's cluster; empty if it reports none."""


@dataclass(frozen=True, slots=True)
class ExchangeAnswer:
    digest: str
    """Once the entries of the offer are merged."""
    entries: tuple[Entry, ...] = ()
    """What the sender lacks."""
    want: tuple[str, ...] = ()
    """Keys that the other lacks."""
    upto: str = ""
    """How far the page was compared; empty: all of it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Changes that have no effect at the other agent, by id: why."""


def shards_of(items: Iterable[Change | None]) -> frozenset[str]:
    """Whose changes these are, where they are of one shard alone."""
    return frozenset(shard_of(item.key) for item in items if item is not None) - {""}
