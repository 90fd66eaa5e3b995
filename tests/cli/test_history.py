"""Observer effect: history answers "the daily ETL was mostly throttled 07:00–07:25" (R68)."""

from __future__ import annotations

import pytest

from headgate.cli.documents import BadDocument, Tally
from headgate.cli.history import summarise


def tally(minute: str, verdict: str, count: int, metric: str = "", client: str = "etl") -> Tally:
    return Tally(f"2026-03-01T{minute}:00Z", "main", client, verdict, metric, count)


def test_a_stretch_of_refused_minutes_is_one_span() -> None:
    tallies = [tally(f"07:{m:02}", "THRESHOLD_EXCEEDED", 9, "lag") for m in range(25)]
    tallies += [tally(f"07:{m:02}", "OK", 1) for m in range(40)]
    [row] = summarise(tallies)
    assert row.spans == (("07:00", "07:25"),)
    assert (row.admitted, row.refused) == (40, 225)
    assert row.mainly_by == (("lag", 1.0),)
    assert row.refused_share == pytest.approx(225 / 265)


def test_minutes_apart_are_spans_apart_and_other_days_are_named() -> None:
    refused = [
        Tally("2026-02-28T23:58:00Z", "main", "etl", "INTERNAL_ERROR", "lag", 2),
        tally("07:00", "THRESHOLD_EXCEEDED", 1, "lag"),
        tally("09:30", "THRESHOLD_EXCEEDED", 1, "lag"),
    ]
    [row] = summarise(refused)
    assert row.spans == (("28 Feb 23:58", "23:59"), ("07:00", "07:01"), ("09:30", "09:31"))


def test_a_few_refusals_among_many_admissions_are_no_span() -> None:
    """R13: at its threshold a metric refuses now and then, and that is health."""
    [row] = summarise([tally("07:00", "OK", 90), tally("07:00", "REJECT_BY_RATIO", 10, "r1")])
    assert row.spans == ()
    assert row.refused == 10


def test_who_was_refused_most_comes_first() -> None:
    rows = summarise(
        [
            tally("07:00", "OK", 900, client="quiet"),
            tally("07:00", "APP_DENIED", 3, client="b"),
            tally("07:00", "APP_DENIED", 5, client="a"),
        ]
    )
    assert [row.client for row in rows] == ["a", "b", "quiet"]
    assert rows[0].mainly_by == (("APP_DENIED", 1.0),)


def test_empty_counts_make_no_row() -> None:
    assert summarise([tally("07:00", "OK", 0)]) == []


def test_a_minute_that_is_no_time_is_named() -> None:
    with pytest.raises(BadDocument, match="noon"):
        summarise([Tally("noon", "main", "etl", "OK", "", 1)])
