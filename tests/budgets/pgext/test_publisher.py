"""What is published is whole, newer, the owner's alone; and what fails leaves the last good one."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.budgets.compiled import compile_policy, read_compiled
from headgate.budgets.pgext import threads
from headgate.budgets.pgext.directory import (
    HEALTH_FILE,
    OFF_FILE,
    POLICY_FILE,
    NoServer,
    head_of,
    opened,
    stamped,
)
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.pgext.threads import OneCall
from headgate.budgets.policy import Policy
from headgate.errors import PolicyRejected
from tests.budgets.pgext.builders import blocking, owner_only, policy
from tests.fixtures.eventually import aeventually
from tests.fixtures.fakes import HandClock

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners and mounting take root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return owner_only(tmp_path / "pg_headgate")


@pytest.fixture
def sink(folder: Path) -> FilePolicySink:
    return FilePolicySink(folder, HandClock())


def lying_there(folder: Path) -> bytes:
    return (folder / POLICY_FILE).read_bytes()


def test_what_is_published_reads_back(folder: Path, sink: FilePolicySink) -> None:
    given = policy(blocking("etl"), blocking("bot", name="bots"))
    published = sink.publish_now(given)
    found = read_compiled(lying_there(folder))
    assert (found.version, found.crc) == (published.version, published.checksum) == (1, found.crc)
    assert [budget.name for budget in found.policy.budgets] == ["none", "bots"]
    assert (folder / POLICY_FILE).stat().st_mode & 0o777 == 0o600


async def test_the_port_publishes_off_the_loop(folder: Path, sink: FilePolicySink) -> None:
    assert (await sink.publish(policy(), 7)).version == 1
    assert str(folder) in sink.describe()


def test_versions_rise_over_what_another_published(folder: Path, sink: FilePolicySink) -> None:
    FilePolicySink(folder, HandClock()).publish_now(policy())
    FilePolicySink(folder, HandClock()).publish_now(policy())
    assert sink.publish_now(policy()).version == 3


def test_versions_rise_when_the_file_is_gone(folder: Path, sink: FilePolicySink) -> None:
    sink.publish_now(policy())
    (folder / POLICY_FILE).unlink()
    assert sink.publish_now(policy()).version == 2


@pytest.mark.parametrize("garbage", [b"", b"HGPOLICY", b"x" * 500])
def test_garbage_that_lies_there_has_no_version(
    folder: Path, sink: FilePolicySink, garbage: bytes
) -> None:
    (folder / POLICY_FILE).write_bytes(garbage)
    assert sink.publish_now(policy()).version == 1


def test_a_torn_file_does_not_raise_the_version(folder: Path, sink: FilePolicySink) -> None:
    whole = compile_policy(policy(blocking("etl")), 99)
    (folder / POLICY_FILE).write_bytes(whole[:-8])
    assert sink.publish_now(policy()).version == 1


def test_publishers_at_once_give_each_its_own_version(folder: Path) -> None:
    def publish(_: int) -> int:
        return FilePolicySink(folder, HandClock()).publish_now(policy()).version

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(publish, range(24))) == list(range(1, 25))


def test_off_stays_off_until_it_is_switched_on(folder: Path, sink: FilePolicySink) -> None:
    """An agent that publishes must not undo what somebody switched off at night."""
    sink.publish_now(policy(blocking("etl")))
    sink.switch_off()
    assert read_compiled(lying_there(folder)).off
    sink.publish_now(policy(blocking("bot", name="bots")))
    found = read_compiled(lying_there(folder))
    assert found.off and [budget.name for budget in found.policy.budgets] == ["bots"]
    assert sink.switch_on(None).version == 4
    found = read_compiled(lying_there(folder))
    assert not found.off and [budget.name for budget in found.policy.budgets] == ["bots"]


def test_switching_off_twice_publishes_once(folder: Path, sink: FilePolicySink) -> None:
    """Else it could never be purged on a server at rest, which has to notice it first."""
    assert sink.switch_off().version == sink.switch_off().version == 1


def test_nothing_there_can_be_switched_off_but_not_on(folder: Path, sink: FilePolicySink) -> None:
    with pytest.raises(PolicyRejected, match="--policy FILE"):
        sink.switch_on(None)
    sink.switch_off()
    assert read_compiled(lying_there(folder)).off


@pytest.mark.parametrize("off", [False, True])
def test_stamping_gives_what_compiling_would(off: bool) -> None:
    given = policy(blocking("etl"), blocking("bot", name="bots"))
    whole = compile_policy(given, 12, off=off)
    assert stamped(compile_policy(given, 0, off=not off), 12, off=off) == whole
    head = head_of(whole)
    assert head is not None and (head.version, head.off) == (12, off)


def test_health_is_told_in_forty_bytes_with_their_sum(folder: Path, sink: FilePolicySink) -> None:
    sink.tell_health_now(healthy=False, until_ms=1234)
    body = (folder / HEALTH_FILE).read_bytes()
    magic, format_, crc, health, zero, until_ms, _ = struct.unpack("<8sIIIIqq", body)
    assert (magic, format_, health, zero, until_ms) == (b"HGHEALTH", 1, 2, 0, 1234)
    assert crc == zlib.crc32(body[:12] + bytes(4) + body[16:])


# --- what stands in the way ------------------------------------------------------------------


def test_a_missing_folder_says_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="the extension makes it"):
        FilePolicySink(tmp_path / "none", HandClock()).publish_now(policy())


@pytest.mark.parametrize("mode", [0o750, 0o707, 0o755])
def test_a_folder_open_to_others_is_rejected(folder: Path, sink: FilePolicySink, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(PolicyRejected, match=f"mode 0{mode:o}.*chmod 0700"):
        sink.publish_now(policy())


def test_a_link_in_place_of_the_folder_is_rejected(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(PolicyRejected, match="is no folder, or a link"):
        FilePolicySink(link, HandClock()).publish_now(policy())


def test_a_link_in_place_of_the_file_is_replaced_not_followed(
    folder: Path, sink: FilePolicySink, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (folder / HEALTH_FILE).symlink_to(elsewhere)
    sink.tell_health_now(healthy=True, until_ms=1)
    assert elsewhere.read_text() == "mine"
    assert not (folder / HEALTH_FILE).is_symlink()


def test_leavings_of_a_killed_publisher_are_swept(folder: Path, sink: FilePolicySink) -> None:
    (folder / f"{POLICY_FILE}.99999.new").write_bytes(b"half")
    (folder / f"{POLICY_FILE}.{os.getpid()}.new").write_bytes(b"half")
    sink.publish_now(policy())
    assert [path.name for path in folder.iterdir()] == [POLICY_FILE]


def test_a_publisher_that_hangs_holds_others_for_a_bounded_time(
    folder: Path, sink: FilePolicySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.budgets.pgext.directory.LOCK_WAIT_S", 0.05)
    with opened(folder), pytest.raises(PolicyRejected, match="another publisher"):
        sink.publish_now(policy())


@as_root
def test_root_gives_files_to_the_folders_owner(folder: Path, sink: FilePolicySink) -> None:
    os.chown(folder, NOBODY, NOBODY)
    sink.publish_now(policy())
    sink.tell_health_now(healthy=True, until_ms=1)
    assert {(folder / name).stat().st_uid for name in (POLICY_FILE, HEALTH_FILE)} == {NOBODY}


@as_root
def test_a_folder_of_somebody_else_says_whose_it_is(folder: Path, sink: FilePolicySink) -> None:
    os.chown(folder, NOBODY, NOBODY)
    with being(NOBODY - 1), pytest.raises(PolicyRejected, match=f"user {NOBODY - 1}"):
        sink.publish_now(policy())


@contextmanager
def being(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", ",".join(("mode=0700", *options)), "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"no leave to mount a tmpfs here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=60)


@as_root
def test_a_full_disk_leaves_the_last_good_policy(folder: Path) -> None:
    with mounted(folder, "size=64k"):
        sink = FilePolicySink(folder, HandClock())
        sink.publish_now(policy(blocking("etl")))
        before = lying_there(folder)
        with pytest.raises(PolicyRejected, match=r"No space left.*make room.*last good"):
            sink.publish_now(many_budgets(2000))
        assert lying_there(folder) == before
        assert [path.name for path in folder.iterdir()] == [POLICY_FILE]
        assert sink.publish_now(policy()).version == 2


@as_root
def test_a_read_only_disk_leaves_the_last_good_policy(folder: Path) -> None:
    with mounted(folder):
        sink = FilePolicySink(folder, HandClock())
        sink.publish_now(policy(blocking("etl")))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, timeout=60)
        with pytest.raises(PolicyRejected, match=r"Read-only.*mounted read-only.*last good"):
            sink.publish_now(policy())
        assert head_of(lying_there(folder)) is not None


def many_budgets(count: int) -> Policy:
    return policy(*(blocking(f"user{n}", name=f"budget{n}") for n in range(count)))


# --- looking ---------------------------------------------------------------------------------


def test_a_look_tells_what_lies_there_whoever_put_it(folder: Path, sink: FilePolicySink) -> None:
    assert sink.look_now() is None
    published = sink.publish_now(policy(blocking("etl")))
    lying = sink.look_now()
    assert lying is not None and not lying.off
    assert lying == (published.version, published.checksum, published.content, False)
    FilePolicySink(folder, HandClock()).switch_off()
    off = sink.look_now()
    assert off is not None and off.off and off.version == 2
    assert off.content == published.content, "the same policy, under another version"
    assert FilePolicySink(folder, HandClock()).publish_now(policy()).content != off.content
    (folder / POLICY_FILE).write_bytes(b"torn")
    assert sink.look_now() is None


def test_what_was_off_stays_off_though_its_file_is_gone(folder: Path, sink: FilePolicySink) -> None:
    """disable --purge, and an agent that puts its policy back."""
    sink.publish_now(policy(blocking("etl")))
    FilePolicySink(folder, HandClock()).switch_off()
    sink.look_now()
    (folder / POLICY_FILE).unlink()
    assert sink.publish_now(policy(blocking("etl"))).off
    (folder / POLICY_FILE).unlink()
    (folder / OFF_FILE).touch()
    other = FilePolicySink(folder, HandClock())
    assert other.publish_now(policy(blocking("etl"))).off, "nor does one that never knew"
    assert not other.switch_on(None).off and not (folder / OFF_FILE).exists()


async def test_a_call_that_hangs_is_not_begun_again_beside_itself() -> None:
    """Nor does it hold a thread that others need, or the process."""
    goes_on, calls = threading.Event(), list[int]()
    one = OneCall("looking at a disk", PolicyRejected)

    def hangs() -> int:
        calls.append(1)
        goes_on.wait(240)
        return len(calls)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await one.run(hangs)
    for _ in range(3):
        with pytest.raises(PolicyRejected, match="has not come back"):
            await OneCall("looking at a disk", PolicyRejected).run(hangs)
    goes_on.set()
    await aeventually(lambda: "looking at a disk" not in threads._at_work)
    assert await one.run(hangs) == 2
    with pytest.raises(ZeroDivisionError):
        await one.run(lambda: 1 // 0)
