"""The debt, who is running, and what is known of costs: all that budgets remember.

    check ─► StatementAnswer          take ─► StatementAnswer, Holding ─► (pause, resume) ──► settle
    charge: work that is done already

One ledger is one server's: the region of native/headgate.h, without its locks. Whether a statement
may run is said in admit.py; here it is looked up, taken and given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from headgate.budgets.admit import (
    BucketState,
    Terms,
    decide,
    fitting,
    lets_pass,
    never_fits,
    terms_of,
)
from headgate.budgets.bucket import (
    Bucket,
    Charge,
    charged,
    cpu_ns,
    debt_ns,
    drain_ns,
    refunded,
    under_terms,
)
from headgate.budgets.cost import (
    NO_LINE,
    FinishedStatement,
    Pattern,
    estimate,
    informed,
    learned,
    may_try_again,
)
from headgate.budgets.model import (
    MAX_COST_NS,
    NEVER,
    NO_PATTERN,
    Estimate,
    Limit,
    Match,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    budget_key,
    mixed,
)
from headgate.budgets.policy import Budget

# --- bounded tables: buckets in sets of 16 ways, patterns in sets of 4 -----------------------
#
# Nothing sweeps them: a place is looked for when one is needed. In shared memory the
# same tables lie flat (native/headgate.h), and what is evicted here is evicted there.
#
#     ways of a set    0 ………………… 11 │ 12 … 15
#                      each, own         own alone
#
# Values that rules are for each of come from clients, who can make up as many as they like. So
# their buckets have three quarters of a set at most, and never make a budget's own bucket forget
# its debt; and a secret says which set a key belongs to, so that nobody can aim.

WAYS = 16
OWN_WAYS = 4
"""Of them, the first: for budgets' own buckets alone."""
EACH_WAYS = WAYS - OWN_WAYS
"""Open to buckets per distinct value."""
PATTERN_WAYS = 4


class TableSlot(NamedTuple):
    row: int
    way: int


class PlacedBucket(NamedTuple):
    place: TableSlot | None
    """None: every bucket of the set is in use."""
    evicted: Bucket | None = None


class BucketTable:
    def __init__(self, buckets: int, secret: int = 0) -> None:
        """Without a secret (0) the set is the key's low bits."""
        self._secret = secret
        self._rows: list[list[Bucket | None]] = [[None] * WAYS for _ in range(buckets // WAYS)]

    def __iter__(self) -> Iterator[Bucket]:
        return (bucket for ways in self._rows for bucket in ways if bucket is not None)

    def find(self, key: int) -> Bucket | None:
        ways = self._rows[self._row_of(key)]
        return next((b for b in ways if b is not None and b.key == key), None)

    def at(self, place: TableSlot) -> Bucket:
        bucket = self._rows[place.row][place.way]
        assert bucket is not None, "a way that was filled is never emptied"
        return bucket

    def put(self, place: TableSlot, bucket: Bucket) -> None:
        self._rows[place.row][place.way] = bucket

    def replace(self, bucket: Bucket) -> None:
        """One that is there, by its key."""
        ways = self._rows[self._row_of(bucket.key)]
        known = [way is not None and way.key == bucket.key for way in ways]
        ways[known.index(True)] = bucket

    def placed(self, fresh: Bucket, now_ns: int) -> PlacedBucket:
        """Where the bucket is, or, with `fresh`, is from now on."""
        row = self._row_of(fresh.key)
        ways = self._rows[row]
        for way, bucket in enumerate(ways):
            if bucket is not None and bucket.key == fresh.key:
                return PlacedBucket(TableSlot(row, way))
        chosen = _way_to_fill(ways, fresh.is_own, now_ns)
        if chosen is None:
            return PlacedBucket(None)
        evicted, ways[chosen] = ways[chosen], fresh
        return PlacedBucket(TableSlot(row, chosen), evicted)

    def _row_of(self, key: int) -> int:
        place = mixed(key ^ self._secret) if self._secret else key
        return place & (len(self._rows) - 1)


class Eviction(IntEnum):
    """What has to give way, the cheapest first."""

    RESERVED = 0
    """Nothing: a free way that only a budget's own bucket may have."""
    FREE = 1
    EMPTY = 2
    EMPTY_OWN = 3
    OWING = 4
    """Forgiven."""
    OWING_OWN = 5
    """Forgiven, but never for the sake of a value that a client may have made up."""
    NONE = 6


def _way_to_fill(ways: Sequence[Bucket | None], own: bool, now_ns: int) -> int | None:
    """Of the cheapest kind the one that has been empty for longest, or will be soonest."""
    rooms = ((_room(bucket, way, own, now_ns), way) for way, bucket in enumerate(ways))
    empty_at_ns = [0 if bucket is None else bucket.empty_at_ns for bucket in ways]
    kind, _, way = min((kind, empty_at_ns[way], way) for kind, way in rooms)
    return None if kind is Eviction.NONE else way


def _room(bucket: Bucket | None, way: int, own: bool, now_ns: int) -> Eviction:
    if way < OWN_WAYS and not own:
        return Eviction.NONE
    if bucket is None:
        return Eviction.RESERVED if way < OWN_WAYS else Eviction.FREE
    if bucket.statements:
        return Eviction.NONE
    if bucket.empty_at_ns <= now_ns:
        return Eviction.EMPTY_OWN if bucket.is_own else Eviction.EMPTY
    if not bucket.is_own:
        return Eviction.OWING
    return Eviction.OWING_OWN if own else Eviction.NONE


class PatternTable:
    def __init__(self, patterns: int) -> None:
        rows = range(patterns // PATTERN_WAYS)
        self._rows: list[list[Pattern | None]] = [[None] * PATTERN_WAYS for _ in rows]

    def find(self, key: int) -> Pattern | None:
        return next((p for p in self._ways_of(key) if p is not None and p.key == key), None)

    def put(self, pattern: Pattern) -> None:
        """In its own way, a free one, or that of the one not seen for longest."""
        ways = self._ways_of(pattern.key)
        oldest, oldest_ns = 0, NEVER
        for way, known in enumerate(ways):
            if known is None or known.key == pattern.key:
                ways[way] = pattern
                return
            if known.last_ns < oldest_ns:
                oldest, oldest_ns = way, known.last_ns
        ways[oldest] = pattern

    def _ways_of(self, key: int) -> list[Pattern | None]:
        return self._rows[key & (len(self._rows) - 1)]


# --- the ledger --------------------------------------------------------------------------


@dataclass(slots=True)
class BudgetTotals:
    """Of one budget, ever."""

    admitted: int = 0
    estimated_ns: int = 0
    charged_ns: int = 0
    """What it came to."""
    passed: int = 0
    forgiven_ns: int = 0
    evicted: int = 0
    """Buckets that still have debt."""
    unpinned: int = 0
    """Ran uncounted: every bucket of the set was in use."""
    warned: list[int] = field(default_factory=lambda: [0] * len(Limit))
    """By limit; NONE: crossed a warning threshold only."""
    blocked: list[int] = field(default_factory=lambda: [0] * len(Limit))
    """By limit; NONE: of them, before planning."""
    last_violation_ms: int = 0


class BudgetHolding(NamedTuple):
    """One budget's part of a holding."""

    bucket: int
    budget_key: int
    place: TableSlot | None = None
    """Pinned until it is settled. None: nothing is kept for it."""
    counted: bool = False
    """Its workers are counted there now."""
    rate_mpct: int = 0
    charge: Charge | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a statement that runs has taken."""

    ask: StatementCheck
    estimate_ns: int
    held: tuple[BudgetHolding, ...]


class Ledger:
    def __init__(
        self,
        *,
        cpus_milli: int,
        workers: int,
        buckets: int = 1024,
        patterns: int = 1024,
        secret: int = 0,
    ) -> None:
        """`secret`: by which buckets are spread over the table; 0: by their keys alone."""
        self.cpus_milli = cpus_milli
        self.workers = workers
        self.host = NO_LINE
        """Of all patterns."""
        self.counts: dict[int, BudgetTotals] = {}
        """By the budget's key."""
        self._buckets = BucketTable(buckets, secret)
        self._patterns = PatternTable(patterns)

    # --- looking ------------------------------------------------------------------------------

    def check(
        self, budgets: Sequence[Budget], matches: Sequence[Match], ask: StatementCheck
    ) -> StatementAnswer:
        """Looks, and takes nothing. A rate or an epoch that has changed takes effect with the
        first look: the debt drains by the new rate from then on."""
        for match in matches:
            self._take_over(budgets[match.budget], match.bucket, ask.now_ns)
        standings = [self.standing(budgets[m.budget], m.bucket, ask.now_ns) for m in matches]
        estimated = self.estimate(ask)
        answer, pattern = decide(standings, ask, estimated), self.pattern(ask.pattern)
        if not never_fits(answer) or not may_try_again(ask, pattern, estimated.mean_ns):
            return answer
        return decide(standings, ask, fitting(standings, estimated))

    def _take_over(self, budget: Budget, bucket_key: int, now_ns: int) -> None:
        terms, bucket = self._terms(budget), self.bucket(bucket_key)
        if bucket is None or not terms.keeps_anything:
            return
        if bucket.epoch != terms.epoch:
            counts = self._counts(bucket.budget_key)
            counts.forgiven_ns += self.debt_ns(bucket, now_ns)
        self._buckets.replace(under_terms(bucket, terms.drain_mpct, terms.epoch, now_ns))

    def standing(self, budget: Budget, bucket_key: int, now_ns: int) -> BucketState:
        terms = self._terms(budget)
        bucket = self.bucket(bucket_key)
        if bucket is None or not terms.keeps_anything:
            return BucketState(terms)
        now = under_terms(bucket, terms.drain_mpct, terms.epoch, now_ns)
        owed = debt_ns(now.empty_at_ns, now_ns) if terms.drain_mpct else 0
        return BucketState(terms, bucket.workers, owed)

    def estimate(self, ask: StatementCheck) -> Estimate:
        return estimate(ask, self.pattern(ask.pattern), self.host)

    def bucket(self, key: int) -> Bucket | None:
        return self._buckets.find(key)

    def buckets(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def debt_ns(self, bucket: Bucket, now_ns: int) -> int:
        """In CPU time."""
        return cpu_ns(debt_ns(bucket.empty_at_ns, now_ns), bucket.rate_mpct, self.cpus_milli)

    def pattern(self, key: int) -> Pattern | None:
        return self._patterns.find(key)

    # --- taking -------------------------------------------------------------------------------

    def take(
        self, budgets: Sequence[Budget], matches: Sequence[Match], ask: StatementCheck
    ) -> tuple[StatementAnswer, Holding | None]:
        """A place and the estimate's charge in every budget, or no change in any."""
        answer = self.check(budgets, matches, ask)
        if not answer.admitted:
            return answer, None
        pattern = self.pattern(ask.pattern)
        if pattern is not None and answer.p90_ns < self.estimate(ask).p90_ns:
            # A trial: others of the pattern wait until this one has ended, and longer.
            self._patterns.put(replace(pattern, last_ns=ask.now_ns))
        taken = (
            self._take(budgets[match.budget], match, answer, index, ask)
            for index, match in enumerate(matches)
        )
        return answer, Holding(ask, answer.estimate_ns, tuple(h for h in taken if h is not None))

    def _take(
        self, budget: Budget, match: Match, answer: StatementAnswer, index: int, ask: StatementCheck
    ) -> BudgetHolding | None:
        own, terms, limit = budget_key(budget.name), self._terms(budget), answer.limits[index]
        counts = self._counts(own)
        if limit and not lets_pass(terms, ask):
            # A warning is a block that did not happen: no place, no debt, as if it had.
            _count_warning(counts, limit, ask)
            return None
        if answer.thresholds[index]:
            _count_warning(counts, Limit.NONE, ask)
        counts.admitted += 1
        counts.passed += limit is not Limit.NONE
        counts.estimated_ns += answer.estimate_ns
        return self._hold(own, terms, match, answer.estimate_ns, ask)

    def _hold(
        self, own: int, terms: Terms, match: Match, cost_ns: int, ask: StatementCheck
    ) -> BudgetHolding:
        if not terms.keeps_anything:
            return BudgetHolding(match.bucket, own)
        fresh = Bucket(match.bucket, own, terms.drain_mpct, terms.epoch, match.label)
        place = self._place(fresh, ask.now_ns)
        if place is None:
            return BudgetHolding(match.bucket, own)
        bucket = self._buckets.at(place)
        bucket = _pinned(replace(bucket, admitted=bucket.admitted + 1), 1, ask.places)
        charge = None
        if terms.drain_mpct:
            before_ns = bucket.refunded_ns
            drains_in_ns = drain_ns(cost_ns, terms.drain_mpct, self.cpus_milli)
            bucket = charged(bucket, drains_in_ns, ask.now_ns)
            charge = Charge(drains_in_ns, bucket.empty_at_ns, before_ns)
        self._buckets.put(place, bucket)
        return BudgetHolding(match.bucket, own, place, True, terms.drain_mpct, charge)

    def _place(self, fresh: Bucket, now_ns: int) -> TableSlot | None:
        place, evicted = self._buckets.placed(fresh, now_ns)
        if place is None:
            self._counts(fresh.budget_key).unpinned += 1
        if evicted is not None and evicted.empty_at_ns > now_ns:
            counts = self._counts(evicted.budget_key)
            counts.evicted += 1
            counts.forgiven_ns += self.debt_ns(evicted, now_ns)
        return place

    def charge(
        self, budgets: Sequence[Budget], matches: Sequence[Match], cost_ns: int, now_ns: int
    ) -> None:
        """Work that is done already, and was no statement of its own (planning): charged in all
        budgets, whatever their limits say. Nothing is held, and nothing learnt."""
        cost_ns = min(cost_ns, MAX_COST_NS)
        for match in matches:
            budget = budgets[match.budget]
            terms, own = self._terms(budget), budget_key(budget.name)
            self._counts(own).charged_ns += cost_ns
            if not terms.drain_mpct:
                continue
            self._take_over(budget, match.bucket, now_ns)
            fresh = Bucket(match.bucket, own, terms.drain_mpct, terms.epoch, match.label)
            place = self._place(fresh, now_ns)
            if place is not None:
                drains_in_ns = drain_ns(cost_ns, terms.drain_mpct, self.cpus_milli)
                self._buckets.put(place, charged(self._buckets.at(place), drains_in_ns, now_ns))

    # --- while it runs, and at its end --------------------------------------------------------

    def pause(self, holding: Holding) -> Holding:
        """Gives the places back, but goes on holding the charge, and the bucket in its place: a
        cursor between two fetches."""
        held = (self._counted(one, holding.ask, is_so=False) for one in holding.held)
        return replace(holding, held=tuple(held))

    def resume(self, holding: Holding) -> Holding:
        """Takes the places again, and checks no limit."""
        held = (self._counted(one, holding.ask, is_so=True) for one in holding.held)
        return replace(holding, held=tuple(held))

    def settle(
        self, holding: Holding, actual_ns: int, now_ns: int, *, aborted: bool = False
    ) -> None:
        """Gives back, charges the difference between estimate and actual, and learns."""
        ask, actual_ns = holding.ask, min(actual_ns, MAX_COST_NS)
        run = FinishedStatement(
            ask.plan_cost, holding.estimate_ns, actual_ns, ask.flags, aborted, ask.shape
        )
        calls = 1
        for held in self.pause(holding).held:
            self._counts(held.budget_key).charged_ns += actual_ns
            if held.place is not None:
                bucket = _pinned(self._buckets.at(held.place), -1, 0)
                self._buckets.put(held.place, _settled(bucket, held, run, now_ns, self.cpus_milli))
        if ask.pattern > NO_PATTERN and not ask.flags & StatementFlags.COST_GIVEN:
            known = self.pattern(ask.pattern)
            learnt = learned(known or Pattern(ask.pattern), run, now_ns)
            self._patterns.put(learnt)
            calls = learnt.calls
        self.host = informed(self.host, run, calls)

    def _counted(self, held: BudgetHolding, ask: StatementCheck, *, is_so: bool) -> BudgetHolding:
        if held.place is None or held.counted is is_so:
            return held
        workers = ask.places if is_so else -ask.places
        self._buckets.put(held.place, _pinned(self._buckets.at(held.place), 0, workers))
        return held._replace(counted=is_so)

    # --- of a budget --------------------------------------------------------------------------

    def _terms(self, budget: Budget) -> Terms:
        return terms_of(budget, self.cpus_milli, self.workers)

    def _counts(self, key: int) -> BudgetTotals:
        return self.counts.setdefault(key, BudgetTotals())


def _count_warning(counts: BudgetTotals, limit: Limit, ask: StatementCheck) -> None:
    counts.warned[limit] += 1
    counts.last_violation_ms = ask.wall_ms


def _pinned(bucket: Bucket, statements: int, workers: int) -> Bucket:
    return replace(
        bucket, statements=bucket.statements + statements, workers=bucket.workers + workers
    )


def _settled(
    bucket: Bucket, held: BudgetHolding, run: FinishedStatement, now_ns: int, cpus_milli: int
) -> Bucket:
    if held.charge is None:
        return bucket
    beyond_ns = run.actual_ns - run.estimate_ns
    if beyond_ns > 0:
        return charged(bucket, drain_ns(beyond_ns, bucket.rate_mpct, cpus_milli), now_ns)
    if held.rate_mpct != bucket.rate_mpct:
        return bucket  # its time starts again: nobody knows what is left of the charge
    actual_ns = drain_ns(run.actual_ns, held.rate_mpct, cpus_milli)
    return refunded(bucket, held.charge, held.charge.drains_in_ns - actual_ns, now_ns)
