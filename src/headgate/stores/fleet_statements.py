"""What is asked of a fleet's store in a file; transactions begin and end in fleet_sqlite.py."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.core.keyvalue import Changes, Compare, Entry, Event, Lease, Listing, Put
from headgate.errors import Compacted, Conflict, LeaseLost

LAST_CHARACTER = "\U0010ffff"
MAX_CHANGES_AT_ONCE = 1000
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Kept(NamedTuple):
    """The store's one row, and how much of its log it keeps."""

    store_id: str
    revision: int
    known_after: int
    log_bytes: int


class LogLimits(NamedTuple):
    commits: int
    bytes: int


def read_kept(connection: sqlite3.Connection) -> Kept:
    row = connection.execute("SELECT id, revision, known_after, log_bytes FROM store").fetchone()
    return Kept(*row)


# --- reading -------------------------------------------------------------------------------


def read_listing(connection: sqlite3.Connection, prefixes: Sequence[str]) -> Listing:
    kept = read_kept(connection)
    return Listing(read_entries(connection, prefixes), kept.revision, kept.store_id)


def read_entries(connection: sqlite3.Connection, prefixes: Sequence[str]) -> tuple[Entry, ...]:
    found: dict[str, Entry] = {}
    for prefix in prefixes:
        rows = connection.execute(
            "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ?", _span(prefix)
        )
        found.update((key, Entry(key, value, revision)) for key, value, revision in rows)
    return tuple(found[key] for key in sorted(found))


def read_count(connection: sqlite3.Connection, prefix: str) -> int:
    counted = connection.execute(
        "SELECT count(*) FROM entries WHERE key >= ? AND key < ?", _span(prefix)
    )
    return int(counted.fetchone()[0])


def read_changes(
    connection: sqlite3.Connection, prefixes: tuple[str, ...], after_revision: int
) -> Changes:
    """Up to some hundreds of commits, each whole; as far as the store has come without any."""
    kept = read_kept(connection)
    if after_revision < kept.known_after:
        raise Compacted(
            f"changes after revision {after_revision} are known from {kept.known_after} on: "
            "list anew"
        )
    rows = connection.execute(
        "SELECT revision, key, value FROM changes WHERE revision > ? ORDER BY revision, place",
        (after_revision,),
    )
    events: list[Event] = []
    for revision, key, value in rows:
        if len(events) >= MAX_CHANGES_AT_ONCE and revision > events[-1].revision:
            return Changes(tuple(events), events[-1].revision)
        if key.startswith(prefixes):
            events.append(Event(key, value, revision))
    return Changes(tuple(events), max(kept.revision, after_revision))


def _span(prefix: str) -> tuple[str, str]:
    return prefix, prefix + LAST_CHARACTER


# --- writing -------------------------------------------------------------------------------


def hold(connection: sqlite3.Connection, compares: Iterable[Compare]) -> None:
    for compare in compares:
        row = connection.execute(
            "SELECT revision FROM entries WHERE key = ?", (compare.key,)
        ).fetchone()
        found = row[0] if row else 0
        if found != compare.revision:
            raise Conflict(
                f"{compare.key} is of revision {found}, not {compare.revision}: "
                "somebody else was first; nothing was done"
            )


def put_all(connection: sqlite3.Connection, puts: Sequence[Put], limits: LogLimits) -> int:
    """The store's revision afterwards: as before, where nothing was there to be taken out."""
    kept = read_kept(connection)
    revision = kept.revision + 1
    done = [put for put in puts if _put(connection, put, revision)]
    if not done:
        return kept.revision
    connection.executemany(
        "INSERT INTO changes VALUES (?, ?, ?, ?)",
        [(revision, place, put.key, put.value) for place, put in enumerate(done)],
    )
    log_bytes = kept.log_bytes + sum(len(put.key) + len(put.value or b"") for put in done)
    _cut_log(connection, kept._replace(revision=revision, log_bytes=log_bytes), limits)
    return revision


def _put(connection: sqlite3.Connection, put: Put, revision: int) -> bool:
    if put.value is None:
        gone = connection.execute("DELETE FROM entries WHERE key = ?", (put.key,))
        return gone.rowcount > 0
    if put.lease:
        granted(connection, put.lease)
    connection.execute(
        "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
        (put.key, put.value, revision, put.lease),
    )
    return True


def _cut_log(connection: sqlite3.Connection, kept: Kept, limits: LogLimits) -> None:
    known_after, log_bytes = kept.known_after, kept.log_bytes
    while known_after < kept.revision - 1 and (
        kept.revision - known_after > limits.commits or log_bytes > limits.bytes
    ):
        known_after += 1
        oldest = connection.execute(
            "DELETE FROM changes WHERE revision = ? RETURNING length(key), length(value)",
            (known_after,),
        )
        log_bytes -= sum(key + (value or 0) for key, value in oldest)
    connection.execute(
        "UPDATE store SET revision = ?, known_after = ?, log_bytes = ?",
        (kept.revision, known_after, log_bytes),
    )


# --- leases --------------------------------------------------------------------------------


def grant(connection: sqlite3.Connection, ttl_s: float) -> Lease:
    made = connection.execute(
        "INSERT INTO leases (ttl_s, boot, until_mono_s) VALUES (?, ?, ?)",
        (ttl_s, _boot(), time.monotonic() + ttl_s),
    )
    return Lease(int(made.lastrowid or 0), ttl_s)


def renew(connection: sqlite3.Connection, lease_id: int) -> Lease:
    ttl_s = granted(connection, lease_id)
    connection.execute(
        "UPDATE leases SET until_mono_s = ? WHERE id = ?", (time.monotonic() + ttl_s, lease_id)
    )
    return Lease(lease_id, ttl_s)


def granted(connection: sqlite3.Connection, lease_id: int) -> float:
    """How long it was granted for; LeaseLost where it was not, or no longer is."""
    row = connection.execute("SELECT ttl_s FROM leases WHERE id = ?", (lease_id,)).fetchone()
    if row is None:
        raise LeaseLost(f"lease {lease_id} has run out or was never granted")
    return float(row[0])


def revoke(connection: sqlite3.Connection, lease_id: int, limits: LogLimits) -> None:
    connection.execute("DELETE FROM leases WHERE id = ?", (lease_id,))
    keys = connection.execute(
        "SELECT key FROM entries WHERE lease = ? AND lease <> 0 ORDER BY key", (lease_id,)
    ).fetchall()
    put_all(connection, [Put(key, None) for (key,) in keys], limits)


def collect(connection: sqlite3.Connection, limits: LogLimits) -> None:
    """Take out what lay under leases that have run out."""
    now, boot = time.monotonic(), _boot()
    # The machine was started anew: how much time has passed is not known, so it begins again.
    connection.execute(
        "UPDATE leases SET boot = ?, until_mono_s = ? + ttl_s WHERE boot <> ?", (boot, now, boot)
    )
    ended = connection.execute("SELECT id FROM leases WHERE until_mono_s <= ?", (now,)).fetchall()
    for (lease_id,) in ended:
        revoke(connection, lease_id, limits)


def _boot() -> str:
    """Which start of the machine this is; empty where it does not tell."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""
