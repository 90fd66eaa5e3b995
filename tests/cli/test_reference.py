"""The reference page derives from the commands."""

from __future__ import annotations

from typing import Any

import typer

from headgate.cli.app import app
from headgate.cli.exits import exit_code_rows
from headgate.cli.reference import DOCUMENTS, OWN, _commands, render
from headgate.http.control import description

PAGE = render()


def test_every_command_and_exit_code_is_on_the_page() -> None:
    for name in ("check", "top", "agent", "demo", "metrics add", "metrics calibrate", "token"):
        assert f"\n## headgate {name}\n" in PAGE
    for code, name, _ in exit_code_rows():
        assert f"| {code} | `{name}` |" in PAGE


def test_tables_are_not_broken_by_their_cells() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `-")]
    assert rows
    assert all(line.replace("\\|", "").count("|") == 3 for line in rows)


def test_what_json_prints_is_said_of_every_command_that_has_it() -> None:
    root: Any = typer.main.get_command(app)
    commands = {
        path.removeprefix("headgate ")
        for path, command in _commands(root, "headgate")
        if any("--json" in param.opts for param in command.params)
    }
    assert commands == {*DOCUMENTS, *OWN}
    known = set(description()["components"]["schemas"])
    assert {name for names in DOCUMENTS.values() for name in names.split()} <= known
