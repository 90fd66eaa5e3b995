"""Dice that may keep nobody from the metrics for ever, as arithmetic (R82)."""

from __future__ import annotations

import pytest

from headgate.check.model import turn_of


@pytest.mark.parametrize(
    ("since", "waited_s", "left_s", "waived"),
    [
        (None, 0.0, 30.0, False),
        (100.0, 0.0, 30.0, False),
        (80.0, 20.0, 10.0, False),
        (70.0, 30.0, 0.0, True),
        (10.0, 90.0, 0.0, True),
        # A clock that went back.
        (101.0, 0.0, 30.0, False),
    ],
)
def test_a_turn_comes_when_the_bound_has_passed(
    since: float | None, waited_s: float, left_s: float, waived: bool
) -> None:
    turn = turn_of(since, 100.0, 30.0)
    assert (turn.waited_s, turn.left_s, turn.dice_waived) == (waited_s, left_s, waived)
