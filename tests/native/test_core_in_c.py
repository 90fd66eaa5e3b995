"""The core's own tests, in C: under ASan and UBSan, with short runs of the fuzzers, and threads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent.parent / "native"


def make(*arguments: str) -> str:
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("there is no C compiler with make")
    done = subprocess.run(
        ["make", "--silent", *arguments], cwd=NATIVE, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_test_and_fuzzer_of_the_core() -> None:
    """R152: what cannot be said from Python: hostile policies, texts and documents."""
    said = make("-j2", "test", "N=3000")
    for module in ("region", "decide", "match", "policy", "tags", "compile"):
        assert f"test_{module}" in said
    assert "fuzz_policy" in said


def test_threads_leave_nothing_behind() -> None:
    """R114: eight threads that take and settle, and every place is free at the end."""
    assert "stress_threads" in make("-j2", "stress", "SECONDS_OF_STRESS=2")
