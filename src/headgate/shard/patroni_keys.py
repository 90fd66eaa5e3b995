"""A Patroni cluster, from the keys that Patroni itself keeps in etcd.   entries ──► PatroniCluster

leader        name of the member that holds the lock (lease)
members/NAME  JSON: conn_url, role, state, timeline … (lease)
config        JSON: pause, standby_cluster …
initialize    Postgres's system identifier

Below <namespace>/<scope>/, in a Citus cluster below <namespace>/<scope>/<group>/. As Patroni 2 to 4
write them: 3.x says `master`, 4.x `primary`. Conn-URLs may have passwords in them: only the host
is taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from headgate.base.keyvalue import Entry, read_object
from headgate.shard.topology import Role

LEADER, MEMBERS, CONFIG, INITIALIZE = "leader", "members/", "config", "initialize"
MAX_PATRONI_MEMBERS = 256
MAX_NAME_CHARS = 255
MAX_TIMELINE = 2**32 - 1
PRIMARIES = frozenset({"primary", "master", "promoted"})
REPLICAS = frozenset({"replica", "standby_leader", "sync_standby", "quorum_standby", "demoted"})


@dataclass(frozen=True, slots=True)
class PatroniMember:
    name: str
    host: str
    """Where its server listens, as Patroni tells other members; empty if it does not."""
    role: Role | None
    """None: neither, for example while it is being created."""
    role_word: str
    """Patroni's word: `standby_leader` says more than replica."""
    state: str
    """Such as `running`, `streaming` or `creating replica`."""
    timeline: int | None


@dataclass(frozen=True, slots=True)
class PatroniCluster:
    scope: str
    lock: str
    """Name of the member with the leader lock; empty: none."""
    members: tuple[PatroniMember, ...]
    """By name."""
    system_id: str = ""
    paused: bool = False
    follows_elsewhere: bool = False
    """A standby cluster: the member with the lock is a replica of another cluster's server."""
    unreadable: tuple[str, ...] = ()
    """Keys whose values could not be read."""

    def member(self, name: str) -> PatroniMember | None:
        return next((member for member in self.members if member.name == name), None)

    @property
    def leader(self) -> str:
        """Whose server is the primary; empty: nobody's, as far as Patroni says.

        The lock is what counts, not what members say of themselves: one that was cut off goes on
        saying it. The lock's holder may say that it is no primary, or not yet.
        """
        holder = self.member(self.lock)
        if self.follows_elsewhere or (holder is not None and holder.role is Role.REPLICA):
            return ""
        return self.lock

    def role_of(self, name: str) -> Role | None:
        """None if unknown: no member of that name, or no leader."""
        member = self.member(name)
        if member is None:
            return None
        if self.leader == name:
            return Role.PRIMARY
        # Without a leader, any of them may be about to become one.
        return Role.REPLICA if self.leader or self.follows_elsewhere else None

    def words(self) -> str:
        """On one line: who leads, and what is out of the ordinary."""
        return "; ".join([self._leading(), *self._unusual()])

    def _leading(self) -> str:
        holder = self.member(self.lock)
        if not self.lock:
            return "nobody leads"
        if not self.leader:
            word = holder.role_word if holder else "standby leader"
            return f"{self.lock} has the leader lock as {word}: this cluster has no primary"
        if holder is None:
            return f"{self.lock} has the leader lock but is not among the members"
        term = "" if holder.timeline is None else f", timeline {holder.timeline}"
        return f"{self.lock} leads{term}"

    def _unusual(self) -> list[str]:
        ill = [
            f"{m.name} is {m.state}"
            for m in self.members
            if m.state not in ("running", "streaming")
        ]
        odd = ["paused: no automatic failover"] if self.paused else []
        unread = [f"{len(self.unreadable)} keys cannot be read"] if self.unreadable else []
        return [*ill, *odd, *unread]


def read_cluster(scope: str, entries: Iterable[Entry]) -> PatroniCluster:
    """From the entries below `scope`/. Keys that cannot be read are listed; the rest is used."""
    below = f"{scope}/"
    values = {e.key.removeprefix(below): e.value for e in entries if e.key.startswith(below)}
    reader = _KeyReader(values)
    config = reader.document(CONFIG)
    return PatroniCluster(
        scope=scope,
        lock=reader.text(LEADER),
        members=reader.members(),
        system_id=reader.text(INITIALIZE),
        paused=config.get("pause") is True,
        follows_elsewhere=isinstance(config.get("standby_cluster"), Mapping)
        and bool(config["standby_cluster"]),
        unreadable=tuple(sorted(reader.unreadable)),
    )


class _KeyReader:
    def __init__(self, values: Mapping[str, bytes]) -> None:
        self._values = values
        self.unreadable: set[str] = set()

    def text(self, key: str) -> str:
        try:
            text = self._values.get(key, b"").decode()
        except UnicodeDecodeError:
            text = ""
            self.unreadable.add(key)
        return text if len(text) <= MAX_NAME_CHARS else ""

    def document(self, key: str) -> Mapping[str, Any]:
        if not self._values.get(key):
            return {}
        try:
            return read_object(self._values[key])
        except ValueError:
            self.unreadable.add(key)
            return {}

    def members(self) -> tuple[PatroniMember, ...]:
        below = {key: key.removeprefix(MEMBERS) for key in self._values if key.startswith(MEMBERS)}
        names = sorted(
            key
            for key, name in below.items()
            if 0 < len(name) <= MAX_NAME_CHARS and "/" not in name
        )
        return tuple(self._member(key) for key in names[:MAX_PATRONI_MEMBERS])

    def _member(self, key: str) -> PatroniMember:
        name, raw = key.removeprefix(MEMBERS), self._values[key]
        # Before JSON, it was the URL alone; Patroni still reads that.
        document = {"conn_url": self.text(key)} if raw[:8] == b"postgres" else self.document(key)
        word = _word(document.get("role"))
        timeline = document.get("timeline")
        return PatroniMember(
            name=name,
            host=_host(document.get("conn_url"), document.get("conn_kwargs")),
            role=_role(word),
            role_word=word or "unknown",
            state=_word(document.get("state")) or "unknown",
            timeline=timeline if _is_timeline(timeline) else None,
        )


def _role(word: str) -> Role | None:
    if word in PRIMARIES:
        return Role.PRIMARY
    return Role.REPLICA if word in REPLICAS else None


def _word(value: object) -> str:
    return value[:64] if isinstance(value, str) else ""


def _host(conn_url: object, conn_kwargs: object) -> str:
    if isinstance(conn_kwargs, Mapping) and not conn_url:
        return _word(conn_kwargs.get("host"))
    try:
        return (urlsplit(conn_url).hostname or "") if isinstance(conn_url, str) else ""
    except ValueError:
        return ""


def _is_timeline(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TIMELINE
