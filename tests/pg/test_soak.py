"""Load, a new policy every second, cancels, terminates and kill -9: nothing is left behind."""

from __future__ import annotations

import random

import pytest
from bench.pg_soak import goals, soaked
from bench.report import Chosen

from tests.fixtures.pgkits import NEWEST


@pytest.mark.extended
def test_nothing_is_left_behind() -> None:
    """R108, R130, R132: a short run of bench.pg_soak, whose long one is for minutes."""
    chosen = Chosen(quick=True, json=None, major=NEWEST)
    broken = [goal for goal in goals(soaked(chosen, 16, random.Random(6))) if not goal.held]
    assert broken == []
