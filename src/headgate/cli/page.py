"""`headgate page`: a way into the agent's page, for operators.

    Unix socket or token ──POST /v1/page/links──► a link that is good once, for two minutes

What follows the `#` never reaches a server's log. It is shown to the caller alone.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from headgate.cli.options import AgentOptions
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.cli.api import Api

LINKS = "/v1/page/links"
Open = Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")]


def page(open_it: Open = False, *, agent: AgentOptions) -> None:
    """Print a link that signs in at the agent's page, once.

    The link works for two minutes and signs in as an operator. Over the Unix socket this needs no
    token. The audit shows changes under the name of the person who made the link.
    """
    import webbrowser

    from headgate.cli.output import show_document

    api = agent.connect()
    answered = api.change("POST", LINKS)
    if agent.as_json:
        show_document(answered)
        return
    path, listens = answered.document.get("path"), answered.document.get("listens")
    if not isinstance(path, str) or not path.startswith("/sign-in#"):
        raise HeadgateError("the agent's answer holds no link: is it of another version?")
    addresses = addresses_of(api, listens if isinstance(listens, str) else "")
    print(f"{addresses[0]}{path}")
    for other in addresses[1:]:
        print(f"from elsewhere: {other}{path}")
    print(_said(answered.document.get("name"), answered.document.get("expires_in_s")))
    if open_it and not webbrowser.open(f"{addresses[0]}{path}"):
        raise HeadgateError("no browser could be opened here: use the link above")


def addresses_of(api: Api, listens: str) -> list[str]:
    """Where a browser finds the page: as the agent was reached, if by TCP, else where it says
    that it listens. One that listens everywhere is here at loopback, and elsewhere by this host's
    name."""
    if not api.url.startswith("unix:"):
        return [api.url.rstrip("/")]
    if not listens:
        message = "the agent answers by its Unix socket alone: set `listen` of [agent] for a page"
        raise HeadgateError(message)
    parts = urlsplit(listens)
    host = parts.hostname or ""
    if not _is_everywhere(host):
        return [listens.rstrip("/")]
    loopback = "[::1]" if ":" in host else "127.0.0.1"
    return [f"{parts.scheme}://{name}:{parts.port}" for name in (loopback, socket.gethostname())]


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _said(name: object, expires_in_s: object) -> str:
    within = f" within {expires_in_s:.0f} s" if isinstance(expires_in_s, int | float) else ""
    return f"good once,{within or ' for a short while'}; signs in as {name}, who may change things"
