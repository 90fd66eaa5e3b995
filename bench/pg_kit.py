"""What the measurements inside Postgres share: servers of a kit, CPU by process, policies, tables.

    with workbench(chosen) as bench:
        server = bench.server(extended=True)        pgbench's accounts, warm
        bench.publish(server, {"budgets": [...]})   the compiled file, as the agent does it

Servers are of `.cache/postgres/<major>` (scripts/postgres-kits), reached by their Unix socket.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psycopg
from tests.fixtures import pgkits
from tests.fixtures.pgkits import ExtendedServer, Kit

from bench.pg_load import Program, build
from bench.pg_policies import Document
from bench.report import Chosen
from headgate.base.clock import SystemClock
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.meter import RegionMeter
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.readings import BudgetReadings, Published
from headgate.demo import servers
from headgate.demo.postgres import NO_SETTINGS

EXTENSION = "pg_headgate"
ROWS = 100_000
PATIENCE_S = 15.0
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "64MB",
    # They come when they like, and fall on one variant or another.
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
}
ACCOUNTS = f"""
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
INSERT INTO pgbench_accounts SELECT n, 1, 0, '' FROM generate_series(1, {ROWS}) n;
"""
WARM = "SELECT sum(abalance) FROM pgbench_accounts WHERE aid > 0"
Session = psycopg.Connection[tuple[object, ...]]


# --- processes -------------------------------------------------------------------------------


def cpu_ns(pid: int) -> int:
    """Time on a core, of all a process's life; exact to the last time it left the core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def pin(pid: int, cpu: int) -> None:
    os.sched_setaffinity(pid, {cpu})


class Memory(NamedTuple):
    own_kib: int
    """Neither a file's nor shared: what a leak would show in."""
    mappings: int

    def since(self, before: Memory) -> Memory:
        return Memory(self.own_kib - before.own_kib, self.mappings - before.mappings)


def memory_of(pid: int) -> Memory:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (own,) = (line.split()[1] for line in status if line.startswith("RssAnon:"))
    return Memory(int(own), len(Path(f"/proc/{pid}/maps").read_text().splitlines()))


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = 30.0) -> float:
    """How long it took."""
    began = time.monotonic()
    servers.wait_until(is_so, what=what, within_s=within_s)
    return time.monotonic() - began


# --- policies --------------------------------------------------------------------------------


def publish(server: ExtendedServer, document: Document) -> Published:
    """As the agent does it: a compiled file, renamed into its place."""
    sink = FilePolicySink(server.traffic_dir, SystemClock())
    return sink.publish_now(parse_policy(document))


def readings(server: ExtendedServer) -> BudgetReadings:
    """What the server counts, out of its memory, without a connection."""
    return RegionMeter(server.traffic_dir).read_now()[1]


# --- servers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workbench:
    chosen: Chosen
    folder: Path
    program: Program
    _cleanup: ExitStack

    def server(
        self,
        *,
        preload: str = EXTENSION,
        settings: Mapping[str, str] = NO_SETTINGS,
        using: Kit | None = None,
    ) -> ExtendedServer:
        """A server of the kit with pgbench's accounts, warm."""
        major = self.chosen.major
        # The files are the same, but for the extension: hard links.
        made = pgkits.extended_kit if preload == EXTENSION else pgkits.kit
        chosen = SETTINGS | {"shared_preload_libraries": preload} | dict(settings)
        server = self._cleanup.enter_context(
            pgkits.start_extended(self.folder, major, settings=chosen, using=using or made(major))
        )
        with session(server) as opened:
            opened.execute(ACCOUNTS.encode())
            opened.execute("VACUUM (ANALYZE, FREEZE) pgbench_accounts")
            opened.execute("CHECKPOINT")
            opened.execute(WARM.encode())
            if preload:
                opened.execute(f"CREATE EXTENSION {preload}".encode())
        return server


@contextmanager
def workbench(chosen: Chosen) -> Iterator[Workbench]:
    with ExitStack() as cleanup:
        made = tempfile.TemporaryDirectory(prefix="headgate-pg-", dir=servers.scratch_parent())
        folder = Path(cleanup.enter_context(made))
        folder.chmod(0o755)
        yield Workbench(chosen, folder, build(folder), cleanup)


def socket_of(server: ExtendedServer) -> Path:
    return server.socket_dir / f".s.PGSQL.{server.port}"


def session(server: ExtendedServer, user: str = "postgres", application: str = "bench") -> Session:
    return psycopg.connect(
        host=str(server.socket_dir),
        port=server.port,
        user=user,
        dbname="postgres",
        application_name=application,
        autocommit=True,
    )


def patient_session(server: ExtendedServer, user: str) -> Session:
    """When all connections were in use a moment ago."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return session(server, user)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def make_roles(opened: Session, *names: str) -> None:
    """Ordinary ones: superusers pass."""
    for name in names:
        opened.execute(f"CREATE ROLE {name} LOGIN".encode())
        opened.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}".encode())


def backends(opened: Session, user: str) -> list[int]:
    rows = opened.execute("SELECT pid FROM pg_stat_activity WHERE usename = %s", (user,))
    return [int(str(pid)) for (pid,) in rows]
