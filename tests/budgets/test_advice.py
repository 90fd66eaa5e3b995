"""Advice on policies: what is probably not meant, where, and what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from headgate.base.advice import Advice, Severity
from headgate.budgets.advice import MAX_TOLD, advise
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from tests.budgets.policies import policies

FINE = {"rate": 20, "capacity": 200}
ETL = {"match": {"username": "etl"}}


def advice(*budgets: dict[str, Any], exempt: tuple[str, ...] = (), **server: Any) -> list[Advice]:
    named = [{"name": f"b{at}", "rules": [ETL], **budget} for at, budget in enumerate(budgets)]
    policy = parse_policy({"policy": {"exempt_usernames": exempt}, "budgets": named})
    return advise(policy, **server)


def told(*budgets: dict[str, Any], **server: Any) -> list[tuple[str, str]]:
    return [(one.code, one.place) for one in advice(*budgets, **server)]


def test_a_sound_policy_needs_no_advice() -> None:
    enforced = {**FINE, "mode": "enforce", "burst": 100, "concurrency": 10, "warning_threshold": 80}
    rules = [ETL, {"match": {"username": "web"}, "each": ["tag.tenant"]}]
    assert advice({**enforced, "rules": rules}, workers=100, cpus=8, wall_ms=5) == []


def test_what_is_off_needs_no_advice() -> None:
    assert advice({"mode": "off", "rate": 0, "rules": [{}, {}]}) == []


@pytest.mark.parametrize(
    ("budget", "code", "place"),
    [
        ({"rate": 20}, "rate-without-capacity", "budgets[0].rate"),
        ({"capacity": 20}, "capacity-without-rate", "budgets[0].capacity"),
        ({}, "no-limit", "budgets[0]"),
        ({**FINE, "burst": 201}, "burst-above-capacity", "budgets[0].burst"),
        ({**FINE, "warning_threshold": 80}, "warning-threshold", "budgets[0].warning_threshold"),
        (
            {"mode": "enforce", "rate": 0, "warning_threshold": 80, "expires_at": 10},
            "warning-threshold",
            "budgets[0].warning_threshold",
        ),
        ({"max_workers": 0}, "kill-switch", "budgets[0].max_workers"),
        ({**FINE, "rate": 0}, "kill-switch", "budgets[0].rate"),
        ({**FINE, "concurrency": 1}, "rounded-up", "budgets[0].concurrency"),
        ({**FINE, "expires_at": 5}, "expired", "budgets[0].expires_at"),
    ],
)
def test_limits_that_are_not_what_they_seem(budget: dict[str, Any], code: str, place: str) -> None:
    assert (code, place) in told(budget, workers=20, wall_ms=5000)
    assert all(one.severity is Severity.WARNING for one in advice(budget))


def test_a_share_of_the_workers_is_validated_only_if_their_number_is_known() -> None:
    budget = {**FINE, "concurrency": 1}
    assert advice(budget) == advice(budget, workers=100) == []
    (found,) = advice(budget, workers=20)
    assert "1 % of 20 workers, which is 0.2, rounded up to 1" in found.message


def test_a_kill_switch_is_shown_plainly_and_wants_an_end() -> None:
    """R124."""
    switch = {"mode": "enforce", "max_workers": 0, "rules": [ETL]}
    first, second = advice(switch)
    assert "blocks every statement that it matches" in first.message
    assert (second.code, second.place) == ("kill-switch-without-end", "budgets[0].expires_at")
    assert [code for code, _ in told({**switch, "expires_at": 10})] == ["kill-switch"]
    (found,) = advice({**switch, "mode": "warn"})
    assert "would block, once enforced," in found.message


def test_shares_above_the_whole_server_are_reported_once() -> None:
    enforced = {**FINE, "mode": "enforce", "rate": 60}
    (found,) = advice(enforced, enforced, {**FINE, "rate": 60}, cpus=8)
    assert (found.code, found.place) == ("rates-above-100", "budgets")
    assert "rates of 120 % in all (9.6 of 8 CPUs)" in found.message
    assert advice(enforced, {**enforced, "rate": 40}) == []


def test_a_rule_for_everything_is_reported() -> None:
    assert told({**FINE, "rules": [{}]}) == [("match-all", "budgets[0].rules[0]")]


@pytest.mark.parametrize("rule", [{}, {"match": {"username": "postgres"}}, {"each": ["username"]}])
def test_a_kill_switch_that_locks_out_the_administrator_is_an_error(rule: dict[str, Any]) -> None:
    switch = {"mode": "enforce", "rate": 0, "expires_at": 10, "rules": [rule]}
    found = [one for one in advice(switch) if one.severity is Severity.ERROR]
    assert found[0].code == "locks-out-administrator"
    assert found[0].place == "budgets[0].rules[0]"
    assert 'add "postgres" to exempt_usernames' in found[0].message
    exempt = ("postgres", "replicator")
    assert all(one.severity is Severity.WARNING for one in advice(switch, exempt=exempt))
    assert advice(switch)[0].severity is Severity.ERROR, "errors first"


@pytest.mark.parametrize(
    ("match", "where"),
    [
        ({"remote_address": "0.0.0.0/0"}, "(postgres) over the network"),
        ({"remote_address": "::/0", "username": "postgres"}, "(postgres) over the network"),
        ({"database": "postgres"}, "(postgres) in the database postgres"),
    ],
)
def test_every_address_and_the_administrators_database_lock_out_as_well(
    match: dict[str, str], where: str
) -> None:
    switch = {"mode": "enforce", "max_workers": 0, "expires_at": 10, "rules": [{"match": match}]}
    found = advice(switch)[0]
    assert (found.severity, found.code) == (Severity.ERROR, "locks-out-administrator")
    assert where in found.message
    narrow = {"remote_address": "10.0.0.0/8"}
    assert advice({**switch, "rules": [{"match": narrow}]})[0].severity is Severity.WARNING


def test_where_no_agent_publishes_its_role_is_to_be_exempt() -> None:
    budget = {**FINE, "mode": "enforce", "rules": [{"match": {"database": "postgres"}}]}
    exempt = ("postgres", "replicator")
    assert told(budget, exempt=exempt, agents=("headgate",)) == [
        ("may-block-agent", "budgets[0].rules[0]")
    ]
    assert told(budget, exempt=(*exempt, "headgate"), agents=("headgate",)) == []


def test_a_budget_without_rules_is_reported_and_its_zero_is_not() -> None:
    """R146: it is for checks that name it."""
    (found,) = advice({"mode": "enforce", "max_workers": 0, "rules": []})
    assert (found.code, found.place) == ("no-rule", "budgets[0]")
    assert "--match '*'" in found.message


@pytest.mark.parametrize(
    "budget",
    [
        {**FINE, "rules": [{}]},  # warns
        {**FINE, "mode": "enforce", "rules": [{"match": {"username": "postgres", "tag.a": "b"}}]},
        {**FINE, "mode": "enforce", "rules": [{"each": ["tag.tenant"]}]},
        {"rate": 5, "mode": "enforce", "rules": [{}]},  # limits nothing
    ],
)
def test_the_administrator_is_not_locked_out_by(budget: dict[str, Any]) -> None:
    assert not {code for code, _ in told(budget)} & {
        "locks-out-administrator", "may-block-administrator",
    }  # fmt: skip


def test_limits_on_the_administrator_and_on_replication_are_reported() -> None:
    budget = {**FINE, "mode": "enforce", "rules": [{"match": {"username": "dba"}}, {}]}
    found = told(budget, administrators=["dba"], replicators=["copy"], exempt=("copy",))
    assert sorted(found) == [
        ("match-all", "budgets[0].rules[1]"),
        ("may-block-administrator", "budgets[0].rules[0]"),
        ("may-block-administrator", "budgets[0].rules[1]"),
        ("shadowed", "budgets[0].rules[0]"),
    ]
    budget = {**FINE, "mode": "enforce", "rules": [{"match": {"username": "replicator"}}]}
    assert told(budget) == [("may-block-replication", "budgets[0].rules[0]")]


@pytest.mark.parametrize(
    ("rule", "code", "place"),
    [
        ({"each": ["tag.traceparent"]}, "unbounded-each", "each"),
        ({"each": ["tag.Request_ID"]}, "unbounded-each", "each"),
        ({**ETL, "each": ["username"]}, "each-of-one", "each"),
        ({"match": {"query": 5}}, "query-id", "match.query"),
        ({"match": {"tag.a": "b c"}}, "never-matches", "match.tag.a"),
        ({"match": {"tag.a": ""}}, "never-matches", "match.tag.a"),
        ({"match": {"tag.ä": "b"}}, "never-matches", "match.tag.ä"),
    ],
)
def test_rules_that_do_not_do_what_they_say(rule: dict[str, Any], code: str, place: str) -> None:
    assert told({**FINE, "rules": [rule]}) == [(code, f"budgets[0].rules[0].{place}")]


def test_a_bucket_for_each_address_of_a_prefix_makes_sense() -> None:
    rule = {"match": {"remote_address": "10.0.0.0/8"}, "each": ["remote_address"]}
    assert advice({**FINE, "rules": [rule]}) == []


# --- rules beside rules ----------------------------------------------------------------------


def at(prefix: str, **match: str) -> dict[str, Any]:
    return {"match": {"remote_address": prefix, **match}}


def shadows(*budgets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = told(*({**FINE, "rules": rules} for rules in budgets))
    return [one for one in found if one[0] in ("duplicate", "shadowed", "longer-prefix")]


def test_a_rule_beside_a_broader_one_says_nothing() -> None:
    narrow = {"match": {"username": "etl", "tag.a": "b"}}
    assert shadows([narrow, ETL]) == [("shadowed", "budgets[0].rules[0]")]
    assert shadows([ETL, narrow]) == [("shadowed", "budgets[0].rules[1]")]
    assert shadows([narrow], [ETL]) == []  # another budget
    assert shadows([{**narrow, "each": ["tag.t"]}, ETL]) == []  # other buckets
    assert shadows([ETL, {}]) == [("shadowed", "budgets[0].rules[0]")]
    assert shadows([ETL, {"match": {"username": "web"}}]) == []


def test_the_same_rule_again_is_reported_once() -> None:
    assert shadows([ETL, ETL]) == [("duplicate", "budgets[0].rules[1]")]
    assert shadows([{}, {}]) == [("duplicate", "budgets[0].rules[1]")]


def test_a_narrower_prefix_of_the_same_budget_says_nothing() -> None:
    assert shadows([at("10.0.0.0/8"), at("10.1.0.0/16")]) == [("shadowed", "budgets[0].rules[1]")]
    assert shadows([at("10.0.0.0/8"), at("11.1.0.0/16")]) == []
    assert shadows([at("0.0.0.0/0"), at("::1")]) == []


def test_a_prefix_that_keeps_addresses_from_another_budget_says_something() -> None:
    """R117: without it, budgets[1] would get them."""
    found = shadows([at("10.0.0.0/8"), at("10.1.0.0/16")], [at("10.0.0.0/8")])
    assert found == [("longer-prefix", "budgets[1].rules[0].match.remote_address")]


def test_longer_prefixes_that_take_addresses_away_are_reported() -> None:
    """R117: the longest prefix alone applies, whatever budget it belongs to."""
    wide = {**FINE, "rules": [at("10.0.0.0/8")]}
    (found,) = advice(wide, {**FINE, "rules": [at("10.1.0.0/16"), at("10.2.0.0/16")]})
    assert (found.code, found.place) == (
        "longer-prefix",
        "budgets[0].rules[0].match.remote_address",
    )
    assert "10.1.0.0/16 (budget b1), 10.2.0.0/16 (budget b1)" in found.message
    # Only some of what the wide one matches: it applies to the rest of these addresses.
    assert shadows([at("10.0.0.0/8")], [at("10.1.0.0/16", username="etl")]) == []
    tagged = {**at("10.1.0.0/16"), "each": ["tag.t"]}
    assert shadows([at("10.0.0.0/8")], [tagged]) == []


@pytest.mark.parametrize("lasting", [{"when": "unhealthy"}, {"expires_at": 10}])
def test_a_budget_that_is_off_or_over_hides_nothing(lasting: dict[str, Any]) -> None:
    wide = {**FINE, "rules": [at("10.0.0.0/8")]}
    longer = {**FINE, **lasting, "rules": [at("10.1.0.0/16")]}
    assert told(wide, longer) == []
    assert [code for code, _ in told({**wide, **lasting}, longer)] == ["longer-prefix"]


def test_a_prefix_that_longer_ones_cover_says_nothing() -> None:
    halves = [at("10.0.0.0/9"), at("10.128.0.0/9")]
    place = "budgets[0].rules[0].match.remote_address"
    assert shadows([at("10.0.0.0/8")], halves) == [("shadowed", place)]


def test_the_same_advice_a_thousand_times_is_reported_briefly() -> None:
    """What ten thousand rules cost, bench/bounds.py says."""
    rules = [{"match": {"tag.tenant": f"t{n % 1010}", "username": "web"}} for n in range(2_020)]
    found = advice({**FINE, "rules": rules})
    assert [one.code for one in found] == ["duplicate"] * (MAX_TOLD + 1)
    assert found[-1].message == "the same in 1,000 more places"


@given(policies())
def test_any_policy_can_be_advised_on(policy: Policy) -> None:
    for one in advise(policy, workers=20, cpus=4, wall_ms=10**12):
        assert one.place.startswith("budgets") and one.message
