"""The starvation detector on scripted situations, half of them healthy.

Each situation is data: who asks how often, what admitted work does to the metric, and what
load there is besides. A small model plays the gate, second by second; the detector sees what
it would see of a real agent.

.venv/bin/python -m bench.starvation
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.report import table
from headgate.history.starvation import Culprit, Starved, judge
from headgate.history.starvation_courses import (
    ClientMetrics,
    ClientTick,
    DatabaseCourses,
    MinuteLook,
    StarvationTerms,
    Tick,
    advance,
)

THRESHOLD = 5.0
MOST_BACKLOG = 600.0
JUDGE_EVERY_S = 10
HOUR = 3600
MINUTE = 60
Load = Callable[[int], float | None]


@dataclass(frozen=True)
class Job:
    """One client."""

    name: str
    every_s: float = 1.0
    cost: float = 0.5
    """Seconds of lag that an admitted piece of work makes."""
    metrics: frozenset[str] = frozenset({"lag"})
    exempt: bool = False
    limit: float = THRESHOLD
    """Of its own: a stricter threshold."""
    ratio: float = 0.0
    dice_after: bool = False
    held: bool = False
    paced: bool = False
    works: tuple[tuple[int, int], ...] = ((0, 24 * HOUR),)
    """When it runs."""
    run_s: int = 0
    """Above 0: a new name for each run of so many seconds."""

    def at(self, second: int) -> str | None:
        if not any(begin <= second < end for begin, end in self.works):
            return None
        return f"run{second // self.run_s}:{self.name}" if self.run_s else self.name


@dataclass(frozen=True)
class Situation:
    name: str
    jobs: tuple[Job, ...]
    load: Load = lambda second: 0.0
    """Lag from elsewhere; None: the probe fails."""
    hours: float = 1.0
    starved: frozenset[str] = frozenset()
    culprit: Culprit | None = None
    blamed: frozenset[str] | None = None
    metric: str = "lag"
    metrics: Mapping[str, float] = field(default_factory=lambda: {"threads_running": 3.0})
    """Others, and what they measure."""
    tick_s: int = 2


@dataclass(frozen=True)
class Outcome:
    situation: Situation
    alarms: frozenset[str]
    culprits: frozenset[Culprit]
    blamed: frozenset[str]
    first_s: int | None
    last: tuple[Starved, ...]

    @property
    def right(self) -> bool:
        wanted = self.situation.culprit
        return (
            self.alarms == self.situation.starved
            and (wanted is None or self.culprits == frozenset({wanted}))
            and self.situation.blamed in (None, self.blamed)
        )


# --- the model -----------------------------------------------------------------------------


class World:
    def __init__(self, situation: Situation, seed: int) -> None:
        self.situation = situation
        self._dice = random.Random(seed)
        self._backlog = 0.0
        self._due = [self._dice.random() * job.every_s for job in situation.jobs]

    def tick(self, second: int) -> Tick:
        load = self.situation.load(second)
        value = None if load is None else load + self._backlog
        seen: dict[str, ClientTick] = {}
        judged: dict[str, ClientMetrics] = {}
        for index, job in enumerate(self.situation.jobs):
            for name in self._asks(index, job, second):
                what = self._answer(job, value)
                seen[name] = seen[name].plus(what) if name in seen else what
                stricter = {self.situation.metric: "r-strict"} if job.limit < THRESHOLD else {}
                judged[name] = ClientMetrics(job.metrics, stricter)
        self._backlog = min(MOST_BACKLOG, max(0.0, self._backlog - self.situation.tick_s))
        looks = {m: MinuteLook(False, v / 100) for m, v in self.situation.metrics.items()}
        if value is not None:
            looks[self.situation.metric] = MinuteLook(value > THRESHOLD, value / THRESHOLD)
        return Tick(float(second), seen, looks, judged)

    def _asks(self, index: int, job: Job, second: int) -> Iterator[str]:
        name = job.at(second)
        while self._due[index] <= second:
            # Rejected or not, it comes again after about its interval, jittered.
            self._due[index] += job.every_s * (0.5 + self._dice.random())
            if name is not None:
                yield name

    def _answer(self, job: Job, value: float | None) -> ClientTick:
        if job.held:
            return ClientTick(held=1)
        diced = self._dice.random() < job.ratio
        if diced and not job.dice_after:
            return ClientTick(diced=1)
        metric = self.situation.metric
        rejected = metric in job.metrics and (value is None or value > job.limit)
        if rejected and not job.exempt:
            return ClientTick(other=1) if value is None else ClientTick(by_metric={metric: 1})
        if diced:
            return ClientTick(diced=1, passed=1)
        if job.paced:
            return ClientTick(paced=1, passed=1)
        self._backlog += job.cost
        return ClientTick(exempted=1, exempt_by="r-exempt") if rejected else ClientTick(admitted=1)


def play(situation: Situation, policy: StarvationTerms, seed: int = 4) -> Outcome:
    world, scene = World(situation, seed), DatabaseCourses("main", 0.0)
    alarms: set[str] = set()
    culprits: set[Culprit] = set()
    blamed: set[str] = set()
    first_s: int | None = None
    last: tuple[Starved, ...] = ()
    for second in range(situation.tick_s, int(situation.hours * HOUR), situation.tick_s):
        scene = advance(scene, world.tick(second), policy)
        if second % JUDGE_EVERY_S == 0:
            last = tuple(one.starved for one in judge(scene, policy))
            for finding in last:
                if finding.alarming:
                    alarms.add(finding.client)
                    culprits.add(finding.cause)
                    blamed.update(finding.blamed)
                    first_s = second if first_s is None else first_s
    told = frozenset(alarms), frozenset(culprits), frozenset(blamed)
    return Outcome(situation, *told, first_s, last)


# --- the situations ------------------------------------------------------------------------


def jobs(count: int, **of_each: object) -> tuple[Job, ...]:
    return tuple(Job(f"job{n}:batch", **of_each) for n in range(count))  # type: ignore[arg-type]


def between(begin_s: int, end_s: int, lag: float) -> Load:
    return lambda second: lag if begin_s <= second < end_s else 0.0


def falling(from_lag: float, to_lag: float, over_s: int) -> Load:
    return lambda second: max(to_lag, from_lag - (from_lag - to_lag) * second / over_s)


def swinging(low: float, high: float, period_s: int) -> Load:
    middle, swing = (low + high) / 2, (high - low) / 2
    return lambda second: middle + swing * math.sin(2 * math.pi * second / period_s)


def noisy(low: float, high: float, seed: int) -> Load:
    dice = random.Random(seed)
    return lambda second: low + (high - low) * dice.random()


ETL, BACKFILL = Job("etl:nightly"), Job("backfill:orders", every_s=2.0)
HOG = Job("migration:fix", exempt=True, cost=2.0)
BY_THREADS = frozenset({"threads_running"})
LAG_AND_THREADS = frozenset({"lag", "threads_running"})

HEALTHY = (
    Situation("a quiet day", (ETL, BACKFILL)),
    Situation("10 saturating jobs, the metric hovers", jobs(10)),
    Situation("200 saturating jobs, the metric hovers", jobs(200, cost=0.2, every_s=3.0),
              hours=0.4),
    Situation("chunks of 20 s each, the metric hovers", jobs(20, cost=20.0, every_s=1.5)),
    Situation("chunks of 100 s each, the gate is closed for minutes", jobs(5, cost=100.0), hours=2),
    Situation("a client that checks once a minute, among fast ones",
              (*jobs(15), Job("slow:report", every_s=60.0)), hours=1.5),
    Situation("load from elsewhere swings around the threshold", jobs(5),
              load=swinging(0, 10, 300), hours=2),
    Situation("a replica catches up for 40 minutes", jobs(5), load=falling(3600, 0, 2400)),
    Situation("a client is held", (*jobs(3), Job("report:x", held=True)), hours=2),
    Situation("dice reject 95 % of a client's checks",
              (*jobs(5), Job("etl:low", ratio=0.95)), hours=2),
    Situation("dice after the metrics, 99.9 %",
              (*jobs(5), Job("etl:low", ratio=0.999, dice_after=True)), hours=2),
    Situation("pacing delays a client", (*jobs(5), Job("etl:paced", paced=True)), hours=2),
    Situation("an incident of 8 minutes", jobs(4), load=between(1800, 1800 + 8 * MINUTE, 30),
              hours=2),
    Situation("12 minutes of 12 hours", jobs(2), load=between(39_000, 39_000 + 12 * MINUTE, 30),
              hours=12, tick_s=10),
    Situation("bursty return: away for hours, then back",
              (*jobs(5), Job("bursty:x", works=((0, 300), (3 * HOUR, 4 * HOUR)))), hours=4,
              tick_s=5),
    Situation("a client that checks every half hour, in vain", (Job("cron:x", every_s=1800.0),),
              load=lambda second: 9.0, hours=6, tick_s=10),
    Situation("the probe fails for half an hour", jobs(3),
              load=lambda second: None if 600 < second < 2400 else 0.0),
    Situation("a new name for each run, the metric hovers", (*jobs(5), Job("etl", run_s=120)),
              hours=2),
    Situation("an exempt client that does no harm", (*jobs(3), Job("backup:x", exempt=True))),
)  # fmt: skip

HARMLESS = Job("backup:x", exempt=True, cost=0.0)
BATCH = frozenset({"batch"})
STARVED = (
    Situation("client starvation: a rogue pins the metric", (ETL,), load=lambda second: 20.0,
              starved=frozenset({"etl:nightly"}), culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue keeps it just above", (ETL,), load=lambda second: 5.2,
              starved=frozenset({"etl:nightly"}), culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue whose load swings", jobs(4), load=swinging(6, 20, 200),
              starved=BATCH, culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue, after hours of work", jobs(4), load=between(6 * HOUR, 9 * HOUR, 15),
              hours=7, tick_s=5, starved=BATCH, culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue, and a new name for each run", (Job("etl", run_s=180),),
              load=lambda second: 20.0, starved=frozenset({"etl"}),
              culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue, and a client that checks once a minute",
              (Job("slow:report", every_s=60.0),), load=lambda second: 20.0,
              starved=frozenset({"slow:report"}),
              culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue, and dice besides", (Job("etl:low", ratio=0.5),), load=lambda second: 20.0,
              starved=frozenset({"etl:low"}), culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("it recovers half-way and stays there", jobs(3), load=falling(60, 15, 1200), hours=2,
              starved=BATCH, culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("the shard's slowest replica",
              (Job("etl:nightly", metrics=frozenset({"shard/lag"})),),
              load=lambda second: 40.0, metric="shard/lag", starved=frozenset({"etl:nightly"}),
              culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("exemption starvation", (ETL, HOG), starved=frozenset({"etl:nightly"}),
              culprit=Culprit.EXEMPT_CLIENT),
    Situation("exemption starvation of a whole level", (*jobs(6), HOG), starved=BATCH,
              culprit=Culprit.EXEMPT_CLIENT),
    Situation("an exempt client that works in bursts",
              (ETL, Job("migration:fix", exempt=True, cost=80.0, every_s=45.0)),
              starved=frozenset({"etl:nightly"}), culprit=Culprit.EXEMPT_CLIENT),
    Situation("exemption starvation begins after hours", (ETL, Job(
        "migration:fix", exempt=True, cost=2.0, works=((4 * HOUR, 6 * HOUR),))), hours=5, tick_s=5,
        starved=frozenset({"etl:nightly"}), culprit=Culprit.EXEMPT_CLIENT),
    Situation("a rogue, and an exempt client that is harmless", (ETL, HARMLESS),
              load=lambda second: 20.0, starved=frozenset({"etl:nightly"}),
              culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue whose load swings, and an exempt client that is harmless",
              (ETL, HARMLESS), load=swinging(6, 20, 200), starved=frozenset({"etl:nightly"}),
              culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue of noise, and a harmless exempt client that comes and goes",
              (ETL, Job("backup:x", exempt=True, cost=0.0,
                        works=tuple((n * 600, n * 600 + 300) for n in range(12)))),
              load=noisy(8, 30, seed=5), hours=2, starved=frozenset({"etl:nightly"}),
              culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("a rogue begins while an exempt client that is harmless works",
              (ETL, Job("backup:x", exempt=True, cost=0.0, works=((1800, 2 * HOUR),))),
              load=lambda second: max(0.0, min(300.0, (second - 2400) / 2)), hours=2,
              starved=frozenset({"etl:nightly"}), culprit=Culprit.UNEXPLAINED_LOAD),
    Situation("one exempt client starves others, and another one is harmless",
              (ETL, HARMLESS, HOG), starved=frozenset({"etl:nightly"}),
              culprit=Culprit.EXEMPT_CLIENT, blamed=frozenset({"migration:fix"})),
    Situation("differential-metric starvation, beside a harmless exempt client",
              (Job("etl:nightly", metrics=LAG_AND_THREADS), HARMLESS,
               Job("backfill:orders", metrics=BY_THREADS, cost=2.0)),
              starved=frozenset({"etl:nightly"}), culprit=Culprit.DIFFERENTIAL_METRICS,
              blamed=frozenset({"backfill:orders"})),
    Situation("differential-metric starvation",
              (Job("etl:nightly", metrics=LAG_AND_THREADS),
               Job("backfill:orders", metrics=BY_THREADS, cost=2.0)),
              starved=frozenset({"etl:nightly"}), culprit=Culprit.DIFFERENTIAL_METRICS),
    Situation("differential-metric starvation of a level",
              (*jobs(4, metrics=LAG_AND_THREADS), Job("x:y", metrics=BY_THREADS, cost=1.5)),
              starved=BATCH, culprit=Culprit.DIFFERENTIAL_METRICS),
    Situation("a stricter threshold than the others' throttles one",
              (*jobs(5, cost=2.0), Job("etl:careful", limit=0.5)), hours=2,
              starved=frozenset({"etl:careful"}), culprit=Culprit.DIFFERENTIAL_METRICS),
    Situation("a favored client with a hot row pins the metric",
              (Job("fix:hot", cost=500.0), Job("etl:nightly", ratio=0.95)), hours=2,
              starved=frozenset({"etl:nightly"}), culprit=Culprit.ADMITTED_WORK),
)  # fmt: skip
SITUATIONS = HEALTHY + STARVED


def main() -> None:
    policy, rows, found, false = StarvationTerms(), [], 0, 0
    for situation in SITUATIONS:
        outcome = play(situation, policy)
        alarmed = bool(outcome.alarms)
        found += bool(situation.starved) and outcome.right
        false += alarmed and not situation.starved
        told = ", ".join(sorted(outcome.alarms)) or "–"
        why = ", ".join(sorted(c.value for c in outcome.culprits)) or "–"
        when = f"{outcome.first_s / 60:.0f} min" if outcome.first_s else "–"
        mark = "right" if outcome.right else "WRONG"
        rows.append((situation.name, told, why, when, mark))
    print(table(["situation", "alarm for", "cause", "after", ""], rows))
    recall = found / len(STARVED)
    print(f"\nrecall {recall:.2f} of {len(STARVED)}; {false} false alarms in {len(HEALTHY)}")


if __name__ == "__main__":
    main()
