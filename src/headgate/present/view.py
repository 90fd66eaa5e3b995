"""What view models are made of.   document ──present──► lines, notes, tables ──► terminal, page

A terminal draws blocks as they are; the page's templates take them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from headgate.check.answer_api import MetricDoc

Tone = Literal["", "good", "warned", "bad", "unknown", "quiet", "strong", "info"]
DASH = "–"
"""For what is not known, or not there: never 0 for that."""


class Said(NamedTuple):
    text: str
    tone: Tone = ""


class Fill(NamedTuple):
    """How full something is; None: not known."""

    share: float | None
    is_bad: bool = False


class Curve(NamedTuple):
    """From the oldest to the newest; None is a gap."""

    values: Sequence[float | None]
    threshold: float | None = None


BREAK = Said("\n")


class Line(NamedTuple):
    parts: tuple[Said, ...]


def line(*parts: str | Said) -> Line:
    return Line(tuple(Said(part) if isinstance(part, str) else part for part in parts))


Cell = str | Said | Line | Fill | Curve


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    is_right: bool = False
    from_width: int = 0
    """Left out of a narrower terminal."""
    below_width: int = 0
    """Left out of one that is as wide as this; 0: of none."""
    is_whole: bool = False
    """What people search for and paste stays in one piece; what is left over is cut."""

    def fits(self, width: int) -> bool:
        return self.from_width <= width and not 0 < self.below_width <= width


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def columns(*names: str, right: Sequence[str] = (), **from_width: int) -> list[Column]:
    return [Column(name, name in right, from_width.get(name, 0)) for name in names]


@dataclass(frozen=True, slots=True)
class Step:
    """What to do: a word on it, and a command to copy or a link to follow."""

    why: str
    command: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A state or a piece of advice in a word, in a sentence, and with what to do about it."""

    word: str
    tone: Tone
    says: str = ""
    steps: Sequence[Step] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """Metrics beside their thresholds, as wide as there is room."""

    metrics: Sequence[MetricDoc]


Block = Line | Note | Table | Readings


def outcome(done: str, what: str, *, dry_run: bool = False) -> Line:
    """`SET  main/lag`"""
    if not dry_run:
        return line(Said(done, "good"), f"  {what}")
    tried = Said("  (dry run: nothing was changed)", "quiet")
    return line(Said(f"WOULD BE {done}", "warned"), f"  {what}", tried)
