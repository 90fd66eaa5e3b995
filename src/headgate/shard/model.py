"""What agents of one shard say to each other, and what operators set for its members.

Also what each of an active-passive pair answers for (ServedDatabase).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from headgate.check.model import Activity
from headgate.metrics.samples import Absent, Cause, Instant, Reading
from headgate.shard.topology import (
    Downstream,
    Leading,
    Member,
    MemberReport,
    Role,
    RoleSeen,
    Standpoint,
    Unled,
)

MAX_SKIP_S = 7 * 86400.0
MAX_HANDOVER_S = 3600.0
MAX_MEMBERS = 256


@dataclass(frozen=True, slots=True)
class Pull:
    """The request of a primary's agent to a member's agent, about once per collect interval.

    The member may delay the answer for up to `wait_s`, until a metric changes between healthy and
    unhealthy. So a breach arrives at once, with only one message per interval.
    """

    shard: str
    database: str
    """The name of the member's database at its agent."""
    sender: str
    """Name of the member that sends the request."""
    url: str
    """Address of the agent that sends the request; empty if it gives none."""
    role: RoleSeen | None
    activity: Activity
    wait_s: float
    clock_ahead_s: float | None = None
    """The member's database clock minus the sender's, as last measured; None for not yet."""
    clock_error_s: float = 0.0
    """Error bound: half the round trip of the measurement."""


class Pulled(NamedTuple):
    """What a pull brought: the report, dated by our own clock, and how the clocks compare."""

    report: MemberReport
    wall_ahead_s: float
    """The other agent's wall clock minus ours, at the middle of the exchange."""
    error_s: float
    """Error bound: half the round trip, without the time that the answer was delayed."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A member that an operator skips, for a while and for a reason."""

    shard: str
    member: str
    until_wall_s: float
    who: str
    reason: str
    set_wall_s: float
    revision: int = 0
    ends_mono_s: float = math.inf
    """Also ends at this monotonic time: setting the wall clock back does not lengthen it."""

    def left_s(self, now: Instant) -> float:
        return min(self.until_wall_s - now.wall_s, self.ends_mono_s - now.mono_s)

    def holds(self, now: Instant) -> bool:
        return self.left_s(now) > 0


@dataclass(frozen=True, slots=True)
class Handover:
    """A planned switchover that an operator announced: the primary's agent stops answering for
    the shard before its server stops being the primary, so that no answer comes in between."""

    shard: str
    member: str
    """The primary that is about to step down."""
    term: int | None
    """The primary's term then, if its engine has terms."""
    until_mono_s: float
    until_wall_s: float
    """As stored and shown."""
    set_mono_s: float
    """A role that was read before this time does not count."""
    who: str
    reason: str

    def holds(self, now_mono_s: float) -> bool:
        return now_mono_s < self.until_mono_s

    def is_done(self, role: RoleSeen | None) -> bool:
        """Whether the member has stepped down since, or was promoted again."""
        if role is None or role.taken_at < self.set_mono_s:
            return False
        promoted = None not in (role.term, self.term) and role.term != self.term
        return role.role is Role.REPLICA or promoted

    def holds_back(self, point: Standpoint, now: Instant) -> Unled | None:
        """Our server is about to step down: from the announcement on nobody speaks by its view."""
        if not isinstance(point, Leading) or point.primary != self.member:
            return None
        if not self.holds(now.mono_s):
            return None
        left_s = self.until_mono_s - now.mono_s
        why = f" ({self.reason})" if self.reason else ""
        detail = (
            f"{self.member} is about to step down{why}, announced by {self.who}; without another "
            f"primary this ends in {left_s:.0f} s, or with `headgate shard take-back`"
        )
        return Unled(Absent(Cause.HANDING_OVER, detail, now.mono_s))


# --- what is shown of it -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberView:
    member: Member
    problem: str
    """Why it cannot be counted now: unreachable, or follows another primary; empty: it can."""
    skip: Skip | None
    readings: Mapping[str, Reading]
    """The readings that go into the rollup."""
    skipped_metrics: Mapping[str, str]
    """Metric → why this member is skipped in it."""
    skip_kinds: Mapping[str, str]
    """The same, as one of rollup.SkipKind."""
    hopeless: tuple[str, ...]
    """Metrics in which the agent skips it, because throttling does not help it."""
    clock_ahead_s: float | None
    """Its database's clock minus the primary's; None where it has not been measured."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as one agent sees it, for one of its own databases."""

    shard: str
    database: str
    member: str
    """This database's own name in the shard."""
    standpoint: Standpoint
    warming_up: Absent | None
    """It leads, but not all members have reported yet."""
    members: tuple[MemberView, ...]
    unwatched: tuple[Downstream, ...]
    """Replicas that the primary's server lists but that no agent reports for."""
    collect_interval_s: float
    messages_total: int
    """Requests to other agents for this shard."""
    told: tuple[str, ...] = ()
    """What Patroni and the fleet's store report about it, as text."""


# --- active-passive pairs ------------------------------------------------------------------------

# What an agent answers for, so that those who share an election notice that they should not.
#
#     settings, servers' own words ──► ServedDatabase by database ──why_apart──► "" or why not
#
# Of an active–passive pair each sends the other's clients to itself: they have to mean the same
# databases by the same names. A copied settings file is all it takes for two that do not.

MAX_TEXT_CHARS = 512
LOCAL = "local@"
"""Prefix of the host, in the target of a database that is reached through a local address."""


@dataclass(frozen=True, slots=True)
class ServedDatabase:
    """One database. Each part is empty where it is not known."""

    member: str = ""
    """shard/member, from the settings."""
    server: str = ""
    """The server's or its cluster's own identifier, as measured."""
    target: str = ""
    """host:port/database, from the settings."""


Answers = Mapping[str, ServedDatabase]
"""By the database name that clients use."""


def why_apart(ours: Answers, theirs: Answers) -> str:
    """Why checks about ours may not be sent there; empty: they may, as far as anybody can tell."""
    for name, own in ours.items():
        other = theirs.get(name)
        if other is None:
            return f"it has no database {name}"
        if own.member and other.member and own.member != other.member:
            return f"its {name} is {other.member}, this agent's is {own.member}"
        if own.server and other.server:
            if own.server != other.server:
                return f"its {name} is server {other.server}, this agent's is {own.server}"
        elif _other_target(own.target, other.target):
            return f"its {name} is at {other.target}, this agent's is at {own.target}"
    return ""


def _other_target(ours: str, theirs: str) -> bool:
    """A server may be near one agent and far from the other: such names cannot be compared."""
    if not ours or not theirs or ours.startswith(LOCAL) is not theirs.startswith(LOCAL):
        return False
    return ours != theirs


def answers_doc(answers: Answers) -> dict[str, dict[str, str]]:
    return {
        name: {key: text for key, text in asdict(one).items() if text}
        for name, one in sorted(answers.items())
    }


def read_answers(raw: object) -> Answers:
    """What cannot be read says nothing."""
    if not isinstance(raw, Mapping):
        return {}
    return {
        name: ServedDatabase(*(_text(one, key) for key in ("member", "server", "target")))
        for name, one in raw.items()
        if isinstance(name, str) and isinstance(one, Mapping)
    }


def _text(document: Mapping[str, Any], key: str) -> str:
    text = document.get(key, "")
    return text[:MAX_TEXT_CHARS] if isinstance(text, str) else ""
