"""The relay's own tests, in C: under ASan and UBSan, and short runs of its fuzzers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures import relaytests

LONGEST_S = 100
MUTATIONS = {"fuzz_gate": 600, "fuzz_my": 600, "fuzz_pg": 1200}
"""Of the files of the corpus, all of which are run as they are before. About a second each; longer
runs: make -C relay fuzz."""
SEED = "1"
Run = Callable[..., str]
pytestmark = pytest.mark.timeout(relaytests.BUILD_S + LONGEST_S)
"""Where nobody has built the programs before (scripts/lib.sh), the first test does."""


@pytest.fixture(scope="session")
def programs() -> Path:
    return relaytests.built()


@pytest.fixture
def run(programs: Path) -> Run:
    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [programs / name, *arguments],
            cwd=relaytests.RELAY,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
        )
        assert done.returncode == 0, f"{name}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.mark.parametrize("name", relaytests.names("test"))
def test_in_c(run: Run, name: str) -> None:
    """R93 to R100: the engine, both protocols, the gate, TLS, the registry."""
    run(name)


@pytest.mark.parametrize("name", relaytests.names("fuzz"))
def test_whatever_comes(run: Run, name: str) -> None:
    """R152: hostile bytes from either end neither crash it nor make it say what nobody said."""
    corpus = relaytests.TESTS / "corpus" / name.removeprefix("fuzz_")
    said = run(name, str(MUTATIONS[name]), SEED, str(corpus))
    assert f"{len(list(corpus.iterdir()))} files, {MUTATIONS[name]} mutations" in said
