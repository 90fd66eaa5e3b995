"""The bridge to the ASGI app: whole and streamed answers, defects, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from headgate.http.asgi import Message
from tests.fixtures.eventually import eventually
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import get
from tests.http.test_checks import CHECK, is_problem


class Streams:
    """An app with streams that a test can watch."""

    def __init__(self) -> None:
        self.produced = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/count", self.count),
                Route("/endless", self.endless),
                Route("/large", self.large),
                Route("/empty", self.empty),
                Route("/defect", self.defect),
                Route("/breaks", self.breaks),
                Route("/echo", self.echo, methods=["POST"]),
            ]
        )

    async def count(self, request: Request) -> Response:
        async def numbers() -> AsyncIterator[bytes]:
            for number in range(5):
                yield b"%d\n" % number
            yield b""

        return StreamingResponse(numbers())

    async def endless(self, request: Request) -> Response:
        return StreamingResponse(self._pieces(b"tick\n"))

    async def large(self, request: Request) -> Response:
        return StreamingResponse(self._pieces(b"x" * 65536))

    async def _pieces(self, piece: bytes) -> AsyncIterator[bytes]:
        while True:
            self.produced += 1
            yield piece
            await asyncio.sleep(0)

    async def empty(self, request: Request) -> Response:
        return Response(status_code=204)

    async def defect(self, request: Request) -> Response:
        raise ZeroDivisionError

    async def breaks(self, request: Request) -> Response:
        async def half() -> AsyncIterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        return StreamingResponse(half())

    async def echo(self, request: Request) -> Response:
        return Response(await request.body())


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def served(serve: Serve, streams: Streams) -> Served:
    return serve(Plan(app=streams.app()))


def test_a_stream_is_chunked_and_keeps_the_connection(served: Served) -> None:
    with served.talk() as talk:
        for _ in range(3):
            reply = talk.ask("GET", "/count")
            assert reply.headers["Transfer-Encoding"] == "chunked"
            assert reply.body == b"0\n1\n2\n3\n4\n"
        assert talk.ask("HEAD", "/count").body == b""
        assert talk.ask("GET", CHECK).status == 200


def test_a_stream_to_http_1_0_ends_with_the_connection(served: Served) -> None:
    with served.talk() as talk:
        reply = talk.send(b"GET /count HTTP/1.0\r\n\r\n").reply()
        assert reply.headers["Transfer-Encoding"] is None
        assert reply.headers["Connection"] == "close"
        assert reply.body == b"0\n1\n2\n3\n4\n"


def test_an_answer_without_content_has_no_frame(served: Served) -> None:
    with served.talk() as talk:
        reply = talk.ask("GET", "/empty")
        assert (reply.status, reply.headers["Transfer-Encoding"]) == (204, None)
        assert talk.ask("GET", CHECK).status == 200, "still in step"


def test_bodies_reach_the_app_whole(served: Served) -> None:
    body = bytes(range(256)) * 200
    assert served.ask("POST", "/echo", body=body).body == body


@pytest.mark.parametrize("target", ["/endless", "/large"])
@pytest.mark.parametrize("abrupt", [False, True], ids=["close", "reset"])
def test_a_stream_ends_when_its_client_hangs_up(
    served: Served, streams: Streams, target: str, abrupt: bool
) -> None:
    talk = served.talk()
    talk.send(get(target))
    assert talk.sock.recv(100).startswith(b"HTTP/1.1 200")
    if abrupt:
        talk.reset()
    talk.sock.close()
    eventually(served.settled)
    produced = streams.produced
    assert served.ask("GET", CHECK).status == 200
    assert streams.produced == produced


def test_a_stream_waits_for_a_client_that_does_not_read(served: Served, streams: Streams) -> None:
    """Bounded memory: the app is delayed, and goes on when the client does."""
    with served.talk() as talk:
        talk.send(get("/large"))
        connection = served.connection(talk)
        eventually(lambda: not connection._writable.is_set())
        held = streams.produced
        assert served.ask("GET", CHECK).status == 200
        assert streams.produced == held
        assert connection._transport.get_write_buffer_size() < 1_000_000
        talk._stream.reader.read(65536 * (held + 20))
        assert streams.produced > held


def test_checks_sent_behind_a_stream_wait_their_turn(served: Served, streams: Streams) -> None:
    with served.talk() as talk:
        talk.send(get("/count") + get(CHECK) + get("/count") + get(CHECK))
        assert talk.reply().body.startswith(b"0\n")
        assert talk.reply().json["verdict"] == "OK"
        assert talk.reply().body.startswith(b"0\n")
        assert talk.reply().json["verdict"] == "OK"


def test_a_defect_is_one_500_then_the_end(served: Served) -> None:
    """One, not two: the framework answers, and tells us of it as well."""
    with capture_logs() as logs, served.talk() as talk:
        talk.send(get("/defect") + get(CHECK))
        assert talk.reply().status == 500
        assert talk.ended()
    assert [line["event"] for line in logs] == ["http.request_failed"]


def test_an_answer_that_breaks_off_is_seen_to_be_broken(served: Served) -> None:
    """No error may be written into the middle of a stream, where it would be read as data."""
    with capture_logs() as logs, served.talk() as talk:
        rest = talk.send(get("/breaks")).rest()
    assert rest.endswith(b"4\r\nhalf\r\n"), rest
    assert [line["event"] for line in logs] == ["http.request_failed"]


def test_an_app_that_says_nothing_is_a_500(serve: Serve) -> None:
    async def silent(scope: Message, receive: object, send: object) -> None:
        pass

    served = serve(Plan(app=silent))
    with capture_logs(), served.talk() as talk:
        assert is_problem(talk.send(get("/")).reply(), 500)
        assert talk.ended()


def test_an_app_that_stops_half_way_ends_the_connection(serve: Serve) -> None:
    async def halting(scope: Message, receive: object, send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    served = serve(Plan(app=halting))
    with served.talk() as talk:
        assert talk.send(get("/")).rest().endswith(b"4\r\nhalf\r\n")
