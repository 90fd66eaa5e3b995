"""R6, R9: one finite number or an INVALID that says what came."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ProbeFailed
from headgate.metrics.probes.numbers import number_in_text, number_of, one_number, one_shown
from headgate.metrics.samples import Cause


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
