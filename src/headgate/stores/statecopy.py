"""The second copy of what is in force: a small file beside the state file, replaced whole.

    writer thread, after each change ──► StateCopy ──► state.db.copy (fsync, rename, fsync)
    state.db gone, older or unreadable ──► StateCopy ──► the tables of a new one, or of memory

A line that says what follows, its length and checksum, then the rows as the tables have them:
metrics, records and the newest policies; no audit and no history. What is damaged is never half
believed. A copy that could not be replaced is emptied: an old one would lift rules that were set
since.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

FORMAT, VERSION = "headgate-state-copy", 1
SUFFIX = ".copy"
MAX_HEAD_BYTES = 1024
MAX_BYTES = 512 * 1024 * 1024

Row = list[Any]
_REVISION = "SELECT max(seq, 0) FROM sqlite_sequence WHERE name = 'audit'"
_METRICS = "database, metric, raw_json, revision, wall_s, who, action"
_RECORDS = "revision, kind, key, value_json, wall_s, who, action"
_POLICIES = "revision, database, wall_s, who, action, summary, document_json, changes_json"
_ALL_METRICS = f"SELECT {_METRICS} FROM metric_changes ORDER BY revision"  # noqa: S608 -- constants
_ALL_RECORDS = f"""
    SELECT {_RECORDS} FROM records WHERE value_json IS NOT NULL ORDER BY revision
"""  # noqa: S608 -- constants only
_NEWEST_POLICIES = f"""
    SELECT {_POLICIES} FROM policy_revisions
    WHERE revision IN (SELECT max(revision) FROM policy_revisions GROUP BY database)
    ORDER BY revision
"""  # noqa: S608 -- constants only
_RESTORED = """
    INSERT INTO audit (id, wall_s, who, action, target, before_json, after_json)
    VALUES (?, ?, 'headgate', 'state.restored', ?, 'null', ?)
"""


class Damaged(Exception):
    """There is a copy, and it cannot be used; says why."""


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int
    bytes: int
    sha256: str


class StateCopy(msgspec.Struct, frozen=True):
    revision: int
    """Of the newest change in it, or after it."""
    wall_s: float
    """When it was made."""
    metrics: list[Row]
    records: list[Row]
    policies: list[Row]

    def says_the_same(self, other: StateCopy) -> bool:
        return msgspec.structs.replace(self, wall_s=other.wall_s) == other


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_copy = msgspec.json.Decoder(StateCopy).decode


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
        if not newline or (head.format, head.version) != (FORMAT, VERSION):
            raise Damaged(f"is no copy that this version reads ({head.format} {head.version})")
        if len(body) != head.bytes or hashlib.sha256(body).hexdigest() != head.sha256:
            raise Damaged("is cut short or damaged")
        return _decode_copy(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Damaged("is empty or damaged" if raw else "is empty") from None


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


def revision_in(connection: sqlite3.Connection) -> int:
    row = connection.execute(_REVISION).fetchone()
    return int(row[0]) if row is not None and row[0] is not None else 0


def copy_of(connection: sqlite3.Connection, wall_s: float) -> StateCopy:
    """Reads every row of it: pages that are damaged are noticed."""
    read = (_rows(connection, query) for query in (_ALL_METRICS, _ALL_RECORDS, _NEWEST_POLICIES))
    return StateCopy(revision_in(connection), wall_s, *read)


def restore(connection: sqlite3.Connection, copy: StateCopy, wall_s: float, name: str) -> None:
    """In place of what the tables have; with an audit entry, and no revision given twice. Within
    a transaction."""
    for table, columns, rows in (
        ("metric_changes", _METRICS, copy.metrics),
        ("records", _RECORDS, copy.records),
        ("policy_revisions", _POLICIES, copy.policies),
    ):
        marks = ", ".join("?" * len(columns.split(",")))
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 -- constants only
        connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608
    counts = {
        "metrics": len(copy.metrics),
        "records": len(copy.records),
        "policies": len(copy.policies),
    }
    told = msgspec.json.encode(counts).decode()
    connection.execute(_RESTORED, (copy.revision + 1, wall_s, name, told))


def in_memory(copy: StateCopy, steps: Sequence[str]) -> closing[sqlite3.Connection]:
    """The same tables, to be read like those of a file."""
    connection = sqlite3.connect(":memory:")
    for step in steps:
        script = resources.files("headgate.stores").joinpath(step)
        connection.executescript(script.read_text(encoding="utf-8"))
    connection.execute(f"PRAGMA user_version = {len(steps)}")
    restore(connection, copy, copy.wall_s, "copy")
    return closing(connection)


def _rows(connection: sqlite3.Connection, query: str) -> list[Row]:
    return [list(row) for row in connection.execute(query)]
