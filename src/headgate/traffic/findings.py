"""Of every rule of every budget: does it apply to this statement, and if not, why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from headgate.traffic.ask import Match, Statement, Who
from headgate.traffic.matching import (
    Facts,
    Matched,
    Now,
    Ruled,
    RuleSet,
    fits,
    holds,
    label_of,
    nearest,
    rests,
)
from headgate.traffic.policy import (
    REMOTE_ADDRESS,
    Budget,
    BudgetRule,
    Condition,
    Mode,
    shown_value,
)


class Outcome(Enum):
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
    RESTS = "rests"
    EXEMPT = "exempt"


@dataclass(frozen=True, slots=True)
class Finding:
    budget: Budget
    place: str
    """In the document: budgets[2].rules[0]."""
    rule: BudgetRule
    outcome: Outcome
    why: str

    def __str__(self) -> str:
        return f"{self.budget.name}: {self.rule}: {self.outcome.value}: {self.why}"


def findings(rules: RuleSet, who: Who, statement: Statement, now: Now) -> tuple[Finding, ...]:
    """In the order of the document, with the budgets that are off."""
    return tuple(_Judge(rules, who, statement, now).all())


class _Judge:
    def __init__(self, rules: RuleSet, who: Who, statement: Statement, now: Now) -> None:
        self._rules, self._who, self._now = rules, who, now
        self._facts: Facts = rules.facts(who, statement)
        self._matched: Matched = rules.match(who, statement, now)
        self._whole = [
            ruled
            for ruled in rules.rules
            if rules.takes_part(ruled, now) and fits(ruled.rule, self._facts.values)
        ]

    def all(self) -> Iterator[Finding]:
        kept = iter(self._rules.rules)
        for at, budget in enumerate(self._rules.policy.budgets):
            for rule_at, rule in enumerate(budget.rules):
                ruled = None if budget.mode is Mode.OFF else next(kept)
                outcome, why = self._judged(budget, ruled)
                yield Finding(budget, f"budgets[{at}].rules[{rule_at}]", rule, outcome, why)

    def _judged(self, budget: Budget, ruled: Ruled | None) -> tuple[Outcome, str]:
        if ruled is None:
            return Outcome.OFF, "its budget is off"
        if self._facts.exempt:
            return Outcome.EXEMPT, f"the user {self._who.username} is in exempt_usernames"
        if budget.expired(self._now.wall_ms):
            return Outcome.EXPIRED, "its budget has expired"
        if rests(budget, self._rules.policy, self._now.healthy):
            return Outcome.RESTS, f"its budget applies if unhealthy; health is {self._health()}"
        if differences := list(_differences(ruled.rule, self._facts.values)):
            return Outcome.DIFFERS, "; ".join(differences)
        return self._placed(ruled)

    def _placed(self, ruled: Ruled) -> tuple[Outcome, str]:
        near = nearest(self._whole, self._rules.budgets)
        if ruled not in near:
            closer = max(near, key=lambda r: r.rule.prefix_bits or 0)
            name = self._rules.budgets[closer.budget].name
            return Outcome.HIDDEN, f"budget {name} has the longer prefix {_prefix(closer.rule)}"
        match = self._match(ruled)
        if match is None:
            return Outcome.LEFT_OUT, f"{len(self._matched.at)} budgets apply before it, no more do"
        if match.rule != ruled.number:
            return Outcome.REPEATS, "an earlier rule brings the same bucket"
        return Outcome.APPLIES, f"bucket {match.label.decode()}" if match.label else "it matches"

    def _match(self, ruled: Ruled) -> Match | None:
        label = label_of(ruled.rule.each, self._facts.values)
        same = (m for m in self._matched.at if (m.budget, m.label) == (ruled.budget, label))
        return next(same, None)

    def _health(self) -> str:
        return {True: "good", False: "bad", None: "not known"}[self._now.healthy]


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


def _prefix(rule: BudgetRule) -> str:
    return next(c.shown for c in rule.conditions if c.key == REMOTE_ADDRESS)
