"""Lag by a replica's own account: which thread stands, why, and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.mysql_replication import (
    Channel,
    MysqlNativeLag,
    Thread,
    channel_of,
    is_on,
)
from headgate.metrics.samples import Cause
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
def test_misleading_zero_lag_a_standing_thread_grows_since_it_was_current(
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


@pytest.mark.parametrize(("channel", "cause"), TROUBLES)
def test_unknown_lag_is_a_failure_not_zero(channel: Channel, cause: Cause) -> None:
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


def test_a_source_is_read_in_new_words_and_in_old() -> None:
    new, old = channel_of(NEW), channel_of(OLD)
    assert (new.upstream, new.upstream_id, new.seconds_behind) == ("db-a:3306", "3e11fa47", None)
    assert new.threads[0] == Thread("Replica_IO_Running", "Connecting", "cannot connect")
    # A source that was never reached has no number yet.
    assert (old.name, old.upstream_id, old.seconds_behind) == ("x", "", 4.0)


@pytest.mark.parametrize(
    ("value", "on"),
    [(0, False), (1, True), ("OFF", False), ("ON", True), ("NO_LOCK", True)],
)
def test_read_only_is_a_number_or_a_word(value: object, on: bool) -> None:
    assert is_on(value) is on
