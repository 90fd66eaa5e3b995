"""The servers of these tests: shared ones of each major, told an empty policy after each test.

On the newest major, and the oldest where versions of Postgres differ; all in the extended run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.demo.postgres import NO_SETTINGS
from tests.fixtures.builds import before_tests_below
from tests.fixtures.pgkits import (
    NEWEST,
    OLDEST,
    TWO_CPUS,
    ExtendedServers,
    build_all,
    majors,
    start_extended,
)
from tests.pg.gate import Gate

Fresh = Callable[..., Gate]
pytest_collection_finish = before_tests_below(__file__, build_all)
where_versions_differ = pytest.mark.parametrize("gate", majors(OLDEST, NEWEST), indirect=True)
"""Hooks of the executor, transactions, query ids, planner settings (pg_headgate/src/compat.h)."""


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


@pytest.fixture(params=majors(NEWEST))
def gate(request: pytest.FixtureRequest, gates: Callable[[int], Gate]) -> Iterator[Gate]:
    yield from _cleared(gates(request.param))


@pytest.fixture(params=majors(NEWEST))
def major(request: pytest.FixtureRequest) -> int:
    major: int = request.param
    return major


@pytest.fixture
def fresh(servers_dir: Path) -> Iterator[Fresh]:
    """One of your own, to break or to set up otherwise."""
    with ExitStack() as ends:

        def start(major: int, settings: Mapping[str, str] = NO_SETTINGS) -> Gate:
            chosen = {**TWO_CPUS, **settings}
            server = ends.enter_context(start_extended(servers_dir, major, settings=chosen))
            gate = Gate(server, major)
            ends.callback(gate.close)
            gate.set_up()
            return gate

        yield start
