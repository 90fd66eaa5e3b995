"""Questions as they arrive: what they mean, or where they are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.names import ANONYMOUS, MetricRef, Scope
from headgate.check.questions import (
    MAX_CHECKS,
    MAX_METRICS,
    parse_check_body,
    parse_check_query,
    parse_freno,
    parse_read_query,
    parse_read_threshold,
)
from headgate.errors import InvalidRequest
from tests.builders import check

HOST, SHARD = Scope.HOST, Scope.SHARD
BAD_COSTS = ("0", "-1", "nan", "inf", "1e400", "1000000001", "many", "", "100rows")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("app=etl:nightly&database=main", check("etl:nightly")),
        ("database=main&app=etl%3Anightly", check("etl:nightly")),
        ("app=a&database=main&metrics=lag,shard/lag", check("a", "lag", "shard/lag")),
        ("app=a&database=main&metrics=self/lag", check("a", "host/lag")),
        ("app=a&database=main&metrics=lag,lag", check("a", "lag")),
        ("app=a&database=main&metrics=lag,,", check("a", "lag")),
        ("app=a&database=main&metrics=", check("a")),
        ("app=a&database=main&metrics=mysqld-loadavg", check("a", "loadavg")),
        ("app=a&database=main&metrics=lag&scope=shard", check("a", "shard/lag", scope=SHARD)),
        ("app=a&database=main&metrics=shard/lag&scope=self", check("a", "host/lag", scope=HOST)),
        ("app=a&database=main&scope=self", check("a", scope=HOST)),
        ("app=a&database=main&scope=shard", check("a", scope=SHARD)),
        (
            "app=a&database=main&metrics=lag,shard/lag&scope=host",
            check("a", "host/lag", scope=HOST),
        ),
        ("app=%C3%BCber&database=main", check("über")),
    ],
)
def test_a_query_is_a_check(query: str, expected: object) -> None:
    assert parse_check_query(query) == (expected, False)


def test_no_name_is_anonymous() -> None:
    for query in ("database=main", "app=&database=main", "app=anonymous&database=main"):
        assert parse_check_query(query)[0].identity is ANONYMOUS


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "database"),
        ("app=a", "database"),
        ("app=a&database=main&database=main", "database"),
        ("app=a&database=main&nonsense=1", "nonsense"),
        ("app=a&database=main&metrics=" + ",".join(["lag"] * (MAX_METRICS + 1)), "metrics"),
        ("app=a&database=main&metrics=No", None),
        ("app=a&database=main&metrics=lag&scope=galaxy", None),
        ("app=a&database=main&scope=galaxy", None),
        ("app=a&database=main&detail=1", "detail"),
        *((f"app=a&database=main&cost={cost}", "cost") for cost in BAD_COSTS),
        ("app=a b&database=main", None),
        ("app=%FF&database=main", None),
        ("&".join("x=1" for _ in range(17)), None),
    ],
)
def test_a_query_that_is_wrong_names_its_place(query: str, field: str | None) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        parse_check_query(query)
    assert (rejected.value.status, rejected.value.field) == (400, field)


@pytest.mark.parametrize(("text", "cost"), [("100", 100.0), ("0.5", 0.5), ("1e9", 1e9)])
def test_a_declared_cost_is_part_of_the_check_in_every_dialect(text: str, cost: float) -> None:
    """R142: rows, chunks, whatever the client counts in."""
    query = f"app=a&database=main&cost={text}"
    assert parse_check_query(query)[0].cost == cost
    assert parse_freno(["check", "a", "mysql", "main"], f"p=low&cost={text}").cost == cost
    body = {"app": "a", "checks": [{"database": "main", "cost": cost}, {"database": "other"}]}
    checks, _, _ = parse_check_body(json.dumps(body).encode())
    assert [check.cost for check in checks] == [cost, 1.0]
    assert parse_check_body(json.dumps({"database": "x", "cost": cost}).encode())[0][0].cost == cost


@pytest.mark.parametrize("cost", [*BAD_COSTS, "1&cost=2"])
def test_a_bad_cost_on_freno_s_route_is_rejected_by_name(cost: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        parse_freno(["check", "a", "mysql", "main"], f"cost={cost}")
    assert (rejected.value.status, rejected.value.field) == (400, "cost")


def test_parameters_of_freno_s_own_clients_are_left_to_them() -> None:
    assert parse_freno(["check", "a", "mysql", "main"], "p=low&store_cost=9").cost == 1.0


def test_detail_is_a_wish_of_its_own() -> None:
    assert parse_check_query("app=a&database=main&detail=true")[1] is True
    assert parse_check_query("app=a&database=main&detail=false")[1] is False


@pytest.mark.parametrize(
    ("body", "checks", "batch", "detail"),
    [
        ({"app": "a", "database": "main"}, [check("a")], False, False),
        ({"app": "a", "database": "main", "metrics": ["lag"]}, [check("a", "lag")], False, False),
        ({"app": "a", "database": "main", "detail": True}, [check("a")], False, True),
        ({"app": "a", "checks": [{"database": "main"}]}, [check("a")], True, False),
        (
            {
                "app": "a",
                "checks": [{"database": "x"}, {"database": "y", "metrics": ["shard/lag"]}],
            },
            [check("a", database="x"), check("a", "shard/lag", database="y")],
            True,
            False,
        ),
        (
            {"app": "a", "database": "main", "metrics": ["lag"], "scope": "shard"},
            [check("a", "shard/lag", scope=SHARD)],
            False,
            False,
        ),
        (
            {"app": "a", "database": "main", "scope": "shard"},
            [check("a", scope=SHARD)],
            False,
            False,
        ),
    ],
)
def test_a_body_is_one_check_or_several(
    body: Any, checks: object, batch: bool, detail: bool
) -> None:
    assert parse_check_body(json.dumps(body).encode()) == (checks, batch, detail)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "database"),
        ({"checks": []}, "checks"),
        ({"checks": [{"database": "x"}], "metrics": ["lag"]}, "checks"),
        ({"checks": [{"database": "x"}], "scope": "host"}, "checks"),
        ({"database": "x", "scope": "galaxy"}, None),
        ({"checks": [{"database": "x"}], "cost": 2}, "checks"),
        ({"checks": [{"database": "x"}] * (MAX_CHECKS + 1)}, "checks"),
        ({"checks": [{}]}, "checks[0]"),
        ({"database": "x", "metrics": "lag"}, "metrics"),
        ({"database": "x", "cost": 0}, "cost"),
        ({"database": "x", "cost": -1}, "cost"),
        ({"database": "x", "cost": 1e10}, "cost"),
        ({"database": "x", "cost": "100"}, "cost"),
        ({"database": "x", "cost": True}, "cost"),
        ({"checks": [{"database": "x"}, {"database": "y", "cost": 0}]}, "checks[1].cost"),
        ({"database": "x", "unknown": 1}, None),
        ({"database": "x" * 64}, None),
    ],
)
def test_a_body_that_is_wrong_names_its_place(body: Any, field: str | None) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        parse_check_body(json.dumps(body).encode())
    assert (rejected.value.status, rejected.value.field) == (400, field)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode())))
def test_any_bytes_are_a_check_or_rejected(body: bytes) -> None:
    try:
        checks, _, _ = parse_check_body(body)
    except InvalidRequest as rejected:
        assert str(rejected)
    else:
        assert 1 <= len(checks) <= MAX_CHECKS


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["app", "database", "metrics", "scope", "checks", "detail"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_any_document_is_a_check_or_rejected(document: object) -> None:
    try:
        parse_check_body(json.dumps(document).encode())
    except InvalidRequest as rejected:
        assert rejected.status == 400


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_query_is_a_check_or_rejected(query: str) -> None:
    for parse in (parse_check_query, parse_read_query):
        try:
            parse(query)
        except InvalidRequest as rejected:
            assert rejected.status == 400


def test_a_read_check_reads_lag_by_default() -> None:
    asked, _ = parse_read_query("app=web&database=main&threshold=2.5")
    assert asked == check("web", "lag", read_threshold=2.5)
    other, _ = parse_read_query("app=web&database=main&threshold=1&metric=shard/pool_usage")
    assert other.metrics == (MetricRef("pool_usage", Scope.SHARD),)


@pytest.mark.parametrize("text", ["1", "0.001", "2.5", "1e3", "999999999999"])
def test_a_read_threshold(text: str) -> None:
    assert parse_read_threshold(text) == float(text)


@pytest.mark.parametrize("text", ["", "x", "0", "-0", "-1", "nan", "inf", "-inf", "1e12", "0x10"])
def test_a_read_threshold_that_is_none(text: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        parse_read_threshold(text)
    assert rejected.value.field == "threshold"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("check/gh-ost/mysql/main", check("gh-ost")),
        ("check/etl%3Anightly/postgres/main", check("etl:nightly")),
        ("check-if-exists/a/mysql/main", check("a", ok_if_unknown=True)),
        ("check-read/a/mysql/main/2.5", check("a", "lag", read_threshold=2.5)),
        (
            "check-read-if-exists/a/mysql/main/2.5",
            check("a", "lag", read_threshold=2.5, ok_if_unknown=True),
        ),
    ],
)
def test_a_path_as_freno_gets_it(path: str, expected: object) -> None:
    assert parse_freno(path.split("/")) == expected


@pytest.mark.parametrize("path", ["check", "check/a", "check/a/b/c/d", "check-read/a/b/c"])
def test_a_path_freno_does_not_have_is_404(path: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        parse_freno(path.split("/"))
    assert rejected.value.status == 404
