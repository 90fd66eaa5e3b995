"""What is in force lies in two copies, and losing one of them opens no gate (B7, R141).

On real files that are cut, deleted, put back and filled up, by a process that is killed.
"""

# ruff: noqa: ASYNC240 -- nothing else runs on these loops while a test looks at its files

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from headgate.base.keyvalue import Compare, Listing, Put
from headgate.errors import Conflict, StateLost, StoreUnavailable
from headgate.history.records import AuditEntry, Tally
from headgate.store import SqliteStore
from headgate.store.file import RESERVE_BYTES
from headgate.store.locallog import Commit
from headgate.store.statecopy import CopyFile, CopyPart
from tests.fixtures.failing_disk import disk_of_2_mb, fill

ENTRY = AuditEntry(1_700_000_000.0, "ann", "rule.set", "r1", None, {})
RULES = "items/wide/rule/"
HOLD = Put(f"{RULES}r1", b'{"target":"etl","kind":"hold"}')
OTHER = Put(f"{RULES}r2", b'{"target":"web","kind":"hold"}')
STRICT = Put("items/wide/metric/main%2Flag", b'{"threshold":1.0}')
BUDGET = Put("items/shard/commerce%2F-80/budget/a", b'{"rate":1}')
NOTE = Put("notes/rule_time", b'{"ruled_s":1.0}')
HEAD = Put("head", b'{"n":4}')
LIFTED = replace(HOLD, value=b'{"lifted_by":"ann"}')
LOGGED = Put("log/000000000001", b'{"who":"ann"}')


@asynccontextmanager
async def opened(path: Path, **options: float) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)  # type: ignore[arg-type]
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def put_all(store: SqliteStore) -> None:
    await store.commit([], [NOTE])
    await store.commit([], [HOLD, LOGGED], audit=[ENTRY])
    await store.commit([], [STRICT], audit=[ENTRY])
    await store.commit([], [BUDGET, HEAD], audit=[ENTRY])
    await store.history.add_tallies([Tally(1, "main", "etl", "OK", "", 1)])


def told(listing: Listing) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in listing.entries}


async def in_force(store: SqliteStore) -> dict[str, bytes]:
    return told(await store.list(["head", "items/", "notes/"]))


async def salvaged(store: SqliteStore) -> dict[str, bytes]:
    return told(await store.list(["head", "items/", "notes/"], allow_stale=True))


async def rules(store: SqliteStore) -> list[str]:
    return [entry.key.removeprefix(RULES) for entry in (await store.list([RULES])).entries]


ALL = {put.key: put.value for put in (HOLD, STRICT, BUDGET, NOTE, HEAD)}
NOTHING: dict[str, bytes] = {}


# --- one of the two is lost ----------------------------------------------------------------


async def _set_and_hang(path: Path, acknowledged: Connection) -> None:
    store = SqliteStore(path)
    await store.open()
    await put_all(store)
    acknowledged.send(True)
    await asyncio.sleep(3600)


def set_and_hang(path: Path, acknowledged: Connection) -> None:
    asyncio.run(_set_and_hang(path, acknowledged))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an agent that was killed -9 once its changes were acknowledged."""
    folder = tmp_path_factory.mktemp("killed")
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=set_and_hang, args=(folder / "state.db", theirs))
    process.start()
    assert ours.recv()
    process.kill()
    process.join()
    return folder


@pytest.fixture
def path(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "state.db"


def cut(path: Path, size_bytes: int) -> None:
    """The file alone: its log is in it first, or gone with the process that had it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    os.truncate(path, size_bytes)


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 4096, 9000, 12_288, 20_000])
async def test_a_file_that_is_cut_leaves_all_in_force(path: Path, size_bytes: int) -> None:
    cut(path, size_bytes)
    store = SqliteStore(path)
    try:
        await store.open()
    except StoreUnavailable:
        assert await salvaged(store) == ALL
    else:
        assert await in_force(store) == ALL
    finally:
        await store.close()


@pytest.mark.parametrize("at", [20, 100, 4096, 5000, 8192, 12_300, 16_500])
async def test_a_file_that_is_scribbled_on_leaves_all_in_force(path: Path, at: int) -> None:
    cut(path, path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * 3000)
    store = SqliteStore(path)
    try:
        await store.open()
    except StoreUnavailable:
        assert await salvaged(store) == ALL
    else:
        assert await in_force(store) == ALL
    finally:
        await store.close()


async def test_a_file_without_its_log_is_older_than_its_copy(path: Path) -> None:
    """As a backup that was made without it would be."""
    Path(f"{path}-wal").unlink()
    async with opened(path) as store:
        assert await in_force(store) == ALL
        assert (await store.audit())[0].action == "state.restored"
        assert any("the changes in force come from its copy" in note for note in store.notes)


async def test_a_file_of_another_log_gives_way_whole(path: Path, tmp_path: Path) -> None:
    """One that is older than the copy: its history says nothing of what is in force."""
    other = tmp_path / "other.db"
    async with opened(other) as store:
        await store.commit([], [OTHER, replace(LOGGED, key="log/000000000009")])
    async with opened(path) as store:
        before = await store.list([""])
    path.unlink()
    other.rename(path)
    async with opened(path) as store:
        assert told(await store.list([""])) == ALL
        assert (await store.list([""])).store_id == before.store_id


async def test_a_file_that_is_gone_begins_again_with_what_is_in_force(path: Path) -> None:
    path.unlink()
    async with opened(path) as store:
        assert await in_force(store) == ALL
        assert await store.history.tallies(since_minute=0, until_minute=9) == []
        assert len((await store.list(["log/"])).entries) == 0, "the copy has no history"
        before = await store.list([""])
        assert await store.commit([], [replace(HOLD, value=b"{}")]) == before.revision + 1 > 5
    async with opened(path) as store:
        after = await store.list([""])
        assert told(after) == {**ALL, HOLD.key: b"{}"}
        assert after.store_id == before.store_id, "it is the same log"


async def test_an_older_file_put_back_does_not_lift_what_was_set_since(path: Path) -> None:
    backup = path.with_name("backup.db")
    async with opened(path) as store:
        pass
    shutil.copy(path, backup)
    async with opened(path) as store:
        await store.commit([], [OTHER], audit=[ENTRY])
    shutil.copy(backup, path)
    async with opened(path) as store:
        assert await rules(store) == ["r1", "r2"]
        assert len((await store.list(["log/"])).entries) == 1, "its own history stays"
        (note,) = store.notes
        assert "to use the file instead, stop the agent, remove state.db.copy and start it" in note
    shutil.copy(backup, path)
    Path(f"{path}.copy").unlink()
    async with opened(path) as store:
        assert await rules(store) == ["r1"], "as its note says"


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "scribbled", "other"])
async def test_a_copy_that_is_lost_is_made_again(path: Path, damage: str) -> None:
    copy = Path(f"{path}.copy")
    spoil(copy, damage)
    async with opened(path) as store:
        assert await in_force(store) == ALL
    path.unlink()
    async with opened(path) as store:
        assert await in_force(store) == ALL


def spoil(copy: Path, damage: str) -> None:
    raw = copy.read_bytes()
    if damage == "gone":
        copy.unlink()
    elif damage == "empty":
        copy.write_bytes(b"")
    elif damage == "cut":
        copy.write_bytes(raw[:-3])
    elif damage == "scribbled":
        copy.write_bytes(raw.replace(b"items", b"atoms"))
    else:
        copy.write_bytes(b"{}\n")


async def test_a_change_is_appended_to_the_copy_and_the_copy_stays_small(path: Path) -> None:
    """Thousands of rules are not written again with each change of one."""
    copy = Path(f"{path}.copy")
    many = [Put(f"{RULES}m{n}", b"x" * 400) for n in range(500)]
    async with opened(path) as store:
        await store.commit([], many, audit=[ENTRY])
        inodes, sizes = set[int](), list[int]()
        for n in range(600):
            await store.commit([], [replace(many[n % 500], value=b"%d" % n * 130)])
            inodes.add(copy.stat().st_ino)
            sizes.append(copy.stat().st_size)
        expected = await in_force(store)
    assert len(inodes) <= 3, "it was written anew with each change"
    assert max(sizes) < 2.5 * sizes[0], "it grows"
    path.unlink()
    async with opened(path) as store:
        assert await in_force(store) == expected


async def test_what_was_being_appended_when_the_power_failed_does_not_count(path: Path) -> None:
    """Its change was not acknowledged; those before it were."""
    copy = Path(f"{path}.copy")
    begun = b'{"id":"","revision":99,"wall_s":1.0,"entries":[["items/'
    copy.write_bytes(copy.read_bytes() + begun)
    path.unlink()
    async with opened(path) as store:
        assert await in_force(store) == ALL


async def test_a_copy_that_was_put_there_meanwhile_is_replaced(path: Path) -> None:
    copy = Path(f"{path}.copy")
    async with opened(path) as store:
        await store.commit([], [OTHER])
        shutil.copy(copy, f"{copy}.older")
        await store.commit([], [STRICT])
        Path(f"{copy}.older").rename(copy)
        await store.commit([], [LIFTED])
        expected = await in_force(store)
    path.unlink()
    async with opened(path) as store:
        assert await in_force(store) == expected


@pytest.mark.parametrize("fails", [False, True])
async def test_the_copy_has_nothing_of_a_change_that_came_too_late(
    path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Its caller was told that nothing was done. `fails`: it is taken back with the next write."""
    released, append, take_back = threading.Event(), CopyFile.append, Commit.take_back

    def hangs(copy: CopyFile, part: CopyPart) -> bool:
        released.wait()
        return append(copy, part)

    def fails_once(commit: Commit, connection: sqlite3.Connection) -> None:
        monkeypatch.setattr(Commit, "take_back", take_back)
        raise sqlite3.OperationalError("disk I/O error")

    async with opened(path, deadline_s=2.0) as store:
        await store.commit([], [STRICT])
        monkeypatch.setattr(CopyFile, "append", hangs)
        if fails:
            monkeypatch.setattr(Commit, "take_back", fails_once)
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            await store.commit([], [OTHER])
        monkeypatch.setattr(CopyFile, "append", append)
        released.set()
        await store.commit([], [BUDGET])
        assert await in_force(store) == ALL
    path.unlink()
    async with opened(path) as store:
        assert await in_force(store) == ALL


# --- both are lost -------------------------------------------------------------------------


async def is_lost(path: Path) -> StateLost:
    store = SqliteStore(path)
    try:
        with pytest.raises(StoreUnavailable):
            await store.open()
        with pytest.raises(StateLost, match="headgate state acknowledge") as caught:
            await store.list([""], allow_stale=True)
    finally:
        await store.close()
    return caught.value


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "scribbled", "other"])
@pytest.mark.parametrize("size_bytes", [None, 0, 9000])
async def test_both_lost_is_a_loss_and_no_new_beginning(
    path: Path, damage: str, size_bytes: int | None
) -> None:
    spoil(Path(f"{path}.copy"), damage)
    if size_bytes is None:
        path.unlink()
    else:
        cut(path, size_bytes)
    before = lying_in(path.parent)
    for _ in range(2):
        fault = await is_lost(path)
        assert "state.db: the operators' changes are lost" in str(fault)
    assert lying_in(path.parent) == before, "something was begun or moved"


def lying_in(folder: Path) -> list[str]:
    """Without what SQLite keeps beside a file that is read."""
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(("-wal", "-shm")))


async def test_a_new_folder_is_no_loss(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    assert await salvaged(store) == NOTHING
    await store.open()
    assert await in_force(store) == NOTHING
    assert list(store.notes) == []
    await store.close()


async def test_a_start_that_was_killed_before_it_had_a_state_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "state.db.lock").write_text("4711\n")
    (tmp_path / "state.db").touch()
    async with opened(tmp_path / "state.db") as store:
        assert await in_force(store) == NOTHING


async def test_a_state_of_nothing_is_remembered_too(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with opened(path):
        pass
    path.unlink()
    Path(f"{path}.copy").unlink()
    await is_lost(path)


# --- acknowledged --------------------------------------------------------------------------

ACKNOWLEDGED = replace(ENTRY, action="state.acknowledged", target="state.db")


async def test_an_acknowledged_loss_starts_empty_and_deletes_nothing(path: Path) -> None:
    spoil(Path(f"{path}.copy"), "cut")
    cut(path, 9000)
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable):
        await store.open()
    moved = await store.begin_anew(ACKNOWLEDGED)
    names = {name.partition(".lost-")[0] for name in moved}
    assert {"state.db", "state.db.copy"} <= names
    assert (path.parent / moved[0]).stat().st_size == 9000
    assert await in_force(store) == NOTHING
    assert [(e.who, e.action) for e in await store.audit()] == [("ann", "state.acknowledged")]
    await store.close()
    async with opened(path) as again:
        assert await in_force(again) == NOTHING


async def test_a_file_that_cannot_be_used_is_replaced_by_what_its_copy_has(path: Path) -> None:
    cut(path, 9000)
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable):
        await store.open()
    moved = await store.begin_anew(ACKNOWLEDGED)
    assert not [name for name in moved if ".copy" in name]
    assert await in_force(store) == ALL
    assert {e.action for e in await store.audit()} == {"state.restored", "state.acknowledged"}
    await store.close()


async def test_what_can_be_used_is_not_replaced(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(Conflict, match="nothing is lost"):
            await store.begin_anew(ACKNOWLEDGED)
        assert await in_force(store) == ALL


async def test_another_programs_file_is_not_moved(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable, match="another program"):
        await store.open()
    with pytest.raises(StoreUnavailable, match="another program"):
        await store.begin_anew(ACKNOWLEDGED)
    assert path.exists()
    await store.close()


# --- the copy cannot be written ------------------------------------------------------------


async def test_a_copy_that_cannot_be_written_fails_no_change_and_is_never_old(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.store.sqlite.COPY_AGAIN_S", 0.0)
    in_the_way = Path(f"{path}.copy.new")
    async with opened(path) as store:
        in_the_way.mkdir()
        await store.commit([], [OTHER], audit=[ENTRY])
        assert await rules(store) == ["r1", "r2"]
        assert Path(f"{path}.copy").read_bytes() == b"", "an old one would lack the new rule"
        (note,) = store.notes
        assert "second copy of the changes in force cannot be written" in note
        in_the_way.rmdir()
        await store.history.add_tallies([Tally(2, "main", "etl", "OK", "", 1)])
        assert list(store.notes) == []
    path.unlink()
    async with opened(path) as store:
        assert await rules(store) == ["r1", "r2"]


# --- the disk is full ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of_2_mb(tmp_path / "small") as folder:
        yield folder


def fault_of(store: SqliteStore) -> str:
    return store.fault or ""


async def test_on_a_full_disk_a_rule_is_lifted_and_none_is_set(small_disk: Path) -> None:
    """B5, B6."""
    path = small_disk / "state.db"
    async with opened(path) as store:
        set_at = await store.commit([], [HOLD], audit=[ENTRY])
        await store.history.forget_before(0)
        fill(small_disk)
        assert fault_of(store) == ""
        with pytest.raises(StoreUnavailable, match="full"):
            await store.commit([], [replace(OTHER, value=b"y" * 60_000)], audit=[ENTRY])
        assert "SQLITE_FULL" in fault_of(store)
        compares = [Compare(HOLD.key, set_at)]
        lifted_at = await store.commit(compares, [LIFTED], audit=[ENTRY], must_fit=True)
        assert await in_force(store) == {LIFTED.key: LIFTED.value}
        fill(small_disk)
        with pytest.raises(StoreUnavailable, match="full"):
            await store.history.add_tallies([])
        assert fault_of(store)
        (small_disk / "ballast").unlink()
        await store.history.add_tallies([])
        assert fault_of(store) == ""
        await store.history.forget_before(0)
        assert Path(f"{path}.reserve").stat().st_size == RESERVE_BYTES, "room is kept again"
        assert lifted_at > set_at
    async with opened(path) as store:
        assert await in_force(store) == {LIFTED.key: LIFTED.value}


async def test_in_a_file_as_large_as_it_may_be_a_rule_is_lifted(tmp_path: Path) -> None:
    """B6: the bound is our own."""
    async with opened(tmp_path / "state.db", max_bytes=400_000) as store:
        await store.commit([], [HOLD], audit=[ENTRY])
        with pytest.raises(StoreUnavailable, match="SQLITE_FULL"):
            for n in range(1000):
                await store.commit([], [Put(f"{RULES}x{n}", b"y" * 999)], audit=[ENTRY])
        with pytest.raises(StoreUnavailable):
            await store.history.add_tallies([])
        lifted = replace(LIFTED, value=b"y" * 9000)
        await store.commit([], [lifted], audit=[ENTRY], must_fit=True)
        assert told(await store.list([HOLD.key])) == {lifted.key: lifted.value}
