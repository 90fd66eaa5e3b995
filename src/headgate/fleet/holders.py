"""Who has what was set for the fleet.   FleetPicture ──Holders──► held(item) ──► ChangeHolders

An agent has an item that reaches it once it has come to the revision that put it (what it follows
comes in order), unless it says that it could not put it in force. Names are looked at, not agents:
a page of rules costs what it names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from headgate.changes.model import Change
from headgate.changes.reach import Level, Place
from headgate.fleet.view import AgentSeen, FleetPicture


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


class _Group:
    """Agents that stand at one place."""

    __slots__ = ("_ns", "_place", "_rejected", "_total")

    def __init__(self, place: Place, agents: Sequence[AgentSeen]) -> None:
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
        self._groups: dict[Level, list[_Group]] = {}
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


def _groups(picture: FleetPicture, level: Level) -> list[_Group]:
    if level is Level.FLEET:
        return [_Group(Place(), list(_agents(picture)))]
    name_of = attrgetter(level.value)
    named: dict[str, list[AgentSeen]] = {}
    for agent in _agents(picture):
        named.setdefault(name_of(agent), []).append(agent)
    return [_Group(_place(level, name), told) for name, told in named.items()]


def _agents(picture: FleetPicture) -> Iterator[AgentSeen]:
    for shard in picture.shards:
        yield from shard.agents
    yield from picture.shardless


def _place(level: Level, name: str) -> Place:
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
