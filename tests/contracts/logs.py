"""Every log of changes, and what may befall it.

LOGS    each kind with one client, which can be cut off: asked all of test_change_log.py
FLEETS  those that many share, with several clients: asked test_change_log_shared.py, too
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from uuid import uuid4

import pytest

from headgate.base.ports import ChangeLog, SharedLog
from headgate.errors import StoreUnavailable
from headgate.store import SqliteStore
from tests.fixtures.etcd import compact, etcd_store
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.fixtures.memory_store import MemoryStore
from tests.fleet.live.slow_network import SlowRoad


class Fleet(ABC):
    """Several clients of one store, as several agents have them."""

    shortest_ttl_s: float
    turns_its_clock = False
    """Time passes for it by `let_pass` alone."""

    def __init__(self) -> None:
        self._clients: list[SharedLog] = []

    def client(self) -> SharedLog:
        self._clients.append(self._make())
        return self._clients[-1]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    @abstractmethod
    def _make(self) -> SharedLog: ...

    @abstractmethod
    async def compact(self) -> None:
        """Have the store forget its changes so far."""

    async def let_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MemoryFleet(Fleet):
    shortest_ttl_s = 30.0
    turns_its_clock = True

    def __init__(self) -> None:
        super().__init__()
        self._mono_s = 0.0
        self._kept = KeptInMemory(mono_s=lambda: self._mono_s)

    def _make(self) -> SharedLog:
        return MemoryLog(self._kept)

    async def compact(self) -> None:
        self._kept.compact(self._kept.revision)

    async def let_pass(self, seconds: float) -> None:
        self._mono_s += seconds


class EtcdFleet(Fleet):
    shortest_ttl_s = 2.0
    """etcd grants no less."""

    def __init__(self, endpoints: list[str]) -> None:
        super().__init__()
        self._endpoints = endpoints
        self._prefix = f"/contract-{uuid4().hex}/"

    def _make(self) -> SharedLog:
        return etcd_store(self._endpoints, self._prefix)

    async def compact(self) -> None:
        await compact(self._endpoints)


def _etcd(request: pytest.FixtureRequest, folder: Path) -> Fleet:
    endpoints: list[str] = request.getfixturevalue("etcd_endpoints")
    return EtcdFleet(endpoints)


FLEETS: dict[str, Callable[[pytest.FixtureRequest, Path], Fleet]] = {
    "memory": lambda request, folder: MemoryFleet(),
    "etcd": _etcd,
}


# --- any log, with a fault -------------------------------------------------------------------


class KeptLog(ABC):
    """A log with one client."""

    log: ChangeLog

    @abstractmethod
    def cut_off(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile nothing can be written."""


class CutMemoryLog(MemoryLog):
    is_cut = False

    def _reached(self) -> KeptInMemory:
        if self.is_cut:
            raise StoreUnavailable("memory: cut off")
        return super()._reached()


class CutMemoryStore(MemoryStore):
    is_cut = False

    def _check_open(self) -> None:
        if self.is_cut:
            raise StoreUnavailable("memory: cut off")
        super()._check_open()


class InMemory(KeptLog):
    def __init__(self, log: CutMemoryLog | CutMemoryStore) -> None:
        self.log = self._cut = log

    @asynccontextmanager
    async def cut_off(self) -> AsyncIterator[None]:
        self._cut.is_cut = True
        yield
        self._cut.is_cut = False


class InSqlite(KeptLog):
    def __init__(self, log: SqliteStore, path: Path) -> None:
        self.log = log
        self._path = path

    @asynccontextmanager
    async def cut_off(self) -> AsyncIterator[None]:
        """Another process holds the file."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


class InEtcd(KeptLog):
    def __init__(self, road: SlowRoad, log: SharedLog) -> None:
        self._road = road
        self.log = log

    @asynccontextmanager
    async def cut_off(self) -> AsyncIterator[None]:
        """Nobody listens where it was."""
        await self._road.close()
        yield
        await self._road.open()


@asynccontextmanager
async def _memory_log(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[KeptLog]:
    yield InMemory(CutMemoryLog())


@asynccontextmanager
async def _memory_store(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[KeptLog]:
    store = CutMemoryStore()
    await store.open()
    yield InMemory(store)


@asynccontextmanager
async def _sqlite(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[KeptLog]:
    """Where nothing is cut off, a loaded disk has its minute."""
    deadline_s = 1.0 if "cut_off" in request.node.name else DEADLINE_S
    store = SqliteStore(folder / "state.db", deadline_s=deadline_s)
    await store.open()
    yield InSqlite(store, folder / "state.db")
    await store.close()


@asynccontextmanager
async def _etcd_log(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[KeptLog]:
    endpoints: list[str] = request.getfixturevalue("etcd_endpoints")
    async with SlowRoad(endpoints[0], delay_s=0.0) as road:
        store = etcd_store([road.endpoint], f"/contract-{uuid4().hex}/")
        yield InEtcd(road, store)
        await store.close()


Made = Callable[[pytest.FixtureRequest, Path], AbstractAsyncContextManager[KeptLog]]
LOGS: dict[str, Made] = {
    "memory": _memory_log,
    "memory store": _memory_store,
    "sqlite": _sqlite,
    "etcd": _etcd_log,
}
