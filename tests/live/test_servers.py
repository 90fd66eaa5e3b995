"""The servers of the live tests do what their fixtures promise, for both engines.

What only other tests build on is left to a whole run: they fail where it does not hold.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from headgate.demo import postgres, servers
from headgate.demo.guard import children_of, parent_of
from headgate.demo.postgres import PostgresServer
from tests.fixtures import mariadb
from tests.fixtures.eventually import aeventually, eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import CACHE_DIR, Pair
from tests.fixtures.shards import NAMES, Shard, start_mariadb_shard, start_postgres_shard

AnyServer = PostgresServer | MariaDBServer
AnyShard = Shard[PostgresServer] | Shard[MariaDBServer]
ENGINES = ["postgres", "mariadb"]
ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


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
    """Called by another name each time: servers are shared."""
    name = f"{name}_{next(_numbers)}"
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
def lent(request: pytest.FixtureRequest) -> Pair[PostgresServer] | Pair[MariaDBServer]:
    found: Pair[PostgresServer] | Pair[MariaDBServer]
    found = request.getfixturevalue(f"lent_{request.param}")
    return found


def start_shard(engine: str, servers_dir: Path, **how: Any) -> AnyShard:
    if engine == "postgres":
        return start_postgres_shard(servers_dir, **how)
    return start_mariadb_shard(servers_dir, **how)


@pytest.fixture(scope="module", params=ENGINES)
def lasting(request: pytest.FixtureRequest, servers_dir: Path) -> Iterator[AnyShard]:
    with start_shard(request.param, servers_dir) as shard:
        yield shard


@pytest.fixture
def shard(lasting: AnyShard) -> Iterator[AnyShard]:
    """Shared, one primary and two replicas of it, in any order of names; and so afterwards."""
    yield lasting
    lasting.heal()
    assert names_that_take_writes(lasting) == [lasting.primary.name]


@pytest.fixture
def cascade(shard: AnyShard) -> AnyShard:
    """The second replica follows the first."""
    first, second = shard.replicas
    shard.follow(second.name, first.name)
    eventually(lambda: names_below(shard.primary) == {first.name})
    return shard


class TestReplication:
    def test_replica_follows_the_primary(
        self, pair: Pair[PostgresServer] | Pair[MariaDBServer]
    ) -> None:
        table = new_table(pair.primary, "follows")
        eventually(lambda: has_rows(pair.replica, f"SELECT id FROM {table}"))
        run_sql(pair.primary, f"DROP TABLE {table}")

    def test_replica_catches_up_after_a_crash(
        self, lent: Pair[PostgresServer] | Pair[MariaDBServer]
    ) -> None:
        lent.replica.kill()
        table = new_table(lent.primary, "missed")
        lent.replica.restart()
        eventually(lambda: has_rows(lent.replica, f"SELECT id FROM {table}"))

    def test_a_promoted_replica_takes_writes(self, lent_postgres: Pair[PostgresServer]) -> None:
        lent_postgres.primary.stop("immediate")
        lent_postgres.replica.promote()
        new_table(lent_postgres.replica, "promoted")


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
        asker.join(60)
        assert answers == [(1,)]

    def test_an_open_connection_hangs_too(self, lent_postgres: Pair[PostgresServer]) -> None:
        primary = lent_postgres.primary
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT 1")
            primary.pause()
            asker = threading.Thread(target=lambda: connection.execute("SELECT 2"))
            asker.start()
            asker.join(0.3)
            assert asker.is_alive()
            primary.resume()
            asker.join(60)
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
        eventually(lambda: not any(map(is_alive, [pid, *workers])))
        eventually(lambda: not home.exists())

    def test_killed_guard_takes_its_server_along(self, single: AnyServer) -> None:
        guard_pid = parent_of(single.pid)
        workers = children_of(single.pid)
        assert guard_pid is not None
        os.kill(guard_pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, [single.pid, *workers])))


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
        time.sleep(600)
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
                assert server.port in ports[1:]

    def test_a_rejected_setting_is_reported_from_the_log(self, servers_dir: Path) -> None:
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


def takes_writes(server: AnyServer) -> bool:
    if isinstance(server, MariaDBServer):
        return run_sql(server, "SELECT @@read_only") == [(0,)]
    return run_sql(server, "SELECT pg_is_in_recovery()") == [(False,)]


def names_that_take_writes(shard: AnyShard) -> list[str]:
    return [server.name for server in shard.servers if takes_writes(server)]


def names_below(server: AnyServer) -> set[object]:
    """The replicas as their own upstream lists them; one that left, for a moment longer."""
    if isinstance(server, MariaDBServer):
        return {row["Host"] for row in server.query("SHOW SLAVE HOSTS")}
    return {name for (name,) in run_sql(server, "SELECT application_name FROM pg_stat_replication")}


def assert_row_reaches_all(shard: AnyShard, name: str) -> None:
    table = new_table(shard.primary, name)
    for replica in shard.replicas:
        eventually(lambda: has_rows(replica, f"SELECT id FROM {table}"))  # noqa: B023


def cut_off(replica: AnyServer) -> None:
    """Let it receive nothing more; what it has stays."""
    if isinstance(replica, MariaDBServer):
        run_sql(replica, "STOP SLAVE IO_THREAD")
        return
    run_sql(replica, "ALTER SYSTEM SET primary_conninfo = ''")
    run_sql(replica, "SELECT pg_reload_conf()")
    eventually(lambda: not run_sql(replica, "SELECT 1 FROM pg_stat_wal_receiver WHERE pid > 0"))


class TestShard:
    def test_one_takes_writes_and_lists_the_others_by_name(self, shard: AnyShard) -> None:
        assert [server.name for server in shard.servers] == list(NAMES)
        assert names_that_take_writes(shard) == [shard.primary.name]
        eventually(lambda: names_below(shard.primary) == set(NAMES) - {shard.primary.name})
        assert_row_reaches_all(shard, "first")

    def test_paused_replica_catches_up(self, shard: AnyShard) -> None:
        shard.replicas[0].pause()
        table = new_table(shard.primary, "paused")
        shard.replicas[0].resume()
        eventually(lambda: has_rows(shard.replicas[0], f"SELECT id FROM {table}"))

    @pytest.mark.extended
    def test_two_shards_are_two_clusters(
        self, postgres_pair: Pair[PostgresServer], servers_dir: Path
    ) -> None:
        identifier = "SELECT system_identifier FROM pg_control_system()"
        with start_postgres_shard(servers_dir, ["127.0.0.2", "127.0.0.3"], cluster=2) as other:
            assert run_sql(other.primary, identifier) != run_sql(postgres_pair.primary, identifier)
            other.switch_over()
            assert names_that_take_writes(other) == ["127.0.0.3"]
            eventually(lambda: names_below(other.primary) == {"127.0.0.2"})
        assert takes_writes(postgres_pair.primary) and not takes_writes(postgres_pair.replica)

    @pytest.mark.extended
    def test_a_shard_starts_without_a_cache(self, servers_dir: Path) -> None:
        """As in the demo, where all that is known of initdb's outcome is this one."""
        started = postgres.start_shard(servers_dir, NAMES[:2])
        with Shard(tuple(started), started[0], postgres) as shard:
            assert_row_reaches_all(shard, "uncached")

    @pytest.mark.parametrize("engine", ENGINES)
    def test_close_leaves_no_process_and_no_folder(self, engine: str, servers_dir: Path) -> None:
        shard = start_shard(engine, servers_dir, names=NAMES[:2])
        pids = [pid for server in shard.servers for pid in [server.pid, *children_of(server.pid)]]
        shard.fail_over()
        shard.close()
        assert not any(map(is_alive, pids))
        places = [server.place for server in shard.servers]
        assert not any(place.home.exists() or place.socket_dir.exists() for place in places)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_failed_start_leaves_nothing(self, engine: str, servers_dir: Path) -> None:
        before = set(servers_dir.iterdir())
        with pytest.raises(servers.ServerFailed, match=r"no.such.setting"):
            if engine == "postgres":
                start_postgres_shard(servers_dir, settings={"no_such_setting": "1"})
            else:
                start_mariadb_shard(servers_dir, options=("--no-such-setting=1",))
        assert set(servers_dir.iterdir()) == before


class TestSwitchOver:
    def test_the_others_and_the_old_primary_follow_the_new(self, shard: AnyShard) -> None:
        table = new_table(shard.primary, "before")
        old, chosen = shard.primary, shard.replicas[0]
        new = shard.switch_over()
        assert new is chosen and old in shard.replicas
        assert names_that_take_writes(shard) == [new.name]
        eventually(lambda: names_below(new) == set(NAMES) - {new.name})
        assert run_sql(new, f"SELECT id FROM {table}") == [(7,)]
        assert_row_reaches_all(shard, "after")

    @pytest.mark.extended
    def test_there_and_back(self, shard: AnyShard) -> None:
        first, other = shard.primary, shard.replicas[1]
        shard.switch_over(other.name)
        assert_row_reaches_all(shard, "there")
        shard.switch_over(first.name)
        assert names_that_take_writes(shard) == [first.name]
        assert_row_reaches_all(shard, "back")

    def test_replicas_are_not_restarted(self, shard: AnyShard) -> None:
        replicas = shard.replicas
        pids = [replica.pid for replica in replicas]
        shard.switch_over()
        assert [server.pid for server in replicas] == pids

    def test_a_cascade_stays_below_its_server(self, cascade: AnyShard) -> None:
        old, (first, second) = cascade.primary, cascade.replicas
        new = cascade.switch_over()
        assert new is first
        eventually(lambda: names_below(new) == {old.name, second.name})
        assert_row_reaches_all(cascade, "cascaded")

    @pytest.mark.extended
    def test_the_end_of_a_cascade_can_take_over(self, cascade: AnyShard) -> None:
        table = new_table(cascade.primary, "before")
        last = cascade.replicas[1]
        cascade.switch_over(last.name)
        assert names_that_take_writes(cascade) == [last.name]
        assert run_sql(cascade.primary, f"SELECT id FROM {table}") == [(7,)]
        assert_row_reaches_all(cascade, "after")

    @pytest.mark.extended
    def test_a_restart_keeps_the_role(self, shard: AnyShard) -> None:
        shard.switch_over()
        for server in shard.servers:
            server.restart()
        assert names_that_take_writes(shard) == [shard.primary.name]
        assert_row_reaches_all(shard, "restarted")

    def test_a_replica_can_be_put_below_another(self, shard: AnyShard) -> None:
        first, second = shard.replicas
        shard.follow(second.name, first.name)
        eventually(lambda: names_below(shard.primary) == {first.name})
        eventually(lambda: names_below(first) == {second.name})
        assert_row_reaches_all(shard, "below")


class TestFailOver:
    def test_the_killed_one_rejoins(self, shard: AnyShard) -> None:
        dead = shard.fail_over()
        assert not dead.is_running()
        assert shard.lost == [dead]
        assert len(shard.replicas) == 1
        assert_row_reaches_all(shard, "while_dead")
        shard.rejoin(dead.name)
        assert (shard.lost, len(shard.replicas)) == ([], 2)
        assert_row_reaches_all(shard, "rejoined")

    @pytest.mark.extended
    def test_what_only_the_dead_one_had_is_gone_after_its_return(self, shard: AnyShard) -> None:
        for replica in shard.replicas:
            cut_off(replica)
        table = new_table(shard.primary, "lost")
        dead = shard.fail_over()
        shard.rejoin(dead.name)
        assert_row_reaches_all(shard, "kept")
        assert not has_rows(dead, f"SELECT id FROM {table}")

    @pytest.mark.extended
    def test_a_replica_with_more_than_the_new_primary_is_brought_back(
        self, shard: AnyShard
    ) -> None:
        behind, ahead = shard.replicas
        cut_off(behind)
        table = new_table(shard.primary, "ahead")
        eventually(lambda: has_rows(ahead, f"SELECT id FROM {table}"))
        shard.fail_over(behind.name)
        assert_row_reaches_all(shard, "after")
        assert not has_rows(ahead, f"SELECT id FROM {table}")

    @pytest.mark.extended
    def test_the_replica_that_has_most_takes_over(self, shard: AnyShard) -> None:
        behind, ahead = shard.replicas
        cut_off(behind)
        table = new_table(shard.primary, "most")
        eventually(lambda: has_rows(ahead, f"SELECT id FROM {table}"))
        shard.fail_over()
        assert shard.primary is ahead
        assert_row_reaches_all(shard, "after")

    def test_a_dead_primary_comes_back_as_one(self, shard: AnyShard) -> None:
        """The split brain that the shard has to notice."""
        dead = shard.fail_over()
        dead.restart()
        assert set(names_that_take_writes(shard)) == {dead.name, shard.primary.name}
        new_table(dead, "split")
        shard.rejoin(dead.name)
        assert names_that_take_writes(shard) == [shard.primary.name]
        assert_row_reaches_all(shard, "healed")

    @pytest.mark.parametrize("lasting", ["postgres"], indirect=True)
    def test_a_data_folder_beyond_rewinding_is_cloned(self, shard: AnyShard) -> None:
        dead = shard.fail_over()
        (dead.data_dir / "global" / "pg_control").unlink()
        shard.rejoin(dead.name)
        eventually(lambda: names_below(shard.primary) == set(NAMES) - {shard.primary.name})
        assert_row_reaches_all(shard, "cloned")


class TestMariaDB:
    def test_application_cannot_write_to_a_replica(self, mariadb_pair: Pair[MariaDBServer]) -> None:
        create = "CREATE DATABASE rejected"
        with (
            mariadb_pair.replica.connect(user=mariadb.APP_USER) as connection,
            connection.cursor() as cursor,
            pytest.raises(pymysql.err.OperationalError, match="read-only"),
        ):
            cursor.execute(create)

    def test_semi_sync_commit_waits_for_a_replica(self, lent_mariadb: Pair[MariaDBServer]) -> None:
        primary, replica = lent_mariadb.primary, lent_mariadb.replica
        mariadb.semi_sync(primary, [replica], timeout_s=600)
        replica.pause()
        writer = threading.Thread(target=lambda: primary.query("CREATE DATABASE slow"))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        replica.resume()
        writer.join(60)
        assert not writer.is_alive()
        primary.query("DROP DATABASE slow")


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
