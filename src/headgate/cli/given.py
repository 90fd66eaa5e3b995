"""What is typed, by the tables that the agent reads it by: settings, times and shares.

`threshold=50ms mode=enforce` ──table──► {"threshold": "50ms", "mode": "enforce"} ──► the agent
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from headgate.core.settings import Setting

UNSET = "unset"


# --- settings --------------------------------------------------------------------------------


def read_words(words: Sequence[str], table: Mapping[str, Setting], example: str) -> dict[str, Any]:
    """`rate=30 mode=enforce capacity=unset`, None for unset; of a table `labels.region=eu`."""
    from headgate.core.settings import unknown

    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        key, dot, entry = name.partition(".")
        if not equals:
            raise typer.BadParameter(f"{word!r} must read SETTING=VALUE, such as {example}")
        if key not in table:
            raise typer.BadParameter(unknown(key, table))
        if dot:
            entries = found.setdefault(key, {})
            if not isinstance(entries, dict) or entry in entries:
                raise typer.BadParameter(f"{name} is given twice; say it once")
            entries[entry] = _value(table[key], value, entry)
        elif key in found:
            raise typer.BadParameter(f"{key} is given twice; say it once")
        else:
            found[key] = None if value == UNSET else _value(table[key], value)
    return found


def _value(row: Setting, value: str, entry: str = "") -> Any:
    """As the table reads it: a number or a flag if that is what it wants, else the text."""
    fault = None
    for candidate in _candidates(value):
        try:
            row.read({entry: candidate} if entry else candidate)
        except ValueError as error:
            fault = fault or error
        else:
            return candidate
    raise typer.BadParameter(f"{row.name} {fault}, or {UNSET}")


def _candidates(value: str) -> Iterator[Any]:
    import json
    import shlex

    with suppress(ValueError):
        said = json.loads(value)
        if not isinstance(said, str | None):
            yield said
    yield value
    with suppress(ValueError):  # A list: a command and its arguments.
        yield shlex.split(value)


def completed_by(home: str, but: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """The names of a table (module:attribute) for a shell that completes."""

    def complete(incomplete: str) -> list[str]:
        known = (name for name in table_at(home) if name not in but)
        return [f"{name}=" for name in known if name.startswith(incomplete)]

    return complete


def table_at(home: str) -> Mapping[str, Setting]:
    from importlib import import_module

    module, _, attribute = home.partition(":")
    table: Mapping[str, Setting] = getattr(import_module(module), attribute)
    return table


def settings_help(home: str) -> str:
    """For `--help`: every setting, its default and what it means."""
    from textwrap import fill

    lines = []
    for row in table_at(home).values():
        default = f"  [default: {row.default_text}]" if row.default_text else ""
        about = f"{row.name:<17} {row.about}{default}".replace("`", "")
        lines.append(fill(about, 76, initial_indent="  ", subsequent_indent=" " * 20))
    return "\n".join(["\b", "Settings:", *lines])


# --- times and shares ------------------------------------------------------------------------


def lasting(text: str) -> str:
    """`90s`, `30m`, `1h30m`, as every agent reads it. A bare number is refused: 30 is what?"""
    from headgate.core.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if seconds != int(seconds):
        raise typer.BadParameter(f"is {text!r}, must be whole seconds")
    return text if text[:-1].isdecimal() else f"{int(seconds)}s"


def lasting_or_never(text: str) -> str:
    return text if text == "never" else lasting(text)


def ratio(given: str | float) -> float:
    """`0.5` or `50%`. What it may be is the agent's to say; 50 is a slip."""
    from headgate.core.units import parse_share

    text = str(given)
    try:
        number = float(text) if not text.endswith("%") else parse_share(text)
    except ValueError:
        raise typer.BadParameter(f"is {text!r}, must be a share such as 0.5 or 50%") from None
    if 2 <= number <= 100:
        raise typer.BadParameter(f"is {text}: 1 is all of it; did you mean {text}%?")
    return number
