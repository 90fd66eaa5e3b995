"""Every bench in its short form, one after the other, and one table: work, goal, figure, outcome.

    .venv/bin/python -m bench.all                            which there are, and how long they take
    .venv/bin/python -m bench.all --goals [--only checks,local] [--docs FILE]
                                  [--freno PATH] [--pgbouncer PATH] [--haproxy PATH]

Each is a process with a deadline, and hands over its goals as JSON (bench/report.py). The tables of
docs/performance.md stand between markers and are written again. A peer that is not on this machine
is a row `no peer`. The exit code is 1 where a bench failed to run; a goal that is missed is a row.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fixtures import peers

from bench.report import GOALS, Goal, say, table

DOCS = Path(__file__).parents[1] / "docs" / "performance.md"
PROXIES = ("pgbouncer", "haproxy")
PEERS = ("freno", *PROXIES)
MOST_S = 20 * 60
"""All of them together, on a machine that has nothing else to do."""
DEADLINES = 6.0
"""How many times its usual time a bench may take: the machine may be busy."""
LEAST_S = 60.0
ENDING_S = 20.0


@dataclass(frozen=True, slots=True)
class Bench:
    name: str
    short: tuple[str, ...]
    """Options of its short form."""
    about_s: float
    """How long that takes on an idle machine."""
    peers: tuple[str, ...] = ()
    """Programs that it can be given a path of."""
    needs: tuple[str, ...] = ()
    """Peers without which nothing of it can be measured."""
    module: str = ""

    @property
    def deadline_s(self) -> float:
        return max(LEAST_S, self.about_s * DEADLINES)

    def command(self, paths: Mapping[str, Path], figures: Path) -> list[str]:
        given = [word for peer in self.peers if peer in paths for word in _path(peer, paths)]
        module = self.module or f"bench.{self.name}"
        return [sys.executable, "-m", module, *self.short, *given, "--json", str(figures)]


def _path(peer: str, paths: Mapping[str, Path]) -> tuple[str, str]:
    return f"--{peer}", str(paths[peer])


LONG_RUN = "bench.pg_long_run"
BENCHES = (
    Bench("checks", ("--rounds", "5", "--seconds", "1"), 60, ("freno",)),
    Bench("local", ("--rounds", "3", "--clients", "20", "--pushes", "5"), 60),
    Bench("rest", ("--seconds", "10"), 40),
    Bench("growth", ("--rounds", "20"), 60),
    Bench("bounds", ("--rounds", "2"), 15),
    Bench("reaction", ("--trials", "10"), 30),
    Bench("shard", ("--trials", "20", "--members", "20", "--seconds", "5"), 60),
    Bench("herd", ("--rounds", "1", "--seconds", "20"), 100),
    Bench("pg_overhead", ("--rounds", "48"), 90),
    Bench(
        "pg_instructions",
        ("--blocks", "1", "--only", "none applies", "--only", "10,000 rules, 3"),
        70,
        (),
        ("valgrind",),
    ),
    Bench("pg_decision", (), 20),
    Bench("pg_policy", ("--trials", "1"), 45),
    Bench("pg_relief", ("--rounds", "3", "--seconds", "1"), 90),
    Bench("pg_share", ("--only", "share", "--seconds", "4"), 50, module=LONG_RUN),
    Bench("pg_prediction", ("--only", "prediction", "--seconds", "4"), 90, module=LONG_RUN),
    Bench("pg_tiers", ("--only", "overlap,tiers", "--seconds", "8"), 45, module=LONG_RUN),
    Bench("pg_soak", ("--seconds", "20"), 40),
    Bench("proxy", ("--rounds", "12", "--slice-ms", "100"), 90, PROXIES, PROXIES),
    Bench("proxy_bulk", ("--megabytes", "64"), 40, PROXIES, PROXIES),
    Bench("proxy_idle", ("--connections", "1000"), 30, PROXIES, PROXIES),
    Bench("proxy_mysql", ("--rounds", "4", "--seconds", "1"), 60, ("haproxy",), ("haproxy",)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    goals: tuple[Goal, ...] = ()
    tables: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    failure: str = ""
    """Why it did not run to its end; then there may be no goals."""

    def rows(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = [(self.name, *goal.row()) for goal in self.goals]
        if self.failure:
            found.append((self.name, "–", "–", "–", f"**failed**: {self.failure}"))
        return found


# --- running one ---------------------------------------------------------------------------


def outcome_of(bench: Bench, paths: Mapping[str, Path]) -> Outcome:
    for peer in bench.needs:
        if peer not in paths and peers.find(peer) is None:
            return Outcome(bench.name, (Goal("all of it", None, None, missing=f"no peer: {peer}"),))
    with tempfile.TemporaryDirectory() as folder:
        figures, log = Path(folder) / "figures.json", Path(folder) / "log"
        failure = _ended(bench.command(paths, figures), log, bench.deadline_s)
        if not figures.exists():
            return Outcome(bench.name, failure=failure or "it wrote no figures")
        document = json.loads(figures.read_text())
    goals = tuple(_goal(one) for one in document["goals"])
    return Outcome(bench.name, goals, document["tables"], failure)


def _ended(command: Sequence[str], log: Path, within_s: float) -> str:
    """Empty, or why not. What it started ends with it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"not done within {within_s:g} s"
    # A bench may use its exit code for a bound that is broken: then it has written its figures.
    return "" if code == 0 else _last_line(log) or f"exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGINT)  # As Ctrl-C does: it takes down its servers.
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip().replace("|", "/") if lines else ""


def _goal(one: Mapping[str, object]) -> Goal:
    told = {name: value for name, value in one.items() if name != "held"}
    if isinstance(told["spread"], list):
        told["spread"] = tuple(told["spread"])
    return Goal(**told)  # type: ignore[arg-type]


# --- the tables ----------------------------------------------------------------------------

BEGIN, END = "<!-- bench: {} -->", "<!-- bench: end -->"
HEAD = ("bench", *GOALS)


def sections(outcomes: Iterable[Outcome], measured: str) -> dict[str, str]:
    """What is to stand between the markers, by their names."""
    found = {}
    rows = []
    for outcome in outcomes:
        rows += outcome.rows()
        shown = [
            table(tuple(lines[0]), [tuple(line.values()) for line in lines])
            for title, lines in outcome.tables.items()
            if title != "Goals" and lines
        ]
        if shown and not outcome.failure:
            found[outcome.name] = "\n\n".join([measured, *shown])
    found["goals"] = f"{measured}\n\n{table(HEAD, rows)}"
    return found


def filled(text: str, by_name: Mapping[str, str]) -> str:
    """With new text between its markers. A section without a marker is shown by nobody."""

    def between(found: re.Match[str]) -> str:
        section = by_name.get(found[1])
        if section is None:
            return found[0]
        return f"{BEGIN.format(found[1])}\n\n{section}\n\n{END}"

    return re.sub(rf"<!-- bench: (\w+) -->.*?{END}", between, text, flags=re.S)


def circumstances(load: float, cpus: int) -> str:
    beside = ", beside other work" if load > cpus / 2 else ""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"Short form of {day}, {cpus} CPUs, load {load:.1f} at the beginning{beside}."


# --- all of them ---------------------------------------------------------------------------


def main() -> int:
    given = _options().parse_args()
    chosen = [bench for bench in BENCHES if not given.only or bench.name in given.only]
    if not given.goals:
        rows = [(b.name, " ".join(b.short), f"{b.about_s:g} s", ", ".join(b.peers)) for b in chosen]
        print(table(("bench", "short form", "takes about", "peers"), rows))
        return 0
    paths = {peer: path for peer in PEERS if (path := getattr(given, peer)) is not None}
    measured = circumstances(os.getloadavg()[0], os.cpu_count() or 1)
    outcomes = []
    for number, bench in enumerate(chosen, 1):
        say(f"{number} of {len(chosen)}: {bench.name}, about {bench.about_s:g} s")
        outcomes.append(outcome_of(bench, paths))
        for row in outcomes[-1].rows():
            say("  " + " · ".join(row[1:]))
    by_name = sections(outcomes, measured)
    print(by_name["goals"])
    if given.only:
        del by_name["goals"]  # That table is of one run of all of them.
    given.docs.write_text(filled(given.docs.read_text(), by_name))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--goals", action="store_true", help="run them")
    parser.add_argument("--only", type=_names, default=(), help="such as checks,local")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the file whose tables are written")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, help="a program built elsewhere")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names, known = tuple(text.split(",")), [bench.name for bench in BENCHES]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise argparse.ArgumentTypeError(f"no bench {wrong[0]!r}: {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
