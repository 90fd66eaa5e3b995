"""What stands in the path of a measurement: PgBouncer, HAProxy, and the proxy under test.

    with postgres_behind() as place:
        place.add_pgbouncer(); place.add_haproxy(); place.add_headgate(HEADGATE, {"threads": 1})
        place.paths                     name, port and process of each, the server's own first

Everything on loopback, in a temporary folder, as an unprivileged user where we are root, and gone
at the end. The peers' programs are those that are given (--pgbouncer PATH, …), those on PATH, or
those that scripts/test unpacked below .cache/peers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from tests.fixtures import mariadb, peers
from tests.fixtures.mariadb import MariaDBServer

from bench import pg_policies
from bench.pg_kit import ACCOUNTS, WARM
from bench.pg_policies import Document
from bench.report import options, say
from headgate.demo import postgres
from headgate.demo.postgres import PostgresServer
from headgate.demo.servers import scratch_parent

HOST = "127.0.0.1"
START_S = 120.0
STOP_S = 10.0
USER = DATABASE = "postgres"
DIRECT, PGBOUNCER, HAPROXY, HEADGATE = "direct", "PgBouncer", "HAProxy", "headgate"
AGAIN = " again"
"""A second one of the same: what its ratio to the first differs from 1 by is noise (A/A)."""
SETTINGS = {"shared_buffers": "64MB", "autovacuum": "off", "max_connections": "400"}
RULES = 1000


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the server."""

    name: str
    port: int
    pid: int = 0

    @property
    def argument(self) -> str:
        return f"{self.name}={HOST}:{self.port}" + (f":{self.pid}" if self.pid else "")


@dataclass(slots=True)
class Place:
    folder: Path
    server_port: int
    stack: ExitStack
    protocol: str = "postgres"
    paths: list[Way] = field(default_factory=list)

    def add_pgbouncer(self, name: str = PGBOUNCER) -> Way:
        port, folder = free_port(), self._folder(name)
        (folder / "users.txt").write_text(f'"{USER}" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={HOST} port={self.server_port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder / 'users.txt'}\npool_mode = session\n"
            "max_client_conn = 6000\ndefault_pool_size = 300\nlog_connections = 0\n"
            "log_disconnections = 0\nstats_period = 3600\nserver_reset_query = DISCARD ALL\n"
            f"pidfile =\nlogfile = {folder / 'log'}\n"
        )
        command = [program("pgbouncer"), str(folder / "pgbouncer.ini")]
        if os.getuid() == 0:
            command[1:1] = ["-u", "nobody"]
            open_to_all(folder)
        return self._started(name, command, port, folder)

    def add_haproxy(self, name: str = HAPROXY) -> Way:
        port, folder = free_port(), self._folder(name)
        (folder / "haproxy.cfg").write_text(
            "global\n  maxconn 6000\n"
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n"
            "  timeout server 1h\n  option tcp-smart-accept\n  option tcp-smart-connect\n"
            f"listen it\n  bind {HOST}:{port}\n  server s {HOST}:{self.server_port}\n"
        )
        command = [program("haproxy"), "-db", "-q", "-f", str(folder / "haproxy.cfg")]
        return self._started(name, command, port, folder)

    def add_headgates(self, threads: str) -> None:
        """One for each number of threads, such as "1,2"."""
        for count in map(int, threads.split(",")):
            name = HEADGATE if count == 1 else f"{HEADGATE}, {count} threads"
            self.add_headgate(name, {"threads": count})

    def add_headgate(
        self, name: str, settings: Mapping[str, object], policy: Document | None = None
    ) -> Way:
        """With a policy of 1,000 rules, two of which concern every statement, if none is given."""
        port, folder = free_port(), self._folder(name)
        state = folder / "state"
        policy_file = folder / "policy.json"
        who = pg_policies.Matching(USER, "pgbench", ("controller", "orders"))
        policy_file.write_text(json.dumps(policy or pg_policies.matching(RULES, who)))
        text = proxy_settings(self, port, state, policy_file, settings)
        (folder / "proxy.toml").write_text(text)
        command = [sys.executable, "-m", "headgate", "proxy", "run", str(folder / "proxy.toml")]
        return self._started(name, command, port, folder)

    def _folder(self, name: str) -> Path:
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        return folder

    def _started(self, name: str, command: list[str], port: int, folder: Path) -> Way:
        say(f"starting {name} on port {port}")
        log = self.stack.enter_context((folder / "out").open("wb"))
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment()
        )
        self.stack.callback(_end, process)
        _wait_for(port, process, folder / "out")
        path = Way(name, port, process.pid)
        self.paths.append(path)
        return path


def proxy_settings(
    place: Place, port: int, state: Path, policy: Path, changed: Mapping[str, object]
) -> str:
    own = {"protocol": place.protocol, "directory": str(state), **changed}
    lines = [f"{name} = {json.dumps(value)}" for name, value in own.items()]
    return "\n".join(
        (
            "[proxy]",
            *lines,
            "[[listen]]",
            f'address = "{HOST}:{port}"',
            "[[server]]",
            f'address = "{HOST}:{place.server_port}"',
            "[policy]",
            f"file = {json.dumps(str(policy))}",
            "[control]",
            'address = ""',
            "",
        )
    )


@contextmanager
def postgres_behind() -> Iterator[Place]:
    with scratch() as (folder, stack):
        server = stack.enter_context(
            postgres.start_primary(folder, durable=False, settings=SETTINGS)
        )
        _fill(server)
        yield _place(folder, stack, server.port, "postgres", server.pid)


@contextmanager
def mariadb_behind() -> Iterator[tuple[Place, MariaDBServer]]:
    with scratch() as (folder, stack):
        server = stack.enter_context(mariadb.start_primary(folder))
        yield _place(folder, stack, server.port, "mysql", server.pid), server


def _place(folder: Path, stack: ExitStack, port: int, protocol: str, pid: int) -> Place:
    del pid  # A server's sessions are processes or threads of their own: not comparable.
    return Place(folder, port, stack, protocol, [Way(DIRECT, port)])


@contextmanager
def scratch() -> Iterator[tuple[Path, ExitStack]]:
    with (
        tempfile.TemporaryDirectory(prefix="headgate-", dir=scratch_parent()) as folder,
        ExitStack() as stack,
    ):
        Path(folder).chmod(0o755)  # PgBouncer runs as nobody.
        yield Path(folder), stack


def _fill(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute(ACCOUNTS)
        session.execute("VACUUM ANALYZE pgbench_accounts")
        session.execute(WARM)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError), closing(socket.create_connection((HOST, port), 1.0)):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_of(way: Way) -> int:
    """Of all threads of its process, in ns; 0: it has none of its own."""
    tasks = Path(f"/proc/{way.pid}/task").glob("*/schedstat") if way.pid else ()
    return sum(int(task.read_text().split()[0]) for task in tasks)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def open_to_all(folder: Path) -> None:
    for path in (folder, *folder.iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o666)


def proxy_options(doc: str | None, *peer_names: str) -> argparse.ArgumentParser:
    parser = options(doc)
    parser.add_argument("--threads", default="1", help="of the proxy: 1, or 1,2 for one of each")
    for name in peer_names:
        parser.add_argument(f"--{name}", action=_Given, help="a program built elsewhere")
    return parser


class _Given(argparse.Action):
    def __call__(self, _parser: object, _given: object, value: object, flag: object = None) -> None:
        _PROGRAMS[str(flag).removeprefix("--")] = str(value)


_PROGRAMS: dict[str, str] = {}


def program(name: str) -> str:
    found = _PROGRAMS.get(name) or peers.find(name)
    if found is None:
        raise SystemExit(f"{name} is not here; run this, then try again: apt-get install {name}")
    return found


def environment() -> dict[str, str]:
    """Ours, and where programs that were unpacked find their libraries and scripts."""
    return {**os.environ, **peers.environment()}
