"""Checks a second on one core, beside freno and a bare ASGI function on uvicorn, in one run.

    .venv/bin/python -m bench.checks [--rounds 5] [--seconds 4] [--freno PATH] [--all] [--json PATH]

The agent is real: five metrics of a real Postgres, 1,000 rules in the book, counters, history
in SQLite. freno is a program that was built elsewhere; it measures a MariaDB. Rounds are
interleaved, ratios are of the same round. One case is measured twice in each round: what this A/A
row differs from 1 by is noise. `--all`: other transports and methods, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.fixtures import mariadb

from bench.load import Run, build_heads, h2load, heads, need, serving, with_cpu, wrk
from bench.report import (
    AA,
    Goal,
    Report,
    chosen_of,
    median,
    no_peer,
    options,
    quartiles,
    ratio_goal,
    say,
)
from headgate.demo import servers
from headgate.demo.postgres import start_primary, start_replica

RULES = 1000
CATEGORY = "billing:archive:nightly"
APP = f"d666bbfc:{CATEGORY}"
PATH = f"/check/{APP}/postgres/main"
# Repeated bytes are not parsed again: this shows what it costs when nothing repeats.
CHURN = """
local n = 0
local path, rest = "{before}", "{after}"
request = function()
  n = n + 1
  return wrk.format("GET", path .. n .. rest)
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
BREACHED = """
[databases.behind]
engine = "postgres"
dsn = "{dsn}"
[databases.behind.metrics.loadavg]
threshold = 0.000001
"""
BARE, SAME, NEW, REJECTED = (
    "bare ASGI, GET, 32",
    "check, GET, 32",
    "check, GET, 32, no request like another",
    "check, GET, 32, rejected, one breach",
)
FRENO = "freno, "
HEAD = ("case", "checks/s, median (quartiles)", "× bare ASGI, same round", "p99 ms", "CPU µs each")
Cases = dict[str, Callable[[], Run]]
Rounds = Mapping[str, Sequence[Run]]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--freno", type=Path, help="the program of freno, built elsewhere")
    parser.add_argument("--all", action="store_true", help="other transports and methods, too")
    given = parser.parse_args()
    need("wrk", "h2load", "taskset", "cc")
    report = Report("checks", chosen_of(given))
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        cases = _cases(cleanup, folder, given.seconds, every=given.all)
        if given.freno is not None:
            cases |= _freno_cases(cleanup, given.freno, folder, given.seconds)
        rounds: dict[str, list[Run]] = {name: [] for name in cases}
        for number in range(given.rounds):
            for name, run in cases.items():
                rounds[name].append(run())
            say(f"round {number + 1} of {given.rounds}")
    report.show("Checks", HEAD, [_row(name, rounds) for name in rounds])
    report.goals = goals(rounds)
    report.end()


# --- what is measured ----------------------------------------------------------------------


def _cases(cleanup: ExitStack, folder: Path, seconds: float, *, every: bool) -> Cases:
    primary = cleanup.enter_context(start_primary(folder, durable=False))
    cleanup.enter_context(start_replica(primary, folder))
    ports = servers.free_ports()
    port, bare_port = next(ports), next(ports)
    settings = folder / "headgate.toml"
    text = (SETTINGS + BREACHED).format(port=port, folder=folder, dsn=primary.dsn())
    settings.write_text(text)
    url, bare = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{bare_port}/"
    argv = [sys.executable, "-m", "bench.agent_with_rules", str(settings), str(RULES)]
    agent = cleanup.enter_context(serving(argv, url + PATH))
    uvicorn = [sys.executable, "-m", "uvicorn", "bench.bare_asgi:app", "--log-level", "warning"]
    uvicorn += ["--no-access-log", "--loop", "uvloop", "--http", "httptools", "--lifespan", "off"]
    bare_pid = cleanup.enter_context(serving([*uvicorn, "--port", str(bare_port)], bare))
    s = seconds

    def load(pid: int, target: str, **more: object) -> Callable[[], Run]:
        run = partial(wrk, target, connections=32, seconds=s, **more)  # type: ignore[arg-type]
        return lambda: with_cpu(pid, run, s)

    new = _churn(folder / "churn.lua", "/check/job", f":{CATEGORY}/postgres/main")
    cases = {
        BARE: load(bare_pid, bare),
        SAME: load(agent, url + PATH),
        f"{SAME} ({AA})": load(agent, url + PATH),
        NEW: load(agent, url, script=new),
        REJECTED: load(agent, f"{url}/check/{APP}/postgres/behind", status=429),
    }
    if not every:
        return cases
    native = f"{url}/v1/check?app={APP}&database=main"
    bare_socket, agent_socket = f"{folder}/bare.sock", f"{folder}/agent.sock"
    cleanup.enter_context(serving([*uvicorn, "--uds", bare_socket]))
    program = build_heads(folder)
    return cases | {
        "native check, GET, 32": load(agent, native),
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


def _churn(file: Path, before: str, after: str) -> Path:
    file.write_text(CHURN.format(before=before, after=after))
    return file


# --- freno ---------------------------------------------------------------------------------


def _freno_cases(cleanup: ExitStack, program: Path, folder: Path, seconds: float) -> Cases:
    server = cleanup.enter_context(mariadb.start_primary(folder))
    pid, url = cleanup.enter_context(freno(program, folder, server.port))
    new = _churn(folder / "churn-freno.lua", "/check/job", f":{CATEGORY}/mysql/main")
    told = {
        SAME: partial(wrk, f"{url}/check/{APP}/mysql/main"),
        NEW: partial(wrk, url, script=new),
        REJECTED: partial(wrk, f"{url}/check/{APP}/mysql/behind", status=429),
    }

    def measured(run: Callable[..., Run]) -> Callable[[], Run]:
        return lambda: with_cpu(pid, partial(run, connections=32, seconds=seconds), seconds)

    return {FRENO + name: measured(run) for name, run in told.items()}


@contextmanager
def freno(program: Path, folder: Path, mysql_port: int) -> Iterator[tuple[int, str]]:
    """With two clusters of one server: `main` is healthy, `behind` breaches its threshold."""
    ports = servers.free_ports()
    port, raft = next(ports), next(ports)
    data = folder / "freno"
    data.mkdir()
    hosts = {"StaticHostsSettings": {"Hosts": [f"127.0.0.1:{mysql_port}"]}}
    clusters = {
        "main": {"ThrottleThreshold": 5.0, **hosts},
        "behind": {"ThrottleThreshold": 0.1, **hosts},
    }
    mysql = {
        "User": mariadb.USER,
        "MetricQuery": "select 1.5",
        "Port": mysql_port,
        "Clusters": clusters,
    }
    config = {
        "ListenPort": port,
        "RaftBind": f"127.0.0.1:{raft}",
        "RaftDataDir": str(data),
        "DefaultRaftPort": raft,
        "RaftNodes": [f"127.0.0.1:{raft}"],
        "Stores": {"MySQL": mysql},
    }
    file = data / "freno.json"
    file.write_text(json.dumps(config))
    argv = [str(program), "--config", str(file), "--http", "--quiet", "--force-leadership"]
    url = f"http://127.0.0.1:{port}"
    with serving(argv, f"{url}/lb-check") as pid:
        for cluster, status in (("main", 200), ("behind", 429)):
            _until(f"{url}/check/{APP}/mysql/{cluster}", status)
        yield pid, url


def _until(url: str, status: int) -> None:
    servers.wait_until(lambda: _status(url) == status, what=f"{url}: {status}", within_s=30.0)


def _status(url: str) -> int:
    try:
        return int(urllib.request.urlopen(url, timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code


# --- what it comes to ----------------------------------------------------------------------


def _row(name: str, rounds: Rounds) -> tuple[str, ...]:
    runs, base = rounds[name], rounds.get(_yardstick(name), rounds[BARE])
    low, rate, high = quartiles(_rates(runs))
    least, ratio, most = quartiles([a / b for a, b in zip(_rates(runs), _rates(base), strict=True)])
    p99 = [r.p99_ms for r in runs if r.p99_ms is not None]
    cpu = _cpu_us(runs)
    return (
        name,
        f"{rate:,.0f} ({low:,.0f}–{high:,.0f})",
        f"{ratio:.2f} ({least:.2f}–{most:.2f})",
        f"{median(p99):.1f}" if p99 else "",
        f"{median(cpu):.1f}" if cpu else "",
    )


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run.requests_per_s for run in runs]


def _cpu_us(runs: Sequence[Run]) -> list[float]:
    return [run.cpu_us_per_request for run in runs if run.cpu_us_per_request is not None]


def _yardstick(name: str) -> str:
    method = "HEAD" if "HEAD" in name else "GET"
    return f"bare ASGI, {method}, 32" + (", Unix socket" if "Unix" in name else "")


TO_FRENO = {
    "check over HTTP, the same request: checks/s / freno's": (SAME, 3.0),
    "check over HTTP, no request like another: checks/s / freno's": (NEW, 1.5),
    "rejection over HTTP, one breach: checks/s / freno's": (REJECTED, 2.0),
}


def goals(rounds: Rounds) -> list[Goal]:
    same, again = _rates(rounds[SAME]), _rates(rounds[f"{SAME} ({AA})"])
    p99 = [run.p99_ms for run in rounds[SAME] if run.p99_ms is not None]
    found = [ratio_goal(f"check over HTTP, the same request: {AA}", again, same, None)]
    for work, (case, least) in TO_FRENO.items():
        theirs = rounds.get(FRENO + case)
        if theirs is None:
            found.append(no_peer(work, least, "freno", unit="×"))
        else:
            found.append(ratio_goal(work, _rates(rounds[case]), _rates(theirs), least))
            # The load generator takes no part in it, and other work on the machine little.
            cpu = work.replace("checks/s / freno's", "CPU a check, freno's / ours")
            found.append(ratio_goal(cpu, _cpu_us(theirs), _cpu_us(rounds[case]), None))
    low, middle, high = quartiles(p99)
    work = "check over HTTP, the same request, 32 connections: p99"
    return [*found, Goal(work, middle, 3.0, unit="ms", spread=(low, high))]


if __name__ == "__main__":
    main()
