"""Finds the core's shared library, or builds it from the checkout's native/*.c.

a wheel:     headgate/native/libheadgate.so
a checkout:  .cache/native/libheadgate-<sources' hash>.so, built once and renamed into place
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from headgate.errors import NativeUnavailable
from headgate.native.layout import misfits

BESIDE = Path(__file__).parent / "libheadgate.so"
CHECKOUT = Path(__file__).parents[3]
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-std=c11", "-shared", "-fPIC")
BUILD_TIMEOUT_S = 120.0
_LOCK_POLL_S = 0.05
_KEPT_BUILDS = 8


@cache
def load(checkout: Path = CHECKOUT, compiler: str | None = None) -> ctypes.CDLL:
    """`compiler`: its name or path, if it is not one of those that are looked for."""
    return open_library(BESIDE if BESIDE.exists() else built(checkout, compiler))


def open_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        faults = misfits(library)
    except (OSError, AttributeError) as error:
        raise NativeUnavailable(f"{path} is no traffic core: {error}") from error
    if faults:
        raise NativeUnavailable(
            f"{path} was built from another version of headgate.h ({', '.join(faults)}): "
            "remove it, or install headgate anew"
        )
    return library


def built(checkout: Path, compiler: str | None = None) -> Path:
    sources = sorted((checkout / "native").glob("*.c"))
    if not sources:
        raise NativeUnavailable(
            f"neither {BESIDE} nor {checkout / 'native'}/*.c is there: install headgate from a "
            "wheel for this platform, or work in a checkout"
        )
    target = checkout / ".cache" / "native" / f"libheadgate-{_fingerprint(sources)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent / "lock"):
            if not target.exists():
                _compile(sources, target, _found(compiler))
                _forget_old_builds(target.parent)
    return target


def _fingerprint(sources: list[Path]) -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in (*sources, *sorted(sources[0].parent.glob("*.h"))):
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    deadline = time.monotonic() + BUILD_TIMEOUT_S
    with lock.open("w") as file:
        while not _locked(file.fileno()):
            if time.monotonic() > deadline:
                raise NativeUnavailable(
                    f"somebody else has been building for {BUILD_TIMEOUT_S:.0f} s: see who holds "
                    f"{lock}"
                )
            time.sleep(_LOCK_POLL_S)
        yield


def _locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _found(compiler: str | None) -> str:
    names = (compiler,) if compiler else COMPILERS
    for name in names:
        if path := shutil.which(name):
            return path
    raise NativeUnavailable(
        f"no C compiler to build the traffic core with (looked for {', '.join(names)}): install "
        "gcc (Debian, Ubuntu: build-essential), or headgate from a wheel for this platform"
    )


def _compile(sources: list[Path], target: Path, compiler: str) -> None:
    """Renamed into place once it is whole: whoever looks meanwhile finds none, or all of it."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        output = Path(scratch) / target.name
        command = [compiler, *FLAGS, "-o", str(output), *map(str, sources), "-lm"]
        try:
            done = subprocess.run(  # noqa: S603 - our own sources, and no shell
                command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NativeUnavailable(
                f"{compiler} has not built the traffic core in {BUILD_TIMEOUT_S:.0f} s"
            ) from None
        if done.returncode:
            raise NativeUnavailable(
                f"{compiler} cannot build the traffic core from {sources[0].parent}:\n"
                f"{done.stderr[-2000:]}"
            )
        output.replace(target)


def _forget_old_builds(folder: Path) -> None:
    """Who has one of them mapped keeps it."""
    builds = sorted(folder.glob("libheadgate-*.so"), key=lambda path: path.stat().st_mtime)
    for path in builds[:-_KEPT_BUILDS]:
        path.unlink(missing_ok=True)
