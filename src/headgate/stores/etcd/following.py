"""Every change below some prefixes, from a revision on.   client ──► Following ──► watch, reading

What a reading can tell beforehand is found out before anything is waited for: that the data are
others than were listed, or have come back from an older copy, or no longer know that revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from headgate.core.keyvalue import Event
from headgate.errors import Compacted
from headgate.stores.etcd.faults import NoAnswer
from headgate.stores.etcd.gateway import Gateway
from headgate.stores.etcd.messages import EventAnswer, Keys, WatchAnswer, watches
from headgate.stores.etcd.reading import Ranges, Standing
from headgate.stores.etcd.watch import SETTLE_S, CatchUp, Missed, Order, Reader, too_much


class Step(NamedTuple):
    standing: Standing
    """Revision when the watch was opened."""
    revision: int
    """Nothing up to it comes any more."""
    events: Sequence[Event]


class Following:
    def __init__(
        self, gateway: Gateway, keys: Keys, prefixes: Sequence[str], known: Standing | None
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._prefixes = prefixes
        self._known = known
        """What was listed; None if another object did that."""

    async def steps(self, after_revision: int) -> AsyncGenerator[Step]:
        """The first one as soon as the watch is open, with all that was missed."""
        spans = [self._keys.span(prefix) for prefix in self._prefixes]
        body = watches(spans, start_revision=after_revision + 1)
        async with self._gateway.stream("/v3/watch", body) as (endpoint, chunks):
            reader = Reader(endpoint.authority, chunks)
            try:
                async with aclosing(self._read(reader, after_revision)) as steps:
                    async for step in steps:
                        yield step
            finally:
                await reader.close()

    async def _read(self, reader: Reader, after_revision: int) -> AsyncGenerator[Step]:
        numbers, early = await self._opened(reader)
        standing, missed = await self._missed(reader.where, after_revision)
        # A single watch keeps its own order: no need to wait.
        through = after_revision if self._is_single else standing.revision
        catch_up = CatchUp(through, missed)
        for answer in early:
            catch_up.hear(numbers[answer.watch_id], answer.events)
        await self._caught_up(reader, catch_up, numbers)
        before, since = catch_up.parted()
        yield self._step(standing, through, before)
        order = Order(reader.where, through, single=self._is_single)
        order.hear(since)
        async with aclosing(self._ordered(reader, order)) as changes:
            async for revision, events in changes:
                yield self._step(standing, revision, events)

    @property
    def _is_single(self) -> bool:
        return len(self._prefixes) == 1

    def _step(self, standing: Standing, revision: int, events: Sequence[EventAnswer]) -> Step:
        return Step(standing, revision, self._keys.events(events))

    # --- opening ---------------------------------------------------------------------------

    async def _opened(self, reader: Reader) -> tuple[dict[int, int], list[WatchAnswer]]:
        """Which watch got which id; and what the first of them sent before the last one opened."""
        numbers: dict[int, int] = {}
        early: list[WatchAnswer] = []
        until_s = _now_s() + self._gateway.timeout_s
        while len(numbers) < len(self._prefixes):
            answer = await reader.next(max(0.0, until_s - _now_s()))
            if answer is None:
                raise NoAnswer(f"did not open a watch in {self._gateway.timeout_s:.1f} s")
            if answer.created:
                numbers[answer.watch_id] = len(numbers)
            early.append(answer)
        return numbers, early

    async def _missed(self, where: str, after_revision: int) -> tuple[Standing, list[Missed]]:
        ranges = Ranges(self._gateway, self._keys)
        if self._is_single:
            standing, missed = (await ranges.read([])).standing, [Missed()]
        else:
            standing, missed = await ranges.missed(self._prefixes, after_revision=after_revision)
        if self._known is not None and not standing.continues(self._known):
            raise Compacted(f"etcd {where}: its data was created again since it was listed")
        if standing.revision < after_revision:
            raise Compacted(
                f"etcd {where} is at revision {standing.revision}, behind {after_revision}: it has "
                "other data, or data of an older copy; list again"
            )
        return standing, missed

    async def _caught_up(
        self, reader: Reader, catch_up: CatchUp, numbers: Mapping[int, int]
    ) -> None:
        while not catch_up.is_done():
            answer = await reader.next(self._gateway.timeout_s)
            if answer is None:
                words = f"did not send what came before revision {catch_up.through}"
                raise NoAnswer(f"{words}: nothing in {self._gateway.timeout_s:.1f} s")
            catch_up.hear(numbers[answer.watch_id], answer.events)
            if catch_up.is_too_much():
                raise too_much(reader.where)

    # --- going on --------------------------------------------------------------------------

    async def _ordered(
        self, reader: Reader, order: Order
    ) -> AsyncGenerator[tuple[int, Sequence[EventAnswer]]]:
        while True:
            answer = await reader.next(SETTLE_S if order.is_holding else None)
            order.hear(() if answer is None else answer.events)
            ready = order.take(newest_too=answer is None or self._is_single)
            if ready:
                yield order.through, ready
            elif self._is_single and answer is not None:
                yield answer.header.revision, ()  # how far the store has come, and no more


def _now_s() -> float:
    """For deadlines only."""
    return asyncio.get_running_loop().time()
