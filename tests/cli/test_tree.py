"""The shard as a tree: everybody is on it, at any width, and what is wrong is said in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.check.api import StatusDoc
from headgate.cli.documents import read
from headgate.cli.pages import shard_page, status_page
from headgate.cli.render import ASCII, UNICODE, Canvas
from headgate.cli.tree import shard_line, shard_tree
from headgate.present.shard import facts as member_facts
from headgate.shard.api import ShardDoc
from headgate.tui.trend import Picture
from tests.cli import builders
from tests.cli.test_render import shown, squeezed
from tests.tui.scenes import overview_of

TROUBLED = read(ShardDoc, builders.troubled_shard())


def drawn(width: int = 80, **given_: Any) -> str:
    return shown(shard_tree(read(ShardDoc, builders.shard(**given_)), UNICODE, width), width)


def test_the_tree() -> None:
    assert shown(shard_tree(TROUBLED, UNICODE, 80), 80).splitlines() == [
        "shard commerce/-80  ● leading, timeline 3",
        "├─ db-a         primary  threads_running 12 ●  this agent",
        "│  ├─ db-b      replica  lag 20 ms ●",
        "│  │  └─ db-b2  replica  lag 20 ms ●",
        "│  ├─ db-c      replica  lag 8.1 s ✖ above 5 s",
        "│  │     SKIPPED by ops for another 20 min: rebuild",
        "│  │     lag: replication stopped: paused",
        "│  ├─ db-d      ?",
        "│  │     ✖ UNREACHABLE for 42.0 s: https://db-d:8087: connection refused",
        "│  ├─ db-e      replica",
        "│  │     hibernating: no checks, so nothing is measured; last check 12 s ago",
        "│  └─ db-f      replica  lag 20 ms ●",
        "│        NOT COUNTED: it is on timeline 2, the primary on 3",
        "│        its clock is 310 ms ahead of the primary's",
        "└─ 10.0.0.9     ○ not watched: no agent answers for it, so its lag counts ",
        "      nowhere; 4,096 bytes behind",
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal_and_everybody_is_on_it(width: int) -> None:
    text = shown(shard_tree(TROUBLED, UNICODE, width), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for member in TROUBLED.members:
        assert member.member in text
    for word in ("UNREACHABLE", "SKIPPED", "hibernating", "NOT COUNTED", "not watched"):
        assert word in squeezed(text.replace("│", ""))


def test_an_ascii_terminal_gets_an_ascii_tree() -> None:
    text = shown(shard_tree(TROUBLED, ASCII, 80), 80)
    assert text.isascii()
    assert "|  |- db-b " in text and "`- 10.0.0.9" in text


def test_the_branches_are_dim_and_what_is_wrong_is_not() -> None:
    """As a terminal gets it: a style that leaks would make everything as dim as the branches."""
    page = shard_tree(TROUBLED, UNICODE, 80)
    text = shown(page, 80, force_terminal=True, color_system="standard")
    assert "\x1b[2m│  ├─ \x1b[0m\x1b[1mdb-b" in text
    assert "\x1b[1;31m✖ UNREACHABLE" in text
    assert "\x1b[2mdb-e" in text, "who sleeps is dim"


def test_split_brain_is_loud_and_both_are_shown() -> None:
    """R53"""
    text = drawn(
        state="unled",
        cause="split_brain",
        primary=None,
        detail="db-a and db-b both say that they are the primary",
        members=[builders.primary(), builders.primary("db-b", here=False)],
    )
    assert "✖ SPLIT BRAIN: no agent rolls up commerce/-80" in squeezed(text)
    assert "db-a and db-b both say" in squeezed(text)
    assert text.count("  primary  ") == 2


def test_a_shard_without_a_primary_is_reported_once() -> None:
    """By its members, each of which says why it is none."""
    detail = "no member is known to be the primary (db-a: connection refused)"
    lost = builders.member("db-a", role=None, role_detail="connection refused", readings=[])
    shard = builders.shard(
        state="unled", cause="no_primary", primary=None, detail=detail, members=[lost]
    )
    lag = builders.absent("lag", scope="shard", cause="no_primary", detail=detail)
    text = squeezed(shown(status_page(a_status(metrics=[lag], shard=shard), Canvas(80)), 80))
    assert "✖ NO PRIMARY: no agent rolls up commerce/-80" in text
    assert text.count("connection refused") == 1


def test_an_agent_that_follows_says_the_right_agent() -> None:
    text = drawn(state="following", primary="db-a", primary_url="https://db-a:8087")
    assert "→ following db-a: check at https://db-a:8087 at shard scope" in text


def test_warming_up_is_said() -> None:
    assert "WARMING UP: db-b has not answered yet" in squeezed(
        drawn(warming_up="db-b has not answered yet")
    )


def test_an_unavailable_reading_is_no_number() -> None:
    """R151"""
    gone = builders.absent("lag", cause="replication_broken", detail="error 1062", unit="s")
    assert "lag ✖ unavailable: replication broken for 2.2 s" in drawn(
        members=[builders.member(readings=[gone])]
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"),
            st.sampled_from(["a", "b", "c", "d", "x", None]),
            st.booleans(),
        ),
        max_size=8,
        unique_by=lambda row: row[0],
    )
)
def test_nobody_is_lost_or_drawn_twice_however_they_replicate(
    rows: list[tuple[str, str | None, bool]],
) -> None:
    """Circles, unknown upstreams, several primaries: servers may tell anything."""
    members = [
        builders.member(f"db-{n}-", upstream_member=f"db-{u}-" if u else None)
        | {"role": "primary" if leads else "replica"}
        for n, u, leads in rows
    ]
    text = drawn(120, members=members)
    for name, _, _ in rows:
        assert text.count(f"db-{name}- ") == 1


def test_names_are_neither_markup_nor_escape_sequences() -> None:
    rude = "\x1b[2J[red]x[/red]"
    skip = {"member": rude, "who": rude, "reason": rude, "until_s": 60.0}
    member = builders.member(rude, problem=rude, labels={rude: rude}, skipped_metrics={rude: rude})
    members = [member, builders.member("db-z", skip=skip, reachable=False, role_detail=rude)]
    shard = read(ShardDoc, builders.shard(shard=rude, members=members, warming_up=rude))
    for page in (
        shard_tree(shard, UNICODE, 100),
        shard_line(shard, UNICODE),
        shard_page(shard, Canvas()),
    ):
        text = shown(page)
        assert "\x1b" not in text
        assert "[red]x[/red]" in squeezed(text)


# --- where it is shown -------------------------------------------------------------------------


def a_status(**database: Any) -> StatusDoc:
    return read(StatusDoc, builders.status(databases=[builders.database(**database)]))


def test_status_draws_the_tree_below_its_database() -> None:
    status = a_status(role="primary", shard=builders.troubled_shard())
    text = shown(status_page(status, Canvas(80)), 80)
    assert "main  postgres primary  ADMITS  nearest to its threshold is lag" in text
    assert "  │  ├─ db-b      replica  lag 20 ms ●" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_status_says_who_spoke_for_the_shard() -> None:
    lag = builders.breached(scope="shard", detail="db-b, worst of 2")
    text = shown(status_page(a_status(metrics=[lag]), Canvas(100)))
    assert "shard/lag" in text and "db-b, worst of 2" in text


@pytest.mark.parametrize("activity", ["idle", "hibernating"])
def test_status_of_an_idle_database_is_no_rejection_and_says_how_to_wake_it(activity: str) -> None:
    """R56"""
    metrics = [builders.absent("lag", state="idle", cause="stale", value=0.5)]
    told = a_status(activity=activity, idle=True, verdict="METRIC_UNAVAILABLE", metrics=metrics)
    text = shown(status_page(told, Canvas()))
    assert "IDLE: the next check wakes it (about 1 s)" in text
    assert "Wake it: headgate wake main" in text
    assert "idle: few checks, so measured less often" in shown(
        status_page(a_status(activity="idle"), Canvas())
    )


def test_the_page_of_a_shard_shows_all_that_is_known() -> None:
    text = squeezed(shown(shard_page(TROUBLED, Canvas(120)), 120))
    for told in (
        "db-b agent https://db-b:8087 · timeline 3 · from db-a:5432 · 4,096 bytes behind",
        "region=eu · clock +2 ms · last seen 100 ms ago · last check 12.0 s ago",
        "collected every 250 ms while clients check · 1,204 messages to other agents so far",
        "while awake 5,120 1,204 960",
        "while hibernating 0 0 0",
    ):
        assert told in text


def test_a_hopeless_replica_is_not_overlooked() -> None:
    """B9"""
    why = "hopeless, skipped 5 min ago: 9000 s did not fall"
    member = builders.member(
        "db-c",
        readings=[builders.breached("lag", 9000.0)],
        skipped_metrics={"lag": why},
        hopeless=["lag"],
    )
    text = drawn(members=[builders.primary(), member])
    assert "✖ skipped for lag: hopeless, skipped 5 min ago: 9000 s did not fall" in squeezed(text)
    line = shard_line(read(ShardDoc, builders.shard(members=[member])), UNICODE)
    assert "HOPELESS" in line.plain


def test_top_has_the_shard_in_a_line() -> None:
    status = a_status(role="primary", shard=builders.troubled_shard())
    picture = Picture("http://h", status, 1.0)
    text = squeezed(shown(overview_of(picture, 100, 40, 1.0)))
    assert "● leading, timeline 3 · db-a primary threads_running 12 ● · db-b lag 20 ms ●" in text
    assert "db-c SKIPPED lag 8.1 s ✖ above 5 s · db-d UNREACHABLE" in text
    assert "├─" not in text


def test_of_many_members_a_line_names_the_primary_and_those_that_are_amiss() -> None:
    healthy = [
        builders.member(f"db-{n:02}", readings=[builders.metric("lag", value=n / 10)])
        for n in range(20)
    ]
    lost = builders.member("db-x", reachable=False)
    shard = read(ShardDoc, builders.shard(members=[builders.primary(), lost, *healthy]))
    line = shard_line(shard, UNICODE).plain
    assert "db-a primary" in line and "db-x UNREACHABLE" in line and "db-07" not in line
    assert "20 healthy replicas, lag up to 1.9 s ●" in line


def test_a_member_without_a_copy_of_the_changes_is_reported_with_the_reason() -> None:
    """R164"""
    copy = {"has_all": False, "exchanged_s_ago": 42.0, "fault": "the disk is full"}
    behind, whole = (
        builders.member("db-b", copy=copy),
        builders.member("db-c", copy={"has_all": True, "exchanged_s_ago": 1.0, "fault": ""}),
    )
    text = squeezed(drawn(members=[behind, whole]))
    assert text.count("has no copy yet of what is set for the shard: the disk is full") == 1
    shard = read(ShardDoc, builders.shard(members=[behind, whole]))
    facts = [", ".join(member_facts(member, shard)) for member in shard.members]
    assert "has not all changes as of 42.0 s ago" in facts[0]
    assert "has all changes as of 1.0 s ago" in facts[1]
