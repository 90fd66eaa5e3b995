"""One line a moment: lag against its threshold, and who is held. Time runs downwards."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

SCALE_S = 6.0
WIDEST_BAR = 36
JOB_WIDTH = 34
_console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Frame:
    scene: str
    at: float
    lag_s: float | None
    held: dict[str, tuple[float, str]]
    """client → (seconds refused without a break, by what)"""
    done: dict[str, int]
    """client → chunks since the last frame"""


def show(text: Text) -> None:
    _console.print(text)


def header(threshold_s: float) -> Text:
    return Text(f"{'lag':>8}  {' ' * _mark(threshold_s)}▼ threshold {threshold_s:g} s", "bold")


def line(frame: Frame, threshold_s: float) -> Text:
    width, mark = _width(), _mark(threshold_s)
    lag_s = frame.lag_s
    filled = 0 if lag_s is None else min(width, round(lag_s / SCALE_S * width))
    cells = ("█" * filled).ljust(width)
    if filled <= mark:
        cells = cells[:mark] + "│" + cells[mark + 1 :]
    over = lag_s is None or lag_s > threshold_s
    text = Text(f"{'no value' if lag_s is None else f'{lag_s:.2f} s':>8}  ")
    text.append(cells, "red" if over else "green")
    for name in frame.done:
        text.append("  ")
        text.append(*_job(name, frame))
    return text


def _job(name: str, frame: Frame) -> tuple[str, str]:
    if name in frame.held:
        seconds, by = frame.held[name]
        return f"{name} HELD {seconds:.1f} s by {by}".ljust(JOB_WIDTH), "yellow"
    return f"{name} {frame.done[name]} chunks".ljust(JOB_WIDTH), ""


def _mark(threshold_s: float) -> int:
    return int(threshold_s / SCALE_S * _width())


def _width() -> int:
    return max(15, min(WIDEST_BAR, _console.width - 10 - 2 * (JOB_WIDTH + 2)))
