"""`serve`: an agent with its plan. `run`: a coroutine on the loop under test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import LOOPS, LoopFactory
from tests.shard.peers.authority import Authority
from tests.shard.peers.serving import Agent, Plan, agent

Serve = Callable[..., Agent]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=list(LOOPS))
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    return LOOPS[request.param]


@pytest.fixture
def serve(loop_factory: LoopFactory, tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def started(plan: Plan | None = None) -> Agent:
            return stack.enter_context(agent(loop_factory, tmp_path, plan))

        yield started


@pytest.fixture
def run(loop_factory: LoopFactory) -> Iterator[Run]:
    """Nothing may reach the loop's exception handler, and nothing may be left running."""
    accidents: list[dict[str, Any]] = []

    async def watched(work: Coroutine[Any, Any, Any]) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: accidents.append(what))
        result = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    def on_the_loop(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(watched(work))

    yield on_the_loop
    assert not accidents, accidents


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
