"""The fleet's store in etcd.   agent/ports.SharedLog ──► EtcdStore ──► gateway ──► its members"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from uuid import uuid4

import msgspec

from headgate.core.keyvalue import Changes, Compare, Lease, Listing, Put
from headgate.errors import Conflict, LeaseLost, OutcomeUnknown, StoreUnavailable
from headgate.stores.etcd.access import EtcdAccess
from headgate.stores.etcd.following import Following
from headgate.stores.etcd.gateway import Gateway
from headgate.stores.etcd.limits import MAX_COMMIT_OPS, check_commit
from headgate.stores.etcd.messages import (
    Keys,
    LeaseAnswer,
    TxnAnswer,
    range_op,
    read_keep_alive,
    read_lease,
    read_txn,
    txn,
    written,
)
from headgate.stores.etcd.reading import STORE_KEY, Ranges, Standing

TIMEOUT_S = 2.0
NAMED_ENDPOINTS = 3
NAMED_KEYS = 3


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
        self._known: Standing | None = None
        """The highest revision that a quorum has reported."""
        self._returns = 0
        """How often data without an id came back from an older copy."""

    @property
    def name(self) -> str:
        shown = [endpoint.authority for endpoint in self._gateway.endpoints[:NAMED_ENDPOINTS]]
        more = ["…"] if len(self._gateway.endpoints) > NAMED_ENDPOINTS else []
        return f"etcd {', '.join(shown + more)}"

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Requests by outcome: ok, conflict, unavailable, `refused`, unknown, compacted."""
        return MappingProxyType(self._gateway.outcomes)

    async def close(self) -> None:
        await self._gateway.close()

    # --- reading ---------------------------------------------------------------------------

    async def list(self, prefixes: Sequence[str], *, at_any_member: bool = False) -> Listing:
        asked = widest(prefixes)
        known = self._known
        ranges = Ranges(self._gateway, self._keys, any_member=at_any_member)
        standing, entries = await ranges.entries(asked)
        if not at_any_member:
            if known is not None and _went_back(known, standing):
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
        following = Following(self._gateway, self._keys, widest(prefixes), self._known)
        async with aclosing(following.steps(after_revision)) as steps:
            async for standing, revision, events in steps:
                changes = Changes(tuple(e for e in events if e.key != STORE_KEY), revision)
                heard = max(standing.revision, changes.newest)
                self._note_heard(replace(standing, revision=heard))
                yield changes

    async def count(self, prefix: str) -> int:
        ranges = Ranges(self._gateway, self._keys)
        reading = await ranges.read([self._keys.span(prefix)], count_only=True)
        hidden = STORE_KEY.startswith(prefix) and reading.standing.mark is not None
        return reading.ranges[0].count - hidden

    def _note(self, standing: Standing) -> None:
        known = self._known
        same = known is not None and known.store_id == standing.store_id
        if known is None or not same or standing.revision > known.revision:
            self._known = standing

    def _note_heard(self, standing: Standing) -> None:
        """By a watch, which knows the name that the data had when it was opened."""
        if self._known is None or self._known.store_id == standing.store_id:
            self._note(standing)

    async def _mark_anew(self, known: Standing, standing: Standing) -> None:
        """The same data at an older revision: they came back from a copy. Revisions that were
        seen will mean something else, and everybody is to notice."""
        self._known = None
        if standing.mark is None:
            self._returns += 1
            return
        compare = Compare(STORE_KEY, standing.mark.mod_revision)
        body = txn([self._mark()], compares=[self._keys.compare(compare)])
        try:
            await self._change(body)
        except StoreUnavailable as error:
            self._known = known
            raise StoreUnavailable(
                f"etcd is at revision {standing.revision}, but was at {known.revision} before: its "
                f"data came back from an older copy, which could not be marked: {error}"
            ) from None

    # --- writing ---------------------------------------------------------------------------

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put]) -> int:
        check_commit(compares, puts)
        answer = await self._commit(compares, puts)
        if not answer.succeeded and not answer.ranges[0].count:
            await self._make_mark()
            answer = await self._commit(compares, puts)
        if not answer.succeeded:
            self._gateway.outcomes["conflict"] += 1
            raise Conflict(f"etcd: {_named(compares)} changed meanwhile")
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

    async def _make_mark(self) -> None:
        await self._change(
            txn([self._mark()], compares=[self._keys.compare(Compare(STORE_KEY, 0))])
        )

    def _mark(self) -> dict[str, object]:
        return self._keys.put(Put(STORE_KEY, uuid4().hex.encode()))

    async def _change(self, body: bytes) -> TxnAnswer:
        answer = await self._gateway.ask("/v3/kv/txn", body, once=True)
        try:
            return read_txn(answer)
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"{self.name}: did not answer like etcd: {error}") from None

    # --- leases ----------------------------------------------------------------------------

    async def grant(self, ttl_s: float) -> Lease:
        asked = written({"TTL": str(max(1, math.ceil(ttl_s)))})
        granted = self._lease(read_lease, await self._gateway.ask("/v3/lease/grant", asked))
        if granted is None:
            raise StoreUnavailable(f"{self.name}: did not grant a lease")
        return granted

    async def renew(self, lease_id: int) -> Lease:
        asked = written({"ID": str(lease_id)})
        answer = await self._gateway.ask("/v3/lease/keepalive", asked)
        renewed = self._lease(lambda body: read_keep_alive(body).result, answer)
        if renewed is None:
            raise LeaseLost(f"{self.name}: the lease is gone: it expired, or was revoked")
        return renewed

    async def revoke(self, lease_id: int) -> None:
        try:
            await self._gateway.ask("/v3/lease/revoke", written({"ID": str(lease_id)}))
        except LeaseLost:
            return

    def _lease(self, read: Callable[[bytes], LeaseAnswer], answer: bytes) -> Lease | None:
        try:
            told = read(answer)
        except msgspec.DecodeError as error:
            raise StoreUnavailable(f"{self.name}: did not answer with a lease: {error}") from None
        return Lease(told.ID, float(told.TTL)) if told.TTL > 0 else None


def _went_back(known: Standing, standing: Standing) -> bool:
    return known.store_id == standing.store_id and standing.revision < known.revision


def _named(compares: Sequence[Compare]) -> str:
    shown = [compare.key for compare in compares[:NAMED_KEYS]]
    more = [f"or {len(compares) - NAMED_KEYS} more"] if len(compares) > NAMED_KEYS else []
    return ", ".join(shown + more) or "an entry"
