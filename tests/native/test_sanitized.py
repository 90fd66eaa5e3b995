"""The core under AddressSanitizer and UndefinedBehaviorSanitizer, with all that is asked of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FLAGS = (
    *("-std=c11", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


def preload() -> str:
    """What the interpreter, which is not built with it, needs."""
    told = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=20
    )
    found = Path(told.stdout.strip())
    if not found.is_absolute():
        pytest.skip("libasan is not installed: it comes with gcc (Debian: libgcc-12-dev)")
    return str(found.resolve())


def built() -> Path:
    """Once for the sources as they are."""
    sources = sorted((ROOT / "native").glob("*.[ch]"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = ROOT / ".cache" / "native" / f"sanitized-{digest}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        code = [str(path) for path in sources if path.suffix == ".c"]
        subprocess.run(["cc", *FLAGS, "-o", str(part), *code, "-lm"], check=True, timeout=110)
        part.replace(target)
        for old in target.parent.glob("sanitized-*.so"):
            if old != target:
                old.unlink(missing_ok=True)
    return target


@pytest.mark.timeout(300)
def test_nothing_is_read_or_written_where_it_should_not_be() -> None:
    asan, core = preload(), built()
    environment = {
        **os.environ,
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0,abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "HEADGATE_EXAMPLES_TIMES": "0.5",  # it takes several times as long
        "PYTHONMALLOC": "malloc",  # so that what C is handed lies in memory that ASan guards
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.native.sanitized", str(core)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert "clean" in done.stdout
