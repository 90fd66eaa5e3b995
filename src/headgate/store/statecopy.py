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
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from headgate.base.declared import parse_date_time
from headgate.base.keyvalue import Entry, Listing
from headgate.changes.model import HEAD, LOG, WIDE, quoted
from headgate.store.locallog import Row, read_log

# --- files of earlier versions -------------------------------------------------------------
# What versions 1 to 6 kept of operators' changes, as entries of the log.
#
# metric_changes, records, policy_revisions ──rows──► entries_of ──► items/…, notes/…, head
#                         (of a state file, or of a copy of version 1)
#
# Each change becomes an item with the reach `host`: it was set at this agent. What the agent noted
# beside a rule (suspension, charges) becomes a note. Revisions go on from those of the
# audit, by which both a file and its copy were counted: whichever was newer still is.

log = structlog.get_logger()

OldRow = Sequence[Any]
_TABLES = {
    "metric_changes": """
        SELECT database, metric, raw_json, revision, wall_s, who FROM metric_changes
    """,
    "records": """
        SELECT revision, kind, key, value_json, wall_s, who FROM records
        WHERE value_json IS NOT NULL
    """,
    "policy_revisions": """
        SELECT revision, database, wall_s, who, changes_json FROM policy_revisions
        WHERE revision IN (SELECT max(revision) FROM policy_revisions GROUP BY database)
    """,
}
_REVISION = "SELECT max(seq, 0) FROM sqlite_sequence WHERE name = 'audit'"

LOG_VERSION = 7
"""Version of a state file: the first that has a log."""
NOTES = "notes/"
REACH = "host"
"""This agent, whatever its name."""
_NOTED_OF_RULES = frozenset({"suspended", "charged"})
_AS_IN_FILE = {"revert": True}
_NO_POLICY: Mapping[str, Any] = {"policy": {}, "order": [], "mode_cap": "enforce", "of_fleet": []}


class OldRows(NamedTuple):
    """What _TABLES finds in each."""

    metrics: Sequence[OldRow]
    records: Sequence[OldRow]
    policies: Sequence[OldRow]


class _Old(NamedTuple):
    """One change, under the revision it had."""

    revision: int
    kind: str
    id: str
    value: Mapping[str, Any]
    wall_s: float
    who: str


def convert(connection: sqlite3.Connection) -> None:
    """The step of a state file from version 6 to 7, within its transaction."""
    revision = old_revision(connection)
    entries = entries_of(old_rows(connection))
    connection.executemany(
        "INSERT INTO entries VALUES (?, ?, ?)",
        [(key, value, revision) for key, value in entries.items()],
    )
    connection.execute("UPDATE log SET revision = ?", (revision,))
    for table in _TABLES:
        connection.execute(f"DROP TABLE {table}")


def old_rows(connection: sqlite3.Connection) -> OldRows:
    """Of a file of version 6 or before: some of the tables came later than others."""
    known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    return OldRows(
        *(
            connection.execute(query).fetchall() if table in known else []
            for table, query in _TABLES.items()
        )
    )


def old_revision(connection: sqlite3.Connection) -> int:
    """What the log of such a file is at once it is converted."""
    row = connection.execute(_REVISION).fetchone()
    return converted_revision(int(row[0]) if row is not None and row[0] is not None else 0)


def converted_revision(audited: int) -> int:
    """The conversion is a commit of its own. One of nothing is none."""
    return audited + 1 if audited else 0


def entries_of(rows: OldRows) -> dict[str, bytes]:
    """By key. What cannot be read is left out and logged, as at every start before."""
    entries: dict[str, bytes] = {}
    old = [*_metrics(rows.metrics), *_records(rows.records, entries), *_policies(rows.policies)]
    old.sort(key=lambda one: one.revision)  # Stable: of one policy in the order of its changes.
    for n, one in enumerate(old, start=1):
        value = dict(one.value)
        if one.kind == "rule" and not _NOTED_OF_RULES.isdisjoint(value):
            entries[f"{NOTES}rule/{quoted(one.id)}"] = _bytes(_noted(value, n))
            value = {key: said for key, said in value.items() if key not in _NOTED_OF_RULES}
        document = {
            "kind": one.kind,
            "id": one.id,
            "reach": REACH,
            "value": value,
            "n": n,
            "set_at": one.wall_s,
            "set_by": one.who,
        }
        entries[f"{WIDE}{one.kind}/{quoted(one.id)}"] = _bytes(document)
    if old:
        entries[HEAD] = _bytes({"n": len(old)})
    return entries


def _metrics(rows: Iterable[OldRow]) -> Iterator[_Old]:
    for database, metric, raw_json, revision, wall_s, who in rows:
        name = f"{database}/{metric}"
        raw = None if raw_json is None else _object(raw_json, f"metric {name}")
        if raw_json is not None and (raw is None or raw == _AS_IN_FILE):
            continue
        value = {"removed": True} if raw is None else {"settings": raw}
        yield _Old(revision, "metric", name, value, wall_s, who)


def _records(rows: Iterable[OldRow], notes: dict[str, bytes]) -> Iterator[_Old]:
    """What nobody set goes to `notes`."""
    for revision, kind, key, value_json, wall_s, who in rows:
        value = None if value_json is None else _object(value_json, f"{kind} {key}")
        if value is None or kind == "unthrottled":  # Moved to a table of its own in version 6.
            continue
        if kind == "rule_time":
            notes[f"{NOTES}rule_time"] = _bytes(value)
        elif kind == "fleet_rule":
            notes[f"{NOTES}rule/{quoted(key)}"] = _bytes(value)
        else:
            yield _Old(revision, kind, key, value, wall_s, who)


def _policies(rows: Iterable[OldRow]) -> Iterator[_Old]:
    for revision, database, wall_s, who, changes_json in rows:
        changes = _object(changes_json, f"policy of {database}") or {}
        try:
            budgets = [
                (f"{database}/{name}", _budget(change))
                for name, change in changes.get("budgets", {}).items()
            ]
        except (AttributeError, KeyError, TypeError) as error:
            log.error("state.change_left_out", what=f"policy of {database}", fault=repr(error))
            continue
        for name, value in budgets:
            yield _Old(revision, "budget", name, value, wall_s, who)
        policy = {key: changes.get(key, default) for key, default in _NO_POLICY.items()}
        if policy != _NO_POLICY:
            yield _Old(revision, "policy", database, policy, wall_s, who)


def _budget(change: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if change is None:
        return {"removed": True}
    return {"settings": dict(change["settings"]), "whole": bool(change["whole"])}


def _noted(value: Mapping[str, Any], n: int) -> Mapping[str, Any]:
    """As rules/service.py notes a rule: how far the rules' time had come when it was set."""
    mark = {}
    if isinstance(ruled_at := value.get("ruled_at"), int | float):
        with suppress(ValueError):
            mark = {"ruled_s": ruled_at, "wall_s": parse_date_time(value.get("set_at"))}
    return {"reach": REACH, "n": n, **mark, "rule": value}


def _object(raw_json: str, what: str) -> dict[str, Any] | None:
    """None if it is not a JSON object: earlier versions could not use it either."""
    try:
        found = json.loads(raw_json)
    except ValueError as error:
        log.error("state.change_left_out", what=what, fault=str(error))
        return None
    if not isinstance(found, dict):
        log.error("state.change_left_out", what=what, fault="it is not a JSON object")
        return None
    return found


def _bytes(document: Mapping[str, Any]) -> bytes:
    """As changes/state.py writes it; half a character, which it cannot write, stays escaped."""
    try:
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()


# --- the copy -------------------------------------------------------------------------------

FORMAT, VERSION, VERSION_OF_TABLES = "headgate-state-copy", 2, 1
"""The earlier version has the rows of three tables: see above."""
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


class _PartHead(msgspec.Struct, frozen=True):
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


_decode_head = msgspec.json.Decoder(_PartHead).decode
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


class _CopyWritten(NamedTuple):
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
        self._written: _CopyWritten | None = None
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


def _write_whole(fd: int, parts: Iterator[CopyPart]) -> _CopyWritten:
    at, digest = HEAD_BYTES, hashlib.sha256()
    for part in parts:
        line = msgspec.json.encode(part) + b"\n"
        _write_at(fd, line, at)
        digest.update(line)
        at += len(line)
    _write_head(fd, at - HEAD_BYTES, digest)
    return _CopyWritten(_identity(fd), at - HEAD_BYTES, digest)


def _write_head(fd: int, body_bytes: int, digest: hashlib._Hash) -> None:
    head = msgspec.json.encode(_PartHead(FORMAT, VERSION, body_bytes, digest.hexdigest()))
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
