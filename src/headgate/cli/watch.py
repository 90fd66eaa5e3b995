"""Commands about clients: clients, with --rogue rogue clients, and starvation."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.options import AsJson, Token, Url

Rogue = Annotated[
    bool,
    typer.Option("--rogue", help="Rogue clients instead: at work in a database, and never check."),
]


def clients(
    rogue: Rogue = False, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """List clients that checked lately: which are throttled, and by what."""
    from headgate.check.api import ClientsDoc
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show, show_view
    from headgate.cli.pages import clients_page
    from headgate.history.starvation_api import RoguesDoc
    from headgate.present.starvation import rogues_view

    api = connect(url, token)
    if rogue:
        show_view(api.get("/v1/rogues"), as_json, RoguesDoc, rogues_view)
        return
    listed = api.get("/v1/clients")
    show(
        listed,
        as_json,
        lambda canvas: clients_page(read(ClientsDoc, listed.document).clients, canvas),
    )


def starvation(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show starved clients: rejected by metrics for long while others progress, and why."""
    from headgate.cli.api import connect
    from headgate.cli.output import show_view
    from headgate.history.starvation_api import StarvationDoc
    from headgate.present.starvation import starvation_view

    answered = connect(url, token).get("/v1/starvation")
    show_view(answered, as_json, StarvationDoc, lambda found: starvation_view(found.starved))
