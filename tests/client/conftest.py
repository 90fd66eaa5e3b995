"""Agents that follow a script, and callers of both kinds to ask them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate.client.gate import Gate
from tests.client.authority import Authority
from tests.client.callers import CALLERS, Caller
from tests.client.scripted import Play, ScriptedAgent
from tests.fixtures.eventually import DEADLINE_S

StartAgent = Callable[..., ScriptedAgent]
MakeCaller = Callable[..., Caller]


@pytest.fixture(autouse=True)
def no_agent_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_URL", raising=False)


@pytest.fixture(autouse=True)
def a_slow_machine_is_no_silent_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question waits for its answer. One that is to be given up has a `timeout_s` of its own."""
    defaults = Gate.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", DEADLINE_S)


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """Not tmp_path: a socket's name has room for about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
        yield Path(folder)


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent() as agent:
        yield agent


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["tcp", "unix", "tls"])
def start_agent(
    request: pytest.FixtureRequest,
    socket_dir: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[StartAgent]:
    # To the machine this authority is one of its own, as to a client that is told nothing else.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_path))
    with ExitStack() as agents:

        def start(*plays: Play, **options: Any) -> ScriptedAgent:
            if request.param == "unix":
                options["socket_path"] = socket_dir / "agent.sock"
            if request.param == "tls":
                options["tls"] = authority.vouches_for("127.0.0.1")
            return agents.enter_context(ScriptedAgent(plays, **options))

        yield start


@pytest_asyncio.fixture(params=list(CALLERS))
async def make_caller(request: pytest.FixtureRequest) -> AsyncIterator[MakeCaller]:
    async with AsyncExitStack() as callers:

        def make(url: str, **settings: Any) -> Caller:
            caller = CALLERS[request.param](url=url, **({"database": "main"} | settings))
            callers.push_async_callback(caller.close)
            return caller

        yield make
