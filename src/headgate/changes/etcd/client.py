"""The fleet's store in etcd.   base/ports.SharedLog ──► EtcdStore ──► gateway ──► its members
                                                            └─ list ──► Ranges
                                                            └─ watch ─► EtcdFollower ──► WatchReader

A stream has several watches, and etcd keeps the order within each of them only. It sends what each
of them missed one watch after the other, and not when that is all: CatchUp knows from a reading
what has to come. From then on a commit's pieces follow each other, one for each watch that it
matches, and CommitOrder holds them until something newer comes, or nothing for a moment. Then
nobody knows whether it was all: the way may have gone silent in between. So the commit is reported,
but not as whole, until something newer has come. A piece that comes later than that has us list
again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from headgate.base.keyvalue import Changes, Compare, Entry, KeyEvent, Lease, Listing, Put
from headgate.changes.etcd import faults
from headgate.changes.etcd.faults import EtcdSilent
from headgate.changes.etcd.gateway import (
    Chunks,
    EtcdAccess,
    EventAnswer,
    Gateway,
    Keys,
    KeyValue,
    LeaseAnswer,
    Op,
    RangeAnswer,
    TxnAnswer,
    WatchAnswer,
    range_op,
    read_keep_alive,
    read_lease,
    read_line,
    read_txn,
    txn,
    watches,
    written,
)
from headgate.errors import (
    Compacted,
    Conflict,
    LeaseLost,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from headgate.history.records import AuditEntry

TIMEOUT_S = 2.0
NAMED_ENDPOINTS = 3
NAMED_KEYS = 3
OK = "ok"
OUTCOMES: Mapping[type[Exception], str] = {
    Conflict: "conflict",
    LeaseLost: "lease_lost",
    Compacted: "compacted",
    OutcomeUnknown: "unknown",
    StoreRejected: "rejected",
    StoreUnavailable: "unavailable",
    Exception: "other",
}
"""Of a request that failed. The finer ones first: three of them are a StoreUnavailable as well."""


def widest(prefixes: Sequence[str]) -> list[str]:
    """Without those that begin with another one: nothing is read twice."""
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


class EtcdStore:
    """Implements the port SharedLog.

    `roll` chooses the member to contact first. A list of no prefixes returns the revision and
    the store_id.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        access: EtcdAccess,
        prefix: str,
        *,
        timeout_s: float = TIMEOUT_S,
        roll: Callable[[], float],
        names_data: bool = False,
    ) -> None:
        """`names_data`: a reader of data without an id gives it one, if it may, so that all agents
        have the same id. Not if the prefix belongs to another program."""
        self._gateway = Gateway(endpoints, access, timeout_s=timeout_s, roll=roll)
        self._keys = Keys(prefix)
        self._names_data = names_data
        self._requests = Counter(dict.fromkeys([OK, *OUTCOMES.values()], 0))
        self._known: EtcdPosition | None = None
        """The highest revision that a quorum has reported."""
        self._returns = 0
        """How often data without an id came back from an older copy."""

    @property
    def name(self) -> str:
        shown = [endpoint.authority for endpoint in self._gateway.endpoints[:NAMED_ENDPOINTS]]
        more = ["…"] if len(self._gateway.endpoints) > NAMED_ENDPOINTS else []
        return f"etcd {', '.join(shown + more)}"

    @property
    def requests(self) -> Mapping[str, int]:
        """Since the start, by outcome; a watch counts once, when it ends."""
        return MappingProxyType(self._requests)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Who gives up waiting is no outcome of the store's."""
        try:
            yield
        except Exception as error:
            found = (name for kind, name in OUTCOMES.items() if isinstance(error, kind))
            self._requests[next(found)] += 1
            raise
        self._requests[OK] += 1

    async def close(self) -> None:
        await self._gateway.close()

    # --- reading ---------------------------------------------------------------------------

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        with self._counted():
            return await self._list(widest(prefixes), allow_stale)

    async def _list(self, asked: Sequence[str], allow_stale: bool) -> Listing:
        known = self._known
        ranges = Ranges(self._gateway, self._keys, any_member=allow_stale)
        standing, entries = await ranges.entries(asked)
        if not allow_stale:
            same = known is not None and known.store_id == standing.store_id
            if known is not None and same and standing.revision < known.revision:
                await self._mark_anew(known, standing)
                standing, entries = await ranges.entries(asked)
            elif standing.mark is None and self._names_data and await self._is_named():
                standing, entries = await ranges.entries(asked)
            self._note(standing)
        kept = sorted((e for e in entries if e.key != STORE_KEY), key=lambda entry: entry.key)
        again = f"-{self._returns}" if self._returns and standing.mark is None else ""
        return Listing(tuple(kept), standing.revision, standing.store_id + again)

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        following = EtcdFollower(self._gateway, self._keys, widest(prefixes), self._known)
        with self._counted():
            async with aclosing(following.steps(after_revision)) as steps:
                async for standing, revision, events in steps:
                    changes = Changes(tuple(e for e in events if e.key != STORE_KEY), revision)
                    heard = max(standing.revision, changes.newest)
                    # A watch knows the name that the data had when it was opened.
                    if self._known is None or self._known.store_id == standing.store_id:
                        self._note(replace(standing, revision=heard))
                    yield changes

    async def count(self, prefix: str) -> int:
        ranges = Ranges(self._gateway, self._keys)
        with self._counted():
            reading = await ranges.read([self._keys.span(prefix)], count_only=True)
        hidden = STORE_KEY.startswith(prefix) and reading.standing.mark is not None
        return reading.ranges[0].count - hidden

    def _note(self, standing: EtcdPosition) -> None:
        known = self._known
        same = known is not None and known.store_id == standing.store_id
        if known is None or not same or standing.revision > known.revision:
            self._known = standing

    async def _mark_anew(self, known: EtcdPosition, standing: EtcdPosition) -> None:
        """The same data at an older revision: they came back from a copy. Revisions that were
        seen will mean something else, and everybody is to notice."""
        self._known = None
        if standing.mark is None:
            self._returns += 1
            return
        try:
            await self._make_mark(standing.mark.mod_revision)
        except StoreUnavailable as error:
            self._known = known
            raise StoreUnavailable(
                f"etcd is at revision {standing.revision}, but was at {known.revision} before: its "
                f"data came back from an older copy, which could not be marked: {error}"
            ) from None

    # --- writing ---------------------------------------------------------------------------

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        """Who did what is in what is put: `audit` is for an agent's own log."""
        check_commit(compares, puts)
        with self._counted():
            answer = await self._commit(compares, puts)
            if not answer.succeeded and not answer.ranges[0].count:
                await self._make_mark()
                answer = await self._commit(compares, puts)
            if not answer.succeeded:
                shown = [compare.key for compare in compares[:NAMED_KEYS]]
                left = len(compares) - NAMED_KEYS
                named = ", ".join([*shown, *([f"or {left} more"] if left > 0 else [])])
                raise Conflict(f"etcd: {named or 'an entry'} changed meanwhile")
            return answer.header.revision

    async def _commit(self, compares: Sequence[Compare], puts: Sequence[Put]) -> TxnAnswer:
        """Only goes through where the data have their name; a failed one tells whether they do."""
        mark = {"key": self._keys.outer(STORE_KEY)}
        is_marked = mark | {"target": "CREATE", "result": "GREATER", "create_revision": "0"}
        conditions = [is_marked, *map(self._keys.compare, compares)]
        return await self._change(
            txn(
                [self._keys.put(put) for put in puts],
                compares=conditions[-MAX_COMMIT_OPS:],
                failure=[range_op(mark, count_only=True)],
            )
        )

    async def _is_named(self) -> bool:
        try:
            await self._make_mark()
        except StoreUnavailable:
            return False  # Who may only read, or cannot write now, goes on without.
        return True

    async def _make_mark(self, after_revision: int = 0) -> None:
        """In place of the one of that revision; 0: there is none yet."""
        mark = self._keys.put(Put(STORE_KEY, uuid4().hex.encode()))
        compare = self._keys.compare(Compare(STORE_KEY, after_revision))
        await self._change(txn([mark], compares=[compare]))

    async def _change(self, body: bytes) -> TxnAnswer:
        answer = await self._gateway.ask("/v3/kv/txn", body, once=True)
        try:
            return read_txn(answer)
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"{self.name}: did not answer like etcd: {error}") from None

    # --- leases ----------------------------------------------------------------------------

    async def grant(self, ttl_s: float) -> Lease:
        asked = written({"TTL": str(max(1, math.ceil(ttl_s)))})
        with self._counted():
            granted = self._lease(read_lease, await self._gateway.ask("/v3/lease/grant", asked))
            if granted is None:
                raise StoreUnavailable(f"{self.name}: did not grant a lease")
            return granted

    async def renew(self, lease_id: int) -> Lease:
        asked = written({"ID": str(lease_id)})
        with self._counted():
            answer = await self._gateway.ask("/v3/lease/keepalive", asked)
            renewed = self._lease(lambda body: read_keep_alive(body).result, answer)
            if renewed is None:
                raise LeaseLost(f"{self.name}: the lease is gone: it expired, or was revoked")
            return renewed

    async def revoke(self, lease_id: int) -> None:
        with self._counted(), suppress(LeaseLost):
            await self._gateway.ask("/v3/lease/revoke", written({"ID": str(lease_id)}))

    def _lease(self, read: Callable[[bytes], LeaseAnswer], answer: bytes) -> Lease | None:
        try:
            told = read(answer)
        except msgspec.DecodeError as error:
            raise StoreUnavailable(f"{self.name}: did not answer with a lease: {error}") from None
        return Lease(told.ID, float(told.TTL)) if told.TTL > 0 else None


MAX_COMMIT_OPS = 128
"""etcd's --max-txn-ops; compares and puts are counted separately."""
MAX_COMMIT_BYTES = 1024 * 1024
"""etcd's --max-request-bytes is 1.5 MiB; its own frame, and base64, have to fit in as well."""


def check_commit(compares: Sequence[Compare], puts: Sequence[Put]) -> None:
    """ValueError with what is too large: a fault of the caller, not of the store."""
    most = max(len(compares), len(puts))
    if most > MAX_COMMIT_OPS:
        raise ValueError(f"{most} keys in one commit, at most {MAX_COMMIT_OPS} allowed")
    if not all(put.key for put in puts) or not all(compare.key for compare in compares):
        raise ValueError("a commit names an empty key")
    if len({put.key for put in puts}) < len(puts):
        raise ValueError("a commit puts the same key twice")
    size_bytes = sum(len(put.key.encode()) + len(put.value or b"") for put in puts)
    if size_bytes > MAX_COMMIT_BYTES:
        raise ValueError(f"{size_bytes} bytes in one commit, at most {MAX_COMMIT_BYTES} allowed")


class WatchStep(NamedTuple):
    standing: EtcdPosition
    """Revision when the watch was opened."""
    revision: int
    """Nothing up to it comes any more."""
    events: Sequence[KeyEvent]


class EtcdFollower:
    """Every change below some prefixes, from a revision on.

    What a reading can tell beforehand is found out before anything is waited for: that the data are
    others than were listed, or have come back from an older copy, or no longer know that revision.
    """

    def __init__(
        self, gateway: Gateway, keys: Keys, prefixes: Sequence[str], known: EtcdPosition | None
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._prefixes = prefixes
        self._known = known
        """What was listed; None if another object did that."""

    async def steps(self, after_revision: int) -> AsyncGenerator[WatchStep]:
        """The first one as soon as the watch is open, with all that was missed."""
        spans = [self._keys.span(prefix) for prefix in self._prefixes]
        body = watches(spans, start_revision=after_revision + 1)
        async with self._gateway.stream("/v3/watch", body) as (endpoint, chunks):
            reader = WatchReader(endpoint.authority, chunks)
            try:
                async with aclosing(self._read(reader, after_revision)) as steps:
                    async for step in steps:
                        yield step
            finally:
                await reader.close()

    async def _read(self, reader: WatchReader, after_revision: int) -> AsyncGenerator[WatchStep]:
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
        order = CommitOrder(reader.where, through, single=self._is_single)
        order.hear(since)
        async with aclosing(self._ordered(reader, order)) as changes:
            async for revision, events in changes:
                yield self._step(standing, revision, events)

    @property
    def _is_single(self) -> bool:
        return len(self._prefixes) == 1

    def _step(
        self, standing: EtcdPosition, revision: int, events: Sequence[EventAnswer]
    ) -> WatchStep:
        return WatchStep(standing, revision, self._keys.events(events))

    # --- opening ---------------------------------------------------------------------------

    async def _opened(self, reader: WatchReader) -> tuple[dict[int, int], list[WatchAnswer]]:
        """Which watch got which id; and what the first of them sent before the last one opened."""
        numbers: dict[int, int] = {}
        early: list[WatchAnswer] = []
        until_s = _now_s() + self._gateway.timeout_s
        while len(numbers) < len(self._prefixes):
            answer = await reader.next(max(0.0, until_s - _now_s()))
            if answer is None:
                raise EtcdSilent(f"did not open a watch in {self._gateway.timeout_s:.1f} s")
            if answer.created:
                numbers[answer.watch_id] = len(numbers)
            early.append(answer)
        return numbers, early

    async def _missed(self, where: str, after_revision: int) -> tuple[EtcdPosition, list[Missed]]:
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
        self, reader: WatchReader, catch_up: CatchUp, numbers: Mapping[int, int]
    ) -> None:
        while not catch_up.is_done():
            answer = await reader.next(self._gateway.timeout_s)
            if answer is None:
                words = f"did not send what came before revision {catch_up.through}"
                raise EtcdSilent(f"{words}: nothing in {self._gateway.timeout_s:.1f} s")
            catch_up.hear(numbers[answer.watch_id], answer.events)
            if catch_up.is_too_much():
                raise too_much(reader.where)

    # --- going on --------------------------------------------------------------------------

    async def _ordered(
        self, reader: WatchReader, order: CommitOrder
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


STORE_KEY = "store"
# Members allow 128.
MAX_OPS = 100
PAGE_KEYS = 500
MAX_LISTING_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EtcdPosition:
    """Which data they are, and how far."""

    cluster_id: int
    mark: KeyValue | None
    """None: Headgate has not written here."""
    revision: int

    @property
    def store_id(self) -> str:
        made = "unmarked" if self.mark is None else self.mark.value.decode(errors="replace")
        return f"etcd-{self.cluster_id:016x}-{made}"

    def continues(self, earlier: EtcdPosition) -> bool:
        """The same data; also if they were given their name only since."""
        named_since = self.mark is not None and self.mark.create_revision > earlier.revision
        if earlier.mark is None and named_since:
            return self.cluster_id == earlier.cluster_id
        return self.store_id == earlier.store_id


@dataclass(frozen=True, slots=True)
class EtcdRead:
    standing: EtcdPosition
    ranges: list[RangeAnswer]


class Ranges:
    """Many ranges read at one revision, however many and large they are.

    The entry `store` below our prefix holds a name made up for the data: cluster ids do not change
    when the same members come back with empty disks. No reader of ours ever sees it.

    One is for one request: `any_member` also accepts one that has lost the others.
    """

    def __init__(self, gateway: Gateway, keys: Keys, *, any_member: bool = False) -> None:
        self._gateway = gateway
        self._keys = keys
        self._any_member = any_member

    async def read(self, spans: Sequence[Op], **options: Any) -> EtcdRead:
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
        return EtcdRead(EtcdPosition(header.cluster_id, kv, header.revision), ranges)

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

    async def entries(self, prefixes: Sequence[str]) -> tuple[EtcdPosition, list[Entry]]:
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
    ) -> tuple[EtcdPosition, list[Missed]]:
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


# A member sends at most 1.5 MB and a bit at once, as asked for; in base64 that is a third more.
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_HELD_BYTES = 32 * 1024 * 1024
SETTLE_S = 0.02


async def lines(chunks: Chunks, *, max_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
    """Each is a message, whole."""
    rest = bytearray()
    async for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for piece in whole:
            rest += piece
            line, rest = bytes(rest), bytearray()
            if line:
                yield line
        rest += last
        if len(rest) > max_bytes:
            raise EtcdSilent(f"sent more than {max_bytes // 1024} kB in one message of a watch")
    if rest:  # its last words: it does not end that line
        yield bytes(rest)
    raise EtcdSilent("ended the watch")


class WatchReader:
    """What a member says, one message after the other. No read is ever given up halfway: that
    would cost the connection."""

    def __init__(self, where: str, chunks: Chunks) -> None:
        self.where = where
        self._lines = lines(chunks)
        self._pending: asyncio.Task[bytes] | None = None

    async def next(self, within_s: float | None = None) -> WatchAnswer | None:
        """None: it said nothing in that time."""
        answer = await self._one(within_s)
        if answer is None or not answer.fragment:
            return answer
        return await self._joined(answer)

    async def _joined(self, answer: WatchAnswer) -> WatchAnswer:
        """Events of one commit may have been cut apart."""
        pieces, held_bytes = list(answer.events), _bytes_of(answer.events)
        while answer.fragment:
            more = await self._one(None)
            assert more is not None
            answer = more
            pieces += answer.events
            held_bytes += _bytes_of(answer.events)
            if held_bytes > MAX_HELD_BYTES:
                raise too_much(self.where)
        return msgspec.structs.replace(answer, events=tuple(pieces))

    async def _one(self, within_s: float | None) -> WatchAnswer | None:
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._lines))
        done, _ = await asyncio.wait({self._pending}, timeout=within_s)
        if not done:
            return None
        line, self._pending = self._pending.result(), None
        return self._read(line)

    def _read(self, line: bytes) -> WatchAnswer:
        try:
            told = read_line(line)
        except msgspec.DecodeError as error:
            raise EtcdSilent(f"sent something else than a watch message: {error}") from None
        if told.error is not None:
            raise faults.of_error(self.where, told.error)
        if told.result is None:
            raise EtcdSilent("sent neither a watch message nor an error")
        _must_go_on(self.where, told.result)
        return told.result

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._pending


def _must_go_on(where: str, answer: WatchAnswer) -> None:
    if not answer.canceled:
        return
    if answer.compact_revision:
        raise Compacted(
            f"etcd {where}: changes before revision {answer.compact_revision} are no longer known"
        )
    raise faults.of_reason(where, answer.cancel_reason)


def too_much(where: str) -> Compacted:
    limit = MAX_HELD_BYTES // 1024**2
    return Compacted(f"etcd {where}: more than {limit} MB of changes to catch up with: list again")


def _bytes_of(events: Iterable[EventAnswer]) -> int:
    return sum(len(event.kv.key) + len(event.kv.value) for event in events)


# --- what was missed ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Missed:
    """What a watch has to send about the time up to a revision, as a reading of then tells."""

    put: Mapping[bytes, int] = field(default_factory=dict)
    """Entries that are there and were put since, with their revisions."""
    ended: int = 0
    """How many that were there at the start were deleted since, even if they came again."""


@dataclass(slots=True)
class _Heard:
    """From one watch, up to the revision that is caught up with."""

    put: dict[bytes, int] = field(default_factory=dict)
    ended: set[bytes] = field(default_factory=set)
    came: set[bytes] = field(default_factory=set)
    """Did not exist at the start."""

    def hear(self, event: EventAnswer) -> None:
        key = event.kv.key
        if event.is_gone:
            self.put.pop(key, None)
            if key not in self.came:
                self.ended.add(key)
        else:
            self.put[key] = event.kv.mod_revision
            if event.kv.version == 1 and key not in self.ended:
                self.came.add(key)

    def has(self, missed: Missed) -> bool:
        return len(self.ended) == missed.ended and self.put == missed.put


class CatchUp:
    """Until every watch has sent all that it has to about the time up to `through`."""

    def __init__(self, through: int, missed: Sequence[Missed]) -> None:
        self.through = through
        self._missed = missed
        self._heard = [_Heard() for _ in missed]
        self._held: list[EventAnswer] = []
        self._held_bytes = 0

    def hear(self, at: int, events: Sequence[EventAnswer]) -> None:
        """Of the watch with that number."""
        self._held += events
        self._held_bytes += _bytes_of(events)
        for event in events:
            if event.kv.mod_revision <= self.through:
                self._heard[at].hear(event)

    def is_too_much(self) -> bool:
        return self._held_bytes > MAX_HELD_BYTES

    def is_done(self) -> bool:
        return all(
            heard.has(missed) for heard, missed in zip(self._heard, self._missed, strict=True)
        )

    def parted(self) -> tuple[list[EventAnswer], list[EventAnswer]]:
        """What was missed, in order; and what has come since."""
        ordered = sorted(self._held, key=_revision)
        cut = sum(_revision(event) <= self.through for event in ordered)
        return ordered[:cut], ordered[cut:]


def _revision(event: EventAnswer) -> int:
    return event.kv.mod_revision


# --- what comes --------------------------------------------------------------------------------


class CommitOrder:
    """Commits in order, out of the pieces that several watches have of them."""

    def __init__(self, where: str, through: int, *, single: bool = False) -> None:
        """`single`: there is one watch only, which tells each commit whole."""
        self._where = where
        self._single = single
        self.through = through
        """Nothing up to this revision comes any more."""
        self._held: list[EventAnswer] = []

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def hear(self, events: Sequence[EventAnswer]) -> None:
        late = next((event for event in events if _revision(event) <= self.through), None)
        if late is not None:
            raise Compacted(
                f"etcd {self._where}: a change of revision {_revision(late)} came after "
                f"{self.through}: the member cannot keep up; list again"
            )
        self._held += events

    def take(self, *, newest_too: bool) -> list[EventAnswer]:
        """What is whole: all but the newest commit; that one too once nothing more came."""
        if not self._held:
            return []
        newest = max(map(_revision, self._held))
        end = newest if newest_too else newest - 1
        ready = sorted((e for e in self._held if _revision(e) <= end), key=_revision)
        self._held = [event for event in self._held if _revision(event) > end]
        self.through = max(self.through, newest if self._single else newest - 1)
        return ready


__all__ = ["SETTLE_S", "CatchUp", "CommitOrder", "Missed", "WatchReader", "lines", "too_much"]
