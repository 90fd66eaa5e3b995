"""The core under AddressSanitizer and UndefinedBehaviorSanitizer, with all that is asked of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import relaytests

ROOT = relaytests.ROOT


def preload() -> str:
    """What the interpreter, which is not built with it, needs."""
    told = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=60
    )
    found = Path(told.stdout.strip())
    if not found.is_absolute():
        pytest.skip("libasan is not installed: it comes with gcc (Debian: libgcc-12-dev)")
    return str(found.resolve())


@pytest.fixture(scope="module")
def core() -> Path:
    return relaytests.built(relaytests.NATIVE) / "libheadgate.so"


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("examples", ["0.1", pytest.param("0.5", marks=pytest.mark.extended)])
def test_nothing_is_read_or_written_where_it_should_not_be(core: Path, examples: str) -> None:
    asan = preload()
    environment = {
        **os.environ,
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0,abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "HEADGATE_EXAMPLES_TIMES": examples,  # it takes several times as long
        "PYTHONMALLOC": "malloc",  # so that what C is handed lies in memory that ASan guards
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.budgets.native.sanitized", str(core)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert "clean" in done.stdout
