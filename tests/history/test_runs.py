"""A job that takes far longer than it ever did is noticed, whatever keeps it (R91)."""

from __future__ import annotations

import pytest

from headgate.history.runs import ClientRun, Runs, runs_of

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
