"""A member as it is registered: bytes in the store and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import Entry
from headgate.changes.reach import parse_reach
from headgate.fleet.members import (
    MAX_MEMBER_BYTES,
    FleetMember,
    called_alike,
    member_bytes,
    newest_of_each,
    read_member,
    read_members,
)

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
def test_whoever_they_are_each_has_a_key_of_its_own(names: list[tuple[str, str]]) -> None:
    members = {replace(MEMBER, host=host, member=member) for host, member in names}
    assert len({one.key for one in members}) == len(members)
    assert {read_member(one.key, member_bytes(one)) for one in members} == members


def test_a_database_without_a_shard_is_a_member_too() -> None:
    alone = replace(MEMBER, shard="", member="agent-a.main")
    assert alone.key == "members//agent-a.main@agent-a"
    assert read_member(alone.key, member_bytes(alone)) == alone


def test_its_place_is_what_a_reach_meets() -> None:
    assert parse_reach("region:eu-*").meets(MEMBER.place)
    assert parse_reach("host:agent-a").meets(MEMBER.place)
    assert not parse_reach("shard:commerce/80-").meets(MEMBER.place)


def test_a_newer_agent_may_say_more() -> None:
    raw = member_bytes(MEMBER)[:-1] + b',"lag":{"s":1}}'
    assert read_member(MEMBER.key, raw) == MEMBER


def test_a_role_that_is_not_known_is_unknown() -> None:
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
