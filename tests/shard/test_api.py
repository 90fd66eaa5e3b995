"""A shard as a document: nobody is left out, nothing missing is a 0, and advice says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headgate.metrics.samples import Absent, Cause
from headgate.shard.api import ShardDoc, bytes_behind, shard_advice, shard_doc, upstream_members
from headgate.shard.model import MAX_MEMBERS, MemberView, Skip
from headgate.shard.topology import Downstream, Following, Role, Unled
from tests.builders import NOW, PRIMARY, absent, member, metric, role, sample, shard_view

LAG = metric("lag")
SPECS = {"lag": LAG}
DB_A = member("db-a", PRIMARY, local=True)
SKIP = Skip("commerce/-80", "db-b", NOW.wall_s + 1200, "ops", "rebuild", NOW.wall_s - 600)


def doc(*members: MemberView, **more: Any) -> ShardDoc:
    return shard_doc(shard_view(DB_A, *members, **more), SPECS, NOW)


def told(*members: MemberView, uptime_s: float = 86400.0, **more: Any) -> list[str]:
    return shard_advice(doc(*members, **more), uptime_s=uptime_s)


# --- the document ------------------------------------------------------------------------------


def test_it_is_json_whatever_is_missing() -> None:
    views = [
        member(report=False),
        member(lost=absent(Cause.UNREACHABLE, "connection refused", age_s=42)),
        member(seen=None),
        member(readings={"lag": absent(), "theirs": sample(3.0)}),
    ]
    for view in views:
        json.loads(msgspec.json.encode(doc(view)), parse_constant=pytest.fail)


def test_the_three_standpoints() -> None:
    leading = doc()
    assert (leading.state, leading.primary, leading.term) == ("leading", "db-a", 3)
    following = doc(standpoint=Following("db-b", "https://db-b:8087"))
    assert (following.state, following.primary) == ("following", "db-b")
    assert following.primary_url == "https://db-b:8087"
    assert doc(standpoint=Following("db-b", "")).primary_url is None
    unled = doc(standpoint=Unled(Absent(Cause.NO_PRIMARY, "nobody is", NOW.mono_s)))
    assert (unled.state, unled.cause, unled.detail) == ("unled", "no_primary", "nobody is")
    assert unled.primary is None


def test_warming_up_is_said() -> None:
    waiting = Absent(Cause.WARMING_UP, "db-b has not answered yet", NOW.mono_s)
    assert doc(warming_up=waiting).warming_up == "db-b has not answered yet"


def test_a_lost_member_has_no_role_and_says_for_how_long() -> None:
    lost = absent(Cause.UNREACHABLE, "connection refused", age_s=42)
    [_, shown] = doc(member(lost=lost, problem="connection refused")).members
    assert (shown.reachable, shown.role, shown.unreachable_for_s) == (False, None, 42)
    assert shown.role_detail == shown.problem == "connection refused"


def test_a_member_that_was_never_seen_is_shown_without_numbers() -> None:
    [_, shown] = doc(member(report=False)).members
    assert (shown.role, shown.activity, shown.reported_s_ago) == (None, None, None)
    assert shown.role_detail == "no report yet"


def test_readings_are_compared_with_our_own_threshold() -> None:
    [_, shown] = doc(member(readings={"lag": sample(8.1, age_s=0.4)})).members
    [lag] = shown.readings
    assert (lag.state, lag.value, lag.threshold, lag.age_ms) == ("breached", 8.1, 5.0, 400)


def test_an_unavailable_reading_keeps_its_cause_and_is_no_zero() -> None:
    """R151"""
    gone = absent(Cause.REPLICATION_BROKEN, "error 1062", age_s=3)
    [lag] = doc(member(readings={"lag": gone})).members[1].readings
    assert (lag.state, lag.value, lag.cause) == ("unavailable", None, "replication_broken")
    assert lag.detail == "error 1062"


def test_a_reading_that_stopped_coming_is_stale() -> None:
    [lag] = doc(member(readings={"lag": sample(0.1, age_s=30)})).members[1].readings
    assert (lag.state, lag.cause) == ("unavailable", "stale")


def test_a_metric_that_is_not_ours_is_shown_without_a_threshold() -> None:
    readings = {"theirs": sample(9e9, age_s=1), "gone": absent(age_s=2)}
    gone, theirs = doc(member(readings=readings)).members[1].readings
    assert (theirs.value, theirs.threshold, theirs.age_ms) == (9e9, None, 1000)
    assert (gone.state, gone.cause, gone.unavailable_for_ms) == ("unavailable", "failed", 2000)


def test_a_skip_ends_on_time() -> None:
    [_, shown] = doc(member(skip=SKIP)).members
    assert shown.skip is not None
    assert (shown.skip.who, shown.skip.reason, shown.skip.until_s) == ("ops", "rebuild", 1200)
    over = msgspec.structs.replace(shown, skip=None)
    ended = Skip(SKIP.shard, SKIP.member, NOW.wall_s, "ops", "rebuild", 0.0)
    assert doc(member(skip=ended)).members[1] == over


# --- who replicates from whom --------------------------------------------------------------------


def test_an_upstream_is_found_by_its_servers_identity() -> None:
    """MySQL, MariaDB: also in a cascade."""
    views = [
        member("db-a", role(Role.PRIMARY, server_id="1")),
        member("db-b", role(server_id="2", upstream_id="1")),
        member("db-c", role(server_id="3", upstream_id="2")),
        member("db-d", role(server_id="4", upstream_id="9")),
    ]
    assert upstream_members(views) == {"db-b": "db-a", "db-c": "db-b"}


def test_an_upstream_is_found_by_its_list_of_replicas() -> None:
    """Postgres: application_name, else the address it connects from."""
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("walreceiver", "db-c", bytes_behind=8192))
    views = [
        member("db-a", role(Role.PRIMARY, downstream=listed)),
        member("db-b"),
        member("db-c"),
    ]
    assert upstream_members(views) == {"db-b": "db-a", "db-c": "db-a"}
    assert bytes_behind(views) == {"db-c": 8192}


def test_an_upstream_is_found_by_its_address() -> None:
    views = [member("db-a", PRIMARY), member("db-b", role(upstream="db-a:5432"))]
    assert upstream_members(views) == {"db-b": "db-a"}


def test_two_agents_on_one_host_are_told_apart() -> None:
    """What is at an address of both is not the replica itself."""
    views = [member("db-a", PRIMARY), member("db-b", role(upstream="127.0.0.1:5432"))]
    assert upstream_members([_on_loopback(view) for view in views]) == {"db-b": "db-a"}
    third = member("db-c", role(upstream="127.0.0.1:5432"))
    assert upstream_members([_on_loopback(view) for view in [*views, third]]) == {}


def _on_loopback(view: MemberView) -> MemberView:
    report = view.member.report
    assert report is not None
    url = "http://127.0.0.1:1"
    return replace(view, member=replace(view.member, url=url, report=replace(report, url=url)))


def test_what_fits_two_members_names_neither() -> None:
    """All on one host, as in a test: a guess would draw a wrong tree."""
    same = role(upstream="db-a:5432", server_id="7", upstream_id="7")
    named = [member(name, same) for name in ("one", "two", "three")]
    assert upstream_members(named) == {}
    here = [
        replace(view, member=replace(view.member, report=None, url="http://127.0.0.1:1"))
        for view in named
    ]
    listed = (Downstream("walreceiver", "127.0.0.1", bytes_behind=1),)
    primary = member("db-a", role(Role.PRIMARY, downstream=listed))
    assert bytes_behind([primary, *here]) == {}
    twice = (Downstream("db-b", "", bytes_behind=1), Downstream("db-b", "", bytes_behind=2))
    views = [member("db-a", role(Role.PRIMARY, downstream=twice)), member("db-b")]
    assert bytes_behind(views) == {}


def test_a_server_is_not_its_own_upstream() -> None:
    assert upstream_members([member("db-a", role(server_id="1", upstream_id="1"))]) == {}


# --- advice ------------------------------------------------------------------------------------


def test_a_quiet_shard_needs_no_advice() -> None:
    assert told(member(readings={"lag": sample(0.1)}, clock_ahead_s=0.05)) == []


def test_an_unwatched_replica_is_reported_with_the_command_that_adds_it() -> None:
    [line] = told(unwatched=(Downstream("db-x", "10.0.0.9"),))
    assert line.startswith("main: replica db-x (10.0.0.9) of commerce/-80 has no agent")
    assert "`headgate shard add-peer main db-x https://10.0.0.9:8087`" in line


@pytest.mark.parametrize(("ahead_s", "side"), [(0.31, "ahead of"), (-0.31, "behind")])
def test_a_skewed_clock_is_reported(ahead_s: float, side: str) -> None:
    """R22"""
    [line] = told(member(clock_ahead_s=ahead_s))
    assert f"the clock of db-b is 310 ms {side} the primary's" in line


def test_split_brain_is_reported() -> None:
    """R53"""
    detail = "db-a and db-b both say that they are the primary: demote or stop one of them"
    [line] = told(standpoint=Unled(Absent(Cause.SPLIT_BRAIN, detail, NOW.mono_s)))
    assert (
        line
        == f"main: split brain in commerce/-80, every check with scope shard is rejected: {detail}"
    )


def test_a_skipped_member_is_shown_with_why_and_until_when() -> None:
    [line] = told(member(skip=SKIP, skipped_metrics={"lag": "skipped by ops"}))
    assert "db-b is skipped by ops for another 20 min: rebuild" in line
    assert "`headgate shard unskip main db-b`" in line
    [line] = told(
        member(
            skipped_metrics={
                "lag": "missing for 11 min: rejected",
                "x": "missing for 11 min: rejected",
            }
        )
    )
    assert line == "main: db-b is skipped for lag, x: missing for 11 min: rejected"


def test_a_metric_that_a_standby_cannot_have_is_no_advice() -> None:
    """A12: it would be there for as long as the standby is."""
    skipped_metrics = {"commit_delay": "a standby takes no commits", "lag": "no replication"}
    kinds = dict.fromkeys(skipped_metrics, "unsupported")
    [line] = told(member(skipped_metrics=skipped_metrics, skip_kinds=kinds))
    assert line == "main: db-b is skipped for lag: no replication"


def test_a_hopeless_replica_is_reported_loudly_and_once() -> None:
    """B9"""
    [line] = told(
        member(skipped_metrics={"lag": "hopeless, skipped 5 min ago: …"}, hopeless=("lag",))
    )
    assert line.startswith("HOPELESS: main: db-b does not count for lag, and clients are admitted")
    assert "hopeless, skipped 5 min ago" in line


def test_a_newcomer_that_delays_its_shard_is_reported_with_the_way_out() -> None:
    late: dict[str, Any] = {"readings": {"lag": sample(900.0)}, "joined_s_ago": 120.0}
    [line] = told(member(**late))
    assert "db-b joined 2 min ago and its lag is 900 s, which blocks the shard" in line
    assert "`headgate shard skip main db-b --for 30m --reason catching-up`" in line
    assert "grace_s" in line
    assert told(member(**late), uptime_s=125.0) == [], "everybody is new to a new agent"
    assert told(member(**{**late, "joined_s_ago": 86000.0})) == []
    assert "grace_s" not in "".join(told(member(**late, skipped_metrics={"lag": "in its grace"})))


def test_a_shard_of_the_largest_size_is_shown() -> None:
    """What it costs, bench/bounds.py says."""
    names = [f"db-{number}" for number in range(MAX_MEMBERS)]
    listed = tuple(Downstream(name, name, bytes_behind=1) for name in names)
    readings = {"lag": sample(0.1)}
    views = [member(name, role(upstream="db-a:5432"), readings=readings) for name in names]
    leader = member("db-a", role(Role.PRIMARY, downstream=listed), local=True)
    shown = shard_doc(shard_view(leader, *views), SPECS, NOW)
    assert len(shown.members) == 1 + MAX_MEMBERS
    assert {one.upstream_member for one in shown.members[1:]} == {"db-a"}
