"""What those are called that there is no room to tell apart (R68, R69)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.crowds import OTHER, crowds_of, is_crowd, levels_of


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
