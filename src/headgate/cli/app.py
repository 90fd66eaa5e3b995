"""The command line, put together. What it offers is in table.py, and loaded when called."""

from __future__ import annotations

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


@app.callback()
def _any_command() -> None:
    """Typer makes a group of an app that has this; what the group holds is Root's."""
