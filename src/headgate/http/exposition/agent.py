"""The agent itself: its store, its loop, its connections.   Keeper, Recorder, Works ──► rows"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.base.prometheus import Row, Spread
from headgate.http.exposition.series import Scrape, Series


def _build(look: Scrape) -> Iterator[Row]:
    yield (look.facts.version, look.facts.name), 1.0


def _uptime(look: Scrape) -> Iterator[Row]:
    yield (), max(0.0, look.now.mono_s - look.facts.started_at.mono_s)


def _settings_rejected(look: Scrape) -> Iterator[Row]:
    yield (), float(look.facts.settings_fault is not None)


def _state_lost(look: Scrape) -> Iterator[Row]:
    yield (), float(look.facts.state_lost is not None)


def _standing_by(look: Scrape) -> Iterator[Row]:
    if (standby := look.facts.standby) is not None:
        yield (), float(standby.passive)


def _takeovers(look: Scrape) -> Iterator[Row]:
    if (standby := look.facts.standby) is not None:
        yield (), float(standby.takeovers_total)


def _store_writable(look: Scrape) -> Iterator[Row]:
    yield (), float(look.parts.keeper.fault is None)


def _store_fault(look: Scrape) -> Iterator[Row]:
    fault = look.parts.keeper.fault
    yield (), 0.0 if fault is None else max(0.0, look.now.wall_s - fault.since_wall_s)


def _waiting(look: Scrape) -> Iterator[Row]:
    yield (), float(look.parts.recorder.waiting)


def _dropped(look: Scrape) -> Iterator[Row]:
    yield (), float(look.parts.recorder.dropped_tallies)


# --- the process ---------------------------------------------------------------------------------


def _loop_lag(look: Scrape) -> Iterator[Row]:
    if look.works is not None:
        pulse = look.works.pulse
        yield (), Spread(pulse.up_to(), pulse.sum_s)


def _connections(look: Scrape) -> Iterator[Row]:
    if look.works is not None:
        yield (), float(len(look.works.listener().connections))


def _max_connections(look: Scrape) -> Iterator[Row]:
    if look.works is not None:
        yield (), float(look.works.listener().limits.max_connections)


def _turned_away(look: Scrape) -> Iterator[Row]:
    if look.works is not None:
        yield (), float(look.works.listener().rejected_connections)


def _shed(look: Scrape) -> Iterator[Row]:
    if look.works is not None:
        yield (), float(look.works.listener().shed_connections)


def _out_of_files(look: Scrape) -> Iterator[Row]:
    yield (), float(look.facts.files_fault is not None)


def _spans(look: Scrape) -> Iterator[Row]:
    spans = look.facts.spans
    for outcome, count in spans.outcomes.items() if spans is not None else ():
        yield (outcome,), float(count)


def _spans_waiting(look: Scrape) -> Iterator[Row]:
    if (spans := look.facts.spans) is not None:
        yield (), float(spans.waiting)


AGENT = (
    Series("headgate_build_info", "gauge", ("version", "agent"), "Always 1.", _build),
    Series("headgate_uptime_seconds", "gauge", (), "Since the agent's start.", _uptime),
    Series(
        "headgate_settings_rejected",
        "gauge",
        (),
        "1 while the settings file on disk is invalid and the last good one stays in force.",
        _settings_rejected,
    ),
    Series(
        "headgate_state_lost",
        "gauge",
        (),
        "1 while the operators' changes are lost, both in the state file and in its copy. Checks "
        "are rejected, or use only the settings file, as `state_lost` says.",
        _state_lost,
    ),
    Series(
        "headgate_standing_by",
        "gauge",
        (),
        "1 while this agent is a passive standby, 0 while it answers. Missing without a standby.",
        _standing_by,
    ),
    Series(
        "headgate_takeovers_total",
        "counter",
        (),
        "Times that it took over from the other agent.",
        _takeovers,
    ),
    Series(
        "headgate_store_writable",
        "gauge",
        (),
        "1 while runtime settings, audit and history can be stored, else 0.",
        _store_writable,
    ),
    Series(
        "headgate_store_fault_seconds",
        "gauge",
        (),
        "How long the store has not been writable; 0 while it is.",
        _store_fault,
    ),
    Series(
        "headgate_store_tallies_waiting",
        "gauge",
        (),
        "Rows of history that wait for the store.",
        _waiting,
    ),
    Series(
        "headgate_store_dropped_total",
        "counter",
        (),
        "Decisions missing from history (never from the counters) because the store was away "
        "too long.",
        _dropped,
    ),
    Series(
        "headgate_loop_lag_seconds",
        "histogram",
        (),
        "How late the agent's event loop was, measured four times a second: how long a check may "
        "have had to wait.",
        _loop_lag,
    ),
    Series("headgate_connections", "gauge", (), "Connections to the agent now.", _connections),
    Series(
        "headgate_connections_max",
        "gauge",
        (),
        "How many are served at once (`max_connections`).",
        _max_connections,
    ),
    Series(
        "headgate_connections_shed_total",
        "counter",
        (),
        "Connections that never sent a request, and were closed because their places were needed.",
        _shed,
    ),
    Series(
        "headgate_out_of_files",
        "gauge",
        (),
        "1 while the process is at its limit of open files and accepts no more connections.",
        _out_of_files,
    ),
    Series(
        "headgate_connections_rejected_total",
        "counter",
        (),
        "Connections that got status 503 because there were too many.",
        _turned_away,
    ),
    Series(
        "headgate_trace_spans_total",
        "counter",
        ("outcome",),
        "Spans by outcome: `sent`; `full` (too many waited); `busy` (too many began in one "
        "second); `undelivered` (the collector did not take them); `rejected` (by the collector). "
        "Missing without [tracing].",
        _spans,
    ),
    Series(
        "headgate_trace_spans_waiting",
        "gauge",
        (),
        "Spans that wait to be sent. Missing without [tracing].",
        _spans_waiting,
    ),
)
