"""Notice who is starved, and say so.   Recorder, Board ──► Watch ──► findings, Alerts, suspend

Off the hot path: the Recorder tells about once a second what it counted, the detector
(history/starvation.py) looks every few seconds, in pieces, so that no check waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

import structlog

from headgate.base.names import MetricRef, Scope
from headgate.base.ports import Clock
from headgate.check.board import Board
from headgate.check.decide import judge as judge_metric
from headgate.check.health import Health
from headgate.check.model import Check, State, Verdict
from headgate.errors import HeadgateError
from headgate.history.alerts import Alerts
from headgate.history.keeper import MetricMinutes, standings_of
from headgate.history.recorder import RULE, UNKNOWN_DATABASE, ClientRecord, Key, Recorder, named
from headgate.history.starvation import Culprit, StarvationFinding, Starved, judge, lasts
from headgate.history.starvation_courses import (
    ClientMetrics,
    ClientTick,
    DatabaseCourses,
    MinuteLook,
    StarvationTerms,
    Tick,
    advancing,
)
from headgate.metrics.samples import Instant
from headgate.rules.matching import DiceOrder, RuleBook

log = structlog.get_logger()

LOOK_INTERVAL_S = 1.0
TICK_INTERVAL_S = 5.0
MIN_TICK_S = 0.1
TICKS_A_WINDOW = 20
BEGINS, ENDS = "starvation.begins", "starvation.ends"
SUSPENDED = "exemption.suspended"
KINDS = (BEGINS, ENDS, SUSPENDED)
"""Of alerts."""

MAX_CHARGED = 100
"""Clients of one exemption."""
MAX_KEPT = 20
"""Of those, the worst off: the budget counts for them."""
MAX_STRETCHES = 20
EARLIER = float("-inf")
KEEP_S = 3.0


class Exemptions(Protocol):
    """Exemptions, and where what they are charged for outlives the process."""

    async def suspend(self, rule_id: str, why: str) -> bool:
        """False if it is suspended already."""
        ...

    def charged(self, rule_id: str) -> Mapping[str, float]:
        """`database client` → seconds, as it was kept last."""
        ...

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None: ...


class Charges:
    """How long an exemption has starved which client, over all stretches and restarts: stored every
    few seconds with the rule itself."""

    def __init__(self, exemptions: Exemptions | None = None) -> None:
        self._exemptions = exemptions
        self._stretches: dict[str, dict[str, dict[float, float]]] = {}
        """Rule → `database client` → when the stretch began → how long it is."""
        self._kept_at: dict[str, float] = {}

    def add(self, finding: StarvationFinding, book: RuleBook) -> float:
        """What the one who is worst off has been charged for by now, in seconds."""
        starved, since_s = finding
        for gone in [rule_id for rule_id in self._stretches if rule_id not in book]:
            del self._stretches[gone]
            self._kept_at.pop(gone, None)
        by_client = self._of(starved.rule)
        who = f"{starved.database} {starved.client}"
        if who not in by_client and len(by_client) >= MAX_CHARGED:
            return starved.starved_s
        mine = by_client.setdefault(who, {})
        mine[since_s] = starved.starved_s
        spent_s = sum(mine.values())
        if len(mine) > MAX_STRETCHES:  # Their sum is all that matters of the old ones.
            earlier_s = spent_s - starved.starved_s
            by_client[who] = {EARLIER: earlier_s, since_s: starved.starved_s}
        return spent_s

    async def keep(self, rule_id: str, now_s: float, *, at_once: bool = False) -> None:
        """So that a restart does not refill the budget; a crash costs a few seconds of it."""
        last_s = self._kept_at.get(rule_id, EARLIER)
        if self._exemptions is None or (now_s - last_s < KEEP_S and not at_once):
            return
        self._kept_at[rule_id] = now_s
        sums = {who: round(sum(of.values()), 3) for who, of in self._of(rule_id).items()}
        worst = sorted(sums, key=lambda who: sums[who], reverse=True)[:MAX_KEPT]
        charged = {who: sums[who] for who in worst}
        if charged != self._exemptions.charged(rule_id):
            await self._exemptions.charge(rule_id, charged)

    def _of(self, rule_id: str) -> dict[str, dict[float, float]]:
        known = self._stretches.get(rule_id)
        if known is None:
            before = self._exemptions.charged(rule_id) if self._exemptions is not None else {}
            known = {who: {EARLIER: spent_s} for who, spent_s in before.items()}
            self._stretches[rule_id] = known
        return known


class Watch:
    def __init__(
        self,
        recorder: Recorder,
        board: Board,
        clock: Clock,
        alerts: Alerts,
        *,
        rules: Callable[[], RuleBook],
        minutes: MetricMinutes,
        policy: StarvationTerms | None = None,
        exemptions: Exemptions | None = None,
    ) -> None:
        """`exemptions`: those to suspend when they starve others; None: none is."""
        self._recorder = recorder
        self._board = board
        self._clock = clock
        self.alerts = alerts
        self._rules = rules
        self._minutes = minutes
        self.policy = policy or StarvationTerms()
        self._exemptions = exemptions
        self._counted: dict[Key, int] = {}
        self._scenes: dict[str, DatabaseCourses] = {}
        self._findings: dict[str, tuple[StarvationFinding, ...]] = {}
        self._charges = Charges(exemptions)
        recorder.watch(self._note)

    @property
    def findings(self) -> tuple[Starved, ...]:
        """Who is starved now; those below the waterline too."""
        return tuple(f.starved for found in self._findings.values() for f in found)

    def scene(self, database: str) -> DatabaseCourses | None:
        return self._scenes.get(database)

    @property
    def tick_s(self) -> float:
        """A short window is looked at more often."""
        return min(TICK_INTERVAL_S, max(MIN_TICK_S, self.policy.window_s / TICKS_A_WINDOW))

    async def run(self) -> None:
        look_at = tick_at = self._clock.now().mono_s
        while True:
            now = self._clock.now()
            if now.mono_s >= look_at:
                look_at = now.mono_s + LOOK_INTERVAL_S
                self._minutes.look(self._board.healths, now)
            if now.mono_s >= tick_at:
                tick_at = now.mono_s + self.tick_s
                await self.tick()
            await self._clock.sleep(min(LOOK_INTERVAL_S, self.tick_s))

    async def tick(self) -> None:
        now = self._clock.now()
        self._recorder.roll_over(now.wall_s)
        counted, self._counted = self._counted, {}
        records = {(database, client): r for database, client, r in self._recorder.clients()}
        for gone in self._scenes.keys() - self._board.healths.keys():
            del self._scenes[gone]
            for finding in _alarming(self._findings.pop(gone, ())).values():
                self.alerts.put(ENDS, document(finding))
        for database, health in list(self._board.healths.items()):
            seen = _seen(counted, database, self._rules())
            judged = {
                client: self._judged(records[database, client], health, now)
                for client in seen
                if (database, client) in records
            }
            tick = Tick(now.mono_s, seen, dict(_looks(health, now)), judged)
            await self._advance(database, tick)
            await self._tell(database)

    def _note(self, counted: list[tuple[Key, int]]) -> None:
        for key, count in counted:
            if key[0] != UNKNOWN_DATABASE:
                self._counted[key] = self._counted.get(key, 0) + count

    async def _advance(self, database: str, tick: Tick) -> None:
        scene = self._scenes.get(database) or DatabaseCourses(database, tick.now_s)
        steps = advancing(scene, tick, self.policy)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self._scenes[database] = end.value
                return
            await asyncio.sleep(0)

    def _judged(self, record: ClientRecord, health: Health, now: Instant) -> ClientMetrics:
        check = record.check
        applied = self._rules().applied(check.identity, health.database, now.wall_s)
        stricter = {metric: rule.id for metric, rule in applied.thresholds.items()}
        metrics = frozenset(_metrics_of(check, health))
        plain = {metric: metric.rpartition("/")[2] for metric in metrics}
        return ClientMetrics(metrics, {m: stricter[p] for m, p in plain.items() if p in stricter})

    # --- telling ---------------------------------------------------------------------------

    async def _tell(self, database: str) -> None:
        scene, before = self._scenes[database], self._findings.get(database, ())
        found = judge(scene, self.policy)
        told = {member for f in found for member in f.starved.members}
        # Less evident for a moment, but not over: it stays, and is not reported again.
        kept = [
            f._replace(starved=replace(f.starved, starved_s=scene.now_s - f.since_s))
            for f in before
            if not told & set(f.starved.members) and lasts(f, scene, self.policy)
        ]
        self._findings[database] = now = (*found, *kept)
        alarmed, alarming = _alarming(before), _alarming(now)
        for subject in alarming.keys() - alarmed.keys():
            self.alerts.put(BEGINS, document(alarming[subject]))
        for subject in alarmed.keys() - alarming.keys():
            self.alerts.put(ENDS, document(alarmed[subject]))
        for finding in now:
            await self._guard(finding)

    async def _guard(self, finding: StarvationFinding) -> None:
        """An exemption that starves others beyond its budget is suspended."""
        starved = finding.starved
        if self._exemptions is None or starved.cause is not Culprit.EXEMPT_CLIENT:
            return
        book = self._rules()
        spent_s = self._charges.add(finding, book)
        within = starved.rule in book.suspended or spent_s < self.policy.exemption_budget_s
        await self._charges.keep(starved.rule, self._clock.now().mono_s, at_once=not within)
        if within:
            return
        why = (
            f"it starves {starved.client} on {starved.database}: {starved.metric} has rejected it "
            f"for {starved.starved_s / 60:.0f} min now, {spent_s / 60:.0f} min in all because of "
            f"this exemption; {self.policy.exemption_budget_s / 60:g} min are allowed. Set the "
            "rule again if it must go on"
        )
        try:
            if await self._exemptions.suspend(starved.rule, why):
                self.alerts.put(SUSPENDED, {**document(starved), "why": why})
        except HeadgateError as error:
            log.error("exemption.not_suspended", rule=starved.rule, detail=str(error))


def document(starved: Starved) -> dict[str, Any]:
    """As alerts carry it: plain values."""
    return {**asdict(starved), "cause": starved.cause.value}


def _alarming(findings: tuple[StarvationFinding, ...]) -> dict[tuple[str, bool], Starved]:
    found = [one.starved for one in findings]
    return {(one.client, one.is_level): one for one in found if one.alarming}


# --- counts as the detector wants them -----------------------------------------------------


def _seen(counted: Mapping[Key, int], database: str, book: RuleBook) -> dict[str, ClientTick]:
    diced_after = {f"{RULE}{r.id}" for r in book.rules if r.order is DiceOrder.AFTER}
    found: dict[str, ClientTick] = {}
    for (place, client, verdict, by), count in counted.items():
        if place == database:
            what = _one(verdict, by, count, by in diced_after)
            found[client] = found[client].plus(what) if client in found else what
    return found


def _one(verdict: Verdict, by: str, count: int, diced_after: bool) -> ClientTick:
    match verdict:
        case Verdict.OK if by:
            return ClientTick(exempted=count, exempt_by=by.removeprefix(RULE))
        case Verdict.OK:
            return ClientTick(admitted=count)
        case Verdict.THRESHOLD_EXCEEDED:
            return ClientTick(by_metric={by: count})
        case Verdict.REJECTED_BY_RATIO:
            # Thrown after the metrics, dice tell that these were fine.
            return ClientTick(diced=count, passed=count if diced_after else 0)
        case Verdict.PACED:
            return ClientTick(paced=count, passed=count)
        case Verdict.OVER_BUDGET:
            return ClientTick(over_budget=count, passed=count)
        case Verdict.ON_HOLD:
            return ClientTick(held=count)
        case _:
            return ClientTick(other=count)


def _looks(health: Health, now: Instant) -> Iterator[tuple[str, MinuteLook]]:
    for name, standing in standings_of(health):
        finding = judge_metric(standing, now)
        if finding.state in (State.HEALTHY, State.BREACHED, State.LAST_VALUE):
            yield name, MinuteLook(finding.state is State.BREACHED, standing.utilization)


def _metrics_of(check: Check, health: Health) -> Iterator[str]:
    if not check.metrics:
        by_scope = {None: health.default, Scope.HOST: health.host, Scope.SHARD: health.whole}
        yield from (named(standing.ref) for standing in by_scope[check.scope].standings)
        return
    for ref in check.metrics:
        here = health.standings.get(ref.metric)
        own = here.spec.scope if here is not None and health.shard is not None else None
        yield named(MetricRef(ref.metric, ref.scope or own))
