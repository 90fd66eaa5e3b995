"""The ring of traces in a server's region, read while it is written.   region ──► Trace

Each has a stamp: odd while it is written, and its number once it is whole. It is looked at before
and after, so that a half-written one is lost and not believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from headgate.budgets.ask import Limit, StatementIdentity, StatementVerdict
from headgate.budgets.native.layout import HgRegion
from headgate.budgets.native.region import RegionView
from headgate.budgets.pgext.region import mapped_region
from headgate.budgets.pgext.threads import OneCall
from headgate.budgets.traces import Trace, TraceBatch
from headgate.errors import MeterFailed

TRACE = Struct("<QqQQQQQdfIHBBBB16sBBBxHH410s")
STAMP = Struct("<Q")
MAX_BLOCKED = 2000.0
"""In the 10 ms that one trace covers: not even a blocked statement takes less than 5 us."""
MAX_KNOWN = 4096
"""Clients and sets of tags that are kept once, however many traces name them."""


class TraceReader:
    """The TraceSource of one server on this host, restarted or not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reading = OneCall(f"reading the traces of {directory}", MeterFailed)

    async def traces_since(self, sequence: int, started_ms: int) -> TraceBatch:
        return await self._reading.run(lambda: self.read_now(sequence, started_ms))

    def read_now(self, sequence: int, started_ms: int) -> TraceBatch:
        """From the `sequence`-th of the server that started then; of another, from its first."""
        with mapped_region(self._directory) as (_, memory):
            return traces_in(memory, sequence, started_ms)


def traces_in(memory: memoryview, sequence: int, started_ms: int) -> TraceBatch:
    ring = _Ring.of(memory)
    wanted = sequence if started_ms == ring.started_ms else 0
    first = max(wanted, ring.written - ring.places)
    found = tuple(_each(memory, ring, first)) if ring.places else ()
    lost = ring.written - wanted - len(found) if ring.places else 0
    return TraceBatch(found, ring.written, max(0, lost), ring.started_ms)


class _Ring(NamedTuple):
    at: int
    places: int
    """A power of two, or 0: none are kept."""
    written: int
    """Ever."""
    started_ms: int

    @classmethod
    def of(cls, memory: memoryview) -> _Ring:
        RegionView(memory)  # whether it is one at all
        head = HgRegion.from_buffer_copy(memory)
        ring = cls(head.traces_at, head.sizes.traces, head.traced, head.started_ms)
        end = ring.at + ring.places * TRACE.size
        if ring.places & (ring.places - 1) or end > min(len(memory), head.length):
            raise MeterFailed("the server's memory cannot be read: its traces lie outside of it")
        return ring


def _each(memory: memoryview, ring: _Ring, first: int) -> Iterator[Trace]:
    for number in range(first, ring.written):
        at = ring.at + (number & (ring.places - 1)) * TRACE.size
        whole = 2 * number + 2
        if STAMP.unpack_from(memory, at)[0] != whole:
            continue
        raw = bytes(memory[at : at + TRACE.size])
        # Copied, and the same still: nobody began to write another over it meanwhile.
        if STAMP.unpack_from(memory, at)[0] == whole and (trace := read_trace(raw)) is not None:
            yield trace


def read_trace(raw: bytes) -> Trace | None:
    """None: it says what no trace says."""
    words = TRACE.unpack(raw)
    stamp, wall_ms, query_id, fingerprint, estimate_ns, actual_ns, wall_ns = words[:7]
    plan_cost, weight, budget, workers, verdict, limit, flags, family, address = words[7:16]
    if verdict >= len(StatementVerdict) or limit >= len(Limit) or not weight > 0:
        return None
    names = _names(words)
    if names is None:
        return None
    username, database, application, tags = names
    return Trace(
        sequence=stamp // 2 - 1,
        wall_ms=wall_ms,
        who=_who(username, database, application, family, address),
        tags=_tags(tags),
        tags_left_out=words[20],
        query_id=query_id,
        fingerprint=fingerprint,
        plan_cost=plan_cost,
        estimate_ns=estimate_ns,
        actual_ns=actual_ns,
        wall_ns=wall_ns,
        workers=max(1, workers),
        weight=max(1.0, min(weight, MAX_BLOCKED) if verdict == StatementVerdict.BLOCK else weight),
        verdict=StatementVerdict(verdict),
        limit=Limit(limit),
        budget=budget,
        flags=flags,
    )


def _names(words: tuple[Any, ...]) -> tuple[bytes, bytes, bytes, bytes] | None:
    lengths, text = (*words[16:19], words[19]), words[21]
    if sum(lengths) > len(text):
        return None
    ends = [sum(lengths[: at + 1]) for at in range(len(lengths))]
    username, database, application, tags = (
        text[end - length : end] for end, length in zip(ends, lengths, strict=True)
    )
    return username, database, application, tags


@lru_cache(MAX_KNOWN)
def _who_of(parts: tuple[bytes, bytes, bytes], address: bytes) -> StatementIdentity:
    username, database, application = (part.decode("utf-8", "surrogateescape") for part in parts)
    return StatementIdentity(
        username or None, database or None, application or None, _address(address)
    )


def _address(packed: bytes) -> IPv4Address | IPv6Address | None:
    if not packed:
        return None
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


@lru_cache(MAX_KNOWN)
def _tags(raw: bytes) -> tuple[tuple[bytes, bytes], ...]:
    words = raw.split(b"\0")[:-1]
    return tuple(zip(words[::2], words[1::2], strict=False))


def _who(
    username: bytes, database: bytes, application: bytes, family: int, address: bytes
) -> StatementIdentity:
    width = {4: 4, 6: 16}.get(family, 0)
    return _who_of((username, database, application), address[:width])
