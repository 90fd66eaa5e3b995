"""An agent that follows a script, clients of it, and a database on the shared server."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio

from headgate import AsyncClient, Client
from headgate.client.gate import Gate
from headgate.demo.postgres import PostgresServer
from tests.client.scripted import ScriptedAgent
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.servers import Pair

APP = "run42:etl:nightly"
_numbers = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def _logging_as_it_was() -> Iterator[None]:
    """Celery and Django set logging up for a whole process: ours goes on with other tests."""
    loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]
    before = [(log, log.handlers[:], log.level, log.propagate, log.disabled) for log in loggers]
    yield
    for log, handlers, level, propagate, disabled in before:
        log.handlers[:], log.propagate, log.disabled = handlers, propagate, disabled
        log.setLevel(level)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also clients that an integration makes: what a busy machine answers too late is asked, and
    heard, twice."""
    defaults = Gate.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", DEADLINE_S)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAgent]:
    with ScriptedAgent() as agent:
        monkeypatch.setenv("HEADGATE_URL", agent.url)
        yield agent


@pytest.fixture
def gate(agent: ScriptedAgent) -> Iterator[Client]:
    with Client(APP, database="main", unavailable_after_s=DEADLINE_S) as gate:
        yield gate


@pytest_asyncio.fixture
async def async_gate(agent: ScriptedAgent) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(APP, database="main", unavailable_after_s=DEADLINE_S) as gate:
        yield gate


@pytest.fixture
def database(postgres_pair: Pair[PostgresServer]) -> str:
    """The URL of a new, empty database: `postgresql://…`."""
    name = f"integration_{next(_numbers)}"
    primary = postgres_pair.primary
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@127.0.0.1:{primary.port}/{name}"
