"""The reference page derives from the commands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from headgate.cli.app import app
from headgate.cli.exits import exit_code_rows
from headgate.cli.reference import DOCUMENTS, OWN, _commands, render
from headgate.http.control import description

PAGE = render()
ROOT: Any = typer.main.get_command(app)
COMMANDS = {path.removeprefix("headgate "): one for path, one in _commands(ROOT, "headgate")}


def test_every_command_and_exit_code_is_on_the_page() -> None:
    for name in ("check", "top", "agent", "demo", "metrics add", "metrics calibrate", "token"):
        assert f"\n## headgate {name}\n" in PAGE
    for code, name, _ in exit_code_rows():
        assert f"| {code} | `{name}` |" in PAGE


def test_tables_are_not_broken_by_their_cells() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `-")]
    assert rows
    assert all(line.replace("\\|", "").count("|") == 3 for line in rows)


def has_json(command: Any) -> bool:
    return any("--json" in param.opts for param in command.params)


def test_what_json_prints_is_said_of_every_command_that_has_it() -> None:
    commands = {name for name, one in COMMANDS.items() if has_json(one)}
    assert commands == {*DOCUMENTS, *OWN}
    known = set(description()["components"]["schemas"])
    assert {name for names in DOCUMENTS.values() for name in names.split()} <= known


RUNNING = {"agent", "demo", "proxy run"}
"""They run until they are ended, and write logs: nothing of theirs is a document."""


def test_every_command_that_shows_something_has_json() -> None:
    assert {name for name, one in COMMANDS.items() if not has_json(one)} == RUNNING


BY_COMMAND = {
    "--all": "with what has ended; of a mode, for all budgets",
    "--budget": "whose violations; which budget to charge",
    "--cluster": "of a change, its reach; of a list, a filter",
    "--config": "the agent's settings file, or the proxy's",
    "--fleet": "of a change, its reach; of changes, whose log",
    "--limit": "newest first where there is an order",
    "--metrics": "of a check, what to check; of a rule, its setting",
    "--ratio": "a rule's setting; of favor, of the others",
    "--region": "as --cluster",
    "--shard": "as --cluster",
    "--strict": "advice fails; of a difference, any fails",
    "--url": "the agent, or the proxy",
    "--watch": "which view it is",
}
"""Options that mean something else by their command, and why that is right."""
OWN_DEFAULTS = {"--for", "--interval", "--limit", "--since"}


def options() -> Iterator[tuple[str, str, Any]]:
    for name, command in COMMANDS.items():
        for param in command.params:
            if param.param_type_name == "option":
                yield from ((opt, name, param) for opt in param.opts if opt.startswith("--"))


def test_an_option_means_the_same_in_every_command() -> None:
    """Its first words, its default, its variable, and whether it completes; examples and what
    follows may be the command's own."""
    meanings: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for option, _, param in options():
        gist = re.split(r"[.:;]( |$)", param.help or "")[0]
        default = None if option in OWN_DEFAULTS or param.required else str(param.default)
        completes = param._custom_shell_complete is not None
        meanings[option].add((gist, param.metavar, param.envvar, default, completes))
    # Where one command needs it, and another has nothing to say without it.
    found = {
        option: {(*one[:3], one[4]) for one in told} | ({"defaults"} if _two(told) else set())
        for option, told in meanings.items()
    }
    assert {option for option, told in found.items() if len(told) > 1} == set(BY_COMMAND)


def _two(told: set[tuple[Any, ...]]) -> bool:
    return len({one[3] for one in told} - {None, "None"}) > 1


NAMED = {"DATABASE", "METRIC", "MEMBER", "BUDGET", "TARGET", "[APP]", "[BUDGET] MODE"}
NAMED_OPTIONS = {"--as", "--database", "--budget", "--metrics", "--over", "--policy-of"}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_name_that_the_agent_knows_completes(command: str) -> None:
    for param in COMMANDS[command].params:
        is_named = param.metavar in NAMED or NAMED_OPTIONS & set(param.opts)
        is_rule = param.metavar == "ID" and "--id" not in param.opts and command[:4] == "rule"
        if is_named or is_rule:
            assert param._custom_shell_complete is not None, param.opts
