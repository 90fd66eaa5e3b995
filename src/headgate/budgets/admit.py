"""May a statement run? Four steps, top to bottom.

    1  which budgets apply               matching.py, before this
    2  workers, in every budget          running + requested > limit
    3  the statement alone               p90 of its CPU > burst
    4  the debt of each bucket           debt + mean of its CPU > capacity

A budget that fails a step blocks, if it is enforced, or warns. Of several that block the first
is reported, by step and then by the order of the document; a statement is delayed instead of
blocked only if waiting helps with all of them. Nothing here changes anything: ledger.py does, if
the answer is yes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headgate.budgets.bucket import WHOLE_MPCT, cpu_ns, drain_ns, server_ns, size_ns, wait_ns
from headgate.budgets.model import (
    NEVER,
    Estimate,
    Limit,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    StatementVerdict,
)
from headgate.budgets.policy import Budget, Mode

_MS = 1_000_000
PLACE_RETRY_NS = 100 * _MS
"""Advice: nobody knows when a running statement ends."""
PLACE_POLL_NS = 5 * _MS
"""How long one waits for a place before looking again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A budget's limits in this server's units. None: no limit."""

    enforced: bool
    lets_pass: bool
    """A client inside a transaction."""
    max_delay_ns: int
    cpus_milli: int
    epoch: int
    warning_mpct: int | None
    workers: int | None
    burst_ns: int | None
    capacity_ns: int | None
    rate_mpct: int | None
    size_ns: int | None
    """Of the bucket, in its own time. None: it never has debt (no rate, or no capacity)."""

    @property
    def keeps_anything(self) -> bool:
        return self.workers is not None or self.size_ns is not None

    @property
    def most_ns(self) -> int:
        """The most expensive statement that could ever fit; 0: none can, or any."""
        sizes = [self.burst_ns, self.capacity_ns]
        if self.rate_mpct and self.size_ns is not None:
            sizes[1] = cpu_ns(self.size_ns, self.rate_mpct, self.cpus_milli)
        elif self.rate_mpct is not None:
            sizes[1] = None
        return min((size for size in sizes if size), default=0)

    @property
    def drain_mpct(self) -> int:
        """The rate at which the bucket drains; 0 if there is none."""
        return self.rate_mpct if self.rate_mpct and self.size_ns is not None else 0


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of a bucket when a statement starts."""

    terms: Terms
    running: int = 0
    """Workers."""
    debt_ns: int = 0
    """In the bucket's own time."""


class Failure(NamedTuple):
    limit: Limit
    used: int
    bound: int
    retry_ns: int


def terms_of(budget: Budget, cpus_milli: int, workers: int) -> Terms:
    rate, capacity, burst = budget.rate_mpct, budget.capacity_mpcts, budget.burst_mpcts
    return Terms(
        enforced=budget.mode is Mode.ENFORCE,
        lets_pass=budget.lets_pass(in_transaction=True),
        max_delay_ns=budget.max_delay_ms * _MS,
        cpus_milli=cpus_milli,
        epoch=budget.epoch,
        warning_mpct=budget.warning_mpct,
        workers=budget.workers_allowed(workers),
        burst_ns=None if burst is None else server_ns(burst, cpus_milli),
        capacity_ns=None if capacity is None else server_ns(capacity, cpus_milli),
        rate_mpct=rate,
        size_ns=size_ns(capacity, rate) if rate and capacity is not None else None,
    )


def decide(
    standings: Sequence[BucketState], ask: StatementCheck, estimate: Estimate
) -> StatementAnswer:
    failures: dict[int, Failure] = {}  # by match, in the order in which they are found
    for step in (_workers, _by_itself, _owed):
        for match, standing in enumerate(standings):
            if match not in failures and (failure := step(standing, ask, estimate)):
                failures[match] = failure
    passed = {match for match in failures if lets_pass(standings[match].terms, ask)}
    answer = StatementAnswer(
        verdict=StatementVerdict.RUN,
        limits=tuple(_limit(failures, match) for match in range(len(standings))),
        thresholds=tuple(_crossed(s, ask, estimate) for s in standings),
        estimate_ns=estimate.mean_ns,
        p90_ns=estimate.p90_ns,
        passed=any(standings[match].terms.enforced for match in passed),
    )
    counting = {match: f for match, f in failures.items() if match not in passed}
    blocking = {match: f for match, f in counting.items() if standings[match].terms.enforced}
    if blocking:
        return _blocked(answer, blocking, standings, ask)
    return _warned(answer, counting, standings, ask)


def never_fits(answer: StatementAnswer) -> bool:
    """It is blocked for its estimate alone, whatever else there is."""
    by_size = answer.decided_by in (Limit.QUERY, Limit.BUCKET)
    return answer.verdict is StatementVerdict.BLOCK and by_size and answer.retry_ns == NEVER


def fitting(standings: Sequence[BucketState], estimate: Estimate) -> Estimate:
    """The estimate, or what the narrowest of the budgets that block can just take."""
    bounds = (s.terms.most_ns for s in standings if s.terms.enforced)
    least_ns = min((bound for bound in bounds if bound), default=NEVER)
    return Estimate(min(estimate.mean_ns, least_ns), min(estimate.p90_ns, least_ns))


# --- the steps --------------------------------------------------------------------------------


def _workers(standing: BucketState, ask: StatementCheck, estimate: Estimate) -> Failure | None:
    """Step 2. A parallel statement takes a place for each of its workers."""
    limit = standing.terms.workers
    if limit is None or standing.running + ask.places <= limit:
        return None
    if standing.running == 0 and limit > 0:
        return None  # More workers than there are places: it runs alone. Never would help nobody.
    retry_ns = PLACE_RETRY_NS if limit else NEVER
    return Failure(Limit.CONCURRENCY, standing.running, limit, retry_ns)


def _by_itself(standing: BucketState, ask: StatementCheck, estimate: Estimate) -> Failure | None:
    """Step 3. Whatever else runs."""
    limit_ns = standing.terms.burst_ns
    if limit_ns is None or estimate.p90_ns <= limit_ns:
        return None
    return Failure(Limit.QUERY, estimate.p90_ns, limit_ns, NEVER)


def _owed(standing: BucketState, ask: StatementCheck, estimate: Estimate) -> Failure | None:
    """Step 4. Many moderate statements are too much together."""
    terms = standing.terms
    if terms.rate_mpct == 0:
        return Failure(Limit.BUCKET, 0, terms.capacity_ns or 0, NEVER)
    if terms.capacity_ns is None:
        return None
    if terms.rate_mpct is None or terms.size_ns is None:
        # Without a rate all drains at once, and what is left is a limit for one statement.
        fits = estimate.mean_ns <= terms.capacity_ns
        return None if fits else Failure(Limit.BUCKET, 0, terms.capacity_ns, NEVER)
    asked_ns = drain_ns(estimate.mean_ns, terms.rate_mpct, terms.cpus_milli)
    wait = wait_ns(standing.debt_ns, asked_ns, terms.size_ns)
    if wait == 0:
        return None
    used = cpu_ns(standing.debt_ns, terms.rate_mpct, terms.cpus_milli)
    return Failure(Limit.BUCKET, used, terms.capacity_ns, wait)


# --- what comes of it -------------------------------------------------------------------------


def lets_pass(terms: Terms, ask: StatementCheck) -> bool:
    """A client inside a transaction may hold locks that others wait for."""
    inside = bool(ask.flags & StatementFlags.IN_TRANSACTION)
    return bool(ask.flags & StatementFlags.MUST_RUN) or (inside and terms.lets_pass)


def _blocked(
    answer: StatementAnswer,
    blocking: Mapping[int, Failure],
    standings: Sequence[BucketState],
    ask: StatementCheck,
) -> StatementAnswer:
    waits = {match: _patience_ns(f, standings[match].terms, ask) for match, f in blocking.items()}
    hopeless = [match for match, wait in waits.items() if wait is None]
    if hopeless:
        return _told(answer, StatementVerdict.BLOCK, hopeless[0], blocking[hopeless[0]])
    longest = max(waits, key=lambda match: waits[match] or 0)
    told = _told(answer, StatementVerdict.DELAY, longest, blocking[longest])
    return replace(told, retry_ns=waits[longest] or 0)


def _patience_ns(failure: Failure, terms: Terms, ask: StatementCheck) -> int | None:
    """How long it is delayed for; None: waiting does not help, or not soon enough."""
    if ask.flags & StatementFlags.NO_DELAY or terms.max_delay_ns == 0:
        return None
    if failure.limit is Limit.CONCURRENCY and failure.retry_ns != NEVER:
        return min(PLACE_POLL_NS, terms.max_delay_ns)
    return failure.retry_ns if failure.retry_ns <= terms.max_delay_ns else None


def _warned(
    answer: StatementAnswer,
    warning: Mapping[int, Failure],
    standings: Sequence[BucketState],
    ask: StatementCheck,
) -> StatementAnswer:
    """It runs; with a warning or without."""
    for match, failure in warning.items():
        return _told(answer, StatementVerdict.WARN, match, failure)
    crossed = [(limit, match) for match, limit in enumerate(answer.thresholds) if limit]
    if not crossed:
        return answer
    limit, match = min(crossed)
    return _told(answer, StatementVerdict.WARN, match, _near(standings[match], ask, answer, limit))


def _told(
    answer: StatementAnswer, verdict: StatementVerdict, match: int, failure: Failure
) -> StatementAnswer:
    return replace(
        answer,
        verdict=verdict,
        match=match,
        decided_by=failure.limit,
        used=failure.used,
        bound=failure.bound,
        retry_ns=failure.retry_ns,
    )


def _limit(failures: Mapping[int, Failure], match: int) -> Limit:
    return failures[match].limit if match in failures else Limit.NONE


# --- early warning (R123) ---------------------------------------------------------------------


def _crossed(standing: BucketState, ask: StatementCheck, estimate: Estimate) -> Limit:
    """The first limit that it comes near to, if it breaks none: an enforced budget's alone."""
    share, terms = standing.terms.warning_mpct, standing.terms
    steps: tuple[Callable[..., Failure | None], ...] = (_workers, _by_itself, _owed)
    if share is None or not terms.enforced or any(s(standing, ask, estimate) for s in steps):
        return Limit.NONE
    for limit, used, bound in _loads(standing, ask, estimate):
        if bound is not None and used * WHOLE_MPCT > bound * share:
            return limit
    return Limit.NONE


def _loads(
    standing: BucketState, ask: StatementCheck, estimate: Estimate
) -> tuple[tuple[Limit, int, int | None], ...]:
    """With this statement: how much of each limit is in use."""
    terms = standing.terms
    owed = (Limit.BUCKET, estimate.mean_ns, terms.capacity_ns)
    if terms.rate_mpct and terms.size_ns is not None:
        asked_ns = drain_ns(estimate.mean_ns, terms.rate_mpct, terms.cpus_milli)
        owed = (Limit.BUCKET, standing.debt_ns + asked_ns, terms.size_ns)
    elif terms.rate_mpct:
        owed = (Limit.BUCKET, 0, None)
    return (
        (Limit.CONCURRENCY, standing.running + ask.places, terms.workers),
        (Limit.QUERY, estimate.p90_ns, terms.burst_ns),
        owed,
    )


def _near(
    standing: BucketState, ask: StatementCheck, answer: StatementAnswer, limit: Limit
) -> Failure:
    terms = standing.terms
    if limit is Limit.CONCURRENCY:
        return Failure(limit, standing.running, terms.workers or 0, 0)
    if limit is Limit.QUERY:
        return Failure(limit, answer.p90_ns, terms.burst_ns or 0, 0)
    used = cpu_ns(standing.debt_ns, terms.rate_mpct or 0, terms.cpus_milli)
    return Failure(limit, used, terms.capacity_ns or 0, 0)
