"""Whom a reach meets, as a document and in a line: the preview of what is set for a fleet."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.core.change_log import Reached

MAX_NAMED = 5


class ReachedDoc(msgspec.Struct, frozen=True):
    """Whom a reach meets, by what agents have told the fleet of themselves."""

    reach: str
    shards: int | None
    """Null: it is not known whom it meets; `unknown` says why."""
    hosts: int | None
    unhealthy: int | None
    """Of the shards; null where nobody has told how they are."""
    sample: Sequence[str]
    """Names of some of the shards, the unhealthy ones first."""
    unknown: str | None
    """Why it cannot be told, or not all of it."""
    says: str
    """In a line: `reaches 37 shards, 111 hosts; commerce/-80, …`."""


def reached_doc(reached: Reached) -> ReachedDoc:
    return ReachedDoc(
        reach=str(reached.reach),
        shards=reached.shards,
        hosts=reached.hosts,
        unhealthy=reached.unhealthy,
        sample=reached.names,
        unknown=reached.unknown or None,
        says=reached_says(reached),
    )


def reached_says(reached: Reached) -> str:
    if reached.shards is None or reached.hosts is None:
        return f"whom it reaches is not known: {reached.unknown or 'no agent has told'}"
    but = f"; {reached.unknown}" if reached.unknown else ""
    if not reached.shards and not reached.hosts:
        return f"reaches nobody who is registered now; it holds for those who come{but}"
    sick = f" ({reached.unhealthy:,} unhealthy)" if reached.unhealthy else ""
    shards, hosts = _count(reached.shards, "shard"), _count(reached.hosts, "host")
    return f"reaches {shards}{sick}, {hosts}{_named(reached.names, reached.shards)}{but}"


def _named(names: Sequence[str], shards: int) -> str:
    if not names:
        return ""
    more = ", …" if shards > len(names[:MAX_NAMED]) else ""
    return f"; {', '.join(names[:MAX_NAMED])}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
