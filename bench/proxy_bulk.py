"""A large result through the proxy, beside PgBouncer and HAProxy: MB/s of COPY out, as ratios.

.venv/bin/python -m bench.proxy_bulk [--megabytes 1024] [--rounds 5] [--threads 1] [--quick]

In each round every path gives the same COPY once, in random order, to a client that throws it
away. A ratio is to HAProxy in the same round.
"""

from __future__ import annotations

import random
import socket
import statistics
import struct
import time

from bench.proxy_peers import (
    AGAIN,
    DATABASE,
    HAPROXY,
    HEADGATE,
    HOST,
    USER,
    postgres_behind,
    proxy_options,
)
from bench.report import Chosen, Goal, Report, quartiles, say

LINE = 1000
WAIT_S = 120.0
END = b"Z\0\0\0\5I"
BUFFER_BYTES = 1 << 20


def main() -> None:
    parser = proxy_options(__doc__, "pgbouncer", "haproxy")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    megabytes, rounds = (64, 2) if given.quick else (given.megabytes, given.rounds)
    report = Report(
        "A large result through the proxy", Chosen(given.quick, given.json, given.major)
    )
    with postgres_behind() as place:
        place.add_pgbouncer()
        place.add_haproxy()
        place.add_haproxy(HAPROXY + AGAIN)
        place.add_headgates(given.threads)
        found: dict[str, list[float]] = {path.name: [] for path in place.paths}
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}: {megabytes} MB by each path")
            for path in random.sample(place.paths, len(place.paths)):
                found[path.name].append(megabytes / seconds_of_copy(path.port, megabytes))
    _tell(report, found)


def seconds_of_copy(port: int, megabytes: int) -> float:
    rows = megabytes * 1_000_000 // (LINE + 1)
    query = f"COPY (SELECT repeat('x', {LINE}) FROM generate_series(1, {rows})) TO STDOUT"
    with socket.create_connection((HOST, port), WAIT_S) as wire:
        wire.sendall(_start())
        _read_to_end(wire)
        began = time.perf_counter()
        body = query.encode() + b"\0"
        wire.sendall(b"Q" + struct.pack("!I", len(body) + 4) + body)
        _read_to_end(wire)
        return time.perf_counter() - began


def _start() -> bytes:
    body = f"user\0{USER}\0database\0{DATABASE}\0\0".encode()
    return struct.pack("!II", len(body) + 8, 196608) + body


def _read_to_end(wire: socket.socket) -> None:
    """No line of x ends as a ReadyForQuery does."""
    buffer, tail = bytearray(BUFFER_BYTES), b""
    view = memoryview(buffer)
    while not tail.endswith(END):
        got = wire.recv_into(view)
        if not got:
            raise SystemExit(f"the connection ended: {tail!r}")
        tail = (tail + bytes(view[max(0, got - len(END)) : got]))[-len(END) :]


def _tell(report: Report, found: dict[str, list[float]]) -> None:
    rows = []
    for name, speeds in found.items():
        ratios = [a / b for a, b in zip(speeds, found[HAPROXY], strict=True)]
        low, _, high = quartiles(ratios)
        middle = statistics.median(ratios)
        spread = f"{low:.3f} – {high:.3f}"
        rows.append((name, f"{middle:.3f}", spread, f"{statistics.median(speeds):,.0f}"))
        if name.startswith(HEADGATE):
            report.goals.append(Goal(f"{name}: MB/s / HAProxy's", middle, 0.95, at_least=True))
    report.show("COPY out", ("path", "MB/s / HAProxy's", "quartiles", "MB/s"), rows)
    report.end()


if __name__ == "__main__":
    main()
