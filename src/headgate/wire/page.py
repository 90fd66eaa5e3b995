"""The page, as far as programs ask about it."""

from __future__ import annotations

import msgspec


class LinkDoc(msgspec.Struct, frozen=True):
    """A way in that is good once."""

    path: str
    """At the agent's address. What follows the `#` is a secret."""
    expires_in_s: float
    name: str
    """Who they will be, in the audit."""
    listens: str | None = None
    """What the agent says its address is: `http://127.0.0.1:8087`; null: it answers by its Unix
    socket alone, and no browser gets there."""
