"""Finds a shared library of ours, or builds it from its C sources.

a wheel:       headgate/budgets/native/libheadgate.so, or what a recipe says lies beside its Python
a checkout:    .cache/native/libheadgate-<sources' hash>.so, built once and renamed into place
a wheel's sources (headgate/budgets/pgext/sources): likewise, in the user's own cache
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headgate.base.paths import cache_below_home
from headgate.budgets.native.layout import misfits
from headgate.errors import NativeUnavailable

BESIDE = Path(__file__).parent / "libheadgate.so"
CHECKOUT = Path(__file__).parents[4]
PACKAGED = Path(__file__).parents[1] / "pgext" / "sources"
COMPILERS = ("cc", "gcc", "clang")
HARDENED = (
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    *("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
)
"""What reads bytes of others stops at a fault instead of going on with it. pg_headgate/Makefile,
native/Makefile and relay/Makefile have the same."""
FLAGS = ("-O2", "-std=c11", "-fPIC", *HARDENED)
LINKED = ("-Wl,-z,relro,-z,now,-z,noexecstack",)
BUILD_TIMEOUT_S = 120.0
_LOCK_POLL_S = 0.05
_KEPT_BUILDS = 8
_KEPT_OBJECTS = 400


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a library is made of, and how one tells that it is the right one."""

    name: str
    what: str
    header: str
    folders: tuple[str, ...]
    beside: Path
    misfits: Callable[[ctypes.CDLL], list[str]]
    flags: tuple[str, ...] = FLAGS
    linked: tuple[str, ...] = LINKED
    libraries: tuple[str, ...] = ("-lm",)
    needs: tuple[tuple[str, str], ...] = ()
    """What a compiler's or loader's words mean: a piece of them, and what to do about it."""
    building: str = "building the traffic core (once, a few seconds) …"


CORE = Recipe("libheadgate", "the traffic core", "headgate.h", ("native",), BESIDE, misfits)


@cache
def load(
    checkout: Path = CHECKOUT, compiler: str | None = None, recipe: Recipe = CORE
) -> ctypes.CDLL:
    """`compiler`: its name or path, if it is not one of those that are looked for."""
    beside = recipe.beside
    return open_library(beside if beside.exists() else built(checkout, compiler, recipe), recipe)


def open_library(path: Path, recipe: Recipe = CORE) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        faults = recipe.misfits(library)
    except (OSError, AttributeError) as error:
        _remedy(str(error), f"{path} cannot be loaded", recipe)
        raise NativeUnavailable(
            f"{path} is no {recipe.what.removeprefix('the ')}: {error}"
        ) from error
    if faults:
        raise NativeUnavailable(
            f"{path} was built from another version of {recipe.header} ({', '.join(faults)}): "
            "delete it, or reinstall headgate"
        )
    return library


def built(checkout: Path, compiler: str | None = None, recipe: Recipe = CORE) -> Path:
    sources, root = _sources(checkout, recipe)
    target = _cache_of(root) / f"{recipe.name}-{_fingerprint(sources, recipe)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(target.parent / "lock"):
            if not target.exists():
                with progress(recipe.building):
                    compile_to(target, sources, recipe, compiler)
                _forget(target.parent.glob(f"{recipe.name}-*.so"), _KEPT_BUILDS)
    return target


def build_beside(compiler: str | None = None, recipe: Recipe = CORE) -> Path:
    """Where a wheel would have it, for all users of this installation."""
    sources, _ = _sources(CHECKOUT, recipe)
    with progress(recipe.building):
        compile_to(recipe.beside, sources, recipe, compiler)
    open_library(recipe.beside, recipe)
    return recipe.beside


@contextmanager
def progress(building: str) -> Iterator[None]:
    """On stderr: a compiler says nothing for half a minute, and people think that it hangs."""
    began = time.monotonic()
    _say(building)
    yield
    _say(f"built in {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # Nobody may be there to read it.
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _sources(checkout: Path, recipe: Recipe) -> tuple[list[Path], Path]:
    for root in (checkout, PACKAGED):
        if all(any((root / folder).glob("*.c")) for folder in recipe.folders):
            return [
                p for folder in recipe.folders for p in sorted((root / folder).glob("*.c"))
            ], root
    missing = " and ".join(f"{checkout / folder}/*.c" for folder in recipe.folders)
    raise NativeUnavailable(
        f"neither {recipe.beside} nor {missing} is there: install headgate from a "
        "wheel for this platform, or work in a checkout"
    )


def _cache_of(root: Path) -> Path:
    """An installation may belong to another user: then it is built for this user alone."""
    if root == PACKAGED:
        try:
            return cache_below_home("native")
        except ValueError:
            raise NativeUnavailable(
                "what is built from C is kept in the user's home, and this user has none: set HOME "
                "to a folder of its own"
            ) from None
    return root / ".cache" / "native"


def _fingerprint(sources: list[Path], recipe: Recipe) -> str:
    digest = hashlib.sha256(" ".join((*recipe.flags, *recipe.linked, *recipe.libraries)).encode())
    folders = {path.parent.parent / folder for path in sources for folder in recipe.folders}
    headers = {header for folder in folders for header in folder.glob("*.h")}
    for path in (*sources, *sorted(headers)):
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    deadline = time.monotonic() + BUILD_TIMEOUT_S
    with lock.open("wb") as file:
        while not _locked(file.fileno()):
            if time.monotonic() > deadline:
                raise NativeUnavailable(
                    f"another process has been building for {BUILD_TIMEOUT_S:.0f} s: see which "
                    f"one has {lock} locked"
                )
            time.sleep(_LOCK_POLL_S)
        yield


def _locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _found(compiler: str | None, recipe: Recipe) -> str:
    names = (compiler,) if compiler else COMPILERS
    for name in names:
        if path := shutil.which(name):
            return path
    raise NativeUnavailable(
        f"no C compiler to build {recipe.what} with (looked for {', '.join(names)}): install "
        "gcc (Debian, Ubuntu: build-essential), or headgate from a wheel for this platform"
    )


def compile_to(
    target: Path, sources: list[Path], recipe: Recipe, compiler: str | None = None
) -> None:
    """Renamed into place once it is whole: a reader finds either no file or all of it."""
    chosen = _found(compiler, recipe)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
            kept = target.parent / "objects" if recipe.beside != target else Path(scratch)
            objects = _objects(kept, sources, recipe, chosen)
            output = Path(scratch) / target.name
            linked = ["-shared", *recipe.linked, "-o", str(output), *objects, *recipe.libraries]
            _run([chosen, *recipe.flags, *linked], sources[0].parent, recipe)
            output.replace(target)
    except OSError as error:
        raise NativeUnavailable(
            f"{recipe.what} cannot be built into {target.parent}: {error.strerror}"
        ) from None


def _objects(kept: Path, sources: list[Path], recipe: Recipe, compiler: str) -> list[str]:
    """As many at once as there are CPUs. Files that have not changed are not compiled again: after
    an edit of one file among fifty, only that one is compiled."""
    kept.mkdir(exist_ok=True)

    def compiled(source: Path) -> str:
        output = kept / f"{source.stem}-{_fingerprint([source], recipe)}.o"
        if not output.exists():
            staged = f"{output}.{os.getpid()}"
            command = [compiler, *recipe.flags, "-c", "-o", staged, str(source)]
            _run(command, source.parent, recipe)
            Path(staged).replace(output)
        output.touch()
        return str(output)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compiled, sources))
    _forget(kept.glob("*.o"), _KEPT_OBJECTS)
    return objects


def _run(command: list[str], folder: Path, recipe: Recipe) -> None:
    compiler = command[0]
    try:
        done = subprocess.run(  # noqa: S603 - our own sources, and no shell
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=BUILD_TIMEOUT_S,
            check=False,
            # Its words are looked for in English, whatever its user speaks.
            env={**os.environ, "LC_ALL": "C"},  # noqa: TID251
        )
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(
            f"{compiler} has not built {recipe.what} in {BUILD_TIMEOUT_S:.0f} s"
        ) from None
    if done.returncode == 0:
        return
    _remedy(done.stderr, f"{compiler} cannot build {recipe.what}", recipe)
    raise NativeUnavailable(
        f"{compiler} cannot build {recipe.what} from {folder}:\n{done.stderr[-2000:]}"
    )


def _remedy(said: str, what: str, recipe: Recipe) -> None:
    for words, remedy in recipe.needs:
        if words in said:
            raise NativeUnavailable(f"{what}: {remedy}")


def _forget(files: Iterable[Path], kept: int) -> None:
    """Who has one of them mapped keeps it."""
    by_age = sorted(files, key=lambda path: path.stat().st_mtime)
    for path in by_age[:-kept]:
        path.unlink(missing_ok=True)
