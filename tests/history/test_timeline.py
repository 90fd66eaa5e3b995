""" "The daily ETL was mostly throttled between 07:00 and 07:25" (R68)."""

from __future__ import annotations

import pytest

from headgate.check.model import Verdict
from headgate.history.records import CheckedMinute, Tally
from headgate.history.starvation_courses import Reason
from headgate.history.timeline import (
    MAX_CHILDREN,
    MAX_SPANS,
    OTHER,
    REASONS,
    ClientRun,
    Runs,
    ThrottledMinutes,
    child_name,
    most_telling,
    runs_of,
    stretches,
    timeline,
)

SEVEN = 7 * 60


def tally(minute: int, verdict: str, count: int, by: str = "", client: str = "etl") -> Tally:
    return Tally(minute, "main", client, verdict, by, count)


def asked(tallies: list[Tally]) -> list[CheckedMinute]:
    """As a store sums them up."""
    found = []
    for minute in sorted({t.minute for t in tallies}):
        mine = [t for t in tallies if t.minute == minute]
        rejected = sum(t.count for t in mine if t.verdict != "OK")
        found.append(CheckedMinute(minute, sum(t.count for t in mine), rejected))
    return found


def told(tallies: list[Tally]) -> str:
    spans = [
        (s, [t for t in tallies if s.from_minute <= t.minute < s.until_minute])
        for s in stretches(asked(tallies))
    ]
    found = timeline((), spans, (), since_minute=0, until_minute=1440, step_minutes=60)
    return "; ".join(
        f"{s.from_minute // 60:02}:{s.from_minute % 60:02}-{s.until_minute // 60:02}:"
        f"{s.until_minute % 60:02} {s.sums.by[0][0]} {s.sums.rejected_share:.0%} {s.sums.checks}"
        for s in found.spans
    )


def test_a_stretch_of_rejected_minutes_is_one_span_with_its_metric() -> None:
    day = [tally(m, "THRESHOLD_EXCEEDED", 92, "shard/lag") for m in range(SEVEN, SEVEN + 25)]
    day += [tally(m, "OK", 8) for m in range(SEVEN - 60, SEVEN + 90)]
    assert told(day) == "07:00-07:25 shard/lag 92% 2500"


def test_a_good_minute_ends_a_span_and_a_silent_one_does_not() -> None:
    held = [tally(m, "THRESHOLD_EXCEEDED", 5, "lag") for m in (1, 2, 4, 7)]
    assert told([*held, tally(3, "OK", 50)]) == (
        "00:01-00:03 lag 100% 10; 00:04-00:05 lag 100% 5; 00:07-00:08 lag 100% 5"
    )
    assert told(held) == "00:01-00:05 lag 100% 15; 00:07-00:08 lag 100% 5"


def test_kinds_of_rejection_are_kept_apart() -> None:
    """R91"""
    day = [
        tally(1, "THRESHOLD_EXCEEDED", 1, "lag"),
        tally(1, "REJECTED_BY_RATIO", 2, "rule:r1"),
        tally(1, "ON_HOLD", 3, "rule:r2"),
        tally(1, "PACED", 4),
        tally(1, "METRIC_UNAVAILABLE", 5, "lag"),
        tally(1, "OK", 6),
        tally(1, "OK", 7, "rule:r3"),
    ]
    found = timeline(day, (), (), since_minute=0, until_minute=9, step_minutes=5)
    assert found.total.rejected == {
        Reason.METRIC: 1,
        Reason.DICE: 2,
        Reason.HELD: 3,
        Reason.PACED: 4,
        Reason.OTHER: 5,
    }
    assert (found.total.admitted, found.total.exempted, found.total.checks) == (13, 7, 28)
    assert [(b.minute, b.sums.checks) for b in found.bins] == [(1, 28)]


def test_every_verdict_has_its_reason() -> None:
    assert set(REASONS) == {verdict.value for verdict in Verdict}


@pytest.mark.parametrize(
    ("client", "level", "name"),
    [
        ("a:b:c", None, "a:b:c"),
        ("a:b:c", 1, "a"),
        ("a:b:c", 3, "c"),
        ("a:b:c", 4, "a:b:c"),
    ],
)
def test_children_by_level(client: str, level: int | None, name: str) -> None:
    assert child_name(client, level) == name


def test_too_many_children_are_summed_up_exactly() -> None:
    many = [tally(1, "OK", 1, client=f"u{n}") for n in range(MAX_CHILDREN + 20)]
    many.append(tally(1, "ON_HOLD", 1, "rule:r", client="held"))
    found = timeline((), (), many, since_minute=0, until_minute=9, step_minutes=1)
    assert found.children[0].client == "held"
    assert len(found.children) == MAX_CHILDREN + 1
    assert sum(c.sums.checks for c in found.children) == MAX_CHILDREN + 21


def test_other_has_the_counts_of_clients_that_were_left_out() -> None:
    """R135: a list that was cut must not make the sums wrong."""
    all_of_it = [tally(1, "OK", 900), tally(1, "PACED", 100), tally(1, "ON_HOLD", 5, "rule:r")]
    listed = [tally(1, "OK", 300, client="u1"), tally(1, "PACED", 60, client="u2")]
    found = timeline(
        all_of_it, (), listed, since_minute=0, until_minute=9, step_minutes=1, whole=False
    )
    assert not found.whole
    other = found.children[-1]
    assert (other.client, other.sums.admitted) == (OTHER, 600)
    assert other.sums.rejected == {Reason.PACED: 40, Reason.HELD: 5}
    assert other.sums.by == (("PACED", 40), ("rule:r", 5))
    assert sum(c.sums.checks for c in found.children) == found.total.checks


def test_of_too_many_spans_the_most_telling_are_kept_in_order() -> None:
    many = [ThrottledMinutes(10 * n, 10 * n + 1, 5 + n % 7) for n in range(200)]
    kept = most_telling(many)
    assert len(kept) == MAX_SPANS and kept == sorted(kept)
    assert min(s.rejected for s in kept) >= 10


# --- runs ----------------------------------------------------------------------------------
# A job that takes far longer than it ever did is noticed, whatever keeps it (R91).

DAY = 1440


def days_of(*lengths: int) -> list[int]:
    """A run a day, each so many minutes long, asking every third minute."""
    return [
        (day + 1) * DAY + minute
        for day, length in enumerate(lengths)
        for minute in {*range(0, length, 3), length - 1}
    ]


def found(*lengths: int) -> Runs:
    minutes = days_of(*lengths)
    runs = runs_of(minutes, since_minute=0, now_minute=max(minutes))
    assert runs is not None
    return runs


def test_a_silence_of_a_quarter_of_an_hour_ends_a_run() -> None:
    runs = runs_of([100, 101, 114, 129, 144], since_minute=0, now_minute=150)
    assert runs is not None
    assert (runs.last, runs.earlier) == (ClientRun(100, 145), ())
    apart = runs_of([100, 116], since_minute=0, now_minute=150)
    assert apart is not None and apart.last == ClientRun(116, 117) and not apart.ongoing


@pytest.mark.parametrize(
    ("lengths", "unusual"),
    [
        ((40, 50, 45, 190), True),
        ((40, 50, 45, 70), False),
        ((40, 190), False),
        ((2, 3, 2, 8), False),
    ],
    ids=["far longer", "somewhat longer", "too few to say", "too short to matter"],
)
def test_far_longer_than_ever(lengths: tuple[int, ...], unusual: bool) -> None:
    runs = found(*lengths)
    assert runs.unusual is unusual and runs.ongoing


def test_what_is_usual() -> None:
    assert found(40, 50, 45, 190).usual_minutes == 45
    assert found(40, 50, 45, 49, 190).usual_minutes == 47
    assert found(40, 50, 45, 190).longest_minutes == 50
    assert found(40, 190).usual_minutes is None


def test_a_run_whose_beginning_is_not_known_is_not_compared_with() -> None:
    minutes = [*range(30), *range(100, 120)]
    runs = runs_of(minutes, since_minute=0, now_minute=120)
    assert runs is not None and runs.earlier == ()
    assert runs_of([], since_minute=0, now_minute=1) is None
