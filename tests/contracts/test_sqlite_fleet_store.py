"""The fleet's store in a file: shared by processes, and what happens to files."""

# ruff: noqa: ASYNC240 -- a test's small file on a local disk

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path

import pytest

from headgate.core.keyvalue import Changes, Event, Put
from headgate.errors import Compacted, LeaseLost, OutcomeUnknown, StoreUnavailable
from headgate.stores import fleet_statements
from headgate.stores.fleet_sqlite import SqliteFleetStore, _Claim
from headgate.stores.fleet_statements import LogLimits
from tests.contracts.conftest import sqlite_store
from tests.contracts.fleets import sqlite_fleet_store
from tests.fixtures.eventually import DEADLINE_S, aeventually

OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from headgate.core.keyvalue import Put
from headgate.stores.fleet_sqlite import SqliteFleetStore

async def main() -> None:
    store = SqliteFleetStore(Path(sys.argv[1]), deadline_s=60.0)
    for i in range(10):
        await store.commit([], [Put(f"{sys.argv[2]}/{i}", b"")])
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteFleetStore]:
    made = sqlite_fleet_store(path, poll_s=0.01)
    yield made
    await made.close()


def other_process(path: Path, prefix: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, str(path), prefix])


# --- several processes ---------------------------------------------------------------------


async def test_processes_that_begin_the_file_at_once_share_it(
    store: SqliteFleetStore, path: Path
) -> None:
    """R83: nothing of any is lost, and all of it is told here."""
    others = [other_process(path, name) for name in ("a", "b")]
    seen: list[str] = []
    async with aclosing(store.watch([""], after_revision=0)) as watch:
        async for changes in watch:
            seen += [event.key for event in changes.events]
            if len(seen) == 20:
                break
    assert [other.wait(DEADLINE_S) for other in others] == [0, 0]
    assert [key for key in seen if key[0] == "a"] == [f"a/{i}" for i in range(10)]
    assert await store.count("") == 20


async def test_what_was_acknowledged_outlives_the_process(path: Path) -> None:
    first = sqlite_fleet_store(path)
    revision = await first.commit([], [Put("a", b"1")])
    listed = await first.list([""])
    await first.close()
    second = sqlite_fleet_store(path)
    assert await second.list([""]) == listed
    assert await second.commit([], [Put("a", b"2")]) == revision + 1
    await second.close()


# --- the log is bounded --------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [LogLimits(commits=3, bytes=10**6), LogLimits(commits=10**6, bytes=310)]
)
async def test_the_log_is_cut_by_commits_and_by_bytes(path: Path, limits: LogLimits) -> None:
    store = sqlite_fleet_store(path, max_log=limits)
    revisions = [await store.commit([], [Put("a", b"x" * 99)]) for _ in range(6)]
    with closing(sqlite3.connect(path)) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM changes").fetchone()
    assert kept == 3
    with pytest.raises(Compacted, match="list anew"):
        await anext(store.watch(["a"], after_revision=revisions[1]))
    changes = await anext(store.watch(["a"], after_revision=revisions[2]))
    assert [event.revision for event in changes.events] == revisions[3:]
    await store.close()


async def test_one_change_beyond_all_bounds_is_still_told(path: Path) -> None:
    store = sqlite_fleet_store(path, max_log=LogLimits(commits=1, bytes=10))
    begun = await store.commit([], [Put("a", b"")])
    revision = await store.commit([], [Put("a", b"x" * 100)])
    changes = await anext(store.watch(["a"], after_revision=begun))
    assert changes == Changes((Event("a", b"x" * 100, revision),), revision)
    await store.close()


async def test_a_reader_far_behind_gets_it_in_pieces_each_commit_whole(
    store: SqliteFleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_statements, "MAX_CHANGES_AT_ONCE", 3)
    for i in range(6):
        await store.commit([], [Put(f"a{i}", b""), Put(f"b{i}", b"")])
    pieces = []
    async with aclosing(store.watch([""], after_revision=0)) as watch:
        async for changes in watch:
            pieces.append([event.key for event in changes.events])
            if pieces[-1][-1] == "b5":
                break
    assert pieces == [["a0", "b0", "a1", "b1"], ["a2", "b2", "a3", "b3"], ["a4", "b4", "a5", "b5"]]


# --- leases and the machine's clock --------------------------------------------------------


async def test_a_lease_begins_anew_when_the_machine_was_started_anew(
    store: SqliteFleetStore, path: Path
) -> None:
    """How long it was off is not known; what lay under the lease is not thrown away for that."""
    lease, before = await store.grant(60), time.monotonic()
    await store.commit([], [Put("a", b"", lease=lease.id)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE leases SET boot = 'before', until_mono_s = 1")
    await store.commit([], [Put("b", b"")])
    assert await store.count("a") == 1
    with closing(sqlite3.connect(path)) as connection:
        (until,) = connection.execute("SELECT until_mono_s FROM leases").fetchone()
    assert until > before + 60, "as if it had been granted by this machine"


async def test_a_lease_is_never_granted_twice(store: SqliteFleetStore) -> None:
    first = await store.grant(60)
    await store.revoke(first.id)
    second = await store.grant(60)
    assert second.id != first.id
    with pytest.raises(LeaseLost):
        await store.renew(first.id)


# --- the file ------------------------------------------------------------------------------


async def test_a_file_of_another_program_is_left_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    store = sqlite_fleet_store(path)
    with pytest.raises(StoreUnavailable, match=r"another database.*file of its own"):
        await store.list([""])
    await store.close()
    assert path.read_bytes() == before


async def test_an_agents_state_file_is_not_taken_for_a_fleets(path: Path) -> None:
    state = sqlite_store(path)
    await state.open()
    await state.close()
    store = sqlite_fleet_store(path)
    with pytest.raises(StoreUnavailable, match=r"give fleet\.store a file of its own"):
        await store.commit([], [Put("a", b"")])
    await store.close()


async def test_a_file_of_a_newer_version_is_not_touched(
    store: SqliteFleetStore, path: Path
) -> None:
    await store.commit([], [Put("a", b"")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    late = sqlite_fleet_store(path)
    with pytest.raises(StoreUnavailable, match="newer Headgate"):
        await late.list([""])
    await late.close()


async def test_garbage_in_its_place_is_told_and_not_overwritten(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)
    store = sqlite_fleet_store(path)
    with pytest.raises(StoreUnavailable, match="restore a copy, or move it away"):
        await store.list([""])
    with pytest.raises(StoreUnavailable, match="restore a copy, or move it away"):
        await store.commit([], [Put("a", b"")])
    await store.close()
    assert path.read_bytes().startswith(b"not a database")


async def test_it_is_well_again_as_soon_as_the_file_is(
    store: SqliteFleetStore, path: Path, tmp_path: Path
) -> None:
    await store.commit([], [Put("a", b"1")])
    away = tmp_path / "away.db"
    path.rename(away)
    with pytest.raises(StoreUnavailable, match="deleted or moved"):
        await store.list(["a"])
    with pytest.raises(StoreUnavailable, match="deleted or moved"):
        await store.commit([], [Put("a", b"2")])
    away.rename(path)
    assert [entry.value for entry in (await store.list(["a"])).entries] == [b"1"]


async def test_another_file_in_its_place_is_another_store(
    store: SqliteFleetStore, path: Path, tmp_path: Path
) -> None:
    """R84: revisions of before say nothing there; a watch ends instead of going on in it."""
    await store.commit([], [Put("a", b"1")])
    before = await store.list(["a"])
    async with aclosing(store.watch(["a"], after_revision=0)) as watch:
        await anext(watch)
        other = sqlite_fleet_store(tmp_path / "other.db")
        await other.commit([], [Put("a", b"other")])
        await other.close()
        (tmp_path / "other.db").rename(path)
        with pytest.raises(StoreUnavailable, match="another file"):
            await anext(watch)
    assert (await store.list(["a"])).store_id != before.store_id


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = sqlite_fleet_store(tmp_path / "none" / "fleet.db")
    with pytest.raises(StoreUnavailable, match="see that its folder exists"):
        await store.list([""])
    await store.close()


# --- waits end -----------------------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_a_lock_that_is_not_let_go_ends_a_write_and_no_read(path: Path) -> None:
    store, hasty = sqlite_fleet_store(path), sqlite_fleet_store(path, deadline_s=0.2)
    await store.commit([], [Put("a", b"1")])

    async def names_the_lock() -> bool:
        """Unless the machine was too busy to find it in time."""
        with pytest.raises(StoreUnavailable) as refused:
            await hasty.commit([], [Put("a", b"2")])
        assert not isinstance(refused.value, OutcomeUnknown)
        return "locked" in str(refused.value)

    with locked(path):
        await aeventually(names_the_lock)  # type: ignore[arg-type]
        assert await store.count("a") == 1
    assert [entry.value for entry in (await store.list(["a"])).entries] == [b"1"]
    await store.commit([], [Put("a", b"3")])
    await store.close()
    await hasty.close()


def test_a_commit_either_is_taken_back_or_may_have_been_made() -> None:
    """R85: who is told that nothing was done can rely on it."""
    early, late = _Claim(), _Claim()
    assert early.withdraw()
    assert not early.take()
    assert late.take()
    assert not late.withdraw()


async def test_a_commit_whose_answer_came_too_late_is_told_as_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes long over the commit itself."""
    store, hasty = sqlite_fleet_store(path), sqlite_fleet_store(path, deadline_s=0.2)
    await store.commit([], [Put("a", b"1")])
    take, let_go = _Claim.take, threading.Event()

    def slow_disk(claim: _Claim) -> bool:
        taken = take(claim)
        if taken:
            let_go.wait()
        return taken

    async def is_unknown() -> bool:
        """Unless the machine was too busy to come as far as the commit in time."""
        with pytest.raises(StoreUnavailable) as told:
            await hasty.commit([], [Put("a", b"2")])
        return isinstance(told.value, OutcomeUnknown) and "may have been made" in str(told.value)

    async def made() -> bool:
        return [entry.value for entry in (await store.list(["a"])).entries] == [b"2"]

    with monkeypatch.context() as patched:
        patched.setattr(_Claim, "take", slow_disk)
        try:
            await aeventually(is_unknown)  # type: ignore[arg-type]
            assert not await made()
        finally:
            let_go.set()
        await aeventually(made)  # type: ignore[arg-type]
    await hasty.close()
    await store.close()


async def test_a_file_that_may_only_be_read_says_so(path: Path, store: SqliteFleetStore) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write to any file")
    await store.commit([], [Put("a", b"")])
    path.chmod(0o400)
    late = sqlite_fleet_store(path)
    with pytest.raises(StoreUnavailable, match="write the file"):
        await late.commit([], [Put("a", b"")])
    await late.close()
