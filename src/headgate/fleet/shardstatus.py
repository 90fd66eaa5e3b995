"""Report the state of our shards to the fleet: those whose primary is ours.

Shards, Board, Recorder ──► told_of ──on change──► FleetStatus ──registrar's lease──► shards/<shard>

Only changes are reported, at a time drawn from the fleet's size and never twice within it. All
shards together write at most about 200 times a second, whatever happens to all of them at once.
Nothing here waits for it, and a store that is away gets the report later. An entry that vanishes
with its lease means that no agent answers for the shard any more; it says nothing about its health.

A passive agent of a pair reports nothing: the active one has the same shards. An agent that finds
its report overwritten says so: two agents that use one name for different servers hide each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from headgate.base.keyvalue import Compare, Entry, Put
from headgate.base.ports import Clock, SharedLog
from headgate.changes.model import shard_key
from headgate.changes.reach import Place
from headgate.check.board import Board
from headgate.errors import Conflict, LeaseLost, StoreUnavailable
from headgate.fleet.members import FleetMember, ShardTold, newest_of_each, read_told, told_bytes
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Instant
from headgate.shard.model import ShardView
from headgate.shard.speech import (
    Footing,
    RejectedShare,
    ReportingAgent,
    dated,
    is_early,
    speaks,
    told_of,
)

log = structlog.get_logger()

NEVER = float("inf")
LOOK_S = 1.0
SHORTEST_S = 5.0
"""Pause between two reports of the same shard."""
SETTLE_S = 10.0
"""How long a new leader waits for its first values: that there are none yet is no problem."""
REFRESH_S = 300.0
"""Values move without a change of state; they are reported this often anyway."""
HANDED_OVER_S = 60.0
"""How long the last report stays after another agent leads, if that one reports nothing."""
MAX_AT_ONCE = 20
"""Shards per commit: an agent may have many, and a store takes half a megabyte."""


class ShardViews(Protocol):
    """The part of shard/service.Shards that is reported."""

    def views(self) -> list[ShardView]: ...

    @property
    def url(self) -> str:
        """Of this agent, or of the active one while this one is passive."""
        ...


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Sources of the report; each is read when it is needed."""

    place: Callable[[str], Place]
    """Health of a database."""
    url: Callable[[], str]
    footing: Callable[[], Footing]
    members: Callable[[str], Sequence[FleetMember]]
    """Members of a shard, as they registered themselves."""
    rules_in_force: Callable[[], int]
    lease_id: Callable[[], int]
    """The registrar's lease; 0: there is none now, and nothing is reported."""
    spread_s: Callable[[], float]


@dataclass(slots=True)
class _Desk:
    """What was reported for one shard, and when to report again. Times are monotonic."""

    now: ShardTold
    born_at: float
    early: bool = True
    """Something has not been measured yet."""
    told: tuple[object, ...] = ()
    """The sign of our report in the store; empty: there is none."""
    told_at: float = float("-inf")
    revision: int = 0
    due_at: float = NEVER
    """A change waits for its turn."""
    refresh_at: float = NEVER
    leaves_at: float = NEVER
    """Another agent reports, or none must: remove our last report at this time."""

    @property
    def key(self) -> str:
        return shard_key(self.now.shard)

    @property
    def compare(self) -> Compare:
        """That our last word is still there."""
        return Compare(self.key, self.revision)

    @property
    def speaks(self) -> bool:
        return self.leaves_at == NEVER

    def is_due(self, mono_s: float) -> bool:
        settles = self.early and not self.told and mono_s < self.born_at + SETTLE_S
        return self.speaks and not settles and mono_s >= min(self.due_at, self.refresh_at)

    def put_off(self, until: float) -> None:
        self.due_at = until
        self.refresh_at = max(self.refresh_at, until)


class FleetStatus:
    def __init__(
        self,
        store: SharedLog,
        clock: Clock,
        roll: Callable[[], float],
        *,
        shards: ShardViews,
        board: Board,
        recorder: Recorder,
        sources: StatusSources,
    ) -> None:
        self._store = store
        self._clock = clock
        self._roll = roll
        self._shards = shards
        self._board = board
        self._sources = sources
        self._share = RejectedShare()
        recorder.watch(self._share.note)
        self._desks: dict[str, _Desk] = {}
        self.fault = ""
        """Why the last try failed."""
        self.writes_total = 0
        self.rivals: dict[str, str] = {}
        """Shard → which other agent reports it, and from where: it overwrote our report."""

    async def run(self) -> None:
        while True:
            await self.look_once()
            await self._clock.sleep(LOOK_S)

    async def look_once(self) -> None:
        now = self._clock.now()
        self._share.turn(now.mono_s)
        self._look(now)
        due = [desk for desk in self._desks.values() if desk.is_due(now.mono_s)]
        lease_id = self._sources.lease_id()
        if due and lease_id:
            await self._tell(due[:MAX_AT_ONCE], lease_id)
        leaving = [desk for desk in self._desks.values() if now.mono_s >= desk.leaves_at]
        for desk in leaving[:1]:
            await self._take_back(desk)

    def spoken(self) -> Mapping[str, ShardTold]:
        """What this agent would tell now, by shard."""
        return {name: desk.now for name, desk in self._desks.items() if desk.speaks}

    # --- what there is to tell ---------------------------------------------------------------

    def _look(self, now: Instant) -> None:
        views = self._shards.views()
        is_active = self._shards.url == self._sources.url()
        speaking = self._speaking(views) if is_active else {}
        for view in speaking.values():
            early = is_early(self._board.healths[view.database], now)
            self._note(self._told(view, views, now), now.mono_s, early=early)
        here = {view.shard for view in views}
        stays_s = HANDED_OVER_S + 2 * self._sources.spread_s()
        for shard in self._desks.keys() - speaking.keys():
            desk = self._desks[shard]
            self.rivals.pop(shard, None)
            if desk.speaks:
                desk.leaves_at = now.mono_s + (stays_s if shard in here else 0.0)

    def _speaking(self, views: Iterable[ShardView]) -> dict[str, ShardView]:
        found: dict[str, ShardView] = {}
        for view in views:
            desk = self._desks.get(view.shard)
            spoke = desk is not None and desk.speaks
            if view.database in self._board.healths and speaks(view, spoke=spoke):
                found.setdefault(view.shard, view)
        return found

    def _told(self, view: ShardView, views: Iterable[ShardView], now: Instant) -> ShardTold:
        sources = self._sources
        speaker = ReportingAgent(
            place=sources.place(view.database),
            url=sources.url(),
            footing=sources.footing(),
            registered=newest_of_each(sources.members(view.shard)),
        )
        told = told_of(view, self._board.healths[view.database], speaker, now)
        own = [one.database for one in views if one.shard == view.shard]
        checks, rejected = self._share.of(own)
        return replace(told, checks=checks, rejected=rejected)

    def _note(self, told: ShardTold, mono_s: float, *, early: bool) -> None:
        desk = self._desks.get(told.shard)
        if desk is None:
            desk = self._desks[told.shard] = _Desk(dated(told, None), mono_s)
        else:
            desk.now = dated(told, desk.now)
            if not desk.speaks:
                desk.told, desk.revision = (), 0  # Another one may have spoken meanwhile.
        desk.leaves_at, desk.early = NEVER, early
        self._plan(desk, mono_s)

    def _plan(self, desk: _Desk, mono_s: float) -> None:
        lease_id, spread_s = self._sources.lease_id(), self._sources.spread_s()
        if not lease_id:
            return
        is_news = desk.told != _sign(desk.now, lease_id)
        if is_news and desk.due_at == NEVER:
            soonest = desk.told_at + max(SHORTEST_S, spread_s)
            desk.due_at = max(mono_s + self._roll() * spread_s, soonest)
        elif not is_news and mono_s >= desk.due_at:
            # Undone before its turn. Not earlier: one that comes and goes would never have one.
            desk.due_at = NEVER

    # --- telling it ----------------------------------------------------------------------------

    async def _tell(self, desks: Sequence[_Desk], lease_id: int) -> None:
        rules = self._sources.rules_in_force()
        told = [replace(desk.now, rules=rules) for desk in desks]
        puts = [Put(shard_key(one.shard), told_bytes(one), lease_id) for one in told]
        signs = [_sign(desk.now, lease_id) for desk in desks]
        try:
            revision = await self._commit(desks, puts)
        except (StoreUnavailable, LeaseLost) as error:
            self._failed(str(error), desks)
            return
        if self.fault:
            log.info("fleet.shards_told_again", store=self._store.name)
        self.fault = ""
        self.writes_total += len(puts)
        now = self._clock.now().mono_s
        for desk, sign in zip(desks, signs, strict=True):
            desk.told, desk.told_at, desk.revision = sign, now, revision
            desk.due_at, desk.refresh_at = NEVER, now + REFRESH_S * (1 + self._roll())

    async def _commit(self, desks: Sequence[_Desk], puts: Sequence[Put]) -> int:
        """Over whatever is there: who leads has the last word. But not without a look at it."""
        ours = [desk for desk in desks if desk.revision and desk.told]
        try:
            revision = await self._store.commit([desk.compare for desk in ours], puts)
        except Conflict:
            listing = await self._store.list([desk.key for desk in ours])
            found = {entry.key: entry for entry in listing.entries}
            for desk in ours:
                self._note_rival(desk, found.get(desk.key))
            return await self._store.commit((), puts)
        for desk in ours:
            self.rivals.pop(desk.now.shard, None)
        return revision

    def _note_rival(self, desk: _Desk, entry: Entry | None) -> None:
        shard = desk.now.shard
        if entry is None or entry.revision == desk.revision:
            return
        try:
            other = read_told(entry.value)
        except ValueError as error:
            rival = f"an agent whose report cannot be read ({error})"
        else:
            rival = f"{other.agent} at {other.url}" if other.url != desk.now.url else ""
        if rival and rival != self.rivals.get(shard):
            log.error("fleet.shard_told_by_another", shard=shard, other=rival)
            self.rivals[shard] = rival

    async def _take_back(self, desk: _Desk) -> None:
        """Unless another agent has replaced it."""
        shard = desk.now.shard
        try:
            if desk.revision:
                await self._store.commit((desk.compare,), (Put(desk.key, None),))
        except Conflict:
            log.debug("fleet.shard_handed_over", shard=shard)
        except StoreUnavailable as error:
            self._failed(str(error), ())
            desk.leaves_at = self._again_at()
            return
        del self._desks[shard]

    def _failed(self, detail: str, desks: Iterable[_Desk]) -> None:
        if not self.fault:
            log.warning("fleet.shards_not_told", store=self._store.name, detail=detail)
        self.fault = detail
        for desk in desks:
            desk.put_off(self._again_at())

    def _again_at(self) -> float:
        pause_s = SHORTEST_S + self._roll() * max(SHORTEST_S, self._sources.spread_s())
        return self._clock.now().mono_s + pause_s


def _sign(told: ShardTold, lease_id: int) -> tuple[object, ...]:
    """With the lease: what was put under another one goes when that ends."""
    return (lease_id, *told.sign())
