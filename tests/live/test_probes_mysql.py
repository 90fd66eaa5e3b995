"""Every MySQL/MariaDB probe against real servers: healthy, behind, frozen, killed, locked."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
import trustme

from headgate.errors import ProbeFailed, WriteRejected
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.probes.connections import Lane
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.probes.heartbeats import Enders, Writer
from headgate.metrics.probes.mysql_replication import MysqlBeat
from headgate.metrics.probes.mysql_session import MysqlConnector, MysqlSession
from headgate.metrics.probes.numbers import commit_baseline
from headgate.metrics.samples import Cause
from headgate.metrics.settings import parse_metric_settings
from tests.fixtures import mariadb
from tests.fixtures.eventually import aeventually, eventually
from tests.fixtures.mariadb import APP_USER, MariaDBServer
from tests.fixtures.servers import CACHE_DIR, Pair
from tests.metrics.probes.reading import (
    becomes,
    cut_off,
    exceeds,
    failure,
    measured,
    open_sockets,
    says,
    stays_below,
    within,
    works,
)

NEEDS_OTHERS = {"lag", "flow_control"}
ON_ANY_PRIMARY = sorted(
    row.name
    for row in BUILTINS.values()
    if Engine.MYSQL in row.engines and row.name not in NEEDS_OTHERS
)
CLOCKS_S = 0.1
"""How far the clock of servers and that of tests may drift apart within a test."""
NATIVE = {"method": "native"}
HEARTBEAT = {"method": "heartbeat"}


def spec_of(name: str, **settings: Any) -> MetricSpec:
    """With a timeout that only a fault meets, unless it says another."""
    return parse_metric_settings(name, {"timeout_s": 60.0, **settings}, Engine.MYSQL)


def dsn_of(server: MariaDBServer, user: str = "") -> str:
    return f"mysql://{user or server.user}@{server.host}:{server.port}/"


@asynccontextmanager
async def probes_of(
    server: MariaDBServer, *, dsn: str = "", max_connections: int = 3
) -> AsyncIterator[DatabaseProbes]:
    probes = DatabaseProbes(
        "main", Engine.MYSQL, dsn or dsn_of(server), max_connections=max_connections
    )
    try:
        yield probes
    finally:
        await probes.close()


async def read(probes: DatabaseProbes, name: str, **settings: Any) -> float:
    return await value(probes.probe_for(spec_of(name, **settings)))


async def value(probe: Any) -> float:
    return (await measured(probe)).value


async def sql_failure(probes: DatabaseProbes, query: str) -> ProbeFailed:
    return await failure(probes.probe_for(spec_of("mine", sql=query, threshold=1)))


def execute(server: MariaDBServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def made_anew(table: str) -> tuple[str, str]:
    """MySQL has no CREATE OR REPLACE TABLE."""
    return f"DROP TABLE IF EXISTS {table.partition(' ')[0]}", f"CREATE TABLE {table}"


def scalar(server: MariaDBServer, query: str) -> Any:
    [row] = server.query(query)
    return next(iter(row.values()))


def sessions(server: MariaDBServer, user: str) -> int:
    query = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '{user}'"
    return int(scalar(server, query))


@contextmanager
def user(server: MariaDBServer, name: str, *grants: str) -> Iterator[str]:
    """A user with few rights, whose sessions can be told from others'; yields its DSN."""
    execute(server, f"CREATE USER {name}@'127.0.0.1'")
    try:
        for grant in grants:
            execute(server, f"GRANT {grant} TO {name}@'127.0.0.1'")
        yield dsn_of(server, name)
    finally:
        execute(server, f"DROP USER {name}@'127.0.0.1'")


async def in_sync(pair: Pair[MariaDBServer]) -> None:
    position = scalar(pair.primary, "SELECT @@gtid_binlog_pos")
    wait = f"SELECT MASTER_GTID_WAIT('{position}', 60)"
    assert await asyncio.to_thread(scalar, pair.replica, wait) == 0


# --- healthy -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_ANY_PRIMARY)
async def test_every_builtin_reads_on_a_healthy_primary(
    mariadb_pair: Pair[MariaDBServer], name: str
) -> None:
    async with probes_of(mariadb_pair.primary) as probes:
        probe = probes.probe_for(spec_of(name))
        await becomes(lambda: works(probe))
        assert 0 <= await value(probe) < 10_000


async def test_healthy_values_are_plausible(mariadb_pair: Pair[MariaDBServer]) -> None:
    async with probes_of(mariadb_pair.primary) as probes:
        running = probes.probe_for(spec_of("threads_running"))
        await becomes(lambda: stays_below(running, 4))
        assert 0.01 <= await read(probes, "pool_usage") < 0.5
        began = time.monotonic()
        assert 0 < await read(probes, "commit_delay") < time.monotonic() - began
        for name in ("lock_waits", "longest_lock_wait"):
            await becomes(partial(is_zero_after_a_rest, probes.probe_for(spec_of(name))))
        assert 0 < await read(probes, "disk_used") <= 1


async def test_a_read_only_server_has_no_commit_delay(mariadb_pair: Pair[MariaDBServer]) -> None:
    """Even where the probe's user could write: the row would be the replica's own."""
    async with probes_of(mariadb_pair.replica) as probes:
        failed = await failure(probes.probe_for(spec_of("commit_delay")))
    assert failed.cause is Cause.UNSUPPORTED
    assert "read_only" in failed.detail


async def test_flow_control_without_galera_is_unsupported(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    async with probes_of(mariadb_pair.primary) as probes:
        failed = await failure(probes.probe_for(spec_of("flow_control")))
    assert failed.cause is Cause.UNSUPPORTED


async def test_history_list_grows_behind_an_open_snapshot(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    execute(primary, *made_anew("mysql.undone (n INT) ENGINE=InnoDB"))
    with primary.connect() as reader, primary.connect() as writer:
        reader.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        for n in range(200):
            writer.query(f"INSERT INTO mysql.undone VALUES ({n})")
            writer.query("UPDATE mysql.undone SET n = n + 1")
        async with probes_of(primary) as probes:
            assert await read(probes, "history_list_length") >= 100
            assert await read(probes, "oldest_transaction") > 0
    execute(primary, "DROP TABLE mysql.undone")


async def test_commit_baseline_suggests_a_threshold(mariadb_pair: Pair[MariaDBServer]) -> None:
    """R15"""
    async with probes_of(mariadb_pair.primary) as probes:
        baseline = await commit_baseline(probes.probe_for(spec_of("commit_delay")), count=50)
    assert 0 < baseline.p50_s <= baseline.p99_s
    assert baseline.suggested_s >= 0.010


# --- lag -----------------------------------------------------------------------------------


async def test_native_lag_of_a_replica_in_step_is_zero(mariadb_pair: Pair[MariaDBServer]) -> None:
    async with probes_of(mariadb_pair.replica) as probes:
        lag = probes.probe_for(spec_of("lag", options=NATIVE))
        await becomes(lambda: stays_below(lag, 1))


@pytest.mark.parametrize("method", ["auto", "heartbeat", "native"])
async def test_misleading_zero_lag_from_the_primarys_own_heartbeat(
    mariadb_pair: Pair[MariaDBServer], method: str
) -> None:
    """R22: a server that is no replica has no lag, however fresh its row."""
    async with heartbeats(mariadb_pair) as writer, probes_of(mariadb_pair.primary) as probes:
        assert await writer.beat() is True
        failed = await failure(probes.probe_for(spec_of("lag", options={"method": method})))
    assert failed.cause is Cause.UNSUPPORTED
    assert "check on the replica" in failed.detail


@pytest.mark.parametrize(("thread", "said"), [("SQL", "SQL_Running"), ("IO", "IO_Running")])
async def test_misleading_zero_lag_when_a_thread_is_stopped(
    mariadb_pair: Pair[MariaDBServer], thread: str, said: str
) -> None:
    """R22: lag grows since the replica was last current; where that is unknown, it fails."""
    replica = mariadb_pair.replica
    async with probes_of(replica) as probes:
        lag = probes.probe_for(spec_of("lag", options=NATIVE))
        unaware = probes.probe_for(spec_of("lag", options=NATIVE))
        await becomes(lambda: stays_below(lag, 1))
        execute(replica, f"STOP {replica.replica_word} {thread}_THREAD")
        try:
            stopped = await measured(lag)
            assert stopped.value > 0
            await becomes(lambda: exceeds(lag, stopped.value + 0.3))
            failed = await failure(unaware)
        finally:
            execute(replica, f"START {replica.replica_word}")
        assert stopped.cause is failed.cause is Cause.REPLICATION_STOPPED
        assert said in stopped.detail and said in failed.detail
        await becomes(lambda: says(lag, None))


async def test_misleading_zero_lag_while_the_replica_only_tries_to_connect(
    lent_mariadb: Pair[MariaDBServer],
) -> None:
    """Seconds_Behind_Master reads 0 or NULL then; the I/O thread is what tells."""
    async with probes_of(lent_mariadb.replica) as probes:
        lag = probes.probe_for(spec_of("lag", options=NATIVE))
        await becomes(lambda: stays_below(lag, 1))
        lent_mariadb.primary.kill()
        await becomes(lambda: says(lag, Cause.REPLICATION_BROKEN))
        broken = await measured(lag)
        word = lent_mariadb.replica.replica_word.capitalize()
        assert f"{word}_IO_Running is" in broken.detail
        assert f"127.0.0.1:{lent_mariadb.primary.port}" in broken.detail
        await becomes(lambda: exceeds(lag, broken.value + 0.3))
        lent_mariadb.primary.restart()
        await becomes(lambda: says(lag, None))


async def test_broken_replication_carries_the_servers_error(
    lent_mariadb: Pair[MariaDBServer],
) -> None:
    """A row that is missing on the replica cannot be updated there."""
    primary, replica = lent_mariadb.primary, lent_mariadb.replica
    execute(primary, "CREATE DATABASE app", "CREATE TABLE app.t (n INT PRIMARY KEY, m INT)")
    execute(primary, "INSERT INTO app.t VALUES (1, 1)")
    await in_sync(lent_mariadb)
    execute(replica, "SET sql_log_bin = 0", "DELETE FROM app.t")
    try:
        async with probes_of(replica) as probes:
            lag = probes.probe_for(spec_of("lag", options=NATIVE))
            await becomes(lambda: stays_below(lag, 1))
            execute(primary, "UPDATE app.t SET m = 2 WHERE n = 1")
            await becomes(lambda: says(lag, Cause.REPLICATION_BROKEN))
            broken = await measured(lag)
            assert "Can't find record in 't'" in broken.detail
            await becomes(lambda: exceeds(lag, broken.value + 0.3))
    finally:
        execute(replica, "SET sql_log_bin = 0", "INSERT INTO app.t VALUES (1, 1)")
        execute(replica, f"START {replica.replica_word}")
        execute(primary, "DROP DATABASE app")


async def test_native_lag_grows_behind_a_slow_statement(mariadb_pair: Pair[MariaDBServer]) -> None:
    """A lock on the replica holds up its SQL thread; the seconds count on, then return to 0."""
    primary, replica = mariadb_pair.primary, mariadb_pair.replica
    execute(primary, "CREATE DATABASE app", "CREATE TABLE app.t (n INT PRIMARY KEY)")
    await in_sync(mariadb_pair)
    async with probes_of(replica) as probes:
        lag = probes.probe_for(spec_of("lag", options=NATIVE))
        with replica.connect() as blocker:
            blocker.query("LOCK TABLES app.t READ")
            execute(primary, "INSERT INTO app.t VALUES (1)")
            await becomes(lambda: exceeds(lag, 0.5))  # In whole seconds.
        await becomes(lambda: stays_below(lag, 1))
    execute(primary, "DROP DATABASE app")


@asynccontextmanager
async def heartbeats(pair: Pair[MariaDBServer]) -> AsyncIterator[Any]:
    async with probes_of(pair.primary) as probes:
        writer = probes.heartbeat_writer("headgate.heartbeat")
        try:
            yield writer
        finally:
            await writer.close()
            execute(pair.primary, "DROP TABLE IF EXISTS headgate.heartbeat")


async def test_heartbeat_lag_grows_while_the_replica_is_stopped_and_returns(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """R20–R22"""
    replica = mariadb_pair.replica
    async with heartbeats(mariadb_pair) as writer, probes_of(replica) as probes:
        began = time.monotonic()
        assert await writer.beat() is True
        await in_sync(mariadb_pair)
        lag = probes.probe_for(spec_of("lag"))  # auto: there is a row, so it is read
        assert 0 <= await value(lag) < time.monotonic() - began + CLOCKS_S
        execute(replica, f"STOP {replica.replica_word} SQL_THREAD")
        try:
            assert await writer.beat() is True
            first = await value(lag)
            await becomes(lambda: exceeds(lag, first + 0.5))
        finally:
            execute(replica, f"START {replica.replica_word}")
        began = time.monotonic()
        assert await writer.beat() is True
        await in_sync(mariadb_pair)
        assert 0 <= await value(lag) < time.monotonic() - began + CLOCKS_S


async def test_heartbeat_writer_on_the_wrong_host_does_not_write(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """R21: neither where read_only says so, nor on a replica that was left writable."""
    replica = mariadb_pair.replica
    async with probes_of(replica) as probes:
        writer = probes.heartbeat_writer("headgate.heartbeat")
        assert await writer.beat() is False
        execute(replica, "SET GLOBAL read_only = 0")
        try:
            assert await writer.beat() is False
        finally:
            execute(replica, "SET GLOBAL read_only = 1")
        await writer.close()


async def test_whether_a_server_takes_writes_is_read_on_a_connection_of_its_own(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    async with probes_of(primary) as probes:
        fence = probes.fence_probe()
        assert fence is not None and await fence.read() is True
        execute(primary, "SET GLOBAL read_only = 1")
        try:
            assert await fence.read() is False
        finally:
            execute(primary, "SET GLOBAL read_only = 0")
        assert await fence.read() is True
        await fence.close()


class Demoted(MysqlBeat):
    """Its server becomes read only after it was asked what it is, and before the write."""

    def __init__(self, server: MariaDBServer) -> None:
        super().__init__(("headgate", "heartbeat"), 1.0, True)
        self._server = server

    async def _write(self, session: MysqlSession, resting: bool) -> bool:
        execute(self._server, "SET GLOBAL read_only = 1")
        return await super()._write(session, resting)


async def test_a_write_that_read_only_stops_is_distinguished_from_other_faults(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """Error 1290: after it the agent knows that the server is no primary any more."""
    primary = mariadb_pair.primary
    connector = MysqlConnector("main", f"mysql://{APP_USER}@127.0.0.1:{primary.port}/")
    async with heartbeats(mariadb_pair) as writer:
        assert await writer.beat() is True  # It makes the table.
        late = Writer(Lane(connector, 1), Demoted(primary), 5.0, Enders(connector, None))
        try:
            with pytest.raises(WriteRejected, match="read-only"):
                await late.beat()
        finally:
            execute(primary, "SET GLOBAL read_only = 0")
            await late.close()


async def test_without_heartbeats_auto_is_native(mariadb_pair: Pair[MariaDBServer]) -> None:
    # An agent of another test may have left its row.
    execute(mariadb_pair.primary, "DROP TABLE IF EXISTS headgate.heartbeat")
    left = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME = 'heartbeat'"
    await becomes(
        lambda: scalar(mariadb_pair.replica, f"{left} AND TABLE_SCHEMA = 'headgate'") == 0
    )
    async with probes_of(mariadb_pair.replica) as probes:
        lag = probes.probe_for(spec_of("lag"))
        await becomes(lambda: stays_below(lag, 1))
        failed = await failure(probes.probe_for(spec_of("lag", options=HEARTBEAT)))
    assert failed.cause is Cause.FAILED
    assert "heartbeat_interval_s" in failed.detail


PT_HEARTBEAT = (
    "ts VARCHAR(26) NOT NULL, server_id INT UNSIGNED NOT NULL PRIMARY KEY,"
    " file VARCHAR(255), position BIGINT UNSIGNED"
)
PT_LEGACY = "id INT NOT NULL PRIMARY KEY, ts DATETIME NOT NULL"
PT_NOW = "DATE_FORMAT({now}, '%Y-%m-%dT%H:%i:%s.%f')"


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (PT_HEARTBEAT, "('2001-01-01T00:00:00.000000', 1, '', 0), ({ts}, 2, '', 0)"),
        (PT_LEGACY, "(1, {ts})"),
    ],
    ids=["pt-heartbeat", "legacy"],
)
async def test_pt_heartbeats_tables_are_read_in_both_layouts(
    mariadb_pair: Pair[MariaDBServer], columns: str, rows: str
) -> None:
    ts = PT_NOW.format(now="UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    began = time.monotonic()
    execute(
        mariadb_pair.primary,
        "CREATE DATABASE IF NOT EXISTS percona",
        *made_anew(f"percona.heartbeat ({columns})"),
        f"INSERT INTO percona.heartbeat VALUES {rows.format(ts=ts)}",
    )
    await in_sync(mariadb_pair)
    async with probes_of(mariadb_pair.replica) as probes:
        options = {"heartbeat_table": "percona.heartbeat"}
        lag_s = await read(probes, "lag", options=options)
    execute(mariadb_pair.primary, "DROP DATABASE percona")
    # One layout has whole seconds, which MariaDB cuts and MySQL rounds.
    assert 0.5 <= lag_s < 2 + time.monotonic() - began + CLOCKS_S


async def test_a_heartbeat_from_the_future_is_clock_skew_not_zero(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """R24"""
    async with heartbeats(mariadb_pair) as writer, probes_of(mariadb_pair.replica) as probes:
        await writer.beat()
        ahead = "UPDATE headgate.heartbeat SET ts = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR"
        execute(mariadb_pair.primary, ahead)
        await in_sync(mariadb_pair)
        failed = await failure(probes.probe_for(spec_of("lag", options=HEARTBEAT)))
    assert failed.cause is Cause.CLOCK_SKEW
    assert "NTP" in failed.detail


# --- what only other sessions can show -----------------------------------------------------


@contextmanager
def waiting_statement(server: MariaDBServer, statement: str) -> Iterator[None]:
    """`statement` runs in a thread of its own, until something lets it go on."""

    def run() -> None:
        with server.connect() as connection:
            connection.query(statement)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


async def test_lock_waits_counts_row_and_metadata_locks_and_times_the_longest(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    execute(
        primary,
        "CREATE DATABASE IF NOT EXISTS app",
        *made_anew("app.contended (n INT PRIMARY KEY) ENGINE=InnoDB"),
        "INSERT INTO app.contended VALUES (1)",
    )
    async with probes_of(primary) as probes:
        waits = probes.probe_for(spec_of("lock_waits"))
        longest = probes.probe_for(spec_of("longest_lock_wait"))
        holder, began = primary.connect(), time.monotonic()
        holder.query("START TRANSACTION")
        holder.query("UPDATE app.contended SET n = n + 1")
        with (
            waiting_statement(primary, "UPDATE app.contended SET n = n + 10"),
            waiting_statement(primary, "ALTER TABLE app.contended ADD COLUMN extra INT"),
        ):
            try:
                await becomes(lambda: exceeds_after_a_rest(waits, 1.5))
                assert await waits.read() == 2
                await becomes(lambda: exceeds_after_a_rest(longest, 0.5))
                assert await value(longest) <= time.monotonic() - began + 1  # In whole seconds.
                oldest = probes.probe_for(spec_of("oldest_transaction"))
                await becomes(lambda: exceeds_after_a_rest(oldest, 0.5))
            finally:
                holder.rollback()
                holder.close()
        await becomes(lambda: is_zero_after_a_rest(waits))
    execute(primary, "DROP DATABASE app")


async def exceeds_after_a_rest(probe: Any, least: float) -> bool:
    """InnoDB renews INNODB_TRX only when nobody has read it for 0.1 s: poll no faster."""
    await asyncio.sleep(0.15)
    return await exceeds(probe, least)


async def is_zero_after_a_rest(probe: Any) -> bool:
    return not await exceeds_after_a_rest(probe, 0)


async def test_a_commit_stall_is_seen(mariadb_pair: Pair[MariaDBServer]) -> None:
    """R12: a global read lock holds every writer; lag and threads_running may miss it."""
    primary = mariadb_pair.primary
    async with probes_of(primary) as probes:
        commit = probes.probe_for(spec_of("commit_delay"))
        assert await value(commit) > 0
        held = (
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST"
            " WHERE INFO LIKE '%commit_probe%' AND STATE LIKE 'Waiting for%'"
        )
        with primary.connect() as blocker:
            blocker.query("FLUSH TABLES WITH READ LOCK")
            await cut_off(commit, when=lambda: scalar(primary, held) == 1)
        await becomes(lambda: works(commit))


# --- rights and secrets --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock_waits", "longest_lock_wait", "oldest_transaction"])
async def test_a_user_that_sees_nothing_fails_instead_of_reading_zero(
    mariadb_pair: Pair[MariaDBServer], name: str
) -> None:
    primary = mariadb_pair.primary
    with user(primary, "blind") as dsn:
        async with probes_of(primary, dsn=dsn) as probes:
            failed = await failure(probes.probe_for(spec_of(name)))
    assert failed.cause is Cause.FAILED
    assert "PROCESS" in failed.detail


async def test_a_user_that_may_not_create_gets_the_statements_to_run(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    with user(primary, "blind", f"{primary.monitor_right} ON *.*") as dsn:
        async with probes_of(primary, dsn=dsn) as probes:
            table = {"table": "forbidden.commit_probe"}
            failed = await failure(probes.probe_for(spec_of("commit_delay", options=table)))
            assert "CREATE TABLE IF NOT EXISTS `forbidden`.`commit_probe`" in failed.detail
            writer = probes.heartbeat_writer("forbidden.heartbeat")
            with pytest.raises(ProbeFailed, match="CREATE TABLE IF NOT EXISTS"):
                await writer.beat()
            await writer.close()


TO_RUN = "as an administrator run: "


async def test_the_statements_to_run_are_all_that_is_missing(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    with user(primary, "plain_writer") as dsn:
        async with probes_of(primary, dsn=dsn) as probes:
            writer = probes.heartbeat_writer("made_by_hand.heartbeat")
            for _ in range(2):  # first to look at replication, then to write
                with pytest.raises(ProbeFailed) as caught:
                    await writer.beat()
                execute(primary, *caught.value.detail.partition(TO_RUN)[2].split("; "))
            assert await writer.beat() is True
            table = {"table": "made_by_hand.commit_probe"}
            commit = probes.probe_for(spec_of("commit_delay", options=table))
            failed = await failure(commit)
            execute(primary, *failed.detail.partition(TO_RUN)[2].split("; "))
            assert await value(commit) > 0
            await writer.close()
    execute(primary, "DROP DATABASE made_by_hand")


async def test_a_table_without_a_schema_is_made_in_that_of_the_dsn(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    execute(primary, "CREATE DATABASE plain_app", "CREATE TABLE plain_app.t (n INT)")
    with user(
        primary, "plain_writer", f"{primary.monitor_right} ON *.*", "SELECT ON plain_app.t"
    ) as dsn:
        async with probes_of(primary, dsn=f"{dsn}plain_app") as probes:
            writer = probes.heartbeat_writer("heartbeat")
            with pytest.raises(ProbeFailed) as caught:
                await writer.beat()
            execute(primary, *caught.value.detail.partition(TO_RUN)[2].split("; "))
            assert await writer.beat() is True
            await writer.close()
    execute(primary, "DROP DATABASE plain_app")


async def test_secrets_stand_in_no_message(mariadb_pair: Pair[MariaDBServer]) -> None:
    secret = "hunter2-secret"
    port = mariadb_pair.primary.port
    for dsn in (
        f"mysql://nobody:{secret}@127.0.0.1:{port}/app",
        f"mysql://nobody:{secret}@127.0.0.1:1/app",
    ):
        async with probes_of(mariadb_pair.primary, dsn=dsn) as probes:
            failed = await failure(probes.probe_for(spec_of("threads_running")))
        assert failed.cause is Cause.FAILED
        assert "127.0.0.1" in failed.detail
        assert secret not in repr(failed) + failed.detail


async def test_the_unix_socket_of_a_dsn_is_used(mariadb_pair: Pair[MariaDBServer]) -> None:
    server = mariadb_pair.primary
    dsn = f"mysql://{server.user}@localhost/?socket={server.socket_path}"
    async with probes_of(server, dsn=dsn) as probes:
        assert await read(probes, "pool_usage") > 0


# --- an operator's own query ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT 42", 42),
        ("SELECT 1.5", 1.5),
        ("SELECT 2.5e0 -- with a comment", 2.5),
        ("-- a comment first\nSELECT 4", 4),
        ("/* a comment\nfirst */ SHOW GLOBAL STATUS LIKE 'Threads_connected'", None),
        ("WITH a AS (SELECT 7 AS n) SELECT n FROM a", 7),
        ("SHOW GLOBAL STATUS LIKE 'Threads_connected'", None),
        ("SELECT COUNT(*) FROM mysql.db WHERE Db LIKE '%' OR 1", None),
    ],
)
async def test_custom_sql_answers_one_number(
    mariadb_pair: Pair[MariaDBServer], query: str, value: float | None
) -> None:
    """R6"""
    async with probes_of(mariadb_pair.primary) as probes:
        answer = await read(probes, "mine", sql=query, threshold=1)
    assert answer >= 0 if value is None else answer == value


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT NULL", "NULL"),
        ("SELECT 1 FROM DUAL WHERE 0", "no row"),
        ("SELECT seq FROM mysql.seq_1_to_100000000", "more than one row"),
        ("SELECT 1, 2", "2 columns"),
        ("SELECT 'twelve'", "text"),
        ("SELECT '12'", "text"),
        ("SELECT UTC_TIMESTAMP()", "datetime"),
        ("SHOW GLOBAL STATUS LIKE 'Threads%'", "more than one row"),
        ("SHOW GLOBAL STATUS LIKE 'no such thing'", "no row"),
        ("SHOW GLOBAL STATUS LIKE 'Rpl_status'", "no number"),
    ],
)
async def test_custom_sql_that_is_no_number_is_invalid(
    mariadb_pair: Pair[MariaDBServer], query: str, said: str
) -> None:
    """R6, R9. (MySQL has no NaN: what would be one is NULL.)"""
    async with probes_of(mariadb_pair.primary) as probes:
        failed = await sql_failure(probes, query)
        assert failed.cause is Cause.INVALID, failed.detail
        assert said in failed.detail
        assert await read(probes, "mine", sql="SELECT 1", threshold=1) == 1


@pytest.mark.parametrize(
    "query",
    ["SELECT REPEAT('x', 12000000)", "SELECT 1 UNION ALL SELECT REPEAT('x', 12000000)"],
)
async def test_a_huge_value_is_rejected_before_it_is_received(
    mariadb_pair: Pair[MariaDBServer], query: str
) -> None:
    primary = mariadb_pair.primary
    async with probes_of(primary) as probes:
        failed = await sql_failure(probes, query)
        assert failed.cause is Cause.INVALID
        assert "bytes or more" in failed.detail
        assert await read(probes, "mine", sql="SELECT 1", threshold=1) == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; DELETE FROM app.kept",
        "SELECT 1; COMMIT; DELETE FROM app.kept",
        "SELECT app.erase()",
        "WITH a AS (SELECT 1) DELETE FROM app.kept",
    ],
)
async def test_custom_sql_cannot_write(mariadb_pair: Pair[MariaDBServer], query: str) -> None:
    primary = mariadb_pair.primary
    execute(
        primary,
        "SET sql_log_bin = 0",
        "CREATE DATABASE IF NOT EXISTS app",
        *made_anew("app.kept (n INT) ENGINE=InnoDB"),
        "INSERT INTO app.kept VALUES (1)",
        "DROP FUNCTION IF EXISTS app.erase",
        "CREATE FUNCTION app.erase() RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
        " BEGIN DELETE FROM app.kept; RETURN 1; END",
    )
    async with probes_of(primary) as probes:
        assert (await sql_failure(probes, query)).cause is Cause.FAILED
        count = await read(probes, "mine", sql="SELECT COUNT(*) FROM app.kept", threshold=1)
    execute(primary, "SET sql_log_bin = 0", "DROP DATABASE app")
    assert count == 1


# --- slow, frozen, killed ------------------------------------------------------------------


async def test_a_timed_out_statement_ends_on_the_server(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """R26, observer effect: a cancelled MySQL client alone would leave the statement running."""
    primary = mariadb_pair.primary
    asleep = (
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT SLEEP(300)%'"
    )
    async with probes_of(primary) as probes:
        slow = probes.probe_for(
            spec_of("mine", sql="SELECT SLEEP(300)", threshold=1, timeout_s=2.0)
        )
        await cut_off(slow, when=lambda: scalar(primary, asleep) == 1)
        await aeventually(lambda: scalar(primary, asleep) == 0)


async def test_a_statement_that_the_server_ends_is_a_timeout(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    async with probes_of(mariadb_pair.primary) as probes:
        slow = spec_of("mine", sql="SELECT SLEEP(300)", threshold=1, timeout_s=0.1)
        failed = await failure(probes.probe_for(slow))
    assert failed.cause is Cause.TIMED_OUT, failed.detail


async def test_fifty_timeouts_leak_no_connection(mariadb_pair: Pair[MariaDBServer]) -> None:
    """R26"""
    primary = mariadb_pair.primary
    sockets_before = open_sockets()
    with user(primary, "patient") as dsn:
        async with probes_of(primary, dsn=dsn, max_connections=3) as probes:
            slow = probes.probe_for(
                spec_of("mine", sql="SELECT SLEEP(300)", threshold=1, timeout_s=0.05)
            )
            for _ in range(10):
                assert not any(await asyncio.gather(*(works(slow, 0.04) for _ in range(5))))
                await asyncio.sleep(0)  # asyncio closes a socket on its next turn
                assert open_sockets() - sockets_before <= 3
            await aeventually(lambda: sessions(primary, "patient") <= 3)
        await aeventually(lambda: sessions(primary, "patient") == 0)
    assert open_sockets() == sockets_before


async def test_a_frozen_server_times_out_and_recovers(lent_mariadb: Pair[MariaDBServer]) -> None:
    """A hung database is never healthy, and never hangs us: not a query, a connect, a close. All
    of them end while it stays frozen."""
    primary = lent_mariadb.primary
    async with probes_of(primary) as probes, probes_of(primary) as idle:
        running = probes.probe_for(spec_of("threads_running"))
        await value(running)
        await value(idle.probe_for(spec_of("threads_running")))
        primary.pause()
        for _ in range(3):  # The first on the open connection, the others on new ones.
            with pytest.raises(TimeoutError):
                await within(running, 0.3)
        await idle.close()
        primary.resume()
        await becomes(lambda: works(running))


async def test_a_killed_server_fails_and_recovers_after_its_restart(
    lent_mariadb: Pair[MariaDBServer],
) -> None:
    primary = lent_mariadb.primary
    async with probes_of(primary) as probes:
        running = probes.probe_for(spec_of("threads_running"))
        await value(running)
        primary.kill()
        eventually(lambda: not answers(primary))
        failed = await failure(running)
        assert failed.cause is Cause.FAILED
        assert f"127.0.0.1:{primary.port}" in failed.detail
        failed = await failure(running)
        assert "refused" in failed.detail.lower(), failed.detail
        primary.restart()
        assert await value(running) >= 0


def answers(server: MariaDBServer) -> bool:
    try:
        server.query("SELECT 1")
    except pymysql.err.Error:
        return False
    return True


@pytest.fixture
def narrow(lent_mariadb: Pair[MariaDBServer]) -> Iterator[MariaDBServer]:
    primary = lent_mariadb.primary
    [before] = primary.query("SELECT @@max_connections AS n")
    execute(primary, "SET GLOBAL max_connections = 10")
    yield primary
    execute(primary, f"SET GLOBAL max_connections = {before['n']}")


async def test_too_many_clients_is_a_failure(narrow: MariaDBServer) -> None:
    """R5: a full server rejects even the probe, unless it has its connection already."""
    primary = narrow
    with user(primary, "plain_user") as dsn:
        async with probes_of(primary, dsn=dsn) as inside, probes_of(primary, dsn=dsn) as outside:
            usage = inside.probe_for(spec_of("pool_usage"))
            assert await value(usage) < 1
            crowd: list[Any] = []
            with pytest.raises(pymysql.err.OperationalError):
                while True:
                    crowd.append(connect_as(primary, "plain_user"))
            failed = await failure(outside.probe_for(spec_of("pool_usage")))
            assert failed.cause is Cause.FAILED
            assert "Too many connections" in failed.detail
            assert await value(usage) >= 1.0
            for connection in crowd:
                connection.close()


def connect_as(server: MariaDBServer, name: str) -> Any:
    return pymysql.connect(host=server.host, port=server.port, user=name, ssl_disabled=True)


# --- TLS -----------------------------------------------------------------------------------


async def test_ssl_ca_demands_tls_and_verifies_it(servers_dir: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    folder = folder_for_all(servers_dir)
    trusted, other = folder / "ca.pem", folder / "other.pem"
    authority.cert_pem.write_to_path(trusted)
    stranger.cert_pem.write_to_path(other)
    options = tls_options(authority, folder)
    with mariadb.start_primary(servers_dir, options=options, cache_dir=CACHE_DIR) as server:
        async with probes_of(server, dsn=f"{dsn_of(server)}?ssl_ca={trusted}") as probes:
            seen = (
                "SELECT COUNT(*) FROM information_schema.SESSION_STATUS"
                " WHERE VARIABLE_NAME = 'SSL_VERSION' AND VARIABLE_VALUE LIKE 'TLSv1%'"
            )
            assert await read(probes, "mine", sql=seen, threshold=1) == 1
        async with probes_of(server, dsn=f"{dsn_of(server)}?ssl_ca={other}") as probes:
            failed = await failure(probes.probe_for(spec_of("threads_running")))
            assert failed.cause is Cause.FAILED
            assert "certificate" in failed.detail.lower()


def folder_for_all(servers_dir: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=servers_dir))
    folder.chmod(0o755)
    return folder


def tls_options(authority: trustme.CA, folder: Path) -> tuple[str, ...]:
    issued = authority.issue_cert("127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o644)  # the server runs as another user; the key lives as long as the test
    return f"--ssl-cert={cert}", f"--ssl-key={key}"


async def test_a_server_without_tls_is_not_talked_to_in_plain_text(
    servers_dir: Path, tmp_path: Path
) -> None:
    """aiomysql by itself would fall back, and send the password's hash. MariaDB 11.4 and later make
    a certificate of their own where nobody gives them one."""
    trusted = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(trusted)
    with mariadb.start_primary(servers_dir, cache_dir=CACHE_DIR, options=("--skip-ssl",)) as server:
        async with probes_of(server, dsn=f"{dsn_of(server)}?ssl_ca={trusted}") as probes:
            failed = await failure(probes.probe_for(spec_of("threads_running")))
    assert failed.cause is Cause.FAILED
    assert "offers no TLS" in failed.detail
