"""The command line as called, in this process; and agents that say what a test tells them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headgate.__main__ import main
from headgate.cli import api
from headgate.cli.reference import DOCUMENTS
from headgate.http.openapi import documents
from tests.cli.scripted import Heard, ScriptedAgent
from tests.fixtures.api import route_of
from tests.fixtures.eventually import DEADLINE_S

_AMBIENT = ("HEADGATE_URL", "HEADGATE_TOKEN", "XDG_RUNTIME_DIR", "COLUMNS", "NO_COLOR")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _AMBIENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def a_slow_machine_is_no_silent_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait for their answer; a test about giving up says for how long."""
    defaults = api.connect.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", DEADLINE_S)


@pytest.fixture
def scripted() -> Iterator[ScriptedAgent]:
    with ScriptedAgent().serving() as agent:
        yield agent
    assert agent.misfits == []


@pytest.fixture
def run(
    scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`headgate …` against the scripted agent, in this process: real main, real sockets."""

    def call(*argv: str, url: str | None = None) -> Ran:
        monkeypatch.setenv("HEADGATE_URL", scripted.url if url is None else url)
        monkeypatch.setattr(sys, "argv", ["headgate", *argv])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        shown = capsys.readouterr()
        assert " \n" not in shown.out, "a pipe wants no blanks at the end of a line"
        if "--json" in argv and not code:
            expect_documented(argv, scripted.heard)
        return Ran(int(code or 0), shown.out, shown.err)

    return call


def expect_documented(argv: tuple[str, ...], heard: list[Heard]) -> None:
    """What `--json` printed is what the table of documents says: of the last route asked."""
    words = " ".join(argv)
    fits = [name for name in DOCUMENTS if words == name or words.startswith(f"{name} ")]
    route = route_of(heard[-1].method, heard[-1].path) if heard else None
    if fits and route is not None:
        answered = {doc.__name__ for doc in documents(route)}
        assert answered & set(DOCUMENTS[max(fits, key=len)].split()), (words, answered)


def headgate(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m headgate …` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "headgate", *argv],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
