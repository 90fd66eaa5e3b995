"""The state file under faults, for real: killed writers, torn logs, full and locked disks.

What was acknowledged stays, what was rejected is not there, nothing hangs, and the store is
well again by itself when the fault has gone (R141).
"""

# ruff: noqa: ASYNC240 -- nothing else runs on these loops while a test looks at its files

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from headgate.base.keyvalue import Compare, Entry, Put
from headgate.errors import StoreUnavailable
from headgate.history.records import AuditEntry, Tally
from headgate.store import SqliteStore
from headgate.store.file import APPLICATION_ID, STEPS, SchemaStep, migrate
from headgate.store.locallog import MAX_ENTRIES
from tests.metrics.probes.reading import becomes

ENTRY = AuditEntry(1_700_000_000.0, "ann", "metric.set", "main/lag", None, None)
NOBODY = 65534


def patient(path: Path, **options: Any) -> SqliteStore:
    """It calls no slow machine a fault."""
    return SqliteStore(path, **{"deadline_s": 60.0, "look_back_s": 60.0, **options})


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = patient(path, **options)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "state.db") as made:
        yield made


def batch(n: int) -> list[Tally]:
    """Number `n` of batches that are kept whole or not at all."""
    return [Tally(n, "main", client, "OK", "", 1) for client in ("a", "b", "c")]


LAG = "items/wide/metric/main%2Flag"
SKIPS = ("items/wide/skip/commerce%2F-80%20db-b", "items/wide/skip/commerce%2F-80%20db-c")


async def kept(store: SqliteStore, *prefixes: str) -> list[Entry]:
    return list((await store.list(prefixes)).entries)


async def put(store: SqliteStore, n: int) -> None:
    """Set main/lag to `n`, whatever it was."""
    before = [Compare(LAG, entry.revision) for entry in await kept(store, LAG)]
    audit = replace(ENTRY, after={"n": n})
    await store.commit(before or [Compare(LAG, 0)], [Put(LAG, str(n).encode())], audit=[audit])


async def put_skip(store: SqliteStore, n: int) -> None:
    """Set the two skips to `n`, whatever they were, in one transaction."""
    entry = replace(ENTRY, action="skip.set", after={"n": n})
    puts = [Put(key, str(n).encode()) for key in SKIPS]
    await store.commit([], puts, audit=[entry, entry])


async def skip_number(store: SqliteStore) -> int:
    """What the two skips were set to, 0 when there are none."""
    found = [int(entry.value) for entry in await kept(store, *SKIPS)]
    assert len(found) in (0, 2) and len(set(found)) <= 1, "one of two was kept without the other"
    return found[0] if found else 0


async def state(store: SqliteStore) -> tuple[int, int]:
    """(the number main/lag was set to, how many batches are kept), both 0 when empty."""
    found, entries = await kept(store, LAG), await store.audit(limit=1)
    tallies = await store.history.tallies(since_minute=0, until_minute=10**9, limit=10**6)
    assert len(tallies) % 3 == 0, "a batch was kept in part"
    assert {t.count for t in tallies} <= {1}, "a batch was kept twice"
    number = int(found[0].value) if found else 0
    assert (entries[0].after["n"] if entries else 0) == number, "change and audit differ"
    return number, len(tallies) // 3


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


# --- the process dies ----------------------------------------------------------------------


async def _write_on(path: Path, acknowledge: Connection) -> None:
    store = patient(path)
    await store.open()
    number, _ = await state(store)
    while True:
        number += 1
        await put(store, number)
        await put_skip(store, number)
        await store.history.add_tallies(batch(number))
        acknowledge.send(number)
        if number % 7 == 0:
            await store.history.forget_before(0)


def write_on(path: Path, acknowledge: Connection) -> None:
    """Until it is killed."""
    asyncio.run(_write_on(path, acknowledge))


def kill_a_writer(path: Path, after_s: float) -> int:
    """The last number that a writer acknowledged before it was killed."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    ours, theirs = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_on, args=(path, theirs), daemon=True)
    writer.start()
    theirs.close()
    assert ours.poll(60), "the writer acknowledged nothing"
    writer.join(after_s)
    writer.kill()
    writer.join()
    return last_of(ours)


def last_of(acknowledged: Connection) -> int:
    last = 0
    with suppress(EOFError), acknowledged:
        while True:
            last = acknowledged.recv()
    return last


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.extended)])
async def test_kill_9_at_any_moment_loses_nothing_acknowledged(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "state.db"
    for _ in range(rounds):
        acknowledged = await asyncio.to_thread(kill_a_writer, path, random.uniform(0, 0.05))
        assert integrity(path) == "ok"
        async with opened(path) as store:
            number, batches = await state(store)
            skip = await skip_number(store)
            entries = await store.audit(limit=10**6)
        assert acknowledged <= number <= acknowledged + 1
        assert acknowledged <= batches <= skip <= number
        assert len(entries) == number + 2 * skip, "a change without its audit entry, or the reverse"
        async with opened(path) as store:
            if skip < number:  # Killed between two of the writes: even out for the next round.
                await put_skip(store, number)
            if batches < number:
                await store.history.add_tallies(batch(number))


async def test_kill_9_while_the_file_is_made_leaves_one_that_opens(tmp_path: Path) -> None:
    """Created, switched to WAL, and no further: still ours to begin."""
    path = tmp_path / "state.db"
    path.touch()
    async with opened(path) as store:
        await put(store, 1)
    half = tmp_path / "half.db"
    connection = sqlite3.connect(half, isolation_level=None)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    async with opened(half) as store:
        await put(store, 1)


# --- the log is torn -----------------------------------------------------------------------


async def states_in_log(folder: Path) -> tuple[Path, list[tuple[int, int]]]:
    """A file with its whole history in the log, as a power cut finds it."""
    path = folder / "state.db"
    states = [(0, 0)]
    async with opened(path) as store:
        for n in range(1, 7):
            await put(store, n)
            states.append((n, n - 1))
            await store.history.add_tallies(batch(n))
            states.append((n, n))
        return copy_state(path, folder / "copy"), states


def copy_state(path: Path, folder: Path) -> Path:
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", folder)
    return folder / path.name


@pytest.mark.parametrize("damage", ["cut", "flip", "zeros"])
async def test_a_torn_log_opens_with_what_was_committed_before(tmp_path: Path, damage: str) -> None:
    original, states = await states_in_log(tmp_path)
    size = Path(f"{original}-wal").stat().st_size
    reached = -1
    for offset in [*range(0, size, size // 40), size]:
        path = copy_state(original, tmp_path / f"at-{offset}")
        tear(Path(f"{path}-wal"), offset, damage)
        async with opened(path) as store:
            found = states.index(await state(store))
            await put(store, 99)
        assert integrity(path) == "ok"
        assert found >= reached, "less damage kept less"
        reached = found
    assert reached == len(states) - 1


def tear(log: Path, offset: int, damage: str) -> None:
    content = bytearray(log.read_bytes())
    if damage == "cut":
        del content[offset:]
    elif damage == "zeros":
        content[offset:] = bytes(len(content) - offset)
    elif offset < len(content):
        content[offset] ^= 0xFF
    log.write_bytes(content)


# --- the disk is full, or may not be written -----------------------------------------------


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Python ignores SIGXFSZ, so that a longer write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def fill(store: SqliteStore) -> tuple[int, str]:
    """Add batches until the store rejects one: how many it took, and what it said then."""
    for n in range(2000):
        big = [Tally(n, "main", f"{c}{'x' * 1000}", "OK", "", 1) for c in range(30)]
        try:
            await store.history.add_tallies(big)
        except StoreUnavailable as error:
            return n, str(error)
    raise AssertionError("the disk never filled")


async def minutes_kept(store: SqliteStore) -> list[int]:
    tallies = await store.history.tallies(since_minute=0, until_minute=10**9, limit=10**6)
    kept = sorted({tally.minute for tally in tallies})
    assert len(tallies) == 30 * len(kept), "a batch was kept in part"
    return kept


async def test_a_write_that_the_disk_rejects_is_not_there_and_later_ones_are(
    store: SqliteStore, tmp_path: Path
) -> None:
    await put(store, 1)
    with files_of_at_most(600_000):
        taken, message = await fill(store)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"state\.db: .*disk"):
                await store.history.add_tallies([Tally(10**6, "main", "x" * 10**6, "OK", "", 1)])
    assert taken > 0
    assert message.startswith("state.db: ")
    assert "check the disk" in message
    assert await minutes_kept(store) == list(range(taken))
    await put(store, 2)
    await store.close()
    assert integrity(tmp_path / "state.db") == "ok"


async def test_a_full_file_rejects_whole_batches_still_reads_and_forgets_its_way_out(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "state.db", max_bytes=400_000) as store:
        await put(store, 1)
        taken, message = await fill(store)
        assert "state.db: database or disk is full (SQLITE_FULL); free disk space" in message
        assert await minutes_kept(store) == list(range(taken))
        assert [entry.value for entry in await kept(store, LAG)] == [b"1"]
        await store.history.forget_before(taken)
        await put(store, 2)
        await store.history.add_tallies(batch(taken))


async def test_forgetting_gives_the_disk_its_room_back(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with opened(path) as store:
        for _ in range(2):
            for hour in range(8):
                await store.history.add_tallies(
                    [Tally(hour, "main", f"client-{n}", "OK", "", 1) for n in range(4000)]
                )
            await store.history.forget_before(7)
            sizes = [Path(f"{path}{suffix}").stat().st_size for suffix in ("", "-wal")]
            assert sum(sizes) < 700_000, sizes
            await store.history.forget_before(8)
    assert integrity(path) == "ok"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that a user without privileges can come to; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def without_privileges(folder: Path) -> Iterator[None]:
    """Root may write anything: be nobody for a while, and own `folder`."""
    if os.geteuid() != 0:
        yield
        return
    for place in (folder, *folder.iterdir()):
        os.chown(place, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_read_only_file_is_named_and_well_again_when_it_may_be_written(
    reachable: Path,
) -> None:
    path = reachable / "state.db"
    async with opened(path) as store:
        await put(store, 1)
    path.chmod(0o400)
    with without_privileges(reachable):
        store = patient(path)
        with pytest.raises(StoreUnavailable, match=r"state\.db: .*give the agent's user write"):
            await store.open()
        with pytest.raises(StoreUnavailable, match=r"state\.db: "):
            await put(store, 2)
        path.chmod(0o600)
        await put(store, 2)
        assert await state(store) == (2, 0)
        await store.close()


async def test_what_is_kept_in_a_read_only_file_is_salvaged(reachable: Path) -> None:
    """What operators set stays in force although it cannot be changed."""
    path = reachable / "state.db"
    async with opened(path) as store:
        await put(store, 1)
        await put_skip(store, 2)
        await store.commit([], [Put("log/000000000001", b"who")])
        listing = await store.list([""])
    # In a thread, which loads what threads need: nobody may not be let to Python's own folder.
    before = await asyncio.to_thread(path.read_bytes)
    path.chmod(0o400)
    with without_privileges(reachable):
        store = patient(path)
        with pytest.raises(StoreUnavailable, match="is read-only"):
            await store.open()
        assert await store.list([""], allow_stale=True) == listing
        assert (await store.list(["items/wide/peer/"], allow_stale=True)).entries == ()
        await store.close()
    assert path.read_bytes() == before


async def test_a_read_only_folder_is_named_and_well_again_when_it_may_be_written(
    reachable: Path, tmp_path: Path
) -> None:
    async with opened(tmp_path / "other.db"):
        pass  # What it reads for a new file is read: nobody may not be let to the project's folder.
    reachable.chmod(0o500)
    with without_privileges(reachable):
        store = patient(reachable / "state.db")
        with pytest.raises(StoreUnavailable, match=r"state\.db: Permission denied; .*folder"):
            await store.open()
        reachable.chmod(0o700)
        await put(store, 1)
        await store.close()


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = patient(tmp_path / "nowhere" / "state.db")
    with pytest.raises(StoreUnavailable, match=r"state\.db: No such file .* folder exists"):
        await store.open()
    (tmp_path / "nowhere").mkdir()
    await put(store, 1)
    await store.close()


async def test_a_full_log_rejects_one_more_and_what_was_taken_out_makes_room(
    store: SqliteStore, tmp_path: Path
) -> None:
    fill_log(tmp_path / "state.db")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"items/ has 100,000 entries .*remove some"):
            await store.commit([], [Put("items/new", b"")], audit=[ENTRY])
    assert list(await store.audit()) == []
    await store.commit([], [Put("notes/new", b""), Put("items/7", b"changed")])
    await store.commit([], [Put("items/7", None)])
    await store.commit([], [Put("items/new", b"")])
    assert len((await store.list(["items/"])).entries) == MAX_ENTRIES


def fill_log(path: Path) -> None:
    """As many items as there may be, at once."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        """
        WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
        INSERT INTO entries SELECT 'items/' || n, x'7b7d', 1 FROM n
        """,
        (MAX_ENTRIES,),
    )
    connection.close()


# --- the file is taken away ----------------------------------------------------------------


async def test_a_file_moved_away_is_missed_and_taken_up_again_when_it_is_back(
    store: SqliteStore, tmp_path: Path
) -> None:
    path, elsewhere = tmp_path / "state.db", tmp_path / "elsewhere.db"
    await put(store, 1)
    path.rename(elsewhere)
    for attempt in (
        store.list([""]),
        store.history.add_tallies([]),
        store.history.forget_before(1),
    ):
        with pytest.raises(StoreUnavailable, match=r"state\.db: was deleted or moved while in use"):
            await attempt
    assert not path.exists(), "an empty file was begun without being asked for"
    elsewhere.rename(path)
    assert await state(store) == (1, 0)
    await put(store, 2)


@pytest.fixture
async def short_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """One that waits for others' locks, and half as long as it takes for all."""
    async with opened(tmp_path / "state.db", deadline_s=4.0) as made:
        yield made


@pytest.mark.parametrize("read_by_another", [False, True])
async def test_a_file_put_in_its_place_is_taken_up_and_not_mixed_with_the_old(
    short_store: SqliteStore, tmp_path: Path, read_by_another: bool
) -> None:
    path, old, backup = (tmp_path / f"{name}.db" for name in ("state", "old", "backup"))
    store = short_store
    async with opened(backup) as other:
        await put(other, 40)
    await put(store, 1)
    intruder = sqlite3.connect(path, isolation_level=None)
    if read_by_another:  # The log cannot be emptied into its file while somebody reads.
        intruder.execute("BEGIN")
        intruder.execute("SELECT count(*) FROM audit").fetchall()
    await put(store, 2)
    path.rename(old)
    backup.rename(path)
    Path(f"{path}.copy").unlink()  # It would be newer than the backup, and count.
    assert await state(store) == (40, 0)
    await put(store, 41)
    assert integrity(path) == "ok"
    intruder.close()
    if read_by_another:  # Then the operator can still bring the two together again.
        Path(f"{path}-wal.orphan").rename(f"{old}-wal")
    async with opened(old) as before:
        assert await state(before) == (2, 0), "the log did not go along with its file"


# --- the file is not ours ------------------------------------------------------------------


async def rejected_untouched(path: Path, message: str) -> None:
    before = path.read_bytes()
    store = patient(path)
    for attempt in (store.open(), store.list([""])):
        with pytest.raises(StoreUnavailable, match=message):
            await attempt
    await store.close()
    assert path.read_bytes() == before


async def test_a_text_file_is_rejected_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("[agent]\n" * 1000)
    await rejected_untouched(path, r"state\.db: file is not a database .* left as it is")


async def test_another_programs_database_is_rejected_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    await rejected_untouched(path, r"state\.db: is a database of another program")


async def test_a_newer_version_is_rejected_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    await rejected_untouched(
        path, rf"newer Headgate \(file version {len(STEPS) + 1}, .* up to {len(STEPS)}\)"
    )


async def test_a_corrupt_file_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with opened(path) as store:
        await put(store, 1)
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xa5" * 3996  # The page that holds the schema.
    path.write_bytes(content)
    await rejected_untouched(path, r"state\.db: .*malformed.* restore a copy, or move it away")


def fill_a(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO a VALUES (1, 2)")


@pytest.mark.parametrize("start", [0, 1])
def test_an_older_version_is_taken_forward_step_by_step(tmp_path: Path, start: int) -> None:
    connection = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    steps = [
        SchemaStep("CREATE TABLE a (x);"),
        SchemaStep("ALTER TABLE a ADD COLUMN y; -- the last word", fill_a),
    ]
    migrate(connection, 0, steps[:start])
    migrate(connection, start, steps[start:])
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert connection.execute("SELECT x, y FROM a").fetchall() == [(1, 2)]
    connection.close()


def fails(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO b VALUES (1)")
    raise ValueError("half-way")


@pytest.mark.parametrize(
    "step",
    [
        SchemaStep("CREATE TABLE b (x); DROP TABLE c;"),
        SchemaStep("CREATE TABLE b (x); INSERT INTO a VALUES (1);", fails),
    ],
)
def test_a_step_forward_that_fails_leaves_the_file_at_its_version(
    tmp_path: Path, step: SchemaStep
) -> None:
    connection = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    with pytest.raises((sqlite3.OperationalError, ValueError), match=r"no such table|half-way"):
        migrate(connection, 0, [SchemaStep("CREATE TABLE a (x);"), step])
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
    assert connection.execute("SELECT * FROM a").fetchall() == []
    connection.close()


# --- others want it, too -------------------------------------------------------------------


async def test_a_second_agent_learns_who_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(path), stdin=-1, stdout=-1
    )
    assert holder.stdin and holder.stdout
    assert await asyncio.wait_for(holder.stdout.readline(), 60) == b"held\n"
    link = tmp_path / "link.db"
    link.symlink_to(path)
    second = patient(link)
    with pytest.raises(StoreUnavailable, match=rf"agent with pid {holder.pid} uses it; stop"):
        await second.open()
    holder.kill()
    await holder.wait()
    await second.open()
    await put(second, 1)
    await second.close()


HOLD = """
import asyncio, pathlib, sys
from headgate.store import SqliteStore
async def main():
    await SqliteStore(pathlib.Path(sys.argv[1]), deadline_s=60).open()
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


async def test_two_stores_in_one_process_cannot_share_a_file(
    store: SqliteStore, tmp_path: Path
) -> None:
    second = patient(tmp_path / "state.db")
    with pytest.raises(StoreUnavailable, match=f"pid {os.getpid()} uses it"):
        await second.open()
    await put_skip(store, 1)
    stale = await second.list([""], allow_stale=True)
    assert stale == await store.list([""]), "of what the WAL alone has"
    await second.close()
    await put(store, 1)


async def test_a_lock_that_another_program_holds_is_named_and_does_not_stop_reads(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    async with opened(path, deadline_s=4.0) as store:
        await put(store, 1)
        intruder = sqlite3.connect(path, isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.history.add_tallies(batch(1)))
        assert await state(store) == (1, 0)
        assert not waiting.done(), "a read waited for a write"
        with pytest.raises(StoreUnavailable, match=r"state\.db: database is locked .*stop that"):
            await waiting  # While the lock is still held.
        intruder.execute("ROLLBACK")
        intruder.close()
        await store.history.add_tallies(batch(1))
        assert await state(store) == (1, 1)


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with opened(tmp_path / "state.db") as store:
            await put(store, 1)
            found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert found == dict.fromkeys(
        (
            "state.db",
            "state.db-wal",
            "state.db-shm",
            "state.db.lock",
            "state.db.copy",
            "state.db.reserve",
        ),
        0o600,
    )


# --- the disk is slow ----------------------------------------------------------------------


@pytest.fixture
async def sharp_timers() -> AsyncIterator[None]:
    """Keep the loop from resting: epoll would round a deadline up to whole milliseconds."""

    async def spin() -> None:
        while True:  # noqa: ASYNC110 -- not to wait is the point
            await asyncio.sleep(0)

    spinning = asyncio.create_task(spin())
    yield
    spinning.cancel()


async def usual_latency_s(folder: Path) -> float:
    async with opened(folder / "measured.db") as store:
        began = time.monotonic()
        for n in range(20):
            await store.history.add_tallies(batch(n))
        return (time.monotonic() - began) / 20


SHARES = (0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3)
"""Of the usual latency: deadlines that pass before, during and after a commit."""
TRIES = 30


@pytest.mark.usefixtures("sharp_timers")
async def test_what_was_rejected_for_lateness_is_not_kept(tmp_path: Path) -> None:
    """R135: counters stay exact, also when a commit lands after its caller has left."""
    path = tmp_path / "state.db"
    acknowledged = 0
    for share in SHARES:
        hasty = SqliteStore(path, deadline_s=share * await usual_latency_s(tmp_path))
        with suppress(StoreUnavailable):
            await hasty.open()
        for _ in range(TRIES):
            with suppress(StoreUnavailable):
                await hasty.history.add_tallies([Tally(1, "main", "a", "OK", "", 1)])
                acknowledged += 1
        await hasty.close()
        async with opened(path) as store:
            tallies = await store.history.tallies(since_minute=1, until_minute=1)
        assert sum(tally.count for tally in tallies) == acknowledged


@pytest.mark.usefixtures("sharp_timers")
async def test_a_commit_rejected_for_lateness_gives_no_conflict_later(tmp_path: Path) -> None:
    """Each is built on the one that was acknowledged last, and takes out what that one put."""
    path = tmp_path / "state.db"
    revision, acknowledged, expected = 0, 0, {}
    for share in SHARES:
        hasty = SqliteStore(path, deadline_s=share * await usual_latency_s(tmp_path))
        with suppress(StoreUnavailable):
            await hasty.open()
        for n in range(TRIES):
            value = str(n).encode()
            puts = [Put("head", value), Put(SKIPS[n % 2], value), Put(SKIPS[(n + 1) % 2], None)]
            with suppress(StoreUnavailable):
                revision = await hasty.commit([Compare("head", revision)], puts, audit=[ENTRY])
                acknowledged += 1
                expected = {put.key: put.value for put in puts if put.value is not None}
        await hasty.close()
        async with opened(path) as store:
            assert {entry.key: entry.value for entry in await kept(store, "")} == expected
            assert {entry.revision for entry in await kept(store, "")} <= {revision}
            assert len(await store.audit(limit=1000)) == acknowledged


async def test_what_has_waited_for_hours_fits_in_one_batch(tmp_path: Path) -> None:
    """A batch that outgrew its deadline would be rejected however often it is offered."""
    many = [Tally(n, "main", "etl:nightly", "OK", "", 1) for n in range(30_000)]
    async with opened(tmp_path / "state.db") as store:
        await put(store, 1)
    hasty = SqliteStore(tmp_path / "state.db", deadline_s=0.05)
    with suppress(StoreUnavailable):
        await hasty.open()
    await becomes(lambda: is_added(hasty, many))  # As it is offered again and again.
    await hasty.close()
    async with opened(tmp_path / "state.db") as store:
        kept = await store.history.tallies(since_minute=0, until_minute=10**6, limit=10**6)
    assert list(kept) == many


async def is_added(store: SqliteStore, tallies: list[Tally]) -> bool:
    try:
        await store.history.add_tallies(tallies)
    except StoreUnavailable:
        return False
    return True
