"""What it costs that there are more: rules, budgets, clients, replicas, connections.

.venv/bin/python -m bench.growth [--rounds 60] [--seconds 4] [--json PATH]

One table: what grows, from how many to how many, and the factor by which its cost grows. Both ends
are measured in turns. Rules and clients are checks in process, budgets the C core's decision,
replicas the primary's agent while a client checks, connections a check over HTTP by 32 busy ones
while the others are open and silent.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from bench import pg_decision, shard
from bench.decide import IDENTITY, board, case, rules
from bench.load import need, serving, with_cpu, wrk
from bench.pg_policies import ROOMY, Document, budget
from bench.report import Goal, Report, chosen_of, median, options, quartiles, say
from headgate.base.clock import Dice, SystemClock
from headgate.base.names import parse_identity
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.model import Check, Idleness
from headgate.demo import servers
from headgate.history.recorder import Recorder

CALLS = 10_000
"""A batch: each of the clients checks once, at least."""
HEAD = ("what grows", "from", "to", "cost at first", "cost then", "factor (quartiles)")
SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
socket = "{folder}/agent.sock"
state = "{folder}/state.db"
max_connections = 16000
idle_timeout_s = 600
[databases.main]
engine = "postgres"
dsn = "host=/nowhere"
[databases.main.metrics.loadavg]
threshold = 100000
"""


class Growth(NamedTuple):
    what: str
    few: int
    many: int
    unit: str
    at_few: tuple[float, ...]
    at_many: tuple[float, ...]
    goal: float | None
    """The factor that it may cost."""

    @property
    def factors(self) -> tuple[float, float, float]:
        return quartiles([b / a for a, b in zip(self.at_few, self.at_many, strict=True)])

    def row(self) -> tuple[str, ...]:
        low, middle, high = self.factors
        costs = (f"{median(at):.3g} {self.unit}" for at in (self.at_few, self.at_many))
        grown = (f"{self.few:,}", f"{self.many:,}")
        return (self.what, *grown, *costs, f"{middle:.2f} ({low:.2f}–{high:.2f})")

    def as_goal(self) -> Goal:
        low, middle, high = self.factors
        work = f"{self.what}: {self.few:,} → {self.many:,}"
        return Goal(work, middle, self.goal, unit="×", spread=(low, high))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=4)
    given = parser.parse_args()
    need("wrk", "taskset", "cc")
    found = []
    for grow in (_rules, _clients, _budgets):
        found.append(grow(given.rounds))
        say(found[-1].what)
    found += [_replicas(given.seconds), _connections(given.seconds)]
    report = Report("growth", chosen_of(given))
    report.show("What more of it costs", HEAD, [one.row() for one in found])
    report.goals = [one.as_goal() for one in found]
    report.end()


def _in_turns(
    few: Callable[[], object], many: Callable[[], object], rounds: int, calls: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """CPU µs of a call, in each round."""
    taken: tuple[list[float], list[float]] = [], []
    for call in (few, many):  # Warm, and all that is kept is kept.
        for _ in range(calls):
            call()
    for _ in range(rounds):
        for call, of in zip((few, many), taken, strict=True):
            began = time.process_time()
            for _ in range(calls):
                call()
            of.append((time.process_time() - began) / calls * 1e6)
    return tuple(taken[0]), tuple(taken[1])


def _rules(rounds: int) -> Growth:
    health, check = board(0.5).healths["main"], Check(IDENTITY, "main")
    few, many = (case(check, health, rules(count)) for count in (10, 10_000))
    return Growth("rules, a check", 10, 10_000, "µs", *_in_turns(few, many, rounds, 1_000), 1.1)


def _clients(rounds: int) -> Growth:
    few, many = (_checking(count) for count in (10, 10_000))
    return Growth("clients, a check", 10, 10_000, "µs", *_in_turns(few, many, rounds, CALLS), None)


def _checking(clients: int) -> Callable[[], object]:
    clock = SystemClock()
    demands = Demands(clock)
    demands.open("main", Idleness())
    recorder = Recorder(max_clients=clients)
    checker = Checker(
        board(0.5, clock), recorder, demands, clock, Dice().roll, anonymous_may_pass=False
    )
    checker.rules = rules(1_000)
    checks = [Check(parse_identity(f"job{n}:billing:nightly"), "main") for n in range(clients)]
    turns = cycle(checks)
    return lambda: checker.check(next(turns))


def _budgets(rounds: int) -> Growth:
    policies = {str(count): _policy(count) for count in (1, 1_000)}
    runs = [pg_decision.timed(policies, rounds) for _ in range(3)]
    few, many = (tuple([run[name].ns["decide"] for run in runs]) for name in policies)
    return Growth("budgets, a decision in C", 1, 1_000, "ns", few, many, 1.1)


def _policy(count: int) -> Document:
    """One budget is about the session, the others are about other users."""
    others = [budget(f"b{n}", {"username": f"user{n}"}, **ROOMY) for n in range(count - 1)]
    return {"budgets": [budget("own", {"username": pg_decision.WHO.username}, **ROOMY), *others]}


def _replicas(seconds: float) -> Growth:
    shares: Mapping[int, list[float]] = {1: [], 20: []}
    with tempfile.TemporaryDirectory(dir=servers.scratch_parent()) as folder:
        Path(folder).chmod(0o755)
        for count, of in shares.items():
            of.append(shard.cost(Path(folder), count, seconds)[0] * 100)
            say(f"{count} replicas")
    few, many = (tuple(of) for of in shares.values())
    return Growth("replicas, the primary's agent", 1, 20, "% of a core", few, many, None)


def _connections(seconds: float) -> Growth:
    few: list[float] = []
    many: list[float] = []
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(tempfile.TemporaryDirectory())
        port, settings = next(servers.free_ports()), Path(folder, "headgate.toml")
        settings.write_text(SETTINGS.format(port=port, folder=folder))
        argv = [sys.executable, "-m", "headgate", "agent", "--config", str(settings)]
        url = f"http://127.0.0.1:{port}/check/bench/postgres/main"
        pid = cleanup.enter_context(serving(argv, url))
        for _ in range(3):
            for count, of in ((100, few), (10_000, many)):
                with _open(port, count - 32):
                    load = with_cpu(
                        pid, lambda: wrk(url, connections=32, seconds=seconds / 4), seconds / 4
                    )
                assert load.cpu_us_per_request is not None
                of.append(load.cpu_us_per_request)
    what = "connections, a check over HTTP"
    return Growth(what, 100, 10_000, "µs", tuple(few), tuple(many), None)


@contextmanager
def _open(port: int, count: int) -> Iterator[None]:
    """Connections that have checked once, and stay."""
    request = b"GET /check/bench/postgres/main HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ExitStack() as cleanup:
        for _ in range(count):
            one = cleanup.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            one.sendall(request)
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        yield


if __name__ == "__main__":
    main()
