"""Rules on clients: found by token, ended by their own clock.

    identity ──RuleBook.applied──► Applied: what rejects, what exempts, which metrics, which limits

Precedence: a rule on the whole identity beats one on several of its tokens, that beats
one on a single token, and `all` comes last. Among equals the stricter wins. Thresholds compete
metric by metric; sets of metrics that are equally specific are united, which is the stricter
reading of both. A rule with an end needs no sweeper: the reader compares.

Rules on one target are compared with each other once, for all of its clients (_TargetRules): a
new name costs a look-up per level, however many rules there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Annotated, NamedTuple

from headgate.base.declared import Key, link
from headgate.base.names import Identity
from headgate.base.overlay import Overlay
from headgate.base.units import share_of

EVERYONE = "all"
FOREVER = float("inf")
DEFAULT_CEILING = 3.0


class Kind(Enum):
    RATIO = "ratio"
    """Rejects a share of the checks by chance."""
    HOLD = "hold"
    """Rejects every check."""
    EXEMPT = "exempt"
    """Waives metrics: all, or the named ones. Guarded."""
    METRICS = "metrics"
    """Uses these metrics if the check names none."""
    THRESHOLDS = "thresholds"
    """Uses stricter thresholds."""


KIND_MEANINGS: dict[Kind, str] = {
    Kind.RATIO: "rejects that share of the checks by chance; metrics decide the rest",
    Kind.HOLD: "rejects every check",
    Kind.EXEMPT: "admits although metrics breach, all or the named ones, up to a ceiling",
    Kind.METRICS: "uses these metrics if a check names none",
    Kind.THRESHOLDS: "uses stricter thresholds; a looser one has no effect",
}


# Bound once: looking up a member of an enum is a call, and this runs at each check.
_RATIO, _HOLD, _EXEMPT = Kind.RATIO, Kind.HOLD, Kind.EXEMPT
_METRICS, _THRESHOLDS = Kind.METRICS, Kind.THRESHOLDS


class Justification(Enum):
    """An exemption needs one of the three."""

    TRANSIENT = "transient"
    INCIDENT = "incident"
    SYSTEM = "system"


JUSTIFICATION_MEANINGS: dict[Justification, str] = {
    Justification.TRANSIENT: "a short starvation that ends soon, such as a job's last hour",
    Justification.INCIDENT: "the fix of an incident, which must not wait for what it repairs",
    Justification.SYSTEM: "an essential component with little load, such as a heartbeat",
}


class DiceOrder(Enum):
    """When the dice are thrown. Admission is as likely either way; the counts differ."""

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
    """Share of checks to reject: RATIO."""
    expires_at: float = FOREVER
    """Wall-clock seconds. No sweeper is needed: the reader compares."""
    kind: Kind = Kind.RATIO
    order: DiceOrder = DiceOrder.BEFORE
    metrics: tuple[str, ...] = ()
    """EXEMPT: waived ones, empty for all. METRICS: the ones to use."""
    thresholds: Mapping[str, float] = field(default_factory=lambda: NO_LIMITS)
    """THRESHOLDS: metric → limit; one that is looser than the metric's own has no effect."""
    justification: Justification | None = None
    ceiling: float = DEFAULT_CEILING
    """EXEMPT: suspended while a waived metric is above this many times its threshold."""
    database: str = ""
    """Only on this database; empty: on all."""
    windows: tuple[Window, ...] | None = None
    """In force only within these; None for always."""
    created_at: float = 0.0
    created_by: str = ""
    reason: str = ""
    ticket: Annotated[str, Key("Link to a ticket or an incident.", link())] = ""
    revision: int = 0

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.target.split(":"))

    @property
    def rejects_all(self) -> bool:
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


# --- several of them -----------------------------------------------------------------------

MAX_RESOLVED = 4096
"""Clients whose rules are kept resolved; beyond that all are resolved again, once."""
MAX_DATABASES = 64
"""On which the rules of a target are kept weighed."""
NO_RULE_BY_METRIC: Mapping[str, Rule] = MappingProxyType({})


class Shadowed(NamedTuple):
    """A rule that matched and did not apply, and the one that decided instead."""

    rule: Rule
    by: Rule


class Applied(NamedTuple):
    """What the rules make of one client, within a span of time."""

    reject: Rule | None = None
    exempt: Rule | None = None
    metrics: tuple[Rule, ...] = ()
    """The rules whose metrics apply to it, taken together."""
    thresholds: Mapping[str, Rule] = NO_RULE_BY_METRIC
    """By metric: the rule whose limit counts for it."""
    ranks: tuple[Rank, ...] = ()
    """All that are in force for it, by target."""
    resting: frozenset[str] = frozenset()
    """Exemptions that are suspended."""
    since: float = -FOREVER
    until: float = FOREVER

    @property
    def shadowed(self) -> tuple[Shadowed, ...]:
        """Worked out on demand: there may be thousands, and a check asks for none of them."""
        everything = [(specific, rule) for specific, live in self.ranks for rule in live]
        return _weigh(everything, self.resting)[1]

    @property
    def is_plain(self) -> bool:
        """Nothing but a rejection by ratio or hold: metrics apply as always."""
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
        single = [rule for rule in (self.reject, self.exempt) if rule is not None]
        limiting = {rule.id: rule for rule in self.thresholds.values()}
        return (*single, *self.metrics, *limiting.values())


UNRULED = Applied()


class RuleBook:
    """The rules in force, as one snapshot: replaced whole, never edited.

    Resolving a client's rules takes a look-up per token, whatever the number of rules; the
    outcome is kept until a rule of that client begins or ends.
    """

    __slots__ = (
        "_alike", "_by_token", "_common", "_for_everyone", "_groups", "_known", "_no_new",
        "_no_old", "_resolved", "_rules", "is_empty", "revision", "suspended"
    )  # fmt: skip

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        revision: int = 0,
        suspended: frozenset[str] = frozenset(),
        wall_s: float = -FOREVER,
    ) -> None:
        """`wall_s`: what has ended by then is only kept to be shown."""
        draft = RuleBookDraft(wall_s)
        draft.put(rules)
        draft.suspend(suspended)
        self._take(draft, revision)

    def _take(self, draft: RuleBookDraft, revision: int) -> None:
        self.revision = revision
        self.suspended = draft.suspended
        """Exemptions that are suspended because they starve others."""
        self.is_empty = not draft.known
        self._known = draft.known.copy()
        self._groups = draft.groups.copy()
        self._by_token = draft.by_token.copy()
        self._common = draft.common.copy()
        self._for_everyone = self._groups.get(EVERYONE)
        self._no_old, self._no_new = self._by_token.strangers()
        self._resolved: dict[tuple[str, str], Applied] = {}
        self._alike: dict[tuple[object, ...], Applied] = {}
        """(database, targets that match a client) → what they come to: for all such clients."""
        self._rules: tuple[Rule, ...] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Worked out on demand: no check asks for all of them."""
        if self._rules is None:
            self._rules = tuple(self._known.values())
        return self._rules

    def draft(self, wall_s: float = -FOREVER) -> RuleBookDraft:
        """To be changed into another book; this one stays as it is."""
        draft = RuleBookDraft(wall_s)
        draft.known = self._known.copy()
        draft.groups = self._groups.copy()
        draft.by_token = self._by_token.copy()
        draft.common = self._common.copy()
        draft.suspended = self.suspended
        return draft

    def __contains__(self, rule_id: str) -> bool:
        return rule_id in self._known

    def applied(self, identity: Identity, database: str, wall_s: float) -> Applied:
        if self.is_empty:
            return UNRULED
        key = (identity.text, database)
        known = self._resolved.get(key)
        if known is not None and known.since <= wall_s < known.until:
            return known
        tokens = identity.tokens
        if self._for_everyone is None and self._no_old(tokens) and self._no_new(tokens):
            return UNRULED
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.clear()
        found = self._resolved[key] = self._resolve(identity, database, wall_s)
        return found

    def matching(self, identity: Identity, database: str) -> list[tuple[int, Rule]]:
        """Every rule that matches this client, ended ones too, with how specific it is."""
        return [
            (specific, rule)
            for specific, group in self._groups_of(identity)
            for rule in group.everything()
            if rule.database in ("", database)
        ]

    def targets_of(self, identity: Identity) -> list[str]:
        """Targets that match this client, whatever the state of their rules."""
        return [group.target for _, group in self._groups_of(identity)]

    def alike(self, target: str) -> Iterator[Rule]:
        """Those on the same clients that have not ended, the stricter ones first."""
        tokens = frozenset(target.split(":"))
        for other in {name for token in tokens for name in self._by_token.get(token, ())}:
            group = self._groups[other]
            if frozenset(group.tokens) == tokens:
                yield from group.lasting()

    def _groups_of(self, identity: Identity) -> list[tuple[int, _TargetRules]]:
        found = []
        if not (self._no_old(identity.tokens) and self._no_new(identity.tokens)):
            text, tokens = identity.text, frozenset(identity.tokens)
            for token in tokens:
                for target in self._by_token.get(token, ()):
                    group = self._groups[target]
                    if tokens.issuperset(group.tokens):
                        found.append((WHOLE if target == text else len(group.tokens), group))
        if self._for_everyone is not None:
            found.append((0, self._for_everyone))
        return found

    def _resolve(self, identity: Identity, database: str, wall_s: float) -> Applied:
        groups = self._groups_of(identity)
        if not groups:
            return UNRULED
        key = (database, *((specific, group.target) for specific, group in groups))
        known = self._alike.get(key)
        if known is not None and known.since <= wall_s < known.until:
            return known
        if len(self._alike) >= MAX_RESOLVED:
            self._alike.clear()
        found = self._alike[key] = self._weighed(groups, database, wall_s)
        return found

    def _weighed(
        self, groups: Sequence[tuple[int, _TargetRules]], database: str, wall_s: float
    ) -> Applied:
        spans = [
            (specific, group.span(database, wall_s, self.suspended)) for specific, group in groups
        ]
        spans = [item for item in spans if item[1] is not _NOTHING]
        if not spans:
            return UNRULED
        first = [(specific, rule) for specific, span in spans for rule in span.first]
        return _weigh(first, self.suspended)[0]._replace(
            ranks=tuple((specific, span.live) for specific, span in spans if span.live),
            resting=self.suspended,
            since=max(span.since for _, span in spans),
            until=min(span.until for _, span in spans),
        )


class RuleBookDraft:
    """A book in the making. Groups are shared with the books before it, and copied when one of
    their rules changes: so a change costs what it changes, not what there is."""

    def __init__(self, wall_s: float = -FOREVER) -> None:
        self._wall_s = wall_s
        self._own: set[str] = set()
        self.known = Overlay[str, Rule]()
        self.groups = Overlay[str, _TargetRules]()
        self.by_token = Overlay[str, tuple[str, ...]]()
        """Token → targets that are found by it."""
        self.common = Overlay[str, int]()
        """Token → how many targets have it."""
        self.suspended: frozenset[str] = frozenset()

    def put(self, rules: Iterable[Rule]) -> None:
        new: dict[str, list[Rule]] = {}
        for rule in {rule.id: rule for rule in rules}.values():
            before = self.known.get(rule.id)
            if before is not None and before.target == rule.target:
                self._group(rule.target).remove(before)
            else:
                self.drop([rule.id])
            self.known[rule.id] = rule
            new.setdefault(rule.target, []).append(rule)
        fresh = [self._group(target) for target in new if target not in self.groups]
        for token in (token for group in fresh for token in group.tokens):
            self.common[token] = self.common.get(token, 0) + 1
        for target, mine in new.items():
            self._group(target).add(mine, self._wall_s)
        for group in fresh:
            self._file(group)

    def has(self, rule: Rule) -> bool:
        """Whether it is there just so, and filed as ended if it has."""
        if self.known.get(rule.id) != rule:
            return False
        return self.groups[rule.target].has_ended(rule) is _has_ended(rule, self._wall_s)

    def drop(self, rule_ids: Iterable[str]) -> None:
        for rule_id in rule_ids:
            rule = self.known.pop(rule_id, None)
            if rule is None:
                continue
            group = self._group(rule.target)
            group.remove(rule)
            if group.is_empty:
                self._unfile(rule.target)

    def suspend(self, suspended: frozenset[str]) -> None:
        for rule_id in suspended ^ self.suspended:
            if rule_id in self.known:
                self._group(self.known[rule_id].target)  # Copied: to be compared again.
        self.suspended = suspended

    def book(self, revision: int) -> RuleBook:
        """The draft is the book's from here on."""
        book = RuleBook()
        book._take(self, revision)
        return book

    def _group(self, target: str) -> _TargetRules:
        if target not in self._own:
            self._own.add(target)
            known = self.groups.get(target)
            self.groups[target] = _TargetRules(target) if known is None else known.copy()
        return self.groups[target]

    def _file(self, group: _TargetRules) -> None:
        if group.target == EVERYONE:
            return
        # Several tokens: found by any one of them, and then compared. By the rarest: thousands
        # of rules that share a category must not all be looked at for each of its clients.
        rarest = min(group.tokens, key=self.common.__getitem__)
        self.by_token[rarest] = (*self.by_token.get(rarest, ()), group.target)

    def _unfile(self, target: str) -> None:
        tokens = self.groups.pop(target).tokens
        self._own.discard(target)
        for token in tokens:
            left_with = self.common[token] - 1
            if left_with:
                self.common[token] = left_with
            else:
                del self.common[token]
            left = tuple(other for other in self.by_token.get(token, ()) if other != target)
            if left:
                self.by_token[token] = left
            else:
                self.by_token.pop(token, None)


Rank = tuple[int, tuple[Rule, ...]]
"""How specific a target is for a client, and its rules that are in force."""
_Ranked = tuple[int, float, str, Rule]
"""In order of precedence; ids are unique, so that rules themselves are never compared."""


class _Span(NamedTuple):
    """What the rules of one target amount to on one database, between two instants."""

    live: tuple[Rule, ...]
    first: tuple[Rule, ...]
    """Those that none of the others comes before."""
    since: float
    until: float


_NOTHING = _Span((), (), -FOREVER, FOREVER)


_NONE: dict[str, Rule] = {}
"""Of most groups, none has ended."""


class _TargetRules:
    """The rules on one target, weighed against each other. Never edited once a book has it."""

    __slots__ = ("_ended", "_ranked", "_spans", "target", "tokens")

    def __init__(self, target: str) -> None:
        self.target = target
        self.tokens = tuple(dict.fromkeys(target.split(":")))
        self._ranked: list[_Ranked] = []
        self._ended: dict[str, Rule] = _NONE
        """Kept to be shown; no check looks at them."""
        self._spans: dict[str, _Span] | None = None
        """By database; None: not computed yet."""

    def copy(self) -> _TargetRules:
        copy = _TargetRules(self.target)
        copy._ranked, copy._ended = list(self._ranked), dict(self._ended) or _NONE
        return copy

    def add(self, rules: Sequence[Rule], wall_s: float) -> None:
        lasting = []
        for rule in rules:
            if _has_ended(rule, wall_s):
                self._ended = {} if self._ended is _NONE else self._ended
                self._ended[rule.id] = rule
            else:
                lasting.append(_ranked(rule))
        if len(lasting) > FEW:
            self._ranked = sorted([*self._ranked, *lasting])
            return
        for one in lasting:
            insort(self._ranked, one)

    def remove(self, rule: Rule) -> None:
        if self._ended.pop(rule.id, None) is None:
            del self._ranked[bisect_left(self._ranked, _ranked(rule)[:3])]

    def has_ended(self, rule: Rule) -> bool:
        return rule.id in self._ended

    @property
    def is_empty(self) -> bool:
        return not self._ranked and not self._ended

    def lasting(self) -> Iterator[Rule]:
        return (one[3] for one in self._ranked)

    def everything(self) -> Iterator[Rule]:
        yield from self.lasting()
        yield from self._ended.values()

    def span(self, database: str, wall_s: float, suspended: frozenset[str]) -> _Span:
        if self._spans is None or len(self._spans) >= MAX_DATABASES:
            self._spans = {}
        known = self._spans.get(database)
        if known is not None and known.since <= wall_s < known.until:
            return known
        meant = [one[3] for one in self._ranked if one[3].database in ("", database)]
        found = self._spans[database] = _span(meant, wall_s, suspended) if meant else _NOTHING
        return found


FEW = 16


def _has_ended(rule: Rule, wall_s: float) -> bool:
    """Windows that are none at all: it was lifted, whatever its end says."""
    return rule.windows == () or rule.expires_at <= wall_s


def _span(meant: Sequence[Rule], wall_s: float, suspended: frozenset[str]) -> _Span:
    since, until = -FOREVER, FOREVER
    for rule in meant:
        for edge in (rule.expires_at,) if rule.windows is None else rule.edges():
            if edge > wall_s:
                until = min(until, edge)
            else:
                since = max(since, edge)
    live = tuple([rule for rule in meant if rule.in_force(wall_s)])
    return _Span(live, tuple(_foremost(live, suspended)), since, until)


def _foremost(live: Sequence[Rule], suspended: frozenset[str]) -> Iterator[Rule]:
    """As many as metrics at the most: what is weighed against the rules of other targets."""
    axes = set[bool]()
    names = set[str]()
    lowest: dict[str, tuple[float, str, Rule]] = {}
    for rule in live:
        if rule.kind is _THRESHOLDS:
            for name, limit in rule.thresholds.items():
                if name not in lowest or (limit, rule.id) < lowest[name][:2]:
                    lowest[name] = limit, rule.id, rule
        elif rule.kind is _METRICS:
            if not names.issuperset(rule.metrics):
                names.update(rule.metrics)
                yield rule
        elif (exempts := rule.kind is _EXEMPT) not in axes and not (
            exempts and rule.id in suspended
        ):
            axes.add(exempts)
            yield rule
    yield from {rule_id: rule for _, rule_id, rule in lowest.values()}.values()


WHOLE = 1000
"""As specific as a rule can be."""


def _precedence(item: tuple[int, Rule]) -> tuple[int, int, float, str]:
    """Most specific first, then the stricter, then by name: never by the order of arrival."""
    specific, rule = item
    return -specific, *_ranked(rule)[:3]


def _ranked(rule: Rule) -> _Ranked:
    return 0 if rule.kind is not _EXEMPT else 1, -_strictness(rule), rule.id, rule


def strictest_first(rules: Iterable[Rule]) -> list[Rule]:
    """Those that are equally specific, in the order in which one decides before another."""
    return sorted(rules, key=lambda rule: _ranked(rule)[:3])


def throttles(rule: Rule, left: str = "") -> str:
    """What a rule by ratio or a hold does to statements, for its client. `left`: how long yet."""
    share = "every statement" if rule.rejects_all else f"{share_of(rule.ratio)} of the statements"
    by = f", set by {rule.created_by}" if rule.created_by else ""
    why = f": {rule.reason}" if rule.reason else ""
    return f"rule {rule.id} throttles {share} of {rule.target}{left}{by}{why}"


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


def _weigh(
    meant: Iterable[tuple[int, Rule]], suspended: frozenset[str]
) -> tuple[Applied, tuple[Shadowed, ...]]:
    """Rules of one axis compete, those of different ones add up. An exemption from everything
    competes with what would reject the client; with one from some metrics, ratios still apply."""
    ordered = sorted(meant, key=_precedence)
    awake = [i for i in ordered if i[1].kind is not _EXEMPT or i[1].id not in suspended]
    reject, not_rejecting = _first(awake, _RATIO, _HOLD)
    exempt, not_exempting = _first(awake, _EXEMPT)
    metrics, not_selecting = _selecting(awake)
    thresholds, not_limiting = _limiting(awake)
    shadowed = [*not_rejecting, *not_exempting, *not_selecting, *not_limiting]
    if reject is not None and exempt is not None and not exempt.metrics:
        winner = next(rule for _, rule in awake if rule is reject or rule is exempt)
        shadowed.append(Shadowed(exempt if winner is reject else reject, winner))
        reject, exempt = (reject, None) if winner is reject else (None, exempt)
    return Applied(reject, exempt, metrics, thresholds), tuple(shadowed)


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
