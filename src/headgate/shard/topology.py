"""Who is who in a shard.   role probe ──► RoleSeen ──report──► standpoint ──► may we roll up?

A shard is one replication topology: a primary and the servers that follow it, directly or
in a cascade. Each agent learns its own server's role from that server and nothing else; other
members report their own. Pure: the caller's clock gives the ages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from headgate.check.model import Activity
from headgate.metrics.samples import Absent, Cause, Reading

MAX_CASCADE = 16
NOTHING: Mapping[str, str] = MappingProxyType({})


class Role(Enum):
    PRIMARY = "primary"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True)
class Downstream:
    """A replica as its upstream server lists it."""

    name: str
    """application_name or report_host: what the replica calls itself; may be empty."""
    host: str
    """Address it connects from; empty for a Unix socket."""
    port: int | None = None
    """Port that it listens on, if the server knows it (report_port)."""
    bytes_behind: int | None = None
    """Bytes of log that it has not replayed yet, if the server knows."""
    lag_s: float | None = None
    """Age of that log, by the server's own log positions."""
    server_id: str = ""
    """As in RoleSeen, if its upstream knows it (MySQL, MariaDB)."""


@dataclass(frozen=True, slots=True)
class RoleSeen:
    """A server's role, as the server itself tells it."""

    role: Role
    taken_at: float
    """Monotonic seconds; the start of the probe."""
    cluster: str = ""
    """What all members share: Postgres's system identifier; empty if there is none."""
    term: int | None = None
    """Grows with each promotion: Postgres's timeline; None if the engine has none."""
    server_id: str = ""
    upstream_id: str = ""
    """`server_id` of the server that this one replicates from (MySQL, MariaDB)."""
    upstream: str = ""
    """host:port that it replicates from; empty on a primary."""
    downstream: tuple[Downstream, ...] = ()
    clock_ahead_s: float | None = None
    """The server's wall clock minus the agent's."""
    port: int | None = None
    """Address that it listens on, by its own settings; None if not queried."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """One member, as its own agent reports it. `at` and the ages are the receiver's time."""

    name: str
    at: float
    """Monotonic seconds at which the role was known to be true."""
    role: RoleSeen | None
    role_unavailable: Absent | None = None
    """Why there is no role, if there is none."""
    readings: Mapping[str, Reading] = field(default_factory=lambda: MappingProxyType({}))
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    activity: Activity = Activity.AWAKE
    checked_s_ago: float | None = None
    """Seconds since a client last checked at that member's agent; None: not recently."""
    url: str = ""
    """Address of its agent."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the roller-up knows it: its newest report, or why there is none."""

    name: str
    url: str
    """Empty for a database of this agent."""
    local: bool
    report: MemberReport | None = None
    lost: Absent | None = None
    """Set while its agent does not answer."""
    lost_since: float | None = None
    joined_at: float = 0.0
    """Since when it is a member (again): a grace period begins here."""

    def role_of(self, *, now: float, max_age_s: float) -> Role | None:
        """Its role, if that was said recently enough to count."""
        if self.lost is not None or self.report is None or self.report.role is None:
            return None
        seen = self.report.role
        return seen.role if now - seen.taken_at <= max_age_s else None


# --- standpoint: what this agent may say for the shard --------------------------------------


@dataclass(frozen=True, slots=True)
class Leading:
    """The shard's primary is ours."""

    primary: str
    term: int | None
    until: float
    """Monotonic seconds: our server's role has to be confirmed by then."""


@dataclass(frozen=True, slots=True)
class Following:
    """Another agent's server is the primary."""

    primary: str
    url: str


@dataclass(frozen=True, slots=True)
class Unled:
    """Nobody may speak for the shard now; `absent` says why."""

    absent: Absent


Standpoint = Leading | Following | Unled


def standpoint(members: Sequence[Member], *, now: float, max_age_s: float) -> Standpoint:
    """Two primaries reject all checks of the shard, whichever is right; no primary does so too."""
    primaries = [
        member for member in members if member.role_of(now=now, max_age_s=max_age_s) is Role.PRIMARY
    ]
    if len(primaries) > 1:
        told = " and ".join(_called(member) for member in primaries)
        detail = f"{told} both say that they are the primary: demote or stop one of them"
        return Unled(Absent(Cause.SPLIT_BRAIN, detail, now))
    if not primaries:
        told = ", ".join(f"{member.name}: {_why_no_primary(member)}" for member in members)
        detail = f"no member is known to be the primary ({told})"
        return Unled(
            Absent(Cause.NO_PRIMARY, detail if members else "the shard has no members", now)
        )
    [primary] = primaries
    assert primary.report is not None and primary.report.role is not None
    if not primary.local:
        return Following(primary.name, primary.report.url or primary.url)
    role = primary.report.role
    return Leading(primary.name, role.term, role.taken_at + max_age_s)


def _called(member: Member) -> str:
    term = member.report.role.term if member.report and member.report.role else None
    return member.name if term is None else f"{member.name} (timeline {term})"


def _why_no_primary(member: Member) -> str:
    if member.lost is not None:
        return member.lost.detail
    if member.report is None:
        return "no report yet"
    if member.report.role is None:
        absent = member.report.role_unavailable
        return absent.detail if absent else "role unknown"
    return member.report.role.role.value


# --- does it follow our primary? -------------------------------------------------------------


def not_following(
    replica: RoleSeen, primary: RoleSeen, by_server_id: Mapping[str, RoleSeen]
) -> str | None:
    """Why a replica does not follow `primary`; None where it does, as far as servers tell.

    A replica that streams happily from a primary which is no longer ours is current only
    with the past.
    """
    if replica.cluster and primary.cluster and replica.cluster != primary.cluster:
        return f"it belongs to another cluster ({replica.cluster}, not {primary.cluster})"
    if replica.term is not None and primary.term is not None and replica.term != primary.term:
        return f"it is on timeline {replica.term}, the primary on {primary.term}"
    if not primary.server_id or not replica.upstream_id:
        return None
    return _off_the_chain(replica, primary, by_server_id)


def _off_the_chain(
    replica: RoleSeen, primary: RoleSeen, by_server_id: Mapping[str, RoleSeen]
) -> str | None:
    upstream_id = replica.upstream_id
    for _ in range(MAX_CASCADE):
        if upstream_id == primary.server_id:
            return None
        above = by_server_id.get(upstream_id)
        if above is None or not above.upstream_id:
            return f"it replicates from server {upstream_id}, not from {primary.server_id}"
        upstream_id = above.upstream_id
    return f"it replicates in a circle, through server {upstream_id}"
