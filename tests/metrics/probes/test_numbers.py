"""R6, R9: one finite number or an INVALID that says what came."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidSettings, ProbeFailed
from headgate.metrics.model import Engine, Sql
from headgate.metrics.probes.numbers import (
    Baseline,
    commit_baseline,
    number_in_text,
    number_of,
    one_number,
    one_shown,
    percentile,
    round_up,
    suggested_threshold,
)
from headgate.metrics.samples import Cause
from headgate.metrics.settings import parse_metric_settings


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30))
def test_a_finite_number_is_itself(value: float) -> None:
    assert number_of(value) == float(value)
    assert one_number([(value,)]) == float(value)


def test_decimals_are_numbers() -> None:
    assert number_of(Decimal("1.25")) == 1.25


@pytest.mark.parametrize(
    "value",
    [None, True, "12", b"12", float("nan"), float("inf"), Decimal("NaN"), [1], object()],
)
def test_anything_else_is_invalid(value: object) -> None:
    with pytest.raises(ProbeFailed) as caught:
        number_of(value)
    assert caught.value.cause is Cause.INVALID


@pytest.mark.parametrize("rows", [[], [(1,), (2,)], [(1, 2)], [()], [(None,)]])
def test_any_other_shape_than_one_by_one_is_invalid(rows: list[tuple[object, ...]]) -> None:
    with pytest.raises(ProbeFailed) as caught:
        one_number(rows)
    assert caught.value.cause is Cause.INVALID


def test_show_answers_a_name_and_a_number_as_text() -> None:
    assert one_shown([("Threads_running", "12")]) == 12
    assert one_shown([("100",)]) == 100
    with pytest.raises(ProbeFailed, match="no number"):
        one_shown([("read_only", "OFF")])


@pytest.mark.parametrize("text", ["", "twelve", "nan", "1 2", "0x10"])
def test_text_that_is_not_one_number_is_invalid(text: str) -> None:
    with pytest.raises(ProbeFailed):
        number_in_text(text)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("S3cret", "text of 6 characters"),
        (b"S3cret", "text of 6 bytes"),
        (["S3cret"], "a value of type list"),
        ({"S3cret": 1}, "a value of type dict"),
        (None, "NULL"),
        (True, "a boolean"),
    ],
)
def test_a_wrong_answer_is_named_by_kind_and_length_never_by_its_text(
    value: object, said: str
) -> None:
    """M6: everybody may look at a metric."""
    with pytest.raises(ProbeFailed) as caught:
        number_of(value)
    assert caught.value.detail == f"answered {said} and no number"
    if isinstance(value, str):
        with pytest.raises(ProbeFailed, match=r"^answered text of 6 characters and no number$"):
            number_in_text(f" {value}\n")


# --- what may stand before an operator's query, and what only looks like a comment ---------


def parsed(query: str) -> Sql:
    spec = parse_metric_settings("mine", {"sql": query, "threshold": 1}, Engine.MYSQL)
    assert isinstance(spec.source, Sql)
    return spec.source


@pytest.mark.parametrize(
    "query",
    ["-- x\nselect 1", "/* x */ select 1", "--\n\n/* a\n*b */-- c\n  select 1;", "/**/select 1"],
)
def test_comments_may_come_first(query: str) -> None:
    assert parsed(query) == Sql("select 1")


@pytest.mark.parametrize(
    "query",
    [
        "-- select 1",
        "/* select 1 */",
        "/* select 1",
        "-- x\ndelete from t",
        "/*! delete from t */ select 1",
        "/*M! delete from t */ select 1",
        "/*!50000 delete from t where 1 or */ select 1",
    ],
)
def test_what_follows_the_comments_must_be_a_query(query: str) -> None:
    """MySQL and MariaDB run what stands in `/*! … */`."""
    with pytest.raises(InvalidSettings, match="must be one SELECT"):
        parsed(query)


# --- R15: a threshold from a measured baseline ---------------------------------------------


class Scripted:
    def __init__(self, values_s: list[float]) -> None:
        self._values_s = iter(values_s)

    async def read(self) -> float:
        return next(self._values_s)


async def test_a_baseline_has_median_tail_and_threshold() -> None:
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
