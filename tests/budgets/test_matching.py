"""Which budgets a statement falls under, and at what price (R116–R121, R147)."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.matching import Matched, Now, RuleSet
from headgate.budgets.model import MAX_MATCHES, Dialect, Statement, StatementIdentity, budget_key
from headgate.budgets.policy import FINGERPRINT, QUERY
from headgate.budgets.sql_text import fingerprint
from tests.budgets.worlds import budget, rule_set


def match(**conditions: Any) -> dict[str, Any]:
    return {"match": {key.replace("tag_", "tag."): value for key, value in conditions.items()}}


def matched(
    rules: RuleSet, text: str = "SELECT 1", *, now: Now | None = None, query_id: int = 0, **who: Any
) -> Matched:
    if "address" in who:
        who["address"] = ip_address(who["address"])
    return rules.match(
        StatementIdentity(**who), Statement(text.encode(), query_id=query_id), now or Now()
    )


def names(rules: RuleSet, *args: Any, **kwargs: Any) -> list[str]:
    return [rules.budgets[m.budget].name for m in matched(rules, *args, **kwargs).at]


def test_with_no_rules_nothing_is_looked_up() -> None:
    """R101."""
    assert matched(rule_set(budget(rules=[])), "SELECT 1 /*a=1*/", username="app") == Matched()


def test_rules_are_ored_and_conditions_anded() -> None:
    rules = rule_set(budget("b", rules=[match(username="etl", database="shop"), match(tag_a="1")]))
    assert names(rules, username="etl", database="shop") == ["b"]
    assert names(rules, username="etl") == []
    assert names(rules, "SELECT 1 /*a=1*/", username="web") == ["b"]
    assert names(rules, "SELECT 1 /*a=2*/", username="ETL", database="shop") == []


def test_several_budgets_apply_in_the_order_of_the_document() -> None:
    rules = rule_set(
        budget("z", rules=[match(tag_a="1")]),
        budget("off", mode="off"),
        budget("m", rules=[match(username="app")]),
        budget("a"),
    )
    assert names(rules, "SELECT 1 /*a=1*/", username="app") == ["z", "m", "a"]


def test_three_pairs_cost_three_look_ups_whatever_the_rules() -> None:
    """R116, R118."""
    for many in (10, 2000):
        rules = rule_set(
            *(budget(f"b{i}", rules=[match(username=f"u{i}", tag_a=f"{i}")]) for i in range(many))
        )
        found = matched(rules, "SELECT 1 /*a=7,b=8*/", username="u7", database="unnamed")
        assert (len(found.at), found.probes) == (1, 3)


def test_an_address_costs_a_look_up_per_length_of_prefix() -> None:
    """R117: ten lengths, ten look-ups; IPv6 has its own."""
    nets = [f"10.0.0.0/{bits}" for bits in range(8, 18)] + ["2001:db8::/32"]
    rules = rule_set(
        *(budget(f"b{i}", rules=[match(remote_address=n)]) for i, n in enumerate(nets))
    )
    assert matched(rules, address="10.0.0.1").probes == 10
    assert matched(rules, address="2001:db8::1").probes == 1
    assert matched(rules).probes == 0


def test_the_longest_prefix_that_matches_as_a_whole_wins() -> None:
    """R117: also over budgets; a closer rule that fails in another condition hides nothing."""
    rules = rule_set(
        budget("wide", rules=[match(remote_address="10.0.0.0/8")]),
        budget("near", rules=[match(remote_address="10.1.0.0/16")]),
        budget("same", rules=[match(remote_address="10.1.0.0/16", username="app")]),
        budget("host", rules=[match(remote_address="10.1.2.3", username="etl")]),
        budget("all"),
    )
    assert names(rules, address="10.1.2.3", username="app") == ["near", "same", "all"]
    assert names(rules, address="10.1.2.3", username="etl") == ["host", "all"]
    assert names(rules, address="10.9.9.9", username="app") == ["wide", "all"]
    assert names(rules, username="app") == ["all"]


def test_a_budget_that_only_warns_hides_no_enforced_one() -> None:
    """To watch a host must not be to let it through what holds its network."""
    rules = rule_set(
        budget("kill", mode="enforce", rules=[match(remote_address="10.0.0.0/8")]),
        budget("look", mode="warn", rules=[match(remote_address="10.1.0.0/16")]),
        budget("host", mode="enforce", rules=[match(remote_address="10.1.2.3")]),
    )
    assert names(rules, address="10.1.9.9") == ["kill", "look"]
    assert names(rules, address="10.1.2.3") == ["host"]


def test_an_expired_or_disabled_budget_hides_no_other() -> None:
    rules = rule_set(
        budget("wide", rules=[match(remote_address="10.0.0.0/8")]),
        budget("gone", rules=[match(remote_address="10.1.0.0/16")], expires_at=2000),
        budget("rests", rules=[match(remote_address="10.1.2.0/24")], when="unhealthy"),
    )
    ask = {"address": "10.1.2.3"}
    assert names(rules, now=Now(1_999_999, True), **ask) == ["gone"]
    assert names(rules, now=Now(2_000_000, True), **ask) == ["wide"]
    assert names(rules, now=Now(2_000_000, False), **ask) == ["rests"]


def test_an_address_mapped_into_ipv6_is_the_ipv4_address() -> None:
    rules = rule_set(
        budget("four", rules=[match(remote_address="0.0.0.0/0")]),
        budget("six", rules=[match(remote_address="::/0")]),
    )
    assert names(rules, address="::ffff:10.0.0.1") == ["four"]
    assert names(rules, address="2001:db8::1") == ["six"]
    assert names(rules) == []


@pytest.mark.parametrize(
    ("unknown", "healthy", "bites"),
    [
        ("healthy", True, False),
        ("healthy", False, True),
        ("healthy", None, False),
        ("unhealthy", True, False),
        ("unhealthy", None, True),
    ],
)
def test_a_budget_may_bite_only_under_pressure(
    unknown: str, healthy: bool | None, bites: bool
) -> None:
    """R147."""
    rules = rule_set(budget(when="unhealthy"), health_unknown=unknown)
    assert bool(names(rules, now=Now(0, healthy))) is bites


def test_no_rule_applies_to_an_exempt_user() -> None:
    rules = rule_set(budget(rules=[{}, match(tag_a="1")]), exempt_usernames=["monitor"])
    assert matched(rules, "SELECT 1 /*a=1*/", username="monitor") == Matched()
    assert names(rules, username="Monitor") == ["b"]


def test_each_value_has_a_bucket_of_its_own() -> None:
    """R121."""
    rules = rule_set(budget(rules=[{"each": ["tag.tenant", "username"]}]))
    ask = "SELECT 1 /*tenant='{}'*/"
    (acme,) = matched(rules, ask.format("acme"), username="app").at
    (other,) = matched(rules, ask.format("other"), username="app").at
    (third,) = matched(rules, ask.format("acme"), username="etl").at
    assert acme.label == b"username=app,tenant=acme"
    assert len({acme.bucket, other.bucket, third.bucket, budget_key("b")}) == 4
    assert matched(rules, "SELECT 1", username="app").at == ()


def test_a_bucket_brought_twice_counts_once() -> None:
    rules = rule_set(
        budget(rules=[match(username="app"), {}, {"each": ["tag.t"]}, {"each": ["tag.t"]}])
    )
    found = matched(rules, "SELECT 1 /*t=1*/", username="app").at
    assert [(m.rule, m.label) for m in found] == [(0, b""), (2, b"t=1")]


def test_a_label_is_cut_and_says_addresses_and_numbers_as_people_do() -> None:
    rules = rule_set(budget(rules=[{"each": ["remote_address", "fingerprint", "query"]}]))
    (found,) = matched(rules, address="2001:db8::1", query_id=255).at
    assert found.label == b"remote_address=2001:db8::1,query=00000000000000ff,fingerprint="[:47]
    assert len(found.label) == 47


def test_query_and_fingerprint_are_numbers() -> None:
    shape = f"{fingerprint(b'select ?', Dialect.POSTGRES):016x}"
    rules = rule_set(
        budget("signed", rules=[match(**{QUERY: -1})]),
        budget("shape", rules=[match(**{FINGERPRINT: shape})]),
    )
    assert names(rules, "SELECT 42", query_id=2**64 - 1) == ["signed", "shape"]
    assert names(rules, "SELECT a", query_id=1) == []


def test_budgets_beyond_the_most_are_counted_not_applied() -> None:
    rules = rule_set(*(budget(f"b{i}") for i in range(MAX_MATCHES + 3)))
    found = matched(rules)
    assert (len(found.at), found.left_out) == (MAX_MATCHES, 3)
    assert [m.budget for m in found.at] == list(range(MAX_MATCHES))


CONDITION = st.fixed_dictionaries(
    {},
    optional={
        "username": st.sampled_from(["app", "etl"]),
        "tag.a": st.sampled_from(["1", "2"]),
        "remote_address": st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3"]),
    },
)


@given(st.lists(st.lists(CONDITION, max_size=3), min_size=1, max_size=6), st.randoms())
def test_neither_the_order_of_rules_nor_that_of_budgets_changes_what_applies(
    policy: list[list[dict[str, str]]], dice: Any
) -> None:
    def applies(budgets: list[tuple[str, list[dict[str, str]]]]) -> set[str]:
        made = [budget(name, rules=[{"match": c} for c in rules]) for name, rules in budgets]
        return set(names(rule_set(*made), "SELECT 1 /*a=1*/", username="app", address="10.1.2.3"))

    named = [(f"b{i}", rules) for i, rules in enumerate(policy)]
    shuffled = [(name, dice.sample(rules, len(rules))) for name, rules in named]
    dice.shuffle(shuffled)
    assert applies(named) == applies(shuffled)


def cut(rules: RuleSet, text: str = "SELECT 1", **who: Any) -> list[str]:
    if "address" in who:
        who["address"] = ip_address(who["address"])
    found = rules.match(StatementIdentity(**who), Statement(text.encode(), cut=True), Now())
    return [rules.budgets[m.budget].name for m in found.at]


def test_a_text_that_is_cut_falls_under_all_that_it_could_go_on_to_say() -> None:
    """P4, R152: what is out of sight never goes unmatched."""
    rules = rule_set(
        budget("tagged", rules=[match(tag_a="1")]),
        budget("shaped", rules=[match(fingerprint="00000000000000aa")]),
        budget("others", rules=[match(tag_a="1", username="etl")]),
        budget("numbered", rules=[match(query=7)]),
        budget("mine", rules=[match(username="app")]),
        budget("tenants", rules=[{"each": ["tag.tenant"]}]),
        budget("resting", when="unhealthy", rules=[match(tag_a="1")]),
    )
    assert cut(rules, username="app") == ["mine", "tagged", "shaped", "tenants"]
    assert cut(rules, "SELECT 1 /*a=2*/", username="app")[0] == "mine"
    assert names(rules, username="app") == ["mine"]


def test_what_is_known_comes_before_what_could_be() -> None:
    """Else a text that is cut would be a way around the limits that protect."""
    many = [budget(f"t{i}", rules=[match(tag_a=f"{i}")]) for i in range(MAX_MATCHES)]
    rules = rule_set(*many, budget("mine", rules=[match(username="app")]))
    found = rules.match(StatementIdentity(username="app"), Statement(b"SELECT 1", cut=True), Now())
    assert rules.budgets[found.at[0].budget].name == "mine"
    assert (len(found.at), found.left_out) == (MAX_MATCHES, 1)


def test_what_could_be_hides_nothing() -> None:
    rules = rule_set(
        budget("net", rules=[match(remote_address="10.0.0.0/8")]),
        budget("host", rules=[match(remote_address="10.1.2.3", tag_a="1")]),
    )
    assert cut(rules, address="10.1.2.3") == ["net", "host"]
    assert cut(rules, "SELECT 1 /*a=1*/", address="10.1.2.3") == ["host", "net"]
