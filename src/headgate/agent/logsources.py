"""Which source to follow next, and when.   LogFollower ──► Sources: best first, the store last

Each source pauses after a failure, for longer the more often it failed. The store, which all agents
share, is contacted at a time spread over the fleet; other sources, which serve one shard, soon. The
agent returns to a better source once it has answered for a while; the sooner it was lost the last
times, the longer that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from headgate.agent.ports import Clock, LogReader
from headgate.core.fleet_timing import (
    AGENTS_PER_SHARD,
    LEAST_SPREAD_S,
    FleetTiming,
    fallback_in_s,
    retry_in_s,
)

NEVER = -inf
LOOK_AGAIN_S = 0.25
"""While there is no source: agents get known within seconds of a start."""
SOON = 6
"""If a source is lost within this many times `return_after_s`, the return was useless."""


@dataclass(slots=True)
class _Turn:
    """Of one source. Times are monotonic."""

    rests_until: float = NEVER
    failures: int = 0
    """Seconds since it last had news."""
    joined_at: float = NEVER
    good_since: float | None = None
    """It answers again since then, although another one is followed."""
    mark: int | None = None
    """Our revision at the last request to it: by now it must have that, too."""
    returned: bool = False
    """The agent returned to it from a worse one."""
    flaps: int = 0
    """Useless returns in a row."""

    def left(self, now_s: float, *, soon_s: float) -> None:
        if now_s - self.joined_at >= soon_s:
            self.flaps = 0
        elif self.returned:
            self.flaps += 1
        self.returned, self.joined_at = False, inf


class Sources:
    __slots__ = ("_clock", "_falls_back_at", "_roll", "_sources", "_timing", "_turns")

    def __init__(
        self,
        sources: Callable[[], Sequence[LogReader]],
        clock: Clock,
        roll: Callable[[], float],
        timing: FleetTiming,
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._roll = roll
        self._timing = timing
        self._turns: dict[str, _Turn] = {}
        self._falls_back_at: float | None = None
        """When to contact the store, because no nearer source has news; None: one has."""

    def is_store(self, reader: LogReader) -> bool:
        sources = self._sources()
        return bool(sources) and sources[-1] is reader

    def has(self, reader: LogReader) -> bool:
        return any(one is reader for one in self._sources())

    def next(self) -> tuple[LogReader | None, float]:
        """The best that may be turned to, and in how many seconds; None: there is none at all."""
        sources, now_s = self._sources(), self._clock.now().mono_s
        if not sources:
            return None, LOOK_AGAIN_S
        self._forget_others(sources)
        store_at = self._due_at(sources[-1])
        if self._falls_back_at is not None and store_at <= now_s:
            return sources[-1], 0.0
        # The better one of two that are both due: min() keeps the first.
        reader = min(sources, key=lambda one: max(now_s, self._due_at(one)))
        return reader, max(0.0, self._due_at(reader) - now_s)

    def _due_at(self, reader: LogReader) -> float:
        due_at = self._turn(reader).rests_until
        if self._falls_back_at is not None and self.is_store(reader):
            return max(due_at, self._falls_back_at)
        return due_at

    def gives_up_at(self, reader: LogReader) -> float:
        """When one that answers but has no news is left for the store; infinity: not at all."""
        sources = self._sources()
        if self._falls_back_at is None or not sources or sources[-1] is reader:
            return inf
        return self._due_at(sources[-1])

    def joined(self, reader: LogReader) -> None:
        turn = self._turn(reader)
        turn.good_since = turn.mark = None
        turn.rests_until, turn.joined_at = NEVER, self._clock.now().mono_s
        if self.is_store(reader):
            self._falls_back_at = None
        for better in self._better(reader):
            # It was just found to be away, or to be worse; it is looked at later.
            other = self._turn(better)
            other.good_since = other.mark = None
            other.rests_until = max(other.rests_until, self._probe_at())

    def heard(self, reader: LogReader) -> None:
        """Its watch has news. That it answers is not enough: it may know nothing new, or end every
        watch at once."""
        self._turn(reader).failures = 0
        self._falls_back_at = None

    def lost(
        self, reader: LogReader, *, spread: float, cold: bool, compacted: bool = False
    ) -> None:
        """`spread`: of the fleet; `cold`: no contact since the start; `compacted`: it answers, and
        only has to be listed again."""
        turn, now_s = self._turn(reader), self._clock.now().mono_s
        turn.left(now_s, soon_s=SOON * self._timing.return_after_s)
        wide = self._spread_of(reader, spread, turn.failures)
        turn.rests_until = now_s + retry_in_s(turn.failures, self._roll(), wide)
        turn.failures += 1
        if self._falls_back_at is None and not self.is_store(reader):
            # One that is back at once has the time of a beat to show that it has news; one that
            # answers, and only made us list again, has all the time that a silence may take.
            timing = self._timing
            grace_s = timing.silent_after_s if compacted else timing.beat_interval_s
            wait_s = grace_s + fallback_in_s(self._roll(), spread, cold=cold)
            self._falls_back_at = now_s + wait_s

    def _spread_of(self, reader: LogReader, spread: float, failures: int) -> float:
        if not self.is_store(reader):
            return LEAST_SPREAD_S
        # Agents with a nearer source are three in a shard, and can wait longer.
        return spread * AGENTS_PER_SHARD if failures and len(self._sources()) > 1 else spread

    # --- back to a better one ----------------------------------------------------------------

    def to_probe(self, reader: LogReader) -> LogReader | None:
        """A better one than this that is due for a test whether it answers again."""
        now_s = self._clock.now().mono_s
        due = (one for one in self._better(reader) if self._turn(one).rests_until <= now_s)
        return next(due, None)

    def probes_at(self, reader: LogReader) -> float:
        """When the next of them is; infinity where there is none."""
        return min((self._turn(one).rests_until for one in self._better(reader)), default=inf)

    def failed_probe(self, reader: LogReader) -> None:
        turn = self._turn(reader)
        turn.good_since = turn.mark = None
        turn.rests_until = self._probe_at()

    def answered_probe(self, reader: LogReader, revision: int, known_revision: int) -> bool:
        """It is at that revision, we at ours. True: go back to it."""
        turn, now_s = self._turn(reader), self._clock.now().mono_s
        keeps_up = turn.mark is None or revision >= turn.mark
        turn.mark, turn.rests_until = known_revision, self._probe_at()
        if not keeps_up:
            turn.good_since = None
            return False
        if turn.good_since is None:
            turn.good_since = now_s
        ready = now_s - turn.good_since >= self._timing.returns_after_s(turn.flaps)
        if ready:
            turn.rests_until, turn.returned = NEVER, True
        return ready

    def _probe_at(self) -> float:
        return self._clock.now().mono_s + self._timing.probe_every_s * (0.75 + 0.5 * self._roll())

    def _better(self, reader: LogReader) -> Iterator[LogReader]:
        for one in self._sources():
            if one is reader:
                return
            yield one

    # --- bookkeeping -------------------------------------------------------------------------

    def _turn(self, reader: LogReader) -> _Turn:
        return self._turns.setdefault(reader.name, _Turn())

    def _forget_others(self, sources: Sequence[LogReader]) -> None:
        names = {one.name for one in sources}
        for gone in self._turns.keys() - names:
            del self._turns[gone]
        if len(sources) == 1:
            self._falls_back_at = None
