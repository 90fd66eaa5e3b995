"""A member as it is registered: bytes in the store and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import Entry
from headgate.changes.model import shard_key
from headgate.changes.reach import parse_reach
from headgate.fleet.members import (
    HEALTHY,
    MAX_DETAIL_CHARS,
    MAX_MEMBER_BYTES,
    MAX_MEMBERS_TOLD,
    MAX_NAMES,
    MAX_TOLD_BYTES,
    UNHEALTHY,
    FleetMember,
    ShardTold,
    called_alike,
    member_bytes,
    newest_of_each,
    prefixes_of,
    reached_by,
    read_member,
    read_members,
    read_told,
    told_bytes,
)
from tests.fixtures.fleet_sights import member_told, metric_told, shard_told

MEMBER = FleetMember(
    shard="commerce/-80",
    member="db-a",
    url="https://db-a:8087",
    database="main",
    role="primary",
    host="agent-a",
    region="eu-1",
    cluster="shop",
    at=1_700_000_000.5,
    n=12,
    version="0.8.0",
)


def entry(member: FleetMember) -> Entry:
    return Entry(member.key, member_bytes(member), 1)


def test_a_member_goes_there_and_back() -> None:
    assert read_member(MEMBER.key, member_bytes(MEMBER)) == MEMBER
    assert MEMBER.key == "members/commerce%2F-80/db-a@agent-a"
    named = replace(MEMBER, host="db-a")
    assert named.key == "members/commerce%2F-80/db-a"
    assert read_member(named.key, member_bytes(named)) == named


def test_agents_that_call_theirs_alike_do_not_write_over_each_other() -> None:
    """Two hosts with the same settings file."""
    other = replace(MEMBER, host="agent-b", at=MEMBER.at + 1)
    assert other.key != MEMBER.key
    both = read_members([entry(MEMBER), entry(other)])
    assert both == [MEMBER, other]
    assert newest_of_each(reversed(both)) == {"db-a": other}
    assert called_alike(both) == {"db-a": ("agent-a", "agent-b")}
    assert called_alike([MEMBER, replace(MEMBER, member="db-b")]) == {}


@given(st.lists(st.tuples(st.text("a@.%/", max_size=3), st.text("a@.%/", min_size=1, max_size=3))))
def test_each_agent_has_a_key_of_its_own(names: list[tuple[str, str]]) -> None:
    members = {replace(MEMBER, host=host, member=member) for host, member in names}
    assert len({one.key for one in members}) == len(members)
    assert {read_member(one.key, member_bytes(one)) for one in members} == members


def test_a_database_without_a_shard_is_a_member_too() -> None:
    alone = replace(MEMBER, shard="", member="agent-a.main")
    assert alone.key == "members//agent-a.main@agent-a"
    assert read_member(alone.key, member_bytes(alone)) == alone


def test_its_place_is_what_a_reach_matches() -> None:
    assert parse_reach("region:eu-*").meets(MEMBER.place)
    assert parse_reach("host:agent-a").meets(MEMBER.place)
    assert not parse_reach("shard:commerce/80-").meets(MEMBER.place)


def test_a_newer_agent_may_say_more() -> None:
    """R156"""
    raw = member_bytes(MEMBER)[:-1] + b',"lag":{"s":1}}'
    assert read_member(MEMBER.key, raw) == MEMBER


def test_a_role_that_is_not_known_is_unknown() -> None:
    """R156"""
    raw = member_bytes(replace(MEMBER, role="arbiter"))
    assert read_member(MEMBER.key, raw).role == "unknown"


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("shards/x", b"{}"),
        ("members/x", b"{}"),
        ("members/x/y/z", b"{}"),
        ("members/x/y", b"[]"),
        ("members/x/y", b"\xff"),
        ("members/x/y", b'{"url":1}'),
        ("members/x/y", b'{"n":"1"}'),
        ("members/x/y", b'{"at":1e400}'),
        ("members/x/y", b'{"n":true}'),
        ("members/x/y", b'{"x":"' + b"a" * MAX_MEMBER_BYTES + b'"}'),
    ],
)
def test_what_is_no_member_is_rejected_and_the_others_stand(key: str, raw: bytes) -> None:
    with pytest.raises(ValueError):
        read_member(key, raw)
    assert read_members([Entry(key, raw, 1), entry(MEMBER)]) == [MEMBER]


# What a shard's speaker tells: as bytes and back, and when it is news.

TOLD = shard_told(
    "commerce/-80",
    member_told("db-a", "primary", n=7, source="etcd"),
    member_told("db-b", stale_since=1.5, problem="unreachable"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def test_what_is_written_comes_back() -> None:
    assert read_told(told_bytes(TOLD)) == TOLD


def test_readers_of_the_preview_find_their_fields() -> None:
    """R156"""
    document = json.loads(told_bytes(TOLD))
    assert document["hosts"] == ["db-a", "db-b"]
    assert (document["shard"], document["region"], document["cluster"], document["healthy"]) == (
        "commerce/-80",
        "eu-west",
        "commerce",
        True,
    )
    assert json.loads(told_bytes(replace(TOLD, state="unhealthy")))["healthy"] is False


def test_a_newer_speakers_fields_are_ignored() -> None:
    """R156"""
    document = json.loads(told_bytes(TOLD)) | {"weather": "fine"}
    document["members"][0]["mood"] = 3
    assert read_told(json.dumps(document).encode()) == TOLD


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"[]", b"{}", b'{"shard":"a"}', b'{"shard":"a","state":"odd"}',
     b'{"shard":"","state":"healthy"}', b" " * (MAX_TOLD_BYTES + 1), b"[" * 60_000],
)  # fmt: skip
def test_what_belongs_to_no_shard_is_rejected(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_told(raw)


@given(st.dictionaries(st.sampled_from(list(ShardTold.__slots__)), JSON, max_size=4))
def test_no_document_of_another_kind_breaks_a_reader(document: dict[str, object]) -> None:
    try:
        told = read_told(json.dumps(document).encode())
    except ValueError:
        return
    assert told.shard
    assert read_told(told_bytes(told)).shard == told.shard


def test_a_number_that_is_none_is_not_zero() -> None:
    document = json.loads(told_bytes(TOLD))
    document["metrics"][0]["value"] = float("nan")
    document["members"][1]["lag_s"] = "much"
    told = read_told(json.dumps(document).encode())
    assert told.metrics[0].value is None
    assert told.members[1].lag_s is None


def test_a_shard_of_hundreds_and_a_page_of_an_error_stay_small() -> None:
    detail = "x" * 10_000
    many = tuple(member_told(f"db-{i}", problem=detail[:MAX_DETAIL_CHARS]) for i in range(300))
    raw = told_bytes(replace(TOLD, members=many))
    assert len(raw) < MAX_TOLD_BYTES
    assert len(read_told(raw).members) == MAX_MEMBERS_TOLD


@pytest.mark.parametrize(
    "changed",
    [
        {"at": 5.0},
        {"n": 9},
        {"rules": 40},
        {"checks": 3},
        {"rejected": 0.0},
        {"metrics": (metric_told(0.9),)},
        {"members": (replace(TOLD.members[0], lag_s=0.9, n=8), TOLD.members[1])},
    ],
)
def test_a_value_that_moves_is_no_news(changed: dict[str, object]) -> None:
    assert replace(TOLD, **changed).sign() == TOLD.sign()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "unhealthy"},
        {"problem": "two primaries"},
        {"url": "https://elsewhere:1"},
        {"hosts": ("db-a",)},
        {"rejected": 0.4},
        {"metrics": (metric_told(7.0),)},
        {"members": (replace(TOLD.members[0], role="replica"), TOLD.members[1])},
        {"members": (TOLD.members[0], replace(TOLD.members[1], stale_since=None))},
    ],
)
def test_what_an_operator_wants_to_know_is_news(changed: dict[str, object]) -> None:
    assert replace(TOLD, **changed).sign() != TOLD.sign()  # type: ignore[arg-type]


# Whom a reach meets, by what agents write of themselves: previews count what will be met.


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
def test_a_member_that_is_named_twice_is_counted_once(
    text: str, expected: tuple[int, int, int]
) -> None:
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


def test_only_what_a_pattern_may_match_is_read() -> None:
    assert prefixes_of([parse_reach("shard:a/b*c")]) == ("shards/a%2Fb", "members/a%2Fb")
    everything = ("shards/", "members/")
    assert prefixes_of([parse_reach("shard:*x")]) == everything
    assert prefixes_of([parse_reach("shard:a"), parse_reach("host:a")]) == everything
