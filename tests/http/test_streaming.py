"""Snapshots over the wire: what is streamed, to whom, how often, and to whom no longer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate.check import streaming
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.streaming import Broadcast, Snapshots
from headgate.history.recorder import Recorder
from headgate.metrics.samples import Sample
from headgate.rules.matching import Rule
from tests.builders import metric
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.fakes import HandClock
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served

LISTEN = "GET /v1/snapshot?database=main&app=etl HTTP/1.1\r\nHost: agent\r\n\r\n"


class Listener:
    """Reads events off a socket, as they come."""

    def __init__(self, sock: socket.socket, request: str = LISTEN) -> None:
        self.sock = sock
        sock.settimeout(DEADLINE_S)
        sock.sendall(request.encode())
        self._file = sock.makefile("rb")
        self.head = self._head()

    def _head(self) -> bytes:
        lines = iter(self._file.readline, b"\r\n")
        return b"".join(lines)

    def chunk(self) -> bytes:
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        assert self._file.read(2) == b"\r\n"
        return data

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        while chunk := self.chunk():
            for block in chunk.decode().split("\n\n")[:-1]:
                kind, data = block.split("\n")
                yield kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next event of that kind whose fields are as given."""
        for found, document in self.events():
            if found == kind and all(document.get(n) == v for n, v in fields.items()):
                return document
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._file.close()
        self.sock.close()


@contextmanager
def listening(served: Served, *, unix: bool = False, request: str = LISTEN) -> Iterator[Listener]:
    if unix:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(served.socket_path))
    else:
        sock = socket.create_connection(("127.0.0.1", served.listener.ports[0]), DEADLINE_S)
    listener = Listener(sock, request)
    try:
        yield listener
    finally:
        listener.close()


@pytest.mark.parametrize("unix", [False, True])
def test_a_stream_begins_with_hello_and_the_whole(served: Served, unix: bool) -> None:
    with listening(served, unix=unix) as listener:
        assert b"200" in listener.head and b"text/event-stream" in listener.head
        events = listener.events()
        kind, greeting = next(events)
        assert kind == "hello" and greeting["version"] == 1
        kind, document = next(events)
        assert kind == "snapshot" and document["after"] is None
        assert set(document["state"]["host"]) == {"lag", "threads_running", "pool_usage"}
        assert document["rules"]["set"] == []


def test_a_breach_and_a_rule_are_sent_as_changes(served: Served) -> None:
    with listening(served) as listener:
        first = listener.until("snapshot", after=None)
        served.measure(lag=99.0)
        change = listener.until("snapshot")
        assert change["after"] >= first["serial"]
        assert change["state"]["host"]["lag"]["breached"] is True
        assert "specs" not in change and "rules" not in change
        served.rule(Rule("r1", "etl", 0.5, time.time() + 60))
        while "rules" not in (change := listener.until("snapshot")):
            pass
        assert [rule["id"] for rule in change["rules"]["set"]] == ["r1"]


async def test_how_often_something_is_said() -> None:
    """A changed verdict at once, other readings five times a second, silence every second."""
    clock, board = HandClock(), Board()
    checker = Checker(
        board, Recorder(max_clients=9), Demands(clock), clock, lambda: 0.5, anonymous_may_pass=True
    )
    board.open("main", None)
    board.place("main", metric("lag"), at=clock.now().mono_s)
    broadcast = Broadcast("main", Snapshots(board, checker, None), clock)

    async def said(after_s: float, value: float | None = None) -> bytes:
        """What is said, if anything, once so much time has passed."""
        await clock.advance(after_s)
        if value is not None:
            board.push("main", "lag", Sample(value, clock.now().mono_s))
        number = broadcast.number
        assert broadcast.look()
        return broadcast.latest[:16] if broadcast.number > number else b""

    assert (await said(0.0)).startswith(b"event: snapshot")
    assert (await said(0.05, 0.1)).startswith(b"event: snapshot"), "it passes now"
    assert await said(0.05, 0.2) == b"", "another value, the same verdict"
    assert (await said(0.16, 0.2)).startswith(b"event: snapshot"), "so that it does not age out"
    assert (await said(0.05, 99.0)).startswith(b"event: snapshot"), "a breach"
    assert await said(0.9) == b""
    assert (await said(0.11)).startswith(b"event: beat")


def test_one_encoding_serves_all(served: Served) -> None:
    with listening(served) as one, listening(served) as other:
        one.until("snapshot", after=None)
        other.until("snapshot", after=None)
        served.measure(lag=98.0)
        told = one.until("snapshot")
        assert other.until("snapshot", serial=told["serial"]) == told


def test_a_client_that_hangs_up_leaves_nothing_behind(served: Served) -> None:
    with listening(served) as listener:
        listener.until("snapshot", after=None)
        assert served.tasks() == 1
    eventually(lambda: not served.tasks())
    eventually(lambda: not _looking(served))


def _looking(served: Served) -> int:
    import asyncio

    tasks = served.call(lambda: [repr(t.get_coro()) for t in asyncio.all_tasks()])
    return sum("Broadcasts._run" in coro for coro in tasks)


def test_a_reader_that_does_not_read_is_dropped_and_others_go_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "SEND_TIMEOUT_S", 3.0)
    served = serve(Plan())
    rules = [Rule(f"r{n}", f"client{n}", 0.5, 2e9, reason="x" * 400) for n in range(2000)]
    served.rule(*rules)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(served.address)
    sock.sendall(LISTEN.encode())
    with listening(served) as listener:
        listener.until("snapshot", after=None)
        # Each change of every rule is another megabyte that one of the two does not read.
        for ratio in (0.1, 0.2, 0.3, 0.4):
            served.rule(*(Rule(r.id, r.target, ratio, 2e9, reason=r.reason) for r in rules))
            while "rules" not in listener.until("snapshot"):
                pass
        eventually(lambda: len(served.call(lambda: list(served.listener.connections))) == 1)
        served.measure(lag=99.0)
        listener.until("snapshot")
    sock.close()


def test_too_many_listeners_have_to_poll(serve: Serve) -> None:
    served = serve(Plan())
    served.broadcasts.max_subscribers = 1
    with listening(served) as listener:
        listener.until("snapshot", after=None)
        reply = served.ask("GET", "/v1/snapshot?database=main")
        assert reply.status == 503 and "check at the agent" in reply.json["detail"]


def test_an_address_that_takes_all_places_gives_way_to_another(serve: Serve) -> None:
    """L6."""
    served = serve(Plan())
    served.broadcasts.max_subscribers = 3
    with listening(served) as one, listening(served) as two, listening(served) as three:
        crowd = [one, two, three]
        for listener in crowd:
            listener.until("snapshot", after=None)
        with listening(served, unix=True) as other:
            assert b"200" in other.head
            other.until("snapshot", after=None)
            assert served.call(lambda: served.broadcasts.subscribers) == 3
            assert served.ask("GET", "/v1/snapshot?database=main").status == 503
            assert served.ask("GET", "/v1/snapshot?database=main", unix=True).status == 503
            eventually(lambda: served.call(lambda: len(served.broadcasts._seats)) == 3)
            other.until("snapshot")
    eventually(lambda: served.call(lambda: served.broadcasts.subscribers) == 0)


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("database=nosuch", 404, "configured: main, replica"),
        ("app=etl", 400, "database is missing"),
        ("database=main&since=1", 400, "unknown parameter 'since'"),
        ("database=main&app=a%20b", 400, "client name"),
    ],
)
def test_a_wrong_query_says_what_is_wrong(
    served: Served, query: str, status: int, told: str
) -> None:
    reply = served.ask("GET", f"/v1/snapshot?{query}")
    assert reply.status == status
    assert told in reply.json["detail"]


def test_a_head_request_ends_at_once(served: Served) -> None:
    assert served.ask("HEAD", "/v1/snapshot?database=main").status == 200


def test_a_stopping_agent_ends_its_streams(serve: Serve) -> None:
    served = serve(Plan())
    with listening(served) as listener:
        listener.until("snapshot", after=None)
        served.call(served.broadcasts.close)
        assert list(listener.events()) is not None  # It ends, by the last chunk.
        assert served.ask("GET", "/v1/snapshot?database=main").status == 503


def test_a_database_that_is_gone_ends_its_streams(serve: Serve) -> None:
    served = serve(Plan(databases=("main", "other")))
    with listening(served) as listener:
        listener.until("snapshot", after=None)
        served.call(served.board.shut, "main")
        assert list(listener.events()) is not None
