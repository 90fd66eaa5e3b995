"""Every store, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.base.ports import ChangeLog, Store
from headgate.store import SqliteStore
from tests.contracts.logs import FLEETS, LOGS, Fleet, KeptLog
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.memory_store import MemoryStore


def sqlite_store(path: Path, **settings: Any) -> SqliteStore:
    """Given a minute for each operation: a loaded disk is slow, and that is no failure."""
    return SqliteStore(path, **{"deadline_s": DEADLINE_S, **settings})


def make_store(kind: str, folder: Path) -> Store:
    return MemoryStore() if kind == "memory" else sqlite_store(folder / "state.db")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = make_store(request.param, tmp_path)
    await made.open()
    yield made
    await made.close()


@pytest.fixture(params=list(LOGS))
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeptLog]:
    async with LOGS[request.param](request, tmp_path) as made:
        yield made


@pytest.fixture
def log(kept: KeptLog) -> ChangeLog:
    """A log of changes, empty."""
    return kept.log


@pytest.fixture(params=list(FLEETS))
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    """One fleet's store, empty, with as many clients as a test asks for."""
    made = FLEETS[request.param](request, tmp_path)
    yield made
    await made.close()
