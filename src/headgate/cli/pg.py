"""`headgate pg`: the Postgres extension of a server on this host.

These work on the server's files, not through an agent: what does so is beyond this ring, and
__main__.py hands it in, as the context's object.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from headgate.cli.options import AsJson, Duration, duration

if TYPE_CHECKING:
    pass

T = TypeVar("T")

PgConfig = Annotated[
    Path | None,
    typer.Option("--pg-config", metavar="FILE", show_default=False, help="The server's pg_config."),
]
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-directory",
        "-D",
        envvar="PGDATA",
        metavar="DIR",
        show_default=False,
        help="The server's data directory.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        metavar="DIR",
        show_default=False,
        help="pg_headgate.directory, where it is not in the data directory.",
    ),
]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--server",
        "--dsn",
        envvar="HEADGATE_PG_DSN",
        metavar="DSN",
        show_default=False,
        help="A connection string. Others on this host can see arguments: keep a password in "
        "the environment or in ~/.pgpass.",
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        show_default=False,
        help="A policy (TOML or JSON). Default: the one that was switched off.",
    ),
]
PolicyArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A policy (TOML or JSON).", show_default=False)
]
Within = Annotated[
    Duration,
    duration("--within", about="How long to wait until the server uses it.", high=600),
]
Purge = Annotated[
    bool, typer.Option("--purge", help="Remove the policy's files, too, once it is off.")
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Accept a policy that would lock out an administrator.")
]
WITHIN = Duration("5s")


class PgExtension(Protocol):
    """What can be done to servers here; each gives a document, or raises HeadgateError."""

    def install(
        self, *, pg_config: Path | None, data_directory: Path | None, dsn: str | None
    ) -> Mapping[str, Any]: ...

    def enable(
        self, directory: Path, policy_file: Path | None, *, within_s: float, anyway: bool
    ) -> Mapping[str, Any]: ...

    def publish(
        self, directory: Path, policy_file: Path, *, within_s: float, anyway: bool
    ) -> Mapping[str, Any]: ...

    def disable(self, directory: Path, *, purge: bool, within_s: float) -> Mapping[str, Any]: ...

    def status(self, directory: Path | None, dsn: str | None) -> Mapping[str, Any]: ...


class PgHost(Protocol):
    def pg_extension(self) -> PgExtension: ...


def install(
    context: typer.Context,
    pg_config: PgConfig = None,
    data_directory: DataDirectory = None,
    dsn: Dsn = None,
    as_json: AsJson = False,
) -> None:
    """Build the extension for a server, and install it.

    It names the package that is missing, if one is. Run it as root, or as the owner of the
    server's program files. The server loads the extension at its next start.
    """
    extension = _extension(context)
    done = extension.install(pg_config=pg_config, data_directory=data_directory, dsn=dsn)
    _show(done, as_json, "proxy.installed_view")


def enable(
    context: typer.Context,
    data_directory: DataDirectory = None,
    directory: Directory = None,
    policy: PolicyOption = None,
    anyway: Anyway = False,
    within: Within = WITHIN,
    as_json: AsJson = False,
) -> None:
    """Put a policy in force, or the one that was switched off.

    It needs no connection to the server, so it works when none is free. A policy with faults
    changes nothing.
    """
    where = _directory(data_directory, directory)
    done = _extension(context).enable(where, policy, within_s=within, anyway=anyway)
    _show(done, as_json, "proxy.published_view")


def publish(
    context: typer.Context,
    policy: PolicyArgument,
    data_directory: DataDirectory = None,
    directory: Directory = None,
    anyway: Anyway = False,
    within: Within = WITHIN,
    as_json: AsJson = False,
) -> None:
    """Replace the policy.

    If traffic control is switched off, it stays off, and `headgate pg enable` uses the new policy.
    If an agent publishes to this server, change the policy there instead.
    """
    where = _directory(data_directory, directory)
    done = _extension(context).publish(where, policy, within_s=within, anyway=anyway)
    _show(done, as_json, "proxy.published_view")


def disable(
    context: typer.Context,
    data_directory: DataDirectory = None,
    directory: Directory = None,
    purge: Purge = False,
    within: Within = WITHIN,
    as_json: AsJson = False,
) -> None:
    """Switch traffic control off at once: no budget applies any more.

    It stays off until `headgate pg enable`, even if an agent publishes.
    """
    where = _directory(data_directory, directory)
    done = _extension(context).disable(where, purge=purge, within_s=within)
    _show(done, as_json, "proxy.disabled_view")


def status(
    context: typer.Context,
    data_directory: DataDirectory = None,
    directory: Directory = None,
    dsn: Dsn = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in force on a server, and which budgets need attention.

    It reads the server's memory from outside, so it works with no free connection. Where that is
    not allowed, use --server to read it over SQL. Exit code 1 if something needs attention.
    """
    where = data_directory or directory
    if where is None and dsn is None:
        raise typer.BadParameter("name the server by --data-directory (PGDATA) or --server")
    chosen = None if where is None else _directory(data_directory, directory)
    found = _extension(context).status(chosen, dsn)
    _show(found, as_json, "proxy.pg_view")
    if found["problems"]:
        raise typer.Exit(1)


def _directory(data_directory: Path | None, directory: Path | None) -> Path:
    """`directory` is relative to the data directory, as the server takes it."""
    if data_directory is None and directory is None:
        raise typer.BadParameter("name the server by --data-directory (PGDATA)")
    return (data_directory or Path()) / (directory or "pg_headgate")


def _extension(context: typer.Context) -> PgExtension:
    host: PgHost = context.obj
    return host.pg_extension()


def _show(document: Mapping[str, Any], as_json: bool, view: str) -> None:
    from headgate.cli.output import show_view

    show_view(document, as_json, view)
