"""Who needs a database measured, and so how much the agent works for it.

check, pull, wake ──► Demand ──► Sampler, RoleWatcher, Heartbeat, Shard: go on, slow down, stop

The agent's own requests (status, scrapes, its own explain) are no demand. A client's check is.
A pull by the shard's primary is, too, as long and as much as the primary's agent is awake.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import structlog

from headgate.base.ports import Clock
from headgate.check.decide import asks_shard
from headgate.check.health import Health
from headgate.check.model import Activity, Check, Idleness, activity_after, most_awake

log = structlog.get_logger()

NOTE_EVERY_S = 0.25
"""A check this soon after the last noted one is not noted."""
NEVER = float("-inf")


class Work(Enum):
    """What watching a database costs, by kind."""

    PROBES = "probes"
    MESSAGES = "messages"
    BEATS = "beats"


class Demand:
    """One database's."""

    def __init__(self, database: str, idleness: Idleness, clock: Clock) -> None:
        self.database = database
        self.idleness = idleness
        self._clock = clock
        now = clock.now().mono_s
        self.asked_at = now
        """When a client last checked, or the agent started: it begins awake."""
        self.shard_asked_at = now
        self.state = Activity.AWAKE
        self.note_after = NEVER
        """Read on the hot path: from this time on a check must be noted."""
        self.keepers: set[str] = set()
        """What keeps this database awake: a standby, budgets that act by metrics."""
        self.costs: Counter[tuple[Activity, Work]] = Counter()
        self._followed = Activity.HIBERNATING
        self._followed_until = NEVER
        self._stirred: set[asyncio.Future[None]] = set()
        self.on_shard_asked: Callable[[], None] = lambda: None
        self._watchers: list[Callable[[], None]] = []

    # --- being wanted ----------------------------------------------------------------------

    def note(self, check: Check, health: Health | None, now: float) -> None:
        """A client checked."""
        self.asked_at = now
        whole = health is None or health.shard is None
        if health is not None and not whole and asks_shard(check, health):
            self.shard_asked_at = now
            self.on_shard_asked()
            whole = True
        self.refresh(now)
        # Until a question about the shard has been noted, the next may be the first.
        self.note_after = now + NOTE_EVERY_S if whole else NEVER

    def wake(self, now: float) -> None:
        """As a client's question about the shard would."""
        self.asked_at = self.shard_asked_at = now
        self.refresh(now)
        self.on_shard_asked()

    def wake_host(self, now: float) -> None:
        """As a client's question about this host would: another member needs our heartbeat."""
        self.asked_at = now
        self.refresh(now)

    def share(self, now: float) -> None:
        """A client checked the shard, under the name of another of its databases here."""
        self.asked_at = self.shard_asked_at = now
        self.refresh(now)

    def follow(self, activity: Activity, *, now: float, for_s: float) -> None:
        """The shard's primary wants us as awake as it is itself, for a while."""
        if activity is Activity.HIBERNATING:
            return  # It only looks for the primary, and wants nothing of us.
        self._followed, self._followed_until = activity, now + for_s
        self.refresh(now)

    def unfollow(self, now: float) -> None:
        """The shard's primary goes to rest."""
        self._followed_until = NEVER
        self.refresh(now)

    def keep_awake(self, reason: str, *, on: bool = True) -> None:
        (self.keepers.add if on else self.keepers.discard)(reason)
        self.refresh(self._clock.now().mono_s)

    # --- acting on it ----------------------------------------------------------------------

    def refresh(self, now: float) -> None:
        state = self._state(now)
        if state is self.state:
            return
        rises = most_awake(state, self.state) is state
        log.info("database.activity", database=self.database, was=self.state.value, now=state.value)
        self.state = state
        if rises:
            for future in self._stirred:
                if not future.done():
                    future.set_result(None)
        else:
            self.note_after = NEVER
        for watcher in self._watchers:
            watcher()

    def shard_state(self, now: float) -> Activity:
        """How awake the shard must be for the clients that check it."""
        if self.keepers:
            return Activity.AWAKE
        return activity_after(now - self.shard_asked_at, self.idleness)

    def watch(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.remove(callback)

    def stretch(self, interval_s: float) -> float:
        return interval_s * (self.idleness.idle_factor if self.state is Activity.IDLE else 1.0)

    def count(self, work: Work, times: int = 1) -> None:
        self.costs[(self.state, work)] += times

    async def pause(self, seconds: float) -> None:
        """Until `seconds` have passed, or more is wanted than when the pause began."""
        if self.state is Activity.AWAKE:
            await self._clock.sleep(seconds)
            return
        await self._until_stirred(None if self.state is Activity.HIBERNATING else seconds)

    async def _until_stirred(self, seconds: float | None) -> None:
        stirred: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stirred.add(stirred)
        try:
            if seconds is None:
                await stirred
            else:
                await first_of(self._clock, seconds, stirred)
        finally:
            self._stirred.discard(stirred)

    def _state(self, now: float) -> Activity:
        if self.keepers:
            return Activity.AWAKE
        own = activity_after(now - self.asked_at, self.idleness)
        return most_awake(own, self._followed) if now < self._followed_until else own


async def first_of(clock: Clock, seconds: float, future: asyncio.Future[Any]) -> None:
    """Whichever comes first; the sleep is not left behind."""
    sleep = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({sleep, future}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleep.cancel()


async def sleep_unless(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Until then, or until it is set."""
    is_set = asyncio.ensure_future(event.wait())
    try:
        await first_of(clock, seconds, is_set)
    finally:
        is_set.cancel()


class Demands:
    """Of all databases of this agent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keepers: set[str] = set()
        self.by_database: dict[str, Demand] = {}
        """Read directly on the hot path."""

    def open(self, database: str, idleness: Idleness) -> Demand:
        """Known already: only its idleness is changed."""
        demand = self.by_database.get(database)
        if demand is None:
            demand = self.by_database[database] = Demand(database, idleness, self._clock)
            demand.keepers |= self._keepers
        demand.idleness = idleness
        return demand

    def shut(self, database: str) -> None:
        del self.by_database[database]

    def __iter__(self) -> Iterator[Demand]:
        return iter(self.by_database.values())

    def tick(self, now: float) -> None:
        """Called about once a second: idleness is noticed here, demand where it arises."""
        for demand in self.by_database.values():
            demand.refresh(now)

    def wake(self, database: str, now: float) -> None:
        self.by_database[database].wake(now)

    def wake_all(self, now: float) -> None:
        for demand in self.by_database.values():
            demand.wake(now)

    def state(self, database: str) -> Activity:
        return self.by_database[database].state

    def keep_awake(self, reason: str, *, on: bool = True) -> None:
        """All databases, those to come as well."""
        (self._keepers.add if on else self._keepers.discard)(reason)
        for demand in self.by_database.values():
            demand.keep_awake(reason, on=on)
