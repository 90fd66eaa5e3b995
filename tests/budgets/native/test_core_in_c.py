"""The core's own tests, in C: under ASan and UBSan, with short runs of the fuzzers, and threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import relaytests
from tests.fixtures.relaytests import NATIVE

LONGEST_S = 240
pytestmark = pytest.mark.timeout(LONGEST_S + 60, func_only=True)


@pytest.fixture(scope="session")
def programs() -> Path:
    return relaytests.built(NATIVE)


def run(programs: Path, name: str, *arguments: str) -> str:
    return relaytests.run(NATIVE, programs / name, *arguments, within_s=LONGEST_S)


@pytest.mark.parametrize("name", NATIVE.names("test"))
def test_in_c(programs: Path, name: str) -> None:
    """R152: what cannot be said from Python: hostile policies and texts."""
    run(programs, name)


@pytest.mark.parametrize("times", [3000, pytest.param(300_000, marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", NATIVE.names("fuzz"))
def test_whatever_comes(programs: Path, name: str, times: int) -> None:
    assert f"{name}: " in run(programs, name, str(times), "1")


@pytest.mark.parametrize("seconds", ["0.5", pytest.param("5", marks=pytest.mark.extended)])
def test_threads_leave_nothing_behind(programs: Path, seconds: str) -> None:
    """R114: eight threads that take and settle, and every place is free at the end."""
    assert "stress_threads: ok" in run(programs, "stress_threads", seconds)
