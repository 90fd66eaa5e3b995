"""Checks a second on one core, beside a bare ASGI function on uvicorn, in one run.

    .venv/bin/python -m bench.checks [--rounds 5] [--seconds 4]

The agent is real: five metrics of a real Postgres, 1,000 rules in the book, counters, history
in SQLite. Rounds are interleaved; ratios are of the same round, and their median is shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.load import Run, build_heads, h2load, heads, median, need, serving, table, with_cpu, wrk
from headgate.demo import servers
from headgate.demo.postgres import start_primary, start_replica

RULES = 1000
APP = "d666bbfc:billing:archive:nightly"
PATH = f"/check/{APP}/postgres/main"
# Repeated bytes are not parsed again: this shows what it costs when nothing repeats.
CHURN = """
local n = 0
request = function()
  n = n + 1
  return wrk.format("GET", "/check/job" .. n .. ":billing:archive:nightly/postgres/main")
end
"""
SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
socket = "{folder}/agent.sock"
state = "{folder}/state.db"
[databases.main]
engine = "postgres"
dsn = "{dsn}"
[databases.main.metrics.lag]
[databases.main.metrics.threads_running]
[databases.main.metrics.pool_usage]
[databases.main.metrics.commit_delay]
threshold = "60s"
timeout_s = 5
[databases.main.metrics.loadavg]
threshold = 1000
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    given = parser.parse_args()
    need("wrk", "h2load", "taskset", "cc")
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        cases = _cases(cleanup, folder, given.seconds)
        rounds: dict[str, list[Run]] = {name: [] for name in cases}
        for number in range(given.rounds):
            for name, run in cases.items():
                rounds[name].append(run())
            print(f"round {number + 1} of {given.rounds} done", file=sys.stderr, flush=True)
    print(_report(rounds))


def _cases(cleanup: ExitStack, folder: Path, seconds: float) -> dict[str, Callable[[], Run]]:
    primary = cleanup.enter_context(start_primary(folder, durable=False))
    cleanup.enter_context(start_replica(primary, folder))
    ports = servers.free_ports()
    port, bare_port = next(ports), next(ports)
    settings = folder / "headgate.toml"
    settings.write_text(SETTINGS.format(port=port, folder=folder, dsn=primary.dsn()))
    url, bare = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{bare_port}/"
    agent = cleanup.enter_context(
        serving(
            [sys.executable, "-m", "bench.agent_with_rules", str(settings), str(RULES)], url + PATH
        )
    )
    uvicorn = [sys.executable, "-m", "uvicorn", "bench.bare_asgi:app", "--log-level", "warning"]
    uvicorn += ["--no-access-log", "--loop", "uvloop", "--http", "httptools", "--lifespan", "off"]
    bare_pid = cleanup.enter_context(serving([*uvicorn, "--port", str(bare_port)], bare))
    bare_socket = f"{folder}/bare.sock"
    cleanup.enter_context(serving([*uvicorn, "--uds", bare_socket]))
    agent_socket, program = f"{folder}/agent.sock", build_heads(folder)
    churn = folder / "churn.lua"
    churn.write_text(CHURN)
    native = f"{url}/v1/check?app={APP}&database=main"
    s = seconds
    return {
        "bare ASGI, GET, 32": lambda: with_cpu(
            bare_pid, partial(wrk, bare, connections=32, seconds=s), s
        ),
        "check, GET, 32": lambda: with_cpu(
            agent, partial(wrk, url + PATH, connections=32, seconds=s), s
        ),
        "native check, GET, 32": lambda: with_cpu(
            agent, partial(wrk, native, connections=32, seconds=s), s
        ),
        "check, GET, 32, no request like another": lambda: wrk(
            url, connections=32, seconds=s, script=churn
        ),
        "check, GET, 64": lambda: wrk(url + PATH, connections=64, seconds=s),
        "check, HEAD, 32": lambda: heads(program, PATH, str(port), connections=32, seconds=s),
        "bare ASGI, HEAD, 32": lambda: heads(
            program, "/", str(bare_port), connections=32, seconds=s
        ),
        "bare ASGI, GET, 32, Unix socket": lambda: h2load(
            bare, connections=32, seconds=s, unix=bare_socket
        ),
        "check, GET, 32, Unix socket": lambda: h2load(
            url + PATH, connections=32, seconds=s, unix=agent_socket
        ),
        "bare ASGI, HEAD, 32, Unix socket": lambda: heads(
            program, "/", bare_socket, connections=32, seconds=s
        ),
        "check, HEAD, 32, Unix socket": lambda: heads(
            program, PATH, agent_socket, connections=32, seconds=s
        ),
    }


def _report(rounds: dict[str, list[Run]]) -> str:
    rows = []
    for name, runs in rounds.items():
        base = rounds[_yardstick(name)]
        ratios = [r.requests_per_s / b.requests_per_s for r, b in zip(runs, base, strict=True)]
        rates = [r.requests_per_s for r in runs]
        p99 = [r.p99_ms for r in runs if r.p99_ms is not None]
        cpu = [r.cpu_us_per_request for r in runs if r.cpu_us_per_request is not None]
        rows.append(
            (
                name,
                f"{median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})",
                f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
                f"{median(p99):.1f}" if p99 else "",
                f"{median(cpu):.1f}" if cpu else "",
            )
        )
    head = ("case", "checks/s, median (range)", "× bare ASGI, same round", "p99 ms", "CPU µs each")
    return table(head, rows)


def _yardstick(name: str) -> str:
    method = "HEAD" if "HEAD" in name else "GET"
    return f"bare ASGI, {method}, 32" + (", Unix socket" if "Unix" in name else "")


if __name__ == "__main__":
    main()
