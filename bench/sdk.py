"""What the SDK costs: its import, and what 100,000 waits leave behind.

    python -m bench.sdk [waits]

The agent is a bare socket server in a process of its own that always admits: what grows here
grows in the client.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headgate

SOURCE = str(Path(headgate.__path__[0]).parent)
ADMITTING = """
import asyncio, json, sys
BODY = json.dumps({"verdict": "OK", "admitted": True, "database": "main", "reason": "",
    "retry_after_ms": None, "utilization": 0.2, "metrics": []}).encode()
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(BODY), BODY)

class Admit(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Admit, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
IMPORTING = """
import sys, time
before, began = set(sys.modules), time.process_time()
{statement}
took_ms = (time.process_time() - began) * 1000
roots = sorted({{name.partition('.')[0] for name in set(sys.modules) - before}})
print(f"{{took_ms:.1f}}", *[name for name in roots if name not in sys.stdlib_module_names])
"""


@contextmanager
def admitting() -> Iterator[str]:
    server = subprocess.Popen([sys.executable, "-c", ADMITTING], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def rss_kib() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def importing() -> None:
    for statement in ("import headgate", "from headgate import Client; Client('a', database='d')"):
        program = IMPORTING.format(statement=statement)
        runs = [
            subprocess.run(
                [sys.executable, "-S", "-c", program],
                env={"PYTHONPATH": SOURCE},
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
            for _ in range(7)
        ]
        best = min(float(run[0]) for run in runs)
        print(f"{statement:60} {best:6.1f} ms of CPU; besides the standard library: {runs[0][1:]}")


def waiting(url: str, waits: int) -> None:
    with headgate.Client("bench:sdk", database="main", url=url, on_event=None) as gate:
        _laps("Client.wait", waits, lambda count: [gate.wait() and None for _ in range(count)])


def awaiting(url: str, waits: int) -> None:
    async def run() -> None:
        async with headgate.AsyncClient("bench:sdk", database="main", url=url) as gate:
            for lap in range(11):
                began_s = time.perf_counter()
                for _ in range(waits // 10 if lap else 1000):
                    await gate.wait()
                _told("AsyncClient.wait", lap, waits, time.perf_counter() - began_s)

    asyncio.run(run())


def _laps(name: str, waits: int, run: object) -> None:
    assert callable(run)
    for lap in range(11):
        began_s = time.perf_counter()
        run(waits // 10 if lap else 1000)
        _told(name, lap, waits, time.perf_counter() - began_s)


def _told(name: str, lap: int, waits: int, took_s: float) -> None:
    done = lap * waits // 10
    count = waits // 10 if lap else 1000
    row = {"rss_kib": rss_kib(), "fds": fds(), "waits_per_s": round(count / took_s)}
    print(f"{name:18} after {done:>8,} waits: {json.dumps(row)}")


def main() -> None:
    waits = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    importing()
    before = fds()
    with admitting() as url:
        waiting(url, waits)
        awaiting(url, waits)
    gc.collect()
    print(f"file descriptors before {before}, after all is closed {fds()}")


if __name__ == "__main__":
    main()
