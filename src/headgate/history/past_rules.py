"""The rules at a past time.   audit, rules of today ──► RulesThen

The audit has every change of a rule with the state before and after it. So the rules of that time
can be rebuilt, as far back as the audit goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.errors import InvalidSettings
from headgate.history.records import AuditEntry
from headgate.rules.matching import Rule, RuleBook, Window
from headgate.rules.schedules import check_zone, windows_ahead, windows_of
from headgate.rules.settings import RuleSpec, parse_kept

RULE_CHANGE = "rule."


class RulesThen(NamedTuple):
    book: RuleBook
    unreadable: tuple[str, ...]
    """Rules in the audit that this version cannot read."""


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


def rules_between(
    entries: Sequence[AuditEntry], present: Iterable[RuleSpec], since_s: float, until_s: float
) -> RulesThen:
    """The rules of all of that time in one book, which tells those of any instant of it: each
    version of a rule is one of its own, in force from the change that made it to the next one.

    `original_id` tells which rule a version is of.
    """
    versions = _versions(entries, since_s, until_s)
    for spec in present:
        if spec.id not in versions:
            began_s = max(since_s, spec.rule.created_at)
            versions[spec.id] = [_Version(began_s, until_s, spec)]
    rules, unreadable = list[Rule](), set[str]()
    for rule_id, mine in versions.items():
        for number, version in enumerate(mine):
            try:
                then = version.spec(rule_id)
            except InvalidSettings:
                unreadable.add(rule_id)
                continue
            if then is not None and not then.suspended and version.since_s < version.until_s:
                rules.append(_during(then, version, f"{rule_id}{VERSION}{number}"))
    return RulesThen(RuleBook(rules), tuple(sorted(unreadable)))


VERSION = "\0"
"""A separator that no id contains, before the number of a version."""


def original_id(rule_id: str) -> str:
    return rule_id.partition(VERSION)[0]


class _Version(NamedTuple):
    since_s: float
    until_s: float
    value: Any
    """As in the audit; None for no rule; or a RuleSpec."""

    def spec(self, rule_id: str) -> RuleSpec | None:
        if self.value is None or isinstance(self.value, RuleSpec):
            return self.value
        return _parsed(rule_id, self.value)


def _versions(
    entries: Sequence[AuditEntry], since_s: float, until_s: float
) -> dict[str, list[_Version]]:
    """What each rule was, from change to change."""
    found: dict[str, list[_Version]] = {}
    ends: dict[str, float] = {}
    oldest: dict[str, AuditEntry] = {}
    for entry in entries:  # Newest first.
        if not entry.action.startswith(RULE_CHANGE):
            continue
        name, end_s = entry.target, ends.get(entry.target, until_s)
        if end_s > since_s:
            begin_s = max(since_s, entry.wall_s)
            found.setdefault(name, []).append(_Version(begin_s, end_s, entry.after))
            oldest[name] = entry
        ends[name] = min(end_s, entry.wall_s)
    for name, entry in oldest.items():
        if entry.wall_s > since_s:
            found[name].append(_Version(since_s, min(entry.wall_s, until_s), entry.before))
    return found


def _during(spec: RuleSpec, version: _Version, rule_id: str) -> Rule:
    since_s, until_s = version.since_s, version.until_s
    windows: tuple[Window, ...] = ((since_s, until_s),)
    if spec.schedule is not None:
        windows = windows_of(spec.schedule, since_s, ahead_s=until_s - since_s)
    inside = ((max(begin, since_s), min(end, until_s)) for begin, end in windows)
    kept = tuple((begin, end) for begin, end in inside if begin < end)
    return replace(spec.rule, id=rule_id, windows=kept)


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
