"""Pages: readable at any width, in any encoding, without colour, and never fooled by names."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from headgate.check.answer_api import AnswerDoc, MetricDoc
from headgate.check.api import (
    AuditDoc,
    AuditsDoc,
    ClientDoc,
    ClientsDoc,
    MetricsDoc,
    MetricView,
    StatusDoc,
)
from headgate.cli.check import admission
from headgate.cli.documents import read
from headgate.cli.pages import status_page
from headgate.cli.readings import columns_for, metric_table
from headgate.cli.render import ASCII, Canvas, drawn
from headgate.history.unthrottled_api import UnthrottledDoc
from headgate.present.changes import audit_view
from headgate.present.clients import clients_view
from headgate.present.explain import explain_view
from headgate.present.history import unthrottled_view
from headgate.present.metrics import changed_view, metric_view, metrics_view, rejection_view
from headgate.present.words import moment
from headgate.rules.api import ExplainDoc
from headgate.tui.page import fitted
from headgate.tui.trend import Picture, Trend
from tests.cli import builders
from tests.tui.scenes import overview_of


def shown(page: RenderableType, width: int = 100, **console: Any) -> str:
    sink = io.StringIO()
    Console(file=sink, width=width, markup=False, highlight=False, **console).print(page)
    return sink.getvalue()


def squeezed(text: str) -> str:
    return " ".join(text.split())


BUSY = read(StatusDoc, builders.busy_status())


PACED = builders.database(pace=builders.pace(clients_total=9))


def test_status_and_top_say_what_is_released_and_who_waits() -> None:
    """R142: the gate is open, and yet clients are sent away; nobody is to wonder why."""
    waits = builders.client(last_verdict="PACED", rejected_for_s=0.8)
    status = read(StatusDoc, builders.status(databases=[PACED], clients=[waits]))
    top = overview_of(Picture("http://agent", status, 0.0), 120, 30, 0.0)
    for page in (status_page(status, Canvas(120)), top):
        text = shown(page, 120)
        assert "paced  12.3/s of cost are admitted, limited by lag, to keep lag near 2.5 s" in text
        assert "last paced: etl:nightly, purge and 7 more" in text
        assert "200ms  paced" in text
        assert "REJECTED" not in text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.1, "0.1/s"), (12.34, "12.3/s"), (123456.7, "123,457/s")]
)
def test_a_rate_is_short_at_any_size(rate: float, text: str) -> None:
    database = builders.database(pace=builders.pace(rate=rate, starting=True))
    status = read(StatusDoc, builders.status(databases=[database]))
    assert f"paced  slow start: {text} of cost" in shown(status_page(status, Canvas(120)), 120)


def test_status_shows_everything() -> None:
    text = shown(status_page(BUSY, Canvas(120)), 120)
    for told in (
        "agent db1 0.1.0 · up 3.2 h",
        "REJECTS for 12.4 s  THRESHOLD_EXCEEDED",
        "144%",
        "BREACHED",
        "timed out for 2.2 s: no answer",
        "shard/queue_depth",
        "last value; failed for 4.0 s:",
        "orders  mysql  ADMITS  nearest to its threshold",
        "THROTTLED 13 min by lag",
        "store sqlite  writable",
        "advice  databases.main.metrics.lag.threshold",
    ):
        assert told in text


def test_a_store_that_cannot_be_written_is_loud() -> None:
    store = {
        "name": "sqlite",
        "writable": False,
        "fault": "disk full",
        "fault_for_s": 90.0,
        "tallies_waiting": 12000,
    }
    page = status_page(read(StatusDoc, builders.status(store=store)), Canvas())
    assert "STORE NOT WRITABLE  sqlite cannot be written for 90.0 s: disk full" in shown(page)


def test_a_rejected_reload_is_loud() -> None:
    status = read(StatusDoc, builders.status(settings_fault="line 3, agent.lisen: unknown"))
    text = squeezed(shown(status_page(status, Canvas())))
    assert "and the earlier settings stay in force: line 3, agent.lisen" in text


@pytest.mark.parametrize("width", [32, 40, 60, 80, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal_and_every_state_is_on_it(width: int) -> None:
    text = shown(status_page(BUSY, Canvas(width)), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "BREACHED" in text
    assert "UNAVAILABLE" in text
    assert "timed out" in squeezed(text)


@given(st.integers(20, 300), st.booleans())
def test_columns_always_leave_room_for_the_state(width: int, recent: bool) -> None:
    metrics = BUSY.databases[0].metrics
    columns = columns_for(metrics, width, recent=recent)
    cells = (columns.threshold, columns.used, columns.recent, columns.age)
    needed = columns.name + columns.value + 11 + 4 + sum(c + 2 for c in cells if c)
    assert needed <= max(width, 3 + columns.value + 11 + 4)


def test_an_ascii_terminal_gets_ascii_marks() -> None:
    text = shown(metric_table(BUSY.databases[1].metrics, Canvas(100, ASCII)))
    assert text.isascii()
    assert "####" in text


def test_states_have_names_and_without_color_nothing_is_lost() -> None:
    page = status_page(BUSY, Canvas(120))
    plain = shown(page, 120)
    colourless = shown(page, 120, force_terminal=True, no_color=True)
    assert "\x1b[3" not in colourless
    for word in ("BREACHED", "UNAVAILABLE", "last value", "healthy", "REJECTS", "ADMITS"):
        assert word in plain


def test_names_are_neither_markup_nor_escape_sequences() -> None:
    client = builders.client("[red]x[/red]", rejected_for_s=3.0, rejected_by="[b]lag\x1b[2J")
    metrics = [builders.absent("m", detail="\x1b]0;owned\x07 [bold]no[/bold]")]
    status = builders.status(clients=[client], databases=[builders.database(metrics=metrics)])
    text = shown(status_page(read(StatusDoc, status), Canvas(140)), 140)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_rejection_says_why_and_when_to_retry() -> None:
    text = squeezed(shown(drawn(rejection_view(read(AnswerDoc, builders.rejection())), Canvas())))
    assert text.startswith("REJECTED etl:nightly on main: lag is 7.2 s, above its threshold of 5 s")
    assert "retry in 1.4 s" in text
    assert "BREACHED" in text and "UNAVAILABLE" in text


def test_an_admission_is_one_line() -> None:
    line = admission(read(AnswerDoc, builders.answer()), {})
    assert line == "  etl:nightly may work on main"


MUST_FALL = "lag must fall from 7.2 s to 5 s or below"


def explained(answer: dict[str, Any], **given: Any) -> ExplainDoc:
    return read(ExplainDoc, builders.explained(answer, **given))


def test_explain_says_what_would_have_to_change() -> None:
    """R144."""
    text = shown(drawn(explain_view(explained(builders.rejection(), needed=[MUST_FALL])), Canvas()))
    assert "would be REJECTED  THRESHOLD_EXCEEDED" in text
    assert f"To be admitted:\n  · {MUST_FALL}" in text


def test_explain_of_an_exempt_client_says_that_it_is() -> None:
    """R78: nothing stands in its way, but much would in anybody else's."""
    answer = builders.answer(metrics=[{**builders.metric(value=9.0), "state": "exempted"}])
    text = squeezed(shown(drawn(explain_view(explained(answer)), Canvas())))
    assert "EXEMPT: lag would reject every other client." in text


def test_explain_of_an_admission_names_the_nearest_metric() -> None:
    answer = builders.answer(metrics=[builders.metric(value=4.0)])
    text = squeezed(shown(drawn(explain_view(explained(answer)), Canvas())))
    assert "would be ADMITTED" in text
    assert "Nearest to its threshold: lag, at 80% of it (4 s; rejected > 5 s)" in text


def test_a_change_shows_what_differs() -> None:
    view = read(MetricView, builders.metric_view(settings={"threshold": 10, "unit": "s"}))
    before = {"threshold": 5, "debounce": "3 of 5", "unit": "s"}
    text = shown(drawn(changed_view(view, "SET", before=before, dry_run=False), Canvas()))
    assert text == "SET  main/lag\n  debounce: 3 of 5 → default\n  threshold: 5 → 10\n"


def test_a_dry_run_shows_the_first_probe_or_why_there_is_none() -> None:
    """R140."""

    def tried(view: dict[str, Any]) -> RenderableType:
        found = changed_view(read(MetricView, view), "SET", before={}, dry_run=True)
        return drawn(found, Canvas())

    good = tried(builders.metric_view())
    assert "nothing was changed" in shown(good)
    assert "0.8 s" in shown(good)
    broken = builders.metric_view(now=builders.absent("lag", cause="failed", detail="no table"))
    bad = tried(broken)
    assert "a probe of it gives no value: failed for 2.2 s: no table" in shown(bad)


def test_status_marks_what_guards_only_when_named() -> None:
    """A metric that decides nothing must not look like one that does."""
    off = builders.metric("loadavg", state="disabled", value=None, age_ms=None)
    other = builders.database(other_metrics=[builders.metric("queue"), off])
    text = shown(status_page(read(StatusDoc, builders.status(databases=[other])), Canvas()))
    assert "queue*" in text and "* outside the default set" in text
    assert "loadavg " in text and "disabled" in text


def test_metrics_outside_the_default_set_are_marked_and_show_how_fine_they_are() -> None:
    """R23"""
    view = read(MetricView, builders.metric_view("queue", in_default=False, granularity_s=30.0))
    text = shown(drawn(metrics_view(MetricsDoc([view])), Canvas()))
    assert "queue*" in text and "fine to" in text and "30" in text
    assert "outside the default set" in shown(drawn(metric_view(view), Canvas()))


def test_metrics_are_listed_with_their_origin_and_advice() -> None:
    views = [
        read(MetricView, builders.metric_view()),
        read(
            MetricView,
            builders.metric_view(
                "queue", origin="runtime", revision=3, source="sql", advice=["warning q: slow"]
            ),
        ),
    ]
    text = shown(drawn(metrics_view(MetricsDoc(views)), Canvas()))
    assert "runtime, rev 3" in text
    assert "advice  q: slow" in text
    assert "no metric is configured" in shown(drawn(metrics_view(MetricsDoc([])), Canvas()))


def test_the_end_of_a_change_is_in_the_list_and_with_its_metric() -> None:
    """R155"""
    view = read(MetricView, builders.metric_view("queue", expires_at="2026-03-01T12:00:00Z"))
    stays = read(MetricView, builders.metric_view())
    at = datetime(2026, 3, 1, 12, tzinfo=UTC).astimezone()
    for width in (60, 120):
        text = shown(drawn(metrics_view(MetricsDoc([stays, view])), Canvas(width=width)))
        assert " ends " in text and f"{at:%m-%d %H:%M %Z}" in text
    assert " ends " not in shown(drawn(metrics_view(MetricsDoc([stays])), Canvas()))
    assert f"ends at {at:%Y-%m-%d %H:%M:%S %Z}" in shown(drawn(metric_view(view), Canvas()))


def test_one_metric_shows_timing_and_settings() -> None:
    view = read(MetricView, builders.metric_view(settings={"sql": "select 1\n from\tx"}))
    text = shown(drawn(metric_view(view), Canvas()))
    assert "probed every 1.0 s · given up after 500 ms · stale after 2.5 s" in text
    assert "select 1 from x" in text


def test_clients_who_are_rejected_longest_stand_on_top() -> None:
    clients = [read(ClientDoc, document) for document in builders.busy_status()["clients"]]
    text = shown(drawn(clients_view(ClientsDoc(clients[::-1])), Canvas()))
    assert text.splitlines()[1].startswith("etl:nightly")
    assert "no client has checked yet" in shown(drawn(clients_view(ClientsDoc([])), Canvas()))


def test_periods_without_a_throttler_stand_below_the_history() -> None:
    """R55"""
    period = UnthrottledDoc("etl:nightly", ["main"], "2026-03-01T07:00:30.123Z", 53.0, 600.0, 1421)
    page = shown(drawn(unthrottled_view([period]), Canvas()))
    assert "etl:nightly" in page and "2026-03-01 07:00:30" in page
    assert "53.0 s" in page and "1,421" in page
    assert unthrottled_view([]) == []


def test_the_audit_says_who_changed_what_from_what() -> None:
    at = "2026-03-01T07:40:12.123Z"
    entries = [
        AuditDoc(at, "alice", "metric.set", "main/lag", {"threshold": 5}, {"threshold": 9}),
        AuditDoc(at, "uid:0", "metric.remove", "main/lag", {"threshold": 5}, None),
    ]
    text = shown(drawn(audit_view(AuditsDoc(entries)), Canvas()))
    assert f"{moment(at)}  alice  metric.set" in text
    assert "threshold: 5 → 9" in text
    assert "removed" in text
    assert "nothing was changed yet" in shown(drawn(audit_view(AuditsDoc([])), Canvas()))


LONG = "connection to server at 127.0.0.1, port 1 failed: Connection refused; is it running?"


def test_a_long_message_is_printed_once_beneath_its_table() -> None:
    dead = [builders.absent(name, cause="failed", detail=LONG) for name in ("lag", "lock_waits")]
    dead[1]["unavailable_for_ms"] = 9000
    metrics = [read(MetricDoc, document) for document in dead]
    text = shown(metric_table(metrics, Canvas(110)), 110)
    assert text.count("Connection refused") == 1
    assert f"lag, lock_waits: failed: {LONG}" in text
    assert "failed for 2.2 s" in text and "failed for 9.0 s" in text


def test_a_rejection_of_a_page_is_a_sentence() -> None:
    dead = builders.absent("lock_waits", cause="failed", detail=LONG)
    answer = builders.rejection(reason=LONG * 5, metrics=[builders.breached(), dead])
    line = squeezed(shown(drawn(rejection_view(read(AnswerDoc, answer)), Canvas(160)), 160))
    told = "lag is 7.2 s, above 5 s; lock_waits has no value (failed for 2.2 s); retry"
    assert f"REJECTED etl:nightly on main: {told}" in line


# --- one frame of top ------------------------------------------------------------------------


def framed(view: Picture, width: int = 110, height: int = 40, now_s: float = 20.0) -> str:
    return shown(overview_of(view, width, height, now_s), width)


def test_a_frame_shows_databases_clients_and_rates() -> None:
    trend = Trend("http://127.0.0.1:8087")
    trend.take(BUSY, 10.0)
    text = framed(trend.take(BUSY, 11.0))
    assert "http://127.0.0.1:8087" in text.splitlines()[0]
    assert text.splitlines()[0].endswith("03:12:07")
    assert "admitted/s" in text
    assert "██" in text


def test_an_unreachable_agent_is_shown_and_its_last_report_is_dated() -> None:
    trend = Trend("http://127.0.0.1:8087")
    trend.take(BUSY, 10.0)
    text = framed(trend.lose("connection refused", 15.0), now_s=18.0)
    assert "AGENT UNREACHABLE for 3.0 s: connection refused" in text
    assert "below is what it said 8.0 s ago" in text
    assert "BREACHED" in text


def test_an_agent_that_never_answered_is_said() -> None:
    text = framed(Trend("http://x").lose("connection refused", 18.0))
    assert "AGENT UNREACHABLE for 2.0 s: connection refused" in text
    assert "below" not in text


def test_before_the_first_answer_there_is_a_frame() -> None:
    assert "headgate" in framed(Picture("http://x"))


def test_on_a_low_terminal_what_rejects_stays() -> None:
    metrics = [builders.metric(f"m{n}", value=n / 10) for n in range(30)]
    metrics += [builders.breached("late"), builders.absent("mute")]
    status = builders.status(databases=[builders.database(verdict="X", metrics=metrics)])
    view = Trend("u").take(read(StatusDoc, status), 1.0)
    text = framed(view, height=16)
    assert "late" in text and "mute" in text
    assert "more metrics, all of them healthy" in text
    assert len(text.splitlines()) <= 16


def test_where_not_all_databases_fit_the_rejecting_ones_come_first() -> None:
    databases = [builders.database(f"db{n}") for n in range(10)]
    databases[7] = builders.database("db7", verdict="THRESHOLD_EXCEEDED")
    status = read(StatusDoc, builders.status(databases=databases))
    shown_databases, left_out = fitted(status.databases, 12)
    assert shown_databases[0].database == "db7"
    assert left_out == 10


def test_many_clients_are_counted_not_listed() -> None:
    clients = [builders.client(f"job{n}") for n in range(200)]
    view = Trend("u").take(read(StatusDoc, builders.status(clients=clients)), 1.0)
    text = framed(view, height=20)
    assert "more clients" in text
    assert len(text.splitlines()) <= 20


def test_a_metric_without_threshold_has_no_bar() -> None:
    metric = read(MetricDoc, builders.metric(threshold=None))
    assert "–" in shown(metric_table([metric], Canvas()))
