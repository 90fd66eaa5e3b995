"""Find the pg_config of a server, from whatever is known of it.

--pg-config · --data-directory (its process, or its version) · --server (by SQL) · what is here
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.budgets.pgext.build import BuildFailed, PgConfig, read_pg_config
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    import psycopg

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 10
# Where the packages of Debian, of PGDG for RPM, of Alpine and of the official images put it.
PLACES = (
    "/usr/lib/postgresql/{major}/bin/pg_config",
    "/usr/pgsql-{major}/bin/pg_config",
    "/usr/libexec/postgresql{major}/pg_config",
    "/usr/local/bin/pg_config",
)
KNOWN_MAJORS = tuple(range(14, 19))
ASK = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
ASKED = ("server_version_num", "data_directory", "shared_preload_libraries")


class ServerNotFound(HeadgateError):
    """Nobody can tell which Postgres is meant; says how to name it."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server that accepts connections says about its installation."""

    major: int
    data_directory: Path | None
    """None: the role may not see it."""
    preloaded: str


def find_pg_config(
    pg_config: Path | None, data_directory: Path | None, server: ServerSettings | None
) -> PgConfig:
    """Of the server that is meant, by the most certain of what is given."""
    if pg_config is not None:
        return read_pg_config(pg_config)
    if server is not None:
        data_directory = data_directory or server.data_directory
    if data_directory is not None and (running := _of_process(data_directory)) is not None:
        return running
    if server is not None:
        return _of_major(server.major)
    if data_directory is not None:
        return _of_major(major_of_data(data_directory))
    return _the_only_one()


@contextmanager
def session_with(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for a few questions. Nothing else here needs the driver."""
    try:
        import psycopg
    except ModuleNotFoundError:
        message = "connecting to the server needs psycopg: pip install 'headgate[postgres]'"
        raise HeadgateError(message) from None
    try:
        with psycopg.connect(dsn, connect_timeout=CONNECT_TIMEOUT_S, autocommit=True) as session:
            session.execute(f"SET statement_timeout = '{STATEMENT_TIMEOUT_S}s'")
            yield session
    except psycopg.Error as error:
        # The driver's message names host and user; a password it never repeats.
        raise ServerNotFound(f"cannot connect to the server: {str(error).strip()}") from None


def ask_server(dsn: str) -> ServerSettings:
    with session_with(dsn) as session:
        said: dict[str, Any] = dict(session.execute(ASK, [list(ASKED)]).fetchall())
    folder = said.get("data_directory")
    return ServerSettings(
        major=int(said["server_version_num"]) // 10_000,
        data_directory=Path(folder) if folder else None,
        preloaded=said.get("shared_preload_libraries") or "",
    )


def major_of_data(data_directory: Path) -> int:
    path = data_directory / "PG_VERSION"
    try:
        return int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ServerNotFound(f"{data_directory} is no data directory: no PG_VERSION") from None
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; be the server's own user, or root"
        raise ServerNotFound(message) from None
    except ValueError:
        raise ServerNotFound(f"{path} is not what initdb writes") from None


def _of_process(data_directory: Path) -> PgConfig | None:
    """Beside the very program that runs on these files; None if that is not known."""
    try:
        pid = (data_directory / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0]
        program = Path(f"/proc/{int(pid)}/exe").readlink()
    except (OSError, ValueError):
        return None
    beside = program.with_name("pg_config")
    return read_pg_config(beside) if beside.is_file() else None


def _of_major(major: int) -> PgConfig:
    for found in _installed(major):
        if found.major == major:
            return found
    raise ServerNotFound(
        f"no pg_config of Postgres {major} was found: install postgresql-server-dev-{major} "
        f"(RPM: postgresql{major}-devel), or name it by --pg-config"
    )


def _the_only_one() -> PgConfig:
    found = {one.bin_dir: one for major in KNOWN_MAJORS for one in _installed(major)}
    if len(found) == 1:
        return next(iter(found.values()))
    here = ", ".join(f"{one.path} ({one.version})" for one in found.values()) or "none"
    raise ServerNotFound(
        "which Postgres is meant? Name it by --pg-config, --data-directory or --server; "
        f"pg_config found here: {here}"
    )


def _installed(major: int) -> Iterator[PgConfig]:
    places = [Path(place.format(major=major)) for place in PLACES]
    if on_path := shutil.which("pg_config"):
        places.append(Path(on_path))
    for place in places:
        if place.is_file():
            try:
                yield read_pg_config(place)
            except BuildFailed:
                continue  # Debian's wrapper, where the package behind it is not installed
