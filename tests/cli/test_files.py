"""`headgate files` prints deploy/ as it is; tests/scripts/test_release.py looks into the wheel."""

from __future__ import annotations

import json
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
