"""Why a statement runs or does not, and what would have to change.

    StatementIdentity, Statement, `StatementCheck` ─explain─► Explanation ─lines─►
        a terminal, an HTTP answer

Reads what the decision reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headgate.budgets.admit import BucketState, Terms, decide
from headgate.budgets.bucket import WHOLE_MPCT, cpu_ns
from headgate.budgets.matching import (
    Matched,
    Now,
    NumberedRule,
    RuleSet,
    StatementFacts,
    fits,
    holds,
    label_of,
    nearest,
    rests,
)
from headgate.budgets.model import (
    NEVER,
    Estimate,
    Limit,
    Match,
    Statement,
    StatementAnswer,
    StatementCheck,
    StatementIdentity,
    StatementVerdict,
)
from headgate.budgets.policy import (
    REMOTE_ADDRESS,
    Budget,
    BudgetRule,
    Condition,
    Mode,
    shown_value,
)


class Books(Protocol):
    """What remembers: the reference's ledger, or a server's region."""

    def standing(self, budget: Budget, bucket_key: int, now_ns: int) -> BucketState: ...

    def estimate(self, ask: StatementCheck) -> Estimate: ...


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget that applies, as it is."""

    budget: Budget
    label: str
    """Of a bucket per distinct value; else empty."""
    limit: Limit
    """What the statement fails of it."""
    running: int
    max_workers: int | None
    debt_ns: int
    """Of CPU."""
    capacity_ns: int | None
    fill: float | None
    """debt / capacity; None without a capacity, or with one of 0."""

    @property
    def name(self) -> str:
        return f"{self.budget.name} [{self.label}]" if self.label else self.budget.name

    def __str__(self) -> str:
        parts = [self.budget.mode.value, f"{self.running} workers running"]
        if self.max_workers is not None:
            parts[-1] = f"{self.running} of {self.max_workers} workers running"
        if self.capacity_ns is not None:
            parts.append(f"debt {_seconds(self.debt_ns)} of {_seconds(self.capacity_ns)}")
        if self.fill is not None:
            parts.append(f"{100 * self.fill:.0f} % full")
        return f"{self.name}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Explanation:
    rules: tuple[RuleFinding, ...]
    budgets: tuple[BudgetState, ...]
    answer: StatementAnswer
    probes: int
    """Look-ups that the rules cost."""
    changes: tuple[str, ...]
    """What would have to change for every budget to let it run; empty if all do."""

    def lines(self) -> list[str]:
        return [
            *self._decision(),
            *_section("to change that:", self.changes),
            *_section("budgets that apply:", map(str, self.budgets)),
            *_section("rules:", map(str, self.rules)),
        ]

    def _decision(self) -> Iterator[str]:
        answer = self.answer
        told = f"{answer.verdict.name.lower()}: expected {_seconds(answer.estimate_ns)} of CPU"
        if answer.p90_ns > answer.estimate_ns:
            told += f", at most {_seconds(answer.p90_ns)} in 9 of 10 executions"
        if answer.verdict is not StatementVerdict.RUN:
            told += f", by budget {self.budgets[answer.match].name}: {_what(answer)}"
        elif not self.budgets:
            told += ", and no budget applies"
        yield told
        if answer.passed:
            yield "inside a transaction: a limit is exceeded, but it may go on"


def explain(
    rules: RuleSet,
    books: Books,
    who: StatementIdentity,
    statement: Statement,
    ask: StatementCheck,
    now: Now,
) -> Explanation:
    matched = rules.match(who, statement, now)
    budgets = [rules.budgets[match.budget] for match in matched.at]
    standings = [
        books.standing(budget, match.bucket, ask.now_ns)
        for budget, match in zip(budgets, matched.at, strict=True)
    ]
    answer = decide(standings, ask, books.estimate(ask))
    return Explanation(
        rules=findings(rules, who, statement, now),
        budgets=tuple(_states(budgets, matched.at, standings, answer)),
        answer=answer,
        probes=matched.probes,
        changes=tuple(_changes(budgets, standings, ask, answer)),
    )


def _states(
    budgets: Sequence[Budget],
    matches: Sequence[Match],
    standings: Sequence[BucketState],
    answer: StatementAnswer,
) -> Iterator[BudgetState]:
    for budget, match, at, limit in zip(budgets, matches, standings, answer.limits, strict=True):
        terms, debt_ns = at.terms, _debt_ns(at)
        yield BudgetState(
            budget=budget,
            label=match.label.decode(errors="replace"),
            limit=limit,
            running=at.running,
            max_workers=terms.workers,
            debt_ns=debt_ns,
            capacity_ns=terms.capacity_ns,
            fill=debt_ns / terms.capacity_ns if terms.capacity_ns else None,
        )


def _changes(
    budgets: Sequence[Budget],
    standings: Sequence[BucketState],
    ask: StatementCheck,
    answer: StatementAnswer,
) -> Iterator[str]:
    for budget, standing, limit in zip(budgets, standings, answer.limits, strict=True):
        if limit is Limit.CONCURRENCY:
            yield f"{budget.name}: {_fewer_workers(standing, ask)}"
        elif limit is Limit.QUERY:
            yield f"{budget.name}: {_cheaper(standing.terms, answer.p90_ns)}"
        elif limit is Limit.BUCKET:
            yield f"{budget.name}: {_emptier(standing, answer.estimate_ns)}"


def _fewer_workers(standing: BucketState, ask: StatementCheck) -> str:
    limit, needed = standing.terms.workers or 0, standing.running + ask.places
    if ask.places > limit:
        return f"needs {ask.places} workers, {limit} allowed: allow {needed}"
    return f"{needed - limit} of {standing.running} workers must end, or {needed} be allowed"


def _cheaper(terms: Terms, p90_ns: int) -> str:
    allowed_ns = terms.burst_ns or 0
    needed = _percent_seconds(p90_ns, terms.cpus_milli)
    return f"make it cheaper than {_seconds(allowed_ns)} of CPU, or raise burst to {needed}"


def _emptier(standing: BucketState, estimate_ns: int) -> str:
    terms = standing.terms
    if terms.rate_mpct == 0:
        return "its rate is 0, which admits nothing: raise it"
    needed = _percent_seconds(_debt_ns(standing) + estimate_ns, terms.cpus_milli)
    if estimate_ns > (terms.capacity_ns or 0):
        return f"it is larger than the whole capacity: make it cheaper, or raise that to {needed}"
    only_this = decide([standing], StatementCheck(0), Estimate(estimate_ns, estimate_ns))
    wait_s = 0.0 if only_this.retry_ns == NEVER else only_this.retry_ns / 1e9
    return f"wait {wait_s:.3f} s, or raise capacity to {needed}, or raise epoch to forgive"


def _debt_ns(standing: BucketState) -> int:
    terms = standing.terms
    return cpu_ns(standing.debt_ns, terms.rate_mpct or 0, terms.cpus_milli)


def _what(answer: StatementAnswer) -> str:
    if answer.decided_by is Limit.CONCURRENCY:
        return f"{answer.used} of {answer.bound} workers are in use"
    if answer.decided_by is Limit.QUERY:
        return (
            f"needs up to {_seconds(answer.used)}, {_seconds(answer.bound)} allowed for a statement"
        )
    wait = "never fits" if answer.retry_ns == NEVER else f"fits in {_seconds(answer.retry_ns)}"
    return f"debt {_seconds(answer.used)} of {_seconds(answer.bound)}, {wait}"


def _percent_seconds(cost_ns: int, cpus_milli: int) -> str:
    """As the policy has it: the least value that is enough, to a thousandth."""
    mpcts = -(-cost_ns * WHOLE_MPCT // (cpus_milli * 1_000_000))
    return f"{mpcts / 1000:g}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.3f} s"


def _section(head: str, lines: Iterator[str] | Sequence[str] | map[str]) -> Iterator[str]:
    told = list(lines)
    if told:
        yield head
        yield from (f"  {line}" for line in told)


# --- of every rule: does it apply to this statement, and if not, why not (R144) ------------------


class RuleOutcome(Enum):
    APPLIES = "applies"
    REPEATS = "repeats"
    """It matches, and an earlier rule of its budget brought the same bucket already."""
    LEFT_OUT = "left out"
    """It matches, but too many budgets do."""
    HIDDEN = "hidden"
    """It matches, but another rule's address is closer."""
    DIFFERS = "differs"
    OFF = "off"
    EXPIRED = "expired"
    INACTIVE = "inactive"
    EXEMPT = "exempt"


@dataclass(frozen=True, slots=True)
class RuleFinding:
    budget: Budget
    place: str
    """In the document: budgets[2].rules[0]."""
    rule: BudgetRule
    outcome: RuleOutcome
    why: str

    def __str__(self) -> str:
        return f"{self.budget.name}: {self.rule}: {self.outcome.value}: {self.why}"


def findings(
    rules: RuleSet, who: StatementIdentity, statement: Statement, now: Now
) -> tuple[RuleFinding, ...]:
    """In the order of the document, with the budgets that are off."""
    return tuple(_Judge(rules, who, statement, now).all())


class _Judge:
    def __init__(
        self, rules: RuleSet, who: StatementIdentity, statement: Statement, now: Now
    ) -> None:
        self._rules, self._who, self._now = rules, who, now
        self._facts: StatementFacts = rules.facts(who, statement)
        self._matched: Matched = rules.match(who, statement, now)
        self._whole = [
            ruled
            for ruled in rules.rules
            if rules.takes_part(ruled, now) and fits(ruled.rule, self._facts.values)
        ]

    def all(self) -> Iterator[RuleFinding]:
        kept = iter(self._rules.rules)
        for at, budget in enumerate(self._rules.policy.budgets):
            for rule_at, rule in enumerate(budget.rules):
                ruled = None if budget.mode is Mode.OFF else next(kept)
                outcome, why = self._judged(budget, ruled)
                yield RuleFinding(budget, f"budgets[{at}].rules[{rule_at}]", rule, outcome, why)

    def _judged(self, budget: Budget, ruled: NumberedRule | None) -> tuple[RuleOutcome, str]:
        if ruled is None:
            return RuleOutcome.OFF, "its budget is off"
        if self._facts.exempt:
            return RuleOutcome.EXEMPT, f"no rule applies to the user {self._who.username}"
        if budget.expired(self._now.wall_ms):
            return RuleOutcome.EXPIRED, "its budget has expired"
        if rests(budget, self._rules.policy, self._now.healthy):
            health = {True: "good", False: "bad", None: "not known"}[self._now.healthy]
            return RuleOutcome.INACTIVE, f"its budget applies if unhealthy; health is {health}"
        if differences := list(_differences(ruled.rule, self._facts.values)):
            return RuleOutcome.DIFFERS, "; ".join(differences)
        return self._placed(ruled)

    def _placed(self, ruled: NumberedRule) -> tuple[RuleOutcome, str]:
        near = nearest(self._whole, self._rules.budgets)
        if ruled not in near:
            closer = max(near, key=lambda r: r.rule.prefix_bits or 0)
            name = self._rules.budgets[closer.budget].name
            prefix = next(c.shown for c in closer.rule.conditions if c.key == REMOTE_ADDRESS)
            return RuleOutcome.HIDDEN, f"budget {name} has the longer prefix {prefix}"
        label = label_of(ruled.rule.each, self._facts.values)
        same = (m for m in self._matched.at if (m.budget, m.label) == (ruled.budget, label))
        match = next(same, None)
        if match is None:
            return (
                RuleOutcome.LEFT_OUT,
                f"{len(self._matched.at)} budgets apply before it, no more do",
            )
        if match.rule != ruled.number:
            return RuleOutcome.REPEATS, "an earlier rule brings the same bucket"
        return (
            RuleOutcome.APPLIES,
            f"bucket {match.label.decode()}" if match.label else "it matches",
        )


def _differences(rule: BudgetRule, values: Mapping[str, bytes]) -> Iterator[str]:
    for condition in rule.conditions:
        if not holds(condition, values):
            yield _difference(condition, values.get(condition.key))
    for key in rule.each:
        if key not in values:
            yield f"there is no {key}"


def _difference(condition: Condition, value: bytes | None) -> str:
    key = condition.key
    if value is None:
        return f"there is no {key}"
    if key == REMOTE_ADDRESS:
        address = shown_value(key, value + bytes((len(value) * 8,))).partition("/")[0]
        return f"{key} {address} is not in {condition.shown}"
    return f"{key} is {shown_value(key, value)}, not {condition.shown}"
