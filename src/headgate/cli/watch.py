"""Commands on who is starved and who never asks: starvation, and clients with --rogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.options import AsJson, Token, Url

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headgate.cli.render import Canvas
    from headgate.wire.starvation import RoguesDoc, StarvedDoc

Rogue = Annotated[
    bool, typer.Option("--rogue", help="Instead: who works in the database and never asks.")
]


def clients(
    rogue: Rogue = False, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """List who asked lately, and who is refused by what."""
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import clients_page
    from headgate.wire.starvation import RoguesDoc
    from headgate.wire.status import ClientsDoc

    api = connect(url, token)
    if rogue:
        answered = api.get("/v1/rogues")
        show(
            answered, as_json, lambda canvas: rogue_page(read(RoguesDoc, answered.document), canvas)
        )
        return
    listed = api.get("/v1/clients")
    show(
        listed,
        as_json,
        lambda canvas: clients_page(read(ClientsDoc, listed.document).clients, canvas),
    )


def starvation(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show who is starved: refused by metrics for long while others work, and why."""
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.wire.starvation import StarvationDoc

    answered = connect(url, token).get("/v1/starvation")
    show(
        answered,
        as_json,
        lambda canvas: starvation_page(read(StarvationDoc, answered.document).starved, canvas),
    )


# --- pages ---------------------------------------------------------------------------------


def starvation_page(starved: Sequence[StarvedDoc], canvas: Canvas) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not starved:
        return Text("nobody is starved", style="green")
    return Group(*(_starved(one, canvas) for one in starved))


def _starved(one: StarvedDoc, canvas: Canvas) -> RenderableType:
    from rich.text import Text

    from headgate.cli.timeline import percent
    from headgate.cli.words import plain
    from headgate.wire.reasons import duration

    word, style = ("STARVED", "bold red") if one.alarming else ("waits", "yellow")
    text = Text().append(f"{word}  ", style=style).append(plain(one.client), style="bold")
    if one.is_level:
        text.append(f" ({len(one.members)} clients)")
    text.append(f" on {plain(one.database)}: refused by {plain(one.metric)} for ")
    text.append(f"{duration(one.starved_s)}, {percent(one.share)} of its runtime\n")
    blamed = f" ({plain(', '.join(map(str, one.blamed)))})" if one.blamed else ""
    text.append(f"  {canvas.marks.dot} {plain(one.why)}{blamed}\n")
    return text.append(f"  {canvas.marks.dot} {plain(one.proposal)}", style="cyan")


def rogue_page(rogues: RoguesDoc, canvas: Canvas) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from headgate.cli.render import plain_table
    from headgate.cli.timeline import percent
    from headgate.cli.words import plain

    parts: list[RenderableType] = [
        Text(f"{plain(f.database)}: sessions cannot be listed: {plain(f.detail)}", style="yellow")
        for f in rogues.faults
    ]
    if not rogues.suspects and rogues.faults:
        return Group(*parts)  # Who is not listed has not been cleared.
    if not rogues.suspects:
        return Group(Text("everybody at work there has asked", style="green"))
    right = frozenset({"sessions", "at work", "of activity"})
    names = ("database", "user", "application", "host", "sessions", "at work", "of activity")
    table = plain_table(*names, right=right)
    for one in rogues.suspects:
        cells = (one.database, one.user, one.application or canvas.marks.nothing, one.host)
        numbers = (f"{one.sessions:,}", f"{one.active_mean:.1f}", percent(one.share))
        table.add_row(*(Text(plain(cell)) for cell in (*cells, *numbers)))
    return Group(*parts, table)
