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
    """A text with a unit, read; in which unit the metric is measured is not known yet."""

    value: float
    unit: str
    """`s`, `B` or `ratio`, whatever the text has; empty: the text has none."""
    text: str


def in_unit(given: float | Amount, unit: str) -> float:
    """As a metric of that unit measures it. Of a time or a size a bare number is rejected: 50 is
    what? 0 is the same in every unit."""
    of, per = _METRIC_UNITS.get(unit, ("", 1))
    value, text = (given.value, given.text) if isinstance(given, Amount) else (given, f"{given:g}")
    if not isinstance(given, Amount) or not given.unit:
        if of in _READINGS and value:
            one, other = (f"{text.strip()}{named}" for named in _READINGS[of])
            readings = f'{one} or {other}? Write "{one}" or "{other}"'
            raise ValueError(f"is {text.strip()}, which has no unit: {readings}")
        if isinstance(given, Amount):
            also = f' or "{text.strip()}%"' if of == "ratio" else ""
            raise ValueError(f"is {text!r}, a text: write {text.strip()}{also}")
        return value
    if given.unit != of:
        measured = f"measured in {unit}" if unit else "a plain number"
        raise ValueError(f"is {text!r}, but the metric is {measured}")
    return value * per if per >= 1 else value / round(1 / per)


def amount_text(value: float, unit: str) -> float | str:
    """As in_unit takes it back: `50ms`, `2.5s`, `1024 B`; a number where the unit is no such."""
    of, per = _METRIC_UNITS.get(unit, ("", 1))
    if of not in _READINGS:
        return value
    base = value / per
    if of == "B":
        return f"{base:.0f} B"
    text = duration_text(base)
    if "e" not in text and in_unit(parse_amount(text), unit) == value:
        return text
    return f"{f'{base:.9f}'.rstrip('0').rstrip('.')}s"


_READINGS = {"s": ("ms", "s"), "B": (" MiB", " GiB")}
"""What a number without a unit could mean."""


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
    if BARE.fullmatch(whole):
        return Amount(float(whole), "", text)
    if not _PART.match(whole):
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
        if not float(whole):
            return 0.0  # In every unit.
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
    for unit in ("d", "h", "m", "s", "ms", "us"):
        amount = seconds * 1_000_000 / SECONDS[unit]
        if amount >= 1 and amount == int(amount) and (unit != "m" or amount > 1):
            return f"{int(amount)}{unit}"
    return f"{seconds:g}s"


def share_of(ratio: float) -> str:
    """In percent, and 0 % or 100 % only where it is just that."""
    places = next((n for n in range(8) if _tells(f"{ratio:.{n}%}", ratio)), None)
    if places is not None:
        return f"{ratio:.{places}%}"
    return "almost 100%" if ratio > 0.5 else "almost 0%"


def _tells(text: str, ratio: float) -> bool:
    said = float(text[:-1]) / 100
    return abs(said - ratio) <= min(0.005, 0.05 * ratio, 0.05 * (1 - ratio))
