"""A new process takes over, or does not; either way someone serves."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headgate.errors import RelayFault
from headgate.proxy.handover import (
    SOCKET,
    HandoverOffer,
    HandoverServer,
    Inheritance,
    ListeningSocket,
    Predecessor,
    bound_unix,
    inherit,
    listens_at,
    open_listening,
)
from headgate.proxy.memory import Laid
from tests.fixtures.eventually import aeventually

LAID = Laid(region_bytes=4096, state_at=4096, state_bytes=4096)


class Old:
    """A process that serves, as far as a hand-over sees it."""

    def __init__(self, directory: Path) -> None:
        self.sock = open_listening("127.0.0.1", 0)
        self.memory = os.memfd_create("handed")
        os.write(self.memory, b"debts")
        self.taken_by: list[int] = []
        self.server = HandoverServer(directory, self._offer, self._taken)

    def _offer(self) -> HandoverOffer:
        places = (ListeningSocket("listen", "127.0.0.1", 0),)
        return HandoverOffer(LAID, self.memory, places, (self.sock.fileno(),))

    async def _taken(self, pid: int, memory_taken: bool) -> None:
        self.taken_by.append(pid)

    def close(self) -> None:
        self.server.close()
        self.sock.close()
        os.close(self.memory)


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Old]:
    process = Old(tmp_path)
    process.server.open()
    yield process
    process.close()


async def inherited(directory: Path) -> Inheritance:
    found = await asyncio.to_thread(inherit, directory)
    assert found is not None
    return found


async def test_sockets_and_memory_are_those_of_the_old_one(old: Old, tmp_path: Path) -> None:
    new = await inherited(tmp_path)
    assert (new.pid, new.laid) == (os.getpid(), LAID)
    sock = new.take_socket("listen", "127.0.0.1", 0)
    assert sock is not None and sock.getsockname() == old.sock.getsockname()
    assert new.take_socket("listen", "127.0.0.1", 0) is None, "each is given once"
    memory = new.take_memory()
    assert os.pread(memory, 5, 0) == b"debts"
    os.close(memory)
    sock.close()
    assert old.taken_by == [], "nothing has changed yet"
    assert await asyncio.to_thread(new.ready)
    await aeventually(lambda: old.taken_by == [os.getpid()])
    assert not (tmp_path / SOCKET).exists()


async def test_a_new_one_that_fails_changes_nothing(old: Old, tmp_path: Path) -> None:
    (await inherited(tmp_path)).close()
    again = await inherited(tmp_path)
    assert old.taken_by == []
    assert await asyncio.to_thread(again.ready)
    await aeventually(lambda: old.taken_by)


async def test_one_at_a_time(old: Old, tmp_path: Path) -> None:
    first = await inherited(tmp_path)
    with pytest.raises(RelayFault, match="another process is taking over"):
        await asyncio.to_thread(inherit, tmp_path, patience_s=0.1)
    first.close()


async def test_nobody_to_take_over_from(tmp_path: Path) -> None:
    assert inherit(tmp_path) is None
    bound_unix(tmp_path / SOCKET, 0o600).close()
    assert inherit(tmp_path) is None, "a socket that a dead process left"


async def test_an_old_one_that_dies_before_it_answers(tmp_path: Path) -> None:
    """Then the new one starts by itself."""
    dying = bound_unix(tmp_path / SOCKET, 0o600)

    def die() -> None:
        line, _ = dying.accept()
        line.close()

    asking = asyncio.create_task(asyncio.to_thread(inherit, tmp_path))
    await asyncio.to_thread(die)
    assert await asking is None
    dying.close()


async def test_an_old_one_that_dies_before_it_saw_ready(old: Old, tmp_path: Path) -> None:
    new = await inherited(tmp_path)
    sock = new.take_socket("listen", "127.0.0.1", 0)
    for line in old.server._lines:
        line.cancel()
    await aeventually(lambda: not old.server._lines)
    assert not await asyncio.to_thread(new.ready)
    assert sock is not None, "what it had given is ours"
    sock.close()


async def test_words_that_are_no_hand_over(old: Old, tmp_path: Path) -> None:
    """Anyone who finds the socket cannot crash the one that serves."""
    loop = asyncio.get_running_loop()
    for words in (b"GET / HTTP/1.1\r\n\n", b"[]\n", b'{"format": 99}\n', b"\n"):
        line = socket.socket(socket.AF_UNIX)
        line.setblocking(False)
        line.connect(str(tmp_path / SOCKET))
        await loop.sock_sendall(line, words)
        said = await asyncio.wait_for(loop.sock_recv(line, 4096), 60)
        assert b"places" not in said
        line.close()
        await aeventually(lambda: not old.server._lines)
    assert old.taken_by == []
    (await inherited(tmp_path)).close()


async def test_an_answer_of_another_format_is_blocked(tmp_path: Path) -> None:
    other = bound_unix(tmp_path / SOCKET, 0o600)

    def answer() -> None:
        line, _ = other.accept()
        line.recv(4096)
        line.sendall(json.dumps({"format": 2}).encode() + b"\n")
        line.close()

    asking = asyncio.create_task(asyncio.to_thread(inherit, tmp_path))
    await asyncio.to_thread(answer)
    with pytest.raises(RelayFault, match="does not hand over: it speaks format 2"):
        await asking
    other.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


async def test_the_end_of_the_old_one_is_noticed(process: subprocess.Popen[bytes]) -> None:
    gone: list[int] = []
    predecessor = Predecessor(process.pid, gone.append)
    predecessor.watch()
    await asyncio.sleep(0)
    assert gone == []
    process.kill()
    await aeventually(lambda: gone == [process.pid])
    process.wait()
    late = Predecessor(process.pid, gone.append)
    late.watch()
    assert late.is_gone, "one that was gone already"


def test_a_socket_of_the_service_manager_is_known_by_its_address() -> None:
    sock = open_listening("127.0.0.1", 0)
    port = sock.getsockname()[1]
    assert listens_at(sock, "127.0.0.1", port)
    assert listens_at(sock, "localhost", port)
    assert not listens_at(sock, "127.0.0.1", port + 1)
    assert not listens_at(sock, "/run/x.sock", 0)
    sock.close()


def test_a_port_in_use_is_reported() -> None:
    sock = open_listening("127.0.0.1", 0)
    port = sock.getsockname()[1]
    with pytest.raises(
        RelayFault, match=f"cannot listen on 127.0.0.1:{port}: Address already.* of its own"
    ):
        open_listening("127.0.0.1", port)
    sock.close()


def test_a_unix_socket_that_another_process_serves_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    sock = open_listening(path, 0)
    with pytest.raises(RelayFault, match="is served by another process"):
        open_listening(path, 0)
    sock.close()
    open_listening(path, 0).close()
