"""Deciding in process: what a check costs, beside the same over HTTP, and how fast rules arrive.

    .venv/bin/python -m bench.local [--rounds 5] [--clients 100] [--pushes 40]

The agent is a process of its own on loopback; what it measures is the host, so no database is
needed. Costs are medians of batches, interleaved in one run. A push is timed from the moment in
which the agent's answer to setting the rule was there, until each client, with a stream of its
own, first rejected because of it.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import headgate
from bench.load import serving
from bench.report import Goal, Report, chosen_of, options, quartiles, ratio_goal
from headgate.demo.servers import free_ports

APP = "d666bbfc_169e_11ef_b0b3_0a43f95f28a3:vcopier:vreplication:online-ddl"
RULES = 1000
CALLS, HTTP_CALLS, BATCHES = 1000, 20, 20
PROCESSES = 4
IDLE_S = 10.0
LOOPBACK = "HTTP over loopback"
Taken = Mapping[str, Sequence[float]]
"""µs of each case, in each round."""
SETTINGS = """
[agent]
listen = "127.0.0.1:{port}"
socket = "{folder}/agent.sock"
state = "{folder}/state.db"
log = "json"
[databases.main]
engine = "postgres"
dsn = "host=/nowhere"
idle_after_s = 0
hibernate_after_s = 0
[databases.main.metrics.loadavg]
threshold = 100000
interval_s = 0.25
[databases.main.metrics.disk_used]
threshold = "100%"
interval_s = 0.5
options = {{ path = "/" }}
"""
ONE_MORE = """
[databases.main.metrics.custom_{number}]
command = ["/bin/echo", "1"]
threshold = 10
interval_s = 1
max_age_s = 5
"""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--pushes", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        agent = cleanup.enter_context(started(Path(name)))
        idle_alone_s = agent.cpu_a_second()
        report = Report("local", chosen_of(given))
        costs(agent, given.rounds, report)
        with workers(agent, given.clients) as listening:
            idle_s = agent.cpu_a_second()
            pushes(agent, listening, given.pushes, report)
        upkeep(agent, given.clients, idle_alone_s, idle_s, report)
        report.end()


# --- the agent -----------------------------------------------------------------------------


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self._path))


class Agent:
    def __init__(self, port: int, path: Path, pid: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.path = path
        self.pid = pid
        self._http = _Unix(path)

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        payload = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._http.request(method, target, payload, headers)
        reply = self._http.getresponse()
        document = json.loads(reply.read())
        assert reply.status < 300, document
        return document

    def set_rule(self, target: str, **rule: Any) -> str:
        rule = {"kind": "ratio", **rule}
        body = {"target": target, "for": "1h", "reason": "nightly load", **rule}
        return str(self.ask("POST", "/v1/rules", body)["id"])

    def lift(self, rule_id: str) -> None:
        self.ask("DELETE", f"/v1/rules/{rule_id}")

    def cpu_a_second(self) -> float:
        before = self._cpu_s()
        time.sleep(IDLE_S)
        return (self._cpu_s() - before) / IDLE_S

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def started(folder: Path) -> Iterator[Agent]:
    port, settings = next(free_ports()), folder / "headgate.toml"
    more = "".join(ONE_MORE.format(number=n) for n in range(3))
    settings.write_text(SETTINGS.format(port=port, folder=folder) + more)
    argv = [sys.executable, "-m", "headgate", "agent", "--config", str(settings)]
    with serving(argv, f"http://127.0.0.1:{port}/healthz") as pid:
        yield Agent(port, folder / "agent.sock", pid)


# --- what a check costs --------------------------------------------------------------------


def median_us(call: Callable[[], object], calls: int) -> list[float]:
    batches = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        batches.append((time.perf_counter() - start) / calls * 1e6)
    return batches


def costs(agent: Agent, rounds: int, report: Report) -> None:
    """Each setting in turn, all cases in each round."""
    rows: list[tuple[str, ...]] = []
    taken: dict[str, Taken] = {}
    with (
        headgate.Client(APP, database="main", url=agent.url, local=True) as local,
        headgate.Client(APP, database="main", url=agent.url) as tcp,
        headgate.Client(APP, database="main", url=f"unix://{agent.path}") as unix,
    ):
        gates = {
            "local": local,
            LOOPBACK: tcp,
            "HTTP over the Unix socket": unix,
        }
        for setting in _settings(agent):
            _until_local(local)
            reads = setting.startswith("a read check")
            cases: dict[str, Callable[[], object]] = {
                name: partial(gate.check_read, 1e6, "loadavg") if reads else gate.check
                for name, gate in gates.items()
            }
            if setting == "nothing applies":
                cases["local, wait()"] = local.wait
            taken[setting] = _timed(cases, rounds)
            rows += _compared(setting, taken[setting])
    head = (
        "rules",
        "case",
        "µs each, median of rounds (range)",
        "× cheaper than HTTP over loopback",
    )
    report.show("A check", head, rows)
    report.goals += goals(taken)


def goals(taken: Mapping[str, Taken]) -> list[Goal]:
    """Of all settings, the worst for us."""
    found = []
    for outcome, most_us in (("admitted", 0.3), ("rejected", 1.5)):
        mine = [
            of
            for setting, of in taken.items()
            if ("rejected" in setting) is (outcome == "rejected")
        ]
        us = [quartiles(of["local"]) for of in mine]
        low, middle, high = max(us, key=lambda quartile: quartile[1])
        work = f"local check, {outcome}"
        found.append(Goal(work, middle, most_us, unit="µs", spread=(low, high)))
        ratios = [
            ratio_goal(f"{work}: loopback / local", of[LOOPBACK], of["local"], 100) for of in mine
        ]
        found.append(min(ratios, key=lambda goal: goal.figure or 0.0))
    return found


def _settings(agent: Agent) -> Iterator[str]:
    yield "nothing applies"
    for number in range(RULES):
        agent.set_rule(f"token{number}", ratio=0.5)
    yield f"{RULES:,} rules, none for this client"
    rule = agent.set_rule("online-ddl", ratio=0.0001)
    yield f"{RULES:,} rules, dice for this client"
    agent.lift(rule)
    yield from _own_rules(agent)
    yield "a read check, admitted"


OWN_RULES: dict[str, dict[str, Any]] = {
    "thresholds of its own": {"kind": "thresholds", "thresholds": {"loadavg": 90_000}},
    "metrics of its own": {"kind": "metrics", "metrics": ["disk_used", "loadavg"]},
    "exempt": {"kind": "exempt", "justification": "incident"},
    "dice that reject most: 9 of 10 rejected": {"ratio": 0.9},
    "thresholds that it breaches: rejected": {
        "kind": "thresholds",
        "thresholds": {"disk_used": 0.000001},
    },
    "one holds this client: rejected": {"kind": "hold"},
}


def _own_rules(agent: Agent) -> Iterator[str]:
    for name, given in OWN_RULES.items():
        rule = agent.set_rule("online-ddl", **given)
        yield f"{RULES:,} rules, {name}"
        agent.lift(rule)


def _until_local(gate: headgate.Client) -> None:
    ends_s = time.monotonic() + 10
    time.sleep(0.5)  # The rules that were just set are on their way.
    while gate.check().decided != "local":
        assert time.monotonic() < ends_s, "no snapshot came"
        time.sleep(0.01)


def _timed(cases: Mapping[str, Callable[[], object]], rounds: int) -> Taken:
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            calls = CALLS if name.startswith("local") else HTTP_CALLS
            taken[name].append(statistics.median(median_us(call, calls)))
    return taken


def _compared(setting: str, taken: Taken) -> list[tuple[str, ...]]:
    yardstick = taken[LOOPBACK]
    return [
        (
            setting,
            name,
            f"{statistics.median(us):.2f} ({min(us):.2f}–{max(us):.2f})",
            f"{statistics.median(b / a for a, b in zip(us, yardstick, strict=True)):,.0f}",
        )
        for name, us in taken.items()
    ]


# --- how fast rules arrive -----------------------------------------------------------------


class Worker:
    """A process with its share of the clients."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._in: IO[str] = _piped(process.stdin)
        self._out: IO[str] = _piped(process.stdout)

    def tell(self, word: str) -> None:
        self._in.write(word + "\n")
        self._in.flush()

    def hear(self) -> list[float]:
        heard: list[float] = json.loads(self._out.readline())
        return heard


def _piped(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextmanager
def workers(agent: Agent, clients: int) -> Iterator[list[Worker]]:
    share = clients // PROCESSES
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.local_clients", agent.url, str(share)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    made = [Worker(process) for process in processes]
    try:
        for worker in made:
            worker.hear()
        yield made
    finally:
        for process in processes:
            process.communicate("end\n", timeout=20)


def pushes(agent: Agent, listening: list[Worker], times: int, report: Report) -> None:
    latencies_ms: list[float] = []
    for _ in range(times):
        for worker in listening:
            worker.tell("until rejected")
        rule = agent.set_rule("bench", kind="hold")
        set_s = time.monotonic()
        for worker in listening:
            latencies_ms += [(seen_s - set_s) * 1000 for seen_s in worker.hear()]
        for worker in listening:
            worker.tell("until admitted")
        agent.lift(rule)
        for worker in listening:
            worker.hear()
    ranked = sorted(latencies_ms)
    p99 = ranked[int(len(ranked) * 0.99)]
    row = (
        f"{len(ranked):,}",
        f"{statistics.median(ranked):.0f}",
        f"{p99:.0f}",
        f"{ranked[-1]:.0f}",
    )
    report.show("A new rule", ("rules obeyed", "median ms", "p99 ms", "worst ms"), [row])


# --- what it costs the agent ---------------------------------------------------------------


def upkeep(agent: Agent, clients: int, alone: float, listening: float, report: Report) -> None:
    whole, a_second = _streamed(agent)
    rows = [
        ("agent's CPU, nobody listens", f"{alone:.1%} of a core"),
        (f"agent's CPU, {clients} idle listeners", f"{listening:.1%} of a core"),
        (f"first snapshot, 5 metrics and {RULES:,} rules", f"{whole / 1024:.0f} KiB"),
        ("then, to each listener", f"{a_second / 1024:.1f} KiB/s"),
    ]
    report.show("Upkeep", ("what", "figure"), rows)


def _streamed(agent: Agent) -> tuple[int, float]:
    """Bytes of the first snapshot, and of each second after it."""
    with socket.create_connection(("127.0.0.1", int(agent.url.rpartition(":")[2]))) as sock:
        sock.sendall(b"GET /v1/snapshot?database=main HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sock.settimeout(0.1)
        first = b""
        while not first.endswith(b"\n\n\r\n"):
            first += sock.recv(1 << 20)
        more, ends_s = 0, time.monotonic() + 5
        while time.monotonic() < ends_s:
            try:
                more += len(sock.recv(1 << 20))
            except TimeoutError:
                continue
    return len(first), more / 5


if __name__ == "__main__":
    main()
