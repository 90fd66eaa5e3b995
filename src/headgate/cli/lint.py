"""`headgate lint`: validate a configuration file as the agent does at its start; policy files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from headgate.cli.options import AsJson, Strict

if TYPE_CHECKING:
    from rich.text import Text

    from headgate.base.advice import Advice
    from headgate.errors import InvalidSettings
    from headgate.metrics.advice import MetricLook

SettingsFile = Annotated[Path, typer.Argument(metavar="FILE", help="The settings file (TOML).")]
Connect = Annotated[
    bool, typer.Option("--connect", help="Also connect, and read each metric once.")
]
FileOnly = Annotated[
    bool,
    typer.Option(
        "--file-only",
        help="Only the file itself: passwords, certificates and plug-ins are on another host.",
    ),
]


@dataclass(frozen=True, slots=True)
class LintNote:
    """A fault or a piece of advice, and where."""

    level: str
    line: int | None
    place: str
    message: str


class Validator(Protocol):
    """What an agent does with its file at the start, beyond this ring (__main__.py)."""

    def validate(self, settings: Path) -> None: ...

    def read_metrics(self, settings: Path) -> Sequence[MetricLook]: ...


def lint(
    context: typer.Context,
    path: SettingsFile,
    connect: Connect = False,
    file_only: FileOnly = False,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Validate a settings file.

    It checks everything that an agent checks at its start, without connecting. Exit code 1 for
    faults; with --strict for advice, too.
    """
    if connect and file_only:
        raise typer.BadParameter("--connect and --file-only exclude each other")
    host: Validator = context.obj
    notes = notes_on(path, None if file_only else host)
    readings: Sequence[MetricLook] = ()
    if connect and not _is_rejected(notes):
        readings = host.read_metrics(path)
        notes += list(_unread(path, readings))
    show_notes(path, notes, as_json=as_json, readings=readings)
    if _is_rejected(notes) or (strict and notes):
        raise typer.Exit(1)


def _is_rejected(notes: Iterable[LintNote]) -> bool:
    return any(note.level == "fault" for note in notes)


def notes_on(path: Path, host: Validator | None = None) -> list[LintNote]:
    """Every fault, of the file and of what it names, or else advice. Without a host: of the file
    alone."""
    from headgate.errors import InvalidSettings
    from headgate.settings.agent import advice_on, examine_settings
    from headgate.settings.document import placed, settings_text

    try:
        content = settings_text(path)
        settings, faults = examine_settings(content, source=str(path))
    except InvalidSettings as error:  # Nothing of it can be read.
        return faults_told(error)
    rejected = placed(InvalidSettings(faults), content, str(path))
    try:
        missing = _validated(path, host) if host is not None else ""
    except InvalidSettings as error:  # With those of the file.
        missing, rejected = "", error
    notes = faults_told(rejected)
    for name, database in settings.databases.items():
        policy = database.traffic and database.traffic.policy
        if policy:
            found = policy_told(policy, f"databases.{name}.traffic.policy")
            # With a host, its faults are reported already.
            notes += [note for note in found if host is None or note.level == "advice"]
    if _is_rejected(notes):
        return [note for note in notes if note.level == "fault"]
    notes += (
        [LintNote("advice", None, "", f"only the file is validated: {missing}")] if missing else []
    )
    return notes + advice_told(path, [*settings.advice, *advice_on(settings)])


def faults_told(error: InvalidSettings) -> list[LintNote]:
    return [LintNote("fault", fault.line, fault.place, fault.message) for fault in error.faults]


def advice_told(path: Path, advice: Iterable[Advice]) -> list[LintNote]:
    # tomllib keeps no positions; for faults the reader finds them again, and for advice this does.
    from headgate.base.places import line_index, nearest_line

    lines = line_index(path.read_text(encoding="utf-8"))
    return [
        LintNote("advice", nearest_line(one.place, lines), one.place, f"{one.message} [{one.code}]")
        for one in advice
    ]


def policy_told(policy: Path, place: str) -> list[LintNote]:
    """On a policy file that the settings name."""

    return [
        LintNote(
            note.level, None, f"{place} ({policy}:{note.line or 0}) {note.place}", note.message
        )
        for note in notes_on_policy(policy)
    ]


def _validated(path: Path, host: Validator) -> str:
    """Why it could not be, where a package of the agent is missing here."""
    from headgate.errors import HeadgateError, InvalidSettings

    try:
        host.validate(path)
    except InvalidSettings:
        raise
    except HeadgateError as error:
        return str(error)
    return ""


def _unread(path: Path, readings: Iterable[MetricLook]) -> Iterator[LintNote]:
    from headgate.base.places import line_index, nearest_line

    lines = line_index(path.read_text(encoding="utf-8"))
    for one in readings:
        if one.value is None:
            place = f"databases.{one.database}.metrics.{one.metric}"
            yield LintNote(
                "fault", nearest_line(place, lines), place, f"has no value: {one.detail}"
            )


def show_notes(
    path: Path, notes: list[LintNote], *, as_json: bool, readings: Sequence[MetricLook] = ()
) -> None:
    from headgate.check.reasons import quantity
    from headgate.cli.output import console, show_json

    if as_json:
        found = [
            {"level": n.level, "line": n.line, "place": n.place, "message": n.message}
            for n in notes
        ]
        document: dict[str, Any] = {"file": str(path), "notes": found}
        show_json(
            {**document, "readings": [one._asdict() for one in readings]} if readings else document
        )
        return
    target = console()
    for one in readings:
        if one.value is not None:
            detail = f"  {one.detail}" if one.detail else ""
            value = quantity(one.value, one.unit)
            shown = f"{one.database}/{one.metric}: {value}  (threshold {one.threshold}){detail}"
            target.print(shown, soft_wrap=True, markup=False, highlight=False)
    for note in notes:
        target.print(_line(path, note), soft_wrap=True)
    target.print(_sum(path, notes))


def _line(path: Path, note: LintNote) -> Text:
    from rich.text import Text

    from headgate.cli.documents import plain

    where = f"{path}:{note.line}" if note.line else str(path)
    where = "environment" if note.place.startswith("HEADGATE_") else where
    text = Text().append(f"{where}: ", style="bold")
    text.append(f"{note.level} ", style="bold red" if note.level == "fault" else "yellow")
    place = f"{note.place}: " if note.place else ""
    return text.append(plain(place + note.message))


def _sum(path: Path, notes: list[LintNote]) -> Text:
    from rich.text import Text

    faults = sum(note.level == "fault" for note in notes)
    if faults:
        return Text(f"{faults} fault{'s' * (faults > 1)}", style="bold red")
    if notes:
        return Text(f"no faults, advice: {len(notes)}", style="yellow")
    return Text(f"{path}: no faults, no advice", style="green")


# --- policies in files ---------------------------------------------------------------------------

# Policies in files, and budgets as they are typed: validated without an agent.

EVERYTHING = "*"
"""As a rule: every statement."""


# --- settings, as they are typed -------------------------------------------------------------


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """`rate=20% mode=enforce capacity=unset`, by the table of settings; None for unset."""
    from headgate.budgets.limits import BUDGET_SETTINGS
    from headgate.cli.options import read_words

    known = {name: row for name, row in BUDGET_SETTINGS.items() if name != "name"}
    return read_words(words, known, "rate=20%")


def read_rules(matches: Sequence[str], each: Sequence[str]) -> list[dict[str, Any]]:
    """One rule for each --match: `username=etl,tag.controller=export`; --each is of all."""
    rules: list[dict[str, Any]] = []
    if not all(each):
        raise typer.BadParameter("--each is empty: name a key, such as tag.tenant")
    for match in matches:
        if match.strip() == EVERYTHING:
            rules.append({})
            continue
        pairs = [_pair(part) for part in match.split(",")]
        rules.append({"match": dict(pairs)})
        if len(rules[-1]["match"]) < len(pairs):
            raise typer.BadParameter(f"--match {match!r} names a key twice")
    if each and not rules:
        rules = [{}]
    return [{**rule, **({"each": list(each)} if each else {})} for rule in rules]


def _pair(part: str) -> tuple[str, str]:
    key, equals, value = part.strip().partition("=")
    if not equals or not key or not value:
        message = f"--match {part!r} must read KEY=VALUE, several joined by commas"
        example = "such as username=etl,tag.controller=export; '*' matches everything"
        raise typer.BadParameter(f"{message}, {example}")
    return key, value


# --- without an agent ------------------------------------------------------------------------


def notes_on_policy(path: Path) -> list[LintNote]:
    """Faults with their lines, or advice."""
    from headgate.base.advice import Severity
    from headgate.base.places import with_lines
    from headgate.budgets.advice import advise
    from headgate.errors import Fault, InvalidSettings
    from headgate.settings.document import load_policy

    try:
        policy = load_policy(path)
    except InvalidSettings as error:
        return [LintNote("fault", fault.line, fault.place, fault.message) for fault in error.faults]
    advice = advise(policy)
    places = [Fault(one.place, "") for one in advice]
    if path.suffix != ".json":
        places = with_lines(places, path.read_text(encoding="utf-8"))
    return [
        LintNote(
            "fault" if one.severity is Severity.ERROR else "advice",
            at.line,
            one.place,
            f"{one.message} [{one.code}]",
        )
        for one, at in zip(advice, places, strict=True)
    ]


def as_parameter(path: Path, *, anyway: bool) -> str:
    """The value of pg_headgate.policy for a file; InvalidSettings where it cannot be one."""
    from headgate.base.advice import Severity
    from headgate.budgets.advice import advise
    from headgate.budgets.compiled import MAX_PARAMETER_BYTES, compile_policy, encoded
    from headgate.errors import Fault, InvalidSettings
    from headgate.settings.document import load_policy

    policy = load_policy(path)
    errors = [one for one in advise(policy) if one.severity is Severity.ERROR]
    if errors and not anyway:
        faults = [Fault(one.place, f"{one.message} [{one.code}]") for one in errors]
        faults.append(Fault("", "nothing was compiled; add --anyway if this is intended"))
        raise InvalidSettings(faults, str(path))
    value = encoded(compile_policy(policy, 0))
    if len(value) > MAX_PARAMETER_BYTES:
        fault = (
            f"compiles to {len(value)} bytes, and pg_headgate.policy takes at most "
            f"{MAX_PARAMETER_BYTES}: publish it as a file with headgate pg publish"
        )
        raise InvalidSettings([Fault("", fault)], str(path))
    return value
