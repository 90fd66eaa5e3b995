"""Build the extension for one Postgres, by that server's own makefiles (PGXS).

    sources() ──copy──► into/ ──make──► pg_headgate.so ──make install──► the server's folders

The sources are the checkout's, or those that the installed package brought along. They are
copied before anything is built: neither is ours to leave object files in.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import HeadgateError

EXTENSION = "pg_headgate"
PARTS = (EXTENSION, "native")
OLDEST_MAJOR, NEWEST_MAJOR = 14, 19
MAKE_TIMEOUT_S = 300
MAKE_JOBS = 4
ASK_TIMEOUT_S = 10
QUOTED_BYTES = 3000
# Neither tests nor what a build by hand has left in the checkout.
NO_SOURCES = shutil.ignore_patterns("*.o", "*.so", "*.bc", "*.a", "*.d", "build", "tests")


class BuildFailed(HeadgateError):
    """The extension cannot be built or installed here; says what is missing, or what make said."""


@dataclass(frozen=True, slots=True)
class PgConfig:
    """One installation of Postgres, as its pg_config describes it."""

    path: Path
    version: str
    major: int
    bin_dir: Path
    library_dir: Path
    extension_dir: Path
    headers: Path
    pgxs: Path
    compiler: str


def sources() -> Path:
    """The folder that holds pg_headgate/ and native/."""
    packaged = Path(__file__).with_name("sources")
    checkout = Path(__file__).parents[4]
    for place in (packaged, checkout):
        if all((place / part).is_dir() for part in PARTS):
            return place
    raise BuildFailed(
        f"the extension's sources are neither in {packaged} nor in {checkout}: "
        "install headgate from its wheel, or work in a checkout"
    )


def _files_below(folder: Path) -> Iterator[Path]:
    names = sorted(path.name for path in folder.iterdir())
    for name in sorted(set(names) - NO_SOURCES(str(folder), names)):
        path = folder / name
        if path.is_dir():
            yield from _files_below(path)
        else:
            yield path


def sources_hash() -> str:
    """Of every source's name and bytes: what is built of the same is the same."""
    root, digest = sources(), hashlib.sha256()
    for path in (path for part in PARTS for path in _files_below(root / part)):
        body = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(body)}\n".encode())
        digest.update(body)
    return digest.hexdigest()[:16]


def read_pg_config(path: Path) -> PgConfig:
    """Run a pg_config for all that a build needs to know."""
    try:
        done = _run([str(path)], timeout_s=ASK_TIMEOUT_S)
    except OSError as error:
        raise BuildFailed(f"{path} cannot be run: {error.strerror}") from None
    said = dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
    try:
        return _described(path, said)
    except (KeyError, ValueError):
        raise BuildFailed(f"{path} is no pg_config: it said {done.stdout[:200]!r}") from None


def _described(path: Path, said: dict[str, str]) -> PgConfig:
    version = said["VERSION"]
    return PgConfig(
        path=path,
        version=version,
        major=major_of(version),
        bin_dir=Path(said["BINDIR"]),
        library_dir=Path(said["PKGLIBDIR"]),
        extension_dir=Path(said["SHAREDIR"]) / "extension",
        headers=Path(said["INCLUDEDIR-SERVER"]),
        pgxs=Path(said["PGXS"]),
        compiler=said["CC"].split()[0],
    )


def major_of(version: str) -> int:
    """Of 'PostgreSQL 15.19 (Debian 15.19-0)', 15; of a beta such as '18beta1', 18."""
    digits = ""
    for character in version.split()[1]:
        if not character.isdigit():
            break
        digits += character
    return int(digits)


def missing_for(config: PgConfig) -> list[str]:
    """What a build for this server lacks here, each with what to do about it."""
    found = []
    if not OLDEST_MAJOR <= config.major <= NEWEST_MAJOR:
        span = f"{OLDEST_MAJOR} to {NEWEST_MAJOR}"
        found.append(f"{config.version} is not supported: the extension is made for {span}")
    if not (config.headers / "postgres.h").is_file():
        found.append(
            f"no server headers in {config.headers}: "
            f"install postgresql-server-dev-{config.major} (RPM: postgresql{config.major}-devel)"
        )
    if not config.pgxs.is_file():
        found.append(
            f"no extension makefiles at {config.pgxs}: install postgresql-server-dev-{config.major}"
        )
    if shutil.which("make") is None:
        found.append("no make: install the package make")
    if shutil.which(config.compiler) is None:
        found.append(
            f"no C compiler {config.compiler}, by which this Postgres was built: "
            f"install the packages {config.compiler} and libc6-dev"
        )
    return found


def version_of(program: Path) -> str | None:
    """Of a `postgres`, such as 15.18; None where it is not there or does not run."""
    try:
        done = _run([str(program), "--version"], timeout_s=ASK_TIMEOUT_S)
    except OSError:
        return None
    found = re.match(r"postgres \(PostgreSQL\) (\S+)", done.stdout)
    return found[1] if found else None


def headers_version(config: PgConfig) -> str | None:
    try:
        text = (config.headers / "pg_config.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^#define PG_VERSION "([^"]+)"', text, re.MULTILINE)
    return found[1] if found else None


def minor_fault(
    major: int, *, running: str | None, installed: str | None, headers: str | None
) -> str | None:
    """What an upgrade has left half done. None: all are of one version, as far as is known."""
    if running and installed and running != installed:
        return (
            f"the server runs Postgres {running}, but its program files are of {installed}: an "
            "upgrade was installed under it. Restart the server, then run this again"
        )
    server = running or installed
    if server and headers and headers != server:
        pinned = (
            f"postgresql-server-dev-{major}=$(dpkg-query -Wf '${{Version}}' postgresql-{major})"
        )
        return (
            f"the headers are of Postgres {headers}, and the server is {server}: install those of "
            f'the server (apt-get install "{pinned}" upgrades nothing), or the package '
            f"postgresql-{major}-headgate, which needs no headers"
        )
    return None


def build_extension(pg_config: Path, into: Path, *, warnings_as_errors: bool = False) -> Path:
    """Build below `into`, which is made; returns the shared library."""
    config = read_pg_config(pg_config)
    if missing := missing_for(config):
        raise BuildFailed("the extension cannot be built here:\n" + "\n".join(missing))
    for part in PARTS:
        shutil.copytree(sources() / part, into / part, ignore=NO_SOURCES, dirs_exist_ok=True)
    _make(config, into, "all", *(["COPT=-Werror"] if warnings_as_errors else []))
    return into / EXTENSION / f"{EXTENSION}.so"


def install_built(pg_config: Path, built: Path) -> PgConfig:
    """Copy what was built in `built` to where the server looks for it."""
    config = read_pg_config(pg_config)
    try:
        _make(config, built, "install")
    except BuildFailed as failure:
        if "ermission denied" not in str(failure):
            raise
        raise BuildFailed(
            f"no permission to write to {config.library_dir} and {config.extension_dir}: "
            "run the installation as root (sudo), or as the owner of these folders\n"
            f"{failure}"
        ) from None
    return config


def _make(config: PgConfig, built: Path, *what: str) -> None:
    argv = ["make", f"-j{MAKE_JOBS}", "-C", str(built / EXTENSION)]
    try:
        with pg_config_for_make(config.path, config.bin_dir.parent) as told:
            # Bitcode for the server's JIT would need clang; nothing of ours is ever inlined.
            argv += [f"PG_CONFIG={told}", "USE_PGXS=1", "with_llvm=no", *what]
            done = _run(argv, timeout_s=MAKE_TIMEOUT_S)
    except OSError as error:
        raise BuildFailed(f"make cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-QUOTED_BYTES:]
        raise BuildFailed(f"make {what[0]} failed for {config.version}:\n{said}")


def _run(argv: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 -- a list, no shell; the operator names the program
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{argv[0]} did not end within {timeout_s} s") from None


# --- paths with spaces ---------------------------------------------------------------------------

# make takes a space for the end of a word: a path with spaces gets another name.
#
# PG_CONFIG=/tmp/hg-…/pg_config ──calls──► the real one, and prints /tmp/hg-…/postgres instead
#                                              of the folder that this links to

_SPACE = re.compile(r"\s")
_SPECIAL_TO_SED = re.compile(r"[\\.*^$\[\]|]")


@contextmanager
def pg_config_for_make(path: Path, prefix: Path) -> Iterator[Path]:
    """A pg_config that names no path with a space in it; OSError where none can be made.
    `prefix`: where that Postgres lies."""
    if not _SPACE.search(f"{path}{prefix}"):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hg-", dir=_plain_parent()) as made:
        link, wrapper = Path(made) / "postgres", Path(made) / "pg_config"
        link.symlink_to(prefix)
        named = _SPECIAL_TO_SED.sub(lambda found: "\\" + found[0], str(prefix))
        replaced = f"s|{named}|{link}|g"
        script = f'#!/bin/sh\n{shlex.quote(str(path))} "$@" | sed {shlex.quote(replaced)}\n'
        wrapper.write_text(script, encoding="utf-8")
        wrapper.chmod(0o700)
        yield wrapper


def _plain_parent() -> str:
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 -- with a random name
        if not _SPACE.search(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    message = "make needs a temporary folder without a space in its path: set TMPDIR to one"
    raise OSError(errno.ENOENT, message)
