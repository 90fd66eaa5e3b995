"""Amounts with their units, and the fault where there is none."""

from __future__ import annotations

import re

import pytest

from headgate.base.declared import seconds, share, size
from headgate.base.units import duration_text, parse_bytes, parse_seconds, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("1us", 1e-6),
        ("7ms", 0.007),
        ("90s", 90),
        ("30m", 1800),
        ("30 min", 1800),
        ("1h30m", 5400),
        ("2d3h", 183_600),
        ("1.5 h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


def test_a_bare_number_shows_both_readings() -> None:
    with pytest.raises(ValueError, match=r"is 30, which has no unit: 30s or 30m\?"):
        parse_seconds("30")
    with pytest.raises(ValueError, match=r"64, which has no unit: 64 KiB or 64 MiB\?"):
        parse_bytes("64")
    with pytest.raises(ValueError, match=r"a text without a unit: 80 or \"80%\"\?"):
        parse_share("80")


@pytest.mark.parametrize("text", ["", "s", "5 parsecs", "1h 30", "-5s", "1e3s", "m30"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must read like 250ms"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "bytes_"), [("4 GiB", 4 << 30), ("64KiB", 65536), ("5 MB", 5_000_000), ("7B", 7)]
)
def test_sizes(text: str, bytes_: int) -> None:
    assert parse_bytes(text) == bytes_


def test_a_key_takes_its_own_unit_as_a_number_or_any_as_a_text() -> None:
    assert seconds(0, 60)(0.25) == seconds(0, 60)("250ms") == 0.25
    assert share(0, 1)(0.05) == share(0, 1)("5%") == 0.05
    assert size(4, 4096, 1 << 20)(256) == size(4, 4096, 1 << 20)("256 MiB") == 256 << 20


@pytest.mark.parametrize(
    ("read", "value", "told"),
    [
        (seconds(1, 60), "2m", "is '2m', must be at least 1s and at most 60s"),
        (seconds(1, 60), True, "must be a number, not a boolean"),
        (share(0, 1), 80, 'is 80, must be at most 1: 1 is all of it; did you mean "80%"?'),
        (share(0, 1), 250, "is 250, must be at least 0 and at most 1"),
        (share(0, 1), "250%", "is '250%', must be at least 0 and at most 1"),
        (size(4, 64, 1 << 20), "2 GiB", "is '2 GiB', must be from 4 MiB to 64 MiB"),
        (size(4, 64, 1 << 20), 65, "is 65 MiB, must be from 4 MiB to 64 MiB"),
    ],
)
def test_what_does_not_fit_is_reported_in_its_unit(read: object, value: object, told: str) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        read(value)


@pytest.mark.parametrize("text", ["1us", "250ms", "90s", "12h", "30d", "10m", "1h"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert duration_text(parse_seconds(text)) == text
