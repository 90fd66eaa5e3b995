"""Asking back before something is done that others feel."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str) -> None:
    """Or leave. Without a terminal nobody could answer: the call says so, and what to add."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("this is no terminal to ask on: add --yes to confirm")
    typer.confirm(question, abort=True, err=True)
