"""The fleet as one looks at it: who comes first, who lags, who has what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fleet.members import MemberTold, ShardTold
from headgate.fleet.view import (
    AgentProgress,
    ChangeHolders,
    FleetPicture,
    Holders,
    ItemSeen,
    Known,
    ShardFilter,
    ShardSeen,
    ShardState,
    WantedRevision,
    agent_alone,
    grace_s,
    picture_of,
    progress_of,
    select,
    shard_seen,
)
from headgate.metrics.samples import Instant
from tests.fixtures.fleet_sights import T0, member_told, registered, rule_item, shard_told

NOTHING = WantedRevision()


def seen(
    told: ShardTold | None = None,
    *,
    wanted: WantedRevision = NOTHING,
    now: float = 1000.0,
    **known: object,
) -> ShardSeen:
    shard = told.shard if told else "a/0"
    given_: Known = Known(told=told, **known)  # type: ignore[arg-type]
    return shard_seen(shard, given_, wanted, now=Instant(now, T0), grace_s=30.0)


# --- how far agents have come ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "now", "expected"),
    [
        (7, 1000.0, AgentProgress.CURRENT),
        (9, 1000.0, AgentProgress.CURRENT),
        (6, 1029.0, AgentProgress.PENDING),
        (6, 1030.0, AgentProgress.BEHIND),
        (0, 1030.0, AgentProgress.BEHIND),
        (None, 9999.0, AgentProgress.UNKNOWN),
    ],
)
def test_an_agent_is_behind_only_when_its_time_to_report_is_over(
    n: int | None, now: float, expected: AgentProgress
) -> None:
    wanted = WantedRevision(7, seen_at=1000.0)
    assert progress_of(n, wanted, now=now, grace_s=30.0) is expected


def test_an_agent_that_lags_is_not_forgiven_because_there_is_something_still_newer() -> None:
    """Someone changes rules every few seconds, for an hour."""
    for step_s in (0.5, 3.0, 10.0, 200.0):
        wanted = WantedRevision()
        for at in range(1, 1000):
            wanted = wanted.then(at, at * step_s)
        now = 999 * step_s
        assert progress_of(1, wanted, now=now, grace_s=250.0) is AgentProgress.BEHIND
        assert progress_of(998, wanted, now=now, grace_s=250.0) is AgentProgress.PENDING
        assert progress_of(999, wanted, now=now, grace_s=250.0) is AgentProgress.CURRENT
        assert len(wanted.marks) <= 100


def test_what_applies_to_a_shard_and_what_applies_to_all_are_both_expected() -> None:
    wide, own = WantedRevision().then(3, 100.0).then(9, 500.0), WantedRevision().then(5, 300.0)
    for wanted in (wide.joined(own), own.joined(wide)):
        assert [wanted.surpassed_at(n) for n in (0, 3, 5)] == [100.0, 300.0, 500.0]
        assert wanted.n == 9
    assert wide.joined(WantedRevision()) is wide and WantedRevision().joined(own) is own


def test_a_newest_item_that_was_collected_is_wanted_no_more() -> None:
    wanted = WantedRevision().then(3, 100.0).then(9, 500.0).up_to(3)
    assert (wanted.n, wanted.seen_at) == (3, 100.0)
    assert WantedRevision().then(9, 500.0).up_to(0) == WantedRevision()


def test_servers_of_two_clusters_are_not_one_shard() -> None:
    """A copied settings file: the one that spoke last would hide the other."""
    ours = registered("a/0", "db-a", role="primary", system="7001")
    other = registered("a/0", "db-x", role="primary", system="7002")
    one = seen(shard_told("a/0"), members=(ours, registered("a/0", "db-b", system="7001"), other))
    assert one.condition is ShardState.UNHEALTHY
    assert "db-a, db-b (7001) and db-x (7002)" in one.clash
    assert seen(shard_told("a/0"), members=(ours, registered("a/0", "db-c"))).clash == ""


def test_an_agent_that_rejected_an_item_does_not_have_it() -> None:
    """An older version, half-way through an upgrade: at that revision, and without the rule."""
    members = (
        registered("a/0", "db-a"),
        registered("a/0", "db-b", rejected=("f-1",), rejected_total=1),
        registered("a/0", "db-c", 3, rejected=("f-1",), rejected_total=1),
    )
    picture = picture_of(7, [seen(members=members)], (), ())
    held = Holders(picture)
    assert held.held(rule_item("f-1", "fleet", 7)) == ChangeHolders(3, 1, 1, 1)
    assert held.held(rule_item("f-2", "shard:a/0", 7)) == ChangeHolders(3, 2, 1, 0)
    assert picture.counts.rejecting == 2


def test_a_large_fleet_gets_the_time_over_which_it_spreads_its_reports() -> None:
    assert grace_s(0.5) < 15
    assert grace_s(50.0) > 3 * 50.0


def test_what_an_agent_reported_is_never_taken_back() -> None:
    """Its own word and its primary's come at different times: the newer one counts."""
    told = shard_told("a/0", member_told("db-b", n=5))
    [agent] = seen(told, members=(registered("a/0", "db-b", 7),)).agents
    assert agent.n == 7
    told = shard_told("a/0", member_told("db-b", n=9))
    [agent] = seen(told, members=(registered("a/0", "db-b", 7),)).agents
    assert agent.n == 9


def test_two_agents_with_the_same_name_are_both_shown_and_reported() -> None:
    """With the same settings on two hosts: neither is lost from the count, nor healed over."""
    told = shard_told("a/0", member_told("main", "primary", host="c"))
    first = registered("a/0", "main", host="a", at=T0 - 60)
    agents = seen(told, members=(registered("a/0", "main", host="c"), first)).agents
    assert [(agent.host, agent.role) for agent in agents] == [("c", "primary"), ("a", "replica")]
    for agent in agents:
        assert "agents a and c both use the name main" in agent.problem


def test_an_agent_that_only_registered_and_one_that_never_did_are_both_shown() -> None:
    told = shard_told("a/0", member_told("db-a", "primary"), member_told("db-x", n=None))
    members = (registered("a/0", "db-a", role="primary"), registered("a/0", "db-b"))
    agents = {agent.member: agent for agent in seen(told, members=members).agents}
    assert list(agents) == ["db-a", "db-b", "db-x"]
    assert agents["db-x"].progress is AgentProgress.UNKNOWN
    assert [agents[name].registered for name in agents] == [True, True, False]


# --- how shards are --------------------------------------------------------------------------


def test_a_shard_that_nobody_speaks_for_is_silent_whatever_it_last_said() -> None:
    healthy = seen(shard_told("a/0"), silent_since=T0 - 5)
    assert (healthy.condition, healthy.since) == (ShardState.SILENT, T0 - 5)
    assert healthy.told is not None


def test_agents_that_have_just_registered_are_given_time_to_find_their_primary() -> None:
    members = (registered("a/0", "db-a"),)
    assert seen(members=members, first_seen_at=990.0).condition is ShardState.STARTING
    assert seen(members=members, first_seen_at=900.0).condition is ShardState.SILENT


def test_one_that_is_idle_is_not_unhealthy() -> None:
    assert seen(shard_told("a/0", state="idle")).condition is ShardState.IDLE


def test_what_needs_a_person_comes_first() -> None:
    wanted = WantedRevision(9, 0.0)
    shards = [
        seen(shard_told("a/healthy")),
        seen(shard_told("a/rests", state="idle")),
        seen(shard_told("a/behind", member_told("db-b", n=3)), wanted=wanted),
        seen(shard_told("a/silent"), silent_since=T0 - 5),
        seen(shard_told("a/new trouble", state="unhealthy", since=T0 - 60)),
        seen(shard_told("a/old trouble", state="unhealthy", since=T0 - 7200)),
    ]
    picture = picture_of(9, shards, (), ())
    assert [one.place.shard.partition("/")[2] for one in picture.shards] == [
        "old trouble",
        "new trouble",
        "silent",
        "behind",
        "healthy",
        "rests",
    ]
    counts = picture.counts
    assert (counts.shards, counts.unhealthy, counts.silent, counts.idle) == (6, 2, 1, 1)
    assert (counts.agents, counts.behind) == (1, 1)
    assert [agent.member for agent in picture.behind] == ["db-b"]


SHARDS = st.lists(
    st.builds(
        lambda name, state, since: seen(shard_told(f"a/{name}", state=state, since=since)),
        st.integers(0, 99),
        st.sampled_from(["healthy", "unhealthy", "idle"]),
        st.floats(0, 1e9),
    ),
    max_size=12,
    unique_by=lambda one: one.place.shard,
)


@given(SHARDS)
def test_the_order_does_not_depend_on_who_reported_first(shards: list[ShardSeen]) -> None:
    ordered = picture_of(1, shards, (), ()).shards
    assert picture_of(1, reversed(shards), (), ()).shards == ordered
    loud = [one.condition is ShardState.UNHEALTHY for one in ordered]
    assert loud == sorted(loud, reverse=True)


# --- a part of it ----------------------------------------------------------------------------


def _fleet() -> FleetPicture:
    return picture_of(
        3,
        [
            seen(shard_told("commerce/-80", region="eu-west", state="unhealthy")),
            seen(shard_told("commerce/80-", region="us-east")),
            seen(shard_told("billing/0", region="eu-north")),
            seen(
                shard_told("search/0", member_told("db-s", n=1), region=""),
                wanted=WantedRevision(9, 0.0),
            ),
        ],
        (),
        (),
    )


@pytest.mark.parametrize(
    ("look", "names"),
    [
        (ShardFilter(unhealthy=True), {"commerce/-80"}),
        (ShardFilter(behind=True), {"search/0"}),
        (ShardFilter(shard="commerce/*"), {"commerce/-80", "commerce/80-"}),
        (ShardFilter(shard="commerce/*", region="eu-*"), {"commerce/-80"}),
        (ShardFilter(cluster="billing"), {"billing/0"}),
        (ShardFilter(region="*"), {"commerce/-80", "commerce/80-", "billing/0"}),
        (ShardFilter(shard="nothing"), set()),
    ],
)
def test_a_part_is_chosen_by_the_same_patterns_as_a_reach(
    look: ShardFilter, names: set[str]
) -> None:
    assert {one.place.shard for one in select(_fleet(), look)} == names


def test_a_pattern_that_cannot_be_one_says_so() -> None:
    with pytest.raises(ValueError, match="must read like shard:NAME"):
        select(_fleet(), ShardFilter(shard="a b"))


# --- who has a rule --------------------------------------------------------------------------


def _agents(shard: str, *ns: int | None, **place: str) -> ShardSeen:
    seats: list[MemberTold] = [member_told(f"{shard}-{i}", n=n) for i, n in enumerate(ns)]
    return seen(shard_told(shard, *seats, **place))


HELD = picture_of(
    9,
    [
        _agents("commerce/-80", 9, 9, 4, region="eu-west"),
        _agents("commerce/80-", 9, None, region="us-east"),
        _agents("billing/0", 2, region="eu-north"),
    ],
    [agent_alone(registered("", "h.db", 9, host="h", region="eu-west", cluster=""), NOTHING,
                 now=Instant(0.0, T0), grace_s=1.0)],
    (),
)  # fmt: skip


@pytest.mark.parametrize(
    ("reach", "n", "held"),
    [
        ("fleet", 9, ChangeHolders(7, 4, 2)),
        ("fleet", 1, ChangeHolders(7, 6, 0)),
        ("fleet", 10, ChangeHolders(7, 0, 6)),
        ("region:eu-*", 5, ChangeHolders(5, 3, 2)),
        ("cluster:commerce", 9, ChangeHolders(5, 3, 1)),
        ("shard:commerce/80-", 9, ChangeHolders(2, 1, 0)),
        ("shard:commerce/*", 4, ChangeHolders(5, 4, 0)),
        ("host:h", 9, ChangeHolders(1, 1, 0)),
        ("host:*-0", 9, ChangeHolders(3, 2, 1)),
        ("shard:nowhere", 1, ChangeHolders()),
    ],
)
def test_who_has_a_rule_is_who_it_reaches_and_has_come_so_far(
    reach: str, n: int, held: ChangeHolders
) -> None:
    assert Holders(HELD).held(rule_item("f-1", reach, n)) == held


def test_what_ended_is_listed_last_and_not_counted_as_in_force() -> None:
    items = [
        ItemSeen(rule_item("f-1", "fleet", 9), ended=True),
        ItemSeen(rule_item("f-2", "fleet", 3), ended=False),
        ItemSeen(rule_item("f-3", "fleet", 5), ended=False),
    ]
    assert [one.item.id for one in picture_of(9, (), (), items).items] == ["f-3", "f-2", "f-1"]
