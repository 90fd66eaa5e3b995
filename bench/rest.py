"""What it costs when nothing happens: an agent without checks, imports, `--help`.

.venv/bin/python -m bench.rest [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.checks import SETTINGS
from bench.load import cpu_s, median, resident_mb, serving, table
from headgate.demo import servers
from headgate.demo.postgres import start_primary, start_replica


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    seconds = parser.parse_args().seconds
    cpu_share, mb = at_rest(seconds)
    bare = wall_ms("pass")
    rows = [
        ("agent without checks, five metrics: share of a core", f"{cpu_share:.2%}"),
        ("agent without checks: resident", f"{mb:.0f} MB"),
        ("`import headgate` beyond bare Python", f"{wall_ms('import headgate') - bare:.0f} ms"),
        (
            "`from headgate import Client` beyond bare Python",
            f"{wall_ms('from headgate import Client') - bare:.0f} ms",
        ),
        (
            "`from headgate import AsyncClient` beyond bare Python",
            f"{wall_ms('from headgate import AsyncClient') - bare:.0f} ms",
        ),
        ("`headgate --help`, whole command", f"{command_ms('-m', 'headgate', '--help'):.0f} ms"),
    ]
    print(table(("what", "figure"), rows))


def at_rest(seconds: float) -> tuple[float, float]:
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
        pid = cleanup.enter_context(serving(argv, f"http://127.0.0.1:{port}/healthz"))
        time.sleep(2)
        before = cpu_s(pid)
        time.sleep(seconds)
        return (cpu_s(pid) - before) / seconds, resident_mb(pid)


def wall_ms(code: str) -> float:
    return command_ms("-c", code)


def command_ms(*argv: str) -> float:
    """Median of fifteen runs, after one to warm the file cache and to write bytecode.

    An installed package has bytecode; where writing it is switched off, an edited tree is
    compiled anew by each run, and that would be measured.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(16):
        start = time.perf_counter()
        subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL, env=env)
        times.append((time.perf_counter() - start) * 1000)
    return median(times[1:])


if __name__ == "__main__":
    main()
