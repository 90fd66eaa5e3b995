"""The extension for the demo's own Postgres, where there is a compiler to build it with.

The library alone is wanted, loaded by its path: the wheel that Postgres came in is not ours to
install into. It is built once for each state of its sources and each Postgres, and kept.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from headgate.base.paths import cache_below_home
from headgate.budgets.pgext.build import (
    EXTENSION,
    NO_SOURCES,
    PARTS,
    BuildFailed,
    PgConfig,
    missing_for,
    pg_config_for_make,
    read_pg_config,
    sources,
    sources_hash,
)
from headgate.demo import servers
from headgate.demo.postgres import find_binaries

BUILD_TIMEOUT_S = 300.0
QUOTED_BYTES = 600
# In place of the flags by which this Postgres was built: its compiler is newer than most, and
# others fail on warnings that they do not know. What its headers rely on is among these.
FLAGS = "-O2 -fno-strict-aliasing -fwrapv"


def library_for(folder: Path) -> Path:
    """A copy in `folder`, where the servers' user can read it; BuildFailed says what is missing."""
    config = read_pg_config(find_binaries() / "pg_config")
    kept = kept_at(config)
    if not kept.is_file():
        if missing := missing_for(config):
            raise BuildFailed("; ".join(missing))
        _build(config, kept)
    target = folder / f"{EXTENSION}.so"
    shutil.copyfile(kept, target)
    target.chmod(0o644)
    return target


def kept_at(config: PgConfig) -> Path:
    what = f"{config.version} {FLAGS} {sources_hash()}"
    name = f"demo-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    return _cache() / name


def _cache() -> Path:
    """A checkout keeps its own; an installed package may belong to another user."""
    root = sources()
    if (root / "pyproject.toml").is_file():
        return root / ".cache" / EXTENSION
    try:
        return cache_below_home(EXTENSION)
    except ValueError:
        raise BuildFailed("it is kept in the user's home, and this user has none") from None


def _build(config: PgConfig, kept: Path) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".demo-") as work:
            built = Path(work)
            for part in PARTS:
                shutil.copytree(sources() / part, built / part, ignore=NO_SOURCES)
            _make(config, built / EXTENSION)
            # Whole or not at all: another demo may be looking.
            (built / EXTENSION / f"{EXTENSION}.so").rename(kept)
    except OSError as error:
        raise BuildFailed(f"nothing can be built in {kept.parent}: {error.strerror}") from None


def _make(config: PgConfig, where: Path) -> None:
    settings = ["USE_PGXS=1", "with_llvm=no", f"CFLAGS={FLAGS}"]
    try:
        with pg_config_for_make(config.path, config.bin_dir.parent) as told:
            done = subprocess.run(
                ["make", "-s", "-j2", "-C", str(where), f"PG_CONFIG={told}", *settings, "all"],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"make did not end within {BUILD_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise BuildFailed(f"make failed: {(done.stdout + done.stderr).strip()[-QUOTED_BYTES:]}")


def settings_for(library: Path) -> dict[str, str]:
    """Of a server that loads it."""
    return {"shared_preload_libraries": str(library)}


def directory_of(data_dir: Path) -> Path:
    """Where a server with the extension looks for its policy."""
    folder = data_dir / EXTENSION
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        servers.service_user().own(folder)
    return folder
