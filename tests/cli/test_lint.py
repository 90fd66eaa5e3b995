"""`headgate lint`: faults and advice with their lines, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

GOOD = """\
[agent]
listen = "127.0.0.1:8087"

[databases.main]
engine = "postgres"
dsn = "postgresql://headgate@127.0.0.1/app"

[databases.main.metrics.lag]
threshold = 5
"""
FAULTY = GOOD.replace("listen", "lisen").replace("threshold = 5", 'threshold = "five"')
ADVISED = GOOD.replace("threshold = 5", "threshold = 60")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tmp_path / "headgate.toml"


def test_a_good_file_passes(run: Run, settings: Path) -> None:
    settings.write_text(GOOD)
    ran = run("lint", str(settings))
    assert ran.code == 0
    assert "no faults, no advice" in ran.out


def test_faults_come_with_their_lines(run: Run, settings: Path) -> None:
    settings.write_text(FAULTY)
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert f"{settings}:2: fault agent.lisen: unknown setting 'lisen'; did you mean" in ran.out
    assert (
        f"{settings}:9: fault databases.main.metrics.lag.threshold: is 'five', must be a number"
        in ran.out
    )
    assert ran.out.rstrip().endswith("2 faults")


@pytest.mark.parametrize("content", ["", "[agent]\n"])
def test_a_file_without_a_database_is_a_fault(run: Run, settings: Path, content: str) -> None:
    """B8."""
    settings.write_text(content)
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert "fault databases: the file " in ran.out and "add [databases.NAME]" in ran.out


def test_advice_passes_unless_strict(run: Run, settings: Path) -> None:
    """R14: 60 s of lag is legal, and probably not meant."""
    settings.write_text(ADVISED)
    ran = run("lint", str(settings))
    assert ran.code == 0
    assert f"{settings}:9: advice databases.main.metrics.lag.threshold: a threshold" in ran.out
    assert run("lint", str(settings), "--strict").code == 1


def test_findings_as_json(run: Run, settings: Path) -> None:
    settings.write_text(ADVISED)
    found = json.loads(run("lint", str(settings), "--json").out)
    assert found["file"] == str(settings)
    [note] = found["notes"]
    assert (note["level"], note["line"]) == ("advice", 9)


def test_a_file_that_is_not_there_is_a_fault(run: Run, settings: Path) -> None:
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert "cannot be read: No such file" in ran.out


def test_the_headers_file_of_tracing_is_judged_as_well(run: Run, settings: Path) -> None:
    """With a fault in it the agent does not start. What a line says may be a key, and stays."""
    headers = settings.with_name("headers")
    settings.write_text(
        f'{GOOD}[tracing]\nendpoint = "http://127.0.0.1:4318"\nheaders_file = "{headers}"\n'
    )
    headers.write_text("x-key: abc\n")
    assert run("lint", str(settings)).code == 0
    headers.write_text("no header at all, hunter2\n")
    ran = run("lint", str(settings))
    assert ran.code == 1 and "hunter2" not in ran.out
    assert f"{settings}:12: fault tracing.headers_file: line 1 of" in ran.out
    settings.write_text(f'{GOOD}[tracing]\nendpoint = "http://127.0.0.1:4318"\nservice_name = ""\n')
    assert "fault tracing.service_name: is empty" in run("lint", str(settings)).out


def test_the_policy_file_that_a_database_names_is_judged_as_well(run: Run, settings: Path) -> None:
    """With a fault in it the agent would not start."""
    policy = settings.parent / "policy.toml"
    policy.write_text('[[budgets]]\nname = "etl"\nrate = 120\n')
    settings.write_text(GOOD + f'[databases.main.traffic]\npolicy = "{policy}"\n')
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert "databases.main.traffic.policy" in ran.out
    assert "budgets[0].rate" in ran.out
