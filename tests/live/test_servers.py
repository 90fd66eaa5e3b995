"""The servers of the live tests do what their fixtures promise, for both engines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headgate.demo import postgres, servers
from headgate.demo.guard import children_of, parent_of
from headgate.demo.postgres import PostgresServer
from tests.fixtures import mariadb
from tests.fixtures.eventually import aeventually, eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import CACHE_DIR, Pair

AnyServer = PostgresServer | MariaDBServer
ENGINES = ["postgres", "mariadb"]
ROOT = Path(__file__).parents[2]


def run_sql(server: AnyServer, sql: str) -> list[tuple[object, ...]]:
    if isinstance(server, MariaDBServer):
        return [tuple(row.values()) for row in server.query(sql)]
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        cursor = connection.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


def has_rows(server: AnyServer, sql: str) -> bool:
    try:
        return bool(run_sql(server, sql))
    except Exception:  # the table has not arrived yet
        return False


def new_table(server: AnyServer, name: str) -> str:
    if isinstance(server, MariaDBServer):
        run_sql(server, "CREATE DATABASE IF NOT EXISTS app")
        name = f"app.{name}"
    run_sql(server, f"CREATE TABLE {name} (id int PRIMARY KEY)")
    run_sql(server, f"INSERT INTO {name} VALUES (7)")
    return name


def start_single(engine: str, base_dir: Path) -> AnyServer:
    if engine == "postgres":
        return postgres.start_primary(base_dir, durable=False, cache_dir=CACHE_DIR)
    return mariadb.start_primary(base_dir, cache_dir=CACHE_DIR)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(params=ENGINES)
def single(request: pytest.FixtureRequest, servers_dir: Path) -> Iterator[AnyServer]:
    with start_single(request.param, servers_dir) as server:
        yield server


@pytest.fixture(params=ENGINES)
def pair(request: pytest.FixtureRequest) -> Pair[PostgresServer] | Pair[MariaDBServer]:
    found: Pair[PostgresServer] | Pair[MariaDBServer]
    found = request.getfixturevalue(f"{request.param}_pair")
    return found


@pytest.fixture(params=ENGINES)
def fresh(request: pytest.FixtureRequest) -> Pair[PostgresServer] | Pair[MariaDBServer]:
    found: Pair[PostgresServer] | Pair[MariaDBServer]
    found = request.getfixturevalue(f"fresh_{request.param}")
    return found


class TestReplication:
    def test_replica_follows_the_primary(
        self, pair: Pair[PostgresServer] | Pair[MariaDBServer]
    ) -> None:
        table = new_table(pair.primary, "follows")
        eventually(lambda: has_rows(pair.replica, f"SELECT id FROM {table}"))
        run_sql(pair.primary, f"DROP TABLE {table}")

    def test_replica_catches_up_after_a_crash(
        self, fresh: Pair[PostgresServer] | Pair[MariaDBServer]
    ) -> None:
        fresh.replica.kill()
        table = new_table(fresh.primary, "missed")
        fresh.replica.restart()
        eventually(lambda: has_rows(fresh.replica, f"SELECT id FROM {table}"), within_s=10)

    def test_a_promoted_replica_takes_writes(self, fresh_postgres: Pair[PostgresServer]) -> None:
        fresh_postgres.primary.stop("immediate")
        fresh_postgres.replica.promote()
        new_table(fresh_postgres.replica, "promoted")


class TestPause:
    def test_queries_hang_until_the_server_resumes(self, single: AnyServer) -> None:
        answers: list[object] = []
        single.pause()
        asker = threading.Thread(target=lambda: answers.extend(run_sql(single, "SELECT 1")))
        asker.start()
        asker.join(0.3)
        assert asker.is_alive()
        assert answers == []
        single.resume()
        asker.join(5)
        assert answers == [(1,)]

    def test_an_open_connection_hangs_too(self, fresh_postgres: Pair[PostgresServer]) -> None:
        primary = fresh_postgres.primary
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT 1")
            primary.pause()
            asker = threading.Thread(target=lambda: connection.execute("SELECT 2"))
            asker.start()
            asker.join(0.3)
            assert asker.is_alive()
            primary.resume()
            asker.join(5)
            assert not asker.is_alive()

    def test_a_paused_server_can_be_stopped(self, single: AnyServer) -> None:
        single.pause()
        single.stop()
        assert not is_alive(single.pid)


class TestEnd:
    def test_close_leaves_no_process_and_no_folder(self, single: AnyServer) -> None:
        workers = children_of(single.pid)
        folders = [single.place.home, single.place.socket_dir]
        assert all(folder.is_dir() for folder in folders)
        single.close()
        assert not any(map(is_alive, [single.pid, *workers]))
        assert not any(folder.exists() for folder in folders)

    def test_kill_leaves_no_worker(self, single: AnyServer) -> None:
        workers = children_of(single.pid)
        single.kill()
        assert not any(map(is_alive, [single.pid, *workers]))

    def test_stop_and_restart_keep_data_and_port(self, single: AnyServer) -> None:
        table = new_table(single, "kept")
        port = single.port
        single.restart()
        assert run_sql(single, f"SELECT id FROM {table}") == [(7,)]
        assert single.port == port

    def test_close_twice_is_harmless(self, single: AnyServer) -> None:
        single.close()
        single.close()


class TestOrphan:
    @pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
    @pytest.mark.parametrize("engine", ENGINES)
    def test_killed_parent_leaves_no_server_behind(
        self, engine: str, paused: bool, servers_dir: Path
    ) -> None:
        parent, pid, home = start_in_child(engine, servers_dir, paused=paused)
        workers = children_of(pid)
        assert is_alive(pid)
        parent.kill()
        parent.wait()
        eventually(lambda: not any(map(is_alive, [pid, *workers])), within_s=10)
        eventually(lambda: not home.exists(), within_s=10)

    def test_killed_guard_takes_its_server_along(self, single: AnyServer) -> None:
        guard_pid = parent_of(single.pid)
        workers = children_of(single.pid)
        assert guard_pid is not None
        os.kill(guard_pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, [single.pid, *workers])), within_s=10)


def start_in_child(
    engine: str, base_dir: Path, *, paused: bool
) -> tuple[subprocess.Popen[str], int, Path]:
    program = f"""
        import time
        from pathlib import Path
        from tests.live.test_servers import start_single
        server = start_single({engine!r}, Path({str(base_dir)!r}))
        {"server.pause()" if paused else ""}
        print(server.pid, server.place.home, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout as answers:
        pid, home = answers.readline().split()
    return parent, int(pid), Path(home)


class TestStart:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_taken_port_is_passed_over(
        self, engine: str, servers_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port: int = taken.getsockname()[1]
            ports = [port, *servers.free_ports()]
            monkeypatch.setattr(servers, "free_ports", lambda: iter(ports))
            with start_single(engine, servers_dir) as server:
                assert server.port == ports[1]

    def test_a_refused_setting_is_reported_from_the_log(self, servers_dir: Path) -> None:
        before = set(servers_dir.iterdir())
        with pytest.raises(servers.ServerFailed, match="no_such_setting"):
            postgres.start_primary(
                servers_dir, settings={"no_such_setting": "1"}, cache_dir=CACHE_DIR
            )
        assert set(servers_dir.iterdir()) == before

    def test_settings_reach_the_server_and_its_replica(self, servers_dir: Path) -> None:
        with (
            postgres.start_primary(
                servers_dir, settings={"work_mem": "7MB"}, cache_dir=CACHE_DIR
            ) as primary,
            postgres.start_replica(primary, servers_dir) as replica,
        ):
            assert run_sql(primary, "SHOW fsync") == [("on",)]
            assert run_sql(replica, "SHOW work_mem") == [("7MB",)]


class TestEventually:
    def test_returns_the_truthy_value(self) -> None:
        values = iter([0, "", 3])
        assert eventually(lambda: next(values)) == 3

    def test_names_the_last_value(self) -> None:
        with pytest.raises(AssertionError, match=r"last value: \[\]"):
            eventually(list, within_s=0.05)

    @pytest.mark.parametrize("awaitable", [False, True])
    async def test_async_takes_both_kinds_of_predicate(self, awaitable: bool) -> None:
        values = iter([0, 3])

        async def read() -> int:
            return next(values)

        predicate: Callable[[], object] = read if awaitable else lambda: next(values)
        assert await aeventually(predicate) == 3
