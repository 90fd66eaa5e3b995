"""A herd of workers against a replica, as a model: seconds to run, the same at each run.

The gate is real in what matters: it judges the last probe's value, and the pacer is the
agent's own. The replica is a queue: it replays so many units a second in the order they were
committed, and its lag is the age of the oldest one that it has not replayed.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from headgate.base.names import parse_identity
from headgate.check.health import Health, Window, health_of, stand
from headgate.metrics.model import Builtin, MetricSpec
from headgate.metrics.samples import Sample
from headgate.pacing.pacer import Pacer

STEP_S = 0.005
BIN_S = 0.1
POLL_S = 0.25
NEVER = float("inf")
LIE = 1e9


class Variant(Enum):
    BARE = "bare gate"
    JITTER = "gate + jitter"
    PACED = "paced"


@dataclass(frozen=True, slots=True)
class World:
    workers: int = 200
    capacity: Callable[[float], float] = lambda _: 400.0
    """Units a second that the replica replays, by time."""
    threshold_s: float = 1.0
    probe_s: float = 0.25
    target: float = 0.5
    work_s: float = 0.02
    """How long one piece of work takes its worker; half as much again or less."""
    cost: Callable[[random.Random], float] = lambda _: 1.0
    seconds: float = 60.0
    noise_s: float = 0.0
    """A lag below this is not seen as it is: each reading is off by up to so much."""
    idle: tuple[float, float] = (NEVER, NEVER)
    """From, to: nobody wants to work."""
    lies_from: float = NEVER
    """Then one of the workers begins to declare LIE for each piece."""
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    lags: list[float] = field(default_factory=list)
    """One per `step_s`."""
    admitted: list[float] = field(default_factory=list)
    """Cost per BIN_S."""
    rates: list[float] = field(default_factory=list)
    """The pacer's, at each probe."""
    replayed: float = 0.0
    busy_s: float = 0.0
    """What the replica spent on replay, of what it had for it, `could_s`."""
    could_s: float = 0.0
    threshold_s: float = 1.0
    checks: int = 0
    step_s: float = STEP_S
    rounds: int = 1

    def joined(self, other: Outcome) -> Outcome:
        """Both, as if one had followed the other."""
        return replace(
            self,
            lags=self.lags + other.lags,
            admitted=self.admitted + other.admitted,
            replayed=self.replayed + other.replayed,
            busy_s=self.busy_s + other.busy_s,
            could_s=self.could_s + other.could_s,
            checks=self.checks + other.checks,
            rounds=self.rounds + other.rounds,
        )

    @property
    def over(self) -> float:
        return sum(lag > self.threshold_s for lag in self.lags) / len(self.lags)

    @property
    def p99_s(self) -> float:
        return sorted(self.lags)[int(0.99 * (len(self.lags) - 1))]

    @property
    def burstiness(self) -> float:
        mean = statistics.fmean(self.admitted)
        return statistics.pstdev(self.admitted) / mean if mean else 0.0

    @property
    def used(self) -> float:
        return self.busy_s / self.could_s if self.could_s else 0.0


class Replica:
    def __init__(self) -> None:
        self._queue: deque[list[float]] = deque()
        self.replayed = 0.0

    def commit(self, at: float, cost: float) -> None:
        self._queue.append([at, cost])

    def replay(self, budget: float) -> float:
        """What was replayed."""
        queue, left = self._queue, budget
        while queue and left > 0:
            done = min(queue[0][1], left)
            left -= done
            queue[0][1] -= done
            if queue[0][1] <= 1e-9:
                queue.popleft()
        self.replayed += budget - left
        return budget - left

    def lag(self, now: float) -> float:
        return max(0.0, now - self._queue[0][0]) if self._queue else 0.0


def health(world: World, window: Window) -> Health:
    spec = MetricSpec(
        "lag", Builtin("lag"), world.threshold_s, unit="s", interval_s=world.probe_s,
        pace=True, pace_target=world.target,
    )  # fmt: skip
    return health_of("main", {"lag": stand(spec, window)})


class Herd:
    def __init__(self, variant: Variant, world: World) -> None:
        self.variant, self.world = variant, world
        self.dice = random.Random(world.seed)
        self.replica, self.pacer = Replica(), Pacer(0.0)
        self.window, self.seen_lag = Window(), 0.0
        self.outcome = Outcome(threshold_s=world.threshold_s)
        self._asking = [(self.dice.random() * 0.01, n) for n in range(world.workers)]
        heapq.heapify(self._asking)
        self._working: list[tuple[float, int, float]] = []
        self._released = 0.0
        self._names = [parse_identity(f"w{n}:herd") for n in range(world.workers)]

    def run(self) -> Outcome:
        steps = int(self.world.seconds / STEP_S)
        per_probe = max(1, round(self.world.probe_s / STEP_S))
        for n in range(1, steps + 1):
            now = n * STEP_S
            self._commit(now)
            self._replay(now)
            if n % per_probe == 0:
                self._probe(now)
            self._ask(now)
            if n % round(BIN_S / STEP_S) == 0:
                self.outcome.admitted.append(self._released)
                self._released = 0.0
        self.outcome.replayed = self.replica.replayed
        return self.outcome

    def _commit(self, now: float) -> None:
        while self._working and self._working[0][0] <= now:
            at, worker, cost = heapq.heappop(self._working)
            self.replica.commit(at, cost)
            heapq.heappush(self._asking, (at, worker))

    def _replay(self, now: float) -> None:
        budget = self.world.capacity(now) * STEP_S
        self.outcome.could_s += STEP_S
        self.outcome.busy_s += STEP_S * self.replica.replay(budget) / budget
        self.outcome.lags.append(self.replica.lag(now))

    def _probe(self, now: float) -> None:
        off = (self.dice.random() - 0.5) * 2 * self.world.noise_s
        self.seen_lag = max(0.0, self.replica.lag(now) + off)
        self.window = self.window.push(Sample(self.seen_lag, now), keep=1)
        if self.variant is Variant.PACED:
            self.pacer.follow(health(self.world, self.window), now)
            self.outcome.rates.append(self.pacer.pace.rate)

    def _ask(self, now: float) -> None:
        begin, end = self.world.idle
        while self._asking and self._asking[0][0] <= now:
            at, worker = heapq.heappop(self._asking)
            if begin <= at < end:
                heapq.heappush(self._asking, (end, worker))
                continue
            self.outcome.checks += 1
            self._answer(max(at, now - STEP_S), worker)

    def _answer(self, now: float, worker: int) -> None:
        cost = self.world.cost(self.dice)
        lies = worker == 0 and now >= self.world.lies_from
        wait_s = self._wait(LIE if lies else cost, now, worker)
        if wait_s is not None:
            heapq.heappush(self._asking, (now + wait_s, worker))
            return
        self._released += cost
        took_s = self.world.work_s * (0.5 + self.dice.random())
        heapq.heappush(self._working, (now + took_s, worker, cost))

    def _wait(self, cost: float, now: float, worker: int) -> float | None:
        if self.seen_lag > self.world.threshold_s:
            jitter = 0.0 if self.variant is Variant.BARE else self.dice.random()
            base = POLL_S if self.variant is Variant.BARE else self.world.probe_s
            return base * (1 + jitter)
        if self.variant is Variant.PACED:
            return self.pacer.admit(cost, now, self.dice.random(), self._names[worker])
        return None


def run(variant: Variant, world: World) -> Outcome:
    return Herd(variant, world).run()
