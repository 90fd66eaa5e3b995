"""Pace admission while the metrics are healthy.   Checker ──OK──► Pacer ──► OK, or when to retry

One Pacer per database that has a paced metric. It gets each new Health, steps the controller of
pacing/model.py, and has a bucket that the controller's rate refills. A check is admitted if the
bucket is not in debt, and is charged its whole cost: a big check is admitted like a small one,
and the checks after it wait longer. A cost far above the usual is charged to the client that
declares it: that client waits, others hardly. The pacer runs only after the metrics admit a
check, so it never admits what the metrics reject.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median_low

import structlog

from headgate.base.names import ANONYMOUS, Identity, Scope
from headgate.base.ports import Clock
from headgate.check.board import Board
from headgate.check.health import Health, MetricStatus
from headgate.check.model import Decision, Verdict
from headgate.metrics.samples import Reading, Sample
from headgate.pacing.model import (
    MAX_DEBT_S,
    MOST_TYPICAL,
    UNIT,
    Observation,
    Pace,
    Queue,
    is_delay,
    most_charged,
    step,
)
from headgate.pacing.released import Backlog
from headgate.rules.matching import Kind, Rule

log = structlog.get_logger()

BURST_S = 0.1
"""An unused allowance is kept for this long: a client that retries a little late loses nothing."""
MIN_WAIT_S = 0.02
MAX_WAIT_S, MAX_WAIT_AT_START_S = 5.0, 1.0
"""Retry within this time even if the queue is longer: the rate may have grown meanwhile."""
OVERBOOKED, OVERBOOKED_AT_START = 1.25, 4.0
"""More clients are scheduled than the rate has room for: some come late, and the rate may grow."""
COSTS_KEPT = 63
"""The median of these is the usual cost."""
MAX_OWING, OWING_S = 256, 30.0
"""Longest wait of a client that declared more than it was charged, if others want to work."""


class PaceBucket:
    """Filled at a rate, emptied by what is admitted, with turns for those who are sent away."""

    __slots__ = ("_at", "_booked_until", "_tokens", "by_outlier", "most", "pace", "poured", "usual")

    def __init__(self, now: float) -> None:
        self.pace = Pace()
        self.most = most_charged(self.pace, UNIT, BURST_S)
        """The most that one check is charged."""
        self.usual = MOST_TYPICAL * UNIT
        """The most to learn from a client that declared more than it was charged."""
        self.poured = 0.0
        """Total that the rate has granted so far."""
        self.by_outlier = False
        """The debt is from a client that declared more than it was charged."""
        self._at = self._booked_until = now
        self._tokens = self.pace.rate * BURST_S

    def adopt(
        self, pace: Pace, now: float, *, typical: float = UNIT, interval_s: float = 1.0
    ) -> None:
        self.fill(now)
        self.pace = pace
        self.most = most_charged(pace, typical, interval_s)
        self.usual = MOST_TYPICAL * typical
        most_debt = self.most if self.by_outlier else MAX_DEBT_S * pace.rate
        self._tokens = min(pace.rate * BURST_S, max(self._tokens, -most_debt))

    def fill(self, now: float) -> None:
        """A clock that stops or goes back adds nothing."""
        if now > self._at:
            rate = self.pace.rate
            more = (now - self._at) * rate
            self._tokens = min(rate * BURST_S, self._tokens + more)
            self.poured += more
            self._at = now
            if self._tokens >= 0:
                self.by_outlier = False

    @property
    def in_debt(self) -> bool:
        return self._tokens < 0

    def take(self, cost: float) -> float:
        """What it is charged."""
        charged = min(cost, self.most)
        self._tokens = max(self._tokens - charged, -MAX_DEBT_S * self.pace.rate)
        self.by_outlier = cost > charged
        return charged

    def give_back(self, cost: float) -> float:
        charged = min(cost, self.most)
        self._tokens = min(self.pace.rate * BURST_S, self._tokens + charged)
        return charged

    def turn(self, cost: float, now: float, roll: float, *, book: bool = True) -> float:
        """Seconds to wait. Each client gets a turn after the last, so that they do not all retry
        at once."""
        pace = self.pace
        overbooked, longest_s = OVERBOOKED, MAX_WAIT_S
        if pace.starting:
            overbooked, longest_s = OVERBOOKED_AT_START, MAX_WAIT_AT_START_S
        turn_at = max(now - self._tokens / pace.rate, self._booked_until)
        wait_s = turn_at - now
        if wait_s >= longest_s:
            return longest_s * (0.5 + roll)
        if book:
            # Whatever one declares: the turns behind it begin within the longest wait.
            behind = turn_at + min(cost, self.most) / (pace.rate * overbooked)
            self._booked_until = min(behind, now + longest_s)
        return max(MIN_WAIT_S, wait_s) * (0.75 + 0.5 * roll)


class Debtors:
    """Clients that declared more than they were charged: each waits alone for the rest, while
    others want to go."""

    __slots__ = ("_contended", "_wanted", "until")

    def __init__(self) -> None:
        self.until: dict[str, tuple[float, float]] = {}
        """Client → the granted total, or at the latest the time, at which it may be admitted."""
        self._wanted = self._contended = False
        """Whether pacing rejected a client without a debt, since the last reading and before it."""

    def lend(self, client: str, cost: float, bucket: PaceBucket, now: float) -> None:
        """What the others are not held up by, it waits for alone."""
        if len(self.until) >= MAX_OWING:
            del self.until[next(iter(self.until))]
        self.until[client] = (bucket.poured + cost, now + OWING_S)

    def wait_s(self, client: str, bucket: PaceBucket, now: float, roll: float) -> float | None:
        """Seconds to wait for what it declared the last time, while others want to go."""
        owed = self.until.get(client)
        if owed is None or not (self._wanted or self._contended):
            return None
        until_poured, until = owed
        left_s = min((until_poured - bucket.poured) / bucket.pace.rate, until - now)
        if left_s <= 0:
            del self.until[client]
            return None
        return min(MAX_WAIT_S, max(MIN_WAIT_S, left_s)) * (0.75 + 0.5 * roll)

    def note_rejected(self, client: str) -> None:
        self._wanted |= client not in self.until

    def turn_page(self) -> None:
        """At a reading."""
        self._contended, self._wanted = self._wanted, False


class Pacer:
    __slots__ = (
        "_admitted",
        "_backlog",
        "_bucket",
        "_by_default",
        "_costs",
        "_debtors",
        "_health",
        "_limited",
        "_note",
        "_seen_at",
        "_taken",
        "cost_total",
        "metrics",
        "paced_total",
        "worst",
    )

    def __init__(self, now: float) -> None:
        self.metrics: Mapping[str, MetricStatus] = {}
        """The paced metrics, as last seen."""
        self.worst = ""
        """The metric that last set the rate."""
        self.cost_total = 0.0
        """Total cost declared by admitted checks."""
        self.paced_total = 0
        """Checks that pacing rejected."""
        self._by_default: frozenset[str] = frozenset()
        """Paced metrics that apply to a check that names none."""
        self._bucket = PaceBucket(now)
        self._health: Health | None = None
        self._seen_at = now
        self._admitted = 0.0
        """Cost as the pacer believes it, without what was given back."""
        self._taken = 0.0
        self._limited = False
        self._backlog = Backlog(now)
        """Marks of the admitted cost, so that a delay shows how much of it was replayed."""
        self._costs: deque[tuple[str, float]] = deque(maxlen=COSTS_KEPT)
        """Client and declared cost of the last admitted checks."""
        self._debtors = Debtors()
        self._note = "the current allowance is used up; it is small until the first reading"

    @property
    def pace(self) -> Pace:
        return self._bucket.pace

    # --- checks ----------------------------------------------------------------------------

    def meter(self, decision: Decision, roll: float) -> Decision:
        """The gate's answer; or PACED, with the time to come back, where that was an OK.
        `roll` is the throw that the gate has had already."""
        cost, now = decision.check.cost, decision.at.mono_s
        concerned = self._concerned(decision)
        if not concerned:
            return decision
        if _waives(decision.applied.exempt, concerned):
            self.charge(cost, now, decision.check.identity)
            return decision
        wait_s = self.admit(cost, now, _unspent(decision, roll), decision.check.identity)
        return decision if wait_s is None else self._paced(decision, wait_s)

    def foresee(self, decision: Decision, roll: float) -> Decision:
        """What `meter` would answer; nothing is taken, and no turn is given away."""
        concerned, now = self._concerned(decision), decision.at.mono_s
        if not concerned or _waives(decision.applied.exempt, concerned):
            return decision
        self._bucket.fill(now)
        roll = _unspent(decision, roll)
        wait_s = self._debtors.wait_s(decision.check.identity.text, self._bucket, now, roll)
        if wait_s is None and self._bucket.in_debt:
            wait_s = self._bucket.turn(decision.check.cost, now, roll, book=False)
        return decision if wait_s is None else self._paced(decision, wait_s)

    def _paced(self, decision: Decision, wait_s: float) -> Decision:
        # A ratio that let it through did not decide; `applied` still tells of it.
        return decision._replace(
            verdict=Verdict.PACED, rule=None, retry_after_s=wait_s, note=self._note
        )

    def _concerned(self, decision: Decision) -> Collection[str]:
        """The paced metrics by which this would be an OK; none where it is not ours to say."""
        health = decision.health
        if health is None or decision.verdict is not Verdict.OK:
            return ()
        if health is not self._health:
            self.follow(health, decision.at.mono_s)
        check = decision.check
        # Read-only checks are not paced, nor are checks that use other metrics.
        if check.read_threshold is not None:
            return ()
        if not check.metrics:
            return self._by_default
        return [ref.metric for ref in check.metrics if ref.metric in self.metrics]

    def admit(
        self, cost: float, now: float, roll: float, who: Identity = ANONYMOUS
    ) -> float | None:
        """None: go. Else the seconds after which to come back."""
        bucket, debtors = self._bucket, self._debtors
        bucket.fill(now)
        wait_s = debtors.wait_s(who.text, bucket, now, roll) if debtors.until else None
        if wait_s is not None:
            self.paced_total += 1
            return wait_s
        if bucket.in_debt:
            self.paced_total += 1
            # Slow start goes by what was released and borne; for one that declared too much,
            # nothing is released.
            self._limited |= not (bucket.by_outlier and bucket.pace.starting)
            debtors.note_rejected(who.text)
            return bucket.turn(cost, now, roll)
        charged = self.charge(cost, now, who)
        if cost > charged and who is not ANONYMOUS:
            debtors.lend(who.text, cost - charged, bucket, now)
        return None

    def charge(self, cost: float, now: float, who: Identity = ANONYMOUS) -> float:
        """Charge work that starts, whether pacing admitted it or not (an exempt client)."""
        self._bucket.fill(now)
        charged = self._bucket.take(cost)
        self._costs.append((who.text, cost))
        self._taken += charged if charged == cost else min(charged, self._bucket.usual)
        self._admitted += charged
        self.cost_total += cost
        return charged

    def give_back(self, decision: Decision) -> None:
        """Undo an admission: another database of the check has rejected it."""
        if not self._concerned(decision):
            return
        self._debtors.until.pop(decision.check.identity.text, None)
        charged = self._bucket.give_back(decision.check.cost)
        self._taken = max(0.0, self._taken - charged)
        self._admitted -= charged

    # --- readings --------------------------------------------------------------------------

    def follow(self, health: Health, now: float) -> None:
        """Look at a new Health; step if the worst of the paced metrics was read again."""
        if health is self._health:
            return
        self._health = health
        self.metrics = {standing.spec.name: standing for standing in paced(health)}
        default = {standing.spec.name for standing in health.default.standings}
        self._by_default = frozenset(default & self.metrics.keys())
        # One that is lost says nothing of now: those that are read are steered by.
        seen = [s for s in self.metrics.values() if s.sample is not None and s.absent is None]
        worst = max(seen, key=_load, default=None)
        if worst is None or worst.sample is None or worst.sample.taken_at <= self._seen_at:
            return
        self._step(worst, worst.sample, now)

    def _step(self, worst: MetricStatus, sample: Sample, now: float) -> None:
        self._backlog.mark(now, self._admitted)
        elapsed_s = sample.taken_at - self._seen_at
        seen = Observation(
            load=_load(worst),
            breached=worst.breached,
            elapsed_s=elapsed_s,
            interval_s=max(standing.spec.interval_s for standing in self.metrics.values()),
            taken=self._taken,
            limited=self._limited,
            queue=self._queue(worst, sample, elapsed_s),
        )
        typical = _typical(self._costs)
        self._debtors.turn_page()
        pace = step(self.pace, seen)
        self._bucket.adopt(pace, now, typical=typical, interval_s=seen.interval_s)
        self._seen_at, self._taken, self._limited = sample.taken_at, 0.0, False
        self.worst = worst.spec.name
        self._note = (
            f"the current allowance is used up ({self.pace.rate:.3g} of cost a "
            f"second, to keep {self.worst} near {worst.spec.pace_target:.0%} of its threshold)"
        )

    def _queue(self, worst: MetricStatus, sample: Sample, elapsed_s: float) -> Queue | None:
        spec = worst.spec
        if not is_delay(spec.name, spec.unit):
            self._backlog.skip()
            return None
        full_s = spec.threshold * spec.pace_target
        return self._backlog.queue(sample.value, sample.taken_at, elapsed_s, full_s)


def paced(health: Health) -> list[MetricStatus]:
    """Each paced metric in its own scope, where that can be seen from here."""
    shard = health.shard.standings if health.shard and not health.shard.check_at else {}
    found = []
    for name, standing in health.standings.items():
        if standing.spec.pace and standing.spec.threshold > 0:
            whole = shard.get(name) if standing.spec.scope is Scope.SHARD else None
            found.append(whole if whole is not None else standing)
    return [standing for standing in found if standing.spec.threshold > 0]


def _load(standing: MetricStatus) -> float:
    return standing.utilization / standing.spec.pace_target


def _typical(costs: Collection[tuple[str, float]]) -> float:
    """As often as it is admitted, one client has one voice; and one that comes in many names
    has no more than it was admitted with."""
    if not costs:
        return UNIT
    return min(median_low(cost for _, cost in costs), median_low(dict(costs).values()))


def _waives(exempt: Rule | None, concerned: Collection[str]) -> bool:
    """Whether a client is exempt from every metric that it would be paced for."""
    if exempt is None:
        return False
    return not exempt.metrics or all(name in exempt.metrics for name in concerned)


def _unspent(decision: Decision, roll: float) -> float:
    """The check's one throw, uniform again for a client that a ratio has let through, or would
    not have (its dice were waived)."""
    ratio = decision.rule.ratio if decision.rule and decision.rule.kind is Kind.RATIO else 0.0
    if not 0 < ratio < 1:
        return roll
    return roll / ratio if roll < ratio else (roll - ratio) / (1 - ratio)


class Pacers:
    """Of all databases of this agent that have a paced metric."""

    def __init__(self, board: Board, clock: Clock) -> None:
        self._healths = board.healths
        self._now = clock.now
        self.by_database: dict[str, Pacer] = {}
        """Read directly on the hot path; empty if nothing is paced."""

    def note_reading(self, database: str, _metric: str, _reading: Reading) -> None:
        """For Sampler.watch: called when the Board has the reading."""
        self.look(database)

    def look(self, database: str) -> None:
        """A reading, a rollup of its shard or a change of settings is on the Board."""
        health, pacer = self._healths.get(database), self.by_database.get(database)
        if health is None or not paced(health):
            if pacer is not None:
                del self.by_database[database]
                log.info("pacing.off", database=database)
            return
        now = self._now().mono_s
        if pacer is None:
            pacer = self.by_database[database] = Pacer(now)
            log.info("pacing.on", database=database, metrics=[s.spec.name for s in paced(health)])
        pacer.follow(health, now)

    def look_at_all(self) -> None:
        """After a reload: databases may be gone."""
        for database in {*self.by_database, *self._healths}:
            self.look(database)
