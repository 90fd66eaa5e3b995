"""Follow another agent instead of the store.   Mirror ◄── AgentReader ──► GET /v1/fleet/feed there

Implements the port LogReader over a peer's link. Revisions and the store's id are the store's
own, so that a follower may switch to the store where it left off here, and back again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from headgate.base.keyvalue import Changes, Listing
from headgate.base.problems import Problem
from headgate.errors import Compacted, PeerFailed, StoreRejected, StoreUnavailable
from headgate.fleet.feed_api import (
    changes_target,
    decode_changes,
    decode_page,
    feed_target,
    whole,
)

MAX_PAGES = 1000
LISTING_TRIES = 3
"""Pages are of one revision, which an agent holds for a while only."""
WAIT_S = 5.0
"""How long changes are waited for in one request; a beat comes sooner."""

_decode_problem = msgspec.json.Decoder(Problem).decode


class FeedLink(Protocol):
    """What is needed of PeerLink."""

    @property
    def url(self) -> str: ...

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = ...,
        headers: Mapping[str, str] = ...,
        *,
        timeout_s: float,
    ) -> tuple[int, bytes, Mapping[str, str]]: ...

    async def close(self) -> None: ...


class _Listed(NamedTuple):
    """What was listed last: changes must be of the same store; a follower that goes on from there
    names it by its mark."""

    store_id: str = ""
    prefixes: frozenset[str] = frozenset()
    revision: int = 0
    mark: int = 0

    def mark_for(self, prefixes: Sequence[str], after_revision: int) -> int:
        same = self.revision == after_revision and self.prefixes.issuperset(prefixes)
        return self.mark if same else 0


class AgentReader:
    """`link`: one of its own, since its requests are held; it is closed with the reader."""

    def __init__(self, link: FeedLink, *, timeout_s: float = 2.0, wait_s: float = WAIT_S) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._listed = _Listed()

    @property
    def name(self) -> str:
        return f"agent {self._link.url}"

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        for _ in range(LISTING_TRIES - 1):
            try:
                return await self._list(prefixes)
            except Compacted:
                continue  # It has moved on between two pages.
        return await self._list(prefixes)

    async def _list(self, prefixes: Sequence[str]) -> Listing:
        pages = [decode_page(await self._get(feed_target(prefixes)))]
        while (start := pages[-1].next) is not None:
            if len(pages) >= MAX_PAGES:
                raise StoreUnavailable(f"{self.name}: its feed does not end: {MAX_PAGES} pages")
            target = feed_target(prefixes, revision=pages[0].revision, start=start)
            pages.append(decode_page(await self._get(target)))
        listing = whole(pages)
        self._listed = _Listed(
            listing.store_id, frozenset(prefixes), listing.revision, pages[0].mark
        )
        return listing

    async def watch(
        self, prefixes: Sequence[str], *, after_revision: int
    ) -> AsyncGenerator[Changes]:
        revision, store_id = after_revision, self._listed.store_id
        mark = self._listed.mark_for(prefixes, after_revision)
        while True:
            target = changes_target(
                prefixes,
                after_revision=revision,
                wait_s=self._wait_s,
                store_id=store_id,
                mark=mark,
            )
            news = decode_changes(await self._get(target, held_s=self._wait_s))
            if store_id and news.store_id != store_id:
                raise Compacted(f"{self.name} follows another store now: list all changes again")
            revision, store_id = max(revision, news.changes.revision), news.store_id
            mark = news.mark
            yield news.changes

    async def close(self) -> None:
        await self._link.close()

    async def _get(self, target: str, *, held_s: float = 0.0) -> bytes:
        try:
            status, body, _ = await self._link.ask(
                "GET", target, timeout_s=held_s + self._timeout_s
            )
        except PeerFailed as error:
            raise StoreUnavailable(f"agent {error.detail}") from None
        if status == 200:
            return body
        raise _rejected(self.name, status, body)


def _rejected(name: str, status: int, body: bytes) -> StoreUnavailable:
    words = ""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        words = _decode_problem(body).detail[:300]
    if status == 410:
        return Compacted(f"{name}: {words or 'list all changes again'}")
    if status in (401, 403):
        return StoreRejected(
            f"{name} does not accept this agent as a peer ({status}): set token_file (or cert and "
            'key) of [peers] here, and there [[tokens]] with the role "peer"'
        )
    if status == 404:
        return StoreUnavailable(f"{name} has no feed of changes: it has no [fleet], or is older")
    return StoreUnavailable(f"{name} answered {status}{words and f': {words}'}")
