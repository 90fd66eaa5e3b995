"""Put what is set in force.   OwnBook ──► OwnInForce ──┐
                             LogFollower ──► SharedInForce ──┴──► rules, budgets, metrics, members

What comes in many revisions is put in force a few at a time, and read in a thread where it is
much: checks come first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from headgate.agent.changeshelf import ChangeShelf
from headgate.agent.logfollower import FollowState, LogFollower
from headgate.agent.logwriter import beside
from headgate.agent.ports import Clock
from headgate.core.change import BEAT, Item
from headgate.core.fleet_members import FleetMember, read_members
from headgate.core.reach import Place

PAUSE_TIMES, LONGEST_PAUSE_S = 2.0, 0.5
"""Between two times that changes are put in force: as often as long as the last one took."""


class Follows(Protocol):
    """As RuleKeeper and Budgets do."""

    async def follow(
        self,
        items: Sequence[Item],
        places: Sequence[Place],
        *,
        whole: bool = ...,
        own: bool = ...,
    ) -> None:
        """`whole`: all that the log has. `own`: of the agent's own log."""
        ...


class OwnInForce:
    """What the agent's own log says. A change of it is acknowledged when it is in force."""

    def __init__(self, parts: Sequence[Follows], places: Callable[[], Sequence[Place]]) -> None:
        self._parts = parts
        self._places = places

    async def load(self, items: Sequence[Item]) -> None:
        """All there is."""
        await self._follow(items, whole=True)

    async def changed(self, items: Sequence[Item]) -> None:
        await self._follow(items, whole=False)

    async def _follow(self, items: Sequence[Item], *, whole: bool) -> None:
        places = self._places()
        for part in self._parts:
            await part.follow(items, places, whole=whole, own=True)


class SharedInForce:
    def __init__(
        self,
        follower: LogFollower,
        clock: Clock,
        parts: Sequence[Follows],
        *,
        places: Callable[[], Sequence[Place]],
        found: Callable[[Sequence[FleetMember]], None],
    ) -> None:
        """`found` is told of the members of our shards that are registered."""
        self._follower = follower
        self._clock = clock
        self._parts = parts
        self._places = places
        self._found = found
        self._shelf = ChangeShelf()
        self._news = asyncio.Event()
        self._is_at_it = False
        self._settled_n = 0
        self.n = 0
        """The fleet's revision that changed something here last, and is in force."""
        follower.watch(self._note)

    @property
    def faults(self) -> Mapping[str, str]:
        """By key: what cannot be read here, and why."""
        return self._shelf.faults

    def state(self) -> FollowState:
        """How following stands; with the n that is in force, which takes a moment longer than to
        hear of it."""
        state = self._follower.state()
        return replace(state, n=min(state.n, self._settled_n)) if self._is_behind else state

    @property
    def _is_behind(self) -> bool:
        return self._news.is_set() or self._is_at_it

    def _note(self, keys: frozenset[str]) -> None:
        if keys != {BEAT}:
            self._news.set()
        elif not self._is_behind:
            # It tells of revisions that are none of our business, too: there is nothing to do.
            self._settled_n = self._follower.mirror.n

    def look_again(self) -> None:
        """Other databases, or other places of theirs."""
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            began_s = self._clock.now().mono_s
            await self.apply()
            took_s = self._clock.now().mono_s - began_s
            await self._clock.sleep(min(LONGEST_PAUSE_S, PAUSE_TIMES * took_s))

    async def apply(self) -> None:
        """All that is known; what is as it was costs a comparison."""
        self._news.clear()
        self._is_at_it, is_done = True, False
        try:
            await self._apply()
            is_done = True
        finally:
            self._is_at_it = False
            if not is_done:
                self._news.set()  # The next try is for the same.

    async def _apply(self) -> None:
        mirror = self._follower.mirror
        # All that concerns us, from one who knows what came after what; before that, nothing is.
        n, whole, entries = mirror.n, mirror.known, list(mirror.entries())
        items = await beside(len(entries), lambda: self._shelf.read(entries))
        places = self._places()
        for part in self._parts:
            await part.follow(items, places, whole=whole)
        self.n = self._settled_n = n
        self._found(await beside(len(entries), lambda: read_members(entries)))
