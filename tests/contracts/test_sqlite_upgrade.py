"""A state file of an earlier version goes on being used: nothing in it is lost (R141)."""

# ruff: noqa: ASYNC240 -- nothing else runs on these loops while a test looks at its files

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.base.keyvalue import Compare, Listing, Put
from headgate.errors import StoreUnavailable
from headgate.history.records import AuditEntry, Report, Tally
from headgate.store import SqliteStore, file
from headgate.store.statecopy import OldRows, entries_of
from tests.contracts.conftest import sqlite_store
from tests.metrics.test_service import World

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
INSERT INTO tallies VALUES
    (28333333, 'main', 'etl:nightly', 'OK', '', 3),
    (28333333, 'old', 'a', 'THRESHOLD_EXCEEDED', 'lag', 1),
    (28333333, 'old', 'b', 'REJECT_BY_RATIO', 'rule:r1', 2),
    (28333333, 'old', 'c', 'APP_DENIED', 'rule:r2', 3),
    (28333333, 'old', 'd', 'INTERNAL_ERROR', 'lag', 4),
    (28333333, 'old', 'e', 'MISDIRECTED', '', 5);
CREATE INDEX audit_by_time ON audit (wall_s);
UPDATE sqlite_sequence SET seq = 5 WHERE name = 'audit';
"""
ENTRY = AuditEntry(1_700_000_120.0, "cy", "skip.set", "commerce/-80 db-b", None, {})
VERSION = 8


def item(kind: str, name: str, value: Any, n: int, set_at: float, set_by: str) -> dict[str, Any]:
    about = {"kind": kind, "id": name, "reach": "host", "value": value}
    return {**about, "n": n, "set_at": set_at, "set_by": set_by}


def told(listing: Listing) -> dict[str, Any]:
    return {entry.key: json.loads(entry.value) for entry in listing.entries}


CHANGES = {
    "head": {"n": 2},
    "items/wide/metric/main%2Flag": item(
        "metric", "main/lag", {"settings": {"threshold": 9.0}}, 2, 1_700_000_060.0, "ann"
    ),
    "items/wide/metric/main%2Floadavg": item(
        "metric", "main/loadavg", {"removed": True}, 1, 1_700_000_000.5, "bob"
    ),
}


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
    listing = await store.list([""])
    assert told(listing) == CHANGES
    assert listing.revision == 6, "five entries of the audit, and the conversion"
    tallies = await store.history.tallies(since_minute=0, until_minute=10**9)
    minute = 28333333
    assert sorted(tallies, key=lambda tally: (tally.database, tally.client)) == [
        Tally(minute, "main", "etl:nightly", "OK", "", 3),
        Tally(minute, "old", "a", "THRESHOLD_EXCEEDED", "lag", 1),
        Tally(minute, "old", "b", "REJECTED_BY_RATIO", "rule:r1", 2),
        Tally(minute, "old", "c", "ON_HOLD", "rule:r2", 3),
        Tally(minute, "old", "d", "METRIC_UNAVAILABLE", "lag", 4),
        Tally(minute, "old", "e", "WRONG_AGENT", "", 5),
    ]
    summed = await store.history.sums(
        ("etl",), since_minute=0, until_minute=10**9, step_minutes=None
    )
    assert [(t.client, t.count) for t in summed] == [("etl:nightly", 3)]
    asked = await store.history.minutes_asked(("etl",), since_minute=0, until_minute=10**9)
    assert asked == [(minute, 3, 0)]
    assert [(e.id, e.who, e.after) for e in (await store.audit())[-3:]] == [
        (3, "ann", {"threshold": 9.0}),
        (2, "bob", None),
        (1, "ann", {"threshold": 5.0}),
    ]


async def test_a_file_of_version_1_is_upgraded_in_place_and_keeps_everything(path: Path) -> None:
    store = sqlite_store(path)
    await store.open()
    await check_kept(store)
    await store.close()
    assert version(path) == VERSION

    await store.open()
    await check_kept(store)
    assert await store.commit([Compare("head", 6)], [Put("head", b"{}")], audit=[ENTRY]) == 7
    assert (await store.audit())[0].id == 6, "an id was given twice"
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


async def test_an_upgrade_that_the_disk_rejects_leaves_version_1_to_be_tried_again(
    path: Path,
) -> None:
    full = sqlite_store(path, max_bytes=1)
    with pytest.raises(StoreUnavailable, match=r"state\.db: database or disk is full"):
        await full.open()
    assert told(await full.list([""], allow_stale=True)) == CHANGES
    assert told(await full.list(["head"], allow_stale=True)) == {"head": {"n": 2}}
    await full.close()
    assert version(path) == 1

    store = sqlite_store(path)
    await store.open()
    await check_kept(store)
    await store.close()
    assert version(path) == VERSION


# As version 5 kept what clients reported: a record and an audit entry each.
REPORTED_IN_VERSION_5 = """
DELETE FROM reports;
DROP TABLE reports;
PRAGMA user_version = 5;
INSERT INTO records (revision, kind, key, value_json, wall_s, who, action) VALUES
    (37, 'unthrottled', 'etl', '{"periods":[]}', 7.5, 'client:etl', 'unthrottled.reported'),
    (38, 'unthrottled', 'gone', NULL, 8.5, 'client:gone', 'unthrottled.forgotten');
INSERT INTO audit VALUES
    (37, 7.5, 'client:etl', 'unthrottled.reported', 'etl', 'null', '{"periods":[]}'),
    (38, 8.5, 'client:gone', 'unthrottled.forgotten', 'gone', 'null', 'null');
"""


async def test_reports_of_clients_leave_records_and_audit(of_version_6: Path) -> None:
    """H5."""
    with closing(sqlite3.connect(of_version_6, isolation_level=None)) as connection:
        connection.executescript(REPORTED_IN_VERSION_5)
    store = sqlite_store(of_version_6)
    assert told(await store.list([""], allow_stale=True)) == EVERYTHING, "before it is upgraded"
    await store.open()
    assert list(await store.reports()) == [Report("etl", "", 7.5, {"periods": []})]
    assert {entry.action for entry in await store.audit()}.isdisjoint(
        {"unthrottled.reported", "unthrottled.forgotten"}
    )
    assert told(await store.list([""])) == EVERYTHING
    assert await store.commit([], [Put("x", b"")]) == 40, "a revision was given twice"
    await store.close()


# --- from version 6: all that an operator can change ---------------------------------------------

DATA = Path(__file__).parent / "data" / "state-6"
"""Made by version 6 itself: data/state-6/README.md says how."""
SET_S = 1_700_000_060.0

_ETL = {"name": "new", "mode": "warn", "rate": 20, "capacity": 200}
_B = {"name": "b", "rate": 1}
_RULES: dict[str, tuple[dict[str, Any], dict[str, Any], int, float, str]] = {
    "half": (
        {"target": "etl:nightly", "kind": "ratio", "ratio": 0.5, "order": "before"}
        | {"expires_at": "2023-11-15T02:13:20Z", "created_at": "2023-11-14T22:13:20Z"}
        | {"created_by": "ann", "set_at": "2023-11-14T22:13:20Z"},
        {"ruled_at": 1_700_000_000.0},
        1,
        1_700_000_000.0,
        "ann",
    ),
    "gone": (
        {"target": "web", "kind": "hold", "reason": "migration", "lifted_by": "cy"}
        | {"expires_at": "2023-11-14T22:14:20Z", "created_at": "2023-11-14T22:14:20Z"}
        | {"created_by": "bob", "set_at": "2023-11-14T22:14:20Z"},
        {"ruled_at": SET_S},
        2,
        SET_S,
        "cy",
    ),
    "fix": (
        {"target": "backup", "kind": "exempt", "ceiling": 3.0, "justification": "incident"}
        | {"reason": "für Döner", "created_by": "bob", "set_at": "2023-11-14T22:14:20Z"}
        | {"expires_at": "2023-11-15T02:14:20Z", "created_at": "2023-11-14T22:14:20Z"},
        {"ruled_at": SET_S, "charged": {"main web:api": 12.5}}
        | {"suspended": "it starved main web:api"},
        3,
        SET_S,
        "headgate",
    ),
    **{
        name: (
            {"target": target, "kind": "ratio", "ratio": ratio, "order": "before", "pair": pair}
            | {"reason": "oltp is favored over all", "created_by": "ann"}
            | {"expires_at": "2023-11-15T02:14:20Z", "created_at": "2023-11-14T22:14:20Z"}
            | {"set_at": "2023-11-14T22:14:20Z"},
            {"ruled_at": SET_S},
            n,
            SET_S,
            "ann",
        )
        for name, target, ratio, pair, n in (
            ("r-000004", "oltp", 0.0, "r-000005", 4),
            ("r-000005", "all", 0.9, "r-000004", 5),
        )
    },
}
"""id → (value, what the agent noted of it, n, set_at, set_by)"""
_OF_FLEET = (
    {"target": "etl", "kind": "hold", "reason": "freeze", "created_by": "dora"}
    | {"expires_at": "2023-11-15T02:13:20Z", "created_at": "2023-11-14T22:13:20Z"}
    | {"set_at": "2023-11-14T22:13:20Z", "ruled_at": 1_700_000_000.0}
)
_MARK = {"ruled_s": SET_S, "wall_s": SET_S, "boot": "boot-1 1060.000"}
_PEER = {"url": "https://db-d:8087", "database": "main"}
_ITEMS = [
    *(
        item("rule", name, value | {"ruled_at": noted["ruled_at"]}, n, at, by)
        for name, (value, noted, n, at, by) in _RULES.items()
    ),
    item("metric", "main/lag", {"settings": {"threshold": 5.0}}, 6, SET_S, "ann"),
    item("metric", "main/loadavg", {"removed": True}, 7, SET_S, "bob"),
    item("metric", "main/pool", {"settings": {"query": "SELECT 'é/ü'"}}, 8, SET_S, "ann"),
    item(
        "skip",
        "commerce/-80 db-b",
        {"until_wall_s": SET_S + 3600, "who": "ann", "reason": "disk", "set_wall_s": SET_S},
        9,
        SET_S,
        "ann",
    ),
    item("peer", "commerce/-80 db-d", _PEER, 10, SET_S, "bob"),
    item(
        "handover",
        "commerce/-80",
        {"member": "db-a", "term": "3", "until_wall_s": SET_S + 600, "for_s": 600.0}
        | {"who": "bob", "reason": "kernel"},
        11,
        SET_S,
        "bob",
    ),
    item("budget", "main/web", {"removed": True}, 12, SET_S, "cy"),
    item(
        "budget",
        "main/etl",
        {"settings": {"capacity": None, "rate": 30}, "whole": False},
        13,
        SET_S,
        "cy",
    ),
    item(
        "budget",
        "main/new",
        {"settings": {**_ETL, "rules": [{"match": {"username": "etl"}}]}, "whole": True},
        14,
        SET_S,
        "cy",
    ),
    item("budget", "aux/cap@fleet", {"settings": {"rate": 5}, "whole": False}, 15, SET_S, "ann"),
    item(
        "budget", "aux/b", {"settings": {"name": "b", "rate": 1}, "whole": True}, 16, SET_S, "ann"
    ),
    item(
        "policy",
        "aux",
        {"policy": {"grace_ms": 5}, "order": ["b", "cap@fleet"], "mode_cap": "warn"}
        | {"of_fleet": ["cap@fleet"]},
        17,
        SET_S,
        "ann",
    ),
    item("peer", "aux/0 db-z", _PEER, 18, SET_S + 60, "bob"),
]
QUOTED = {"/": "%2F", " ": "%20", "@": "%40"}


def quoted(name: str) -> str:
    return "".join(QUOTED.get(char, char) for char in name)


EVERYTHING = {
    "head": {"n": 18},
    **{f"items/wide/{one['kind']}/{quoted(one['id'])}": one for one in _ITEMS},
    **{
        f"notes/rule/{name}": {
            "reach": "host",
            "n": n,
            "ruled_s": noted["ruled_at"],
            "wall_s": set_at,
            "rule": value | noted,
        }
        for name, (value, noted, n, set_at, _) in _RULES.items()
        if "charged" in noted
    },
    "notes/rule/f-111111": {"reach": "fleet", "n": 7, **_MARK, "rule": _OF_FLEET},
    "notes/rule/f-222222%40aux": {
        "reach": "shard:aux/*",
        "n": 8,
        **_MARK,
        "rule": {**_OF_FLEET, "database": "aux"},
    },
    "notes/rule_time": {
        "ruled_s": SET_S + 31,
        "wall_s": SET_S + 31,
        "boot": "boot-1 1091.000",
    },
}


SLOW_S = 1.5
"""Well over the deadline of everything else."""


async def test_a_conversion_that_takes_long_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *others, (script, convert), last = file.STEPS
    assert convert is not None

    def slowly(connection: sqlite3.Connection) -> None:
        time.sleep(SLOW_S)
        convert(connection)

    monkeypatch.setattr(file, "STEPS", (*others, (script, slowly), last))
    store = SqliteStore(path, deadline_s=SLOW_S / 3)
    await store.open()
    await check_kept(store)
    await store.close()


async def test_to_salvage_what_has_to_be_converted_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(rows: OldRows) -> dict[str, bytes]:
        time.sleep(SLOW_S)
        return entries_of(rows)

    monkeypatch.setattr(file, "entries_of", slowly)
    listing = await SqliteStore(path, deadline_s=SLOW_S / 3).list([""], allow_stale=True)
    assert told(listing) == CHANGES


@pytest.fixture
def of_version_6(tmp_path: Path) -> Path:
    for name in ("state.db", "state.db.copy"):
        shutil.copy(DATA / name, tmp_path)
    return tmp_path / "state.db"


async def test_everything_of_version_6_becomes_an_entry_of_the_log(of_version_6: Path) -> None:
    store = sqlite_store(of_version_6)
    assert told(await store.list([""], allow_stale=True)) == EVERYTHING, "before it is upgraded"
    assert version(of_version_6) == 6
    await store.open()
    first = await store.list([""])
    assert told(first) == EVERYTHING
    assert {entry.revision for entry in first.entries} == {31} == {first.revision}
    assert list(store.notes) == []
    assert len(await store.audit()) == 30
    await store.close()
    assert version(of_version_6) == VERSION

    await store.open()
    assert await store.list([""]) == first
    assert await store.list([""], allow_stale=True) == first
    await store.close()


async def test_a_threshold_of_version_6_is_in_force_after_the_upgrade(of_version_6: Path) -> None:
    """It stored `"threshold": 5.0` of lag, without a unit."""
    store = sqlite_store(of_version_6)
    world = World(store)
    await world.start({"lag": {"threshold": "1s"}})
    entry = world.book.database("main").entry("lag")
    assert (entry.spec.threshold, entry.origin) == (5.0, "runtime")
    await world.book.close()
    await store.close()


async def test_what_is_written_is_written_as_an_item_is(of_version_6: Path) -> None:
    """Compact, and not escaped: the same change has the same bytes."""
    store = sqlite_store(of_version_6)
    await store.open()
    for entry in (await store.list([""])).entries:
        document = json.loads(entry.value)
        written = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        assert entry.value == written.encode()
    await store.close()


async def test_the_copy_of_version_6_alone_has_it_all(of_version_6: Path) -> None:
    of_version_6.unlink()
    store = sqlite_store(of_version_6)
    assert told(await store.list([""], allow_stale=True)) == EVERYTHING
    await store.open()
    first = await store.list([""])
    assert told(first) == EVERYTHING and first.store_id
    assert [entry.action for entry in await store.audit()] == ["state.restored"]
    await store.close()

    of_version_6.unlink()
    await store.open()
    again = await store.list([""])
    assert (again.entries, again.store_id) == (first.entries, first.store_id), "from its new copy"
    assert again.revision > first.revision
    await store.close()


async def test_the_file_of_version_6_alone_has_it_all(of_version_6: Path) -> None:
    Path(f"{of_version_6}.copy").unlink()
    store = sqlite_store(of_version_6)
    await store.open()
    assert told(await store.list([""])) == EVERYTHING
    await store.close()


def set_revision(copy: Path, revision: int) -> None:
    """With another peer, by which it is known."""
    head, _, body = copy.read_bytes().partition(b"\n")
    body = body.replace(b'"revision":30', b'"revision":%d' % revision).replace(b"db-z", b"db-y")
    digest = hashlib.sha256(body).hexdigest()
    new_head = {**json.loads(head), "bytes": len(body), "sha256": digest}
    copy.write_bytes(json.dumps(new_head).encode() + b"\n" + body)


@pytest.mark.parametrize(("revision", "counts"), [(29, "file"), (30, "file"), (31, "copy")])
async def test_of_a_file_and_a_copy_of_version_6_the_newer_one_counts(
    of_version_6: Path, revision: int, counts: str
) -> None:
    set_revision(Path(f"{of_version_6}.copy"), revision)
    peer = "items/wide/peer/aux%2F0%20" + ("db-z" if counts == "file" else "db-y")
    store = sqlite_store(of_version_6)
    assert peer in told(await store.list([""], allow_stale=True))
    for _ in range(2):
        await store.open()
        assert peer in told(await store.list([""]))
        await store.close()


async def test_a_copy_of_version_6_is_older_than_what_was_set_since(of_version_6: Path) -> None:
    """As where the new copy could not be written."""
    copy = Path(f"{of_version_6}.copy")
    before = copy.read_bytes()
    store = sqlite_store(of_version_6)
    await store.open()
    await store.commit([], [Put("items/wide/rule/new", b"{}")])
    expected = await store.list([""])
    await store.close()
    copy.write_bytes(before)
    assert await store.list([""], allow_stale=True) == expected
    await store.open()
    assert await store.list([""]) == expected
    await store.close()


async def test_what_cannot_be_read_is_left_out_and_the_rest_stays(of_version_6: Path) -> None:
    with closing(sqlite3.connect(of_version_6, isolation_level=None)) as connection:
        connection.executescript(
            """
            UPDATE records SET value_json = '{"half' WHERE key = 'half';
            UPDATE metric_changes SET raw_json = '[]' WHERE metric = 'pool';
            UPDATE policy_revisions SET changes_json = '{"budgets":{"x":{}}}'
                WHERE database = 'aux';
            UPDATE records SET value_json = '{"url":"\\ud800"}' WHERE key = 'aux/0 db-z';
            """
        )
    store = sqlite_store(of_version_6)
    await store.open()
    found = told(await store.list([""]))
    gone = EVERYTHING.keys() - found.keys()
    assert gone == {
        "items/wide/rule/half",
        "items/wide/metric/main%2Fpool",
        "items/wide/budget/aux%2Fcap%40fleet",
        "items/wide/budget/aux%2Fb",
        "items/wide/policy/aux",
    }
    assert found["items/wide/peer/aux%2F0%20db-z"]["value"] == {"url": "\ud800"}
    await store.close()
