"""Advice on rules that are valid but probably not what was meant.

As with metrics (lint.py): what, why, and what to do instead; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headgate.core.lint import Advice, Severity
from headgate.core.names import parse_identity
from headgate.core.rule_settings import KnownMetric, RuleSpec
from headgate.core.rules import EVERYONE, FOREVER, Kind, Rule, RuleBook

MAX_SHADOWS_TOLD = 3


def advise(
    spec: RuleSpec, others: Iterable[Rule], known: Mapping[str, KnownMetric], wall_s: float
) -> list[Advice]:
    rule = spec.rule
    return [
        *_unknown_database(rule, known),
        *_partial_exemption(rule, known),
        *_laxer_thresholds(rule, known),
        *_shadows(spec, others, wall_s),
    ]


class Sparing:
    """Rules that may override a hold, by their target: so that each of thousands of holds is not
    compared with all rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._all = [rule for rule in rules if _may_spare(rule)]
        self._by_token: dict[str, list[Rule]] = {}
        for rule in self._all:
            for token in set(rule.tokens):
                self._by_token.setdefault(token, []).append(rule)

    def of(self, rule: Rule) -> Sequence[Rule]:
        """Those on clients that this one means: all that are spared, and others."""
        if rule.target == EVERYONE:
            return self._all
        return min((self._by_token.get(token, ()) for token in set(rule.tokens)), key=len)


def _may_spare(rule: Rule) -> bool:
    return (
        rule.kind in _COMPETING
        and rule.kind is not Kind.HOLD
        and rule.target != EVERYONE
        and not (rule.kind is Kind.EXEMPT and rule.metrics)
    )


def not_held(rule: Rule, others: Iterable[Rule], wall_s: float) -> list[Advice]:
    """Clients that a hold does not apply to: a rule on fewer clients overrides it, such as the
    ratio of 0 that favors them, or an exemption."""
    if rule.kind is not Kind.HOLD:
        return []
    mine = set() if rule.target == EVERYONE else set(rule.tokens)
    spared = [
        other
        for other in others
        if _may_spare(other)
        and mine < set(other.tokens)
        and other.expires_at > wall_s
        and other.windows != ()
    ]
    if not spared:
        return []
    named = ", ".join(f"{other.target} (rule {other.id})" for other in spared[:MAX_SHADOWS_TOLD])
    more = f" and {len(spared) - MAX_SHADOWS_TOLD:,} more" * (len(spared) > MAX_SHADOWS_TOLD)
    message = (
        f"does not hold {named}{more}: a more specific rule decides; lift it, or hold them by name"
    )
    return [_warning("not-held", rule, "", message)]


def partial_exemption(rule: Rule, known: Mapping[str, KnownMetric]) -> tuple[str, ...]:
    """Default metrics that do not apply to a client with metrics of its own."""
    if rule.kind is not Kind.METRICS:
        return ()
    return tuple(
        name for name, of in sorted(known.items()) if of.in_default and name not in rule.metrics
    )


def _warning(code: str, rule: Rule, key: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, f"rule {rule.id}.{key}" if key else rule.id, message)


def _unknown_database(rule: Rule, known: Mapping[str, KnownMetric]) -> list[Advice]:
    if known or not rule.database:
        return []
    message = f"no database {rule.database!r} is configured here: the rule has no effect for now"
    return [_warning("rule-elsewhere", rule, "database", message)]


def _partial_exemption(rule: Rule, known: Mapping[str, KnownMetric]) -> list[Advice]:
    left_out = partial_exemption(rule, known)
    if not left_out:
        return []
    message = (
        f"partial exemption from {', '.join(left_out)}: load of {rule.target} that its own metrics "
        "miss throttles all others; add these metrics, or use an exemption"
    )
    return [_warning("partial-exemption", rule, "metrics", message)]


def _laxer_thresholds(rule: Rule, known: Mapping[str, KnownMetric]) -> list[Advice]:
    return [
        _warning(
            "laxer-threshold",
            rule,
            f"thresholds.{name}",
            f"{limit:g} has no effect: {name} already rejects at {known[name].threshold:g}, and a "
            "rule can only make that stricter",
        )
        for name, limit in rule.thresholds.items()
        if name in known and limit >= known[name].threshold
    ]


def _shadows(spec: RuleSpec, others: Iterable[Rule], wall_s: float) -> list[Advice]:
    """For the first few: enough for hundreds of rules on one target."""
    rule, advice = spec.rule, list[Advice]()
    alike = [o for o in others if o.id != rule.id and set(o.tokens) == set(rule.tokens)]
    for other in alike:
        may_hide = _outlasts(other, rule, wall_s)
        may_be_hidden = spec.schedule is None and _outlasts(rule, other, wall_s)
        hidden = _hidden(rule, other) if may_hide or may_be_hidden else None
        if hidden is rule and may_hide:
            message = f"rule {other.id} decides as long as this one lasts: it has no effect"
            advice.append(_warning("shadowed", rule, "", message))
        elif hidden is other and may_be_hidden:
            message = f"rule {other.id} has no effect while this one is in force; lift it"
            advice.append(_warning("shadows", rule, "", message))
        if len(advice) == MAX_SHADOWS_TOLD:
            break
    return advice


def _hidden(a: Rule, b: Rule) -> Rule | None:
    """Which of two rules on the same clients never applies beside the other."""
    if a.database and b.database and a.database != b.database:
        return None
    if a.kind is not b.kind and not {a.kind, b.kind} <= _COMPETING:
        return None
    always = [_for_ever(a), _for_ever(b)]
    where = a.database or b.database
    applied = RuleBook(always).applied(parse_identity(a.target), where, 0.0)
    shadowed = {one.rule.id for one in applied.shadowed}
    return a if a.id in shadowed else b if b.id in shadowed else None


_COMPETING = {Kind.RATIO, Kind.HOLD, Kind.EXEMPT}
"""Rules of these kinds may hide each other."""


def _for_ever(rule: Rule) -> Rule:
    return Rule(
        rule.id, rule.target, rule.ratio, FOREVER, rule.kind,
        metrics=rule.metrics, thresholds=rule.thresholds, database=rule.database,
    )  # fmt: skip


def _outlasts(first: Rule, other: Rule, wall_s: float) -> bool:
    """Whether `first` is in force wherever and whenever `other` is, from now on."""
    everywhere = first.database in ("", other.database)
    always = first.windows is None and first.in_force(wall_s)
    return everywhere and always and first.expires_at >= other.expires_at > wall_s
