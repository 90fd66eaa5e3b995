"""The way to agents: what hangs holds up nobody else, and nobody is sent from TLS to plain text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate.errors import InvalidSettings, PeerFailed
from headgate.proxy.beside import Beside
from headgate.proxy.dialling import AgentDialling
from tests.fixtures.eventually import aeventually


@asynccontextmanager
async def served(answer: bytes | None) -> AsyncIterator[str]:
    """An agent that says just this, or nothing at all."""
    open_: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer or b"")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            open_.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in open_.copy():
            writer.close()
        await server.wait_closed()  # Since Python 3.12: for all of them.


def answer(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nETag: x\r\n\r\n"
    return head.encode() + body


async def test_an_answer_is_read_and_the_connection_kept() -> None:
    async with served(answer(b"{}")) as url:
        line = AgentDialling((url,)).line(url)
        for _ in range(3):
            reply = await line.ask("GET", "/v1/status")
            assert (reply.status, reply.headers["etag"], reply.body) == (200, "x", b"{}")
        await line.close()


async def test_an_agent_that_takes_and_never_answers_is_given_up() -> None:
    async with served(None) as url:
        line = AgentDialling((url,)).line(url)
        with pytest.raises(PeerFailed, match=r"no answer in 0\.1 s"):
            await line.ask("GET", "/v1/status", timeout_s=0.1)
        await line.close()


async def test_while_an_agent_is_waited_for_the_loop_has_its_turns() -> None:
    async with served(None) as url:
        line = AgentDialling((url,)).line(url)
        asking = asyncio.ensure_future(line.ask("GET", "/v1/status", timeout_s=3600))
        for _ in range(5):
            await asyncio.sleep(0.005)
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await line.close()


async def test_an_answer_that_is_too_large_is_not_taken() -> None:
    async with served(answer(b"x" * 5000)) as url:
        line = AgentDialling((url,)).line(url)
        with pytest.raises(PeerFailed, match="more than 1000 bytes"):
            await line.ask("GET", "/v1/status", max_bytes=1000)


async def test_a_call_that_hangs_takes_one_thread_and_blocks_the_next() -> None:
    beside, go_on = Beside("looking up"), threading.Event()
    hanging = asyncio.ensure_future(beside.run(go_on.wait))
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="looking up: the call before this one still hangs"):
        await beside.run(lambda: None)
    hanging.cancel()
    go_on.set()

    await aeventually(lambda: not beside._busy.locked())
    assert await beside.run(lambda: "free") == "free"


async def test_what_a_call_raises_is_raised_here() -> None:
    def fails() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await Beside("failing").run(fails)


def test_nobody_is_sent_from_tls_to_plain_text() -> None:
    secure = AgentDialling(("https://a:8087",))
    assert secure.feed("http://b:8087", "main") is None
    assert secure.feed("https://b:8087", "main") is not None
    assert AgentDialling(("http://a:8087",)).feed("http://b:8087", "main") is not None
    assert secure.feed("gopher://b", "main") is None


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidSettings, match="no-such-cert"):
        AgentDialling(("https://a:8087",), cert="/no-such-cert", key="/no-such-key")
