"""Dice that may keep nobody from the metrics forever, as arithmetic (R82)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.check.model import Activity, Idleness, activity_after, most_awake, turn_of


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


# How idleness becomes rest (R56).

AWAKE, IDLE, HIBERNATING = Activity.AWAKE, Activity.IDLE, Activity.HIBERNATING


@pytest.mark.parametrize(
    ("idle_s", "state"),
    [
        (0.0, AWAKE),
        (59.999, AWAKE),
        (60.0, IDLE),
        (599.999, IDLE),
        (600.0, HIBERNATING),
        (1e9, HIBERNATING),
    ],
)
def test_the_boundaries(idle_s: float, state: Activity) -> None:
    assert activity_after(idle_s, Idleness()) is state


@pytest.mark.parametrize(
    ("idleness", "state"),
    [
        (Idleness(idle_after_s=0, hibernate_after_s=0), AWAKE),
        (Idleness(idle_after_s=60, hibernate_after_s=0), IDLE),
        (Idleness(idle_after_s=0, hibernate_after_s=600), HIBERNATING),
        (Idleness(idle_after_s=900, hibernate_after_s=600), HIBERNATING),
    ],
)
def test_0_is_never(idleness: Idleness, state: Activity) -> None:
    assert activity_after(700.0, idleness) is state


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.builds(Idleness, st.floats(0, 1e5), st.floats(0, 1e5)),
)
def test_more_idleness_never_means_more_work(a_s: float, b_s: float, idleness: Idleness) -> None:
    less, more = sorted((a_s, b_s))
    awake = activity_after(less, idleness)
    assert most_awake(awake, activity_after(more, idleness)) is awake


@given(st.lists(st.sampled_from(list(Activity)), min_size=1))
def test_the_most_awake_one_decides(states: list[Activity]) -> None:
    awake = most_awake(*states)
    assert awake in states
    assert (AWAKE in states) is (awake is AWAKE)
    assert (awake is HIBERNATING) is (set(states) == {HIBERNATING})
