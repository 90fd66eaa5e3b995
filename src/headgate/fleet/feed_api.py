"""Entries of the fleet that one agent passes on to another, as JSON.

    Mirror ──► fleet/routes ──FeedPageDoc, FeedChangesDoc──► fleet/feed_reader ──► Mirror there

Revisions and the store's id are the store's own: a follower of an agent can continue at the store
where it stopped, and the other way round. A listing comes in pages, all of one revision; a commit
comes complete, or not at all (410: list again). Both fit into a message between peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from headgate.base.keyvalue import Changes, Entry, KeyEvent, Listing
from headgate.changes.state import MAX_ITEM_BYTES
from headgate.errors import StoreUnavailable

VERSION = 1
FEED, FEED_CHANGES = "/v1/fleet/feed", "/v1/fleet/feed/changes"
MAX_WAIT_S = 30.0
MAX_PREFIXES = 64
MAX_KEY_CHARS = 1024
MAX_STORE_ID_CHARS = 128
MAX_REVISION = 2**63 - 1
MAX_MARK = 2**53
PAGE_BYTES = 96 * 1024
"""Bytes of keys and values; a page ends with the entry that exceeds it. In JSON that is at most
214 kB: a message between peers takes 256 KiB."""
CHANGES_BYTES = 150 * 1024
"""Of the commits in one answer. A larger single commit is not sent: its reader lists again."""
MAX_PAGE_ENTRIES = 1000
_ENTRY_BYTES = 80
"""What JSON adds to a key and a value, at most."""

Revision = Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]
StoreId = Annotated[str, msgspec.Meta(max_length=MAX_STORE_ID_CHARS)]
_Mark = Annotated[int, msgspec.Meta(ge=0, le=MAX_MARK)]
_Version = Annotated[int, msgspec.Meta(ge=1, le=MAX_REVISION)]
_Value = Annotated[bytes, msgspec.Meta(max_length=MAX_ITEM_BYTES)]


class FeedEntryDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    key: Key
    revision: Revision
    value: _Value | None = None
    """In base64. Null, among changes: it was deleted."""


class FeedPageDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """`GET /v1/fleet/feed`: entries under some prefixes, by key."""

    version: _Version
    store_id: StoreId
    revision: Revision
    entries: Annotated[list[FeedEntryDoc], msgspec.Meta(max_length=MAX_PAGE_ENTRIES)] = []
    next: str | None = None
    """There is more: continue with `revision` and `from=` this key."""
    mark: _Mark = 0
    """On the first page: pass it on to get what came since, and nothing twice."""


class FeedChangesDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """`GET /v1/fleet/feed/changes`: what commits did, in order and each whole; but of the newest
    more may come, as long as it is beyond `revision`."""

    version: _Version
    store_id: StoreId
    revision: Revision
    """Nothing up to it comes after."""
    events: Annotated[list[FeedEntryDoc], msgspec.Meta(max_length=10 * MAX_PAGE_ENTRIES)] = []
    mark: _Mark = 0
    """Continue from here; 0: from `revision`, because this was not all."""


class FeedPage(NamedTuple):
    entries: tuple[Entry, ...]
    revision: int
    store_id: str
    next: str | None
    mark: int = 0


class News(NamedTuple):
    changes: Changes
    store_id: str
    """The store they belong to."""
    mark: int = 0


_encode = msgspec.json.Encoder().encode
_decode_page = msgspec.json.Decoder(FeedPageDoc).decode
_decode_changes = msgspec.json.Decoder(FeedChangesDoc).decode


# --- requests --------------------------------------------------------------------------------


def feed_target(prefixes: Sequence[str], *, revision: int | None = None, start: str = "") -> str:
    """The first page; with the `revision` and `next` of one, the page after it."""
    on = [] if revision is None else [("revision", str(revision)), ("from", start)]
    return f"{FEED}?{urlencode([*_prefixes(prefixes), *on])}"


def changes_target(
    prefixes: Sequence[str],
    *,
    after_revision: int,
    wait_s: float,
    store_id: str = "",
    mark: int = 0,
) -> str:
    """`store_id`, `mark`: of what is known already; an agent that has others answers 410."""
    asked = [("after", str(after_revision)), ("wait_s", f"{wait_s:g}")]
    known = [("store_id", store_id)] if store_id else []
    known += [("mark", str(mark))] if mark else []
    return f"{FEED_CHANGES}?{urlencode([*_prefixes(prefixes), *asked, *known])}"


def _prefixes(prefixes: Sequence[str]) -> list[tuple[str, str]]:
    return [("prefix", prefix) for prefix in prefixes]


# --- answering -------------------------------------------------------------------------------


def feed_page(listing: Listing, *, start: str = "", mark: int = 0) -> FeedPageDoc:
    """The entries from `start` on, as many as a page holds."""
    entries, following = _page_of([entry for entry in listing.entries if entry.key >= start])
    docs = [FeedEntryDoc(entry.key, entry.revision, entry.value) for entry in entries]
    return FeedPageDoc(VERSION, listing.store_id, listing.revision, docs, following, mark)


def _page_of(entries: Sequence[Entry]) -> tuple[Sequence[Entry], str | None]:
    told_bytes = 0
    for place, entry in enumerate(entries):
        if told_bytes >= PAGE_BYTES or place >= MAX_PAGE_ENTRIES:
            return entries[:place], entry.key
        told_bytes += _size(entry.key, entry.value)
    return entries, None


def encode_changes(changes: Changes, store_id: str, *, mark: int = 0) -> bytes | None:
    """As many whole commits as fit into one answer; None if the first alone is too large."""
    told = _whole_commits(changes)
    if told is None:
        return None
    docs = [FeedEntryDoc(event.key, event.revision, event.value) for event in told.events]
    reached = mark if told is changes else 0
    return _encode(FeedChangesDoc(VERSION, store_id, told.revision, docs, reached))


def _whole_commits(changes: Changes) -> Changes | None:
    events: list[KeyEvent] = []
    told_bytes, last = 0, None
    for revision, group in groupby(changes.events, key=lambda event: event.revision):
        commit = list(group)
        told_bytes += sum(_size(event.key, event.value) for event in commit)
        if told_bytes > CHANGES_BYTES:
            return None if last is None else Changes(tuple(events), min(last, changes.revision))
        events += commit
        last = revision
    return changes


def _size(key: str, value: bytes | None) -> int:
    return len(key.encode()) + len(value or b"") + _ENTRY_BYTES


# --- reading ---------------------------------------------------------------------------------


def decode_page(body: bytes) -> FeedPage:
    """StoreUnavailable where it is none."""
    doc = _read(_decode_page, body)
    entries = []
    for one in doc.entries:
        if one.value is None:
            raise StoreUnavailable(f"a page of the feed has {one.key!r} without a value")
        entries.append(Entry(one.key, one.value, one.revision))
    return FeedPage(tuple(entries), doc.revision, doc.store_id, doc.next, doc.mark)


def decode_changes(body: bytes) -> News:
    doc = _read(_decode_changes, body)
    events = tuple(KeyEvent(one.key, one.value, one.revision) for one in doc.events)
    return News(Changes(events, doc.revision), doc.store_id, doc.mark)


def whole(pages: Iterable[FeedPage]) -> Listing:
    """Pages of one revision, together."""
    given = list(pages)
    if len({(page.revision, page.store_id) for page in given}) != 1:
        raise StoreUnavailable("pages of the feed have different revisions")
    entries = tuple(entry for page in given for entry in page.entries)
    return Listing(entries, given[0].revision, given[0].store_id)


_Doc = TypeVar("_Doc", FeedPageDoc, FeedChangesDoc)


def _read(decode: Callable[[bytes], _Doc], body: bytes) -> _Doc:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreUnavailable(f"the feed of another agent cannot be read: {error}") from None
