"""Bars and sparklines: numbers as marks, in Unicode or, on a poor terminal, in ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

NEAR = 0.75
"""Share of a threshold from which on a bar is shown as close to it."""


@dataclass(frozen=True, slots=True)
class Marks:
    full: str
    parts: str
    """Partial cells, ascending; may be empty."""
    track: str
    levels: str
    gap: str
    nothing: str
    dot: str
    dash: str
    arrow: str
    branch: str
    """Of a tree: a child with another one below it."""
    last: str
    """The last child."""
    trunk: str
    """Beside what hangs under a child that was not the last."""
    good: str
    bad: str
    away: str


UNICODE = Marks(
    *("█", "▏▎▍▌▋▊▉", "·", "▁▂▃▄▅▆▇█", " ", "–", "·", "–", "→"),
    *("├─ ", "└─ ", "│  ", "●", "✖", "○"),
)
ASCII = Marks(
    *("#", "", ".", "_.:-=+*#", " ", "-", "-", "-", "->"), *("|- ", "`- ", "|  ", "*", "x", "o")
)


def marks_for(encoding: str) -> Marks:
    return UNICODE if encoding.lower().startswith("utf") else ASCII


def bar(share: float, cells: int, marks: Marks, *, over: bool) -> Text:
    """The bar's end is the threshold. Beyond it the bar is full, red, and says how far."""
    if over:
        return Text().append(marks.full * cells, style="bold red")
    units = max(1, len(marks.parts) + 1)
    filled = round(min(max(share, 0.0), 1.0) * cells * units)
    whole, part = divmod(filled, units)
    drawn = marks.full * whole + (marks.parts[part - 1] if part else "")
    text = Text().append(drawn, style="yellow" if share >= NEAR else "green")
    return text.append(marks.track * (cells - len(drawn)), style="dim")


def share_text(share: float) -> str:
    """Rounded down: what has not reached its threshold does not read 100 %."""
    return f"{math.floor(share * 100 + 1e-9)}%" if share < 100 else ">9999%"


def sparkline(
    values: Sequence[float | None], threshold: float | None, cells: int, marks: Marks
) -> Text:
    """The newest values, from 0 to the threshold or what went beyond it, up to twice as far: one
    that went far beyond does not flatten the others. A gap is a gap."""
    shown = list(values)[-cells:]
    known = [value for value in shown if value is not None]
    top = max([threshold or 0.0, *known]) or 1.0
    if threshold:
        top = min(top, 2 * threshold)
    text = Text()
    for value in shown:
        over = value is not None and threshold is not None and value > threshold
        text.append(_level(value, top, marks), style="bold red" if over else "cyan")
    return text


def _level(value: float | None, top: float, marks: Marks) -> str:
    if value is None:
        return marks.gap
    steps = len(marks.levels) - 1
    return marks.levels[round(min(max(value / top, 0.0), 1.0) * steps)]
