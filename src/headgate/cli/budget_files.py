"""Policies in files, and budgets as they are typed: validated without an agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from headgate.cli.lint import LintNote

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
    from headgate.base.places import with_lines
    from headgate.budgets.lint import advise
    from headgate.cli.lint import LintNote
    from headgate.errors import Fault, InvalidSettings
    from headgate.metrics.lint import Severity
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
    from headgate.budgets.compiled import MAX_PARAMETER_BYTES, compile_policy, encoded
    from headgate.budgets.lint import advise
    from headgate.errors import Fault, InvalidSettings
    from headgate.metrics.lint import Severity
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
