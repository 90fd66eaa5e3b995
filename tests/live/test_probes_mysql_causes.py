"""Old heartbeats in MariaDB: stopped, broken, paused and dead are four different things.

And a beat that the server holds up: it is given up here, and ended there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.heartbeats import Writer
from headgate.metrics.samples import Cause
from tests.fixtures.eventually import aeventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair
from tests.live.test_probes_mysql import (
    CLOCKS_S,
    execute,
    in_sync,
    probes_of,
    read,
    scalar,
    spec_of,
    user,
    value,
)
from tests.metrics.probes.reading import (
    becomes,
    cut_off,
    exceeds,
    failure,
    measured,
    says,
    stays_below,
)

TABLE = "beats.heartbeat"
OPTIONS = {"method": "heartbeat", "heartbeat_table": TABLE}
OLD_LAYOUT = (
    "id INT NOT NULL PRIMARY KEY DEFAULT 1, ts DATETIME(6) NOT NULL, server VARCHAR(255) NOT NULL"
)
SHORT_S, LONG_S = 0.05, 20.0
"""Intervals at which a row is stale after 1.15 s, and after a minute."""


@asynccontextmanager
async def writer_on(
    server: MariaDBServer, interval_s: float = SHORT_S, timeout_s: float = 60.0, dsn: str = ""
) -> AsyncIterator[Writer[Any]]:
    async with probes_of(server, dsn=dsn) as probes:
        writer = probes.heartbeat_writer(TABLE, interval_s=interval_s, timeout_s=timeout_s)
        try:
            yield writer
        finally:
            await writer.close()


@pytest.fixture(autouse=True)
def no_table_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "mariadb_pair" in request.fixturenames:
        execute(request.getfixturevalue("mariadb_pair").primary, "DROP DATABASE IF EXISTS beats")


async def is_current(writer: Writer[Any], pair: Pair[MariaDBServer], lag: Any) -> bool:
    """After one more beat: on a busy machine it may be old before it is read."""
    await writer.beat()
    await in_sync(pair)
    return await says(lag, None)


@contextmanager
def stopped(replica: MariaDBServer) -> Iterator[None]:
    execute(replica, f"STOP {replica.replica_word} SQL_THREAD")
    try:
        yield
    finally:
        execute(replica, f"START {replica.replica_word}")


@pytest.mark.parametrize("method", ["heartbeat", "auto"])
async def test_a_stopped_replica_grows_with_the_cause(
    mariadb_pair: Pair[MariaDBServer], method: str
) -> None:
    """R22, R25"""
    replica = mariadb_pair.replica
    async with writer_on(mariadb_pair.primary) as writer, probes_of(replica) as down:
        await writer.beat()
        await in_sync(mariadb_pair)
        lag = down.probe_for(spec_of("lag", options={**OPTIONS, "method": method}))
        with stopped(replica):
            await becomes(lambda: says(lag, Cause.REPLICATION_STOPPED))
            before = await measured(lag)
            assert before.value > 1
            assert f"{replica.replica_word.capitalize()}_SQL_Running is No" in before.detail
            await becomes(lambda: exceeds(lag, before.value + 0.2))
        await becomes(lambda: is_current(writer, mariadb_pair, lag))


async def test_a_lost_primary_is_broken_not_a_dead_writer(
    lent_mariadb: Pair[MariaDBServer],
) -> None:
    async with writer_on(lent_mariadb.primary) as writer, probes_of(lent_mariadb.replica) as down:
        await writer.beat()
        await in_sync(lent_mariadb)
        lag = down.probe_for(spec_of("lag", options=OPTIONS))
        lent_mariadb.primary.kill()
        await becomes(lambda: says(lag, Cause.REPLICATION_BROKEN))
        broken = await measured(lag)
        assert f"127.0.0.1:{lent_mariadb.primary.port}" in broken.detail
        await becomes(lambda: exceeds(lag, broken.value + 0.2))


async def test_a_writer_that_was_killed_is_dead_not_lag(mariadb_pair: Pair[MariaDBServer]) -> None:
    """R25: replication runs and nothing is missing, but nobody writes."""
    async with writer_on(mariadb_pair.primary) as writer:
        await writer.beat()
    await in_sync(mariadb_pair)
    async with probes_of(mariadb_pair.replica) as down:
        lag = down.probe_for(spec_of("lag", options=OPTIONS))
        await becomes(lambda: says(lag, Cause.HEARTBEAT_DEAD))
        dead = await failure(lag)
        assert "written every 0.05 s" in dead.detail
        assert "heartbeat_interval_s" in dead.detail


async def test_an_idle_shard_does_not_look_lagged_while_its_heartbeat_is_paused(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """R25, R57"""
    async with writer_on(mariadb_pair.primary) as writer, probes_of(mariadb_pair.replica) as down:
        await writer.beat()
        assert await writer.beat(resting=True) is True
        execute(mariadb_pair.primary, f"UPDATE {TABLE} SET ts = ts - INTERVAL 9 HOUR")
        await in_sync(mariadb_pair)
        lag = down.probe_for(spec_of("lag", options=OPTIONS))
        await becomes(lambda: stays_below(lag, 1))
        assert await says(lag, Cause.HEARTBEAT_IDLE)
        with stopped(mariadb_pair.replica):
            await becomes(lambda: says(lag, Cause.REPLICATION_STOPPED))
            assert (await measured(lag)).value > 0
        await becomes(lambda: is_current(writer, mariadb_pair, lag))


async def test_clocks_that_disagree_are_corrected_and_reported(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """R24"""
    async with (
        writer_on(mariadb_pair.primary, LONG_S) as writer,
        probes_of(mariadb_pair.replica) as down,
    ):
        await writer.beat()
        began = time.monotonic()
        execute(mariadb_pair.primary, f"UPDATE {TABLE} SET ts = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
        await in_sync(mariadb_pair)
        lag = down.probe_for(spec_of("lag", options=OPTIONS))
        assert (await failure(lag)).cause is Cause.HEARTBEAT_DEAD
        down.skew.ahead_s = 3600.0
        skewed = await measured(lag)
        assert 0 <= skewed.value < time.monotonic() - began + CLOCKS_S
        assert skewed.cause is Cause.CLOCK_SKEW


# --- tables ---------------------------------------------------------------------------------


async def test_a_table_of_the_earlier_layout_is_widened_by_the_writer(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    primary, began = mariadb_pair.primary, time.monotonic()
    execute(
        primary,
        "CREATE DATABASE beats",
        f"CREATE TABLE {TABLE} ({OLD_LAYOUT})",
        f"INSERT INTO {TABLE} VALUES (1, UTC_TIMESTAMP(6), 'x')",
    )
    await in_sync(mariadb_pair)
    async with probes_of(mariadb_pair.replica) as down:
        lag_s = await read(down, "lag", options=OPTIONS)
        assert 0 <= lag_s < time.monotonic() - began + CLOCKS_S
        async with writer_on(primary, interval_s=0.5) as writer:
            assert await writer.beat() is True
            assert scalar(primary, f"SELECT interval_s FROM {TABLE}") == 0.5
            assert await writer.beat(resting=True) is True
            assert scalar(primary, f"SELECT idle FROM {TABLE}") == 1
        await in_sync(mariadb_pair)
        assert await says(down.probe_for(spec_of("lag", options=OPTIONS)), Cause.HEARTBEAT_IDLE)


async def test_an_earlier_table_that_may_not_be_widened_goes_on_working(
    mariadb_pair: Pair[MariaDBServer],
) -> None:
    """Only a rest cannot be marked in it, and then it says what to run."""
    primary = mariadb_pair.primary
    execute(primary, "CREATE DATABASE beats", f"CREATE TABLE {TABLE} ({OLD_LAYOUT})")
    rights = f"{primary.monitor_right} ON *.*", f"SELECT, INSERT, UPDATE ON {TABLE}"
    with user(primary, "plain_writer", *rights) as dsn:
        async with writer_on(primary, dsn=dsn) as writer:
            for _ in range(2):
                assert await writer.beat() is True
            with pytest.raises(ProbeFailed) as caught:
                await writer.beat(resting=True)
            execute(primary, caught.value.detail.partition("as an administrator run: ")[2])
            assert await writer.beat(resting=True) is True
            assert await writer.beat() is True
            assert scalar(primary, f"SELECT idle FROM {TABLE}") == 0


async def test_a_table_of_pt_heartbeats_is_never_written(mariadb_pair: Pair[MariaDBServer]) -> None:
    primary = mariadb_pair.primary
    execute(
        primary,
        "CREATE DATABASE beats",
        f"CREATE TABLE {TABLE} (ts VARCHAR(26) NOT NULL, server_id INT NOT NULL PRIMARY KEY)",
    )
    async with writer_on(primary) as writer:
        with pytest.raises(ProbeFailed, match="never written"):
            await writer.beat()
    assert scalar(primary, f"SELECT COUNT(*) FROM {TABLE}") == 0


# --- a commit that waits --------------------------------------------------------------------

WAITING = (
    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE '%semi-sync%'"
    " AND (INFO = 'COMMIT' OR INFO LIKE 'INSERT /* headgate%')"
)


def stall_commits(primary: MariaDBServer) -> None:
    """Nobody acknowledges: a commit would wait for ten minutes, and `read_only` with it."""
    execute(
        primary,
        "SET GLOBAL rpl_semi_sync_master_timeout = 600000",
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON",
        "SET GLOBAL rpl_semi_sync_master_enabled = ON",
    )


async def demotes(primary: MariaDBServer) -> None:
    """Soon, by the measure of the ten minutes."""
    await aeventually(lambda: scalar(primary, WAITING) == 0)
    await asyncio.wait_for(asyncio.to_thread(execute, primary, "SET GLOBAL read_only = 1"), 60)


async def test_a_semi_sync_stall_is_given_up_and_does_not_block_a_demotion(
    lent_mariadb: Pair[MariaDBServer],
) -> None:
    primary = lent_mariadb.primary
    async with writer_on(primary) as patient, writer_on(primary, timeout_s=1.0) as writer:
        assert await patient.beat() is True
        stall_commits(primary)
        with pytest.raises(ProbeFailed) as caught:
            await writer.beat()
        assert caught.value.cause is Cause.TIMED_OUT
        await demotes(primary)
        assert await patient.beat() is False


async def test_a_measured_commit_that_stalls_does_not_block_a_demotion_either(
    lent_mariadb: Pair[MariaDBServer],
) -> None:
    primary = lent_mariadb.primary
    async with probes_of(primary) as probes:
        commit = probes.probe_for(spec_of("commit_delay"))
        assert await value(commit) > 0
        stall_commits(primary)
        await cut_off(commit, when=lambda: scalar(primary, WAITING) >= 1)
        await demotes(primary)
