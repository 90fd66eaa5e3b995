"""The workflows and hooks of the repository can be read, and call what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CALLED = re.compile(r"(?:^|sudo |&& )(?:\./(scripts/\w+)|make -C (\w+))")
HOOKED = re.compile(r"\.venv/bin/python (scripts/\S+)")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_scripts_that_are_there(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = [
        script or f"{folder}/Makefile" for run in runs for script, folder in CALLED.findall(run)
    ]
    assert called
    assert [one for one in called if not (ROOT / one).is_file()] == []


def test_the_hooks_are_those_of_the_check() -> None:
    """What a hook runs, `scripts/check` runs as well."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    check = (ROOT / "scripts" / "check").read_text()
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/") and program in check
        assert all((ROOT / script).is_file() for script in HOOKED.findall(hook["entry"]))


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("ISSUE_TEMPLATE/*.md")), ids=str)
def test_an_issue_template_has_a_name_and_says_what_it_is_for(path: Path) -> None:
    _, head, body = path.read_text().split("---\n", 2)
    assert {"name", "about"} <= yaml.safe_load(head).keys() and body.strip()
