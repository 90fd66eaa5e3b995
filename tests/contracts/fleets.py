"""The stores of a fleet, each with several clients, and what no client may do: compact, wait.

A new implementation is added to FLEETS, and everything in test_shared_log*.py is asked of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from headgate.agent.ports import SharedLog
from tests.fixtures.etcd import compact, etcd_store
from tests.fixtures.memory_log import KeptInMemory, MemoryLog


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
