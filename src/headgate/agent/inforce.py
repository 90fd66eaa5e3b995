"""Apply what is set.   OwnBook ──► OwnInForce ──┐
                             LogFollower ──► SharedInForce ──┴──► rules, budgets, metrics, members

Many revisions are applied a few at a time, and large ones are read in a thread: checks come first.
If one part fails, the others still get what is set; the fault is reported, and the part gets the
same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from headgate.agent.changeshelf import ChangeShelf
from headgate.agent.logfollower import FollowState, LogFollower
from headgate.agent.logwriter import beside
from headgate.agent.ports import Clock
from headgate.core.change import BEAT, Item
from headgate.core.fleet_members import FleetMember, read_members
from headgate.core.reach import Place

log = structlog.get_logger()

PAUSE_TIMES, LONGEST_PAUSE_S = 2.0, 0.5
"""Pause between two runs: as long as the last one took."""


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


class Rooms:
    """All that changes are put in force in."""

    def __init__(self, parts: Sequence[Follows], *, own: bool) -> None:
        self._parts = parts
        self._own = own
        self.failed: dict[Follows, Exception] = {}
        """Faults of the last run that are bugs of ours, and not of what is set."""

    async def follow(
        self,
        items: Callable[[Follows], Sequence[Item]],
        places: Sequence[Place],
        *,
        whole: bool,
    ) -> None:
        for part in self._parts:
            try:
                await part.follow(items(part), places, whole=whole, own=self._own)
            except Exception as error:
                log.exception("changes.not_in_force", room=type(part).__name__)
                self.failed[part] = error
            else:
                self.failed.pop(part, None)

    @property
    def faults(self) -> list[str]:
        """For people."""
        return [
            f"{type(part).__name__} failed to apply changes, which is a bug in Headgate: "
            f"{error!r}; the agent tries again with the next change and after a restart"
            for part, error in self.failed.items()
        ]


class OwnInForce:
    """What the agent's own log says. A change of it is acknowledged when it is in force."""

    def __init__(self, parts: Sequence[Follows], places: Callable[[], Sequence[Place]]) -> None:
        self._rooms = Rooms(parts, own=True)
        self._places = places
        self._due: dict[Follows, list[Item]] = {}
        """What the failed parts have not applied yet."""

    @property
    def faults(self) -> list[str]:
        return self._rooms.faults

    async def load(self, items: Sequence[Item]) -> None:
        """All there is."""
        await self._follow(items, whole=True)

    async def changed(self, items: Sequence[Item]) -> Sequence[str]:
        """Why it is not in force everywhere; nothing: it is."""
        await self._follow(items, whole=False)
        return self._rooms.faults

    async def _follow(self, items: Sequence[Item], *, whole: bool) -> None:
        due, self._due = self._due if not whole else {}, {}
        await self._rooms.follow(
            lambda part: [*due.get(part, ()), *items], self._places(), whole=whole
        )
        self._due = {part: [*due.get(part, ()), *items] for part in self._rooms.failed}


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
        """`found` is called with the registered members of our shards."""
        self._follower = follower
        self._clock = clock
        self._rooms = Rooms(parts, own=False)
        self._places = places
        self._found = found
        self._shelf = ChangeShelf()
        self._news = asyncio.Event()
        self._is_at_it = False
        self._settled_n = 0
        self.n = 0
        """The last fleet revision that changed something here, and is in force."""
        follower.watch(self._note)

    @property
    def faults(self) -> Mapping[str, str]:
        """By key: what cannot be read here, and why."""
        return self._shelf.faults

    @property
    def failures(self) -> Sequence[str]:
        """Rooms that did not put it in force."""
        return self._rooms.faults

    def state(self) -> FollowState:
        """State of following; with the n that is in force, which comes a moment after the n that
        was read."""
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
                self._news.set()

    async def _apply(self) -> None:
        mirror = self._follower.mirror
        # All that applies to us, in a known order; before that, nothing is applied.
        n, whole, entries = mirror.n, mirror.known, list(mirror.entries())
        items = await beside(len(entries), lambda: self._shelf.read(entries))
        await self._rooms.follow(lambda part: items, self._places(), whole=whole)
        self._found(await beside(len(entries), lambda: read_members(entries)))
        for error in self._rooms.failed.values():
            raise error  # The next try is for the same.
        self.n = self._settled_n = n
