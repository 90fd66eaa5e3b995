"""R22, R24, R25: what the age of a heartbeat means, and when it means nothing."""

from __future__ import annotations

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.heartbeats import (
    LOCAL,
    UTC,
    ClockSkew,
    HeartbeatRow,
    heartbeat_lag,
    zone_of,
)
from headgate.metrics.samples import Cause, Measured, Number
from tests.metrics.probes.reading import as_measured

HOURS = 3600.0
STOPPED = ProbeFailed(Cause.REPLICATION_STOPPED, "stopped")
BLIND = ProbeFailed(Cause.FAILED, "may not see")
BROKEN = Measured(7.0, Cause.REPLICATION_BROKEN, "broken")


async def judged(
    row: HeartbeatRow, native: Number | ProbeFailed = 0.0, skew: ClockSkew | None = None
) -> Measured:
    async def account() -> Number:
        if isinstance(native, ProbeFailed):
            raise native
        return native

    return as_measured(await heartbeat_lag(row, skew or ClockSkew(), account))


async def rejected(
    row: HeartbeatRow, native: Number | ProbeFailed = 0.0, skew: ClockSkew | None = None
) -> ProbeFailed:
    with pytest.raises(ProbeFailed) as caught:
        await judged(row, native, skew)
    return caught.value


async def test_a_fresh_row_is_its_age_whatever_the_server_thinks() -> None:
    assert await judged(HeartbeatRow("t", 1.5), native=BROKEN) == Measured(1.5)


@pytest.mark.parametrize(("interval_s", "dead_after_s"), [(None, 4.0), (0.1, 1.3), (10.0, 31.0)])
async def test_a_dead_writer_is_no_lag(interval_s: float | None, dead_after_s: float) -> None:
    young = await judged(HeartbeatRow("t", dead_after_s - 0.01, interval_s))
    assert young == Measured(dead_after_s - 0.01)
    dead = await rejected(HeartbeatRow("t", dead_after_s + 0.01, interval_s, server="db-a:5432"))
    assert dead.cause is Cause.HEARTBEAT_DEAD
    assert "db-a:5432" in dead.detail
    assert "heartbeat_interval_s" in dead.detail


async def test_a_replica_that_is_truly_behind_is_behind_and_not_without_a_writer() -> None:
    assert await judged(HeartbeatRow("t", 20.0), native=18.0) == Measured(20.0)
    assert (await rejected(HeartbeatRow("t", 30.0), native=18.0)).cause is Cause.HEARTBEAT_DEAD


@pytest.mark.parametrize("native", [STOPPED, BROKEN])
async def test_misleading_zero_lag_a_stale_row_grows_with_the_cause(
    native: Number | ProbeFailed,
) -> None:
    """R22: also where the server's own account does not know since when."""
    seen = [await judged(HeartbeatRow("t", age_s), native) for age_s in (5.0, 500.0)]
    assert [one.value for one in seen] == [5.0, 500.0]
    assert {one.cause for one in seen} == {
        native.cause if isinstance(native, ProbeFailed) else Cause.REPLICATION_BROKEN
    }


async def test_a_stale_row_without_any_other_account_grows() -> None:
    assert await judged(HeartbeatRow("t", 50.0), native=BLIND) == Measured(50.0)


async def test_an_idle_shard_does_not_look_lagged_while_its_heartbeat_is_paused() -> None:
    """R25, R57"""
    resting = HeartbeatRow("t", 9 * HOURS, resting=True)
    seen = await judged(resting, native=0.0)
    assert seen == Measured(0.0, Cause.HEARTBEAT_IDLE, "heartbeat is idle, native positions")
    assert await judged(resting, native=BROKEN) == BROKEN
    assert (await rejected(resting, native=STOPPED)).cause is Cause.REPLICATION_STOPPED
    blind = await rejected(resting, native=BLIND)
    assert blind.cause is Cause.HEARTBEAT_IDLE
    assert "may not see" in blind.detail


async def test_a_little_skew_is_clamped_and_flagged() -> None:
    """R24"""
    seen = await judged(HeartbeatRow("t", -0.05))
    assert (seen.value, seen.cause) == (0.0, Cause.CLOCK_SKEW)


async def test_much_skew_is_never_zero() -> None:
    failed = await rejected(HeartbeatRow("t", -0.2))
    assert failed.cause is Cause.CLOCK_SKEW
    assert "NTP" in failed.detail


@pytest.mark.parametrize(("age_s", "ahead_s"), [(3.5, 3.0), (-2.5, -3.0), (-2.5, -3.0001)])
async def test_known_skew_is_corrected_and_reported(age_s: float, ahead_s: float) -> None:
    """R24: both ways, 0.5 s behind by clocks that are 3 s apart."""
    seen = await judged(HeartbeatRow("t", age_s), skew=ClockSkew(ahead_s, error_s=0.004))
    assert seen.value == pytest.approx(0.5, abs=0.001)
    assert seen.cause is Cause.CLOCK_SKEW
    assert "3.000 s" in seen.detail and "±0.004" in seen.detail


async def test_skew_that_does_not_matter_is_corrected_in_silence() -> None:
    assert await judged(HeartbeatRow("t", 1.0), skew=ClockSkew(0.05)) == Measured(0.95)


async def test_a_correction_that_leads_into_the_future_is_rejected() -> None:
    failed = await rejected(HeartbeatRow("t", 1.0), skew=ClockSkew(2.0))
    assert failed.cause is Cause.CLOCK_SKEW
    assert "corrected" in failed.detail


async def test_a_cause_that_stops_replication_outweighs_skew() -> None:
    seen = await judged(HeartbeatRow("t", 60.0), native=STOPPED, skew=ClockSkew(10.0))
    assert (seen.value, seen.cause) == (50.0, Cause.REPLICATION_STOPPED)


@pytest.mark.parametrize(
    ("utc_age_s", "local_age_s", "zone"),
    [
        (5.0, 5.0, UTC),  # the server's own zone is UTC
        (1.0, 2 * HOURS + 1.0, UTC),  # east of it, written in UTC
        (1.0 - 2 * HOURS, 1.0, LOCAL),  # east of it, written in local time
        (1.0, 1.0 - 5 * HOURS, UTC),  # west of it, written in UTC
        (5 * HOURS + 1.0, 1.0, LOCAL),  # west of it, written in local time
    ],
)
def test_pt_heartbeats_zone_shows_while_it_beats(
    utc_age_s: float, local_age_s: float, zone: str
) -> None:
    assert zone_of(utc_age_s, local_age_s) == zone


def test_a_zone_that_does_not_show_is_invalid_not_guessed() -> None:
    with pytest.raises(ProbeFailed) as caught:
        zone_of(3 * HOURS, 5 * HOURS)
    assert caught.value.cause is Cause.INVALID
