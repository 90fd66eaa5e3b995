"""A reader of a fleet's store as simple as can be: list, watch, and again when that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from headgate.base.keyvalue import Changes
from headgate.changes.etcd import EtcdStore
from headgate.errors import Compacted, StoreUnavailable

PAUSE_S = 0.05


class Reader:
    def __init__(self, store: EtcdStore, prefixes: Sequence[str]) -> None:
        self.store = store
        self._prefixes = prefixes
        self.values: dict[str, bytes] = {}
        self.revision = 0
        self.listings = 0
        self.heard = 0
        """Times that a watch said something: the first as soon as it stands."""
        self.ends: list[StoreUnavailable] = []

    async def run(self) -> None:
        is_listed = False
        while True:
            try:
                if not is_listed:
                    await self._list()
                    is_listed = True
                await self._watch()
            except StoreUnavailable as error:
                self.ends.append(error)
                is_listed = is_listed and not isinstance(error, Compacted)
                await asyncio.sleep(PAUSE_S)

    async def _list(self) -> None:
        listing = await self.store.list(self._prefixes)
        self.values = {entry.key: entry.value for entry in listing.entries}
        self.revision = listing.revision
        self.listings += 1

    async def _watch(self) -> None:
        watch = self.store.watch(self._prefixes, after_revision=self.revision)
        async with aclosing(watch):
            async for changes in watch:
                self._apply(changes)
                self.heard += 1

    def _apply(self, changes: Changes) -> None:
        assert changes.revision >= self.revision
        for event in changes.events:
            assert self.revision < event.revision <= changes.revision + 1
            if event.value is None:
                self.values.pop(event.key, None)
            else:
                self.values[event.key] = event.value
        self.revision = changes.revision


@asynccontextmanager
async def reading(store: EtcdStore, prefixes: Sequence[str]) -> AsyncIterator[Reader]:
    reader = Reader(store, prefixes)
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
