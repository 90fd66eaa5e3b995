"""Rules on clients: found by token, ended by their own clock (R63–R87).

    identity ──RuleBook.applied──► Applied: what refuses, what exempts, which metrics, which limits

Precedence (R67): a rule on the whole identity beats one on several of its tokens, that beats
one on a single token, and `all` comes last. Among equals the stricter wins. What is ended by
its own clock needs no sweeper: the reader compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from headgate.core.names import Identity

EVERYONE = "all"
FOREVER = float("inf")
DEFAULT_CEILING = 3.0
MAX_RESOLVED = 4096
"""Clients whose rules are kept resolved; beyond that all are resolved anew, once."""


class Kind(Enum):
    RATIO = "ratio"
    """Refuses a share of the checks by dice."""
    HOLD = "hold"
    """Refuses every check."""
    EXEMPT = "exempt"
    """Waives metrics: all, or the named ones. Guarded (R79)."""
    METRICS = "metrics"
    """Judges by these metrics where the check names none."""
    THRESHOLDS = "thresholds"
    """Judges by stricter thresholds."""


class Justification(Enum):
    """An exemption needs one of the three (R78)."""

    TRANSIENT = "transient"
    INCIDENT = "incident"
    SYSTEM = "system"


class Order(Enum):
    """When the dice are thrown (R75). Admission is as likely either way; the counts differ."""

    BEFORE = "before"
    AFTER = "after"


Window = tuple[float, float]
"""Wall-clock seconds: from, and up to but not including."""
NO_LIMITS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    target: str
    """A whole identity, one of its tokens, several of them (`a:b`), or `all`."""
    ratio: float = 0.0
    """Share of checks to refuse: RATIO."""
    expires_at: float = FOREVER
    """Wall-clock seconds. No sweeper is needed: the reader compares."""
    kind: Kind = Kind.RATIO
    order: Order = Order.BEFORE
    metrics: tuple[str, ...] = ()
    """EXEMPT: waived ones, empty for all. METRICS: the ones to judge by."""
    thresholds: Mapping[str, float] = field(default_factory=lambda: NO_LIMITS)
    """THRESHOLDS: metric → limit; one that is laxer than the metric's own says nothing."""
    justification: Justification | None = None
    ceiling: float = DEFAULT_CEILING
    """EXEMPT: suspended while a waived metric is above this many times its threshold."""
    database: str = ""
    """Only there; empty for everywhere."""
    windows: tuple[Window, ...] | None = None
    """In force only within these; None for always."""
    created_at: float = 0.0
    created_by: str = ""
    reason: str = ""
    revision: int = 0

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.target.split(":"))

    @property
    def refuses_all(self) -> bool:
        return self.kind is Kind.HOLD or (self.kind is Kind.RATIO and self.ratio >= 1)

    def in_force(self, wall_s: float) -> bool:
        if wall_s >= self.expires_at:
            return False
        return self.windows is None or any(a <= wall_s < b for a, b in self.windows)

    def ends_at(self, wall_s: float) -> float:
        """When it next ceases to be in force, of one that is."""
        ends = [end for begin, end in self.windows or () if begin <= wall_s < end]
        return min(self.expires_at, max(ends, default=FOREVER))

    def edges(self) -> Iterator[float]:
        """Instants at which it begins or ceases to be in force."""
        yield self.expires_at
        for window in self.windows or ():
            yield from window


class Shadowed(NamedTuple):
    """A rule that matched and did not apply, and the one that came first (R144)."""

    rule: Rule
    by: Rule


class Applied(NamedTuple):
    """What the rules make of one client, within a span of time."""

    refuse: Rule | None = None
    exempt: Rule | None = None
    metrics: Rule | None = None
    thresholds: Rule | None = None
    shadowed: tuple[Shadowed, ...] = ()
    since: float = -FOREVER
    until: float = FOREVER

    @property
    def is_plain(self) -> bool:
        """Nothing but a refusal by ratio or hold: metrics are judged as ever."""
        return self.exempt is None and self.metrics is None and self.thresholds is None

    @property
    def rules(self) -> tuple[Rule, ...]:
        found = (self.refuse, self.exempt, self.metrics, self.thresholds)
        return tuple(rule for rule in found if rule is not None)


UNRULED = Applied()


class RuleBook:
    """The rules in force, as one snapshot: replaced whole, never edited.

    Resolving a client's rules takes a look-up per token, whatever the number of rules; the
    outcome is kept until a rule of that client begins or ends.
    """

    __slots__ = ("_by_token", "_everyone", "_resolved", "_whole", "revision", "rules", "suspended")

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        revision: int = 0,
        suspended: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = tuple(rules)
        self.revision = revision
        self.suspended = suspended
        """Exemptions that are suspended because they starve others (R79)."""
        self._whole: dict[str, list[Rule]] = {}
        self._by_token: dict[str, list[Rule]] = {}
        self._everyone: list[Rule] = []
        self._resolved: dict[tuple[str, str], Applied] = {}
        common = Counter(token for rule in self.rules for token in set(rule.tokens))
        for rule in self.rules:
            self._file(rule, common)

    def _file(self, rule: Rule, common: Mapping[str, int]) -> None:
        if rule.target == EVERYONE:
            self._everyone.append(rule)
            return
        self._whole.setdefault(rule.target, []).append(rule)
        # Several tokens: found by any one of them, and then compared. By the rarest: thousands
        # of rules that share a category must not all be looked at for each of its clients.
        rarest = min(rule.tokens, key=common.__getitem__)
        self._by_token.setdefault(rarest, []).append(rule)

    def applied(self, identity: Identity, database: str, wall_s: float) -> Applied:
        if not self.rules:
            return UNRULED
        key = (identity.text, database)
        known = self._resolved.get(key)
        if known is not None and known.since <= wall_s < known.until:
            return known
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.clear()
        found = self._resolved[key] = self._resolve(identity, database, wall_s)
        return found

    def matching(self, identity: Identity, database: str) -> list[tuple[int, Rule]]:
        """Every rule that is meant for this client, ended ones too, with how specific it is."""
        tokens = frozenset(identity.tokens)
        found: dict[str, tuple[int, Rule]] = {}
        for rule in self._whole.get(identity.text, ()):
            found[rule.id] = (WHOLE, rule)
        for token in tokens:
            for rule in self._by_token.get(token, ()):
                if rule.id not in found and tokens.issuperset(rule.tokens):
                    found[rule.id] = (len(set(rule.tokens)), rule)
        for rule in self._everyone:
            found[rule.id] = (0, rule)
        return [item for item in found.values() if item[1].database in ("", database)]

    def _resolve(self, identity: Identity, database: str, wall_s: float) -> Applied:
        matching = self.matching(identity, database)
        edges = [edge for _, rule in matching for edge in rule.edges()]
        live = [item for item in matching if item[1].in_force(wall_s)]
        applied = _apply(sorted(live, key=_precedence), self.suspended)
        return applied._replace(
            since=max((edge for edge in edges if edge <= wall_s), default=-FOREVER),
            until=min((edge for edge in edges if edge > wall_s), default=FOREVER),
        )


WHOLE = 1000
"""As specific as a rule can be."""
_REFUSALS = (Kind.RATIO, Kind.HOLD)


def _precedence(item: tuple[int, Rule]) -> tuple[int, int, float, str]:
    """Most specific first, then the stricter, then by name: never by the order of arrival."""
    specific, rule = item
    strictness = -_strictness(rule)
    return -specific, 0 if rule.kind is not Kind.EXEMPT else 1, strictness, rule.id


def _strictness(rule: Rule) -> float:
    match rule.kind:
        case Kind.HOLD:
            return 2.0
        case Kind.RATIO:
            return rule.ratio
        case Kind.EXEMPT:
            return float(len(rule.metrics) and 1 / len(rule.metrics))
        case Kind.METRICS:
            return float(len(rule.metrics))
        case Kind.THRESHOLDS:
            return -min(rule.thresholds.values(), default=0.0)


def _apply(ordered: list[tuple[int, Rule]], suspended: frozenset[str]) -> Applied:
    """Rules of one axis compete, those of different ones add up. Who is exempt from everything
    competes with what would refuse it; who is exempt from some metrics is still diced for."""
    first: dict[str, Rule] = {}
    shadowed: list[Shadowed] = []
    for _, rule in ordered:
        if rule.kind is Kind.EXEMPT and rule.id in suspended:
            continue
        chosen = first.setdefault(_axis(rule), rule)
        if chosen is not rule:
            shadowed.append(Shadowed(rule, chosen))
    refuse, exempt = first.get(REFUSAL), first.get(Kind.EXEMPT.value)
    if refuse is not None and exempt is not None and not exempt.metrics:
        # In this order, for that is how they came.
        winner = next(rule for _, rule in ordered if rule is refuse or rule is exempt)
        loser = exempt if winner is refuse else refuse
        shadowed.append(Shadowed(loser, winner))
        refuse, exempt = (refuse, None) if winner is refuse else (None, exempt)
    return Applied(
        refuse=refuse,
        exempt=exempt,
        metrics=first.get(Kind.METRICS.value),
        thresholds=first.get(Kind.THRESHOLDS.value),
        shadowed=tuple(shadowed),
    )


REFUSAL = "refusal"


def _axis(rule: Rule) -> str:
    return REFUSAL if rule.kind in _REFUSALS else rule.kind.value


NO_RULES = RuleBook()


def book_of(rules: Iterable[Rule], *, revision: int = 0) -> RuleBook:
    return RuleBook(rules, revision=revision)
