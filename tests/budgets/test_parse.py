"""A policy as it is written: what is taken, and what is rejected with its place and the reason."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.base.places import with_lines
from headgate.budgets.limits import (
    AMOUNTS,
    BUDGET_SETTINGS,
    LimitSetting,
    amount_of,
    amount_told,
    instant_text,
    parse_instant_ms,
)
from headgate.budgets.parse import (
    MAX_FAULTS,
    parse_budget,
    parse_policy,
    written,
    written_budget,
)
from headgate.budgets.policy import (
    Budget,
    Condition,
    InTransaction,
    Mode,
    Policy,
    UnknownHealth,
    When,
    budget_rule,
    number_value,
)
from headgate.errors import InvalidSettings
from tests.budgets.policies import policies

DOCUMENT = """
[policy]
health_unknown = "unhealthy"
exempt_usernames = ["monitor"]

[[budgets]]
name = "etl"
mode = "enforce"
rate = 20
capacity = 200.5
burst = 0
concurrency = 0.001
warning_threshold = 80
when = "unhealthy"
in_transaction = "block"
max_delay_s = 1.5
penalty_s = 0
max_delayed = 0
epoch = 3
expires_at = 2026-11-16T09:00:00.25+01:00
comment = "INC-7"

[[budgets.rules]]
match = { username = "etl", "tag.controller" = "export", remote_address = "10.0.0.0/8" }
each = ["tag.tenant", "database"]

[[budgets.rules]]

[[budgets]]
name = "quiet"
"""


def test_a_document_becomes_a_policy() -> None:
    rule = budget_rule(
        [
            Condition("username", b"etl"),
            Condition("remote_address", b"\x0a\0\0\0\x08"),
            Condition("tag.controller", b"export"),
        ],
        ["database", "tag.tenant"],
    )
    etl = Budget(
        "etl",
        Mode.ENFORCE,
        rate_mpct=20_000,
        capacity_mpcts=200_500,
        burst_mpcts=0,
        concurrency_mpct=1,
        warning_mpct=80_000,
        when=When.UNHEALTHY,
        in_transaction=InTransaction.BLOCK,
        max_delay_ms=1500,
        penalty_ms=0,
        max_delayed=0,
        epoch=3,
        expires_at_ms=1_794_816_000_250,
        comment="INC-7",
        rules=(rule, budget_rule()),
    )
    policy = parse_policy(tomllib.loads(DOCUMENT))
    assert policy == Policy((etl, Budget("quiet")), UnknownHealth.UNHEALTHY, ("monitor",))


def test_nothing_is_a_policy_without_budgets() -> None:
    """R101."""
    assert parse_policy({}) == parse_policy({"policy": {}, "budgets": []}) == Policy()


def test_null_is_unset_and_zero_is_a_limit() -> None:
    """R124."""
    assert parse_budget({"name": "b", "rate": None, "expires_at": None}) == Budget("b")
    assert parse_budget({"name": "b", "rate": 0}).rate_mpct == 0


@given(policies())
def test_what_is_written_reads_back(policy: Policy) -> None:
    document = json.loads(json.dumps(written(policy)))
    assert parse_policy(document) == policy
    for budget in policy.budgets:
        assert parse_budget(written_budget(budget)) == budget


def test_defaults_are_not_written() -> None:
    assert written(Policy((Budget("b"),))) == {"budgets": [{"name": "b", "mode": "warn"}]}


def test_the_table_and_the_model_have_the_same_defaults() -> None:
    model = Budget("b")
    rows = [row for row in BUDGET_SETTINGS.values() if row.name != "name"]
    assert {row.field: row.default for row in rows} == {
        row.field: getattr(model, row.field) for row in rows
    }
    assert {row.field for row in BUDGET_SETTINGS.values()} == set(Budget.__slots__) - {"rules"}


# --- faults --------------------------------------------------------------------------------


def faults(raw: Any) -> list[str]:
    with pytest.raises(InvalidSettings) as rejected:
        parse_policy(raw)
    return [str(fault) for fault in rejected.value.faults]


def fault(**budget: Any) -> str:
    (told,) = faults({"budgets": [{"name": "b", **budget}]})
    return told.removeprefix("budgets[0].")


def rule_fault(**rule: Any) -> str:
    return fault(rules=[rule]).removeprefix("rules[0].")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rate", 120, "rate: 120 is more than 100"),
        ("rate", 100.0001, "rate: 100.0001 is more than 100"),
        ("rate", -1, "rate: -1 is less than 0"),
        ("rate", "20", "rate: must be a number, not a string"),
        ("rate", True, "rate: must be a number, not a boolean"),
        ("rate", float("nan"), "rate: is NaN, which is no number"),
        ("rate", float("inf"), "rate: inf is more than 100"),
        ("rate", 10**400, "rate: a number of more than 15 digits is more than 100"),
        ("rate", 0.0001, "rate: 0.0001 is finer than a thousandth; round it"),
        ("capacity", 6001, "capacity: 6001 is more than 6000"),
        ("burst", -0.001, "burst: -0.001 is less than 0"),
        ("concurrency", 101, "concurrency: 101 is more than 100"),
        ("max_workers", 65536, "max_workers: 65536 is more than 65535"),
        ("max_workers", 1.5, "max_workers: 1.5 is no whole number"),
        ("warning_threshold", 101, "warning_threshold: 101 is more than 100"),
        ("max_delay_s", 11, "max_delay_s: 11 is more than 10"),
        ("penalty_s", 0.0005, "penalty_s: 0.0005 is finer than a thousandth"),
        ("penalty_s", None, "penalty_s: must be a number, not null"),
        ("max_delayed", 1001, "max_delayed: 1001 is more than 1000"),
        ("epoch", 2**32, "epoch: 4294967296 is more than 4294967295"),
        ("mode", "of", "mode: is 'of', must be one of 'off', 'warn', 'enforce'"),
        ("when", None, "when: is None, must be one of"),
        ("in_transaction", True, "in_transaction: is True, must be one of 'charge', 'block'"),
        ("comment", "a\nb", "comment: holds a line break"),
        ("comment", "x" * 201, "comment: has 201 characters, at most 200"),
        ("name", "ETL", "name: is 'ETL', must be 1–63 of a–z"),
        ("name", "a" * 64, "name: is 'aaaa"),
        ("name", "", "name: is ''"),
        ("rules", {}, "rules: must be a list of tables: [[budgets.rules]]"),
        ("rules", [7], "rules[0]: must be a table of settings, not a number"),
        ("capcity", 5, "capcity: unknown setting 'capcity'; did you mean 'capacity'?"),
        ("rule", [], "rule: unknown setting 'rule'; did you mean 'rules'?"),
    ],
    ids=lambda part: str(part)[:20],
)
def test_a_wrong_setting_is_reported_with_its_place(name: str, value: Any, told: str) -> None:
    assert fault(**{name: value}).startswith(told)


def test_concurrency_is_given_once() -> None:
    assert fault(concurrency=5, max_workers=2) == (
        "max_workers: is the same limit as concurrency in another unit: give one of the two"
    )


@pytest.mark.parametrize(
    ("match", "told"),
    [
        ({"user": "x"}, "match.user: unknown key 'user'; did you mean 'username'?"),
        (
            {"controller": "x"},
            "match.controller: unknown key 'controller'; did you mean 'tag.controller'?",
        ),
        ({"tag": {"a": "x"}}, 'match.tag: is a table: quote the whole key, "tag.a" = …'),
        ({"tag.": "x"}, "match.tag.: has a tag's name of 0 bytes, must be 1 to 65"),
        ({"tag." + "é" * 33: "x"}, "match.tag.éééé"),
        ({"username": 7}, 'match.username: must be a string: write "7" in quotes'),
        ({"username": ["a", "b"]}, "match.username: must be a string, one value; for several"),
        ({"username": "é" * 513}, "match.username: has 1,026 bytes, at most 1,024"),
        ({"username": "a\0b"}, "match.username: holds a NUL byte"),
        ({"username": "\ud800"}, "match.username: holds half a character"),
        ({"query": 0}, "match.query: is 0, which the server says of"),
        ({"query": "1.5"}, "match.query: must be the server's query id"),
        ({"query": 1.0}, "match.query: must be the server's query id"),
        ({"query": True}, "match.query: must be the server's query id"),
        ({"query": 2**64}, "match.query: is no number of 64 bits"),
        ({"query": str(-(2**63) - 1)}, "match.query: is no number of 64 bits"),
        ({"fingerprint": "abc"}, "match.fingerprint: is 'abc', must be the 16 hexadecimal"),
        ({"remote_address": "10.0.0.1/8"}, "match.remote_address: is '10.0.0.1/8', which has bits"),
        ({"remote_address": "10.0.0.0/33"}, "match.remote_address: is '10.0.0.0/33', which is no"),
        ({"remote_address": "10.0.0"}, "match.remote_address: is '10.0.0', which is no address"),
        ({"remote_address": "010.0.0.1"}, "match.remote_address: is '010.0.0.1', which is no"),
        ({"remote_address": "10.0.0.0/255.0.0.0"}, "match.remote_address: is '10.0.0.0/255.0"),
        ({"remote_address": "fe80::1%eth0"}, "match.remote_address: is 'fe80::1%eth0', must be"),
        ({"remote_address": "10.0.0.0/08"}, "match.remote_address: is '10.0.0.0/08', must be"),
        (
            {"remote_address": "::ffff:10.0.0.0/104"},
            "match.remote_address: is '::ffff:10.0.0.0/104': the server sees such clients as IPv4, "
            "write 10.0.0.0/8",
        ),
        ({f"tag.t{n}": "x" for n in range(17)}, "match: has 17 keys, at most 16"),
        ("etl", "match: must be a table of keys and values"),
        (None, "match: must be a table of keys and values"),
    ],
)
def test_a_wrong_condition_is_reported_with_its_place(match: Any, told: str) -> None:
    assert rule_fault(match=match).startswith(told)


@pytest.mark.parametrize(
    ("each", "told"),
    [
        ("tag.tenant", "each: must be a list of keys"),
        (["tenant"], "each[0]: unknown key 'tenant'; did you mean 'tag.tenant'?"),
        (["query", "query"], "each[1]: 'query' is named twice"),
        (["tag.a", "tag.b", "tag.c", "tag.d", "tag.e"], "each: has 5 keys, at most 4"),
        ([5], "each[0]: must be the name of a key"),
    ],
)
def test_a_wrong_each_key_is_reported_with_its_place(each: Any, told: str) -> None:
    assert rule_fault(each=each).startswith(told)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], ": must be a table with `policy` and `budgets`"),
        ({"budget": []}, "budget: unknown setting 'budget'; did you mean 'budgets'?"),
        ({"budgets": {"etl": {}}}, "budgets: must be a list of tables: [[budgets]]"),
        ({"budgets": [5]}, "budgets[0]: must be a table of settings, not a number"),
        ({"budgets": [{}]}, "budgets[0].name: is missing"),
        ({"policy": 5}, "policy: must be a table of settings"),
        ({"policy": {"health_unknown": "ill"}}, "policy.health_unknown: is 'ill', must be one of"),
        ({"policy": {"exempt_usernames": "me"}}, "policy.exempt_usernames: must be a list"),
        ({"policy": {"exempt_usernames": ["a", "a"]}}, "policy.exempt_usernames[1]: 'a' is named"),
        ({"policy": {"exempt_usernames": [""]}}, "policy.exempt_usernames[0]: must be a username"),
        ({"policy": {"exempt_usernames": ["a"] * 65}}, "policy.exempt_usernames: has 65 usernames"),
        (
            {"budgets": [{"name": "a"}, {"name": "a"}]},
            "budgets[1].name: 'a' is the name of budgets[0] as well",
        ),
    ],
)
def test_a_wrong_document_is_reported_with_its_place(document: Any, told: str) -> None:
    (only,) = faults(document)
    assert f"{only}".startswith(told.removeprefix(": "))


def test_every_fault_is_reported_at_once_and_with_its_line() -> None:
    text = (
        'polcy = 1\n[[budgets]]\nname = "a"\nrate = 120\n[[budgets]]\nname = "a"\n'
        '[[budgets.rules]]\n[[ budgets.rules ]] # the second\neach = ["tenant"]\n'
        '[budgets.rules.match]\nuser = "x"\n'
    )
    with pytest.raises(InvalidSettings) as rejected:
        parse_policy(tomllib.loads(text))
    placed = [(f.line, f.place) for f in with_lines(rejected.value.faults, text)]
    assert placed == [
        (1, "polcy"),
        (4, "budgets[0].rate"),
        (11, "budgets[1].rules[1].match.user"),
        (9, "budgets[1].rules[1].each[0]"),
        (6, "budgets[1].name"),
    ]


def test_the_same_mistake_ten_thousand_times_is_not_listed_ten_thousand_times() -> None:
    told = faults({"budgets": [{"name": f"b{n}", "rat": 5} for n in range(10_000)]})
    assert len(told) == MAX_FAULTS + 1
    assert told[-1] == f"there may be more: parsing stopped after {MAX_FAULTS} faults"


def test_more_than_a_server_has_room_for_is_rejected_before_it_is_read() -> None:
    rules: list[dict[str, Any]] = [{}] * 40_000
    assert faults({"budgets": [{"name": "a", "rules": rules}, {"name": "b", "rules": rules}]}) == [
        "budgets: has 80,000 rules in all, at most 65,536"
    ]
    assert faults({"budgets": [5] * 65_537}) == ["budgets: has 65,537 budgets, at most 65,536"]
    with pytest.raises(InvalidSettings, match=r"budget\.rules: has 80,000 rules"):
        parse_budget({"name": "a", "rules": rules * 2})


def test_a_single_budget_reports_its_faults_at_the_place_given() -> None:
    with pytest.raises(InvalidSettings, match=r"^body\.rate: 120 is more than 100$"):
        parse_budget({"name": "b", "rate": 120}, "body")
    with pytest.raises(InvalidSettings, match=r"^budget: must be a table"):
        parse_budget([])


# --- values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("username", "Straße", "Straße".encode()),
        ("application_name", "", b""),
        ("query", -5, number_value(-5)),
        ("query", str(2**64 - 5), number_value(-5)),
        ("fingerprint", "00000000DEADBEEF", b"\xef\xbe\xad\xde\0\0\0\0"),
        ("remote_address", "10.1.2.3", b"\x0a\x01\x02\x03\x20"),
        ("remote_address", "0.0.0.0/0", bytes(5)),
        ("remote_address", "2001:db8::/32", b"\x20\x01\x0d\xb8" + bytes(12) + b"\x20"),
        ("remote_address", "::/0", bytes(17)),
    ],
)
def test_values_are_kept_as_they_are_compared(key: str, value: Any, kept: bytes) -> None:
    budget = parse_budget({"name": "b", "rules": [{"match": {key: value}}]})
    assert budget.rules[0].conditions == (Condition(key, kept),)


@pytest.mark.parametrize(
    "value",
    [
        1_794_816_000.25,
        "2026-11-16T08:00:00.25Z",
        "2026-11-16T09:00:00.250+01:00",
        datetime(2026, 11, 16, 8, 0, 0, 250_000, tzinfo=UTC),
        datetime(2026, 11, 16, 9, 0, 0, 250_400, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_an_end_may_be_said_in_several_ways(value: Any) -> None:
    assert parse_instant_ms(value) == 1_794_816_000_250


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (datetime(2026, 11, 16), "has no time zone"),  # noqa: DTZ001 -- as TOML gives it
        (datetime(2026, 11, 16).date(), "must be a date and time"),  # noqa: DTZ001
        ("2026-11-16", "must read like"),
        (0, "is before 1970"),
        ("1969-12-31T23:59:59Z", "is before 1970"),
        (True, "must be a date and time"),
        (1e13, "is more than 1000000000000"),
        (10**400, "is more than 1000000000000"),
    ],
    ids=lambda part: str(part)[:20],
)
def test_an_end_that_could_be_any_time_is_rejected(value: Any, told: str) -> None:
    assert told in fault(expires_at=value)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 31)))  # noqa: DTZ001 -- made UTC below
def test_an_end_is_written_as_a_date_and_time(at: datetime) -> None:
    ms = round(at.replace(tzinfo=UTC).timestamp() * 1000)
    told = instant_text(ms)
    assert isinstance(told, str)
    assert round(datetime.fromisoformat(told).timestamp() * 1000) == ms
    assert parse_instant_ms(told) == ms


def test_an_end_beyond_the_calendar_is_written_in_seconds() -> None:
    assert parse_instant_ms(instant_text(10**15)) == 10**15


WITH_UNITS = [row for row in BUDGET_SETTINGS.values() if row.kind in AMOUNTS]


@given(st.sampled_from(WITH_UNITS), st.integers(0, 6_000_000))
@example(BUDGET_SETTINGS["capacity"], 1)
@example(BUDGET_SETTINGS["capacity"], 1_234_567)
def test_a_limit_is_shown_as_it_can_be_typed_again(row: LimitSetting, thousandths: int) -> None:
    """Opened in a form and saved, no limit changes."""
    assert row.high is not None
    limit = thousandths % (row.high * 1000 + 1) / 1000
    assert amount_of(row.kind, amount_told(row.name, limit)) == limit
