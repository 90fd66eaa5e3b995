"""The table says what the commands are, and listing them loads none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from headgate.cli import table
from headgate.cli.app import ListedCommand
from headgate.cli.output import presenter
from headgate.cli.table import COMMANDS, GROUPS, CommandRow
from tests.cli.conftest import Run
from tests.fixtures.eventually import DEADLINE_S

LIMIT = 20
"""Narrow: a line is wrapped there, and not cut."""
COMPLETE_BASH = {"_HEADGATE_COMPLETE": "complete_bash"}


def _rows() -> Iterator[tuple[str, CommandRow]]:
    yield from COMMANDS.items()
    for group, held in GROUPS.items():
        yield from ((f"{group} {name}", row) for name, row in held.commands.items())


@pytest.mark.parametrize(("path", "row"), list(_rows()), ids=lambda part: str(part)[:20])
def test_a_line_that_is_not_the_commands_own(path: str, row: CommandRow) -> None:
    """The table is written by hand: what it says must be what the command's docstring says."""
    listed = ListedCommand(path.split()[-1], row)
    loaded = listed.load()
    assert loaded.name == listed.name
    assert " ".join(loaded.help.split("\n\n")[0].split()) == row.about
    assert listed.get_short_help_str(LIMIT) == row.about
    assert (listed.hidden, listed.deprecated) == (loaded.hidden, loaded.deprecated)


def test_every_presenter_that_a_command_names_takes_a_document() -> None:
    commands = Path(table.__file__).parent.glob("*.py")
    named = {one for file in commands for one in re.findall(r'"(\w+\.\w+_view)"', file.read_text())}
    kinds = {one: presenter(one)[1] for one in named}
    assert len(kinds) > 20
    assert all(issubclass(kind, Struct) for kind in kinds.values())


def test_a_default_that_its_group_has_not() -> None:
    defaults = {name: group.default for name, group in GROUPS.items() if group.default}
    assert defaults == {"shard": "show", "changes": "list", "proxy": "run"}
    assert all(default in GROUPS[name].commands for name, default in defaults.items())


def test_a_group_that_hides_a_command() -> None:
    assert not set(GROUPS) & set(COMMANDS)


# --- what is loaded --------------------------------------------------------------------------


def _homes() -> set[str]:
    homes = [home for _, row in _rows() for home in (row.home, row.cls) if home]
    return {f"headgate.cli.{home.partition(':')[0]}" for home in homes}


def _loaded_by(*argv: str, **env: str) -> set[str]:
    """The commands' modules that are there when `headgate …` ends."""
    code = (
        "import atexit, sys\nfrom headgate.__main__ import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv = {['headgate', *argv]!r}\nmain()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "headgate.cli.table" in ran.stderr, ran.stderr
    return _homes() & set(ran.stderr.split())


def test_listing_loads_no_command() -> None:
    assert _loaded_by("--help") == set()
    assert _loaded_by("budget", "--help") == set()
    assert _loaded_by("stauts") == set()


def test_completing_a_name_loads_no_command() -> None:
    assert _loaded_by(**COMPLETE_BASH, COMP_WORDS="headgate ", COMP_CWORD="1") == set()


def test_a_command_loads_itself_alone() -> None:
    assert _loaded_by("version") == {"headgate.cli.host"}
    assert _loaded_by("budget", "list", "--help") == {"headgate.cli.budget"}


# --- what a person and a shell see -----------------------------------------------------------


@pytest.mark.parametrize("group", [(), *((name,) for name in GROUPS)], ids=" ".join)
def test_help_lists_every_command(run: Run, group: tuple[str, ...]) -> None:
    names = GROUPS[group[0]].commands if group else {**COMMANDS, **GROUPS}
    ran = run(*group, "--help")
    listed = ran.out.partition("Commands:\n")[2].splitlines()
    assert ran.code == 0
    first = [line for line in listed if line[2:3].strip()]  # The others go on with one of these.
    assert [line.split()[0] for line in first] == list(names)
    assert not any(line.endswith("...") for line in listed)


@pytest.mark.parametrize(
    "group", [(), *((name,) for name, one in GROUPS.items() if not one.alone)], ids=" ".join
)
def test_nothing_said_is_answered_with_help(run: Run, group: tuple[str, ...]) -> None:
    ran = run(*group)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.strip() == run(*group, "--help").out.strip()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("stauts",), "status"),
        (("budget", "lst"), "list"),
        (("rule", "favor"), "headgate favor"),
        (("lift",), "headgate rule lift"),
    ],
    ids=str,
)
def test_a_misspelt_command_is_answered_with_the_nearest(
    run: Run, typed: tuple[str, ...], meant: str
) -> None:
    ran = run(*typed)
    assert ran.code == 2
    assert f"No such command '{typed[-1]}'. Did you mean " in ran.err
    assert repr(meant) in ran.err


def test_as_is_answered_with_the_argument_where_a_client_is_one(run: Run) -> None:
    ran = run("history", "--as", "etl:nightly")
    assert ran.code == 2
    assert "history takes a client without --as: headgate history etl:nightly" in ran.err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("headgate sta", {"state", "status", "starvation"}),
        ("headgate rule ex", {"exempt", "extend"}),
        ("headgate shard un", {"unskip"}),
        ("headgate metrics set main lag th", {"threshold="}),
    ],
)
def test_a_shell_completes_commands_and_their_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, offered: set[str]
) -> None:
    last = str(len(words.split()) - 1)
    for name, value in {**COMPLETE_BASH, "COMP_WORDS": words, "COMP_CWORD": last}.items():
        monkeypatch.setenv(name, value)
    assert set(run().out.split()) == offered
