"""Write the fleet's beat when it is our turn.   LogFollower.`beat_heard` ──► LogBeat ──► store

There is no election and no lease: the last writer continues every interval. If the beat is missing
for two intervals, any other agent that follows the store itself writes it after a random pause.
The write compares: only one of several succeeds, and the others see its beat.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import structlog

from headgate.base.keyvalue import Compare, Put
from headgate.base.ports import Clock, SharedLog
from headgate.changes.follower import LogFollower
from headgate.changes.mirror import head_n
from headgate.changes.model import BEAT, HEAD, SHARDS
from headgate.errors import Conflict, StoreUnavailable
from headgate.fleet.beat import Beat, beat_bytes, beat_in_s

log = structlog.get_logger()

COUNT_EVERY_S = 60.0


class LogBeat:
    __slots__ = (
        "_clock",
        "_counted_at",
        "_dice",
        "_follower",
        "_roll",
        "_shards",
        "_store",
        "_tried_at",
        "beats_total",
        "by",
        "fault",
    )

    def __init__(
        self,
        store: SharedLog,
        follower: LogFollower,
        clock: Clock,
        roll: Callable[[], float],
        *,
        by: str,
    ) -> None:
        """`by`: this agent's name. It takes part while `follower` follows `store` itself."""
        self._store = store
        self._follower = follower
        self._clock = clock
        self._roll = roll
        self.by = by
        self._dice = roll()
        self._tried_at = self._counted_at = -inf
        self._shards = 0
        self.beats_total = 0
        self.fault = ""
        """Why the last try failed; empty: it succeeded, or there was none."""

    async def run(self) -> None:
        while True:
            wait_s = self.due_at() - self._clock.now().mono_s
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            else:
                await self.beat_once()

    def due_at(self) -> float:
        """Monotonic: when to write one, or to look again."""
        follower, heard = self._follower, self._follower.beat_heard
        timing = follower.timing
        takes_part = follower.reader is self._store
        since = heard.at if takes_part else self._clock.now().mono_s
        mine = takes_part and heard.by == self.by
        ever = not takes_part or bool(heard.revision)
        wait_s = beat_in_s(timing, self._dice, mine=mine, ever=ever, shards=follower.shards)
        return max(since + wait_s, self._tried_at + timing.beat_interval_s)

    async def beat_once(self) -> None:
        """One try. An agent that fails waits for its next turn: another may succeed."""
        self._tried_at, self._dice = self._clock.now().mono_s, self._roll()
        compare = Compare(BEAT, self._follower.beat_heard.revision)
        try:
            beat = Beat(self.by, self._clock.now().wall_s, await self._count(), await self._n())
            await self._store.commit([compare], [Put(BEAT, beat_bytes(beat))])
        except Conflict:
            self._mark("")  # Another agent was first.
        except StoreUnavailable as error:
            self._mark(str(error))
        else:
            self._mark("")
            self.beats_total += 1

    async def _count(self) -> int:
        """Counted by the agent that writes the beat, for all, at most once a minute."""
        now_s = self._clock.now().mono_s
        if now_s - self._counted_at >= COUNT_EVERY_S:
            self._shards = await self._store.count(SHARDS)
            self._counted_at = now_s
        return self._shards

    async def _n(self) -> int:
        """Everything up to it was committed before the beat: who has the beat has all of it."""
        return head_n(await self._store.list((HEAD,)))

    def _mark(self, fault: str) -> None:
        if fault and not self.fault:
            log.warning("fleet.beat_lost", store=self._store.name, detail=fault)
        elif self.fault and not fault:
            log.info("fleet.beat_back", store=self._store.name)
        self.fault = fault
