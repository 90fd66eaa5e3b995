"""How far a MySQL or a Postgres replica is behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ProbeFailed
from headgate.metrics.probes.mysql_replication import (
    QUIET_S,
    Channel,
    MysqlNativeLag,
    Thread,
    channel_of,
    is_on,
)
from headgate.metrics.probes.postgres_replication import (
    PrimaryLag,
    StandbyLag,
    StandbyState,
    WalMarks,
    upstream_of,
)
from headgate.metrics.samples import Cause, Measured
from tests.metrics.probes.reading import as_measured

IO, SQL = Thread("Slave_IO_Running", "Yes", ""), Thread("Slave_SQL_Running", "Yes", "")
RUNNING = Channel("", "db-a:3306", "1", (IO, SQL), 0.0)
STOPPED = replace(RUNNING, threads=(IO, replace(SQL, state="No")), seconds_behind=None)
IN_ERROR = replace(
    RUNNING, threads=(IO, replace(SQL, state="No", error="Duplicate entry")), seconds_behind=None
)
CONNECTING = replace(RUNNING, threads=(replace(IO, state="Connecting"), SQL), seconds_behind=0.0)
TROUBLES = [
    (STOPPED, Cause.REPLICATION_STOPPED),
    (IN_ERROR, Cause.REPLICATION_BROKEN),
    (CONNECTING, Cause.REPLICATION_BROKEN),
    (replace(RUNNING, seconds_behind=None), Cause.FAILED),
]


class At:
    """A clock that stands where it is put."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("channel", "cause"), TROUBLES)
def test_misleading_zero_lag_of_a_stopped_thread_grows_since_it_was_current(
    channel: Channel, cause: Cause
) -> None:
    """R22"""
    clock = At()
    lag = MysqlNativeLag(clock)
    assert lag.judge([replace(RUNNING, seconds_behind=2.0)]) == 2.0
    seen = []
    for clock.now_s in (101.0, 110.0, 1100.0):
        seen.append(as_measured(lag.judge([channel])))
    assert [one.value for one in seen] == [3.0, 12.0, 1002.0]
    assert {one.cause for one in seen} == {cause}


def test_misleading_zero_lag_of_a_silent_source_grows_unless_its_silence_is_trusted() -> None:
    """R22: whatever arrives counts as a sign of life, also from an idle source."""
    clock = At()
    trusting, strict = MysqlNativeLag(clock), MysqlNativeLag(clock, strict=True)
    silent = replace(RUNNING, position=("bin.1", "7"), pulse="1")
    for lag in (trusting, strict):
        assert lag.judge([silent]) == 0
    clock.now_s += QUIET_S + 1
    assert trusting.judge([silent]) == 0
    seen = as_measured(strict.judge([silent]))
    assert (seen.value, seen.cause) == (QUIET_S + 1, Cause.REPLICATION_SILENT)
    assert "heartbeat" in seen.detail and strict.without_work_s([silent]) == QUIET_S + 1
    idle = replace(silent, pulse="2")
    assert strict.judge([idle]) == 0 and strict.without_work_s([idle]) == QUIET_S + 1
    busy = replace(idle, position=("bin.1", "8"))
    assert strict.judge([busy]) == 0 and strict.without_work_s([busy]) == 0


@pytest.mark.parametrize(("channel", "cause"), TROUBLES)
def test_unknown_lag_of_mysql_is_a_failure_not_zero(channel: Channel, cause: Cause) -> None:
    with pytest.raises(ProbeFailed) as caught:
        MysqlNativeLag(At()).judge([channel])
    assert caught.value.cause is cause
    assert "unknown" in caught.value.detail


def test_the_worst_of_several_sources_counts() -> None:
    lag = MysqlNativeLag(At())
    other = replace(RUNNING, name="other", seconds_behind=9.0)
    assert lag.judge([RUNNING, other]) == 9.0
    worst = as_measured(lag.judge([RUNNING, replace(STOPPED, name="other")]))
    assert (worst.value, worst.cause) == (9.0, Cause.REPLICATION_STOPPED)


def test_a_source_that_was_taken_away_is_forgotten() -> None:
    lag = MysqlNativeLag(At())
    lag.judge([RUNNING, replace(RUNNING, name="other")])
    lag.judge([RUNNING])
    with pytest.raises(ProbeFailed):
        lag.judge([RUNNING, replace(STOPPED, name="other")])


NEW: dict[str, Any] = {
    "Source_Host": "db-a",
    "Source_Port": 3306,
    "Source_Server_Id": 7,
    "Source_UUID": "3e11fa47",
    "Replica_IO_Running": "Connecting",
    "Replica_SQL_Running": "Yes",
    "Last_IO_Error": "cannot connect",
    "Last_SQL_Error": "",
    "Seconds_Behind_Source": None,
    "Channel_Name": "",
}
OLD = {
    "Master_Host": "db-a",
    "Master_Port": 3306,
    "Master_Server_Id": 0,
    "Slave_IO_Running": "Yes",
    "Slave_SQL_Running": "Yes",
    "Seconds_Behind_Master": 4,
    "Connection_name": "x",
}


def test_a_source_is_read_by_its_new_and_its_old_names() -> None:
    new, old = channel_of(NEW), channel_of(OLD)
    assert (new.upstream, new.upstream_id, new.seconds_behind) == ("db-a:3306", "3e11fa47", None)
    assert new.threads[0] == Thread("Replica_IO_Running", "Connecting", "cannot connect")
    # A source that was never reached has no number yet.
    assert (old.name, old.upstream_id, old.seconds_behind) == ("x", "", 4.0)


@pytest.mark.parametrize(
    ("value", "on"),
    [(0, False), (1, True), ("OFF", False), ("ON", True), ("NO_LOCK", True)],
)
def test_read_only_is_a_number_or_a_name(value: object, on: bool) -> None:
    assert is_on(value) is on


# --- lag from positions, by itself: what the marks can and cannot tell ---------------------


CURRENT = StandbyState(
    has_receiver=True,
    status="streaming",
    replayed_all=True,
    since_replay_s=3600.0,
    silent_s=0.1,
    receiver_timeout_s=60.0,
)
BEHIND = replace(CURRENT, replayed_all=False)
CUT = replace(CURRENT, has_receiver=False, status=None, silent_s=None)
PAUSED = replace(CURRENT, paused=True)


# --- on a standby --------------------------------------------------------------------------


def test_a_current_standby_has_no_lag_however_old_its_last_commit() -> None:
    assert StandbyLag().judge(CURRENT, now_s=100.0) == 0


def test_the_first_commit_after_a_quiet_hour_is_not_an_hour_of_lag() -> None:
    lag = StandbyLag()
    lag.judge(CURRENT, now_s=100.0)
    assert lag.judge(BEHIND, now_s=101.0) == 1.0


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (BEHIND, None),
        (CUT, Cause.REPLICATION_BROKEN),
        (replace(CURRENT, status="waiting"), Cause.REPLICATION_BROKEN),
        (PAUSED, Cause.REPLICATION_STOPPED),
        (replace(PAUSED, replayed_all=False), Cause.REPLICATION_STOPPED),
        (replace(CUT, paused=True), Cause.REPLICATION_BROKEN),
        (replace(CUT, conninfo=""), None),  # fed from an archive: it has no receiver to lose
    ],
)
def test_misleading_zero_lag_a_standby_that_is_not_current_grows(
    state: StandbyState, cause: Cause | None
) -> None:
    """R22"""
    lag = StandbyLag()
    lag.judge(CURRENT, now_s=100.0)
    readings = [as_measured(lag.judge(state, now_s=100.0 + age)) for age in (1, 10, 1000)]
    assert [reading.value for reading in readings] == [1.0, 10.0, 1000.0]
    assert {reading.cause for reading in readings} == {cause}


def test_where_a_broken_standby_gets_its_log_from_is_said_without_secrets() -> None:
    lag = StandbyLag()
    lag.judge(CURRENT, now_s=0.0)
    state = replace(CUT, conninfo="host=db-a port=5433 user=r password=hunter2")
    reading = as_measured(lag.judge(state, now_s=1.0))
    assert "from db-a:5433 is not running" in reading.detail
    assert "hunter2" not in reading.detail + repr(state)


@pytest.mark.parametrize(
    ("conninfo", "upstream"),
    [
        (None, ""),
        ("", ""),
        ("host=db-a", "db-a:5432"),
        ("postgresql://r:hunter2@db-a:5433/x", "db-a:5433"),
        ("host=db-a,db-b", ""),
        ("password='hunter2", ""),
    ],
)
def test_an_upstream_is_host_and_port_and_nothing_else(conninfo: str | None, upstream: str) -> None:
    assert upstream_of(None, None, conninfo) == upstream


def test_a_fresh_commit_bounds_the_lag_too() -> None:
    lag = StandbyLag()
    lag.judge(CURRENT, now_s=100.0)
    assert lag.judge(replace(BEHIND, since_replay_s=0.25), now_s=200.0) == 0.25


def test_a_silent_network_is_lag_once_the_receiver_should_have_got_something() -> None:
    lag = StandbyLag()
    lag.judge(CURRENT, now_s=0.0)
    assert lag.judge(replace(CURRENT, silent_s=29.0), now_s=29.0) == 0
    cut = lag.judge(replace(CURRENT, silent_s=32.0), now_s=61.0)
    assert isinstance(cut, Measured)
    assert (cut.value, cut.cause) == (32.0, Cause.REPLICATION_BROKEN)
    assert "received nothing for 32 s" in cut.detail


def test_misleading_zero_lag_of_a_silent_receiver_grows_where_no_heartbeat_is_written() -> None:
    """R22: long before the receiver gives up."""
    lag = StandbyLag(strict=True)
    assert lag.judge(CURRENT, now_s=0.0) == 0
    seen = as_measured(lag.judge(replace(CURRENT, silent_s=4.0), now_s=4.0))
    assert (seen.value, seen.cause) == (4.0, Cause.REPLICATION_SILENT)
    assert lag.judge(CURRENT, now_s=5.0) == 0, "and is over with the next message"


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (CUT, Cause.REPLICATION_BROKEN),
        (PAUSED, Cause.REPLICATION_STOPPED),
        (BEHIND, Cause.FAILED),
    ],
)
def test_unknown_lag_is_a_failure_not_zero(state: StandbyState, cause: Cause) -> None:
    with pytest.raises(ProbeFailed) as caught:
        StandbyLag().judge(replace(state, since_replay_s=None), now_s=1.0)
    assert caught.value.cause is cause
    assert "unknown" in caught.value.detail


# --- on a primary --------------------------------------------------------------------------


def test_lag_is_the_age_of_the_first_mark_beyond_the_replayed_position() -> None:
    lag = PrimaryLag()
    assert lag.judge(100, {"a": 100}, now_s=0.0) == 0
    assert lag.judge(200, {"a": 100}, now_s=1.0) == 0  # passed since the last look
    assert lag.judge(300, {"a": 100}, now_s=2.0) == 1.0
    assert lag.judge(300, {"a": 250}, now_s=3.0) == 1.0
    assert lag.judge(300, {"a": 300}, now_s=4.0) == 0


def test_an_idle_primary_is_not_lag() -> None:
    lag = PrimaryLag()
    assert [lag.judge(100, {"a": 100}, now_s=s) for s in (0.0, 10.0, 9999.0)] == [0, 0, 0]


def test_the_worst_replica_counts() -> None:
    lag = PrimaryLag()
    for second in range(10):
        lag.judge(100 * (second + 1), {"a": 100 * (second + 1), "b": 100}, now_s=float(second))
    assert lag.judge(1000, {"a": 1000, "b": 100}, now_s=9.0) == 8.0


def test_a_vanished_replica_grows_and_is_forgotten_after_its_time() -> None:
    lag = PrimaryLag(remember_s=60.0)
    lag.judge(100, {"a": 100}, now_s=0.0)
    assert lag.judge(100, {}, now_s=30.0) == 30.0
    assert lag.judge(100, {}, now_s=60.0) == 60.0
    with pytest.raises(ProbeFailed) as caught:
        lag.judge(100, {}, now_s=61.0)
    assert caught.value.cause is Cause.UNSUPPORTED


def test_a_replica_behind_before_we_looked_is_warming_up_not_zero() -> None:
    lag = PrimaryLag()
    with pytest.raises(ProbeFailed) as caught:
        lag.judge(1000, {"a": 10}, now_s=0.0)
    assert caught.value.cause is Cause.WARMING_UP
    assert lag.judge(1000, {"a": 10}, now_s=30.0) == 30.0
    assert lag.judge(1000, {"a": 1000}, now_s=31.0) == 0


def test_a_replica_that_has_not_reported_yet_is_warming_up() -> None:
    lag = PrimaryLag()
    with pytest.raises(ProbeFailed) as caught:
        lag.judge(100, {"a": None}, now_s=0.0)
    assert caught.value.cause is Cause.WARMING_UP
    assert lag.judge(100, {"a": 100}, now_s=1.0) == 0
    assert lag.judge(100, {"a": None}, now_s=3.0) == 2.0  # back, but where it stands is unknown


def test_a_position_that_goes_back_is_another_server() -> None:
    marks = WalMarks()
    marks.note(1000, 0.0)
    marks.note(50, 1.0)
    marks.note(60, 2.0)
    assert marks.lag_s(50, 5.0) == 3.0
    assert marks.lag_s(40, 5.0) == 4.0


@given(
    steps=st.lists(st.tuples(st.integers(0, 50), st.floats(0.01, 10)), min_size=1, max_size=200),
    replayed=st.integers(0, 5000),
)
def test_thinned_marks_never_overstate_and_never_call_the_behind_current(
    steps: list[tuple[int, float]], replayed: int
) -> None:
    exact, thinned = WalMarks(limit=10_000), WalMarks(limit=16)
    position, now_s = 0, 0.0
    for grown, passed_s in steps:
        position, now_s = position + grown, now_s + passed_s
        exact.note(position, now_s)
        thinned.note(position, now_s)
    assert thinned.lag_s(replayed, now_s) <= exact.lag_s(replayed, now_s)
    assert thinned.lag_s(-1, now_s) == exact.lag_s(-1, now_s)
    assert (thinned.lag_s(replayed, now_s + 1) > 0) == (replayed < position)


def test_marks_are_bounded() -> None:
    marks = WalMarks(limit=64)
    for n in range(10_000):
        marks.note(n, float(n))
    assert len(marks._positions) <= 64
    assert marks.history_s(10_000.0) == 10_000.0
