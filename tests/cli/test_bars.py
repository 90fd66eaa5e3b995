"""Bars end at the threshold; a gap in a sparkline is a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.render import ASCII, UNICODE, Marks, bar, marks_for, sparkline
from headgate.present.words import share_text

MARKS = st.sampled_from([UNICODE, ASCII])


@given(st.floats(-1, 1e9), st.integers(1, 60), st.booleans(), MARKS)
def test_a_bar_is_always_as_wide_as_requested(
    share: float, cells: int, over: bool, marks: Marks
) -> None:
    assert len(bar(share, cells, marks, over=over).plain) == cells


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (0.74, "###.")],
)
def test_a_bar_fills_up_to_the_threshold(share: float, shown: str) -> None:
    assert bar(share, 4, ASCII, over=False).plain == shown


def test_beyond_the_threshold_the_bar_is_full_and_red() -> None:
    drawn = bar(1.44, 4, ASCII, over=True)
    assert drawn.plain == "####"
    assert "red" in str(drawn.spans[0].style)


def test_what_has_not_reached_its_threshold_does_not_read_100_percent() -> None:
    assert share_text(0.999) == "99%"
    assert share_text(1.0) == "100%"
    assert share_text(1.44) == "144%"
    assert share_text(4e6) == ">9999%"


def test_a_gap_is_not_a_zero() -> None:
    """Misleading zero (R151)."""
    assert sparkline([0.0, None, 5.0], 5.0, 10, ASCII).plain == "_ #"


def test_a_sparkline_shows_the_newest_that_fit() -> None:
    assert sparkline([5.0, 5.0, 0.0, 0.0], 5.0, 2, ASCII).plain == "__"


def test_a_sparkline_without_threshold_or_values_is_drawn() -> None:
    assert sparkline([], None, 5, UNICODE).plain == ""
    assert sparkline([0.0, 0.0], None, 5, ASCII).plain == "__"


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=200), st.integers(1, 40), MARKS)
def test_a_sparkline_never_outgrows_its_cells(
    values: list[float | None], cells: int, marks: Marks
) -> None:
    assert len(sparkline(values, 5.0, cells, marks).plain) == min(cells, len(values))


def test_a_poor_terminal_gets_ascii() -> None:
    assert marks_for("UTF-8") is UNICODE
    assert marks_for("iso-8859-1") is ASCII
    assert all(ord(c) < 128 for mark in (ASCII.full, ASCII.levels, ASCII.track) for c in mark)


def test_a_value_far_beyond_the_threshold_does_not_flatten_the_others() -> None:
    text = sparkline([4.0, 5.0, 70.0], 5.0, 3, UNICODE).plain
    assert text == "▄▅█", "up to twice the threshold"
