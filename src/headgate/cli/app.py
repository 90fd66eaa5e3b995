"""The command line, put together. What it offers is in table.py, and loaded when called."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.lazy import PLAIN, Root
from headgate.cli.table import ABOUT

app = typer.Typer(
    name="headgate",
    cls=Root,
    help=ABOUT,
    no_args_is_help=True,
    rich_markup_mode=PLAIN,
    # A traceback with local variables would show tokens.
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headgate.version import VERSION

        typer.echo(f"headgate {VERSION}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
]


@app.callback()
def _any_command(version: Version = False) -> None:
    """Typer makes a group of an app that has this; what the group holds is Root's."""
