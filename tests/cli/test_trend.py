"""What `top` remembers: rates from two looks, values with their gaps, and outages."""

from __future__ import annotations

from typing import Any

from headgate.cli.documents import Status, read
from headgate.cli.trend import KEEP_VALUES, Trend
from tests.cli import builders


def status(admitted: int = 0, refused: int = 0, **metric: Any) -> Status:
    document = builders.status(
        databases=[builders.database(metrics=[builders.metric(**metric)])],
        clients=[builders.client(admitted=admitted, refused=refused)],
    )
    return read(Status, document)


KEY = ("main", "etl:nightly")


def test_rates_are_what_was_added_between_two_looks() -> None:
    trend = Trend("url")
    assert trend.take(status(100, 10), 50.0).rates == {}
    assert trend.take(status(200, 15), 52.0).rates == {KEY: (50.0, 2.5)}


def test_counts_that_went_back_have_no_rate() -> None:
    """The agent restarted: a negative rate would be nonsense, and 0 a lie."""
    trend = Trend("url")
    trend.take(status(100, 10), 50.0)
    assert trend.take(status(5, 0), 51.0).rates == {}
    assert trend.take(status(15, 0), 52.0).rates == {KEY: (10.0, 0.0)}


def test_values_are_remembered_and_absences_are_gaps() -> None:
    trend = Trend("url")
    trend.take(status(value=1.0), 1.0)
    trend.take(status(value=None, state="absent", cause="timed_out"), 2.0)
    assert trend.take(status(value=3.0), 3.0).recent[("main", "lag")] == (1.0, None, 3.0)


def test_memory_is_bounded() -> None:
    trend = Trend("url")
    for second in range(KEEP_VALUES + 50):
        view = trend.take(status(value=float(second)), float(second))
    assert len(view.recent[("main", "lag")]) == KEEP_VALUES


def test_a_metric_that_was_removed_is_forgotten() -> None:
    trend = Trend("url")
    trend.take(status(name="old"), 1.0)
    assert set(trend.take(status(name="new"), 2.0).recent) == {("main", "new")}


def test_an_outage_keeps_the_last_picture_and_its_own_beginning() -> None:
    trend = Trend("url")
    trend.take(status(value=1.0), 10.0)
    trend.lose("connection refused", 11.0)
    view = trend.lose("no answer in 2 s", 14.0)
    assert view.status is not None
    assert (view.seen_at_s, view.lost_at_s, view.lost) == (10.0, 11.0, "no answer in 2 s")
    assert trend.take(status(), 15.0).lost is None
