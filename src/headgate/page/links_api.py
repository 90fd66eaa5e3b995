"""What programs can request about the page."""

from __future__ import annotations

import msgspec


class LinkDoc(msgspec.Struct, frozen=True):
    """A way in that is good once."""

    path: str
    """At the agent's address. What follows the `#` is a secret."""
    expires_in_s: float
    name: str
    """Their name in the audit."""
    listens: str | None = None
    """The agent's own address: `http://127.0.0.1:8087`; null: it has only its Unix socket, which
    no browser can reach."""
