"""Rules on clients: found by token, ended by their own clock.

The seat that priorities, holds and exemptions will take (R63–R87). What stands now: a
rejection ratio per token, looked up in one probe per token whatever the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headgate.core.names import Identity

EVERYONE = "all"


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    target: str
    """A whole identity, one of its tokens, or `all`."""
    ratio: float
    """Share of checks to refuse before any metric is looked at; 1 refuses all."""
    expires_at: float
    """Wall-clock seconds. No sweeper is needed: the reader compares."""


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules in force, as one frozen snapshot."""

    by_target: Mapping[str, Rule] = field(default_factory=lambda: MappingProxyType({}))
    revision: int = 0

    def match(self, identity: Identity, *, wall_s: float) -> Rule | None:
        """Whole identity first, then the strictest of its tokens' rules, `all` last (R67)."""
        rules = self.by_target
        if not rules:
            return None
        whole = rules.get(identity.text)
        if whole is not None and whole.expires_at > wall_s:
            return whole
        best: Rule | None = None
        for token in identity.tokens:
            rule = rules.get(token)
            if rule is not None and rule.expires_at > wall_s and _stricter(rule, best):
                best = rule
        if best is not None:
            return best
        fallback = rules.get(EVERYONE)
        return fallback if fallback is not None and fallback.expires_at > wall_s else None


NO_RULES = RuleBook()


def book_of(rules: Iterable[Rule], *, revision: int = 0) -> RuleBook:
    """Of two rules on one target the stricter stands, whichever came first."""
    by_target: dict[str, Rule] = {}
    for rule in rules:
        if _stricter(rule, by_target.get(rule.target)):
            by_target[rule.target] = rule
    return RuleBook(MappingProxyType(by_target), revision)


def _stricter(rule: Rule, than: Rule | None) -> bool:
    return than is None or (rule.ratio, rule.id) > (than.ratio, than.id)
