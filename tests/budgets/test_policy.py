"""Budgets and rules as values: order, keys, and what a limit comes to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.policy import (
    FINGERPRINT,
    QUERY,
    REMOTE_ADDRESS,
    SYSTEM_KEYS,
    Budget,
    Condition,
    Mode,
    Policy,
    address_family,
    address_value,
    budget_rule,
    key_order,
    number_value,
    shown_value,
)


def test_the_servers_keys_come_first_and_tags_by_their_names() -> None:
    keys = ["tag.b", "fingerprint", "tag.Z", "username", "tag.ä", "remote_address"]
    ordered = ["username", "remote_address", "fingerprint", "tag.Z", "tag.b", "tag.ä"]
    assert sorted(keys, key=key_order) == ordered
    assert SYSTEM_KEYS[3:] == (REMOTE_ADDRESS, QUERY, FINGERPRINT)


def test_a_rule_is_the_same_however_its_conditions_are_written() -> None:
    one, two = Condition("tag.a", b"1"), Condition("username", b"etl")
    assert budget_rule([one, two], ["tag.b", "database"]) == budget_rule(
        [two, one], ["database", "tag.b"]
    )
    assert str(budget_rule([one, two])) == "username=etl and tag.a=1"
    assert str(budget_rule([], ["tag.t"])) == "everything, for each tag.t"


@given(st.ip_addresses(), st.integers(0, 128))
def test_an_address_lies_in_its_own_prefix(address: object, bits: int) -> None:
    packed = ip_address(str(address)).packed
    bits = min(bits, len(packed) * 8)
    condition = Condition(REMOTE_ADDRESS, address_value(packed, bits))
    assert ip_address(packed) in condition.network
    assert condition.network.prefixlen == bits
    assert address_family(condition.value) == condition.network.version


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (QUERY, number_value(-5), "-5"),
        (QUERY, number_value(2**64 - 5), "-5"),
        (FINGERPRINT, number_value(0xAB), "00000000000000ab"),
        (REMOTE_ADDRESS, b"\x0a\0\0\0\x08", "10.0.0.0/8"),
        ("tag.a", "ä".encode(), "ä"),
    ],
)
def test_values_are_shown_as_documents_have_them(key: str, value: bytes, shown: str) -> None:
    assert shown_value(key, value) == shown


@pytest.mark.parametrize(
    ("budget", "workers", "allowed"),
    [
        (Budget("b"), 100, None),
        (Budget("b", concurrency_mpct=1_000), 20, 1),  # 1 % of 20 is 0.2, rounded up
        (Budget("b", concurrency_mpct=10_000), 100, 10),
        (Budget("b", concurrency_mpct=10_001), 100, 11),
        (Budget("b", concurrency_mpct=0), 100, 0),
        (Budget("b", max_workers=2), 100, 2),
    ],
)
def test_a_share_of_the_workers_is_rounded_up(
    budget: Budget, workers: int, allowed: int | None
) -> None:
    """R124: an explicit 0 stays 0."""
    assert budget.workers_allowed(workers) == allowed


def test_an_explicit_zero_admits_nothing_and_unset_is_no_limit() -> None:
    """R124."""
    assert not Budget("b").admits_nothing and not Budget("b").has_limit
    assert Budget("b", rate_mpct=0).admits_nothing and Budget("b", rate_mpct=0).has_limit
    assert not Budget("b", rate_mpct=5).has_limit  # nothing to overflow
    assert Budget("b", capacity_mpcts=5).has_limit


def test_new_budgets_warn_and_those_that_are_off_take_no_part() -> None:
    """R122."""
    assert Budget("b").mode is Mode.WARN
    policy = Policy((Budget("a", Mode.OFF, rules=(budget_rule(),)), Budget("b")))
    assert [budget.name for budget in policy.kept] == ["b"]
    assert list(policy.numbered_rules()) == []


def test_a_budget_is_over_at_the_very_millisecond() -> None:
    budget = Budget("b", expires_at_ms=1000)
    assert not budget.expired(999) and budget.expired(1000)
    assert not Budget("b").expired(10**15)
