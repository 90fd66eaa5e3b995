"""The second copy of what is in force: a small file beside the state file, replaced whole.

    writer thread, after each change ──► StateCopy ──► state.db.copy (fsync, rename, fsync)
    state.db gone, older or unreadable ──► StateCopy ──► the log of a new one, or a listing

A line that says what follows, its length and checksum, then the entries of the log but for its
history: no log/, no audit. What is damaged is never half believed. A copy that could not be
replaced is emptied: an old one would lift rules that were set since.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from headgate.core.change import LOG
from headgate.core.keyvalue import Entry, Listing
from headgate.stores.conversion import OldRows, converted_revision, entries_of
from headgate.stores.locallog import read_log

FORMAT, VERSION, VERSION_OF_TABLES = "headgate-state-copy", 2, 1
"""The earlier version has the rows of three tables: conversion.py."""
SUFFIX = ".copy"
MAX_HEAD_BYTES = 1024
MAX_BYTES = 512 * 1024 * 1024

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


class StateCopy(msgspec.Struct, frozen=True):
    id: str
    """Of the log; empty for one that was converted from before there was a log."""
    revision: int
    """Of the log."""
    wall_s: float
    """When it was made."""
    entries: list[tuple[str, bytes, int]]
    """In the order of their keys: key, value, revision."""

    def says_the_same(self, other: StateCopy) -> bool:
        return msgspec.structs.replace(self, wall_s=other.wall_s) == other

    def listing(self, prefixes: Sequence[str]) -> Listing:
        wanted = tuple(prefixes)
        found = (Entry(*entry) for entry in self.entries if entry[0].startswith(wanted))
        return Listing(tuple(found), self.revision, self.id)


class _CopyOfTables(msgspec.Struct, frozen=True):
    revision: int
    """Of the audit."""
    wall_s: float
    metrics: list[tuple[str, str, str | None, int, float, str, str]]
    """database, metric, raw_json, revision, wall_s, who, action"""
    records: list[tuple[int, str, str, str | None, float, str, str]]
    """revision, kind, key, value_json, wall_s, who, action"""
    policies: list[tuple[int, str, float, str, str, str, str, str]]
    """revision, database, wall_s, who, action, summary, document_json, changes_json"""


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_copy = msgspec.json.Decoder(StateCopy).decode
_decode_tables = msgspec.json.Decoder(_CopyOfTables).decode


def place_of(state: Path) -> Path:
    return state.with_name(state.name + SUFFIX)


# --- as a file -----------------------------------------------------------------------------


def load_copy(state: Path) -> StateCopy | None:
    """None: there is none. Damaged, or an OSError, where there is one."""
    try:
        with place_of(state).open("rb") as file:
            raw = file.read(MAX_BYTES + MAX_HEAD_BYTES)
    except FileNotFoundError:
        return None
    line, newline, body = raw.partition(b"\n")
    try:
        head = _decode_head(line[:MAX_HEAD_BYTES])
        known = head.format == FORMAT and head.version in (VERSION, VERSION_OF_TABLES)
        if not newline or not known:
            raise Damaged(f"is no copy that this version reads ({head.format} {head.version})")
        if len(body) != head.bytes or hashlib.sha256(body).hexdigest() != head.sha256:
            raise Damaged("is cut short or damaged")
        if head.version == VERSION_OF_TABLES:
            return _converted(_decode_tables(body))
        return _decode_copy(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Damaged("is empty or damaged" if raw else "is empty") from None


def _converted(old: _CopyOfTables) -> StateCopy:
    metrics = [row[:6] for row in old.metrics]
    records = [row[:6] for row in old.records]
    policies = [(*row[:4], row[7]) for row in old.policies]
    entries = entries_of(OldRows(metrics, records, policies))
    return copy_from(entries, converted_revision(old.revision), old.wall_s)


def copy_from(entries: Mapping[str, bytes], revision: int, wall_s: float) -> StateCopy:
    """Of entries that were converted just now."""
    rows = [(key, entries[key], revision) for key in sorted(entries)]
    return StateCopy("", revision, wall_s, rows)


def save_copy(state: Path, copy: StateCopy) -> None:
    """All of it, on the disk when this returns; else an OSError, and no copy is left that could
    be taken for the present one."""
    body = msgspec.json.encode(copy)
    digest = hashlib.sha256(body).hexdigest()
    head = msgspec.json.encode(_Head(FORMAT, VERSION, len(body), digest))
    place = place_of(state)
    new = place.with_name(place.name + ".new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(head + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        new.replace(place)
        _sync_folder(place.parent)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        _empty(place)
        raise


def _empty(place: Path) -> None:
    """Takes no room, on a full disk either."""
    with suppress(OSError):
        fd = os.open(place, os.O_WRONLY)
        try:
            os.ftruncate(fd, 0)
            os.fsync(fd)
        finally:
            os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- as tables -----------------------------------------------------------------------------


def copy_of(connection: sqlite3.Connection, wall_s: float) -> StateCopy:
    """Reads every entry of it: pages that are damaged are noticed."""
    log = read_log(connection)
    entries = connection.execute(_ENTRIES, (LOG, _AFTER_LOG)).fetchall()
    return StateCopy(log.id, log.revision, wall_s, entries)


def restore(connection: sqlite3.Connection, copy: StateCopy, wall_s: float, name: str) -> None:
    """In place of what the log has; with an audit entry, and no revision given twice. Within a
    transaction."""
    log = read_log(connection)
    if copy.id in ("", log.id):
        connection.execute("DELETE FROM entries WHERE key < ? OR key >= ?", (LOG, _AFTER_LOG))
    else:
        connection.execute("DELETE FROM entries")  # The history there is of another log.
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", copy.entries)
    row = (copy.id or log.id, copy.revision + 1)
    connection.execute("UPDATE log SET id = ?, revision = ?", row)
    told = msgspec.json.encode({"entries": len(copy.entries)}).decode()
    connection.execute(_RESTORED, (wall_s, name, told))
