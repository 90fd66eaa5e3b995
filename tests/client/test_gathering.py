"""Databases of several agents in one question: all must admit (R38)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate import (
    AsyncClient,
    Client,
    InvalidRequest,
    InvalidSettings,
    ThrottlerUnavailable,
    WaitedTooLong,
)
from tests.client import bodies
from tests.client.callers import CALLERS, Caller
from tests.client.scripted import Play, ScriptedAgent, answer

NAMES = ("orders", "users", "audit")


def ok(name: str, **changes: Any) -> Play:
    return answer(200, bodies.ok(name, **changes))


def rejected(name: str, **changes: Any) -> Play:
    return answer(429, bodies.rejection(name, **changes))


@pytest.fixture
def agents() -> Iterator[dict[str, ScriptedAgent]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(ScriptedAgent(default=ok(name))) for name in NAMES}


@pytest.fixture(params=list(CALLERS))
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def caller(kind: str, agents: dict[str, ScriptedAgent], **settings: Any) -> Caller:
    urls = {name: agent.url for name, agent in agents.items()}
    return CALLERS[kind](database=urls, **settings)


def asked(agents: dict[str, ScriptedAgent]) -> list[int]:
    return [len(agent.heard) for agent in agents.values()]


async def test_all_admit(kind: str, agents: dict[str, ScriptedAgent]) -> None:
    gate = caller(kind, agents)
    for found in (await gate.check(), await gate.wait()):
        assert found.verdict == "OK"
        assert [check.database for check in found.checks] == list(NAMES)
        assert found.rejections == ()
    assert asked(agents) == [2, 2, 2]
    assert "database=users" in agents["users"].heard[0].line
    await gate.close()


async def test_the_answer_says_who_rejected(kind: str, agents: dict[str, ScriptedAgent]) -> None:
    agents["users"].script.default = rejected("users", reason="users: lag is 7.2 s")
    gate = caller(kind, agents)
    found = await gate.check()
    assert not found.admitted
    assert [part.database for part in found.rejections] == ["users"]
    assert found.reason == "users: lag is 7.2 s"
    assert found.retry_after_s == 1.43
    with pytest.raises(WaitedTooLong, match="orders and users and audit: not admitted"):
        await gate.wait(0)
    await gate.close()


async def test_a_rejection_is_waited_out_and_all_are_checked_again(
    kind: str, agents: dict[str, ScriptedAgent]
) -> None:
    """R30: an OK of one is not kept while another rejects."""
    agents["users"].script.plays.extend([rejected("users", retry_after_ms=500)] * 2)
    gate = caller(kind, agents)
    assert (await gate.wait()).verdict == "OK"
    assert len(gate.time.slept) == 2 and min(gate.time.slept) >= 0.5
    assert asked(agents)[1] == 3
    assert asked(agents)[0] in (2, 3)
    await gate.close()


async def test_a_blocking_client_checks_with_nobody_behind_a_rejection(
    agents: dict[str, ScriptedAgent],
) -> None:
    """And begins with the agent that rejected last: of three agents one is tried in vain."""
    agents["users"].script.default = rejected("users")
    gate = caller("sync", agents)
    for _ in range(4):
        assert not await gate.check()
    assert asked(agents) == [1, 4, 0]
    await gate.close()


async def test_an_asynchronous_client_checks_with_all_at_once() -> None:
    waiting = asyncio.Barrier(3)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).decode()
        name = line.partition("database=")[2].split(" ")[0]
        await waiting.wait()  # nobody is answered before all are asked
        writer.write(ok(name).wire)
        await writer.drain()
        writer.close()

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in NAMES]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    urls = {name: f"http://127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
    async with AsyncClient("etl", database=urls) as gate:
        assert await gate.check()
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_silence_of_one_is_silence_and_says_whose(
    kind: str, agents: dict[str, ScriptedAgent]
) -> None:
    agents["users"].stop()
    gate = caller(kind, agents)
    with pytest.raises(ThrottlerUnavailable, match=f"on users: .* at {agents['users'].url}"):
        await gate.check()
    with pytest.raises(ThrottlerUnavailable, match="etl:nightly on users"):
        await gate.wait()
    assert 9 < sum(gate.time.slept) < 12, "the bounded wait"
    await gate.close()


async def test_an_open_client_goes_on_without_the_silent_one_alone(
    kind: str, agents: dict[str, ScriptedAgent]
) -> None:
    """The others are asked as ever, and may reject."""
    agents["users"].stop()
    gate = caller(kind, agents, on_unavailable="open")
    found = await gate.wait()
    assert (found.verdict, found.admitted, found.unthrottled) == ("UNAVAILABLE", True, True)
    assert [part.unthrottled for part in found.checks] == [False, True, False]
    assert found.checks[1].database == "users"
    before = asked(agents)[0]
    assert (await gate.wait()).unthrottled
    assert asked(agents)[0] == before + 1
    agents["audit"].script.default = rejected("audit", retry_after_ms=60_000)
    with pytest.raises(WaitedTooLong, match=r"lag is 7\.2"):
        await gate.wait(5)
    await gate.close()


async def test_a_rejection_outweighs_silence(kind: str, agents: dict[str, ScriptedAgent]) -> None:
    """R50"""
    agents["orders"].stop()
    agents["users"].script.default = rejected("users")
    gate = caller(kind, agents)
    assert [part.database for part in (await gate.check()).rejections] == ["users"]
    await gate.close()


async def test_a_wrong_check_of_one_is_the_caller_s_error(
    kind: str, agents: dict[str, ScriptedAgent]
) -> None:
    agents["audit"].script.default = answer(401, body=b"")
    gate = caller(kind, agents)
    with pytest.raises(InvalidRequest, match="status 401"):
        await gate.check()
    await gate.close()


async def test_databases_of_one_agent_are_checked_in_one_request(
    agents: dict[str, ScriptedAgent],
) -> None:
    both = answer(200, bodies.batch(bodies.ok("orders"), bodies.ok("users")))
    agents["orders"].script.default = both
    at = agents["orders"].url
    urls = {"orders": at, "users": at, "audit": agents["audit"].url}
    async with AsyncClient("etl", database=urls) as gate:
        found = await gate.check()
    assert [check.database for check in found.checks] == ["orders", "users", "audit"]
    assert asked(agents) == [1, 0, 1]


def test_a_read_check_goes_to_the_agent_of_its_database(
    agents: dict[str, ScriptedAgent],
) -> None:
    agents["users"].script.default = ok("users", read_only=True)
    with Client("etl", database={n: a.url for n, a in agents.items()}) as gate:
        assert gate.check_read(2.5, database="users")
        for unknown in (None, "others"):
            with pytest.raises(InvalidSettings, match="about one of orders, users, audit"):
                gate.check_read(2.5, database=unknown)
        assert repr(gate).startswith("<Client etl on orders, users, audit at http://")
    assert asked(agents) == [0, 1, 0]


async def test_each_agent_may_have_a_standby(kind: str, agents: dict[str, ScriptedAgent]) -> None:
    agents["orders"].stop()
    urls = {"orders": [agents["orders"].url, agents["audit"].url], "users": agents["users"].url}
    agents["audit"].script.default = ok("orders")
    gate = CALLERS[kind](database=urls)
    assert (await gate.wait()).verdict == "OK"
    assert asked(agents) == [0, 1, 1]
    await gate.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"database": {}}, "names an agent for each"),
        ({"database": {"a": "http://h"}, "url": "http://h"}, "names an agent for each"),
        ({"database": {"a": "ftp://h"}}, "scheme 'ftp'"),
    ],
)
def test_impossible_mappings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        Client("etl", **settings)
