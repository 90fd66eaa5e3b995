"""A state file of an earlier version goes on being used: nothing in it is lost (R141)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.core.records import AuditEntry, MetricChange, Record, Report, Tally
from headgate.errors import Conflict, StoreUnavailable
from headgate.stores import SqliteStore
from tests.contracts.conftest import sqlite_store

# As version 1 wrote it: a dump of its file. sqlite_sequence tells that two entries were forgotten.
VERSION_1 = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA application_id = 1214531444;
PRAGMA user_version = 1;
CREATE TABLE audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    wall_s      REAL NOT NULL,
    who         TEXT NOT NULL,
    action      TEXT NOT NULL,
    target      TEXT NOT NULL,
    before_json TEXT NOT NULL,
    after_json  TEXT NOT NULL
);
INSERT INTO audit VALUES
    (1, 1700000000.5, 'ann', 'metric.set', 'main/lag', 'null', '{"threshold":5.0}'),
    (2, 1700000000.5, 'bob', 'metric.remove', 'main/loadavg', '{"threshold":1.0}', 'null'),
    (3, 1700000060.0, 'ann', 'metric.set', 'main/lag', '{"threshold":5.0}', '{"threshold":9.0}');
CREATE TABLE metric_changes (
    database TEXT NOT NULL,
    metric   TEXT NOT NULL,
    raw_json TEXT,
    revision INTEGER NOT NULL UNIQUE,
    wall_s   REAL NOT NULL,
    who      TEXT NOT NULL,
    action   TEXT NOT NULL,
    PRIMARY KEY (database, metric)
) WITHOUT ROWID;
INSERT INTO metric_changes VALUES
    ('main', 'lag', '{"threshold":9.0}', 3, 1700000060.0, 'ann', 'metric.set'),
    ('main', 'loadavg', NULL, 2, 1700000000.5, 'bob', 'metric.remove');
CREATE TABLE tallies (
    minute   INTEGER NOT NULL,
    database TEXT NOT NULL,
    client   TEXT NOT NULL,
    verdict  TEXT NOT NULL,
    metric   TEXT NOT NULL,
    count    INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (minute, database, client, verdict, metric)
) WITHOUT ROWID;
INSERT INTO tallies VALUES (28333333, 'main', 'etl:nightly', 'OK', '', 3);
CREATE INDEX audit_by_time ON audit (wall_s);
UPDATE sqlite_sequence SET seq = 5 WHERE name = 'audit';
"""
CHANGES = [
    MetricChange("main", "loadavg", None, 2),
    MetricChange("main", "lag", {"threshold": 9.0}, 3),
]
ENTRY = AuditEntry(1_700_000_120.0, "cy", "skip.set", "commerce/-80 db-b", None, {})
SKIP = Record("skip", "commerce/-80 db-b", {"why": "disk"}, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "state.db"
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        connection.executescript(VERSION_1)
    return made


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


async def check_kept(store: SqliteStore) -> None:
    assert list(await store.metric_changes()) == CHANGES
    tallies = await store.tallies(since_minute=0, until_minute=10**9)
    assert list(tallies) == [Tally(28333333, "main", "etl:nightly", "OK", "", 3)]
    summed = await store.sums(("etl",), since_minute=0, until_minute=10**9, step_minutes=None)
    assert [(t.client, t.count) for t in summed] == [("etl:nightly", 3)]
    assert await store.minutes_asked((), since_minute=0, until_minute=10**9) == [(28333333, 3, 0)]
    assert [(e.id, e.who, e.after) for e in (await store.audit())[-3:]] == [
        (3, "ann", {"threshold": 9.0}),
        (2, "bob", None),
        (1, "ann", {"threshold": 5.0}),
    ]


async def test_a_file_of_version_1_is_upgraded_in_place_and_keeps_everything(path: Path) -> None:
    store = sqlite_store(path)
    await store.open()
    await check_kept(store)
    assert list(await store.records("skip")) == []
    kept = await store.put_record(SKIP, ENTRY)
    assert kept.revision == 6, "a revision was given twice"
    with pytest.raises(Conflict, match=r"bob made revision 2 .*metric\.remove"):
        await store.put_metric(replace(CHANGES[0], revision=1), ENTRY)
    await store.close()
    assert version(path) == 6

    await store.open()
    await check_kept(store)
    assert list(await store.records("skip")) == [kept]
    await store.close()


async def test_an_upgraded_file_is_made_as_a_new_one(path: Path, tmp_path: Path) -> None:
    schemas = []
    for place in (path, tmp_path / "new.db"):
        store = sqlite_store(place)
        await store.open()
        await store.close()
        with closing(sqlite3.connect(place)) as connection:
            query = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
            schemas.append(connection.execute(query).fetchall())
    assert schemas[0] == schemas[1]


async def test_an_upgrade_that_the_disk_refuses_leaves_version_1_to_be_tried_again(
    path: Path,
) -> None:
    full = sqlite_store(path, max_bytes=1)
    with pytest.raises(StoreUnavailable, match=r"state\.db: database or disk is full"):
        await full.open()
    assert list(await full.salvage_changes()) == CHANGES
    assert list(await full.salvage_records("skip")) == []
    await full.close()
    assert version(path) == 1

    store = sqlite_store(path)
    await store.open()
    await check_kept(store)
    await store.close()
    assert version(path) == 6


# As version 5 kept what clients reported: a record and an audit entry each.
REPORTED_IN_VERSION_5 = """
DELETE FROM reports;
DROP TABLE reports;
PRAGMA user_version = 5;
INSERT INTO records (revision, kind, key, value_json, wall_s, who, action) VALUES
    (7, 'unthrottled', 'etl', '{"periods":[]}', 7.5, 'client:etl', 'unthrottled.reported'),
    (8, 'unthrottled', 'gone', NULL, 8.5, 'client:gone', 'unthrottled.forgotten'),
    (9, 'skip', 'x', '{"why":"disk"}', 9.5, 'ann', 'skip.set');
INSERT INTO audit VALUES
    (7, 7.5, 'client:etl', 'unthrottled.reported', 'etl', 'null', '{"periods":[]}'),
    (8, 8.5, 'client:gone', 'unthrottled.forgotten', 'gone', 'null', 'null'),
    (9, 9.5, 'ann', 'skip.set', 'x', 'null', '{"why":"disk"}');
"""


async def test_reports_of_clients_leave_records_and_audit(tmp_path: Path) -> None:
    """H5."""
    path = tmp_path / "state.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(REPORTED_IN_VERSION_5)
    await store.open()
    assert list(await store.reports()) == [Report("etl", "", 7.5, {"periods": []})]
    assert [entry.action for entry in await store.audit()] == ["skip.set"]
    assert list(await store.records("unthrottled")) == []
    assert [record.key for record in await store.records("skip")] == ["x"]
    kept = await store.put_record(replace(SKIP, key="new"), ENTRY)
    assert kept.revision == 10, "a revision was given twice"
    await store.close()
