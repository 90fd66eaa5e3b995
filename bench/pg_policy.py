"""How soon a new policy holds on a server that is drowning: no CPU left, no connection left.

.venv/bin/python -m bench.pg_policy [--trials 3] [--quick] [--json PATH] [--major 18]

94 connections work without a pause, the rest of max_connections = 100 is in use, too. Then a
policy is published that blocks their statements, by file or by configuration parameter. Each
statement tells when the server began it; those that ran began under the old policy. Times are
from the moment in which the file is renamed into its place, or the server is told to read its
settings; what is done until then, beside that load, is *made*.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg
from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Session, Workbench
from bench.pg_load import Load, Seen
from bench.pg_policies import Document
from bench.report import Chosen, Goal, Report, chosen_of, options, say
from headgate.budgets.compiled import compile_policy, encoded
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.directory import POLICY_FILE, opened

BUSY, MAX_CONNECTIONS = 94, 100
STATEMENT = (
    "SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, sum(abalance)"
    " FROM pgbench_accounts WHERE aid <= 20000"
)
BY_FILE, BY_PARAMETER = "file", "configuration parameter"
SETTING = "pg_headgate.policy"
COUNTS = {BY_FILE: (1, 100, 1_000, 10_000), BY_PARAMETER: (1, 100, 1_000)}
WARM_S, WATCHED_S = 2.0, 3.0
LATEST_START_MS = 100.0


@dataclass(slots=True)
class Outcome:
    """Milliseconds after publication, of each trial."""

    bytes: int = 0
    made_ms: list[float] = field(default_factory=list)
    last_start_ms: list[float] = field(default_factory=list)
    half_ms: list[float] = field(default_factory=list)
    all_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Channel:
    """A way to publish: what is made beforehand, what is done at the moment itself, and how it is
    taken back."""

    make: Callable[[Document], bytes]
    tell: Callable[[ExtendedServer, bytes], float]
    """Returns when it was published: Unix time."""
    lifted: Callable[[], bytes]


def compiled(document: Document) -> bytes:
    # A version above all that this run has given: the clock's.
    return compile_policy(parse_policy(document), time.time_ns() // 1000)


def put_file(server: ExtendedServer, body: bytes) -> float:
    with opened(server.traffic_dir) as folder:
        folder.replace(POLICY_FILE, body)
    # Set by the rename: we ourselves may have come late to any clock.
    return (server.traffic_dir / POLICY_FILE).stat().st_ctime


def as_text(document: Document) -> bytes:
    return encoded(compile_policy(parse_policy(document), 0)).encode()


def set_parameter(server: ExtendedServer, body: bytes) -> float:
    """As ALTER SYSTEM would, but without a connection, for there is none left."""
    path = server.data_dir / "postgresql.auto.conf"
    path.write_text(f"{SETTING} = '{body.decode()}'\n")
    published_s = time.time()
    os.kill(server.pid, signal.SIGHUP)
    return published_s


CHANNELS: Mapping[str, Channel] = {
    BY_FILE: Channel(compiled, put_file, lambda: compiled({"budgets": []})),
    BY_PARAMETER: Channel(as_text, set_parameter, lambda: b""),
}


def trial(
    bench: Workbench, server: ExtendedServer, channel: Channel, rules: int, out: Outcome
) -> None:
    document = pg_policies.stopping("busy", rules)
    busy = Load((STATEMENT,), 120, BUSY, "busy", waits=True, nice=-10)
    with ExitStack() as cleanup:
        running = cleanup.enter_context(
            bench.program.running(busy, pg_kit.socket_of(server), trace="policy")
        )
        for _ in range(MAX_CONNECTIONS - BUSY):
            cleanup.enter_context(pg_kit.session(server))
        assert_full(server)
        running.begin()
        time.sleep(WARM_S)
        began_s = time.time()
        body = channel.make(document)
        published_s = channel.tell(server, body)
        out.made_ms.append((published_s - began_s) * 1000)
        out.bytes = len(body)
        time.sleep(WATCHED_S)
        running.end()
        judge(running.seen(), published_s, out)


def assert_full(server: ExtendedServer) -> None:
    try:
        pg_kit.session(server).close()
    except psycopg.OperationalError:
        return
    raise AssertionError("there was a connection left")


def judge(seen: list[Seen], published_s: float, out: Outcome) -> None:
    starts_ms = [(one.values[0] / 1e6 - published_s) * 1000 for one in seen if one.outcome == "ok"]
    first: dict[int, float] = {}
    for one in seen:
        if one.outcome == "blocked":
            first.setdefault(one.connection, (one.done_s - published_s) * 1000)
    assert len(first) == BUSY, f"{BUSY - len(first)} connections never came under the new policy"
    out.last_start_ms.append(max(starts_ms))
    out.half_ms.append(statistics.median(first.values()))
    out.all_ms.append(max(first.values()))


def lift(server: ExtendedServer, channel: Channel) -> None:
    """Returns once it holds."""
    channel.tell(server, channel.lifted())
    with pg_kit.patient_session(server, "busy") as asking:
        pg_kit.wait_until(lambda: admitted(asking), "the policy lifted")


def admitted(asking: Session) -> bool:
    try:
        asking.execute("SELECT sum(abalance) FROM pgbench_accounts WHERE aid < 10")
    except psycopg.errors.InsufficientResources:
        return False
    return True


def measured(chosen: Chosen, trials: int) -> dict[tuple[str, int], Outcome]:
    cases = [(way, count) for way, counts in COUNTS.items() for count in counts]
    found = {case: Outcome() for case in (cases[::3] if chosen.quick else cases)}
    with pg_kit.workbench(chosen) as bench:
        # One each: where a policy has been published by file, the parameter's is not in force.
        servers = {way: start(bench) for way in CHANNELS}
        for number in range(trials):
            for (way, count), outcome in found.items():
                trial(bench, servers[way], CHANNELS[way], count, outcome)
                lift(servers[way], CHANNELS[way])
                last_ms = outcome.last_start_ms[-1]
                say(f"trial {number + 1}: {way}, {count:,} rules: {last_ms:.1f} ms")
    return found


def start(bench: Workbench) -> ExtendedServer:
    server = bench.server(settings={"max_connections": str(MAX_CONNECTIONS)})
    with pg_kit.session(server) as admin:
        pg_kit.make_roles(admin, "busy")
    return server


def row(way: str, count: int, outcome: Outcome) -> list[str]:
    def told(values: list[float]) -> str:
        return f"{statistics.median(values):.0f} ({max(values):.0f})"

    times = (outcome.made_ms, outcome.last_start_ms, outcome.half_ms, outcome.all_ms)
    return [way, f"{count:,}", f"{outcome.bytes / 1024:.1f}", *(told(values) for values in times)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=3)
    given = parser.parse_args()
    chosen = chosen_of(given)
    found = measured(chosen, 1 if chosen.quick else given.trials)
    report = Report("pg_policy", chosen)
    head = ("published by", "rules", "KiB", "made, ms", "last start under the old, ms",
            "half of the connections, ms", "all, ms")  # fmt: skip
    title = f"{BUSY} busy connections, none free: median (worst) of trials"
    report.show(title, head, [row(*case, outcome) for case, outcome in found.items()])
    report.goals = [
        Goal(f"{way}, {count:,} rules: last start, ms", max(outcome.last_start_ms), LATEST_START_MS)
        for (way, count), outcome in found.items()
        if way == BY_FILE
    ]
    report.end()


if __name__ == "__main__":
    main()
