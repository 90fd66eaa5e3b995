"""Which agents a reach matches, from what agents report.   members/, shards/ ──► Reached

Other agents write both, perhaps of other versions: entries that cannot be read are skipped and
counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.base.keyvalue import Entry
from headgate.changes.model import MEMBERS, SHARDS, quoted, unquoted
from headgate.changes.reach import EVERYWHERE, Level, Place, Reach
from headgate.changes.state import Reached

MAX_NAMES = 10


def prefixes_of(reaches: Iterable[Reach]) -> tuple[str, ...]:
    """Where to look for them: a shard's pattern says how its keys begin."""
    beginnings = {_beginning(reach) for reach in reaches}
    wanted = {""} if "" in beginnings else beginnings
    return tuple(under + quoted(begins) for begins in sorted(wanted) for under in (SHARDS, MEMBERS))


def _beginning(reach: Reach) -> str:
    return reach.pattern.partition("*")[0] if reach.level is Level.SHARD else ""


@dataclass(slots=True)
class _Counted:
    shards: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    unreadable: int = 0


def reached_by(reaches: Sequence[Reach], entries: Iterable[Entry]) -> Reached:
    counted = _Counted()
    for entry in entries:
        try:
            document = _object(entry.value)
        except ValueError:
            counted.unreadable += 1
            continue
        met = [
            place
            for place in _places(entry.key, document)
            if any(reach.meets(place) for reach in reaches)
        ]
        counted.shards |= {place.shard for place in met if place.shard}
        counted.hosts |= {place.host for place in met if place.host}
        if met and entry.key.startswith(SHARDS) and document.get("healthy") is False:
            counted.unhealthy.add(met[0].shard)
    return _told(counted, reaches[0] if len(reaches) == 1 else EVERYWHERE)


def _told(counted: _Counted, reach: Reach) -> Reached:
    names = [*sorted(counted.unhealthy), *sorted(counted.shards - counted.unhealthy)]
    unread = f"{counted.unreadable:,} entries could not be read" if counted.unreadable else ""
    return Reached(
        len(counted.shards),
        len(counted.hosts),
        len(counted.unhealthy),
        tuple(names[:MAX_NAMES]),
        unread,
        reach,
    )


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(raw)
    except (UnicodeDecodeError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(document, Mapping):
        raise ValueError("is not a JSON object")
    return document


def _places(key: str, document: Mapping[str, Any]) -> Iterator[Place]:
    """Of a shard those of its hosts, and one without; of a member its own."""
    section, _, rest = key.partition("/")
    shard_piece, _, member = rest.partition("/")
    where = {name: _text(document.get(name)) for name in ("region", "cluster")}
    shard = _text(document.get("shard")) or unquoted(shard_piece)
    if f"{section}/" == MEMBERS:
        host, database = _text(document.get("host")), _text(document.get("database"))
        yield Place(**where, shard=shard, host=host or unquoted(member), database=database)
        return
    yield Place(**where, shard=shard)
    hosts = document.get("hosts")
    for host in hosts if isinstance(hosts, list) else ():
        if name := _text(host.get("host") if isinstance(host, Mapping) else host):
            yield Place(**where, shard=shard, host=name)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
