"""R24: how old a heartbeat is, and when its age means nothing."""

from __future__ import annotations

import pytest

from headgate.core.samples import Cause
from headgate.errors import ProbeFailed
from headgate.probes.heartbeats import lag_of
from headgate.probes.mysql_heartbeat import LOCAL, UTC, zone_of

HOURS = 3600.0


def test_a_little_skew_is_clamped() -> None:
    assert lag_of(-0.05, "t") == 0
    assert lag_of(1.5, "t") == 1.5


@pytest.mark.parametrize(("age_s", "cause"), [(None, Cause.FAILED), (-0.2, Cause.INVALID)])
def test_no_row_and_much_skew_are_never_zero(age_s: float | None, cause: Cause) -> None:
    with pytest.raises(ProbeFailed) as caught:
        lag_of(age_s, "t")
    assert caught.value.cause is cause


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
