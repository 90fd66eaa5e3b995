"""The state directory: what lies there is in force before the next statement."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.base.clock import SystemClock
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.directory import health_bytes, health_of, read_server_file
from headgate.budgets.pgext.meter import force_in
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.policy import Policy
from headgate.errors import RelayFault
from headgate.proxy.directory import (
    POLICY_FILE,
    DirectoryWatcher,
    HealthTold,
    forget_where,
    make_private,
    tell_where,
)
from headgate.proxy.relay import NativeRelay
from tests.fixtures.eventually import aeventually

POLICY = parse_policy({"budgets": [{"name": "etl", "rules": [{}]}]})
FAR_MS = 2**52


def told(body: bytes) -> HealthTold | None:
    found = health_of(body)
    return None if found is None else HealthTold(*found)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    make_private(made)
    return made


@pytest.fixture
async def watcher(directory: Path, relay: NativeRelay) -> AsyncIterator[DirectoryWatcher]:
    watching = DirectoryWatcher(directory, relay, told)
    task = asyncio.create_task(watching.run())
    yield watching
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def published(directory: Path, policy: Policy = POLICY) -> int:
    return FilePolicySink(directory, SystemClock()).publish_now(policy).version


def version(relay: NativeRelay) -> int:
    return relay.memory.region.head().version


async def test_a_policy_that_is_published_is_in_force(
    directory: Path, relay: NativeRelay, watcher: DirectoryWatcher
) -> None:
    first = published(directory)
    await aeventually(lambda: version(relay) == first)
    second = published(directory, Policy())
    await aeventually(lambda: version(relay) == second)
    assert watcher.state().healthy


async def test_a_policy_that_is_torn_is_reported_and_the_last_one_stays(
    directory: Path, relay: NativeRelay, watcher: DirectoryWatcher
) -> None:
    good = published(directory)
    await aeventually(lambda: version(relay) == good)
    (directory / POLICY_FILE).write_bytes(b"HGPOLICYnot one")
    await aeventually(lambda: watcher.rejection)
    assert version(relay) == good
    assert "is invalid" in watcher.state().summary and not watcher.state().healthy
    published(directory)
    await aeventually(lambda: watcher.state().healthy)


async def test_health_is_reported(
    directory: Path, relay: NativeRelay, watcher: DirectoryWatcher
) -> None:
    """R147: for budgets that bite under pressure alone."""
    sink = FilePolicySink(directory, SystemClock())
    sink.tell_health_now(healthy=False, until_ms=FAR_MS)
    await aeventually(lambda: relay.memory.region.head().health == 2)
    sink.tell_health_now(healthy=True, until_ms=FAR_MS)
    await aeventually(lambda: relay.memory.region.head().health == 1)
    assert relay.memory.region.head().health_until_ms == FAR_MS


@pytest.mark.parametrize("cut", [0, 8, 39])
def test_a_health_file_that_is_torn_says_nothing(cut: int) -> None:
    whole = health_bytes(healthy=True, until_ms=5, written_ms=4)
    assert health_of(whole) == (True, 5)
    assert health_of(whole[:cut]) is None
    assert health_of(whole[:-1] + b"\xff") is None


def test_a_new_process_takes_what_lies_there_however_old(
    directory: Path, relay: NativeRelay
) -> None:
    lying = published(directory)
    DirectoryWatcher(directory, relay, told).look_now(force=True)
    assert version(relay) == lying


def test_an_agent_on_the_host_finds_the_memory(directory: Path, relay: NativeRelay) -> None:
    """As it finds that of a server with the extension: the same code reads it."""
    tell_where(directory, relay.memory)
    found = read_server_file(directory)
    assert (found.pid, found.max_connections, found.cpus_milli) == (os.getpid(), 100, 1000)
    DirectoryWatcher(directory, relay, told).look_now()
    assert force_in(directory).version == 0
    assert published(directory) == 1
    forget_where(directory)
    assert not (directory / "server.json").exists()


def test_another_processs_whereabouts_are_left_alone(directory: Path) -> None:
    (directory / "server.json").write_text(json.dumps({"pid": 1}))
    forget_where(directory)
    assert (directory / "server.json").exists()


def test_a_directory_that_others_may_write_to_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(RelayFault, match=r"mode 0755.*chmod 0700"):
        make_private(tmp_path)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RelayFault, match="cannot be made"):
        make_private(tmp_path / "file" / "below")


async def test_a_policy_is_found_where_the_kernel_tells_nothing(
    directory: Path, relay: NativeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a user's watches may be in use by others."""
    monkeypatch.setattr("headgate.proxy.directory._IN_TOLD", 0)  # The kernel rejects no events.
    watching = DirectoryWatcher(directory, relay, told)
    task = asyncio.create_task(watching.run())
    first = published(directory)
    await aeventually(lambda: version(relay) == first)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
