"""`served`: one server a module and loop. `serve`: one of its own for a test, with its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.eventually import eventually
from tests.http.serving import LOOPS, LoopFactory, Plan, Served, serving

Serve = Callable[[Plan], Served]


@pytest.fixture(scope="module", params=list(LOOPS))
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    return LOOPS[request.param]


@pytest.fixture(scope="module")
def _shared(
    loop_factory: LoopFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(loop_factory, tmp_path_factory.mktemp("served")) as served:
        yield served
        eventually(served.settled)


@pytest.fixture
def served(_shared: Served) -> Served:
    _shared.reset()
    return _shared


@pytest.fixture
def serve(loop_factory: LoopFactory, tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda plan: stack.enter_context(serving(loop_factory, tmp_path, plan))
