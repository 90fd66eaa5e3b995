"""The local log in the state file: keys with values, as a fleet's store has them.

Like statements.py: a write neither begins nor ends its transaction; sqlite.py does that around it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.base.keyvalue import Compare, Entry, Listing, Put
from headgate.changes.model import LOG, MAX_REVISIONS, log_key, log_n
from headgate.changes.state import MAX_OWN_ITEM_BYTES
from headgate.errors import Conflict, Fault, InvalidSettings, StoreUnavailable
from headgate.history.records import AuditEntry, BudgetMinute, Report, Tally

# --- what every store does alike with the values it is given -------------------------------

MAX_ENTRIES = 100_000
"""Per first word of a key in the local log: `items/`, `notes/`, `log/`."""
MAX_LOG_KEY_CHARS = 4096
MAX_REVISION_BYTES = 32 * 1024 * 1024
"""For a value under `log/`; other values have MAX_OWN_ITEM_BYTES."""
MAX_COMMIT_BYTES = 64 * 1024 * 1024

MAX_KEY_CHARS = 512
MAX_VALUE_BYTES = 64 * 1024
"""For a report, as JSON in ASCII."""
SHOWN_CHARS = 32


def to_json(value: Any) -> str:
    """ASCII, so that every store's encoding accepts it."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


# --- values of the log ---------------------------------------------------------------------


def check_commit(compares: Sequence[Compare], puts: Sequence[Put]) -> int:
    """How many bytes it puts. InvalidSettings for what is too long, or is no text that a file can
    hold; ValueError for what no caller should ask for."""
    keys = [*(compare.key for compare in compares), *(put.key for put in puts)]
    if not all(keys):
        raise ValueError("a commit names an empty key")
    if len({put.key for put in puts}) < len(puts):
        raise ValueError("a commit puts the same key twice")
    for key in keys:
        _check_text("key", key, MAX_LOG_KEY_CHARS)
    sizes = [len(put.value or b"") for put in puts]
    for put, size_bytes in zip(puts, sizes, strict=True):
        most = MAX_REVISION_BYTES if put.key.startswith(LOG) else MAX_OWN_ITEM_BYTES
        if size_bytes > most:
            raise _too_long(put.key, size_bytes, most)
    if sum(sizes) > MAX_COMMIT_BYTES:
        raise _too_long("the whole change", sum(sizes), MAX_COMMIT_BYTES)
    return sum(sizes)


def _too_long(what: str, size_bytes: int, most: int) -> InvalidSettings:
    message = f"has {size_bytes:,} bytes, at most {most:,} are allowed"
    return InvalidSettings([Fault(what, message)])


def check_room(
    puts: Sequence[Put], before: Mapping[str, object | None], count: Callable[[str], int]
) -> None:
    """StoreUnavailable for an entry too many. `before`: what is under the keys of `puts` now."""
    more: Counter[str] = Counter()
    for put in puts:
        top, slash, _ = put.key.partition("/")
        is_there, will_be = before[put.key] is not None, put.value is not None
        more[top + slash] += will_be - is_there
    for under, added in more.items():
        if added > 0 and (kept := count(under)) + added > MAX_ENTRIES:
            raise StoreUnavailable(
                f"{under} has {kept:,} entries and would have {kept + added:,}; at most "
                f"{MAX_ENTRIES:,} are allowed: remove some that are no longer needed"
            )


# --- values of history and reports ---------------------------------------------------------


def check_report(report: Report) -> None:
    """Raise InvalidSettings for what is too long, or is no text that a file can hold."""
    _check_text("client", report.client, MAX_KEY_CHARS)
    _check_text("origin", report.origin, MAX_KEY_CHARS)
    size_bytes = len(to_json(report.value))
    if size_bytes > MAX_VALUE_BYTES:
        message = f"takes {size_bytes} bytes as JSON, at most {MAX_VALUE_BYTES} are allowed"
        raise InvalidSettings([Fault(f"report of {report.client}", message)])


def _check_text(place: str, text: str, max_chars: int) -> None:
    if len(text) > max_chars:
        beginning = f"{text[:SHOWN_CHARS]}…"
        message = f"{beginning!a} has {len(text)} characters, at most {max_chars} are allowed"
        raise InvalidSettings([Fault(place, message)])
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{text!a} has half of a surrogate pair, which is not a character"
        raise InvalidSettings([Fault(place, message)]) from None


def check_budget_minutes(minutes: Sequence[BudgetMinute]) -> None:
    for one in minutes:
        if one.count < 1:
            message = f"a minute of budget {one.budget!r} counts {one.count}, must be 1 or more"
            raise ValueError(message)


def check_tallies(tallies: Sequence[Tally]) -> None:
    for tally in tallies:
        if tally.count < 1:
            raise ValueError(f"a tally of {tally.client!r} counts {tally.count}, must be 1 or more")


def check_step(step_minutes: int | None) -> None:
    if step_minutes is not None and step_minutes < 1:
        raise ValueError(f"a step has {step_minutes} minutes, must have 1 or more")


# --- the log in the file -------------------------------------------------------------------


MAX_HISTORY_BYTES = 64 * 1024 * 1024
"""Bytes of history: the oldest go first. Policies of thousands of budgets are megabytes."""
LARGE_REVISION_BYTES = 64 * 1024
"""Of smaller ones, as many as are kept take less than that."""
LAST_CHARACTER = "\U0010ffff"
_UNDER = "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ?"
_COUNT = "SELECT count(*) FROM entries WHERE key >= ? AND key < ?"
_HISTORY = """
    SELECT key, length(value) FROM entries WHERE key >= ? AND key < ? ORDER BY key DESC
"""
_ENTRY = "SELECT key, value, revision FROM entries WHERE key = ?"
_PUT = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)"
_DROP = "DELETE FROM entries WHERE key = ?"


Row = tuple[str, bytes | None, int]
"""Key, value, revision; None: it was deleted."""


class LogRow(NamedTuple):
    id: str
    revision: int


def read_log(connection: sqlite3.Connection) -> LogRow:
    return LogRow(*connection.execute("SELECT id, revision FROM log").fetchone())


def read_listing(connection: sqlite3.Connection, prefixes: Sequence[str]) -> Listing:
    """All of one moment, though others write meanwhile."""
    connection.execute("BEGIN")
    try:
        row = read_log(connection)
        return Listing(read_entries(connection, prefixes), row.revision, row.id)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def read_entries(connection: sqlite3.Connection, prefixes: Sequence[str]) -> tuple[Entry, ...]:
    found: dict[str, Entry] = {}
    for prefix in prefixes:
        rows = connection.execute(_UNDER, _span(prefix))
        found.update((key, Entry(key, value, revision)) for key, value, revision in rows)
    return tuple(found[key] for key in sorted(found))


def read_count(connection: sqlite3.Connection, prefix: str) -> int:
    return int(connection.execute(_COUNT, _span(prefix)).fetchone()[0])


def _span(prefix: str) -> tuple[str, str]:
    return prefix, prefix + LAST_CHARACTER


def _hold(connection: sqlite3.Connection, compares: Sequence[Compare]) -> None:
    for compare in compares:
        found = _entry(connection, compare.key)
        revision = found.revision if found is not None else 0
        if revision != compare.revision:
            raise Conflict(
                f"{compare.key} has revision {revision}, not {compare.revision}: another change "
                "was first; nothing was done"
            )


class Commit:
    """All puts and their audit, if every compare holds."""

    def __init__(
        self, compares: Sequence[Compare], puts: Sequence[Put], audit: Sequence[AuditEntry]
    ) -> None:
        self._compares = compares
        self._puts = puts
        self._audit = audit
        self._before: dict[str, Entry | None] = {}
        self.log = LogRow("", 0)
        """The log after the commit."""
        self.rows: Sequence[Row] = ()
        """The new state of its entries, without the history."""
        self._audit_ids: list[int] = []

    def do(self, connection: sqlite3.Connection) -> int:
        _hold(connection, self._compares)
        self._before = {put.key: _entry(connection, put.key) for put in self._puts}
        check_room(self._puts, self._before, partial(read_count, connection))
        before = read_log(connection)
        done = [put for put in self._puts if put.value is not None or self._before[put.key]]
        self.log = before._replace(revision=before.revision + 1) if done else before
        for put in done:
            _replace(connection, put.key, put.value, self.log.revision)
        rows = ((put.key, put.value, self.log.revision) for put in done)
        self.rows = [row for row in rows if not row[0].startswith(LOG)]
        connection.execute("UPDATE log SET revision = ?", (self.log.revision,))
        newest = max((log_n(put.key) or 0 for put in done if put.value), default=0)
        if newest > MAX_REVISIONS:
            # By range: numbers are skipped where other agents of a shard have made changes.
            old = (LOG, log_key(newest - MAX_REVISIONS))
            connection.execute("DELETE FROM entries WHERE key >= ? AND key <= ?", old)
        logged = [put for put in done if put.key.startswith(LOG)]
        if any(len(put.value or b"") > LARGE_REVISION_BYTES for put in logged):
            _cut_history(connection)
        self._audit_ids = [add_audit(connection, entry) for entry in self._audit]
        return self.log.revision

    def take_back(self, connection: sqlite3.Connection) -> None:
        found = read_log(connection)
        # Another file may have been put in place since: only what we wrote is ours to undo.
        if found.id != self.log.id or found.revision < self.log.revision:
            return
        for put in self._puts:
            before, now = self._before[put.key], _entry(connection, put.key)
            ours = now is None if put.value is None else now and now.revision == self.log.revision
            if ours and before is not None:
                _replace(connection, put.key, before.value, before.revision)
            elif ours:
                connection.execute(_DROP, (put.key,))
        # A revision is never used twice: a client may have read the one that is taken back.
        connection.execute("UPDATE log SET revision = revision + 1")
        for audit_id, entry in zip(self._audit_ids, self._audit, strict=True):
            drop_audit(connection, audit_id, entry)


def _entry(connection: sqlite3.Connection, key: str) -> Entry | None:
    row = connection.execute(_ENTRY, (key,)).fetchone()
    return None if row is None else Entry(*row)


def _replace(connection: sqlite3.Connection, key: str, value: bytes | None, revision: int) -> None:
    if value is None:
        connection.execute(_DROP, (key,))
    else:
        connection.execute(_PUT, (key, value, revision))


def _cut_history(connection: sqlite3.Connection) -> None:
    """The newest stays in any case. What is cut is not brought back by `take_back`."""
    sizes = connection.execute(_HISTORY, _span(LOG)).fetchall()
    left = MAX_HISTORY_BYTES
    for at, (key, size_bytes) in enumerate(sizes):
        left -= size_bytes
        if left < 0 and at:
            connection.execute(_DROP, (key,))


_ADD = """
    INSERT INTO audit (wall_s, who, action, target, before_json, after_json)
    VALUES (?, ?, ?, ?, ?, ?)
"""
_READ = """
    SELECT wall_s, who, action, target, before_json, after_json, id FROM audit
    ORDER BY id DESC LIMIT ?
"""
_DROP_AUDIT = "DELETE FROM audit WHERE id = ? AND wall_s = ? AND who = ? AND action = ?"


def read_audit(connection: sqlite3.Connection, limit: int) -> list[AuditEntry]:
    # max: to SQLite a negative limit is none at all.
    return [_entry_of(row) for row in connection.execute(_READ, (max(0, limit),))]


class AddAudit:
    """An entry of its own, of what changes no row."""

    def __init__(self, entry: AuditEntry) -> None:
        self._entry = entry
        self._id = 0

    def do(self, connection: sqlite3.Connection) -> None:
        self._id = add_audit(connection, self._entry)

    def take_back(self, connection: sqlite3.Connection) -> None:
        drop_audit(connection, self._id, self._entry)


def add_audit(connection: sqlite3.Connection, entry: AuditEntry) -> int:
    before_json, after_json = to_json(entry.before), to_json(entry.after)
    row = (entry.wall_s, entry.who, entry.action, entry.target, before_json, after_json)
    return int(connection.execute(_ADD, row).lastrowid or 0)


def drop_audit(connection: sqlite3.Connection, entry_id: int, entry: AuditEntry) -> None:
    """In another file that number may belong to another entry."""
    connection.execute(_DROP_AUDIT, (entry_id, entry.wall_s, entry.who, entry.action))


def _entry_of(row: Sequence[Any]) -> AuditEntry:
    wall_s, who, action, target, before_json, after_json, entry_id = row
    before, after = json.loads(before_json), json.loads(after_json)
    return AuditEntry(wall_s, who, action, target, before, after, entry_id)
