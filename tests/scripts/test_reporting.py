"""The end of a failed run: commands that repeat each failure, whatever its name holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILING = """
import pytest

NAMES = ["it's", "a b", 'say "hi"', "[x]", "a::b", "back\\\\slash", "$HOME `id`", "größe"]
NAMES += ["-k core"]

@pytest.mark.parametrize("name", NAMES)
def test_it(name):
    assert name in ()
"""
OPTION = "def pytest_addoption(parser): parser.addoption('--extended', action='store_true')"


@pytest.mark.parametrize("extended", [False, True])
def test_each_command_names_its_test_to_a_shell(tmp_path: Path, extended: bool) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(OPTION, encoding="utf-8")
    options = ["--extended"] if extended else []
    plugins = ("-p", "tests.fixtures.reporting", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    run = [sys.executable, "-m", "pytest", *plugins, f"--rootdir={tmp_path}", "-c", "/dev/null"]
    ended = subprocess.run(
        [*run, "-n0", "--tb=no", "--randomly-seed=7", *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    table = ended.stdout.partition("what failed, and how to repeat it")[2].splitlines()
    failed = {line for line in table if line.startswith("test_failing.py::")}
    assert len(failed) == 9, ended.stdout
    commands = [line.strip() for line in table if line.startswith("    ./scripts/test ")]
    words = [words_of(command) for command in commands]
    assert {name for name, *_ in words} == failed
    expected = ["--all", "--randomly-seed=7"] if extended else ["--randomly-seed=7"]
    assert all(rest == expected for _, *rest in words)


def words_of(command: str) -> list[str]:
    """As a shell gives them to the script."""
    shown = command.replace("./scripts/test", "printf '%s\\0'", 1)
    told = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    return told.stdout.split("\0")[:-1]
