"""The servers of these tests: shared ones of each major, told an empty policy after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.demo.postgres import NO_SETTINGS
from tests.fixtures.pgkits import ExtendedServers, start_extended
from tests.pg.gate import Gate

FULL = (15, 18)
SMOKE = (14, 16, 17)
Fresh = Callable[..., Gate]


@pytest.fixture(scope="session")
def gates(extended_servers: ExtendedServers) -> Iterator[Callable[[int], Gate]]:
    known: dict[int, Gate] = {}

    def of(major: int) -> Gate:
        if major not in known:
            known[major] = Gate(extended_servers.of(major), major)
            known[major].set_up()
        return known[major]

    yield of
    for gate in known.values():
        gate.close()


def _cleared(gate: Gate) -> Iterator[Gate]:
    lying = gate.sink.look_now()
    if lying is not None and lying.off:  # Other tests of a shared server leave it so.
        gate.sink.switch_on(None)
    gate.clear()
    yield gate
    gate.none_running()
    gate.clear()


@pytest.fixture(params=FULL)
def gate(request: pytest.FixtureRequest, gates: Callable[[int], Gate]) -> Iterator[Gate]:
    yield from _cleared(gates(request.param))


@pytest.fixture(params=SMOKE)
def smoke_gate(request: pytest.FixtureRequest, gates: Callable[[int], Gate]) -> Iterator[Gate]:
    yield from _cleared(gates(request.param))


@pytest.fixture(params=FULL)
def major(request: pytest.FixtureRequest) -> int:
    major: int = request.param
    return major


@pytest.fixture
def fresh(servers_dir: Path) -> Iterator[Fresh]:
    """One of your own, to break or to set up otherwise."""
    with ExitStack() as ends:

        def start(major: int, settings: Mapping[str, str] = NO_SETTINGS) -> Gate:
            server = ends.enter_context(start_extended(servers_dir, major, settings=settings))
            gate = Gate(server, major)
            ends.callback(gate.close)
            gate.set_up()
            return gate

        yield start
