"""Whom something set for the fleet reaches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.changes.model import ChangeKind, followed_prefixes, item_key, unquoted
from headgate.changes.reach import EVERYWHERE, Level, Place, Reach, parse_reach

HERE = Place("eu-west-1", "commerce", "commerce/-80", "db-7", "main")
NOWHERE = Place(host="db-7", database="main")


@pytest.mark.parametrize(
    ("text", "meets"),
    [
        ("fleet", True),
        ("region:eu-west-1", True),
        ("region:eu-*", True),
        ("region:us-*", False),
        ("cluster:commerce", True),
        ("cluster:commerc", False),
        ("shard:commerce/-80", True),
        ("shard:commerce/*", True),
        ("shard:*80", True),
        ("shard:*", True),
        ("shard:commerce/80-", False),
        ("shard:commerce/.80", False),
        ("host:db-7", True),
        ("host:**7", True),
    ],
)
def test_a_reach_matches_a_place(text: str, meets: bool) -> None:
    assert parse_reach(text).meets(HERE) is meets


@pytest.mark.parametrize(
    "text",
    ["", "all", "shard", "shard:", "fleet:x", "shard:a b", "shard:a?", "Fleet", "host:é", 7, None],
)
def test_what_is_no_reach_is_reported(text: object) -> None:
    with pytest.raises(ValueError, match=r"must|takes no pattern"):
        parse_reach(text)


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=8))
def test_a_pattern_means_what_a_regular_expression_would(pattern: str, name: str) -> None:
    meant = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert Reach(Level.SHARD, pattern).meets(Place(shard=name)) is meant


def test_a_pattern_of_many_stars_is_matched_before_the_end_of_days() -> None:
    """It is looked at while checks wait, and anybody may ask whom it reaches. One that tries all
    ways never ends; what ours costs, bench/bounds.py says."""
    reach = parse_reach("shard:" + "*a" * 60 + "*b")
    assert not reach.meets(Place(shard="a" * 127))


def test_a_place_that_was_not_said_is_matched_by_the_fleet_alone() -> None:
    assert EVERYWHERE.meets(NOWHERE)
    assert not parse_reach("region:*").meets(NOWHERE)
    assert not parse_reach("shard:*").meets(NOWHERE)


def test_the_narrower_ranks_higher() -> None:
    texts = ["fleet", "region:*", "region:eu-*", "region:eu", "cluster:*", "shard:a*", "host:x"]
    reaches = [parse_reach(text) for text in texts]
    assert sorted(reaches, key=lambda reach: reach.rank) == reaches


def test_only_one_shards_items_have_a_prefix_of_their_own() -> None:
    """No other agent gets them: messages do not grow with the fleet."""
    alone = item_key(ChangeKind.RULE, "f-1", parse_reach("shard:commerce/-80"))
    wide = item_key(ChangeKind.RULE, "f-1", parse_reach("shard:commerce/*"))
    assert alone == "items/shard/commerce%2F-80/rule/f-1"
    assert wide == "items/wide/rule/f-1"
    assert any(alone.startswith(prefix) for prefix in followed_prefixes(["commerce/-80"]))
    assert not any(alone.startswith(prefix) for prefix in followed_prefixes(["commerce/-8"]))


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,40}", fullmatch=True)


@given(st.sampled_from([level for level in Level if level is not Level.FLEET]), names)
def test_an_exact_reach_round_trips_and_matches_that_name_alone(level: Level, name: str) -> None:
    reach = parse_reach(f"{level.value}:{name}")
    assert parse_reach(str(reach)) == reach == Reach(level, name)
    assert reach.is_exact and reach.meets(Place(**{level.value: name}))
    assert not reach.meets(Place(**{level.value: name + "x"}))


@given(names, names)
def test_no_two_shards_share_a_prefix(one: str, other: str) -> None:
    mine, theirs = followed_prefixes([one])[2], followed_prefixes([other])[2]
    assert (mine == theirs) is (one == other)
    assert not mine.startswith(theirs) or one == other
    assert unquoted(mine.split("/")[2]) == one
