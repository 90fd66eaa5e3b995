"""`headgate init`: from a connection string to a settings file that an agent can start with.
`headgate doctor`: whether everything that the file names is there.

    DSN ──► Host.discover ──► what the server can measure ──► headgate.toml, NAME.password

Nothing is written before the server has answered, and nothing that exists is written over.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from headgate.base.names import parse_database
from headgate.cli.options import AsJson, Yes, confirm
from headgate.errors import HeadgateError, ProbeFailed
from headgate.metrics.model import DsnParts, Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.metrics.advice import MetricLook
    from headgate.present.view import Block
    from headgate.settings.starter import Diagnosis, Discovery

Dsn = Annotated[
    str,
    typer.Argument(
        metavar="DSN",
        help="A libpq connection string, or mysql://USER@HOST:PORT/SCHEMA (MySQL and MariaDB).",
    ),
]
InitDatabase = Annotated[
    str,
    typer.Option(
        "--database-name", metavar="NAME", help="The database's name in checks and rules."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE", show_default=False,
        help="Where to put it.",
    ),
]  # fmt: skip
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="A file whose first line is the password."
    ),
]


class Finder(Protocol):
    """What looks at a server, beyond this ring (__main__.py)."""

    def parts_of(self, name: str, engine: Engine, dsn: str) -> DsnParts: ...

    def discover(self, name: str, engine: Engine, dsn: str, password: str | None) -> Discovery: ...

    def validate(self, settings: Path) -> None: ...

    def examine(self, settings: Path) -> Sequence[Diagnosis]: ...


def init(
    context: typer.Context,
    dsn: Dsn,
    database: InitDatabase = "main",
    output: Output = Path("headgate.toml"),
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a first settings file from what a database server can measure.

    It connects and reads each metric once. It changes nothing on the server, except the row of
    commit_delay on MySQL and MariaDB. It writes a password in DSN to a file that only you can read.
    Exit code 1 if the server is unreachable or rejects the login; it then prints the role to
    create.
    """
    from headgate.settings.starter import starter_text

    finder: Finder = context.obj
    parse_database(database)
    engine = Engine.MYSQL if dsn.startswith(("mysql://", "mariadb://")) else Engine.POSTGRES
    parts = finder.parts_of(database, engine, dsn)
    secret = output.with_name(f"{database}.password") if password_file is None else password_file
    _require_room([output, *([secret] if password_file is None else [])])
    password = parts.password if password_file is None else _first_line(password_file)
    if password is None and not (yes or as_json) and sys.stdin.isatty():
        password = typer.prompt(
            f"Password of {parts.user or 'the role'} (empty: none is needed)",
            default="",
            show_default=False,
            hide_input=True,
            err=True,
        )
    try:
        found = finder.discover(database, engine, parts.dsn, password or None)
    except ProbeFailed as failure:
        raise HeadgateError(_unreached(failure, engine, parts)) from None
    keeps = password if password_file is None else None
    here = output.parent == Path()
    text = starter_text(
        found,
        database=database,
        dsn=parts.dsn,
        password_file=str(secret if here else secret.absolute()) if password else None,
        folder="" if here else f"{output.parent.absolute()}/",
    )
    if as_json:
        _write(finder, output, text, secret if keeps else None, keeps or "")
        _show_document(found, output, secret if keeps else None)
        return
    from headgate.cli.output import show_blocks

    show_blocks(_found(found))
    names = f"{output}{f' and {secret}' if keeps else ''}"
    if not yes:
        confirm(f"Write {names}?", default=True)
    _write(finder, output, text, secret if keeps else None, keeps or "")
    print(f"\nwrote {names}{' (only you can read the password)' if keeps else ''}\n")
    print(_next_steps(output, database))


def _require_room(files: list[Path]) -> None:
    """Before anything is read: the files are new, and their folder takes them."""
    there = [str(file) for file in files if file.exists()]
    if there:
        exist, them = ("exist", "them") if len(there) > 1 else ("exists", "it")
        message = f"{' and '.join(there)} {exist}, and nothing was written: move {them} away"
        raise HeadgateError(f"{message}, or choose another file with --output")
    folder = files[0].parent
    if not folder.is_dir():
        raise HeadgateError(f"{folder} is no folder: mkdir -p {shlex.quote(str(folder))}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise HeadgateError(f"{folder} cannot be written: choose another folder with --output")


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise HeadgateError(f"no password can be read from {path}: {error}") from None
    if not lines or not lines[0]:
        raise HeadgateError(f"the first line of {path} must be the password; it is empty")
    return lines[0]


def _unreached(failure: ProbeFailed, engine: Engine, parts: DsnParts) -> str:
    from headgate.settings.starter import LOGIN_REJECTED, SCHEMA_REJECTED, is_here, role_sql

    lines = [f"{failure.detail}; nothing was written"]
    if engine is Engine.MYSQL and SCHEMA_REJECTED.search(failure.detail):
        return f"{lines[0]}\n\nThe agent needs no schema of yours: leave it out of the DSN."
    if not LOGIN_REJECTED.search(failure.detail):
        return lines[0]
    lines.append("")
    host = "127.0.0.1" if is_here(parts.host) and parts.host else parts.host and "%"
    for server, statements in role_sql(engine, parts.user or "headgate", host or "localhost"):
        lines.append(f"Where the role does not exist yet, an administrator creates it ({server}):")
        lines += [f"  {statement}" for statement in statements]
    return "\n".join(lines)


def _write(finder: Finder, output: Path, text: str, secret: Path | None, password: str) -> None:
    """The password first: a settings file never names one that is not there."""
    written: list[Path] = []
    try:
        for path, content in ([(secret, f"{password}\n")] if secret else []) + [(output, text)]:
            mode = 0o600 if path == secret else 0o644
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
        finder.validate(output)
    except OSError as error:
        for path in written:
            path.unlink()
        message = f"{error.filename or output} cannot be written: {error.strerror}"
        raise HeadgateError(f"{message}; nothing is left behind") from None


def _found(found: Discovery) -> Iterator[Block]:
    from headgate.present.view import Said, Table, columns, line

    service = f" ({found.service})" if found.service else ""
    yield line(Said(f"{found.server}{service}", "strong"), f" at {found.where}: {found.role}")
    grants = found.missing_grants()
    if grants:
        yield line(Said("rights are missing; an administrator grants them:", "bad"))
    for grant in grants:
        yield line(f"  {grant}")
    if grants:
        yield line("Then run init again, with its files out of the way: it finds more metrics.")
    if found.heartbeat_table:
        yield line(f"heartbeat table {found.heartbeat_table}: lag can be read from it")
    rows = [_metric_row(look, found.engine) for look in found.looks]
    yield Table(columns("metric", "now", "rejects", "", right=("now",)), rows)


def _metric_row(look: MetricLook, engine: Engine) -> tuple[str, ...]:
    from headgate.check.reasons import quantity
    from headgate.metrics.settings import parse_metric_settings
    from headgate.present.view import DASH
    from headgate.settings.starter import OFFERED

    spec = parse_metric_settings(look.metric, {}, engine)
    if look.value is None:
        return (
            look.metric,
            DASH,
            "",
            f"left out: {look.detail.partition('; as an administrator')[0]}",
        )
    note = "as a comment: remove its # to use it" if look.metric in OFFERED else ""
    if spec.breaches(look.value) and not note:
        note = "rejects now: choose a threshold that fits, or find out why"
    limit = f"{spec.comparison.value} {quantity(spec.threshold, spec.unit)}"
    return look.metric, quantity(look.value, spec.unit), limit, note


def _show_document(found: Discovery, output: Path, secret: Path | None) -> None:
    from headgate.cli.output import show_json

    show_json(
        {
            "server": found.server,
            "service": found.service,
            "at": found.where,
            "is_replica": found.is_replica,
            "replicas": found.replicas,
            "heartbeat_table": found.heartbeat_table,
            "missing_grants": found.missing_grants(),
            "readings": [look._asdict() for look in found.looks],
            "settings": str(output),
            "password_file": None if secret is None else str(secret),
        }
    )


def _next_steps(output: Path, database: str) -> str:
    socket = (output.parent / "headgate.sock").absolute()
    config = shlex.quote(str(output))
    return (
        "next:\n"
        f"  headgate doctor --config {config}\n"
        f"  headgate agent --config {config}\n"
        "and in another terminal:\n"
        f"  export HEADGATE_URL={shlex.quote(f'unix://{socket}')}\n"
        f"  headgate check --as etl:nightly --database {database}\n"
        "  headgate top"
    )


# --- doctor --------------------------------------------------------------------------------------

DoctorConfig = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The agent's settings file (TOML).")
]


def doctor(
    context: typer.Context,
    config: DoctorConfig = Path("headgate.toml"),
    as_json: AsJson = False,
) -> None:
    """Try what an agent needs: databases, rights, clocks, ports, disk, peers.

    One line each: OK, or what to do. Reads each metric once and changes nothing; an agent may run
    meanwhile. Exit code 1 where something would keep it from working.
    """
    from headgate.cli.output import show_blocks, show_json
    from headgate.present.view import Said, Table, Tone, columns

    finder: Finder = context.obj
    findings = finder.examine(config)
    if as_json:
        show_json(
            [{"level": one.level, "subject": one.subject, "says": one.says} for one in findings]
        )
    else:
        tones: dict[str, Tone] = {"ok": "good", "advice": "warned", "fault": "bad"}
        rows = [
            (Said(one.level.upper(), tones[one.level]), one.subject, one.says) for one in findings
        ]
        show_blocks([Table(columns("", "what", "found"), rows)])
    if any(one.level == "fault" for one in findings):
        raise typer.Exit(1)
