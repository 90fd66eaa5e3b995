"""An agent's database as it is registered in the fleet's store.   FleetMember ◄──► members/<s>/<m>

Its own agent writes it under a lease. It says where the agent is and what role its server had;
other agents query that agent to learn whether this is still true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headgate.base.keyvalue import Entry
from headgate.base.stored import read_object
from headgate.changes.model import MEMBERS, quoted, shard_members, unquoted
from headgate.changes.reach import Place

MAX_MEMBER_BYTES = 4096
MAX_TEXT_CHARS = 512
MAX_REJECTED = 8
"""Items listed as not applied: their names must fit."""
ROLES = frozenset({"primary", "replica", "unknown"})


@dataclass(frozen=True, slots=True)
class FleetMember:
    shard: str
    """Empty for a database that belongs to no shard."""
    member: str
    url: str
    """The agent's address; empty if it gives none."""
    database: str
    """The agent's name for the database."""
    role: str
    """`primary`, `replica` or `unknown`, as its server reported when this was written."""
    host: str
    """The agent's name."""
    region: str
    cluster: str
    at: float
    """Wall-clock seconds by its agent's clock when this was written."""
    n: int
    """The fleet's revision that its agent had applied then."""
    version: str
    """The agent's version."""
    system: str = ""
    """What all servers of its cluster share (Postgres's system identifier), as its server
    reported; empty if not reported."""
    rejected: tuple[str, ...] = ()
    """Items of the fleet that its agent could not apply; the first few."""
    rejected_total: int = 0

    @property
    def key(self) -> str:
        """With its agent's name, where that is another word: two agents that call their members
        alike, as two with the same settings may, do not write over each other."""
        by = "" if self.host == self.member else f"@{quoted(self.host)}"
        return f"{shard_members(self.shard)}{quoted(self.member)}{by}"

    @property
    def place(self) -> Place:
        return Place(self.region, self.cluster, self.shard, self.host, self.database)


def member_bytes(member: FleetMember) -> bytes:
    document = asdict(member)
    del document["shard"], document["member"]  # The key says them.
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_member(key: str, raw: bytes) -> FleetMember:
    """ValueError if it is not a member. Unknown fields are ignored."""
    shard, slash, name = key.removeprefix(MEMBERS).partition("/")
    member = name.partition("@")[0]
    if not key.startswith(MEMBERS) or not slash or not member or "/" in name:
        raise ValueError(f"{key!r} is not the key of a member")
    document = _object(key, raw)
    role = _text(key, document, "role")
    return FleetMember(
        shard=unquoted(shard),
        member=unquoted(member),
        url=_text(key, document, "url"),
        database=_text(key, document, "database"),
        role=role if role in ROLES else "unknown",
        host=_text(key, document, "host"),
        region=_text(key, document, "region"),
        cluster=_text(key, document, "cluster"),
        at=_number(key, document, "at"),
        n=int(_number(key, document, "n")),
        version=_text(key, document, "version"),
        system=_text(key, document, "system"),
        rejected=_texts(document, "rejected"),
        rejected_total=int(_number(key, document, "rejected_total")),
    )


def newest_of_each(members: Iterable[FleetMember]) -> dict[str, FleetMember]:
    """Of a shard, by name: of two that are called alike the one that was written last."""
    return {one.member: one for one in sorted(members, key=lambda one: (one.at, one.host))}


def called_alike(members: Iterable[FleetMember]) -> dict[str, tuple[str, ...]]:
    """Names of a shard that agents of several hosts use, with those hosts."""
    hosts: dict[str, set[str]] = {}
    for one in members:
        hosts.setdefault(one.member, set()).add(one.host)
    return {name: tuple(sorted(by)) for name, by in hosts.items() if len(by) > 1}


def read_members(entries: Iterable[Entry]) -> list[FleetMember]:
    """Those that can be read, of the entries that are members."""
    found = []
    for entry in entries:
        if entry.key.startswith(MEMBERS):
            try:
                found.append(read_member(entry.key, entry.value))
            except ValueError:
                continue  # A newer agent's, or a stranger's: the others stand.
    return found


def _object(key: str, raw: bytes) -> Mapping[str, Any]:
    if len(raw) > MAX_MEMBER_BYTES:
        raise ValueError(f"{key}: {len(raw)} bytes; a member has at most {MAX_MEMBER_BYTES}")
    try:
        return read_object(raw)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _text(key: str, document: Mapping[str, Any], name: str) -> str:
    value = document.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"{key}: {name} must be text of at most {MAX_TEXT_CHARS} characters")
    return value


def _texts(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = document.get(name)
    texts = value[:MAX_REJECTED] if isinstance(value, list) else ()
    return tuple(one[:MAX_TEXT_CHARS] for one in texts if isinstance(one, str))


def _number(key: str, document: Mapping[str, Any], name: str) -> float:
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise ValueError(f"{key}: {name} must be a number")
    return value
