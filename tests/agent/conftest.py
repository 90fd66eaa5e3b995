"""Worlds of one agent, taken down after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.agent.shard_world import ShardWorld

OpenWorld = Callable[..., Awaitable[ShardWorld]]


@pytest.fixture
async def open_world() -> AsyncIterator[OpenWorld]:
    opened: list[ShardWorld] = []

    async def open_one(
        *peers: str, prepare: Callable[[ShardWorld], None] | None = None, **more: Any
    ) -> ShardWorld:
        world = ShardWorld(*peers, **more)
        opened.append(world)
        if prepare is not None:
            prepare(world)
        return await world.start()

    yield open_one
    for world in opened:
        await world.close()
