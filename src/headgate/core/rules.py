"""Rules on clients: found by token, ended by their own clock (R63–R87).

    identity ──RuleBook.applied──► Applied: what refuses, what exempts, which metrics, which limits

Precedence (R67): a rule on the whole identity beats one on several of its tokens, that beats
one on a single token, and `all` comes last. Among equals the stricter wins. Thresholds compete
metric by metric; sets of metrics that are equally specific are united, which is the stricter
reading of both. What is ended by its own clock needs no sweeper: the reader compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


KIND_MEANINGS: dict[Kind, str] = {
    Kind.RATIO: "refuses that share of the checks by dice; the rest is judged by the metrics",
    Kind.HOLD: "refuses every check",
    Kind.EXEMPT: "admits although metrics breach, all or the named ones, up to a ceiling",
    Kind.METRICS: "judges by these metrics, where a check names none",
    Kind.THRESHOLDS: "judges by stricter thresholds; a laxer one says nothing",
}


# Bound once: looking up a member of an enum is a call, and each check asks.
_RATIO, _HOLD, _EXEMPT = Kind.RATIO, Kind.HOLD, Kind.EXEMPT
_METRICS, _THRESHOLDS = Kind.METRICS, Kind.THRESHOLDS


class Justification(Enum):
    """An exemption needs one of the three (R78)."""

    TRANSIENT = "transient"
    INCIDENT = "incident"
    SYSTEM = "system"


JUSTIFICATION_MEANINGS: dict[Justification, str] = {
    Justification.TRANSIENT: "a short starvation that ends by itself, such as a job's last hour",
    Justification.INCIDENT: "the fix of an incident, which must not wait for what it repairs",
    Justification.SYSTEM: "a light component that is essential, such as a heartbeat",
}


class Order(Enum):
    """When the dice are thrown (R75). Admission is as likely either way; the counts differ."""

    BEFORE = "before"
    AFTER = "after"


Window = tuple[float, float]
"""Wall-clock seconds: from, and up to but not including."""
NO_LIMITS: Mapping[str, float] = MappingProxyType({})
NO_RULE_BY_METRIC: Mapping[str, Rule] = MappingProxyType({})


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
        return self.kind is _HOLD or (self.ratio >= 1 and self.kind is _RATIO)

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
    metrics: tuple[Rule, ...] = ()
    """Whose metrics it is judged by, taken together."""
    thresholds: Mapping[str, Rule] = NO_RULE_BY_METRIC
    """By metric: the rule whose limit counts for it."""
    shadowed: tuple[Shadowed, ...] = ()
    since: float = -FOREVER
    until: float = FOREVER

    @property
    def is_plain(self) -> bool:
        """Nothing but a refusal by ratio or hold: metrics are judged as ever."""
        return self.exempt is None and not self.metrics and not self.thresholds

    @property
    def judged_by(self) -> tuple[str, ...]:
        """Its own metrics; empty for the default set."""
        return tuple(dict.fromkeys(name for rule in self.metrics for name in rule.metrics))

    @property
    def limits(self) -> dict[str, float]:
        """Its own thresholds, by metric."""
        return {name: rule.thresholds[name] for name, rule in self.thresholds.items()}

    @property
    def rules(self) -> tuple[Rule, ...]:
        single = [rule for rule in (self.refuse, self.exempt) if rule is not None]
        limiting = {rule.id: rule for rule in self.thresholds.values()}
        return (*single, *self.metrics, *limiting.values())


UNRULED = Applied()


class RuleBook:
    """The rules in force, as one snapshot: replaced whole, never edited.

    Resolving a client's rules takes a look-up per token, whatever the number of rules; the
    outcome is kept until a rule of that client begins or ends.
    """

    __slots__ = ("_by_token", "_everyone", "_resolved", "revision", "rules", "suspended")

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
        self._by_token: dict[str, list[tuple[Rule, frozenset[str]]]] = {}
        self._everyone: list[Rule] = []
        self._resolved: dict[tuple[str, str], Applied] = {}
        common = Counter(token for rule in self.rules for token in set(rule.tokens))
        for rule in self.rules:
            self._file(rule, common)

    def _file(self, rule: Rule, common: Mapping[str, int]) -> None:
        if rule.target == EVERYONE:
            self._everyone.append(rule)
            return
        # Several tokens: found by any one of them, and then compared. By the rarest: thousands
        # of rules that share a category must not all be looked at for each of its clients.
        rarest = min(rule.tokens, key=common.__getitem__)
        self._by_token.setdefault(rarest, []).append((rule, frozenset(rule.tokens)))

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
        text, tokens = identity.text, frozenset(identity.tokens)
        found = [
            (WHOLE if rule.target == text else len(wanted), rule)
            for token in tokens
            for rule, wanted in self._by_token.get(token, ())
            if tokens >= wanted
        ]
        found += [(0, rule) for rule in self._everyone]
        return [item for item in found if item[1].database in ("", database)]

    def _resolve(self, identity: Identity, database: str, wall_s: float) -> Applied:
        matching = self.matching(identity, database)
        if not matching:
            return UNRULED
        edges = [edge for _, rule in matching for edge in rule.edges()]
        live = [item for item in matching if item[1].in_force(wall_s)]
        applied = _apply(sorted(live, key=_precedence), self.suspended)
        return applied._replace(
            since=max((edge for edge in edges if edge <= wall_s), default=-FOREVER),
            until=min((edge for edge in edges if edge > wall_s), default=FOREVER),
        )


WHOLE = 1000
"""As specific as a rule can be."""


def _precedence(item: tuple[int, Rule]) -> tuple[int, int, float, str]:
    """Most specific first, then the stricter, then by name: never by the order of arrival."""
    specific, rule = item
    strictness = -_strictness(rule)
    return -specific, 0 if rule.kind is not _EXEMPT else 1, strictness, rule.id


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
            return 0.0  # By metric: see _limiting.


_Ordered = Sequence[tuple[int, Rule]]
"""Rules in force with how specific they are, first the one that comes first."""


def _apply(ordered: _Ordered, suspended: frozenset[str]) -> Applied:
    """Rules of one axis compete, those of different ones add up. Who is exempt from everything
    competes with what would refuse it; who is exempt from some metrics is still diced for."""
    awake = [i for i in ordered if i[1].kind is not _EXEMPT or i[1].id not in suspended]
    refuse, not_refusing = _first(awake, _RATIO, _HOLD)
    exempt, not_exempting = _first(awake, _EXEMPT)
    metrics, not_selecting = _selecting(awake)
    thresholds, not_limiting = _limiting(awake)
    shadowed = [*not_refusing, *not_exempting, *not_selecting, *not_limiting]
    if refuse is not None and exempt is not None and not exempt.metrics:
        winner = next(rule for _, rule in awake if rule is refuse or rule is exempt)
        shadowed.append(Shadowed(exempt if winner is refuse else refuse, winner))
        refuse, exempt = (refuse, None) if winner is refuse else (None, exempt)
    return Applied(refuse, exempt, metrics, thresholds, tuple(shadowed))


def _first(ordered: _Ordered, *kinds: Kind) -> tuple[Rule | None, list[Shadowed]]:
    found = [rule for _, rule in ordered if rule.kind in kinds]
    if not found:
        return None, []
    return found[0], [Shadowed(rule, found[0]) for rule in found[1:]]


def _selecting(ordered: _Ordered) -> tuple[tuple[Rule, ...], list[Shadowed]]:
    """The most specific set of metrics, as a whole: what it leaves out, it leaves out on
    purpose. Of several that are equally specific, all that add something."""
    found = [item for item in ordered if item[1].kind is _METRICS]
    chosen: list[Rule] = []
    shadowed, names = [], set[str]()
    for specific, rule in found:
        adds = not names.issuperset(rule.metrics)
        if not chosen or (specific == found[0][0] and adds):
            chosen.append(rule)
            names.update(rule.metrics)
        else:
            shadowed.append(Shadowed(rule, chosen[0]))
    return tuple(chosen), shadowed


def _limiting(ordered: _Ordered) -> tuple[Mapping[str, Rule], list[Shadowed]]:
    """Metric by metric: the most specific rule that limits it; among equals the lower limit.
    Shadowed is a rule none of whose limits counts."""
    by_metric: dict[str, tuple[int, float, str, Rule]] = {}
    found = [item for item in ordered if item[1].kind is _THRESHOLDS]
    if not found:
        return NO_RULE_BY_METRIC, []
    for specific, rule in found:
        for name, limit in rule.thresholds.items():
            claim = (-specific, limit, rule.id, rule)
            if name not in by_metric or claim[:3] < by_metric[name][:3]:
                by_metric[name] = claim
    winners = {name: by_metric[name][3] for name in sorted(by_metric)}
    counting = {rule.id for rule in winners.values()}
    shadowed = [
        Shadowed(rule, winners[name])
        for _, rule in found
        if rule.id not in counting
        for name in sorted(rule.thresholds)[:1]
    ]
    return winners, shadowed


NO_RULES = RuleBook()


def book_of(rules: Iterable[Rule], *, revision: int = 0) -> RuleBook:
    return RuleBook(rules, revision=revision)
