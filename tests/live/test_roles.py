"""Roles as real servers tell them: through promotions, losses and missing rights."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop

from headgate.demo.postgres import PostgresServer
from headgate.errors import ProbeFailed
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.probes.mysql_replication import MysqlRole
from headgate.metrics.probes.mysql_session import MysqlConnector
from headgate.metrics.probes.postgres_replication import PostgresRole
from headgate.metrics.probes.postgres_session import PostgresConnector
from headgate.metrics.probes.server import Clocks, SqlRoleProbe
from headgate.metrics.samples import Cause
from headgate.shard.topology import Downstream, Role, RoleSeen
from tests.fixtures import mariadb
from tests.fixtures.eventually import aeventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import CACHE_DIR, Pair
from tests.metrics.probes.reading import becomes, open_sockets

AnyServer = PostgresServer | MariaDBServer
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}
CLOCKS_S = 0.1
"""How far the clock of servers and that of tests may drift apart within a test."""
SHUTDOWN = {PostgresServer: signal.SIGINT, MariaDBServer: signal.SIGTERM}


def run_on(loop: str, coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(coroutine)


def dsn_of(server: AnyServer, user: str = "") -> str:
    if isinstance(server, PostgresServer):
        return server.dsn(user=user or "postgres")
    return f"mysql://{user or server.user}@{server.host}:{server.port}/"


@asynccontextmanager
async def role_of(
    server: AnyServer, *, user: str = "", timeout_s: float = 60.0
) -> AsyncIterator[SqlRoleProbe[Any]]:
    engine = Engine.POSTGRES if isinstance(server, PostgresServer) else Engine.MYSQL
    probes = DatabaseProbes("main", engine, dsn_of(server, user))
    probe = probes.role_probe(timeout_s=timeout_s)
    try:
        yield probe
    finally:
        await probe.close()
        await probes.close()


async def failure(probe: SqlRoleProbe[Any]) -> ProbeFailed:
    with pytest.raises(ProbeFailed) as caught:
        await probe.read()
    return caught.value


async def sees(probe: SqlRoleProbe[Any], role: Role) -> bool:
    return (await probe.read()).role is role


def execute(server: AnyServer, *statements: str) -> None:
    if isinstance(server, MariaDBServer):
        for statement in statements:
            server.query(statement)
        return
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# --- Postgres ------------------------------------------------------------------------------


async def test_a_postgres_pair_reports_who_is_who(postgres_pair: Pair[PostgresServer]) -> None:
    async with role_of(postgres_pair.primary) as up, role_of(postgres_pair.replica) as down:
        started = time.monotonic()
        primary, replica = await up.read(), await down.read()
        ended = time.monotonic()
    assert (primary.role, replica.role) == (Role.PRIMARY, Role.REPLICA)
    assert primary.cluster == replica.cluster != ""
    assert primary.term == replica.term == 1
    assert primary.upstream == ""
    assert replica.upstream == f"127.0.0.1:{postgres_pair.primary.port}"
    assert started <= primary.taken_at <= replica.taken_at <= ended
    [below] = primary.downstream
    assert below.name == postgres_pair.replica.place.home.name
    assert below.host == "127.0.0.1"
    assert below.bytes_behind is not None
    assert replica.downstream == ()
    assert_same_clock(primary, replica, within_s=ended - started)


def assert_same_clock(*seen: RoleSeen, within_s: float) -> None:
    """Servers of this machine share the clock of the agent; it is compared by asking."""
    for one in seen:
        assert one.clock_ahead_s is not None
        assert abs(one.clock_ahead_s) < within_s + CLOCKS_S


async def test_a_role_without_rights_is_still_reported(postgres_pair: Pair[PostgresServer]) -> None:
    execute(postgres_pair.primary, "CREATE ROLE blind LOGIN")
    try:
        async with role_of(postgres_pair.primary, user="blind") as probe:
            seen = await probe.read()
    finally:
        execute(postgres_pair.primary, "DROP ROLE blind")
    assert (seen.role, seen.term) == (Role.PRIMARY, 1)
    assert seen.cluster
    assert seen.downstream == ()


async def test_control_data_that_may_not_be_read_is_left_out(
    lent_postgres: Pair[PostgresServer],
) -> None:
    primary = lent_postgres.primary
    facts = "EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint()"
    execute(primary, "CREATE ROLE blind LOGIN", f"REVOKE {facts} FROM PUBLIC")
    try:
        async with role_of(primary, user="blind") as probe:
            for _ in range(2):
                seen = await probe.read()
                assert (seen.role, seen.term, seen.cluster) == (Role.PRIMARY, 1, "")
    finally:
        execute(primary, f"GRANT {facts} TO PUBLIC", "DROP ROLE blind")


async def test_a_promotion_shows_in_role_and_timeline(
    lent_postgres: Pair[PostgresServer],
) -> None:
    """Without its primary a standby stays on the timeline it replayed; promoted, it moves on."""
    async with role_of(lent_postgres.replica) as probe:
        before = await probe.read()
        lent_postgres.primary.kill()
        upstream = f"127.0.0.1:{lent_postgres.primary.port}"
        orphan = await probe.read()
        assert (orphan.role, orphan.term, orphan.upstream) == (Role.REPLICA, 1, upstream)
        lent_postgres.replica.promote()
        after = await probe.read()
    assert (after.role, after.term, after.upstream) == (Role.PRIMARY, 2, "")
    assert after.cluster == before.cluster


async def test_a_cascading_standby_follows_to_the_new_timeline(
    lent_postgres: Pair[PostgresServer], start_cascade: Any
) -> None:
    middle = lent_postgres.replica
    with start_cascade(middle) as last:
        async with role_of(last) as probe, role_of(middle) as above:
            assert (await probe.read()).upstream == f"127.0.0.1:{middle.port}"
            await becomes(lambda: one_below(above))
            lent_postgres.primary.kill()
            assert (await probe.read()).term == 1
            middle.promote()
            assert (await above.read()).term == 2
            await becomes(lambda: is_on_timeline(probe, 2))
            assert (await probe.read()).role is Role.REPLICA


async def one_below(probe: SqlRoleProbe[Any]) -> bool:
    return len((await probe.read()).downstream) == 1


async def is_on_timeline(probe: SqlRoleProbe[Any], term: int) -> bool:
    return (await probe.read()).term == term


@pytest.fixture
def start_cascade(servers_dir: Any) -> Any:
    from headgate.demo import postgres

    return lambda upstream: postgres.start_replica(upstream, servers_dir)


async def test_clocks_that_differ_are_measured(postgres_pair: Pair[PostgresServer]) -> None:
    """R24: the server's minus the agent's, whichever is wrong; the round trip does not count."""
    connector = PostgresConnector("main", postgres_pair.primary.dsn())
    session = await connector.connect()
    late, began = Clocks(wall=lambda: time.time() - 30.0), time.monotonic()
    try:
        seen = await PostgresRole(late)(session)
    finally:
        await session.leave()
    assert seen.clock_ahead_s == pytest.approx(30.0, abs=time.monotonic() - began + CLOCKS_S)


# --- MariaDB -------------------------------------------------------------------------------


async def test_a_mariadb_pair_reports_who_is_who(mariadb_pair: Pair[MariaDBServer]) -> None:
    async with role_of(mariadb_pair.primary) as up, role_of(mariadb_pair.replica) as down:
        started = time.monotonic()
        primary, replica = await up.read(), await down.read()
        ended = time.monotonic()
    assert (primary.role, replica.role) == (Role.PRIMARY, Role.REPLICA)
    assert (primary.cluster, primary.term) == ("", None)
    assert primary.server_id == number_of(mariadb_pair.primary)
    assert replica.upstream_id == primary.server_id != replica.server_id
    assert primary.upstream_id == primary.upstream == ""
    assert replica.upstream == f"127.0.0.1:{mariadb_pair.primary.port}"
    [below] = primary.downstream
    assert below.host == "127.0.0.1"
    assert replica.downstream == ()
    assert_same_clock(primary, replica, within_s=ended - started)


async def test_replicas_are_known_by_what_they_report(servers_dir: Path) -> None:
    """R44: report_host and report_port where every replica has them, addresses otherwise."""
    with mariadb.start_primary(servers_dir, cache_dir=CACHE_DIR) as primary:
        named = ("--report-host=db-b", "--report-port=3307")
        async with role_of(primary) as probe:
            with mariadb.start_replica(primary, servers_dir, options=named, cache_dir=CACHE_DIR):
                await becomes(lambda: one_below(probe))
                [below] = (await probe.read()).downstream
                assert replace(below, server_id="") == Downstream("db-b", "127.0.0.1", 3307)
                assert below.server_id not in ("", (await probe.read()).server_id)
        execute(primary, "CREATE USER half@'127.0.0.1'")
        execute(primary, "GRANT SLAVE MONITOR, PROCESS ON *.* TO half@'127.0.0.1'")
        with mariadb.start_replica(primary, servers_dir, cache_dir=CACHE_DIR):
            async with role_of(primary, user="half") as probe:
                await becomes(lambda: one_below(probe))
                assert (await probe.read()).downstream == (Downstream("", "127.0.0.1"),)


def number_of(server: MariaDBServer) -> str:
    [row] = server.query("SELECT @@server_id AS n")
    return str(row["n"])


async def test_clocks_of_mariadb_that_differ_are_measured(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    session = await MysqlConnector("main", dsn_of(mariadb_pair.primary)).connect()
    began = time.monotonic()
    try:
        seen = await MysqlRole(Clocks(wall=lambda: time.time() + 30.0))(session)
    finally:
        await session.leave()
    assert seen.clock_ahead_s == pytest.approx(-30.0, abs=time.monotonic() - began + CLOCKS_S)


async def test_a_user_without_rights_learns_the_role_but_not_who_is_below(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary = mariadb_pair.primary
    execute(primary, "CREATE USER blind@'127.0.0.1'")
    try:
        async with role_of(primary, user="blind") as probe:
            failed = await failure(probe)
            assert failed.cause is Cause.FAILED
            grant = failed.detail.partition("as an administrator run: ")[2]
            execute(primary, grant)
            seen = await probe.read()
    finally:
        execute(primary, "DROP USER blind@'127.0.0.1'")
    assert seen.role is Role.PRIMARY
    assert seen.downstream == ()


async def test_a_role_switch_shows_at_each_step(lent_mariadb: Pair[MariaDBServer]) -> None:
    """R44: read_only without a source is no primary: demoted or fenced."""
    old, new = lent_mariadb.primary, lent_mariadb.replica
    async with role_of(old) as first, role_of(new) as second:
        assert await sees(first, Role.PRIMARY) and await sees(second, Role.REPLICA)
        execute(old, "SET GLOBAL read_only = 1")
        assert await sees(first, Role.REPLICA)
        assert (await first.read()).upstream == ""
        execute(new, "STOP SLAVE")
        assert await sees(second, Role.REPLICA)
        execute(new, "RESET SLAVE ALL")
        assert await sees(second, Role.REPLICA)
        execute(new, "SET GLOBAL read_only = 0")
        assert await sees(second, Role.PRIMARY)


# --- the loss of the connection ------------------------------------------------------------


async def loses(server: AnyServer, number: signal.Signals) -> None:
    async with role_of(server) as probe:
        await probe.read()
        watching = asyncio.create_task(probe.lost())
        done, _ = await asyncio.wait([watching], timeout=0.1)
        assert not done, "a healthy connection was taken for lost"
        os.kill(server.pid, number)
        await asyncio.wait_for(watching, 60)
        server.stop()  # Until no port of it is open any more.
        assert (await failure(probe)).cause is Cause.FAILED
        assert not await is_lost(probe)


async def is_lost(probe: SqlRoleProbe[Any]) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await probe.lost()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("how", ["killed", "shut down"])
@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize("pair_name", ["lent_postgres", "lent_mariadb"])
def test_a_server_that_ends_is_noticed_although_nobody_checks(
    request: pytest.FixtureRequest, pair_name: str, loop: str, how: str
) -> None:
    """No query, no polling: the socket tells. How soon, bench/notice.py measures."""
    server: AnyServer = request.getfixturevalue(pair_name).primary
    number = signal.SIGKILL if how == "killed" else SHUTDOWN[type(server)]
    run_on(loop, loses(server, number))


@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize("pair_name", ["postgres_pair", "mariadb_pair"])
def test_a_connection_that_was_ended_is_lost_and_opened_again(
    request: pytest.FixtureRequest, pair_name: str, loop: str
) -> None:
    server: AnyServer = request.getfixturevalue(pair_name).primary

    async def scenario() -> None:
        sockets_before = open_sockets()
        async with role_of(server) as probe:
            for _ in range(3):
                assert await sees(probe, Role.PRIMARY)
                assert not await is_lost(probe)
                end_sessions(server)
                await becomes(lambda: is_lost(probe))
                assert await is_lost(probe), "it stays lost until it is read again"
            assert await sees(probe, Role.PRIMARY)
            assert open_sockets() <= sockets_before + 2  # the connection, and its watch
        await aeventually(lambda: open_sockets() == sockets_before)

    run_on(loop, scenario())


def end_sessions(server: AnyServer) -> None:
    if isinstance(server, PostgresServer):
        ours = "FROM pg_stat_activity WHERE application_name = 'headgate'"
        execute(server, f"SELECT pg_terminate_backend(pid) {ours}")
        return
    sleeping = "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'"
    for row in server.query(f"{sleeping} AND ID <> CONNECTION_ID()"):
        server.query(f"KILL {row['ID']}")


@pytest.mark.parametrize("loop", list(LOOPS))
def test_what_an_idle_postgres_says_is_not_taken_for_its_end(
    postgres_pair: Pair[PostgresServer], loop: str
) -> None:
    """A reloaded setting is reported to idle sessions without a request."""
    primary = postgres_pair.primary

    async def scenario() -> None:
        async with role_of(primary) as probe:
            await probe.read()
            execute(primary, "ALTER SYSTEM SET TimeZone = 'Asia/Tokyo'", "SELECT pg_reload_conf()")
            assert not await is_lost(probe)
            assert await sees(probe, Role.PRIMARY)
            assert not await is_lost(probe)

    try:
        run_on(loop, scenario())
    finally:
        execute(primary, "ALTER SYSTEM RESET TimeZone", "SELECT pg_reload_conf()")


async def test_nothing_is_lost_before_it_was_had() -> None:
    probes = DatabaseProbes("main", Engine.POSTGRES, "host=127.0.0.1 port=1 dbname=x user=y")
    probe = probes.role_probe()
    assert not await is_lost(probe)
    assert "refused" in (await failure(probe)).detail
    assert not await is_lost(probe)
    await probe.close()
    await probes.close()


@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize("pair_name", ["postgres_pair", "mariadb_pair"])
def test_a_watched_connection_serves_hundreds_of_reads(
    request: pytest.FixtureRequest, pair_name: str, loop: str
) -> None:
    """The watch does not disturb the driver: one connection, nothing left over."""
    server: AnyServer = request.getfixturevalue(pair_name).primary

    async def scenario() -> None:
        async with role_of(server) as probe:
            await probe.read()
            sockets = open_sockets()
            for _ in range(200):
                assert (await probe.read()).role is Role.PRIMARY
            assert open_sockets() == sockets
            assert not await is_lost(probe)

    run_on(loop, scenario())


async def test_a_frozen_server_does_not_report_its_role_in_time(
    lent_postgres: Pair[PostgresServer],
) -> None:
    """Nobody waits until it goes on."""
    primary = lent_postgres.primary
    async with role_of(primary, timeout_s=1.0) as probe:
        await becomes(lambda: tells(probe))
        primary.pause()
        failed = await failure(probe)
        primary.resume()
        assert failed.cause is Cause.TIMED_OUT
        assert "in 1 s" in failed.detail


async def tells(probe: SqlRoleProbe[Any]) -> bool:
    try:
        await probe.read()
    except ProbeFailed:
        return False
    return True
