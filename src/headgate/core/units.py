"""Amounts as people write them: `50ms`, `1h30m`, `80%`, `4 GiB`. A bare number has no unit, and is
never guessed at: the fault shows what it could mean."""

from __future__ import annotations

import re
from typing import NamedTuple

SECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000}
SECONDS |= {"h": 3_600_000_000, "d": 86_400_000_000}
"""In millionths: their quotient is the float nearest to the text."""

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
BARE = re.compile(_NUMBER)
_PART = re.compile(rf"\s*({_NUMBER})\s*(us|ms|s|min|m|h|d)")
_SIZE = re.compile(rf"({_NUMBER})\s*([kKMGT]i?)?B", re.IGNORECASE)
_SHARE = re.compile(rf"({_NUMBER})\s*%")
# For JSON Schema: a text in the right form that is out of range is rejected all the same.
_ANY_NUMBER = "[0-9]{1,15}([.][0-9]{1,9})?"
SECONDS_PATTERN = f"^({_ANY_NUMBER} ?(us|ms|s|min|m|h|d) ?)+$"
SHARE_PATTERN = f"^{_ANY_NUMBER} ?%$"
SIZE_PATTERN = f"^{_ANY_NUMBER} ?([kKMGT]i?)?B$"


class Amount(NamedTuple):
    value: float
    unit: str
    """`s`, `B` or `ratio`: the unit of the value, whatever unit the text has."""
    text: str

    def in_unit(self, unit: str) -> float:
        """As a metric measures it."""
        per = _METRIC_UNITS.get(unit)
        if per is None or per[0] != self.unit:
            measured = f"measured in {unit}" if unit else "a plain number"
            raise ValueError(f"is {self.text!r}, but the metric is {measured}")
        return self.value * per[1] if per[1] >= 1 else self.value / round(1 / per[1])


_METRIC_UNITS = {
    "s": ("s", 1), "ms": ("s", 1000), "us": ("s", 1_000_000), "ratio": ("ratio", 1),
    "%": ("ratio", 100), "B": ("B", 1), "bytes": ("B", 1), "KiB": ("B", 2**-10),
    "MiB": ("B", 2**-20), "GiB": ("B", 2**-30), "kB": ("B", 1e-3), "MB": ("B", 1e-6),
    "GB": ("B", 1e-9),
}  # fmt: skip
"""What a metric's unit measures, and how many of the unit make one base unit."""


def parse_amount(text: str) -> Amount:
    """Of any kind, by its unit."""
    whole = text.strip()
    if _SHARE.fullmatch(whole):
        return Amount(parse_share(whole), "ratio", text)
    if _SIZE.fullmatch(whole):
        return Amount(parse_bytes(whole), "B", text)
    if BARE.fullmatch(whole) or not _PART.match(whole):
        raise ValueError(f"is {text!r}, must be a number, or a text with a unit: 50ms, 80%, 4 GiB")
    return Amount(parse_seconds(whole), "s", text)


def parse_seconds(text: str) -> float:
    """`250ms`, `90s`, `30m`, `1h30m`, `7d`."""
    at, millionths, whole = 0, 0.0, text.strip()
    while at < len(whole):
        part = _PART.match(whole, at)
        if part is None:
            break
        at = part.end()
        millionths += float(part[1]) * SECONDS[part[2]]
    if whole and at == len(whole):
        return millionths / 1_000_000
    if BARE.fullmatch(whole):
        raise ValueError(f"is {whole}, which has no unit: {whole}s or {whole}m?")
    raise ValueError(f"is {text!r}, must read like 250ms, 90s, 30m, 1h30m or 7d")


def parse_bytes(text: str) -> int:
    """`4 GiB`, `512 MB`, `64KiB`."""
    whole = text.strip()
    if match := _SIZE.fullmatch(whole):
        prefix = (match[2] or "").lower()
        power = "kmgt".index(prefix[0]) + 1 if prefix else 0
        unit: int = (1024 if prefix.endswith("i") else 1000) ** power
        return round(float(match[1]) * unit)
    if BARE.fullmatch(whole):
        raise ValueError(f"is {whole}, which has no unit: {whole} KiB or {whole} MiB?")
    raise ValueError(f"is {text!r}, must read like 64 KiB, 512 MB or 4 GiB")


def parse_share(text: str) -> float:
    """`80%`, as 0.8."""
    whole = text.strip()
    if match := _SHARE.fullmatch(whole):
        return float(match[1]) / 100
    if BARE.fullmatch(whole):
        raise ValueError(f'is {whole!r}, a text without a unit: {whole} or "{whole}%"?')
    raise ValueError(f"is {text!r}, must be a share such as 0.8 or 80%")


def duration_text(seconds: float) -> str:
    """As it would be written: `250ms`, `90s`, `12h`, `30d`."""
    for unit in ("d", "h", "m", "s", "ms"):
        amount = seconds * 1_000_000 / SECONDS[unit]
        if amount >= 1 and amount == int(amount) and (unit != "m" or amount > 1):
            return f"{int(amount)}{unit}"
    return f"{seconds:g}s"
