"""R15: a threshold from a measured baseline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.metrics.probes.calibrate import (
    Baseline,
    commit_baseline,
    percentile,
    round_up,
    suggested_threshold,
)


class Scripted:
    def __init__(self, values_s: list[float]) -> None:
        self._values_s = iter(values_s)

    async def read(self) -> float:
        return next(self._values_s)


async def test_a_baseline_tells_middle_tail_and_threshold() -> None:
    values_s = [0.002] * 98 + [0.004, 0.5]
    baseline = await commit_baseline(Scripted(values_s), count=100)
    assert baseline == Baseline(count=100, p50_s=0.002, p99_s=0.004, suggested_s=0.02)


@pytest.mark.parametrize(
    ("p99_s", "threshold_s"), [(0.0001, 0.010), (0.0047, 0.024), (0.02, 0.1), (0.5, 2.5)]
)
def test_the_suggestion_leaves_headroom_and_is_round(p99_s: float, threshold_s: float) -> None:
    assert suggested_threshold(p99_s) == threshold_s


@given(st.floats(1e-6, 1e6))
def test_rounding_goes_up_and_not_far(value: float) -> None:
    assert value * 0.999999 <= round_up(value) <= value * 1.11


def test_percentiles_of_few_values() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([1.0, 2.0], 0.5) == 1.0
