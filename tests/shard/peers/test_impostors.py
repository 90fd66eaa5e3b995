"""Who answers in an agent's place: garbage, too much, too slowly, out of turn, not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.errors import PeerFailed
from headgate.metrics.samples import Cause, Instant
from headgate.shard.peers import MAX_ANSWER_BYTES, MAX_HEAD_BYTES
from headgate.shard.peers_api import encode_report
from headgate.shard.topology import MemberReport
from tests.fixtures.eventually import aeventually
from tests.shard.peers.conftest import Run
from tests.shard.peers.test_link import ANSWER_S, failure, linked, question

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

NOW = Instant(5.0, 1_700_000_000.0)
BODY = encode_report(MemberReport("db-b", 5.0, None), received=NOW, now=NOW)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
GOOD = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n"
    + BODY[:5]
    + b"\r\n%x\r\n" % (len(BODY) - 5)
    + BODY[5:]
    + b"\r\n0\r\nTrailer: t\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + GOOD


@asynccontextmanager
async def impostor(speak: Speak) -> AsyncIterator[tuple[str, list[int]]]:
    """Its URL, and one entry per connection that it has had."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            await speak(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()
        await aeventually(lambda: len(asyncio.all_tasks()) == 1)


async def heard(reader: asyncio.StreamReader) -> bytes:
    """One request; ConnectionError at the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-le"))
    return head + await reader.readexactly(int(length.split(b":")[1]))


def saying(*pieces: bytes, then_close: bool = True) -> Speak:
    """Once per request, piece by piece."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await heard(reader)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if then_close:
                    return

    return speak


async def told(speak: Speak, timeout_s: float = ANSWER_S) -> PeerFailed:
    async with impostor(speak) as (url, _):
        return await failure(url, timeout_s=timeout_s)


# --- bytes cut anywhere --------------------------------------------------------------------


@pytest.mark.parametrize("answer", [GOOD, CHUNKED, INTERIM], ids=["plain", "chunked", "interim"])
def test_an_answer_cut_at_any_place_is_no_answer(run: Run, answer: bytes) -> None:
    async def at_every_place() -> None:
        for cut in range(len(answer)):
            failed = await told(saying(answer[:cut]))
            assert failed.cause is Cause.UNREACHABLE, cut
            assert ("bytes into its answer" in failed.detail) == (cut > 0)

    run(at_every_place())


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from([GOOD, CHUNKED, INTERIM]), st.lists(st.integers(1, 600), max_size=6))
def test_however_an_answer_is_cut_into_pieces_it_is_the_same(
    run: Run, answer: bytes, cuts: list[int]
) -> None:
    places = sorted({0, len(answer), *(cut % len(answer) for cut in cuts)})
    pieces = [answer[a:b] for a, b in pairwise(places)]

    async def pulls() -> None:
        async with impostor(saying(*pieces, then_close=False)) as (url, connections):
            async with linked(url) as link:
                for _ in range(3):
                    assert (await link.pull(question(), timeout_s=ANSWER_S)).report.name == "db-b"
            assert len(connections) == 1

    run(pulls())


def test_one_byte_at_a_time_is_an_answer_within_the_time_there_is(run: Run) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The last one never comes."""
        await heard(reader)
        for byte in GOOD[:-1]:
            if writer.is_closing():
                return
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        await reader.read()

    async def pulls() -> None:
        failed = await told(drip, timeout_s=0.2)
        assert failed.cause is Cause.TIMED_OUT

    run(pulls())


# --- not an agent --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x01\x00\x02\x02\x0a",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 1000,
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxyz",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 9\r\n\r\nno report",
        HEAD + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=lambda answer: repr(answer[:40]),
)
def test_garbage_is_invalid_and_never_a_report(run: Run, answer: bytes) -> None:
    failed = run(told(saying(answer)))
    assert failed.cause is Cause.INVALID
    assert "\n" not in failed.detail and len(failed.detail) < 600


@given(st.binary(min_size=1, max_size=200))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_bytes_are_a_report_by_chance(run: Run, answer: bytes) -> None:
    assert run(told(saying(answer))).cause in (Cause.INVALID, Cause.UNREACHABLE, Cause.FAILED)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", "not an agent"),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
            "redirects are not followed",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "answered 204"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "token_file"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_other_servers_are_known_from_agents(run: Run, answer: bytes, words: str) -> None:
    """And a redirect is not followed: it would carry the token to wherever it leads."""
    failed = run(told(saying(answer)))
    assert failed.cause is Cause.FAILED and words in failed.detail


def test_an_agent_of_a_version_without_shards_is_reported_as_one(run: Run) -> None:
    problem = b'{"type":"about:blank","title":"Not Found","status":404,'
    problem += b'"detail":"there is nothing at /v1/peer/pull; GET /help lists the routes"}'
    answer = b"HTTP/1.1 404 \r\nContent-Length: %d\r\n\r\n%b" % (len(problem), problem)
    failed = run(told(saying(answer)))
    assert "an agent without shards, or not an agent" in failed.detail


def test_a_peers_texts_cannot_flood_a_log(run: Run) -> None:
    problem = b'{"type":"","title":"","status":409,"detail":"a\\n\\u001b[2J%b"}' % (b"x" * 9000)
    answer = b"HTTP/1.1 409 \r\nContent-Length: %d\r\n\r\n%b" % (len(problem), problem)
    failed = run(told(saying(answer)))
    assert failed.detail.isprintable() and len(failed.detail) < 500


# --- too much ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: 99999999\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 70_000),
        HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + (b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 6,
        HEAD + b"X: " + b"y" * (MAX_HEAD_BYTES + 70_000),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        HEAD + b"".join(b"X%d: y\r\n" % n for n in range(10_000)),
    ],
    ids=["length", "chunks", "line", "interim", "headers"],
)
def test_an_answer_that_is_too_large_is_cut_off(run: Run, answer: bytes) -> None:
    async def then_wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(answer)
        await writer.drain()
        await reader.read()

    failed = run(told(then_wait))
    assert failed.cause is Cause.INVALID, failed
    assert "bytes" in failed.detail


# --- out of turn, or not at all ------------------------------------------------------------


def test_one_that_never_answers(run: Run) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    failed = run(told(silent, timeout_s=0.1))
    assert failed.cause is Cause.TIMED_OUT


def test_one_that_never_shakes_hands(run: Run) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def pulls() -> None:
        async with impostor(silent) as (url, _):
            failed = await failure(url.replace("http:", "https:"), timeout_s=0.2)
            assert failed.cause is Cause.TIMED_OUT and "to connect" in failed.detail

    run(pulls())


def test_a_second_answer_is_never_taken_for_that_to_the_next_request(run: Run) -> None:
    other = GOOD.replace(b"db-b", b"db-x")
    for extra in (other, b"garbage", b"\r\n"):

        async def pulls(extra: bytes = extra) -> None:
            impostors = impostor(saying(GOOD + extra, then_close=False))
            async with impostors as (url, _), linked(url) as link:
                for _ in range(3):
                    assert (await link.pull(question(), timeout_s=ANSWER_S)).report.name == "db-b"

        run(pulls())


def test_one_that_sends_without_a_request_is_disconnected(run: Run) -> None:
    said = asyncio.Event()

    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(GOOD)
        await said.wait()
        writer.write(GOOD.replace(b"db-b", b"db-x"))
        assert await reader.read() == b""

    async def pulls() -> None:
        async with impostor(eager) as (url, connections), linked(url) as link:
            await link.pull(question(), timeout_s=ANSWER_S)
            said.set()
            await aeventually(lambda: not link._pulls._connection.usable)  # type: ignore[union-attr]
            assert (await link.pull(question(), timeout_s=ANSWER_S)).report.name == "db-b"
            assert len(connections) == 2

    run(pulls())


def test_one_that_wants_a_connection_for_each_request(run: Run) -> None:
    closing = GOOD.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)

    async def pulls() -> None:
        async with impostor(saying(closing)) as (url, connections), linked(url) as link:
            for _ in range(3):
                await link.pull(question(), timeout_s=ANSWER_S)
            assert len(connections) == 3

    run(pulls())


def test_one_that_hangs_up_at_each_request_is_tried_twice_and_no_more(run: Run) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)

    async def pulls() -> None:
        async with impostor(rude) as (url, connections):
            failed = await failure(url)
            assert failed.cause is Cause.UNREACHABLE
            assert len(connections) == 1, "a new connection: there was nothing to try again"

    run(pulls())


def test_the_token_goes_to_the_peer_and_nowhere_else(run: Run) -> None:
    requests: list[bytes] = []

    async def listening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await heard(reader))
        writer.write(GOOD)

    async def pulls() -> None:
        async with impostor(listening) as (url, _), linked(url) as link:
            await link.pull(question(), timeout_s=ANSWER_S)

    run(pulls())
    (request,) = requests
    assert request.startswith(b"POST /v1/peer/pull HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer peer-token\r\n" in request
    assert b"peer-token" not in request.partition(b"\r\n\r\n")[2]
