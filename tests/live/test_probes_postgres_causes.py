"""Old heartbeats in Postgres: stopped, broken, paused and dead are four different things."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.demo.postgres import PostgresServer
from headgate.errors import ProbeFailed
from headgate.metrics.probes.heartbeats import Writer
from headgate.metrics.samples import Cause
from tests.fixtures.servers import Pair
from tests.live.test_probes_postgres import (
    CLOCKS_S,
    execute,
    in_sync,
    probes_of,
    read,
    replay_paused,
    role,
    scalar,
    spec_of,
    value,
    write,
)
from tests.metrics.probes.reading import becomes, exceeds, failure, measured, says, stays_below

TABLE = "beats.heartbeat"
OPTIONS = {"method": "heartbeat", "heartbeat_table": TABLE}
NATIVE = {"method": "native"}
OLD_LAYOUT = "id int PRIMARY KEY DEFAULT 1, ts timestamptz NOT NULL, server text NOT NULL"
SHORT_S, LONG_S = 0.05, 20.0
"""Intervals at which a row is stale after 1.15 s, and after a minute."""


@asynccontextmanager
async def writer_on(
    server: PostgresServer, interval_s: float = SHORT_S, **settings: Any
) -> AsyncIterator[Writer[Any]]:
    async with probes_of(server, **settings) as probes:
        writer = probes.heartbeat_writer(TABLE, interval_s=interval_s, timeout_s=60.0)
        try:
            yield writer
        finally:
            await writer.close()


@pytest.fixture(autouse=True)
def no_table_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if "postgres_pair" in request.fixturenames:
        primary = request.getfixturevalue("postgres_pair").primary
        execute(primary, "DROP TABLE IF EXISTS headgate.heartbeat")
    yield
    if "postgres_pair" in request.fixturenames:
        execute(
            request.getfixturevalue("postgres_pair").primary, "DROP SCHEMA IF EXISTS beats CASCADE"
        )


async def is_current(writer: Writer[Any], pair: Pair[PostgresServer], beats: Any) -> bool:
    """After one more beat: on a busy machine it may be old before it is read."""
    await writer.beat()
    await in_sync(pair)
    return await says(beats, None)


async def test_a_paused_replay_is_stopped_by_either_method(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R22, R25"""
    began = time.monotonic()
    async with writer_on(postgres_pair.primary) as writer, probes_of(postgres_pair.replica) as down:
        await writer.beat()
        await in_sync(postgres_pair)
        native, beats = (
            down.probe_for(spec_of("lag", options=NATIVE)),
            down.probe_for(spec_of("lag", options=OPTIONS)),
        )
        await becomes(lambda: says(native, None))
        with replay_paused(postgres_pair.replica):
            await writer.beat()
            await becomes(lambda: says(native, Cause.REPLICATION_STOPPED))
            await becomes(lambda: says(beats, Cause.REPLICATION_STOPPED))
            for lag in (native, beats):
                stopped = await measured(lag)
                assert "pg_wal_replay_resume" in stopped.detail
                assert 0 < stopped.value < time.monotonic() - began + CLOCKS_S
            before = stopped.value
            await becomes(lambda: exceeds(beats, before + 0.2))
        await becomes(lambda: is_current(writer, postgres_pair, beats))


async def test_a_paused_replay_grows_on_an_idle_shard_too(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R22: it is stopped even while there is nothing to replay."""
    write(postgres_pair.primary)
    await in_sync(postgres_pair)
    async with probes_of(postgres_pair.replica) as down:
        lag = down.probe_for(spec_of("lag", options=NATIVE))
        await becomes(lambda: says(lag, None))
        with replay_paused(postgres_pair.replica):
            await becomes(lambda: exceeds(lag, 0.2))
            assert (await measured(lag)).cause is Cause.REPLICATION_STOPPED


async def test_a_lost_primary_is_broken_not_a_dead_writer(
    lent_postgres: Pair[PostgresServer],
) -> None:
    async with (
        writer_on(lent_postgres.primary) as writer,
        probes_of(lent_postgres.replica) as down,
    ):
        beats = down.probe_for(spec_of("lag", options=OPTIONS))
        await becomes(lambda: is_current(writer, lent_postgres, beats))
        lent_postgres.primary.kill()
        await becomes(lambda: says(beats, Cause.REPLICATION_BROKEN))
        broken = await measured(beats)
        assert f"127.0.0.1:{lent_postgres.primary.port}" in broken.detail
        await becomes(lambda: exceeds(beats, broken.value + 0.2))


async def test_a_writer_that_was_killed_is_dead_not_lag(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R25: replication runs and nothing is missing, but nobody writes."""
    async with writer_on(postgres_pair.primary) as writer:
        await writer.beat()
    await in_sync(postgres_pair)
    async with probes_of(postgres_pair.replica) as down:
        beats = down.probe_for(spec_of("lag", options=OPTIONS))
        await becomes(lambda: says(beats, Cause.HEARTBEAT_DEAD))
        dead = await failure(beats)
        assert "written every 0.05 s" in dead.detail
        assert f":{postgres_pair.primary.port}" in dead.detail
        assert "heartbeat_interval_s" in dead.detail
        assert "beats" in dead.detail


async def test_an_idle_shard_does_not_look_lagged_while_its_heartbeat_is_paused(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R25, R57: the last beat before the rest says so, long after it has grown old."""
    async with writer_on(postgres_pair.primary) as writer, probes_of(postgres_pair.replica) as down:
        await writer.beat()
        assert await writer.beat(resting=True) is True
        execute(postgres_pair.primary, f"UPDATE {TABLE} SET ts = ts - interval '9 hours'")
        await in_sync(postgres_pair)
        beats = down.probe_for(spec_of("lag", options=OPTIONS))
        await becomes(lambda: stays_below(beats, 0.1))
        resting = await measured(beats)
        assert (resting.value, resting.cause) == (0.0, Cause.HEARTBEAT_IDLE)
        assert "native positions" in resting.detail
        with replay_paused(postgres_pair.replica):
            write(postgres_pair.primary)
            await becomes(lambda: says(beats, Cause.REPLICATION_STOPPED))
        await becomes(lambda: is_current(writer, postgres_pair, beats))


async def test_clocks_that_disagree_are_corrected_and_reported(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """R24: a primary whose clock is an hour ahead, as the row shows it."""
    async with (
        writer_on(postgres_pair.primary, LONG_S) as writer,
        probes_of(postgres_pair.replica) as down,
    ):
        await writer.beat()
        began = time.monotonic()
        execute(
            postgres_pair.primary, f"UPDATE {TABLE} SET ts = clock_timestamp() + interval '1 h'"
        )
        await in_sync(postgres_pair)
        beats = down.probe_for(spec_of("lag", options=OPTIONS))
        assert (await failure(beats)).cause is Cause.CLOCK_SKEW
        down.skew.ahead_s, down.skew.error_s = -3600.0, 0.002
        skewed = await measured(beats)
        assert 0 <= skewed.value < time.monotonic() - began + CLOCKS_S
        assert skewed.cause is Cause.CLOCK_SKEW
        assert "3600.000 s behind the primary's" in skewed.detail


# --- tables ---------------------------------------------------------------------------------


async def test_a_table_of_the_earlier_layout_is_widened_by_the_writer(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary, began = postgres_pair.primary, time.monotonic()
    execute(
        primary,
        "CREATE SCHEMA beats",
        f"CREATE TABLE {TABLE} ({OLD_LAYOUT})",
        f"INSERT INTO {TABLE} VALUES (1, clock_timestamp(), 'x')",
    )
    await in_sync(postgres_pair)
    async with probes_of(postgres_pair.replica) as down:
        # Read before: a replica may be ahead of its writer's next version.
        lag_s = await read(down, "lag", options=OPTIONS)
        assert 0 <= lag_s < time.monotonic() - began + CLOCKS_S
        async with writer_on(primary, interval_s=0.5) as writer:
            assert await writer.beat() is True
            assert scalar(primary, f"SELECT interval_s FROM {TABLE}") == 0.5
            assert await writer.beat(resting=True) is True
            assert scalar(primary, f"SELECT idle FROM {TABLE}") is True
        await in_sync(postgres_pair)
        beats = down.probe_for(spec_of("lag", options=OPTIONS))
        assert await says(beats, Cause.HEARTBEAT_IDLE)


async def test_an_earlier_table_that_may_not_be_widened_goes_on_working(
    postgres_pair: Pair[PostgresServer],
) -> None:
    """Only a rest cannot be marked in it, and then it says what to run."""
    primary = postgres_pair.primary
    with role(primary, "plain_writer") as dsn:
        execute(
            primary,
            "CREATE SCHEMA beats",
            f"CREATE TABLE {TABLE} ({OLD_LAYOUT})",
            "GRANT USAGE ON SCHEMA beats TO plain_writer",
            f"GRANT SELECT, INSERT, UPDATE ON {TABLE} TO plain_writer",
        )
        async with writer_on(primary, dsn=dsn) as writer:
            for _ in range(2):
                assert await writer.beat() is True
            with pytest.raises(ProbeFailed) as caught:
                await writer.beat(resting=True)
            execute(primary, caught.value.detail.partition("as an administrator run: ")[2])
            assert await writer.beat(resting=True) is True
            assert await writer.beat() is True
            assert scalar(primary, f"SELECT idle FROM {TABLE}") is False
        execute(primary, "DROP SCHEMA beats CASCADE")


async def test_a_table_of_pt_heartbeats_is_never_written(
    postgres_pair: Pair[PostgresServer],
) -> None:
    primary = postgres_pair.primary
    execute(primary, "CREATE SCHEMA beats", f"CREATE TABLE {TABLE} (ts text, server_id int)")
    async with writer_on(primary) as writer:
        with pytest.raises(ProbeFailed, match="never written"):
            await writer.beat()
    columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    assert scalar(primary, columns.replace("%s", f"'{TABLE}'")) == 2
    assert scalar(primary, f"SELECT count(*) FROM {TABLE}") == 0


PT_TIMES = {
    "text in UTC": ("text", "to_char({now} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"),
    "text with a zone": ("text", "{now}::text"),
    "timestamp": ("timestamp", "{now} AT TIME ZONE 'UTC'"),
    "timestamptz": ("timestamptz", "{now}"),
}


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("ts {type}, server_id int", "({old}, 1), ({ts}, 2)"),
        ("id int PRIMARY KEY, ts {type}", "(1, {ts})"),
    ],
    ids=["pt-heartbeat", "legacy"],
)
@pytest.mark.parametrize("kind", list(PT_TIMES))
async def test_pt_heartbeats_tables_are_read_in_both_layouts(
    postgres_pair: Pair[PostgresServer], columns: str, rows: str, kind: str
) -> None:
    began = time.monotonic()
    type_, form = PT_TIMES[kind]
    now = "(clock_timestamp() - interval '{} s')"
    old, ts = (form.format(now=now.format(age_s)) for age_s in (900, 1))
    execute(
        postgres_pair.primary,
        "CREATE SCHEMA beats",
        f"CREATE TABLE {TABLE} ({columns.format(type=type_)})",
        f"INSERT INTO {TABLE} VALUES {rows.format(old=old, ts=ts)}",
    )
    await in_sync(postgres_pair)
    async with probes_of(postgres_pair.replica) as down:
        lag_s = await read(down, "lag", options=OPTIONS)
        assert 1 <= lag_s < 1 + time.monotonic() - began + CLOCKS_S


async def test_a_heartbeat_has_parts_of_a_second(postgres_pair: Pair[PostgresServer]) -> None:
    """R23: as fine as the beats themselves."""
    async with writer_on(postgres_pair.primary) as writer, probes_of(postgres_pair.replica) as down:
        began = time.monotonic()
        await writer.beat()
        execute(
            postgres_pair.primary,
            f"UPDATE {TABLE} SET interval_s = 20, ts = clock_timestamp() - interval '250 ms'",
        )
        await in_sync(postgres_pair)
        lag_s = await value(down.probe_for(spec_of("lag", options=OPTIONS)))
        assert 0.25 <= lag_s < 0.25 + time.monotonic() - began + CLOCKS_S
        assert lag_s != int(lag_s)
