"""A Patroni cluster, from the keys that Patroni itself keeps in etcd.   entries ──► PatroniCluster

leader        name of the member that holds the lock (lease)
members/NAME  JSON: conn_url, api_url, role, state, timeline, tags … (lease)
config        JSON: pause, standby_cluster …
sync          JSON: leader, sync_standby
initialize    Postgres's system identifier

Below <namespace>/<scope>/, in a Citus cluster below <namespace>/<scope>/<group>/. As Patroni 2 to 4
write them: 3.x says `master`, 4.x `primary`. Conn-URLs may have passwords in them: only host and
port are taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from headgate.base.keyvalue import Entry, read_object
from headgate.shard.topology import Role

LEADER, MEMBERS, CONFIG, SYNC, INITIALIZE = "leader", "members/", "config", "sync", "initialize"
MAX_PATRONI_MEMBERS = 256
MAX_NAME_CHARS = 255
MAX_PORT = 2**16 - 1
MAX_TIMELINE = 2**32 - 1
PRIMARIES = frozenset({"primary", "master", "promoted"})
REPLICAS = frozenset({"replica", "standby_leader", "sync_standby", "quorum_standby", "demoted"})


@dataclass(frozen=True, slots=True)
class PatroniMember:
    name: str
    host: str
    """Where its server listens, as Patroni tells other members; empty if it does not."""
    port: int | None
    role: Role | None
    """None: neither, for example while it is being created."""
    role_word: str
    """Patroni's word: `standby_leader` says more than replica."""
    state: str
    """Such as `running`, `streaming` or `creating replica`."""
    timeline: int | None
    tags: frozenset[str] = frozenset()
    """Tags that are switched on: nofailover, noloadbalance, clonefrom, nosync …"""


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
    sync_standbys: tuple[str, ...] = ()
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
    reader = _Reader(values)
    config = reader.document(CONFIG)
    return PatroniCluster(
        scope=scope,
        lock=reader.text(LEADER),
        members=reader.members(),
        system_id=reader.text(INITIALIZE),
        paused=config.get("pause") is True,
        follows_elsewhere=isinstance(config.get("standby_cluster"), Mapping)
        and bool(config["standby_cluster"]),
        sync_standbys=_names(reader.document(SYNC).get("sync_standby")),
        unreadable=tuple(sorted(reader.unreadable)),
    )


class _Reader:
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
            if key != SYNC or self._values[key].strip() != b"null":
                self.unreadable.add(key)
            return {}

    def members(self) -> tuple[PatroniMember, ...]:
        names = sorted(key for key in self._values if _is_member(key))
        return tuple(self._member(key) for key in names[:MAX_PATRONI_MEMBERS])

    def _member(self, key: str) -> PatroniMember:
        name, raw = key.removeprefix(MEMBERS), self._values[key]
        # Before JSON, it was the URL alone; Patroni still reads that.
        document = {"conn_url": self.text(key)} if raw[:8] == b"postgres" else self.document(key)
        host, port = _address(document.get("conn_url"), document.get("conn_kwargs"))
        word = _word(document.get("role"))
        timeline = document.get("timeline")
        return PatroniMember(
            name=name,
            host=host,
            port=port,
            role=_role(word),
            role_word=word or "unknown",
            state=_word(document.get("state")) or "unknown",
            timeline=timeline if _is_below(timeline, MAX_TIMELINE + 1) else None,
            tags=_tags(document.get("tags")),
        )


def _is_member(key: str) -> bool:
    name = key.removeprefix(MEMBERS)
    return key.startswith(MEMBERS) and 0 < len(name) <= MAX_NAME_CHARS and "/" not in name


def _role(word: str) -> Role | None:
    if word in PRIMARIES:
        return Role.PRIMARY
    return Role.REPLICA if word in REPLICAS else None


def _word(value: object) -> str:
    return value[:64] if isinstance(value, str) else ""


def _address(conn_url: object, conn_kwargs: object) -> tuple[str, int | None]:
    if isinstance(conn_kwargs, Mapping) and not conn_url:
        return _word(conn_kwargs.get("host")), _port(conn_kwargs.get("port"))
    if not isinstance(conn_url, str):
        return "", None
    try:
        parts = urlsplit(conn_url)
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None


def _port(value: object) -> int | None:
    """A number or a text, as libpq takes both."""
    text = str(value) if isinstance(value, str) or _is_below(value, MAX_PORT + 1) else ""
    is_one = text.isdecimal() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT
    return int(text) if is_one else None


def _is_below(value: object, limit: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < limit


def _names(value: object) -> tuple[str, ...]:
    """Comma-separated; `*` and null for nobody in particular."""
    text = value if isinstance(value, str) else ""
    return tuple(name for part in text.split(",") if (name := part.strip()) not in ("", "*"))


def _tags(value: object) -> frozenset[str]:
    if not isinstance(value, Mapping):
        return frozenset()
    return frozenset(str(name)[:64] for name, is_on in value.items() if is_on is True)
