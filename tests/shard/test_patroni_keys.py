"""Patroni's own keys, as its versions write them, and what can be told from them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import Entry
from headgate.shard.patroni_keys import MAX_PATRONI_MEMBERS, PatroniCluster, read_cluster
from headgate.shard.topology import Role

MEMBER_4 = {
    "conn_url": "postgres://10.0.0.1:5432/postgres",
    "api_url": "http://10.0.0.1:8008/patroni",
    "state": "running",
    "role": "primary",
    "version": "4.1.5",
    "tags": {"noloadbalance": True, "nofailover": False},
    "xlog_location": 50331648,
    "timeline": 3,
}


def member(host: str = "10.0.0.2", role: str = "replica", **more: Any) -> str:
    return json.dumps(
        {**MEMBER_4, "conn_url": f"postgres://{host}:5432/postgres", "role": role, **more}
    )


def cluster(scope: str = "batman", **keys: str | bytes) -> PatroniCluster:
    """Keys with `_` for `/` after members."""
    entries = [
        Entry(
            f"{scope}/{key.replace('members_', 'members/').replace('_', '-')}",
            value if isinstance(value, bytes) else value.encode(),
            7,
        )
        for key, value in keys.items()
    ]
    return read_cluster(scope, entries)


def test_a_cluster_of_patroni_4() -> None:
    found = cluster(
        leader="db-a",
        members_db_a=json.dumps(MEMBER_4),
        members_db_b=member(replication_state="streaming"),
        config='{"ttl":20,"loop_wait":1,"retry_timeout":3}',
        initialize="7708754286978973008",
        status='{"optime":50331648,"slots":{"db_a":50331648},"retain_slots":["db_a"]}',
        sync='{"leader":"db-a","sync_standby":"db-b","quorum":0}',
        history='[[1,50331896,"no recovery target specified","2026-11-16T12:00:00+00:00","db-a"]]',
        failover="{}",
    )
    assert found.leader == found.lock == "db-a"
    first, second = found.members
    assert (first.host, first.role, first.timeline) == ("10.0.0.1", Role.PRIMARY, 3)
    assert (second.name, second.role, second.state) == ("db-b", Role.REPLICA, "running")
    assert found.system_id == "7708754286978973008"
    assert found.unreadable == ()
    assert found.words() == "db-a leads, timeline 3"


@pytest.mark.parametrize(
    ("word", "role"),
    [
        ("master", Role.PRIMARY),
        ("primary", Role.PRIMARY),
        ("promoted", Role.PRIMARY),
        ("replica", Role.REPLICA),
        ("standby_leader", Role.REPLICA),
        ("demoted", Role.REPLICA),
        ("uninitialized", None),
        ("something new", None),
    ],
)
def test_the_names_of_versions_2_to_4(word: str, role: Role | None) -> None:
    found = cluster(leader="db-b", members_db_a=member(role=word)).member("db-a")
    assert found is not None and found.role is role and found.role_word == word


def test_the_lock_counts_and_not_what_members_say_of_themselves() -> None:
    """One that was cut off goes on saying that it is the primary."""
    found = cluster(
        leader="db-b", members_db_a=member(role="primary"), members_db_b=member(role="primary")
    )
    assert found.leader == "db-b"
    assert found.role_of("db-a") is Role.REPLICA
    assert found.role_of("db-b") is Role.PRIMARY
    assert found.role_of("stranger") is None


def test_a_lock_whose_holder_still_replays_names_no_primary() -> None:
    found = cluster(leader="db-b", members_db_b=member(role="replica"))
    assert found.leader == ""
    assert found.role_of("db-b") is None, "it is about to become one"


def test_a_lock_of_one_that_is_not_listed_counts() -> None:
    """Its member key ran out before the lock did."""
    found = cluster(leader="db-a", members_db_b=member())
    assert found.leader == "db-a"
    assert found.words() == "db-a has the leader lock but is not among the members"


def test_without_a_lock_nobody_is_anything() -> None:
    found = cluster(members_db_a=member(role="primary"), members_db_b=member())
    assert found.leader == "" and found.role_of("db-a") is None and found.role_of("db-b") is None
    assert found.words() == "nobody leads"


def test_a_standby_cluster_has_no_primary() -> None:
    found = cluster(
        leader="db-a",
        members_db_a=member(role="standby_leader"),
        members_db_b=member(),
        config='{"standby_cluster":{"host":"10.1.0.1","port":5432}}',
    )
    assert found.leader == ""
    assert found.role_of("db-a") is Role.REPLICA and found.role_of("db-b") is Role.REPLICA
    assert (
        found.words() == "db-a has the leader lock as standby_leader: this cluster has no primary"
    )


def test_what_is_out_of_the_ordinary_is_said() -> None:
    found = cluster(
        leader="db-a",
        members_db_a=member(role="primary"),
        members_db_b=member(state="creating replica"),
        config='{"pause":true}',
    )
    assert found.words() == (
        "db-a leads, timeline 3; db-b is creating replica; paused: no automatic failover"
    )


def test_a_member_that_is_no_json_is_named_and_the_others_stand() -> None:
    found = cluster(leader="db-a", members_db_a=member(role="primary"), members_db_b="{oops")
    assert found.leader == "db-a"
    assert found.unreadable == ("members/db-b",)
    broken = found.member("db-b")
    assert broken is not None and broken.host == "" and broken.role is None
    assert "1 keys cannot be read" in found.words()


def test_the_form_of_before_json_is_read() -> None:
    found = cluster(
        members_db_a="postgres://u:secret@10.0.0.9:6000/postgres?application_name=http://x:8008/"
    ).member("db-a")
    assert found is not None and found.host == "10.0.0.9"


def test_no_password_is_kept() -> None:
    found = cluster(members_db_a=member(host="postgres:s3cret@10.0.0.9"))
    assert "s3cret" not in repr(found)


def test_an_address_of_version_6() -> None:
    found = cluster(members_db_a=member(host="[fd00::1]")).member("db-a")
    assert found is not None and found.host == "fd00::1"


def test_a_group_of_citus_is_a_scope_of_its_own() -> None:
    entries = [
        Entry("citus/0/leader", b"c-0", 1),
        Entry("citus/1/leader", b"w-1", 1),
        Entry("citus/1/members/w-1", member(role="primary").encode(), 1),
    ]
    assert read_cluster("citus/1", entries).leader == "w-1"
    assert read_cluster("citus/0", entries).members == ()


def test_another_scope_that_begins_alike_is_another() -> None:
    entries = [Entry("batman2/leader", b"x", 1), Entry("batman/leader", b"y", 1)]
    assert read_cluster("batman", entries).lock == "y"


def test_a_flood_of_members_is_bounded() -> None:
    entries = [Entry(f"b/members/m{at:05}", b"{}", 1) for at in range(MAX_PATRONI_MEMBERS + 50)]
    assert len(read_cluster("b", entries).members) == MAX_PATRONI_MEMBERS


@given(
    st.dictionaries(
        st.sampled_from(["leader", "config", "sync", "initialize", "members/a", "members/b/c"]),
        st.one_of(st.binary(max_size=40), st.sampled_from([b"[]", b"null", b"1", b'{"role":1}'])),
    )
)
def test_whatever_lies_there_it_is_read(values: dict[str, bytes]) -> None:
    found = read_cluster("s", [Entry(f"s/{key}", value, 1) for key, value in values.items()])
    assert found.words()
    assert found.role_of("a") in (None, Role.PRIMARY, Role.REPLICA)


@pytest.mark.parametrize("port", ["9" * 5000, 10**30, "70000", -1, True, "x", [], "٣"])
def test_a_port_or_timeline_that_is_none_costs_only_itself(port: object) -> None:
    """The follower would have crashed on it, again and again."""
    told = json.dumps({"conn_kwargs": {"host": "h", "port": port}, "timeline": 10**30})
    [found] = read_cluster("b", [Entry("b/members/a", told.encode(), 1)]).members
    assert (found.host, found.timeline) == ("h", None)


def test_half_a_character_costs_only_its_own_key() -> None:
    """Its words are shown in status."""
    entries = [
        Entry("b/leader", b"a", 1),
        Entry("b/members/a", b'{"role":"primary","state":"\\ud800"}', 1),
        Entry("b/members/b", b'{"role":"replica","state":"running"}', 1),
    ]
    found = read_cluster("b", entries)
    assert (found.lock, found.unreadable) == ("a", ("members/a",))
    assert found.words().encode() and len(found.members) == 2
