"""Events as numbers, once for every tool that counts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from headgate.client import events
from headgate.errors import Fault, InvalidSettings

NO_ANSWER = "none"


class Instrument(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...]


_WHO = ("app", "database")
INSTRUMENTS: dict[str, Instrument] = {
    "headgate_client_asked": Instrument(
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
        case events.Asked(app, databases, _, verdict, took_s):
            yield _one("asked", app, _joined(databases), verdict or NO_ANSWER)
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
