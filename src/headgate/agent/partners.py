"""One other agent of a shard, and how far it has what this one has.

    Exchange ──changed, kick──► Partner.run ──Offer──► PeerLink ──► that agent
                 OwnBook.merge ◄── what it has and we lack ──┘

A round sends what has changed since the last one. Where the digests differ all the same, both
compare versions page by page, send each other what the other lacks, and compare again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from headgate.agent.demand import first_of, sleep_unless
from headgate.agent.ownwriter import Merged
from headgate.agent.ports import Clock, PeerLink
from headgate.core.exchange import (
    OFFER_BYTES,
    Answer,
    Entry,
    Inventory,
    Offer,
    Page,
    fitting,
    version_of,
)
from headgate.core.samples import Cause
from headgate.errors import Conflict, HeadgateError, InvalidSettings, PeerFailed, StoreUnavailable

log = structlog.get_logger()

TIMEOUT_S = 2.0
"""What an answer may take beyond the requested delay."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0
"""Before the next try, where one failed."""
LEAST_ROUND_S = 1.0
"""After an answer that should have been delayed: so that requests do not follow without a pause."""
MAX_COMPARED = 3
"""Comparisons in a row; if both still differ then, they pause for a while."""
DIFFERS = "has other changes than this agent, although both were compared"
MAX_PAGES = 2000
MAX_READ = 500
"""Changes that are looked up at once."""
UNANSWERED = frozenset({Cause.UNREACHABLE, Cause.TIMED_OUT})


class Bell:
    """Wakes all that wait for something to become true."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def until(self, is_so: Callable[[], bool], clock: Clock, within_s: float) -> bool:
        """Or until the time is up."""
        deadline_s = clock.now().mono_s + within_s
        while not is_so():
            left_s = deadline_s - clock.now().mono_s
            if left_s <= 0:
                return False
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await first_of(clock, left_s, waiting)
            finally:
                self._waiting.discard(waiting)
        return True


class Book(Protocol):
    """As much of OwnBook as is needed."""

    def inventory(self, shard: str) -> Inventory: ...

    async def entries(self, keys: Iterable[str]) -> list[Entry]: ...

    async def merge(self, shard: str, entries: Sequence[Entry], *, by: str) -> Merged: ...

    async def collect(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Way:
    """The receiver and the sender."""

    shard: str
    name: str
    """The other member."""
    database: str
    """As the other agent calls it."""
    sender: str
    cluster: Callable[[], str] = lambda: ""
    hold_s: float = 0.0
    """Above 0: this agent is the standby of the other, which delays its answers this long."""


class Partner:
    def __init__(
        self,
        way: Way,
        link: PeerLink,
        book: Book,
        clock: Clock,
        *,
        seq: Callable[[], int],
        every_s: Callable[[], float],
        bell: Bell,
    ) -> None:
        """`seq`: how many changes of the shard were made or merged here. `bell` is rung when the
        state of the other is another one."""
        self.way = way
        self.link = link
        self._book = book
        self._clock = clock
        self._seq = seq
        self._every_s = every_s
        self._bell = bell
        self._pending: dict[str, None] = {}
        """Keys of what the other may lack."""
        self._kicked = asyncio.Event()
        self._synced = -1
        """How many of our changes it has."""
        self._there = ""
        """Its digest, as last reported."""
        self._was_held = False
        """The last answer was to be delayed."""
        self.exchanged_at: float | None = None
        """Monotonic: when it last answered."""
        self.met = False
        """It has answered since this agent leads."""
        self.fault = ""
        """Why the last try failed; empty: it did not."""
        self.is_away = False
        """With a fault: it gave no answer at all."""

    @property
    def has_all(self) -> bool:
        return self.has(self._seq())

    def has(self, seq: int) -> bool:
        return self._synced >= seq

    def changed(self, keys: Iterable[str]) -> None:
        self._pending.update(dict.fromkeys(keys))
        self._kicked.set()

    def meet(self) -> None:
        """This agent leads from now on: fetch what the other has before anything is changed."""
        self.met = False
        self._kicked.set()

    # --- rounds ----------------------------------------------------------------------------

    async def run(self) -> None:
        pause_s = 0.0
        while True:
            self._kicked.clear()
            began_s = self._clock.now().mono_s
            try:
                is_same = await self._round()
            except (PeerFailed, StoreUnavailable, Conflict, InvalidSettings) as error:
                self._failed(error)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or FIRST_PAUSE_S)
                await self._clock.sleep(pause_s)
                continue
            pause_s = 0.0
            self._say("" if is_same else DIFFERS)
            took_s = self._clock.now().mono_s - began_s
            if not self.way.hold_s or not is_same:
                await sleep_unless(self._kicked, self._clock, self._every_s())
            elif self._was_held and took_s < LEAST_ROUND_S:
                await sleep_unless(self._kicked, self._clock, LEAST_ROUND_S - took_s)

    async def _round(self) -> bool:
        """Whether both have the same after it."""
        compared = 0
        while True:
            is_same = await self._tell()
            if self._pending:
                continue  # More has changed meanwhile, or did not fit.
            if is_same or self._there == self._inventory.digest:
                return True
            if compared == MAX_COMPARED:
                return False
            compared += 1
            await self._compare()

    async def _tell(self) -> bool:
        """What has changed, as much as goes into one message. Whether it has the same after it."""
        sending = await self._to_send()
        seq, digest = self._seq(), self._inventory.digest
        is_quiet = not sending and not self._pending and self._there == digest
        wait_s = self.way.hold_s if is_quiet else 0.0
        self._was_held = wait_s > 0
        offer = self._offer(digest, entries=tuple(sending), wait_s=wait_s)
        try:
            answer = await self._ask(offer)
        except BaseException:
            self._pending = dict.fromkeys([*(key for key, _ in sending), *self._pending])
            raise
        await self._merge(answer.entries)
        self._there = answer.digest
        if answer.digest == digest:
            self._synced = max(self._synced, seq)
            self._say("")
        return answer.digest == digest

    async def _to_send(self) -> list[Entry]:
        keys = list(self._pending)[:MAX_READ]
        if not keys:
            return []
        entries = await self._book.entries(keys)
        sending = entries[: fitting(entries, OFFER_BYTES)]
        left_out = {key for key, _ in entries[len(sending) :]}
        for key in keys:
            if key not in left_out:
                self._pending.pop(key, None)
        return sending

    async def _compare(self) -> None:
        """Page by page: take what it has and we lack; what it lacks is sent with the next round."""
        await self._book.collect()
        after = ""
        for _ in range(MAX_PAGES):
            page = self._inventory.page(after)
            answer = await self._ask(self._offer(self._inventory.digest, page=page, after=after))
            await self._merge(answer.entries)
            self._pending.update(dict.fromkeys(answer.want))
            reached = answer.upto or page.upto
            if not reached:
                return
            if reached <= after:
                break
            after = reached
        raise PeerFailed(Cause.INVALID, f"{self.link.url}: its pages do not end")

    def _offer(
        self,
        digest: str,
        *,
        entries: tuple[Entry, ...] = (),
        page: Page | None = None,
        after: str = "",
        wait_s: float = 0.0,
    ) -> Offer:
        way = self.way
        return Offer(
            way.shard, way.database, way.sender, digest, entries, page, after, wait_s,
            bool(way.hold_s), way.cluster(),
        )  # fmt: skip

    async def _ask(self, offer: Offer) -> Answer:
        answer = await self._asked(offer)
        self.exchanged_at, self.is_away = self._clock.now().mono_s, False
        return answer

    async def _asked(self, offer: Offer) -> Answer:
        asking = self.link.exchange(offer, timeout_s=offer.wait_s + TIMEOUT_S)
        if not offer.wait_s:
            return await asking
        # What changes here meanwhile is not held up by an answer that is.
        task, kicked = asyncio.ensure_future(asking), asyncio.ensure_future(self._kicked.wait())
        try:
            await asyncio.wait({task, kicked}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                return Answer(self._there)
            return await task
        finally:
            kicked.cancel()
            task.cancel()

    async def _merge(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        merged = await self._book.merge(self.way.shard, entries, by=self.way.name)
        if merged.refused:
            log.warning("change.refused", member=self.way.name, detail=merged.refused[0])
        for key, raw in entries:  # No need to send it what it sent us.
            with suppress(ValueError):
                if self._inventory.version(key) == version_of(raw):
                    self._pending.pop(key, None)

    @property
    def _inventory(self) -> Inventory:
        return self._book.inventory(self.way.shard)

    # --- how it is ---------------------------------------------------------------------------

    def _failed(self, error: HeadgateError) -> None:
        self.is_away = isinstance(error, PeerFailed) and error.cause in UNANSWERED
        self._say(error.detail if isinstance(error, PeerFailed) else str(error))

    def _say(self, fault: str) -> None:
        """One line for each change of state."""
        said = {"shard": self.way.shard, "member": self.way.name, "url": self.link.url}
        if fault and not self.fault:
            log.warning("changes.not_exchanged", **said, detail=fault)
        elif self.fault and not fault:
            log.info("changes.exchanged", **said)
        self.fault, self.met = fault, self.met or not self.is_away
        self._bell.ring()
