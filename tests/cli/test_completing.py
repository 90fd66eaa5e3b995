"""A shell completes the names that the agent knows, and nothing without one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli import builders
from tests.cli.scripted import ScriptedAgent


def completed(typed: str, url: str) -> list[str]:
    words = f"headgate {typed}"
    environment = {
        **os.environ,
        "HEADGATE_URL": url,
        "_HEADGATE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'headgate'; "
         "from headgate.__main__ import main; main()"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.stdout.split()


@pytest.fixture
def knowing(scripted: ScriptedAgent) -> str:
    scripted.says("/v1/clients", {"clients": [builders.client("etl:nightly")]})
    scripted.says("/v1/metrics", {"metrics": [builders.metric_view("lag")], "rejected": []})
    return scripted.url


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("rule hold et", ["etl", "etl:nightly"]),
        ("check --as nig", ["nightly"]),
        ("metrics set main l", ["lag"]),
    ],
)
def test_names_come_from_the_agent(knowing: str, typed: str, names: list[str]) -> None:
    assert completed(typed, knowing) == names


def test_without_an_agent_there_is_nothing_to_complete() -> None:
    assert completed("rule lift r-", "http://127.0.0.1:9") == []
