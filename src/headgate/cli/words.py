"""Readings and times in words, fit for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from headgate.present.view import Tone
from headgate.wire.reasons import duration

STYLES: Mapping[Tone, str] = {
    "": "",
    "good": "green",
    "warned": "yellow",
    "bad": "bold red",
    "unknown": "bold magenta",
    "quiet": "dim",
    "strong": "bold",
    "info": "cyan",
}
"""How a tone looks on a terminal; never alone: each state has its word."""


def plain(text: str) -> str:
    """Without control characters: a server's message may not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text).strip()


def local_time(text: str, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """By this machine's clock; what is no time is shown as it came."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime(form)
    except ValueError:
        return plain(text)


def age_text(seconds: float) -> str:
    """Short enough for a column: 412ms, 3.4s, 12min, 3.5h, 4d."""
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:.0f}d"
    return duration(seconds).replace(" ", "")
