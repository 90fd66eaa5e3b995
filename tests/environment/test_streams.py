"""Standard streams that were closed, by `<&-` or a parent that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.scripted import OK, ScriptedAgent
from tests.environment.starting import HEADGATE, Left, ran

NONE = Left(closed=(0, 1, 2))


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=str)
def test_a_command_does_its_work_without_them(tmp_path: Path, closed: tuple[int, ...]) -> None:
    settings = tmp_path / "headgate.toml"
    settings.write_text("[databases.main]\nengine = 'nonsense'\n", encoding="utf-8")
    done = ran(Left(closed=closed), *HEADGATE, "lint", str(settings))
    assert done.returncode == 1, done
    assert b"Traceback" not in done.stderr


def test_a_job_finds_three_of_them(tmp_path: Path) -> None:
    """Else the first file that it opens is what it prints to."""
    listed = tmp_path / "listed"
    with ScriptedAgent(default=OK) as agent:
        job = ("sh", "-c", f"ls /proc/$$/fd > '{listed}'")
        done = ran(NONE, *HEADGATE, "run", "--as", "etl", "--url", agent.url, "--", *job)
    assert done.returncode == 0
    assert {"0", "1", "2"} <= set(listed.read_text().split())
