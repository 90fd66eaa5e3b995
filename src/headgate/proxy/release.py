"""Drive the control loop that decides how much is released.

    Snapshot ──► Pacing ──stepped | pacing.step──► rate ──► Relay.put_release
                   ▲                                           │
                   └──────────── Relay.released ◄──────────────┘ what really went

One step for each new reading of the worst metric. What the relay has released since is the only
thing it has to know of the traffic; so it costs the same whatever goes through.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.base.ports import Clock
from headgate.check.health import Health, MetricStatus
from headgate.check.snapshot_api import Snapshot
from headgate.metrics.samples import Sample
from headgate.pacing import model as pacing
from headgate.pacing.model import Observation, Pace, Queue, is_delay
from headgate.pacing.released import Backlog, LoadReading, Steps, begun, stepped
from headgate.proxy.model import Act, GateTerms, ReleaseKind, ReleaseTerms
from headgate.proxy.ports import PartState, Relay, Release, Released

BURST_S = 0.1
"""What nobody takes is kept for so long, as agents do (pacing/pacer.py)."""
LOOK_S = 0.5
NO_RELEASE = Release()


class Pacing:
    """Steps at each report; its own loop only looks whether there are any reports."""

    name = "release"

    def __init__(
        self,
        relay: Relay,
        terms: ReleaseTerms,
        gate: GateTerms,
        clock: Clock,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s`: the clock that snapshots are dated by."""
        self._relay = relay
        self._clock = clock
        self._now_s = now_s
        self._begin(terms, gate)

    def _begin(self, terms: ReleaseTerms, gate: GateTerms) -> None:
        now_s, released = self._now_s(), self._relay.released()
        self._terms, self._gate = terms, gate
        self._steps: Steps = begun(terms)
        initial = max(pacing.MIN_RATE, terms.initial_per_s)
        self._pace = Pace(rate=initial, sustained=initial)
        self._backlog = Backlog(now_s)
        self._first = self._last = released
        self._seen_at: float | None = None
        self._heard_s = now_s
        self._lost = False
        self.worst = ""
        self.load: float | None = None
        self._put()

    def adopt(self, terms: ReleaseTerms, gate: GateTerms) -> None:
        """Other settings; where they are the same, the loop goes on as it is."""
        if (terms, gate) != (self._terms, self._gate):
            self._begin(terms, gate)

    # --- listening -------------------------------------------------------------------------

    def hear(self, snapshot: Snapshot) -> None:
        if self._terms.kind is ReleaseKind.OFF:
            return
        self._heard_s = snapshot.sent_s
        if self._lost:
            self._lost = False
            self._put()
        worst = worst_of(snapshot.view.health, self._gate.metrics)
        if worst is None or worst.sample is None:
            self.load, self.worst = None, ""
            return
        if self._seen_at is None or worst.sample.taken_at > self._seen_at:
            self._step(worst, worst.sample)
            self._put()

    async def run(self) -> None:
        while True:
            self.tick()
            await self._clock.sleep(LOOK_S)

    def tick(self) -> None:
        """No agent reports any more: the last health has expired, and the pace with it, unless
        the fail policy is to delay statements."""
        silent_s = self._now_s() - self._heard_s
        if self._lost or silent_s <= self._gate.stale_after_s or self._seen_at is None:
            return
        if self._gate.on_loss in (Act.PASS, Act.WARN):
            self._lost = True
            self._put()

    def _step(self, worst: MetricStatus, sample: Sample) -> None:
        now_s, released = self._now_s(), self._relay.released()
        before = self._seen_at if self._seen_at is not None else sample.taken_at
        elapsed_s = sample.taken_at - before
        self._backlog.mark(now_s, released.taken - self._first.taken)
        if self._terms.kind is ReleaseKind.STEPS:
            self._stepped(worst, sample, released, elapsed_s)
        else:
            self._paced(worst, sample, released, elapsed_s)
        self._seen_at, self._last = sample.taken_at, released
        self.worst, self.load = worst.spec.name, worst.utilization

    def _stepped(
        self, worst: MetricStatus, sample: Sample, released: Released, elapsed_s: float
    ) -> None:
        seen = LoadReading(
            load=worst.utilization,
            at=sample.taken_at,
            elapsed_s=elapsed_s,
            taken=released.taken - self._last.taken,
            limited=released.limited > self._last.limited,
        )
        self._steps = stepped(self._steps, seen, self._terms)

    def _paced(
        self, worst: MetricStatus, sample: Sample, released: Released, elapsed_s: float
    ) -> None:
        seen = Observation(
            load=worst.utilization / self._terms.target,
            breached=worst.breached,
            elapsed_s=elapsed_s,
            interval_s=worst.spec.interval_s,
            taken=released.taken - self._last.taken,
            limited=released.limited > self._last.limited,
            queue=self._queue(worst, sample, elapsed_s),
        )
        self._pace = pacing.step(self._pace, seen)

    def _queue(self, worst: MetricStatus, sample: Sample, elapsed_s: float) -> Queue | None:
        spec = worst.spec
        if not is_delay(spec.name, spec.unit):
            self._backlog.skip()
            return None
        full_s = spec.threshold * self._terms.target
        return self._backlog.queue(sample.value, sample.taken_at, elapsed_s, full_s)

    async def close(self) -> None:
        return None

    # --- telling ---------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        steps = self._terms.kind is ReleaseKind.STEPS
        return self._steps.rate if steps else self._pace.rate

    def _put(self) -> None:
        if self._terms.kind is ReleaseKind.OFF or self._lost:
            self._relay.put_release(NO_RELEASE)
            return
        rate, terms = self.rate, self._terms
        self._relay.put_release(
            Release(rate, max(1.0, rate * BURST_S), terms.action, terms.max_delay_s)
        )

    @property
    def phase(self) -> str:
        if self._terms.kind is ReleaseKind.OFF:
            return "off"
        if self._lost:
            return "lost"
        if self._terms.kind is ReleaseKind.STEPS:
            return self._steps.phase.value
        return "starting" if self._pace.starting else "steering"

    def state(self) -> PartState:
        if self._terms.kind is ReleaseKind.OFF:
            return PartState(self.name, True, "off: nothing is paced")
        if self._lost:
            return PartState(self.name, False, "no agent reports: no pacing until one does")
        load = "no metric has a value to steer by"
        if self.load is not None:
            load = f"{self.worst} is at {self.load:.0%} of its threshold"
        summary = f"{self.rate:.4g} statements/s, {self.phase}; {load}"
        released = self._relay.released()
        return PartState(self.name, self.load is not None, summary, figures={
            "phase": self.phase,
            "rate_per_s": self.rate,
            "load": self.load,
            "released_total": released.taken,
            "limited_total": released.limited,
        })  # fmt: skip


def worst_of(health: Health, metrics: tuple[str, ...]) -> MetricStatus | None:
    """Of the gate's metrics, the one nearest to its threshold. One that is unavailable says
    nothing about now, and the others still count; a threshold of 0 leaves no distance to steer
    by, so such a metric does not count."""
    judged = health.default.standings
    if metrics:
        own = [*health.default.standings, *health.standings.values()]
        judged = tuple({s.spec.name: s for s in reversed(own) if s.spec.name in metrics}.values())
    seen = [s for s in judged if s.sample is not None and s.absent is None and s.spec.threshold > 0]
    return max(seen, key=lambda standing: standing.utilization, default=None)
