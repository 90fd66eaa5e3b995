"""A fleet's store whose requests are counted, by what became of them: for /metrics.

follower, book, registrar ──► MeteredLog ──► EtcdStore
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from types import MappingProxyType

from headgate.agent.ports import SharedLog
from headgate.core.keyvalue import Changes, Compare, Lease, Listing, Put
from headgate.errors import (
    Compacted,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)

OK, OTHER = "ok", "other"
_OUTCOMES: Mapping[type[Exception], str] = {
    Conflict: "conflict",
    LeaseLost: "lease_lost",
    Compacted: "compacted",
    OutcomeUnknown: "unknown",
    StoreRefused: "refused",
    StoreUnavailable: "unavailable",
}
"""The finer ones first: three of them are a StoreUnavailable as well."""
OUTCOMES = (OK, *_OUTCOMES.values(), OTHER)


class MeteredLog:
    """A watch counts once: when it ends."""

    def __init__(self, store: SharedLog) -> None:
        self._store = store
        self._counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))

    @property
    def requests(self) -> Mapping[str, int]:
        """Since the start, by outcome."""
        return MappingProxyType(self._counts)

    @property
    def name(self) -> str:
        return self._store.name

    async def list(self, prefixes: Sequence[str], *, at_any_member: bool = False) -> Listing:
        with self._counted():
            return await self._store.list(prefixes, at_any_member=at_any_member)

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        watching = self._store.watch(prefixes, after_revision=after_revision)
        with self._counted():
            async with aclosing(watching):
                async for changes in watching:
                    yield changes

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int:
        with self._counted():
            return await self._store.commit(compares, puts)

    async def count(self, prefix: str) -> int:
        with self._counted():
            return await self._store.count(prefix)

    async def grant(self, ttl_s: float) -> Lease:
        with self._counted():
            return await self._store.grant(ttl_s)

    async def renew(self, lease_id: int) -> Lease:
        with self._counted():
            return await self._store.renew(lease_id)

    async def revoke(self, lease_id: int) -> None:
        with self._counted():
            await self._store.revoke(lease_id)

    async def close(self) -> None:
        await self._store.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Who gives up waiting is no outcome of the store's."""
        try:
            yield
        except Exception as error:
            self._counts[_outcome(error)] += 1
            raise
        self._counts[OK] += 1


def _outcome(error: Exception) -> str:
    return next((name for kind, name in _OUTCOMES.items() if isinstance(error, kind)), OTHER)
