"""What agents write into the fleet's store.   FleetMember ◄──► members/<s>/<m>
                                           ShardTold   ◄──► shards/<shard>

A member's own agent writes it under a lease. It says where the agent is and what role its server
had; other agents query that agent to learn whether this is still true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from headgate.base.keyvalue import Entry, read_object
from headgate.changes.model import MEMBERS, SHARDS, quoted, shard_members, unquoted
from headgate.changes.reach import EVERYWHERE, Level, Place, Reach
from headgate.changes.state import Reached

T = TypeVar("T")
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


# --- what a shard reports ------------------------------------------------------------------------

# The state of a shard, as its primary's agent reports it.   ShardTold ◄──► shards/<shard>
#
# Readers may be older or newer than writers: an unknown field is ignored, a missing one has its
# default, and an entry that cannot be read at all is a ValueError.

MAX_TOLD_BYTES = 64 * 1024
MAX_METRICS_TOLD = 40
MAX_MEMBERS_TOLD = 40
MAX_DETAIL_CHARS = 200

HEALTHY, UNHEALTHY, IDLE = "healthy", "unhealthy", "idle"
STATES = (HEALTHY, UNHEALTHY, IDLE)
PASSING = frozenset({"healthy", "last_value", "ignored", "exempted", "idle"})
"""States of a metric that reject no check."""


@dataclass(frozen=True, slots=True)
class MetricTold:
    metric: str
    scope: str
    """`host`: the primary's own value; `shard`: the rollup."""
    state: str
    """As a check sees it: `healthy`, `breached`, `unavailable` …; or `idle`: no client checks."""
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    since: float = 0.0
    """Wall-clock seconds since when it has this state."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemberTold:
    member: str
    host: str = ""
    """Name of its agent."""
    role: str = ""
    """`primary` or `replica`, as its server reports; empty if unknown."""
    url: str = ""
    lag_s: float | None = None
    n: int | None = None
    """The fleet's revision that its agent has applied; None: not reported."""
    source: str = ""
    """Where its agent got that revision from."""
    stale_since: float | None = None
    """Wall-clock seconds since when its agent has no contact with the fleet."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ShardTold:
    shard: str
    region: str
    cluster: str
    url: str
    """Address of the agent that reports."""
    agent: str
    state: str
    """One of STATES."""
    since: float
    """Wall-clock seconds since when the shard has this state."""
    at: float
    """Wall-clock seconds of this report."""
    n: int = 0
    rules: int = 0
    """Rules in force at the reporting agent: the fleet's and its own."""
    checks: int = 0
    """Checks that it answered in the last minute."""
    rejected: float | None = None
    """Share of those that were rejected; None: there were none."""
    problem: str = ""
    """Why no agent can answer for the shard, if so."""
    hosts: tuple[str, ...] = ()
    """Agents of its members, by name."""
    metrics: tuple[MetricTold, ...] = ()
    members: tuple[MemberTold, ...] = ()

    @property
    def healthy(self) -> bool:
        """Nothing is known to be wrong: an idle shard is not unhealthy."""
        return self.state != UNHEALTHY

    def sign(self) -> tuple[object, ...]:
        """Changes when other agents need a new report. A value that only moves is no change. Nor
        is the fleet's revision: each agent registers that itself, so that one change of the fleet
        does not make ten thousand shards report."""
        return (
            self.state,
            self.problem,
            self.url,
            self.hosts,
            _step(self.rejected),
            tuple((one.metric, one.scope, one.state) for one in self.metrics),
            tuple(
                (one.member, one.role, one.source, one.stale_since is None, one.problem)
                for one in self.members
            ),
        )


def told_bytes(told: ShardTold) -> bytes:
    document = {**_fields(told), "healthy": told.healthy}
    document["metrics"] = [_fields(one) for one in told.metrics[:MAX_METRICS_TOLD]]
    document["members"] = [_fields(one) for one in told.members[:MAX_MEMBERS_TOLD]]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_told(raw: bytes) -> ShardTold:
    """ValueError where it is none."""
    if len(raw) > MAX_TOLD_BYTES:
        raise ValueError(f"has {len(raw)} bytes, must have at most {MAX_TOLD_BYTES}")
    document = read_object(raw)
    shard, state = _text_or_empty(document, "shard"), _text_or_empty(document, "state")
    if not shard or state not in STATES:
        raise ValueError(f"is not a shard's report: shard is {shard!r}, state is {state!r}")
    return _read(
        ShardTold,
        document,
        hosts=tuple(one for one in _list(document, "hosts") if isinstance(one, str)),
        metrics=tuple(
            _read(MetricTold, one) for one in _objects(document, "metrics", MAX_METRICS_TOLD)
        ),
        members=tuple(
            _read(MemberTold, one) for one in _objects(document, "members", MAX_MEMBERS_TOLD)
        ),
    )


def clipped(text: str) -> str:
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[: MAX_DETAIL_CHARS - 1]}…"


def _step(share: float | None) -> int | None:
    """A share as a few steps: none, some, a quarter, half, most, all."""
    return None if share is None else sum(share > limit for limit in (0.0, 0.05, 0.25, 0.5, 0.9))


def _fields(value: ShardTold | MetricTold | MemberTold) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


# --- fields of another agent's document --------------------------------------------------------


def _read(kind: type[T], document: Mapping[str, Any], **more: object) -> T:
    """Each field by its type; `more`: those that are lists."""
    return kind(**{name: read(document, name) for name, read in _PLAIN[kind]}, **more)


def _text_or_empty(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return clipped(value) if isinstance(value, str) else ""


def _number_or_none(document: Mapping[str, Any], key: str) -> float | None:
    """A finite number. NaN and anything else are None: not reported, never 0."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if usable else None


_Reader = Callable[[Mapping[str, Any], str], Any]
_READERS: Mapping[str, _Reader] = {
    "str": _text_or_empty,
    "float": lambda document, key: _number_or_none(document, key) or 0.0,
    "float | None": _number_or_none,
    "int": lambda document, key: _count(document, key) or 0,
    "int | None": _count,
}
_TOLD: Sequence[type[Any]] = (ShardTold, MetricTold, MemberTold)
_PLAIN: Mapping[type[Any], Sequence[tuple[str, _Reader]]] = {
    kind: [(one.name, _READERS[str(one.type)]) for one in fields(kind) if one.type in _READERS]
    for kind in _TOLD
}


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _objects(document: Mapping[str, Any], key: str, most: int) -> Iterator[Mapping[str, Any]]:
    return (one for one in _list(document, key)[:most] if isinstance(one, Mapping))


# --- what a reach matches ------------------------------------------------------------------------

# Which agents a reach matches, from what agents report.   members/, shards/ ──► Reached
#
# Other agents write both, perhaps of other versions: entries that cannot be read are skipped and
# counted.

MAX_NAMES = 10


def prefixes_of(reaches: Iterable[Reach]) -> tuple[str, ...]:
    """Where to look for them: a shard's pattern says how its keys begin."""
    beginnings = {
        reach.pattern.partition("*")[0] if reach.level is Level.SHARD else "" for reach in reaches
    }
    wanted = {""} if "" in beginnings else beginnings
    return tuple(under + quoted(begins) for begins in sorted(wanted) for under in (SHARDS, MEMBERS))


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
            document = read_object(entry.value)
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


def _places(key: str, document: Mapping[str, Any]) -> Iterator[Place]:
    """Of a shard those of its hosts, and one without; of a member its own."""
    section, _, rest = key.partition("/")
    shard_piece, _, member = rest.partition("/")
    where = {name: _text_of(document.get(name)) for name in ("region", "cluster")}
    shard = _text_of(document.get("shard")) or unquoted(shard_piece)
    if f"{section}/" == MEMBERS:
        host, database = _text_of(document.get("host")), _text_of(document.get("database"))
        yield Place(**where, shard=shard, host=host or unquoted(member), database=database)
        return
    yield Place(**where, shard=shard)
    hosts = document.get("hosts")
    for host in hosts if isinstance(hosts, list) else ():
        if name := _text_of(host.get("host") if isinstance(host, Mapping) else host):
            yield Place(**where, shard=shard, host=name)


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""
