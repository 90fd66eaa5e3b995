"""Who may speak for a shard, and who only believes so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.metrics.samples import Absent, Cause
from headgate.shard.topology import (
    Following,
    Leading,
    Member,
    MemberReport,
    Role,
    RoleSeen,
    Unled,
    not_following,
    standpoint,
)
from tests.builders import NOW, absent

MONO = NOW.mono_s
MAX_AGE_S = 1.0


def seen(role: Role = Role.REPLICA, *, age_s: float = 0.0, **more: Any) -> RoleSeen:
    return RoleSeen(role, MONO - age_s, **more)


def primary(**more: Any) -> RoleSeen:
    return seen(Role.PRIMARY, **more)


def member(
    name: str,
    role: RoleSeen | None = None,
    *,
    local: bool = False,
    url: str = "http://file:1",
    said: str = "",
    lost: Absent | None = None,
    role_unavailable: Absent | None = None,
) -> Member:
    report = MemberReport(name, MONO, role, role_unavailable, url=said)
    return Member(name, "" if local else url, local, report, lost)


def stand(*members: Member) -> Leading | Following | Unled:
    return standpoint(members, now=MONO, max_age_s=MAX_AGE_S)


def rejection(*members: Member) -> Absent:
    point = stand(*members)
    assert isinstance(point, Unled), point
    return point.absent


def test_the_agent_of_the_only_primary_leads_until_its_role_must_be_confirmed() -> None:
    """R36, R37"""
    ours = member("a", primary(term=7, age_s=0.4), local=True)
    assert stand(ours, member("b", seen())) == Leading("a", 7, MONO - 0.4 + MAX_AGE_S)


def test_a_replicas_agent_knows_the_right_agent() -> None:
    """R37: by what the primary's agent says of itself, else by what was configured."""
    ours = member("b", seen(), local=True)
    assert stand(ours, member("a", primary())) == Following("a", "http://file:1")
    told = member("a", primary(), said="https://a:8087")
    assert stand(ours, told) == Following("a", "https://a:8087")


@pytest.mark.parametrize("ours", [1, 2, 3, None])
@pytest.mark.parametrize("theirs", [1, 2, 3, None])
@pytest.mark.parametrize("local", [True, False])
def test_two_primaries_are_rejected_no_matter_which_is_right(
    ours: int | None, theirs: int | None, local: bool
) -> None:
    """R53: also the one on the higher timeline."""
    told = rejection(
        member("a", primary(term=ours), local=local),
        member("b", primary(term=theirs)),
        member("c", seen(), local=not local),
    )
    assert told.cause is Cause.SPLIT_BRAIN
    assert "a" in told.detail and "b" in told.detail and "demote or stop one" in told.detail


def test_two_primaries_of_one_agent_are_rejected() -> None:
    """R53: a singular agent that probes a whole shard."""
    told = rejection(member("a", primary(), local=True), member("b", primary(), local=True))
    assert told.cause is Cause.SPLIT_BRAIN


def test_no_primary_is_rejected_and_every_member_is_named() -> None:
    told = rejection(
        member("a", seen(), local=True),
        member("b", None, role_unavailable=absent(Cause.FAILED, "connection refused")),
        member("c", None, lost=absent(Cause.UNREACHABLE, "no route to c")),
        Member("d", "http://d:1", False),
        member("e", None),
    )
    assert told.cause is Cause.NO_PRIMARY
    for words in ("a: replica", "b: connection refused", "c: no route", "d: no report yet", "e: "):
        assert words in told.detail


def test_a_shard_without_members_has_no_primary() -> None:
    assert rejection().cause is Cause.NO_PRIMARY


@pytest.mark.parametrize(("age_s", "leads"), [(1.0, True), (1.001, False), (3600.0, False)])
def test_a_role_that_was_not_confirmed_is_not_kept(age_s: float, leads: bool) -> None:
    point = stand(member("a", primary(age_s=age_s), local=True))
    assert isinstance(point, Leading) is leads


def test_a_stale_rival_is_not_seen_as_a_primary_here() -> None:
    """What is remembered of it is the agent's business."""
    point = stand(member("a", primary(), local=True), member("b", primary(age_s=5)))
    assert isinstance(point, Leading)


def test_a_lost_member_is_no_primary_whatever_it_said_last() -> None:
    told = rejection(
        member("a", primary(), lost=absent(Cause.UNREACHABLE)), member("b", seen(), local=True)
    )
    assert told.cause is Cause.NO_PRIMARY


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Role.PRIMARY, Role.REPLICA, None]),
            st.floats(0, 3),
            st.booleans(),
            st.booleans(),
        ),
        max_size=5,
    )
)
def test_an_agent_leads_only_with_the_one_fresh_primary_of_its_own(
    given_members: list[tuple[Role | None, float, bool, bool]],
) -> None:
    """R53"""
    members = [
        member(
            f"m{i}",
            seen(role, age_s=age_s) if role else None,
            local=local,
            lost=absent() if gone and not local else None,
        )
        for i, (role, age_s, local, gone) in enumerate(given_members)
    ]
    alive = [m for m in members if m.role_of(now=MONO, max_age_s=MAX_AGE_S) is Role.PRIMARY]
    point = stand(*members)
    assert isinstance(point, Unled) is (len(alive) != 1)
    if isinstance(point, Leading):
        assert alive[0].local and point.primary == alive[0].name and point.until >= MONO
    if isinstance(point, Following):
        assert not alive[0].local and point.primary == alive[0].name


# --- does it follow our primary? -------------------------------------------------------------


def follows(replica: RoleSeen, *others: RoleSeen, **of_primary: Any) -> str | None:
    ours = primary(**of_primary)
    known = {role.server_id: role for role in (ours, replica, *others) if role.server_id}
    return not_following(replica, ours, known)


def test_a_replica_on_another_timeline_is_current_only_with_the_past() -> None:
    told = follows(seen(term=1), term=2)
    assert told == "it is on timeline 1, the primary on 2"
    assert follows(seen(term=3), term=2) is not None
    assert follows(seen(term=2), term=2) is None


def test_a_replica_of_another_cluster_does_not_follow() -> None:
    told = follows(seen(cluster="72", term=2), cluster="71", term=2)
    assert told is not None and "another cluster" in told


def test_what_servers_do_not_report_does_not_count_against_them() -> None:
    assert follows(seen()) is None
    assert follows(seen(cluster="7", term=1)) is None
    assert follows(seen(upstream_id="9")) is None
    assert follows(seen(server_id="2"), server_id="1") is None


def test_a_replica_of_the_primary_follows() -> None:
    assert follows(seen(server_id="2", upstream_id="1"), server_id="1") is None


def test_a_cascade_follows_through_the_one_in_between() -> None:
    """R36"""
    between = seen(server_id="2", upstream_id="1")
    assert follows(seen(server_id="3", upstream_id="2"), between, server_id="1") is None


def test_a_cascade_below_another_ones_primary_does_not() -> None:
    between = seen(server_id="2", upstream_id="9")
    told = follows(seen(server_id="3", upstream_id="2"), between, server_id="1")
    assert told == "it replicates from server 9, not from 1"


def test_an_upstream_that_nobody_knows_is_not_the_primary() -> None:
    told = follows(seen(server_id="3", upstream_id="8"), server_id="1")
    assert told == "it replicates from server 8, not from 1"


def test_a_circle_ends() -> None:
    b, c = seen(server_id="2", upstream_id="3"), seen(server_id="3", upstream_id="2")
    told = follows(b, c, server_id="1")
    assert told is not None and "in a circle" in told


def test_a_replica_that_follows_itself_does_not_follow() -> None:
    assert follows(seen(server_id="2", upstream_id="2"), server_id="1") is not None


def test_a_former_primary_below_which_a_cascade_hangs_is_no_way_to_ours() -> None:
    """Above it is nobody: it is a primary of its own."""
    former = primary(server_id="2")
    assert follows(seen(server_id="3", upstream_id="2"), former, server_id="1") is not None
