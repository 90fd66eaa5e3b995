"""The whole fleet for people: an agent with this role follows what all other agents report.

follower of its own ──note──► FleetView ──in a thread──► FleetLedger ──► FleetPicture ──► page, CLI

It reads the fleet's store and never other agents, and no check needs it. It works outside the event
loop, when a person looks at the fleet and every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import structlog

from headgate.base.keyvalue import Entry
from headgate.base.ports import Clock
from headgate.changes.model import BEAT, HEAD, ITEMS, MEMBERS, SHARDS, WIDE, Change, unquoted
from headgate.changes.state import read_head, read_item_at, stands
from headgate.fleet.members import FleetMember, read_member, read_told
from headgate.fleet.view import (
    AgentProgress,
    FleetCounts,
    FleetPicture,
    Holders,
    ItemSeen,
    Known,
    ShardSeen,
    ShardState,
    StoreLink,
    WantedRevision,
    agent_alone,
    grace_s,
    picture_of,
    shard_seen,
)
from headgate.metrics.samples import Instant

VIEW_PREFIXES = (HEAD, BEAT, ITEMS, MEMBERS, SHARDS)
DIGEST_EVERY_S = 5.0
KEEP_EVERY_S = 60.0
FRESH_S = 1.0
"""A picture younger than this is shown again: several people may look at once."""


class Mirrored(Protocol):
    """As much of changes/mirror.Mirror as is looked at."""

    def get(self, key: str) -> Entry | None: ...


class KeptRoster(Protocol):
    """On disk, beside the event loop. Neither raises: a view without it forgets, and goes on."""

    def recall(self) -> Mapping[str, float]: ...

    def keep(self, roster: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class Looked:
    picture: FleetPicture
    holders: Holders
    at: Instant
    link: StoreLink


class FleetView:
    def __init__(
        self,
        mirror: Mirrored,
        clock: Clock,
        *,
        link: Callable[[], StoreLink],
        spread_s: Callable[[], float],
        roster: KeptRoster | None = None,
    ) -> None:
        """`roster`: where the names of all shards are kept over a restart."""
        self._mirror = mirror
        self._clock = clock
        self._link = link
        self._spread_s = spread_s
        self._ledger = FleetLedger()
        self._roster = roster
        self._recalled = False
        self._kept_at: float | None = None
        self._noted: dict[str, Instant] = {}
        self._under_way: asyncio.Future[None] | None = None
        self._picture = FleetPicture(None)
        self._holders = Holders(self._picture)
        self._at: Instant | None = None

    @property
    def counts(self) -> FleetCounts:
        """As of the last digest."""
        return self._picture.counts

    def note(self, keys: Iterable[str]) -> None:
        """Keys that changed in the mirror, or went. A callback of the follower; never waits."""
        now = self._clock.now()
        for key in keys:
            self._noted[key] = now

    async def run(self) -> None:
        while True:
            await self._digest()
            await self._clock.sleep(DIGEST_EVERY_S)

    async def look(self) -> Looked:
        now = self._clock.now()
        if self._at is None or now.mono_s - self._at.mono_s >= FRESH_S:
            await self._digest()
        return Looked(self._picture, self._holders, now, self._link())

    async def _digest(self) -> None:
        """One at a time, and to its end: a caller that gives up leaves a thread running."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.ensure_future(self._take())
        await asyncio.shield(self._under_way)

    async def _take(self) -> None:
        now = self._clock.now()
        keys, self._noted = self._noted, {}
        entries = ((key, self._mirror.get(key), at) for key, at in keys.items())
        noted = [
            Noted(key, None if entry is None else entry.value, at) for key, entry, at in entries
        ]
        late_s = grace_s(self._spread_s())
        self._picture = await asyncio.to_thread(self._read, noted, now, late_s)
        self._holders = Holders(self._picture)
        self._at = now

    def _read(self, noted: list[Noted], now: Instant, late_s: float) -> FleetPicture:
        self._ledger.take(noted)
        # Once the store has been read: before that everybody would be missing.
        if noted and not self._recalled:
            self._recalled = True
            if self._roster is not None:
                self._ledger.recall(self._roster.recall(), now)
        picture = self._ledger.picture(now, grace_s=late_s)
        due = self._kept_at is None or now.mono_s - self._kept_at >= KEEP_EVERY_S
        if self._roster is not None and self._recalled and due:
            self._kept_at = now.mono_s
            self._roster.keep(self._ledger.roster(now.wall_s))
        return picture


__all__ = ["VIEW_PREFIXES", "FleetView", "Looked", "StoreLink"]


log = structlog.get_logger()

SILENT_KEPT_S = 86_400.0
"""A shard without any registered agent is remembered for this long: a shard that is lost completely
must not look as if it had never existed."""
MAX_SILENT = 20_000
_NOTHING = WantedRevision()


class Noted(NamedTuple):
    """One key of the store, as it was when it changed last."""

    key: str
    value: bytes | None
    """None: it was deleted."""
    at: Instant


class FleetLedger:
    """What the fleet's store tells, kept as values; only what changed is read again. Used by one
    thread at a time, never by the event loop: a fleet of 10,000 shards is read in pieces, but one
    look at all of it takes a tenth of a second."""

    def __init__(self) -> None:
        self._n: int | None = None
        self._known: dict[str, Known] = {}
        self._shardless: dict[str, FleetMember] = {}
        self._items: dict[str, Change] = {}
        self._wide = _NOTHING
        self._wanted: dict[str, WantedRevision] = {}
        """By shard: items that apply to it alone."""
        self._seen: dict[str, ShardSeen] = {}
        self._dirty: set[str] = set()
        self._unreadable: dict[str, str] = {}

    def take(self, noted: Iterable[Noted]) -> None:
        for one in noted:
            try:
                self._take(one)
            except ValueError as error:
                if one.key not in self._unreadable:
                    log.warning("fleet.entry_unreadable", key=one.key, detail=str(error))
                self._unreadable[one.key] = str(error)
            else:
                self._unreadable.pop(one.key, None)

    def picture(self, now: Instant, *, grace_s: float) -> FleetPicture:
        self._forget(now.wall_s)
        self._see(now, grace_s)
        alone = [
            agent_alone(member, self._wide, now=now, grace_s=grace_s)
            for _, member in sorted(self._shardless.items())
        ]
        items = [ItemSeen(item, not stands(item, now.wall_s)) for item in self._items.values()]
        return picture_of(
            self._n, self._seen.values(), alone, items, unreadable=len(self._unreadable)
        )

    # --- over a restart ------------------------------------------------------------------------

    def roster(self, wall_s: float) -> dict[str, float]:
        """All known shards, and when each last had a registered agent. Wall-clock."""
        known = self._known.items()
        gone = {shard for shard, one in known if not one.members and one.mute}
        return {s: self._silent_since(s) if s in gone else wall_s for s in self._known}

    def recall(self, roster: Mapping[str, float], now: Instant) -> None:
        """Shards that were known before: those that nobody tells of now have fallen silent."""
        for shard, seen_wall_s in roster.items():
            if shard not in self._known:
                first = Known(None, seen_wall_s, (), now.mono_s, seen_wall_s)
                self._put(shard, first)

    # --- entries -------------------------------------------------------------------------------

    def _take(self, one: Noted) -> None:
        if one.key == HEAD:
            self._n = None if one.value is None else read_head(one.value)
        elif one.key.startswith(SHARDS):
            self._take_shard(one)
        elif one.key.startswith(MEMBERS):
            self._take_member(one)
        elif one.key.startswith(ITEMS):
            self._take_item(one)

    def _take_shard(self, one: Noted) -> None:
        shard = unquoted(one.key.removeprefix(SHARDS))
        if one.value is not None:
            told = read_told(one.value)
            self._put(shard, replace(self._of(shard, one.at), told=told, silent_since=None))
        elif shard in self._known:
            known = self._known[shard]
            # Its last report stays on the page, next to the note that it no longer reports.
            self._put(shard, replace(known, silent_since=one.at.wall_s))

    def _take_member(self, one: Noted) -> None:
        shard = unquoted(one.key.removeprefix(MEMBERS).partition("/")[0])
        read = None if one.value is None else read_member(one.key, one.value)
        if not shard:
            self._shardless.pop(one.key, None)
            if read is not None:
                self._shardless[one.key] = read
            return
        if read is None and shard not in self._known:
            return
        known = self._of(shard, one.at)
        others = tuple(other for other in known.members if other.key != one.key)
        known = replace(known, members=(*others, read) if read else others)
        if known.told is None:
            # One that never spoke: that its last agent has gone is all there is to tell.
            known = replace(known, silent_since=None if known.members else one.at.wall_s)
        self._put(shard, known)

    def _take_item(self, one: Noted) -> None:
        shard = _own_shard(one.key)
        before = self._wanted.get(shard, _NOTHING) if shard else self._wide
        if one.value is not None:
            item = self._items[one.key] = read_item_at(one.key, one.value)
            if item.n > before.n:
                self._set_wanted(shard, before.then(item.n, one.at.mono_s))
            return
        gone = self._items.pop(one.key, None)
        if gone is not None and gone.n >= before.n:
            # The newest was deleted: an agent that starts now does not see it any more.
            left = [item.n for key, item in self._items.items() if _own_shard(key) == shard]
            self._set_wanted(shard, before.up_to(max(left, default=0)))

    def _set_wanted(self, shard: str, wanted: WantedRevision) -> None:
        if shard:
            self._wanted[shard] = wanted
            self._dirty.add(shard)
        else:
            self._wide = wanted
            self._dirty.update(self._known)

    # --- shards --------------------------------------------------------------------------------

    def _of(self, shard: str, at: Instant) -> Known:
        new = Known(first_seen_at=at.mono_s, first_seen_wall_s=at.wall_s)
        return self._known.get(shard, new)

    def _put(self, shard: str, known: Known) -> None:
        self._known[shard] = known
        self._dirty.add(shard)

    def _forget(self, wall_s: float) -> None:
        """Shards that nobody speaks for and nobody is registered of."""
        gone = [shard for shard, known in self._known.items() if not known.members and known.mute]
        gone.sort(key=lambda shard: -self._silent_since(shard))
        for rank, shard in enumerate(gone):
            since = self._silent_since(shard)
            if rank >= MAX_SILENT or wall_s - since > SILENT_KEPT_S:
                self._known.pop(shard)
                self._seen.pop(shard, None)
                self._wanted.pop(shard, None)
                self._dirty.discard(shard)

    def _silent_since(self, shard: str) -> float:
        known = self._known[shard]
        return known.first_seen_wall_s if known.silent_since is None else known.silent_since

    def _see(self, now: Instant, grace_s: float) -> None:
        """Shards with news, and shards that change only by time."""
        unsettled = {shard for shard, seen in self._seen.items() if _changes_by_time(seen)}
        for shard in self._dirty | unsettled:
            wanted = self._wide.joined(self._wanted.get(shard, _NOTHING))
            known = self._known.get(shard)
            if known is not None:
                self._seen[shard] = shard_seen(shard, known, wanted, now=now, grace_s=grace_s)
        self._dirty.clear()


def _changes_by_time(seen: ShardSeen) -> bool:
    return seen.condition is ShardState.STARTING or any(
        agent.progress is AgentProgress.PENDING or agent.stale_for_s is not None
        for agent in seen.agents
    )


def _own_shard(key: str) -> str:
    """The one shard that an item applies to; empty for a wider reach."""
    if key.startswith(WIDE):
        return ""
    return unquoted(key.removeprefix(f"{ITEMS}shard/").partition("/")[0])
