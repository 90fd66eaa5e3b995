"""What versions 1 to 6 kept of operators' changes, as entries of the log.

metric_changes, records, policy_revisions ──rows──► entries_of ──► items/…, notes/…, head
                        (of a state file, or of a copy of version 1)

Each change becomes an item with the reach `host`: it was set at this agent. What the agent noted
beside a rule (suspension, charges) becomes a note. Revisions go on from those of the
audit, by which both a file and its copy were counted: whichever was newer still is.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import structlog

from headgate.base.declared import parse_date_time
from headgate.changes.model import HEAD, WIDE, quoted

log = structlog.get_logger()

Row = Sequence[Any]
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

    metrics: Sequence[Row]
    records: Sequence[Row]
    policies: Sequence[Row]


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


def _metrics(rows: Iterable[Row]) -> Iterator[_Old]:
    for database, metric, raw_json, revision, wall_s, who in rows:
        name = f"{database}/{metric}"
        raw = None if raw_json is None else _object(raw_json, f"metric {name}")
        if raw_json is not None and (raw is None or raw == _AS_IN_FILE):
            continue
        value = {"removed": True} if raw is None else {"settings": raw}
        yield _Old(revision, "metric", name, value, wall_s, who)


def _records(rows: Iterable[Row], notes: dict[str, bytes]) -> Iterator[_Old]:
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


def _policies(rows: Iterable[Row]) -> Iterator[_Old]:
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
