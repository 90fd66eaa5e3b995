"""Every write, fsync, rename and truncation fails once, or the process dies beside it (R141, B7).

Afterwards the agent starts again, on what lies there, on the state file alone, and on its copy
alone. What was acknowledged is in force, what was rejected is not, or the state is called lost.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.base.keyvalue import Put
from headgate.errors import StateLost, StoreUnavailable
from headgate.fleet.cache import LogCache
from headgate.store import SqliteStore
from tests.fixtures.failing_disk import FAILURES, FailingDisks, Play, failing_disks
from tests.store.scenes import DEADLINE_S, STEPS, entry, fleet_copy, rule

SIDE_FILES = ("", "-wal", "-shm", "-journal")
PREFIXES = ("items/", "notes/")


class Fault(NamedTuple):
    at: int
    by: str
    then: str

    def __str__(self) -> str:
        return f"call {self.at}, {FAILURES[self.by]}, then {self.then}"


@pytest.fixture(scope="module")
def disks() -> Iterator[FailingDisks]:
    with failing_disks("tests.store.scenes") as disks:
        yield disks


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    """In memory: a fsync that fails is the shim's, and the others may be free."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="headgate-", dir=parent) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def empty(room: Path) -> Path:
    (room / "empty").mkdir()
    return room / "empty"


@pytest.fixture(scope="module")
def kept(room: Path) -> Path:
    """A state that an agent left behind when it was killed: a hold is in force."""
    folder = room / "kept"
    folder.mkdir()

    async def keep() -> None:
        store = SqliteStore(folder / "state.db", deadline_s=DEADLINE_S)
        await store.open()
        await store.commit([], rule("z", 0), audit=[entry("hold z")])
        await store.close()

    asyncio.run(keep())
    return folder


@pytest.fixture(scope="module")
def of_version_6(room: Path) -> Path:
    """One of before there was a log: it is converted when it is opened."""
    data = Path(__file__).parents[1] / "contracts" / "data" / "state-6"
    shutil.copytree(data, room / "of_version_6")
    return room / "of_version_6"


# --- which calls fail --------------------------------------------------------------------------


def faults_of(calls: Sequence[str], *, exhaustive: bool) -> list[Fault]:
    if exhaustive:
        return [
            Fault(at, by, then)
            for at in range(1, len(calls) + 1)
            for by in FAILURES
            for then in (("kill", "close") if by in "idns" else ("kill",))
        ]
    return _sampled(calls)


def _sampled(calls: Sequence[str]) -> list[Fault]:
    """Each kind of call on each file, at some place and by some failure."""
    by_kind: dict[str, list[int]] = {}
    for at, call in enumerate(calls, start=1):
        by_kind.setdefault(call, []).append(at)
    sample = random.Random(len(calls))
    return [
        Fault(sample.choice(places), sample.choice(sorted(FAILURES)), "kill")
        for places in by_kind.values()
    ]


def played(disks: FailingDisks, scene: str, begun: Path, room: Path, fault: Fault) -> Played:
    folder = room / "play"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(begun, folder)
    play = disks.play(scene, folder, at=fault.at, by=fault.by, then=fault.then)
    return Played(folder, play, fault.by == "d")


class Played(NamedTuple):
    folder: Path
    play: Play
    is_dead: bool
    """The disk failed for good."""


# --- the state file and its copy ----------------------------------------------------------------


class Found(NamedTuple):
    values: dict[str, bytes]
    audited: frozenset[str] | None
    """By their targets; None: the audit is gone, or cannot be read."""


async def in_force(state: Path) -> Found | None:
    """As the agent finds it at its next start; None: it calls its state lost, and rejects."""
    store, audited = SqliteStore(state, deadline_s=DEADLINE_S), None
    try:
        try:
            await store.open()
            listing, audit = await store.list(PREFIXES), await store.audit(limit=1000)
            if all(entry.action != "state.restored" for entry in audit):
                audited = frozenset(entry.target for entry in audit)
        except StoreUnavailable:
            listing = await store.list(PREFIXES, allow_stale=True)
    except StateLost:
        return None
    finally:
        await store.close()
    return Found({entry.key: entry.value for entry in listing.entries}, audited)


def outcomes(play: Play) -> Iterator[tuple[str, Sequence[Put], str]]:
    """Of each commit: `done`, `unknown`, or `rejected`, which is as if it was never asked for."""
    for step, everything in STEPS.items():
        puts = [put for put in everything if put.key.startswith(PREFIXES)]
        outcome = play.outcome(step)
        unknown = outcome == "unknown" or "OutcomeUnknown" in outcome
        yield step, puts, "unknown" if unknown else "done" if outcome == "done" else "rejected"


def allowed(play: Play, begun: Mapping[str, bytes]) -> dict[str, list[bytes | None]]:
    """Of each key: what may be in force after it. None: nothing."""
    found: dict[str, list[bytes | None]] = {key: [value] for key, value in begun.items()}
    for _, puts, outcome in outcomes(play):
        for put in puts:
            if outcome == "done":
                found[put.key] = [put.value]
            elif outcome == "unknown":
                found[put.key] = [*found.get(put.key, [None]), put.value]
    return found


def check_state(case: Played, begun: Mapping[str, bytes], why: object) -> None:
    fits = allowed(case.play, begun)
    for gone, name in ((SIDE_FILES, "copy alone"), ((".copy",), "file alone"), ((), "both")):
        folder = case.folder.with_name("again")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(case.folder, folder)
        for suffix in gone:
            (folder / f"state.db{suffix}").unlink(missing_ok=True)
        if case.is_dead and gone == SIDE_FILES:
            continue  # What cannot be emptied either, and then loses the file: that is two faults.
        found = asyncio.run(in_force(folder / "state.db"))
        seen = f"{why}, {name}: {found}, told {case.play.told}"
        if found is None:
            assert name == "copy alone", f"lost: {seen}"
            continue
        check_values(found, fits, seen)
        if found.audited is not None:
            check_audit(found.audited, case.play, seen)


def check_values(found: Found, fits: Mapping[str, Sequence[bytes | None]], seen: str) -> None:
    for key, values in fits.items():
        assert found.values.get(key) in values, f"{key}, allowed {values}: {seen}"
    assert found.values.keys() <= fits.keys(), seen
    for key, value in found.values.items():
        if "/rule/" in key and (twin := key.replace("/rule/", "/twin/")) in fits:
            assert found.values.get(twin) == value, f"half of a commit, {key}: {seen}"


def check_audit(audited: frozenset[str], play: Play, seen: str) -> None:
    for step, _, outcome in outcomes(play):
        if outcome != "unknown":
            assert (step in audited) == (outcome == "done"), f"audit of {step}: {seen}"


STATES = [
    ("state", "empty"),
    ("state", "kept"),
    ("state", "of_version_6"),
    ("state, closed", "kept"),
]


@pytest.mark.parametrize(("scene", "begun"), STATES)
def test_no_change_is_lost_or_invented_when_the_disk_fails_once(
    disks: FailingDisks, room: Path, scene: str, begun: str, request: pytest.FixtureRequest
) -> None:
    _every_fault(disks, room, scene, request.getfixturevalue(begun), exhaustive=False)


@pytest.mark.parametrize("by", ["i", "d"])
def test_a_commit_that_could_not_be_synced_is_not_there_at_the_next_start(
    disks: FailingDisks, room: Path, kept: Path, by: str
) -> None:
    """It lies in SQLite's log, whole. On a disk that fails for good that cannot be changed: then
    the answer says that its outcome is not known."""
    clean = played(disks, "state", kept, room, Fault(0, "i", "kill"))
    calls = clean.play.calls
    last = max(at for at, call in enumerate(calls, start=1) if call == "fsync state.db-wal")
    fault = Fault(last, by, "kill")
    case = played(disks, "state", kept, room, fault)
    told = case.play.outcome("hold c")
    assert told.startswith("rejected") and ("OutcomeUnknown" in told) == (by == "d"), told
    check_state(case, values_of(kept, room), fault)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("scene", "begun"), STATES)
def test_no_change_is_lost_or_invented_whichever_call_fails(
    disks: FailingDisks, room: Path, scene: str, begun: str, request: pytest.FixtureRequest
) -> None:
    _every_fault(disks, room, scene, request.getfixturevalue(begun), exhaustive=True)


def values_of(begun: Path, room: Path) -> dict[str, bytes]:
    folder = room / "looked at"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(begun, folder)
    found = asyncio.run(in_force(folder / "state.db"))
    assert found is not None
    return found.values


def _every_fault(
    disks: FailingDisks, room: Path, scene: str, begun: Path, *, exhaustive: bool
) -> None:
    before = values_of(begun, room)
    clean = played(disks, scene, begun, room, Fault(0, "i", "close"))
    check_state(clean, before, "no fault")
    assert {outcome for _, outcome in clean.play.told} == {"begun", "done"}
    for fault in faults_of(clean.play.calls, exhaustive=exhaustive):
        call = clean.play.calls[fault.at - 1]
        check_state(played(disks, scene, begun, room, fault), before, f"{call}: {fault}")


# --- what is kept of the fleet --------------------------------------------------------------------


@pytest.mark.parametrize("exhaustive", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_what_is_kept_of_the_fleet_is_always_whole_and_never_older_than_acknowledged(
    disks: FailingDisks, room: Path, empty: Path, exhaustive: bool
) -> None:
    clean = played(disks, "fleet", empty, room, Fault(0, "i", "close"))
    for fault in faults_of(clean.play.calls, exhaustive=exhaustive):
        folder, play, _ = played(disks, "fleet", empty, room, fault)
        found = asyncio.run(LogCache(folder / "fleet.json").load())
        done = [int(step) for step, what in play.told if what == "done"]
        begun = [int(step) for step, what in play.told if what == "begun"]
        seen = f"{clean.play.calls[fault.at - 1]}: {fault}: {found}, told {play.told}"
        if found is None:
            assert not done, seen
        else:
            assert max(done, default=0) <= found.n <= max(begun), seen
            assert found == fleet_copy(found.n), seen
