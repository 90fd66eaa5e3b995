"""The agent's own log, for tests of what it puts in force.

log = OwnLog(store, clock)            as app.py does: the rooms first, with `make=log.make` and
                                      `time=log.time`,
log.attach(shards, metrics)           then they are in force by it
await log.load()                      at each start
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headgate.base.keyvalue import Compare, Put
from headgate.base.ports import ChangeLog, Clock
from headgate.changes.inforce import Follows, OwnInForce
from headgate.changes.model import HEAD, Change, item_key
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Place
from headgate.changes.state import ChangeMade, Draft, LogState, head_bytes, item_bytes
from headgate.changes.time import ChangeTime
from headgate.errors import StoreUnavailable
from headgate.history.records import AuditEntry
from headgate.rules.drafts import ChangeAuthor, Here, RuleDrafts
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetric
from tests.fixtures.memory_store import MemoryStore


class OwnLog:
    """One agent's log and its book, over whatever store."""

    def __init__(
        self, store: ChangeLog, clock: Clock, *, places: Sequence[Place] = (Place(database="main"),)
    ) -> None:
        self.time = ChangeTime(clock)
        self.rules = RuleKeeper(store, clock, lambda book: None, _no_metrics, time=self.time)
        self._rooms: list[Follows] = [self.rules]
        self.in_force = OwnInForce(self._rooms, lambda: places, clock)
        here = Here(lambda spec: (), self.time.now_s)
        drafts = RuleDrafts(_no_metrics, here=here)
        self.book = OwnBook(store, clock, lambda: 0.5, drafts, self.in_force.changed)
        self.book.has_ended = partial(self.rules.has_ended, own=True)

    def attach(self, *rooms: Follows) -> None:
        self._rooms.extend(rooms)

    async def load(self) -> None:
        """As at a start: all that the log has is put in force."""
        held = await self.book.load()
        await self.in_force.load(list(held.items.values()))

    async def make(
        self, draft: Callable[[LogState, ChangeAuthor], Draft], who: str, *, dry_run: bool
    ) -> ChangeMade:
        return await self.book.make(draft, who, dry_run=dry_run)

    def standing(self, kind: str) -> dict[str, Change]:
        """What stands of a kind, by its id."""
        items = self.book.held.items.items()
        return {name: one for (of, name), one in items if of == kind and one.value is not None}


async def keep(store: ChangeLog, *items: Change) -> None:
    """Put them into the log of an agent that is not running, as another version left them."""
    head = await store.list((HEAD,))
    compares = [Compare(entry.key, entry.revision) for entry in head.entries]
    n = max(item.n for item in items)
    await store.commit(
        compares, [Put(HEAD, head_bytes(n)), *(Put(one.key, item_bytes(one)) for one in items)]
    )


def set_here(kind: str, item_id: str, value: Mapping[str, object] | None, n: int = 1) -> Change:
    item = Change(kind, item_id, HERE, value, n, 1000.0, "ops")
    assert item.key == item_key(kind, item_id, HERE)
    return item


class Unwritable(MemoryStore):
    """Can be read; nothing is written while its disk is full."""

    is_full = True

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        if self.is_full:
            raise StoreUnavailable("disk full")
        return await super().commit(compares, puts, audit=audit, must_fit=must_fit)


class Slow(MemoryStore):
    """Writes once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        await self.may_go_on.wait()
        return await super().commit(compares, puts, audit=audit, must_fit=must_fit)


def _no_metrics(database: str) -> Mapping[str, KnownMetric]:
    return {}
