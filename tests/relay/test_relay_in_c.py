"""The relay's own tests, in C: under ASan and UBSan, and short runs of its fuzzers. Extended: those
that have threads in them under ThreadSanitizer, and longer runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import relaytests
from tests.fixtures.relaytests import RELAY, RELAY_TSAN

LONGEST_S = 240
MUTATIONS = {"fuzz_gate": 600, "fuzz_kinds": 4000, "fuzz_my": 600, "fuzz_pg": 1200}
"""Of the files of the corpus, all of which are run as they are before. Less than a second of CPU
time each; longer runs: make -C relay fuzz."""
SEED = "1"
pytestmark = pytest.mark.timeout(LONGEST_S + 60, func_only=True)
"""What is not built yet is built by a fixture: no test's time is meant for compilers."""


def run(programs: Path, name: str, *arguments: str) -> str:
    return relaytests.run(RELAY, programs / name, *arguments, within_s=LONGEST_S)


@pytest.fixture(scope="session")
def programs() -> Path:
    return relaytests.built(RELAY)


@pytest.fixture(scope="session")
def tsan_programs() -> Path:
    return relaytests.built(RELAY_TSAN)


@pytest.mark.parametrize("name", RELAY.names("test"))
def test_in_c(programs: Path, name: str) -> None:
    """R93 to R100: the engine, both protocols, the gate, TLS, the registry."""
    run(programs, name)


@pytest.mark.extended
@pytest.mark.parametrize("name", relaytests.threaded())
def test_threads_in_c(tsan_programs: Path, name: str) -> None:
    """No two of its threads touch the same bytes without a word between them."""
    run(tsan_programs, name)


def fuzzed(programs: Path, name: str, times: int) -> None:
    corpus = RELAY.source / "tests" / "corpus" / name.removeprefix("fuzz_")
    mutations = times * MUTATIONS[name]
    said = run(programs, name, str(mutations), SEED, str(corpus))
    assert f"{len(list(corpus.iterdir()))} files, {mutations} mutations" in said


@pytest.mark.parametrize("name", RELAY.names("fuzz"))
def test_whatever_comes(programs: Path, name: str) -> None:
    """R152: hostile bytes from either end neither crash it nor make it say what nobody said."""
    fuzzed(programs, name, 1)


@pytest.mark.extended
@pytest.mark.parametrize("name", RELAY.names("fuzz"))
def test_whatever_comes_for_longer(programs: Path, name: str) -> None:
    fuzzed(programs, name, 5)
