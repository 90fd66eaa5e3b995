"""What would change from one policy to another: for `diff`, dry runs and the audit.

Budgets are known by their names, rules by what they say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headgate.budgets.limits import BUDGET_SETTINGS, amount_told
from headgate.budgets.parse import written_budget, written_rule
from headgate.budgets.policy import Budget, Policy

UNSET = "unset"


class DifferenceKind(StrEnum):
    BUDGET_ADDED = "budget added"
    BUDGET_REMOVED = "budget removed"
    BUDGET_CHANGED = "budget changed"
    RULE_ADDED = "rule added"
    RULE_REMOVED = "rule removed"
    RULES_REORDERED = "rules reordered"
    POLICY_CHANGED = "policy changed"
    EXEMPT_ADDED = "exempt added"
    EXEMPT_REMOVED = "exempt removed"
    BUDGETS_REORDERED = "budgets reordered"


@dataclass(frozen=True, slots=True)
class PolicyDifference:
    """As it is sent, too."""

    kind: str
    """`budget added`, `budget changed`, `rule removed` and so on."""
    budget: str = ""
    """Empty for what is of the policy as a whole."""
    setting: str = ""
    before: Any = None
    """Null: not there, or unset."""
    after: Any = None
    line: str = ""
    """For people: `etl: rate 20% → 30%`."""


def differences(before: Policy, after: Policy) -> list[PolicyDifference]:
    """None: the two decide alike in all things."""
    old, new = _by_name(before), _by_name(after)
    return [
        *_policy_changes(before, after),
        *(
            _whole(DifferenceKind.BUDGET_REMOVED, budget, "gone", before=written_budget(budget))
            for name, budget in old.items()
            if name not in new
        ),
        *(change for name, now in new.items() for change in _budget_changes(old.get(name), now)),
        *_reordered(old, new),
    ]


def _by_name(policy: Policy) -> dict[str, Budget]:
    return {budget.name: budget for budget in policy.budgets}


# --- of the policy ---------------------------------------------------------------------------


def _policy_changes(before: Policy, after: Policy) -> Iterator[PolicyDifference]:
    was, now = before.health_unknown.value, after.health_unknown.value
    if was != now:
        line = f"policy: health_unknown {was} → {now}"
        yield PolicyDifference(DifferenceKind.POLICY_CHANGED, "", "health_unknown", was, now, line)
    for username in before.exempt_usernames:
        if username not in after.exempt_usernames:
            line = f"policy: {username} is exempt no longer"
            yield PolicyDifference(
                DifferenceKind.EXEMPT_REMOVED, "", "exempt_usernames", username, None, line
            )
    for username in after.exempt_usernames:
        if username not in before.exempt_usernames:
            line = f"policy: {username} is exempt"
            yield PolicyDifference(
                DifferenceKind.EXEMPT_ADDED, "", "exempt_usernames", None, username, line
            )


def _reordered(old: Mapping[str, Budget], new: Mapping[str, Budget]) -> Iterator[PolicyDifference]:
    """It matters: of several budgets that block, the first is reported."""
    was, now = [name for name in old if name in new], [name for name in new if name in old]
    if was != now:
        line = "budgets are in another order, by which the first to block is reported"
        yield PolicyDifference(DifferenceKind.BUDGETS_REORDERED, "", "budgets", was, now, line)


# --- of a budget -----------------------------------------------------------------------------


def _budget_changes(was: Budget | None, now: Budget) -> Iterator[PolicyDifference]:
    if was is None:
        yield _whole(DifferenceKind.BUDGET_ADDED, now, "new", after=written_budget(now))
        return
    yield from _setting_changes(was, now)
    yield from _rule_changes(was, now)


def _whole(kind: DifferenceKind, budget: Budget, became: str, **raw: Any) -> PolicyDifference:
    given = {k: v for k, v in written_budget(budget).items() if k not in ("name", "mode", "rules")}
    limits = ", ".join(f"{name} {_shown(name, value)}" for name, value in given.items())
    count = len(budget.rules)
    rules = f"{count:,} rule{'' if count == 1 else 's'}"
    told = ", ".join(part for part in (became, budget.mode.value, limits, rules) if part)
    return PolicyDifference(kind, budget.name, **raw, line=f"{budget.name}: {told}")


def _setting_changes(was: Budget, now: Budget) -> Iterator[PolicyDifference]:
    for name, row in BUDGET_SETTINGS.items():
        old, new = getattr(was, row.field), getattr(now, row.field)
        if old != new:
            before = None if old is None else row.write(old)
            after = None if new is None else row.write(new)
            line = f"{now.name}: {name} {_shown(name, before)} → {_shown(name, after)}"
            yield PolicyDifference(
                DifferenceKind.BUDGET_CHANGED, now.name, name, before, after, line
            )


def _rule_changes(was: Budget, now: Budget) -> Iterator[PolicyDifference]:
    old, new = Counter(was.rules), Counter(now.rules)
    for rule in (old - new).elements():
        line = f"{now.name}: no rule any more on {rule}"
        yield PolicyDifference(
            DifferenceKind.RULE_REMOVED, now.name, "rules", written_rule(rule), None, line
        )
    for rule in (new - old).elements():
        line = f"{now.name}: new rule on {rule}"
        yield PolicyDifference(
            DifferenceKind.RULE_ADDED, now.name, "rules", None, written_rule(rule), line
        )
    if old == new and was.rules != now.rules:
        line = f"{now.name}: the same rules in another order"
        yield PolicyDifference(DifferenceKind.RULES_REORDERED, now.name, "rules", line=line)


def _shown(name: str, value: Any) -> str:
    value = amount_told(name, value)
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if value == "" or (isinstance(value, str) and " " in value) else str(value)
