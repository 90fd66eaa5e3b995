"""Tasks by the thousand share a few connections: to stand in line says nothing of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import AsyncClient, ThrottlerUnavailable, WaitedTooLong
from headgate.client.drivers.pool import MAX_CONNECTIONS
from tests.client.scripted import OK
from tests.client.virtual import in_virtual_time

TIMEOUT_S = 0.3


@asynccontextmanager
async def answering_after(seconds: float) -> AsyncIterator[str]:
    """An agent that takes so long for each answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(seconds)
                writer.write(OK.wire)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@in_virtual_time
async def test_a_long_line_is_not_taken_for_an_agent_that_is_away() -> None:
    """R50: seven answers one after the other take longer than an agent may, each does not."""
    async with (
        answering_after(0.06) as url,
        AsyncClient("etl", database="main", url=url, timeout_s=TIMEOUT_S) as gate,
    ):
        answers = await asyncio.gather(*(gate.check() for _ in range(7 * MAX_CONNECTIONS)))
        assert all(answer.verdict == "OK" for answer in answers)
        assert gate.circuit.asks == 0


@in_virtual_time
async def test_nobody_goes_on_unthrottled_because_the_line_is_long() -> None:
    async with (
        answering_after(0.06) as url,
        AsyncClient(
            "etl", database="main", url=url,
            timeout_s=TIMEOUT_S, on_unavailable="open", unavailable_after_s=0.1,
            clock=asyncio.get_running_loop().time,
        ) as gate,
    ):  # fmt: skip
        answers = await asyncio.gather(*(gate.wait() for _ in range(7 * MAX_CONNECTIONS)))
        assert not any(answer.unthrottled for answer in answers)


@in_virtual_time
async def test_the_line_before_a_silent_agent_is_printed_at_once() -> None:
    """R49: not each of them finds out for itself, eight at a time."""
    async with (
        answering_after(3600) as url,
        AsyncClient("etl", database="main", url=url, timeout_s=TIMEOUT_S) as gate,
    ):
        began_s = asyncio.get_running_loop().time()
        asked = (gate.check() for _ in range(20 * MAX_CONNECTIONS))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ThrottlerUnavailable}
        assert "no answer in 0.3 s, to those before it in line" in str(outcomes[-1])
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(TIMEOUT_S, abs=0.05)


@in_virtual_time
async def test_a_deadline_ends_in_the_line_and_says_so() -> None:
    async with (
        answering_after(0.15) as url,
        AsyncClient(
            "etl", database="main", url=url,
            timeout_s=0.25, clock=asyncio.get_running_loop().time,
        ) as gate,
    ):  # fmt: skip
        asked = (gate.wait(deadline_s=0.25) for _ in range(4 * MAX_CONNECTIONS))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        late = [one for one in outcomes if isinstance(one, BaseException)]
        assert 0 < len(late) < len(outcomes)
        assert {type(one) for one in late} == {WaitedTooLong}
        with pytest.raises(WaitedTooLong, match=r"all connections to .* were busy for 0\.2 s"):
            raise late[-1]
        assert gate.circuit.asks == 0, "it says nothing of the agent"
