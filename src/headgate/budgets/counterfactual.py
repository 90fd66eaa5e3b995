"""What would have happened under another policy.   traces, policy ──► ReplayOutcome

Every trace goes through the reference's own rules and ledger, in order of time: taken at its start
with the estimate of then, settled when it ended with what it cost. So a policy means here what it
means in a server, and the one that was in force gives the verdicts that were recorded, if
every statement was traced.

A trace that represents w statements is decided as one of them (workers, burst and capacity, by
its own cost), and settled with w times the cost; its places are held for w times as long, for the
w came one after the other in one session. That keeps CPU and use of places right on average. The
error: a bucket may run over its capacity by what one trace represents (10 ms of CPU, or one
statement), and the w share one fate.

A blocked statement has no known cost: the estimate is used. If it was blocked before
there was a plan, or was never estimated because no budget concerned it, then the mean of its like
that ran is used for the estimate.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headgate.budgets.consequences import (
    Fate,
    ReplayKey,
    ReplayOutcome,
    ReplayRow,
    ReplayTally,
    client_of,
)
from headgate.budgets.ledger import Holding, Ledger
from headgate.budgets.matching import Now, RuleSet
from headgate.budgets.model import (
    Match,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
    StatementVerdict,
)
from headgate.budgets.policy import FINGERPRINT, Budget, Policy, is_tag
from headgate.budgets.traces import NO_FINGERPRINT, Trace

MS = 1_000_000
BUCKETS = 16_384
PATTERNS = 4
"""None is learnt: estimates are those of then."""
USERNAME = ("username",)
MINUTE_S, HOUR_S = 60, 3600
FOREVER_NS = 2**63
NO_BUDGET = ""
LEAST_NS = 5_000
"""Of CPU: no statement, not even a blocked one, takes a server less."""
SLACK_MS = 1000
"""Of one that is alone, nobody knows how long its like went on."""

HealthThen = Sequence[tuple[int, bool | None]]
"""(Unix time in ms, health from then on), in order; before the first it is not known."""


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """The server that is played, and how sums are wanted."""

    cpus_milli: int
    workers: int
    """100 % of concurrency."""
    health: HealthThen = ()
    by: tuple[str, ...] = USERNAME
    step_s: int = HOUR_S


def counterfactual(traces: Iterable[Trace], policy: Policy, stage: ReplayServer) -> ReplayOutcome:
    played, cut = possible(traces, stage.cpus_milli)
    played.sort(key=lambda trace: (trace.wall_ms, trace.sequence))
    play = _Play(RuleSet(policy), stage, _Known(played))
    for trace in played:
        play.goes_on_until(trace.wall_ms * MS)
        play.begins(trace)
    play.goes_on_until(FOREVER_NS)
    in_order = sorted(play.tallies, key=lambda key: (key.step_ms, key.budget, key.client))
    return ReplayOutcome(
        rows=tuple(ReplayRow(key, play.tallies[key]) for key in in_order),
        total=play.total,
        traces=len(played),
        since_ms=played[0].wall_ms if played else 0,
        until_ms=played[-1].wall_ms if played else 0,
        notes=tuple(_notes(played, policy, cut)),
    )


def ledger_at(traces: Iterable[Trace], policy: Policy, stage: ReplayServer, wall_ms: int) -> Ledger:
    """The debt and the places of then, had this policy been in force. `traces` until then."""
    played, _ = possible(traces, stage.cpus_milli)
    played.sort(key=lambda trace: (trace.wall_ms, trace.sequence))
    play = _Play(RuleSet(policy), stage, _Known(played))
    for trace in played:
        play.goes_on_until(trace.wall_ms * MS)
        play.begins(trace)
    play.goes_on_until(wall_ms * MS)
    return play.ledger


def possible(traces: Iterable[Trace], cpus_milli: int) -> tuple[list[Trace], int]:
    """The same traces, with impossible weights reduced; and the number of those.

    Even what is blocked takes the server some microseconds. A weight beyond what all CPUs could
    do in the whole time is a fault in the traces, and no reason to tell of millions.
    """
    found = list(traces)
    if not found:
        return found, 0
    began = min(trace.wall_ms for trace in found) - SLACK_MS
    span_ns = (max(trace.wall_ms for trace in found) - began) * MS
    cpu_ns = span_ns * max(1, cpus_milli) // 1000
    cut = [_at_most(trace, cpu_ns) for trace in found]
    too_many = sum(trace.weight for trace in cut) * LEAST_NS / cpu_ns
    if too_many > 1:
        cut = [replace(one, weight=max(1.0, one.weight / too_many)) for one in cut]
    return cut, sum(was.weight != now.weight for was, now in zip(found, cut, strict=True))


def _at_most(trace: Trace, cpu_ns: int) -> Trace:
    """However many sessions it represents: all CPUs together do no more."""
    most = max(1.0, cpu_ns / max(LEAST_NS, trace.actual_ns))
    return trace if trace.weight <= most else replace(trace, weight=most)


def newest_within(traces: Sequence[Trace], policy: Policy, most_looks: int) -> Sequence[Trace]:
    """The newest of them that can be matched with so many looks at a rule; `traces` in order.
    Alike statements are matched once."""
    rules = sum(len(budget.rules) for budget in policy.kept)
    alike: set[tuple[object, ...]] = set()
    for at in range(len(traces) - 1, -1, -1):
        alike.add(_alike(traces[at]))
        if len(alike) * rules > most_looks:
            return traces[at + 1 :]
    return traces


def _alike(trace: Trace) -> tuple[StatementIdentity, tuple[tuple[bytes, bytes], ...], int, int]:
    """What rules look at."""
    return trace.who, trace.tags, trace.query_id, trace.fingerprint


# --- what is known of those that were blocked --------------------------------------------------


class _Known:
    """Mean cost and duration, by query, of the traced statements that ran."""

    def __init__(self, traces: Iterable[Trace]) -> None:
        self._sums: dict[int, tuple[float, float, float]] = {}
        for trace in traces:
            if not trace.blocked and trace.query_id:
                weight, cpu, wall = self._sums.get(trace.query_id, (0.0, 0.0, 0.0))
                self._sums[trace.query_id] = (
                    weight + trace.weight,
                    cpu + trace.weight * trace.actual_ns,
                    wall + trace.weight * trace.wall_ns,
                )

    def estimate_ns(self, trace: Trace) -> int:
        known = self._sums.get(trace.query_id)
        if (trace.blocked_early or not trace.estimate_ns) and known is not None:
            return max(1, round(known[1] / known[0]))
        return max(1, trace.estimate_ns or trace.actual_ns)

    def cost_ns(self, trace: Trace) -> int:
        return self.estimate_ns(trace) if trace.blocked else trace.actual_ns

    def wall_ns(self, trace: Trace) -> int:
        """How long it runs; CPU time at least, where nothing is known."""
        if not trace.blocked:
            return trace.wall_ns
        known = self._sums.get(trace.query_id)
        return round(known[2] / known[0]) if known is not None else self.cost_ns(trace)


# --- the play ----------------------------------------------------------------------------------


class _End(NamedTuple):
    at_ns: int
    order: int
    trace: Trace
    holding: Holding


class _Again(NamedTuple):
    """A statement that was delayed looks again."""

    at_ns: int
    order: int
    trace: Trace
    waited_ns: int
    held_by: str


class _Play:
    def __init__(self, rules: RuleSet, stage: ReplayServer, known: _Known) -> None:
        self._rules = rules
        self._stage = stage
        self._known = known
        self.ledger = Ledger(
            cpus_milli=stage.cpus_milli,
            workers=stage.workers,
            buckets=BUCKETS,
            patterns=PATTERNS,
        )
        self._to_come: list[_End | _Again] = []
        self._orders = 0
        self._sleeping: dict[str, int] = {}
        self._health_from = [at_ms for at_ms, _ in stage.health]
        self._ends = sorted({b.expires_at_ms for b in rules.budgets if b.expires_at_ms})
        self._matches: dict[tuple[object, ...], tuple[Match, ...]] = {}
        self.tallies: dict[ReplayKey, ReplayTally] = {}
        self.total = ReplayTally()

    def goes_on_until(self, now_ns: int) -> None:
        """What has ended by then, and who has waited, in their order."""
        while self._to_come and self._to_come[0].at_ns <= now_ns:
            event = heapq.heappop(self._to_come)
            if isinstance(event, _End):
                cost_ns = round(event.trace.weight * self._known.cost_ns(event.trace))
                self.ledger.settle(event.holding, cost_ns, event.at_ns)
            else:
                self._sleeping[event.held_by] -= 1
                self._ask(event.trace, event.at_ns, event.waited_ns)

    def begins(self, trace: Trace) -> None:
        self._ask(trace, trace.wall_ms * MS, 0)

    def _ask(self, trace: Trace, now_ns: int, waited_ns: int) -> None:
        matches = self._matched(trace, now_ns)
        ask = StatementCheck(
            now_ns,
            wall_ms=now_ns // MS,
            cost_ns=self._known.estimate_ns(trace),
            p90_ns=trace.p90_ns,
            workers=trace.workers,
            flags=trace.asked | StatementFlags.COST_GIVEN,
        )
        answer, holding = self.ledger.take(self._rules.budgets, matches, ask)
        if answer.verdict is StatementVerdict.DELAY:
            if self._waits(trace, matches, answer, now_ns, waited_ns):
                return
            no_delay = replace(ask, flags=ask.flags | StatementFlags.NO_DELAY)
            answer, holding = self.ledger.take(self._rules.budgets, matches, no_delay)
        if holding is not None:
            # Starts are known to the millisecond, downwards. So are durations here: else the end
            # of a statement would lie after the start of the next one in its own session.
            runs_ms = int(trace.weight * self._known.wall_ns(trace)) // MS
            end = _End(now_ns + runs_ms * MS, self._next(), trace, holding)
            heapq.heappush(self._to_come, end)
        self._count(trace, matches, answer, waited_ns)

    def _waits(
        self,
        trace: Trace,
        matches: Sequence[Match],
        answer: StatementAnswer,
        now_ns: int,
        waited_ns: int,
    ) -> bool:
        """As in a server: for the budget's longest delay in all, and not with too many others."""
        budget = self._rules.budgets[matches[answer.match].budget]
        left_ns = budget.max_delay_ms * MS - waited_ns
        if left_ns <= 0 or self._sleeping.get(budget.name, 0) >= budget.max_delayed:
            return False
        self._sleeping[budget.name] = self._sleeping.get(budget.name, 0) + 1
        sleep_ns = min(answer.retry_ns, left_ns)
        waits = (now_ns + sleep_ns, self._next(), trace, waited_ns + sleep_ns, budget.name)
        heapq.heappush(self._to_come, _Again(*waits))
        return True

    def _next(self) -> int:
        self._orders += 1
        return self._orders

    # --- matching, once for what is alike ----------------------------------------------------

    def _matched(self, trace: Trace, now_ns: int) -> tuple[Match, ...]:
        at = bisect_right(self._health_from, now_ns // MS)
        now = Now(now_ns // MS, self._stage.health[at - 1][1] if at else None)
        alike = (*_alike(trace), now.healthy, bisect_right(self._ends, now.wall_ms))
        if alike not in self._matches:
            self._matches[alike] = self._rules.match(trace.who, trace.statement, now).at
        return self._matches[alike]

    # --- counting ----------------------------------------------------------------------------

    def _count(
        self, trace: Trace, matches: Sequence[Match], answer: StatementAnswer, waited_ns: int
    ) -> None:
        cost_ns = self._known.cost_ns(trace)
        step_ms = self._stage.step_s * 1000
        begin_ms, client = trace.wall_ms - trace.wall_ms % step_ms, client_of(trace, self._stage.by)
        budgets = [self._rules.budgets[match.budget] for match in matches]
        for budget, fate in _fates(trace, budgets, answer, waited_ns).items():
            tally = self.tallies.setdefault(ReplayKey(budget, client, begin_ms), ReplayTally())
            tally.add(trace, fate, cost_ns, waited_ns)
        self.total.add(trace, _fate_of_all(answer, waited_ns), cost_ns, waited_ns)


def _fate_of_all(answer: StatementAnswer, waited_ns: int) -> Fate:
    if answer.verdict is StatementVerdict.BLOCK:
        return Fate.BLOCKED
    if waited_ns:
        return Fate.DELAYED
    return Fate.WARNED if answer.verdict is StatementVerdict.WARN else Fate.RAN


def _fates(
    trace: Trace, budgets: Sequence[Budget], answer: StatementAnswer, waited_ns: int
) -> dict[str, Fate]:
    """In each budget once, however many of its buckets it falls under."""
    found: dict[str, Fate] = {} if budgets else {NO_BUDGET: Fate.RAN}
    for index, budget in enumerate(budgets):
        fate = Fate.DELAYED if waited_ns else Fate.RAN
        if answer.verdict is StatementVerdict.BLOCK:
            fate = Fate.BLOCKED if index == answer.match else Fate.ELSEWHERE
        elif _warns(trace, budget, answer, index):
            fate = Fate.WARNED
        if found.get(budget.name) in (None, Fate.RAN, Fate.ELSEWHERE):
            found[budget.name] = fate
    return found


def _warns(trace: Trace, budget: Budget, answer: StatementAnswer, index: int) -> bool:
    """Over a limit inside a transaction is no warning: the statement is admitted."""
    passes = budget.lets_pass(in_transaction=bool(trace.asked & StatementFlags.IN_TRANSACTION))
    return bool(answer.thresholds[index] or (answer.limits[index] and not passes))


# --- what this cannot know ---------------------------------------------------------------------


def _notes(traces: Sequence[Trace], policy: Policy, cut: int) -> Iterator[str]:
    if cut:
        yield (
            f"{cut:,} traces represent more statements than this server can have run in that "
            "time: they count as the most that it can run."
        )
    guessed = sum(trace.estimate_ns == 0 for trace in traces)
    if guessed:
        yield (
            f"{guessed:,} traces are of statements that no budget matched, so that no estimate "
            "was made: the mean of similar statements decides."
        )
    drawn = [trace.weight for trace in traces if trace.weight > 1]
    if drawn:
        yield (
            f"{len(drawn):,} of {len(traces):,} traces represent several cheap statements each, "
            f"{sum(drawn):,.0f} together: their numbers, and how many ran at once, are estimates."
        )
    blocked = sum(trace.weight for trace in traces if trace.blocked)
    if blocked:
        yield (
            f"{blocked:,.0f} statements were blocked then: what they would have cost is an "
            "estimate, and some are another's second try, which would not have come."
        )
    yield from _unknown_facts(traces, policy)


def _unknown_facts(traces: Sequence[Trace], policy: Policy) -> Iterator[str]:
    keys = {key for budget in policy.kept for rule in budget.rules for key in rule.keys}
    unprinted = sum(trace.fingerprint == NO_FINGERPRINT for trace in traces)
    if FINGERPRINT in keys and unprinted:
        yield (
            f"{unprinted:,} traces have no fingerprint: rules by `{FINGERPRINT}` do not match them "
            "here. Rules by `query` do."
        )
    tagless = sum(trace.tags_left_out > 0 or trace.aborted for trace in traces)
    if any(is_tag(key) for key in keys) and tagless:
        yield f"{tagless:,} traces lack some or all of their tags: too long, or ended by an error."
