"""Every Postgres probe against real servers: healthy, behind, frozen, killed, locked."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.demo import postgres
from headgate.demo.postgres import PostgresServer
from headgate.errors import InvalidSettings, ProbeFailed
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.probes.factory import DatabaseProbes, MetricProbe
from headgate.metrics.probes.numbers import commit_baseline
from headgate.metrics.samples import Cause, Measured
from headgate.metrics.settings import parse_metric_settings
from tests.fixtures.eventually import aeventually, eventually
from tests.fixtures.servers import CACHE_DIR, Pair
from tests.metrics.probes.reading import (
    becomes,
    cut_off,
    exceeds,
    failure,
    measured,
    open_sockets,
    says,
    within,
    works,
)

ON_ANY_PRIMARY = sorted(
    row.name
    for row in BUILTINS.values()
    if Engine.POSTGRES in row.engines and row.name not in ("archive_backlog",)
)
CLOCKS_S = 0.1
"""How far the clock of servers and that of tests may drift apart within a test."""
OURS = "FROM pg_stat_activity WHERE application_name = 'headgate'"


def spec_of(name: str, **settings: Any) -> MetricSpec:
    """With a timeout that only a fault meets, unless it says another."""
    return parse_metric_settings(name, {"timeout_s": 60.0, **settings}, Engine.POSTGRES)


@asynccontextmanager
async def probes_of(
    server: PostgresServer, *, dsn: str = "", max_connections: int = 3
) -> AsyncIterator[DatabaseProbes]:
    probes = DatabaseProbes(
        "main", Engine.POSTGRES, dsn or server.dsn(), max_connections=max_connections
    )
    try:
        yield probes
    finally:
        await probes.close()


async def read(probes: DatabaseProbes, name: str, **settings: Any) -> float:
    return await value(probes.probe_for(spec_of(name, **settings)))


async def value(probe: MetricProbe) -> float:
    return (await measured(probe)).value


async def is_zero(probe: MetricProbe) -> bool:
    return await value(probe) == 0


async def sql_failure(probes: DatabaseProbes, query: str) -> ProbeFailed:
    return await failure(probes.probe_for(spec_of("mine", sql=query, threshold=1)))


def execute(server: PostgresServer, *statements: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def scalar(server: PostgresServer, query: str) -> Any:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


@contextmanager
def role(server: PostgresServer, name: str) -> Iterator[str]:
    """A role without any rights; yields its DSN."""
    execute(server, f"CREATE ROLE {name} LOGIN")
    try:
        yield server.dsn(user=name)
    finally:
        execute(server, f"DROP ROLE {name}")


async def in_sync(pair: Pair[PostgresServer]) -> None:
    # Not the insert position: at the end of a page it stands past a header that nobody wrote yet.
    position = scalar(pair.primary, "SELECT pg_logical_emit_message(false, 'in_sync', '')")
    await aeventually(
        lambda: scalar(pair.replica, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
    )


@pytest.fixture(autouse=True)
def nobody_writes_heartbeats(request: pytest.FixtureRequest) -> None:
    """An agent of another test may have left its row, which would be read."""
    if "postgres_pair" in request.fixturenames:
        primary = request.getfixturevalue("postgres_pair").primary
        execute(primary, "DROP TABLE IF EXISTS headgate.heartbeat")


# --- healthy -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_ANY_PRIMARY)
async def test_every_builtin_reads_on_a_healthy_primary(
    postgres_pair: Pair[PostgresServer], name: str
) -> None:
    async with probes_of(postgres_pair.primary) as probes:
        probe = probes.probe_for(spec_of(name))
        await becomes(lambda: works(probe))
        assert 0 <= await value(probe) < 10_000


async def test_healthy_values_are_plausible(postgres_pair: Pair[PostgresServer]) -> None:
    async with probes_of(postgres_pair.primary) as probes:
        for name in ("threads_running", "lock_waits", "longest_lock_wait", "oldest_transaction"):
            await becomes(partial(is_zero, probes.probe_for(spec_of(name))))
        assert 0.01 <= await read(probes, "pool_usage") < 0.5
        began = time.monotonic()
        assert 0 < await read(probes, "commit_delay") < time.monotonic() - began
        assert 0 < await read(probes, "disk_used") <= 1


async def test_a_standby_has_no_commit_delay(postgres_pair: Pair[PostgresServer]) -> None:
    async with probes_of(postgres_pair.replica) as probes:
        failed = await failure(probes.probe_for(spec_of("commit_delay")))
    assert failed.cause is Cause.UNSUPPORTED
    assert "primary" in failed.detail


async def test_archive_backlog_without_an_archive_is_unsupported_not_zero(
    postgres_pair: Pair[PostgresServer],
) -> None:
    async with probes_of(postgres_pair.primary) as probes:
        failed = await failure(probes.probe_for(spec_of("archive_backlog")))
    assert failed.cause is Cause.UNSUPPORTED


@contextmanager
def alone(servers_dir: Path, **settings: str) -> Iterator[PostgresServer]:
    """A server without a replica, with settings that need a start."""
    with postgres.start_primary(
        servers_dir, settings=settings, durable=False, cache_dir=CACHE_DIR
    ) as server:
        yield server


async def test_archive_backlog_counts_files_that_wait(servers_dir: Path) -> None:
    with alone(servers_dir, archive_mode="on", archive_command="false") as primary:
        await counts_files_that_wait(primary)


async def counts_files_that_wait(primary: PostgresServer) -> None:
    async with probes_of(primary) as probes:
        assert await read(probes, "archive_backlog") == 0
        for _ in range(3):
            execute(
                primary,
                "SELECT pg_logical_emit_message(true, 'test', 'fill')",
                "SELECT pg_switch_wal()",
            )
        assert await read(probes, "archive_backlog") == 3


async def test_disk_used_without_its_directory_says_give_a_path(
    postgres_pair: Pair[PostgresServer],
) -> None:
    async with probes_of(postgres_pair.primary) as probes:
        missing = probes.probe_for(spec_of("disk_used", options={"path": "/nowhere/at/all"}))
        failed = await failure(missing)
        assert failed.cause is Cause.UNSUPPORTED
        assert "`path`" in failed.detail
        assert 0 < await read(probes, "disk_used", options={"path": "/"}) <= 1


async def test_commit_baseline_suggests_a_threshold(postgres_pair: Pair[PostgresServer]) -> None:
    """R15"""
    async with probes_of(postgres_pair.primary) as probes:
        baseline = await commit_baseline(probes.probe_for(spec_of("commit_delay")), count=50)
    assert 0 < baseline.p50_s <= baseline.p99_s
    assert baseline.suggested_s >= max(0.010, 5 * baseline.p99_s * 0.999)


# --- lag -----------------------------------------------------------------------------------


@contextmanager
def replay_paused(replica: PostgresServer) -> Iterator[None]:
    execute(replica, "SELECT pg_wal_replay_pause()")
    eventually(lambda: scalar(replica, "SELECT pg_get_wal_replay_pause_state()") == "paused")
    try:
        yield
    finally:
        execute(replica, "SELECT pg_wal_replay_resume()")


def write(primary: PostgresServer) -> None:
    execute(
        primary,
        "CREATE TABLE IF NOT EXISTS traffic (n int)",
        "INSERT INTO traffic VALUES (1)",
    )


@pytest.mark.parametrize("side", ["primary", "replica"])
async def test_lag_grows_while_replay_is_paused_and_returns(
    postgres_pair: Pair[PostgresServer], side: str
) -> None:
    """R22: with all WAL received and none replayed, on the standby and as its primary sees it."""
    began = time.monotonic()
    write(postgres_pair.primary)
    await in_sync(postgres_pair)
    async with probes_of(getattr(postgres_pair, side)) as probes:
        lag = probes.probe_for(spec_of("lag"))
        await becomes(lambda: is_current(lag, postgres_pair))
        with replay_paused(postgres_pair.replica):
            write(postgres_pair.primary)
            await becomes(lambda: exceeds(lag, 0.3))
            first = await value(lag)
            await becomes(lambda: exceeds(lag, 0.9))
            assert first < await value(lag) < time.monotonic() - began + CLOCKS_S
        await becomes(lambda: is_current(lag, postgres_pair))


async def is_current(probe: MetricProbe, pair: Pair[PostgresServer]) -> bool:
    """After one more write: where nobody writes a heartbeat, a silent primary may be gone."""
    write(pair.primary)
    await in_sync(pair)
    return await is_without_lag(probe)


async def is_without_lag(probe: MetricProbe) -> bool:
    try:
        return (await measured(probe)) == Measured(0.0)
    except ProbeFailed as failed:
        assert failed.cause is Cause.WARMING_UP
        return False


async def test_an_idle_primary_is_not_lag(postgres_pair: Pair[PostgresServer]) -> None:
    """By positions: the last replayed commit grows old on a standby that misses nothing."""
    write(postgres_pair.primary)
    await in_sync(postgres_pair)
    since_replay = "SELECT extract(epoch FROM now() - pg_last_xact_replay_timestamp())::float8"
    await aeventually(lambda: scalar(postgres_pair.replica, since_replay) > 0.5)
    async with probes_of(postgres_pair.replica) as probes:
        lag = probes.probe_for(spec_of("lag", options={"method": "native"}))
        await becomes(lambda: is_without_lag(lag))


async def test_misleading_zero_lag_when_the_primary_is_gone(
    lent_postgres: Pair[PostgresServer],
) -> None:
    """R22: stopped replication grows, it is never 0."""
    write(lent_postgres.primary)
    await in_sync(lent_postgres)
    async with probes_of(lent_postgres.replica) as probes:
        lag = probes.probe_for(spec_of("lag"))
        await becomes(lambda: is_current(lag, lent_postgres))
        lent_postgres.primary.kill()
        await becomes(lambda: says(lag, Cause.REPLICATION_BROKEN))
        broken = await measured(lag)
        assert f"127.0.0.1:{lent_postgres.primary.port}" in broken.detail
        assert "not running" in broken.detail
        await becomes(lambda: exceeds(lag, broken.value + 0.2))
        lent_postgres.primary.restart()
        await becomes(lambda: is_current(lag, lent_postgres))


async def test_lag_of_a_standby_that_never_replayed_is_unknown_not_zero(
    fresh_postgres: Pair[PostgresServer],
) -> None:
    fresh_postgres.primary.kill()
    fresh_postgres.replica.restart()
    async with probes_of(fresh_postgres.replica) as probes:
        failed = await failure(probes.probe_for(spec_of("lag")))
    assert failed.cause is Cause.REPLICATION_BROKEN
    assert "unknown" in failed.detail


async def test_a_vanished_replica_keeps_growing_on_the_primary(
    lent_postgres: Pair[PostgresServer],
) -> None:
    async with probes_of(lent_postgres.primary) as probes:
        lag = probes.probe_for(spec_of("lag"))
        await becomes(lambda: is_current(lag, lent_postgres))
        lent_postgres.replica.stop()
        await becomes(lambda: exceeds(lag, 0.4))
        first = await value(lag)
        await becomes(lambda: exceeds(lag, first + 0.2))
        lent_postgres.replica.restart()
        await becomes(lambda: is_current(lag, lent_postgres))


async def test_a_primary_without_replicas_has_no_lag_to_report(
    lent_postgres: Pair[PostgresServer],
) -> None:
    lent_postgres.replica.stop()
    eventually(
        lambda: scalar(lent_postgres.primary, "SELECT count(*) FROM pg_stat_replication") == 0
    )
    async with probes_of(lent_postgres.primary) as probes:
        failed = await failure(probes.probe_for(spec_of("lag")))
    assert failed.cause is Cause.UNSUPPORTED


async def test_promotion_turns_standby_lag_into_primary_lag(
    lent_postgres: Pair[PostgresServer],
) -> None:
    async with probes_of(lent_postgres.replica) as probes:
        lag = probes.probe_for(spec_of("lag"))
        await becomes(lambda: is_current(lag, lent_postgres))
        lent_postgres.primary.stop()
        lent_postgres.replica.promote()
        assert (await failure(lag)).cause is Cause.UNSUPPORTED


async def test_heartbeats_measure_lag_and_only_the_primary_writes_them(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R20–R22: heartbeat writer on the wrong host."""
    options = {"method": "heartbeat"}
    async with probes_of(postgres_pair.primary) as up, probes_of(postgres_pair.replica) as down:
        writer = up.heartbeat_writer("headgate.heartbeat", interval_s=20, timeout_s=60)
        wrong = down.heartbeat_writer("headgate.heartbeat", timeout_s=60)
        began = time.monotonic()
        assert await writer.beat() is True
        assert await wrong.beat() is False
        await in_sync(postgres_pair)
        lag = down.probe_for(spec_of("lag", options=options))
        first = await value(lag)
        assert 0 <= first < time.monotonic() - began + CLOCKS_S
        await becomes(lambda: exceeds(lag, first + 0.3))
        began = time.monotonic()
        assert await writer.beat() is True
        await in_sync(postgres_pair)
        assert 0 <= await value(lag) < time.monotonic() - began + CLOCKS_S
        await writer.close()
        await wrong.close()
    execute(postgres_pair.primary, "DROP SCHEMA headgate CASCADE")


async def test_a_heartbeat_from_the_future_is_clock_skew_not_zero(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R24"""
    table = "public.skewed"
    execute(
        postgres_pair.primary,
        f"CREATE TABLE {table} (id int, ts timestamptz, server text)",
        f"INSERT INTO {table} VALUES (1, clock_timestamp() + interval '1 hour', 'x')",
    )
    await in_sync(postgres_pair)
    async with probes_of(postgres_pair.replica) as probes:
        options = {"method": "heartbeat", "heartbeat_table": table}
        failed = await failure(probes.probe_for(spec_of("lag", options=options)))
    execute(postgres_pair.primary, f"DROP TABLE {table}")
    assert failed.cause is Cause.CLOCK_SKEW
    assert "NTP" in failed.detail


async def test_misleading_zero_lag_from_the_primarys_own_heartbeat(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R22: a server that is no replica has no lag, however fresh its row."""
    async with probes_of(postgres_pair.primary) as probes:
        writer = probes.heartbeat_writer("own.heartbeat")
        assert await writer.beat() is True
        options = {"method": "heartbeat", "heartbeat_table": "own.heartbeat"}
        failed = await failure(probes.probe_for(spec_of("lag", options=options)))
        await writer.close()
    execute(postgres_pair.primary, "DROP SCHEMA own CASCADE")
    assert failed.cause is Cause.UNSUPPORTED
    assert "check on the replica" in failed.detail


async def test_a_logical_subscriber_reads_the_heartbeat_and_does_not_write_it(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """It is not in recovery, but its rows come from elsewhere."""
    primary = postgres_pair.primary
    table = "CREATE TABLE public.fed (id int PRIMARY KEY, ts timestamptz, server text)"
    began = time.monotonic()
    never = "CONNECTION 'host=127.0.0.1 port=1' PUBLICATION fed"
    execute(
        primary,
        table,
        "INSERT INTO public.fed VALUES (1, clock_timestamp() - interval '5 s', 'x')",
        f"CREATE SUBSCRIPTION fed {never} WITH (connect = false)",
        "INSERT INTO pg_subscription_rel SELECT oid, 'public.fed'::regclass, 'r', NULL"
        " FROM pg_subscription",
    )
    async with probes_of(primary) as probes:
        options = {"method": "heartbeat", "heartbeat_table": "public.fed"}
        lag_s = await read(probes, "lag", options=options)
        writer = probes.heartbeat_writer("public.fed")
        assert await writer.beat() is False
        await writer.close()
    execute(
        primary,
        "ALTER SUBSCRIPTION fed SET (slot_name = NONE)",
        "DROP SUBSCRIPTION fed",
        "DROP TABLE public.fed",
    )
    assert 5 <= lag_s < 5 + time.monotonic() - began + CLOCKS_S


async def test_a_missing_heartbeat_table_says_what_to_do(
    postgres_pair: Pair[PostgresServer],
) -> None:
    async with probes_of(postgres_pair.replica) as probes:
        options = {"method": "heartbeat", "heartbeat_table": "no.where"}
        failed = await failure(probes.probe_for(spec_of("lag", options=options)))
    assert failed.cause is Cause.FAILED
    assert "heartbeat_interval_s" in failed.detail


# --- what only other sessions can show -----------------------------------------------------


@asynccontextmanager
async def blocked_sessions(server: PostgresServer, waiting: int) -> AsyncIterator[None]:
    """One session holds a table lock, `waiting` others want it."""
    execute(server, "CREATE TABLE IF NOT EXISTS contended (n int)")
    holder = await psycopg.AsyncConnection.connect(server.dsn())
    await holder.execute("LOCK TABLE contended")
    others = [await psycopg.AsyncConnection.connect(server.dsn()) for _ in range(waiting)]
    wants = [asyncio.create_task(o.execute("SELECT count(*) FROM contended")) for o in others]
    try:
        yield
    finally:
        await holder.rollback()
        await asyncio.gather(*wants)
        for connection in (holder, *others):
            await connection.close()


async def test_lock_waits_counts_blocked_sessions_and_times_the_longest(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary, began = postgres_pair.primary, time.monotonic()
    async with probes_of(primary) as probes, blocked_sessions(primary, waiting=3):
        waits = probes.probe_for(spec_of("lock_waits"))
        longest = probes.probe_for(spec_of("longest_lock_wait"))
        await becomes(lambda: exceeds(waits, 2.5))
        assert await waits.read() == 3
        await becomes(lambda: exceeds(longest, 0.3))
        assert await value(longest) < time.monotonic() - began + CLOCKS_S
        # Blocked statements are statements being executed.
        assert await read(probes, "threads_running") == 3
        assert await read(probes, "oldest_transaction") > 0.3


async def test_autovacuum_looks_at_the_named_tables_only(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary = postgres_pair.primary
    execute(primary, "CREATE TABLE IF NOT EXISTS bulk (n int)")
    async with probes_of(primary) as probes:
        assert await read(probes, "autovacuum", options={"tables": ["public.bulk"]}) == 0
        missing = spec_of("autovacuum", options={"tables": ["public.bulk", "public.absent"]})
        failed = await failure(probes.probe_for(missing))
    assert failed.cause is Cause.FAILED
    assert "public.absent" in failed.detail


async def test_autovacuum_sees_a_worker_at_work(lent_postgres: Pair[PostgresServer]) -> None:
    primary = lent_postgres.primary
    execute(
        primary,
        "CREATE TABLE bulk (n int, filler text) WITH (autovacuum_vacuum_cost_delay = 100,"
        " autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_threshold = 1)",
        "INSERT INTO bulk SELECT n, repeat('x', 500) FROM generate_series(1, 5000) n",
        "DELETE FROM bulk WHERE n % 2 = 0",
        "ALTER SYSTEM SET autovacuum_naptime = 1",
        "SELECT pg_reload_conf()",
    )
    async with probes_of(primary) as probes:
        named = probes.probe_for(spec_of("autovacuum", options={"tables": ["public.bulk"]}))
        everywhere = probes.probe_for(spec_of("autovacuum"))
        await becomes(lambda: exceeds(named, 0.5))
        assert await value(everywhere) >= 1
        other = "pg_catalog.pg_class"
        assert await read(probes, "autovacuum", options={"tables": [other]}) == 0
    execute(primary, "DROP TABLE bulk")


async def test_a_commit_stall_is_seen(postgres_pair: Pair[PostgresServer]) -> None:
    """R12: lag and threads_running miss a primary whose commits hang."""
    primary = postgres_pair.primary
    dsn = primary.dsn() + " options='-c synchronous_commit=on'"
    async with probes_of(primary, dsn=dsn) as probes:
        commit = probes.probe_for(spec_of("commit_delay"))
        assert await value(commit) > 0
        held = f"SELECT count(*) {OURS} AND wait_event = 'SyncRep'"
        names = "SHOW synchronous_standby_names"
        execute(
            primary,
            "ALTER SYSTEM SET synchronous_standby_names = 'nobody_there'",
            "SELECT pg_reload_conf()",
        )
        try:
            await aeventually(lambda: scalar(primary, names) == "nobody_there")
            await cut_off(commit, when=lambda: scalar(primary, held) == 1)
        finally:
            execute(
                primary, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"
            )
        await becomes(lambda: works(commit))


# --- what may not be seen is not 0 ---------------------------------------------------------


@pytest.mark.parametrize("name", ["threads_running", "pool_usage", "oldest_transaction", "lag"])
async def test_a_role_that_sees_nothing_fails_instead_of_reading_zero(
    postgres_pair: Pair[PostgresServer], name: str
) -> None:
    primary = postgres_pair.primary
    with role(primary, "blind") as dsn:
        async with probes_of(primary, dsn=dsn) as probes:
            failed = await failure(probes.probe_for(spec_of(name)))
        eventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") == 0)
    assert failed.cause is Cause.FAILED
    assert "GRANT pg_monitor TO blind" in failed.detail


async def test_a_role_that_may_not_create_gets_the_statements_to_run(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary = postgres_pair.primary
    with role(primary, "blind") as dsn:
        async with probes_of(primary, dsn=dsn) as probes:
            writer = probes.heartbeat_writer("nowhere.heartbeat")
            with pytest.raises(ProbeFailed, match="CREATE SCHEMA IF NOT EXISTS"):
                await writer.beat()
            await writer.close()
        eventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") == 0)


TO_RUN = "as an administrator run: "


@pytest.mark.parametrize("name", ["made_by_hand.heartbeat", "heartbeat_by_hand"])
async def test_the_statements_to_run_are_all_that_is_missing(
    postgres_pair: Pair[PostgresServer], name: str
) -> None:
    """Exactly what is printed, first to write, then for another role to read."""
    primary, replica = postgres_pair.primary, postgres_pair.replica
    options = {"method": "heartbeat", "heartbeat_table": name}
    with role(primary, "plain_writer") as dsn, role(primary, "plain_reader"):
        async with probes_of(primary, dsn=dsn) as up:
            writer = up.heartbeat_writer(name)
            with pytest.raises(ProbeFailed) as caught:
                await writer.beat()
            execute(primary, *caught.value.detail.partition(TO_RUN)[2].split("; "))
            assert await writer.beat() is True
            await writer.close()
        await in_sync(postgres_pair)
        async with probes_of(replica, dsn=replica.dsn(user="plain_reader")) as down:
            lag = down.probe_for(spec_of("lag", options=options))
            failed = await failure(lag)
            assert "pg_monitor" not in failed.detail
            execute(primary, *failed.detail.partition(TO_RUN)[2].split("; "))
            await in_sync(postgres_pair)
            assert await value(lag) >= 0
        eventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") == 0)
        execute(primary, f"DROP TABLE {name}", "DROP SCHEMA IF EXISTS made_by_hand CASCADE")


async def test_a_table_without_rights_for_the_writer_gets_them_printed(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary = postgres_pair.primary
    with role(primary, "plain_writer") as dsn:
        async with probes_of(primary) as admin, probes_of(primary, dsn=dsn) as probes:
            made = admin.heartbeat_writer("made_before.heartbeat")
            assert await made.beat() is True
            writer = probes.heartbeat_writer("made_before.heartbeat")
            with pytest.raises(ProbeFailed) as caught:
                await writer.beat()
            execute(primary, *caught.value.detail.partition(TO_RUN)[2].split("; "))
            assert await writer.beat() is True
            await writer.close()
            await made.close()
        eventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") == 0)
        execute(primary, "DROP SCHEMA made_before CASCADE")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("mine", {"sql": "SELECT count(*) FROM jobs", "threshold": 1}, "GRANT SELECT"),
        ("disk_used", {}, "GRANT pg_monitor TO blind"),
    ],
)
async def test_a_missing_right_is_named_as_the_one_that_helps(
    postgres_pair: Pair[PostgresServer], name: str, settings: dict[str, Any], said: str
) -> None:
    primary = postgres_pair.primary
    execute(primary, "CREATE TABLE IF NOT EXISTS jobs (n int)")
    with role(primary, "blind") as dsn:
        async with probes_of(primary, dsn=dsn) as probes:
            failed = await failure(probes.probe_for(spec_of(name, **settings)))
        eventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") == 0)
    assert failed.cause is Cause.FAILED
    assert said in failed.detail
    assert ("pg_monitor" in said) == ("pg_monitor" in failed.detail)


async def test_secrets_stand_in_no_message(postgres_pair: Pair[PostgresServer]) -> None:
    secret = "hunter2-secret"
    free = f"postgresql://someone:{secret}@127.0.0.1:1/app"
    async with probes_of(postgres_pair.primary, dsn=free) as probes:
        failed = await failure(probes.probe_for(spec_of("threads_running")))
    assert failed.cause is Cause.FAILED
    assert "127.0.0.1:1/app" in failed.detail
    assert secret not in repr(failed) + failed.detail


def test_a_dsn_that_cannot_be_read_is_not_quoted() -> None:
    with pytest.raises(InvalidSettings) as caught:
        DatabaseProbes("main", Engine.POSTGRES, "postgresql://u:hunter2@[::1/app?x")
    assert "hunter2" not in str(caught.value)


# --- an operator's own query ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT 42", 42),
        ("SELECT 1.5::numeric", 1.5),
        ("SELECT 0.25::float8 -- with a comment", 0.25),
        ("WITH a AS (SELECT 7 AS n) SELECT n FROM a", 7),
        ("VALUES (3)", 3),
        ("SELECT 5 AS headgate", 5),
        ("-- a comment first\nSELECT 4", 4),
        ("/* a comment\nfirst */ SHOW max_connections", 100),
        ("SHOW max_connections", 100),
        ("SELECT count(*) FROM pg_class WHERE relname LIKE 'pg%%'", None),
    ],
)
async def test_custom_sql_answers_one_number(
    postgres_pair: Pair[PostgresServer], query: str, value: float | None
) -> None:
    """R6"""
    async with probes_of(postgres_pair.primary) as probes:
        answer = await read(probes, "mine", sql=query, threshold=1)
    assert answer > 0 if value is None else answer == value


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT NULL::int", "NULL"),
        ("SELECT 1 WHERE false", "no row"),
        ("SELECT generate_series(1, 100000000)", "more than one row"),
        ("SELECT 1, 2", "2 columns"),
        ("SELECT 1 AS a, 2 AS a", "2 columns"),
        ("SELECT now()", "datetime"),
        ("SELECT", "0 columns"),
        ("SELECT 'twelve'", "text"),
        ("SELECT '12'", "text"),
        ("SELECT 'NaN'::float8", "nan"),
        ("SELECT 'Infinity'::float8", "inf"),
        ("SELECT true", "boolean"),
        ("SHOW search_path", "no number"),
    ],
)
async def test_custom_sql_that_is_no_number_is_invalid(
    postgres_pair: Pair[PostgresServer], query: str, said: str
) -> None:
    """R6, R9"""
    async with probes_of(postgres_pair.primary) as probes:
        failed = await sql_failure(probes, query)
    assert failed.cause is Cause.INVALID, failed.detail
    assert said in failed.detail


@pytest.mark.parametrize(
    "query",
    [
        "SELECT repeat('x', 60000000)",
        "SELECT 1, repeat('x', 60000000)",
        "SELECT body FROM bulky",
        "SELECT DISTINCT body FROM bulky",
    ],
)
async def test_a_huge_value_stays_on_the_server(
    postgres_pair: Pair[PostgresServer], query: str
) -> None:
    """The second two are stored compressed: 8 MB in less than 100 kB."""
    primary = postgres_pair.primary
    execute(
        primary,
        "CREATE TABLE IF NOT EXISTS bulky (body text)",
        "TRUNCATE bulky",
        "INSERT INTO bulky VALUES (repeat('x', 8000000))",
    )
    async with probes_of(primary) as probes:
        peak_before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        failed = await sql_failure(probes, query)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak_before_kib + 30_000
        assert failed.cause is Cause.INVALID, failed.detail
        assert "bytes" in failed.detail
        assert await read(probes, "mine", sql="SELECT 1", threshold=1) == 1


@pytest.mark.parametrize(
    "query",
    [
        "WITH gone AS (DELETE FROM kept RETURNING n) SELECT count(*) FROM gone",
        "SELECT 1; DELETE FROM kept",
        "SELECT 1) AS x; COMMIT; DELETE FROM kept; SELECT (1",
        "SELECT nextval('counted')",
    ],
)
async def test_custom_sql_cannot_write(postgres_pair: Pair[PostgresServer], query: str) -> None:
    primary = postgres_pair.primary
    execute(
        primary,
        "CREATE TABLE IF NOT EXISTS kept (n int)",
        "CREATE SEQUENCE IF NOT EXISTS counted",
        "TRUNCATE kept",
        "INSERT INTO kept VALUES (1)",
    )
    async with probes_of(primary) as probes:
        assert (await sql_failure(probes, query)).cause is Cause.FAILED
        assert await read(probes, "mine", sql="SELECT count(*) FROM kept", threshold=1) == 1


async def test_a_session_is_kept_after_an_invalid_answer(
    postgres_pair: Pair[PostgresServer],
) -> None:
    async with probes_of(postgres_pair.primary, max_connections=1) as probes:
        pid = await read(probes, "mine", sql="SELECT pg_backend_pid()", threshold=1)
        await sql_failure(probes, "SELECT 'text'")
        assert await read(probes, "mine", sql="SELECT pg_backend_pid()", threshold=1) == pid


# --- slow, frozen, killed ------------------------------------------------------------------


async def test_a_timed_out_statement_ends_on_the_server(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R26, observer effect: what was given up here does not go on there."""
    primary = postgres_pair.primary
    asleep = f"SELECT count(*) {OURS} AND query LIKE '%pg_sleep(300)%' AND state = 'active'"
    async with probes_of(primary) as probes:
        slow = probes.probe_for(
            spec_of("mine", sql="SELECT 1 FROM pg_sleep(300)", threshold=1, timeout_s=2.0)
        )
        await cut_off(slow, when=lambda: scalar(primary, asleep) == 1)
        await aeventually(lambda: scalar(primary, asleep) == 0)


async def test_a_statement_that_the_server_ends_is_a_timeout(
    postgres_pair: Pair[PostgresServer],
) -> None:
    async with probes_of(postgres_pair.primary) as probes:
        slow = spec_of("mine", sql="SELECT 1 FROM pg_sleep(300)", threshold=1, timeout_s=0.1)
        failed = await failure(probes.probe_for(slow))
    assert failed.cause is Cause.TIMED_OUT


async def test_fifty_timeouts_leak_no_connection(postgres_pair: Pair[PostgresServer]) -> None:
    """R26: never more sockets than `connections`, and none left here or there."""
    primary = postgres_pair.primary
    sockets_before = open_sockets()
    async with probes_of(primary, max_connections=3) as probes:
        slow = probes.probe_for(
            spec_of("mine", sql="SELECT 1 FROM pg_sleep(300)", threshold=1, timeout_s=0.05)
        )
        for _ in range(10):
            assert not any(await asyncio.gather(*(works(slow, 0.04) for _ in range(5))))
            assert open_sockets() - sockets_before <= 3
        await aeventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") <= 3)
    await aeventually(lambda: scalar(primary, f"SELECT count(*) {OURS}") == 0)
    assert open_sockets() == sockets_before


async def test_a_frozen_server_times_out_and_recovers(
    lent_postgres: Pair[PostgresServer],
) -> None:
    """A hung database is never healthy, and never hangs us: not a query, a connect, a close. All
    of them end while it stays frozen."""
    primary = lent_postgres.primary
    async with probes_of(primary) as probes:
        running = probes.probe_for(spec_of("threads_running"))
        await value(running)
        primary.pause()
        for _ in range(3):  # The first on the open connection, the others on new ones.
            with pytest.raises(TimeoutError):
                await within(running, 0.3)
        await probes.close()
        primary.resume()
    async with probes_of(primary) as probes:
        running = probes.probe_for(spec_of("threads_running"))
        await becomes(lambda: works(running))


async def test_reads_go_on_after_a_freeze(lent_postgres: Pair[PostgresServer]) -> None:
    primary = lent_postgres.primary
    async with probes_of(primary) as probes:
        running = probes.probe_for(spec_of("threads_running"))
        await value(running)
        primary.pause()
        with pytest.raises(TimeoutError):
            await within(running, 0.3)
        primary.resume()
        await becomes(lambda: works(running))


async def test_a_killed_server_fails_and_recovers_after_its_restart(
    lent_postgres: Pair[PostgresServer],
) -> None:
    primary = lent_postgres.primary
    async with probes_of(primary) as probes:
        running = probes.probe_for(spec_of("threads_running"))
        await value(running)
        primary.kill()
        failed = await failure(running)
        assert failed.cause is Cause.FAILED
        assert "refused" in failed.detail
        assert f"127.0.0.1:{primary.port}/postgres" in failed.detail
        primary.restart()
        # At once: a connection that died while idle is not offered again.
        assert await value(running) == 0


async def test_too_many_clients_is_a_failure(servers_dir: Path) -> None:
    """R5: a full server rejects even the probe, unless it has its connection already."""
    with alone(servers_dir, max_connections="25") as primary:
        await fails_when_full(primary)


async def fails_when_full(primary: PostgresServer) -> None:
    async with probes_of(primary) as inside, probes_of(primary) as outside:
        usage = inside.probe_for(spec_of("pool_usage"))
        assert await value(usage) < 0.5
        crowd: list[psycopg.Connection] = []
        with pytest.raises(psycopg.OperationalError):
            while True:
                crowd.append(psycopg.connect(primary.dsn()))
        failed = await failure(outside.probe_for(spec_of("pool_usage")))
        assert failed.cause is Cause.FAILED
        assert "clients already" in failed.detail
        assert await value(usage) >= 1.0
        for connection in crowd:
            connection.close()


async def test_waiting_for_a_connection_counts_against_the_deadline(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary = postgres_pair.primary
    async with probes_of(primary, max_connections=1) as probes:
        slow = spec_of("mine", sql="SELECT 1 FROM pg_sleep(300)", threshold=1)
        holding = asyncio.create_task(probes.probe_for(slow).read())
        quick = probes.probe_for(spec_of("threads_running"))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await within(quick, 0.2)
        assert not holding.done()
        holding.cancel()
        await becomes(lambda: works(quick))
        execute(primary, f"SELECT pg_terminate_backend(pid) {OURS} AND query LIKE '%pg_sleep%'")
