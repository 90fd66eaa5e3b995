"""https://: who is believed, who is not, and that none of it outlasts the deadline."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate import ThrottlerUnavailable
from headgate.client.http1 import BadResponse, Response, ResponseReader, exchange
from headgate.client.tls import TlsFailed, TlsSession, make_trust
from tests.client.authority import Authority
from tests.client.conftest import MakeCaller
from tests.client.scripted import REJECTED, ScriptedAgent
from tests.fixtures.eventually import DEADLINE_S

HELLO_BYTES = 65536


@contextmanager
def listener(says: bytes | None) -> Iterator[str]:
    """Answers one greeting with these bytes and closes; None: never says a word."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(HELLO_BYTES)
                if says is None:
                    done.wait()
                else:
                    connection.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


# --- over sockets, with both drivers --------------------------------------------------------


@pytest.mark.parametrize("names", [("127.0.0.1",), ("db1.example", "127.0.0.1")])
async def test_an_agent_with_a_certificate_from_a_named_authority(
    authority: Authority, make_caller: MakeCaller, names: tuple[str, ...]
) -> None:
    with ScriptedAgent([REJECTED], tls=authority.vouches_for(*names)) as agent:
        gate = make_caller(agent.url, tls_ca=authority.ca_path)
        assert not await gate.check()
        for _ in range(5):
            assert await gate.check()
        assert agent.script.connections == 1


async def test_names_are_checked_as_the_url_spells_them(
    authority: Authority, make_caller: MakeCaller
) -> None:
    with ScriptedAgent(tls=authority.vouches_for("localhost")) as agent:
        url = agent.url.replace("127.0.0.1", "localhost")
        assert await make_caller(url, tls_ca=str(authority.ca_path)).check()
        with pytest.raises(
            ThrottlerUnavailable, match=r"certificate is not accepted: IP address mis"
        ):
            await make_caller(agent.url, tls_ca=authority.ca_path).check()
    assert len(agent.heard) == 1


async def test_a_certificate_of_another_name(authority: Authority, make_caller: MakeCaller) -> None:
    with ScriptedAgent(tls=authority.vouches_for("db2.example")) as agent:
        url = agent.url.replace("127.0.0.1", "localhost")
        with pytest.raises(ThrottlerUnavailable, match=r"Hostname mismatch.*'localhost'"):
            await make_caller(url, tls_ca=authority.ca_path, token="s3cret").check()
    assert not agent.heard


async def test_a_certificate_of_an_unknown_authority(
    authority: Authority, make_caller: MakeCaller, tmp_path: Path
) -> None:
    """By default as with tls_ca: there is no way to go on without a proof."""
    other = Authority(tmp_path)
    with ScriptedAgent(tls=authority.vouches_for("127.0.0.1")) as agent:
        for settings in ({"tls_ca": other.ca_path}, {}):
            with pytest.raises(ThrottlerUnavailable, match=r"certificate is not accepted.*tls_ca"):
                await make_caller(agent.url, **settings).check()
    assert not agent.heard


async def test_a_plain_server_behind_an_https_url(
    authority: Authority, make_caller: MakeCaller
) -> None:
    with ScriptedAgent() as agent:
        url = agent.url.replace("http:", "https:")
        with pytest.raises(ThrottlerUnavailable, match=r"does not speak TLS.*is it http://\?"):
            await make_caller(url, tls_ca=authority.ca_path).check()


async def test_a_tls_server_behind_an_http_url(
    authority: Authority, make_caller: MakeCaller
) -> None:
    with ScriptedAgent(tls=authority.vouches_for("127.0.0.1")) as agent:
        url = agent.url.replace("https:", "http:")
        with pytest.raises(ThrottlerUnavailable):
            await make_caller(url).check()


async def test_a_server_that_stalls_in_the_handshake(
    authority: Authority, make_caller: MakeCaller
) -> None:
    with listener(None) as url:
        gate = make_caller(url, tls_ca=authority.ca_path, timeout_s=0.2)
        started_s = time.monotonic()
        with pytest.raises(ThrottlerUnavailable, match=r"no answer in 0\.2 s"):
            await gate.check()
        assert time.monotonic() - started_s > 0.19


async def test_a_server_that_closes_in_the_handshake(
    authority: Authority, make_caller: MakeCaller
) -> None:
    with listener(b"") as url, pytest.raises(ThrottlerUnavailable, match="in the TLS handshake"):
        await make_caller(url, tls_ca=authority.ca_path).check()


# --- as bytes -------------------------------------------------------------------------------


class Peer:
    """The other end, in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.heard = b""

    def feed(self, data: bytes) -> bytes:
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self._tls.read(HELLO_BYTES):
                self.heard += piece
        return self._outgoing.read()

    def say(self, data: bytes) -> bytes:
        while data:
            data = data[self._tls.write(data) :]
        return self._outgoing.read()

    def farewell(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()


Ends = tuple[TlsSession, Peer]


@pytest.fixture
def ends(authority: Authority) -> Ends:
    peer = Peer(authority.vouches_for("db1"))
    return make_trust("db1", authority.ca_path).session(), peer


def ask(
    ends: Ends,
    answer: Callable[[Peer], bytes],
    *,
    question: bytes = b"GET /",
    cut_bytes: int = 10**6,
) -> Response:
    """Plays the driver, over a network that delivers `cut_bytes` at a time and then ends."""
    session, peer = ends
    peer.heard, answered = b"", False
    steps = session.exchange(exchange(question, ResponseReader()))
    on_the_way = peer.feed(next(steps))
    try:
        while True:
            if peer.heard == question and not answered:
                answered = True
                on_the_way += answer(peer)
            received, on_the_way = on_the_way[:cut_bytes], on_the_way[cut_bytes:]
            on_the_way += peer.feed(steps.send(received))
    except StopIteration as end:
        response: Response = end.value
        return response


@pytest.mark.parametrize("cut_bytes", [1, 7, 1000, 10**6])
def test_any_cut_gives_the_same_answer(ends: Ends, cut_bytes: int) -> None:
    """Over more than one record each way, and again over the same connection."""
    body, question = b"x" * 40_000, b"GET " + b"/" * 40_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + body
    for _ in range(2):
        whole = ask(ends, lambda peer: peer.say(answer), question=question, cut_bytes=cut_bytes)
        assert whole.keep_alive
        assert whole.body == body


def test_an_answer_behind_the_answer_spoils_the_connection(ends: Ends) -> None:
    """R33: it comes in a record of its own, but before the next question."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
    assert not ask(ends, lambda peer: peer.say(answer) + peer.say(answer)).keep_alive


def test_the_end_of_the_connection_ends_the_answer(ends: Ends, authority: Authority) -> None:
    answer = b"HTTP/1.0 200 OK\r\n\r\nOK"
    assert ask(ends, lambda peer: peer.say(answer)).body == b"OK"
    fresh = make_trust("db1", authority.ca_path).session(), Peer(authority.vouches_for("db1"))
    assert ask(fresh, lambda peer: peer.say(answer) + peer.farewell()).body == b"OK"


def test_half_an_answer_is_none_however_it_ends(ends: Ends) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nOK"
    with pytest.raises(BadResponse, match="bytes into the answer"):
        ask(ends, lambda peer: peer.say(half) + peer.farewell())


def test_a_forged_record_is_not_read(ends: Ends) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"

    def forged(peer: Peer) -> bytes:
        sealed = bytearray(peer.say(answer))
        sealed[-1] ^= 1
        return bytes(sealed)

    with pytest.raises(TlsFailed, match=r"TLS failed: .*(mac|record layer failure)"):
        ask(ends, forged)
