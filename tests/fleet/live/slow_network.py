"""Slow ways to etcd: a relay that delays, and a namespace whose loopback is a thin line.

SlowRoad            every byte arrives some time later, as from another continent
in_own_namespace    real packets through a real queue that drops what does not fit (needs root)
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest

CLONE_NEWNET = 0x40000000
READ_BYTES = 65536


class SlowRoad:
    """Relays connections to an endpoint; both ways take `delay_s`."""

    def __init__(self, endpoint: str, *, delay_s: float) -> None:
        self._far = urlsplit(endpoint)
        self.delay_there_s = self.delay_back_s = delay_s
        self.connections = 0
        self._port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._port}"

    async def open(self) -> None:
        """At the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> SlowRoad:
        await self.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_in, far_out = await asyncio.open_connection(self._far.hostname, self._far.port)
        for carrying in (
            self._carry(near_in, far_out, lambda: self.delay_there_s),
            self._carry(far_in, near_out, lambda: self.delay_back_s),
        ):
            task = asyncio.create_task(carrying)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        delay_s: Callable[[], float],
    ) -> None:
        try:
            while data := await source.read(READ_BYTES):
                await asyncio.sleep(delay_s())
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


def in_own_namespace(body: Callable[[], Awaitable[None]]) -> None:
    """Run it in a thread that has a loopback of its own; servers that are started there live in it
    too, and it ends with them."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _enter_namespace()
            asyncio.run(_awaited(body))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


async def _awaited(body: Callable[[], Awaitable[None]]) -> None:
    await body()


def _enter_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        pytest.skip(f"no network namespace to be had: {os.strerror(ctypes.get_errno())}")
    _set_up("ip link set dev lo mtu 1500 up")


def make_thin(*, rate_kbit: int) -> None:
    """The loopback of this namespace carries so much and no more."""
    thin = f"tbf rate {rate_kbit}kbit burst 3000 latency 500ms"
    _set_up(f"tc qdisc add dev lo root {thin}")


def _set_up(command: str) -> None:
    name, *words = command.split()
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not on this machine")
    done = subprocess.run([path, *words], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{command}: {done.stderr.strip()}")
