"""`headgate lint`: a settings file, judged offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from headgate.settings.agent import Settings

SettingsFile = Annotated[Path, typer.Argument(metavar="FILE", help="The settings file (TOML).")]
Strict = Annotated[bool, typer.Option("--strict", help="Advice fails, too: for a build.")]
LintJson = Annotated[bool, typer.Option("--json", help="Print findings as JSON, for programs.")]


@dataclass(frozen=True, slots=True)
class Note:
    """A fault or a piece of advice, and where."""

    level: str
    line: int | None
    place: str
    message: str


def lint(path: SettingsFile, strict: Strict = False, as_json: LintJson = False) -> None:
    """Judge a settings file, without running anything.

    Exit code 1 for faults; with --strict for advice, too.
    """
    notes = notes_on(path)
    show_notes(path, notes, as_json=as_json)
    if any(note.level == "fault" for note in notes) or (strict and notes):
        raise typer.Exit(1)


def notes_on(path: Path) -> list[Note]:
    # tomllib keeps no positions; config finds them again for faults, and here for advice.
    from headgate.core.places import line_index, nearest_line
    from headgate.errors import InvalidSettings
    from headgate.settings.agent import load_settings

    try:
        settings = load_settings(path)
    except InvalidSettings as error:
        return [Note("fault", fault.line, fault.place, fault.message) for fault in error.faults]
    lines = line_index(path.read_text(encoding="utf-8"))
    advice = [
        Note("advice", nearest_line(a.place, lines), a.place, f"{a.message} [{a.code}]")
        for a in settings.advice
    ]
    policies = [note for name in settings.databases for note in _policy_notes(settings, name)]
    return [*_tracing_notes(settings, lines), *advice, *policies]


def _tracing_notes(settings: Settings, lines: Mapping[str, int]) -> list[Note]:
    """On the headers that [tracing] names: with a fault in them, the agent would not start."""
    from headgate.core.places import nearest_line
    from headgate.errors import InvalidSettings

    try:
        if settings.tracing is not None:
            settings.tracing.headers()
    except InvalidSettings as error:
        return [
            Note("fault", nearest_line(f.place, lines), f.place, f.message) for f in error.faults
        ]
    return []


def _policy_notes(settings: Settings, name: str) -> list[Note]:
    """On the policy file that a database names: with a fault in it, the agent would not start."""
    from headgate.cli.budget_files import notes_on_policy

    traffic = settings.databases[name].traffic
    if traffic is None or traffic.policy is None:
        return []
    where = f"databases.{name}.traffic.policy ({traffic.policy}"
    return [
        Note(note.level, None, f"{where}:{note.line or 0}) {note.place}", note.message)
        for note in notes_on_policy(traffic.policy)
    ]


def show_notes(path: Path, notes: list[Note], *, as_json: bool) -> None:
    from headgate.cli.output import console, show_json

    if as_json:
        found = [
            {"level": n.level, "line": n.line, "place": n.place, "message": n.message}
            for n in notes
        ]
        show_json({"file": str(path), "notes": found})
        return
    target = console()
    for note in notes:
        target.print(_line(path, note), soft_wrap=True)
    target.print(_sum(path, notes))


def _line(path: Path, note: Note) -> Text:
    from rich.text import Text

    from headgate.cli.words import plain

    where = f"{path}:{note.line}" if note.line else str(path)
    text = Text().append(f"{where}: ", style="bold")
    text.append(f"{note.level} ", style="bold red" if note.level == "fault" else "yellow")
    place = f"{note.place}: " if note.place else ""
    return text.append(plain(place + note.message))


def _sum(path: Path, notes: list[Note]) -> Text:
    from rich.text import Text

    faults = sum(note.level == "fault" for note in notes)
    if faults:
        return Text(f"{faults} fault{'s' * (faults > 1)}", style="bold red")
    if notes:
        return Text(f"no faults, advice: {len(notes)}", style="yellow")
    return Text(f"{path}: no faults, no advice", style="green")
