"""Members that answer nonsense, late or not at all: which one is tried next, and the error."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.etcd import EtcdAccess, EtcdStore, gateway
from headgate.errors import LeaseLost, OutcomeUnknown, StoreRejected, StoreUnavailable

PATIENCE_S = 3.0
"""What a member that says nothing costs, or half of it. Everybody else here answers at once."""
Answer = Callable[[asyncio.StreamWriter, str], Awaitable[None]]
HEADER = {"cluster_id": "7", "revision": "5"}
GOOD = {"header": HEADER, "succeeded": True, "responses": [{"response_range": {}}]}


def says(body: object, status: int = 200) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(writer: asyncio.StreamWriter, path: str) -> None:
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)

    return answer


def rejects(code: int, message: str, status: int = 400, *, newer: bool = False) -> Answer:
    """`newer`: as etcd 3.5.16 of Debian 13 says it."""
    old = {} if newer else {"error": message}
    return says({**old, "message": message, "code": code}, status)


async def is_silent(writer: asyncio.StreamWriter, path: str) -> None:
    await asyncio.Event().wait()


async def hangs_up(writer: asyncio.StreamWriter, path: str) -> None:
    writer.close()


async def resets(writer: asyncio.StreamWriter, path: str) -> None:
    """As a member that wants TLS may seem to: the reset overtakes what it says."""
    line: socket.socket = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def drips(writer: asyncio.StreamWriter, path: str) -> None:
    """One byte after the other: no single read of it takes long."""
    writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


class Member:
    def __init__(self) -> None:
        self.answer: Answer = says(GOOD)
        self.asked = 0
        self.endpoint = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next(line for line in head.lower().split("\r\n") if "content-length" in line)
                await reader.readexactly(int(size.partition(":")[2]))
                self.asked += 1
                await self.answer(writer, head.split()[1])
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def members(count: int) -> AsyncIterator[list[Member]]:
    made = [Member() for _ in range(count)]
    servers = [await asyncio.start_server(member.serve, "127.0.0.1", 0) for member in made]
    for member, server in zip(made, servers, strict=True):
        member.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        for member, server in zip(made, servers, strict=True):
            server.close()
            await member.end()


@pytest.fixture
async def pair() -> AsyncIterator[list[Member]]:
    async with members(2) as made:
        yield made


@asynccontextmanager
async def opened(pair: list[Member], *, timeout_s: float) -> AsyncIterator[EtcdStore]:
    endpoints = [member.endpoint for member in pair]
    made = EtcdStore(endpoints, EtcdAccess(), "/p/", timeout_s=timeout_s, roll=lambda: 0.0)
    yield made
    await made.close()


@pytest.fixture
async def store(pair: list[Member]) -> AsyncIterator[EtcdStore]:
    async with opened(pair, timeout_s=PATIENCE_S) as made:
        yield made


@pytest.fixture
async def hasty(pair: list[Member]) -> AsyncIterator[EtcdStore]:
    """Where nothing is to come of it."""
    async with opened(pair, timeout_s=0.3) as made:
        yield made


async def asked(pair: list[Member], question: Awaitable[object]) -> list[int]:
    before = [member.asked for member in pair]
    await question
    return [member.asked - was for member, was in zip(pair, before, strict=True)]


BAD: dict[str, Answer] = {
    "silent": is_silent,
    "hangs up": hangs_up,
    "drips": drips,
    "no etcd": says(b"<html>", 404),
    "proxy error": says(b"<html>bad gateway", 502),
    "no leader": rejects(14, "etcdserver: no leader", 503),
    "no leader for a stream": says(
        {"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}, 503
    ),
    "timed out": rejects(14, "etcdserver: request timed out", 503),
    "deadline": rejects(2, "context deadline exceeded", 500),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_request_goes_on_to_the_next_member_which_is_then_tried_first(
    pair: list[Member], store: EtcdStore, answer: Answer
) -> None:
    pair[0].answer = answer
    assert await asked(pair, store.list([])) == [1, 1]
    assert await asked(pair, store.list([])) == [0, 1]


async def test_a_member_that_is_down_is_passed_over(pair: list[Member], store: EtcdStore) -> None:
    down = EtcdStore(
        ["http://127.0.0.1:1", pair[0].endpoint], EtcdAccess(), "/p/", roll=lambda: 0.0
    )
    await down.list([])
    assert await down.commit([], [Put("a", b"")]) == 5
    await down.close()


@pytest.mark.parametrize("name", ["silent", "hangs up", "drips", "timed out", "deadline"])
async def test_a_change_that_was_sent_is_not_sent_again(
    pair: list[Member], store: EtcdStore, name: str
) -> None:
    pair[0].answer = BAD[name]
    with pytest.raises(OutcomeUnknown, match="may or may not have been made"):
        await store.commit([], [Put("a", b"")])
    assert [member.asked for member in pair] == [1, 0]
    assert await store.commit([], [Put("a", b"")]) == 5
    assert [member.asked for member in pair] == [1, 1]


async def test_a_change_that_no_leader_took_goes_to_the_next_member(
    pair: list[Member], store: EtcdStore
) -> None:
    pair[0].answer = BAD["no leader"]
    assert await store.commit([], [Put("a", b"")]) == 5
    assert [member.asked for member in pair] == [1, 1]


@pytest.mark.parametrize("name", BAD)
async def test_every_request_ends_and_says_what_each_member_had(
    pair: list[Member], hasty: EtcdStore, name: str
) -> None:
    pair[0].answer = pair[1].answer = BAD[name]
    questions: list[Callable[[], Awaitable[object]]] = [
        lambda: hasty.list(["a"]),
        lambda: hasty.commit([], [Put("a", b"")]),
        lambda: hasty.grant(5),
        lambda: anext(hasty.watch(["a"], after_revision=1)),
    ]
    for question in questions:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:\d+") as told:
            await question()
        assert len(str(told.value)) < 600


NONSENSE = {
    "html": b"<html>hello</html>",
    "cut short": b'{"header":{"revi',
    "a list": b"[1, 2]",
    "no header": b"{}",
    "no number": b'{"header":{"revision":"many"}}',
    "too few answers": b'{"header":{"revision":"5"},"responses":[]}',
    "no base64": b'{"header":{},"responses":[{"response_range":{"kvs":[{"key":"%%"}]}}]}',
    "empty": b"",
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_is_reported_as_such(
    pair: list[Member], store: EtcdStore, body: bytes
) -> None:
    pair[0].answer = pair[1].answer = says(body)
    with pytest.raises(StoreUnavailable, match="not answer like etcd"):
        await store.list([])
    with pytest.raises(StoreUnavailable, match="a lease"):
        await store.grant(5)


async def test_a_reset_before_any_answer_says_that_it_may_want_tls(
    pair: list[Member], store: EtcdStore
) -> None:
    for member in pair:
        member.answer = resets
    with pytest.raises(StoreUnavailable, match="does it need https://"):
        await store.list(("a",))


async def test_nonsense_after_a_change_leaves_its_outcome_unknown(
    pair: list[Member], store: EtcdStore
) -> None:
    pair[0].answer = says(b"<html>")
    with pytest.raises(OutcomeUnknown):
        await store.commit([], [Put("a", b"")])


async def test_an_answer_without_end_is_not_kept(
    pair: list[Member], store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MAX_ANSWER_BYTES", 1000)
    pair[0].answer = pair[1].answer = says(b" " * 5000)
    with pytest.raises(StoreUnavailable, match="more than"):
        await store.list([])


@pytest.mark.parametrize("line", [b"<html>\n", b'{"result":7}\n', b"x" * 5_000_000])
async def test_nonsense_ends_a_watch(pair: list[Member], store: EtcdStore, line: bytes) -> None:
    pair[0].answer = says(line)
    with pytest.raises(StoreUnavailable):
        await anext(store.watch(["a"], after_revision=1))


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((8, "etcdserver: mvcc: database space exceeded", 429), "defragment"),
        ((3, "etcdserver: request is too large", 400), "too large"),
        ((7, "etcdserver: permission denied", 403), "grant"),
    ],
    ids=["space", "size", "permission"],
)
async def test_what_an_operator_has_to_fix_is_not_sent_to_every_member(
    pair: list[Member], store: EtcdStore, answer: tuple[int, str, int], words: str, newer: bool
) -> None:
    pair[0].answer = rejects(*answer, newer=newer)
    with pytest.raises(StoreRejected, match=words):
        await store.commit([], [Put("a", b"")])
    assert pair[1].asked == 0


@pytest.mark.parametrize("newer", [False, True])
async def test_a_lease_that_is_gone_is_reported_as_gone(
    pair: list[Member], store: EtcdStore, newer: bool
) -> None:
    pair[0].answer = rejects(5, "etcdserver: requested lease not found", 404, newer=newer)
    with pytest.raises(LeaseLost):
        await store.renew(7)
    await store.revoke(7)
    pair[0].answer = says({"result": {"header": HEADER, "ID": "7"}})
    with pytest.raises(LeaseLost):
        await store.renew(7)


async def test_an_open_watch_may_be_silent_for_as_long_as_it_likes(
    pair: list[Member], store: EtcdStore
) -> None:
    """Its silence is for the beat to notice; only its beginning has a deadline."""
    go = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, path: str) -> None:
        if path != "/v3/watch":
            await says(GOOD)(writer, path)
            return
        created = {"result": {"header": HEADER, "created": True}}
        event = {"kv": {"key": "L3AvYQ==", "mod_revision": "6"}}
        later = {"result": {"header": HEADER, "events": [event]}}
        writer.write(b"HTTP/1.1 200 x\r\nConnection: close\r\n\r\n")
        writer.write(json.dumps(created).encode() + b"\n")
        await go.wait()
        writer.write(json.dumps(later).encode() + b"\n")

    pair[0].answer = answer
    async with aclosing(store.watch(["a"], after_revision=5)) as watch:
        assert (await anext(watch)).events == ()
        waiting = asyncio.ensure_future(anext(watch))
        done, _ = await asyncio.wait({waiting}, timeout=1.1 * PATIENCE_S)
        assert not done, "longer than the store's timeout"
        go.set()
        assert [event.key for event in (await waiting).events] == ["a"]
