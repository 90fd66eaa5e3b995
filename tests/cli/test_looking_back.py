"""history, replay, starvation, clients --rogue: what is sent to the agent, and what is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console, RenderableType

from headgate.cli.api import connect
from headgate.cli.asking import CheckOptions
from headgate.cli.check import explain
from headgate.cli.documents import read
from headgate.cli.history import history, last_hour, minutes_ago, moment, read_rule, replay, step_of
from headgate.cli.look import clients, starvation
from headgate.cli.options import AgentOptions
from headgate.cli.render import ASCII, Canvas, drawn, note_text
from headgate.errors import InvalidSettings
from headgate.history.api import (
    PastDoc,
    ReplayDoc,
    RogueFaultDoc,
    RoguesDoc,
    StarvationDoc,
    SuspectDoc,
    TimelineDoc,
)
from headgate.present.history import past_view, replay_view, timeline_view
from headgate.present.starvation import rogues_view, starvation_view
from headgate.present.words import advice_of
from tests.cli.documents import STARVATION, STARVED, SUSPECT, TIMELINE, sums
from tests.cli.scripted import ScriptedAgent

NOW = datetime(2026, 3, 2, 9, 0, 30, tzinfo=timezone(timedelta(hours=1)))
CANVAS = Canvas(160)


def shown(page: RenderableType, canvas: Canvas = CANVAS) -> str:
    console = Console(width=canvas.width, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(page)
    return captured.get()


# --- times ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30m", 30),
        ("90s", 2),
        ("7d", 7 * 1440),
        ("today", 540),
        ("yesterday", 540 + 1440),
        ("07:00", 120),
        ("7:00", 120),
        ("10:00", 1380),
        ("2026-03-01", 540 + 1440),
        ("2026-03-02T08:00", 60),
        ("2026-03-02T07:00+00:00", 60),
    ],
)
def test_since_when(text: str, minutes: int) -> None:
    assert minutes_ago(text, NOW, NOW.tzinfo) == minutes


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


MONDAY_AFTER = datetime(2026, 10, 26, 8, 0, tzinfo=UTC)
"""09:00 in Berlin, where clocks were set back by an hour the day before."""


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("today", "2026-10-25T23:00:00Z"),
        ("yesterday", "2026-10-24T22:00:00Z"),
        ("2026-10-24T07:10", "2026-10-24T05:10:00Z"),
        ("2026-10-26T07:10", "2026-10-26T06:10:00Z"),
        ("2026-10-24", "2026-10-23T22:00:00Z"),
        ("07:10", "2026-10-26T06:10:00Z"),
        ("09:30", "2026-10-25T08:30:00Z"),
        ("2026-10-24T07:10+00:00", "2026-10-24T07:10:00Z"),
        ("90m", "2026-10-26T06:30:00Z"),
    ],
)
def test_a_time_without_a_zone_is_of_the_machine_as_its_clock_was_that_day(
    text: str, at: str
) -> None:
    assert moment(text, MONDAY_AFTER) == at
    assert minutes_ago(text, MONDAY_AFTER) == (
        MONDAY_AFTER - datetime.fromisoformat(at)
    ) // timedelta(minutes=1)


@pytest.mark.usefixtures("in_berlin")
def test_a_time_of_before_the_clocks_were_set_is_shown_as_it_was() -> None:
    october = {"since": "2026-10-24T05:00:00Z", "until": "2026-10-24T05:25:00Z"}
    spans = [TIMELINE["spans"][0] | october]
    page = shown(drawn(timeline_view(read(TimelineDoc, TIMELINE | {"spans": spans}), None), CANVAS))
    assert "mostly throttled between 07:00 and 07:25" in page


def test_what_is_left_out_is_said() -> None:
    """R135"""
    cut = TIMELINE | {"whole": False, "more_spans": 1200}
    page = shown(drawn(timeline_view(read(TimelineDoc, cut), UTC), CANVAS))
    assert "and 1,200 more times" in page
    assert "All sums are exact" in page
    assert "exact" not in shown(drawn(timeline_view(read(TimelineDoc, TIMELINE), UTC), CANVAS))


@pytest.mark.parametrize("text", ["", "noon", "25:00", "2027-01-01", "-1h", "1e9s"])
def test_a_time_that_is_none_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="yesterday"):
        minutes_ago(text, NOW, NOW.tzinfo)


@pytest.mark.parametrize(
    ("minutes", "step"),
    [(5, "1m"), (60, "2m"), (1440, "60m"), (14 * 1440, "720m"), (10**6, "27778m")],
)
def test_a_round_step_that_fits_the_screen(minutes: int, step: str) -> None:
    assert step_of(minutes) == step


# --- history -------------------------------------------------------------------------------


def test_the_timeline_says_it_in_one_line_and_draws_it() -> None:
    """R68, R91"""
    page = shown(drawn(timeline_view(read(TimelineDoc, TIMELINE), UTC), CANVAS))
    assert "mostly throttled between 07:00 and 07:25 by shard/lag (92% of 14,200 checks)" in page
    kinds = "77% rejected by metrics, 5.5% rejected by a ratio rule"
    assert f"17,000 checks, 82% rejected ({kinds})" in page
    assert "██████" in page and "u1:etl" in page
    ascii_page = drawn(timeline_view(read(TimelineDoc, TIMELINE), UTC), Canvas(160, ASCII))
    assert shown(ascii_page).isascii()


def test_times_are_those_of_the_machine() -> None:
    page = shown(drawn(timeline_view(read(TimelineDoc, TIMELINE), NOW.tzinfo), CANVAS))
    assert "mostly throttled between 08:00 and 08:25 by shard/lag" in page


def test_no_checks_and_never_throttled_are_said() -> None:
    empty = TIMELINE | {"total": sums(0, 0), "bins": [], "spans": [], "children": []}
    assert "no checks" in shown(drawn(timeline_view(read(TimelineDoc, empty), UTC), CANVAS))
    fine = TIMELINE | {"spans": []}
    told = shown(drawn(timeline_view(read(TimelineDoc, fine), UTC), CANVAS))
    assert "at no time was it mostly throttled" in told


def test_history_requests_minutes(
    scripted: ScriptedAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.says("/v1/history/timeline", TIMELINE)
    agent = AgentOptions(scripted.url)
    history("etl", since="2h", until="1h", level=2, database="main", agent=agent)
    assert scripted.heard[0].query == {
        "app": "etl",
        "since": "120m",
        "until": "60m",
        "level": "2",
        "step": "2m",
        "database": "main",
    }
    assert "mostly throttled between" in capsys.readouterr().out


def test_a_run_far_longer_than_usual_is_reported() -> None:
    """R91"""
    runs = {
        "since": "2026-03-01T05:00:00Z",
        "until": "2026-03-01T08:10:00Z",
        "minutes": 190,
        "ongoing": True,
        "earlier": 6,
        "usual_minutes": 45.0,
        "longest_minutes": 50,
        "unusual": True,
    }
    page = shown(drawn(timeline_view(read(TimelineDoc, TIMELINE | {"runs": runs}), UTC), CANVAS))
    assert (
        "Far longer than usual. It has run since 05:00 (1 Mar), for 3.2 h; its 6 runs before"
        in page
    )
    quiet = TIMELINE | {"runs": runs | {"usual_minutes": None, "unusual": False}}
    assert "runs before" not in shown(drawn(timeline_view(read(TimelineDoc, quiet), UTC), CANVAS))


# --- explain at a past instant -------------------------------------------------------------

OF_MAIN = {"at": "2026-03-02T06:10:00Z", "database": "main", "looks": 60, "unavailable": 0}
PAST: dict[str, Any] = {
    "app": "etl",
    "database": "main",
    "at": "2026-03-02T06:10:00Z",
    "until": "2026-03-02T06:11:00Z",
    "checked_before": None,
    "checked_after": None,
    "known": ["98 of 100 checks were rejected: 90 by lag, 8 by rule:r1"],
    "unknown": ["what each check saw is not kept"],
    "rejections": [],
    "sums": sums(2, 98),
    "clients": [{"client": "u1:etl", "sums": sums(2, 98)}],
    "metrics": [
        {
            **OF_MAIN,
            "metric": "lag",
            "low": 2.0,
            "mean": 8.0,
            "high": 9.0,
            "breached_share": 0.75,
            "threshold": 5.0,
        },
        {
            **OF_MAIN,
            "metric": "load",
            "low": None,
            "mean": None,
            "high": None,
            "breached_share": None,
            "threshold": 8.0,
        },
    ],
    "matched": [],
}


def test_a_past_minute_is_shown_with_what_is_not_known() -> None:
    """R144"""
    page = shown(drawn(past_view(read(PastDoc, PAST), UTC), CANVAS))
    assert "etl on main  02 Mar 06:10–06:11" in page
    assert "98 of 100 checks were rejected" in page and "75%" in page
    assert "no rule matches this client" in page
    assert "not known: what each check saw is not kept" in page
    asked = PAST | {"checked_before": "2026-03-02T06:05:00Z"}
    assert "last check: 06:05" in shown(drawn(past_view(read(PastDoc, asked), UTC), CANVAS))


@pytest.mark.parametrize(
    ("text", "at"),
    [("07:10", "2026-03-02T06:10:00Z"), ("90m", "2026-03-02T06:30:30Z")],
)
def test_a_past_instant_is_sent_with_its_zone(text: str, at: str) -> None:
    assert moment(text, NOW, NOW.tzinfo) == at
    with pytest.raises(typer.BadParameter, match="no time in the past"):
        moment("2027-01-01", NOW, NOW.tzinfo)


def test_explain_reads_the_past(
    scripted: ScriptedAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.says("/v1/explain", PAST)
    explain(CheckOptions("etl"), AgentOptions(scripted.url), at="2026-03-02T06:10Z")
    asked = {"app": "etl", "database": "main", "at": "2026-03-02T06:10:00Z"}
    assert scripted.heard[0].query == asked
    assert "not known" in capsys.readouterr().out


# --- replay --------------------------------------------------------------------------------

REPLAY: dict[str, Any] = {
    "rule": "proposed",
    "target": "etl",
    "kind": "ratio",
    "since": "2026-03-01T06:00:00Z",
    "until": "2026-03-01T07:00:00Z",
    "whole": True,
    "more_rows": 0,
    "total": {"checks": 150, "admitted_before": 100, "admitted_low": 10.0, "admitted_high": 10.0},
    "rows": [
        {
            "hour": "2026-03-01T06:00:00Z",
            "database": "main",
            "client": "u1:etl",
            "checks": 150,
            "admitted_before": 100,
            "rejected_before": 50,
            "admitted_after": 10.0,
            "admitted_low": 10.0,
            "admitted_high": 10.0,
            "how": "expected",
            "shadowed_by": "",
        }
    ],
    "notes": ["What other clients would have done is not replayed."],
}


def row(**more: Any) -> dict[str, Any]:
    return REPLAY | {"rows": [REPLAY["rows"][0] | more]}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (REPLAY, "150 checks: 100 admitted then, 10 with the rule"),
        (row(admitted_low=0.0, admitted_high=40.0, how="bounded"), "0–40"),
        (row(how="unknown", admitted_after=None), "cannot tell"),
        (row(shadowed_by="r1"), "as before: r1 comes first"),
        (REPLAY | {"whole": False}, "more history than is replayed"),
    ],
)
def test_what_a_rule_would_have_changed(document: dict[str, Any], told: str) -> None:
    """R145"""
    assert told in shown(drawn(replay_view(read(ReplayDoc, document), UTC), CANVAS))


def test_replay_sends_the_rule_of_a_file(
    scripted: ScriptedAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.says("/v1/replay", REPLAY, method="POST")
    file = tmp_path / "rule.toml"
    file.write_text('target = "etl"\nratio = 0.9\n')
    replay(file, since="1h", agent=AgentOptions(scripted.url))
    assert scripted.heard[0].body == {"rule": {"target": "etl", "ratio": 0.9}, "since": "60m"}
    assert "10 with the rule" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("total", "told"),
    [
        ({}, "of 150 checks here 100 were admitted; with this rule 10 (headgate replay"),
        ({"admitted_low": 2.0, "admitted_high": 40.0}, "with this rule 2 to 40"),
        ({"checks": 0}, "no client that it matches has checked at this agent"),
    ],
)
def test_a_dry_run_shows_what_the_last_hour_would_have_been(
    scripted: ScriptedAgent, total: dict[str, Any], told: str
) -> None:
    """R145: before it goes live."""
    scripted.says("/v1/replay", REPLAY | {"total": REPLAY["total"] | total}, method="POST")
    assert told in last_hour(connect(scripted.url, None), {"target": "etl", "ratio": 0.9})


def test_a_dry_run_works_where_nothing_can_be_replayed(scripted: ScriptedAgent) -> None:
    assert last_hour(connect(scripted.url, None), {"target": "etl"}) == ""


def test_a_rule_may_stand_in_a_table_or_in_json(tmp_path: Path) -> None:
    toml, as_json = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text('[rule]\ntarget = "etl"\n')
    as_json.write_text('{"target": "etl"}')
    assert read_rule(toml) == read_rule(as_json) == {"target": "etl"}


@pytest.mark.parametrize(
    ("text", "told"),
    [("target = ", "is no rule"), ("rule = 3", "settings of one rule"), ("#" * 70_000, "65536")],
)
def test_a_file_that_is_no_rule_is_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "rule.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=told):
        read_rule(file)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_rule(tmp_path / "none.toml")


# --- starvation and rogues -----------------------------------------------------------------


def starved(*clients: Any) -> StarvationDoc:
    return read(StarvationDoc, {"window_s": 3600.0, "waterline": 0.05, "starved": clients})


def test_who_is_starved_with_cause_and_remedy() -> None:
    page = shown(drawn(starvation_view(starved(STARVED)), CANVAS))
    assert "STARVED  etl (2 clients) on main is rejected by lag for 15 min, 25%" in page
    assert "an exempt client continues (fix:x)" in page
    assert "Lift rule r7: headgate rule lift r7" in page
    assert "Favor etl: headgate favor etl --for 30m" in page
    quiet = starved(STARVED | {"alarming": False})
    assert shown(drawn(starvation_view(quiet), CANVAS)).startswith("WAITS")
    assert "no client is starved" in shown(drawn(starvation_view(starved()), CANVAS))


def test_starvation_is_loud_in_status_and_top() -> None:
    advice = ["starved: etl on main has been rejected", "warning x", "suspended: rule r7"]
    assert [note_text(note).plain for note in advice_of([*advice, "exempt: rule r7"])] == [
        "STARVED  etl on main has been rejected",
        "SUSPENDED  rule r7",
        "EXEMPT  rule r7",
        "advice  x",
    ]


def test_rogues_are_listed_and_what_hides_them_is_said() -> None:
    """R138"""
    suspects = [read(SuspectDoc, SUSPECT)]
    faults = [RogueFaultDoc("b", "denied")]
    page = shown(drawn(rogues_view(RoguesDoc(suspects, faults)), CANVAS))
    assert "alice" in page and "psql" in page and "60%" in page
    assert "NOT LISTED  the sessions of b: denied" in page
    cleared = "every client at work in the databases checks"
    assert cleared in shown(drawn(rogues_view(RoguesDoc((), ())), CANVAS))
    hidden = shown(drawn(rogues_view(RoguesDoc((), faults)), CANVAS))
    assert cleared not in hidden, "not listed is not cleared"


@pytest.mark.parametrize(
    ("command", "path", "document", "told"),
    [
        (lambda url: clients(rogue=True, agent=AgentOptions(url)), "/v1/rogues",
         {"suspects": [SUSPECT], "faults": []}, "alice"),
        (lambda url: clients(agent=AgentOptions(url)), "/v1/clients", {"clients": []}, "no client"),
        (lambda url: starvation(AgentOptions(url)), "/v1/starvation", STARVATION, "STARVED"),
    ],
)  # fmt: skip
def test_commands_show_what_the_agent_says(
    scripted: ScriptedAgent,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[str], None],
    path: str,
    document: Any,
    told: str,
) -> None:
    scripted.says(path, document)
    command(scripted.url)
    assert told in capsys.readouterr().out
