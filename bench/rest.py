"""What it costs when nothing happens: an agent's start and rest, imports, short commands.

.venv/bin/python -m bench.rest [--seconds 30] [--json PATH]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.checks import PATH, SETTINGS
from bench.load import cpu_s, resident_mb, serving
from bench.report import Goal, Report, chosen_of, median, options
from headgate.demo import servers
from headgate.demo.postgres import start_primary, start_replica

RUNS = 15


class Rest(NamedTuple):
    start_s: float
    """From the start of the command to the first answer to a check, whatever it is."""
    start_cpu_s: float
    cpu_share: float
    resident_mb: float
    check_ms: float
    """`headgate check`, the whole command."""
    check_cpu_ms: float


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    report = Report("rest", chosen_of(given))
    agent = at_rest(given.seconds)
    bare = wall_ms("pass")
    rows = [
        ("agent: from its start to its first answer", f"{agent.start_s:.2f} s"),
        ("agent: from its start to its first answer, CPU time", f"{agent.start_cpu_s:.2f} s"),
        ("agent without checks, five metrics: share of a core", f"{agent.cpu_share:.2%}"),
        ("agent without checks: resident", f"{agent.resident_mb:.0f} MB"),
        ("`headgate check`, whole command", f"{agent.check_ms:.0f} ms"),
        ("`headgate check`, CPU time", f"{agent.check_cpu_ms:.0f} ms"),
        ("`headgate --help`, whole command", f"{command_ms('-m', 'headgate', '--help'):.0f} ms"),
        ("bare Python, whole command", f"{bare:.0f} ms"),
        ("`import headgate` beyond bare Python", f"{wall_ms('import headgate') - bare:.0f} ms"),
        (
            "`from headgate import Client` beyond bare Python",
            f"{wall_ms('from headgate import Client') - bare:.0f} ms",
        ),
        (
            "`from headgate import AsyncClient` beyond bare Python",
            f"{wall_ms('from headgate import AsyncClient') - bare:.0f} ms",
        ),
    ]
    report.show("Nobody checks", ("what", "figure"), rows)
    report.goals = [
        Goal("`headgate agent`, start to first answer", agent.start_s, 0.5, unit="s"),
        Goal("agent at rest: resident", agent.resident_mb, 45, unit="MB"),
        Goal("`headgate check`, whole command", agent.check_ms, 80, unit="ms"),
    ]
    report.end()


def at_rest(seconds: float) -> Rest:
    with ExitStack() as cleanup:
        folder = Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(dir=servers.scratch_parent()))
        )
        primary = cleanup.enter_context(start_primary(folder, durable=False))
        cleanup.enter_context(start_replica(primary, folder))
        port = next(servers.free_ports())
        settings = folder / "headgate.toml"
        settings.write_text(SETTINGS.format(port=port, folder=folder, dsn=primary.dsn()))
        argv = [sys.executable, "-m", "headgate", "agent", "--config", str(settings)]
        url = f"http://127.0.0.1:{port}"
        with serving(argv, url + PATH):
            pass  # Once, so that its modules are compiled and its state file is there.
        began_s = time.monotonic()
        pid = cleanup.enter_context(serving(argv, url + PATH))
        start_s, start_cpu_s = time.monotonic() - began_s, cpu_s(pid)
        time.sleep(2)
        before = cpu_s(pid)
        time.sleep(seconds)
        share, resident = (cpu_s(pid) - before) / seconds, resident_mb(pid)
        asked = ("-m", "headgate", "check", "--as", "etl:nightly", "--url", url)
        check_ms = command_ms(*asked)
        return Rest(
            start_s, start_cpu_s, share, resident, check_ms, command_ms(*asked, clock_s=children_s)
        )


def wall_ms(code: str) -> float:
    return command_ms("-c", code)


def children_s() -> float:
    """CPU time of the processes that have ended: it says as much beside other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command_ms(*argv: str, clock_s: Callable[[], float] = time.perf_counter) -> float:
    """Median of fifteen runs, after one to warm the file cache and to write bytecode.

    An installed package has bytecode; where writing it is switched off, an edited tree is
    compiled anew by each run, and that would be measured.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(RUNS + 1):
        start = clock_s()
        subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL, env=env)
        times.append((clock_s() - start) * 1000)
    return median(times[1:])


if __name__ == "__main__":
    main()
