"""Roles as real servers tell them: through promotions, losses and missing rights."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop

from headgate.core.metrics import Engine
from headgate.core.samples import Cause
from headgate.core.topology import Downstream, Role, RoleSeen
from headgate.demo.postgres import PostgresServer
from headgate.errors import ProbeFailed
from headgate.probes.factory import DatabaseProbes
from headgate.probes.mysql_role import MysqlRole
from headgate.probes.mysql_session import MysqlConnector
from headgate.probes.postgres_role import PostgresRole
from headgate.probes.postgres_session import PostgresConnector
from headgate.probes.roles import Clocks, RoleProbe
from tests.fixtures import mariadb
from tests.fixtures.eventually import aeventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import CACHE_DIR, Pair
from tests.probes.reading import becomes, open_sockets

AnyServer = PostgresServer | MariaDBServer
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}
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
    server: AnyServer, *, user: str = "", timeout_s: float = 2.0
) -> AsyncIterator[RoleProbe[Any]]:
    engine = Engine.POSTGRES if isinstance(server, PostgresServer) else Engine.MYSQL
    probes = DatabaseProbes("main", engine, dsn_of(server, user))
    probe = probes.role_probe(timeout_s=timeout_s)
    try:
        yield probe
    finally:
        await probe.close()
        await probes.close()


async def failure(probe: RoleProbe[Any]) -> ProbeFailed:
    with pytest.raises(ProbeFailed) as caught:
        await probe.read()
    return caught.value


async def sees(probe: RoleProbe[Any], role: Role) -> bool:
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


async def test_a_postgres_pair_tells_who_is_who(postgres_pair: Pair[PostgresServer]) -> None:
    async with role_of(postgres_pair.primary) as up, role_of(postgres_pair.replica) as down:
        started = time.monotonic()
        primary, replica = await up.read(), await down.read()
    assert (primary.role, replica.role) == (Role.PRIMARY, Role.REPLICA)
    assert primary.cluster == replica.cluster != ""
    assert primary.term == replica.term == 1
    assert primary.upstream == ""
    assert replica.upstream == f"127.0.0.1:{postgres_pair.primary.port}"
    assert started <= primary.taken_at <= replica.taken_at <= time.monotonic()
    [below] = primary.downstream
    assert below.name == postgres_pair.replica.place.home.name
    assert below.host == "127.0.0.1"
    assert below.bytes_behind is not None
    assert replica.downstream == ()
    assert_same_clock(primary, replica)


def assert_same_clock(*seen: RoleSeen) -> None:
    """Servers of this machine share the clock of the agent."""
    for one in seen:
        assert one.clock_ahead_s is not None and abs(one.clock_ahead_s) < 0.2


async def test_a_role_without_rights_is_still_told(postgres_pair: Pair[PostgresServer]) -> None:
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
    fresh_postgres: Pair[PostgresServer],
) -> None:
    primary = fresh_postgres.primary
    execute(
        primary,
        "CREATE ROLE blind LOGIN",
        "REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint() FROM PUBLIC",
    )
    async with role_of(primary, user="blind") as probe:
        for _ in range(2):
            seen = await probe.read()
            assert (seen.role, seen.term, seen.cluster) == (Role.PRIMARY, 1, "")


async def test_a_promotion_shows_in_role_and_timeline(
    fresh_postgres: Pair[PostgresServer],
) -> None:
    """Without its primary a standby stays on the timeline it replayed; promoted, it moves on."""
    async with role_of(fresh_postgres.replica) as probe:
        before = await probe.read()
        fresh_postgres.primary.kill()
        upstream = f"127.0.0.1:{fresh_postgres.primary.port}"
        orphan = await probe.read()
        assert (orphan.role, orphan.term, orphan.upstream) == (Role.REPLICA, 1, upstream)
        fresh_postgres.replica.promote()
        after = await probe.read()
    assert (after.role, after.term, after.upstream) == (Role.PRIMARY, 2, "")
    assert after.cluster == before.cluster


async def test_a_cascading_standby_follows_to_the_new_timeline(
    fresh_postgres: Pair[PostgresServer], start_cascade: Any
) -> None:
    middle = fresh_postgres.replica
    with start_cascade(middle) as last:
        async with role_of(last) as probe, role_of(middle) as above:
            assert (await probe.read()).upstream == f"127.0.0.1:{middle.port}"
            await becomes(lambda: one_below(above))
            fresh_postgres.primary.kill()
            assert (await probe.read()).term == 1
            middle.promote()
            assert (await above.read()).term == 2
            await becomes(lambda: is_on_timeline(probe, 2), within_s=10)
            assert (await probe.read()).role is Role.REPLICA


async def one_below(probe: RoleProbe[Any]) -> bool:
    return len((await probe.read()).downstream) == 1


async def is_on_timeline(probe: RoleProbe[Any], term: int) -> bool:
    return (await probe.read()).term == term


@pytest.fixture
def start_cascade(servers_dir: Any) -> Any:
    from headgate.demo import postgres

    return lambda upstream: postgres.start_replica(upstream, servers_dir)


async def test_clocks_that_differ_are_measured(postgres_pair: Pair[PostgresServer]) -> None:
    """R24: the server's minus the agent's, whichever is wrong; the round trip does not count."""
    connector = PostgresConnector("main", postgres_pair.primary.dsn())
    session = await connector.connect()
    late = Clocks(wall=lambda: time.time() - 30.0)
    try:
        seen = await PostgresRole(late)(session)
    finally:
        await session.leave()
    assert seen.clock_ahead_s == pytest.approx(30.0, abs=0.2)


# --- MariaDB -------------------------------------------------------------------------------


async def test_a_mariadb_pair_tells_who_is_who(mariadb_pair: Pair[MariaDBServer]) -> None:
    async with role_of(mariadb_pair.primary) as up, role_of(mariadb_pair.replica) as down:
        primary, replica = await up.read(), await down.read()
    assert (primary.role, replica.role) == (Role.PRIMARY, Role.REPLICA)
    assert (primary.cluster, primary.term) == ("", None)
    assert primary.server_id == number_of(mariadb_pair.primary)
    assert replica.upstream_id == primary.server_id != replica.server_id
    assert primary.upstream_id == primary.upstream == ""
    assert replica.upstream == f"127.0.0.1:{mariadb_pair.primary.port}"
    [below] = primary.downstream
    assert below.host == "127.0.0.1"
    assert replica.downstream == ()
    assert_same_clock(primary, replica)


async def test_replicas_are_known_by_what_they_report(servers_dir: Path) -> None:
    """R44: report_host and report_port where every replica has them, addresses otherwise."""
    with mariadb.start_primary(servers_dir, cache_dir=CACHE_DIR) as primary:
        named = ("--report-host=db-b", "--report-port=3307")
        async with role_of(primary) as probe:
            with mariadb.start_replica(primary, servers_dir, options=named, cache_dir=CACHE_DIR):
                await becomes(lambda: one_below(probe))
                assert (await probe.read()).downstream == (Downstream("db-b", "127.0.0.1", 3307),)
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
    try:
        seen = await MysqlRole(Clocks(wall=lambda: time.time() + 30.0))(session)
    finally:
        await session.leave()
    assert seen.clock_ahead_s == pytest.approx(-30.0, abs=0.2)


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


async def test_a_role_switch_shows_at_each_step(fresh_mariadb: Pair[MariaDBServer]) -> None:
    """R44: read_only without a source is no primary: demoted or fenced."""
    old, new = fresh_mariadb.primary, fresh_mariadb.replica
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


async def seconds_to_lose(server: AnyServer, number: signal.Signals) -> float:
    async with role_of(server) as probe:
        await probe.read()
        watching = asyncio.create_task(probe.lost())
        done, _ = await asyncio.wait([watching], timeout=0.1)
        assert not done, "a healthy connection was taken for lost"
        started = time.monotonic()
        os.kill(server.pid, number)
        await asyncio.wait_for(watching, 10)
        took_s = time.monotonic() - started
        assert (await failure(probe)).cause is Cause.FAILED
        assert not await is_lost(probe)
        return took_s


async def is_lost(probe: RoleProbe[Any]) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await probe.lost()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("how", ["killed", "shut down"])
@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize("pair_name", ["fresh_postgres", "fresh_mariadb"])
def test_a_server_that_ends_is_noticed_at_once(
    request: pytest.FixtureRequest, pair_name: str, loop: str, how: str
) -> None:
    """No query, no polling: the socket tells."""
    server: AnyServer = request.getfixturevalue(pair_name).primary
    number = signal.SIGKILL if how == "killed" else SHUTDOWN[type(server)]

    async def scenario() -> None:
        assert await seconds_to_lose(server, number) < 0.1

    run_on(loop, scenario())


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
                assert await is_lost(probe)
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
    """A reloaded setting is reported to idle sessions unasked."""
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
def test_a_watched_connection_serves_a_thousand_reads(
    request: pytest.FixtureRequest, pair_name: str, loop: str
) -> None:
    """The watch does not disturb the driver: one connection, nothing left over."""
    server: AnyServer = request.getfixturevalue(pair_name).primary

    async def scenario() -> None:
        async with role_of(server) as probe:
            await probe.read()
            sockets = open_sockets()
            for _ in range(1000):
                assert (await probe.read()).role is Role.PRIMARY
            assert open_sockets() == sockets
            assert not await is_lost(probe)

    run_on(loop, scenario())


async def test_a_frozen_server_does_not_tell_its_role_in_time(
    fresh_postgres: Pair[PostgresServer],
) -> None:
    primary = fresh_postgres.primary
    async with role_of(primary, timeout_s=0.3) as probe:
        await probe.read()
        primary.pause()
        try:
            started = time.monotonic()
            failed = await failure(probe)
            assert time.monotonic() - started < 0.5
        finally:
            primary.resume()
        assert failed.cause is Cause.TIMED_OUT
        assert "0.3 s" in failed.detail
