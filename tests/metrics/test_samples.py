from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.metrics.samples import CAUSE_MEANINGS, Absent, Cause, Sample, rate_between, reading_of


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001])
def test_what_is_no_measurement_is_unavailable(value: float) -> None:
    """R9"""
    reading = reading_of(value, taken_at=1.0)
    assert isinstance(reading, Absent) and reading.cause is Cause.INVALID


def test_zero_is_a_measurement() -> None:
    assert reading_of(0.0, taken_at=1.0) == Sample(0.0, 1.0)


@given(st.floats())
def test_no_unavailable_metric_ever_becomes_a_zero(value: float) -> None:
    """R151"""
    reading = reading_of(value, taken_at=1.0)
    assert isinstance(reading, Absent) or reading.value == value


def test_every_cause_is_explained() -> None:
    assert set(CAUSE_MEANINGS) == set(Cause)


def test_a_rate_needs_two_readings() -> None:
    first = Sample(100, 1.0)
    warming = rate_between(None, first)
    assert isinstance(warming, Absent) and warming.cause is Cause.WARMING_UP
    assert rate_between(first, Sample(150, 3.0)) == Sample(25, 3.0)


def test_a_counter_that_went_back_has_no_rate() -> None:
    reading = rate_between(Sample(100, 1.0), Sample(3, 2.0))
    assert isinstance(reading, Absent) and reading.cause is Cause.WARMING_UP
