"""hg_hash: the same as native/headgate.h's, or no rule is ever found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets import model
from headgate.budgets.model import budget_key, fnv, fnv_start, hg_hash, mixed


@pytest.mark.parametrize(
    ("seed", "data", "hashed"),
    [
        (0, b"", 0x2180A92350D49CCE),
        (0, b"username", 0x3CD3ABDAAB4AA04B),
        (2, b"etl", 0x9EE83EE81C96CE24),
        (hg_hash(1, b"tenant"), b"x" * 100, 0x233257B4929F774E),
    ],
)
def test_hashes_are_those_that_c_gives(seed: int, data: bytes, hashed: int) -> None:
    """Worked out by a C program from the formula in the header."""
    assert hg_hash(seed, data) == hashed


@given(st.integers(0, 2**64 - 1), st.binary(max_size=200), st.integers(0, 200))
def test_a_stream_in_two_parts_hashes_as_one(seed: int, data: bytes, cut: int) -> None:
    """However short or long the parts: both ways of cutting to 64 bits agree."""
    state = fnv(fnv(fnv_start(seed), data[:cut]), data[cut:])
    assert mixed(state) == hg_hash(seed, data) < 2**64


def test_a_budgets_key_is_never_one_that_means_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert budget_key("etl") == hg_hash(2, b"etl")
    for reserved in (0, 1):
        monkeypatch.setattr(model, "hg_hash", lambda seed, data, h=reserved: h)
        assert budget_key("etl") == reserved + 2
