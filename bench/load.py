"""Servers pinned to one core, load generators to another, figures read from their output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER_CORE, LOAD_CORE = "0", "1"


@dataclass(frozen=True, slots=True)
class Run:
    requests_per_s: float
    p99_ms: float | None = None
    cpu_us_per_request: float | None = None


def need(*tools: str) -> None:
    packages = {"wrk": "wrk", "h2load": "nghttp2-client", "taskset": "util-linux", "cc": "gcc"}
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        names = " ".join(packages[tool] for tool in missing)
        sys.exit(f"missing {', '.join(missing)}: apt-get install -y {names}")


@contextmanager
def serving(argv: Sequence[str], url: str | None = None) -> Iterator[int]:
    """A server on its own core; ready when `url` answers anything."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        ["taskset", "-c", SERVER_CORE, *argv], stdin=subprocess.PIPE, env=env
    )
    try:
        if url is not None:
            _await(url, process)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{process.args!r} ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=1).read()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return
    sys.exit(f"{url} did not answer")


def wrk(
    url: str, *, connections: int, seconds: float, script: Path | None = None, status: int = 200
) -> Run:
    """All answers must have that status, as far as wrk tells: it counts those that are not 2xx."""
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", url]
    argv += ["-s", str(script)] if script else []
    out = _load(argv)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    done, others = re.search(r"(\d+) requests in", out), re.search(r"Non-2xx.*: (\d+)", out)
    assert done, out
    expected = int(done[1]) if status >= 300 else 0
    if (int(others[1]) if others else 0) != expected or "Socket errors" in out:
        sys.exit(f"not all answers were {status}:\n{out}")
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", out)
    assert rate and p99, out
    return Run(float(rate[1]), float(p99[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[p99[2]])


def build_heads(folder: Path) -> str:
    """bench/heads.c, compiled."""
    program = folder / "heads"
    source = Path(__file__).with_name("heads.c")
    command: list[str | Path] = [
        "cc",
        "-O2",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        program,
        source,
    ]
    subprocess.run(command, check=True)
    return str(program)


def heads(program: str, path: str, target: str, *, connections: int, seconds: float) -> Run:
    out = _load([program, str(connections), f"{seconds:g}", path, target])
    if not re.fullmatch(r"[\d.]+\n", out):
        sys.exit(out)
    return Run(float(out))


def h2load(url: str, *, connections: int, seconds: float, unix: str = "") -> Run:
    argv = ["h2load", "--h1", f"-c{connections}", "-m1", f"-D{seconds:g}", "-t1"]
    argv += [*(["-B", f"unix:{unix}"] if unix else []), url]
    out = _load(argv)
    rate = re.search(r"finished in [\d.]+m?s, ([\d.]+) req/s", out)
    failed = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", out)
    codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", out)
    assert rate and failed and codes, out
    if any(int(n) for n in failed.groups()) or any(int(n) for n in codes.groups()[1:]):
        sys.exit(f"not all answers were 200:\n{out}")
    return Run(float(rate[1]))


def _load(argv: list[str]) -> str:
    done = subprocess.run(
        ["taskset", "-c", LOAD_CORE, *argv], capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


def with_cpu(pid: int, run: Callable[[], Run], seconds: float) -> Run:
    """The run, with the server's own CPU time per request: steadier than its rate."""
    before = cpu_s(pid)
    done = run()
    spent = cpu_s(pid) - before
    return Run(done.requests_per_s, done.p99_ms, spent / (done.requests_per_s * seconds) * 1e6)


def cpu_s(pid: int) -> float:
    with Path(f"/proc/{pid}/stat").open() as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    with Path(f"/proc/{pid}/status").open() as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
