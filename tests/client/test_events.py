"""What hooks are told, and that they can break nothing."""

from __future__ import annotations

import itertools
import logging
import sys
from typing import Any

import prometheus_client
import pytest

from headgate import Client, InvalidSettings, ThrottlerUnavailable, WaitedTooLong
from headgate.client import events, hooks
from headgate.client.answers import Answer
from headgate.client.events import EVENTS, Event, Events, events_of
from headgate.client.hooks import INSTRUMENTS, LEVELS, level_of, measures_of
from tests.client import bodies
from tests.client.conftest import MakeCaller
from tests.client.scripted import OK, REJECTED, ScriptedAgent, answer

ADMITTED = Answer("OK", admitted=True, reason="")
NO = Answer("THRESHOLD_EXCEEDED", admitted=False, reason="main: lag is 7.2 s")
WHO = ("etl:nightly", ("main",))
ONE_OF_EACH: tuple[Event, ...] = (
    events.Checked(*WHO, "http://a", "OK", 0.002),
    events.Checked(*WHO, "http://a", None, 1.0, "no answer in 1 s"),
    events.Rejected(*WHO, NO),
    events.Waited(*WHO, 0.0, 0, ADMITTED),
    events.Waited(*WHO, 3.5, 2, ADMITTED),
    events.WaitTimedOut(*WHO, 60.0, 9, NO),
    events.FailedOpen(*WHO, "http://a", 10.0, "connection refused"),
    events.FailedClosed(*WHO, "http://a", 10.0, "connection refused"),
    events.CircuitOpened("etl:nightly", "http://a", 10.0, "connection refused"),
    events.CircuitHalfOpened("etl:nightly", "http://a", 20.0),
    events.CircuitClosed("etl:nightly", "http://a", 30.0),
    events.Rerouted(*WHO, "http://a", "http://b", "it decides for the shard"),
    events.WentUnthrottled(*WHO, "http://a", 20.0, 421),
)


def kinds(told: list[Event]) -> list[str]:
    return [type(event).__name__ for event in told]


async def test_a_wait_in_events(agent: ScriptedAgent, make_caller: MakeCaller) -> None:
    told: list[Event] = []
    agent.script.plays.extend([REJECTED, OK])
    caller = make_caller(agent.url, on_event=told.append)
    await caller.wait()
    assert kinds(told) == ["Checked", "Rejected", "Checked", "Waited"]
    rejected, waited = told[1], told[3]
    assert isinstance(rejected, events.Rejected) and isinstance(waited, events.Waited)
    assert rejected[:2] == ("etl:nightly", ("main",))
    assert rejected.answer.verdict == "THRESHOLD_EXCEEDED"
    assert waited.rejections == 1
    assert waited.waited_s == pytest.approx(sum(caller.time.slept))
    told.clear()
    agent.script.plays.extend([REJECTED])
    await caller.check()
    assert kinds(told) == ["Checked", "Rejected"]
    told.clear()
    agent.script.default = REJECTED
    with pytest.raises(WaitedTooLong):
        await caller.wait(0)
    assert kinds(told) == ["Checked", "Rejected", "WaitTimedOut"]


async def test_an_outage_in_events(agent: ScriptedAgent, make_caller: MakeCaller) -> None:
    told: list[Event] = []
    settings: dict[str, Any] = {"on_unavailable": "open", "unavailable_after_s": 0.0}
    caller = make_caller(agent.url, on_event=told.append, **settings)
    agent.stop()
    await caller.wait()
    agent.start()
    caller.time.now_s += 1
    await caller.wait()
    assert kinds(told) == [
        *("Checked", "CircuitOpened", "FailedOpen", "Waited"),
        *("CircuitHalfOpened", "Checked", "CircuitClosed", "WentUnthrottled", "Waited"),
    ]


async def test_failing_closed_in_events(agent: ScriptedAgent, make_caller: MakeCaller) -> None:
    told: list[Event] = []
    caller = make_caller(agent.url, on_event=told.append, unavailable_after_s=0.0)
    agent.stop()
    with pytest.raises(ThrottlerUnavailable):
        await caller.wait()
    assert kinds(told) == ["Checked", "CircuitOpened", "FailedClosed"]


async def test_being_sent_on_in_events(agent: ScriptedAgent, make_caller: MakeCaller) -> None:
    told: list[Event] = []
    with ScriptedAgent() as primary:
        sent_on = bodies.ok(
            verdict="WRONG_AGENT", admitted=False, check_at=primary.url, reason="there"
        )
        agent.script.default = answer(421, sent_on)
        caller = make_caller(agent.url, on_event=told.append)
        await caller.check()
        await caller.check()
        primary.stop()
        agent.script.default = OK
        await caller.check()
    moved = [event[2:4] for event in told if isinstance(event, events.Rerouted)]
    assert moved == [(agent.url, primary.url), (primary.url, agent.url)]


# --- hooks ----------------------------------------------------------------------------------


def test_a_hook_that_raises_breaks_nothing_and_is_named_once(
    agent: ScriptedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError("of the hook's own")

    with Client("etl", database="main", url=agent.url, on_event=[broken, told.append]) as gate:
        for _ in range(3):
            assert gate.wait()
    assert len(told) == 6, "the others are told all the same"
    assert caplog.text.count("ZeroDivisionError") == 1


def test_a_hook_may_stop_the_program() -> None:
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Events([interrupted])(ONE_OF_EACH[0])


async def _coroutine(event: Event) -> None: ...


@pytest.mark.parametrize("on_event", [7, [print, None], _coroutine])
def test_what_cannot_be_called_is_rejected(on_event: Any) -> None:
    with pytest.raises((InvalidSettings, TypeError)):
        Client("etl", database="main", on_event=on_event)


def test_without_a_hook_no_event_is_made() -> None:
    assert events_of(None) is None
    assert events_of([]) is None
    gate = Client("etl", database="main")
    assert gate._conversation._tell.emit is None


def test_every_event_is_among_those_tested_and_has_a_level() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(EVENTS) == set(LEVELS)


def test_events_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hook = hooks.logging("jobs")
    for event in ONE_OF_EACH:
        hook(event)
    assert [record.name for record in caplog.records] == ["jobs"] * len(ONE_OF_EACH)
    rejected = caplog.records[2]
    assert rejected.getMessage() == (
        "Rejected app=etl:nightly databases=main answer=THRESHOLD_EXCEEDED (main: lag is 7.2 s)"
    )
    assert rejected.headgate is ONE_OF_EACH[2]  # type: ignore[attr-defined]
    assert level_of(ONE_OF_EACH[3]) == logging.DEBUG
    assert level_of(ONE_OF_EACH[4]) == logging.INFO, "it was held"


def test_every_measure_has_its_instrument_and_labels() -> None:
    measures = list(itertools.chain.from_iterable(map(measures_of, ONE_OF_EACH)))
    assert {measure.name for measure in measures} == set(INSTRUMENTS)
    for measure in measures:
        assert len(measure.labels) == len(INSTRUMENTS[measure.name].labels)


def test_events_in_prometheus() -> None:
    registry = prometheus_client.CollectorRegistry()
    hook = hooks.prometheus(registry)
    again = hooks.prometheus(registry)
    for event in ONE_OF_EACH[:-2]:
        hook(event)
    again(ONE_OF_EACH[0])
    text = prometheus_client.generate_latest(registry).decode()
    for line in (
        'headgate_client_checks_total{app="etl:nightly",database="main",verdict="OK"} 2.0',
        'headgate_client_checks_total{app="etl:nightly",database="main",verdict="none"} 1.0',
        'headgate_client_wait_seconds_count{app="etl:nightly",database="main"} 3.0',
        'headgate_client_unthrottled_total{app="etl:nightly",database="main"} 1.0',
        'headgate_client_stopped_total{app="etl:nightly",database="main"} 1.0',
        'headgate_client_circuit_open{agent="http://a",app="etl:nightly"} 0.0',
    ):
        assert line in text


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(InvalidSettings, match="pip install prometheus-client"):
        hooks.prometheus()
    with pytest.raises(InvalidSettings, match="pip install opentelemetry-api"):
        hooks.opentelemetry()


def test_events_in_opentelemetry() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    hook = hooks.opentelemetry(provider.get_meter("test"))
    for event in ONE_OF_EACH:
        hook(event)
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {m.name: m for scope in resource.scope_metrics for m in scope.metrics}
    asked = {
        point.attributes["verdict"]: point.value
        for point in found["headgate.client.checks"].data.data_points
    }
    assert asked == {"OK": 1, "none": 1}
    assert found["headgate.client.wait"].unit == "s"
    (circuit,) = found["headgate.client.circuit_open"].data.data_points
    assert circuit.value == 0
    provider.shutdown()
