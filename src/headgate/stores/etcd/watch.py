"""One stream with several watches, put in order again.

    stream ──► Reader ──WatchAnswer──► CatchUp (what was missed) ──► Order (what comes) ──► Changes

etcd keeps the order within each watch only. It sends what each of them missed one watch after the
other, without a mark at the end: CatchUp knows from a reading what has to come. From then on a
commit's pieces follow each other, one for each watch that matches, and Order keeps them until
something newer comes, or nothing for a moment. In that case it is unknown whether it was all: the
connection may have stalled. So the commit is passed on, but not marked complete, until something
newer has come. A piece that comes later than that makes us list again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from headgate.errors import Compacted
from headgate.stores.etcd import faults
from headgate.stores.etcd.faults import NoAnswer
from headgate.stores.etcd.gateway import Chunks
from headgate.stores.etcd.messages import EventAnswer, WatchAnswer, read_line

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
            raise NoAnswer(f"sent more than {max_bytes // 1024} kB in one message of a watch")
    if rest:  # its last words: it does not end that line
        yield bytes(rest)
    raise NoAnswer("ended the watch")


class Reader:
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
            raise NoAnswer(f"sent something else than a watch message: {error}") from None
        if told.error is not None:
            raise faults.of_error(self.where, told.error)
        if told.result is None:
            raise NoAnswer("sent neither a watch message nor an error")
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


class Order:
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


__all__ = ["SETTLE_S", "CatchUp", "Missed", "Order", "Reader", "lines", "too_much"]
