"""Whom a reach meets, by what agents write of themselves: previews count what will be met."""

from __future__ import annotations

import pytest

from headgate.base.keyvalue import Entry
from headgate.changes.model import shard_key
from headgate.changes.reach import parse_reach
from headgate.fleet.members import (
    HEALTHY,
    MAX_NAMES,
    UNHEALTHY,
    FleetMember,
    ShardTold,
    member_bytes,
    prefixes_of,
    reached_by,
    told_bytes,
)


def member(shard: str, host: str, region: str = "eu") -> Entry:
    one = FleetMember(shard, f"{host}-m", "", "main", "replica", host, region, "c1", 1.0, 7, "1")
    return Entry(one.key, member_bytes(one), 1)


def shard(name: str, *hosts: str, state: str = HEALTHY, region: str = "eu") -> Entry:
    told = ShardTold(name, region, "c1", "", "a", state, 1.0, 1.0, hosts=hosts)
    return Entry(shard_key(name), told_bytes(told), 1)


FLEET = [
    shard("commerce/-80", "db-1", "db-2", state=UNHEALTHY),
    member("commerce/-80", "db-1"),
    member("commerce/-80", "db-2"),
    member("commerce/80-", "db-3", region="us"),
    member("", "lone"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fleet", (2, 4, 1)),
        ("region:eu", (1, 3, 1)),
        ("region:us", (1, 1, 0)),
        ("cluster:c*", (2, 4, 1)),
        ("shard:commerce/*", (2, 3, 1)),
        ("shard:commerce/80-", (1, 1, 0)),
        ("host:db-2", (1, 1, 1)),
        ("host:lone", (0, 1, 0)),
        ("shard:elsewhere", (0, 0, 0)),
    ],
)
def test_who_is_told_of_twice_is_counted_once(text: str, expected: tuple[int, int, int]) -> None:
    found = reached_by([parse_reach(text)], FLEET)
    assert (found.shards, found.hosts, found.unhealthy) == expected
    assert found.unknown == ""


def test_several_reaches_are_counted_together() -> None:
    found = reached_by([parse_reach("region:us"), parse_reach("host:db-1")], FLEET)
    assert (found.shards, found.hosts) == (2, 2)


def test_names_are_bounded_and_begin_with_the_unhealthy() -> None:
    many = [shard(f"s{at:02}") for at in range(50)]
    found = reached_by([parse_reach("fleet")], [*many, shard("zz", state=UNHEALTHY)])
    assert len(found.names) == MAX_NAMES
    assert found.names[:2] == ("zz", "s00")


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b'{"hosts": 7, "region": []}'])
def test_what_strangers_write_breaks_no_preview(raw: bytes) -> None:
    entries = [*FLEET, Entry(shard_key("odd"), raw, 1), Entry("members/x", raw, 1)]
    found = reached_by([parse_reach("region:us")], entries)
    assert (found.shards, found.hosts) == (1, 1)


def test_only_what_a_pattern_may_meet_is_read() -> None:
    assert prefixes_of([parse_reach("shard:a/b*c")]) == ("shards/a%2Fb", "members/a%2Fb")
    everything = ("shards/", "members/")
    assert prefixes_of([parse_reach("shard:*x")]) == everything
    assert prefixes_of([parse_reach("shard:a"), parse_reach("host:a")]) == everything
