"""What the two clients do besides asking: settings, decorators, forks, loops, cancellation."""

from __future__ import annotations

import asyncio
import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import AsyncClient, Client, InvalidName, InvalidSettings
from headgate.client.drivers.pool import connect_unix
from headgate.client.gate import system_dice
from tests.client import bodies
from tests.client.scripted import OK, REJECTED, Play, ScriptedAgent, answer
from tests.fixtures.eventually import DEADLINE_S, aeventually

CLIENTS: list[Callable[..., Any]] = [Client, AsyncClient]


@pytest.fixture
def gate(agent: ScriptedAgent) -> Iterator[Client]:
    with Client("etl:nightly", database="main", url=agent.url) as gate:
        yield gate


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"app": ""}, InvalidName, "set it to the client's identity"),
        ({"app": "a b"}, InvalidName, "'a b'"),
        ({"database": "x y"}, InvalidName, "'x y'"),
        ({"database": ()}, InvalidSettings, "one or more"),
        ({"database": ("a", "a")}, InvalidSettings, "each once"),
        ({"metrics": "Lag!"}, InvalidName, "'Lag!'"),
        ({"metrics": ("zone/lag",)}, InvalidName, "scope 'zone'"),
        ({"url": "ftp://h"}, InvalidSettings, "scheme 'ftp'"),
        ({"url": "https://"}, InvalidSettings, "names no host"),
        ({"url": "https://u:hunter2@h"}, InvalidSettings, "token instead"),
        ({"url": "https://h", "tls_ca": "/none.pem"}, InvalidSettings, "no such file"),
        ({"url": "https://h", "tls_ca": __file__}, InvalidSettings, "name a PEM file"),
        ({"url": "http://h", "tls_ca": __file__}, InvalidSettings, "needs an https:// url"),
        ({"url": "localhost:8087"}, InvalidSettings, "scheme 'localhost'"),
        ({"url": "http://"}, InvalidSettings, "names no host"),
        ({"url": "http://a..b"}, InvalidSettings, "names no host"),
        ({"url": f"http://{'a' * 64}"}, InvalidSettings, "names no host"),
        ({"url": "http://h:99999"}, InvalidSettings, "not a URL"),
        ({"url": "http://h/v1/check"}, InvalidSettings, "carries a path"),
        ({"url": "unix://run/agent.sock"}, InvalidSettings, "full path"),
        ({"url": "http://u:hunter2@h"}, InvalidSettings, "token instead"),
        ({"token": "a\r\nb"}, InvalidSettings, "printable ASCII"),
        ({"token": ""}, InvalidSettings, "printable ASCII"),
        ({"timeout_s": 0}, InvalidSettings, "timeout_s"),
        ({"on_unavailable": "ajar"}, InvalidSettings, "on_unavailable"),
    ],
)
def test_wrong_settings_are_rejected_at_once(
    client: Callable[..., Any], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        client(**({"app": "etl", "database": "main"} | settings))
    assert "hunter2" not in str(caught.value)


def test_a_lone_name_is_one_name(agent: ScriptedAgent) -> None:
    with Client("etl", database="main", metrics="lag", url=agent.url) as gate:
        gate.check()
    assert agent.heard[0].line.endswith("&database=main&metrics=lag HTTP/1.1")


def test_the_environment_says_where_the_agent_is(
    agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "http://127.0.0.1:8087" in repr(Client("etl", database="main"))
    monkeypatch.setenv("HEADGATE_URL", agent.url)
    with Client("etl", database="main") as gate:
        assert gate.check()
    assert "http://h:1" in repr(Client("etl", database="main", url="http://h:1"))


def test_ipv6_goes_in_brackets() -> None:
    gate = Client("etl", database="main", url="http://[::1]:8087")
    assert b"\r\nHost: [::1]:8087\r\n" in gate._members[0].question.request


def test_a_client_shows_no_secret() -> None:
    gate = Client("etl", database=("a", "b"), url="http://h:1", token="hunter2")
    assert repr(gate) == "<Client etl on a, b at http://h:1>"
    assert "hunter2" not in repr(vars(gate)["_conversation"])


def test_a_read_check_is_about_one_database(agent: ScriptedAgent) -> None:
    agent.script.plays.append(answer(200, bodies.ok("b", read_only=True)))
    with Client("etl", database=("a", "b"), url=agent.url) as gate:
        with pytest.raises(InvalidSettings, match="one of a, b"):
            gate.check_read(2.5)
        assert gate.check_read(2.5, database="b")
        for threshold_s in (0, -1, float("nan")):
            with pytest.raises(InvalidSettings, match="threshold_s"):
                gate.check_read(threshold_s, database="b")


def test_a_chunk_is_never_empty(gate: Client) -> None:
    with pytest.raises(InvalidSettings, match="at least 1 item, not 0"):
        gate.chunks([1], size=0)


def test_the_dice_are_uniform() -> None:
    rolls = [system_dice() for _ in range(2000)]
    assert all(0 <= roll < 1 for roll in rolls)
    assert 0.45 < sum(rolls) / len(rolls) < 0.55


# --- chunks, guard and decorator ------------------------------------------------------------


def test_chunks_are_lazy(gate: Client, agent: ScriptedAgent) -> None:
    """R30: nothing is asked ahead of the work it is asked for."""
    rows = iter(range(100))
    chunks = gate.chunks(rows, size=2)
    assert not agent.heard
    assert next(chunks) == [0, 1]
    assert len(agent.heard) == 1
    assert next(rows) == 2


def test_a_rejected_guard_does_not_run_its_body(gate: Client, agent: ScriptedAgent) -> None:
    agent.script.default = REJECTED
    with pytest.raises(headgate.WaitedTooLong), gate.guard(deadline_s=0):
        raise AssertionError("not admitted, and yet here")


def test_a_guard_lets_the_body_s_error_through(gate: Client) -> None:
    with pytest.raises(ZeroDivisionError), gate.guard():
        raise ZeroDivisionError


def test_each_call_of_a_throttled_function_checks(gate: Client, agent: ScriptedAgent) -> None:
    @gate.throttled
    def purge(before: int, *, table: str = "events") -> str:
        """Removes old rows."""
        return f"{table} before {before}"

    assert purge(7, table="logs") == "logs before 7"
    assert purge(8) == "events before 8"
    assert len(agent.heard) == 2
    assert (purge.__name__, purge.__doc__) == ("purge", "Removes old rows.")
    assert list(inspect.signature(purge).parameters) == ["before", "table"]


async def test_a_throttled_coroutine_of_a_blocking_client(
    gate: Client, agent: ScriptedAgent
) -> None:
    """It waits on the loop, not in its way, and leaves no connection behind."""
    agent.script.plays.extend([REJECTED, OK])

    @gate.throttled
    async def purge(before: int) -> int:
        return before

    assert inspect.iscoroutinefunction(purge)
    assert await purge(7) == 7
    assert len(agent.heard) == 2
    await aeventually(lambda: not agent.script.live)


async def test_a_throttled_coroutine(agent: ScriptedAgent) -> None:
    async with AsyncClient("etl", database="main", url=agent.url) as gate:

        @gate.throttled
        async def purge(before: int) -> int:
            return before

        assert [await purge(n) for n in range(3)] == [0, 1, 2]
        with pytest.raises(TypeError, match=r"use headgate\.Client"):
            gate.throttled(len)  # type: ignore[arg-type]
    assert len(agent.heard) == 3
    assert agent.script.connections == 1


async def test_chunks_of_an_async_source(agent: ScriptedAgent) -> None:
    async def rows() -> AsyncIterator[int]:
        for row in range(5):
            yield row

    async with AsyncClient("etl", database="main", url=agent.url) as gate:
        assert [chunk async for chunk in gate.chunks(rows(), size=2)] == [[0, 1], [2, 3], [4]]
        with pytest.raises(InvalidSettings):
            gate.chunks(rows(), size=0)
    assert len(agent.heard) == 3


# --- threads, forks, loops, cancellation ----------------------------------------------------


def test_threads_share_a_client_and_never_a_connection(gate: Client, agent: ScriptedAgent) -> None:
    failures: list[object] = []

    def work() -> None:
        for _ in range(50):
            if not gate.check():
                failures.append("rejected")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(agent.heard) == 400
    assert agent.script.connections <= 8


FORKING = """
import os
from headgate import Client

gate = Client("etl", database="main", timeout_s=60)
assert gate.check()
child = os.fork()
if not child:
    assert gate.check() and gate.check()
    gate.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert gate.check()
gate.close()
"""


def test_a_forked_child_opens_its_own_connection(agent: ScriptedAgent) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING],
        env={"HEADGATE_URL": agent.url, "PYTHONPATH": str(Path(headgate.__path__[0]).parent)},
        check=True,
        timeout=DEADLINE_S,
    )
    assert [heard.connection for heard in agent.heard] == [1, 2, 2, 1]


def test_one_async_client_on_several_loops(agent: ScriptedAgent) -> None:
    gate = AsyncClient("etl", database="main", url=agent.url)

    async def many() -> list[headgate.Answer]:
        return await asyncio.gather(*(gate.check() for _ in range(200)))

    for _ in range(3):
        assert all(asyncio.run(many()))
    asyncio.run(gate.close())
    assert len(agent.heard) == 600


async def test_a_thousand_tasks_share_a_few_connections(agent: ScriptedAgent) -> None:
    async with AsyncClient("etl", database="main", url=agent.url) as gate:
        assert all(await asyncio.gather(*(gate.check() for _ in range(1000))))
    assert agent.script.connections <= 8


async def test_a_cancelled_check_leaves_no_connection_in_doubt(agent: ScriptedAgent) -> None:
    """Its late answer must not be taken for the next question's."""
    agent.script.plays.append(Play(b"HTTP/1.1 200 OK\r\n", hold=True))
    agent.script.plays.append(REJECTED)
    async with AsyncClient("etl", database="main", url=agent.url) as gate:
        task = asyncio.create_task(gate.check())
        await aeventually(lambda: agent.heard)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await gate.check()
    assert [heard.connection for heard in agent.heard] == [1, 2]


async def test_a_cancelled_wait_stops_checking(agent: ScriptedAgent) -> None:
    agent.script.default = answer(429, bodies.rejection(retry_after_ms=60_000))
    async with AsyncClient("etl", database="main", url=agent.url) as gate:
        task = asyncio.create_task(gate.wait())
        await aeventually(lambda: agent.heard)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(agent.heard) == 1


@pytest.fixture
def full_queue(socket_dir: Path) -> Iterator[str]:
    """A Unix socket that nobody accepts on, with as many waiting there as may."""
    path = str(socket_dir / "full.sock")
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        while (waiting := connect_unix(path)) is not None:
            sockets.enter_context(waiting)
        yield path


def test_a_full_queue_is_waited_for(full_queue: str) -> None:
    gate = Client("etl", database="main", url=f"unix://{full_queue}", timeout_s=0.1)
    with gate, pytest.raises(headgate.ThrottlerUnavailable, match=r"no answer in 0\.1 s"):
        gate.check()


async def test_a_full_queue_is_waited_for_on_the_loop(
    full_queue: str,
) -> None:
    """asyncio would take the rejected connect for a made one."""
    async with AsyncClient(
        "etl", database="main", url=f"unix://{full_queue}", timeout_s=0.1
    ) as gate:
        with pytest.raises(headgate.ThrottlerUnavailable, match=r"no answer in 0\.1 s"):
            await gate.check()


async def test_a_cancelled_connect_leaves_no_socket(
    full_queue: str,
) -> None:
    async with AsyncClient(
        "etl", database="main", url=f"unix://{full_queue}", timeout_s=30
    ) as gate:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await gate.check()
