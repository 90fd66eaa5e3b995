"""Many ranges read at one revision, however many and large they are.

The entry `store` below our prefix holds a name made up for the data: cluster ids do not change
when the same members come back with empty disks. No reader of ours ever sees it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.core.keyvalue import Entry
from headgate.errors import StoreUnavailable
from headgate.stores.etcd.gateway import Gateway
from headgate.stores.etcd.messages import (
    Keys,
    KeyValue,
    Op,
    RangeAnswer,
    TxnAnswer,
    range_op,
    read_txn,
    txn,
)
from headgate.stores.etcd.watch import Missed

STORE_KEY = "store"
# Members allow 128.
MAX_OPS = 100
PAGE_KEYS = 500
MAX_LISTING_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Standing:
    """Which data they are, and how far."""

    cluster_id: int
    mark: KeyValue | None
    """None: Headgate has not written here."""
    revision: int

    @property
    def store_id(self) -> str:
        made = "unmarked" if self.mark is None else self.mark.value.decode(errors="replace")
        return f"etcd-{self.cluster_id:016x}-{made}"

    def continues(self, earlier: Standing) -> bool:
        """The same data; also if they were given their name only since."""
        named_since = self.mark is not None and self.mark.create_revision > earlier.revision
        if earlier.mark is None and named_since:
            return self.cluster_id == earlier.cluster_id
        return self.store_id == earlier.store_id


@dataclass(frozen=True, slots=True)
class Reading:
    standing: Standing
    ranges: list[RangeAnswer]


class Ranges:
    """Reads for one request: `any_member` also uses one that has lost the others."""

    def __init__(self, gateway: Gateway, keys: Keys, *, any_member: bool = False) -> None:
        self._gateway = gateway
        self._keys = keys
        self._any_member = any_member

    async def read(self, spans: Sequence[Op], **options: Any) -> Reading:
        """All at the revision of the first transaction, with the state of the store."""
        mark = {"key": self._keys.outer(STORE_KEY)}
        head, *others = _batches([mark, *(span | options for span in spans)])
        first = await self._txn(head)
        marks, *ranges = first.ranges
        for batch in others:
            pinned = [span | {"revision": str(first.header.revision)} for span in batch]
            ranges += (await self._txn(pinned)).ranges
        kv = marks.kvs[0] if marks.kvs else None
        header = first.header
        return Reading(Standing(header.cluster_id, kv, header.revision), ranges)

    async def at(self, revision: int, spans: Sequence[Op], **options: Any) -> list[RangeAnswer]:
        ranges: list[RangeAnswer] = []
        pinned = {"revision": str(revision)} | options
        for batch in _batches([span | pinned for span in spans]):
            ranges += (await self._txn(batch)).ranges
        return ranges

    async def _txn(self, spans: Sequence[Op]) -> TxnAnswer:
        member = {"serializable": True} if self._any_member else {}
        body = txn([range_op(span, **member) for span in spans])
        answer = await self._gateway.ask("/v3/kv/txn", body, any_member=self._any_member)
        try:
            told = read_txn(answer)
        except msgspec.DecodeError as error:
            raise _no_etcd(self._gateway, str(error)) from None
        if len(told.responses) != len(spans):
            raise _no_etcd(self._gateway, f"{len(told.responses)} answers to {len(spans)}")
        return told

    # --- all entries ---------------------------------------------------------------------------

    async def entries(self, prefixes: Sequence[str]) -> tuple[Standing, list[Entry]]:
        spans = [self._keys.span(prefix) for prefix in prefixes]
        reading = await self.read(spans, limit=PAGE_KEYS)
        found: list[Entry] = []
        held_bytes = 0
        for span, first in zip(spans, reading.ranges, strict=True):
            async for page in self._pages(span, first, reading.standing.revision):
                found += self._keys.entries(page.kvs)
                held_bytes += sum(len(kv.value) + len(kv.key) for kv in page.kvs)
                if held_bytes > MAX_LISTING_BYTES:
                    raise _too_large(self._keys.prefix)
        return reading.standing, found

    async def _pages(
        self, span: Op, first: RangeAnswer, revision: int
    ) -> AsyncGenerator[RangeAnswer]:
        page = first
        yield page
        while page.more:
            rest = span | {"key": page.kvs[-1].key + b"\0"}
            [page] = await self.at(revision, [rest], limit=PAGE_KEYS)
            yield page

    # --- what a watch has to send ----------------------------------------------------------

    async def missed(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> tuple[Standing, list[Missed]]:
        """In the prefixes' order. Changes that undid themselves are not reported: an entry that
        came and went in between."""
        spans = [self._keys.span(prefix) for prefix in prefixes]
        since = {"min_mod_revision": str(after_revision + 1), "keys_only": True}
        now = await self.read(spans, **since)
        if now.standing.revision <= after_revision:
            return now.standing, [Missed()] * len(spans)
        before = [0] * len(spans)
        if after_revision > 0:
            counted = await self.at(after_revision, spans, count_only=True)
            before = [answer.count for answer in counted]
        return now.standing, [
            _missed(answer, count, after_revision)
            for answer, count in zip(now.ranges, before, strict=True)
        ]


def _missed(changed: RangeAnswer, count_before: int, after_revision: int) -> Missed:
    came = sum(kv.create_revision > after_revision for kv in changed.kvs)
    put = {kv.key: kv.mod_revision for kv in changed.kvs}
    return Missed(put, ended=count_before + came - changed.count)


def _batches(spans: Sequence[Op]) -> list[Sequence[Op]]:
    return [spans[at : at + MAX_OPS] for at in range(0, len(spans), MAX_OPS)]


def _no_etcd(gateway: Gateway, words: str) -> StoreUnavailable:
    return StoreUnavailable(f"etcd {gateway.current.authority} did not answer like etcd: {words}")


def _too_large(prefix: str) -> StoreUnavailable:
    limit = MAX_LISTING_BYTES // 1024**2
    return StoreUnavailable(
        f"etcd has more than {limit} MB below {prefix}: check the prefix of [fleet]"
    )
