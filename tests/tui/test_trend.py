"""What `top` remembers: rates from two looks, values with their gaps, and outages."""

from __future__ import annotations

from typing import Any

from headgate.check.api import StatusDoc
from headgate.cli.documents import read
from headgate.tui.trend import KEEP_SLOTS, RATE_WINDOW_S, SLOT_S, PastMinute, Picture, Trend
from tests.cli import builders


def status(admitted: int = 0, rejected: int = 0, **metric: Any) -> StatusDoc:
    document = builders.status(
        databases=[builders.database(metrics=[builders.metric(**metric)])],
        clients=[builders.client(admitted=admitted, rejected=rejected)],
    )
    return read(StatusDoc, document)


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


def test_rates_are_of_some_seconds_so_that_they_do_not_flicker() -> None:
    trend = Trend("url")
    for second in range(20):
        view = trend.take(status(10 * second), float(second))
    assert view.rates == {KEY: (10.0, 0.0)}
    trend.take(status(1000), 20.0)
    spread = trend.picture.rates[KEY][0]
    assert 10.0 < spread < 810.0, "one burst is spread over the window"
    for second in range(21, 21 + int(RATE_WINDOW_S) + 1):
        view = trend.take(status(1000), float(second))
    assert view.rates[KEY][0] == 0.0


def last(view: Picture, count: int) -> tuple[float | None, ...]:
    return tuple(view.recent[("main", "lag")])[-count:]


def test_the_worst_of_a_quarter_of_a_minute_is_kept_and_unavailable_values_are_gaps() -> None:
    trend = Trend("url")
    trend.take(status(value=1.0), 0.0)
    trend.take(status(value=9.0), 1.0)
    trend.take(status(value=2.0), 2.0)
    trend.take(status(value=None, state="unavailable", cause="timed_out"), SLOT_S)
    view = trend.take(status(value=3.0), 3 * SLOT_S)
    assert last(view, 4) == (9.0, None, None, 3.0)


def test_memory_is_bounded() -> None:
    trend = Trend("url")
    for slot in range(KEEP_SLOTS + 50):
        view = trend.take(status(value=float(slot)), slot * SLOT_S)
    assert len(view.recent[("main", "lag")]) == KEEP_SLOTS
    assert last(view, 1) == (float(KEEP_SLOTS + 49),)


def test_history_goes_before_what_was_seen_and_never_over_it() -> None:
    trend = Trend("url")
    now_s = 1000 * SLOT_S
    trend.take(status(value=5.0), now_s)
    minutes = [PastMinute(("main", "lag"), 0.0, 1.5), PastMinute(("main", "lag"), 60.0, 0.5)]
    trend.recall([*minutes, PastMinute(("main", "gone"), 0.0, 7.0)], now_s)
    view = trend.take(status(value=4.0), now_s)
    assert last(view, 9) == (0.5,) * 4 + (1.5,) * 4 + (5.0,)
    assert set(view.recent) == {("main", "lag")}


def test_values_of_each_member_of_a_shard_are_remembered() -> None:
    document = builders.status(databases=[builders.database(shard=builders.shard())])
    view = Trend("url").take(read(StatusDoc, document), 1.0)
    assert view.recent[("main", "db-b lag")][-1] == 0.02


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


def test_an_agent_that_restarted_is_noticed() -> None:
    trend = Trend("url")
    assert trend.take(status(), 1.0).restarted_at_s is None
    again = read(StatusDoc, builders.status(uptime_s=3.0))
    assert trend.take(again, 2.0).restarted_at_s == 2.0
    later = read(StatusDoc, builders.status(uptime_s=4.0))
    assert trend.take(later, 3.0).restarted_at_s == 2.0
