"""The second copy of the changes in force: a small file beside the state file.

    writer thread, after each change ──CopyPart──► CopyFile ──► state.db.copy
    state.db gone, older or unreadable ──► StateCopy ──► the log of a new one, or a listing

The first line says how much of the rest counts, and its checksum. Then come parts, one per line:
first those with all entries of the log except its history (no log/, no audit), then one for each
change since. A change is appended and synced to disk before the first line counts it: what a power
cut leaves after that does not count, and a damaged part is never used. Once the changes are as
large as all entries, the whole copy is written to a new file that replaces it. A copy that could
not be written is emptied: an old one would lift rules that were set since.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from headgate.base.keyvalue import Entry, Listing
from headgate.changes.model import LOG
from headgate.store.conversion import OldRows, converted_revision, entries_of
from headgate.store.locallog import Row, read_log

FORMAT, VERSION, VERSION_OF_TABLES = "headgate-state-copy", 2, 1
"""The earlier version has the rows of three tables: conversion.py."""
SUFFIX = ".copy"
HEAD_BYTES = 256
"""Length of the first line, which is overwritten."""
MAX_HEAD_BYTES = 1024
MAX_BYTES = 512 * 1024 * 1024
MIN_CHANGES_BYTES = 64 * 1024
"""Bytes of changes that are appended in any case."""
PART_ENTRIES = 500

_AFTER_LOG = LOG[:-1] + chr(ord(LOG[-1]) + 1)
_ENTRIES = """
    SELECT key, value, revision FROM entries WHERE key < ?
    UNION ALL SELECT key, value, revision FROM entries WHERE key >= ?
"""
_RESTORED = """
    INSERT INTO audit (wall_s, who, action, target, before_json, after_json)
    VALUES (?, 'headgate', 'state.restored', ?, 'null', ?)
"""


class Damaged(Exception):
    """There is a copy, and it cannot be used; says why."""


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int
    bytes: int
    sha256: str


class CopyPart(msgspec.Struct, frozen=True):
    """Some of the entries, or what one change made of them."""

    id: str
    """Id of the log; empty for one that was converted from before there was a log."""
    revision: int
    """Revision of the log."""
    wall_s: float
    """When it was made."""
    entries: Sequence[Row]


class _Stamp(msgspec.Struct, frozen=True):
    """Of a part, without its entries."""

    id: str
    revision: int
    wall_s: float


class StateCopy:
    """What a copy says, as it was read: its parts, a line each."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        stamp = _decode_stamp(lines[-1])
        self.id, self.revision, self.wall_s = stamp.id, stamp.revision, stamp.wall_s

    def entries(self) -> list[tuple[str, bytes, int]]:
        """In the order of their keys: key, value, revision."""
        found: dict[str, tuple[str, bytes, int]] = {}
        for line in self._lines:
            for key, value, revision in _decode_part(line).entries:
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = (key, value, revision)
        return [found[key] for key in sorted(found)]

    def listing(self, prefixes: Sequence[str]) -> Listing:
        wanted = tuple(prefixes)
        found = (Entry(*entry) for entry in self.entries() if entry[0].startswith(wanted))
        return Listing(tuple(found), self.revision, self.id)


class _CopyOfTables(msgspec.Struct, frozen=True):
    revision: int
    """Id of the last audit entry."""
    wall_s: float
    metrics: list[tuple[str, str, str | None, int, float, str, str]]
    """database, metric, raw_json, revision, wall_s, who, action"""
    records: list[tuple[int, str, str, str | None, float, str, str]]
    """revision, kind, key, value_json, wall_s, who, action"""
    policies: list[tuple[int, str, float, str, str, str, str, str]]
    """revision, database, wall_s, who, action, summary, document_json, changes_json"""


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_part = msgspec.json.Decoder(CopyPart).decode
_decode_stamp = msgspec.json.Decoder(_Stamp).decode
_decode_tables = msgspec.json.Decoder(_CopyOfTables).decode


def place_of(state: Path) -> Path:
    return state.with_name(state.name + SUFFIX)


# --- as a file -----------------------------------------------------------------------------


def load_copy(state: Path) -> StateCopy | None:
    """None: there is none. Damaged, or an OSError, where there is one."""
    try:
        with place_of(state).open("rb") as file:
            line, body = file.readline(MAX_HEAD_BYTES), file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        head = _decode_head(line)
        known = head.format == FORMAT and head.version in (VERSION, VERSION_OF_TABLES)
        if not line.endswith(b"\n") or not known:
            raise Damaged(f"has a format of another version ({head.format} {head.version})")
        body = body[: head.bytes]
        if len(body) != head.bytes or hashlib.sha256(body).hexdigest() != head.sha256:
            raise Damaged("is cut short or damaged")
        if head.version == VERSION_OF_TABLES:
            return _converted(_decode_tables(body))
        return StateCopy(body.splitlines())
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        raise Damaged("is empty or damaged" if line else "is empty") from None


def _converted(old: _CopyOfTables) -> StateCopy:
    metrics = [row[:6] for row in old.metrics]
    records = [row[:6] for row in old.records]
    policies = [(*row[:4], row[7]) for row in old.policies]
    entries = entries_of(OldRows(metrics, records, policies))
    return copy_from(entries, converted_revision(old.revision), old.wall_s)


def copy_from(entries: Mapping[str, bytes], revision: int, wall_s: float) -> StateCopy:
    """Of entries that were converted just now."""
    rows = [(key, value, revision) for key, value in entries.items()]
    return StateCopy([msgspec.json.encode(CopyPart("", revision, wall_s, rows))])


class _Written(NamedTuple):
    """A copy as it was left."""

    identity: tuple[int, int, int]
    """Device, inode and size."""
    whole_bytes: int
    """Bytes of the parts that have all entries."""
    digest: hashlib._Hash


class CopyFile:
    """The copy beside a state file that is open; for the one thread that writes."""

    def __init__(self, state: Path) -> None:
        self._place = place_of(state)
        self._written: _Written | None = None
        """None: there is no file to append to."""

    def save(self, connection: sqlite3.Connection, wall_s: float) -> None:
        """All of it, on the disk when this returns; else an OSError, and no copy is left that
        could be taken for the present one."""
        new = self._place.with_name(self._place.name + ".new")
        try:
            with _emptied(self._place):
                fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with open(fd, "wb", buffering=0):  # noqa: PTH123
                    written = _write_whole(fd, parts_of(connection, wall_s))
                new.replace(self._place)
                _sync_folder(self._place.parent)
        except (OSError, sqlite3.Error):
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        self._written = written

    def append(self, part: CopyPart) -> bool:
        """A change, on the disk when this returns; OSError as above. False: all of it is to be
        saved, as nothing is there to append to, or as much was appended as there is."""
        written, self._written = self._written, None
        line = msgspec.json.encode(part) + b"\n"
        if written is None:
            return False
        size_bytes = written.identity[2]
        changes_bytes = size_bytes + len(line) - HEAD_BYTES - written.whole_bytes
        if changes_bytes > max(MIN_CHANGES_BYTES, written.whole_bytes):
            return False
        with _emptied(self._place):
            try:
                fd = os.open(self._place, os.O_WRONLY)
            except FileNotFoundError:
                return False
            with open(fd, "wb", buffering=0):  # noqa: PTH123
                if _identity(fd) != written.identity:
                    return False  # Another program has replaced the file.
                _write_at(fd, line, size_bytes)
                os.fsync(fd)
                written.digest.update(line)
                _write_head(fd, size_bytes + len(line) - HEAD_BYTES, written.digest)
                self._written = written._replace(identity=_identity(fd))
        return True


def _write_whole(fd: int, parts: Iterator[CopyPart]) -> _Written:
    at, digest = HEAD_BYTES, hashlib.sha256()
    for part in parts:
        line = msgspec.json.encode(part) + b"\n"
        _write_at(fd, line, at)
        digest.update(line)
        at += len(line)
    _write_head(fd, at - HEAD_BYTES, digest)
    return _Written(_identity(fd), at - HEAD_BYTES, digest)


def _write_head(fd: int, body_bytes: int, digest: hashlib._Hash) -> None:
    head = msgspec.json.encode(_Head(FORMAT, VERSION, body_bytes, digest.hexdigest()))
    _write_at(fd, head.ljust(HEAD_BYTES - 1) + b"\n", 0)
    os.fsync(fd)


def _write_at(fd: int, data: bytes, at: int) -> None:
    while data:
        count = os.pwrite(fd, data, at)
        data, at = data[count:], at + count


def _identity(fd: int) -> tuple[int, int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size


@contextmanager
def _emptied(place: Path) -> Iterator[None]:
    """Where it fails. Takes no room, on a full disk either."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            fd = os.open(place, os.O_WRONLY)
            try:
                os.ftruncate(fd, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        raise


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- as tables -----------------------------------------------------------------------------


def parts_of(connection: sqlite3.Connection, wall_s: float) -> Iterator[CopyPart]:
    """Reads every entry of it: pages that are damaged are noticed."""
    log = read_log(connection)
    found = connection.execute(_ENTRIES, (LOG, _AFTER_LOG))
    yield CopyPart(log.id, log.revision, wall_s, found.fetchmany(PART_ENTRIES))
    while rows := found.fetchmany(PART_ENTRIES):
        yield CopyPart(log.id, log.revision, wall_s, rows)


def restore(connection: sqlite3.Connection, copy: StateCopy, wall_s: float, name: str) -> None:
    """In place of what the log has; with an audit entry, and no revision given twice. Within a
    transaction."""
    log = read_log(connection)
    if copy.id in ("", log.id):
        connection.execute("DELETE FROM entries WHERE key < ? OR key >= ?", (LOG, _AFTER_LOG))
    else:
        connection.execute("DELETE FROM entries")  # The history there is of another log.
    entries = copy.entries()
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", entries)
    row = (copy.id or log.id, copy.revision + 1)
    connection.execute("UPDATE log SET id = ?, revision = ?", row)
    told = msgspec.json.encode({"entries": len(entries)}).decode()
    connection.execute(_RESTORED, (wall_s, name, told))
