"""What the proxy encrypts for a client comes in records of 8 KiB at most, as Postgres' own does.

libpq makes room for 8 KiB before it reads. What is left of a longer record stays inside OpenSSL,
where no poll of the socket finds it: a client that waits on the socket itself waits forever.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.pgkits import ExtendedServer, kit
from tests.fixtures.proxies import PORT, ProxyProcess
from tests.proxy.live.conftest import Certificates
from tests.proxy.live.ways import HOST, PostgresWay
from tests.proxy.live.wire import Peer, query, startup

COPY_OUT = Path(__file__).parent / "scripts" / "copy_out.py"
RECORD_BYTES = 8192
OVERHEAD_BYTES = 32
"""Of a record: its type or number, and what authenticates it."""
APPLICATION_DATA = 23
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
ROUNDS = 60


@pytest.fixture(scope="module")
def way(postgres: ExtendedServer, certificates: Certificates) -> Iterator[PostgresWay]:
    """TLS to the client; plain to the server, whose large reads then are what is encrypted."""
    files = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    listen = {"address": f"127.0.0.1:{PORT}", "tls": "require", **files}
    with ProxyProcess.started("postgres", postgres.port, {"listen": [listen]}) as proxy:
        yield PostgresWay("tls", proxy.port, certificates.ca)


class RecordsPeer(Peer):
    """Speaks TLS by itself, and notes how long each record is that comes."""

    def __init__(self, way: PostgresWay) -> None:
        super().__init__(way.port)
        assert way.context is not None
        self.records: list[int] = []
        self._raw = b""
        self._come, self._gone = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.socket.sendall(SSL_REQUEST)
        assert self.socket.recv(1) == b"S"
        self._tls = way.context.wrap_bio(self._come, self._gone, server_hostname="localhost")
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._pull()
        self._flush()

    def _flush(self) -> None:
        if self._gone.pending:
            self.socket.sendall(self._gone.read())

    def _pull(self) -> None:
        got = self.socket.recv(65536)
        if not got:
            raise EOFError("closed")
        self._come.write(got)
        self._raw += got
        while len(self._raw) >= 5:
            kind, _, length = struct.unpack("!BHH", self._raw[:5])
            if len(self._raw) < 5 + length:
                break
            self._raw = self._raw[5 + length :]
            if kind == APPLICATION_DATA:
                self.records.append(length)

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                data += self._tls.read(count - len(data))
            except ssl.SSLWantReadError:
                self._pull()
        return data


def test_no_record_is_longer_than_postgres_makes_them(way: PostgresWay) -> None:
    """P1: rows of all sizes, and one that is far larger than a record."""
    dice = random.Random(1)
    with closing(RecordsPeer(way)) as peer:
        peer.send(startup({"user": "postgres", "database": "parity"}))
        peer.messages_until(b"Z")
        lengths = [*(dice.randrange(1, 40_000) for _ in range(200)), 500_000]
        rows = ",".join(f"({length})" for length in lengths)
        peer.send(query(f"COPY (SELECT repeat('x', n) FROM (VALUES {rows}) v (n)) TO STDOUT"))
        came = [len(body) - 1 for kind, body in peer.messages_until(b"Z") if kind == b"d"]
    assert came == lengths
    assert max(peer.records) <= RECORD_BYTES + OVERHEAD_BYTES
    assert max(peer.records) > RECORD_BYTES // 2, "nothing was long enough to show anything"


def _libraries() -> dict[str, tuple[str, ...]]:
    """psycopg's implementations; with ctypes by the system's libpq, and by one from before July
    2026, which leaves the rest of a long record in OpenSSL."""
    old = kit(14).prefix / "lib" / "libpq.so.5"
    return {"binary": ("binary",), "system": ("python",), "old": ("python", str(old))}


@pytest.mark.parametrize("library", ["binary", "system", "old"])
async def test_a_client_that_polls_the_socket_itself_gets_all_of_a_copy(
    way: PostgresWay, library: str
) -> None:
    """P1: psycopg on an event loop, rows of random sizes."""
    implementation, *libpq = _libraries()[library]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(COPY_OUT),
        *(implementation, way.dsn(host="localhost", hostaddr=HOST), str(ROUNDS), "1", *libpq),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError("its COPY has no end") from None
    if library == "system" and b"libpq library not found" in err:
        pytest.skip("this system has no libpq of its own")
    assert process.returncode == 0 and out.endswith(b"done\n"), err.decode()
