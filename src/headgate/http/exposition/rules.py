"""Rules in force, and when they end.   RuleBook ──► rows

By target and kind, not by id: an id is used once, and a series each would never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from headgate.base.prometheus import Row
from headgate.http.exposition.series import Scrape, Series
from headgate.rules.matching import Kind, Rule

IN_FORCE, WAITING, SUSPENDED = "in_force", "waiting", "suspended"
STATES = (IN_FORCE, WAITING, SUSPENDED)
MAX_NAMED = 100
FIRST = (Kind.EXEMPT, Kind.HOLD)
"""If there are too many to list: exemptions and holds first."""

Place = tuple[str, str, str]
"""(database, target, kind)"""


def state_of(rule: Rule, look: Scrape) -> str | None:
    """None: it has ended, and is kept only to be shown."""
    if look.now.wall_s >= rule.expires_at:
        return None
    if rule.id in look.parts.checker.rules.suspended:
        return SUSPENDED
    return IN_FORCE if rule.in_force(look.now.wall_s) else WAITING


def _rules(look: Scrape) -> Iterator[Row]:
    counts = Counter((rule.kind, state_of(rule, look)) for rule in look.parts.checker.rules.rules)
    for kind in Kind:
        for state in STATES:
            yield (kind.value, state), float(counts[kind, state])


def _by_place(look: Scrape) -> Mapping[Place, list[Rule]]:
    found: dict[Place, list[Rule]] = {}
    for rule in look.parts.checker.rules.rules:
        if state_of(rule, look) == IN_FORCE:
            found.setdefault((rule.database, rule.target, rule.kind.value), []).append(rule)
    telling = {kind.value for kind in FIRST}
    named = sorted(found, key=lambda place: (place[2] not in telling, place))
    return {place: found[place] for place in islice(named, MAX_NAMED)}


def _left(look: Scrape) -> Iterator[Row]:
    for place, rules in _by_place(look).items():
        yield place, max(rule.expires_at for rule in rules) - look.now.wall_s


def _age(look: Scrape) -> Iterator[Row]:
    for place, rules in _by_place(look).items():
        yield place, max(0.0, look.now.wall_s - min(_since(rule, look) for rule in rules))


def _since(rule: Rule, look: Scrape) -> float:
    wall_s = look.now.wall_s
    begun = [begin for begin, end in rule.windows or () if begin <= wall_s < end]
    return max([rule.created_at, *begun])


def _revision(look: Scrape) -> Iterator[Row]:
    yield (), float(look.parts.checker.rules.revision)


RULES = (
    Series(
        "headgate_rules",
        "gauge",
        ("kind", "state"),
        "Rules that have not ended: `in_force`, `waiting` for their schedule, or "
        "`suspended` because they starve others.",
        _rules,
    ),
    Series(
        "headgate_rule_seconds_left",
        "gauge",
        ("database", "target", "kind"),
        "Time until the last rule in force of that kind on that target expires; `database` "
        "is empty for rules that apply everywhere. At most 100.",
        _left,
    ),
    Series(
        "headgate_rule_in_force_seconds",
        "gauge",
        ("database", "target", "kind"),
        "Time since the first of them was set, or its window began.",
        _age,
    ),
    Series(
        "headgate_rules_revision",
        "gauge",
        (),
        "Grows with each change of the rules in force.",
        _revision,
    ),
)
