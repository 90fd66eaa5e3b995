"""`headgate files`: what the docs tell to install is in the package."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headgate.cli.files import FILES
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]


def test_the_list(run: Run) -> None:
    ran = run("files")
    assert ran.code == 0 and all(name in ran.out for name in FILES)
    listed = json.loads(run("files", "--json").out)
    assert [one["name"] for one in listed] == list(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_printed_as_it_is(run: Run, name: str) -> None:
    ran = run("files", name)
    assert ran.code == 0
    assert ran.out == (ROOT / "deploy" / FILES[name].path).read_text()


def test_a_name_that_is_not_there_says_which_are(run: Run) -> None:
    ran = run("files", "sytemd")
    assert ran.code == 2 and "systemd-proxy" in ran.err


def test_every_file_is_in_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {f"headgate/deploy/{file.path}" for file in FILES.values()} <= names
