"""The rules as they stood at a past instant (R144).   audit, rules of today ──► RulesThen

Every change of a rule is in the audit with what was before and after it, so the book of then
can be put together again, as far back as the audit reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.agent.schedules import check_zone, windows_ahead
from headgate.core.records import AuditEntry
from headgate.core.rule_settings import RuleSpec, parse_kept
from headgate.core.rules import Rule, RuleBook
from headgate.errors import InvalidSettings

RULE_CHANGE = "rule."


class RulesThen(NamedTuple):
    book: RuleBook
    unreadable: tuple[str, ...]
    """Rules of which the audit tells, in words that this version cannot read."""


def rules_at(
    entries: Sequence[AuditEntry], present: Iterable[RuleSpec], wall_s: float
) -> RulesThen:
    """`entries`: newest first. `present`: for rules of which the audit says nothing any more."""
    told = _told(entries, wall_s)
    specs = {spec.id: spec for spec in present if spec.id not in told}
    specs = {key: spec for key, spec in specs.items() if spec.rule.created_at <= wall_s}
    unreadable = []
    for rule_id, value in told.items():
        if value is None:
            continue
        try:
            specs[rule_id] = _parsed(rule_id, value)
        except InvalidSettings:
            unreadable.append(rule_id)
    book = RuleBook(
        (_as_judged(spec, wall_s) for spec in specs.values()),
        suspended=frozenset(spec.id for spec in specs.values() if spec.suspended),
    )
    return RulesThen(book, tuple(sorted(unreadable)))


def _told(entries: Sequence[AuditEntry], wall_s: float) -> dict[str, Any]:
    """Rule → what it was then: after the last change before, else before the first one after."""
    found: dict[str, Any] = {}
    settled: set[str] = set()
    for entry in entries:
        if not entry.action.startswith(RULE_CHANGE) or entry.target in settled:
            continue
        if entry.wall_s <= wall_s:
            settled.add(entry.target)
        found[entry.target] = entry.after if entry.wall_s <= wall_s else entry.before
    return found


def _parsed(rule_id: str, value: Any) -> RuleSpec:
    spec = parse_kept(rule_id, value, 0)
    if spec.schedule is not None:
        check_zone(spec.schedule)
    return spec


def _as_judged(spec: RuleSpec, wall_s: float) -> Rule:
    if spec.schedule is None:
        return spec.rule
    return replace(spec.rule, windows=windows_ahead(spec.schedule, wall_s))
