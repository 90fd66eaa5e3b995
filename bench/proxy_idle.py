"""What an idle connection costs the proxy: memory of its process for 5,000 of them, a piece.

.venv/bin/python -m bench.proxy_idle [--connections 5000] [--quick]

The server is a stand-in that greets and then says nothing: what is measured is the relay, and a
real server would need a process for each. PgBouncer and HAProxy beside it.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.pg_kit import memory_of
from bench.proxy_peers import (
    DATABASE,
    DIRECT,
    HEADGATE,
    HOST,
    USER,
    Place,
    Way,
    proxy_options,
    scratch,
)
from bench.report import Chosen, Goal, Report, say

GREETING = (
    b"R\0\0\0\x08\0\0\0\0"
    + b"S\0\0\0\x19client_encoding\0UTF8\0"
    + b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x02"
    + b"Z\0\0\0\x05I"
)
WAIT_S = 20.0
ROOM = 200
"""Descriptors besides those of connections."""


class StandIn(asyncio.Protocol):
    """Takes whatever comes first for a start-up packet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if len(data) >= 8:
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(GREETING)


@contextmanager
def stand_in() -> Iterator[int]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(StandIn, HOST, 0, backlog=4096))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def main() -> None:
    parser = proxy_options(__doc__, "pgbouncer", "haproxy")
    parser.add_argument("--connections", type=int, default=5000)
    given = parser.parse_args()
    count = 500 if given.quick else given.connections
    report = Report("Idle connections", Chosen(given.quick, given.json, given.major))
    _raise_limit(3 * count + ROOM)
    rows = []
    with stand_in() as port, scratch() as (folder, stack):
        place = Place(folder, port, stack, "postgres", [Way(DIRECT, port)])
        place.add_pgbouncer()
        place.add_haproxy()
        place.add_headgate(HEADGATE, {"threads": 1, "max_sessions": count + 3 * ROOM})
        for path in place.paths[1:]:
            say(f"{count} connections to {path.name}")
            each = _bytes_each(path, count)
            rows.append((path.name, f"{each:,.0f}"))
            if path.name == HEADGATE:
                report.goals.append(Goal(f"{path.name}: bytes a connection", round(each), 4096))
    report.show(f"{count} idle connections", ("path", "bytes a connection"), rows)
    report.end()


def _bytes_each(path: Way, count: int) -> float:
    """The first ones make what is made once."""
    with ExitStack() as stack:
        for _ in range(min(100, count // 10)):
            stack.enter_context(_session(path.port))
        before = _own_bytes(path)
        for _ in range(count):
            stack.enter_context(_session(path.port))
        return (_own_bytes(path) - before) / count


def _own_bytes(path: Way) -> int:
    return memory_of(path.pid).own_kib * 1024


def _session(port: int) -> socket.socket:
    wire = socket.create_connection((HOST, port), WAIT_S)
    body = f"user\0{USER}\0database\0{DATABASE}\0application_name\0idle\0\0".encode()
    wire.sendall(struct.pack("!II", len(body) + 8, 196608) + body)
    got = b""
    while not got.endswith(b"Z\0\0\0\x05I"):
        got += wire.recv(4096)
    return wire


def _raise_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        largest = Path("/proc/sys/fs/nr_open").read_text().strip()
        raise SystemExit(
            f"needs {wanted} descriptors, {hard} are allowed (of {largest}): ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


if __name__ == "__main__":
    main()
