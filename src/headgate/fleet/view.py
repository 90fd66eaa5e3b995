"""A fleet as people see it: pure, from what its agents report and what its operators set.

    ShardTold, FleetMember ──shard_seen──► ShardSeen, FleetAgent ──┐
    Change ──────────────────────────────► ItemSeen ───────────────┴► FleetPicture ─select─► a page

Reports of agents come late by design (they are spread over the fleet's size). So an agent that has
not reported a new revision yet is pending, and behind only when its time to report is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from operator import attrgetter
from typing import NamedTuple

from headgate.changes.model import Change
from headgate.changes.reach import Level, Place, parse_reach
from headgate.fleet.members import (
    UNHEALTHY,
    FleetMember,
    MemberTold,
    ShardTold,
    called_alike,
    newest_of_each,
)
from headgate.metrics.samples import Instant

MAX_ALIKE_TOLD = 3
MARK_S, MAX_MARKS = 5.0, 80
"""Together more than any grace."""
GRACE_S, SPREADS = 10.0, 4.0
"""How late an agent may report: this long, plus this many times the spread of reports."""


class ShardState(Enum):
    """How a shard is, the worst first: the order that it is shown in."""

    UNHEALTHY = "unhealthy"
    SILENT = "silent"
    """No agent reports its state: no agent, no primary, or no way to the store."""
    STARTING = "starting"
    """Its agents have just registered."""
    HEALTHY = "healthy"
    IDLE = "idle"
    """No client checks, so nothing is measured."""


class AgentProgress(StrEnum):
    """How far an agent has come with what was set for it."""

    CURRENT = "current"
    PENDING = "pending"
    """Its report is not due yet."""
    BEHIND = "behind"
    UNKNOWN = "unknown"
    """It reported no revision at all."""


@dataclass(frozen=True, slots=True)
class FleetAgent:
    """One agent of a database, as the picture has it and as the document sends it."""

    region: str
    cluster: str
    """From the agent's settings."""
    shard: str
    """Empty for a database that belongs to no shard."""
    member: str
    host: str
    """The name of its agent."""
    role: str
    url: str
    lag_s: float | None
    n: int | None
    """The fleet's revision that it has reported; null: none."""
    wanted_n: int
    """The newest revision that applies to it."""
    progress: AgentProgress
    """`current`, `pending` (its report is not due yet), `behind`, or `unknown`."""
    source: str
    """Where it got that revision from, if reported."""
    stale_for_s: float | None
    """How long it has had no contact with the fleet; null: it has, or did not report."""
    registered: bool
    problem: str
    version: str = ""
    """Of Headgate."""
    rejected: tuple[str, ...] = ()
    """Items that it has but could not apply; the first few."""
    rejected_total: int = 0
    """How many such items there are."""


@dataclass(frozen=True, slots=True)
class ShardSeen:
    place: Place
    condition: ShardState
    since: float | None
    """Wall-clock seconds since when; None: not known."""
    told: ShardTold | None
    """As last reported: for a silent shard, the report before that."""
    agents: tuple[FleetAgent, ...]
    clash: str = ""
    """Why it is not one shard, if so."""

    @property
    def behind(self) -> int:
        return sum(agent.progress is AgentProgress.BEHIND for agent in self.agents)

    @property
    def rank(self) -> tuple[int, float, str]:
        """What needs a person first; those that have been so for longest, before others."""
        loud = _LOUD.get(self.condition)
        if loud is not None:
            return loud, self.since or 0.0, self.place.shard
        return (2 if self.behind else 3), 0.0, self.place.shard


_LOUD = {ShardState.UNHEALTHY: 0, ShardState.SILENT: 1}


@dataclass(frozen=True, slots=True)
class ItemSeen:
    item: Change
    ended: bool
    """Removed, lifted or expired: shown for a while, and in force nowhere."""


@dataclass(frozen=True, slots=True)
class FleetCounts:
    shards: int = 0
    """How many shards there are."""
    unhealthy: int = 0
    silent: int = 0
    starting: int = 0
    idle: int = 0
    """Shards that no client checks."""
    healthy: int = 0
    agents: int = 0
    """How many agents there are."""
    current: int = 0
    """Agents with the newest revision."""
    pending: int = 0
    """Agents whose report of the newest revision is not due yet."""
    behind: int = 0
    """Agents with an older revision."""
    unknown: int = 0
    """Agents that reported no revision."""
    stale: int = 0
    """Agents that have lost the fleet's store."""
    rejecting: int = 0
    """Agents that could not apply what they have."""
    shardless: int = 0
    """Databases that belong to no shard: registered, but their health is not reported."""


@dataclass(frozen=True, slots=True)
class FleetPicture:
    n: int | None
    """Of the fleet's head; None: not known, or nothing was ever set."""
    shards: tuple[ShardSeen, ...] = ()
    """In the order of `rank`."""
    shardless: tuple[FleetAgent, ...] = ()
    items: tuple[ItemSeen, ...] = ()
    """The newest first."""
    counts: FleetCounts = FleetCounts()
    behind: tuple[FleetAgent, ...] = ()
    """Those furthest behind first."""
    unreadable: int = 0
    """Entries of the store that could not be read: of a newer version, or not ours."""


@dataclass(frozen=True, slots=True)
class StoreLink:
    """State of the showing agent's connection to the fleet's store."""

    source: str
    revision: int
    stale_since_wall_s: float | None = None
    """Since when there is no contact: what is shown is as of then."""
    fault: str = ""
    went_back: bool = False
    """The store has lost changes: the last good items stay in force."""


def grace_s(spread_s: float) -> float:
    return GRACE_S + SPREADS * spread_s


# --- one shard --------------------------------------------------------------------------------


class SeenRevision(NamedTuple):
    n: int
    seen_at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """The newest revision that applies to an agent, and since when it is known here; and those
    before it: an agent that is behind stays so when there is something still newer."""

    n: int = 0
    seen_at: float = 0.0
    """Monotonic seconds."""
    before: tuple[SeenRevision, ...] = ()
    """By n. Those of the same moment are one, and the last few minutes are kept."""

    @property
    def marks(self) -> tuple[SeenRevision, ...]:
        return (*self.before, SeenRevision(self.n, self.seen_at))

    def then(self, n: int, seen_at: float) -> WantedRevision:
        if n <= self.n:
            return self
        same = not self.n or seen_at // MARK_S == self.seen_at // MARK_S
        return WantedRevision(n, seen_at, self.before if same else self.marks[-MAX_MARKS:])

    def up_to(self, n: int) -> WantedRevision:
        """What is left where the newest is no longer to be reached."""
        older = [mark for mark in self.marks if mark.n < n]
        reached = next((mark for mark in self.marks if mark.n >= n), SeenRevision(n, self.seen_at))
        return WantedRevision(n, reached.seen_at, tuple(older)) if n else WantedRevision()

    def joined(self, other: WantedRevision) -> WantedRevision:
        if not self.n or not other.n:
            return self if self.n else other
        *before, last = sorted({*self.marks, *other.marks})
        return WantedRevision(last.n, last.seen_at, tuple(before))

    def surpassed_at(self, n: int) -> float:
        """When something newer than n was first seen."""
        return next((mark.seen_at for mark in self.marks if mark.n > n), self.seen_at)


def progress_of(
    n: int | None, wanted: WantedRevision, *, now: float, grace_s: float
) -> AgentProgress:
    if n is None:
        return AgentProgress.UNKNOWN
    if n >= wanted.n:
        return AgentProgress.CURRENT
    return AgentProgress.PENDING if now - wanted.surpassed_at(n) < grace_s else AgentProgress.BEHIND


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one shard."""

    told: ShardTold | None = None
    silent_since: float | None = None
    """Wall-clock seconds since when its report, or all of its agents, are gone."""
    members: tuple[FleetMember, ...] = ()
    first_seen_at: float = 0.0
    """Monotonic seconds."""
    first_seen_wall_s: float = 0.0

    @property
    def mute(self) -> bool:
        return self.told is None or self.silent_since is not None


def shard_seen(
    shard: str, known: Known, wanted: WantedRevision, *, now: Instant, grace_s: float
) -> ShardSeen:
    condition, since = _condition(known, now=now.mono_s, grace_s=grace_s)
    clash = two_clusters(known.members)
    if clash:
        condition = ShardState.UNHEALTHY
    spoken = known.told or next(iter(known.members), None)
    place = Place(spoken.region, spoken.cluster, shard) if spoken else Place(shard=shard)
    agents = [
        _agent(place, told, registered, wanted, now=now, grace_s=grace_s)
        for told, registered in _seats(known)
    ]
    agents.sort(key=lambda agent: agent.role != "primary")
    return ShardSeen(place, condition, since, known.told, tuple(agents), clash)


def _condition(known: Known, *, now: float, grace_s: float) -> tuple[ShardState, float | None]:
    told = known.told
    if told is None and known.silent_since is not None and not known.members:
        return ShardState.SILENT, known.silent_since
    if told is None:
        new = now - known.first_seen_at < grace_s
        return (ShardState.STARTING if new else ShardState.SILENT), known.first_seen_wall_s
    if known.silent_since is not None:
        return ShardState.SILENT, known.silent_since
    return ShardState.UNHEALTHY if told.state == UNHEALTHY else ShardState(told.state), told.since


def _seats(known: Known) -> Iterator[tuple[MemberTold, FleetMember | None]]:
    """Each member as its primary's agent reports it, and as its own agent has registered it. If
    several agents use the same name, the report is matched with the one written last."""
    told = {one.member: one for one in known.told.members} if known.told else {}
    newest, alike = newest_of_each(known.members), called_alike(known.members)
    for member in sorted(told.keys() | newest.keys()):
        yield _warned(told.get(member) or MemberTold(member), alike), newest.get(member)
    for other in sorted(known.members, key=lambda one: one.key):
        if newest[other.member] is not other:
            yield _warned(MemberTold(other.member), alike), other


def two_clusters(members: Iterable[FleetMember]) -> str:
    """That servers of several clusters are registered as one shard: each hides the other's word.
    Engines without a name for it are not compared."""
    names: dict[str, list[str]] = {}
    for one in members:
        if one.system:
            names.setdefault(one.system, []).append(one.member)
    if len(names) < 2:
        return ""
    told = " and ".join(f"{', '.join(by[:3])} ({system})" for system, by in sorted(names.items()))
    return f"two clusters use the name of this shard: {told}; give each its own `shard` name"


def _warned(told: MemberTold, alike: Mapping[str, tuple[str, ...]]) -> MemberTold:
    if told.member not in alike:
        return told
    hosts = " and ".join(alike[told.member][:MAX_ALIKE_TOLD])
    problem = f"agents {hosts} both use the name {told.member}: give each its own `member` name"
    return replace(told, problem=problem)


def agent_alone(
    member: FleetMember, wanted: WantedRevision, *, now: Instant, grace_s: float
) -> FleetAgent:
    """Of a database that belongs to no shard."""
    told = MemberTold(member.member)
    return _agent(member.place, told, member, wanted, now=now, grace_s=grace_s)


def _agent(
    place: Place,
    told: MemberTold,
    registered: FleetMember | None,
    wanted: WantedRevision,
    *,
    now: Instant,
    grace_s: float,
) -> FleetAgent:
    reported = (told.n, registered.n if registered else None)
    n = max((n for n in reported if n is not None), default=None)
    stale_since = told.stale_since
    return FleetAgent(
        region=place.region,
        cluster=place.cluster,
        shard=place.shard,
        member=told.member,
        host=(registered.host if registered else told.host) or told.member,
        # The shard's primary sees a change of a role at once; the registration follows later.
        role=told.role or (registered.role if registered else ""),
        url=(registered.url if registered else "") or told.url,
        lag_s=told.lag_s,
        n=n,
        wanted_n=wanted.n,
        progress=progress_of(n, wanted, now=now.mono_s, grace_s=grace_s),
        source=told.source,
        stale_for_s=None if stale_since is None else max(0.0, now.wall_s - stale_since),
        registered=registered is not None,
        problem=told.problem,
        version=registered.version if registered else "",
        rejected=registered.rejected if registered else (),
        rejected_total=registered.rejected_total if registered else 0,
    )


# --- all of them ------------------------------------------------------------------------------


def picture_of(
    n: int | None,
    shards: Iterable[ShardSeen],
    shardless: Sequence[FleetAgent],
    items: Iterable[ItemSeen],
    *,
    unreadable: int = 0,
) -> FleetPicture:
    ordered = tuple(sorted(shards, key=attrgetter("rank")))
    agents = [agent for shard in ordered for agent in shard.agents]
    agents += shardless
    behind = [agent for agent in agents if agent.progress is AgentProgress.BEHIND]
    return FleetPicture(
        n=n,
        shards=ordered,
        shardless=tuple(shardless),
        items=tuple(sorted(items, key=lambda seen: (seen.ended, -seen.item.n, seen.item.id))),
        counts=_counts(ordered, agents, len(shardless)),
        behind=tuple(sorted(behind, key=lambda agent: (agent.n or 0, agent.shard, agent.member))),
        unreadable=unreadable,
    )


def _counts(
    shards: Sequence[ShardSeen], agents: Sequence[FleetAgent], shardless: int
) -> FleetCounts:
    conditions = [shard.condition for shard in shards]
    progress = [agent.progress for agent in agents]
    return FleetCounts(
        shards=len(shards),
        agents=len(agents),
        stale=sum(agent.stale_for_s is not None for agent in agents),
        rejecting=sum(agent.rejected_total > 0 for agent in agents),
        shardless=shardless,
        **{condition.value: conditions.count(condition) for condition in ShardState},
        **{one.value: progress.count(one) for one in AgentProgress},
    )


# --- a part of it -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """Which shards to show. Patterns as in a reach; empty: any."""

    unhealthy: bool = False
    """Only those that are unhealthy or silent."""
    behind: bool = False
    """Only those with agents that are behind."""
    region: str = ""
    cluster: str = ""
    shard: str = ""


EVERYTHING = ShardFilter()


def select(picture: FleetPicture, look: ShardFilter) -> Sequence[ShardSeen]:
    """In the picture's order. ValueError where a pattern cannot be one."""
    if look == EVERYTHING:
        return picture.shards
    named = {"region": look.region, "cluster": look.cluster, "shard": look.shard}
    reaches = [parse_reach(f"{level}:{pattern}") for level, pattern in named.items() if pattern]
    return [
        seen
        for seen in picture.shards
        if (not look.unhealthy or seen.condition in _LOUD)
        and (not look.behind or seen.behind)
        and all(reach.meets(seen.place) for reach in reaches)
    ]


# --- holders -------------------------------------------------------------------------------------

# Who has what was set for the fleet.   FleetPicture ──Holders──► held(item) ──► ChangeHolders
#
# An agent has an item that reaches it once it has come to the revision that put it (what it follows
# comes in order), unless it says that it could not put it in force. Names are looked at, not
# agents: a page of rules costs what it names.


@dataclass(frozen=True, slots=True)
class ChangeHolders:
    """Who has one item."""

    agents: int = 0
    """Agents that it reaches, as far as they are known."""
    have: int = 0
    without: int = 0
    """Agents with an older revision. The remaining ones have not reported a revision."""
    rejected: int = 0
    """Agents that have that revision but could not apply it."""

    def plus(self, other: ChangeHolders) -> ChangeHolders:
        return ChangeHolders(
            self.agents + other.agents,
            self.have + other.have,
            self.without + other.without,
            self.rejected + other.rejected,
        )


class _PlaceGroup:
    """Agents that stand at one place."""

    __slots__ = ("_ns", "_place", "_rejected", "_total")

    def __init__(self, place: Place, agents: Sequence[FleetAgent]) -> None:
        self._place = place
        self._total = len(agents)
        self._ns = sorted(agent.n for agent in agents if agent.n is not None)
        self._rejected = Counter(
            (item_id, agent.n or 0) for agent in agents for item_id in agent.rejected
        )

    def held(self, item: Change) -> ChangeHolders:
        if not item.reach.meets(self._place):
            return NOBODY
        older = bisect_left(self._ns, item.n)
        rejected = sum(
            count
            for (item_id, n), count in self._rejected.items()
            if item_id == item.id and n >= item.n
        )
        return ChangeHolders(self._total, len(self._ns) - older - rejected, older, rejected)


NOBODY = ChangeHolders()


class Holders:
    """Computed from one picture of the fleet; answers for each of its items."""

    def __init__(self, picture: FleetPicture) -> None:
        self._picture = picture
        self._groups: dict[Level, list[_PlaceGroup]] = {}
        """Only for the levels in use: few pages show items of all levels."""

    def held(self, item: Change) -> ChangeHolders:
        level, total = item.reach.level, NOBODY
        if level not in self._groups:
            self._groups[level] = _groups(self._picture, level)
        for group in self._groups[level]:
            found = group.held(item)
            if found is not NOBODY:
                total = total.plus(found)
        return total


def _groups(picture: FleetPicture, level: Level) -> list[_PlaceGroup]:
    if level is Level.FLEET:
        return [_PlaceGroup(Place(), list(_every_agent(picture)))]
    name_of = attrgetter(level.value)
    named: dict[str, list[FleetAgent]] = {}
    for agent in _every_agent(picture):
        named.setdefault(name_of(agent), []).append(agent)
    return [_PlaceGroup(_compared_place(level, name), told) for name, told in named.items()]


def _every_agent(picture: FleetPicture) -> Iterator[FleetAgent]:
    for shard in picture.shards:
        yield from shard.agents
    yield from picture.shardless


def _compared_place(level: Level, name: str) -> Place:
    """Only the parts that this level compares: agents that are equal there are one group."""
    match level:
        case Level.REGION:
            return Place(region=name)
        case Level.CLUSTER:
            return Place(cluster=name)
        case Level.HOST:
            return Place(host=name)
        case _:
            return Place(shard=name)
