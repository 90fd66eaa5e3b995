"""Names for the many that have no name of their own (R69).   names.py ──► crowds ──► counting

Where there is no room to tell clients apart, the level that is least like a name is dropped
from theirs, and then the next: `u7:etl:nightly` is counted as `other:etl:nightly`, then as
`other:nightly`, then as `other`. So what is summed up by a level stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

OTHER = "other"


def crowds_of(client: str, is_shared: Callable[[str], bool]) -> Iterator[str]:
    """Ever wider ones; the last is `other`.

    The most specific level is the first by custom, so it goes first; yet one that several
    clients have in common outlasts one that only this client has, wherever that stands.
    """
    tokens = client.split(":")
    at = tokens.index(OTHER) if OTHER in tokens else None
    left = [token for token in tokens if token != OTHER]
    while len(left) > 1:
        dropped = next((n for n, token in enumerate(left) if not is_shared(token)), 0)
        del left[dropped]
        at = dropped if at is None else min(at, dropped)
        yield ":".join([*left[:at], OTHER, *left[at:]])
    yield OTHER


def is_crowd(client: str) -> bool:
    return OTHER in client.split(":")


def levels_of(client: str) -> list[str]:
    """Each once; that of the nameless is none that a rule could match."""
    return [level for level in dict.fromkeys(client.split(":")) if level != OTHER]
