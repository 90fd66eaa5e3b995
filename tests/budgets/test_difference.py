"""What changes from one policy to another, for people and for the audit."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given

from headgate.budgets.difference import DifferenceKind, differences
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from tests.budgets.policies import policies


def policy(*budgets: dict[str, Any], **general: Any) -> Policy:
    return parse_policy({"policy": general, "budgets": list(budgets)})


def lines(before: Policy, after: Policy) -> list[str]:
    return [change.line for change in differences(before, after)]


ETL = {"name": "etl", "rate": 20, "capacity": 200}


def test_a_changed_setting_is_reported_with_what_it_was() -> None:
    after = {**ETL, "rate": 12.5, "mode": "enforce", "expires_at": "2026-11-16T09:00:00Z"}
    assert lines(policy(ETL), policy(after)) == [
        "etl: mode warn → enforce",
        "etl: rate 20% → 12.5%",
        "etl: expires_at unset → 2026-11-16T09:00:00Z",
    ]
    assert lines(policy(ETL), policy({"name": "etl", "rate": 0, "capacity": 200})) == [
        "etl: rate 20% → 0%"
    ]
    assert lines(
        policy(ETL), policy({"name": "etl", "capacity": 200, "in_transaction": "block"})
    ) == [
        "etl: rate 20% → unset",
        "etl: in_transaction charge → block",
    ]
    assert lines(policy(ETL), policy({**ETL, "comment": "INC 7"})) == ["etl: comment '' → 'INC 7'"]


def test_budgets_come_and_go() -> None:
    other = {"name": "web", "rules": [{}]}
    assert lines(policy(ETL), policy(other)) == [
        "etl: gone, warn, rate 20%, capacity 2s, 0 rules",
        "web: new, warn, 1 rule",
    ]


def test_rules_come_and_go_and_move() -> None:
    one, two = {"match": {"username": "etl"}}, {"each": ["tag.tenant"]}
    before = policy({**ETL, "rules": [one, one]})
    assert lines(before, policy({**ETL, "rules": [one, two]})) == [
        "etl: no rule any more on username=etl",
        "etl: new rule on everything, for each tag.tenant",
    ]
    moved = policy({**ETL, "rules": [one, two]}), policy({**ETL, "rules": [two, one]})
    assert lines(*moved) == ["etl: the same rules in another order"]


def test_the_policy_as_a_whole_changes() -> None:
    before = policy(ETL, {"name": "web"}, exempt_usernames=["a", "b"])
    after = policy({"name": "web"}, ETL, exempt_usernames=["b", "c"], health_unknown="unhealthy")
    assert lines(before, after) == [
        "policy: health_unknown healthy → unhealthy",
        "policy: a is exempt no longer",
        "policy: c is exempt",
        "budgets are in another order, by which the first to block is reported",
    ]


def test_a_change_can_be_sent() -> None:
    (change,) = differences(policy(ETL), policy({**ETL, "rate": 0}))
    assert msgspec.to_builtins(change) == {
        "kind": "budget changed",
        "budget": "etl",
        "setting": "rate",
        "before": 20,
        "after": 0,
        "line": "etl: rate 20% → 0%",
    }


@given(policies(), policies())
def test_two_policies_differ_or_are_alike(before: Policy, after: Policy) -> None:
    assert differences(before, before) == []
    changes = differences(before, after)
    msgspec.json.encode(changes)
    assert all(change.line and DifferenceKind(change.kind) for change in changes)
    # The order of exempt_usernames decides nothing.
    same = (before.budgets, before.health_unknown, set(before.exempt_usernames)) == (
        after.budgets,
        after.health_unknown,
        set(after.exempt_usernames),
    )
    assert (changes == []) is same
