"""What agents of a shard tell each other of its changes, as JSON.   shard/peers ◄──► routes

A change crosses as the very bytes that its maker has put: what this version does not know of it is
passed on to agents that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from headgate.changes.exchanged import (
    MAX_BY_CHARS,
    MAX_KEY_CHARS,
    Entry,
    ExchangeAnswer,
    Offer,
    Version,
    VersionPage,
)
from headgate.changes.state import Copies
from headgate.errors import InvalidRequest, PeerFailed
from headgate.metrics.samples import Cause
from headgate.shard.peers_api import MAX_COUNT, MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_WAIT_S

VERSION = 1
MAX_ENTRIES = 2000
MAX_VERSIONS = 5000
MAX_LEFT_OUT = 100

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
_Key = Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)]
_Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_Wait = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]


class ExchangeEntryDoc(msgspec.Struct, frozen=True, array_like=True):
    key: _Key
    item: msgspec.Raw
    """The change, as it is stored."""


class VersionDoc(msgspec.Struct, frozen=True, array_like=True):
    """Which version of a change an agent has."""

    key: _Key
    again: _Number
    taken_out: bool
    set_at: float
    n: _Number
    set_by: Annotated[str, msgspec.Meta(max_length=MAX_BY_CHARS)]
    mark: Annotated[str, msgspec.Meta(min_length=16, max_length=16, pattern="^[0-9a-f]*$")]
    """Hash of its bytes."""


_Entries = Annotated[list[ExchangeEntryDoc], msgspec.Meta(max_length=MAX_ENTRIES)]


class PageDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that the sender has between two keys."""

    have: Annotated[list[VersionDoc], msgspec.Meta(max_length=MAX_VERSIONS)]
    """What the sender has: each key with its version."""
    upto: _Key = ""
    """Empty: to the end."""


class OfferDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """`POST /v1/changes/exchange`: an agent tells another of the changes of their shard."""

    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
    shard: _Name
    database: _Name
    """The receiver's name for the database."""
    sender: _Name
    digest: _Digest
    """Number of changes that the sender has."""
    entries: _Entries = []
    page: PageDoc | None = None
    """A part of what the sender has, to compare; null: none."""
    after: _Key = ""
    """The key behind which the page begins."""
    wait_s: _Wait = 0.0
    """How long the answer may be delayed while both have the same."""
    standby: bool = False
    cluster: Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)] = ""
    """Of the sender's server, as that reports it; empty: not known."""


class ExchangedDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it answers."""

    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
    digest: _Digest
    """Of everything that it has, including what it received."""
    entries: _Entries = []
    """What the sender lacks."""
    want: Annotated[list[_Key], msgspec.Meta(max_length=MAX_VERSIONS)] = []
    """Keys of what the receiver lacks itself."""
    upto: _Key = ""
    """How far the page was compared; empty: all of it."""
    left_out: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_LEFT_OUT)] = {}
    """Changes that have no effect at the receiver, by id, with the reason."""


class CopiesDoc(msgspec.Struct, frozen=True):
    """Who has a change of a shard, besides this agent."""

    have: int
    of: int
    """Agents of replicas."""
    missing: Sequence[str]
    """Replicas without a copy, and why."""
    standby: bool | None
    """Whether the standby of this agent has it; null: there is no standby."""
    says: str
    """As one line: `in force here; 2 of 2 replicas have a copy`."""
    left_out: Mapping[str, str] = {}
    """Replicas where the change has no effect, with the reason."""


def copies_doc(copies: Copies | None) -> CopiesDoc | None:
    if copies is None:
        return None
    idle = {member: why for (_, member), why in copies.left_out.items()}
    return CopiesDoc(copies.have, copies.of, copies.missing, copies.standby, copies.words, idle)


_encode = msgspec.json.Encoder().encode
_decode_offer = msgspec.json.Decoder(OfferDoc).decode
_decode_answer = msgspec.json.Decoder(ExchangedDoc).decode
# What cannot be decoded; a lone surrogate is a ValueError, deep nesting a RecursionError.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_offer(offer: Offer) -> bytes:
    page = offer.page
    have = [] if page is None else [_version_doc(*one) for one in page.have]
    return _encode(
        OfferDoc(
            version=VERSION,
            shard=offer.shard,
            database=offer.database,
            sender=offer.sender,
            digest=offer.digest,
            entries=_entry_docs(offer.entries),
            page=None if page is None else PageDoc(have, page.upto),
            after=offer.after,
            wait_s=offer.wait_s,
            standby=offer.is_standby,
            cluster=offer.cluster[:MAX_TEXT_CHARS],
        )
    )


def encode_answer(answer: ExchangeAnswer) -> bytes:
    entries, want = _entry_docs(answer.entries), list(answer.want)
    told = [(one, why[:MAX_TEXT_CHARS]) for one, why in answer.left_out.items()]
    left_out = dict(told[:MAX_LEFT_OUT])
    return _encode(ExchangedDoc(VERSION, answer.digest, entries, want, answer.upto, left_out))


def decode_offer(body: bytes) -> Offer:
    try:
        doc = _decode_offer(body)
        if not all(name.isprintable() for name in (doc.shard, doc.database, doc.sender)):
            raise msgspec.ValidationError("a name that cannot be printed")
    except _UNREADABLE as error:
        raise InvalidRequest(f"the body is not an exchange of changes: {error}") from None
    page = doc.page
    return Offer(
        shard=doc.shard,
        database=doc.database,
        sender=doc.sender,
        digest=doc.digest,
        entries=_entries(doc.entries),
        page=None if page is None else VersionPage(tuple(map(_version, page.have)), page.upto),
        after=doc.after,
        wait_s=doc.wait_s,
        is_standby=doc.standby,
        cluster=doc.cluster,
    )


def decode_answer(body: bytes) -> ExchangeAnswer:
    try:
        doc = _decode_answer(body)
    except _UNREADABLE as error:
        raise PeerFailed(Cause.INVALID, f"did not answer with an exchange: {error}") from None
    entries = _entries(doc.entries)
    return ExchangeAnswer(doc.digest, entries, tuple(doc.want), doc.upto, doc.left_out)


def _entry_docs(entries: Sequence[Entry]) -> list[ExchangeEntryDoc]:
    return [ExchangeEntryDoc(key, msgspec.Raw(raw)) for key, raw in entries]


def _entries(docs: Sequence[ExchangeEntryDoc]) -> tuple[Entry, ...]:
    return tuple((doc.key, bytes(doc.item)) for doc in docs)


def _version_doc(key: str, version: Version) -> VersionDoc:
    again, taken_out, set_at, n, set_by, mark = version
    return VersionDoc(key, again, taken_out, set_at, n, set_by, f"{mark:016x}")


def _version(doc: VersionDoc) -> tuple[str, Version]:
    order = (doc.again, doc.taken_out, doc.set_at, doc.n, doc.set_by)
    return doc.key, Version(*order, int(doc.mark, 16))
