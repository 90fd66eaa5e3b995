"""Ready hooks for `on_event`: what happens to a client, in the words of the tool that watches it.

    headgate.Client("etl:nightly", database="main", on_event=hooks.prometheus())

`prometheus` and `opentelemetry` need their libraries when called, and not before.
"""

from __future__ import annotations

import importlib
import logging as log
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from headgate.client import events
from headgate.client.answers import Answer
from headgate.errors import Fault, InvalidSettings

# --- events as numbers, once for every tool that counts ------------------------------------


NO_ANSWER = "none"


class Instrument(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...]


_WHO = ("app", "database")
INSTRUMENTS: dict[str, Instrument] = {
    "headgate_client_checks": Instrument(
        "counter", "Checks, by verdict; `none`: no agent answered.", (*_WHO, "verdict")
    ),
    "headgate_client_answer_seconds": Instrument(
        "histogram", "How long one check took to be answered.", ("app",)
    ),
    "headgate_client_wait_seconds": Instrument(
        "histogram", "How long a piece of work waited until it was admitted.", _WHO
    ),
    "headgate_client_rejected": Instrument(
        "counter", "Rejections, by verdict.", (*_WHO, "verdict")
    ),
    "headgate_client_waited_too_long": Instrument(
        "counter", "Waits that were rejected until their deadline.", _WHO
    ),
    "headgate_client_unthrottled": Instrument(
        "counter", "Pieces of work that started without a throttler.", _WHO
    ),
    "headgate_client_stopped": Instrument(
        "counter", "Pieces of work that did not start because no agent answered.", _WHO
    ),
    "headgate_client_circuit_open": Instrument(
        "gauge", "1 while no agent answers and the circuit is open, else 0.", ("app", "agent")
    ),
    "headgate_client_rerouted": Instrument(
        "counter", "Changes of the agent that the client uses.", ("app",)
    ),
}


class Measure(NamedTuple):
    name: str
    value: float
    labels: tuple[str, ...]


def measures_of(event: events.Event) -> Iterator[Measure]:
    match event:
        case events.Checked(app, databases, _, verdict, took_s):
            yield _one("checks", app, _joined(databases), verdict or NO_ANSWER)
            if verdict is not None:
                yield Measure("headgate_client_answer_seconds", took_s, (app,))
        case events.Rejected(app, databases, answer):
            yield _one("rejected", app, _joined(databases), answer.verdict)
        case events.Waited(app, databases, waited_s):
            yield _waited(app, databases, waited_s)
        case events.WaitTimedOut(app, databases, waited_s):
            yield _waited(app, databases, waited_s)
            yield _one("waited_too_long", app, _joined(databases))
        case events.FailedOpen(app, databases):
            yield _one("unthrottled", app, _joined(databases))
        case events.FailedClosed(app, databases):
            yield _one("stopped", app, _joined(databases))
        case events.CircuitOpened(app, agent):
            yield Measure("headgate_client_circuit_open", 1.0, (app, agent))
        case events.CircuitClosed(app, agent):
            yield Measure("headgate_client_circuit_open", 0.0, (app, agent))
        case events.Rerouted(app):
            yield _one("rerouted", app)
        case events.CircuitHalfOpened() | events.WentUnthrottled():
            return  # Its pieces were counted one by one.


def _one(name: str, *labels: str) -> Measure:
    return Measure(f"headgate_client_{name}", 1.0, labels)


def _waited(app: str, databases: tuple[str, ...], waited_s: float) -> Measure:
    return Measure("headgate_client_wait_seconds", waited_s, (app, _joined(databases)))


def _joined(databases: tuple[str, ...]) -> str:
    return ",".join(databases)


def needed(module: str, package: str, hook: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        message = f"hooks.{hook} needs {package}: pip install {package}"
        raise InvalidSettings([Fault("on_event", message)]) from None


# --- events as log lines, with their fields ------------------------------------------------


LEVELS: dict[type[events.Event], int] = {
    events.Checked: log.DEBUG,
    events.Rejected: log.DEBUG,
    events.Waited: log.DEBUG,
    events.WaitTimedOut: log.WARNING,
    events.FailedOpen: log.INFO,
    events.FailedClosed: log.ERROR,
    events.CircuitOpened: log.WARNING,
    events.CircuitHalfOpened: log.INFO,
    events.CircuitClosed: log.WARNING,
    events.Rerouted: log.INFO,
    events.WentUnthrottled: log.WARNING,
}


def logging(logger: log.Logger | str = "headgate.client.events") -> Callable[[events.Event], None]:
    """One line for each event, at a level that fits it; a rejected wait is INFO.

    The event itself is the record's `headgate`, for formatters that want its fields.
    """
    to = log.getLogger(logger) if isinstance(logger, str) else logger

    def hook(event: events.Event) -> None:
        level = level_of(event)
        if to.isEnabledFor(level):
            fields = [f"{name}={_value(value)}" for name, value in event._asdict().items()]
            told = type(event).__name__, " ".join(fields)
            to.log(level, "%s %s", *told, extra={"headgate": event})

    return hook


def level_of(event: events.Event) -> int:
    held = isinstance(event, events.Waited) and event.rejections > 0
    return log.INFO if held else LEVELS[type(event)]


def _value(value: object) -> str:
    if isinstance(value, Answer):
        return f"{value.verdict} ({value.reason})" if value.reason else value.verdict
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# --- events as Prometheus series -----------------------------------------------------------


# A wait is over at once or takes minutes; the default buckets end at ten seconds.
BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


def prometheus(registry: Any = None) -> Callable[[events.Event], None]:
    """Counts in `registry`, by default that of prometheus-client; several clients may share it."""
    library = needed("prometheus_client", "prometheus-client", "prometheus")
    series = _series(library.REGISTRY if registry is None else registry)

    def hook(event: events.Event) -> None:
        for measure in measures_of(event):
            kind, one = INSTRUMENTS[measure.name].kind, series[measure.name]
            chosen = one.labels(*measure.labels)
            if kind == "counter":
                chosen.inc(measure.value)
            elif kind == "gauge":
                chosen.set(measure.value)
            else:
                chosen.observe(measure.value)

    return hook


@cache
def _series(registry: Any) -> dict[str, Any]:
    """Once for each registry: a registry does not accept the same name twice."""
    return {name: _made_prometheus(name, row, registry) for name, row in INSTRUMENTS.items()}


def _made_prometheus(name: str, row: Instrument, registry: Any) -> Any:
    library = needed("prometheus_client", "prometheus-client", "prometheus")
    if row.kind == "histogram":
        return library.Histogram(name, row.about, row.labels, registry=registry, buckets=BUCKETS)
    made = library.Counter if row.kind == "counter" else library.Gauge
    return made(name, row.about, row.labels, registry=registry)


# --- events as OpenTelemetry metrics -------------------------------------------------------


def opentelemetry(meter: Any = None) -> Callable[[events.Event], None]:
    """By `meter`, by default the global provider's. Names have dots: `headgate.client.checks`."""
    if meter is None:
        library = needed("opentelemetry.metrics", "opentelemetry-api", "opentelemetry")
        meter = library.get_meter("headgate.client")
    series = {name: _made_otel(name, row, meter) for name, row in INSTRUMENTS.items()}

    def hook(event: events.Event) -> None:
        for measure in measures_of(event):
            row, one = INSTRUMENTS[measure.name], series[measure.name]
            attributes = dict(zip(row.labels, measure.labels, strict=True))
            if row.kind == "counter":
                one.add(measure.value, attributes)
            elif row.kind == "gauge":
                one.set(measure.value, attributes)
            else:
                one.record(measure.value, attributes)

    return hook


def _made_otel(name: str, row: Instrument, meter: Any) -> Any:
    dotted = name.replace("headgate_client_", "headgate.client.").removesuffix("_seconds")
    if row.kind == "histogram":
        return meter.create_histogram(dotted, unit="s", description=row.about)
    made = meter.create_counter if row.kind == "counter" else meter.create_gauge
    return made(dotted, description=row.about)
