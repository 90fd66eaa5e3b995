"""The last good state of the fleet, on this host's disk.   LogCopies ──► LogCache ──► file

One file, always replaced as a whole: a line with length and checksum of what follows, then the copy
as JSON. A damaged file, or one of another version, is reported and renamed, and never used in part.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import structlog

from headgate.base.keyvalue import Entry, Listing
from headgate.changes.log_copy import CopyOrigin, LogCopy
from headgate.errors import StoreUnavailable
from headgate.store.worker import Ticket, Worker

T = TypeVar("T")

FORMAT, VERSION = "headgate-fleet-copy", 1
MAX_CACHE_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 1024
DEADLINE_S = 10.0
ASIDE = ".unreadable"

_ANY = CopyOrigin()
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _CopyHead(msgspec.Struct, frozen=True):
    format: str
    version: int
    bytes: int
    sha256: str


class _Copy(msgspec.Struct, frozen=True):
    store_id: str
    revision: _Count
    n: _Count
    wall_s: float
    prefixes: list[str]
    entries: list[tuple[str, _Count, bytes]]
    store_prefix: str = ""
    store_places: list[str] = []


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_CopyHead).decode
_decode_copy = msgspec.json.Decoder(_Copy).decode


class LogCache:
    """Reads and writes in a thread of its own: a disk that hangs holds up nobody."""

    def __init__(self, path: Path, origin: CopyOrigin = _ANY) -> None:
        """`origin`: source of the copy; a copy of another store is renamed."""
        self._path = path
        self._origin = origin
        self._worker: Worker | None = None

    @property
    def name(self) -> str:
        return str(self._path)

    async def load(self) -> LogCopy | None:
        """None: there is none. StoreUnavailable with the reason where it cannot be used."""
        return await self._run(self._load)

    async def save(self, copy: LogCopy) -> None:
        """All of it or nothing; StoreUnavailable, and then the last one stays."""
        await self._run(lambda: self._save(copy))

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    async def _run(self, job: Callable[[], T]) -> T:
        if self._worker is None:
            self._worker = Worker(f"fleet cache {self._path}", max_waiting=4)

        def settled(ticket: Ticket[T]) -> None:
            ticket.settle(job())

        return await self._worker.run(settled, until_mono_s=time.monotonic() + DEADLINE_S)

    # --- in its thread -----------------------------------------------------------------------

    def _load(self) -> LogCopy | None:
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_CACHE_BYTES + MAX_HEAD_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._fault("cannot be read", error.strerror or str(error)) from None
        try:
            return decoded(raw, self._origin)
        except ValueError as error:
            raise self._fault("cannot be used", f"{error}; {self._put_aside()}") from None

    def _put_aside(self) -> str:
        aside = self._path.with_name(self._path.name + ASIDE)
        try:
            self._path.replace(aside)
        except OSError:
            return "the next copy will replace it"
        return f"it was renamed to {aside.name}"

    def _save(self, copy: LogCopy) -> None:
        try:
            raw = encoded(copy, self._origin)
        except UnicodeEncodeError as error:
            raise self._fault("cannot be written", str(error)) from None
        if len(raw) > MAX_CACHE_BYTES:
            raise StoreUnavailable(
                f"the fleet cache {self._path} is not written: {len(raw):,} bytes, at most "
                f"{MAX_CACHE_BYTES:,} are allowed; the last copy stays"
            )
        staged = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _write(staged, raw)
            staged.replace(self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            with suppress(OSError):
                staged.unlink(missing_ok=True)
            raise self._fault("cannot be written", error.strerror or str(error)) from None

    def _fault(self, what: str, detail: str) -> StoreUnavailable:
        return StoreUnavailable(f"the fleet cache {self._path} {what}: {detail}")


def encoded(copy: LogCopy, origin: CopyOrigin = _ANY) -> bytes:
    listing = copy.listing
    body = _encode(
        _Copy(
            listing.store_id,
            listing.revision,
            copy.n,
            copy.wall_s,
            list(copy.prefixes),
            [(entry.key, entry.revision, entry.value) for entry in listing.entries],
            origin.prefix,
            list(origin.places),
        )
    )
    head = _CopyHead(FORMAT, VERSION, len(body), hashlib.sha256(body).hexdigest())
    return _encode(head) + b"\n" + body


def decoded(raw: bytes, origin: CopyOrigin = _ANY) -> LogCopy:
    """ValueError says what is wrong with it."""
    line, newline, body = raw.partition(b"\n")
    try:
        head = _decode_head(line[:MAX_HEAD_BYTES])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it does not begin like a copy of the fleet's state") from None
    if head.format != FORMAT or head.version != VERSION or not newline:
        raise ValueError(f"it is {head.format} {head.version}, not {FORMAT} {VERSION}")
    if len(body) != head.bytes:
        raise ValueError(f"it has {len(body):,} bytes where {head.bytes:,} were written")
    if hashlib.sha256(body).hexdigest() != head.sha256:
        raise ValueError("its checksum is wrong: it was damaged on disk")
    try:
        read = _decode_copy(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its content is not valid: {error}") from None
    kept_of = CopyOrigin(read.store_prefix, tuple(read.store_places))
    if kept_of.differs_from(origin):
        raise ValueError(f"it belongs to another store: {kept_of}, not {origin}")
    entries = tuple(Entry(key, value, revision) for key, revision, value in read.entries)
    listing = Listing(entries, read.revision, read.store_id)
    return LogCopy(listing, tuple(read.prefixes), read.n, read.wall_s)


def _write(path: Path, raw: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Else the new name may be lost with the power, though what it names is not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


log = structlog.get_logger()

MAX_ROSTER_BYTES = 8 * 1024 * 1024
MAX_SHARDS = 40_000
_decode = msgspec.json.Decoder(dict[str, float]).decode


class RosterFile:
    """The shards that a view of the fleet has known, in a small file of their own, replaced whole:
    a shard all of whose agents died is in no store any more, and only who remembers it can miss it.
    What cannot be read or written is reported, and nobody waits for it. Called in a thread, one
    call at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""

    def recall(self) -> Mapping[str, float]:
        try:
            with self._path.open("rb") as file:
                found = _decode(file.read(MAX_ROSTER_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._tell("cannot be read; shards that vanished before this start are unknown", error)
            return {}
        return dict(sorted(found.items(), key=lambda one: -one[1])[:MAX_SHARDS])

    def keep(self, roster: Mapping[str, float]) -> None:
        staged = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(msgspec.json.encode(dict(roster)))
            staged.replace(self._path)
        except (OSError, ValueError) as error:
            self._tell("cannot be written", error)
        else:
            self._told = ""

    def _tell(self, what: str, error: Exception) -> None:
        if what != self._told:
            log.warning("fleet.roster", path=str(self._path), detail=f"{what}: {error}")
        self._told = what
