from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import (
    ANONYMOUS,
    OTHER,
    MetricRef,
    Scope,
    crowds_of,
    is_crowd,
    levels_of,
    parse_database,
    parse_identity,
    parse_metric_ref,
)
from headgate.errors import InvalidName


def test_identity_is_a_path_of_tokens() -> None:
    """R64"""
    identity = parse_identity("d666bbfc_169e:vcopier:vreplication:online-ddl")
    assert identity.tokens == ("d666bbfc_169e", "vcopier", "vreplication", "online-ddl")


def test_no_name_is_the_anonymous_class() -> None:
    assert parse_identity("") is ANONYMOUS


@pytest.mark.parametrize(
    "text", [":", "a:", "a::b", "a b", "a\n", "x" * 257, ":".join("abcdefghi"), "a\x00", "é" * 300]
)
def test_odd_identities_are_rejected_with_the_name(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_identity(text)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("lag", MetricRef("lag")),
        ("self/lag", MetricRef("lag", Scope.HOST)),
        ("host/lag", MetricRef("lag", Scope.HOST)),
        ("shard/lag", MetricRef("lag", Scope.SHARD)),
        ("mysqld-loadavg", MetricRef("loadavg")),
        ("mysqld-datadir-used-ratio", MetricRef("disk_used")),
    ],
)
def test_vitess_names_are_understood(text: str, ref: MetricRef) -> None:
    """R41"""
    assert parse_metric_ref(text) == ref


@pytest.mark.parametrize("text", ["", "Lag", "cell/lag", "shard/", "/lag", "la g", "a" * 64])
def test_odd_metrics_are_rejected(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_metric_ref(text)


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_a_named_rejection(text: str) -> None:
    for parse in (parse_identity, parse_metric_ref, parse_database):
        try:
            parse(text)
        except InvalidName as error:
            assert str(error)


# --- groups of clients ---------------------------------------------------------------------
# What those are called that there is no room to tell apart (R68, R69).


def nobody(_: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("client", "shared", "crowds"),
    [
        ("u7:etl:nightly", {"etl", "nightly"}, ["other:etl:nightly", "other:nightly", "other"]),
        ("u7:etl:nightly", set(), ["other:etl:nightly", "other:nightly", "other"]),
        ("etl:u7", {"etl"}, ["etl:other", "other"]),
        ("nightly:u7:prod", {"nightly", "prod"}, ["nightly:other:prod", "other:prod", "other"]),
        ("other:etl:nightly", set(), ["other:nightly", "other"]),
        ("u7", set(), ["other"]),
        ("other", set(), ["other"]),
    ],
)
def test_names_collapse_towards_their_levels(
    client: str, shared: set[str], crowds: list[str]
) -> None:
    assert list(crowds_of(client, shared.__contains__)) == crowds


@given(st.lists(st.sampled_from("abcdo") | st.just(OTHER), min_size=1, max_size=8))
def test_each_crowd_is_wider_than_the_one_before(tokens: list[str]) -> None:
    found = [":".join(tokens), *crowds_of(":".join(tokens), nobody)]
    assert found[-1] == OTHER and all(is_crowd(name) for name in found[1:])
    for one, wider in itertools.pairwise(found):
        assert set(levels_of(wider)) <= set(levels_of(one))


def test_the_nameless_are_no_level() -> None:
    assert levels_of("other:etl:etl") == ["etl"]
    assert not is_crowd("mother:etl")
