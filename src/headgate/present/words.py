"""Figures and times in words, the same wherever they are shown. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, tzinfo

import msgspec
from msgspec.json import encode

from headgate.base.units import share_of
from headgate.check.answer_api import AnswerDoc
from headgate.check.reasons import duration, quantity
from headgate.errors import BadDocument
from headgate.history.api import STARVED
from headgate.present.view import DASH, Line, Note, Said, Tone, line
from headgate.rules.api import EXEMPT, SUSPENDED
from headgate.shard.api import HOPELESS


def per_s(rate: float) -> str:
    return "0" if rate == 0 else f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"


def age(seconds: float | None) -> str:
    """`3 min`; a dash where it is not known, never 0 for that."""
    if seconds is None:
        return DASH
    if seconds < 1:
        return "now"
    if 10 <= seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 86400:.0f} d" if seconds >= 48 * 3600 else duration(seconds)


def age_text(seconds: float) -> str:
    """Short enough for a column: 412ms, 3.4s, 12min, 3.5h, 4d."""
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:.0f}d"
    return duration(seconds).replace(" ", "")


def ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def told_quantity(value: float | None, unit: str = "") -> str:
    return DASH if value is None else quantity(value, unit)


def share_text(share: float) -> str:
    """Rounded down: what has not reached its threshold does not read 100%."""
    return f"{math.floor(share * 100 + 1e-9)}%" if share < 100 else ">9999%"


def told_share(ratio: float | None) -> str:
    return DASH if ratio is None else share_of(ratio)


def bare_reason(answer: AnswerDoc) -> str:
    """Why, without the database's name before it, which every view shows."""
    return answer.reason.removeprefix(f"{answer.database}: ")


def some(count: float) -> str:
    """A few of many are shown to the tenth: half a check is an average, not none."""
    return f"{count:.1f}" if count < 10 and round(count, 1) % 1 else f"{count:,.0f}"


def rest_of(doc: msgspec.Struct, told: Collection[str]) -> list[tuple[str, str]]:
    """Fields that no presenter shows, such as a new one; empty ones are left out."""
    values = ((name, getattr(doc, name)) for name in doc.__struct_fields__ if name not in told)
    return [
        (name.replace("_", " "), value if isinstance(value, str) else encode(value).decode())
        for name, value in values
        if value not in (None, "", (), [], {})
    ]


# --- times --------------------------------------------------------------------------------------


def time_of(iso: str, zone: tzinfo | None) -> datetime:
    """None: of this machine, as its clocks were set on that day."""
    try:
        return datetime.fromisoformat(iso).astimezone(zone)
    except ValueError:
        raise BadDocument(iso, "is no time") from None


def moment(iso: str, zone: tzinfo | None = None, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """`2026-11-18 07:05:00 CET`"""
    return time_of(iso, zone).strftime(form)


def times_of(since: str, until: str, zone: tzinfo | None) -> tuple[str, str]:
    """The day is said where there are two."""
    begin, end = time_of(since, zone), time_of(until, zone)
    form = "%H:%M" if begin.date() == end.date() else "%d %b %H:%M"
    return begin.strftime(form), end.strftime(form)


# --- advice -------------------------------------------------------------------------------------

LOUD: dict[str, Tone] = {
    STARVED: "bad",
    HOPELESS: "bad",
    EXEMPT: "warned",
    SUSPENDED: "warned",
}
"""How advice begins that nobody is to overlook."""


def advice_of(advice: Sequence[str]) -> list[Note]:
    """Loud ones first, in their order."""
    found = [_advice(text.removeprefix("warning ")) for text in advice]
    return [*(a for a in found if is_loud(a)), *(a for a in found if not is_loud(a))]


def is_loud(note: Note) -> bool:
    return note.word != ADVICE


ADVICE = "advice"


def _advice(text: str) -> Note:
    for prefix, tone in LOUD.items():
        if text.startswith(prefix):
            return Note(prefix.removesuffix(": "), tone, text.removeprefix(prefix))
    return Note(ADVICE, "", text)


def advice_lines(advice: Sequence[str], most: int) -> Iterator[Line | Note]:
    yield from advice_of(advice)[:most]
    if len(advice) > most:
        yield line(Said(f"and {len(advice) - most} more pieces of advice: --json", "quiet"))
