"""R153: PgBouncer in front of the proxy, and behind it, as the reference describes it."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from headgate.demo import servers
from tests.fixtures import peers
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import ProxyProcess
from tests.proxy.live.limits import NOTHING_FITS, TAG
from tests.proxy.live.ways import DATABASE, PostgresWay

CONFIG = """\
[databases]
{database} = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
unix_socket_dir =
pool_mode = {mode}
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
pidfile = {folder}/pid
server_lifetime = 3600
default_pool_size = 1
"""


@contextmanager
def pgbouncer(server_port: int, folder: Path, mode: str = "session") -> Iterator[PostgresWay]:
    program = peers.program("pgbouncer")
    port = next(servers.free_ports())
    user = servers.service_user()
    user.own(folder)
    config = folder / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(
            database=DATABASE, server_port=server_port, port=port, mode=mode, folder=folder
        )
    )
    # As root it changes to that user by itself: the program may lie where only root can go.
    who = ["-u", pwd.getpwuid(user.uid).pw_name] if user.uid is not None else []
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [program, *who, str(config)],
            env={**servers.BASE_ENV, **peers.environment()},
            stdout=out,
            stderr=out,
        )
    way = PostgresWay(f"pgbouncer-{mode}", port)
    try:
        eventually(lambda: _answers(way, process, folder))
        yield way
    finally:
        process.terminate()
        process.wait(60)


def _answers(way: PostgresWay, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "out").read_text()
    with suppress(psycopg.OperationalError):
        way.connect().close()
        return True
    return False


@pytest.fixture
def pooler_dir(servers_dir: Path) -> Path:
    folder = servers.make_folder(servers.open_base(servers_dir), "pgbouncer-")
    folder.chmod(0o755)
    return folder


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_pgbouncer_in_front_passes_blocks_on(
    postgres: ExtendedServer, pooler_dir: Path, mode: str
) -> None:
    with (
        ProxyProcess.started("postgres", postgres.port) as proxy,
        pgbouncer(proxy.port, pooler_dir, mode) as way,
    ):
        proxy.publish(NOTHING_FITS)
        for _ in range(3):
            with way.connect() as session:
                session.prepare_threshold = None
                with pytest.raises(errors.InsufficientResources):
                    session.execute(f"SELECT %s::int {TAG}", [1])
                assert session.execute("SELECT %s::int", [2]).fetchone() == (2,)
                with session.transaction():
                    assert session.execute("SELECT 3").fetchone() == (3,)


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_pgbouncer_behind_keeps_its_pool(
    postgres: ExtendedServer, pooler_dir: Path, mode: str
) -> None:
    """Clients that connect for each query reach the server by connections that are there."""
    with (
        pgbouncer(postgres.port, pooler_dir, mode) as behind,
        ProxyProcess.started("postgres", behind.port) as proxy,
    ):
        proxy.publish(NOTHING_FITS)
        way = PostgresWay("behind", proxy.port)
        pids = set()
        for _ in range(8):
            with way.connect() as session:
                session.prepare_threshold = None
                row = session.execute("SELECT pg_backend_pid()").fetchone()
                assert row is not None
                pids.add(row[0])
                with pytest.raises(errors.InsufficientResources):
                    session.execute(f"SELECT 1 {TAG}")
        assert len(pids) == 1
        with way.connect() as session:
            session.prepare_threshold = None
            session.execute("SELECT 1")
