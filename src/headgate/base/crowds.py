"""Shared names for clients that are too many to count singly.   names.py ──► crowds ──► counting

When there is no room for one more client, the least telling level of its name is dropped, and
then the next: `u7:etl:nightly` is counted as `other:etl:nightly`, then as `other:nightly`, then
as `other`. So the sum over a level stays complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

OTHER = "other"


def crowds_of(client: str, is_shared: Callable[[str], bool]) -> Iterator[str]:
    """Wider and wider groups; the last is `other`.

    By custom the most specific level comes first, so it is dropped first. But a level that several
    clients share is kept longer than one that only this client has, at any position.
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
